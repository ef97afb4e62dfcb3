"""LiteRT as a delegate, on the CPU: with XNNPACK, with its own kernels, with its reference kernels.

Its Python interpreter has memory of its own: inputs and outputs are copied once each.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ...ir import Array, Graph, Op
from ...runtime.delegate import Executable, Options
from ...runtime.delegate_options import Option, one_of, text, whole_number
from ...runtime.submodel import as_tflite
from .base import THREADS, CopyingExecutable, EngineDelegate
from .compiled_model import CompiledModelExecutable, refuses_types
from .packages import import_package

# XNNPACK's flags: signed and unsigned bytes, products with weights that are computed; and floats in
# half precision.
USUAL = 0x1 | 0x2 | 0x8
FORCE_FP16 = 0x4


class InterpreterExecutable(CopyingExecutable):
    """A part in LiteRT's interpreter.

    resolver: a name of its OpResolverType. delegates: objects of its load_delegate, which get the
    graph before XNNPACK does.
    """

    def __init__(
        self,
        content: bytes,
        threads: int = 1,
        resolver: str = "AUTO",
        delegates: Sequence[Any] = (),
    ) -> None:
        super().__init__()
        import_package("litert", "LiteRT's interpreter")
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        self.interpreter = made = Interpreter(
            model_content=content,
            num_threads=threads,
            experimental_op_resolver_type=OpResolverType[resolver],
            experimental_delegates=list(delegates) or None,
        )
        made.allocate_tensors()
        self._fed = [int(d["index"]) for d in made.get_input_details()]
        self._views = [made.tensor(int(d["index"])) for d in made.get_output_details()]
        self.workers, self._size = threads, len(content)

    def feed(self, place: int, array: Array) -> None:
        self.interpreter.set_tensor(self._fed[place], array)

    def compute(self) -> None:
        self.interpreter.invoke()

    def made(self, place: int) -> Array:
        # Asked for after every run: the interpreter moves a tensor whose shape it did not know.
        view: Array = self._views[place]()
        return view

    def memory(self) -> dict[str, int]:
        return {"part_file": self._size}


def named_nodes(said: str, count: int) -> list[int]:
    """LiteRT names a node by its number, which is the op's place in the file. count: the ops there;
    nodes of delegates have the numbers behind them."""
    found = [int(n) for n in re.findall(r"[Nn]ode number (\d+)", said)]
    return [n for n in found if n < count]


class InterpreterDelegate(EngineDelegate):
    """LiteRT's interpreter with one set of kernels."""

    engine, title = "litert", "LiteRT"
    resolver: ClassVar[str]

    def load(self, part: Graph, options: Options) -> Executable:
        return InterpreterExecutable(as_tflite(part), options.threads, self.resolver)

    def blamed(self, part: Graph, said: str) -> Sequence[int]:
        return named_nodes(said, len(part.ops)) or super().blamed(part, said)


class LiteRtDelegate(InterpreterDelegate):
    """LiteRT as it is by default: XNNPACK, and LiteRT's own kernels for what that does not take.

    XNNPACK's options are not reached through the interpreter; with one of them the part is a
    CompiledModel.
    """

    name, resolver = "litert", "AUTO"
    options: ClassVar[Mapping[str, Option]] = {
        "threads": THREADS,
        "precision": one_of("that XNNPACK computes floats in", "f32", "f16"),
        "xnnpack_flags": whole_number("XNNPACK's flags, all of them", least=0),
        "weight_cache": text("a folder for packed weights, a file for each part"),
    }

    @property
    def is_compiled_model(self) -> bool:
        return bool({"precision", "xnnpack_flags", "weight_cache"}.intersection(self.chosen))

    def refuses(self, op: Op) -> str | None:
        return super().refuses(op) or (refuses_types(op) if self.is_compiled_model else None)

    def load(self, part: Graph, options: Options) -> Executable:
        if not self.is_compiled_model:
            return super().load(part, options)
        from ai_edge_litert.options import CpuOptions
        from ai_edge_litert.options import Options as LiteRtOptions

        content = as_tflite(part)
        asked = CpuOptions(
            num_threads=options.threads,
            xnnpack_flags=self._flags(),
            xnnpack_weight_cache_path=self._cache_file(content),
        )
        whole = LiteRtOptions(cpu_options=asked)
        return CompiledModelExecutable(part, content, whole, options.threads)

    def _flags(self) -> int | None:
        half = FORCE_FP16 if self.chosen.get("precision") == "f16" else 0
        given = self.chosen.get("xnnpack_flags")
        return half | (USUAL if given is None else given) if half or given is not None else None

    def _cache_file(self, content: bytes) -> str:
        if "weight_cache" not in self.chosen:
            return ""
        folder = Path(self.chosen["weight_cache"])
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder / f"{hashlib.sha256(content).hexdigest()[:16]}.xnnpack")


class LiteRtBuiltinDelegate(InterpreterDelegate):
    """LiteRT's own kernels, without XNNPACK."""

    name, resolver = "litert-builtin", "BUILTIN_WITHOUT_DEFAULT_DELEGATES"


class LiteRtReferenceDelegate(InterpreterDelegate):
    """LiteRT's reference kernels: slow, and the definition of what operators mean."""

    name, resolver = "litert-reference", "BUILTIN_REF"

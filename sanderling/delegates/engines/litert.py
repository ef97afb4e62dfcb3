"""LiteRT as a delegate, on the CPU: with XNNPACK, with its own kernels, with its reference kernels.

Its Python interpreter has memory of its own: inputs and outputs are copied once each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ...ir import Array, Graph
from ...runtime.delegate import Executable, Options
from ...runtime.submodel import as_tflite
from .base import CopyingExecutable, EngineDelegate
from .packages import import_package


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


class LiteRtDelegate(EngineDelegate):
    """LiteRT as it is by default: XNNPACK, and LiteRT's own kernels for what that does not take."""

    name, engine, title = "litert", "litert", "LiteRT"
    resolver = "AUTO"

    def load(self, part: Graph, options: Options) -> Executable:
        return InterpreterExecutable(as_tflite(part), options.threads, self.resolver)

    def blamed(self, part: Graph, said: str) -> Sequence[int]:
        return named_nodes(said, len(part.ops)) or super().blamed(part, said)


class LiteRtBuiltinDelegate(LiteRtDelegate):
    """LiteRT's own kernels, without XNNPACK."""

    name, resolver = "litert-builtin", "BUILTIN_WITHOUT_DEFAULT_DELEGATES"


class LiteRtReferenceDelegate(LiteRtDelegate):
    """LiteRT's reference kernels: slow, and the definition of what operators mean."""

    name, resolver = "litert-reference", "BUILTIN_REF"

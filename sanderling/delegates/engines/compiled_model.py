"""LiteRT's CompiledModel: it has options of XNNPACK and accelerators that its interpreter has not.

Inputs are copied into buffers of its own: a buffer on the caller's memory has one dimension in
Python, and CompiledModel takes it for no input of another rank. Outputs are written where the
caller wants them, if that is on a boundary of 64 bytes, as arrays between parts are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ...ir import Array, Graph, Op
from ...runtime.delegate import BorderCopies, Executable
from .messages import captured_stderr

# The types of its buffers in Python.
TYPES = ("float32", "float16", "int32", "int8", "uint8", "bool")
ALIGNMENT = 64


def refuses_types(op: Op) -> str | None:
    """Why tensors of an op cannot be in buffers; None if they can."""
    border = [t for t in (*op.inputs, *op.outputs) if t is not None and not t.is_constant]
    absent = [t.dtype.short for t in border if t.dtype.numpy.name not in TYPES]
    return f"LiteRT's CompiledModel has no buffers of {absent[0]}" if absent else None


class CompiledModelExecutable(Executable):
    """A part as a CompiledModel. options: LiteRT's own. must_accelerate: what the accelerator
    leaves to the CPU is a failure."""

    copies: BorderCopies

    def __init__(
        self, part: Graph, content: bytes, options: Any, threads: int, must_accelerate: bool = False
    ) -> None:
        with captured_stderr() as said:
            try:
                self._load(part, content, options)
            except Exception as error:
                raise RuntimeError(_reason(said()) or str(error)) from error
        if must_accelerate and not self.model.is_fully_accelerated():
            raise RuntimeError("it leaves some of them to the CPU")
        self.workers, self.copies = threads, BorderCopies()

    def _load(self, part: Graph, content: bytes, options: Any) -> None:
        from ai_edge_litert.compiled_model import CompiledModel

        self._content = content  # the model reads weights where they lie
        self.model = made = CompiledModel.from_buffer(
            content, environment=_environment(), options=options
        )
        ((key, names),) = made.get_signature_list().items()
        self._inputs = [made.create_input_buffer_by_name(key, t.name) for t in part.inputs]
        self._own = [made.create_output_buffer_by_name(key, t.name) for t in part.outputs]
        self._order = [
            [names[side].index(t.name) for t in own]
            for side, own in (("inputs", part.inputs), ("outputs", part.outputs))
        ]

    def run(self, inputs: Sequence[Array], outputs: list[Array | None]) -> None:
        self.bind(inputs, outputs)()

    def bind(self, inputs: Sequence[Array], outputs: list[Array | None]) -> Callable[[], None]:
        targets = [array for array in outputs if array is not None]
        assert len(targets) == len(outputs), "ops whose shapes depend on data are refused"
        buffers = [_on(array) or own for array, own in zip(targets, self._own, strict=True)]
        fed, made = (
            _ordered(side, order)
            for side, order in zip((self._inputs, buffers), self._order, strict=True)
        )
        late = [
            (own, target)
            for own, used, target in zip(self._own, buffers, targets, strict=True)
            if own is used
        ]

        def call() -> None:
            for buffer, array in zip(self._inputs, inputs, strict=True):
                buffer.write(array)
            self.model.run_by_index(0, fed, made)
            for buffer, target in late:
                target[...] = buffer.read(target.size, target.dtype).reshape(target.shape)
            self.copies.count(inputs, [target for _, target in late])

        return call

    def memory(self) -> dict[str, int]:
        return {"part_file": len(self._content)}


def _ordered(things: Sequence[Any], places: Sequence[int]) -> list[Any]:
    return [thing for _, thing in sorted(zip(places, things, strict=True), key=lambda p: p[0])]


def _on(array: Array) -> Any:
    """A buffer on this very memory; None where it would be a copy."""
    from ai_edge_litert.tensor_buffer import TensorBuffer

    if array.ctypes.data % ALIGNMENT or not array.size:
        return None
    return TensorBuffer.create_from_host_memory(array.reshape(-1))


@cache
def _environment() -> Any:
    """One for all: to make one is to load every accelerator. Buffers on host memory make another
    when they are first used, which says as much; it is heard now."""
    import ai_edge_litert
    from ai_edge_litert.environment import Environment, EnvironmentOptions
    from ai_edge_litert.tensor_buffer import TensorBuffer

    home = str(Path(str(ai_edge_litert.__file__)).parent)
    TensorBuffer.create_from_host_memory(np.zeros(1, np.float32))
    return Environment.create(options=EnvironmentOptions(runtime_path=home))


def _reason(said: str) -> str:
    """The lines that tell of an error."""
    lines = [line for line in said.splitlines() if line.startswith(("ERROR", "E0"))]
    return " ".join(line.split("] ", 1)[-1] for line in lines)

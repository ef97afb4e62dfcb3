"""The reference delegate: every operator, in NumPy, by its definition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import DelegateError, UnsupportedError
from ..ir import Array, Graph, Op, Tensor
from ..runtime.delegate import Delegate, Executable, Options
from ..spans import span, tape

if TYPE_CHECKING:
    from ..ops import State
    from ..ops.execute import Evaluate


class ReferenceDelegate(Delegate):
    """Takes every operator that has a definition."""

    name = "reference"
    identity = name  # it has no settings

    def refuses(self, op: Op) -> str | None:
        from ..ops import check

        try:
            check(op)
        except UnsupportedError as error:
            return error.what
        return None

    def compile(self, part: Graph, options: Options) -> ReferenceExecutable:
        return ReferenceExecutable(part, options.state)


class ReferenceExecutable(Executable):
    """Evaluates the ops in order; results are copied into the caller's buffers."""

    def __init__(self, part: Graph, state: State) -> None:
        from ..ops.execute import Routine

        self.part, self.state = part, state
        self._routine = Routine(part.ops, part.inputs, part.outputs)
        self._watch: Evaluate | None = None  # evaluates an op, for a profile

    def run(self, inputs: Sequence[Array], outputs: list[Array | None]) -> None:
        if tape.recorder is None:
            self._settle(inputs, self._routine.run(inputs, self.state, self._watch), outputs)
            return
        results = self._routine.run(inputs, self.state, self._told)
        size = sum(r.nbytes for r in results)
        with span("copy results out", "copy", {"bytes": size}):
            self._settle(inputs, results, outputs)

    def watch_ops(self, evaluate: Evaluate) -> Sequence[Op]:
        self._watch = evaluate
        return self.part.ops

    def _told(self, op: Op, inputs: Sequence[Array | None], state: State) -> list[Array]:
        from ..ops.execute import evaluate

        place = self.part.ops.index(op)
        node = self.nodes[place] if place < len(self.nodes) else -1
        about = {
            "op": op.name,
            "node": node,
            "step": f"{place} {op.name}",
            "kernel": "numpy",
            "writes": op.where,
            "delegate": ReferenceDelegate.name,
        }
        with span(op.name, "op", about):
            return evaluate(op, inputs, state)

    def _settle(
        self, inputs: Sequence[Array], results: list[Array], outputs: list[Array | None]
    ) -> None:
        # Every result is settled before the first is written: a buffer may be another's source.
        for index, buffer in enumerate(outputs):
            if buffer is None:
                results[index] = _own(results[index], (*inputs, *results[:index]))
        for index, result in enumerate(results):
            buffer = outputs[index]
            if buffer is None:
                outputs[index] = result
            elif buffer.shape != result.shape or buffer.dtype != result.dtype:
                raise _unplanned(self.part.outputs[index], result, buffer)
            else:
                buffer[...] = result


def _unplanned(tensor: Tensor, result: Array, buffer: Array) -> DelegateError:
    other_type = f"the graph says {tensor.dtype.short}: give the tensor the type of the result"
    other_shape = "the operator's shape inference is wrong; please report the model"
    return DelegateError(
        f"the result is {result.dtype}{list(result.shape)}, planned was "
        f"{buffer.dtype}{list(buffer.shape)}",
        where=tensor.producer.where if tensor.producer else f"tensor '{tensor.name}'",
        fix=other_type if buffer.dtype != result.dtype else other_shape,
    )


def _own(result: Array, others: Sequence[Array]) -> Array:
    """An array that nobody else will overwrite: operators such as RESHAPE may return a view."""
    if not result.flags.writeable:
        return result.copy()
    if result.base is None:  # all views of its memory say so
        shared = any(a is result or a.base is result for a in others)
    else:
        shared = any(np.may_share_memory(result, a) for a in others)
    return result.copy() if shared else result

"""Which of the user's ops a step carries out, told after the passes have rewritten the part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..ir import Graph, Op, Tensor


class Origins:
    """The part as it was given.

    A step does the ops on the way from its inputs to its outputs that no step before it did.
    Tensors are found again by themselves or by name: passes call a version of `x` `x/...`.
    """

    def __init__(self, part: Graph) -> None:
        self.ops = [(op.name, list(op.inputs)) for op in part.ops]
        self.maker = {t: i for i, op in enumerate(part.ops) for t in op.outputs}
        self.named = {
            t.name: t
            for op in reversed(part.ops)
            for t in (*op.outputs, *op.inputs)
            if t is not None and not t.is_constant
        }
        self.done: set[int] = set()

    def of(self, ops: Iterable[Op]) -> Iterator[dict[str, str]]:
        """For the op of each step in order: the places of the part's ops that it carries out, and
        their names."""
        for op in ops:
            found = sorted(self._covered(op))
            self.done.update(found)
            yield {
                "places": ",".join(map(str, found)),
                "ops": ",".join(self.ops[i][0] for i in found),
            }

    def under(self, op: Op | None) -> tuple[int, ...]:
        """The places of one step's ops, whatever the steps before it did."""
        return () if op is None else tuple(sorted(self._covered(op)))

    def _covered(self, op: Op) -> set[int]:
        # A constant's name may begin as an output's does: bias `dense/BiasAdd/ReadVariableOp`.
        stop = {self._given(t) for t in op.inputs if t is not None and not t.is_constant}
        found: set[int] = set()
        waiting = [self._given(t) for t in op.outputs]
        while waiting:
            tensor = waiting.pop()
            index = None if tensor is None or tensor in stop else self.maker.get(tensor)
            if index is not None and index not in found and index not in self.done:
                found.add(index)
                waiting += [t for t in self.ops[index][1] if t is not None]
        return found

    def _given(self, tensor: Tensor) -> Tensor | None:
        """The tensor of the part that this is, or is a version of."""
        if tensor in self.maker:
            return tensor
        name = tensor.name
        while name not in self.named and "/" in name:
            name = name.rpartition("/")[0]
        return self.named.get(name)

"""Resource variables as variable tensors, so that a delegate can keep a model's state natively.

A resource is named at run time, by a handle; where a graph shows which one a handle is, its reads
and assignments become ops on a variable tensor, an array that is updated in place. The truth stays
in one place: the array in `State.variables`, which the reference's handles, other plans and other
graphs see too. `State.version` tells when such an array was made or exchanged.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..ir import Array, DType, Graph, Op, Tensor
from ..ops import State
from ..ops.control import held, variable_name
from ..ops.execute import evaluate
from .partition import has_state

READ, ASSIGN, HANDLE, ONCE = "READ_VARIABLE", "ASSIGN_VARIABLE", "VAR_HANDLE", "CALL_ONCE"


@dataclass(eq=False)
class Resources:
    """What a plan shares with its session's state."""

    state: State
    names: dict[Tensor, Hashable] = field(default_factory=dict)  # variable tensor -> resource
    readers: dict[Tensor, Op] = field(default_factory=dict)  # what reads it before it is assigned
    once: list[Op] = field(default_factory=list)  # to be called before the first run

    def settle(self, steps: Sequence[tuple[Sequence[Tensor], list[Array | None]]]) -> int:
        """Put the arrays where steps (inputs, their arrays) take them from.

        Returns the version of the state for which they are right.
        """
        for op in self.once:
            evaluate(op, [], self.state)
        arrays = {t: self._array(t, name) for t, name in self.names.items()}
        for inputs, places in steps:
            for index, tensor in enumerate(inputs):
                if tensor in arrays:
                    places[index] = arrays[tensor]
        return self.state.version

    def _array(self, tensor: Tensor, name: Hashable) -> Array:
        reader = self.readers.get(tensor)
        if reader is not None:
            return held(reader, name, self.state, tensor.shape)
        found: Array | None = self.state.variables.get(name)
        if found is None or found.shape != tensor.shape or found.dtype != tensor.dtype.numpy:
            found = self.state.variables[name] = np.zeros(tensor.shape, tensor.dtype.numpy)
            self.state.version += 1
        return found


def lift(graph: Graph, state: State) -> Resources | None:
    """Change the graph (a plan's own): known resources become variable tensors, and calls that
    stand before all uses of the state are made once, before the first run."""
    found = Resources(state)
    for op in _first_calls(graph):
        graph.erase(op)
        found.once.append(op)
    for name, ops in _accesses(graph).items():
        shown = _type_of(ops)
        if shown is not None:
            _lift(graph, found, name, ops, shown)
    for op in [op for op in graph.ops if op.name == HANDLE]:
        if not op.outputs[0].users and op.outputs[0] not in graph.outputs:
            graph.erase(op)
    return found if found.once or found.names else None


def _first_calls(graph: Graph) -> list[Op]:
    """CALL_ONCE ops before which nothing looks at the state."""
    found = []
    for op in graph.ops:
        if op.name == ONCE:
            found.append(op)
        elif has_state(op) and op.name != HANDLE:
            break
    return found


def _accesses(graph: Graph) -> dict[Hashable, list[Op]]:
    """Reads and assignments of the resources that nothing but these touches here."""
    found: dict[Hashable, list[Op]] = {}
    elsewhere: set[Hashable] = set()
    for op in graph.ops:
        if op.name in (READ, ASSIGN):
            name = _name_of(op.inputs[0])
            if name is None:
                return {}  # it may be any
            found.setdefault(name, []).append(op)
            continue
        elsewhere.update(n for t in op.inputs if (n := _handled(t)) is not None)
        for name in _touched(op.subgraphs, set()):
            if name is None:
                return {}
            elsewhere.add(name)
    return {name: ops for name, ops in found.items() if name not in elsewhere}


def _name_of(handle: Tensor | None) -> Hashable | None:
    """The resource that a handle names: of an op that says so, or a constant number."""
    if handle is None:
        return None
    if handle.is_constant and handle.dtype is DType.INT32 and handle.data is not None:
        return ("", int(handle.data.reshape(-1)[0])) if handle.data.size == 1 else None
    return _handled(handle)


def _handled(tensor: Tensor | None) -> Hashable | None:
    made = tensor.producer if tensor is not None else None
    return variable_name(made) if made is not None and made.name == HANDLE else None


def _touched(graphs: Iterable[Graph], seen: set[Graph]) -> Iterator[Hashable | None]:
    """The resources that graphs and those they call read or assign; None where it is not known."""
    for graph in graphs:
        if graph in seen:
            continue
        seen.add(graph)
        for op in graph.ops:
            if op.name in (READ, ASSIGN):
                yield _name_of(op.inputs[0])
            yield from _touched(op.subgraphs, seen)


def _type_of(ops: Iterable[Op]) -> Tensor | None:
    """A tensor that shows type and shape of the variable, if all accesses agree on them."""
    values = [op.outputs[0] if op.name == READ else op.inputs[1] for op in ops]
    first = values[0]
    if first is None or not first.dtype.is_fixed_size or first.dtype.bits % 8:
        return None
    for value in values:
        if value is None or value.is_dynamic:
            return None
        if value.dtype is not first.dtype or value.shape != first.shape:
            return None
    return first


def _lift(graph: Graph, found: Resources, name: Hashable, ops: Sequence[Op], shown: Tensor) -> None:
    variable = graph.tensor(
        f"variable {name}", shown.dtype, shown.shape, quant=shown.quant, is_variable=True
    )
    found.names[variable] = name
    if ops[0].name == READ:
        found.readers[variable] = ops[0]
    for op in ops:
        graph.set_input(op, 0, variable)

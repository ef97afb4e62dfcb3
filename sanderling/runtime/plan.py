"""A plan: one graph at one set of input shapes, compiled in parts, with places in an arena for what
crosses their borders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from ..config import MAX_MEMORY
from ..errors import DelegateError, InputError, SanderlingError
from ..ir import Array, Graph, Tensor
from ..progress import plural
from ..spans import hold, tape
from .arena import ALIGNMENT, ArenaPlan, Item, plan
from .delegate import Executable
from .partition import Part, Partition

if TYPE_CHECKING:
    from .resources import Resources
    from .subgraph import Subgraph


def has_storage(tensor: Tensor) -> bool:
    """It gets a place in the arena: fixed size, known shape, not a constant or variable."""
    return not (tensor.is_dynamic or tensor.is_constant or tensor.is_variable) and (
        tensor.dtype.is_fixed_size
    )


def unpacked_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor's array: NumPy gives each 4-bit element a byte of its own."""
    return tensor.dtype.numpy.itemsize * prod(tensor.shape)


@dataclass(eq=False)
class Step:
    """A compiled part and the tensors at its border."""

    part: Part
    executable: Executable
    inputs: list[Tensor]
    outputs: list[Tensor]
    # What runs while nobody records, where another stands in for it now.
    plain: Executable | None = None


@dataclass(eq=False)
class Plan:
    """One graph at one set of input shapes, ready to be bound to arrays (binding.py)."""

    graph: Graph
    partition: Partition
    steps: list[Step]
    arena: ArenaPlan[Tensor]
    twins: dict[Tensor, Tensor]
    variables: dict[Tensor, Array] = field(default_factory=dict)
    resources: Resources | None = None
    # Otherwise it came from a record: it runs, but the graph is a shell without the real ops.
    is_whole: bool = True
    # Makes it anew. While runs are recorded, executables that tell of their steps stand in.
    again: Callable[[], Plan | None] | None = None
    is_traced: bool = field(default_factory=lambda: tape.recorder is not None)
    subgraph: Subgraph | None = None  # how control flow calls it, once it has
    _memory: Array | None = None

    @property
    def held(self) -> int:
        """Bytes of its arena, and of what callers' arrays are copied to."""
        given = (*self.graph.inputs, *self.graph.outputs)
        return self.arena.size + sum(unpacked_bytes(t) for t in given if has_storage(t))

    def array(self, tensor: Tensor) -> Array | None:
        """This tensor's place in the arena, as a view; None if it has none."""
        place = self.arena.offsets.get(tensor)
        if place is None:
            return None
        if self._memory is None:
            self._memory = aligned_bytes(self.arena.size)
            hold(self, "arena (bytes)", self.arena.size)
        raw = self._memory[place : place + unpacked_bytes(tensor)]
        return raw.view(tensor.dtype.numpy).reshape(tensor.shape)

    def memory(self) -> dict[str, int]:
        """Bytes that the plan holds, by what they are for."""
        arena = 0 if self._memory is None else self._memory.nbytes
        found = {"arena": arena + sum(a.nbytes for a in self.variables.values())}
        for step in self.steps:
            for name, size in step.executable.memory().items():
                found[name] = found.get(name, 0) + size
        return found

    def blame(self, index: int, error: Exception) -> NoReturn:
        """Re-raise with the place: what a delegate raises is a DelegateError for the user."""
        if isinstance(error, SanderlingError) and error.where:
            raise error
        part = self.steps[index].part
        ops = f"{plural(len(part.ops), 'op')} from {part.ops[0].where}"
        where = f"part {index} ({ops}) on '{part.delegate.name}'"
        if isinstance(error, SanderlingError):
            error.where = where
            raise error
        raise DelegateError(
            f"it failed with {type(error).__name__}: {error}",
            where=where,
            fix="leave this delegate out, and report the failure to its author",
        ) from error


def aligned_bytes(size: int) -> Array:
    """Zeroed memory whose first byte lies on an arena boundary."""
    block = np.zeros(size + ALIGNMENT, np.uint8)
    skip = -block.ctypes.data % ALIGNMENT
    return block[skip : skip + size]


def plan_borders(graph: Graph, steps: Sequence[Step], keep: bool) -> ArenaPlan[Tensor]:
    """Places for what crosses a border. Inputs keep theirs for the whole run, so that they can be
    set once and run again; with `keep` all do, so that they can be looked at."""
    end = len(steps)
    first: dict[Tensor, int] = dict.fromkeys(graph.inputs, 0)
    last: dict[Tensor, int] = dict.fromkeys(graph.inputs, end)
    for index, step in enumerate(steps):
        for tensor in step.outputs:
            first.setdefault(tensor, index)
        for tensor in (*step.inputs, *step.outputs):
            last[tensor] = max(index, last.get(tensor, 0))
    last |= dict.fromkeys((t for t in (first if keep else graph.outputs) if t in first), end)
    items = [Item(t, unpacked_bytes(t), first[t], last[t]) for t in first if has_storage(t)]
    made = plan(items)
    if made.size > MAX_MEMORY.size():
        raise InputError(
            f"the tensors take {made.size} bytes, more than the limit of {MAX_MEMORY.size()}",
            where=f"graph '{graph.name}'",
            fix=f"use smaller input shapes, or set {MAX_MEMORY.name}",
        )
    return made

"""A lowered part without its graph: all that a device needs to run it, and what is kept on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir import Array, Tensor
from ...runtime.arena import Item
from . import layout
from .language import Storage

if TYPE_CHECKING:
    from .lower import Lowered
    from .steps import Memory, Step

ELEMENTS: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "i32": np.int32}
# Where a weight begins: drivers use the host's memory itself only on such boundaries.
ALIGNMENT = 256
ANY_BUFFER = Storage("f32")
ARENA, BORDER, WEIGHTS = "arena", "border", "packed_weights"


@dataclass(frozen=True)
class MemoryObject:
    """A memory object: what it is for and its bytes; of weights, where they begin in the block.
    element, form, width: of its storage. Buffers may hold elements of any type."""

    kind: str
    nbytes: int
    begin: int = 0
    element: str = "f32"
    form: str = "buffer"
    width: int = 0

    @property
    def storage(self) -> Storage:
        return Storage(self.element, self.form, self.width)


@dataclass(frozen=True)
class Call:
    """One launch: a kernel, the space and the group that it runs in, its arguments as places.

    The rest is for people: name, ops and macs; places, the part's ops that it carries out; the
    bytes that it reads and writes, beside weights; the type that it computes in.
    """

    kernel: str
    size: tuple[int, ...]
    group: tuple[int, ...]
    arguments: tuple[int, ...]
    name: str
    ops: str
    macs: int
    places: tuple[int, ...] = ()
    read: int = 0
    written: int = 0
    kind: str = "f32"


@dataclass
class Recipe:
    """inputs, outputs: the places of the borders, as the caller has them. programs: the names of
    the kernels in each program. weights: one block of bytes. remarks: on how it was made, for
    people. states: of each input, by number, that a run updates, the place of what it holds then.
    """

    calls: list[Call]
    places: list[MemoryObject]
    inputs: list[int]
    outputs: list[int]
    programs: list[list[str]] = field(default_factory=list)
    weights: Array = field(default_factory=lambda: np.empty(0, np.uint8))
    remarks: list[str] = field(default_factory=list)
    states: list[tuple[int, int]] = field(default_factory=list)

    def weight(self, place: MemoryObject) -> Array:
        return self.weights[place.begin : place.begin + place.nbytes]

    @property
    def sizes(self) -> list[int]:
        """Bytes of the borders."""
        return [self.places[i].nbytes for i in (*self.inputs, *self.outputs)]

    def memory(self) -> dict[str, int]:
        """Bytes on the device, by what they are for."""
        found = dict.fromkeys((ARENA, WEIGHTS, BORDER), 0)
        for place in self.places:
            found[place.kind] += place.nbytes
        return {kind: size for kind, size in found.items() if size}


def recipe_of(lowered: Lowered, group: Sequence[int]) -> Recipe:
    """group: the device's, until tuning finds a better one."""
    places: list[MemoryObject] = []
    home = _borders(lowered, places)
    for storage, items in _lifetimes(lowered, set(home)).items():
        for shared in share(items):
            home |= {item.key: len(places) for item in shared}
            size = max(16, *(item.size for item in shared))
            places.append(MemoryObject(ARENA, size, 0, *astuple(storage)))
    packed: list[Array] = []

    def place_of(memory: Memory) -> int:
        if memory.tensor is not None:
            return home[lowered.nodes.home(memory.tensor)]
        assert memory.data is not None
        packed.append(np.ascontiguousarray(memory.data, ELEMENTS[memory.storage.element]))
        size, storage = packed[-1].nbytes, memory.storage
        places.append(MemoryObject(WEIGHTS, size, _end(places), *astuple(storage)))
        return len(places) - 1

    calls = [
        Call(
            step.kernel.name,
            tuple(step.size),
            group_of(group, step.size, step.macs),
            tuple(map(place_of, step.arguments)),
            step.name,
            " ".join(op.name for op in step.node.ops),
            step.macs,
            origin,
            *_moved(step),
            "f16" if step.half else "f32",
        )
        for step, origin in zip(lowered.steps, lowered.origins, strict=True)
    ]
    inputs, outputs = ([home[b.outside] for b in s] for s in (lowered.inputs, lowered.outputs))
    own = len(outputs) - len(lowered.states)
    states = list(zip(lowered.states, outputs[own:], strict=True))
    weights = _block(places, packed)
    return Recipe(calls, places, inputs, outputs[:own], weights=weights, states=states)


def _moved(step: Step) -> tuple[int, int]:
    """Bytes of tensors that a step reads and writes."""
    sizes = [0, 0]
    for argument, memory in zip(step.kernel.arguments, step.arguments, strict=True):
        if memory.tensor is not None:
            sizes[argument.written] += _nbytes(memory)
    return sizes[0], sizes[1]


# Points of a group of a light kernel on a CPU.
LIGHT = 16


def group_of(group: Sequence[int], size: Sequence[int], macs: int) -> tuple[int, ...]:
    """group: the device's. On a CPU a group is a call of a function, which a tile of a product is
    worth and a point of a map is not: groups of 16 take a fifth of the time there."""
    if macs or prod(group) > 1:
        return tuple(group)
    wide = max(n for n in range(1, LIGHT + 1) if size[0] % n == 0)
    high = min(size[1], LIGHT // wide)
    return (wide, high, min(size[2], LIGHT // (wide * high)))


def _borders(lowered: Lowered, places: list[MemoryObject]) -> dict[Tensor, int]:
    """Tensors of the border have memory of their own: the caller's can take its place."""
    home: dict[Tensor, int] = {}
    for border in (*lowered.inputs, *lowered.outputs):
        home[border.outside] = len(places)
        if border.outside in lowered.raw:
            home[border.inside] = len(places)
        places.append(MemoryObject(BORDER, border.outside.nbytes))
    return home


def _end(places: Sequence[MemoryObject]) -> int:
    """Where the next weight begins."""
    last = max((p.begin + p.nbytes for p in places if p.kind == WEIGHTS), default=0)
    return -(-last // ALIGNMENT) * ALIGNMENT


def _block(places: Sequence[MemoryObject], packed: Sequence[Array]) -> Array:
    """All weights, each at its place, in memory that begins on a boundary."""
    size = _end(places)
    room = np.zeros(size + ALIGNMENT, np.uint8)
    skipped = -room.ctypes.data % ALIGNMENT
    block: Array = room[skipped : skipped + size]
    for place, data in zip((p for p in places if p.kind == WEIGHTS), packed, strict=True):
        block[place.begin : place.begin + place.nbytes] = data.reshape(-1).view(np.uint8)
    return block


def _lifetimes(lowered: Lowered, placed: set[Tensor]) -> dict[Storage, list[Item[Tensor]]]:
    """When tensors are in use, by what may share a memory object: all buffers, and images of one
    type each."""
    storages: dict[Tensor, Storage] = {}
    first: dict[Tensor, int] = {}
    last: dict[Tensor, int] = {}
    sizes: dict[Tensor, int] = {}
    for number, memory in _uses(lowered):
        assert memory.tensor is not None
        tensor = lowered.nodes.home(memory.tensor)
        if tensor not in placed:
            first.setdefault(tensor, number)
            last[tensor] = number
            sizes[tensor] = max(sizes.get(tensor, 0), _nbytes(memory))
            storages[tensor] = memory.storage if memory.storage.form != "buffer" else ANY_BUFFER
    found: dict[Storage, list[Item[Tensor]]] = {}
    for t in first:
        found.setdefault(storages[t], []).append(Item(t, sizes[t], first[t], last[t]))
    return found


def _uses(lowered: Lowered) -> Iterator[tuple[int, Memory]]:
    for number, step in enumerate(lowered.steps):
        yield from ((number, memory) for memory in step.arguments if memory.tensor is not None)


def share(items: Sequence[Item[Tensor]]) -> list[list[Item[Tensor]]]:
    """Tensors that never live at the same time share a memory object, the largest first. (Pieces of
    one object would pack closer, but an image has no pieces.)"""
    objects: list[list[Item[Tensor]]] = []
    for item in sorted(items, key=lambda item: -item.size):
        home = next((o for o in objects if all(_apart(item, other) for other in o)), None)
        if home is None:
            objects.append([item])
        else:
            home.append(item)
    return objects


def _apart(a: Item[Tensor], b: Item[Tensor]) -> bool:
    return a.last < b.first or b.last < a.first


def _nbytes(memory: Memory) -> int:
    assert memory.tensor is not None
    return layout.vectors(memory.tensor.shape) * 4 * memory.storage.nbytes

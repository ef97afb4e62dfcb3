"""Arena planning: lifetimes -> offsets in one block of memory.

The largest buffers are placed first, each at the lowest offset where it fits between those alive
at the same time (the greedy-by-size rule of TFLite's planner). A value that may overwrite a dying
input takes that input's place, so the two count as one block.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..ir import Graph, Op, Tensor

ALIGNMENT = 64

Key = TypeVar("Key", bound=Hashable)

# The output is the input's bytes under another shape.
VIEWS = frozenset({"RESHAPE", "SQUEEZE", "EXPAND_DIMS", "BITCAST"})
# Element i of the output depends on element i of the inputs alone.
ELEMENTWISE = frozenset(
    {
        "ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "POW", "SQUARED_DIFFERENCE", "FLOOR_DIV",
        "FLOOR_MOD", "LOGICAL_AND", "LOGICAL_OR", "LOGICAL_NOT", "BITWISE_XOR", "PRELU", "RELU",
        "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "LOGISTIC", "TANH", "ELU", "GELU", "HARD_SWISH",
        "LEAKY_RELU", "ABS", "NEG", "EXP", "LOG", "SQRT", "RSQRT", "SQUARE", "SIN", "COS", "FLOOR",
        "CEIL", "ROUND", "SIGN", "QUANTIZE", "DEQUANTIZE", "CAST",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Item(Generic[Key]):
    """A buffer: alive from step `first` to step `last`, both included."""

    key: Key
    size: int
    first: int
    last: int
    over: Key | None = None  # it may overwrite this one, which dies when it is born


@dataclass(frozen=True)
class Block(Generic[Key]):
    """Where a buffer ended up."""

    item: Item[Key]
    offset: int


@dataclass(frozen=True)
class ArenaPlan(Generic[Key]):
    """Offsets for every item, and the bytes needed in all."""

    blocks: tuple[Block[Key], ...]
    size: int

    @property
    def offsets(self) -> Mapping[Key, int]:
        return {b.item.key: b.offset for b in self.blocks}

    @property
    def total(self) -> int:
        """Bytes without any re-use."""
        return sum(_aligned(b.item.size) for b in self.blocks)

    def table(self) -> str:
        """One line a buffer, by offset: what lies where, and when."""
        rows = sorted(self.blocks, key=lambda b: (b.offset, b.item.first))
        lines = [f"{b.offset:>10} {b.item.size:>10}  steps {b.item.first:>4}-{b.item.last:<4} "
                 f"{b.item.key}" for b in rows]  # fmt: skip
        head, foot = f"{'offset':>10} {'bytes':>10}  alive", f"{self.size:>10} in all"
        return "\n".join([head, *lines, foot])


def plan(items: Sequence[Item[Key]]) -> ArenaPlan[Key]:
    """Place every item; those that overwrite another share its block."""
    groups = _merge(items)
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first, last
    offsets: dict[int, int] = {}
    order = sorted(range(len(groups)), key=lambda g: (-_size(groups[g]), groups[g][0].first, g))
    for index in order:
        group = groups[index]
        first, last = min(i.first for i in group), max(i.last for i in group)
        offset = _lowest_gap(placed, _size(group), first, last)
        placed.append((offset, offset + _size(group), first, last))
        offsets[index] = offset
    blocks = tuple(Block(item, offsets[g]) for g, group in enumerate(groups) for item in group)
    return ArenaPlan(blocks, max((end for _, end, _, _ in placed), default=0))


def _merge(items: Sequence[Item[Key]]) -> list[list[Item[Key]]]:
    """Chains of in-place reuse. Only the last of a chain may be overwritten, and only by one."""
    groups: list[list[Item[Key]]] = []
    tail: dict[Key, list[Item[Key]]] = {}
    for item in sorted(items, key=lambda i: i.first):
        chain = None if item.over is None else tail.get(item.over)
        legal = chain is not None and chain[-1].last == item.first
        if chain is None or not legal or _aligned(item.size) > _size(chain):
            chain = []
            groups.append(chain)
        else:
            del tail[chain[-1].key]
        chain.append(item)
        tail[item.key] = chain
    return groups


def _size(group: Sequence[Item[Key]]) -> int:
    return max(_aligned(i.size) for i in group)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _lowest_gap(placed: list[tuple[int, int, int, int]], size: int, first: int, last: int) -> int:
    offset = 0
    for begin, end, born, dead in sorted(placed):
        if born > last or dead < first:
            continue
        if begin - offset >= size:
            break
        offset = max(offset, end)
    return offset


def plan_graph(graph: Graph) -> ArenaPlan[Tensor]:
    """The arena a whole graph needs when it runs op by op: what `inspect` reports."""
    born = {t: i for i, op in enumerate(graph.ops) for t in op.outputs}
    last = {t: i for i, op in enumerate(graph.ops) for t in op.inputs if t is not None}
    end = len(graph.ops)
    last |= dict.fromkeys((*graph.inputs, *graph.outputs), end)
    born |= dict.fromkeys(graph.inputs, 0)
    live = [t for t in born if not t.is_constant and t.dtype.is_fixed_size]
    over = {t: _overwrites(t.producer, graph, last, i) for t, i in born.items() if t.producer}
    return plan([Item(t, t.dtype.nbytes(t.shape), born[t], last.get(t, born[t]), over.get(t))
                 for t in live])  # fmt: skip


def _overwrites(op: Op, graph: Graph, last: Mapping[Tensor, int], step: int) -> Tensor | None:
    """The input whose place the op's output may take: same bytes, last read here."""
    if op.name not in VIEWS and op.name not in ELEMENTWISE:
        return None
    out = op.outputs[0]
    for tensor in op.inputs if op.name in ELEMENTWISE else op.inputs[:1]:
        if tensor is None or tensor.is_constant or tensor.is_variable or tensor in graph.inputs:
            continue
        if last.get(tensor) == step and tensor.nbytes == out.nbytes:
            return tensor
    return None

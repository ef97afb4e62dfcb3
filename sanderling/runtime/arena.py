"""Arena planning: lifetimes -> offsets in one block of memory.

Buffers are placed one by one, each at the lowest offset where it fits between those alive at the
same time. The order decides: the largest first (the greedy-by-size rule of TFLite's planner), and
while that leaves gaps, others: what stuck out comes first next time. A value that may overwrite a
dying input takes that input's place, so the two count as one block.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
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
        lines = [
            f"{b.offset:>10} {b.item.size:>10}  steps {b.item.first:>4}-{b.item.last:<4} "
            f"{b.item.key}"
            for b in rows
        ]
        head, foot = f"{'offset':>10} {'bytes':>10}  alive", f"{self.size:>10} in all"
        return "\n".join([head, *lines, foot])


# How often what stuck out is put first, at most; the pairs of blocks that may be compared for it;
# and the waste that is not worth another try.
TRIES, EFFORT, WASTE = 16, 1_000_000, 0.005


@dataclass(frozen=True)
class _Need:
    """A block to be placed: bytes, and the steps between which it lives."""

    size: int
    first: int
    last: int


def plan(items: Sequence[Item[Key]]) -> ArenaPlan[Key]:
    """Place every item; those that overwrite another share its block."""
    groups = _merge(items)
    needs = [_Need(_size(g), min(i.first for i in g), max(i.last for i in g)) for g in groups]
    offsets = _best(needs)
    blocks = tuple(Block(item, offsets[g]) for g, group in enumerate(groups) for item in group)
    return ArenaPlan(blocks, _height(needs, offsets))


def least(needs: Sequence[_Need]) -> int:
    """Bytes that live at the same time, at most: no plan takes less."""
    change: dict[int, int] = {}
    for need in needs:
        change[need.first] = change.get(need.first, 0) + need.size
        change[need.last + 1] = change.get(need.last + 1, 0) - need.size
    return max(accumulate(change[step] for step in sorted(change)), default=0)


def _best(needs: Sequence[_Need]) -> list[int]:
    """The offsets of the lowest plan that was found."""
    bound = least(needs)
    by_size = sorted(range(len(needs)), key=lambda i: (-needs[i].size, needs[i].first, i))
    by_life = sorted(by_size, key=lambda i: needs[i].first - needs[i].last)
    best = _placed(needs, by_size)
    for order in (by_size, by_life):
        for _ in range(min(TRIES, EFFORT // (len(needs) ** 2 + 1))):
            offsets = _placed(needs, order)
            if _height(needs, offsets) < _height(needs, best):
                best = offsets
            if _height(needs, best) <= bound * (1 + WASTE):
                return best
            top = _height(needs, offsets)
            high = [i for i in order if offsets[i] + needs[i].size == top]
            order = [*high, *(i for i in order if i not in high)]
    return best


def _placed(needs: Sequence[_Need], order: Sequence[int]) -> list[int]:
    offsets = [0] * len(needs)
    taken: list[tuple[int, int, int, int]] = []  # offset, end, first, last; by offset
    for i in order:
        need = needs[i]
        offsets[i] = at = _lowest_gap(taken, need.size, need.first, need.last)
        insort(taken, (at, at + need.size, need.first, need.last))
    return offsets


def _height(needs: Sequence[_Need], offsets: Sequence[int]) -> int:
    return max((at + need.size for at, need in zip(offsets, needs, strict=True)), default=0)


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


def _lowest_gap(placed: Sequence[tuple[int, ...]], size: int, first: int, last: int) -> int:
    offset = 0
    for begin, end, born, dead in placed:
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
    return plan(
        [Item(t, t.dtype.nbytes(t.shape), born[t], last.get(t, born[t]), over.get(t)) for t in live]
    )


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

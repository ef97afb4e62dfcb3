"""The arena: nothing alive is overwritten, little is wasted."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sanderling import load
from sanderling.ir import DType, Graph, Tensor
from sanderling.runtime.arena import ALIGNMENT, ArenaPlan, Item, plan, plan_graph

from .conformance.cases_control import const, emit, graph
from .support.shared_models import MODELS

OWN = sorted(Path(str(files("sanderling") / "data")).glob("*.tflite"))
WASTE = 1.1


@st.composite
def items(draw: st.DrawFn) -> list[Item[int]]:
    """Buffers with any lifetime; some may overwrite an earlier one, rightly or wrongly."""
    made: list[Item[int]] = []
    for key in range(draw(st.integers(0, 25))):
        first = draw(st.integers(0, 12))
        last = first + draw(st.integers(0, 6))
        over = draw(st.one_of(st.none(), st.integers(0, max(key - 1, 0))))
        made.append(Item(key, draw(st.integers(0, 3000)), first, last, over))
    return made


def heads(found: ArenaPlan[Any]) -> dict[Any, Any]:
    """For each key: the first of its chain of overwriting, while the chain lies in one place."""
    blocks = {b.item.key: b for b in found.blocks}
    head: dict[Any, Any] = {}
    for block in sorted(found.blocks, key=lambda b: b.item.first):
        over = blocks.get(block.item.over)
        follows = over is not None and over.offset == block.offset
        head[block.item.key] = (
            head.get(block.item.over, block.item.key) if follows else block.item.key
        )
    return head


def assert_legal(found: ArenaPlan[Any]) -> None:
    """Blocks that overlap are never alive together, or the one dies as its heir is born."""
    head = heads(found)
    spans = [
        (b.offset, b.offset + b.item.size, b.item.first, b.item.last, head[b.item.key])
        for b in found.blocks
    ]
    assert all(begin % ALIGNMENT == 0 and end <= found.size for begin, end, *_ in spans)
    for number, (begin, end, first, last, family) in enumerate(spans):
        for other, until, born, dead, kin in spans[:number]:
            if begin < until and other < end and first <= dead and born <= last:
                assert family == kin and (last == born or dead == first)


@settings(max_examples=300, deadline=None)
@given(items())
@example([Item(0, 64, 0, 3), Item(1, 64, 3, 5, over=0), Item(2, 64, 3, 5, over=0)])  # two heirs
@example([Item(0, 64, 0, 4), Item(1, 64, 3, 5, over=0)])  # overwritten while still read
@example([Item(0, 64, 0, 3), Item(1, 128, 3, 5, over=0)])  # the heir is larger
@example([Item(0, 64, 0, 3, over=0)])  # itself
def test_nothing_alive_is_overwritten(wanted: list[Item[int]]) -> None:
    found = plan(wanted)
    assert sorted(b.item.key for b in found.blocks) == [i.key for i in wanted]
    assert_legal(found)
    assert found.size <= found.total


def test_a_chain_shares_one_place() -> None:
    found = plan([Item("a", 256, 0, 1), Item("b", 256, 1, 2, "a"), Item("c", 200, 2, 3, "b")])
    assert set(found.offsets.values()) == {0} and found.size == 256 and found.total == 768


def test_what_sticks_out_is_placed_again() -> None:
    """The largest first would put the two of size 4 upon the 5, and the last one on top."""
    sizes = [(2, 2, 2), (5, 1, 1), (4, 1, 2), (4, 2, 4)]
    made = plan([Item(i, 64 * n, first, last) for i, (n, first, last) in enumerate(sizes)])
    assert made.size == 64 * 10


def test_an_empty_graph_takes_nothing() -> None:
    assert plan([]).size == 0 and plan_graph(Graph()).size == 0


def straight(g: Graph, x: Tensor) -> list[Tensor]:
    """x -> MUL -> RELU (in place) -> RESHAPE (in place) -> y."""
    y = emit(g, "MUL", [x, const(g, 2)], (16, 16))
    return [emit(g, "RESHAPE", [emit(g, "RELU", [y], (16, 16)), const(g, [256], "i32")], (256,))]


def branching(g: Graph, x: Tensor) -> list[Tensor]:
    """y is read twice: the first reader must not overwrite it."""
    y = emit(g, "MUL", [x, const(g, 2)], (16, 16))
    return [emit(g, "ADD", [emit(g, "NEG", [y], (16, 16)), y], (16, 16))]


def widening(g: Graph, x: Tensor) -> list[Tensor]:
    """The output is larger than either input: it cannot lie in their place."""
    row = emit(g, "ABS", [emit(g, "SUM", [x, const(g, [0], "i32")], (1, 16))], (1, 16))
    column = emit(g, "ABS", [emit(g, "SUM", [x, const(g, [1], "i32")], (16, 1))], (16, 1))
    return [emit(g, "ADD", [row, column], (16, 16))]


@pytest.mark.parametrize(
    "body, size",
    [
        (straight, 2 * 1024),
        (branching, 3 * 1024),
        (widening, 2 * 1024 + 2 * 64),
    ],
)
def test_in_place_where_legal(body: Any, size: int) -> None:
    found = plan_graph(graph("main", body, ("f32", (16, 16))))
    assert_legal(found)
    assert found.size == size


def test_inputs_and_outputs_keep_their_place_to_the_end() -> None:
    g = graph("main", straight, ("f32", (16, 16)))
    found = plan_graph(g)
    ends = {b.item.key: b.item.last for b in found.blocks}
    assert ends[g.inputs[0]] == ends[g.outputs[0]] == len(g.ops)


def test_what_has_no_fixed_size_is_left_out() -> None:
    g = graph("main", lambda g, x: [x], ("str", (2,)))
    g.tensor("state", DType.FLOAT32, (4,), is_variable=True)
    assert plan_graph(g).blocks == ()


def test_table() -> None:
    g = graph("main", straight, ("f32", (16, 16)))
    lines = plan_graph(g).table().splitlines()
    assert lines[0].split() == ["offset", "bytes", "alive"] and lines[-1].split()[0] == "2048"
    rows = [line.split() for line in lines[1:-1]]
    assert len(rows) == 4 and [int(r[0]) for r in rows] == sorted(int(r[0]) for r in rows)
    assert rows[0][1] == "1024" and rows[0][-1] == "f32[16,16]"


def most_alive(found: ArenaPlan[Any]) -> int:
    """No plan can be smaller: the bytes alive at the fullest step, heirs counted once."""
    chains = {b.item.key: b.offset for b in found.blocks}
    steps = range(max((b.item.last for b in found.blocks), default=0) + 1)
    most = 0
    for step in steps:
        alive = [b.item for b in found.blocks if b.item.first <= step <= b.item.last]
        heirs = {
            i.over
            for i in alive
            if i.over is not None and i.first == step and chains.get(i.over) == chains[i.key]
        }
        sizes = (i.size for i in alive if i.key not in heirs)
        most = max(most, sum(-(-s // ALIGNMENT) * ALIGNMENT for s in sizes))
    return most


@pytest.mark.parametrize("path", [*OWN, *MODELS], ids=lambda p: p.stem)
def test_real_graphs_waste_little(path: Path) -> None:
    for g in load(path).graphs:
        found = plan_graph(g)
        assert_legal(found)
        bound = most_alive(found)
        print(
            f"{path.stem}/{g.name}: {found.size} bytes, lower bound {bound}, "
            f"{found.size / max(bound, 1):.3f}; {found.total} without re-use"
        )
        assert found.size <= WASTE * bound

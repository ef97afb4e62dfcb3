"""What a run may take: SANDERLING_MAX_MEMORY covers what definitions compute on the way, whether
shapes come from the file or from values, and its default follows the machine."""

from __future__ import annotations

import tracemalloc
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sanderling import InputError, Session
from sanderling.config import CHECKED, MAX_MEMORY, _group_limits, _half_of_the_memory
from sanderling.ir import Array, Graph, Model, Tensor
from sanderling.ops.execute import TEMPORARY
from sanderling.runtime.subgraph import subgraph_of

from .conformance.cases_control import const, emit, graph

LIMIT = 16 << 20
Build = Callable[[Graph, Tensor], Tensor]


def grows(name: str, dtype: str, *, before: object = None, kind: str = "f32") -> Build:
    """An op whose last integer operand says how much it makes; before: the operand before it."""

    def build(g: Graph, size: Tensor) -> Tensor:
        first = [] if before is None else [const(g, before, kind)]
        return emit(g, name, [*first, size], (1,), dtype)

    return build


def padded(g: Graph, size: Tensor) -> Tensor:
    sides = emit(g, "PACK", [const(g, [0], "i32"), size], (1, 2), "i32", axis=1, values_count=2)
    return emit(g, "PADV2", [const(g, [1.0]), sides, const(g, 2.0)], (1,))


def ranged(g: Graph, size: Tensor) -> Tensor:
    top = emit(g, "RESHAPE", [size, const(g, np.zeros(0), "i32")], (), "i32")
    return emit(g, "RANGE", [const(g, 0, "i32"), top, const(g, 1, "i32")], (1,), "i32")


def filled(g: Graph, size: Tensor) -> Tensor:
    return emit(g, "FILL", [size, const(g, 1.5)], (1,))


def drawn(g: Graph, size: Tensor) -> Tensor:
    count = emit(g, "RESHAPE", [size, const(g, np.zeros(0), "i32")], (), "i32")
    return emit(g, "MULTINOMIAL", [const(g, [[0.5, 1.0]]), count], (1, 1), "i64")


def hot(g: Graph, size: Tensor) -> Tensor:
    depth = emit(g, "RESHAPE", [size, const(g, np.zeros(0), "i32")], (), "i32")
    return emit(g, "ONE_HOT", [const(g, [1], "i32"), depth, const(g, 1.0), const(g, 0.0)], (1, 1))


GROWING: dict[str, Build] = {
    "RANDOM_UNIFORM": grows("RANDOM_UNIFORM", "f32"),
    "RANDOM_STANDARD_NORMAL": grows("RANDOM_STANDARD_NORMAL", "f32"),
    "MULTINOMIAL": drawn,
    "PADV2": padded,
    "RANGE": ranged,
    "FILL": filled,
    "ONE_HOT": hot,
    "TILE": grows("TILE", "f32", before=[1.0]),
    "BROADCAST_TO": grows("BROADCAST_TO", "f32", before=[1.0]),
}


def model(build: Build, size: int | None) -> Model:
    """One result of that many elements; None: the size is fed."""
    if size is not None:
        return Model([graph("main", lambda g: [build(g, const(g, [size], "i32"))])])
    return Model([graph("main", lambda g, n: [build(g, n)], ("i32", (1,)))])


def peak(run: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("name", GROWING)
def test_temporaries_count(name: str, fed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MAX_MEMORY.name, str(LIMIT))

    def run(size: int) -> list[Array]:
        made = model(GROWING[name], None if fed else size).compile(["reference"])
        feeds = {n: np.array([size], np.int32) for n in made.entry(None).inputs}
        return list(made.run(feeds).values())

    run(1)  # what is made once
    most = LIMIT // TEMPORARY - 8
    assert peak(lambda: run(most)) < 1.6 * LIMIT

    def refused() -> None:
        with pytest.raises(InputError, match=f"more than the limit.*\n.*{MAX_MEMORY.name}"):
            run(most * 3)

    assert peak(refused) < LIMIT // 4


def test_the_default_follows_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MAX_MEMORY.name, raising=False)
    assert 0 < MAX_MEMORY.size() == _half_of_the_memory() < 1 << 61


def test_control_groups_count(tmp_path: Path) -> None:
    own, inner = tmp_path / "own", tmp_path / "root" / "outer" / "inner"
    inner.mkdir(parents=True)
    own.write_text("0::/outer/inner\n")
    root = str(tmp_path / "root")
    assert _group_limits(root, str(own)) == [1 << 62]
    (inner / "memory.max").write_text("max\n")
    (inner.parent / "memory.max").write_text("2000000\n")
    assert _group_limits(root, str(own)) == [2000000]
    old = tmp_path / "root" / "memory"
    old.mkdir()
    (old / "memory.limit_in_bytes").write_text("1000000\n")
    assert min(_group_limits(root, str(tmp_path / "absent"))) == 1000000


def test_a_switch_is_on_or_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, wanted in (
        ("1", True),
        ("On", True),
        ("true", True),
        ("", False),
        ("0", False),
        ("off", False),
        ("FALSE", False),
    ):
        monkeypatch.setenv(CHECKED.name, text)
        assert CHECKED.is_on() is wanted
    monkeypatch.setenv(CHECKED.name, "maybe")
    with pytest.raises(InputError, match="'maybe' is neither on nor off") as caught:
        CHECKED.is_on()
    assert CHECKED.name in str(caught.value) and "write one of 1, 0, on, off" in caught.value.fix


def test_plans_of_many_shapes_share_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is within it; what a session keeps of them is too, and goes when it is dropped."""
    both = [
        graph(name, lambda g, x: [emit(g, "ABS", [x], (1,))], ("f32", (1,)))
        for name in ("main", "other")
    ]
    session = Session(Model(both), "reference")
    monkeypatch.setenv("SANDERLING_MAX_MEMORY", str(1 << 21))
    made = []
    for size in range(30_000, 30_015):
        plan = session.plan(shapes=[(size,)])
        subgraph_of(plan).call([np.ones(size, np.float32)])
        made.append(weakref.ref(plan))
    assert sum(p.held for p in session._plans) <= 1 << 21
    assert made[0]() is None and len(session._plans) > 1

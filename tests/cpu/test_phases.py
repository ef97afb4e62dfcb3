"""Branches that need nothing of each other are shared together, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

from sanderling.delegates.cpu import build
from sanderling.delegates.cpu.codegen.program import Phase, Program
from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.isa.targets import TARGETS
from sanderling.delegates.cpu.runtime.executable import CpuExecutable, Crew
from sanderling.delegates.cpu.steps import phases
from sanderling.delegates.cpu.steps.estimates import nanoseconds
from sanderling.delegates.cpu.steps.phases import Span, works
from sanderling.ir import Array, DType, Graph, Model, Op, Tensor
from tests.conformance.cases_control import assign, variable
from tests.support.conv_stacks import stack
from tests.support.every_worker import share_everything

F32 = DType.FLOAT32
SIZE, CHANNELS = 12, 16


@pytest.fixture(autouse=True)
def every_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    share_everything(monkeypatch)


class Branches:
    """A network of 1x1 convolutions of one input, side by side."""

    def __init__(self) -> None:
        self.graph, self.rng = Graph(), np.random.default_rng(3)
        self.x = self.graph.input("x", F32, (1, SIZE, SIZE, CHANNELS))

    def conv(self, x: Tensor, name: str, channels: int = CHANNELS) -> Tensor:
        shape = (channels, 1, 1, x.shape[3])
        weights = self.graph.constant(f"{name}/w", self.rng.normal(size=shape), F32)
        bias = self.graph.constant(f"{name}/b", self.rng.normal(size=channels), F32)
        y = self.graph.tensor(name, F32, (*x.shape[:3], channels))
        attrs = {"padding": "SAME", "stride_w": 1, "stride_h": 1}
        self.graph.add("CONV_2D", [x, weights, bias], [y], **attrs)
        return y

    def join(self, *parts: Tensor) -> Tensor:
        channels = sum(p.shape[3] for p in parts)
        y = self.graph.tensor("joined", F32, (*parts[0].shape[:3], channels))
        self.graph.add("CONCATENATION", [*parts], [y], axis=3)
        return y

    def model(self, *outputs: Tensor) -> Model:
        self.graph.outputs = [*outputs]
        return Model([self.graph])

    def fed(self) -> dict[str, Array]:
        return {"x": np.random.default_rng(5).normal(size=self.x.shape).astype(np.float32)}


@contextmanager
def seen(program: list[Program]) -> Iterator[None]:
    """Collects the programs that are compiled."""
    lower = build.lower

    def look(*given: object) -> tuple[Program, int]:
        found, arena = lower(*given)  # type: ignore[arg-type]
        program.append(found)
        return found, arena

    with patch.object(build, "lower", look):
        yield


def program_of(model: Model, **options: bool) -> Program:
    found: list[Program] = []
    with seen(found):
        model.compile([CpuDelegate(cache=False, **options)], threads=2).plan()
    return found[0]


def sizes(found: list[Phase]) -> list[int]:
    return [len(p.steps) for p in found]


def two_heads() -> tuple[Branches, Model]:
    net = Branches()
    return net, net.model(net.conv(net.x, "left"), net.conv(net.x, "right", 8))


def test_branches_are_one_phase() -> None:
    _, model = two_heads()
    program = program_of(model)
    assert sizes(program.phases) == [2]
    assert sum(program.phases[0].pieces) > 2


def test_columns_of_one_result_are_one_phase() -> None:
    """Both write into the rows of the concatenation, side by side."""
    net = Branches()
    model = net.model(net.join(net.conv(net.x, "left"), net.conv(net.x, "right", 8)))
    program = program_of(model)
    assert len(program.steps) == 2, "the concatenation copies nothing"
    assert sizes(program.phases) == [2]


def test_what_needs_a_result_waits_for_it() -> None:
    net = Branches()
    first = net.conv(net.x, "first")
    model = net.model(net.conv(first, "left"), net.conv(first, "right"))
    assert sizes(program_of(model).phases) == [1, 2]


def test_what_lies_in_the_same_bytes_waits() -> None:
    """The first branch's inner result is dead when the second's is born: the arena has one place
    for both."""
    net = Branches()
    left = net.conv(net.conv(net.x, "inner left"), "left")
    right = net.conv(net.conv(net.x, "inner right"), "right")
    program = program_of(net.model(left, right))
    inner = [s.op.outputs[0] for s in program.steps[::2]]
    assert program.places[inner[0]] == program.places[inner[1]]
    assert sizes(program.phases) == [1, 1, 1, 1]


def differences() -> Model:
    """The difference of an input from the one before, which a variable keeps."""
    shape = (1, 96, 96, 3)
    init, graph = Graph("init"), Graph("main")
    assign(init, "v", init.constant("start", np.zeros(shape, np.float32), F32))
    x = graph.input("x", F32, shape)
    graph.insert(Op("CALL_ONCE", [], [], {"init_subgraph_index": init}))
    before, y = graph.tensor("before", F32, shape), graph.tensor("y", F32, shape)
    graph.insert(Op("READ_VARIABLE", [variable(graph)], [before]))
    assign(graph, "v", x)
    graph.add("SUB", [x, before], [y])
    graph.outputs = [y]
    return Model([graph, init])


def test_an_assignment_waits_for_who_reads_the_variable() -> None:
    """It has the variable as an input, and writes it."""
    model = differences()
    program = program_of(model)
    names = [s.op.name for s in program.steps]
    assert names == ["READ_VARIABLE", "ASSIGN_VARIABLE", "cpu.MAP"]
    read, assigned, subtracted = works(program)
    assert not read.goes_with(assigned) and not assigned.goes_with(read)
    assert assigned.goes_with(subtracted)
    session = model.compile([CpuDelegate(cache=False)], threads=2)
    rng, before = np.random.default_rng(0), np.zeros((1, 96, 96, 3), np.float32)
    for _ in range(50):
        x = rng.random(before.shape, np.float32)
        np.testing.assert_array_equal(session(x), x - before)
        before = x


def test_a_large_step_is_shared_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    _, model = two_heads()
    monkeypatch.setattr(phases, "LARGE", 1)
    assert sizes(program_of(model).phases) == [1, 1]


def test_lesser_targets_are_estimated_to_take_longer() -> None:
    """So that they get workers for smaller steps."""
    floats = Branches()
    floats.conv(floats.x, "y")
    codes = stack(size=28).main
    for graph, order in (
        (floats.graph, ("generic", "avx2", "avx512")),
        (codes, ("generic", "avx2", "avx512", "avx512vnni")),
        (codes, ("neon", "neondot")),
    ):
        op = next(op for op in graph.ops if op.name == "CONV_2D")
        times = [nanoseconds(op, TARGETS[name]) for name in order]
        assert times == sorted(set(times), reverse=True)


def test_code_that_tells_of_steps_shares_them_one_by_one() -> None:
    _, model = two_heads()
    assert sizes(program_of(model, timed=True).phases) == [1, 1]
    program = program_of(model)
    program.traced = True
    assert sizes(phases.phases(program)) == [1, 1]


def test_scratch_of_all_workers_lies_apart_from_what_others_touch() -> None:
    """Scratch begins behind what lives while its own step runs: another's result may lie there."""
    first, second = works(program_of(two_heads()[1]))
    assert first.goes_with(second) and second.goes_with(first)
    (result,) = second.writes
    busy = replace(first, scratch=(Span(result.slot, 0, 1 << 62),))
    assert not busy.goes_with(second) and not second.goes_with(busy)
    assert busy.goes_with(replace(busy, reads=(), writes=())), "each worker has scratch of its own"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (Span(0, 0, 64), Span(0, 64, 128), False),
        (Span(0, 0, 65), Span(0, 64, 128), True),
        (Span(0, 0, 64), Span(1, 0, 64), False),
        # Rows of 96 bytes: columns 0 to 63 and 64 to 95.
        (Span(0, 0, 928, 96, 64), Span(0, 64, 960, 96, 32), False),
        (Span(0, 0, 928, 96, 64), Span(0, 63, 959, 96, 32), True),
        (Span(0, 0, 928, 96, 64), Span(0, 64, 960, 48, 32), True),  # of other rows
        (Span(0, 0, 928, 96, 64), Span(0, 80, 976, 96, 32), True),  # it wraps around
        (Span(0, 0, 928, 96, 64), Span(0, 64, 160), True),  # no rows: all between
    ],
)
def test_spans_that_meet(first: Span, second: Span, expected: bool) -> None:
    assert first.meets(second) is second.meets(first) is expected


@pytest.mark.parametrize("threads", [2, 3, 8])
@pytest.mark.parametrize("absent", [False, True])
def test_the_answer_is_that_of_one_thread(
    threads: int, absent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever computes which piece, and also where nobody comes to help."""
    net = Branches()
    heads = [net.conv(net.x, f"head{i}", c) for i, c in enumerate((16, 8, 24, 5, 16))]
    model = net.model(net.join(*heads), net.conv(heads[0], "after"))
    fed = net.fed()
    expected = {k: v.copy() for k, v in model.compile([CpuDelegate()], threads=1).run(fed).items()}
    if absent:
        monkeypatch.setattr(Crew, "_start", lambda *_: None)
    session = model.compile([CpuDelegate()], threads=threads)
    runner = session.plan().steps[0].executable
    assert isinstance(runner, CpuExecutable)
    assert len(runner.compiled.units) < len(runner.compiled.steps)
    for _ in range(100):
        for name, found in session.run(fed).items():
            np.testing.assert_array_equal(found, expected[name])

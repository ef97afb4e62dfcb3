"""Profiles: steps with their ops, sums, rooflines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sanderling
from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.isa.targets import host_target
from sanderling.ir import DType, Graph, Model
from sanderling.measure import profile_ours as ours
from sanderling.measure import profiling as profiles
from sanderling.measure import roofline as roofs
from sanderling.measure.profile_export import fused_names
from sanderling.measure.profile_ours import CALL, LOST, ProfileRow
from sanderling.measure.roofline import Roofline, cache_sizes, roofline
from sanderling.measure.sample_statistics import summary

from .support.conv_stacks import stack
from .support.every_worker import share_everything
from .support.profile_models import (
    ROOF,
    known_machine,  # noqa: F401
    residual,
    total,
)

# -- our own steps ------------------------------------------------------------------------------


def test_a_step_lists_its_ops() -> None:
    record = sanderling.profile(residual(), runs=3)
    steps = record["steps"]
    assert [s["type"] for s in steps] == ["CONV_2D", "CONV_2D"]
    assert [s["nodes"] for s in steps] == [[0], [1, 2]]
    assert steps[1]["name"] == "[y1]:1" and steps[1]["kernel"] == "conv_2d"
    assert record["nodes"][2]["type"] == "ADD" and record["free"] == [3]
    assert [s["macs"] for s in steps] == [36 * 64, 36 * 64] and record["macs"] == 72 * 64
    assert {s["delegate"] for s in steps} == {"cpu"}


def test_all_time_is_somewhere() -> None:
    record = sanderling.profile(stack(layers=3, size=20), runs=20)
    assert record["runs"] == len(record["samples_ms"]) == 20
    assert total(record) == pytest.approx(record["whole"]["mean"], rel=1e-6)
    last = record["others"][-1]
    assert last["cdf"] == pytest.approx(100, rel=1e-6)
    assert {o["name"] for o in record["others"]} == {CALL, LOST}
    for step in record["steps"]:
        assert 0 < step["min_ms"] <= step["median_ms"] <= step["max_ms"]
        assert step["first_ms"] > 0 and step["imbalance"] == 0
    assert record["first_ms"] > 0 and 0 < record["whole"]["min"] <= record["whole"]["p95"]


def test_bytes_are_those_touched() -> None:
    first = sanderling.profile(residual(), runs=1)["steps"][0]
    assert first["bytes_read"] == first["bytes_written"] == 36 * 8 * 4
    assert first["bytes_weights"] >= (8 * 8 + 8) * 4  # packed: at least what the file holds
    assert first["intensity"] == pytest.approx(2 * first["macs"] / first["bytes"])


def test_a_lookup_touches_the_rows_it_takes() -> None:
    graph = Graph()
    at = graph.input("at", DType.INT32, (3,))
    book = graph.constant("book", np.ones((1000, 16), np.float32))
    out = graph.tensor("out", DType.FLOAT32, (3, 16))
    graph.add("EMBEDDING_LOOKUP", [at, book], [out])
    graph.outputs = [out]
    for delegates in ((), ("reference",)):
        (row,) = sanderling.profile(Model([graph]), runs=1, delegates=delegates)["steps"]
        assert row["bytes_weights"] == row["bytes_written"] == 3 * 16 * 4


def test_two_workers_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    share_everything(monkeypatch)
    record = sanderling.profile(stack(size=16), threads=2, runs=5)
    assert record["workers"] == 2
    assert "barriers" in {o["name"] for o in record["others"]}
    assert all(0 <= s["imbalance"] < 1 for s in record["steps"])
    assert total(record) == pytest.approx(record["whole"]["mean"], rel=1e-6)


def test_what_the_reference_runs_has_rows_too(monkeypatch: pytest.MonkeyPatch) -> None:
    takes = CpuDelegate.refuses
    monkeypatch.setenv("SANDERLING_CACHE", "off")
    monkeypatch.setattr(
        CpuDelegate,
        "refuses",
        lambda self, op: "not today" if op.outputs[0].name == "y1" else takes(self, op),
    )
    record = sanderling.profile(stack(layers=3, size=6), runs=3)
    owners = [(s["part"], s["delegate"]) for s in record["steps"] if s["nodes"]]
    assert owners == [(0, "cpu"), (1, "reference"), (2, "cpu")]
    assert [s["nodes"] for s in record["steps"] if s["nodes"]] == [[0], [1], [2]]
    names = {o["name"] for o in record["others"]}
    assert {"between parts", "around the reference's ops"} <= names
    assert total(record) == pytest.approx(record["whole"]["mean"], rel=1e-6)
    assert "no compiled kernel" in record["advice"][2]


def test_steps_that_help_are_told_apart() -> None:
    """Codes are flipped to the compiler's type on the way in and out."""
    record = sanderling.profile(stack(layers=1), runs=2)
    helpers = [s for s in record["steps"] if s["helps"] is not None]
    assert helpers and all(record["steps"][s["helps"]]["nodes"] == [0] for s in helpers)
    assert all(s["name"] == "for [y0]:0" and not s["macs"] for s in helpers)


def test_a_model_that_does_nothing() -> None:
    graph = Graph()
    graph.outputs = [graph.input("x", DType.FLOAT32, (1, 4))]
    record = sanderling.profile(Model([graph]), runs=2, with_roofline=False)
    assert not record["steps"] and [o["name"] for o in record["others"]] == [ours.AROUND]


def test_a_constant_named_after_an_output_hides_no_op() -> None:
    model = stack(quantised=False, layers=1)
    model.main.tensors[2].name = "y0/ReadVariableOp"
    (step,) = sanderling.profile(model, runs=1)["steps"]
    assert step["nodes"] == [0]


def test_another_delegate_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        name = "other"

        def refuses(self, op: Any) -> str | None:
            return None

        def compile(self, part: Graph, options: Any) -> Any:
            return sanderling.runtime.registry.find_delegate("reference").compile(part, options)

    class Executable:
        def __init__(self, inner: Any) -> None:
            self.run = inner.run

    other = Other()
    other.compile = lambda part, options: Executable(Other.compile(other, part, options))  # type: ignore[method-assign]
    monkeypatch.setitem(sanderling.runtime.registry._registered, "other", lambda: other)
    record = sanderling.profile(residual(), runs=2, delegates=("other",))
    (row,) = record["steps"]
    assert row["nodes"] == [0, 1, 2, 3] and row["delegate"] == "other" and row["ms"] > 0
    assert row["type"] == record["by_type"][0]["type"] == "other part, 4 ops" and row["opaque"]
    assert row["name"].endswith(":0-3") and row["limit_ms"] is None
    assert len(fused_names(record, row)) == 4
    assert record["method"] == "the clock around the whole call of another engine's part"
    told = " ".join(record["advice"])
    assert "other part, 4 ops (nodes 0-3)" in told and "layer" not in told
    assert "`sanderling bench --sweep` says whether these delegates pay" in told


class Clockwork:
    """A run of 100 us: 60 inside of native code, 50 of them in its two steps."""

    workers, rate, report = 1, None, ()

    def __init__(self) -> None:
        self.times, self.inside, self.counts, self.runs = np.zeros((1, 2)), np.zeros(1), True, 0

    def run(self) -> None:
        self.runs += 1
        if self.counts:
            self.times += [[20, 30]]
            self.inside += 60

    def count(self, on: bool) -> None:
        self.counts = on

    def reset_times(self) -> None:
        self.times[:], self.inside[:] = 0, 0


def watched(clockwork: Clockwork, how: ours.Counting) -> ours.Ours:
    made = object.__new__(ours.Ours)
    made.parts, made.rows = (
        [ours.NativeSteps(clockwork, 1e6)],
        [ProfileRow("A", "", "", ""), ProfileRow("B", "", "", "")],
    )
    made.counting, made.whole, made.gaps, made.left = how, [], [], []
    made.bound = clockwork  # type: ignore[assignment]
    return made


@pytest.mark.parametrize(("workers", "rest"), [(1, LOST), (2, "barriers")])
def test_all_is_measured_where_it_is_spent(
    workers: int, rest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is guessed from the sum that it explains: around a call, and within."""
    clockwork = Clockwork()
    clockwork.workers = workers
    made = watched(clockwork, ours.Counting(together=3))
    monkeypatch.setattr(ours.time, "perf_counter", lambda: clockwork.runs * 100e-6)
    made.sample()
    assert made.whole == pytest.approx([100e-6])
    assert [r.times for r in made.rows] == [pytest.approx([20e-6]), pytest.approx([30e-6])]
    assert made.others() == {CALL: pytest.approx([40e-6]), rest: pytest.approx([10e-6])}


def test_one_run_of_several_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clockwork = Clockwork()
    made = watched(clockwork, ours.Counting(together=3, every=4))
    seen: list[bool] = []
    monkeypatch.setattr(clockwork, "run", lambda: seen.append(clockwork.counts))
    made.sample()
    assert seen == [False] * 9 + [True] * 3 and len(made.counting.plain) == 1


@pytest.mark.parametrize(
    ("once", "together", "every"),
    [
        (4e-6, 125, 1),
        (1e-6, 500, 2),
        (0.0, 5000, 16),
        (1e-3, 1, 1),
    ],
)
def test_the_shorter_a_run_the_fewer_are_counted(once: float, together: int, every: int) -> None:
    made = watched(Clockwork(), ours.Counting())
    made.run = lambda times=1: once  # type: ignore[method-assign]
    made.settle()
    assert (made.counting.together, made.counting.every) == (together, every)


def test_a_short_run_says_how_it_was_counted() -> None:
    counting = {"together": 57, "every": 4, "cost": 0.031, "plain_ms": 0.0034}
    first, second = profiles._told(counting)
    assert "mean of 57" in first and "adds +3.1%" in second and "one of 4" in second
    (noise,) = profiles._told(counting | {"together": 1, "cost": -0.082})
    assert "adds less to a run than can be told from noise" in noise and "-8.2" not in noise
    assert profiles._told({"together": 1, "every": 1, "cost": None, "plain_ms": None}) == []


def test_code_that_counts_can_leave_it() -> None:
    """The whole call is counted too, and holds its steps."""
    session = sanderling.Session(stack(layers=2), [CpuDelegate(timed=True)])
    executable: Any = session.plan(session.model.main).steps[0].executable
    feed = {"x": np.zeros((1, 14, 14, 32), np.int8)}
    session.run(feed)
    assert executable.times.min() > 0 and executable.inside[0] >= executable.times.sum()
    executable.reset_times()
    executable.count(False)
    session.run(feed)
    assert not executable.times.any() and not executable.inside[0]
    executable.count(True)
    session.run(feed)
    assert executable.times.min() > 0


# -- the roofline -------------------------------------------------------------------------------


def test_the_limit_is_compute_or_memory() -> None:
    row = ProfileRow(
        "CONV_2D", "", "cpu", "", macs=200_000, weights=1000, read=1000, written=0, kind="i8"
    )
    found = profiles.limit(row, ROOF, held=5_000_000, seconds=2e-6)
    # 1 us of arithmetic; 0.0025 us of the first level, and 0.1 us of weights from memory.
    assert found["bound"] == "compute" and found["limit_ms"] == pytest.approx(1e-3)
    assert found["share"] == pytest.approx(0.5) and found["level"] == "L1+memory"
    row.read = 50_000_000
    found = profiles.limit(row, ROOF, held=50_001_000, seconds=1.0)
    assert found["bound"] == "memory" and found["level"] == "memory"
    assert found["limit_ms"] == pytest.approx(5.0001)
    assert profiles.limit(row, None, 0, 1.0)["share"] is None


def test_work_that_is_not_known_has_no_limit() -> None:
    found = profiles.limit(ProfileRow("Add (ND)", "", "xnnpack", ""), ROOF, held=1000, seconds=1e-6)
    assert found == {"limit_ms": None, "share": None, "bound": "", "level": ""}
    row = ProfileRow(
        "CONV_2D", "", "xnnpack", "", macs=1, kind="i8"
    )  # below what the clock can tell
    assert profiles.limit(row, ROOF, held=1000, seconds=0.0)["share"] is None


def test_a_disturbed_profile_says_so() -> None:
    quiet, busy = (summary([1.0] * 9 + [last]) for last in (2.0, 50.0))
    assert quiet is not None and busy is not None
    assert not profiles._disturbed(quiet)
    assert "5.9 times as long as the median" in profiles._disturbed(busy)[0]


def test_rates_by_type_are_those_of_the_median() -> None:
    step = {"type": "CONV_2D", "ms": 9.0, "median_ms": 1.0, "macs": 5e8} | dict.fromkeys(
        ("percent", "mem_kb", "times_called", "bytes"), 1
    )
    (found,) = profiles._by_type([step, step])
    assert found["ms"] == 18 and found["gops"] == pytest.approx(1e3)


def test_the_machine_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDERLING_CACHE", str(tmp_path))
    calls: list[int] = []

    def measure(target: Any, threads: int, progress: Any) -> Roofline:
        calls.append(threads)
        return ROOF

    monkeypatch.setattr(roofs, "measure", measure)
    for name in ("_who", "_compiler"):  # an edit of the package meanwhile is another matter
        monkeypatch.setattr(f"sanderling.store.{name}", lambda: "somebody")
    assert roofline(1) == roofline(1) == ROOF and calls == [1]
    roofline(1, refresh=True)
    assert calls == [1, 1]


def test_a_short_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofs, "TRIES", 1)
    monkeypatch.setattr(roofs, "CALL", 1e-4)
    monkeypatch.setattr(roofs, "_beyond", lambda *_: 1 << 22)
    told: list[tuple[str, int, int]] = []
    found = roofs.measure(host_target(), 2, lambda *what: told.append(what))
    assert found.threads == 2 and found.peaks["f32"] > 1e8 and found.ticks > 1e6
    speeds = [v.bandwidth for v in found.levels]
    assert speeds == sorted(speeds, reverse=True) and found.levels[-1].size is None
    assert [done for _, done, _ in told] == list(range(told[0][2]))
    assert Roofline.from_json(found.to_json()) == found


def test_caches_are_read_from_the_system(tmp_path: Path) -> None:
    for i, (level, kind, size) in enumerate(
        [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2M")]
    ):
        folder = tmp_path / f"index{i}"
        folder.mkdir()
        for name, content in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(content + "\n")
    assert cache_sizes(tmp_path) == [("L1", 48 << 10, False), ("L2", 2 << 20, False)]
    assert [name for name, *_ in cache_sizes(tmp_path / "none")] == ["L1", "L2", "L3"]

"""`sanderling bench`: sweeps, contention, and the tables of both."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import sanderling.measure.bench as home
from sanderling import load
from sanderling.measure import bench_plots, bench_results, bench_tables, model_table, noise, sweep
from sanderling.measure.background_load import Busy
from sanderling.measure.inputs import Feeding
from sanderling.measure.record import Setting
from sanderling.runtime import registry

from .support.bench_command import F32, made, measured
from .support.fake_delegates import Some

# -- sweeps, contention, tables -----------------------------------------------------------------


def test_combinations() -> None:
    found = sweep.combinations(["sanderling", "litert"], [1, 2], [("cpu",)], ["f32", "bf16"], 3)
    assert len(found) == len(set(found)) == 16
    assert all(not s.delegates for s in found if s.engine == "litert")
    assert "LiteRT has no bf16" in sweep.why_not(Setting("litert", precision="bf16"), "none")
    assert sweep.why_not(Setting("litert"), "none") == ""
    assert ("reference",) not in sweep.delegate_choices()
    counts = sweep.thread_counts()
    assert counts[0] == 1 and counts[-1] == len(noise.usable_cpus())


def test_a_delegate_that_takes_all_is_not_tried_with_settings_of_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it leaves to the cpu depends on them again."""
    everything = {op.name for op in load(F32).main.ops}

    class Apart(Some):
        uses_threads = False

    for name, takes in {"whole": everything, "part": {"SOFTMAX"}}.items():
        one = Apart(takes, name)
        monkeypatch.setitem(registry._registered, name, lambda one=one: one)
    choices = [("whole",), ("part",), ("cpu",)]

    def tried(axes: home.Axes) -> dict[str, list[tuple[int, str]]]:
        made = home.BenchedModel.of(F32, "m", Feeding({}, {}, {}, 0), "", (), axes)
        return {
            c[0]: [(s.threads, s.precision) for s in made.settings if s.delegates == c]
            for c in choices
        }

    monkeypatch.setattr(home, "why_not", lambda *_: "")
    monkeypatch.setattr(home, "thread_counts", lambda: [1, 2])
    swept = tried(home._axes(["sanderling"], [], choices, [], True, 0))
    assert swept["whole"] == [(1, "f32")] and len(swept["part"]) == len(swept["cpu"]) == 4
    asked = tried(home._axes(["sanderling"], [1, 2], choices, [], True, 0))
    assert asked["whole"] == [(1, "f32"), (2, "f32")]  # threads were given by name


@pytest.mark.parametrize(
    ("times", "chosen", "why"),
    [
        ({1: 2.0, 2: 1.0}, 2, "beyond the noise"),
        ({1: 1.004, 2: 1.0}, 1, "1 thread fewer"),
        ({1: 1.0, 2: 2.0}, 1, "beyond the noise"),
    ],
)
def test_the_cheapest_within_the_noise_is_recommended(
    times: dict[int, float], chosen: int, why: str
) -> None:
    results = [measured(ms=ms, setting=Setting(threads=n)) for n, ms in times.items()]
    found = sweep.recommend(results, bench_results.ratio)
    assert found is not None and found.setting == Setting(threads=chosen).name
    assert why in found.why


def test_a_wide_interval_makes_no_equal() -> None:
    slow = measured(ms=3.0, noise=0.0)
    slow.rounds = [[3e-3 * f] for f in (0.3, 1, 1, 1, 4) for _ in range(5)]
    found = sweep.recommend([slow, measured(setting=Setting(threads=2))], bench_results.ratio)
    assert found is not None and found.setting == Setting(threads=2).name
    assert "sanderling, 1 thread cannot be told from it" in found.why
    assert "beyond the noise" not in found.why


def test_wrong_answers_and_load_are_not_recommended() -> None:
    wrong = measured(ms=0.1, setting=Setting("litert"))
    loaded = measured(ms=0.1, setting=Setting(contend=1))
    right, slow = measured(), measured(ms=3, setting=Setting(threads=2))
    found = sweep.recommend([wrong, loaded, right, slow], bench_results.ratio, [wrong.setting.name])
    assert found is not None and found.setting == right.setting.name


def test_contention_shows_where_fewer_threads_win() -> None:
    times = {(1, 0): 2.0, (1, 2): 2.2, (2, 0): 1.0, (2, 2): 5.0}
    found = made(
        *(measured(ms=ms, setting=Setting(threads=t, contend=c)) for (t, c), ms in times.items())
    )
    _, rows = bench_tables.contention(found)
    assert [r[0] for r in rows] == ["sanderling, 1 thread", "sanderling, 2 threads"]
    (said,) = bench_tables.best_under_load(found)
    assert "alone sanderling, 2 threads is the fastest, but beside 2 busy" in said


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="needs /proc")
def test_busy_processes_run_only_when_told() -> None:
    def states() -> set[str]:
        texts = [Path(f"/proc/{p.pid}/stat").read_text("ascii") for p in busy.processes]
        return {t.rpartition(")")[2].split()[0] for t in texts}

    with Busy(2, noise.usable_cpus()[:1]) as busy:
        for process in busy.processes:
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert states() == {"T"} and os.sched_getaffinity(busy.processes[0].pid) == {
            noise.usable_cpus()[0]
        }
        with busy.on():
            assert "T" not in states()
    assert all(p.poll() is not None for p in busy.processes)


def test_the_table_of_known_models() -> None:
    settings = Setting(), Setting("litert", 2)
    found = made(
        *(measured(f"{m}.tflite", ms, s) for m, ms in (("a", 1.0), ("b", 20.0)) for s in settings)
    )
    found.results[-1].rounds, found.results[-1].error = [], "no"
    columns, rows = model_table.model_table(found)
    assert columns[2:] == [">Sanderling, 1 thread", ">LiteRT, 2 threads"]
    assert [r[0] for r in rows] == ["a", "b"] and rows[1][3] == "---"
    assert rows[0][2].endswith(" ms")
    text = model_table.as_markdown(found)
    assert "| a | none |" in text and "ai-edge-litert" in text


def test_sweeps_are_drawn_and_sorted() -> None:
    found = made(*(measured(ms=ms, setting=Setting(threads=t)) for t, ms in ((1, 2.0), (2, 1.0))))
    assert bench_plots.plot_bench(found, "a.svg").count(b"threads") > 0
    _, rows = bench_tables.latency(found, by_speed=True)
    assert [r[0] for r in rows] == ["sanderling, 2 threads", "sanderling, 1 thread"]

"""What a trace tells: threads, barriers, borders."""

from __future__ import annotations

import numpy as np
import pytest

from sanderling import FallbackWarning, load
from sanderling.measure.trace_insights import insights
from sanderling.runtime.recorder import record
from sanderling.runtime.trace_data import Instant, Slice, Trace

from .support.command_line import F32
from .support.fake_delegates import Some
from .support.trace_recordings import (
    surroundings,  # noqa: F401
    trace_about,
    trace_mixed,
)


def made_up(workers: int = 2, cores: int = 2, threads: int = 2, **work: tuple[int, ...]) -> Trace:
    """Two equal runs: for each step the nanoseconds of each worker, all beginning together."""
    found = Trace(trace_about() | {"cores": cores}, end=10**9)
    found.slices.append(Slice(1, 0, 1, "plan", "plan", {"threads": threads}))
    begin = 10
    for _ in range(2):
        at = begin
        for place, (name, times) in enumerate(work.items()):
            for worker, time in enumerate(times):
                row = {
                    "op": name,
                    "step": f"{place} {name}",
                    "node": place,
                    "kernel": "k",
                    "delegate": "cpu",
                }
                found.slices += [
                    Slice(worker + 1, at, at + time, name, "op", row),
                    Slice(
                        worker + 1,
                        at + time,
                        at + max(times),
                        "barrier",
                        "barrier",
                        {"behind": row["step"]},
                    ),
                ]
            at += max(times)
        found.slices += [
            Slice(1, begin, at, "invoke", "run", {}),
            Slice(1, begin, at, "part", "part", {"workers": workers}),
        ]
        begin = at + 10
    return found


def kinds(made: Trace) -> dict[str, str]:
    return {i.kind: str(i) for i in insights(made)}


LONG = 1_000_000


def test_an_even_run_gives_no_insight() -> None:
    assert not kinds(made_up(a=(LONG, LONG), b=(LONG, LONG), c=(LONG, LONG)))


def test_threads_and_cores() -> None:
    crowd = {f"s{i}": (LONG,) * 4 for i in range(4)}
    found = kinds(made_up(4, 2, 4, **crowd))
    assert "4 threads compute at once, 2 cores" in found["threads"]
    assert "threads=2 or fewer" in found["threads"]
    assert not kinds(made_up(4, 4, 4, **crowd))


def test_sessions_side_by_side_count_together() -> None:
    made = made_up(2, 3, a=(LONG, LONG), b=(LONG, LONG), c=(LONG, LONG))
    assert "threads" not in kinds(made)
    made.slices += [s._replace(thread=s.thread + 10) for s in made.of_kind("part")]
    assert "4 threads compute at once, 3 cores" in kinds(made)["threads"]


def test_barriers_name_the_worst_step() -> None:
    found = kinds(made_up(a=(LONG, LONG), lopsided=(LONG, 1), c=(LONG, LONG)))
    assert "17 % of the workers' time" in found["barriers"]
    assert "share (100 %) behind step 1 lopsided" in found["barriers"]
    assert "only one worker has work in it" in found["barriers"]
    uneven = kinds(made_up(a=(LONG, LONG // 2), b=(LONG, LONG), c=(LONG, LONG // 2)))
    assert "do not end together" in uneven["barriers"]


def test_workers_that_take_turns() -> None:
    made = made_up(a=(LONG, LONG), b=(LONG, LONG), c=(LONG, LONG))
    assert "turns" not in kinds(made)
    late = []
    for s in made.slices:  # worker 1 begins when worker 0 has ended
        if s.begin >= 3 * LONG + 20 or s.kind == "barrier":
            continue
        if s.kind == "op":
            place = int(s.args["step"][0])
            shift = place * LONG + (LONG if s.thread == 2 else 0)
            s = s._replace(begin=s.begin + shift, end=s.end + shift)
        elif s.kind in ("run", "part"):
            s = s._replace(end=s.begin + 6 * LONG + 5)
        late.append(s)
    made.slices = sorted(late, key=lambda s: s.begin)
    assert "only 50 % of the workers' time is work" in kinds(made)["turns"]


def test_work_that_is_too_small() -> None:
    found = kinds(made_up(1, 8, 8, a=(LONG,), b=(LONG,), c=(LONG,)))
    assert "8 threads were asked for, there is work for 1" in found["small"]
    found = kinds(made_up(a=(800, 800), b=(900, 900), c=(900, 900)))
    assert "0.867 us" in found["small steps"]


def test_one_op_dominates() -> None:
    found = kinds(made_up(a=(LONG, LONG), big=(8 * LONG, 8 * LONG), c=(LONG, LONG)))
    assert "big (node 1, kernel k on cpu) takes 80 %" in found["dominating"]


def test_one_interrupted_run_is_no_slow_op() -> None:
    made = made_up(a=(LONG,), b=(LONG,), c=(LONG,))
    for _ in range(4):
        late = max(s.end for s in made.slices) + 10
        first = [s for s in made.slices if s.begin < 4 * LONG and s.kind != "plan"]
        made.slices += [s._replace(begin=s.begin + late, end=s.end + late) for s in first]
    *_, last = (i for i, s in enumerate(made.slices) if s.name == "c")
    end = made.slices[last].end + 50 * LONG
    made.slices[last] = made.slices[last]._replace(end=end)
    made.slices = [
        s._replace(end=end) if s.kind in ("run", "part") and s.begin > end - 54 * LONG else s
        for s in made.slices
    ]
    assert "dominating" not in kinds(made)


def test_a_border_that_dominates_has_no_node_and_no_channels() -> None:
    made = made_up(a=(LONG,), big=(8 * LONG,), c=(LONG,))
    for s in made.of_kind("op"):
        s.args.update(
            {"delegate": "gpu"} | ({"op": "import", "node": -1} if s.name == "big" else {})
        )
    said = kinds(made)["dominating"]
    assert "import (kernel k on gpu) takes 80 %" in said and "--delegates gpu,cpu" in said
    assert "node" not in said and "channels" not in said


@pytest.mark.parametrize("delegate, apart", [("cpu", True), ("gpu", False)])
def test_only_the_cpus_traced_code_is_kept_apart(delegate: str, apart: bool) -> None:
    made = made_up(a=(LONG,))
    made.slices.append(Slice(1, 0, 10**9, "compiling 1 op", "compile", {"delegate": delegate}))
    assert ("kept apart" in kinds(made)["compiling"]) == apart


@pytest.mark.parametrize(
    "types, advised",
    [
        (("f32[1,8,8,4] f32[4,3,3,4]", "f32[1,8,8,4]"), True),
        (("u8[1,8,8,4] u8[4,3,3,4] i32[4]", "u8[1,8,8,4]"), False),
        (("f32[1,8,8,4] i8[4,3,3,4]", "f32[1,8,8,4]"), False),
    ],
)
def test_what_is_quantised_is_not_to_be_quantised(types: tuple[str, str], advised: bool) -> None:
    made = made_up(a=(LONG,), big=(8 * LONG,), c=(LONG,))
    for s in made.of_kind("op"):
        s.args.update(zip(("inputs", "outputs"), types, strict=True))
    assert ("quantise it, or" in kinds(made)["dominating"]) == advised


def test_fallbacks_and_borders_of_a_real_run() -> None:
    found = kinds(trace_mixed())
    assert "'cpu' does not run custom.TraceTest (node 1): on 'reference'" in found["fallback"]
    assert "custom.TraceTest has no kernel" in found["fallback"]
    assert "borders between parts 2 times (2 KiB)" in found["borders"]
    assert all("\n  why: " in text and "\n  do: " in text for text in found.values())


def test_who_failed_to_compile_is_not_advised_to_take_other_ops() -> None:
    """The reason is the delegate's, or its device's."""
    model = load(F32)
    with record() as made, pytest.warns(FallbackWarning):
        delegate = Some({op.name for op in model.main.ops}, fails="compile")
        model.compile([delegate]).run({"image": np.zeros((1, 8, 8, 1), np.float32)})
    said = kinds(made)["fallback"]
    assert "out of luck" in said and "mend what the reason names, or leave 'some' out" in said
    assert "similar ops" not in said


def test_a_fallback_without_runs() -> None:
    made = Trace(trace_about(), end=1)
    made.instants.append(
        Instant(
            1,
            0,
            "",
            "refusal",
            {"op": "A", "node": 0, "delegate": "gpu", "runs on": "cpu", "reason": "no"},
        )
    )
    assert "A (node 0)" in kinds(made)["fallback"]

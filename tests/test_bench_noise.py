"""How `bench` takes samples, how sure it is of a ratio, and what it says of the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks import repeatability
from sanderling.measure import bench_results, engine_process, noise
from sanderling.measure.interleaving import Budget
from sanderling.measure.noise import Look
from sanderling.measure.part_times import FOREIGN_OPS
from sanderling.measure.record import Setting
from sanderling.measure.sample_statistics import ratio, ratio_of_launches

from .support.bench_command import measured

# -- samples, by a clock that we turn -----------------------------------------------------------


class Clock:
    """Time passes only when a run takes it, or somebody sleeps."""

    def __init__(self) -> None:
        self.now, self.slept = 100.0, 0.0

    def perf_counter(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.now - self.slept  # who sleeps uses no CPU

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds

    def running(self, costs: Iterator[float]) -> Callable[[], None]:
        def run() -> None:
            self.now += next(costs)

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(engine_process, "time", made)
    return made


def constant(value: float) -> Iterator[float]:
    while True:
        yield value


def test_warm_up_ends_when_runs_are_even(clock: Clock) -> None:
    def costs() -> Iterator[float]:
        yield from (0.02 * 0.8**n for n in range(20))
        yield from constant(0.02 * 0.8**20)

    found = engine_process.warm_up(clock.running(costs()), engine_process.Order(0.0, 1, 100.0))
    assert found.stable and found.samples[-1] == pytest.approx(0.02 * 0.8**20)
    assert 15 < len(found.samples) < 200


def test_warm_up_gives_up(clock: Clock) -> None:
    growing = (0.01 * 1.2**n for n in range(10**6))
    found = engine_process.warm_up(clock.running(growing), engine_process.Order(0.0, 1, 1.0))
    assert not found.stable


def test_a_turn_has_its_runs_and_keeps_its_limit(clock: Clock) -> None:
    run = clock.running(constant(0.01))
    assert len(engine_process.take(run, engine_process.Order(0.0, runs=7)).samples) == 7
    assert len(engine_process.take(run, engine_process.Order(0.5)).samples) in (50, 51)
    assert len(
        engine_process.take(run, engine_process.Order(0.0, runs=1000, limit=0.1)).samples
    ) in (10, 11, 12)
    assert (
        len(engine_process.take(run, engine_process.Order(0.0, runs=9, limit=0.001)).samples) == 1
    )


def test_short_runs_are_measured_together_and_long_ones_alone(clock: Clock) -> None:
    pace = engine_process.Pace(block=20e-6)
    short = engine_process.take(
        clock.running(constant(2e-6)), engine_process.Order(0.0, 100, pace=pace)
    )
    assert short.block == 10 and len(short.samples) == 10
    assert short.samples == pytest.approx([2e-6] * 10)
    assert (
        engine_process.take(
            clock.running(constant(1e-3)), engine_process.Order(0.0, 3, pace=pace)
        ).block
        == 1
    )


def test_a_rate_is_kept_and_caught_up(clock: Clock) -> None:
    slow = iter([0.01, 0.01, 0.25, *[0.01] * 7])
    order = engine_process.Order(0.0, 10, pace=engine_process.Pace(frequency=10))
    begin = clock.now
    assert len(engine_process.take(clock.running(slow), order).samples) == 10
    assert clock.now - begin == pytest.approx(1.0)  # the slow one cost the others their pauses
    clock.slept = 0.0
    engine_process.take(
        clock.running(constant(0.01)),
        engine_process.Order(0.0, 4, pace=engine_process.Pace(delay=0.5)),
    )
    assert clock.slept == pytest.approx(2.0)


def test_a_slow_model_gets_fewer_rounds() -> None:
    budget = Budget(1.0, 10, limit=6.0)
    assert budget.rounds_for(0.001) == 5 and budget.rounds_for(1.0) == 3
    assert budget.rounds_for(60.0) == 1
    assert budget.order(5).runs == 2 and budget.order(5).limit == pytest.approx(1.2)


# -- how sure -----------------------------------------------------------------------------------


def runs_of(rng: np.random.Generator, launches: int, busy: float) -> tuple[list[Any], list[Any]]:
    """Two engines, 1 and 2 ms: 2 % between processes, 1 % between rounds. busy: how likely the
    machine has other work, which disturbs four processes of ten."""
    sides: tuple[list[Any], list[Any]] = ([], [])
    is_busy = rng.random() < busy
    for _ in range(launches):
        for side, ms in zip(sides, (2.0, 1.0), strict=True):
            spread = 0.25 if is_busy and rng.random() < 0.4 else 0.02
            mine = ms * np.exp(spread * rng.standard_normal())
            side.append([[mine * (1 + 0.01 * rng.standard_normal())] for _ in range(5)])
    return sides


def agreement(interval: Callable[[Any, Any], Any], busy: float = 0.0, repeats: int = 100) -> float:
    rng = np.random.default_rng(1)
    found = [interval(*runs_of(rng, 5, busy)) for _ in range(repeats)]
    return float(np.mean([a.low <= b.value <= a.high for a in found for b in found if a is not b]))


def test_repetitions_lie_in_the_interval() -> None:
    assert agreement(ratio_of_launches) >= 0.9
    assert agreement(ratio_of_launches, busy=0.3) >= 0.9
    # What the rounds of one process say would be far too narrow: the test can fail.
    assert agreement(lambda slow, fast: ratio(slow[0], fast[0])) < 0.6


def test_ratios_of_launches() -> None:
    exact = [[[2.0]] * 5] * 5, [[[1.0]] * 5] * 5
    for paired in (True, False):
        found = ratio_of_launches(*exact, paired=paired)
        assert found.value == pytest.approx(2) and 1.9 < found.low < found.high < 2.1
    drift = [float(d) for d in (1, 1.5, 2, 2.5, 3)]
    slow, fast = ([[[b * d]] * 5 for d in drift] for b in (2.0, 1.0))
    together, apart = (ratio_of_launches(slow, fast, paired=p) for p in (True, False))
    assert together.low > 1.9 and apart.low < 1.5 < 3 < apart.high
    cut = ratio_of_launches([[[2.0]] * 3, [[2.0]]], [[[1.0]] * 5, [[1.0]] * 5])
    assert cut.value == pytest.approx(2)


def test_repeatability_counts_pairs() -> None:
    one, two, far = (
        bench_results.Comparison("m", "s", "t", r, r - 0.1, r + 0.1) for r in (1.0, 1.05, 2.0)
    )
    assert repeatability.agreement([one, two]) == 1.0
    assert repeatability.agreement([one, two, far]) == pytest.approx(2 / 6)
    text, good = repeatability.report({"m": {"s": [one, two]}})
    assert good and "| m | s | 2 | 1.000 to 1.050 |" in text


# -- noise --------------------------------------------------------------------------------------


def kinds(after: Look, own: float = 1.0, governed: Sequence[str] = ()) -> list[str]:
    before = Look(0.0, busy=10.0, mhz=[2000.0])
    return [d.kind for d in noise.disturbances(before, after, own, governed)]


def test_disturbances_are_named_with_their_remedy() -> None:
    calm = Look(10.0, busy=11.0, mhz=[2050.0])
    cpus = len(noise.usable_cpus())
    assert kinds(calm) == []
    assert kinds(replace(calm, steal=0.5 * cpus)) == ["steal"]
    assert kinds(replace(calm, busy=19.0)) == ["load"]
    assert kinds(replace(calm, throttled=3)) == ["throttling"]
    assert kinds(replace(calm, mhz=[2600.0])) == ["frequency"]
    assert kinds(calm, governed=["powersave"]) == ["governor"]
    (one,) = noise.disturbances(Look(0.0), replace(calm, busy=9.0), 1.0, [])
    assert str(one).startswith("other programs kept 0.8 cores busy; stop them")


def test_samples_show_disturbances() -> None:
    cores = len(noise.usable_cpus())
    slower = measured(noise=0.0)
    slower.rounds = [[1e-3 * (1 + n / 60)] for n in range(25)]
    uneven = measured(noise=0.0)
    uneven.rounds = [[1e-3, 1e-3, 1e-3, 5e-3]] * 25
    cases = [
        (measured(), []),
        (measured(setting=Setting(threads=cores + 1)), ["crowded"]),
        (measured(stable=False), ["warm-up"]),
        (slower, ["drift"]),
        (uneven, ["spread"]),
        (measured(switches=500, cpu_seconds=1.0), ["switches"]),
        (measured(setting=Setting(contend=2), switches=500, cpu_seconds=1.0), []),
        (measured(facts={FOREIGN_OPS: 5}, switches=54317, cpu_seconds=1.0), []),
        (measured(facts={FOREIGN_OPS: 0}, switches=500, cpu_seconds=1.0), ["switches"]),
    ]
    for result, expected in cases:
        assert [d.kind for d in noise.of_result(result)] == expected
    merged = noise.sentences([*noise.of_result(slower), *noise.of_result(slower)])
    assert len(merged) == 1 and merged[0].endswith("(and 1 more like it)")


def test_the_machine_is_looked_at() -> None:
    one, two = Look.now(), Look.now()
    assert two.at >= one.at and two.busy >= one.busy >= 0

"""What profiling costs, and how much of a run its steps account for.

    python -m benchmarks.profile_cost [MODEL.tflite ...] [--seconds 4] [--threads 1,2] [--json FILE]
                                      [--write]

Without paths: nine of ../shared/models, from 4 us to 20 ms. Cost: sessions with and without the
counting of ticks run in turns, several of each, since where a session's memory happens to lie
changes its speed; the figure is the ratio of their fastest runs by turn. Sums: a profile of the
model; all steps, calls, which are measured by themselves, and what is left over. With several
workers the rest is barriers, by definition. Exit status 1 if profiling costs more than 2 % for
certain, or more than 5 % is left over.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import milliseconds, model_paths, table, write_json, write_section
from sanderling import Model, load
from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.measure.inputs import feeds
from sanderling.measure.machine import machine_line
from sanderling.measure.profile import profile
from sanderling.measure.statistics import geometric_mean, median_of_rounds, ratio_of_launches
from sanderling.measure.turns import turn
from sanderling.runtime.session import BoundRun, Session

SCHEMA = "sanderling.profile_cost/1"
MODELS = ("ad01_int8,resnet8_cifar10_int8,resnet8_cifar10_f32,str_ww_int8,mobilenet_v1_0.25,"
          "tf2_mobilenet_v2,efficientnet_lite0,pose_detection,yamnet")  # fmt: skip
LAUNCHES, ROUNDS = 4, 12
MOST_COST, MOST_LOST = 0.02, 0.05


@dataclass(frozen=True)
class Cost:
    model: str
    threads: int
    workers: int
    plain: float  # seconds of a run
    cost: float
    low: float
    high: float
    steps: float  # shares of the whole run
    calls: float
    barriers: float
    accounted: float

    @property
    def holds(self) -> bool:
        """What is in doubt holds: the interval's lower end decides."""
        return self.low <= MOST_COST and abs(1 - self.accounted) <= MOST_LOST


def bound(model: Model, threads: int, timed: bool) -> BoundRun:
    session = Session(model, [CpuDelegate(timed=timed)], threads)
    names = session.entry(None).inputs
    order = {t: n for n, t in names.items()}
    arrays = zip(model.main.inputs, feeds(model), strict=True)
    made = session.bind({order[t]: array for t, array in arrays})
    made.run()
    return made


def launch(
    model: Model, threads: int, seconds: float, rng: random.Random
) -> list[list[list[float]]]:
    """Rounds of a session without and of one with counting: the fastest run of each turn."""
    pair = [bound(model, threads, timed) for timed in (False, True)]
    rounds: list[list[list[float]]] = [[], []]
    for _ in range(ROUNDS):
        for index in rng.sample((0, 1), 2):
            rounds[index].append([min(turn(pair[index].run, seconds / (2 * ROUNDS)))])
    return rounds


def measure(path: Path, threads: int, seconds: float) -> tuple[Cost, Any]:
    model, rng = load(path), random.Random(0)
    launches = [launch(model, threads, seconds / LAUNCHES, rng) for _ in range(LAUNCHES)]
    plain, counted = ([pair[i] for pair in launches] for i in (0, 1))
    found = ratio_of_launches(counted, plain)
    record = profile(model, threads=threads, with_roofline=False)
    whole = record["whole"]["mean"]
    others = {o["name"]: o["ms"] / whole for o in record["others"]}
    calls = others.get("call into native code", 0.0)
    cost = Cost(
        path.stem, threads, record["workers"], min(median_of_rounds(r) for r in plain),
        found.value - 1, found.low - 1, found.high - 1, record["steps_ms"] / whole, calls,
        others.get("barriers", 0.0), record["accounted"],
    )  # fmt: skip
    return cost, found


def report(costs: Sequence[Cost], mean: Any) -> str:
    rows = [
        (c.model, c.threads, c.workers, milliseconds(c.plain),
         f"{c.cost:+.1%} [{c.low:+.1%}, {c.high:+.1%}]", f"{c.steps:.1%}", f"{c.calls:.1%}",
         f"{c.barriers:.1%}" if c.workers > 1 else "-", f"{c.accounted:.1%}")
        for c in costs
    ]  # fmt: skip
    header = ("model", "threads", "workers", "ms", "cost of profiling", "steps", "calls",
              "barriers", "accounted for")  # fmt: skip
    low, high = mean.low - 1, mean.high - 1
    return "\n".join([
        "## Profiling", "", machine_line(), "", table(header, rows), "",
        f"Cost in the geometric mean: {mean.value - 1:+.2%} [{low:+.2%}, {high:+.2%}]. "
        "Cost is the ratio of the fastest runs by turn, with and without counting; steps, calls "
        "and barriers are shares of the mean run, what is accounted for is the median over runs.",
    ])  # fmt: skip


def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--seconds", type=float, default=4.0, help="for a model's cost")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--json", default="")
    parser.add_argument("--write", action="store_true", help="into RESULTS.md")
    options = parser.parse_args(args)
    paths = model_paths(options.models, "" if options.models else MODELS)
    found = []
    for threads in map(int, options.threads.split(",")):
        for path in paths:
            found.append(measure(path, threads, options.seconds))
            print(f"{path.stem}, {threads}: {found[-1][0]}", file=sys.stderr, flush=True)
    costs = [cost for cost, _ in found]
    text = report(costs, geometric_mean([r for _, r in found]))
    print(text)
    if options.json:
        write_json(options.json, SCHEMA, {"rows": [asdict(c) for c in costs]})
    if options.write:
        write_section("profiling", text)
    return 0 if all(c.holds for c in costs) else 1


if __name__ == "__main__":
    sys.exit(main())

"""What profiling costs, and how much of a run its steps account for.

    python -m benchmarks.profile_cost [MODEL.tflite ...] [--seconds 4] [--threads 1,2] [--json FILE]
                                      [--write]

Without paths: nine of ../shared/models, from 4 us to 20 ms; about 3 minutes. Cost: sessions whose
code cannot count, and sessions run as a profile runs them, in turns, several of each, since where a
session's memory happens to lie changes its speed; the figure is the ratio of their fastest turns.
"counted run" is the same within one session: runs that are counted against runs that are not; where
it is more than 1 %, a profile counts only one run of several ("one of"). Sums: all steps, the call
(the clock around the run less the ticks of the call), barriers, as a share of a run that is not
counted. Exit status 1 if profiling costs more than 2 % for certain, or the sum is 5 % off.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import model_paths, table, write_json, write_section
from sanderling import Model, load
from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.ir import Array, Tensor
from sanderling.measure.bench_tables import milliseconds
from sanderling.measure.engine_process import Run, turn
from sanderling.measure.inputs import feeds
from sanderling.measure.machine import machine_line
from sanderling.measure.profile_ours import BETWEEN, CALL, Ours
from sanderling.measure.profiling import profile
from sanderling.measure.record import Setting
from sanderling.measure.sample_statistics import geometric_mean, median_of_rounds, ratio_of_launches
from sanderling.runtime.session import Session

SCHEMA = "sanderling.profile_cost/2"
MODELS = (
    "ad01_int8,resnet8_cifar10_int8,resnet8_cifar10_f32,str_ww_int8,mobilenet_v1_0.25,"
    "tf2_mobilenet_v2,efficientnet_lite0,pose_detection,yamnet"
)
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
    counted: float | None  # what counting adds to a run that is counted; too little to ask
    every: int  # one run of so many is
    steps: float  # shares of the whole run
    calls: float
    barriers: float
    accounted: float  # of a run that is not counted

    @property
    def holds(self) -> bool:
        """What is in doubt holds: the interval's lower end decides."""
        return self.low <= MOST_COST and abs(1 - self.accounted) <= MOST_LOST


def fed(model: Model, names: dict[str, Tensor]) -> dict[str, Array]:
    arrays = dict(zip(model.main.inputs, feeds(model), strict=True))
    return {name: arrays[tensor] for name, tensor in names.items()}


def profiled(model: Model, threads: int) -> Ours:
    names = Session(model, ("reference",)).entry(None).inputs
    made = Ours(model, Setting(threads=threads), fed(model, names), None, ticks=1.0)
    made.first()
    made.settle()
    return made


def plain(model: Model, threads: int, runs: int) -> Run:
    """So many runs: the fastest of long samples is not as fast as that of short ones."""
    session = Session(model, [CpuDelegate()], threads)
    run = session.bind(fed(model, session.entry(None).inputs)).run
    run()

    def several() -> None:
        for _ in range(runs):
            run()

    return several


def launch(
    model: Model, threads: int, seconds: float, rng: random.Random
) -> list[list[list[float]]]:
    """Rounds of a session without counting and of one that is profiled: the fastest of each turn,
    in seconds a run."""
    watched = profiled(model, threads)
    runs = watched.counting.together * watched.counting.every
    pair: list[Run] = [plain(model, threads, runs), watched.runs]
    rounds: list[list[list[float]]] = [[], []]
    for _ in range(ROUNDS):
        for index in rng.sample((0, 1), 2):
            rounds[index].append([min(turn(pair[index], seconds / (2 * ROUNDS))) / runs])
    return rounds


def measure(path: Path, threads: int, seconds: float) -> tuple[Cost, Any]:
    model, rng = load(path), random.Random(0)
    launches = [launch(model, threads, seconds / LAUNCHES, rng) for _ in range(LAUNCHES)]
    without, counted = ([pair[i] for pair in launches] for i in (0, 1))
    found = ratio_of_launches(counted, without)
    record = profile(model, threads=threads, with_roofline=False)
    whole, counting = record["whole"]["mean"], record["counting"]
    others = {o["name"]: o["ms"] / whole for o in record["others"]}
    cost = Cost(
        path.stem,
        threads,
        record["workers"],
        min(median_of_rounds(r) for r in without),
        found.value - 1,
        found.low - 1,
        found.high - 1,
        counting["cost"],
        counting["every"],
        record["steps_ms"] / whole,
        others.get(CALL, 0.0) + others.get(BETWEEN, 0.0),
        others.get("barriers", 0.0),
        record["accounted"] * (1 + (counting["cost"] or 0.0)),
    )
    return cost, found


def report(costs: Sequence[Cost], mean: Any) -> str:
    rows = [
        (
            c.model,
            c.threads,
            c.workers,
            milliseconds(c.plain),
            f"{c.cost:+.1%} [{c.low:+.1%}, {c.high:+.1%}]",
            "-" if c.counted is None else f"{c.counted:+.1%}",
            c.every,
            f"{c.steps:.1%}",
            f"{c.calls:.1%}",
            f"{c.barriers:.1%}" if c.workers > 1 else "-",
            f"{c.accounted:.1%}",
        )
        for c in costs
    ]
    header = (
        "model",
        "threads",
        "workers",
        "ms",
        "cost of profiling",
        "counted run",
        "one of",
        "steps",
        "calls",
        "barriers",
        "sum",
    )
    low, high = mean.low - 1, mean.high - 1
    return "\n".join(
        [
            "## Profiling",
            "",
            machine_line(),
            "",
            table(header, rows),
            "",
            f"Cost in the geometric mean: {mean.value - 1:+.2%} [{low:+.2%}, {high:+.2%}]. "
            "Cost is the ratio of the fastest runs by turn: as a profile runs the model, and "
            "in code that cannot count. Of very short runs only one of several is counted: what "
            "counting adds "
            "to that one is measured against its neighbours in the same session. Steps, calls and "
            "barriers are shares of the mean run that is counted, their sum is of one that is not.",
        ]
    )


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

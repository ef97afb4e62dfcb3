"""What is a step worth to a second worker? Fits the constants of runtime/division.py.

    python -m benchmarks.fit_workers [--seconds 20] [--json FILE] [--write]

Networks of equal convolutions whose work differs run alone and shared by two workers, in turns: one
run right behind the other, where the worker is awake, and after pauses, where it sleeps. Shared, a
step takes `alone / 2 + hand-over`; a run after a pause takes `alone / 2 + wake` if that is less
than alone. Medians over steps fit both costs; what they have to gain is twice as much work:
WORK_OF_CHUNK is the work of half a step that breaks even, WORK_THAT_WAKES that of a step, and
WORK_OF_WORKER that of a run's half. Work is counted as the compiler estimates it, so the
estimates' own error is fitted, too.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.common import fresh_cache, machine_type, table, write_json, write_machine_section
from benchmarks.scaling import Point, stack
from sanderling.delegates.cpu.isa.targets import host_target
from sanderling.delegates.cpu.runtime import division
from sanderling.measure.inputs import feeds
from sanderling.measure.machine import machine_line

SCHEMA = "sanderling.fit_workers/1"
SIZES = ((16, 4), (16, 8), (32, 7), (32, 14), (64, 14), (64, 28))  # channels, resolution
PAUSE = 2e-3
RUNS = 40  # close ones in a turn; the median of their second half counts
Run = Callable[[], None]


@dataclass(frozen=True)
class Row:
    """Nanoseconds: of a step as the compiler estimates it and as it is; of runs of `steps`."""

    kind: str
    steps: int
    estimate: float
    alone: float
    shared: float
    paused_alone: float
    paused_shared: float

    @property
    def hand_over(self) -> float:
        """What sharing a step costs beyond half of its work."""
        return self.shared - self.alone / 2

    @property
    def wake(self) -> float:
        """What waking costs a run beyond half of its work."""
        return self.paused_shared - self.paused_alone / 2

    @property
    def scale(self) -> float:
        """Estimated nanoseconds for one of this machine."""
        return self.estimate / self.alone


def share_all() -> None:
    """Every step of these networks is shared, whatever it gains."""
    division.WORK_OF_WORKER = division.WORK_OF_CHUNK = division.WORK_THAT_WAKES = 1
    division.CHUNKS_OF_WORKER, division.ALWAYS_SHARED = 1, True


def rows(seconds: float) -> Iterator[Row]:
    cases = [(kind, size, depth) for kind in ("f32", "int8") for size in SIZES for depth in (1, 12)]
    for kind, (channels, resolution), depth in cases:
        model = stack(Point(channels, resolution, depth), kind)
        inputs = feeds(model)
        sessions = [model.compile(["cpu"], threads=n) for n in (1, 2)]
        steps = sessions[0].plan().steps
        works = [w for s in steps for w in s.executable.compiled.works]  # type: ignore[attr-defined]
        runs = [_bound(s, inputs) for s in sessions]
        times = _turns(runs, seconds / len(cases))
        alone, shared, paused_alone, paused_shared = (1e9 * float(np.median(t)) for t in times)
        count = len(works)
        yield Row(
            kind,
            count,
            sum(works) / count,
            alone / count,
            shared / count,
            paused_alone,
            paused_shared,
        )


def _bound(session, inputs) -> Run:  # type: ignore[no-untyped-def]
    entry = session.entry(None)
    names = {tensor: name for name, tensor in entry.inputs.items()}
    arrays = zip(entry.graph.inputs, inputs, strict=True)
    run: Run = session.bind({names[t]: a for t, a in arrays}).run
    return run


def _turns(runs: Sequence[Run], seconds: float) -> list[list[float]]:
    """Close runs of each, then runs after pauses of each; turn by turn."""
    found: list[list[float]] = [[] for _ in range(2 * len(runs))]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or not found[-1]:
        for place, run in enumerate(runs):
            samples = [_timed(run) for _ in range(RUNS)]
            found[place].append(float(np.median(samples[RUNS // 2 :])))
            for _ in range(3):
                time.sleep(PAUSE)
                found[len(runs) + place].append(_timed(run))
    return found


def _timed(run: Run) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


@dataclass(frozen=True)
class Fit:
    """Nanoseconds of this machine, and the constants in estimated ones."""

    hand_over: float
    wake: float
    scale: float

    @property
    def constants(self) -> dict[str, int]:
        return {
            "WORK_OF_CHUNK": round(self.hand_over * self.scale),
            "WORK_THAT_WAKES": round(2 * self.wake * self.scale),
        }


def fit(found: Sequence[Row]) -> Fit:
    """Of close runs where sharing can gain at all: chains; of paused ones: single steps."""
    chains = [r for r in found if r.steps > 4]
    single = [r for r in found if r.steps <= 4]
    return Fit(
        float(np.median([r.hand_over for r in chains])),
        float(np.median([r.wake for r in single])),
        float(np.median([r.scale for r in chains])),
    )


def report(found: Sequence[Row]) -> str:
    header = ["kind", "steps", "estimate of a step, us", "alone", "shared", "hand-over",
              "run after a pause: alone, us", "shared", "wake"]  # fmt: skip
    cells = [
        [r.kind, str(r.steps)]
        + [f"{v / 1000:.2f}" for v in (r.estimate, r.alone, r.shared, r.hand_over)]
        + [f"{v / 1000:.1f}" for v in (r.paused_alone, r.paused_shared, r.wake)]
        for r in found
    ]
    made = fit(found)
    fitted = ", ".join(f"{name} = {value}" for name, value in made.constants.items())
    said = (
        f"Fitted: a hand-over costs {made.hand_over:.0f} ns, a wake {made.wake / 1000:.1f} us; the "
        f"compiler's estimate of a step is {made.scale:.2f} of its time here. Hence {fitted}."
    )
    return f"{table(header, cells)}\n\n{said}"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    share_all()
    with fresh_cache():
        found = list(rows(options.seconds))
    text = report(found)
    if options.json != "-":
        print(text)
    if options.json:
        content = {"rows": [asdict(r) for r in found], "fit": asdict(fit(found))}
        write_json(options.json, SCHEMA, content | {"constants": fit(found).constants})
    if options.write:
        target = host_target().name
        title = f"## What a worker is worth: {machine_type(target)}\n\n{machine_line()}"
        write_machine_section("fit workers", target, f"{title}\n\n{text}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20, help="for all of it, about")
    parser.add_argument("--json", metavar="FILE", help="all figures; '-' for stdout")
    parser.add_argument("--write", action="store_true", help="update benchmarks/RESULTS.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())

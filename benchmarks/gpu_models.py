"""Whole models on the GPU delegate: what it takes, and how far its answers are from the CPU's.

    python -m benchmarks.gpu_models [MODEL...] [--only WORDS] [--pictures N] [--write]

Noise goes through both delegates. A difference is given as a share of the range of the CPU's
answer, the largest over a model's outputs. `--pictures` also asks the ImageNet classifiers for the
first class of so many photos.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping
from time import perf_counter

import numpy as np

from sanderling import load
from sanderling.delegates.gpu.delegate import GpuDelegate
from sanderling.errors import SanderlingError
from sanderling.ir import Array, Model
from sanderling.measure.inputs import feeds
from sanderling.measure.machine import machine_line
from sanderling.runtime.inputs import read_picture
from sanderling.runtime.plan import Plan

from .agreement import CLASSIFIERS, pictures
from .common import model_paths, table, write_section

COLUMNS = ["model", "not taken", "ops on the device", "steps", "difference / range",
           "first class", "first run, s"]  # fmt: skip
TITLE = "## Whole models on the GPU delegate\n\n`python -m benchmarks.gpu_models --write`: "
Row = list[object]


def main() -> int:
    args = _arguments()
    rows = [_row(path.stem, load(path), args) for path in model_paths(args.models, args.only)]
    device = GpuDelegate().device().offers
    text = f"{TITLE}{device.name}, {device.platform}; {machine_line()}.\n\n"
    text += table(COLUMNS, rows, left=2)
    print(text)
    if args.write:
        write_section("gpu_models", text)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("models", nargs="*")
    parser.add_argument("--only", default="", help="words, one of which a model's name has")
    parser.add_argument("--precision", default="f32")
    parser.add_argument("--pictures", type=int, default=0, help="photos for each classifier")
    parser.add_argument("--write", action="store_true", help="into RESULTS.md")
    return parser.parse_args()


def _row(name: str, model: Model, args: argparse.Namespace) -> Row:
    print(f"{name} ...", file=sys.stderr, flush=True)
    given = dict(zip([t.name for t in model.main.inputs], feeds(model), strict=True))
    ours, theirs = model.compile([GpuDelegate(precision=args.precision), "cpu"]), model.compile()
    start = perf_counter()
    try:
        found = ours.run(given)
    except SanderlingError as error:
        return [name, error.what, "-", "-", "-", "-", "-"]
    taken = perf_counter() - start
    expected, plan = theirs.run(given), ours.plan()
    same = _pictures(name, model, args) if args.pictures else _first_class(found, expected)
    own = [part for part in plan.partition.parts if part.delegate.name == "gpu"]
    count = f"{sum(len(p.ops) for p in own)} of {len(plan.graph.ops)}"
    return [name, _refusals(plan), count, _steps(plan), f"{_difference(found, expected):.1e}",
            same, f"{taken:.1f}"]  # fmt: skip


def _steps(plan: Plan) -> int:
    found = [s.executable for s in plan.steps if s.part.delegate.name == "gpu"]
    return sum(len(getattr(executable, "launches", ())) for executable in found)


def _refusals(plan: Plan) -> str:
    """Operators with the first reason against each."""
    counts = Counter(op.name for op in plan.partition.refusals)
    reasons = {op.name: r[0].reason for op, r in reversed(plan.partition.refusals.items())}
    return "; ".join(f"{n} {name}: {reasons[name]}" for name, n in counts.items())


def _difference(found: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """The largest, as a share of the range of the output that it is in."""
    shares = [0.0]
    for name, answer in expected.items():
        a, b = np.asarray(found[name], np.float64), np.asarray(answer, np.float64)
        if b.size:
            shares.append(float(np.abs(a - b).max() / (np.ptp(b) or 1.0)))
    return max(shares)


def _first_class(found: Mapping[str, Array], expected: Mapping[str, Array]) -> str:
    """Of each output's last dimension."""
    pairs = [(np.asarray(found[name]), np.asarray(b)) for name, b in expected.items()]
    pairs = [(a, b) for a, b in pairs if b.ndim and b.size]
    equal = sum(int((a.argmax(-1) == b.argmax(-1)).sum()) for a, b in pairs)
    return f"{equal} of {sum(b.argmax(-1).size for _, b in pairs)}"


def _pictures(name: str, model: Model, args: argparse.Namespace) -> str:
    """On how many photos both name the same class first."""
    if name not in CLASSIFIERS:
        return "-"
    how, _ = CLASSIFIERS[name]
    ours, theirs = model.compile([GpuDelegate(precision=args.precision), "cpu"]), model.compile()
    (tensor,), equal = model.main.inputs, 0
    photos = list(pictures(args.pictures))
    for file, _ in photos:
        given = {tensor.name: read_picture(file, tensor, how)}
        answers = [next(iter(s.run(given).values())).argmax() for s in (ours, theirs)]
        equal += int(answers[0] == answers[1])
    return f"{equal} of {len(photos)} photos"


if __name__ == "__main__":
    sys.exit(main())

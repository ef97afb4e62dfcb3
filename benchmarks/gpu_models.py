"""Whole models on the GPU delegate: what it takes, and how far its answers are from the CPU's.

    python -m benchmarks.gpu_models [MODEL...] [--only WORDS] [--device N] [--pictures N] [--write]

Noise goes through both delegates. `--pictures` also asks the ImageNet classifiers for the first
class of so many photos. `--device`: as `sanderling devices` numbers them.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter

import numpy as np

from sanderling import load
from sanderling.delegates.gpu.delegate import GpuDelegate
from sanderling.delegates.gpu.executable import GpuExecutable
from sanderling.delegates.gpu.passes.float_view import HYBRID
from sanderling.delegates.gpu.passes.stored import is_codes, real_values
from sanderling.errors import SanderlingError
from sanderling.ir import Array, Model
from sanderling.measure.inputs import feeds
from sanderling.measure.machine import machine_line
from sanderling.runtime.inputs import read_picture
from sanderling.runtime.plan import Plan
from sanderling.runtime.session import Session

from .agreement import CLASSIFIERS, pictures
from .common import model_paths, table, write_section

COLUMNS = ["model", "not taken", "ops on the device", "kernels", "difference", "first class",
           "first run, s"]  # fmt: skip
TITLE = (
    "## Whole models on the GPU delegate\n\n"
    "`python -m benchmarks.gpu_models --write`: noise through both delegates in {precision}. "
    "difference: the largest from our CPU's answer, of floats over its range, of codes in units, "
    "of other whole numbers the share that differ; models of dynamic range have float weights on "
    "the CPU, which would round inputs to 8 bits. first class: on how many of the photos, or rows "
    "of the output, both name the same one. first run: compiled, or out of the caches. "
)
Row = list[object]


def main() -> int:
    args = _arguments()
    chosen = GpuDelegate(precision=args.precision, device=args.device)
    device = chosen.device().offers
    title = TITLE.format(precision=args.precision)
    title += f"{device.name}, {device.platform}; {machine_line()}.\n\n"
    rows: list[Row] = []
    for path in model_paths(args.models, args.only):
        rows.append(_row(path, chosen, args.pictures))
        if args.write:  # after each: a run of all takes an hour
            write_section("gpu_models", title + table(COLUMNS, rows, left=2))
    print(title + table(COLUMNS, rows, left=2))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("models", nargs="*")
    parser.add_argument("--only", default="", help="words, one of which a model's name has")
    parser.add_argument("--precision", default="f32")
    parser.add_argument("--device", type=int, default=0, help="as `sanderling devices` has it")
    parser.add_argument("--pictures", type=int, default=0, help="photos for each classifier")
    parser.add_argument("--write", action="store_true", help="into RESULTS.md")
    return parser.parse_args()


def _row(path: Path, chosen: GpuDelegate, photos: int) -> Row:
    name, model = path.stem, load(path)
    print(f"{name} ...", file=sys.stderr, flush=True)
    start = perf_counter()
    ours, theirs = model.compile([chosen, "cpu"]), _with_float_weights(load(path)).compile()
    given = _given(ours, model)
    try:
        found = ours.run(given)
    except SanderlingError as error:
        return [name, error.what, "-", "-", "-", "-", "-"]
    taken = perf_counter() - start
    expected, plan = theirs.run(given), ours.plan()
    asked = photos and name in CLASSIFIERS
    same = _pictures(ours, theirs, name, photos) if asked else _first_class(found, expected)
    own = [part for part in plan.partition.parts if part.delegate.name == "gpu"]
    count = f"{sum(len(p.ops) for p in own)} of {len(plan.graph.ops)}"
    row: Row = [name, _refusals(plan), count, _kernels(plan), _difference(ours, found, expected),
                same, f"{taken:.1f}"]  # fmt: skip
    print(*row, sep=" | ", file=sys.stderr, flush=True)
    return row


def _with_float_weights(model: Model) -> Model:
    """Of a model of dynamic range: CPUs round what is multiplied with stored codes to 8 bits, which
    a device does not."""
    graph = model.main
    for op in graph.ops:
        stored = [(i, t) for i, t in enumerate(op.inputs) if t is not None and t.is_constant]
        is_hybrid = op.name in HYBRID and not is_codes(op.outputs[0])
        for place, tensor in stored if is_hybrid else ():
            if is_codes(tensor):
                real = graph.constant(f"{tensor.name}/real", real_values(tensor))
                graph.set_input(op, place, real)
    return model


def _given(session: Session, model: Model) -> dict[str, Array]:
    """Noise by the names that the session takes."""
    made = dict(zip(model.main.inputs, feeds(model), strict=True))
    return {name: made[tensor] for name, tensor in session.entry(None).inputs.items()}


def _kernels(plan: Plan) -> int:
    found = [s.executable for s in plan.steps if s.part.delegate.name == "gpu"]
    return sum(len(e.recipe.calls) for e in found if isinstance(e, GpuExecutable))


def _refusals(plan: Plan) -> str:
    """Operators with the first reason against each."""
    counts = Counter(op.name for op in plan.partition.refusals)
    reasons = {op.name: r[0].reason for op, r in reversed(plan.partition.refusals.items())}
    return "; ".join(f"{n} {name}: {reasons[name]}" for name, n in counts.items())


def _difference(session: Session, found: Mapping[str, Array], expected: Mapping[str, Array]) -> str:
    """The largest of each kind of output."""
    largest: dict[str, float] = {}
    for name, tensor in session.entry(None).outputs.items():
        a, b = (np.asarray(answers[name], np.float64) for answers in (found, expected))
        if not b.size:
            continue
        gap = float(np.abs(a - b).max())
        if tensor.dtype.is_float:
            kind, size = "of the range", gap / (float(np.ptp(b)) or 1.0)
        elif tensor.quant is not None and tensor.quant.is_set:
            kind, size = "units", gap
        else:
            kind, size = "of all", float((a != b).mean())
        largest[kind] = max(size, largest.get(kind, 0.0))
    return ", ".join(f"{size:.2g} {kind}" for kind, size in largest.items())


def _first_class(found: Mapping[str, Array], expected: Mapping[str, Array]) -> str:
    """Of each output's last dimension."""
    pairs = [(np.asarray(found[name]), np.asarray(b)) for name, b in expected.items()]
    pairs = [(a, b) for a, b in pairs if b.ndim and b.size]
    equal = sum(int((a.argmax(-1) == b.argmax(-1)).sum()) for a, b in pairs)
    return f"{equal} of {sum(b.argmax(-1).size for _, b in pairs)} rows"


def _pictures(ours: Session, theirs: Session, name: str, count: int) -> str:
    """On how many photos both name the same class first."""
    how, _ = CLASSIFIERS[name]
    ((key, tensor),) = ours.entry(None).inputs.items()
    photos, equal = list(pictures(count)), 0
    for file, _ in photos:
        given = {key: read_picture(file, tensor, how)}
        answers = [next(iter(s.run(given).values())).argmax() for s in (ours, theirs)]
        equal += int(answers[0] == answers[1])
    return f"{equal} of {len(photos)} photos"


if __name__ == "__main__":
    sys.exit(main())

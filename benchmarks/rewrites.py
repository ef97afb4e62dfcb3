"""Which of the shared models become acceptable to an accelerator, and do they answer as before?

    python -m benchmarks.rewrites --for gpu --for edgetpu --write

Before and after: ops that the accelerator refuses, of all. Answers: the largest error as a share of
the largest value for exact rewrites, the signal-to-noise ratio for models that got another
quantisation (ranges from noise, inputs at random), executed here and by LiteRT.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path

from sanderling import SanderlingError, load
from sanderling.measure.machine import machine_line
from sanderling.rewrites.answers import Answers, compare_answers
from sanderling.rewrites.driver import Rewritten, rewrite

from .common import SHARED, table, write_section

ACCELERATORS = ("gpu", "edgetpu")
COLUMNS = ["model", "for", "refused before", "after", "rewrites", "answers here", "by LiteRT"]
RUNS = 3


def row(path: Path, for_: str) -> list[str]:
    model = load(path)
    made = rewrite(model, for_)
    counts = [f"{len(r)} of {n}" for r, n in zip((made.before, made.after), made.ops, strict=True)]
    kinds = list(dict.fromkeys(name for change in made.changes for name in change.rewrites))
    found = compare_answers(model, made, runs=RUNS) if made.changes else []
    said = [_said(made, one) for one in found] + ["-"] * (2 - len(found))
    return [path.stem, for_, *counts, ", ".join(kinds) or "-", *said]


def _said(made: Rewritten, one: Answers) -> str:
    worst = min(o.real.snr_db for o in one.outputs)
    share = max(o.real.max_error / o.real.largest if o.real.largest else 0.0 for o in one.outputs)
    text = f"off by {share:.1e}" if made.is_exact else f"{worst:.1f} dB"
    return text if not one.failed else f"{text}: NOT within bounds"


def rows(paths: Sequence[Path], accelerators: Sequence[str]) -> list[list[str]]:
    """A row for each model that is not acceptable as it is."""
    made = []
    for path in paths:
        for for_ in accelerators:
            try:
                found = row(path, for_)
            except SanderlingError as error:
                found = [path.stem, for_, "-", "-", str(error).splitlines()[0][:80], "-", "-"]
            print(" | ".join(found), flush=True)
            made.append(found)
    return [found for found in made if not found[2].startswith("0 ")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("models", nargs="*", help="parts of names; default: all")
    parser.add_argument("--for", dest="accelerators", action="append", default=[])
    parser.add_argument("--write", action="store_true", help="put the table into RESULTS.md")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    every = sorted((SHARED / "models").rglob("*.tflite"))
    paths = [p for p in every if not args.models or any(part in p.stem for part in args.models)]
    found = rows(paths, args.accelerators or ACCELERATORS)
    whole = sum(r[3].startswith("0 ") for r in found)
    text = table(COLUMNS, found, left=len(COLUMNS))
    line = f"{whole} of {len(found)} that were refused in part are taken whole after `rewrite`."
    print(f"{text}\n\n{line}")
    if args.write:
        write_section("Rewrites for accelerators", f"{machine_line()}\n\n{text}\n\n{line}\n")


if __name__ == "__main__":
    main()

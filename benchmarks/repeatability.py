"""Is the stated interval honest? The same comparison again and again, and how often runs agree.

    python -m benchmarks.repeatability [MODEL.tflite ...] [--engines sanderling,litert]
                                       [--repeats 10] [--min-secs 0.5] [--launches 5]
                                       [--json FILE] [--write]

Without paths: three of ../shared/models. Two runs agree if the ratio of each lies in the interval
of the other. All ordered pairs count: with ten runs there are 90. The bound is nine of ten.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.common import model_paths, table, write_json, write_section
from sanderling.measure.bench import bench
from sanderling.measure.bench_results import Comparison
from sanderling.measure.machine import machine_line

SCHEMA = "sanderling.repeatability/1"
BOUND = 0.9
MODELS = "mobilenet_v1_0.25,kws_drq,resnet8_cifar10_int8"


def agreement(found: Sequence[Comparison]) -> float:
    """The share of ordered pairs in which the second's ratio lies in the first's interval."""
    pairs = list(itertools.permutations(found, 2))
    return sum(a.low <= b.ratio <= a.high for a, b in pairs) / max(len(pairs), 1)


def repeat(path: Path, options: argparse.Namespace) -> dict[str, list[Comparison]]:
    """By setting, one comparison a run."""
    found: dict[str, list[Comparison]] = {}
    for number in range(options.repeats):
        made = bench(
            path,
            engines=options.engines.split(","),
            min_secs=options.min_secs,
            launches=options.launches,
            seed=number,
        )
        for one in made.comparisons:
            found.setdefault(one.setting, []).append(one)
            print(f"{path.stem}, run {number}: {one.setting} {one}", file=sys.stderr, flush=True)
    return found


def report(found: dict[str, dict[str, list[Comparison]]]) -> tuple[str, bool]:
    """The table, and whether every row keeps the bound."""
    rows, good = [], True
    for model, settings in found.items():
        for setting, runs in settings.items():
            share = agreement(runs)
            good &= share >= BOUND
            ratios = [r.ratio for r in runs]
            widths = sorted((r.high - r.low) / r.ratio for r in runs)
            rows.append(
                [
                    model,
                    setting,
                    len(runs),
                    f"{min(ratios):.3f} to {max(ratios):.3f}",
                    f"{widths[len(widths) // 2]:.0%}",
                    f"{share:.0%}",
                ]
            )
    header = ["model", "against the first", "runs", "ratios", "median width", "agree"]
    return table(header, rows, left=2), good


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    paths = model_paths(options.models, "" if options.models else MODELS)
    found = {path.stem: repeat(path, options) for path in paths}
    text, good = report(found)
    print(text)
    if options.json:
        rows = {
            m: {s: [asdict(c) for c in runs] for s, runs in by.items()} for m, by in found.items()
        }
        write_json(options.json, SCHEMA, {"comparisons": rows})
    if options.write:
        about = (
            f"{machine_line()} The same comparison {options.repeats} times over: two runs "
            "agree if the ratio of one lies in the interval of the other."
        )
        write_section("repeatability", f"## Repeatability\n\n{about}\n\n{text}")
    return 0 if good else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--engines", default="sanderling,litert")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--min-secs", type=float, default=0.5)
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument("--json", metavar="FILE", help="all comparisons; '-' for stdout")
    parser.add_argument("--write", action="store_true", help="update benchmarks/RESULTS.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())

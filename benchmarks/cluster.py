"""What do few values cost, and how small does a model zip?

    python -m benchmarks.cluster --write

ResNet-20 and a MobileNet-like network (benchmarks.mobilenet) on CIFAR-10 (10,000 test pictures),
and EfficientNet-Lite0 (200 unlabelled pictures, judged on 400 others) with 32 and 16 values in each
weight: by k-means of the weights alone, by what layers read, with errors made up for, and the first
two networks trained after that, with labels. Slack: the square of errors may grow by that share
where it makes the zipped file smaller. --keep FOLDER as in benchmarks.prune.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sanderling import Schedule
from sanderling.measure.machine import machine_line
from sanderling.training.cluster import cluster

from .common import table, write_section
from .mobilenet import NAME as MOBILENET
from .prune import EFFICIENTNET, MISSING, RESNET, Bench, Kept, change_text, told

RUNS = ((RESNET, 32), (RESNET, 16), (MOBILENET, 32), (MOBILENET, 16), (EFFICIENTNET, 32),
        (EFFICIENTNET, 16))  # fmt: skip
ALONE, SAMPLES, TRAINED = "weights alone", "by samples", "trained"
DEPTHWISE, SLACK = ", 256 in depthwise layers", ", slack 0.5"
DEEP = SAMPLES + DEPTHWISE
WAYS = {RESNET: (ALONE, SAMPLES, SAMPLES + SLACK, TRAINED),
        MOBILENET: (ALONE, SAMPLES, DEEP, DEEP + SLACK, TRAINED + DEPTHWISE + SLACK),
        EFFICIENTNET: (ALONE, SAMPLES, DEEP, DEEP + SLACK)}  # fmt: skip
EPOCHS, RATE = 2, 2e-4


def run(bench: Bench, count: int, way: str) -> dict[str, Any]:
    data = None if way == ALONE else bench.own
    options: dict[str, Any] = {"count": count, "held_out": 0.0}
    if DEPTHWISE in way:
        options["depthwise_count"] = 256
    if SLACK in way:
        options["slack"] = 0.5
    if way.startswith(TRAINED):
        options |= {"labels": bench.labels, "schedule": Schedule(EPOCHS, 64, RATE, mix=0.5)}
    made, report = cluster(bench.model, data, **options)
    sizes = {"bytes_before": report.zipped_before, "bytes_after": report.zipped_after}
    return told(report) | sizes | bench.scored(made)


def results(kept: Kept) -> list[list[object]]:
    benches = {name: Bench(name, kept.nets) for name in dict.fromkeys(n for n, _ in RUNS)}
    rows: list[list[object]] = []
    for name, count in RUNS:
        for way in WAYS[name]:
            found = kept(f"{name} {count} values {way}", partial(run, benches[name], count, way))
            if found is None:
                continue
            sizes = [f"{found[k] / 1e6:.2f}" for k in ("bytes_before", "bytes_after")]
            rows.append(
                [
                    name,
                    count,
                    way,
                    *sizes,
                    f"{found['zipped']:.1%}",
                    f"{found['accuracy']:.2%}",
                    change_text(found),
                    f"{found['agreement']:.2%}",
                ]
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="a folder for results")
    parser.add_argument("--known-only", action="store_true", help="only what --keep has already")
    parser.add_argument("--write", action="store_true", help="into RESULTS.md")
    given = parser.parse_args()
    torch.set_num_threads(1)
    header = ["model", "values", "chosen by", "zipped before, MB", "after, MB", "share", "accuracy",
              "change (95 %), points", "agreement with float"]  # fmt: skip
    pieces = [
        "## Clustering",
        f"`python -m benchmarks.cluster --write`. {machine_line()}",
        f"Trained: {EPOCHS} epochs with labels, after the choice by samples. Depthwise layers stay "
        "as they are unless it says otherwise. TensorFlow's toolkit reports 32 "
        "values in MobileNetV1: 14.97 MB to 4.43 MB zipped, -1.6 points, after training.",
        table(header, results(Kept(given.keep, given.known_only)), left=3),
    ]
    if given.known_only:
        pieces.append(MISSING)
    text = "\n\n".join(pieces)
    print(text)
    if given.write:
        write_section("cluster", text)


if __name__ == "__main__":
    main()

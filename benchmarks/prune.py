"""What does pruning cost, and what does it bring?

    python -m benchmarks.prune --write [--part resnet20 --part efficientnet --part channels]

ResNet-20 on CIFAR-10 (10,000 test pictures; 10,000 others to train on): zeros of several shares and
structures, one-shot and trained. EfficientNet-Lite0: one-shot from 200 unlabelled pictures, judged
on 400 others, beside plain magnitude. Whole channels: multiplications, accuracy and measured time
here and in LiteRT, of ResNet-20, EfficientNet-Lite0 and a MobileNet-like network of our own
(benchmarks.mobilenet). --keep FOLDER keeps what each run found, so that a long benchmark can be
done in pieces: what is there is not done again.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sanderling import Schedule, load
from sanderling.evaluate.images.preprocess import PRESETS
from sanderling.evaluate.paired_statistics import paired
from sanderling.ir import Array, Model
from sanderling.measure.machine import machine_line
from sanderling.optimize.judging.latency import compare_latency
from sanderling.training.prune import prune
from sanderling.training.report import TrainingReport

from .common import SHARED, table, write_section
from .mobilenet import NAME as MOBILENET
from .mobilenet import trained

RESNET, EFFICIENTNET = "resnet20_cifar10_f32", "efficientnet_lite0_224_f32"
NETS = "nets"  # the folder of --keep with networks that were trained here
MEAN = np.array((123.675, 116.28, 103.53), np.float32)
STD = np.array((58.395, 57.12, 57.375), np.float32)
# Shares and structures of ResNet-20, with the epochs of training after the one-shot result.
RESNET_RUNS = (("50 %", 0.5, "unstructured", 2), ("80 %", 0.8, "unstructured", 2),
               ("2:4", 0.5, "2:4", 1), ("90 %", 0.9, "unstructured", 3))  # fmt: skip
EFFICIENT_RUNS = (("50 %", 0.5, "unstructured", False), ("50 %, layers differ", 0.5, "unstructured",
                  True), ("2:4", 0.5, "2:4", False))  # fmt: skip
# Share of the channels, epochs, and of the samples those that choose the best epoch.
CHANNEL_RUNS = ((RESNET, 0.25, 2, 0.02), (MOBILENET, 0.25, 4, 0.02), (MOBILENET, 0.5, 6, 0.02),
                (EFFICIENTNET, 0.125, 3, 0.1))  # fmt: skip
MISSING = "Rows of the benchmark that are not in the tables were not run this time."
RATE = {RESNET: 1e-3, MOBILENET: 1e-3, EFFICIENTNET: 2e-5}


# -- data -----------------------------------------------------------------------------------------


def cifar(split: str) -> tuple[Array, Array]:
    sys.path.insert(0, str(SHARED / "datasets"))
    from load_cifar10 import load as read  # type: ignore[import-not-found]

    pictures, labels = read(SHARED / "datasets" / "cifar10_lossless.npz", split)
    return ((pictures - MEAN) / STD).astype(np.float32), labels.astype(np.int64)


def photographs() -> tuple[Array, Array, Array]:
    """(every third picture, the others, their classes)."""
    folder = SHARED / "datasets" / "imagenet600"
    with (folder / "labels.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    tensor = load(SHARED / "models" / f"{EFFICIENTNET}.tflite").main.inputs[0]
    prepare = PRESETS["efficientnet-lite"]
    read = np.concatenate([prepare(folder / "img" / r["file"], tensor)[0] for r in rows])
    classes = np.array([int(r["class1000"]) for r in rows])
    test = np.arange(len(rows)) % 3 != 0
    return read[::3], read[test], classes[test]


def classes_of(model: Model, pictures: Array) -> Array:
    """What the model names first, by our runtime."""
    session, name = model.compile(threads=1), model.main.inputs[0].name
    found = [next(iter(session.run({name: x[None]}).values())).argmax() for x in pictures]
    return np.array(found)


Rows = list[dict[str, Any]]


# -- runs -----------------------------------------------------------------------------------------


class Kept:
    """Results by name, in a folder. known_only: what is not there is not done now."""

    def __init__(self, folder: Path | None, known_only: bool = False) -> None:
        self.folder, self.known_only = folder, known_only
        self.nets = folder / NETS if folder else None

    def __call__(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        path = self.folder / f"{name.replace(':', 'of')}.json" if self.folder else None
        if path and path.is_file():
            return dict(json.loads(path.read_text()))
        if self.known_only:
            return None
        begin = time.monotonic()
        found = make() | {"seconds": time.monotonic() - begin}
        print(name, {k: v for k, v in found.items() if not isinstance(v, list | dict)}, flush=True)
        if path:
            path.write_text(json.dumps(found))
        return found


def told(report: TrainingReport) -> dict[str, Any]:
    before, after = report.macs
    return {
        "zeros": report.zeros,
        "zipped": report.zipped_after / report.zipped_before,
        "size": report.size_after / report.size_before,
        "macs": after / before,
        "problems": len(report.problems),
    }


@dataclass
class Bench:
    """A network with its samples, its test and what it says of that, read when needed. folder:
    where networks are kept that are trained here."""

    name: str
    folder: Path | None = None

    @cached_property
    def model(self) -> Model:
        if self.name == MOBILENET:
            return load(trained(self.folder or Path(tempfile.mkdtemp()), *cifar("train")))
        return load(SHARED / "models" / f"{self.name}.tflite")

    @cached_property
    def _samples(self) -> tuple[Array, Array | None, Array, Array]:
        if self.name != EFFICIENTNET:
            return (*cifar("train"), *cifar("test"))
        own, test, truth = photographs()
        return own, None, test, truth

    @property
    def own(self) -> Array:
        return self._samples[0]

    @property
    def labels(self) -> Array | None:
        return self._samples[1]

    @cached_property
    def reference(self) -> Array:
        return classes_of(self.model, self._samples[2])

    def scored(self, made: Model) -> dict[str, Any]:
        _, _, test, truth = self._samples
        ours = classes_of(made, test)
        apart = paired(ours == truth, self.reference == truth)["difference"]
        return {
            "accuracy": float((ours == truth).mean()),
            "change": apart["value"],
            "low": apart["low"],
            "high": apart["high"],
            "agreement": float((ours == self.reference).mean()),
        }

    def run(self, latency: bool = False, **options: Any) -> dict[str, Any]:
        made, report = prune(self.model, self.own, **options)
        found = told(report) | self.scored(made)
        if latency:
            times = compare_latency(self.model, made, 1, 6.0)
            found["speed"] = {r["engine"]: r.get("speedup") for r in times}
        return found

    def run_trained(self, epochs: int, **options: Any) -> dict[str, Any]:
        """With the labels that there are."""
        batch = 16 if self.name == EFFICIENTNET else 64
        schedule = Schedule(epochs, batch, RATE[self.name], mix=0.5)
        return self.run(labels=self.labels, schedule=schedule, **options)


def resnet20(kept: Kept) -> Rows:
    bench, rows = Bench(RESNET), []
    for name, share, structure, epochs in RESNET_RUNS:
        common = {"sparsity": share, "structure": structure, "held_out": 0.02}
        ways = {
            "magnitude": partial(bench.run, method="magnitude", **common),
            "one-shot": partial(bench.run, **common),
            "trained": partial(bench.run_trained, epochs, **common),
        }
        for way, run in ways.items():
            count = epochs if way == "trained" else 0
            found = kept(f"{RESNET} {name} {way}", run)
            rows.append({"zeros": name, "way": way, "epochs": count, "found": found})
    return rows


def efficientnet(kept: Kept) -> Rows:
    bench, rows = Bench(EFFICIENTNET), []
    for name, share, structure, whole in EFFICIENT_RUNS:
        for method in ("magnitude", "one-shot"):
            run = partial(
                bench.run,
                sparsity=share,
                structure=structure,
                method=method,
                whole_model=whole,
                held_out=0.0,
            )
            found = kept(f"{EFFICIENTNET} {name} {method}", run)
            rows.append({"zeros": name, "way": method, "epochs": 0, "found": found})
    return rows


def channels(kept: Kept) -> Rows:
    rows = []
    for name, share, epochs, held_out in CHANNEL_RUNS:
        bench = Bench(name, kept.nets)
        common = {"sparsity": share, "structure": "channels", "held_out": held_out, "latency": True}
        ways = {
            "one-shot": partial(bench.run, **common),
            "trained": partial(bench.run_trained, epochs, **common),
        }
        for way, run in ways.items():
            count = epochs if way == "trained" else 0
            found = kept(f"{name} channels {share} {way}", run)
            rows.append(
                {"model": name, "share": share, "way": way, "epochs": count, "found": found}
            )
    return rows


# -- tables ---------------------------------------------------------------------------------------

HEADER = ["zeros", "way", "epochs", "zeros found", "zipped", "accuracy", "change (95 %), points",
          "agreement with float"]  # fmt: skip


def zero_table(rows: list[dict[str, Any]]) -> str:
    return table(HEADER, [_zero_row(r) for r in rows], left=2)


def _zero_row(row: dict[str, Any]) -> list[object]:
    found = row["found"]
    return [row["zeros"], row["way"], row["epochs"] or "-", f"{found['zeros']:.1%}",
            f"{found['zipped']:.1%}", f"{found['accuracy']:.2%}", change_text(found),
            f"{found['agreement']:.2%}"]  # fmt: skip


def change_text(found: dict[str, Any]) -> str:
    low, high = found["low"] * 100, found["high"] * 100
    return f"{found['change'] * 100:+.2f} ({low:+.2f} to {high:+.2f})"


def channel_table(rows: list[dict[str, Any]]) -> str:
    header = ["model", "channels gone", "way", "epochs", "size", "MACs", "accuracy",
              "change (95 %), points", "speed-up here", "speed-up in LiteRT"]  # fmt: skip
    lines = []
    for row in rows:
        found = row["found"]
        speeds = [found["speed"].get(e) for e in ("sanderling", "litert")]
        shown = ["-" if s is None else f"{s:.2f}" for s in speeds]
        lines.append(
            [
                row["model"],
                f"{row['share']:.1%}",
                row["way"],
                row["epochs"] or "-",
                f"{found['size']:.1%}",
                f"{found['macs']:.1%}",
                f"{found['accuracy']:.2%}",
                change_text(found),
                *shown,
            ]
        )
    return table(header, lines, left=3)


PARTS: dict[str, tuple[str, Callable[[Kept], Rows], Callable[[Rows], str]]] = {
    "resnet20": ("ResNet-20 on CIFAR-10, 10,000 test pictures", resnet20, zero_table),
    "efficientnet": (
        "EfficientNet-Lite0, 200 unlabelled pictures; judged on 400 others",
        efficientnet,
        zero_table,
    ),
    "channels": (
        "Whole channels (EfficientNet-Lite0 has 200 unlabelled pictures: too few to train on)",
        channels,
        channel_table,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="default: all")
    parser.add_argument("--keep", type=Path, help="a folder for results")
    parser.add_argument("--known-only", action="store_true", help="only what --keep has already")
    parser.add_argument("--write", action="store_true", help="into RESULTS.md")
    given = parser.parse_args()
    torch.set_num_threads(1)
    kept = Kept(given.keep, given.known_only)
    pieces = ["## Pruning", f"`python -m benchmarks.prune --write`. {machine_line()}"]
    for name in given.part or PARTS:
        title, run, shown = PARTS[name]
        rows = [row for row in run(kept) if row["found"] is not None]
        pieces += [f"### {title}", shown(rows)]
    if given.known_only:
        pieces.append(MISSING)
    text = "\n\n".join(pieces)
    print(text)
    if given.write:
        write_section("prune", text)


if __name__ == "__main__":
    main()

"""What does quantisation-aware training bring back? On CIFAR-10, with labels and without.

    python -m benchmarks.qat --folder DIR            # trains, a run after the other
    python -m benchmarks.qat --folder DIR --write    # writes what is there

ResNet-8 and ResNet-20 are trained on the 10,000 training pictures at hand and judged by LiteRT with
XNNPACK on the 10,000 of the test set, beside the same mode after training. A run that has been
finished is not made again: its model and figures are kept in the folder. `combined` prunes,
clusters and quantises one network, and checks the file; `speed` holds the loop against one that is
written by hand for the same network.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import sanderling
from sanderling.ir import Array, Model
from sanderling.measure.machine import machine_line
from sanderling.optimize.modes.scheme import MODES
from sanderling.optimize.quantize import quantize
from sanderling.training.constraint import Constraint
from sanderling.training.constraints.clusters import Clusters
from sanderling.training.constraints.quantisation import Quantisation
from sanderling.training.constraints.sparsity import Sparsity
from sanderling.training.loop.train import Schedule, train
from sanderling.training.qat import faithful

from .common import SHARED, table, write_section
from .quantize import CIFAR, Scores, _row, scores

NETS = {"resnet8": "mlperftiny_resnet8_cifar10_f32", "resnet20": "resnet20_cifar10_f32"}
# mode -> epochs and rate
PLANS = {"int8": (2, 2e-4), "weight-int4": (4, 1e-3), "int8x4": (4, 1e-3)}
TEACHERS = ("labels", "none")


# -- data -----------------------------------------------------------------------------------------


def pictures(name: str, split: str, count: int) -> tuple[Array, Array]:
    """As the network takes them, with their classes."""
    folder = SHARED / "datasets"
    spec = importlib.util.spec_from_file_location("cifar10", folder / "load_cifar10.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(folder / "load_cifar10.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    images, labels = module.load(folder / "cifar10_lossless.npz", split)
    mean, std = (np.array(v, np.float32) for v in CIFAR[name])
    return ((images[:count] - mean) / std).astype(np.float32), labels[:count].astype(np.int64)


def float_model(net: str) -> Model:
    return sanderling.load(SHARED / "models" / f"{NETS[net]}.tflite")


class Judge:
    """The test set, and what the float model says of it."""

    def __init__(self, net: str, count: int) -> None:
        images, self.labels = pictures(NETS[net], "test", count)
        self.images = [x[None] for x in images]
        self.float = scores(SHARED / "models" / f"{NETS[net]}.tflite", self.images, "XNNPACK")

    def row(self, path: Path) -> list[str]:
        return _row(self.given(path), self.float, self.labels)

    def given(self, path: Path) -> Scores:
        return scores(path, self.images, "XNNPACK")

    @property
    def right(self) -> str:
        return f"{np.mean(self.float.classes == self.labels):.2%}"


# -- runs -----------------------------------------------------------------------------------------


def kept(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What is in the file; made first if there is none."""
    if not path.is_file():
        print(path.stem, file=sys.stderr, flush=True)
        path.write_text(json.dumps(make(), indent=1), "utf-8")
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def post_training(net: str, mode: str, options: argparse.Namespace) -> dict[str, Any]:
    images, _ = pictures(NETS[net], "train", 200)
    if mode in MODES:
        made, _ = quantize(float_model(net), mode, list(images[:, None]))
    else:  # `quantize` does not offer it: what training starts from
        rule = Quantisation(mode)
        rule.prepared(float_model(net), [images], [])
        made = rule.started.made.model
    path = options.folder / f"{net}_{mode}_ptq.tflite"
    sanderling.save(made, path)
    return {"size": path.stat().st_size, "row": Judge(net, options.test).row(path)}


def trained(net: str, mode: str, teacher: str, options: argparse.Namespace) -> dict[str, Any]:
    images, labels = pictures(NETS[net], "train", options.train)
    epochs, rate = PLANS[mode]
    given = labels if teacher == "labels" else None
    plan = Schedule(epochs=epochs, rate=rate, batch=64, mix=0.0 if given is None else 0.5)
    stem = options.folder / f"{net}_{mode}_{teacher}"
    return run(net, [Quantisation(mode)], images, given, plan, stem, options)


def run(
    net: str,
    rules: list[Constraint],
    images: Array,
    labels: Array | None,
    plan: Schedule,
    stem: Path,
    options: argparse.Namespace,
) -> dict[str, Any]:
    begin = time.monotonic()
    found = train(
        float_model(net), images, rules, labels, schedule=plan, checkpoint=stem.with_suffix(".pt")
    )
    seconds = time.monotonic() - begin
    path = stem.with_suffix(".tflite")
    sanderling.save(found.model, path)
    test, _ = pictures(NETS[net], "test", 500)
    return {
        "size": path.stat().st_size,
        "row": Judge(net, options.test).row(path),
        "faithful": faithful(found.twin, found.model, [test]),
        "epochs": [vars(e) for e in found.epochs],
        "kept": found.kept,
        "pictures": len(images),
        "minutes": seconds / 60,
        "problems": [text for rule in rules for text in rule.problems(found.model)],
    }


HEADER = [
    "model",
    "mode",
    "trained with",
    "kB",
    "right",
    "drop, points (95 % interval)",
    "McNemar p",
    "same class as float",
    "epochs",
    "forward = file",
]


def cifar(options: argparse.Namespace) -> str:
    rows = []
    for net in options.nets:
        rows.append([net, "float", "", _size(NETS[net]), Judge(net, options.test).right, *[""] * 5])
        for mode in options.modes:
            where = options.folder / f"{net}_{mode}_ptq.json"
            plain = kept(where, lambda n=net, m=mode: post_training(n, m, options))  # type: ignore[misc]
            rows.append([net, mode, "(post-training)", _kb(plain), *plain["row"][:4], "", ""])
            for teacher in options.teachers:
                name = options.folder / f"{net}_{mode}_{teacher}.json"
                if options.write and not name.is_file():
                    continue
                found = kept(name, lambda n=net, m=mode, t=teacher: trained(n, m, t, options))  # type: ignore[misc]
                rows.append(_trained_row(net, mode, teacher, found))
    return (
        "### Quantisation-aware training on CIFAR-10\n\n"
        f"{options.train} training pictures, {options.test} pictures of the test set. Trained with "
        "labels: half cross entropy, half distillation; with none: distillation alone. *Forward = "
        "file*: shares of equal outputs and of equal first classes of the forward pass in training "
        "and the written file on our runtime, 500 test pictures. Judged by LiteRT with XNNPACK.\n\n"
        f"{table(HEADER, rows, 3)}\n\n{machine_line()}"
    )


def _trained_row(net: str, mode: str, teacher: str, found: dict[str, Any]) -> list[str]:
    near = found["faithful"]
    return [
        net,
        mode,
        teacher,
        _kb(found),
        *found["row"][:4],
        str(len(found["epochs"])),
        f"{near['equal']:.2%}, {near['same_class']:.1%}",
    ]


def _kb(found: dict[str, Any]) -> str:
    return f"{found['size'] / 1e3:.0f}"


def _size(name: str) -> str:
    return f"{(SHARED / 'models' / f'{name}.tflite').stat().st_size / 1e3:.0f}"


# -- combined -------------------------------------------------------------------------------------


def combined(options: argparse.Namespace) -> str:
    """Prune 50 %, 16 clusters and int8, in one run."""
    name = options.folder / "resnet20_pcqat.json"
    found = kept(name, lambda: _combined(options))
    rows = [["resnet20", _kb(found), f"{found['zipped'] / 1e3:.0f}", *found["row"][:4]]]
    header = ["model", "kB", "zipped kB", *HEADER[4:8]]
    checks = "\n".join(f"- {line}" for line in found["checks"])
    return (
        "### Pruned, clustered and quantised at once\n\n`[Sparsity(0.5), Clusters(16, "
        'per_channel=True), Quantisation("int8")]` on ResNet-20, with labels and distillation, '
        f"{len(found['epochs'])} epochs of {found['pictures']} pictures; the file is read again "
        f"and checked by each constraint: {len(found['problems'])} problems.\n\n"
        f"{table(header, rows)}\n\n{checks}"
    )


def _combined(options: argparse.Namespace) -> dict[str, Any]:
    import zlib

    images, labels = pictures(NETS["resnet20"], "train", options.train)
    rules: list[Constraint] = [
        Sparsity(0.5), Clusters(16, per_channel=True), Quantisation("int8"),
    ]  # fmt: skip
    plan = Schedule(epochs=5, rate=5e-4, batch=64, mix=0.5)
    stem = options.folder / "resnet20_pcqat"
    figures = run("resnet20", rules, images, labels, plan, stem, options)
    content = stem.with_suffix(".tflite").read_bytes()
    again = sanderling.load(stem.with_suffix(".tflite"))
    figures["problems"] = [text for rule in rules for text in rule.problems(again)]
    figures["zipped"] = len(zlib.compress(content, 6))
    figures["checks"] = [
        f"{type(r).__name__}: {'; '.join(r.problems(again)) or 'holds'}" for r in rules
    ]
    return figures


# -- speed ----------------------------------------------------------------------------------------


class HandWritten(torch.nn.Module):  # type: ignore[misc]
    """ResNet-20 as one would write it, with the normalisation folded, as the file has it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 16, 3, padding=1)
        blocks, width = [], 16
        for out in (16, 16, 16, 32, 32, 32, 64, 64, 64):
            blocks.append(_Block(width, out))
            width = out
        self.blocks = torch.nn.Sequential(*blocks)
        self.last = torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.blocks(F.relu(self.first(x)))
        return self.last(found.mean((2, 3)))  # type: ignore[no-any-return]


class _Block(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        step = 1 if width == out else 2
        self.one = torch.nn.Conv2d(width, out, 3, step, padding=1)
        self.two = torch.nn.Conv2d(out, out, 3, padding=1)
        self.room = out - width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = self.room // 2  # the file's shortcut: every second pixel, more channels of zeros
        aside = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, half, half)) if self.room else x
        return F.relu(aside + self.two(F.relu(self.one(x))))


def _timed(step: Callable[[], None], steps: int) -> float:
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - begin) / steps


def _loop(net: torch.nn.Module, x: torch.Tensor) -> Callable[[], None]:
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-4)
    labels = torch.arange(len(x)) % 10

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        F.cross_entropy(net(x), labels).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()

    return step


def speed(options: argparse.Namespace) -> str:
    """Steps of training, in turns: the engine's own, and loops by hand in both layouts."""
    torch.set_num_threads(1)
    images, labels = pictures(NETS["resnet20"], "train", 64 * 8 + 64)
    model = float_model("resnet20")
    plain, last = HandWritten(), HandWritten().to(memory_format=torch.channels_last)
    x = torch.from_numpy(images[:64]).permute(0, 3, 1, 2)
    ways = {
        "by hand, NCHW": _loop(plain, x.contiguous()),
        "by hand, channels last": _loop(last, x),
    }
    plan = Schedule(epochs=1, batch=64, held_out=0.1, rate=1e-4)

    def engine() -> float:
        return train(model, images, labels=labels, schedule=plan).epochs[0].seconds / 9

    engine()
    times: dict[str, list[float]] = {name: [] for name in (*ways, "sanderling.train")}
    for _ in range(options.rounds):
        for name, step in ways.items():
            times[name].append(_timed(step, 8))
        times["sanderling.train"].append(engine())
    ours = times["sanderling.train"]
    rows = []
    for name, seconds in times.items():
        ratios = [a / b for a, b in zip(seconds, ours, strict=True)]
        own, apart = 1e3 * statistics.median(seconds), statistics.median(ratios)
        rows.append([name, f"{own:.0f}", f"{apart:.2f}"])
    return (
        "### Speed of training\n\nResNet-20, batches of 64, one thread, cross entropy, Adam and "
        f"clipped gradients; {options.rounds} rounds in turns, medians. Above 1 in the last: "
        "sanderling.train is faster (its epoch's judgement on held-out samples is in its time).\n\n"
        f"{table(['loop', 'ms a step', 'time / ours'], rows)}\n\n{machine_line()}"
    )


PARTS = {"cifar": cifar, "combined": combined, "speed": speed}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--nets", nargs="*", default=list(NETS))
    parser.add_argument("--modes", nargs="*", default=list(PLANS))
    parser.add_argument("--teachers", nargs="*", default=list(TEACHERS))
    parser.add_argument("--train", type=int, default=10_000)
    parser.add_argument("--test", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5, help="of `speed`")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for name in options.parts or PARTS:
        text = PARTS[name](options)
        print(text, flush=True)
        if options.write:
            write_section(f"qat-{name}", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What does quantisation cost in accuracy? On real pictures, against other quantisers.

    python -m benchmarks.quantize --write --aeq PYTHON --tf PYTHON

EfficientNet-Lite0 on the ImageNet samples: a third of the pictures calibrates, the rest tests, each
as it is, mirrored and shifted, because 400 pictures alone say little of a tenth of a point. Ours
and the other quantisers' int8 models (PYTHON: an interpreter in which ai-edge-quantizer, or
TensorFlow, is installed) run on LiteRT's own kernels and on XNNPACK. The CIFAR-10 models go through
every mode, on pictures of the test set. A network whose channels are scaled apart, with exact
compensation, shows what corrections are for.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sanderling import load, save
from sanderling.evaluate.images.preprocess import PRESETS
from sanderling.evaluate.paired_statistics import paired, snr
from sanderling.ir import Array, Model, Signature
from sanderling.measure.machine import machine_line
from sanderling.optimize.calibration.canonical import canonical
from sanderling.optimize.correcting.equalise import regions, trade
from sanderling.optimize.correcting.linear import weighted_ops
from sanderling.optimize.judging.judge import judged
from sanderling.optimize.modes.scheme import MODES
from sanderling.optimize.quantize import quantize
from sanderling.optimize.writing.solve import SOFTMAX_REACH
from sanderling.runtime.inputs import dequantize_array, quantize_array

from .common import SHARED, table, write_section

NET = "efficientnet_lite0_224_f32"
# The mean and the standard deviation that each wants its pictures brought to.
CIFAR = {
    "resnet20_cifar10_f32": ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
    "mlperftiny_resnet8_cifar10_f32": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}
RESOLVERS = {"kernels": "BUILTIN_WITHOUT_DEFAULT_DELEGATES", "XNNPACK": "AUTO"}


@dataclass
class Scores:
    """What a model says of the test set."""

    classes: Array  # named first
    logits: Array

    def every(self, step: int) -> Scores:
        return Scores(self.classes[::step], self.logits[::step])


# -- running on LiteRT ----------------------------------------------------------------------------


def with_logits(path: Path) -> bytes:
    """The model with what its softmax reads as a second output."""
    from sanderling import dump

    model = load(path)
    output = model.main.outputs[0]
    before = output
    if output.producer is not None and output.producer.name == "DEQUANTIZE":
        before = output.producer.inputs[0] or output
    source = judged(before)
    if source not in model.main.outputs:
        model.main.outputs.append(source)
    model.signatures = []
    return bytes(dump(model))


def scores(path: Path, pictures: Iterable[Array], resolver: str) -> Scores:
    """By LiteRT; inputs are quantised where the model takes integers."""
    from ai_edge_litert import interpreter as litert

    content = with_logits(path)
    judge = litert.Interpreter(
        model_content=content,
        num_threads=2,
        experimental_op_resolver_type=getattr(litert.OpResolverType, RESOLVERS[resolver]),
    )
    judge.allocate_tensors()
    place = judge.get_input_details()[0]["index"]
    outs = [d["index"] for d in judge.get_output_details()]
    graph = load(content).main
    tensor, taken = graph.outputs[-1], graph.inputs[0]
    classes, logits = [], []
    for x in pictures:
        judge.set_tensor(place, x if taken.dtype.is_float else quantize_array(x, taken))
        judge.invoke()
        classes.append(int(judge.get_tensor(outs[0]).argmax()))
        logits.append(dequantize_array(judge.get_tensor(outs[-1]), tensor).reshape(-1))
    return Scores(np.array(classes), np.array(logits))


# -- EfficientNet-Lite0 ---------------------------------------------------------------------------


def photographs(calibrating: int) -> tuple[list[Array], list[Array], Array]:
    """(for calibration, for the test, the test's classes): every third calibrates."""
    folder = SHARED / "datasets" / "imagenet600"
    with (folder / "labels.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    tensor = load(SHARED / "models" / f"{NET}.tflite").main.inputs[0]
    prepare = PRESETS["efficientnet-lite"]
    read = [prepare(folder / "img" / row["file"], tensor)[0] for row in rows]
    test = [i for i in range(len(rows)) if i % 3]
    return (
        read[::3][:calibrating],
        [read[i] for i in test],
        np.array([int(rows[i]["class1000"]) for i in test]),
    )


VIEWS, SHIFT = 4, 8  # SHIFT in pixels


def views(picture: Array) -> list[Array]:
    """The picture, its mirror image, and both a little lower to the right."""
    edge = ((0, 0), (SHIFT, 0), (SHIFT, 0), (0, 0))
    moved = np.pad(picture, edge, "edge")[:, :-SHIFT, :-SHIFT]
    return [np.ascontiguousarray(x) for v in (picture, moved) for x in (v, v[:, :, ::-1])]


def peer(python: str, kind: str, source: Path, samples: Path, folder: Path) -> Path | None:
    """The other quantiser's model, or None with the reason on stderr."""
    target = folder / f"{kind}.tflite"
    if target.is_file():
        return target
    script = Path(__file__).with_name("quantize_peers.py")
    done = subprocess.run(
        [python, str(script), kind, str(source), str(samples), str(target)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or not target.is_file():
        print(f"{kind}: {done.stderr[-2000:]}", file=sys.stderr)
        return None
    return target


def described(model: Model, path: Path) -> Path:
    """The float model's ops and weights for a Python without this package."""
    ops, constants = [], {}
    for op in model.main.ops:
        for t in op.inputs:
            if t is not None and t.data is not None:
                constants[f"c/{t.name}"] = t.data
        attrs = {k: v for k, v in op.attrs.items() if isinstance(v, str | int | float | bool)}
        ops.append(
            {
                "name": op.name,
                "attrs": attrs,
                "shape": list(op.outputs[0].shape),
                "inputs": ["" if t is None else t.name for t in op.inputs],
                "output": op.outputs[0].name,
            }
        )
    name = json.dumps(model.main.inputs[0].name)
    stored: dict[str, Any] = {"ops": json.dumps(ops), "input": name} | constants
    np.savez(path, **stored)
    return path


def named(model: Model) -> Model:
    """With a signature, which ai-edge-quantizer asks for."""
    if not model.signatures:
        graph = model.main
        model.signatures = [
            Signature("serving_default", graph, {"x": graph.inputs[0]}, {"y": graph.outputs[0]})
        ]
    return model


# What is asked of us; the statistics are found once.
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "int8, ours": ("int8", {}),
    "int8, ours, no corrections": (
        "int8",
        {"ranges": "minmax", "weights": "max", "corrections": "none"},
    ),
    "int16x8, ours": ("int16x8", {"ranges": "minmax", "weights": "max", "corrections": "bias"}),
}


def efficientnet(options: argparse.Namespace, folder: Path) -> str:
    calibrating, test, labels = photographs(options.calibrating)
    path = SHARED / "models" / f"{NET}.tflite"
    samples = folder / "samples.npy"
    np.save(samples, np.concatenate(calibrating))
    found: dict[str, Path] = {}
    if options.aeq:
        source = folder / "float.tflite"
        save(named(load(path)), source)
        made_by = peer(options.aeq, "aeq", source, samples, folder)
        found |= {} if made_by is None else {"int8, ai-edge-quantizer": made_by}
    if options.tf:
        source = described(canonical(load(path)), folder / "graph.npz")
        made_by = peer(options.tf, "tf", source, samples, folder)
        found |= {} if made_by is None else {"int8, TensorFlow's converter": made_by}
    notes = []
    for name, (mode, how) in WAYS.items():
        found[name] = folder / f"{name}.tflite"
        told = found[name].with_suffix(".txt")
        if not found[name].is_file():
            begin, busy = time.perf_counter(), time.process_time()
            made, report = quantize(path, mode, calibrating, keep=folder / "kept.npz", **how)
            took, busy = time.perf_counter() - begin, time.process_time() - busy
            story = report.notes[0] if report.notes else ""
            told.write_text(
                f"With {len(calibrating)} pictures, {took:.0f} s ({busy:.0f} s of one "
                f"core). {story}",
                "utf-8",
            )
            save(made, found[name])
        notes += [told.read_text("utf-8")] if not how else []
    seen = [view for picture in test for view in views(picture)]
    reference = scores(path, seen, "XNNPACK")
    rows = []
    for name, file in found.items():
        # LiteRT's own kernels take long, and int16 activations are run by no others.
        for resolver in ["kernels"] if "int16" in name else RESOLVERS:
            print(name, resolver, file=sys.stderr, flush=True)
            each = 1 if resolver == "kernels" else VIEWS
            given = scores(file, seen[:: VIEWS // each], resolver)
            rows.append(
                [
                    name,
                    f"{resolver}, {each} of {VIEWS} views",
                    *_row(given, reference.every(VIEWS // each), labels),
                ]
            )
    header = [
        "model",
        "run by",
        "right",
        "drop, points (95 % interval)",
        "McNemar p",
        "same class as float",
        "logit SNR, dB",
    ]
    text = table(header, rows, 2)
    right = reference.classes == np.repeat(labels, VIEWS)
    story = (
        f"{len(test)} pictures test, each in {VIEWS} views (as it is, mirrored, both shifted "
        f"by {SHIFT} pixels); the float model has {right[::VIEWS].mean():.2%} of the pictures "
        f"right, {right.mean():.2%} of the views."
    )
    return f"### EfficientNet-Lite0\n\n{story} {' '.join(notes)}\n\n{text}"


def _row(given: Scores, wanted: Scores, labels: Array) -> list[str]:
    """Of one or several views of each picture: the interval is over pictures, views of one are no
    independent witnesses; McNemar's test is of the first views."""
    right, before = (s.classes.reshape(len(labels), -1) == labels[:, None] for s in (given, wanted))
    test = paired(right[:, 0], before[:, 0])
    ends = [-test["difference"][end] for end in ("high", "low")]
    drop = before.mean(axis=1) - right.mean(axis=1)
    if right.shape[1] > 1:
        around = 1.96 * drop.std(ddof=1) / len(drop) ** 0.5
        ends = [drop.mean() - around, drop.mean() + around]
    low, high = (100 * end for end in ends)
    return [
        f"{right.mean():.2%}",
        f"{100 * drop.mean():.2f} ({low:.2f} to {high:.2f})",
        f"{test['mcnemar']['mid']:.2f}",
        f"{np.mean(given.classes == wanted.classes):.2%}",
        f"{_heard_snr(wanted.logits, given.logits):.1f}",
    ]


def _heard_snr(wanted: Array, given: Array) -> float:
    """Of logits that a softmax makes something of; it hears none so far below the largest."""
    floor = wanted.max(axis=1, keepdims=True) - SOFTMAX_REACH / 2
    return snr(np.maximum(wanted, floor), np.maximum(given, floor))


# -- CIFAR-10 -------------------------------------------------------------------------------------


def cifar(count: int) -> tuple[Array, Array, Array]:
    """(pictures for calibration, pictures of the test set, their classes)."""
    folder = SHARED / "datasets"
    spec = importlib.util.spec_from_file_location("load_cifar10", folder / "load_cifar10.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    train, _ = module.load(folder / "cifar10_lossless.npz", "train")
    test, labels = module.load(folder / "cifar10_lossless.npz", "test")
    return train[:200], test[:count], labels[:count]


def prepared_for(name: str, pictures: Array) -> list[Array]:
    mean, std = (np.array(v, np.float32) for v in CIFAR[name])
    return [((x[None] - mean) / std).astype(np.float32) for x in pictures]


def every_mode(options: argparse.Namespace, folder: Path) -> str:
    train, test, labels = cifar(options.cifar)
    rows = []
    for name in CIFAR:
        path = SHARED / "models" / f"{name}.tflite"
        pictures, calibrating = prepared_for(name, test), prepared_for(name, train)
        reference = scores(path, pictures, "XNNPACK")
        rows.append(
            [
                name,
                "float",
                f"{path.stat().st_size / 1e3:.0f}",
                f"{np.mean(reference.classes == labels):.2%}",
                "",
                "",
                "",
                "",
            ]
        )
        for mode in (m for m in MODES if m != "float"):
            print(name, mode, file=sys.stderr, flush=True)
            made, _ = quantize(path, mode, calibrating)
            file = folder / f"{name}_{mode}.tflite"
            save(made, file)
            given = scores(file, pictures, "XNNPACK")
            rows.append(
                [name, mode, f"{file.stat().st_size / 1e3:.0f}", *_row(given, reference, labels)]
            )
    header = [
        "model",
        "mode",
        "kB",
        "right",
        "drop, points (95 % interval)",
        "McNemar p",
        "same class as float",
        "logit SNR, dB",
    ]
    return (
        f"### CIFAR-10\n\n{len(test)} pictures of the test set; 200 of the training set "
        f"calibrate. Run by LiteRT with XNNPACK.\n\n{table(header, rows, 2)}"
    )


# -- channels scaled apart ------------------------------------------------------------------------


def scaled_apart(model: Model, spread: float, seed: int = 0) -> Model:
    """The same function with channels of very different size: what a layer's outputs are
    multiplied with, the next one's weights are divided by. Only where nothing clamps at 6."""
    rng = np.random.default_rng(seed)
    copy = model.copy()
    for region in regions(copy.main):
        if all(op.attrs.get("fused_activation_function") != "RELU6" for op in region.writers):
            trade(copy.main, region, np.exp2(rng.uniform(-spread, spread, region.channels)))
    return copy


def apart(options: argparse.Namespace, folder: Path) -> str:
    train, test, labels = cifar(options.cifar)
    name = next(iter(CIFAR))
    model = canonical(load(SHARED / "models" / f"{name}.tflite"))
    pictures, calibrating = prepared_for(name, test), prepared_for(name, train)
    rows = []
    for spread in (0.0, 3.0, 6.0):
        twisted = scaled_apart(model, spread)
        path = folder / "apart.tflite"
        save(twisted, path)
        reference = scores(path, pictures, "XNNPACK")
        ways: dict[str, dict[str, Any]] = {
            "plain min/max": {"ranges": "minmax", "weights": "max", "corrections": "none"},
            "ours": {},
        }
        for way, how in ways.items():
            made, report = quantize(twisted, "int8", calibrating, **how)
            file = folder / "apart_int8.tflite"
            save(made, file)
            given = scores(file, pictures, "XNNPACK")
            kept = next((c.name for c in report.candidates if c.chosen), "")
            rows.append([f"1 to {4**spread:.0f}", way, kept, *_row(given, reference, labels)])
    header = [
        "channels' sizes",
        "way",
        "kept",
        "right",
        "drop, points (95 % interval)",
        "McNemar p",
        "same class as float",
        "logit SNR, dB",
    ]
    return (
        f"### Channels scaled apart\n\n{name} with the channels between two layers scaled by "
        f"random factors, the next layer's weights by their inverses "
        f"({len(weighted_ops(model.main))} layers, {len(regions(model.main))} regions).\n\n"
        f"{table(header, rows, 3)}"
    )


PARTS = {"efficientnet": efficientnet, "cifar": every_mode, "apart": apart}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    for name in options.parts or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            text = PARTS[name](options, Path(options.folder or folder))
        print(text, flush=True)
        if options.write:
            title = "## Quantisation\n\n" if name == next(iter(PARTS)) else ""
            write_section(f"quantize-{name}", f"{title}{text}\n\n{machine_line()}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    parser.add_argument("--calibrating", type=int, default=200, help="pictures for EfficientNet")
    parser.add_argument("--cifar", type=int, default=2000, help="pictures of CIFAR-10's test set")
    parser.add_argument("--aeq", default="", help="a Python with ai-edge-quantizer")
    parser.add_argument("--tf", default="", help="a Python with TensorFlow")
    parser.add_argument("--folder", default="", help="keeps the models, and takes those it has")
    parser.add_argument("--write", action="store_true", help="update benchmarks/RESULTS.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())

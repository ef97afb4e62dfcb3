"""Are evaluations right, and how fast are they? Every ImageNet classifier, against LiteRT.

    python -m benchmarks.evaluate --pictures 600 --write

Right: the five best classes of every picture, from the same preprocessed input, against LiteRT (for
integer models its reference kernels, which define the answer; for float models its default ones),
picture by picture. Where they differ, whether LiteRT itself holds the two for equal.

Fast: pictures a second of one process that does one thing after the other, of the default (threads
decode while the session infers), of two processes that decode for one session, of two workers, of a
Ray cluster of two nodes (--ray); and of two plain loops over LiteRT: with the same preprocessing,
by the same code, and with Pillow's own bilinear, as people write it, which gives other pixels. Over
the last three quarters of the pictures, when all processes have started; the best of some rounds in
which the ways take turns, for whatever disturbs a run makes it slower.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from sanderling import load
from sanderling.evaluate.running.evaluation import Evaluation, evaluate_task
from sanderling.evaluate.task import Ports, Sample
from sanderling.evaluate.tasks.imagenet import ImageNet
from sanderling.ir import Array
from sanderling.measure.machine import machine_line

from .common import SHARED, model_paths, table, write_section

FOLDER = SHARED / "datasets" / "imagenet600"
# How each classifier wants its pictures, where the default is not it.
CLASSIFIERS: dict[str, dict[str, Any]] = {
    "coral_mobilenet_v1_0.25_128_quant": {},
    "coral_mobilenet_v2_1.0_224_quant": {},
    "coral_tf2_mobilenet_v2_1.0_224_ptq": {},
    "darknet_tiny_imagenet_f32": {"preset": "unit"},
    "efficientnet_lite0_224_f32": {"preset": "efficientnet-lite"},
    "squeezenet_v1.0_deepcompressed_f32": {"preset": "caffe"},
}


def task_for(path: Path, **more: Any) -> ImageNet:
    return ImageNet(
        images=FOLDER / "img", labels=FOLDER / "labels.csv", **CLASSIFIERS[path.stem], **more
    )


@dataclass
class Agreement:
    """One classifier on the same inputs as LiteRT."""

    model: str
    pictures: int
    top1: float
    top5: float
    their_top1: float
    their_top5: float
    first: int  # pictures with the same first class
    five: int  # with the same five classes in the same order
    tied: int  # of those that differ: LiteRT's scores of the exchanged classes are equal
    apart: list[str] = field(default_factory=list)  # differ, and no tie


def interpreter(path: Path, reference: bool, threads: int = 1) -> Any:
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    kind = OpResolverType.BUILTIN_REF if reference else OpResolverType.AUTO
    made = Interpreter(str(path), experimental_op_resolver_type=kind, num_threads=threads)
    made.allocate_tensors()
    return made


def judge(path: Path) -> Callable[[Array], Array]:
    """LiteRT's scores of an input."""
    engine = interpreter(path, not load(path).main.inputs[0].dtype.is_float)
    place = engine.get_input_details()[0]["index"]
    out = engine.get_output_details()[0]["index"]

    def scores(array: Array) -> Array:
        engine.set_tensor(place, array)
        engine.invoke()
        return np.array(engine.get_tensor(out).reshape(-1))

    return scores


def opened(path: Path, pictures: int) -> tuple[ImageNet, list[Sample]]:
    task = task_for(path)
    task.open(Ports.of(load(path)))
    return task, list(task.samples())[:pictures]


def judged(path: Path, pictures: int, part: slice) -> list[Array]:
    """LiteRT's scores of a part of the pictures; its reference kernels use one processor."""
    task, samples = opened(path, pictures)
    scores = judge(path)
    return [scores(input_of(task, s)) for s in samples[part]]


def input_of(task: ImageNet, sample: Sample) -> Array:
    feeds = task.preprocess(sample).feeds
    assert isinstance(feeds, dict)
    return next(iter(feeds.values()))


PARTS = 2
FEW = 50  # pictures for which no process is started


def their_scores(path: Path, pictures: int) -> list[Array]:
    if pictures <= FEW:
        return judged(path, pictures, slice(None))
    with ProcessPoolExecutor(PARTS, get_context("spawn")) as pool:
        parts = [pool.submit(judged, path, pictures, slice(i, None, PARTS)) for i in range(PARTS)]
        found = [part.result() for part in parts]
    return [found[i % PARTS][i // PARTS] for i in range(sum(map(len, found)))]


def agreement(path: Path, pictures: int, shards: Path) -> Agreement:
    ours = evaluate_task(path, task_for(path), limit=pictures, shards=shards)
    _, samples = opened(path, pictures)
    scores = their_scores(path, pictures)
    offset = ours.metrics["offset"]["value"]
    found = Agreement(
        path.stem, len(samples), ours.metrics["top1"], ours.metrics["top5"], 0, 0, 0, 0, 0
    )
    for sample, top, theirs in zip(samples, ours.table()["top"], scores, strict=True):
        _compare(found, sample.id, top[:5], theirs, sample.truth + offset)
    found.their_top1 /= found.pictures
    found.their_top5 /= found.pictures
    return found


def _compare(found: Agreement, name: str, ours: Array, scores: Array, truth: int) -> None:
    best = np.argsort(-scores.astype(np.float64), kind="stable")[:5]
    found.their_top1 += best[0] == truth
    found.their_top5 += truth in best
    found.first += int(ours[0] == best[0])
    if np.array_equal(ours, best):
        found.five += 1
    elif np.array_equal(scores[ours], scores[best]):
        found.tied += 1
    else:
        found.apart.append(f"{name}: ours {ours.tolist()}, LiteRT {best.tolist()}")


# -- speed --------------------------------------------------------------------------------------


@dataclass
class Watch:
    """When how many pictures were done."""

    count: int
    times: list[tuple[float, int]] = field(default_factory=list)

    def __call__(self, what: str, done: int, total: int) -> None:
        self.times.append((time.perf_counter(), done))

    @property
    def rate(self) -> float:
        """Pictures a second, from the first quarter on."""
        begin = next(t for t in self.times if t[1] >= self.count / 4)
        end = self.times[-1]
        return (end[1] - begin[1]) / (end[0] - begin[0])


@dataclass
class Speed:
    model: str
    rates: dict[str, float] = field(default_factory=dict)
    same: bool = True


Prepare = Callable[[Sample], Array]


def with_pillow(path: Path) -> Prepare:
    """What people write."""
    from PIL import Image

    tensor = load(path).main.inputs[0]
    height, width = tensor.shape[1:3]

    def prepare(sample: Sample) -> Array:
        assert sample.path is not None
        with Image.open(sample.path) as picture:
            image = picture.convert("RGB")
        side = int(0.875 * min(image.size))
        left, top = (image.width - side) // 2, (image.height - side) // 2
        image = image.crop((left, top, left + side, top + side)).resize(
            (width, height), Image.Resampling.BILINEAR
        )
        pixels = np.asarray(image)
        if tensor.dtype.is_float:
            pixels = (pixels.astype(np.float32) - np.float32(127.5)) / np.float32(127.5)
        return pixels[None].astype(tensor.dtype.numpy)

    return prepare


def with_ours(path: Path) -> Prepare:
    task, _ = opened(path, 1)
    return lambda sample: input_of(task, sample)


def plain_loop(path: Path, pictures: int, prepare: Prepare) -> float:
    """One picture after the other: prepare, LiteRT, the best class. Pictures a second."""
    engine = interpreter(path, False)
    place, out = (d()[0]["index"] for d in (engine.get_input_details, engine.get_output_details))
    _, samples = opened(path, pictures)
    watch, right = Watch(pictures), 0
    for i, sample in enumerate(samples):
        watch("", i, pictures)
        engine.set_tensor(place, prepare(sample))
        engine.invoke()
        right += int(engine.get_tensor(out).argmax() == sample.truth)
    watch("", len(samples), pictures)
    return watch.rate


WAYS: dict[str, dict[str, Any]] = {
    "one process": {"decoders": 0},
    "default": {},
    "2 decoders": {"decoders": 2},
    "2 workers": {"workers": 2},
}
LOOPS = {"plain loop, same preprocessing": with_ours, "plain loop, Pillow": with_pillow}


def speed(path: Path, pictures: int, rounds: int, shards: Path, ray: str) -> Speed:
    found = Speed(path.stem)
    ways = WAYS | ({"Ray, 2 nodes": {"ray": ray}} if ray else {})
    kept: list[Evaluation] = []
    for _ in range(rounds):
        for name, means in ways.items():
            watch = Watch(pictures)
            kept.append(
                evaluate_task(
                    path, task_for(path), limit=pictures, shards=shards, progress=watch, **means
                )
            )
            found.rates[name] = max(found.rates.get(name, 0.0), watch.rate)
        for name, prepare in LOOPS.items():
            rate = plain_loop(path, pictures, prepare(path))
            found.rates[name] = max(found.rates.get(name, 0.0), rate)
    found.same = all(e.metrics == kept[0].metrics for e in kept)
    return found


@contextmanager
def cluster(wanted: bool) -> Iterator[str]:
    """The address of a local cluster of two nodes, or nothing."""
    if not wanted:
        yield ""
        return
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=head)
    made.add_node(num_cpus=1)
    ray.init(made.address, log_to_driver=False, logging_level="ERROR")
    try:
        yield made.address
    finally:
        ray.shutdown()
        made.shutdown()


# -- report -------------------------------------------------------------------------------------


def report(found: Sequence[Agreement], speeds: Sequence[Speed]) -> str:
    header = [
        "classifier",
        "pictures",
        "top-1",
        "LiteRT's",
        "top-5",
        "LiteRT's",
        "same first class",
        "same five in order",
        "differ by a tie",
        "differ",
    ]
    rows = [
        [
            f.model,
            f.pictures,
            f"{f.top1:.2%}",
            f"{f.their_top1:.2%}",
            f"{f.top5:.2%}",
            f"{f.their_top5:.2%}",
            f.first,
            f.five,
            f.tied,
            len(f.apart),
        ]
        for f in found
    ]
    parts = [
        "The same preprocessed inputs (TensorFlow Lite's preprocessing, each model's own mean "
        "and std), picture by picture. LiteRT's kernels: the reference ones for integer "
        "models, the default ones for float models.\n\n" + table(header, rows)
    ]
    if speeds:
        ways = list(speeds[0].rates)
        rows = [
            [s.model, *(f"{s.rates[w]:.1f}" for w in ways), "yes" if s.same else "NO"]
            for s in speeds
        ]
        parts.append(
            "Pictures a second, one inference thread a session, over the last three "
            "quarters of the pictures; the best of the rounds. `default`: threads decode "
            "while the session infers. The plain loops run LiteRT on one picture after "
            "the other, with the same preprocessing by the same code, or with Pillow's "
            "bilinear, which gives other pixels:\n\n"
            + table(["classifier", *ways, "figures identical"], rows)
        )
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    paths = [p for p in model_paths(options.paths, options.models) if p.stem in CLASSIFIERS]
    agreements, speeds = [], []
    with TemporaryDirectory() as folder:
        for path in paths:
            print(path.stem, file=sys.stderr, flush=True)
            agreements.append(agreement(path, options.pictures, Path(folder)))
            print("\n".join(agreements[-1].apart), file=sys.stderr, flush=True)
        if options.speed:
            with cluster(options.ray) as address:
                for path in paths:
                    print(f"{path.stem}: speed", file=sys.stderr, flush=True)
                    speeds.append(speed(path, options.speed, options.rounds, Path(folder), address))
    text = report(agreements, speeds)
    print(text)
    if options.write:
        write_section("evaluate", f"## Evaluation\n\n{machine_line()}\n\n{text}")
    return int(any(not s.same for s in speeds))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", metavar="MODEL", help="default: all shared classifiers")
    parser.add_argument("--models", default="", help="words, one of which a model's name has")
    parser.add_argument("--pictures", type=int, default=600, help="to compare with LiteRT")
    parser.add_argument("--speed", type=int, default=300, help="pictures to time; 0: none")
    parser.add_argument("--rounds", type=int, default=2, help="of timing")
    parser.add_argument("--ray", action="store_true", help="time a local Ray cluster too")
    parser.add_argument("--write", action="store_true", help="update benchmarks/RESULTS.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())

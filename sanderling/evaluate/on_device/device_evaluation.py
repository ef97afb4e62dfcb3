"""`eval imagenet|coco --device android`: TensorFlow Lite's own tool on the phone, judged as ours.

The same pictures are evaluated here first; only those that came through go to the phone, so that
the two are of the same files. The ImageNet tool tells its accuracies only; of the COCO tool every
detection is read, and both sides are judged by the same code.
"""

from __future__ import annotations

import tempfile
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...errors import InputError
from ...format import load
from ...ir import Array
from ...measure.devices import check as check_device
from ...measure.devices.android_tools import AndroidTool
from ...measure.devices.device_files import DeviceStore
from ...measure.devices.device_options import ENGINE, DeviceOptions
from ...measure.devices.eval_tools import (
    COCO,
    IMAGENET,
    ToolFigures,
    ToolSession,
    open_tool,
    read_detections,
)
from ...measure.record import Setting
from ...protobuf import encode
from ..images.preprocess import load_pipeline
from ..paired_statistics import wilson
from ..running.evaluation import Evaluation, compare_evaluations
from ..running.shards import SampleOutcome
from ..task import Metrics, Ports, Prediction, Sample, Task
from ..tasks.classify import TOP
from ..tasks.coco import Coco
from ..tasks.imagenet import ImageNet

READ_THERE = (".jpg", ".jpeg")  # what the tools decode
OFFSET = 1  # what the COCO tool adds to a class
NO_PERCENTILES = (
    "the tool tells no percentiles: of its latencies the median is the mean, p5 and p95 are the "
    "extremes"
)


@dataclass
class DeviceEvaluation(Evaluation):
    """An evaluation that a device did. stages: latencies as it told them."""

    facts: dict[str, str] = field(default_factory=dict)
    stages: dict[str, Any] = field(default_factory=dict)

    def latency(self) -> dict[str, Any]:
        return self.stages

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"device": self.facts}


class SentPictures(NamedTuple):
    """What the device evaluates, and its names there."""

    samples: Sequence[Sample]
    links: Sequence[str]


class DeviceTask(ABC):
    """A task as its tool on the device does it."""

    tool: AndroidTool

    @abstractmethod
    def check(self) -> None:
        """What the tool cannot do is said before any work."""

    @abstractmethod
    def files(self, here: Evaluation, sent: SentPictures) -> dict[str, bytes]:
        """By flag, the files that it needs beside the model and the pictures."""

    @abstractmethod
    def result(
        self, here: Evaluation, figures: ToolFigures, sent: SentPictures
    ) -> tuple[Metrics, list[Prediction] | None]:
        """Figures, and predictions where the tool tells them."""

    @abstractmethod
    def compare(self, there: DeviceEvaluation, here: Evaluation) -> Metrics: ...

    @abstractmethod
    def lines(self, compared: Metrics) -> list[str]:
        """The comparison for people."""

    def flags(self) -> dict[str, str]:
        return {}


def device_task(task: Task) -> DeviceTask:
    for kind, made in _KINDS.items():
        if type(task) is kind:
            return made(task)
    raise InputError(
        f"TensorFlow Lite has no tool for the task '{task.name}'",
        where="--device",
        fix=f"it has tools for {' and '.join(kind.name for kind in _KINDS)}",
    )


@dataclass
class DeviceEvaluator:
    """A device with a task's tool, ready; the model fits."""

    session: ToolSession
    model: Path
    task: Task
    own: DeviceTask
    setting: Setting

    def evaluate(self, here: Evaluation) -> DeviceEvaluation:
        """On the pictures that came through here."""
        begin = time.perf_counter()
        show, folder = self.session.options.progress, self.session.folder
        samples, _ = here.came_through
        store = DeviceStore(self.session.adb, show)
        pictures = store.send([s.file for s in samples])
        (model,) = store.link(store.send([self.model]), f"{folder}/model")
        sent = SentPictures(samples, store.link(pictures, f"{folder}/images"))
        flags = {
            "model_file": f"{folder}/model/{model}",
            "ground_truth_images_path": f"{folder}/images",
            **self._send(self.own.files(here, sent)),
            **self.own.flags(),
        }
        show("run", 0, 1)
        figures = self.session.run(flags)
        if figures.runs != len(samples):
            raise InputError(
                f"the tool evaluated {figures.runs} of {len(samples)} pictures",
                where=self.session.adb.name,
                fix="look at its log: run it by hand with the same flags",
            )
        metrics, predictions = self.own.result(here, figures, sent)
        return DeviceEvaluation(
            here.model,
            here.digest,
            self.task,
            replace(self.setting, engine=ENGINE, device=self.session.adb.name),
            list(samples),
            _outcomes(len(samples), predictions),
            metrics,
            time.perf_counter() - begin,
            0.0,
            0,
            [*figures.delegation, NO_PERCENTILES],
            {"device": self.session.adb.name},
            facts=self.session.facts,
            stages={
                "preprocess": figures.latency("pre_processing_latency").to_json(),
                "inference": figures.latency("inference_latency").to_json(),
            },
        )

    def _send(self, files: Mapping[str, bytes]) -> dict[str, str]:
        """Small files of this run only."""
        places = {flag: f"{self.session.folder}/{flag}" for flag in files}
        with tempfile.TemporaryDirectory(prefix="sanderling-") as folder:
            for flag, content in files.items():
                (Path(folder) / flag).write_bytes(content)
                self.session.adb.push(Path(folder) / flag, places[flag])
        return places

    def compare(self, there: DeviceEvaluation, here: Evaluation) -> Metrics:
        return self.own.compare(there, here)


@contextmanager
def device_evaluator(
    device: str, model: Path, task: Task, setting: Setting, options: DeviceOptions
) -> Iterator[DeviceEvaluator]:
    """Find the device and its tool, and check that the task is one for it."""
    check_device(device)
    if device == "ios":
        raise InputError(
            "TensorFlow Lite has no evaluation tools for iOS",
            where="--device",
            fix="evaluate on Android, or here",
        )
    own = device_task(task)
    task.open(Ports.of(load(model)))
    own.check()
    with open_tool(device.partition(":")[2], own.tool, setting, options) as session:
        yield DeviceEvaluator(session, model, task, own, setting)


def _outcomes(count: int, predictions: Sequence[Prediction] | None) -> list[SampleOutcome]:
    if predictions is None:
        return [SampleOutcome(index) for index in range(count)]
    return [SampleOutcome(index, p) for index, p in enumerate(predictions)]


def _check_input(ports: Ports) -> None:
    shape = ports.input.shape
    if len(shape) != 4 or shape[0] != 1 or shape[3] != 3:
        raise InputError(
            f"the tool feeds pictures of three colours, one at a time, not {ports.input.type_text}",
            where=ports.model,
            fix="evaluate it here",
        )


def _check_pictures(samples: Sequence[Sample]) -> None:
    other = [s.file for s in samples if s.file.suffix.lower() not in READ_THERE]
    if other:
        raise InputError(
            "TensorFlow Lite's tool decodes JPEG only",
            where=str(other[0]),
            fix="convert the pictures to .jpg, and evaluate those on both sides",
        )


def _check_pipeline(task: ImageNet | Coco, usual: Any) -> None:
    if task.pipeline != usual:
        raise InputError(
            "the tool on the device has a preprocessing of its own, which is not the one that is "
            "asked for",
            where="--preset",
            fix="leave out --preset, --mean, --std and the others that change it",
        )


# -- ImageNet -------------------------------------------------------------------------------------


@dataclass
class _DeviceImageNet(DeviceTask):
    task: ImageNet
    tool = IMAGENET

    def check(self) -> None:
        _check_input(self.task.ports)
        _check_pipeline(self.task, load_pipeline("tflite"))
        if self.task.classes < TOP:
            raise InputError(
                f"the tool wants {TOP} classes at least, the model has {self.task.classes}",
                where="--device",
                fix="evaluate it here",
            )
        _check_pictures(self.task.samples())

    def files(self, here: Evaluation, sent: SentPictures) -> dict[str, bytes]:
        """The tool compares names, and takes pictures by the order of theirs: classes are called
        by number, and labels are in the order of the links."""
        offset = int(here.metrics["offset"]["value"])
        pairs = zip(sent.links, sent.samples, strict=True)
        truth = sorted((link, int(sample.truth) + offset) for link, sample in pairs)
        return {
            "ground_truth_labels": _lines(number for _, number in truth),
            "model_output_labels": _lines(range(self.task.classes)),
        }

    def result(
        self, here: Evaluation, figures: ToolFigures, sent: SentPictures
    ) -> tuple[Metrics, None]:
        top = figures.own["topk_accuracy_metrics"]["topk_accuracies"]
        count = len(sent.samples)
        right = [round(share * count) for share in top]
        kept = {name: here.metrics[name] for name in ("classes", "labels", "offset")}
        return {
            "top1": right[0] / count,
            "top5": right[4] / count,
            "topk": [n / count for n in right],
            "right": right,
            "intervals": {f"top{k}": list(wilson(right[k - 1], count)) for k in (1, 5)},
            **kept,
            "worst_classes": [],
            "confusions": [],
        }, None

    def compare(self, there: DeviceEvaluation, here: Evaluation) -> Metrics:
        """The tool tells no picture's class: only the sums can be compared."""
        return {
            name: {
                "device": there.metrics[name],
                "here": here.metrics[name],
                "difference": there.metrics[name] - here.metrics[name],
            }
            for name in ("top1", "top5")
        }

    def lines(self, compared: Metrics) -> list[str]:
        return [
            f"{name}: {100 * c['difference']:+.2f} points against {c['here']:.2%} here"
            for name, c in compared.items()
        ]


def _lines(values: Any) -> bytes:
    return "".join(f"{value}\n" for value in values).encode()


# -- COCO -----------------------------------------------------------------------------------------


@dataclass
class _DeviceCoco(DeviceTask):
    task: Coco
    tool = COCO

    def check(self) -> None:
        if self.task.reading.name != "ssd":
            raise InputError(
                f"the tool reads boxes, classes, scores and count, the model has a head "
                f"'{self.task.reading.name}'",
                where="--device",
                fix="evaluate it here",
            )
        _check_input(self.task.ports)
        _check_pipeline(self.task, self.task.usual())
        _check_pictures(self.task.samples())

    def flags(self) -> dict[str, str]:
        return {"debug_mode": "true"}  # it tells what was found in each picture

    def files(self, here: Evaluation, sent: SentPictures) -> dict[str, bytes]:
        """Annotations in the tool's counting of classes, which is the model's and one more."""
        classes = {c: k + OFFSET for k, c in self.task.class_map.ids.items() if c is not None}
        most = max(self.task.class_map.ids, default=0) + OFFSET
        truth = self.task.truth
        given = {"model_output_labels": _lines(range(most + 2))}
        if truth is None:
            return given
        seen = {s.id: p for s, p in zip(*here.came_through, strict=True)}
        by_image: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for annotation in truth.annotations:
            by_image[annotation["image_id"]].append(annotation)
        results = []
        for sample, link in zip(*sent, strict=True):
            size = (1.0, 1.0) if truth.in_parts else self.task.size_of(sample.data, seen[sample.id])
            objects = [
                _object(a["bbox"], size, classes.get(a["category_id"], most + 1))
                for a in by_image[sample.data]
            ]
            results.append({"objects": objects, "image_name": link, "image_id": sample.data})
        content = encode("ObjectDetectionGroundTruth", {"detection_results": results})
        return given | {"ground_truth_proto": content}

    def result(
        self, here: Evaluation, figures: ToolFigures, sent: SentPictures
    ) -> tuple[Metrics, list[Prediction]]:
        found = read_detections(figures.text)
        _, ours = here.came_through
        predictions = [
            self._prediction(found.get(link, []), p["size"])
            for link, p in zip(sent.links, ours, strict=True)
        ]
        judge = replace(self.task, save_results=None)  # that file is of the run here
        judge.open(self.task.ports)
        made = judge.metric(sent.samples, predictions)
        told = figures.own.get("average_precision_metrics", {})
        return made | {"tool_mAP": told.get("overall_mean_average_precision")}, predictions

    def _prediction(self, objects: Sequence[Mapping[str, float]], size: Any) -> Prediction:
        ids = [self.task.class_map.category(int(o["Class-ID"]) - OFFSET) for o in objects]
        kept = [(o, i) for o, i in zip(objects, ids, strict=True) if i is not None]
        sides = ("Left", "Top", "Right", "Bottom")
        found = [[o[f"Normalized {side}"] for side in sides] for o, _ in kept]
        boxes: Array = np.array(found, np.float64).reshape(-1, 4)
        if self.task.reading.clip if self.task.clip is None else self.task.clip:
            boxes = np.clip(boxes, 0, 1)
        return {
            "boxes": boxes,
            "scores": np.array([o["Score"] for o, _ in kept], np.float64),
            "categories": np.array([i for _, i in kept], np.int64),
            "size": size,
            "uncounted": len(objects) - len(kept),
        }

    def compare(self, there: DeviceEvaluation, here: Evaluation) -> Metrics:
        return compare_evaluations(there, here)

    def lines(self, compared: Metrics) -> list[str]:
        return self.task.compared_lines(compared)


def _object(box: Sequence[float], size: Sequence[float], number: int) -> dict[str, Any]:
    (x, y, width, height), (rows, columns) = box, size
    edges = {
        "top": y / rows,
        "bottom": (y + height) / rows,
        "left": x / columns,
        "right": (x + width) / columns,
    }
    return {"class_id": number, "bounding_box": edges}


_KINDS: dict[type[Task], Callable[[Any], DeviceTask]] = {
    ImageNet: _DeviceImageNet,
    Coco: _DeviceCoco,
}

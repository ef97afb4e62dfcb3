"""Object detection, measured as COCO does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ...errors import InputError
from ...files import numpy_reader
from ...format import write_atomic
from ...ir import Array
from ...runtime.inputs import picture_layout
from ..bootstrap import Curves, compared, compared_line
from ..images.pixels import find_images
from ..images.preprocess import Frame, Pipeline
from ..task import (
    Metrics,
    Ports,
    Prediction,
    Prepared,
    Sample,
    register_task,
    setting,
    stage_metrics,
)
from .average_precision import THRESHOLDS, Simple, simple_average_precision
from .categories import ClassMap, LabelFile, map_classes
from .coco_metrics import (
    BOX_ROWS,
    Record,
    Truth,
    as_results,
    evaluate_official,
    find_engine,
    read_results,
    summary,
)
from .detection import (
    SSD_ORDER,
    BoxLimits,
    Candidates,
    Head,
    Scene,
    class_count,
    find_head,
    named_count,
    overlaps,
    select,
    unplace,
)
from .image_task import ImageTask, check_folder

SURE = 0.3  # a score at which a detector is usually believed


@register_task
@dataclass(kw_only=True)
class Coco(ImageTask):
    """Object detection: the twelve figures of COCO, computed by pycocotools.

    Models with TFLite_Detection_PostProcess (boxes, classes, scores, count) are read as they are;
    raw heads are decoded (--head) and suppressed (--nms-iou). Prints the lines of pycocotools and
    those of TensorFlow Lite's tool.
    """

    name: ClassVar[str] = "coco"
    in_threads: ClassVar[bool] = True
    headline: ClassVar[str] = "AP"
    figures: ClassVar[tuple[str, ...]] = (
        *(row.name for row in BOX_ROWS), "simple_mAP", "pictures", "detections",
        "uncounted_detections", "annotations", "simple_AP.THRESHOLD", "by_category.NAME.AP",
        "by_category.NAME.AP50",
    )  # fmt: skip

    images: Path | None = setting(
        "--ground_truth_images_path", default=None, help="The folder of pictures."
    )
    annotations: Path | None = setting(
        "--ground_truth_proto",
        default=None,
        help="COCO's JSON, or the ground_truth.pb of TensorFlow Lite's tool. Without it, boxes are "
        "found and not judged.",
    )
    labels: Path | None = setting(
        "--model_output_labels",
        default=None,
        help="The model's classes, one a line; ??? for numbers not in use.",
    )
    class_offset: int | None = setting(
        default=None, help="Added to a class for its line in the labels, or its category's id."
    )
    head: str = setting(
        default="auto", help="How boxes are given: auto, ssd, ssd-raw, yolox, yolov5, yolov8."
    )
    output_order: str = setting(
        default="",
        help="Of an ssd head, where it is unusual: "
        "boxes,classes,scores,count in the model's order.",
    )
    anchors: Path | None = setting(
        default=None,
        help="Of an ssd-raw head: a .npy of rows (y, x, height, width), in parts of the input.",
    )
    score_threshold: float | None = setting(default=None, help="Least score of a raw head's boxes.")
    nms_iou: float | None = setting(default=None, help="Boxes that overlap more are one object.")
    max_boxes: int | None = setting(default=None, help="Boxes kept of a picture, of a raw head.")
    every_class: bool | None = setting(default=None, help="A raw box may be of several classes.")
    clip: bool | None = setting(
        default=None, help="Cut boxes at the picture's edges. Default: as the head's own tools do."
    )
    evaluator: str = setting(
        default="auto",
        help="pycocotools, or faster-coco-eval, which agrees "
        "to about 15 digits. Default: the first that is installed.",
    )
    results: Path | None = setting(
        default=None, help="Judge these COCO results (JSON); no model runs."
    )
    save_results: Path | None = setting(
        default=None, help="Write what was found as COCO results (JSON)."
    )
    debug_mode: bool = setting(
        "--debug_mode", default=False, help="Print what was found in each picture."
    )

    def __post_init__(self) -> None:
        if self.save_results is not None and not self.save_results.parent.is_dir():
            raise InputError(
                f"cannot write: there is no folder '{self.save_results.parent}'",
                where=str(self.save_results),
                fix="check the path",
            )

    # -- what is there ----------------------------------------------------------------------

    @cached_property
    def truth(self) -> Truth | None:
        return Truth.read(self.annotations) if self.annotations is not None else None

    def samples(self) -> list[Sample]:
        """The annotated pictures; without annotations, those of the folder."""
        if self.images is None:
            raise InputError(
                "no pictures are given",
                where="--images",
                fix="give the folder of pictures, or --results FILE",
            )
        if self.truth is None:
            files = find_images(self.images)
            return [Sample(p.name, path=p, data=i + 1) for i, p in enumerate(files)]
        check_folder(self.images, self.truth.file_names, self.annotations)
        find_engine(self.evaluator)  # what is missing or does not fit is said before any work
        if self.is_open:
            _ = self.class_map
        return [
            Sample(name, path=self.images / name, data=number)
            for number, name in self.truth.file_names.items()
        ]

    # -- one picture ------------------------------------------------------------------------

    def open(self, ports: Ports) -> None:
        (width, height), _, _ = picture_layout(ports.input)
        self.scene = Scene((height, width), self._order(), self._anchors())
        outputs = list(ports.outputs.values())
        self.reading: Head = find_head(self.head, outputs, self.scene.size, ports.model)
        self.limits = self._limits(self.reading)
        super().open(ports)

    def usual(self) -> Pipeline:
        return self.reading.pipeline

    def _order(self) -> tuple[str, ...]:
        order = tuple(n.strip() for n in self.output_order.split(",")) if self.output_order else ()
        if order and sorted(order) != sorted(SSD_ORDER):
            raise InputError(
                f"'{self.output_order}' is not {','.join(SSD_ORDER)} in some order",
                where="--output-order",
                fix="name each of the four once",
            )
        return order

    def _anchors(self) -> Array | None:
        if self.anchors is None:
            return None
        with numpy_reader(
            self.anchors, "not readable anchors", "save an array [n, 4] with np.save"
        ):
            made = np.load(self.anchors, allow_pickle=False)
            return np.asarray(made, np.float64).reshape(-1, 4)

    def _limits(self, head: Head) -> BoxLimits:
        given: dict[str, Any] = {
            "score": self.score_threshold,
            "iou": self.nms_iou,
            "count": self.max_boxes,
            "every_class": self.every_class,
        }
        return replace(head.limits, **{n: v for n, v in given.items() if v is not None})

    def preprocess(self, sample: Sample) -> Prepared:
        return Prepared(*self.prepare(sample))

    def postprocess(self, sample: Sample, outputs: list[Array], context: Frame) -> Prediction:
        found = self.reading.read(outputs, self.scene)
        if isinstance(found, Candidates):
            found = select(found, self.limits)
        ids = [self.class_map.category(int(c)) for c in found.classes]
        kept = np.array([i is not None for i in ids], bool)
        boxes = unplace(found.boxes[kept], context)
        if self.reading.clip if self.clip is None else self.clip:
            boxes = np.clip(boxes, 0, 1)
        return {
            "boxes": boxes,
            "scores": found.scores[kept],
            "categories": np.array([i for i in ids if i is not None], np.int64),
            "size": list(context.source),
            "uncounted": int((~kept).sum()),
        }

    @cached_property
    def class_map(self) -> ClassMap:
        labels = LabelFile.read(self.labels) if self.labels is not None else None
        count_of = class_count if labels is None else named_count
        classes = count_of(self.reading, list(self.ports.outputs.values()))
        if self.truth is not None:
            return map_classes(self.truth, labels, self.class_offset, classes)
        count = len(labels.names) if labels is not None else classes or 91
        offset = 1 if self.class_offset is None else self.class_offset
        return ClassMap({c: c + offset for c in range(count)})

    # -- all of them ------------------------------------------------------------------------

    def metric(self, samples: Sequence[Sample], predictions: Sequence[Prediction]) -> Metrics:
        sizes = {s.data: p["size"] for s, p in zip(samples, predictions, strict=True)}
        rows = self._rows(samples, predictions)
        if self.save_results is not None:
            write_atomic(self.save_results, json.dumps(rows).encode())
        metrics: Metrics = {
            "pictures": len(samples),
            "detections": len(rows),
            "uncounted_detections": sum(p["uncounted"] for p in predictions),
            "head": self.reading.name,
        }
        if self.truth is not None:
            metrics |= self._judge(self.truth.sized(sizes), rows, sizes)
            metrics["notes"] = [*metrics["notes"], *self.class_map.notes]
        if self.debug_mode:
            metrics["found"] = {s.id: _shown(p) for s, p in zip(samples, predictions, strict=True)}
        return metrics

    def _rows(self, samples: Sequence[Sample], predictions: Sequence[Prediction]) -> list[Record]:
        return [
            row
            for s, p in zip(samples, predictions, strict=True)
            for row in as_results(
                s.data, p["boxes"], p["scores"], p["categories"], self.size_of(s.data, p)
            )
        ]

    def size_of(self, image: int, prediction: Prediction) -> Sequence[float]:
        """Annotations are in pixels of the size that they state; a copy may have another."""
        stated = self.truth.images[image] if self.truth is not None else {}
        if stated.get("height") and stated.get("width"):
            return stated["height"], stated["width"]
        return prediction["size"]

    def _judge(self, truth: Truth, rows: list[Record], images: Any) -> Metrics:
        found = evaluate_official(truth, rows, images, engine=self.evaluator)
        wanted = [a for a in truth.annotations if a["image_id"] in images]
        simple = simple_average_precision(wanted, rows)
        names = {int(c["id"]): str(c["name"]) for c in truth.categories}
        return {
            **found.figures(),
            "evaluator": found.engine,
            "by_category": {names[c]: v for c, v in found.by_category.items()},
            "simple_AP": simple.by_threshold,
            "simple_mAP": simple.overall,
            "annotations": len(wanted),
            "notes": list(truth.notes),
        }

    def compare(
        self, samples: Sequence[Sample], ours: Sequence[Prediction], theirs: Sequence[Prediction]
    ) -> Metrics:
        """AP of both with the interval of their difference, and how far they find the same."""
        same = [agreement(a, b) for a, b in zip(ours, theirs, strict=True)]
        made: Metrics = {"agreement": sum(n for n, _ in same) / max(sum(n for _, n in same), 1)}
        if self.truth is not None:
            sizes = {s.data: p["size"] for s, p in zip(samples, ours, strict=True)}
            truth = self.truth.sized(sizes)
            mine, other = (
                Curves(
                    evaluate_official(
                        truth, self._rows(samples, side), sizes, engine="pycocotools"
                    ).run
                )
                for side in (ours, theirs)
            )
            made["AP"] = compared(mine, other, len(samples))
        return made

    def compared_lines(self, made: Metrics) -> list[str]:
        lines = [compared_line("AP", made["AP"])] if "AP" in made else []
        return [
            *lines,
            f"boxes of a score of {SURE:g} or more that both find: {made['agreement']:.4f}",
        ]

    def recorded(self) -> Metrics | None:
        """The figures of --results, for which no model is needed."""
        if self.results is None:
            return None
        if self.truth is None:
            raise InputError(
                "results are judged by annotations, and there are none",
                where="--annotations",
                fix="give COCO's instances_*.json",
            )
        if self.truth.in_parts:
            raise InputError(
                "these annotations have no sizes of pictures, results are in pixels",
                where=str(self.annotations),
                fix="give COCO's instances_*.json",
            )
        rows = read_results(self.results, self.truth)
        counts = {"pictures": len(self.truth.images), "detections": len(rows)}
        return counts | self._judge(self.truth, rows, self.truth.images)

    def tool_file(self, metrics: Metrics, latency: Mapping[str, Mapping[str, float]]) -> bytes:
        if "AP" not in metrics:
            return stage_metrics(latency, "object_detection_metrics", {})
        each = [
            {"iou_threshold": t, "average_precision": v}
            for t, v in zip(THRESHOLDS, metrics["simple_AP"], strict=True)
        ]
        return stage_metrics(
            latency,
            "object_detection_metrics",
            {
                "average_precision_metrics": {
                    "individual_average_precisions": each,
                    "overall_mean_average_precision": metrics["simple_mAP"],
                }
            },
        )

    def lines(self, metrics: Metrics) -> list[str]:
        lines = [
            line
            for name, found in metrics.get("found", {}).items()
            for line in _debug_lines(name, found)
        ]
        if "AP" not in metrics:
            return [*lines, f"{metrics['detections']} boxes in {metrics['pictures']} pictures"]
        simple = Simple(metrics["simple_AP"], metrics["simple_mAP"])
        notes = [f"note: {n}" for n in metrics["notes"]]
        return [*lines, *summary(metrics), *simple.lines(), *notes]


def agreement(a: Prediction, b: Prediction) -> tuple[int, int]:
    """How many boxes that one of the two is sure of the other has too; and how many there are."""
    hits = count = 0
    for one, other in ((a, b), (b, a)):
        sure = one["scores"] >= SURE
        same = one["categories"][sure][:, None] == other["categories"][None, :]
        close = overlaps(one["boxes"][sure], other["boxes"]) >= 0.5
        hits += int((same & close).any(axis=1).sum())
        count += int(sure.sum())
    return hits, count


def _shown(prediction: Prediction) -> list[Record]:
    rows = zip(prediction["categories"], prediction["scores"], prediction["boxes"], strict=True)
    return [
        {"category_id": int(c), "score": float(s), "box": [float(n) for n in b]} for c, s, b in rows
    ]


def _debug_lines(name: str, found: list[Record]) -> list[str]:
    """As TensorFlow Lite's tool shows a picture's boxes."""
    lines = ["=" * 54, "", f"Image: {name}", ""]
    for i, row in enumerate(found):
        left, top, right, bottom = row["box"]
        lines += [
            f"Object [{i}]",
            f"  Score: {row['score']:.6g}",
            f"  Class-ID: {row['category_id']}",
            "  Bounding Box:",
            f"    Normalized Top: {top:.6g}",
            f"    Normalized Bottom: {bottom:.6g}",
            f"    Normalized Left: {left:.6g}",
            f"    Normalized Right: {right:.6g}",
        ]
    return lines


def evaluate_results(
    annotations: str | Path, results: str | Path, evaluator: str = "auto"
) -> Metrics:
    """COCO's twelve figures of a results file, without a model."""
    task = Coco(annotations=Path(annotations), results=Path(results), evaluator=evaluator)
    found = task.recorded()
    assert found is not None, "results are given"
    return found

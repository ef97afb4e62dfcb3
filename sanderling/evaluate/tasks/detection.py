"""From a detector's outputs to boxes: heads, anchors, suppression of what overlaps.

`HEADS` has a row for each way in which models give boxes: what its outputs look like, how they are
read, and how pictures are prepared for such models. Boxes are (left, top, right, bottom) in parts
of the model's input until `unplace` puts them into the picture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ...errors import InputError
from ...ir import Array, Tensor
from ..images.pixels import Size
from ..images.preprocess import PRESETS, Frame, Letterbox, Normalise, Pipeline

STRIDES = (8, 16, 32)
SSD_ORDER = ("boxes", "classes", "scores", "count")
# What converters of TensorFlow 2 make of the same four, whose names are all alike.
TF2_ORDER = ("scores", "boxes", "count", "classes")
POST_PROCESS = "custom.TFLite_Detection_PostProcess"


class Detections(NamedTuple):
    boxes: Array  # float64 [n, 4]
    scores: Array  # float64 [n]
    classes: Array  # int [n], the model's own numbers


class Candidates(NamedTuple):
    """Boxes of a raw head: every one has a score for every class."""

    boxes: Array  # [n, 4]
    scores: Array  # [n, classes]


@dataclass(frozen=True)
class BoxLimits:
    """What is kept of a raw head's boxes."""

    score: float = 0.01  # low, for the precision-recall curve needs the doubtful ones as well
    iou: float = 0.65
    count: int = 300
    every_class: bool = True  # a box may stand for several classes, not for its best alone


@dataclass(frozen=True)
class Scene:
    """What reading a head may depend on besides its outputs."""

    size: Size  # of the model's input
    order: tuple[str, ...] = ()
    anchors: Array | None = None


@dataclass(frozen=True)
class Head:
    name: str
    outputs: int
    what: str  # for people
    read: Callable[[list[Array], Scene], Detections | Candidates]
    pipeline: Pipeline  # of pictures for models that have it, unless told otherwise
    limits: BoxLimits = BoxLimits()
    clip: bool = False  # boxes at the picture's edges: what the tools of such models do


# -- heads that post-process in the graph -------------------------------------------------------


def read_ssd(outputs: list[Array], scene: Scene) -> Detections:
    """TFLite_Detection_PostProcess: boxes (top, left, bottom, right), classes, scores, count."""
    found = dict(zip(scene.order or _ssd_order(outputs), outputs, strict=True))
    boxes = found["boxes"].reshape(-1, 4).astype(np.float64)
    count = min(int(found["count"].reshape(-1)[0]), len(boxes))
    classes, scores = (found[n].reshape(-1)[:count] for n in ("classes", "scores"))
    return Detections(
        boxes[:count, [1, 0, 3, 2]], scores.astype(np.float64), classes.astype(np.int64)
    )


def _ssd_order(outputs: list[Array]) -> tuple[str, ...]:
    """By where the boxes stand: names say nothing, and shapes of classes and scores are alike."""
    shapes = [list(o.shape) for o in outputs]
    with_four = [i for i, o in enumerate(outputs) if o.ndim >= 2 and o.shape[-1] == 4]
    order = {0: SSD_ORDER, 1: TF2_ORDER}.get(with_four[0]) if with_four else None
    sizes = [o.size for o in outputs]
    if (
        order is None
        or sizes[order.index("count")] != 1
        or (sizes[order.index("classes")] != sizes[order.index("scores")])
    ):
        raise InputError(
            f"four outputs of shapes {', '.join(map(str, shapes))} are not boxes "
            "[1,n,4], classes [1,n], scores [1,n] and a count [1]",
            where="outputs",
            fix="say their order: --output-order boxes,classes,scores,count",
        )
    return order


# -- raw heads ----------------------------------------------------------------------------------


@lru_cache(8)
def cells(size: Size, strides: Sequence[int] = STRIDES) -> tuple[Array, Array]:
    """(x, y) of every cell of the grids, finest first, row by row; and its stride."""
    places, steps = [], []
    for stride in strides:
        rows, columns = size[0] // stride, size[1] // stride
        y, x = np.mgrid[:rows, :columns]
        places.append(np.stack([x.ravel(), y.ravel()], axis=1))
        steps.append(np.full(rows * columns, stride))
    return np.concatenate(places).astype(np.float64), np.concatenate(steps).astype(np.float64)


def read_yolox(outputs: list[Array], scene: Scene) -> Candidates:
    """[1, cells, 5 + classes]: offset in the cell, log of the size, objectness, classes."""
    rows = _rows(outputs[0])
    places, strides = cells(scene.size)
    if len(rows) != len(places):
        raise _misfit(
            outputs[0],
            f"an input of {scene.size[0]}x{scene.size[1]} has {len(places)} "
            "cells at strides 8, 16 and 32",
        )
    centre = (rows[:, :2] + places) * strides[:, None]
    extent = np.exp(np.minimum(rows[:, 2:4], 50)) * strides[:, None]
    scores = probabilities(rows[:, 4:])
    return Candidates(_corners(centre, extent, scene.size), scores[:, :1] * scores[:, 1:])


def read_yolov5(outputs: list[Array], scene: Scene) -> Candidates:
    """[1, boxes, 5 + classes]: centre and size, objectness, classes; already decoded."""
    rows = _rows(outputs[0])
    scores = probabilities(rows[:, 4:])
    return Candidates(_scaled(rows[:, :4], scene.size), scores[:, :1] * scores[:, 1:])


def read_yolov8(outputs: list[Array], scene: Scene) -> Candidates:
    """[1, 4 + classes, boxes]: centre and size, classes; already decoded, no objectness."""
    rows = _rows(outputs[0].transpose(0, 2, 1))
    return Candidates(_scaled(rows[:, :4], scene.size), probabilities(rows[:, 4:]))


def read_anchors(outputs: list[Array], scene: Scene) -> Candidates:
    """SSD before its post-processing: boxes [1,n,4] relative to anchors, scores [1,n,classes]."""
    # Boxes have four numbers; so have scores of three classes, and then boxes come first.
    boxes, scores = sorted(outputs, key=lambda o: o.shape[-1] != 4)
    anchors = ssd_anchors(scene.size) if scene.anchors is None else scene.anchors
    rows = _rows(boxes)[:, :4]
    if len(rows) != len(anchors):
        raise _misfit(
            boxes,
            f"there are {len(anchors)} anchors for an input of {scene.size[0]}x{scene.size[1]}",
            "give the model's with --anchors FILE.npy",
        )
    centre = rows[:, :2] / 10 * anchors[:, 2:] + anchors[:, :2]
    extent = np.exp(np.minimum(rows[:, 2:] / 5, 50)) * anchors[:, 2:]
    corners = np.concatenate([centre - extent / 2, centre + extent / 2], axis=1)
    return Candidates(corners[:, [1, 0, 3, 2]], probabilities(_rows(scores))[:, 1:])


def probabilities(values: Array) -> Array:
    """Logits, which an exporter may have left as they are, through a sigmoid. A head has thousands
    of cells without an object: of logits, some are negative."""
    if values.size and (values.min() < -1e-3 or values.max() > 1 + 1e-3):
        return 1 / (1 + np.exp(-np.clip(values, -50, 50)))
    return values


def _rows(output: Array) -> Array:
    return output.reshape(-1, output.shape[-1]).astype(np.float64)


def _corners(centre: Array, extent: Array, size: Size) -> Array:
    scale = np.array([size[1], size[0]], np.float64)
    return np.concatenate([(centre - extent / 2) / scale, (centre + extent / 2) / scale], axis=1)


def _scaled(rows: Array, size: Size) -> Array:
    """Exports to .tflite have parts of the input, those of other formats its pixels."""
    in_parts = rows.size and rows.max() <= 2
    return _corners(rows[:, :2], rows[:, 2:], (1, 1) if in_parts else size)


def _misfit(output: Array, why: str, fix: str = "choose another --head") -> InputError:
    return InputError(f"its shape is {list(output.shape)}, but {why}", where="output", fix=fix)


# -- anchors ------------------------------------------------------------------------------------


@lru_cache(8)
def ssd_anchors(
    size: Size,
    layers: int = 6,
    smallest: float = 0.2,
    largest: float = 0.95,
    ratios: tuple[float, ...] = (1.0, 2.0, 0.5, 3.0, 0.3333),
) -> Array:
    """(y, x, height, width) of the anchors of MobileNet SSDs, as TensorFlow's detection API makes
    them: the finest layer has three shapes, each other one six."""
    step = (largest - smallest) / (layers - 1)
    scales = [smallest + step * i for i in range(layers)] + [1.0]
    made = []
    for layer, (scale, following) in enumerate(pairwise(scales)):
        shapes = [(scale, r) for r in ratios] + [(math.sqrt(scale * following), 1.0)]
        if layer == 0:
            shapes = [(0.1, 1.0), (scale, 2.0), (scale, 0.5)]
        sides = np.array([(s / math.sqrt(r), s * math.sqrt(r)) for s, r in shapes])
        made.append(_tiled(_grid(size, 16 << layer), sides))
    return np.concatenate(made)


def _grid(size: Size, stride: int) -> Size:
    return math.ceil(size[0] / stride), math.ceil(size[1] / stride)


def _tiled(grid: Size, sides: Array) -> Array:
    y, x = np.mgrid[: grid[0], : grid[1]]
    centres = np.stack([(y + 0.5) / grid[0], (x + 0.5) / grid[1]], axis=-1).reshape(-1, 1, 2)
    count = len(centres), len(sides)
    return np.concatenate(
        [np.broadcast_to(centres, (*count, 2)), np.broadcast_to(sides, (*count, 2))], axis=2
    ).reshape(-1, 4)


# -- suppression --------------------------------------------------------------------------------


def overlaps(some: Array, others: Array) -> Array:
    """[some, others]: intersection over union."""
    low = np.maximum(some[:, None, :2], others[None, :, :2])
    high = np.minimum(some[:, None, 2:], others[None, :, 2:])
    shared = np.prod(np.maximum(high - low, 0), axis=2)
    total = _area(some)[:, None] + _area(others)[None, :] - shared
    return np.divide(shared, total, out=np.zeros_like(shared), where=total > 0)


def _area(boxes: Array) -> Array:
    return np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0), axis=1)


def select(found: Candidates, limits: BoxLimits) -> Detections:
    """The boxes above the least score; of boxes of one class that overlap, the best one."""
    near = np.nonzero(found.scores.max(axis=1, initial=0) > limits.score)[0]  # few of thousands
    boxes, scores = found.boxes[near], found.scores[near]
    if limits.every_class:
        rows, classes = np.nonzero(scores > limits.score)
    else:
        rows, classes = np.arange(len(near)), scores.argmax(axis=1)
    values = scores[rows, classes]
    kept = suppress(boxes[rows], values, classes, limits)
    return Detections(boxes[rows[kept]], values[kept], classes[kept])


def suppress(boxes: Array, scores: Array, classes: Array, limits: BoxLimits) -> Array:
    """Places of the boxes that stay, best first; equal scores in the given order."""
    groups = (np.nonzero(classes == c)[0] for c in np.unique(classes))
    kept = [_best_of(group, boxes, scores, limits) for group in groups]
    places = np.sort(np.concatenate([np.empty(0, np.intp), *kept]))
    return places[np.argsort(-scores[places], kind="stable")][: limits.count]


def _best_of(places: Array, boxes: Array, scores: Array, limits: BoxLimits) -> Array:
    """Return the places of the boxes of one class that stay, at most `count` of them."""
    waiting = places[np.argsort(-scores[places], kind="stable")]
    kept: list[int] = []
    while waiting.size and len(kept) < limits.count:
        best, waiting = waiting[0], waiting[1:]
        kept.append(int(best))
        waiting = waiting[overlaps(boxes[[best]], boxes[waiting])[0] <= limits.iou]
    return np.array(kept, np.intp)


def unplace(boxes: Array, frame: Frame) -> Array:
    """Convert boxes from parts of the model's input to parts of the picture."""
    (height, width), (rows, columns) = frame.target, frame.source
    scale = np.array([width * frame.scale[1], height * frame.scale[0]] * 2, np.float64)
    origin = np.array([frame.origin[1], frame.origin[0]] * 2, np.float64)
    return (boxes * scale + origin) / np.array([columns, rows] * 2, np.float64)


# -- the table ----------------------------------------------------------------------------------

_YOLO = Pipeline((Letterbox(centre=True), Normalise((0.0,), (255.0,))), "yolo")
HEADS: dict[str, Head] = {
    h.name: h
    for h in (
        Head(
            "ssd",
            4,
            "boxes, classes, scores and count, from TFLite_Detection_PostProcess",
            read_ssd,
            PRESETS["resize"],
        ),
        Head(
            "ssd-raw",
            2,
            "boxes [1,n,4] relative to anchors, scores [1,n,1+classes]",
            read_anchors,
            PRESETS["resize"],
            BoxLimits(0.01, 0.6, 100),
        ),
        Head(
            "yolox",
            1,
            "[1,n,5+classes], n cells at strides 8, 16, 32; offsets and log sizes",
            read_yolox,
            PRESETS["yolox"],
        ),
        Head(
            "yolov5",
            1,
            "[1,n,5+classes], decoded: centre, size, objectness, classes",
            read_yolov5,
            _YOLO,
            BoxLimits(0.001, 0.6, 300),
            clip=True,
        ),
        Head(
            "yolov8",
            1,
            "[1,4+classes,n], decoded: centre, size, classes",
            read_yolov8,
            _YOLO,
            BoxLimits(0.001, 0.7, 300),
            clip=True,
        ),
    )
}


def find_head(name: str, outputs: Sequence[Tensor], size: Size, model: str) -> Head:
    """The head of this name, or by the outputs' number and shapes."""
    if name == "auto":
        return _guess(outputs, size, model)
    if name not in HEADS:
        raise InputError(
            f"there is no head '{name}'",
            where="--head",
            fix=f"the heads are {', '.join(HEADS)}, or auto",
        )
    head = HEADS[name]
    if len(outputs) != head.outputs:
        raise InputError(
            f"the head '{name}' has {head.outputs} outputs ({head.what}), the model "
            f"{len(outputs)}: {_listed(outputs)}",
            where=model,
            fix="choose another --head, or leave it out",
        )
    return head


def _guess(outputs: Sequence[Tensor], size: Size, model: str) -> Head:
    if len(outputs) == 4:
        return HEADS["ssd"]
    shapes = [t.shape for t in outputs]
    if len(shapes) == 2 and all(len(s) == 3 for s in shapes) and 4 in [s[-1] for s in shapes]:
        return HEADS["ssd-raw"]
    if len(shapes) == 1 and len(shapes[0]) == 3:
        count = len(cells(size)[0])
        kinds = {(1, count): "yolox", (1, 3 * count): "yolov5", (2, count): "yolov8"}
        for (axis, boxes), name in kinds.items():
            if shapes[0][axis] == boxes:
                return HEADS[name]
    heads = "; ".join(f"{h.name}: {h.what}" for h in HEADS.values())
    ones = "its output is that" if len(outputs) == 1 else f"its {len(outputs)} outputs are those"
    raise InputError(
        f"{ones} of no known detector: {_listed(outputs)}",
        where=model,
        fix=f"say which with --head ({heads})",
    )


def _listed(outputs: Sequence[Tensor]) -> str:
    return ", ".join(f"'{t.name}' {t.type_text}" for t in outputs)


def class_count(head: Head, outputs: Sequence[Tensor]) -> int | None:
    """Real classes, where the outputs' shapes say it."""
    shapes = [t.shape for t in outputs]
    rules: dict[str, Callable[[list[Any]], int]] = {
        "ssd-raw": lambda s: max(x[-1] for x in s) - 1,
        "yolox": lambda s: s[0][2] - 5,
        "yolov5": lambda s: s[0][2] - 5,
        "yolov8": lambda s: s[0][1] - 4,
    }
    return rules[head.name](shapes) if head.name in rules and all(shapes) else None


def named_count(head: Head, outputs: Sequence[Tensor]) -> int | None:
    """Classes that a file of names must have: also where only the operator states how many, for
    names that are too few are wrong for most of them."""
    from ...ops.custom import detection_options  # all operators come with it

    found = [
        detection_options(t.producer)["num_classes"]
        for t in outputs
        if t.producer is not None and t.producer.name == POST_PROCESS
    ]
    return class_count(head, outputs) or (int(found[0]) if found else None) or None

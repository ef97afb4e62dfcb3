"""What a model found in one picture, for people: boxes, masks, keypoints or classes.

`KINDS` has a row for each kind of model whose outputs are understood: how it is recognised, how
pictures are prepared for it, and what its outputs say. image_drawing.py puts that onto the picture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ...ir import Array, Tensor
from ...runtime.inputs import picture_layout
from ..images.preprocess import PRESETS, Frame, Letterbox, Pipeline
from ..task import Ports
from .categories import LabelFile
from .classify import top
from .detection import Candidates, Head, Scene, find_head, named_count, select, unplace
from .keypoints import COCO_KEYPOINTS, WIDTH_OF_MULTIPOSE, read_points
from .segmentation import VOC, restored

SURE = 0.3  # boxes and people below are not shown
SEEN = 0.2  # keypoints below are not shown
TOP = 5
LEAST_AREA = 0.001  # of the picture: a class with fewer pixels is not named


@dataclass
class Findings:
    """rows: what was found, for a table and for JSON. The rest is for the drawing."""

    kind: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    mask: Array | None = None  # the class of each of the picture's pixels
    points: Array | None = None  # [people, keypoints, (x, y, score)]
    hidden: int = 0  # found with too small a score


@dataclass(frozen=True)
class OutputReader:
    """Reads the outputs of one model."""

    kind: str
    how: str  # for people
    pipeline: Pipeline
    read: Callable[[list[Array], Frame], Findings]


@dataclass(frozen=True)
class ClassNaming:
    """Names of classes. offset: the class of the file's first name; None: it is derived."""

    labels: Path | None = None
    offset: int | None = None

    def of(self, classes: int | None) -> Callable[[int], str]:
        known = self._known(classes)
        return lambda number: known.get(number, f"class {number}")

    def _known(self, classes: int | None) -> Mapping[int, str]:
        if self.labels is None:
            return dict(enumerate(VOC)) if classes == len(VOC) else {}
        labels = LabelFile.read(self.labels)
        shift = self._shift(labels, classes)
        return {line - shift: name for line, name in labels.names.items()}

    def _shift(self, labels: LabelFile, classes: int | None) -> int:
        """What to add to a class for its line: one line more than classes, or less, is a background
        class that one of the two lacks."""
        if self.offset is not None or labels.numbered:
            return -(self.offset or 0)
        extra = max(labels.names) + 1 - classes if classes else int(labels.first_is_unused)
        if abs(extra) > 1:
            raise InputError(
                f"it has {max(labels.names) + 1} names, the model {classes} classes",
                where=labels.where,
                fix="give the names of this model's classes, or state --label-offset",
            )
        return extra


# -- one kind after the other ---------------------------------------------------------------------


def _detector(ports: Ports, names: ClassNaming) -> OutputReader:
    (width, height), _, _ = picture_layout(ports.input)
    scene = Scene((height, width))
    outputs = list(ports.outputs.values())
    _check_four(outputs, ports.model)
    head = find_head("auto", outputs, scene.size, ports.model)
    name = names.of(named_count(head, outputs))

    def read(values: list[Array], frame: Frame) -> Findings:
        return _boxes(head, values, scene, frame, name)

    return OutputReader("boxes", f"a detector ({head.name})", head.pipeline, read)


def _check_four(outputs: Sequence[Tensor], model: str) -> None:
    """Four outputs are taken for a detector's without a look at their shapes, which files often
    leave open: where they are stated, one holds boxes."""
    if len(outputs) == 4 and all(t.shape and t.shape[-1] != 4 for t in outputs):
        raise InputError("none of its four outputs holds boxes", where=model)


def _boxes(
    head: Head, values: list[Array], scene: Scene, frame: Frame, name: Callable[[int], str]
) -> Findings:
    found = head.read(values, scene)
    if isinstance(found, Candidates):
        found = select(found, head.limits)
    height, width = frame.source
    places = np.clip(unplace(found.boxes, frame), 0, 1) * [width, height, width, height]
    made = Findings("boxes")
    for place, score, number in zip(places, found.scores, found.classes, strict=True):
        made.hidden += score < SURE
        if score >= SURE:
            made.rows.append(
                {
                    "label": name(int(number)),
                    "class": int(number),
                    "score": float(score),
                    "box": [float(n) for n in place],
                }
            )
    return made


def _poser(ports: Ports, names: ClassNaming) -> OutputReader:
    shape = ports.output.shape
    single = len(shape) == 4 and shape[1] == 1 and shape[2:] == (COCO_KEYPOINTS, 3)
    if not single and not (len(shape) == 3 and shape[2] == WIDTH_OF_MULTIPOSE):
        raise InputError("its output is not keypoints", where=ports.model)
    pipeline = Pipeline((Letterbox(fill=0, centre=True),))
    return OutputReader(
        "keypoints", "a pose model (y, x, score of 17 keypoints)", pipeline, _points
    )


def _points(values: list[Array], frame: Frame) -> Findings:
    points, scores = read_points(values[0], ["y", "x", "score"], frame.target)
    scale, origin = (np.array([pair[1], pair[0]]) for pair in (frame.scale, frame.origin))
    placed = np.concatenate([points[..., :2] * scale + origin, points[..., 2:]], axis=-1)
    sure = scores >= SURE
    rows = [
        {"person": i, "score": float(s), "keypoints": [[float(n) for n in p] for p in person]}
        for i, (s, person) in enumerate(zip(scores[sure], placed[sure], strict=True))
    ]
    return Findings("keypoints", rows, points=placed[sure], hidden=int((~sure).sum()))


def _segmenter(ports: Ports, names: ClassNaming) -> OutputReader:
    output = ports.output
    shape, taken = output.shape, picture_layout(ports.input)[0]
    if len(shape) not in (3, 4) or min(shape[1:3]) < 8 or max(shape[1:3]) > 2 * max(taken):
        raise InputError("its output is not a mask", where=ports.model)
    scores = len(shape) == 4 and shape[3] > 1
    if not scores and not output.dtype.is_integer:
        raise InputError("its output is one real a pixel, not classes", where=ports.model)
    name = names.of(shape[3] if scores else len(VOC))

    def read(values: list[Array], frame: Frame) -> Findings:
        return _mask(restored(values[0], frame), name)

    return OutputReader("mask", "a segmentation model", PRESETS["resize"], read)


def _mask(mask: Array, name: Callable[[int], str]) -> Findings:
    numbers, counts = np.unique(mask, return_counts=True)
    shares = counts / mask.size
    rows = [
        {"label": name(int(n)), "class": int(n), "share": float(s)}
        for n, s in sorted(zip(numbers, shares, strict=True), key=lambda r: -r[1])
        if s >= LEAST_AREA
    ]
    return Findings("mask", rows, mask=mask, hidden=int((shares < LEAST_AREA).sum()))


def _classifier(ports: Ports, names: ClassNaming) -> OutputReader:
    shape = ports.output.shape
    if not shape or shape[-1] < 2 or any(n not in (1, -1) for n in shape[:-1]):
        raise InputError("its output is not one score a class", where=ports.model)
    name = names.of(shape[-1])

    def read(values: list[Array], frame: Frame) -> Findings:
        scores = values[0].reshape(-1)
        best = top(scores, min(TOP, scores.size))
        return Findings(
            "classes",
            [{"label": name(int(i)), "class": int(i), "score": float(scores[i])} for i in best],
        )

    return OutputReader("classes", "a classifier", PRESETS["tflite"], read)


# In this order: a pose model's output is a picture's too, and what is left is scores.
KINDS: dict[str, tuple[Callable[[Ports, ClassNaming], OutputReader], str]] = {
    "boxes": (
        _detector,
        "boxes: SSD with TFLite_Detection_PostProcess, SSD's raw head, YOLOX, YOLOv5, YOLOv8",
    ),
    "keypoints": (_poser, "keypoints: MoveNet's [1,1,17,3] or [1,n,56]"),
    "mask": (_segmenter, "masks: scores [1,height,width,classes], or classes [1,height,width]"),
    "classes": (_classifier, "classes: scores [1,classes]"),
}


def understand(ports: Ports, names: ClassNaming) -> OutputReader:
    """How this model's outputs are read; InputError where they are of no kind that is known."""
    reasons = []
    for make, _ in KINDS.values():
        try:
            return make(ports, names)
        except InputError as error:
            if error.where in (str(names.labels), "labels"):  # the kind fits, the names do not
                raise
            reasons.append(error.what.partition(":")[0])
    outputs = ", ".join(f"'{n}' {t.type_text}" for n, t in ports.outputs.items())
    known = "; ".join(what for _, what in KINDS.values())
    why = "; ".join(dict.fromkeys(reasons))
    raise InputError(
        f"its outputs are not understood ({outputs}): {why}",
        where=ports.model,
        fix=f"what can be drawn: {known}",
    )

"""Semantic segmentation: intersection over union of every class, and the share of right pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar

import numpy as np

from ...errors import InputError
from ...files import read_data
from ...ir import Array, Tensor
from ..bootstrap import compared, compared_line
from ..images.pixels import Size, find_images, image_module, resize
from ..images.preprocess import PRESETS, Frame, Pipeline
from ..task import Metrics, Ports, Prediction, Prepared, Sample, register_task, setting
from .categories import ALIASES, LabelFile, is_unused
from .coco_metrics import loosely
from .image_task import ImageTask

IGNORED = 255  # Pascal VOC's and Cityscapes' mark for pixels that do not count
VOC = ("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair",
       "cow", "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa",
       "train", "tvmonitor")  # fmt: skip
KNOWN_LABELS = {"voc": VOC}
AT = ("mask", "model")
NUMBERS = 1 << 16  # that a mask may hold


@register_task
@dataclass(kw_only=True)
class Segmentation(ImageTask):
    """Semantic segmentation: mean intersection over union, pixel accuracy, by class.

    Models give scores [1,height,width,classes] or classes [1,height,width]; masks are pictures
    whose pixels are class numbers. Where masks number their classes otherwise than the model,
    --mask-classes names them and both are matched by name, or --mapping states it.
    """

    name: ClassVar[str] = "segmentation"
    in_threads: ClassVar[bool] = True
    headline: ClassVar[str] = "mIoU"
    figures: ClassVar[tuple[str, ...]] = (
        "mIoU", "mIoU_seen", "pixel_accuracy", "mean_accuracy", "weighted_IoU", "classes",
        "classes_seen", "pictures", "by_class.NAME.IoU", "by_class.NAME.accuracy",
        "by_class.NAME.pixels",
    )  # fmt: skip

    images: Path = setting("--ground_truth_images_path", help="The folder of pictures.")
    masks: Path = setting(help="The folder of masks: PNG files named as the pictures are.")
    labels: str = setting(
        "--model_output_labels",
        default="",
        help="The model's classes: a file with one a line, or voc.",
    )
    mask_classes: Path | None = setting(
        default=None,
        help="The masks' classes: COCO's list of categories (JSON), or a file of labels.",
    )
    mapping: Path | None = setting(
        default=None,
        help="JSON: {\"a mask's number\": the model's "
        "class, or null for pixels that do not count}.",
    )
    others: str = setting(
        default="background",
        help="Pixels of classes that the model lacks: background (class 0), or ignore.",
    )
    ignore: int = setting(
        default=IGNORED, help="The number of mask pixels that do not count; -1: all count."
    )
    at: str = setting(default="mask", help="Compare at the size of the mask, or of the model.")

    def __post_init__(self) -> None:
        _choice(self.at, AT, "--at")
        _choice(self.others, ("background", "ignore"), "--others")
        if self.ignore >= NUMBERS:
            raise InputError(
                f"{self.ignore} is no mask's number",
                where="--ignore",
                fix=f"they are 0 to {NUMBERS - 1}; -1: all count",
            )

    def samples(self) -> list[Sample]:
        files = find_images(self.images)
        masks = {p.stem: p for p in find_images(self.masks)}
        if not any(p.stem in masks for p in files):
            raise InputError(
                f"no picture of {self.images} has a mask in it, such as {files[0].stem}.png",
                where=str(self.masks),
                fix="masks are named as their pictures",
            )
        return [Sample(p.name, path=p, data=masks.get(p.stem)) for p in files]

    # -- one picture ------------------------------------------------------------------------

    def open(self, ports: Ports) -> None:
        super().open(ports)
        self.classes = class_count(ports.output, ports.model)
        _ = self.table  # classes that do not fit are said before any work

    def usual(self) -> Pipeline:
        return PRESETS["resize"]

    @cached_property
    def names(self) -> list[str]:
        """Return the names of the model's classes."""
        count = self.classes
        if not self.labels:
            guess = next((n for n in KNOWN_LABELS.values() if len(n) == count), None)
            return list(guess or map(str, range(count or 256)))
        if self.labels in KNOWN_LABELS:
            names = list(KNOWN_LABELS[self.labels])
        else:
            found = LabelFile.read(Path(self.labels))
            names = [found.names.get(i, "???") for i in range(max(found.names) + 1)]
        if count and len(names) != count:
            raise InputError(
                f"{len(names)} labels, the model has {count} classes",
                where=self.labels,
                fix="give the labels of this model, the background first if it has one",
            )
        return names

    @cached_property
    def table(self) -> Array:
        """The model's class of each number in a mask; -1: it does not count."""
        other = 0 if self.others == "background" else -1
        if self.mapping is not None:
            table = np.full(NUMBERS, other)
            for number, kind in read_mapping(self.mapping).items():
                table[number] = -1 if kind is None else self._in_range(kind, str(self.mapping))
        elif self.mask_classes is not None:
            table = np.full(NUMBERS, other)
            for number, kind in match_names(
                read_classes(self.mask_classes), self.names, str(self.mask_classes)
            ).items():
                table[number] = kind
        else:
            table = np.arange(NUMBERS)
        if self.ignore >= 0:
            table[self.ignore] = -1
        return table

    def _in_range(self, kind: int, where: str) -> int:
        if not 0 <= kind < len(self.names):
            raise InputError(
                f"class {kind}: the model's classes are 0 to {len(self.names) - 1}",
                where=where,
                fix="correct the mapping",
            )
        return kind

    def preprocess(self, sample: Sample) -> Prepared:
        if sample.data is None:
            raise InputError(
                "it has no mask",
                where=sample.id,
                fix=f"put {Path(sample.id).stem}.png into {self.masks}",
            )
        feeds, frame, seconds = self.prepare(sample)
        return Prepared(feeds, (self._mask(sample.data, frame), frame), seconds)

    def _mask(self, path: Path, frame: Frame) -> Array:
        """Return the mask of a picture in the model's classes."""
        mask = self.table[read_mask(path)].astype(np.int16)
        if mask.shape != frame.source:
            raise InputError(
                f"the mask is {mask.shape[1]}x{mask.shape[0]}, the picture "
                f"{frame.source[1]}x{frame.source[0]}",
                where=str(path),
                fix="masks have their picture's size",
            )
        worst = int(mask.max(initial=0))
        if worst >= len(self.names):
            # As one sentence: it is shown where every sample fails, and the remedy is for all.
            raise InputError(
                f"it has class {worst}, the model's are 0 to {len(self.names) - 1}; "
                "--mask-classes or --mapping say how they match",
                where=str(path),
            )
        return mask

    def postprocess(
        self, sample: Sample, outputs: list[Array], context: tuple[Array, Frame]
    ) -> Prediction:
        mask, frame = context
        if self.at == "model":
            found = classes_of(outputs[0])
            mask = _nearest(mask, frame, found.shape)
        else:
            found = restored(outputs[0], frame)
        table = confusion(mask, found, len(self.names)).ravel()
        pairs = np.nonzero(table)[0]  # few of classes squared
        return {"pairs": pairs, "pixels": table[pairs]}

    # -- all of them ------------------------------------------------------------------------

    def metric(self, samples: Sequence[Sample], predictions: Sequence[Prediction]) -> Metrics:
        counted = Counted(predictions, self.names)
        return {"pictures": len(samples)} | counted.figures(np.ones(len(samples), np.int64))

    def compare(
        self, samples: Sequence[Sample], ours: Sequence[Prediction], theirs: Sequence[Prediction]
    ) -> Metrics:
        sides = [Counted(side, self.names) for side in (ours, theirs)]
        made = {}
        for name in ("mIoU", "pixel_accuracy"):
            mine, other = (partial(side.figure, name) for side in sides)
            made[name] = compared(mine, other, len(samples))
        return made

    def compared_lines(self, made: Metrics) -> list[str]:
        return [compared_line(n.replace("_", " "), made[n]) for n in ("mIoU", "pixel_accuracy")]

    def lines(self, metrics: Metrics) -> list[str]:
        shown = {
            "mIoU": "mIoU",
            "pixel accuracy": "pixel_accuracy",
            "mean accuracy": "mean_accuracy",
            "frequency-weighted IoU": "weighted_IoU",
        }
        lines = [f"{name}: {metrics[key]:.6g}" for name, key in shown.items()]
        lines[0] += f" ({metrics['classes']} annotated classes"
        more = metrics["classes_seen"] - metrics["classes"]
        lines[0] += f"; {metrics['mIoU_seen']:.6g} with {more} only found)" if more else ")"
        width = max(map(len, metrics["by_class"]), default=0)
        each = [
            f"  {n:<{width}}  IoU {v['IoU']:.4f}  {v['pixels']} pixels"
            for n, v in metrics["by_class"].items()
        ]
        return [*lines, *each]


def _choice(value: str, known: Sequence[str], option: str) -> None:
    if value not in known:
        raise InputError(f"'{value}'", where=option, fix=f"one of {', '.join(known)}")


# -- outputs ------------------------------------------------------------------------------------


def class_count(output: Tensor, model: str) -> int | None:
    """Return the number of classes of scores [1,height,width,classes]; None for classes
    [1,height,width(,1)]."""
    shape = output.shape
    if len(shape) == 4 and shape[3] > 1:
        return int(shape[3])
    if len(shape) == 3 or len(shape) == 4:
        return None
    raise InputError(
        f"its output is {output.type_text}, not scores [1,height,width,classes] or "
        "classes [1,height,width]",
        where=model,
        fix="choose the task that fits the model",
    )


def classes_of(output: Array) -> Array:
    """Return the class of each place, [height, width]."""
    picture = output[0]
    if picture.ndim == 3:
        return picture.argmax(axis=2) if picture.shape[2] > 1 else picture[..., 0].astype(np.int64)
    return picture.astype(np.int64)


def restored(output: Array, frame: Frame) -> Array:
    """Classes at the picture's size: scores are stretched before the best is chosen, so that edges
    run between the model's pixels as well."""
    picture = output[0] if output.ndim == 4 else output[0][..., None]
    inner = picture[_inside(frame, picture.shape)]
    if inner.shape[2] > 1:
        return _best_class(inner.astype(np.float32), frame.source)
    rows, columns = (_centres(n, m) for n, m in zip(frame.source, inner.shape, strict=False))
    return inner[rows][:, columns, 0].astype(np.int64)


def _best_class(scores: Array, size: Size) -> Array:
    """Class by class: all of them at a picture's size would not stay in the processor's cache."""
    best = resize(scores[..., :1], size, "bilinear")[..., 0]
    found = np.zeros(size, np.int64)
    for number in range(1, scores.shape[2]):
        rival = resize(scores[..., number : number + 1], size, "bilinear")[..., 0]
        ahead = rival > best
        found[ahead] = number
        np.copyto(best, rival, where=ahead)
    return found


def _inside(frame: Frame, shape: Sequence[int]) -> tuple[slice, slice]:
    """The part of the output that shows the picture, not what a letterbox filled in."""
    slices = []
    for axis in (0, 1):
        step = frame.scale[axis] * frame.target[axis] / shape[axis]  # of the picture's pixels
        first = round(-frame.origin[axis] / step)
        # Down, as a letterbox rounds the size of what it holds; but not for a float's last digit.
        last = int((frame.source[axis] - frame.origin[axis]) / step + 1e-6)
        slices.append(slice(max(first, 0), max(min(last, shape[axis]), 1)))
    return slices[0], slices[1]


def _centres(count: int, source: int) -> Array:
    """Which of `source` cells the middle of each of `count` lies in."""
    return ((np.arange(count) + 0.5) * source / count).astype(np.intp)


def _nearest(mask: Array, frame: Frame, shape: Sequence[int]) -> Array:
    """The mask where the model's pixels look; -1 where they see no picture."""
    made = np.full(tuple(shape), -1, np.int16)
    rows, columns = _inside(frame, shape)
    inner = (rows.stop - rows.start, columns.stop - columns.start)
    taken = mask[_centres(inner[0], mask.shape[0])][:, _centres(inner[1], mask.shape[1])]
    made[rows, columns] = taken
    return made


# -- masks --------------------------------------------------------------------------------------


def read_mask(path: Path) -> Array:
    """Class numbers [height, width]: grey, palette or 16-bit pictures."""
    image = image_module()
    try:
        with image.open(path) as picture:
            bands = picture.getbands()
            pixels = np.asarray(picture)
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise InputError(
            f"not a readable mask: {error}", where=str(path), fix="check that the file is complete"
        ) from error
    if pixels.ndim != 2:
        raise InputError(
            f"a mask in colours ({''.join(bands)}), which are no class numbers",
            where=str(path),
            fix="save masks as grey or palette PNG",
        )
    numbers = pixels.astype(np.int64)
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < NUMBERS:
        raise InputError(
            f"a mask with the number {numbers.max()}",
            where=str(path),
            fix=f"class numbers are 0 to {NUMBERS - 1}",
        )
    return numbers


def read_mapping(path: Path) -> dict[int, int | None]:
    fix = 'write {"mask number": class, ...}'
    record = read_data(path, "the mapping", fix)
    try:
        return {_number(k): None if v is None else int(v) for k, v in record.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise InputError(f"not a mapping: {error}", where=str(path), fix=fix) from error


def _number(value: str | int) -> int:
    if not 0 <= int(value) < NUMBERS:
        raise ValueError(f"{value} is no mask's number, they are 0 to {NUMBERS - 1}")
    return int(value)


def read_classes(path: Path) -> dict[int, str]:
    """Names of the masks' numbers: COCO's categories, or a list of labels."""
    if path.suffix.lower() != ".json":
        return LabelFile.read(path).names
    fix = 'write [{"id": 1, "name": "person"}, ...]'
    record = read_data(path, "the classes", fix)
    try:
        rows = record["categories"] if isinstance(record, dict) else record
        return {_number(c["id"]): str(c["name"]) for c in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"not a list of classes: {error}", where=str(path), fix=fix) from error


def match_names(theirs: Mapping[int, str], ours: Sequence[str], where: str) -> dict[int, int]:
    """Classes of a model by the masks' numbers, for names that both know."""
    known = {_canonical(n): i for i, n in enumerate(ours)}
    found = {number: known[_canonical(n)] for number, n in theirs.items() if _canonical(n) in known}
    if not any(not is_unused(ours[i]) for i in found.values()):
        raise InputError(
            f"none of its classes is one of the model's: {', '.join(ours[:5])}, ...",
            where=where,
            fix="state --labels, or how they match: --mapping FILE",
        )
    return found


def _canonical(name: str) -> str:
    plain = loosely(name)
    return ALIASES.get(plain, plain)


# -- figures ------------------------------------------------------------------------------------


def confusion(truth: Array, found: Array, classes: int) -> Array:
    """[classes, classes] pixels: rows are the truth. Where the truth is -1 nothing counts."""
    if found.size and not 0 <= int(found.min()) <= int(found.max()) < classes:
        raise InputError(
            f"the model found class {int(found.max())}, the labels are 0 to {classes - 1}",
            where="labels",
            fix="give the labels of this model",
        )
    counts = truth >= 0
    pairs = truth[counts].astype(np.int64) * classes + found[counts]
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


class Counted:
    """Pixels of all pictures by (truth, found), for pictures that count as often as wanted."""

    def __init__(self, predictions: Sequence[Prediction], names: Sequence[str]) -> None:
        self.names = names
        self.pairs = np.concatenate([p["pairs"] for p in predictions]).astype(np.intp)
        self.pixels = np.concatenate([p["pixels"] for p in predictions]).astype(np.int64)
        self.home = np.repeat(np.arange(len(predictions)), [len(p["pairs"]) for p in predictions])

    def figures(self, weights: Array) -> Metrics:
        size = len(self.names)
        total = np.zeros(size * size, np.int64)
        np.add.at(total, self.pairs, self.pixels * weights[self.home])
        return figures(total.reshape(size, size), self.names)

    def figure(self, name: str, weights: Array) -> float:
        return float(self.figures(weights)[name])


def figures(total: Array, names: Sequence[str]) -> Metrics:
    """mIoU is the mean over annotated classes; mIoU_seen has those that were only found as well,
    each of them a 0."""
    hits, truth, found = np.diag(total), total.sum(axis=1), total.sum(axis=0)
    union = truth + found - hits
    seen, there = union > 0, truth > 0
    iou = np.divide(hits, union, out=np.zeros(len(hits)), where=seen)
    recall = np.divide(hits, truth, out=np.zeros(len(hits)), where=there)
    whole = max(int(truth.sum()), 1)
    return {
        "mIoU": _mean(iou[there]),
        "mIoU_seen": _mean(iou[seen]),
        "pixel_accuracy": float(hits.sum() / whole),
        "mean_accuracy": _mean(recall[there]),
        "weighted_IoU": float((iou * truth).sum() / whole),
        "classes": int(there.sum()),
        "classes_seen": int(seen.sum()),
        "by_class": {
            names[i]: {"IoU": float(iou[i]), "accuracy": float(recall[i]), "pixels": int(truth[i])}
            for i in range(len(names))
            if seen[i]
        },
    }


def _mean(values: Array) -> float:
    return float(values.mean()) if values.size else 0.0

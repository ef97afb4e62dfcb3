"""Keypoints of people, hands, faces: COCO's figures by object keypoint similarity, and PCK."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ...errors import InputError
from ...ir import Array
from ...runtime.inputs import picture_layout
from ..bootstrap import Curves, Figure, compared, compared_line
from ..images.pixels import Size
from ..images.preprocess import Frame, Letterbox, Pipeline, Resize, Transform, numbers
from ..paired_statistics import paired
from ..task import Metrics, Ports, Prediction, Prepared, Sample, register_task, setting
from .coco_metrics import KEYPOINT_ROWS, Record, Truth, evaluate_official, find_engine, summary
from .image_task import ImageTask, check_folder

LOOKS = ("person", "picture")
NORMS = ("box", "torso")
TORSO = (5, 6, 11, 12)  # COCO's shoulders and hips
COCO_KEYPOINTS = 17
MOST_TESTS = 5  # keypoints that are told of two models; the record has all
WIDTH_OF_MULTIPOSE = 56  # 17 of (y, x, score), a box, its score


@dataclass(frozen=True)
class ImageRegion(Transform):
    """A part of the picture, which may reach beyond its edges: there it is filled."""

    do: ClassVar[str] = "region"
    top: int
    left: int
    height: int
    width: int
    fill: float = 0

    def apply(self, frame: Frame) -> None:
        rows, columns = frame.size
        made = np.full(
            (self.height, self.width, frame.pixels.shape[2]), self.fill, frame.pixels.dtype
        )
        top, left = max(self.top, 0), max(self.left, 0)
        bottom = max(min(self.top + self.height, rows), top)
        right = max(min(self.left + self.width, columns), left)
        made[top - self.top : bottom - self.top, left - self.left : right - self.left] = (
            frame.pixels[top:bottom, left:right]
        )
        frame.padded(made, -self.top, -self.left)


def around(box: Sequence[float], size: Size, margin: float) -> ImageRegion:
    """A box (left, top, width, height), larger by the margin, in the proportions of a size."""
    left, top, width, height = box
    middle = top + height / 2, left + width / 2
    unit = max(height / size[0], width / size[1], 1e-6) * margin
    tall, wide = (max(1, round(n * unit)) for n in size)
    return ImageRegion(round(middle[0] - tall / 2), round(middle[1] - wide / 2), tall, wide)


@register_task
@dataclass(kw_only=True)
class Keypoints(ImageTask):
    """Keypoints: COCO's ten figures by object keypoint similarity, and PCK.

    Models give coordinates (MoveNet's [1,1,17,3]: y, x, score) or one heatmap a keypoint
    [1,height,width,keypoints]. They look at each annotated person, or at whole pictures.
    """

    name: ClassVar[str] = "keypoints"
    in_threads: ClassVar[bool] = True
    headline: ClassVar[str] = "AP"
    figures: ClassVar[tuple[str, ...]] = (
        *(row.name for row in KEYPOINT_ROWS), "PCK", "PCK_at", "pictures", "people",
        "PCK_by_keypoint.NAME",
    )  # fmt: skip

    images: Path = setting("--ground_truth_images_path", help="The folder of pictures.")
    annotations: Path = setting(help="COCO's person_keypoints_*.json.")
    look: str = setting(
        default="person",
        help="At each annotated person (cut out by the annotated box), or at the whole picture.",
    )
    margin: float = setting(default=1.25, help="How much larger than its box a person is cut out.")
    fields: str = setting(
        default="y,x,score",
        help="What coordinates are made of, such as x,y or x,y,z,score,presence.",
    )
    keypoint_order: str = setting(
        default="",
        help="The model's keypoint for each annotated one: 0,2,1,...; default: the same.",
    )
    sigmas: str = setting(
        default="", help="Spread of each keypoint, or one for all; default: COCO's for its 17."
    )
    pck: float = setting(default=0.2, help="PCK: at most this far away, in parts of the size.")
    pck_size: str = setting(default="box", help="That size: box (its longer side), or torso.")
    evaluator: str = setting(default="auto", help="pycocotools or faster-coco-eval.")

    def __post_init__(self) -> None:
        for value, known, option in (
            (self.look, LOOKS, "--look"),
            (self.pck_size, NORMS, "--pck-size"),
        ):
            if value not in known:
                raise InputError(f"'{value}'", where=option, fix=f"one of {', '.join(known)}")
        if not {"x", "y"} <= set(self.field_names):
            raise InputError(
                f"'{self.fields}' has no x and y",
                where="--fields",
                fix="name what a keypoint's numbers are, such as y,x,score",
            )

    @property
    def field_names(self) -> list[str]:
        return [n.strip() for n in self.fields.split(",")]

    # -- what is there ----------------------------------------------------------------------

    @cached_property
    def truth(self) -> Truth:
        found = Truth.read(self.annotations)
        if not any(_annotated(a) for a in found.annotations):
            raise InputError(
                "no annotation in it has keypoints",
                where=str(self.annotations),
                fix="give COCO's person_keypoints_*.json, not instances_*.json",
            )
        filled = [_with_count(a) for a in found.annotations if "keypoints" in a]
        return replace(found, annotations=filled)

    @property
    def people(self) -> list[Record]:
        """Return the annotated people that count: neither crowds nor people without a keypoint."""
        return [a for a in self.truth.annotations if _annotated(a) and not a["iscrowd"]]

    @cached_property
    def count(self) -> int:
        """Annotated keypoints of a person."""
        sizes = {len(a["keypoints"]) for a in self.people}
        if len(sizes) != 1 or sizes.copy().pop() % 3:
            raise InputError(
                f"annotations have {', '.join(map(str, sorted(sizes)))} numbers for "
                "their keypoints",
                where=str(self.annotations),
                fix="each has x, y, visibility of every keypoint",
            )
        return sizes.pop() // 3

    def samples(self) -> list[Sample]:
        names = self.truth.file_names
        check_folder(self.images, names, self.annotations)
        find_engine(self.evaluator)  # what is missing is said before any work
        _ = self._sigmas()
        if self.look == "picture":
            return [Sample(n, path=self.images / n, data=(i, None)) for i, n in names.items()]
        return [
            Sample(
                f"{names[a['image_id']]}#{a['id']}",
                path=self.images / names[a["image_id"]],
                data=(a["image_id"], a["bbox"]),
            )
            for a in self.people
            if a["image_id"] in names
        ]

    # -- one picture ------------------------------------------------------------------------

    def open(self, ports: Ports) -> None:
        super().open(ports)
        (width, height), _, _ = picture_layout(ports.input)
        self.size = height, width

    def usual(self) -> Pipeline:
        if self.look == "person":
            return Pipeline((Resize(how="bilinear"),))
        return Pipeline((Letterbox(fill=0, centre=True),))

    def preprocess(self, sample: Sample) -> Prepared:
        _, box = sample.data
        first = () if box is None else (around(box, self.size, self.margin),)
        return Prepared(*self.prepare(sample, *first))

    def postprocess(self, sample: Sample, outputs: list[Array], context: Frame) -> Prediction:
        points, scores = read_points(outputs[0], self.field_names, context.target)
        points = self._ordered(points)
        where = np.array([context.scale[1], context.scale[0]])
        origin = np.array([context.origin[1], context.origin[0]])
        return {
            "points": np.concatenate([points[..., :2] * where + origin, points[..., 2:]], -1),
            "scores": scores,
        }

    def _ordered(self, points: Array) -> Array:
        if self.keypoint_order:
            order = [
                int(n) for n in numbers(self.keypoint_order, "--keypoint-order", range(1, 10**4))
            ]
            if max(order) >= points.shape[1]:
                raise InputError(
                    f"keypoint {max(order)}: the model has {points.shape[1]}",
                    where="--keypoint-order",
                    fix="count from 0",
                )
            return points[:, order]
        return points

    # -- all of them ------------------------------------------------------------------------

    def metric(self, samples: Sequence[Sample], predictions: Sequence[Prediction]) -> Metrics:
        rows = self._rows(samples, predictions)
        images = {s.data[0] for s in samples}
        official = evaluate_official(
            self.truth, rows, images, "keypoints", self.evaluator, self._sigmas()
        )
        found = self._found(images, rows)
        right, total = found.right.sum(axis=0), found.counts.sum(axis=0)
        return {
            **official.figures(),
            "evaluator": official.engine,
            "pictures": len(images),
            "people": len(found.right),
            "PCK": float(right.sum() / max(total.sum(), 1)),
            "PCK_at": self.pck,
            "PCK_by_keypoint": {
                n: float(r / t) for n, r, t in zip(self._names(), right, total, strict=True) if t
            },
            "notes": list(self.truth.notes),
        }

    def compare(
        self, samples: Sequence[Sample], ours: Sequence[Prediction], theirs: Sequence[Prediction]
    ) -> Metrics:
        """AP and PCK with intervals over pictures, which are drawn whole: people and keypoints of
        one picture are right or wrong together. McNemar's test is of one keypoint at a time, where
        a person is a trial."""
        images = sorted({s.data[0] for s in samples})
        sides = [self._rows(samples, side) for side in (ours, theirs)]
        runs = [
            evaluate_official(
                self.truth, rows, images, "keypoints", "pycocotools", self._sigmas()
            ).run
            for rows in sides
        ]
        a, b = (self._found(images, rows) for rows in sides)
        by_keypoint = {
            n: paired(a.right[seen, k], b.right[seen, k])
            for k, n in enumerate(self._names())
            if (seen := a.counts[:, k]).any()
        }
        return {
            "AP": compared(Curves(runs[0]), Curves(runs[1]), len(images)),
            "PCK": compared(a.share(images), b.share(images), len(images)),
            "PCK_at": self.pck,
            "by_keypoint": by_keypoint,
            "apart": _apart(a, b),
        }

    def compared_lines(self, made: Metrics) -> list[str]:
        pairs = made["by_keypoint"]
        changed = [n for n in pairs if pairs[n]["difference"]["value"]]
        changed.sort(key=lambda n: pairs[n]["mcnemar"]["exact"])
        lines = [
            compared_line("AP", made["AP"]),
            compared_line(f"PCK@{made['PCK_at']:g}", made["PCK"]),
        ]
        for name in changed[:MOST_TESTS]:
            right, test = pairs[name]["right"], pairs[name]["mcnemar"]
            lines.append(
                f"  {name}: right here only {right['only_ours']}, there only "
                f"{right['only_theirs']}; McNemar's p = {test['exact']:.3g}, mid-p "
                f"{test['mid']:.3g}"
            )
        if changed:
            lines.append(
                f"  {len(changed)} of {len(pairs)} keypoints differ; of {len(pairs)} "
                f"tests one in 20 has p < 0.05 by chance"
            )
        if (apart := made["apart"])["median"] is not None:
            lines.append(
                f"apart from each other, in parts of the person's size: median "
                f"{apart['median']:.3g}, p95 {apart['p95']:.3g}"
            )
        return lines

    def _rows(self, samples: Sequence[Sample], side: Sequence[Prediction]) -> list[Record]:
        return [
            row for s, p in zip(samples, side, strict=True) for row in self._results(s.data[0], p)
        ]

    def _results(self, image: int, prediction: Prediction) -> list[Record]:
        found = prediction["points"].shape[1]
        if found != self.count:
            raise InputError(
                f"the model gives {found} keypoints, the annotations have {self.count}",
                where=self.ports.model,
                fix="say which belong together: --keypoint-order, --fields",
            )
        category = int(self.truth.categories[0]["id"])
        return [
            {
                "image_id": image,
                "category_id": category,
                "score": float(s),
                "keypoints": [float(n) for n in points.reshape(-1)],
            }
            for points, s in zip(prediction["points"], prediction["scores"], strict=True)
        ]

    def _sigmas(self) -> Array | None:
        if not self.sigmas:
            if self.count != COCO_KEYPOINTS:
                raise InputError(
                    f"{self.count} keypoints: the similarity's spreads are known for "
                    f"COCO's {COCO_KEYPOINTS} only",
                    where="--sigmas",
                    fix="give one for each, or one for all: --sigmas 0.05",
                )
            return None
        given = numbers(self.sigmas, "--sigmas", (1, self.count))
        return np.broadcast_to(np.array(given), self.count)

    def _names(self) -> list[str]:
        named = self.truth.categories[0].get("keypoints") or []
        return list(named) if len(named) == self.count else [str(i) for i in range(self.count)]

    def _found(self, images: Collection[int], rows: Sequence[Record]) -> FoundPeople:
        """A person is paired with what was found closest."""
        by_image: dict[int, list[Array]] = {}
        for row in rows:
            by_image.setdefault(row["image_id"], []).append(
                np.array(row["keypoints"]).reshape(-1, 3)[:, :2]
            )
        people = [a for a in self.people if a["image_id"] in images]
        truth = np.array([a["keypoints"] for a in people], float).reshape(-1, self.count, 3)
        counts, points = truth[..., 2] > 0, np.full((*truth.shape[:2], 2), np.nan)
        for i, person in enumerate(people):
            there = by_image.get(person["image_id"], [])
            away = [np.hypot(*(f - truth[i, :, :2]).T)[counts[i]].sum() for f in there]
            if away:
                points[i] = there[int(np.argmin(away))]
        sizes = np.array([self._size(a, t) for a, t in zip(people, truth, strict=True)])
        far = np.hypot(*np.moveaxis(points - truth[..., :2], -1, 0))
        right = counts & (far <= self.pck * sizes[:, None])  # NaN is not near
        return FoundPeople([a["image_id"] for a in people], counts, right, points, sizes)

    def _size(self, person: Record, truth: Array) -> float:
        if self.pck_size == "torso" and len(truth) > max(TORSO) and (truth[TORSO, 2] > 0).all():
            corners = truth[list(TORSO), :2]
            return float(np.hypot(*(corners[0] - corners[3])))
        return float(max(person["bbox"][2:]))

    def lines(self, metrics: Metrics) -> list[str]:
        each = [f"  {n}: {v:.6g}" for n, v in metrics["PCK_by_keypoint"].items()]
        return [
            *summary(metrics, "keypoints"),
            f"PCK@{metrics['PCK_at']:g}: {metrics['PCK']:.6g}",
            *each,
            *(f"note: {n}" for n in metrics["notes"]),
        ]


@dataclass
class FoundPeople:
    """What was found of each annotated person."""

    images: list[int]
    counts: Array  # [people, keypoints]: is annotated
    right: Array  # the same shape
    points: Array  # [people, keypoints, (x, y)]; NaN where nothing was found
    sizes: Array  # pixels

    def share(self, images: Sequence[int]) -> Figure:
        """PCK of pictures that count as often as they are drawn."""
        place = {image: i for i, image in enumerate(images)}
        home = np.array([place[i] for i in self.images], np.intp)
        right, total = (
            np.bincount(home, a.sum(axis=1), len(images)) for a in (self.right, self.counts)
        )
        return lambda weights: float(right @ weights) / max(float(total @ weights), 1.0)


def _apart(a: FoundPeople, b: FoundPeople) -> Metrics:
    """How far the two models put a person's keypoints from each other, whatever is right."""
    far = np.hypot(*np.moveaxis(a.points - b.points, -1, 0)) / a.sizes[:, None]
    seen = far[a.counts & np.isfinite(far)]
    places = {"median": 50, "p95": 95, "max": 100}
    return {n: float(np.percentile(seen, p)) if seen.size else None for n, p in places.items()}


def _annotated(annotation: Record) -> bool:
    flags = annotation.get("keypoints", [])[2::3]
    return any(isinstance(v, int | float) and v > 0 for v in flags)


def _with_count(annotation: Record) -> Record:
    return {"num_keypoints": sum(v > 0 for v in annotation["keypoints"][2::3])} | annotation


# -- outputs ------------------------------------------------------------------------------------


def read_points(output: Array, fields: Sequence[str], size: Size) -> tuple[Array, Array]:
    """[people, keypoints, (x, y, score)] in pixels of the input, and each person's score."""
    if output.ndim == 4 and min(output.shape[1:3]) > 1:
        points = from_heatmaps(output, size)
    elif output.ndim == 3 and output.shape[2] == WIDTH_OF_MULTIPOSE:
        rows = output[0].astype(np.float64)
        points = _placed(rows[:, :51].reshape(-1, 17, 3), ["y", "x", "score"], size)
        return points, rows[:, 55]
    else:
        people = output.shape[1] if output.ndim == 4 else 1
        if output.size % (people * len(fields)):
            raise InputError(
                f"an output {list(output.shape)} is not made of {','.join(fields)}",
                where="output",
                fix="say what it is made of: --fields",
            )
        rows = output.astype(np.float64).reshape(people, -1, len(fields))
        points = _placed(rows, fields, size)
    return points, points[..., 2].mean(axis=1)


def _placed(rows: Array, fields: Sequence[str], size: Size) -> Array:
    column: dict[str, Any] = {n: rows[..., i] for i, n in enumerate(fields)}
    x, y = column["x"], column["y"]
    if max(np.abs(x).max(initial=0), np.abs(y).max(initial=0)) <= 2:  # parts of the input
        x, y = x * size[1], y * size[0]
    score = column.get("score", np.ones_like(x))
    return np.stack([x, y, score], axis=-1)


def from_heatmaps(output: Array, size: Size) -> Array:
    """The highest cell of each map, a quarter cell towards its higher neighbour."""
    maps = output[0].transpose(2, 0, 1).astype(np.float64)
    count, height, width = maps.shape
    best = maps.reshape(count, -1).argmax(axis=1)
    y, x = np.divmod(best, width)
    padded = np.pad(maps, ((0, 0), (1, 1), (1, 1)), "reflect")
    each = np.arange(count)
    lean_x = np.sign(padded[each, y + 1, x + 2] - padded[each, y + 1, x])
    lean_y = np.sign(padded[each, y + 2, x + 1] - padded[each, y, x + 1])
    score = maps.reshape(count, -1)[each, best]
    at = np.stack(
        [
            (x + 0.5 + lean_x / 4) * size[1] / width,
            (y + 0.5 + lean_y / 4) * size[0] / height,
            score,
        ],
        axis=-1,
    )
    return at[None]

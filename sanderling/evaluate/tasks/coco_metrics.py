"""COCO's files and COCO's figures: annotations, results, the official evaluation.

The figures are pycocotools' own, to the last digit; or those of faster-coco-eval, which is several
times as fast and agrees to about 15 digits. This module reads, checks and hands over.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...errors import InputError, MissingExtraError
from ...files import parse_data, read_bytes, read_data
from ...ir import Array
from .ground_truth import read_ground_truth

Record = dict[str, Any]
ENGINES = ("pycocotools", "faster-coco-eval")  # the first that is installed


class MetricRow(NamedTuple):
    """One of the official figures."""

    name: str
    kind: str  # AP or AR
    iou: str
    area: str
    most: int  # detections of a picture and category

    def text(self, value: float) -> str:
        """The line that pycocotools prints."""
        title = "Average Precision" if self.kind == "AP" else "Average Recall"
        return (
            f" {title:<18} ({self.kind}) @[ IoU={self.iou:<9} | area={self.area:>6s} | "
            f"maxDets={self.most:>3d} ] = {value:0.3f}"
        )


ALL = "0.50:0.95"
BOX_ROWS = (
    MetricRow("AP", "AP", ALL, "all", 100), MetricRow("AP50", "AP", "0.50", "all", 100),
    MetricRow("AP75", "AP", "0.75", "all", 100), MetricRow("APs", "AP", ALL, "small", 100),
    MetricRow("APm", "AP", ALL, "medium", 100), MetricRow("APl", "AP", ALL, "large", 100),
    MetricRow("AR1", "AR", ALL, "all", 1), MetricRow("AR10", "AR", ALL, "all", 10),
    MetricRow("AR100", "AR", ALL, "all", 100), MetricRow("ARs", "AR", ALL, "small", 100),
    MetricRow("ARm", "AR", ALL, "medium", 100), MetricRow("ARl", "AR", ALL, "large", 100),
)  # fmt: skip
KEYPOINT_ROWS = (
    MetricRow("AP", "AP", ALL, "all", 20), MetricRow("AP50", "AP", "0.50", "all", 20),
    MetricRow("AP75", "AP", "0.75", "all", 20), MetricRow("APm", "AP", ALL, "medium", 20),
    MetricRow("APl", "AP", ALL, "large", 20), MetricRow("AR", "AR", ALL, "all", 20),
    MetricRow("AR50", "AR", "0.50", "all", 20), MetricRow("AR75", "AR", "0.75", "all", 20),
    MetricRow("ARm", "AR", ALL, "medium", 20), MetricRow("ARl", "AR", ALL, "large", 20),
)  # fmt: skip
ROWS = {"bbox": BOX_ROWS, "keypoints": KEYPOINT_ROWS}


# -- files --------------------------------------------------------------------------------------


@dataclass
class Truth:
    """Annotations in COCO's form, checked, with what had to be filled in said in `notes`."""

    images: dict[int, Record]
    annotations: list[Record]
    categories: list[Record]
    where: str
    notes: list[str] = field(default_factory=list)
    in_parts: bool = False  # boxes in parts of the picture, whose size is not known

    @staticmethod
    def read(path: Path) -> Truth:
        """COCO's JSON, or the ground-truth file of TensorFlow Lite's tool (binary)."""
        content = read_bytes(path, "the annotations")
        if content.lstrip()[:1] in (b"{", b"["):
            record = parse_data(content, path, "the annotations", COMPLETE)
            return _from_json(record, str(path))
        return Truth(*read_ground_truth(content, str(path)), str(path), in_parts=True)

    @property
    def file_names(self) -> dict[int, str]:
        return {i: str(image["file_name"]) for i, image in self.images.items()}

    def named(self) -> dict[str, int]:
        """Categories by name, spelled loosely."""
        return {loosely(str(c["name"])): int(c["id"]) for c in self.categories}

    def sized(self, sizes: Mapping[int, Sequence[int]]) -> Truth:
        """In pixels, once pictures of (height, width) have been seen."""
        if not self.in_parts:
            return self
        rows = [
            _in_pixels(a, sizes[a["image_id"]]) for a in self.annotations if a["image_id"] in sizes
        ]
        return Truth(self.images, rows, self.categories, self.where, self.notes)

    def dataset(self) -> Record:
        """As pycocotools takes it: with records of its own, for it writes into them."""
        return {
            "info": {},
            "images": list(self.images.values()),
            "categories": self.categories,
            "annotations": [dict(a) for a in self.annotations],
        }


def loosely(name: str) -> str:
    return " ".join(name.lower().replace("_", " ").replace("-", " ").split())


def _in_pixels(annotation: Record, size: Sequence[int]) -> Record:
    height, width = size
    x, y, w, h = annotation["bbox"]
    box = [x * width, y * height, w * width, h * height]
    return annotation | {"bbox": box, "area": box[2] * box[3]}


COMPLETE = "check that the file is complete"
COCO_FORM = (
    'COCO annotations are {"images": [{"id", "file_name"}...], "annotations": [{"id", "image_id", '
    '"category_id", "bbox"}...], "categories": [{"id", "name"}...]}'
)
NUMBERS = ("id", "image_id", "category_id")
# The lists, and what each record of them must have.
FORM = {
    "images": ("id", "file_name"),
    "categories": ("id", "name"),
    "annotations": ("image_id", "category_id", "bbox"),
}


def _from_json(record: Any, where: str) -> Truth:
    if isinstance(record, list):
        hint = "; it looks like results, which --results takes" if _are_results(record) else ""
        raise InputError(f"not COCO annotations: it is a list{hint}", where=where, fix=COCO_FORM)
    for name, needed in FORM.items():
        _check_records(record, name, needed, where)
    images = {int(i["id"]): i for i in record["images"]}
    notes = _notes(record, images)
    filled = [_filled(a, n + 1, where) for n, a in enumerate(record["annotations"])]
    return Truth(images, filled, record["categories"], where, notes)


def _check_records(record: Record, name: str, needed: Sequence[str], where: str) -> None:
    rows = record.get(name)
    if not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows):
        raise InputError(
            f"not COCO annotations: there is no list '{name}' in it", where=where, fix=COCO_FORM
        )
    for i, row in enumerate(rows):
        missing = [n for n in needed if n not in row]
        if missing:
            raise InputError(
                f"not COCO annotations: {name}[{i}] has no '{missing[0]}'",
                where=where,
                fix=COCO_FORM,
            )
        strange = [n for n in NUMBERS if not isinstance(row.get(n, 0), int)]
        if strange:
            raise InputError(
                f"{name}[{i}]: its {strange[0]} is {row[strange[0]]!r}",
                where=where,
                fix="ids are whole numbers",
            )
    if not rows and name != "annotations":
        raise InputError(f"its list '{name}' is empty", where=where, fix=COCO_FORM)


def _are_results(rows: list[Any]) -> bool:
    return bool(rows) and isinstance(rows[0], dict) and "score" in rows[0]


def _notes(record: Record, images: Mapping[int, Record]) -> list[str]:
    rows = record["annotations"]
    counts = {
        "have no 'area': that of the box is taken": sum("area" not in a for a in rows),
        "have no 'id': numbered in their order": sum("id" not in a for a in rows),
        "are of pictures that 'images' does not list": sum(
            a["image_id"] not in images for a in rows
        ),
        "have the id 0, with which pycocotools takes a match for a miss: number them from 1": sum(
            a.get("id") == 0 for a in rows
        ),
    }
    return [f"{n} of {len(rows)} annotations {what}" for what, n in counts.items() if n]


def _filled(annotation: Record, number: int, where: str) -> Record:
    box = _box(annotation, f"annotation {annotation.get('id', number)}", where)
    return {"id": number, "iscrowd": 0, "area": box[2] * box[3]} | annotation


def _box(row: Record, name: str, where: str) -> list[float]:
    box = row["bbox"]
    if not isinstance(box, list) or [isinstance(n, int | float) for n in box] != [True] * 4:
        raise InputError(
            f"{name}: its bbox is {box!r}",
            where=where,
            fix="a bbox is [left, top, width, height] in pixels",
        )
    return box


def read_results(path: Path, truth: Truth, needed: str = "bbox") -> list[Record]:
    """COCO results: [{"image_id", "category_id", "bbox" or "keypoints", "score"}...]."""
    rows = read_data(path, "the results", COMPLETE)
    form = f'results are [{{"image_id", "category_id", "{needed}", "score"}}...]'
    if not isinstance(rows, list):
        raise InputError("not COCO results: it is not a list", where=str(path), fix=form)
    for i, row in enumerate(rows):
        missing = [
            n
            for n in ("image_id", "category_id", needed, "score")
            if not isinstance(row, dict) or n not in row
        ]
        if missing:
            raise InputError(
                f"not COCO results: row {i} has no '{missing[0]}'", where=str(path), fix=form
            )
        if not isinstance(row["score"], int | float) or not isinstance(row["image_id"], int):
            raise InputError(
                f"row {i}: its score or image_id is no number", where=str(path), fix=form
            )
        if needed == "bbox":
            _box(row, f"row {i}", str(path))
    strange = sorted({r["image_id"] for r in rows} - set(truth.images))
    if strange:
        raise InputError(
            f"{len(strange)} pictures of the results are not in the annotations, "
            f"such as image_id {strange[0]}",
            where=str(path),
            fix=f"give the annotations these results belong to, not {truth.where}",
        )
    return rows


# -- the evaluation -----------------------------------------------------------------------------


@dataclass
class OfficialFigures:
    """What the evaluation gave."""

    engine: str
    kind: str
    stats: list[float]  # in the order of ROWS[kind]; -1 where there is nothing to measure
    by_category: dict[int, dict[str, float]]
    run: Any  # the evaluator itself

    def figures(self) -> dict[str, float]:
        return {row.name: v for row, v in zip(ROWS[self.kind], self.stats, strict=True)}


def summary(figures: Mapping[str, float], kind: str = "bbox") -> list[str]:
    return [row.text(figures[row.name]) for row in ROWS[kind]]


def evaluate_official(
    truth: Truth,
    results: Sequence[Record],
    images: Iterable[int],
    kind: str = "bbox",
    engine: str = "auto",
    sigmas: Array | None = None,
) -> OfficialFigures:
    """The official figures of results on these pictures."""
    name, coco, evaluator = find_engine(engine)
    with contextlib.redirect_stdout(io.StringIO()):
        theirs = _indexed(coco, truth.dataset())
        found = (
            theirs.loadRes([dict(r) for r in results])
            if results
            else _indexed(coco, truth.dataset() | {"annotations": []})
        )
        run = evaluator(theirs, found, kind)
        run.params.imgIds = sorted(images)
        if sigmas is not None:
            run.params.kpt_oks_sigmas = sigmas
        run.evaluate()
        run.accumulate()
        run.summarize()
    stats = [float(v) for v in run.stats[: len(ROWS[kind])]]
    return OfficialFigures(name, kind, stats, _by_category(run), run)


def _indexed(coco: Any, dataset: Record) -> Any:
    made = coco()
    made.dataset = dataset
    made.createIndex()
    return made


def _by_category(run: Any) -> dict[int, dict[str, float]]:
    """AP and AP50 of each category that occurs: all areas, most detections."""
    precision = run.eval["precision"][:, :, :, 0, -1]  # [thresholds, recalls, categories]
    kept = {int(c): precision[:, :, k] for k, c in enumerate(run.params.catIds)}
    return {
        c: {"AP": float(p.mean()), "AP50": float(p[0].mean())}
        for c, p in kept.items()
        if p.max(initial=-1) > -1
    }


def find_engine(name: str) -> tuple[str, Any, Any]:
    """Its name, and the two classes that all of them have."""
    if name not in ("auto", *ENGINES):
        raise InputError(
            f"there is no evaluator '{name}'",
            where="--evaluator",
            fix=f"one of {', '.join(ENGINES)}, or auto",
        )
    wanted = ENGINES if name == "auto" else (name,)
    for one in wanted:
        with contextlib.suppress(ImportError):
            return one, *_import(one)
    raise MissingExtraError(wanted[0], "eval", "evaluating COCO results")


def _import(engine: str) -> tuple[Any, Any]:
    if engine == "pycocotools":
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval

        return COCO, COCOeval
    from faster_coco_eval import COCO as FastCOCO
    from faster_coco_eval import COCOeval_faster

    return FastCOCO, COCOeval_faster


def as_results(
    image: int, boxes: Array, scores: Array, categories: Array, size: Sequence[float]
) -> list[Record]:
    """Boxes in parts of a picture of (height, width), as COCO's results."""
    edges = boxes.astype(np.float64) * [size[1], size[0], size[1], size[0]]
    made = np.concatenate([edges[:, :2], edges[:, 2:] - edges[:, :2]], axis=1).tolist()
    return [
        {"image_id": image, "category_id": int(c), "score": float(s), "bbox": box}
        for box, s, c in zip(made, scores, categories, strict=True)
    ]

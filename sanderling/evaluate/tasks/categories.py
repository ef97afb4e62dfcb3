"""From the classes that a model numbers to the categories that annotations name.

COCO has 80 categories with ids from 1 to 90; models number them 0 to 79, 0 to 89, or 0 to 90 with a
background first. Label files name a model's classes, with `???` where a number is not in use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import InputError
from ...runtime.inputs import class_names
from .coco_metrics import Truth, loosely

UNUSED = {"???", "n/a", "background", "unlabeled", "unknown", "bg"}
# Two spellings of the same thing are around, Pascal VOC's and COCO's.
ALIASES = {"aeroplane": "airplane", "motorbike": "motorcycle", "sofa": "couch", "tvmonitor": "tv",
           "pottedplant": "potted plant", "diningtable": "dining table", "cellphone": "cell phone",
           "hair dryer": "hair drier"}  # fmt: skip


@dataclass(frozen=True)
class ClassMap:
    """ids[class] is a category, or None where the annotations have none for the class."""

    ids: Mapping[int, int | None]
    notes: list[str] = field(default_factory=list)
    names: Mapping[int, str] = field(default_factory=dict)  # of categories, where labels say it

    def category(self, number: int) -> int | None:
        if number not in self.ids:
            raise InputError(
                f"the model found class {number}, the classes known are "
                f"{min(self.ids)} to {max(self.ids)}",
                where="labels",
                fix="give the model's own --labels, or state --class-offset",
            )
        return self.ids[number]


@dataclass(frozen=True)
class LabelFile:
    where: str
    names: dict[int, str]  # by line, or by the number that the line begins with
    numbered: bool

    @staticmethod
    def read(path: Path) -> LabelFile:
        lines = class_names(path)
        parts = [re.match(r"\s*(\d+)(?:\s*[:,]\s*|\s+)(\S.*)$", line) for line in lines]
        if all(parts):
            named = {int(m[1]): m[2].strip() for m in parts if m}
            return LabelFile(str(path), named, True)
        return LabelFile(str(path), {i: line.strip() for i, line in enumerate(lines)}, False)

    @property
    def first_is_unused(self) -> bool:
        return not self.numbered and is_unused(self.names[0])


def is_unused(name: str) -> bool:
    return not name or loosely(name) in UNUSED


def map_classes(
    truth: Truth, labels: LabelFile | None, offset: int | None, classes: int | None
) -> ClassMap:
    """offset: what to add to a class for its line in the labels (or, without labels, its category's
    id). classes: how many the model has, where its outputs say it."""
    if labels is not None:
        return _by_label(truth, labels, offset, classes)
    ids = sorted(int(c["id"]) for c in truth.categories)
    if offset is None and classes is not None:
        if classes == len(ids):
            return ClassMap(dict(enumerate(ids)))
        offset = _usual_offset(classes, ids[-1], len(ids), truth.where)
    offset = 1 if offset is None else offset  # as TensorFlow Lite's tool takes it
    count = classes or max(ids[-1] + 1, 91)
    known = set(ids)
    return ClassMap({c: c + offset if c + offset in known else None for c in range(count)})


def _usual_offset(classes: int, last: int, count: int, where: str) -> int:
    """90 classes are COCO's ids less one, 91 the ids themselves."""
    offset = {last: 1, last + 1: 0}.get(classes)
    if offset is None:
        raise InputError(
            f"the model has {classes} classes, the annotations {count} categories",
            where=where,
            fix="name the model's classes with --labels FILE, one a line",
        )
    return offset


def _by_label(truth: Truth, labels: LabelFile, offset: int | None, classes: int | None) -> ClassMap:
    shift = _shift(labels, offset, classes)
    names = {line - shift: name for line, name in labels.names.items() if line >= shift}
    if truth.in_parts:  # categories without names: the label's line is the id
        known = {int(c["id"]) for c in truth.categories}
        ids = {c: c + shift if c + shift in known else None for c in names}
        return ClassMap(ids, names={c + shift: n for c, n in names.items()})
    categories = truth.named()
    found = {c: _category(name, categories) for c, name in names.items()}
    if not any(i is not None for i in found.values()):
        raise InputError(
            f"none of its labels ({_some(labels.names.values())}) is a category of "
            f"the annotations ({_some(categories)})",
            where=labels.where,
            fix="give the labels of this model, and annotations of the same classes",
        )
    return ClassMap(found, _differences(names, found, categories))


def _shift(labels: LabelFile, offset: int | None, classes: int | None) -> int:
    shift = offset if offset is not None else int(labels.first_is_unused)
    there = max(labels.names) + 1
    if classes is None or labels.numbered:
        return shift
    if offset is None and classes == there:
        return 0
    if classes != there - shift:
        raise InputError(
            f"it has {there} labels, the model {classes} classes",
            where=labels.where,
            fix="give the labels of this model; a line less or more at the beginning "
            "is stated with --class-offset 1 or -1",
        )
    return shift


def _category(name: str, categories: Mapping[str, int]) -> int | None:
    plain = loosely(name)
    back = {v: k for k, v in ALIASES.items()}
    spellings = (plain, ALIASES.get(plain, ""), back.get(plain, ""))
    return next((categories[s] for s in spellings if s in categories), None)


def _differences(
    names: Mapping[int, str], found: Mapping[int, int | None], categories: Mapping[str, int]
) -> list[str]:
    """What a person must know before trusting the figure."""
    lost = [n for n, i in categories.items() if i not in set(found.values())]
    extra = [n for c, n in names.items() if found[c] is None and not is_unused(n)]
    notes = []
    if lost:
        notes.append(
            f"{len(lost)} of {len(categories)} categories have no label, the model cannot "
            f"find them: {_some(lost)}"
        )
    if extra:
        notes.append(
            f"{len(extra)} labels are no category, what is found of them does not count: "
            f"{_some(extra)}"
        )
    return notes


def _some(names: Iterable[str], most: int = 5) -> str:
    listed = list(names)
    return ", ".join(listed[:most]) + (", ..." if len(listed) > most else "")

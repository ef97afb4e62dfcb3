"""What a model's output is, and with it how two answers are to be compared.

The first class of a regressor means nothing, nor does the cosine of class numbers. An output's kind
is read from the op that makes it, then from its name; where neither tells, it is taken for plain
values. The user may say otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..errors import InputError
from ..ir import Array, Op, Shape, Tensor

SCORES, MASKS, CLASSES = "scores", "masks", "classes"
BOXES, EMBEDDING, VALUES = "boxes", "embedding", "values"
# Each kind -> the figure that judges it, in words.
MEASURES = {
    SCORES: "the share of samples with the same first class",
    MASKS: "the share of pixels with the same first class",
    CLASSES: "the share of equal numbers",
    BOXES: "relative error",
    EMBEDDING: "cosine",
    VALUES: "relative error",
}
AGREEING = (SCORES, MASKS, CLASSES)  # the kinds of which a largest or an equal value says something

# What an op makes.
BY_OP = {
    "SOFTMAX": SCORES, "LOG_SOFTMAX": SCORES, "LOGISTIC": SCORES,
    "ARG_MAX": CLASSES, "ARG_MIN": CLASSES, "L2_NORMALIZATION": EMBEDDING,
    "NON_MAX_SUPPRESSION_V4": BOXES, "NON_MAX_SUPPRESSION_V5": BOXES,
    "custom.TFLite_Detection_PostProcess": BOXES,
}  # fmt: skip
# Ops that hand on what they read.
PASSING = {"QUANTIZE", "DEQUANTIZE", "RESHAPE", "SQUEEZE", "EXPAND_DIMS", "CAST", "TRANSPOSE",
           "CONCATENATION", "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"}  # fmt: skip
BY_NAME = (
    (re.compile(r"logit|prob|softmax|score|class", re.I), SCORES),
    (re.compile(r"mask|segment", re.I), MASKS),
    (re.compile(r"box|anchor|location", re.I), BOXES),
    (re.compile(r"embed", re.I), EMBEDDING),
)


@dataclass(frozen=True)
class OutputKind:
    """name: one of MEASURES; why: how it was decided."""

    name: str
    why: str

    @property
    def agrees(self) -> bool:
        return self.name in AGREEING


def output_kind(
    tensor: Tensor, stated: Mapping[str, str] | None = None, shape: Shape | None = None
) -> OutputKind:
    """stated: kinds by the output's name, "" for all of them. shape: as it came out, where it may
    be another than the file's."""
    sizes = tensor.shape if shape is None else shape
    for name in (tensor.name, ""):
        if stated and name in stated:
            return OutputKind(stated[name], "stated")
    if int(np.prod(sizes[1:] or sizes, dtype=np.int64)) == 1:
        return OutputKind(VALUES, "it is a single number")
    op = _maker(tensor)
    if op is not None and op.name in BY_OP:
        return OutputKind(
            _by_shape(BY_OP[op.name], sizes), f"{op.name.removeprefix('custom.')} makes it"
        )
    for pattern, kind in BY_NAME:
        if pattern.search(tensor.name):
            return OutputKind(_by_shape(kind, sizes), "by its name")
    return OutputKind(VALUES, "nothing tells of classes, boxes or an embedding")


def _by_shape(kind: str, shape: Shape) -> str:
    """Guess the kind by shape: scores for every place of a picture are a mask."""
    is_map = len(shape) == 4 and min(shape[1:3]) > 1
    if kind == SCORES and shape[-1:] == (1,):
        return VALUES  # one number each: nothing is first among them
    return MASKS if kind == SCORES and is_map else kind


def _maker(tensor: Tensor) -> Op | None:
    """The op behind those that hand on; of joined pieces the first tells."""
    op = tensor.producer
    while op is not None and op.name in PASSING:
        source = op.inputs[0] if op.inputs else None
        op = None if source is None else source.producer
    return op


def read_kinds(stated: str | Mapping[str, str] | None, names: list[str]) -> dict[str, str]:
    """Kinds by output name, checked; a single word is for all outputs."""
    found = {"": stated} if isinstance(stated, str) else dict(stated or {})
    for name, kind in found.items():
        if kind not in MEASURES:
            raise InputError(
                f"there is no kind of output '{kind}'",
                where=name or "output kind",
                fix=f"one of {', '.join(MEASURES)}",
            )
        if name and name not in names:
            raise InputError(
                f"there is no output '{name}'",
                where="output kind",
                fix=f"the outputs: {', '.join(names)}",
            )
    return found


def agreement(kind: str, wanted: Array, given: Array) -> float:
    """The share of rows (along the last dimension) with the same first class, or of equal
    elements."""
    if wanted.shape != given.shape:
        return 0.0
    if kind == CLASSES or not wanted.ndim:
        return float(np.mean(wanted == given))
    return float(np.mean(wanted.argmax(axis=-1) == given.argmax(axis=-1)))

"""Detections from boxes and scores: TFLite_Detection_PostProcess on one worker.

Boxes with no score over the threshold are dropped first; only the others are decoded, into planes
(scores, four corners, areas). A round of the suppression then takes the best box and, in one pass
over the planes, strikes out what overlaps it and finds the next best: no sort is needed, and ties
go to the first box, as in a stable sort.

    nms_x<lanes>    the pass
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .....errors import SanderlingError
from .....ir import Array, DType, Op, Tensor
from .....ops.base import scale_zero
from .....ops.custom import detection_options
from ...codegen import vector_math as vmath
from ...codegen.emit import (
    F32,
    F64,
    I1,
    I8,
    I32,
    I64,
    PTR,
    Emitter,
    Int,
    Type,
    Value,
    suffix,
    vector,
)
from ...codegen.program import StepEmitter
from ...codegen.vectors import horizontal
from ...isa.targets import Target
from ..row import Kernel

GONE = -np.inf  # the score of a box that is out
FIRST = np.iinfo(np.int32).max
TOP, LEFT, BOTTOM, RIGHT, AREA = range(5)  # planes


def reals(tensor: Tensor) -> Array:
    """What each code of a quantised tensor means, from the smallest code on."""
    info = np.iinfo(tensor.dtype.numpy)
    scale, zero = scale_zero(tensor)
    codes = np.arange(info.min, info.max + 1)
    return (codes.astype(np.float32) - np.float32(zero)) * np.float32(scale)


# -- the pass ---------------------------------------------------------------------------------


def build_pass(e: Emitter) -> None:
    """(scores, planes, stride, n, best, box, limit): strike out what overlaps the box too much;
    best becomes the score and the index of the best box left."""
    scores, planes, stride, n, best, box, limit = e.args
    lanes = e.target.lanes
    t, whole = vector(F32, lanes), vector(I32, lanes)
    chosen = [e.splat(e.load(e.at(box, i, F32), F32, 4), lanes) for i in range(5)]
    gone, count = e.const(t, GONE), e.const(whole, list(range(lanes)))
    start = [gone, e.const(whole, FIRST), count]
    with e.loop(0, n, lanes, carry=start) as (i, (most, where, index)):
        others = [e.load(e.at(planes, e.add(e.mul(stride, p), i), F32), t, 4) for p in range(5)]
        score = e.load(e.at(scores, i, F32), t, 4)
        over = e.b.fcmp_ordered(">", overlap(e, chosen, others), e.splat(limit, lanes))
        score = e.b.select(over, gone, score)
        e.store(score, e.at(scores, i, F32), 4)
        better = e.b.fcmp_ordered(">", score, most)
        e.carry(
            [
                e.b.select(better, score, most),
                e.b.select(better, index, where),
                e.b.add(index, e.const(whole, lanes)),
            ]
        )
    most, where, _ = e.carried
    top = horizontal(e, most, e.fmax)
    first = e.b.select(
        e.b.fcmp_ordered("==", most, e.splat(top, lanes)), where, e.const(whole, FIRST)
    )
    e.store(top, best, 4)
    e.store(horizontal(e, first, e.smin), e.at(best, 1, I32), 4)


def overlap(e: Emitter, a: list[Value], b: list[Value]) -> Value:
    """Intersection over union; 0 where a box has no area."""
    t = a[0].type
    zero, one = e.const(t, 0), e.const(t, 1)
    sides = []
    for low, high in ((TOP, BOTTOM), (LEFT, RIGHT)):
        side = e.b.fsub(e.fmin(a[high], b[high]), e.fmax(a[low], b[low]))
        sides.append(e.fmax(side, zero))
    shared = e.b.fmul(*sides)
    union = e.b.fsub(e.b.fadd(a[AREA], b[AREA]), shared)
    solid = e.b.and_(e.b.fcmp_ordered(">", a[AREA], zero), e.b.fcmp_ordered(">", b[AREA], zero))
    solid = e.b.and_(solid, e.b.fcmp_unordered("!=", union, zero))
    return e.b.select(solid, e.b.fdiv(shared, e.b.select(solid, union, one)), zero)


# -- operands ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scores:
    """Rows of scores, floats or codes, of which the first may be the background's."""

    tensor: Tensor
    classes: int
    threshold: float

    @property
    def columns(self) -> int:
        return self.tensor.shape[2]

    @property
    def size(self) -> int:
        return self.tensor.dtype.bits // 8

    @property
    def kind(self) -> Type:
        return F32 if self.is_float else I8

    @property
    def is_float(self) -> bool:
        return self.tensor.dtype is DType.FLOAT32

    def place(self, e: Emitter, base: Value, row: Int, column: Int = 0) -> Value:
        at = e.add(e.mul(row, self.columns), e.add(self.columns - self.classes, column))
        return e.at(base, at, self.kind)

    def real(self, e: Emitter, raw: Value) -> Value:
        if self.is_float:
            return raw
        signed = self.tensor.dtype is DType.INT8
        code = e.b.sitofp(raw, F32) if signed else e.b.uitofp(raw, F32)
        scale, zero = scale_zero(self.tensor)
        return e.b.fmul(e.b.fsub(code, e.const(F32, zero)), e.const(F32, scale))

    @cached_property
    def least(self) -> Any:
        """The smallest raw score over the threshold; None if there is none."""
        if self.is_float:
            return np.float32(self.threshold)
        good = np.flatnonzero(reals(self.tensor) >= np.float32(self.threshold))
        return int(good[0]) + np.iinfo(self.tensor.dtype.numpy).min if good.size else None

    def enough(self, e: Emitter, raw: Value) -> Value:
        bound = e.const(raw.type, self.least)
        if self.is_float:
            return e.b.fcmp_ordered(">=", raw, bound)
        signed = self.tensor.dtype is DType.INT8
        return (e.b.icmp_signed if signed else e.b.icmp_unsigned)(">=", raw, bound)

    def larger(self, e: Emitter, a: Value, b: Value) -> Value:
        """b where a is no number."""
        if self.is_float:
            return e.fmax(a, b)
        return (e.smax if self.tensor.dtype is DType.INT8 else e.umax)(a, b)

    def chunks(self, target: Target) -> tuple[int, list[int]]:
        """Lanes, and where vectors of a row begin: the last reaches back."""
        lanes = target.width // self.size
        while lanes > self.classes:
            lanes //= 2
        return lanes, [min(i, self.classes - lanes) for i in range(0, self.classes, lanes)]

    def most(self, e: Emitter, vectors: list[Value]) -> Value:
        """The largest of all, as a raw score."""
        total = vectors[0]
        if self.is_float:
            total = e.fmax(total, e.const(total.type, GONE))
        for x in vectors[1:]:
            total = self.larger(e, x, total)
        if total.type.count == 1:
            return e.b.extract_element(total, I32(0))
        return horizontal(e, total, lambda a, b: self.larger(e, a, b))


@dataclass(frozen=True)
class Places:
    """Offsets from anchors: (y, x, height, width), then perhaps more."""

    tensor: Tensor
    anchors: Array
    scales: tuple[float, float, float, float]

    @property
    def divisors(self) -> Array:
        return np.asarray(self.scales, np.float32).astype(np.float64)

    def tables(self) -> Array:
        """For codes: what is to be multiplied with the anchor's sizes."""
        real = reals(self.tensor).astype(np.float64)
        rows = [real / d for d in self.divisors]
        return np.stack([*rows[:2], 0.5 * np.exp(rows[2]), 0.5 * np.exp(rows[3])])

    def prepare(self, k: StepEmitter) -> Callable[[Value], tuple[Value, Value]]:
        """A function from a box's number to its centre's and its half size's factors."""
        base, width = k.ptr(self.tensor), self.tensor.shape[2]
        two = vector(F64, 2)
        if self.tensor.dtype is DType.FLOAT32:
            shift, size = (k.const(two, self.divisors[i : i + 2]) for i in (0, 2))

            def floats(box: Value) -> tuple[Value, Value]:
                row = k.at(base, k.mul(box, width), F32)
                real = [
                    k.b.fpext(k.load(k.at(row, i, F32), vector(F32, 2), 4), two) for i in (0, 2)
                ]
                grown = vmath.exp_wide(k, k.b.fdiv(real[1], size))
                return k.b.fdiv(real[0], shift), k.b.fmul(k.const(two, 0.5), grown)

            return floats
        table = k.constant(self.tables())
        least = np.iinfo(self.tensor.dtype.numpy).min

        def codes(box: Value) -> tuple[Value, Value]:
            row = k.at(base, k.mul(box, width), I8)
            found = []
            for i in range(4):
                raw = k.load(k.at(row, i, I8), I8)
                code = k.sub(k.b.sext(raw, I64) if least else k.b.zext(raw, I64), least)
                found.append(k.load(k.at(table, k.add(code, 256 * i), F64), F64, 8))
            return _pair(k, *found[:2]), _pair(k, *found[2:])

        return codes


def _pair(e: Emitter, a: Value, b: Value) -> Value:
    first = e.b.insert_element(e.undef(vector(a.type, 2)), a, I32(0))
    return e.b.insert_element(first, b, I32(1))


# -- the operator -----------------------------------------------------------------------------


class Detector:
    """Writes the step. Memory: a few words, then arrays of `room` for the boxes that are left."""

    def __init__(self, k: StepEmitter, op: Op) -> None:
        self.k, self.op, self.options = k, op, detection_options(op)
        self.scores = Scores(
            op.operand(1),
            int(self.options["num_classes"]),
            float(self.options["nms_score_threshold"]),
        )
        scales = tuple(float(self.options[f"{name}_scale"]) for name in "yxhw")
        self.boxes = Places(op.operand(0), anchors_of(op), scales)  # type: ignore[arg-type]
        self.total = self.scores.tensor.shape[1]
        self.most = int(self.options["max_detections"])
        self.room = -(-self.total // 16) * 16 + 16
        self.base = k.ptr(self.scores.tensor)
        self.outputs = [k.ptr(t) for t in op.outputs]
        self.limit = k.const(F32, float(self.options["nms_iou_threshold"]))
        self.function = k.program.function(
            f"nms_x{k.target.lanes}", [PTR, PTR, I64, I64, PTR, PTR, F32], build_pass
        )
        self._memory()

    def _memory(self) -> None:
        k, listed = self.k, -(-self.most // 16) * 16
        classes = -(-self.scores.classes // 16) * 16 + 16
        floats = 16 + 7 * self.room + 3 * listed + classes
        self.best = k.scratch(4 * floats)  # score and index of the best box; how many are listed
        self.points = k.at(self.best, 16, F32)
        self.planes = k.at(self.points, self.room, F32)
        self.numbers = k.at(self.planes, 5 * self.room, F32)
        self.listed = [k.at(self.numbers, self.room + i * listed, F32) for i in range(3)]
        self.tops = k.at(self.numbers, self.room + 3 * listed, F32)

    def emit(self, regular: bool) -> None:
        k = self.k
        begin, end = k.share(1)
        with k.loop(begin, end):
            for to, tensor in zip(self.outputs, self.op.outputs, strict=True):
                k.fill(to, tensor.nbytes, 0)
            k.store(I32(0), self.counter)
            if self.scores.least is not None:
                n = self.select(regular)
                self.decode(n)
                (self.each_class if regular else self.best_class)(n)
                count = k.b.sitofp(k.load(self.counter, I32, 4), F32)
                k.store(count, self.outputs[3], 4)

    @property
    def counter(self) -> Value:
        return self.k.at(self.best, 2, I32)

    # -- which boxes --

    def select(self, regular: bool) -> Value:
        """Numbers and best scores of the boxes that have a score over the threshold."""
        k, scores = self.k, self.scores
        lanes, starts = scores.chunks(k.target)
        t = vector(scores.kind, lanes)
        if regular:
            self._clear_tops()
        with k.loop(0, self.total, carry=[I64(0)]) as (i, (n,)):
            row = [k.load(scores.place(k, self.base, i, at), t) for at in starts]
            k.store(k.b.trunc(i, I32), k.at(self.numbers, n, I32), 4)
            found = self._any([scores.enough(k, x) for x in row])
            with k.when(found):
                k.store(scores.real(k, scores.most(k, row)), k.at(self.points, n, F32), 4)
                for x, at in zip(row, starts, strict=True) if regular else ():
                    place = k.at(self.tops, at, scores.kind)
                    k.store(scores.larger(k, x, k.load(place, t)), place)
            k.carry([k.b.add(n, k.b.zext(found, I64))])
        return k.carried[0]

    def _clear_tops(self) -> None:
        """The best score of each class."""
        scores = self.scores
        least = GONE if scores.is_float else np.iinfo(scores.tensor.dtype.numpy).min
        with self.k.loop(0, scores.classes) as i:
            place = self.k.at(self.tops, i, scores.kind)
            self.k.store(self.k.const(scores.kind, least), place)

    def _any(self, masks: list[Value]) -> Value:
        k, total = self.k, masks[0]
        for mask in masks[1:]:
            total = k.b.or_(total, mask)
        if total.type.count == 1:
            return k.b.extract_element(total, I32(0))
        return k.call(f"llvm.vector.reduce.or.{suffix(total.type)}", I1, total)

    def decode(self, n: Value) -> None:
        """Centres and sizes in doubles, corners in floats: as it is defined."""
        k, two = self.k, vector(F64, 2)
        anchors = k.constant(self.boxes.anchors.astype(np.float64))
        factors = self.boxes.prepare(k)
        with k.loop(0, n) as i:
            box = k.b.sext(k.load(k.at(self.numbers, i, I32), I32, 4), I64)
            anchor = k.at(anchors, k.mul(box, 4), F64)
            middle, sizes = (k.load(k.at(anchor, j, F64), two, 8) for j in (0, 2))
            shift, grown = factors(box)
            centre = k.b.fadd(k.b.fmul(shift, sizes), middle)
            half = k.b.fptrunc(k.b.fmul(grown, sizes), vector(F32, 2))
            centre = k.b.fptrunc(centre, vector(F32, 2))
            self._keep(i, k.b.fsub(centre, half), k.b.fadd(centre, half))

    def _keep(self, i: Value, low: Value, high: Value) -> None:
        k = self.k
        size = k.b.fsub(high, low)
        corners = [k.b.extract_element(x, I32(j)) for x in (low, high) for j in (0, 1)]
        area = k.b.fmul(*(k.b.extract_element(size, I32(j)) for j in (0, 1)))
        for plane, value in enumerate((*corners, area)):
            k.store(value, k.at(self.planes, k.add(i, plane * self.room), F32), 4)

    # -- suppression --

    def rounds(
        self,
        n: Value,
        most: int,
        more: Callable[[Value], Value],
        take: Callable[[Value, Value], None],
    ) -> None:
        """Best first: take(score, index) as long as there is a box, and more(score) holds."""
        k, lanes = self.k, self.k.target.lanes
        k.store(k.const(vector(F32, lanes), GONE), k.at(self.points, n, F32), 4)
        nothing = k.at(self.best, 8, F32)  # a box without area strikes out nothing
        with k.loop(0, 5) as i:
            k.store(k.const(F32, 0), k.at(nothing, i, F32), 4)
        self._pass(n, nothing)
        with k.loop(0, most):
            score, index = k.load(self.best, F32, 4), k.load(k.at(self.best, 1, I32), I32, 4)
            left = k.b.fcmp_ordered(">", score, k.const(F32, GONE))
            with k.when(k.b.and_(left, more(score))):
                place = k.b.sext(index, I64)
                take(score, place)
                k.store(k.const(F32, GONE), k.at(self.points, place, F32), 4)
                box = k.at(self.best, 8, F32)
                with k.loop(0, 5) as i:
                    corner = k.at(self.planes, k.add(k.mul(i, self.room), place), F32)
                    k.store(k.load(corner, F32, 4), k.at(box, i, F32), 4)
                self._pass(n, box)

    def _pass(self, n: Value, box: Value) -> None:
        args = [self.points, self.planes, I64(self.room), n, self.best, box, self.limit]
        self.k.b.call(self.function, args)

    def write(self, row: Int, index: Value, kind: Value, score: Value) -> None:
        """A row of the outputs."""
        k, (where, what, sure, _) = self.k, self.outputs
        with k.loop(0, 4) as i:
            corner = k.load(k.at(self.planes, k.add(k.mul(i, self.room), index), F32), F32, 4)
            k.store(corner, k.at(where, k.add(k.mul(row, 4), i), F32))
        k.store(k.b.sitofp(kind, F32), k.at(what, row, F32))
        k.store(score, k.at(sure, row, F32))

    def _count(self) -> Value:
        """How many there were; one more from now on."""
        count = self.k.load(self.counter, I32, 4)
        self.k.store(self.k.b.add(count, I32(1)), self.counter, 4)
        return self.k.b.sext(count, I64)

    # -- fast: one suppression on each box's best class --

    def best_class(self, n: Value) -> None:
        k, slots = self.k, int(self.options["max_classes_per_detection"])
        count = min(slots, self.scores.classes)

        def take(score: Value, index: Value) -> None:
            row = k.mul(self._count(), slots)
            box = k.b.sext(k.load(k.at(self.numbers, index, I32), I32, 4), I64)
            before = [k.const(F32, np.inf), I64(-1)]
            with k.loop(0, count, carry=before) as (slot, last):
                points, kind = self._next_class(box, *last)
                self.write(k.add(row, slot), index, kind, points)
                k.carry([points, kind])

        self.rounds(n, self.most, lambda score: I1(1), take)

    def _next_class(self, box: Value, last: Value, kind: Value) -> list[Value]:
        """The best class after one, by score, then by number."""
        k, scores = self.k, self.scores
        start = [k.const(F32, GONE), I64(-1)]
        with k.loop(0, scores.classes, carry=start) as (i, (top, where)):
            raw = k.load(scores.place(k, self.base, box, i), scores.kind)
            real = scores.real(k, raw)
            tie = k.b.and_(k.b.fcmp_ordered("==", real, last), k.b.icmp_signed(">", i, kind))
            allowed = k.b.or_(k.b.fcmp_ordered("<", real, last), tie)
            unset = k.b.icmp_signed("<", where, I64(0))
            better = k.b.or_(k.b.fcmp_ordered(">", real, top), unset)
            better = k.b.and_(allowed, better)
            k.carry([k.b.select(better, real, top), k.b.select(better, i, where)])
        return k.carried

    # -- regular: a suppression for each class, then the best of all --

    def each_class(self, n: Value) -> None:
        k, scores = self.k, self.scores
        each = min(int(self.options["detections_per_class"]), self.most)
        with k.loop(0, scores.classes) as kind:
            raw = k.load(k.at(self.tops, kind, scores.kind), scores.kind)
            wanted = k.b.and_(scores.enough(k, raw), self._wanted(scores.real(k, raw)))
            with k.when(wanted):
                self._column(n, kind)
                self.rounds(
                    n,
                    each,
                    self._wanted,
                    lambda score, index, kind=kind: self._insert(score, index, kind),  # type: ignore[misc]
                )
        with k.loop(0, k.b.sext(k.load(self.counter, I32, 4), I64)) as i:
            index, kind = (
                k.b.sext(k.load(k.at(self.listed[j], i, I32), I32, 4), I64) for j in (1, 2)
            )
            score = k.load(k.at(self.listed[0], i, F32), F32, 4)
            self.write(i, index, kind, score)

    def _wanted(self, score: Value) -> Value:
        """The list has room, or this is better than its last: of equals the first stays."""
        k = self.k
        count = k.load(self.counter, I32, 4)
        room = k.b.icmp_signed("<", count, I32(self.most))
        last = k.load(k.at(self.listed[0], self.most - 1, F32), F32, 4)
        return k.b.or_(room, k.b.fcmp_ordered(">", score, last))

    def _column(self, n: Value, kind: Value) -> None:
        """The scores of one class."""
        k, scores = self.k, self.scores
        with k.loop(0, n) as i:
            box = k.b.sext(k.load(k.at(self.numbers, i, I32), I32, 4), I64)
            raw = k.load(scores.place(k, self.base, box, kind), scores.kind)
            good = scores.enough(k, raw)
            score = k.b.select(good, scores.real(k, raw), k.const(F32, GONE))
            k.store(score, k.at(self.points, i, F32), 4)

    def _insert(self, score: Value, index: Value, kind: Value) -> None:
        """Behind all that are as good."""
        k = self.k
        count = k.b.sext(k.load(self.counter, I32, 4), I64)
        with k.loop(0, count, carry=[I64(0)]) as (i, (ahead,)):
            other = k.load(k.at(self.listed[0], i, F32), F32, 4)
            k.carry([k.b.add(ahead, k.b.zext(k.b.fcmp_ordered(">=", other, score), I64))])
        at = k.carried[0]
        last = k.min(count, self.most - 1)
        with k.loop(0, k.sub(last, at)) as i:
            to = k.sub(last, i)
            for column in self.listed:
                k.store(k.load(k.at(column, k.sub(to, 1), I32), I32, 4), k.at(column, to, I32), 4)
        k.store(score, k.at(self.listed[0], at, F32), 4)
        k.store(k.b.trunc(index, I32), k.at(self.listed[1], at, I32), 4)
        k.store(k.b.trunc(kind, I32), k.at(self.listed[2], at, I32), 4)
        k.store(k.b.trunc(k.add(last, 1), I32), self.counter, 4)


def anchors_of(op: Op) -> Array:
    """The anchors as floats."""
    tensor = op.operand(2)
    if tensor.dtype is DType.FLOAT32:
        return tensor.values
    codes = tensor.values.astype(np.int64) - np.iinfo(tensor.dtype.numpy).min
    return reals(tensor)[codes]


def emit_detection(k: StepEmitter, op: Op) -> None:
    detector = Detector(k, op)
    detector.emit(bool(detector.options["use_regular_nms"]))


_TYPES = (DType.FLOAT32, DType.UINT8, DType.INT8)


def refuses_detection(op: Op, target: Target) -> str | None:
    boxes, scores, anchors = (op.operand(i) for i in range(3))
    if anchors.data is None:
        return "the anchors are known at run time only"
    for tensor in (boxes, scores, anchors):
        scaled = tensor.quant is not None and tensor.quant.scale.size == 1
        if tensor.dtype not in _TYPES or (tensor.dtype is not DType.FLOAT32 and not scaled):
            return f"detections from {tensor.dtype.short} have no kernel"
        if tensor.dtype is not DType.FLOAT32 and scale_zero(tensor)[0] <= 0:
            return "a scale that is not positive"
    return _refuses_sizes(op, boxes, scores, anchors)


def _refuses_sizes(op: Op, boxes: Tensor, scores: Tensor, anchors: Tensor) -> str | None:
    """What the definition would report, it shall report itself."""
    try:
        options = detection_options(op)
    except SanderlingError as error:
        return f"its options do not fit: {error}"
    classes = int(options["num_classes"])
    fits = (
        len(boxes.shape) == len(scores.shape) == 3
        and boxes.shape[0] == scores.shape[0] == 1
        and 0 < boxes.shape[1] == scores.shape[1] <= anchors.shape[0]
        and boxes.shape[2] >= 4
        and anchors.shape[1:] == (4,)
        and classes > 0
        and scores.shape[2] - classes in (0, 1)
    )
    if not fits or not int(options["max_detections"]) * int(options["max_classes_per_detection"]):
        return "its operands do not fit together"
    if any(float(options[f"{name}_scale"]) == 0 for name in "yxhw"):
        return "a scale is zero"
    if not np.isfinite(float(options["nms_score_threshold"])):
        return "a threshold that is not finite"
    if np.any(anchors_of(op)[:, 2:] < 0):
        return "an anchor has a negative size"
    return None


KERNELS = {
    "custom.TFLite_Detection_PostProcess": Kernel(
        emit_detection, refuses_detection, lambda op: "detection_postprocess"
    )
}

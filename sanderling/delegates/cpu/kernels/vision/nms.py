"""NON_MAX_SUPPRESSION_V4 and V5 with hard suppression, on one worker.

Candidates wait in a heap. Among equal scores its order is an accident of its algorithm, which is
part of the definition: the heap here moves its entries step by step as the definition does. So
does the rest: a box that was chosen goes back into the heap, and meets itself next time.

    heap_push, heap_pop    (heap, size, words): an entry in, the top out
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from .....ir import DType, Op
from ...codegen.emit import F32, I1, I32, I64, PTR, Emitter, Int, Value, vector
from ...codegen.program import StepEmitter
from ...isa.targets import Target
from ..row import Kernel
from .detections import AREA, BOTTOM, LEFT, RIGHT, TOP, overlap

ENTRY = 4  # words: score, box, how many chosen boxes it was compared with, nothing


@contextmanager
def repeat(e: Emitter, condition: Callable[[], Value]) -> Iterator[None]:
    """While the condition holds; what changes is in memory."""
    head, body, after = (e.function.append_basic_block(name) for name in ("while", "do", "done"))
    e.b.branch(head)
    e.b.position_at_end(head)
    e.b.cbranch(condition(), body, after)
    e.b.position_at_end(body)
    yield
    e.b.branch(head)
    e.b.position_at_end(after)


class Heap:
    """Entries of four words; its size is kept by the caller."""

    def __init__(self, e: Emitter, base: Value) -> None:
        self.e, self.base = e, base

    def at(self, index: Int) -> Value:
        return self.e.at(self.base, self.e.mul(index, ENTRY), F32)

    def score(self, index: Int) -> Value:
        return self.e.load(self.at(index), F32, 4)

    def move(self, to: Value, by: Value) -> None:
        t = vector(I32, ENTRY)
        self.e.store(self.e.load(by, t, 4), to, 4)

    def sift_up(self, hole: Value, entry: Value) -> None:
        """hole: the address of an index, entry: of what is to go there or above."""
        e = self.e
        score = e.load(entry, F32, 4)

        def larger() -> Value:
            here = e.load(hole, I64, 8)
            above = self.score(e.div(e.max(e.sub(here, 1), 0), 2))
            inner = e.b.icmp_signed(">", here, I64(0))
            return e.b.and_(inner, e.b.fcmp_ordered("<", above, score))

        with repeat(e, larger):
            here = e.load(hole, I64, 8)
            parent = e.div(e.sub(here, 1), 2)
            self.move(self.at(here), self.at(parent))
            e.store(parent, hole, 8)
        self.move(self.at(e.load(hole, I64, 8)), entry)


def build_push(e: Emitter) -> None:
    """(heap, size, words): the entry behind the heap finds its place. words: scratch."""
    base, size, words = e.args
    heap = Heap(e, base)
    heap.move(words, heap.at(size))
    hole = e.at(words, ENTRY, F32)
    e.store(size, hole, 8)
    heap.sift_up(hole, words)


def build_pop(e: Emitter) -> None:
    """(heap, size, words): the top goes out; size: what is left. The last entry is sifted down."""
    base, size, words = e.args
    heap = Heap(e, base)
    heap.move(words, heap.at(size))
    hole, child = e.at(words, ENTRY, F32), e.at(words, ENTRY + 2, F32)
    for place in (hole, child):
        e.store(I64(0), place, 8)
    last = e.b.sdiv(e.b.sub(size, I64(1)), I64(2))
    with repeat(e, lambda: e.less(e.load(child, I64, 8), last)):
        right = e.mul(e.add(e.load(child, I64, 8), 1), 2)
        smaller = e.b.fcmp_ordered("<", heap.score(right), heap.score(e.sub(right, 1)))
        better = e.b.select(smaller, e.sub(right, 1), right)
        heap.move(heap.at(e.load(hole, I64, 8)), heap.at(better))
        for place in (hole, child):
            e.store(better, place, 8)
    even = e.b.icmp_signed("==", e.rem(size, 2), I64(0))
    half = e.b.sdiv(e.b.sub(size, I64(2)), I64(2))
    only = e.b.icmp_signed("==", e.load(child, I64, 8), half)
    with e.when(e.b.and_(even, only)):
        left = e.add(e.mul(e.load(child, I64, 8), 2), 1)
        heap.move(heap.at(e.load(hole, I64, 8)), heap.at(left))
        e.store(left, hole, 8)
    heap.sift_up(hole, words)


def emit_nms(k: StepEmitter, op: Op) -> None:
    begin, end = k.share(1)
    suppression = Suppression(k, op)
    with k.loop(begin, end):
        suppression.emit()


class Suppression:
    """Writes the step. Memory: words, the heap, planes of all boxes, the chosen ones' numbers."""

    def __init__(self, k: StepEmitter, op: Op) -> None:
        self.k, self.op = k, op
        self.total, self.most = op.operand(0).shape[0], op.outputs[0].shape[0]
        self.boxes, self.scores, self.iou, self.least = (k.ptr(op.operand(i)) for i in (0, 1, 3, 4))
        self.outputs = [k.ptr(t) for t in op.outputs]
        room = -(-self.total // 16) * 16
        self.words = k.scratch(4 * (48 + ENTRY * (room + 16) + 5 * room + self.most + 16))
        self.size, self.count = (k.at(self.words, i, F32) for i in (16, 18))
        self.heap = Heap(k, k.at(self.words, 32, F32))
        self.planes = k.at(self.heap.base, ENTRY * (room + 16), F32)
        self.chosen, self.room = k.at(self.planes, 5 * room, F32), room
        self.push = k.program.function("heap_push", [PTR, I64, PTR], build_push)
        self.pop = k.program.function("heap_pop", [PTR, I64, PTR], build_pop)

    def emit(self) -> None:
        k = self.k
        for to, tensor in zip(self.outputs, self.op.outputs, strict=True):
            k.fill(to, tensor.nbytes, 0)
        for word in (self.size, self.count):
            k.store(I64(0), word, 8)
        self.read()
        limit = k.min(self.most, k.load(self.size, I64, 8))
        iou = k.load(self.iou, F32)

        def more() -> Value:
            some = k.b.icmp_signed(">", k.load(self.size, I64, 8), I64(0))
            return k.b.and_(some, k.less(k.load(self.count, I64, 8), limit))

        with repeat(k, more):
            self.round(iou)
        count = k.b.trunc(k.load(self.count, I64, 8), I32)
        k.store(count, self.outputs[-1])

    def read(self) -> None:
        """All boxes with sorted corners; those over the threshold into the heap."""
        k = self.k
        least = k.load(self.least, F32)
        with k.loop(0, self.total) as i:
            corners = [k.load(k.at(self.boxes, k.add(k.mul(i, 4), j), F32), F32) for j in range(4)]
            sides = {}
            for low, high in ((TOP, BOTTOM), (LEFT, RIGHT)):
                a, b = corners[low], corners[high]
                sides[low], sides[high] = k.fmin(a, b), k.fmax(a, b)
            sides[AREA] = k.b.fmul(
                *(k.b.fsub(sides[high], sides[low]) for low, high in ((TOP, BOTTOM), (LEFT, RIGHT)))
            )
            for plane, value in sides.items():
                k.store(value, k.at(self.planes, k.add(i, plane * self.room), F32), 4)
            score = k.load(k.at(self.scores, i, F32), F32)
            with k.when(k.b.fcmp_ordered(">", score, least)):
                self.enter(score, k.b.trunc(i, I32), I32(0))

    def enter(self, score: Value, box: Value, seen: Value) -> None:
        k = self.k
        size = k.load(self.size, I64, 8)
        place = self.heap.at(size)
        k.store(score, place, 4)
        k.store(box, k.at(place, 1, I32), 4)
        k.store(seen, k.at(place, 2, I32), 4)
        k.b.call(self.push, [self.heap.base, size, self.words])
        k.store(k.b.add(size, I64(1)), self.size, 8)

    def leave(self) -> tuple[Value, Value, Value]:
        """The best entry."""
        k, top = self.k, self.heap.base
        found = (
            k.load(top, F32, 4),
            k.load(k.at(top, 1, I32), I32, 4),
            k.load(k.at(top, 2, I32), I32, 4),
        )
        left = k.b.sub(k.load(self.size, I64, 8), I64(1))
        k.store(left, self.size, 8)
        with k.when(k.b.icmp_signed(">", left, I64(0))):
            k.b.call(self.pop, [top, left, self.words])
        return found

    def round(self, iou: Value) -> None:
        k = self.k
        score, box, seen = self.leave()
        count = k.load(self.count, I64, 8)
        here = self.box(k.b.sext(box, I64))
        with k.loop(k.b.sext(seen, I64), count, carry=[I1(0)]) as (i, (hit,)):
            other = k.b.sext(k.load(k.at(self.chosen, i, I32), I32, 4), I64)
            over = overlap(k, here, self.box(other))
            k.carry([k.b.or_(hit, k.b.fcmp_ordered(">=", over, iou))])
        with k.when(k.b.not_(k.carried[0])):
            self.enter(score, box, k.b.trunc(count, I32))
            k.store(box, k.at(self.chosen, count, I32), 4)
            k.store(box, k.at(self.outputs[0], count, I32))
            if len(self.outputs) == 3:
                k.store(score, k.at(self.outputs[1], count, F32))
            k.store(k.b.add(count, I64(1)), self.count, 8)

    def box(self, index: Value) -> list[Value]:
        k = self.k
        return [
            k.load(k.at(self.planes, k.add(index, p * self.room), F32), F32, 4) for p in range(5)
        ]


def refuses_nms(op: Op, target: Target) -> str | None:
    boxes, scores = op.operand(0), op.operand(1)
    fits = len(boxes.shape) == 2 and boxes.shape[1:] == (4,) and scores.shape == boxes.shape[:1]
    operands = [boxes, scores, *(op.operand(i) for i in (3, 4))]
    if not fits or any(t.dtype is not DType.FLOAT32 for t in operands):
        return "its operands do not fit together"
    if not op.operand(2).is_constant or 0 in boxes.shape or 0 in op.outputs[0].shape:
        return "the number of boxes is zero or known at run time only"
    if any(np.prod(t.shape) != 1 for t in operands[2:]):
        return "its operands do not fit together"
    sigma = op.input(5)
    if sigma is not None and (sigma.data is None or np.any(sigma.data != 0)):
        return "soft suppression has no kernel"
    return None


KERNELS = {
    "NON_MAX_SUPPRESSION_V4": Kernel(emit_nms, refuses_nms),
    "NON_MAX_SUPPRESSION_V5": Kernel(emit_nms, refuses_nms),
}

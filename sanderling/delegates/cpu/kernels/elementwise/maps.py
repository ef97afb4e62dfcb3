"""cpu.MAP: one expression over broadcast tensors, element by element."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import llvmlite.ir as ir
import numpy as np

from .....ir import Array, DType, Op, Shape, Tensor
from .....ir.expr import SCALAR_OPS, Const, Expr, Input, inputs_of, render, to_str, walk
from ...codegen.elements import load, memory_type, store, widest
from ...codegen.emit import F32, I64, PTR, Emitter, Int, Value
from ...codegen.narrowing import Packing
from ...codegen.program import StepEmitter
from ...codegen.render import ROOT_HALF, render_vector
from ...codegen.vectors import WHOLE
from ..row import Kernel


@dataclass(frozen=True)
class Layout:
    """A broadcast as loops: the sizes, outermost first, and each operand's step in each of them.

    The innermost step is 1 or 0, as tensors are dense.
    """

    sizes: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]  # by operand, then by loop

    @property
    def inner(self) -> int:
        return self.sizes[-1] if self.sizes else 1


def dense_steps(shape: Shape, to: Shape) -> tuple[int, ...]:
    """Elements to move by in each dimension of `to`, over which the shape is broadcast."""
    surplus = max(len(shape) - len(to), 0)  # leading ones
    padded = (1,) * (len(to) - len(shape)) + tuple(shape)[surplus:]
    steps, step = [], 1
    for size, wide in zip(reversed(padded), reversed(to), strict=True):
        steps.append(step if size == wide and size > 1 else 0)
        step *= size
    return tuple(reversed(steps))


def collapse(to: Shape, shapes: Sequence[Shape]) -> Layout:
    """The fewest loops for these operands."""
    steps = [dense_steps(s, to) for s in shapes]
    sizes: list[int] = []
    kept: list[list[int]] = []  # by loop, then by operand
    for axis, size in enumerate(to):
        if size == 1:
            continue
        here = [s[axis] for s in steps]
        if kept and all(a == b * size for a, b in zip(kept[-1], here, strict=True)):
            sizes[-1] *= size
            kept[-1] = here
        else:
            sizes.append(size)
            kept.append(here)
    by_operand = zip(*kept, strict=True) if kept else ([() for _ in shapes])
    return Layout(tuple(sizes), tuple(tuple(s) for s in by_operand))


# Constants that stay in the code; others are read from memory, so that steps share a function.
KEPT = frozenset({0.0, 1.0, -1.0, 0.5, 2.0, 3.0, 6.0, 255.0, ROOT_HALF})


def lift(expr: Expr, first: int) -> tuple[Expr, list[float]]:
    """Replace float constants by inputs, numbered from `first`; and their values."""
    found: dict[float, int] = {}

    def leaf(node: Expr) -> Expr:
        if not node.is_const or node.dtype is not DType.FLOAT32 or node.value in KEPT:
            return node
        if not np.isfinite(node.value):
            return node
        return Input(first + found.setdefault(node.value, len(found)), DType.FLOAT32)

    return rebuild(expr, leaf), list(found)


def rebuild(expr: Expr, leaf: Callable[[Expr], Expr]) -> Expr:
    """The expression with other leaves."""

    def again(node: Expr, *args: Expr) -> Expr:
        return node if args == node.args else Expr(node.op, args, node.value)

    return render(expr, dict.fromkeys(SCALAR_OPS, again), leaf)


def renumber(expr: Expr, places: Mapping[int, int]) -> Expr:
    return rebuild(expr, lambda n: Input(places[n.value], n.dtype) if n.op == "input" else n)


@dataclass(frozen=True)
class Operand:
    """What a map reads: a tensor or a constant array."""

    dtype: DType
    shape: Shape
    tensor: Tensor | None = None
    array: Array | None = None

    def pointer(self, k: StepEmitter) -> Value:
        if self.array is not None:
            return k.constant(self.array)
        assert self.tensor is not None
        return k.ptr(self.tensor)


@dataclass(frozen=True)
class Map:
    """An expression over operands, ready to be written."""

    expr: Expr
    operands: tuple[Operand, ...]
    layout: Layout
    out: DType

    @classmethod
    def of(cls, op: Op) -> Map:
        """From a cpu.MAP op: single constants go into the expression, unread inputs go."""
        expr, out = op.attrs["expr"], op.outputs[0]
        tensors = {i: op.inputs[i] for i in inputs_of(expr)}
        values = {
            i: t
            for i, t in tensors.items()
            if t is not None and t.data is not None and t.data.size == 1
        }

        def leaf(node: Expr) -> Expr:
            tensor = values.get(node.value) if node.op == "input" else None
            if tensor is None or tensor.data is None:
                return node
            return Const(tensor.data.reshape(())[()].item(), node.dtype)

        expr = rebuild(expr, leaf)
        read = sorted(inputs_of(expr))
        expr = renumber(expr, {old: new for new, old in enumerate(read)})
        shapes = op.attrs.get("shapes") or [t.shape if t is not None else () for t in op.inputs]
        operands = tuple(_operand(op.operand(i), shapes[i]) for i in read)
        return cls(expr, operands, collapse(out.shape, [o.shape for o in operands]), out.dtype)


def _operand(tensor: Tensor, shape: Shape) -> Operand:
    return Operand(tensor.dtype, shape, tensor, tensor.data)


# A row shorter than this is worth lengthening, up to so many elements of a repeated constant.
SHORT, LONG = 256, 2048


def lengthen(m: Map) -> Map:
    """Repeat constants that go along a short innermost loop, so that the loop gets longer."""
    sizes = m.layout.sizes
    if len(sizes) < 2 or sizes[-1] >= SHORT or 0 in sizes:
        return m
    rows, inner = sizes[-2], sizes[-1]
    repeated = []
    for index, step in enumerate(m.layout.steps):
        if step[-2:] in ((inner, 1), (0, 0)):
            continue
        if m.operands[index].array is None or any(step[:-1]) or step[-1] != 1:
            return m
        repeated.append(index)
    times = max(d for d in range(1, rows + 1) if rows % d == 0 and d * inner <= max(LONG, inner))
    if times == 1:
        return m
    operands = list(m.operands)
    for index in repeated:
        array = np.tile(np.asarray(operands[index].array).reshape(-1), times)
        operands[index] = replace(operands[index], shape=array.shape, array=array, tensor=None)
    # The loop over rows is shorter; or it is gone.
    left = (rows // times,) if rows > times else ()
    steps = tuple((*s[:-2], *(s[-2] * times,) * len(left), s[-1]) for s in m.layout.steps)
    layout = Layout((*sizes[:-2], *left, inner * times), steps)
    return replace(m, operands=tuple(operands), layout=layout)


# Elements of a unit of work in one long row.
BLOCK = 1024


def emit_map(k: StepEmitter, op: Op) -> None:
    m = lengthen(Map.of(op))
    if 0 in op.outputs[0].shape:
        return
    sizes = m.layout.sizes or (1,)
    function, values = row_function(k, m)
    pointers = [o.pointer(k) for o in m.operands]
    target = k.ptr(op.outputs[0])
    params = k.constant(np.array(values, np.float32)) if values else target
    types = [memory_type(o.dtype) for o in m.operands]
    steps = [s or (0,) for s in m.layout.steps]

    def call(outer: Sequence[Int], row: Int, rows: Int, first: Int, count: Int) -> None:
        """Rows from `row`, elements from `first`, at these places of the outer loops."""
        sources = []
        for pointer, t, step in zip(pointers, types, steps, strict=True):
            place = _place(k, (*outer, row), step[:-1]) if len(sizes) > 1 else 0
            sources.append(k.at(pointer, k.add(place, k.mul(first, step[-1])), t))
        widths = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
        place = _place(k, (*outer, row), widths[:-1]) if len(sizes) > 1 else 0
        result = k.at(target, k.add(place, first), memory_type(m.out))
        strides = [I64(s[-2] if len(sizes) > 1 else 0) for s in steps]
        k.b.call(
            function,
            [*sources, result, params, k.i64(rows), k.i64(count), *strides, I64(sizes[-1])],
        )

    _split(k, sizes, call)


def _split(k: StepEmitter, sizes: Shape, call: Callable[..., None]) -> None:
    """Share the loops between the workers, by the largest pieces that still balance."""
    if len(sizes) == 1:
        begin, end = k.share(math.ceil(sizes[0] / BLOCK))
        first = k.mul(begin, BLOCK)
        last = k.min(k.mul(end, BLOCK), sizes[0])
        with k.when(k.less(first, last)):
            call((), 0, 1, first, k.sub(last, first))
        return
    rows, inner, outer = sizes[-2], sizes[-1], sizes[:-2]
    if not outer:
        begin, end = k.share(rows)
        with k.when(k.less(begin, end)):
            call((), begin, k.sub(end, begin), 0, inner)
        return
    many = math.prod(outer)
    group = math.ceil(rows / math.ceil(16 / many))
    groups = math.ceil(rows / group)
    begin, end = k.share(many * groups)
    with k.loop(begin, end) as unit:
        row = k.mul(k.rem(unit, groups), group)
        count = k.min(k.sub(rows, row), group)
        call(_unravel(k, k.div(unit, groups), outer), row, count, 0, inner)


def _unravel(k: StepEmitter, index: Int, sizes: Shape) -> list[Int]:
    places: list[Int] = []
    for size in reversed(sizes):
        places.insert(0, k.rem(index, size))
        index = k.div(index, size)
    return places


def _place(k: StepEmitter, index: Sequence[Int], steps: Sequence[int]) -> Int:
    place: Int = 0
    for i, step in zip(index, steps, strict=True):
        place = k.add(place, k.mul(i, step))
    return place


def row_function(k: StepEmitter, m: Map) -> tuple[ir.Function, list[float]]:
    """(operands..., out, params, rows, count, row steps..., out's row step), and the parameters.

    count is at least a vector's lanes, or it is the start of such a row's last piece: then the last
    vector reaches back over elements that are computed twice. A shorter row has its own function.
    """
    template, values = lift(m.expr, len(m.operands))
    lanes = k.target.width // widest(template)
    part = m.layout.inner if m.layout.inner < lanes else 0
    splats = tuple(not s or s[-1] == 0 for s in m.layout.steps)
    kinds = "".join(o.dtype.short for o in m.operands) + "_" + m.out.short
    key = f"{to_str(template)} {kinds} {splats} {part}"
    name = f"map_{kinds}_{hashlib.blake2b(key.encode(), digest_size=6).hexdigest()}"
    count = len(m.operands)
    args = [PTR] * (count + 2) + [I64] * (3 + count)
    packing = Packing.of(template, k.target) if lanes == k.target.lanes else None
    dtypes = [o.dtype for o in m.operands]
    row = _Row(template, dtypes, splats, m.out, lanes, part, len(values), packing)
    return k.program.function(name, args, row.build), values


@dataclass(frozen=True)
class _Row:
    """The function of rows: loops over rows and over vectors of a row."""

    expr: Expr
    dtypes: Sequence[DType]
    splats: Sequence[bool]
    out: DType
    lanes: int
    part: int
    params: int
    packing: Packing | None = None

    @property
    def unroll(self) -> int:
        """Short expressions are bound by the loop, long ones fill the pipeline by themselves."""
        if self.packing is not None:
            return 4
        nodes = sum(bool(n.args) for n in walk(self.expr))
        return 4 if nodes <= 6 else 2 if nodes <= 16 else 1

    def build(self, e: Emitter) -> None:
        count = len(self.dtypes)
        pointers, (out, params) = e.args[:count], e.args[count : count + 2]
        rows, length, *steps = e.args[count + 2 :]
        fixed = {
            count + i: e.splat(e.load(e.at(params, i, F32), F32), self.lanes)
            for i in range(self.params)
        }
        with e.loop(0, rows) as row:
            here = [
                e.at(p, e.mul(row, s), memory_type(d))
                for p, s, d in zip(pointers, steps, self.dtypes, strict=False)
            ]
            target = e.at(out, e.mul(row, steps[-1]), memory_type(self.out))
            known = dict(fixed)
            for i, splat in enumerate(self.splats):
                if splat:
                    known[i] = e.splat(load(e, here[i], self.dtypes[i], 0), self.lanes)
            self._row(e, here, target, length, known)

    def _row(
        self,
        e: Emitter,
        here: Sequence[Value],
        target: Value,
        length: Value,
        known: Mapping[int, Value],
    ) -> None:
        if self.part:
            self._vectors(e, here, target, [0], known, self.part)
            return
        stride = self.lanes * self.unroll
        place: Int = 0
        if self.unroll > 1:
            with e.loop(0, e.sub(length, stride - 1), stride) as place:
                starts = [e.add(place, u * self.lanes) for u in range(self.unroll)]
                self._vectors(e, here, target, starts, known, None)
        last = e.sub(length, self.lanes)
        with e.loop(place, length, self.lanes) as i:
            self._vectors(e, here, target, [e.min(i, last)], known, None)

    def _vectors(
        self,
        e: Emitter,
        here: Sequence[Value],
        target: Value,
        starts: Sequence[Int],
        known: Mapping[int, Value],
        part: int | None,
    ) -> None:
        packs = self.packing is not None and len(starts) == 4
        expr = self.packing.real if self.packing is not None and packs else self.expr
        results = []
        for start in starts:
            inputs = dict(known)
            for i, dtype in enumerate(self.dtypes):
                if i not in inputs:
                    place = e.at(here[i], start, memory_type(dtype))
                    inputs[i] = load(e, place, dtype, self.lanes, part)
            results.append(render_vector(e, expr, inputs, self.lanes))
        if self.packing is not None and packs:
            starts, results = starts[:1], [self.packing.pack(e, results)]
        for start, value in zip(starts, results, strict=True):
            store(e, value, e.at(target, start, memory_type(self.out)), self.out, part)


def overwritten(op: Op) -> list[Tensor]:
    """Operands that go along with the result, element by element. Rows must be whole vectors: of
    other rows the last vector reaches back, and elements are computed twice."""
    m, y = lengthen(Map.of(op)), op.outputs[0]
    if 0 in y.shape or not m.layout.sizes or m.layout.sizes[-1] % WHOLE:
        return []
    spread = {o.tensor for o in m.operands if math.prod(o.shape) != math.prod(y.shape)}
    along = dict.fromkeys(o.tensor for o in m.operands)
    return [t for t in along if t is not None and t not in spread and t.nbytes == y.nbytes]


KERNELS = {"cpu.MAP": Kernel(emit_map, name=lambda op: "map", overwrites=overwritten)}

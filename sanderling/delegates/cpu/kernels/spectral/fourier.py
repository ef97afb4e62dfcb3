"""The Fourier transform of real rows, and the parts of complex numbers.

A row of n real numbers is a row of n / 2 complex ones whose transform is untangled afterwards. That
transform is done in vectors of L numbers where L * L divides its length m = rows * L:

    fft_r<r>_x<L>     a pass of radix r: transforms of length `rows`, one in each lane
    fft_cross_x<L>    twiddles, L x L transposed, transforms of length L: one in each lane again
    rfft_split_x<L>   the two halves that a complex row holds, untangled, as complex64

Every pass reads and writes in order (Stockham's way), so nothing is ever bit-reversed. Between the
passes a number is two vectors, real parts and imaginary parts, side by side.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .....ir import Array, DType, Op
from .....ops.base import ints
from ...codegen import vector_math as vmath
from ...codegen.emit import F32, F64, I8, I64, PTR, Emitter, Int, Type, Value, vector
from ...codegen.program import StepEmitter
from ...codegen.vectors import horizontal
from ...isa.targets import Target
from ..move.strided import move
from ..row import Kernel

RADICES = (4, 2, 3, 5, 7)  # tried in this order
Complex = tuple[Value, Value]


# -- arithmetic -------------------------------------------------------------------------------


def _times(e: Emitter, a: Complex, w: Complex) -> Complex:
    real = e.fma(a[0], w[0], e.b.fneg(e.b.fmul(a[1], w[1])))
    return real, e.fma(a[0], w[1], e.b.fmul(a[1], w[0]))


def _plus(e: Emitter, a: Complex, b: Complex) -> Complex:
    return e.b.fadd(a[0], b[0]), e.b.fadd(a[1], b[1])


def _minus(e: Emitter, a: Complex, b: Complex) -> Complex:
    return e.b.fsub(a[0], b[0]), e.b.fsub(a[1], b[1])


def _turned(e: Emitter, a: Complex) -> Complex:
    """a * -i"""
    return a[1], e.b.fneg(a[0])


def _scaled(e: Emitter, a: Complex, w: complex) -> Complex:
    """a * w of a constant w."""
    if w == 1:
        return a
    t = a[0].type
    return _times(e, a, (e.const(t, w.real), e.const(t, w.imag)))


def roots(n: int, powers: Array) -> Array:
    """exp(-2 pi i / n) to these powers, from float64."""
    return np.exp(-2j * np.pi / n * (powers % n))


def butterfly(e: Emitter, a: Sequence[Complex]) -> list[Complex]:
    """The transform of a few numbers."""
    r = len(a)
    if r == 1:
        return list(a)
    if r == 2:
        return [_plus(e, *a), _minus(e, *a)]
    if r == 4:
        even, odd = (
            (_plus(e, a[0], a[2]), _minus(e, a[0], a[2])),
            (_plus(e, a[1], a[3]), _turned(e, _minus(e, a[1], a[3]))),
        )
        sums = [_plus(e, x, y) for x, y in zip(even, odd, strict=True)]
        return sums + [_minus(e, x, y) for x, y in zip(even, odd, strict=True)]
    found = []
    for k in range(r):
        terms = [_scaled(e, x, complex(roots(r, np.array(j * k)))) for j, x in enumerate(a)]
        total = terms[0]
        for term in terms[1:]:
            total = _plus(e, total, term)
        found.append(total)
    return found


def transform(e: Emitter, a: Sequence[Complex]) -> list[Complex]:
    """The same for more numbers, in registers."""
    values, s = list(a), 1
    for r in factors(len(a)):
        m = len(values) // (s * r)
        result: list[Complex] = [values[0]] * len(values)
        for p, q in itertools.product(range(m), range(s)):
            out = butterfly(e, [values[q + s * (p + m * j)] for j in range(r)])
            turns = roots(m * r, np.arange(r) * p)
            for k, x in enumerate(out):
                result[q + s * (r * p + k)] = _scaled(e, x, complex(turns[k])) if p else x
        values, s = result, s * r
    return values


def factors(n: int) -> list[int]:
    """n as a product of radices; what is left of it, if anything, comes last."""
    found = []
    for r in RADICES:
        while n % r == 0:
            found.append(r)
            n //= r
    return found + [n] * (n > 1)


# -- the functions ----------------------------------------------------------------------------


def _kind(lanes: int) -> Type:
    return vector(F32, lanes) if lanes > 1 else F32


def _spread(e: Emitter, scalar: Value, lanes: int) -> Value:
    return e.splat(scalar, lanes) if lanes > 1 else scalar


def _get(e: Emitter, base: Value, index: Int, lanes: int) -> Complex:
    place, t = e.mul(index, 2 * lanes), _kind(lanes)
    return (
        e.load(e.at(base, place, F32), t, 4),
        e.load(e.at(base, e.add(place, lanes), F32), t, 4),
    )


def _put(e: Emitter, value: Complex, base: Value, index: Int, lanes: int) -> None:
    place = e.mul(index, 2 * lanes)
    e.store(value[0], e.at(base, place, F32), 4)
    e.store(value[1], e.at(base, e.add(place, lanes), F32), 4)


def _build_pass(e: Emitter, r: int, lanes: int) -> None:
    """(to, by, twiddles, m, s): y[q + s (r p + k)] = W^(p k) sum_j x[q + s (p + m j)] W_r^(j k)."""
    to, by, twiddles, m, s = e.args
    with e.loop(0, m) as p:
        row = e.at(twiddles, e.mul(p, 2 * (r - 1)), F32)
        turns = [
            tuple(_spread(e, e.load(e.at(row, 2 * k + i, F32), F32, 4), lanes) for i in (0, 1))
            for k in range(r - 1)
        ]
        with e.loop(0, s) as q:
            places = [e.add(q, e.mul(s, e.add(p, e.mul(m, j)))) for j in range(r)]
            out = butterfly(e, [_get(e, by, place, lanes) for place in places])
            first = e.add(q, e.mul(s, e.mul(p, r)))
            _put(e, out[0], to, first, lanes)
            for k in range(1, r):
                value = _times(e, out[k], (turns[k - 1][0], turns[k - 1][1]))
                _put(e, value, to, e.add(first, e.mul(s, k)), lanes)


def _transposed(e: Emitter, rows: list[Value]) -> list[Value]:
    """A square of vectors, by halves: blocks of 1, 2, 4... lanes change places."""
    lanes = len(rows)
    step = 1
    while step < lanes:
        low = [i + lanes * (i & step > 0) - step * (i & step > 0) for i in range(lanes)]
        high = [x + step for x in low]
        found = list(rows)
        for i in range(lanes):
            if not i & step:
                found[i] = e.shuffle(rows[i], rows[i + step], low)
                found[i + step] = e.shuffle(rows[i], rows[i + step], high)
        rows, step = found, 2 * step
    return rows


def _build_cross(e: Emitter, lanes: int) -> None:
    """(real, imaginary, by, twiddles, rows): by rows of lanes to the transform, in two planes."""
    real, imaginary, by, twiddles, rows = e.args
    with e.loop(0, rows, lanes) as first:
        values = []
        for i in range(lanes):
            at = e.add(first, i)
            value = _get(e, by, at, lanes)
            values.append(_times(e, value, _get(e, twiddles, at, lanes)) if lanes > 1 else value)
        parts = zip(*values, strict=True)
        crossed = [_transposed(e, list(part)) if lanes > 1 else list(part) for part in parts]
        out = transform(e, list(zip(*crossed, strict=True)))
        for k, value in enumerate(out):
            place = e.add(first, e.mul(rows, k))
            e.store(value[0], e.at(real, place, F32), 4)
            e.store(value[1], e.at(imaginary, place, F32), 4)


def _join(e: Emitter, value: Complex) -> Value:
    """Real and imaginary parts side by side, as a vector."""
    lanes = value[0].type.count if isinstance(value[0].type, type(vector(F32, 2))) else 1
    if lanes == 1:
        pair = e.b.insert_element(e.undef(vector(F32, 2)), value[0], I64(0))
        return e.b.insert_element(pair, value[1], I64(1))
    order = [i // 2 + lanes * (i % 2) for i in range(2 * lanes)]
    return e.shuffle(value[0], value[1], order)


def _build_split(e: Emitter, lanes: int) -> None:
    """(to, real, imaginary, twiddles, m): rows 0 to m of the transform of 2 m real numbers.

    X[k] = (Z[k] + Z*[m - k]) / 2 - i W^k (Z[k] - Z*[m - k]) / 2; the planes have Z[m] = Z[0].
    """
    to, real, imaginary, twiddles, m = e.args
    back = list(range(lanes))[::-1]

    def mirror(plane: Value, k: Int) -> Value:
        place = e.sub(e.sub(m, k), lanes - 1)
        value = e.load(e.at(plane, place, F32), _kind(lanes), 4)
        return e.shuffle(value, None, back) if lanes > 1 else value

    half = e.const(_kind(lanes), 0.5)
    with e.loop(0, m, lanes) as i:
        k = e.min(i, e.sub(m, lanes))
        z = tuple(e.load(e.at(plane, k, F32), _kind(lanes), 4) for plane in (real, imaginary))
        other = (mirror(real, k), e.b.fneg(mirror(imaginary, k)))
        cosine, sine = (
            e.load(e.at(twiddles, e.add(e.mul(m, j), k), F32), _kind(lanes), 4) for j in (0, 1)
        )
        even, odd = _plus(e, (z[0], z[1]), other), _minus(e, (z[0], z[1]), other)
        both = _plus(e, even, _turned(e, _times(e, odd, (cosine, sine))))
        value = (e.b.fmul(both[0], half), e.b.fmul(both[1], half))
        e.store(_join(e, value), e.at(to, e.mul(k, 2), F32))
    last = e.b.fsub(e.load(real, F32, 4), e.load(imaginary, F32, 4))
    e.store(_join(e, (last, e.const(F32, 0.0))), e.at(to, e.mul(m, 2), F32))


# -- a transform ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Transform:
    """Complex, of this length, in this many lanes; or of one length in every lane."""

    length: int
    lanes: int
    across: bool = False  # every lane is a transform of its own

    @property
    def rows(self) -> int:
        return self.length if self.across else self.length // self.lanes

    def passes(self, k: StepEmitter, here: Value, there: Value) -> Value:
        """From `here`, where it may be overwritten; where the result is: here or there."""
        n, s = self.rows, 1
        for r in factors(n):
            m = n // r
            turns = roots(n, np.outer(np.arange(m), np.arange(1, r)))
            table = k.constant(np.stack([turns.real, turns.imag], -1).astype(np.float32))
            function = k.program.function(
                f"fft_r{r}_x{self.lanes}",
                [PTR, PTR, PTR, I64, I64],
                lambda e, r=r: _build_pass(e, r, self.lanes),  # type: ignore[misc]
            )
            k.b.call(function, [there, here, table, I64(m), I64(s)])
            here, there, n, s = there, here, m, s * r
        return here

    def cross(self, k: StepEmitter, real: Value, imaginary: Value, by: Value) -> None:
        lanes = self.lanes
        turns = roots(self.length, np.outer(np.arange(self.rows), np.arange(lanes)))
        table = k.constant(np.stack([turns.real, turns.imag], 1).astype(np.float32))
        function = k.program.function(
            f"fft_cross_x{lanes}", [PTR] * 4 + [I64], lambda e: _build_cross(e, lanes)
        )
        k.b.call(function, [real, imaginary, by, table, I64(self.rows)])


def lanes_for(length: int, target: Target) -> int:
    """The most lanes whose square divides the length."""
    lanes = target.lanes
    while length % (lanes * lanes):
        lanes //= 2
    return lanes


@dataclass(frozen=True)
class RealRows:
    """Real rows of `given` numbers, cut or filled with zeros to n, to n // 2 + 1 complex ones."""

    given: int
    n: int

    @property
    def even(self) -> bool:
        return self.n % 2 == 0

    @property
    def length(self) -> int:
        """The length of the complex transform."""
        return self.n // 2 if self.even else self.n

    @property
    def floats(self) -> int:
        """What it needs of memory: a row filled up, two sets of numbers, two planes."""
        return _up(self.n) + 4 * _up(self.length) + 2 * _up(self.length + 1)

    def emit(self, k: StepEmitter, to: Value, by: Value, memory: Value) -> None:
        """One row."""
        form = Transform(self.length, lanes_for(self.length, k.target))
        here = k.at(memory, _up(self.n), F32)
        there = k.at(here, 2 * _up(self.length), F32)
        real = k.at(there, 2 * _up(self.length), F32)
        imaginary = k.at(real, _up(self.length + 1), F32)
        self._part(k, self._filled(k, by, memory), here, form.lanes)
        form.cross(k, real, imaginary, form.passes(k, here, there))
        if self.even:
            self._untangle(k, to, real, imaginary)
        else:
            with k.loop(0, self.n // 2 + 1) as i:
                pair = [k.load(k.at(p, i, F32), F32, 4) for p in (real, imaginary)]
                k.store(_join(k, (pair[0], pair[1])), k.at(to, k.mul(i, 2), F32))

    def _filled(self, k: StepEmitter, by: Value, memory: Value) -> Value:
        """The row itself, or a copy of it with zeros behind."""
        if self.given >= self.n:
            return by
        k.copy(memory, by, 4 * self.given)
        k.fill(k.at(memory, self.given, F32), 4 * (self.n - self.given), 0)
        return memory

    def _part(self, k: StepEmitter, by: Value, to: Value, lanes: int) -> None:
        """The row as complex numbers: pairs, or real ones if they cannot be paired."""
        t = _kind(lanes)
        with k.loop(0, self.length // lanes) as i:
            if self.even:
                both = k.load(k.at(by, k.mul(i, 2 * lanes), F32), vector(F32, 2 * lanes), 4)
                value = tuple(_every_other(k, both, j, lanes) for j in (0, 1))
            else:
                value = (k.load(k.at(by, k.mul(i, lanes), F32), t, 4), k.const(t, 0))
            _put(k, (value[0], value[1]), to, i, lanes)

    def _untangle(self, k: StepEmitter, to: Value, real: Value, imaginary: Value) -> None:
        m = self.length
        for plane in (real, imaginary):
            k.store(k.load(plane, F32, 4), k.at(plane, m, F32), 4)
        turns = roots(self.n, np.arange(m))
        table = k.constant(np.stack([turns.real, turns.imag]).astype(np.float32))
        lanes = k.target.lanes if m >= k.target.lanes else 1
        function = k.program.function(
            f"rfft_split_x{lanes}", [PTR] * 4 + [I64], lambda e: _build_split(e, lanes)
        )
        k.b.call(function, [to, real, imaginary, table, I64(m)])


def _every_other(e: Emitter, both: Value, first: int, lanes: int) -> Value:
    if lanes == 1:
        return e.b.extract_element(both, I64(first))
    return e.shuffle(both, None, range(first, 2 * lanes, 2))


def _up(count: int) -> int:
    """Floats in whole cache lines."""
    return -(-count // 16) * 16


# -- two dimensions ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Columns:
    """Complex columns of `length` numbers, of an image of `width` columns."""

    length: int
    width: int

    @property
    def floats(self) -> int:
        """Two sets of numbers of as many lanes as there may be."""
        return 4 * self.length * 16

    def emit(self, k: StepEmitter, to: Value, by: Value, memory: Value) -> None:
        """All columns; the last lanes reach back."""
        lanes = k.target.lanes if self.width >= k.target.lanes else 1
        there = k.at(memory, 2 * self.length * lanes, F32)
        form = Transform(self.length, lanes, across=True)
        with k.loop(0, self.width, lanes) as i:
            column = k.mul(k.min(i, self.width - lanes), 2)
            with k.loop(0, self.length) as row:
                place = k.add(k.mul(row, 2 * self.width), column)
                both = k.load(k.at(by, place, F32), vector(F32, 2 * lanes), 4)
                _put(
                    k,
                    (_every_other(k, both, 0, lanes), _every_other(k, both, 1, lanes)),
                    memory,
                    row,
                    lanes,
                )
            done = form.passes(k, memory, there)
            with k.loop(0, self.length) as row:
                place = k.add(k.mul(row, 2 * self.width), column)
                k.store(_join(k, _get(k, done, row, lanes)), k.at(to, place, F32))


def emit_rfft(k: StepEmitter, op: Op) -> None:
    x, y = op.operand(0), op.outputs[0]
    height, n = ints(op.operand(1).data)
    if 0 in y.shape:
        return
    rows, width = min(height, x.shape[-2]), n // 2 + 1
    row, columns = RealRows(x.shape[-1], n), Columns(height, width)
    single = height == 1
    image = 0 if single else 2 * _up(height * width)
    source, target = k.ptr(x), k.ptr(y)
    memory = k.scratch(4 * (row.floats + (0 if single else columns.floats + image)))
    picture = k.at(memory, row.floats + columns.floats, F32)
    begin, end = k.share(math.prod(x.shape[:-2]))
    with k.loop(begin, end) as i:
        by = k.at(source, k.mul(i, math.prod(x.shape[-2:])), F32)
        to = k.at(target, k.mul(i, 2 * height * width), F32)
        with k.loop(0, rows) as j:
            row.emit(
                k,
                k.at(to if single else picture, k.mul(j, 2 * width), F32),
                k.at(by, k.mul(j, x.shape[-1]), F32),
                memory,
            )
        if not single:
            k.fill(k.at(picture, 2 * rows * width, F32), 8 * (height - rows) * width, 0)
            columns.emit(k, to, picture, k.at(memory, row.floats, F32))


def refuses_rfft(op: Op, target: Target) -> str | None:
    x, lengths = op.operand(0), op.operand(1)
    if lengths.data is None:
        return "the lengths are known at run time only"
    if x.dtype is not DType.FLOAT32 or op.outputs[0].dtype is not DType.COMPLEX64:
        return f"a transform of {x.dtype.short} has no kernel"
    if len(x.shape) < 2 or lengths.data.size != 2 or min(ints(lengths.data)) < 1:
        return "its operands do not fit together"
    for n in ints(lengths.data):
        if any(r not in RADICES for r in factors(n)):
            return f"a transform of length {n}, which has a prime factor above {max(RADICES)}"
    return None


# -- parts of complex numbers -------------------------------------------------------------------

_FLOATS = {DType.COMPLEX64: (DType.FLOAT32, F32), DType.COMPLEX128: (DType.FLOAT64, F64)}


def _part_of(which: int) -> Callable[[StepEmitter, Op], None]:
    """Every other number: a copy with strides."""

    def emit(k: StepEmitter, op: Op) -> None:
        x, y = op.operand(0), op.outputs[0]
        numbers = np.empty((math.prod(x.shape), 2), f"V{y.dtype.bits // 8}")
        move(k, k.ptr(y), np.empty(len(numbers), numbers.dtype), k.ptr(x), numbers[:, which])

    return emit


def emit_abs(k: StepEmitter, op: Op) -> None:
    x, y = op.operand(0), op.outputs[0]
    number = _FLOATS[x.dtype][1]
    size, count = y.dtype.bits // 8, math.prod(x.shape)
    if count == 0:
        return
    most = k.target.width // size
    lanes = most if count >= most else 1
    source, target = k.ptr(x), k.ptr(y)
    function = k.program.function(
        f"complex_abs_{number}_x{lanes}", [PTR, PTR], lambda e: _build_abs(e, number, lanes)
    )
    begin, end = k.share(-(-count // lanes))
    with k.loop(begin, end) as i:
        place = k.min(k.mul(i, lanes), count - lanes)
        k.b.call(
            function,
            [k.at(target, k.mul(place, size), I8), k.at(source, k.mul(place, 2 * size), I8)],
        )


def _build_abs(e: Emitter, number: Type, lanes: int) -> None:
    """(to, by): the root of the sum of squares; another way where squares leave the range."""
    to, by = e.args
    both = e.load(by, vector(number, 2 * lanes))
    if lanes == 1:
        a, b = (_vector_of_one(e, e.b.extract_element(both, I64(i))) for i in (0, 1))
    else:
        a, b = (_every_other(e, both, i, lanes) for i in (0, 1))
    squares = e.b.fadd(e.b.fmul(a, a), e.b.fmul(b, b))
    least, most = (1e-30, 1e38) if number == F32 else (1e-290, 1e307)
    good = e.b.and_(
        e.b.fcmp_ordered(">", squares, e.const(a.type, least)),
        e.b.fcmp_ordered("<", squares, e.const(a.type, most)),
    )
    with e.b.if_else(horizontal(e, good, e.b.and_)) as (simple, careful):
        with simple:
            _store_lanes(e, vmath.sqrt(e, squares), to, lanes)
        with careful:
            _store_lanes(e, _hypotenuse(e, a, b), to, lanes)


def _vector_of_one(e: Emitter, scalar: Value) -> Value:
    return e.splat(scalar, 2)


def _store_lanes(e: Emitter, value: Value, to: Value, lanes: int) -> None:
    e.store(value if lanes > 1 else e.b.extract_element(value, I64(0)), to)


def _hypotenuse(e: Emitter, a: Value, b: Value) -> Value:
    """Scaled by the longer side; infinite if a side is, whatever the other."""
    a, b = vmath.absolute(e, a), vmath.absolute(e, b)
    long, short = e.fmax(a, b), e.fmin(a, b)
    ratio = e.b.fdiv(short, long)
    found = e.b.fmul(long, vmath.sqrt(e, e.fma(ratio, ratio, e.const(a.type, 1))))
    nothing = e.b.fcmp_ordered("==", long, e.const(a.type, 0))
    found = e.b.select(nothing, e.const(a.type, 0), found)
    infinite = e.const(a.type, float("inf"))
    either = e.b.or_(e.b.fcmp_ordered("==", a, infinite), e.b.fcmp_ordered("==", b, infinite))
    return e.b.select(either, infinite, e.b.select(vmath.is_nan(e, a), a, found))


def refuses_part(op: Op, target: Target) -> str | None:
    x = op.operand(0)
    if x.dtype not in _FLOATS or op.outputs[0].dtype is not _FLOATS[x.dtype][0]:
        return f"a part of {x.dtype.short} has no kernel"
    return None


KERNELS = {
    "RFFT2D": Kernel(emit_rfft, refuses_rfft),
    "REAL": Kernel(_part_of(0), refuses_part),
    "IMAG": Kernel(_part_of(1), refuses_part),
    "COMPLEX_ABS": Kernel(emit_abs, refuses_part),
}

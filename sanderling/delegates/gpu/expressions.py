"""Elementwise operators as expressions of floats, whole numbers and truths."""

from __future__ import annotations

from collections.abc import Callable
from math import floor

import numpy as np

from ...errors import SanderlingError
from ...ir import DType, Op, Tensor
from ...ir import expr as X
from ...ir.expr import Const, Expr, Input
from ..cpu.kernels.elementwise.operands import Lowered, Refused
from ..cpu.kernels.elementwise.operators import EXPRESSIONS
from .passes.float_view import ADD_UNITS, SCALE, SIMULATE, Rounding, Sum
from .render import refusal

COPY = "gpu.COPY"


def _floor_div(op: Op) -> Expr:
    """The CPU divides floats in 64 bits, because a quotient in 32 may round up to the next whole
    number. Without its remainder, which is exact, it is a whole number but for rounding. A device
    cannot stop and report a divisor of zero, as the CPU does: the result is not finite then."""
    if op.operand(0).dtype is not DType.FLOAT32:
        found = EXPRESSIONS["FLOOR_DIV"](op)
        assert isinstance(found, Expr), "operands are repeated as NumPy has it"
        return found
    a, b = (Input(i, DType.FLOAT32) for i in (0, 1))
    is_finite = (abs(a) < np.inf) & (abs(b) < np.inf)
    return X.select(is_finite, X.round_even((a - a % b) / b), X.floor(a / b))


# Where a device's numbers ask for another expression than the CPU's.
OWN: dict[str, Callable[[Op], Expr]] = {"FLOOR_DIV": _floor_div}
ELEMENTWISE = frozenset({name for name in EXPRESSIONS if not name.startswith("cpu.")} | {
    ADD_UNITS, SIMULATE, SCALE, COPY
})  # fmt: skip


def expression(op: Op) -> tuple[Expr, list[Tensor]] | str:
    """The op as an expression of these tensors; or why it is none."""
    if op.name == SIMULATE:
        return simulator(op), [op.operand(i) for i in range(len(op.inputs))]
    if op.name == ADD_UNITS:
        return sum_of_units(op), [op.operand(0), op.operand(1)]
    if op.name == SCALE:
        return Input(0, DType.FLOAT32) * float(op.attrs["scale"]), [op.operand(0)]
    if op.name == COPY:
        x = op.operand(0)
        return Input(0, _plain(x.dtype)), [x]
    try:
        found = OWN.get(op.name, EXPRESSIONS[op.name])(op)
    except Refused as refused:
        return str(refused)
    except SanderlingError as error:
        return error.what
    lowered = found if isinstance(found, Lowered) else Lowered(list(op.inputs), found)
    if lowered.shapes is not None and lowered.shapes != [t and t.shape for t in lowered.inputs]:
        return "its operands are repeated within a dimension"
    simple = X.simplify(lowered.expr)
    reason = refusal(simple)
    if reason:
        return reason
    return _compact(simple, lowered.inputs)


def _compact(expr: Expr, inputs: list[Tensor | None]) -> tuple[Expr, list[Tensor]] | str:
    """With those inputs only that are read."""
    used = sorted(X.inputs_of(expr).items())
    tensors = [inputs[i] for i, _ in used]
    places = {i: Input(new, dtype) for new, (i, dtype) in enumerate(used)}
    known = [t for t in tensors if t is not None]
    return X.substitute(expr, places), known


def _plain(dtype: DType) -> DType:
    return DType.FLOAT32 if dtype.is_float else dtype


def simulator(op: Op) -> Expr:
    """Rounds and clamps to units as kernels of codes do. NaN is the least of them."""
    rounding: Rounding = op.attrs["rounding"]
    more = iter(range(1, len(op.inputs)))
    factor, low, finer = (
        Const(float(v[0]), DType.FLOAT32) if v.size == 1 else Input(next(more), DType.FLOAT32)
        for v in rounding.numbers
    )
    x, twice = Input(0, DType.FLOAT32), rounding.finer.max() > 1 or rounding.again
    if not rounding.exact:
        found = X.floor(x * factor * finer + 0.5) / finer if twice else x * factor
        return _bounded(_away(found, rounding.origin), rounding.low, rounding.high)
    if not twice:
        return _bounded(_away_in_parts(*_product(x, factor, low)), rounding.low, rounding.high)
    whole, rest = _product(x * finer, factor, low)
    found = (whole + X.floor(rest + 0.5)) / finer
    return _bounded(_away(found, rounding.origin), rounding.low, rounding.high)


def _away(x: Expr, origin: int) -> Expr:
    """To the next whole number, halves away from the origin."""
    if not origin:
        return X.trunc(X.select(x < 0.0, x - 0.5, x + 0.5))
    return X.select(x < float(origin), X.ceil(x - 0.5), X.floor(x + 0.5))


def _bounded(units: Expr, low: float, high: float) -> Expr:
    above = X.select(units > float(low), units, float(low))
    return X.select(above < float(high), above, float(high))


def _product(x: Expr, factor: Expr, low: Expr) -> tuple[Expr, Expr]:
    """x times a factor of two floats, as a whole number and the rest, whose sum has twice the bits
    of a float: what lies near the middle of two codes goes where the CPU's whole numbers go."""
    whole = X.floor(x * factor)
    return whole, X.fma(x, low, X.fma(x, factor, -whole))


def _away_in_parts(whole: Expr, rest: Expr) -> Expr:
    """The same of a whole number and a rest, halves away from zero."""
    return whole + X.select(whole < 0.0, X.ceil(rest - 0.5), X.floor(rest + 0.5))


# -- sums of codes --------------------------------------------------------------------------------

STEPS = 2.0**20  # of the larger scale, twice: what operands of a sum are rounded to


def sum_of_units(op: Op) -> Expr:
    """ADD and SUB of codes: both operands in steps, their sum scaled to the result's units."""
    found: Sum = op.attrs["sum"]
    a, b = (_in_steps(Input(i, DType.FLOAT32), *share) for i, share in enumerate(found.shares))
    total, rest = a[0] + b[0] * found.sign, a[1] + b[1] * found.sign
    high, low = (Const(v, DType.FLOAT32) for v in parts_of(found.factor))
    product = total * high
    whole = X.floor(product)
    parts = X.floor((product - whole) * found.finer)
    # What is less than a part of a unit is small, so that a float has many bits of it.
    less = (product - whole) - parts * (1 / found.finer) + X.fma(total, high, -product)
    less = X.fma(total, low, X.fma(rest, high, less))
    near = (parts + X.floor(less * found.finer + 0.5)) * (1 / found.finer)
    return _bounded(_away_in_parts(whole, near), found.low, found.high)


def _in_steps(x: Expr, share: float, finer: float) -> tuple[Expr, Expr]:
    """x times a share, in two parts: one that is exact, for units and the first bits of the share
    are few; one that is rounded to steps, as the definition does it: to parts of a step, and those
    to steps, halves away from zero. Products with the next bits are exact, too; only what is left
    behind those is not, and that is little."""
    first, second = floor(share * 2**12) / 2**12, floor(share * 2**24) / 2**24
    more = x * ((second - first) * STEPS)
    whole = X.floor(more)
    near = (more - whole) + x * ((share - second) * STEPS)
    near = X.floor(near * finer + 0.5) * (1 / finer)
    near = X.select(x < 0.0, X.ceil(near - 0.5), X.floor(near + 0.5))
    return x * first, (whole + near) * (1 / STEPS)


def parts_of(factor: float) -> tuple[float, float]:
    """A number as two floats."""
    high = float(np.float32(factor))
    return high, float(np.float32(factor - high))

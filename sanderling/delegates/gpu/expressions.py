"""Elementwise operators as expressions of floats, whole numbers and truths."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import SanderlingError
from ...ir import DType, Op, Tensor
from ...ir import expr as X
from ...ir.expr import Const, Expr, Input
from ..cpu.kernels.elementwise.operands import Lowered, Refused
from ..cpu.kernels.elementwise.operators import EXPRESSIONS
from .passes.float_view import SCALE, SIMULATE, Rounding
from .render import refusal

COPY = "gpu.COPY"


def _floor_div(op: Op) -> Expr:
    """The CPU divides floats in 64 bits, because a quotient in 32 may round up to the next whole
    number. Without its remainder, which is exact, it is a whole number but for rounding."""
    found = EXPRESSIONS["FLOOR_DIV"](op)
    assert isinstance(found, Expr), "operands are repeated as NumPy has it"
    if op.operand(0).dtype is not DType.FLOAT32:
        return found
    a, b = (Input(i, DType.FLOAT32) for i in (0, 1))
    return X.round_even((a - a % b) / b)


# Where a device's numbers ask for another expression than the CPU's.
OWN: dict[str, Callable[[Op], Expr]] = {"FLOOR_DIV": _floor_div}
ELEMENTWISE = frozenset({name for name in EXPRESSIONS if not name.startswith("cpu.")} | {
    SIMULATE, SCALE, COPY
})  # fmt: skip


def expression(op: Op) -> tuple[Expr, list[Tensor]] | str:
    """The op as an expression of these tensors; or why it is none."""
    if op.name == SIMULATE:
        return simulator(op), [op.operand(i) for i in range(len(op.inputs))]
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
    factor, finer = (
        Const(float(v[0]), DType.FLOAT32) if v.size == 1 else Input(next(more), DType.FLOAT32)
        for v in (rounding.factor, rounding.finer)
    )
    x = Input(0, DType.FLOAT32) * factor
    if rounding.finer.max() > 1:
        x = X.floor(x * finer + 0.5) / finer
    units = X.trunc(X.select(x < 0.0, x - 0.5, x + 0.5))  # halves away from zero
    low, high = float(rounding.low), float(rounding.high)
    bounded = X.select(units > low, units, low)
    return X.select(bounded < high, bounded, high)

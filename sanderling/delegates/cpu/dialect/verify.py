"""The rules that the compiler's own ops keep: operands, types, shapes, what goes with what.

A pass leaves a graph that keeps them. Tests look after every pass, as does a checked build.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ....errors import DelegateError
from ....format.schema import default_options
from ....ir import DType, Graph, Op, Tensor
from ....ir.expr import Expr, inputs_of
from ....ir.verify import Problem
from ..runtime.image import REPORT
from .chains import CHAIN, CHAINS, Chain, unchained
from .fused import (
    BF16,
    DYNAMIC,
    FUSED,
    NOTHING,
    OPERATORS,
    OWN,
    PRECISIONS,
    Fused,
    Inputs,
    operator,
)
from .guards import GUARD
from .ops import OWN_OPS

BYTES = (DType.INT8, DType.UINT8)
# The operators that each field of a record goes with: what their rows in the kernel table say,
# which stands above this module (tests/cpu/test_table.py compares them).
WINDOWS = ("CONV_2D", "DEPTHWISE_CONV_2D")
WITH_RESIDUAL = (*WINDOWS, "FULLY_CONNECTED")
ROUNDED = ("CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV", "BATCH_MATMUL")
ENCODED = (*WITH_RESIDUAL, "TRANSPOSE_CONV")
SPARSE = ("CONV_2D", "FULLY_CONNECTED")
SIGNED = ("AVERAGE_POOL_2D", "L2_NORMALIZATION", "RESIZE_BILINEAR")


def check(graph: Graph, after: str) -> None:
    """Raise with the first problem that a pass has left."""
    for problem in problems(graph):
        what = f"after '{after}': {problem.what}"
        raise DelegateError(what, where=problem.where, fix=problem.fix)


def problems(graph: Graph) -> list[Problem]:
    """Everything that is wrong with the ops of a graph, in their order."""
    return [Problem(op.where, what, REPORT, "dialect") for op in graph.ops for what in wrong(op)]


def wrong(op: Op) -> Iterator[str]:
    """What is wrong with one op."""
    if GUARD in op.attrs and not _is_guard(op.attrs[GUARD]):
        yield "its guard is not a row of (one bool, how it has to be)"
    row = OWN_OPS.get(op.name)
    if row is None:
        if op.name.startswith(OWN):
            yield "the compiler has no such op"
        if FUSED in op.attrs or CHAIN in op.attrs:
            yield "an operator of the schema has a record of the compiler's"
        return
    least, most = row.counts
    if not least <= len(op.inputs) <= (most or math.inf):
        yield f"it has {len(op.inputs)} operands, not '{row.operands}'"
    elif len(op.outputs) != len(row.results.split()):
        yield f"it has {len(op.outputs)} results, not '{row.results}'"
    elif missing := [n for n in row.attrs.split() if n[0] != "[" and n not in op.attrs]:
        yield f"it has no attribute '{missing[0]}'"
    else:
        yield from RULES.get(op.name, _no_more)(op)


def _is_guard(found: object) -> bool:
    return isinstance(found, tuple) and bool(found) and all(map(_is_condition, found))


def _is_condition(found: object) -> bool:
    match found:
        case (Tensor(dtype=DType.BOOL, shape=shape), bool()):
            return math.prod(shape) == 1
    return False


def _no_more(op: Op) -> Iterator[str]:
    return iter(())


# -- what is fused in ---------------------------------------------------------------------------


class Rule(NamedTuple):
    """what: said of an op whose record does not hold."""

    what: str
    holds: Callable[[Op, Fused], bool]


def _fused(op: Op) -> Iterator[str]:
    record = Fused.of(op)
    yield from (rule.what for rule in FUSED_RULES if not rule.holds(op, record))


def _is_complete(op: Op, record: Fused) -> bool:
    return default_options(operator(op)).keys() <= op.attrs.keys()


def _says_something(op: Op, record: Fused) -> bool:
    """A transposed convolution has the name for the order of its operands."""
    return record != NOTHING or operator(op) == "TRANSPOSE_CONV"


def _is_padding(op: Op, record: Fused) -> bool:
    if record.padding is None:
        return True
    if operator(op) not in WINDOWS or op.attrs["padding"] != "VALID":
        return False
    return len(record.padding) == 4 and min(record.padding) >= 0


def _has_padded_size(op: Op, record: Fused) -> bool:
    """The result is as large as the windows make it."""
    if record.padding is None or not _is_padding(op, record):
        return True
    data, weights, *_ = Inputs.of(op)
    assert data is not None and weights is not None
    for axis, letter in ((1, "h"), (2, "w")):
        reach = (weights.shape[axis] - 1) * op.attrs[f"dilation_{letter}_factor"] + 1
        size = data.shape[axis] + sum(record.padding[2 * axis - 2 : 2 * axis])
        if op.outputs[0].shape[axis] != (size - reach) // op.attrs[f"stride_{letter}"] + 1:
            return False
    return True


def _has_operands(op: Op, record: Fused) -> bool:
    given = Inputs.of(op)
    residual, table = given.residual is not None, given.table is not None
    return record.residual == residual and (record.precision == DYNAMIC) == table


def _is_residual(op: Op, record: Fused) -> bool:
    """One element for each of the result, of the result's type."""
    residual, out = Inputs.of(op).residual, op.outputs[0]
    if residual is None:
        return True
    if operator(op) not in WITH_RESIDUAL or not same_elements(residual, out):
        return False
    codes = out.dtype in BYTES and operator(op) != "DEPTHWISE_CONV_2D"
    return residual.dtype is out.dtype and (codes or out.dtype is DType.FLOAT32)


def same_elements(a: Tensor, b: Tensor) -> bool:
    """The same shape, but for sizes of one in front."""
    rank = max(len(a.shape), len(b.shape))
    shapes = [(1,) * (rank - len(t.shape)) + t.shape for t in (a, b)]
    return shapes[0] == shapes[1]


def _is_inner(op: Op, record: Fused) -> bool:
    """Where an 8-bit residual is added, and only there."""
    needed = record.is_added and op.outputs[0].dtype in BYTES
    if record.inner is None:
        return not needed
    low, high = op.outputs[0].dtype.bounds
    return needed and record.inner[0] > 0 and low <= record.inner[1] <= high


def _is_map(op: Op, record: Fused) -> bool:
    """The map is a function of the float32 result and, if there is one, the residual."""
    if record.map is None:
        return True
    read = inputs_of(record.map)
    floats = {record.map.dtype, *read.values()} == {DType.FLOAT32}
    known = read.keys() <= ({0, 1} if record.residual else {0})
    real = op.outputs[0].dtype in (DType.FLOAT32, DType.BFLOAT16)
    return operator(op) in WITH_RESIDUAL and floats and known and real


def _is_precision(op: Op, record: Fused) -> bool:
    data, weights, *_ = Inputs.of(op)
    if record.precision not in PRECISIONS:
        return False
    if not record.precision or data is None or weights is None:
        return not record.precision
    if record.precision == BF16:
        real = data.dtype in (DType.FLOAT32, DType.BFLOAT16) and weights.dtype is DType.FLOAT32
        return operator(op) in ROUNDED and real
    codes = data.dtype in BYTES and weights.dtype.is_integer
    return operator(op) in ENCODED and codes and op.outputs[0].dtype is DType.FLOAT32


def _is_signed(op: Op, record: Fused) -> bool:
    data = op.inputs[0]
    return not record.signed or (
        operator(op) in SIGNED and data is not None and data.dtype in BYTES
    )


def _leaves_zeros_out(op: Op, record: Fused) -> bool:
    """Where weights are known. Rounded pairs have no kernel that does."""
    weights = Inputs.of(op).weights
    known = weights is not None and weights.data is not None
    able = operator(op) in SPARSE and known and record.precision != BF16
    return able or not record.zeros


FUSED_RULES = (
    Rule("an attribute of its operator is left to a default", _is_complete),
    Rule("its record says nothing", _says_something),
    Rule("its record's padding does not go with it", _is_padding),
    Rule("its result has not the size that the padding gives", _has_padded_size),
    Rule("its record and its operands disagree about residual or table", _has_operands),
    Rule("its residual has not the result's shape and type", _is_residual),
    Rule("scale and zero point of its product do not go with a residual of codes", _is_inner),
    Rule("its map is not one of the float32 result and the residual", _is_map),
    Rule("its precision does not go with its types", _is_precision),
    Rule("its codes were not int8", _is_signed),
    Rule("its zeros cannot be left out", _leaves_zeros_out),
)


# -- the others ---------------------------------------------------------------------------------


def _chain(op: Op) -> Iterator[str]:
    chain = op.attrs[CHAIN]
    stages = unchained(op) if isinstance(chain, Chain) else []
    if tuple(map(operator, stages)) != CHAINS[op.name]:
        yield "its stages are not those of its name"
        return
    for stage in stages:
        yield from (f"{stage.name}: {what}" for what in wrong(stage))


def _map(op: Op) -> Iterator[str]:
    expr: Expr = op.attrs["expr"]
    tensors = dict(enumerate(op.inputs))
    for place, dtype in inputs_of(expr).items():
        tensor = tensors.get(place)
        if tensor is None or tensor.dtype is not dtype:
            yield f"its expression reads operand {place} as {dtype.short}, which it is not"
    if expr.dtype is not op.outputs[0].dtype:
        yield f"its expression gives {expr.dtype.short}, not {op.outputs[0].dtype.short}"


def _table(op: Op) -> Iterator[str]:
    x = op.inputs[0]
    if x is None or x.dtype not in BYTES or op.outputs[0].dtype not in BYTES:
        yield "it is not from 8-bit codes to 8-bit codes"
    if op.attrs["table"].nbytes != 256:
        yield f"its table has {op.attrs['table'].nbytes} bytes, not 256"


def _flip(op: Op) -> Iterator[str]:
    x, y = op.inputs[0], op.outputs[0]
    if x is None or {x.dtype, y.dtype} != {*BYTES} or x.shape != y.shape:
        yield "it is not from one 8-bit type to the other"


RULES: dict[str, Callable[[Op], Iterator[str]]] = {
    **dict.fromkeys(OPERATORS, _fused),
    **dict.fromkeys(CHAINS, _chain),
    "cpu.MAP": _map,
    "cpu.LUT": _table,
    "cpu.FLIP": _flip,
}

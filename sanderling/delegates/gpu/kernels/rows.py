"""Operators that normalise rows of the last dimension: SOFTMAX and its kin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ....ir import Op
from ....ops.base import attr
from .. import layout
from ..language import FLOAT, REAL, Value
from ..steps import Node, StepWriter, View, Writer
from .reduce import MAXIMUM, reduce_row
from .row import Row


def _each_row(s: StepWriter, shape: Sequence[int]) -> list[Value]:
    """A run for every row: the place, all dimensions but the last."""
    width, outer = shape[-2] if len(shape) > 1 else 1, shape[:-2]
    column, rest = s.k.grid(width, prod(outer))
    return [*s.places(rest, outer), *([column] if len(shape) > 1 else [])]


def _sum_of(s: StepWriter, x: View, term: Callable[[Value], Value]) -> Value:
    """The sum of a term over all elements of a row, which is given each vector; in 32 bits: in 16 a
    sum of ones ends at 2048."""
    k = s.k
    total = k.var(k.zero(kind=REAL), "a")
    with k.loop(0, x.slices, hint="c") as c:
        k.assign(total, total + s.valid(c, k.let(k.cast(term(c), REAL)), x.shape[-1]))
    return k.let((total.lane(0) + total.lane(1)) + (total.lane(2) + total.lane(3)))


def emit_softmax(w: Writer, node: Node) -> None:
    beta = float(attr(node.op, "beta"))
    with w.kernel("softmax", node) as s:
        k = s.k
        x, _ = s.reads(node.first()), s.result()
        at = _each_row(s, x.shape)
        most = reduce_row(s, x, at, MAXIMUM).splat(4)

        def power(c: Value) -> Value:
            return k.call("exp", (x.at(at, c) - most) * beta)

        inverse = k.let(1.0 / _sum_of(s, x, power))
        with k.loop(0, x.slices, hint="c") as c:
            s.put(at, c, k.cast(k.cast(power(c), REAL) * inverse.splat(4), FLOAT))


def emit_log_softmax(w: Writer, node: Node) -> None:
    with w.kernel("log_softmax", node) as s:
        k = s.k
        x, _ = s.reads(node.first()), s.result()
        at = _each_row(s, x.shape)
        most = reduce_row(s, x, at, MAXIMUM).splat(4)
        total = _sum_of(s, x, lambda c: k.call("exp", x.at(at, c) - most))
        log = k.let(k.call("log", total)).splat(4)
        with k.loop(0, x.slices, hint="c") as c:
            s.put(at, c, k.cast(k.cast(x.at(at, c) - most, REAL) - log, FLOAT))


LEAST_NORM = 1e-6


def emit_l2_normalization(w: Writer, node: Node) -> None:
    with w.kernel("l2_normalization", node) as s:
        k = s.k
        x, _ = s.reads(node.first()), s.result()
        at = _each_row(s, x.shape)

        def square(c: Value) -> Value:
            value = k.let(k.cast(x.at(at, c), REAL))
            return value * value

        # In 32 bits, too: 16 do not hold one over the least norm.
        norm = k.maximum(k.call("sqrt", _sum_of(s, x, square)), LEAST_NORM)
        inverse = k.let(1.0 / norm).splat(4)
        with k.loop(0, x.slices, hint="c") as c:
            s.put(at, c, k.cast(k.cast(x.at(at, c), REAL) * inverse, FLOAT))


def _refuses_l2(op: Op) -> str | None:
    name = str(attr(op, "fused_activation_function"))
    return None if name == "NONE" else f"the fused activation {name} has no kernel"


def emit_local_response(w: Writer, node: Node) -> None:
    """Each element over a power of the sum of squares of its neighbours in the row."""
    op, depth = node.op, layout.dims(node.first().shape)[-1]
    radius = min(int(attr(op, "radius")), depth)
    bias, alpha, beta = (float(attr(op, name)) for name in ("bias", "alpha", "beta"))
    with w.kernel("local_response", node) as s:
        k = s.k
        x, y = s.reads(node.first()), s.result()
        *at, slice_ = s.each_vector(y.shape)
        lanes = []
        for lane in range(4):
            channel = k.let(slice_ * 4 + lane)
            total = k.var(k.value(0.0, REAL), "a")
            first, last = k.maximum(channel - radius, 0), k.minimum(channel + radius + 1, depth)
            with k.loop(k.let(first), k.let(last)) as c:
                value = k.let(k.cast(x.one([*at, c]), REAL))
                k.assign(total, total + value * value)
            lanes.append(total)
        sums = k.let(k.join(lanes) * alpha + bias)
        # A power as WGSL has it, too: the sum of squares and the bias is above zero.
        power = k.call("exp", k.call("log", sums) * -beta)
        s.put(at, slice_, k.cast(k.cast(x.at(at, slice_), REAL) * power, FLOAT))


KERNELS = {
    "SOFTMAX": Row(emit_softmax),
    "LOG_SOFTMAX": Row(emit_log_softmax),
    "L2_NORMALIZATION": Row(emit_l2_normalization, _refuses_l2),
    "LOCAL_RESPONSE_NORMALIZATION": Row(emit_local_response),
}

"""Functions written with the arithmetic that an accelerator has."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..ir import DType, Quant, Tensor
from ..ir.rewrite import CONST, Match, P, Var
from ..ops.base import attr
from ..ops.fixed import ACTIVATION_BOUNDS
from ..passes.common import activation
from .steps import EIGHT_BITS, Attributes, Rewrite, Steps, is_fixed, is_float, need

NONE: Attributes = {"fused_activation_function": "NONE"}


class Sums:
    """Float arithmetic between tensors and numbers, as ops of `make`."""

    def __init__(self, make: Steps, *tensors: Tensor | None) -> None:
        need(is_float(*tensors, *make.root.outputs))
        self.make = make

    def of(self, name: str, a: Tensor, b: Tensor | float, out: Tensor | None = None) -> Tensor:
        """A binary op with no activation; a number is a constant."""
        operand = b if isinstance(b, Tensor) else self.make.constant(np.float32(b))
        attrs: Attributes = NONE if name in ("ADD", "SUB", "MUL", "DIV") else {}
        return self.make.op(name, [a, operand], out, **attrs)

    def unary(self, name: str, a: Tensor, out: Tensor | None = None) -> Tensor:
        return self.make.op(name, [a], out)

    def reduced(self, name: str, a: Tensor, axes: Sequence[int]) -> Tensor:
        where = self.make.constant(np.array(axes, np.int32))
        return self.make.op(name, [a, where], keep_dims=True)


# -- activations --------------------------------------------------------------------------------


def _hard_swish(make: Steps, match: Match) -> None:
    """x/6 * relu6(x + 3). The sixth goes first: x/6 has the codes of x under another scale."""
    x = match["x"]
    coded = x.dtype in EIGHT_BITS
    need(coded or is_float(x, make.out))
    sixth, three = (make.constant(np.float32(v), x) for v in (1 / 6, 3.0))
    low = {DType.INT8: -128, DType.UINT8: 0}.get(x.dtype, 0)
    smaller = Quant.of(x.quantisation.scale / 6, x.quantisation.zero_point) if coded else None
    clamped = Quant.of(6 / 255, low) if coded else None
    part = make.op("MUL", [x, sixth], quant=smaller, **NONE)
    gate = make.op("ADD", [x, three], quant=clamped, fused_activation_function="RELU6")
    make.op("MUL", [part, gate], make.out, **NONE)


def _leaky_prelu(make: Steps, match: Match) -> None:
    x, alpha = match["x"], float(attr(match.root, "alpha"))
    need((is_float(x) or x.dtype in EIGHT_BITS) and len(x.shape) > 1)
    slopes = np.full((*(1,) * (len(x.shape) - 2), x.shape[-1]), alpha, np.float32)
    make.op("PRELU", [x, make.constant(slopes, x)], make.out)


def _leaky_limit(make: Steps, match: Match) -> None:
    x, alpha = match["x"], float(attr(match.root, "alpha"))
    sums = Sums(make, x)
    sums.of("MAXIMUM" if alpha <= 1 else "MINIMUM", x, sums.of("MUL", x, alpha), make.out)


def _leaky_relu(make: Steps, match: Match) -> None:
    """alpha x + (1 - alpha) relu(x)."""
    x, alpha = match["x"], float(attr(match.root, "alpha"))
    sums = Sums(make, x)
    above = sums.of("MUL", sums.unary("RELU", x), 1 - alpha)
    sums.of("ADD", sums.of("MUL", x, alpha), above, make.out)


def _prelu(make: Steps, match: Match) -> None:
    """relu(x) - alpha relu(-x), without a difference."""
    x, alpha = match["x"], match["alpha"]
    sums = Sums(make, x, alpha)
    below = sums.unary("RELU", sums.of("MUL", x, -1.0))
    slopes = make.constant(-alpha.values)
    sums.of("ADD", sums.unary("RELU", x), sums.of("MUL", below, slopes), make.out)


def _limit_relu(make: Steps, match: Match) -> None:
    """max(x, c) is c + relu(x - c), min(x, c) is c - relu(c - x)."""
    x, c = match["x"], match["c"]
    sums = Sums(make, x, c)
    sign = 1.0 if match.root.name == "MAXIMUM" else -1.0
    away = sums.of("ADD", sums.of("MUL", x, sign), make.constant(-sign * c.values))
    above = sums.of("MUL", sums.unary("RELU", away), sign)
    sums.of("ADD", above, c, make.out)


def _activation_apart(make: Steps, match: Match) -> None:
    name = activation(match.root)
    need(name in ("RELU", "RELU6", "RELU_N1_TO_1", "TANH") and name in ACTIVATION_BOUNDS)
    inner = make.again(match.root.inputs, **NONE)
    need(inner.shape == make.out.shape)
    make.op(name, [inner], make.out)


def _unit_clamp(make: Steps, match: Match) -> None:
    sums = Sums(make, match["x"])
    sums.of("MINIMUM", sums.unary("RELU", match["x"]), 1.0, make.out)


def _gelu_tanh(make: Steps, match: Match) -> None:
    """x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), which is what `approximate` means."""
    x = match["x"]
    need(attr(match.root, "approximate"))
    sums = Sums(make, x)
    square = sums.of("MUL", sums.of("MUL", x, x), 0.044715)
    inner = sums.of("MUL", x, sums.of("ADD", square, 1.0))
    gate = sums.unary("TANH", sums.of("MUL", inner, float(np.sqrt(2 / np.pi))))
    sums.of("MUL", sums.of("MUL", x, 0.5), sums.of("ADD", gate, 1.0), make.out)


# -- powers and quotients -----------------------------------------------------------------------

POWERS: dict[float, Callable[[Sums, Tensor, Tensor], Tensor]] = {
    2.0: lambda sums, x, out: sums.of("MUL", x, x, out),
    0.5: lambda sums, x, out: sums.unary("SQRT", x, out),
    -0.5: lambda sums, x, out: sums.unary("RSQRT", x, out),
    3.0: lambda sums, x, out: sums.of("MUL", sums.of("MUL", x, x), x, out),
}


def _power(make: Steps, match: Match) -> None:
    exponents = np.unique(match["c"].values)
    need(exponents.size == 1 and float(exponents[0]) in POWERS)
    need(match["x"].shape == make.out.shape)
    POWERS[float(exponents[0])](Sums(make, match["x"]), match["x"], make.out)


def _square(make: Steps, match: Match) -> None:
    Sums(make, match["x"]).of("MUL", match["x"], match["x"], make.out)


def _squared_difference(make: Steps, match: Match) -> None:
    sums = Sums(make, match["x"], match["y"])
    difference = sums.of("SUB", match["x"], match["y"])
    sums.of("MUL", difference, difference, make.out)


def _quotient(make: Steps, match: Match) -> None:
    c = match["c"]
    need(is_float(match["x"], c))
    with np.errstate(all="ignore"):
        inverse = np.reciprocal(c.values)
    need(np.all(np.isfinite(inverse)) and np.all(inverse != 0))
    how = activation(match.root)
    operand = make.constant(inverse)
    make.op("MUL", [match["x"], operand], make.out, fused_activation_function=how)


def _difference(make: Steps, match: Match) -> None:
    need(is_float(match["x"], match["c"]))
    how, operand = activation(match.root), make.constant(-match["c"].values)
    make.op("ADD", [match["x"], operand], make.out, fused_activation_function=how)


def _negated(make: Steps, match: Match) -> None:
    Sums(make, match["x"]).of("MUL", match["x"], -1.0, make.out)


def _difference_sum(make: Steps, match: Match) -> None:
    """x - y as x + -1 y."""
    x, y = match["x"], match["y"]
    sums, how = Sums(make, x, y), activation(match.root)
    operand = sums.of("MUL", y, -1.0)
    make.op("ADD", [x, operand], make.out, fused_activation_function=how)


def _ceil(make: Steps, match: Match) -> None:
    sums = Sums(make, match["x"])
    floor = sums.unary("FLOOR", sums.of("MUL", match["x"], -1.0))
    sums.of("MUL", floor, -1.0, make.out)


def _absolute(make: Steps, match: Match) -> None:
    sums = Sums(make, match["x"])
    sums.of("MAXIMUM", match["x"], sums.of("MUL", match["x"], -1.0), make.out)


# -- sums over an axis --------------------------------------------------------------------------


def _softmax_beta(make: Steps, match: Match) -> None:
    x, beta = match["x"], float(attr(match.root, "beta"))
    need(beta != 1)
    scaled = Sums(make, x).of("MUL", x, beta)
    make.again([scaled], make.out, beta=1.0)


def _log_softmax(make: Steps, match: Match) -> None:
    """x - max - log(sum(exp(x - max)))."""
    x = match["x"]
    sums, last = Sums(make, x), [len(x.shape) - 1]
    away = sums.of("SUB", x, sums.reduced("REDUCE_MAX", x, last))
    total = sums.reduced("SUM", sums.unary("EXP", away), last)
    sums.of("SUB", away, sums.unary("LOG", total), make.out)


def _unit_length(make: Steps, match: Match) -> None:
    x = match["x"]
    sums, smallest = Sums(make, x), 1e-6**2
    length = sums.reduced("SUM", sums.of("MUL", x, x), [len(x.shape) - 1])
    factor = sums.unary("RSQRT", sums.of("MAXIMUM", length, smallest))
    need(activation(match.root) == "NONE")
    sums.of("MUL", x, factor, make.out)


def _sum_as_mean(make: Steps, match: Match) -> None:
    op, x = match.root, match["x"]
    need(is_fixed(op) and int(np.prod(make.out.shape)) > 0)
    count = int(np.prod(x.shape)) // int(np.prod(make.out.shape))
    sums = Sums(make, x)
    mean = make.op("MEAN", op.inputs, **{"keep_dims": attr(op, "keep_dims")})
    sums.of("MUL", mean, float(count), make.out)


X, Y, C = Var("x"), Var("y"), Var("c", CONST)
ACTIVATED = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV", "ADD", "SUB",
             "MUL", "DIV", "AVERAGE_POOL_2D", "MAX_POOL_2D", "CONCATENATION")  # fmt: skip
REWRITES = (
    Rewrite(
        "HARD_SWISH as RELU6", P("HARD_SWISH", X), _hard_swish,
        "HARD_SWISH is not taken", "x/6 * RELU6(x + 3)",
    ),
    Rewrite(
        "LEAKY_RELU as PRELU", P("LEAKY_RELU", X), _leaky_prelu,
        "LEAKY_RELU is not taken", "PRELU with the same slope in every channel",
    ),
    Rewrite(
        "LEAKY_RELU as MAXIMUM", P("LEAKY_RELU", X), _leaky_limit,
        "LEAKY_RELU is not taken", "MAXIMUM(x, alpha x)",
    ),
    Rewrite(
        "LEAKY_RELU as RELU", P("LEAKY_RELU", X), _leaky_relu,
        "LEAKY_RELU is not taken", "alpha x + (1 - alpha) RELU(x)",
    ),
    Rewrite(
        "PRELU as RELU", P("PRELU", X, Var("alpha", CONST)), _prelu,
        "PRELU is not taken", "RELU(x) - alpha RELU(-x)",
    ),
    Rewrite(
        "limit as RELU", P(("MAXIMUM", "MINIMUM"), X, C, commutes=True), _limit_relu,
        "MAXIMUM and MINIMUM are not taken", "c + RELU(x - c), c - RELU(c - x)",
    ),
    Rewrite(
        "RELU_0_TO_1 as RELU", P("RELU_0_TO_1", X), _unit_clamp,
        "RELU_0_TO_1 is not taken", "MINIMUM(RELU(x), 1)",
    ),
    Rewrite(
        "activation apart", P(ACTIVATED), _activation_apart,
        "the op's fused activation is not taken", "the op without it, and the activation",
    ),
    Rewrite(
        "GELU as TANH", P("GELU", X), _gelu_tanh,
        "GELU is not taken", "its approximation with TANH, where the model asks for that",
    ),
    Rewrite(
        "POW as products", P("POW", X, C), _power,
        "POW is not taken", "x x, x x x, SQRT or RSQRT for powers of 2, 3, 0.5 and -0.5",
    ),
    Rewrite("SQUARE as MUL", P("SQUARE", X), _square, "SQUARE is not taken", "x x"),
    Rewrite(
        "SQUARED_DIFFERENCE as MUL", P("SQUARED_DIFFERENCE", X, Y), _squared_difference,
        "SQUARED_DIFFERENCE is not taken", "a SUB and a MUL",
    ),
    Rewrite(
        "DIV as MUL", P("DIV", X, C), _quotient,
        "DIV is not taken", "MUL by the inverse of the constant",
    ),
    Rewrite(
        "SUB as ADD", P("SUB", X, C), _difference,
        "SUB is not taken", "ADD of the negated constant",
    ),
    Rewrite(
        "SUB as ADD and MUL", P("SUB", X, Y), _difference_sum,
        "SUB is not taken", "ADD of the operand times -1",
    ),
    Rewrite("NEG as MUL", P("NEG", X), _negated, "NEG is not taken", "x times -1"),
    Rewrite("ABS as MAXIMUM", P("ABS", X), _absolute, "ABS is not taken", "MAXIMUM(x, -x)"),
    Rewrite("CEIL as FLOOR", P("CEIL", X), _ceil, "CEIL is not taken", "-FLOOR(-x)"),
    Rewrite(
        "SOFTMAX of a product", P("SOFTMAX", X), _softmax_beta,
        "SOFTMAX has a beta other than 1", "MUL by beta, and SOFTMAX",
    ),
    Rewrite(
        "LOG_SOFTMAX as sums", P("LOG_SOFTMAX", X), _log_softmax,
        "LOG_SOFTMAX is not taken", "x - max - LOG(SUM(EXP(x - max)))",
    ),
    Rewrite(
        "L2_NORMALIZATION as sums", P("L2_NORMALIZATION", X), _unit_length,
        "L2_NORMALIZATION is not taken", "x RSQRT(SUM(x x))",
    ),
    Rewrite(
        "SUM as MEAN", P("SUM", X), _sum_as_mean, "SUM is not taken", "MEAN times the count",
    ),
)  # fmt: skip

"""What is fused into an op: one frozen record under one attribute, and operands by name.

A product that does more than its operator gets a name of its own: CONV_2D becomes cpu.CONV_2D. Then
    its attributes are all of the operator's (none is left to a default), and the record under FUSED
    its operands are those of Inputs, in that order
    its result is map(activation(product + bias + residual)); but where the map reads Input(1), that
    is the residual, and it is not added: map(activation(product + bias), residual)

`verify` has the rules that a record keeps, `definition` computes what such an op means.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ....format.schema import default_options
from ....ir import DType, Op, Quant, Tensor
from ....ir.expr import Expr, inputs_of

OWN = "cpu."  # what names of the compiler's own ops begin with
FUSED = "fused"  # the attribute that holds the record
BF16, DYNAMIC = "bf16", "dynamic"
# The operators that something can be fused into, by the names of the fused ops.
OPERATORS = {
    OWN + name: name
    for name in (
        "CONV_2D",
        "DEPTHWISE_CONV_2D",
        "FULLY_CONNECTED",
        "TRANSPOSE_CONV",
        "BATCH_MATMUL",
        "AVERAGE_POOL_2D",
        "L2_NORMALIZATION",
        "RESIZE_BILINEAR",
    )
}


@dataclass(frozen=True)
class Fused:
    """padding: zeros around the data, (top, bottom, left, right). The op's own padding is VALID.

    residual: there is an operand of that name, of the result's shape.
    inner: (scale, zero point) of the codes that the product alone would have had, before an 8-bit
    residual is added. The result's quantisation is that of the sum.
    map: a function of the activated float32 result, which is Input(0).
    precision: BF16 rounds both operands of a product of floats to bfloat16 and sums in float32;
    DYNAMIC multiplies codes that the data were quantised to on the fly (operand `table`).
    signed: the codes were int8 before they moved to the type of activations, and the operator
    rounds the two types in different ways.
    zeros: weights of zero are left out of the product.
    """

    padding: tuple[int, int, int, int] | None = None
    residual: bool = False
    inner: tuple[float, int] | None = None
    map: Expr | None = None
    precision: str = ""
    signed: bool = False
    zeros: bool = False

    @classmethod
    def of(cls, op: Op) -> Fused:
        """The op's record; an empty one where nothing is fused in."""
        found: Fused = op.attrs.get(FUSED, NOTHING)
        return found

    @property
    def is_added(self) -> bool:
        """The residual is added to the product: the map does not read it."""
        return self.residual and not (self.map is not None and 1 in inputs_of(self.map))

    def __str__(self) -> str:
        """In plain words, in the order in which it is done."""
        return "; ".join(text for text in self._texts() if text) or "nothing"

    def _texts(self) -> Iterable[str]:
        sides = zip(("top", "bottom", "left", "right"), self.padding or (), strict=False)
        yield "padding " * bool(self.padding) + ", ".join(f"{side} {n}" for side, n in sides)
        yield PRECISIONS[self.precision]
        yield "codes were int8" * self.signed
        yield "zeros left out" * self.zeros
        if self.inner is not None:
            yield f"product in codes of scale {self.inner[0]:.6g}, zero point {self.inner[1]}"
        yield "plus residual" * self.is_added
        yield "" if self.map is None else f"then {self.map}"


NOTHING = Fused()
PRECISIONS = {"": "", BF16: "in bf16", DYNAMIC: "data quantised on the fly"}


class Inputs(NamedTuple):
    """A product's operands by name. table: (zero point, step) of each group of dynamic data."""

    data: Tensor | None
    weights: Tensor | None
    bias: Tensor | None = None
    residual: Tensor | None = None
    table: Tensor | None = None

    @classmethod
    def of(cls, op: Op) -> Inputs:
        """The operands of a product of the schema or of the compiler."""
        places = PLACES.get(op.name, range(len(cls._fields)))
        return cls(*(op.input(place) for place in places))

    def listed(self) -> list[Tensor | None]:
        """As an op holds them: none absent at the end."""
        found = list(self)
        while found and found[-1] is None:
            found.pop()
        return found


RESIDUAL, TABLE = Inputs._fields.index("residual"), Inputs._fields.index("table")
# Where an operator has them, if not in this order.
PLACES = {"TRANSPOSE_CONV": (2, 1, 3)}


def operator(op: Op) -> str:
    """The name of the operator that something is fused into; any other op's own name."""
    return OPERATORS.get(op.name, op.name)


def either(*names: str) -> tuple[str, ...]:
    """The names of these operators, with and without something fused in."""
    return tuple(each for name in names for each in (name, OWN + name))


def where(op: Op) -> str:
    """How users are told of an op: by the operator, whatever is fused into it."""
    return op.where.removeprefix(OWN) if op.name in OPERATORS else op.where


def fuse(op: Op, **more: Any) -> Op:
    """Fuse more into an op, in place. Its operands are those of Inputs already."""
    name = operator(op)
    record = replace(Fused.of(op), **more)
    op.attrs = {**default_options(name), **op.attrs, FUSED: record}
    op.name = OWN + name
    return op


def unfused(op: Op) -> Op:
    """The operator alone, as the schema has it, with the result that it would have had; in no
    graph. It tells scales and costs."""
    if op.name not in OPERATORS:
        return op
    record, (out, *others) = Fused.of(op), op.outputs
    if record.inner is not None:
        out = out.copy()
        out.quant = Quant.of(*record.inner)
    attrs = {key: value for key, value in op.attrs.items() if key != FUSED}
    return Op(operator(op), _given(op), [out, *others], attrs)


def _given(op: Op) -> list[Tensor | None]:
    """The operands in the operator's order."""
    if operator(op) != "TRANSPOSE_CONV":
        return list(op.inputs[:RESIDUAL])
    shape = np.array(op.outputs[0].shape, np.int32)
    data, weights, bias = Inputs.of(op)[:RESIDUAL]
    given = [Tensor("shape", DType.INT32, shape.shape, data=shape), weights, data]
    return given if bias is None else [*given, bias]

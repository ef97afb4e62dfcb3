"""What a rewrite is, and how it writes the ops that take an op's place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import SanderlingError
from ..ir import Array, DType, Graph, Op, Quant, Tensor
from ..ir.rewrite import Match, P, matches
from ..ops import Spec, definition, infer
from ..optimize.modes.rules import RULES

EIGHT_BITS = (DType.INT8, DType.UINT8)
Attributes = dict[str, Any]


class Declined(Exception):
    """The rewrite matches the op, but cannot be done here."""


def need(holds: object) -> None:
    """Decline the rewrite unless this holds."""
    if not holds:
        raise Declined


class Steps:
    """The ops that take the place of one op, in their order. The last ones write its outputs."""

    def __init__(self, graph: Graph, root: Op) -> None:
        self.graph, self.root = graph, root
        self.ops: list[Op] = []
        self.constants: list[Tensor] = []

    @property
    def out(self) -> Tensor:
        """The output of an op that has one."""
        return self.root.outputs[0]

    def constant(self, values: npt.ArrayLike, like: Tensor | None = None) -> Tensor:
        """Make a constant. With `like`, these are reals, stored in that tensor's type."""
        array = np.asarray(values)
        quant = None if like is None else real_quant(like, array)
        dtype = DType.of(array.dtype) if like is None else like.dtype
        name = f"{self.out.name}/constant{len(self.constants)}"
        made = Tensor(name, dtype, array.shape, data=encoded(array, dtype, quant), quant=quant)
        self.constants.append(made)
        return made

    def op(
        self,
        name: str,
        inputs: Sequence[Tensor | None],
        out: Tensor | None = None,
        quant: Quant | None = None,
        **attrs: Any,
    ) -> Tensor:
        """Append an op with one result and return that: `out`, or a new tensor of the type and
        quantisation of the first operand, whose shape is inferred. The rewrite is declined if the
        operator does not take these types."""
        made = out or self._new(inputs, quant)
        op = Op(name, inputs, [made], attrs, version=version_of(name, [*inputs, made]))
        need(definition(op).rule.allows(op))
        if out is None:
            made.shape = self._shape(op)
        self.ops.append(op)
        return made

    def reshape(
        self, x: Tensor, shape: Iterable[int] | None = None, out: Tensor | None = None
    ) -> Tensor:
        sizes = [int(n) for n in (shape if out is None else out.shape) or ()]
        if x.is_constant and out is None:
            return self._constant_view(x, sizes)
        operand = self.constant(np.array(sizes, np.int32))
        return self.op("RESHAPE", [x, operand], out, new_shape=sizes)

    def _constant_view(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        need(x.quant is None or not x.quant.per_axis)
        name = f"{x.name}/view{len(self.ops)}"
        return Tensor(name, x.dtype, sizes, data=x.values.reshape(sizes), quant=x.quant)

    def again(
        self,
        inputs: Sequence[Tensor | None],
        out: Tensor | None = None,
        root: Op | None = None,
        **attrs: Any,
    ) -> Tensor:
        """Append the root itself (or another op) on other operands and with other attributes."""
        op = root or self.root
        quant = op.outputs[0].quant
        made = self.op(op.name, inputs, out, quant, **{**op.attrs, **attrs})
        self.ops[-1].version = max(op.version, self.ops[-1].version)
        self.ops[-1].options = op.options
        return made

    def _new(self, inputs: Sequence[Tensor | None], quant: Quant | None) -> Tensor:
        first = next(t for t in inputs if t is not None)
        name = f"{self.out.name}/step{len(self.ops)}"
        return Tensor(name, first.dtype, (), quant=quant or first.quant)

    def _shape(self, op: Op) -> tuple[int, ...]:
        specs = [None if t is None else Spec(t.dtype, t.shape, t.data) for t in op.inputs]
        try:
            found = infer(op, specs)[0].shape
        except SanderlingError as error:
            raise Declined from error
        need(found is not None)
        return found or ()


def version_of(name: str, tensors: Sequence[Tensor | None]) -> int:
    """The version of a new op, which follows from the types it works on."""
    coded = any(t is not None and t.dtype in EIGHT_BITS and t.quant is not None for t in tensors)
    row = RULES.get(name)
    return row.versions[8] if coded and row is not None else 1


def real_quant(like: Tensor, reals: Array) -> Quant | None:
    """How constant reals are stored beside a tensor: one scale that its type can hold them with."""
    if not like.dtype.is_integer or like.quant is None:
        return None
    largest = float(np.max(np.abs(reals), initial=0.0)) or 1.0
    zero = 128 if like.dtype is DType.UINT8 else 0
    return Quant.of(largest / 127, zero)


def encoded(reals: Array, dtype: DType, quant: Quant | None) -> Array:
    if quant is None:
        return reals.astype(dtype.numpy)
    codes = np.rint(reals / quant.scale[0]) + quant.zero_point[0]
    return np.clip(codes, *dtype.bounds).astype(dtype.numpy)


# -- rewrites -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rewrite:
    """One row of the table.

    mends: what accelerators refuse. does: what is written instead. exact: the answer is the same
    but for the rounding of floats (a quantised one is off by a few units at most).
    """

    name: str
    pattern: P
    write: Callable[[Steps, Match], object]
    mends: str
    does: str
    exact: bool = True

    def apply(self, graph: Graph, op: Op) -> list[Op] | None:
        """Put other ops in this op's place; None if the rewrite does not apply to it."""
        for match in matches(graph, self.pattern, op):
            steps = Steps(graph, op)
            try:
                self.write(steps, match)
            except Declined:
                continue
            replace_op(graph, op, steps.ops)
            return steps.ops
        return None


def replace_op(graph: Graph, root: Op, ops: Sequence[Op]) -> None:
    """Let these ops, the last of which write the root's outputs, stand for it."""
    for op in ops:
        graph.insert(op, before=root)
    graph.erase(root)


# -- judging ------------------------------------------------------------------------------------


def is_float(*tensors: Tensor | None) -> bool:
    return all(t is None or t.dtype is DType.FLOAT32 for t in tensors)


def is_fixed(op: Op) -> bool:
    """Say whether all shapes of the op are known."""
    return not any(t is not None and t.is_dynamic for t in (*op.inputs, *op.outputs))


def constant_of(tensor: Tensor | None) -> Tensor:
    """A parameter that is constant; the rewrite is declined if it is not."""
    if tensor is None or not tensor.is_constant:
        raise Declined
    return tensor


def integers(tensor: Tensor | None) -> list[int]:
    """The values of a constant parameter."""
    return [int(n) for n in constant_of(tensor).values.reshape(-1)]

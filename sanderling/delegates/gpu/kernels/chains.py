"""Operators that others with kernels stand for, where a module of their own would hold little."""

from __future__ import annotations

from math import prod

import numpy as np

from ....ir import DType, Op, Tensor
from ....ops.base import attr


def fully_connected_as_matmul(op: Op) -> list[Op] | None:
    """Weights or a bias that a run computes; None if both are constant."""
    x, weights, bias, out = op.operand(0), op.operand(1), op.input(2), op.outputs[0]
    if weights.is_constant and (bias is None or bias.is_constant):
        return None
    units, depth = weights.shape
    points = prod(x.shape) // depth
    rows = Tensor(f"{out.name}/rows", DType.FLOAT32, (points, depth))
    made = Tensor(f"{out.name}/product", DType.FLOAT32, (points, units))
    shaped = Tensor(f"{out.name}/shaped", DType.FLOAT32, out.shape)
    zeros = Tensor(f"{out.name}/zeros", DType.FLOAT32, (units,), data=np.zeros(units, np.float32))
    activation = {"fused_activation_function": attr(op, "fused_activation_function")}
    return [
        Op("RESHAPE", [x], [rows]),
        Op("BATCH_MATMUL", [rows, weights], [made], {"adj_x": False, "adj_y": True}),
        Op("RESHAPE", [made], [shaped]),
        Op("ADD", [shaped, bias or zeros], [out], activation),
    ]


# Tensors that an op of many reads in one kernel: with the result, as many as any device takes.
MOST_READ = 7


def few_added_at_once(op: Op) -> list[Op] | None:
    """Sums of some, and theirs, where there are more than one kernel reads."""
    if len(op.inputs) <= MOST_READ:
        return None
    out, chain = op.outputs[0], list[Op]()
    for first in range(0, len(op.inputs), MOST_READ):
        total = Tensor(f"{out.name}/{first}", out.dtype, out.shape)
        chain.append(Op("ADD_N", op.inputs[first : first + MOST_READ], [total]))
    return [*chain, Op("ADD_N", [made.outputs[0] for made in chain], [out])]


def select_as_select_v2(op: Op) -> list[Op] | None:
    """A condition of one dimension chooses whole rows; None if it has as many as the operands."""
    condition, yes, no = (op.operand(i) for i in range(3))
    if len(condition.shape) != 1 or len(yes.shape) < 2:
        return None
    shape = (*condition.shape, *(1 for _ in yes.shape[1:]))
    tall = Tensor(f"{op.outputs[0].name}/condition", condition.dtype, shape)
    return [
        Op("RESHAPE", [condition], [tall]),
        Op("SELECT_V2", [tall, yes, no], list(op.outputs)),
    ]

"""Expressions (ir/expr.py) in PyTorch, with gradients: a function for each scalar operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...ir import DType
from ...ir.expr import Expr, render

TYPES: dict[DType, torch.dtype] = {
    DType.FLOAT32: torch.float32, DType.FLOAT16: torch.float16, DType.BFLOAT16: torch.bfloat16,
    DType.FLOAT64: torch.float64, DType.INT8: torch.int8, DType.UINT8: torch.uint8,
    DType.INT16: torch.int16, DType.INT32: torch.int32, DType.INT64: torch.int64,
    DType.BOOL: torch.bool, DType.COMPLEX64: torch.complex64,
}  # fmt: skip


def evaluate(expr: Expr, inputs: list[torch.Tensor | None]) -> torch.Tensor:
    """The value for these inputs, elementwise with broadcasting."""

    def leaf(node: Expr) -> torch.Tensor:
        if node.op == "input":
            found = inputs[node.value]
            assert found is not None, "an expression reads operands that are there"
            return found
        return torch.tensor(node.value, dtype=TYPES[node.dtype])

    def rule(node: Expr, *args: torch.Tensor) -> torch.Tensor:
        return OPERATORS[node.op](node, *args)

    return render(expr, dict.fromkeys(OPERATORS, rule), leaf)


Operator = Callable[..., torch.Tensor]


def _plain(function: Callable[..., Any]) -> Operator:
    return lambda node, *args: function(*args)


def _div(node: Expr, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


OPERATORS: dict[str, Operator] = {
    "add": _plain(torch.add),
    "sub": _plain(torch.sub),
    "mul": _plain(torch.mul),
    "div": _div,
    "floor_div": _plain(lambda a, b: torch.div(a, b, rounding_mode="floor")),
    "floor_mod": _plain(torch.remainder),
    "pow": _plain(torch.pow),
    "atan2": _plain(torch.atan2),
    "fma": _plain(lambda a, b, c: torch.addcmul(c, a, b)),
    "maximum": _plain(torch.maximum),
    "minimum": _plain(torch.minimum),
    "neg": _plain(torch.neg),
    "abs": _plain(torch.abs),
    "sign": _plain(torch.sign),
    "exp": _plain(torch.exp),
    "log": _plain(torch.log),
    "tanh": _plain(torch.tanh),
    "sqrt": _plain(torch.sqrt),
    "rsqrt": _plain(torch.rsqrt),
    "sin": _plain(torch.sin),
    "cos": _plain(torch.cos),
    "erf": _plain(torch.erf),
    "floor": _plain(torch.floor),
    "ceil": _plain(torch.ceil),
    "trunc": _plain(torch.trunc),
    "round_even": _plain(torch.round),
    "less": _plain(torch.lt),
    "less_equal": _plain(torch.le),
    "greater": _plain(torch.gt),
    "greater_equal": _plain(torch.ge),
    "equal": _plain(torch.eq),
    "not_equal": _plain(torch.ne),
    "and": _plain(torch.bitwise_and),
    "or": _plain(torch.bitwise_or),
    "xor": _plain(torch.bitwise_xor),
    "not": _plain(torch.bitwise_not),
    "shift_left": _plain(torch.bitwise_left_shift),
    "shift_right": _plain(torch.bitwise_right_shift),
    "select": _plain(torch.where),
    "cast": lambda node, x: x.to(TYPES[node.dtype]),
}

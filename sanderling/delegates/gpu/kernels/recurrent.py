"""The basic LSTM cell, as products and elementwise operators."""

from __future__ import annotations

from ....ir import DType, Op, Tensor
from ....ops.base import attr
from .row import Row, first_of, need_constant


def basic_cell(op: Op) -> list[Op]:
    """Gates are in the file's order: input, new state, forget, output."""
    x, activation, weights, bias, state = (op.operand(i) for i in range(5))
    out, new_state, joined, gates = op.outputs
    batch, depth = activation.shape
    chain: list[Op] = []

    def make(name: str, *inputs: Tensor) -> Tensor:
        made = Tensor(f"{out.name}/{len(chain)}", DType.FLOAT32, (batch, depth))
        chain.append(Op(name, inputs, [made]))
        return made

    chain.append(Op("CONCATENATION", [x, activation], [joined], {"axis": 1}))
    chain.append(Op("FULLY_CONNECTED", [joined, weights, bias], [gates]))
    parts = [Tensor(f"{gates.name}/{i}", DType.FLOAT32, (batch, depth)) for i in range(4)]
    axis = Tensor(f"{gates.name}/axis", DType.INT32, (), data=1)
    chain.append(Op("SPLIT", [axis, gates], parts, {"num_splits": 4}))
    admit, update, forget, emit = parts
    admitted = make("MUL", make("LOGISTIC", admit), make("TANH", update))
    kept = make("MUL", make("LOGISTIC", forget), state)
    chain.append(Op("ADD", [admitted, kept], [new_state]))
    shown, level = make("LOGISTIC", emit), make("TANH", new_state)
    return [*chain, Op("MUL", [shown, level], [out])]


def _refuses(op: Op) -> str | None:
    if str(attr(op, "kernel_type")) != "BASIC":
        return "only the basic cell has a kernel"
    if op.operand(0).dtype is not DType.FLOAT32:
        return "the 8-bit cell has no kernel"
    if str(attr(op, "fused_activation_function")) != "TANH":
        return "its activation is not TANH"
    if attr(op, "cell_clip") or attr(op, "proj_clip"):
        return "a clipped state has no kernel"
    return None


KERNELS = {"LSTM": Row.made_of(basic_cell, first_of(_refuses, need_constant(2, 3)))}

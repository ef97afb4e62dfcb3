"""LSTM: the basic cell is made of products and elementwise operators, others have kernels."""

from __future__ import annotations

from ....ir import DType, Op, Tensor
from ....ops.base import attr
from .lstm import emit_lstm, refuses_lstm
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


def _is_basic(op: Op) -> bool:
    return op.name == "LSTM" and str(attr(op, "kernel_type")) == "BASIC"


def _becomes(op: Op) -> list[Op] | None:
    return basic_cell(op) if _is_basic(op) else None


def _refuses(op: Op) -> str | None:
    return first_of(_refuses_basic, need_constant(2, 3))(op) if _is_basic(op) else refuses_lstm(op)


def _refuses_basic(op: Op) -> str | None:
    if op.operand(0).dtype is not DType.FLOAT32:
        return "the basic cell of codes has no kernel"
    if str(attr(op, "fused_activation_function")) != "TANH":
        return "its activation is not TANH"
    if attr(op, "cell_clip") or attr(op, "proj_clip"):
        return "a clipped state has no kernel"
    return None


ROW = Row(emit_lstm, _refuses, becomes=_becomes, keeps_state=True)
KERNELS = {"LSTM": ROW, "UNIDIRECTIONAL_SEQUENCE_LSTM": ROW}

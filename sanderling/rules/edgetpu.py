"""Google's Edge TPU: what its compiler maps, as its documentation says.

All is 8-bit, sizes and parameters are constant, and there is one part: from the first op that is
refused on, all ops run on the CPU.
"""

from __future__ import annotations

import math

from ..ir import Graph, Op, Tensor
from .rule import (
    NO_ACTIVATION,
    Border,
    GraphRule,
    Rule,
    Table,
    attribute,
    attribute_of,
    computed,
    elements,
    is_type,
    operands,
    rows,
    unset,
    values_of,
    where,
)

SOURCE = "coral.ai/docs/edgetpu/models-intro"
CODES = "u8 i8"
MOST_SOFTMAX = 16_000
# Operands that are values; all others are parameters.
VALUES = {"ADD": 2, "SUB": 2, "MUL": 2, "MAXIMUM": 2, "MINIMUM": 2, "SQUARED_DIFFERENCE": 2}


# -- looks at an op ------------------------------------------------------------------------------


def _parameters(op: Op) -> list[Tensor]:
    if op.name in ("CONCATENATION", "PACK", "UNIDIRECTIONAL_SEQUENCE_LSTM"):
        return []
    if op.name == "TRANSPOSE_CONV":
        return [t for t in op.inputs[:2] + op.inputs[3:] if t is not None]
    if op.name == "SPLIT":
        return operands(op)[:1]
    return operands(op)[VALUES.get(op.name, 1) :]


def _values(op: Op) -> list[Tensor]:
    """What is computed, parameters apart."""
    parameters = _parameters(op)
    return [*(t for t in computed(op) if t not in parameters), *op.outputs]


def _outer(tensor: Tensor) -> int:
    """Elements of all axes but the three innermost."""
    return math.prod(tensor.shape[:-3])


def _axes(op: Op, place: int = 1) -> list[int]:
    """Constant axes, counted from the front."""
    rank = len(op.operand(0).shape)
    return [axis % rank if rank else 0 for axis in values_of(op, place) or ()]


def _leaves_batch(op: Op) -> bool:
    """No reduction over the batch; of all axes of a tensor of up to three, none is the batch."""
    return len(op.operand(0).shape) < 4 or 0 not in _axes(op)


def _depth_is_even(op: Op) -> bool:
    x = op.operand(0)
    return len(x.shape) - 1 not in _axes(op) or x.shape[-1] % 4 == 0


def _pads_no_batch(op: Op) -> bool:
    found = values_of(op, 1) or ()
    return len(op.operand(0).shape) < 4 or not any(found[:2])


def _same_dilation(op: Op) -> bool:
    return attribute_of(op, "dilation_h_factor") == attribute_of(op, "dilation_w_factor")


def _joins_zeros(op: Op) -> bool:
    fixed = [t for t in operands(op) if t.is_constant]
    return not fixed or (len(op.inputs) == 2 and not any(t.values.any() for t in fixed))


def _splits_no_batch(op: Op) -> bool:
    axis = values_of(op, 0) or [0]
    rank = len(op.operand(1).shape)
    return rank < 4 or axis[0] % rank != 0


def _is_row(x: Tensor) -> bool:
    """Say whether only the last axis is longer than 1; a scalar has none."""
    return elements(x) == (x.shape or (1,))[-1]


def _steps_by_one(op: Op) -> bool:
    return all(step == 1 for step in values_of(op, 3) or ())


# -- rows ----------------------------------------------------------------------------------------

NO_BATCH = where("shape", "the batch is not reduced", _leaves_batch)
DILATION = where("attribute", "both dilations are equal", _same_dilation)

ROWS: dict[str, tuple[Rule, ...]] = rows(
    ("ADD SUB MUL MAXIMUM MINIMUM SQUARED_DIFFERENCE LOGISTIC RELU RELU6 RELU_N1_TO_1 TANH RSQRT "
     "L2_NORMALIZATION EXPAND_DIMS QUANTIZE RESHAPE SLICE SPACE_TO_DEPTH SQUEEZE TRANSPOSE "
     "TRANSPOSE_CONV UNIDIRECTIONAL_SEQUENCE_LSTM", ()),
    ("AVERAGE_POOL_2D MAX_POOL_2D", (NO_ACTIVATION,)),
    ("CONCATENATION", (NO_ACTIVATION,
        where("constant", "a constant input is all zeros, and one of two", _joins_zeros))),
    ("CONV_2D DEPTHWISE_CONV_2D", (DILATION,)),
    ("FULLY_CONNECTED", (attribute("weights_format", "DEFAULT"),
        where("shape", "the result is one row", lambda op: _is_row(op.outputs[0])))),
    ("MEAN", (NO_BATCH, where("shape", "the depth is a multiple of 4 if it is reduced",
        _depth_is_even))),
    ("REDUCE_MAX REDUCE_MIN SUM", (NO_BATCH,)),
    ("PACK", (where("attribute", "it does not pack a batch",
        lambda op: attribute_of(op, "axis") != 0 or len(op.outputs[0].shape) < 4),)),
    ("PAD", (where("shape", "the batch is not padded", _pads_no_batch),)),
    ("PRELU", (where("shape", "alpha has one axis", lambda op: _is_row(op.operand(1))),)),
    ("RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR", (where("shape", "there is one batch",
        lambda op: op.operand(0).shape[0] == 1),)),
    ("SOFTMAX", (where("shape", f"the input is one row of at most {MOST_SOFTMAX} elements",
        lambda op: _is_row(op.outputs[0]) and elements(op.outputs[0]) <= MOST_SOFTMAX),)),
    ("SPLIT", (where("shape", "the batch is not split", _splits_no_batch),)),
    ("STRIDED_SLICE", (where("attribute", "all steps are 1", _steps_by_one), unset("ellipsis_mask"),
        unset("new_axis_mask"))),
)  # fmt: skip
# Types first: where weights are computed of float16 constants, it is the floats that are refused.
EVERY = (
    where(
        "types",
        "all that is computed is u8 or i8",
        lambda op: all(is_type(t, CODES) for t in _values(op)),
        lambda op: ", ".join(sorted({t.dtype.short for t in _values(op)})),
    ),
    where(
        "constant",
        "all parameters are constant",
        lambda op: all(t.is_constant for t in _parameters(op)),
    ),
    where(
        "rank",
        "only the three innermost axes are longer than 1",
        lambda op: all(_outer(t) == 1 for t in (*computed(op), *op.outputs)),
    ),
)


def _open(graph: Graph) -> str | None:
    tensors = (*graph.inputs, *(t for op in graph.ops for t in op.outputs))
    found = next((t for t in tensors if t.is_dynamic), None)
    return None if found is None else f"the size of '{found.name}' is open"


def _makes_codes(op: Op) -> bool:
    """The CPU makes codes of a model's float inputs."""
    return op.name == "QUANTIZE" and is_type(op.input(0), "f32") and op.operand(0).producer is None


# Over USB 3; on a board with PCIe it is less.
BORDER = Border(call_us=500.0, bytes_per_us=300.0)
TABLES = (
    Table(
        "edgetpu",
        "Google's Edge TPU",
        SOURCE,
        ROWS,
        EVERY,
        (GraphRule("every size is known before the run", _open),),
        is_first_part=True,
        leads_in=_makes_codes,
        border=BORDER,
    ),
)

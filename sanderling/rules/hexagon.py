"""TensorFlow Lite's Hexagon delegate, for Qualcomm's DSPs: 8-bit ops alone."""

from __future__ import annotations

from ..ir import Op
from ..runtime.partition import Limits
from .rule import (
    NEVER,
    NO_ACTIVATION,
    STATIC_SIZES,
    UNDILATED,
    Border,
    Rule,
    Table,
    activation,
    at_most,
    attribute,
    attribute_of,
    constant,
    elements,
    has_input,
    input_count,
    input_type,
    is_dilated,
    is_type,
    most_rank,
    operands,
    per_axis,
    rows,
    unset,
    version,
    when,
    where,
)

SOURCE = "tflite/delegates/hexagon/utils.cc"
LIMITS_SOURCE = "tflite/delegates/hexagon/hexagon_delegate.cc"
CODES = "u8 i8"
RELUS = activation("NONE RELU RELU6 RELU_N1_TO_1")


def typed(*names: str) -> tuple[Rule, ...]:
    """So many inputs, of these types."""
    return (input_count(len(names)), *(input_type(i, n) for i, n in enumerate(names)))


ALL_CODES = where(
    "types",
    "all inputs are u8 or i8",
    lambda op: all(is_type(t, CODES) for t in operands(op)),
)
ONE, TWO = typed(CODES), typed(CODES, CODES)
AXES = (*typed(CODES, "i32"), constant(1, "the second input"))


def _is_same_padded(op: Op) -> bool:
    return attribute_of(op, "padding") == "SAME"


def _multiplies_one_channel(op: Op) -> bool:
    one = attribute_of(op, "depth_multiplier") == 1
    shape = op.operand(0).shape
    return one or (not is_dilated(op) and len(shape) == 4 and shape[3] == 1)


def _kernel_height(op: Op) -> int:
    return op.operand(1).shape[1] if len(op.operand(1).shape) > 1 else 2


STRIDES = at_most("stride_h stride_w", 3)
CONVOLUTION = (*typed(CODES, CODES, "i32"), has_input(2, "a bias"), RELUS, STRIDES)

ROWS = rows(
    # versions
    ("ADD ARG_MAX ARG_MIN AVERAGE_POOL_2D CONCATENATION L2_NORMALIZATION LOGISTIC MAXIMUM "
     "MAX_POOL_2D MEAN MINIMUM MIRROR_PAD MUL PACK PAD QUANTIZE RELU6 SLICE SOFTMAX SPACE_TO_DEPTH "
     "DEPTH_TO_SPACE SPLIT STRIDED_SLICE SUB TANH TRANSPOSE", (version(2),)),
    ("SQUARED_DIFFERENCE RELU RSQRT", (version(2, least=2),)),
    ("CONV_2D DEPTHWISE_CONV_2D RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR TRANSPOSE_CONV",
        (version(3),)),
    ("FULLY_CONNECTED", (version(4),)),
    ("RESHAPE HARD_SWISH NEG", (version(1),)),
    # conditions
    ("ADD SUB MUL", (*TWO, RELUS)),
    ("MAXIMUM MINIMUM", TWO),
    ("HARD_SWISH LOGISTIC NEG QUANTIZE RELU RELU6 SOFTMAX TANH DEPTH_TO_SPACE SPACE_TO_DEPTH", ONE),
    ("AVERAGE_POOL_2D", (*ONE, NO_ACTIVATION)),
    ("MAX_POOL_2D", (*ONE, NO_ACTIVATION, *when("the padding is SAME", _is_same_padded,
        at_most("filter_height filter_width", 12)))),
    ("CONV_2D", (*CONVOLUTION, UNDILATED)),
    ("DEPTHWISE_CONV_2D", (
        *CONVOLUTION,
        *when("it is dilated", is_dilated, attribute("stride_h", 1), attribute("stride_w", 1)),
        where("attribute", "depth_multiplier is 1, or one channel is convolved undilated",
            _multiplies_one_channel),
        where("shape", "the kernel's height is 2 or more", lambda op: _kernel_height(op) >= 2,
            lambda op: f"it is {_kernel_height(op)}"),
    )),
    ("TRANSPOSE_CONV", (input_count(3, 4), input_type(0, "i32"), input_type(1, CODES),
        input_type(2, CODES), input_type(3, "i32"), STRIDES)),
    ("FULLY_CONNECTED", (
        *typed(CODES, CODES, "i32"),
        where("quantisation", "the weights have one scale", lambda op: not per_axis(op.input(1))),
        constant(2, "the bias"),
        RELUS,
        unset("keep_num_dims"),
        attribute("weights_format", "DEFAULT"),
    )),
    ("MEAN PAD RESIZE_NEAREST_NEIGHBOR", AXES),
    ("MIRROR_PAD", (*AXES, attribute("mode", "REFLECT", "SYMMETRIC"))),
    ("RESIZE_BILINEAR", (*AXES, where("shape", "the size has two elements",
        lambda op: elements(op.operand(1)) == 2))),
    ("ARG_MAX ARG_MIN TRANSPOSE", typed(CODES, "i32")),
    ("CONCATENATION PACK", (ALL_CODES,)),
    ("RESHAPE", (where("operands", "it has at most 2 inputs", lambda op: len(op.inputs) <= 2),
        input_type(0, CODES))),
    ("L2_NORMALIZATION", (*ONE, NO_ACTIVATION)),
    ("SLICE",
        (*typed(CODES, "i32 i64", "i32 i64"), constant(1, "the begin"), constant(2, "the size"))),
    ("SPLIT", (*typed("i32", CODES), constant(0, "the axis"))),
    ("STRIDED_SLICE", (
        *typed(CODES, "i32", "i32", "i32"),
        constant(1, "the begin"),
        constant(2, "the end"),
        constant(3, "the step"),
        unset("ellipsis_mask"),
        unset("new_axis_mask"),
    )),
    ("SQUARED_DIFFERENCE", typed("i8", "i8")),
    ("RSQRT", typed("i8")),
    ("SUM", (NEVER,)),
)  # fmt: skip

# A remote call to the DSP, which reads the CPU's memory after a flush of caches.
BORDER = Border(call_us=400.0, bytes_per_us=2000.0)
TABLES = (
    Table(
        "hexagon",
        "TensorFlow Lite's Hexagon delegate",
        SOURCE,
        ROWS,
        (most_rank(4),),
        (STATIC_SIZES,),
        Limits(max_delegated_partitions=4, min_nodes_per_partition=2),
        LIMITS_SOURCE,
        border=BORDER,
    ),
)

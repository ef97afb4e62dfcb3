"""TensorFlow Lite's NNAPI delegate, by Android's API level and by NNAPI's feature level.

The levels: 27 is Android 8.1, 28 is 9, 29 is 10, 30 is 11, 31 is 12; fl6 and fl7 are the feature
levels that came after it. No accelerator is named in the delegate's options.
"""

from __future__ import annotations

from ..ir import Op, Tensor
from ..runtime.partition import Limits
from .gpu import expands_half
from .rule import (
    NO_ACTIVATION,
    STATIC_SIZES,
    Border,
    Rule,
    Table,
    attribute,
    attribute_of,
    below,
    constant,
    input_count,
    input_rank,
    input_type,
    is_hybrid,
    is_quantised,
    is_type,
    operands,
    output_type,
    per_axis,
    rank_of,
    rows,
    scale_of,
    since,
    unset,
    values_of,
    version,
    when,
    where,
)

SOURCE = "tflite/delegates/nnapi/nnapi_delegate.cc"
FL6, FL7 = 1_000_006, 1_000_007  # as NNAPI counts them
LEVELS = {"27": 27, "28": 28, "29": 29, "30": 30, "31": 31, "fl6": FL6, "fl7": FL7}
NAMES = {level: name for name, level in LEVELS.items()}
FLOAT, CODES = "f32", "f32 u8 i8"
NUMBERS = f"{CODES} i32"


def api(least: int) -> Rule:
    """From this level on."""
    return since(least, f"NNAPI has level {NAMES[least]} or a later one")


def before(limit: int, *rules: Rule) -> tuple[Rule, ...]:
    return below(limit, NAMES[limit], *rules)


# -- looks at an op ------------------------------------------------------------------------------


def _is_type(names: str) -> Rule:
    """The first input's."""
    return input_type(0, names)


def _scales_fit(op: Op) -> bool:
    """The product of input's and weights' scales is below the result's."""
    x, w, y = scale_of(op.input(0)), scale_of(op.input(1)), scale_of(op.outputs[0])
    return x is None or w is None or y is None or x * w < y


def _is_u8(op: Op) -> bool:
    return is_type(op.input(0), "u8")


def _is_i8(op: Op) -> bool:
    return is_type(op.input(0), "i8")


def _is_i32(op: Op) -> bool:
    return is_type(op.input(0), "i32")


def _zero_point(tensor: Tensor | None) -> int:
    known = tensor is not None and tensor.quant is not None and tensor.quant.zero_point.size
    return int(tensor.quant.zero_point[0]) if known and tensor and tensor.quant else 0


def _is_dilated(op: Op) -> bool:
    names = ("dilation_h_factor", "dilation_w_factor")
    return any((attribute_of(op, name) or 1) != 1 for name in names)


def _is_grouped(op: Op) -> bool:
    return op.operand(0).shape[-1:] != op.operand(1).shape[-1:]


def _window(op: Op) -> int:
    height, width = attribute_of(op, "filter_height"), attribute_of(op, "filter_width")
    return int((height or 0) * (width or 0))


def _same_batches(op: Op) -> bool:
    return op.operand(0).shape[:-2] == op.operand(1).shape[:-2]


def _same_codes(op: Op) -> bool:
    first, *rest = operands(op)
    return all(
        scale_of(t) == scale_of(first) and _zero_point(t) == _zero_point(first) for t in rest
    )


def _result_rank(op: Op) -> int:
    return len(op.outputs[0].shape)


def _is_square(op: Op) -> bool:
    return op.outputs[0].shape[1:2] == op.outputs[0].shape[2:3]


def _axis_not_last(op: Op, rank: int) -> bool:
    return attribute_of(op, "axis") not in (-1, rank)


def _has_float16(op: Op) -> bool:
    """Computed float16, which is what sparse weights become before they are float32."""
    source = op.operand(0)
    return is_type(source, "f16") and not source.is_constant


def _is_basic_lstm(op: Op) -> bool:
    return len(op.inputs) == 5


def _is_full_lstm(op: Op) -> bool:
    return not _is_basic_lstm(op)


def _is_hybrid_sequence(op: Op) -> bool:
    """Input 1 is optional: the weights at 2 tell."""
    return is_type(op.input(0), "f32") and is_type(op.input(2), "u8 i8")


def _scale_is(op: Op, tensor: Tensor, scale: float, zero_point: int) -> bool:
    return scale_of(tensor) == scale and _zero_point(tensor) == zero_point


# -- rules that several rows share ----------------------------------------------------------------

RANK_4 = where(
    "rank",
    "no input has a rank above 4",
    lambda op: max(rank_of(op, 0), rank_of(op, 1)) <= 4,
    lambda op: f"one has {max(rank_of(op, 0), rank_of(op, 1))}",
)
INPUT_RANK_4 = where(
    "rank",
    "the input's rank is at most 4",
    lambda op: rank_of(op, 0) <= 4,
    lambda op: f"it is {rank_of(op, 0)}",
)
RESULT_RANK_4 = where(
    "rank",
    "the result's rank is at most 4",
    lambda op: _result_rank(op) <= 4,
    lambda op: f"it is {_result_rank(op)}",
)
NO_SCALAR = where("rank", "the result is no scalar", lambda op: _result_rank(op) > 0)
NO_SCALAR_IN = where("rank", "the input is no scalar", lambda op: rank_of(op, 0) > 0)
FLOATS_ONLY = where(
    "quantisation", "it is no hybrid of float values and codes", lambda op: not is_hybrid(op)
)
NO_HYBRID = where(
    "quantisation",
    "it is no hybrid of float values and codes",
    lambda op: not _is_hybrid_sequence(op),
)
SCALES = where(
    "quantisation", "the input's scale times the weights' is below the result's", _scales_fit
)
PER_TENSOR = where(
    "quantisation", "the weights have one scale", lambda op: not per_axis(op.input(1))
)
UNDILATED = where("attribute", "it is not dilated", lambda op: not _is_dilated(op))
ONE_GROUP = where("shape", "it has one group", lambda op: not _is_grouped(op))
SAME_CODES = where("quantisation", "all inputs have one scale and zero point", _same_codes)
WINDOW = where(
    "attribute",
    "the window has at most 256 elements",
    lambda op: _window(op) <= 256,
    lambda op: f"it has {_window(op)}",
)
SCALAR_IS_CONSTANT = where(
    "constant",
    "a scalar is constant",
    lambda op: all(t.shape or t.is_constant for t in operands(op)),
)
NO_EMPTY = where("shape", "the input is not empty", lambda op: 0 not in op.operand(0).shape)
TWO_INPUTS = where("operands", "it has 2 inputs or more", lambda op: len(op.inputs) >= 2)
AXIS_I32 = (constant(1, "the axis"), input_type(1, "i32", "the axis"))
SIZE = (TWO_INPUTS, constant(1, "the size"))
UNALIGNED = before(30, unset("align_corners"), unset("half_pixel_centers"))
I32_ALONE = when("it is i32", _is_i32, NO_ACTIVATION)
ARITHMETIC = (version(2), *before(30, _is_type(CODES)), _is_type(NUMBERS), *I32_ALONE, RANK_4)
OLD_PRODUCT = before(29, FLOATS_ONLY, _is_type("f32 u8"), *when("it is u8", _is_u8, SCALES))
OF_FLOATS = (version(1), api(29), _is_type(FLOAT))

ROWS = rows(
    # arithmetic
    ("ADD MUL", ARITHMETIC),
    ("SUB", (version(3), api(28), *before(29, _is_type(FLOAT)), *before(30, _is_type(CODES)),
        _is_type(NUMBERS), *I32_ALONE, RANK_4)),
    ("DIV", (version(1), api(28), _is_type(FLOAT), RANK_4)),
    ("SQUARED_DIFFERENCE", (version(2), api(28), *before(29, _is_type(FLOAT)), *before(30,
        _is_type("f32 u8")), _is_type(NUMBERS), RANK_4)),
    ("MAXIMUM MINIMUM", (version(3), api(29), _is_type(NUMBERS), SCALAR_IS_CONSTANT)),
    # convolutions and products
    ("CONV_2D", (version(5), *OLD_PRODUCT, *before(29, PER_TENSOR), input_count(3), *before(29,
        UNDILATED, ONE_GROUP))),
    ("DEPTHWISE_CONV_2D", (version(3), *before(29, _is_type("f32 u8"), *when("it is u8", _is_u8,
        SCALES), UNDILATED))),
    ("FULLY_CONNECTED", (version(5), output_type(0, "f32 u8 i8 i32"), *OLD_PRODUCT, *before(30,
        unset("keep_num_dims")))),
    ("TRANSPOSE_CONV", (version(4), api(29), constant(0, "the result's shape"), constant(1,
        "the tensor of weights"))),
    ("BATCH_MATMUL", (version(2), api(FL6), _is_type("f32 i32 i8"), where("quantisation",
        "both inputs are of one type", lambda op: op.operand(0).dtype is op.operand(1).dtype),
        input_rank(0, 2, 3, 4), where("shape", "batches are not broadcast", _same_batches))),
    # pools
    ("AVERAGE_POOL_2D", (version(2), _is_type(CODES), *when("it is quantised", is_quantised,
        WINDOW))),
    ("MAX_POOL_2D", (version(2), _is_type(CODES))),
    ("L2_POOL_2D", (version(1), _is_type(FLOAT), *before(29, NO_ACTIVATION))),
    # activations
    ("RELU RELU6 RELU_N1_TO_1 LOGISTIC", (version(2), _is_type(CODES))),
    ("TANH", (version(2), *before(29, _is_type(FLOAT)), _is_type(CODES))),
    ("HARD_SWISH", (_is_type(CODES),)),
    ("PRELU LEAKY_RELU", (version(1), api(29), _is_type(CODES))),
    ("ELU", (version(1), api(30), _is_type(FLOAT))),
    ("SOFTMAX", (version(2), _is_type(CODES), output_type(0, CODES), INPUT_RANK_4, *before(29,
        input_rank(0, 2, 4)))),
    ("LOG_SOFTMAX", OF_FLOATS),
    # functions of one value
    ("ABS EXP LOG POW SIN COS SQRT", OF_FLOATS),
    ("RSQRT", (version(2), api(29), *before(FL7, _is_type(FLOAT)), _is_type(CODES))),
    ("NEG", (version(2), api(29), _is_type("f32 i32"))),
    ("FLOOR", (version(1),)),
    # shapes
    ("RESHAPE", (version(1), *before(FL6, _is_type(CODES)), _is_type(NUMBERS), INPUT_RANK_4,
        RESULT_RANK_4, constant(1, "the shape"), NO_SCALAR)),
    ("TRANSPOSE", (version(2), api(28), TWO_INPUTS, constant(1, "the permutation"))),
    ("CONCATENATION", (version(2), NO_ACTIVATION, INPUT_RANK_4, _is_type("f16 f32 u8 i8"),
        *before(29, *when("it is u8", _is_u8, SAME_CODES)))),
    ("SLICE", (version(2), api(29), _is_type(NUMBERS), input_type(1, "i32", "the begin"),
        input_type(2, "i32", "the size"))),
    ("STRIDED_SLICE", (version(2), api(28), _is_type(CODES))),
    ("SPLIT", (version(3), api(29), *before(30, input_type(1, "f32 u8 i32")), input_type(1,
        NUMBERS), constant(0, "the axis"), input_type(0, "i32", "the axis"))),
    ("SPLIT_V", (version(2), api(30), _is_type(NUMBERS), constant(1, "the tensor of sizes"),
        input_type(1, "i32", "the tensor of sizes"), input_rank(1, 1), constant(2, "the axis"),
        input_type(2, "i32", "the axis"), where("shape", "no size is 0",
        lambda op: 0 not in (values_of(op, 1) or ())))),
    ("PACK", (version(2), api(30), *before(FL6, _is_type("f32 i8"), where("attribute",
        "the axis is not the last", lambda op: _axis_not_last(op, rank_of(op, 0)))),
        _is_type(NUMBERS))),
    ("UNPACK", (version(2), api(30), _is_type(CODES), input_rank(0, 2, 3, 4), where("attribute",
        "the axis is not the last", lambda op: _axis_not_last(op, rank_of(op, 0) - 1)))),
    ("EXPAND_DIMS", (version(1), api(29), _is_type(f"{NUMBERS} f16"), *AXIS_I32)),
    ("SQUEEZE", (version(1), api(28), *before(29, where("attribute", "squeeze_dims are given",
        lambda op: bool(attribute_of(op, "squeeze_dims")))))),
    ("TILE", (version(1), api(29), _is_type(NUMBERS), input_type(1, "i32",
        "the tensor of multiples"))),
    ("PAD PADV2", (version(2), _is_type(CODES), api(28), NO_EMPTY, TWO_INPUTS, *before(29,
        input_count(2), _is_type(FLOAT)))),
    ("MIRROR_PAD", (version(2), api(FL7), _is_type(NUMBERS), NO_EMPTY, input_count(2))),
    ("REVERSE_V2", (version(3), api(FL7), _is_type(NUMBERS), input_count(2))),
    ("FILL", (version(1), api(30), constant(0, "the shape"), input_type(0, "i32 i64", "the shape"),
        NO_SCALAR, input_type(1, "f32 i32 i64", "the value"))),
    ("GATHER", (version(2), api(29), _is_type(f"{NUMBERS} f16"), input_type(1, "i32",
        "the tensor of indices"), where("rank", "the indices are no scalar", lambda op: rank_of(op,
        1) != 0))),
    ("SPACE_TO_BATCH_ND BATCH_TO_SPACE_ND", (version(2), api(28))),
    ("BATCH_TO_SPACE_ND", (where("constant", "all crops are a constant 0", lambda op: values_of(op,
        2) == [0, 0, 0, 0]),)),
    ("DEPTH_TO_SPACE", (_is_type(CODES),)),
    ("SPACE_TO_DEPTH", (version(2), _is_type(CODES))),
    # reductions
    ("MEAN", (version(2), api(28), *before(29, _is_type(FLOAT)), _is_type(CODES), NO_SCALAR,
        INPUT_RANK_4)),
    ("REDUCE_MIN REDUCE_MAX", (version(2), api(29), _is_type(CODES), NO_SCALAR_IN)),
    ("REDUCE_ANY", (version(2), api(29), NO_SCALAR)),
    ("REDUCE_PROD SUM", (version(1), api(29), NO_SCALAR, _is_type(FLOAT))),
    # others
    ("ARG_MAX ARG_MIN", (version(2), api(29), _is_type(f"{NUMBERS} f16"), input_type(1, "i32 i64",
        "the axis"), *when("the axis is i64", lambda op: is_type(op.input(1), "i64"), constant(1,
        "the axis")), attribute("output_type", "INT32"))),
    ("RESIZE_BILINEAR", (version(3), input_rank(0, 4), _is_type(CODES), *SIZE, *before(29,
        where("shape", "the result is square", _is_square), _is_type(FLOAT)), *UNALIGNED)),
    ("RESIZE_NEAREST_NEIGHBOR", (version(3), api(29), _is_type(CODES), *SIZE, *UNALIGNED)),
    ("CAST", (version(1), api(29), *before(30, _is_type("f32 i32 u8"), output_type(0,
        "f32 i32 u8")), _is_type(NUMBERS), output_type(0, NUMBERS))),
    ("LESS LESS_EQUAL GREATER GREATER_EQUAL EQUAL NOT_EQUAL", (version(2), api(29),
        _is_type(f"{NUMBERS} bool"))),
    ("LOGICAL_OR LOGICAL_AND LOGICAL_NOT", (version(1), api(29), _is_type("bool"))),
    ("SELECT", (version(2), api(29), input_type(1, NUMBERS), where("shape",
        "the condition has the values' shape",
        lambda op: op.operand(0).shape == op.operand(1).shape))),
    ("TOPK_V2", (version(2), api(29), _is_type(NUMBERS), constant(1, "k"), input_type(1, "i32",
        "k"))),
    ("QUANTIZE", (version(2), api(29), _is_type(CODES), *before(30, output_type(0, "u8")),
        output_type(0, "u8 i8"), where("quantisation", "the result has a scale above 0",
        lambda op: (scale_of(op.outputs[0]) or 0) > 0))),
    ("DEQUANTIZE", when("it is no computed f16", lambda op: not _has_float16(op), version(2),
        *before(29, _is_type("u8")), _is_type("u8 i8"), *before(30, *when("it is i8", _is_i8,
        where("quantisation", "the zero point is 0", lambda op: _zero_point(op.input(0)) == 0))))),
    ("DEQUANTIZE", when("it is computed f16", _has_float16, api(30))),
    ("DENSIFY", (api(30), constant(0, "the input"))),
    ("L2_NORMALIZATION", (version(2), *before(29, _is_type(FLOAT), input_rank(0, 4)),
        NO_ACTIVATION)),
    ("LSTM", (version(3), api(28), *before(29, NO_HYBRID))),
    ("LSTM", when("it is a basic one", _is_basic_lstm, input_type(2, "u8", "the tensor of weights"),
        constant(2, "the tensor of weights"), constant(3, "the bias"), where("quantisation",
        "input and result have the scale 1/128 and the zero point 128", lambda op: all(_scale_is(op,
        t, 1 / 128, 128) for t in (op.operand(0), op.outputs[0]))))),
    ("LSTM", when("it is a full one", _is_full_lstm, *before(29, input_count(20)), *before(30,
        input_type(4, "f32 u8", "the tensor of weights")), input_type(4, CODES,
        "the tensor of weights"))),
    ("UNIDIRECTIONAL_SEQUENCE_LSTM", (version(2), api(29), NO_HYBRID, input_count(20, 24))),
    ("BIDIRECTIONAL_SEQUENCE_LSTM", (version(1), api(29), NO_HYBRID)),
    ("UNIDIRECTIONAL_SEQUENCE_RNN", (version(1), api(29), FLOATS_ONLY)),
    ("RNN SVDF", (version(1), input_count(5), input_type(1, FLOAT, "the tensor of weights"))),
    ("SVDF", (api(28),)),
    ("EMBEDDING_LOOKUP", (version(1), input_type(1, FLOAT, "the tensor of values"))),
    ("HASHTABLE_LOOKUP", (version(1), output_type(0, FLOAT))),
    ("LOCAL_RESPONSE_NORMALIZATION", (version(1),)),
    ("LSH_PROJECTION", (version(1), *when("it is sparse", lambda op: attribute_of(op,
        "type") == "SPARSE", api(29), input_count(2)))),
)  # fmt: skip

# A call through Android's services, with memory that both sides see.
BORDER = Border(call_us=200.0, bytes_per_us=4000.0)
TABLES = tuple(
    Table(
        f"nnapi:{name}",
        f"TensorFlow Lite's NNAPI delegate, level {name}",
        SOURCE,
        ROWS,
        graph=(STATIC_SIZES,),
        limits=Limits(max_delegated_partitions=3),
        level=level,
        folds=expands_half,
        border=BORDER,
    )
    for name, level in LEVELS.items()
)

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
    UNDILATED,
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
    least_inputs,
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


def of(names: str) -> Rule:
    """The first input's type."""
    return input_type(0, names)


# -- looks at an op ------------------------------------------------------------------------------


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


def _axis(op: Op) -> int:
    return int(attribute_of(op, "axis") or 0)


def _has_long_axis(op: Op) -> bool:
    return is_type(op.input(1), "i64")


def _is_of_one_type(op: Op) -> bool:
    return op.operand(0).dtype is op.operand(1).dtype


def _is_sparse(op: Op) -> bool:
    return attribute_of(op, "type") == "SPARSE"


def _has_half(op: Op) -> bool:
    """Computed float16, which is what sparse weights become before they are float32."""
    source = op.operand(0)
    return is_type(source, "f16") and not source.is_constant


def _has_no_half(op: Op) -> bool:
    return not _has_half(op)


def _is_basic_lstm(op: Op) -> bool:
    return len(op.inputs) == 5


def _is_full_lstm(op: Op) -> bool:
    return not _is_basic_lstm(op)


def _is_hybrid_cell(op: Op) -> bool:
    """Input 1 is optional: the weights at 2 tell."""
    return is_type(op.input(0), "f32") and is_type(op.input(2), "u8 i8")


def _has_cell_codes(op: Op) -> bool:
    ends = (op.operand(0), op.outputs[0])
    return all(scale_of(t) == 1 / 128 and _zero_point(t) == 128 for t in ends)


# -- rules ---------------------------------------------------------------------------------------

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
NO_SCALAR_INDEX = where("rank", "the indices are no scalar", lambda op: rank_of(op, 1) != 0)
HYBRID = "it is no hybrid of float values and codes"
NO_HYBRID = where("quantisation", HYBRID, lambda op: not is_hybrid(op))
NO_HYBRID_CELL = where("quantisation", HYBRID, lambda op: not _is_hybrid_cell(op))
SCALES = where(
    "quantisation", "the input's scale times the weights' is below the result's", _scales_fit
)
PER_TENSOR = where(
    "quantisation", "the weights have one scale", lambda op: not per_axis(op.input(1))
)
SAME_CODES = where("quantisation", "all inputs have one scale and zero point", _same_codes)
ZERO_AT_0 = where("quantisation", "the zero point is 0", lambda op: _zero_point(op.input(0)) == 0)
SCALED = where(
    "quantisation",
    "the result has a scale above 0",
    lambda op: (scale_of(op.outputs[0]) or 0) > 0,
)
CELL_CODES = where(
    "quantisation", "input and result have the scale 1/128 and the zero point 128", _has_cell_codes
)
ONE_TYPE = where("quantisation", "both inputs are of one type", _is_of_one_type)
ONE_GROUP = where("shape", "it has one group", lambda op: not _is_grouped(op))
SAME_BATCHES = where("shape", "batches are not broadcast", _same_batches)
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
NO_EMPTY_PIECE = where("shape", "no size is 0", lambda op: 0 not in (values_of(op, 1) or ()))
SQUARE = where("shape", "the result is square", _is_square)
SAME_SHAPE = where(
    "shape",
    "the condition has the values' shape",
    lambda op: op.operand(0).shape == op.operand(1).shape,
)
NO_CROPS = where(
    "constant", "all crops are a constant 0", lambda op: values_of(op, 2) == [0, 0, 0, 0]
)
NOT_LAST = "the axis is not the last"
PACKED = where("attribute", NOT_LAST, lambda op: _axis(op) not in (-1, rank_of(op, 0)))
UNPACKED = where("attribute", NOT_LAST, lambda op: _axis(op) not in (-1, rank_of(op, 0) - 1))
SQUEEZED = where(
    "attribute",
    "squeeze_dims are given",
    lambda op: bool(attribute_of(op, "squeeze_dims")),
)
UNALIGNED = before(30, unset("align_corners"), unset("half_pixel_centers"))
SIZE = (least_inputs(2), constant(1, "the size"))
WEIGHTS = "the tensor of weights"


def i32(place: int, what: str) -> tuple[Rule, ...]:
    """A parameter that is a constant of whole numbers."""
    return constant(place, what), input_type(place, "i32", what)


LONE_I32 = when("it is i32", _is_i32, NO_ACTIVATION)
OLD_SCALES = when("it is u8", _is_u8, SCALES)
OLD_PRODUCT = before(29, NO_HYBRID, of("f32 u8"), *OLD_SCALES)
OF_FLOATS = (version(1), api(29), of(FLOAT))
BASIC_CELL = (
    input_type(2, "u8", WEIGHTS), constant(2, WEIGHTS), constant(3, "the bias"), CELL_CODES,
)  # fmt: skip
FULL_CELL = (
    *before(29, input_count(20)),
    *before(30, input_type(4, "f32 u8", WEIGHTS)),
    input_type(4, CODES, WEIGHTS),
)
STORED_CODES = (
    version(2),
    *before(29, of("u8")),
    of("u8 i8"),
    *before(30, *when("it is i8", _is_i8, ZERO_AT_0)),
)

ROWS = rows(
    # arithmetic
    ("ADD MUL", (version(2), *before(30, of(CODES)), of(NUMBERS), *LONE_I32, RANK_4)),
    ("SUB", (version(3), api(28), *before(29, of(FLOAT)), *before(30, of(CODES)), of(NUMBERS),
             *LONE_I32, RANK_4)),
    ("DIV", (version(1), api(28), of(FLOAT), RANK_4)),
    ("SQUARED_DIFFERENCE", (version(2), api(28), *before(29, of(FLOAT)),
                            *before(30, of("f32 u8")), of(NUMBERS), RANK_4)),
    ("MAXIMUM MINIMUM", (version(3), api(29), of(NUMBERS), SCALAR_IS_CONSTANT)),
    # convolutions and products
    ("CONV_2D", (version(5), *OLD_PRODUCT, *before(29, PER_TENSOR, UNDILATED, ONE_GROUP),
                 input_count(3))),
    ("DEPTHWISE_CONV_2D", (version(3), *before(29, of("f32 u8"), *OLD_SCALES, UNDILATED))),
    ("FULLY_CONNECTED", (version(5), output_type(0, NUMBERS), *OLD_PRODUCT,
                         *before(30, unset("keep_num_dims")))),
    ("TRANSPOSE_CONV", (version(4), api(29), constant(0, "the result's shape"),
                        constant(1, WEIGHTS))),
    ("BATCH_MATMUL", (version(2), api(FL6), of("f32 i32 i8"), ONE_TYPE, input_rank(0, 2, 3, 4),
                      SAME_BATCHES)),
    # pools
    ("AVERAGE_POOL_2D", (version(2), of(CODES), *when("it is quantised", is_quantised, WINDOW))),
    ("MAX_POOL_2D", (version(2), of(CODES))),
    ("L2_POOL_2D", (version(1), of(FLOAT), *before(29, NO_ACTIVATION))),
    # activations
    ("RELU RELU6 RELU_N1_TO_1 LOGISTIC", (version(2), of(CODES))),
    ("TANH", (version(2), *before(29, of(FLOAT)), of(CODES))),
    ("HARD_SWISH", (of(CODES),)),
    ("PRELU LEAKY_RELU", (version(1), api(29), of(CODES))),
    ("ELU", (version(1), api(30), of(FLOAT))),
    ("SOFTMAX", (version(2), of(CODES), output_type(0, CODES), INPUT_RANK_4,
                 *before(29, input_rank(0, 2, 4)))),
    ("LOG_SOFTMAX", OF_FLOATS),
    # functions of one value
    ("ABS EXP LOG POW SIN COS SQRT", OF_FLOATS),
    ("RSQRT", (version(2), api(29), *before(FL7, of(FLOAT)), of(CODES))),
    ("NEG", (version(2), api(29), of("f32 i32"))),
    ("FLOOR", (version(1),)),
    # shapes
    ("RESHAPE", (version(1), *before(FL6, of(CODES)), of(NUMBERS), INPUT_RANK_4, RESULT_RANK_4,
                 constant(1, "the shape"), NO_SCALAR)),
    ("TRANSPOSE", (version(2), api(28), least_inputs(2), constant(1, "the permutation"))),
    ("CONCATENATION", (version(2), NO_ACTIVATION, INPUT_RANK_4, of("f16 f32 u8 i8"),
                       *before(29, *when("it is u8", _is_u8, SAME_CODES)))),
    ("SLICE", (version(2), api(29), of(NUMBERS), input_type(1, "i32", "the begin"),
               input_type(2, "i32", "the size"))),
    ("STRIDED_SLICE", (version(2), api(28), of(CODES))),
    ("SPLIT", (version(3), api(29), *before(30, input_type(1, "f32 u8 i32")),
               input_type(1, NUMBERS), *i32(0, "the axis"))),
    ("SPLIT_V", (version(2), api(30), of(NUMBERS), *i32(1, "the tensor of sizes"),
                 input_rank(1, 1), *i32(2, "the axis"), NO_EMPTY_PIECE)),
    ("PACK", (version(2), api(30), *before(FL6, of("f32 i8"), PACKED), of(NUMBERS))),
    ("UNPACK", (version(2), api(30), of(CODES), input_rank(0, 2, 3, 4), UNPACKED)),
    ("EXPAND_DIMS", (version(1), api(29), of(f"{NUMBERS} f16"), *i32(1, "the axis"))),
    ("SQUEEZE", (version(1), api(28), *before(29, SQUEEZED))),
    ("TILE", (version(1), api(29), of(NUMBERS), input_type(1, "i32", "the tensor of multiples"))),
    ("PAD PADV2", (version(2), of(CODES), api(28), NO_EMPTY, least_inputs(2),
                   *before(29, input_count(2), of(FLOAT)))),
    ("MIRROR_PAD", (version(2), api(FL7), of(NUMBERS), NO_EMPTY, input_count(2))),
    ("REVERSE_V2", (version(3), api(FL7), of(NUMBERS), input_count(2))),
    ("FILL", (version(1), api(30), constant(0, "the shape"), input_type(0, "i32 i64", "the shape"),
              NO_SCALAR, input_type(1, "f32 i32 i64", "the value"))),
    ("GATHER", (version(2), api(29), of(f"{NUMBERS} f16"),
                input_type(1, "i32", "the tensor of indices"), NO_SCALAR_INDEX)),
    ("SPACE_TO_BATCH_ND", (version(2), api(28))),
    ("BATCH_TO_SPACE_ND", (version(2), api(28), NO_CROPS)),
    ("DEPTH_TO_SPACE", (of(CODES),)),
    ("SPACE_TO_DEPTH", (version(2), of(CODES))),
    # reductions
    ("MEAN", (version(2), api(28), *before(29, of(FLOAT)), of(CODES), NO_SCALAR, INPUT_RANK_4)),
    ("REDUCE_MIN REDUCE_MAX", (version(2), api(29), of(CODES), NO_SCALAR_IN)),
    ("REDUCE_ANY", (version(2), api(29), NO_SCALAR)),
    ("REDUCE_PROD SUM", (version(1), api(29), NO_SCALAR, of(FLOAT))),
    # others
    ("ARG_MAX ARG_MIN", (version(2), api(29), of(f"{NUMBERS} f16"),
                         input_type(1, "i32 i64", "the axis"),
                         *when("the axis is i64", _has_long_axis, constant(1, "the axis")),
                         attribute("output_type", "INT32"))),
    ("RESIZE_BILINEAR", (version(3), input_rank(0, 4), of(CODES), *SIZE,
                         *before(29, SQUARE, of(FLOAT)), *UNALIGNED)),
    ("RESIZE_NEAREST_NEIGHBOR", (version(3), api(29), of(CODES), *SIZE, *UNALIGNED)),
    ("CAST", (version(1), api(29), *before(30, of("f32 i32 u8"), output_type(0, "f32 i32 u8")),
              of(NUMBERS), output_type(0, NUMBERS))),
    ("LESS LESS_EQUAL GREATER GREATER_EQUAL EQUAL NOT_EQUAL",
     (version(2), api(29), of(f"{NUMBERS} bool"))),
    ("LOGICAL_OR LOGICAL_AND LOGICAL_NOT", (version(1), api(29), of("bool"))),
    ("SELECT", (version(2), api(29), input_type(1, NUMBERS), SAME_SHAPE)),
    ("TOPK_V2", (version(2), api(29), of(NUMBERS), *i32(1, "k"))),
    ("QUANTIZE", (version(2), api(29), of(CODES), *before(30, output_type(0, "u8")),
                  output_type(0, "u8 i8"), SCALED)),
    ("DEQUANTIZE", when("it is no computed f16", _has_no_half, *STORED_CODES)),
    ("DEQUANTIZE", when("it is computed f16", _has_half, api(30))),
    ("DENSIFY", (api(30), constant(0, "the input"))),
    ("L2_NORMALIZATION", (version(2), *before(29, of(FLOAT), input_rank(0, 4)), NO_ACTIVATION)),
    ("LSTM", (version(3), api(28), *before(29, NO_HYBRID_CELL))),
    ("LSTM", when("it is a basic one", _is_basic_lstm, *BASIC_CELL)),
    ("LSTM", when("it is a full one", _is_full_lstm, *FULL_CELL)),
    ("UNIDIRECTIONAL_SEQUENCE_LSTM", (version(2), api(29), NO_HYBRID_CELL, input_count(20, 24))),
    ("BIDIRECTIONAL_SEQUENCE_LSTM", (version(1), api(29), NO_HYBRID_CELL)),
    ("UNIDIRECTIONAL_SEQUENCE_RNN", (version(1), api(29), NO_HYBRID)),
    ("RNN", (version(1), input_count(5), input_type(1, FLOAT, WEIGHTS))),
    ("SVDF", (version(1), input_count(5), input_type(1, FLOAT, WEIGHTS), api(28))),
    ("EMBEDDING_LOOKUP", (version(1), input_type(1, FLOAT, "the tensor of values"))),
    ("HASHTABLE_LOOKUP", (version(1), output_type(0, FLOAT))),
    ("LOCAL_RESPONSE_NORMALIZATION", (version(1),)),
    ("LSH_PROJECTION", (version(1), *when("it is sparse", _is_sparse, api(29), input_count(2)))),
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

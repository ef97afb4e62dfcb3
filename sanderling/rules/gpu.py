"""TensorFlow Lite's GPU delegate: the offline rules, and those of its parser.

`gpu:offline` is what the offline check says, which TensorFlow Lite's analyzer prints. `gpu` is what
the delegate does on a device: its parser's list and versions, then the same check (with narrower
broadcasting), the types and ranks of tensors, and what is found out only when a part is built.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import DType, Op, Tensor
from ..runtime.partition import Limits
from .rule import (
    STATIC_SIZES,
    Border,
    Rule,
    Table,
    activation,
    attribute,
    attribute_of,
    computed,
    computed_count,
    constant,
    constant_count,
    constants,
    elements,
    fatal,
    has_input,
    input_count,
    input_rank,
    input_type,
    is_constant,
    is_type,
    least_inputs,
    most_rank,
    operands,
    output_count,
    per_axis,
    positive,
    rank_of,
    rows,
    sourced,
    unset,
    values_of,
    version,
    when,
    where,
)

OFFLINE_SOURCE = "tflite/tools/versioning/gpu_compatibility.cc"
PARSER_SOURCE = "tflite/delegates/gpu/common/model_builder.cc"
ACTIVATIONS = activation("NONE RELU RELU_N1_TO_1 RELU6 TANH")  # and no SIGN_BIT
STRIDES, DILATIONS = "stride_h stride_w", "dilation_h_factor dilation_w_factor"
KERNEL = "filter_height filter_width"
COMPARISONS = "EQUAL NOT_EQUAL GREATER GREATER_EQUAL LESS LESS_EQUAL"
UNARY = "ABS COS ELU EXP FLOOR GELU LOG LOGISTIC NEG RSQRT SIGN SIN SQRT SQUARE TANH"
BINARY = "DIV FLOOR_DIV FLOOR_MOD LOGICAL_AND MAXIMUM MINIMUM POW SQUARED_DIFFERENCE SUB"
REDUCTIONS = "REDUCE_MAX REDUCE_MIN REDUCE_PROD SUM"
PADS = "PAD PADV2 MIRROR_PAD"


# -- looks at an op ------------------------------------------------------------------------------


def _shape(op: Op, place: int) -> tuple[int, ...]:
    tensor = op.input(place)
    return () if tensor is None else tensor.shape


def _shapes(op: Op) -> str:
    return f"they are {list(_shape(op, 0))} and {list(_shape(op, 1))}"


def _ranks_differ(op: Op) -> bool:
    first, second = rank_of(op, 0), rank_of(op, 1)
    return first > 1 and second > 1 and first != second


def _broadcasts(op: Op) -> bool:
    """As NumPy does it."""
    pairs = zip(reversed(_shape(op, 0)), reversed(_shape(op, 1)), strict=False)
    return all(a == b or 1 in (a, b) for a, b in pairs)


def _broadcasts_on_device(op: Op) -> bool:
    """3-D to 4-D of one batch, [1, 1] to one batch, [b, c] to [b, h, w, c]."""
    short, long = sorted((_shape(op, 0), _shape(op, 1)), key=len)
    if len(long) != 4:
        return False
    if len(short) == 3:
        return long[0] == 1
    return (long[0] == 1 and short == (1, 1)) or short == (long[0], long[3])


def _is_shape_of_result(tensor: Tensor, op: Op) -> bool:
    return tensor.shape in ((), (1,), op.outputs[0].shape)


def _selects(op: Op) -> bool:
    return all(_is_shape_of_result(t, op) for t in operands(op)[1:])


def _casts(op: Op) -> bool:
    x, y = op.operand(0), op.outputs[0]
    floats, numbers = "f16 f32", "f32 i32"
    pairs = [("bool", floats), (floats, "bool"), (numbers, numbers)]
    return any(is_type(x, a) and is_type(y, b) for a, b in pairs)


def _is_depthwise(op: Op) -> bool:
    x, kernel, y = _shape(op, 0), _shape(op, 1), op.outputs[0].shape
    bias = op.input(2)
    depth = x[3] * (attribute_of(op, "depth_multiplier") or 0)
    fits = x[0] == y[0] and kernel[3] == y[3] == depth
    return fits and (bias is None or elements(bias) == y[3])


def _is_one_hot(op: Op) -> bool:
    """Only batch (of 4-D indices) and channels may be larger than 1."""
    shape = _shape(op, 0)
    return all(size == 1 or (i == 0 and len(shape) > 3) for i, size in enumerate(shape[:-1]))


def _types(op: Op, count: int = 3) -> set[DType]:
    """The types of the first inputs."""
    return {t.dtype for t in operands(op)[:count]}


def _has_no_constant_map(op: Op) -> bool:
    return all(len(t.shape) != 2 for t in operands(op)[1:] if t.is_constant)


def _is_pair(op: Op) -> bool:
    return (len(computed(op)), len(constants(op))) in ((2, 0), (1, 1))


def _is_one_group(op: Op) -> bool:
    return _shape(op, 0)[-1:] == _shape(op, 1)[-1:]


def _compared_for_floats(op: Op) -> bool:
    """One reader, which makes floats of it."""
    readers = op.outputs[0].users
    wanted = ("CAST", "SELECT", "SELECT_V2")
    return (
        len(readers) == 1
        and readers[0].name in wanted
        and is_type(readers[0].outputs[0], "f16 f32")
    )


def _is_lone_cast(op: Op) -> bool:
    source, result = op.operand(0), op.outputs[0]
    return source.producer is not None and len(source.users) == 1 and len(result.users) == 1


def _is_bool_cast(op: Op) -> bool:
    return is_type(op.input(0), "bool") and is_type(op.outputs[0], "f16 f32")


def _has_two_computed(op: Op) -> bool:
    return len(computed(op)) == 2


def _are_different(op: Op) -> bool:
    return len(op.inputs) < 2 or op.inputs[0] is not op.inputs[1]


def _is_readable(op: Op) -> bool:
    """A constant operand is a scalar, a row of channels, [H, W] or [H, W, C]."""
    return all(_is_row_or_map(t.shape) for t in constants(op))


def _is_row_or_map(shape: Sequence[int]) -> bool:
    wide = [size for size in shape if size != 1]
    return len(wide) < 2 or len(shape) < 4 or shape[0] == 1


def _is_slope(op: Op) -> bool:
    """Alpha is [C] or the input's [H, W, C]."""
    alpha, x = list(_shape(op, 1)), list(_shape(op, 0))
    while len(alpha) > 1 and alpha[0] == 1:
        alpha = alpha[1:]
    return alpha == x[-1:] or alpha == x[1:]


def _multiplies(op: Op) -> bool:
    """Two computed matrices, or a computed one with a constant of two dimensions."""
    if _has_two_computed(op):
        return True
    return not is_constant(op, 0) and is_constant(op, 1) and rank_of(op, 1) == 2


def _channels_fit(op: Op) -> bool:
    x, weights = _shape(op, 0), _shape(op, 1)
    return len(x) > 1 and len(weights) == 2 and x[-1] == weights[-1]


def _all_of_four_channels(op: Op) -> bool:
    return len(op.outputs) < 4 or op.outputs[3].shape[-1] % 4 == 0


def _strides_forward(op: Op) -> bool:
    return all(step > 0 for step in values_of(op, 3) or ())


def _is_sparse(op: Op) -> bool:
    return op.operand(0).sparsity is not None


def _has_scale(op: Op) -> bool:
    return op.outputs[0].quant is not None


def _is_full_lstm(op: Op) -> bool:
    return attribute_of(op, "kernel_type") == "FULL"


def _is_basic_lstm(op: Op) -> bool:
    return not _is_full_lstm(op)


# -- the offline check ---------------------------------------------------------------------------

ONE_RESULT = output_count(1)
ONE_IN_ONE_OUT = (computed_count(1), ONE_RESULT)
ALONE = (*ONE_IN_ONE_OUT, constant_count(0))
PAIR = where("operands", "it has two computed inputs, or a computed and a constant one", _is_pair)
TWO_OPERANDS = (PAIR, ONE_RESULT)
FEW_COMPUTED = where(
    "operands",
    "at most two inputs are computed",
    lambda op: len(computed(op)) <= 2,
    lambda op: f"there are {len(computed(op))}",
)
CONVOLUTION = (FEW_COMPUTED, ONE_RESULT, has_input(1, "weights"))
AXES = (constant(1, "the tensor of axes"), input_type(1, "i32", "the tensor of axes"))
BLOCK = where(
    "attribute",
    "block_size is above 1",
    lambda op: (attribute_of(op, "block_size") or 0) > 1,
    lambda op: f"it is {attribute_of(op, 'block_size')}",
)
CASTS = where(
    "types",
    "it casts bool to float, float to bool, or between f32 and i32",
    _casts,
    lambda op: f"{op.operand(0).dtype.short} to {op.outputs[0].dtype.short}",
)
DEPTHWISE = where(
    "shape",
    "batches agree, and the weights have depth_multiplier times the input's channels, as the bias "
    "has",
    _is_depthwise,
)
SAME_RANK = where(
    "rank",
    "input and result have one rank if keep_num_dims is set",
    lambda op: not attribute_of(op, "keep_num_dims") or rank_of(op, 0) == len(op.outputs[0].shape),
)
LAST_AXIS = where(
    "attribute",
    "the axis is the last",
    lambda op: attribute_of(op, "axis") in (-1, *_shape(op, 0)[-1:]),
    lambda op: f"it is {attribute_of(op, 'axis')}",
)
PADDINGS = where(
    "shape",
    "the paddings are 3x2 or 4x2",
    lambda op: _shape(op, 1) in ((3, 2), (4, 2)),
    lambda op: f"they are {list(_shape(op, 1))}",
)
ONE_ALIGNMENT = where(
    "attribute",
    "align_corners and half_pixel_centers are not both set",
    lambda op: not (attribute_of(op, "align_corners") and attribute_of(op, "half_pixel_centers")),
)
CHOICES = where("shape", "both choices are scalars or of the result's shape", _selects)
NO_CONSTANT_MAP = where("constant", "no constant choice has two dimensions", _has_no_constant_map)
ONE_TYPE = where("types", "all inputs are of one type", lambda op: len(_types(op)) == 1)
SLICE_TYPES = where("types", "array and slice are of one type", lambda op: len(_types(op, 2)) == 1)
SLICE_RANKS = where(
    "rank", "array and slice are of one rank", lambda op: rank_of(op, 0) == rank_of(op, 1)
)
SAME_BYTES = where(
    "shape",
    "the shapes are equal, or the last axis makes up for the size of the type",
    lambda op: op.operand(0).nbytes == op.outputs[0].nbytes,
)
BATCH_AND_CHANNELS = where("shape", "only batch and channels are larger than 1", _is_one_hot)
LIKE_NUMPY = where(
    "shape",
    "shapes of two ranks broadcast as in NumPy",
    lambda op: not _ranks_differ(op) or _broadcasts(op),
    _shapes,
)
ON_DEVICE = where(
    "shape",
    "shapes of two ranks are 3-D and 4-D of one batch, [1,1] and 4-D of one batch, or [b,c] and "
    "[b,h,w,c]",
    lambda op: not _ranks_differ(op) or _broadcasts_on_device(op),
    _shapes,
)


def offline(broadcasts: Rule) -> dict[str, tuple[Rule, ...]]:
    """The check's rows; broadcasts: what ADD and MUL can do with shapes of two ranks."""
    found = rows(
        ("ADD", (input_count(2), broadcasts)),
        ("ADD_N", (input_count(2),)),
        ("MUL", (input_count(2), broadcasts, ACTIVATIONS)),
        ("DIV SUB", (*TWO_OPERANDS, ACTIVATIONS)),
        (f"{COMPARISONS} ATAN2 FLOOR_DIV FLOOR_MOD LOGICAL_AND LOGICAL_OR MAXIMUM MINIMUM POW "
         "RIGHT_SHIFT SQUARED_DIFFERENCE STABLEHLO_REMAINDER STABLEHLO_SHIFT_LEFT", TWO_OPERANDS),
        (f"{UNARY} CEIL LOGICAL_NOT ROUND", ALONE),
        ("RELU RELU6 RELU_N1_TO_1 LEAKY_RELU PRELU PACK SPLIT SPLIT_V CONCATENATION", ()),
        ("HARD_SWISH QUANTIZE RESHAPE RESIZE_NEAREST_NEIGHBOR TILE TRANSPOSE", ONE_IN_ONE_OUT),
        ("AVERAGE_POOL_2D MAX_POOL_2D",
            (*ONE_IN_ONE_OUT, positive(f"{KERNEL} {STRIDES}"), ACTIVATIONS)),
        ("BATCH_MATMUL", (input_count(2), ONE_RESULT)),
        ("BITCAST", (*ONE_IN_ONE_OUT, SAME_BYTES)),
        ("CAST", (*ONE_IN_ONE_OUT, CASTS)),
        ("CONV_2D", (*CONVOLUTION, positive(f"{STRIDES} {DILATIONS}"), ACTIVATIONS)),
        ("DEPTHWISE_CONV_2D", (*CONVOLUTION, positive(f"{STRIDES} {DILATIONS}"), ACTIVATIONS,
            input_rank(0, 4), input_rank(1, 4), DEPTHWISE)),
        ("TRANSPOSE_CONV", (*CONVOLUTION, positive(STRIDES))),
        ("CUMSUM", (input_count(2), input_type(0, "f16 f32"), constant(1, "the axis"),
            input_type(1, "i32", "the axis"))),
        ("DENSIFY", (computed_count(0), ONE_RESULT)),
        ("DEPTH_TO_SPACE SPACE_TO_DEPTH", (*ONE_IN_ONE_OUT, BLOCK)),
        ("DEQUANTIZE", (input_count(1), ONE_RESULT, input_type(0, "f16 i8 u8 i32 i4"))),
        ("EMBEDDING_LOOKUP",
            (input_count(2), ONE_RESULT, input_rank(0, 1), input_type(1, "i8 i4 f32"))),
        ("DYNAMIC_UPDATE_SLICE", (input_count(3), SLICE_TYPES, input_rank(2, 1),
            input_type(2, "i32", "the start"), SLICE_RANKS)),
        ("FULLY_CONNECTED", (attribute("weights_format", "DEFAULT"), FEW_COMPUTED, SAME_RANK)),
        ("GATHER", (*TWO_OPERANDS, input_rank(1, 1), input_type(1, "i32", "the index tensor"))),
        ("LSTM", when("it is a full one", _is_full_lstm, input_count(20, 24), ONE_RESULT)),
        ("LSTM", when("it is a basic one", _is_basic_lstm, computed_count(3), constant_count(2),
            output_count(4), unset("cell_clip"), unset("proj_clip"))),
        ("LSTM", (activation("TANH"),)),
        ("MEAN REVERSE_V2", (*ONE_IN_ONE_OUT, constant_count(1), *AXES)),
        (f"{REDUCTIONS} REDUCE_ALL REDUCE_ANY", (*ONE_IN_ONE_OUT, *AXES)),
        ("ONE_HOT", (input_count(4), ONE_RESULT, input_type(0, "i32"), LAST_AXIS,
            BATCH_AND_CHANNELS, input_type(2, "f32", "the value of on"),
            input_type(3, "f32", "the value of off"), constant(2, "the value of on"),
            constant(3, "the value of off"))),
        ("MIRROR_PAD", (attribute("mode", "REFLECT"),)),
        (PADS, (*ONE_IN_ONE_OUT, PADDINGS)),
        ("RESIZE_BILINEAR", (*ONE_IN_ONE_OUT, ONE_ALIGNMENT)),
        ("SELECT SELECT_V2", (input_count(3), ONE_RESULT,
            input_type(0, "bool f16 f32", "the condition"), CHOICES, NO_CONSTANT_MAP)),
        ("SLICE", (least_inputs(3), input_rank(0, 3, 4))),
        ("SOFTMAX", (attribute("beta", 1.0),)),
        ("STRIDED_SLICE", (unset("ellipsis_mask"), unset("new_axis_mask"),
            unset("shrink_axis_mask"), least_inputs(4), input_rank(0, 3, 4))),
        ("TOPK_V2", (computed_count(1), output_count(2))),
        ("STABLEHLO_BROADCAST_IN_DIM",
            (*ONE_IN_ONE_OUT, constant_count(1), input_rank(1, 1), input_type(1, "i32"))),
        ("STABLEHLO_CBRT", (input_type(0, "f16 f32 bf16"), *ALONE)),
        ("STABLEHLO_CLAMP", (ONE_TYPE, computed_count(3), constant_count(0), ONE_RESULT)),
        ("custom.Convolution2DTransposeBias", (has_input(1, "weights"),)),
        ("custom.MaxPoolingWithArgmax2D", (computed_count(1), output_count(2))),
        ("custom.MaxUnpooling2D custom.Resampler", (computed_count(2), ONE_RESULT)),
    )  # fmt: skip
    return {name: sourced(OFFLINE_SOURCE, *row) for name, row in found.items()}


# -- the parser ----------------------------------------------------------------------------------

# Operators that the parser takes without the offline check.
UNCHECKED = f"RELU RELU6 RELU_0_TO_1 RELU_N1_TO_1 LEAKY_RELU PRELU UNPACK {COMPARISONS}".split()
READ_AS_FLOATS = where(
    "neighbours",
    "one op reads the result: a CAST or SELECT whose result is float",
    _compared_for_floats,
)
LONE_CAST = where(
    "neighbours", "it alone reads what an op computes, and one op reads its result", _is_lone_cast
)
PARSER = rows(
    (f"ADD ADD_N {BINARY} {UNARY} {COMPARISONS} RELU RELU6 RELU_0_TO_1 RELU_N1_TO_1 LEAKY_RELU "
     f"AVERAGE_POOL_2D MAX_POOL_2D CONCATENATION QUANTIZE SPACE_TO_DEPTH {PADS} SLICE SOFTMAX",
     (version(2),)),
    ("MUL TRANSPOSE_CONV DEQUANTIZE RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR", (version(3),)),
    ("PRELU CUMSUM DENSIFY GATHER ONE_HOT RESHAPE SELECT SELECT_V2", (version(1),)),
    ("CONV_2D DEPTHWISE_CONV_2D", (version(6),)),
    ("FULLY_CONNECTED", (version(9),)),
    ("LSTM STRIDED_SLICE TRANSPOSE", (version(4),)),
    (f"BATCH_MATMUL CAST DEPTH_TO_SPACE HARD_SWISH MEAN PACK {REDUCTIONS} SPLIT SPLIT_V TILE "
     "UNPACK custom.Convolution2DTransposeBias custom.MaxPoolingWithArgmax2D "
     "custom.MaxUnpooling2D custom.Resampler", ()),
    (COMPARISONS, (READ_AS_FLOATS,)),
    ("CAST", when("it casts bool to float", _is_bool_cast, LONE_CAST)),
)  # fmt: skip

# What only the building of a part finds out.
DIFFERENT = where("operands", "its two inputs are different tensors", _are_different)
READABLE = where(
    "shape", "a constant input is a scalar, [C], [H,W] or [H,W,C]", _is_readable, _shapes
)
SLOPE = (constant(1, "alpha"), where("shape", "alpha is [C] or [H,W,C]", _is_slope, _shapes))
MATRICES = where(
    "constant",
    "both inputs are computed, or the second is a constant of two dimensions",
    _multiplies,
)
CHANNELS = where(
    "shape", "the input's last axis is as long as the weights'", _channels_fit, _shapes
)
ONE_GROUP = where("shape", "there is one group", _is_one_group, _shapes)
BUILDING = rows(
    (f"{BINARY} {COMPARISONS}", (DIFFERENT,)),
    (f"ADD MUL {BINARY}", (READABLE,)),
    ("ADD CONCATENATION FULLY_CONNECTED", (ACTIVATIONS,)),
    ("PRELU", SLOPE),
    ("BATCH_MATMUL", (MATRICES,)),
    ("FULLY_CONNECTED", (
        where("constant", "input 0 is computed", lambda op: not is_constant(op, 0)),
        *when("the weights are constant", lambda op: is_constant(op, 1), CHANNELS),
    )),
    ("CONV_2D", when("the weights are computed", _has_two_computed, ONE_GROUP)),
    ("DENSIFY", (where("types", "the input is sparse", _is_sparse),)),
    ("LSTM", (where("shape", "the depth is a multiple of 4", _all_of_four_channels),)),
    ("QUANTIZE", (where("quantisation", "the result has a scale", _has_scale),)),
    ("SLICE", (constant(1, "the begin"), constant(2, "the size"))),
    ("STRIDED_SLICE", (constant(1, "the begin"), constant(2, "the end"), constant(3, "the step"),
        where("attribute", "no step is negative", _strides_forward))),
    ("TRANSPOSE", (constant(1, "the permutation"), input_rank(0, 2, 3, 4))),
)  # fmt: skip

# -- types and ranks of tensors ------------------------------------------------------------------

TYPES_IN = {
    "CAST": "bool i32", "ONE_HOT": "i32", "GATHER": "i32", "SELECT": "bool", "SELECT_V2": "bool",
    "LOGICAL_AND": "bool",
}  # fmt: skip
TYPES_OUT = {"CAST": "bool i32", "LOGICAL_AND": "bool"} | dict.fromkeys(COMPARISONS.split(), "bool")
NUMBERS = "f32 f16 i8 u8"


def _odd_types(op: Op) -> list[str]:
    ins, outs = (f"{NUMBERS} {more.get(op.name, '')}" for more in (TYPES_IN, TYPES_OUT))
    odd = [t for t in computed(op) if not is_type(t, ins)]
    odd += [t for t in op.outputs if not is_type(t, outs)]
    return [t.dtype.short for t in odd]


def _has_ranks(op: Op) -> bool:
    """Whether all that is computed has a rank: a scalar has no place in batch, height, width and
    channels."""
    return all(len(t.shape) > 0 for t in (*computed(op), *op.outputs))


RANKS = most_rank(4)
EVERY = (
    RANKS,
    where(
        "types",
        "what is computed is f32, f16, i8 or u8 (bool and i32 of a few ops)",
        lambda op: not _odd_types(op),
        lambda op: f"there is {', '.join(sorted(set(_odd_types(op))))}",
    ),
    *fatal(
        where(
            "quantisation",
            "what is computed has one scale",
            lambda op: not any(per_axis(t) for t in (*computed(op), *op.outputs)),
        ),
        where("rank", "what is computed is no scalar", _has_ranks),
    ),
)


def _parsed() -> dict[str, tuple[Rule, ...]]:
    """The parser's rows: its own rules, the offline check's, and those of building."""
    checked = offline(ON_DEVICE)
    return {
        name: sourced(PARSER_SOURCE, *own)
        + (() if name in UNCHECKED else checked[name])
        + sourced(PARSER_SOURCE, *fatal(*BUILDING.get(name, ())))
        for name, own in PARSER.items()
    }


def expands_half(op: Op) -> bool:
    """Weights that are stored as float16: their readers take them as they are."""
    source = op.input(0)
    stored = source is not None and source.is_constant and source.dtype is DType.FLOAT16
    return op.name == "DEQUANTIZE" and stored


# A part is queued and waited for; tensors are copied into the GPU's layout and back.
BORDER = Border(call_us=300.0, bytes_per_us=2000.0)
TABLES = (
    Table(
        "gpu",
        "TensorFlow Lite's GPU delegate",
        PARSER_SOURCE,
        _parsed(),
        EVERY,
        (STATIC_SIZES,),
        Limits(max_delegated_partitions=1),
        folds=expands_half,
        border=BORDER,
    ),
    Table(
        "gpu:offline",
        "TensorFlow Lite's offline check for the GPU delegate",
        OFFLINE_SOURCE,
        offline(LIKE_NUMPY),
        border=BORDER,
    ),
)

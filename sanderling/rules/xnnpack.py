"""XNNPACK, LiteRT's fast delegate on CPUs: which ops it leaves to the slower built-in kernels.

Nothing says so at run time. What is known of its checks is written down here; the tests compare it
with what an installed LiteRT really delegates. `xnnpack:sparse` are the conditions under which it
multiplies sparse weights as such.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ..ir import DType, Graph, Op, Tensor
from .rule import (
    GraphRule,
    Rule,
    Table,
    activation,
    attribute,
    attribute_of,
    has_input,
    input_type,
    is_dilated,
    is_type,
    operands,
    rows,
    scale_of,
    values_of,
    when,
    where,
)

SOURCE = "tflite/delegates/xnnpack/xnnpack_delegate.cc"
README = "tflite/delegates/xnnpack/README.md"
# Operators that are taken with float values, and with int8 ones.
FLOAT = {
    "ABS", "ADD", "AVERAGE_POOL_2D", "BATCH_MATMUL", "CEIL", "CONCATENATION", "CONV_2D", "COS",
    "DENSIFY", "DEPTHWISE_CONV_2D", "DEPTH_TO_SPACE", "DEQUANTIZE", "DIV", "ELU", "EXP", "FLOOR",
    "FULLY_CONNECTED", "GELU", "HARD_SWISH", "LEAKY_RELU", "LOG", "LOGISTIC", "MAXIMUM",
    "MAX_POOL_2D", "MEAN", "MINIMUM", "MUL", "NEG", "PAD", "PRELU", "QUANTIZE", "REDUCE_MAX",
    "REDUCE_MIN", "RELU", "RELU6", "RELU_N1_TO_1", "RESHAPE", "RESIZE_BILINEAR", "ROUND", "RSQRT",
    "SIN", "SLICE", "SOFTMAX", "SPACE_TO_DEPTH", "SPLIT", "SQRT", "SQUARE", "SQUARED_DIFFERENCE",
    "STABLEHLO_COMPOSITE", "SUB", "SUM", "TANH", "TRANSPOSE", "TRANSPOSE_CONV",
}  # fmt: skip
INT8 = {
    "ADD", "BATCH_MATMUL", "CONCATENATION", "CONV_2D", "DEPTHWISE_CONV_2D", "DEPTH_TO_SPACE",
    "DEQUANTIZE", "ELU", "FULLY_CONNECTED", "LEAKY_RELU", "LOGISTIC", "MAX_POOL_2D", "MEAN", "MUL",
    "PAD", "QUANTIZE", "REDUCE_MAX", "REDUCE_MIN", "RESHAPE", "RESIZE_BILINEAR", "SLICE",
    "SPACE_TO_DEPTH", "SPLIT", "SUB", "SUM", "TANH", "TRANSPOSE", "TRANSPOSE_CONV",
}  # fmt: skip
UINT8 = INT8 - {"ELU"}
# Float values with weights as codes: the weights' bits that are taken.
HYBRID = {"CONV_2D": (8,), "TRANSPOSE_CONV": (8,), "FULLY_CONNECTED": (8, 4), "BATCH_MATMUL": (8,)}
# Operands that must be constants.
CONSTANT = {
    "CONV_2D": (1, 2), "DEPTHWISE_CONV_2D": (1, 2), "TRANSPOSE_CONV": (0, 1, 3),
    "FULLY_CONNECTED": (1, 2), "PRELU": (1,), "MEAN": (1,), "SUM": (1,), "REDUCE_MAX": (1,),
    "REDUCE_MIN": (1,), "PAD": (1,), "RESHAPE": (1,), "RESIZE_BILINEAR": (1,), "SLICE": (1, 2),
    "SPLIT": (0,), "TRANSPOSE": (1,),
}  # fmt: skip
# (least, most) of a ratio of scales; the most itself is too much.
SUMS, PRODUCTS, STEPS = (2.0**-10, 2.0**8), (2.0**-16, 2.0**8), (2.0**-8, 2.0**7)
COMPOSITES = ("odml.scaled_dot_product_attention",)
OPERANDS = (2, 4)  # of a CONCATENATION, results of a SPLIT
EXPANDED = ("DEQUANTIZE", "DENSIFY")  # what expands weights is folded


# -- looks at an op ------------------------------------------------------------------------------


def _kind(op: Op) -> str:
    types = [t.dtype for t in (*op.inputs, *op.outputs) if t is not None and not t.is_constant]
    odd = [d for d in types if d not in (DType.FLOAT32, DType.FLOAT16, DType.INT8, DType.UINT8)]
    codes = [d for d in types if d in (DType.INT8, DType.UINT8)]
    return odd[0].name.lower() if odd else codes[0].name.lower() if codes else "float"


def _has_codes(op: Op) -> bool:
    return _kind(op) in ("int8", "uint8")


def _is_known(op: Op) -> bool:
    kernels = {"float": FLOAT, "int8": INT8, "uint8": UINT8}
    return op.name in kernels.get(_kind(op), ())


def _open_sizes(op: Op) -> list[str]:
    return [t.name for t in (*operands(op), *op.outputs) if t.is_dynamic]


def _weights_fit(op: Op) -> bool:
    weight = op.input(1)
    if weight is None or _kind(op) != "float" or is_type(weight, "f32"):
        return True
    return weight.dtype.bits in HYBRID.get(op.name, ())


def _computed_parameters(op: Op) -> list[str]:
    given = [op.input(place) for place in CONSTANT.get(op.name, ())]
    return [t.name for t in given if t is not None and not _is_static(t)]


def _is_static(tensor: Tensor) -> bool:
    """A constant, or one that ops which XNNPACK folds make dense and float."""
    stored = _stored(tensor)
    return stored.is_constant and (stored is tensor or not is_type(stored, "i4"))


def _stored(tensor: Tensor) -> Tensor:
    """Weights as the file has them."""
    while tensor.producer is not None and tensor.producer.name in EXPANDED:
        tensor = tensor.producer.operand(0)
    return tensor


def _is_read(op: Op) -> bool:
    """Whether an op that reads these weights is taken."""
    if not _stored(op.operand(0)).is_constant:
        return True
    readers = op.outputs[0].users
    return not readers or any(TABLE.failing(reader) is None for reader in readers)


def _pieces(op: Op) -> int:
    return len(op.inputs) if op.name == "CONCATENATION" else len(op.outputs)


def _stride_fits(op: Op) -> bool:
    sides = (("h", "height"), ("w", "width"))
    pairs = [(attribute_of(op, f"stride_{a}"), attribute_of(op, f"filter_{b}")) for a, b in sides]
    return all((stride or 1) <= (window or 1) for stride, window in pairs)


def _is_batch_of_constants(op: Op) -> bool:
    matrix = op.operand(1)
    return matrix.is_constant and len(matrix.shape) >= 3


def _far_ratio(op: Op) -> str:
    """A ratio of scales that is too far from 1; "" if there is none."""
    for what, ratio, (least, most) in _ratios(op):
        if not least <= ratio < most:
            return f"{what} is {ratio:.3g}, out of {_power(least)} to {_power(most)}"
    return ""


def _power(value: float) -> str:
    return f"2**{int(math.log2(value))}"


def _ratios(op: Op) -> Iterator[tuple[str, float, tuple[float, float]]]:
    ins = [s for t in op.inputs[:2] if (s := scale_of(t)) is not None]
    out = scale_of(op.outputs[0])
    if out is None or not ins:
        return
    if op.name in ("ADD", "SUB"):
        for scale in ins:
            yield "an operand's scale by the result's", scale / out, SUMS
    elif op.name == "MUL" and len(ins) == 2:
        yield "the scales' product by the result's", ins[0] * ins[1] / out, PRODUCTS
    elif op.name in ("LEAKY_RELU", "QUANTIZE"):
        yield "the input's scale by the result's", ins[0] / out, STEPS


# -- rows ----------------------------------------------------------------------------------------

BLOCK = where("attribute", "block_size is above 1", lambda op: attribute_of(op, "block_size") != 1)
EVERY = (
    where("types", "it has a kernel for the values", _is_known, lambda op: f"they are {_kind(op)}"),
    where(
        "shape",
        "its sizes are known before the run",
        lambda op: not _open_sizes(op),
        lambda op: f"that of '{_open_sizes(op)[0]}' is not",
    ),
    where(
        "constant",
        "its parameters are constant",
        lambda op: not _computed_parameters(op),
        lambda op: f"'{_computed_parameters(op)[0]}' is not",
    ),
    activation("NONE RELU RELU_N1_TO_1 RELU6"),
    where(
        "quantisation",
        "scales are not too far apart",
        lambda op: not (_has_codes(op) and _far_ratio(op)),
        _far_ratio,
    ),
)
WEIGHTS = where(
    "quantisation",
    "it has a kernel for the weights",
    _weights_fit,
    lambda op: f"they are {op.operand(1).dtype.short}",
)
ROWS = rows(
    (" ".join(sorted(FLOAT | INT8)), ()),
    ("CONV_2D DEPTHWISE_CONV_2D TRANSPOSE_CONV FULLY_CONNECTED BATCH_MATMUL", (WEIGHTS,)),
    ("DEPTHWISE_CONV_2D", (has_input(2, "a bias"),)),
    ("PAD RESHAPE TRANSPOSE", (input_type(1, "i32"),)),
    ("CONCATENATION SPLIT", (where("operands", "it has 2 to 4 pieces",
        lambda op: OPERANDS[0] <= _pieces(op) <= OPERANDS[1], lambda op: f"{_pieces(op)}"),)),
    ("DEPTH_TO_SPACE SPACE_TO_DEPTH", (BLOCK,)),
    ("SOFTMAX", (attribute("beta", 1.0),)),
    ("AVERAGE_POOL_2D MAX_POOL_2D", (where("attribute", "no stride is longer than the window",
        _stride_fits),)),
    ("SLICE", (where("shape", "no size is -1, which stands for the rest",
        lambda op: all(size >= 0 for size in values_of(op, 2) or ())),)),
    ("BATCH_MATMUL", when("it is of codes", _has_codes, where("constant",
        "the second matrix is a constant of three dimensions or more", _is_batch_of_constants))),
    ("QUANTIZE", when("it is of codes", lambda op: is_type(op.input(0), "i8 u8"), where("types",
        "input and result are both i8 or both u8",
        lambda op: op.operand(0).dtype is op.outputs[0].dtype))),
    ("STABLEHLO_COMPOSITE", (attribute("name", *COMPOSITES),)),
    ("DENSIFY DEQUANTIZE", (
        where("types", "the input is no i4", lambda op: not is_type(op.input(0), "i4")),
        where("neighbours", "an op that reads it is taken", _is_read),
    )),
)  # fmt: skip
TABLE = Table("xnnpack", "XNNPACK, LiteRT's delegate for CPUs", SOURCE, ROWS, EVERY)


# -- sparse weights ------------------------------------------------------------------------------

LEAST_ZEROS = 2 / 3
UNARY = (
    "ABS CEIL ELU FLOOR HARD_SWISH LEAKY_RELU LOGISTIC NEG RELU RELU6 RELU_N1_TO_1 ROUND SQUARE "
    "TANH"
)


def _strides(op: Op) -> tuple[int, int]:
    return attribute_of(op, "stride_h"), attribute_of(op, "stride_w")


def _kernel(op: Op) -> tuple[int, ...]:
    return op.operand(1).shape[1:3]


def _is_start(op: Op) -> bool:
    """The 3x3 convolution by steps of 2, of the three colours."""
    wanted = op.name == "CONV_2D" and _kernel(op) == (3, 3) and _strides(op) == (2, 2)
    return wanted and op.operand(0).shape[-1] == 3 and not is_dilated(op)


def _is_end(op: Op) -> bool:
    return op.name == "DEPTH_TO_SPACE" or (op.name == "MEAN" and _is_spatial(op))


def _is_spatial(op: Op) -> bool:
    return sorted(values_of(op, 1) or ()) == [1, 2]


def _is_pointwise(op: Op) -> bool:
    return op.name == "CONV_2D" and _kernel(op) == (1, 1)


def _is_window(op: Op) -> bool:
    fits = _kernel(op) in ((3, 3), (5, 5)) and _strides(op) in ((1, 1), (2, 2))
    return fits and not is_dilated(op)


def _zeros(graph: Graph) -> float:
    """The share of zeros in the weights of all 1x1 convolutions."""
    weights = [_stored(op.operand(1)) for op in graph.ops if _is_pointwise(op)]
    known = [t.values for t in weights if t.is_constant]
    count = sum(v.size for v in known)
    return 1 - sum(int(np.count_nonzero(v)) for v in known) / count if count else 0.0


def _missing(names: str, is_there: bool) -> str | None:
    return None if is_there else f"there is no {names}"


def _few_zeros(graph: Graph) -> str | None:
    share = _zeros(graph)
    return None if share >= LEAST_ZEROS else f"{share:.0%} are"


SPARSE_GRAPH = (
    GraphRule(
        "weights are stored sparse",
        lambda graph: _missing("DENSIFY", any(op.name == "DENSIFY" for op in graph.ops)),
    ),
    GraphRule(
        "it starts with a 3x3 CONV_2D of stride 2 on 3 channels",
        lambda graph: _missing("such op", any(map(_is_start, graph.ops))),
    ),
    GraphRule(
        "it ends in a MEAN over height and width or a DEPTH_TO_SPACE",
        lambda graph: _missing("such op", any(map(_is_end, graph.ops))),
    ),
    GraphRule("two thirds of the weights of 1x1 convolutions are zeros", _few_zeros),
)
FLOATS = where(
    "types",
    "its values are f32",
    lambda op: all(is_type(t, "f32") for t in op.outputs),
)
SPARSE: dict[str, tuple[Rule, ...]] = rows(
    (f"{UNARY} DENSIFY DEQUANTIZE DEPTH_TO_SPACE", ()),
    ("CONV_2D", (where("shape", "the kernel is 1x1, or 3x3 of stride 2 on the 3 first channels",
        lambda op: _is_pointwise(op) or _is_start(op)),)),
    ("DEPTHWISE_CONV_2D", (where("shape", "the kernel is 3x3 or 5x5, undilated, of stride 1 or 2",
        _is_window),)),
    ("RESIZE_BILINEAR", (where("shape", "the result is larger than 1x1",
        lambda op: min(op.outputs[0].shape[1:3]) > 1),)),
    ("MEAN", (where("shape", "it is over height and width", _is_spatial),)),
    ("ADD MUL", (where("rank", "both inputs have rank 4, or one is a constant scalar or vector",
        lambda op: all(len(t.shape) == 4 or (t.is_constant and len(t.shape) < 2)
                       for t in operands(op))),)),
)  # fmt: skip
TABLES = (
    TABLE,
    Table(
        "xnnpack:sparse",
        "XNNPACK's inference with sparse weights",
        README,
        SPARSE,
        (FLOATS,),
        SPARSE_GRAPH,
    ),
)

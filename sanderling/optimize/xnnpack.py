"""Which ops XNNPACK, LiteRT's fast delegate, will leave to the slower built-in kernels, and why.

Nothing says so at run time. What is known of the delegate's checks is written down here as tables
and limits; the tests compare them with what an installed LiteRT really delegates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ..ir import DType, Model, Op, Tensor

# Operators that are taken with float values, and with int8 ones.
FLOAT = {
    "ABS", "ADD", "AVERAGE_POOL_2D", "BATCH_MATMUL", "CEIL", "CONCATENATION", "CONV_2D", "COS",
    "DEPTHWISE_CONV_2D", "DEPTH_TO_SPACE", "DEQUANTIZE", "DIV", "ELU", "EXP", "FLOOR",
    "FULLY_CONNECTED", "GELU", "HARD_SWISH", "LEAKY_RELU", "LOG", "LOGISTIC", "MAXIMUM",
    "MAX_POOL_2D", "MEAN", "MINIMUM", "MUL", "NEG", "PAD", "PRELU", "QUANTIZE", "REDUCE_MAX",
    "REDUCE_MIN", "RELU", "RELU6", "RELU_N1_TO_1", "RESHAPE", "RESIZE_BILINEAR", "ROUND", "RSQRT",
    "SIN", "SLICE", "SOFTMAX", "SPACE_TO_DEPTH", "SPLIT", "SQRT", "SQUARE", "SQUARED_DIFFERENCE",
    "SUB", "SUM", "TANH", "TRANSPOSE", "TRANSPOSE_CONV",
}  # fmt: skip
INT8 = {
    "ADD", "BATCH_MATMUL", "CONCATENATION", "CONV_2D", "DEPTHWISE_CONV_2D", "DEPTH_TO_SPACE",
    "DEQUANTIZE", "ELU", "FULLY_CONNECTED", "LEAKY_RELU", "LOGISTIC", "MAX_POOL_2D", "MEAN", "MUL",
    "PAD", "QUANTIZE", "REDUCE_MAX", "REDUCE_MIN", "RESHAPE", "RESIZE_BILINEAR", "SLICE",
    "SPACE_TO_DEPTH", "SPLIT", "SUB", "SUM", "TANH", "TRANSPOSE", "TRANSPOSE_CONV",
}  # fmt: skip
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
OPERANDS = (2, 4)  # of a CONCATENATION, results of a SPLIT


def refused(model: Model) -> list[tuple[Op, str]]:
    """The ops of all graphs that XNNPACK does not take, each with its reason."""
    found = ((op, reason(op)) for graph in model.graphs for op in graph.ops)
    return [(op, why) for op, why in found if why]


def reason(op: Op) -> str:
    """Why the op is refused; "" if, as far as is known, it is not."""
    return next((why for check in _CHECKS if (why := check(op))), "")


def _kind(op: Op) -> str:
    types = [t.dtype for t in (*op.inputs, *op.outputs) if t is not None and not t.is_constant]
    sixteen = DType.INT16 in types
    return "int16" if sixteen else "int8" if DType.INT8 in types else "float"


def _operator(op: Op) -> str:
    kind = _kind(op)
    if kind == "int16":
        return "XNNPACK has no 16-bit activations"
    known = INT8 if kind == "int8" else FLOAT
    return "" if op.name in known else f"XNNPACK has no {op.name} of {kind} values"


def _types(op: Op) -> str:
    values = [t for t in (*op.inputs, *op.outputs) if t is not None]
    odd = {
        t.dtype.short
        for t in values
        if t.dtype in (DType.UINT8, DType.INT64, DType.STRING, DType.BOOL) and not t.is_constant
    }
    if odd:
        return f"it has {', '.join(sorted(odd))} values"
    first = op.input(0)
    if op.name == "DEQUANTIZE" and first is not None and first.dtype is DType.INT4:
        return "int4 weights that are made float before use are not constants to XNNPACK"
    if op.name == "DEQUANTIZE" and first is not None and first.is_constant:
        readers = op.outputs[0].users
        return "nothing that reads it is taken" if readers and all(map(reason, readers)) else ""
    return ""


def _weights(op: Op) -> str:
    if op.name not in ("CONV_2D", "DEPTHWISE_CONV_2D", *HYBRID):
        return ""
    weight = op.input(1)
    if weight is None or _kind(op) != "float" or weight.dtype is DType.FLOAT32:
        return ""
    if weight.dtype.bits in HYBRID.get(op.name, ()):
        return ""
    return f"XNNPACK has no {op.name} of float values with {weight.dtype.short} weights"


def _constants(op: Op) -> str:
    for place in CONSTANT.get(op.name, ()):
        tensor = op.input(place)
        if tensor is not None and not _is_static(tensor):
            return f"its operand '{tensor.name}' is not a constant"
        if (
            op.name in ("PAD", "RESHAPE", "TRANSPOSE")
            and tensor is not None
            and (tensor.dtype not in (DType.INT32,))
        ):
            return f"its operand '{tensor.name}' is {tensor.dtype.short}, not int32"
    return ""


def _is_static(tensor: Tensor) -> bool:
    """A constant, or one that a DEQUANTIZE which XNNPACK folds makes float."""
    if tensor.is_constant:
        return True
    maker = tensor.producer
    source = maker.input(0) if maker is not None and maker.name == "DEQUANTIZE" else None
    return source is not None and source.is_constant and source.dtype is not DType.INT4


def _activation(op: Op) -> str:
    clamp = op.attrs.get("fused_activation_function", "NONE")
    return f"its fused activation is {clamp}" if clamp in ("TANH", "SIGN_BIT") else ""


def _bias(op: Op) -> str:
    wanted = op.name in ("CONV_2D", "DEPTHWISE_CONV_2D") and op.input(2) is None
    return "it has no bias" if wanted and op.name == "DEPTHWISE_CONV_2D" else ""


def _counts(op: Op) -> str:
    least, most = OPERANDS
    count = {"CONCATENATION": len(op.inputs), "SPLIT": len(op.outputs)}.get(op.name, least)
    return "" if least <= count <= most else f"it has {count} parts; XNNPACK takes 2 to 4"


def _attributes(op: Op) -> str:
    if op.name in ("DEPTH_TO_SPACE", "SPACE_TO_DEPTH") and op.attrs.get("block_size") == 1:
        return "its block size is 1"
    if op.name == "SOFTMAX" and op.attrs.get("beta", 1.0) != 1.0:
        return "its beta is not 1"
    if op.name.endswith("_POOL_2D") and any(
        op.attrs.get(f"stride_{a}", 1) > op.attrs.get(f"filter_{b}", 1)
        for a, b in (("h", "height"), ("w", "width"))
    ):
        return "its stride is larger than its window"
    return ""


def _sizes(op: Op) -> str:
    sizes = op.input(2) if op.name == "SLICE" else None
    if sizes is not None and sizes.data is not None and (sizes.data < 0).any():
        return "a size is -1, which stands for the rest"
    matrix = op.input(1) if op.name == "BATCH_MATMUL" and _kind(op) == "int8" else None
    if matrix is None:
        return ""
    if not matrix.is_constant or len(matrix.shape) < 3:
        return "of integers, XNNPACK multiplies batches with constants of three dimensions or more"
    return ""


def _scales(op: Op) -> str:
    if _kind(op) != "int8":
        return ""
    for what, ratio, (least, most) in _ratios(op):
        if not least <= ratio < most:
            return (
                f"{what} is {ratio:.3g}; XNNPACK takes from 2**{int(np.log2(least))} to "
                f"2**{int(np.log2(most))}"
            )
    return ""


def _ratios(op: Op) -> Iterator[tuple[str, float, tuple[float, float]]]:
    ins = [s for t in op.inputs[:2] if (s := _scale(t)) is not None]
    out = _scale(op.outputs[0])
    if out is None or not ins:
        return
    if op.name in ("ADD", "SUB"):
        for scale in ins:
            yield "the ratio of an operand's scale to the result's", scale / out, SUMS
    elif op.name == "MUL" and len(ins) == 2:
        yield "the ratio of the scales' product to the result's", ins[0] * ins[1] / out, PRODUCTS
    elif op.name in ("LEAKY_RELU", "QUANTIZE"):
        yield "the ratio of the scales", ins[0] / out, STEPS


def _scale(tensor: Tensor | None) -> float | None:
    if tensor is None or tensor.quant is None or tensor.quant.scale.size != 1:
        return None
    return float(tensor.quant.scale[0])


_CHECKS: tuple[Callable[[Op], str], ...] = (
    _operator, _types, _weights, _constants, _activation, _bias, _counts, _attributes, _sizes,
    _scales,
)  # fmt: skip

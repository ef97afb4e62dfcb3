"""Accelerators' rules: every row accepts and refuses as its source says."""

from __future__ import annotations

from typing import Any

import pytest

from sanderling.ir import Op, Quant
from sanderling.rules import find_table, judge
from sanderling.rules.gpu import OFFLINE_SOURCE, PARSER_SOURCE
from sanderling.rules.nnapi import LEVELS, NAMES

from .support.gpu_cases import CASES, GpuCase
from .support.rule_cases import LINES, legal, one_op, op_graph

F6, F7 = LEVELS["fl6"], LEVELS["fl7"]
STEP = 100  # of the conformance rows, which are judged for mistakes of ours


def refusal(table: str, op: Op) -> str | None:
    """Why the delegate does not take the op, by its rules alone."""
    found = find_table(table)
    rule = found.failing(op)
    if rule is None:
        return None
    assert rule.source, f"a rule of {table} has no source: {rule.says}"
    return rule.reason(op, found.level)


def takes(table: str, op: Op) -> None:
    assert refusal(table, op) is None, f"{table}: {op.where}: {refusal(table, op)}"


def refuses(table: str, op: Op, because: str) -> None:
    said = refusal(table, op)
    assert said is not None, f"{table} takes {op.where}: {op.attrs}"
    assert because in said, f"{table}: {op.where}: {said}"


# -- NNAPI ---------------------------------------------------------------------------------------

ALL, ANY = 27, 99
# operator: the highest version, the first level, the types of values there.
NNAPI: dict[str, tuple[int, int, str]] = {
    "ADD": (2, 27, "f32 u8 i8"), "MUL": (2, 27, "f32 u8 i8"), "SUB": (3, 28, "f32"),
    "DIV": (1, 28, "f32"), "SQUARED_DIFFERENCE": (2, 28, "f32"),
    "MAXIMUM": (3, 29, "f32 u8 i8 i32"), "MINIMUM": (3, 29, "f32 u8 i8 i32"),
    "CONV_2D": (5, 27, "f32"), "DEPTHWISE_CONV_2D": (3, 27, "f32"),
    "FULLY_CONNECTED": (5, 27, "f32"), "TRANSPOSE_CONV": (4, 29, "f32 u8 i8"),
    "BATCH_MATMUL": (2, F6, "f32 i32 i8"),
    "AVERAGE_POOL_2D": (2, 27, "f32 u8 i8"), "MAX_POOL_2D": (2, 27, "f32 u8 i8"),
    "L2_POOL_2D": (1, 27, "f32"),
    "RELU": (2, 27, "f32 u8 i8"), "RELU6": (2, 27, "f32 u8 i8"),
    "RELU_N1_TO_1": (2, 27, "f32 u8 i8"), "LOGISTIC": (2, 27, "f32 u8 i8"),
    "TANH": (2, 27, "f32"), "HARD_SWISH": (ANY, 27, "f32 u8 i8"), "PRELU": (1, 29, "f32 u8 i8"),
    "LEAKY_RELU": (1, 29, "f32 u8 i8"), "ELU": (1, 30, "f32"), "SOFTMAX": (2, 27, "f32 u8 i8"),
    "LOG_SOFTMAX": (1, 29, "f32"),
    "ABS": (1, 29, "f32"), "EXP": (1, 29, "f32"), "LOG": (1, 29, "f32"), "POW": (1, 29, "f32"),
    "SIN": (1, 29, "f32"), "COS": (1, 29, "f32"), "SQRT": (1, 29, "f32"), "RSQRT": (2, 29, "f32"),
    "NEG": (2, 29, "f32 i32"), "FLOOR": (1, 27, "f32"),
    "RESHAPE": (1, 27, "f32 u8 i8"), "TRANSPOSE": (2, 28, "f32 u8 i8"),
    "CONCATENATION": (2, 27, "f32 u8 i8"), "SLICE": (2, 29, "f32 u8 i8 i32"),
    "STRIDED_SLICE": (2, 28, "f32 u8 i8"), "SPLIT": (3, 29, "f32 u8 i32"),
    "SPLIT_V": (2, 30, "f32 u8 i8 i32"), "PACK": (2, 30, "f32 i8"), "UNPACK": (2, 30, "f32 u8 i8"),
    "EXPAND_DIMS": (1, 29, "f32 u8 i8 i32"), "SQUEEZE": (1, 28, "f32 u8 i8"),
    "TILE": (1, 29, "f32 u8 i8 i32"), "PAD": (2, 28, "f32"), "PADV2": (2, 29, "f32 u8 i8"),
    "MIRROR_PAD": (2, F7, "f32 u8 i8 i32"), "REVERSE_V2": (3, F7, "f32 u8 i8 i32"),
    "FILL": (1, 30, "f32 i32"), "GATHER": (2, 29, "f32 u8 i8 i32"),
    "SPACE_TO_BATCH_ND": (2, 28, "f32 u8 i8"), "BATCH_TO_SPACE_ND": (2, 28, "f32 u8 i8"),
    "DEPTH_TO_SPACE": (ANY, 27, "f32 u8 i8"), "SPACE_TO_DEPTH": (2, 27, "f32 u8 i8"),
    "MEAN": (2, 28, "f32"), "REDUCE_MIN": (2, 29, "f32 u8 i8"), "REDUCE_MAX": (2, 29, "f32 u8 i8"),
    "REDUCE_ANY": (2, 29, "f32"), "REDUCE_PROD": (1, 29, "f32"), "SUM": (1, 29, "f32"),
    "ARG_MAX": (2, 29, "f32 u8 i8 i32"), "ARG_MIN": (2, 29, "f32 u8 i8 i32"),
    "RESIZE_BILINEAR": (3, 27, "f32"), "RESIZE_NEAREST_NEIGHBOR": (3, 29, "f32 u8 i8"),
    "CAST": (1, 29, "f32 u8 i32"), "LESS": (2, 29, "f32 u8 i8 i32 bool"),
    "LESS_EQUAL": (2, 29, "f32"), "GREATER": (2, 29, "f32"), "GREATER_EQUAL": (2, 29, "f32"),
    "EQUAL": (2, 29, "f32"), "NOT_EQUAL": (2, 29, "f32"), "LOGICAL_OR": (1, 29, "f32"),
    "LOGICAL_AND": (1, 29, "f32"), "LOGICAL_NOT": (1, 29, "f32"), "SELECT": (2, 29,
        "f32 u8 i8 i32"),
    "TOPK_V2": (2, 29, "f32 u8 i8 i32"), "QUANTIZE": (2, 29, "f32 u8"), "DEQUANTIZE": (2, 27,
        "f32"),
    "DENSIFY": (ANY, 30, "f32"), "L2_NORMALIZATION": (2, 27, "f32"), "RNN": (1, 27, "f32"),
    "SVDF": (1, 28, "f32"), "EMBEDDING_LOOKUP": (1, 27, "f32"), "HASHTABLE_LOOKUP": (1, 27, "f32"),
    "LOCAL_RESPONSE_NORMALIZATION": (1, 27, "f32"), "LSH_PROJECTION": (1, 29, "f32"),
}  # fmt: skip


def level(number: int) -> str:
    return f"nnapi:{NAMES[number]}"


@pytest.mark.parametrize("name", NNAPI)
def test_nnapi_versions_levels_and_types(name: str) -> None:
    version, first, types = NNAPI[name]
    highest = 1 if version == ANY else version
    for x in types.split():
        takes(level(first), legal(name, x, version=highest))
    known = list(LEVELS.values())
    if first > ALL:
        older = level(known[known.index(first) - 1])
        # A later level may only bring types that the earlier had not: PADV2 is a PAD there.
        because = "the number of inputs" if name == "PADV2" else "or a later one"
        refuses(older, legal(name, types.split()[0], version=highest), because)
    if version != ANY:
        refuses(level(first), legal(name, types.split()[0], version=version + 1), "its version")


FULL_LSTM = "x[1,16] " + " ".join(["#x[8,16]"] * 4 + ["#x[8,8]"] * 4) + " - - -" + " #x[8]" * 4
FULL_LSTM += " - - x[1,8] x[1,8] -> x[1,8]"
# operator, from which level it is taken (None: never), reason below, line, type, attributes
NNAPI_CONDITIONS: list[tuple[str, int | None, str, str, str, dict[str, Any]]] = [
    ("ADD", None, "rank above 4", "x[1,1,4,4,8] x[1,1,4,4,8] -> x[1,1,4,4,8]", "f32", {}),
    ("ADD", 30, "input 0 is", "", "i32", {}),
    ("ADD", None, "fused activation", "", "i32", {"fused_activation_function": "RELU"}),
    ("SUB", 29, "input 0 is f32", "", "i8", {}),
    ("SUB", 30, "input 0 is", "", "i32", {}),
    ("DIV", None, "input 0 is f32", "", "i8", {}),
    ("SQUARED_DIFFERENCE", 30, "input 0 is", "", "i8", {}),
    ("MAXIMUM", None, "a scalar is constant", "x[1,8] x[] -> x[1,8]", "f32", {}),
    ("MAXIMUM", 29, "or a later one", "x[1,8] #x[] -> x[1,8]", "f32", {}),
    ("CONV_2D", 29, "input 0 is f32 or u8", "", "i8", {}),
    ("CONV_2D", 29, "hybrid", "f32[1,8,8,4] #i8[8,3,3,4] #f32[8] -> f32[1,6,6,8]", "f32", {}),
    ("CONV_2D", 29, "one scale", "u8[1,8,8,4] #u8[8,3,3,4]@ #i32[8] -> u8[1,6,6,8]", "f32", {}),
    ("CONV_2D", 29, "not dilated", "", "f32", {"dilation_h_factor": 2}),
    ("CONV_2D", 29, "one group", "x[1,8,8,8] #x[8,3,3,4] #x[8] -> x[1,6,6,8]", "f32", {}),
    ("CONV_2D", None, "inputs is 3", "x[1,8,8,4] #x[8,3,3,4] -> x[1,6,6,8]", "f32", {}),
    ("DEPTHWISE_CONV_2D", 29, "not dilated", "", "f32", {"dilation_w_factor": 2}),
    ("FULLY_CONNECTED", None, "result 0 is", "x[1,16] #x[8,16] #i32[8] -> i16[1,8]", "i8", {}),
    ("FULLY_CONNECTED", 30, "keep_num_dims", "", "f32", {"keep_num_dims": True}),
    ("TRANSPOSE_CONV", None, "is constant", "i32[4] #x[8,2,2,4] x[1,4,4,4] -> x[1,8,8,8]", "f32",
        {}),
    ("BATCH_MATMUL", None, "not broadcast", "x[2,4,8] x[1,8,4] -> x[2,4,4]", "f32", {}),
    ("BATCH_MATMUL", None, "of one type", "f32[2,4,8] i8[2,8,4] -> f32[2,4,4]", "f32", {}),
    ("AVERAGE_POOL_2D", None, "256 elements", "x[1,17,17,8] -> x[1,1,1,8]", "i8",
        {"filter_height": 17, "filter_width": 17}),
    ("AVERAGE_POOL_2D", 27, "", "x[1,17,17,8] -> x[1,1,1,8]", "f32", {"filter_height": 17,
        "filter_width": 17}),
    ("L2_POOL_2D", 29, "fused activation", "", "f32", {"fused_activation_function": "RELU"}),
    ("TANH", 29, "input 0 is f32", "", "i8", {}),
    ("SOFTMAX", None, "rank is at most 4", "x[1,1,1,1,8] -> x[1,1,1,1,8]", "f32", {"beta": 1.0}),
    ("SOFTMAX", 29, "has rank 2 or 4", "x[1,4,8] -> x[1,4,8]", "f32", {"beta": 1.0}),
    ("RSQRT", F7, "input 0 is f32", "", "i8", {}),
    ("RESHAPE", F6, "input 0 is", "", "i32", {}),
    ("RESHAPE", None, "shape is constant", "x[1,8] i32[2] -> x[2,4]", "f32", {}),
    ("RESHAPE", None, "rank is at most 4", "x[1,8] #i32[5]=1,1,1,2,4 -> x[1,1,1,2,4]", "f32", {}),
    ("TRANSPOSE", None, "permutation is constant", "x[4,8] i32[2] -> x[8,4]", "f32", {}),
    ("CONCATENATION", None, "fused activation", "", "f32", {"fused_activation_function": "RELU"}),
    ("SLICE", None, "begin is i32", "x[8] #i64[1]=0 #i64[1]=4 -> x[4]", "f32", {}),
    ("SPLIT", 30, "input 1 is", "", "i8", {}),
    ("SPLIT", None, "axis is constant", "i32[] x[1,4,4,8] -> x[1,4,4,4] x[1,4,4,4]", "f32", {}),
    ("SPLIT_V", None, "no size is 0", "x[8] #i32[2]=0,8 #i32[]=0 -> x[0] x[8]", "f32", {}),
    ("PACK", F6, "axis is not the last", "x[4,8] x[4,8] -> x[4,8,2]", "f32", {"axis": 2}),
    ("PACK", F6, "input 0 is f32 or i8", "", "i32", {}),
    ("UNPACK", None, "axis is not the last", "x[4,2] -> x[4] x[4]", "f32", {"axis": 1}),
    ("UNPACK", None, "has rank 2", "x[2] -> x[] x[]", "f32", {}),
    ("EXPAND_DIMS", None, "axis is constant", "x[8] i32[] -> x[1,8]", "f32", {}),
    ("SQUEEZE", 29, "squeeze_dims", "", "f32", {"squeeze_dims": []}),
    ("TILE", None, "multiples is i32", "x[8] #i64[1]=2 -> x[16]", "f32", {}),
    ("PAD", 29, "input 0 is f32", "", "i8", {}),
    ("PAD", None, "not empty", "x[0,4] #i32[2,2]=0,0,1,1 -> x[0,6]", "f32", {}),
    ("FILL", None, "shape is constant", "i32[2] x[] -> x[2,3]", "f32", {}),
    ("GATHER", None, "indices is i32", "x[4,8] #i64[2]=0,1 -> x[2,8]", "f32", {}),
    ("GATHER", None, "no scalar", "x[4,8] #i32[]=0 -> x[8]", "f32", {}),
    ("BATCH_TO_SPACE_ND", None, "constant 0",
        "x[4,2,2,8] #i32[2]=2,2 #i32[2,2]=1,0,0,0 -> x[1,3,4,8]", "f32", {}),
    ("MEAN", 29, "input 0 is f32", "", "i8", {}),
    ("MEAN", None, "no scalar", "x[8] #i32[1]=0 -> x[]", "f32", {"keep_dims": False}),
    ("REDUCE_MAX", None, "no scalar", "x[] #i32[0] -> x[]", "f32", {}),
    ("SUM", None, "input 0 is f32", "", "i8", {}),
    ("ARG_MAX", None, "output_type", "x[1,16] #i32[]=1 -> i64[1]", "f32", {"output_type": "INT64"}),
    ("RESIZE_BILINEAR", 30, "align_corners", "", "f32", {"align_corners": True}),
    ("RESIZE_BILINEAR", 30, "half_pixel_centers", "", "f32", {"half_pixel_centers": True}),
    ("RESIZE_BILINEAR", 29, "square", "x[1,4,4,8] #i32[2]=8,6 -> x[1,8,6,8]", "f32", {}),
    ("RESIZE_BILINEAR", None, "size is constant", "x[1,4,4,8] i32[2] -> x[1,8,8,8]", "f32", {}),
    ("RESIZE_NEAREST_NEIGHBOR", 30, "align_corners", "", "f32", {"align_corners": True}),
    ("CAST", 30, "input 0 is", "", "i8", {}),
    ("LOGICAL_AND", None, "input 0 is bool", "x[8] x[8] -> x[8]", "f32", {}),
    ("SELECT", None, "the values' shape", "bool[1] x[8] x[8] -> x[8]", "f32", {}),
    ("TOPK_V2", None, "k is constant", "x[1,16] i32[] -> x[1,4] i32[1,4]", "f32", {}),
    ("QUANTIZE", 30, "result 0 is u8", "f32[8] -> i8[8]", "f32", {}),
    ("DEQUANTIZE", 29, "input 0 is u8", "i8[8] -> f32[8]", "f32", {}),
    ("DEQUANTIZE", 30, "or a later one", "f16[8] -> f32[8]", "f32", {}),
    ("DEQUANTIZE", None, "input 0 is", "#f16[8] -> f32[8]", "f32", {}),
    ("DENSIFY", None, "input is constant", "x[8] -> x[8]", "f32", {}),
    ("L2_NORMALIZATION", 29, "has rank 4", "x[1,8] -> x[1,8]", "f32", {}),
    ("L2_NORMALIZATION", None, "fused activation", "", "f32",
        {"fused_activation_function": "RELU"}),
    ("RNN", None, "weights is f32", "f32[1,16] #i8[8,16] #i8[8,8] #f32[8] f32[1,8] -> f32[1,8]",
        "f32", {}),
    ("SVDF", None, "inputs is 5", "x[1,16] #x[8,16] #x[8,4] x[1,32] -> x[1,8]", "f32", {}),
    ("EMBEDDING_LOOKUP", None, "values is f32", "i32[2] i8[4,8] -> i8[2,8]", "f32", {}),
    ("LSTM", 28, "or a later one", FULL_LSTM, "f32", {}),
    ("UNIDIRECTIONAL_SEQUENCE_LSTM", 29, "or a later one", FULL_LSTM, "f32", {}),
    ("UNIDIRECTIONAL_SEQUENCE_LSTM", None, "inputs is 20", "x[1,16] #x[8,16] -> x[1,8]", "f32", {}),
    ("BIDIRECTIONAL_SEQUENCE_LSTM", 29, "or a later one", FULL_LSTM, "f32", {}),
    ("BIDIRECTIONAL_SEQUENCE_LSTM", None, "hybrid", "f32[1,16] - #i8[8,16] -> f32[1,8]", "f32", {}),
]  # fmt: skip


@pytest.mark.parametrize("name, first, because, line, x, attrs", NNAPI_CONDITIONS)
def test_nnapi_conditions(
    name: str, first: int | None, because: str, line: str, x: str, attrs: dict[str, Any]
) -> None:
    """From its first level on it is taken, and below it is refused for this reason."""
    op = legal(name, x, line=line, **attrs) if name in LINES else one_op(name, line, x, **attrs)
    known = list(LEVELS.values())
    if first is not None:
        takes(level(first), op)
        takes(level(F7), op)
    if first != ALL:
        below = known[known.index(first) - 1] if first is not None else F7
        refuses(level(below), op, because)


def test_nnapi_scales_of_old_levels() -> None:
    """Input's scale times weights' must be below the result's."""
    op = legal("CONV_2D", "u8")
    refuses("nnapi:28", _scaled(op, 0.001), "below the result's")
    takes("nnapi:29", op)
    takes("nnapi:28", _scaled(op, 1.0))
    joined = legal("CONCATENATION", "u8")
    takes("nnapi:27", joined)
    joined.operand(1).quant = Quant.of(0.2)
    refuses("nnapi:27", joined, "one scale and zero point")
    takes("nnapi:29", joined)


def _scaled(op: Op, scale: float) -> Op:
    op.outputs[0].quant = Quant.of(scale)
    return op


def test_nnapi_signed_zero_points() -> None:
    op = one_op("DEQUANTIZE", "i8[8] -> f32[8]")
    op.operand(0).quant = Quant.of(0.1, 3)
    refuses("nnapi:29", op, "zero point is 0")
    takes("nnapi:30", op)


def test_nnapi_basic_lstm() -> None:
    op = one_op("LSTM", "u8[1,16] u8[1,8] #u8[32,24] #i32[32] i16[1,8] -> u8[1,8] i16[1,8]")
    refuses("nnapi:29", op, "1/128")
    for tensor in (op.operand(0), op.outputs[0]):
        tensor.quant = Quant.of(1 / 128, 128)
    takes("nnapi:29", op)
    refuses("nnapi:27", op, "or a later one")


# -- Hexagon -------------------------------------------------------------------------------------

HEXAGON = {
    **dict.fromkeys(["ADD", "ARG_MAX", "ARG_MIN", "AVERAGE_POOL_2D", "CONCATENATION",
        "L2_NORMALIZATION", "LOGISTIC", "MAXIMUM", "MAX_POOL_2D", "MEAN", "MINIMUM", "MIRROR_PAD",
        "MUL", "PACK", "PAD", "QUANTIZE", "RELU6", "SLICE", "SOFTMAX", "SPACE_TO_DEPTH",
        "DEPTH_TO_SPACE", "SPLIT", "STRIDED_SLICE", "SUB", "TANH", "TRANSPOSE"], 2),
    **dict.fromkeys(["SQUARED_DIFFERENCE", "RELU", "RSQRT"], -2),  # exactly
    **dict.fromkeys(["CONV_2D", "DEPTHWISE_CONV_2D", "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR",
        "TRANSPOSE_CONV"], 3),
    "FULLY_CONNECTED": 4,
    **dict.fromkeys(["RESHAPE", "HARD_SWISH", "NEG"], 1),
}  # fmt: skip


@pytest.mark.parametrize("name", HEXAGON)
def test_hexagon_versions_and_types(name: str) -> None:
    most = abs(HEXAGON[name])
    takes("hexagon", legal(name, "i8", version=most))
    refuses("hexagon", legal(name, "i8", version=most + 1), "its version")
    if HEXAGON[name] < 0:
        refuses("hexagon", legal(name, "i8", version=1), "its version is 2")
    refuses("hexagon", legal(name, "f32", version=most), "i8")


def test_every_hexagon_row_is_tested() -> None:
    assert {*HEXAGON, "SUM"} == {*find_table("hexagon").rows}
    refuses("hexagon", legal("SUM", "i8"), "no op of this kind")


HEXAGON_CONDITIONS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("ADD", "fused activation", "", {"fused_activation_function": "TANH"}),
    ("MUL", "fused activation", "", {"fused_activation_function": "SIGN_BIT"}),
    ("ADD", "rank above 4", "x[1,1,4,4,8] x[1,1,4,4,8] -> x[1,1,4,4,8]", {}),
    ("AVERAGE_POOL_2D", "no fused activation", "", {"fused_activation_function": "RELU"}),
    ("MAX_POOL_2D", "no fused activation", "", {"fused_activation_function": "RELU"}),
    ("MAX_POOL_2D", "at most 12", "", {"padding": "SAME", "filter_height": 13}),
    ("CONV_2D", "at most 3", "", {"stride_h": 4}),
    ("CONV_2D", "not dilated", "", {"dilation_h_factor": 2}),
    ("CONV_2D", "it has a bias", "x[1,8,8,4] #x[8,3,3,4] - -> x[1,6,6,8]", {}),
    ("CONV_2D", "inputs is 3", "x[1,8,8,4] #x[8,3,3,4] -> x[1,6,6,8]", {}),
    ("DEPTHWISE_CONV_2D", "at most 3", "", {"stride_w": 4}),
    ("DEPTHWISE_CONV_2D", "stride_h is 1", "", {"dilation_h_factor": 2, "stride_h": 2}),
    ("DEPTHWISE_CONV_2D", "height is 2", "x[1,8,8,4] #x[1,1,3,4] #i32[4] -> x[1,8,6,4]", {}),
    ("DEPTHWISE_CONV_2D", "depth_multiplier", "", {"depth_multiplier": 2}),
    ("TRANSPOSE_CONV", "at most 3", "", {"stride_h": 4}),
    ("FULLY_CONNECTED", "one scale", "x[1,16] #x[8,16]@ #i32[8] -> x[1,8]", {}),
    ("FULLY_CONNECTED", "bias is constant", "x[1,16] #x[8,16] i32[8] -> x[1,8]", {}),
    ("FULLY_CONNECTED", "keep_num_dims", "", {"keep_num_dims": True}),
    ("MEAN", "is constant", "x[1,4,4,8] i32[2] -> x[1,1,1,8]", {}),
    ("PAD", "inputs is 2", "x[1,8] #i32[2,2] #x[] -> x[3,10]", {}),
    ("PAD", "is constant", "x[1,8] i32[2,2] -> x[3,10]", {}),
    ("MIRROR_PAD", "is constant", "x[1,8] i32[2,2] -> x[3,10]", {"mode": "REFLECT"}),
    ("RESIZE_BILINEAR", "is constant", "x[1,4,4,8] i32[2] -> x[1,8,8,8]", {}),
    ("RESIZE_NEAREST_NEIGHBOR", "is constant", "x[1,4,4,8] i32[2] -> x[1,8,8,8]", {}),
    ("SLICE", "begin is constant", "x[8] i32[1] #i32[1] -> x[1]", {}),
    ("SPLIT", "axis is constant", "i32[] x[1,8] -> x[1,4] x[1,4]", {}),
    ("STRIDED_SLICE", "end is constant", "x[8] #i32[1] i32[1] #i32[1] -> x[1]", {}),
    ("STRIDED_SLICE", "ellipsis_mask", "", {"ellipsis_mask": 1}),
    ("STRIDED_SLICE", "new_axis_mask", "", {"new_axis_mask": 1}),
    ("L2_NORMALIZATION", "no fused activation", "", {"fused_activation_function": "RELU"}),
    ("PACK", "u8 or i8", "x[8] f32[8] -> x[2,8]", {}),
]  # fmt: skip


@pytest.mark.parametrize("name, because, line, attrs", HEXAGON_CONDITIONS)
def test_hexagon_conditions(name: str, because: str, line: str, attrs: dict[str, Any]) -> None:
    refuses("hexagon", legal(name, "i8", version=1, line=line, **attrs), because)


def test_hexagon_exceptions() -> None:
    refuses("hexagon", legal("SQUARED_DIFFERENCE", "u8", version=2), "input 0 is i8")
    refuses("hexagon", legal("RSQRT", "u8", version=2), "input 0 is i8")
    takes("hexagon", legal("DEPTHWISE_CONV_2D", "u8", dilation_h_factor=2))
    one = "x[1,8,8,1] #x[1,3,3,4] #i32[4] -> x[1,6,6,4]"
    takes("hexagon", legal("DEPTHWISE_CONV_2D", "i8", line=one, depth_multiplier=4))
    takes("hexagon", legal("FULLY_CONNECTED", "i8", line="x[1,16] #x[8,16] - -> x[1,8]"))
    takes("hexagon", legal("MAX_POOL_2D", "i8", padding="SAME", filter_height=12))


# -- Core ML -------------------------------------------------------------------------------------

FREE = ["HARD_SWISH", "LOGISTIC", "RELU", "RELU6", "RELU_N1_TO_1", "TANH"]
COREML = [*FREE, *["ADD", "MUL", "AVERAGE_POOL_2D", "MAX_POOL_2D", "CONCATENATION", "CONV_2D",
    "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED", "MEAN", "PAD", "PADV2", "MIRROR_PAD",
    "RESIZE_BILINEAR", "SOFTMAX", "RESHAPE"]]  # fmt: skip
COREML_VERSIONS = {"DEPTHWISE_CONV_2D": 2, "FULLY_CONNECTED": 6}


@pytest.mark.parametrize("name", COREML)
def test_coreml_versions_and_types(name: str) -> None:
    most = COREML_VERSIONS.get(name, 1)
    for table in ("coreml:2", "coreml:3"):
        if (table, name) != ("coreml:3", "RESHAPE"):
            takes(table, legal(name, version=most))
        refuses(table, legal(name, version=most + 1), "its version")
        refuses(table, legal(name, "i8", version=most), "first value is f32")
    assert {*find_table("coreml:2").rows} == {*COREML}


COREML_CONDITIONS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("ADD", "broadcast", "x[1,1,4,4,8] x[1,1,4,4,8] -> x[1,1,4,4,8]", {}),
    ("ADD", "broadcast", "x[1,4,4,8] x[1,4,1,8] -> x[1,4,4,8]", {}),
    ("ADD", "broadcast", "x[1,4,4,8] x[1,4,4,2] -> x[1,4,4,8]", {}),
    ("MUL", "broadcast", "x[2,4,4,8] x[1,4,4,8] -> x[2,4,4,8]", {}),
    ("ADD", "or constant f16", "x[1,8] f16[1,8] -> x[1,8]", {}),
    ("AVERAGE_POOL_2D", "no fused activation", "", {"fused_activation_function": "RELU"}),
    ("MAX_POOL_2D", "no fused activation", "", {"fused_activation_function": "RELU6"}),
    ("CONCATENATION", "channels of rank 3 or 4", "x[1,4,4,8] x[1,4,4,8] -> x[1,8,4,8]",
        {"axis": 1}),
    ("CONCATENATION", "channels of rank 3 or 4", "x[4,8] x[4,8] -> x[4,16]", {"axis": 1}),
    ("CONCATENATION", "2 inputs", "x[1,4,8] -> x[1,4,8]", {"axis": 2}),
    ("CONCATENATION", "no fused activation", "", {"fused_activation_function": "RELU"}),
    ("CONV_2D", "weights is constant", "x[1,8,8,4] x[8,3,3,4] #x[8] -> x[1,6,6,8]", {}),
    ("CONV_2D", "bias is constant", "x[1,8,8,4] #x[8,3,3,4] x[8] -> x[1,6,6,8]", {}),
    ("CONV_2D", "at most 16384", "x[1,1,20000,1] #x[1,1,16385,1] #x[1] -> x[1,1,3616,1]", {}),
    ("DEPTHWISE_CONV_2D", "weights is constant", "x[1,8,8,4] x[1,3,3,4] #x[4] -> x[1,6,6,4]", {}),
    ("TRANSPOSE_CONV", "shape is constant", "i32[4] #x[8,2,2,4] x[1,4,4,4] -> x[1,8,8,8]", {}),
    ("FULLY_CONNECTED", "weights is f32", "f32[1,16] #i8[8,16] #f32[8] -> f32[1,8]", {}),
    ("FULLY_CONNECTED", "weights is constant", "x[1,16] x[8,16] #x[8] -> x[1,8]", {}),
    ("FULLY_CONNECTED", "one row", "x[2,16] #x[8,16] #x[8] -> x[2,8]", {}),
    ("FULLY_CONNECTED", "bias is constant", "x[1,16] #x[8,16] x[8] -> x[1,8]", {}),
    ("MEAN", "keep_dims", "x[1,4,4,8] #i32[2]=1,2 -> x[1,8]", {"keep_dims": False}),
    ("MEAN", "has rank 4", "x[1,4,8] #i32[1]=1 -> x[1,1,8]", {"keep_dims": True}),
    ("MEAN", "over height and width", "x[1,4,4,8] #i32[1]=3 -> x[1,4,4,1]", {"keep_dims": True}),
    ("PAD", "is constant", "x[1,4,4,8] i32[4,2] -> x[1,6,6,8]", {}),
    ("PAD", "height and width", "x[1,4,4,8] #i32[4,2]=0,0,0,0,0,0,1,1 -> x[1,4,4,10]", {}),
    ("PADV2", "height and width", "x[4,8] #i32[2,2]=0,0,1,1 #x[] -> x[4,10]", {}),
    ("MIRROR_PAD", "mode", "", {"mode": "SYMMETRIC"}),
    ("RESHAPE", "3 or 4 dimensions", "x[1,4,4,8] #i32[2]=1,128 -> x[1,128]", {}),
    ("RESIZE_BILINEAR", "size is constant", "x[1,4,4,8] i32[2] -> x[1,8,8,8]", {}),
    ("SOFTMAX", "beta is 1", "", {"beta": 2.0}),
]  # fmt: skip


@pytest.mark.parametrize("name, because, line, attrs", COREML_CONDITIONS)
def test_coreml_conditions(name: str, because: str, line: str, attrs: dict[str, Any]) -> None:
    refuses("coreml:2", legal(name, line=line, **attrs), because)


def test_coreml_exceptions() -> None:
    refuses("coreml:3", legal("RESHAPE"), "Core ML 2 is used")
    takes("coreml:3", legal("ADD", line="x[2,4,4,8] #x[]=1 -> x[2,4,4,8]"))
    takes("coreml:3", legal("MUL", line="x[1,4,4,8] x[1,1,1,8] -> x[1,4,4,8]"))
    takes("coreml:3", legal("ADD", line="x[1,8] #f16[1,8] -> x[1,8]"))


# -- Edge TPU ------------------------------------------------------------------------------------

EDGE_TPU = [n for n in find_table("edgetpu").rows if n in LINES and n != "QUANTIZE"]
EDGE_TPU_CONDITIONS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("AVERAGE_POOL_2D", "no fused activation", "", {"fused_activation_function": "RELU"}),
    ("MAX_POOL_2D", "no fused activation", "", {"fused_activation_function": "RELU"}),
    ("CONCATENATION", "all zeros", "x[1,4,8] #x[1,4,8] -> x[1,4,16]", {"axis": 2}),
    ("CONV_2D", "dilations are equal", "", {"dilation_h_factor": 2}),
    ("CONV_2D", "parameters are constant", "x[1,8,8,4] #x[8,3,3,4] i32[8] -> x[1,6,6,8]", {}),
    ("FULLY_CONNECTED", "one row", "x[2,16] #x[8,16] #i32[8] -> x[2,8]", {}),
    ("FULLY_CONNECTED", "weights_format", "", {"weights_format": "SHUFFLED4x16INT8"}),
    ("MEAN", "batch is not reduced", "x[2,4,4,8] #i32[1]=0 -> x[1,4,4,8]", {}),
    ("MEAN", "multiple of 4", "x[1,4,4,6] #i32[1]=3 -> x[1,4,4,1]", {}),
    ("ADD", "three innermost", "x[2,4,4,8] x[2,4,4,8] -> x[2,4,4,8]", {}),
    ("PAD", "batch is not padded", "x[1,4,4,8] #i32[4,2]=1,0,0,0,0,0,0,0 -> x[2,4,4,8]", {}),
    ("SOFTMAX", "one row", "x[1,4,8] -> x[1,4,8]", {}),
    ("SOFTMAX", "16000", "x[1,16001] -> x[1,16001]", {}),
    ("STRIDED_SLICE", "steps are 1", "x[8] #i32[1]=0 #i32[1]=8 #i32[1]=2 -> x[4]", {}),
    ("RESHAPE", "parameters are constant", "x[1,8] i32[2] -> x[2,4]", {}),
]  # fmt: skip


@pytest.mark.parametrize("name", EDGE_TPU)
def test_edgetpu_is_8_bit(name: str) -> None:
    takes("edgetpu", legal(name, "i8"))
    takes("edgetpu", legal(name, "u8"))
    refuses("edgetpu", legal(name, "f32"), "u8 or i8")


@pytest.mark.parametrize("name, because, line, attrs", EDGE_TPU_CONDITIONS)
def test_edgetpu_conditions(name: str, because: str, line: str, attrs: dict[str, Any]) -> None:
    refuses("edgetpu", legal(name, "i8", line=line, **attrs), because)


def test_edgetpu_sizes_are_static() -> None:
    graph = op_graph("RELU", "i8[1,8] -> i8[1,8]")
    assert judge(graph, "edgetpu").is_whole
    # Its compiler wants sizes in the file; where only the run knows them, nothing is mapped.
    graph.outputs[0].signature = (-1, 8)
    graph.ops[0].name = "custom.Mystery"  # whose shape nobody infers
    reason = judge(graph, "edgetpu").verdicts[0].reason
    assert reason is not None and "known before the run" in reason


# -- GPU -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=[f"{c.op}-{c.condition}" for c in CASES])
def test_gpu_conditions(case: GpuCase) -> None:
    """benchmarks/gpu_rules.py asks LiteRT the same."""
    found = judge(case.graph(), "gpu").verdicts[0]
    assert found.is_taken == case.taken, found.reason
    assert found.is_taken or found.source in (PARSER_SOURCE, OFFLINE_SOURCE)


@pytest.mark.parametrize(
    "name, most",
    [("MUL", 3), ("ADD", 2), ("CONV_2D", 6), ("FULLY_CONNECTED", 9), ("PRELU", 1), ("SOFTMAX", 2),
     ("TRANSPOSE_CONV", 3), ("STRIDED_SLICE", 4), ("RESHAPE", 1), ("QUANTIZE", 2), ("PAD", 2)],
)  # fmt: skip
def test_gpu_versions(name: str, most: int) -> None:
    takes("gpu", legal(name, version=most))
    refuses("gpu", legal(name, version=most + 1), f"its version is {'1' if most == 1 else 'at'}")
    takes("gpu:offline", legal(name, version=most + 1))  # which does not look at versions

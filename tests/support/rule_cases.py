"""Single ops for tests of accelerators' rules, written as one line each.

`x[1,8,8,4] #x[8,3,3,4] #b[8] -> x[1,6,6,8]`: inputs and outputs by type and shape. `x` is the type
of values and `b` that of a bias, which a test chooses; `#` is a constant, `-` an absent input,
`=1,2` gives a constant's values, `@` makes its scales one per index of the first axis.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from sanderling.ir import Array, DType, Graph, Op, Quant, Tensor

CONV = {
    "padding": "VALID",
    "stride_h": 1,
    "stride_w": 1,
    "dilation_h_factor": 1,
    "dilation_w_factor": 1,
}
POOL = {"padding": "VALID", "stride_h": 2, "stride_w": 2, "filter_height": 2, "filter_width": 2}
TOKEN = re.compile(r"(#?)(\w+)\[([\d,]*)\](?:=([-\d.,]+))?(@?)$")


def op_graph(
    name: str, line: str, x: str = "f32", b: str = "", version: int = 1, **attrs: Any
) -> Graph:
    """A graph of one op. A quantised one has a bias of i32 unless it is said otherwise."""
    graph = Graph()
    types = {"x": x, "b": b or ("i32" if x in ("i8", "u8") else x)}
    ins, outs = line.split("->")
    inputs = [_tensor(graph, token, types, f"in{i}") for i, token in enumerate(ins.split())]
    outputs = [_tensor(graph, token, types, f"out{i}") for i, token in enumerate(outs.split())]
    graph.inputs = [t for t in inputs if t is not None and not t.is_constant]
    graph.outputs = [t for t in outputs if t is not None]
    graph.insert(Op(name, inputs, graph.outputs, attrs, version=version))
    return graph


def one_op(name: str, line: str, x: str = "f32", **more: Any) -> Op:
    return op_graph(name, line, x, **more).ops[0]


def _tensor(graph: Graph, token: str, types: dict[str, str], name: str) -> Tensor | None:
    if token == "-":
        return None
    found = TOKEN.match(token)
    assert found, token
    fixed, kind, sizes, values, per_axis = found.groups()
    dtype = DType.parse(types.get(kind, kind))
    shape = tuple(map(int, sizes.split(","))) if sizes else ()
    quant = _quant(dtype, shape[0] if per_axis else 1, kind == "b")
    if not fixed:
        return graph.tensor(name, dtype, shape, quant=quant)
    return graph.constant(name, _values(values, shape, dtype), dtype, quant=quant)


def _values(text: str | None, shape: tuple[int, ...], dtype: DType) -> Array:
    if text is None:
        return np.ones(shape, dtype.numpy)
    return np.array([float(v) for v in text.split(",")], dtype.numpy).reshape(shape)


def _quant(dtype: DType, count: int, is_bias: bool) -> Quant | None:
    scales = {DType.INT8: 0.1, DType.UINT8: 0.1} | ({DType.INT32: 0.01} if is_bias else {})
    return Quant.of(np.full(count, scales[dtype], np.float32)) if dtype in scales else None


PAIR = "x[1,4,4,8] x[1,4,4,8] -> x[1,4,4,8]"
SAME = "x[1,4,4,8] -> x[1,4,4,8]"
REDUCED = "x[1,4,4,8] #i32[2]=1,2 -> x[1,1,1,8]"
COMPARED = "x[1,4,4,8] x[1,4,4,8] -> bool[1,4,4,8]"
# A legal op of each kind: its line and its attributes.
LINES: dict[str, tuple[str, dict[str, Any]]] = {
    **dict.fromkeys(["ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "POW",
        "FLOOR_DIV", "FLOOR_MOD", "ATAN2"], (PAIR, {})),
    **dict.fromkeys(["ABS", "EXP", "LOG", "SIN", "COS", "SQRT", "RSQRT", "NEG", "FLOOR", "CEIL",
        "ROUND", "SQUARE", "RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "LOGISTIC", "TANH",
        "HARD_SWISH", "ELU", "LEAKY_RELU", "GELU", "SIGN", "LOG_SOFTMAX", "L2_NORMALIZATION",
        "LOCAL_RESPONSE_NORMALIZATION"], (SAME, {})),
    **dict.fromkeys(["MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"], (REDUCED,
        {"keep_dims": True})),
    **dict.fromkeys(["LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL", "EQUAL", "NOT_EQUAL"],
        (COMPARED, {})),
    **dict.fromkeys(["AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"], ("x[1,4,4,8] -> x[1,2,2,8]",
        POOL)),
    "SOFTMAX": ("x[1,16] -> x[1,16]", {"beta": 1.0}),
    "CONV_2D": ("x[1,8,8,4] #x[8,3,3,4] #b[8] -> x[1,6,6,8]", CONV),
    "DEPTHWISE_CONV_2D": ("x[1,8,8,4] #x[1,3,3,4] #b[4] -> x[1,6,6,4]",
        CONV | {"depth_multiplier": 1}),
    "TRANSPOSE_CONV": ("#i32[4]=1,8,8,8 #x[8,2,2,4] x[1,4,4,4] -> x[1,8,8,8]",
                       {"padding": "VALID", "stride_h": 2, "stride_w": 2}),
    "FULLY_CONNECTED": ("x[1,16] #x[8,16] #b[8] -> x[1,8]", {"weights_format": "DEFAULT"}),
    "BATCH_MATMUL": ("x[2,4,8] x[2,8,4] -> x[2,4,4]", {}),
    "PRELU": ("x[1,4,4,8] #x[1,1,8] -> x[1,4,4,8]", {}),
    "RESHAPE": ("x[1,4,4,8] #i32[4]=1,2,8,8 -> x[1,2,8,8]", {}),
    "TRANSPOSE": ("x[1,4,6,8] #i32[4]=0,2,1,3 -> x[1,6,4,8]", {}),
    "CONCATENATION": ("x[1,4,4,8] x[1,4,4,8] -> x[1,4,4,16]", {"axis": 3}),
    "SLICE": ("x[1,4,4,8] #i32[4]=0,1,1,0 #i32[4]=1,2,2,8 -> x[1,2,2,8]", {}),
    "STRIDED_SLICE": ("x[1,4,4,8] #i32[4]=0,1,1,0 #i32[4]=1,3,3,8 #i32[4]=1,1,1,1 -> x[1,2,2,8]",
        {}),
    "SPLIT": ("#i32[]=3 x[1,4,4,8] -> x[1,4,4,4] x[1,4,4,4]", {"num_splits": 2}),
    "SPLIT_V": ("x[1,4,4,8] #i32[2]=2,6 #i32[]=3 -> x[1,4,4,2] x[1,4,4,6]", {"num_splits": 2}),
    "PACK": ("x[4,8] x[4,8] -> x[2,4,8]", {"axis": 0, "values_count": 2}),
    "UNPACK": ("x[2,4,8] -> x[4,8] x[4,8]", {"axis": 0, "num": 2}),
    "EXPAND_DIMS": ("x[4,8] #i32[]=0 -> x[1,4,8]", {}),
    "SQUEEZE": ("x[1,4,8] -> x[4,8]", {"squeeze_dims": [0]}),
    "TILE": ("x[1,4,8] #i32[3]=1,2,1 -> x[1,8,8]", {}),
    "PAD": ("x[1,4,4,8] #i32[4,2]=0,0,1,1,1,1,0,0 -> x[1,6,6,8]", {}),
    "PADV2": ("x[1,4,4,8] #i32[4,2]=0,0,1,1,1,1,0,0 #x[]=0 -> x[1,6,6,8]", {}),
    "MIRROR_PAD": ("x[1,4,4,8] #i32[4,2]=0,0,1,1,1,1,0,0 -> x[1,6,6,8]", {"mode": "REFLECT"}),
    "REVERSE_V2": ("x[1,4,8] #i32[1]=1 -> x[1,4,8]", {}),
    "FILL": ("#i32[2]=2,3 x[] -> x[2,3]", {}),
    "GATHER": ("x[4,8] #i32[2]=0,1 -> x[2,8]", {"axis": 0}),
    "SPACE_TO_BATCH_ND": ("x[1,4,4,8] #i32[2]=2,2 #i32[2,2]=0,0,0,0 -> x[4,2,2,8]", {}),
    "BATCH_TO_SPACE_ND": ("x[4,2,2,8] #i32[2]=2,2 #i32[2,2]=0,0,0,0 -> x[1,4,4,8]", {}),
    "DEPTH_TO_SPACE": ("x[1,4,4,8] -> x[1,8,8,2]", {"block_size": 2}),
    "SPACE_TO_DEPTH": ("x[1,4,4,8] -> x[1,2,2,32]", {"block_size": 2}),
    "REDUCE_ANY": ("bool[1,4,4,8] #i32[2]=1,2 -> bool[1,1,1,8]", {"keep_dims": True}),
    "ARG_MAX": ("x[1,16] #i32[]=1 -> i32[1]", {"output_type": "INT32"}),
    "ARG_MIN": ("x[1,16] #i32[]=1 -> i32[1]", {"output_type": "INT32"}),
    "RESIZE_BILINEAR": ("x[1,4,4,8] #i32[2]=8,8 -> x[1,8,8,8]", {}),
    "RESIZE_NEAREST_NEIGHBOR": ("x[1,4,4,8] #i32[2]=8,8 -> x[1,8,8,8]", {}),
    "CAST": ("x[1,8] -> i32[1,8]", {}),
    "LOGICAL_OR": ("bool[1,8] bool[1,8] -> bool[1,8]", {}),
    "LOGICAL_AND": ("bool[1,8] bool[1,8] -> bool[1,8]", {}),
    "LOGICAL_NOT": ("bool[1,8] -> bool[1,8]", {}),
    "SELECT": ("bool[1,8] x[1,8] x[1,8] -> x[1,8]", {}),
    "SELECT_V2": ("bool[1,8] x[1,8] x[1,8] -> x[1,8]", {}),
    "TOPK_V2": ("x[1,16] #i32[]=4 -> x[1,4] i32[1,4]", {}),
    "QUANTIZE": ("x[1,16] -> u8[1,16]", {}),
    "DEQUANTIZE": ("u8[1,16] -> f32[1,16]", {}),
    "DENSIFY": ("#x[8,16] -> x[8,16]", {}),
    "CUMSUM": ("x[1,4,8] #i32[]=1 -> x[1,4,8]", {}),
    "ONE_HOT": ("i32[4] #i32[]=8 #f32[]=1 #f32[]=0 -> f32[4,8]", {"axis": -1}),
    "RNN": ("x[1,16] #x[8,16] #x[8,8] #x[8] x[1,8] -> x[1,8]", {}),
    "SVDF": ("x[1,16] #x[8,16] #x[8,4] #x[8] x[1,32] -> x[1,8]", {}),
    "EMBEDDING_LOOKUP": ("i32[2] x[4,8] -> x[2,8]", {}),
    "HASHTABLE_LOOKUP": ("i32[2] i32[4] x[4,8] -> x[2,8] u8[2]", {}),
    "LSH_PROJECTION": ("x[2,8] i32[4] -> i32[2]", {"type": "SPARSE"}),
}  # fmt: skip


def legal(name: str, x: str = "f32", version: int = 1, line: str = "", **attrs: Any) -> Op:
    """An op of this kind, with another line or other attributes where they are given."""
    usual, known = LINES[name]
    return one_op(name, line or usual, x, version=version, **(known | attrs))

"""Single ops under conditions, to ask TensorFlow Lite's GPU rules and LiteRT's own GPU delegate.

Each is an operator, the condition in words, what our table says, and the op as `rule_cases` writes
it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sanderling.ir import DType, Graph, Op

from .rule_cases import LINES, op_graph


@dataclass(frozen=True)
class GpuCase:
    """An op, the condition, and whether `gpu` takes it. then: the op that reads its result."""

    op: str
    condition: str
    taken: bool
    line: str = ""
    x: str = "f32"
    version: int = 1
    then: tuple[str, str] | None = None
    attrs: dict[str, Any] = field(default_factory=dict)

    def graph(self) -> Graph:
        usual, attrs = LINES[self.op]
        made = op_graph(
            self.op, self.line or usual, self.x, version=self.version, **(attrs | self.attrs)
        )
        return made if self.then is None else _followed(made, *self.then)


def _followed(graph: Graph, name: str, dtype: str) -> Graph:
    source = graph.outputs[0]
    made = graph.tensor("then", DType.parse(dtype), source.shape)
    graph.insert(Op(name, [source], [made]))
    last = graph.tensor("last", DType.parse(dtype), source.shape)
    graph.insert(Op("ABS", [made], [last]))
    graph.outputs = [last]
    return graph


def _all(names: str, condition: str, taken: bool, **more: Any) -> list[GpuCase]:
    return [GpuCase(name, condition, taken, **more) for name in names.split()]


RANK_5 = "x[1,2,4,4,8] -> x[1,2,4,4,8]"
CASES = [
    *_all("ADD SUB MUL DIV MAXIMUM MINIMUM SQUARED_DIFFERENCE POW", "two computed", True),
    *_all("ADD SUB MUL DIV MAXIMUM MINIMUM", "a constant", True,
          line="x[1,4,4,8] #x[8] -> x[1,4,4,8]"),
    *_all("ADD MUL", "3-D and 4-D", True, line="x[1,4,4,8] x[4,4,8] -> x[1,4,4,8]"),
    *_all("ADD MUL", "3-D and 4-D, two batches", False, line="x[2,4,4,8] x[4,4,8] -> x[2,4,4,8]"),
    *_all("ADD MUL", "[b,c] and 4-D", True, line="x[1,4,4,8] x[1,8] -> x[1,4,4,8]"),
    *_all("SUB DIV", "two constant batches", False, line="x[1,4,4,8] #x[2,4,4,8] -> x[2,4,4,8]"),
    *_all("ADD MUL", "i32", False, x="i32"),
    *_all("ADD", "two constant batches", False, line="x[2,4,4,8] #x[2,4,4,8] -> x[2,4,4,8]"),
    *_all("ABS COS ELU EXP FLOOR GELU LOG LOGISTIC NEG RSQRT SIN SQRT SQUARE TANH HARD_SWISH",
          "float", True),
    *_all("RELU RELU6 RELU_N1_TO_1 RELU_0_TO_1 LEAKY_RELU", "float", True),
    *_all("ABS EXP RELU", "rank 5", False, line=RANK_5),
    *_all("CEIL ROUND", "float", False),
    *_all("NEG ABS", "i32", False, x="i32"),
    *_all("AVERAGE_POOL_2D MAX_POOL_2D", "2x2", True),
    *_all("AVERAGE_POOL_2D", "a fused RELU", True, attrs={"fused_activation_function": "RELU"}),
    *_all("L2_POOL_2D", "2x2", False),
    GpuCase("CONV_2D", "3x3", True),
    GpuCase("CONV_2D", "dilated", True, "x[1,8,8,4] #x[8,3,3,4] #x[8] -> x[1,4,4,8]",
            attrs={"dilation_h_factor": 2, "dilation_w_factor": 2}),
    GpuCase("CONV_2D", "computed weights", True, "x[1,8,8,4] x[8,3,3,4] #x[8] -> x[1,6,6,8]"),
    GpuCase("CONV_2D", "groups", True, "x[1,8,8,8] #x[8,3,3,4] #x[8] -> x[1,6,6,8]", version=6),
    GpuCase("CONV_2D", "i8", True, x="i8", version=3),
    GpuCase("CONV_2D", "hybrid", True, "f32[1,8,8,4] #i8[8,3,3,4] #f32[8] -> f32[1,6,6,8]",
            version=2),
    GpuCase("DEPTHWISE_CONV_2D", "3x3", True),
    GpuCase("DEPTHWISE_CONV_2D", "multiplier 2", True,
            "x[1,8,8,4] #x[1,3,3,8] #x[8] -> x[1,6,6,8]", attrs={"depth_multiplier": 2}),
    GpuCase("TRANSPOSE_CONV", "2x2", True),
    GpuCase("FULLY_CONNECTED", "one row", True),
    GpuCase("FULLY_CONNECTED", "computed weights", True, "x[1,16] x[8,16] #x[8] -> x[1,8]"),
    GpuCase("FULLY_CONNECTED", "flattened inside", False, "x[1,4,4,1] #x[8,16] #x[8] -> x[1,8]"),
    GpuCase("BATCH_MATMUL", "two computed", True),
    GpuCase("BATCH_MATMUL", "a constant of rank 3", False, "x[2,4,8] #x[2,8,4] -> x[2,4,4]"),
    GpuCase("PRELU", "alpha of channels", True, "x[1,4,4,8] #x[8] -> x[1,4,4,8]"),
    GpuCase("PRELU", "one alpha for all", False, "x[1,4,4,8] #x[1] -> x[1,4,4,8]"),
    GpuCase("SOFTMAX", "beta 1", True),
    GpuCase("SOFTMAX", "beta 2", False, attrs={"beta": 2.0}),
    GpuCase("LOG_SOFTMAX", "float", False),
    GpuCase("RESHAPE", "constant shape", True),
    GpuCase("RESHAPE", "to rank 5", False, "x[1,4,4,8] #i32[5]=1,4,2,2,8 -> x[1,4,2,2,8]"),
    GpuCase("TRANSPOSE", "rank 4", True),
    GpuCase("TRANSPOSE", "rank 5", False, "x[1,2,3,4,5] #i32[5]=0,2,1,3,4 -> x[1,3,2,4,5]"),
    GpuCase("CONCATENATION", "channels", True),
    GpuCase("CONCATENATION", "a constant", True, "x[1,4,4,8] #x[1,4,4,8] -> x[1,4,4,16]"),
    GpuCase("SLICE", "rank 4", True),
    GpuCase("SLICE", "rank 2", False, "x[4,8] #i32[2]=0,0 #i32[2]=2,8 -> x[2,8]"),
    GpuCase("STRIDED_SLICE", "rank 4", True),
    GpuCase("STRIDED_SLICE", "shrink_axis_mask", False, "x[1,4,4,8] #i32[4]=0,1,0,0 "
            "#i32[4]=1,2,4,8 #i32[4]=1,1,1,1 -> x[1,4,8]", attrs={"shrink_axis_mask": 2}),
    GpuCase("STRIDED_SLICE", "rank 2", False,
            "x[4,8] #i32[2]=0,0 #i32[2]=2,8 #i32[2]=1,1 -> x[2,8]"),
    GpuCase("SPLIT", "channels", True),
    GpuCase("SPLIT_V", "channels", True),
    GpuCase("PACK", "the first axis", True),
    GpuCase("UNPACK", "the first axis", True),
    GpuCase("TILE", "rank 3", True),
    GpuCase("PAD", "4x2", True),
    GpuCase("PAD", "2x2", False, "x[4,8] #i32[2,2]=0,0,1,1 -> x[4,10]"),
    GpuCase("PADV2", "4x2", True),
    GpuCase("MIRROR_PAD", "REFLECT", True),
    GpuCase("MIRROR_PAD", "SYMMETRIC", False, attrs={"mode": "SYMMETRIC"}),
    *_all("MEAN SUM REDUCE_MAX REDUCE_MIN REDUCE_PROD", "constant axes", True),
    *_all("MEAN", "not kept dimensions", True, line="x[1,4,4,8] #i32[2]=1,2 -> x[1,8]",
          attrs={"keep_dims": False}),
    GpuCase("RESIZE_BILINEAR", "constant size", True),
    GpuCase("RESIZE_BILINEAR", "half_pixel_centers", True, attrs={"half_pixel_centers": True},
            version=3),
    GpuCase("RESIZE_NEAREST_NEIGHBOR", "constant size", True),
    GpuCase("DEPTH_TO_SPACE", "block 2", True),
    GpuCase("SPACE_TO_DEPTH", "block 2", True),
    *_all("SPACE_TO_BATCH_ND BATCH_TO_SPACE_ND EXPAND_DIMS SQUEEZE REVERSE_V2 L2_NORMALIZATION",
          "float", False),
    GpuCase("GATHER", "1-D indices", True),
    GpuCase("GATHER", "2-D indices", False, "x[4,8] #i32[1,2]=0,1 -> x[1,2,8]"),
    GpuCase("CUMSUM", "constant axis", True),
    GpuCase("ARG_MAX", "float", False),
    GpuCase("TOPK_V2", "float", False),
    GpuCase("CAST", "f32 to i32", True),
    GpuCase("GREATER", "read by a CAST to float", True, then=("CAST", "f32")),
    GpuCase("GREATER", "a result of the model", False),
    GpuCase("QUANTIZE", "f32 to u8", True),
    GpuCase("DEQUANTIZE", "u8", True),
    GpuCase("SELECT", "equal shapes", True, "bool[1,8] x[1,8] x[1,8] -> x[1,8]"),
    GpuCase("SELECT_V2", "a choice is [1,1]", False, "bool[1,8] x[1,8] x[1,1] -> x[1,8]"),
    *_all("REDUCE_MAX RESHAPE TRANSPOSE CONCATENATION SELECT GREATER", "i32", False, x="i32"),
    *_all("EXP RELU MEAN SOFTMAX SPLIT MAX_POOL_2D", "i32", False, x="i32"),
    *_all("ARG_MIN FILL", "float", False),
    GpuCase("LOGICAL_AND", "bool", True),
    GpuCase("LOGICAL_NOT", "bool", False),
    GpuCase("ONE_HOT", "one row", True, "i32[1] #i32[]=8 #f32[]=1 #f32[]=0 -> f32[1,8]"),
]  # fmt: skip

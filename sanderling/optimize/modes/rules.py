"""What integer kernels ask of each operator's operands: one row an operator.

From the kernels' own checks and the converter's operator properties. Operand numbers are places in
op.inputs; an operand that a row does not name (a shape, an axis, indices) is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ...ir import Op, Tensor

ALL = -1  # every operand
Fixed = tuple[float, int]


@dataclass(frozen=True)
class OpRule:
    """One row.

    data:     operands that carry values which flow (a constant among them is quantised like one)
    weights:  operand -> the axis of its output channels
    same:     the data operands and all outputs have one scale and zero point
    fixed:    what the output's scale and zero point must be, by bits of the activations
    versions: the op version to write, by bits of the activations
    fewer:    the op version to write for weights of fewer bits than 8, by bits of the activations
              and of the weights; without a row no kernel takes them
    real_out: the outputs carry values (an ARG_MAX's and a comparison's do not)
    """

    data: tuple[int, ...] = (0,)
    weights: Mapping[int, int] = field(default_factory=dict)
    bias: int | None = None
    same: bool = False
    fixed: Mapping[int, Fixed] = field(default_factory=dict)
    versions: Mapping[int, int] = field(default_factory=dict)
    bits: tuple[int, ...] = (8, 16)
    fewer: Mapping[tuple[int, int], int] = field(default_factory=dict)
    real_out: bool = True
    recurrent: bool = False  # it has states: the module of that name writes it

    def operands(self, op: Op) -> list[int]:
        """The places of its flowing values."""
        places = range(len(op.inputs)) if self.data == (ALL,) else self.data
        return [i for i in places if op.input(i) is not None]

    def weight_bits(self, activations: int, wanted: int) -> int:
        """The fewest bits from those wanted up that a kernel takes the weights in."""
        steps = (bits for bits in (2, 4) if bits >= wanted and (activations, bits) in self.fewer)
        return next(steps, 8)

    def flowing(self, op: Op) -> Iterable[Tensor]:
        return (t for i in self.operands(op) if (t := op.inputs[i]) is not None)


def _v(eight: int, sixteen: int | None = None) -> dict[int, int]:
    return {8: eight, 16: sixteen or eight}


_MOVE = OpRule(same=True, versions=_v(2))
_FREE = OpRule(versions=_v(2))
_PAIR = OpRule((0, 1), versions=_v(2))
_EIGHT = OpRule(versions=_v(1), bits=(8,))
_COMPARE = OpRule((0, 1), versions=_v(2), bits=(8,), real_out=False)
_UNIT = {8: (1 / 256, -128), 16: (1 / 32768, 0)}


def _each(names: str, row: OpRule, *versions: int) -> dict[str, OpRule]:
    """Several operators of one kind; their versions where they differ from the kind's."""
    made = replace(row, versions=_v(*versions)) if versions else row
    return dict.fromkeys(names.split(), made)


RULES: dict[str, OpRule] = {
    # Products with weights.
    "CONV_2D": OpRule(weights={1: 0}, bias=2, versions=_v(3, 4), fewer={(8, 4): 7, (16, 4): 7}),
    "DEPTHWISE_CONV_2D": OpRule(weights={1: 3}, bias=2, versions=_v(3, 5), fewer={(8, 4): 7}),
    "TRANSPOSE_CONV": OpRule((2,), {1: 0}, bias=3, versions=_v(3, 3)),
    "FULLY_CONNECTED": OpRule(weights={1: 0}, bias=2, versions=_v(4, 7),
                              fewer={(8, 4): 10, (16, 4): 13, (8, 2): 14, (16, 2): 14}),
    "BATCH_MATMUL": OpRule((0, 1), versions=_v(2, 3)),
    # Arithmetic.
    **_each("ADD", _PAIR, 2, 3),
    **_each("SUB", _PAIR, 2, 5),
    **_each("MUL", _PAIR, 3, 4),
    "DIV": replace(_PAIR, versions=_v(1), bits=(8,)),
    "SQUARED_DIFFERENCE": replace(_PAIR, bits=(8,)),
    **_each("MAXIMUM MINIMUM", OpRule((0, 1), same=True), 2, 4),
    # Functions of one value.
    **_each("ABS RSQRT RELU RELU6", _FREE, 2, 3),
    **_each("EXP LOG GELU LEAKY_RELU", _FREE),
    "SQRT": replace(_FREE, bits=(8,)),
    **_each("RELU_N1_TO_1 ELU HARD_SWISH", _EIGHT),
    "PRELU": replace(_EIGHT, data=(0, 1)),
    **_each("SOFTMAX LOGISTIC", OpRule(fixed=_UNIT), 2, 3),
    "TANH": OpRule(fixed={8: (1 / 128, 0), 16: (1 / 32768, 0)}, versions=_v(2, 3)),
    "L2_NORMALIZATION": OpRule(fixed={8: (1 / 128, 0)}, versions=_v(2), bits=(8,)),
    "LOG_SOFTMAX": OpRule(fixed={8: (16 / 256, 127)}, versions=_v(2), bits=(8,)),
    # Reductions and searches.
    **_each("MEAN", _FREE, 2, 3),
    **_each("SUM REDUCE_PROD", _FREE),
    **_each("REDUCE_MAX REDUCE_MIN AVERAGE_POOL_2D MAX_POOL_2D", _MOVE, 2, 3),
    **_each("ARG_MAX ARG_MIN", replace(_EIGHT, real_out=False), 2),
    **_each("EQUAL NOT_EQUAL GREATER GREATER_EQUAL LESS LESS_EQUAL", _COMPARE),
    # Movement: codes go where they go.
    **_each("RESHAPE SQUEEZE EXPAND_DIMS", _MOVE, 1),
    **_each("TRANSPOSE", _MOVE, 2, 5),
    **_each("TILE REVERSE_V2 BROADCAST_TO", _MOVE, 3),
    **_each("PAD MIRROR_PAD", _MOVE, 2, 3),
    **_each("SPACE_TO_BATCH_ND BATCH_TO_SPACE_ND SLICE GATHER UNPACK", _MOVE, 2, 4),
    **_each("RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR", _MOVE, 2, 4),
    **_each("STRIDED_SLICE", _MOVE),
    **_each("GATHER_ND", _MOVE, 1, 3),
    "EMBEDDING_LOOKUP": OpRule((1,), same=True, bits=(8,), versions=_v(2)),
    **_each("SPACE_TO_DEPTH DEPTH_TO_SPACE", replace(_MOVE, bits=(8,))),
    **_each("PADV2", OpRule((0, 2), same=True), 2, 3),
    **_each("SPLIT", OpRule((1,), same=True), 2, 4),
    **_each("SPLIT_V", _MOVE),
    **_each("PACK CONCATENATION", OpRule((ALL,), same=True), 2, 3),
    **_each("SELECT", OpRule((1, 2), same=True), 2),
    **_each("SELECT_V2", OpRule((1, 2), same=True), 1),
    # Not SCATTER_ND: its kernel fills the rest with code 0, which stands for zero in no asymmetric
    # scale.
    **_each("FILL", OpRule((1,), same=True), 3),
    **_each("DYNAMIC_UPDATE_SLICE", OpRule((0, 1), same=True), 1, 4),
    # Ops with states.
    **_each("LSTM UNIDIRECTIONAL_SEQUENCE_LSTM", OpRule(bits=(8,), recurrent=True), 2),
    "SVDF": OpRule(bits=(8,), recurrent=True, versions=_v(3)),
}  # fmt: skip


@dataclass(frozen=True)
class StoredWeights:
    """Weights as codes in an op that computes in float.

    operands: operand -> the axis of its channels. version: of the op with a kernel that takes them
    as they are; without one, or at other bits, a DEQUANTIZE goes before. whole: that kernel takes
    one scale only. through: the op moves codes, and its result is made float.
    """

    operands: Mapping[int, int]
    version: int | None = None
    bits: tuple[int, ...] = (8, 4)
    whole: bool = False
    through: bool = False


STORED = {
    "CONV_2D": StoredWeights({1: 0}, 5),
    "DEPTHWISE_CONV_2D": StoredWeights({1: 3}, 6, bits=(8,)),
    "TRANSPOSE_CONV": StoredWeights({1: 0}, 3, bits=(8,)),
    "FULLY_CONNECTED": StoredWeights({1: 0}, 12),
    "BATCH_MATMUL": StoredWeights({1: 0}, 4, bits=(8,), whole=True),
    "EMBEDDING_LOOKUP": StoredWeights({1: 0}, 4),
    "GATHER": StoredWeights({0: 0}, 2, bits=(8,), whole=True, through=True),
}
ASYMMETRIC = ("FULLY_CONNECTED", "BATCH_MATMUL")  # with the option asymmetric_quantize_inputs

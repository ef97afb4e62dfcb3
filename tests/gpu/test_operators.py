"""What TensorFlow Lite's GPU delegate takes, operator by operator and version by version, is taken.

The list is that of its parser (rules/gpu.py, which LiteRT's own answers were compared with); of the
operators that the parser has, none may be without a kernel.
"""

from __future__ import annotations

import pytest

from sanderling.delegates.gpu.table import KERNELS, refusal
from sanderling.ir import Op
from sanderling.rules.gpu import PARSER
from tests.conformance.cases import CASES as CONFORMANCE
from tests.support.gpu_cases import CASES, GpuCase
from tests.support.gpu_conformance import is_taken
from tests.support.rule_cases import LINES, one_op

ONE_STEP = " ".join(["#f32[4,3]"] * 4 + ["#f32[4,4]"] * 4 + ["-"] * 3 + ["#f32[4]"] * 4)
# Operators that the cases of rules have no line for.
MORE = {
    "ADD_N": "x[1,4,4,8] x[1,4,4,8] -> x[1,4,4,8]",
    "DENSIFY": "#x[8,4] -> x[8,4]",
    "LSTM": f"x[1,3] {ONE_STEP} - - f32[1,4] f32[1,4] - - - - -> x[1,4]",
    "custom.Resampler": "x[1,4,4,8] x[1,3,3,2] -> x[1,3,3,8]",
}
# Operators by the highest version that it takes.
HIGHEST = {
    1: """PRELU CUMSUM DENSIFY GATHER ONE_HOT RESHAPE SELECT SELECT_V2 HARD_SWISH BATCH_MATMUL CAST
        DEPTH_TO_SPACE MEAN SUM REDUCE_MAX REDUCE_MIN REDUCE_PROD PACK UNPACK SPLIT SPLIT_V TILE
        custom.Convolution2DTransposeBias custom.MaxPoolingWithArgmax2D custom.MaxUnpooling2D
        custom.Resampler""",
    2: """ADD ADD_N SUB DIV FLOOR_DIV FLOOR_MOD MAXIMUM MINIMUM POW SQUARED_DIFFERENCE LOGICAL_AND
        EQUAL NOT_EQUAL GREATER GREATER_EQUAL LESS LESS_EQUAL ABS COS ELU EXP FLOOR GELU LOG
        LOGISTIC NEG RSQRT SIGN SIN SQRT SQUARE TANH RELU RELU6 RELU_N1_TO_1 RELU_0_TO_1 LEAKY_RELU
        AVERAGE_POOL_2D MAX_POOL_2D CONCATENATION SPACE_TO_DEPTH QUANTIZE PAD PADV2 MIRROR_PAD SLICE
        SOFTMAX""",
    3: "MUL TRANSPOSE_CONV DEQUANTIZE RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR",
    4: "LSTM STRIDED_SLICE TRANSPOSE",
    6: "CONV_2D DEPTHWISE_CONV_2D",
    9: "FULLY_CONNECTED",
}
VERSIONS = {name: version for version, names in HIGHEST.items() for name in names.split()}
# The guide's list; its versions are those above or lower.
GUIDE = """ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D EXP FULLY_CONNECTED
    LOGICAL_AND LOGISTIC LSTM MAX_POOL_2D MAXIMUM MINIMUM MUL PAD PRELU RELU RELU6 RESHAPE
    RESIZE_BILINEAR SOFTMAX STRIDED_SLICE SUB TRANSPOSE_CONV"""
# What it takes with 8-bit codes.
CODES = """ADD MUL SUB CONV_2D DEPTHWISE_CONV_2D FULLY_CONNECTED AVERAGE_POOL_2D MAX_POOL_2D
    LOGISTIC SOFTMAX RESHAPE CONCATENATION PAD MEAN RESIZE_BILINEAR STRIDED_SLICE HARD_SWISH RELU6
    TANH"""


def _op(name: str, version: int, x: str = "f32") -> Op:
    line, attrs = LINES.get(name) or (MORE[name], {})
    op = one_op(name, line, x, version=version, **attrs)
    if name == "LSTM":
        op.attrs["fused_activation_function"] = "TANH"
        for state in (18, 19):
            op.operand(state).is_variable = True
    return op


def _is_built(name: str) -> bool:
    return name in LINES or name in MORE


def test_the_list_is_the_parsers() -> None:
    assert set(VERSIONS) == set(PARSER)
    assert set(GUIDE.split()) <= set(VERSIONS)


@pytest.mark.parametrize("name", sorted(VERSIONS))
def test_the_highest_versions_are_the_parsers(name: str) -> None:
    """Those without a rule have any."""
    for rule in (rule for rule in PARSER[name] if rule.kind == "version"):
        highest, beyond = (Op(name, [], [], version=VERSIONS[name] + i) for i in (0, 1))
        assert rule.holds(highest, 0) and not rule.holds(beyond, 0)


@pytest.mark.parametrize("name", sorted(VERSIONS))
def test_every_operator_is_taken(name: str) -> None:
    """Whatever its version: what a version adds are types, shapes and attributes, which the
    conformance cases have."""
    assert name in KERNELS
    if _is_built(name):
        assert refusal(_op(name, VERSIONS[name])) is None
        return
    rows = [row for row in CONFORMANCE if row.op == name]
    assert rows and any(map(is_taken, rows))


@pytest.mark.parametrize("name", CODES.split())
def test_codes_are_taken(name: str) -> None:
    assert refusal(_op(name, 2, "i8")) is None


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.taken], ids=lambda c: f"{c.op} {c.condition}"
)
def test_what_its_rules_let_pass_is_taken(case: GpuCase) -> None:
    op, *_ = case.graph().ops
    assert refusal(op) is None

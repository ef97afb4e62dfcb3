"""Rewrites for accelerators: each on an op that it mends, with the same answer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from sanderling.ir import Array, DType, Graph
from sanderling.ir.text import from_text
from sanderling.ir.verify import problems
from sanderling.ops.execute import execute, new_state
from sanderling.passes.simplify import remove_dead
from sanderling.rewrites.steps import Rewrite
from sanderling.rewrites.table import REWRITES

BY_NAME = {rewrite.name: rewrite for rewrite in REWRITES}
Q = "quant={scale: [%s], zero_point: [%d]}"


class Case(NamedTuple):
    """A rewrite, the tensors beside x and y, the ops, and what is left (names of ops)."""

    name: str
    tensors: str
    ops: str
    after: str
    off: float = 0.0  # units that a quantised answer may be off


def f(x: str, y: str) -> str:
    return f"%x: f32[{x}]\n%y: f32[{y}]\n"


ACT = '{fused_activation_function: "%s"}'
CONV = 'padding: "SAME", stride_h: 1, stride_w: 1'
POOL = 'padding: "VALID", stride_h: 2, stride_w: 2, filter_height: 2, filter_width: 2'
CASES = [
    Case("view as RESHAPE", f("2,1,3", "2,3"), "%y = SQUEEZE(%x) {squeeze_dims: [1]}", "RESHAPE"),
    Case("view as RESHAPE", f("2,3", "2,1,3") + "%a: i32[] = [1]", "%y = EXPAND_DIMS(%x, %a)",
         "RESHAPE"),
    Case("constant shape", f("2,3", "2,3") + "%s: i32[2]",
         "%s = SHAPE(%x)\n%y = RESHAPE(%x, %s)", "RESHAPE"),
    Case("int32 parameters", f("2,3", "3,5") + "%p: i64[2,2] = [0, 1, 0, 2]\n",
         "%y = PAD(%x, %p)", "PAD"),
    Case("flat product", f("1,5,4", "1,5,2") + "%w: f32[2,4] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0,"
         " 8.0]\n%b: f32[2] = [1.0, 2.0]",
         "%y = FULLY_CONNECTED(%x, %w, %b) {keep_num_dims: true}",
         "RESHAPE FULLY_CONNECTED RESHAPE"),
    Case("kept dimensions", f("2,3,4", "2,4") + "%a: i32[1] = [1]", "%y = MEAN(%x, %a)",
         "MEAN RESHAPE"),
    Case("plain slice", f("4,6,3", "6,2") + "%b: i32[3] = [2, 0, 0]\n%e: i32[3] = [3, 0, -1]\n"
         "%s: i32[3] = [1, 1, 1]",
         "%y = STRIDED_SLICE(%x, %b, %e, %s) {end_mask: 2, shrink_axis_mask: 1}",
         "STRIDED_SLICE RESHAPE"),
    Case("STRIDED_SLICE as SLICE", f("4,6", "2,5") + "%b: i32[2] = [1, 1]\n%e: i32[2] = [3, 6]\n"
         "%s: i32[2] = [1, 1]", "%y = STRIDED_SLICE(%x, %b, %e, %s)", "SLICE"),
    Case("four dimensions", f("4,6", "2,5") + "%b: i32[2] = [1, 1]\n%n: i32[2] = [2, 5]",
         "%y = SLICE(%x, %b, %n)", "RESHAPE SLICE RESHAPE"),
    Case("four dimensions", f("2,3", "3,6") + "%p: i32[2,2] = [0, 1, 2, 1]", "%y = PAD(%x, %p)",
         "RESHAPE PAD RESHAPE"),
    Case("four dimensions", f("4,6", "4,2") + "%b: i32[2] = [0, 0]\n%e: i32[2] = [4, 6]\n"
         "%s: i32[2] = [1, 3]", "%y = STRIDED_SLICE(%x, %b, %e, %s)",
         "RESHAPE STRIDED_SLICE RESHAPE"),
    Case("PACK as CONCATENATION", f("2,3", "2,2,3"), "%y = PACK(%x, %x) {axis: 1, values_count: 2}",
         "RESHAPE RESHAPE CONCATENATION"),
    Case("UNPACK as slices", f("2,3", "3") + "%u: f32[3]\n%v: f32[3]",
         "%u, %v = UNPACK(%x) {axis: 0, num: 2}\n%y = SUB(%u, %v)",
         "SLICE RESHAPE SLICE RESHAPE SUB"),
    Case("SPLIT_V as SPLIT", f("2,6", "2,3") + "%u: f32[2,3]\n%v: f32[2,3]\n%n: i32[2] = [3, 3]\n"
         "%a: i32[] = [1]",
         "%u, %v = SPLIT_V(%x, %n, %a) {num_splits: 2}\n%y = SUB(%u, %v)", "SPLIT SUB"),
    Case("split as slices", f("2,6", "2,4") + "%u: f32[2,2]\n%v: f32[2,4]\n%n: i32[2] = [2, 4]\n"
         "%a: i32[] = [1]", "%u, %v = SPLIT_V(%x, %n, %a) {num_splits: 2}\n%y = EXP(%v)",
         "SLICE EXP"),
    Case("split as slices", f("2,6", "2,3") + "%u: f32[2,3]\n%v: f32[2,3]\n%a: i32[] = [1]",
         "%u, %v = SPLIT(%a, %x) {num_splits: 2}\n%y = SUB(%u, %v)", "SLICE SLICE SUB"),
    Case("ADD_N as ADDs", f("2,3", "2,3"), "%y = ADD_N(%x, %x, %x)", "ADD ADD"),
    Case("flat indices", f("5,3", "2,2,3") + "%i: i32[2,2] = [4, 0, 1, 1]",
         "%y = GATHER(%x, %i) {axis: 0}", "GATHER RESHAPE"),
    Case("GATHER as slices", f("2,7", "2,5") + "%i: i32[5] = [1, 3, 5, 0, 6]",
         "%y = GATHER(%x, %i) {axis: 1}", "STRIDED_SLICE STRIDED_SLICE CONCATENATION RESHAPE"),
    Case("GATHER as slices", f("4,3", "3") + "%i: i32[] = [2]", "%y = GATHER(%x, %i) {axis: 0}",
         "SLICE RESHAPE"),
    Case("EMBEDDING_LOOKUP as GATHER", "%x: i32[4]\n%y: f32[4,3]\n%t: f32[2,3] = [1.0, 2.0, 3.0, "
         "4.0, 5.0, 6.0]", "%y = EMBEDDING_LOOKUP(%x, %t)", "GATHER"),
    Case("integers viewed as floats", "%x: i32[4]\n%y: i32[2,2]\n%s: i32[2] = [2, 2]",
         "%y = RESHAPE(%x, %s)", "CAST RESHAPE CAST"),
    Case("MIRROR_PAD as slices", f("1,4,3,2", "1,6,6,2") + "%p: i32[4,2] = [0, 0, 1, 1, 2, 1, 0, "
         "0]", '%y = MIRROR_PAD(%x, %p) {mode: "REFLECT"}',
         "SLICE SLICE CONCATENATION SLICE SLICE SLICE CONCATENATION"),
    Case("MIRROR_PAD as slices", f("4,3", "6,3") + "%p: i32[2,2] = [2, 0, 0, 0]",
         '%y = MIRROR_PAD(%x, %p) {mode: "SYMMETRIC"}', "SLICE SLICE CONCATENATION"),
    Case("BROADCAST_TO as TILE", f("3,1", "2,3,4") + "%s: i32[3] = [2, 3, 4]",
         "%y = BROADCAST_TO(%x, %s)", "RESHAPE TILE"),
    Case("TILE as CONCATENATION", f("2,3", "4,9") + "%s: i32[2] = [2, 3]", "%y = TILE(%x, %s)",
         "CONCATENATION CONCATENATION"),
    Case("operands of one rank", f("2,3,4", "2,3,4") + "%a: i32[1] = [0]\n%m: f32[3,4]",
         "%m = MEAN(%x, %a)\n%y = SUB(%x, %m) " + ACT % "RELU", "MEAN RESHAPE SUB"),
    Case("operands of one shape", f("2,3", "2,3") + "%c: f32[3] = [1.0, 2.0, 3.0]",
         "%y = MUL(%x, %c)", "MUL"),
    Case("operands of one shape", f("2,3", "2,3") + "%a: i32[1] = [0]\n%m: f32[3]",
         "%m = MEAN(%x, %a)\n%y = SUB(%x, %m)", "MEAN RESHAPE TILE SUB"),
    Case("BATCH_MATMUL as FULLY_CONNECTED", f("2,3,2", "2,3,2") + "%c: f32[2,2] = [1.0, 2.0, 3.0, "
         "4.0]", "%y = BATCH_MATMUL(%x, %c)", "RESHAPE FULLY_CONNECTED RESHAPE"),
    Case("BATCH_MATMUL as FULLY_CONNECTED", f("3,2", "3,4") + "%c: f32[4,2] = [1.0, 2.0, 3.0, 4.0, "
         "5.0, 6.0, 7.0, 8.0]", "%y = BATCH_MATMUL(%x, %c) {adj_y: true}",
         "RESHAPE FULLY_CONNECTED RESHAPE"),
    Case("FULLY_CONNECTED as CONV_2D", f("3,2", "3,2") + "%w: f32[2,2] = [1.0, 2.0, 3.0, 4.0]",
         "%y = FULLY_CONNECTED(%x, %w, none)", "RESHAPE CONV_2D RESHAPE"),
    Case("DEPTH_TO_SPACE as TRANSPOSE_CONV", f("1,2,3,8", "1,4,6,2"),
         "%y = DEPTH_TO_SPACE(%x) {block_size: 2}", "TRANSPOSE_CONV"),
    Case("zero bias", f("3,2", "3,2") + "%w: f32[2,2] = [1.0, 2.0, 3.0, 4.0]",
         "%y = FULLY_CONNECTED(%x, %w, none)", "FULLY_CONNECTED"),
    Case("MEAN as AVERAGE_POOL_2D", f("1,3,4,2", "1,2") + "%a: i32[2] = [1, 2]",
         "%y = MEAN(%x, %a)", "AVERAGE_POOL_2D RESHAPE"),
    Case("L2_POOL_2D as AVERAGE_POOL_2D", f("1,4,4,2", "1,2,2,2"), "%y = L2_POOL_2D(%x) {" + POOL
         + "}", "MUL AVERAGE_POOL_2D SQRT"),
    Case("spectrum as products", f("3,1,8", "3,1,5") + "%n: i32[2] = [1, 8]\n%c: c64[3,1,5]",
         "%c = RFFT2D(%x, %n)\n%y = COMPLEX_ABS(%c)",
         "RESHAPE FULLY_CONNECTED FULLY_CONNECTED MUL MUL ADD SQRT RESHAPE"),
    Case("viewed spectrum as products", f("3,1,6", "3,5") + "%n: i32[2] = [1, 8]\n%c: c64[3,1,5]\n"
         "%s: i32[2] = [3, 5]\n%d: c64[3,5]",
         "%c = RFFT2D(%x, %n)\n%d = RESHAPE(%c, %s)\n%y = COMPLEX_ABS(%d)",
         "RESHAPE FULLY_CONNECTED FULLY_CONNECTED MUL MUL ADD SQRT RESHAPE"),
    Case("dilation", f("1,8,8,1", "1,4,4,1") + "%n: i32[2] = [2, 2]\n%p: i32[2,2] = [0, 0, 0, 0]\n"
         "%a: f32[4,4,4,1]\n%w: f32[1,3,3,1] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]\n"
         "%z: f32[1] = [0.5]\n%b: f32[4,2,2,1]",
         "%a = SPACE_TO_BATCH_ND(%x, %n, %p)\n%b = CONV_2D(%a, %w, %z) {" +
         CONV.replace("SAME", "VALID") + "}\n%y = BATCH_TO_SPACE_ND(%b, %n, %p)", "CONV_2D"),
    Case("HARD_SWISH as RELU6", f("2,5", "2,5"), "%y = HARD_SWISH(%x)", "MUL ADD MUL"),
    Case("HARD_SWISH as RELU6", f"%x: i8[2,5] {Q % (0.05, 3)}\n%y: i8[2,5] {Q % (0.03, -100)}",
         "%y = HARD_SWISH(%x)", "MUL ADD MUL", 3),
    Case("LEAKY_RELU as PRELU", f("1,2,2,3", "1,2,2,3"), "%y = LEAKY_RELU(%x) {alpha: 0.25}",
         "PRELU"),
    Case("LEAKY_RELU as PRELU", f"%x: i8[1,2,2,3] {Q % (0.05, 3)}\n"
         f"%y: i8[1,2,2,3] {Q % (0.04, -60)}", "%y = LEAKY_RELU(%x) {alpha: 0.25}", "PRELU", 1),
    Case("LEAKY_RELU as MAXIMUM", f("2,3", "2,3"), "%y = LEAKY_RELU(%x) {alpha: 0.25}",
         "MUL MAXIMUM"),
    Case("LEAKY_RELU as RELU", f("2,3", "2,3"), "%y = LEAKY_RELU(%x) {alpha: 0.25}",
         "RELU MUL MUL ADD"),
    Case("PRELU as RELU", f("1,2,2,2", "1,2,2,2") + "%c: f32[1,1,2] = [0.5, 0.25]",
         "%y = PRELU(%x, %c)", "MUL RELU RELU MUL ADD"),
    Case("limit as RELU", f("2,3", "2,3") + "%c: f32[] = [0.5]", "%y = MAXIMUM(%x, %c)",
         "MUL ADD RELU MUL ADD"),
    Case("limit as RELU", f("2,3", "2,3") + "%c: f32[] = [0.5]", "%y = MINIMUM(%c, %x)",
         "MUL ADD RELU MUL ADD"),
    Case("RELU_0_TO_1 as RELU", f("2,3", "2,3"), "%y = RELU_0_TO_1(%x)", "RELU MINIMUM"),
    Case("activation apart", f("2,3", "2,3"), "%y = ADD(%x, %x) " + ACT % "RELU_N1_TO_1",
         "ADD RELU_N1_TO_1"),
    Case("GELU as TANH", f("2,3", "2,3"), "%y = GELU(%x) {approximate: true}",
         "MUL MUL ADD MUL MUL TANH MUL ADD MUL"),
    Case("POW as products", f("2,3", "2,3") + "%c: f32[] = [3.0]", "%y = POW(%x, %c)", "MUL MUL"),
    Case("SQUARE as MUL", f("2,3", "2,3"), "%y = SQUARE(%x)", "MUL"),
    Case("SQUARED_DIFFERENCE as MUL", f("2,3", "2,3") + "%c: f32[] = [3.0]",
         "%y = SQUARED_DIFFERENCE(%x, %c)", "SUB MUL"),
    Case("DIV as MUL", f("2,3", "2,3") + "%c: f32[] = [3.0]", "%y = DIV(%x, %c)", "MUL"),
    Case("SUB as ADD", f("2,3", "2,3") + "%c: f32[] = [3.0]", "%y = SUB(%x, %c)", "ADD"),
    Case("SUB as ADD and MUL", f("2,3", "2,3") + "%c: f32[] = [3.0]", "%y = SUB(%c, %x)",
         "MUL ADD"),
    Case("NEG as MUL", f("2,3", "2,3"), "%y = NEG(%x)", "MUL"),
    Case("ABS as MAXIMUM", f("2,3", "2,3"), "%y = ABS(%x)", "MUL MAXIMUM"),
    Case("CEIL as FLOOR", f("2,3", "2,3"), "%y = CEIL(%x)", "MUL FLOOR MUL"),
    Case("SOFTMAX of a product", f("2,3", "2,3"), "%y = SOFTMAX(%x) {beta: 0.5}", "MUL SOFTMAX"),
    Case("LOG_SOFTMAX as sums", f("2,3", "2,3"), "%y = LOG_SOFTMAX(%x)",
         "REDUCE_MAX SUB EXP SUM LOG SUB"),
    Case("L2_NORMALIZATION as sums", f("2,3", "2,3"), "%y = L2_NORMALIZATION(%x)",
         "MUL SUM MAXIMUM RSQRT MUL"),
    Case("SUM as MEAN", f("2,3,4", "2,4") + "%a: i32[1] = [1]", "%y = SUM(%x, %a)", "MEAN MUL"),
    Case("fewer dimensions: elementwise", f("2,3,2,1,4", "2,3,2,1,4") + "%a: i32[1] = [0]\n"
         "%m: f32[3,2,1,4]", "%m = MEAN(%x, %a)\n%y = SUB(%x, %m)",
         "MEAN RESHAPE RESHAPE SUB RESHAPE"),
    Case("fewer dimensions: elementwise", f("2,3,2,1,4", "2,3,2,1,4"), "%y = EXP(%x)",
         "RESHAPE EXP RESHAPE"),
    Case("fewer dimensions: TRANSPOSE", f("1,2,3,1,4,5", "1,4,5,2,3,1")
         + "%p: i32[6] = [0, 4, 5, 1, 2, 3]", "%y = TRANSPOSE(%x, %p)",
         "RESHAPE TRANSPOSE RESHAPE"),
    Case("fewer dimensions: CONCATENATION", f("1,2,3,2,2", "1,2,6,2,2"),
         "%y = CONCATENATION(%x, %x) {axis: 2}", "RESHAPE RESHAPE CONCATENATION RESHAPE"),
    Case("fewer dimensions: last axis", f("1,2,3,2,2", "1,2,3,2,2"), "%y = SOFTMAX(%x) {beta: 1.0}",
         "RESHAPE SOFTMAX RESHAPE"),
    Case("fewer dimensions: reduction", f("1,2,3,2,2", "1,2,2") + "%a: i32[2] = [1, -3]",
         "%y = MEAN(%x, %a)", "RESHAPE MEAN RESHAPE"),
    Case("fewer dimensions: SLICE", f("1,2,3,2,2", "1,2,2,2,2") + "%b: i32[5] = [0, 0, 1, 0, 0]\n"
         "%n: i32[5] = [1, 2, 2, -1, 2]", "%y = SLICE(%x, %b, %n)", "RESHAPE SLICE RESHAPE"),
    Case("fewer dimensions: padding", f("1,2,3,2,2", "1,2,4,2,2")
         + "%p: i32[5,2] = [0, 0, 0, 0, 1, 0, 0, 0, 0, 0]", "%y = PAD(%x, %p)",
         "RESHAPE PAD RESHAPE"),
]  # fmt: skip
IDS = [f"{case.name} {i}" for i, case in enumerate(CASES)]


def build(case: Case) -> Graph:
    return from_text(f"graph @main(%x) -> (%y) {{\n{case.tensors}\n{case.ops}\n}}").main


def feed(graph: Graph) -> list[Array]:
    rng = np.random.default_rng(3)
    x = graph.inputs[0]
    if x.dtype is DType.INT32:
        return [rng.integers(0, 2, x.shape).astype(np.int32)]
    if x.dtype.is_integer:
        return [rng.integers(-128, 128, x.shape).astype(x.dtype.numpy)]
    return [rng.uniform(-4, 4, x.shape).astype(np.float32)]


def apply(rewrite: Rewrite, graph: Graph) -> bool:
    """Apply it to the first op that it takes."""
    done = any(rewrite.apply(graph, op) is not None for op in reversed(list(graph.ops)))
    remove_dead(graph)
    return done


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_rewrite_keeps_the_answer(case: Case) -> None:
    graph = build(case)
    given = feed(graph)
    (expected,) = execute(graph, given, new_state())
    assert apply(BY_NAME[case.name], graph)
    assert problems(graph) == []
    assert [op.name for op in graph.ops] == case.after.split()
    (found,) = execute(graph, given, new_state())
    assert found.shape == expected.shape and found.dtype == expected.dtype
    off = np.abs(found.astype(np.float64) - expected).max()
    assert off <= (case.off or 1e-5 * np.abs(expected).max())


def test_every_rewrite_has_a_case_and_says_what_it_does() -> None:
    assert {case.name for case in CASES} | {"composite inlined", "IF as SELECT_V2"} == set(BY_NAME)
    assert len(BY_NAME) == len(REWRITES)
    assert all(rewrite.mends and rewrite.does for rewrite in REWRITES)

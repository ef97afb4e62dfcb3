"""The conformance table on the gpu delegate, judged by the reference definitions.

    @pytest.mark.parametrize("row", cases_of("CONV_2D"), ids=lambda row: row.id)
    def test_conv(row):
        check_gpu(row)

A case costs the compilation of kernels: `make test` takes a few of each operator, spread over its
list, and SANDERLING_TEST_ALL=1 takes all. SANDERLING_TEST_GPU is the number of the device, as
`sanderling devices` counts them.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from sanderling.delegates.gpu.delegate import GpuDelegate
from sanderling.delegates.gpu.expressions import ELEMENTWISE
from sanderling.delegates.gpu.passes.float_view import CELLS, MOVES
from sanderling.delegates.gpu.table import COMPARISONS, KERNELS
from sanderling.ir import Array, DType, Graph, Model
from sanderling.ir.graph import copy_graph
from tests.conformance.cases import CASES
from tests.conformance.harness import Case, difference

from .cpu_conformance import is_computed_once, refused, run

EVERYTHING = bool(os.environ.get("SANDERLING_TEST_ALL"))
DEVICE = int(os.environ.get("SANDERLING_TEST_GPU", "0"))
MOST_CASES = 1 << 30 if EVERYTHING else 2
# Of the range of the results: devices may contract and reorder, and their functions are less exact.
FLOAT_TOLERANCE = 1e-4
# Where the definition rounds an input of floats to 8 bits, a device computes with the floats.
HYBRID_TOLERANCE = 2e-2
# Codes are floats between the borders of a part, so that a sum which lies near the middle of two
# codes may be rounded to the other one, and so may what is computed from it.
CODE_TOLERANCE = 2
# Whose codes are promised to be the CPU's (docs/gpu.md), in 32 bits on OpenCL, which has fused
# multiply-add; of resizes those of int8 are.
EXACT = frozenset({
    "CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED", "ADD", "SUB", "MUL", "SUM",
    "MEAN", "AVERAGE_POOL_2D", "QUANTIZE", *MOVES,
})  # fmt: skip

# Reasons to refuse that any operator may have.
GENERAL_EXCUSES = (
    r"type (bf16|f64|c64|c128|i2|i4|u4|i8|u8|i16|u16|u32|i64|u64|str|f8\w+) has no kernel",
    r"'\w+' has no element",
    r"'\w+' has a scale for each (channel|block)",
    r"'\w+' is kept from run to run",
    r"its sums may leave 32 bits, and then they wrap around",
    r"'\w+' is quantised, and it takes codes as plain numbers",
    r"'\w+' and the result differ in scale, at which it does not look",
    r"the shape of '\w+' depends on data",
    r"'\w+' has codes of 16 bits, and a float view is made of 8-bit codes only",
)
# Those of one operator.
EXCUSES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        sorted(COMPARISONS), ("codes are compared in steps of 1/256, which floats are not",)
    ),
    **dict.fromkeys(
        ("GATHER", "GATHER_ND", "EMBEDDING_LOOKUP"),
        ("indices of whole numbers must be constant",),
    ),
    "REVERSE_V2": ("its operand 1 must be constant",),
    "RFFT2D": ("the transform is too large for a product",),
    "custom.MaxUnpooling2D": ("windows that overlap or .*",),
    "MEAN": ("means of whole numbers have no kernel",),
    "REDUCE_PROD": ("products of codes have no kernel",),
    "BATCH_MATMUL": ("sums of whole numbers have no kernel",),
    "QUANTIZE": ("codes of 32 bits have no kernel",),
    "CAST": ("it computes in i64, which kernels have not",),
    "DIV": ("the divisor may be zero, which must be reported",),
    "FLOOR_DIV": ("the divisor may be zero, which must be reported",),
    "FLOOR_MOD": ("the divisor may be zero, which must be reported",),
    "FULLY_CONNECTED": (
        "the fused activation SIGN_BIT has no kernel",
        "TANH behind floats times stored codes has no kernel",
        r"the bias '\w+' of whole numbers must be constant",
    ),
    **dict.fromkeys(
        sorted(CELLS),
        (
            "the fused activation SIGN_BIT has no kernel",
            "the 8-bit cell with 12 scales has no kernel",
            "the basic cell of codes has no kernel",
            "layers of codes that are normalised in the cell have no kernel",
            "peepholes of codes have no kernel",
            "a clipped projection of codes has no kernel",
        ),
    ),
    "POW": ("a single exponent is computed at run time", "powers of integers have no kernel"),
}


@cache
def gpu(**options: Any) -> GpuDelegate:
    """The delegate on the chosen device."""
    usual = {} if "backend" in options else {"device": DEVICE}
    return GpuDelegate(**{**usual, **options})


def cases_of(*ops: str) -> list[Case]:
    """The cases of these operators, or of all that have a kernel: those that the delegate takes
    and one of each reason against others, thinned out evenly."""
    found: dict[str, list[Case]] = defaultdict(list)
    for row in CASES:
        if row.op in (ops or KERNELS) and not is_computed_once(row):
            found[row.op].append(row)
    return [row for rows in found.values() for row in thinned(rows)]


def thinned(rows: Sequence[Case]) -> Sequence[Case]:
    if EVERYTHING:
        return rows
    taken = [row for row in rows if is_taken(row)]
    if rows[0].op in ELEMENTWISE:  # all have one kernel, which only their expression differs in
        return taken[len(taken) // 2 :][:1]
    return taken[:: -(-len(taken) // MOST_CASES) or 1]


def part_of(case: Case) -> Graph:
    """The case's graph as a part, which is given its variables too."""
    main = case.model().main
    variables = [t for t in main.tensors if t.is_variable and t.users]
    return copy_graph(main, main.ops, [*main.inputs, *variables], main.outputs)[0]


def is_taken(case: Case) -> bool:
    """Whether the delegate takes the ops of the case, as far as shapes are known already."""
    return not any(gpu().refuses(op) for op in case.model().main.ops)


@dataclass(frozen=True)
class Range:
    """The numbers that a language or a type promises something of: zero, and magnitudes from
    `least` to `most`. Results beyond `result` are not compared. kind: of the numbers."""

    least: float
    most: float
    result: float
    kind: type = np.float32

    def tame(self, array: Array) -> Array:
        """The array with the nearest such number in the place of each other one."""
        if array.dtype.kind != "f":
            return array
        found = np.clip(
            np.nan_to_num(array, nan=1.0, posinf=np.inf, neginf=-np.inf), -self.most, self.most
        )
        whole = np.where(np.abs(found) < self.least, 0, found).astype(self.kind)
        tamed: Array = whole.astype(array.dtype)
        return tamed

    def beyond(self, results: Array) -> Array:
        return np.abs(np.nan_to_num(results, nan=np.inf)) > self.result


# WGSL may assume that there are no NaN, no infinities and no denormal numbers, and says nothing of
# what overflows, and little of large angles: products of these numbers still fit. Of 16 bits the
# same.
WGSL = Range(2.0**-60, 2.0**12, 2.0**125)
HALF = Range(2.0**-7, 255.0, 65504.0, np.float16)


def check_gpu(case: Case, seed: int = 0, within: Range | None = None, **options: Any) -> str:
    """Run the case on the gpu delegate and compare with the reference delegate. within: what the
    numbers of its inputs are brought into, and the results are judged in.

    Returns "" if every op ran on the device, else the delegate's reasons against the others, each
    of which is excused.
    """
    delegate, model = gpu(**options), case.model()
    rng = np.random.default_rng(seed)
    feeds = [[np.asarray(a) for a in case.arrays(model, rng)] for _ in range(case.runs)]
    if within is not None:
        feeds = [list(map(within.tame, arrays)) for arrays in feeds]
    ours, theirs = model.compile([delegate]), model.compile(["reference"])
    reasons = refused(ours, delegate, feeds[-1])  # type: ignore[arg-type]
    alone = len(model.main.ops) == 1
    for step, arrays in enumerate(feeds if not (reasons and alone) else ()):
        answers = run(ours, arrays), run(theirs, arrays)
        judge(case, step, model, *answers, within, is_exact(case, options))
    for reason in filter(None, reasons.split("; ")):
        assert is_excused(case, reason), f"{case.id}: {reason}"
    return reasons


def is_exact(case: Case, options: Mapping[str, Any]) -> bool:
    kinds = [t and t.dtype for t in case.inputs]
    promised = case.op in EXACT or (case.op == "RESIZE_BILINEAR" and kinds[0] == "i8")
    others = {"precision": "f32", "backend": "opencl"}
    return promised and all(options.get(name, usual) == usual for name, usual in others.items())


def judge(
    case: Case,
    step: int,
    model: Model,
    ours: Sequence[Array],
    theirs: Sequence[Array],
    within: Range | None = None,
    exact: bool = False,
) -> None:
    """Compare what the device found with what the reference did. exact: to the same code."""
    tol = case.tol + tolerance(case)
    results = zip(model.main.outputs, ours, theirs, strict=True)
    for index, (tensor, a, b) in enumerate(results):
        near = CODE_TOLERANCE if tensor.quant is not None and not exact else 0
        off_by = max(case.off_by, near)
        loose = replace(case, tol=tol, off_by=off_by)
        if loses_nan(case):
            a = np.where(b != b, b, a)
        if within is not None and b.dtype.kind == "f":
            a = np.where(within.beyond(b), b, a)
        problem = difference(loose, finite(a), finite(b))
        assert problem is None, f"{case.id}: run {step}, output {index}: {problem}"


def loses_nan(case: Case) -> bool:
    """A device's clamp makes NaN its least number, and its extremes never are NaN."""
    activated = case.attrs.get("fused_activation_function", "NONE") != "NONE"
    return (case.op in PRODUCTS and activated) or case.op in ("REDUCE_MAX", "REDUCE_MIN")


def finite(x: Array) -> Array:
    """A sum that is too large is infinite on a device; most kernels make it the largest float."""
    if x.dtype.kind != "f":
        return x
    ends = np.finfo(x.dtype)
    return np.clip(x, ends.min, ends.max)


# Where products have their input and weights.
PRODUCTS = dict.fromkeys(
    ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "BATCH_MATMUL"), (0, 1)
) | {"TRANSPOSE_CONV": (2, 1)}


WEIGHTS = PRODUCTS | dict.fromkeys(sorted(CELLS), (0, 2))


def is_hybrid(case: Case) -> bool:
    """Floats times stored codes."""
    if case.op not in WEIGHTS:
        return False
    op = next(op for op in case.model().main.ops if op.name == case.op)
    x, weights = (op.operand(i).dtype for i in WEIGHTS[case.op])
    return x is DType.FLOAT32 and weights.is_integer


def tolerance(case: Case) -> float:
    """Of the range of the results, which a clamp may have made smaller than that of the sums."""
    if not is_hybrid(case):
        return FLOAT_TOLERANCE
    clamped = case.attrs.get("fused_activation_function") == "RELU_N1_TO_1"
    # A cell's state is rounded in every step, and what it comes to is kept.
    return HYBRID_TOLERANCE * (8 if clamped else 2 if case.op in CELLS else 1)


def is_excused(case: Case, reason: str) -> bool:
    """reason: with the op's place before it."""
    known = (*GENERAL_EXCUSES, *EXCUSES.get(case.op, ()))
    return any(re.search(f": {excuse}$", reason) for excuse in known)

"""Requantisation is the definition's, bit for bit: at the sums where codes begin, and for all pairs
of codes that are added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sanderling.delegates.cpu.codegen.rounding import Rounding, rescale
from sanderling.delegates.cpu.isa.targets import TARGETS, Target, runnable
from sanderling.delegates.cpu.kernels.elementwise import planes
from sanderling.ir import Array, DType, Graph, Model, Quant
from tests.conformance.cases_matmul import WIDE
from tests.conformance.harness import Case
from tests.support.aarch64_qemu import QEMU
from tests.support.cpu_conformance import (
    RUNNABLE,
    TARGET_NAMES,
    check_cpu,
    cpu_for,
    run,
    run_emulated,
)

EMULATED = [name for name in TARGET_NAMES if TARGETS[name].triple.startswith("aarch64") and QEMU]
TRIED = [*RUNNABLE, *EMULATED]
WINDOW: dict[str, Any] = {"padding": "VALID", "stride_h": 1, "stride_w": 1}


def _answers(model: Model, target: str, arrays: Sequence[Array]) -> tuple[Array, Array]:
    """Ours and the definition's."""
    delegate = cpu_for(target)
    if runnable(delegate.target):
        ours = run(model.compile([delegate]), arrays)
    else:
        ours = run_emulated(model.main, delegate, arrays)
    return ours[0], run(model.compile(["reference"]), arrays)[0]


# -- sums ---------------------------------------------------------------------------------------

# Scales as models have them, powers of two, where all roundings tie, and ones of dead channels.
SCALES = np.concatenate(
    [
        np.exp2(np.random.default_rng(0).uniform(-12, -4, 480)),
        np.exp2(np.arange(-12.0, 1.0)),
        [0.9, 2.0**-21.4, 2.0**-30],
    ]
)
MORE = 6


# Those of which each target makes lines; the others send a layer to fixed point.
USUAL = SCALES[:480]


def _at_steps(
    op: str, act: str, zero: int, bias: Array | None = None, of: Array = SCALES
) -> tuple[Model, Array]:
    """A layer of one product a sum. Biases bring each channel's sums to where some code begins, and
    pixels to the sums around it."""
    rng = np.random.default_rng(zero + 200)
    scales = of.astype(np.float32)
    low = max(-128, zero) if act == "RELU" else -128
    k = rng.integers(low + 1, 128, len(scales)) - zero
    if bias is None:
        bias = np.clip(np.rint((k - 0.5) / scales), -(2**22), 2**22)
    graph = Graph()
    depth = len(scales) if op == "DEPTHWISE_CONV_2D" else 4
    x = graph.input("x", DType.INT8, (1, 1, 2 * MORE + 1, depth), quant=Quant.of(1.0, 0))
    if op == "DEPTHWISE_CONV_2D":
        filters, axis = np.ones((1, 1, 1, depth)), 3
    else:
        filters, axis = np.zeros((len(scales), 1, 1, depth)), 0
        filters[..., 1] = 1
    w = graph.constant("w", filters, DType.INT8, quant=Quant.of(scales, axis=axis))
    b = graph.constant("b", bias, DType.INT32, quant=Quant.of(scales))
    y = graph.tensor("y", DType.INT8, (*x.shape[:3], len(scales)), quant=Quant.of(1.0, zero))
    attrs = {"depth_multiplier": 1} if op == "DEPTHWISE_CONV_2D" else {}
    graph.add(op, [x, w, b], [y], fused_activation_function=act, **WINDOW, **attrs)
    graph.outputs = [y]
    pixels = np.arange(-MORE, MORE + 1, dtype=np.int8)[:, None]
    return Model([graph]), np.broadcast_to(pixels, x.shape).copy()


@pytest.mark.parametrize("target", TRIED)
@pytest.mark.parametrize("op", ["CONV_2D", "DEPTHWISE_CONV_2D"])
@pytest.mark.parametrize(
    ("act", "zero"), [("RELU", -128), ("RELU", -21), ("NONE", 0), ("NONE", 90)]
)
def test_codes_begin_where_the_definition_has_them(
    act: str, zero: int, op: str, target: str
) -> None:
    for scales in (SCALES, USUAL):
        model, pixels = _at_steps(op, act, zero, of=scales)
        ours, wanted = _answers(model, target, [pixels])
        assert np.array_equal(ours, wanted)
        assert np.count_nonzero(np.diff(wanted.astype(int), axis=2)) > 300  # they do begin there


LINES = [name for name, row in TARGETS.items() if row.fma and row.triple.startswith("x86")]


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("op", ["CONV_2D", "DEPTHWISE_CONV_2D"])
def test_floats_are_rounded_as_before(op: str, target: str) -> None:
    """A step that rounds down does so for itself: neither the steps behind it nor the caller's
    arithmetic are changed."""
    model, pixels = _at_steps(op, "NONE", 0, of=USUAL)
    graph = model.main
    (codes,) = graph.outputs
    wide, third = (graph.tensor(name, DType.FLOAT32, codes.shape) for name in ("wide", "third"))
    graph.add("DEQUANTIZE", [codes], [wide])
    part = graph.constant("part", np.float32([1 / 3]))
    graph.add("MUL", [wide, part], [third], fused_activation_function="NONE")
    graph.outputs = [third]
    ours, wanted = _answers(model, target, [pixels])
    assert np.array_equal(ours, wanted)
    above = np.full(8, 1.5 * 2.0**-24, np.float32)
    assert np.all(np.ones(8, np.float32) + above > 1)  # 1 if rounded down


@pytest.mark.parametrize("target", LINES)
@pytest.mark.parametrize("zero", [-128, 7])
def test_usual_scales_have_lines(zero: int, target: str) -> None:
    """What is slower is left to scales that need it. Lines are checked at every step of every
    channel before they are taken, so that targets that this machine lacks are right as well."""
    for scales in (USUAL, np.array([0.003, 2.0**-30])):
        found = rescale(scales, (-128, 127), zero, 1 << 20, TARGETS[target])
        assert found.kind.value.startswith("_floor")
    assert rescale(np.array([0.7]), (-128, 127), zero, 1 << 32, TARGETS[target]).kind.is_fixed


def test_lines_that_miss_a_step_are_not_taken() -> None:
    """Sums that float32 does not hold have lines in float64. Powers of two tie in the first
    rounding, where a negative sum goes another way."""
    ties = np.array([2.0**-6])
    kinds = [rescale(ties, (-128, 127), zero, 1 << 32, TARGETS["avx2"]).kind for zero in (-128, 0)]
    assert kinds == [Rounding.LINE_UP, Rounding.FIXED_AWAY]


@pytest.mark.parametrize("target", TRIED)
@pytest.mark.parametrize("op", ["CONV_2D", "DEPTHWISE_CONV_2D"])
@pytest.mark.parametrize("act", ["RELU", "NONE"])
def test_largest_sums_stay_in_32_bits(act: str, op: str, target: str) -> None:
    """Dead channels have biases at the ends of int32. (A scale of 1 shifts them out of 32 bits, as
    the definition does.)"""
    ends = np.where(np.arange(len(SCALES)) % 2, 2**31 - 200, 200 - 2**31)
    model, pixels = _at_steps(op, act, 5, ends)
    ours, wanted = _answers(model, target, [pixels])
    assert np.array_equal(ours, wanted)


def test_scales_are_told_apart_by_their_content() -> None:
    """Numbers are remembered: another target or another scale must not get them."""
    wide, narrow = (TARGETS[name] for name in ("avx512", "generic"))
    made = [rescale(np.array([s]), (0, 255), 0, 1 << 20, wide) for s in (0.01, 0.02)]
    assert made[0].factors[0] != made[1].factors[0]
    assert rescale(np.array([0.01]), (0, 255), 0, 1 << 20, narrow).kind is not made[0].kind
    assert rescale(np.array([0.01]), (0, 255), 0, 1 << 32, wide).kind is not made[0].kind


@pytest.mark.parametrize("target", TRIED)
@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8, DType.INT16])
@pytest.mark.parametrize("op", ["CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV"])
def test_sums_wrap_around_as_the_definition_has_them(op: str, dtype: DType, target: str) -> None:
    """No bound on the sums sends a layer to the reference: 32 bits wrap, with the zero point's
    share folded into the bias as well as without."""
    model, x = _wrapping(op, dtype)
    delegate = cpu_for(target)
    assert delegate.refuses(model.main.ops[0]) is None
    ours, wanted = _answers(model, target, [x])
    assert np.array_equal(ours, wanted)


@pytest.mark.parametrize("target", TRIED)
@pytest.mark.parametrize("row", WIDE[::2], ids=lambda row: row.id)
def test_sums_of_connected_layers_wrap_around(row: Case, target: str) -> None:
    """They become float64, after their bias."""
    assert check_cpu(row, target, emulate=True) == ""


def _wrapping(op: str, dtype: DType) -> tuple[Model, Array]:
    """Biases near both ends of int32, and codes on both sides of the zero point."""
    rng, channels = np.random.default_rng(3), 19
    zero = {DType.INT8: -128, DType.UINT8: 3, DType.INT16: 0}[dtype]
    wdtype = DType.UINT8 if dtype is DType.UINT8 else DType.INT8
    wzero = 120 if dtype is DType.UINT8 else 0
    graph = Graph()
    x = graph.input("x", dtype, (1, 3, 4, channels), quant=Quant.of(0.5, zero))
    shape = (1, 2, 2, channels) if op == "DEPTHWISE_CONV_2D" else (channels, 2, 2, channels)
    w = graph.constant(
        "w", rng.integers(*wdtype.bounds, shape), wdtype, quant=Quant.of(2.0**-24, wzero)
    )
    ends = np.where(np.arange(channels) % 2, 2**31 - 1, -(2**31))
    b = graph.constant("b", ends, DType.INT32, quant=Quant.of(2.0**-25))
    size = (4, 5) if op == "TRANSPOSE_CONV" else (2, 3)
    y = graph.tensor("y", dtype, (1, *size, channels), quant=Quant.of(1.0, zero))
    inputs, attrs = [x, w, b], {"depth_multiplier": 1} if op == "DEPTHWISE_CONV_2D" else {}
    if op == "TRANSPOSE_CONV":
        inputs = [graph.constant("size", np.array(y.shape), DType.INT32), w, x, b]
    graph.add(op, inputs, [y], **WINDOW, **attrs)
    graph.outputs = [y]
    return Model([graph]), rng.integers(*dtype.bounds, x.shape).astype(dtype.numpy)


# -- additions ----------------------------------------------------------------------------------

# (scale, zero point) of both operands and of the result: as trained models have them; powers of
# two, so that sums tie; operands far apart.
ADDITIONS = [
    ((0.18986915, -6), (0.16990492, -31), (0.18754955, -14)),
    ((0.0927, 4), (0.1361, -13), (0.1519, 20)),
    ((0.25, 0), (0.25, 5), (0.5, -3)),
    ((0.125, 10), (0.5, -20), (0.25, 0)),
    ((0.017, 127), (0.6, -128), (0.59, -100)),
]
Operand = tuple[float, int]


def _sum(op: str, numbers: Sequence[Operand], act: str, product: bool) -> tuple[Model, list[Array]]:
    """All pairs of codes; product: the first comes out of a convolution that changes nothing."""
    graph = Graph()
    shape = (1, 16, 256, 16)
    quants = [Quant.of(*n) for n in numbers]
    x, y = (graph.input(n, DType.INT8, shape, quant=q) for n, q in zip("xy", quants, strict=False))
    first = x
    if product:
        w = graph.constant("w", np.eye(16).reshape(16, 1, 1, 16), DType.INT8, quant=Quant.of(1.0))
        first = graph.tensor("p", DType.INT8, shape, quant=quants[0])
        graph.add("CONV_2D", [x, w, None], [first], **WINDOW)
    out = graph.tensor("z", DType.INT8, shape, quant=quants[2])
    graph.add(op, [first, y], [out], fused_activation_function=act)
    graph.outputs = [out]
    codes = np.arange(-128, 128).astype(np.int8)
    pairs = [g.reshape(shape) for g in np.meshgrid(codes, codes, indexing="ij")]
    return Model([graph]), pairs


@pytest.mark.parametrize("target", TRIED)
@pytest.mark.parametrize(("op", "product"), [("ADD", False), ("SUB", False), ("ADD", True)])
def test_all_pairs_are_added_as_defined(op: str, product: bool, target: str) -> None:
    for place, numbers in enumerate(ADDITIONS):
        model, pairs = _sum(op, numbers, "RELU" if place % 2 else "NONE", product)
        ours, wanted = _answers(model, target, pairs)
        assert np.array_equal(ours, wanted), numbers


def _sides(numbers: Sequence[Operand]) -> list[planes.Side]:
    return [planes.Side(float(np.float32(s)), -128 - z, 127 - z) for s, z in numbers]


def test_planes_are_exact() -> None:
    rng = np.random.default_rng(1)
    random = [
        [(s, int(rng.integers(-128, 128))) for s in (a, b, max(a, b) * rng.uniform(0.6, 2))]
        for a, b in np.exp2(rng.uniform(-4, 1, (20, 2)))
    ]
    found = [planes.plane(*_sides(numbers)) for numbers in (*ADDITIONS, *random)]
    assert np.mean([p.exact for p in found]) > 0.9
    assert all(p.exact for p in found[: len(ADDITIONS)])
    # Sums that tie need two heights.
    assert found[2].above > found[2].below


@pytest.mark.parametrize("product", [False, True])
def test_sums_without_a_plane_are_exact_too(product: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    real = planes.plane
    for module in ("kernels.elementwise.arithmetic", "passes.fuse_into_kernels"):
        monkeypatch.setattr(
            f"sanderling.delegates.cpu.{module}.plane",
            lambda *args: replace(real(*args), exact=False),
        )
    model, pairs = _sum("ADD", ADDITIONS[0], "NONE", product)
    target: Target = TARGETS[TRIED[0]]
    ours, wanted = _answers(model, target.name, pairs)
    assert np.array_equal(ours, wanted)

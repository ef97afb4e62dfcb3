"""Transforms, detections, volumes and other operators of their own kind on the cpu delegate."""

from __future__ import annotations

import numpy as np
import pytest

from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.kernels.elementwise import tables16
from sanderling.delegates.cpu.kernels.move import scatter, spread
from sanderling.delegates.cpu.kernels.products import volume
from sanderling.delegates.cpu.kernels.reduce import local_response
from sanderling.delegates.cpu.kernels.spectral import fourier, spectrogram
from sanderling.delegates.cpu.kernels.vision import detections, mediapipe, nms
from sanderling.delegates.cpu.table import decompositions
from sanderling.ir import Array
from tests.conformance.cases_custom import anchors, detection, options
from tests.conformance.harness import Case, T, c64, case, const, f32, i8, i16, i32, u8, weights
from tests.support.cpu_conformance import (
    RUNNABLE,
    TARGET_NAMES,
    cases_of,
    check_cpu,
    cpu_for,
    in_turns,
    run,
)

MODULES = (
    detections,
    fourier,
    mediapipe,
    nms,
    local_response,
    decompositions,
    scatter,
    spectrogram,
    spread,
    volume,
)
OPS = tuple(name for module in MODULES for name in module.KERNELS)
# Every case runs on the cpu, unless one of these is the reason.
EXCUSES = ("shape is not known", "known at run time only", "dilated transposed", "soft suppression",
           "of these operands has no kernel", "a tensor is empty", "for f16", "a table of bytes",
           "scales for each block", "no place of their own")  # fmt: skip


@pytest.mark.parametrize(("row", "target"), in_turns(cases_of(*OPS)))
def test_conformance(row: Case, target: str) -> None:
    said = check_cpu(row, target)
    assert not said or any(e in said for e in EXCUSES), said


# -- Fourier transforms ---------------------------------------------------------------------------


def transform(given: tuple[int, ...], height: int, width: int) -> Case:
    return case("RFFT2D", f32(*given), const([height, width], "i32"), out=[c64()])


@pytest.mark.parametrize("target", RUNNABLE)
def test_rows_of_every_kind_of_length(target: str) -> None:
    """Every radix, even and odd; lanes squared that divide the length, and that do not."""
    for n in (1, 2, 3, 4, 6, 7, 8, 15, 30, 32, 64, 96, 105, 128, 160, 256, 512, 1024, 1536, 4096):
        assert check_cpu(transform((3, 1, n), 1, n), target) == ""


@pytest.mark.parametrize("target", RUNNABLE)
def test_images_cut_and_filled(target: str) -> None:
    for given, height, width in [
        ((2, 40, 50), 32, 64),
        ((3, 20, 70), 24, 40),
        ((2, 5, 3), 7, 2),
        ((1, 33, 129), 35, 128),
        ((4, 9, 9), 1, 8),
    ]:
        assert check_cpu(transform(given, height, width), target, threads=2) == ""


def test_a_transform_of_another_length_is_refused() -> None:
    assert "prime factor" in check_cpu(transform((2, 1, 22), 1, 22))


def test_transforms_do_not_depend_on_threads() -> None:
    model = transform((37, 1, 512), 1, 512).model()
    rng = np.random.default_rng(0)
    feed = [rng.normal(size=(37, 1, 512)).astype(np.float32)]
    one, three = (
        run(model.compile([CpuDelegate(cache=False)], threads=n), feed)[0] for n in (1, 3)
    )
    assert np.array_equal(one, three)
    theirs = np.fft.rfft(feed[0].astype(np.float64))
    assert np.abs(one - theirs).max() < 1e-6 * np.abs(theirs).max()


# -- detections -----------------------------------------------------------------------------------


def _coarse(rng: np.random.Generator, shape: tuple[int, ...], codes: bool, low: int) -> Array:
    """Scores with many ties."""
    if codes:
        return rng.integers(low, min(low + 6, 256), shape).astype(np.uint8)
    return (rng.integers(0, 8, shape) / 8).astype(np.float32)


def _random_detection(seed: int, regular: bool) -> Case:
    rng = np.random.default_rng(seed)
    count, classes = int(rng.integers(1, 200)), int(rng.integers(1, 40))
    shape = (1, count, classes + int(rng.integers(0, 2)))
    codes, low = bool(rng.integers(0, 2)), int(rng.integers(0, 250))
    kind = {"dtype": "u8", "scale": 1 / 256, "zp": 0} if codes else {"dtype": "f32"}
    scores = T(shape, make=lambda g: _coarse(g, shape, codes, low), **kind)
    boxes = u8(1, count, 5, scale=0.05, zp=128) if rng.integers(0, 2) else f32(1, count, 4)
    return detection(
        f"seed {seed}",
        boxes,
        scores,
        const(anchors(count + 3), "f32"),
        num_classes=classes,
        max_detections=int(rng.integers(1, 60)),
        use_regular_nms=regular,
        max_classes_per_detection=int(rng.integers(1, 4)),
        detections_per_class=int(rng.integers(1, 20)),
        nms_score_threshold=float(rng.choice([0.0, 0.3, 0.5, 0.9])),
        nms_iou_threshold=float(rng.choice([0.1, 0.3, 0.5, 0.6])),
    )


@pytest.mark.parametrize("regular", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_detections_with_ties(seed: int, regular: bool) -> None:
    """Order and choice as defined: among equals the first box, the first class."""
    row = _random_detection(seed, regular)
    assert check_cpu(row, RUNNABLE[seed % len(RUNNABLE)], seed=seed) == ""


def test_anchors_of_negative_size_are_left_to_the_definition() -> None:
    table = anchors(20)
    table[7, 2] = -0.1
    scores = T((1, 20, 4), "f32", make=lambda g: _coarse(g, (1, 20, 4), False, 0))
    row = detection(
        "negative", f32(1, 20, 4), scores, const(table, "f32"), max_detections=3, num_classes=3
    )
    graph = row.model().main
    assert "negative size" in str(CpuDelegate(cache=False).refuses(graph.ops[0]))


# -- volumes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", RUNNABLE)
def test_volumes(target: str) -> None:
    """Boxes inside and over every edge; a voxel at a time, read as it lies."""
    steps = {"stride_d": 1, "stride_h": 1, "stride_w": 1}
    plain = {**steps, "dilation_d_factor": 1, "dilation_h_factor": 1, "dilation_w_factor": 1}
    for size, taps, padding, more in [
        ((1, 4, 12, 11, 16), (3, 3, 3), "SAME", {}),
        ((2, 3, 5, 6, 5), (1, 1, 1), "VALID", {}),
        ((1, 9, 8, 7, 3), (3, 2, 3), "VALID", {"stride_d": 2, "stride_w": 2}),
        ((1, 7, 9, 9, 4), (2, 3, 3), "SAME", {"dilation_d_factor": 2, "dilation_h_factor": 3}),
    ]:
        w = weights(*taps, size[-1], 20)
        row = case("CONV_3D", f32(*size), w, padding=padding, tol=1e-5, **{**plain, **more})
        assert check_cpu(row, target, threads=2) == ""


def test_infinite_taps_that_reach_nothing() -> None:
    """They are no part of a sum, and do not make it NaN."""
    taps = np.ones((2, 3, 3, 3, 2), np.float32)
    taps[0, 1], taps[1, 2] = np.inf, np.nan
    row = case(
        "CONV_3D_TRANSPOSE",
        const([1, 4, 7, 5, 3], "i32"),
        const(taps),
        f32(1, 3, 3, 3, 2),
        padding="VALID",
        stride_d=1,
        stride_h=2,
        stride_w=1,
    )
    assert "not all finite" in check_cpu(row)


# -- products by constants ------------------------------------------------------------------------


def steps_of(row: Case) -> list[str]:
    """The kernels that a case becomes."""
    delegate = CpuDelegate(cache=False)
    return [str(r["kernel"]) for r in delegate.compiled(row.model().main).report]


def test_a_constant_matrix_is_packed_once() -> None:
    row = case("BATCH_MATMUL", f32(2, 9, 24), weights(24, 10), tol=1e-6)
    assert steps_of(row) == ["fully_connected"]
    assert steps_of(case("BATCH_MATMUL", f32(2, 9, 24), f32(24, 10))) == ["batch_matmul"]


@pytest.mark.parametrize("target", TARGET_NAMES)
@pytest.mark.parametrize("name", ["BATCH_MATMUL", "TRANSPOSE_CONV"])
def test_floats_by_integer_weights(name: str, target: str) -> None:
    if name == "BATCH_MATMUL":
        row = case(name, f32(2, 5, 24), weights(24, 10, dtype="i8", scale=0.02), out=[f32()])
    else:
        shape = const([2, 9, 11, 20], "i32")
        row = case(
            name,
            shape,
            weights(20, 3, 3, 6, dtype="i8", scale=0.02),
            f32(2, 5, 6, 6),
            out=[f32()],
            padding="SAME",
            stride_h=2,
            stride_w=2,
        )
    assert check_cpu(row, target, threads=2) == ""


# -- rows by number, elements spread out -----------------------------------------------------------


@pytest.mark.parametrize("target", RUNNABLE)
def test_updates_of_one_place_add_up(target: str) -> None:
    """Rows long enough that workers share them, and single elements."""
    rng = np.random.default_rng(0)
    for width in (1, 7, 9000):
        index = rng.integers(0, 6, (50, 1))
        row = case(
            "SCATTER_ND",
            const(index, "i32", fed=True),
            f32(50, width),
            const([6, width], "i32"),
            out=[f32()],
            tol=1e-6,
        )
        assert check_cpu(row, target, threads=3) == ""


def test_sequences_along_either_axis() -> None:
    for along, batch, shape in ((1, 0, (4, 9, 3)), (0, 2, (9, 2, 4, 130)), (2, 1, (2, 4, 9))):
        lengths = const([0, 9, 1, 5], "i32", fed=True)
        row = case("REVERSE_SEQUENCE", f32(*shape), lengths, seq_dim=along, batch_dim=batch)
        assert check_cpu(row, threads=2) == ""


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (2, 5), (7, 4), (3, 40, 33)])
def test_diagonals(shape: tuple[int, ...]) -> None:
    diagonal = (*shape[:-2], min(shape[-2:]))
    assert check_cpu(case("MATRIX_SET_DIAG", f32(*shape), f32(*diagonal)), threads=2) == ""
    assert check_cpu(case("MATRIX_DIAG", i8(*diagonal, scale=0.1, zp=3)), threads=2) == ""


# -- suppression, normalisation, tables -----------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_suppression_with_ties(seed: int) -> None:
    """Equal scores come in the order of the definition's heap; boxes without area come again."""
    rng = np.random.default_rng(seed)
    corners = np.round(rng.uniform(0, 1, (60, 4)), 1)
    scores = rng.integers(0, 5, 60) / 5
    row = case(
        "NON_MAX_SUPPRESSION_V4",
        const(corners, "f32", fed=True),
        const(scores, "f32", fed=True),
        const(25, "i32"),
        const(0.3, "f32"),
        const(0.1, "f32"),
        out=[i32(), i32()],
    )
    assert check_cpu(row, RUNNABLE[seed % len(RUNNABLE)]) == ""


def test_roots_below_zero_are_no_energy() -> None:
    """NaN, as in LiteRT, and not the least that a channel can have."""
    bank = {"filterbank_channel_count": 10, "dct_coefficient_count": 5}
    made = options(upper_frequency_limit=4000.0, lower_frequency_limit=20.0, **bank)
    row = case(
        "custom.Mfcc", f32(1, 3, 65, low=-1, high=1), const([8000], "i32"), options=made, tol=1e-6
    )
    assert check_cpu(row) == ""


@pytest.mark.parametrize("beta", [0.5, 0.75, 1.0, 0.3])
def test_neighbours_among_channels(beta: float) -> None:
    for depth, radius in ((3, 5), (40, 2), (33, 40)):
        row = case(
            "LOCAL_RESPONSE_NORMALIZATION",
            f32(1, 3, 4, depth),
            radius=radius,
            bias=1.5,
            alpha=0.2,
            beta=beta,
        )
        assert check_cpu(row, threads=2) == ""


@pytest.mark.parametrize("beta", [0.5, 0.75])
@pytest.mark.parametrize("end", ["bias", "alpha"])
def test_the_root_of_minus_infinity_is_no_power(beta: float, end: str) -> None:
    numbers = {"bias": 1.0, "alpha": 0.2, end: -np.inf}
    row = case("LOCAL_RESPONSE_NORMALIZATION", f32(1, 3, 4, 3), radius=1, beta=beta, **numbers)
    assert "differ below zero" in check_cpu(row)


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("name", ["LOGISTIC", "TANH", "GELU", "SOFTMAX"])
def test_words_are_looked_up(name: str, target: str) -> None:
    """Functions of int16 codes, to the last bit."""
    out = i16(scale=1 / 32768) if name != "GELU" else i16(scale=0.0005)
    row = case(name, i16(5, 77, scale=1 / 3000), out=[out])
    kernels = steps_of(row)
    assert kernels == (["softmax"] if name == "SOFTMAX" else ["lut16"])
    model, feed = row.model(), [np.random.default_rng(1).integers(-32768, 32768, (5, 77))]
    arrays = [a.astype(np.int16) for a in feed]
    ours = run(model.compile([cpu_for(target)], threads=2), arrays)
    theirs = run(model.compile(["reference"]), arrays)
    assert np.array_equal(ours[0], theirs[0])


def test_every_operator_here_has_a_case() -> None:
    tested = {row.op for row in cases_of(*OPS)}
    assert tested >= set(OPS) - {"cpu.LUT16"}
    assert set(tables16.TABLED) <= {row.op for row in cases_of(*tables16.TABLED)}

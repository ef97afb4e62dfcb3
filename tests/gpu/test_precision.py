"""Floats that are kept in 16 bits, and computed in them where the device can."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from sanderling.delegates.gpu.delegate import GpuDelegate
from sanderling.delegates.gpu.devices.device import Device
from sanderling.delegates.gpu.dialects.opencl_c import OpenClC
from sanderling.delegates.gpu.dialects.wgsl import Wgsl
from sanderling.delegates.gpu.language import FLOAT, INT, REAL, KernelText, Storage
from sanderling.delegates.gpu.lower import lower
from sanderling.errors import DelegateError
from sanderling.ir import DType, Graph, Model
from tests.conformance.harness import Case
from tests.support.gpu_conformance import DEVICE, EVERYTHING, cases_of, check_gpu
from tests.support.gpu_devices import Pinned, check_answers, devices_of, needs_opencl, twin

pytest.importorskip("pyopencl", reason="pyopencl is not installed")
pytestmark = needs_opencl
# Of the range of the results: 11 bits, and sums of some of them.
TOLERANCE = 1e-2
# Where a small step of the input is a large one of the result, and where results are beyond 65504.
STEEP = ("FLOOR_MOD", "FLOOR_DIV", "FAKE_QUANT", "EXP", "POW")
WIDE = ("special", "f32tof32", "inf", "NaN")
ROWS = [r for r in cases_of() if r.op not in STEEP and not any(word in r.id for word in WIDE)]
with_half = [d for name in ("opencl", "webgpu") for d in devices_of(name) if d.offers.half]


def loose(row: Case) -> Case:
    return replace(row, tol=row.tol + TOLERANCE, off_by=max(2, row.off_by))


@pytest.mark.parametrize("row", ROWS if EVERYTHING else ROWS[::20], ids=lambda row: row.id)
def test_kept_in_half(row: Case) -> None:
    check_gpu(loose(row), precision="f32_f16")


@pytest.mark.parametrize("row", ROWS if EVERYTHING else ROWS[3::40], ids=lambda row: row.id)
def test_computed_in_half(row: Case) -> None:
    if not GpuDelegate(device=DEVICE).device().offers.half:
        pytest.skip("the device does not compute in 16 bits")
    check_gpu(loose(row), precision="f16")


@pytest.mark.skipif(not with_half, reason="no device here computes in 16 bits")
@pytest.mark.parametrize("number", range(len(with_half)))
def test_answers_computed_in_half(number: int) -> None:
    made = check_answers(Pinned(with_half[number], precision="f16"), 2e-2).executable
    assert made.recipe.memory()["packed_weights"] < 4 * 8 * 9 * 8


def long_sums() -> Model:
    """Operators that add up more than 16 bits hold: beyond 2048 one more is none, and squares end
    at 255. A row and a window have 4096 elements."""
    graph, row, image = Graph(), (1, 4096), (1, 64, 64, 4)
    window = {"padding": "VALID", "stride_h": 1, "stride_w": 1, "filter_height": 64,
              "filter_width": 64}  # fmt: skip
    near = {"radius": 2, "bias": 1.0, "alpha": 1.0, "beta": 0.5}
    axis = graph.constant("axis", np.array(1), DType.INT32)
    for name, given, shape, more, attrs in (
        ("SOFTMAX", row, row, [], {"beta": 1.0}),
        ("LOG_SOFTMAX", row, row, [], {}),
        ("L2_NORMALIZATION", row, row, [], {}),
        ("CUMSUM", row, row, [axis], {"exclusive": True}),
        ("AVERAGE_POOL_2D", image, (1, 1, 1, 4), [], window),
        ("L2_POOL_2D", image, (1, 1, 1, 4), [], window),
        ("LOCAL_RESPONSE_NORMALIZATION", (1, 2, 2, 8), (1, 2, 2, 8), [], near),
    ):
        x = graph.input(f"x {name}", DType.FLOAT32, given)
        graph.outputs.append(graph.tensor(name, DType.FLOAT32, shape))
        graph.add(name, [x, *more], graph.outputs[-1:], **attrs)
    return Model([graph])


def test_sums_of_many_are_kept_in_32_bits() -> None:
    offers = devices_of("opencl")[0].offers
    for step in lower(long_sums().main, offers, OpenClC, "f16").steps:
        sums = re.findall(r"(\w+) a\d+ = ", step.kernel.source())
        assert step.name in ("import", "export") or (step.half and sums), step.name
        assert not [kind for kind in sums if kind.startswith("half")], step.name


@pytest.mark.skipif(not with_half, reason="no device here computes in 16 bits")
@pytest.mark.parametrize("number", range(len(with_half)))
def test_sums_of_many_that_16_bits_do_not_hold(number: int) -> None:
    model = long_sums()
    given = {t.name: np.full(t.shape, 2.0, np.float32) for t in model.main.inputs}
    given["x L2_POOL_2D"] *= 150
    session = model.compile([Pinned(with_half[number], precision="f16")])
    found, expected = session.run(given), model.compile(["reference"]).run(given)
    for name, answer in expected.items():
        np.testing.assert_allclose(found[name], answer, rtol=2e-3, err_msg=name)


@pytest.fixture(name="without")
def _without() -> Device:
    """A device that does not compute in 16 bits."""
    found = twin(devices_of("opencl")[0])
    found.offers = replace(found.offers, half=False)
    return found


def test_f16_is_refused_where_the_device_has_none(without: Device) -> None:
    with pytest.raises(DelegateError, match="has no half-precision arithmetic") as caught:
        check_answers(Pinned(without, precision="f16"))
    assert "precision=f32_f16" in caught.value.fix


def test_priorities_that_lead_to_f16_lead_to_f32_f16_there(without: Device) -> None:
    delegate = Pinned(without, is_precision_loss_allowed=True)
    made = check_answers(delegate, 2e-2).executable
    kept = check_answers(Pinned(without, precision="f32_f16"), 2e-2).executable
    assert made.recipe.memory() == kept.recipe.memory()


def test_half_takes_half_the_memory() -> None:
    whole, half = (
        check_answers(GpuDelegate(precision=name, cache=False), 2e-2).executable.recipe.memory()
        for name in ("f32", "f32_f16")
    )
    assert half["packed_weights"] < 0.7 * whole["packed_weights"]
    assert half["packed_weights"] >= whole["packed_weights"] // 2


# -- what kernels say -----------------------------------------------------------------------------


def source(dialect: type, half: bool) -> str:
    """A kernel that loads both kinds of floats, compares, selects and stores."""
    k = KernelText("mixed", dialect(half))
    x, y = k.argument("x", Storage("f16")), k.argument("y", Storage("f32"), written=True)
    (i,) = k.grid(8)
    value = k.let(k.load(x, i))
    exact = k.let(k.cast(i, REAL) * 0.5)
    number = k.select(value.lane(0) > 0.0, k.cast(exact, INT), 3)
    k.store(y, i, k.select(value < 1.0, value, k.cast(number, FLOAT).splat(4)))
    return k.source()


@pytest.mark.parametrize("half", [False, True])
def test_kernels_of_both_widths_build(half: bool) -> None:
    devices = [*devices_of("opencl")[:1], *devices_of("webgpu")[:1]]
    for device in (d for d in devices if d.offers.half or not half):
        device.build([device.dialect(half).preamble() + source(device.dialect, half)])
    in_c, in_wgsl = source(OpenClC, half), source(Wgsl, half)
    assert ("vload_half4" in in_c) is not half and ("half4" in in_c) is True
    assert ("unpack2x16float" in in_wgsl) is not half
    assert "float" in in_c and "f32(" in in_wgsl, "a place in a picture stays in 32 bits"


def test_sums_are_not_kept_in_half() -> None:
    """A sum beyond 65504, whose mean is not."""
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (1, 64, 64, 8))
    mean = graph.tensor("mean", DType.FLOAT32, (1, 8))
    axes = graph.constant("axes", [1, 2], DType.INT32)
    graph.add("MEAN", [x, axes], [mean], keep_dims=False)
    graph.outputs = [mean]
    given = np.full(x.shape, 100.0, np.float32)
    precision = "f16" if with_half else "f32_f16"
    device = with_half[0] if with_half else devices_of("opencl")[0]
    session = Model([graph]).compile([Pinned(device, precision=precision)])
    np.testing.assert_allclose(session.run({"x": given})["mean"], 100.0, rtol=1e-3)

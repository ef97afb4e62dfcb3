"""8-bit models on the GPU delegate: floats inside, codes at the border, and learned bounds kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sanderling.delegates.gpu.executable import GpuExecutable
from sanderling.delegates.gpu.table import NO_CODES
from sanderling.ir import Array, DType, Graph, Model, Quant, Tensor
from tests.conformance.harness import case, const, i8, u8
from tests.support.cpu_conformance import run
from tests.support.gpu_batches import joined
from tests.support.gpu_conformance import gpu
from tests.support.gpu_devices import Pinned, twin

pytest.importorskip("pyopencl", reason="pyopencl is not installed")
pytestmark = pytest.mark.skipif(bool(gpu().lacks()), reason="there is no OpenCL device")
RNG = np.random.default_rng(4)
SHAPE = (1, 5, 6, 8)
WINDOW = {"padding": "SAME", "stride_h": 1, "stride_w": 1}


def _conv(
    graph: Graph, x: Tensor, name: str, scale: float, channels: bool, dtype: DType = DType.INT8
) -> Tensor:
    """A convolution whose result has this scale. channels: a scale of the weights for each."""
    count = 8 if channels else 1
    scales = RNG.uniform(0.01, 0.03, count).astype(np.float32)
    codes = RNG.integers(-127, 128, (8, 3, 3, 8)).astype(np.int8)
    w = graph.constant(f"{name}/w", codes, DType.INT8, quant=Quant.of(scales, [0] * count, 0))
    unit = scales * float(x.quantisation.scale[0])
    kind = DType.INT32 if dtype is DType.INT8 else DType.INT64
    bias = RNG.integers(-500, 500, 8).astype(kind.numpy)
    b = graph.constant(f"{name}/b", bias, kind, quant=Quant.of(unit, [0] * count, 0))
    zero = 3 if dtype is DType.INT8 else 0
    y = graph.tensor(name, dtype, SHAPE, quant=Quant.of([scale], [zero]))
    graph.add("CONV_2D", [x, w, b], [y], **WINDOW)
    return y


def _net(scale: float, channels: bool = True, dtype: DType = DType.INT8) -> Model:
    """Two convolutions; `scale` of the tensor between them."""
    graph = Graph()
    zero = -5 if dtype is DType.INT8 else 0
    x = graph.input("x", dtype, SHAPE, quant=Quant.of([0.02], [zero]))
    middle = _conv(graph, x, "middle", scale, channels, dtype)
    graph.outputs = [_conv(graph, middle, "y", scale * 40, channels, dtype)]
    return Model([graph])


def _codes() -> Array:
    made: Array = RNG.integers(-128, 128, SHAPE).astype(np.int8)
    return made


@pytest.mark.parametrize("scale, channels", [(0.1, True), (0.002, True), (0.002, False)])
def test_learned_bounds_hold(scale: float, channels: bool) -> None:
    """With the smaller scale nearly every element between the convolutions is at a bound."""
    model, given = _net(scale, channels), {"x": _codes()}
    session = model.compile([gpu()])
    found, expected = session.run(given)["y"], model.compile(["reference"]).run(given)["y"]
    (part,) = session.plan().partition.parts
    assert part.delegate.name == "gpu"
    np.testing.assert_array_equal(found, expected)
    assert np.ptp(expected.astype(int)) > 20


def test_sums_of_codes_are_exact_where_floats_go_by_winograd() -> None:
    """Its sums are only near the whole numbers that the CPU rounds."""
    device, model = twin(gpu().device()), _net(0.1)
    kind = replace(device.offers.kind, winograd=(1, 1, 1))
    device.offers = replace(device.offers, kind=kind)
    session, given = model.compile([Pinned(device)]), {"x": _codes()}
    found = session.run(given)["y"]
    np.testing.assert_array_equal(found, model.compile(["reference"]).run(given)["y"])
    (step,) = session.plan().steps
    assert isinstance(step.executable, GpuExecutable)
    assert not [c.name for c in step.executable.recipe.calls if c.name.startswith("winograd")]


# Where results often lie in the middle of two codes, or are rounded twice.
MIDDLES = {
    "scales of 1 to 2": case(
        "SUB", i8(64, 16, scale=0.0078431377, zp=-128), i8(64, 16, scale=0.0039215689, zp=-128),
        out=[i8(scale=0.0078431377, zp=-1)]),
    "scales that are near": case(
        "ADD", i8(64, 16, scale=0.18986915, zp=4), i8(64, 16, scale=0.16990491, zp=-9),
        out=[i8(scale=0.18754955, zp=3)]),
    "a resize to twice the size": case(
        "RESIZE_BILINEAR", i8(1, 6, 6, 16, scale=0.26, zp=-13), const([12, 12], "i32"),
        out=[i8(scale=0.26, zp=-13)], half_pixel_centers=True),
    "a resize in steps of 1/1024": case(
        "RESIZE_BILINEAR", i8(1, 6, 7, 16, scale=0.26, zp=5), const([13, 23], "i32"),
        out=[i8(scale=0.26, zp=5)]),
    "halves of a mean over nothing": case(
        "MEAN", i8(3, 40, scale=0.1, zp=-3), const(np.zeros(0, np.int32), "i32"),
        out=[i8(scale=0.2, zp=5)], keep_dims=False),
    "a mean of four": case(
        "AVERAGE_POOL_2D", u8(1, 8, 8, 16, scale=0.1, zp=77), out=[u8(scale=0.1, zp=77)],
        padding="VALID", stride_h=2, stride_w=2, filter_height=2, filter_width=2),
    "codes of another scale": case(
        "QUANTIZE", u8(1, 256, scale=0.012422441, zp=0), out=[u8(scale=0.035209369, zp=0)],
        version=2),
}  # fmt: skip


def test_codes_are_rounded_as_the_cpu_does() -> None:
    """To the same code, not one beside it."""
    models = [row.model() for row in MIDDLES.values()]
    feeds = [row.arrays(m, RNG) for row, m in zip(MIDDLES.values(), models, strict=True)]
    whole = joined(models).compile([gpu()], require_full_delegation=True)
    found = run(whole, [np.asarray(a) for feed in feeds for a in feed])
    for name, model, feed, codes in zip(MIDDLES, models, feeds, found, strict=True):
        (wanted,) = run(model.compile(["reference"]), feed)
        np.testing.assert_array_equal(codes, wanted, err_msg=name)


# Scales of two operands and the result: an operand's share of the larger one is rounded twice.
SCALES = [
    (0.05, 0.3, 0.4), (3.7, 2.2, 6.0), (0.02, 0.019, 0.04), (0.001, 0.3, 0.25), (0.1, 0.1, 0.2),
]  # fmt: skip


@pytest.mark.parametrize("name", ["ADD", "SUB"])
def test_sums_of_all_pairs_of_codes(name: str) -> None:
    graph, codes = Graph(), np.arange(-128, 128).astype(np.int8)
    given: dict[str, Array] = {}
    for number, scales in enumerate(SCALES):
        a, b = (
            graph.input(f"{side}{number}", DType.INT8, shape, quant=Quant.of([scale], [zero]))
            for side, shape, scale, zero in zip(
                "ab", ((256, 1), (1, 256)), scales, (-128, 9), strict=False
            )
        )
        given |= {a.name: codes[:, None], b.name: codes[None]}
        quant = Quant.of([scales[2]], [-3])
        graph.outputs.append(graph.tensor(f"y{number}", DType.INT8, (256, 256), quant=quant))
        graph.add(name, [a, b], graph.outputs[-1:])
    model = Model([graph])
    found = model.compile([gpu()], require_full_delegation=True).run(given)
    for key, wanted in model.compile(["reference"]).run(given).items():
        np.testing.assert_array_equal(found[key], wanted, err_msg=str(SCALES[int(key[1:])]))


def test_without_quantized_the_ops_are_refused() -> None:
    ops = _net(0.1).main.ops
    reasons = [gpu(quantized=False).refuses(op) for op in ops]
    assert reasons[0] == f"'x' is quantised, and {NO_CODES}"
    assert "quantized=false" in NO_CODES and "--gpu_experimental_enable_quant=false" in NO_CODES
    assert all(reasons)


def test_codes_of_16_bits_are_refused_with_a_sentence() -> None:
    ops = _net(0.1, dtype=DType.INT16).main.ops
    reasons = {gpu().refuses(op) for op in ops}
    wanted = "has codes of 16 bits, and a float view is made of 8-bit codes only"
    assert reasons == {f"'x' {wanted}", f"'middle' {wanted}"}


def test_weights_of_a_dynamic_range_are_floats_on_the_device() -> None:
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (3, 16))
    codes = RNG.integers(-127, 128, (10, 16)).astype(np.int8)
    w = graph.constant("w", codes, DType.INT8, quant=Quant.of([0.01], [0]))
    y = graph.tensor("y", DType.FLOAT32, (3, 10))
    graph.add("FULLY_CONNECTED", [x, w], [y])
    graph.outputs = [y]
    given: Array = RNG.normal(size=(3, 16)).astype(np.float32)
    found = Model([graph]).compile([gpu()]).run({"x": given})["y"]
    np.testing.assert_allclose(found, given @ (codes.T * np.float32(0.01)), atol=1e-5)


def _lookup(dtype: DType, ids: Array | None) -> Graph:
    quant = Quant.of([0.1], [7]) if dtype is DType.INT8 else None
    graph = Graph()
    table = graph.input("table", dtype, (4, 8), quant=quant)
    where = (
        graph.input("ids", DType.INT32, (1,))
        if ids is None
        else graph.constant("ids", ids, DType.INT32)
    )
    graph.outputs = [graph.tensor("y", dtype, (1, 8), quant=quant)]
    graph.add("GATHER", [table, where], graph.outputs, axis=0, batch_dims=0)
    return graph


@pytest.mark.parametrize("dtype", [DType.INT8, DType.INT32])
def test_codes_and_whole_numbers_have_no_nan_for_an_index_that_leaves_its_input(
    dtype: DType,
) -> None:
    (op,) = _lookup(dtype, None).ops
    assert gpu().refuses(op) == "indices of whole numbers must be constant"
    (op,) = _lookup(dtype, np.array([3], np.int32)).ops
    assert gpu().refuses(op) is None
    (op,) = _lookup(DType.FLOAT32, None).ops
    assert gpu().refuses(op) is None


def test_an_index_that_leaves_its_input_gives_nan() -> None:
    """A device cannot stop and tell; but it does not read what is not there."""
    graph = Graph()
    table = graph.constant("table", RNG.normal(size=(4, 3)), DType.FLOAT32)
    ids = graph.input("ids", DType.INT32, (3,))
    y = graph.tensor("y", DType.FLOAT32, (3, 3))
    graph.add("EMBEDDING_LOOKUP", [ids, table], [y])
    graph.outputs = [y]
    given: Array = np.array([2, 4, -1], np.int32)
    found = Model([graph]).compile([gpu()]).run({"ids": given})["y"]
    np.testing.assert_allclose(found[0], np.asarray(table.values)[2])
    assert np.isnan(found[1:]).all()

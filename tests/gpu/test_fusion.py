"""What goes into one kernel: graphs, how many kernels they come to, and their answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from sanderling.delegates.gpu.delegate import GpuDelegate
from sanderling.delegates.gpu.executable import GpuExecutable
from sanderling.delegates.gpu.lower import lower
from sanderling.delegates.gpu.program_sources import build_programs
from sanderling.delegates.gpu.recipe import recipe_of
from sanderling.ir import Array, DType, Graph, Model, Tensor

pytest.importorskip("pyopencl")
pytestmark = pytest.mark.skipif(bool(GpuDelegate().lacks()), reason="there is no OpenCL device")
SIZE = (1, 4, 5, 8)


class Net:
    """A float graph, op by op. Eight channels: borders need no kernels of their own."""

    def __init__(self, *shape: int) -> None:
        self.graph, self.rng = Graph(), np.random.default_rng(3)
        self.x = self.input(*(shape or SIZE))

    def input(self, *shape: int) -> Tensor:
        return self.graph.input(f"x{len(self.graph.inputs)}", DType.FLOAT32, shape)

    def constant(self, *shape: int) -> Tensor:
        name = f"c{len(self.graph.tensors)}"
        return self.graph.constant(name, self.rng.normal(size=shape), DType.FLOAT32)

    def op(
        self, name: str, *inputs: Tensor, shape: tuple[int, ...] = (), **attrs: object
    ) -> Tensor:
        made = self.graph.tensor(
            f"t{len(self.graph.tensors)}", DType.FLOAT32, shape or inputs[0].shape
        )
        self.graph.add(name, list(inputs), [made], **attrs)
        return made

    def conv(
        self, x: Tensor, shape: tuple[int, ...] = (), window: int = 1, **attrs: object
    ) -> Tensor:
        given = {"padding": "SAME", "stride_h": 1, "stride_w": 1} | attrs
        weights = self.constant(8, window, window, 8)
        return self.op("CONV_2D", x, weights, self.constant(8), shape=shape or x.shape, **given)

    def reshape(self, x: Tensor, *shape: int) -> Tensor:
        wanted = self.graph.constant(f"s{len(self.graph.tensors)}", shape, DType.INT32)
        return self.op("RESHAPE", x, wanted, shape=shape)

    def gives(self, *outputs: Tensor) -> None:
        self.graph.outputs = list(outputs)


def _chain(n: Net) -> None:
    n.gives(n.op("ABS", n.op("TANH", n.op("RELU6", n.conv(n.x)))))


def _residual(n: Net) -> None:
    n.gives(n.op("RELU", n.op("ADD", n.conv(n.conv(n.x)), n.x)))


def _two_branches(n: Net) -> None:
    n.gives(n.op("ADD", n.conv(n.x), n.conv(n.x)))


def _broadcast(n: Net) -> None:
    scaled = n.op("MUL", n.conv(n.x), n.constant(8))
    rows = n.op("ADD", scaled, n.input(1, 1, 5, 1))
    n.gives(n.op("SUB", rows, n.constant()))


def _smaller_map(n: Net) -> None:
    """A map of another shape is a kernel of its own: elsewhere it would be computed many times."""
    row = n.op("EXP", n.input(1, 1, 1, 8))
    n.gives(n.op("MUL", n.conv(n.x), row))


def _silu(n: Net) -> None:
    y = n.conv(n.x)
    n.gives(n.op("MUL", y, n.op("LOGISTIC", y)))


def _padded(n: Net) -> None:
    pads = n.graph.constant("pads", [[0, 0], [1, 2], [0, 1], [0, 0]], DType.INT32)
    wide = n.op("PAD", n.x, pads, shape=(1, 7, 6, 8))
    n.gives(n.conv(wide, (1, 3, 2, 8), 3, padding="VALID", stride_h=2, stride_w=2))


def _padded_twice_read(n: Net) -> None:
    pads = n.graph.constant("pads", [[0, 0], [1, 1], [1, 1], [0, 0]], DType.INT32)
    wide = n.op("PAD", n.x, pads, shape=(1, 6, 7, 8))
    n.gives(n.conv(wide, SIZE, 3, padding="VALID"), n.op("NEG", wide))


def _two_readers(n: Net) -> None:
    y = n.conv(n.x)
    n.gives(n.op("NEG", y), n.op("ABS", y))


def _output_in_the_middle(n: Net) -> None:
    y = n.conv(n.x)
    z = n.op("NEG", y)
    n.gives(n.op("EXP", z), z)


def _reshape_inside(n: Net) -> None:
    flat = n.reshape(n.conv(n.x), 20, 8)
    n.gives(n.op("MUL", n.op("NEG", flat), flat))


def _reshape_at_the_end(n: Net) -> None:
    n.gives(n.reshape(n.conv(n.x), 1, 160))


def _reshape_at_the_start(n: Net) -> None:
    n.gives(n.op("NEG", n.reshape(n.x, 5, 32)))


def _reshape_of_an_output(n: Net) -> None:
    y = n.conv(n.x)
    n.gives(y, n.op("ABS", n.reshape(n.reshape(y, 20, 8), 160)))


def _the_same_twice(n: Net) -> None:
    y = n.conv(n.x)
    n.gives(n.op("ADD", y, y))


def _squared_map(n: Net) -> None:
    y = n.op("EXP", n.x)
    n.gives(n.op("MUL", y, y))


def _late_operand(n: Net) -> None:
    """The sum's other operand is computed after the convolution that it goes into."""
    early = n.conv(n.x)
    pool = n.op(
        "MAX_POOL_2D",
        n.op("EXP", n.x),
        padding="SAME",
        stride_h=1,
        stride_w=1,
        filter_height=3,
        filter_width=3,
    )
    n.gives(n.op("ADD", early, n.op("NEG", pool)))


def _many_operands(n: Net) -> None:
    """A kernel reads eight tensors at most."""
    y = n.conv(n.x)
    for _ in range(9):
        y = n.op("ADD", y, n.input(*SIZE))
    n.gives(y)


@dataclass(frozen=True)
class Case:
    build: Callable[[Net], None]
    kernels: int


CASES = [
    Case(_chain, 1), Case(_residual, 2), Case(_two_branches, 2), Case(_broadcast, 1),
    Case(_smaller_map, 2), Case(_silu, 1), Case(_padded, 1), Case(_padded_twice_read, 2),
    Case(_two_readers, 3), Case(_output_in_the_middle, 2), Case(_reshape_inside, 2),
    Case(_reshape_at_the_end, 2), Case(_reshape_at_the_start, 1), Case(_reshape_of_an_output, 2),
    Case(_the_same_twice, 1), Case(_squared_map, 1), Case(_late_operand, 3),
    Case(_many_operands, 2),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.build.__name__.strip("_"))
def test_kernels_and_answers(case: Case) -> None:
    net = Net()
    case.build(net)
    model = Model([net.graph])
    rng = np.random.default_rng(1)
    feeds = {t.name: rng.normal(size=t.shape).astype(np.float32) for t in net.graph.inputs}
    session = model.compile([GpuDelegate()])
    found, expected = session.run(feeds), model.compile(["reference"]).run(feeds)
    for name, answer in expected.items():
        np.testing.assert_allclose(found[name], answer, rtol=1e-4, atol=1e-4)
    (step,) = session.plan().steps
    assert isinstance(step.executable, GpuExecutable)
    names = [call.name for call in step.executable.recipe.calls]
    assert len(names) - names.count("import") - names.count("export") == case.kernels, names


@pytest.mark.parametrize("name", ["CONCATENATION", "PACK", "ADD_N"])
def test_no_kernel_reads_more_than_a_device_takes(name: str) -> None:
    """Of 200 tensors, whose channels fill no slices. The smallest WebGPU device takes eight."""
    graph, shape = Graph(), (2, 3)
    inputs = [graph.input(f"x{i}", DType.FLOAT32, shape) for i in range(200)]
    more: dict[str, object] = {
        "CONCATENATION": {"axis": -1},
        "PACK": {"axis": -1, "values_count": 200},
    }.get(name, {})
    size = {"CONCATENATION": (2, 600), "PACK": (2, 3, 200), "ADD_N": shape}[name]
    y = graph.tensor("y", DType.FLOAT32, size)
    graph.add(name, inputs, [y], **more)
    graph.outputs = [graph.tensor("z", DType.FLOAT32, size)]
    graph.add("NEG", [y], graph.outputs)
    model = Model([graph])
    feeds = {t.name: np.full(shape, i, np.float32) for i, t in enumerate(inputs)}
    session = model.compile([GpuDelegate()], require_full_delegation=True)
    np.testing.assert_array_equal(
        session.run(feeds)["z"], model.compile(["reference"]).run(feeds)["z"]
    )
    (step,) = session.plan().steps
    assert isinstance(step.executable, GpuExecutable)
    assert max(len(call.arguments) for call in step.executable.recipe.calls) <= 9


@pytest.mark.parametrize("name", ["SUM", "REDUCE_MAX", "REDUCE_ALL"])
@pytest.mark.parametrize("precision", ["f32", "f32_f16"])
def test_no_item_reads_a_whole_picture(name: str, precision: str) -> None:
    graph, shape = Graph(), (1, 90, 100, 6)
    is_truth = name == "REDUCE_ALL"
    kind = DType.BOOL if is_truth else DType.FLOAT32
    x, axes = graph.input("x", kind, shape), graph.constant("axes", [1, 2, 3], DType.INT32)
    y = graph.tensor("y", kind, (1,))
    graph.add(name, [x, axes], [y], keep_dims=False)
    graph.outputs = [graph.tensor("z", kind, (1,))]
    graph.add("LOGICAL_NOT" if is_truth else "NEG", [y], graph.outputs)
    model, delegate = Model([graph]), GpuDelegate(precision=precision)
    given: Array = np.ones(shape, kind.numpy)
    given[0, 50, 60, 5] = 0 if is_truth else 2
    session = model.compile([delegate], require_full_delegation=True)
    expected = model.compile(["reference"]).run({"x": given})["z"]
    np.testing.assert_allclose(session.run({"x": given})["z"], expected, rtol=1e-3)
    (step,) = session.plan().steps
    assert isinstance(step.executable, GpuExecutable)
    sizes = [call.size for call in step.executable.recipe.calls if call.name == "reduce"]
    assert sizes == [(2, 1, 90), (1, 1, 1)]


def test_borders_that_are_the_same_tensor() -> None:
    """An input that is an output, and an output that is there twice, have their own memory."""
    net = Net()
    y = net.op("NEG", net.x)
    net.gives(y, net.x, y)
    device = GpuDelegate().device()
    lowered = lower(net.graph, device.offers, device.dialect, "f32")
    recipe = recipe_of(lowered, device.offers.kind.group)
    programs = build_programs(device, lowered, recipe)
    given: Array = np.arange(160, dtype=np.float32).reshape(SIZE)
    outputs: list[Array | None] = [np.empty(SIZE, np.float32) for _ in range(3)]
    GpuExecutable(device, recipe, programs).run([given], outputs)
    for found, expected in zip(outputs, (-given, given, -given), strict=True):
        np.testing.assert_array_equal(found, expected)

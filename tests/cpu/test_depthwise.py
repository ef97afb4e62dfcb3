"""Depthwise convolution and windows on the cpu delegate: the conformance table, and the channel
counts and geometries that the kernels tell apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.kernels.depthwise import with_pointwise
from sanderling.delegates.cpu.runtime.executable import CpuExecutable
from sanderling.ir import DType, Graph, Model, Quant, Tensor
from tests.conformance.harness import Case, case, f32, i8, i16, u8, weights
from tests.support.cpu_conformance import (
    RUNNABLE,
    TARGET_NAMES,
    cases_of,
    check_cpu,
    cpu_for,
    run,
    share_of,
)

OPS = ("DEPTHWISE_CONV_2D", "AVERAGE_POOL_2D", "L2_POOL_2D", "MAX_POOL_2D")


@pytest.mark.parametrize("target", TARGET_NAMES)
@pytest.mark.parametrize("op", OPS)
def test_conformance(op: str, target: str) -> None:
    for row in share_of(cases_of(op), target, place=OPS.index(op)):
        check_cpu(row, target)


@pytest.mark.parametrize("target", TARGET_NAMES)
def test_mean_of_pictures(target: str) -> None:
    for row in cases_of("MEAN"):
        x, axes = row.inputs[:2]
        if x is not None and axes is not None and len(x.shape) == 4 and np.size(axes.data) == 2:
            check_cpu(row, target)


def test_averages_are_exact() -> None:
    """Rounding is the definition's, for int8 (moved to uint8 inside) as for uint8."""
    for row in cases_of("AVERAGE_POOL_2D"):
        if row.inputs[0] is not None and row.inputs[0].dtype in ("i8", "u8", "i16"):
            model = row.model()
            arrays = row.arrays(model, np.random.default_rng(3))
            ours, theirs = (run(model.compile([d]), arrays) for d in (CpuDelegate(), "reference"))
            assert np.array_equal(ours[0], theirs[0]), row.id


def _attrs(
    stride: int = 1, dilation: int = 1, padding: str = "SAME", act: str = "NONE"
) -> dict[str, Any]:
    return {
        "padding": padding,
        "stride_h": stride,
        "stride_w": stride,
        "dilation_h_factor": dilation,
        "dilation_w_factor": dilation,
        "fused_activation_function": act,
    }


def _depthwise(
    kind: str, size: tuple[int, int], channels: int, kernel: int, multiplier: int = 1, **attrs: Any
) -> Case:
    out = channels * multiplier
    shape, filters = (1, *size, channels), (1, kernel, kernel, out)
    rng = np.random.default_rng(out)
    more = _attrs(**attrs) | {"depth_multiplier": multiplier}
    if kind == "f32":
        return case("DEPTHWISE_CONV_2D", f32(*shape), weights(*filters), weights(out), **more)
    if kind == "u8":
        return case(
            "DEPTHWISE_CONV_2D",
            u8(*shape, scale=0.03, zp=100),
            weights(*filters, dtype="u8", scale=0.02, zp=99),
            weights(out, dtype="i32", scale=0.0006, low=-3000, high=3000),
            out=[u8(scale=0.3, zp=90)],
            version=2,
            **more,
        )
    scales = rng.uniform(0.002, 0.02, out).astype(np.float32)
    if kind == "hybrid":
        return case(
            "DEPTHWISE_CONV_2D",
            f32(*shape),
            weights(*filters, dtype="i8", scale=scales, axis=3),
            weights(out),
            version=6,
            **more,
        )
    if kind == "i16":
        return case(
            "DEPTHWISE_CONV_2D",
            i16(*shape, scale=3e-4),
            weights(*filters, dtype="i8", scale=scales, axis=3),
            weights(out, dtype="i64", scale=scales * np.float32(3e-4), low=-9000, high=9000),
            out=[i16(scale=2e-3)],
            version=3,
            **more,
        )
    return case(
        "DEPTHWISE_CONV_2D",
        i8(*shape, scale=0.03, zp=-5),
        weights(*filters, dtype="i8", scale=scales, axis=3),
        weights(out, dtype="i32", scale=scales * np.float32(0.03), low=-3000, high=3000),
        out=[i8(scale=0.2, zp=-20)],
        version=3,
        **more,
    )


KINDS = ("f32", "i8", "u8", "hybrid", "i16")
ROWS: list[tuple[tuple[int, int], int, int, dict[str, Any]]] = [
    *(((6, 9), c, 3, {"act": "RELU6"}) for c in (1, 3, 7, 8, 15, 16, 20, 24, 32, 33, 40, 48, 52)),
    *(((5, 5), c, 3, {"stride": 2}) for c in (64, 72, 80, 96, 100, 128, 144)),
    ((11, 13), 40, 5, {}),
    ((12, 13), 72, 5, {"stride": 2, "act": "RELU"}),
    ((9, 9), 24, 7, {"padding": "VALID"}),
    ((13, 12), 80, 3, {"dilation": 2}),
    ((9, 9), 20, 3, {"dilation": 4, "act": "RELU_N1_TO_1"}),
    ((1, 1), 24, 3, {}),
    ((2, 3), 17, 5, {}),
    ((40, 1), 16, 3, {"stride": 3}),
    ((5, 150), 40, 3, {}),  # more than a strip of paired_rows.py
    ((8, 8), 66, 1, {}),
    ((8, 8), 66, 2, {"stride": 2, "padding": "VALID"}),
    ((7, 8), 3, 3, {"multiplier": 5}),
    ((9, 8), 1, 4, {"multiplier": 24, "stride": 2}),
]


@pytest.mark.parametrize("target", TARGET_NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_depthwise(kind: str, target: str) -> None:
    rows = share_of(ROWS, target, place=KINDS.index(kind), host=4, others=12)
    for size, channels, kernel, more in rows:
        assert check_cpu(_depthwise(kind, size, channels, kernel, **more), target) == ""


class Net:
    """A float network, written layer by layer."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.graph, self.rng = Graph(), np.random.default_rng(0)
        self.x = self.graph.input("x", DType.FLOAT32, shape)
        self.arrays = [self.rng.normal(size=shape).astype(np.float32)]

    def _constant(self, *shape: int) -> Tensor:
        name = f"c{len(self.graph.tensors)}"
        return self.graph.constant(name, self.rng.normal(size=shape).astype(np.float32))

    def _codes(self, *shape: int) -> Tensor:
        name, count = f"c{len(self.graph.tensors)}", shape[-1]
        made = self.graph.constant(name, self.rng.integers(-127, 128, shape).astype(np.int8))
        steps = self.rng.uniform(0.01, 0.03, count).astype(np.float32)
        made.quant = Quant(steps, np.zeros(count, np.int64), 3)
        return made

    def add(self, op: str, inputs: list[Tensor], shape: tuple[int, ...], **attrs: Any) -> Net:
        made = self.graph.tensor(f"t{len(self.graph.tensors)}", DType.FLOAT32, shape)
        self.graph.add(op, inputs, [made], **attrs)
        self.x = made
        self.graph.outputs = [made]
        return self

    def pointwise(self, n: int, act: str = "NONE") -> Net:
        inputs = [self.x, self._constant(n, 1, 1, self.x.shape[3]), self._constant(n)]
        return self.add("CONV_2D", inputs, (*self.x.shape[:3], n), **_attrs(act=act))

    def depthwise(
        self, kernel: int, stride: int = 1, act: str = "NONE", codes: bool = False
    ) -> Net:
        n, h, w, c = self.x.shape
        inputs = [self.x, (self._codes if codes else self._constant)(1, kernel, kernel, c)]
        attrs = _attrs(stride=stride, act=act) | {"depth_multiplier": 1}
        shape = (n, -(-h // stride), -(-w // stride), c)
        return self.add("DEPTHWISE_CONV_2D", inputs, shape, **attrs)

    def swish(self) -> Net:
        x = self.x
        self.add("LOGISTIC", [x], x.shape)
        return self.add("MUL", [x, self.x], x.shape, fused_activation_function="NONE")

    def residual(self, act: str = "NONE") -> Net:
        other = self.graph.input("other", DType.FLOAT32, self.x.shape)
        self.arrays.append(self.rng.normal(size=other.shape).astype(np.float32))
        return self.add("ADD", [self.x, other], other.shape, fused_activation_function=act)

    def check(self, target: str, *kernels: str) -> None:
        """The answer is the reference's; the steps are these kernels."""
        model = Model([self.graph])
        session = model.compile([cpu_for(target)], threads=2)
        ours, theirs = (run(s, self.arrays)[0] for s in (session, model.compile(["reference"])))
        assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()
        (step,) = session.plan(shapes=[a.shape for a in self.arrays]).steps
        assert isinstance(step.executable, CpuExecutable)
        names = [str(name).partition("_")[2] for name in step.executable.compiled.steps]
        assert names == list(kernels)


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("batch, size, c", [(1, (12, 10), 24), (2, (9, 7), 17), (1, (11, 16), 96)])
def test_fused_with_products(
    batch: int, size: tuple[int, int], c: int, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(with_pointwise, "WORTH", 1)
    monkeypatch.setattr(with_pointwise, "BAND", 5000)
    monkeypatch.setattr(with_pointwise, "RING", 10000)
    net = Net((batch, *size, c)).depthwise(3, act="RELU6").pointwise(c - 4).residual("RELU")
    net.check(target, "cpu_dw_pw")
    net = Net((batch, *size, 8)).pointwise(c, "RELU").depthwise(5, 2).swish()
    net.check(target, "cpu_pw_dw")
    Net((batch, *size, 8)).pointwise(c).swish().depthwise(3).residual().check(target, "cpu_pw_dw")
    net = Net((batch, *size, 9)).pointwise(c).swish().depthwise(3, act="RELU").pointwise(12)
    net.residual().swish().check(target, "cpu_pw_dw_pw")


@pytest.mark.parametrize("target", RUNNABLE)
def test_rows_that_lie_apart(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Channels of one tensor are read, and those of another written, where they lie."""
    monkeypatch.setattr(with_pointwise, "WORTH", 1)
    net = Net((1, 6, 7, 8))
    whole = net.pointwise(40).x
    halves = [net.graph.tensor(f"half{i}", DType.FLOAT32, (1, 6, 7, 20)) for i in (0, 1)]
    axis = net.graph.constant("axis", np.array(3, np.int32))
    net.graph.add("SPLIT", [axis, whole], halves, num_splits=2)
    net.x = halves[0]
    a = net.depthwise(3).x
    net.x = halves[1]
    b = net.pointwise(12).depthwise(5).x
    net.add("CONCATENATION", [a, b], (1, 6, 7, 32), axis=3, fused_activation_function="NONE")
    net.pointwise(9).check(target, "conv_2d", "depthwise_conv_2d", "cpu_pw_dw", "conv_2d")


@pytest.mark.parametrize("target", RUNNABLE)
def test_functions_of_the_result(target: str) -> None:
    for c in (16, 20):
        Net((1, 9, 8, c)).depthwise(3).swish().check(target, "depthwise_conv_2d")
        Net((2, 9, 8, c)).depthwise(3, 2).residual("RELU").check(target, "depthwise_conv_2d")
        Net((1, 9, 8, c)).depthwise(5).residual().swish().check(target, "depthwise_conv_2d")
        net = Net((2, 9, 8, c)).depthwise(3, codes=True).residual().swish()
        net.check(target, "cpu_range", "cpu_encode", "depthwise_conv_2d")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(7, 7), (28, 30)])
def test_threads_agree(kind: str, size: tuple[int, int]) -> None:
    """The answer is the same for every number of workers, bit by bit."""
    row = _depthwise(kind, size, 200, 3)
    model = row.model()
    arrays = row.arrays(model, np.random.default_rng(1))
    answers = [run(model.compile([CpuDelegate()], threads=n), arrays)[0] for n in (1, 2, 5)]
    assert all(np.array_equal(answers[0], a) for a in answers[1:])


def test_threads_agree_when_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(with_pointwise, "WORTH", 1)
    monkeypatch.setattr(with_pointwise, "RING", 10000)
    for net in (
        Net((2, 19, 12, 8)).pointwise(96).depthwise(3, 2),
        Net((2, 20, 12, 8)).pointwise(96).depthwise(3).pointwise(24),
    ):
        model = Model([net.graph])
        answers = [run(model.compile([CpuDelegate()], threads=n), net.arrays)[0] for n in (1, 2, 5)]
        assert all(np.array_equal(answers[0], a) for a in answers[1:])


@pytest.mark.parametrize("kind", ["f32", "u8", "hybrid"])
def test_a_bias_of_any_rank(kind: str) -> None:
    row = _depthwise(kind, (5, 6), 20, 3)
    bias = row.inputs[2]
    deep = replace(bias, shape=(1, 1, 1, 1, 20), data=np.reshape(bias.data, (1, 1, 1, 1, 20)))
    assert check_cpu(replace(row, inputs=(*row.inputs[:2], deep))) == ""


def test_others_have_reasons() -> None:
    wild = _depthwise("i16", (40, 40), 3, 33)
    assert "has no kernel" in check_cpu(wild)

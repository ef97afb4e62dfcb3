"""Depthwise convolution and windows on the cpu delegate: the conformance table, and the channel
counts and geometries that the kernels tell apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sanderling.delegates.cpu import fuse_dwpw
from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.executable import CpuExecutable
from sanderling.delegates.cpu.targets import TARGETS, host_target, runnable
from sanderling.ir import DType, Graph, Model
from tests.conformance.harness import Case, case, f32, i8, u8, weights

from ..conformance.cases import CASES
from .harness import TARGET_NAMES, cases_of, check_cpu, run

OPS = ("DEPTHWISE_CONV_2D", "AVERAGE_POOL_2D", "MAX_POOL_2D")


@pytest.mark.parametrize("target", TARGET_NAMES)
@pytest.mark.parametrize("op", OPS)
def test_conformance(op: str, target: str) -> None:
    for row in cases_of(op):
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
        if row.inputs[0] is not None and row.inputs[0].dtype in ("i8", "u8"):
            model = row.model()
            arrays = row.arrays(model, np.random.default_rng(3))
            ours, theirs = (run(model.compile([d]), arrays) for d in (CpuDelegate(), "reference"))
            assert np.array_equal(ours[0], theirs[0]), row.id


def _attrs(
    stride: int = 1, dilation: int = 1, padding: str = "SAME", act: str = "NONE"
) -> dict[str, Any]:
    return {"padding": padding, "stride_h": stride, "stride_w": stride,
            "dilation_h_factor": dilation, "dilation_w_factor": dilation,
            "fused_activation_function": act}  # fmt: skip


def _depthwise(kind: str, size: tuple[int, int], channels: int, kernel: int, multiplier: int = 1,
               **attrs: Any) -> Case:  # fmt: skip
    out = channels * multiplier
    shape, filters = (1, *size, channels), (1, kernel, kernel, out)
    rng = np.random.default_rng(out)
    more = _attrs(**attrs) | {"depth_multiplier": multiplier}
    if kind == "f32":
        return case("DEPTHWISE_CONV_2D", f32(*shape), weights(*filters), weights(out), **more)
    if kind == "u8":
        return case("DEPTHWISE_CONV_2D", u8(*shape, scale=0.03, zp=100),
                    weights(*filters, dtype="u8", scale=0.02, zp=99),
                    weights(out, dtype="i32", scale=0.0006, low=-3000, high=3000),
                    out=[u8(scale=0.3, zp=90)], version=2, **more)  # fmt: skip
    scales = rng.uniform(0.002, 0.02, out).astype(np.float32)
    return case("DEPTHWISE_CONV_2D", i8(*shape, scale=0.03, zp=-5),
                weights(*filters, dtype="i8", scale=scales, axis=3),
                weights(out, dtype="i32", scale=scales * np.float32(0.03), low=-3000,
                        high=3000),
                out=[i8(scale=0.2, zp=-20)], version=3, **more)  # fmt: skip


KINDS = ("f32", "i8", "u8")
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
    ((8, 8), 66, 1, {}),
    ((8, 8), 66, 2, {"stride": 2, "padding": "VALID"}),
    ((7, 8), 3, 3, {"multiplier": 5}),
    ((9, 8), 1, 4, {"multiplier": 24, "stride": 2}),
]


@pytest.mark.parametrize("target", TARGET_NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_depthwise(kind: str, target: str) -> None:
    rows = ROWS if TARGETS[target] is host_target() else ROWS[::4]
    for size, channels, kernel, more in rows:
        assert check_cpu(_depthwise(kind, size, channels, kernel, **more), target) == ""


@pytest.mark.parametrize("target", [t for t in TARGET_NAMES if runnable(TARGETS[t])])
@pytest.mark.parametrize("batch, size, residual", [(1, (12, 10), False), (2, (9, 7), True)])
def test_fused_with_product(
    batch: int, size: tuple[int, int], residual: bool, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuse_dwpw, "WORTH", 1)
    monkeypatch.setattr(fuse_dwpw, "BAND", 5000)
    rng = np.random.default_rng(0)
    graph, f = Graph(), DType.FLOAT32
    x = graph.input("x", f, (batch, *size, 24))
    w = graph.constant("w", rng.normal(size=(1, 3, 3, 24)).astype(np.float32))
    between = graph.tensor("between", f, x.shape)
    graph.add("DEPTHWISE_CONV_2D", [x, w], [between], **_attrs(act="RELU6"), depth_multiplier=1)
    filters = graph.constant("filters", rng.normal(size=(20, 1, 1, 24)).astype(np.float32))
    bias = graph.constant("bias", rng.normal(size=20).astype(np.float32))
    out = graph.tensor("out", f, (batch, *size, 20))
    graph.add("CONV_2D", [between, filters, bias], [out], **_attrs())
    arrays = [rng.normal(size=x.shape).astype(np.float32)]
    graph.outputs = [out]
    if residual:
        other = graph.input("other", f, out.shape)
        arrays.append(rng.normal(size=out.shape).astype(np.float32))
        total = graph.tensor("total", f, out.shape)
        graph.add("ADD", [out, other], [total], fused_activation_function="RELU")
        graph.outputs = [total]
    model = Model([graph])
    session = model.compile([CpuDelegate(target, cache=False)], threads=2)
    ours, theirs = run(session, arrays)[0], run(model.compile(["reference"]), arrays)[0]
    assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()
    (step,) = session.plan(shapes=[a.shape for a in arrays]).steps
    assert isinstance(step.executable, CpuExecutable)
    assert any("dw_pw" in str(name) for name in step.executable.compiled.steps)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(7, 7), (28, 30)])
def test_threads_agree(kind: str, size: tuple[int, int]) -> None:
    """The answer is the same for every number of workers, bit by bit."""
    row = _depthwise(kind, size, 200, 3)
    model = row.model()
    arrays = row.arrays(model, np.random.default_rng(1))
    answers = [run(model.compile([CpuDelegate()], threads=n), arrays)[0] for n in (1, 2, 5)]
    assert all(np.array_equal(answers[0], a) for a in answers[1:])


def test_other_types_have_reasons() -> None:
    hybrid = next(r for r in CASES if r.op == "DEPTHWISE_CONV_2D" and r.name == "hybrid")
    assert "has no kernel" in check_cpu(hybrid)

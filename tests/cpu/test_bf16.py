"""Products in bfloat16 on every target that runs here, against float32 arithmetic on operands that
NumPy has rounded. (Where there are no instructions for it, shifts compute the same numbers.)"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import sanderling
from sanderling.delegates.cpu import delegate as module
from sanderling.delegates.cpu.codegen.jit import assembly
from sanderling.delegates.cpu.delegate import CpuDelegate, lower
from sanderling.delegates.cpu.dialect.fused import Inputs
from sanderling.delegates.cpu.isa.targets import TARGETS
from sanderling.delegates.cpu.kernels.products.conv import product_name
from sanderling.delegates.cpu.passes.precision import BOTH_COMPUTED, round_products
from sanderling.delegates.cpu.passes.precision import PRODUCTS as WEIGHTED
from sanderling.delegates.cpu.runtime.executable import Compiled
from sanderling.errors import FallbackWarning, InputError
from sanderling.ir import Array, DType, Graph, Model, Op, Tensor
from sanderling.ir.graph import copy_graph
from sanderling.ops.execute import evaluate, new_state
from tests.support.aarch64_qemu import QEMU, run_aarch64
from tests.support.conv_stacks import feed, stack
from tests.support.cpu_conformance import RUNNABLE, cpu_for

SAME: dict[str, Any] = {"padding": "SAME", "stride_h": 1, "stride_w": 1}
VALID = SAME | {"padding": "VALID"}
HALF = SAME | {"stride_h": 2, "stride_w": 2}


class Net:
    """A float model, op by op."""

    def __init__(self, *shape: int) -> None:
        self.graph = Graph()
        self.rng = np.random.default_rng(5)
        self.last = self.graph.input("x", DType.FLOAT32, shape)

    def constant(self, *shape: int) -> Tensor:
        values = self.rng.normal(size=shape) / math.sqrt(math.prod(shape[1:]))
        return self.graph.constant(f"w{len(self.graph.tensors)}", values, DType.FLOAT32)

    def add(
        self,
        name: str,
        inputs: Sequence[Tensor | None],
        shape: tuple[int, ...],
        attrs: Mapping[str, Any],
    ) -> Tensor:
        out = self.graph.tensor(f"y{len(self.graph.ops)}", DType.FLOAT32, shape)
        self.graph.add(name, list(inputs), [out], **attrs)
        self.last = out
        return out

    def conv(
        self,
        units: int,
        kernel: tuple[int, int] = (1, 1),
        attrs: Mapping[str, Any] = SAME,
        groups: int = 1,
    ) -> Tensor:
        n, h, w, c = self.last.shape
        if attrs["padding"] == "SAME":
            h, w = (-(-v // attrs["stride_h"]) for v in (h, w))
        else:
            h, w = h - kernel[0] + 1, w - kernel[1] + 1
        weights = self.constant(units, *kernel, c // groups)
        return self.add(
            "CONV_2D",
            [self.last, weights, self.constant(units)],
            (n, h, w, units),
            {"fused_activation_function": "RELU6", **attrs},
        )

    def depthwise(self, size: int) -> Tensor:
        weights = self.constant(1, size, size, self.last.shape[3])
        return self.add(
            "DEPTHWISE_CONV_2D",
            [self.last, weights, self.constant(weights.shape[3])],
            self.last.shape,
            {"fused_activation_function": "RELU6", "depth_multiplier": 1, **SAME},
        )

    def connected(self, units: int) -> Tensor:
        rows, depth = self.last.shape
        return self.add(
            "FULLY_CONNECTED",
            [self.last, self.constant(units, depth), self.constant(units)],
            (rows, units),
            {"fused_activation_function": "NONE"},
        )

    def transposed(self, units: int) -> Tensor:
        n, h, w, c = self.last.shape
        shape = (n, 2 * h, 2 * w, units)
        size = self.graph.constant("shape", np.array(shape), DType.INT32)
        return self.add(
            "TRANSPOSE_CONV",
            [size, self.constant(units, 3, 3, c), self.last],
            shape,
            {"fused_activation_function": "NONE", **HALF},
        )

    def matmul(self, adj_x: bool, adj_y: bool) -> Tensor:
        """The input times its magnitudes, both computed."""
        batch, rows, depth = self.last.shape
        other = self.add("ABS", [self.last], self.last.shape, {})
        sizes = [depth if adj_x else rows, rows if adj_y else depth]
        return self.add(
            "BATCH_MATMUL",
            [self.graph.inputs[0], other],
            (batch, *sizes),
            {"adj_x": adj_x, "adj_y": adj_y},
        )

    def done(self) -> Model:
        self.graph.outputs = [self.last]
        return Model([self.graph])


def single(shape: tuple[int, ...], how: str, *args: Any, **more: Any) -> Model:
    net = Net(*shape)
    getattr(net, how)(*args, **more)
    return net.done()


# One product: rows as they are, packed in patches or lines; depths odd and even, tails of vectors.
PRODUCTS = {
    "pointwise": single((1, 7, 9, 64), "conv", 40),
    "odd": single((1, 6, 5, 33), "conv", 19),
    "one": single((1, 9, 9, 1), "conv", 2),
    "strided": single((2, 9, 9, 16), "conv", 24, (1, 1), HALF),
    "first": single((1, 17, 17, 3), "conv", 32, (3, 3), HALF),
    "wide": single((1, 40, 40, 8), "conv", 20, (5, 5)),
    "valid": single((1, 12, 12, 6), "conv", 7, (3, 2), VALID),
    "groups": single((1, 8, 8, 12), "conv", 8, (3, 3), HALF, groups=4),
    "odd groups": single((1, 8, 8, 9), "conv", 6, groups=3),
    "row": single((1, 300), "connected", 70),
    "rows": single((33, 77), "connected", 10),
    "transposed": single((1, 5, 6, 8), "transposed", 10),
    "matmul": single((2, 37, 37), "matmul", False, False),
    "matmul swapped": single((2, 9, 21), "matmul", False, True),
    "matmul from columns": single((1, 19, 34), "matmul", True, False),
    "deep": single((1, 9, 9, 1024), "conv", 16),
}


def rounded(values: Array) -> Array:
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def expected(model: Model, x: Array) -> Array:
    """The definition, operands of products rounded first."""
    values: dict[Tensor, Array] = {model.main.inputs[0]: x}
    for op in model.main.ops:
        arrays = [_operand(op, place, values) for place in range(len(op.inputs))]
        (values[op.outputs[0]],) = evaluate(op, arrays, new_state())
    return values[model.main.outputs[0]]


def _operand(op: Op, place: int, values: Mapping[Tensor, Array]) -> Array | None:
    tensor = op.inputs[place]
    if tensor is None:
        return None
    found = values.get(tensor, tensor.data)
    assert found is not None
    product = op.name in (*WEIGHTED, BOTH_COMPUTED)
    return rounded(found) if product and tensor in Inputs.of(op)[:2] else found


def bf16(target: str) -> CpuDelegate:
    return cpu_for(target, precision="bf16")


def code(model: Model, target: str) -> Compiled:
    return bf16(target).compiled(own(model))


def own(model: Model) -> Graph:
    main = model.main
    return copy_graph(main, main.ops, main.inputs, main.outputs)[0]


def close(ours: Array, theirs: Array, limit: float) -> None:
    assert np.abs(ours - theirs).max() <= limit * np.abs(theirs).max()


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str, target: str) -> None:
    model = PRODUCTS[name]
    x = feed(model)
    ours = model.compile([bf16(target)], threads=2)(x)
    close(ours, expected(model, x), 1e-4)
    exact = model.compile(["reference"])(x)
    gap = np.abs(ours - exact).max() / np.abs(exact).max()
    assert 1e-5 < gap < 1e-2  # it was rounded, and not more than that


def test_precision_of_the_session() -> None:
    """The session's option, on a delegate that has no precision of its own."""
    model = PRODUCTS["pointwise"]
    x = feed(model)
    plain = CpuDelegate(cache=False, emulate=True)
    ours = model.compile([plain], options={"precision": "bf16"})(x)
    close(ours, expected(model, x), 1e-4)
    assert not np.array_equal(ours, model.compile([plain])(x))


def block() -> Model:
    """Expansion, depthwise, projection, residual, head: tensors that only products read, tensors
    that others read too, and a depth of 27."""
    net = Net(1, 16, 16, 3)
    begin = net.conv(16, (3, 3), HALF)
    net.conv(48)
    net.depthwise(3)
    end = net.conv(16)
    net.add("ADD", [begin, end], end.shape, {"fused_activation_function": "NONE"})
    net.conv(32)
    net.conv(20, (2, 2), VALID)
    net.conv(15)
    net.conv(6)
    return net.done()


@pytest.mark.parametrize("target", RUNNABLE)
def test_tensors_between_products(target: str) -> None:
    model = block()
    x = feed(model)
    # A number that is rounded the other way is off by 2**-8; a few are.
    close(model.compile([bf16(target)])(x), expected(model, x), 2e-3)
    kinds = [row["outputs"] for row in code(model, target).report]
    assert sum("bf16" in kind for kind in kinds) == 3, kinds


def test_fused_depthwise_writes_bf16() -> None:
    net = Net(1, 56, 56, 8)
    net.conv(96)
    net.depthwise(3)
    net.conv(10)
    model = net.done()
    x = feed(model)
    first = model.main.ops[0]
    session = model.compile([bf16(RUNNABLE[0])])
    report = code(model, RUNNABLE[0]).report
    assert [row["kernel"] for row in report] == ["cpu_pw_dw", "conv_2d_bf16"]
    assert "bf16" in report[0]["outputs"]
    # The product before the depthwise convolution stays float32.
    exact = evaluate(first, [x, *(t.data for t in first.inputs[1:] if t)], new_state())[0]
    values = {first.outputs[0]: exact}
    for op in model.main.ops[1:]:
        arrays = [_operand(op, i, values) for i in range(len(op.inputs))]
        (values[op.outputs[0]],) = evaluate(op, arrays, new_state())
    close(session(x), values[model.main.outputs[0]], 2e-3)


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("depth", [3, 64])
def test_numbers_that_are_none(depth: int, target: str) -> None:
    """NaN stays NaN and spoils no other row; the largest numbers become infinite: clamped."""
    model = single((4, depth), "connected", 5)
    x = feed(model)
    x[1, depth - 1], x[2, 0] = np.nan, np.finfo(np.float32).max
    x.view(np.uint32)[3, 1] = 0x7FFFFFFF  # a NaN of all ones
    ours = model.compile([bf16(target)])(x)
    assert np.isnan(ours[[1, 3]]).all() and np.isfinite(ours[0]).all()
    assert (np.abs(ours[2]) == np.finfo(np.float32).max).all()


@pytest.mark.parametrize("target", RUNNABLE)
def test_what_lies_behind_an_odd_row_does_not_count(target: str) -> None:
    """Scratch is filled with NaN, then used again for rows of odd depth."""
    net = Net(1, 12, 12, 33)
    net.conv(33, (3, 3), HALF)
    net.conv(33)
    model = net.done()
    session = model.compile([bf16(target)])
    x = feed(model)
    good = session(x)
    session(np.full_like(x, np.nan))
    np.testing.assert_array_equal(session(x), good)


def test_the_instructions_are_used() -> None:
    target = TARGETS["avx512bf16"]
    text = lower(own(block()), CpuDelegate("avx512bf16", cache=False, precision="bf16"))[0].module
    found = assembly(str(text), target)
    assert "vdpbf16ps" in found and "vcvtneps2bf16" in found
    plain = lower(own(block()), CpuDelegate("avx512bf16", cache=False))[0].module
    assert "bf16" not in assembly(str(plain), target)


@pytest.mark.parametrize("target", [n for n in TARGETS if n not in RUNNABLE])
def test_other_targets(target: str) -> None:
    for model in (block(), PRODUCTS["odd"]):
        made = code(model, target)
        if QEMU and TARGETS[target].triple.startswith("aarch64"):
            x = feed(model)
            out = np.zeros(model.main.outputs[0].shape, np.float32)
            run_aarch64(made, [x], [out])
            close(out, expected(model, x), 2e-3)


def test_integers_stay() -> None:
    small = stack(quantised=True)
    x = feed(small)
    np.testing.assert_array_equal(
        small.compile([bf16(RUNNABLE[0])])(x), small.compile([CpuDelegate(cache=False)])(x)
    )


def test_fewer_products_in_f32_are_kept_where_they_are_faster() -> None:
    target = replace(TARGETS["avx512bf16"], precision="bf16")
    for size, channels, name in ((56, 64, "conv_2d"), (7, 512, "conv_2d_bf16")):
        graph = single((1, size, size, channels), "conv", channels, (3, 3)).main
        round_products(graph, target)
        assert [product_name(op) for op in graph.ops] == [name]


# -- options --------------------------------------------------------------------------------------


def test_unknown_precision() -> None:
    model = stack(quantised=False)
    for ask in (
        lambda: CpuDelegate(precision="f8"),
        lambda: sanderling.load_delegate("cpu", {"precision": 16}),
        lambda: model.compile(["cpu"], options={"precision": "half"}),
    ):
        with pytest.raises(InputError, match="precision"):
            ask()


def test_without_instructions_it_warns_once_and_runs_in_f32() -> None:
    model = stack(quantised=False)
    x = feed(model)
    plain = partial(CpuDelegate, "generic", cache=False)
    module._warn_of_precision.cache_clear()
    with pytest.warns(FallbackWarning, match="generic has no bf16 instructions"):
        session = model.compile([plain()], options={"precision": "bf16"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = session(x)
        again = plain(precision="bf16")
    assert again.target.precision == "f32"
    np.testing.assert_array_equal(ours, model.compile([plain()])(x))


def test_precision_is_part_of_what_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one cache, cold and warm, each precision has its own code and its own plan."""
    monkeypatch.setenv("SANDERLING_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "stack.tflite"
    sanderling.save(stack(quantised=False), path)
    x = feed(stack(quantised=False))
    found: dict[str, Array] = {}
    for _ in range(2):
        for precision in ("f32", "bf16"):
            model = sanderling.load(path)
            delegate = CpuDelegate(precision=precision, emulate=True)
            ours = model.compile([delegate])(x)
            np.testing.assert_array_equal(ours, found.setdefault(precision, ours))
            other = sanderling.load(path).compile(
                [CpuDelegate(emulate=True)], options={"precision": precision}
            )
            np.testing.assert_array_equal(other(x), ours)
    assert not np.array_equal(found["f32"], found["bf16"])


def test_kernels_say_it() -> None:
    names = [row["kernel"] for row in code(block(), "avx512").report]
    assert names.count("conv_2d_bf16") == 7, names


# -- what is rounded, and what is not read ---------------------------------------------------------


@pytest.mark.parametrize("target", RUNNABLE)
def test_halves_go_to_the_even(target: str) -> None:
    """Times the unit matrix: what comes out is what the operand was rounded to."""
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (8, 16))
    y = graph.tensor("y", DType.FLOAT32, (8, 16))
    unit = graph.constant("unit", np.eye(16), DType.FLOAT32)
    graph.add("FULLY_CONNECTED", [x, unit, None], [y], fused_activation_function="NONE")
    graph.outputs = [y]
    halves = (1 + np.arange(128).reshape(8, 16) * 2.0**-8).astype(np.float32)
    session = Model([graph]).compile([bf16(target)])
    np.testing.assert_array_equal(session(halves), rounded(halves))


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3)])
def test_what_a_step_left_behind_does_not_count(kernel: tuple[int, int], target: str) -> None:
    """Products of odd depth after one whose longer rows were not numbers."""
    net = Net(1, 6, 6, 35)
    first = net.conv(8, kernel, HALF)
    net.last = net.graph.input("z", DType.FLOAT32, (1, 6, 6, 33))
    second = net.conv(8, kernel, HALF)
    net.graph.outputs = [first, second]
    model = Model([net.graph])
    run = model.compile([bf16(target)])
    x, z = (net.rng.normal(size=t.shape).astype(np.float32) for t in net.graph.inputs)
    _, clean = run(x, z)
    _, after = run(np.full_like(x, np.nan), z)
    np.testing.assert_array_equal(clean, after)

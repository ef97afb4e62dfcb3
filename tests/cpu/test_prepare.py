"""The passes before lowering: what kernels are told, that it means the same, and 8-bit types."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from sanderling import load
from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.dialect import verify as dialect
from sanderling.delegates.cpu.dialect.fused import Fused, Inputs, fuse, operator
from sanderling.delegates.cpu.isa.targets import find
from sanderling.delegates.cpu.kernels.depthwise import depthwise
from sanderling.delegates.cpu.kernels.products.conv import multiplier
from sanderling.delegates.cpu.kernels.window import Geometry, window_of
from sanderling.delegates.cpu.passes import pipeline as stage
from sanderling.delegates.cpu.passes.fuse_into_kernels import (
    EPILOGUE_OPS,
    fold_maps,
    fold_padding,
    fold_residuals,
)
from sanderling.delegates.cpu.passes.pipeline import PASSES, prepare, unify_bytes
from sanderling.ir import Array, DType, Graph, Model, Op, Quant, Tensor
from sanderling.ir.expr import evaluate, inputs_of
from sanderling.ir.verify import problems
from sanderling.ops import cost
from sanderling.ops.execute import execute, new_state
from sanderling.passes import PassReport
from sanderling.runtime.specialise import specialise
from tests.conformance.cases import CASES
from tests.support.cpu_conformance import EVERYTHING
from tests.support.prepared_graphs import run_prepared
from tests.support.shared_models import MODELS, NEEDS, model

RNG = np.random.default_rng(3)
VNNI, NEON = find("avx512vnni"), find("neondot")
NAMES = [p.__name__ for p in PASSES]
# What `run_prepared` can run: float models with elementwise expressions, and 8-bit ones without
# them, because they round within one unit of the definitions.
OWN = ("pad_windows", "add_residuals", "mark_signed", "unify_bytes", "drop_identities",
       "map_results", "clean")  # fmt: skip
FLOAT = tuple(p for p in PASSES if p.__name__ in (*OWN, "lower_elementwise", "fuse_chains"))
EXACT = tuple(p for p in PASSES if p.__name__ in OWN)
STRIDE = {"stride_h": 1, "stride_w": 1, "fused_activation_function": "NONE"}


def legal(name: str, graph: Graph) -> None:
    assert problems(graph) + dialect.problems(graph) == [], name


def random_feeds(graph: Graph) -> list[Array]:
    rng = np.random.default_rng(3)
    return [random_array(t, rng) for t in graph.inputs]


def random_array(tensor: Tensor, rng: np.random.Generator) -> Array:
    kind = tensor.dtype.numpy
    if kind.kind in "iu":
        low, high = (np.iinfo(kind).min, np.iinfo(kind).max) if kind.itemsize == 1 else (0, 99)
        return rng.integers(low, high + 1, tensor.shape).astype(kind)
    return rng.uniform(-1, 1, tensor.shape).astype(kind)


def agree(ours: Sequence[Array], theirs: Sequence[Array], units: int = 0) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        gap = np.max(np.abs(a.astype(np.float64) - b), initial=0)
        limit = 1e-5 * np.max(np.abs(b), initial=0) if a.dtype.kind == "f" else units
        assert gap <= limit, gap


class Net:
    """Small graphs of float or 8-bit ops."""

    def __init__(self, dtype: DType = DType.FLOAT32) -> None:
        self.graph, self.dtype = Graph(), dtype

    def tensor(self, name: str, shape: Sequence[int], scale: float = 0.1, zero: int = 3) -> Tensor:
        quant = Quant.of(scale, zero) if self.dtype is not DType.FLOAT32 else None
        return self.graph.tensor(name, self.dtype, shape, quant=quant)

    def input(self, name: str, shape: Sequence[int], **more: float) -> Tensor:
        tensor = self.tensor(name, shape, **more)
        self.graph.inputs.append(tensor)
        return tensor

    def weights(self, name: str, shape: Sequence[int], axis: int) -> Tensor:
        if self.dtype is DType.FLOAT32:
            return self.graph.constant(name, RNG.normal(size=shape).astype(np.float32))
        scales = RNG.uniform(0.001, 0.01, shape[axis])
        data = RNG.integers(-127, 128, shape).astype(np.int8)
        return self.graph.constant(name, data, quant=Quant.of(scales, 0, axis))

    def conv(
        self,
        x: Tensor,
        out: Tensor,
        taps: int = 1,
        name: str = "CONV_2D",
        padding: str = "SAME",
        **attrs: object,
    ) -> Tensor:
        deep = name == "DEPTHWISE_CONV_2D"
        shape = (1, taps, taps, out.shape[3]) if deep else (out.shape[3], taps, taps, x.shape[3])
        more = {"depth_multiplier": 1} if deep else {}
        w = self.weights(f"{out.name}/w", shape, 3 if deep else 0)
        self.graph.add(name, [x, w], [out], **{**STRIDE, **more, "padding": padding, **attrs})
        return out

    def add(self, name: str, inputs: Sequence[Tensor], out: Tensor, **attrs: object) -> Tensor:
        if name in ("ADD", "MUL"):
            attrs = {"fused_activation_function": "NONE", **attrs}
        self.graph.add(name, inputs, [out], **attrs)
        return out

    def pad(self, x: Tensor, out: Tensor, amounts: Sequence[Sequence[int]]) -> Tensor:
        rows = self.graph.constant(f"{out.name}/amounts", np.int32(amounts))
        return self.add("PAD", [x, rows], out)

    def done(self, *outputs: Tensor) -> Graph:
        self.graph.outputs = list(outputs)
        legal("built", self.graph)
        return self.graph


def names(graph: Graph) -> list[str]:
    return [op.name for op in graph.ops]


def check(graph: Graph, run: Callable[[Graph], object], units: int = 0) -> None:
    feeds = random_feeds(graph)
    expected = execute(graph, feeds, new_state())
    run(graph)
    legal("after", graph)
    agree(run_prepared(graph, feeds), expected, units)


TYPES = pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT8], ids=lambda d: d.short)

# -- geometry -------------------------------------------------------------------------------------


def test_window_of() -> None:
    net = Net()
    x = net.input("x", (1, 5, 8, 2))
    net.conv(x, net.tensor("a", (1, 3, 4, 2)), 3, stride_h=2, stride_w=2)
    net.conv(x, net.tensor("b", (1, 5, 8, 2)), 3, "DEPTHWISE_CONV_2D", dilation_h_factor=2)
    pool = {"filter_height": 2, "filter_width": 3, "stride_h": 2, "stride_w": 1}
    net.add("MAX_POOL_2D", [x], net.tensor("c", (1, 2, 6, 2)), padding="VALID", **pool)
    net.conv(x, net.tensor("d", (1, 9, 7, 2)), 3, padding="VALID")
    a, b, c, d = net.graph.ops
    fuse(d, padding=(4, 2, 1, 0))
    assert window_of(a) == Geometry((3, 3), (2, 2), (1, 1), (1, 1, 0, 1))
    assert window_of(b) == Geometry((3, 3), (1, 1), (2, 1), (2, 2, 1, 1))
    assert window_of(c) == Geometry((2, 3), (2, 1), (1, 1), (0, 0, 0, 0))
    assert window_of(d).pads == (4, 2, 1, 0) and window_of(d).before == (4, 1)


# -- padding --------------------------------------------------------------------------------------


@TYPES
@pytest.mark.parametrize("kind", ["CONV_2D", "DEPTHWISE_CONV_2D"])
def test_padding_goes_into_windows(dtype: DType, kind: str) -> None:
    net = Net(dtype)
    x = net.input("x", (1, 4, 5, 2))
    padded = net.pad(x, net.tensor("p", (1, 7, 9, 2)), [[0, 0], [1, 2], [3, 1], [0, 0]])
    graph = net.done(net.conv(padded, net.tensor("y", (1, 5, 7, 2)), 3, kind, "VALID"))
    check(graph, fold_padding)
    assert names(graph) == [f"cpu.{kind}"] and Fused.of(graph.ops[0]).padding == (1, 2, 3, 1)
    assert graph.ops[0].attrs["padding"] == "VALID"


def test_padding_adds_up_with_same() -> None:
    net = Net()
    x = net.input("x", (1, 4, 4, 2))
    p = net.pad(x, net.tensor("p", (1, 6, 6, 2)), [[0, 0], [1, 1], [2, 0], [0, 0]])
    q = net.pad(p, net.tensor("q", (1, 7, 6, 2)), [[0, 0], [0, 1], [0, 0], [0, 0]])
    graph = net.done(net.conv(q, net.tensor("y", (1, 7, 6, 2)), 3))
    check(graph, fold_padding)
    assert names(graph) == ["cpu.CONV_2D"] and Fused.of(graph.ops[0]).padding == (2, 3, 3, 1)


def test_padding_of_channels_stays() -> None:
    net = Net()
    x = net.input("x", (1, 4, 4, 2))
    p = net.pad(x, net.tensor("p", (1, 4, 4, 3)), [[0, 0], [0, 0], [0, 0], [0, 1]])
    graph = net.done(net.conv(p, net.tensor("y", (1, 4, 4, 2)), 3))
    check(graph, fold_padding)
    assert names(graph) == ["PAD", "CONV_2D"]


def test_padding_with_another_value_stays() -> None:
    net = Net()
    x, p = net.input("x", (1, 4, 4, 2)), net.tensor("p", (1, 6, 6, 2))
    amounts = net.graph.constant("amounts", np.int32([[0, 0], [1, 1], [1, 1], [0, 0]]))
    net.add("PADV2", [x, amounts, net.graph.constant("v", np.float32(1))], p)
    graph = net.done(net.conv(p, net.tensor("y", (1, 4, 4, 2)), 3, padding="VALID"))
    check(graph, fold_padding)
    assert names(graph) == ["PADV2", "CONV_2D"]


# -- residual -------------------------------------------------------------------------------------


@TYPES
def test_addition_goes_into_the_product(dtype: DType) -> None:
    net = Net(dtype)
    x, other = net.input("x", (1, 4, 4, 2)), net.input("o", (1, 4, 4, 3), scale=0.05)
    y = net.conv(x, net.tensor("c", (1, 4, 4, 3), scale=0.08))
    out = net.tensor("y", (1, 4, 4, 3), scale=0.07, zero=-5)
    graph = net.done(net.add("ADD", [other, y], out, fused_activation_function="RELU"))
    check(graph, fold_residuals)
    [op] = graph.ops
    assert op.name == "cpu.CONV_2D" and Inputs.of(op)[2:] == (None, other, None)
    assert op.attrs["fused_activation_function"] == "RELU" and op.outputs == [out]
    assert (Fused.of(op).inner is not None) == (dtype is DType.INT8)


def test_addition_goes_into_the_later_product() -> None:
    net = Net()
    x = net.input("x", (1, 4, 4, 2))
    first = net.conv(x, net.tensor("first", (1, 4, 4, 3)))
    second = net.conv(x, net.tensor("second", (1, 4, 4, 3)), 3)
    graph = net.done(net.add("ADD", [first, second], net.tensor("y", (1, 4, 4, 3))))
    check(graph, fold_residuals)
    assert names(graph) == ["CONV_2D", "cpu.CONV_2D"]
    assert Inputs.of(graph.ops[1]).residual is first


def test_ones_in_front_do_not_matter() -> None:
    net = Net()
    x, other = net.input("x", (4, 2)), net.input("o", (1, 4, 3))
    w = net.weights("w", (3, 2), 0)
    y = net.add(
        "FULLY_CONNECTED", [x, w, None], net.tensor("f", (4, 3)), fused_activation_function="NONE"
    )
    graph = net.done(net.add("ADD", [y, other], net.tensor("y", (1, 4, 3))))
    check(graph, fold_residuals)
    assert names(graph) == ["cpu.FULLY_CONNECTED"]


def declined() -> list[tuple[str, Graph]]:
    cases = []
    net = Net()
    x = net.input("x", (1, 4, 4, 2))
    y = net.conv(x, net.tensor("c", (1, 4, 4, 2)), fused_activation_function="RELU")
    cases.append(("activation", net.done(net.add("ADD", [y, x], net.tensor("y", (1, 4, 4, 2))))))
    net = Net()
    x, o = net.input("x", (1, 4, 4, 2)), net.input("o", (1, 1, 1, 2))
    y = net.conv(x, net.tensor("c", (1, 4, 4, 2)))
    cases.append(("broadcast", net.done(net.add("ADD", [y, o], net.tensor("y", (1, 4, 4, 2))))))
    net = Net()
    x = net.input("x", (1, 4, 4, 2))
    y = net.conv(x, net.tensor("c", (1, 4, 4, 2)))
    cases.append(("wanted", net.done(net.add("ADD", [y, x], net.tensor("y", (1, 4, 4, 2))), y)))
    return cases


@pytest.mark.parametrize(
    ("name", "graph"), declined(), ids=lambda v: v if isinstance(v, str) else ""
)
def test_additions_that_stay(name: str, graph: Graph) -> None:
    check(graph, fold_residuals)
    assert names(graph) == ["CONV_2D", "ADD"]


# -- maps -----------------------------------------------------------------------------------------


def with_all(graph: Graph) -> PassReport:
    return prepare(graph, VNNI, legal)


def test_functions_go_into_the_product() -> None:
    net = Net()
    x = net.input("x", (1, 4, 4, 2))
    shape = (1, 4, 4, 3)
    y = net.conv(x, net.tensor("c", shape))
    s = net.add("LOGISTIC", [y], net.tensor("s", shape))
    swish = net.add("MUL", [y, s], net.tensor("m", shape))
    limit = net.graph.constant("limit", np.float32([-0.1]))
    graph = net.done(net.add("MAXIMUM", [swish, limit], net.tensor("y", shape)))
    check(graph, with_all)
    assert names(graph) == ["cpu.CONV_2D"]
    expr = Fused.of(graph.ops[0]).map
    v = np.float32([-3, -1, 0, 2])
    expected = np.maximum(v / (1 + np.exp(-v)), np.float32(-0.1))
    assert np.allclose(evaluate(expr, [v]), expected, atol=1e-6)


def test_a_map_of_two_only_where_kernels_take_it() -> None:
    net = Net()
    x, other = net.input("x", (1, 4, 4, 2)), net.input("o", (1, 4, 4, 3))
    shape = (1, 4, 4, 3)
    y = net.conv(x, net.tensor("c", shape))
    s = net.add("TANH", [y], net.tensor("s", shape))
    graph = net.done(net.add("ADD", [s, other], net.tensor("y", shape)))
    feeds = random_feeds(graph)
    expected = execute(graph, feeds, new_state())
    with_all(graph)
    taken = "CONV_2D" in EPILOGUE_OPS["map of two"]
    assert names(graph) == (["cpu.CONV_2D"] if taken else ["CONV_2D", "cpu.MAP"])
    fold_maps(graph, {**EPILOGUE_OPS, "map of two": frozenset({"CONV_2D"})})
    legal("maps", graph)
    [op] = graph.ops
    assert Inputs.of(op).residual is other
    assert not Fused.of(op).is_added
    agree(run_prepared(graph, feeds), expected)


def test_maps_that_vary_by_channel_stay() -> None:
    net = Net()
    x = net.input("x", (1, 4, 4, 2))
    y = net.conv(x, net.tensor("c", (1, 4, 4, 3)))
    slope = net.graph.constant("slope", np.float32([0.1, 0.2, 0.3]))
    graph = net.done(net.add("PRELU", [y, slope], net.tensor("y", (1, 4, 4, 3))))
    check(graph, with_all)
    assert names(graph) == ["CONV_2D", "cpu.MAP"]


def test_residual_comes_before_the_map() -> None:
    net = Net()
    x, other = net.input("x", (1, 4, 4, 2)), net.input("o", (1, 4, 4, 3))
    y = net.conv(x, net.tensor("c", (1, 4, 4, 3)))
    total = net.add("ADD", [y, other], net.tensor("t", (1, 4, 4, 3)))
    graph = net.done(net.add("TANH", [total], net.tensor("y", (1, 4, 4, 3))))
    check(graph, with_all)
    [op] = graph.ops
    assert Inputs.of(op).residual is other and Fused.of(op).is_added
    assert inputs_of(Fused.of(op).map) == {0: DType.FLOAT32}


# -- 8-bit types ----------------------------------------------------------------------------------


def unify(graph: Graph) -> None:
    unify_bytes(graph, VNNI)


def test_activations_are_one_type() -> None:
    net = Net(DType.INT8)
    x = net.input("x", (1, 4, 4, 2))
    y = net.conv(x, net.tensor("c", (1, 4, 4, 3)))
    bias = net.graph.constant("k", np.int8([-128, 0, 127]), quant=Quant.of(0.2, -128))
    total = net.add("ADD", [y, bias], net.tensor("t", (1, 4, 4, 3), zero=0))
    graph = net.done(net.add("MUL", [total, total], net.tensor("y", (1, 4, 4, 3), zero=-128)))
    check(graph, unify)
    assert names(graph) == ["cpu.FLIP", "CONV_2D", "ADD", "MUL", "cpu.FLIP"]
    assert x.dtype is DType.INT8 and graph.outputs[0].dtype is DType.INT8
    conv, add = graph.ops[1:3]
    assert conv.inputs[0].dtype is DType.UINT8 and conv.inputs[1].dtype is DType.INT8
    assert add.outputs[0].quant.zero_point[0] == 128
    assert add.inputs[1].data.tolist() == [0, 128, 255] and bias.data.tolist() == [-128, 0, 127]
    assert add.inputs[1].quant.zero_point[0] == 0


def test_weights_that_are_data_elsewhere() -> None:
    net = Net(DType.INT8)
    x = net.input("x", (4, 2))
    w = net.graph.constant("w", np.int8([[1, 2], [-3, 4]]), quant=Quant.of(0.1, 0))
    y = net.add(
        "FULLY_CONNECTED", [x, w, None], net.tensor("f", (4, 2)), fused_activation_function="NONE"
    )
    first = net.graph.constant("first", np.int32([0, 0]))
    z = net.add("GATHER", [w, first], net.tensor("z", (2, 2), zero=0), axis=0, batch_dims=0)
    graph = net.done(y, z)
    check(graph, unify)
    gather = next(op for op in graph.ops if op.name == "GATHER")
    assert w.dtype is DType.INT8 and gather.inputs[0].dtype is DType.UINT8


def test_ops_that_see_codes_as_they_are() -> None:
    net = Net(DType.INT8)
    x = net.input("x", (4,))
    a = net.add("ADD", [x, x], net.tensor("a", (4,)))
    f = net.graph.tensor("f", DType.FLOAT32, (4,))
    net.graph.add("CAST", [a], [f], in_data_type="INT8", out_data_type="FLOAT32")
    b = net.add("MUL", [a, a], net.tensor("b", (4,)))
    graph = net.done(f, b)
    check(graph, unify)
    cast = next(op for op in graph.ops if op.name == "CAST")
    assert cast.inputs[0].dtype is DType.INT8
    assert names(graph).count("cpu.FLIP") == 3  # x in, a for the cast, b out


def test_a_value_without_parameters_moves_with_its_data() -> None:
    net = Net(DType.INT8)
    x = net.input("x", (2,))
    amounts = net.graph.constant("amounts", np.int32([[1, 1]]))
    value = net.graph.constant("value", np.int8(-7))
    graph = net.done(net.add("PADV2", [x, amounts, value], net.tensor("y", (4,))))
    check(graph, unify)
    pad = next(op for op in graph.ops if op.name == "PADV2")
    assert pad.inputs[2].dtype is DType.UINT8 and int(pad.inputs[2].data) == 121


@pytest.mark.parametrize("mute", [0, 1])
def test_a_view_with_one_mute_side_keeps_its_codes(mute: int) -> None:
    net = Net(DType.INT8)
    x, y = net.input("x", (1, 6)), net.tensor("y", (6,))
    (x, y)[mute].quant = None
    graph = net.done(net.add("SQUEEZE", [x], y, squeeze_dims=None))
    check(graph, unify)
    assert names(graph) == ["SQUEEZE"]


def test_amounts_are_no_codes() -> None:
    net = Net(DType.INT8)
    x = net.input("x", (2,))
    amounts = net.graph.constant("amounts", np.int8([[1, 1]]))
    amounts.quant = Quant.of(0.5, 3)
    graph = net.done(net.add("PAD", [x, amounts], net.tensor("y", (4,))))
    check(graph, unify)
    pad = next(op for op in graph.ops if op.name == "PAD")
    assert pad.inputs[1].dtype is DType.INT8 and pad.inputs[1].data.tolist() == [[1, 1]]


def test_uint8_is_the_other_type_on_arm() -> None:
    net = Net(DType.UINT8)
    x = net.input("x", (4,))
    graph = net.done(net.add("ADD", [x, x], net.tensor("y", (4,), zero=200)))
    check(graph, lambda g: unify_bytes(g, NEON))
    assert graph.ops[1].outputs[0].dtype is DType.INT8
    assert graph.ops[1].outputs[0].quant.zero_point[0] == 72


def test_a_change_of_type_at_the_border_is_nothing() -> None:
    """What converters put around int8 models that take uint8 pictures."""
    graph = Graph()
    x = graph.input("x", DType.UINT8, (4,), quant=Quant.of(0.5, 128))
    a = graph.tensor("a", DType.INT8, (4,), quant=Quant.of(0.5, 0))
    b = graph.tensor("b", DType.INT8, (4,), quant=Quant.of(1.0, -128))
    y = graph.tensor("y", DType.UINT8, (4,), quant=Quant.of(1.0, 0))
    graph.add("QUANTIZE", [x], [a])
    graph.add("ADD", [a, a], [b], fused_activation_function="NONE")
    graph.add("QUANTIZE", [b], [y])
    graph.outputs = [y]
    feeds = random_feeds(graph)
    expected = execute(graph, feeds, new_state())
    report = with_all(graph)
    agree(run_prepared(graph, feeds), expected, units=1)
    assert names(graph) == ["cpu.MAP"] and report.fired["identity QUANTIZE"] == 2


# -- everything -----------------------------------------------------------------------------------


def byte_cases() -> list:
    """Conformance cases whose first operand is a quantised int8 activation."""
    rows = [c for c in CASES if c.build is None and c.inputs and c.inputs[0] is not None]
    return [
        c
        for c in rows
        if c.inputs[0].dtype == "i8"
        and c.inputs[0].quant is not None
        and c.inputs[0].quant.scale.size == 1
        and c.runs == 1
    ][::7]


@pytest.mark.parametrize("case", byte_cases(), ids=lambda c: c.id)
def test_ops_keep_their_meaning_as_uint8(case) -> None:  # type: ignore[no-untyped-def]
    """Whatever the cpu takes: legal, and within one unit of the definition."""
    found = case.model()
    if any(CpuDelegate("avx512vnni").refuses(op) for op in found.main.ops):
        return
    graph = special(found)
    feeds = case.arrays(found, RNG)
    expected = execute(graph, feeds, new_state())
    with_all(graph)
    legal("prepared", graph)
    assert [t.dtype for t in graph.outputs] == [t.dtype for t in found.main.outputs]
    if not any(op.name in SIGNED_BY_KERNEL for op in graph.ops):
        agree(run_prepared(graph, feeds), expected, units=1)


# The definition of these differs between int8 and uint8; their kernels know what they were.
SIGNED_BY_KERNEL = ("BATCH_MATMUL", "CONCATENATION", "SOFTMAX", "LOG_SOFTMAX",
                    "L2_NORMALIZATION", "MEAN", "SUM", "REDUCE_PROD")  # fmt: skip


def special(found: Model) -> Graph:
    return specialise(found.main, [t.shape for t in found.main.inputs])[0]


# Run by other means: state, control flow, labels that jump.
NOT_ALONE = ("CALL_ONCE", "IF", "UNIDIRECTIONAL_SEQUENCE_LSTM", "ARG_MAX")


@NEEDS
@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
def test_models_agree(path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    graph = special(load(path))
    feeds = random_feeds(graph)
    heavy = sum(cost(op).macs for op in graph.ops) > (4e8 if EVERYTHING else 1e8)
    compared = not heavy and not {op.name for op in graph.ops} & {*NOT_ALONE}
    expected = execute(graph, feeds, new_state()) if compared else []
    integer = any(t.dtype in (DType.INT8, DType.UINT8) for t in graph.tensors)
    monkeypatch.setattr(stage, "PASSES", EXACT if integer else FLOAT)
    prepare(graph, VNNI, legal)
    if compared:
        agree(run_prepared(graph, feeds), expected, units=1)


@NEEDS
def test_what_is_left_of_models() -> None:
    """The ops that remain, where passes matter most."""
    left = {name: prepared(name) for name in LEFT}
    for name, expected in LEFT.items():
        counts = Counter(op.name for op in left[name].ops)
        for op, count in expected.items():
            assert counts[op] <= count, (name, op, counts[op])


LEFT = {
    "yolox_nano_mask3_nchw_f16": {"TRANSPOSE": 1, "PAD": 0, "DEQUANTIZE": 0, "cpu.MAP": 37},
    "openwakeword_embedding_f32": {"PAD": 0, "LEAKY_RELU": 0, "cpu.MAP": 0},
    "coral_tf2_mobilenet_v2_1.0_224_ptq": {"ADD": 0, "cpu.MAP": 0, "QUANTIZE": 0, "cpu.FLIP": 0},
    "efficientnet_lite0_224_f32": {"ADD": 0, "cpu.MAP": 0},
    "mediapipe_face_detection_full_range_f16sparse": {"DENSIFY": 0, "DEQUANTIZE": 0},
    "minilm_l6_v2_vocab4927_f16": {"DEQUANTIZE": 0, "GELU": 0},
}


def prepared(name: str) -> Graph:
    graph = special(load(model(name)))
    prepare(graph, VNNI)
    return graph


@NEEDS
def test_prepare_is_fast() -> None:
    """These passes (not the making of expressions) take 100 ms for 400 ops at most."""
    best = np.inf
    for _ in range(3):
        graph = special(load(model("yolox_nano_416_coco_f32")))
        start = time.process_time()
        for run in (fold_padding, fold_residuals, unify, fold_maps):
            run(graph)
        best = min(best, time.process_time() - start)
    assert best < 0.05


def test_the_passes_are_named() -> None:
    report = prepare(Graph(), VNNI)
    listed = [row[0] for row in report.rows]
    assert listed[-len(NAMES) :] == [n.replace("_", " ") for n in NAMES]
    assert "unify bytes: 0" in report.table()


@pytest.mark.parametrize("target", ["avx2", "avx512vnni", "neondot"])
@pytest.mark.parametrize("name", ["CONV_2D", "DEPTHWISE_CONV_2D"])
@pytest.mark.parametrize("dtype", [DType.UINT8, DType.INT8])
def test_scales_multiply_as_the_file_s_types_do(dtype: DType, name: str, target: str) -> None:
    """The product of two scales is a float32 for uint8 and a float64 for int8, whatever type the
    target keeps activations in."""
    graph = Graph("main")
    scales = np.float32(0.1), np.float32(0.3), np.float32(0.7)
    zero = 128 if dtype is DType.UINT8 else 0
    x = graph.input("x", dtype, (1, 4, 4, 8), quant=Quant.of(scales[0], zero))
    shape = (8, 1, 1, 8) if name == "CONV_2D" else (1, 3, 3, 8)
    w = graph.constant("w", np.full(shape, 3, dtype.numpy), quant=Quant.of(scales[1], zero))
    y = graph.tensor("y", dtype, (1, 4, 4, 8), quant=Quant.of(scales[2], zero))
    more = {} if name == "CONV_2D" else {"depth_multiplier": 1}
    graph.add(name, [x, w], [y], **STRIDE, **more, padding="SAME")
    graph.outputs = [y]
    wide = np.float64(scales[0]) * np.float64(scales[1])
    product = np.float64(scales[0] * scales[1]) if dtype is DType.UINT8 else wide
    prepare(graph, find(target), legal)
    (made,) = [op for op in graph.ops if operator(op) == name]
    find_scales = multiplier if name == "CONV_2D" else depthwise_scales
    assert np.unique(find_scales(made)) == product / np.float64(scales[2])
    assert np.float64(scales[0] * scales[1]) != wide, "the test could not tell"


def depthwise_scales(op: Op) -> Array:
    return depthwise._scales(op, depthwise.depthwise_conv(op))

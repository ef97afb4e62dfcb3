"""Products without their zeros: every structure and type against the reference and the dense
kernels, the decision, what is told of it, and the switch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sanderling.delegates.cpu.build import describe
from sanderling.delegates.cpu.delegate import CpuDelegate, build, lower
from sanderling.delegates.cpu.isa.targets import TARGETS, host_target
from sanderling.delegates.cpu.kernels.products import zeros
from sanderling.delegates.cpu.kernels.products.cores import FloatCore
from sanderling.delegates.cpu.kernels.products.sparse_plan import (
    Cut,
    Packing,
    best_cut,
    cuts,
    cycles,
    units_of,
    used_units,
)
from sanderling.delegates.cpu.kernels.products.zeros import Judgement, judge, sparse_threshold
from sanderling.delegates.cpu.runtime.executable import CpuExecutable
from sanderling.errors import InputError
from sanderling.ir import Array, DType, Graph, Op, Quant, Tensor
from sanderling.ops.execute import execute, new_state
from tests.support.aarch64_qemu import run_aarch64
from tests.support.cpu_conformance import TARGET_NAMES, cpu_for

HOST = host_target()
SAME: dict[str, Any] = {"padding": "SAME", "stride_h": 1, "stride_w": 1}
STRIDED: dict[str, Any] = {"padding": "SAME", "stride_h": 2, "stride_w": 2}
Shape = tuple[int, ...]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the estimates say."""
    monkeypatch.setattr(Judgement, "pays", property(lambda self: self.sparse is not None))


# -- layers ---------------------------------------------------------------------------------------


def kept(shape: Shape, structure: str, share: float, rng: np.random.Generator) -> Array:
    """Which weights are not zero: [n, k]."""
    n, k = shape[0], int(np.prod(shape[1:]))
    if structure == "2:4":
        order = rng.random((n, -(-k // 4), 4)).argsort(axis=2)
        found: Array = (order < 2).reshape(n, -1)[:, :k]
        return found
    rows, columns = map(int, structure.split("x"))
    blocks = rng.random((-(-n // rows), -(-k // columns))) >= share
    found = blocks.repeat(rows, 0).repeat(columns, 1)[:n, :k]
    return found


def layer(
    kind: str,
    x: Shape,
    w: Shape,
    structure: str = "1x1",
    share: float = 0.8,
    act: str = "RELU6",
    residual: bool = False,
    **attrs: Any,
) -> Graph:
    """One product, with an addition behind it if there is a residual."""
    graph, rng = Graph("main"), np.random.default_rng(7)
    mask = kept(w, structure, share, rng).reshape(w)
    name = "CONV_2D" if len(w) == 4 else "FULLY_CONNECTED"
    attrs = {**(SAME if len(w) == 4 else {}), **attrs, "fused_activation_function": act}
    if kind == "f32":
        data = graph.input("x", DType.FLOAT32, x)
        weights = graph.constant("w", rng.normal(size=w).astype(np.float32) * mask)
        bias = graph.constant("b", rng.normal(size=w[0]).astype(np.float32))
        outs = {"dtype": DType.FLOAT32, "quant": None}
    else:
        scales = rng.uniform(0.002, 0.02, w[0]).astype(np.float32)
        hybrid = kind == "hybrid"
        data = graph.input(
            "x",
            DType.FLOAT32 if hybrid else DType.INT8,
            x,
            quant=None if hybrid else Quant.of(0.03, -5),
        )
        codes = rng.integers(-127, 128, w).astype(np.int8) * mask.astype(np.int8)
        weights = graph.constant("w", codes, quant=Quant.of(scales))
        whole = rng.integers(-2000, 2000, w[0]).astype(np.int32)
        bias = graph.constant("b", whole, quant=Quant.of(scales * np.float32(0.03)))
        outs = {"dtype": DType.INT8, "quant": Quant.of(0.2, 3)}
        if hybrid:
            bias = graph.constant("b", rng.normal(size=w[0]).astype(np.float32))
            outs = {"dtype": DType.FLOAT32, "quant": None}
    stride = attrs.get("stride_h", 1)
    size = (x[0], -(-x[1] // stride), -(-x[2] // stride), w[0]) if len(w) == 4 else (*x[:-1], w[0])
    y = graph.tensor("y", shape=size, **outs)
    graph.add(name, [data, weights, bias], [y], **attrs)
    if residual:
        other = graph.input("r", outs["dtype"], size, quant=outs["quant"])
        y2 = graph.tensor(
            "z", shape=size, dtype=outs["dtype"], quant=outs["quant"] and Quant.of(0.25, -2)
        )
        graph.add("ADD", [y, other], [y2], fused_activation_function="NONE")
        y = y2
    graph.outputs = [y]
    return graph


def feeds(graph: Graph) -> list[Array]:
    rng = np.random.default_rng(3)
    return [
        rng.normal(size=t.shape).astype(np.float32)
        if t.dtype is DType.FLOAT32
        else rng.integers(-128, 128, t.shape).astype(np.int8)
        for t in graph.inputs
    ]


def compiled(graph: Graph, target: str | None, sparse: bool, **options: Any) -> Any:
    return build(cpu_for(target, sparse=sparse, **options), copied(graph))


def copied(graph: Graph) -> Graph:
    from sanderling.ir.graph import copy_graph

    return copy_graph(graph, graph.ops, graph.inputs, graph.outputs)[0]


def ran(made: Any, graph: Graph, given: list[Array], threads: int = 1) -> list[Array]:
    outs = [np.zeros(t.shape, t.dtype.numpy) for t in graph.outputs]
    CpuExecutable(made, threads).run(given, outs)
    return outs


def check(graph: Graph, target: str | None = None, threads: tuple[int, ...] = (1,)) -> None:
    """Sparse against dense, and against the definition."""
    given = feeds(graph)
    made = compiled(graph, target, True)
    assert any("_sparse" in step for step in made.steps), made.steps
    dense = ran(compiled(graph, target, False), graph, given)
    expected = execute(graph, given, new_state())
    first = ran(made, graph, given)
    for ours, plain, real in zip(first, dense, expected, strict=True):
        if ours.dtype == np.float32:
            limit = 1e-5 * np.abs(real).max()
            assert np.abs(ours - plain).max() <= limit and np.abs(ours - real).max() <= limit
        else:
            assert np.array_equal(ours, plain)
            assert np.abs(ours.astype(int) - real).max() <= 1
    for count in threads:
        again = ran(made, graph, given, count)
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True)), count


# -- answers --------------------------------------------------------------------------------------

# Fewer and more pixels than a tile has, with and without remainder; lists in several chunks; few
# and odd numbers of channels; windows; several images.
SHAPES: list[tuple[Shape, Shape, dict[str, Any]]] = [
    ((1, 7, 7, 96), (40, 1, 1, 96), SAME),
    ((1, 5, 5, 37), (19, 1, 1, 37), SAME),
    ((1, 29, 31, 24), (41, 1, 1, 24), SAME),
    ((1, 4, 4, 8), (3, 1, 1, 8), SAME),
    ((1, 9, 9, 1400), (24, 1, 1, 1400), SAME),
    ((2, 12, 9, 16), (24, 3, 3, 16), SAME),
    ((1, 17, 19, 6), (8, 5, 3, 6), STRIDED),
    ((1, 14, 14, 12), (20, 3, 3, 12), SAME | {"dilation_w_factor": 2, "dilation_h_factor": 3}),
    ((50, 33), (21, 33), {}),
    ((3, 10, 64), (30, 64), {"keep_num_dims": True}),
]
STRUCTURES = ("1x1", "2:4", "1x4", "4x1", "4x4", "16x4")


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", ["f32", "i8"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s[0])))
def test_shapes(shape: tuple[Shape, Shape, dict[str, Any]], kind: str) -> None:
    x, w, attrs = shape
    check(layer(kind, x, w, **attrs), threads=(2, 3, 4))


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", ["f32", "i8", "hybrid"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_structures(structure: str, kind: str) -> None:
    check(layer(kind, (1, 9, 11, 48), (36, 1, 1, 48), structure, share=0.7))


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", ["f32", "i8"])
@pytest.mark.parametrize("act", ["NONE", "RELU6"])
def test_what_dense_kernels_fuse(kind: str, act: str) -> None:
    graph = layer(kind, (1, 8, 8, 32), (24, 1, 1, 32), act="NONE", residual=True)
    graph.ops[-1].attrs["fused_activation_function"] = act
    assert any("residual" in row["fused"] for row in steps(graph))
    check(graph, threads=(2,))


@pytest.mark.usefixtures("always")
def test_maps_and_padding_are_fused() -> None:
    graph, rng = Graph("main"), np.random.default_rng(1)
    x = graph.input("x", DType.FLOAT32, (1, 6, 6, 16))
    around = graph.constant("p", np.array([[0, 0], [1, 1], [1, 1], [0, 0]], np.int32))
    wide = graph.tensor("wide", DType.FLOAT32, (1, 8, 8, 16))
    graph.add("PAD", [x, around], [wide])
    values = rng.normal(size=(12, 1, 1, 16)) * (rng.random((12, 1, 1, 16)) > 0.8)
    y = graph.tensor("y", DType.FLOAT32, (1, 8, 8, 12))
    bias = graph.constant("b", rng.normal(size=12).astype(np.float32))
    graph.add(
        "CONV_2D",
        [wide, graph.constant("w", values.astype(np.float32)), bias],
        [y],
        fused_activation_function="NONE",
        **{**SAME, "padding": "VALID"},
    )
    z = graph.tensor("z", DType.FLOAT32, y.shape)
    graph.add("TANH", [y], [z])
    graph.outputs = [z]
    check(graph)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("target", [t for t in TARGET_NAMES if t != HOST.name])
@pytest.mark.parametrize("kind", ["f32", "i8"])
def test_other_targets(target: str, kind: str) -> None:
    """Emulated, or in qemu, or compiled."""
    graph = layer(kind, (1, 7, 8, 20), (18, 1, 1, 20), share=0.6)
    delegate = cpu_for(target, sparse=True)
    made = build(delegate, copied(graph))
    assert any("_sparse" in step for step in made.steps)
    given = feeds(graph)
    [expected] = execute(graph, given, new_state())
    if delegate.target.triple == HOST.triple:
        [ours] = ran(made, graph, given)
    else:
        ours = np.zeros_like(expected)
        try:
            run_aarch64(made, given, [ours])
        except (OSError, FileNotFoundError):
            pytest.skip("qemu is not installed")
    gap = np.abs(ours.astype(np.float64) - expected).max()
    assert gap <= (1 if kind == "i8" else 1e-5 * np.abs(expected).max())


@pytest.mark.usefixtures("always")
def test_nothing_is_touched_that_is_not_its_own() -> None:
    for kind in ("f32", "i8"):
        graph = layer(kind, (1, 5, 7, 21), (17, 1, 1, 21))
        given = feeds(graph)
        made = compiled(graph, None, True, checked=True)
        expected = ran(compiled(graph, None, True), graph, given)
        assert np.array_equal(ran(made, graph, given)[0], expected[0])


@pytest.mark.usefixtures("always")
def test_layers_without_any_weight_and_channels_without_any() -> None:
    graph = layer("f32", (1, 6, 6, 16), (20, 1, 1, 16), share=0.9)
    w = graph.ops[0].operand(1)
    for rows in (slice(3, 9), slice(None)):
        data = w.values.copy()
        data[rows] = 0
        w.data = data
        check(graph)


@pytest.mark.usefixtures("always")
def test_zeros_leave_out_what_is_no_number() -> None:
    """A dense product makes NaN of infinity times zero; XNNPACK's sparse one does not, either."""
    graph = layer("f32", (1, 5, 5, 32), (16, 1, 1, 32), share=0.7, act="NONE")
    w = graph.ops[0].operand(1)
    data = w.values.copy()
    data[:, :, :, 5] = 0
    w.data = data
    [x] = feeds(graph)
    expected = ran(compiled(graph, None, True), graph, [x])
    x[..., 5] = np.inf
    assert np.array_equal(ran(compiled(graph, None, True), graph, [x])[0], expected[0])


# -- packing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("together", [1, 2, 4])
@pytest.mark.parametrize("bundle", [1, 2, 4])
def test_lists_hold_every_weight_once(together: int, bundle: int) -> None:
    rng = np.random.default_rng(together * 10 + bundle)
    matrix = (rng.normal(size=(37, 50)) * (rng.random((37, 50)) > 0.8)).astype(np.float32)
    assert np.signbit(matrix[matrix == 0]).any()
    cut = Cut(64, 37, 50, 16, together, bundle, 4, 20, 48)
    lists = Packing(cut, units_of(FloatCore(), matrix)).lists()
    found = np.zeros((48 + bundle * together, 50), np.float32)
    for chunk, (first, last) in enumerate(lists.ranges):
        for rounds, start, *sums in lists.table[first:last]:
            stream = lists.stream[start : start + rounds * cut.round_bytes]
            rows = stream.reshape(rounds, cut.round_bytes)
            places = rows[:, : 2 * bundle].copy().view(np.uint16).astype(int) * 8 // cut.pitch
            weights = rows[:, cut.place_bytes :].copy().view(np.float32)
            assert (places // cut.chunk == chunk % cut.chunks).all()
            for lane in range(bundle):
                channel = sums[lane] // cut.pitch
                for r in range(together):
                    values = weights[:, lane * together + r]
                    np.add.at(found[channel + r], places[:, lane], values)
    assert np.array_equal(found[:37], matrix) and not found[37:].any()
    assert sum(lists.table[:, 0]) * bundle < 3 * np.count_nonzero(matrix)


def test_cuts_fit_registers_and_sixteen_bits() -> None:
    for target in TARGETS.values():
        for m, n, units in ((49, 320, 1152), (12544, 16, 32), (100, 1, 9000), (17, 3, 5)):
            for cut in cuts(target, m, n, units):
                used = cut.vectors * cut.together * cut.bundle + cut.together
                assert used < target.registers and cut.units * cut.pitch <= 8 << 16
                assert cut.span % cut.together == cut.span % cut.lanes == 0
                assert cut.tiles * cut.vectors * cut.lanes >= m


# -- the decision ---------------------------------------------------------------------------------


def product(graph: Graph) -> Op:
    return graph.ops[0]


def test_more_zeros_cost_less() -> None:
    target, core = TARGETS["avx2"], FloatCore()
    rng = np.random.default_rng(0).random((64, 128))
    masks = [used_units(core, rng >= share) for share in (0.3, 0.6, 0.9)]
    found = [best_cut(target, core, mask, 196) for mask in masks]
    costs = [pair[0] for pair in found if pair is not None]
    assert costs == sorted(costs, reverse=True) and len(set(costs)) == 3
    assert best_cut(target, FloatCore(), rng >= 0.9, target.lanes - 1) is None
    cut = next(cuts(target, 196, 64, 128))
    assert cycles(cut, 100, 1.0) < cycles(cut, 200, 1.0) <= cycles(cut, 200, 2.0)


@pytest.mark.parametrize("target", ["avx512vnni", "avx2", "neondot", "i8mm"])
def test_layers_of_networks_are_decided(target: str) -> None:
    found = {}
    for share in (0.0, 0.2, 0.8):
        op = product(layer("f32", (1, 14, 14, 112), (672, 1, 1, 112), share=share))
        judged = judge(op, TARGETS[target])
        found[share] = judged is not None and judged.pays
    assert found == {0.0: False, 0.2: False, 0.8: True}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", ["f32", "i8", "hybrid"])
@pytest.mark.parametrize("target", TARGETS)
def test_every_target_compiles_what_it_judges(target: str, kind: str) -> None:
    """Lists hold words: arithmetic of 16-bit units (plain NEON's) has no sparse kernel."""
    made = build(cpu_for(target, sparse=True), layer(kind, (1, 7, 8, 20), (18, 1, 1, 20)))
    plain = target == "neon" and kind != "f32"
    assert plain or any("_sparse" in step for step in made.steps)


def test_dense_products_are_not_judged() -> None:
    assert judge(product(layer("f32", (1, 8, 8, 16), (16, 1, 1, 16), share=0.0)), HOST) is None
    few = product(layer("f32", (1, 2, 2, 64), (64, 1, 1, 64), share=0.9))
    found = judge(few, TARGETS["avx512"])
    assert found is not None and not found.pays and "no sparse kernel" in str(found)


def test_winograd_is_what_a_window_competes_with() -> None:
    graph = layer("f32", (1, 28, 28, 64), (64, 3, 3, 64), share=0.67)
    found = judge(product(graph), TARGETS["avx512"])
    plain = zeros.plain_cycles(TARGETS["avx512"], zeros.window(product(graph)), 64)
    assert found is not None and found.dense < 0.7 * plain and not found.pays


def test_thresholds() -> None:
    op = product(layer("f32", (1, 14, 14, 112), (672, 1, 1, 112), share=0.0))
    single = sparse_threshold(op, TARGETS["avx2"])
    blocks = sparse_threshold(op, TARGETS["avx2"], (4, 1))
    assert single is not None and blocks is not None and 0.3 <= blocks <= single <= 0.7
    codes = product(layer("i8", (1, 14, 14, 112), (672, 1, 1, 112), share=0.0))
    row = TARGETS["avx512vnni"]
    fours, loose = sparse_threshold(codes, row, (1, 4)), sparse_threshold(codes, row)
    assert fours is not None and (loose is None or fours < loose)
    assert sparse_threshold(product(layer("f32", (1, 100), (10, 100)))) is None
    soft = Op("SOFTMAX", [Tensor("x", DType.FLOAT32, (1, 4))], [Tensor("y", DType.FLOAT32, (1, 4))])
    assert sparse_threshold(soft) is None


# -- what is told, and the switch -----------------------------------------------------------------


def steps(graph: Graph, **options: Any) -> list[dict[str, str]]:
    return describe(lower(copied(graph), cpu_for(**options))[0])


def test_the_report_says_what_was_taken_and_why() -> None:
    [row] = steps(layer("f32", (1, 14, 14, 64), (96, 1, 1, 64), share=0.85), target="avx2")
    assert row["kernel"] == "conv_2d_sparse" and "zeros left out" in row["fused"]
    assert row["zeros"].startswith("85% zeros, sparse: estimate ")
    [row] = steps(layer("f32", (1, 14, 14, 64), (96, 1, 1, 64), share=0.32), target="avx2")
    assert row["kernel"] == "conv_2d" and " zeros, dense: estimate " in row["zeros"]
    [row] = steps(layer("f32", (1, 14, 14, 64), (96, 1, 1, 64), share=0.1), target="avx2")
    assert row["zeros"] == ""


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = layer("f32", (1, 14, 14, 64), (96, 1, 1, 64), share=0.85)
    [row] = steps(graph, target="avx2", sparse=False)
    assert row["kernel"] == "conv_2d" and row["zeros"] == ""
    monkeypatch.setenv("SANDERLING_SPARSE", "0")
    [row] = steps(graph, target="avx2")
    assert row["kernel"] == "conv_2d"
    assert CpuDelegate(sparse=True).target.sparse and not CpuDelegate().target.sparse
    monkeypatch.setenv("SANDERLING_SPARSE", "perhaps")
    with pytest.raises(InputError, match="neither on nor off"):
        CpuDelegate()
    assert not CpuDelegate(sparse=True).configure({"sparse": False}).target.sparse


def test_both_kinds_are_kept_apart() -> None:
    on, off = CpuDelegate(sparse=True), CpuDelegate(sparse=False)
    graph = layer("f32", (1, 8, 8, 32), (32, 1, 1, 32))
    assert on._key(graph, on.target, False) != off._key(graph, off.target, False)
    assert on.identity != off.identity or on.identity is None

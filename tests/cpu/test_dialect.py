"""The compiler's own ops: their table, the rules of the record, its words, and that compiled code
does what the definitions say of everything that passes fuse."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from sanderling.delegates.cpu.delegate import build
from sanderling.delegates.cpu.dialect import verify
from sanderling.delegates.cpu.dialect.chains import CHAINS, unchained
from sanderling.delegates.cpu.dialect.fused import (
    BF16,
    DYNAMIC,
    FUSED,
    NOTHING,
    RESIDUAL,
    TABLE,
    Fused,
    Inputs,
    fuse,
    operator,
    unfused,
    where,
)
from sanderling.delegates.cpu.dialect.guards import GUARD
from sanderling.delegates.cpu.dialect.ops import OWN_OPS
from sanderling.delegates.cpu.isa.targets import find, host_target
from sanderling.delegates.cpu.kernels.depthwise import with_pointwise
from sanderling.delegates.cpu.passes.pipeline import prepare
from sanderling.delegates.cpu.runtime.executable import CpuExecutable
from sanderling.delegates.cpu.table import KERNELS
from sanderling.errors import DelegateError
from sanderling.ir import Array, DType, Graph, Op, Quant, Tensor
from sanderling.ir.expr import Input, apply, cast
from sanderling.ir.verify import problems
from sanderling.ops.execute import execute, new_state
from tests.support.cpu_conformance import cpu_for
from tests.support.prepared_graphs import run_prepared

HOST, NEON = host_target().name, find("neondot")
X = Input(0, DType.FLOAT32)
PADDING = (1, 2, 0, 1)
WINDOW = {
    "padding": "VALID",
    "stride_h": 1,
    "stride_w": 1,
    "dilation_h_factor": 1,
    "dilation_w_factor": 1,
}
PLAIN = {"fused_activation_function": "NONE"}


# -- the table and the words ----------------------------------------------------------------------


def test_every_own_op_has_a_kernel_and_a_meaning() -> None:
    assert set(OWN_OPS) == {name for name in KERNELS if name.startswith("cpu.")}
    assert all(row.meaning and row.operands for row in OWN_OPS.values())
    assert Inputs._fields[RESIDUAL] == "residual" and Inputs._fields[TABLE] == "table"


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (NOTHING, "nothing"),
        (Fused(padding=PADDING), "padding top 1, bottom 2, left 0, right 1"),
        (Fused(residual=True), "plus residual"),
        (
            Fused(residual=True, inner=(0.25, 3)),
            "product in codes of scale 0.25, zero point 3; plus residual",
        ),
        (Fused(residual=True, map=apply("tanh", X)), "plus residual; then .*tanh.*"),
        (Fused(residual=True, map=X * Input(1, DType.FLOAT32)), "then .*"),
        (Fused(precision=BF16), "in bf16"),
        (Fused(precision=DYNAMIC), "data quantised on the fly"),
        (Fused(signed=True), "codes were int8"),
        (Fused(zeros=True), "zeros left out"),
    ],
)
def test_records_print_in_plain_words(record: Fused, text: str) -> None:
    assert re.fullmatch(text, str(record)), str(record)


def test_users_are_told_of_the_operator() -> None:
    op = fused_product()
    assert operator(op) == "CONV_2D" and op.name == "cpu.CONV_2D"
    assert where(op) == unfused(op).where == "CONV_2D 'y'"
    assert FUSED not in unfused(op).attrs and len(unfused(op).inputs) == 3


# -- the rules ------------------------------------------------------------------------------------


def fused_product(kind: DType = DType.FLOAT32, **record: Any) -> Op:
    """CONV_2D with a residual, in no graph."""
    scales = None if kind is DType.FLOAT32 else Quant.of(0.1, 1)
    x, r, y = (Tensor(n, kind, (1, 4, 4, 8), quant=scales) for n in "xry")
    w = Tensor("w", kind, (8, 1, 1, 8), quant=scales)
    given: dict[str, Any] = {"residual": True}
    given |= {} if scales is None else {"inner": (0.2, 3)}
    return fuse(Op("CONV_2D", [x, w, None, r], [y], {**WINDOW, **PLAIN}), **{**given, **record})


def without(op: Op, name: str) -> Op:
    del op.attrs[name]
    return op


def with_tensor(op: Op, place: int, tensor: Tensor | None) -> Op:
    op.inputs[place] = tensor
    return op


def small(shape: Sequence[int] = (1, 4, 4, 8), dtype: DType = DType.FLOAT32) -> Tensor:
    return Tensor("t", dtype, shape)


def guarded(guard: Any) -> Op:
    """An op of the schema under a guard."""
    return Op("ABS", [small()], [small()], {GUARD: guard})


# An op that breaks a rule, and what is said of it.
BROKEN: list[tuple[Callable[[], Op], str]] = [
    (lambda: without(fused_product(), "stride_h"), "left to a default"),
    (lambda: with_tensor(fused_product(residual=False), RESIDUAL, None), "says nothing"),
    (lambda: fused_product(padding=(0, 0, -1, 0)), "padding does not go"),
    (lambda: fused_product(padding=PADDING), "not the size"),
    (lambda: fused_product(residual=False), "disagree"),
    (lambda: fused_product(precision=DYNAMIC), "disagree"),
    (lambda: with_tensor(fused_product(), RESIDUAL, small((1, 4, 4, 1))), "residual has not"),
    (lambda: with_tensor(fused_product(), RESIDUAL, small(dtype=DType.INT8)), "residual has not"),
    (lambda: fused_product(DType.INT8, inner=None), "scale and zero point"),
    (lambda: fused_product(DType.INT8, inner=(0.2, 300)), "scale and zero point"),
    (lambda: fused_product(inner=(0.2, 3)), "scale and zero point"),
    (lambda: fused_product(DType.INT8, map=X), "map is not"),
    (lambda: fused_product(map=Input(2, DType.FLOAT32)), "map is not"),
    (lambda: fused_product(map=cast(X, DType.INT32)), "map is not"),
    (lambda: fused_product(precision="f8"), "precision"),
    (lambda: fused_product(DType.INT8, precision=BF16), "precision"),
    (lambda: fused_product(signed=True), "were not int8"),
    (lambda: fused_product(zeros=True), "zeros cannot be left out"),
    (lambda: guarded(()), "its guard"),
    (lambda: guarded(small()), "its guard"),
    (lambda: guarded(((small((), DType.INT32), True),)), "its guard"),
    (lambda: guarded(((small((2,), DType.BOOL), True),)), "its guard"),
    (lambda: guarded(((small((), DType.BOOL), 1),)), "its guard"),
    (lambda: Op("cpu.NONE", [], []), "no such op"),
    (lambda: Op("CONV_2D", [], [], {FUSED: Fused(residual=True)}), "operator of the schema"),
    (lambda: Op("cpu.CONV_2D", [small()], [small()], {FUSED: NOTHING}), "1 operands"),
    (lambda: Op("cpu.FLIP", [small()], []), "0 results"),
    (lambda: Op("cpu.LUT", [small()], [small()]), "no attribute 'table'"),
    (lambda: Op("cpu.LUT", [small()], [small()], {"table": np.zeros(2)}), "8-bit codes"),
    (lambda: Op("cpu.FLIP", [small()], [small()]), "8-bit type"),
    (lambda: Op("cpu.MAP", [small(dtype=DType.INT8)], [small()], {"expr": X}), "reads operand 0"),
    (lambda: Op("cpu.DW_PW", [small()] * 5, [small()], {"chain": None}), "not those of its name"),
]


@pytest.mark.parametrize(("make", "text"), BROKEN, ids=[text for _, text in BROKEN])
def test_rules(make: Callable[[], Op], text: str) -> None:
    assert any(text in what for what in verify.wrong(make()))


def test_every_rule_of_the_record_is_tried() -> None:
    said = {what for make, _ in BROKEN for what in verify.wrong(make())}
    assert {rule.what for rule in verify.FUSED_RULES} <= said
    for kind in (DType.FLOAT32, DType.INT8):
        assert list(verify.wrong(fused_product(kind))) == []


def test_guards_are_rows_of_conditions() -> None:
    one = small((1,), DType.BOOL)
    assert not list(verify.wrong(guarded(((one, True), (one, False)))))


def test_a_broken_pass_is_named() -> None:
    graph = Graph("main")
    graph.insert(fused_product(precision="f8"))
    with pytest.raises(DelegateError, match="after 'some pass': its precision"):
        verify.check(graph, "some pass")


# -- compiled code and the definitions ------------------------------------------------------------

Make = Callable[[], Graph]


class Maker:
    """A graph of products on one input, each with something before or behind it to be fused."""

    def __init__(self, name: str, kind: str) -> None:
        self.name, self.kind = name, kind
        self.graph, self.rng = Graph("main"), np.random.default_rng(7)
        self.dtype = DType.parse(kind) if kind in ("i8", "u8") else DType.FLOAT32
        self.matrix = name == "FULLY_CONNECTED"
        self.x = self.input("x", (5, 16) if self.matrix else (1, 6, 5, 8))

    def quant(self, scale: float, zero: int) -> Quant | None:
        if self.dtype is DType.FLOAT32:
            return None
        return Quant.of(scale, zero + 128 * (self.dtype is DType.UINT8))

    def input(self, name: str, shape: Sequence[int]) -> Tensor:
        return self.graph.input(name, self.dtype, shape, quant=self.quant(0.1, 4))

    def tensor(self, shape: Sequence[int], scale: float = 0.2, zero: int = -3) -> Tensor:
        name = f"t{len(self.graph.tensors)}"
        return self.graph.tensor(name, self.dtype, shape, quant=self.quant(scale, zero))

    def weights(self, shape: tuple[int, ...], axis: int) -> Tensor:
        name = f"w{len(self.graph.tensors)}"
        if self.kind in ("f32", "bf16"):
            return self.graph.constant(name, self.rng.normal(size=shape).astype(np.float32))
        if self.kind == "u8":
            codes = self.rng.integers(0, 256, shape).astype(np.uint8)
            return self.graph.constant(name, codes, quant=Quant.of(0.005, 120))
        codes = self.rng.integers(-127, 128, shape).astype(np.int8)
        scales = self.rng.uniform(0.003, 0.006, shape[axis])
        return self.graph.constant(name, codes, quant=Quant.of(scales, 0, axis))

    def padded(self) -> Tensor:
        top, bottom, left, right = PADDING
        amounts = self.graph.constant("pads", np.int32([[0, 0], PADDING[:2], PADDING[2:], [0, 0]]))
        _, h, w, c = self.x.shape
        out = self.tensor((1, h + top + bottom, w + left + right, c), 0.1, 4)
        self.graph.add("PAD", [self.x, amounts], [out])
        return out

    def multiplied(self, x: Tensor) -> Tensor:
        deep = self.name == "DEPTHWISE_CONV_2D"
        shape = (8, 16) if self.matrix else (1, 3, 3, 8) if deep else (8, 3, 3, 8)
        w = self.weights(shape, 3 if deep else 0)
        attrs: dict[str, Any] = PLAIN if self.matrix else {**WINDOW, **PLAIN}
        attrs = {**attrs, "depth_multiplier": 1} if deep else attrs
        _, h, *_ = x.shape
        out = self.tensor((5, 8) if self.matrix else (1, h - 2, x.shape[2] - 2, 8))
        self.graph.add(self.name, [x, w], [out], **attrs)
        return out

    def behind(self, epilogue: str, y: Tensor) -> Tensor:
        for step in epilogue.split():
            out = self.tensor(y.shape, 0.25, 5)
            if step == "tanh":
                self.graph.add("TANH", [y], [out])
            else:
                other = self.input(f"o{len(self.graph.inputs)}", y.shape)
                act = {"fused_activation_function": "RELU" if step == "ADD" else "NONE"}
                self.graph.add(step, [other, y], [out], **act)
            y = out
        return y


# What stands behind a product, and what it becomes: (residual, added, map).
EPILOGUES = {
    "": (False, False, False),
    "ADD": (True, True, False),
    "ADD tanh": (True, True, True),
    "tanh": (False, False, True),
    "tanh MUL": (True, False, True),
}
OF_CODES = ("", "ADD")


def ways(name: str, kind: str) -> list[tuple[bool, str]]:
    """With and without padding, and what is behind: all that passes fuse."""
    epilogues = OF_CODES if kind in ("i8", "u8") else tuple(EPILOGUES)
    if kind in ("i8", "u8") and name == "DEPTHWISE_CONV_2D":
        epilogues = ("",)
    pads = (False,) if name == "FULLY_CONNECTED" else (False, True)
    return list(product(pads, epilogues))


def products(name: str, kind: str) -> Graph:
    m = Maker(name, kind)
    padded = None if m.matrix else m.padded()
    for pads, epilogue in ways(name, kind):
        source = padded if pads and padded is not None else m.x
        m.graph.outputs.append(m.behind(epilogue, m.multiplied(source)))
    return m.graph


def expected(name: str, kind: str) -> set[tuple[Any, ...]]:
    precision = {"dynamic": DYNAMIC, "bf16": BF16}.get(kind, "")
    return {
        (PADDING if pads else None, *EPILOGUES[epilogue], precision)
        for pads, epilogue in ways(name, kind)
    }


def said(op: Op) -> tuple[Any, ...]:
    record = Fused.of(op)
    behind = (record.residual, record.is_added, record.map is not None)
    return record.padding, *behind, record.precision


def feeds(graph: Graph) -> list[Array]:
    rng = np.random.default_rng(5)
    return [random_array(rng, t) for t in graph.inputs]


def random_array(rng: np.random.Generator, tensor: Tensor) -> Array:
    if tensor.dtype.is_integer:
        low, high = tensor.dtype.bounds
        return rng.integers(low, high + 1, tensor.shape).astype(tensor.dtype.numpy)
    return np.asarray(rng.normal(size=tensor.shape)).astype(tensor.dtype.numpy)


def compiled(make: Make, precision: str = "f32") -> list[Array]:
    graph = make()
    arrays, outputs = feeds(graph), graph.outputs
    results = [np.empty(t.shape, t.dtype.numpy) for t in outputs]
    CpuExecutable(build(cpu_for(HOST, precision=precision), graph), 1).run(arrays, results)
    return results


def defined(make: Make, target: Any) -> tuple[Graph, list[Array]]:
    """The prepared graph, and its results by the definitions."""
    graph = make()
    arrays = feeds(graph)
    prepare(graph, target, verify_after)
    return graph, run_prepared(graph, arrays)


def verify_after(name: str, graph: Graph) -> None:
    assert problems(graph) + verify.problems(graph) == [], name


def agree(ours: Sequence[Array], theirs: Sequence[Array], units: int = 0) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        gap = np.max(np.abs(a.astype(np.float64) - b), initial=0)
        limit = 3e-5 * np.max(np.abs(b), initial=1) if a.dtype.kind == "f" else units
        assert gap <= limit, gap


KINDS = ("f32", "bf16", "dynamic", "i8", "u8")
NAMES = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")
# A depthwise convolution is never in bf16.
PRODUCTS = [pair for pair in product(NAMES, KINDS) if pair != ("DEPTHWISE_CONV_2D", "bf16")]


@pytest.mark.parametrize(("name", "kind"), PRODUCTS)
def test_fused_products(name: str, kind: str) -> None:
    make = lambda: products(name, kind)  # noqa: E731
    precision = "bf16" if kind == "bf16" else "f32"
    target = cpu_for(HOST, precision=precision).target
    graph, meant = defined(make, target)
    found = [op for op in graph.ops if operator(op) == name]
    assert len(found) == len(ways(name, kind)) and set(map(said, found)) == expected(name, kind)
    agree(compiled(make, precision), meant, units=1)
    if kind != "bf16":
        unpassed = make()
        plain = execute(unpassed, feeds(unpassed), new_state())
        agree(meant, plain)
        agree(defined(make, NEON)[1], plain)  # the other 8-bit type


# -- all the others -------------------------------------------------------------------------------


def transposed(kind: str) -> Graph:
    m = Maker("TRANSPOSE_CONV", kind)
    shape = m.graph.constant("shape", np.int32([1, 12, 10, 8]))
    out = m.tensor((1, 12, 10, 8))
    attrs = {"padding": "SAME", "stride_h": 2, "stride_w": 2, **PLAIN}
    m.graph.add("TRANSPOSE_CONV", [shape, m.weights((8, 3, 3, 8), 0), m.x], [out], **attrs)
    m.graph.outputs = [out]
    return m.graph


def multiplied(kind: str) -> Graph:
    m = Maker("FULLY_CONNECTED", kind)
    out = m.tensor((5, 7))
    m.graph.add("BATCH_MATMUL", [m.x, m.input("y", (16, 7))], [out], adj_x=False, adj_y=False)
    m.graph.outputs = [out]
    return m.graph


def pooled(kind: str) -> Graph:
    m = Maker("CONV_2D", kind)
    out, wide = m.tensor((1, 3, 2, 8), 0.1, 4), m.tensor((1, 9, 11, 8), 0.1, 4)
    attrs = {"filter_height": 2, "filter_width": 2, "stride_h": 2, "stride_w": 2, **PLAIN}
    m.graph.add("AVERAGE_POOL_2D", [m.x], [out], padding="VALID", **attrs)
    size = m.graph.constant("size", np.int32([9, 11]))
    centres = {"align_corners": False, "half_pixel_centers": True}
    m.graph.add("RESIZE_BILINEAR", [m.x, size], [wide], **centres)
    m.graph.outputs = [out, wide]
    return m.graph


def alone(*ops: str) -> Callable[[str], Graph]:
    """Depthwise and pointwise convolutions, one after the other; something is added in the end."""

    def make(kind: str) -> Graph:
        m = Maker("CONV_2D", kind)
        y = m.x
        for name in ops:
            deep = name == "DEPTHWISE_CONV_2D"
            w = m.weights((1, 3, 3, 8) if deep else (8, 1, 1, 8), 3)
            more: dict[str, Any] = {"padding": "SAME"} | ({"depth_multiplier": 1} if deep else {})
            out = m.tensor(y.shape)
            m.graph.add(name, [y, w, None], [out], **{**WINDOW, **PLAIN, **more})
            y = out
        m.graph.outputs = [m.behind("ADD", y)]
        return m.graph

    return make


def one(name: str, *operands: tuple[DType, Sequence[int]], **attrs: Any) -> Callable[[str], Graph]:
    """One of the compiler's own ops; its result is as its last operand."""

    def make(kind: str) -> Graph:
        graph = Graph("main")
        given = [graph.input(f"x{i}", *row) for i, row in enumerate(operands)]
        out = graph.tensor("y", *operands[-1])
        graph.add(name, given, [out], **attrs)
        graph.outputs = [out]
        return graph

    return make


def flipped(kind: str) -> Graph:
    graph = one("cpu.FLIP", (DType.INT8, (3, 50)))(kind)
    graph.outputs[0].dtype = DType.UINT8
    return graph


def tabled(kind: str) -> Graph:
    graph = Graph("main")
    x = graph.input("x", DType.INT16, (3, 50))
    table = np.random.default_rng(2).integers(-32768, 32768, 65536).astype(np.int16)
    out = graph.tensor("y", DType.INT16, (3, 50))
    graph.add("cpu.LUT16", [x, graph.constant("table", table)], [out])
    graph.outputs = [out]
    return graph


F32, I8, BOOL = DType.FLOAT32, DType.INT8, DType.BOOL
ROW = np.random.default_rng(1).integers(0, 256, 256).astype(np.uint8)
GRAPHS: dict[str, tuple[Callable[[str], Graph], tuple[str, ...], str]] = {
    "transposed on the fly": (transposed, ("cpu.TRANSPOSE_CONV", "cpu.RANGE"), "dynamic"),
    "transposed in bf16": (transposed, ("cpu.TRANSPOSE_CONV",), "bf16"),
    "matmul in bf16": (multiplied, ("cpu.BATCH_MATMUL",), "bf16"),
    "pools": (pooled, ("cpu.AVERAGE_POOL_2D", "cpu.RESIZE_BILINEAR"), "i8"),
    **{name: (alone(*kinds), (name,), "f32") for name, kinds in CHAINS.items()},
    "map": (one("cpu.MAP", (F32, (3, 50)), expr=apply("tanh", X)), ("cpu.MAP",), "f32"),
    "bytes": (one("cpu.LUT", (I8, (3, 50)), table=ROW), ("cpu.LUT",), "i8"),
    "words": (tabled, ("cpu.LUT16",), "f32"),
    "flip": (flipped, (), "i8"),
    "norm": (one("cpu.LAYER_NORM", (F32, (3, 50)), epsilon=1e-5), ("cpu.LAYER_NORM",), "f32"),
    "copy": (one("cpu.COPY", (F32, (3, 50))), ("cpu.COPY",), "f32"),
    "merge": (
        one("cpu.MERGE", (BOOL, ()), (F32, (3, 50)), (F32, (3, 50))),
        ("cpu.MERGE",),
        "f32",
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_own_ops(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(with_pointwise, "WORTH", 1)
    make, names, kind = GRAPHS[name]
    precision = "bf16" if kind == "bf16" else "f32"
    target = cpu_for(HOST, precision=precision).target
    graph, meant = defined(lambda: make(kind), target)
    assert {*names} <= {op.name for op in graph.ops}
    agree(compiled(lambda: make(kind), precision), meant, units=1)


def test_a_chain_is_its_stages() -> None:
    graph = alone("CONV_2D", "DEPTHWISE_CONV_2D")("f32")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(with_pointwise, "WORTH", 1)
        prepare(graph, find("avx512vnni"))
    (op,) = graph.ops
    first, second = unchained(op)
    assert (first.name, second.name) == ("CONV_2D", "cpu.DEPTHWISE_CONV_2D")
    assert Inputs.of(second).residual is graph.inputs[1] and second.outputs == op.outputs
    assert str(op.attrs["chain"]) == "CONV_2D, then cpu.DEPTHWISE_CONV_2D (plus residual)"

"""Where tensors lie: what is shared is right, and what need not be copied is not."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.runtime.abi import ARENA, FIRST_ARG
from sanderling.delegates.cpu.steps.placement import free_from, is_free, place
from sanderling.ir import DType, Graph, Model, Tensor
from tests.support.cpu_conformance import EVERYTHING, cpu_for, run

pytestmark = pytest.mark.filterwarnings("error::sanderling.errors.FallbackWarning")
F32 = DType.FLOAT32


class Maker:
    """Builds graphs of float tensors, one op a call."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        self.graph = Graph()
        self.inputs = [self.graph.input(f"x{i}", F32, s) for i, s in enumerate(shapes)]
        self.count = 0

    def new(self, shape: tuple[int, ...]) -> Tensor:
        self.count += 1
        return self.graph.tensor(f"t{self.count}", F32, shape)

    def ints(self, *values: int) -> Tensor:
        self.count += 1
        return self.graph.constant(f"c{self.count}", np.array(values, np.int32))

    def unary(self, x: Tensor, name: str = "TANH") -> Tensor:
        y = self.new(x.shape)
        self.graph.add(name, [x], [y])
        return y

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        y = self.new(np.broadcast_shapes(a.shape, b.shape))
        self.graph.add("ADD", [a, b], [y], fused_activation_function="NONE")
        return y

    def reshape(self, x: Tensor, *shape: int) -> Tensor:
        y = self.new(shape)
        self.graph.add("RESHAPE", [x, self.ints(*shape)], [y], new_shape=list(shape))
        return y

    def join(self, *parts: Tensor, axis: int = 0) -> Tensor:
        shape = list(parts[0].shape)
        shape[axis] = sum(p.shape[axis] for p in parts)
        y = self.new(tuple(shape))
        self.graph.add("CONCATENATION", parts, [y], axis=axis, fused_activation_function="NONE")
        return y

    def split(self, x: Tensor, count: int, axis: int = 0) -> list[Tensor]:
        shape = list(x.shape)
        shape[axis] //= count
        parts = [self.new(tuple(shape)) for _ in range(count)]
        place = self.graph.constant(f"a{self.count}", np.array(axis, np.int32))
        self.graph.add("SPLIT", [place, x], parts, num_splits=count)
        return parts

    def cut(self, x: Tensor, begin: int, size: int) -> Tensor:
        y = self.new((size, *x.shape[1:]))
        rest = len(x.shape) - 1
        self.graph.add(
            "SLICE", [x, self.ints(begin, *[0] * rest), self.ints(size, *x.shape[1:])], [y]
        )
        return y

    def transpose(self, x: Tensor) -> Tensor:
        y = self.new(x.shape[::-1])
        self.graph.add("TRANSPOSE", [x, self.ints(*range(len(x.shape))[::-1])], [y])
        return y

    def product(self, x: Tensor, n: int, taps: int = 1) -> Tensor:
        """A convolution that keeps the picture's size."""
        self.count += 1
        rng = np.random.default_rng(self.count)
        shape = (n, taps, taps, x.shape[3])
        values = rng.normal(size=shape) / np.sqrt(taps * taps * x.shape[3])
        w = self.graph.constant(f"w{self.count}", values.astype(np.float32))
        b = self.graph.constant(f"b{self.count}", rng.normal(size=n).astype(np.float32))
        y = self.new((*x.shape[:3], n))
        self.graph.add(
            "CONV_2D",
            [x, w, b],
            [y],
            padding="SAME",
            stride_w=1,
            stride_h=1,
            dilation_w_factor=1,
            dilation_h_factor=1,
            fused_activation_function="NONE",
        )
        return y

    def depthwise(self, x: Tensor) -> Tensor:
        self.count += 1
        rng = np.random.default_rng(self.count)
        w, b = (
            self.graph.constant(f"{c}{self.count}", rng.normal(size=s).astype(np.float32) / 3)
            for c, s in (("w", (1, 3, 3, x.shape[3])), ("b", x.shape[3:]))
        )
        y = self.new(x.shape)
        self.graph.add(
            "DEPTHWISE_CONV_2D",
            [x, w, b],
            [y],
            padding="SAME",
            stride_w=1,
            stride_h=1,
            dilation_w_factor=1,
            dilation_h_factor=1,
            depth_multiplier=1,
            fused_activation_function="RELU6",
        )
        return y

    def pool(self, x: Tensor) -> Tensor:
        y = self.new(x.shape)
        self.graph.add(
            "MAX_POOL_2D",
            [x],
            [y],
            padding="SAME",
            stride_w=1,
            stride_h=1,
            filter_width=3,
            filter_height=3,
            fused_activation_function="NONE",
        )
        return y

    def resize(self, x: Tensor, height: int, width: int, how: str = "BILINEAR") -> Tensor:
        y = self.new((x.shape[0], height, width, x.shape[3]))
        self.graph.add(
            f"RESIZE_{how}",
            [x, self.ints(height, width)],
            [y],
            align_corners=False,
            half_pixel_centers=how == "BILINEAR",
        )
        return y

    def check(self, *outputs: Tensor, threads: int = 2, target: str | None = None) -> None:
        """Run twice on the cpu, and compare with the reference."""
        self.graph.outputs = list(outputs)
        model = Model([self.graph])
        ours = model.compile([cpu_for(target)], threads=threads)
        theirs = model.compile(["reference"])
        rng = np.random.default_rng(0)
        for _ in range(2):
            arrays = [rng.normal(size=t.shape).astype(np.float32) for t in self.inputs]
            for a, b in zip(run(ours, arrays), run(theirs, arrays), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)

    def copies(self, *outputs: Tensor) -> list[str]:
        """Names of the ops that are not free, elementwise ones apart."""
        self.graph.outputs = list(outputs)
        places, _ = place(self.graph)
        return [
            op.name
            for op in self.graph.ops
            if op.name not in ("TANH", "ADD") and not is_free(op, places)
        ]


def test_parts_are_written_into_their_concatenation() -> None:
    m = Maker((1, 3, 64), (1, 5, 64))
    parts = [m.unary(x) for x in m.inputs]
    y = m.unary(m.join(m.reshape(parts[0], 1, 6, 32), m.reshape(parts[1], 1, 10, 32), axis=1))
    assert m.copies(y) == []
    m.check(y)


def test_concatenation_of_what_cannot_move() -> None:
    """The caller's input is copied; so is the second of two equal parts."""
    m = Maker((4, 16))
    a = m.unary(m.inputs[0])
    y, z = m.join(m.inputs[0], a, a), m.join(a, a)
    assert m.copies(y, z) == ["CONCATENATION", "CONCATENATION"]
    m.check(y, z)


def test_slices_are_views() -> None:
    m = Maker((1, 8, 64))
    a, b = m.split(m.unary(m.inputs[0]), 2, axis=1)
    c = m.cut(m.reshape(a, 4, 64), 1, 2)
    y = m.add(m.reshape(b, 4, 64), m.reshape(m.unary(m.reshape(a, 4, 64)), 4, 64))
    assert m.copies(y, m.unary(c)) == []
    m.check(y, m.graph.outputs[1])


def test_parts_of_a_tensor_in_another_order() -> None:
    m = Maker((4, 64))
    x = m.unary(m.inputs[0])
    a, b = m.split(x, 2)
    y = m.join(b, a)
    m.check(y, m.unary(x))


def test_a_slice_that_begins_its_source_and_a_concatenation() -> None:
    """The slice cannot be moved without the source, whose rest would lie upon the other part."""
    m = Maker((4, 64))
    x = m.unary(m.inputs[0])
    y = m.join(m.cut(x, 0, 2), m.unary(m.cut(x, 2, 2)))
    m.check(m.unary(y), m.unary(x))


def test_result_is_written_straight_to_the_caller() -> None:
    m = Maker((4, 64))
    x = m.unary(m.inputs[0])
    y = m.reshape(x, 2, 128)
    assert m.copies(y) == []
    places, size = place(m.graph)
    assert places[x].slot == FIRST_ARG + 1 and size == 0
    m.check(y)


def test_input_is_not_overwritten() -> None:
    m = Maker((64, 64))
    y = m.unary(m.reshape(m.inputs[0], 4096))
    m.graph.outputs = [y]
    session = Model([m.graph]).compile([CpuDelegate(cache=False)])
    x = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    kept = x.copy()
    run(session, [x])
    assert np.array_equal(x, kept)


def test_blocks_are_reused() -> None:
    m = Maker((64, 64))
    x = m.inputs[0]
    for _ in range(10):
        x = m.transpose(x)
    m.graph.outputs = [x]
    places, size = place(m.graph)
    assert size == 2 * 64 * 64 * 4
    assert all(p.slot == ARENA for t, p in places.items() if t not in (m.inputs[0], x))


def test_scratch_lies_behind_what_is_alive() -> None:
    """Where one of two tensors is alive, behind it; where both are, behind both."""
    m = Maker((64, 64))
    a = m.transpose(m.inputs[0])
    b = m.transpose(a)
    m.graph.outputs = [m.transpose(b)]
    places, size = place(m.graph)
    first, second, third = m.graph.ops
    assert size == 2 * a.nbytes and free_from(m.graph, places, []) == 0
    assert free_from(m.graph, places, [second]) == size
    ends = [free_from(m.graph, places, [op]) for op in (first, third)]
    assert ends == [places[t].offset + t.nbytes for t in (a, b)] and min(ends) < size


# -- rows in rows ----------------------------------------------------------------------------------


def test_products_write_into_rows() -> None:
    """Parts of the channels of a concatenation, which is a result, and of one in another."""
    m = Maker((1, 6, 5, 8))
    x = m.inputs[0]
    inner = m.join(m.product(x, 16), m.product(x, 3, taps=3), axis=3)
    y = m.join(m.product(x, 1), inner, m.product(x, 20), axis=3)
    assert [n for n in m.copies(y) if n != "CONV_2D"] == []
    places, _ = place(m.graph)
    parts = [places[t] for op in m.graph.ops if op.name == "CONV_2D" for t in op.outputs]
    assert {(p.slot, p.pitch) for p in parts} == {(FIRST_ARG + 1, y.shape[3] * 4)}
    assert sorted(p.offset for p in parts) == [0, 4, 4 + 64, 4 + 64 + 12]
    m.check(y)


@pytest.mark.parametrize("target", [None, "avx2", "generic"])
def test_who_reads_parts_of_rows(target: str | None) -> None:
    """What is joined is read again, where it lies: products, residuals, pools, resizing."""
    m = Maker((1, 7, 6, 8))
    a = m.product(m.inputs[0], 24)
    b, c = m.add(m.product(a, 24), a), m.pool(a)
    up = m.resize(m.resize(a, 4, 3, "NEAREST_NEIGHBOR"), 7, 6)
    y = m.product(m.join(a, b, c, up, m.depthwise(a), axis=3), 8)
    copied = [n for n in m.copies(y) if n in ("CONCATENATION", "SPLIT")]
    assert copied == ["CONCATENATION"]  # depthwise convolutions write their own rows
    m.check(y, target=target)


def test_parts_of_rows_are_views() -> None:
    m = Maker((1, 6, 6, 8))
    a, b = m.split(m.product(m.inputs[0], 32), 2, axis=3)
    y = m.join(m.product(a, 16), m.pool(b), m.depthwise(a), axis=3)
    assert "SPLIT" not in m.copies(y)
    m.check(y)


def test_who_cannot_read_parts_of_rows() -> None:
    """An operator that wants its rows together gets them; so does the caller."""
    m = Maker((1, 6, 6, 8))
    a, b = m.product(m.inputs[0], 16), m.product(m.inputs[0], 16)
    y = m.join(a, b, axis=3)
    places_wanted = [a, m.unary(b)]
    m.graph.outputs = [a, y, places_wanted[1]]
    places, _ = place(m.graph)
    assert not places[a].pitch and not places[b].pitch
    m.check(*m.graph.outputs)


def _grow_picture(m: Maker, rng: np.random.Generator, pool: list[Tensor]) -> None:
    x = pool[int(rng.integers(len(pool)))]
    others = [t for t in pool if t.shape[:3] == x.shape[:3]]
    other = others[int(rng.integers(len(others)))]
    same = [t for t in pool if t.shape == x.shape]
    kind = int(rng.integers(9))
    if kind < 3:
        pool.append(m.product(x, int(rng.choice([3, 8, 16, 20])), taps=1 + 2 * (kind == 0)))
    elif kind == 3 and x.shape[3] + other.shape[3] <= 64:
        pool.append(m.join(x, other, axis=3))
    elif kind == 4 and x.shape[3] % 2 == 0:
        pool += m.split(x, 2, axis=3)
    elif kind == 5:
        pool.append(m.pool(x))
    elif kind == 6:
        pool.append(m.add(x, same[int(rng.integers(len(same)))]))
    elif kind == 7:
        pool.append(m.unary(x, "RELU") if rng.integers(2) else m.depthwise(x))
    elif kind == 8:
        how = str(rng.choice(["BILINEAR", "NEAREST_NEIGHBOR"]))
        pool.append(m.resize(x, 5, 4, how))


@pytest.mark.parametrize("seed", range(12 if EVERYTHING else 5))
def test_any_graph_of_pictures(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m = Maker((1, 5, 4, 8), (1, 5, 4, 3))
    pool = list(m.inputs)
    for _ in range(24):
        _grow_picture(m, rng, pool)
    made = [t for t in pool if t.producer is not None]
    unread = [t for t in made if not t.users]
    m.check(*dict.fromkeys([*unread, *made[:: max(len(made) // 2, 1)]]), threads=1 + seed % 2)


# -- any graph -------------------------------------------------------------------------------------


def _grow(m: Maker, rng: np.random.Generator, pool: list[Tensor]) -> None:
    def pick(fits: Callable[[Tensor], bool] = lambda t: True) -> Tensor | None:
        found = [t for t in pool if fits(t)]
        return found[int(rng.integers(len(found)))] if found else None

    x = pick()
    assert x is not None
    kind = int(rng.integers(8))
    if kind == 0:
        pool.append(m.unary(x))
    elif kind == 1:
        other = pick(lambda t: t.shape == x.shape) or x
        pool.append(m.add(x, other))
    elif kind == 2:
        n = math.prod(x.shape)
        rows = int(rng.choice([r for r in (1, 2, 4, 8) if n % r == 0]))
        pool.append(m.reshape(x, rows, n // rows))
    elif kind == 3:
        others = [pick(lambda t: t.shape[1:] == x.shape[1:]) or x for _ in range(2)]
        if sum(math.prod(t.shape) for t in (x, *others)) < 20000:
            pool.append(m.join(x, *others))
    elif kind == 4 and x.shape[0] % 2 == 0:
        pool += m.split(x, 2)
    elif kind == 5 and x.shape[0] > 1:
        begin = int(rng.integers(x.shape[0]))
        pool.append(m.cut(x, begin, int(rng.integers(1, x.shape[0] - begin + 1))))
    elif kind == 6:
        pool.append(m.transpose(x))
    elif kind == 7:
        pool.append(m.unary(x, "RELU"))


@pytest.mark.parametrize("seed", range(40 if EVERYTHING else 16))
def test_any_graph(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m = Maker((4, 64), (2, 32))
    pool = list(m.inputs)
    for _ in range(25):
        _grow(m, rng, pool)
    made = [t for t in pool if t.producer is not None]
    unread = [t for t in made if not t.users]
    m.check(*dict.fromkeys([*unread, *made[:: max(len(made) // 3, 1)]]), threads=1 + seed % 2)

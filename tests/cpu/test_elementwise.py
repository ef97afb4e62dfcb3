"""Elementwise operators on the cpu delegate: the conformance table, then functions and loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from sanderling.delegates.cpu.isa.targets import TARGETS, host_target, runnable
from sanderling.delegates.cpu.kernels.elementwise.operators import EXPRESSIONS
from sanderling.delegates.cpu.passes.pipeline import prepare
from sanderling.delegates.cpu.runtime.executable import Compiled, CpuExecutable
from sanderling.ir import Array, DType, Graph, Op
from sanderling.ir import expr as X
from sanderling.ir.expr import Expr, Input, cast
from tests.conformance.cases import CASES
from tests.conformance.harness import Case, case, const, f32, i8, i16, i32, u8
from tests.support.aarch64_qemu import QEMU
from tests.support.cpu_conformance import (
    GELU_OF_INFINITY,
    RUNNABLE,
    TARGET_NAMES,
    cases_of,
    check_cpu,
    cpu_for,
    in_turns,
    run,
    share_of,
)

EMULATED = QEMU is not None

F32 = DType.FLOAT32
x0, x1 = Input(0, F32), Input(1, F32)
# Every case runs on the cpu, unless one of these is the reason.
EXCUSES = ("no kernel", "may be zero", "may be negative", "do not fit together", "not defined for",
           "run time", "codes of quantised and of plain", "not quantised as a whole",
           "leave no code", "shape is not known", "strings and handles",
           "less than a byte")  # fmt: skip


ROWS = [row for row in cases_of(*EXPRESSIONS) if row.id != GELU_OF_INFINITY]


@pytest.mark.parametrize(("row", "target"), in_turns(ROWS))
def test_conformance(row: Case, target: str) -> None:
    said = check_cpu(row, target, emulate=EMULATED and target.startswith("neon"))
    assert not said or any(e in said for e in EXCUSES), said


# -- functions ------------------------------------------------------------------------------------


def compile_map(expr: Expr, *arrays: Array, target: str) -> Compiled:
    """The expression over broadcast arrays of these shapes, as one cpu.MAP."""
    graph = Graph()
    inputs = [graph.input(f"x{i}", DType.of(a.dtype), a.shape) for i, a in enumerate(arrays)]
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    out = graph.tensor("y", expr.dtype, shape)
    graph.insert(Op("cpu.MAP", inputs, [out], {"expr": expr}))
    graph.outputs = [out]
    return cpu_for(target).compiled(graph)


def run_compiled(code: Compiled, expr: Expr, *arrays: Array, workers: int = 1) -> Array:
    result = np.empty(np.broadcast_shapes(*(a.shape for a in arrays)), expr.dtype.numpy)
    executable = CpuExecutable(code, workers)
    executable.run([np.ascontiguousarray(a) for a in arrays], [result])
    executable.close()
    return result


def run_map(expr: Expr, *arrays: Array, target: str) -> Array:
    return run_compiled(compile_map(expr, *arrays, target=target), expr, *arrays)


SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 88.7, 88.73, -87, -103, -104, 1e-45, 1e-40,
           3e38, -3e38, 0.5, 1.5, 2.5, -2.5, 8388609.0, 0.49999997, -0.2]  # fmt: skip
erf = np.vectorize(math.erf)
# name: expression, exact function, range, allowed units in the last place
FUNCTIONS: dict[str, tuple[Expr, Callable[..., Array], tuple[float, float], float]] = {
    "exp": (X.exp(x0), np.exp, (-104, 89), 3),
    "log": (X.log(x0), np.log, (0, 10), 2),
    "tanh": (X.tanh(x0), np.tanh, (-10, 10), 6),
    "erf": (X.erf(x0), erf, (-5, 5), 6),
    "sqrt": (X.sqrt(x0), np.sqrt, (0, 10), 1),
    "rsqrt": (X.rsqrt(x0), lambda v: 1 / np.sqrt(v), (0, 10), 2),
    "floor": (X.floor(x0), np.floor, (-5, 5), 0),
    "ceil": (X.ceil(x0), np.ceil, (-5, 5), 0),
    "trunc": (X.trunc(x0), np.trunc, (-5, 5), 0),
    "round_even": (X.round_even(x0), np.rint, (-5, 5), 0),
    "fma": (X.fma(x0, x0, x0 + 2), lambda v: v * v + (v + 2), (-5, 5), 3),
    "elu": (
        X.select(x0 < 0, X.exp(x0) - 1, x0),
        lambda v: np.where(v < 0, np.expm1(v), v),
        (-20, 1),
        14,
    ),
    "logistic": (X.logistic(x0), lambda v: 1 / (1 + np.exp(-v)), (-80, 80), 8),
}


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, target: str) -> None:
    expr, exact, (low, high), allowed = FUNCTIONS[name]
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.uniform(low, high, 5000), SPECIAL]).astype(np.float32)
    with np.errstate(all="ignore"):
        wide = exact(x.astype(np.float64))
        wanted = wide.astype(np.float32)
        found = run_map(expr, x, target=target)
        same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
        gap = np.where(same, 0, np.abs(found - wide))
    unit = np.spacing(np.abs(np.where(np.isfinite(wanted), wanted, 1)))
    # Results below 2**-126 are zero; the logistic function ends at e**-87.
    assert np.all(gap <= allowed * unit + {"logistic": 2e-38, "sqrt": 1e-20}.get(name, 2.0**-126))


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("function", ["sin", "cos"])
def test_angles(function: str, target: str) -> None:
    """Angles of every size, and next to multiples of pi / 2, where little is left of them."""
    rng = np.random.default_rng(2)
    sizes = np.exp(rng.uniform(np.log(1e-30), np.log(3e38), 4000)) * rng.choice([-1, 1], 4000)
    close = rng.integers(-100000, 100000, 2000) * (np.pi / 2)
    hardest = [16367173.0 * 2.0**72, 2.0**127]
    x = np.concatenate([rng.uniform(-1e6, 1e6, 5000), sizes, close, hardest]).astype(np.float32)
    found = run_map(X.apply(function, x0), x, target=target)
    wanted = np.array([exact(function, v) for v in x])
    gap = np.abs(found - wanted)
    assert np.max(gap) < 2e-7
    assert np.max(gap / np.abs(wanted), where=np.abs(wanted) > 1e-30, initial=0) < 2e-6
    ends = np.array([np.inf, -np.inf, np.nan] * 16, np.float32)
    assert np.all(np.isnan(run_map(X.apply(function, x0), ends, target=target)))


@pytest.mark.parametrize("target", [name for name, row in TARGETS.items() if runnable(row)])
def test_atan2(target: str) -> None:
    """All quadrants, ratios of every size, and the ends: signs of zeros count."""
    rng = np.random.default_rng(3)
    spread = [10.0 ** rng.integers(-9, 10, 4000) * rng.normal(size=4000) for _ in range(2)]
    # Not 1e-45 and 1e-40, which count as zero in compiled code.
    ends = np.meshgrid(*[[v for v in SPECIAL if v == 0 or not abs(v) < 1e-38]] * 2)
    y, x = (
        np.concatenate([a, b.reshape(-1)]).astype(np.float32)
        for a, b in zip(spread, ends, strict=True)
    )
    found = run_map(X.atan2(x0, x1), y, x, target=target)
    wide = np.arctan2(y.astype(np.float64), x.astype(np.float64))
    wanted = wide.astype(np.float32)
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    real = ~np.isnan(wanted)
    assert np.array_equal(np.signbit(found[real]), np.signbit(wanted[real]))
    gap = np.abs(found - wide)[real]
    assert np.all(gap <= 2 * np.spacing(np.abs(wanted[real])) + 2.0**-126)


def test_atan2_is_compiled() -> None:
    assert check_cpu(next(row for row in CASES if row.op == "ATAN2")) == ""


@cache
def _half_pi() -> Fraction:
    """To 600 bits, by Machin's series."""

    def arctan(inverse: int) -> int:
        one, total = 1 << 640, 0
        for i in range(1, 500, 2):
            total += (2 - i % 4) * (one // inverse**i // i)
        return total

    return Fraction(2 * (4 * arctan(5) - arctan(239)), 1 << 640)


def exact(function: str, x: np.float32) -> float:
    """The function of the angle's rest after whole quarters of a turn."""
    quarters = Fraction(float(x)) / _half_pi()
    whole = round(quarters)
    rest = float((quarters - whole) * _half_pi())
    turn = (whole + (function == "cos")) % 4
    return (math.sin, math.cos)[turn % 2](rest) * (-1 if turn >= 2 else 1)


# Products that are rendered as something else: name: expression, exact function
PRODUCTS: dict[str, tuple[Expr, Callable[..., Array]]] = {
    "swish": (x0 * X.logistic(x0), lambda v, w: v / (1 + np.exp(-v))),
    "gate": (x1 * X.logistic(x0), lambda v, w: w / (1 + np.exp(-v))),
    "gelu": (
        x0 * (X.erf(x0 * math.sqrt(0.5)) * 0.5 + 0.5),
        lambda v, w: v * (1 + erf(v * math.sqrt(0.5))) / 2,
    ),
}


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str, target: str) -> None:
    """Right to the last bits, 0 and x far out; NaN passes, whichever operand it is."""
    expr, exact = PRODUCTS[name]
    rng = np.random.default_rng(9)
    far = [80.0, -80.0, 1e4, -1e4, 5.6, -5.6, 0.0]
    x = np.concatenate([rng.uniform(-12, 12, 4000), far]).astype(np.float32)
    y = rng.normal(size=x.size).astype(np.float32)
    both = (x, y) if name == "gate" else (x,)
    with np.errstate(over="ignore"):
        wanted = exact(x.astype(np.float64), y)
    code = compile_map(expr, *both, target=target)
    found = run_compiled(code, expr, *both)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
    assert name != "gelu" or found[-4] == 0
    for spoilt in range(len(both)):
        holes = [
            np.where(np.arange(x.size) % 5 == 0, np.float32(np.nan), v) if i == spoilt else v
            for i, v in enumerate(both)
        ]
        marked = np.isnan(run_compiled(code, expr, *holes))
        np.testing.assert_array_equal(marked, np.arange(x.size) % 5 == 0)


@pytest.mark.parametrize("target", RUNNABLE)
def test_power(target: str) -> None:
    a, b = (v.reshape(-1) for v in np.meshgrid(SPECIAL, SPECIAL))
    rng = np.random.default_rng(3)
    a = np.concatenate([a, rng.uniform(0, 30, 3000)]).astype(np.float32)
    b = np.concatenate([b, rng.uniform(-20, 20, 3000)]).astype(np.float32)
    with np.errstate(all="ignore"):
        wanted = np.power(a.astype(np.float64), b).astype(np.float32)
    np.testing.assert_allclose(
        run_map(x0**x1, a, b, target=target), wanted, rtol=3e-7, atol=2**-126
    )


@pytest.mark.parametrize("target", RUNNABLE)
def test_halves(target: str) -> None:
    """All float16 to float32 and back."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    half = Input(0, DType.FLOAT16)
    wide = run_map(cast(half, F32), every, target=target)
    np.testing.assert_array_equal(wide, every.astype(np.float32))
    rng = np.random.default_rng(4)
    x = np.concatenate([rng.normal(size=4000) * 10.0 ** rng.integers(-9, 6, 4000), SPECIAL])
    narrow = run_map(cast(x0, DType.FLOAT16), x.astype(np.float32), target=target)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(narrow, x.astype(np.float32).astype(np.float16))


# -- loops ----------------------------------------------------------------------------------------

LENGTHS = (1, 3, 7, 16, 17, 31, 64, 65, 127, 1023, 1025, 5000)
SHAPES = [
    *(((n,), (n,)) for n in LENGTHS),
    ((40, 24), (24,)), ((300, 3), (3,)), ((5, 6, 7), (6, 1)), ((9, 1, 65), (1, 4, 65)),
    ((2, 3, 4, 5), (3, 1, 5)), ((100,), ()), ((17, 100), (17, 1)), ((3, 70, 2), (70, 1)),
]  # fmt: skip


@pytest.mark.parametrize("target", RUNNABLE)
def test_shapes_and_threads(target: str) -> None:
    """Nothing is written beyond the end, and threads do not change a bit."""
    rng, expr = np.random.default_rng(5), x0 * x1 + X.exp(x0)
    for a, b in SHAPES:
        x, y = (rng.normal(size=s).astype(np.float32) for s in (a, b))
        code = compile_map(expr, x, y, target=target)
        one, two, three = (run_compiled(code, expr, x, y, workers=w) for w in (1, 2, 3))
        np.testing.assert_allclose(one, x * y + np.exp(x), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(one, three)


@pytest.mark.parametrize("target", TARGET_NAMES)
@pytest.mark.parametrize("make", [i8, u8, i16])
def test_quantised_shapes(make: Callable[..., Any], target: str) -> None:
    zero = {i8: 3, u8: 130, i16: 0}[make]
    shapes = (((70,), (70,)), ((5, 9, 24), (24,)), ((4, 1, 3), (2, 1)), ((1000,), (1,)))
    for (first, second), name in share_of([*product(shapes, ("ADD", "MUL"))], target, others=3):
        a, b = (make(*s, scale=0.05, zp=zero) for s in (first, second))
        row = case(name, a, b, out=[make(scale=0.1, zp=zero)])
        assert check_cpu(row, target, threads=2) == ""


WORDS = [("ADD", 2), ("SUB", 2), ("MUL", 2), ("RELU", 1), ("LEAKY_RELU", 1)]


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize(("name", "count"), WORDS)
def test_words_are_exact(name: str, count: int, target: str) -> None:
    """int16 codes to the last unit of the definitions' fixed point."""
    more = {"alpha": 0.3} if name == "LEAKY_RELU" else {}
    for first, out in ((0.05, 0.07), (0.0312, 0.011), (2.0**-10, 2.0**-9)):
        operands = [i16(4000, scale=first * (1 + 0.3 * i)) for i in range(count)]
        row = case(name, *operands, out=[i16(scale=out)], **more)
        model = row.model()
        feeds = row.arrays(model, np.random.default_rng(10))
        found, wanted = (run(model.compile([d]), feeds) for d in (cpu_for(target), "reference"))
        np.testing.assert_array_equal(found[0], wanted[0])


@pytest.mark.parametrize("target", RUNNABLE)
def test_tables(target: str) -> None:
    """Every byte, at every distance from the end of a vector."""
    table = np.random.default_rng(6).permutation(256).astype(np.uint8)
    for size in (1, 15, 64, 65, 255, 256, 300, 3000):
        x = np.arange(size).astype(np.uint8)
        graph = Graph()
        source = graph.input("x", DType.UINT8, x.shape)
        out = graph.tensor("y", DType.UINT8, x.shape)
        graph.add("cpu.LUT", [source], [out], table=table)
        graph.outputs = [out]
        executable = CpuExecutable(cpu_for(target).compiled(graph), 1)
        result = np.zeros(size, np.uint8)
        executable.run([x], [result])
        np.testing.assert_array_equal(result, table[x])


# -- passes ---------------------------------------------------------------------------------------


def test_a_chain_is_one_map() -> None:
    graph = Graph()
    x, y = (graph.input(n, F32, (4, 8)) for n in "xy")
    a, b, c, d = (graph.tensor(n, F32, (4, 8)) for n in "abcd")
    graph.add("LOGISTIC", [x], [a])
    graph.add("MUL", [a, x], [b])
    graph.add("ADD", [b, y], [c], fused_activation_function="RELU")
    graph.add("NEG", [c], [d])
    graph.outputs = [d]
    prepare(graph, host_target())
    assert [op.name for op in graph.ops] == ["cpu.MAP"]


def test_a_value_that_is_read_twice_stays() -> None:
    graph = Graph()
    x = graph.input("x", F32, (4, 8))
    a, b, c = (graph.tensor(n, F32, (4, 8)) for n in "abc")
    graph.add("EXP", [x], [a])
    graph.add("NEG", [a], [b])
    graph.add("ABS", [a], [c])
    graph.outputs = [b, c]
    prepare(graph, host_target())
    assert len(graph.ops) == 3


def test_constant_operands() -> None:
    for dtype, make in (("f32", f32), ("i32", i32)):
        data = np.arange(1, 4).astype(DType.parse(dtype).numpy)
        for target in RUNNABLE:
            assert check_cpu(case("ADD", make(50, 40, 3), const(data, dtype)), target) == ""

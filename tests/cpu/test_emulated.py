"""Emulated instructions do what the processor's manual says, and another machine's code can be run.

Each body is compiled for the widest target and compared with NumPy; where this machine has the
instruction itself, with that as well.
"""

from __future__ import annotations

import ctypes
from typing import Any

import llvmlite.ir as ir
import numpy as np
import pytest

from sanderling.delegates.cpu.codegen.emit import (
    F32,
    I1,
    I8,
    I16,
    I32,
    PTR,
    VOID,
    Emitter,
    Type,
    llvm_type,
    vector,
)
from sanderling.delegates.cpu.codegen.jit import compile_object
from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.isa.emulated import BODIES
from sanderling.delegates.cpu.isa.targets import (
    TARGETS,
    Target,
    cpu_features,
    emulatable,
    emulated,
    find,
    runnable,
)
from sanderling.delegates.cpu.runtime.image import Loaded, link
from sanderling.errors import FallbackWarning, InputError
from sanderling.ir import Array
from tests.support.conv_stacks import feed, stack

ROW = TARGETS["avx512vnni"]
pytestmark = pytest.mark.skipif(not emulatable(ROW), reason="it takes an x86-64 CPU with AVX2")


def call(target: Target, name: str, result: Type, arrays: list[Array], more: list[Any]) -> Array:
    """The intrinsic of vectors that are loaded, and of constants behind them."""
    module = ir.Module("test")
    module.triple = target.triple
    entry = ir.Function(module, ir.FunctionType(VOID, [PTR] * (len(arrays) + 1)), "entry")
    e = Emitter(module, entry, target)
    types = [vector(llvm_type(a.dtype), a.size) for a in arrays]
    args = [e.load(p, t, 1) for p, t in zip(entry.args[1:], types, strict=True)]
    found = e.call(f"llvm.x86.{name}", result, *args, *more)
    if result.element == I1:
        found = e.b.zext(found, vector(I8, result.count))
    e.store(found, entry.args[0], 1)
    e.b.ret_void()
    loaded = Loaded(link(compile_object(str(module), target)))
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(arrays) + 1))(loaded.entry("entry"))
    kinds = {I1: np.int8, I8: np.int8, I16: np.int16, I32: np.int32, F32: np.float32}
    out = np.zeros(result.count, kinds[result.element])
    run(out.ctypes.data, *(a.ctypes.data for a in arrays))
    return out


def integers(dtype: type, seed: int) -> Array:
    """A vector of them, the smallest and the largest first."""
    about, count = np.iinfo(dtype), 64 // np.dtype(dtype).itemsize
    found = np.random.default_rng(seed).integers(about.min, about.max + 1, count)
    found[:2] = about.min, about.max
    return found.astype(dtype)


def floats(seed: int = 0, spread: float = 8.0) -> Array:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=16) * np.exp2(rng.uniform(-spread, spread, 16))).astype(np.float32)


def _dot(acc: Array, a: Array, b: Array, group: int) -> Array:
    products = a.astype(np.int64) * b.astype(np.int64)
    return (acc + products.reshape(-1, group).sum(1)).astype(np.int32)


def _packed(a: Array, b: Array, dtype: type) -> Array:
    """Each 16 bytes apart."""
    about, each = np.iinfo(dtype), 16 // a.itemsize
    pieces = np.stack([a.reshape(-1, each), b.reshape(-1, each)], 1)
    return np.clip(pieces, about.min, about.max).astype(dtype).reshape(-1)


def _shuffled(a: Array, index: Array) -> Array:
    lanes = np.arange(64) // 16 * 16
    return np.where(index < 0, 0, a[lanes + (index & 15)]).astype(np.int8)


EVERY, NEAREST, DOWN = I16(-1), I32(4), I32(9)
_EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 0.75, 1.5, 1.49, 2.0, 3.0, 1e30, 1e-30, -1.0,
          5.0, 0.7]  # fmt: skip
EDGES = np.array(_EDGES, np.float32)


def _mantissa(x: Array) -> Array:
    with np.errstate(all="ignore"):
        found, _ = np.frexp(x)
        found = np.where(found < 0.75, found * 2, found)
    found = np.where((x == 0) | np.isinf(x), 1, found)
    return np.where((x < 0) | np.isnan(x), np.nan, found).astype(np.float32)


def _exponent(x: Array) -> Array:
    with np.errstate(all="ignore"):
        found = np.floor(np.log2(np.abs(x.astype(np.float64))))
    return found.astype(np.float32)


def _scaled(x: Array, n: Array) -> Array:
    whole = np.clip(np.floor(n.astype(np.float64)), -1000, 1000)
    with np.errstate(over="ignore"):
        return (x.astype(np.float64) * np.exp2(whole)).astype(np.float32)


def _rounded_down(x: Array) -> Array:
    near = x.astype(np.float32)
    return np.where(near > x, np.nextafter(near, np.float32(-np.inf)), near).astype(np.float32)


A8, B8, C32 = integers(np.int8, seed=1), integers(np.int8, seed=2), integers(np.int32, seed=3)
D32, A16, B16 = integers(np.int32, seed=4), integers(np.int16, seed=5), integers(np.int16, seed=6)
X, Y, Z = floats(1), floats(2), floats(3)
_POWERS = [0, 1, -1, 5.5, -130, 140, 1e9, -1e9, np.inf, -np.inf, np.nan, 3, -3, 20, -20, 2]
POWERS = np.array(_POWERS, np.float32)
SMALL = C32 >> 8
# name, result, vectors, constants, what comes out
CASES: list[tuple[str, Type, list[Array], list[Any], Array]] = [
    ("avx512.vpdpbusd.512", vector(I32, 16), [C32, A8, B8], [],
     _dot(C32, A8.view(np.uint8), B8, 4)),
    ("avx512.vpdpbusd.256", vector(I32, 8), [C32[:8], A8[:32], B8[:32]], [],
     _dot(C32[:8], A8.view(np.uint8)[:32], B8[:32], 4)),
    ("avx512.vpdpwssd.512", vector(I32, 16), [SMALL, A16, B16], [], _dot(SMALL, A16, B16, 2)),
    ("avx512.pmaddw.d.512", vector(I32, 16), [A16, B16], [], _dot(0 * C32, A16, B16, 2)),
    ("avx512.pmaddubs.w.512", vector(I16, 32), [A8, B8], [],
     np.clip(_dot(np.zeros(32, np.int32), A8.view(np.uint8), B8, 2), -32768, 32767)
     .astype(np.int16)),
    ("avx512.packssdw.512", vector(I16, 32), [C32, D32], [], _packed(C32, D32, np.int16)),
    ("avx512.packsswb.512", vector(I8, 64), [A16, B16], [], _packed(A16, B16, np.int8)),
    ("avx512.packuswb.512", vector(I8, 64), [A16, B16], [],
     _packed(A16, B16, np.uint8).view(np.int8)),
    ("avx512.pshuf.b.512", vector(I8, 64), [A8, B8], [], _shuffled(A8, B8)),
    ("avx512.pmul.hr.sw.512", vector(I16, 32), [A16[2:].repeat(2)[:32], B16], [],
     ((A16[2:].repeat(2)[:32].astype(np.int64) * B16 + (1 << 14)) >> 15).astype(np.int16)),
    ("avx512.vpermi2var.ps.512", vector(F32, 16), [X, C32, Y], [],
     np.concatenate([X, Y])[C32 & 31]),
    ("avx512.permvar.si.512", vector(I32, 16), [C32, D32], [], C32[D32 & 15]),
    ("avx512.mask.range.ps.512", vector(F32, 16), [X, np.abs(Y)], [I32(2), "first", EVERY, NEAREST],
     np.copysign(np.minimum(np.abs(X), np.abs(Y)), X)),
    ("avx512.mask.scalef.ps.512", vector(F32, 16), [X, POWERS], ["first", EVERY, NEAREST],
     _scaled(X, POWERS)),
    # Of -0 Intel's gives 1 and AMD's -1; the logarithm does not look at it.
    ("avx512.mask.getmant.ps.512", vector(F32, 16), [EDGES + 0.0],
     [I32(11), "first", EVERY, NEAREST], _mantissa(EDGES)),
    ("avx512.mask.getexp.ps.512", vector(F32, 16), [EDGES], ["first", EVERY, NEAREST],
     _exponent(EDGES)),
    ("avx512.fpclass.ps.512", vector(I1, 16), [EDGES], [I32(14)],
     ((EDGES == 0) | (np.inf == EDGES)).astype(np.int8)),
    ("avx512.vfmadd.ps.512", vector(F32, 16), [X, Y, Z], [DOWN],
     _rounded_down(X.astype(np.longdouble) * Y.astype(np.longdouble) + Z.astype(np.longdouble))),
    ("avx512.mask.cvtps2dq.512", vector(I32, 16), [X * 8], ["zero", EVERY, DOWN],
     np.floor(X * 8).astype(np.int32)),
    ("avx512.mask.cvtps2dq.512", vector(I32, 16), [X * 8], ["zero", EVERY, NEAREST],
     np.rint(X * 8).astype(np.int32)),
]  # fmt: skip
LOOSE = {"avx512.rsqrt14.ps.512"}  # the instruction promises 14 bits, the body gives all


@pytest.mark.parametrize(
    "target",
    [emulated(ROW)] + [ROW] * runnable(ROW),
    ids=lambda t: "emulated" if t.emulated else "native",
)
@pytest.mark.parametrize("row", CASES, ids=lambda row: row[0])
def test_instructions(row: tuple[str, Type, list[Array], list[Any], Array], target: Target) -> None:
    name, result, arrays, more, expected = row
    zero = ir.Constant(vector(I32, 16), [0] * 16)
    floats = ir.Constant(vector(F32, 16), [0.0] * 16)
    constants = [
        {"first": floats, "zero": zero}.get(m, m) if isinstance(m, str) else m for m in more
    ]
    np.testing.assert_array_equal(call(target, name, result, arrays, constants), expected)


def test_rsqrt() -> None:
    x = np.abs(X)
    mask = [ir.Constant(vector(F32, 16), [0.0] * 16), EVERY]
    found = call(emulated(ROW), "avx512.rsqrt14.ps.512", vector(F32, 16), [x], mask)
    np.testing.assert_allclose(found, 1 / np.sqrt(x), rtol=2**-14)


def test_every_body_has_a_case() -> None:
    tried = {row[0] for row in CASES} | LOOSE
    assert all(any(name.startswith(start) for name in tried) for start in BODIES)


def test_a_target_that_this_machine_lacks_is_not_run() -> None:
    """Its code would end the process."""
    delegate = CpuDelegate("neon", cache=False)
    model = stack(layers=1)
    with pytest.warns(FallbackWarning, match="cannot run code for neon"):
        model.compile([delegate, "reference"])(feed(model))


@pytest.mark.parametrize("name", ["generic", "avx2", "avx512vnni"])
def test_the_host_passes_for_another(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDERLING_HOST", name)
    delegate = CpuDelegate(cache=False)
    assert delegate.target.name == name and runnable(delegate.target)
    assert CpuDelegate("avx512bf16", cache=False).target.name == "avx512bf16"
    model = stack(layers=2)
    x = feed(model)
    np.testing.assert_array_equal(model.compile([delegate])(x), model.compile(["reference"])(x))


@pytest.mark.parametrize("name", ["avx2", "avx512"])
def test_a_host_runs_the_code_of_older_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDERLING_HOST", name)
    assert runnable(find("generic"))
    assert runnable(find("avx2")) == emulatable(find("avx2"))


def test_reported_instructions_are_not_run_unless_they_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SANDERLING_HOST", "avx512bf16")
    assert runnable(find("avx512bf16")) == (find("avx512bf16").needs <= cpu_features())


def test_a_host_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDERLING_HOST", "pentium")
    with pytest.raises(InputError, match="no target 'pentium'"):
        CpuDelegate()
    monkeypatch.setenv("SANDERLING_HOST", "neon")
    with pytest.raises(InputError, match="neither run nor emulate"):
        CpuDelegate()

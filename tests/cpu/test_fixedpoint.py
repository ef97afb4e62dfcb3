"""Fixed-point arithmetic of vectors, against the definitions: all 16-bit numbers, hostile 32-bit
ones."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import llvmlite.ir as ir
import numpy as np
import pytest

from sanderling.delegates.cpu.codegen import fixedpoint
from sanderling.delegates.cpu.codegen.emit import I16, I32, I64, PTR, VOID, Emitter, Value, vector
from sanderling.delegates.cpu.codegen.jit import compile_object
from sanderling.delegates.cpu.isa.targets import Target
from sanderling.delegates.cpu.runtime.image import Loaded, link
from sanderling.ir import Array
from sanderling.ops import fixed, lut
from tests.support.cpu_conformance import RUNNABLE_ROWS

TARGETS = pytest.mark.parametrize("target", RUNNABLE_ROWS, ids=lambda t: t.name)


def run(target: Target, x: Array, make: Callable[[Emitter, Value], Value]) -> Array:
    """make's vector of each vector of x, compiled and run."""
    module = ir.Module("test")
    module.triple = target.triple
    function = ir.Function(module, ir.FunctionType(VOID, [PTR, PTR, I64]), "entry")
    e = Emitter(module, function, target)
    element, lanes = I16 if x.dtype == np.int16 else I32, target.width // 2
    source, result, count = function.args
    with e.loop(0, count, lanes) as i:
        value = e.load(e.at(source, i, element), vector(element, lanes))
        e.store(make(e, value), e.at(result, i, element))
    e.b.ret_void()
    loaded = Loaded(link(compile_object(str(module), target)))
    out = np.empty_like(x)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, ctypes.c_int64)(loaded.entry("entry"))
    call(x.ctypes.data, out.ctypes.data, x.size)
    return out


ALL16 = np.arange(-(2**15), 2**15).astype(np.int16)


@TARGETS
@pytest.mark.parametrize("bits", range(7))
def test_tanh(target: Target, bits: int) -> None:
    ours = run(target, ALL16, lambda e, x: fixedpoint.tanh(e, x, bits))
    np.testing.assert_array_equal(ours, lut.tanh_fixed(ALL16, bits))


@TARGETS
@pytest.mark.parametrize("bits", range(1, 8))
def test_logistic(target: Target, bits: int) -> None:
    ours = run(target, ALL16, lambda e, x: fixedpoint.logistic(e, x, bits))
    np.testing.assert_array_equal(ours, lut.logistic_fixed(ALL16, bits))


def hostile() -> Array:
    ends = [s * (2**n) + d for n in range(32) for s in (-1, 1) for d in (-1, 0, 1)]
    kept = [v for v in ends if -(2**31) <= v < 2**31]
    more = np.random.default_rng(0).integers(-(2**31), 2**31, 1024 - len(kept))
    return np.array([*kept, *more], np.int64).astype(np.int32)


@TARGETS
@pytest.mark.parametrize("real", [0.7, 0.5, 3.9, 100.3, 2.0**-20, 1e-9, 0.999999999])
def test_multiply(target: Target, real: float) -> None:
    x = hostile()
    words = fixedpoint.scale_words(*fixed.quantize_multiplier(real))

    def make(e: Emitter, v: Value) -> Value:
        return fixedpoint.Scale(*(e.const(v.type, w) for w in words))(e, v)

    expected = fixed.multiply(x, *fixed.quantize_multiplier(real))
    np.testing.assert_array_equal(run(target, x, make), expected)


def lane_by_lane(of: Callable[[Emitter, Value], Value]) -> Callable[[Emitter, Value], Value]:
    """A function of one number in an i64, of each lane."""

    def make(e: Emitter, v: Value) -> Value:
        found = v
        for lane in range(v.type.count):
            wide = e.b.sext(e.b.extract_element(v, I32(lane)), I64)
            found = e.b.insert_element(found, e.b.trunc(of(e, wide), I32), I32(lane))
        return found

    return make


@TARGETS
def test_log(target: Target) -> None:
    x = np.maximum(np.abs(hostile()), 1)
    ours = run(target, x, lane_by_lane(lambda e, v: fixedpoint.log(e, v, 12, 5)))
    np.testing.assert_array_equal(ours, lut.log_fixed(x.astype(np.int64), 12, 5))


@TARGETS
@pytest.mark.parametrize("real", [0.7, 3.9, 2.0**-20])
def test_multiply_one(target: Target, real: float) -> None:
    x, (m, shift) = hostile(), fixed.quantize_multiplier(real)
    words = [I64(w) for w in fixedpoint.scale_words(m, shift)]
    ours = run(target, x, lane_by_lane(lambda e, v: fixedpoint.multiply_one(e, v, *words)))
    np.testing.assert_array_equal(ours, fixed.multiply(x, m, shift))

"""Small loops in machine code that find this machine's limits. They need LLVM: import them late."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import llvmlite.ir as ir
import numpy as np

from .codegen.emit import I8, I32, I64, PTR, VOID, Emitter, Value, vector
from .codegen.jit import compile_object
from .isa.base import isa_of
from .isa.targets import Target
from .kernels.products.cores import (
    BfloatCore,
    Core,
    FloatCore,
    byte_core,
    column_type,
    wide_core,
)
from .runtime.executable import aligned
from .runtime.image import Loaded, link

CHAINS = 12  # independent sums: more than a core has multiply-adds under way
FIXED = 2  # operands that stay in registers
TURNS = 20_000
VECTORS = 8  # loads of one turn of the reading loop

Loop = Callable[[int, int, int], None]  # times, address, bytes
Work = Callable[[], float]  # does its work once: how much that is


def native(target: Target, build: Callable[[Emitter], None]) -> Loop:
    """A function of (times, memory, bytes) in machine code."""
    module = ir.Module("loops")
    module.triple = target.triple
    function = ir.Function(module, ir.FunctionType(VOID, [I64, PTR, I64]), "loop")
    e = Emitter(module, function, target)
    build(e)
    e.b.ret_void()
    code = Loaded(link(compile_object(str(module), target)))
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
    call = kind(code.entry("loop"))
    call.keep = code  # type: ignore[attr-defined]
    return call


def core_of(target: Target, kind: str) -> Core | None:
    """The fastest multiply-add that a target has for a type; None where it has none."""
    if kind == "f32":
        return FloatCore()
    if kind == "bf16":
        return BfloatCore() if target.bf16 else None
    return (byte_core(target) if kind == "i8" else None) or wide_core(target)


def multiply(target: Target, kind: str) -> Callable[[], Work] | None:
    """Makes workers that multiply and add on registers, each with memory of its own; their work is
    counted in multiply-adds."""
    core = core_of(target, kind)
    if core is None:
        return None
    lanes = target.lanes

    def build(e: Emitter) -> None:
        times, memory, _ = e.args
        operand = column_type(core, lanes)
        # No two products are the same, else they are computed but once; and each turn has others.
        fixed = [e.load(e.at(memory, 64 * i, I8), operand) for i in range(FIXED)]
        start = [e.load(e.at(memory, 128, I8), vector(core.acc, lanes))] * CHAINS
        with e.loop(0, times, carry=start) as (turn, sums):
            block = e.at(memory, e.mul(e.rem(turn, 2), 1024), I8)
            found = []
            for i in range(0, CHAINS, FIXED):
                x = e.load(e.at(block, 64 * i, I8), operand)
                pairs = zip(fixed, sums[i : i + FIXED], strict=True)
                found += [core.step(e, x, y, s) for y, s in pairs]
            e.carry(found)
        _keep(e, memory)

    loop = native(target, build)

    def worker() -> Work:
        memory = aligned(4096)

        def work() -> float:
            loop(TURNS, memory.ctypes.data, 0)
            return float(TURNS * CHAINS * lanes * core.depth)

        return work

    return worker


def read(target: Target) -> Callable[[int, int], Work]:
    """Makes workers that read a block of so many bytes so many times; work is counted in bytes."""
    lanes = target.lanes
    stride = VECTORS * target.width

    def build(e: Emitter) -> None:
        times, memory, size = e.args
        kind = vector(I32, lanes)
        start = [e.load(memory, kind)] * VECTORS
        with e.loop(0, times, carry=start) as (_, before):
            with e.loop(0, size, stride, carry=before) as (at, sums):
                block = e.at(memory, at, I8)
                e.carry([_add_at(e, s, block, i * target.width) for i, s in enumerate(sums)])
            e.carry(e.carried)
        _keep(e, memory)

    loop = native(target, build)

    def worker(size: int, times: int) -> Work:
        size = max(stride, size // stride * stride)
        memory = aligned(size + 4096)
        memory[:] = 1  # untouched pages are all one page of zeros

        def work() -> float:
            loop(times, memory.ctypes.data, size)
            return float(times * size)

        return work

    return worker


def _add_at(e: Emitter, total: Value, block: Value, offset: int) -> Value:
    return e.b.add(total, e.load(e.at(block, offset, I8), total.type))


def _keep(e: Emitter, memory: Value) -> None:
    """Store the sums: what nobody reads is not computed."""
    for i, value in enumerate(e.carried):
        e.store(value, e.at(memory, 256 + 64 * i, I8))


def ticks(target: Target, seconds: float = 0.05) -> float:
    """A second in ticks of the counter that timed code reads."""
    counter = np.zeros(1, np.int64)

    def build(e: Emitter) -> None:
        e.store(isa_of(target).clock(e), e.args[1], 8)

    look = native(target, build)

    def read() -> tuple[float, float, int]:
        before = time.perf_counter()
        look(0, counter.ctypes.data, 0)
        return time.perf_counter() - before, before, int(counter[0])

    def mark() -> tuple[float, int]:
        """Both clocks at once: of several readings the one that nothing came between."""
        apart, before, count = min(read() for _ in range(20))
        return before + apart / 2, count

    begin = mark()
    time.sleep(seconds)
    end = mark()
    return (end[1] - begin[1]) / (end[0] - begin[0])


def timed(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin

"""cpu.LUT: a function of one byte by a table of 256, as many bytes at once as the target can."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .....ir import Array, Op
from ...codegen.emit import I8, I64, PTR, Emitter, Value, vector
from ...codegen.program import StepEmitter
from ...isa.targets import Target

BLOCK = 1024  # bytes of a unit of work


def fast_lut(target: Target) -> bool:
    """Whether looking up costs no more than a few arithmetic operations."""
    return "+avx512vbmi" in target.features


def emit_lut(k: StepEmitter, op: Op) -> None:
    x = op.inputs[0]
    assert x is not None
    size = x.nbytes
    if not size:
        return
    lanes = _lanes(k.target)
    whole = size >= lanes > 1
    values: Array = op.attrs["table"]
    source, target = k.ptr(x), k.ptr(op.outputs[0])
    table = k.constant(_arranged(values, k.target) if whole else values)
    begin, end = k.share(-(-size // BLOCK))
    first, last = k.mul(begin, BLOCK), k.min(k.mul(end, BLOCK), size)
    args = [k.at(source, first, I8), k.at(target, first, I8), table]
    with k.when(k.less(first, last)):
        name, build = (f"lut_{lanes}", _vectors) if whole else ("lut_1", _bytes)
        function = k.program.function(name, [PTR, PTR, PTR, I64], build)
        k.b.call(function, [*args, k.i64(k.sub(last, first))])


def _lanes(target: Target) -> int:
    """Bytes looked up at once; 1 where there is no shuffle of bytes."""
    return 1 if target.triple.startswith("x86") and target.width < 32 else target.width


def _arranged(values: Array, target: Target) -> Array:
    """For the 16-byte shuffles of AVX: what _shuffled must xor to the pieces before."""
    if "+avx2" not in target.features or fast_lut(target):
        return values
    pieces = values.reshape(16, 16)
    turned = pieces.copy()
    turned[1:] ^= pieces[:-1]
    turned[8:] ^= turned[:8]
    return np.repeat(turned[:, None, :], target.width // 16, axis=1)


def _bytes(e: Emitter) -> None:
    source, target, table, size = e.args
    with e.loop(0, size) as i:
        index = e.b.zext(e.load(e.at(source, i, I8), I8), I64)
        e.store(e.load(e.at(table, index, I8), I8), e.at(target, i, I8))


def _vectors(e: Emitter) -> None:
    """The last vector reaches back over bytes that are looked up twice."""
    source, target, table, size = e.args
    t = vector(I8, e.target.width)
    look = _looker(e, table)
    last = e.sub(size, e.target.width)
    with e.loop(0, size, e.target.width) as i:
        place = e.min(i, last)
        e.store(look(e.load(e.at(source, place, I8), t)), e.at(target, place, I8))


def _looker(e: Emitter, table: Value) -> Callable[[Value], Value]:
    """Load the table into registers; the function that looks up a vector."""
    if fast_lut(e.target):
        return _permuted(e, table)
    return _tabled(e, table) if e.target.triple.startswith("aarch64") else _shuffled(e, table)


def _permuted(e: Emitter, table: Value) -> Callable[[Value], Value]:
    """AVX512-VBMI looks 128 bytes up in one instruction; the top bit chooses between two."""
    t = vector(I8, 64)
    a, b, c, d = (e.load(e.at(table, i * 64, I8), t, 64) for i in range(4))

    def look(x: Value) -> Value:
        low, high = (e.call("llvm.x86.avx512.vpermi2var.qi.512", t, p, x, q)
                     for p, q in ((a, b), (c, d)))  # fmt: skip
        return e.b.select(e.b.icmp_signed("<", x, e.const(t, 0)), high, low)

    return look


_SHUFFLES = {64: "llvm.x86.avx512.pshuf.b.512", 32: "llvm.x86.avx2.pshuf.b"}


def _shuffled(e: Emitter, table: Value) -> Callable[[Value], Value]:
    """A shuffle looks up by the low four bits, and gives 0 where the top bit is set: so x - 16 * i
    reads piece i where x is that large or larger, and what is read too early is undone by the xor
    of the next piece. In the second half x - 128 must stay negative, hence saturates."""
    t = vector(I8, e.target.width)
    name = _SHUFFLES[e.target.width]
    sixteen = e.const(t, 16)

    def look(x: Value) -> Value:
        found = e.const(t, 0)
        for i in range(16):
            piece = e.load(e.at(table, i * e.target.width, I8), t, e.target.width)
            found = e.b.xor(found, e.call(name, t, piece, x))
            x = _minus(e, x, sixteen, saturate=i >= 8)
        return found

    return look


def _minus(e: Emitter, x: Value, y: Value, saturate: bool) -> Value:
    if not saturate:
        return e.b.sub(x, y)
    return e.call(f"llvm.ssub.sat.v{x.type.count}i8", x.type, x, y)


def _tabled(e: Emitter, table: Value) -> Callable[[Value], Value]:
    """NEON looks 64 bytes up; beyond them tbx keeps what it is given."""
    t = vector(I8, 16)
    rows = [[e.load(e.at(table, 64 * i + 16 * j, I8), t, 16) for j in range(4)] for i in range(4)]

    def look(x: Value) -> Value:
        found = e.call("llvm.aarch64.neon.tbl4.v16i8", t, *rows[0], x)
        for i in range(1, 4):
            x = e.b.sub(x, e.const(t, 64))
            found = e.call("llvm.aarch64.neon.tbx4.v16i8", t, found, *rows[i], x)
        return found

    return look

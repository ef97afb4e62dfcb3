"""x86-64 with vectors of up to 32 bytes: SSE2, AVX2, AVX-VNNI."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ....ir import Array
from ..codegen.emit import I8, I16, I32, I64, PTR, VOID, Emitter, Value, like, suffix, vector
from .base import Isa, Lookup
from .targets import Target

# Names behind "llvm.x86.", by the operands' bytes.
_MULTIPLY_PAIRS = {64: "avx512.pmaddw.d.512", 32: "avx2.pmadd.wd", 16: "sse2.pmadd.wd"}
_MULTIPLY_BYTES = {64: "avx512.pmaddubs.w.512", 32: "avx2.pmadd.ub.sw"}
_PACK_WORDS = {64: "avx512.packssdw.512", 32: "avx2.packssdw", 16: "sse2.packssdw.128"}
_PACK_BYTES = {64: "avx512.packuswb.512", 32: "avx2.packuswb", 16: "sse2.packuswb.128"}
_PACK_SIGNED = {64: "avx512.packsswb.512", 32: "avx2.packsswb", 16: "sse2.packsswb.128"}
_CONVERT = {32: "avx.cvt.ps2dq.256", 16: "sse2.cvtps2dq"}
_HIGH_MUL16 = {64: "avx512.pmul.hr.sw.512", 32: "avx2.pmul.hr.sw"}
_SHUFFLE_BYTES = {64: "avx512.pshuf.b.512", 32: "avx2.pshuf.b"}
_WITH_SIGN = {32: "avx2.psign.d", 16: "ssse3.psign.d.128"}

# The bit of the mode register that makes results below 2**-126 zero. Operands stay as they are.
_FLUSH = 0x8000
# The bits of it that say how results are rounded, and what they hold for: to -infinity.
_ROUNDING, _DOWN = 0x6000, 0x2000


class X86(Isa):
    """The dot product of bytes is u8 x s8. Most instructions work on each 16 bytes apart."""

    gettid, futex = 186, 202
    getcpu, sched_setaffinity, sched_getaffinity = 309, 203, 204
    has_pairs = has_packs = True

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.has_dot_words = target.dot
        self.has_half = "+f16c" in target.features
        self.packs_floats = target.width >= 32
        self.rounds_down = self.rounds_by_mode = target.width >= 32 and target.fma
        self.has_byte_pairs = target.width in _MULTIPLY_BYTES
        self.lookup_lanes = target.width if target.width >= 32 else 1

    # -- threads ------------------------------------------------------------------------------

    def pause(self, e: Emitter) -> None:
        e.call("llvm.x86.sse2.pause", VOID)

    def clock(self, e: Emitter) -> Value:
        return e.call("llvm.readcyclecounter", I64)

    def flush_tiny(self, e: Emitter) -> Callable[[], None]:
        """They hardly count in any sum, but a core takes a hundred cycles for each product with
        one: softmax of masked values is full of them."""
        before, during = e.b.alloca(I32), e.b.alloca(I32)
        e.call("llvm.x86.sse.stmxcsr", VOID, e.b.bitcast(before, PTR))
        e.store(e.b.or_(e.load(before, I32, 4), I32(_FLUSH)), during, 4)
        e.call("llvm.x86.sse.ldmxcsr", VOID, e.b.bitcast(during, PTR))
        return lambda: e.call("llvm.x86.sse.ldmxcsr", VOID, e.b.bitcast(before, PTR))

    # -- products -----------------------------------------------------------------------------

    def dot_bytes(self, e: Emitter, acc: Value, a: Value, b: Value) -> Value:
        return e.call(f"llvm.x86.avx512.vpdpbusd.{32 * acc.type.count}", acc.type, acc, a, b)

    def dot_words(self, e: Emitter, acc: Value, a: Value, b: Value) -> Value:
        if not self.has_dot_words:
            return super().dot_words(e, acc, a, b)
        return e.call(f"llvm.x86.avx512.vpdpwssd.{32 * acc.type.count}", acc.type, acc, a, b)

    def multiply_pairs(self, e: Emitter, a: Value, b: Value) -> Value:
        size = _size(a)
        pairs = vector(I16, size // 2)
        name = f"llvm.x86.{_MULTIPLY_PAIRS[size]}"
        return e.call(name, vector(I32, size // 4), *(e.b.bitcast(v, pairs) for v in (a, b)))

    def multiply_bytes(self, e: Emitter, a: Value, b: Value) -> Value:
        size = _size(a)
        return e.call(f"llvm.x86.{_MULTIPLY_BYTES[size]}", vector(I16, size // 2), a, b)

    # -- rounding -----------------------------------------------------------------------------

    def round_down(self, e: Emitter, kept: Value) -> None:
        during = e.b.alloca(I32)
        e.call("llvm.x86.sse.stmxcsr", VOID, kept)
        other = e.b.and_(e.load(kept, I32, 4), I32(~_ROUNDING & 0xFFFFFFFF))
        e.store(e.b.or_(other, I32(_DOWN)), during, 4)
        e.call("llvm.x86.sse.ldmxcsr", VOID, e.b.bitcast(during, PTR))

    def round_back(self, e: Emitter, kept: Value) -> None:
        e.call("llvm.x86.sse.ldmxcsr", VOID, kept)

    def fma_down(self, e: Emitter, a: Value, b: Value, c: Value) -> Value:
        return e.fma(a, b, c)

    def convert_down(self, e: Emitter, x: Value) -> Value:
        t = like(x.type, I32)
        return e.call(f"llvm.x86.{_CONVERT[4 * t.count]}", t, x)

    def round_int(self, e: Emitter, a: Value) -> Value:
        whole = like(a.type, I32)
        return e.call(f"llvm.lrint.{suffix(whole)}.{suffix(a.type)}", whole, a)

    def convert_nearest(self, e: Emitter, x: Value) -> Value:
        return e.call("llvm.x86.avx.cvt.ps2dq.256", like(x.type, I32), x)

    def high_mul16(self, e: Emitter, x: Value, y: Value) -> Value:
        size = 2 * x.type.count
        if size != self.target.width or size not in _HIGH_MUL16:
            return super().high_mul16(e, x, y)
        return e.call(f"llvm.x86.{_HIGH_MUL16[size]}", x.type, x, y)

    def with_sign(self, e: Emitter, size: Value, of: Value) -> Value:
        if _size(of) not in _WITH_SIGN:
            return super().with_sign(e, size, of)
        return e.call(f"llvm.x86.{_WITH_SIGN[_size(of)]}", of.type, size, of)

    # -- bytes --------------------------------------------------------------------------------

    def pack_words(self, e: Emitter, a: Value, b: Value) -> Value:
        size = _size(a)
        return e.call(f"llvm.x86.{_PACK_WORDS[size]}", vector(I16, size // 2), a, b)

    def pack_bytes(self, e: Emitter, a: Value, b: Value, signed: bool = False) -> Value:
        size, names = _size(a), _PACK_SIGNED if signed else _PACK_BYTES
        return e.call(f"llvm.x86.{names[size]}", vector(I8, size), a, b)

    def shuffle_bytes(self, e: Emitter, x: Value, order: Value) -> Value:
        return e.call(f"llvm.x86.{_SHUFFLE_BYTES[_size(x)]}", x.type, x, order)

    def lookup_table(self, values: Array) -> Array:
        """What `lookup` must xor to the pieces before."""
        pieces = values.reshape(16, 16)
        turned = pieces.copy()
        turned[1:] ^= pieces[:-1]
        turned[8:] ^= turned[:8]
        return np.repeat(turned[:, None, :], self.target.width // 16, axis=1)

    def lookup(self, e: Emitter, table: Value) -> Lookup:
        """A shuffle looks up by the low four bits, and gives 0 where the top bit is set: so
        x - 16 * i reads piece i where x is that large or larger, and what is read too early is
        undone by the xor of the next piece. In the second half x - 128 must stay negative, hence
        saturates."""
        width = self.target.width
        t = vector(I8, width)
        sixteen = e.const(t, 16)

        def look(x: Value) -> Value:
            found = e.const(t, 0)
            for i in range(16):
                piece = e.load(e.at(table, i * width, I8), t, width)
                found = e.b.xor(found, self.shuffle_bytes(e, piece, x))
                x = _minus(e, x, sixteen, saturate=i >= 8)
            return found

        return look


def _size(x: Value) -> int:
    """The bytes of a vector of integers."""
    return int(x.type.count * x.type.element.width) // 8


def _minus(e: Emitter, x: Value, y: Value, saturate: bool) -> Value:
    if not saturate:
        return e.b.sub(x, y)
    return e.call(f"llvm.ssub.sat.v{x.type.count}i8", x.type, x, y)


ISA = X86

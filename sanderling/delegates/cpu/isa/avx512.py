"""x86-64 with vectors of 64 bytes: AVX512 with BW, DQ and VL, and what came after it."""

from __future__ import annotations

from ....ir import Array
from ..codegen.emit import F32, I1, I8, I16, I32, Emitter, Type, Value, like, vector
from .base import Lookup
from .targets import Target
from .x86 import X86

# How an instruction is told to round: as the mode register says; to -infinity, no exceptions.
AS_EVER, DOWN = 4, 1 | 8


class Avx512(X86):
    """Instructions on whole vectors can be told how to round, and take floats apart."""

    has_permutes = True

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.quick_lookup = "+avx512vbmi" in target.features
        self.rounds_by_mode = False

    def dot_bf16(self, e: Emitter, acc: Value, a: Value, b: Value) -> Value:
        name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * acc.type.count}"
        return e.call(name, acc.type, acc, a, b)

    # -- rounding -----------------------------------------------------------------------------

    def convert_nearest(self, e: Emitter, x: Value) -> Value:
        t = like(x.type, I32)
        return _convert(e, x, e.const(t, 0), e.const(I16, -1), AS_EVER)

    def convert_down(self, e: Emitter, x: Value) -> Value:
        t = vector(I32, 16)
        found = _convert(e, _widened(e, x), e.undef(t), I16(-1), DOWN)
        return _narrowed(e, found, x.type.count)

    def fma_down(self, e: Emitter, a: Value, b: Value, c: Value) -> Value:
        wide = [_widened(e, v) for v in (a, b, c)]
        found = e.call("llvm.x86.avx512.vfmadd.ps.512", wide[0].type, *wide, I32(DOWN))
        return _narrowed(e, found, a.type.count)

    # -- bytes --------------------------------------------------------------------------------

    def permute(self, e: Emitter, x: Value, order: Value) -> Value:
        return e.call("llvm.x86.avx512.permvar.si.512", x.type, x, order)

    def permute_two(self, e: Emitter, a: Value, order: Value, b: Value) -> Value:
        kind = "ps" if a.type.element == F32 else "d"
        return e.call(f"llvm.x86.avx512.vpermi2var.{kind}.512", a.type, a, order, b)

    def lookup_table(self, values: Array) -> Array:
        return values if self.quick_lookup else super().lookup_table(values)

    def lookup(self, e: Emitter, table: Value) -> Lookup:
        """AVX512-VBMI looks 128 bytes up in one instruction; the top bit chooses between two."""
        if not self.quick_lookup:
            return super().lookup(e, table)
        t = vector(I8, 64)
        a, b, c, d = (e.load(e.at(table, i * 64, I8), t, 64) for i in range(4))

        def look(x: Value) -> Value:
            name = "llvm.x86.avx512.vpermi2var.qi.512"
            low, high = (e.call(name, t, p, x, q) for p, q in ((a, b), (c, d)))
            return e.b.select(e.b.icmp_signed("<", x, e.const(t, 0)), high, low)

        return look

    # -- the parts of floats --------------------------------------------------------------------

    def has_float_parts(self, t: Type) -> bool:
        return bool(t == vector(F32, 16))

    def cut(self, e: Emitter, x: Value, end: float) -> Value:
        name = "llvm.x86.avx512.mask.range.ps.512"  # 2: the smaller size, the first operand's sign
        limit = e.const(x.type, end)
        return e.call(name, x.type, x, limit, I32(2), x, _all_lanes(e), I32(AS_EVER))

    def scale_by_power(self, e: Emitter, x: Value, n: Value) -> Value:
        name = "llvm.x86.avx512.mask.scalef.ps.512"
        return e.call(name, x.type, x, n, x, _all_lanes(e), I32(AS_EVER))

    def mantissa(self, e: Emitter, x: Value) -> Value:
        name = "llvm.x86.avx512.mask.getmant.ps.512"
        return e.call(name, x.type, x, I32(0b1011), x, _all_lanes(e), I32(AS_EVER))

    def exponent(self, e: Emitter, x: Value) -> Value:
        name = "llvm.x86.avx512.mask.getexp.ps.512"
        return e.call(name, x.type, x, x, _all_lanes(e), I32(AS_EVER))

    def rough_rsqrt(self, e: Emitter, x: Value) -> Value:
        name = "llvm.x86.avx512.rsqrt14.ps.512"
        return e.call(name, x.type, x, e.const(x.type, 0), _all_lanes(e))

    def is_zero_or_infinite(self, e: Emitter, x: Value) -> Value:
        return e.call("llvm.x86.avx512.fpclass.ps.512", vector(I1, 16), x, I32(0b1110))


def _convert(e: Emitter, x: Value, beside: Value, mask: Value, mode: int) -> Value:
    name = "llvm.x86.avx512.mask.cvtps2dq.512"
    return e.call(name, beside.type, x, beside, mask, I32(mode))


def _all_lanes(e: Emitter) -> Value:
    return e.const(I16, -1)


def _widened(e: Emitter, a: Value) -> Value:
    """Only instructions on whole registers can be told how to round."""
    assert a.type.element == F32
    return a if a.type.count == 16 else e.shuffle(a, None, [i % a.type.count for i in range(16)])


def _narrowed(e: Emitter, a: Value, lanes: int) -> Value:
    return a if lanes == 16 else e.shuffle(a, None, range(lanes))


ISA = Avx512

"""AArch64: NEON, with or without its products of bytes."""

from __future__ import annotations

from ..codegen.emit import I8, I32, I64, VOID, Emitter, Value, suffix, vector
from .base import Isa, Lookup
from .targets import Target


class Arm(Isa):
    """The dot product of bytes is s8 x s8. Tiny floats cost no more than others."""

    gettid, futex = 178, 98
    getcpu, sched_setaffinity, sched_getaffinity = 168, 122, 123
    has_high_mul = has_half = True

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.lookup_lanes = target.width

    def pause(self, e: Emitter) -> None:
        e.call("llvm.aarch64.hint", VOID, I32(1))

    def clock(self, e: Emitter) -> Value:
        """The cycle counter is the kernel's alone."""
        return e.call("llvm.readsteadycounter", I64)

    def dot_bytes(self, e: Emitter, acc: Value, a: Value, b: Value) -> Value:
        name = f"llvm.aarch64.neon.sdot.{suffix(acc.type)}.{suffix(a.type)}"
        return e.call(name, acc.type, acc, a, b)

    def multiply_byte_matrix(self, e: Emitter, acc: Value, a: Value, b: Value) -> Value:
        return e.call("llvm.aarch64.neon.smmla.v4i32.v16i8", acc.type, acc, a, b)

    def high_mul(self, e: Emitter, x: Value, y: Value) -> Value:
        return e.call(f"llvm.aarch64.neon.sqrdmulh.{suffix(x.type)}", x.type, x, y)

    def rounding_shift(self, e: Emitter, x: Value, shift: Value) -> Value:
        return e.call(f"llvm.aarch64.neon.srshl.{suffix(x.type)}", x.type, x, shift)

    def high_mul16(self, e: Emitter, x: Value, y: Value) -> Value:
        whole = 2 * x.type.count == self.target.width
        return self.high_mul(e, x, y) if whole else super().high_mul16(e, x, y)

    def lookup(self, e: Emitter, table: Value) -> Lookup:
        """An instruction looks 64 bytes up; beyond them tbx keeps what it is given."""
        t = vector(I8, 16)
        rows = [
            [e.load(e.at(table, 64 * i + 16 * j, I8), t, 16) for j in range(4)] for i in range(4)
        ]

        def look(x: Value) -> Value:
            found = e.call("llvm.aarch64.neon.tbl4.v16i8", t, *rows[0], x)
            for i in range(1, 4):
                x = e.b.sub(x, e.const(t, 64))
                found = e.call("llvm.aarch64.neon.tbx4.v16i8", t, found, *rows[i], x)
            return found

        return look


ISA = Arm

"""The operations that architectures do each in their own way, and which of them a target has.

A row of targets.py names a module of this folder, whose ISA is a class of such operations. Kernels
ask it what it has and call the operation; which instruction that is, nobody else knows. What is
written here is LLVM's own and right everywhere; an operation without a body is called only where
the question beside it is answered with yes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module

from ....ir import Array
from ..codegen.emit import I32, Emitter, Type, Value, like
from .targets import Target

Lookup = Callable[[Value], Value]  # bytes -> what a table has for them


class Isa:
    """The instructions of a target."""

    # Linux's numbers of system calls.
    gettid: int
    futex: int
    getcpu: int
    sched_setaffinity: int
    sched_getaffinity: int

    has_dot_words = False  # dot_words is one instruction
    has_pairs = False  # multiply_pairs: products of 16-bit numbers, summed by twos
    has_byte_pairs = False  # multiply_bytes
    has_packs = False  # pack_words and pack_bytes
    has_high_mul = False  # high_mul and rounding_shift
    has_half = False  # conversions from and to float16
    has_permutes = False  # permute, permute_two and shuffle_bytes with any order
    rounds_down = False  # fma_down and convert_down
    rounds_by_mode = False  # these do so between round_down and round_back only
    packs_floats = False  # convert_nearest, for what pack_bytes makes of it
    lookup_lanes = 1  # bytes that `lookup` finds in a table at once; 1: there is none
    quick_lookup = False  # it costs no more than a few arithmetic operations

    def __init__(self, target: Target) -> None:
        self.target = target
        self.has_dot = target.dot  # dot_bytes
        self.has_byte_matrix = target.matrix  # multiply_byte_matrix
        self.dot_is_signed = target.activation == "i8"  # its first operand; the second always is

    # -- threads ------------------------------------------------------------------------------

    def pause(self, e: Emitter) -> None:
        """Tell the core that this is a spin loop."""
        raise NotImplementedError

    def clock(self, e: Emitter) -> Value:
        """The counter that a program may read."""
        raise NotImplementedError

    def flush_tiny(self, e: Emitter) -> Callable[[], None]:
        """Take results below 2**-126 for zero on this thread until the returned function is called,
        where a core would be slow with them."""
        return lambda: None

    # -- products -----------------------------------------------------------------------------

    def dot_bytes(self, e: Emitter, acc: Value, a: Value, b: Value) -> Value:
        """acc + the sums of four products of neighbouring bytes."""
        raise NotImplementedError

    def multiply_byte_matrix(self, e: Emitter, acc: Value, a: Value, b: Value) -> Value:
        """acc + the products of two rows of eight bytes with two columns: row by row, the sums of
        both columns. All bytes have a sign."""
        raise NotImplementedError

    def dot_words(self, e: Emitter, acc: Value, a: Value, b: Value) -> Value:
        """acc + the sums of two products of neighbouring words."""
        return e.b.add(acc, self.multiply_pairs(e, a, b))

    def multiply_pairs(self, e: Emitter, a: Value, b: Value) -> Value:
        """The sums of the products of two words, in each 32-bit lane."""
        raise NotImplementedError

    def multiply_bytes(self, e: Emitter, a: Value, b: Value) -> Value:
        """The sums of the products of two bytes, in each word, saturated; a's have no sign."""
        raise NotImplementedError

    def dot_bf16(self, e: Emitter, acc: Value, a: Value, b: Value) -> Value:
        """acc + the sums of two products of neighbouring bfloat16, the high one first. Targets with
        bf16 have it."""
        raise NotImplementedError

    # -- rounding -----------------------------------------------------------------------------

    def round_int(self, e: Emitter, a: Value) -> Value:
        """Floats to the nearest int32, ties to even; undefined beyond int32."""
        return e.b.fptosi(e.round_even(a), like(a.type, I32))

    def round_down(self, e: Emitter, kept: Value) -> None:
        """From here on all arithmetic of floats rounds down on this thread. What was before is
        written to `kept`, four bytes."""
        raise NotImplementedError

    def round_back(self, e: Emitter, kept: Value) -> None:
        """As it was before round_down."""
        raise NotImplementedError

    def convert_nearest(self, e: Emitter, x: Value) -> Value:
        """As round_int; the smallest number where it does not fit."""
        raise NotImplementedError

    def convert_down(self, e: Emitter, x: Value) -> Value:
        """float32 to the next smaller int32."""
        raise NotImplementedError

    def fma_down(self, e: Emitter, a: Value, b: Value, c: Value) -> Value:
        """a * b + c of float32, rounded to -infinity."""
        raise NotImplementedError

    def high_mul(self, e: Emitter, x: Value, y: Value) -> Value:
        """x * y / 2**31 of int32 to the nearest, ties up, saturated."""
        raise NotImplementedError

    def rounding_shift(self, e: Emitter, x: Value, shift: Value) -> Value:
        """x * 2**shift of int32 to the nearest, ties up."""
        raise NotImplementedError

    def high_mul16(self, e: Emitter, x: Value, y: Value) -> Value:
        """x * y / 2**15 of int16 to the nearest, ties up. Not for two times the smallest number."""
        product = e.b.mul(*(e.b.sext(v, like(v.type, I32)) for v in (x, y)))
        product = e.b.add(product, e.const(product.type, 1 << 14))
        return e.b.trunc(e.b.ashr(product, e.const(product.type, 15)), x.type)

    def with_sign(self, e: Emitter, size: Value, of: Value) -> Value:
        """int32 with the sign of others. Only 0 may stand beside a 0 of these."""
        negative = e.b.ashr(of, e.const(of.type, 31))
        return e.b.sub(e.b.xor(size, negative), negative)

    # -- bytes --------------------------------------------------------------------------------

    def pack_words(self, e: Emitter, a: Value, b: Value) -> Value:
        """Two vectors of i32 to one of i16, saturated; each 16 bytes are packed apart."""
        raise NotImplementedError

    def pack_bytes(self, e: Emitter, a: Value, b: Value, signed: bool = False) -> Value:
        """Two vectors of i16 to one of bytes, saturated; each 16 bytes are packed apart."""
        raise NotImplementedError

    def permute(self, e: Emitter, x: Value, order: Value) -> Value:
        """32-bit lanes of x by their numbers."""
        raise NotImplementedError

    def permute_two(self, e: Emitter, a: Value, order: Value, b: Value) -> Value:
        """32-bit lanes of a and, with numbers behind a's, of b."""
        raise NotImplementedError

    def shuffle_bytes(self, e: Emitter, x: Value, order: Value) -> Value:
        """Bytes of each 16 by the low four bits of a number; 0 where its top bit is set."""
        raise NotImplementedError

    def lookup_table(self, values: Array) -> Array:
        """256 bytes as `lookup` reads them."""
        return values

    def lookup(self, e: Emitter, table: Value) -> Lookup:
        """Load the table into registers; the function that looks up a vector."""
        raise NotImplementedError

    # -- the parts of floats --------------------------------------------------------------------

    def has_float_parts(self, t: Type) -> bool:
        """Whether floats of this type are scaled, taken apart and classified by instructions: the
        operations from here on."""
        return False

    def cut(self, e: Emitter, x: Value, end: float) -> Value:
        """Between -end and end; of NaN comes any such number."""
        raise NotImplementedError

    def scale_by_power(self, e: Emitter, x: Value, n: Value) -> Value:
        """x * 2**floor(n), whatever n."""
        raise NotImplementedError

    def mantissa(self, e: Emitter, x: Value) -> Value:
        """In [3/4, 3/2); of negative numbers NaN."""
        raise NotImplementedError

    def exponent(self, e: Emitter, x: Value) -> Value:
        """floor(log2 |x|); of 0 and infinity infinite."""
        raise NotImplementedError

    def rough_rsqrt(self, e: Emitter, x: Value) -> Value:
        """1 / sqrt(x) to 14 bits. Of 0 it is infinite, of negative numbers NaN."""
        raise NotImplementedError

    def is_zero_or_infinite(self, e: Emitter, x: Value) -> Value:
        """Zeros of both signs, and +infinity."""
        raise NotImplementedError


@cache
def isa_of(target: Target) -> Isa:
    """The instructions of a target, from the module that its row names."""
    found: type[Isa] = import_module(f".{target.isa}", __package__).ISA
    return found(target)

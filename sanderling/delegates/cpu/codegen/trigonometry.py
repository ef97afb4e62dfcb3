"""sin, cos and atan2 of float32 vectors, right for every angle.

An angle is reduced to r between -pi/2 and pi/2 and a whole number k of half turns: sin(r + k * pi)
is sin(r), negated where k is odd. Up to NEAR that takes a few products; beyond, the angle is
multiplied by the bits of 2/pi that matter, in fixed point, which only vectors with such an angle
pay for.
"""

from __future__ import annotations

import math
from functools import cache

from .emit import F64, I32, I64, Emitter, Value, like
from .vector_math import ROUNDING, absolute, copy_sign, polynomial

# (sin(r) - r) / r**3 in r**2 for |r| <= pi / 2, minimax: 0.1 units of 2**-24
SIN = (-0.16666659712791443, 0.00833306647837162, -0.0001980959059437737, 2.605750296424958e-06)
# (atan(t) - t) / t**3 in t**2 for 0 <= t <= 1, likewise: 0.05
ATAN = (-0.33333298563957214, 0.19998548924922943, -0.14264242351055145, 0.10952185839414597,
        -0.0840344950556755, 0.05795758217573166, -0.031177833676338196, 0.010914599522948265,
        -0.0017936202930286527)  # fmt: skip
# pi in three floats; and in parts of few bits, so that products with k are exact without an FMA.
PI = (3.1415927410125732, -8.742277657347586e-08, -3.4302490200117975e-15)
PI_PARTS = (3.140625, 0.0009670257568359375, 6.2771141529083251953e-07, 1.2154201256553420762e-10)
NEAR, NEAR_PARTS = 2.0**16, 2.0**12


def sin(e: Emitter, x: Value) -> Value:
    return _circular(e, x, 0)


def cos(e: Emitter, x: Value) -> Value:
    return _circular(e, x, 1)


def atan2(e: Emitter, y: Value, x: Value) -> Value:
    """The angle of (x, y), from that to the nearer axis. Signs of zeros count, and infinities are
    alike, as in C."""
    b, zero, one = e.b, e.const(x.type, 0), e.const(x.type, 1)
    up, across = absolute(e, y), absolute(e, x)
    low, high = e.fmin(up, across), e.fmax(up, across)
    alike = b.select(b.fcmp_ordered("==", high, zero), zero, one)
    ratio = b.select(b.fcmp_ordered("==", low, high), alike, b.fdiv(low, high))
    square = b.fmul(ratio, ratio)
    angle = e.fma(b.fmul(square, ratio), polynomial(e, square, ATAN), ratio)
    angle = b.select(b.fcmp_ordered(">", up, across), _less(e, angle, 0.5), angle)
    bits = b.bitcast(x, like(x.type, I32))
    left = b.icmp_signed("<", bits, e.const(bits.type, 0))
    angle = copy_sign(e, b.select(left, _less(e, angle, 1.0), angle), y)
    return b.select(b.fcmp_unordered("uno", x, y), b.fadd(x, y), angle)


def _less(e: Emitter, angle: Value, turns: float) -> Value:
    """turns * pi - angle."""
    near, rest = (e.const(angle.type, turns * part) for part in PI[:2])
    return e.b.fadd(e.b.fsub(near, angle), rest)


def _circular(e: Emitter, x: Value, turn: int) -> Value:
    """sin(x + turn * pi / 2)."""
    r, odd = _near(e, x, turn)
    limit = e.const(x.type, NEAR if e.target.fma else NEAR_PARTS)
    far = e.b.not_(e.b.fcmp_ordered("<=", absolute(e, x), limit))  # and NaN
    before = e.b.block
    with e.b.if_then(e.any(far), likely=False):
        r_far, odd_far = _far(e, x, turn)
        r_mixed, odd_mixed = e.b.select(far, r_far, r), e.b.select(far, odd_far, odd)
        inside = e.b.block
    merged = []
    for slow, fast in ((r_mixed, r), (odd_mixed, odd)):
        phi = e.b.phi(fast.type)
        phi.add_incoming(slow, inside)
        phi.add_incoming(fast, before)
        merged.append(phi)
    r, odd = merged
    square = e.b.fmul(r, r)
    sine = e.fma(e.b.fmul(square, r), polynomial(e, square, SIN), r)
    sign = e.b.shl(odd, e.const(odd.type, 31))
    return e.b.bitcast(e.b.xor(e.b.bitcast(sine, odd.type), sign), x.type)


def _near(e: Emitter, x: Value, turn: int) -> tuple[Value, Value]:
    """r, and an integer that is odd where k is. With a turn, k counts from pi / 2 on."""
    t, rounding = x.type, e.const(x.type, ROUNDING)
    turns = e.fma(x, e.const(t, 1 / math.pi), e.const(t, -turn / 2))
    shifted = e.b.fadd(turns, rounding)
    k = e.b.bitcast(shifted, like(t, I32))
    n = e.b.fadd(e.b.fsub(shifted, rounding), e.const(t, turn / 2))
    r = x
    for part in PI if e.target.fma else PI_PARTS:
        r = e.fma(n, e.const(t, -part), r)
    return r, e.b.add(k, e.const(k.type, turn))


@cache
def _bits_of_two_by_pi() -> tuple[int, ...]:
    """2/pi in words of 64 bits behind one of zeros, from Machin's series."""
    bits = 64 * 5
    one = 1 << (bits + 32)

    def arctan(inverse: int) -> int:
        term, total, i = one // inverse, 0, 1
        while term:
            total += term // i if i % 4 == 1 else -(term // i)
            term //= inverse * inverse
            i += 2
        return total

    pi = 4 * (4 * arctan(5) - arctan(239))
    scaled = (2 * one << bits) // pi
    words = [scaled >> (bits - 64 * (i + 1)) & (1 << 64) - 1 for i in range(5)]
    return (0, *words)


def _far(e: Emitter, x: Value, turn: int) -> tuple[Value, Value]:
    """The same for any angle from 2**-39 on: x is m * 2**p, of whose product with 2/pi the two bits
    before the point and the 62 behind it matter. Of infinity and NaN r is NaN."""
    wide, f64 = like(x.type, I64), like(x.type, F64)

    def c(value: int) -> Value:
        return e.const(wide, value)

    bits = e.b.zext(e.b.bitcast(absolute(e, x), like(x.type, I32)), wide)
    m = e.b.or_(e.b.and_(bits, c((1 << 23) - 1)), c(1 << 23))
    start = e.b.add(e.b.lshr(bits, c(23)), c(62 - 150))  # the first bit that matters
    word, shift = e.b.lshr(start, c(6)), e.b.and_(start, c(63))
    words = [_chosen(e, word, _bits_of_two_by_pi()[i:]) for i in range(3)]
    high, low = (_funnel(e, words[i], words[i + 1], shift) for i in range(2))
    turns = e.b.add(e.b.mul(m, high), e.b.lshr(e.b.mul(m, e.b.lshr(low, c(32))), c(32)))
    negative = e.b.fcmp_ordered("<", x, e.const(x.type, 0))
    turns = e.b.select(negative, e.b.sub(c(0), turns), turns)
    turns = e.b.add(turns, c(turn << 62))
    odd = e.b.lshr(e.b.add(turns, c(1 << 62)), c(63))
    rest = e.b.sitofp(e.b.shl(turns, c(1)), f64)
    r = e.b.fptrunc(e.b.fmul(rest, e.const(f64, math.pi * 2.0**-64)), x.type)
    undefined = e.b.fsub(x, x)  # 0, or NaN
    return e.b.fadd(r, undefined), e.b.trunc(odd, like(x.type, I32))


def _chosen(e: Emitter, word: Value, words: tuple[int, ...]) -> Value:
    """One of the first three words."""
    found = e.const(word.type, words[0])
    for i in (1, 2):
        here = e.b.icmp_signed("==", word, e.const(word.type, i))
        found = e.b.select(here, e.const(word.type, words[i]), found)
    return found


def _funnel(e: Emitter, high: Value, low: Value, shift: Value) -> Value:
    """64 bits of the 128, from `shift` on."""
    rest = e.b.sub(e.const(shift.type, 63), shift)
    below = e.b.lshr(e.b.lshr(low, e.const(shift.type, 1)), rest)
    return e.b.or_(e.b.shl(high, shift), below)

"""FarmHash's Fingerprint64, over many keys of one length at a time.

LSH_PROJECTION hashes with it. The arithmetic is modulo 2**64, which is what NumPy's uint64 does.
"""

from __future__ import annotations

import numpy as np

from ..ir import Array

_K0 = np.uint64(0xC3A5C85C97CB3127)
_K1 = np.uint64(0xB492B66FBE98F273)
_K2 = np.uint64(0x9AE16A3B2F90404F)


def fingerprint64(keys: Array) -> Array:
    """uint8[..., n] to uint64[...]."""
    length = keys.shape[-1]
    with np.errstate(over="ignore"):
        if length <= 16:
            return _up_to_16(keys, length)
        if length <= 32:
            return _up_to_32(keys, length)
        return _up_to_64(keys, length) if length <= 64 else _longer(keys, length)


def _u(value: int) -> np.uint64:
    return np.uint64(value & 0xFFFFFFFFFFFFFFFF)


def _fetch(keys: Array, at: int, dtype: str = "<u8") -> Array:
    """The integers stored at this byte of every key."""
    size = np.dtype(dtype).itemsize
    words: Array = np.ascontiguousarray(keys[..., at : at + size]).view(dtype)[..., 0]
    return words.astype(np.uint64)


def _rotate(x: Array, shift: int) -> Array:
    turned: Array = (x >> _u(shift)) | (x << _u(64 - shift))
    return turned


def _mix(x: Array) -> Array:
    mixed: Array = x ^ (x >> _u(47))
    return mixed


def _pair(u: Array, v: Array, mul: Array | np.uint64) -> Array:
    a = _mix((u ^ v) * mul)
    return _mix((v ^ a) * mul) * mul


def _up_to_16(keys: Array, n: int) -> Array:
    mul = _u(int(_K2) + 2 * n)
    if n >= 8:
        a, b = _fetch(keys, 0) + _K2, _fetch(keys, n - 8)
        return _pair(_rotate(b, 37) * mul + a, (_rotate(a, 25) + b) * mul, mul)
    if n >= 4:
        a, b = _fetch(keys, 0, "<u4"), _fetch(keys, n - 4, "<u4")
        return _pair(_u(n) + (a << _u(3)), b, mul)
    if n == 0:
        return np.full(keys.shape[:-1], _K2)
    a, b, c = (keys[..., i].astype(np.uint64) for i in (0, n >> 1, n - 1))
    return _mix((a + (b << _u(8))) * _K2 ^ (_u(n) + (c << _u(2))) * _K0) * _K2


def _ends(keys: Array, n: int, first: np.uint64) -> tuple[Array, Array, Array, np.uint64]:
    """What both middle lengths make of the first and the last 16 bytes."""
    mul = _u(int(_K2) + 2 * n)
    a, b = _fetch(keys, 0) * first, _fetch(keys, 8)
    c, d = _fetch(keys, n - 8) * mul, _fetch(keys, n - 16) * _K2
    return a, _rotate(a + b, 43) + _rotate(c, 30) + d, a + _rotate(b + _K2, 18) + c, mul


def _up_to_32(keys: Array, n: int) -> Array:
    _, y, z, mul = _ends(keys, n, _K1)
    return _pair(y, z, mul)


def _up_to_64(keys: Array, n: int) -> Array:
    a, y, z, mul = _ends(keys, n, _K2)
    z = _pair(y, z, mul)
    e, f = _fetch(keys, 16) * mul, _fetch(keys, 24)
    g, h = (y + _fetch(keys, n - 32)) * mul, (z + _fetch(keys, n - 24)) * mul
    return _pair(_rotate(e + f, 43) + _rotate(g, 30) + h, e + _rotate(f + a, 18) + g, mul)


def _weak(keys: Array, at: int, a: Array, b: Array) -> tuple[Array, Array]:
    """Mix 32 bytes into a pair of seeds."""
    w, x, y, z = (_fetch(keys, at + 8 * i) for i in range(4))
    a = a + w
    b = _rotate(b + a + z, 21)
    c, a = a, a + x + y
    return a + z, b + _rotate(a, 44) + c


def _longer(keys: Array, n: int) -> Array:
    """Blocks of 64 bytes, the last of which overlaps the one before."""
    zero = np.zeros(keys.shape[:-1], np.uint64)
    x = zero + _u(81) * _K2 + _fetch(keys, 0)
    y = zero + (_u(81) * _K1 + _u(113))
    z = _mix(y * _K2 + _u(113)) * _K2
    v0, v1, w0, w1 = zero, zero, zero, zero
    end = (n - 1) // 64 * 64
    mul: Array | np.uint64 = _K1
    for at in [*range(0, end, 64), None]:
        nine = _u(1 if at is not None else 9)
        if at is None:
            at = n - 64
            mul = _K1 + ((z & _u(0xFF)) << _u(1))
            w0 = w0 + _u((n - 1) & 63)
            v0 = v0 + w0
            w0 = w0 + v0
        x = _rotate(x + y + v0 + _fetch(keys, at + 8), 37) * mul
        y = _rotate(y + v1 + _fetch(keys, at + 48), 42) * mul
        x = x ^ (w1 * nine)
        y = y + v0 * nine + _fetch(keys, at + 40)
        z = _rotate(z + w0, 33) * mul
        v0, v1 = _weak(keys, at, v1 * mul, x + w0)
        w0, w1 = _weak(keys, at + 32, z + w1, y + _fetch(keys, at + 16))
        z, x = x, z
    return _pair(_pair(v0, w0, mul) + _mix(y) * _K0 + z, _pair(v1, w1, mul) + x, mul)

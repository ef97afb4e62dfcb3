"""Sounds as inputs: .wav files of any PCM width, mixed to one channel, resampled where asked."""

from __future__ import annotations

import math
import struct
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import InputError
from ..files import read_bytes
from ..ir import Array, DType, Tensor

SOUNDS = (".wav",)
PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
KINDS = "PCM of 8, 16, 24 or 32 bits, or floats of 32 or 64 bits"
REACH = 16  # zero crossings of the resampling filter on either side
MOST = 1 << 26  # samples that a resampled sound may have: an hour at 16 kHz


@dataclass(frozen=True)
class Wave:
    samples: Array  # float64 [frames, channels] in [-1, 1]
    rate: int

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.rate


def read_sound(path: Path, tensor: Tensor, rate: int | None = None) -> Array:
    """The sound as the input takes it: reals in [-1, 1], or 16-bit samples for int16. All channels
    are mixed into one. What was cut, filled in or left as it is comes as a warning."""
    wave = read_wave(path)
    mono = wave.samples.mean(axis=1)
    if rate is not None and rate != wave.rate:
        mono = resampled(mono, wave.rate, rate, str(path))
    sized = _sized(mono, tensor, rate or wave.rate, path)
    if rate is None:
        _warn(
            f"{path}: {wave.rate} samples a second, taken as they are; a model for another rate "
            "needs --rate HZ"
        )
    if tensor.dtype is DType.INT16:
        return np.clip(np.rint(sized * 32768), -32768, 32767).astype(np.int16)
    return sized.astype(np.float32)


def _sized(mono: Array, tensor: Tensor, rate: int, path: Path) -> Array:
    """In the input's shape: one dimension is time, every other one is 1."""
    shape = tensor.signature or tensor.shape
    long = [n for n in shape if n != 1]
    if len(long) > 1 or not shape:
        raise InputError(
            f"a sound does not fit an input of {tensor.type_text}",
            where=str(path),
            fix="sounds fit inputs of one long dimension, such as [1, 16000]; a model "
            "of spectra takes these as .npy",
        )
    wanted = long[0] if long and long[0] > 0 else len(mono) if long else 1
    if len(mono) != wanted:
        what = "its beginning is taken" if len(mono) > wanted else "silence is put behind it"
        _warn(f"{path}: {len(mono) / rate:.3g} s, the model takes {wanted / rate:.3g} s: {what}")
    made = np.zeros(wanted)
    made[: min(wanted, len(mono))] = mono[:wanted]
    return made.reshape([n if n == 1 else wanted for n in shape])


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=3)


# -- the file -------------------------------------------------------------------------------------


def read_wave(path: Path) -> Wave:
    """The chunks `fmt ` and `data` of a RIFF file; others are passed over."""
    blob = read_bytes(path, "the sound", f"give a .wav file: {KINDS}")
    if blob[:4] != b"RIFF" or blob[8:12] != b"WAVE":
        raise _not_a_wave(path, "it does not begin with RIFF and WAVE")
    chunks = _chunks(blob)
    head, data = chunks.get(b"fmt ", b""), chunks.get(b"data")
    if len(head) < 16 or data is None:
        raise _not_a_wave(path, "its format or its samples are missing")
    kind, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", head)
    if kind == EXTENSIBLE and len(head) >= 26:  # the kind stands in front of the format's GUID
        (kind,) = struct.unpack_from("<H", head, 24)
    if not channels or not rate or (kind, bits) not in _DECODERS:
        raise _not_a_wave(path, f"format {kind} of {bits} bits, {channels} channels at {rate} Hz")
    whole = len(data) - len(data) % (channels * bits // 8)
    samples = _DECODERS[kind, bits](np.frombuffer(data[:whole], np.uint8)).reshape(-1, channels)
    if not len(samples):
        raise _not_a_wave(path, "it holds no sample")
    return Wave(samples, rate)


def _chunks(blob: bytes) -> dict[bytes, bytes]:
    """By name. The last may be cut off: what is there of it is taken, as players do."""
    found: dict[bytes, bytes] = {}
    place = 12
    while place + 8 <= len(blob):
        name, size = struct.unpack_from("<4sI", blob, place)
        found.setdefault(name, blob[place + 8 : place + 8 + size])
        place += 8 + size + size % 2
    return found


def _pcm24(raw: Array) -> Array:
    """Into the upper three bytes of 32 bits."""
    wide = np.zeros((len(raw) // 3, 4), np.uint8)
    wide[:, 1:] = raw.reshape(-1, 3)
    return wide.reshape(-1).view("<i4") / 2.0**31


_DECODERS: dict[tuple[int, int], Callable[[Array], Array]] = {
    (PCM, 8): lambda raw: (raw.astype(np.float64) - 128) / 128,
    (PCM, 16): lambda raw: raw.view("<i2") / 2.0**15,
    (PCM, 24): _pcm24,
    (PCM, 32): lambda raw: raw.view("<i4") / 2.0**31,
    (FLOAT, 32): lambda raw: raw.view("<f4").astype(np.float64),
    (FLOAT, 64): lambda raw: raw.view("<f8").astype(np.float64),
}


def _not_a_wave(path: Path, why: str) -> InputError:
    return InputError(f"not a readable .wav file: {why}", where=str(path), fix=f"give {KINDS}")


# -- another rate ---------------------------------------------------------------------------------


def resampled(samples: Array, old: int, new: int, where: str = "") -> Array:
    """At another rate, by a windowed sinc that also keeps what the new rate cannot hold away."""
    count = math.ceil(len(samples) * new / old)
    if not 0 < count <= MOST:
        raise InputError(
            f"{new} samples a second would be {count} samples",
            where=where,
            fix=f"choose --rate so that there are at most {MOST}",
        )
    cut = min(1.0, new / old)  # of the old rate's band
    half = math.ceil(REACH / cut)
    padded = np.pad(samples.astype(np.float64), half)
    made, offsets = np.empty(count), np.arange(1 - half, half + 1)
    for begin in range(0, count, 1 << 14):  # the table of weights stays small
        places = np.arange(begin, min(begin + (1 << 14), count)) * (old / new)
        first = np.floor(places).astype(np.intp)
        distance = (offsets[None] - (places - first)[:, None]) * cut
        window = np.cos(np.clip(distance / REACH, -1, 1) * np.pi / 2) ** 2
        taken = padded[first[:, None] + offsets + half]
        made[begin : begin + len(places)] = cut * (taken * np.sinc(distance) * window).sum(axis=1)
    return made

"""In which precision floats are kept and computed: by TensorFlow Lite's rules, or as asked.

Where `max_precision` stands among three priorities decides: first, f32; second, f32_f16 (kept in
16 bits, added up in 32); third, f16. A priority that is left open is filled in as TensorFlow Lite
does, and a device without half-precision arithmetic gets f32_f16 in the place of f16.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import DelegateError, InputError
from .devices.device import Offers

AUTO = "auto"
PRECISIONS = ("f32", "f32_f16", "f16", AUTO)
MAX_PRECISION, MIN_LATENCY, MIN_MEMORY = "max_precision", "min_latency", "min_memory_usage"
PRIORITIES = (AUTO, MAX_PRECISION, MIN_LATENCY, MIN_MEMORY)
# What follows the first priority where nobody says.
FOLLOWING = {
    MAX_PRECISION: (MIN_LATENCY, MIN_MEMORY),
    MIN_LATENCY: (MIN_MEMORY, MAX_PRECISION),
    MIN_MEMORY: (MAX_PRECISION, MIN_LATENCY),
}
_PLACES = ("inference_priority1", "inference_priority2", "inference_priority3")
_LOSS = "is_precision_loss_allowed"
BY_RANK = ("f32", "f32_f16", "f16")


def check_precision(chosen: Mapping[str, Any]) -> None:
    """Raise where the delegate's options contradict each other."""
    precision, loss = chosen.get("precision"), chosen.get(_LOSS)
    ranked = [name for name in _PLACES if name in chosen]
    if ranked and precision:
        raise contradiction(f"'precision' and '{ranked[0]}' both choose the precision")
    if ranked and loss is not None:
        raise contradiction(f"'{_LOSS}' and '{ranked[0]}' both choose the precision")
    if loss is False and precision not in (None, "f32"):
        raise contradiction(f"precision={precision} loses precision, and {_LOSS} is false")
    for name in ("samples", "precision_bound"):
        if name in chosen and precision != AUTO:
            raise InputError(
                f"'{name}' is of use with precision=auto only",
                where="delegate 'gpu'",
                fix=f"add precision=auto, or leave '{name}' out",
            )
    if ranked:
        _check_ranks([chosen.get(name, AUTO) for name in _PLACES])


def _check_ranks(asked: list[str]) -> None:
    known = [word for word in asked if word != AUTO]
    if len(set(known)) < len(known):
        raise contradiction(f"a priority is given twice: {', '.join(known)}")
    if asked[: len(known)] != known:
        first = _PLACES[asked.index(AUTO)]
        raise contradiction(f"'{first}' is left open, and one behind it is not")


def contradiction(what: str) -> InputError:
    return InputError(what, where="delegate 'gpu'", fix="leave one of them out")


def ranking(asked: list[str]) -> list[str]:
    """Three priorities of which those behind may be left open."""
    known = [word for word in asked if word != AUTO] or [MAX_PRECISION]
    if len(known) == 1:
        return [*known, *FOLLOWING[known[0]]]
    return [*known, *(word for word in FOLLOWING if word not in known)]


def wanted(chosen: Mapping[str, Any]) -> str:
    """The precision that the options ask for; `auto`: what is found out on samples."""
    if "precision" in chosen:
        return str(chosen["precision"])
    if _LOSS in chosen:
        return "f16" if chosen[_LOSS] else "f32"
    asked = [chosen.get(name, AUTO) for name in _PLACES]
    return BY_RANK[ranking(asked).index(MAX_PRECISION)]


def settled(chosen: Mapping[str, Any], offers: Offers) -> str:
    """The same on a device. Only who insists on f16 is refused where there is none."""
    found = wanted(chosen)
    if found != "f16" or offers.half:
        return found
    if chosen.get("precision") != "f16":
        return "f32_f16"
    raise DelegateError(
        f"{offers.name} has no half-precision arithmetic ({_EXTENSION[offers.interface]}), "
        "which precision=f16 needs and f32_f16 does not",
        where="delegate 'gpu'",
        fix="use precision=f32_f16, which keeps floats in 16 bits and computes in 32",
    )


_EXTENSION = {"opencl": "the extension cl_khr_fp16", "webgpu": "the feature shader-f16"}

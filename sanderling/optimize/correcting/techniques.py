"""The techniques of one quantisation, and the combinations of them that are worth trying."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...errors import InputError
from ..calibration.ranges import method_of
from ..modes.weights import METHODS as WEIGHT_METHODS

CORRECTIONS = ("equalise", "adaround", "scale", "bias")  # in the order in which they are done


@dataclass(frozen=True)
class Techniques:
    """How ranges and weights are found, and which corrections follow."""

    ranges: str = "minmax"
    weights: str = "max"
    corrections: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return " + ".join([f"{self.ranges} ranges", f"{self.weights} weights", *self.corrections])

    def plus(self, correction: str) -> Techniques:
        made = (c for c in CORRECTIONS if c in (*self.corrections, correction))
        return replace(self, corrections=tuple(made))


Variation = Callable[[Techniques], Techniques]


@dataclass(frozen=True)
class SearchSpace:
    """What is tried first, and the variations that follow, each on top of the best so far."""

    first: Techniques
    variations: tuple[Variation, ...]

    @classmethod
    def of(cls, ranges: str, weights: str, corrections: str | Sequence[str]) -> SearchSpace:
        """Read what the user stated; "auto" leaves it to the search."""
        if ranges != "auto":
            method_of(ranges)
        if weights not in ("auto", *WEIGHT_METHODS):
            raise InputError(
                f"there is no weight method '{weights}'",
                fix=f"one of auto, {', '.join(WEIGHT_METHODS)}",
            )
        named = corrections.split(",") if isinstance(corrections, str) else corrections
        stated = [c.strip() for c in named]
        first = Techniques(
            "minmax" if ranges == "auto" else ranges,
            "max" if weights == "auto" else weights,
            _corrections(stated),
        )
        auto = "auto" in stated
        # In the order of what they cost.
        variations: tuple[tuple[bool, Variation], ...] = (
            (auto, lambda t: t.plus("bias")),
            (auto, lambda t: t.plus("scale")),
            (auto, lambda t: t.plus("equalise")),
            (ranges == "auto", lambda t: replace(t, ranges="l3")),
            (weights == "auto", lambda t: replace(t, weights="mse")),
            (auto, lambda t: t.plus("adaround")),
        )
        return cls(first, tuple(vary for is_open, vary in variations if is_open))


def _corrections(stated: Sequence[str]) -> tuple[str, ...]:
    unknown = [c for c in stated if c not in (*CORRECTIONS, "auto", "none", "")]
    if unknown:
        raise InputError(
            f"there is no correction '{unknown[0]}'",
            fix=f"auto, none, or of {', '.join(CORRECTIONS)}",
        )
    return tuple(c for c in CORRECTIONS if c in stated)

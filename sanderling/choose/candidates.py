"""Candidates of a choice: their figures, who beats whom, and which one a budget allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..measure.engine_agreement import group
from ..units import byte_size

# Figures of a candidate, and whether more is better.
MORE, LESS = 1.0, -1.0
AXES = {"accuracy": MORE, "latency": LESS, "size": LESS}


@dataclass
class Candidate:
    """A model at a setting. accuracy: the task's headline, with the interval of it alone where the
    task knows one. against_best: its paired difference from the most accurate one. latency: seconds
    of an inference, with its interval. size: bytes of the file. memory: bytes that the process grew
    by. is_judged_elsewhere: its accuracy is not that of the delegate or device whose latency it
    has."""

    model: str
    path: str
    setting: str
    accuracy: float
    accuracy_interval: tuple[float, float] | None = None
    against_best: dict[str, float] | None = None
    latency: float = 0.0
    latency_interval: tuple[float, float] | None = None
    size: int = 0
    memory: int | None = None
    quantisation: str = ""
    is_judged_elsewhere: bool = False
    beaten_by: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.model} ({self.setting})"

    @property
    def is_on_front(self) -> bool:
        return not self.beaten_by

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name} | asdict(self) | {"is_on_front": self.is_on_front}


def beats(one: Candidate, other: Candidate, axes: Sequence[str] = tuple(AXES)) -> bool:
    """At least as good in every figure, and better in one."""
    gains = [AXES[a] * (float(vars(one)[a]) - float(vars(other)[a])) for a in axes]
    return all(g >= 0 for g in gains) and any(g > 0 for g in gains)


def mark_front(candidates: Sequence[Candidate]) -> None:
    """Write into each candidate who beats it; those that nobody beats are the front."""
    for one in candidates:
        one.beaten_by = [other.name for other in candidates if beats(other, one)]


def front(candidates: Sequence[Candidate], axes: Sequence[str]) -> list[Candidate]:
    """The candidates that nobody beats in these figures, the least accurate first."""
    kept = [c for c in candidates if not any(beats(o, c, axes) for o in candidates)]
    return sorted(kept, key=lambda c: (c.accuracy, -c.latency))


# -- budgets --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Budgets:
    """Bounds that a candidate has to keep; None: no bound."""

    max_latency: float | None = None
    max_size: int | None = None
    min_accuracy: float | None = None
    max_memory: int | None = None

    @property
    def are_given(self) -> bool:
        return any(bound is not None for bound in vars(self).values())

    def misses(self, one: Candidate) -> list[str]:
        """What a candidate misses, in words."""
        found = []
        if self.max_latency is not None and one.latency > self.max_latency:
            found.append(f"takes {_ms(one.latency)}, {_ms(self.max_latency)} at most")
        if self.max_size is not None and one.size > self.max_size:
            found.append(f"has {byte_size(one.size)}, {byte_size(self.max_size)} at most")
        if self.min_accuracy is not None and one.accuracy < self.min_accuracy:
            found.append(f"reaches {one.accuracy:.4g}, {self.min_accuracy:.4g} at least")
        if self.max_memory is not None and one.memory is None:
            found.append("takes memory that was not measured")
        elif self.max_memory is not None and (one.memory or 0) > self.max_memory:
            held, most = byte_size(one.memory or 0), byte_size(self.max_memory)
            found.append(f"takes {held} of memory, {most} at most")
        return found

    def excess(self, one: Candidate) -> float:
        """How far it is from keeping the bounds, as a sum of shares."""
        shares = [
            _over(one.latency, self.max_latency),
            _over(one.size, self.max_size),
            _over(one.memory or 0, self.max_memory),
        ]
        if self.min_accuracy:
            shares.append(max(0.0, 1 - one.accuracy / self.min_accuracy))
        return sum(shares)


def _over(value: float, bound: float | None) -> float:
    return 0.0 if not bound else max(0.0, value / bound - 1)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


@dataclass
class Answer:
    """chosen: the candidate to take, or None. why: in a sentence. next_steps: commands to go on
    with where nothing fits."""

    chosen: str | None
    why: str
    next_steps: list[str] = field(default_factory=list)


# One candidate's accuracy less another's, with its interval; None where that is not known.
Difference = Callable[[Candidate, Candidate], Mapping[str, float] | None]


def from_the_best(one: Candidate, other: Candidate) -> Mapping[str, float] | None:
    """What is known of the most accurate candidate of all."""
    is_best = other.against_best is not None and other.against_best["value"] == 0
    return one.against_best if is_best else None


def answer(
    candidates: Sequence[Candidate], budgets: Budgets, difference: Difference = from_the_best
) -> Answer:
    """The most accurate candidate within the budgets; of those whose accuracy cannot be told from
    its own, the fastest."""
    fitting = [c for c in candidates if not budgets.misses(c)]
    if not fitting:
        return _nearest(candidates, budgets)
    best = max(fitting, key=lambda c: (c.accuracy, -c.latency))
    alike = [c for c in fitting if c is best or _is_alike(c, best, difference)]
    chosen = min(alike, key=lambda c: (c.latency, c.size))
    few = f"{len(fitting)} of {len(candidates)} keep the budgets"
    if chosen is best:
        return Answer(chosen.name, f"{few}; it is the most accurate of them")
    return Answer(
        chosen.name,
        f"{few}; its accuracy cannot be told from that of {best.name}, and it is faster",
    )


def _is_alike(one: Candidate, best: Candidate, difference: Difference) -> bool:
    """Whether the paired interval of their difference holds 0, as far as it is known."""
    found = difference(one, best)
    return one.accuracy == best.accuracy if found is None else found["low"] <= 0 <= found["high"]


def _nearest(candidates: Sequence[Candidate], budgets: Budgets) -> Answer:
    near = min(candidates, key=budgets.excess)
    misses = "; ".join(budgets.misses(near))
    why = f"none keeps the budgets; the nearest is {near.name}, which {misses}"
    return Answer(None, why, next_steps(near, candidates, budgets))


def next_steps(near: Candidate, candidates: Sequence[Candidate], budgets: Budgets) -> list[str]:
    """Commands that may bring a candidate within the budgets."""
    best = max(candidates, key=lambda c: c.accuracy)
    missed = {
        "size": budgets.max_size is not None and near.size > budgets.max_size,
        "latency": budgets.max_latency is not None and near.latency > budgets.max_latency,
        "accuracy": budgets.min_accuracy is not None and near.accuracy < budgets.min_accuracy,
    }
    found = []
    if (missed["size"] or missed["latency"]) and is_float(near):
        found.append(f"sanderling quantize {near.path} --suggest")
    if missed["accuracy"] and best is not near and is_float(best):
        found.append(f"sanderling quantize {best.path} --suggest")
    if missed["latency"]:
        found.append(f"sanderling tune {near.path}")
    if missed["size"] and not is_float(near):
        found += _smaller(candidates)
    return found or [f"sanderling profile {best.path}"]


def _smaller(candidates: Sequence[Candidate]) -> list[str]:
    """Where codes alone are too large: fewer channels of a float model, which is quantised then."""
    source = min(filter(is_float, candidates), key=lambda c: c.size, default=None)
    if source is None:
        return []
    return [f"sanderling prune {source.path} --structure channels --data SAMPLES -o SMALLER.tflite"]


def is_float(one: Candidate) -> bool:
    return group(one.quantisation) == "float"

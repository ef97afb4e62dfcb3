"""What `advise` says: advice that gained in a trial, what was looked at, and what was noted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import InputError
from ..findings import Finding
from ..ir import Model
from ..measure.machine import machine
from ..measure.record import Setting
from ..rules.tables import find_table
from ..rules.tables import names as rule_names

SCHEMA = "sanderling.advise/1"
# Goal -> the figure that counts, and what is said of it. Answers are kept closer for `accuracy`.
GOALS = {
    "latency": ("latency", "of its time"),
    "size": ("size", "of its size"),
    "memory": ("memory", "of its memory"),
    "energy": ("energy", "of its CPU time"),
    "accuracy": ("latency", "of its time"),
}
REFUSED = "refused"  # the figure of accelerators: ops that they do not take
WORDS = dict(GOALS.values()) | {REFUSED: "of its refused ops"}
LEAST = 0.97  # a gain that is smaller is not worth a change of the model


@dataclass(frozen=True)
class Destination:
    """Where the model is to run. engine: who is measured here; rules: what judges it instead;
    accelerator: as the decision tree of `quantize --suggest` calls it."""

    name: str
    title: str
    engine: str = ""
    rules: str = ""
    accelerator: str = "none"

    @property
    def is_ours(self) -> bool:
        return self.engine == "sanderling"


MEASURED = {
    "cpu": Destination("cpu", "this machine's CPU, run by Sanderling", "sanderling"),
    "phone": Destination("phone", "a phone's CPU; LiteRT on this machine stands for it", "litert"),
}
_ACCELERATORS = {"gpu": "gpu", "edgetpu": "edgetpu", "hexagon": "dsp"}


def target_of(name: str) -> Destination:
    """A target by its name; the error lists what there is."""
    if name in MEASURED:
        return MEASURED[name]
    if name not in rule_names():
        known = ", ".join([*MEASURED, *(n for n in rule_names() if n not in MEASURED)])
        raise InputError(f"there is no target '{name}'", fix=f"one of {known}")
    kind = _ACCELERATORS.get(name.partition(":")[0], "none")
    return Destination(name, find_table(name).title, rules=name, accelerator=kind)


# -- figures --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gain:
    """A figure after over the figure before, with its interval; below 1 is a gain."""

    value: float
    low: float
    high: float

    @classmethod
    def exact(cls, after: float, before: float) -> Gain:
        value = after / before if before else 1.0
        return cls(value, value, value)

    @property
    def width(self) -> float:
        """The width of the interval, in logarithms: the same for 0.5 and for 2."""
        return math.log(self.high / self.low) if self.low > 0 else math.inf

    @property
    def is_worth_it(self) -> bool:
        return self.high < 1 and self.value <= LEAST

    @property
    def is_unsure(self) -> bool:
        """It may be worth it, and the interval does not tell."""
        return self.value <= LEAST and not self.is_worth_it

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.value:.2f}"
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class Cost:
    """How far the answers of a trial are from the model's. agreement: of the first classes, where
    outputs have them; snr: of the worst output, in dB. on: the inputs."""

    agreement: float | None
    snr: float
    on: str

    def __str__(self) -> str:
        if self.agreement is not None:
            return f"{self.agreement:.1%} of first classes agree, {self.on}"
        if self.snr == float("inf"):
            return f"answers are the same, {self.on}"
        return f"answers at {self.snr:.1f} dB, {self.on}"


@dataclass(frozen=True)
class Bounds:
    """What answers have to reach."""

    agreement: float
    snr: float

    def allow(self, cost: Cost) -> bool:
        if cost.agreement is not None:
            return cost.agreement >= self.agreement
        return cost.snr >= self.snr


BOUNDS = Bounds(0.9, 10.0)
CLOSE = Bounds(0.99, 30.0)  # for the goal `accuracy`


# -- trials ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """What is tried: another model, or another setting of the same. is_exact: answers may differ by
    rounding alone. needs: what has to come from the user before the result is of use."""

    name: str
    make: Callable[[], Model] | None = None
    setting: Setting | None = None
    is_exact: bool = True
    needs: str = ""


@dataclass(frozen=True)
class Proposal(Finding):
    """A finding that can be tried. `do` is the command. rank: of those of one kind, only the one
    that gains most is advised."""

    trial: Trial = field(default_factory=lambda: Trial(""))


@dataclass
class Tried:
    """What came of a trial; problem: why there are no figures."""

    proposal: Proposal
    gains: dict[str, Gain] = field(default_factory=dict)
    cost: Cost | None = None
    problem: str = ""


# -- the answer -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Advice:
    """Something to do. evidence: what was measured of the model now; gain: in the goal's figure,
    measured in a trial; gains: in all figures; command: what to run next."""

    kind: str
    name: str
    evidence: str
    why: str
    gain: Gain
    figure: str
    gains: Mapping[str, Gain]
    cost: str
    command: str

    @property
    def text(self) -> str:
        if self.figure == REFUSED and not self.gain.value:
            return "no op is refused any more"
        return f"{self.gain} {WORDS[self.figure]}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"text": self.text}


@dataclass(frozen=True)
class LookedAt:
    """Something that was tried or judged and is not advised, with its figure and the reason."""

    kind: str
    name: str
    why: str
    gain: Gain | None = None
    command: str = ""


@dataclass
class Advised:
    """What `advise` found. wants: what may gain once the user gives what it needs."""

    model: str
    target: Destination
    goal: str
    about: str
    advice: list[Advice] = field(default_factory=list)
    wants: list[LookedAt] = field(default_factory=list)
    noted: list[Finding] = field(default_factory=list)
    looked_at: list[LookedAt] = field(default_factory=list)
    seconds: float = 0.0
    warnings: list[str] = field(default_factory=list)
    interrupted: bool = False

    @property
    def verdict(self) -> str:
        if self.interrupted:
            return "interrupted: what was not tried yet is not judged"
        unsure = [one.name for one in self.looked_at if one.gain and one.gain.is_unsure]
        if not self.advice and unsure:
            return f"no gain that can be told on this machine now; unsure: {', '.join(unsure)}"
        if not self.advice:
            return "nothing to gain: the model is as good as it gets by what was looked at"
        best = self.advice[0]
        return f"most is gained by {best.name}: {best.text}"

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "model": self.model,
            "target": asdict(self.target),
            "goal": self.goal,
            "about": self.about,
            "verdict": self.verdict,
            "advice": [one.to_json() for one in self.advice],
            "wants": [asdict(one) for one in self.wants],
            "noted": [asdict(one) for one in self.noted],
            "looked_at": [asdict(one) for one in self.looked_at],
            "seconds": self.seconds,
            "machine": machine(),
            "warnings": self.warnings,
            "interrupted": self.interrupted,
        }

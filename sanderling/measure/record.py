"""The record of one measured configuration: the same for our runtime, for peers and for devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from .statistics import Summary, summary


@dataclass(frozen=True)
class Setting:
    """How a model is run. Engines ignore what they do not have; `device` is "local" or a device's
    name such as android:SERIAL."""

    engine: str = "sanderling"
    threads: int = 1
    delegates: tuple[str, ...] = ()
    precision: str = "f32"  # of float models; quantised ones are run as they are
    device: str = "local"

    @property
    def name(self) -> str:
        """Short and unique among settings: what a table's row is called."""
        parts = [self.engine if self.device == "local" else f"{self.device} {self.engine}"]
        parts += ["+".join(self.delegates)] if self.delegates else []
        parts += [f"{self.threads} thread{'s' * (self.threads > 1)}"]
        parts += [self.precision] if self.precision != "f32" else []
        return ", ".join(parts)


@dataclass
class Result:
    """What was measured of one model at one setting; times are in seconds, memory in bytes.

    A setting that failed has `error` and no samples. Memory is by what holds it; a key that could
    not be measured is absent, never 0.
    """

    model: str
    setting: Setting
    init: float | None = None  # load, delegate, compile, allocate
    first: float | None = None  # the first inference
    warmup: list[float] = field(default_factory=list)
    rounds: list[list[float]] = field(default_factory=list)  # steady state, by round
    memory: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    error: str = ""

    @property
    def samples(self) -> list[float]:
        return [s for r in self.rounds for s in r]

    @property
    def summary(self) -> Summary | None:
        return summary(self.samples)

    def to_json(self) -> dict[str, Any]:
        """With the summary, which a reader wants first."""
        found = self.summary
        return asdict(self) | {"summary": found.to_json() if found else None}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Result:
        known = {f.name: record[f.name] for f in fields(cls) if f.name in record}
        setting = dict(known["setting"])
        setting["delegates"] = tuple(setting.get("delegates", ()))
        return cls(**known | {"setting": Setting(**setting)})

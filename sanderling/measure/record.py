"""The record of one measured configuration: the same for our runtime, for peers and for devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import accumulate
from statistics import median
from typing import Any

from ..errors import InputError
from ..runtime.registry import FALLBACK
from .sample_statistics import Summary, summary


@dataclass(frozen=True)
class Setting:
    """How a model is run. Engines ignore what they do not have; `device` is "local" or a device's
    name such as android:SERIAL."""

    engine: str = "sanderling"
    threads: int = 1
    delegates: tuple[str, ...] = ()
    precision: str = "f32"  # of float models; quantised ones are run as they are
    device: str = "local"
    contend: int = 0  # busy threads of others beside it
    batch: int = 1  # so many times the samples that the inputs have, in one inference
    # Flags of TensorFlow Lite's tools about partitions and delegates, which sessions keep.
    flags: tuple[tuple[str, Any], ...] = ()
    ran: str = ""  # who ran it, where a delegate that is named took no op

    @property
    def asked(self) -> Setting:
        """The setting as it was asked for, whoever ran it."""
        return replace(self, ran="")

    @property
    def name(self) -> str:
        """Short and unique among settings: what a table's row is called."""
        parts = [self.engine if self.device == "local" else f"{self.device} {self.engine}"]
        chosen = _shortest(self.delegates) if self.device == "local" else self.delegates
        parts += [self.ran or "+".join(chosen)] if chosen else []
        parts += [f"{self.threads} thread{'s' * (self.threads > 1)}"]
        parts += [self.precision] if self.precision != "f32" else []
        parts += [f"batch {self.batch}"] if self.batch > 1 else []
        parts += [f"{self.contend} busy beside"] if self.contend else []
        parts += [f"{name}={value}" for name, value in self.flags]
        return ", ".join(parts)


def is_default(setting: Setting) -> bool:
    """Ours, without a delegate of others: the cpu alone."""
    return setting.engine == "sanderling" and not _shortest(setting.delegates)


def _shortest(delegates: tuple[str, ...]) -> tuple[str, ...]:
    """The fewest delegates that ask for the same: none, cpu and cpu+reference are one setting."""
    whole = _with_fallback(delegates)
    return next(w for n in range(len(whole) + 1) if _with_fallback(w := whole[:n]) == whole)


def _with_fallback(delegates: tuple[str, ...]) -> tuple[str, ...]:
    """As `runtime.registry.resolve` completes them: whoever stands after the last gets no op."""
    if FALLBACK[-1] in delegates:
        return delegates[: delegates.index(FALLBACK[-1]) + 1]
    return delegates + tuple(n for n in FALLBACK if n not in delegates)


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
    stated: Summary | None = None  # by a device that keeps its samples to itself
    # What is known only of local runs, which are repeated in several fresh processes.
    launches: list[int] = field(default_factory=list)  # how many of the rounds each process gave
    inits: list[float] = field(default_factory=list)  # of each process; init is their median
    firsts: list[float] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)  # seconds from the first round of any setting
    block: int = 1  # inferences that a sample is the mean of
    imports: float | None = None  # of the engine's package
    stable: bool = True  # the warm-up came to rest within its time
    cpu_seconds: float = 0.0
    cpu_times: list[float] = field(default_factory=list)  # CPU seconds of an inference, by round
    partial: bool = False  # interrupted before all of its processes had their time
    switches: int = 0  # times that the scheduler took a CPU away
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def by_launch(self) -> list[list[list[float]]]:
        """The rounds of each process."""
        if not self.launches:
            return [self.rounds] if self.rounds else []
        return self._of_launches(self.rounds)

    @property
    def cpu_by_launch(self) -> list[list[list[float]]]:
        """CPU seconds of an inference by round, for each process; none where a clock was too
        coarse."""
        if not self.cpu_times or min(self.cpu_times) <= 0:
            return []
        return self._of_launches([[seconds] for seconds in self.cpu_times])

    def _of_launches(self, rounds: list[list[float]]) -> list[list[list[float]]]:
        ends = list(accumulate(self.launches))
        return [rounds[end - n : end] for n, end in zip(self.launches, ends, strict=True)]

    @property
    def throughput(self) -> float | None:
        """Inferences a second, one after the other."""
        found = self.summary
        return 1 / found.mean if found and found.mean else None

    @property
    def cpu_time(self) -> float | None:
        """CPU seconds of an inference, over all threads: what it costs in energy, about."""
        return median(self.cpu_times) if self.cpu_times else None

    @property
    def samples(self) -> list[float]:
        return [s for r in self.rounds for s in r]

    @property
    def summary(self) -> Summary | None:
        return self.stated or summary(self.samples)

    @property
    def measured(self) -> Summary:
        """The summary of a setting that did not fail, where `summary` may be None."""
        found = self.summary
        if found is None:
            raise InputError(
                f"{self.setting.name} has no samples",
                where=self.model,
                fix=self.error or "measure it again",
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the record together with its summary, which readers look at first."""
        found = self.summary
        figures = {"summary": found.to_json() if found else None, "throughput": self.throughput}
        return {"name": self.setting.name} | asdict(self) | figures

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Result:
        known = {f.name: record[f.name] for f in fields(cls) if f.name in record}
        named = {f.name for f in fields(Setting)}
        setting = {k: v for k, v in known["setting"].items() if k in named}
        setting["delegates"] = tuple(setting.get("delegates", ()))
        setting["flags"] = tuple((n, v) for n, v in setting.get("flags", ()))
        stated = Summary(**known["stated"]) if known.get("stated") else None
        return cls(**known | {"setting": Setting(**setting), "stated": stated})

"""What a quantisation did, layer by layer, and what it cost: for people, JSON and pages."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from ...errors import InputError
from ...format import dump
from ...ir import Model, Op
from ..modes.recipe import Choice
from ..modes.xnnpack import refused
from ..writing.apply import Quantised
from .judge import Candidate
from .layer_error import LayerRow

SCHEMA = "sanderling.quantize/1"


@dataclass
class Trial:
    """One model that was tried on the way to a target."""

    name: str
    score: float  # what the target is about, on samples that judge
    size: int  # bytes
    latency: float  # seconds of the fastest run, on this machine
    choice: float | None = None  # the same on the samples that choose, where those are others
    kept: list[str] = field(default_factory=list)  # outputs of the ops that got the finer mode
    meets: bool = False
    pareto: bool = False  # none is better in one of score, size and latency and as good in the rest
    chosen: bool = False


class Measured(Protocol):
    """What every report of an optimisation has, whatever the optimisation: the rows of its tables
    are made from it."""

    size_before: int
    size_after: int
    zipped_before: int
    zipped_after: int
    accuracy: dict[str, Any]
    latency: list[dict[str, Any]]
    target: dict[str, Any]
    trials: list[Trial]


@dataclass
class Report:
    """Sizes in bytes; `zipped` is what deflate leaves of the file."""

    source: str
    modes: dict[str, int]
    size_before: int
    size_after: int
    zipped_before: int
    zipped_after: int
    rules: list[dict[str, str]]
    stayed_float: list[dict[str, str]]
    fell_back: list[dict[str, str]] = field(default_factory=list)  # ops that got another mode
    samples: int = 0  # that calibrated
    held_out: int = 0  # that calibrated nothing and judge
    kinds: dict[str, dict[str, str]] = field(default_factory=dict)  # of the outputs, and why
    layers: list[LayerRow] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refused: list[dict[str, str]] = field(default_factory=list)  # what XNNPACK will not take
    accuracy: dict[str, Any] = field(default_factory=dict)  # of a task, before and after
    latency: list[dict[str, Any]] = field(default_factory=list)  # by engine, before and after
    target: dict[str, Any] = field(default_factory=dict)  # what was asked, what was reached
    trials: list[Trial] = field(default_factory=list)

    @classmethod
    def of(cls, source: Model, made: Quantised, rules: Sequence[Choice]) -> Report:
        solution, written = made.solution, made.written
        before, after = bytes(dump(source)), bytes(dump(made.model))
        became = {op: written.became.get(op, "float") for op in solution.modes}
        left = solution.reasons | {
            op: why for op, why in written.reasons.items() if became[op] == "float"
        }
        floats = [_row(op, why) for op, why in left.items()]
        other = [
            _row(op, f"{written.became[op]} instead of {solution.modes[op].name}: {why}")
            for op, why in written.reasons.items()
            if became[op] != "float"
        ]
        slow = [_row(op, why) for op, why in refused(made.model)]
        return cls(
            source.source,
            dict(Counter(became.values())),
            len(before),
            len(after),
            zipped_size(before),
            zipped_size(after),
            [asdict(r) for r in rules],
            floats,
            other,
            refused=slow,
        )

    @property
    def chosen(self) -> Candidate:
        """How near to float the model is that was written: of the candidates the chosen one."""
        for candidate in self.candidates:
            if candidate.chosen:
                return candidate
        raise InputError(
            "nothing was judged", where="report.chosen", fix="quantise with samples: data=..."
        )

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA} | asdict(self)


def _row(op: Op, why: str) -> dict[str, str]:
    return {"op": op.name, "output": op.outputs[0].name if op.outputs else "", "reason": why}


def zipped_size(content: bytes) -> int:
    """What deflate leaves of a file."""
    return len(zlib.compress(content, 6))

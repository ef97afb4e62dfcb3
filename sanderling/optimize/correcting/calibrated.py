"""A float model with its ranges and the samples that the later stages look at."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...errors import InputError
from ...format import dump
from ...ir import Model
from ...processors import usable_cpu_count
from ..calibration.calibrate import Progress, Sample, calibrate, synthetic
from ..calibration.nested import NestedObserver, entry_statistics
from ..writing.apply import Quantiser
from .equalise import regions
from .held_out import Feeds, SampleSplit

Data = Iterable[Sample] | Mapping[str, Iterable[Sample]]


class DataWarning(UserWarning):
    """Ranges come from made-up data."""


@dataclass
class Calibrated:
    """What calibration gives to the stages after it."""

    quantiser: Quantiser  # with the ranges that were found
    observer: NestedObserver  # runs the float model
    samples: int  # that calibrated
    away: int  # that were held out
    judging: list[Feeds]  # held out, or all where none could be
    correcting: list[Feeds]  # for the corrections to look at
    threads: int
    notes: list[str]
    progress: Progress | None = None

    @property
    def float_model(self) -> Model:
        return self.quantiser.float_model


def calibrated(
    quantiser: Quantiser,
    data: Data | None,
    keep: str | Path | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Calibrated:
    """Find the ranges of the quantiser's model, or make them up without data."""
    model, notes, threads = quantiser.float_model, list[str](), threads or usable_cpu_count()
    given = _made_up(model, notes) if data is None else _of_main(data, model)
    by_channel = {t.name for region in regions(model.main) for t in region.tensors}
    observer = NestedObserver(model.copy(), threads, by_channel)
    split = SampleSplit(model.main)
    total = len(given) if isinstance(given, Sequence) else 0
    identity = hashlib.sha256(dump(model)).hexdigest()
    found = calibrate(observer, given, keep, identity, progress, total, split.take)
    away = split.away
    if not found.samples:  # so few that all were held out
        found, away = calibrate(observer, split.held), 0
    for key, part in _of_other_graphs(data, model).items():
        found.tensors |= entry_statistics(model, key, part, threads, progress)
    if not away:
        notes.append(
            "So few samples that none could be held out: the figures are of those that calibrated."
        )
    return Calibrated(
        replace(quantiser, calibration=found),
        observer,
        found.samples,
        away,
        split.judging,
        split.correcting,
        threads,
        notes,
        progress,
    )


def _made_up(model: Model, notes: list[str]) -> Iterable[Sample]:
    warnings.warn(
        "no calibration data: ranges come from noise, which is good for a quick look at size and "
        "speed, not for accuracy",
        DataWarning,
        stacklevel=4,
    )
    notes.append("Ranges come from made-up data: do not ship this model.")
    return list(synthetic(model))


def _of_main(data: Data, model: Model) -> Iterable[Sample]:
    """The samples of the signatures that run the main graph."""
    if not isinstance(data, Mapping):
        return data
    known = {s.key: s for s in model.signatures}
    for key in data:
        if key not in known:
            raise InputError(
                f"there is no signature '{key}'",
                where="calibration data",
                fix=f"the signatures: {', '.join(known) or 'none'}; arrays by input name go into a "
                "list of samples",
            )
    return _chained(part for key, part in data.items() if known[key].graph is model.main)


def _of_other_graphs(data: Data | None, model: Model) -> dict[str, Iterable[Sample]]:
    """The samples of signatures that run graphs of their own."""
    if not isinstance(data, Mapping):
        return {}
    return {key: part for key, part in data.items() if model.signature(key).graph is not model.main}


def _chained(parts: Iterable[Iterable[Sample]]) -> Iterator[Sample]:
    for part in parts:
        yield from part

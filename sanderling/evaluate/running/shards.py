"""A piece of an evaluation: what travels to whoever does it, how it is done, where it is kept."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...errors import CacheWarning, InputError, SanderlingError
from ...format import load
from ...ir import Array, Shape
from ...measure.inputs import resize
from ...measure.record import Setting
from ...store import Store
from ...version import __version__
from ..task import PortableTask, Ports, Prediction, Prepared, Sample, Task, TaskFile, run_each
from .engine_runner import PeerRunner, Runner, make_runner, warm_up
from .prediction_file import canonical, pack, rows, transposed, unpack
from .prefetch import prepared
from .sample_inputs import Feeds, TaskError, blame

MOST_IN_A_SHARD = 64
FEWEST_SHARDS = 16  # where there are samples for so many
OLD = 30 * 86400  # seconds after which an interrupted run is forgotten


class Failure(NamedTuple):
    """A sample that could not be prepared."""

    id: str
    why: str


@dataclass
class SampleOutcome:
    """What became of one sample: a prediction, or why there is none; and how long it took."""

    index: int
    prediction: Prediction | None = None
    failure: str = ""
    seconds: dict[str, float] = field(default_factory=dict)


class Shard(NamedTuple):
    number: int
    start: int
    samples: list[Sample]


def cut(samples: Sequence[Sample]) -> list[Shard]:
    """The same shards whoever does them, so that an interrupted run may go on with other means."""
    size = max(1, min(MOST_IN_A_SHARD, -(-len(samples) // FEWEST_SHARDS)))
    starts = range(0, len(samples), size)
    return [Shard(i, s, list(samples[s : s + size])) for i, s in enumerate(starts)]


# -- doing --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EvaluationWork:
    """All that a process has to be told, once, before it takes shards."""

    model: str  # the file
    setting: Setting
    recipe: PortableTask
    plugins: tuple[TaskFile, ...] = ()
    shapes: tuple[tuple[str, Shape], ...] = ()  # of inputs, by name, where they are not the file's

    def __call__(self) -> Callable[[Shard], list[SampleOutcome]]:
        """What a pool's process answers shards with."""
        return Evaluator(self).shard


class Evaluator:
    """A task and an engine in one process. task: the user's own, in the process that has it."""

    def __init__(self, work: EvaluationWork, task: Task | None = None) -> None:
        run_each(work.plugins)
        self.work = work
        self.model = load(work.model)
        resize(self.model, dict(work.shapes))
        self.ports = Ports.of(self.model)
        self.task = task or work.recipe.make()
        self.task.open(self.ports)

    @cached_property
    def runner(self) -> Runner | PeerRunner:
        made = make_runner(self.model, self.work.setting)
        warm_up(made, self.ports)
        return made

    def ops_by_delegate(self) -> dict[str, int]:
        """Who runs how many ops; nothing where only other processes ran the model."""
        return self.runner.ops_by_delegate() if "runner" in vars(self) else {}

    def idle_delegates(self) -> list[str]:
        """A sentence for each delegate that was asked for and ran nothing; none where only other
        processes ran the model."""
        return self.runner.idle_delegates() if "runner" in vars(self) else []

    def shard(self, shard: Shard) -> list[SampleOutcome]:
        jobs = list(enumerate(shard.samples, shard.start))
        return [
            self.finish(index, shard.samples[index - shard.start], made)
            for index, made in prepared(self.task, jobs)
        ]

    def finish(self, index: int, sample: Sample, made: Prepared | str) -> SampleOutcome:
        """Inference and what follows it, unless there are no inputs, but the reason why."""
        if isinstance(made, str):
            return SampleOutcome(index, failure=made)
        _ = self.runner  # its making does not count
        begin = time.perf_counter()
        try:
            outputs = self._infer(made.feeds)
        except SanderlingError as error:
            raise InputError(
                error.what, where=f"sample '{sample.id}': {error.where}", fix=error.fix
            ) from error
        middle = time.perf_counter()
        with blame(self.task, "postprocess", sample):
            prediction = self.task.postprocess(sample, self.ports.reals(outputs), made.context)
        if not prediction:
            raise TaskError(
                f"postprocess of task '{self.task.name}' kept nothing of sample '{sample.id}'",
                fix="return what `metric` needs",
            )
        end = time.perf_counter()
        seconds = dict(made.seconds) | {"inference": middle - begin, "postprocess": end - middle}
        return SampleOutcome(index, canonical(prediction), seconds=seconds)

    def _infer(self, feeds: Feeds) -> dict[str, Array]:
        if isinstance(feeds, Mapping):
            return self.runner(feeds)
        pieces = [self.runner(f) for f in feeds]
        return {n: np.concatenate([p[n] for p in pieces]) for n in pieces[0]}


# -- keeping ------------------------------------------------------------------------------------


class Shelf:
    """The folder of shards that are done. It is removed when all are, and old ones with it."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        if folder is not None:
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(
                    f"shards cannot be kept: {error.strerror}",
                    where=str(folder),
                    fix="choose another folder",
                ) from error

    @staticmethod
    def usual(fingerprint: str) -> Shelf:
        """Return the shelf in the package's cache; it keeps nothing where the cache is off."""
        base = Store().folder
        if base is None:
            return Shelf(None)
        _forget(base / "eval")
        try:
            return Shelf(base / "eval" / fingerprint)
        except InputError as error:
            warnings.warn(f"{error}; an interrupted run begins anew", CacheWarning, stacklevel=2)
            return Shelf(None)

    def keep(self, number: int, outcomes: Sequence[SampleOutcome]) -> None:
        folder = self.folder
        if folder is None:
            return
        own: dict[str, list[Any]] = {f"@{n}": [getattr(o, n) for o in outcomes] for n in OWN}
        there = [o.prediction for o in outcomes if o.prediction is not None]
        path = _shard_file(folder, number)
        partial = path.with_suffix(f".{os.getpid()}")
        try:
            partial.write_bytes(pack(own | transposed(there)))
            partial.replace(path)
        except OSError as error:  # a full disk does not end the run
            warnings.warn(
                f"shards are no longer kept in {folder}: {error.strerror}",
                CacheWarning,
                stacklevel=2,
            )
            self.folder = None

    def found(self, shards: Sequence[Shard]) -> Iterator[tuple[int, list[SampleOutcome]]]:
        """What an earlier run has done; a file that is damaged counts as not done."""
        folder = self.folder
        if folder is None:
            return
        for shard in shards:
            with suppress(OSError, ValueError, KeyError):
                outcomes = _read(_shard_file(folder, shard.number).read_bytes())
                if [o.index - shard.start for o in outcomes] == list(range(len(shard.samples))):
                    yield shard.number, outcomes

    def clear(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def _shard_file(folder: Path, number: int) -> Path:
    return folder / f"shard_{number:06}.npz"


OWN = ("index", "failure", "seconds")  # of an outcome, beside its prediction's columns


def _read(blob: bytes) -> list[SampleOutcome]:
    columns = unpack(blob)
    own = [columns.pop(f"@{n}") for n in OWN]
    predictions = iter(rows(columns))
    return [
        SampleOutcome(i, None if why else next(predictions), why, s)
        for i, why, s in zip(*own, strict=True)
    ]


def _forget(folder: Path) -> None:
    with suppress(OSError):
        for path in folder.iterdir():
            if time.time() - path.stat().st_mtime > OLD:
                shutil.rmtree(path, ignore_errors=True)


def fingerprint(work: EvaluationWork, digest: str, samples: Sequence[Sample]) -> str:
    """All that the outcomes depend on: a change of any of it is another run."""
    made_of = {
        "version": __version__,
        "model": digest,
        "setting": asdict(work.setting),
        "task": [work.recipe.name, {k: str(v) for k, v in work.recipe.settings.items()}],
        "sources": [s.text for s in (work.recipe.source, *work.plugins) if s is not None],
        "samples": [_stamp(s) for s in samples],
        "shapes": work.shapes,
    }
    return Store().name("evaluation", hashlib.sha256(json.dumps(made_of).encode()).hexdigest())


def _stamp(sample: Sample) -> list[Any]:
    with suppress(OSError):
        if sample.path is not None:
            status = sample.path.stat()
            return [sample.id, status.st_size, status.st_mtime_ns]
    return [sample.id, repr(sample.truth)]

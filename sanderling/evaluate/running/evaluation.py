"""The engine of evaluations: samples in, one record out, at the speed of the session.

One process feeds one session: threads, or other processes, decode while it infers. `workers=N`
gives shards to N processes, each with a session of its own; `ray=` gives them to a cluster. Whoever
did it, outcomes are put back into the order of the samples before any figure is made of them, so
that the figures are the same.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...ir import Shape
from ...measure.benchmark_model.flags import Values
from ...measure.benchmark_model.providers import carried
from ...measure.machine import machine
from ...measure.record import Setting
from ...measure.sample_statistics import summary
from ...processors import usable_cpu_count
from ..task import Metrics, PortableTask, Prediction, Prepared, Sample, Task, plugin_files
from . import process_pool
from .prediction_file import listed, pack, rows, transposed, unpack
from .prefetch import prepared
from .process_pool import Lost, Pool
from .sample_inputs import Decoding, Slots, blame, slot_size
from .shards import (
    EvaluationWork,
    Evaluator,
    Failure,
    SampleOutcome,
    Shard,
    Shelf,
    cut,
    fingerprint,
)

SCHEMA = "sanderling.eval/1"
DECODE_DEPTH = 3  # samples that each decoding process has ahead
FEW = 128  # samples for which no other process is worth its start
MOST_THREADS = 8  # more would wait for Python's lock
Progress = Callable[[str, int, int], None]
Done = Generator[tuple[int, list[SampleOutcome]], None, None]
Came = tuple[list[Sample], list[Prediction]]


@dataclass
class Evaluation:
    """What came out: figures, failures, latency, and each sample's prediction."""

    model: str
    digest: str
    task: Task
    setting: Setting
    samples: list[Sample]
    outcomes: list[SampleOutcome]
    metrics: Metrics
    seconds: float  # of this run; samples that an earlier one did are not in it
    start: float  # seconds until the first outcome: compiling, starting processes
    resumed: int  # samples that an earlier run did
    notes: list[str] = field(default_factory=list)
    spread: dict[str, Any] = field(default_factory=dict)  # workers, decoders, cluster
    ops_by_delegate: dict[str, int] = field(default_factory=dict)  # empty: not known here
    idle_delegates: list[str] = field(default_factory=list)  # a sentence for each

    @property
    def failures(self) -> list[Failure]:
        return [Failure(self.samples[o.index].id, o.failure) for o in self.outcomes if o.failure]

    @property
    def rate(self) -> float:
        """Samples a second, start of processes included."""
        return (len(self.outcomes) - self.resumed) / self.seconds if self.seconds else 0.0

    @property
    def busy(self) -> float | None:
        """The share of the time in which the sessions inferred; None of a cluster's."""
        sessions = self.spread.get("workers")
        if self.resumed or not sessions or not self.seconds:
            return None
        inferring = sum(o.seconds.get("inference", 0.0) for o in self.outcomes)
        return min(1.0, inferring / self.seconds / sessions)

    @property
    def came_through(self) -> Came:
        return _came_through(self.samples, self.outcomes)

    def latency(self) -> dict[str, Any]:
        """Seconds of each stage, in the order in which they come."""
        stages = dict.fromkeys(n for o in self.outcomes for n in o.seconds)
        last = [n for n in ("preprocess", "inference", "postprocess") if n in stages]
        steps = [n for n in stages if n not in last]
        series = {n: [o.seconds[n] for o in self.outcomes if n in o.seconds] for n in steps + last}
        found = {n: summary(values) for n, values in series.items()}
        return {n: s.to_json() for n, s in found.items() if s is not None}

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "task": self.task.name,
            "headline": self.task.headline,
            "settings": self.task.settings(),
            "model": self.model,
            "digest": self.digest,
            "setting": asdict(self.setting),
            "ops_by_delegate": self.ops_by_delegate,
            "idle_delegates": self.idle_delegates,
            "samples": len(self.samples),
            "evaluated": len(self.samples) - len(self.failures),
            "failed": len(self.failures),
            "failures": [f._asdict() for f in self.failures],
            "metrics": self.metrics,
            "latency": self.latency(),
            "seconds": self.seconds,
            "start": self.start,
            "rate": self.rate,
            "busy": self.busy,
            "resumed": self.resumed,
            "spread": self.spread,
            "notes": self.notes,
            "machine": machine(),
        }

    def table(self) -> dict[str, list[Any]]:
        """Every sample that came through, as columns: id, truth, and the prediction's."""
        samples, predictions = self.came_through
        return {
            "id": [s.id for s in samples],
            "truth": [s.truth for s in samples],
            **transposed(predictions),
        }

    def rows_json(self) -> list[dict[str, Any]]:
        """The table as records, failures among them, in the order of the samples."""
        samples, predictions = self.came_through
        found = {s.id: listed(dict(p)) for s, p in zip(samples, predictions, strict=True)}
        failed = {f.id: {"failure": f.why} for f in self.failures}
        return [
            {"id": s.id, "truth": listed(s.truth), **(found.get(s.id) or failed[s.id])}
            for s in self.samples
        ]

    def predictions_npz(self) -> bytes:
        """The table as the bytes of a .npz; `columns.unpack` and np.load read it."""
        return pack(self.table())


@dataclass
class KeptPredictions:
    """Predictions that an earlier evaluation wrote (`--predictions FILE.npz`)."""

    path: str
    came_through: Came

    @staticmethod
    def read(path: str | os.PathLike[str]) -> KeptPredictions:
        try:
            columns = unpack(Path(path).read_bytes())
            ids, truth = columns.pop("id"), columns.pop("truth")
        except (OSError, ValueError, KeyError) as error:
            raise InputError(
                f"not predictions of an evaluation: {error}",
                where=str(path),
                fix="write them with --predictions FILE.npz",
            ) from error
        samples = [Sample(i, truth=t) for i, t in zip(ids, truth, strict=True)]
        return KeptPredictions(os.fspath(path), (samples, list(rows(columns))))

    def to_json(self) -> dict[str, Any]:
        return {"predictions": self.path, "samples": len(self.came_through[0])}


def evaluate_task(
    model: str | os.PathLike[str],
    task: Task,
    *,
    engine: str = "sanderling",
    delegates: Sequence[str] = (),
    threads: int = 1,
    precision: str = "f32",
    flags: Mapping[str, Any] | None = None,
    workers: int = 1,
    decoders: int | None = None,
    ray: str = "",
    limit: int = 0,
    shards: str | os.PathLike[str] | None = None,
    resume: bool = True,
    plugins: Iterable[str | os.PathLike[str]] = (),
    shapes: Mapping[str, Shape] | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Run a task on a model.

    flags:    of TensorFlow Lite's tools, about partitions and delegates, that every session keeps:
              {"max_delegated_partitions": 1, "gpu_backend": "cl"}
    workers:  processes with a session each; 1: this process has the only session
    decoders: processes that prepare samples for this one's session; 0: it prepares them itself, one
              after the other. Default: threads of this process where the task allows that (those of
              the package do), else a process for each processor. Workers prepare their own
    ray:      the address of a Ray cluster that does the work ("auto", "local", HOST:PORT)
    limit:    at most so many samples, the first ones; 0: all
    shards:   the folder that keeps what is done, so that an interrupted run can go on; default: in
              the cache. resume: use what lies there
    plugins:  Python files that register operators or delegates, run in every process
    shapes:   of inputs, by name, for open dimensions
    progress: called with (what, samples done, samples in all)
    """
    if process_pool.is_child:
        raise InputError(
            "the file of a task starts an evaluation when it is imported",
            fix='put that under `if __name__ == "__main__":`',
        )
    kept = carried(Values(flags))
    setting = Setting(engine, threads, tuple(delegates), precision, flags=kept)
    sources = plugin_files(plugins)
    sizes = tuple((name, tuple(shape)) for name, shape in (shapes or {}).items())
    work = EvaluationWork(os.fspath(model), setting, PortableTask.of(task), sources, sizes)
    begin = time.perf_counter()
    first = Evaluator(work, task)
    samples = _samples(task, limit)
    digest = hashlib.sha256(Path(model).read_bytes()).hexdigest()
    run = RunningEvaluation(work, first, samples, digest, progress, begin=begin)
    run.open(shards, resume)
    spread: dict[str, Any] = {"workers": workers}
    if ray:
        spread = {"ray": ray}
        run.collect(run.on_ray(ray))
    elif workers > 1:
        run.collect(run.by_workers(workers))
    else:
        count, ahead = _ahead(task, decoders, len(run.samples), threads)
        spread |= {"decoders": count} | ({"decoding threads": ahead} if ahead else {})
        run.collect(run.here(count, ahead))
    return run.result(spread)


def _samples(task: Task, limit: int) -> list[Sample]:
    if limit < 0:
        raise InputError(f"a limit of {limit} samples", fix="give 1 or more, or 0 for all")
    with blame(task, "samples"):
        samples = list(task.samples())
    if not samples:
        raise InputError(f"the task '{task.name}' found no samples", fix="check its settings")
    seen: set[str] = set()
    for sample in samples:
        if sample.id in seen:
            raise InputError(
                f"two samples have the id '{sample.id}'",
                where=f"task '{task.name}'",
                fix="ids must tell samples apart",
            )
        seen.add(sample.id)
    return samples[:limit] if limit else samples


def _ahead(task: Task, decoders: int | None, samples: int, threads: int) -> tuple[int, int]:
    """How many processes prepare samples for this one, and how many of its threads."""
    if decoders is not None:
        return decoders, 0
    if task.is_light:
        return 0, 0
    processors = usable_cpu_count()
    if task.runs_in_threads():
        # The session has its processors; and its thread prepares too when it has nothing to do.
        return 0, max(0, min(processors - threads, MOST_THREADS, samples // 4))
    return (processors if samples > FEW else 0), 0


@dataclass
class RunningEvaluation:
    """One evaluation under way."""

    work: EvaluationWork
    first: Evaluator
    samples: list[Sample]
    digest: str
    progress: Progress | None = None
    outcomes: dict[int, SampleOutcome] = field(default_factory=dict)
    resumed: int = 0
    notes: list[str] = field(default_factory=list)
    begin: float = field(default_factory=time.perf_counter)
    start: float = 0.0

    def open(self, folder: str | os.PathLike[str] | None, resume: bool) -> None:
        """Find what is done already."""
        self.all = cut(self.samples)
        name = fingerprint(self.work, self.digest, self.samples)
        self.shelf = Shelf(Path(folder) / name) if folder is not None else Shelf.usual(name)
        if not resume:
            self.shelf.clear()
            self.shelf = Shelf(self.shelf.folder)
        done = dict(self.shelf.found(self.all))
        for outcomes in done.values():
            self.outcomes |= {o.index: o for o in outcomes}
        self.resumed = len(self.outcomes)
        self.left = [s for s in self.all if s.number not in done]
        self._tell()

    def _tell(self) -> None:
        if self.progress is not None:
            self.progress("samples", len(self.outcomes), len(self.samples))

    def collect(self, done: Done) -> None:
        """Put outcomes where they belong; a shard that is whole is kept."""
        sizes = {s.number: len(s.samples) for s in self.all}
        parts: dict[int, list[SampleOutcome]] = {}
        with closing(done):  # processes end at once when this does
            for number, outcomes in done:
                self.start = self.start or time.perf_counter() - self.begin
                self.outcomes |= {o.index: o for o in outcomes}
                part = parts.setdefault(number, [])
                part += outcomes
                if len(part) == sizes[number]:
                    self.shelf.keep(number, sorted(parts.pop(number), key=lambda o: o.index))
                self._tell()

    # -- ways of doing it -------------------------------------------------------------------------

    def on_ray(self, address: str) -> Done:
        from .ray_cluster import run_on_ray

        yield from run_on_ray(address, self.work, self.digest, self.left)

    def by_workers(self, count: int) -> Done:
        """Shards in processes. This one compiles first: the others find the code in the cache."""
        if not self.left:
            return
        _ = self.first.runner
        with Pool(min(count, len(self.left)), self.work) as children:
            for number, answer in children.run((s.number, s) for s in self.left):
                if isinstance(answer, Lost):
                    raise InputError(
                        _lost(self.all[number], answer),
                        fix="what was done is kept; try fewer workers, or find the "
                        "sample with workers=1",
                    )
                yield number, answer
            self._note_deaths(children)

    def here(self, decoders: int, threads: int) -> Done:
        if decoders > 0 and self.left:
            yield from self._pipelined(decoders)
            return
        jobs = [(index, self.samples[index]) for index in self._homes]
        with closing(prepared(self.first.task, jobs, threads)) as ready:
            for index, made in ready:
                outcome = self.first.finish(index, self.samples[index], made)
                yield self._homes[index], [outcome]

    @cached_property
    def _homes(self) -> dict[int, int]:
        """The shards of the samples that are left."""
        return {s.start + i: s.number for s in self.left for i in range(len(s.samples))}

    @property
    def _decoding(self) -> Decoding:
        return Decoding(self.work.recipe, self.first.ports, self.work.plugins)

    def _pipelined(self, count: int) -> Done:
        """Others decode into slots, this process infers as they fill."""
        size = slot_size(self.first.ports)
        with (
            tempfile.TemporaryDirectory(prefix="sanderling-", dir=_memory()) as folder,
            Pool(count, self._decoding, DECODE_DEPTH) as children,
        ):
            _ = self.first.runner  # while they start
            # As many as can be under way, and the one that is being looked at.
            total = count * DECODE_DEPTH + 1
            slots = Slots(Path(folder, "slots"), size, total) if size else None
            yield from self._fed(children, slots, list(range(total)))
            self._note_deaths(children)

    def _fed(self, children: Pool, slots: Slots | None, free: list[int]) -> Done:
        taken: dict[int, int] = {}

        def jobs() -> Iterator[tuple[int, Any]]:
            for index in self._homes:
                taken[index] = slot = free.pop()
                place = (str(slots.path), slots.size, slot) if slots else ("", 0, slot)
                yield index, (self.samples[index], *place)

        for index, answer in children.run(jobs()):
            if isinstance(answer, Prepared) and slots:
                answer.feeds = slots.take(answer.feeds)
            made = answer.how if isinstance(answer, Lost) else answer
            outcome = self.first.finish(index, self.samples[index], made)
            free.append(taken.pop(index))
            yield self._homes[index], [outcome]

    def _note_deaths(self, children: Pool) -> None:
        if children.deaths:
            self.notes.append(
                f"worker processes died {children.deaths} times; what they worked on was done again"
            )

    # -- the end ----------------------------------------------------------------------------------

    def result(self, spread: dict[str, Any]) -> Evaluation:
        seconds = time.perf_counter() - self.begin
        outcomes = [self.outcomes[i] for i in range(len(self.samples))]
        samples, predictions = _came_through(self.samples, outcomes)
        if not predictions:
            raise InputError(
                f"none of {len(outcomes)} samples came through; the first: {outcomes[0].failure}",
                where=f"sample '{self.samples[0].id}'",
                fix="check the files and the task's settings",
            )
        with blame(self.first.task, "metric"):
            metrics = self.first.task.metric(samples, predictions)
        self.shelf.clear()
        return Evaluation(
            self.work.model,
            self.digest,
            self.first.task,
            self.work.setting,
            self.samples,
            outcomes,
            metrics,
            seconds,
            self.start,
            self.resumed,
            self.notes,
            spread,
            self.first.ops_by_delegate(),
            self.first.idle_delegates(),
        )


def _came_through(samples: Sequence[Sample], outcomes: Sequence[SampleOutcome]) -> Came:
    there = [o for o in outcomes if o.prediction is not None]
    predictions = rows(transposed([o.prediction for o in there if o.prediction is not None]))
    return [samples[o.index] for o in there], list(predictions)


def _lost(shard: Shard, answer: Lost) -> str:
    last = shard.samples[-1].id
    return f"shard {shard.number}, samples '{shard.samples[0].id}' to '{last}': {answer.how}"


def _memory() -> str | None:
    """Where a file is memory and no disk writes it."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def compare_evaluations(ours: Evaluation, theirs: Evaluation | KeptPredictions) -> Metrics:
    """The task's paired statistics, on the samples that came through in both. Both need all that
    the task keeps (detail=True)."""
    (own, mine), (other, their) = ours.came_through, theirs.came_through
    by_id = {s.id: p for s, p in zip(other, their, strict=True)}
    pairs = [(s, p, by_id[s.id]) for s, p in zip(own, mine, strict=True) if s.id in by_id]
    if not pairs:
        raise InputError(
            "the two evaluations have no sample in common", fix="run both on the same data"
        )
    samples, first, second = (list(side) for side in zip(*pairs, strict=True))
    return {"samples": len(pairs)} | ours.task.compare(samples, first, second)

"""Samples prepared ahead of the session: all of them, once each, and nothing is left running."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sanderling import evaluate_task
from sanderling.errors import InputError
from sanderling.evaluate.running.evaluation import MOST_THREADS, Evaluation, _ahead
from sanderling.evaluate.running.prefetch import AHEAD, GROUP, prepared
from sanderling.evaluate.running.sample_inputs import TaskError
from sanderling.evaluate.task import Ports, Prepared, Sample, Task
from sanderling.evaluate.tasks.classify import top
from sanderling.evaluate.tasks.coco import Coco
from sanderling.evaluate.tasks.imagenet import ImageNet
from sanderling.ir import Array, DType, Tensor

from .support.eval_command import INT8, digit_task, same
from .support.eval_command import alone as alone
from .support.eval_command import digits as digits
from .support.eval_command import no_shared_cache as no_shared_cache

PORTS = Ports({"x": Tensor("x", DType.INT32, (1,))}, {"y": Tensor("y", DType.INT32, (1,))})


@dataclass(kw_only=True)
class Counting(Task):
    """Its samples are numbers; some cannot be read, one is a defect."""

    name = "counting"
    in_threads = True
    defect: int = -1
    seen: list[tuple[int, str]] = field(default_factory=list, init=False)

    def preprocess(self, sample: Sample) -> Array:
        self.seen.append((sample.data, threading.current_thread().name))
        if sample.data == self.defect:
            raise KeyError("a mistake")
        if sample.data % 10 == 3:
            raise InputError("torn")
        return np.array([sample.data], np.int32)


class Careless(Counting):
    """Hands out one array again and again."""

    def preprocess(self, sample: Sample) -> Array:
        array: Array = self.__dict__.setdefault("array", np.zeros(1, np.int32))
        array[0] = sample.data
        return array


def jobs(count: int) -> list[tuple[int, Sample]]:
    return [(i, Sample(str(i), data=i)) for i in range(count)]


def opened(task: Task) -> Any:
    task.open(PORTS)
    return task


def value(made: Prepared | str) -> object:
    return made if isinstance(made, str) else int(made.feeds["x"][0])  # type: ignore[call-overload]


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("count", [0, 1, GROUP, 100])
def test_every_sample_comes_once(threads: int, count: int) -> None:
    task = opened(Counting())
    found = {i: value(made) for i, made in prepared(task, jobs(count), threads)}
    assert found == {i: "torn" if i % 10 == 3 else i for i in range(count)}
    assert sorted(n for n, _ in task.seen) == list(range(count))
    assert not _workers()


def _workers() -> list[str]:
    """Threads that still prepare; Python calls a thread by its target."""
    return [t.name for t in threading.enumerate() if t.name.endswith("(work)")]


def test_without_threads_the_order_is_kept() -> None:
    assert [i for i, _ in prepared(opened(Counting()), jobs(30))] == list(range(30))


def test_groups_are_prepared_before_they_are_looked_at() -> None:
    task = opened(Counting())
    ready = prepared(task, jobs(30))
    next(ready)
    assert len(task.seen) == GROUP
    ready.close()
    assert len(task.seen) == GROUP


def test_a_task_without_the_promise_may_hand_out_one_array() -> None:
    found = [value(made) for _, made in prepared(opened(Careless()), jobs(30))]
    assert found == list(range(30))


def test_threads_do_not_run_away() -> None:
    task = opened(Counting())
    ready = prepared(task, jobs(1000), 2)
    next(ready)
    ready.close()  # waits for them
    assert len(task.seen) <= GROUP + AHEAD + 2 * 2 + 2 and not _workers()


@pytest.mark.parametrize("threads", [0, 2])
def test_a_defect_ends_it(threads: int) -> None:
    task = opened(Counting(defect=50))
    with pytest.raises(TaskError, match="preprocess of task 'counting' failed on sample '50'"):
        for _ in prepared(task, jobs(100), threads):
            pass
    assert not _workers()


def test_who_promises() -> None:
    """A class that defines another preprocess has to promise anew."""

    class Heir(ImageNet):
        pass

    class Changed(ImageNet):
        def preprocess(self, sample: Sample) -> Prepared:
            return super().preprocess(sample)

    assert ImageNet.runs_in_threads() and Coco.runs_in_threads() and Heir.runs_in_threads()
    assert not Changed.runs_in_threads() and not Careless.runs_in_threads()


@pytest.mark.parametrize(("kind", "decoders", "processors", "threads", "expected"), [
    (Counting, None, 2, 1, (0, 1)),
    (Counting, None, 1, 1, (0, 0)),
    (Counting, None, 4, 2, (0, 2)),
    (Counting, None, 2, 4, (0, 0)),
    (Counting, None, 64, 1, (0, MOST_THREADS)),
    (Counting, 0, 2, 1, (0, 0)),
    (Counting, 3, 2, 1, (3, 0)),
    (Careless, None, 2, 1, (2, 0)),
])  # fmt: skip
def test_who_prepares(
    kind: type[Task],
    decoders: int | None,
    processors: int,
    threads: int,
    expected: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)), raising=False)
    assert _ahead(kind(), decoders, 600, threads) == expected


def test_threads_give_the_same(
    alone: Evaluation, digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    found = evaluate_task(INT8, digit_task(digits, detail=True))
    assert same(alone, found)
    assert found.spread == {"workers": 1, "decoders": 0, "decoding threads": 2}


# -- the best classes ---------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, 10, 50])
def test_the_best_are_those_of_a_whole_sort(count: int) -> None:
    rng = np.random.default_rng(count)
    for scores in (
        rng.random(50),
        rng.integers(0, 5, 50),
        np.zeros(50),
        -rng.random(50),
        np.where(rng.random(50) < 0.3, np.nan, rng.random(50)),
        np.full(50, np.nan),
        np.where(rng.random(50) < 0.5, -np.inf, np.inf),
    ):
        values = np.asarray(scores, np.float32)
        expected = np.argsort(-values, kind="stable")[:count]
        assert np.array_equal(top(values, count), expected)

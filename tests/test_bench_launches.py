"""`sanderling bench`: the processes that it launches, and an interrupt."""

from __future__ import annotations

import json
import os
import random
import struct
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

import sanderling.measure.bench as home
from sanderling import load
from sanderling.measure import engine_process, noise
from sanderling.measure.bench import BenchInterrupted
from sanderling.measure.inputs import Feeding
from sanderling.measure.interleaving import Budget, Worker, launch
from sanderling.measure.record import Setting

from .support.bench_command import F32, INT8, QUICK, call, fake_launch

# -- launches -----------------------------------------------------------------------------------


def test_many_settings_go_in_shuffled_batches() -> None:
    settings = [Setting(threads=n) for n in range(1, 20)]
    found = list(home._batches(settings, random.Random(0)))
    assert [len(b) for b in found] == [8, 8, 3]
    assert sorted(s.threads for b in found for s in b) == list(range(1, 20))
    assert [s for b in found for s in b] != settings


def test_a_process_that_cannot_start_its_engine_is_reported(tmp_path: Path) -> None:
    model = load(INT8)
    model.source = str(tmp_path / "gone.tflite")
    job = home.job_for(model, Setting(), Feeding().arrays(model.compile().entry(None)))
    found = launch({"x": job}, Budget(0.01), random.Random(0))
    assert "gone.tflite" in found["x"].error and not found["x"].rounds


def test_a_process_runs_on_the_cpus_that_are_named() -> None:
    model, cpu = load(INT8), noise.usable_cpus()[-1]
    inputs = Feeding().arrays(model.compile().entry(None))
    worker = Worker(home.job_for(model, Setting(), inputs, cpus=(cpu,)))
    try:
        worker.ready()
        assert os.sched_getaffinity(worker.process.pid) == {cpu}
    finally:
        worker.close()
    assert worker.process.returncode == 0


@pytest.mark.parametrize("sent", [b"", struct.pack("!i", 100) + b"half of a job"])
def test_an_engine_process_ends_quietly_with_its_parent(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C may end the parent before it has sent the job, or in the middle of it."""
    monkeypatch.setattr(engine_process.signal, "signal", lambda *_: None)
    ours, theirs = Pipe()
    with theirs:
        with ours:
            os.write(ours.fileno(), sent)
        engine_process.main(theirs)


def test_an_interrupt_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def once(jobs: dict[str, Any], *more: object, **named: object) -> dict[str, home.Launch]:
        calls.append(jobs)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return fake_launch(jobs)

    monkeypatch.setattr(home, "launch", once)
    target = tmp_path / "a.json"
    ran = call(INT8, F32, *QUICK, "--json", target, status=130)
    assert "interrupted; 1 result kept" in ran.stderr and "digits_int8" in ran.stdout
    record = json.loads(target.read_text("utf-8"))
    assert record["interrupted"] and [r["model"] for r in record["results"]] == [INT8.name]
    calls[:] = [{}, {}]
    with pytest.raises(BenchInterrupted) as nothing:
        home.bench(INT8)
    assert not nothing.value.bench.results


def test_an_interrupt_keeps_the_samples_of_a_model_that_is_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second round of the first processes: one round is whole, and one of one setting."""
    turns: list[str] = []

    def turn(made: home.Launch, *more: object) -> None:
        turns.append("")
        if len(turns) == 4:
            raise KeyboardInterrupt
        real(made, *more)

    from sanderling.measure import interleaving as engines

    real = engines._turn
    monkeypatch.setattr(engines, "_turn", turn)
    target = tmp_path / "a.json"
    ran = call(INT8, *QUICK, "--threads", "1,2", "--json", target, status=130)
    assert "interrupted; 2 results kept, 2 of them from fewer runs" in ran.stderr
    record = json.loads(target.read_text("utf-8"))
    assert record["interrupted"] and all(r["partial"] for r in record["results"])
    assert sorted(len(r["rounds"]) for r in record["results"]) == [1, 2]
    assert record["comparisons"] and "too narrow" in ran.stderr


def test_cold_starts_get_an_empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = []

    def look(jobs: dict[str, Any], *_: object, **__: object) -> dict[str, home.Launch]:
        folders.append(os.environ.get("SANDERLING_CACHE"))
        return fake_launch(jobs)

    monkeypatch.setenv("SANDERLING_CACHE", "mine")
    monkeypatch.setattr(home, "launch", look)
    home.bench(INT8, cold=True, launches=2)
    assert len(set(folders)) == 2 and "mine" not in folders
    assert os.environ["SANDERLING_CACHE"] == "mine"

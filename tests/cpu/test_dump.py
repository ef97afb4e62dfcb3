"""Looking inside: dumps of every stage, the table of steps, ticks per step."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.runtime.executable import CpuExecutable
from sanderling.ir.graph import copy_graph
from sanderling.runtime.session import Session
from tests.support.conv_stacks import feed, stack
from tests.support.every_worker import share_everything


def executable(session: Session) -> CpuExecutable:
    found = session.plan().steps[0].executable
    assert isinstance(found, CpuExecutable)
    return found


@pytest.mark.parametrize("by", ["option", "environment"])
def test_every_stage_is_written(by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if by == "environment":
        monkeypatch.setenv("SANDERLING_DUMP", str(tmp_path))
    session = stack().compile([CpuDelegate(dump=tmp_path if by == "option" else None)])
    session(feed(session.model))
    (folder,) = tmp_path.iterdir()
    names = sorted(p.name for p in folder.iterdir())
    assert "4ops" in folder.name and names[0] == "00_given.txt"
    assert {"steps.txt", "module.ll", "module.opt.ll", "code.s"} <= set(names)
    text = {p.name: p.read_text() for p in folder.iterdir()}
    assert text["00_given.txt"].count("CONV_2D") == 4
    assert 'define i64 @"invoke"' in text["module.ll"]
    assert "define" in text["module.opt.ll"] and "invoke:" in text["code.s"]
    assert text["steps.txt"].startswith("arena ")


def test_steps_can_be_explained() -> None:
    graph = stack().main
    own, _ = copy_graph(graph, graph.ops, graph.inputs, graph.outputs)
    lines = CpuDelegate().explain(own).splitlines()
    assert lines[0].split() == ["step", "op", "inputs", "outputs", "macs", "fused"]
    assert sum("CONV_2D 'y" in line for line in lines) == 4
    assert re.search(r"\[1,14,14,32\]@(arena\+\d+|array\d)", lines[2])


@pytest.mark.parametrize("threads", [1, 2])
def test_ticks_are_counted(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    share_everything(monkeypatch)
    model = stack()
    session = model.compile([CpuDelegate(timed=True)], threads=threads)
    x = feed(model)
    answer = session(x)
    found = executable(session)
    rows = found.records()
    assert [r["step"] for r in rows] == list(found.compiled.steps)
    assert all(len(r["ticks"]) == threads and max(r["ticks"]) > 0 for r in rows)
    session(x)
    again = found.records()
    assert all(sum(b["ticks"]) > sum(a["ticks"]) for a, b in zip(rows, again, strict=True))
    found.reset_times()
    assert not found.times.any()
    np.testing.assert_array_equal(answer, model.compile([CpuDelegate()])(x))

"""Files of traces: what the Perfetto UI reads."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from sanderling.measure.trace_insights import insights
from sanderling.runtime.trace_data import Slice, Trace
from sanderling.runtime.tracefile import encode, lanes, read, to_chrome

from .support.perfetto_engine import engine
from .support.trace_recordings import (  # noqa: F401
    check_perfetto,
    length,
    recorded_runs,
    surroundings,
    trace_about,
)


def test_perfetto_format(recorded: Trace) -> None:
    names, tracks = check_perfetto(encode(recorded, "x.perfetto-trace"))
    assert Counter(names) == Counter(s.name for s in recorded.slices)
    process = [t.process for t in tracks.values() if t.HasField("process")]
    assert [(p.pid, p.process_name) for p in process] == [(os.getpid(), "sanderling")]
    threads = {t.thread.tid: t.thread.thread_name for t in tracks.values() if t.HasField("thread")}
    assert threads == recorded.threads


@pytest.mark.parametrize("name", ["x.perfetto-trace", "x.json"])
def test_perfettos_own_processor_reads_it(recorded: Trace, name: str) -> None:
    with engine(encode(recorded, name)) as perfetto:
        wrong = "select name, value from stats where severity in ('error', 'data_loss') and value"
        assert perfetto.query(wrong) == []
        # Instants are slices without length there.
        counted = perfetto.query("select category, count(*) from slice group by category")
        kinds = Counter(s.kind for s in recorded.slices) + Counter(
            i.kind for i in recorded.instants
        )
        assert dict(counted) == kinds
        outside = perfetto.query(
            "select count(*) from slice c join slice p on c.parent_id = p.id "
            "where c.ts < p.ts or c.ts + c.dur > p.ts + p.dur"
        )
        assert outside == [(0,)]
        threads = perfetto.query(
            "select distinct tid, thread.name from slice join thread_track t "
            "on slice.track_id = t.id join thread using (utid)"
        )
        assert dict(threads) == recorded.threads
        above = perfetto.query(
            "select distinct c.category, p.category from slice c "
            "join slice p on c.parent_id = p.id "
            "where c.category in ('run', 'part', 'op')"
        )
        assert set(above) == {("run", "api"), ("part", "run"), ("op", "part")}
        spent = perfetto.query("select sum(dur) from slice where category = 'op'")
        assert spent == [(sum(map(length, recorded.of_kind("op"))),)]


def test_slices_come_back_from_perfetto_as_they_were(recorded: Trace) -> None:
    """Nesting on the file's tracks is the nesting of the slices."""
    pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    message = pb.Trace.FromString(encode(recorded, "x.pb"))
    thread = {p.track_descriptor.uuid: p.track_descriptor.thread.tid for p in message.packet}
    stacks: dict[int, list[int]] = defaultdict(list)
    found = set()
    for packet in message.packet:
        event = packet.track_event
        if event.type == event.TYPE_SLICE_BEGIN:
            stacks[event.track_uuid].append(packet.timestamp)
        elif event.type == event.TYPE_SLICE_END:
            begin = stacks[event.track_uuid].pop()
            found.add((thread[event.track_uuid], begin, packet.timestamp))
    assert found == {(s.thread, s.begin, s.end) for s in recorded.slices}


def test_chrome_format(recorded: Trace) -> None:
    content = json.loads(to_chrome(recorded))
    events = content["traceEvents"]
    assert {e["ph"] for e in events} == {"M", "X", "C", "i"}
    named = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert named == recorded.threads
    by_thread: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            by_thread[e["tid"]].append((e["ts"], round(e["ts"] + e["dur"], 3)))
    for pieces in by_thread.values():
        ends: list[float] = []
        for begin, end in pieces:
            while ends and ends[-1] <= begin:
                ends.pop()
            assert not ends or end <= ends[-1], "slices overlap"
            ends.append(end)


def test_chrome_comes_back(recorded: Trace, tmp_path: Path) -> None:
    recorded.save(tmp_path / "x.json")
    again = read(tmp_path / "x.json")
    assert [s[:5] for s in again.slices] == [s[:5] for s in recorded.slices]
    assert again.counts == recorded.counts and again.threads == recorded.threads
    assert [str(i) for i in insights(again)] == [str(i) for i in insights(recorded)]


def test_what_overlaps_goes_to_a_further_track() -> None:
    """Coroutines take turns on one thread: their sections do not nest."""

    def piece(name: str, begin: int, end: int) -> Slice:
        return Slice(1, begin, end, name, "section", {})

    made = Trace(trace_about(), {1: "main"}, begin=0, end=100)
    made.slices = [
        piece("a", 0, 50),
        piece("inner", 10, 20),
        piece("b", 30, 70),
        piece("point", 30, 30),
        piece("c", 50, 60),
    ]
    found = {lane: [s.name for s in slices] for lane, slices in lanes(made.slices).items()}
    assert found == {(1, 0): ["a", "inner", "point", "c"], (1, 1): ["b"]}
    names, tracks = check_perfetto(encode(made, "x.pftrace"))
    assert len(names) == 5 and any(t.name == "main (2)" for t in tracks.values())
    events = json.loads(to_chrome(made))["traceEvents"]
    assert len({e["tid"] for e in events if e["ph"] == "X"}) == 2

"""Tracing: what is recorded is true, files are what the Perfetto UI reads, off is off."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterator
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import sanderling
from sanderling import Interpreter, load, save, trace
from sanderling.cli.app import app
from sanderling.delegates.cpu import delegate as cpu
from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.executable import CpuExecutable
from sanderling.delegates.cpu.traced import TracedExecutable
from sanderling.errors import InputError, MissingExtraError
from sanderling.ir import DType, Graph, Model
from sanderling.measure.insights import insights
from sanderling.measure.traces import trace_model
from sanderling.runtime.session import Session
from sanderling.runtime.trace import Instant, Slice, Trace
from sanderling.runtime.tracefile import encode, lanes, read, to_chrome
from sanderling.spans import tape

from .cpu.models import feed, stack
from .perfetto_engine import engine

ROOT = Path(__file__).parents[1]
DIGITS = str(files("sanderling") / "data" / "digits_int8.tflite")
WORKERS = 2


@pytest.fixture(scope="module", autouse=True)
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of its own, and workers for small models too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SANDERLING_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(cpu, "WORK_OF_WORKER", 1)
        yield
    assert tape.recorder is None, "a recording was left on"


@pytest.fixture(scope="module")
def recorded(surroundings: None, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """From the file to three runs on two workers, in a section."""
    path = tmp_path_factory.mktemp("model") / "model.tflite"
    save(stack(), path)
    with trace.record() as made:
        session = load(path).compile(["cpu"], threads=WORKERS)
        for _ in range(3):
            with trace.section("recognise"), trace.section("inference", {"frame": 7}):
                session.run({"x": feed(stack())})
        trace.counter("frames", 3)
        trace.mark("last frame")
    return made


def names_in(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def length(found: Slice) -> int:
    return found.end - found.begin


def inside(inner: Slice, outer: Slice) -> bool:
    return outer.begin <= inner.begin and inner.end <= outer.end


def runs_of(made: Trace) -> list[dict[int, list[Slice]]]:
    """For each run: the slices of ops and barriers by thread, in order."""
    found = []
    for run in made.of_kind("run"):
        mine: dict[int, list[Slice]] = defaultdict(list)
        for s in made.of_kind("op", "barrier"):
            if inside(s, run):
                mine[s.thread].append(s)
        found.append(mine)
    return found


# -- what is recorded -----------------------------------------------------------------------------


def test_everything_has_its_slice(recorded: Trace) -> None:
    names = {(s.kind, s.name) for s in recorded.slices}
    assert {("load", "load"), ("load", "read tables"), ("load", "verify"), ("plan", "plan"),
            ("pass", "fold constants"), ("pass", "fuse chains"), ("pass", "unify bytes"),
            ("partition", "partition"), ("compile", "compile for cpu"),
            ("compile", "LLVM: object code"), ("allocate", "allocate tensors"),
            ("section", "recognise"), ("section", "inference"), ("api", "session.run"),
            ("run", "invoke"), ("part", "part 0 on cpu"), ("op", "CONV_2D"),
            ("barrier", "barrier")} <= names  # fmt: skip
    values = {c.name: c.value for c in recorded.counts}
    assert values["frames"] == 3 and values["arena (bytes)"] > 0
    assert 10 << 20 < values["resident set (bytes)"] < 100 << 30
    assert [i.name for i in recorded.instants if i.kind == "mark"] == ["last frame"]
    assert recorded.about["process"] == os.getpid()


def test_ops_say_what_they_are(recorded: Trace) -> None:
    first = next(s for s in recorded.of_kind("op") if s.name == "CONV_2D")
    assert first.args | {"node": 0, "kernel": "conv_2d", "delegate": "cpu",
                         "macs": 14 * 14 * 32 * 32} == first.args  # fmt: skip
    assert "y0" in first.args["writes"]
    nodes = {s.args["node"] for s in recorded.of_kind("op")}
    assert nodes >= {0, 1, 2, 3}


def test_every_op_is_on_every_worker(recorded: Trace) -> None:
    assert sorted(recorded.threads.values()) == ["MainThread", "sanderling worker 1"]
    runs = runs_of(recorded)
    assert len(runs) == 3
    for run in runs:
        steps = [[s.args["step"] for s in mine if s.kind == "op"] for mine in run.values()]
        assert len(steps) == WORKERS and steps[0] == steps[1] and len(steps[0]) >= 4


def test_times_are_true(recorded: Trace) -> None:
    """On each worker one thing follows the other; nobody begins a step before all ended the one
    before; a wait begins with the end of a step."""
    slack = 1000  # the clocks of two cores, in nanoseconds
    for run in runs_of(recorded):
        for mine in run.values():
            assert all(a.end <= b.begin for a, b in pairwise(mine))
            assert all(b.begin == a.end for a, b in pairwise(mine) if b.kind == "barrier")
        ops = [[s for s in mine if s.kind == "op"] for mine in run.values()]
        for before, after in pairwise(list(zip(*ops, strict=True))):
            assert max(s.end for s in before) <= min(s.begin for s in after) + slack
        assert all(length(s) > 0 for mine in ops for s in mine)


def test_what_lies_within_what(recorded: Trace) -> None:
    def around(inner: Slice, kind: str) -> Slice:
        return next(s for s in recorded.of_kind(kind) if inside(inner, s))

    for op in recorded.of_kind("op"):
        part = around(op, "part")
        run = around(part, "run")
        assert around(around(run, "api"), "section").name in ("recognise", "inference")
    inner = next(s for s in recorded.slices if s.name == "inference")
    outer = next(s for s in recorded.slices if s.name == "recognise")
    assert inside(inner, outer) and inner.args == {"frame": 7}


def test_threads_have_the_systems_numbers() -> None:
    model = stack()
    with trace.record() as made:
        session = model.compile(["cpu"], threads=3)
        session(feed(model))
        alive = {int(p.name) for p in Path("/proc/self/task").iterdir()}
    assert set(made.threads) <= alive and len(made.threads) == 3
    assert threading.get_native_id() in made.threads


def test_steps_that_are_skipped_leave_nothing() -> None:
    """A branch that is not taken."""
    inner = [Graph(name) for name in ("then", "otherwise")]
    for place, graph in enumerate(inner):
        v = graph.input("v", DType.FLOAT32, (1, 64))
        w = graph.tensor(f"w{place}", DType.FLOAT32, (1, 64))
        graph.add("MUL" if place else "ADD", [v, v], [w])
        graph.outputs = [w]
    main = Graph()
    c, x = main.input("c", DType.BOOL, (1,)), main.input("x", DType.FLOAT32, (1, 64))
    y = main.tensor("y", DType.FLOAT32, (1, 64))
    main.add("IF", [c, x], [y], then_subgraph_index=inner[0], else_subgraph_index=inner[1])
    main.outputs = [y]
    session = Model([main, *inner]).compile(["cpu"])
    x_values = np.full((1, 64), 3, np.float32)
    writes = []
    for choice in (True, False):
        with trace.record() as made:
            found = session.run({"c": np.array([choice]), "x": x_values})
        assert found["y"][0, 0] == (6 if choice else 9)
        writes.append(Counter(s.args["writes"] for s in made.of_kind("op")))
    assert writes[0] != writes[1] and writes[0] and writes[1]


def test_answers_are_those_of_other_code() -> None:
    for quantised in (True, False):
        model = stack(quantised, seed=3)
        x = feed(model)
        plain = model.compile(["cpu"], threads=WORKERS)(x)
        with trace.record():
            told = model.compile(["cpu"], threads=WORKERS)(x)
        np.testing.assert_array_equal(plain, told)


def test_code_for_tracing_is_kept_apart() -> None:
    delegate = CpuDelegate()
    graph = stack(seed=11).main
    key = delegate._key(graph, delegate.target, traced=False)
    with trace.record():
        told = stack(seed=11).compile([CpuDelegate()]).plan().steps[0].executable
    plain = stack(seed=11).compile([CpuDelegate()]).plan().steps[0].executable
    assert isinstance(told, TracedExecutable) and type(plain) is CpuExecutable
    assert plain.key == key != told.key and "clock" not in plain.compiled.image.entries


def test_counting_ticks_goes_on_while_recording() -> None:
    with trace.record():
        session = stack().compile([CpuDelegate(timed=True)], threads=WORKERS)
        session(feed(stack()))
        executable = session.plan().steps[0].executable
        session(feed(stack()))
    assert isinstance(executable, CpuExecutable)
    rows = executable.records()
    assert rows and all(min(r["ticks"]) > 0 for r in rows)


# -- those who were there before ------------------------------------------------------------------


def count_ops(made: Trace) -> int:
    return sum(s.thread == threading.get_native_id() for s in made.of_kind("op"))


def test_a_session_from_before_takes_part(tmp_path: Path) -> None:
    save(stack(), tmp_path / "model.tflite")
    for model in (stack(), load(tmp_path / "model.tflite")):
        session = model.compile(["cpu"], threads=WORKERS)
        x = feed(stack())
        expected = session.run({"x": x})
        session.run({"x": x})
        (plan,) = session._plans.values()
        before = plan.steps[0].executable
        with trace.record() as made:
            np.testing.assert_array_equal(session.run({"x": x})["y3"], expected["y3"])
        assert count_ops(made) >= 4
        assert plan.steps[0].executable is before and type(before) is CpuExecutable
        np.testing.assert_array_equal(session.run({"x": x})["y3"], expected["y3"])


def test_a_bound_run_from_before_takes_part() -> None:
    session = stack().compile(["cpu"], threads=WORKERS)
    x = feed(stack())
    bound = session.bind({"x": x})
    bound.run()
    bound.run()
    (y,) = bound.outputs.values()
    expected = y.copy()
    with trace.record() as made:
        y[...] = 0
        bound.run()
        np.testing.assert_array_equal(y, expected)
    assert count_ops(made) >= 4
    y[...] = 0
    bound.run()
    np.testing.assert_array_equal(y, expected)
    bound.run()
    assert bound._call is not None, "the short way is open again"


def test_an_interpreter_from_before_takes_part() -> None:
    interpreter = Interpreter(DIGITS)
    interpreter.allocate_tensors()
    (about,), (result,) = interpreter.get_input_details(), interpreter.get_output_details()
    x = np.random.default_rng(0).integers(-128, 128, about["shape"]).astype(np.int8)
    interpreter.set_tensor(about["index"], x)
    interpreter.invoke()
    expected = interpreter.get_tensor(result["index"])
    with trace.record() as made:
        np.testing.assert_array_equal(interpreter.get_tensor(result["index"]), expected)
        interpreter.invoke()
    np.testing.assert_array_equal(interpreter.get_tensor(result["index"]), expected)
    assert {"CONV_2D", "FULLY_CONNECTED", "SOFTMAX"} <= {s.name for s in made.of_kind("op")}
    interpreter.invoke()
    np.testing.assert_array_equal(interpreter.get_tensor(result["index"]), expected)


def test_a_session_made_while_recording_goes_on_afterwards() -> None:
    with trace.record() as made:
        session = stack().compile(["cpu"], threads=WORKERS)
        x = feed(stack())
        expected = session.run({"x": x})
    count = len(made.slices)
    for _ in range(3):
        np.testing.assert_array_equal(session.run({"x": x})["y3"], expected["y3"])
    assert len(made.slices) == count


# -- the reference, refusals, borders -------------------------------------------------------------


def mixed() -> Model:
    """ADD, an op that only the reference runs, MUL."""
    sanderling.register_custom("TraceTest", evaluate=lambda op, inputs: inputs[0] + 1,
                               infer=lambda op, specs: specs[0])  # fmt: skip
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (1, 256))
    for name in ("ADD", "custom.TraceTest", "MUL"):
        y = graph.tensor(name, DType.FLOAT32, (1, 256))
        graph.add(name, [x] if "." in name else [x, x], [y])
        x = y
    graph.outputs = [x]
    return Model([graph])


def trace_mixed() -> Trace:
    with trace.record() as made:
        session = mixed().compile(["cpu"])
        for _ in range(3):
            session(np.ones((1, 256), np.float32))
    return made


def test_the_reference_and_the_borders_are_seen() -> None:
    made = trace_mixed()
    (own,) = {(s.name, s.args["node"]) for s in made.of_kind("op")
              if s.args["delegate"] == "reference"}  # fmt: skip
    assert own == ("custom.TraceTest", 1)
    refusals = [i for i in made.instants if i.kind == "refusal"]
    assert [(i.args["delegate"], i.args["runs on"], i.args["node"]) for i in refusals] == [
        ("cpu", "reference", 1)
    ]
    borders = [i for i in made.instants if i.kind == "border"]
    assert [i.args["bytes"] for i in borders] == [1024] * 6
    ways = [(i.args["from"], i.args["to"]) for i in borders[:2]]
    assert ways == [("cpu", "reference"), ("reference", "cpu")]
    assert any(s.args["bytes"] == 1024 for s in made.of_kind("copy"))
    (partition,) = made.of_kind("partition")
    assert partition.args["parts"] == ["1 ops on cpu", "1 ops on reference", "1 ops on cpu"]


# -- sections, recordings -------------------------------------------------------------------------


def test_a_section_that_nobody_records_is_nothing() -> None:
    """One shared object; no memory is taken, whatever happens inside."""
    assert not trace.is_recording()
    first = trace.section("one")
    assert trace.section("two", None) is first
    with first as entered:
        assert entered is first

    def many() -> None:
        for _ in range(1000):
            with trace.section("preprocess"):
                pass
            trace.counter("frames", 1)
            trace.mark("frame")

    many()
    before = sys.getallocatedblocks()
    many()
    assert sys.getallocatedblocks() - before < 10


def test_recordings_may_overlap() -> None:
    first = trace.start()
    with trace.section("a"):
        pass
    second = trace.start()
    with trace.section("b"):
        pass
    trace.stop(first)
    with trace.section("c"):
        pass
    trace.stop(second)
    trace.stop(second)  # once is enough
    assert [s.name for s in first.slices] == ["a", "b"]
    assert [s.name for s in second.slices] == ["b", "c"]


def test_what_is_open_at_the_end_says_so() -> None:
    with trace.section("before"), trace.record() as made:
        late = trace.section("late")
        late.__enter__()
    late.__exit__(None, None, None)
    assert [(s.name, s.args) for s in made.slices] == [("late", {"unfinished": True})]


def test_errors_are_noted_and_pass() -> None:
    with trace.record() as made, pytest.raises(KeyError), trace.section("fails"):
        raise KeyError("x")
    assert made.slices[0].args == {"error": "KeyError"}


def test_a_session_does_not_keep_the_recording_in_which_it_was_made() -> None:
    with trace.record() as made:
        session = stack().compile(["cpu"])
        session(feed(stack()))
        recorder = weakref.ref(tape.recorder)
    held = [c.value for c in made.counts if c.name == "arena (bytes)"]
    assert held and held[-1] > 0
    gc.collect()
    assert recorder() is None and session is not None


def test_memory_that_is_given_back_is_seen() -> None:
    with trace.record() as made:
        session = stack().compile(["cpu"])
        session(feed(stack()))
        del session
        gc.collect()
    held = [c.value for c in made.counts if c.name == "arena (bytes)"]
    assert held[0] > 0 and held[-1] == 0


def test_threads_of_python_have_tracks_of_their_own() -> None:
    def work() -> None:
        with trace.section("work"):
            pass

    with trace.record() as made:
        thread = threading.Thread(target=work, name="loader")
        thread.start()
        thread.join()
    assert list(made.threads.values()) == ["loader"]


def test_a_recording_that_is_full_counts_what_it_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sanderling.runtime.trace.MOST_SLICES", 10)
    with trace.record() as made:
        for number in range(25):
            with trace.section(f"{number}"):
                pass
    assert len(made.slices) == 10 and made.about["dropped"] == 15
    assert "15 slices" in "".join(map(str, insights(made)))


def test_saving_comes_after_the_end(tmp_path: Path) -> None:
    with trace.record() as made, pytest.raises(InputError, match="goes on"):
        made.save(tmp_path / "x.json")
    assert not list(tmp_path.iterdir())


def test_a_path_is_saved_even_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError), trace.record(tmp_path / "x.json"), trace.section("fails"):
        raise KeyError
    assert [s.name for s in read(tmp_path / "x.json").slices] == ["fails"]
    for bad in (tmp_path, tmp_path / "none" / "x.json", tmp_path / "x.txt"):
        with pytest.raises(InputError), trace.record(bad):
            pytest.fail("it began")


# -- files ----------------------------------------------------------------------------------------


def check_perfetto(raw: bytes) -> Any:
    """Read by Perfetto's own schema, and hold it to the rules of its format: one sequence whose
    state is set up first, numbers that stand for something, and on each track begins and ends in
    pairs, in the order of time."""
    pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    message = pb.Trace()
    assert message.ParseFromString(raw) == len(raw)
    assert message.IsInitialized()
    packets = list(message.packet)
    assert {p.trusted_packet_sequence_id for p in packets} == {1}
    assert packets[0].sequence_flags == pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    assert packets[0].trace_packet_defaults.timestamp_clock_id == 3
    clocks = {c.clock_id for c in packets[0].clock_snapshot.clocks}
    assert {3, 6} <= clocks and packets[0].clock_snapshot.primary_trace_clock in clocks
    assert {p.sequence_flags for p in packets[1:]} == {pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE}
    tracks: dict[int, Any] = {}
    texts: dict[str, dict[int, str]] = defaultdict(dict)
    depth: Counter[int] = Counter()
    last = 0
    names = []
    for packet in packets:
        for table in ("event_names", "event_categories", "debug_annotation_names"):
            for row in getattr(packet.interned_data, table):
                assert row.iid not in texts[table]
                texts[table][row.iid] = row.name
        if packet.HasField("track_descriptor"):
            made = packet.track_descriptor
            assert made.uuid not in tracks and (not made.parent_uuid or made.parent_uuid in tracks)
            tracks[made.uuid] = made
        if packet.HasField("track_event"):
            event = packet.track_event
            assert packet.timestamp >= last and event.track_uuid in tracks
            last = packet.timestamp
            assert all(a.name_iid in texts["debug_annotation_names"]
                       for a in event.debug_annotations)  # fmt: skip
            assert all(c in texts["event_categories"] for c in event.category_iids)
            if event.type == event.TYPE_SLICE_BEGIN:
                names.append(texts["event_names"][event.name_iid])
                depth[event.track_uuid] += 1
            elif event.type == event.TYPE_SLICE_END:
                depth[event.track_uuid] -= 1
                assert depth[event.track_uuid] >= 0
            elif event.type == event.TYPE_COUNTER:
                assert tracks[event.track_uuid].HasField("counter")
            else:
                assert event.type == event.TYPE_INSTANT and event.name_iid in texts["event_names"]
    assert not any(depth.values())
    return names, tracks


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
        outside = perfetto.query("select count(*) from slice c join slice p on c.parent_id = p.id "
                                 "where c.ts < p.ts or c.ts + c.dur > p.ts + p.dur")  # fmt: skip
        assert outside == [(0,)]
        threads = perfetto.query("select distinct tid, thread.name from slice join thread_track t "
                                 "on slice.track_id = t.id join thread using (utid)")  # fmt: skip
        assert dict(threads) == recorded.threads
        above = perfetto.query("select distinct c.category, p.category from slice c "
                               "join slice p on c.parent_id = p.id "
                               "where c.category in ('run', 'part', 'op')")  # fmt: skip
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
    made.slices = [piece("a", 0, 50), piece("inner", 10, 20), piece("b", 30, 70),
                   piece("point", 30, 30), piece("c", 50, 60)]  # fmt: skip
    found = {lane: [s.name for s in slices] for lane, slices in lanes(made.slices).items()}
    assert found == {(1, 0): ["a", "inner", "point", "c"], (1, 1): ["b"]}
    names, tracks = check_perfetto(encode(made, "x.pftrace"))
    assert len(names) == 5 and any(t.name == "main (2)" for t in tracks.values())
    events = json.loads(to_chrome(made))["traceEvents"]
    assert len({e["tid"] for e in events if e["ph"] == "X"}) == 2


def trace_about() -> dict[str, Any]:
    return {"process": 1, "command": "x", "cores": 2, "clocks": {"monotonic": 5, "boottime": 9}}


# -- insights -------------------------------------------------------------------------------------


def made_up(workers: int = 2, cores: int = 2, threads: int = 2, **work: tuple[int, ...]) -> Trace:
    """Two equal runs: for each step the nanoseconds of each worker, all beginning together."""
    found = Trace(trace_about() | {"cores": cores}, end=10**9)
    found.slices.append(Slice(1, 0, 1, "plan", "plan", {"threads": threads}))
    begin = 10
    for _ in range(2):
        at = begin
        for place, (name, times) in enumerate(work.items()):
            for worker, time in enumerate(times):
                row = {"op": name, "step": f"{place} {name}", "node": place, "kernel": "k",
                       "delegate": "cpu"}  # fmt: skip
                found.slices += [
                    Slice(worker + 1, at, at + time, name, "op", row),
                    Slice(worker + 1, at + time, at + max(times), "barrier", "barrier",
                          {"behind": row["step"]}),
                ]  # fmt: skip
            at += max(times)
        found.slices += [Slice(1, begin, at, "invoke", "run", {}),
                         Slice(1, begin, at, "part", "part", {"workers": workers})]  # fmt: skip
        begin = at + 10
    return found


def kinds(made: Trace) -> dict[str, str]:
    return {i.kind: str(i) for i in insights(made)}


LONG = 1_000_000


def test_an_even_run_gives_no_insight() -> None:
    assert not kinds(made_up(a=(LONG, LONG), b=(LONG, LONG), c=(LONG, LONG)))


def test_threads_and_cores() -> None:
    crowd = {f"s{i}": (LONG,) * 4 for i in range(4)}
    found = kinds(made_up(4, 2, 4, **crowd))
    assert "4 threads compute at once, 2 cores" in found["threads"]
    assert "threads=2 or fewer" in found["threads"]
    assert not kinds(made_up(4, 4, 4, **crowd))


def test_sessions_side_by_side_count_together() -> None:
    made = made_up(2, 3, a=(LONG, LONG), b=(LONG, LONG), c=(LONG, LONG))
    assert "threads" not in kinds(made)
    made.slices += [s._replace(thread=s.thread + 10) for s in made.of_kind("part")]
    assert "4 threads compute at once, 3 cores" in kinds(made)["threads"]


def test_barriers_name_the_worst_step() -> None:
    found = kinds(made_up(a=(LONG, LONG), lopsided=(LONG, 1), c=(LONG, LONG)))
    assert "17 % of the workers' time" in found["barriers"]
    assert "share (100 %) behind step 1 lopsided" in found["barriers"]
    assert "only one worker has work in it" in found["barriers"]
    uneven = kinds(made_up(a=(LONG, LONG // 2), b=(LONG, LONG), c=(LONG, LONG // 2)))
    assert "do not end together" in uneven["barriers"]


def test_workers_that_take_turns() -> None:
    made = made_up(a=(LONG, LONG), b=(LONG, LONG), c=(LONG, LONG))
    assert "turns" not in kinds(made)
    late = []
    for s in made.slices:  # worker 1 begins when worker 0 has ended
        if s.begin >= 3 * LONG + 20 or s.kind == "barrier":
            continue
        if s.kind == "op":
            place = int(s.args["step"][0])
            shift = place * LONG + (LONG if s.thread == 2 else 0)
            s = s._replace(begin=s.begin + shift, end=s.end + shift)
        elif s.kind in ("run", "part"):
            s = s._replace(end=s.begin + 6 * LONG + 5)
        late.append(s)
    made.slices = sorted(late, key=lambda s: s.begin)
    assert "only 50 % of the workers' time is work" in kinds(made)["turns"]


def test_work_that_is_too_small() -> None:
    found = kinds(made_up(1, 8, 8, a=(LONG,), b=(LONG,), c=(LONG,)))
    assert "8 threads were asked for, there is work for 1" in found["small"]
    found = kinds(made_up(a=(800, 800), b=(900, 900), c=(900, 900)))
    assert "0.867 us" in found["small steps"]


def test_one_op_dominates() -> None:
    found = kinds(made_up(a=(LONG, LONG), big=(8 * LONG, 8 * LONG), c=(LONG, LONG)))
    assert "big (node 1, kernel k on cpu) takes 80 %" in found["dominating"]


def test_fallbacks_and_borders_of_a_real_run() -> None:
    found = kinds(trace_mixed())
    assert "'cpu' does not run custom.TraceTest (node 1): on 'reference'" in found["fallback"]
    assert "custom.TraceTest has no kernel" in found["fallback"]
    assert "borders between parts 2 times (2 KiB)" in found["borders"]
    assert all("\n  why: " in text and "\n  do: " in text for text in found.values())


def test_a_fallback_without_runs() -> None:
    made = Trace(trace_about(), end=1)
    made.instants.append(Instant(1, 0, "", "refusal", {
        "op": "A", "node": 0, "delegate": "gpu", "runs on": "cpu", "reason": "no"}))  # fmt: skip
    assert "A (node 0)" in kinds(made)["fallback"]


# -- the environment variable ---------------------------------------------------------------------


def run_python(code: str, target: str, cwd: Path, **more: Any) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"SANDERLING_TRACE": target, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True,
                          text=True, timeout=120, cwd=cwd, env=environment, **more)  # fmt: skip


RUN = f"""
import numpy as np, sanderling, os, signal
session = sanderling.load({DIGITS!r}).compile(["reference"])
session(np.zeros((1, 8, 8, 1), np.int8))
"""


# Python's own status after an interrupt depends on how it was started.
@pytest.mark.parametrize("end, status", [
    ("", [0]), ("raise KeyError('x')", [1]), ("raise SystemExit(3)", [3]),
    ("signal.signal(signal.SIGINT, signal.default_int_handler); "
     "os.kill(os.getpid(), signal.SIGINT); signal.pause()", [1, 130, -signal.SIGINT]),
], ids=["end", "error", "exit", "ctrl-c"])  # fmt: skip
def test_a_program_is_traced_without_changing_it(
    end: str, status: list[int], tmp_path: Path
) -> None:
    done = run_python(RUN + end, "x.json", tmp_path)
    assert done.returncode in status, done.stderr
    made = read(tmp_path / "x.json")
    assert {"load", "invoke", "CONV_2D"} <= {s.name for s in made.slices}
    assert "wrote x.json" in done.stderr and names_in(tmp_path) == ["x.json"]


def test_a_forked_child_leaves_the_file_to_its_parent(tmp_path: Path) -> None:
    code = """
        import os, sys, sanderling
        if os.fork() == 0:
            assert not sanderling.trace.is_recording()
            sys.exit(0)
        assert os.wait()[1] == 0 and not os.path.exists(f"x-{os.getpid()}.json")
        with sanderling.trace.section("parent"):
            pass
        print(os.getpid())
    """
    done = run_python(code, "x-{pid}.json", tmp_path)
    assert done.returncode == 0, done.stderr
    made = read(tmp_path / f"x-{done.stdout.strip()}.json")
    assert [s.name for s in made.slices] == ["parent"]


@pytest.mark.parametrize("target", ["none/x.json", "x.txt"])
def test_a_bad_name_is_a_warning(target: str, tmp_path: Path) -> None:
    done = run_python("import sanderling; print('goes on')", target, tmp_path)
    assert done.returncode == 0 and done.stdout == "goes on\n"
    assert "SANDERLING_TRACE: nothing is recorded" in done.stderr
    assert not list(tmp_path.iterdir())


# -- the command ----------------------------------------------------------------------------------


def call(*words: object, status: int = 0) -> Result:
    result = CliRunner().invoke(app, ["trace", *map(str, words)])
    assert result.exit_code == status, result.output + repr(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert tape.recorder is None
    return result


def test_the_command_writes_a_trace_and_says_what_stands_out(tmp_path: Path) -> None:
    out = tmp_path / "x.json"
    text = call(DIGITS, "-o", out, "--runs", 3, "--threads", 64).stdout
    assert re.search(r"first run +\d+\.\d+ ms", text) and "later runs (2)" in text
    assert "threads compute at once" in text
    again = call("--read", out).stdout
    assert again.split("\n", 1)[1] == text.split("\n", 1)[1]
    assert [s.name for s in read(out).of_kind("run")] == ["invoke"] * 3


def test_the_command_in_json_and_protobuf(tmp_path: Path) -> None:
    pytest.importorskip("perfetto")
    out = tmp_path / "x.perfetto-trace"
    found = json.loads(call(DIGITS, "-o", out, "--delegate", "reference", "--json", "-").stdout)
    assert found["schema"] == "sanderling.trace/1" and found["runs"] == 5
    assert found["sections_s"].keys() == {"make inputs"} and found["later_run_s"] > 0
    names, _ = check_perfetto(out.read_bytes())
    assert names.count("CONV_2D") == 10


def test_an_interrupt_loses_nothing_that_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []

    def run(self: Session, *args: Any, **more: Any) -> Any:
        runs.append(0)
        if len(runs) == 3:
            raise KeyboardInterrupt
        return real(self, *args, **more)

    real = Session.run
    monkeypatch.setattr(Session, "run", run)
    result = call(DIGITS, "-o", tmp_path / "x.json", "--delegate", "reference", status=130)
    assert "interrupted" in result.stderr
    assert len(read(tmp_path / "x.json").of_kind("run")) == 2


def test_inputs_are_the_users(tmp_path: Path) -> None:
    np.save(tmp_path / "two.npy", np.zeros((2, 8, 8, 1), np.int8))
    call(DIGITS, "-o", tmp_path / "x.json", "--input", tmp_path / "two.npy", "--delegate",
         "reference")  # fmt: skip
    (plan,) = (s for s in read(tmp_path / "x.json").of_kind("plan") if s.name == "plan")
    assert "(2, 8, 8, 1)" in plan.args["inputs"]


@pytest.mark.parametrize("words, said", [
    (["none.tflite", "-o", "x.json"], "none.tflite"),
    ([DIGITS, "-o", "x.json", "--input", "wrong.npy"], "shape [1, 3]"),
    ([DIGITS, "-o", "x.json", "--input", "large.npy"], "does not run on this shape"),
    ([DIGITS, "-o", "x.json", "--threads", "0"], "threads is 0"),
    ([DIGITS, "-o", "x.json", "--runs", "0"], "runs is 0"),
    ([DIGITS, "-o", "none/x.json"], "there is no folder 'none'"),
    ([DIGITS, "-o", "x.txt"], ".perfetto-trace"),
    ([DIGITS], "--output"),
    ([], "neither a model"),
    ([DIGITS, "--read", "x.json"], "not both"),
    (["--read", "none.json"], "No such file"),
    (["--read", "garbage.json"], "garbage.json: not a trace"),
    (["--read", DIGITS], "it is not JSON"),
    (["--read", "other.json"], "not a trace"),
    ([DIGITS, "-o", "x.json", "--delegate", "none"], "no delegate 'none'"),
], ids=str)  # fmt: skip
def test_bad_input(words: list[str], said: str, tmp_path: Path,
                   monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    np.save("wrong.npy", np.zeros((1, 3), np.int8))
    Path("garbage.json").write_text("{")
    Path("other.json").write_text('{"traceEvents": []}')
    np.save("large.npy", np.zeros((1, 9, 9, 1), np.int8))
    before = names_in(tmp_path)
    result = call(*words, status=2)
    assert said in result.stderr and names_in(tmp_path) == before


def test_without_the_package_json_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.split(".")[0] == "perfetto"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "perfetto", None)
    result = call(DIGITS, "-o", tmp_path / "x.pftrace", status=2)
    assert "pip install 'sanderling[trace]'" in result.stderr and not list(tmp_path.iterdir())
    with pytest.raises(MissingExtraError), trace.record(tmp_path / "x.pftrace"):
        pytest.fail("it began")
    call(DIGITS, "-o", tmp_path / "x.json", "--delegate", "reference")


def test_the_function_behind_it() -> None:
    shown: list[tuple[str, int, int]] = []
    made = trace_model(DIGITS, runs=2, delegates=["reference"],
                       feeds={"image": np.zeros((1, 8, 8, 1), np.int8)},
                       progress=lambda *now: shown.append(now))  # fmt: skip
    assert len(made.of_kind("run")) == 2 and shown[-1] == ("runs", 2, 2)

"""Tracing: what is recorded is true, and off is off."""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref
from collections import Counter
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import pytest

from sanderling import Interpreter, load, save, trace
from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.runtime.executable import CpuExecutable
from sanderling.delegates.cpu.runtime.traced import TracedExecutable
from sanderling.errors import InputError
from sanderling.ir import DType, Graph, Model
from sanderling.measure.trace_insights import insights
from sanderling.runtime.trace_data import Slice, Trace
from sanderling.runtime.tracefile import read
from sanderling.spans import tape

from .support.conv_stacks import feed, stack
from .support.trace_recordings import (  # noqa: F401
    DIGITS,
    WORKERS,
    inside,
    length,
    recorded_runs,
    runs_of,
    surroundings,
    trace_mixed,
)

# -- what is recorded -----------------------------------------------------------------------------


def test_everything_has_its_slice(recorded: Trace) -> None:
    names = {(s.kind, s.name) for s in recorded.slices}
    assert {
        ("load", "load"),
        ("load", "read tables"),
        ("load", "verify"),
        ("plan", "plan"),
        ("pass", "fold constants"),
        ("pass", "fuse chains"),
        ("pass", "unify bytes"),
        ("partition", "partition"),
        ("compile", "compile for cpu"),
        ("compile", "LLVM: object code"),
        ("allocate", "allocate tensors"),
        ("section", "recognise"),
        ("section", "inference"),
        ("api", "session.run"),
        ("run", "invoke"),
        ("part", "part 0 on cpu"),
        ("op", "CONV_2D"),
        ("barrier", "barrier"),
    } <= names
    values = {c.name: c.value for c in recorded.counts}
    assert values["frames"] == 3 and values["arena (bytes)"] > 0
    assert 10 << 20 < values["resident set (bytes)"] < 100 << 30
    assert [i.name for i in recorded.instants if i.kind == "mark"] == ["last frame"]
    assert recorded.about["process"] == os.getpid()


def test_ops_say_what_they_are(recorded: Trace) -> None:
    first = next(s for s in recorded.of_kind("op") if s.name == "CONV_2D")
    assert (
        first.args | {"node": 0, "kernel": "conv_2d", "delegate": "cpu", "macs": 14 * 14 * 32 * 32}
        == first.args
    )
    assert "y0" in first.args["writes"]
    nodes = {s.args["node"] for s in recorded.of_kind("op")}
    assert nodes >= {0, 1, 2, 3}


def number(op: Slice) -> int:
    """Of the step."""
    return int(op.args["step"].split()[0])


def test_every_op_is_on_some_worker(recorded: Trace) -> None:
    """Who comes first claims the work: on a busy machine that may be one of them alone."""
    workers = {"MainThread", "sanderling worker 1"}
    assert set(recorded.threads.values()) <= workers | {"sanderling-compiler"}
    runs = runs_of(recorded)
    assert len(runs) == 3
    steps = [
        {s.args["step"] for mine in run.values() for s in mine if s.kind == "op"} for run in runs
    ]
    assert steps[0] == steps[1] == steps[2] and len(steps[0]) >= 4


def test_times_are_true(recorded: Trace) -> None:
    """On each worker one thing follows the other; nobody begins a step before all ended the one
    before; a wait begins with the end of a step."""
    slack = 1000  # the clocks of two cores, in nanoseconds
    for run in runs_of(recorded):
        for mine in run.values():
            assert all(a.end <= b.begin for a, b in pairwise(mine))
            assert all(b.begin == a.end for a, b in pairwise(mine) if b.kind == "barrier")
        ops = sorted((s for mine in run.values() for s in mine if s.kind == "op"), key=number)
        steps = [list(group) for _, group in groupby(ops, number)]
        for before, after in pairwise(steps):
            assert max(s.end for s in before) <= min(s.begin for s in after) + slack
        assert all(length(s) > 0 for s in ops)


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
    ran = {number for number, name in made.threads.items() if name != "sanderling-compiler"}
    assert ran <= alive and len(ran) <= 3
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
    assert rows and all(max(r["ticks"]) > 0 for r in rows)


# -- those who were there before ------------------------------------------------------------------


def count_ops(made: Trace) -> int:
    return len(made.of_kind("op"))


def test_a_session_from_before_takes_part(tmp_path: Path) -> None:
    save(stack(), tmp_path / "model.tflite")
    for model in (stack(), load(tmp_path / "model.tflite")):
        session = model.compile(["cpu"], threads=WORKERS)
        x = feed(stack())
        expected = session.run({"x": x})
        session.run({"x": x})
        (plan,) = session._plans
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
    assert bound.binding.steady is not None, "the short way is open again"


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


def test_the_reference_and_the_borders_are_seen() -> None:
    made = trace_mixed()
    (own,) = {
        (s.name, s.args["node"]) for s in made.of_kind("op") if s.args["delegate"] == "reference"
    }
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
    assert partition.args["parts"] == ["1 op on cpu", "1 op on reference", "1 op on cpu"]


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

    def taken() -> int:
        before = sys.getallocatedblocks()
        many()
        return sys.getallocatedblocks() - before

    many()
    assert min(taken() for _ in range(5)) < 10  # other threads may take some at the same time


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
    monkeypatch.setattr("sanderling.runtime.recorder.MOST_SLICES", 10)
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

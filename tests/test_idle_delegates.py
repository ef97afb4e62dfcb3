"""A delegate that was asked for and took no op: no verb reports an answer of others as its own."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

import sanderling
from sanderling import Model, diff, load
from sanderling.ir import DType, Graph, Shape
from sanderling.measure.bench import bench
from sanderling.runtime.coverage import idle_delegates
from sanderling.runtime.delegate import Options
from sanderling.runtime.session import Session

from .support import eval_command
from .support.command_line import INT8, call
from .support.eval_command import digits as digits
from .support.eval_command import no_shared_cache as no_shared_cache
from .support.fake_delegates import Some, SomeExecutable

IDLE = "gpu:quantized=false"  # takes no op of an 8-bit model, whether there is a device or not
SAID = "took 0 of 5 ops"
FULL = "--require-full-delegation"


@pytest.fixture
def delegates(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, takes in {"none": (), "softmax": ("SOFTMAX",), "missing": ("SOFTMAX",)}.items():
        made = Some(takes, name, fails="compile" if name == "missing" else "")
        monkeypatch.setitem(sanderling.runtime.registry._registered, name, lambda m=made: m)


def idle_of(*wanted: str) -> list[str]:
    session = load(INT8).compile(wanted)
    graph = session.model.main
    return idle_delegates(session, wanted, graph, [t.shape for t in graph.inputs])


@pytest.mark.filterwarnings("ignore:.*could not compile")
def test_who_took_nothing_is_told_with_the_reason(delegates: None) -> None:
    assert idle_of() == idle_of("cpu") == idle_of("softmax") == idle_of("softmax", "cpu") == []
    assert idle_of("cpu", "none") == []  # nothing was left for it
    (alone,) = idle_of("softmax", "none")
    assert alone.startswith("delegate 'none' took 0 of 5 ops: ")
    (failed,) = idle_of("missing")
    assert failed.startswith("delegate 'missing' took 0 of 5 ops: ")


def looping() -> Model:
    """A WHILE that adds one until five are reached."""
    main, test, body = (Graph(n) for n in ("main", "test", "body"))
    for graph in (main, test, body):
        graph.input("x", DType.FLOAT32, (1,))
    is_less, more, y = (
        test.tensor("less", DType.BOOL, (1,)),
        body.tensor("more", DType.FLOAT32, (1,)),
        main.tensor("y", DType.FLOAT32, (1,)),
    )
    test.add("LESS", [*test.inputs, test.constant("five", np.float32([5]))], [is_less])
    body.add("ADD", [*body.inputs, body.constant("one", np.float32([1]))], [more])
    test.outputs, body.outputs, main.outputs = [is_less], [more], [y]
    main.add("WHILE", list(main.inputs), [y], cond_subgraph_index=test, body_subgraph_index=body)
    return Model([main, test, body])


def test_what_control_flow_calls_counts() -> None:
    shapes: list[Shape] = [(1,)]
    for takes, count in ((("ADD",), 0), ((), 1)):
        session = Session(looping(), [Some(takes)])
        session.run({"x": np.float32([0])})
        assert len(idle_delegates(session, ["some"], session.model.main, shapes)) == count


def test_diff_does_not_hold() -> None:
    words = ("diff", INT8, "--delegate", IDLE, "--runs", 1)
    free = call(*words)
    assert f"test: delegate '{IDLE}' {SAID}" in free.stdout
    checked = call(*words, "--max-raw-error", 0, status=1)
    assert f"does not hold: test: delegate '{IDLE}' {SAID}" in checked.stderr
    record = json.loads(call(*words, "--max-raw-error", 0, "--json", "-", status=1).stdout)
    assert not record["ok"] and SAID in record["test"]["idle_delegates"][0]
    assert record["reference"]["idle_delegates"] == []


def test_diff_does_not_hold_for_a_delegate_that_is_not_here() -> None:
    words = ("diff", INT8, "--delegate", "hexagon", "--runs", 1)
    assert "does not hold" not in call(*words).stderr
    assert (
        "does not hold: Could not create Hexagon" in call(*words, "--max-error", 1, status=1).stderr
    )


def test_diff_holds_where_it_took_something(delegates: None) -> None:
    found = diff(INT8, delegate_b="softmax", runs=1, max_raw_error=0)
    assert found.ok and found.test["idle_delegates"] == []


def test_eval_does_not_hold(digits: Path) -> None:
    words = eval_command.arguments(digits, "--delegate", IDLE, "--limit", 2)
    free = eval_command.call(*words)
    assert f"delegate '{IDLE}' {SAID}" in free.stdout
    checked = eval_command.call(*words, "--require", "top1=0", status=1)
    assert f"--require does not hold: delegate '{IDLE}' {SAID}" in checked.stderr
    record = json.loads(eval_command.call(*words, "--json", "-").stdout)
    assert SAID in record["idle_delegates"][0]


def test_bench_names_who_ran() -> None:
    quick = {"min_secs": 0.0, "max_secs": 0.2, "runs": 1, "warmup_secs": 0.0, "launches": 1}
    made = bench(INT8, delegates=[("cpu",), (IDLE,)], **quick)
    default, idle = made.results
    assert default.setting.name == "sanderling, 1 thread"
    assert idle.setting.name == f"sanderling, cpu ({IDLE} took 0 of 5 ops), 1 thread"
    assert made.comparisons[0].setting == idle.setting.name
    (warning,) = [w for w in made.warnings if w.kind == "idle delegate"]
    assert warning.who.endswith(idle.setting.name) and SAID in warning.what
    assert made.payoffs[0].setting == idle.setting.name  # it is still compared with the cpu


def test_run_says_so() -> None:
    told = call("run", INT8, "--delegate", IDLE, "--random", 0)
    assert f"warning: delegate '{IDLE}' {SAID}: 'image' is quantised" in told.stderr
    assert (
        "sanderling inspect" in told.stderr
        and "took" not in call("run", INT8, "--random", 0).stderr
    )
    record = json.loads(call("run", INT8, "--delegate", IDLE, "--random", 0, "--json", "-").stdout)
    assert SAID in record["idle_delegates"][0]


def test_full_delegation_may_be_required(digits: Path, tmp_path: Path) -> None:
    named = ("--delegate", IDLE, FULL)
    for words in (
        ("run", INT8, "--random", 0),
        ("diff", INT8, "--runs", 1),
        ("profile", INT8, "--runs", 1, "--no-roofline"),
        ("trace", INT8, "-o", tmp_path / "t.json"),
        ("bench", INT8, "--launches", 1),
        ("eval", *eval_command.arguments(digits, "--limit", 1)),
    ):
        assert "does not run the whole graph" in call(*words, *named, status=2).stderr, words
    assert call("run", INT8, "--random", 0, "--delegate", "cpu", FULL).stderr == ""


def test_bench_fails_where_one_setting_does_not_delegate_fully() -> None:
    words = ("bench", INT8, "--delegates", f"cpu,{IDLE}", "--launches", 1, "--max-secs", 0.1)
    assert "does not run the whole graph" in call(*words, FULL, status=1).stdout


def test_bench_does_not_hold_against_a_baseline(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    words = ("bench", INT8, "--launches", 1, "--max-secs", 0.1, "--warmup-secs", 0)
    call(*words, "--json", kept)
    both = ("--delegates", f"cpu,{IDLE}", "--baseline", kept, "--max-regression", "99%")
    assert f"the check failed: delegate '{IDLE}' {SAID}" in call(*words, *both, status=1).stderr


class Slow(Some):
    """Takes its time to compile."""

    def compile(self, part: Graph, options: Options) -> SomeExecutable:
        time.sleep(0.05)
        return super().compile(part, options)


@pytest.mark.parametrize("size", [1, -1])
def test_a_run_and_its_compilation_are_told_apart(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is compiled: when the session is made, or in the run that brings the shapes."""
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (1, 4), signature=(size, 4))
    y = graph.tensor("y", DType.FLOAT32, (1, 4), signature=(size, 4))
    graph.add("ABS", [x], [y])
    graph.outputs = [y]
    sanderling.save(Model([graph]), tmp_path / "abs.tflite")
    made = Slow(("ABS",), "slow")
    monkeypatch.setitem(sanderling.runtime.registry._registered, "slow", lambda: made)
    words = ("run", tmp_path / "abs.tflite", "--random", 0, "--delegate", "slow")
    record = json.loads(call(*words, "--json", "-").stdout)
    assert record["compile_seconds"] > 0.05 > record["seconds"]
    assert "; planning and compiling, apart from that, " in call(*words).stdout

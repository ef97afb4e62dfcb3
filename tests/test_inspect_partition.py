"""`inspect --delegate` shows what a session does: what it computes once, who runs the rest, and why
nobody may."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from sanderling.ir import DType, Graph, Model, Op
from sanderling.measure import inspect as describe
from sanderling.rewrites.driver import rewrite
from sanderling.rules import judge
from sanderling.runtime.delegate import Delegate, Options, PlainExecutable

from .conformance.cases_control import accumulator
from .support.command_line import answer, call, stored
from .support.fake_delegates import Some

F = DType.FLOAT32


def half() -> Model:
    """Two DEQUANTIZE of float16 constants, CONV_2D with them, NEG."""
    graph = Graph()
    x = graph.input("x", F, (1, 4, 4, 2))
    weights = graph.constant("w16", np.ones((3, 1, 1, 2), np.float16))
    bias = graph.constant("b16", np.ones(3, np.float16))
    w, b = graph.tensor("w", F, (3, 1, 1, 2)), graph.tensor("b", F, (3,))
    y, z = graph.tensor("y", F, (1, 4, 4, 3)), graph.tensor("z", F, (1, 4, 4, 3))
    graph.add("DEQUANTIZE", [weights], [w])
    graph.add("DEQUANTIZE", [bias], [b])
    graph.add("CONV_2D", [x, w, b], [y], padding="SAME", stride_h=1, stride_w=1)
    graph.add("NEG", [y], [z])
    graph.outputs = [z]
    return Model([graph])


class Strict(Some):
    """Takes ops whose operands from the second on are constants, and no NEG."""

    def refuses(self, op: Op) -> str | None:
        if op.name == "NEG":
            return "it has no NEG"
        computed = [t for t in op.inputs[1:] if t is not None and not t.is_constant]
        return "an operand is computed" if computed else None


def test_the_partition_is_that_of_a_session() -> None:
    model = half()
    (record,) = describe(model, [Strict([])])["delegates"]
    session = model.compile([Strict([])])
    parts = [(p.delegate.name, len(p.ops)) for p in session.plan().partition.parts]
    assert (
        [(p["delegate"], p["ops"]) for p in record["parts"]] == parts == [("some", 1), ("cpu", 1)]
    )
    assert record["folded"] == 2 and record["taken"] == 1
    assert [(op["index"], op["delegate"]) for op in record["ops"]] == [
        (0, "constant"),
        (1, "constant"),
        (2, "some"),
        (3, "cpu"),
    ]
    assert [op["refusals"] for op in record["ops"]][:3] == [[], [], []]
    assert record["ops"][3]["refusals"] == [{"delegate": "some", "reason": "it has no NEG"}]


def test_what_is_computed_once_is_said(tmp_path: Path) -> None:
    path = stored(tmp_path, half())
    said = call("inspect", path, "--delegate", "cpu", "--ops").stdout
    assert "delegation: 1 part: 2 ops on cpu; 2 ops of constants are computed once" in said
    assert said.count("yes, computed once") == 2


@pytest.mark.parametrize("name", ["gpu:sanderling", "cpu"])
def test_our_own_rules_judge_what_a_session_has(name: str) -> None:
    """Nothing is to be rewritten, since nothing is refused in a session."""
    model = half()
    found = judge(model, name)
    assert found.is_whole and found.folded == [0, 1] and found.taken == 2
    assert [len(part.ops) for part in found.parts] == [2]
    assert [v.op for v in found.verdicts] == model.main.ops
    made = rewrite(model, name)
    assert not made.before and not made.changes


def test_accelerators_say_it_too(tmp_path: Path) -> None:
    path = stored(tmp_path, half())
    said = call("inspect", path, "--delegate", "gpu:sanderling").stdout
    assert "2 ops on gpu:sanderling; 2 ops of constants are computed once" in said
    assert "estimated" not in said  # no figures are stated for the borders of our own
    ((record,),) = answer("inspect", path, "--delegate", "gpu:sanderling")["accelerators"]
    assert [op["delegate"] for op in record["ops"]][:2] == ["constant"] * 2
    # TensorFlow Lite's own delegate gets these ops, and expands the weights itself.
    assert "4 ops on gpu:tflite" in call("inspect", path, "--delegate", "gpu:tflite").stdout


class Absent(Delegate):
    """As a delegate of a machine without its device."""

    name = "absent"

    def refuses(self, op: Op) -> str | None:
        return None

    def lacks(self) -> str:
        return "there is no such chip"

    def compile(self, part: Graph, options: Options) -> PlainExecutable:
        raise AssertionError("nobody compiles")


def test_who_runs_nothing_here() -> None:
    assert describe(half(), [Some(["NEG"])])["delegates"][0]["lacks"] == ""
    (record,) = describe(half(), [Absent()])["delegates"]
    assert record["lacks"] == "'absent' runs nothing here: there is no such chip"


def test_the_report_of_who_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sanderling.runtime.registry._registered", {"absent": Absent})
    said = call("inspect", stored(tmp_path, half()), "--delegate", "absent").stdout
    assert "delegation: 'absent' runs nothing here: there is no such chip\n" in said
    assert "by its rules alone: 1 part: 2 ops on absent; 2 ops of" in said
    assert "delegation: 1 part" not in said


def recurrent() -> Model:
    """SVDF, whose state is a variable tensor."""
    graph = Graph()
    x = graph.input("x", F, (1, 3))
    feature = graph.constant("feature", np.ones((2, 3), np.float32))
    time = graph.constant("time", np.ones((2, 4), np.float32))
    state = graph.tensor("state", F, (1, 8), is_variable=True)
    graph.outputs = [graph.tensor("y", F, (1, 2))]
    graph.add("SVDF", [x, feature, time, None, state], graph.outputs, rank=1)
    return Model([graph])


def crossings(model: Model) -> Sequence[dict[str, int]]:
    (ours,) = describe(model, [Some(["SVDF"])])["delegates"]
    ((judged,),) = describe(model, ["gpu:sanderling"])["accelerators"]
    return ours["crossing"], judged["crossing"]


def test_a_state_is_no_refused_op() -> None:
    for crossing in crossings(recurrent()):
        assert crossing["inner_tensors"] == 0
    assert crossings(recurrent())[0]["state_tensors"] == 1
    assert crossings(recurrent())[0]["state_bytes"] == 4 * 8


def test_the_report_of_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sanderling.runtime.registry._registered", {"some": lambda: Some(["SVDF"])})
    said = call("inspect", stored(tmp_path, recurrent()), "--delegate", "some").stdout
    assert "borders: 3 tensors of 52 B in a run, of which 1 tensor of 32 B because they" in said
    assert "ops are refused" not in said


def test_a_graph_without_ops(tmp_path: Path) -> None:
    graph = Graph()
    graph.outputs = [graph.input("x", F, (1, 3))]
    said = call("inspect", stored(tmp_path, Model([graph])), "--delegate", "reference").stdout
    assert "delegation: no ops\n" in said and "0 parts" not in said


def test_handles_and_first_calls_are_the_plans() -> None:
    model = Model(accumulator("f32", (3,)))
    ours = describe(model, ["cpu"])["delegates"][0]
    found = judge(model, "cpu")
    assert [op["delegate"] for op in ours["ops"]].count("plan") > 0
    assert found.taken == sum(len(part.ops) for part in found.parts) == ours["parts"][0]["ops"]

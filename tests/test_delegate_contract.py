"""The delegate contract: a plain class is enough, every optional method is asked for and has a
default, and nothing else is asked. The complete example of docs/delegates.md is put through it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sanderling
from sanderling import FallbackWarning, InputError
from sanderling.ir import Array, DType, Graph, Model, Op
from sanderling.ops.execute import new_state, run_ops
from sanderling.runtime import registry
from sanderling.runtime.delegate import (
    Call,
    Delegate,
    Executable,
    Options,
    PlainExecutable,
    as_delegate,
    as_executable,
)
from sanderling.runtime.session import Session

ROOT = Path(sanderling.__file__).parent
PAGE = ROOT.parent / "docs" / "delegates.md"
DIGITS = files("sanderling") / "data" / "digits_f32.tflite"
X = np.random.default_rng(0).random((1, 8, 8, 1), np.float32)


def members(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


REQUIRED = {"refuses", "compile", "run"}
OPTIONAL = (members(Delegate) | members(Executable)) - REQUIRED


# -- plain classes --------------------------------------------------------------------------------


class Runner:
    def __init__(self, part: Graph) -> None:
        self.part = part

    def run(self, inputs: Sequence[Array], outputs: list[Array | None]) -> None:
        values = dict(zip(self.part.inputs, inputs, strict=True))
        made = run_ops(self.part.ops, values, self.part.outputs, new_state())
        for target, value in zip(outputs, made, strict=True):
            assert target is not None
            target[...] = value


class Plain:
    """No more than what is required, and nothing inherited."""

    name = "plain"

    def refuses(self, op: Op) -> str | None:
        return None if op.name == "CONV_2D" else f"{op.name} is no convolution"

    def compile(self, part: Graph, options: Options) -> Runner:
        return Runner(part)


@pytest.fixture
def registered() -> Any:
    before = dict(registry._registered)
    yield sanderling.register_delegate
    registry._registered.clear()
    registry._registered.update(before)


def test_a_plain_class_is_a_delegate(registered: Any) -> None:
    model = sanderling.load(DIGITS)
    registered("plain", Plain)
    expected = model.compile(["reference"])(X)
    for wanted in (Plain(), "plain", ["plain"], [Plain(), "cpu"]):
        session = model.compile(wanted)
        assert "on plain" in session.explain()
        assert "plain refuses: SOFTMAX is no convolution" in session.explain()
        bound = session.bind({"image": X})
        for _ in range(3):
            bound.run()
            np.testing.assert_allclose(session(X), expected, atol=1e-5)
            np.testing.assert_allclose(bound.outputs["probabilities"], expected, atol=1e-5)
        assert session.memory()["arena"] > 0


def test_a_plain_class_has_the_defaults() -> None:
    made = as_delegate(Plain())
    part = Graph()
    assert made.identity is None and made.restore("key", 1) is None
    assert made.refuses_each([]) == [] and made.configure({}) is made
    assert made.infer(Op("custom.Mine", [], []), []) is None
    made.check_options({"precision": "bf16"})
    made.take_flags({"gpu_precision_loss_allowed": True})
    with pytest.raises(InputError, match="takes no options"):
        made.configure({"a": 1})
    whole = as_executable(made.compile(part, Options(1, new_state())))
    assert (whole.key, whole.sizes, whole.workers, whole.traced) == (None, None, 1, None)
    assert whole.memory() == {} and whole.step_times() is None and whole.nodes == ()
    assert as_delegate(made) is made and as_executable(whole) is whole


def test_what_cannot_run_is_told_when_it_is_compiled() -> None:
    class Wrong(Plain):
        def compile(self, part: Graph, options: Options) -> Any:
            return "nothing"

    with pytest.warns(FallbackWarning, match=r"has no run\(inputs, outputs\)"):
        session = sanderling.load(DIGITS).compile([Wrong()])
    assert "on plain" not in session.explain()


@pytest.mark.parametrize("wrong", [3, object(), Plain], ids=["number", "object", "class"])
def test_what_is_no_delegate_is_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match="is not a delegate"):
        sanderling.load(DIGITS).compile([wrong])


# -- all that may be offered ----------------------------------------------------------------------


class Spy(Delegate):
    """Offers everything, and takes down what it was asked."""

    name = "spy"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.seen: dict[str, Any] = {}

    def refuses(self, op: Op) -> str | None:
        raise AssertionError("it answers for all ops at once")

    def refuses_each(self, ops: Sequence[Op]) -> Sequence[str | None]:
        self.asked.append("refuses_each")
        return [None if op.name == "NEG" else "not NEG" for op in ops]

    def compile(self, part: Graph, options: Options) -> PlainExecutable:
        self.seen |= {"threads": options.threads, "extra": dict(options.extra)}
        self.made = SpyExecutable(self)
        return self.made

    def check_options(self, options: Any) -> None:
        if options.get("bad"):
            raise InputError("bad is not good")
        self.asked.append("check_options")


class SpyExecutable(Executable):
    workers = 3

    def __init__(self, owner: Spy) -> None:
        self.owner = owner

    def run(self, inputs: Sequence[Array], outputs: list[Array | None]) -> None:
        self.owner.asked.append("run")
        np.negative(inputs[0], out=outputs[0])

    def bind(self, inputs: Sequence[Array], outputs: list[Array | None]) -> Call:
        self.owner.asked.append("bind")
        return lambda: np.negative(inputs[0], out=outputs[0])

    def memory(self) -> dict[str, int]:
        return {"secrets": 7}


def negatives() -> Model:
    """ABS, then NEG."""
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (2,))
    y, z = (graph.tensor(n, DType.FLOAT32, (2,)) for n in "yz")
    graph.add("ABS", [x], [y])
    graph.add("NEG", [y], [z])
    graph.outputs = [z]
    return Model([graph])


def test_what_is_offered_is_asked_for() -> None:
    spy = Spy()
    with pytest.raises(InputError, match="bad is not good"):
        negatives().compile([spy], options={"bad": 1})
    session = negatives().compile([spy], threads=2, options={"any": "thing"})
    assert spy.seen == {"threads": 2, "extra": {"any": "thing"}}
    assert spy.asked == ["check_options", "refuses_each"] and spy.made.nodes == [1]
    x = np.float32([1, -2])
    bound = session.bind({"x": x})
    for _ in range(4):
        bound.run()
    assert bound.outputs["z"].tolist() == [-1, -2]
    assert spy.asked[2:] == ["run", "bind"], "one run, then calls on the same arrays"
    assert session.memory()["secrets"] == 7
    assert "spy refuses: not NEG" in session.explain()
    with sanderling.trace.record() as trace:
        bound.run()
    (part,) = [s for s in trace.of_kind("part") if s.name.endswith("on spy")]
    assert part.args["workers"] == 3


# -- the example of the documentation -------------------------------------------------------------


@pytest.fixture(name="dense")
def dense_example() -> dict[str, Any]:
    """The names that the page's first block makes."""
    code = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)[0]
    assert len([line for line in code.splitlines() if line.strip()]) < 60
    names: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    return names


def test_the_example_is_found_again_on_disk(
    dense: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDERLING_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "model.tflite"
    path.write_bytes(DIGITS.read_bytes())

    def session() -> Session:
        return sanderling.load(path).compile([dense["Dense"]()])

    first = session()
    expected = first(X)
    for name in ("compile", "refuses", "refuses_each"):
        monkeypatch.setattr(dense["Dense"], name, lambda *args: pytest.fail("it was asked again"))
    again = session()
    (plan,) = again._plans
    assert not plan.is_whole, "it was not made from the graph"
    np.testing.assert_array_equal(again(X), expected)
    kept = [s.executable for s in plan.steps if s.part.delegate.name == "dense"]
    assert [type(e).__name__ for e in kept] == ["Layers"]
    assert kept[0].sizes and kept[0].memory()["packed_weights"] > 0


# -- nothing else ---------------------------------------------------------------------------------


def test_nobody_asks_by_name() -> None:
    """getattr(delegate, "...") would be a method that the contract does not have."""
    asking = re.compile(r"\b(?:getattr|hasattr)\([^\"']*[\"'](\w+)[\"']")
    for path in ROOT.rglob("*.py"):
        found = set(asking.findall(path.read_text("utf-8")))
        assert not found & (OPTIONAL | REQUIRED), f"{path} asks for {found}"


@pytest.mark.parametrize("kind", [Delegate, Executable])
def test_every_method_is_documented(kind: type) -> None:
    table = PAGE.read_text("utf-8")
    source = (ROOT / "runtime" / "delegate.py").read_text("utf-8")
    for name in sorted(members(kind) & OPTIONAL):
        assert re.search(rf"^\|.*\| `{name}[`(]", table, re.M), f"docs/delegates.md has no {name}"
        said = re.search(rf"^    (?:def )?{name}\b.*?\"\"\"(.*?)\"\"\"", source, re.M | re.S)
        has_default = said is not None and ("Default" in said[1] or name == "nodes")
        assert has_default, f"{name} does not say what its default is"

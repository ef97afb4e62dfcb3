"""Each rule of verify is broken by a model that breaks nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sanderling.errors import ModelError
from sanderling.ir import Blockwise, Buffer, DType, Graph, Model, Op, Quant, Signature, Tensor
from sanderling.ir.verify import INVARIANTS, MODEL_INVARIANTS, MOST_NESTED, problems, verify


def legal() -> Model:
    """x -> ADD(x, w) -> a -> NEG -> y, with a subgraph and a signature."""
    graph, called = Graph(), Graph("called")
    called.outputs = [called.input("in", DType.INT8, (2, 3))]
    quant = Quant.of([0.5, 1, 2], 0, axis=1)
    x = graph.input("x", DType.INT8, (2, 3), signature=(-1, 3))
    w = graph.constant("w", np.ones((2, 3), np.int8), quant=quant)
    a = graph.tensor("a", DType.INT8, (2, 3))
    y = graph.tensor("y", DType.INT8, (2, 3), quant=Quant.of(0.5, -128))
    graph.tensor("unused", DType.FLOAT32, (1,))
    graph.tensor("state", DType.INT8, (2, 3), is_variable=True)
    graph.add("ADD", [x, w], [a], graph=called)
    graph.add("NEG", [a, None], [y])
    graph.outputs = [y]
    return Model([graph, called], [Signature("serve", graph, {"x": x}, {"y": y})])


def test_a_legal_model_has_no_problems() -> None:
    model = legal()
    assert problems(model) == [] and problems(model.main) == []
    verify(model)


Break = Callable[[Model], object]


def tensor(model: Model, name: str) -> Tensor:
    return model.main.find(name)


def append(model: Model, inputs: list[Tensor], outputs: list[Tensor], **attrs: Any) -> Op:
    return model.main.insert(Op("ABS", inputs, outputs, attrs))


def set_quant(name: str, **changes: Any) -> Break:
    def change(model: Model) -> None:
        t = tensor(model, name)
        t.quant = replace(t.quant or Quant.of(1.0), **changes)

    return change


def stray_input(model: Model) -> None:
    stray = model.main.input("stray", DType.INT8, (1,))
    model.main.tensors.remove(stray)


def stray_intermediate(model: Model) -> None:
    model.main.ops[0].intermediates.append(Tensor("stray", DType.INT8))


def stray_block(model: Model) -> None:
    block = Blockwise(Tensor("scales", DType.FLOAT32, (2,)), None, 32)
    tensor(model, "a").quant = replace(Quant.of([]), block=block)


def two_producers(model: Model) -> None:
    append(model, [tensor(model, "x")], [tensor(model, "a")])
    model.main.ops.insert(0, model.main.ops.pop())


def calls_stranger(model: Model) -> None:
    stranger = Graph("stranger")
    append(model, [], [], branches=[stranger])


def recursion(model: Model) -> None:
    called = model.graphs[1]
    called.add("CALL", called.inputs, [called.tensor("out", DType.INT8)], body=model.main)


def self_call(model: Model) -> None:
    called = model.graphs[1]
    called.add("CALL", called.inputs, [], body=called)


def too_deep(model: Model) -> None:
    for level in range(MOST_NESTED + 1):
        inner, outer = model.graphs[-1], Graph(f"level{level}")
        outer.add("CALL", [], [], body=inner)
        model.graphs.append(outer)


def same_key(model: Model) -> None:
    model.signatures.append(Signature("serve", model.graphs[1]))


BROKEN: list[tuple[str, str, Break]] = [
    ("tensors are listed", "tensor 'stray' is not among", stray_input),
    ("tensors are listed", "tensor 'stray' is not among", stray_intermediate),
    ("tensors are listed", "tensor 'scales' is not among", stray_block),
    ("tensors are listed", "tensor 'a' is not among", lambda m: m.main.tensors.pop(2)),
    ("tensors are listed", "more than once", lambda m: m.main.tensors.append(m.main.tensors[0])),
    ("values are computed before they are read", "is read before ADD 'a' computes it",
     lambda m: m.main.ops.reverse()),
    ("values are computed before they are read", "nothing computes it",
     lambda m: append(m, [tensor(m, "unused")], [])),
    ("values are computed before they are read", "nothing computes it",
     lambda m: m.main.outputs.append(tensor(m, "unused"))),
    ("a tensor has one producer", "tensor 'a' is written more than once", two_producers),
    ("a tensor has one producer", "is written more than once",
     lambda m: m.main.ops[0].outputs.append(tensor(m, "a"))),
    ("constants and inputs are not computed", "tensor 'w', which is a constant",
     lambda m: append(m, [], [tensor(m, "w")])),
    ("constants and inputs are not computed", "tensor 'x', which is a graph input",
     lambda m: append(m, [], [tensor(m, "x")])),
    ("a variable is not a constant", "values of its own",
     lambda m: setattr(tensor(m, "w"), "is_variable", True)),
    ("producer and users are true", "its producer is not",
     lambda m: setattr(tensor(m, "a"), "producer", None)),
    ("producer and users are true", "its producer is not",
     lambda m: setattr(tensor(m, "x"), "producer", m.main.ops[0])),
    ("producer and users are true", "its producer is not",
     lambda m: setattr(tensor(m, "a"), "producer", m.main.ops[1])),
    ("producer and users are true", "its users are not", lambda m: tensor(m, "a").users.clear()),
    ("producer and users are true", "its users are not",
     lambda m: tensor(m, "a").users.append(m.main.ops[1])),
    ("producer and users are true", "its users are not",
     lambda m: m.main.ops[1].inputs.append(tensor(m, "a"))),
    ("constants have the bytes their type takes", r"i8\[2,3\] takes 6 bytes, its buffer has 1",
     lambda m: setattr(tensor(m, "w"), "buffer", Buffer(memoryview(b"1")))),
    ("shapes are legal", "negative size", lambda m: setattr(tensor(m, "a"), "shape", (-1, 3))),
    ("shapes are legal", "differ in rank", lambda m: setattr(tensor(m, "x"), "signature", (-1,))),
    ("shapes are legal", "below -1", lambda m: setattr(tensor(m, "x"), "signature", (-2, 3))),
    ("a zero point for each scale", "3 scales and 1 zero points",
     set_quant("w", zero_point=np.zeros(1, np.int64))),
    ("the quantised axis fits", "axis 2, but has rank 2", set_quant("w", axis=2)),
    ("the quantised axis fits", "axis -1, but has rank 2", set_quant("w", axis=-1)),
    ("the quantised axis fits", "3 scales for the 2 indices of axis 0", set_quant("w", axis=0)),
    ("scales are positive", "a scale of 0.0", set_quant("y", scale=np.float32([0]))),
    ("scales are positive", "a scale of nan", set_quant("y", scale=np.float32([np.nan]))),
    ("scales are positive", "a scale of inf", set_quant("y", scale=np.float32([np.inf]))),
    ("zero points fit the type", r"-129 is not a i8 \(-128 to 127\)",
     set_quant("y", zero_point=np.array([-129]))),
    ("a model has graphs", "no graph",
     lambda m: (m.graphs.clear(), m.signatures.clear())),
    ("a model has graphs", "more than once", lambda m: m.graphs.append(m.graphs[1])),
    ("called graphs are the model's", "it calls graph 'stranger'", calls_stranger),
    ("no recursion", "in a circle, among 'main', 'called'", recursion),
    ("no recursion", "in a circle, among 'called'", self_call),
    ("graphs are not nested too deeply", f"more than {MOST_NESTED} deep", too_deep),
    ("signatures name inputs and outputs", "its input 'x' is no input of graph 'main'",
     lambda m: m.signatures[0].inputs.update(x=tensor(m, "a"))),
    ("signatures name inputs and outputs", "its output 'y' is no output",
     lambda m: m.signatures[0].outputs.update(y=tensor(m, "a"))),
    ("signatures name inputs and outputs", "is not the model's",
     lambda m: m.signatures.append(Signature("other", Graph("lost")))),
    ("signatures name inputs and outputs", "two signatures have this key", same_key),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "message", "change"), BROKEN)
def test_each_rule_by_itself(rule: str, message: str, change: Break) -> None:
    model = legal()
    change(model)
    found = problems(model)
    assert {p.rule for p in found} == {rule}
    assert all(p.where and p.what and p.fix for p in found)
    with pytest.raises(ModelError, match=message):
        verify(model)


def test_every_rule_is_tested() -> None:
    assert {rule.name for rule in (*INVARIANTS, *MODEL_INVARIANTS)} == {
        rule for rule, _, _ in BROKEN
    }


FINE: list[Break] = [
    set_quant("unused", scale=np.float32([0])),  # not used
    lambda m: setattr(tensor(m, "a"), "quant", replace(Quant.of([]), min=np.float32([0]))),
    lambda m: append(m, [tensor(m, "state")], []),  # a variable is there before it is written
    lambda m: m.main.constant("s", np.array(["a", "b"], object)),
    lambda m: m.main.outputs.append(tensor(m, "x")),
    lambda m: append(m, [tensor(m, "x"), tensor(m, "x")], []),
    lambda m: m.main.constant("packed", np.ones(3, np.int8), DType.INT4),
]


@pytest.mark.parametrize("change", FINE)
def test_what_is_allowed(change: Break) -> None:
    model = legal()
    change(model)
    assert problems(model) == []


def test_the_first_problem_and_the_number_of_others() -> None:
    model = legal()
    tensor(model, "a").shape = (-1, -1)
    tensor(model, "y").shape = (-1, -1)
    with pytest.raises(ModelError, match=r"tensor 'a': its shape .* \(and 1 more"):
        verify(model)


# -- robustness and speed --------------------------------------------------------------------

NONSENSE = st.sampled_from([None, 3, "text", [None], [3], {"a": 1}, (), object()])
FIELDS = [
    (Model, ("graphs", "signatures")),
    (Graph, ("name", "inputs", "outputs", "ops", "tensors")),
    (Op, ("name", "inputs", "outputs", "attrs", "intermediates")),
    (Tensor, ("name", "dtype", "shape", "signature", "buffer", "quant", "producer", "users")),
    (Signature, ("key", "graph", "inputs", "outputs")),
]


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_malformed_objects_raise_only_model_errors(data: st.DataObject) -> None:
    model = legal()
    things = [model, *model.graphs, *model.main.ops, *model.main.tensors, *model.signatures]
    thing = data.draw(st.sampled_from(things))
    name = data.draw(st.sampled_from(next(f for kind, f in FIELDS if isinstance(thing, kind))))
    setattr(thing, name, data.draw(NONSENSE))
    try:
        verify(model)
    except ModelError as error:
        assert str(error)


class Looked(list[Op]):
    """Counts the ops that are looked at."""

    count = 0

    def __iter__(self) -> Any:
        self.count += len(self)
        return super().__iter__()

    def __contains__(self, key: object) -> bool:
        self.count += len(self)
        return super().__contains__(key)


def test_large_graphs_are_checked_in_linear_time() -> None:
    graph = Graph()
    value = graph.input("x", DType.FLOAT32, (1,))
    shared = graph.constant("c", np.ones(1, np.float32))
    for _ in range(2_000):
        value, last = graph.tensor("t", DType.FLOAT32, (1,)), value
        graph.append(Op("ADD", [last, shared], [value]))
    graph.outputs = [value]
    shared.users, graph.ops = Looked(shared.users), Looked(graph.ops)
    verify(Model([graph]))
    assert shared.users.count < 20 * len(graph.ops) > 0
    assert graph.ops.count < 50 * len(graph.ops)

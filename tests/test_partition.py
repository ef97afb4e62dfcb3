"""Sharing a graph out between delegates: what goes where, why, and that answers stay right."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sanderling
from sanderling import DelegateError, FallbackWarning, ModelError, dump, load
from sanderling.delegates.reference import ReferenceDelegate
from sanderling.ir import Array, DType, Graph, Model, Op, Tensor
from sanderling.runtime.partition import Limits, Partition, cluster, has_state, partition

from .conformance.cases_control import accumulator, assign, emit, graph, read
from .support.fake_delegates import Some

F = np.float32
X = F([1, -2, 3])
REFERENCE = ReferenceDelegate()


def chain(names: str) -> Model:
    """x -> op -> op ... : ABS and NEG in a row, by letter (a, n)."""

    def body(g: Graph, x: Tensor) -> list[Tensor]:
        for letter in names:
            x = emit(g, {"a": "ABS", "n": "NEG"}[letter], [x], (3,))
        return [x]

    return Model([graph("main", body, ("f32", (3,)))])


def expected(names: str, x: Array = X) -> Array:
    for letter in names:
        x = np.abs(x) if letter == "a" else -x
    return x


def shape_of(found: Partition) -> str:
    """s for an op on the test delegate, r for the reference; parts separated by blanks."""
    return " ".join(p.delegate.name[0] * len(p.ops) for p in found.parts)


def share(names: str, **limits: Any) -> Partition:
    return partition(chain(names).main, [Some(["ABS"]), REFERENCE], Limits(**limits))


# chain, limits -> parts
SHARED: list[tuple[str, dict[str, Any], str]] = [
    ("aaa", {}, "sss"),
    ("nnn", {}, "rrr"),
    ("aanna", {}, "ss rr s"),
    ("aanna", {"clustering": False}, "ss rr s"),
    ("aanna", {"single_ops": True}, "s s r r s"),
    ("anaanaaan", {}, "s r ss r sss r"),
    ("anaanaaan", {"max_delegated_partitions": 1}, "rrrrr sss r"),
    ("anaanaaan", {"max_delegated_partitions": 2}, "rr ss r sss r"),
    ("anaanaaan", {"max_delegated_partitions": 9}, "s r ss r sss r"),
    ("anaanaaan", {"min_nodes_per_partition": 2}, "rr ss r sss r"),
    ("anaanaaan", {"min_nodes_per_partition": 4}, "rrrrrrrrr"),
    ("anaanaaan", {"min_nodes_per_partition": 2, "max_delegated_partitions": 1}, "rrrrr sss r"),
    ("anaanaaan", {"max_delegated_partitions": -1, "min_nodes_per_partition": -1},
        "s r ss r sss r"),
    ("", {}, ""),
]  # fmt: skip


@pytest.mark.parametrize("names, limits, wanted", SHARED)
def test_parts(names: str, limits: dict[str, Any], wanted: str) -> None:
    assert shape_of(share(names, **limits)) == wanted


@pytest.mark.parametrize("names, limits", [row[:2] for row in SHARED if row[0]])
def test_answers_do_not_depend_on_parts(names: str, limits: dict[str, Any]) -> None:
    known = {"clustering": "delegate_clustering", "single_ops": "preserve_all_tensors"}
    options = {known.get(k, k): v for k, v in limits.items()}
    session = chain(names).compile([Some(["ABS"])], **options)
    for _ in range(2):
        np.testing.assert_array_equal(session(X), expected(names))


def diamond() -> Graph:
    """NEG a; ABS b (reads a); ABS c; ABS d (reads b); NEG e (reads c and d)."""

    def body(g: Graph, x: Tensor) -> list[Tensor]:
        a = emit(g, "NEG", [x], (3,))
        b = emit(g, "ABS", [a], (3,))
        c = emit(g, "ABS", [x], (3,))
        d = emit(g, "ABS", [b], (3,))
        return [emit(g, "ADD", [c, d], (3,)), b]

    return graph("main", body, ("f32", (3,)))


def test_borders() -> None:
    g = diamond()
    found = partition(g, [Some(["ABS"]), REFERENCE], Limits())
    a, b, c, d, e = (op.outputs[0] for op in g.ops)
    assert [(p.inputs, p.outputs) for p in found.parts] == [
        ([g.inputs[0]], [a]),
        ([a, g.inputs[0]], [b, c, d]),
        ([c, d], [e]),
    ]


def test_borders_show_everything_when_asked() -> None:
    """An output that nobody reads is a border too: someone wants to look at it."""

    def body(g: Graph, x: Tensor) -> list[Tensor]:
        emit(g, "NEG", [x], (3,))
        return [emit(g, "ABS", [x], (3,))]

    g = graph("main", body, ("f32", (3,)))
    for single, count in ((False, 1), (True, 2)):
        found = partition(g, [REFERENCE], Limits(single_ops=single))
        assert sum(len(p.outputs) for p in found.parts) == count


def test_clustering_may_skip_over_others_or_not() -> None:
    """Greedy: c joins a across n; in order: it does not."""

    def body(g: Graph, x: Tensor) -> list[Tensor]:
        return [emit(g, op, [x], (3,)) for op in ("ABS", "NEG", "ABS", "NEG")]

    g = graph("main", body, ("f32", (3,)))
    for clustering, wanted in ((True, "ss rr"), (False, "s r s r")):
        found = partition(g, [Some(["ABS"]), REFERENCE], Limits(clustering=clustering))
        assert shape_of(found) == wanted


def test_every_refusal_has_its_reason() -> None:
    model = chain("anaan")
    first, second = Some(["ABS"], "first"), Some([], "second")
    found = partition(model.main, [first, second, REFERENCE], Limits(min_nodes_per_partition=2))
    reasons = [
        [(r.delegate, r.reason) for r in found.refusals.get(op, ())] for op in model.main.ops
    ]
    small = "its part has 1 op, fewer than 2 (min_nodes_per_partition)"
    lists = ("second", "ABS is not on its list")
    assert reasons[0] == [("first", small), lists]
    assert [d for d, _ in reasons[1]] == ["first", "second"] and not reasons[2]
    table = found.table()
    assert "2 ops on first" in table and f"first refuses: {small}" in table
    only = share("anaan", max_delegated_partitions=1)
    assert "only the largest part is kept (max_delegated_partitions)" in only.table()


def test_a_limit_holds_whatever_later_delegates_take() -> None:
    """The ops between c1 and c2 go to two others; c1 and c2 stay one part all the same."""

    def body(g: Graph, x: Tensor) -> list[Tensor]:
        a = emit(g, "NEG", [x], (3,))
        emit(g, "ABS", [x], (3,))
        b = emit(g, "SQUARE", [x], (3,))
        return [emit(g, "ABS", [b], (3,)), a]

    g = graph("main", body, ("f32", (3,)))
    delegates = [Some(["ABS"], "first"), Some(["NEG"], "second"), REFERENCE]
    found = partition(g, delegates, Limits(max_delegated_partitions=1))
    assert [len(p.ops) for p in found.parts if p.delegate.name == "first"] == [2]


def test_explain_names_parts_and_reasons() -> None:
    text = chain("an").compile([Some(["ABS"]), "reference"]).explain()
    assert "part 0: 1 op on some" in text and "part 1: 1 op on reference" in text
    assert "some refuses: NEG is not on its list" in text


@pytest.mark.parametrize(
    "first, last, wanted",
    [
        (0, 8, "sssssssss"),
        (0, 3, "ssss ccccc"),
        (4, 6, "cccc sss cc"),
        (7, 99, "ccccccc ss"),
        (5, 4, "ccccccccc"),
    ],
)
def test_a_range_of_nodes_is_all_that_a_delegate_gets(first: int, last: int, wanted: str) -> None:
    """As TensorFlow Lite's debug builds have it, for bisecting; the cpu runs the rest."""
    limits = {"first_delegate_node_index": first, "last_delegate_node_index": last}
    session = chain("a" * 9).compile([Some(["ABS"])], **limits)
    plan = session.plan()
    assert shape_of(plan.partition) == wanted
    inside = [
        n for step in plan.steps if step.part.delegate.name == "some" for n in step.part.nodes
    ]
    assert inside == [n for n in range(9) if first <= n <= last]
    np.testing.assert_array_equal(session(X), np.abs(X))
    assert ("is not one of" in session.explain()) == ("c" in wanted)


def test_a_range_bisects_the_cpu_against_the_reference() -> None:
    session = chain("anaan").compile(["cpu"], first_delegate_node_index=1)
    assert shape_of(session.plan().partition) == "r cccc"
    told = session.explain()
    assert "cpu refuses: node 0 is not one of 1 to the last (first_delegate_node_index" in told


def test_the_nodes_are_those_of_the_file() -> None:
    """An op that is computed beforehand has a number all the same."""

    def body(g: Graph, x: Tensor) -> list[Tensor]:
        known = emit(g, "ABS", [g.constant("known", X)], (3,))
        one = emit(g, "ADD", [x, known], (3,), fused_activation_function="NONE")
        return [emit(g, "ABS", [one], (3,))]

    model = Model([graph("main", body, ("f32", (3,)))])
    session = model.compile([Some(["ABS", "ADD"])], first_delegate_node_index=2)
    assert [s.part.nodes for s in session.plan().steps] == [[1], [2]]
    assert shape_of(session.plan().partition) == "c s"


def test_limits_do_not_bind_the_cpu_behind_another() -> None:
    session = chain("anana").compile([Some(["ABS"])], max_delegated_partitions=1)
    assert shape_of(session.plan().partition) == "s cccc"


# -- full delegation and failure ----------------------------------------------------------------


def test_full_delegation() -> None:
    session = chain("aaa").compile([Some(["ABS"])], require_full_delegation=True)
    np.testing.assert_array_equal(session(X), np.abs(X))


@pytest.mark.parametrize(
    "names, words",
    [
        (
            "ana",
            "'some' does not run the whole graph|1 of 3 ops|3 parts|graph 'main'|"
            "NEG 'main_2': NEG is not on its list|require_full_delegation",
        ),
        ("n" * 7, "7 of 7|(and 2 more)"),
    ],
)
def test_full_delegation_refused(names: str, words: str) -> None:
    with pytest.raises(DelegateError) as caught:
        chain(names).compile([Some(["ABS"])], require_full_delegation=True)
    for word in words.split("|"):
        assert word in str(caught.value)


FAILURES = [DelegateError("out of luck", where="op 3"), RuntimeError("driver lost")]


@pytest.mark.parametrize("error", FAILURES, ids=["on purpose", "by accident"])
def test_a_delegate_that_fails_to_compile_is_left_out(error: Exception) -> None:
    failing, other = Some(["ABS"], "failing", fails="compile", error=error), Some(["ABS"], "other")
    with pytest.warns(FallbackWarning, match="'failing' could not compile 3 ops") as caught:
        session = chain("anaa").compile([failing, other])
    assert str(error.args[0]) in str(caught[0].message) and len(caught) == 1
    assert len(other.compiled) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once, for plans of other shapes and recordings too
        np.testing.assert_array_equal(session(X), expected("anaa"))
        session(np.concatenate([X, X]))
        with sanderling.trace.record():
            session(X)
    assert "failing refuses: it failed to compile them" in session.explain()


def test_what_compiled_is_not_compiled_again() -> None:
    """One part of a delegate fails: its other part is kept as it is."""

    class Picky(Some):
        def compile(self, part: Graph, options: Any) -> Any:
            if len(part.ops) == 1:
                raise DelegateError("too small for me")
            return super().compile(part, options)

    picky = Picky(["ABS"], "picky")
    with pytest.warns(FallbackWarning, match="1 op, which runs"):
        session = chain("aanna").compile([picky])
    np.testing.assert_array_equal(session(X), expected("aanna"))
    assert [len(p.ops) for p in picky.compiled] == [2]


def test_failing_is_an_error_where_full_delegation_is_required() -> None:
    failing = Some(["ABS"], fails="compile")
    with pytest.raises(DelegateError, match="out of luck"):
        chain("aa").compile([failing], require_full_delegation=True)


def test_open_shapes_are_planned_when_they_are_known() -> None:
    failing = Some(["ABS"], fails="compile")
    model = chain("aa")
    model.main.inputs[0].signature = (-1, *model.main.inputs[0].shape[1:])
    session = model.compile([failing], require_full_delegation=True)
    with pytest.raises(DelegateError, match="out of luck"):
        session(X)


@pytest.mark.parametrize(
    "error, words",
    [
        (DelegateError("out of memory", fix="close others"), "out of memory|close others"),
        (DelegateError("out of memory", where="kernel 7"), "kernel 7: out of memory"),
        (ValueError("bad handle"), "ValueError: bad handle"),
    ],
    ids=["without a place", "with a place", "by accident"],
)
def test_a_delegate_that_fails_in_a_run(error: Exception, words: str) -> None:
    session = chain("na").compile([Some(["ABS"], fails="run", error=error)])
    with pytest.raises(DelegateError) as caught:
        session(X)
    for word in words.split("|"):
        assert word in str(caught.value)
    if "kernel" not in words:
        assert caught.value.where == "part 1 (1 op from ABS 'main_2') on 'some'"


def test_an_unknown_operator_is_named() -> None:
    model = Model(
        [graph("main", lambda g, x: [emit(g, "custom.Mystery", [x], (3,))], ("f32", (3,)))]
    )
    with pytest.raises(Exception, match=r"custom.Mystery(.|\n)*register_custom\('Mystery'"):
        model.compile()(X)


def test_a_part_is_the_delegates_own_copy() -> None:
    model = chain("an")
    some = Some(["ABS"])
    model.compile([some])(X)
    assert some.compiled[0].ops[0] is not model.main.ops[0]
    some.compiled[0].ops[0].attrs["mine"] = 1
    assert "mine" not in model.main.ops[0].attrs


# -- side effects -------------------------------------------------------------------------------


def test_side_effects_keep_their_order() -> None:
    """v = x; y = v; v = 2x; z = v: with every second op on another delegate."""

    def body(g: Graph, x: Tensor) -> list[Tensor]:
        assign(g, "v", x)
        y = read(g, "v", (3,))
        assign(g, "v", emit(g, "ADD", [x, x], (3,)))
        return [emit(g, "NEG", [y], (3,)), read(g, "v", (3,))]

    model = Model([graph("main", body, ("f32", (3,)))])
    for takes in (["ASSIGN_VARIABLE"], ["READ_VARIABLE"], ["VAR_HANDLE", "NEG"], ["ADD", "NEG"]):
        session = model.compile([Some(takes)])
        for x in (X, X + 1):
            y, z = session(x)
            np.testing.assert_array_equal(y, -x)
            np.testing.assert_array_equal(z, 2 * x)


def test_a_variable_tensor_crosses_borders_in_place() -> None:
    model = Model(accumulator("f32", (3,), ("a", "b")))
    session = model.compile([Some(["ADD"])])
    for step in (1, 2, 3):
        a, b = session(X)
        np.testing.assert_array_equal(a, step * X)
        np.testing.assert_array_equal(b, step * X + 1)


# -- properties ---------------------------------------------------------------------------------

UNARY, BINARY, STATEFUL = ["ABS", "NEG", "SQUARE"], ["ADD", "MUL", "MAXIMUM"], "READ_VARIABLE"


@st.composite
def dags(draw: st.DrawFn) -> Model:
    """Random ops on any earlier values; now and then a variable is read or written."""
    g = Graph()
    values = [g.input(f"x{i}", DType.FLOAT32, (3,)) for i in range(draw(st.integers(1, 2)))]
    assign(g, "v", values[0])
    for _ in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(["one", "two", "two", "read", "write"]))
        pick = [draw(st.sampled_from(values)) for _ in range(2)]
        if kind == "write":
            assign(g, "v", pick[0])
        elif kind == "read":
            values.append(read(g, "v", (3,)))
        else:
            names, count = (UNARY, 1) if kind == "one" else (BINARY, 2)
            values.append(emit(g, draw(st.sampled_from(names)), pick[:count], (3,)))
    g.outputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=4))
    return Model([g])


def choices(model: Model, data: st.DataObject, count: int) -> list[set[Op]]:
    ops = model.main.ops
    flags = st.lists(st.booleans(), min_size=len(ops), max_size=len(ops))
    return [
        {op for op, flag in zip(ops, data.draw(flags), strict=True) if flag} for _ in range(count)
    ]


class Chosen(Some):
    """Takes exactly these ops, by place (a session works on copies)."""

    def __init__(self, model: Model, ops: set[Op], name: str) -> None:
        super().__init__([], name)
        self.places = {i for i, op in enumerate(model.main.ops) if op in ops}
        self.keys = {repr(op) for i, op in enumerate(model.main.ops) if i in self.places}

    def refuses(self, op: Op) -> str | None:
        return None if repr(op) in self.keys else "not chosen"


limits = st.builds(Limits, st.integers(0, 3), st.integers(0, 3), st.booleans(), st.booleans())


@settings(max_examples=120, deadline=None)
@given(dags(), st.data(), limits)
def test_any_sharing_is_legal_and_gives_the_same_answers(
    model: Model, data: st.DataObject, within: Limits
) -> None:
    delegates = [Chosen(model, ops, f"d{i}") for i, ops in enumerate(choices(model, data, 2))]
    found = partition(model.main, [*delegates, REFERENCE], within)
    placed = [op for part in found.parts for op in part.ops]
    assert len(placed) == len(set(placed)) and set(placed) == set(model.main.ops)
    known: set[Tensor] = set(model.main.inputs)
    for part in found.parts:
        assert set(part.inputs) <= known
        known.update(part.outputs)
    effects = [op for op in placed if has_state(op)]
    assert effects == [op for op in model.main.ops if has_state(op)]
    for delegate in delegates:
        mine = [p for p in found.parts if p.delegate is delegate]
        assert not within.max_delegated_partitions or len(mine) <= within.max_delegated_partitions
        assert all(len(p.ops) >= within.min_nodes_per_partition for p in mine)
    refused = {
        op
        for op in placed
        if not any(op in p.ops for p in found.parts if p.delegate is delegates[0])
    }
    assert all(
        found.refusals[op][0].delegate == "d0" and found.refusals[op][0].reason for op in refused
    )
    assert_same_answers(model, delegates, within)


def assert_same_answers(model: Model, delegates: list[Chosen], within: Limits) -> None:
    feeds = {t.name: X + i for i, t in enumerate(model.main.inputs)}
    session = model.compile(
        [*delegates, "reference"],
        max_delegated_partitions=within.max_delegated_partitions,
        min_nodes_per_partition=within.min_nodes_per_partition,
        delegate_clustering=within.clustering,
        preserve_all_tensors=within.single_ops,
    )
    alone = load(dump(model)).compile(["reference"])
    for _ in range(2):
        wanted = alone.run(feeds).values()
        for ours, theirs in zip(session.run(feeds).values(), wanted, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def tflite_subsets(g: Graph, taken: set[Op], greedy: bool) -> list[tuple[bool, list[Op]]]:
    """graph_info.cc in its own words: sweeps over all nodes until an epoch adds nothing."""
    effects = [op for op in g.ops if has_state(op)] if greedy else []
    control = dict(zip(effects[1:], effects, strict=False))
    epochs: dict[Op, int] = {}
    subsets: list[tuple[bool, list[Op]]] = []
    while True:
        kind: bool | None = None
        members: list[Op] = []
        closed, added = False, True
        while added and not closed:
            added = False
            for op in g.ops:
                if op in epochs:
                    continue
                ready = all(
                    t is None or t.producer is None or t.producer in epochs for t in op.inputs
                )
                ready = ready and (op not in control or control[op] in epochs)
                if ready and kind in (None, op in taken):
                    kind, added = op in taken, True
                    epochs[op] = len(subsets)
                    members.append(op)
                elif not greedy and members:
                    closed = True
                    break
        if not members:
            assert len(epochs) == len(g.ops), "a cycle"
            return subsets
        subsets.append((bool(kind), members))


@settings(max_examples=150, deadline=None)
@given(dags(), st.data(), st.booleans())
def test_clusters_are_tflites(model: Model, data: st.DataObject, greedy: bool) -> None:
    (taken,) = choices(model, data, 1)
    found = cluster([[op] for op in model.main.ops], taken, Limits(clustering=greedy))
    assert [(c.mine, c.ops) for c in found] == tflite_subsets(model.main, taken, greedy)


def test_a_graph_out_of_order_is_refused() -> None:
    model = chain("an")
    model.main.ops.reverse()
    with pytest.raises(ModelError, match="before"):
        model.compile()

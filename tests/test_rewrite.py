"""The rewrite engine: what patterns match, and that graphs stay true while they change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sanderling.errors import SanderlingError
from sanderling.ir import DType, Graph, Model, Op, Tensor
from sanderling.ir.rewrite import ANY, CONST, Match, P, Rule, Var, matches, rewrite
from sanderling.ir.text import from_text, to_text
from sanderling.ir.verify import problems

HEAD = """
  %x: f32[4]
  %c: f32[4] = [1.0, 1.0, 1.0, 1.0]
  %a: f32[4]
  %b: f32[4]
  %y: f32[4]
"""


def build(ops: str, outputs: str = "%y") -> Graph:
    return from_text(f"graph @main(%x) -> ({outputs}) {{{HEAD}{ops}}}").main


def ops_of(graph: Graph) -> list[str]:
    """The op lines of a graph that is legal."""
    assert problems(graph) == []
    return [line.strip() for line in to_text(graph).splitlines() if "(" in line][1:]


def matched(graph: Graph, pattern: P) -> list[Match]:
    return list(matches(graph, pattern, graph.ops[-1]))


def fresh(graph: Graph, name: str = "new") -> Tensor:
    return graph.tensor(name, DType.FLOAT32, (4,))


def to_op(name: str, *operands: str) -> Callable[[Graph, Match], Op]:
    return lambda graph, match: Op(name, [match[o] for o in operands], [fresh(graph)])


# -- patterns --------------------------------------------------------------------------------

CHAIN = "%a = EXP(%x)\n %b = NEG(%a) {k: 1, axes: [1, 2]}\n %y = ADD(%b, %c)\n"
PATTERNS = [
    (P("ADD"), True),
    (P(("SUB", "ADD")), True),
    (P(None), True),
    (P("SUB"), False),
    (P("ADD", ANY, CONST), True),
    (P("ADD", CONST, ANY), False),
    (P("ADD", CONST, ANY, commutes=True), True),
    (P("ADD", P("NEG", P("EXP")), CONST), True),
    (P("ADD", CONST, P("NEG", P("EXP", Var("v"))), commutes=True), True),
    (P("ADD", P("EXP")), False),
    (P("ADD", P("NEG", once=True)), True),
    (P("ADD", P("NEG", attrs={"k": 1, "axes": np.array([1, 2])})), True),
    (P("ADD", P("NEG", attrs={"k": 2})), False),
    (P("ADD", P("NEG", attrs={"other": 1})), False),
    (P("ADD", P("NEG", attrs=lambda attrs: attrs["k"] > 0)), True),
    (P("ADD", where=lambda op: len(op.inputs) == 3), False),
    (P("ADD", ANY, ANY, ANY), True),
    (P("ADD", ANY, ANY, Var("bias")), False),
    (P("ADD", ANY, ANY, Var("bias", ANY)), True),
    (P("ADD", Var("v"), Var("v")), False),
    (P("ADD", Var("v", P("NEG")), Var("w", CONST)), True),
]


@pytest.mark.parametrize(("pattern", "expected"), PATTERNS)
def test_patterns(pattern: P, expected: bool) -> None:
    assert bool(matched(build(CHAIN), pattern)) is expected


def test_captures() -> None:
    graph = build(CHAIN)
    [match] = matched(graph, P("ADD", Var("in", P("NEG", bind="neg")), Var("absent_ok", ANY)))
    assert match["in"].name == "b" and match.ops["neg"] is graph.ops[1]
    [match] = matched(graph, P("ADD", ANY, ANY, Var("bias", ANY)))
    assert match.tensors["bias"] is None
    with pytest.raises(KeyError, match="absent"):
        match["bias"]


def test_the_same_name_is_the_same_tensor() -> None:
    graph = build("%a = EXP(%x)\n %b = NEG(%x)\n %y = ADD(%a, %b)\n")
    assert matched(graph, P("ADD", P("EXP", Var("v")), P("NEG", Var("v"))))


@pytest.mark.parametrize(
    "ops, outputs",
    [
        ("%a = EXP(%x)\n %b = NEG(%a)\n %y = ADD(%a, %c)\n", "%y, %b"),
        ("%a = EXP(%x)\n %y = ADD(%a, %a)\n", "%y"),
        ("%a = EXP(%x)\n %y = ADD(%a, %c)\n", "%y, %a"),
        ("%a, %b = EXP(%x)\n %y = ADD(%a, %c)\n", "%y, %b"),
    ],
)
def test_once_refuses_results_that_others_need(ops: str, outputs: str) -> None:
    graph = build(ops, outputs)
    assert not matched(graph, P("ADD", P("EXP", once=True)))
    assert matched(graph, P("ADD", P("EXP")))


def test_commuting_inside_commuting_backtracks() -> None:
    graph = build("%a = MUL(%c, %x)\n %y = ADD(%c, %a)\n")
    inner = P("MUL", Var("x"), Var("c", CONST), commutes=True)
    [match] = matched(graph, P("ADD", inner, Var("c", CONST), commutes=True))
    assert match["x"].name == "x"


def test_a_commuting_pattern_has_two_operands() -> None:
    with pytest.raises(ValueError, match="two operands"):
        P("ADD", ANY, commutes=True)


# -- replacing -------------------------------------------------------------------------------


def test_an_op_takes_over_and_the_dead_are_removed() -> None:
    graph = build(CHAIN)
    rule = Rule("fuse", P("ADD", P("NEG", P("EXP", Var("v")))), to_op("FUSED", "v"))
    assert rewrite(graph, [rule]) == {"fuse": 1}
    assert ops_of(graph) == ["%y = FUSED(%x)"]


def test_shared_ops_are_not_removed() -> None:
    graph = build(CHAIN, "%y, %a")
    rewrite(graph, [Rule("fuse", P("ADD", P("NEG", P("EXP", Var("v")))), to_op("FUSED", "v"))])
    assert ops_of(graph) == ["%a = EXP(%x)", "%y = FUSED(%x)"]


def test_a_rule_may_hand_on_the_outputs() -> None:
    graph = build(CHAIN)
    swap = Rule("swap", P("NEG", Var("v")), lambda g, m: Op("ABS", [m["v"]], m.root.outputs))
    assert rewrite(graph, [swap]) == {"swap": 1}
    assert ops_of(graph)[1] == "%b = ABS(%a)"


def test_a_rule_may_insert_helpers_which_are_rewritten_too() -> None:
    graph = build("%y = NEG(%x)\n")

    def split(graph: Graph, match: Match) -> Op:
        helper = graph.insert(Op("HELP", [match["v"]], [fresh(graph, "h")]), before=match.root)
        return Op("OUTER", helper.outputs, [fresh(graph)])

    rules = [
        Rule("split", P("NEG", Var("v")), split),
        Rule("help", P("HELP", Var("v")), to_op("DONE", "v")),
    ]
    assert rewrite(graph, rules) == {"split": 1, "help": 1}
    assert ops_of(graph) == ["%new~2 = DONE(%x)", "%y = OUTER(%new~2)"]


NOOP = Rule("drop", P("NOOP", Var("v")), lambda graph, match: match["v"])


def test_a_tensor_takes_over() -> None:
    graph = build("%a = NOOP(%x)\n %y = ADD(%a, %a)\n")
    rewrite(graph, [NOOP])
    assert ops_of(graph) == ["%y = ADD(%x, %x)"]


def test_a_graph_output_keeps_its_tensor() -> None:
    graph = build("%a = EXP(%x)\n %b = NEG(%a)\n %y = NOOP(%a)\n", "%y, %b")
    outputs = list(graph.outputs)
    rewrite(graph, [NOOP])
    assert graph.outputs == outputs
    assert ops_of(graph) == ["%y = EXP(%x)", "%b = NEG(%y)"]


@pytest.mark.parametrize(
    "ops, outputs",
    [
        ("%y = NOOP(%x)\n", "%y"),
        ("%a = EXP(%x)\n %y = NOOP(%a)\n", "%y, %a"),
    ],
)
def test_an_output_that_would_lose_its_name_stays(ops: str, outputs: str) -> None:
    graph = build(ops, outputs)
    assert rewrite(graph, [NOOP]) == {}
    assert ops_of(graph)[-1].startswith("%y = NOOP")


@pytest.mark.parametrize("outputs", ["%y", "%y, %a"])
def test_folding_to_a_constant(outputs: str) -> None:
    graph = build("%a = NEG(%c)\n %y = ADD(%x, %a)\n", outputs)
    fold = Rule(
        "fold",
        P("NEG", Var("c", CONST)),
        lambda g, m: Tensor("folded", DType.FLOAT32, data=-m["c"].data),
    )
    assert rewrite(graph, [fold]) == {"fold": 1}
    assert problems(graph) == []
    folded = graph.ops[0].inputs[1]
    np.testing.assert_array_equal(folded.data, -np.ones(4))


def test_the_first_rule_that_applies_wins_and_none_declines() -> None:
    graph = build(CHAIN)
    rules = [
        Rule("declines", P("NEG"), lambda g, m: None),
        Rule("first", P("NEG", Var("v")), to_op("ONE", "v")),
        Rule("second", P(("NEG", "ONE"), Var("v")), to_op("TWO", "v")),
    ]
    assert rewrite(graph, rules) == {"first": 1, "second": 1}


def test_once_is_tried_again_when_the_other_user_goes() -> None:
    graph = build(
        "%a = EXP(%x)\n %b = NOOP(%a)\n %y = NEG(%a)\n %z: f32[4]\n %z = ADD(%y, %b)\n", "%z"
    )
    rules = [
        Rule("fuse", P("NEG", P("EXP", Var("v"), once=True)), to_op("FUSED", "v")),
        Rule("zero", P("NOOP"), lambda g, m: g.find("c")),
    ]
    assert rewrite(graph, rules) == {"fuse": 1, "zero": 1}


def test_a_predicate_that_looks_far_is_tried_again() -> None:
    graph = build("%a = EXP(%x)\n %y = NOOP(%x)\n %b = ADD(%y, %y)\n", "%b, %a")
    lonely = Rule(
        "lonely", P("EXP", Var("v"), where=lambda op: len(graph.ops) == 2), to_op("LONELY", "v")
    )
    assert rewrite(graph, [lonely, NOOP]) == {"lonely": 1, "drop": 1}


EFFECTS = [
    ("%a = WHILE(%x)\n %b = NOOP(%a)\n %y = ADD(%x, %b)\n", {}, 2),
    ("%a = EXP(%x)\n %b = NOOP(%a)\n %y = ADD(%x, %b)\n", {}, 1),
    ("%v: f32[4] variable=true\n %a = SVDF(%v)\n %b = NOOP(%a)\n %y = ADD(%x, %b)\n", {}, 2),
    (
        "%a = EXP(%x)\n %b = NOOP(%a)\n %y = ADD(%x, %b)\n",
        {"has_side_effects": lambda op: op.name == "EXP"},
        2,
    ),
]


@pytest.mark.parametrize(("ops", "options", "left"), EFFECTS)
def test_ops_with_side_effects_stay(ops: str, options: dict, left: int) -> None:  # type: ignore[type-arg]
    graph = build(ops)
    rewrite(graph, [Rule("zero", P("NOOP"), lambda g, m: g.find("c"))], **options)
    assert len(ops_of(graph)) == left


def test_assignments_are_never_dead() -> None:
    graph = build("%a = NOOP(%x)\n ASSIGN_VARIABLE(%c, %a)\n %y = NEG(%x)\n")
    rewrite(graph, [NOOP])
    assert ops_of(graph) == ["ASSIGN_VARIABLE(%c, %x)", "%y = NEG(%x)"]


# -- mistakes of rules -----------------------------------------------------------------------


def test_rules_that_do_not_end_are_named() -> None:
    rules = [
        Rule("there", P("NEG", Var("v")), to_op("ABS", "v")),
        Rule("back", P("ABS", Var("v")), to_op("NEG", "v")),
    ]
    with pytest.raises(SanderlingError, match=r"'there' \(\d+ times\), 'back'"):
        rewrite(build(CHAIN), rules)
    with pytest.raises(SanderlingError, match=r"'there' \(1 times\)"):
        rewrite(build(CHAIN), rules, limit=0)


MISTAKES: list[tuple[str, Callable[[Graph, Match], Op | Tensor]]] = [
    ("not a new one", lambda g, m: m.root),
    ("as many outputs", lambda g, m: Op("ABS", [], [])),
    ("one output of another", lambda g, m: m.root.outputs[0]),
    ("element type", lambda g, m: Op("ABS", [], [Tensor("i", DType.INT8, (4,))])),
]


@pytest.mark.parametrize(("message", "apply"), MISTAKES)
def test_mistakes_name_the_rule(message: str, apply: Callable[[Graph, Match], Op | Tensor]) -> None:
    with pytest.raises(SanderlingError, match=f"rule 'bad'.*{message}"):
        rewrite(build(CHAIN), [Rule("bad", P("NEG"), apply)])


# -- at large --------------------------------------------------------------------------------


def random_graph(picks: list[tuple[str, int, int]], outputs: int) -> Graph:
    graph = Graph()
    values = [graph.input("x", DType.FLOAT32, (4,)), graph.constant("c", np.ones(4, np.float32))]
    for name, a, b in picks:
        inputs = [values[a % len(values)], values[b % len(values)]]
        values.append(
            graph.add(name, inputs[: 2 if name == "ADD" else 1], [fresh(graph)]).outputs[0]
        )
    graph.outputs = list(dict.fromkeys(values[2:][-outputs:]))
    return graph


RANDOM_RULES = [
    NOOP,
    Rule("neg neg", P("NEG", P("NEG", Var("v"))), lambda g, m: m["v"]),
    Rule("fold", P("EXP", CONST), lambda g, m: Tensor("k", DType.FLOAT32, data=np.ones(4))),
    Rule(
        "fuse",
        P("ADD", P("EXP", Var("v"), once=True), Var("w"), commutes=True),
        to_op("FUSED", "v", "w"),
    ),
]
PICKS = st.tuples(st.sampled_from(["NOOP", "NEG", "EXP", "ADD"]), *[st.integers(0, 50)] * 2)


@given(st.lists(PICKS, max_size=25), st.integers(1, 3))
@settings(max_examples=200, deadline=None)
def test_random_graphs_stay_legal_and_reach_a_fixed_point(
    picks: list[tuple[str, int, int]], outputs: int
) -> None:
    graph = random_graph(picks, outputs)
    names = [t.name for t in graph.outputs]
    rewrite(graph, RANDOM_RULES)
    assert problems(Model([graph])) == []
    assert [t.name for t in graph.outputs] == names
    assert rewrite(graph, RANDOM_RULES) == {}


def test_thousands_of_ops_are_each_asked_a_few_times() -> None:
    asked: Counter[str] = Counter()

    def ask(graph: Graph, match: Match) -> None:
        asked["EXP"] += 1

    graph = Graph()
    value = graph.input("x", DType.FLOAT32, (4,))
    for _ in range(1500):
        for name in ("NEG", "NEG", "EXP"):
            value = graph.add(name, [value], [fresh(graph)]).outputs[0]
    graph.outputs = [value]
    counting = Rule("never", P("EXP", Var("x")), ask)
    assert rewrite(graph, [counting, *RANDOM_RULES]) == {"neg neg": 1500}
    assert 1500 <= asked["EXP"] <= 5 * 1500

"""Legality: the rules of the operator table, and that nothing illegal reaches a delegate."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sanderling import ModelError, SanderlingError, UnsupportedError, load, quantize
from sanderling.format import dump
from sanderling.ir import Array, DType, Graph, Model, Op, Quant, SparseDim, Sparsity, Tensor
from sanderling.ops import OPS, cost
from sanderling.ops.base import ANYTHING, OpDef
from sanderling.ops.legal import ANY, MANY, parse
from sanderling.runtime.binding import bind_outputs
from sanderling.runtime.specialise import specialise

from .conformance.cases import CASES
from .conformance.harness import Case, difference
from .support.shared_models import NEEDS
from .support.shared_models import model as shared_model

ALL = bool(os.environ.get("SANDERLING_TEST_ALL"))
DELEGATES = (["reference"], ["cpu", "reference"])
F32, I32, I8 = DType.FLOAT32, DType.INT32, DType.INT8

# -- the rules' own text ------------------------------------------------------------------------


def test_a_rule_is_read_as_its_text_says() -> None:
    rule = parse("indices[1-]: i32 i64, x[2]: f32 i8q, 2 w?[1-2]: x, more*: any -> x, y?: bool")
    (form,) = rule.forms
    indices, x, w, _, more = form.operands.each
    assert (rule.main, rule.counts, rule.types) == (1, (2, MANY), ("f32", "i8"))
    assert (indices.types, indices.ranks) == ((DType.INT32, DType.INT64), (1, MANY))
    assert (x.one_scale, x.ranks) == ((DType.INT8,), (2, 2))
    assert (w.like, w.types, w.optional, w.one_scale, w.ranks) == (1, x.types, True, (I8,), (1, 2))
    assert more.repeats and more.types == ANY
    assert [(p.like, p.types, p.optional) for p in form.results.each] == [
        (1, x.types, False),
        (None, (DType.BOOL,), True),
    ]


# Operators on which the table puts no types, and what else decides about them.
BY_SIGNATURE = {"WHILE", "STABLEHLO_COMPOSITE"}  # the graphs that they call
ANY_VALUE = {"SHAPE", "RANK", "RESHAPE", "READ_VARIABLE", "ASSIGN_VARIABLE", "IF",
             "STABLEHLO_CASE"}  # fmt: skip


@pytest.mark.parametrize("row", [r for r in OPS.values() if not r.registered], ids=lambda r: r.name)
def test_every_row_states_its_rule(row: OpDef) -> None:
    assert (row.takes == ANYTHING) == (row.name in BY_SIGNATURE)
    places = [p for f in row.rule.forms for p in (*f.operands.each, *f.results.each)]
    assert row.name in BY_SIGNATURE | ANY_VALUE or not any(p.types == ANY for p in places)


# -- what is refused, and how it is said ----------------------------------------------------------


def one_op(name: str, inputs: list[Tensor | None], outputs: list[Tensor], **attrs: Any) -> Model:
    graph = Graph("main")
    graph.insert(Op(name, inputs, outputs, attrs))
    graph.inputs = [t for t in inputs if t is not None and not (t.is_constant or t.is_variable)]
    graph.outputs = outputs
    return Model([graph, *graph.ops[0].subgraphs])


def t(name: str, dtype: str, *shape: int, **more: Any) -> Tensor:
    return Tensor(name, DType.parse(dtype), shape, **more)


def c(name: str, data: Any, dtype: str = "i32") -> Tensor:
    kind = DType.parse(dtype)
    return Tensor(name, kind, np.shape(data), data=np.asarray(data, kind.numpy))


def q(name: str, dtype: str, *shape: int, scales: int = 1) -> Tensor:
    """One scale, or one for each index of the last axis."""
    return t(name, dtype, *shape, quant=Quant.of(np.full(scales, 0.5), 0, len(shape) - 1))


def state(*shape: int) -> Tensor:
    return t("state", "f32", *shape, is_variable=True)


REFUSED: dict[str, tuple[Callable[[], Model], str]] = {
    "view": (lambda: one_op("SQUEEZE", [t("a", "f64", 1, 3)], [t("b", "bool", 3)]),
             r"SQUEEZE 'b': output 0 \(result\), tensor 'b', is bool\n  it gives f64, as 'a' is"),
    "main type": (lambda: one_op("CUMSUM", [t("a", "bool", 3), c("at", 0)], [t("b", "bool", 3)]),
                  r"CUMSUM 'b': input 0 \(x\), tensor 'a', is bool\n  it takes f32, i32, i64"),
    "other operand": (lambda: one_op("ADD", [t("a", "f32", 3), t("b", "i32", 3)],
                                     [t("y", "f32", 3)]),
                      r"ADD 'y': input 1 \(y\), tensor 'b', is i32\n  it takes f32, as 'a' is"),
    "index type": (lambda: one_op("GATHER", [t("a", "f32", 3), t("at", "f32", 2)],
                                  [t("y", "f32", 2)]),
                   r"GATHER 'y': input 1 \(indices\), tensor 'at', is f32\n  it takes i16, i32"),
    "absent": (lambda: one_op("ADD", [t("a", "f32", 3), None], [t("y", "f32", 3)]),
               r"ADD 'y': input 1 \(y\) is absent\n  it takes f32, f16, i8"),
    "count": (lambda: one_op("ADD", [t("a", "f32", 3)], [t("y", "f32", 3)]),
              r"ADD 'y': 1 inputs\n  it takes 2"),
    "results": (lambda: one_op("RELU", [t("a", "f32", 3)], [t("y", "f32", 3), t("z", "f32", 3)]),
                r"RELU 'y': 2 outputs\n  it gives 1"),
    "rank": (lambda: one_op("L2_POOL_2D", [t("a", "f32", 3, 3)], [t("y", "f32", 3, 3)]),
             r"L2_POOL_2D 'y': input 0 \(x\), tensor 'a', has shape \[3, 3\]\n  it takes rank 4"),
    "scale": (lambda: one_op("RELU", [t("a", "i8", 3)], [q("y", "i8", 3)]),
              r"RELU 'y': input 0 \(x\), tensor 'a', is i8 with no quantisation parameters"),
    "scales": (lambda: one_op("RELU", [q("a", "i8", 3)], [q("y", "i8", 3, scales=3)]),
               r"RELU 'y': output 0 \(result\), tensor 'y', is i8 with 3 scales\n.*one scale"),
    "hybrid": (lambda: one_op("FULLY_CONNECTED", [q("a", "i8", 1, 3), t("w", "f32", 2, 3)],
                              [q("y", "i8", 1, 2)]),
               r"FULLY_CONNECTED 'y': input 1 \(w\), tensor 'w', is f32\n  it takes i8, i4, i2"),
    "channels": (lambda: one_op("CONV_2D", [q("a", "i8", 1, 4, 4, 3),
                                            q("w", "i8", 2, 1, 1, 3, scales=3), None],
                                [q("y", "i8", 1, 4, 4, 2)], stride_h=1, stride_w=1),
                 r"CONV_2D 'y': 'w' has 3 scales for 2 channels"),
    "variable": (lambda: one_op("RNN", [t("x", "f32", 1, 2), t("w", "f32", 3, 2),
                                        t("r", "f32", 3, 3), t("b", "f32", 3), t("s", "f32", 1, 3)],
                                [t("y", "f32", 1, 3)]),
                 r"RNN 'y': input 4 \(state\), tensor 's', is not a variable"),
    "state": (lambda: one_op("RNN", [t("x", "f32", 1, 2), t("w", "f32", 3, 2),
                                     t("r", "f32", 3, 3), t("b", "f32", 3), state(1, 2)],
                             [t("y", "f32", 1, 3)]),
              r"RNN 'y': state \(1, 2\) should be \(1, 3\)"),
    "boxes": (lambda: one_op("NON_MAX_SUPPRESSION_V4",
                             [t("boxes", "f32", 5, 4), t("scores", "f32", 4), c("most", 3),
                              c("iou", 0.5, "f32"), c("least", 0.1, "f32")],
                             [t("i", "i32", 3), t("n", "i32")]),
              r"boxes \(5, 4\) and scores \(4,\) do not fit together"),
    "paddings": (lambda: one_op("PAD", [t("a", "f32", 2, 3), c("p", [0, 1, 1, 0])],
                                [t("y", "f32", 3, 4)]),
                 r"PAD 'y': paddings of shape \(4,\)\n  they are \(2, 2\)"),
    "lengths": (lambda: one_op("REVERSE_SEQUENCE", [t("a", "f32", 2, 3), t("n", "i32", 5)],
                               [t("y", "f32", 2, 3)], seq_dim=1, batch_dim=0),
                r"REVERSE_SEQUENCE 'y': 5 lengths do not fit the shape"),
    "size": (lambda: one_op("EMBEDDING_LOOKUP_SPARSE",
                            [t("ids", "i32", 4), t("at", "i32", 4, 3), c("shape", [2, -5, 2]),
                             t("by", "f32", 4), t("x", "f32", 4, 2)], [t("y", "f32", 2, 5, 2)]),
             r"EMBEDDING_LOOKUP_SPARSE 'y': shape \(2, -5, 2\) has a negative size"),
    "attribute": (lambda: one_op("SQUARED_DIFFERENCE", [t("a", "f32", 3), t("b", "f32", 3)],
                                 [t("y", "f32", 3)], fused_activation_function="RELU6"),
                  r"SQUARED_DIFFERENCE 'y': no attribute fused_activation_function\n.*has: none"),
    "one value": (lambda: one_op("PADV2", [t("a", "f32", 2), c("p", [[1, 1]]), t("v", "f32", 0)],
                                 [t("y", "f32", 4)]),
                  r"PADV2 'y': the value to pad with has shape \[0\], one value is needed"),
}  # fmt: skip


@pytest.mark.parametrize("delegates", DELEGATES, ids="+".join)
@pytest.mark.parametrize("case", REFUSED)
def test_what_is_illegal_is_refused_by_name(case: str, delegates: list[str]) -> None:
    build, message = REFUSED[case]
    kind = UnsupportedError if case == "main type" else ModelError
    with pytest.raises(kind, match=message):
        build().compile(delegates).plan()


def lstm_operands(**changed: Tensor) -> list[Tensor | None]:
    weights = [t(f"w{i}", "f32", 4, 3) for i in range(4)] + [
        t(f"r{i}", "f32", 4, 4) for i in range(4)
    ]
    biases = [t(f"b{i}", "f32", 4) for i in range(4)]
    states = [t(n, "f32", 1, 4, is_variable=True) for n in ("hidden", "cell")]
    every = [t("x", "f32", 1, 3), *weights, None, None, None, *biases, None, None, *states]
    return [changed.get(v.name, v) if v is not None else None for v in every]


@pytest.mark.parametrize(("changed", "message"), [
    ({"w2": t("w2", "f64", 4, 3)}, r"input 3 \(w\), tensor 'w2', is f64"),
    ({"w0": t("w0", "i8", 4, 3)}, r"input 1 \(admit\), tensor 'w0', is i8\n  it takes f32, as"),
    ({"r1": t("r1", "f32", 4, 5)}, r"input 6 is \(4, 5\), not \(4, 4\)"),
    ({"b3": t("b3", "f32", 3)}, r"input 15 is \(3,\), not \(4,\)"),
    ({"cell": t("cell", "f32", 1, 3, is_variable=True)}, r"state \(1, 3\) should be \(1, 4\)"),
    ({"hidden": t("hidden", "f32", 1, 4)}, r"tensor 'hidden', is not a variable"),
])  # fmt: skip
def test_operands_of_a_cell_fit_together(changed: dict[str, Tensor], message: str) -> None:
    made = one_op("LSTM", lstm_operands(**changed), [t("y", "f32", 1, 4)])
    with pytest.raises(ModelError, match=message):
        made.compile().plan()


# -- graphs that operators call -------------------------------------------------------------------


def body(name: str, takes: list[Tensor], gives: list[Tensor], *ops: Op) -> Graph:
    graph = Graph(name)
    graph.inputs = takes
    for op in ops:
        graph.insert(op)
    graph.outputs = gives
    for tensor in (*takes, *gives):
        if tensor not in graph.tensors:
            graph.tensors.append(tensor)
    return graph


def same(name: str, dtype: str) -> Graph:
    x, y = t(f"{name}_in", dtype, 2), t(f"{name}_out", dtype, 2)
    return body(name, [x], [y], Op("RESHAPE", [x], [y], {"new_shape": [2]}))


def holds(dtype: str, gives: str = "bool") -> Graph:
    x, y = t("value", dtype, 2), t("goes_on", gives)
    return body("condition", [x], [y], Op("REDUCE_ANY", [x, c("axes", [0])], [y]))


def test_a_graph_takes_and_gives_what_its_caller_says() -> None:

    def choose(then: Graph) -> Model:
        values = [t("go", "bool"), t("x", "f32", 2)]
        return one_op(
            "IF",
            values,
            [t("y", "f32", 2)],
            then_subgraph_index=then,
            else_subgraph_index=same("other", "f32"),
        )

    for delegates in DELEGATES:
        choose(same("then", "f32")).compile(delegates).plan()
        with pytest.raises(ModelError, match="'then_in', an input of graph 'then', is f64, outs"):
            choose(same("then", "f64")).compile(delegates).plan()
        a, b = t("a", "f32", 2), t("b", "i8", 2)
        narrow = body("then", [a], [b], Op("CAST", [a], [b]))
        with pytest.raises(ModelError, match="'b', an output of graph 'then', is i8, outside it"):
            choose(narrow).compile(delegates).plan()


@pytest.mark.parametrize(
    ("condition", "loop", "message"),
    [
        (holds("bool"), same("loop", "f32"), "'value', an input of graph 'condition', is bool"),
        (holds("f32", "f32"), same("loop", "f32"), "the condition gives f32\n  it gives one bool"),
        (holds("f32"), same("loop", "f64"), "'loop_in', an input of graph 'loop', is f64, outside"),
        (holds("f32"), body("loop", [t("a", "f32", 2)], []), "gives 0 values for 1 outputs"),
    ],
)
def test_a_loop_is_typed(condition: Graph, loop: Graph, message: str) -> None:
    made = one_op(
        "WHILE",
        [t("x", "f32", 2)],
        [t("y", "f32", 2)],
        cond_subgraph_index=condition,
        body_subgraph_index=loop,
    )
    with pytest.raises(ModelError, match=message):
        made.compile().plan()


def test_a_composite_is_typed() -> None:
    made = one_op(
        "STABLEHLO_COMPOSITE",
        [t("x", "f32", 2)],
        [t("y", "f32", 2)],
        decomposition_subgraph_index=same("inside", "i32"),
    )
    for delegates in DELEGATES:
        with pytest.raises(ModelError, match="'inside_in', an input of graph 'inside', is i32"):
            made.compile(delegates).plan()


def test_a_variable_tensor_is_read_and_assigned_as_what_it_is() -> None:
    """Compiled code copies as many bytes as the target has."""
    kept = t("kept", "i32", 2, is_variable=True)
    with pytest.raises(ModelError, match=r"result 'y' is f64, it gives i32"):
        one_op("READ_VARIABLE", [kept], [t("y", "f64", 9)]).compile().plan()
    graph = Graph("main")
    x, y = graph.input("x", F32, (1,)), graph.tensor("y", F32, (1,))
    wide = graph.tensor("wide", F32, (64,), is_variable=True)
    graph.insert(Op("ASSIGN_VARIABLE", [wide, x], []))
    graph.insert(Op("NEG", [x], [y]))
    graph.outputs = [y]
    with pytest.raises(ModelError, match=r"ASSIGN_VARIABLE: it assigns f32\(1,\) to a variable"):
        Model([graph]).compile().plan()


# -- other ways to an operator --------------------------------------------------------------------


@NEEDS
def test_a_hostile_file_is_refused() -> None:
    for delegates in DELEGATES:
        session = load(shared_model("found/hostile_squeeze_types")).compile(delegates)
        with pytest.raises(ModelError, match=r"SQUEEZE .* is bool\n  it gives f64"):
            session.plan()


def test_quantize_and_inspect_see_illegal_ops() -> None:
    broken = one_op("CONV_2D", [t("x", "f32", 1, 4, 4, 3)], [t("y", "f32", 1, 4, 4, 3)])
    assert cost(broken.main.ops[0]).macs == 0
    with pytest.raises(ModelError, match="CONV_2D 'y': 1 inputs\n  it takes 2 to 3"):
        quantize(broken, "dynamic")


def test_a_pad_may_name_its_value_or_not() -> None:
    """LiteRT reads the value of either operator if it is there."""
    for name, value in (("PAD", 7), ("PADV2", None)):
        for delegates in DELEGATES:
            last = None if value is None else c("v", value, "f32")
            inputs = [t("x", "f32", 1, 2), c("p", [[0, 0], [1, 0]]), last]
            made = one_op(name, inputs, [t("y", "f32", 1, 3)]).compile(delegates)
            np.testing.assert_array_equal(made(np.float32([[1, 2]])), [[value or 0, 1, 2]])


def test_a_sparse_scalar_is_its_value() -> None:
    scalar = Tensor("s", F32, (1,), data=np.float32([3]))
    tensor = Tensor("s", F32, (), buffer=scalar.buffer, sparsity=Sparsity((), (), ()))
    assert tensor.data == np.float32(3)
    empty = Tensor("e", F32, (0,), data=np.zeros(0, np.float32))
    none = Tensor("s", F32, (), buffer=empty.buffer, sparsity=Sparsity((), (), ()))
    with pytest.raises(ModelError, match="0 values for 1 positions"):
        _ = none.data
    assert SparseDim(3).is_dense


def test_packed_values_are_right_on_both_delegates() -> None:
    """An int4 lives in a byte at run time, and compiled code has places for half of that."""
    codes = np.arange(15, dtype=np.int8).reshape(1, 15) % 8
    for delegates in DELEGATES:
        made = one_op("SQUEEZE", [t("x", "i4", 1, 15)], [t("y", "i4", 15)]).compile(delegates)
        np.testing.assert_array_equal(made(codes), codes[0])


# -- mutants of every operator ---------------------------------------------------------------------

Change = Callable[[Model, Op], bool]
KINDS = ("f32", "f16", "f64", "bool", "i8", "u8", "i16", "i32", "i64", "u64", "c64", "str", "i4")


def retyped(place: int, kind: str) -> Change:
    def change(model: Model, op: Op) -> bool:
        tensor = [*op.inputs, *op.outputs][place]
        assert tensor is not None
        data, dtype = tensor.data, DType.parse(kind)
        if data is not None and (data.dtype == object or not dtype.is_fixed_size):
            return False
        tensor.dtype = dtype
        if data is not None:
            with np.errstate(all="ignore"):
                tensor.data = data.astype(dtype.numpy)
        return True

    return change


def reshaped(place: int, shape: tuple[int, ...]) -> Change:
    def change(model: Model, op: Op) -> bool:
        tensor = op.inputs[place]
        assert tensor is not None
        data, tensor.shape = tensor.data, shape
        if data is not None:
            tensor.data = np.resize(data, shape).astype(data.dtype)
        return True

    return change


def dropped(place: int) -> Change:
    def change(model: Model, op: Op) -> bool:
        graph = next(g for g in model.graphs if op in g.ops)
        tensor = op.inputs[place]
        graph.set_input(op, place, None)
        if tensor in graph.inputs and not tensor.users:
            graph.inputs.remove(tensor)
        return True

    return change


def changes(op: Op, rng: random.Random) -> Iterator[tuple[str, Change]]:
    """Each operand and result under other types, and each operand without, or of another shape."""
    for place, tensor in enumerate([*op.inputs, *op.outputs]):
        if tensor is None:
            continue
        for kind in KINDS:
            if kind != tensor.dtype.short:
                yield f"{place} is {kind}", retyped(place, kind)
        if place >= len(op.inputs):
            continue
        yield f"{place} is absent", dropped(place)
        shape = tensor.shape
        shapes = {(*shape, 1), shape[1:], tuple(n + 1 for n in shape), tuple(n // 2 for n in shape)}
        for other in sorted(shapes - {shape}):
            yield f"{place} has shape {other}", reshaped(place, other)


def fed(model: Model) -> list[Array]:
    """Small values, and zeros where they may be indices."""
    rng = np.random.default_rng(0)
    arrays = []
    for tensor in model.main.inputs:
        kind = tensor.dtype.numpy
        if kind.kind == "O":
            arrays.append(np.full(tensor.shape, b"a b", object))
        elif kind.itemsize > 1 and kind.kind in "iu":
            arrays.append(np.zeros(tensor.shape, kind))
        elif kind.kind in "iub":
            arrays.append(rng.integers(0, 2, tensor.shape).astype(kind))
        else:
            arrays.append(rng.uniform(0, 2, tensor.shape).astype(kind))
    return arrays


def answers(model: Model, delegates: list[str]) -> list[Array] | None:
    """None where the model is refused."""
    arrays = fed(model)
    try:
        plan = model.compile(delegates).plan(shapes=[a.shape for a in arrays])
        found = bind_outputs(plan, arrays).run()
    except SanderlingError:
        return None
    return [np.array(a) for a in found]


def targeted(model: Model, name: str) -> Op:
    return next(op for graph in model.graphs for op in graph.ops if op.name == name)


def mutant(case: Case, change: Change) -> Model | None:
    model = case.model()
    return model if change(model, targeted(model, case.op)) else None


FIRST = {case.op: case for case in reversed(CASES)}
# Their answers follow from the clock, or from numbers that are told apart by what they are.
RANDOM = {"RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL", "MULTINOMIAL"}
SAMPLE = None if ALL else 6


@pytest.mark.parametrize("name", sorted(set(FIRST) - RANDOM))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_mutant_is_refused_or_the_delegates_agree(name: str) -> None:
    case, rng = FIRST[name], random.Random(name)
    every = list(changes(targeted(case.model(), name), rng))
    chosen = every if SAMPLE is None else rng.sample(every, min(SAMPLE, len(every)))
    bounds = replace(case, tol=max(case.tol, 1e-5))
    for text, change in chosen:
        model = mutant(case, change)
        if model is None:
            continue
        ours, reference = answers(model, DELEGATES[1]), answers(model, DELEGATES[0])
        assert (ours is None) == (reference is None), f"{case.id}: {text}"
        for a, b in zip(ours or [], reference or [], strict=True):
            problem = difference(bounds, a, b)
            assert problem is None, f"{case.id}: {text}: {problem}"


def test_the_table_and_inference_agree_on_all_cases() -> None:
    """What the conformance table holds is legal, at one case an operator and set of types."""
    seen = set()
    for case in CASES:
        key = (case.op, *(None if x is None else x.dtype for x in case.inputs))
        if key in seen or case.build is not None:
            continue
        seen.add(key)
        graph = case.model().main
        specialise(graph, [x.shape for x in graph.inputs])
    assert len(seen) > len(OPS)


def test_files_with_illegal_ops_load_and_can_be_saved() -> None:
    """Loading is not judging: tools show such a file, running it says what is wrong."""
    made = load(bytes(dump(REFUSED["view"][0]())))
    assert made.main.ops[0].name == "SQUEEZE"
    with pytest.raises(ModelError, match="is bool"):
        made.compile().plan()

"""Odd graphs: branches and loops, ops with states, graphs at random."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sanderling.ir import Array, DType, Graph, Model, Op
from sanderling.optimize.calibration.canonical import canonical
from sanderling.optimize.modes.scheme import MODES

from .conformance.cases import CASES
from .support.quantize_engines import ENGINES, litert, nested, ours, quantised
from .support.quantize_nets import Net, coded, decoded, equal_scales, feeds, noise

# -- branches and loops ---------------------------------------------------------------------------


def branching() -> Model:
    """x > 0 on average: one dense layer, else another; their weights come through the call."""
    main, branches = Graph("main"), []
    x = main.input("x", DType.FLOAT32, (1, 32))
    shared = [main.constant(f"w{i}", noise(32, 32)) for i in range(2)]
    for i in range(2):
        branch = Graph(f"branch{i}")
        args = [
            branch.input("x", DType.FLOAT32, (1, 32)),
            *(branch.input(f"w{k}", DType.FLOAT32, (32, 32)) for k in range(2)),
        ]
        y = branch.tensor("y", DType.FLOAT32, (1, 32))
        branch.add(
            "FULLY_CONNECTED",
            [args[0], args[1 + i], None],
            [y],
            keep_num_dims=False,
            fused_activation_function="RELU",
        )
        branch.outputs = [y]
        branches.append(branch)
    mean, positive = main.tensor("mean", DType.FLOAT32, ()), main.tensor("p", DType.BOOL, ())
    main.add(
        "MEAN", [x, main.constant("axes", np.array([0, 1], np.int32))], [mean], keep_dims=False
    )
    main.add("GREATER", [mean, main.constant("zero", np.float32(0))], [positive])
    out = main.tensor("out", DType.FLOAT32, (1, 32))
    main.add(
        "IF",
        [positive, x, *shared],
        [out],
        then_subgraph_index=branches[0],
        else_subgraph_index=branches[1],
    )
    main.outputs = [out]
    return Model([main, *branches])


def looping() -> Model:
    """Three times x = relu(w x); w goes round with it."""
    main, condition, body = Graph("main"), Graph("condition"), Graph("body")
    x = main.input("x", DType.FLOAT32, (1, 32))
    first = [x, main.constant("w", np.abs(noise(32, 32)) / 16), main.constant("i", np.int32(0))]
    for graph in (condition, body):
        graph.input("state", DType.FLOAT32, (1, 32))
        graph.input("weights", DType.FLOAT32, (32, 32))
        graph.input("count", DType.INT32, ())
    less = condition.tensor("less", DType.BOOL)
    condition.add("LESS", [condition.inputs[2], condition.constant("times", np.int32(3))], [less])
    condition.outputs = [less]
    y, more = body.tensor("y", DType.FLOAT32, (1, 32)), body.tensor("more", DType.INT32, ())
    body.add(
        "FULLY_CONNECTED",
        [*body.inputs[:2], None],
        [y],
        keep_num_dims=False,
        fused_activation_function="RELU",
    )
    body.add(
        "ADD",
        [body.inputs[2], body.constant("one", np.int32(1))],
        [more],
        fused_activation_function="NONE",
    )
    body.outputs = [y, body.inputs[1], more]
    outs = [main.tensor(f"after_{t.name}", t.dtype, t.shape) for t in first]
    main.add("WHILE", first, outs, cond_subgraph_index=condition, body_subgraph_index=body)
    main.outputs = [outs[0]]
    return Model([main, condition, body])


@pytest.mark.parametrize("mode", [m for m in MODES if m != "float"])
@pytest.mark.parametrize("build", [branching, looping])
def test_inner_graphs(build: Callable[[], Model], mode: str) -> None:
    model = build()
    samples = [[np.abs(noise(1, 32)) * sign] for sign in (1, 1, -1, 1)]
    made = nested(model, samples, mode)
    dense = [op for g in made.model.graphs for op in g.ops if op.name == "FULLY_CONNECTED"]
    assert all(_codes_of(op) for op in dense)
    if MODES[mode].is_integer:
        wanted = {"int8": DType.INT8, "int16x8": DType.INT16}[mode]
        assert all(op.inputs[0] is not None and op.inputs[0].dtype is wanted for op in dense)
    for graph in made.model.graphs:
        ends = {t.dtype for t in (*graph.inputs, *graph.outputs)}
        assert ends <= {DType.FLOAT32, DType.BOOL, DType.INT32}
    for sample in samples:
        ideal = litert(model, sample)[0]
        for engine in ENGINES:
            given = litert(made.model, sample, engine)[0]
            span = float(np.abs(ideal).max())
            np.testing.assert_allclose(given, ideal, atol=span * (0.25 if "4" in mode else 0.05))


def _codes_of(op: Op) -> bool:
    """Its weights are stored in fewer bytes."""
    weight = op.inputs[1]
    assert weight is not None
    origin = weight.producer.inputs[0] if weight.producer is not None else weight
    return origin is not None and origin.dtype in (DType.INT8, DType.INT4, DType.FLOAT16)


def test_a_branch_that_no_sample_took_still_has_ranges() -> None:
    model = branching()
    made = nested(model, [[np.abs(noise(1, 32))] for _ in range(3)], "int8")
    taken = [
        op.inputs[0].dtype
        for g in made.model.graphs
        for op in g.ops  # type: ignore[union-attr]
        if op.name == "FULLY_CONNECTED"
    ]
    assert taken == [DType.INT8, DType.INT8]


# -- ops with states ------------------------------------------------------------------------------

STATES = [
    (c.id, c)
    for c in CASES
    if c.op in ("LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM", "SVDF")
    and c.inputs
    and all(t is None or t.dtype == "f32" for t in c.inputs)
]


def _states() -> list[tuple[str, Model, list[list[Array]]]]:
    words = ("cifg norm|", "peephole|", "projection bias norm|", "f32 |", "twenty|", "rank=2")
    found: dict[tuple[str, str], tuple[str, Model, list[list[Array]]]] = {}
    for name, case in STATES:
        model = case.model()
        word = next((w for w in words if w in name), "")
        clamp = case.attrs.get("fused_activation_function")
        if word and clamp == ("RELU" if case.op == "SVDF" else "TANH"):
            rng = np.random.default_rng(0)
            arrays = [[np.asarray(a) for a in case.arrays(model, rng)] for _ in range(3)]
            found.setdefault((case.op, word), (name, model, arrays))
    return list(found.values())


INTEGER_STATES = _states()


STATE_IDS = [f"{i}-{s[0][:12]}" for i, s in enumerate(INTEGER_STATES)]


@pytest.mark.parametrize("name, model, samples", INTEGER_STATES, ids=STATE_IDS)
def test_integer_states(name: str, model: Model, samples: list[list[Array]]) -> None:
    made = nested(model, samples, "int8")
    whys = set(made.solution.reasons.values())
    if "peephole projection" in name:
        assert whys == {"peepholes with a projection are read wrongly by the integer kernel"}
        return
    assert not whys
    op = made.model.main.ops[1]
    assert not [t for t in op.inputs if t is not None and t.dtype is DType.FLOAT32]
    mine = ours(made.model, samples[0])[0]
    ideal = litert(model, samples[0])[0]
    span = float(np.abs(ideal).max())
    for engine in ENGINES:
        given = litert(made.model, samples[0], engine)[0]
        np.testing.assert_allclose(given, mine, rtol=1e-5)  # the same codes
        np.testing.assert_allclose(given, ideal, atol=0.06 * span)


def test_basic_lstm_is_left_float() -> None:
    case = next(c for _, c in STATES if c.attrs.get("kernel_type") == "BASIC")
    model = case.model()
    arrays = [np.asarray(a) for a in case.arrays(model, np.random.default_rng(0))]
    made = nested(model, [arrays], "int8")
    assert set(made.solution.reasons.values()) == {"the basic LSTM kernel has no int8 form"}


# -- graphs at random -----------------------------------------------------------------------------

UNARY = ("RELU", "RELU6", "LOGISTIC", "TANH", "HARD_SWISH", "ABS", "ELU", "SIN", "LEAKY_RELU")


def _random_net(rng: np.random.Generator) -> Model:
    """A graph of ten ops on pictures of one size: shared operands, equal scales, fixed ranges."""
    net = Net(1, 6, 6, 4)
    known = [net.x]
    plain = {"fused_activation_function": "NONE"}
    for i in range(10):
        a, b = (known[k] for k in rng.integers(0, len(known), 2))
        out = f"t{i}"
        kind = rng.integers(0, 9)
        if kind < 2:
            made = net.conv(a, 4, out, rng.choice(["NONE", "RELU6"]))
        elif kind == 2:
            made = net.add(rng.choice(["ADD", "SUB", "MUL"]), [a, b], a.shape, out, **plain)
        elif kind == 3:
            made = net.add(rng.choice(["MAXIMUM", "MINIMUM"]), [a, b], a.shape, out)
        elif kind == 4:
            joined = net.add(
                "CONCATENATION", [a, b], (1, 6, 6, 8), f"{out}/joined", axis=3, **plain
            )
            made = net.conv(joined, 4, out)
        elif kind == 5:
            made = net.add(
                "MAX_POOL_2D",
                [a],
                a.shape,
                out,
                padding="SAME",
                stride_h=1,
                stride_w=1,
                filter_height=3,
                filter_width=3,
                **plain,
            )
        elif kind == 6:
            made = net.add("ADD", [a, net.const(f"{out}/c", noise(4))], a.shape, out, **plain)
        elif kind == 7:
            order = net.graph.constant(f"{out}/order", np.array([0, 2, 1, 3], np.int32))
            made = net.add("TRANSPOSE", [a, order], a.shape, out)
        else:
            name = rng.choice(UNARY)
            made = net.unary(name, a, out, **({"alpha": 0.1} if name == "LEAKY_RELU" else {}))
        known.append(made)
    return net.model(*known[-2:])


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = _random_net(rng)
    samples = feeds(model)
    names = [op.outputs[0].name for op in canonical(model).main.ops]
    modes = ("int8", "int8", "int8", "int16x8", "float", "dynamic")
    rules = [{"name": str(n), "mode": str(rng.choice(modes))} for n in names if rng.random() < 0.5]
    ends = {
        "inputs": str(rng.choice(["float32", "int8", "uint8", "int16"])),
        "outputs": str(rng.choice(["float32", "int8", "uint8", "int16"])),
    }
    made = quantised(model, samples, "int8", *rules, **ends).model
    equal_scales(made.main)
    fed = [coded(made.main.inputs[0], samples[0][0])]
    mine, wanted = ours(made, fed), litert(model, samples[0])
    for engine in ENGINES:
        for tensor, given, own, ideal in zip(
            made.main.outputs, litert(made, fed, engine), mine, wanted, strict=True
        ):
            span = float(np.abs(ideal).max())
            np.testing.assert_allclose(decoded(tensor, given), decoded(tensor, own), atol=span / 10)
            noise_power = np.square(decoded(tensor, given) - ideal).mean()
            assert noise_power <= 0.02 * np.square(ideal).mean() + 1e-9

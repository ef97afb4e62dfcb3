"""What is written: types, scales and names node by node; odd graphs; weights of every mode."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sanderling import dump, load
from sanderling.errors import InputError
from sanderling.ir import Array, DType, Graph, Model, Op, Signature, Tensor
from sanderling.optimize.prepare import prepared
from sanderling.optimize.recurrent import WEIGHTS
from sanderling.optimize.rules import RULES, STORED
from sanderling.optimize.scheme import LEAST_SCALE, MODES
from sanderling.optimize.weights import BIAS_LIMIT
from sanderling.optimize.write import WeightOptions

from .conformance.cases import CASES
from .quantised import ENGINES, litert, nested, ours, quantised, real

RNG = np.random.default_rng(5)
EVERYTHING = WeightOptions(minimum=0)


def noise(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


class Net:
    """A float model, built op by op."""

    def __init__(self, *shape: int, inputs: int = 1) -> None:
        self.graph = Graph()
        self.inputs = [self.graph.input(f"x{i}" if i else "x", DType.FLOAT32, shape)
                       for i in range(inputs)]  # fmt: skip
        self.x = self.inputs[0]

    def add(self, name: str, inputs: list[Tensor | None], shape: tuple[int, ...], out: str,
            **attrs: object) -> Tensor:  # fmt: skip
        made = self.graph.tensor(out, DType.FLOAT32, shape)
        self.graph.add(name, inputs, [made], **attrs)
        return made

    def const(self, name: str, values: object) -> Tensor:
        return self.graph.constant(name, np.asarray(values, np.float32))

    def dense(self, x: Tensor, units: int, out: str, weights: Array | None = None,
              bias: Array | None = None, clamp: str = "NONE") -> Tensor:  # fmt: skip
        w = noise(units, x.shape[-1]) if weights is None else weights
        b = noise(units) if bias is None else bias
        return self.add("FULLY_CONNECTED",
                        [x, self.const(f"{out}/w", w), self.const(f"{out}/b", b)],
                        (x.shape[0], units), out, fused_activation_function=clamp,
                        keep_num_dims=False)  # fmt: skip

    def conv(self, x: Tensor, channels: int, out: str, clamp: str = "NONE") -> Tensor:
        w = self.const(f"{out}/w", noise(channels, 3, 3, x.shape[3]))
        return self.add("CONV_2D", [x, w, self.const(f"{out}/b", noise(channels))],
                        (*x.shape[:3], channels), out, padding="SAME", stride_h=1, stride_w=1,
                        fused_activation_function=clamp)  # fmt: skip

    def unary(self, name: str, x: Tensor, out: str, **attrs: object) -> Tensor:
        return self.add(name, [x], x.shape, out, **attrs)

    def model(self, *outputs: Tensor) -> Model:
        self.graph.outputs = list(outputs)
        entry = Signature("serve", self.graph, {t.name: t for t in self.inputs},
                          {f"out{i}": t for i, t in enumerate(outputs)})  # fmt: skip
        return Model([self.graph], [entry])


def feeds(model: Model, count: int = 4) -> list[list[Array]]:
    return [[noise(*t.shape) for t in model.main.inputs] for _ in range(count)]


def kinds(graph: Graph) -> dict[str, str]:
    """The type of each op's result, by its name."""
    return {t.name: t.dtype.short for op in graph.ops for t in op.outputs}


def readers(model: Model, name: str) -> list[str]:
    return [op.name for op in model.main.find(name).users]


def check(model: Model, samples: list[list[Array]], made: Model, steps: float = 6.0) -> None:
    """LiteRT on both engines gives what we give, and nearly what the float model gives."""
    wanted = litert(model, samples[0])
    mine = ours(made, samples[0])
    for engine in ENGINES:
        for given, own, ideal in zip(litert(made, samples[0], engine), mine, wanted, strict=True):
            span = float(np.abs(ideal).max()) or 1.0
            np.testing.assert_allclose(given, own, rtol=0, atol=span / 50)
            np.testing.assert_allclose(given, ideal, rtol=0, atol=steps * span / 127)


# -- weights of the modes that compute in float ---------------------------------------------------


def weighted() -> list[tuple[str, Model, list[Array]]]:
    """A model of each operator whose weights can be stored as codes."""
    found = []
    for name in [*STORED, *WEIGHTS]:
        for case in (c for c in CASES if c.op == name):
            model = case.model()
            plain = not any(t.quant is not None and t.quant.is_set for t in model.main.tensors)
            held = [t for t in model.main.constants
                    if t.dtype is DType.FLOAT32 and len(t.shape) > 1]  # fmt: skip
            if plain and held and model.main.inputs and case.attrs.get("kernel_type") != "BASIC":
                arrays = case.arrays(model, np.random.default_rng(0))
                found.append((name, model, [np.asarray(a) for a in arrays]))
                break
    return found


WEIGHTED = weighted()


@pytest.mark.parametrize("mode", [m for m in MODES if m not in ("float", "int8", "int16x8")])
@pytest.mark.parametrize("name, model, arrays", WEIGHTED, ids=[w[0] for w in WEIGHTED])
def test_stored_weights(name: str, model: Model, arrays: list[Array], mode: str) -> None:
    made = quantised(model, [], mode, weights=EVERYTHING).model
    stored = [t for t in made.main.constants if t.dtype in (DType.INT8, DType.INT4, DType.FLOAT16)]
    assert stored
    assert not [t for t in made.main.constants if t.dtype is DType.FLOAT32 and len(t.shape) > 1]
    wanted, mine = litert(model, arrays)[0], ours(made, arrays)[0]
    span = float(np.abs(wanted).max())
    for engine in ENGINES:
        given = litert(made, arrays, engine)[0]
        np.testing.assert_allclose(given, mine, rtol=0, atol=span / 50)
        near = 0.2 if "4" in mode else 0.04
        np.testing.assert_allclose(given, wanted, rtol=0, atol=span * near)


def test_gathered_table_is_moved_as_codes() -> None:
    net = Net(1, 4)
    rows = net.graph.input("rows", DType.INT32, (3,))
    taken = net.add("GATHER", [net.const("table", noise(50, 4)), rows], (3, 4), "taken", axis=0,
                    batch_dims=0)  # fmt: skip
    model = net.model(net.add("ADD", [taken, net.x], (3, 4), "sum",
                              fused_activation_function="NONE"))  # fmt: skip
    arrays = [noise(1, 4), np.array([3, 49, 0], np.int32)]
    model.signatures = []
    made = quantised(model, [], "dynamic", weights=EVERYTHING).model
    assert [op.name for op in made.main.ops] == ["GATHER", "DEQUANTIZE", "ADD"]
    for engine in ENGINES:
        np.testing.assert_allclose(litert(made, arrays, engine)[0], litert(model, arrays)[0],
                                   atol=0.03)  # fmt: skip


def test_an_embedding_is_codes_in_every_mode() -> None:
    net = Net(3, 40)
    rows = net.graph.input("rows", DType.INT32, (3,))
    table = net.const("table", noise(50, 40))
    taken = net.add("EMBEDDING_LOOKUP", [rows, table], (3, 40), "taken")
    model = net.model(net.add("ADD", [taken, net.x], (3, 40), "sum",
                              fused_activation_function="NONE"))  # fmt: skip
    model.signatures = []
    arrays = [noise(3, 40), np.array([3, 49, 0], np.int32)]
    for mode, moved in (("int8", "i8"), ("int16x8", "f32"), ("dynamic", "f32")):
        made = quantised(model, [arrays], mode).model
        assert [t.dtype.short for t in made.main.constants if t.shape == (50, 40)] == ["i8"]
        assert kinds(made.main)["taken"] == moved
        for engine in ENGINES:
            np.testing.assert_allclose(litert(made, arrays, engine)[0], litert(model, arrays)[0],
                                       atol=0.08)  # fmt: skip


def test_small_weights_stay_float() -> None:
    net = Net(1, 64)
    model = net.model(net.dense(net.dense(net.x, 32, "big"), 8, "small"))
    made = quantised(model, [], "dynamic").model
    types = {op.outputs[0].name: op.inputs[1].dtype for op in made.main.ops}  # type: ignore[union-attr]
    assert types == {"big": DType.INT8, "small": DType.FLOAT32}


def test_all_or_none_of_a_recurrent_ops_weights() -> None:
    _, model, _ = next(w for w in WEIGHTED if w[0] == "UNIDIRECTIONAL_SEQUENCE_LSTM")
    made = quantised(model, [], "dynamic").model  # its matrices are small
    assert not [t for t in made.main.constants if t.dtype is DType.INT8]


def test_a_weight_that_feeds_two_kinds_of_op_is_stored_once() -> None:
    net = Net(1, 64)
    w = net.const("w", noise(64, 64))
    y = net.add("FULLY_CONNECTED", [net.x, w, None], (1, 64), "y", keep_num_dims=False,
                fused_activation_function="NONE")  # fmt: skip
    z = net.add("MUL", [y, w], (64, 64), "z", fused_activation_function="NONE")
    model = net.model(z)
    made = quantised(model, [], {"mode": "dynamic"}).model
    assert [t.dtype for t in made.main.constants if t.shape == (64, 64)] == [DType.INT8]
    check(model, feeds(model), made)
    apart = quantised(model, [], "dynamic", {"op": "MUL", "mode": "float"}).model
    assert {t.dtype for t in apart.main.constants if t.shape == (64, 64)} == {
        DType.INT8, DType.FLOAT32}  # fmt: skip


@pytest.mark.parametrize("clamp", ["NONE", "RELU", "RELU6"])
def test_blocks_keep_their_activation(clamp: str) -> None:
    net = Net(2, 64)
    model = net.model(net.dense(net.x, 16, "y", clamp=clamp))
    made = quantised(model, [], "block-int4", weights=EVERYTHING).model
    weight = made.main.ops[0].inputs[1]
    assert weight is not None and weight.quant is not None and weight.quant.block is not None
    check(model, feeds(model), made, steps=30)


def test_size_drops_as_it_should() -> None:
    net = Net(1, 512)
    model = net.model(net.dense(net.x, 512, "y"))
    before = len(dump(model))
    eighths = {"float16": 4, "dynamic": 2, "weight-int4": 1, "int8": 2, "int16x8": 2}
    for mode, share in eighths.items():
        made = quantised(model, feeds(model), mode).model
        assert len(dump(made)) / before == pytest.approx(share / 8, abs=0.02)


# -- recipes, node by node ------------------------------------------------------------------------


def tower() -> tuple[Model, list[list[Array]]]:
    net = Net(1, 8, 8, 4)
    a = net.conv(net.x, 8, "block_1/conv", "RELU")
    b = net.conv(a, 8, "block_2/conv", "RELU")
    c = net.add("ADD", [a, b], b.shape, "block_2/add", fused_activation_function="NONE")
    flat = net.add("RESHAPE", [c, net.graph.constant("to", np.array([1, 512], np.int32))], (1, 512),
                   "flat")  # fmt: skip
    logits = net.dense(flat, 5, "head/logits", noise(5, 512) / 100)
    model = net.model(net.unary("SOFTMAX", logits, "head/out", beta=1.0))
    return model, feeds(model)


def test_skip_by_name() -> None:
    model, samples = tower()
    made = quantised(model, samples, "int8", {"name": "block_2/*", "mode": "float"}).model
    found = kinds(made.main)
    assert found["block_1/conv"] == "i8"
    assert found["block_2/conv"] == found["block_2/add"] == "f32"
    assert found["flat"] == "i8"
    conv = made.main.find("block_2/conv").producer
    assert conv is not None and {t.dtype for t in conv.inputs if t} == {DType.FLOAT32}
    check(model, samples, made)


def test_eight_and_sixteen_bits_in_one_model() -> None:
    model, samples = tower()
    made = quantised(model, samples, "int8", {"name": "/block_2/", "mode": "int16x8"}).model
    found = kinds(made.main)
    assert (found["block_1/conv"], found["block_2/conv"], found["block_2/add"], found["flat"]) == (
        "i8", "i16", "i16", "i8")  # fmt: skip
    conv = made.main.find("block_2/conv").producer
    assert conv is not None
    assert [t.dtype.short for t in conv.inputs if t] == ["i16", "i8", "i64"]
    crossings = [(op.inputs[0].dtype.short, op.outputs[0].dtype.short)  # type: ignore[union-attr]
                 for op in made.main.ops if op.name == "QUANTIZE"]  # fmt: skip
    assert ("i8", "i16") in crossings and ("i16", "i8") in crossings
    check(model, samples, made)


def test_float_head() -> None:
    model, samples = tower()
    made = quantised(model, samples, "int8", {"name": "head/*", "mode": "float"}).model
    found = kinds(made.main)
    assert found["flat"] == "i8" and found["head/logits"] == found["head/out"] == "f32"
    assert readers(made, "flat") == ["DEQUANTIZE"]
    check(model, samples, made)


def test_region() -> None:
    model, samples = tower()
    between = {"from": "block_1/conv", "to": "block_2/add", "mode": "int8"}
    made = quantised(model, samples, "float", between).model
    found = kinds(made.main)
    assert found["block_1/conv"] == found["block_2/conv"] == found["block_2/add"] == "i8"
    assert found["flat"] == found["head/logits"] == "f32"
    check(model, samples, made)


def test_a_rule_that_fits_nothing_is_refused() -> None:
    model, samples = tower()
    with pytest.raises(InputError, match=r"fits no op\s+close to it: 'block_2/conv'"):
        quantised(model, samples, "int8", {"name": "block2/conv", "mode": "float"})


# -- the interface --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
@pytest.mark.parametrize("inputs", ["float32", "int8", "uint8", "int16"])
@pytest.mark.parametrize("outputs", ["float32", "int8", "uint8", "int16"])
def test_interface(mode: str, inputs: str, outputs: str) -> None:
    model, samples = tower()
    made = quantised(model, samples, mode, inputs=inputs, outputs=outputs).model
    graph = made.main
    assert [(t.name, str(t.dtype.numpy)) for t in graph.inputs] == [("x", inputs)]
    assert [(t.name, str(t.dtype.numpy)) for t in graph.outputs] == [("head/out", outputs)]
    entry = made.signatures[0]
    assert (entry.inputs, entry.outputs) == ({"x": graph.inputs[0]}, {"out0": graph.outputs[0]})
    assert len({t.name for t in graph.tensors}) == len(graph.tensors)
    fed = [_coded(graph.inputs[0], samples[0][0])]
    wanted = litert(model, samples[0])[0]
    for given in (*(litert(made, fed, engine)[0] for engine in ENGINES), ours(made, fed)[0]):
        back = real(graph.outputs[0]) if graph.outputs[0].is_constant else _real(graph.outputs[0],
                                                                                given)  # fmt: skip
        np.testing.assert_allclose(back, wanted, atol=0.07)


def _coded(tensor: Tensor, values: Array) -> Array:
    from sanderling.runtime.inputs import quantize_array

    return values if tensor.dtype.is_float else quantize_array(values, tensor)


def _real(tensor: Tensor, codes: Array) -> Array:
    from sanderling.runtime.inputs import dequantize_array

    return codes if tensor.dtype.is_float else dequantize_array(codes, tensor)


def test_integer_ends_of_a_float_op() -> None:
    """The last op stays float; the output is codes all the same."""
    net = Net(1, 16)
    model = net.model(net.unary("SIN", net.dense(net.x, 8, "y"), "z"))
    samples = feeds(model)
    made = quantised(model, samples, "int8", inputs="int8", outputs="int8")
    assert list(made.solution.reasons.values()) == ["SIN has no integer kernel"]
    assert made.model.main.outputs[0].dtype is DType.INT8
    assert made.model.main.outputs[0].name == "z"


def test_integer_ends_need_an_integer_mode() -> None:
    model, samples = tower()
    with pytest.raises(InputError, match="need an integer mode"):
        quantised(model, samples, "dynamic", inputs="int8")


@pytest.mark.parametrize("ends", ["float32", "int8", "uint8"])
def test_odd_outputs(ends: str) -> None:
    """An output that is read inside, one that is there twice, and one that is the input itself."""
    net = Net(1, 8)
    a = net.dense(net.x, 8, "a")
    b = net.dense(a, 8, "b")
    model = net.model(a, b, b, net.x)
    samples = feeds(model)
    for inputs in ("float32", ends):
        made = quantised(model, samples, "int8", inputs=inputs, outputs=ends).model
        assert [str(t.dtype.numpy) for t in made.main.outputs] == [ends] * 4
        assert [t.name for t in made.main.outputs][:3] == ["a", "b", "b"]
        assert made.main.inputs[0].name == "x"
        fed = [_coded(made.main.inputs[0], samples[0][0])]
        wanted = litert(model, samples[0])
        for tensor, given, ideal in zip(made.main.outputs, litert(made, fed), wanted, strict=True):
            np.testing.assert_allclose(_real(tensor, given), ideal, atol=0.3)


# -- scales ---------------------------------------------------------------------------------------


def equal_scales(graph: Graph) -> None:
    """Node by node: what kernels want equal is equal, what they want fixed is fixed."""
    for op in graph.ops:
        row = RULES.get(op.name)
        first = op.input(0)
        if row is None or not any(t.dtype in (DType.INT8, DType.INT16) for t in row.flowing(op)):
            continue
        values = [*row.flowing(op), *(op.outputs if row.real_out else [])]
        quants = [t.quant for t in values]
        assert all(q is not None and q.is_set for q in quants), op.where
        assert len({t.dtype for t in values}) == 1, op.where
        if row.same:
            assert all(q.same_as(quants[0]) for q in quants if q), op.where
        for place, axis in row.weights.items():
            weight = op.inputs[place]
            assert weight is not None and weight.quant is not None and first is not None
            assert not weight.quant.zero_point.any() and weight.quant.axis == axis
            bias = op.input(row.bias) if row.bias is not None else None
            source = op.inputs[row.data[0]]
            if bias is not None and source is not None and source.quant is not None:
                assert bias.quant is not None
                np.testing.assert_array_equal(bias.quant.scale,
                                              source.quant.scale * weight.quant.scale)  # fmt: skip


def test_concatenation_of_a_fixed_range_and_a_shared_operand() -> None:
    net = Net(1, 8, 8, 4)
    wide = net.conv(net.x, 4, "wide")
    gate = net.unary("LOGISTIC", wide, "gate")
    tiny = net.add("MUL", [wide, net.const("small", 0.01)], wide.shape, "tiny",
                   fused_activation_function="NONE")  # fmt: skip
    joined = net.add("CONCATENATION", [wide, gate, tiny], (1, 8, 8, 12), "joined", axis=3,
                     fused_activation_function="NONE")  # fmt: skip
    also = net.add("ADD", [tiny, gate], wide.shape, "also", fused_activation_function="NONE")
    model = net.model(joined, also)
    samples = feeds(model)
    made = quantised(model, samples, "int8").model
    equal_scales(made.main)
    op = made.main.find("joined/i8").producer
    assert op is not None
    makers = [t.producer.name if t and t.producer else "" for t in op.inputs]
    # The gate's scale is fixed and the small one's other reader would lose: both are requantised.
    assert makers == ["CONV_2D", "QUANTIZE", "QUANTIZE"]
    check(model, samples, made)


def test_a_mask_before_a_softmax_takes_no_codes() -> None:
    net = Net(4, 8)
    mask = net.const("mask", np.where(np.arange(8) < 5, 0, -10000))
    masked = net.add("ADD", [net.x, mask], (4, 8), "masked", fused_activation_function="NONE")
    model = net.model(net.unary("SOFTMAX", masked, "share", beta=1.0))
    samples = feeds(model)
    for mode in ("int8", "int16x8"):
        made = quantised(model, samples, mode).model
        quant = made.main.find("masked").quant
        assert quant is not None and quant.scale[0] < 0.3
        check(model, samples, made, steps=20)


def test_the_whole_tower_obeys() -> None:
    model, samples = tower()
    for mode in ("int8", "int16x8"):
        equal_scales(quantised(model, samples, mode).model.main)


def test_split_and_several_outputs() -> None:
    net = Net(1, 8)
    y = net.dense(net.x, 8, "y")
    parts = [net.graph.tensor(f"part{i}", DType.FLOAT32, (1, 4)) for i in range(2)]
    axis = net.graph.constant("axis", np.int32(1))
    net.graph.add("SPLIT", [axis, y], parts, num_splits=2)
    model = net.model(net.unary("TANH", parts[0], "left"), parts[1])
    samples = feeds(model)
    made = quantised(model, samples, "int8").model
    equal_scales(made.main)
    check(model, samples, made)


def test_constant_operands_are_codes_too() -> None:
    net = Net(1, 4)
    y = net.add("ADD", [net.const("c", noise(1, 4)), net.x], (1, 4), "y",
                fused_activation_function="NONE")  # fmt: skip
    z = net.add("MAXIMUM", [y, net.const("floor", [[0.25]])], (1, 4), "z")
    model = net.model(z)
    samples = feeds(model)
    for mode, kind in (("int8", "i8"), ("int16x8", "i16")):
        made = quantised(model, samples, mode).model
        assert {t.dtype.short for t in made.main.constants} == {kind}
        equal_scales(made.main)
        check(model, samples, made)


# -- numbers at the edge --------------------------------------------------------------------------


def test_a_bias_that_would_overflow_raises_the_weights_scale() -> None:
    net = Net(1, 4)
    weights = np.full((2, 4), 1e-7, np.float32)
    weights[1] = 1
    model = net.model(net.dense(net.x, 2, "y", weights, np.array([500, 1], np.float32)))
    samples = feeds(model)
    made = quantised(model, samples, "int8")
    assert made.written.repaired == ["FULLY_CONNECTED 'y'"]
    bias = made.model.main.ops[1].inputs[2]
    assert bias is not None and bias.data is not None
    assert np.abs(bias.data).max() <= 1.001 * BIAS_LIMIT
    check(model, samples, made.model)


@pytest.mark.parametrize("mode", ["int8", "int16x8", "dynamic", "weight-int4"])
def test_dead_channels(mode: str) -> None:
    net = Net(1, 64)
    weights = noise(32, 64)
    weights[3] = 0
    model = net.model(net.dense(net.x, 32, "y", weights))
    samples = feeds(model)
    made = quantised(model, samples, mode).model
    stored = next(t for t in made.main.constants if t.shape == (32, 64))
    assert stored.quant is not None and (stored.quant.scale >= LEAST_SCALE).all()
    check(model, samples, made, steps=30 if "4" in mode else 6)


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
def test_activations_that_are_always_zero(mode: str) -> None:
    net = Net(1, 8)
    dead = net.dense(net.x, 8, "dead", np.zeros((8, 8)), np.zeros(8), "RELU6")
    both = net.add("ADD", [dead, net.x], (1, 8), "both", fused_activation_function="RELU6")
    model = net.model(both, net.dense(dead, 4, "after"))
    samples = feeds(model)
    made = quantised(model, samples, mode).model
    for engine in ENGINES:
        given = litert(made, samples[0], engine)
        np.testing.assert_allclose(given[0], litert(model, samples[0])[0], atol=0.05)
        np.testing.assert_allclose(given[1], litert(model, samples[0])[1], atol=0.05)


def test_a_quantised_model_is_refused() -> None:
    model, samples = tower()
    for mode in ("int8", "dynamic", "int16x8"):
        made = quantised(model, samples, mode, weights=EVERYTHING).model
        with pytest.raises(InputError, match="quantised already"):
            prepared(made)


def test_the_given_model_is_left_alone() -> None:
    model, samples = tower()
    before = bytes(dump(model))
    quantised(model, samples, "int8", inputs="uint8")
    assert bytes(dump(model)) == before


# -- branches and loops ---------------------------------------------------------------------------


def branching() -> Model:
    """x > 0 on average: one dense layer, else another; their weights come through the call."""
    main, branches = Graph("main"), []
    x = main.input("x", DType.FLOAT32, (1, 32))
    shared = [main.constant(f"w{i}", noise(32, 32)) for i in range(2)]
    for i in range(2):
        branch = Graph(f"branch{i}")
        args = [branch.input("x", DType.FLOAT32, (1, 32)),
                *(branch.input(f"w{k}", DType.FLOAT32, (32, 32)) for k in range(2))]  # fmt: skip
        y = branch.tensor("y", DType.FLOAT32, (1, 32))
        branch.add("FULLY_CONNECTED", [args[0], args[1 + i], None], [y], keep_num_dims=False,
                   fused_activation_function="RELU")  # fmt: skip
        branch.outputs = [y]
        branches.append(branch)
    mean, positive = main.tensor("mean", DType.FLOAT32, ()), main.tensor("p", DType.BOOL, ())
    main.add("MEAN", [x, main.constant("axes", np.array([0, 1], np.int32))], [mean],
             keep_dims=False)  # fmt: skip
    main.add("GREATER", [mean, main.constant("zero", np.float32(0))], [positive])
    out = main.tensor("out", DType.FLOAT32, (1, 32))
    main.add("IF", [positive, x, *shared], [out], then_subgraph_index=branches[0],
             else_subgraph_index=branches[1])  # fmt: skip
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
    body.add("FULLY_CONNECTED", [*body.inputs[:2], None], [y], keep_num_dims=False,
             fused_activation_function="RELU")  # fmt: skip
    body.add("ADD", [body.inputs[2], body.constant("one", np.int32(1))], [more],
             fused_activation_function="NONE")  # fmt: skip
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
    taken = [op.inputs[0].dtype for g in made.model.graphs for op in g.ops  # type: ignore[union-attr]
             if op.name == "FULLY_CONNECTED"]  # fmt: skip
    assert taken == [DType.INT8, DType.INT8]


# -- ops with states ------------------------------------------------------------------------------

STATES = [(c.id, c) for c in CASES
          if c.op in ("LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM", "SVDF") and c.inputs
          and all(t is None or t.dtype == "f32" for t in c.inputs)]  # fmt: skip


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


def test_load_and_dump_keep_the_written_model() -> None:
    model, samples = tower()
    made = quantised(model, samples, "int8").model
    again = load(bytes(dump(made)))
    assert [op.version for op in again.main.ops] == [op.version for op in made.main.ops]
    assert kinds(again.main) == kinds(made.main)


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
            made = net.add("MAX_POOL_2D", [a], a.shape, out, padding="SAME", stride_h=1, stride_w=1,
                           filter_height=3, filter_width=3, **plain)  # fmt: skip
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
    names = [op.outputs[0].name for op in prepared(model).main.ops]
    modes = ("int8", "int8", "int8", "int16x8", "float", "dynamic")
    rules = [{"name": str(n), "mode": str(rng.choice(modes))} for n in names if rng.random() < 0.5]
    ends = {"inputs": str(rng.choice(["float32", "int8", "uint8", "int16"])),
            "outputs": str(rng.choice(["float32", "int8", "uint8", "int16"]))}  # fmt: skip
    made = quantised(model, samples, "int8", *rules, **ends).model
    equal_scales(made.main)
    fed = [_coded(made.main.inputs[0], samples[0][0])]
    mine, wanted = ours(made, fed), litert(model, samples[0])
    for engine in ENGINES:
        for tensor, given, own, ideal in zip(made.main.outputs, litert(made, fed, engine), mine,
                                             wanted, strict=True):  # fmt: skip
            span = float(np.abs(ideal).max())
            np.testing.assert_allclose(_real(tensor, given), _real(tensor, own), atol=span / 10)
            noise_power = np.square(_real(tensor, given) - ideal).mean()
            assert noise_power <= 0.02 * np.square(ideal).mean() + 1e-9

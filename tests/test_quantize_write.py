"""What is written: types, scales and names node by node; recipes, interfaces, odd numbers."""

from __future__ import annotations

import numpy as np
import pytest

from sanderling import dump, load
from sanderling.errors import InputError
from sanderling.ir import DType
from sanderling.optimize.calibration.canonical import canonical
from sanderling.optimize.modes.scheme import LEAST_SCALE
from sanderling.optimize.modes.weights import BIAS_LIMIT

from .support.quantize_engines import ENGINES, litert, ours, quantised, real
from .support.quantize_nets import (
    EVERYTHING,
    Net,
    check,
    coded,
    decoded,
    equal_scales,
    feeds,
    kinds,
    noise,
    readers,
    tower,
)

# -- recipes, node by node ------------------------------------------------------------------------


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
        "i8",
        "i16",
        "i16",
        "i8",
    )
    conv = made.main.find("block_2/conv").producer
    assert conv is not None
    assert [t.dtype.short for t in conv.inputs if t] == ["i16", "i8", "i64"]
    crossings = [
        (op.inputs[0].dtype.short, op.outputs[0].dtype.short)  # type: ignore[union-attr]
        for op in made.main.ops
        if op.name == "QUANTIZE"
    ]
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
    fed = [coded(graph.inputs[0], samples[0][0])]
    wanted = litert(model, samples[0])[0]
    for given in (*(litert(made, fed, engine)[0] for engine in ENGINES), ours(made, fed)[0]):
        back = (
            real(graph.outputs[0])
            if graph.outputs[0].is_constant
            else decoded(graph.outputs[0], given)
        )
        np.testing.assert_allclose(back, wanted, atol=0.07)


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
        fed = [coded(made.main.inputs[0], samples[0][0])]
        wanted = litert(model, samples[0])
        for tensor, given, ideal in zip(made.main.outputs, litert(made, fed), wanted, strict=True):
            np.testing.assert_allclose(decoded(tensor, given), ideal, atol=0.3)


# -- scales ---------------------------------------------------------------------------------------


def test_concatenation_of_a_fixed_range_and_a_shared_operand() -> None:
    net = Net(1, 8, 8, 4)
    wide = net.conv(net.x, 4, "wide")
    gate = net.unary("LOGISTIC", wide, "gate")
    tiny = net.add(
        "MUL",
        [wide, net.const("small", 0.01)],
        wide.shape,
        "tiny",
        fused_activation_function="NONE",
    )
    joined = net.add(
        "CONCATENATION",
        [wide, gate, tiny],
        (1, 8, 8, 12),
        "joined",
        axis=3,
        fused_activation_function="NONE",
    )
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
    y = net.add(
        "ADD", [net.const("c", noise(1, 4)), net.x], (1, 4), "y", fused_activation_function="NONE"
    )
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
    check(model, samples, made, steps=30 if "4" in mode else 10)


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
            canonical(made)


def test_the_given_model_is_left_alone() -> None:
    model, samples = tower()
    before = bytes(dump(model))
    quantised(model, samples, "int8", inputs="uint8")
    assert bytes(dump(model)) == before


def test_load_and_dump_keep_the_written_model() -> None:
    model, samples = tower()
    made = quantised(model, samples, "int8").model
    again = load(bytes(dump(made)))
    assert [op.version for op in again.main.ops] == [op.version for op in made.main.ops]
    assert kinds(again.main) == kinds(made.main)

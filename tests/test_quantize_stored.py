"""Weights that are stored as codes in the modes that compute in float."""

from __future__ import annotations

import numpy as np
import pytest

from sanderling import dump
from sanderling.errors import UnsupportedError
from sanderling.ir import Array, DType, Model
from sanderling.optimize.modes.scheme import MODES
from sanderling.optimize.quantize import quantize

from .support.mobile_net import mobile
from .support.quantize_engines import ENGINES, litert, ours, quantised
from .support.quantize_nets import EVERYTHING, WEIGHTED, Net, check, feeds, kinds, noise

# -- weights of the modes that compute in float ---------------------------------------------------


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
    taken = net.add(
        "GATHER", [net.const("table", noise(50, 4)), rows], (3, 4), "taken", axis=0, batch_dims=0
    )
    model = net.model(
        net.add("ADD", [taken, net.x], (3, 4), "sum", fused_activation_function="NONE")
    )
    arrays = [noise(1, 4), np.array([3, 49, 0], np.int32)]
    model.signatures = []
    made = quantised(model, [], "dynamic", weights=EVERYTHING).model
    assert [op.name for op in made.main.ops] == ["GATHER", "DEQUANTIZE", "ADD"]
    for engine in ENGINES:
        np.testing.assert_allclose(
            litert(made, arrays, engine)[0], litert(model, arrays)[0], atol=0.03
        )


def test_an_embedding_is_codes_in_every_mode() -> None:
    net = Net(3, 40)
    rows = net.graph.input("rows", DType.INT32, (3,))
    table = net.const("table", noise(50, 40))
    taken = net.add("EMBEDDING_LOOKUP", [rows, table], (3, 40), "taken")
    model = net.model(
        net.add("ADD", [taken, net.x], (3, 40), "sum", fused_activation_function="NONE")
    )
    model.signatures = []
    arrays = [noise(3, 40), np.array([3, 49, 0], np.int32)]
    for mode, moved in (("int8", "i8"), ("int16x8", "f32"), ("dynamic", "f32")):
        made = quantised(model, [arrays], mode).model
        assert [t.dtype.short for t in made.main.constants if t.shape == (50, 40)] == ["i8"]
        assert kinds(made.main)["taken"] == moved
        for engine in ENGINES:
            np.testing.assert_allclose(
                litert(made, arrays, engine)[0], litert(model, arrays)[0], atol=0.08
            )


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
    y = net.add(
        "FULLY_CONNECTED",
        [net.x, w, None],
        (1, 64),
        "y",
        keep_num_dims=False,
        fused_activation_function="NONE",
    )
    z = net.add("MUL", [y, w], (64, 64), "z", fused_activation_function="NONE")
    model = net.model(z)
    made = quantised(model, [], {"mode": "dynamic"}).model
    assert [t.dtype for t in made.main.constants if t.shape == (64, 64)] == [DType.INT8]
    check(model, feeds(model), made)
    apart = quantised(model, [], "dynamic", {"op": "MUL", "mode": "float"}).model
    assert {t.dtype for t in apart.main.constants if t.shape == (64, 64)} == {
        DType.INT8,
        DType.FLOAT32,
    }


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


# -- modes that an op cannot have -----------------------------------------------------------------


def test_blocks_on_convolutions_are_said_to_be_something_else() -> None:
    model = mobile(widths=(12, 15))
    made, report = quantize(model, "block-int4", minimum=1)
    same, other = quantize(model, "dynamic-int4", minimum=1)
    assert bytes(dump(made)) == bytes(dump(same)) and report.modes == other.modes
    assert "block-int4" not in report.modes and report.modes["dynamic-int4"] > 1
    whys = {row["op"]: row["reason"] for row in report.fell_back}
    assert "blocks are for FULLY_CONNECTED alone" in whys["CONV_2D"]
    assert "no multiple of 32" in whys["FULLY_CONNECTED"]
    assert "weight-int4 instead of" in whys["DEPTHWISE_CONV_2D"]
    assert any("No op could take block-int4" in note for note in report.notes)


def test_a_mode_that_changes_nothing_is_an_error() -> None:
    with pytest.raises(
        UnsupportedError, match=r"dynamic changes nothing .* fewer than the minimum"
    ):
        quantize(mobile(), "dynamic", minimum=10**9)
    _, report = quantize(mobile(), "dynamic", minimum=400)
    assert any("fewer than the minimum of 400" in r["reason"] for r in report.stayed_float)
    assert sum(report.modes.values()) == len(mobile().main.ops)

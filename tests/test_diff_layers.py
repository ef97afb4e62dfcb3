"""`sanderling diff --per-tensor`: the layer to blame is named, whatever the tensors are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sanderling import Model, Quant, diff, save
from sanderling.evaluate.differences.tensor_matching import match, name_pieces
from sanderling.ir import DType, Graph, Tensor

from .conformance.cases_control import const, emit, graph
from .conformance.cases_sequence import _svdf
from .support import shared_models
from .support.diff_command import EXACT, F32, INT8, call, damaged
from .support.twin_models import WEIGHTS, Twin, calibrated

RNG = np.random.default_rng(8)


@pytest.fixture(scope="module")
def ranges() -> dict[str, tuple[float, float]]:
    return calibrated()


# -- layers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [F32, INT8])
@pytest.mark.parametrize("layer", [0, 1, 3])
def test_the_damaged_layer_is_named(path: str, layer: int) -> None:
    found = diff(path, damaged(path, layer), runs=3, per_tensor=True, **EXACT).layers
    assert found is not None
    assert found.first_divergence is not None and found.first_divergence.index == layer
    assert found.first_difference is not None and found.first_difference.index == layer
    assert [r.index for r in found.rows if r.suspect] == [layer]  # and no other
    assert found.worst[0].index == layer
    assert found.rows[layer].weights_relative > 0.01  # type: ignore[operator]
    assert found.rows[-1].accumulated.relative > 0 and found.rows[-1].local.relative == 0


@pytest.mark.parametrize("path", [F32, INT8])
def test_a_damaged_channel_is_named(path: str) -> None:
    found = diff(path, damaged(path, 1, channel=7), runs=3, per_tensor=True, **EXACT).layers
    assert found is not None
    assert [c for c, _ in found.rows[1].worst_channels] == [7]


def test_a_slight_damage_is_the_first_difference() -> None:
    found = diff(F32, damaged(F32, 1, noise=1e-5), runs=2, per_tensor=True, **EXACT).layers
    assert found is not None and found.first_divergence is None
    assert found.first_difference is not None and found.first_difference.index == 1


def test_ops_have_the_files_numbers() -> None:
    """An op of constants alone is computed beforehand: those behind it keep their numbers."""

    def made(weight: float) -> Model:
        def body(g: Graph, x: Tensor) -> list[Tensor]:
            scale = emit(g, "NEG", [const(g, [weight] * 3)], (3,))
            return [emit(g, "ABS", [emit(g, "MUL", [x, scale], (2, 3))], (2, 3))]

        return Model([graph("main", body, ("f32", (2, 3)))])

    found = diff(made(2.0), made(2.5), runs=2, per_tensor=True, bisect=True, **EXACT)
    assert found.layers is not None and found.bisection is not None
    assert [r.index for r in found.layers.rows] == [1, 2]
    assert found.layers.notes[0].startswith("1 op of the test's file read constants alone")
    assert [o["index"] for o in found.bisection.ops] == [1]


def test_damage_is_named_on_the_command_line(tmp_path: Path) -> None:
    save(damaged(F32, 1), tmp_path / "bad.tflite")
    text = call(F32, tmp_path / "bad.tflite", "--per-tensor", "--bisect", "--runs", 3).stdout
    assert "first divergence: CONV_2D 'hidden2' (op 1): local relative error" in text
    assert "bisect: 1 of 5 ops must be taken from the reference" in text
    assert text.rstrip().endswith("CONV_2D 'hidden2' (op 1)")


def test_sound_quantisation_is_rounding_alone() -> None:
    """RMSE over scale of a layer that is right is near 1/sqrt(12)."""
    found = diff(F32, INT8, runs=5, per_tensor=True).layers
    assert found is not None and not any(r.suspect for r in found.rows)
    for row in found.rows[:2]:
        assert row.local_rmse_scale == pytest.approx(12**-0.5, abs=0.05)
    assert found.rows[2].local_rmse_scale == 0  # a reshape moves values


def test_a_layer_that_lost_its_scale_is_suspect(ranges: dict[str, tuple[float, float]]) -> None:
    cut = ranges | {"sum": (0.0, ranges["sum"][1] / 4)}  # three quarters of the range are cut off
    good, bad = (Twin(ranges=r, prefix="z").model for r in (ranges, cut))
    sound, cut_off = (
        diff(Twin().model, m, runs=3, per_tensor=True, **EXACT).layers for m in (good, bad)
    )
    assert sound is not None and cut_off is not None
    assert not any(r.suspect for r in sound.rows)
    assert sound.rows[0].op == "QUANTIZE" and sound.rows[-1].op == "DEQUANTIZE"
    assert sound.rows[-1].local.relative < 1e-6  # the rounding before it is not its own
    assert [r.op for r in cut_off.rows if r.suspect] == ["ADD"]
    assert (
        cut_off.first_divergence is not None and "RMSE/scale" in cut_off.first_divergence.reasons[0]
    )


def test_wrong_ops_of_a_delegate_are_seen_one_by_one(wrong: Any) -> None:
    wrong("hidden1", "logits")
    found = diff(F32, delegate_b=["wrong"], runs=2, per_tensor=True).layers
    assert found is not None
    assert [r.name for r in found.rows if r.suspect] == ["hidden1", "logits"]
    assert found.rows[1].local.relative < 1e-6 < found.rows[1].accumulated.relative


def test_state_does_not_confuse_layers() -> None:
    model = _svdf("f32", 1, 4, 3, 1, 3).model()
    found = diff(model, runs=4, per_tensor=True)
    assert found.layers is not None and found.outputs[0].real.relative < 1e-5
    assert not any(r.suspect for r in found.layers.rows)


def test_an_engine_is_looked_into_op_by_op(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    found = diff(F32, engine_b="litert", runs=2, per_tensor=True)
    assert found.outputs[0].real.relative < 1e-5
    assert found.layers is not None and len(found.layers.rows) == 5
    assert found.layers.rows[0].local.max_error < 1e-5
    save(damaged(F32, 1), tmp_path / "bad.tflite")
    bad = diff(F32, tmp_path / "bad.tflite", engine_b="litert", runs=2, per_tensor=True).layers
    assert bad is not None and [r.index for r in bad.rows if r.suspect] == [1]


def test_ops_that_quantise_on_the_fly_get_more_room() -> None:
    """int8 weights, floats in and out: how the floats are rounded is the engine's own affair."""

    def dense(scale: float) -> Model:
        graph = Graph()
        x = graph.input("x", DType.FLOAT32, (1, 16))
        y = graph.tensor("y", DType.FLOAT32, (1, 4))
        codes = np.random.default_rng(0).integers(-127, 128, (4, 16))
        w = graph.constant("w", codes, DType.INT8, quant=Quant.of(scale))
        graph.add("FULLY_CONNECTED", [x, w, None], [y], fused_activation_function="NONE")
        graph.outputs = [y]
        return Model([graph])

    suspects = []
    for change in (1.01, 1.1):
        found = diff(dense(0.01), dense(0.01 * change), runs=2, per_tensor=True, **EXACT).layers
        assert found is not None
        suspects.append(found.rows[0].suspect)
    assert suspects == [False, True]


@shared_models.NEEDS
def test_a_real_twin_is_matched_throughout() -> None:
    a, b = (shared_models.model(f"mlperftiny_resnet8_cifar10_{t}") for t in ("f32", "int8"))
    found = diff(
        a,
        b,
        runs=2,
        per_tensor=True,
        layer_runs=1,
        delegate_a=["reference"],
        delegate_b=["reference"],
    ).layers
    assert found is not None and len(found.rows) == 16
    assert not found.unmatched_test and not found.unmatched_reference


# -- matching -------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("fused", [(True, True), (True, False), (False, True), (False, False)])
def test_tensors_are_matched_under_other_names(
    fused: tuple[bool, bool], swap: bool, quantised: bool, ranges: dict[str, tuple[float, float]]
) -> None:
    a = Twin(fused[0])
    b = Twin(fused[1], ranges if quantised else None, prefix="z", swap=swap)
    pairs = match(
        a.graph,
        b.graph,
        zip(a.graph.inputs, b.graph.inputs, strict=True),
        zip(a.graph.outputs, b.graph.outputs, strict=True),
    )
    assert all(a.holds[p.a] == b.holds[p.b] for p in pairs)
    common = set(a.holds.values()) & set(b.holds.values())
    assert {b.holds[p.b] for p in pairs} >= common - {"x"}
    made = [t for op in b.graph.ops for t in op.outputs]
    assert [p.b for p in pairs] == [t for t in made if b.holds[t] in common]


@pytest.mark.parametrize("fused", [True, False])
def test_an_activation_may_be_in_a_range(
    fused: bool, ranges: dict[str, tuple[float, float]]
) -> None:
    a, b = Twin(fused), Twin(True, ranges, prefix="z", clamped=True)
    pairs = match(
        a.graph,
        b.graph,
        zip(a.graph.inputs, b.graph.inputs, strict=True),
        zip(a.graph.outputs, b.graph.outputs, strict=True),
    )
    assert {b.holds[p.b]: a.holds[p.a] for p in pairs} == {h: h for h in b.holds.values()}
    assert {p.how for p in pairs if b.holds[p.b] in ("stem", "sum", "down")} == {"range"}


def test_weights_tell_trained_siblings_apart_and_neighbours_the_damaged_one() -> None:
    a, b = Twin(), Twin(prefix="z", swap=True)
    ruined = next(t for t in b.graph.tensors if t.name == "zdown_w")
    ruined.data = RNG.normal(size=WEIGHTS["down"].shape)
    pairs = match(
        a.graph,
        b.graph,
        zip(a.graph.inputs, b.graph.inputs, strict=True),
        zip(a.graph.outputs, b.graph.outputs, strict=True),
    )
    how = {b.holds[p.b]: p.how for p in pairs if a.holds[p.a] == b.holds[p.b]}
    assert how["left"] == how["right"] == "weights" and how["down"] == "structure"


def test_a_normalisation_belongs_to_its_product() -> None:
    """CONV_2D, MUL, ADD, RELU against one CONV_2D with all of it folded in."""

    def net(folded: bool) -> tuple[Model, dict[str, str]]:
        graph, scale, shift = Graph(), RNG0.random(8) + 0.5, RNG0.normal(size=8)
        x = graph.input("in", DType.FLOAT32, (1, 4, 4, 4))
        w = RNG0.normal(size=(8, 1, 1, 4))
        made = w * scale.reshape(-1, 1, 1, 1) if folded else w
        bias = shift if folded else np.zeros(8)
        y = graph.tensor("conv" if not folded else "all", DType.FLOAT32, (1, 4, 4, 8))
        graph.add(
            "CONV_2D",
            [x, graph.constant("w", made, DType.FLOAT32), graph.constant("b", bias, DType.FLOAT32)],
            [y],
            padding="SAME",
            stride_w=1,
            stride_h=1,
            fused_activation_function="NONE",
        )
        for kind, constant in () if folded else (("MUL", scale), ("ADD", shift)):
            z = graph.tensor(kind.lower(), DType.FLOAT32, y.shape)
            graph.add(
                kind,
                [y, graph.constant(f"{kind} by", constant, DType.FLOAT32)],
                [z],
                fused_activation_function="NONE",
            )
            y = z
        end = graph.tensor("end", DType.FLOAT32, y.shape)
        graph.add("LOGISTIC", [y], [end])
        graph.outputs = [end]
        return Model([graph]), {}

    RNG0 = np.random.default_rng(1)
    a = net(False)[0]
    RNG0 = np.random.default_rng(1)
    b = net(True)[0]
    found = diff(a, b, runs=2, per_tensor=True, **EXACT)
    assert found.outputs[0].real.relative < 1e-5
    assert found.layers is not None
    assert [(r.reference_name, r.name) for r in found.layers.rows] == [
        ("add", "all"),
        ("end", "end"),
    ]
    assert found.layers.unmatched_reference == ["CONV_2D 'conv'", "MUL 'mul'"]


def test_names_lose_what_converters_add() -> None:
    assert name_pieces("a/Relu;b/BiasAdd;a/conv1") == {"a/Relu", "b/BiasAdd", "a/conv"}
    assert name_pieces("input_1_int8") == name_pieces("input_1:0") == {"input_1"}
    assert not name_pieces("Identity") and not name_pieces("StatefulPartitionedCall:0")

"""What corrections are for: a quantised model near its float one, also where channels are scaled
apart; and that they say what they did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sanderling import dump, load
from sanderling.errors import InputError, UnsupportedError
from sanderling.ir import Array, DType, Graph, Model, Op, Quant
from sanderling.optimize.calibration.calibrate import Calibration, Observer, calibrate
from sanderling.optimize.calibration.canonical import canonical
from sanderling.optimize.correcting.adaround import round_channels, round_jointly
from sanderling.optimize.correcting.calibrated import calibrated
from sanderling.optimize.correcting.corrections import CorrectedQuantiser
from sanderling.optimize.correcting.equalise import equalise, regions, trade
from sanderling.optimize.correcting.linear import codes, weighted_ops
from sanderling.optimize.correcting.probe import Probe
from sanderling.optimize.correcting.scale_correction import ScaleCorrection
from sanderling.optimize.correcting.sequential import FloatReference, SequentialRun
from sanderling.optimize.correcting.techniques import Techniques
from sanderling.optimize.judging.judge import Candidate, signal_to_noise
from sanderling.optimize.judging.report import Report
from sanderling.optimize.judging.target import Target
from sanderling.optimize.modes.recipe import Choice
from sanderling.optimize.quantize import quantize
from sanderling.optimize.writing.apply import Quantiser

from .support.mobile_net import mobile, samples, twist
from .support.quantize_command import F32, IMAGES
from .support.quantize_engines import ours

pytestmark = pytest.mark.usefixtures("uncompiled")
DATA = samples(24)
TEST = samples(12, seed=9)
PLAIN: dict[str, Any] = {"ranges": "minmax", "weights": "max", "corrections": "none"}


def logits(model: Model) -> list[Array]:
    """What the softmax reads, as reals."""
    probe = Probe(model, ["logits"], 1)
    return [probe.run({"x": x})["logits"] for x in TEST]


def ratio(wanted: Model, given: Model) -> float:
    pairs = zip(logits(wanted), logits(given), strict=True)
    return float(np.mean([signal_to_noise(w, g) for w, g in pairs]))


def test_codes_of_a_scalar() -> None:
    scalar = Graph().tensor("x", DType.INT8, (), quant=Quant.of(0.5, 3))
    made = codes(np.array(2.0, np.float32), scalar)
    assert made.shape == () and made.dtype == np.int8 and made == 7


# -- channels scaled apart ------------------------------------------------------------------------


def test_equalisation_saves_what_plain_ranges_lose() -> None:
    model = mobile()
    straight = logits(model)
    twist(model, 6)
    for one, other in zip(straight, logits(model), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-3, atol=1e-4)  # the same function
    plain, _ = quantize(model, "int8", DATA, **PLAIN)
    made, report = quantize(model, "int8", DATA)
    assert ratio(model, plain) < 12
    assert ratio(model, made) > 20
    chosen = next(c for c in report.candidates if c.chosen)
    assert "equalise" in chosen.name
    assert "equalise" in report.notes[0] and "dB" in report.notes[0]


def calibration(model: Model, data: list[Array]) -> Calibration:
    names = {t.name for region in regions(model.main) for t in region.tensors}
    return calibrate(Observer(model.copy(), 1, names), data)


def test_equalisation_leaves_the_float_model_as_it_was() -> None:
    model = canonical(mobile())
    twist(model, 5)
    before = model.copy()
    changed = equalise(model.main, calibration(model, DATA))
    assert {"deep0", "wide0", "deep1", "wide1"} <= set(changed)
    for x in TEST:
        np.testing.assert_allclose(ours(model, [x])[0], ours(before, [x])[0], rtol=1e-4, atol=1e-5)


def test_regions_end_where_a_factor_does_not_pass() -> None:
    found = {r.tensors[0].name: r for r in regions(mobile().main)}
    names = {n: [op.outputs[0].name for op in r.readers] for n, r in found.items()}
    assert names["deep0"] == ["point0"] and names["wide1"] == ["logits"]
    # A residual sum ties what its blocks add; all of them write it and all that follow read it.
    stream = found["stem"]
    assert {t.name for t in stream.tensors} >= {"stem", "point0", "sum0"}
    assert {op.outputs[0].name for op in stream.writers} == {"stem", "point0"}
    tanh = {t.name for r in regions(mobile("TANH").main) for t in r.tensors}
    assert "deep0" not in tanh and "wide0" not in tanh


def test_a_residual_stream_is_equalised_as_a_whole() -> None:
    model = canonical(mobile())
    stream = next(r for r in regions(model.main) if len(r.writers) > 1)
    before = model.copy()
    trade(model.main, stream, np.exp2(np.linspace(-5, 5, stream.channels)))
    plain, made = (
        quantize(model, "int8", DATA, ranges="minmax", weights="max", corrections=c)[0]
        for c in ("none", "equalise")
    )
    assert ratio(model, made) > ratio(model, plain) + 6
    changed = equalise(model.main, calibration(model, DATA))
    assert {t.name for t in stream.tensors} <= set(changed)
    for x in TEST:
        np.testing.assert_allclose(ours(model, [x])[0], ours(before, [x])[0], rtol=1e-3, atol=1e-4)


def test_a_channel_that_was_clamped_at_6_keeps_its_size() -> None:
    model = canonical(mobile("RELU6"))
    for op in (op for region in regions(model.main) for op in region.writers):
        tensor = op.inputs[2]
        assert tensor is not None and tensor.data is not None
        tensor.data = np.where(np.arange(tensor.data.size) == 0, 50, tensor.data / 40).astype("f4")
        weights = op.inputs[1]
        assert weights is not None and weights.data is not None
        weights.data = weights.data / 40
    before = model.copy()
    changed = equalise(model.main, calibration(model, DATA))
    assert changed and all(by[0] == 1 and by[1:].min() < 0.2 for by in changed.values())
    for x in TEST:
        np.testing.assert_allclose(ours(model, [x])[0], ours(before, [x])[0], rtol=1e-4, atol=1e-5)


def test_where_nothing_is_to_be_equalised_the_rest_is_still_corrected() -> None:
    model = mobile("RELU_N1_TO_1", widths=(12,))
    assert not regions(model.main)
    made, without = (
        quantize(model, "int8", DATA, ranges="minmax", weights="max", corrections=c)[0]
        for c in ("equalise,bias", "bias")
    )
    plain, _ = quantize(model, "int8", DATA, **PLAIN)
    assert bytes(dump(made)) == bytes(dump(without)) != bytes(dump(plain))


# -- bias and rounding ----------------------------------------------------------------------------


def corrected(model: Model, mode: str) -> CorrectedQuantiser:
    quantiser = Quantiser(model, [Choice(mode)])
    return CorrectedQuantiser(calibrated(quantiser, samples(40), threads=1))


@pytest.fixture(scope="module")
def quantiser() -> CorrectedQuantiser:
    return corrected(canonical(mobile(seed=8)), "int8")


def test_bias_correction_brings_the_means_back(quantiser: CorrectedQuantiser) -> None:
    shifts = {}
    given = quantiser.calibrated
    for techniques in (Techniques(weights="max"), Techniques(corrections=("bias",))):
        probe, wanted = Probe(quantiser.run(techniques).model, None, 1), given.observer
        off = [probe.run(f)["logits"] - wanted.run(f)["logits"] for f in given.correcting]
        shifts[techniques.corrections] = np.abs(np.mean(off, axis=0)).mean()
    assert shifts["bias",] < 0.5 * shifts[()]


def test_scale_correction_takes_a_shrinking_back(quantiser: CorrectedQuantiser) -> None:
    """Weights that say 10 % less than they should, and what the next layer reads with them."""
    made = quantiser.run(Techniques())
    weights = next(op for op in made.model.main.ops if op.name == "DEPTHWISE_CONV_2D").inputs[1]
    assert weights is not None and weights.quant is not None
    weights.quant = Quant.of(weights.quant.scale * np.float32(0.9), 0, weights.quant.axis)
    graph, correcting = made.float_model.main, quantiser.calibrated.correcting
    weights_of = {name: layer.weights for name, layer in weighted_ops(graph).items()}
    visit = ScaleCorrection(weights_of, FloatReference(graph, correcting))
    SequentialRun(made.model.main, correcting).run(visit)
    assert np.median(visit.factors["deep0"]) == pytest.approx(1 / 0.9, abs=0.01)
    others = [np.median(by) for name, by in visit.factors.items() if name != "deep0"]
    assert len(others) > 4 and others == pytest.approx([1.0] * len(others), abs=0.03)


def stem(model: Model) -> list[tuple[Array, Array]]:
    """(codes, scales) of the weights and of the bias."""
    op = next(op for op in model.main.ops if op.name == "CONV_2D")
    held = [t for t in op.inputs[1:] if t is not None and t.quant is not None]
    return [(np.asarray(t.data), t.quant.scale) for t in held if t.quant]


def test_the_scale_is_new_and_what_codes_and_bias_say_is_not(quantiser: CorrectedQuantiser) -> None:
    plain, made = (stem(quantiser.run(Techniques(corrections=c)).model) for c in ((), ("scale",)))
    (codes, scale), (bias, unit) = plain
    (same, scaled), (moved, new_unit) = made
    assert np.array_equal(codes, same)
    by = scaled / scale
    assert 0.8 <= by.min() < by.max() <= 1.25
    np.testing.assert_allclose(moved * new_unit, bias * unit, atol=float(new_unit.max()))


def test_the_sequential_run_is_one_unit_from_the_integer_kernels(
    quantiser: CorrectedQuantiser,
) -> None:
    made = quantiser.run(Techniques())
    last: dict[str, Array] = {}
    feeds = quantiser.calibrated.correcting[:2]
    run = SequentialRun(made.model.main, feeds)
    run.run(lambda op, r: last.update({t.name: r.values[t][1] for t in r.values}))
    model = made.model.copy()
    model.main.outputs = [t for op in model.main.ops for t in op.outputs]
    names = [t.name for t in model.main.outputs]
    exact = dict(zip(names, ours(model, [feeds[1]["x"]]), strict=True))
    compared = [n for n in last if n in exact and exact[n].dtype == np.int8]
    assert len(compared) > 6
    for name in compared:
        gap = np.abs(last[name].astype(int) - exact[name].astype(int))
        assert gap.max() <= 2 and np.mean(gap > 0) < 0.1, name


def test_rounding_makes_the_sums_right() -> None:
    rng = np.random.default_rng(0)
    mixed = rng.normal(size=(60, 90)) @ rng.normal(size=(90, 90)) + 3  # inputs that move together
    gram, weights = mixed.T @ mixed / 60, rng.normal(0, 20, (90, 7))
    codes = round_jointly(weights, gram, -127, 127)
    assert np.abs(codes - weights).max() < 1 + 1e-9  # up or down, never further
    error, plain = (np.square(mixed @ (c - weights)).sum() for c in (codes, np.rint(weights)))
    assert error < 0.4 * plain
    each = round_channels(weights, np.repeat(gram[..., None], 7, axis=2), -127, 127)
    assert np.square(mixed @ (each - weights)).sum() < 0.4 * plain


def test_adaround_helps_where_weights_are_the_noise(quantiser: CorrectedQuantiser) -> None:
    """int16 activations: what is left is the weights' rounding."""
    model = quantiser.calibrated.float_model
    fine = corrected(model, "int16x8")
    plain, better = (
        ratio(model, fine.run(Techniques(corrections=c)).model)
        for c in (("bias",), ("adaround", "bias"))
    )
    assert better > plain + 1


# -- choosing -------------------------------------------------------------------------------------


def candidate(snrs: list[float], agreements: list[float] | None = None) -> Candidate:
    same = [1.0] * len(snrs) if agreements is None else agreements
    return Candidate("c", float(np.mean(snrs)), float(np.mean(same)), snrs=snrs, agreements=same)


def test_a_dearer_way_must_be_better_beyond_chance() -> None:
    base = candidate([20.0, 22.0, 24.0, 21.0])
    assert candidate([20.5, 22.6, 24.4, 21.5]).beats(base)
    assert not candidate([25.0, 19.0, 26.0, 18.5]).beats(base)  # better on two, worse on two
    assert not candidate([20.0, 22.0, 24.01, 21.0]).beats(base)
    # Much noise less, but another first class: it takes more to be believed.
    assert not candidate([21.5, 22.1, 25.4, 21.2], [1, 1, 1, 0]).beats(base)


def test_the_report_says_which_way_was_chosen() -> None:
    """The last way that was tried may be one that was rejected."""
    kept, rejected = candidate([30.0]), candidate([20.0])
    kept.chosen = True
    report = Report("m", {}, 4, 1, 4, 1, [], [], candidates=[kept, rejected])
    assert report.chosen is kept
    report.candidates = []
    with pytest.raises(InputError, match="nothing was judged"):
        _ = report.chosen


def test_a_way_that_is_better_in_both_figures_is_kept() -> None:
    """Noise 0.9 dB less, but not surely; and the first class is right more often."""
    base = candidate([28.0, 29.0, 30.0, 28.2], [0, 1, 1, 0])
    better = candidate([32.9, 27.5, 30.5, 27.9], [1, 1, 1, 0])
    assert better.beats(base) and better.needed == 0.05
    assert better.gain == pytest.approx(0.9) and better.against == "c"
    assert not candidate([32.9, 27.5, 30.5, 27.9], [0, 1, 1, 0]).beats(base)


def test_a_surely_higher_agreement_outweighs_a_little_noise() -> None:
    base = candidate([28.0, 29.0, 30.0, 28.2] * 4, [0, 1, 0, 0] * 4)
    other = candidate([27.9, 29.1, 29.5, 28.1] * 4, [1, 1, 1, 1] * 4)
    assert other.beats(base) and not base.beats(other)


def test_the_story_says_why_the_first_way_stays() -> None:
    _, report = quantize(F32, "int8", [image[None] for image in IMAGES[:8]])
    assert report.candidates[0].chosen
    story = next(n for n in report.notes if "ways" in n)
    assert "none of the others gains what the rule asks" in story and "+0.0 dB" not in story
    assert report.samples + report.held_out == 8
    assert f"{report.held_out} samples held out of 8" in story
    for later in report.candidates[1:]:
        assert later.gain is not None and later.needed is not None and later.gain <= later.needed


def test_agreement_is_asked_of_classifiers_alone() -> None:
    """The same network without its softmax, under a name that tells nothing: a regressor."""
    model = mobile()
    graph = model.main
    graph.outputs = [graph.ops[-1].inputs[0] or graph.outputs[0]]
    graph.outputs[0].name, model.signatures = "y", []
    _, report = quantize(model, "int8", DATA, **PLAIN)
    assert report.kinds["y"]["kind"] == "values"
    assert [c.agreement for c in report.candidates] == [None] * len(report.candidates)
    _, report = quantize(model, "int8", DATA, output_kind="scores", **PLAIN)
    assert report.kinds["y"] == {"kind": "scores", "why": "stated"}
    assert report.candidates[0].agreement is not None
    _, report = quantize(model, "int8", DATA, target=Target(min_agreement=0.2), **PLAIN)
    assert any("Nothing tells that the outputs are scores" in n for n in report.notes)
    with pytest.raises(InputError, match="no kind of output"):
        quantize(model, "int8", DATA, output_kind={"y": "sounds"})


def test_scores_that_no_softmax_hears_are_not_judged() -> None:
    """One class is so improbable that its score needs no codes: the others are to be right."""
    model = mobile()
    dense = next(op for op in model.main.ops if op.name == "FULLY_CONNECTED")
    bias = dense.inputs[2]
    assert bias is not None and bias.data is not None
    far = np.where(np.arange(10) == 3, -500, bias.data)
    bias.data = far.astype(np.float32)
    made, report = quantize(model, "int8", DATA)
    assert max(c.snr for c in report.candidates) > 20
    assert ratio(model, made) < 20  # with what nobody hears


def test_the_report_tells_of_every_layer() -> None:
    model = mobile()
    made, report = quantize(model, "int8", DATA)
    rows = {row.name: row for row in report.layers}
    assert {"x", "stem", "deep0", "sum0", "logits", "probabilities"} <= set(rows)
    for row in rows.values():
        assert row.bits == 8 and row.scale > 0 and row.low <= row.high and row.clipped < 0.05
        assert row.snr is not None and row.snr > 15, row
        assert row.rmse_over_scale is not None and row.rmse_over_scale < 4
    # What the input loses is rounding alone: a step's uniform noise, 1 / sqrt(12).
    assert rows["x"].rmse_over_scale == pytest.approx(0.289, abs=0.01)
    assert rows["x"].local_rmse_over_scale == rows["x"].rmse_over_scale
    # By itself a layer rounds, and its weights are rounded; errors add up along the network.
    for name in ("stem", "deep0", "point0", "wide1", "logits"):
        alone, whole = rows[name].local_rmse_over_scale, rows[name].rmse_over_scale
        assert alone is not None and whole is not None and 0.2 < alone < 0.7, name
    assert (rows["logits"].rmse_over_scale or 0) > (rows["logits"].local_rmse_over_scale or 9)
    assert rows["stem"].weight_bits == 8 and 30 < (rows["stem"].weight_snr or 0) < 60
    assert rows["sum0"].weight_snr is None
    assert report.size_after == len(dump(made)) < report.size_before
    assert report.zipped_after < report.zipped_before
    assert sum(c.chosen for c in report.candidates) == 1 and len(report.candidates) >= 4


def test_a_comparison_has_no_row_and_does_no_harm() -> None:
    """Its result is no number: there is nothing to be off by."""
    graph = Graph("main")
    x = graph.input("x", DType.FLOAT32, (1, 4))
    y, larger = graph.tensor("y", DType.FLOAT32, (1, 4)), graph.tensor("larger", DType.BOOL, (1, 4))
    graph.add("RELU", [x], [y])
    graph.add("GREATER", [y, graph.constant("half", np.full((1, 4), 0.5, np.float32))], [larger])
    graph.outputs = [y, larger]
    rows = list(np.random.default_rng(0).normal(size=(12, 1, 4)).astype(np.float32))
    _, report = quantize(Model([graph]), "int8", rows, **PLAIN)
    assert {row.name for row in report.layers} == {"x", "y"}


def test_a_class_number_is_judged_by_the_scores_that_it_comes_from() -> None:
    model = mobile()
    graph = model.main
    number = graph.tensor("class", DType.INT64, (1,))
    axis = graph.constant("axis", np.array(-1, np.int32))
    graph.add("ARG_MAX", [graph.find("logits"), axis], [number], output_type="INT64")
    graph.outputs = [number]
    _, report = quantize(model, "int8", DATA, output_kind="classes", **PLAIN)
    assert 15 < report.candidates[0].snr < 60 and report.candidates[0].agreement is not None


def test_int16_activations_are_within_noise_of_float() -> None:
    model = mobile(seed=2)
    made, _ = quantize(model, "int16x8", DATA)
    wanted, given = logits(model), logits(made)
    assert ratio(model, made) > 32
    assert all(w.argmax() == g.argmax() for w, g in zip(wanted, given, strict=True))


# -- asking ---------------------------------------------------------------------------------------


def test_unknown_names_are_refused() -> None:
    for how in ({"corrections": "biass"}, {"weights": "best"}, {"ranges": "widest"}):
        with pytest.raises(InputError, match="there is no"):
            quantize(mobile(), "int8", DATA[:1], **how)  # type: ignore[arg-type]


def test_stated_ways_are_taken_as_they_are() -> None:
    _, report = quantize(
        mobile(), "int8", DATA, ranges="mse", weights="max", corrections=["bias", "adaround"]
    )
    assert [c.name for c in report.candidates] == ["mse ranges + max weights + adaround + bias"]


def test_strict_refuses_before_it_reads_data() -> None:
    graph = Graph("main")
    x = graph.input("x", DType.FLOAT32, (1, 4))
    y = graph.tensor("y", DType.FLOAT32, (1, 4))
    graph.append(Op("COS", [x], [y]))
    graph.outputs = [y]

    def never() -> Iterator[Array]:
        raise AssertionError("the data was read")
        yield

    with pytest.raises(UnsupportedError, match="COS"):
        quantize(Model([graph]), "int8", never(), strict=True)


def test_a_saved_model_says_the_same() -> None:
    made, _ = quantize(mobile(), "int8", DATA[:6], **PLAIN)
    again = load(bytes(dump(made)))
    assert np.array_equal(ours(made, [TEST[0]])[0], ours(again, [TEST[0]])[0])

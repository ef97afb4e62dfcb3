"""Quantisation-aware training: on the digits model and the digits that come with the package."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

import sanderling
from sanderling.errors import InputError
from sanderling.ir import Array, DType, Graph, Model, Signature
from sanderling.optimize.modes.integer_rules import broken
from tests.support.command_line import call
from tests.support.cpu_conformance import run

torch = pytest.importorskip("torch", reason="PyTorch is the extra [train]")

from sanderling.training.bits import levels  # noqa: E402
from sanderling.training.constraint import Constraint, stored_values, weights_of  # noqa: E402
from sanderling.training.constraints.clusters import Clusters  # noqa: E402
from sanderling.training.constraints.quantisation import Quantisation  # noqa: E402
from sanderling.training.constraints.sparsity import Sparsity  # noqa: E402
from sanderling.training.differentiable.twin import Twin  # noqa: E402
from sanderling.training.loop.train import Schedule, train  # noqa: E402

DATA = files("sanderling") / "data"
QUICK = Schedule(epochs=2, batch=32, rate=1e-3)
PLAIN = {"ranges": "minmax", "corrections": "none"}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model() -> Model:
    return sanderling.load(DATA / "digits_f32.tflite")


@pytest.fixture(scope="module")
def digits(model: Model) -> tuple[Array, Array]:
    shape = model.main.inputs[0].shape
    with np.load(str(DATA / "digits_test.npz")) as found:
        images = found["images"].reshape(-1, *shape[1:]).astype(np.float32) / 16
        return images, found["labels"].astype(np.int64)


def _answers(model: Model, images: Array) -> Array:
    session = model.compile(["reference"])
    return np.concatenate([run(session, [x[None]])[0] for x in images])


def _twin_of(rule: Quantisation, model: Model, images: Array) -> Twin:
    """The twin with its fake quantisation, before any step."""
    twin = Twin(rule.prepared(model, [images], []))
    rule.watch(twin.model)
    rule.begin(twin.parameters_of, 1)
    twin.constraints = [rule]
    return twin


# The softmax of 16 bits is a table of 513 rows.
NEAR = {"int8": 1e-4, "int16x8": 1e-3, "int8x4": 1e-4, "int8x2": 1e-4, "weight-int4": 1e-4}


@pytest.mark.parametrize("mode", NEAR)
def test_the_forward_pass_is_what_the_file_answers(
    mode: str, model: Model, digits: tuple[Array, Array]
) -> None:
    """Before training too: it starts as the post-training result answers."""
    images = digits[0][:40]
    rule = Quantisation(mode, **PLAIN)
    twin = _twin_of(rule, model, images)
    with torch.no_grad():
        (faked,) = twin(images)
    written = _answers(rule.finished(twin.written()), images)
    # A tie that kernels round the other way may change a code behind it.
    assert (np.abs(faked.numpy() - written) <= NEAR[mode]).mean() >= 0.98
    assert (faked.numpy().argmax(1) == written.argmax(1)).all()
    assert rule.start is not None
    assert np.array_equal(written, _answers(rule.start.made.model, images))


@pytest.mark.parametrize(("mode", "kind"), [("int16x8", "i64"), ("int8x2", "i2")])
def test_litert_reads_what_was_trained(
    mode: str, kind: str, model: Model, digits: tuple[Array, Array]
) -> None:
    interpreter = pytest.importorskip("ai_edge_litert.interpreter")
    rule = Quantisation(mode, minimum=16, **PLAIN)
    made = train(model, digits[0][:64], [rule], schedule=replace(QUICK, epochs=1)).model
    assert kind in {t.dtype.short for t in made.main.constants}
    theirs = interpreter.Interpreter(model_content=bytes(sanderling.dump(made)))
    theirs.allocate_tensors()
    (given,), (told,) = theirs.get_input_details(), theirs.get_output_details()
    images, found = digits[0][:40], []
    for image in images:
        theirs.set_tensor(given["index"], image[None])
        theirs.invoke()
        found.append(theirs.get_tensor(told["index"])[0].copy())
    ours = _answers(made, images)
    assert np.abs(ours - np.stack(found)).mean() < 1e-3
    assert (ours.argmax(1) == np.stack(found).argmax(1)).mean() >= 0.95


def test_gradients_reach_scales_and_weights(model: Model, digits: tuple[Array, Array]) -> None:
    rule = Quantisation("int8", **PLAIN)
    twin = _twin_of(rule, model, digits[0][:40])
    twin(digits[0][:8])[0].square().sum().backward()
    learnt = rule.parameters()
    assert learnt and all(p.grad is not None and p.grad.abs().sum() > 0 for p in learnt)
    assert all(p.grad is not None for p in twin.parameters())


@pytest.mark.parametrize("scales", ["learned", "moving", "frozen"])
def test_few_bits_come_back(scales: str, model: Model, digits: tuple[Array, Array]) -> None:
    """Weights of two bits lose most after training; trained for, they keep it."""
    images, labels = digits
    rule = Quantisation("weight-int2", scales, minimum=16, **PLAIN)
    found = train(model, images, [rule], schedule=replace(QUICK, epochs=6, rate=3e-3))
    assert rule.start is not None
    before, after = (
        (_answers(m, images[:200]).argmax(1) == labels[:200]).mean()
        for m in (rule.start.made.model, found.model)
    )
    assert after > before + 0.1
    stored = {t.dtype for t in found.model.main.constants if t.quant is not None}
    assert DType.INT2 in stored


def test_scales_are_learnt_and_written(model: Model, digits: tuple[Array, Array]) -> None:
    rule = Quantisation("int8x4", **PLAIN)
    found = train(model, digits[0][:96], [rule], schedule=QUICK)
    assert found.kept > 0
    first = {t.name: t.quant for t in rule.start.made.model.main.tensors if t.quant is not None}
    moved = [
        t.name
        for t in found.model.main.tensors
        if t.quant is not None and not np.array_equal(t.quant.scale, first[t.name].scale)
    ]
    assert moved
    assert rule.problems(found.model) == []


def test_a_start_that_is_best_is_kept(model: Model, digits: tuple[Array, Array]) -> None:
    """Steps far too large make it worse: the file is the post-training result."""
    rule = Quantisation("int8", **PLAIN)
    found = train(model, digits[0][:96], [rule], schedule=replace(QUICK, rate=0.3))
    assert found.kept == 0 and found.start is not None and rule.start is not None
    assert all(e.held_out >= found.start.held_out for e in found.epochs)
    answers = [_answers(m, digits[0][:40]) for m in (found.model, rule.start.made.model)]
    assert np.array_equal(*answers)


@pytest.mark.parametrize(
    "before",
    [
        [Sparsity(0.5, every=2)],
        [Clusters(8, per_channel=True)],
        [Sparsity(0.5, every=2), Clusters(8, per_channel=True)],
    ],
    ids=["PQAT", "CQAT", "PCQAT"],
)
def test_constraints_combine(
    before: list[Constraint], model: Model, digits: tuple[Array, Array]
) -> None:
    rules = [*before, Quantisation("int8", **PLAIN)]
    found = train(model, digits[0][:160], rules, schedule=QUICK)
    assert [rule.problems(found.model) for rule in rules] == [[]] * len(rules)
    for tensor in weights_of(found.model):
        assert tensor.dtype is DType.INT8 and stored_values(tensor) is not None


BROKEN = {
    "have a zero point": lambda op: _set(op.operand(1), zero_point=np.array([3])),
    "is not that of its sums": lambda op: _set(op.operand(2), scale=np.array([0.5], np.float32)),
    "use the lowest code": lambda op: _fill(op.operand(1), -128),
}


def _set(tensor: object, **parts: Array) -> None:
    tensor.quant = replace(tensor.quant, **parts)  # type: ignore[attr-defined]


def _fill(tensor: object, value: int) -> None:
    tensor.data = np.full_like(tensor.values, value)  # type: ignore[attr-defined]


@pytest.mark.parametrize("sentence", BROKEN)
def test_broken_rules_are_found(sentence: str) -> None:
    model = sanderling.load(DATA / "digits_int8.tflite")
    assert broken(model) == []
    op = next(op for op in model.main.ops if op.name == "FULLY_CONNECTED")
    BROKEN[sentence](op)
    assert any(sentence in text for text in broken(model))


WRONG = {
    "scales cannot be 'learnt'": lambda m: Quantisation("int8", "learnt"),
    "there is no mode 'int7'": lambda m: Quantisation("int7").settings.rules,
    "quantisation has no ranges yet": lambda m: Quantisation("int8").watch(m),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_what_cannot_be_is_a_sentence(model: Model, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        WRONG[sentence](model)


# -- the verb -------------------------------------------------------------------------------------


@pytest.fixture
def samples(tmp_path: Path, digits: tuple[Array, Array]) -> Path:
    path = tmp_path / "digits.npz"
    np.savez(path, images=digits[0][:96], labels=digits[1][:96])
    return path


def test_the_verb_writes_what_the_function_returns(tmp_path: Path, samples: Path) -> None:
    made, told = tmp_path / "made.tflite", tmp_path / "told.json"
    options = [
        "--weights",
        "int4",
        "--labels",
        "labels",
        "--epochs",
        "1",
        "--corrections",
        "none",
        "--ranges",
        "minmax",
    ]
    call(
        "qat",
        DATA / "digits_f32.tflite",
        "-o",
        made,
        "--data",
        samples,
        *options,
        "--json",
        told,
        "--report",
        tmp_path / "page.html",
    )
    record = json.loads(told.read_text())
    assert record["schema"] == "sanderling.qat/1" and record["mode"] == "int8x4"
    assert record["modes"] == {"int8x4": 5} and len(record["epochs"]) == 1
    assert record["problems"] == [] and record["faithful"]["same_class"] == 1.0
    assert {"agreement", "accuracy", "snr_db"} <= set(record["compared"])
    assert {"difference", "mcnemar"} <= set(record["compared"]["accuracy"])
    assert record["layers"] and "<html" in (tmp_path / "page.html").read_text()
    other, _ = sanderling.qat(
        DATA / "digits_f32.tflite",
        samples,
        "int8",
        weights="int4",
        labels="labels",
        corrections="none",
        ranges="minmax",
        schedule=Schedule(epochs=1, batch=64, rate=1e-3, mix=0.5),
    )
    assert made.read_bytes() == bytes(sanderling.dump(other))


def test_names_of_a_signature_do_not_matter(model: Model, digits: tuple[Array, Array]) -> None:
    named = model.copy()
    main = named.main
    ends = {"x": main.inputs[0]}, {"y": main.outputs[0]}
    named.signatures = [Signature("serve", main, *ends)]
    plan = Schedule(epochs=1, batch=64, rate=1e-3)
    _, report = sanderling.qat(named, digits[0][:64], "weight", weights="int4", schedule=plan)
    assert report.compared["samples"] == 6 and report.faithful["same_class"] == 1.0


HARD = ["--epochs", "1", "--corrections", "none", "--ranges", "minmax", "--held-out", "0.4"]


def test_as_few_bits_as_the_target_allows(tmp_path: Path, samples: Path) -> None:
    made, told = tmp_path / "made.tflite", tmp_path / "told.json"
    options = ["--max-drop", "0.3", "--mode", "weight", "--minimum", "16", "--json", told]
    call("qat", DATA / "digits_f32.tflite", "-o", made, "--data", samples, *HARD, *options)
    record = json.loads(told.read_text())
    assert record["target"]["met"] and record["target"]["figure"] == "agreement"
    assert record["bits"] and set(record["bits"].values()) <= {2, 4}
    chosen = next(t for t in record["trials"] if t["chosen"])
    assert chosen["meets"] and chosen["size"] < record["trials"][0]["size"] / 4
    stored = {t.dtype for t in sanderling.load(made).main.constants if t.quant is not None}
    assert stored & {DType.INT4, DType.INT2}


def test_a_target_and_bits_contradict_each_other(tmp_path: Path, samples: Path) -> None:
    made = tmp_path / "made.tflite"
    command = ["qat", DATA / "digits_f32.tflite", "-o", made, "--data", samples, *HARD]
    wrong = call(*command, "--max-drop", "0.01", "--weights", "int4", status=2)
    assert "a target finds the bits of the weights" in wrong.stderr and not made.exists()


def test_levels_take_the_cheapest_step_first(model: Model, digits: tuple[Array, Array]) -> None:
    found = levels(model, [digits[0][:64]], "int8", 0, 0)
    sizes = [sum(level.bits.values()) + 8 * (level.layers - len(level.bits)) for level in found]
    assert (
        sizes == sorted(sizes, reverse=True) and found[0].bits == {} and found[0].name == "8 bits"
    )
    assert len({level.name for level in found}) == len(found)
    ratios = [step.ratio for step in found[-1].steps]
    assert ratios == sorted(ratios) and min(found[-1].bits.values()) == 2


def test_a_single_score_is_judged_by_its_threshold(digits: tuple[Array, Array]) -> None:
    """Is it a digit above four? One output: with labels by a threshold, without by its error."""
    images, is_large = digits[0][:160], (digits[1][:160] > 4).astype(np.int64)
    for last, threshold in (("LOGISTIC", "0.5"), (None, "0")):
        network = _one_score(last)
        plan = Schedule(epochs=8, batch=16, rate=1e-2, held_out=0.25)
        learnt = train(network, images, labels=is_large, schedule=plan).model
        _, report = sanderling.qat(
            learnt, images, "weight", weights="int4", labels=is_large, minimum=16, schedule=plan
        )
        right = report.compared["accuracy"]
        assert f"above {threshold} means class 1" in report.compared["judged_by"]
        assert 0.6 < right["before"] <= 1 and right["after"] > 0.6
        assert "same_class" not in report.faithful and "agreement" not in report.compared
    short = replace(plan, epochs=1)
    _, report = sanderling.qat(learnt, images, "weight", minimum=16, schedule=short)
    assert "relative error" in report.compared["judged_by"] and "accuracy" not in report.compared


def _one_score(last: str | None) -> Model:
    graph, rng = Graph("main"), np.random.default_rng(0)
    x = graph.input("image", DType.FLOAT32, (1, 8, 8, 1))
    flat = graph.tensor("flat", DType.FLOAT32, (1, 64))
    shape = graph.constant("shape", np.array([1, 64], np.int32))
    graph.add("RESHAPE", [x, shape], [flat], new_shape=[1, 64])
    for name, size, units, act in (("one", 64, 16, "RELU"), ("two", 16, 1, "NONE")):
        values = (rng.normal(size=(units, size)) / np.sqrt(size)).astype(np.float32)
        w, b = (
            graph.constant(f"{name}/w", values),
            graph.constant(f"{name}/b", np.zeros(units, "f4")),
        )
        y = graph.tensor(name, DType.FLOAT32, (1, units))
        graph.add("FULLY_CONNECTED", [flat, w, b], [y], fused_activation_function=act)
        flat = y
    if last is not None:
        flat = graph.tensor("share", DType.FLOAT32, (1, 1))
        graph.add(last, [y], [flat])
    graph.outputs = [flat]
    return Model([graph])


def test_the_verb_says_what_it_did(tmp_path: Path, samples: Path) -> None:
    options = ["--mode", "weight", "--weights", "int4", "--epochs", "1"]
    options += ["--prune", "0.5", "--clusters", "8"]
    shown = call("qat", DATA / "digits_f32.tflite", "--data", samples, *options)
    for words in ("weight-int4", "held out", "forward", "agreement"):
        assert words in shown.stdout
    assert "nothing is written" in shown.stderr


def test_without_pytorch_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    found = call("qat", DATA / "digits_f32.tflite", "--data", "none.npz", status=2)
    assert "pip install 'sanderling[train]'" in found.stderr and "torch" in found.stderr


KILLED = """
import sys, numpy, sanderling, torch
from sanderling.training.loop import train as engine
torch.set_num_threads(1)
engine.SAVED_EVERY = 0.0
model = sanderling.load(sys.argv[1])
images = numpy.load(sys.argv[2])["images"]
rules = [sanderling.Quantisation("int8x4", ranges="minmax", corrections="none")]
plan = sanderling.Schedule(epochs=400, batch=32, rate=1e-3)
sanderling.train(model, images, rules, schedule=plan, checkpoint=sys.argv[3])
"""


def test_a_killed_run_goes_on_to_the_same_file(tmp_path: Path, samples: Path, model: Model) -> None:
    """Another process is killed within an epoch; the run goes on here."""
    kept, few = tmp_path / "run.pt", replace(QUICK, epochs=400, patience=3)
    images = np.load(samples)["images"]

    def trained(checkpoint: Path | None) -> bytes:
        rules = [Quantisation("int8x4", **PLAIN)]
        found = train(model, images, rules, schedule=few, checkpoint=checkpoint)
        assert found.kept > 0
        return bytes(sanderling.dump(found.model))

    code = KILLED.replace("rate=1e-3", "rate=1e-3, patience=3")
    command = [sys.executable, "-c", code, str(DATA / "digits_f32.tflite"), str(samples), str(kept)]
    process = subprocess.Popen(command)
    try:
        while not kept.exists() and process.poll() is None:
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    assert kept.exists()
    assert trained(kept) == trained(None)

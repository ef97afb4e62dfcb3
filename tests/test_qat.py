"""Quantisation-aware training: on the digits model and the digits that come with the package."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest

import sanderling
from sanderling.errors import InputError
from sanderling.ir import Array, DType, Model
from sanderling.optimize.integer_rules import broken
from tests.support.cpu_conformance import run

torch = pytest.importorskip("torch", reason="PyTorch is the extra [train]")

from sanderling.training.clusters import Clusters  # noqa: E402
from sanderling.training.constraint import Constraint, stored_values, weights_of  # noqa: E402
from sanderling.training.quantisation import Quantisation  # noqa: E402
from sanderling.training.sparsity import Sparsity  # noqa: E402
from sanderling.training.train import Schedule, train  # noqa: E402
from sanderling.training.twin import Twin  # noqa: E402

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
    rule = Quantisation("int8", **PLAIN)
    found = train(model, digits[0][:96], [rule], schedule=QUICK)
    first = {t.name: t.quant for t in rule.start.made.model.main.tensors if t.quant is not None}
    moved = [
        t.name
        for t in found.model.main.tensors
        if t.quant is not None and not np.array_equal(t.quant.scale, first[t.name].scale)
    ]
    assert moved
    assert rule.problems(found.model) == []


@pytest.mark.parametrize(
    "before",
    [[Sparsity(0.5, every=2)], [Clusters(16)], [Sparsity(0.5, every=2), Clusters(16)]],
    ids=["PQAT", "CQAT", "PCQAT"],
)
def test_constraints_combine(
    before: list[Constraint], model: Model, digits: tuple[Array, Array]
) -> None:
    rules = [*before, Quantisation("int8", **PLAIN)]
    found = train(model, digits[0][:160], rules, schedule=QUICK)
    assert rules[-1].problems(found.model) == []
    if isinstance(before[0], Sparsity):
        assert before[0].problems(found.model) == []
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

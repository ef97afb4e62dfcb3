"""The differentiable twin: the conformance table's float cases, gradients, weights written back."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

import sanderling
from sanderling.errors import InputError
from sanderling.ir import DType, Graph, Model, Op
from tests.conformance.cases import CASES
from tests.conformance.harness import Case, difference
from tests.support.cpu_conformance import run
from tests.support.shared_models import NEEDS
from tests.support.shared_models import model as shared_model

torch = pytest.importorskip("torch", reason="PyTorch is the extra [train]")

from sanderling.delegates.cpu.kernels.elementwise.operators import EXPRESSIONS  # noqa: E402
from sanderling.training.differentiable.twin import ALL_FUNCTIONS, CONTROL, Twin  # noqa: E402

FLOAT_TOLERANCE = 1e-5  # of the largest output
MOST_CASES = 4  # of an operator


def _cases() -> list[Case]:
    """Cases of floats alone, whose op the twin has a function or an expression for; of the others
    the definition is run, and there is nothing to compare."""
    found: dict[str, list[Case]] = {}
    for case in CASES:
        known = case.op in ALL_FUNCTIONS or case.op in EXPRESSIONS or case.op in CONTROL
        types = {t.dtype for t in (*case.inputs, *(case.out or ())) if t is not None}
        if known and case.build is not None:
            types |= {t.dtype.short for g in case.build().graphs for t in g.tensors}
        fed = any(t is not None and not t.is_constant for t in case.inputs)
        floats = types <= {"f32", "i32", "i64", "bool"} and "f32" in types
        if known and floats and not _is_extreme(case) and (fed or case.build is not None):
            found.setdefault(case.op, []).append(case)
    most = 10**6 if os.environ.get("SANDERLING_TEST_ALL") else MOST_CASES
    return [c for rows in found.values() for c in rows[:: -(-len(rows) // most)]]


def _is_extreme(case: Case) -> bool:
    """Infinities and NaN are no numbers to train with."""
    arrays = (np.asarray(t.data) for t in case.inputs if t is not None and t.data is not None)
    floats = [a for a in arrays if a.dtype.kind == "f"]
    named = any(word in case.name for word in ("special", "NaN", "inf"))
    return named or any(not (np.abs(a) < 1e30).all() for a in floats)


@pytest.mark.parametrize("case", _cases(), ids=lambda c: c.id)
def test_answers_are_the_definitions(case: Case) -> None:
    model = case.model()
    twin = Twin(model)
    arrays = [np.asarray(a) for a in case.arrays(model, np.random.default_rng(0))]
    expected = run(model.compile(["reference"]), arrays)
    with torch.no_grad():
        found = twin(*arrays)
    loose = replace(case, tol=case.tol + FLOAT_TOLERANCE)
    for ours, theirs in zip(found, expected, strict=True):
        assert difference(loose, ours.numpy(), theirs) is None


def test_every_function_has_a_case() -> None:
    assert {*ALL_FUNCTIONS, *CONTROL} - {c.op for c in _cases()} == set()


def _small() -> Model:
    """A convolution, a depthwise one, a residual sum, a mean and a fully connected layer."""
    rng = np.random.default_rng(3)
    g = Graph("main")

    def weights(name: str, *shape: int) -> object:
        return g.constant(name, rng.normal(0, 0.5, shape).astype(np.float32))

    x = g.input("x", DType.FLOAT32, (1, 6, 6, 3))
    a = g.tensor("a", DType.FLOAT32, (1, 6, 6, 4))
    window = {"padding": "SAME", "stride_h": 1, "stride_w": 1}
    g.insert(
        Op(
            "CONV_2D",
            [x, weights("w0", 4, 3, 3, 3), weights("b0", 4)],
            [a],
            {**window, "fused_activation_function": "RELU6"},
        )
    )
    b = g.tensor("b", DType.FLOAT32, (1, 6, 6, 4))
    g.insert(
        Op(
            "DEPTHWISE_CONV_2D",
            [a, weights("w1", 1, 3, 3, 4), weights("b1", 4)],
            [b],
            {**window, "depth_multiplier": 1},
        )
    )
    c = g.tensor("c", DType.FLOAT32, (1, 6, 6, 4))
    g.insert(Op("ADD", [a, b], [c]))
    d = g.tensor("d", DType.FLOAT32, (1, 4))
    g.insert(Op("MEAN", [c, g.constant("axes", np.array([1, 2], np.int32))], [d]))
    e = g.tensor("e", DType.FLOAT32, (1, 5))
    g.insert(Op("FULLY_CONNECTED", [d, weights("w2", 5, 4), weights("b2", 5)], [e]))
    g.outputs = [e]
    return Model([g])


def test_gradients_are_slopes() -> None:
    twin = Twin(_small())
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 6, 6, 3)).astype(np.float32))

    def loss() -> torch.Tensor:
        return (twin(x)[0].double() ** 2).sum()

    loss().backward()
    weight = twin.weights["w2"]
    slope = weight.grad[1, 2].item()
    with torch.no_grad():
        weight[1, 2] += 1e-2
        above = loss().item()
        weight[1, 2] -= 2e-2
        below = loss().item()
    assert slope == pytest.approx((above - below) / 2e-2, rel=1e-2)
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in twin.parameters())


def test_weights_within_a_composite_are_learnt() -> None:
    """A converter puts attention, for one, into a graph of its own."""
    rng = np.random.default_rng(4)
    inner, main = Graph("attention"), Graph("main")
    a = inner.input("a", DType.FLOAT32, (2, 3))
    w = inner.constant("w", rng.normal(size=(3, 3)).astype(np.float32))
    b, c = (inner.tensor(name, DType.FLOAT32, (2, 3)) for name in "bc")
    inner.add("BATCH_MATMUL", [a, w], [b])
    inner.add("SOFTMAX", [b], [c], beta=1.0)
    inner.outputs = [c]
    x, y = main.input("x", DType.FLOAT32, (2, 3)), main.tensor("y", DType.FLOAT32, (2, 3))
    named = {"name": "odml.scaled_dot_product_attention", "version": 1}
    called = {"decomposition_subgraph_index": inner, **named}
    main.insert(Op("STABLEHLO_COMPOSITE", [x], [y], called))
    main.outputs = [y]
    twin = Twin(Model([main, inner]))
    given = rng.normal(size=(2, 3)).astype(np.float32)
    twin(given)[0].square().sum().backward()
    assert twin.frozen == {} and twin.weights["w"].grad.abs().sum() > 0
    with torch.no_grad():
        twin.weights["w"].mul_(0.5)
    expected = run(twin.written().compile(["reference"]), [given])[0]
    assert np.allclose(twin(given)[0].detach().numpy(), expected, atol=1e-6)


def test_weights_go_back_and_nothing_else_changes() -> None:
    model = _small()
    twin = Twin(model)
    assert bytes(sanderling.dump(twin.written())) == bytes(sanderling.dump(model))
    with torch.no_grad():
        twin.weights["w0"].mul_(0.5)
    made = twin.written()
    changed = [
        a.name
        for a, b in zip(model.main.tensors, made.main.tensors, strict=True)
        if a.is_constant and not np.array_equal(a.values, b.values)
    ]
    assert changed == ["w0"]
    x = np.ones((1, 6, 6, 3), np.float32)
    expected = run(made.compile(["reference"]), [x])[0]
    assert np.allclose(twin(x)[0].detach().numpy(), expected, atol=1e-5)


def test_a_batch_of_any_size() -> None:
    twin = Twin(_small())
    x = np.random.default_rng(1).normal(size=(4, 6, 6, 3)).astype(np.float32)
    whole = twin(x)[0].detach().numpy()
    alone = np.concatenate([twin(x[i : i + 1])[0].detach().numpy() for i in range(4)])
    assert np.allclose(whole, alone, atol=1e-5)


def test_what_has_no_gradient_is_named() -> None:
    g = Graph("main")
    x = g.input("x", DType.FLOAT32, (1, 4))
    y, z = g.tensor("y", DType.FLOAT32, (1, 4)), g.tensor("z", DType.FLOAT32, (1, 4))
    g.insert(Op("MUL", [x, g.constant("w", np.ones(4, np.float32))], [y]))
    exclusive = {"exclusive": False, "reverse": False}
    g.insert(Op("CUMSUM", [y, g.constant("axis", np.int32(1))], [z], exclusive))
    g.outputs = [z]
    twin = Twin(Model([g]))
    (reason,) = twin.frozen.values()
    assert reason == "it has no function in PyTorch here"
    (found,) = twin(np.arange(4, dtype=np.float32)[None])
    assert found.tolist() == [[0.0, 1.0, 3.0, 6.0]] and not found.requires_grad


def test_a_quantised_model_cannot_be_trained() -> None:
    from importlib.resources import files

    twin = Twin(sanderling.load(files("sanderling") / "data" / "digits_int8.tflite"))
    with pytest.raises(InputError, match="nothing can be trained"):
        twin.check_trainable()


@NEEDS
@pytest.mark.parametrize(
    "name", ["mlperftiny_resnet8_cifar10_f32", "openwakeword_hey_jarvis_f32_if"]
)
def test_whole_models(name: str) -> None:
    model = sanderling.load(shared_model(name))
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=t.shape).astype(np.float32) for t in model.main.inputs]
    found = Twin(model)(*arrays)
    expected = run(model.compile(["reference"]), arrays)
    for ours, theirs in zip(found, expected, strict=True):
        assert np.abs(ours.detach().numpy() - theirs).max() <= 1e-5 * max(np.ptp(theirs), 1e-3)

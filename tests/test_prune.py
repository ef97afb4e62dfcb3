"""Pruning: structures, one-shot by second-order statistics, the verb and its report."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import pytest

import sanderling
from sanderling.errors import InputError
from sanderling.ir import Array, DType, Graph, Model

torch = pytest.importorskip("torch", reason="PyTorch is the extra [train]")

from sanderling.training.constraint import weights_of  # noqa: E402
from sanderling.training.one_shot import Moments, prune_at_once, solved  # noqa: E402
from sanderling.training.segments import segments  # noqa: E402
from sanderling.training.sparsity import Sparsity  # noqa: E402
from sanderling.training.structure import Structure  # noqa: E402
from sanderling.training.twin import Twin  # noqa: E402

DATA = files("sanderling") / "data"


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model() -> Model:
    return sanderling.load(DATA / "digits_f32.tflite")


@pytest.fixture(scope="module")
def images() -> Array:
    with np.load(str(DATA / "digits_test.npz")) as found:
        return found["images"].reshape(-1, 8, 8, 1).astype(np.float32) / 16


def _scores(model: Model, images: Array) -> Array:
    with torch.no_grad():
        return np.asarray(Twin(model)(images)[0].numpy())


def _shares(model: Model, share: float, structure: str = "unstructured") -> dict[str, float]:
    pattern = Structure.of(structure)
    return {t.name: share for t in weights_of(model) if not pattern.refuses(t.shape)}


# -- structures -----------------------------------------------------------------------------------


def test_the_smallest_go() -> None:
    scores = torch.tensor([[4.0, 1.0, 3.0, 2.0], [8.0, 7.0, 5.0, 6.0]])
    kept = Structure.of("unstructured").kept(scores, 0.5, 4)
    assert kept.tolist() == [[False] * 4, [True] * 4]
    of_four = Structure.of("2:4").kept(scores, 0.5, 4)
    assert of_four.tolist() == [[True, False, True, False], [True, True, False, False]]
    blocks = Structure.of("2x2").kept(scores, 0.5, 4)
    assert blocks.tolist() == [[True, True, False, False]] * 2
    assert Structure.of("1x4").kept(scores, 0.0, 4).all()


def test_groups_do_not_cross_taps() -> None:
    """Six input channels, two taps: groups of four are within the channels of a tap, and of the two
    channels that are left over none has to go."""
    kept = Structure.of("2:4").kept(torch.arange(12.0).reshape(1, 12), 0.5, 6).reshape(2, 6)
    assert kept.tolist() == [[False, False, True, True, True, True]] * 2


@pytest.mark.parametrize("text", ["4:2", "0x4", "two", "2:4:8", "1x"])
def test_no_such_structure(text: str) -> None:
    with pytest.raises(InputError, match="no structure"):
        Structure.of(text)


def test_what_is_too_small_is_refused_with_a_reason() -> None:
    assert "3 input channels" in str(Structure.of("2:4").refuses((16, 3, 3, 3)))
    assert "smaller than a block" in str(Structure.of("1x64").refuses((16, 3, 3, 3)))
    assert Structure.of("1x16").refuses((16, 3, 3, 3)) is None


# -- one shot -------------------------------------------------------------------------------------


def test_weights_that_stay_make_up_for_those_that_go() -> None:
    """Two equal inputs: one weight can carry what both carried."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((400, 3)).astype(np.float32))
    x[:, 1] = x[:, 0]
    moments = Moments.of(3)
    moments.add(x, x)
    before = torch.tensor([[1.0, 0.9, 2.0, 0.5]])
    pattern = Structure.of("unstructured")
    made = solved(before, moments, lambda s, part: pattern.kept(s, part / 3, 3))
    wanted = torch.tensor([[1.9, 0.0, 2.0, 0.5]])
    assert torch.allclose(made, wanted, atol=0.05)


@pytest.mark.parametrize("structure", ["unstructured", "2:4", "1x4", "4x1"])
def test_one_shot_is_nearer_than_magnitude(model: Model, images: Array, structure: str) -> None:
    shares = _shares(model, 0.5, structure)
    found = prune_at_once(model, [images[:128]], shares, structure)
    rule = Sparsity(0.5, structure)
    assert rule.problems(found.model) == [] != rule.problems(model)
    plain = Twin(model)
    rule.begin({t: w.detach() for t, w in plain.parameters_of.items()}, 0)
    plain.constraints = [rule]
    with torch.no_grad():
        (by_size,) = plain(images[128:])
    wanted = _scores(model, images[128:])
    apart = [
        np.abs(s - wanted).mean() for s in (_scores(found.model, images[128:]), by_size.numpy())
    ]
    assert apart[0] < 0.5 * apart[1]
    assert all(layer.error is not None and layer.error < 0.5 for layer in found.layers)


def test_one_seed_gives_one_result(model: Model, images: Array) -> None:
    shares = _shares(model, 0.7)
    made = [bytes(sanderling.dump(prune_at_once(model, [images[:64]], shares).model)) for _ in "ab"]
    assert made[0] == made[1] != bytes(sanderling.dump(model))


def _branches() -> Model:
    """A residual over a convolution, a concatenation, a 16-bit weight, and two layers that share
    one: what a walk through the graph has to carry along."""
    rng = np.random.default_rng(1)
    graph = Graph("main")
    x = graph.input("x", DType.FLOAT32, (1, 6, 6, 4))
    options = {"padding": "SAME", "stride_h": 1, "stride_w": 1,
               "fused_activation_function": "RELU"}  # fmt: skip
    half = graph.constant("half", rng.standard_normal((4, 3, 3, 4)).astype(np.float16) / 6)
    wide = graph.tensor("wide", DType.FLOAT32, (4, 3, 3, 4))
    graph.add("DEQUANTIZE", [half], [wide])
    bias = graph.constant("bias", np.full(4, 0.1, np.float32))
    a, b, joined, out = (
        graph.tensor(name, DType.FLOAT32, shape)
        for name, shape in (("a", (1, 6, 6, 4)), ("b", (1, 6, 6, 4)), ("j", (1, 6, 6, 8)),
                            ("out", (1, 6, 6, 5)))
    )  # fmt: skip
    graph.add("CONV_2D", [x, wide, bias], [a], **options)
    graph.add("CONV_2D", [a, wide, bias], [b], **options)
    total = graph.tensor("total", DType.FLOAT32, (1, 6, 6, 4))
    graph.add("ADD", [b, x], [total])
    graph.add("CONCATENATION", [total, a], [joined], axis=3)
    last = graph.constant("last", rng.standard_normal((5, 1, 1, 8)).astype(np.float32))
    graph.add("CONV_2D", [joined, last, None], [out], **options)
    graph.outputs = [out]
    return Model([graph])


def test_branches_and_shared_weights() -> None:
    model = _branches()
    layers = [op for op in model.main.ops if op.name == "CONV_2D"]
    assert [len(s.layers) for s in segments(model.main, layers, 16)] == [1, 1, 1]
    x = np.random.default_rng(2).standard_normal((32, 6, 6, 4)).astype(np.float32)
    found = prune_at_once(model, [x], {"wide": 0.5, "last": 0.5})
    for name in ("half", "last"):
        assert float((found.model.main.find(name).values == 0).mean()) >= 0.5
    assert found.model.main.find("half").dtype is DType.FLOAT16
    wanted, given = _scores(model, x), _scores(found.model, x)
    assert np.abs(wanted - given).mean() < 0.35 * np.abs(wanted).mean()  # of white noise


def test_too_few_samples(model: Model, images: Array) -> None:
    with pytest.raises(InputError, match="3 samples are too few"):
        prune_at_once(model, [images[:3]], _shares(model, 0.5))

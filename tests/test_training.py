"""Training under constraints: on the digits model and the digits that come with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

import sanderling
from sanderling.errors import InputError
from sanderling.ir import Array, Model

torch = pytest.importorskip("torch", reason="PyTorch is the extra [train]")

from sanderling.training.constraint import weights_of  # noqa: E402
from sanderling.training.constraints.clusters import Clusters, kmeans  # noqa: E402
from sanderling.training.constraints.sparsity import Sparsity  # noqa: E402
from sanderling.training.differentiable.twin import Twin  # noqa: E402
from sanderling.training.loop.batches import Batches  # noqa: E402
from sanderling.training.loop.train import Schedule, Trained, train  # noqa: E402

DATA = files("sanderling") / "data"
QUICK = Schedule(epochs=3, batch=32, rate=1e-3)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model() -> Model:
    return sanderling.load(DATA / "digits_f32.tflite")


@pytest.fixture(scope="module")
def digits() -> tuple[Array, Array]:
    with np.load(str(DATA / "digits_test.npz")) as found:
        return found["images"], found["labels"].astype(np.int64)


@pytest.fixture(scope="module")
def images(model: Model, digits: tuple[Array, Array]) -> Array:
    shape = model.main.inputs[0].shape
    return digits[0].reshape(-1, *shape[1:]).astype(np.float32) / 16


def _bytes(found: Trained) -> bytes:
    return bytes(sanderling.dump(found.model))


def _accuracy(model: Model, images: Array, labels: Array) -> float:
    with torch.no_grad():
        (scores,) = Twin(model)(images)
    return float((scores.argmax(1).numpy() == labels).mean())


@pytest.mark.parametrize("structure", ["unstructured", "2:4", "4x1", "1x4"])
def test_zeros_are_in_the_file(model: Model, images: Array, structure: str) -> None:
    rule = Sparsity(0.5, structure, every=2)
    found = train(model, images[:160], [rule], schedule=QUICK)
    assert rule.problems(found.model) == []
    assert Sparsity(0.5, structure).problems(model) != []


def test_pruned_without_labels_it_answers_as_before(
    model: Model, images: Array, digits: tuple[Array, Array]
) -> None:
    labels = digits[1]
    longer = Schedule(epochs=8, rate=3e-3)
    found = train(model, images, [Sparsity(0.6, every=2)], schedule=longer)
    assert _accuracy(found.model, images, labels) >= _accuracy(model, images, labels) - 0.02
    assert found.epochs[-1].agreement >= 0.85


def test_one_threshold_for_the_whole_model(model: Model, images: Array) -> None:
    rule = Sparsity(0.5, whole_model=True, every=2)
    found = train(model, images[:160], [rule], schedule=QUICK)
    assert rule.problems(found.model) == []
    shares = [float((t.values == 0).mean()) for t in weights_of(found.model)]
    assert max(shares) - min(shares) > 0.01  # layers differ


def test_clusters_keep_zeros(model: Model, images: Array) -> None:
    rules = [Sparsity(0.5, every=2), Clusters(16)]
    found = train(model, images[:160], rules, schedule=QUICK)
    assert [rule.problems(found.model) for rule in rules] == [[], []]
    assert Clusters(16).problems(model) != []


def test_labels_teach(model: Model, images: Array, digits: tuple[Array, Array]) -> None:
    """Labels that are all wrong by one: the model learns them, so labels are what is learnt."""
    shifted = (digits[1] + 1) % 10
    found = train(model, images, labels=shifted, schedule=Schedule(epochs=6, rate=3e-3))
    assert _accuracy(found.model, images, shifted) > 0.8


def test_the_same_seed_gives_the_same_file(model: Model, images: Array) -> None:
    first, again = (
        _bytes(train(model, images[:96], [Sparsity(0.5)], schedule=QUICK)) for _ in "ab"
    )
    assert first == again
    other = Schedule(epochs=3, batch=32, rate=1e-3, seed=1)
    assert _bytes(train(model, images[:96], [Sparsity(0.5)], schedule=other)) != first


def test_an_interrupted_run_goes_on_to_the_same_file(
    model: Model, images: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sanderling.training.loop import train as engine

    whole = _bytes(train(model, images[:96], [Sparsity(0.5), Clusters(8)], schedule=QUICK))
    path = tmp_path / "run.pt"
    own = engine._Run._one_epoch

    def interrupted(self: engine._Run, show: object) -> None:
        if self.epoch == 1:
            raise KeyboardInterrupt
        own(self, show)

    rules = [Sparsity(0.5), Clusters(8)]
    monkeypatch.setattr(engine._Run, "_one_epoch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(model, images[:96], rules, schedule=QUICK, checkpoint=path)
    monkeypatch.setattr(engine._Run, "_one_epoch", own)
    rules = [Sparsity(0.5), Clusters(8)]
    resumed = train(model, images[:96], rules, schedule=QUICK, checkpoint=path)
    assert _bytes(resumed) == whole and len(resumed.epochs) == 3


WRONG = {
    "samples of shape": lambda m, x: train(m, x[:, :4]),
    "3 samples": lambda m, x: train(m, x[:3]),
    "labels from 0 to 11 for 10 classes": lambda m, x: train(m, x[:12], labels=np.arange(12)),
    "2 labels for 12 samples": lambda m, x: train(m, x[:12], labels=np.zeros(2, int)),
    "a loss was given without labels": lambda m, x: train(m, x[:12], loss=lambda o, y: o[0].sum()),
    "a sparsity of 1.5": lambda m, x: Sparsity(1.5),
    "1 clusters": lambda m, x: Clusters(1),
    "no weight has a name with nothing": lambda m, x: weights_of(m, ["nothing"]),
    "sample [0-9]+ has NaN values": lambda m, x: train(m, np.full_like(x[:16], np.nan)),
    "sample [0-9]+ has absurd values: as large as 1e.30": lambda m, x: train(m, x[:16] * 1e30),
    "the loss is": lambda m, x: train(m, x[:16], schedule=Schedule(4, rate=1e30)),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_what_cannot_be_is_a_sentence(model: Model, images: Array, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        WRONG[sentence](model, images)


def test_another_runs_checkpoint_is_refused(model: Model, images: Array, tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    train(model, images[:32], schedule=Schedule(epochs=1), checkpoint=path)
    with pytest.raises(InputError, match="other settings"):
        train(model, images[:32], schedule=Schedule(epochs=2), checkpoint=path)
    path.write_bytes(b"nothing")
    with pytest.raises(InputError, match="no checkpoint"):
        train(model, images[:32], schedule=Schedule(epochs=1), checkpoint=path)


def test_a_quantised_model_is_refused() -> None:
    with pytest.raises(InputError, match="nothing can be trained"):
        train(sanderling.load(DATA / "digits_int8.tflite"), np.zeros((16, 8, 8, 1), np.float32))


def test_kmeans_finds_what_is_there() -> None:
    rng = np.random.default_rng(0)
    elements = np.concatenate([rng.normal(c, 0.01, 50) for c in (-2, 0.5, 3)])
    assert np.allclose(kmeans(elements, 3, seed=0), [-2, 0.5, 3], atol=0.02)
    assert len(kmeans(np.array([1.0, 2.0]), 4, seed=0)) == 4


# -- the rest of the loop -------------------------------------------------------------------------


def test_a_loss_of_the_users_own(model: Model, images: Array) -> None:
    """It gets the outputs and whatever the labels are: here what the outputs are to be."""
    wanted = np.full((96, 10), 0.1, np.float32)

    def far(outputs: list[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
        return (outputs[0] - labels).square().mean()

    plan = Schedule(epochs=6, rate=1e-2)
    found = train(model, images[:96], labels=wanted, loss=far, schedule=plan)
    losses = [e.loss for e in found.epochs]
    assert losses[-1] < 0.8 * losses[0] and all(e.right is None for e in found.epochs)


def test_features_within_the_graph_stay(model: Model, images: Array) -> None:
    """Labels that are all wrong pull a layer away from what it was, unless it is held."""
    name = next(op for op in model.main.ops if op.name == "CONV_2D").outputs[0].name
    labels = np.zeros(96, np.int64)
    apart = []
    for features in ((), (name,)):
        plan = Schedule(epochs=3, rate=1e-2, features=features, feature_weight=100.0)
        found = train(model, images[:96], labels=labels, schedule=plan).model
        apart.append(_feature_error(model, found, name, images[:96]))
    assert apart[1] < 0.5 * apart[0]
    with pytest.raises(InputError):
        train(model, images[:96], schedule=Schedule(1, features=("no such tensor",)))


def _feature_error(before: Model, after: Model, name: str, images: Array) -> float:
    found = []
    for model in (before, after):
        twin = Twin(model)
        with torch.no_grad():
            found.append(twin.outputs_and([images], [twin.graph.find(name)])[1][0])
    return float((found[0] - found[1]).square().mean())


def test_it_ends_when_nothing_gets_better(model: Model, images: Array) -> None:
    """With a rate of zero no epoch beats the start."""
    plan = Schedule(epochs=9, rate=0.0, patience=2)
    found = train(model, images[:96], schedule=plan)
    assert len(found.epochs) == 2 and found.kept == 0


def test_gradients_are_clipped(model: Model, images: Array) -> None:
    """Adam divides by the gradients' size plus 1e-8: far below that it moves little."""
    labels, moved = np.zeros(96, np.int64), []
    for clip in (1.0, 1e-12):
        found = train(model, images[:96], labels=labels, schedule=Schedule(1, rate=1e-3, clip=clip))
        pairs = zip(weights_of(model), weights_of(found.model), strict=True)
        moved.append(max(float(np.abs(a.values - b.values).max()) for a, b in pairs))
    assert moved[1] < 0.01 * moved[0]


def test_pictures_are_mirrored_and_moved() -> None:
    picture = np.arange(36, dtype=np.float32).reshape(1, 6, 6, 1)
    rows = np.repeat(picture, 64, 0)
    plain, turned, moved = (
        Batches([rows], 64, 0.0, 0, mirror=mirror, crop=crop)
        for mirror, crop in ((False, 0), (True, 0), (False, 1))
    )
    (_, (found,)), *_ = plain.epoch(0, 0)
    assert np.array_equal(found, rows[: len(found)]) and not plain.is_augmented
    (_, (found,)), *_ = turned.epoch(0, 0)
    kinds = {x.tobytes() for x in found}
    assert kinds == {picture[0].tobytes(), picture[0, :, ::-1].tobytes()}
    (_, (found,)), *_ = moved.epoch(0, 0)
    wide = np.pad(picture[0], ((1, 1), (1, 1), (0, 0)), "edge")
    places = {wide[y : y + 6, x : x + 6].tobytes() for y in range(3) for x in range(3)}
    kinds = {x.tobytes() for x in found}
    assert len(kinds) > 3 and kinds <= places
    (_, (again,)), *_ = moved.epoch(0, 0)
    (_, (other,)), *_ = moved.epoch(1, 0)
    assert np.array_equal(found, again) and not np.array_equal(found, other)

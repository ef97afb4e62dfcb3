"""Searches that are interrupted go on, try nothing twice, and end alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sanderling
from sanderling.errors import InputError
from sanderling.ir import Array, DType, Graph, Model

torch = pytest.importorskip("torch", reason="PyTorch is the extra [train]")

from sanderling.training.cluster import cluster  # noqa: E402
from sanderling.training.loop.judging import Judging, answers  # noqa: E402
from sanderling.training.loop.train import Schedule  # noqa: E402
from sanderling.training.prune import prune  # noqa: E402
from sanderling.training.qat import qat  # noqa: E402

ONE_EPOCH = Schedule(epochs=1, rate=1e-3)
PLAIN = {"ranges": "minmax", "corrections": "none", "minimum": 16}
WAYS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "prune": (prune, {"whole_model": True}),
    "prune and train": (prune, {"schedule": ONE_EPOCH}),
    "channels": (prune, {"structure": "channels", "multiple": 2}),
    "cluster": (cluster, {}),
    "cluster and train": (cluster, {"schedule": ONE_EPOCH}),
    "qat and train": (qat, {"mode": "weight", "schedule": ONE_EPOCH, **PLAIN}),
}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model() -> Model:
    """Two convolutions and a fully connected layer, of weights by chance."""
    graph, rng = Graph("main"), np.random.default_rng(0)

    def layer(
        name: str, x: Any, shape: tuple[int, ...], made: tuple[int, ...], **attrs: Any
    ) -> Any:
        values = rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))
        given = [graph.constant(f"{name}/w", values.astype(np.float32)),
                 graph.constant(f"{name}/b", np.zeros(shape[0], np.float32))]  # fmt: skip
        y = graph.tensor(name, DType.FLOAT32, made)
        graph.add("CONV_2D" if len(shape) == 4 else "FULLY_CONNECTED", [x, *given], [y], **attrs)
        return y

    window = {"padding": "VALID", "stride_h": 2, "stride_w": 2, "fused_activation_function": "RELU"}
    x = graph.input("x", DType.FLOAT32, (1, 8, 8, 1))
    y = layer("one", x, (8, 2, 2, 1), (1, 4, 4, 8), **window)
    y = layer("two", y, (16, 2, 2, 8), (1, 2, 2, 16), **window)
    flat = graph.tensor("flat", DType.FLOAT32, (1, 64))
    shape = graph.constant("shape", np.array([1, 64], np.int32))
    graph.add("RESHAPE", [y, shape], [flat], new_shape=[1, 64])
    graph.outputs = [layer("scores", flat, (4, 64), (1, 4))]
    return Model([graph])


@pytest.fixture(scope="module")
def samples(model: Model) -> tuple[Array, Array]:
    """What the model itself says of them is right."""
    given = np.random.default_rng(1).normal(size=(80, 8, 8, 1)).astype(np.float32)
    return given, answers(model, [given])[0].argmax(1)


@pytest.fixture(autouse=True)
def _few_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sanderling.training.cluster.ERRORS", [1e-3, 1e-2, 0.1, 0.5])
    monkeypatch.setattr("sanderling.training.prune.LEVELS", [0.3, 0.5, 0.8, 0.95])
    monkeypatch.setattr("sanderling.training.prune.CHANNEL_LEVELS", [0.25, 0.5, 0.7])
    monkeypatch.setattr("sanderling.training.bits.MOST_LEVELS", 4)
    monkeypatch.setattr(Judging, "_seconds", lambda judging, made: 1.0)  # needs no compilation


class Judged:
    """Names of what was judged; after so many an interruption."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.most = 100
        own = Judging.trial

        def trial(judging: Judging, name: str, made: Model) -> Any:
            if len(self.names) == self.most:
                raise KeyboardInterrupt
            self.names.append(name)
            return own(judging, name, made)

        monkeypatch.setattr(Judging, "trial", trial)

    def again(self, most: int = 100) -> None:
        self.names, self.most = [], most


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Judged:
    return Judged(monkeypatch)


@pytest.mark.parametrize("way", WAYS)
def test_an_interrupted_search_goes_on(
    way: str, model: Model, samples: tuple[Array, Array], judged: Judged, tmp_path: Path
) -> None:
    behind, options = WAYS[way]
    kept = tmp_path / "run.pt"

    def found(**more: Any) -> tuple[bytes, list[str]]:
        made, report = behind(
            model, samples[0], labels=samples[1], max_drop=0.05, **options, **more
        )
        return bytes(sanderling.dump(made)), [(t.name, t.score, t.chosen) for t in report.trials]

    whole = found()
    tried = judged.names
    assert len(tried) == 3
    judged.again(most=2)
    with pytest.raises(KeyboardInterrupt):
        found(checkpoint=kept)
    judged.again()
    assert found(checkpoint=kept) == whole and judged.names == tried[2:]
    judged.again()
    assert found(checkpoint=kept) == whole and judged.names == []
    trainings = [p.name for p in tmp_path.glob("run-*.pt")]
    assert len(trainings) == (2 if "train" in way else 0)


def test_what_a_search_is_known_by(
    model: Model, samples: tuple[Array, Array], judged: Judged, tmp_path: Path
) -> None:
    """Another target tries what is not known yet; other settings are another search."""
    kept = tmp_path / "run.pt"
    options = {"labels": samples[1], "checkpoint": kept}
    prune(model, samples[0], max_drop=0.0, **options)
    first = judged.names
    judged.again()
    prune(model, samples[0], max_drop=0.9, **options)
    assert judged.names and not set(judged.names) & set(first)
    with pytest.raises(InputError, match="run with other settings"):
        prune(model, samples[0], max_drop=0.0, structure="1x4", **options)
    with pytest.raises(InputError, match="run with other settings"):
        cluster(model, samples[0], max_drop=0.0, **options)

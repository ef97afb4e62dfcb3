"""Searches of prune and cluster that are interrupted go on, try nothing twice, and end alike."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sanderling
from sanderling.errors import InputError
from sanderling.ir import Array, Model

torch = pytest.importorskip("torch", reason="PyTorch is the extra [train]")

from sanderling.training.cluster import cluster  # noqa: E402
from sanderling.training.judging import Judging  # noqa: E402
from sanderling.training.prune import prune  # noqa: E402
from sanderling.training.train import Schedule  # noqa: E402

DATA = files("sanderling") / "data"
Judge = Callable[[Judging, str, Model], Any]
ONE_EPOCH = Schedule(epochs=1, rate=1e-3)
WAYS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "prune": (prune, {"whole_model": True}),
    "prune and train": (prune, {"schedule": ONE_EPOCH}),
    "channels": (prune, {"structure": "channels", "multiple": 4}),
    "cluster": (cluster, {}),
    "cluster and train": (cluster, {"schedule": ONE_EPOCH}),
}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model() -> Model:
    return sanderling.load(DATA / "digits_f32.tflite")


@pytest.fixture(scope="module")
def digits() -> tuple[Array, Array]:
    with np.load(str(DATA / "digits_test.npz")) as found:
        images = found["images"].reshape(-1, 8, 8, 1).astype(np.float32) / 16
        return images[:160], found["labels"][:160].astype(np.int64)


@pytest.fixture(autouse=True)
def _few_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sanderling.training.cluster.ERRORS", [1e-3, 1e-2, 0.1, 0.5])
    monkeypatch.setattr("sanderling.training.prune.LEVELS", [0.3, 0.5, 0.8, 0.95])
    monkeypatch.setattr("sanderling.training.prune.CHANNEL_LEVELS", [0.25, 0.5, 0.7])


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
    way: str, model: Model, digits: tuple[Array, Array], judged: Judged, tmp_path: Path
) -> None:
    behind, options = WAYS[way]
    kept = tmp_path / "run.pt"

    def found(**more: Any) -> tuple[bytes, list[str]]:
        made, report = behind(model, digits[0], labels=digits[1], max_drop=0.05, **options, **more)
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
    model: Model, digits: tuple[Array, Array], judged: Judged, tmp_path: Path
) -> None:
    """Another target tries what is not known yet; other settings are another search."""
    kept = tmp_path / "run.pt"
    options = {"labels": digits[1], "checkpoint": kept}
    prune(model, digits[0], max_drop=0.0, **options)
    first = judged.names
    judged.again()
    prune(model, digits[0], max_drop=0.9, **options)
    assert judged.names and not set(judged.names) & set(first)
    with pytest.raises(InputError, match="run with other settings"):
        prune(model, digits[0], max_drop=0.0, structure="1x4", **options)
    with pytest.raises(InputError, match="run with other settings"):
        cluster(model, digits[0], max_drop=0.0, **options)

"""Samples with labels, from arrays and from files."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

import sanderling
from sanderling.errors import InputError
from sanderling.ir import Model

pytest.importorskip("torch", reason="PyTorch is the extra [train]")

from sanderling.training.samples import read_training_data

ROWS = np.arange(6 * 64, dtype=np.float32).reshape(6, 8, 8, 1) / 384
CLASSES = np.array([3, 1, 4, 1, 5, 9])


@pytest.fixture(scope="module")
def model() -> Model:
    return sanderling.load(files("sanderling") / "data" / "digits_f32.tflite")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six arrays in the folders of two classes, all kinds of labels beside them."""
    for number, row in enumerate(ROWS):
        home = tmp_path / "rows" / ("even" if number % 2 == 0 else "odd")
        home.mkdir(parents=True, exist_ok=True)
        np.save(home / f"{number}.npy", row)
    np.savez(tmp_path / "all.npz", images=ROWS, classes=CLASSES)
    np.save(tmp_path / "labels.npy", CLASSES)
    np.savez(tmp_path / "labels.npz", labels=CLASSES, other=np.zeros(1))
    lines = [f"{i}.npy,{CLASSES[i]}" for i in range(6)]
    (tmp_path / "labels.csv").write_text("\n".join(["file,label", *lines]))
    return tmp_path


def test_arrays_and_labels(model: Model) -> None:
    found = read_training_data(ROWS, model, CLASSES)
    assert np.array_equal(found.inputs[0], ROWS) and found.labels is not None
    assert found.labels.tolist() == CLASSES.tolist() and len(found) == 6
    part = found.part(np.array([4, 0]))
    assert part.labels is not None and part.labels.tolist() == [5, 3] and len(part) == 2
    assert read_training_data([ROWS], model).labels is None


SOURCES = {
    "an array beside the samples": ("all.npz", "classes", CLASSES),
    "a .npy": ("all.npz", "{}/labels.npy", CLASSES),
    "a .npz": ("all.npz", "{}/labels.npz", CLASSES),
    "a .csv": ("rows", "{}/labels.csv", CLASSES[[0, 2, 4, 1, 3, 5]]),  # even before odd
    "folders": ("rows", "folders", np.array([0, 0, 0, 1, 1, 1])),
}


@pytest.mark.parametrize("source", SOURCES)
def test_labels_from_files(model: Model, folder: Path, source: str) -> None:
    data, labels, wanted = SOURCES[source]
    found = read_training_data(folder / data, model, labels.format(folder))
    assert found.labels is not None and found.labels.tolist() == wanted.tolist()


def test_some_samples_have_their_own_labels(model: Model, folder: Path) -> None:
    found = read_training_data(folder / "all.npz", model, "classes", samples=3)
    assert found.labels is not None and found.labels.tolist() == [3, 4, 5]


WRONG: dict[str, Callable[[Model, Path], object]] = {
    "2 labels for 6 samples": lambda m, p: read_training_data(ROWS, m, CLASSES[:2]),
    "there is no array 'truth'": lambda m, p: read_training_data(p / "all.npz", m, "truth"),
    "tells no labels": lambda m, p: read_training_data(p / "rows", m, "truth"),
    "need a folder of files": lambda m, p: read_training_data(p / "all.npz", m, "folders"),
    "there is no such file": lambda m, p: read_training_data(ROWS, m, p / "none.npy"),
    "2 arrays of samples": lambda m, p: read_training_data([ROWS, ROWS], m),
    "not a table of labels": lambda m, p: read_training_data(p / "rows", m, _written(p, "a,b\n1")),
    "no label for '0.npy' and 5": lambda m, p: read_training_data(
        p / "rows", m, _written(p, "file,label\n7.npy,1")
    ),
}


def _written(folder: Path, text: str) -> str:
    path = folder / "other.csv"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("sentence", WRONG)
def test_wrong_labels_are_a_sentence(model: Model, folder: Path, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        WRONG[sentence](model, folder)

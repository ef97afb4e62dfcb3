"""Samples with labels, from arrays and from files."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

import sanderling
from sanderling.errors import InputError
from sanderling.ir import DType, Graph, Model

pytest.importorskip("torch", reason="PyTorch is the extra [train]")

from sanderling.training.loop import samples as reading
from sanderling.training.loop.samples import read_training_data
from sanderling.training.loop.train import Schedule, train

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


# -- more than the memory -------------------------------------------------------------------------

SIDE, COUNT = 64, 240  # 48 kB a sample in float32, 11.8 MB together
ROOM = 1 << 20


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures in the folders of two classes, each of one colour of its own."""
    from PIL import Image

    root = tmp_path_factory.mktemp("pictures")
    for number in range(COUNT):
        home = root / ("ab"[number % 2])
        home.mkdir(exist_ok=True)
        Image.new("RGB", (SIDE, SIDE), (number, 255 - number, 0)).save(home / f"{number:03}.png")
    return root


def _small_network() -> Model:
    """A picture of SIDE x SIDE pixels in, ten scores out."""
    graph = Graph("main")
    rng = np.random.default_rng(0)
    x = graph.input("picture", DType.FLOAT32, (1, SIDE, SIDE, 3))
    w = graph.constant("w", rng.normal(size=(10, 8, 8, 3)).astype(np.float32) / 14)
    b = graph.constant("b", np.zeros(10, np.float32))
    y = graph.tensor("y", DType.FLOAT32, (1, SIDE // 8, SIDE // 8, 10))
    graph.add("CONV_2D", [x, w, b], [y], padding="VALID", stride_h=8, stride_w=8)
    axes = graph.constant("axes", np.array([1, 2], np.int32))
    scores = graph.tensor("scores", DType.FLOAT32, (1, 10))
    graph.add("MEAN", [y, axes], [scores], keep_dims=False)
    graph.outputs = [scores]
    return Model([graph])


@contextmanager
def _at_most(bytes_: int) -> Iterator[None]:
    """Python's and NumPy's allocations at their highest; they do not depend on the machine."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < bytes_


def test_a_large_folder_is_read_by_batches(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way, with 1 MB for samples that would take 12."""
    network = _small_network()
    whole = read_training_data(pictures, network, "folders")
    assert isinstance(whole.inputs[0], np.ndarray)
    monkeypatch.setattr(reading, "KEPT_BYTES", ROOM)
    with _at_most(4 * ROOM):
        found = read_training_data(pictures, network, "folders")
        part = found.part(np.arange(1, COUNT, 2))
        schedule = Schedule(epochs=1, batch=16)
        made = train(network, part.inputs, labels=part.labels, schedule=schedule)
    assert made.epochs and len(part) == COUNT // 2
    assert not isinstance(found.inputs[0], np.ndarray)
    for places in (slice(3, 9), np.array([200, 5, 5, 17]), slice(0, 0)):
        assert np.array_equal(found.inputs[0][places], whole.inputs[0][places])
        assert np.array_equal(part.inputs[0][:], whole.inputs[0][1::2])


def test_what_was_looked_at_last_is_kept(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = _small_network()
    monkeypatch.setattr(reading, "KEPT_BYTES", ROOM)
    rows = read_training_data(pictures, network).inputs[0]
    reads: list[int] = []
    samples = rows.reader.samples  # type: ignore[attr-defined]
    own = samples.read
    samples.read = lambda i: (reads.append(i), own(i))[1]
    for _ in range(2):
        rows[np.arange(10, 20)]
    assert reads == list(range(10, 20))
    rows[np.arange(100, 130)]  # more than the room
    rows[np.array([10])]
    assert reads[-1] == 10


ABSURD = {"NaN": np.nan, "infinite": np.inf, "absurd": 1e30}


@pytest.mark.parametrize("what", ABSURD)
def test_absurd_samples_are_refused(model: Model, folder: Path, what: str) -> None:
    row = ROWS[3].copy()
    row[2, 2] = ABSURD[what]
    np.save(folder / "rows" / "odd" / "3.npy", row)
    with pytest.raises(InputError, match=rf"\(.*3\.npy\) has {what} values") as found:
        read_training_data(folder / "rows", model)
    assert "input 'image'" in str(found.value) and "leave it out" in str(found.value)

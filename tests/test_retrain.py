"""`sanderling retrain`: the head, the classes, and what is written; class names in a model."""

from __future__ import annotations

import errno
import importlib
import json
import os
import re
import shlex
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import sanderling
import sanderling.choose.retrain as home
from sanderling.choose.head import boundaries, feature_model, find_cut
from sanderling.errors import InputError
from sanderling.format import dump, load
from sanderling.format.class_labels import labels_of, with_labels
from sanderling.ir import Array, DType, Graph, Model
from sanderling.runtime.inputs import fit

from .conformance.harness import run_litert
from .support.command_line import DATA, call

F32, INT8 = DATA / "digits_f32.tflite", DATA / "digits_int8.tflite"
verb = importlib.import_module("sanderling.cli.retrain")
WORDS = ("--mean", "0", "--std", "240")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of digits in three classes of our own."""
    root = tmp_path_factory.mktemp("classes")
    held = np.load(DATA / "digits_test.npz")
    for name, digit in (("eins", 1), ("drei", 3), ("acht", 8)):
        (root / name).mkdir()
        for i in np.flatnonzero(held["labels"] == digit)[:25]:
            image = held["images"][i] * np.uint8(15)
            Image.fromarray(image).save(root / name / f"{i:03}.png")
    return root


@pytest.mark.parametrize("model", [F32, INT8], ids=["f32", "int8"])
def test_a_new_classifier(model: Path, folders: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    target = tmp_path / "own.tflite"
    words = ("--data", folders, "-o", target, *WORDS, "--json", tmp_path / "record.json")
    told = call("retrain", model, *words).stdout.splitlines()
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["classes"] == ["acht", "drei", "eins"] and record["held_out"] == 15
    assert record["accuracy"] >= 0.8 and Path(record["source"]).name == model.name
    made = load(target)
    assert labels_of(made) == {"scores": ["acht", "drei", "eins"]}
    picture = next((folders / "drei").iterdir())
    assert told[-1].startswith("next: sanderling run ") and "--preset tflite" in told[-1]
    following = shlex.split(told[-1])[2:]  # pictures are prepared as for the training
    shown = call(*(str(picture) if word == "PICTURE" else word for word in following)).stdout
    assert re.search(r"1 +drei +0\.", shown)


def test_the_same_seed_gives_the_same_file(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.setattr(home, "EPOCHS", 3)
    how = {"mean": "0", "std": "240"}
    one, two = (dump(sanderling.retrain(F32, folders, **how).model) for _ in range(2))
    assert one == two


def test_litert_runs_the_result(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.setattr(home, "EPOCHS", 3)
    pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
    found = sanderling.retrain(F32, folders, mean="0", std="240", blocks=1)
    x = np.random.default_rng(0).random((1, 8, 8, 1), np.float32)
    theirs = run_litert(dump(found.model), [[x]])[0][0]
    ours = next(iter(found.model.compile().run({found.model.main.inputs[0].name: x}).values()))
    np.testing.assert_allclose(theirs, ours, atol=1e-5)


def test_arrays_with_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.setattr(home, "EPOCHS", 3)
    held = np.load(DATA / "digits_test.npz")
    images = held["images"][:80].reshape(-1, 8, 8, 1).astype(np.float32) / 16
    found = sanderling.retrain(
        F32, images, ["odd" if n % 2 else "even" for n in held["labels"][:80]]
    )
    assert found.names == ["even", "odd"] and found.held_out == 16


def sound_model() -> Model:
    """Energy in four bands of 64 samples, and a classifier on it."""
    graph = Graph("main")
    x = graph.input("waveform", DType.FLOAT32, (64,))
    size = graph.constant("size", np.array([1, 64], np.int32))
    row = graph.tensor("row", DType.FLOAT32, (1, 64))
    graph.add("RESHAPE", [x, size], [row])
    angles = np.outer(np.arange(1, 9), np.arange(64)) * np.pi / 32
    bands = graph.constant("bands", np.sin(angles).astype(np.float32))
    found = graph.tensor("found", DType.FLOAT32, (1, 8))
    graph.add("FULLY_CONNECTED", [row, bands, None], [found])
    squares = graph.tensor("squares", DType.FLOAT32, (1, 8))
    graph.add("SQUARE", [found], [squares])
    head = graph.constant("head", np.ones((5, 8), np.float32))
    y = graph.tensor("y", DType.FLOAT32, (1, 5))
    graph.add("FULLY_CONNECTED", [squares, head, None], [y])
    graph.outputs = [y]
    return Model([graph])


def write_sound(path: Path, samples: Array) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes((samples * 30000).astype("<i2").tobytes())


def test_sounds_are_cut_into_windows_and_silence_is_left_out(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    times = np.arange(192) * np.pi / 32
    for number in range(8):
        for name, pitch in (("low", 1), ("high", 5)):
            tone = np.sin(pitch * times + 0.01 * number)
            tone[128:] = 0  # the last window says nothing of its class
            write_sound(tmp_path / "sounds" / name / f"{number}.wav", tone)
    found = sanderling.retrain(sound_model(), tmp_path / "sounds", rate=16000)
    assert found.held_out == 4 and found.trained_on == 12  # sounds, not windows
    assert found.accuracy == 1.0


def test_where_models_are_cut() -> None:
    model = load(F32)
    cut = find_cut(model.main)
    assert cut.is_head and feature_model(model, cut).main.outputs[0].shape == (1, cut.features)
    assert boundaries(model.main, cut.tensor)
    # An embedding is no classifier: its last op is neither a product nor what follows one.
    sounds = sound_model()
    sounds.main.outputs = [next(t for t in sounds.main.tensors if t.name == "squares")]
    again = find_cut(sounds.main)
    assert not again.is_head and again.features == 8


# -- texts ----------------------------------------------------------------------------------------


def text_model(width: int = 8, length: int = 6) -> Model:
    """An embedding of token ids of which a mask says where they end: a table, two layers with a
    residual, and the mean over the tokens of the text. The mask is read again at the end. Between
    them tokens stand in rows, where several texts cannot be told apart, as in MiniLM."""
    rng = np.random.default_rng(3)
    graph = Graph("main")
    ids = graph.input("ids", DType.INT32, (1, length))
    mask = graph.input("mask", DType.INT32, (1, length))

    def made(name: str, op: str, inputs: list[Any], *shape: int, **attributes: Any) -> Any:
        y = graph.tensor(name, DType.FLOAT32, shape)
        graph.add(op, inputs, [y], **attributes)
        return y

    def layer(x: Any, name: str) -> Any:
        values = rng.normal(0, 0.5, (width, width)).astype(np.float32)
        weights = graph.constant(f"{name}/weights", values)
        y = made(name, "FULLY_CONNECTED", [x, weights, None], 1, length, width, keep_num_dims=True)
        return made(f"{name}/sum", "ADD", [x, y], 1, length, width)

    values = rng.normal(0, 1, (20, width)).astype(np.float32)
    values[8:16, 0] += 4  # words of one topic are alike
    table = graph.constant("table", values)
    x = made("words", "GATHER", [table, ids], 1, length, width, axis=0, batch_dims=0)
    x = layer(layer(x, "first"), "second")
    sizes = [
        graph.constant(n, np.array(s, np.int32))
        for n, s in (("flat", [length, width]), ("whole", [1, length, width]))
    ]
    ones = graph.constant("ones", np.ones((length, 1), np.float32))
    x = made("rows", "RESHAPE", [x, sizes[0]], length, width)
    x = made("rows/scaled", "MUL", [x, ones], length, width)
    x = made("texts", "RESHAPE", [x, sizes[1]], 1, length, width)
    shares = made("kept", "CAST", [mask], 1, length)
    column = graph.constant("column", np.array([1, length, 1], np.int32))
    shares = made("kept/column", "RESHAPE", [shares, column], 1, length, 1)
    x = made("masked", "MUL", [x, shares], 1, length, width)
    places = graph.constant("places", np.array([1], np.int32))
    graph.outputs = [made("embedding", "MEAN", [x, places], 1, width, keep_dims=False)]
    return Model([graph])


def texts() -> tuple[Array, Array, Array]:
    """Of two topics that use different words; behind a text's end stands what means nothing."""
    rng = np.random.default_rng(4)
    labels = np.arange(40) % 2
    ids = rng.integers(0, 8, (40, 6)) + 8 * labels[:, None]
    mask = (np.arange(6) < rng.integers(2, 7, (40, 1))).astype(np.int64)
    return np.where(mask, ids, rng.integers(0, 20, (40, 6))), mask, labels


@pytest.mark.parametrize("blocks", [0, 1])
def test_texts_are_files_of_token_ids(
    blocks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.setattr(home, "BLOCK_RATE", 0.01)
    model, target = tmp_path / "embedding.tflite", tmp_path / "topics.tflite"
    sanderling.save(text_model(), model)
    for number, (ids, mask, label) in enumerate(zip(*texts(), strict=True)):
        folder = tmp_path / "texts" / ("sport", "music")[label]
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / f"{number}.npz", ids=ids, mask=mask)
    words = ["--data", tmp_path / "texts", "-o", target, "--blocks", blocks]
    told = call("retrain", model, *words, "--json", tmp_path / "r.json").stdout.splitlines()
    assert json.loads((tmp_path / "r.json").read_text())["accuracy"] >= 0.75
    before, after = ({t.name: t.values for t in load(m).main.constants} for m in (model, target))
    learnt = {n for n, v in before.items() if not np.array_equal(after[n], v)}
    assert learnt == ({"second/weights", "ones"} if blocks else set())
    np.save(tmp_path / "ids.npy", np.array([[9, 10, 11, 12, 13, 14]]))
    np.save(tmp_path / "mask.npy", np.ones((1, 6), np.int64))
    assert told[-1] == f"next: sanderling run {target} --input ids=FILE.npy --input mask=FILE.npy"
    files = (w.replace("FILE", str(tmp_path / w.partition("=")[0])) for w in told[-1].split()[2:])
    assert re.search(r"\d +music +(1|0\.[5-9])", call(*files).stdout)


def test_blocks_that_learn_nothing_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.setattr(home, "BLOCK_EPOCHS", 0)  # none is better than the start
    ids, mask, labels = texts()
    model = text_model()
    found = sanderling.retrain(model, {"ids": ids, "mask": mask}, labels, blocks=1)
    assert found.notes == [home.KEPT_START] == found.to_json()["notes"]
    before, after = ({t.name: t.values for t in m.main.constants} for m in (model, found.model))
    assert all(np.array_equal(after[name], values) for name, values in before.items())


def test_arrays_of_token_ids_with_labels() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    ids, mask, labels = texts()
    found = sanderling.retrain(text_model(), {"ids": ids, "mask": mask}, labels)
    assert found.names == ["0", "1"] and found.held_out == 8 and found.accuracy >= 0.75


def test_ids_beyond_the_inputs_type_are_refused(tmp_path: Path) -> None:
    ids = text_model().main.inputs[0]
    np.testing.assert_array_equal(fit(np.arange(6), ids), np.arange(6, dtype=np.int32)[None])
    with pytest.raises(InputError, match="an array of int64 does not fit"):
        fit(np.arange(6) + 2**31, ids)


def test_what_is_computed_from_the_inputs_alone_goes_around_a_boundary() -> None:
    model = text_model()
    # Behind `second/sum` there is the mean alone, which has no weights.
    (one,) = boundaries(model.main, find_cut(model.main).tensor)
    assert one.tensor.name == "first/sum" and [t.name for t in one.beside] == ["mask"]


WRONG = {
    "one class": (lambda d: only(d, 1), "only one class"),
    "few samples": (lambda d: only(d, 2, 1), "fewer than 2 samples"),
    "no folder": (lambda d: d / "none", "no labels are given|no such file"),
    "stray": (lambda d: stray(d), "lies beside the folders"),
}


def only(folder: Path, classes: int, count: int = 3) -> Path:
    for number in range(classes):
        (folder / f"c{number}").mkdir(parents=True)
        for i in range(count):
            Image.fromarray(np.zeros((8, 8), np.uint8)).save(folder / f"c{number}" / f"{i}.png")
    return folder


def stray(folder: Path) -> Path:
    only(folder, 2)
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(folder / "x.png")
    return folder


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_said(what: str, tmp_path: Path) -> None:
    make, message = WRONG[what]
    target = tmp_path / "out.tflite"
    done = call("retrain", F32, "--data", make(tmp_path / "d"), "-o", target, status=2)
    assert any(word in done.stderr for word in message.split("|")), done.stderr
    assert "Traceback" not in done.stderr and not target.exists()


def test_blocks_that_are_not_there(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.setattr(home, "EPOCHS", 1)
    with pytest.raises(InputError, match="99 blocks were asked for"):
        sanderling.retrain(F32, folders, mean="0", std="240", blocks=99)


# -- class names in a model -----------------------------------------------------------------------


def test_names_survive_saving_and_changes(tmp_path: Path) -> None:
    names = ["null", "eins", *(f"클래스 {i}" for i in range(2, 10))]
    path = tmp_path / "named.tflite"
    sanderling.save(with_labels(load(F32), "probabilities", names), path)
    for _ in range(2):  # the second time the file is recognised
        assert labels_of(load(path)) == {"probabilities": names}
    again = load(dump(load(path)))
    assert labels_of(again) == {"probabilities": names}
    assert labels_of(load(F32)) == {}


def test_names_of_several_lines_are_refused() -> None:
    with pytest.raises(InputError, match="several lines"):
        with_labels(load(F32), "probabilities", ["a\nb"])


@pytest.mark.parametrize("cut", [1, 20, 100])
def test_a_damaged_archive_is_no_obstacle(cut: int, tmp_path: Path) -> None:
    whole = dump(with_labels(load(F32), "probabilities", ["a"] * 10))
    damaged = bytearray(whole)
    damaged[-cut - 1] ^= 0xFF
    model = load(bytes(damaged))
    assert len(model.main.ops) == len(load(F32).main.ops)
    assert set(labels_of(model)) <= {"probabilities"}


# -- where it is written --------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is full")
def test_a_full_device_is_said_before_the_work(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "train", lambda *a, **k: pytest.fail("the work has begun"))
    done = call("retrain", F32, "--data", folders, "-o", "/dev/full", status=2)
    assert "/dev/full: cannot write: No space left on device" in done.stderr


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="space cannot be reserved here")
def test_a_full_disk_is_said_before_the_work(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int, start: int, size: int) -> None:
        assert size == F32.stat().st_size
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(verb, "train", lambda *a, **k: pytest.fail("the work has begun"))
    monkeypatch.setattr(os, "posix_fallocate", full)
    done = call("retrain", F32, "--data", folders, "-o", tmp_path / "o.tflite", status=2)
    assert "cannot write: No space left on device" in done.stderr and not list(tmp_path.iterdir())

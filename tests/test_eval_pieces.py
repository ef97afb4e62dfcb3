"""The pieces of an evaluation: preprocessing, labels, statistics, predictions on disk, arrays."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import sanderling
from benchmarks.evaluate import FOLDER, agreement
from sanderling import evaluate_task, load, make_task
from sanderling.errors import InputError
from sanderling.evaluate import paired_statistics
from sanderling.evaluate.images.pixels import tflite_bilinear
from sanderling.evaluate.images.preprocess import (
    PRESETS,
    Colour,
    Crop,
    Letterbox,
    Normalise,
    Pipeline,
    Resize,
    adjusted,
    load_pipeline,
)
from sanderling.evaluate.running import prediction_file
from sanderling.evaluate.running.evaluation import Evaluation, compare_evaluations
from sanderling.evaluate.running.shards import SampleOutcome, Shelf, cut
from sanderling.evaluate.task import Ports, Sample
from sanderling.evaluate.tasks.classify import Classification
from sanderling.ir import DType, Op, Quant, Tensor

from .support.eval_command import (
    COUNT,
    DATA,
    F32,
    INT8,
    call,
    digit_task,
    one_graph,
    said,
)
from .support.eval_command import alone as alone
from .support.eval_command import digits as digits
from .support.eval_command import no_shared_cache as no_shared_cache
from .support.shared_models import NEEDS, model

# -- columns ------------------------------------------------------------------------------------


def test_columns_come_back_as_they_were(tmp_path: Path) -> None:
    made = [
        {
            "n": i,
            "x": i / 3,
            "s": f"é{i}",
            "flag": i % 2 == 0,
            "same": np.full((2, 3), i, "f4"),
            "ragged": np.arange(i * 4).reshape(-1, 4),
            "deep": {"a": [1, {"b": np.arange(i)}]},
            "odd": None if i else math.inf,
        }
        for i in range(3)
    ]
    blob = prediction_file.pack(
        prediction_file.transposed([prediction_file.canonical(m) for m in made])
    )
    back = prediction_file.rows(prediction_file.unpack(blob))
    assert repr(back) == repr([prediction_file.canonical(m) for m in made])
    (tmp_path / "p.npz").write_bytes(blob)
    with np.load(tmp_path / "p.npz") as plain:
        assert plain["n"].tolist() == [0, 1, 2] and plain["same"].shape == (3, 2, 3)
    with pytest.raises(ValueError, match="not a file of columns"):
        prediction_file.unpack(b"PK nonsense")


def test_outcomes_come_back_from_the_shelf(tmp_path: Path) -> None:
    outcomes = [
        SampleOutcome(0, {"a": 1}, seconds={"x": 0.5}),
        SampleOutcome(1, failure="torn"),
        SampleOutcome(2, {"a": 2}),
    ]
    shelf = Shelf(tmp_path)
    shard = cut([Sample("a"), Sample("b"), Sample("c")])[0]._replace(samples=[Sample("")] * 3)
    shelf.keep(0, outcomes)
    assert dict(shelf.found([shard])) == {0: outcomes}


# -- preprocessing ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"), [((31, 40), (24, 24)), ((9, 7), (20, 13)), ((8, 8), (8, 8))]
)
def test_bilinear_is_the_operators(old: tuple[int, int], new: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*old, 3)).astype(np.uint8)
    x = Tensor("x", DType.FLOAT32, (1, *old, 3))
    size = Tensor("size", DType.INT32, data=np.int32(new))
    y = Tensor("y", DType.FLOAT32, (1, *new, 3))
    attributes = {"align_corners": False, "half_pixel_centers": False}
    model = one_graph([x], [y], Op("RESIZE_BILINEAR", [x, size], [y], attributes))
    session = model.compile(["reference"])
    assert np.array_equal(session(pixels[None].astype(np.float32))[0], tflite_bilinear(pixels, new))


def port(dtype: DType, size: int = 10, quant: Quant | None = None) -> Tensor:
    return Tensor("x", dtype, (1, size, size, 3), quant=quant)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(1).integers(0, 256, (20, 33, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "p.png")
    return tmp_path / "p.png"


def test_the_default_is_the_tools(picture: Path) -> None:
    """0.875 * 20 = 17.5 becomes 18, which begin at (20 - 18) / 2 and at (33 - 18) / 2 = 7.5."""
    pixels = np.asarray(Image.open(picture))[1:19, 8:26]
    real = tflite_bilinear(pixels, (10, 10))
    made = {
        d: PRESETS["tflite"](picture, port(d))[0][0]
        for d in (DType.FLOAT32, DType.UINT8, DType.INT8)
    }
    assert np.array_equal(made[DType.UINT8], real.astype(np.uint8))  # cut off, not rounded
    assert np.array_equal(made[DType.INT8], np.trunc(real - 128).astype(np.int8))
    assert np.array_equal(made[DType.FLOAT32], (real - np.float32(127.5)) * np.float32(1 / 127.5))
    assert (made[DType.UINT8] != np.rint(real)).any()


def test_stated_values_are_quantised(picture: Path) -> None:
    steps = Pipeline((Resize(how="nearest"), Normalise((0.0,), (255.0,))))
    quant = Quant(np.float32([1 / 255]), np.int64([-128]))
    codes = steps(picture, port(DType.INT8, quant=quant))[0]
    reals = steps(picture, port(DType.FLOAT32))[0]
    assert np.array_equal(codes, np.rint(reals * 255 - 128).astype(np.int8))


def test_steps_can_be_changed_one_by_one() -> None:
    base = PRESETS["tflite"]
    assert adjusted(base) == base
    changed = adjusted(base, crop="none", resample="bicubic", mean="1,2,3", std="4", bgr=True)
    assert changed.steps == (Resize(how="bicubic"), Colour("bgr"), Normalise((1, 2, 3), (4,)))
    short = adjusted(base, short_side=256, crop="224x224")
    assert short.steps == (Resize(short=256), Crop(None, size=(224, 224)), Resize())
    assert adjusted(PRESETS["caffe"], bgr=False).without(Colour) == adjusted(
        PRESETS["caffe"], bgr=False
    )


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_json(name: str, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps(PRESETS[name].to_json()))
    assert load_pipeline(str(tmp_path / "p.json")) == PRESETS[name] == load_pipeline(name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the preset cannot be read"),
        ("[]", "not a preset"),
        ('{"schema": "other/1", "steps": []}', "other/1"),
        ('{"schema": "sanderling.preprocess/1", "steps": [{"do": "blur"}]}', "no step"),
        ('{"schema": "sanderling.preprocess/1", "steps": [{"do": "crop", "by": 1}]}', "no 'by'"),
        ('{"schema": "sanderling.preprocess/1", "steps": [{"do": "crop", "fraction": 2}]}',
         "a fraction of 2"),
        ('{"schema": "sanderling.preprocess/1", "steps": [{"do": "resize", "how": "magic"}]}',
         "no interpolation 'magic'"),
    ],
)  # fmt: skip
def test_bad_presets_are_explained(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(InputError, match=message):
        load_pipeline(str(tmp_path / "p.json"))


def test_a_letterbox_can_be_undone(picture: Path) -> None:
    for centre in (False, True):
        _, frame, _ = Pipeline((Letterbox(centre=centre),))(picture, port(DType.UINT8, 66))
        assert frame.scale == (0.5, 0.5)
        top = (66 - 40) // 2 if centre else 0
        assert frame.origin == (-top / 2, 0.0)


def test_bare_pixels_are_taken_as_they_are(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (10, 10, 3)).astype(np.uint8)
    pixels.tofile(tmp_path / "p.rgb8")
    assert np.array_equal(PRESETS["tflite"](tmp_path / "p.rgb8", port(DType.UINT8))[0][0], pixels)
    with pytest.raises(InputError, match="300 bytes, an input of 12x12x3 has 432"):
        PRESETS["tflite"](tmp_path / "p.rgb8", port(DType.UINT8, 12))


# -- statistics ---------------------------------------------------------------------------------


def test_intervals_are_the_books() -> None:
    assert paired_statistics.wilson(8, 10) == pytest.approx((0.4901625, 0.9433178), abs=1e-6)
    assert paired_statistics.wilson(0, 10)[0] == 0 and paired_statistics.wilson(10, 10)[
        1
    ] == pytest.approx(1)
    assert paired_statistics.mcnemar(10, 2)["exact"] == pytest.approx(2 * (1 + 12 + 66) / 4096)
    assert paired_statistics.mcnemar(10, 2)["mid"] == pytest.approx((2 * (1 + 12 + 66) - 66) / 4096)
    assert (
        paired_statistics.mcnemar(3, 3)["exact"] == 1
        and paired_statistics.mcnemar(0, 0)["mid"] == 1
    )
    assert paired_statistics.mcnemar(5000, 5300)["exact"] == pytest.approx(0.00321, rel=0.02)
    # Bonett and Price: (1 + 7) and (1 + 1) of 52.
    found = paired_statistics.difference(7, 1, 50)
    assert found["value"] == pytest.approx(0.12)
    half = 1.959964 * math.sqrt((10 / 52 - (6 / 52) ** 2) / 52)
    assert (found["low"], found["high"]) == pytest.approx((6 / 52 - half, 6 / 52 + half), rel=1e-4)


def test_pairs_are_counted() -> None:
    found = paired_statistics.paired(
        [True, True, False, False, True], [True, False, True, False, False]
    )
    assert found["right"] == {
        "ours": 3,
        "theirs": 2,
        "both": 1,
        "only_ours": 2,
        "only_theirs": 1,
        "neither": 1,
    }


def test_distances_of_scores() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(50, 8)).astype(np.float32)
    shifted = logits + 3
    far = paired_statistics.score_distance(logits, shifted)
    assert far["snr_of"] == "logits" and far["snr_db"] > 120 and far["kl_max"] < 1e-10
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert paired_statistics.score_distance(chances, logits)["kl_max"] < 1e-10
    assert paired_statistics.score_distance(chances, logits)["kl_of"] == "all classes"
    noisy = paired_statistics.score_distance(logits, logits + rng.normal(size=logits.shape) / 10)
    assert 18 < noisy["snr_db"] < 22 and noisy["kl_mean"] > 0


def test_the_zeros_of_an_8_bit_softmax_are_no_divergence() -> None:
    """What an int8 output rounds to 0 is nothing that a network got wrong."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 1, (200, 1000))
    logits[np.arange(200), rng.integers(0, 1000, 200)] += 11  # mostly sure of one class
    chances = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    codes = np.rint(chances * 256) / 256
    far = paired_statistics.score_distance(chances.astype(np.float32), codes.astype(np.float32))
    assert far["kl_mean"] < 0.02 and "says 0 taken as one" in far["kl_of"]
    # But a class that the test misses counts, and much.
    wrong = np.roll(codes, 1, axis=-1)
    assert paired_statistics.score_distance(chances, wrong)["kl_mean"] > 2
    assert paired_statistics.snr(logits, logits) == math.inf


def test_two_models_are_compared(digits: Path, alone: Evaluation) -> None:
    other = evaluate_task(F32, digit_task(digits, detail=True), decoders=0)
    found = compare_evaluations(alone, other)
    assert found["samples"] == COUNT
    assert found["agreement"]["value"] > 0.9
    assert found["scores"]["snr_of"] == "probabilities" and found["scores"]["snr_db"] > 15
    right = found["top1"]["right"]
    assert right["ours"] == alone.metrics["right"][0]
    assert right["ours"] - right["theirs"] == right["only_ours"] - right["only_theirs"]
    itself = compare_evaluations(alone, alone)
    assert itself["top1"]["difference"]["value"] == 0 and itself["scores"]["snr_db"] == math.inf


# -- labels -------------------------------------------------------------------------------------


def opened(classes: int, **settings: Any) -> Classification:
    task = Classification(**settings)
    ports = Ports({"x": port(DType.UINT8)}, {"y": Tensor("y", DType.FLOAT32, (1, classes))})
    task.open(ports)
    return task


@pytest.mark.parametrize(
    ("classes", "shift", "found"), [(1001, 1, 1), (1000, 0, 0), (1000, -1, -1), (1001, 0, 0)]
)
def test_the_offset_is_found(classes: int, shift: int, found: int) -> None:
    """Half of the answers are right with one offset, a few by chance with another."""
    truth = np.arange(100) * 9 + 1
    said = np.where(np.arange(100) % 2 == 0, truth + shift, truth + 500) % classes
    said[1] = truth[1] + (0 if shift else 1)
    best = np.stack([said, (said + 7) % classes], axis=1).astype(np.int32)
    task = opened(classes)
    samples = [Sample(str(i), truth=int(n)) for i, n in enumerate(truth)]
    assert task.found_offset(samples, best)["value"] == found
    assert f"{found:+d}: 50" in task.found_offset(samples, best)["why"]
    stated = opened(classes, offset="0").found_offset(samples, best)
    assert stated == {"value": 0, "why": "stated"}


@pytest.mark.parametrize(
    ("classes", "largest", "samples", "warned"),
    [(10, 9, 20, False), (11, 9, 20, False), (12, 9, 20, True), (1001, 9, 20, False)],
    ids=["the same", "with a background", "too many", "too few samples to tell"],
)
def test_labels_of_other_classes_are_warned_of(
    classes: int, largest: int, samples: int, warned: bool
) -> None:
    task = opened(classes)
    truth = [Sample(str(i), truth=i % (largest + 1)) for i in range(samples)]
    task.check_labels(truth)
    found = task.metric(truth, [{"top": np.int32([s.truth, 0])} for s in truth])
    assert ("go from 0 to 9" in found.get("warning", "")) == warned
    line = f"from 0 to {largest}; the model has {classes} classes"
    assert any(line in text for text in task.lines(found))


def test_the_labels_origin_is_said(digits: Path, alone: Evaluation) -> None:
    table = digit_task(digits, labels=digits / "labels.csv")
    found = evaluate_task(INT8, table, decoders=0)
    origin = f"labels: {digits / 'labels.csv'}, column 'label', from 0 to 9"
    assert any(origin in line for line in table.lines(found.metrics))
    assert alone.metrics["labels"]["from"] == str(digits / "labels.txt")


def test_integers_that_need_scaling_are_refused_at_once(tmp_path: Path) -> None:
    """The digits that ship are pixels from 0 to 16: every sample would fail."""
    words = ["arrays", F32, "--data", DATA / "digits_test.npz"]
    assert "--std 255" in said(*words) and "uint8" in said(*words)
    text = call(*words, "--std", 16).stdout
    assert "labels: " in text and "array 'labels', from 0 to 9" in text


def test_of_equal_scores_the_first_is_better() -> None:
    found = opened(5).postprocess(Sample(""), [np.float32([[1, 3, 3, 0, 3]])], None)
    assert found["top"].tolist() == [1, 2, 4, 0, 3]


def test_labels_come_in_many_forms(digits: Path, alone: Evaluation, tmp_path: Path) -> None:
    pictures = sorted((digits / "img").iterdir())
    labels = (digits / "labels.txt").read_text().split()
    names = [f"digit {i}, as written" for i in range(10)]
    (tmp_path / "names.txt").write_text("\n".join(names))
    pairs = [f"{p.name} {n}" for p, n in zip(pictures, labels, strict=True)]
    (tmp_path / "pairs.txt").write_text("\n".join(reversed(pairs)))
    (tmp_path / "words.txt").write_text("\n".join(names[int(n)].upper() for n in labels))
    for p, n in zip(pictures, labels, strict=True):
        (tmp_path / "folders" / f"{n}").mkdir(parents=True, exist_ok=True)
        (tmp_path / "folders" / n / p.name).write_bytes(p.read_bytes())
    model = tmp_path / "names.txt"
    forms: list[dict[str, Any]] = [
        {"labels": digits / "labels.csv"},
        {"labels": tmp_path / "pairs.txt"},
        {"labels": tmp_path / "words.txt", "model_output_labels": model},
        {"labels": None, "images": tmp_path / "folders"},
    ]
    for form in forms:
        found = evaluate_task(INT8, digit_task(digits, **form), decoders=0)
        assert found.metrics["right"] == alone.metrics["right"], form
    shown = digit_task(digits, model_output_labels=model)
    found = evaluate_task(INT8, shown, decoders=0)
    assert any("digit" in line for line in shown.lines(found.metrics) if "confused" in line) or (
        not found.metrics["confusions"]
    )


def test_folders_are_never_guessed(digits: Path, tmp_path: Path) -> None:
    picture = next((digits / "img").iterdir()).read_bytes()

    def truths(*folders: str, **settings: Any) -> set[int]:
        root = tmp_path / "-".join(folders)
        for name in folders:
            (root / name).mkdir(parents=True)
            (root / name / "a.png").write_bytes(picture)
        task = digit_task(digits, labels=None, images=root, **settings)
        task.open(Ports.of(load(INT8)))
        return {s.truth for s in task.samples()}

    names = tmp_path / "names.txt"
    names.write_text("\n".join(f"d{i}" for i in range(10)))
    assert truths("7", "3") == {7, 3}
    assert truths("d2", "d8", model_output_labels=names) == {2, 8}
    assert truths(*"abcdefghij") == set(range(10))
    with pytest.raises(InputError, match="2 folders, the model has 10 classes"):
        truths("cat", "dog")
    with pytest.raises(InputError, match="'dog' has no class name"):
        truths("d3", "dog", model_output_labels=names)


def test_a_denylist_counts_from_one(digits: Path, tmp_path: Path) -> None:
    (tmp_path / "deny.txt").write_text("1\n3\n")
    task = digit_task(digits, denylist=tmp_path / "deny.txt")
    task.open(Ports.of(load(INT8)))
    assert [s.id for s in task.samples()][:3] == ["001.png", "003.png", "004.png"]


def test_confusion_is_named() -> None:
    task = opened(10)
    truth = [3, 3, 3, 5, 5, 7]
    best = [[5, 3], [3, 5], [5, 3], [3, 5], [5, 3], [7, 0]]
    samples = [Sample(str(i), truth=n) for i, n in enumerate(truth)]
    metrics = task.metric(samples, [{"top": np.int32(b)} for b in best])
    assert metrics["right"] == [3, 6]
    assert metrics["confusions"][0] == {
        "classes": [3, 5],
        "names": ["class 3", "class 5"],
        "times": 3,
    }
    worst = metrics["worst_classes"][0]
    assert (worst["class"], worst["right"], worst["samples"]) == (3, 1, 3)
    assert worst["instead"] == [{"class": 5, "name": "class 5", "times": 2}]


# -- arrays -------------------------------------------------------------------------------------


def test_arrays_of_a_file(tmp_path: Path) -> None:
    held = np.load(DATA / "digits_test.npz")
    np.savez(tmp_path / "d.npz", images=held["images"], labels=held["labels"], extra=np.zeros(3))
    task = make_task("arrays", data=str(tmp_path / "d.npz"), std="16")
    found = evaluate_task(INT8, task)
    session = load(INT8).compile()
    x = sanderling.quantize_array(held["images"][..., None] / 16, session.model.main.inputs[0])
    assert found.metrics["right"][0] == int((session(x).argmax(axis=1) == held["labels"]).sum())
    assert found.spread["decoders"] == 0


def two_inputs(tmp_path: Path) -> Path:
    """argmax of a + b, over four classes."""
    a, b = (Tensor(n, DType.FLOAT32, (1, 4)) for n in "ab")
    y = Tensor("y", DType.FLOAT32, (1, 4))
    sanderling.save(one_graph([a, b], [y], Op("ADD", [a, b], [y], {})), tmp_path / "two.tflite")
    return tmp_path / "two.tflite"


def test_arrays_of_two_inputs_by_name(tmp_path: Path) -> None:
    model = two_inputs(tmp_path)
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 30, 4))
    y = (a + b).argmax(axis=1)
    np.savez(tmp_path / "d.npz", left=a, b=b, target=np.eye(4)[y])
    task = make_task("arrays", data=tmp_path / "d.npz", input=["a=left"])
    assert evaluate_task(model, task).metrics["top1"] == 1.0
    with pytest.raises(InputError, match="which array is input 'a'"):
        evaluate_task(model, make_task("arrays", data=tmp_path / "d.npz"))
    with pytest.raises(InputError, match="no input 'c'"):
        evaluate_task(model, make_task("arrays", data=tmp_path / "d.npz", input=["c=left"]))


def test_long_sound_is_cut_into_windows(tmp_path: Path) -> None:
    """Scores of windows are averaged: [4, 0], [0, 1], [0, 1] is class 0."""
    x, y = (Tensor(n, DType.FLOAT32, (1, 2)) for n in "xy")
    sanderling.save(one_graph([x], [y], Op("ABS", [x], [y], {})), tmp_path / "m.tflite")
    np.savez(tmp_path / "d.npz", audio=np.array([[4, 0, 0, 1, 0, 1, 9.0]]), label=["loud"])
    (tmp_path / "names.txt").write_text("loud\nquiet\n")
    for means in ({"decoders": 0}, {"decoders": 1}):
        task = make_task(
            "arrays",
            data=tmp_path / "d.npz",
            detail=True,
            model_output_labels=tmp_path / "names.txt",
        )
        found = evaluate_task(tmp_path / "m.tflite", task, **means)  # type: ignore[arg-type]
        assert found.table()["scores"][0].tolist() == pytest.approx([4 / 3, 2 / 3])
        assert found.metrics["top1"] == 1.0


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((5, 8, 8)), "y": np.zeros(4)}, "4 labels"),
        ({"x": np.zeros((5, 8, 8)), "y": np.full(5, 0.5)}, "are not classes"),
        ({"x": np.zeros((5, 8, 8)), "y": np.full(5, 11)}, "go from 11 to 11"),
        ({"x": np.zeros((5, 8, 8)), "z": np.zeros(5)}, "no array is called y"),
        ({"x": np.zeros((5, 8, 8)), "y": np.array(["a"] * 5)}, "'a' is not a class name"),
        ({"p": np.zeros((5, 8)), "q": np.zeros((5, 8)), "y": np.zeros(5)}, "which array"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_bad_arrays_are_explained(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", **arrays)
    assert message in said("arrays", F32, "--data", tmp_path / "d.npz")


# -- real pictures ------------------------------------------------------------------------------


@NEEDS
@pytest.mark.skipif(not FOLDER.is_dir(), reason="no ../shared/datasets/imagenet600")
@pytest.mark.parametrize("name", ["coral_mobilenet_v1_0.25_128_quant", "darknet_tiny_imagenet_f32"])
def test_real_classifiers_agree_with_litert(name: str, tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    found = agreement(model(name), 8, tmp_path)
    assert (found.first, found.five + found.tied, found.apart) == (8, 8, [])

"""`eval imagenet|coco` and `diff` with --device android: TensorFlow Lite's tools on the phone."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sanderling import evaluate_task, make_task, save
from sanderling.ir import DType, Graph, Model
from sanderling.measure.devices.eval_tools import read_metrics
from sanderling.protobuf import parse_text

from .support import scripted_eval
from .support.coco_files import coco_world as coco_world
from .support.command_line import call
from .support.eval_command import F32, INT8, no_shared_cache  # noqa: F401
from .support.phones import Phone, scripted_phone  # noqa: F401

CLASSES, COUNT = 12, 9
IMAGENET, COCO = "imagenet_image_classification", "coco_object_detection"
STORE = "sanderling-files"


def classifier(path: Path, channels: int = 3, classes: int = CLASSES) -> Path:
    """A product of the pixels, on the definitions of operators."""
    graph = Graph()
    x = graph.input("image", DType.FLOAT32, (1, 8, 8, channels))
    flat = graph.tensor("flat", DType.FLOAT32, (1, 64 * channels))
    y = graph.tensor("scores", DType.FLOAT32, (1, classes))
    weights = np.random.default_rng(0).normal(size=(classes, 64 * channels)).astype(np.float32)
    graph.add("RESHAPE", [x, graph.constant("shape", np.int32([1, 64 * channels]))], [flat])
    graph.add("FULLY_CONNECTED", [flat, graph.constant("weights", weights)], [y])
    graph.outputs = [y]
    save(Model([graph]), path)
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pictures, one of them twice, with labels of which the model finds some."""
    folder = tmp_path_factory.mktemp("photos")
    (folder / "img").mkdir()
    rng = np.random.default_rng(1)
    for i in range(COUNT - 1):
        picture = rng.integers(0, 255, (20, 24, 3), np.uint8)
        Image.fromarray(picture).save(folder / "img" / f"{i}.jpg")
    (folder / "img" / "again.jpg").write_bytes((folder / "img" / "0.jpg").read_bytes())
    model = classifier(folder / "model.tflite")
    (folder / "labels.txt").write_text("0\n" * COUNT)
    tops = best_classes(folder, model)
    # Every third label is the best class, the next the second, the next the third.
    labels = [str(top[i % 3]) for i, top in enumerate(tops.values())]
    (folder / "labels.txt").write_text("\n".join(labels))
    # The phone finds the same, but for one picture whose classes are turned round.
    tops["3.jpg"] = tops["3.jpg"][::-1]
    found = {digest(folder / "img" / name): top for name, top in tops.items()}
    record = {"classes": CLASSES, "by_picture": found}
    (folder / "answers.json").write_text(json.dumps(record))
    return {
        "model": model,
        "images": folder / "img",
        "labels": folder / "labels.txt",
        "answers": folder / "answers.json",
    }


def best_classes(folder: Path, model: Path) -> dict[str, list[int]]:
    """The classes that the model finds, from the best on, by file name."""
    task = make_task("imagenet", images=folder / "img", labels=folder / "labels.txt", offset="0")
    found = evaluate_task(
        model, task, delegates=["reference"], decoders=0, shards=folder / "shards"
    )
    samples, predictions = found.came_through
    return {s.id: p["top"].tolist() for s, p in zip(samples, predictions, strict=True)}


def digest(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def answers(photos: dict[str, Path]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(photos["answers"].read_text())
    return found


def words(photos: dict[str, Path], *more: object) -> list[object]:
    given = [photos["model"], "--images", photos["images"], "--labels", photos["labels"]]
    return ["eval", "imagenet", *given, "--label-offset", 0, "--decoders", 0, "--device",
            "android", *more]  # fmt: skip


def pushed(device: Phone) -> list[str]:
    return [Path(w).name for c in device.calls if "push" in c for w in c[3:-1]]


# -- ImageNet -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["binary", "text", "none"])
def test_a_classifier_on_the_phone(
    phone: Callable[..., Phone], photos: dict[str, Path], form: str
) -> None:
    device = phone()
    tool = scripted_eval.install(device.folder, IMAGENET, answers(photos), form)
    more = ["--device-binary", tool, "--use_gpu=true", "--gpu_backend=cl", "--threads", 3]
    record = json.loads(call(*words(photos, *more, "--json", "-")).stdout)
    here, there = record["here"]["metrics"], record["metrics"]
    assert here["right"][:3] == [3, 6, 9] and there["right"][:3] != here["right"][:3]
    assert there["top5"] == pytest.approx(8 / 9)
    compared = record["compared"]["top5"]
    assert compared["difference"] == pytest.approx(there["top5"] - here["top5"])
    assert record["schema"] == "sanderling.eval/1" and record["setting"]["delegates"] == ["gpu"]
    assert record["setting"]["device"] == "android:PHONE1"
    assert record["device"]["model"] == "Pixel 9" and record["evaluated"] == COUNT
    assert record["latency"]["inference"]["mean"] == pytest.approx(50.5e-6)
    assert "completely executed" in record["notes"][0]
    flags = (device.folder / "eval_words").read_text().splitlines()
    assert {"--num_interpreter_threads=3", "--use_gpu=true", "--gpu_backend=cl"} <= set(flags)
    assert device.left == []


def test_the_lines_are_the_guides(phone: Callable[..., Phone], photos: dict[str, Path]) -> None:
    device = phone()
    tool = scripted_eval.install(device.folder, IMAGENET, answers(photos))
    out = device.folder / "metrics.pb"
    text = call(*words(photos, "--device-binary", tool, "--output_file_path", out)).stdout
    assert text.startswith("Num evaluation runs: 9\nPreprocessing latency: avg=50.5(us)")
    assert "Top-10 Accuracy: 1" in text and "against the run here:\ntop1: " in text
    found = read_metrics("", out.read_bytes())["process_metrics"]["image_classification_metrics"]
    assert len(found["topk_accuracy_metrics"]["topk_accuracies"]) == 10


def test_only_what_is_missing_is_pushed(
    phone: Callable[..., Phone], photos: dict[str, Path]
) -> None:
    device = phone(pushes=5)  # the cable is pulled in the fifth file
    binary = ["--device-binary", scripted_eval.install(device.folder, IMAGENET, answers(photos))]
    said = call(*words(photos, *binary), status=2).stderr
    assert "the device was disconnected" in said
    there = {p.name for p in (device.temp / STORE).iterdir()}
    assert len(there) == 4  # the tool is the first of the five; one is a piece of a file
    for name in ("devices", "pushes", "calls"):
        (device.folder / name).unlink()
    (device.folder / "devices").write_text("PHONE1\tdevice\n")
    call(*words(photos, *binary))
    names = [n for n in pushed(device) if n.endswith(".jpg")]
    assert len(names) == 8 - 3 and len(set(names)) == len(names)  # 8 different pictures in all
    (device.folder / "calls").unlink()
    call(*words(photos, *binary))
    assert not [n for n in pushed(device) if n.endswith((".jpg", ".tflite"))]


def test_a_disk_that_is_full(phone: Callable[..., Phone], photos: dict[str, Path]) -> None:
    device = phone(room=20_000)
    tool = scripted_eval.install(device.folder, IMAGENET, answers(photos))
    said = call(*words(photos, "--device-binary", tool), status=2).stderr
    assert "the device's disk is full" in said and "adb shell df /data" in said


def test_a_phone_that_disconnects(phone: Callable[..., Phone], photos: dict[str, Path]) -> None:
    device = phone(disconnects=1)
    tool = scripted_eval.install(device.folder, IMAGENET, answers(photos))
    said = call(*words(photos, "--device-binary", tool), status=2).stderr
    assert "the device was disconnected while it worked" in said


@pytest.mark.parametrize("devices, says", [
    ({}, "no device is connected"),
    ({"A": "device", "B": "device"}, "several devices are connected: A, B"),
    ({"A": "unauthorized"}, "has not authorised this computer"),
    ({"A": "device"}, "no eval_imagenet_image_classification was given"),
])  # fmt: skip
def test_devices_that_cannot_be_used(
    phone: Callable[..., Phone], photos: dict[str, Path], devices: dict[str, str], says: str
) -> None:
    device = phone(devices=devices)
    said = call(*words(photos), status=2).stderr
    assert says in said and device.left == []
    if "given" in says:  # where to get it, and how to push it
        assert "android_aarch64_eval_imagenet_image_classification" in said
        assert "adb push" in said and "imagenet_image_classification:run_eval" in said


def test_a_tool_that_is_another(phone: Callable[..., Phone], photos: dict[str, Path]) -> None:
    device = phone()
    tool = scripted_eval.install(device.folder, "inference_diff", {"errors": [0.1]})
    said = call(*words(photos, "--device-binary", tool), status=2).stderr
    assert "gave no result: it is eval_inference_diff" in said


def test_a_tool_that_fails(phone: Callable[..., Phone], photos: dict[str, Path]) -> None:
    device = phone()
    tool = scripted_eval.install(device.folder, IMAGENET, answers(photos) | {"classes": 5})
    said = call(*words(photos, "--device-binary", tool), status=2).stderr
    assert "Invalid model_output_shape_; Could not run the task evaluation!" in said


@pytest.mark.parametrize(
    "more, says",
    [
        (["--adb", "no_adb"], "the command 'no_adb' is not there"),
        (["--against", INT8], "the device is compared with the run here"),
        (["--predictions", "x.npz"], "tells accuracies and no predictions"),
        (["--preset", "caffe"], "the tool on the device has a preprocessing of its own"),
        (["--delegate", "reference"], "devices have no delegate 'reference'"),
        (["--device", "ios"], "TensorFlow Lite has no evaluation tools for iOS"),
        (["--require", "compared.nothing=1", "--device", "toaster"], "there is no device"),
    ],
)
def test_what_a_device_cannot_do(
    photos: dict[str, Path],
    phone: Callable[..., Phone],
    monkeypatch: pytest.MonkeyPatch,
    more: list[object],
    says: str,
) -> None:
    device = phone()
    monkeypatch.chdir(device.folder)
    tool = scripted_eval.install(device.folder, IMAGENET, answers(photos))
    assert says in call(*words(photos, "--device-binary", tool, *more), status=2).stderr


def test_models_and_pictures_that_the_tool_does_not_take(
    photos: dict[str, Path], phone: Callable[..., Phone], tmp_path: Path
) -> None:
    phone()
    shutil.copytree(photos["images"].parent, tmp_path / "own")
    photos = {name: tmp_path / "own" / path.name for name, path in photos.items()}
    grey = classifier(photos["model"].with_name("grey.tflite"), channels=1)
    assert (
        "the tool feeds pictures of three"
        in call(*words(photos | {"model": grey}), status=2).stderr
    )
    few = classifier(photos["model"].with_name("few.tflite"), classes=9)
    photos["labels"].write_text("1\n" * COUNT)
    assert "wants 10 classes at least" in call(*words(photos | {"model": few}), status=2).stderr
    Image.new("RGB", (9, 9)).save(photos["images"] / "other.png")
    photos["labels"].write_text("1\n" * (COUNT + 1))
    assert "decodes JPEG only" in call(*words(photos), status=2).stderr
    data = F32.with_name("digits_test.npz")
    said = call("eval", "arrays", F32, "--data", data, "--device", "android", status=2).stderr
    assert "no tool for the task 'arrays'" in said


# -- COCO -----------------------------------------------------------------------------------------


def test_a_detector_on_the_phone(
    phone: Callable[..., Phone],
    world: dict[str, Path],
) -> None:
    """Every detection is read: the phone's AP is computed by the same code as ours."""
    device = phone()
    boxes = [[0.1, 0.1, 0.5, 0.5], [0.2, 0.4, 0.9, 0.9], [0.0, 0.0, 0.1, 0.1]]
    same = list(zip(boxes, (0, 16, 3), (0.9, 0.6, 0.5), strict=True))
    spoilt = {digest(world["images"] / "0.jpg"): [same[0]]}
    tool = scripted_eval.install(device.folder, COCO, {"usual": same, "by_picture": spoilt})
    data = ["--images", world["images"], "--annotations", world["truth"], "--decoders", 0]
    phone_words = ["--device", "android", "--device-binary", tool]
    given = ["eval", "coco", world["model"], *data, *phone_words]
    record = json.loads(call(*given, "--json", "-").stdout)
    assert record["metrics"]["tool_mAP"] == pytest.approx(0.275)
    assert record["metrics"]["detections"] == record["here"]["metrics"]["detections"] - 1
    assert record["metrics"]["AP"] < record["here"]["metrics"]["AP"]
    assert record["compared"]["AP"]["difference"]["value"] < 0
    assert 0.9 < record["compared"]["agreement"] < 1
    text = call(*given).stdout
    assert "Average Precision  (AP) @[ IoU=0.50:0.95" in text and "against the run here:" in text


# -- diff -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["binary", "none"])
def test_inference_diff_on_the_phone(phone: Callable[..., Phone], form: str) -> None:
    device = phone()
    tool = scripted_eval.install(device.folder, "inference_diff", {"errors": [0.5]}, form)
    given = ["diff", INT8, "--device", "android", "--device-binary", tool, "--delegate", "nnapi"]
    more = ["--nnapi_accelerator_name=google-edgetpu", "--runs", 20, "--max-avg-error", 0.01]
    record = json.loads(call(*given, *more, "--json", "-").stdout)
    (output,) = record["outputs"]
    assert output["raw"]["avg_error"] == 0.5 and record["runs"] == 20
    assert output["real"]["avg_error"] == pytest.approx(0.5 / 256)
    assert record["latency"]["test"]["mean"] == pytest.approx(50.5e-6)
    assert record["test"]["delegates"] == ["nnapi"] and record["reference"]["threads"] == 1
    flags = (device.folder / "eval_words").read_text()
    assert "--use_nnapi=true" in flags and "--nnapi_accelerator_name=google-edgetpu" in flags
    text = call(*given, "--max-avg-error", 0.001, status=1).stdout
    assert "OutputDiff[0]: avg_error=0.5, std_dev=0.25" in text and device.left == []


@pytest.mark.parametrize(
    "more, says",
    [
        ([F32], "a device compares one model"),
        (["--min-snr", "30"], "the device tells mean errors only"),
        (["--device", "ios"], "no inference_diff for iOS"),
        ([], "no eval_inference_diff was given"),
    ],
)
def test_diffs_that_a_device_does_not_make(
    phone: Callable[..., Phone], more: list[object], says: str
) -> None:
    phone()
    assert says in call("diff", INT8, "--device", "android", *more, status=2).stderr


def test_outputs_that_the_tool_told_wrongly(phone: Callable[..., Phone]) -> None:
    device = phone()
    tool = scripted_eval.install(device.folder, "inference_diff", {"errors": [0.5, 1]})
    given = ["diff", INT8, "--device", "android", "--device-binary", tool]
    assert "errors of 2 outputs, the model has 1" in call(*given, status=2).stderr


@pytest.mark.parametrize("content", ["num_runs {", "what is this", "num_runs: x"])
def test_texts_that_are_no_message(content: str) -> None:
    with pytest.raises(ValueError):
        parse_text("EvaluationStageMetrics", content)

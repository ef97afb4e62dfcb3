"""Detection: COCO's figures to the last digit, heads, class numbers, files, and what is wrong."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sanderling import errors
from sanderling.evaluate.tasks.average_precision import THRESHOLDS
from sanderling.evaluate.tasks.coco import evaluate_results
from sanderling.evaluate.tasks.coco_metrics import ENGINES, Truth, evaluate_official, summary

from .support import shared_models
from .support.coco_files import IDS, NAMES, Record, annotations, by_pycocotools, detector, write
from .support.coco_files import coco_pair as coco_pair
from .support.coco_files import coco_world as coco_world
from .support.command_line import call

FIGURES = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")


def test_twelve_figures_to_the_last_digit(pair: tuple[Path, Path]) -> None:
    wanted, lines = by_pycocotools(*pair)
    found = evaluate_results(*pair)
    assert [found[n] for n in FIGURES] == wanted
    assert summary(found) == lines
    assert len(set(wanted)) > 8  # the pair tells the figures apart
    assert found["evaluator"] == ENGINES[0]


def test_the_faster_evaluator_agrees(pair: tuple[Path, Path]) -> None:
    pytest.importorskip("faster_coco_eval")
    wanted, lines = by_pycocotools(*pair)
    found = evaluate_results(*pair, "faster-coco-eval")
    np.testing.assert_allclose([found[n] for n in FIGURES], wanted, rtol=0, atol=1e-13)
    assert summary(found) == lines and found["evaluator"] == "faster-coco-eval"


def test_results_from_the_command_line(pair: tuple[Path, Path], tmp_path: Path) -> None:
    wanted, lines = by_pycocotools(*pair)
    out = tmp_path / "out.json"
    words = ("eval", "coco", "--annotations", pair[0], "--results", pair[1])
    said = call(*words, "--json", out).stdout.splitlines()
    assert said[:12] == lines
    titles = [f"Average Precision [IOU Threshold={t:g}]" for t in THRESHOLDS]
    assert [line.split(":")[0] for line in said[12:]] == [*titles, "Overall mAP"]
    record = json.loads(out.read_text())
    assert record["schema"] == "sanderling.eval/1" and record["metrics"]["AP"] == wanted[0]
    assert set(record["metrics"]["by_category"]) == set(NAMES[:4])
    call(*words, "--require", "AP=0.99", status=1)
    assert "--limit has no effect" in call(*words, "--limit", 1).stderr


def test_nothing_found_is_zero(pair: tuple[Path, Path], tmp_path: Path) -> None:
    found = evaluate_results(pair[0], write(tmp_path / "none.json", []))
    assert found["AP"] == found["AR100"] == found["simple_mAP"] == 0.0


def test_records_are_left_as_they_were(pair: tuple[Path, Path]) -> None:
    truth = Truth.read(pair[0])
    rows = json.loads(pair[1].read_text())
    evaluate_official(truth, rows, truth.images)
    assert rows == json.loads(pair[1].read_text())
    assert truth.annotations == json.loads(pair[0].read_text())["annotations"]


def test_annotations_are_filled_in_and_said(tmp_path: Path) -> None:
    truth = annotations()
    for row in truth["annotations"]:
        del row["area"], row["iscrowd"]
    truth["annotations"][0]["image_id"] = 999
    found = Truth.read(write(tmp_path / "a.json", truth))
    assert found.annotations[0]["area"] == np.prod(truth["annotations"][0]["bbox"][2:])
    assert any("no 'area'" in n for n in found.notes) and any("lists" not in n for n in found.notes)
    assert any("does not list" in n for n in found.notes)


# -- from the command line ----------------------------------------------------------------------


def words(world: dict[str, Path]) -> list[object]:
    return [
        "eval",
        "coco",
        world["model"],
        "--images",
        world["images"],
        "--annotations",
        world["truth"],
        "--decoders",
        0,
    ]


def test_end_to_end_is_what_pycocotools_says(world: dict[str, Path]) -> None:
    saved, out = world["root"] / "found.json", world["root"] / "out.json"
    said = call(*words(world), "--save-results", saved, "--json", out).stdout
    wanted, lines = by_pycocotools(world["truth"], saved)
    assert "\n".join(lines) in said and said.startswith("Num evaluation runs: 5\n")
    metrics = json.loads(out.read_text())["metrics"]
    assert metrics["AP"] == wanted[0] == evaluate_results(world["truth"], saved)["AP"]
    assert 0.3 < metrics["AP"] < 1 and metrics["uncounted_detections"] == 5
    rows = json.loads(saved.read_text())
    assert len(rows) == 10 and rows[1]["category_id"] == 17
    np.testing.assert_allclose(rows[0]["bbox"], [6.4, 4.8, 25.6, 19.2], rtol=1e-6)


def test_two_detectors_side_by_side(world: dict[str, Path]) -> None:
    """Against itself nothing differs; against one that sees a cat as a person, AP is lost."""
    record = json.loads(call(*words(world), "--against", world["model"], "--json", "-").stdout)
    made = record["compared"]
    assert made["agreement"] == 1.0 and made["AP"]["ours"] == record["metrics"]["AP"]
    assert made["AP"]["difference"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    blind = detector(world["root"] / "blind.tflite", classes=(0, 0, 3))
    saved, kept = world["root"] / "found.json", world["root"] / "kept.npz"
    said = call(*words(world), "--against", blind, "--save-results", saved).stdout
    assert {r["category_id"] for r in json.loads(saved.read_text())} == {1, 17}  # not the other's
    call(*words(world)[:2], blind, *words(world)[3:], "--predictions", kept)
    assert call(*words(world), "--against", kept).stdout.count("\nAP: ") == 1
    assert "boxes of a score of 0.3 or more that both find: 0.5" in said
    assert "AP: " in said and "95 % interval +" in said


def test_pictures_that_cannot_be_read_are_named_and_counted(world: dict[str, Path]) -> None:
    whole = (world["images"] / "0.jpg").read_bytes()
    (world["images"] / "0.jpg").write_bytes(whole[: len(whole) // 2])
    (world["images"] / "2.jpg").unlink()
    out, saved = world["root"] / "out.json", world["root"] / "found.json"
    result = call(*words(world), "--json", out, "--save-results", saved)
    record = json.loads(out.read_text())
    assert record["failed"] == 2 and record["evaluated"] == 3
    assert "2 of 5 samples could not be read" in result.stderr
    assert "0.jpg: not a readable picture" in result.stderr
    assert "2.jpg: the picture is not there" in result.stderr
    truth = json.loads(world["truth"].read_text())
    truth["images"] = [truth["images"][i] for i in (1, 3, 4)]
    wanted, _ = by_pycocotools(write(world["root"] / "left.json", truth), saved)
    assert record["metrics"]["AP"] == wanted[0]
    call(*words(world), "--max-failures", 1, status=1)


def varint(value: int) -> bytes:
    made = b""
    while value > 127:
        made, value = made + bytes([value & 127 | 128]), value >> 7
    return made + bytes([value])


def block(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def ground_truth(truth: Record) -> bytes:
    """As TensorFlow Lite's script writes it: boxes in parts of the picture."""
    made = b""
    for image in truth["images"]:
        result = b""
        for row in truth["annotations"]:
            if row["image_id"] == image["id"]:
                x, y, w, h = row["bbox"]
                wide, tall = image["width"], image["height"]
                edges = (y / tall, (y + h) / tall, x / wide, (x + w) / wide)
                box = b"".join(
                    varint(i << 3 | 5) + struct.pack("<f", v) for i, v in enumerate(edges, 1)
                )
                result += block(1, varint(1 << 3) + varint(row["category_id"]) + block(2, box))
        made += block(
            1, result + block(2, image["file_name"].encode()) + varint(3 << 3) + varint(image["id"])
        )
    return made


def test_the_guides_flags_and_lines(world: dict[str, Path]) -> None:
    truth = json.loads(world["truth"].read_text())
    (world["root"] / "ground_truth.pb").write_bytes(ground_truth(truth))
    names = ["???"] * 91
    for i, name in zip(IDS, NAMES, strict=True):
        names[i] = name
    (world["root"] / "labelmap.txt").write_text("\n".join(names))
    flags = {
        "model_file": world["model"],
        "model_output_labels": world["root"] / "labelmap.txt",
        "ground_truth_images_path": world["images"],
        "ground_truth_proto": world["root"] / "ground_truth.pb",
        "debug_mode": "true",
        "output_file_path": world["root"] / "metrics.pb",
        "num_interpreter_threads": 2,
        "delegate": "xnnpack",
    }
    said = call("eval", "coco", *(f"--{k}={v}" for k, v in flags.items()), "--decoders=0").stdout
    plain = call(*words(world)).stdout
    mine, theirs = (
        [
            line
            for line in text.splitlines()
            if line.startswith((" Average", "Average Precision [", "Overall mAP"))
        ]
        for text in (said, plain)
    )
    assert len(mine) == 23 and mine == theirs  # the same boxes, whichever file they came from
    for line in (
        "Image: 3.jpg",
        "Object [1]",
        "  Score: 0.6",
        "  Class-ID: 17",
        "    Normalized Top: 0.2",
        "Num evaluation runs: 5",
    ):
        assert line in said.splitlines()
    assert "Preprocessing latency: avg=" in said and "Inference latency: avg=" in said
    overall = struct.pack("<f", float(mine[-1].split(": ")[1]))
    assert overall[1:] in (world["root"] / "metrics.pb").read_bytes()


def test_without_annotations_boxes_are_found(world: dict[str, Path]) -> None:
    said = call("eval", "coco", world["model"], "--images", world["images"], "--decoders", 0).stdout
    assert "15 boxes in 5 pictures" in said and "Average" not in said


def test_a_copy_of_another_size_is_scaled(world: dict[str, Path]) -> None:
    """Boxes are in pixels of the annotated size, though the file at hand is smaller."""
    before = json.loads(call(*words(world), "--json", "-").stdout)["metrics"]["AP"]
    for path in world["images"].iterdir():
        Image.open(path).resize((20, 16)).save(path)
    assert json.loads(call(*words(world), "--json", "-").stdout)["metrics"]["AP"] == before


def spoil(world: dict[str, Path], name: str) -> tuple[list[object], str]:
    """A command with something wrong, and what must be said of it."""
    root, given = world["root"], words(world)
    (root / "empty").mkdir()
    (root / "other").mkdir()
    Image.new("RGB", (4, 4)).save(root / "other" / "zebra.png")
    (root / "bad.json").write_text('{"images": [')
    (root / "bad.pb").write_bytes(b"\x00\xffnot a message")
    truth = json.loads(world["truth"].read_text())
    rows = [{"image_id": 5, "category_id": 1, "bbox": [0, 0, 1, 1], "score": 1}]
    (root / "labels.txt").write_text("dog\ncow\n")
    del_id = json.loads(json.dumps(truth))
    del del_id["annotations"][1]["category_id"]
    wrong_box = json.loads(json.dumps(truth))
    wrong_box["annotations"][0]["bbox"] = [1, 2, 3]
    at = ["eval", "coco", "--annotations", world["truth"]]
    table: dict[str, tuple[list[object], str]] = {
        "empty folder": ([*given, "--images", root / "empty"], "the folder is empty"),
        "no folder": ([*given, "--images", root / "none"], "no such folder"),
        "another folder": (
            [*given, "--images", root / "other"],
            "none of the 5 annotated pictures is in it, such as 0.jpg",
        ),
        "no file": (
            [*given, "--annotations", root / "none.json"],
            "the annotations cannot be read",
        ),
        "half a file": ([*given, "--annotations", root / "bad.json"], "not well-formed JSON"),
        "not a proto": (
            [*given, "--annotations", root / "bad.pb"],
            "neither COCO annotations (JSON) nor a binary ObjectDetectionGroundTruth",
        ),
        "results as annotations": (
            [*given, "--annotations", write(root / "r.json", rows)],
            "it looks like results, which --results takes",
        ),
        "no categories": (
            [*given, "--annotations", write(root / "c.json", truth | {"categories": 3})],
            "there is no list 'categories' in it",
        ),
        "incomplete": (
            [*given, "--annotations", write(root / "d.json", del_id)],
            "annotations[1] has no 'category_id'",
        ),
        "a box of three": (
            [*given, "--annotations", write(root / "e.json", wrong_box)],
            "annotation 1: its bbox is [1, 2, 3]",
        ),
        "labels": (
            [*given, "--labels", root / "labels.txt"],
            "none of its labels (dog, cow) is a category",
        ),
        "outputs": (
            [*given[:2], detector(root / "three.tflite", 3), *given[3:]],
            "its 3 outputs are those of no known detector: 'out0' f32[1,3,4]",
        ),
        "head": ([*given, "--head", "yolox"], "the head 'yolox' has 1 outputs"),
        "order": ([*given, "--output-order", "boxes,boxes,scores,count"], "in some order"),
        "save": ([*given, "--save-results", root / "none" / "r.json"], "there is no folder"),
        "strange results": (
            [*at, "--results", write(root / "r.json", rows)],
            "pictures of the results are not in the annotations",
        ),
        "no results": (
            [*at, "--results", write(root / "n.json", [{"image_id": 1}])],
            "row 0 has no 'category_id'",
        ),
        "a result's box": (
            [
                *at,
                "--results",
                write(root / "b.json", [rows[0] | {"image_id": 100, "bbox": [1, 2]}]),
            ],
            "row 0: its bbox is [1, 2]",
        ),
        "ids": (
            [
                *given,
                "--annotations",
                write(root / "i.json", truth | {"images": [{"id": "x", "file_name": "0.jpg"}]}),
            ],
            "images[0]: its id is 'x'",
        ),
        "results alone": (["eval", "coco", "--results", root / "r.json"], "there are none"),
        "evaluator": ([*given, "--evaluator", "mine"], "there is no evaluator 'mine'"),
        "nothing": (["eval", "coco", world["model"]], "no pictures are given"),
    }
    return table[name]


@pytest.mark.parametrize("name", [
    "empty folder", "no folder", "another folder", "no file", "half a file", "not a proto",
    "results as annotations", "no categories", "incomplete", "a box of three", "labels", "outputs",
    "head", "order", "save", "strange results", "no results", "a result's box", "ids",
    "results alone", "evaluator", "nothing"])  # fmt: skip
def test_what_is_wrong_is_said(name: str, world: dict[str, Path]) -> None:
    given, said = spoil(world, name)
    result = call(*given, status=2)
    assert said in " ".join(result.stderr.split()), result.stderr
    assert "Traceback" not in result.output


def test_every_picture_unreadable_is_an_error(world: dict[str, Path]) -> None:
    for path in world["images"].iterdir():
        path.write_bytes(b"no picture")
    result = call(*words(world), status=2)
    assert "none of 5 samples came through" in result.stderr


def test_the_extra_is_named(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pycocotools", "pycocotools.coco", "pycocotools.cocoeval", "faster_coco_eval"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(errors.MissingExtraError, match=r"pip install 'sanderling\[eval\]'"):
        evaluate_results(*pair)


# -- a real detector -----------------------------------------------------------------------------


@shared_models.NEEDS
def test_a_real_detector_on_real_pictures(tmp_path: Path) -> None:
    """YOLOX's answers on ten pictures, judged as pycocotools judges the file they are saved in."""
    data = shared_models.ROOT / "datasets" / "coco_val100"
    out, saved = tmp_path / "out.json", tmp_path / "found.json"
    call(
        "eval",
        "coco",
        shared_models.model("yolox_nano_416_coco_f32"),
        "--images",
        data / "images",
        "--annotations",
        data / "instances.json",
        "--limit",
        10,
        "--json",
        out,
        "--save-results",
        saved,
        "--decoders",
        0,
    )
    metrics = json.loads(out.read_text())["metrics"]
    truth = json.loads((data / "instances.json").read_text())
    truth["images"] = truth["images"][:10]
    wanted, _ = by_pycocotools(write(tmp_path / "ten.json", truth), saved)
    assert metrics["AP"] == wanted[0] and metrics["AP50"] == wanted[1]
    assert metrics["AP"] > 0.3 and metrics["head"] == "yolox"

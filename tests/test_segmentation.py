"""Segmentation and keypoints: figures against plain definitions, classes, files, what is wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sanderling import errors, save
from sanderling.evaluate.images.preprocess import Frame
from sanderling.evaluate.tasks.coco_metrics import KEYPOINT_ROWS, Truth, evaluate_official, summary
from sanderling.evaluate.tasks.keypoints import (
    ImageRegion,
    Keypoints,
    around,
    from_heatmaps,
    read_points,
)
from sanderling.evaluate.tasks.segmentation import VOC, confusion, figures, match_names
from sanderling.ir import Array, DType, Graph, Model

from .support import shared_models
from .support.coco_files import by_pycocotools, write
from .support.command_line import call

Record = dict[str, Any]
RNG = np.random.default_rng(4)


# -- segmentation: figures ----------------------------------------------------------------------


def test_confusion_and_figures_by_counting() -> None:
    truth, found = RNG.integers(-1, 3, (20, 30)), RNG.integers(0, 3, (20, 30))
    total = confusion(truth, found, 4)
    for t in range(4):
        for f in range(4):
            assert total[t, f] == ((truth == t) & (found == f)).sum()
    made = figures(total, ["a", "b", "c", "d"])
    counts = truth >= 0
    ious = [
        ((truth == k) & (found == k)).sum() / (((truth == k) | (found == k)) & counts).sum()
        for k in range(3)
    ]
    assert made["mIoU"] == pytest.approx(np.mean(ious))
    assert made["pixel_accuracy"] == pytest.approx((truth == found)[counts].mean())
    assert made["classes"] == 3 and list(made["by_class"]) == ["a", "b", "c"]


def test_a_class_that_is_only_found() -> None:
    total = np.array([[8, 0, 2], [0, 10, 0], [0, 0, 0]])
    made = figures(total, ["a", "b", "c"])
    assert made["mIoU"] == pytest.approx(0.9) and made["mIoU_seen"] == pytest.approx(0.6)


def test_names_match_across_spellings() -> None:
    coco = {1: "person", 5: "airplane", 63: "couch", 72: "tv", 118: "floor", 67: "dining table"}
    found = match_names(coco, VOC, "classes.json")
    assert {n: VOC[i] for n, i in found.items()} == {
        1: "person",
        5: "aeroplane",
        63: "sofa",
        72: "tvmonitor",
        67: "diningtable",
    }
    with pytest.raises(errors.InputError, match="none of its classes is one of the model's"):
        match_names({1: "zebra"}, VOC, "classes.json")


# -- segmentation: from the command line --------------------------------------------------------


def segmenter(path: Path, scores: bool = True) -> Path:
    """Class 0, 1 or 2: where red, green or blue is most."""
    graph = Graph()
    x = graph.input("image", DType.FLOAT32, (1, 16, 16, 3))
    made = graph.tensor("scores", DType.FLOAT32, x.shape)
    graph.add("MUL", [x, graph.constant("two", np.float32(2))], [made])
    graph.outputs = [made]
    if not scores:
        best = graph.tensor("classes", DType.INT64, (1, 16, 16))
        graph.add(
            "ARG_MAX", [made, graph.constant("axis", np.int32(3))], [best], output_type="INT64"
        )
        graph.outputs = [best]
    save(Model([graph]), path)
    return path


@pytest.fixture
def scenes(tmp_path: Path) -> dict[str, Path]:
    """Pictures in three colours, halves and quarters; masks say 10, 20, 30 for red, green, blue."""
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    colours = np.uint8(np.eye(3) * 255)
    for i in range(3):
        classes = np.zeros((32, 48), np.uint8)
        classes[:, 24:] = 1
        classes[16:, : 24 * (i > 0)] = 2
        Image.fromarray(colours[classes]).save(tmp_path / "images" / f"{i}.png")
        mask = np.uint8([10, 20, 30])[classes]
        mask[:8, :12] = 20 if i == 2 else mask[0, 0]  # the model errs here, or the annotator
        Image.fromarray(mask).save(tmp_path / "masks" / f"{i}.png")
    (tmp_path / "labels.txt").write_text("red\ngreen\nblue\n")
    write(
        tmp_path / "classes.json",
        [{"id": 10, "name": "Red"}, {"id": 20, "name": "green"}, {"id": 30, "name": "blue"}],
    )
    write(tmp_path / "mapping.json", {"10": 0, "20": 1, "30": None})
    return {"root": tmp_path, "model": segmenter(tmp_path / "model.tflite")}


def segment(scenes: dict[str, Path], *more: object) -> list[object]:
    root = scenes["root"]
    return [
        "eval",
        "segmentation",
        scenes["model"],
        "--images",
        root / "images",
        "--masks",
        root / "masks",
        "--decoders",
        0,
        "--mask-classes",
        root / "classes.json",
        "--labels",
        root / "labels.txt",
        *more,
    ]


def expected(skip: int = -1) -> dict[str, float]:
    """Three pictures of 1536 pixels, 96 of them wrong."""
    wrong, count = 96, 3 * 32 * 48
    blue = 2 * 16 * 24
    left = blue if skip == 2 else 0
    return {"pixel_accuracy": 1 - wrong / (count - left)}


@pytest.mark.parametrize("at", ["mask", "model"])
@pytest.mark.parametrize("scores", [True, False])
def test_segmentation_end_to_end(at: str, scores: bool, scenes: dict[str, Path]) -> None:
    segmenter(scenes["model"], scores)
    record = json.loads(call(*segment(scenes, "--at", at, "--json", "-")).stdout)
    assert record["metrics"]["pixel_accuracy"] == pytest.approx(
        expected()["pixel_accuracy"], abs=0.02 if at == "model" else 0.01
    )
    assert list(record["metrics"]["by_class"]) == ["red", "green", "blue"]
    said = call(*segment(scenes, "--at", at)).stdout
    assert "mIoU: 0.9" in said and "3 annotated classes" in said and "  green  IoU 0.9" in said


def test_a_mapping_leaves_pixels_out(scenes: dict[str, Path]) -> None:
    root = scenes["root"]
    base = segment(scenes)[:-4]
    record = json.loads(call(*base, "--mapping", root / "mapping.json", "--json", "-").stdout)
    assert record["metrics"]["pixel_accuracy"] == pytest.approx(
        expected(2)["pixel_accuracy"], abs=0.01
    )
    ignored = json.loads(call(*segment(scenes, "--ignore", 30, "--json", "-")).stdout)
    assert ignored["metrics"]["pixel_accuracy"] == record["metrics"]["pixel_accuracy"]


def test_a_letterboxed_picture_is_compared_within_its_edges(scenes: dict[str, Path]) -> None:
    steps = [{"do": "letterbox", "fill": 255, "centre": True, "how": "nearest"}]
    write(scenes["root"] / "preset.json", {"schema": "sanderling.preprocess/1", "steps": steps})
    for at in ("mask", "model"):
        given = segment(scenes, "--preset", scenes["root"] / "preset.json", "--at", at)
        made = json.loads(call(*given, "--json", "-").stdout)["metrics"]
        assert made["pixel_accuracy"] == pytest.approx(expected()["pixel_accuracy"], abs=0.06)


def test_masks_that_cannot_be_read_are_named_and_counted(scenes: dict[str, Path]) -> None:
    masks = scenes["root"] / "masks"
    (masks / "0.png").write_bytes((masks / "0.png").read_bytes()[:60])
    (masks / "1.png").unlink()
    result = call(*segment(scenes))
    assert "2 of 3 samples could not be read" in result.stderr
    assert (
        "0.png: not a readable mask" in result.stderr and "1.png: it has no mask" in result.stderr
    )
    Image.new("RGB", (48, 32)).save(masks / "0.png")
    Image.new("L", (4, 4)).save(masks / "1.png")
    said = call(*segment(scenes)).stderr
    assert "a mask in colours (RGB)" in said and "the mask is 4x4, the picture 48x32" in said


@pytest.mark.parametrize(("more", "said"), [
    (("--masks", "empty"), "the folder is empty"),
    (("--masks", "strange"), "no picture of"),
    (("--labels", "voc"), "21 labels, the model has 3 classes"),
    (("--at", "home"), "one of mask, model"),
    (("--mapping", "labels.txt"), "the mapping cannot be read"),
    (("--mask-classes", "mapping.json"), "not a list of classes"),
    (("--ignore", "70000"), "70000 is no mask's number"),
    (("--mapping", "huge.json"), "99999 is no mask's number"),
])  # fmt: skip
def test_segmentation_says_what_is_wrong(
    more: Sequence[str], said: str, scenes: dict[str, Path]
) -> None:
    root = scenes["root"]
    (root / "empty").mkdir()
    (root / "strange").mkdir()
    write(root / "huge.json", {"99999": 1})
    Image.new("L", (4, 4)).save(root / "strange" / "x.png")
    place = root / more[1]
    result = call(*segment(scenes, more[0], place if place.exists() else more[1]), status=2)
    assert said in " ".join(result.stderr.split())


def test_masks_of_other_classes_are_not_taken_for_the_models(scenes: dict[str, Path]) -> None:
    result = call(*segment(scenes)[:-4], status=2)
    assert "it has class 20, the model's are 0 to 2" in result.stderr


def test_an_output_that_is_no_picture(scenes: dict[str, Path]) -> None:
    graph = Graph()
    x = graph.input("image", DType.FLOAT32, (1, 16, 16, 3))
    made = graph.tensor("flat", DType.FLOAT32, (1, 768))
    graph.add("RESHAPE", [x, graph.constant("s", np.int32([1, 768]))], [made])
    graph.outputs = [made]
    save(Model([graph]), scenes["model"])
    assert "its output is f32[1,768], not scores" in call(*segment(scenes), status=2).stderr


def test_two_segmenters_side_by_side(scenes: dict[str, Path]) -> None:
    record = json.loads(call(*segment(scenes, "--against", scenes["model"], "--json", "-")).stdout)
    assert record["compared"]["mIoU"]["ours"] == pytest.approx(record["metrics"]["mIoU"])
    assert record["compared"]["pixel_accuracy"]["difference"]["high"] == 0
    assert "mIoU: 0.9" in call(*segment(scenes, "--against", scenes["model"])).stdout


@shared_models.NEEDS
def test_a_real_segmenter_on_real_masks(tmp_path: Path) -> None:
    data = shared_models.ROOT / "datasets" / "coco_val100"
    made = json.loads(
        call(
            "eval",
            "segmentation",
            shared_models.model("deeplabv3_257_mv_gpu_f32"),
            "--images",
            data / "images",
            "--masks",
            data / "semantic_masks",
            "--mask-classes",
            data / "semantic_classes.json",
            "--limit",
            8,
            "--at",
            "model",
            "--decoders",
            0,
            "--json",
            "-",
        ).stdout
    )["metrics"]
    assert made["pixel_accuracy"] > 0.75 and made["by_class"]["person"]["IoU"] > 0.4


# -- keypoints ----------------------------------------------------------------------------------


def people(seed: int = 0, keypoints: int = 17) -> Record:
    rng = np.random.default_rng(seed)
    images = [{"id": i + 1, "file_name": f"{i}.png", "height": 240, "width": 320} for i in range(6)]
    rows: list[Record] = []
    for image in images[:5]:
        for _ in range(int(rng.integers(1, 4))):
            size = float(rng.choice([60, 150]))
            corner = rng.uniform(0, 80, 2)
            points = corner + rng.uniform(0, size, (keypoints, 2))
            seen = rng.integers(0, 3, keypoints)
            flat = np.concatenate([points * (seen > 0)[:, None], seen[:, None]], axis=1)
            rows.append(
                {
                    "id": len(rows) + 1,
                    "image_id": image["id"],
                    "category_id": 1,
                    "bbox": [*corner.tolist(), size, size],
                    "area": size * size * 0.6,
                    "iscrowd": 0,
                    "num_keypoints": int((seen > 0).sum()),
                    "keypoints": [float(n) for n in flat.reshape(-1)],
                }
            )
    names = [f"k{i}" for i in range(keypoints)]
    return {
        "images": images,
        "annotations": rows,
        "categories": [{"id": 1, "name": "person", "keypoints": names}],
    }


def guesses(truth: Record) -> list[Record]:
    rng = np.random.default_rng(9)
    rows = []
    for row in truth["annotations"]:
        points = np.array(row["keypoints"]).reshape(-1, 3)
        shaken = points[:, :2] + rng.normal(size=(len(points), 2)) * row["bbox"][2] * 0.05
        flat = np.concatenate([shaken, np.ones((len(points), 1))], axis=1).reshape(-1)
        rows.append(
            {
                "image_id": row["image_id"],
                "category_id": 1,
                "score": float(rng.random()),
                "keypoints": [float(n) for n in flat],
            }
        )
    return rows


def test_object_keypoint_similarity_is_the_official_one(tmp_path: Path) -> None:
    truth = people()
    files = (write(tmp_path / "t.json", truth), write(tmp_path / "r.json", guesses(truth)))
    wanted, lines = by_pycocotools(*files, "keypoints")
    read = Truth.read(files[0])
    found = evaluate_official(read, guesses(truth), read.images, "keypoints")
    assert found.stats == wanted and len(set(wanted)) > 4
    assert summary(found.figures(), "keypoints") == lines
    assert [row.name for row in KEYPOINT_ROWS][:2] == ["AP", "AP50"]


def test_points_from_every_kind_of_output() -> None:
    single = np.zeros((1, 1, 17, 3), np.float32)
    single[0, 0, 3] = (0.25, 0.5, 0.9)  # y, x, score
    points, scores = read_points(single, ["y", "x", "score"], (192, 256))
    assert points.shape == (1, 17, 3) and points[0, 3].tolist() == pytest.approx([128, 48, 0.9])
    assert scores[0] == pytest.approx(0.9 / 17)
    flat = np.zeros((1, 10), np.float32)
    flat[0, 5:7] = (100, 20)
    points, _ = read_points(flat, ["x", "y", "z", "score", "presence"], (192, 256))
    assert points[0, 1, :2].tolist() == [100, 20]
    several = np.zeros((1, 6, 56), np.float32)
    several[0, 2, [0, 1, 55]] = (0.5, 0.25, 0.8)
    points, scores = read_points(several, ["y", "x", "score"], (192, 256))
    assert points.shape == (6, 17, 3) and points[2, 0, :2].tolist() == [64, 96]
    assert scores[2] == pytest.approx(0.8)
    with pytest.raises(errors.InputError, match="is not made of y,x,score"):
        read_points(np.zeros((1, 10), np.float32), ["y", "x", "score"], (8, 8))


def test_heatmaps_lean_to_the_higher_neighbour() -> None:
    maps = np.zeros((1, 12, 16, 2), np.float32)
    maps[0, 3, 5, 0], maps[0, 3, 6, 0] = 1.0, 0.5
    maps[0, 11, 0, 1] = 0.7
    points = from_heatmaps(maps, (48, 64))
    assert points[0, 0].tolist() == [(5 + 0.75) * 4, 3.5 * 4, 1.0]
    assert points[0, 1].tolist() == pytest.approx([0.5 * 4, 11.5 * 4, 0.7])  # not beyond an edge


def test_a_region_beyond_the_edges() -> None:
    pixels = np.arange(60, dtype=np.uint8).reshape(6, 10, 1)
    frame = Frame(pixels, (4, 4), (6, 10))
    ImageRegion(-1, 8, 4, 4, fill=7).apply(frame)
    assert frame.pixels[:, :, 0].tolist() == [[7] * 4, [8, 9, 7, 7], [18, 19, 7, 7], [28, 29, 7, 7]]
    assert frame.origin == (-1, 8)
    region = around((10, 20, 30, 40), (100, 50), 1.25)
    assert (region.height, region.width) == (75, 38)  # proportions of the input
    assert region.top == round(40 - 75 / 2) and region.left == 25 - 19


def pose_model(path: Path, answer: Array) -> Path:
    graph = Graph()
    x = graph.input("image", DType.FLOAT32, (1, 16, 16, 3))
    mean, nil = graph.tensor("mean", DType.FLOAT32, ()), graph.tensor("nil", DType.FLOAT32, ())
    graph.add("MEAN", [x, graph.constant("axes", np.int32([0, 1, 2, 3]))], [mean], keep_dims=False)
    graph.add("MUL", [mean, graph.constant("zero", np.float32(0))], [nil])
    made = graph.tensor("pose", DType.FLOAT32, answer.shape)
    graph.add("ADD", [nil, graph.constant("answer", answer)], [made])
    graph.outputs = [made]
    save(Model([graph]), path)
    return path


@pytest.fixture
def crowd(tmp_path: Path) -> dict[str, Path]:
    """Everybody's keypoints stand in the same places of their box; the model knows them."""
    (tmp_path / "images").mkdir()
    truth = people()
    spots = np.random.default_rng(5).uniform(0.1, 0.9, (17, 2))  # x, y in parts of the box
    for row in truth["annotations"]:
        left, top, wide, tall = row["bbox"]
        flat = np.stack([left + spots[:, 0] * wide, top + spots[:, 1] * tall, np.full(17, 2)], 1)
        row |= {"keypoints": flat.reshape(-1).tolist(), "num_keypoints": 17}
    for image in truth["images"]:
        Image.new("RGB", (320, 240)).save(tmp_path / "images" / image["file_name"])
    seen = 0.5 + (spots - 0.5) / 1.25  # in a cut that is larger by the margin
    answer = np.concatenate([seen[:, ::-1], np.full((17, 1), 0.9)], axis=1).astype(np.float32)
    return {
        "images": tmp_path / "images",
        "truth": write(tmp_path / "people.json", truth),
        "model": pose_model(tmp_path / "pose.tflite", answer[None, None]),
        "root": tmp_path,
    }


def pose(crowd: dict[str, Path], *more: object) -> list[object]:
    return [
        "eval",
        "keypoints",
        crowd["model"],
        "--images",
        crowd["images"],
        "--annotations",
        crowd["truth"],
        "--decoders",
        0,
        *more,
    ]


def test_keypoints_end_to_end(crowd: dict[str, Path]) -> None:
    made = json.loads(call(*pose(crowd, "--json", "-")).stdout)["metrics"]
    assert made["AP"] == pytest.approx(1.0) and made["PCK"] == 1.0
    said = call(*pose(crowd, "--pck", 0.1)).stdout
    assert "PCK@0.1: 1" in said and said.count("Average Precision  (AP)") == 5
    whole = json.loads(call(*pose(crowd, "--look", "picture", "--json", "-")).stdout)["metrics"]
    assert whole["AP"] < 0.5 and whole["pictures"] == 6  # one guess a picture, in the wrong place


def test_two_keypoint_models_are_compared_in_pairs(crowd: dict[str, Path]) -> None:
    """The other model swaps two keypoints and has the rest right."""
    task = [
        "--against",
        crowd["model"],
        "--against-set",
        f"keypoint_order={','.join(map(str, (1, 0, *range(2, 17))))}",
    ]
    made = json.loads(call(*pose(crowd, *task, "--json", "-")).stdout)
    people, found = made["metrics"]["people"], made["compared"]
    assert made["against"]["metrics"]["AP"] == pytest.approx(found["AP"]["theirs"])
    assert made["metrics"]["AP"] == pytest.approx(found["AP"]["ours"])
    assert found["PCK"]["ours"] == 1 and found["PCK"]["theirs"] == pytest.approx(15 / 17)
    # Everybody loses the same two of 17: no draw of pictures shows another difference.
    gap = found["PCK"]["difference"]
    assert gap["low"] == pytest.approx(2 / 17) == gap["high"]
    each = found["by_keypoint"]
    assert [n for n in each if each[n]["right"]["only_ours"]] == ["k0", "k1"]
    assert each["k0"]["right"]["only_ours"] == people
    assert each["k0"]["mcnemar"]["exact"] == pytest.approx(2 * 0.5**people)
    assert each["k2"]["mcnemar"]["exact"] == 1 and found["apart"]["median"] == 0
    said = call(*pose(crowd, *task)).stdout
    assert "PCK@0.2: 1.0000 against 0.8824, difference +0.1176 (95 % interval +0.1176" in said
    assert f"k0: right here only {people}, there only 0; McNemar's p = " in said
    assert "2 of 17 keypoints differ" in said and "k2: right here" not in said


def test_a_keypoint_model_equals_itself_and_its_kept_predictions(crowd: dict[str, Path]) -> None:
    kept = crowd["root"] / "kept.npz"
    call(*pose(crowd, "--look", "picture", "--predictions", kept))
    said = call(*pose(crowd, "--look", "picture", "--against", kept)).stdout
    assert "difference +0.0000 (95 % interval +0.0000 to +0.0000)" in said
    assert "McNemar" not in said and "median 0, p95 0" in said


def test_keypoints_in_another_order(crowd: dict[str, Path]) -> None:
    turned = ",".join(str(i) for i in (*range(1, 17), 0))
    made = json.loads(call(*pose(crowd, "--keypoint-order", turned, "--json", "-")).stdout)
    assert made["metrics"]["PCK"] < 0.5


def test_keypoints_say_what_is_wrong(crowd: dict[str, Path]) -> None:
    root = crowd["root"]
    few = people(keypoints=5)
    none = people()
    for row in none["annotations"]:
        del row["keypoints"]
    table = {
        "no annotation in it has keypoints": pose(
            crowd, "--annotations", write(root / "n.json", none)
        ),
        "5 keypoints: the similarity's spreads are known": pose(
            crowd, "--annotations", write(root / "f.json", few)
        ),
        "the model gives 17 keypoints, the annotations have 5": pose(
            crowd, "--annotations", root / "f.json", "--sigmas", "0.05"
        ),
        "'a,b' has no x and y": pose(crowd, "--fields", "a,b"),
        "is not made of y,x": pose(crowd, "--fields", "y,x,z,u,v"),
        "one of person, picture": pose(crowd, "--look", "away"),
        "keypoint 17: the model has 17": pose(crowd, "--keypoint-order", "17"),
    }
    for said, given in table.items():
        assert said in " ".join(call(*given, status=2).stderr.split())


def test_a_missing_picture_is_counted(crowd: dict[str, Path]) -> None:
    (crowd["images"] / "1.png").unlink()
    result = call(*pose(crowd))
    assert "1.png#" in result.stderr and "the picture is not there" in result.stderr


def test_pck_by_torso() -> None:
    task = Keypoints(images=Path("x"), annotations=Path("y"), pck_size="torso")
    truth = np.zeros((17, 3))
    truth[:, 2] = 2
    truth[12, :2] = (30, 40)
    assert task._size({"bbox": [0, 0, 7, 9]}, truth) == 50
    truth[5, 2] = 0
    assert task._size({"bbox": [0, 0, 7, 9]}, truth) == 9


@shared_models.NEEDS
def test_a_real_pose_model_agrees_with_itself(tmp_path: Path) -> None:
    """Its own answers as annotations: what it finds again must be right."""
    data = shared_models.ROOT / "datasets" / "coco_val100"
    model = shared_models.model("coral_movenet_single_pose_lightning_ptq")
    instances = json.loads((data / "instances.json").read_text())
    rows = [a for a in instances["annotations"] if a["category_id"] == 1 and a["area"] > 20000][:4]
    kept = {a["image_id"] for a in rows}
    images = [i for i in instances["images"] if i["id"] in kept]
    flat = [0.0, 0.0, 2.0] * 17
    truth = {
        "images": images,
        "categories": [{"id": 1, "name": "person"}],
        "annotations": [a | {"keypoints": flat, "num_keypoints": 17} for a in rows],
    }
    args = ("eval", "keypoints", model, "--images", data / "images", "--decoders", 0)
    table = tmp_path / "found.json"
    call(*args, "--annotations", write(tmp_path / "a.json", truth), "--predictions", table)
    found = json.loads(table.read_text())
    by_id = {row["id"].split("#")[1]: row for row in found}
    for row in truth["annotations"]:
        points = np.array(by_id[str(row["id"])]["points"]).reshape(17, 3)
        row["keypoints"] = np.c_[points[:, :2], np.full(17, 2)].reshape(-1).tolist()
    again = call(*args, "--annotations", write(tmp_path / "b.json", truth), "--json", "-")
    assert json.loads(again.stdout)["metrics"]["PCK"] == 1.0

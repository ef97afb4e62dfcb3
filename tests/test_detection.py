"""Detection in pieces: heads, suppression, class numbers, the tool's own AP, intervals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sanderling import errors, load
from sanderling.evaluate.bootstrap import Curves, compared
from sanderling.evaluate.images.preprocess import Frame, Letterbox
from sanderling.evaluate.task import Ports
from sanderling.evaluate.tasks import detection
from sanderling.evaluate.tasks.average_precision import THRESHOLDS, simple_average_precision
from sanderling.evaluate.tasks.categories import LabelFile, map_classes
from sanderling.evaluate.tasks.coco import Coco
from sanderling.evaluate.tasks.coco_metrics import Truth, evaluate_official
from sanderling.evaluate.tasks.detection import (
    BoxLimits,
    Candidates,
    Scene,
    find_head,
    select,
    unplace,
)
from sanderling.ir import Array, DType, Graph, Tensor
from sanderling.runtime.inputs import dequantize_array

from .support import shared_models
from .support.coco_files import IDS, NAMES, annotations, by_pycocotools, detections, write
from .support.coco_files import coco_pair as coco_pair

Record = dict[str, Any]


# -- heads --------------------------------------------------------------------------------------

BOX = (0.25, 0.125, 0.75, 0.625)  # left, top, right, bottom, in parts of the input


def test_ssd_outputs_in_every_known_order() -> None:
    boxes = np.float32([[[0.1, 0.2, 0.3, 0.4], [0.5, 0.5, 0.9, 1.0], [0, 0, 0, 0]]])
    named = {
        "boxes": boxes,
        "classes": np.float32([[3, 0, 0]]),
        "scores": np.float32([[0.9, 0.4, 0]]),
        "count": np.float32([2]),
    }
    for order, stated in (
        (detection.SSD_ORDER, ()),
        (detection.TF2_ORDER, ()),
        (("count", "scores", "classes", "boxes"),) * 2,
    ):
        found = detection.read_ssd([named[n] for n in order], Scene((8, 8), stated))
        np.testing.assert_allclose(found.boxes[0], [0.2, 0.1, 0.4, 0.3], rtol=1e-6)
        assert found.classes.tolist() == [3, 0]
        assert found.scores.tolist() == pytest.approx([0.9, 0.4])
    with pytest.raises(errors.InputError, match="--output-order"):
        detection.read_ssd(
            [named[n] for n in ("count", "scores", "classes", "boxes")], Scene((8, 8))
        )


def yolox_rows(size: tuple[int, int], box: Sequence[float], kind: int, classes: int) -> Array:
    """A head that sees one box, in the cell of stride 16 that holds its middle."""
    places, strides = detection.cells(size)
    rows = np.zeros((len(places), 5 + classes))
    middle = np.array([(box[0] + box[2]) / 2 * size[1], (box[1] + box[3]) / 2 * size[0]])
    extent = np.array([(box[2] - box[0]) * size[1], (box[3] - box[1]) * size[0]])
    at = np.nonzero((strides == 16) & (places == middle // 16).all(axis=1))[0][0]
    rows[at, :2] = middle / 16 - places[at]
    rows[at, 2:4] = np.log(extent / 16)
    rows[at, [4, 5 + kind]] = 0.9, 0.8
    return rows[None].astype(np.float32)


def decoded_row(box: Sequence[float], unit: Sequence[float]) -> list[float]:
    left, top, right, bottom = box
    return [
        (left + right) / 2 * unit[0],
        (top + bottom) / 2 * unit[1],
        (right - left) * unit[0],
        (bottom - top) * unit[1],
    ]


def test_raw_heads_find_the_box() -> None:
    size = (96, 64)
    yolov5 = np.zeros((1, 50, 8), np.float32)
    yolov5[0, 7] = [*decoded_row(BOX, (1, 1)), 0.9, 0, 0.8, 0]  # in parts
    pixels = np.zeros((1, 7, 40), np.float32)
    pixels[0, :, 9] = [*decoded_row(BOX, (64, 96)), 0, 0.72, 0]
    anchors = detection.ssd_anchors(size)
    boxes, scores = np.zeros((1, len(anchors), 4)), np.zeros((1, len(anchors), 5))
    y, x, tall, wide = anchors[20]
    boxes[0, 20] = [
        (0.375 - y) / tall * 10,
        (0.5 - x) / wide * 10,
        np.log(0.5 / tall) * 5,
        np.log(0.5 / wide) * 5,
    ]
    scores[0, 20, 2] = 0.72  # behind the background
    for head, outputs in (
        ("yolox", [yolox_rows(size, BOX, 1, 3)]),
        ("yolov5", [yolov5]),
        ("yolov8", [pixels]),
        ("ssd-raw", [scores, boxes]),
    ):
        raw = detection.HEADS[head].read(outputs, Scene(size))
        assert isinstance(raw, Candidates)
        found = select(raw, detection.HEADS[head].limits)
        np.testing.assert_allclose(found.boxes, [BOX], atol=1e-5, err_msg=head)
        assert found.classes.tolist() == [1] and found.scores == pytest.approx([0.72], abs=1e-6)


def test_logits_become_probabilities() -> None:
    logits = np.array([[-3.0, 0.0, 4.0]])
    np.testing.assert_allclose(detection.probabilities(logits), 1 / (1 + np.exp(-logits)))
    assert detection.probabilities(np.array([[0.0, 1.0]])).tolist() == [[0.0, 1.0]]


def test_heads_are_known_by_their_outputs() -> None:
    def head(*shapes: tuple[int, ...], name: str = "auto") -> str:
        outputs = [Tensor(f"o{i}", DType.FLOAT32, s) for i, s in enumerate(shapes)]
        return find_head(name, outputs, (416, 416), "m.tflite").name

    assert head((), (), (), ()) == "ssd"
    assert head((1, 3549, 85)) == "yolox"
    assert head((1, 3 * 3549, 85)) == "yolov5"
    assert head((1, 84, 3549)) == "yolov8"
    assert head((1, 1917, 4), (1, 1917, 91)) == "ssd-raw"
    with pytest.raises(errors.InputError, match="3 outputs are those of no known detector: 'o0'"):
        head((1, 3), (1, 3), (1, 3))
    with pytest.raises(errors.InputError, match="'yolox' has 1 outputs"):
        head((), (), (), (), name="yolox")
    with pytest.raises(errors.InputError, match="no head 'yolo'"):
        head((1, 3549, 85), name="yolo")


def test_suppression_against_the_plain_way() -> None:
    rng = np.random.default_rng(3)
    boxes = rng.uniform(0, 0.6, (200, 4))
    boxes[:, 2:] = boxes[:, :2] + rng.uniform(0.1, 0.4, (200, 2))
    scores, classes = rng.integers(0, 50, 200) / 50.0, rng.integers(0, 3, 200)
    kept: list[int] = []
    for i in sorted(range(200), key=lambda i: -scores[i]):
        if all(classes[i] != classes[k] or _iou(boxes[i], boxes[k]) <= 0.5 for k in kept):
            kept.append(i)
    found = detection.suppress(boxes, scores, classes, BoxLimits(0, 0.5, 1000))
    assert found.tolist() == kept and 20 < len(kept) < 150
    assert detection.suppress(boxes, scores, classes, BoxLimits(0, 0.5, 7)).tolist() == kept[:7]


def _iou(a: Array, b: Array) -> float:
    return iou((*a[:2], *(a[2:] - a[:2])), (*b[:2], *(b[2:] - b[:2])))


def test_one_class_a_box_or_every_one() -> None:
    raw = Candidates(np.array([[0.0, 0, 1, 1]]), np.array([[0.5, 0.6]]))
    assert select(raw, BoxLimits(0.01)).classes.tolist() == [1, 0]
    assert select(raw, BoxLimits(0.01, every_class=False)).classes.tolist() == [1]


@pytest.mark.parametrize("centre", [False, True])
def test_boxes_leave_the_letterbox(centre: bool) -> None:
    """A white rectangle is found where the picture has it, whatever the input's shape."""
    pixels = np.zeros((100, 200, 3), np.uint8)
    pixels[30:70, 50:150] = 255
    frame = Frame(pixels, (64, 96), (100, 200))
    Letterbox(fill=0, centre=centre).apply(frame)
    assert frame.pixels.shape == (64, 96, 3)
    rows, columns = np.nonzero(frame.pixels[..., 0] > 127)
    seen = np.array(
        [[columns.min() / 96, rows.min() / 64, (columns.max() + 1) / 96, (rows.max() + 1) / 64]]
    )
    np.testing.assert_allclose(unplace(seen, frame), [[0.25, 0.3, 0.75, 0.7]], atol=0.015)


def test_anchors_of_the_mobile_ssd() -> None:
    anchors = detection.ssd_anchors((300, 300))
    assert len(anchors) == 1917
    np.testing.assert_allclose(anchors[0], [0.5 / 19, 0.5 / 19, 0.1, 0.1])
    np.testing.assert_allclose(anchors[-1], [0.5, 0.5, np.sqrt(0.95), np.sqrt(0.95)])


@shared_models.NEEDS
def test_anchors_are_those_in_a_real_model() -> None:
    stored = load(shared_models.model("ssd_mobilenet_v1_coco_uint8")).main.ops[-1].inputs[2]
    assert stored.quant is not None and stored.data is not None
    theirs = dequantize_array(stored.data, stored)
    step = float(stored.quant.scale[0])
    assert np.abs(theirs - detection.ssd_anchors((300, 300))).max() <= step / 2 + 1e-6


def test_settings_are_options_of_the_task() -> None:
    task = Coco(images=Path("x"), score_threshold=0.2, nms_iou=0.4, max_boxes=5, every_class=False)
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (1, 64, 64, 3))
    made = graph.tensor("y", DType.FLOAT32, (1, 84, 8))
    graph.add("RESHAPE", [x, graph.constant("s", np.int32([1, 84, 8]))], [made])
    ports = Ports({"x": x}, {"y": Tensor("y", DType.FLOAT32, (1, 84, 85))}, "m")
    task.open(ports)
    assert task.limits == BoxLimits(0.2, 0.4, 5, False) and task.reading.name == "yolox"


# -- classes ------------------------------------------------------------------------------------


def truth_of(ids: Sequence[int], names: Sequence[str]) -> Truth:
    rows = [{"id": i, "name": n} for i, n in zip(ids, names, strict=True)]
    return Truth({1: {"id": 1, "file_name": "a.jpg"}}, [], rows, "a.json")


def labels_of(tmp_path: Path, *lines: str) -> LabelFile:
    (tmp_path / "labels.txt").write_text("\n".join(lines) + "\n")
    return LabelFile.read(tmp_path / "labels.txt")


def test_class_numbers_without_labels() -> None:
    truth = truth_of(IDS, NAMES)
    contiguous = map_classes(truth, None, None, 5)
    assert [contiguous.category(c) for c in range(5)] == list(IDS)
    ids_less_one = map_classes(truth, None, None, 90)
    assert [ids_less_one.category(c) for c in (0, 1, 2, 16, 89)] == [1, 2, None, 17, 90]
    ids = map_classes(truth, None, None, 91)
    assert [ids.category(c) for c in (0, 1, 17)] == [None, 1, 17]
    unknown = map_classes(truth, None, None, None)  # as TensorFlow Lite's tool: plus one
    assert unknown.category(16) == 17
    assert map_classes(truth, None, 0, None).category(17) == 17
    with pytest.raises(errors.InputError, match="7 classes, the annotations 5 categories"):
        map_classes(truth, None, None, 7)


def test_class_numbers_by_label(tmp_path: Path) -> None:
    truth = truth_of(IDS, NAMES)
    with_gaps = labels_of(tmp_path, "???", "Person", "bicycle", "???", "aeroplane", "cat")
    found = map_classes(truth, with_gaps, None, None)
    assert [found.category(c) for c in range(5)] == [1, 2, None, 5, 17]
    assert found.notes == [
        "1 of 5 categories have no label, the model cannot find them: toothbrush"
    ]
    plain = labels_of(tmp_path, *NAMES)
    assert [map_classes(truth, plain, None, 5).category(c) for c in range(5)] == list(IDS)
    numbered = labels_of(tmp_path, "0  person", "16  cat", "89  toothbrush")
    assert map_classes(truth, numbered, None, None).category(16) == 17
    with pytest.raises(errors.InputError, match="the model found class 3"):
        map_classes(truth, numbered, None, None).category(3)


@pytest.mark.parametrize(
    ("lines", "classes", "said"),
    [
        (("dog", "cow"), None, "none of its labels .dog, cow. is a category"),
        (NAMES, 7, "it has 5 labels, the model 7 classes"),
        (("",), None, "there is no label in it"),
    ],
)
def test_labels_that_do_not_fit(
    lines: Sequence[str], classes: int | None, said: str, tmp_path: Path
) -> None:
    with pytest.raises(errors.InputError, match=said):
        map_classes(truth_of(IDS, NAMES), labels_of(tmp_path, *lines), None, classes)


# -- the average precision of TensorFlow Lite's tool ---------------------------------------------


def plain_ap(truth: list[Record], found: list[Record], threshold: np.float32) -> float:
    """One class, one threshold, as its documentation tells it, box by box."""
    open_boxes = {id(t): t for t in truth}
    curve = []
    hits = 0
    for n, row in enumerate(sorted(found, key=lambda r: -r["score"]), 1):
        near = [
            (iou(row["bbox"], t["bbox"]), k)
            for k, t in open_boxes.items()
            if t["image_id"] == row["image_id"]
        ]
        best = max(near, default=(0, None), key=lambda x: x[0])
        if best[1] is not None and best[0] >= threshold:
            del open_boxes[best[1]]
            hits += 1
        curve.append((hits / len(truth), hits / n))
    return (
        sum(
            max((p for r, p in curve if r >= level / 100 - 1e-9), default=0.0)
            for level in range(101)
        )
        / 101
    )


def iou(a: Sequence[float], b: Sequence[float]) -> float:
    wide = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    tall = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    shared_area = max(wide, 0) * max(tall, 0)
    return shared_area / (a[2] * a[3] + b[2] * b[3] - shared_area)


def test_the_tools_average_precision() -> None:
    truth = annotations()
    found = detections(truth)
    simple = simple_average_precision(truth["annotations"], found)
    table = np.zeros((len(IDS), len(THRESHOLDS)))
    for k, kind in enumerate(IDS[:4]):  # the last is only found: it counts as 0
        rows = [
            [r for r in side if r["category_id"] == kind] for side in (truth["annotations"], found)
        ]
        table[k] = [plain_ap(*rows, t) for t in THRESHOLDS]
    np.testing.assert_allclose(simple.by_threshold, table.mean(axis=0), atol=1e-6)
    assert simple.overall == pytest.approx(table.mean(), abs=1e-6)
    assert simple.lines()[1].startswith("Average Precision [IOU Threshold=0.55]: ")


# -- intervals --------------------------------------------------------------------------------


def test_a_picture_drawn_once_is_the_official_figure(pair: tuple[Path, Path]) -> None:
    """Weights of 1 give AP itself; weights of 2 for a picture are that picture twice."""
    truth = Truth.read(pair[0])
    rows = json.loads(pair[1].read_text())
    found = evaluate_official(truth, rows, truth.images, engine="pycocotools")
    curves = Curves(found.run)
    assert curves(np.ones(12, np.int64)) == pytest.approx(found.stats[0], abs=1e-12)
    record = json.loads(pair[0].read_text())
    record["images"].append(record["images"][3] | {"id": 99})
    double = [
        a | {"image_id": 99, "id": 1000 + a["id"]}
        for a in record["annotations"]
        if a["image_id"] == 13
    ]
    record["annotations"] += double
    rows += [r | {"image_id": 99} for r in rows if r["image_id"] == 13]
    wanted, _ = by_pycocotools(write(pair[0], record), write(pair[1], rows))
    twice = np.ones(12, np.int64)
    twice[3] = 2
    # Copies tie in score: a curve that meets both at once may differ by a hair.
    assert curves(twice) == pytest.approx(wanted[0], abs=5e-3)


def test_paired_intervals_cancel_what_both_share() -> None:
    rng = np.random.default_rng(0)
    hard = rng.random(300)
    both = compared(
        lambda w: float(hard @ w / w.sum()), lambda w: float((hard - 0.01) @ w / w.sum()), 300
    )
    assert both["difference"]["low"] == pytest.approx(0.01) == both["difference"]["high"]
    other = rng.random(300)
    unlike = compared(
        lambda w: float(hard @ w / w.sum()), lambda w: float(other @ w / w.sum()), 300
    )
    gap = unlike["difference"]
    assert gap["low"] < gap["value"] < gap["high"] and gap["high"] - gap["low"] > 0.05

"""Pictures with annotations and detections in COCO's files, a detector of them, and pycocotools."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sanderling import save
from sanderling.ir import DType, Graph, Model

Record = dict[str, Any]
IDS = (1, 2, 5, 17, 90)
NAMES = ("person", "bicycle", "airplane", "cat", "toothbrush")
SIZES = ((48, 64), (60, 40), (50, 50), (33, 65), (64, 64))  # height, width


def annotations(seed: int = 0, pictures: int = 12) -> Record:
    """Small, middle and large boxes, crowds, a picture and a category without any."""
    rng = np.random.default_rng(seed)
    images = [
        {"id": 10 + i, "file_name": f"{i:03}.jpg", "height": 480, "width": 640}
        for i in range(pictures)
    ]
    rows: list[Record] = []
    for image in images[1:]:
        for _ in range(rng.integers(1, 9)):
            side = rng.choice([12, 50, 200]) * rng.uniform(0.7, 1.3, 2)
            corner = rng.uniform(0, 300, 2)
            box = [float(n) for n in (*corner, *side)]
            rows.append(
                {
                    "id": len(rows) + 1,
                    "image_id": image["id"],
                    "bbox": box,
                    "category_id": int(rng.choice(IDS[:4])),
                    "area": box[2] * box[3] * 0.8,
                    "iscrowd": int(rng.random() < 0.1),
                }
            )
    categories = [{"id": i, "name": n} for i, n in zip(IDS, NAMES, strict=True)]
    return {"images": images, "annotations": rows, "categories": categories}


def detections(truth: Record, seed: int = 1) -> list[Record]:
    """Most boxes, shaken; some twice, some of a wrong class; and noise."""
    rng = np.random.default_rng(seed)
    rows = []
    for row in truth["annotations"]:
        for _ in range(rng.choice([0, 1, 1, 2])):
            shaken = np.array(row["bbox"]) + rng.normal(size=4) * row["bbox"][2] * 0.08
            kind = row["category_id"] if rng.random() < 0.9 else int(rng.choice(IDS))
            rows.append(
                {
                    "image_id": row["image_id"],
                    "category_id": kind,
                    "bbox": [float(n) for n in shaken],
                    "score": float(rng.random()),
                }
            )
    for image in truth["images"]:
        for _ in range(4):
            box = [float(n) for n in rng.uniform(5, 200, 4)]
            rows.append(
                {
                    "image_id": image["id"],
                    "category_id": int(rng.choice(IDS)),
                    "bbox": box,
                    "score": float(rng.random() * 0.7),
                }
            )
    return rows


def write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


@pytest.fixture(name="pair")
def coco_pair(tmp_path: Path) -> tuple[Path, Path]:
    truth = annotations()
    return (
        write(tmp_path / "instances.json", truth),
        write(tmp_path / "results.json", detections(truth)),
    )


def by_pycocotools(truth: Path, results: Path, kind: str = "bbox") -> tuple[list[float], list[str]]:
    """The definition, used as its documentation says; the figures and the lines it prints."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(str(truth))
        run = COCOeval(coco, coco.loadRes(str(results)), kind)
        run.evaluate()
        run.accumulate()
    with contextlib.redirect_stdout(io.StringIO()) as said:
        run.summarize()
    return [float(v) for v in run.stats], said.getvalue().splitlines()


FOUND = np.float32([[[0.1, 0.1, 0.5, 0.5], [0.2, 0.4, 0.9, 0.9], [0.0, 0.0, 0.1, 0.1]]])


def detector(path: Path, outputs: int = 4, classes: Sequence[int] = (0, 16, 3)) -> Path:
    """The same three boxes in every picture: person, cat, and a class that no category has."""
    graph = Graph()
    x = graph.input("image", DType.FLOAT32, (1, 8, 8, 3))
    axes = graph.constant("axes", np.int32([0, 1, 2, 3]))
    mean, nothing = graph.tensor("mean", DType.FLOAT32, ()), graph.tensor("nil", DType.FLOAT32, ())
    graph.add("MEAN", [x, axes], [mean], keep_dims=False)
    graph.add("MUL", [mean, graph.constant("zero", np.float32(0))], [nothing])
    answers = (FOUND, np.float32([classes]), np.float32([[0.9, 0.6, 0.5]]), np.float32([3]))
    for i, answer in enumerate(answers[:outputs]):
        made = graph.tensor(f"out{i}", DType.FLOAT32, answer.shape)
        graph.add("ADD", [nothing, graph.constant(f"answer{i}", answer)], [made])
        graph.outputs.append(made)
    save(Model([graph]), path)
    return path


@pytest.fixture(name="world")
def coco_world(tmp_path: Path) -> dict[str, Path]:
    """Five pictures with annotations of the detector's boxes, more or less."""
    (tmp_path / "images").mkdir()
    rng = np.random.default_rng(2)
    images, rows = [], []
    for i, (height, width) in enumerate(SIZES):
        Image.fromarray(rng.integers(0, 255, (height, width, 3), np.uint8)).save(
            tmp_path / "images" / f"{i}.jpg"
        )
        images.append({"id": 100 + i, "file_name": f"{i}.jpg", "height": height, "width": width})
        for (top, left, bottom, right), kind in zip(FOUND[0, :2].tolist(), (1, 17), strict=True):
            if i < 4:
                box = [
                    left * width,
                    top * height + i,
                    (right - left) * width,
                    (bottom - top) * height,
                ]
                rows.append(
                    {
                        "id": len(rows) + 1,
                        "image_id": 100 + i,
                        "category_id": kind,
                        "bbox": box,
                        "area": box[2] * box[3],
                        "iscrowd": 0,
                    }
                )
    categories = [{"id": i, "name": n} for i, n in zip(IDS, NAMES, strict=True)]
    truth = {"images": images, "annotations": rows, "categories": categories}
    return {
        "model": detector(tmp_path / "model.tflite"),
        "images": tmp_path / "images",
        "truth": write(tmp_path / "instances.json", truth),
        "root": tmp_path,
    }

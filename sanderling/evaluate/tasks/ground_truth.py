"""The ground truth of TensorFlow Lite's detection tool: a binary ObjectDetectionGroundTruth."""

from __future__ import annotations

from typing import Any

from ...errors import InputError
from ...protobuf import decode

Record = dict[str, Any]


def read_ground_truth(
    content: bytes, where: str
) -> tuple[dict[int, Record], list[Record], list[Record]]:
    """Images, annotations (boxes in parts of the image) and categories, in COCO's form."""
    images: dict[int, Record] = {}
    annotations: list[Record] = []
    try:
        found = decode("ObjectDetectionGroundTruth", content)
        for result in found.get("detection_results", []):
            _add(result, images, annotations)
    except (ValueError, KeyError) as error:
        raise _not_a_truth(where) from error
    if not images:
        raise _not_a_truth(where)
    ids = sorted({a["category_id"] for a in annotations})
    return images, annotations, [{"id": i, "name": str(i)} for i in ids]


def _not_a_truth(where: str) -> InputError:
    return InputError(
        "neither COCO annotations (JSON) nor a binary ObjectDetectionGroundTruth",
        where=where,
        fix="give instances_*.json, or the ground_truth.pb that "
        "TensorFlow Lite's preprocess_coco_minival writes",
    )


def _add(result: Record, images: dict[int, Record], annotations: list[Record]) -> None:
    image = result.get("image_id", len(images) + 1)
    images[image] = {"id": image, "file_name": result["image_name"]}
    for found in result.get("objects", []):
        top, bottom, left, right = (
            found["bounding_box"].get(side, 0.0) for side in ("top", "bottom", "left", "right")
        )
        annotations.append(
            {
                "id": len(annotations) + 1,
                "image_id": image,
                "iscrowd": 0,
                "category_id": found["class_id"],
                "area": 0.0,
                "bbox": [left, top, right - left, bottom - top],
            }
        )

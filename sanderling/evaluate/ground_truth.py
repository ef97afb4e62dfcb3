"""The ground-truth file of TensorFlow Lite's detection tool: a binary ObjectDetectionGroundTruth.

Protocol buffers are read without their library: a message is a row of (field, value), and four
small messages are all there is.

    ObjectDetectionGroundTruth  1: detection_results*
    ObjectDetectionResult       1: objects*   2: image_name   3: image_id
    ObjectInstance              1: class_id   2: bounding_box   3: score
    NormalizedBoundingBox       1: top   2: bottom   3: left   4: right
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from ..errors import InputError

Record = dict[str, Any]
_FIXED = {1: (8, "<d"), 5: (4, "<f")}


def read_ground_truth(content: bytes, where: str) -> tuple[dict[int, Record], list[Record],
                                                           list[Record]]:  # fmt: skip
    """Images, annotations (boxes in parts of the picture) and categories, in COCO's form."""
    images: dict[int, Record] = {}
    annotations: list[Record] = []
    try:
        for field, result in fields(content):
            if field == 1:
                _add(dict_of(result), result, images, annotations)
    except (ValueError, IndexError, struct.error, UnicodeDecodeError, TypeError, KeyError) as error:
        raise _not_a_truth(where) from error
    if not images:
        raise _not_a_truth(where)
    ids = sorted({a["category_id"] for a in annotations})
    return images, annotations, [{"id": i, "name": str(i)} for i in ids]


def _not_a_truth(where: str) -> InputError:
    return InputError("neither COCO annotations (JSON) nor a binary ObjectDetectionGroundTruth",
                      where=where, fix="give instances_*.json, or the ground_truth.pb that "
                      "TensorFlow Lite's preprocess_coco_minival writes")  # fmt: skip


def _add(head: dict[int, Any], result: bytes, images: dict[int, Record],
         annotations: list[Record]) -> None:  # fmt: skip
    name = head[2].decode()
    image = int(head.get(3, len(images) + 1))
    images[image] = {"id": image, "file_name": name}
    for field, instance in fields(result):
        if field == 1:
            found = dict_of(instance)
            top, bottom, left, right = (dict_of(found[2]).get(i, 0.0) for i in (1, 2, 3, 4))
            annotations.append({"id": len(annotations) + 1, "image_id": image, "iscrowd": 0,
                                "category_id": int(found[1]), "area": 0.0,
                                "bbox": [left, top, right - left, bottom - top]})  # fmt: skip


def dict_of(message: bytes) -> dict[int, Any]:
    """Fields that occur once."""
    return dict(fields(message))


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    at, value = 0, None  # type: int, Any
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
        elif kind == 2:
            size, at = _varint(message, at)
            value, at = message[at : at + size], at + size
        else:
            size, form = _FIXED[kind]
            value, at = struct.unpack(form, message[at : at + size])[0], at + size
        if at > len(message):
            raise ValueError("the message ends within a field")
        yield key >> 3, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at

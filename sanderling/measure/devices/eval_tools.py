"""TensorFlow Lite's evaluation tools on an Android device: their flags, and what they say.

A tool writes its figures to a file (a serialised EvaluationStageMetrics; tools of before 2020 the
text form of it) and prints them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from ...protobuf import decode, parse_text
from ..record import Setting
from ..sample_statistics import Summary
from . import tool_log
from .adb import Adb, DeviceError, choose
from .android_tools import (
    TEMP,
    AndroidTool,
    device_facts,
    device_folder,
    how_it_ended,
    place_tool,
    run_tool,
)
from .device_options import DeviceOptions, as_words, flags_for, local_file

Metrics = dict[str, Any]
_MESSAGE = "EvaluationStageMetrics"


def _tool(task: str) -> AndroidTool:
    return AndroidTool(
        f"eval_{task}",
        f"evaluation/tasks/{task}:run_eval",
        (f"{TEMP}/eval_{task}", f"{TEMP}/run_eval"),
    )


IMAGENET, COCO = _tool("imagenet_image_classification"), _tool("coco_object_detection")
INFERENCE_DIFF = _tool("inference_diff")
# The part of the figures that is a tool's own.
PARTS = {
    IMAGENET: "image_classification_metrics",
    COCO: "object_detection_metrics",
    INFERENCE_DIFF: "inference_profiler_metrics",
}


@dataclass
class ToolFigures:
    """What a tool found: the runs, its own part of the figures, and all that it printed."""

    runs: int
    own: Metrics
    text: str
    delegation: list[str] = field(default_factory=list)

    def latency(self, name: str) -> Summary:
        """Seconds. The tools tell no percentiles: the mean stands for the median, the extremes for
        the others."""
        found = self.own.get(name, {})
        mean = found.get("avg_us", 0.0) / 1e6
        least, most = (found[n] / 1e6 if n in found else mean for n in ("min_us", "max_us"))
        std = found.get("std_deviation_us", 0) / 1e6
        return Summary(self.runs, mean, mean, mean, least, most, std, least, most)


@dataclass
class ToolSession:
    """A tool that is ready on a device, in a folder that goes when the session does."""

    adb: Adb
    tool: AndroidTool
    place: str
    folder: str
    facts: dict[str, str]
    shared: dict[str, str]  # flags of the setting and the user
    options: DeviceOptions

    def run(self, flags: Mapping[str, str]) -> ToolFigures:
        """flags: the tool's own."""
        file = f"{self.folder}/metrics"
        words = as_words({**flags, **self.shared, "output_file_path": file})
        answer = run_tool(self.adb, self.place, words, self.options)
        if answer.status:
            raise self._failed(answer.out, how_it_ended(answer.status))
        return self._figures(answer.out, self.adb.content(file))

    def _figures(self, text: str, file: bytes) -> ToolFigures:
        record = read_metrics(text, file)
        parts = record.get("process_metrics", {})
        own = parts.get(PARTS[self.tool])
        if not own:
            other = next((t.name for t, part in PARTS.items() if part in parts), "")
            raise self._failed(text, f"it is {other}" if other else "it printed no figures")
        delegation = tool_log.parse(text).delegation
        return ToolFigures(int(record.get("num_runs", 0)), own, text, delegation)

    def _failed(self, text: str, how: str) -> DeviceError:
        log = tool_log.parse(text)
        said = "; ".join(filter(None, [*log.errors, log.crash, how]))
        return DeviceError(
            f"{self.tool.name} gave no result: {said}",
            where=self.adb.name,
            fix=f"check that {self.place} is this tool, and built for this device",
        )


@contextmanager
def open_tool(
    serial: str, tool: AndroidTool, setting: Setting, options: DeviceOptions
) -> Iterator[ToolSession]:
    """Find the device and the tool; what is missing is said before any other work."""
    shared = flags_for(setting, options)
    shared = {"num_interpreter_threads": shared.pop("num_threads"), **shared}
    if options.binary:
        local_file(options.binary, "--device-binary", "file")
    adb = choose(Adb(options.adb, serial))
    facts = device_facts(adb)
    with device_folder(adb) as folder:
        place = place_tool(adb, tool, options, folder, facts)
        yield ToolSession(adb, tool, place, folder, facts, shared, options)


# -- reading --------------------------------------------------------------------------------------


def read_metrics(text: str, file: bytes = b"") -> Metrics:
    """Figures of the file in either form; without one, those that were printed."""
    for form in (decode, _decode_text):
        with suppress(ValueError):
            found = form(_MESSAGE, file)
            if found.get("process_metrics"):
                return found
    return _printed(text)


def _decode_text(message: str, content: bytes) -> Metrics:
    return parse_text(message, content.decode())


_NUMBER = r"(-?[\d.]+(?:e[+-]?\d+)?|nan|-?inf)"
_LATENCY = re.compile(
    rf"(Preprocessing|Inference|Reference run|Test run) latency: avg={_NUMBER}\(us\), "
    rf"std_dev={_NUMBER}\(us\)"
)
_RUNS = re.compile(r"Num evaluation runs: (\d+)")
_TOP = re.compile(rf"Top-(\d+) Accuracy: {_NUMBER}")
_PRECISION = re.compile(rf"Average Precision \[IOU Threshold={_NUMBER}\]: {_NUMBER}")
_OVERALL = re.compile(rf"Overall mAP: {_NUMBER}")
_OUTPUT = re.compile(rf"OutputDiff\[(\d+)\]: avg_error={_NUMBER}, std_dev={_NUMBER}")
_STAGES = {
    "Preprocessing": "pre_processing_latency",
    "Inference": "inference_latency",
    "Reference run": "reference_latency",
    "Test run": "test_latency",
}


def _printed(text: str) -> Metrics:
    stages = {
        _STAGES[name]: {"avg_us": float(mean), "std_deviation_us": float(std)}
        for name, mean, std in _LATENCY.findall(text)
    }
    top = [float(value) for _, value in _TOP.findall(text)]
    each = [
        {"iou_threshold": float(t), "average_precision": float(v)}
        for t, v in _PRECISION.findall(text)
    ]
    overall = [float(v) for v in _OVERALL.findall(text)]
    errors = [
        {"avg_value": float(mean), "std_deviation": float(std)}
        for _, mean, std in _OUTPUT.findall(text)
    ]
    parts: Metrics = {}
    if top:
        own = {"topk_accuracy_metrics": {"topk_accuracies": top}}
        parts[PARTS[IMAGENET]] = stages | own
    elif overall:
        precisions = {
            "individual_average_precisions": each,
            "overall_mean_average_precision": overall[-1],
        }
        parts[PARTS[COCO]] = stages | {"average_precision_metrics": precisions}
    elif errors:
        parts[PARTS[INFERENCE_DIFF]] = stages | {"output_errors": errors}
    runs = [int(n) for n in _RUNS.findall(text)]
    return {"num_runs": runs[-1] if runs else 0, "process_metrics": parts}


_IMAGE = re.compile(r"Image: (\S+)")
_FIELD = re.compile(rf"(Score|Class-ID|Normalized (?:Top|Bottom|Left|Right)): {_NUMBER}")


def read_detections(text: str) -> dict[str, list[dict[str, float]]]:
    """What --debug_mode prints of each image: the fields of its objects by their printed names."""
    found: dict[str, list[dict[str, float]]] = {}
    objects: list[dict[str, float]] = []
    for line in text.splitlines():
        image, value = _IMAGE.search(line), _FIELD.search(line)
        if image is not None:
            objects = found[image[1]] = []
        elif value is not None:
            if value[1] == "Score":
                objects.append({})
            objects[-1][value[1]] = float(value[2])
    return found

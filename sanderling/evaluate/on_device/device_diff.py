"""`diff MODEL --device android`: TensorFlow Lite's inference_diff on the phone, as our record.

It compares one thread of the phone's CPU with the delegates that are asked for, on random inputs of
its own, and tells the mean error of each output in raw values: no more can be judged.
"""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path

from ...errors import InputError
from ...format import load
from ...ir import Tensor
from ...measure.devices import check as check_device
from ...measure.devices.device_files import DeviceStore
from ...measure.devices.device_options import ENGINE, DeviceOptions
from ...measure.devices.eval_tools import INFERENCE_DIFF, Metrics, open_tool
from ...measure.record import Setting
from ...runtime.inputs import is_quantized
from ..differences.diff import Diff, OutputDiff
from ..error_measures import ErrorLimits, Errors
from ..output_kinds import output_kind as kind_of

RUNS = 50
JUDGED = ("max_avg_error",)  # limits that its figures can be held to
NOTES = [
    "the device tells mean errors only: no largest error, cosine or signal-to-noise ratio",
    "inputs are the tool's own: normal values, cut to the range of the input",
]


def diff_on_device(
    device: str,
    model: Path,
    setting: Setting,
    runs: int | None,
    limits: ErrorLimits,
    options: DeviceOptions,
) -> Diff:
    check_device(device)
    if device == "ios":
        raise InputError(
            "TensorFlow Lite has no inference_diff for iOS", where="--device", fix="use Android"
        )
    _check_limits(limits)
    outputs = load(model).main.outputs
    with open_tool(device.partition(":")[2], INFERENCE_DIFF, setting, options) as session:
        store = DeviceStore(session.adb, options.progress)
        (link,) = store.link(store.send([model]), f"{session.folder}/model")
        flags = {"model_file": f"{session.folder}/model/{link}", "num_runs": str(runs or RUNS)}
        options.progress("run", 0, 1)
        figures = session.run(flags)
        name = session.adb.name
    found = figures.own.get("output_errors", [])
    if len(found) != len(outputs):
        raise InputError(
            f"the tool told errors of {len(found)} outputs, the model has {len(outputs)}",
            where=name,
            fix="check that the tool is inference_diff",
        )
    compared = [
        _output(i, tensor, error, figures.runs)
        for i, (tensor, error) in enumerate(zip(outputs, found, strict=True))
    ]
    reference = _side(model, Setting(threads=1), name)
    test = _side(model, setting, name)
    broken = [s for o in compared for s in limits.broken(o.title, o.real, o.raw, o.top)]
    latency = (figures.latency("reference_latency"), figures.latency("test_latency"))
    return Diff(
        reference,
        test,
        figures.runs,
        f"{figures.runs} random inputs of the device's tool",
        latency,
        compared,
        limits,
        broken,
        notes=[*figures.delegation, *NOTES],
    )


def _check_limits(limits: ErrorLimits) -> None:
    for name in limits.given():
        if name not in JUDGED:
            raise InputError(
                "the device tells mean errors only",
                where=f"--{name.replace('_', '-')}",
                fix="hold them to --max-avg-error",
            )


def _side(model: Path, setting: Setting, device: str) -> Metrics:
    return {
        "model": str(model),
        "engine": ENGINE,
        "delegates": list(setting.delegates),
        "ops_by_delegate": {},  # the tool tells of them in words
        "idle_delegates": [],
        "threads": setting.threads,
        "precision": setting.precision,
        "note": device,
    }


def _output(index: int, tensor: Tensor, error: Metrics, runs: int) -> OutputDiff:
    """The tool's errors are in codes where the output is quantised."""
    quantised = is_quantized(tensor)
    scale = float(tensor.quantisation.scale[0]) if quantised else 1.0
    return OutputDiff(
        index,
        tensor.name,
        tensor.name,
        tensor.type_text,
        tensor.type_text,
        _errors(error, runs, scale),
        _errors(error, runs, 1.0) if quantised else None,
        {},
        kind_of(tensor),
    )


def _errors(error: Metrics, runs: int, scale: float) -> Errors:
    """What is not told is NaN."""
    told = {
        "avg_error": error.get("avg_value", math.nan),
        "std_dev": error.get("std_deviation", math.nan),
        "min_error": error.get("min_value", math.nan),
        "max_mean_error": error.get("max_value", math.nan),
    }
    known = {name: value * scale for name, value in told.items()}
    counts = {"runs": runs, "elements": 0, "nan_reference": 0, "nan_test": 0, "unlike": 0}
    unknown = {f.name: math.nan for f in fields(Errors)}
    return Errors(**{**unknown, **counts, **known})

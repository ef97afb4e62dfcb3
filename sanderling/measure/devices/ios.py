"""An iOS device: the parameters that TensorFlow Lite's app is built with, and the log that it
prints. Building and running the app needs Xcode; this side of it needs nothing."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

from ...errors import InputError
from ...format import write_atomic
from ..record import Result, Setting
from . import tool_log
from .device_options import ENGINE, DeviceOptions, flags_for, local_file

PARAMETERS = "benchmark_params.json"


def run_ios(model: str, setting: Setting, options: DeviceOptions) -> Result:
    """Read the app's log where there is one; otherwise fill the folder, and say what to do."""
    setting = replace(setting, engine=ENGINE, device="ios")
    if options.log:
        return read(options.log, model, setting)
    if not options.folder:
        raise InputError(
            "the iOS app needs its parameters, or its log",
            where="--device ios",
            fix="give the app's benchmark_data folder (--device-folder DIR), build and run the "
            "app, then give what it printed (--device-log FILE); to benchmark_model as "
            "--device_folder=DIR and --device_log=FILE",
        )
    path = prepare(model, setting, options)
    return Result(
        model,
        setting,
        facts={"prepared": str(path)},
        error=f"not measured yet: {path} is written; build and run the app in Xcode, "
        "then give its log with --device-log FILE (to benchmark_model: --device_log=FILE)",
    )


def parameters(model: str, setting: Setting, options: DeviceOptions) -> dict[str, str]:
    """All values are texts: the app makes --name=value of each."""
    own = {"benchmark_name": f"{Path(model).stem}_benchmark", "graph": Path(model).name}
    flags = flags_for(setting, options)
    # The app reads 1 and 0.
    return own | {n: {"true": "1", "false": "0"}.get(v, v) for n, v in flags.items()}


def prepare(model: str, setting: Setting, options: DeviceOptions) -> Path:
    """Put the model and its parameters where the app's project packs them."""
    source = local_file(model, "model", "model")
    folder = Path(options.folder)
    if not folder.is_dir():
        raise InputError(
            f"there is no folder '{folder}'",
            where="--device-folder",
            fix="give the benchmark_data folder of the app's project",
        )
    text = json.dumps(parameters(model, setting, options), indent=4) + "\n"
    target = folder / source.name
    if not (target.exists() and target.samefile(source)):
        shutil.copyfile(source, target)
    write_atomic(folder / PARAMETERS, text.encode())
    return folder / PARAMETERS


def read(path: str, model: str, setting: Setting) -> Result:
    """What the app printed: Xcode's console, or the text on its screen."""
    found = local_file(path, "--device-log", "log")
    return tool_log.result(tool_log.parse(found.read_text("utf-8", "replace")), model, setting)

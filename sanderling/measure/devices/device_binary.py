"""A program on a device: the files that its flags name are pushed, and it is run."""

from __future__ import annotations

from pathlib import Path

from .adb import Adb
from .android_tools import how_it_ended, run_tool, safe
from .device_options import DeviceOptions, local_file

STEPS = 4
# What flags name on this computer, and the device must have.
_FILE_FLAGS = ("input_layer_value_files",)


def push_inputs(adb: Adb, folder: str, flags: dict[str, str]) -> dict[str, str]:
    """Input files are pushed too; the flags then name them where they lie."""
    moved = dict(flags)
    for flag in _FILE_FLAGS:
        if flag not in flags:
            continue
        from ..benchmark_model.inputs import name_and_file

        places = []
        for number, item in enumerate(flags[flag].split(",")):
            name, file = name_and_file(item)
            remote = f"{folder}/input{number}_{safe(Path(file).name)}"
            adb.push(local_file(file, f"--{flag}", "file"), remote)
            places.append(f"{name.replace(':', '::')}:{remote}")
        moved[flag] = ",".join(places)
    return moved


def run_binary(adb: Adb, binary: str, words: list[str], options: DeviceOptions) -> str:
    options.progress("run", 2, STEPS)
    answer = run_tool(adb, binary, words, options)
    if answer.status:
        return answer.out + f"\nERROR: {how_it_ended(answer.status)}\n"
    return answer.out

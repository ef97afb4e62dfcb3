"""Our own program on a device: it holds the compiled model, so that one file is pushed."""

from __future__ import annotations

from collections.abc import Mapping

from ..record import Result, Setting
from . import tool_log
from .adb import Adb
from .android_tools import device_folder, fetch
from .device_binary import STEPS, push_inputs, run_binary
from .device_options import DeviceOptions, as_words, our_flags

_OUTPUT = "output_filepath"


def run_own(
    remote: Adb,
    kind: str,
    home: str,
    facts: Mapping[str, str],
    model: str,
    setting: Setting,
    options: DeviceOptions,
) -> Result:
    """Build for this kind of machine, push, run, read the log. home: where files may lie there."""
    assert options.builder is not None, "asked for with is_ours"
    flags = our_flags(setting, options)
    options.progress("build the program", 0, STEPS)
    program = options.builder(model, kind)
    bare = DeviceOptions(timeout=options.timeout, progress=options.progress)  # it binds itself
    with device_folder(remote, home) as folder:
        options.progress("push the program", 1, STEPS)
        place = f"{folder}/benchmark"
        remote.push(program, place)
        remote.insist(f"chmod 755 {place}", "chmod")
        moved = push_inputs(remote, folder, flags)
        wanted = flags.get(_OUTPUT)
        if wanted:
            moved[_OUTPUT] = f"{folder}/outputs"
        text = run_binary(remote, place, as_words(moved), bare)
        if wanted:
            fetch(remote, {wanted: moved[_OUTPUT]})
    options.progress("done", STEPS, STEPS)
    found = tool_log.result(tool_log.parse(text), str(model), setting)
    found.facts |= {"device": dict(facts)}
    return found

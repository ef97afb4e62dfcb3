"""Benchmarks on an Android device: push, run the binary or the app, read its log, leave nothing."""

from __future__ import annotations

import shlex
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ...errors import InputError, SanderlingError, one_line
from ..record import Result, Setting
from . import tool_log
from .adb import Adb, DeviceError, choose
from .android_tools import (
    BENCHMARK,
    TEMP,
    device_facts,
    device_folder,
    fetch,
    place_tool,
    safe,
)
from .device_binary import STEPS, push_inputs, run_binary
from .device_options import ENGINE, DeviceOptions, as_words, flags_for, is_ours, local_file
from .own_program import run_own

PACKAGE = "org.tensorflow.lite.benchmark"
ACTIVITY = f"{PACKAGE}/.BenchmarkModelActivity"
POLL = 1.0  # seconds between two looks at the log
# Tags that the app and its death are logged under.
TAGS = ("tflite:V", "tflite_BenchmarkModelActivity:V", "sanderling:V", "AndroidRuntime:E",
        "libc:F", "DEBUG:F")  # fmt: skip
# What the tool writes there, and is fetched.
_OUTPUT_FLAGS = ("result_file_path", "output_filepath", "output_proto_filepath",
                 "op_profiling_output_file", "profiling_output_csv_file",
                 "model_runtime_info_output_file")  # fmt: skip


def run_android(serial: str, model: str, setting: Setting, options: DeviceOptions) -> Result:
    """Files that were pushed are removed in any case, also after Ctrl-C."""
    source = local_file(model, "model", "model")
    if options.binary:
        local_file(options.binary, "--device-binary", "file")
    if options.app not in ("", "installed"):
        local_file(options.app, "--device-app", "file")
    check_mask(options)
    if is_ours(setting, options):
        return _run_ours(serial, model, setting, options)
    flags = flags_for(setting, options)
    written = [name for name in _OUTPUT_FLAGS if flags.get(name)]
    if written and options.app:
        raise InputError(
            "the app cannot write files",
            where=f"--{written[0]}",
            fix="use the binary: --device-binary PATH",
        )
    adb = choose(Adb(options.adb, serial))
    setting = replace(setting, engine=ENGINE, device=adb.name)
    try:
        facts = device_facts(adb)
        with device_folder(adb) as folder:
            options.progress("push the model", 1, STEPS)
            graph = f"{folder}/{safe(source.name)}"
            adb.push(source, graph)
            outputs = _outputs(folder, flags)
            words = as_words({"graph": graph, **push_inputs(adb, folder, flags), **outputs})
            if options.app:
                text = _run_app(adb, words, folder, options)
            else:
                binary = place_tool(adb, BENCHMARK, options, folder, facts)
                text = run_binary(adb, binary, words, options)
                fetch(adb, {flags[name]: remote for name, remote in outputs.items()})
    except DeviceError as error:
        return Result(str(model), setting, error=one_line(error))
    options.progress("done", STEPS, STEPS)
    found = tool_log.result(tool_log.parse(text), str(model), setting)
    found.facts |= {"device": facts}
    return found


def _run_ours(serial: str, model: str, setting: Setting, options: DeviceOptions) -> Result:
    adb = choose(Adb(options.adb, serial))
    setting = replace(setting, device=adb.name)
    try:
        facts = device_facts(adb)
        return run_own(adb, f"android {facts['abi']}", TEMP, facts, model, setting, options)
    except DeviceError as error:
        return Result(str(model), setting, error=one_line(error))


def check_mask(options: DeviceOptions) -> None:
    mask = options.cpu_mask.lower().removeprefix("0x")
    if options.cpu_mask and not (mask and set(mask) <= set("0123456789abcdef") and int(mask, 16)):
        raise InputError(
            f"'{options.cpu_mask}' is not a mask of cores",
            where="--cpu-mask",
            fix="a hexadecimal number such as f0, for cores 4 to 7",
        )
    if options.cpu_mask and options.app:
        raise InputError(
            "an app cannot be bound to cores from outside",
            where="--cpu-mask",
            fix="use the binary: --device-binary PATH",
        )


def _outputs(folder: str, flags: dict[str, str]) -> dict[str, str]:
    return {name: f"{folder}/{name}" for name in _OUTPUT_FLAGS if flags.get(name)}


# -- the app --------------------------------------------------------------------------------------


def _run_app(adb: Adb, words: list[str], folder: str, options: DeviceOptions) -> str:
    spaced = [w for w in words if w.split() != [w]]
    if spaced:
        raise InputError(
            f"the app splits its words at spaces: {spaced[0]}",
            where=adb.name,
            fix="use names without spaces, or the binary",
        )
    installed = f"package:{PACKAGE}" in adb.shell(f"pm list packages {PACKAGE}").out.split()
    if options.app == "installed" and not installed:
        raise InputError(
            f"the app {PACKAGE} is not installed",
            where=adb.name,
            fix="give its .apk: --device-app PATH",
        )
    if options.app != "installed":
        options.progress("install the app", 2, STEPS)
        apk = Path(options.app)
        adb("install", "-r", "-d", "-g", str(apk), timeout=180 + apk.stat().st_size / 1e6)
    try:
        return _start_and_wait(adb, words, Path(folder).name, options)
    finally:
        with suppress(SanderlingError):
            adb.shell(f"am force-stop {PACKAGE}")
            if not installed:
                adb.raw("uninstall", PACKAGE)


def _start_and_wait(adb: Adb, words: list[str], mark: str, options: DeviceOptions) -> str:
    """The app has no output but the device's log, which is the user's too: it is not cleared but
    marked, and read from the mark on."""
    options.progress("run", 3, STEPS)
    adb.shell(f"chmod -R a+rX {TEMP}/{mark}")  # the app is another user
    mark = f"begin-{mark}"
    adb.shell(f"log -t sanderling {mark}")
    # One shell reads this, the device's; the guide's second pair of quotes is for the user's own.
    arguments = shlex.quote(" ".join(words))
    started = adb.shell(f"am start -S -n {ACTIVITY} --es args {arguments}")
    if started.status or "Error" in started.text:
        raise DeviceError(
            "the app does not start: " + " ".join(started.text.split())[-200:],
            where=adb.name,
            fix="install it: --device-app PATH",
        )
    process = adb.shell(f"pidof {PACKAGE}").out.strip()
    end = time.monotonic() + options.timeout
    while True:
        text = _of_process(process, adb("logcat", "-d", "-v", "threadtime", "-s", *TAGS), mark)
        found = tool_log.parse(text)
        if _has_ended(found, options):
            return text
        if time.monotonic() > end:
            raise DeviceError(
                f"the app gave no result within {options.timeout:g} s",
                where=adb.name,
                fix="allow it more time, or fewer runs",
            )
        time.sleep(POLL)


def _of_process(process: str, text: str, mark: str) -> str:
    """Lines behind the mark, of the app's own process where it is known: other apps crash too."""
    lines = text.partition(mark)[2].splitlines()
    if not process.isdecimal():
        return "\n".join(lines)
    return "\n".join(line for line in lines if line.split()[2:3] == [process])


def _has_ended(found: tool_log.Log, options: DeviceOptions) -> bool:
    """The profile comes behind the result."""
    if found.crash or found.errors:
        return True
    return (
        "avg" in found.inference
        and found.init is not None
        and (bool(found.types) or not options.op_profiling)
    )

"""An Android device: push, run TensorFlow Lite's binary or app, read its log, leave nothing."""

from __future__ import annotations

import shlex
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from ...errors import InputError, SanderlingError
from ..record import Result, Setting
from . import tool_log
from .adb import Adb, DeviceError, choose
from .device_options import ENGINE, DeviceOptions, as_words, flags_for, local_file

TEMP = "/data/local/tmp"
USUAL_BINARY = f"{TEMP}/benchmark_model"  # where the guide puts it
PACKAGE = "org.tensorflow.lite.benchmark"
ACTIVITY = f"{PACKAGE}/.BenchmarkModelActivity"
POLL = 1.0  # seconds between two looks at the log
# Tags that the app and its death are logged under.
TAGS = ("tflite:V", "tflite_BenchmarkModelActivity:V", "sanderling:V", "AndroidRuntime:E",
        "libc:F", "DEBUG:F")  # fmt: skip
DOWNLOAD = (
    "https://storage.googleapis.com/tensorflow-nightly-public/prod/tensorflow/release/lite/"
    "tools/nightly/latest"
)
_ABIS = {"arm64-v8a": "android_aarch64", "armeabi-v7a": "android_arm"}
STEPS = 4
# What flags name on this computer, and the device must have.
_FILE_FLAGS = ("input_layer_value_files",)
# What the tool writes there, and is fetched.
_OUTPUT_FLAGS = ("result_file_path", "output_filepath", "output_proto_filepath",
                 "op_profiling_output_file", "profiling_output_csv_file",
                 "model_runtime_info_output_file")  # fmt: skip


def run_android(serial: str, model: str, setting: Setting, options: DeviceOptions) -> Result:
    """Files that were pushed are removed in any case, also after Ctrl-C."""
    source = local_file(model, "model", "model")
    binary = local_file(options.binary, "--device-binary", "file") if options.binary else None
    if options.app not in ("", "installed"):
        local_file(options.app, "--device-app", "file")
    _check_mask(options)
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
        facts = _facts(adb)
        with _folder(adb) as folder:
            options.progress("push the model", 1, STEPS)
            graph = f"{folder}/{_safe(source.name)}"
            adb.push(source, graph)
            outputs = _outputs(folder, flags)
            words = as_words({"graph": graph, **_push_inputs(adb, folder, flags), **outputs})
            if options.app:
                text = _run_app(adb, words, folder, options)
            else:
                text = _run_binary(adb, _place_binary(adb, binary, folder, facts), words, options)
                _fetch(adb, {flags[name]: remote for name, remote in outputs.items()})
    except DeviceError as error:
        return Result(str(model), setting, error=_one_line(error))
    options.progress("done", STEPS, STEPS)
    found = tool_log.result(tool_log.parse(text), str(model), setting)
    found.facts |= {"device": facts}
    return found


def _check_mask(options: DeviceOptions) -> None:
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


def _one_line(error: SanderlingError) -> str:
    return "; ".join(line.strip() for line in str(error).splitlines())


def _safe(name: str) -> str:
    """A file name that no shell has an opinion about."""
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in name)


def _facts(adb: Adb) -> dict[str, str]:
    names = {
        "model": "ro.product.model",
        "abi": "ro.product.cpu.abi",
        "android": "ro.build.version.release",
    }
    found = adb.properties(*names.values())
    return {"serial": adb.serial, **dict(zip(names, found, strict=True))}


@contextmanager
def _folder(adb: Adb) -> Iterator[str]:
    """A folder of our own on the device, which goes when we go."""
    folder = f"{TEMP}/sanderling-{uuid.uuid4().hex[:12]}"
    made = adb.shell(f"mkdir -p {folder} && chmod 755 {folder}")
    if made.status:
        raise adb.complaint(made, f"mkdir {folder}")
    try:
        yield folder
    finally:
        # The brackets keep the pattern from finding the shell that it stands in.
        pattern = f"[s]{Path(folder).name[1:]}/"
        with suppress(SanderlingError):
            adb.shell(f"pkill -f {shlex.quote(pattern)}; rm -rf {folder}")


def _push_inputs(adb: Adb, folder: str, flags: dict[str, str]) -> dict[str, str]:
    """Input files are pushed too; the flags then name them where they lie."""
    moved = dict(flags)
    for flag in _FILE_FLAGS:
        if flag not in flags:
            continue
        from ..benchmark_model.inputs import name_and_file

        places = []
        for number, item in enumerate(flags[flag].split(",")):
            name, file = name_and_file(item)
            remote = f"{folder}/input{number}_{_safe(Path(file).name)}"
            adb.push(local_file(file, f"--{flag}", "file"), remote)
            places.append(f"{name.replace(':', '::')}:{remote}")
        moved[flag] = ",".join(places)
    return moved


def _outputs(folder: str, flags: dict[str, str]) -> dict[str, str]:
    return {name: f"{folder}/{name}" for name in _OUTPUT_FLAGS if flags.get(name)}


def _fetch(adb: Adb, files: dict[str, str]) -> None:
    """Pull what the tool wrote; a run that failed wrote nothing, and says so in its log."""
    for local, remote in files.items():
        if adb.exists(remote):
            adb("pull", remote, local)


# -- the binary ----------------------------------------------------------------------------------


def _place_binary(adb: Adb, binary: Path | None, folder: str, facts: dict[str, str]) -> str:
    if binary is None:
        if adb.exists(USUAL_BINARY):
            return USUAL_BINARY
        build = _ABIS.get(facts["abi"], "android_aarch64")
        raise InputError(
            f"no benchmark tool was given, and the device has none at {USUAL_BINARY}",
            where=adb.name,
            fix=f"download {DOWNLOAD}/{build}_benchmark_model and give its path with "
            "--device-binary, or the .apk with --device-app",
        )
    place = f"{folder}/benchmark_model"
    adb.push(binary, place)
    made = adb.shell(f"chmod 755 {place}")
    if made.status:
        raise adb.complaint(made, "chmod")
    return place


def _run_binary(adb: Adb, binary: str, words: list[str], options: DeviceOptions) -> str:
    options.progress("run", 2, STEPS)
    mask = ["taskset", options.cpu_mask.lower().removeprefix("0x")] if options.cpu_mask else []
    line = " ".join(shlex.quote(w) for w in [*mask, binary, *words])
    answer = adb.shell(f"{line} 2>&1", timeout=options.timeout)
    if answer.status:
        return answer.out + f"\nERROR: {_death(answer.status)}\n"
    return answer.out


def _death(status: int) -> str:
    """What a shell's status says."""
    reasons = {
        126: "the binary cannot be run: it is for another CPU",
        127: "there is no such command",
    }
    if status > 128:
        return f"it was ended by signal {status - 128} (status {status})"
    return f"{reasons.get(status, 'it failed')} (status {status})"


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

"""What every use of an Android device does: a folder there, a tool in it, its run, its files."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ...errors import InputError, SanderlingError
from .adb import Adb, Answer
from .device_options import DeviceOptions, local_file

TEMP = "/data/local/tmp"
DOWNLOAD = (
    "https://storage.googleapis.com/tensorflow-nightly-public/prod/tensorflow/release/lite/"
    "tools/nightly/latest"
)
_ABIS = {"arm64-v8a": "android_aarch64", "armeabi-v7a": "android_arm"}


@dataclass(frozen=True)
class AndroidTool:
    """A binary of TensorFlow Lite's, and where one gets it."""

    name: str  # of the nightly build, behind the device's kind
    target: str  # what bazel builds, below //tensorflow/lite/tools
    usual: tuple[str, ...]  # where it lies on a device whose owner has pushed it
    other_way: str = ""  # what does without it

    def missing(self, adb: Adb, abi: str) -> InputError:
        build = f"{_ABIS.get(abi, 'android_aarch64')}_{self.name}"
        return InputError(
            f"no {self.name} was given, and the device has none at {' or '.join(self.usual)}",
            where=adb.name,
            fix=f"download {DOWNLOAD}/{build} (or build //tensorflow/lite/tools/{self.target} "
            "with --config=android_arm64) and give its path with --device-binary, or push it: "
            f"adb push {build} {self.usual[0]}{self.other_way}",
        )


BENCHMARK = AndroidTool(
    "benchmark_model",
    "benchmark:benchmark_model",
    (f"{TEMP}/benchmark_model",),
    "; or give the app's .apk with --device-app",
)


def safe(name: str) -> str:
    """A file name that no shell has an opinion about."""
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in name)


def device_facts(adb: Adb) -> dict[str, str]:
    names = {
        "model": "ro.product.model",
        "abi": "ro.product.cpu.abi",
        "android": "ro.build.version.release",
    }
    found = adb.properties(*names.values())
    return {"serial": adb.serial, **dict(zip(names, found, strict=True))}


@contextmanager
def device_folder(adb: Adb, home: str = TEMP) -> Iterator[str]:
    """A folder of our own on the device, which goes when we go."""
    folder = f"{home}/sanderling-{uuid.uuid4().hex[:12]}"
    adb.insist(f"mkdir -p {folder} && chmod 755 {folder}", f"mkdir {folder}")
    try:
        yield folder
    finally:
        with suppress(SanderlingError):
            adb.shell(clearing(folder))


def clearing(folder: str) -> str:
    """The command that ends what runs in a folder, and removes it."""
    # The brackets keep the pattern from finding the shell that it stands in.
    pattern = f"[s]{Path(folder).name[1:]}/"
    return f"pkill -f {shlex.quote(pattern)}; rm -rf {folder}"


def place_tool(
    adb: Adb, tool: AndroidTool, options: DeviceOptions, folder: str, facts: Mapping[str, str]
) -> str:
    """The tool's path on the device: pushed, or where its owner has put it."""
    if not options.binary:
        found = next((path for path in tool.usual if adb.exists(path)), None)
        if found is None:
            raise tool.missing(adb, facts["abi"])
        return found
    place = f"{folder}/{tool.name}"
    adb.push(local_file(options.binary, "--device-binary", "file"), place)
    adb.insist(f"chmod 755 {place}", "chmod")
    return place


def run_tool(adb: Adb, tool: str, words: Sequence[str], options: DeviceOptions) -> Answer:
    """What it printed, on whichever stream."""
    mask = ["taskset", options.cpu_mask.lower().removeprefix("0x")] if options.cpu_mask else []
    line = " ".join(shlex.quote(w) for w in [*mask, tool, *words])
    return adb.shell(f"{line} 2>&1", timeout=options.timeout)


def how_it_ended(status: int) -> str:
    """What a shell's status says."""
    reasons = {
        126: "the binary cannot be run: it is for another CPU",
        127: "there is no such command",
    }
    if status > 128:
        return f"it was ended by signal {status - 128} (status {status})"
    return f"{reasons.get(status, 'it failed')} (status {status})"


def fetch(adb: Adb, files: Mapping[str, str]) -> None:
    """Pull what a tool wrote; a run that failed wrote nothing, and says so in its log."""
    for local, remote in files.items():
        if adb.exists(remote):
            adb("pull", remote, local)

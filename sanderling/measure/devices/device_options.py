"""What both kinds of device share: options, and the tool's flags for a setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import InputError
from ..record import Setting

Progress = Callable[[str, int, int], None]
# Delegates by our names and the tool's, with the flag that applies each.
DELEGATE_FLAGS = {
    "gpu": "use_gpu", "nnapi": "use_nnapi", "hexagon": "use_hexagon", "xnnpack": "use_xnnpack",
    "cpu": "use_xnnpack", "coreml": "use_coreml",
}  # fmt: skip
ENGINE = "tflite"  # what runs on a device: TensorFlow Lite's own tool
OURS = "sanderling"  # or a program that holds the compiled model
ENGINES = (OURS, ENGINE)
# Makes that program: of a model, for a kind of machine such as "android arm64-v8a".
Builder = Callable[[str, str], Path]


@dataclass(frozen=True)
class DeviceOptions:
    """How a device is driven.

    binary: benchmark_model as built for the device; app: the benchmark app's .apk, or "installed".
    With neither, the binary that lies in /data/local/tmp is run. flags: more of the tool's flags.
    builder: makes our own program, for settings whose engine is sanderling.
    """

    binary: str = ""
    app: str = ""
    cpu_mask: str = ""  # hexadecimal, for taskset
    op_profiling: bool = False
    flags: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 900.0  # seconds that the benchmark may take
    adb: str = "adb"
    folder: str = ""  # ios: the app's benchmark_data
    log: str = ""  # ios: what the app has printed
    progress: Progress = lambda what, done, total: None
    builder: Builder | None = None


def flags_for(setting: Setting, options: DeviceOptions) -> dict[str, str]:
    """The tool's flags, without --graph; those of the user win."""
    found = {"num_threads": str(setting.threads)}
    for name in setting.delegates:
        if name not in DELEGATE_FLAGS:
            raise InputError(
                f"devices have no delegate '{name}'",
                where="--delegate",
                fix=f"they have {', '.join(DELEGATE_FLAGS)}",
            )
        found[DELEGATE_FLAGS[name]] = "true"
    if setting.precision in ("f16", "fp16"):
        found |= (
            {"gpu_precision_loss_allowed": "true"}
            if "gpu" in setting.delegates
            else {"xnnpack_force_fp16": "true"}
        )
    if options.op_profiling:
        found["enable_op_profiling"] = "true"
    return found | {name: str(value) for name, value in options.flags.items()}


def is_ours(setting: Setting, options: DeviceOptions) -> bool:
    """Whether a setting means our own program. A plain Setting() is the tool's where nobody builds
    programs."""
    return setting.engine == OURS and options.builder is not None


def our_flags(setting: Setting, options: DeviceOptions) -> dict[str, str]:
    """The flags of our own program: it has no delegates to choose from."""
    if setting.delegates:
        raise InputError(
            f"a compiled model has no delegate '{setting.delegates[0]}'",
            where="--delegate",
            fix=f"leave it out, or measure {ENGINE} alone: --engines {ENGINE}",
        )
    found = {"num_threads": str(setting.threads)}
    if options.cpu_mask:
        found["cpu_mask"] = options.cpu_mask.lower().removeprefix("0x")
    if options.op_profiling:
        found["enable_op_profiling"] = "true"
    return found | {name: str(value) for name, value in options.flags.items()}


def as_words(flags: Mapping[str, str]) -> list[str]:
    return [f"--{name}={value}" for name, value in flags.items()]


def local_file(path: str, option: str, what: str) -> Path:
    found = Path(path)
    if not found.is_file():
        raise InputError(f"there is no {what} '{path}'", where=option, fix="check the path")
    return found

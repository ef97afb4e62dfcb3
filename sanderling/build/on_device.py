"""Programs for devices: what `bench --device` pushes for the engine `sanderling`."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ..errors import UnsupportedError
from ..measure.devices.device_options import Builder
from .benchmark import benchmark_program
from .blueprint import plan_library
from .platforms import ABIS, PLATFORMS, platform_of
from .toolchain import find_compiler

# What devices say of themselves.
KINDS = {f"android {abi}": name for abi, name in ABIS.items()}
KINDS |= {f"linux {p.machine}": p.name for p in PLATFORMS.values() if not p.is_android}


def program_builder(folder: Path, cc: str = "") -> Builder:
    """Builds benchmark programs into a folder, each once. cc: the compiler that links them."""

    def build(model: str, kind: str) -> Path:
        if kind not in KINDS:
            raise UnsupportedError(
                f"there is no code for a device of kind '{kind}'",
                where="--engines sanderling",
                fix=f"devices can be {', '.join(KINDS)}; else measure --engines tflite alone",
            )
        digest = hashlib.sha256(f"{Path(model).resolve()} {kind}".encode()).hexdigest()[:12]
        output = folder / f"benchmark_{digest}"
        if not output.exists():
            target = KINDS[kind]
            made = plan_library(model, target, timed=True)
            compiler = find_compiler(platform_of(target), cc)
            size = Path(model).stat().st_size
            benchmark_program(made, output, compiler, size, static=True)
        return output

    return build

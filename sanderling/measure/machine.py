"""The machine that figures come from: processor, system, versions."""

from __future__ import annotations

import os
import platform
import re
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..processors import usable_cpu_count
from ..version import __version__

PACKAGES = ("ai-edge-litert", "openvino", "onnxruntime", "llvmlite", "numpy")


def cpu_name() -> str:
    found = re.search(r"^model name\s*:\s*(.*)$", _cpuinfo(), re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def cpu_type() -> str:
    """The processor's name; one without a number, as virtual machines report it, stands for several
    generations, so that its family and model are added."""
    name = cpu_name()
    if re.search(r"\d", name):
        return name
    found = (re.search(rf"^(?:cpu )?{key}\s*:\s*\d+$", _cpuinfo(), re.M) for key in _NUMBERS)
    return " ".join([name, *(" ".join(m[0].split()[-3::2]) for m in found if m)])


_NUMBERS = ("family", "model")


def cpu_flags() -> set[str]:
    found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", _cpuinfo(), re.MULTILINE)
    return set(found[1].split()) if found else set()


def _cpuinfo() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text("utf-8") if path.is_file() else ""


def versions() -> dict[str, str]:
    known = {"python": platform.python_version(), "sanderling": __version__}
    return known | {p: _version(p) for p in PACKAGES}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


# Features that kernels are chosen by: what a difference between two machines may come from.
TELLING = ("sse4_2", "avx", "fma", "avx2", "avx_vnni", "avx512f", "avx512vl", "avx512_vnni",
           "avx512_bf16", "amx_int8", "amx_bf16", "neon", "asimd", "asimddp", "i8mm", "bf16",
           "sve")  # fmt: skip
CPUS = Path("/sys/devices/system/cpu")


def features() -> list[str]:
    have = cpu_flags()
    return [name for name in TELLING if name in have]


def frequencies() -> list[float]:
    """MHz of each CPU now; empty where the system does not say."""
    files = sorted(CPUS.glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))
    found = [_number(f) for f in files]
    if all(f is not None for f in found) and found:
        return [f / 1000 for f in found if f is not None]
    return [float(m) for m in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", _cpuinfo(), re.MULTILINE)]


def governors() -> list[str]:
    """The frequency governors in use, each once."""
    files = CPUS.glob("cpu[0-9]*/cpufreq/scaling_governor")
    return sorted({text.strip() for f in files if (text := _read(f))})


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _number(path: Path) -> float | None:
    text = _read(path).strip()
    return float(text) if text.isdecimal() else None


def machine() -> dict[str, Any]:
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count() or 0,
        "usable": usable_cpu_count(),
        "features": features(),
        "mhz": [round(f) for f in frequencies()],
        "governors": governors(),
        "memory": memory_bytes(),
        "system": f"{platform.system()} {platform.release()}",
        "load": round(os.getloadavg()[0], 1),  # what else ran; the benchmark itself counts too
        "versions": versions(),
        "date": date.today().isoformat(),
    }


def machine_line() -> str:
    """One line: where and when, with what."""
    facts = machine()
    made = ", ".join(f"{k} {v}" for k, v in facts["versions"].items())
    place = f"{facts['cpu']}, {facts['cores']} cores, {facts['system']}"
    return f"{facts['date']}; {place}, load average {facts['load']}; {made}."

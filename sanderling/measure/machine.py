"""The machine that figures come from: processor, system, versions."""

from __future__ import annotations

import os
import platform
import re
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..version import __version__

PACKAGES = ("ai-edge-litert", "openvino", "onnxruntime", "llvmlite", "numpy")


def cpu_name() -> str:
    found = re.search(r"^model name\s*:\s*(.*)$", _cpuinfo(), re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


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


def machine() -> dict[str, Any]:
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count() or 0,
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

"""Every operator's kernels under Oclgrind, and every form of memory: no access beyond a buffer, no
race."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed")
from sanderling.delegates.gpu.table import KERNELS
from tests.support.gpu_oclgrind import ALSO

pytestmark = pytest.mark.skipif(
    shutil.which("oclgrind") is None,
    reason="oclgrind is not installed (Debian: apt-get install oclgrind)",
)
INTERNAL = {"gpu.ADD_UNITS", "gpu.COPY", "gpu.SCALE", "gpu.SIMULATE"}
PROBLEM = re.compile(r"^(Invalid (?:read|write).*|.*data race.*|.*out of bounds.*)$", re.I | re.M)


def _watched(folder: Path, *arguments: str) -> tuple[dict[str, Any], list[str]]:
    """The report of the child, and what Oclgrind complains about."""
    log = folder / "oclgrind.log"
    command = ["oclgrind", "--data-races", "--uniform-writes", "--log", str(log), sys.executable,
               "-W", "ignore", "-m", "tests.support.gpu_oclgrind", *arguments]  # fmt: skip
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1]), PROBLEM.findall(log.read_text())


def test_no_kernel_leaves_its_buffers_and_none_races(tmp_path: Path) -> None:
    report, problems = _watched(tmp_path)
    assert not problems
    assert not report["wrong"]
    assert set(ALSO) <= set(report["cases"])
    assert not set(KERNELS) - INTERNAL - set(report["operators"])


def test_wrong_kernels_are_found(tmp_path: Path) -> None:
    report, problems = _watched(tmp_path, "--spoil")
    assert all(report["on the device"])
    assert any("Invalid write" in problem for problem in problems)
    assert any("data race" in problem for problem in problems)

"""The documentation is true: its Python blocks run, its generated parts are current."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sanderling.config import KNOBS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# Pages whose package not every environment has.
LARGE = {"train.md": "torch", "retrain.md": "torch", "gpu.md": "pyopencl"}
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    blocks = BLOCK.findall(page.read_text())
    if not blocks:
        return
    if page.name in LARGE:
        pytest.importorskip(LARGE[page.name], reason="its extra is large and not installed")
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


def test_generated_tables_are_current() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "support_matrix.py"), "--check"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_extras_keep_the_clone_that_make_installed() -> None:
    """Without -e, pip replaces what `make demo` installed by a copy."""
    found = re.findall(r"pip install (.*?)'\.\[", (ROOT / "README.md").read_text())
    assert found == ["-e "]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_knob_is_documented() -> None:
    text = (ROOT / "docs" / "runtime.md").read_text()
    assert len(KNOBS) <= 10
    for knob in KNOBS:
        assert f"`{knob.name}`" in text

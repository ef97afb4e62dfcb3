"""The documentation is true: its Python blocks run, its generated parts are current."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sanderling.config import KNOBS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# The Korean README has the blocks of README.md, and tests/test_guide.py runs those of the guide.
LINKING = [*PAGES, ROOT / "README.ko.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
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


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to a page's headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", LINKING, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_links_lead_somewhere(page: Path) -> None:
    for name, heading in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", page.read_text()):
        target = page.parent / name if name else page
        assert target.exists(), f"{page.name} links to {name}"
        assert not heading or heading in anchors(target), f"{page.name}: {name}#{heading}"


HEADING = re.compile(r"^(#+) ", re.M)
FENCED = re.compile(r"^```.*?^```", re.M | re.S)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)]+)\)")


@pytest.mark.parametrize(
    "part",
    [
        lambda text: HEADING.findall(FENCED.sub("", text)),
        FENCED.findall,
        lambda text: sorted(INLINE.findall(FENCED.sub("", text))),
        lambda text: sorted(LINK.findall(text)),
        lambda text: [row.split("|")[1] for row in text.splitlines() if row.startswith("| `")],
    ],
    ids=["sections", "code blocks", "commands and names", "links", "verbs in order"],
)
def test_the_korean_readme_is_in_step(part: Callable[[str], list[str]]) -> None:
    """Change README.md, and README.ko.md changes with it."""
    english, korean = ((ROOT / name).read_text() for name in ("README.md", "README.ko.md"))
    english = english.replace("README.ko.md", "README.md")
    found, expected = part(korean), part(english)
    assert expected and found == expected


def test_every_knob_is_documented() -> None:
    text = (ROOT / "docs" / "runtime.md").read_text()
    assert len(KNOBS) <= 10
    for knob in KNOBS:
        assert f"`{knob.name}`" in text

"""What the benchmarks share: models, tables, and sections of RESULTS.md."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from sanderling.config import KNOBS
from sanderling.measure.machine import cpu_type, machine
from sanderling.tables import markdown

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("SANDERLING_SHARED", ROOT.parent / "shared"))
RESULTS = Path(__file__).with_name("RESULTS.md")
CHROMIUM = Path("/usr/lib/chromium")


# -- models -------------------------------------------------------------------------------------


def model_paths(given: Sequence[str], wanted: str = "") -> list[Path]:
    """The models named, or all shared ones; `wanted` are words, one of which the name has."""
    paths = [Path(p).resolve() for p in given] or sorted((SHARED / "models").glob("*.tflite"))
    words = [w for w in wanted.split(",") if w]
    return [p for p in paths if not words or any(w in p.stem for w in words)]


# -- the cache ----------------------------------------------------------------------------------


def cache_knob() -> str | None:
    """The environment variable that moves the code cache; None while there is no cache."""
    return next((k.name for k in KNOBS if k.name.endswith("_CACHE")), None)


@contextmanager
def fresh_cache(kept: str | None = None) -> Iterator[None]:
    """Code compiled before is not measured: it may be an older compiler's. kept: a folder with code
    of this tree, which a run before has compiled."""
    knob = cache_knob()
    with nullcontext(kept) if kept else tempfile.TemporaryDirectory() as folder:
        before = os.environ.get(knob) if knob else None
        os.environ |= {knob: folder} if knob else {}
        try:
            yield
        finally:
            if knob:
                os.environ.pop(knob, None)
                os.environ |= {} if before is None else {knob: before}


# -- devices ------------------------------------------------------------------------------------


def swiftshader(vulkan: Path, folder: Path) -> dict[str, str]:
    """An environment in which Vulkan is the software device of Chromium's package, if it is there.
    Its description names the library by a relative path: it is written anew."""
    found = vulkan / "vk_swiftshader_icd.json"
    if not found.is_file():
        return dict(os.environ)
    described = json.loads(found.read_text())
    described["ICD"]["library_path"] = str(vulkan / "libvk_swiftshader.so")
    icd = folder / "icd.json"
    icd.write_text(json.dumps(described))
    driver = dict.fromkeys(("VK_DRIVER_FILES", "VK_ICD_FILENAMES"), str(icd))
    return os.environ | driver | {"LD_LIBRARY_PATH": str(vulkan)}


# -- output -------------------------------------------------------------------------------------


def table(header: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1) -> str:
    """A Markdown table; the first `left` columns are text, the others numbers."""
    return markdown([*header[:left], *(f">{name}" for name in header[left:])], rows)


def write_section(name: str, text: str, path: Path = RESULTS, family: str = "") -> None:
    """Put text between the section's markers. A section that is not there is added behind the last
    one whose name begins with `family`, or at the end."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    old = path.read_text("utf-8") if path.is_file() else "# Results\n"
    body = f"{begin}\n{text.strip()}\n{end}"
    if begin in old and end in old:
        before, _, rest = old.partition(begin)
        path.write_text(before + body + rest.partition(end)[2], "utf-8")
        return
    family_ends = list(re.finditer(rf"<!-- {re.escape(family)}.*:end -->\n", old)) if family else []
    place = family_ends[-1].end() if family_ends else len(old)
    before, rest = old[:place].rstrip(), old[place:].lstrip()
    path.write_text(f"{before}\n\n{body}\n" + (f"\n{rest}" if rest else ""), "utf-8")


def write_machine_section(name: str, target: str, text: str, path: Path = RESULTS) -> None:
    """A section of this type of machine and target: it stands beside those of others, and no run
    elsewhere replaces it."""
    write_section(f"{name}: {machine_type(target)}", text, path, family=f"{name}: ")


def machine_type(target: str) -> str:
    """What figures of speed belong to."""
    return f"{cpu_type()}, {target}"


def write_json(where: str, schema: str, content: dict[str, Any]) -> None:
    """The record to a file, or to stdout for '-'."""
    text = json.dumps({"schema": schema, "machine": machine()} | content, indent=1)
    if where == "-":
        print(text)
    else:
        Path(where).write_text(text + "\n", "utf-8")

"""Pages whose commands and Python blocks are run, one after the other, in one folder.

A block of `console` has commands behind `$ ` and what they print. Figures differ from machine to
machine: a number stands for any number, `...` for any text in a line, a line of `...` for lines.
Exit status 0 is expected, or what a comment of the command says (`# exit status 1`). A plain
`sanderling ...` runs in this process, which has imported what it needs; whatever needs a shell or
another program runs in bash. A comment of HTML before a block says what it takes:

<!-- needs torch -->           it is left out where this module or program is not installed
<!-- not executed: reason -->  it is never run, and counted

`python -m tests.support.guide_pages PAGE.md` shows what each command prints now.
"""

from __future__ import annotations

import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pytest
from typer.testing import CliRunner

from sanderling.cli.app import app

from .guide_phone import plug_in

ROOT = Path(__file__).parent.parent.parent
GUIDE = ROOT / "docs" / "guide"

BLOCK = re.compile(
    r"(?:<!-- (?P<mark>[^>]*?) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```", re.M | re.S
)
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(\.\d+)?(e[-+]?\d+)?(?=(?:ms|us|s)?(?!\w))")
EXECUTED = ("console", "sh", "bash", "shell", "python")
SKIPPED = "not executed: "


@dataclass(frozen=True)
class Block:
    kind: str
    text: str
    line: int
    mark: str = ""

    @property
    def is_left_out(self) -> bool:
        """Whether it is not run on purpose; the reason is in its mark."""
        return self.mark.startswith(SKIPPED)

    @property
    def missing(self) -> str:
        """A module or a program that it needs and that is not installed."""
        names = self.mark.removeprefix("needs ").split() if self.mark.startswith("needs ") else []
        return next((n for n in names if find_spec(n) is None and which(n) is None), "")


@dataclass(frozen=True)
class Command:
    text: str
    printed: tuple[str, ...]

    @property
    def status(self) -> int:
        found = re.search(r"# exit status (\d+)", self.text)
        return int(found[1]) if found else 0

    @property
    def own_words(self) -> list[str]:
        """What follows a plain `sanderling`; empty if a shell has to read the command."""
        text = self.text.replace("\\\n", " ")
        reader = shlex.shlex(text, posix=True, punctuation_chars=True)
        reader.whitespace_split = True
        words = list(reader)
        is_plain = words[:1] == ["sanderling"] and not any(set(w) <= set("();<>|&") for w in words)
        return words[1:] if is_plain and not set("$`*?~") & set(text) else []


def blocks(page: Path) -> list[Block]:
    """The blocks that are code, in the order of the page."""
    text = page.read_text()
    return [
        Block(m["kind"], m["text"], text.count("\n", 0, m.start("kind")) + 1, m["mark"] or "")
        for m in BLOCK.finditer(text)
        if m["kind"] in EXECUTED
    ]


def commands(text: str) -> list[Command]:
    """The commands of a block of `console`, each with the lines below it."""
    found: list[tuple[list[str], list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(([line[2:]], []))
        elif found and not found[-1][1] and found[-1][0][-1].endswith("\\"):
            found[-1][0].append(line)
        elif found:
            found[-1][1].append(line)
        else:
            raise ValueError(f"a block of console begins with a command, not with {line!r}")
    return [Command("\n".join(lines), tuple(printed)) for lines, printed in found]


def shape(line: str) -> str:
    """A line without what differs by machine: numbers, and the widths of columns."""
    line = NUMBER.sub("#", line)
    return re.sub(r"\s+", " ", re.sub(r"-{2,}", "-", line)).strip()


def unlike(printed: tuple[str, ...], output: str) -> str:
    """The first line of a page that a command did not print; empty if all are there."""
    lines = [s for s in map(shape, output.splitlines()) if s]
    place, is_open = 0, False
    for wanted in printed:
        if wanted.strip() in ("", "..."):
            is_open = is_open or wanted.strip() == "..."
            continue
        pieces = (re.escape(piece.strip()) for piece in shape(wanted).split("..."))
        pattern = re.compile(".*".join(pieces))
        within = range(place, len(lines) if is_open else min(place + 1, len(lines)))
        place = 1 + next((i for i in within if pattern.fullmatch(lines[i])), -1)
        if not place:
            return wanted
        is_open = False
    return (
        "" if is_open or not printed or place == len(lines) else f"(nothing after) {lines[place]}"
    )


def guide_files(folder: Path) -> None:
    """Run the blocks that make the files which all pages begin with."""
    for block in blocks(GUIDE / "README.md"):
        if block.kind == "python":
            said, status = _run([sys.executable, "-c", block.text], folder, here())
            assert status == 0, said


def here() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"}


def environment(folder: Path, files: Path) -> dict[str, str]:
    """Where `sanderling` and `python` are those of the tests, and `adb` finds a scripted phone; the
    folder `work` begins with the guide's files."""
    programs, work = folder / "programs", folder / "work"
    programs.mkdir()
    shutil.copytree(files, work)
    for name, words in (("sanderling", "-m sanderling"), ("python", "")):
        path = programs / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        path.chmod(0o755)
    found = os.pathsep.join([str(programs), plug_in(folder, work), os.environ["PATH"]])
    return here() | {"PATH": found}


def run_block(
    block: Block, folder: Path, known: Mapping[str, str]
) -> Iterator[tuple[Command, str, int]]:
    """Each command with what it printed and its exit status."""
    if block.kind == "python":
        yield Command(block.text, ()), *_run([sys.executable, "-c", block.text], folder, known)
        return
    for command in commands(block.text):
        if words := command.own_words:
            yield command, *_run_here(words, folder, known)
        else:
            yield command, *_run(["bash", "-c", command.text], folder, known)


def _run(words: list[str], folder: Path, known: Mapping[str, str]) -> tuple[str, int]:
    """What is printed: results, and the complaint where there is one."""
    done = subprocess.run(
        words, cwd=folder, env=dict(known), capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    return done.stdout + (done.stderr if done.returncode else ""), done.returncode


def _run_here(words: list[str], folder: Path, known: Mapping[str, str]) -> tuple[str, int]:
    """The same of a verb, without a process of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, value in known.items():
            patch.setenv(name, value)
        done = CliRunner().invoke(app, words, prog_name="sanderling")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.stdout + (done.stderr if done.exit_code else ""), done.exit_code


def run_page(
    page: Path, home: Path, known: Mapping[str, str]
) -> Iterator[tuple[Block, Command, str, int]]:
    """Run the blocks of a page."""
    for block in blocks(page):
        if block.is_left_out or block.missing:
            continue
        for command, output, status in run_block(block, home / "work", known):
            yield block, command, output, status


def main(page: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home, files = Path(folder), Path(folder, "files")
        files.mkdir()
        guide_files(files)
        began = _spent()
        for block, command, output, status in run_page(Path(page), home, environment(home, files)):
            now = _spent()
            wrong = unlike(command.printed, output) if block.kind != "python" else ""
            print(f"{page}:{block.line}: status {status}, {now - began:.1f} s of a core {wrong}")
            print(f"$ {command.text}\n{output}", flush=True)
            began = now


def _spent() -> float:
    """Seconds of a core, here and in processes that have ended."""
    return sum(
        resource.getrusage(who).ru_utime for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )


if __name__ == "__main__":
    main(sys.argv[1])

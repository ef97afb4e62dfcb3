"""The pages of docs/guide: every command and code block runs and prints what the page says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup
from typer.main import get_command

from sanderling.cli.app import app

from .support.guide_pages import (
    GUIDE,
    ROOT,
    Command,
    blocks,
    commands,
    environment,
    guide_files,
    run_page,
    shape,
    unlike,
)

# Blocks that cannot run on a desk, by page: one more has to be meant.
LEFT_OUT = {"README.md": 1, "best-practices.md": 1, "delegates.md": 2, "measurement.md": 1}
PAGES = sorted(GUIDE.glob("*.md"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What all pages begin with: the README's blocks make it, so they are run, too."""
    folder = tmp_path_factory.mktemp("guide")
    guide_files(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if p.name != "README.md"], ids=lambda p: p.name)
def test_a_page_runs(page: Path, files: Path, tmp_path: Path) -> None:
    known = environment(tmp_path, files)
    for block, command, output, status in run_page(page, tmp_path, known):
        where = f"{page.name}:{block.line}: $ {command.text}\n{output}"
        assert status == command.status, where
        wrong = unlike(command.printed, output)
        assert block.kind == "python" or not wrong, f"{where}\nnot printed: {wrong}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_what_is_not_executed_is_counted(page: Path) -> None:
    left_out = [b for b in blocks(page) if b.is_left_out]
    assert len(left_out) == LEFT_OUT.get(page.name, 0)


def verbs_with_options(text: str) -> list[tuple[list[str], list[str]]]:
    """The words before and the names of the options of each `sanderling ...` in a command."""
    found = []
    for part in re.split(r"[|;&]+", text.replace("\\\n", " ")):
        words = shlex.split(part, comments=True)
        if "sanderling" in words:
            own = words[words.index("sanderling") + 1 :]
            names = [w.partition("=")[0] for w in own if w.startswith("--")]
            names = [n for n in names if "_" not in n]  # others are TensorFlow Lite's
            found.append(([w for w in own if not w.startswith("-")], names))
    return found


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda p: p.name)
def test_verbs_and_options_exist(page: Path) -> None:
    """Also of commands that are not executed, or stand in a README."""
    shells = [b for b in blocks(page) if b.kind == "console"]
    for command in (c for block in shells for c in commands(block.text)):
        for words, options in verbs_with_options(command.text):
            if words[:1] == ["benchmark_model"]:
                continue  # its flags are the tool's, and it warns of unknown ones
            verb = verb_of(words)
            known = {name for p in verb.params for name in (*p.opts, *p.secondary_opts)}
            assert set(options) <= known | {"--version", "--help"}, command.text


def verb_of(words: list[str]) -> Any:
    """The verb, or the task of `eval`."""
    found: Any = get_command(app)
    for word in words:
        if not isinstance(found, TyperGroup):
            break
        made = found.get_command(typer.Context(found), word)
        assert made is not None, word
        found = made
    return found


def test_commands_are_read_with_what_they_print() -> None:
    text = "$ one \\\n    two  # exit status 1\nprinted\n$ three\n"
    first, second = commands(text)
    assert first == Command("one \\\n    two  # exit status 1", ("printed",)) and first.status == 1
    assert second == Command("three", ()) and second.status == 0
    with pytest.raises(ValueError, match="begins with a command"):
        commands("no command\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sanderling run a.tflite \\\n    --input 'x y.npy'  # exit status 1",
         ["run", "a.tflite", "--input", "x y.npy"]),
        ("sanderling --version", ["--version"]),
        ("sanderling bench a.tflite 2>&1", []),
        ("sanderling bench a.tflite | tail", []),
        ("sanderling inspect *.tflite", []),
        ("SANDERLING_TRACE=a.json sanderling run a.tflite", []),
        ("ls kept", []),
    ],
)  # fmt: skip
def test_what_needs_a_shell_is_left_to_it(text: str, words: list[str]) -> None:
    assert Command(text, ()).own_words == words


def test_figures_differ_and_words_do_not() -> None:
    assert shape("int8  0.5 ms  -1.2e-05 [0.1, 2]") == shape("int8  12 ms  3 [1, 20]")
    assert shape("CONV_2D  3") != shape("CONV_3D  3")
    assert not unlike(("a  1", "...", "z ... 3%"), "a 2\nb\nc\n\nz of 12%\n")
    assert unlike(("a", "c"), "a\nb\nc\n") == "c"
    assert unlike(("a",), "a\nb\n") == "(nothing after) b"
    assert unlike(("a", "..."), "b\n") == "a"

"""The pages of docs/guide: every command and code block runs and prints what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from .support.guide_pages import (
    GUIDE,
    Command,
    blocks,
    commands,
    environment,
    run_page,
    shape,
    unlike,
)

# Blocks that cannot run on a desk, by page: one more has to be meant.
LEFT_OUT = {"delegates.md": 2, "measurement.md": 1}
PAGES = sorted(GUIDE.glob("*.md"))


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if p.name != "README.md"], ids=lambda p: p.name)
def test_a_page_runs(page: Path, tmp_path: Path) -> None:
    for block, command, output, status in run_page(page, tmp_path, environment(tmp_path)):
        where = f"{page.name}:{block.line}: $ {command.text}\n{output}"
        assert status == command.status, where
        wrong = unlike(command.printed, output)
        assert block.kind == "python" or not wrong, f"{where}\nnot printed: {wrong}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_what_is_not_executed_is_counted(page: Path) -> None:
    left_out = [b for b in blocks(page) if b.is_left_out]
    assert len(left_out) == LEFT_OUT.get(page.name, 0)


def test_commands_are_read_with_what_they_print() -> None:
    text = "$ one \\\n    two  # exit status 1\nprinted\n$ three\n"
    first, second = commands(text)
    assert first == Command("one \\\n    two  # exit status 1", ("printed",)) and first.status == 1
    assert second == Command("three", ()) and second.status == 0
    with pytest.raises(ValueError, match="begins with a command"):
        commands("no command\n")


def test_figures_differ_and_words_do_not() -> None:
    assert shape("int8  0.5 ms  -1.2e-05 [0.1, 2]") == shape("int8  12 ms  3 [1, 20]")
    assert shape("CONV_2D  3") != shape("CONV_3D  3")
    assert not unlike(("a  1", "...", "z ... 3%"), "a 2\nb\nc\n\nz of 12%\n")
    assert unlike(("a", "c"), "a\nb\nc\n") == "c"
    assert unlike(("a",), "a\nb\n") == "(nothing after) b"
    assert unlike(("a", "..."), "b\n") == "a"

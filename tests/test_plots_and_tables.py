"""Pages and plots as people see them: ticks, letters, tables; and columns on a terminal."""

from __future__ import annotations

import re
import subprocess
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from shutil import which

import numpy as np
import pytest

from sanderling import glyphs, pages, plots
from sanderling.glyphs import cells, shorten, spelled, wrapped
from sanderling.tables import facts, table

from .support.command_line import call

DATA = Path(str(files("sanderling") / "data"))
INT8 = str(DATA / "digits_int8.tflite")

# -- letters ----------------------------------------------------------------------------------


@pytest.mark.parametrize("text, width", [
    ("abc", 3), ("숫자", 4), ("数字", 4), ("🐦", 2), ("é", 1),
    ("e\u0301", 1), ("\uff41", 2), ("", 0),
])  # fmt: skip
def test_cells(text: str, width: int) -> None:
    assert cells(text) == width


@pytest.mark.parametrize(
    "text", ["model/layer/weights_숫자_분류기/마지막", "가" * 50, "a;b" * 30, "x" * 9]
)
@pytest.mark.parametrize("room", [3, 8, 12, 21])
def test_names_are_shortened_by_cells(text: str, room: int) -> None:
    assert cells(shorten(text, room)) <= room


def test_tables_with_wide_letters_line_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    rows = [("숫자_분류기_아주_긴_이름의_층", 1.5), ("conv", 22.25), ("가나다", 3.0)]
    lines = table(["~name", ">ms"], rows).splitlines()
    assert {cells(line) for line in lines[1:]} == {cells(lines[1])} and cells(lines[1]) <= 40
    text = facts([("이름", "아주 긴 이름 " * 10), ("ms", "1")])
    assert max(map(cells, text.splitlines())) <= 40
    assert text.splitlines()[-1] == "ms    1"


def test_words_that_are_too_long_are_broken() -> None:
    assert wrapped("가나다라마바 ab", 5) == ["가나", "다라", "마바", "ab"]
    assert wrapped("", 5) == [""]


def test_letters_without_a_font_are_spelled() -> None:
    assert spelled("숫자_é\udcff數", str.isascii) == "sutja_e\\xff\\u6578"
    assert spelled("한글.tflite", str.isascii) == "hangeul.tflite"


def drawn(kind: str, name: str) -> str:
    with plots.figure() as (made, axes):
        axes.plot([1, 2], [1, 200], label=name)
        axes.set_yscale("log")
        axes.set_title(name)
        axes.legend()
        return plots.render(made, kind).decode("latin-1" if kind == ".png" else "utf-8")


@pytest.mark.filterwarnings("error")  # a letter that the font lacks is a warning of matplotlib's
@pytest.mark.parametrize("kind", [".png", ".svg"])
def test_names_in_any_script(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glyphs, "_fonts", list)  # as on a machine that has no font for it
    text = drawn(kind, "숫자 $x_1 $y\udcff")
    assert kind == ".png" or "sutja $x_1 $y\\xff" in text


@pytest.mark.filterwarnings("error")
def test_a_font_that_has_the_letters_is_taken() -> None:
    """On machines with a font for Hangul the name is as it is, on others spelled."""
    text = drawn(".svg", "숫자")
    has = any(ord("숫") in glyphs.letters_of(f) for _, f in glyphs.fonts_for(["숫자"]))
    assert ("숫자" if has else "sutja") in text


# -- figures ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "low, high, some",
    [
        (0.9, 12.0, ["1", "2", "5", "10"]),
        (2.0, 7.0, ["2", "3", "5", "7"]),
        (2.0, 3.0, ["2", "2.4", "2.8"]),
        (0.002, 3.0, ["0.01", "0.1", "1"]),
        (1e-7, 1.0, ["1e-05", "0.001", "0.1"]),
    ],
)
def test_logarithmic_axes_have_plain_numbers(low: float, high: float, some: list[str]) -> None:
    with plots.figure() as (made, axes):
        axes.set(xlim=(low, high), xscale="log", ylim=(low, high), yscale="log")
        text = plots.render(made, ".svg").decode()
    ticks = re.findall(r"<text[^>]*>([^<]+)</text>", text)
    assert set(some) <= set(ticks) and not any("$" in t or "^" in t for t in ticks)


def test_a_wide_figure_keeps_its_letters() -> None:
    with plots.figure(size=(20, 4)) as (made, _):
        assert "--least: 12.0in" in plots.inline(made)
    with plots.figure(size=(7, 4)) as (made, _):
        assert "--least" not in plots.inline(made)


# -- pages ------------------------------------------------------------------------------------


def test_tables_have_short_names_and_whole_ones_under_the_pointer() -> None:
    name = "model/very/long/" * 8 + '<"end">'
    text = pages.html_table(["~tensor", ">ms", "why"], [(name, 1.5, "because " * 12)])
    assert 'title="' + name.replace("<", "&lt;").replace('"', "&quot;").replace(">", "&gt;") in text
    assert "..." in text and "<td class=n>1.5</td>" in text and "<td class=long>" in text


def page_with_table() -> str:
    rows = [("b", 10.0, "1.5 K"), ("a", 9.0, "1 M"), ("c", None, "200 K")]
    script = (
        "<script>document.querySelectorAll('th')[AT].click();document.title="
        "[...document.querySelectorAll('tbody tr')].map(r=>r.cells[0].textContent).join('')"
        "</script>"
    )
    return pages.page("t", [pages.html_table(["name", ">n", ">size"], rows)]).replace(
        "</body>", f"{script}</body>"
    )


def test_pages_need_nothing_else() -> None:
    text = page_with_table()
    assert "<script>" in text and "aria-sort" in text and "initial-scale=1" in text
    assert not re.search(r"(src|href)=", text)
    pages.page("bad\udcff", []).encode()


@pytest.mark.skipif(which("chromium") is None, reason="needs a browser")
@pytest.mark.parametrize("column, order", [(0, "abc"), (1, "abc"), (2, "bca")])
def test_a_click_sorts(tmp_path: Path, column: int, order: str) -> None:
    path = tmp_path / "page.html"
    path.write_text(page_with_table().replace("AT", str(column)))
    command = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        f"--user-data-dir={tmp_path / 'home'}",
        "--dump-dom",
        path.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert f"<title>{order}</title>" in done.stdout


# -- the terminal's width ---------------------------------------------------------------------


@pytest.mark.parametrize("columns", [70, 110])
@pytest.mark.parametrize(
    "words",
    [
        ["profile", "--runs", 2, "--no-roofline"],
        ["diff", "--runs", 2, "--per-tensor"],
    ],
    ids=lambda w: str(w[0]),
)
def test_tables_keep_to_the_terminal(
    words: list[object], columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sanderling import load, save

    monkeypatch.setenv("COLUMNS", str(columns))
    model = load(INT8)
    for graph in model.graphs:
        for number, tensor in enumerate(graph.tensors):
            tensor.name = f"모델/아주_긴_이름/층_{number}/" + tensor.name
    save(model, tmp_path / "m.tflite")
    monkeypatch.chdir(tmp_path)
    text = call(words[0], "m.tflite", *words[1:]).stdout
    too_long = [line for line in text.splitlines() if cells(line) > columns and "  " in line]
    assert not too_long
    assert np.max([cells(line) for line in text.splitlines()]) > columns // 2


def test_names_of_spots_do_not_overlap() -> None:
    """Many spots in one place: each name has room of its own, and what finds none is left out."""
    from matplotlib.text import Text

    rng = np.random.default_rng(0)
    spots = [plots.Spot(1 + rng.random() / 50, 1 + rng.random() / 50, 6) for _ in range(30)]
    spots += [plots.Spot(x, y, 6) for x in (0.5, 2) for y in (0.5, 2)]
    with plots.figure(size=(7, 5)) as (made, axes):
        axes.scatter([s.x for s in spots], [s.y for s in spots])
        plots.label_spots(made, axes, spots, {i: f"#{i}" for i in range(len(spots))})
        made.draw_without_rendering()
        boxes = [Text.get_window_extent(text).extents for text in axes.texts]
        assert "#30" in [text.get_text() for text in axes.texts]
    assert 8 < len(boxes) < len(spots)
    for one, other in combinations(boxes, 2):
        wide = min(one[2], other[2]) - max(one[0], other[0])
        assert wide <= 1 or min(one[3], other[3]) - max(one[1], other[1]) <= 1


def test_a_legend_covers_no_data() -> None:
    with plots.figure() as (made, axes):
        axes.plot([0, 1], [0, 1], label="a line")
        plots.legend_below(axes)
        made.draw_without_rendering()
        assert axes.get_legend().get_window_extent().y1 <= axes.get_window_extent().y0

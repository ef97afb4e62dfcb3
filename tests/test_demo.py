"""`sanderling demo`: the journey, its folder, and what happens when it is run again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import sanderling.cli.demo as home
from sanderling.cli.app import VERBS

from .support.command_line import answer, call


def test_a_step_prints_its_command_and_leaves_its_record(tmp_path: Path) -> None:
    out = tmp_path / "demo folder"
    text = call("demo", "--out", out, "--only", "run").stdout
    assert "$ sanderling run digits_f32.tflite --input digit.npy" in text
    assert "a handwritten 9" in text and f"$ cd '{out}'" in text
    assert json.loads((out / "run.json").read_text())["schema"] == "sanderling.run/1"
    kept = json.loads((out / "demo.json").read_text())
    assert kept["schema"] == "sanderling.demo/2" and kept["right"] > 340
    assert kept["steps"][0]["files"] == ["run.json"] and kept["steps"][0]["status"] == 0
    (out / "mine.txt").write_text("kept")
    again = answer("demo", "--out", out, "--only", "run", "--digit", 3)  # over what it left
    assert again["steps"][0]["status"] == 0 and again["label"] == again["answer"]
    assert (out / "mine.txt").read_text() == "kept"
    assert not [p for p in out.iterdir() if p.name.startswith(".")]


def test_the_journey_is_whole() -> None:
    journey = list(home.steps())
    assert [step.name for step in journey] == [
        "run",
        "bench",
        "profile",
        "quantize",
        "eval",
        "diff",
        "advise",
    ]
    assert all(step.words[0] in VERBS and step.words[-2] == "--json" for step in journey)
    written = [step.words[-1] for step in journey]
    assert len(set(written)) == len(written)


def test_only_the_core_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "is_installed", lambda engine: False)
    monkeypatch.setattr(home, "find_spec", lambda name: None)
    words = [word for step in home.steps() for word in step.words]
    assert "--plot" not in words and "sanderling" in words and "quantize.html" not in words
    told = home._beginning(Path("d"), 0)
    assert "not installed: litert (pip install 'sanderling[peers]')" in told
    assert "not installed: matplotlib (pip install 'sanderling[plot]')" in told


def test_a_step_that_fails_is_told_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = home.DemoCommand("bad", "what fails?", ("run", "none.tflite"))
    good = home.DemoCommand("good", "what works?", ("--version",))
    monkeypatch.setattr(home, "steps", lambda: iter([bad, good]))
    done = call("demo", "--out", tmp_path / "d", status=1)
    assert "none.tflite" in done.stdout and "these failed: bad" in done.stdout
    kept = json.loads((tmp_path / "d" / "demo.json").read_text())
    assert [step["status"] for step in kept["steps"]] == [2, 0]


def test_other_folders_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("")
    assert "holds other things" in call("demo", "--out", tmp_path, status=2).output
    assert "it is a file" in call("demo", "--out", tmp_path / "mine.txt", status=2).output
    assert (
        "no step 'bake'" in call("demo", "--out", tmp_path / "d", "--only", "bake", status=2).output
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.txt"]

"""How far long work is: lines where nobody sits at a terminal, estimates, and silence if asked."""

from __future__ import annotations

import io
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from sanderling import progress, quantize
from sanderling.ir import Array
from sanderling.optimize.calibration.calibrate import calibrate
from sanderling.progress import Estimate, _LastReport, duration

from .support.command_line import call

DATA = Path(str(files("sanderling") / "data"))
F32, INT8 = str(DATA / "digits_f32.tflite"), str(DATA / "digits_int8.tflite")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lines at once, as in a command whose stderr is a file."""
    for name, value in (("FIRST", 0.001), ("OFTEN", 0.001), ("TELLING", 0.0)):
        monkeypatch.setattr(progress, name, value)
    progress.lines_too()
    yield
    progress.lines_too(False)
    progress.hush(False)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which a test sets."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_line_has_share_and_time_left(clock: list[float]) -> None:
    state = _LastReport(begin=0, since=0)
    state.update("calibrating", 10, 200)  # resumed: these were not done now
    clock[0] += 20
    state.update("calibrating", 60, 200)
    assert state.line() == "calibrating: 60 of 200 (30%), 20 s so far, about 56 s left"
    state.aside = "compiling 3 ops"
    assert state.line().endswith("left; compiling 3 ops")
    state.update("correcting", 0, 7)
    assert state.line() == "correcting: 0 of 7 (0%), 20 s so far; compiling 3 ops"


def test_the_end_is_not_foretold(clock: list[float]) -> None:
    """After the last item there may be more to do: 100 % is never said while work goes on."""
    state = _LastReport(begin=0, since=0)
    state.update("runs", 999, 1000)
    assert "(99%)" in state.line()
    state.update("runs", 1000, 1000)
    state.aside = "compiling 3 ops"
    clock[0] += 5
    assert state.line() == "runs: all 1000 done, 5 s so far; compiling 3 ops"
    state.update("reading", 12, 0)  # nobody knows of how many
    assert state.line() == "reading: 12 done, 5 s so far; compiling 3 ops"


def test_the_clock_never_goes_back(clock: list[float]) -> None:
    """A name may change with every step, as in a benchmark: it is one piece of work."""
    state = _LastReport(begin=0, since=0)
    for done in range(4):
        state.update(f"engine {done % 2}", done, 8)
        clock[0] += 10
    assert state.line() == "engine 1: 3 of 8 (37%), 40 s so far, about 67 s left"


def test_what_is_left_falls_with_the_clock(clock: list[float]) -> None:
    """One slow item does not make it rise; a wrong estimate is corrected."""
    state = _LastReport(begin=0, since=0)
    state.update("samples", 0, 20)
    clock[0] += 10
    state.update("samples", 10, 20)
    told = [state.figures()]
    for seconds in (1, 9):
        clock[0] += seconds
        told.append(state.figures())
    assert [text.rpartition(", ")[2] for text in told] == [
        "about 10 s left",
        "about 9 s left",
        "about 20 s left",
    ]


def test_a_bar_is_never_full_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "120")
    with progress.progress() as show:
        show("runs", 3, 3)
        with progress.waiting("compiling 9 ops"):
            time.sleep(0.3)
    text = stream.getvalue()
    assert "runs" in text and "all 3 done" in text and "compiling 9 ops" in text
    assert "100%" not in text and "3/3" not in text


@pytest.mark.parametrize(
    "seconds, text", [(5, "5 s"), (89, "89 s"), (600, "10 min"), (9000, "2.5 h")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_lines_in_a_file_and_none_where_the_package_is_used(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> str:
        stream = io.StringIO()
        monkeypatch.setattr(sys, "stderr", stream)
        with progress.progress() as show:
            show("samples", 1, 4)
            with progress.waiting("compiling"):
                time.sleep(0.05)
        return stream.getvalue()

    assert "samples: 1 of 4 (25%)" in told() and "; compiling" in told()
    progress.hush(True)
    assert told() == ""
    progress.hush(False)
    progress.lines_too(False)
    assert told() == ""


def test_waiting_alone_tells_too(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.waiting("compiling 9 ops"):
        time.sleep(0.05)
    assert "compiling 9 ops: 0 s so far" in stream.getvalue()


def test_an_estimate_is_said_once(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    progress.lines_too()
    ahead = Estimate("calibrating with 101 samples", 101)
    for count in range(1, 6):
        ahead.step(count)
        clock[0] += 0.6
    soon = Estimate("nothing", 4)
    for count in range(1, 4):
        soon.step(count)
        clock[0] += 1.5
    progress.lines_too(False)
    assert capsys.readouterr().err == "calibrating with 101 samples takes about 60 s\n"


def test_an_estimate_that_proves_wrong_is_said_anew(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    progress.lines_too()
    ahead = Estimate("trying 7 ways", 7)
    for count, seconds in enumerate((10, 12, 68, 20, 30, 30)):
        ahead.step(count)
        clock[0] += seconds
    progress.lines_too(False)
    assert capsys.readouterr().err.splitlines() == [
        "trying 7 ways takes about 70 s",
        "trying 7 ways takes about 4 min, not 70 s",
    ]


def test_compiling_is_no_part_of_a_samples_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first sample compiles, in a thread of its own, while the second is read."""
    events: list[str] = []

    class Slow:
        def feeds(self, sample: float, number: int) -> dict[str, Array]:
            return {"x": np.full(1, sample, np.float32)}

        def observe(self, feeds: object, phase: int, number: int, found: object) -> None:
            events.append(f"ran {number}")

    monkeypatch.setattr(Estimate, "step", lambda self, done: events.append(f"step {done}"))
    calibrate(Slow(), [1.0, 2.0, 3.0], total=3)  # type: ignore[arg-type]
    assert "step 1" not in events and events.index("step 2") > events.index("ran 1")
    assert "step 3" in events


def test_the_way_that_is_tried_is_named() -> None:
    told: list[str] = []
    rng = np.random.default_rng(0)
    data = [rng.random((1, 8, 8, 1)).astype(np.float32) for _ in range(24)]
    quantize(
        F32,
        data=data,
        weights="max",
        corrections="bias",
        progress=lambda what, done, total: told.append(what),
    )
    ways = [re.match(r"way (\d) of (\d): (.+)", what) for what in told]
    numbers = [(int(w[1]), int(w[2])) for w in ways if w]
    assert numbers[0][0] == 1 and len(set(numbers)) > 1 and len({n for _, n in numbers}) == 1
    assert any(what.endswith(", correcting") for what in told)


@contextmanager
def at_the_end(tell: Callable[[float], None], pause: object) -> Iterator[None]:
    """One line, whatever the work takes."""
    yield
    tell(1.0)


@pytest.mark.parametrize(
    "words",
    [
        ["trace", INT8, "-o", "t.json", "--runs", 2],
        ["diff", INT8, "--runs", 2],
        ["run", INT8, "-i", "x.npy", "-i", "y.npy"],
        ["profile", INT8, "--runs", 2, "--no-roofline"],
    ],
    ids=lambda w: str(w[0]),
)
def test_verbs_can_be_quiet(
    words: list[object], quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(progress, "_beside", at_the_end)
    np.save("x.npy", np.random.default_rng(0).random((20, 8, 8, 1)).astype(np.float32))
    np.save("y.npy", np.zeros((20, 8, 8, 1), np.float32))
    line = re.compile(r"\d+ of \d+ \(\d+%\)|all \d+ done")
    assert line.search(call(*words).stderr)
    assert not line.search(call(*words, "--quiet").stderr)


@pytest.mark.parametrize("verb", ["bench", "quantize", "eval imagenet", "eval coco"])
def test_long_verbs_have_the_option(verb: str) -> None:
    assert "--quiet" in call(*verb.split(), "--help").stdout

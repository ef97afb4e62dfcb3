"""Tracing by an environment variable, and the verb."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from sanderling import trace
from sanderling.cli.app import app
from sanderling.errors import MissingExtraError
from sanderling.measure.model_trace import trace_model
from sanderling.runtime.session import Session
from sanderling.runtime.tracefile import read
from sanderling.spans import tape

from .support.trace_recordings import (  # noqa: F401
    DIGITS,
    ROOT,
    check_perfetto,
    names_in,
    recorded_runs,
    surroundings,
)

# -- the environment variable ---------------------------------------------------------------------


def run_python(code: str, target: str, cwd: Path, **more: Any) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"SANDERLING_TRACE": target, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
        env=environment,
        **more,
    )


RUN = f"""
import numpy as np, sanderling, os, signal
session = sanderling.load({DIGITS!r}).compile(["reference"])
session(np.zeros((1, 8, 8, 1), np.int8))
"""


# Python's own status after an interrupt depends on how it was started.
@pytest.mark.parametrize(
    "end, status",
    [
        ("", [0]),
        ("raise KeyError('x')", [1]),
        ("raise SystemExit(3)", [3]),
        (
            "signal.signal(signal.SIGINT, signal.default_int_handler); "
            "os.kill(os.getpid(), signal.SIGINT); signal.pause()",
            [1, 130, -signal.SIGINT],
        ),
    ],
    ids=["end", "error", "exit", "ctrl-c"],
)
def test_a_program_is_traced_without_changing_it(
    end: str, status: list[int], tmp_path: Path
) -> None:
    done = run_python(RUN + end, "x.json", tmp_path)
    assert done.returncode in status, done.stderr
    made = read(tmp_path / "x.json")
    assert {"load", "invoke", "CONV_2D"} <= {s.name for s in made.slices}
    assert "wrote x.json" in done.stderr and names_in(tmp_path) == ["x.json"]


def test_a_forked_child_leaves_the_file_to_its_parent(tmp_path: Path) -> None:
    code = """
        import os, sys, sanderling
        if os.fork() == 0:
            assert not sanderling.trace.is_recording()
            sys.exit(0)
        assert os.wait()[1] == 0 and not os.path.exists(f"x-{os.getpid()}.json")
        with sanderling.trace.section("parent"):
            pass
        print(os.getpid())
    """
    done = run_python(code, "x-{pid}.json", tmp_path)
    assert done.returncode == 0, done.stderr
    made = read(tmp_path / f"x-{done.stdout.strip()}.json")
    assert [s.name for s in made.slices] == ["parent"]


@pytest.mark.parametrize("target", ["none/x.json", "x.txt"])
def test_a_bad_name_is_a_warning(target: str, tmp_path: Path) -> None:
    done = run_python("import sanderling; print('goes on')", target, tmp_path)
    assert done.returncode == 0 and done.stdout == "goes on\n"
    assert "SANDERLING_TRACE: nothing is recorded" in done.stderr
    assert not list(tmp_path.iterdir())


# -- the command ----------------------------------------------------------------------------------


def call(*words: object, status: int = 0) -> Result:
    result = CliRunner().invoke(app, ["trace", *map(str, words)])
    assert result.exit_code == status, result.output + repr(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert tape.recorder is None
    return result


def test_the_command_writes_a_trace_and_says_what_stands_out(tmp_path: Path) -> None:
    out = tmp_path / "x.json"
    text = call(DIGITS, "-o", out, "--runs", 3, "--threads", 64).stdout
    assert re.search(r"first run +\d+\.\d+ ms", text) and "later runs (2)" in text
    assert "threads compute at once" in text
    again = call("--read", out).stdout
    assert again.split("\n", 1)[1] == text.split("\n", 1)[1]
    assert [s.name for s in read(out).of_kind("run")] == ["invoke"] * 3


def test_the_command_in_json_and_protobuf(tmp_path: Path) -> None:
    pytest.importorskip("perfetto")
    out = tmp_path / "x.perfetto-trace"
    found = json.loads(call(DIGITS, "-o", out, "--delegate", "reference", "--json", "-").stdout)
    assert found["schema"] == "sanderling.trace/1" and found["runs"] == 5
    assert found["sections_s"].keys() == {"make inputs"} and found["later_run_s"] > 0
    names, _ = check_perfetto(out.read_bytes())
    assert names.count("CONV_2D") == 10


def test_an_interrupt_loses_nothing_that_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []

    def run(self: Session, *args: Any, **more: Any) -> Any:
        runs.append(0)
        if len(runs) == 3:
            raise KeyboardInterrupt
        return real(self, *args, **more)

    real = Session.run
    monkeypatch.setattr(Session, "run", run)
    result = call(DIGITS, "-o", tmp_path / "x.json", "--delegate", "reference", status=130)
    assert "interrupted" in result.stderr
    assert len(read(tmp_path / "x.json").of_kind("run")) == 2


def test_inputs_are_the_users(tmp_path: Path) -> None:
    np.save(tmp_path / "two.npy", np.zeros((2, 8, 8, 1), np.int8))
    call(
        DIGITS,
        "-o",
        tmp_path / "x.json",
        "--input",
        tmp_path / "two.npy",
        "--delegate",
        "reference",
    )
    (plan,) = (s for s in read(tmp_path / "x.json").of_kind("plan") if s.name == "plan")
    assert "(2, 8, 8, 1)" in plan.args["inputs"]


@pytest.mark.parametrize("words, said", [
    (["none.tflite", "-o", "x.json"], "none.tflite"),
    ([DIGITS, "-o", "x.json", "--input", "wrong.npy"], "shape [1, 3]"),
    ([DIGITS, "-o", "x.json", "--input", "large.npy"], "does not run on this shape"),
    ([DIGITS, "-o", "x.json", "--threads", "0"], "threads is 0"),
    ([DIGITS, "-o", "x.json", "--runs", "0"], "runs is 0"),
    ([DIGITS, "-o", "none/x.json"], "there is no folder 'none'"),
    ([DIGITS, "-o", "x.txt"], ".perfetto-trace"),
    ([DIGITS], "--output"),
    ([], "neither a model"),
    ([DIGITS, "--read", "x.json"], "not both"),
    (["--read", "none.json"], "No such file"),
    (["--read", "garbage.json"], "garbage.json: the trace cannot be read"),
    (["--read", DIGITS], "no trace that can be read"),
    (["--read", "other.json"], "not a trace"),
    ([DIGITS, "-o", "x.json", "--delegate", "none"], "no delegate 'none'"),
], ids=str)  # fmt: skip
def test_bad_input(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("wrong.npy", np.zeros((1, 3), np.int8))
    Path("garbage.json").write_text("{")
    Path("other.json").write_text('{"traceEvents": []}')
    np.save("large.npy", np.zeros((1, 9, 9, 1), np.int8))
    before = names_in(tmp_path)
    result = call(*words, status=2)
    assert said in result.stderr and names_in(tmp_path) == before


def test_without_the_package_json_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.split(".")[0] == "perfetto"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "perfetto", None)
    result = call(DIGITS, "-o", tmp_path / "x.pftrace", status=2)
    assert "pip install 'sanderling[trace]'" in result.stderr and not list(tmp_path.iterdir())
    with pytest.raises(MissingExtraError), trace.record(tmp_path / "x.pftrace"):
        pytest.fail("it began")
    call(DIGITS, "-o", tmp_path / "x.json", "--delegate", "reference")


def test_the_function_behind_it() -> None:
    shown: list[tuple[str, int, int]] = []
    made = trace_model(
        DIGITS,
        runs=2,
        delegates=["reference"],
        feeds={"image": np.zeros((1, 8, 8, 1), np.int8)},
        progress=lambda *now: shown.append(now),
    )
    assert len(made.of_kind("run")) == 2 and shown[-1] == ("runs", 2, 2)

"""The benchmark program: its flags and its log; on a phone (scripted adb), on a board (ssh)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sanderling
from sanderling.errors import InputError
from sanderling.measure.devices import check, parse
from sanderling.runtime.session import Session
from tests.support.command_line import INT8, call
from tests.support.phones import NEW, Phone, scripted_phone  # noqa: F401

from ..support.c_programs import QEMU, needs_arm, needs_cc, run

QUICK = ("--num_runs=5", "--min_secs=0", "--warmup_min_secs=0")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    call("build", INT8, "-o", folder, "--name", "m", "--bench")
    return folder / "m_benchmark"


@needs_cc
def test_the_log_is_the_tool_s(program: Path) -> None:
    text = run(
        program, *QUICK, "--enable_op_profiling=true", "--num_threads=2", "--graph=x", "--odd=1"
    )
    log = parse(text)
    assert log.is_complete and log.inference["count"] == 5 and log.warmup["count"] == 1
    assert log.parameters["Min num runs"] == "5" and log.parameters["Graph"] == "x"
    assert log.model_size_mb == pytest.approx(Path(INT8).stat().st_size / 1e6, rel=1e-3)
    assert {"CONV_2D", "SOFTMAX"} <= {o.type for o in log.ops} and log.memory["overall"] > 0
    assert sum(o.share for o in log.ops) == pytest.approx(100, abs=0.1)
    assert sum(o.share for o in log.types) == pytest.approx(100, abs=0.1)
    assert log.warnings == ["Unconsumed cmdline flags: --odd=1"]
    assert not parse(run(program, *QUICK)).ops
    assert parse(run(program, "--dry_run=true")).inference == {"count": 0.0, "avg": 0.0}


@needs_cc
def test_inputs_and_outputs_are_files(program: Path, tmp_path: Path) -> None:
    image = np.random.default_rng(3).integers(-128, 128, (1, 8, 8, 1)).astype(np.int8)
    (tmp_path / "in").write_bytes(image.tobytes())
    run(
        program,
        *QUICK,
        f"--input_layer_value_files=image:{tmp_path / 'in'}",
        f"--output_filepath={tmp_path / 'out'}",
    )
    wanted = Session(sanderling.load(INT8))(image)
    assert (tmp_path / "out").read_bytes() == wanted.tobytes()
    run(
        program,
        *QUICK,
        "--input_layer_value_range=image,3,3",
        f"--output_filepath={tmp_path / 'out'}",
    )
    wanted = Session(sanderling.load(INT8))(np.full_like(image, 3))
    assert (tmp_path / "out").read_bytes() == wanted.tobytes()


@needs_cc
@pytest.mark.parametrize("flag, says", [
    ("--num_runs=many", "--num_runs=many is not a number"),
    ("--cpu_mask=xyz", "is not a mask such as f0"),
    ("--cpu_mask=8000000000000000", "there are no such CPUs"),
    ("--code_version=z80", "cannot run z80"),
    ("--num_threads=5000", "threads is 5000"),
    ("--input_layer_value_files=image:/nowhere", "does not hold the 64 bytes"),
])  # fmt: skip
def test_bad_flags(program: Path, flag: str, says: str) -> None:
    done = subprocess.run([program, flag], capture_output=True, text=True)
    assert done.returncode == 1 and says in done.stderr and done.stderr.startswith("ERROR: ")


@needs_cc
def test_help_and_mask(program: Path) -> None:
    assert "--enable_op_profiling=false" in run(program, "--help")
    first = min(os.sched_getaffinity(0))
    assert parse(run(program, *QUICK, f"--cpu_mask={1 << first:x}")).is_complete


# -- devices --------------------------------------------------------------------------------------


SHORT = ("--min-secs", 0.01, "--warmup-secs", 0.01)


def bench(*words: object) -> Any:
    found = call("bench", INT8, *words, "--runs", 3, *SHORT, "--json", "-")
    return json.loads(found.stdout)


@needs_arm
def test_a_phone_runs_both_in_turns(phone: Callable[..., Phone]) -> None:
    """Our program is AArch64 code, run by qemu for real; the other one is scripted."""
    device = phone(qemu=QEMU)
    words = ["--device", "android", "--engines", "sanderling,tflite", "--launches", 2,
             "--device-binary", device.tool(), "--cpus", "0"]  # fmt: skip
    found = bench(*words)
    ours, theirs = found["results"]
    assert ours["name"] == "android:PHONE1 sanderling, 1 thread" and not ours["error"]
    assert theirs["setting"]["engine"] == "tflite" and len(theirs["rounds"]) == 2
    assert ours["summary"]["count"] >= 6 and ours["facts"]["device"]["abi"] == "arm64-v8a"
    (ratio,) = found["comparisons"]
    assert ratio["setting"] == theirs["name"] and ratio["against"] == ours["name"]
    runs = [c[-1] for c in device.calls if "--num_threads" in c[-1]]
    assert [("--graph" in line) for line in runs] == [False, True, False, True]
    assert "--cpu_mask=1" in runs[0] and "taskset 1" in runs[1] and device.left == []


@needs_cc
def test_a_phone_of_another_kind(phone: Callable[..., Phone]) -> None:
    device = phone()
    (device.folder / "bin" / "getprop").write_text("#!/bin/sh\necho riscv64\n")
    words = ["bench", INT8, "--device", "android", "--engines", "sanderling"]
    said = call(*words, status=2).stderr
    assert "no code for a device of kind 'android riscv64'" in said and "arm64-v8a" in said


SSH = """#!/bin/sh
while [ "$1" = -o ] || [ "$1" = -q ]; do [ "$1" = -o ] && shift; shift; done
echo "$@" >> HOME/calls
[ -f HOME/fails ] && { cat HOME/fails >&2; exit 255; }
"""


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """ssh and scp of a board that is this machine."""
    (tmp_path / "ssh").write_text(SSH.replace("HOME", str(tmp_path)) + 'shift; exec sh -c "$*"\n')
    (tmp_path / "scp").write_text(SSH.replace("HOME", str(tmp_path)) + 'exec cp "$1" "${2#*:}"\n')
    for name in ("ssh", "scp"):
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


@needs_cc
def test_a_board_runs_both(board: Path) -> None:
    (board / "log").write_text(NEW)
    (board / "tool").write_text(f"#!/bin/sh\ncat {board / 'log'}\n")
    words = ["--device", "ssh:pi@board", "--engines", "sanderling,tflite", "--launches", 1,
             "--device-binary", board / "tool"]  # fmt: skip
    found = bench(*words)
    ours, theirs = found["results"]
    assert ours["name"] == "ssh:pi@board sanderling, 1 thread" and ours["summary"]["count"] >= 3
    assert theirs["summary"]["median"] == pytest.approx(0.01218) and len(found["comparisons"]) == 1
    assert ours["facts"]["device"]["machine"] == os.uname().machine


@pytest.mark.parametrize("words, says", [
    ("ssh: Could not resolve hostname board: Name or service not known", "no host 'board'"),
    ("pi@board: Permission denied (publickey,password).", "does not let this computer in"),
    ("ssh: connect to host board port 22: Connection refused", "does not answer"),
])  # fmt: skip
def test_boards_that_cannot_be_used(board: Path, words: str, says: str) -> None:
    (board / "fails").write_text(words)
    command = ["bench", INT8, "--device", "ssh:board", "--engines", "sanderling"]
    assert says in call(*command, status=2).stderr


def test_a_board_without_the_tool_and_other_wrong_words(board: Path) -> None:
    said = call("bench", INT8, "--device", "ssh:board", status=2).stderr
    assert "no benchmark_model was given" in said and "--engines sanderling" in said
    said = call("bench", INT8, "--device", "ssh:board", "--engines", "openvino", status=2).stderr
    assert "'openvino' does not run on ssh:board" in said
    for name in ("ssh:", "ssh:-oProxyCommand=x", "ssh"):
        with pytest.raises(InputError, match="there is no device"):
            check(name)

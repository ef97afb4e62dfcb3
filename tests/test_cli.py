"""The command line: its verbs, a sentence where something is wrong, and as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import sanderling
from sanderling.cli import main

from .support.command_line import DIGIT, F32, INT8, F, R, array, call, text_file

# -- the others ---------------------------------------------------------------------------------


def test_version_and_help() -> None:
    assert call("--version").stdout == f"sanderling {sanderling.__version__}\n"
    assert all(verb in call("--help").stdout for verb in ("run", "inspect", "demo"))


@pytest.mark.parametrize("verb", ["run", "inspect", "demo"])
def test_help_of_every_verb(verb: str) -> None:
    text = call(verb, "--help").stdout
    assert "Usage" in text and "--json" in text


# -- what is wrong ------------------------------------------------------------------------------


def corrupt(folder: Path) -> Path:
    path = folder / "corrupt.tflite"
    path.write_bytes(Path(F32).read_bytes()[:700])
    return path


def not_a_picture(folder: Path) -> Path:
    path = folder / "broken.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"junk" * 20)
    return path


def pickled(folder: Path) -> Path:
    return array(folder, np.array([{}], object))


def picture(folder: Path) -> Path:
    Image.new("RGB", (4, 4)).save(folder / "p.png")
    return folder / "p.png"


def rows(folder: Path) -> Path:
    """Samples to train on."""
    np.save(folder / "rows.npy", np.zeros((16, 8, 8, 1), np.float32))
    return folder / "rows.npy"


def labels(folder: Path, label: int) -> Path:
    np.save(folder / "labels.npy", np.full(16, label))
    return folder / "labels.npy"


Words = Callable[[Path], list[object]]
# what is wrong -> the command, and words of the message
WRONG: dict[str, tuple[Words, str]] = {
    "no model": (lambda d: ["run", d / "none.tflite"], "none.tflite|No such file|check the path"),
    "target of build": (lambda d: ["build", F32, "-o", d / "lib", "--target", "z80"],
        "no target 'z80'|native, x86-64"),
    "name of build": (lambda d: ["build", F32, "-o", d / "lib", "--name", "a-b"], "--name|'a-b'"),
    "function of build": (lambda d: ["build", F32, "-o", d / "lib", "--custom", "A=2x"],
        "--custom|'2x'"),
    "link of build": (lambda d: ["build", F32, "-o", d / "lib", "--link", d / "no.c"],
        "--link|no.c|no such file|check the path"),
    "input of build": (lambda d: ["build", F32, "-o", d / "lib", "--input", "image=x.npy"],
        "--input is for the runs of --check|--check"),
    "folder of build": (lambda d: ["build", F32, "-o", text_file(d, "", "x")],
        "it is a file|folder"),
    "samples of qat": (lambda d: ["qat", F32, "-o", d / "o.tflite"], "--data|no samples"),
    "mode of qat": (lambda d: ["qat", F32, "--data", d, "--mode", "float16"], "needs no training"),
    "weights of qat": (lambda d: ["qat", F32, "--data", d, "--weights", "int3"], "int3|int4"),
    "a quantised model for qat": (lambda d: ["qat", INT8, "--data", rows(d)], "quantised|float"),
    "labels of qat": (lambda d: ["qat", F32, "--data", rows(d), "--labels", labels(d, 11)],
        "labels from 11 to 11 for 10 classes"),
    "few samples for qat": (lambda d: ["qat", F32, "--data", array(d, DIGIT)], "1 samples|8 or"),
    "corrupt model": (lambda d: ["inspect", corrupt(d)], "corrupt.tflite|damaged"),
    "no model at all": (lambda d: ["inspect", array(d, DIGIT)], "x.npy|not a .tflite model"),
    "folder as model": (lambda d: ["inspect", d], "directory|give the .tflite file in it"),
    "input not given": (lambda d: ["run", F32], "is not given|--input|--random 0"),
    "input not there": (lambda d: ["run", F32, "-i", d / "no.npy"], "no.npy|no such file"),
    "input name": (lambda d: ["run", F32, "-i", f"y={array(d, DIGIT)}"],
        "no input 'y'|the inputs are"),
    "output twice": (lambda d: ["run", F32, *R, "-o", "a=1", "-o", "a=2"],
        "--output a is given twice"),
    "output twice, once by name": (lambda d: ["run", F32, *R, "-o", d / "y.npy", "-o",
        f"probabilities={d / 'z.npy'}"], "output 'probabilities' is given twice"),
    "input shape": (lambda d: ["run", F32, "-i", array(d, np.ones(5))],
        "x.npy|[5]|f32[|[1, 8, 8, 1]"),
    "input size": (lambda d: ["run", F32, "-i", array(d, np.ones((1, 9, 9, 1), F))],
        "input 'image' from |x.npy: it has the shape [1, 9, 9, 1], not [1, 8, 8, 1]|f32[1,8,8,1]"),
    "input channels": (lambda d: ["run", INT8, "-i", array(d, np.ones((1, 8, 8, 3), F))],
        "input 'image' from |x.npy: it has the shape [1, 8, 8, 3], not [1, 8, 8, 1]"),
    "input type": (lambda d: ["run", F32, "-i", array(d, DIGIT + 1j)], "complex|float32"),
    "input range": (lambda d: ["run", INT8, "-i", array(d, np.full((1, 8, 8, 1), 300))],
        "int64|int8"),
    "pickle": (lambda d: ["run", F32, "-i", pickled(d)],
        "x.npy|not a readable .npy|Python objects"),
    "a text as array": (lambda d: ["run", F32, "-i", text_file(d, "1 2 3\n", "x.npy")],
        "x.npy|not a readable .npy file: it is not a NumPy file|np.save"),
    "an empty array file": (lambda d: ["run", F32, "-i", text_file(d, "", "x.npz")],
        "x.npz|not a readable .npz file: it is empty|np.savez"),
    "a text as arrays": (lambda d: ["eval", "arrays", F32, "--data",
        text_file(d, "a text\n", "text.tflite")],
        "text.tflite|it is not a NumPy file|np.savez(file"),
    "one array for many": (lambda d: ["eval", "arrays", F32, "--data", array(d, DIGIT)],
        "x.npy|not a readable .npz file: it is a .npy|np.savez(file"),
    "empty input": (lambda d: ["run", F32, "-i", "image="], "--input|nothing stands after image="),
    "negative seed": (lambda d: ["run", F32, "--random", -1], "--random"),
    "number of sizes": (lambda d: ["run", F32, *R, "--shape", "1,8,8"],
        "1,8,8 has 3 sizes|f32[1,8,8,1]|4 sizes"),
    "no file type": (lambda d: ["run", F32, *R, "-o", d / "y"], "without a file type|.npy"),
    "one file for two": (lambda d: ["run", F32, *R, "-o", d / "y.npy", "--json", d / "y.npy"],
        "two results"),
    "one file of bench": (lambda d: ["bench", F32, "--json", d / "y.html", "--plot", d / "y.html"],
        "y.html: two results would go into one file"),
    "one file of trace": (lambda d: ["trace", F32, "-o", d / "y.json", "--json", d / "y.json"],
        "y.json: two results would go into one file"),
    "one file of diff": (lambda d: ["diff", F32, "--json", d / "y.html", "--plot", d / "y.html"],
        "y.html: two results would go into one file"),
    "bytes to stdout": (lambda d: ["diff", F32, "--output_file_path", "-"],
        "-: this is not written to stdout|give a file's name"),
    "nearly a verb": (lambda d: ["inspekt", F32], "'inspekt'|did you mean inspect?"),
    "file type": (lambda d: ["run", F32, "-i", corrupt(d)],
        "unknown file type '.tflite'|.npy, .npz|.png"),
    "NaN for integers": (lambda d: ["run", INT8, "-i", array(d, DIGIT * np.nan)],
        "input 'image'|64 of 64 values are NaN"),
    "no label": (lambda d: ["run", F32, *R, "--labels", text_file(d, "\n")],
        "text|there is no label in it|one class name a line"),
    "labels of a table": (lambda d: ["run", F32, *R, "--labels", text_file(d,
        'index,mid,display_name\n0,/m/09x0r,Speech\n1,/m/0ytgt,"Child speech, kid"\n')],
        "it is a CSV with the columns index, mid, display_name|without the line of headings"),
    "two forms": (lambda d: ["inspect", F32, "--text", "--json", "-"],
        "--text and --json -|choose one"),
    "no plugin": (lambda d: ["run", F32, *R, "--plugin", d / "no.py"], "no.py|no such file"),
    "plugin that is a folder": (lambda d: ["run", F32, *R, "--plugin", d],
        "--plugin|it is a folder or a pipe, not a file"),
    "plugin that fails": (lambda d: ["inspect", F32, "--plugin", text_file(d, "a = 1\n1 / 0")],
        "--plugin|ZeroDivisionError|line 2"),
    "plugin that is none": (lambda d: ["inspect", F32, "--plugin", text_file(d, "def (")],
        "SyntaxError|line 1"),
    "plugin with a mistake": (lambda d: ["inspect", F32, "--plugin", text_file(
        d, "import sanderling as s\ns.register_custom('A', evaluate=1, infer=len)")],
        "InputError: evaluate is 1, not a function|line 2"),
    "bad picture": (lambda d: ["run", F32, "-i", not_a_picture(d)],
        "broken.png|not a readable picture"),
    "bad mean": (lambda d: ["run", F32, *R, "--mean", "a"], "--mean|'a'|127.5"),
    "zero std": (lambda d: ["run", F32, *R, "--std", "0"], "--std|above 0"),
    "too many means": (lambda d: ["run", F32, "-i", picture(d), "--mean", "1,2,3"],
        "3 numbers|1 colours"),
    "bad resampling": (lambda d: ["run", F32, "-i", picture(d), "--resample", "x"], "'x'|bilinear"),
    "bad shape": (lambda d: ["run", F32, *R, "--shape", "-1,3"], "'-1,3'|1,224,224,3"),
    "huge shape": (lambda d: ["run", F32, *R, "--shape", f"{1 << 40},8,8,1"],
        "SANDERLING_MAX_MEMORY"),
    "shape without random": (lambda d: ["run", F32, "-i", array(d, DIGIT), "--shape", "1,8,8,1"],
                             "--shape is for random inputs"),
    "no labels": (lambda d: ["run", F32, *R, "--labels", d / "no.txt"], "no.txt|labels"),
    "no folder": (lambda d: ["run", F32, *R, "-o", d / "no" / "y.npy"], "no/y.npy|no folder"),
    "folder as output": (lambda d: ["run", F32, *R, "--json", d], "it is a folder"),
    "output kind": (lambda d: ["run", F32, *R, "-o", d / "y.csv"], "'.csv'|.npy"),
    "output name": (lambda d: ["run", F32, *R, "-o", f"no={d / 'y.npy'}"],
        "no output 'no'|outputs are"),
    "signature": (lambda d: ["run", F32, *R, "--signature", "no"], "no signature 'no'"),
    "delegate": (lambda d: ["run", F32, *R, "--delegate", "npu"],
        "'npu'|known delegates: coreml, cpu,"),
    "delegate to inspect": (lambda d: ["inspect", F32, "--delegate", "npu"], "'npu'"),
    "threads": (lambda d: ["run", F32, *R, "--threads", 0],
        "sanderling: --threads is 0|leave it out"),
    "json folder": (lambda d: ["inspect", F32, "--json", d / "no" / "r.json"], "no folder"),
    "no verb": (lambda d: ["fly"], "fly"),
    "no such option": (lambda d: ["run", F32, "--fast"], "--fast"),
    "top": (lambda d: ["run", F32, *R, "--top", 0], "--top"),
    "digit": (lambda d: ["demo", "--digit", 360], "--digit"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_said(what: str, tmp_path: Path) -> None:
    words, message = WRONG[what]
    command = words(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    result = call(*command, status=2)
    for word in message.split("|"):
        assert word in result.stderr, result.stderr
    assert not result.stdout and "Traceback" not in result.stderr
    assert sorted(tmp_path.rglob("*")) == before  # nothing half-written is left


def test_pillow_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = picture(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    error = call("run", F32, "-i", path, status=2).stderr
    assert "pillow" in error and "pip install 'sanderling[image]'" in error
    assert "in a clone: pip install -e '.[image]'" in error


def test_memory_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise MemoryError

    call("run", "--help")  # the verb is imported when it is called
    monkeypatch.setattr(sys.modules["sanderling.cli.run"], "load", exhausted)
    assert "not enough memory" in call("run", F32, "--random", 0, status=2).stderr


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere"
)
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        error = call("run", F32, *R, "-o", tmp_path / "y.npy", status=2).stderr
        assert "cannot write" in error
    finally:
        tmp_path.chmod(0o700)


# -- as a process -------------------------------------------------------------------------------


def process(*words: object, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sanderling", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **more)


def test_the_command_itself() -> None:
    done = process("run", INT8, "--random", 0, "--json", "-")
    assert done.returncode == 0 and json.loads(done.stdout)["outputs"] and not done.stderr


def test_the_command_fails_with_a_sentence(tmp_path: Path) -> None:
    done = process("inspect", tmp_path / "none.tflite")
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("sanderling: ") and "Traceback" not in done.stderr


def test_a_reader_that_goes_away() -> None:
    """`sanderling inspect ... | head`: no traceback when the pipe closes."""
    command = [sys.executable, "-m", "sanderling", "inspect", INT8, "--json", "-"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None and running.stderr is not None
    running.stdout.close()
    error = running.stderr.read()
    running.wait(60)
    running.stderr.close()
    assert b"Traceback" not in error
    assert running.returncode in (0, 141)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "words",
    [["--version"], ["inspect", INT8], ["inspect", INT8, "--json", "-"]],
    ids=" ".join,
)
def test_a_full_disk(words: list[str]) -> None:
    command = [sys.executable, "-m", "sanderling", *words]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("sanderling: cannot write the output: No space left on dev")


def test_interrupted_while_it_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sanderling.cli.app.start", interrupt)
    with pytest.raises(SystemExit) as status:
        main()
    assert status.value.code == 130


def test_interrupted_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    call("run", "--help")
    monkeypatch.setattr(sys.modules["sanderling.cli.run"], "load", interrupt)
    assert "interrupted" in call("run", F32, "--random", 0, status=130).stderr


def test_the_version_does_not_wait_for_numpy() -> None:
    code = (
        "import sys; from sanderling.cli.app import app; app(['--version'], standalone_mode=False);"
        "print(*sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "rich", "llvmlite"} & set(done.stdout.split())


def test_lists_of_verbs_are_whole_sentences() -> None:
    for words in (["--help"], ["eval", "--help"]):
        assert "..." not in call(*words).stdout.replace("[ARGS]...", "")

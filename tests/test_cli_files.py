"""What the command line does with files, pipes and streams that are not as one hopes."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import zlib
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sanderling import files as given
from sanderling import load
from sanderling.errors import InputError
from sanderling.evaluate.task import make_task
from sanderling.format.save import write_atomic

from .support.command_line import call

DATA = Path(str(files("sanderling") / "data"))
F32, INT8 = str(DATA / "digits_f32.tflite"), str(DATA / "digits_int8.tflite")
DEEP = "[" * 100_000


def process(*words: object, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sanderling", *map(str, words)]
    return subprocess.run(command, text=True, timeout=60, stderr=subprocess.PIPE, **more)


def refused(done: subprocess.CompletedProcess[str], *said: str) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("sanderling: ") and "Traceback" not in done.stderr
    for word in said:
        assert word in done.stderr, done.stderr


# -- models through pipes -------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["-", "/dev/stdin"])
def test_a_model_from_stdin(model: str) -> None:
    with Path(INT8).open("rb") as content:
        done = process("inspect", model, "--ops", stdin=content, stdout=subprocess.PIPE)
    assert done.returncode == 0 and "CONV_2D" in done.stdout, done.stderr


NAMELESS = [
    ("inspect", []),
    ("run", ["--random", 0, "--json", "-"]),
    ("diff", ["--runs", 1]),
    ("benchmark_model", ["--num_runs=1", "--min_secs=0.001", "--warmup_min_secs=0.001"]),
]


@pytest.mark.parametrize("verb, words", NAMELESS, ids=lambda w: w if isinstance(w, str) else "")
def test_stdin_is_called_so(verb: str, words: list[object]) -> None:
    """The file that it is kept in meanwhile is nobody's business."""
    model = "--graph=-" if verb == "benchmark_model" else "-"
    with Path(INT8).open("rb") as content:
        done = process(verb, model, *words, stdin=content, stdout=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    assert "stdin" in done.stdout and "stdin.tflite" not in done.stdout


def test_an_error_about_stdin_says_so() -> None:
    done = process("inspect", "-", input="xxx", stdout=subprocess.PIPE)
    assert done.returncode == 2 and done.stderr.startswith("sanderling: stdin: the file has")


def piped(content: bytes) -> int:
    """The reading end of a pipe that holds this, as `<(...)` gives it."""
    read, write = os.pipe()
    os.write(write, content)
    os.close(write)
    return read


def test_process_substitution_is_read_once_and_others_see_it() -> None:
    """Verbs whose work is done by other processes get a file."""
    ends = [piped(Path(INT8).read_bytes()), piped(Path(INT8).read_bytes())]
    done = process(
        "diff", *(f"/dev/fd/{e}" for e in ends), "--runs", 2, pass_fds=ends, stdout=subprocess.PIPE
    )
    for end in ends:
        os.close(end)
    assert done.returncode == 0 and "Num evaluation runs: 2" in done.stdout, done.stderr


def test_a_pipe_that_nobody_writes_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given, "PATIENCE", 0.1)
    os.mkfifo(tmp_path / "pipe")
    for read in (load, given.read_bytes):
        with pytest.raises(InputError, match="nobody writes to it"):
            read(tmp_path / "pipe")


def test_a_pipe_whose_writer_is_slow(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = subprocess.Popen(["sh", "-c", f"sleep 0.3; cat {INT8} > {tmp_path / 'pipe'}"])
    assert load(tmp_path / "pipe").main.ops
    assert writer.wait() == 0


def test_a_device_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given, "LIMIT", 1 << 22)
    with pytest.raises(InputError, match="more than 4194304 bytes"):
        load("/dev/zero")


# -- streams that are closed ----------------------------------------------------------------------


@pytest.mark.parametrize("words", ["--version", f"inspect {INT8}", f"inspect {INT8} --json -"])
def test_a_closed_stdout_is_an_error(words: str) -> None:
    done = process(*words.split(), preexec_fn=lambda: os.close(1))
    refused(done, "cannot write the output", "it is closed")


def test_a_closed_stderr_changes_nothing() -> None:
    command = [sys.executable, "-m", "sanderling", "inspect", INT8]
    done = subprocess.run(command, stdout=subprocess.PIPE, preexec_fn=lambda: os.close(2))
    assert done.returncode == 0 and b"CONV_2D" in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_nobody_to_complain_to(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sanderling", "inspect", str(tmp_path / "none")]
    with Path("/dev/full").open("w") as full:
        assert subprocess.run(command, stderr=full, stdout=subprocess.PIPE).returncode == 2


# -- files to write -------------------------------------------------------------------------------


def test_links_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "a.npy").symlink_to(tmp_path / "b.npy")
    (tmp_path / "b.npy").symlink_to(tmp_path / "a.npy")
    error = call("run", INT8, "--random", 0, "-o", tmp_path / "a.npy", status=2).stderr
    assert "a.npy: cannot write" in error and "symbolic links" in error
    assert len(list(tmp_path.iterdir())) == 2


def test_a_name_as_long_as_they_get(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    write_atomic(path, b"content")
    assert path.read_bytes() == b"content" and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(InputError, match="cannot write"):
        write_atomic(tmp_path / ("x" * 256), b"content")
    with pytest.raises(InputError, match=r"cannot write: .*null"):
        write_atomic(tmp_path / "a\0b", b"content")


# -- files to read --------------------------------------------------------------------------------


@pytest.mark.parametrize("words, name, content, said", [
    (["bench", INT8, "--baseline"], "deep.json", DEEP, "the baseline|nested too deeply"),
    (["quantize", F32, "--recipe"], "deep.json", DEEP, "the recipe|nested too deeply"),
    (["quantize", F32, "--recipe"], "deep.yaml", DEEP[:3000], "the recipe|nested too deeply"),
    (["trace", "--read"], "deep.json", DEEP, "the trace|nested too deeply"),
    (["run", INT8, "--random", 0, "--labels"], "names.txt", b"\xff\0",
     "the labels|UTF-8"),
    (["bench", INT8, "--baseline"], "binary.json", b"\xff\xfe\0\0", "the baseline|UTF-8"),
], ids=lambda v: v if isinstance(v, str) and len(v) < 30 else "")  # fmt: skip
def test_files_that_cannot_be_understood(
    tmp_path: Path, words: list[object], name: str, content: str | bytes, said: str
) -> None:
    data = content.encode() if isinstance(content, str) else content
    (tmp_path / name).write_bytes(data)
    error = call(*words, tmp_path / name, status=2).stderr
    for word in (name, *said.split("|")):
        assert word in error


def test_every_reader_says_what_is_wrong(tmp_path: Path) -> None:
    for name in (tmp_path, tmp_path / "none", tmp_path / "a\0b", tmp_path / ("x" * 300)):
        with pytest.raises(InputError, match="the list cannot be read"):
            given.read_data(name, "the list", "give a list")


@pytest.mark.parametrize(
    "text, said",
    [
        (
            "one.png,3\n",
            "column of the pictures' names is missing|one.png,3, is a picture|file,label",
        ),
        ("file,what\none.png,3\n", "column of the classes is missing|file, what|call one label"),
        ("file,label\none.png," + "9" * 200_000 + ",x" + "\n", "not a .csv|line 2"),
    ],
    ids=["no header", "no label column", "a field without end"],
)
def test_a_label_file_names_the_column_that_is_missing(
    tmp_path: Path, text: str, said: str
) -> None:
    from PIL import Image

    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "one.png")
    (tmp_path / "labels.csv").write_text(text)
    task = make_task("imagenet", images=tmp_path, labels=tmp_path / "labels.csv")
    with pytest.raises(InputError) as error:
        list(task.samples())
    for word in said.split("|"):
        assert word in str(error.value)


# -- arrays that are none -------------------------------------------------------------------------


def array_file(header: str) -> bytes:
    """A .npy that says this of itself, and has nothing behind it."""
    text = f"{header.ljust(117)}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def zipped(flags: int, kind: int) -> bytes:
    """A .npz whose only array is said to be encrypted (1) or packed (8) and is not."""
    name, content = b"x.npy", b"no array"
    told = struct.pack(
        "<HHHHHIIIHH",
        20,
        flags,
        kind,
        0,
        0,
        zlib.crc32(content),
        len(content),
        len(content),
        len(name),
        0,
    )
    entry = b"PK\x03\x04" + told + name + content
    index = b"PK\x01\x02" + struct.pack("<H", 20) + told + bytes(14) + name
    end = struct.pack("<HHHHIIH", 0, 0, 1, 1, len(index), len(entry), 0)
    return entry + index + b"PK\x05\x06" + end


LIES = {
    "header that does not end": ("x.npy", array_file("(" * 2000)),
    "more than there is memory": (
        "x.npy",
        array_file(f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({1 << 55},), }}"),
    ),
    "encrypted": ("x.npz", zipped(1, 0)),
    "not packed": ("x.npz", zipped(0, 8)),
    "no known packing": ("x.npz", zipped(0, 77)),
}
READERS: dict[str, tuple[Any, ...]] = {
    "run": ("run", F32, "-i"),
    "diff": ("diff", F32, INT8, "--data"),
    "quantize": ("quantize", F32, "--mode", "int8", "--data"),
    "eval": ("eval", "arrays", F32, "--data"),
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
@pytest.mark.parametrize(("name", "content"), LIES.values(), ids=LIES)
def test_a_file_of_arrays_that_lies(
    name: str, content: bytes, reader: tuple[Any, ...], tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    out = ("-o", tmp_path / "q.tflite") if reader[0] == "quantize" else ()
    assert f"{name}: " in call(*reader, tmp_path / name, *out, status=2).stderr

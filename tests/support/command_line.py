"""What the tests of the command line share: its verbs in this process, and the digits models."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner, Result

from sanderling import load, save
from sanderling.cli.app import app
from sanderling.ir import Model

DATA = Path(str(files("sanderling") / "data"))
F32, INT8 = str(DATA / "digits_f32.tflite"), str(DATA / "digits_int8.tflite")
RNG = np.random.default_rng(5)
DIGIT = RNG.random((1, 8, 8, 1)).astype(np.float32)
F = np.float32
R = ["--random", 0]


def call(*words: object, status: int = 0) -> Result:
    """The verb in this process; anything but a status is a defect."""
    result = CliRunner().invoke(app, [str(w) for w in words])
    assert result.exit_code == status, result.output + repr(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def answer(*words: object) -> Any:
    return json.loads(call(*words, "--json", "-").stdout)


def run_f32(x: Any = DIGIT) -> Any:
    return load(F32).compile()(x)


def stored(tmp_path: Path, model: Model) -> Path:
    save(model, tmp_path / "model.tflite")
    return tmp_path / "model.tflite"


def array(folder: Path, value: Any) -> Path:
    np.save(folder / "x.npy", value)
    return folder / "x.npy"


def text_file(folder: Path, text: str, name: str = "text") -> Path:
    (folder / name).write_text(text)
    return folder / name

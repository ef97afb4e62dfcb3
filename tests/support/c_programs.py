"""What the tests of libraries share: compilers, small models, programs that are run."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sanderling.build.library import Library, build_library
from sanderling.delegates.cpu.isa.targets import problem
from sanderling.ir import DType, Graph, Model, Op

CC = shutil.which("gcc") or shutil.which("cc")
CROSS, QEMU = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64")
VALGRIND = shutil.which("valgrind")
needs_cc = pytest.mark.skipif(
    CC is None or problem() is not None, reason="no C compiler, or no compiled code on this system"
)
needs_arm = pytest.mark.skipif(
    CROSS is None or QEMU is None or problem() is not None,
    reason="apt-get install gcc-aarch64-linux-gnu qemu-user",
)
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic")
F = np.float32


def run(*words: object, status: int = 0, timeout: float = 120) -> str:
    """What a command prints."""
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=timeout)
    assert done.returncode == status, f"{done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


def compiled(
    folder: Path, source: str | Path, name: str, flags: Sequence[object] = (), cc: str | None = CC
) -> Path:
    """A program of a source, or of a text, and a library in the folder."""
    if isinstance(source, str):
        (folder / "program.c").write_text(source)
        source = folder / "program.c"
    made = folder / "program"
    run(
        cc,
        *STRICT,
        "-g",
        f"-I{folder}",
        source,
        *flags,
        folder / f"lib{name}.a",
        "-pthread",
        "-o",
        made,
    )
    return made


def relu(name: str = "x", size: int = 4) -> Model:
    """|x| is clipped at zero: one op, float."""
    graph = Graph()
    x = graph.input(name, DType.FLOAT32, (1, size))
    y = graph.tensor("y", DType.FLOAT32, (1, size))
    graph.add("RELU", [x], [y])
    graph.outputs = [y]
    return Model([graph])


def gather(rows: int = 3) -> Model:
    """Rows of a table by indices that only the run knows."""
    graph = Graph()
    index = graph.input("index", DType.INT32, (2,))
    data = np.arange(rows * 4, dtype=F).reshape(rows, 4)
    table = graph.constant("table", data)
    y = graph.tensor("y", DType.FLOAT32, (2, 4))
    graph.insert(Op("GATHER", [table, index], [y], {"axis": 0, "batch_dims": 0}))
    graph.outputs = [y]
    return Model([graph])


def custom(code: str = "Twice") -> Model:
    """RELU, a custom operator, and RELU again."""
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (1, 4))
    a, b, y = (graph.tensor(n, DType.FLOAT32, (1, 4)) for n in "aby")
    graph.add("RELU", [x], [a])
    graph.insert(Op(f"custom.{code}", [a], [b], {"options": b"\x05\x06"}))
    graph.add("ABS", [b], [y])
    graph.outputs = [y]
    return Model([graph])


def built(model: object, folder: Path, name: str = "m", **more: object) -> Library:
    return build_library(model, folder, name=name, **more)  # type: ignore[arg-type]


def from_python(folder: Path, name: str = "m") -> Any:
    """The module that the library comes with."""
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

"""Float models as packages for Core ML: saved, read again, executed by the interpreter of MIL, and
compared with the cpu delegate.

    python -m benchmarks.coreml_packages [MODEL.tflite ...]     (pip install 'sanderling[coreml]')

Core ML itself is on macOS only: the answers are those of the ML program, not of Apple's engine.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from sanderling import Model, UnsupportedError, export, load
from sanderling.ir import Array
from tests.support.mil_interpreter import execute
from tests.test_coreml import reread

from .common import model_paths


def inputs(model: Model) -> list[Array]:
    random = np.random.default_rng(0)
    return [
        random.random(t.shape, np.float32)
        if t.dtype.is_float
        else random.integers(0, 2, t.shape).astype(t.dtype.numpy)
        for t in model.main.inputs
    ]


def worst(found: list[Array], wanted: list[Array]) -> float:
    """The largest difference, as a share of the output's largest value."""
    pairs = zip(found, wanted, strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def check(path: Path, folder: Path, precision: str) -> str:
    model = load(path)
    try:
        made = export(model, folder / f"{precision}.mlpackage", precision=precision)
    except UnsupportedError as error:
        return error.what
    _, program = reread(made.path)
    arrays = inputs(model)
    found = execute(program, dict(zip(made.inputs, arrays, strict=True)))
    wanted = model.compile()(*arrays)
    error = worst(list(found.values()), list(wanted) if isinstance(wanted, tuple) else [wanted])
    return f"{len(model.main.ops)} ops as {sum(made.ops.values())}, largest difference {error:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*")
    for path in model_paths(parser.parse_args().models):
        for precision in ("float32", "float16"):
            with tempfile.TemporaryDirectory() as folder:
                print(
                    f"{path.stem}, {precision}: {check(path, Path(folder), precision)}", flush=True
                )


if __name__ == "__main__":
    main()

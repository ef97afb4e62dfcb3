"""What the tests of `sanderling bench` share: its command, and results without a measurement."""

from __future__ import annotations

import importlib.util
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner
from typer.testing import Result as Ran

import sanderling.measure.bench as home
from sanderling.cli.app import app
from sanderling.measure import engine_process
from sanderling.measure.bench_results import Bench
from sanderling.measure.record import Result, Setting

DATA = Path(str(files("sanderling") / "data"))
INT8, F32 = DATA / "digits_int8.tflite", DATA / "digits_f32.tflite"
PEER = "litert" if importlib.util.find_spec("ai_edge_litert") else ""
QUICK = ("--launches", "2", "--min-secs", "0.02", "--runs", "5", "--warmup-secs", "0.05")
RNG = np.random.default_rng(3)


def call(*words: object, status: int = 0) -> Ran:
    result = CliRunner().invoke(app, ["bench", *(str(w) for w in words)])
    assert result.exit_code == status, result.output + repr(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def measured(
    name: str = "m.tflite",
    ms: float = 1.0,
    setting: Setting | None = None,
    noise: float = 0.01,
    **more: Any,
) -> Result:
    """A result of five launches of five rounds."""
    rounds = [list(1e-3 * ms * (1 + noise * RNG.standard_normal(4))) for _ in range(25)]
    memory = {"start.rss": 40 << 20, "peak.runs": 50 << 20, "file": 9, "weights": 8}
    known = {
        "init": 0.01,
        "first": 0.002,
        "launches": [5] * 5,
        "begun": list(range(25)),
        "memory": memory,
    }
    return Result(name, setting or Setting(), rounds=rounds, **known | more)


def made(*results: Result) -> Bench:
    kinds = {r.model: {"quantisation": "none", "file": 9, "weights": 8} for r in results}
    return Bench(list(results), models=kinds)


def fake_launch(jobs: dict[str, Any], *_: object, **__: object) -> dict[str, home.Launch]:
    ready = engine_process.Ready("", [np.zeros(1)], 1e-3, 0.0, 0.1, 1e-3, {})
    rounds = [[1e-3, 1.1e-3]] * 5
    return {name: home.Launch(ready, rounds=rounds, begun=[0.0] * 5) for name in jobs}

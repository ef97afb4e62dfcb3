"""What the tests of `benchmark_model` share: the call, models, a delegate."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import sanderling
from sanderling.cli.app import app
from sanderling.errors import DelegateError
from sanderling.ir import DType, Graph, Model
from sanderling.runtime import registry
from sanderling.runtime.delegate import Delegate

INT8 = str(files("sanderling") / "data" / "digits_int8.tflite")
F32 = str(files("sanderling") / "data" / "digits_f32.tflite")
# The loop's rule is tested by itself; whole commands need not take its second and a half.
SHORT = ("--num_runs=3", "--min_secs=0", "--warmup_min_secs=0")


def call(*words: object, status: int = 0) -> Result:
    result = CliRunner().invoke(app, ["benchmark_model", *map(str, words)])
    assert result.exit_code == status, result.output + repr(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def stored(folder: Path, model: Model, name: str = "model.tflite") -> str:
    sanderling.save(model, folder / name)
    return str(folder / name)


def binary(op: str, dtype: DType = DType.FLOAT32) -> Graph:
    made = Graph(op.lower())
    inputs = [made.input(f"{op}_{name}", dtype, (2, 3)) for name in "ab"]
    result = made.tensor(f"{op}_y", dtype, (2, 3))
    made.add(op, inputs, [result], fused_activation_function="NONE")
    made.outputs = [result]
    return made


@pytest.fixture(name="named")
def named_delegates(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Delegates registered for one test."""
    table = dict(registry._registered)
    monkeypatch.setattr(registry, "_registered", table)
    yield table


class Picky(Delegate):
    """A delegate that takes some types of ops."""

    def __init__(self, name: str, takes: set[str], fails: bool = False) -> None:
        self.name, self.takes, self.fails = name, takes, fails
        self.flags: dict[str, Any] = {}

    def take_flags(self, given: dict[str, Any]) -> None:
        self.flags = given

    def refuses(self, op: Any) -> str | None:
        return None if op.name in self.takes else "not mine"

    def compile(self, part: Graph, options: Any) -> Any:
        if self.fails:
            raise DelegateError("it cannot")
        return registry.find_delegate("reference").compile(part, options)

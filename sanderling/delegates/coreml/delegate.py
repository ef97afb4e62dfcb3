"""Parts as ML programs, which Core ML executes on macOS."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import DelegateError
from ...ir import Array, DType, Graph, Op
from ...runtime.delegate import Delegate, Executable, Options
from ...runtime.delegate_options import NoSuchOption
from ..extras import require_extra
from .operators import refusal
from .program import PRECISIONS, UNITS, ProgramOptions, as_program, converted


class CoremlDelegate(Delegate):
    """Takes what `operators.py` has a row for."""

    name = "coreml"

    def __init__(self, precision: str = "float32", compute_units: str = "all") -> None:
        require_extra("coremltools", "coreml", self.name)
        self.program_options = ProgramOptions(precision, compute_units)

    def configure(self, options: Mapping[str, Any]) -> CoremlDelegate:
        """Two options: precision and compute_units."""
        strange = sorted(map(str, set(options) - {"precision", "compute_units"}))
        if strange:
            raise NoSuchOption(
                f"it has no option {', '.join(strange)}",
                where=f"delegate '{self.name}'",
                fix=f"precision is {' or '.join(PRECISIONS)}, compute_units {', '.join(UNITS)}",
            )
        return CoremlDelegate(**options)

    def refuses(self, op: Op) -> str | None:
        return refusal(op)

    def lacks(self) -> str:
        return "" if can_execute() else "Core ML executes on macOS"

    def compile(self, part: Graph, options: Options) -> CoremlExecutable:
        problem = self.lacks()
        if problem:
            raise DelegateError(
                problem,
                where=f"delegate '{self.name}'",
                fix="elsewhere a model can be saved for it: sanderling export MODEL -o X.mlpackage",
            )
        return CoremlExecutable(part, self.program_options)


def can_execute() -> bool:
    return sys.platform == "darwin"


class CoremlExecutable(Executable):
    """A part as a model of Core ML's; operands and results are copied."""

    def __init__(self, part: Graph, options: ProgramOptions) -> None:
        self.part = part
        self.inputs = [f"x{place}" for place in range(len(part.inputs))]
        self.outputs = [f"y{place}" for place in range(len(part.outputs))]
        self.model = converted(as_program(part, self.inputs, self.outputs), options)

    def run(self, inputs: Sequence[Array], outputs: list[Array | None]) -> None:
        given = {
            name: array.astype(np.int32) if tensor.dtype is DType.BOOL else array
            for name, array, tensor in zip(self.inputs, inputs, self.part.inputs, strict=True)
        }
        found = self.model.predict(given)
        for name, target in zip(self.outputs, outputs, strict=True):
            assert target is not None, "shapes are known"
            np.copyto(target, np.reshape(found[name], target.shape), casting="unsafe")

"""A part as an ML program of Core ML's, made by coremltools."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from ...errors import ArgumentError
from ...ir import DType, Graph, Tensor
from .operators import Writer, lower

# What an ML program may use: coremltools' name of the first systems that run it.
TARGET = "iOS16"
PRECISIONS = {"float32": "FLOAT32", "float16": "FLOAT16"}
UNITS = {
    "all": "ALL",
    "cpu_only": "CPU_ONLY",
    "cpu_and_gpu": "CPU_AND_GPU",
    "cpu_and_ne": "CPU_AND_NE",
}


@dataclass(frozen=True)
class ProgramOptions:
    """precision: of products and sums. compute_units: where Core ML may run it."""

    precision: str = "float32"
    compute_units: str = "all"

    def __post_init__(self) -> None:
        known: Mapping[str, Mapping[str, str]] = {"precision": PRECISIONS, "compute_units": UNITS}
        for name, values in known.items():
            if (given := getattr(self, name)) not in values:
                raise ArgumentError(f"`{name}` is {given!r}", fix=f"give {', '.join(values)}")


@cache
def coremltools() -> Any:
    """The package, which warns at its import of versions of packages that are not used here."""
    logging.getLogger("coremltools").setLevel(logging.ERROR)
    return import_module("coremltools")


def as_program(part: Graph, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    """The part in MIL, nothing simplified. inputs, outputs: names, in the order of the part's."""
    ct = coremltools()
    mil = import_module("coremltools.converters.mil.mil")
    builder = import_module("coremltools.converters.mil").Builder
    fed = {
        name: builder.placeholder(t.shape, _border_type(mil, t))
        for name, t in zip(inputs, part.inputs, strict=True)
    }
    program = mil.Program()
    with mil.Function(fed, opset_version=ct.target[TARGET]) as function:
        given = [
            _inside(builder, function.inputs[name], t)
            for name, t in zip(inputs, part.inputs, strict=True)
        ]
        writer = Writer(builder, dict(zip(part.inputs, given, strict=True)))
        for op in part.ops:
            lower(writer, op)
        made = zip(outputs, part.outputs, strict=True)
        function.set_outputs([_outside(builder, writer.get(t), t, name) for name, t in made])
    program.add_function("main", function)
    return program


def _border_type(mil: Any, tensor: Tensor) -> Any:
    """Core ML has no truth values at its border."""
    return mil.types.fp32 if tensor.dtype is DType.FLOAT32 else mil.types.int32


def _inside(builder: Any, var: Any, tensor: Tensor) -> Any:
    return builder.cast(x=var, dtype="bool") if tensor.dtype is DType.BOOL else var


def _outside(builder: Any, var: Any, tensor: Tensor, name: str) -> Any:
    if tensor.dtype is DType.BOOL:
        return builder.cast(x=var, dtype="int32", name=name)
    return builder.identity(x=var, name=name)


def converted(program: Any, options: ProgramOptions) -> Any:
    """The model (an MLModel), which is loaded where Core ML is there to load it."""
    ct = coremltools()
    with contextlib.redirect_stderr(io.StringIO()):  # a bar of progress for each pass
        return ct.convert(
            program,
            source="milinternal",
            convert_to="mlprogram",
            compute_precision=ct.precision[PRECISIONS[options.precision]],
            compute_units=ct.ComputeUnit[UNITS[options.compute_units]],
            minimum_deployment_target=ct.target[TARGET],
        )

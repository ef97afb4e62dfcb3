"""`sanderling export`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..delegates.coreml.package import Package
from ..delegates.coreml.package import export as save_package
from ..delegates.coreml.program import PRECISIONS
from ..format import load
from ..measure.inputs import input_shapes
from ..tables import facts
from .common import JsonPath, JsonTarget, ModelPath, Shapes, clean, read_shapes

SCHEMA = "sanderling.export/1"


def export(
    model: ModelPath,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE.mlpackage", help="Where the package goes."),
    ],
    precision: Annotated[
        str, typer.Option(help=f"Of products and sums: {' or '.join(PRECISIONS)}.")
    ] = "float32",
    shape: Shapes = [],  # noqa: B006
    json: JsonPath = "",
) -> None:
    """Save a float model for Core ML, as an .mlpackage for iOS 16, macOS 13 and later.

    `sanderling inspect MODEL --delegate coreml` says which ops Core ML gets, and why not the
    others.
    """
    source = load(model)
    shapes = {t.name: s for t, s in input_shapes(source, read_shapes(shape)).items()}
    with JsonTarget(json) as target:
        found = save_package(source, output, precision=precision, shapes=shapes)
        if not target.write({"schema": SCHEMA, "model": str(model)} | asdict(found)):
            typer.echo(_text(found))


def _text(found: Package) -> str:
    rows = [("package", str(found.path)), ("precision", found.precision)]
    rows += [("input", f"{name}: {kind}") for name, kind in found.inputs.items()]
    rows += [("output", f"{name}: {kind}") for name, kind in found.outputs.items()]
    ops = sorted(found.ops.items(), key=lambda pair: (-pair[1], pair[0]))
    rows.append(("ops", ", ".join(f"{count} {name}" for name, count in ops)))
    return facts([(name, clean(text)) for name, text in rows])

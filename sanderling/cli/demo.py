"""`sanderling demo`."""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import Annotated, Any

import numpy as np
import typer

from ..format import load
from ..ir import Array, Model
from ..measure import inspect as describe
from ..runtime.inputs import quantize_array
from ..units import byte_size, si
from .common import JsonPath, JsonTarget

SCHEMA = "sanderling.demo/1"
FACTS = ("description", "file_bytes", "parameters", "macs", "quantisation")
SHADES = " .:-=+*#%@"


def demo(
    digit: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=359, help="Which of the 360 held-out pictures to show."
        ),
    ] = 7,
    json: JsonPath = "",
) -> None:
    """Run the small int8 digit classifier that ships in the package on real pictures."""
    folder = files("sanderling") / "data"
    with as_file(folder / "digits_test.npz") as path, np.load(path) as held_out:
        images, labels = held_out["images"], held_out["labels"]
    with JsonTarget(json) as target, as_file(folder / "digits_int8.tflite") as path:
        record = _measure(load(path), images, labels, digit)
        if target.write(record):
            return
    typer.echo(
        f"model      {record['description']}: {record['ops']} ops, "
        f"{si(record['parameters'])} parameters, {si(record['macs'])} MACs, "
        f"{byte_size(record['file_bytes'])}, {record['quantisation']}"
    )
    typer.echo(f"input      held-out picture {digit}, 8x8 pixels, a handwritten {record['label']}:")
    typer.echo(_picture(images[digit]))
    best = ", ".join(f"{c}: {p:.2f}" for c, p in record["best"])
    typer.echo(f"output     it is a {record['answer']} (probabilities {best})")
    typer.echo(
        f"accuracy   {record['right']} of {record['pictures']} held-out pictures right "
        f"({record['right'] / record['pictures']:.1%})"
    )
    typer.echo("next       sanderling inspect MODEL.tflite; sanderling run MODEL.tflite --random 0")


def _measure(model: Model, images: Array, labels: Array, digit: int) -> dict[str, Any]:
    tensor = model.main.inputs[0]
    session = model.compile()
    codes = quantize_array(images.astype(np.float32)[..., None] / 16, tensor)
    scores = session(codes)  # one batch
    out = model.main.outputs[0].quantisation
    chances = (scores[digit].astype(np.float32) - out.zero_point[0]) * out.scale[0]
    facts = describe(model)
    return {
        "schema": SCHEMA,
        **{k: facts[k] for k in FACTS},
        "ops": len(model.main.ops),
        "label": int(labels[digit]),
        "answer": int(scores[digit].argmax()),
        "best": [(int(i), float(chances[i])) for i in np.argsort(-chances)[:3]],
        "right": int((scores.argmax(axis=1) == labels).sum()),
        "pictures": len(labels),
    }


def _picture(pixels: Array) -> str:
    """The 16 grey levels as characters, two wide so that the aspect is right."""
    rows = ("".join(SHADES[level * 9 // 16] * 2 for level in row) for row in pixels)
    return "\n".join(" " * 11 + row for row in rows)

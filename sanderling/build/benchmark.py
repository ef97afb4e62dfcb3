"""`--bench`: a program around a compiled model with the flags and the log of benchmark_model."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..errors import UnsupportedError
from .blueprint import Blueprint
from .checking import write_program
from .toolchain import Compiler, no_compiler, program


def benchmark_program(
    made: Blueprint,
    output: Path,
    compiler: Compiler | None,
    bytes_of_model: int,
    linked: Sequence[Path] = (),
    static: bool = False,
) -> None:
    """Link the program. made: planned with timed=True, so that steps can be counted. A program for
    another platform is linked statically: it is one file to push."""
    if compiler is None:
        raise UnsupportedError(
            no_compiler(made.platform, "benchmark program"), where="--bench", fix="name one: --cc"
        )
    with tempfile.TemporaryDirectory(prefix="sanderling-") as place:
        folder = Path(place)
        (folder / f"lib{made.name}.a").write_bytes(made.objects(with_steps=True).archive())
        header = f"{made.name}.h"
        (folder / header).write_text(made.texts()[header], encoding="utf-8")
        about = {
            "FILE": c_text(made.file),
            "VERSIONS": ", ".join(v.target.name for v in made.versions),
            "MEGABYTES": f"{bytes_of_model / 1e6:.6f}",
        }
        source = write_program(made, "benchmark.c.in", folder, about)
        program(
            compiler,
            output,
            [source, *linked, folder / f"lib{made.name}.a"],
            [f"-I{folder}"],
            static=static or not made.platform.is_native,
        )


def c_text(text: str) -> str:
    """Within the quotes of a text in C, and of a form of printf."""
    plain = text.encode("ascii", "replace").decode()
    kept = "".join(c if c.isprintable() and c not in '"\\%?' else "_" for c in plain)
    return kept or "model"

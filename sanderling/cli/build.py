"""`sanderling build`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..build.library import Library, build_library
from ..build.platforms import NATIVE
from ..tables import facts, table
from ..units import byte_size
from .common import (
    EntryPoint,
    InputFiles,
    JsonPath,
    JsonTarget,
    ModelPath,
    Plugins,
    Quiet,
    Shapes,
    clean,
    load_plugins,
    pairs,
    read_shapes,
    say,
    warn,
)

DIFFERS = 1  # the exit status


def build(
    model: ModelPath,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="The folder of the library.")
    ],
    target: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="native (this CPU), x86-64, aarch64, android-arm64, android-x86-64 (several "
            "versions of the code, chosen when an instance is made; x86-64:avx2,generic keeps "
            "some), or one version such as avx2 or i8mm.",
        ),
    ] = NATIVE,
    threads: Annotated[
        int, typer.Option(metavar="N", help="Threads of an instance that does not say.")
    ] = 1,
    name: Annotated[
        str,
        typer.Option(metavar="NAME", help="Of the library and its functions. Default: the file's."),
    ] = "",
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Run the library, natively or under qemu-user, and compare it with the session.",
        ),
    ] = False,
    bench: Annotated[
        bool,
        typer.Option(
            "--bench",
            help="Add <name>_benchmark, a program with the flags and the log of benchmark_model.",
        ),
    ] = False,
    input: InputFiles = [],  # noqa: B006
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Of the random inputs of --check.")
    ] = 0,
    custom: Annotated[
        list[str],
        typer.Option(
            metavar="CODE=FUNCTION",
            help="A custom operator that is a C function of this name; may be repeated.",
        ),
    ] = [],  # noqa: B006
    link: Annotated[
        list[Path],
        typer.Option(
            metavar="FILE",
            help="A C or object file with such functions, for what is linked; may be repeated.",
        ),
    ] = [],  # noqa: B006
    cc: Annotated[
        str,
        typer.Option(
            metavar="COMMAND",
            help="The C compiler that links. Default: one for the target that is installed, or "
            "PyPI's ziglang. none: the static archive alone, which needs no compiler.",
        ),
    ] = "",
    shape: Shapes = [],  # noqa: B006
    signature: EntryPoint = None,
    plugin: Plugins = [],  # noqa: B006
    quiet: Quiet = False,
    json: JsonPath = "",
) -> None:
    """Write a model as a C library: machine code and weights, without Python.

    The folder gets lib<name>.a, lib<name>.so, <name>.h, an example, a CMakeLists.txt, and a Python
    module for tests.
    """
    load_plugins(plugin)
    with JsonTarget(json) as written:
        found = build_library(
            model,
            output,
            target,
            name=name,
            threads=threads,
            shapes=read_shapes(shape),
            signature=signature,
            custom=pairs(custom, "--custom"),
            link=link,
            cc=cc,
            check=check,
            inputs=pairs(input, "--input"),
            seed=seed,
            bench=bench,
        )
        if not written.write(found.to_json() | {"model": str(model)}):
            typer.echo(_text(found))
        for note in found.notes:
            warn(note)
    failed = [c for c in found.checks if not c["passed"]]
    if failed:
        say(f"the check failed: {failed[0]['version']} differs from {failed[0]['against']}")
        raise typer.Exit(DIFFERS)


def _text(found: Library) -> str:
    rows = [("library", f"{found.name} in {found.folder}"), ("target", found.target)]
    rows += [("input", f"{name}: {kind}") for name, kind in found.inputs.items()]
    rows += [("output", f"{name}: {kind}") for name, kind in found.outputs.items()]
    held = (sum(s["code"] for s in found.sizes), found.weight_bytes, found.runtime_bytes)
    kinds = zip(("code", "weights", "runtime", "tables"), (*held, found.table_bytes), strict=True)
    rows.append(("bytes", ", ".join(f"{kind} {byte_size(size)}" for kind, size in kinds)))
    parts = [facts([(name, clean(text)) for name, text in rows])]
    parts.append(
        table(
            ["version", "code", "weights", "arena", "state", "steps"],
            [
                [
                    s["version"],
                    *(byte_size(s[k]) for k in ("code", "weights", "arena", "state")),
                    str(s["steps"]),
                ]
                for s in found.sizes
            ],
        )
    )
    parts.append(table(["file", "bytes"], [[n, str(size)] for n, size in found.files.items()]))
    if found.checks:
        parts.append(
            table(
                ["checked", "threads", "runs", "against", "identical", "worst difference"],
                [
                    [
                        c["version"],
                        str(c["threads"]),
                        str(c["runs"]),
                        c["against"],
                        "yes" if c["identical"] else "no",
                        f"{c['worst']:.2g}",
                    ]
                    for c in found.checks
                ],
            )
        )
    return "\n\n".join(parts)

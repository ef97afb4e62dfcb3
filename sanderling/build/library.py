"""`sanderling.build_library`: from a model to a C library for this machine or another."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, InputError
from ..ir import Model, Shape
from ..measure.inputs import Feeding
from .benchmark import benchmark_program
from .blueprint import Blueprint, plan_library
from .checking import check_library
from .objects import Objects
from .platforms import NATIVE, platform_of
from .toolchain import Compiler, find_compiler, no_compiler, shared_library

SCHEMA = "sanderling.build/1"


@dataclass
class Library:
    """What was built. sizes: bytes of code, weights and arena for each version; weight_bytes: of
    the weights in the file, where versions that pack them alike share them; files: by name, with
    their bytes; checks: what --check compared."""

    name: str
    folder: Path
    target: str
    versions: list[str]
    threads: int
    inputs: dict[str, str]
    outputs: dict[str, str]
    sizes: list[dict[str, Any]]
    weight_bytes: int
    runtime_bytes: int
    table_bytes: int
    files: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA} | asdict(self) | {"folder": str(self.folder)}


def build_library(
    model: Model | str | os.PathLike[str],
    folder: str | os.PathLike[str],
    target: str = NATIVE,
    *,
    name: str = "",
    threads: int = 1,
    shapes: Mapping[str, Shape] | None = None,
    signature: str | None = None,
    custom: Mapping[str, str] | None = None,
    link: Sequence[str | os.PathLike[str]] = (),
    cc: str = "",
    check: bool = False,
    inputs: Mapping[str, str | Path] | None = None,
    seed: int = 0,
    bench: bool = False,
) -> Library:
    """Write a model as a C library: lib<name>.a, lib<name>.so where a linker is at hand, <name>.h,
    an example, a CMakeLists.txt, and a Python module for tests.

    target: native (this CPU), a platform (x86-64, aarch64, android-arm64: several versions of the
    code, chosen when an instance is made), or a row of the table of targets. threads: of instances
    that do not say. shapes: of inputs, by name, where they are not the file's. custom: C functions
    by the custom code of the operator that they compute; link: files that define them. cc: the
    compiler that links, or "none". check: run it and compare it with the session, on files for
    inputs and random values; see `checks`. bench: add a program with benchmark_model's flags.
    Raises NotBuiltError that names the ops which cannot be built, with reasons.
    """
    compiler = find_compiler(platform_of(target), cc)
    linked = [Path(file) for file in link]
    planned: dict[str, Any] = {"shapes": shapes, "signature": signature, "custom": custom}
    planned |= {"name": name, "threads": threads}
    if inputs and not check:
        raise ArgumentError("`input` is for the runs of `check`", fix="give --check, too")
    for file in linked:
        if not file.is_file():
            raise InputError("there is no such file", where=f"--link {file}", fix="check the path")
    made = plan_library(model, target, **planned)
    if (check or bench) and not linked:
        _refuse_functions(made)
    with Staging(Path(folder)) as staged:
        place = staged.place
        found = library_of(made, Path(folder), make_files(made, place, compiler, linked))
        if check:
            feeding = Feeding(files=inputs or {}, seed=seed)
            checks = check_library(made, place, compiler, feeding, linked=linked)
            found.checks = [asdict(c) for c in checks]
        if bench:
            counted = plan_library(model, target, timed=True, **planned)
            size = 0 if isinstance(model, Model) else Path(os.fspath(model)).stat().st_size
            benchmark_program(counted, place / f"{made.name}_benchmark", compiler, size, linked)
        found.files = staged.finish()
    return found


def _refuse_functions(made: Blueprint) -> None:
    """A program is linked, so that the user's functions have to be there."""
    wanted = {p.function for v in made.versions for p in v.parts if p.function}
    if wanted:
        raise InputError(
            f"a program with this library needs {', '.join(sorted(wanted))}",
            where="--custom",
            fix="name the C or object file that defines it: --link FILE",
        )


def write_library(made: Blueprint, folder: Path, compiler: Compiler | None) -> Library:
    """All files of a library that is planned already, or none of them."""
    with Staging(folder) as staged:
        found = library_of(made, folder, make_files(made, staged.place, compiler))
        found.files = staged.finish()
    return found


def make_files(
    made: Blueprint, place: Path, compiler: Compiler | None, linked: Sequence[Path] = ()
) -> tuple[Objects, list[str]]:
    """The files of a library in a folder; and what there is to say about them."""
    objects = made.objects()
    (place / f"lib{made.name}.a").write_bytes(objects.archive())
    for file, text in made.texts().items():
        (place / file).write_text(text, encoding="utf-8")
    if compiler is None or not compiler.makes_shared:
        return objects, [no_compiler(made.platform, f"lib{made.name}.so")]
    shared_library(compiler, made.name, place, linked)
    return objects, []


def library_of(made: Blueprint, folder: Path, found: tuple[Objects, list[str]]) -> Library:
    objects, notes = found
    first = made.versions[0]
    names = made.names
    return Library(
        made.name,
        folder,
        made.platform.name,
        [v.target.name for v in made.versions],
        made.threads,
        {n: t.type_text for n, t in zip(names[0], first.inputs, strict=True)},
        {n: t.type_text for n, t in zip(names[1], first.outputs, strict=True)},
        [asdict(s) for s in objects.sizes],
        objects.weights,
        objects.runtime,
        objects.tables,
        notes=notes,
    )


class Staging:
    """A folder within the final one, in which files are made; then all get their places."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if folder.exists() and not folder.is_dir():
            raise InputError(
                "cannot write: it is a file", where=str(folder), fix="name a folder for the library"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.place = Path(tempfile.mkdtemp(dir=folder, prefix=".sanderling-"))
        except OSError as error:
            raise _unwritable(folder, error) from error

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.place, ignore_errors=True)

    def finish(self) -> dict[str, int]:
        """Move what was made; returns the files with their sizes."""
        files = sorted(self.place.iterdir())
        found = {file.name: file.stat().st_size for file in files}
        try:
            for file in files:
                file.replace(self.folder / file.name)
        except OSError as error:
            raise _unwritable(self.folder, error) from error
        return found


def _unwritable(folder: Path, error: OSError) -> InputError:
    return InputError(
        f"cannot write: {error.strerror}",
        where=str(folder),
        fix="check the folder, its permissions and the free space",
    )

"""`--check`: the library, linked into a program, against the session, on the same inputs.

A version that this machine runs must give the session's answers bit for bit, at every number of
threads. Code for another CPU is run by qemu-user and held against the session of this machine:
integers must be identical; floats may differ by the order of sums, and by how much is said."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..delegates.cpu.delegate import CpuDelegate
from ..delegates.cpu.isa.targets import Target, runnable
from ..errors import DelegateError, UnsupportedError
from ..ir import Array
from ..measure.inputs import Feeding
from ..runtime.session import Session
from .blueprint import Blueprint
from .c_sources import filled
from .runtime_ir import FOLDER
from .toolchain import Compiler, no_compiler, program, runner

RUNS = 3  # one after the other on one instance: state shows
TIMEOUT = 900.0
# Of the largest value of an output, for floats of another CPU.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Check:
    """One version at one number of threads. identical: every byte of every output of every run;
    worst: the largest difference of a float, as a part of the largest value of its output."""

    version: str
    threads: int
    runs: int
    against: str
    identical: bool
    worst: float
    passed: bool


def check_library(
    made: Blueprint,
    folder: Path,
    compiler: Compiler | None,
    feeding: Feeding,
    threads: Sequence[int] = (1, 2),
    linked: Sequence[Path] = (),
    runs: int = RUNS,
) -> list[Check]:
    """Run the library that lies in the folder. Raises where it cannot be run at all."""
    if compiler is None:
        text = no_compiler(made.platform, "program to check the library with")
        raise UnsupportedError(text, where="--check", fix="leave --check out, or name a compiler")
    prefix = runner(made.platform)
    if prefix is None:
        raise UnsupportedError(
            f"this machine runs no programs for {made.platform.name}",
            where="--check",
            fix="install qemu-user (Debian: apt-get install qemu-user)",
        )
    feeds = [made_feeds(made, feeding, run) for run in range(runs)]
    with tempfile.TemporaryDirectory(prefix="sanderling-") as place:
        tool = Path(place) / "check"
        source = write_program(made, "check.c.in", Path(place))
        archive = folder / f"lib{made.name}.a"
        sources = [source, *linked, archive]
        program(compiler, tool, sources, [f"-I{folder}"], static=bool(prefix))
        found = []
        for version in made.versions:
            if prefix or runnable(version.target):
                wanted, whose = _session_answers(made, version.target, feeds)
                for count in threads:
                    got = _answers(made, [*prefix, str(tool)], version.target, count, feeds)
                    found.append(_compared(version.target, count, whose, wanted, got))
    return found


def write_program(
    made: Blueprint, template: str, place: Path, about: Mapping[str, str] | None = None
) -> Path:
    """The source of a program around the library. about: more values of the template's."""
    values = {"NAME": made.name, "UPPER": made.name.upper(), **(about or {})}
    source = place / template.removesuffix(".in")
    source.write_text(filled((FOLDER / template).read_text(), values))
    return source


def made_feeds(made: Blueprint, feeding: Feeding, run: int) -> list[Array]:
    """The inputs of a run: what is given is the same in each, what is random is not."""
    shapes = {n: t.shape for n, t in zip(made.names[0], made.versions[0].inputs, strict=True)}
    own = Feeding(shapes, feeding.ranges, feeding.files, feeding.seed + run)
    return own.arrays(made.entry)


def _session_answers(
    made: Blueprint, target: Target, feeds: Sequence[Sequence[Array]]
) -> tuple[list[list[Array]], str]:
    delegate = CpuDelegate()
    whose = "the session on this machine"
    if runnable(target):
        delegate.target, whose = target, f"the session on {target.name}"
    session = Session(made.model, delegates=[delegate, "reference"])
    key = made.entry.key or None
    names = made.names[0]
    found = []
    for arrays in feeds:
        results = session.run(dict(zip(names, arrays, strict=True)), signature=key)
        found.append([results[name].copy() for name in made.entry.outputs])
    return found, whose


def _answers(
    made: Blueprint,
    command: Sequence[str],
    target: Target,
    threads: int,
    feeds: Sequence[Sequence[Array]],
) -> list[list[Array]]:
    with tempfile.TemporaryDirectory(prefix="sanderling-") as place:
        folder = Path(place)
        for index in range(len(feeds[0])):
            whole = b"".join(np.ascontiguousarray(run[index]).tobytes() for run in feeds)
            (folder / f"input_{index}").write_bytes(whole)
        words = [*command, str(threads), target.name, str(len(feeds)), place]
        done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT)
        if done.returncode or done.stdout.strip() != target.name:
            raise DelegateError(
                f"the program ended with status {done.returncode}: {done.stderr.strip()[-300:]}",
                where=f"--check of {target.name} at {threads} threads",
                fix="this is a defect of the build; please report the model",
            )
        return [
            [_result(folder, i, run, t.dtype.numpy, t.shape) for i, t in _outputs(made)]
            for run in range(len(feeds))
        ]


def _outputs(made: Blueprint) -> list[tuple[int, Any]]:
    return list(enumerate(made.versions[0].outputs))


def _result(folder: Path, index: int, run: int, dtype: Any, shape: tuple[int, ...]) -> Array:
    count = int(np.prod(shape, dtype=np.int64))
    offset = run * count * np.dtype(dtype).itemsize
    if not count:
        return np.zeros(shape, dtype)
    return np.fromfile(folder / f"output_{index}", dtype, count, offset=offset).reshape(shape)


def _compared(
    target: Target,
    threads: int,
    whose: str,
    wanted: Sequence[Sequence[Array]],
    got: Sequence[Sequence[Array]],
) -> Check:
    pairs = [
        (w, g) for ws, gs in zip(wanted, got, strict=True) for w, g in zip(ws, gs, strict=True)
    ]
    identical = all(w.tobytes() == g.tobytes() for w, g in pairs)
    worst = max((_difference(w, g) for w, g in pairs), default=0.0)
    exact = [w.tobytes() == g.tobytes() for w, g in pairs if w.dtype.kind not in "fcV"]
    close = all(exact) and worst <= TOLERANCE
    passed = identical if runnable(target) else identical or close
    return Check(target.name, threads, len(wanted), whose, identical, worst, passed)


def _difference(wanted: Array, got: Array) -> float:
    """The largest of an output's differences, as a part of its largest value."""
    if wanted.tobytes() == got.tobytes():
        return 0.0
    a, b = (np.nan_to_num(x.astype(np.complex128)) for x in (wanted, got))
    return float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-30))

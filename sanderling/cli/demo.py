"""`sanderling demo`: the whole journey on the models in the package."""

from __future__ import annotations

import json as json_text
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import as_file, files
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ..delegates.engines.packages import is_installed
from ..errors import InputError
from ..format import AtomicFile, load
from ..ir import Array
from ..measure.machine import machine
from ..tables import width
from .app import VERBS
from .common import JsonPath, JsonTarget, Quiet, plural, progress

SCHEMA = "sanderling.demo/2"
RECORD = "demo.json"  # marks a folder as ours
FLOAT, SMALL = "digits_f32.tflite", "digits_small.tflite"
PICTURES, LABELLED, ONE, NAMES = "digits.npy", "digits.npz", "digit.npy", "names.txt"
PEERS = ("litert", "openvino", "onnxruntime")
SHADES = " .:-=+*#%@"
FAILED = 1
SHOWN = 26  # lines of a step's result; its JSON has all
TIMEOUT = 300  # seconds of a step


@dataclass(frozen=True)
class DemoCommand:
    """A command that a user would type in the folder, and what it is for."""

    name: str
    why: str
    words: tuple[str, ...]

    @property
    def command(self) -> str:
        return f"sanderling {shlex.join(self.words)}"


@dataclass
class Done:
    """What came of a step. files: those that it wrote."""

    name: str
    command: str
    status: int
    seconds: float
    files: list[str] = field(default_factory=list)


def _installed() -> list[str]:
    return [engine for engine in PEERS if is_installed(engine)]


def _missing() -> dict[str, str]:
    """What this demo would show with more packages, and how to get them."""
    found = {e: "pip install 'sanderling[peers]'" for e in PEERS if not is_installed(e)}
    if find_spec("matplotlib") is None:
        found["matplotlib"] = "pip install 'sanderling[plot]'"
    if find_spec("tf2onnx") is None and is_installed("onnxruntime"):
        found["tf2onnx"] = "pip install 'sanderling[onnx]'"
    return found


def steps() -> Iterator[DemoCommand]:
    """The journey, with what is installed here."""
    drawn = ("--plot", "bench.png") if find_spec("matplotlib") else ()
    paged = ("--html", "profile.html") if find_spec("matplotlib") else ()
    report = ("--report", "quantize.html") if find_spec("matplotlib") else ()
    told = ("--report", "advise.html")
    quick = ("--launches", "2", "--min-secs", "0.2", "--warmup-secs", "0.1")
    engines = ",".join(["sanderling", *_installed()])
    yield DemoCommand(
        "run",
        "what is this digit?",
        ("run", FLOAT, "--input", ONE, "--labels", NAMES, "--top", "3", "--json", "run.json"),
    )
    yield DemoCommand(
        "bench",
        "how fast is it, beside the engines that are installed?",
        ("bench", FLOAT, "--engines", engines, *quick, *drawn, "--json", "bench.json"),
    )
    yield DemoCommand(
        "profile",
        "where does the time go?",
        ("profile", FLOAT, "--by-type", *paged, "--json", "profile.json"),
    )
    yield DemoCommand(
        "quantize",
        "can it be smaller? calibrated with the pictures",
        ("quantize", FLOAT, "-o", SMALL, "--data", PICTURES, *report, "--json", "quantize.json"),
    )
    yield DemoCommand(
        "eval",
        "is the small one as good? the same pictures, pair by pair",
        ("eval", "arrays", SMALL, "--data", LABELLED, "--against", FLOAT, "--json", "eval.json"),
    )
    yield DemoCommand(
        "diff",
        "how far are its answers from the float model's?",
        ("diff", FLOAT, SMALL, "--data", PICTURES, "--json", "diff.json"),
    )
    yield DemoCommand(
        "advise",
        "what next? each piece of advice is tried out",
        ("advise", FLOAT, "--data", PICTURES, "--seconds", "5", *told, "--json", "advise.json"),
    )


def demo(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="The folder for models, records and pages.")
    ] = Path("sanderling-demo"),
    digit: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=359, help="Which of the 360 held-out pictures to show."
        ),
    ] = 7,
    only: Annotated[
        list[str],
        typer.Option("--only", metavar="STEP", help="Only this step; may be repeated."),
    ] = [],  # noqa: B006
    quiet: Quiet = False,
    json: JsonPath = "",
) -> None:
    """Take the digit classifier of the package on the whole journey: run, bench, profile, quantize,
    eval, diff, advise.

    Each step prints the command that you would type, and its result. The folder that is left holds
    the records and pages: `sanderling serve DIR` shows them. It may be run again.
    """
    journey = _chosen(only)
    with JsonTarget(json) as target:
        _prepare(out, digit)

        def tell(text: str) -> None:
            if not target.to_stdout:
                typer.echo(text)

        tell(_beginning(out, digit))
        done = []
        with progress() as show:
            for number, step in enumerate(journey):
                show(step.name, number, len(journey))
                tell(f"\n# {step.why}\n$ {step.command}")
                text, made = _taken(step, out)
                tell(text)
                done.append(made)
        record = _record(out, digit, done)
        _write(out / RECORD, json_text.dumps(record, indent=2) + "\n")
        if not target.write(record):
            typer.echo(_ending(out, done))
    if any(one.status for one in done):
        raise typer.Exit(FAILED)


def _chosen(only: Sequence[str]) -> list[DemoCommand]:
    journey = list(steps())
    known = [step.name for step in journey]
    for name in only:
        if name not in known:
            raise InputError(
                f"there is no step '{name}'", where="--only", fix=f"one of {', '.join(known)}"
            )
    return [step for step in journey if not only or step.name in only]


# -- the folder -----------------------------------------------------------------------------------


def _prepare(out: Path, digit: int) -> None:
    """Make the folder and what the steps read, or take one that an earlier run has left."""
    if out.exists() and not out.is_dir():
        raise InputError("it is a file, not a folder", where=str(out), fix="give another --out")
    if out.is_dir() and any(out.iterdir()) and not (out / RECORD).exists():
        raise InputError(
            "the folder holds other things", where=str(out), fix="give another name with --out"
        )
    out.mkdir(parents=True, exist_ok=True)
    _write(out / RECORD, json_text.dumps({"schema": SCHEMA, "steps": []}) + "\n")
    images, labels = _digits()
    with as_file(files("sanderling") / "data" / FLOAT) as path:
        _write(out / FLOAT, path.read_bytes())
    _write(out / NAMES, "".join(f"a handwritten {n}\n" for n in range(10)))
    for name, arrays in (
        (PICTURES, {"": images}),
        (ONE, {"": images[digit : digit + 1]}),
        (LABELLED, {"image": images, "labels": labels}),
    ):
        _save(out / name, arrays)


def _digits() -> tuple[Array, Array]:
    """The held-out pictures as the model takes them, and their labels."""
    source = files("sanderling") / "data" / "digits_test.npz"
    with as_file(source) as path, np.load(path) as held_out:
        images, labels = held_out["images"], held_out["labels"]
    return images.astype(np.float32)[..., None] / 16, labels.astype(np.int64)


def _save(path: Path, arrays: dict[str, Array]) -> None:
    content = BytesIO()
    if path.suffix == ".npy":
        np.save(content, arrays[""])
    else:
        np.savez(content, image=arrays["image"], labels=arrays["labels"])
    _write(path, content.getvalue())


def _write(path: Path, content: str | bytes) -> None:
    with AtomicFile(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


# -- steps ----------------------------------------------------------------------------------------


def _taken(step: DemoCommand, out: Path) -> tuple[str, Done]:
    """Run a step's command in the folder: the text that it printed, and what came of it."""
    begun = time.monotonic()
    before = _stamps(out)
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "sanderling", *step.words],
            cwd=out,
            env=os.environ | ({"COLUMNS": str(width())} if width() else {}),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            check=False,
        )
        status, text, error = ran.returncode, ran.stdout, ran.stderr
    except subprocess.TimeoutExpired:
        status, text, error = FAILED, "", f"no answer within {TIMEOUT} s"
    seconds = time.monotonic() - begun
    written = [name for name, stamp in _stamps(out).items() if before.get(name) != stamp]
    made = Done(step.name, step.command, status, seconds, sorted(written))
    return _shown(text) if not status else error.strip() or "it failed", made


def _stamps(out: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in out.iterdir()}


def _shown(text: str) -> str:
    lines = text.rstrip().splitlines()
    more = [f"... {plural(len(lines) - SHOWN, 'line')} more"] if len(lines) > SHOWN else []
    return "\n".join([*lines[:SHOWN], *more])


def _record(out: Path, digit: int, done: Sequence[Done]) -> dict[str, Any]:
    images, labels = _digits()
    scores = load(out / FLOAT).compile()(images)
    return {
        "schema": SCHEMA,
        "folder": str(out),
        "label": int(labels[digit]),
        "answer": int(scores[digit].argmax()),
        "right": int((scores.argmax(axis=1) == labels).sum()),
        "pictures": len(labels),
        "steps": [asdict(one) for one in done],
        "missing": _missing(),
        "machine": machine(),
    }


# -- what is told ---------------------------------------------------------------------------------


def _beginning(out: Path, digit: int) -> str:
    images, labels = _digits()
    missing = [f"not installed: {name} ({how})" for name, how in _missing().items()]
    return "\n".join(
        [
            f"held-out picture {digit}, 8x8 pixels, a handwritten {labels[digit]}:",
            _picture((16 * images[digit, ..., 0]).astype(int)),
            *missing,
            f"\n$ cd {shlex.quote(str(out))}",
        ]
    )


def _ending(out: Path, done: Sequence[Done]) -> str:
    failed = [one.name for one in done if one.status]
    seconds = sum(one.seconds for one in done)
    told = f"\n{plural(len(done), 'step')} in {seconds:.0f} s"
    told += f"; these failed: {', '.join(failed)}" if failed else ""
    kept = sum(len(one.files) for one in done)
    serve = f"\nnext: sanderling serve {shlex.quote(str(out))}" if "serve" in VERBS else ""
    return f"{told}. {out} holds {plural(kept, 'file')} of them, records (.json) and pages.{serve}"


def _picture(pixels: Array) -> str:
    """The 16 grey levels as characters, two wide so that the aspect is right."""
    rows = ("".join(SHADES[level * 9 // 16] * 2 for level in row) for row in pixels)
    return "\n".join(" " * 4 + row for row in rows)

"""What the benchmarks share: statistics, tables, the machine, and sections of RESULTS.md."""

from __future__ import annotations

import json
import os
import platform
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sanderling.config import KNOBS
from sanderling.evaluate.inputs import quantize_array
from sanderling.ir import Model
from sanderling.ir.types import Array

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("SANDERLING_SHARED", ROOT.parent / "shared"))
RESULTS = Path(__file__).with_name("RESULTS.md")
PACKAGES = ("sanderling", "ai-edge-litert", "openvino", "onnxruntime", "llvmlite", "numpy")
REPLICATES = 2000
Floats = npt.NDArray[np.float64]


# -- statistics ---------------------------------------------------------------------------------


class Ratio(NamedTuple):
    """A ratio and its 95 % interval; `logs` are the bootstrap's replicates, for means of ratios."""

    value: float
    low: float
    high: float
    logs: Floats

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def median_of_rounds(rounds: Sequence[Sequence[float]]) -> float:
    return float(np.median([np.median(r) for r in rounds]))


def ratio(slow: Sequence[Sequence[float]], fast: Sequence[Sequence[float]], seed: int = 0) -> Ratio:
    """median(slow) / median(fast), each a list of rounds of samples.

    Rounds are drawn, not samples: what disturbs the machine lasts longer than a run, so samples of
    one round are not independent. A round is drawn for both at once: they shared its disturbance.
    """
    above, below = (np.array([np.median(r) for r in rounds]) for rounds in (slow, fast))
    draws = np.random.default_rng(seed).integers(0, len(above), (REPLICATES, len(above)))
    logs = np.log(np.median(above[draws], axis=1) / np.median(below[draws], axis=1))
    return _interval(float(np.log(np.median(above) / np.median(below))), logs)


def geometric_mean(ratios: Sequence[Ratio]) -> Ratio:
    logs = np.mean([r.logs for r in ratios], axis=0)
    return _interval(float(np.mean([np.log(r.value) for r in ratios])), logs)


def _interval(log: float, logs: Floats) -> Ratio:
    low, high = np.exp(np.percentile(logs, (2.5, 97.5)))
    return Ratio(float(np.exp(log)), float(low), float(high), logs)


# -- inputs -------------------------------------------------------------------------------------


def feeds(model: Model, seed: int = 0) -> list[Array]:
    """Plausible inputs in the order of the main graph's: unit normal reals, quantised where the
    model takes integers with a scale, small numbers where it takes plain integers."""
    rng = np.random.default_rng(seed)
    made: list[Array] = []
    for tensor in model.main.inputs:
        reals = rng.standard_normal(tensor.shape).astype(np.float32)
        if tensor.dtype.is_float:
            made.append(reals.astype(tensor.dtype.numpy))
        elif tensor.quant is not None and tensor.quant.scale.size:
            made.append(quantize_array(reals, tensor))
        else:
            made.append(rng.integers(0, 100, tensor.shape).astype(tensor.dtype.numpy))
    return made


def model_paths(given: Sequence[str], wanted: str = "") -> list[Path]:
    """The models named, or all shared ones; `wanted` are words, one of which the name has."""
    paths = [Path(p) for p in given] or sorted((SHARED / "models").glob("*.tflite"))
    words = [w for w in wanted.split(",") if w]
    return [p for p in paths if not words or any(w in p.stem for w in words)]


# -- the machine --------------------------------------------------------------------------------


def cpu_name() -> str:
    found = re.search(r"^model name\s*:\s*(.*)$", _cpuinfo(), re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def cpu_flags() -> set[str]:
    found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", _cpuinfo(), re.MULTILINE)
    return set(found[1].split()) if found else set()


def _cpuinfo() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text("utf-8") if path.is_file() else ""


def versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {p: _version(p) for p in PACKAGES}


def _version(package: str) -> str:
    if package == "sanderling":
        from sanderling import __version__

        return __version__
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def machine() -> dict[str, Any]:
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count() or 0,
        "system": f"{platform.system()} {platform.release()}",
        "load": round(os.getloadavg()[0], 1),  # what else ran; the benchmark itself counts too
        "versions": versions(),
        "date": date.today().isoformat(),
    }


def machine_line() -> str:
    """One line for RESULTS.md: where and when, with what."""
    facts = machine()
    made = ", ".join(f"{k} {v}" for k, v in facts["versions"].items())
    place = f"{facts['cpu']}, {facts['cores']} cores, {facts['system']}"
    return f"{facts['date']}; {place}, load average {facts['load']}; {made}."


def cache_knob() -> str | None:
    """The environment variable that moves the code cache; None while there is no cache."""
    return next((k.name for k in KNOBS if k.name.endswith("_CACHE")), None)


@contextmanager
def fresh_cache() -> Iterator[None]:
    """Code compiled before is not measured: it may be an older compiler's."""
    knob = cache_knob()
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get(knob) if knob else None
        os.environ |= {knob: folder} if knob else {}
        try:
            yield
        finally:
            if knob:
                os.environ.pop(knob, None)
                os.environ |= {} if before is None else {knob: before}


# -- output -------------------------------------------------------------------------------------


def table(header: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1) -> str:
    """A Markdown table; the first `left` columns are text, the others numbers."""
    rule = ["---"] * left + ["---:"] * (len(header) - left)
    lines = [header, rule, *([str(c) for c in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def milliseconds(seconds: float) -> str:
    """Three digits that count."""
    value = 1e3 * seconds
    digits = 4 if value < 0.1 else 3 if value < 1 else 2 if value < 100 else 1
    return f"{value:.{digits}f}"


def write_section(name: str, text: str, path: Path = RESULTS) -> None:
    """Put text between the section's markers; a section that is not there is added at the end."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    old = path.read_text("utf-8") if path.is_file() else "# Results\n"
    body = f"{begin}\n{text.strip()}\n{end}"
    if begin in old and end in old:
        before, _, rest = old.partition(begin)
        path.write_text(before + body + rest.partition(end)[2], "utf-8")
    else:
        path.write_text(f"{old.rstrip()}\n\n{body}\n", "utf-8")


def write_json(where: str, schema: str, content: dict[str, Any]) -> None:
    """The record to a file, or to stdout for '-'."""
    text = json.dumps({"schema": schema, "machine": machine()} | content, indent=1)
    if where == "-":
        print(text)
    else:
        Path(where).write_text(text + "\n", "utf-8")

"""A run's time before and after, on this machine: by our runtime and by LiteRT, in turns."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from ...delegates.engines.packages import is_installed
from ...errors import MissingExtraError
from ...format import load, save
from ...ir import Model
from ...measure.engines import EngineJob, job_for
from ...measure.inputs import feeds
from ...measure.interleaving import Measured, measure
from ...measure.record import Setting
from ...measure.sample_statistics import median_of_rounds, ratio

ENGINES = ("sanderling", "litert")
SIDES = ("before", "after")


def compare_latency(
    before: Model, after: Model, threads: int = 1, seconds: float = 4.0
) -> list[dict[str, Any]]:
    """Make one row for each engine: seconds a run of both models, the speed-up and its interval.

    Each model on each engine has a process of its own, and they take turns for about `seconds`. An
    engine that is not installed, or that fails, has a row with the reason.
    """
    models = {"before": before, "after": after}
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for side, model in models.items():
            found[side] = Path(folder) / f"{side}.tflite"
            save(model, found[side])
        jobs = {
            f"{e} {side}": _job(found[side], e, threads)
            for e in ENGINES
            if is_installed(e)
            for side in SIDES
        }
        measured = measure(jobs, seconds)
    return [_row(engine, measured, threads) for engine in ENGINES]


def _job(path: Path, engine: str, threads: int) -> EngineJob:
    model = load(path)
    return job_for(model, Setting(engine, threads), feeds(model))


def _row(engine: str, measured: Measured, threads: int) -> dict[str, Any]:
    row: dict[str, Any] = {"engine": engine, "threads": threads}
    names = [f"{engine} {side}" for side in SIDES]
    failed = [
        f"{side}: {measured.errors[n]}"
        for n, side in zip(names, SIDES, strict=True)
        if n in measured.errors
    ]
    if not is_installed(engine):
        failed = [str(MissingExtraError("ai-edge-litert", "peers", f"the engine {engine}"))]
    if failed or any(n not in measured.samples for n in names):
        return row | {"error": "; ".join(failed) or "it gave no samples"}
    old, new = (measured.samples[n] for n in names)
    faster = ratio(old, new)
    return row | {
        "before": median_of_rounds(old),
        "after": median_of_rounds(new),
        "speedup": faster.value,
        "low": faster.low,
        "high": faster.high,
    }

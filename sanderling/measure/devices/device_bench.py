"""`sanderling bench --device`: models at settings on a device, as the record of a local bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean, median

from ...errors import ArgumentError
from ...format import load
from ..bench import Bench, BenchInterrupted
from ..inspection import inspect
from ..record import Result, Setting
from ..sample_statistics import Summary
from . import check, run
from .device_options import DeviceOptions, Progress

# What `bench` and the tool call the same thing.
FLAGS = {"runs": "num_runs", "min_secs": "min_secs", "max_secs": "max_secs",
         "warmup_runs": "warmup_runs", "warmup_secs": "warmup_min_secs",
         "run_frequency": "run_frequency", "run_delay": "run_delay",
         "signature": "signature_to_run_for"}  # fmt: skip


def tool_flags(given: Mapping[str, object]) -> dict[str, str]:
    """The tool's flags for options of `bench`; 0 and "" are its own defaults."""
    return {
        FLAGS[name]: f"{value:g}" if isinstance(value, float) else str(value)
        for name, value in given.items()
        if name in FLAGS and value
    }


def bench_device(
    device: str,
    models: Sequence[str | Path],
    threads: Sequence[int] = (1,),
    delegates: Sequence[tuple[str, ...]] = ((),),
    precision: Sequence[str] = ("f32",),
    launches: int = 1,
    options: DeviceOptions | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Bench:
    """Every combination on the device, one after the other. A setting that fails is in the results
    with its reason; interrupted, it raises BenchInterrupted with what was measured."""
    check(device)
    if any(count < 1 for count in threads):
        raise ArgumentError(f"`threads` is {min(threads)}", fix="give 1 or more")
    settings = [
        Setting(threads=t, delegates=d, precision=p)
        for d, p, t in product(delegates, precision, threads)
    ]
    made = Bench(settings={"device": device, "launches": launches})
    options = options or DeviceOptions()
    total = len(models) * len(settings) * launches
    try:
        for path in models:
            made.models[Path(path).name] = _facts(path)
            for setting in settings:
                done = len(made.results) * launches
                progress(f"{Path(path).name}: {setting.name}", done, total)
                found = _repeated(device, path, setting, options, launches)
                found.model = Path(path).name
                made.results.append(found)
    except KeyboardInterrupt as error:
        made.interrupted = True
        raise BenchInterrupted(made) from error
    return made


def _facts(path: str | Path) -> dict[str, object]:
    about = inspect(load(path))
    return {
        "path": str(path),
        "quantisation": about["quantisation"],
        "macs": about["macs"],
        "parameters": about["parameters"],
        "file": about["file_bytes"],
        "weights": about["weight_bytes"],
    }


def _repeated(
    device: str, path: str | Path, setting: Setting, options: DeviceOptions, launches: int
) -> Result:
    """The tool once for each launch: it tells no samples, so each launch's median is one."""
    found: list[Result] = []
    for _ in range(1 if device == "ios" else launches):
        found.append(run(device, path, setting, options))
        if found[-1].error:
            break
    whole = [r for r in found if r.stated is not None and not r.error]
    if not whole:
        return found[-1]
    made = replace(whole[-1], stated=together([r.stated for r in whole if r.stated]))
    made.rounds = [[r.stated.median] for r in whole if r.stated]
    made.launches = [1] * len(whole)
    made.inits = [r.init for r in whole if r.init is not None]
    made.firsts = [r.first for r in whole if r.first is not None]
    made.init, made.first = (median(x) if x else None for x in (made.inits, made.firsts))
    if len(whole) < len(found):
        made.notes = [*made.notes, f"only {len(whole)} of {launches} launches: {found[-1].error}"]
    return made


def together(parts: Sequence[Summary]) -> Summary:
    """Several launches as one: what can be added is added, of the rest the median is taken."""
    count = sum(p.count for p in parts)
    mean = sum(p.mean * p.count for p in parts) / count if count else fmean(p.mean for p in parts)
    middle = {name: median(getattr(p, name) for p in parts) for name in ("median", "p5", "p95")}
    return Summary(
        count=count,
        first=parts[0].first,
        mean=mean,
        std=median(p.std for p in parts),
        min=min(p.min for p in parts),
        max=max(p.max for p in parts),
        **middle,
    )

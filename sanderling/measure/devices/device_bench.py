"""`sanderling bench --device`: models at settings on a device, as the record of a local bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean, median

from ...errors import ArgumentError, InputError
from ...format import load
from ..bench import BenchInterrupted
from ..bench_results import Bench, Comparison, ratio
from ..inspection import inspect
from ..record import Result, Setting
from ..sample_statistics import Summary
from . import check, run
from .device_options import ENGINE, ENGINES, OURS, DeviceOptions, Progress

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
    engines: Sequence[str] = (ENGINE,),
) -> Bench:
    """Every combination on the device; the settings of a model take turns, so that what warms the
    device up slows all of them down alike. A setting that fails is in the results with its reason;
    interrupted, it raises BenchInterrupted with what was measured."""
    check(device)
    if any(count < 1 for count in threads):
        raise ArgumentError(f"`threads` is {min(threads)}", fix="give 1 or more")
    settings = _settings(device, engines, threads, delegates, precision)
    launches = 1 if device == "ios" else launches
    made = Bench(settings={"device": device, "launches": launches, "engines": list(engines)})
    options = options or DeviceOptions()
    total = len(models) * len(settings) * launches
    for number, path in enumerate(models):
        made.models[Path(path).name] = _facts(path)
        found: dict[Setting, list[Result]] = {setting: [] for setting in settings}
        try:
            for turn, setting in product(range(launches), settings):
                if any(r.error for r in found[setting]):
                    continue
                done = number * len(settings) * launches + turn * len(settings)
                progress(f"{Path(path).name}: {setting.name}", done, total)
                found[setting].append(run(device, path, setting, options))
        except KeyboardInterrupt as error:
            made.interrupted = True
            _add(made, path, found, launches)
            raise BenchInterrupted(made) from error
        _add(made, path, found, launches)
    return made


def _settings(
    device: str,
    engines: Sequence[str],
    threads: Sequence[int],
    delegates: Sequence[tuple[str, ...]],
    precision: Sequence[str],
) -> list[Setting]:
    """Our own program knows threads alone."""
    strange = [e for e in engines if e not in ENGINES]
    if strange or (device == "ios" and OURS in engines):
        raise InputError(
            f"'{strange[0] if strange else OURS}' does not run on {device}",
            where="--engines",
            fix=f"on a device there are {' and '.join(ENGINES)}, on ios {ENGINE} alone",
        )
    found: list[Setting] = []
    for engine in engines:
        if engine == OURS:
            found += [Setting(OURS, threads=t) for t in threads]
        else:
            found += [
                Setting(ENGINE, threads=t, delegates=d, precision=p)
                for d, p, t in product(delegates, precision, threads)
            ]
    return found


def _add(
    made: Bench, path: str | Path, found: Mapping[Setting, Sequence[Result]], launches: int
) -> None:
    """The results of a model, and how they compare with the first of them."""
    results = [_together(of_one, launches) for of_one in found.values() if of_one]
    for result in results:
        result.model = Path(path).name
    made.results += results
    sound = [r for r in results if r.rounds and not r.error]
    for other in sound[1:]:
        one = ratio(other, sound[0])
        names = other.setting.name, sound[0].setting.name
        made.comparisons.append(Comparison(Path(path).name, *names, one.value, one.low, one.high))


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


def _together(found: Sequence[Result], launches: int) -> Result:
    """One result of a setting's launches: the tool tells no samples, so the median of each is
    one."""
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

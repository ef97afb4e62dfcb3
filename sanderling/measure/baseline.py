"""A measurement against an earlier one: what changed, how surely, and whether that is too much."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import read_data
from .record import Result
from .sample_statistics import Ratio, ratio_of_launches

REGRESSED, SLOWER, SAME, FASTER = "regressed", "slower", "same", "faster"
UNSURE = "cannot tell"
NEW, BROKEN, UNTOLD = "not in the baseline", "fails now", "not told: no samples"
GONE = "not measured now"
FAILURES = (REGRESSED, BROKEN)
EQUAL = 0.05  # where no limit is given: what differs by less is the same


@dataclass(frozen=True)
class Change:
    """One setting then and now. ratio is now / then, with its 95 % interval."""

    model: str
    setting: str
    verdict: str
    before: float | None = None  # median seconds
    after: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read(path: str | os.PathLike[str], schema: str) -> dict[str, Any]:
    """An earlier result, as --json wrote it."""
    fix = "give a file that `sanderling bench --json FILE` wrote"
    record = read_data(path, "the baseline", fix)
    if not isinstance(record, dict) or record.get("schema") != schema:
        found = record.get("schema") if isinstance(record, dict) else type(record).__name__
        raise InputError(f"its schema is {found!r}, not '{schema}'", where=str(path), fix=fix)
    return record


def changes(
    results: Sequence[Result], before: Mapping[str, Any], limit: float | None = None
) -> list[Change]:
    """What became of each setting. A regression is sure: the whole interval lies beyond the limit
    (0.05: five percent), so that noise alone fails a job one time in forty at most."""
    then = _by_name(r for r in map(Result.from_json, before["results"]) if r.summary)
    measured = _by_name(results)
    gone = [
        Change(r.model, r.setting.name, GONE, before=r.summary.median)
        for key, r in then.items()
        if key not in measured and r.summary
    ]
    return [_change(now, then.get(key), limit) for key, now in measured.items()] + gone


def _by_name(results: Iterable[Result]) -> dict[tuple[str, str], Result]:
    """Models are the same if their files are called the same: folders differ between machines.
    Two files of one name are told apart by their folders."""
    listed = list(results)
    shared = Counter(Path(model).name for model in {r.model for r in listed})
    return {(_short(r.model, shared), r.setting.name): r for r in listed}


def _short(model: str, shared: Mapping[str, int]) -> str:
    name = Path(model).name
    return name if shared[name] == 1 else model


def _change(now: Result, then: Result | None, limit: float | None) -> Change:
    name = now.model, now.setting.name
    if then is None or then.summary is None:
        return Change(*name, NEW, after=now.summary.median if now.summary else None)
    if now.summary is None:
        return Change(*name, BROKEN, before=then.summary.median)
    if not now.rounds or not then.rounds:  # a device that keeps them to itself
        return Change(*name, UNTOLD, then.summary.median, now.summary.median)
    found = ratio_of_launches(now.by_launch, then.by_launch, paired=False)
    return Change(
        *name,
        _verdict(found, limit),
        then.summary.median,
        now.summary.median,
        found.value,
        found.low,
        found.high,
    )


def _verdict(found: Ratio, limit: float | None) -> str:
    if limit is not None and found.low > 1 + limit:
        return REGRESSED
    if found.low > 1 or found.high < 1:
        return SLOWER if found.low > 1 else FASTER
    most = 1 + (EQUAL if limit is None else limit)
    return SAME if found.low >= 1 / most and found.high <= most else UNSURE


def failed(changes: Sequence[Change]) -> bool:
    """Whether a gate must fail: something became too slow, or fails, or nothing was compared."""
    return any(c.verdict in FAILURES for c in changes) or not _compared(changes)


def failure(changes: Sequence[Change], limit: float) -> str:
    """Why the gate fails, in a sentence."""
    if not _compared(changes):
        return "nothing was compared with the baseline"
    causes = {REGRESSED: f"slower by more than {100 * limit:.3g} %", BROKEN: "no longer running"}
    return "; ".join(
        f"{c.model} at {c.setting} is {causes[c.verdict]}" for c in changes if c.verdict in FAILURES
    )


def _compared(changes: Sequence[Change]) -> list[Change]:
    return [c for c in changes if c.ratio is not None or c.verdict == BROKEN]


def uncompared(changes: Sequence[Change]) -> list[str]:
    """Which settings have no partner on the other side, as one sentence or none."""
    new, gone, untold = (
        [f"{c.model} at {c.setting}" for c in changes if c.verdict == verdict]
        for verdict in (NEW, GONE, UNTOLD)
    )
    parts = [
        f"{what}: {'; '.join(names)}"
        for what, names in (
            ("Measured now, not in the baseline", new),
            ("In the baseline, not measured now", gone),
            ("Without samples on one side", untold),
        )
        if names
    ]
    if not parts:
        return []
    if _compared(changes):
        return [f"not all was compared. {'. '.join(parts)}"]
    return [
        f"nothing was compared with the baseline. {'. '.join(parts)}. Models are "
        "paired by the file's name and the setting's: give the model its name in the baseline, "
        "measure the same settings, or make the baseline anew with --json"
    ]


def doubts(changes: Sequence[Change], limit: float | None) -> list[str]:
    """Which changes the intervals are too wide for, and what to do, as one sentence or none."""
    most = 1 + (EQUAL if limit is None else limit)
    asked = (UNSURE,) if limit is None else (UNSURE, SLOWER)
    wide = [
        c
        for c in changes
        if c.verdict in asked
        and c.low is not None
        and c.high is not None
        and c.low <= most < c.high
    ]
    if not wide:
        return []
    names = ", ".join(f"{c.model} at {c.setting} ({c.low:.2f} to {c.high:.2f})" for c in wide[:3])
    more = f" and {len(wide) - 3} more" if len(wide) > 3 else ""
    return [
        f"whether it became slower by more than {100 * (most - 1):.3g} % cannot be told for "
        f"{names}{more}: their intervals are too wide; measure longer, both times, with a "
        f"larger --min-secs, --runs or --launches, on a quiet machine"
    ]


def differences(now: Mapping[str, Any], then: Mapping[str, Any]) -> list[str]:
    """How the machines differ in what speed depends on, as sentences."""
    found = []
    for key, what in (
        ("cpu", "CPU"),
        ("cores", "number of cores"),
        ("features", "features"),
        ("governors", "governor"),
        ("system", "system"),
    ):
        if key in now and key in then and now[key] != then[key]:
            found.append(f"another {what} ({_plain(then[key])} then, {_plain(now[key])} now)")
    versions = then.get("versions", {})
    for package, version in now.get("versions", {}).items():
        if package not in ("python", "sanderling") and versions.get(package, version) != version:
            found.append(f"another {package} ({versions[package]} then, {version} now)")
    return found


def _plain(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def percent(text: str) -> float:
    """'5%' or '0.05' or '5': a share. A plain number from 1 on is percent."""
    digits = text.strip().removesuffix("%")
    try:
        value = float(digits)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1000:
        raise InputError(f"'{text}' is not a share", where="--max-regression", fix="write it as 5%")
    return value / 100 if text.strip().endswith("%") or value >= 1 else value

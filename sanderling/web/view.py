"""What a page knows of a kind of record, and the words that all kinds share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ..progress import plural as plural
from ..units import byte_size as byte_size
from .markup import Markup, facts, heading, joined, listed, note
from .record_file import Record

Launches = list[list[float]]  # medians of rounds, by the process that they come from


@dataclass(frozen=True)
class Figure:
    """A latency in seconds of a model at a setting, for histories. rounds: the median of each
    round of each process, from which ratios of two records get their intervals."""

    model: str
    setting: str
    median: float
    low: float | None = None
    high: float | None = None
    rounds: Launches | None = None


@dataclass(frozen=True)
class PageAddress:
    """Where a page stands: `base` is the address of everything, `record` the number of this one."""

    base: str
    record: int = 0

    def model(self, name: str) -> str:
        from urllib.parse import quote

        return f"{self.base}/model?name={quote(name, safe='', errors='backslashreplace')}"

    def picture(self, place: int) -> str:
        return f"{self.base}/picture/{self.record}/{place}"


Parts = list[Markup]


def _nothing(record: Record) -> list[Figure]:
    return []


@dataclass(frozen=True)
class View:
    """One row of the table of kinds: how a record is listed, and what its page shows."""

    title: str
    models: Callable[[Record], Iterable[object]]
    headline: Callable[[Record], str]
    parts: Callable[[Record, PageAddress], Parts]
    figures: Callable[[Record], list[Figure]] = _nothing


def file_name(path: object) -> str:
    """Models are known by the names of their files: folders differ between machines."""
    return PurePosixPath(str(path).replace("\\", "/")).name or str(path)


def seconds(value: float | None) -> str:
    """A time with the unit that suits it."""
    if value is None or not math.isfinite(value):
        return "-"
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(value) >= unit:
            return f"{value / unit:.4g} {name}"
    return f"{value / 1e-6:.3g} us"


def unit_for(values: Iterable[float | None]) -> tuple[float, str]:
    """The factor from seconds, and the unit, in which an axis has short numbers."""
    top = most(values)
    return next(((1 / u, n) for u, n in ((1.0, "s"), (1e-3, "ms")) if top >= u), (1e6, "us"))


def between(low: float | None, high: float | None, shown: Callable[[float], str]) -> str:
    return "-" if low is None or high is None else f"{shown(low)} to {shown(high)}"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"


def plain(value: float) -> str:
    return f"{value:.3f}"


def section(title: str, *parts: Markup | None) -> Markup:
    """A heading and what stands below it; nothing if there is nothing."""
    content = [p for p in parts if p]
    return joined([heading(title), *content]) if content else Markup("")


def warnings_of(record: Record) -> Markup:
    """What a measurement warns of, and what to do."""
    said = [_warning(w) for w in record.get("warnings") or ()]
    return section("Warnings", listed(said, class_="warnings")) if said else Markup("")


def _warning(warning: Any) -> str:
    if not isinstance(warning, Mapping):
        return str(warning)
    who = f" ({warning['who']})" if warning.get("who") else ""
    return f"{warning.get('what', '')}{who}; {warning.get('remedy', '')}"


def notes_of(record: Record) -> Markup:
    notes = record.get("notes") or ()
    return section("Notes", listed(notes)) if notes else Markup("")


def machine_of(record: Record) -> Markup:
    found = record.get("machine")
    if not isinstance(found, Mapping):
        return Markup("")
    versions = found.get("versions") or {}
    return section(
        "Machine",
        facts(
            [
                ("CPU", f"{found.get('cpu')}, {found.get('usable')} of {found.get('cores')} cores"),
                ("system", found.get("system")),
                ("load", found.get("load")),
                ("date", found.get("date")),
                ("versions", ", ".join(f"{k} {v}" for k, v in versions.items())),
            ]
        ),
    )


def most(values: Iterable[float | None]) -> float:
    """The largest, for bars."""
    return max((v for v in values if v is not None and math.isfinite(v)), default=0.0)


def sizes(record: Record) -> list[tuple[str, object]]:
    """The sizes of a model before and after."""
    before, after = record["size_before"], record["size_after"]
    zipped = record["zipped_before"], record["zipped_after"]
    return [
        ("file", f"{byte_size(before)} to {byte_size(after)} ({after / max(before, 1):.0%})"),
        ("zipped", f"{byte_size(zipped[0])} to {byte_size(zipped[1])}"),
    ]


def setting_text(setting: Mapping[str, Any]) -> str:
    """A setting as a record has it, in words."""
    delegates = "+".join(setting.get("delegates") or ()) or "cpu"
    engine, threads = setting.get("engine", ""), setting.get("threads", 1)
    return f"{engine}, {delegates}, {plural(int(threads), 'thread')}, {setting.get('precision')}"


def truncated(rows: Sequence[Any], limit: int, what: str) -> Markup:
    """What to say where not all rows are shown."""
    left = len(rows) - limit
    return note(f"and {left} more {what}, see the record") if left > 0 else Markup("")

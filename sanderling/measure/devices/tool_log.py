"""The one reader of TensorFlow Lite's benchmark logs: of the binary, of logcat, of the iOS app, of
`sanderling benchmark_model`; of today's form and of the older ones that the guide shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..record import Result, Setting
from ..sample_statistics import Summary

_NUMBER = r"-?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|nan|inf)"
# What stands before a line: of logcat (threadtime, brief, tag), of NSLog, and the tool's severity.
_PREFIXES = (
    re.compile(r"^\d\d-\d\d \d\d:\d\d:\d\d\.\d+\s+\d+\s+\d+ [VDIWEF] \S+\s*: "),
    re.compile(r"^[VDIWEF]/\S+\s*(?:\(\s*\d+\))?: "),
    re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.\d]*[+-]\d{4} \S+\[\d+:\d+\] "),
    re.compile(r"^\.\.\. tflite\s*: "),
)
_SEVERITY = re.compile(r"^(INFO|WARN(?:ING)?|ERROR|FATAL): ")
_PAIR = re.compile(rf"(\w+)=({_NUMBER})")
_LABELLED = re.compile(r"^(.+?): \[(.*)\]$")
_BANNER = re.compile(r"^=+ ?(.+?) ?=+$")
_OLD = re.compile(
    rf"Average inference timings in us: Warmup: ({_NUMBER}), Init: ({_NUMBER}), "
    rf"(?:Inference|no stats): ({_NUMBER})"
)
_NEW = re.compile(
    rf"Inference timings in us: Init: ({_NUMBER}), First inference: ({_NUMBER}), "
    rf"Warmup \(avg\): ({_NUMBER}), Inference \(avg\): ({_NUMBER})"
)
_MEMORY = re.compile(
    rf"emory footprint(?: delta from the start of the tool)? \(MB\): "
    rf"init=({_NUMBER}) overall=({_NUMBER})"
)
_PEAK = re.compile(rf"Overall peak memory footprint \(MB\) via periodic monitoring: ({_NUMBER})")
_SIZE = re.compile(rf"The input model file size \(MB\): ({_NUMBER})")
_SESSION = re.compile(rf"Initialized session in ({_NUMBER})ms")
_OPTION = re.compile(r"^\s*(\S.*?):\s+(failed!|count=.*)$")
_APPLIED = re.compile(r"(Explicitly applied|Though) (\S+) delegate")
_CRASH = re.compile(
    r"Fatal signal \d+ \(\w+\).*|FATAL EXCEPTION.*|Segmentation fault.*|"
    r"Aborted\b.*|Illegal instruction.*|Killed\s*$|Out of memory.*"
)
# The app's text: `Startup latency: 12.3 ms`, then blocks of ` - Average: 1.2 ms`.
_SCREEN = re.compile(
    rf"^(?: - )?(Startup latency|Num runs|Average|Min|Max|Std deviation): "
    rf"({_NUMBER})"
)
_SHOWN = {"Num runs": "count", "Average": "avg", "Std deviation": "std"}

Stats = dict[str, float]


@dataclass
class LogOp:
    """A row of the profile's table in run order, or by type."""

    type: str
    avg_ms: float
    share: float  # per cent
    name: str = ""
    first_ms: float = 0.0
    count: int = 1


@dataclass
class Log:
    """What a log says. Times are in microseconds, memory in MB, both as printed."""

    parameters: dict[str, str] = field(default_factory=dict)
    init: float | None = None
    first: float | None = None
    warmup: Stats = field(default_factory=dict)
    inference: Stats = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    model_size_mb: float | None = None
    delegation: list[str] = field(default_factory=list)
    options: dict[str, Stats | None] = field(default_factory=dict)  # None: failed
    ops: list[LogOp] = field(default_factory=list)
    types: list[LogOp] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    crash: str = ""

    @property
    def is_complete(self) -> bool:
        """The line that ends a benchmark was there."""
        return "avg" in self.inference and self.init is not None


def strip(line: str) -> tuple[str, str]:
    """Severity and text of a line, without what a log puts before it."""
    for prefix in _PREFIXES:
        line, found = prefix.subn("", line, count=1)
        if found:
            break
    found_severity = _SEVERITY.match(line)
    if found_severity is None:
        return "", line
    return found_severity[1][:4], line[found_severity.end() :]


def parse(text: str) -> Log:
    """Read a log, or as much of it as there is."""
    log = Log()
    reader = _LogReader(log)
    for raw in text.splitlines():
        severity, line = strip(raw.rstrip("\r"))
        if severity == "WARN":
            log.warnings.append(line)
        elif severity in ("ERRO", "FATA"):
            log.errors.append(line)
        reader.read(line)
    return log


class _LogReader:
    """Goes through the lines; remembers in which block it is."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.loops: list[Stats] = []
        self.stage, self.table, self.screen = "", "", ""
        self.rules: list[tuple[re.Pattern[str], Callable[[re.Match[str]], None]]] = [
            (_OLD, self._old),
            (_NEW, self._new),
            (_MEMORY, self._memory),
            (_PEAK, self._peak),
            (_SIZE, self._size),
            (_SESSION, self._session),
            (_CRASH, self._crash),
            (_APPLIED, lambda m: log.delegation.append(m.string)),
        ]

    def read(self, line: str) -> None:
        bare = line.strip()
        if bare.startswith("count="):
            self._stat(bare)
        elif bare.startswith(("Profiling Info", "Operator-wise Profiling")):
            self.stage = "init" if "Initialization" in bare else "run"
        elif _BANNER.match(bare):
            self._banner(_BANNER.match(bare))
        elif self.table == "options" and _OPTION.match(line):
            self._option(_OPTION.match(line))
        elif self.table and line.startswith("\t"):
            self._row(line)
        else:
            self._sentence(bare)

    def _sentence(self, line: str) -> None:
        for pattern, take in self.rules:
            found = pattern.search(line)
            if found is not None:
                take(found)
        labelled = _LABELLED.match(line)
        if labelled is not None:
            self.log.parameters[labelled[1]] = labelled[2]
        if line in ("Inference:", "Warmup:"):
            self.screen = line.rstrip(":")
        shown = _SCREEN.match(line if line.startswith("Startup") else f" {line}")
        if shown is not None:
            self._shown(shown[1], float(shown[2]))

    def _stat(self, line: str) -> None:
        """The warm-up's comes first, then the runs'."""
        self.loops.append(stats(line))
        self.log.warmup = self.loops[-2] if len(self.loops) > 1 else self.loops[0]
        self.log.inference = self.loops[-1] if len(self.loops) > 1 else {}

    def _old(self, found: re.Match[str]) -> None:
        warmup, init, average = (float(n) for n in found.groups())
        self.log.warmup.setdefault("avg", warmup)
        self.log.inference.setdefault("avg", average)
        self.log.init = init

    def _new(self, found: re.Match[str]) -> None:
        init, first, warmup, average = (float(n) for n in found.groups())
        self.log.init, self.log.first = init, first
        self.log.warmup.setdefault("avg", warmup)
        self.log.inference.setdefault("avg", average)

    def _memory(self, found: re.Match[str]) -> None:
        self.log.memory |= {"init": float(found[1]), "overall": float(found[2])}

    def _peak(self, found: re.Match[str]) -> None:
        self.log.memory["peak"] = float(found[1])

    def _size(self, found: re.Match[str]) -> None:
        self.log.model_size_mb = float(found[1])

    def _session(self, found: re.Match[str]) -> None:
        self.log.init = float(found[1]) * 1e3

    def _crash(self, found: re.Match[str]) -> None:
        self.log.crash = self.log.crash or found[0].strip()

    def _shown(self, what: str, value: float) -> None:
        if what == "Startup latency":
            self.log.init = value * 1e3
            return
        if not self.screen:
            return
        target = self.log.inference if self.screen == "Inference" else self.log.warmup
        key = _SHOWN.get(what, what.lower())
        target[key] = value if key == "count" else value * 1e3

    def _banner(self, found: re.Match[str] | None) -> None:
        title = found[1] if found else ""
        tables = {"Run Order": "ops", "Summary by node type": "types"}
        self.table = tables.get(title, "options" if title.startswith("Summary of All Runs") else "")

    def _option(self, found: re.Match[str] | None) -> None:
        if found is not None:
            self.log.options[found[1]] = None if found[2] == "failed!" else stats(found[2])

    def _row(self, line: str) -> None:
        cells = [cell.strip() for cell in line.split("\t")[1:]]
        if self.stage == "init" or not cells or cells[0].startswith("["):
            return
        if self.table == "ops":
            self.log.ops.append(_op_row(cells))
        elif self.table == "types":
            self.log.types.append(
                LogOp(cells[0], float(cells[2]), _share(cells[3]), count=int(cells[1]))
            )


def _op_row(cells: list[str]) -> LogOp:
    """type, [start of older versions,] first, avg, %, cdf%, mem, calls, name."""
    start = next(i for i, cell in enumerate(cells) if cell.endswith("%"))
    return LogOp(
        cells[0], float(cells[start - 1]), _share(cells[start]), cells[-1], float(cells[start - 2])
    )


def _share(cell: str) -> float:
    return float(cell.rstrip("%"))


def stats(line: str) -> Stats:
    """A stat line's pairs. `count=3 curr=5(all same)` and `count=0` mean what they do not say."""
    found = {key: float(value) for key, value in _PAIR.findall(line)}
    if "curr" in found and "avg" not in found:
        same = dict.fromkeys(("first", "min", "max", "avg"), found["curr"])
        found = same | {"std": 0.0} | found
    return found


# -- a result -------------------------------------------------------------------------------------


def result(log: Log, model: str, setting: Setting) -> Result:
    """The record of a log; `stated` statistics, since a log has no samples."""
    made = Result(model, setting, notes=list(_notes(log)))
    made.init = None if log.init is None else log.init / 1e6
    first = log.first if log.first is not None else log.warmup.get("first")
    made.first = None if first is None else first / 1e6
    made.memory = {f"device.{what}": round(mb * 2**20) for what, mb in log.memory.items()}
    made.stated = _summary(log.inference)
    made.facts = _facts(log)
    if not log.is_complete:
        made.error = problem(log)
    return made


def problem(log: Log) -> str:
    """Why there is no result, in the log's own words."""
    said = "; ".join(filter(None, [log.crash, *log.errors])) or "the log ends before the result"
    return f"the benchmark gave no result: {said}"


def _summary(found: Stats) -> Summary | None:
    """What a log leaves out is taken for the average, which every log has."""
    if "avg" not in found:
        return None
    avg = found["avg"]
    middle = found.get("median", avg)
    return Summary(
        count=int(found.get("count", 0)),
        first=found.get("first", avg) / 1e6,
        mean=avg / 1e6,
        median=middle / 1e6,
        p5=found.get("p5", found.get("min", avg)) / 1e6,
        p95=found.get("p95", found.get("max", avg)) / 1e6,
        std=found.get("std", 0.0) / 1e6,
        min=found.get("min", avg) / 1e6,
        max=found.get("max", avg) / 1e6,
    )


def _notes(log: Log) -> Iterator[str]:
    yield from log.delegation
    if "avg" in log.inference and "median" not in log.inference:
        yield "this version of the tool prints no percentiles: the median is the average"
    yield from log.warnings


def _facts(log: Log) -> dict[str, Any]:
    rows = [
        {"type": o.type, "name": o.name, "avg_ms": o.avg_ms, "share": o.share / 100}
        for o in log.ops
    ]
    facts: dict[str, Any] = {"ops": rows} if rows else {}
    if log.options:
        facts["options_us"] = log.options
    if log.warmup:
        facts["warmup_us"] = log.warmup
    if log.parameters:
        facts["parameters"] = log.parameters
    if log.model_size_mb is not None:
        facts["model_size_mb"] = log.model_size_mb
    return facts

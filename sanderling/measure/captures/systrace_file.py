"""systrace: the text of ftrace, as it is or in a page of HTML."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping

from .timeline import Timeline, TimelineEvents

# `  worker-4242  ( 4200) [003] d..2  1234.567890: sched_switch: prev_comm=...`; the process in
# round brackets and the four or five flags may be absent, and a name may hold blanks and dashes.
LINE = re.compile(
    r"^\s*(?P<name>\S.*?)-(?P<thread>\d+)\s+(?:\(\s*(?P<process>\d+|-+)\)\s+)?"
    r"\[(?P<cpu>\d+)\]\s+(?:[\w.]{4,5}\s+)?(?P<at>\d+\.\d+):\s+(?P<event>\w+):\s?(?P<rest>.*)$"
)
NUMBER = re.compile(r"-?\d+")
CORES = re.compile(r"#P:(\d+)")
MARKS = ("tracing_mark_write", "print", "0")  # some kernels give the function's address: 0
WAKES = ("sched_waking", "sched_wakeup", "sched_wakeup_new")
LOOKED_AT = 1 << 16  # bytes of a page's head that is all script


def is_systrace(content: bytes) -> bool:
    if content.lstrip()[:14].lower().startswith((b"<!doctype html", b"<html")):
        return any(mark.encode() in content for mark in (*MARKS[:2], WAKES[0]))
    head = content[:LOOKED_AT].decode("utf-8", "replace")
    return "# tracer:" in head or any(LINE.match(line) for line in head.splitlines())


def read(content: bytes) -> Timeline:
    events = TimelineEvents("systrace")
    cores = 0
    for line in io.TextIOWrapper(io.BytesIO(content), "utf-8", "replace"):
        # Older pages hold the text as a string of their script.
        found = LINE.match(line.rstrip("\n").removesuffix("\\n\\"))
        if found is not None:
            cores = max(cores, int(found["cpu"]) + 1)
            _take(events, found)
        elif line.startswith("#") and (stated := CORES.search(line)) is not None:
            cores = max(cores, int(stated[1]))
    events.made.cores = cores
    return events.timeline()


def _take(events: TimelineEvents, found: re.Match[str]) -> None:
    at, thread, what = _nanoseconds(found["at"]), int(found["thread"]), found["event"]
    events.made.threads.setdefault(thread, found["name"])
    if (found["process"] or "").isdecimal():
        events.made.processes[thread] = int(found["process"])
    if what in MARKS:
        events.mark(at, thread, found["rest"].rpartition("tracing_mark_write: ")[2])
    elif what == "sched_switch":
        _switch(events, at, int(found["cpu"]), _facts(found["rest"]))
    elif what in WAKES and (woken := _number(_facts(found["rest"]), "pid")) is not None:
        events.wake(at, woken)


def _switch(events: TimelineEvents, at: int, cpu: int, facts: Mapping[str, str]) -> None:
    before, after = (_number(facts, f"{side}_pid") for side in ("prev", "next"))
    if before is not None and after is not None and "prev_state" in facts:
        events.switch(at, cpu, before, facts["prev_state"].startswith("R"), after)


def _facts(rest: str) -> dict[str, str]:
    """The words `key=value` of an event, by their keys."""
    pairs = (word.partition("=") for word in rest.split())
    return {key: value for key, _, value in pairs}


def _number(facts: Mapping[str, str], key: str) -> int | None:
    text = facts.get(key, "")
    return int(text) if NUMBER.fullmatch(text) else None


def _nanoseconds(seconds: str) -> int:
    """Without the rounding of floats: a phone that is up for days has many digits."""
    whole, _, part = seconds.partition(".")
    return int(whole) * 10**9 + int(part.ljust(9, "0")[:9])

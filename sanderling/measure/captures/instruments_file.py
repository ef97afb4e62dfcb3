"""Instruments: the signposts of a table that `xctrace export` wrote as XML.

xctrace export --input app.trace --xpath '/trace-toc/run/data/table[@schema="os-signpost"]'
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.etree import ElementTree

from .timeline import Section, Timeline

ROOT = b"<trace-query-result"
SUBSYSTEM = "org.tensorflow.lite"
LOOKED_AT = 4096
Cells = Mapping[str, list[ElementTree.Element]]  # of a row, by the kind of value
Key = tuple[int, str]


def is_export(content: bytes) -> bool:
    return ROOT in content[:LOOKED_AT]


def read(content: bytes) -> Timeline:
    try:
        root = ElementTree.fromstring(content)
    except (ElementTree.ParseError, LookupError) as error:  # LookupError: an unknown encoding
        raise ValueError(f"not XML ({error})") from error
    reader = _RowReader(root)
    for row in root.iter("row"):
        reader.take(row)
    reader.made.sections.sort(key=lambda s: (s.begin, -s.end))
    return reader.made


class _RowReader:
    """Values are written once and then referred to by number."""

    def __init__(self, root: ElementTree.Element) -> None:
        self.made = Timeline("Instruments")
        self.by_number = {e.get("id"): e for e in root.iter() if e.get("id")}
        self.open: dict[Key, tuple[int, str]] = {}

    def take(self, row: ElementTree.Element) -> None:
        cells: dict[str, list[ElementTree.Element]] = {}
        for cell in row:
            found = self._value(cell)
            cells.setdefault(found.tag, []).append(found)
        system = _text(cells, "subsystem")
        if system not in (SUBSYSTEM, ""):
            return
        thread = self._thread(cells)
        if "duration" in cells:  # a table of intervals
            begin = int(_text(cells, "start-time"))
            end = begin + int(cells["duration"][0].text or 0)
            self.made.sections.append(Section(thread, begin, end, _message(cells)))
        elif "event-time" in cells:
            self._moment(thread, cells)

    def _value(self, cell: ElementTree.Element) -> ElementTree.Element:
        return self.by_number[cell.get("ref")] if cell.get("ref") else cell

    def _moment(self, thread: int, cells: Cells) -> None:
        """A begin has the message, an end has only the signpost's number."""
        at, kind = int(_text(cells, "event-time")), _text(cells, "event-type")
        key = (thread, _text(cells, "os-signpost-identifier"))
        if kind == "Begin":
            self.open[key] = at, _message(cells)
        elif kind == "End" and key in self.open:
            begin, name = self.open.pop(key)
            self.made.sections.append(Section(thread, begin, at, name))

    def _thread(self, cells: Cells) -> int:
        if "thread" not in cells:
            return 0
        cell = cells["thread"][0]
        numbers = [self._value(e) for e in cell if e.tag == "tid"]
        number = int(numbers[0].text or 0) if numbers else 0
        said = cell.get("fmt", "")
        self.made.threads.setdefault(number, said.partition(" (")[0] or f"thread {number}")
        process = re.search(r"pid: (\d+)", said)
        self.made.processes[number] = int(process[1]) if process else number
        return number


def _text(cells: Cells, kind: str) -> str:
    """What a cell stands for: the exact value where there is one, else as it is shown."""
    if kind not in cells:
        return ""
    cell = cells[kind][0]
    return (cell.text or "").strip() or cell.get("fmt", "")


def _message(cells: Cells) -> str:
    shown = [c.get("fmt", "") or (c.text or "") for c in cells.get("os-log-metadata", ())]
    return next(filter(None, shown), _text(cells, "signpost-name"))

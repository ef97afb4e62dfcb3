"""Traces as files: Chrome's JSON, and Perfetto's protobuf. https://ui.perfetto.dev opens both.

On a track, slices nest or follow each other. What overlaps otherwise (sections of coroutines that
take turns on one thread) goes to a further track of the same thread.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError, MissingExtraError
from ..files import read_data
from ..spans import Args
from .trace_data import Count, Instant, Slice, Trace

SCHEMA = "sanderling.trace/1"
PROCESS = "sanderling"
WRITER = "`sanderling trace -o FILE.json`"  # of the files that `read` takes
Encoder = Callable[[Trace], bytes]
Lane = tuple[int, int]  # thread, and which of its tracks


def encode(trace: Trace, path: str | os.PathLike[str]) -> bytes:
    return encoder_for(path)(trace)


def encoder_for(path: str | os.PathLike[str]) -> Encoder:
    """The format that a name's ending stands for; raises if it cannot be written here."""
    ending = Path(path).suffix.lower()
    if ending not in ENCODERS:
        raise InputError(
            f"'{ending or Path(path).name}' is not an ending of traces",
            where=os.fspath(path),
            fix=f"end the name in one of {', '.join(ENCODERS)}",
        )
    if ENCODERS[ending] is to_perfetto:
        perfetto_messages()
    return ENCODERS[ending]


def lanes(slices: Iterable[Slice]) -> dict[Lane, list[Slice]]:
    """Slices by track, so that on each they nest; given and returned in the order of time."""
    found: dict[Lane, list[Slice]] = {}
    ends: dict[Lane, list[int]] = {}
    for piece in slices:
        number = 0
        while not _fits(ends.setdefault((piece.thread, number), []), piece):
            number += 1
        ends[piece.thread, number].append(piece.end)
        found.setdefault((piece.thread, number), []).append(piece)
    return found


def _fits(ends: list[int], piece: Slice) -> bool:
    """It lies within the innermost slice that is still open on this track."""
    while ends and ends[-1] <= piece.begin:
        ends.pop()
    return not ends or piece.end <= ends[-1]


def lane_name(trace: Trace, lane: Lane) -> str:
    name = trace.threads.get(lane[0], f"thread {lane[0]}")
    return f"{name} ({lane[1] + 1})" if lane[1] else name


def plain(value: object) -> str | int | float | bool:
    """What a trace's arguments can hold."""
    if isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, list | tuple):
        return ", ".join(str(v) for v in value)
    return str(value)


# -- Chrome's JSON --------------------------------------------------------------------------------


def to_chrome(trace: Trace) -> bytes:
    """One event a line. Times are microseconds from the beginning of the recording."""
    head = {"schema": SCHEMA, "about": trace.about, "begin": trace.begin, "end": trace.end}
    lines = ",\n".join(json.dumps(e, separators=(",", ":")) for e in _chrome_events(trace))
    return f'{{"otherData":{json.dumps(head)},\n"traceEvents":[\n{lines}\n]}}\n'.encode()


def _chrome_events(trace: Trace) -> Iterator[dict[str, Any]]:
    process = trace.about["process"]
    tracks = lanes(trace.slices)
    number = {(thread, 0): thread for thread in trace.threads}
    # A thread's further tracks need numbers that no thread has.
    number |= {lane: -i for i, lane in enumerate(tracks) if lane not in number}
    yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": PROCESS}}
    for lane, thread in number.items():
        yield {
            "ph": "M",
            "pid": process,
            "tid": thread,
            "name": "thread_name",
            "args": {"name": lane_name(trace, lane)},
        }
    for lane, slices in tracks.items():
        for s in slices:
            yield {
                "ph": "X",
                "pid": process,
                "tid": number[lane],
                "name": s.name,
                "cat": s.kind,
                "ts": (s.begin - trace.begin) / 1e3,
                "dur": (s.end - s.begin) / 1e3,
                "args": _plain_args(s.args),
            }
    for i in trace.instants:
        yield {
            "ph": "i",
            "pid": process,
            "tid": i.thread,
            "name": i.name,
            "cat": i.kind,
            "s": "t",
            "ts": (i.at - trace.begin) / 1e3,
            "args": _plain_args(i.args),
        }
    for c in trace.counts:
        yield {
            "ph": "C",
            "pid": process,
            "name": c.name,
            "ts": (c.at - trace.begin) / 1e3,
            "args": {"value": c.value},
        }


def _plain_args(args: Args) -> dict[str, str | int | float | bool]:
    return {name: plain(value) for name, value in args.items()}


def read(path: str | os.PathLike[str], fix: str = f"give what {WRITER} wrote") -> Trace:
    """A trace that was saved as JSON. fix: what else the caller reads, for the error."""
    content = read_data(path, "the trace", fix)
    try:
        head = content["otherData"]
        if head["schema"] != SCHEMA:
            raise ValueError(f"its schema is {head['schema']}")
        return _from_chrome(content["traceEvents"], head)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(
            f"not a trace that {WRITER} wrote: {why}", where=os.fspath(path), fix=fix
        ) from error


def _from_chrome(events: Sequence[Args], head: Args) -> Trace:
    trace = Trace(head["about"], begin=head["begin"], end=head["end"])

    def ns(microseconds: float) -> int:
        return round(microseconds * 1e3)

    for e in events:
        at = trace.begin + ns(e.get("ts", 0))
        if e["ph"] == "X":
            end = at + ns(e["dur"])
            trace.slices.append(Slice(e["tid"], at, end, e["name"], e["cat"], e["args"]))
        elif e["ph"] == "i":
            trace.instants.append(Instant(e["tid"], at, e["name"], e["cat"], e["args"]))
        elif e["ph"] == "C":
            trace.counts.append(Count(at, e["name"], e["args"]["value"]))
        elif e["name"] == "thread_name":
            trace.threads[e["tid"]] = e["args"]["name"]
    trace.slices.sort(key=lambda s: (s.begin, -s.end))
    return trace


# -- Perfetto's protobuf --------------------------------------------------------------------------

# Numbers of perfetto/protos: flags of a packet, types of an event, and the system's clocks.
_CLEARED, _NEEDS_STATE = 1, 2
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_CLOCKS = {"realtime": 1, "monotonic": 3, "boottime": 6}
_SEQUENCE = 1


def perfetto_messages(doing: str = "writing Perfetto's format (.json works without)") -> Any:
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2
    except ImportError as error:
        raise MissingExtraError("perfetto", "trace", doing) from error
    return perfetto_trace_pb2


def to_perfetto(trace: Trace) -> bytes:
    writer = _PerfettoWriter(trace, perfetto_messages().Trace())
    writer.write()
    return bytes(writer.message.SerializeToString())


class _PerfettoWriter:
    """Packets of one sequence: clocks, tracks, then events in the order of time."""

    def __init__(self, trace: Trace, message: Any) -> None:
        self.trace, self.message = trace, message
        self.tracks: dict[object, int] = {}
        self.names: dict[tuple[str, str], int] = {}

    def write(self) -> None:
        self._first_packet()
        self._descriptor("process", 0)
        for thread in self.trace.threads:
            self._descriptor((thread, 0), 1, lane_name(self.trace, (thread, 0)), thread)
        by_lane = lanes(self.trace.slices)
        for lane in by_lane:
            if lane not in self.tracks:
                self._descriptor(lane, 1, lane_name(self.trace, lane))
        for name in dict.fromkeys(c.name for c in self.trace.counts):
            self._descriptor(name, 2, name)
        events = [e for lane, slices in by_lane.items() for e in self._borders(lane, slices)]
        events += [(i.at, (i.thread, 0), _INSTANT, i) for i in self.trace.instants]
        events += [(c.at, c.name, _COUNTER, c) for c in self.trace.counts]
        # The order on each track is right already, and sorting keeps it.
        for event in sorted(events, key=lambda e: e[0]):
            self._event(*event)

    def _packet(self, flags: int = _NEEDS_STATE) -> Any:
        packet = self.message.packet.add()
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.sequence_flags = flags
        return packet

    def _first_packet(self) -> None:
        packet = self._packet(_CLEARED)
        packet.trace_packet_defaults.timestamp_clock_id = _CLOCKS["monotonic"]
        for name, at in self.trace.about["clocks"].items():
            packet.clock_snapshot.clocks.add(clock_id=_CLOCKS[name], timestamp=at)
        packet.clock_snapshot.primary_trace_clock = _CLOCKS["monotonic"]

    def _descriptor(
        self, key: object, kind: int, name: str = "", thread: int | None = None
    ) -> None:
        """kind: 0 the process, 1 a thread's track, 2 a counter."""
        self.tracks[key] = number = len(self.tracks) + 1
        made = self._packet().track_descriptor
        made.uuid = number
        if kind == 0:
            made.process.pid = self.trace.about["process"]
            made.process.process_name = PROCESS
            made.process.cmdline.append(self.trace.about["command"])
            return
        made.parent_uuid = self.tracks["process"]
        if thread is not None:
            made.thread.pid, made.thread.tid = self.trace.about["process"], thread
            made.thread.thread_name = name
        else:
            made.name = name
        if kind == 2:
            made.counter.unit_multiplier = 1

    def _borders(self, lane: Lane, slices: Sequence[Slice]) -> Iterator[tuple[Any, ...]]:
        """Begins and ends in order: whatever ends before the next begins, ends first."""
        open_: list[int] = []
        for piece in slices:
            while open_ and open_[-1] <= piece.begin:
                yield open_.pop(), lane, _END, None
            yield piece.begin, lane, _BEGIN, piece
            open_.append(piece.end)
        while open_:
            yield open_.pop(), lane, _END, None

    def _event(self, at: int, track: object, kind: int, what: Any) -> None:
        packet = self._packet()
        packet.timestamp = at
        event = packet.track_event
        event.type, event.track_uuid = kind, self.tracks[track]
        if kind == _COUNTER:
            event.double_counter_value = what.value
        elif what is not None:
            event.name_iid = self._interned(packet, "event_names", what.name)
            event.category_iids.append(self._interned(packet, "event_categories", what.kind))
            for name, value in what.args.items():
                self._annotate(packet, event.debug_annotations.add(), name, plain(value))

    def _interned(self, packet: Any, table: str, text: str) -> int:
        """The number that stands for a text from its first use on."""
        found = self.names.get((table, text))
        if found is None:
            found = self.names[table, text] = len(self.names) + 1
            getattr(packet.interned_data, table).add(iid=found, name=text)
        return found

    def _annotate(self, packet: Any, made: Any, name: str, value: str | int | float) -> None:
        made.name_iid = self._interned(packet, "debug_annotation_names", name)
        if isinstance(value, bool):
            made.bool_value = value
        elif isinstance(value, int):
            made.int_value = value
        elif isinstance(value, float):
            made.double_value = value
        else:
            made.string_value = value


ENCODERS: dict[str, Encoder] = {
    ".json": to_chrome,
    ".perfetto-trace": to_perfetto,
    ".pftrace": to_perfetto,
    ".pb": to_perfetto,
}

"""Perfetto's protobuf: the kernel's events (Android's sections among them) and track events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from ...runtime.tracefile import perfetto_messages
from .timeline import Timeline, TimelineEvents
from .unpacked import Unpacker

PACKET = b"\x0a"  # field 1, a message: every file begins with one
BOOT = 6  # the clock of the kernel's events
OF_SEQUENCE = 64  # from here on a clock's number means something in its own sequence only
BEGIN, END = 1, 2
LOST_STATE = 1  # flag of a packet: forget the sequence's numbers


def is_perfetto(content: bytes) -> bool:
    return content.startswith(PACKET)


def read(content: bytes) -> Timeline:
    messages = perfetto_messages("reading Perfetto's format")
    reader = _PacketReader()
    for packet in _packets(messages, content):
        reader.take(packet)
    return reader.timeline()


def _packets(messages: Any, content: bytes) -> Iterator[Any]:
    """Compressed packets hold packets that are not compressed again."""
    unpacker = Unpacker()
    for packet in _parsed(messages, content).packet:
        if packet.compressed_packets:
            yield from _parsed(messages, unpacker.zlib(packet.compressed_packets)).packet
        else:
            yield packet


def _parsed(messages: Any, content: bytes) -> Any:
    trace = messages.Trace()
    try:
        trace.ParseFromString(content)
    except Exception as error:  # of the package protobuf, which need not be there otherwise
        raise ValueError(f"not Perfetto's protobuf ({error})") from error
    return trace


class _PacketReader:
    def __init__(self) -> None:
        self.events = TimelineEvents("Perfetto")
        self.clocks = _Clocks()
        self.cpus: set[int] = set()
        self.on_cpu: dict[int, int] = {}  # the last thread of each processor
        self.tracks: dict[int, int] = {}  # threads by the track's number
        self.usual: dict[int, int] = {}  # the track of a sequence's events that name none
        self.names: dict[int, dict[int, str]] = defaultdict(dict)  # by sequence and number

    def timeline(self) -> Timeline:
        made = self.events.made
        made.cores = max(made.cores, len(self.cpus))
        return self.events.timeline()

    def take(self, packet: Any) -> None:
        sequence = packet.trusted_packet_sequence_id
        if packet.sequence_flags & LOST_STATE:
            self.names[sequence].clear()
        if packet.HasField("trace_packet_defaults"):
            self._defaults(packet.trace_packet_defaults, sequence)
        for row in packet.interned_data.event_names:
            self.names[sequence][row.iid] = row.name
        take = {
            "clock_snapshot": lambda: self.clocks.snapshot(packet.clock_snapshot, sequence),
            "ftrace_events": lambda: self._kernel(packet.ftrace_events),
            "process_tree": lambda: self._processes(packet.process_tree),
            "cpu_info": lambda: self._cpu_info(packet.cpu_info),
            "track_descriptor": lambda: self._track(packet.track_descriptor),
            "track_event": lambda: self._event(packet, sequence),
        }.get(packet.WhichOneof("data") or "")
        if take is not None:
            take()

    # -- the kernel's events ----------------------------------------------------------------------

    def _kernel(self, bundle: Any) -> None:
        self.cpus.add(bundle.cpu)
        for event in bundle.event:
            kind = event.WhichOneof("event")
            if kind == "print":
                self.events.mark(event.timestamp, event.pid, event.print.buf)
            elif kind == "sched_switch":
                self._switch(event.timestamp, bundle.cpu, event.sched_switch)
            elif kind in ("sched_waking", "sched_wakeup"):
                self.events.wake(event.timestamp, getattr(event, kind).pid)
        if bundle.HasField("compact_sched"):
            self._compact(bundle.cpu, bundle.compact_sched)

    def _switch(self, at: int, cpu: int, switch: Any) -> None:
        self._name(switch.prev_pid, switch.prev_comm)
        self._name(switch.next_pid, switch.next_comm)
        # The state of a thread that could go on is 0.
        ready = switch.prev_state == 0
        self.events.switch(at, cpu, switch.prev_pid, ready, switch.next_pid)

    def _compact(self, cpu: int, rows: Any) -> None:
        """Columns instead of messages; times are differences, and who ran before is the thread
        that the row before brought."""
        before = self.on_cpu.get(cpu, 0)
        columns = (
            accumulate(rows.switch_timestamp),
            rows.switch_prev_state,
            rows.switch_next_pid,
            rows.switch_next_comm_index,
        )
        for at, state, thread, name in zip(*columns, strict=True):
            self._name(thread, rows.intern_table[name])
            self.events.switch(at, cpu, before, state == 0, thread)
            self.on_cpu[cpu] = before = thread
        for at, thread in zip(accumulate(rows.waking_timestamp), rows.waking_pid, strict=True):
            self.events.wake(at, thread)

    def _name(self, thread: int, name: str) -> None:
        if name:
            self.events.made.threads.setdefault(thread, name)

    # -- who is who -------------------------------------------------------------------------------

    def _processes(self, tree: Any) -> None:
        made = self.events.made
        for process in tree.processes:
            made.processes[process.pid] = process.pid
            if process.cmdline:
                made.threads[process.pid] = process.cmdline[0]
        for thread in tree.threads:
            made.processes[thread.tid] = thread.tgid
            self._name(thread.tid, thread.name)

    def _cpu_info(self, info: Any) -> None:
        self.events.made.cores = len(info.cpus)

    # -- track events -----------------------------------------------------------------------------

    def _defaults(self, defaults: Any, sequence: int) -> None:
        if defaults.HasField("timestamp_clock_id"):
            self.clocks.usual[sequence] = defaults.timestamp_clock_id
        if defaults.HasField("track_event_defaults"):
            self.usual[sequence] = defaults.track_event_defaults.track_uuid

    def _track(self, track: Any) -> None:
        if track.HasField("thread"):
            self.tracks[track.uuid] = track.thread.tid
            self.events.made.processes[track.thread.tid] = track.thread.pid
            self._name(track.thread.tid, track.thread.thread_name)

    def _event(self, packet: Any, sequence: int) -> None:
        event = packet.track_event
        at = self.clocks.time(packet, sequence)  # also of events that are passed over: it counts on
        track = event.track_uuid or self.usual.get(sequence, 0)
        thread = self.tracks.get(track)
        if thread is None:
            return
        if event.type == BEGIN:
            name = event.name or self.names[sequence].get(event.name_iid, "")
            self.events.begin(at, thread, name, track)
        elif event.type == END:
            self.events.end(at, thread, track)


class _Clocks:
    """Times of track events on the clock of the kernel's."""

    def __init__(self) -> None:
        self.usual: dict[int, int] = {}  # the clock of a sequence's packets that name none
        # A moment on both clocks, nanoseconds a tick, and whether times are differences.
        self.known: dict[tuple[int, int], tuple[int, int, int, bool]] = {}

    def snapshot(self, found: Any, sequence: int) -> None:
        moments = {c.clock_id: c for c in found.clocks}
        if BOOT not in moments:
            return
        for number, clock in moments.items():
            key = (sequence if number >= OF_SEQUENCE else 0, number)
            self.known[key] = (
                clock.timestamp,
                moments[BOOT].timestamp,
                clock.unit_multiplier_ns or 1,
                clock.is_incremental,
            )

    def time(self, packet: Any, sequence: int) -> int:
        number = packet.timestamp_clock_id or self.usual.get(sequence, BOOT)
        key = (sequence if number >= OF_SEQUENCE else 0, number)
        at = int(packet.timestamp)
        if key not in self.known:
            return at
        theirs, boot, unit, counts_on = self.known[key]
        if not counts_on:
            return boot + (at - theirs) * unit
        self.known[key] = (theirs, boot + at * unit, unit, True)
        return boot + at * unit

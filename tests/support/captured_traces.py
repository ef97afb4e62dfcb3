"""Captures as Perfetto, systrace and Instruments write them, of one made-up story.

A story is a list of events in the order of time: (thread, begin, end, name) sections, and
(cpu, thread, begin, end) stretches in which a thread has a processor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.sax.saxutils import quoteattr

import pytest

PROCESS = 4200
MS = 1_000_000
GAP = 1000  # nanoseconds between two events of a thread: systrace tells microseconds
Steps = Sequence[tuple[str, float]]  # names and milliseconds


@dataclass
class Story:
    """What happened, in nanoseconds."""

    sections: list[tuple[int, int, int, str]] = field(default_factory=list)
    running: list[tuple[int, int, int, int]] = field(default_factory=list)
    ready: list[tuple[int, int]] = field(default_factory=list)  # moment, thread that is woken
    names: dict[int, str] = field(default_factory=dict)
    cores: int = 4

    def invoke(self, thread: int, at: int, steps: Steps) -> int:
        """One run; returns its end."""
        begin = at
        place = len(self.sections)
        for name, milliseconds in steps:
            at += GAP
            end = at + round(milliseconds * MS)
            self.sections.append((thread, at, end, name))
            at = end
        at += GAP
        self.sections.insert(place, (thread, begin, at, "Invoke@0/0"))
        return at

    def marks(self) -> Iterator[tuple[int, int, str]]:
        """Moments, threads and what they write; of two at one moment the end of the earlier."""
        events = []
        for order, (thread, begin, end, name) in enumerate(self.sections):
            events.append((begin, 1, order, thread, f"B|{PROCESS}|{name}"))
            events.append((end, 0, -order, thread, f"E|{PROCESS}"))
        yield from ((at, thread, text) for at, _, _, thread, text in sorted(events))

    def switches(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Moment, processor, thread before, its state (0: it would go on), thread after."""
        by_cpu: dict[int, list[tuple[int, int, int]]] = {}
        for cpu, thread, begin, end in sorted(self.running, key=lambda r: r[2]):
            by_cpu.setdefault(cpu, []).append((begin, end, thread))
        for cpu, stretches in by_cpu.items():
            last = 0
            for place, (begin, end, thread) in enumerate(stretches):
                if last != thread:
                    yield begin, cpu, last, 0 if last else 1, thread
                next_ = stretches[place + 1] if place + 1 < len(stretches) else None
                last = thread
                if next_ is None or next_[0] > end:
                    yield end, cpu, thread, 1, 0
                    last = 0


def gpu_story() -> Story:
    """Three runs on one thread: the GPU takes two parts, three stretches stay on the CPU."""
    story = Story(names={4242: "inference"})
    story.sections.append((4242, 1 * MS, 3 * MS, "ModifyGraphWithDelegate@0/0"))
    at = 4 * MS
    for _ in range(3):
        begin = at
        place = len(story.sections)
        at = story.invoke(
            4242,
            at + 1000,
            [
                ("CONV_2D@0/0", 1),
                ("TfLiteGpuDelegateV2@66/0", 5),
                ("GATHER_ND@12/0", 3),
                ("TfLiteGpuDelegateV2@67/0", 2),
                ("SOFTMAX@30/0", 0.5),
            ],
        )
        story.sections.insert(place, (4242, begin, at + 1000, "recognizeImage"))
        at += MS
    return story


def crowded_story(workers: int = 4, cores: int = 2) -> Story:
    """Two runs with more threads than cores: the workers take turns on the cores they have."""
    story = Story(cores=cores, names={4242: "inference", PROCESS: "com.example.app"})
    at = 2 * MS
    for _ in range(2):
        begin = at
        at = story.invoke(4242, begin, [("CONV_2D@0/0", 8), ("DEPTHWISE_CONV_2D@1/0", 8)])
        threads = [4242 + i for i in range(workers)]
        story.names |= {t: f"worker {t}" for t in threads[1:]}
        turn = (at - begin) * cores // workers
        for place, thread in enumerate(threads):
            start = begin + place // cores * turn
            story.ready.append((begin, thread))
            story.running.append((place % cores, thread, start, start + turn))
        at += MS
    return story


# -- Perfetto -------------------------------------------------------------------------------------


def messages() -> Any:
    return pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")


def perfetto(story: Story, compact: bool = False) -> bytes:
    """What the device's `perfetto` writes: bundles of the kernel's events, and process trees."""
    builder = pytest.importorskip("perfetto.trace_builder.proto_builder").TraceProtoBuilder()
    tree = builder.add_packet()
    tree.trusted_packet_sequence_id = 1
    tree.process_tree.processes.add(pid=PROCESS, cmdline=["com.example.app"])
    for thread, name in story.names.items():
        tree.process_tree.threads.add(tid=thread, tgid=PROCESS, name=name)
    bundles: dict[int, Any] = {}
    for cpu in range(story.cores):
        packet = builder.add_packet()
        packet.trusted_packet_sequence_id = 1
        bundles[cpu] = packet.ftrace_events
        bundles[cpu].cpu = cpu
    for place, (at, thread, text) in enumerate(story.marks()):
        event = bundles[place % story.cores].event.add(timestamp=at, pid=thread)
        event.print.buf = f"{text}\n"
    for at, thread in story.ready:
        bundles[0].event.add(timestamp=at, pid=0).sched_waking.pid = thread
    _switch(story, bundles, compact)
    return bytes(builder.serialize())


def _switch(story: Story, bundles: dict[int, Any], compact: bool) -> None:
    last: dict[int, int] = {}
    for at, cpu, before, state, after in story.switches():
        if not compact:
            made = bundles[cpu].event.add(timestamp=at, pid=before).sched_switch
            made.prev_pid, made.prev_state, made.next_pid = before, state, after
            continue
        rows = bundles[cpu].compact_sched
        if not rows.intern_table:
            rows.intern_table.append("a name")
        rows.switch_timestamp.append(at - last.get(cpu, 0))
        rows.switch_prev_state.append(state)
        rows.switch_next_pid.append(after)
        rows.switch_next_prio.append(120)
        rows.switch_next_comm_index.append(0)
        last[cpu] = at


# -- systrace -------------------------------------------------------------------------------------


def systrace(story: Story, with_process: bool = True) -> str:
    lines = [(at, 0, thread, f"tracing_mark_write: {text}") for at, thread, text in story.marks()]
    lines += [
        (at, 0, 0, f"sched_waking: comm=w pid={thread} prio=120 target_cpu=000")
        for at, thread in story.ready
    ]
    for at, cpu, before, state, after in story.switches():
        text = (
            f"sched_switch: prev_comm=a prev_pid={before} prev_prio=120 "
            f"prev_state={'S' if state else 'R+'} ==> next_comm=b next_pid={after} next_prio=120"
        )
        lines.append((at, cpu, before, text))
    rows = [f"# tracer: nop\n#\n# entries-in-buffer/entries-written: 9/9   #P:{story.cores}\n#"]
    for at, cpu, thread, text in sorted(lines, key=lambda line: line[0]):
        name = story.names.get(thread, "<idle>")[:15]
        process = f" ({PROCESS if thread else '-----':>5})" if with_process else ""
        rows.append(
            f"{name:>16}-{thread:<5}{process} [{cpu:03}] d..3 "
            f"{at // 10**9}.{at % 10**9 // 1000:06}: {text}"
        )
    return "\n".join(rows) + "\n"


def page(text: str) -> str:
    """The HTML around it."""
    return (
        "<!DOCTYPE html>\n<html><head><title>Android System Trace</title></head><body>\n"
        "<!-- BEGIN TRACE -->\n"
        f'  <script class="trace-data" type="application/text">\n{text}\n  </script>\n'
        "<!-- END TRACE -->\n</body></html>\n"
    )


# -- Instruments ----------------------------------------------------------------------------------


class _Cells:
    """Values are written once and then referred to by number."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[str, str], int] = {}

    def __call__(self, tag: str, shown: str, inner: str = "") -> str:
        known = self.numbers.get((tag, shown))
        if known is not None:
            return f'<{tag} ref="{known}"/>'
        number = self.numbers[tag, shown] = len(self.numbers) + 1
        return f'<{tag} id="{number}" fmt={quoteattr(shown)}>{inner or shown}</{tag}>'

    def thread(self, number: int, name: str) -> str:
        tid = self("tid", hex(number), str(number))
        process = self("process", f"App ({PROCESS})", f"<pid fmt='{PROCESS}'>{PROCESS}</pid>")
        shown = f"{name} {hex(number)} (App, pid: {PROCESS})"
        return self("thread", shown, tid + process)


def _kind(name: str) -> str:
    is_default = name.startswith(("Invoke", "AllocateTensors", "ModifyGraph"))
    return "default" if is_default else "operator invoke"


def instruments(story: Story) -> str:
    """A table of signposts: begins with messages, ends with numbers only."""
    cell = _Cells()
    events = []
    for number, (thread, begin, end, name) in enumerate(story.sections):
        events.append((begin, 1, number, thread, name, "Begin"))
        events.append((end, 0, -number, thread, name, "End"))
    rows = ["<row>" + "".join([
        cell("event-time", "00:00.000", "0"), cell.thread(1, "Main Thread"),
        cell("event-type", "Event"), cell("os-signpost-identifier", "99"),
        cell("signpost-name", "other"), cell("subsystem", "com.example.other"),
        cell("os-log-metadata", "CONV_2D@99/0"),
    ]) + "</row>"]  # fmt: skip
    for at, _, order, thread, name, kind in sorted(events):
        message = cell("os-log-metadata", name) if kind == "Begin" else "<sentinel/>"
        rows.append(
            "<row>"
            + "".join(
                [
                    f'<event-time id="t{at}{kind}{order}" fmt="x">{at}</event-time>',
                    cell.thread(thread, story.names.get(thread, "Thread")),
                    cell("event-type", kind),
                    cell("os-signpost-identifier", str(abs(order) + 1000)),
                    cell("signpost-name", _kind(name)),
                    cell("subsystem", "org.tensorflow.lite"),
                    cell("category", "Tracing"),
                    message,
                ]
            )
            + "</row>"
        )
    return _export("os-signpost", rows)


def instruments_intervals(story: Story) -> str:
    """The other table, of intervals."""
    cell = _Cells()
    rows = [
        "<row>"
        + "".join(
            [
                f"<start-time>{begin}</start-time><duration>{end - begin}</duration>",
                cell("signpost-name", _kind(name)),
                cell("category", "Tracing"),
                cell("subsystem", "org.tensorflow.lite"),
                cell.thread(thread, "Thread"),
                cell("os-log-metadata", name),
            ]
        )
        + "</row>"
        for thread, begin, end, name in story.sections
    ]
    return _export("os-signpost-interval", rows)


def _export(schema: str, rows: Sequence[str]) -> str:
    body = "\n".join(rows)
    return (
        '<?xml version="1.0"?>\n<trace-query-result>\n'
        f"<node xpath='//trace-toc[1]/run[1]/data[1]/table[1]'><schema name=\"{schema}\"/>\n"
        f"{body}\n</node>\n</trace-query-result>\n"
    )

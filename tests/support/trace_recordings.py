"""What the tests of tracing share: a recording, and how to look at it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sanderling
from sanderling import load, save, trace
from sanderling.ir import DType, Graph, Model
from sanderling.runtime.trace_data import Slice, Trace
from sanderling.spans import tape

from .conv_stacks import feed, stack
from .every_worker import share_everything

ROOT = Path(__file__).parents[2]
DIGITS = str(files("sanderling") / "data" / "digits_int8.tflite")
WORKERS = 2


@pytest.fixture(scope="module", autouse=True)
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of its own, and workers for small models too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SANDERLING_CACHE", str(tmp_path_factory.mktemp("cache")))
        share_everything(patch)
        yield
    assert tape.recorder is None, "a recording was left on"


@pytest.fixture(scope="module", name="recorded")
def recorded_runs(surroundings: None, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """From the file to three runs on two workers, in a section."""
    path = tmp_path_factory.mktemp("model") / "model.tflite"
    save(stack(), path)
    with trace.record() as made:
        session = load(path).compile(["cpu"], threads=WORKERS)
        for _ in range(3):
            with trace.section("recognise"), trace.section("inference", {"frame": 7}):
                session.run({"x": feed(stack())})
        trace.counter("frames", 3)
        trace.mark("last frame")
    return made


def names_in(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def length(found: Slice) -> int:
    return found.end - found.begin


def inside(inner: Slice, outer: Slice) -> bool:
    return outer.begin <= inner.begin and inner.end <= outer.end


def runs_of(made: Trace) -> list[dict[int, list[Slice]]]:
    """For each run: the slices of ops and barriers by thread, in order."""
    found = []
    for run in made.of_kind("run"):
        mine: dict[int, list[Slice]] = defaultdict(list)
        for s in made.of_kind("op", "barrier"):
            if inside(s, run):
                mine[s.thread].append(s)
        found.append(mine)
    return found


def mixed() -> Model:
    """ADD, an op that only the reference runs, MUL."""
    sanderling.register_custom(
        "TraceTest", evaluate=lambda op, inputs: inputs[0] + 1, infer=lambda op, specs: specs[0]
    )
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (1, 256))
    for name in ("ADD", "custom.TraceTest", "MUL"):
        y = graph.tensor(name, DType.FLOAT32, (1, 256))
        graph.add(name, [x] if "." in name else [x, x], [y])
        x = y
    graph.outputs = [x]
    return Model([graph])


def trace_mixed() -> Trace:
    with trace.record() as made:
        session = mixed().compile(["cpu"])
        for _ in range(3):
            session(np.ones((1, 256), np.float32))
    return made


def check_perfetto(raw: bytes) -> Any:
    """Read by Perfetto's own schema, and hold it to the rules of its format: one sequence whose
    state is set up first, numbers that stand for something, and on each track begins and ends in
    pairs, in the order of time."""
    pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    message = pb.Trace()
    assert message.ParseFromString(raw) == len(raw)
    assert message.IsInitialized()
    packets = list(message.packet)
    assert {p.trusted_packet_sequence_id for p in packets} == {1}
    assert packets[0].sequence_flags == pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    assert packets[0].trace_packet_defaults.timestamp_clock_id == 3
    clocks = {c.clock_id for c in packets[0].clock_snapshot.clocks}
    assert {3, 6} <= clocks and packets[0].clock_snapshot.primary_trace_clock in clocks
    assert {p.sequence_flags for p in packets[1:]} == {pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE}
    tracks: dict[int, Any] = {}
    texts: dict[str, dict[int, str]] = defaultdict(dict)
    depth: Counter[int] = Counter()
    last = 0
    names = []
    for packet in packets:
        for table in ("event_names", "event_categories", "debug_annotation_names"):
            for row in getattr(packet.interned_data, table):
                assert row.iid not in texts[table]
                texts[table][row.iid] = row.name
        if packet.HasField("track_descriptor"):
            made = packet.track_descriptor
            assert made.uuid not in tracks and (not made.parent_uuid or made.parent_uuid in tracks)
            tracks[made.uuid] = made
        if packet.HasField("track_event"):
            event = packet.track_event
            assert packet.timestamp >= last and event.track_uuid in tracks
            last = packet.timestamp
            assert all(
                a.name_iid in texts["debug_annotation_names"] for a in event.debug_annotations
            )
            assert all(c in texts["event_categories"] for c in event.category_iids)
            if event.type == event.TYPE_SLICE_BEGIN:
                names.append(texts["event_names"][event.name_iid])
                depth[event.track_uuid] += 1
            elif event.type == event.TYPE_SLICE_END:
                depth[event.track_uuid] -= 1
                assert depth[event.track_uuid] >= 0
            elif event.type == event.TYPE_COUNTER:
                assert tracks[event.track_uuid].HasField("counter")
            else:
                assert event.type == event.TYPE_INSTANT and event.name_iid in texts["event_names"]
    assert not any(depth.values())
    return names, tracks


def trace_about() -> dict[str, Any]:
    return {"process": 1, "command": "x", "cores": 2, "clocks": {"monotonic": 5, "boottime": 9}}

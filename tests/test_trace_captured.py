"""Captures of TensorFlow Lite's own events by other tools: read, and what they show."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sanderling.cli.app import app
from sanderling.errors import InputError
from sanderling.measure.captures import read_trace
from sanderling.measure.model_trace import op_times, summary
from sanderling.measure.trace_insights import insights
from sanderling.runtime.trace_data import Trace

from .support import captured_traces as captured
from .support.captured_traces import GAP, MS, Story, crowded_story, gpu_story
from .support.perfetto_engine import engine

GPU = "TfLiteGpuDelegateV2"
# The same story as each tool writes it.
FORMS: dict[str, Any] = {
    "perfetto": captured.perfetto,
    "perfetto, compact": lambda story: captured.perfetto(story, compact=True),
    "systrace": captured.systrace,
    "systrace without processes": lambda story: captured.systrace(story, with_process=False),
    "systrace page": lambda story: captured.page(captured.systrace(story)),
    "instruments": captured.instruments,
    "instruments, intervals": captured.instruments_intervals,
}
# A line that a search from each of its words would take a day for.
SWITCHES = b" w-1 ( 1) [001] d..2 1.0: sched_switch: " + b"prev_pid=1 " * 20_000 + b"\n"
# Those that tell which threads are of one process, and when they ran.
SCHEDULED = ["perfetto", "perfetto, compact", "systrace", "systrace page"]


def capture(story: Story, form: str, folder: Path) -> Path:
    made = FORMS[form](story)
    path = folder / "captured"
    path.write_bytes(made if isinstance(made, bytes) else made.encode())
    return path


def kinds(made: Trace) -> dict[str, str]:
    return {i.kind: str(i) for i in insights(made)}


@pytest.mark.parametrize("form", FORMS)
def test_ops_and_the_turns_of_gpu_and_cpu(form: str, tmp_path: Path) -> None:
    """The guide's insight: ops that are not delegated run on the CPU."""
    made = read_trace(capture(gpu_story(), form, tmp_path))
    assert summary(made)["runs"] == 3
    assert summary(made)["later_run_s"] == pytest.approx(0.0115, rel=1e-3)
    rows = {(o["op"], o["node"]): o for o in op_times(made)}
    assert rows["GATHER_ND", 12]["seconds"] == pytest.approx(0.003)
    assert rows[GPU, 66]["share"] == pytest.approx(5 / 11.5, rel=1e-3)
    assert rows["CONV_2D", 0]["delegate"] == "cpu" and rows[GPU, 67]["delegate"] == GPU
    found = kinds(made)
    assert found.keys() == {"fallback"}
    assert f"{GPU} and the CPU take turns: 2 and 3 parts in a run" in found["fallback"]
    assert "on the CPU run GATHER_ND (node 12), CONV_2D (node 0)" in found["fallback"]
    assert "39 % of a run" in found["fallback"] and "inspect MODEL --delegate gpu" in str(found)
    assert "recognizeImage" in summary(made)["sections_s"]


@pytest.mark.parametrize("form", SCHEDULED)
def test_more_threads_than_cores(form: str, tmp_path: Path) -> None:
    """The guide's other insight, from who ran where and who waited."""
    found = kinds(read_trace(capture(crowded_story(4, 2), form, tmp_path)))
    assert "4 threads compute at once, 2 cores are there for them" in found["threads"]
    assert "wait for a core for 25 % of their time" in found["no core"]
    fits = read_trace(capture(crowded_story(4, 4), form, tmp_path))
    assert not {"threads", "no core"} & kinds(fits).keys()
    assert {p.args["workers"] for p in fits.of_kind("part")} == {4}


def two_callers() -> Story:
    """Two interpreters on threads of their own; each op of one overlaps one of the other."""
    story = Story(cores=1)
    for thread, start in ((7, MS), (8, MS + 1000)):
        at = start
        for _ in range(3):
            at = story.invoke(thread, at, [("CONV_2D@0/0", 2), ("ADD@1/0", 1), ("MUL@2/0", 1)])
    return story


@pytest.mark.parametrize("form", ["perfetto", "systrace"])
def test_interpreters_on_several_threads(form: str, tmp_path: Path) -> None:
    made = read_trace(capture(two_callers(), form, tmp_path))
    assert summary(made)["runs"] == 6 and set(made.threads) == {7, 8}
    assert len([s for s in made.of_kind("op") if s.name == "ADD"]) == 6
    assert "2 threads compute at once, 1 cores" in kinds(made)["threads"]
    assert {o["op"]: round(o["calls"], 1) for o in op_times(made)}["ADD"] == 1.0


def test_a_delegate_that_tells_of_its_ops(tmp_path: Path) -> None:
    story = Story()
    at = MS
    for _ in range(2):
        begin = at
        at = story.invoke(5, at, [("TfLiteXNNPackDelegate@9/0", 8), ("SOFTMAX@3/0", 1)])
        inner = [("Convolution (NHWC, F32) IGEMM@0/0", 6), ("Add (ND, F32)@1/0", 1)]
        for name, ms in inner:
            begin += GAP
            story.sections.append((5, begin + GAP, begin + ms * MS, name))
            begin += ms * MS
    made = read_trace(capture(story, "perfetto", tmp_path))
    ops = {o["op"]: o["delegate"] for o in op_times(made)}
    assert ops == {
        "Convolution (NHWC, F32) IGEMM": "TfLiteXNNPackDelegate",
        "Add (ND, F32)": "TfLiteXNNPackDelegate",
        "SOFTMAX": "cpu",
    }
    said = kinds(made)["dominating"]
    assert "IGEMM (node 0, on TfLiteXNNPackDelegate) takes 75 %" in said


def test_ops_without_invoke_are_cut_into_rounds(tmp_path: Path) -> None:
    story = Story(sections=[(5, i * MS, (i + 1) * MS, f"ADD@{i % 2}/0") for i in range(6)])
    assert summary(read_trace(capture(story, "systrace", tmp_path)))["runs"] == 3


def test_what_began_before_the_recording(tmp_path: Path) -> None:
    """Ends without begins, and begins without ends."""
    path = capture(gpu_story(), "systrace", tmp_path)
    lines = path.read_text().splitlines()
    marks = [i for i, line in enumerate(lines) if "tracing_mark_write" in line]
    path.write_text("\n".join(lines[: marks[0]] + lines[marks[5] : marks[-3]]))
    assert summary(read_trace(path))["runs"] == 1


def test_packed_captures(tmp_path: Path) -> None:
    raw = captured.perfetto(gpu_story())
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(raw))
    assert summary(read_trace(path))["runs"] == 3
    outer = captured.messages().Trace()
    outer.packet.add().compressed_packets = zlib.compress(raw)
    path.write_bytes(outer.SerializeToString())
    assert summary(read_trace(path))["runs"] == 3


@pytest.mark.parametrize("packed", ["gzip", "compressed packets"])
def test_what_unpacks_to_too_much_is_refused(
    packed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDERLING_MAX_MEMORY", "1m")
    outer = captured.messages().Trace()
    for _ in range(2):  # each of them fits
        outer.packet.add().compressed_packets = zlib.compress(b"\x0a\0" * 20_000)
    lines = gzip.compress(b"# tracer: nop\n") + gzip.compress(b"\n" * 100_000)
    path = tmp_path / "x"
    path.write_bytes(lines if packed == "gzip" else outer.SerializeToString())
    with pytest.raises(InputError, match=r"x: the trace unpacks to more than 65536 bytes\n.*MAX_M"):
        read_trace(path)


def test_an_old_page_holds_a_string(tmp_path: Path) -> None:
    text = captured.systrace(gpu_story()).replace("\n", "\\n\\\n")
    path = tmp_path / "x.html"
    path.write_text(f'<html><script>var linuxPerfData = "\\\n{text}";</script></html>')
    assert summary(read_trace(path))["runs"] == 3


def track_events(step: int) -> bytes:
    """Events of Perfetto's own library, on a clock that counts on in microseconds (step 1000), or
    on the monotonic one, beside the kernel's on the clock since boot."""
    made = captured.messages().Trace()
    first = made.packet.add(trusted_packet_sequence_id=7, sequence_flags=1)
    clock = 64 if step > 1 else 3
    first.trace_packet_defaults.timestamp_clock_id = clock
    first.trace_packet_defaults.track_event_defaults.track_uuid = 11
    both = made.packet.add(trusted_packet_sequence_id=7).clock_snapshot
    both.clocks.add(clock_id=6, timestamp=50 * MS)
    counts_on = step > 1
    both.clocks.add(clock_id=clock, is_incremental=counts_on, unit_multiplier_ns=step)
    track = made.packet.add(trusted_packet_sequence_id=7).track_descriptor
    track.uuid, track.thread.pid, track.thread.tid = 11, 4200, 4242
    track.thread.thread_name = "inference"
    at = last = 0
    for kind, text, ms in [(1, "Invoke@0/0", 0), (1, "ADD@0/0", 1), (2, "", 3), (2, "", 1)]:
        at += ms * MS // step
        packet = made.packet.add(trusted_packet_sequence_id=7, sequence_flags=2)
        packet.timestamp = at - last if counts_on else at
        last = at
        packet.track_event.type = kind
        if text:
            packet.track_event.name_iid = kind + ms
            packet.interned_data.event_names.add(iid=kind + ms, name=text)
    return bytes(made.SerializeToString())


@pytest.mark.parametrize("step", [1, 1000])
def test_track_events_are_put_on_the_kernels_clock(step: int, tmp_path: Path) -> None:
    path = tmp_path / "x.pftrace"
    path.write_bytes(track_events(step))
    made = read_trace(path)
    (run,), (op,) = made.of_kind("run"), made.of_kind("op")
    assert (run.begin, run.end) == (50 * MS, 55 * MS)
    assert (op.begin, op.end) == (51 * MS, 54 * MS) and made.threads == {4242: "inference"}


def test_perfettos_own_engine_reads_the_same() -> None:
    """The captures of these tests are real ones: Perfetto finds the same slices."""
    with engine(captured.perfetto(gpu_story())) as loaded:
        rows = loaded.query(
            "select name, count(*), sum(dur) from slice group by name order by name"
        )
    found = {name: (count, time) for name, count, time in rows}
    assert found["GATHER_ND@12/0"] == (3, 9 * MS) and found["Invoke@0/0"][0] == 3


# -- the command ----------------------------------------------------------------------------------


def call(*words: object, status: int = 0) -> Any:
    result = CliRunner().invoke(app, ["trace", *map(str, words)])
    assert result.exit_code == status, result.output + repr(result.exception)
    return result


def test_the_command_prints_ops_and_insights(tmp_path: Path) -> None:
    path = capture(gpu_story(), "perfetto", tmp_path)
    text = call("--read", path).stdout
    assert "GATHER_ND" in text and "26.1%" in text and "take turns" in text
    found = json.loads(call("--read", path, "--json", "-").stdout)
    assert found["captured"] == "Perfetto" and found["ops"][0]["op"] == GPU
    assert [i["kind"] for i in found["insights"]] == ["fallback"]


@pytest.mark.parametrize(
    "content, says",
    [
        (b"nothing of the kind", "no trace that can be read"),
        (b"", "no trace that can be read"),
        (
            b'{"a": 1}',
            "FILE.json` wrote: it has no 'otherData'\n  give a trace .*ours .*, Perfetto's",
        ),
        (b'{"traceEvents": []}', "it has no 'otherData'\n  give a trace of a known format: ours"),
        (b'{"otherData": {"schema": "x"}}', "its schema is x\n  give a trace of a known format"),
        (b"\x0a\xff\xff\xff\xff", "the trace is damaged: not Perfetto's protobuf"),
        (b"<trace-query-result><row>", "the trace is damaged: not XML"),
        (b"\x1f\x8b\x08", "the trace is damaged"),
        (b"# tracer: nop\n", "no event of TensorFlow Lite is in this capture of systrace"),
        (b"<trace-query-result/>", "no event of TensorFlow Lite is in this capture of Instr"),
        (b'<?xml version="1.0" encoding="utf-99"?><trace-query-result/>', "damaged: not XML"),
        (b"# tracer: nop\n" + SWITCHES, "no event of TensorFlow Lite is in this capture of sys"),
    ],
)
def test_files_that_say_nothing(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "captured"
    path.write_bytes(content)
    with pytest.raises(InputError, match=says):
        read_trace(path)

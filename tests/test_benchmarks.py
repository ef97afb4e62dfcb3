"""The benchmark harness: its statistics, its checks, and that a failure does not stop a run."""

from __future__ import annotations

import importlib.util
import json
import os
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from benchmarks import (
    cold_start,
    common,
    contention,
    counts,
    engines,
    revisions,
    scaling,
    small,
    soak,
    startup,
)
from sanderling import load, verify
from sanderling.delegates.cpu.isa.targets import host_target
from sanderling.delegates.engines import to_onnx
from sanderling.measure import engine_agreement, interleaving, sample_statistics
from sanderling.measure.engines import EngineJob, job_for
from sanderling.measure.inputs import feeds
from sanderling.measure.record import Setting

from .support.every_worker import share_everything

DIGITS = Path(str(files("sanderling") / "data")) / "digits_int8.tflite"
HAS_LITERT = importlib.util.find_spec("ai_edge_litert") is not None
NEEDS_LITERT = pytest.mark.skipif(not HAS_LITERT, reason="pip install 'sanderling[peers]'")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    with common.fresh_cache():
        yield


def rounds(
    middle: float, count: int = 12, noise: float = 0.05, seed: int = 0
) -> interleaving.Samples:
    rng = np.random.default_rng(seed)
    return [list(middle * (1 + noise * rng.standard_normal(8))) for _ in range(count)]


def job(path: Path = DIGITS, threads: int = 1) -> EngineJob:
    model = load(DIGITS)
    model.source = str(path)
    return job_for(model, Setting(threads=threads), feeds(model))


# -- statistics and output ----------------------------------------------------------------------


def test_ratio_covers_the_truth() -> None:
    found = sample_statistics.ratio(rounds(3.0, seed=1), rounds(2.0, seed=2))
    assert found.low < 1.5 < found.high and found.high - found.low < 0.2


def test_ratio_cancels_what_disturbs_both() -> None:
    """Rounds are drawn in pairs: a machine that slows down and recovers does not widen the
    interval of the ratio."""
    drift = np.linspace(1, 3, 15)
    slow, fast = ([[float(base * d)] for d in drift] for base in (4.0, 2.0))
    found = sample_statistics.ratio(slow, fast)
    assert (found.low, found.value, found.high) == pytest.approx((2, 2, 2))


def test_geometric_mean() -> None:
    pairs = [(8.0, 2.0), (1.0, 1.0)]
    ratios = [sample_statistics.ratio(rounds(a, noise=0), rounds(b, noise=0)) for a, b in pairs]
    mean = sample_statistics.geometric_mean(ratios)
    assert mean.value == pytest.approx(2) and mean.low == pytest.approx(2)


def test_sections_are_replaced_and_added(tmp_path: Path) -> None:
    path = tmp_path / "RESULTS.md"
    path.write_text("# Results\n\nBy hand.\n", "utf-8")
    common.write_section("a", "one", path)
    common.write_section("b", "two", path)
    common.write_section("a", "three", path)
    text = path.read_text("utf-8")
    assert "By hand." in text and "one" not in text
    assert text.index("three") < text.index("two") and text.count("a:begin") == 1


def test_machines_stand_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "RESULTS.md"
    path.write_text("# Results\n\nBy hand.\n", "utf-8")
    common.write_machine_section("engines", "avx2", "first", path)
    common.write_section("other", "behind", path)
    monkeypatch.setattr(common, "cpu_type", lambda: "Another CPU")
    common.write_machine_section("engines", "avx2", "second", path)
    common.write_machine_section("engines", "neon", "third", path)
    common.write_machine_section("engines", "avx2", "second again", path)
    text = path.read_text("utf-8")
    places = [text.index(word) for word in ("first", "second again", "third", "behind")]
    assert places == sorted(places) and text.count("second") == 1


def test_engines_are_held_to_a_target() -> None:
    with engines.held("avx2"):
        assert os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX2" and host_target().name == "avx2"
    assert "ONEDNN_MAX_CPU_ISA" not in os.environ
    with engines.held(""):
        assert "ONEDNN_MAX_CPU_ISA" not in os.environ
    assert engines.main(["--target", "abacus", str(DIGITS)]) == 2


def test_stretches_of_instructions_that_ran_equally_often() -> None:
    code = dict(enumerate(["mov a, b", "add a, b", "jne 0x1", "mov c, d", "ret", "nop"]))
    counted = Counter({0: 1, 1: 9, 2: 9, 3: 1, 4: 1})
    found = [(1, ["mov a, b"]), (9, ["add a, b", "jne 0x1"]), (1, ["mov c, d", "ret"])]
    assert list(counts.stretches(counted, code)) == found


def test_callgrind_and_qemu_tell_how_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses are whole or relative, and the cost of a call is not the instruction's own."""
    grind = "fn=(1) f\n0x10 3 5\n+4 3 5\ncalls=2 0x40\n* 3 100\n+4 * 1\n"
    qemu = "IN:\n0x40:  nop\n0x44:  ret\n" + "Trace 0: 0x7f [0/40/0/0] main\n" * 3
    kept = {"counts.out": grind, "qemu.log": qemu}
    for name, text in kept.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(counts, "_run", lambda *given, **more: "")
    program = tmp_path / "program"
    assert counts.by_callgrind(program, 1) == {0x10: 5, 0x14: 5, 0x18: 1}
    assert counts.by_qemu(program, 1) == {0x40: 3, 0x44: 3}


def test_table_is_markdown() -> None:
    assert common.table(["a", "b"], [["x", 1]]) == "| a | b |\n| --- | ---: |\n| x | 1 |"


# -- answers ------------------------------------------------------------------------------------

I8, I64, F32 = np.int8, np.int64, np.float32
COMPARED = [
    ("same", I8([1, 2]), I8([1, 2]), "0 units", True),
    ("a few units", I8([1, 2]), I8([4, 2]), "3 units", True),
    ("wraps", I8([-128]), I8([127]), "255 units", False),
    ("classes", I64([1, 2, 3, 4]), I64([1, 2, 3, 9]), "25 % differ", False),
    ("floats", F32([100, 1]), F32([100, 1.05]), "5e-04", True),
    ("far floats", F32([1, 1]), F32([1, 1.05]), "5e-02", False),
    ("both not numbers", F32([np.nan, 1]), F32([np.nan, 1]), "0", True),
    ("one not a number", F32([np.nan, 1]), F32([1, 1]), "not finite", False),
    ("types", F32([1]), I8([1]), "types float32 and int8", False),
    ("shapes", F32([1]), F32([[1]]), "shapes [[1]] and [[1, 1]]", False),
]


@pytest.mark.parametrize("case", COMPARED, ids=lambda c: c[0])
def test_answers_are_compared(case: tuple[str, np.ndarray, np.ndarray, str, bool]) -> None:
    _, ours, theirs, words, fits = case
    assert engine_agreement.compare([ours], [theirs], 1e-3) == (words, fits)


@pytest.mark.parametrize(
    ("kind", "group"),
    [
        ("full integer i8 per-channel", "quantised"),
        ("dynamic range i8 + float32", "quantised"),
        ("int16x8", "quantised"),
        ("float16 weights", "float"),
        ("none", "float"),
    ],
)
def test_groups(kind: str, group: str) -> None:
    assert engine_agreement.group(kind) == group


# -- turns --------------------------------------------------------------------------------------


def test_short_runs_are_measured_in_blocks() -> None:
    calls = []
    samples = interleaving.turn(lambda: calls.append(1), 0.002)
    assert samples and len(calls) > 100 * len(samples)


def test_schedule_keeps_the_budget_and_the_fewest_rounds() -> None:
    quick, share = interleaving.schedule([1e-4, 1e-4], 5)
    assert quick == interleaving.MOST_ROUNDS and quick * 2 * share < 5
    assert interleaving.schedule([2.0, 1e-3], 1) == (interleaving.FEWEST_ROUNDS, 0.0)
    assert interleaving.schedule([], 1) == (0, 0.0)


def test_an_engine_that_fails_says_why(tmp_path: Path) -> None:
    found = interleaving.measure({"ours": job(tmp_path / "absent.tflite")}, 0.1)
    assert not found.samples and "absent.tflite" in found.errors["ours"]


def test_an_engine_that_dies_is_reported() -> None:
    subject = interleaving.Worker(job())
    subject.ready()
    subject.process.kill()
    subject.process.wait()
    with pytest.raises((interleaving.EngineError, OSError), match=r"SIGKILL|[Bb]roken pipe"):
        subject.samples(0.1)
    subject.close()


def test_an_engine_that_hangs_is_ended() -> None:
    subject = interleaving.Worker(job(), timeout=0.01)
    with pytest.raises(interleaving.EngineError, match="no answer"):
        subject.ready()
    subject.close()


@NEEDS_LITERT
def test_engines_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken, record = tmp_path / "broken.tflite", tmp_path / "record.json"
    broken.write_bytes(b"not a model")
    flags = [
        "--engines",
        "sanderling,litert",
        "--threads",
        "1",
        "--seconds",
        "0.2",
        "--f32-only",
        "--launches",
        "2",
    ]
    assert engines.main([str(broken), str(DIGITS), *flags, "--json", str(record)]) == 0
    text = capsys.readouterr().out
    assert "| digits_int8 | full integer" in text and "litert 0 units" in text
    assert "- Sanderling, broken: ModelError" in text
    rows = json.loads(record.read_text("utf-8"))["rows"]
    assert [r["model"] for r in rows] == ["broken", "digits_int8"]
    assert all(len(s) >= interleaving.FEWEST_ROUNDS for s in rows[1]["samples"].values())


def test_unknown_engine_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert engines.main(["--engines", "sanderling,abacus"]) == 2
    assert "no engine 'abacus'" in capsys.readouterr().err


def test_minutes_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four measurements in one minute; each takes 5 s more than it is given, for processes."""
    now = 100.0
    monkeypatch.setattr(engines.time, "monotonic", lambda: now)
    allowance, given = engines.Allowance(seconds=30, minutes=1, total=4, processes=3), []
    for _ in range(4):
        given.append(allowance.next())
        now += given[-1] + 5
    assert given[0] == 12 and sum(given) + 20 == pytest.approx(60)
    assert engines.Allowance(seconds=30, minutes=0, total=4, processes=3).next() == 30
    assert engines.Allowance(seconds=30, minutes=0.01, total=4, processes=3).next() == 1.5


# -- the other benchmarks -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["f32", "int8"])
def test_stacks_are_models(kind: str) -> None:
    point = scaling.Point(channels=5, resolution=6, depth=2, batch=2)
    model = scaling.stack(point, kind)
    verify(model)
    made = model.compile(["reference"])(*feeds(model))
    assert made.shape == (2, 6, 6, 5) and made.std() > 0


def measured(axis: str, times: dict[int, float], theirs: float) -> list[scaling.Found]:
    """Points along an axis: our time by value, and LiteRT's for a MAC."""
    made = []
    for value, time in times.items():
        point = scaling.Point(**{axis: value})
        samples = {"sanderling": [[time]], "litert": [[theirs * point.macs]]}
        made.append(scaling.Found("f32", axis, point, samples))
    return made


@pytest.mark.parametrize(
    ("axis", "times", "cliffs"),
    [
        ("batch", {1: 1.0, 2: 2.0, 3: 3.1}, ["", "", ""]),
        ("batch", {1: 1.0, 2: 5.0, 4: 10.0}, ["", "the rate falls", ""]),
        ("batch", {1: 1.0, 2: 3.0, 3: 2.0}, ["", "slower than the next larger", ""]),
        ("threads", {1: 1.0, 2: 1.3}, ["", "one more thread is slower"]),
        ("threads", {1: 1.0, 64: 1.3, 65: 2.0}, ["", "", ""]),
    ],
)
def test_cliffs_are_flagged(
    axis: str, times: dict[int, float], cliffs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling.os, "cpu_count", lambda: 2)
    found = measured(axis, times, 1e-9)
    scaling.flag(axis, found)
    assert [f.cliff for f in found] == cliffs


def soaked(resident: list[int], threads: int = 1, wrong: int = 0) -> soak.Soaked:
    notes = [soak.Note(i, kb, kb, 1, 5) for i, kb in enumerate(resident[:-1])]
    return soak.Soaked("m", 1, wrong, [*notes, soak.Note(9, resident[-1], 0, threads, 5)])


def test_soak_tells_growth_from_warming_up() -> None:
    warm = [50_000, 80_000, *[90_000] * 10]
    assert soaked(warm).verdict == "flat"
    assert "memory grows" in soaked([50_000 + 1000 * i for i in range(20)]).verdict
    assert "threads grow" in soaked(warm, threads=2).verdict
    assert "2 answers changed" in soaked(warm, wrong=2).verdict


def test_soak_runs() -> None:
    done = soak.Soak(DIGITS, count=2 * soak.STAY * len(soak.BATCHES), sessions=2).run()
    assert not done.wrong and [n.inferences for n in done.notes] == [28, 56]


@NEEDS_LITERT
def test_startup_measures_each_subject() -> None:
    samples = startup.measure(DIGITS, rounds=1, threads=1)
    assert {"sanderling cold", "litert"} <= set(samples)
    assert all(s[0]["total_s"] >= s[0]["ready_s"] > 0 for s in samples.values())
    assert "| digits |" in startup.report({"digits": samples}, {})


def test_cold_starts_are_of_their_cache(tmp_path: Path) -> None:
    place, kept = cold_start.check_out(None, tmp_path / "new"), tmp_path / "cache"
    assert cold_start.after(place, DIGITS, tmp_path / "none.tflite", str(kept)) is None
    assert cold_start.start(place, DIGITS, str(kept)) > 0 and any(kept.glob("*.part"))


def test_revisions_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = revisions.check_out(None, tmp_path / "new")
    found = revisions.probe(place, DIGITS, 0.01)
    assert {*found, "cold"} == set(revisions.FIGURES) and min(found.values()) > 0
    monkeypatch.setattr(revisions, "probe", lambda *_: dict(found))
    ratios = revisions.compare([place, place], DIGITS, rounds=2, seconds=0)
    assert [r.value for r in ratios] == [1] * len(revisions.FIGURES)


@NEEDS_LITERT
@pytest.mark.skipif(not importlib.util.find_spec("tf2onnx"), reason="pip install tf2onnx onnx")
def test_onnx_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An export runs, or the reason is a sentence."""
    ort = pytest.importorskip("onnxruntime")
    monkeypatch.setenv("SANDERLING_CACHE", str(tmp_path))
    made, why = to_onnx.cached(DIGITS)
    assert made and not why
    session = ort.InferenceSession(made, providers=["CPUExecutionProvider"])
    assert len(session.get_inputs()) == 1
    bad = tmp_path / "bad.tflite"
    bad.write_bytes(b"x")
    assert to_onnx.cached(bad)[1].startswith("no ONNX export: ")


@NEEDS_LITERT
def test_small_models_are_measured_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "SAMPLE", 0.0)
    rows = {name: row for name, *row in small.rows()}
    assert any(name.startswith("WHILE") for name in rows)
    ours, theirs, remark = small.measure(*rows["IF|same shapes"], rounds=2)
    assert ours > 0 and theirs > 0 and remark == ""


# -- contention ---------------------------------------------------------------------------------


def test_contention_flags_what_should_not_be() -> None:
    def line(threads: int, engine: str = "sanderling") -> contention.Point:
        return contention.Point("m", 1, threads, engine)

    times = {line(1): 2.0, line(2): 3.0, line(4): 3.5, line(2, "litert"): 2.5}
    found = {p: contention.found_of([t] * 9) for p, t in times.items()}
    said = {p.threads: contention.flags(found, p, 2) for p in found if p.engine == "sanderling"}
    assert said == {
        1: [],
        2: ["slower than one thread", "slower than LiteRT"],
        4: ["slower than 2 threads"],
    }
    text = contention.report(found, 2)
    assert "slower than one thread; slower than LiteRT" in text and "0.83" in text


def test_answers_are_compared_under_contention(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    share_everything(monkeypatch)
    assert contention.check_answers(DIGITS, 80) == 0
    assert "80 runs on 1 to 8 workers, 0 differ" in capsys.readouterr().out

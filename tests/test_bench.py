"""`sanderling bench`: what it measures, how sure it is, and a sentence where something is wrong."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import struct
import subprocess
import sys
from importlib.resources import files
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner
from typer.testing import Result as Ran

import sanderling.measure.bench as home
from sanderling import DType, Graph, InputError, Model, Signature, load, save
from sanderling.cli import bench as cli
from sanderling.cli.app import app
from sanderling.delegates.engines import to_onnx
from sanderling.measure import (
    baseline,
    bench_plots,
    bench_tables,
    engine_process,
    model_table,
    noise,
    sweep,
)
from sanderling.measure.background_load import Busy
from sanderling.measure.bench import Bench, BenchInterrupted, Procedure
from sanderling.measure.inputs import Feeding
from sanderling.measure.interleaving import Budget, Worker, launch
from sanderling.measure.record import Result, Setting

DATA = Path(str(files("sanderling") / "data"))
INT8, F32 = DATA / "digits_int8.tflite", DATA / "digits_f32.tflite"
PEER = "litert" if importlib.util.find_spec("ai_edge_litert") else ""
QUICK = ("--launches", "2", "--min-secs", "0.02", "--runs", "5", "--warmup-secs", "0.05")
RNG = np.random.default_rng(3)


def call(*words: object, status: int = 0) -> Ran:
    result = CliRunner().invoke(app, ["bench", *(str(w) for w in words)])
    assert result.exit_code == status, result.output + repr(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def measured(
    name: str = "m.tflite",
    ms: float = 1.0,
    setting: Setting | None = None,
    noise: float = 0.01,
    **more: Any,
) -> Result:
    """A result of five launches of five rounds."""
    rounds = [list(1e-3 * ms * (1 + noise * RNG.standard_normal(4))) for _ in range(25)]
    memory = {"start.rss": 40 << 20, "peak.runs": 50 << 20, "file": 9, "weights": 8}
    known = {
        "init": 0.01,
        "first": 0.002,
        "launches": [5] * 5,
        "begun": list(range(25)),
        "memory": memory,
    }
    return Result(name, setting or Setting(), rounds=rounds, **known | more)


def made(*results: Result) -> Bench:
    kinds = {r.model: {"quantisation": "none", "file": 9, "weights": 8} for r in results}
    return Bench(list(results), models=kinds)


# -- end to end ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    """One measurement with everything that can be written."""
    folder = tmp_path_factory.mktemp("bench")
    targets = [w for n in ("a.png", "a.svg", "a.html") for w in ("--plot", folder / n)]
    engines = ("--engines", f"sanderling,{PEER}") if PEER else ("--threads", "1,2")
    ran = call(
        INT8,
        *engines,
        *QUICK,
        "--json",
        folder / "a.json",
        *targets,
        "-o",
        folder / "t.md",
        "-o",
        folder / "t.html",
    )
    return folder, ran


def test_the_record_holds_everything(whole: tuple[Path, Ran]) -> None:
    record = json.loads((whole[0] / "a.json").read_text("utf-8"))
    assert record["schema"] == "sanderling.bench/1" and not record["interrupted"]
    assert {"cpu", "features", "governors", "mhz", "versions", "load"} <= set(record["machine"])
    assert len(record["results"]) == 2
    for result in record["results"]:
        assert result["launches"] == [5, 5] and len(result["begun"]) == 10
        assert len(result["rounds"]) == 10 and all(result["rounds"]) and result["warmup"]
        samples = [s for r in result["rounds"] for s in r]
        assert result["summary"]["median"] == pytest.approx(np.median(samples))
        assert result["summary"]["p95"] == pytest.approx(np.percentile(samples, 95))
        assert result["throughput"] == pytest.approx(1 / np.mean(samples))
        assert len(samples) * result["block"] >= 5
        assert result["init"] > 0 and result["first"] > 0 and len(result["inits"]) == 2
        assert result["memory"]["file"] == INT8.stat().st_size
    ours = record["results"][0]["memory"]
    assert {"packed_weights", "arena", "code", "weights"} <= set(ours)
    if "start.rss" in ours:
        assert ours["first.rss"] > ours["start.rss"] > 0
        assert ours["peak.runs"] >= ours["end.rss"] - (4 << 20)


def test_engines_are_compared(whole: tuple[Path, Ran]) -> None:
    record = json.loads((whole[0] / "a.json").read_text("utf-8"))
    (found,), (gap,) = record["comparisons"], record["answers"]
    assert found["low"] <= found["ratio"] <= found["high"] and found["ratio"] > 0
    assert gap["fits"] and gap["gap"] == "0 units"
    text = whole[1].stdout
    for words in ("median ms", "times as long", "packed weights", "+peak of runs", "on cpu"):
        assert words in text


def test_a_result_comes_back_from_its_record(whole: tuple[Path, Ran]) -> None:
    record = json.loads((whole[0] / "a.json").read_text("utf-8"))
    for row in record["results"]:
        again = Result.from_json(row)
        assert json.loads(json.dumps(again.to_json())) == row
        assert [len(r) for r in again.by_launch] == [5, 5]


def test_pictures_and_tables_are_written(whole: tuple[Path, Ran]) -> None:
    folder = whole[0]
    assert (folder / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "a.svg").read_text("utf-8")
    page = (folder / "a.html").read_text("utf-8")
    assert "<svg" in page and "Resident memory" in page and "http" not in page.split("<svg")[0]
    assert "| digits_int8 |" in (folder / "t.md").read_text("utf-8")
    assert "<td>digits_int8</td>" in (folder / "t.html").read_text("utf-8")


def test_a_setting_that_fails_does_not_stop_the_others() -> None:
    """bf16 makes no sense for a quantised model; and one engine is not installed."""
    answer = json.loads(
        call(INT8, "--precision", "bf16,f32", *QUICK, "--launches", 1, "--json", "-").stdout
    )
    bad, good = answer["results"]
    assert "does not run at bf16" in bad["error"] and not bad["rounds"]
    assert good["rounds"] and not good["error"]


def test_a_shape_that_the_model_does_not_run_on() -> None:
    text = call(F32, "--shape", "1,9,7,1", *QUICK, status=2).stderr
    assert "does not run on this shape" in text


# -- bad input ----------------------------------------------------------------------------------

ABSENT = "/nowhere/absent"
BAD: list[tuple[str, tuple[object, ...], str]] = [
    ("no model", (f"{ABSENT}.tflite",), "absent.tflite"),
    ("not a model", (__file__,), "not a .tflite"),
    ("zero threads", (INT8, "--threads", "0"), "threads is 0"),
    ("threads in words", (INT8, "--threads", "two"), "'two' is not a number"),
    ("wrong rank", (INT8, "--shape", "1,8,8"), "3 sizes"),
    ("no shape", (INT8, "--shape", "1x8"), "'1x8' is not a shape"),
    ("size zero", (INT8, "--shape", "0,8,8,1"), "below 1"),
    ("no such input", (INT8, "--shape", "pixels=1,8,8,1"), "there is no input 'pixels'"),
    ("no such engine", (INT8, "--engines", "abacus"), "there is no engine 'abacus'"),
    ("no such delegate", (INT8, "--delegates", "abacus"), "abacus"),
    ("no such precision", (INT8, "--precision", "f7"), "there is no precision 'f7'"),
    ("no such signature", (INT8, "--signature", "nothing"), "there is no signature 'nothing'"),
    ("no such CPU", (INT8, "--cpus", "4095"), "CPU 4095"),
    ("no CPUs", (INT8, "--cpus", "all"), "'all' are not CPUs"),
    ("no input file", (INT8, "--input", f"{ABSENT}.npy"), "no such file"),
    ("no raw file", (INT8, "--input", f"{ABSENT}.bin"), "no such file"),
    ("raw bytes", (INT8, "--input", INT8), "bytes, i8[1, 8, 8, 1] has 64"),
    ("no range", (INT8, "--range", "5"), "'5' is not a range"),
    ("range too wide", (INT8, "--range", "0,255"), "goes beyond i8"),
    ("range upside down", (INT8, "--range", "5,1"), "5 is above 1"),
    ("no runs", (INT8, "--runs", "0"), "runs is 0"),
    ("more than at most", (INT8, "--max-secs", "0.01"),
     "--max-secs 0.01 is less than --min-secs 0.02"),
    ("no launches", (INT8, "--launches", "0"), "sanderling: --launches is 0"),
    ("contend", (INT8, "--contend", "-1"), "contend is -1"),
    ("unwritable JSON", (INT8, "--json", f"{ABSENT}/a.json"), "cannot write"),
    ("unwritable plot", (INT8, "--plot", f"{ABSENT}/a.png"), "cannot write"),
    ("unwritable table", (INT8, "-o", f"{ABSENT}/a.md"), "cannot write"),
    ("no picture", (INT8, "--plot", "a.bmp"), "'.bmp' is not a kind of picture"),
    ("no table", (INT8, "-o", "a.docx"), "'.docx' is not a kind of table"),
    ("no baseline", (INT8, "--baseline", ABSENT), "cannot be read"),
    ("baseline is no JSON", (INT8, "--baseline", INT8), "not a text in UTF-8"),
    ("regression of nothing", (INT8, "--max-regression", "5%"), "add --baseline"),
    ("no plugin", (INT8, "--plugin", ABSENT), "no such file"),
]  # fmt: skip


@pytest.mark.parametrize("case", BAD, ids=lambda c: c[0])
def test_bad_input_is_a_sentence(case: tuple[str, tuple[object, ...], str]) -> None:
    _, words, said = case
    ran = call(*words, *QUICK[2:4], status=2)
    assert ran.stdout == "" and ran.stderr.startswith("sanderling: ") and said in ran.stderr


@pytest.mark.parametrize("least, most, found", [
    (None, None, (1, 30)), (60, None, (60, 60)), (None, 0.5, (0.5, 0.5)), (2, 3, (2, 3)),
])  # fmt: skip
def test_a_limit_of_seconds_moves_the_default_of_the_other(
    least: float | None, most: float | None, found: tuple[float, float]
) -> None:
    assert tuple(cli._seconds(least, most).values()) == found


def test_a_baseline_of_another_schema(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"schema": "sanderling.run/1"}', "utf-8")
    said = call(INT8, "--baseline", tmp_path / "a.json", status=2).stderr
    assert "its schema is 'sanderling.run/1'" in said
    with pytest.raises(InputError, match=r"`max_secs` above `min_secs`"):
        Procedure(min_secs=2, max_secs=1).check()
    with pytest.raises(TypeError, match="no argument 'speed'"):
        home.bench(INT8, speed=1)


def test_a_peer_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "is_installed", lambda name: name == "sanderling")
    said = call(INT8, "--engines", "openvino", status=2).stderr
    assert "engine openvino needs the package 'openvino'" in said and "pip install" in said
    monkeypatch.setattr(home, "launch", fake_launch)
    ran = call(INT8, "--engines", "openvino,sanderling", *QUICK)
    assert "needs the package 'openvino', which is not installed: pip install" in ran.stdout
    assert "sanderling, 1 thread" in ran.stdout


def test_an_onnx_file_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "is_installed", lambda name: True)
    monkeypatch.setattr(home, "launch", fake_launch)
    for why, said in (
        ("KeyError: 'RFFT2D'", "KeyError: 'RFFT2D'"),
        ("No module named 'tf2onnx'", "sanderling[onnx]"),
    ):
        monkeypatch.setattr(to_onnx, "cached", lambda path, why=why: ("", why))
        assert said in call(INT8, "--engines", "sanderling,onnxruntime", *QUICK).stdout
    assert "sanderling[onnx]" in call(INT8, "--engines", "onnxruntime", status=2).stderr


def fake_launch(jobs: dict[str, Any], *_: object, **__: object) -> dict[str, home.Launch]:
    ready = engine_process.Ready("", [np.zeros(1)], 1e-3, 0.0, 0.1, 1e-3, {})
    rounds = [[1e-3, 1.1e-3]] * 5
    return {name: home.Launch(ready, rounds=rounds, begun=[0.0] * 5) for name in jobs}


# -- inputs -------------------------------------------------------------------------------------


def two_inputs() -> Model:
    graph = Graph("main")
    x = graph.input("x", DType.FLOAT32, (1, 4), signature=(-1, 4))
    n = graph.input("n", DType.INT32, (1,))
    y, z = graph.tensor("y", DType.FLOAT32, (1, 4)), graph.tensor("z", DType.INT32, (1,))
    graph.add("NEG", [x], [y])
    graph.add("NEG", [n], [z])
    graph.outputs = [y, z]
    return Model([graph], [Signature("serve", graph, {"count": n, "data": x}, {"a": y, "b": z})])


def test_inputs_are_fed_as_told(tmp_path: Path) -> None:
    model = two_inputs()
    entry = model.compile(["reference"]).entry(None)
    np.save(tmp_path / "x.npy", np.full((3, 4), 7, np.float32))
    (tmp_path / "n.bin").write_bytes(np.int32([5]).tobytes())
    x, n = Feeding(files={"data": tmp_path / "x.npy", "count": tmp_path / "n.bin"}).arrays(entry)
    assert x.shape == (3, 4) and x[0, 0] == 7 and n.tolist() == [5]
    x, n = Feeding({"x": (50, 4)}, {"x": (2, 3), "n": (8, 9)}).arrays(entry)
    assert x.shape == (50, 4) and 2 <= x.min() < x.max() <= 3 and n[0] in (8, 9)
    again = Feeding({"data": (50, 4)}, {"data": (2, 3), "count": (8, 9)}).arrays(entry)
    assert np.array_equal(x, again[0])
    with pytest.raises(InputError, match="say which one"):
        Feeding({"": (1, 4)}).arrays(entry)


@pytest.mark.skipif(not PEER, reason="pip install 'sanderling[peers]'")
def test_signatures_of_other_graphs(tmp_path: Path) -> None:
    """The second graph's signature is run, by us and by LiteRT; OpenVINO says that it cannot."""
    main, other = Graph("main"), Graph("other")
    for graph, op in ((main, "NEG"), (other, "ABS")):
        x = graph.input("x", DType.FLOAT32, (1, 4))
        y = graph.tensor("y", DType.FLOAT32, (1, 4))
        graph.add(op, [x], [y])
        graph.outputs = [y]
    signatures = [
        Signature(g.name, g, {"in": g.inputs[0]}, {"out": g.outputs[0]}) for g in (main, other)
    ]
    path = tmp_path / "two.tflite"
    save(Model([main, other], signatures), path)
    model, values = load(path), np.float32([[-1, 2, -3, 4]])
    for engine in ("sanderling", "litert"):
        job = home.job_for(model, Setting(engine), [values], "other")
        loaded, ready = engine_process.start(job)
        assert np.array_equal(ready.answers[0], np.abs(values)), engine
        del loaded
    from sanderling.measure.engines import _only_main

    with pytest.raises(home.UnsupportedError, match="signature 'other' is another"):
        _only_main(home.job_for(model, Setting("openvino"), [values], "other"))


def test_imports_are_no_part_of_init() -> None:
    code = (
        "import sys; from sanderling.measure.engines import import_engine as f; "
        "name = 'sanderling.delegates.cpu.delegate'; early = name in sys.modules; "
        "f('sanderling'); print(early, name in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "True"]


def test_a_process_that_compiled_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(jobs: dict[str, Any], *_: object, **__: object) -> dict[str, home.Launch]:
        made = fake_launch(jobs)
        for one in made.values():
            first = next(starts)
            one.ready = engine_process.Ready(
                "",
                [np.zeros(1)],
                1e-3,
                0.0,
                5.0 if first else 0.1,
                1e-3,
                {"start.rss": 0, "ready.rss": 900 if first else 9},
                {"start": "compiled now" if first else "from the cache"},
            )
        return made

    starts = iter([True, False])
    monkeypatch.setattr(home, "launch", launch)
    (found,) = home.bench(INT8, launches=2).results
    assert found.init == 0.1 and found.inits == [5.0, 0.1] and found.memory["ready.rss"] == 9
    starts = iter([True])
    (found,) = home.bench(INT8, launches=1).results
    assert found.init == 5.0 and found.memory["ready.rss"] == 900


# -- sweeps, contention, tables -----------------------------------------------------------------


def test_combinations() -> None:
    found = sweep.combinations(["sanderling", "litert"], [1, 2], [("cpu",)], ["f32", "bf16"], 3)
    assert len(found) == len(set(found)) == 16
    assert all(not s.delegates for s in found if s.engine == "litert")
    assert "LiteRT has no bf16" in sweep.why_not(Setting("litert", precision="bf16"), "none")
    assert sweep.why_not(Setting("litert"), "none") == ""
    assert ("reference",) not in sweep.delegate_choices()
    counts = sweep.thread_counts()
    assert counts[0] == 1 and counts[-1] == len(noise.usable_cpus())


@pytest.mark.parametrize(
    ("times", "chosen", "why"),
    [
        ({1: 2.0, 2: 1.0}, 2, "beyond the noise"),
        ({1: 1.004, 2: 1.0}, 1, "1 thread fewer"),
        ({1: 1.0, 2: 2.0}, 1, "beyond the noise"),
    ],
)
def test_the_cheapest_within_the_noise_is_recommended(
    times: dict[int, float], chosen: int, why: str
) -> None:
    results = [measured(ms=ms, setting=Setting(threads=n)) for n, ms in times.items()]
    found = sweep.recommend(results, home.ratio)
    assert found is not None and found.setting == Setting(threads=chosen).name
    assert why in found.why


def test_a_wide_interval_makes_no_equal() -> None:
    slow = measured(ms=3.0, noise=0.0)
    slow.rounds = [[3e-3 * f] for f in (0.3, 1, 1, 1, 4) for _ in range(5)]
    found = sweep.recommend([slow, measured(setting=Setting(threads=2))], home.ratio)
    assert found is not None and found.setting == Setting(threads=2).name
    assert "sanderling, 1 thread cannot be told from it" in found.why
    assert "beyond the noise" not in found.why


def test_wrong_answers_and_load_are_not_recommended() -> None:
    wrong = measured(ms=0.1, setting=Setting("litert"))
    loaded = measured(ms=0.1, setting=Setting(contend=1))
    right, slow = measured(), measured(ms=3, setting=Setting(threads=2))
    found = sweep.recommend([wrong, loaded, right, slow], home.ratio, [wrong.setting.name])
    assert found is not None and found.setting == right.setting.name


def test_contention_shows_where_fewer_threads_win() -> None:
    times = {(1, 0): 2.0, (1, 2): 2.2, (2, 0): 1.0, (2, 2): 5.0}
    found = made(
        *(measured(ms=ms, setting=Setting(threads=t, contend=c)) for (t, c), ms in times.items())
    )
    _, rows = bench_tables.contention(found)
    assert [r[0] for r in rows] == ["sanderling, 1 thread", "sanderling, 2 threads"]
    (said,) = bench_tables.best_under_load(found)
    assert "alone sanderling, 2 threads is the fastest, but beside 2 busy" in said


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="needs /proc")
def test_busy_processes_run_only_when_told() -> None:
    def states() -> set[str]:
        texts = [Path(f"/proc/{p.pid}/stat").read_text("ascii") for p in busy.processes]
        return {t.rpartition(")")[2].split()[0] for t in texts}

    with Busy(2, noise.usable_cpus()[:1]) as busy:
        for process in busy.processes:
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert states() == {"T"} and os.sched_getaffinity(busy.processes[0].pid) == {
            noise.usable_cpus()[0]
        }
        with busy.on():
            assert "T" not in states()
    assert all(p.poll() is not None for p in busy.processes)


def test_the_table_of_known_models() -> None:
    settings = Setting(), Setting("litert", 2)
    found = made(
        *(measured(f"{m}.tflite", ms, s) for m, ms in (("a", 1.0), ("b", 20.0)) for s in settings)
    )
    found.results[-1].rounds, found.results[-1].error = [], "no"
    columns, rows = model_table.model_table(found)
    assert columns[2:] == [">Sanderling, 1 thread", ">LiteRT, 2 threads"]
    assert [r[0] for r in rows] == ["a", "b"] and rows[1][3] == "---"
    assert rows[0][2].endswith(" ms")
    text = model_table.as_markdown(found)
    assert "| a | none |" in text and "ai-edge-litert" in text


def test_sweeps_are_drawn_and_sorted() -> None:
    found = made(*(measured(ms=ms, setting=Setting(threads=t)) for t, ms in ((1, 2.0), (2, 1.0))))
    assert bench_plots.plot_bench(found, "a.svg").count(b"threads") > 0
    _, rows = bench_tables.latency(found, by_speed=True)
    assert [r[0] for r in rows] == ["sanderling, 2 threads", "sanderling, 1 thread"]


# -- launches -----------------------------------------------------------------------------------


def test_many_settings_go_in_shuffled_batches() -> None:
    settings = [Setting(threads=n) for n in range(1, 20)]
    found = list(home._batches(settings, random.Random(0)))
    assert [len(b) for b in found] == [8, 8, 3]
    assert sorted(s.threads for b in found for s in b) == list(range(1, 20))
    assert [s for b in found for s in b] != settings


def test_a_process_that_cannot_start_its_engine_is_reported(tmp_path: Path) -> None:
    model = load(INT8)
    model.source = str(tmp_path / "gone.tflite")
    job = home.job_for(model, Setting(), Feeding().arrays(model.compile().entry(None)))
    found = launch({"x": job}, Budget(0.01), random.Random(0))
    assert "gone.tflite" in found["x"].error and not found["x"].rounds


def test_a_process_runs_on_the_cpus_that_are_named() -> None:
    model, cpu = load(INT8), noise.usable_cpus()[-1]
    inputs = Feeding().arrays(model.compile().entry(None))
    worker = Worker(home.job_for(model, Setting(), inputs, cpus=(cpu,)))
    try:
        worker.ready()
        assert os.sched_getaffinity(worker.process.pid) == {cpu}
    finally:
        worker.close()
    assert worker.process.returncode == 0


@pytest.mark.parametrize("sent", [b"", struct.pack("!i", 100) + b"half of a job"])
def test_an_engine_process_ends_quietly_with_its_parent(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C may end the parent before it has sent the job, or in the middle of it."""
    monkeypatch.setattr(engine_process.signal, "signal", lambda *_: None)
    ours, theirs = Pipe()
    with theirs:
        with ours:
            os.write(ours.fileno(), sent)
        engine_process.main(theirs)


def test_an_interrupt_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def once(jobs: dict[str, Any], *more: object, **named: object) -> dict[str, home.Launch]:
        calls.append(jobs)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return fake_launch(jobs)

    monkeypatch.setattr(home, "launch", once)
    target = tmp_path / "a.json"
    ran = call(INT8, F32, *QUICK, "--json", target, status=130)
    assert "interrupted; 1 result kept" in ran.stderr and "digits_int8" in ran.stdout
    record = json.loads(target.read_text("utf-8"))
    assert record["interrupted"] and [r["model"] for r in record["results"]] == [INT8.name]
    calls[:] = [{}, {}]
    with pytest.raises(BenchInterrupted) as nothing:
        home.bench(INT8)
    assert not nothing.value.bench.results


def test_an_interrupt_keeps_the_samples_of_a_model_that_is_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second round of the first processes: one round is whole, and one of one setting."""
    turns: list[str] = []

    def turn(made: home.Launch, *more: object) -> None:
        turns.append("")
        if len(turns) == 4:
            raise KeyboardInterrupt
        real(made, *more)

    from sanderling.measure import interleaving as engines

    real = engines._turn
    monkeypatch.setattr(engines, "_turn", turn)
    target = tmp_path / "a.json"
    ran = call(INT8, *QUICK, "--threads", "1,2", "--json", target, status=130)
    assert "interrupted; 2 results kept, 2 of them from fewer runs" in ran.stderr
    record = json.loads(target.read_text("utf-8"))
    assert record["interrupted"] and all(r["partial"] for r in record["results"])
    assert sorted(len(r["rounds"]) for r in record["results"]) == [1, 2]
    assert record["comparisons"] and "too narrow" in ran.stderr


def test_cold_starts_get_an_empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = []

    def look(jobs: dict[str, Any], *_: object, **__: object) -> dict[str, home.Launch]:
        folders.append(os.environ.get("SANDERLING_CACHE"))
        return fake_launch(jobs)

    monkeypatch.setenv("SANDERLING_CACHE", "mine")
    monkeypatch.setattr(home, "launch", look)
    home.bench(INT8, cold=True, launches=2)
    assert len(set(folders)) == 2 and "mine" not in folders
    assert os.environ["SANDERLING_CACHE"] == "mine"


# -- the baseline -------------------------------------------------------------------------------


def against(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    now: Bench,
    then: Bench,
    *words: str,
    status: int = 0,
) -> Ran:
    path = tmp_path / "then.json"
    path.write_text(json.dumps(then.to_json()), "utf-8")
    monkeypatch.setattr(cli, "measure", lambda models, **_: now)
    return call(INT8, "--baseline", path, *words, status=status)


@pytest.mark.parametrize(
    ("ms", "noise", "verdict", "status"),
    [
        (1.0, 0.01, "same", 0),
        (1.045, 0.001, "slower", 0),  # surely slower, but perhaps within the limit
        (1.5, 0.01, "regressed", 1),
        (1.07, 0.3, "cannot tell", 0),  # beyond the limit, but not surely
        (1.0, 0.3, "cannot tell", 0),
        (0.5, 0.01, "faster", 0),
    ],
)
def test_a_regression_must_be_sure(
    ms: float,
    noise: float,
    verdict: str,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, then = made(measured(ms=ms, noise=noise)), made(measured(noise=noise))
    ran = against(tmp_path, monkeypatch, now, then, "--max-regression", "5%", status=status)
    assert verdict in ran.stdout.split("against the baseline")[1]
    doubt = "by more than 5 % cannot be told" in ran.stderr
    assert doubt == (verdict in ("cannot tell", "slower"))
    against(tmp_path, monkeypatch, now, then)  # without a limit nothing is a failure


def test_what_fails_now_and_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Result("m.tflite", Setting(), error="it died")
    now = made(broken, measured(setting=Setting(threads=2)))
    ran = against(tmp_path, monkeypatch, now, made(measured()), "--max-regression", "5", status=1)
    assert "fails now" in ran.stdout and "not in the baseline" in ran.stdout
    assert "the check failed: m.tflite at sanderling, 1 thread is no longer running" in ran.stderr


def test_nothing_compared_fails_the_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, then = made(measured("new.tflite")), made(measured("old.tflite"))
    ran = against(tmp_path, monkeypatch, now, then, "--max-regression", "5%", status=1)
    assert "nothing was compared" in ran.stderr and "not measured now" in ran.stdout
    assert ran.stderr.splitlines()[-1] == (
        "the check failed: nothing was compared with the baseline"
    )
    assert "new.tflite at sanderling, 1 thread" in ran.stderr
    assert "old.tflite at sanderling, 1 thread" in ran.stderr
    against(tmp_path, monkeypatch, now, then)  # no gate, no failure


def test_what_was_not_compared_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    then = made(measured(), measured(setting=Setting(threads=4)))
    now = made(measured(), measured(setting=Setting(threads=2)))
    ran = against(tmp_path, monkeypatch, now, then, "--max-regression", "5%")
    assert "not all was compared" in ran.stderr
    assert "not in the baseline: m.tflite at sanderling, 2 threads" in ran.stderr
    assert "not measured now: m.tflite at sanderling, 4 threads" in ran.stderr


def test_two_files_of_one_name_are_not_mixed_up() -> None:
    then = made(measured("a/m.tflite"), measured("b/m.tflite", ms=3))
    now = [measured("b/m.tflite", ms=3), measured("a/m.tflite")]
    assert [c.verdict for c in baseline.changes(now, then.to_json(), 0.5)] == ["same", "same"]


@pytest.mark.parametrize(
    ("delegates", "name"),
    [
        ((), "sanderling, 1 thread"),
        (("cpu",), "sanderling, 1 thread"),
        (("cpu", "reference"), "sanderling, 1 thread"),
        (("reference",), "sanderling, reference, 1 thread"),
        (("mine", "cpu"), "sanderling, mine, 1 thread"),
        (("mine", "reference"), "sanderling, mine+reference, 1 thread"),
    ],
)
def test_one_setting_has_one_name(delegates: tuple[str, ...], name: str) -> None:
    assert Setting(delegates=delegates).name == name
    both = sweep.combinations(["sanderling"], [1], [delegates, (*delegates, "reference")], ["f32"])
    assert len({s.name for s in both}) == len(both)


def test_another_machine_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    then = made(measured())
    then.machine = {**then.machine, "cpu": "Abacus 9", "versions": {"numpy": "0.1"}}
    said = against(tmp_path, monkeypatch, made(measured()), then).stderr
    assert "another CPU (Abacus 9 then" in said and "another numpy (0.1 then" in said


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), ("5", 0.05), ("0.05", 0.05), ("0", 0)])
def test_shares(text: str, share: float) -> None:
    assert baseline.percent(text) == pytest.approx(share)
    with pytest.raises(InputError, match="not a share"):
        baseline.percent(f"{text} or so")


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("", ()), ("0", (0,)), ("0,2", (0, 2)), ("1-3,0", (0, 1, 2, 3)), ("0x5", (0, 2))],
)
def test_cpus(text: str, cpus: tuple[int, ...]) -> None:
    assert cli._cpus(text) == cpus

"""`sanderling bench`: what it measures, what it is fed, and a sentence where it is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import Result as Ran

import sanderling.measure.bench as home
from sanderling import DType, Graph, InputError, Model, Signature, load, save
from sanderling.cli import bench as cli
from sanderling.delegates.engines import to_onnx
from sanderling.measure import engine_process
from sanderling.measure.bench import Procedure
from sanderling.measure.inputs import Feeding
from sanderling.measure.record import Result, Setting

from .support.bench_command import F32, INT8, PEER, QUICK, call, fake_launch

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
    ("no such delegate, by the name of other verbs", (INT8, "--delegate", "abacus"), "abacus"),
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
    entry.inputs = {"": entry.inputs["data"], ":1": entry.inputs["count"]}
    x, n = Feeding({"": (5, 4)}, {":1": (6, 6)}).arrays(entry)
    assert x.shape == (5, 4) and n.tolist() == [6]


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

"""Profiles: steps with their ops, sums, rooflines, exports, and the verb."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import sanderling
from sanderling import picture
from sanderling.cli.app import app
from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.targets import host_target
from sanderling.errors import InputError, UnsupportedError
from sanderling.format import save
from sanderling.ir import DType, Graph, Model
from sanderling.measure import loops, profile_peers
from sanderling.measure import profile as profiles
from sanderling.measure import profile_ours as ours
from sanderling.measure import roofline as roofs
from sanderling.measure.profile_export import node_data, plot, to_csv, to_html
from sanderling.measure.profile_ours import CALL, LOST, Row
from sanderling.measure.roofline import Level, Roofline, cache_sizes, roofline
from sanderling.measure.statistics import summary
from tests.cpu.models import stack

DIGITS = Path(sanderling.__file__).parent / "data" / "digits_int8.tflite"
Record = dict[str, Any]
# Round figures, and a clock that is right.
ROOF = Roofline("a machine", "a target", 1, 1e9, {"f32": 50e9, "i16": 100e9, "i8": 200e9},
                [Level("L1", 32_000, 400e9), Level("L2", 1_000_000, 100e9),
                 Level("memory", None, 10e9)])  # fmt: skip

needs_litert = pytest.mark.skipif(not importlib.util.find_spec("ai_edge_litert"),
                                  reason="pip install ai-edge-litert")  # fmt: skip
needs_pictures = pytest.mark.skipif(not importlib.util.find_spec("matplotlib"),
                                    reason="pip install matplotlib")  # fmt: skip


@pytest.fixture(autouse=True)
def _known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the measurement of this machine."""
    made = Roofline(**{**ROOF.__dict__, "ticks": ticks()})
    for module in (profiles, ours):
        monkeypatch.setattr(module, "roofline", lambda *_, **__: made)


def ticks(known: list[float] = []) -> float:  # noqa: B006  measured once
    if not known:
        known.append(loops.ticks(host_target(), 0.01))
    return known[0]


def residual() -> Model:
    """A convolution whose result is added to its input: one step of two ops, then a view."""
    model = stack(quantised=False, layers=2, size=6, channels=8)
    graph = model.main
    end = graph.outputs[0]
    total = graph.tensor('sum, "of" <two>', DType.FLOAT32, end.shape)
    graph.add("ADD", [end, graph.inputs[0]], [total], fused_activation_function="NONE")
    shape = graph.constant("shape", np.int32([1, -1]))
    flat = graph.tensor("flat", DType.FLOAT32, (1, 288))
    graph.add("RESHAPE", [total, shape], [flat], new_shape=[1, -1])
    graph.outputs = [flat]
    return model


def saved(model: Model, folder: Path) -> Path:
    path = folder / "model.tflite"
    save(model, path)
    return path


def total(record: Record) -> float:
    return float(record["steps_ms"] + record["others_ms"])


# -- our own steps ------------------------------------------------------------------------------


def test_a_step_lists_its_ops() -> None:
    record = sanderling.profile(residual(), runs=3)
    steps = record["steps"]
    assert [s["type"] for s in steps] == ["CONV_2D", "CONV_2D"]
    assert [s["nodes"] for s in steps] == [[0], [1, 2]]
    assert steps[1]["name"] == "[y1]:1" and steps[1]["kernel"] == "conv_2d"
    assert record["nodes"][2]["type"] == "ADD" and record["free"] == [3]
    assert [s["macs"] for s in steps] == [36 * 64, 36 * 64] and record["macs"] == 72 * 64
    assert {s["delegate"] for s in steps} == {"cpu"}


def test_all_time_is_somewhere() -> None:
    record = sanderling.profile(stack(layers=3, size=20), runs=20)
    assert record["runs"] == len(record["samples_ms"]) == 20
    assert total(record) == pytest.approx(record["whole"]["mean"], rel=1e-6)
    last = record["others"][-1]
    assert last["cdf"] == pytest.approx(100, rel=1e-6)
    assert {o["name"] for o in record["others"]} == {CALL, LOST}
    for step in record["steps"]:
        assert 0 < step["min_ms"] <= step["median_ms"] <= step["max_ms"]
        assert step["first_ms"] > 0 and step["imbalance"] == 0
    assert record["first_ms"] > 0 and 0 < record["whole"]["min"] <= record["whole"]["p95"]


def test_bytes_are_those_touched() -> None:
    first = sanderling.profile(residual(), runs=1)["steps"][0]
    assert first["bytes_read"] == first["bytes_written"] == 36 * 8 * 4
    assert first["bytes_weights"] >= (8 * 8 + 8) * 4  # packed: at least what the file holds
    assert first["intensity"] == pytest.approx(2 * first["macs"] / first["bytes"])


def test_a_lookup_touches_the_rows_it_takes() -> None:
    graph = Graph()
    at = graph.input("at", DType.INT32, (3,))
    book = graph.constant("book", np.ones((1000, 16), np.float32))
    out = graph.tensor("out", DType.FLOAT32, (3, 16))
    graph.add("EMBEDDING_LOOKUP", [at, book], [out])
    graph.outputs = [out]
    for delegates in ((), ("reference",)):
        (row,) = sanderling.profile(Model([graph]), runs=1, delegates=delegates)["steps"]
        assert row["bytes_weights"] == row["bytes_written"] == 3 * 16 * 4


def test_two_workers_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sanderling.delegates.cpu.delegate.WORK_OF_WORKER", 1)
    record = sanderling.profile(stack(size=16), threads=2, runs=5)
    assert record["workers"] == 2
    assert "barriers" in {o["name"] for o in record["others"]}
    assert all(0 <= s["imbalance"] < 1 for s in record["steps"])
    assert total(record) == pytest.approx(record["whole"]["mean"], rel=1e-6)


def test_what_the_reference_runs_has_rows_too(monkeypatch: pytest.MonkeyPatch) -> None:
    takes = CpuDelegate.refuses
    monkeypatch.setenv("SANDERLING_CACHE", "off")
    monkeypatch.setattr(CpuDelegate, "refuses", lambda self, op: (
        "not today" if op.outputs[0].name == "y1" else takes(self, op)))  # fmt: skip
    record = sanderling.profile(stack(layers=3, size=6), runs=3)
    owners = [(s["part"], s["delegate"]) for s in record["steps"] if s["nodes"]]
    assert owners == [(0, "cpu"), (1, "reference"), (2, "cpu")]
    assert [s["nodes"] for s in record["steps"] if s["nodes"]] == [[0], [1], [2]]
    names = {o["name"] for o in record["others"]}
    assert {"between parts", "around the reference's ops"} <= names
    assert total(record) == pytest.approx(record["whole"]["mean"], rel=1e-6)
    assert "no compiled kernel" in record["advice"][2]


def test_steps_that_help_are_told_apart() -> None:
    """Codes are flipped to the compiler's type on the way in and out."""
    record = sanderling.profile(stack(layers=1), runs=2)
    helpers = [s for s in record["steps"] if s["helps"] is not None]
    assert helpers and all(record["steps"][s["helps"]]["nodes"] == [0] for s in helpers)
    assert all(s["name"] == "for [y0]:0" and not s["macs"] for s in helpers)


def test_a_constant_named_after_an_output_hides_no_op() -> None:
    model = stack(quantised=False, layers=1)
    model.main.tensors[2].name = "y0/ReadVariableOp"
    (step,) = sanderling.profile(model, runs=1)["steps"]
    assert step["nodes"] == [0]


def test_another_delegate_is_one_row() -> None:
    class Other:
        name = "other"

        def refuses(self, op: Any) -> str | None:
            return None

        def compile(self, part: Graph, options: Any) -> Any:
            return sanderling.runtime.delegate.find_delegate("reference").compile(part, options)

    class Executable:
        def __init__(self, inner: Any) -> None:
            self.run = inner.run

    other = Other()
    other.compile = lambda part, options: Executable(Other.compile(other, part, options))  # type: ignore[method-assign]
    sanderling.register_delegate("other", lambda: other)
    (row,) = sanderling.profile(residual(), runs=2, delegates=("other",))["steps"]
    assert row["nodes"] == [0, 1, 2, 3] and row["delegate"] == "other" and row["ms"] > 0


def test_what_a_call_costs_is_taken_off_the_rest() -> None:
    class Native(ours.Native):
        def __init__(self, workers: int) -> None:
            self.workers = workers

    for workers, rest in ((1, LOST), (2, "barriers")):
        pieces = dict(ours._pieces(Native(workers), np.array([1.0]), 0.2, clocked=False))
        assert pieces[CALL] == pytest.approx(0.2) and pieces[rest] == pytest.approx(0.8)
    assert ours.Nothing().call() >= 0


# -- the roofline -------------------------------------------------------------------------------


def test_the_limit_is_compute_or_memory() -> None:
    row = Row("CONV_2D", "", "cpu", "", macs=200_000, weights=1000, read=1000, written=0, kind="i8")
    found = profiles.limit(row, ROOF, held=5_000_000, seconds=2e-6)
    # 1 us of arithmetic; 0.0025 us of the first level, and 0.1 us of weights from memory.
    assert found["bound"] == "compute" and found["limit_ms"] == pytest.approx(1e-3)
    assert found["share"] == pytest.approx(0.5) and found["level"] == "L1+memory"
    row.read = 50_000_000
    found = profiles.limit(row, ROOF, held=50_001_000, seconds=1.0)
    assert found["bound"] == "memory" and found["level"] == "memory"
    assert found["limit_ms"] == pytest.approx(5.0001)
    assert profiles.limit(row, None, 0, 1.0)["share"] is None


def test_work_that_is_not_known_has_no_limit() -> None:
    found = profiles.limit(Row("Add (ND)", "", "xnnpack", ""), ROOF, held=1000, seconds=1e-6)
    assert found == {"limit_ms": None, "share": None, "bound": "", "level": ""}
    row = Row("CONV_2D", "", "xnnpack", "", macs=1, kind="i8")  # below what the clock can tell
    assert profiles.limit(row, ROOF, held=1000, seconds=0.0)["share"] is None


def test_a_disturbed_profile_says_so() -> None:
    quiet, busy = (summary([1.0] * 9 + [last]) for last in (2.0, 50.0))
    assert quiet is not None and busy is not None
    assert not profiles._disturbed(quiet)
    assert "5.9 times as long as the median" in profiles._disturbed(busy)[0]


def test_rates_by_type_are_those_of_the_median() -> None:
    step = {"type": "CONV_2D", "ms": 9.0, "median_ms": 1.0, "macs": 5e8} | dict.fromkeys(
        ("percent", "mem_kb", "times_called", "bytes"), 1)  # fmt: skip
    (found,) = profiles._by_type([step, step])
    assert found["ms"] == 18 and found["gops"] == pytest.approx(1e3)


def test_the_machine_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDERLING_CACHE", str(tmp_path))
    calls: list[int] = []

    def measure(target: Any, threads: int, progress: Any) -> Roofline:
        calls.append(threads)
        return ROOF

    monkeypatch.setattr(roofs, "measure", measure)
    for name in ("_who", "_compiler"):  # an edit of the package meanwhile is another matter
        monkeypatch.setattr(f"sanderling.store.{name}", lambda: "somebody")
    assert roofline(1) == roofline(1) == ROOF and calls == [1]
    roofline(1, refresh=True)
    assert calls == [1, 1]


def test_a_short_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofs, "TRIES", 1)
    monkeypatch.setattr(roofs, "CALL", 1e-4)
    monkeypatch.setattr(roofs, "_beyond", lambda *_: 1 << 22)
    told: list[tuple[str, int, int]] = []
    found = roofs.measure(host_target(), 2, lambda *what: told.append(what))
    assert found.threads == 2 and found.peaks["f32"] > 1e8 and found.ticks > 1e6
    speeds = [v.bandwidth for v in found.levels]
    assert speeds == sorted(speeds, reverse=True) and found.levels[-1].size is None
    assert told[-1][1] == told[-1][2] and Roofline.from_json(found.to_json()) == found


def test_caches_are_read_from_the_system(tmp_path: Path) -> None:
    for i, (level, kind, size) in enumerate([("1", "Data", "48K"), ("1", "Instruction", "32K"),
                                             ("2", "Unified", "2M")]):  # fmt: skip
        folder = tmp_path / f"index{i}"
        folder.mkdir()
        for name, content in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(content + "\n")
    assert cache_sizes(tmp_path) == [("L1", 48 << 10, False), ("L2", 2 << 20, False)]
    assert [name for name, *_ in cache_sizes(tmp_path / "none")] == ["L1", "L2", "L3"]


# -- exports ------------------------------------------------------------------------------------


def test_csv_parses() -> None:
    record = sanderling.profile(residual(), runs=2)
    rows = list(csv.DictReader(io.StringIO(to_csv(record))))
    steps = [r for r in rows if r["node type"] != "(no step)"]
    assert len(steps) == 2 and len(rows) == 2 + len(record["others"])
    assert list(rows[0])[:8] == ["node type", "first", "avg_ms", "%", "cdf%", "mem KB",
                                 "times called", "name"]  # fmt: skip
    assert steps[1]["nodes"] == "1 2" and float(steps[1]["avg_ms"]) > 0
    assert float(rows[-1]["cdf%"]) == pytest.approx(100)


def test_csv_keeps_names_with_commas_and_quotes() -> None:
    model = residual()
    model.main.tensors[-3].name = 'a, "b"\nc'
    record = sanderling.profile(model, runs=1)
    record["steps"][0]["name"] = 'a, "b"\nc'
    rows = list(csv.DictReader(io.StringIO(to_csv(record))))
    assert rows[0]["name"] == 'a, "b"\nc'


def test_node_data_sums_to_the_steps() -> None:
    """Keys are the places of ops in the file: Model Explorer's node ids."""
    record = sanderling.profile(stack(layers=2), runs=2)
    (graph,) = node_data(record).values()
    assert list(graph["results"]) == ["0", "1"]
    values = [r["value"] for r in graph["results"].values()]
    assert sum(values) == pytest.approx(record["steps_ms"]) and min(values) > 0
    stops = [g["stop"] for g in graph["gradient"]]
    assert stops[0] == 0 and stops[-1] == 1
    fused = next(iter(node_data(sanderling.profile(residual(), runs=1)).values()))["results"]
    assert fused["1"]["value"] > 0 and fused["2"]["value"] == 0


@needs_pictures
def test_the_page_needs_nothing_else() -> None:
    record = sanderling.profile(residual(), runs=2)
    page = to_html(record)
    assert page.count("<title>") == 1 + 2  # the page's, and one for each step
    assert "+ ADD [sum, &quot;of&quot; &lt;two&gt;]:2" in page
    assert not re.search(r'(src|href)="(?!#)', page.replace('xlink:href="#', 'x="#'))
    assert all(line in page for line in ("Roofline", "By type", "Run order", "What is no step"))


@needs_pictures
@pytest.mark.parametrize("name", ["p.svg", "p.png", "p.html"])
def test_plots_are_of_the_kind_of_their_name(name: str) -> None:
    record = sanderling.profile(stack(layers=1), runs=1)
    begins = {".svg": b"<?xml", ".png": b"\x89PNG", ".html": b"<!doctype html>"}
    assert plot(record, name).startswith(begins[picture.kind_of(name)])


@needs_pictures
def test_a_model_without_products_has_a_plot() -> None:
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (4,))
    y = graph.tensor("y", DType.FLOAT32, (4,))
    graph.add("ABS", [x], [y])
    graph.outputs = [y]
    record = sanderling.profile(Model([graph]), runs=1)
    assert plot(record, "p.svg") and to_html(record)


# -- other engines ------------------------------------------------------------------------------


@needs_litert
def test_litert_tells_its_ops(tmp_path: Path) -> None:
    record = sanderling.profile(DIGITS, runs=3, engine="litert")
    model = sanderling.load(DIGITS)
    assert record["runs"] == 3 and "LiteRT's profiler" in record["method"]
    matched = {n: s for s in record["steps"] for n in s["nodes"]}
    products = [i for i, op in enumerate(model.main.ops)
                if op.name in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")]  # fmt: skip
    assert set(products) <= set(matched)
    assert all(matched[i]["macs"] == record["nodes"][i]["macs"] > 0 for i in products)
    assert total(record) == pytest.approx(record["whole"]["mean"], rel=1e-6)


def test_what_a_peer_does_between_its_ops() -> None:
    def lost(*times: list[float]) -> list[float]:
        rows = [Row("", "", "", "", times=t) for t in times]
        return profile_peers._lost(ours.Taken(rows, whole=[3.0, 9.0]))

    assert lost([1.0, 1.0], [1.0, 2.0]) == [1.0, 6.0]  # by run
    assert lost([2.0], [1.0]) == [3.0]  # of the means


def test_a_costly_profiler_is_told() -> None:
    (said,) = profile_peers._cost([2e-3, 2e-3, 9e-3], [1e-3])
    assert "a run takes 1 ms, not 2 (medians)" in said
    assert not profile_peers._cost([1e-3], [1e-3]) and not profile_peers._cost([], [1e-3])
    assert 1 <= len(profile_peers._timed(lambda: None)) <= profile_peers.PLAIN_RUNS


def test_rows_are_matched_by_order_or_not_at_all() -> None:
    ops = list(residual().main.ops)

    def rows(*kinds: str) -> list[Row]:
        return [Row(kind, "", "", "") for kind in kinds]

    good = rows("Convolution (NHWC, F32) IGEMM", "Clamp (NC)", "Fully Connected (NC, F32) GEMM")
    assert "by their order" in profile_peers._match(good, ops)
    assert [r.nodes for r in good] == [[0], [], [1]]
    bad = rows("Convolution (NHWC, F32) IGEMM")
    assert "cannot be matched" in profile_peers._match(bad, ops) and not bad[0].nodes
    wrong = rows("Convolution (NHWC, F32) DWConv", "Convolution (NHWC, F32) DWConv")
    assert "cannot be matched" in profile_peers._match(wrong, ops)


def test_an_engine_that_fails_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Any:
        raise RuntimeError("Check failed\n\nno translator for X\n")

    monkeypatch.setitem(profile_peers.PEERS, "openvino", fails)
    with pytest.raises(UnsupportedError, match="no translator for X"):
        sanderling.profile(DIGITS, engine="openvino")


# -- the verb -----------------------------------------------------------------------------------


def cli(*words: object) -> Result:
    return CliRunner().invoke(app, ["profile", *map(str, words)])


def test_the_verb_prints_tables_and_writes_files(tmp_path: Path) -> None:
    files = {"--csv": tmp_path / "p.csv", "--node-data": tmp_path / "n.json",
             "--json": tmp_path / "p.json"}  # fmt: skip
    done = cli(saved(residual(), tmp_path), "--runs", 2,
               *(word for pair in files.items() for word in pair))  # fmt: skip
    assert done.exit_code == 0, done.output
    text = done.stdout
    assert re.search(r"\[node type\] +\[first\] +\[avg ms\].*\[times called\].*\[Name\]", text)
    for title in ("Run Order", "Top by Computation Time", "Summary by node type"):
        assert f"===== {title} =====" in text
    assert '+ ADD [sum, "of" <two>]:2' in text and "call into native code" in text
    record = json.loads(files["--json"].read_text())
    assert record["schema"] == "sanderling.profile/1" and len(record["advice"]) == 3
    assert record["advice"][1] in text
    assert len(files["--csv"].read_text().splitlines()) == 1 + 2 + len(record["others"])
    assert "main" in json.loads(files["--node-data"].read_text()) or record["graph"]


def test_the_verb_takes_inputs_and_shapes(tmp_path: Path) -> None:
    path = saved(stack(quantised=False, layers=1, size=6, channels=8), tmp_path)
    np.save(tmp_path / "x.npy", np.zeros((1, 6, 6, 8), np.float32))
    done = cli(path, "--runs", 1, "--input", tmp_path / "x.npy", "--by-type")
    assert done.exit_code == 0 and "Run Order" not in done.stdout, done.output
    done = cli(path, "--runs", 1, "--shape", "1,9,6,8", "--json", "-")
    assert json.loads(done.stdout)["macs"] == 9 * 6 * 64


BAD = {
    "missing model": (["nowhere.tflite"], "nowhere.tflite"),
    "zero threads": ([DIGITS, "--threads", 0], "threads is 0"),
    "zero runs": ([DIGITS, "--runs", 0], "runs is 0"),
    "unknown engine": ([DIGITS, "--engine", "abacus"], "there is no engine 'abacus'"),
    "engine without ops": ([DIGITS, "--engine", "onnxruntime"], "no times of single ops"),
    "delegate of a peer": ([DIGITS, "--engine", "litert", "--delegate", "cpu"], "no delegates"),
    "unknown delegate": ([DIGITS, "--delegate", "abacus"], "there is no delegate 'abacus'"),
    "unknown input": ([DIGITS, "--input", "z=x.npy"], "there is no input 'z'"),
    "missing file": ([DIGITS, "--input", "nowhere.npy"], "nowhere.npy"),
    "wrong shape": ([DIGITS, "--shape", "2"], "has 1 size"),
    "unknown signature": ([DIGITS, "--signature", "abacus"], "no signature 'abacus'"),
    "unwritable": ([DIGITS, "--csv", "/nowhere/p.csv"], "no folder '/nowhere'"),
    "kind of plot": ([DIGITS, "--plot", "p.gif"], "'.gif' is not a kind of picture"),
    "plot of nothing": ([DIGITS, "--plot", "p.png", "--no-roofline"], "without a roofline"),
    "one file twice": ([DIGITS, "--csv", "p.x", "--html", "p.x"], "into one file"),
    "precision": ([DIGITS, "--precision", "f8"], "no precision 'f8'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_a_sentence(case: str, tmp_path: Path,
                                 monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    words, says = BAD[case]
    done = cli(*words)
    assert done.exit_code == 2 and says in done.stderr, done.output
    assert not done.stdout and not list(tmp_path.iterdir())


@pytest.mark.parametrize("engine", ["litert", "openvino"])
def test_a_peer_that_is_not_installed(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ai_edge_litert", "ai_edge_litert.interpreter", "openvino"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    done = cli(DIGITS, "--engine", engine)
    assert done.exit_code == 2 and "pip install 'sanderling[peers]'" in done.stderr


def test_python_refuses_what_the_verb_refuses() -> None:
    with pytest.raises(InputError, match="there is no input 'z'"):
        sanderling.profile(DIGITS, inputs={"z": np.zeros(1)})
    with pytest.raises(InputError, match="threads is 0"):
        sanderling.profile(DIGITS, threads=0)
    with pytest.raises(InputError, match="an array of shape"):
        sanderling.profile(residual(), inputs={"x": np.zeros(3, np.float32)})


def test_what_profiling_costs_is_measured(capsys: pytest.CaptureFixture[str],
                                          tmp_path: Path) -> None:  # fmt: skip
    from benchmarks import profile_cost

    record = tmp_path / "cost.json"
    words = [str(DIGITS), "--seconds", "0.05", "--threads", "1", "--json", str(record)]
    assert profile_cost.main(words) in (0, 1)  # a busy machine decides
    assert "| digits_int8 | 1 | 1 |" in capsys.readouterr().out
    (row,) = json.loads(record.read_text())["rows"]
    assert row["plain"] > 0 and row["low"] <= row["cost"] <= row["high"]

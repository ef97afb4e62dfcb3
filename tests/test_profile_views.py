"""Profiles: exports, other engines, and the verb."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import sanderling
import sanderling.cli.profile as verb
from sanderling import plots
from sanderling.cli.app import app
from sanderling.errors import InputError, UnsupportedError
from sanderling.ir import DType, Graph, Model
from sanderling.measure import noise, profile_peers
from sanderling.measure import profile_ours as ours
from sanderling.measure import profiling as profiles
from sanderling.measure.profile_export import node_data, plot, to_csv, to_html
from sanderling.measure.profile_ours import ProfileRow
from sanderling.measure.roofline import Level, Roofline

from .support.conv_stacks import stack
from .support.profile_models import (
    DIGITS,
    known_machine,  # noqa: F401
    needs_litert,
    needs_pictures,
    residual,
    saved,
    total,
)

# -- exports ------------------------------------------------------------------------------------


def test_csv_parses() -> None:
    record = sanderling.profile(residual(), runs=2)
    rows = list(csv.DictReader(io.StringIO(to_csv(record))))
    steps = [r for r in rows if r["node type"] != "(no step)"]
    assert len(steps) == 2 and len(rows) == 2 + len(record["others"])
    assert list(rows[0])[:8] == [
        "node type",
        "first",
        "avg_ms",
        "%",
        "cdf%",
        "mem KB",
        "times called",
        "name",
    ]
    assert steps[1]["nodes"] == "1 2" and float(steps[1]["avg_ms"]) > 0
    assert float(rows[-1]["cdf%"]) == pytest.approx(100)


@needs_pictures
def test_a_share_above_the_roof_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything takes a fraction of what the machine is said to allow."""
    slow = Roofline("Abacus", "none", 1, 1e9, {"f32": 1.0}, [Level("memory", 1 << 40, 1.0)])
    monkeypatch.setattr(profiles, "_roof", lambda *_: slow)
    record = sanderling.profile(residual(), runs=1)
    note = next(n for n in record["notes"] if n.startswith("*"))
    assert "2 steps are above 100 % of the roof" in note and "--refresh-roofline" in note
    page, text = to_html(record), verb.text(record)
    for shown in (page, text):
        assert re.search(r"\d%\*", shown) and "above 100 % of the roof" in shown
    assert "Every step is at its roof or above" in profiles._slack(record["steps"])
    assert profiles.share_text(1.0) == "100%" and profiles.share_text(1.84) == "184%*"


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
    assert plot(record, name).startswith(begins[plots.kind_of(name)])


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
    products = [
        i
        for i, op in enumerate(model.main.ops)
        if op.name in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")
    ]
    assert set(products) <= set(matched)
    assert all(matched[i]["macs"] == record["nodes"][i]["macs"] > 0 for i in products)
    assert total(record) == pytest.approx(record["whole"]["mean"], rel=1e-6)


def test_what_a_peer_does_between_its_ops() -> None:
    def lost(*times: list[float]) -> list[float]:
        rows = [ProfileRow("", "", "", "", times=t) for t in times]
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

    def rows(*kinds: str) -> list[ProfileRow]:
        return [ProfileRow(kind, "", "", "") for kind in kinds]

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
    files = {
        "--csv": tmp_path / "p.csv",
        "--node-data": tmp_path / "n.json",
        "--json": tmp_path / "p.json",
    }
    done = cli(
        saved(residual(), tmp_path), "--runs", 2, *(word for pair in files.items() for word in pair)
    )
    assert done.exit_code == 0, done.output
    text = done.stdout
    assert re.search(
        r"\[node type\] +\[first\] +\[avg ms\] +\[median\].*\[times called\]"
        r".*\[Name\]",
        text,
    )
    for title in ("Run Order", "Top by Computation Time", "Summary by node type"):
        assert f"===== {title} =====" in text
    assert '+ ADD [sum, "of" <two>]:2' in text and "call into native code" in text
    record = json.loads(files["--json"].read_text())
    assert record["schema"] == "sanderling.profile/1" and len(record["advice"]) == 3
    assert record["advice"][1] in text
    assert len(files["--csv"].read_text().splitlines()) == 1 + 2 + len(record["others"])
    assert "main" in json.loads(files["--node-data"].read_text()) or record["graph"]


def test_one_interrupted_run_makes_no_slowest_step(tmp_path: Path) -> None:
    """The mean of a step holds it, the median does not: order and advice go by the latter."""
    record = sanderling.profile(residual(), runs=2, with_roofline=False)
    first, second = record["steps"]
    first |= {"ms": 900.0, "median_ms": 1.0, "percent": 99.0, "type": "FIRST"}
    second |= {"ms": 3.0, "median_ms": 3.0, "percent": 1.0, "type": "SECOND"}
    top = verb.text(record).split("Top by Computation Time")[1]
    assert top.index("SECOND") < top.index("FIRST")
    record |= {"by_type": [first, second], "others": []}
    assert profiles._where(record).startswith(
        "Most of the time goes into SECOND (75 %) and FIRST (25 %); the slowest step is SECOND"
    )


def test_threads_that_wait_for_cpus_are_named() -> None:
    """Not the ops that they wait between, and no op of 0 %."""
    record = sanderling.profile(residual(), runs=2, with_roofline=False)
    first, second = record["steps"]
    first |= {"median_ms": 12.0, "type": "FIRST"}
    second |= {"median_ms": 0.01, "type": "SECOND", "imbalance": 0.0}
    record |= {"by_type": [first, second], "others": []}
    assert profiles._where(record).startswith("Most of the time goes into FIRST (100 %); the")
    record["others"] = [{"name": "barriers", "median_ms": 88.0}]
    assert profiles._where(record).startswith(
        "Most of the time goes into barriers where threads wait for each other (88 %) and FIRST "
        "(12 %); the slowest step is FIRST"
    )
    record["setting"]["threads"], record["machine"]["usable"] = 64, 2
    assert "more of them (64) than CPUs (2): use --threads 2 or fewer" in profiles._try(record)


def test_the_verb_warns_of_more_threads_than_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "usable_cpu_count", lambda: 1)
    words = (DIGITS, "--runs", 1, "--no-roofline", "--threads")
    warning = "warning: more threads than the 1 CPU; use --threads 1 or fewer"
    assert warning in cli(*words, 2).stderr and warning not in cli(*words, 1).stderr


def test_the_verb_takes_inputs_and_shapes(tmp_path: Path) -> None:
    path = saved(stack(quantised=False, layers=1, size=6, channels=8), tmp_path)
    np.save(tmp_path / "x.npy", np.zeros((1, 6, 6, 8), np.float32))
    done = cli(path, "--runs", 1, "--input", tmp_path / "x.npy", "--by-type")
    assert done.exit_code == 0 and "Run Order" not in done.stdout, done.output
    done = cli(path, "--runs", 1, "--shape", "1,9,6,8", "--json", "-")
    assert json.loads(done.stdout)["macs"] == 9 * 6 * 64


@pytest.mark.parametrize("room", [60, 80, 100])
def test_the_table_fits_the_terminal(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step is and its time always stand there; what is left out is said."""
    record = sanderling.profile(residual(), runs=1)
    monkeypatch.setenv("COLUMNS", str(room))
    text = verb.text(record)
    tables = text.partition("[what]")[0]
    assert max(map(len, tables.splitlines())) <= room
    for row in record["steps"]:
        assert re.search(
            rf"^{row['type']} .*{verb._ms(row['ms'])} .*{row['percent']:.3f}%", text, re.M
        )
    assert "cdf%" in text.partition("left out of these lines")[2]
    assert ("[kernel]" in text) == (room >= 80)


def test_means_and_medians_are_told_apart() -> None:
    """Shares are of the mean run, advice goes by medians: page and text say so."""
    record = sanderling.profile(residual(), runs=3)
    page, text = to_html(record), verb.text(record)
    for said in (html.unescape(page), text):
        assert "are of the mean run" in said and "go by medians" in said
    assert ">median ms<" in page and ">mean ms<" in page and ">sum of %<" in page
    assert f"median {record['whole']['median']:.3g} ms" in page
    top = page.partition("Top by time")[2].partition("Run order")[0]
    order = re.findall(r"<tr><td class=n>(\d+)</td>", top)
    steps = sorted(record["steps"], key=lambda r: -r["median_ms"])
    assert order == [str(r["index"]) for r in steps[:10]]


def test_a_page_has_no_empty_columns() -> None:
    record = sanderling.profile(residual(), runs=2, with_roofline=False)
    head = to_html(record).partition("Run order")[2].partition("</thead>")[0]
    assert "of roof" not in head and "wait" not in head and "median ms" in head


def test_a_pipe_gets_all_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    text = verb.text(sanderling.profile(residual(), runs=1))
    assert "left out" not in text and all(c.lstrip(">~") in text for c in verb._COLUMNS)


@pytest.mark.parametrize("option, begins", [
    ("--csv", "node type,"), ("--html", "<!doctype html>"), ("--node-data", "{"),
])  # fmt: skip
def test_a_text_goes_to_stdout(
    option: str, begins: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = cli(DIGITS, "--runs", 1, option, "-")
    assert done.exit_code == 0 and done.stdout.lower().startswith(begins), done.output
    assert "Run Order" not in done.stdout and not list(tmp_path.iterdir())


BAD = {
    "missing model": (["nowhere.tflite"], "nowhere.tflite"),
    "zero threads": ([DIGITS, "--threads", 0], "sanderling: --threads is 0"),
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
    "kind of page": ([DIGITS, "--html", "page.txt"], "'.txt' is not a kind of page"),
    "plot of nothing": ([DIGITS, "--plot", "p.png", "--no-roofline"], "without a roofline"),
    "one file twice": ([DIGITS, "--csv", "p.html", "--html", "p.html"], "into one file"),
    "stdout twice": ([DIGITS, "--csv", "-", "--json", "-"], "stdout: two results"),
    "precision": ([DIGITS, "--precision", "f8"], "no precision 'f8'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_a_sentence(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    with pytest.raises(InputError, match="`threads` is 0"):
        sanderling.profile(DIGITS, threads=0)
    with pytest.raises(InputError, match="an array of shape"):
        sanderling.profile(residual(), inputs={"x": np.zeros(3, np.float32)})


def test_what_profiling_costs_is_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from benchmarks import profile_cost

    record = tmp_path / "cost.json"
    words = [str(DIGITS), "--seconds", "0.05", "--threads", "1", "--json", str(record)]
    assert profile_cost.main(words) in (0, 1)  # a busy machine decides
    assert "| digits_int8 | 1 | 1 |" in capsys.readouterr().out
    (row,) = json.loads(record.read_text())["rows"]
    assert row["plain"] > 0 and row["low"] <= row["cost"] <= row["high"]

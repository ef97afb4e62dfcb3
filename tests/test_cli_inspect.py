"""`sanderling inspect`: tables, names, figures, and shapes that a file leaves open."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sanderling import load, save
from sanderling.cli.common import shorten
from sanderling.ir import DType, Graph, Model, Tensor
from sanderling.ir.compare import models_equal
from sanderling.ir.text import from_text
from sanderling.measure import inspect as describe
from sanderling.tables import table

from .conformance.cases_control import emit, graph
from .support.command_line import F32, INT8, answer, call, stored
from .support.diff_command import restless

# -- inspect ------------------------------------------------------------------------------------


def test_inspect_shows_a_table() -> None:
    text = call("inspect", INT8).stdout
    for word in ("CONV_2D", "MACs", "parameters", "arena", "full integer", "input", "output"):
        assert word in text
    assert "zero point" in text and "role" not in text and "#  op" not in text
    assert "role" in call("inspect", INT8, "--tensors").stdout
    assert "#  op" in call("inspect", INT8, "--ops").stdout
    assert not any(line.endswith(" ") for line in text.splitlines())


@pytest.mark.parametrize("target", ["-", "file"])
def test_inspect_json_is_the_same_content(tmp_path: Path, target: str) -> None:
    path = tmp_path / "record.json"
    result = call("inspect", INT8, "--json", "-" if target == "-" else path)
    record = json.loads(result.stdout if target == "-" else path.read_text())
    assert record == json.loads(json.dumps(describe(INT8)))
    assert record["schema"] == "sanderling.inspect/1" and record["macs"] > 0
    assert target == "-" or "CONV_2D" in result.stdout


@pytest.mark.parametrize("option", ["--ops", "--tensors", "--arena", "--delegate=reference"])
def test_inspect_fits_the_terminal(
    tmp_path: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "/".join(["scope"] * 30)
    g = Graph()
    x = g.input(name, DType.FLOAT32, (1, 4))
    y = g.tensor(f"first/{name}/last;second/{name}", DType.FLOAT32, (1, 4))
    g.add("ABS", [x], [y])
    g.outputs = [y]
    path = stored(tmp_path, Model([g]))
    monkeypatch.delenv("COLUMNS", raising=False)
    whole = call("inspect", path, option).stdout
    if option == "--arena":
        assert name in whole
        return
    # In a file there is no width to keep to, but a name takes no more than its share.
    assert name not in whole and max(map(len, whole.splitlines()[8:])) < 60 + 90
    assert name in call("inspect", path, option, "--json", "-").stdout
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    lines = call("inspect", path.name, option).stdout.splitlines()
    assert max(map(len, lines)) <= 80 and not any(line.endswith(" ") for line in lines)
    assert any("..." in line for line in lines)


@pytest.mark.parametrize(
    "text, room, short",
    [
        ("short", 5, "short"),
        ("conv/Relu;conv/Bias", 14, "conv/Relu;..."),
        ("abcdefghijklmnopqrst", 12, "abc...opqrst"),
        ("abcdef/ghijkl/mnopqr;second", 12, "abc...qr;..."),
        ("[model/conv/Relu;model/conv/Bias]:12", 20, "[mod.../Relu;...]:12"),
    ],
)
def test_names_are_shortened(text: str, room: int, short: str) -> None:
    assert shorten(text, room) == short and len(shorten(text, room)) <= room


@pytest.mark.parametrize(
    "names, short",
    [
        (["mlp_large_f32.tflite", "mlp_large_int8.tflite"], ["...f32.tf...", "...int8.t..."]),
        (
            ["net/block_1/expand/conv/out", "net/block_2/expand/conv/out"],
            ["...1/expa...", "...2/expa..."],
        ),
        (
            ["abc/x1/bbbbbb/one/cccccc", "abc/x1/bbbbbb/two/cccccc", "abc/x2/bbbbbb/two/cccccc"],
            ["...one/cc...", "...two/cc...", "...2/bbbb..."],
        ),
        (["the same twice in a row"] * 2, ["the... a row"] * 2),
    ],
)
def test_names_that_differ_look_different(
    names: list[str], short: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "16")
    lines = table(["~name", "ms"], [[name, "1"] for name in names]).splitlines()[2:]
    assert [line.split("  ")[0] for line in lines] == short


def test_the_first_values_are_whole_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    line = call("run", INT8, "--random", 0).stdout.splitlines()[2]
    words = line.split()[6:]
    assert words[-1] == "..." and len(words) > 1 and len(line) <= 60
    monkeypatch.setenv("COLUMNS", "200")
    whole = call("run", INT8, "--random", 0).stdout.splitlines()[2].split()[6:]
    assert whole[: len(words) - 1] == words[:-1] and "..." not in whole


def test_names_in_files_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table in a file is not as wide as its widest name; $COLUMNS asks for more."""
    monkeypatch.delenv("COLUMNS", raising=False)
    row = ["a" * 300, "b " * 50]
    lines = table(["~name", "because"], [row]).splitlines()
    assert {len(line) for line in lines[1:]} == {60 + 2 + 99, 60 + 2 + 100}
    assert "60 letters" in " ".join(call("--help").stdout.split())
    monkeypatch.setenv("COLUMNS", "500")
    assert "a" * 300 in table(["~name", "because"], [row])


def test_a_wide_table_goes_on_below_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    columns, row = ["what", ">peak of runs", ">size", ">in all"], ["a setting", "1 K", "2 K", "3 K"]
    monkeypatch.delenv("COLUMNS", raising=False)
    assert table(columns, [row]).splitlines()[0] == "what       peak of runs  size  in all"
    monkeypatch.setenv("COLUMNS", "28")
    assert table(columns, [row], labels=1).splitlines() == [
        "           peak",
        "             of         in",
        "what       runs  size  all",
        "---------  ----  ----  ---",
        "a setting   1 K   2 K  3 K",
    ]
    monkeypatch.setenv("COLUMNS", "22")
    first, second = table(columns, [row], labels=1).split("\n\n")
    assert first.splitlines()[-1] == "a setting   1 K   2 K"
    assert second.splitlines()[-1] == "a setting  3 K"


def test_sentences_go_on_below_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    made = table(["op", "|because"], [("ADD", "only where the first input is of four dimensions")])
    assert made.splitlines()[2:] == [
        "ADD  only where the first input is of",
        "     four dimensions",
    ]


def test_ops_that_are_refused_for_one_reason_are_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    text = call("inspect", F32, "--delegate", "hexagon", "--delegate", "coreml:3").stdout
    assert len(re.findall("^0, 1 +2  CONV_2D", text, re.M)) == 1
    assert "rewrites to try (`sanderling rewrite MODEL --for\n  hexagon`): int8 model\n" in text
    assert all(len(line) <= 60 for line in text.splitlines() if line.startswith("borders"))


def test_names_cannot_steer_the_terminal(tmp_path: Path) -> None:
    g = Graph("\x1b[2J")
    g.outputs = [g.input("\x1b[31mred\n", DType.FLOAT32, (1,))]
    text = call("inspect", stored(tmp_path, Model([g])), "--tensors").stdout
    assert "\x1b" not in text and "\\x1b[31mred\\n" in text and "op type" not in text


STEERS = "\x1b]0;title\x07\x1b[31mred\r"


def test_nor_in_an_error_or_a_warning(tmp_path: Path) -> None:
    g = Graph()
    g.outputs = [g.input(STEERS, DType.FLOAT32, (1,))]
    model = stored(tmp_path, Model([g]))
    for words, status in (
        (["inspect", model, "--shape", "x=1"], 2),
        (["run", model], 2),
        (["inspect", f"{tmp_path}/{STEERS}"], 2),
        (["inspect", model, "--json", f"{tmp_path}/{STEERS}.json"], 0),
    ):
        told = call(*words, status=status).stderr
        assert "\x1b" not in told and "\x07" not in told and "\\x1b]0;title\\x07" in told, told


def test_shapes_that_the_file_does_not_state(tmp_path: Path) -> None:
    g = Graph()
    x = g.input("x", DType.FLOAT32, (2, 3))
    absolute, places, total = (
        g.tensor(n, t)
        for n, t in (("abs", DType.FLOAT32), ("places", DType.INT64), ("sum", DType.FLOAT32))
    )
    g.add("ABS", [x], [absolute])
    g.add("WHERE", [absolute], [places])
    g.add("SUM", [absolute, g.constant("axes", np.int32([0, 1]))], [total], keep_dims=False)
    g.outputs = [places, total]
    path = stored(tmp_path, Model([g]))
    text = call("inspect", path, "--ops").stdout
    for shown in ("f32[2,3]", "i64[?]", "f32[]"):
        assert shown in text
    record = answer("inspect", path)
    assert [t["shape"] for t in record["graphs"][0]["tensors"]] == [[2, 3], [2, 3], None, [], [2]]
    assert record["graphs"][0]["ops"][2]["parameters"] == 0 == record["parameters"]  # axes
    assert record["graphs"][0]["ops"][0]["bytes_written"] == 24


def test_inspect_sums_by_type() -> None:
    record = answer("inspect", F32)
    (main,) = record["graphs"]
    first = main["types"][0]
    assert (first["name"], first["count"]) == ("CONV_2D", 2)
    assert sum(t["macs"] for t in main["types"]) == record["macs"]
    assert sum(t["parameters"] for t in main["types"]) == record["parameters"]


def nested(tmp_path: Path, branches: int) -> Path:
    """IFs with branches that are the same but for their names."""
    model = Model([Graph()])
    for number in range(branches):
        model.graphs.append(multiplied(f"branch_{number}"))
    g = model.main
    x, on = g.input("x", DType.FLOAT32, (1, 4)), g.input("on", DType.BOOL, ())
    for number in range(branches):
        y = g.tensor(f"y{number}", DType.FLOAT32, (1, 4))
        same = model.graphs[1 + number]
        g.add("IF", [on, x], [y], then_subgraph_index=same, else_subgraph_index=same)
        x = y
    g.outputs = [x]
    return stored(tmp_path, model)


def multiplied(name: str) -> Graph:
    g = Graph(name)
    x = g.input(f"{name}/x", DType.FLOAT32, (1, 4))
    y = g.tensor(f"{name}/y", DType.FLOAT32, (1, 4))
    g.add("FULLY_CONNECTED", [x, g.constant(f"{name}/w", np.ones((4, 4), np.float32)), None], [y])
    g.outputs = [y]
    return g


def test_inspect_shows_graphs_that_are_alike_once(tmp_path: Path) -> None:
    path = nested(tmp_path, 5)
    text = call("inspect", path, "--ops", "--tensors").stdout
    assert "graph 0 'main'" in text and "graph 1 'branch_0': 1 op" in text
    assert "branch_1" not in text
    assert "graphs 2 to 5 are the same as graph 1 but for names (1 op each)" in text
    every = call("inspect", path, "--ops", "--tensors", "--all").stdout
    assert all(f"graph {n + 1} 'branch_{n}'" in every for n in range(5)) and "same" not in every
    assert "graph 1 is the same" not in call("inspect", nested(tmp_path, 1)).stdout


def test_inspect_counts_what_is_called_once(tmp_path: Path) -> None:
    record = json.loads(call("inspect", nested(tmp_path, 3), "--json", "-").stdout)
    assert record["macs"] == record["graphs"][0]["macs"] == 3 * 16


def test_inspect_text_parses_back() -> None:
    text = call("inspect", INT8, "--text").stdout
    assert models_equal(load(INT8), from_text(text, weights=load(INT8))) is None


def test_inspect_arena() -> None:
    text = call("inspect", INT8, "--arena").stdout
    assert "offset" in text and "in all" in text and "graph main" in text


def test_inspect_delegate(tmp_path: Path) -> None:
    assert (
        "delegation: 1 part: 5 ops on reference"
        in call("inspect", INT8, "--delegate", "reference").stdout
    )
    path = stored(
        tmp_path,
        Model([graph("main", lambda g, x: [emit(g, "custom.Mystery", [x], (3,))], ("f32", (3,)))]),
    )
    text = call("inspect", path, "--delegate", "reference").stdout
    assert "1 op on reference" in text and "not supported" in text and "custom.Mystery" in text
    record = answer("inspect", path, "--delegate", "reference")
    assert "not supported" in record["delegates"][0]["ops"][0]["refusals"][0]["reason"]


def test_inspect_an_accelerator_by_its_rules() -> None:
    text = call("inspect", F32, "--delegate", "nnapi:29").stdout
    assert "1 part: 5 ops on nnapi:29" in text and "borders: 2 tensors" in text
    text = call("inspect", F32, "--delegate", "hexagon", "--delegate", "gpu", "--ops").stdout
    assert "only where input 0 is u8 or i8" in text and "tflite/delegates/hexagon/utils.cc" in text
    assert "5 ops on gpu" in text and "yes" in text
    record = answer("inspect", F32, "--delegate", "coreml:3")["accelerators"][0][0]
    assert record["taken"] == 4 and record["ops"][2]["refusals"][0]["kind"] == "level"


@pytest.mark.parametrize("verb, name, said", [
    ("inspect", "nnapi:99", "the rules of nnapi are: nnapi:27, "),
    ("inspect", "coreml:4", "the rules of coreml are: coreml:2, coreml:3; "),
    ("inspect", "gpuu", "did you mean gpu? "),
    ("inspect", "litrt", "did you mean litert? "),
    ("run", "nnapi:29", "only the rules of nnapi are known, for `inspect` and `rewrite`"),
    ("run", "xnnpack", "to run on it here: litert"),
    ("run", "litrt", "did you mean litert? "),
    ("inspect", "GPU", "did you mean gpu? "),
    ("run", "GPU", "did you mean gpu? "),
    ("run", "NNAPI", "only the rules of nnapi are known, for `inspect` and `rewrite`"),
    ("run", "gpu:tflite", "'gpu:tflite' is a table of rules, for `inspect` and `rewrite`"),
    ("run", "gpu:sanderling", "to run a model here, name the delegate: gpu"),
    ("run", "coreml:2", "'coreml:2' is a table of rules, for `inspect` and `rewrite`"),
    ("inspect", "gpu:lite", "the rules of gpu are: gpu, gpu:litert, "),
    ("inspect", "gpu:timeout=0", "cannot be '0' give a number of seconds, more than 0"),
])  # fmt: skip
def test_names_of_delegates_that_are_not_known(verb: str, name: str, said: str) -> None:
    result = call(verb, F32, "--delegate", name, status=2)
    assert said in " ".join(result.output.split())


@pytest.mark.parametrize("name", ["gpu:backend=vulkan", "gpu:backend", "gpu:speed=1"])
def test_a_wrong_option_is_no_table_of_rules(name: str) -> None:
    said = [call(verb, F32, "--delegate", name, status=2).output for verb in ("inspect", "run")]
    assert said[0] == said[1] and "the rules of" not in said[0]


def test_inspect_all_accelerators() -> None:
    text = call("inspect", F32, "--delegate", "all").stdout
    assert "model types (this file: float32)" in text and "quantisation-aware" in text
    assert "no 100%*" in text and "* float16 on NNAPI: no, says the guide" in text
    rows = answer("inspect", INT8, "--delegate", "all")["model_types"]["rows"]
    assert len(rows) == 1 and rows[0]["cells"]["Edge TPU"]["taken"]


# -- open dimensions and shared weights ------------------------------------------------------------


def test_inspect_advises_shapes_only_where_they_are_the_problem(tmp_path: Path) -> None:
    def body(g: Graph, x: Tensor) -> list[Tensor]:
        return [emit(g, "SQUEEZE", [x], (4,), dtype="bool", squeeze_dims=[])]

    save(Model([graph("main", body, ("f64", (1, 4)))]), tmp_path / "m.tflite")
    text = " ".join(call("inspect", tmp_path / "m.tflite").stdout.split())
    assert "it does not run, so its MACs" in text and "--shape" not in text
    assert "is bool: it gives" in text  # with what is right


def test_inspect_has_no_figures_of_shapes_that_do_not_run(tmp_path: Path) -> None:
    path = stored(tmp_path, restless())
    text = call("inspect", path).stdout
    assert "it does not run on these shapes" in text and "SLICE 'y'" in text
    assert re.search(r"MACs +not known", text) and "--shape" in text and "arena 0" not in text
    record = json.loads(call("inspect", path, "--json", "-").stdout)
    assert record["macs"] is None and record["graphs"][0]["arena_bytes"] is None
    assert "not known" in call("inspect", path, "--arena").stdout
    text = call("inspect", path, "--shape", "1,3,4,2").stdout
    assert "f32[1,6,8,2]" in call("inspect", path, "--shape", "x=1,3,4,2", "--tensors").stdout
    assert "arena" in text and "does not run" not in text and "f32[1,2,3,2]" in text
    assert "no input 'z'" in call("inspect", path, "--shape", "z=1,3,4,2", status=2).stderr


def test_inspect_says_that_sizes_are_open(tmp_path: Path) -> None:
    g = Graph()
    x = g.input("x", DType.FLOAT32, (1, 4), signature=(-1, 4))
    y = g.tensor("y", DType.FLOAT32, (1, 4))
    g.add("ABS", [x], [y])
    g.outputs = [y]
    path = stored(tmp_path, Model([g]))
    assert "figures are those of input 'x' f32[-1,4] at [1, 4]" in call("inspect", path).stdout
    text = call("inspect", path, "--shape", "x=8,4").stdout
    assert "sizes are open" not in text and "f32[8,4]" in text


def test_inspect_counts_shared_weights_once_and_shape_reads_nothing(tmp_path: Path) -> None:
    g = Graph()
    x = g.input("x", DType.FLOAT32, (1, 8))
    weights = g.constant("w", np.ones((8, 8), np.float32))
    a, b = g.tensor("a", DType.FLOAT32, (1, 8)), g.tensor("b", DType.FLOAT32, (1, 8))
    n, row = g.tensor("n", DType.INT32, (2,)), g.tensor("row", DType.FLOAT32, (1, 8))
    g.add("FULLY_CONNECTED", [x, weights, None], [a])
    g.add("FULLY_CONNECTED", [a, weights, None], [b])
    g.add("SHAPE", [b], [n], out_type="INT32")
    g.add("GATHER", [weights, g.constant("at", np.array([3], np.int32))], [row], axis=0)
    g.outputs = [b, n, row]
    record = json.loads(call("inspect", stored(tmp_path, Model([g])), "--json", "-").stdout)
    types = {t["name"]: t for t in record["graphs"][0]["types"]}
    assert sum(t["parameters"] for t in types.values()) == record["parameters"] == 64
    assert types["SHAPE"]["bytes_read"] == 0 and types["GATHER"]["bytes_read"] == 32 + 4


@pytest.mark.parametrize("verb", ["run", "bench", "profile", "trace", "diff", "inspect",
                                  "quantize", "eval imagenet"])  # fmt: skip
def test_every_verb_that_needs_a_shape_takes_one(verb: str) -> None:
    assert "--shape" in call(*verb.split(), "--help").stdout


def test_open_sizes_of_pictures_are_stated_to_eval_and_quantize(tmp_path: Path) -> None:
    """A classifier of pictures of any size; the file's stand-in is one pixel."""
    g = Graph()
    x = g.input("x", DType.FLOAT32, (1, 1, 1, 3), signature=(1, -1, -1, 3))
    mean, out = g.tensor("mean", DType.FLOAT32, (1, 3)), g.tensor("scores", DType.FLOAT32, (1, 3))
    g.add("MEAN", [x, g.constant("axes", np.array([1, 2], np.int32))], [mean], keep_dims=False)
    g.add("SOFTMAX", [mean], [out], beta=9.0)
    g.outputs = [out]
    path = stored(tmp_path, Model([g]))
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for number, colour in enumerate(("red", "lime", "blue")):
        image = Image.new("RGB", (8, 8), "white")
        image.paste(colour, (0, 0, 8, 7))
        image.save(pictures / f"{number}.png")
    (tmp_path / "labels.txt").write_text("0\n1\n2\n")
    words = path, "--images", pictures, "--labels", tmp_path / "labels.txt", "--shape", "1,8,8,3"
    text = call("eval", "imagenet", *words, "--preset", "unit", "--delegate", "reference").stdout
    assert "Top-1 Accuracy: 1" in text
    made = tmp_path / "made.tflite"
    call(
        "quantize",
        path,
        "-o",
        made,
        "--data",
        pictures,
        "--shape",
        "x=1,8,8,3",
        "--corrections",
        "none",
        "--ranges",
        "minmax",
        "--weights",
        "max",
    )
    assert load(made).main.inputs[0].shape == (1, 8, 8, 3)

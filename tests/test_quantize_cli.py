"""`sanderling quantize`: options, files, suggestions, pages; and sentences where something
is wrong, with nothing written."""

from __future__ import annotations

import glob
import inspect
import json
import re
import shlex
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sanderling
from sanderling import load, quantize, save
from sanderling.cli import quantize as verb
from sanderling.cli.quantize import parse_rule
from sanderling.ir import DType, Model
from sanderling.optimize.judging.layer_error import LayerRow
from sanderling.optimize.judging.page import bounds, report_page, suspects
from sanderling.optimize.modes.recipe import Choice
from sanderling.optimize.suggest import TREE, expected_size, suggest

from .support.quantize_command import (
    DATA,
    F32,
    FAST,
    IMAGES,
    INT8,
    LABELS,
    PLAIN,
    call,
    digits,
    parents,
    refused,
    samples,
)


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return digits(tmp_path_factory.mktemp("rows"), 0, 40)


@pytest.fixture(scope="session")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return digits(tmp_path_factory.mktemp("labelled"), 100, 180)


# -- the plain way ------------------------------------------------------------------------------


def test_every_option_of_the_function_is_one_of_the_command() -> None:
    behind = set(inspect.signature(quantize).parameters)
    options = set(inspect.signature(verb.quantize).parameters)
    assert behind - options <= {"progress", "target"}, "a target is made of several options"


def test_int8_from_rows_with_report_and_json(rows: Path, tmp_path: Path) -> None:
    out, page, record = (tmp_path / n for n in ("out.tflite", "page.html", "report.json"))
    text = call(
        F32, "-o", out, "--data", rows, "--samples", 20, "--report", page, "--json", record, *FAST
    ).stdout
    assert "20 of 40 rows" in text and "chosen" in text and "5 ops int8" in text
    made = json.loads(record.read_text())
    assert made["schema"] == "sanderling.quantize/1" and made["samples"] > 10
    assert made["size_after"] == out.stat().st_size < 0.4 * made["size_before"]
    right = load(out).compile()
    answers = [right(image[None]).argmax() for image in IMAGES[200:260]]
    assert np.mean(answers == LABELS[200:260]) > 0.9
    assert {layer["bits"] for layer in made["layers"]} == {8}
    html = page.read_text()
    assert html.count("<svg") == 2 and "RMSE" in html
    assert not re.search(r'(?:src|href)="(?!#)', html), "it needs nothing but itself"


def test_json_on_stdout_and_what_has_no_effect(rows: Path) -> None:
    result = call(F32, "--mode", "dynamic", "--data", rows, "--finer", "float", "--json", "-")
    record = json.loads(result.stdout)
    assert record["modes"]["dynamic"] and "nothing is written" in result.stderr
    assert "--data was not looked at" in result.stderr and "--finer has no effect" in result.stderr


def test_without_data_it_warns_and_notes(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="no calibration data"):
        text = call(F32, "-o", tmp_path / "q.tflite", *FAST).stdout
    assert "made-up data" in text and (tmp_path / "q.tflite").is_file()


def test_rules_and_recipe(rows: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("- {op: FULLY_CONNECTED, mode: int16x8}\n- {op: SOFTMAX, mode: float}\n")
    out = tmp_path / "q.tflite"
    text = call(
        F32,
        "-o",
        out,
        "--data",
        rows,
        "--recipe",
        recipe,
        "--rule",
        "op=FULLY_CONNECTED, mode=float",
        *FAST,
    ).stdout
    assert "3 ops int8, 2 ops float" in text, "the rule comes after the recipe and wins"
    kinds = {op.name: op.outputs[0].dtype for op in load(out).main.ops}
    assert kinds["CONV_2D"] is DType.INT8 and kinds["FULLY_CONNECTED"] is DType.FLOAT32


def test_a_comma_in_a_name_is_not_the_end_of_it() -> None:
    assert parse_rule("name=a,b/*, mode=int8") == {"name": "a,b/*", "mode": "int8"}
    assert parse_rule("from=x,to=y,mode=float") == {"from": "x", "to": "y", "mode": "float"}


def test_integer_inputs_and_outputs(rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "q.tflite"
    call(
        F32, "-o", out, "--data", rows, "--strict", "--inputs", "uint8", "--outputs", "int8", *FAST
    )
    graph = load(out).main
    assert (graph.inputs[0].dtype, graph.outputs[0].dtype) == (DType.UINT8, DType.INT8)


def test_kept_statistics_make_the_same_file(rows: Path, tmp_path: Path) -> None:
    words = (F32, "--data", rows, "--keep", tmp_path / "kept.npz", *FAST)
    call(*words, "-o", tmp_path / "a.tflite")
    call(*words, "-o", tmp_path / "b.tflite")
    assert (tmp_path / "a.tflite").read_bytes() == (tmp_path / "b.tflite").read_bytes()


def test_interrupted_it_goes_on(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, out = tmp_path / "kept.npz", tmp_path / "q.tflite"
    seen = 0

    def stop(what: str, done: int, total: int) -> None:
        nonlocal seen
        seen += what == "calibrating"
        if seen == 15:
            raise KeyboardInterrupt

    words = (F32, "-o", out, "--data", rows, "--keep", kept, *FAST)
    with monkeypatch.context() as patch:
        patch.setattr(verb, "progress", lambda: _Shown(stop))
        text = call(*words, status=130).stderr
    assert "goes on from there" in text and kept.is_file() and not out.exists()
    call(*words)
    whole = tmp_path / "whole.tflite"
    call(F32, "-o", whole, "--data", rows, *FAST)
    assert out.read_bytes() == whole.read_bytes()


class _Shown:
    def __init__(self, show: Any) -> None:
        self.show = show

    def __enter__(self) -> Any:
        return self.show

    def __exit__(self, *_: object) -> None:
        pass


def test_latency_is_told_for_both_engines(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(before: Model, after: Model, threads: int) -> list[dict[str, Any]]:
        from sanderling.optimize.judging.latency import compare_latency

        return compare_latency(before, after, threads, seconds=0.2)

    monkeypatch.setattr(verb, "compare_latency", short)
    record = json.loads(call(F32, "--mode", "float16", "--latency", "--json", "-").stdout)
    assert [r["engine"] for r in record["latency"]] == ["sanderling", "litert"]
    for row in record["latency"]:
        assert "error" in row or row["low"] <= row["speedup"] <= row["high"]
    assert record["latency"][0]["before"] > 0


# -- suggestions --------------------------------------------------------------------------------


@pytest.mark.parametrize(("situation", "mode", "words"), [
    ({}, "dynamic", ""),
    ({"goal": "accuracy"}, "float16", ""),
    ({"accelerator": "gpu", "data": True}, "float16", ""),
    ({"data": True}, "int8", "--data"),
    ({"accelerator": "edgetpu", "data": True}, "int8", "--strict --inputs int8"),
    ({"accelerator": "npu16", "data": True}, "int16x8", ""),
    ({"data": True, "goal": "accuracy"}, "int8", "--min-agreement"),
])  # fmt: skip
def test_the_tree_has_an_answer(situation: dict[str, Any], mode: str, words: str) -> None:
    found = suggest(F32, **situation)
    assert found.mode == mode and words in found.command and found.reasons
    assert found.mode not in [o["mode"] for o in found.otherwise]


def test_the_last_branch_always_holds() -> None:
    found = suggest(F32)
    assert list(TREE[-1].find(found.situation))
    assert suggest(F32, accelerator="micro").cautions, "integers without data"


@pytest.mark.parametrize("mode", ["float16", "dynamic", "int8", "weight-int4"])
def test_expected_sizes_are_near(mode: str) -> None:
    made, _ = quantize(F32, mode, samples(10), **PLAIN)
    before, after = len(sanderling.dump(load(F32))), len(sanderling.dump(made))
    assert abs(expected_size(load(F32), mode) - after) < 0.06 * before


def test_suggested_on_the_command_line(rows: Path, tmp_path: Path) -> None:
    text = call(F32, "--suggest", "--data", rows, "--goal", "latency").stdout
    assert "mode     int8" in text and f"--data {rows}" in text
    record = json.loads(call(F32, "--suggest", "--json", "-").stdout)
    assert record["schema"] == "sanderling.suggest/1" and record["expected_size"] < record["size"]
    command = record["command"].removeprefix("sanderling quantize ").split()
    call(*[tmp_path / w if w.startswith("digits_f32_") else w for w in command])
    assert "quantised already" in refused(tmp_path, INT8, "--suggest")
    assert "no goal 'sped'" in refused(tmp_path, F32, "--suggest", "--goal", "sped")


def suggested(*words: object) -> str:
    return str(json.loads(call(F32, "--suggest", "--json", "-", *words).stdout)["command"])


def test_a_suggested_command_keeps_what_was_given(rows: Path) -> None:
    command = suggested(
        "--data",
        rows,
        "--preset",
        "my preset.json",
        "--mean",
        "1,2",
        "--bgr",
        "--rule",
        "op=SOFTMAX,mode=float",
        "--rule",
        "name=a*,mode=float",
        "--accelerator",
        "npu16",
    )
    assert command.endswith(
        f"-o digits_f32_int16x8.tflite --mode int16x8 --data {rows} --preset 'my preset.json' "
        "--mean 1,2 --bgr --rule op=SOFTMAX,mode=float --rule 'name=a*,mode=float'"
    )
    plain = suggested("--data", rows, "--preset", "unit", "--minimum", 8, "--accelerator", "gpu")
    assert plain.endswith("--mode float16 --minimum 8"), "samples have no effect there"


def test_what_was_given_wins_over_what_is_suggested(rows: Path, tmp_path: Path) -> None:
    words = ("--data", rows, "-o", tmp_path / "q.tflite")
    command = suggested(*words, "--goal", "accuracy", "--min-snr", 20, *FAST)
    assert command.count("--min-") == 1 and "--min-snr 20.0" in command
    call(*shlex.split(command)[2:])
    assert (tmp_path / "q.tflite").is_file(), "it can be pasted"
    for_tpu = suggested(*words, "--accelerator", "edgetpu", "--inputs", "uint8")
    assert "--inputs uint8" in for_tpu and "--inputs int8" not in for_tpu
    text = call(F32, "--suggest", "--mode", "dynamic").stderr
    assert "--mode has no effect" in text


# -- what is worth a look -----------------------------------------------------------------------


def test_few_samples_are_warned_of(tmp_path: Path) -> None:
    few = digits(tmp_path, 0, 3)
    text = call(F32, "--data", few, *FAST).stderr
    assert "only 3 samples" in text and "give 10 at least, better 100 or more" in text
    assert "only" not in call(F32, "--mode", "dynamic", "--data", few).stderr
    enough = digits(tmp_path, 0, 10)
    assert "only" not in call(F32, "--data", enough, *FAST).stderr


def row(name: str, local: float | None, bits: int = 8) -> LayerRow:
    return LayerRow(name, "CONV_2D", bits, -1.0, 1.0, 0.01, 0, 0.0, local_rmse_over_scale=local)


def test_the_layers_worth_a_look_are_named_worst_first() -> None:
    layers = [row("unmeasured", None), row("fine", 0.3), *(row(f"bad{i}", i) for i in range(1, 8))]
    assert [x.name for x in suspects(layers)] == [f"bad{i}" for i in range(7, 0, -1)]
    lines = [str(text) for _, text in verb._suspects(layers, Path("how.html"))]
    assert lines[0] == "7 layers with a local RMSE/scale above 0.7, the worst first:"
    assert lines[1:] == [*(f"{i}.00 bad{i}" for i in range(7, 2, -1)), "and 2 more, in how.html"]
    assert "--report FILE.html" in str(verb._suspects(layers, None)[-1][1])
    assert not verb._suspects(layers[:2], None)
    assert not suspects([row("wide", 40.0, bits=16)])  # steps of 16 bits are small


# -- pages --------------------------------------------------------------------------------------


def test_names_cannot_break_out_of_the_page() -> None:
    evil = """"'><script>alert("x")</script><img src=x onerror='y'>&"""
    model = parents("TANH", "CEIL", "LOGISTIC")
    for tensor in model.main.tensors:
        tensor.name = f"{evil}{tensor.name}{evil}"
    model.source = f"{evil}.tflite"
    data = np.random.default_rng(0).normal(size=(12, 1, 4)).astype(np.float32)
    rules = [Choice("int16x8", name=f"*y0{glob.escape(evil)}")]
    _, report = quantize(model, "int8", list(data), recipe=rules, **PLAIN)
    assert report.layers and report.stayed_float and evil in report.layers[0].name
    text = report_page(report)
    assert text.count("<script>") == text.count("</script>") == 1, "the page's own"
    tags = Tags()
    tags.feed(text)
    assert "img" not in tags.seen and not {"onerror", "onload"} & tags.attributes


class Tags(HTMLParser):
    """The elements and attributes that a browser sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes.update(name for name, _ in attrs)


def test_a_page_without_data_has_what_there_is() -> None:
    _, report = quantize(F32, "float16")
    html = report_page(report)
    assert "Size" in html and "<svg" not in html and "Ranges" not in html


def test_bounds_are_what_codes_stand_for() -> None:
    _, report = quantize(F32, data=samples(), **PLAIN)
    for layer in report.layers:
        low, high = bounds(layer)
        assert low <= 0 <= high and np.isclose(high - low, 255 * layer.scale)


# -- what is wrong ------------------------------------------------------------------------------


def test_data_of_the_wrong_shape(tmp_path: Path) -> None:
    np.save(tmp_path / "wrong.npy", np.zeros((5, 9, 8, 1), np.float32))
    text = refused(tmp_path, F32, "-o", tmp_path / "q.tflite", "--data", tmp_path / "wrong.npy")
    assert "[5, 9, 8, 1]" in text and "[n, 8, 8, 1]" in text
    with pytest.raises(sanderling.InputError):
        quantize(F32, data=[np.zeros((1, 9, 8, 1), np.float32)])


def test_nan_in_activations(tmp_path: Path) -> None:
    save(parents("LOG", "RELU"), tmp_path / "log.tflite")
    np.save(tmp_path / "x.npy", -np.ones((5, 4), np.float32))
    text = refused(
        tmp_path, tmp_path / "log.tflite", "-o", tmp_path / "q.tflite", "--data", tmp_path / "x.npy"
    )
    assert "NaN" in text and "'y0'" in text


def test_a_model_that_is_quantised_already(rows: Path, tmp_path: Path) -> None:
    text = refused(tmp_path, INT8, "-o", tmp_path / "q.tflite", "--data", rows)
    assert "quantised already" in text and "float model" in text


def test_strict_names_what_cannot_be(tmp_path: Path) -> None:
    save(parents("RELU", "CEIL"), tmp_path / "ceil.tflite")
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32))
    text = refused(
        tmp_path,
        tmp_path / "ceil.tflite",
        "-o",
        tmp_path / "q.tflite",
        "--data",
        tmp_path / "x.npy",
        "--strict",
    )
    assert "CEIL" in text and "1 of 2 ops" in text


@pytest.mark.parametrize(("words", "said"), [
    (("--mode", "int9"), "did you mean int8"),
    (("--rule", "op=SOFTMAXX,mode=float"), "fits no op"),
    (("--max-drop", "0.01"), "give --max-drop and --task, or --min-agreement"),
    (("--rule", "op=FOO,mode=float"), "there are: 'CONV_2D', 'FULLY_CONNECTED', 'RESHAPE', "),
    (("--rule", "op=SOFTMAX,mode=flat"), "there is no mode 'flat'"),
    (("--rule", "opp=SOFTMAX,mode=float"), "not a part of a rule"),
    (("--rule", "SOFTMAX"), "is not a rule"),
    (("--ranges", "best"), "there is no range method"),
    (("--weights", "best"), "there is no weight method"),
    (("--corrections", "hope"), "there is no correction"),
    (("--inputs", "int12"), "cannot be int12"),
    (("--max-drop", "0.1"), "measured on a task"),
    (("--task", "arrays"), "needs 'data'"),
    (("--task", "array"), "there is no task"),
    (("--max-drop", "0.1", "--task", "arrays", "--task-option", "date=x"), "is no setting"),
    (("--max-drop", "0.1", "--task", "arrays", "--task-option", "hop=x"), "is no int"),
    (("--preset", "tflight", "--data", str(DATA)), "there is no preset"),
    (("--data", "nowhere"), "no such file or folder"),
    (("--report", "nowhere/page.html"), "there is no folder"),
    (("--keep", "nowhere/kept.npz"), "there is no folder"),
])  # fmt: skip
def test_bad_options_are_sentences(
    words: tuple[str, ...], said: str, rows: Path, tmp_path: Path
) -> None:
    data = () if "--data" in words else ("--data", rows)
    assert said in refused(tmp_path, F32, "-o", tmp_path / "q.tflite", *data, *words)


def test_recipes_that_are_wrong(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tmp_path / "recipe.yaml"
    words = (F32, "-o", tmp_path / "q.tflite", "--data", rows, "--recipe", recipe)
    for text, said in (
        ("- {mode: int8, opp: ADD}", "'opp' is not a part"),
        ("mode: int8", "list"),
        ("- {op: ADD}", "names no mode"),
        ("- [", "well-formed"),
    ):
        recipe.write_text(text)
        assert said in refused(tmp_path, *words)
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert "pip install 'sanderling[quantize]'" in refused(tmp_path, *words)


def test_outputs_that_cannot_be_written(rows: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    words = (F32, "--data", rows, *FAST)
    assert "it is a folder" in refused(tmp_path, *words, "-o", tmp_path / "folder")
    assert "there is no folder" in refused(tmp_path, *words, "-o", tmp_path / "no" / "q.tflite")
    assert "not a kind of model" in refused(tmp_path, *words, "-o", tmp_path / "q.txt")
    out = tmp_path / "q.tflite"
    page = ("--report", tmp_path / "page.txt")
    assert "not a kind of page" in refused(tmp_path, *words, "-o", out, *page)
    own = tmp_path / "own.tflite"
    own.write_bytes(F32.read_bytes())
    assert "the model itself" in refused(tmp_path, own, "-o", own, "--data", rows)
    assert own.read_bytes() == F32.read_bytes()


def test_choices_are_public() -> None:
    assert sanderling.Choice is Choice
    _, report = quantize(F32, data=samples(), recipe=[Choice("float", op="SOFTMAX")], **PLAIN)
    assert report.modes["float"] == 1

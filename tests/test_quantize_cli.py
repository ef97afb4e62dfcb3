"""`sanderling quantize`: options, files, targets, suggestions, pages; and sentences where something
is wrong, with nothing written."""

from __future__ import annotations

import inspect
import json
import re
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

import sanderling
from sanderling import Target, TargetMissedError, load, make_task, quantize, read_samples, save
from sanderling.cli import quantize as verb
from sanderling.cli.app import app
from sanderling.cli.quantize import parse_rule
from sanderling.ir import DType, Graph, Model
from sanderling.optimize.page import bounds, report_page
from sanderling.optimize.recipe import Choice
from sanderling.optimize.report import Trial
from sanderling.optimize.suggest import TREE, expected_size, suggest
from sanderling.optimize.target import mark_pareto

DATA = Path(str(files("sanderling") / "data"))
F32, INT8 = DATA / "digits_f32.tflite", DATA / "digits_int8.tflite"
SHIPPED = np.load(DATA / "digits_test.npz")
IMAGES = (SHIPPED["images"][..., None] / 16).astype(np.float32)
LABELS = SHIPPED["labels"]
# One way, not the search for the best.
FAST = ("--ranges", "minmax", "--weights", "max", "--corrections", "none")
PLAIN: dict[str, Any] = {"ranges": "minmax", "weights": "max", "corrections": "none"}


def call(*words: object, status: int = 0) -> Result:
    """The verb in this process; anything but a status is a defect."""
    result = CliRunner().invoke(app, ["quantize", *(str(w) for w in words)])
    assert result.exit_code == status, result.output + repr(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def refused(folder: Path, *words: object) -> str:
    """The sentence; nothing was written, not even a temporary file."""
    before = sorted(p.name for p in folder.iterdir())
    text = call(*words, status=2).stderr
    assert text.startswith("sanderling: ") or "\nsanderling: " in text
    assert sorted(p.name for p in folder.iterdir()) == before
    return text


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("digits") / "digits.npz"
    np.savez(path, x=IMAGES[:40], y=LABELS[:40])
    return path


@pytest.fixture(scope="session")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("labelled") / "test.npz"
    np.savez(path, x=IMAGES[100:180], y=LABELS[100:180])
    return path


def parents(*operators: str) -> Model:
    """A float model of one-input operators in a row."""
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (1, 4))
    for i, name in enumerate(operators):
        y = graph.tensor(f"y{i}", DType.FLOAT32, (1, 4))
        graph.add(name, [x], [y])
        x = y
    graph.outputs = [x]
    return Model([graph])


# -- the plain way ------------------------------------------------------------------------------


def test_every_option_of_the_function_is_one_of_the_command() -> None:
    behind = set(inspect.signature(quantize).parameters)
    options = set(inspect.signature(verb.quantize).parameters)
    assert behind - options <= {"progress", "target"}, "a target is made of several options"


def test_int8_from_rows_with_report_and_json(rows: Path, tmp_path: Path) -> None:
    out, page, record = (tmp_path / n for n in ("out.tflite", "page.html", "report.json"))
    text = call(F32, "-o", out, "--data", rows, "--samples", 20, "--report", page, "--json", record,
                *FAST).stdout  # fmt: skip
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
    text = call(F32, "-o", out, "--data", rows, "--recipe", recipe, "--rule",
                "op=FULLY_CONNECTED, mode=float", *FAST).stdout  # fmt: skip
    assert "3 ops int8, 2 ops float" in text, "the rule comes after the recipe and wins"
    kinds = {op.name: op.outputs[0].dtype for op in load(out).main.ops}
    assert kinds["CONV_2D"] is DType.INT8 and kinds["FULLY_CONNECTED"] is DType.FLOAT32


def test_a_comma_in_a_name_is_not_the_end_of_it() -> None:
    assert parse_rule("name=a,b/*, mode=int8") == {"name": "a,b/*", "mode": "int8"}
    assert parse_rule("from=x,to=y,mode=float") == {"from": "x", "to": "y", "mode": "float"}


def test_integer_inputs_and_outputs(rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "q.tflite"
    call(F32, "-o", out, "--data", rows, "--strict", "--inputs", "uint8", "--outputs", "int8",
         *FAST)  # fmt: skip
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
        from sanderling.optimize.latency import compare_latency

        return compare_latency(before, after, threads, seconds=0.2)

    monkeypatch.setattr(verb, "compare_latency", short)
    record = json.loads(call(F32, "--mode", "float16", "--latency", "--json", "-").stdout)
    assert [r["engine"] for r in record["latency"]] == ["sanderling", "litert"]
    for row in record["latency"]:
        assert "error" in row or row["low"] <= row["speedup"] <= row["high"]
    assert record["latency"][0]["before"] > 0


# -- samples ------------------------------------------------------------------------------------


def picture_model(channels: int = 3) -> Model:
    graph = Graph()
    x = graph.input("image", DType.FLOAT32, (1, 4, 4, channels))
    y = graph.tensor("y", DType.FLOAT32, (1, 4, 4, channels))
    graph.add("RELU", [x], [y])
    graph.outputs = [y]
    return Model([graph])


def test_pictures_of_class_folders_are_spread(tmp_path: Path) -> None:
    for i in range(12):
        folder = tmp_path / f"class{i // 4}"
        folder.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (20 * i, 0, 0)).save(folder / f"{i:02}.png")
    found = read_samples(tmp_path, picture_model(), samples=3, preset="unit")
    assert len(found) == 3 and [round(float(s["image"][0, 0, 0, 0] * 255)) for s in found] == [
        0, 80, 160]  # fmt: skip
    plain = read_samples(tmp_path, picture_model(), mean="10", std="2")
    assert len(plain) == 12 and plain[1]["image"][0, 0, 0].tolist() == [5, -5, -5]
    assert len(plain[2:4]) == 2


def two_inputs() -> Model:
    graph = Graph()
    a = graph.input("a", DType.FLOAT32, (1, 2))
    b = graph.input("b", DType.FLOAT32, (1, 2))
    y = graph.tensor("y", DType.FLOAT32, (1, 2))
    graph.add("ADD", [a, b], [y])
    graph.outputs = [y]
    model = Model([graph])
    model.signatures = [sanderling.Signature("serve", graph, {"left": a, "right": b}, {"sum": y})]
    return model


def test_several_inputs_by_either_name(tmp_path: Path) -> None:
    left, right = np.ones((5, 2)), np.zeros((5, 1, 2), np.float32)
    for names in (("a", "b"), ("left", "right")):
        found = read_samples(dict(zip(names, (left, right), strict=True)), two_inputs())
        assert len(found) == 5 and found[0].keys() == {"a", "b"}
        assert found[0]["a"].shape == (1, 2) and found[0]["a"].dtype == np.float32
    for name in ("0.npz", "1.npz"):
        np.savez(tmp_path / name, left=left[:1], right=right[0])
    assert len(read_samples(tmp_path, two_inputs(), signature="serve")) == 2
    with pytest.raises(sanderling.InputError, match="no array for the input 'b'"):
        read_samples({"a": left, "other": right}, two_inputs())
    with pytest.raises(sanderling.InputError, match="unequal numbers of samples: 'a' 5, 'b' 4"):
        read_samples({"a": left, "b": right[:4]}, two_inputs())
    with pytest.raises(sanderling.InputError, match="sreve"):
        read_samples({"a": left, "b": right}, two_inputs(), signature="sreve")


def test_rows_of_several_signatures() -> None:
    model = two_inputs()
    first = model.signatures[0]
    model.signatures.append(sanderling.Signature(
        "swapped", first.graph, {"left": first.inputs["right"], "right": first.inputs["left"]},
        first.outputs))  # fmt: skip
    ones, zeros = np.ones((3, 2), np.float32), np.zeros((3, 2), np.float32)
    found = read_samples({"serve/left": ones, "serve/right": zeros, "swapped/left": ones[:2],
                          "swapped/right": zeros[:2]}, model)  # fmt: skip
    assert [s["a"][0, 0] for s in found] == [1, 1, 1, 0, 0]
    _, report = quantize(model, data=found, **PLAIN)
    assert report.modes == {"int8": 1}


def test_a_path_is_data_for_the_function_too(rows: Path) -> None:
    _, report = quantize(F32, data=rows, **PLAIN)
    assert report.samples > 20


# -- targets ------------------------------------------------------------------------------------


def samples(count: int = 40) -> list[Any]:
    return [image[None] for image in IMAGES[:count]]


def test_a_target_that_holds_at_once_keeps_nothing() -> None:
    _, report = quantize(F32, data=samples(), target=Target(min_agreement=0.5), **PLAIN)
    assert report.target["met"] and report.target["kept"] == []
    assert report.trials[0].name == "float" and len(report.trials) == 2


def test_a_target_in_between_keeps_as_few_as_needed() -> None:
    _, base = quantize(F32, data=samples(), **PLAIN)
    reach = base.candidates[0].snr + 1.5
    model, report = quantize(F32, data=samples(), target=Target(min_snr=reach), **PLAIN)
    chosen = next(t for t in report.trials if t.chosen)
    assert chosen.meets and chosen.score >= reach and 0 < len(chosen.kept) < 5
    assert all(len(t.kept) >= len(chosen.kept) for t in report.trials if t.meets and t.kept)
    finer = [r for r in report.rules if r["name"] in chosen.kept]
    assert [r["mode"] for r in finer] == ["int16x8"] * len(chosen.kept)
    kinds = {t.name: t.dtype for op in model.main.ops for t in op.outputs}
    assert DType.INT16 in kinds.values(), "what the rules say is in the file"
    again, _ = quantize(F32, data=samples(), recipe=report.rules, **PLAIN)
    assert sanderling.dump(again) == sanderling.dump(model), "the rules make it again"


def test_a_missed_target_is_an_error_with_what_was_reached() -> None:
    with pytest.raises(TargetMissedError, match="was not reached") as caught:
        quantize(F32, data=samples(), target=Target(min_snr=119, finer=("int16x8",)), **PLAIN)
    reached = caught.value.report.target
    assert not reached["met"] and 30 < reached["reached"] < 119
    assert isinstance(caught.value.model, Model)


def test_targets_on_the_command_line(tmp_path: Path) -> None:
    save(parents("TANH", "LOGISTIC"), tmp_path / "m.tflite")
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32))
    out, page = tmp_path / "q.tflite", tmp_path / "page.html"
    base = (tmp_path / "m.tflite", "-o", out, "--data", tmp_path / "x.npy", *FAST)
    missed = (*base, "--min-snr", 118, "--finer", "int16x8")
    result = call(*missed, "--report", page, status=1)
    assert not out.exists() and "--anyway writes" in result.stderr
    assert "missed with" in result.stdout and "Pareto" in result.stdout
    assert "Pareto" in page.read_text(), "what was reached is told"
    call(*missed, "--anyway", status=1)
    assert {op.outputs[0].dtype for op in load(out).main.ops} >= {DType.INT16}
    text = call(*base, "--min-agreement", 0.1).stdout
    assert "agreement of 0.1 with float: met" in text


def test_a_drop_on_a_task(rows: Path, labelled: Path, tmp_path: Path) -> None:
    out = tmp_path / "q.tflite"
    record = json.loads(call(
        F32, "-o", out, "--data", rows, "--max-drop", 0.05, "--task", "arrays", "--task-option",
        f"data={labelled}", "--task-limit", 60, "--json", "-", *FAST).stdout)  # fmt: skip
    target = record["target"]
    assert target["met"] and target["figure"] == "top1" and target["float"] > 0.9
    assert record["trials"][0]["name"] == "float" and out.is_file()
    assert record["accuracy"]["before"]["top1"] == target["float"]
    assert record["accuracy"]["compared"]["agreement"]["value"] > 0.9
    task = make_task("arrays", data=labelled)
    with pytest.raises(sanderling.InputError, match="gives no figure 'top7'"):
        quantize(F32, data=samples(), target=Target(max_drop=0.1, task=task, metric="top7"),
                 **PLAIN)  # fmt: skip


def test_a_target_that_leaves_little_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sanderling.optimize.target.LITTLE_LEFT", 0.5)
    target = Target(min_snr=44, finer=("float",))
    _, report = quantize(F32, data=samples(), target=target, **PLAIN)
    assert report.target["met"] and report.modes["int8"] > 0, "something is left of it"
    assert any("Little is left" in note for note in report.notes)


def test_weight_modes_have_targets_too() -> None:
    _, report = quantize(F32, "weight-int4", samples(), target=Target(min_snr=20), **PLAIN)
    assert report.target["met"] and {r["mode"] for r in report.rules[1:]} <= {"weight-int8"}


def test_pareto_marks_what_nothing_beats() -> None:
    trials = [Trial("a", 1.0, 100, 3.0), Trial("b", 0.9, 50, 1.0), Trial("c", 0.8, 60, 2.0),
              Trial("d", 0.9, 50, 1.0)]  # fmt: skip
    mark_pareto(trials)
    assert [t.pareto for t in trials] == [True, True, False, True]


@pytest.mark.parametrize("given", [{}, {"min_agreement": 2.0}, {"max_drop": 0.1},
    {"min_agreement": 0.9, "min_snr": 30}, {"min_agreement": 0.9, "finer": ["int9"]}])  # fmt: skip
def test_strange_targets_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(sanderling.InputError):
        Target(**given)


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
    assert TREE[-1].holds(found.situation)
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


# -- pages --------------------------------------------------------------------------------------


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
    text = refused(tmp_path, tmp_path / "log.tflite", "-o", tmp_path / "q.tflite", "--data",
                   tmp_path / "x.npy")  # fmt: skip
    assert "NaN" in text and "'y0'" in text


def test_a_model_that_is_quantised_already(rows: Path, tmp_path: Path) -> None:
    text = refused(tmp_path, INT8, "-o", tmp_path / "q.tflite", "--data", rows)
    assert "quantised already" in text and "float model" in text


def test_strict_names_what_cannot_be(tmp_path: Path) -> None:
    save(parents("RELU", "CEIL"), tmp_path / "ceil.tflite")
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32))
    text = refused(tmp_path, tmp_path / "ceil.tflite", "-o", tmp_path / "q.tflite", "--data",
                   tmp_path / "x.npy", "--strict")  # fmt: skip
    assert "CEIL" in text and "1 of 2 ops" in text


@pytest.mark.parametrize(("words", "said"), [
    (("--mode", "int9"), "did you mean int8"),
    (("--rule", "op=SOFTMAXX,mode=float"), "fits no op"),
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
def test_bad_options_are_sentences(words: tuple[str, ...], said: str, rows: Path,
                                   tmp_path: Path) -> None:  # fmt: skip
    data = () if "--data" in words else ("--data", rows)
    assert said in refused(tmp_path, F32, "-o", tmp_path / "q.tflite", *data, *words)


def test_recipes_that_are_wrong(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tmp_path / "recipe.yaml"
    words = (F32, "-o", tmp_path / "q.tflite", "--data", rows, "--recipe", recipe)
    for text, said in (("- {mode: int8, opp: ADD}", "'opp' is not a part"), ("mode: int8", "list"),
                       ("- {op: ADD}", "names no mode"), ("- [", "well-formed")):  # fmt: skip
        recipe.write_text(text)
        assert said in refused(tmp_path, *words)
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert "pip install 'sanderling[quantize]'" in refused(tmp_path, *words)


def test_outputs_that_cannot_be_written(rows: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    words = (F32, "--data", rows, *FAST)
    assert "it is a folder" in refused(tmp_path, *words, "-o", tmp_path / "folder")
    assert "there is no folder" in refused(tmp_path, *words, "-o", tmp_path / "no" / "q.tflite")
    own = tmp_path / "own.tflite"
    own.write_bytes(F32.read_bytes())
    assert "the model itself" in refused(tmp_path, own, "-o", own, "--data", rows)
    assert own.read_bytes() == F32.read_bytes()


def test_folders_without_samples(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("a")
    out = tmp_path / "q.tflite"
    assert "the folder is empty" in refused(tmp_path, F32, "-o", out, "--data", tmp_path / "empty")
    assert "no picture" in refused(tmp_path, F32, "-o", out, "--data", tmp_path / "texts")
    save(two_inputs(), tmp_path / "two.tflite")
    Image.new("RGB", (4, 4)).save(tmp_path / "texts" / "a.png")
    text = refused(tmp_path, tmp_path / "two.tflite", "-o", out, "--data", tmp_path / "texts")
    assert "the model has 2" in text


def test_choices_are_public() -> None:
    assert sanderling.Choice is Choice
    _, report = quantize(F32, data=samples(), recipe=[Choice("float", op="SOFTMAX")], **PLAIN)
    assert report.modes["float"] == 1

"""`rewrite` as a whole: models that are refused become acceptable, and answer as before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import sanderling
from sanderling import DType, Graph, Model, Quant, Tensor, load, save
from sanderling.cli.app import app
from sanderling.ir.text import from_text
from sanderling.ir.verify import problems
from sanderling.rewrites import answers, whole_model
from sanderling.rewrites.answers import Bound, compare_answers, sample_arrays
from sanderling.rewrites.driver import Rewritten, rewrite, rewrites_to_try
from sanderling.rewrites.table import REWRITES
from sanderling.rewrites.whole_model import as_float, if_int8, one_batch

from .support.command_line import F32

pytestmark = pytest.mark.filterwarnings("ignore:no calibration data")
RNG = np.random.default_rng(11)
CONV = 'padding: "SAME", stride_h: 1, stride_w: 1'


def text(body: str, inputs: str = "%x", outputs: str = "%y") -> Model:
    return from_text(f"graph @main({inputs}) -> ({outputs}) {{\n{body}\n}}")


BRANCHES = from_text("""
graph @main(%x) -> (%y) {
  %x: f32[1,4]
  %k: f32[] = [0.0]
  %a: i32[2] = [0, 1]
  %s: f32[1,1]
  %v: bool[1,1]
  %n: i32[0] = []
  %c: bool[]
  %y: f32[1,4]
  %s = SUM(%x, %a) {keep_dims: true}
  %v = GREATER(%s, %k)
  %c = RESHAPE(%v, %n) {new_shape: []}
  %y = IF(%c, %x) {then_subgraph_index: @double, else_subgraph_index: @shift}
}
graph @double(%x) -> (%y) {
  %x: f32[1,4]
  %y: f32[1,4]
  %y = ADD(%x, %x)
}
graph @shift(%x) -> (%y) {
  %x: f32[1,4]
  %k: f32[4] = [1.0, 2.0, 3.0, 4.0]
  %y: f32[1,4]
  %y = ADD(%x, %k)
}
""")
SHAPES = text("""
  %x: f32[1,4,4,2]
  %b: i32[1] = [1]
  %e: i32[1] = [3]
  %s: i32[1] = [1]
  %n: i32[2]
  %d: i32[4]
  %k: i32[2] = [2, 2]
  %m: i32[2]
  %y: f32[1,8,8,2]
  %d = SHAPE(%x)
  %n = STRIDED_SLICE(%d, %b, %e, %s)
  %m = MUL(%n, %k)
  %y = RESIZE_NEAREST_NEIGHBOR(%x, %m)
""")
FRAMES = text("""
  %x: f32[24]
  %s: i32[2] = [6, 4]
  %i: i32[3,2] = [0, 1, 2, 3, 4, 5]
  %l: i32[2] = [1, 8]
  %t: i32[3] = [3, 1, 8]
  %r: f32[6,4]
  %g: f32[3,2,4]
  %v: f32[3,1,8]
  %c: c64[3,1,5]
  %y: f32[3,1,5]
  %r = RESHAPE(%x, %s)
  %g = GATHER(%r, %i) {axis: 0}
  %v = RESHAPE(%g, %t)
  %c = RFFT2D(%v, %l)
  %y = COMPLEX_ABS(%c)
""")
ATTENTION = text("""
  %x: f32[2,3,4]
  %a: i32[1] = [0]
  %p: f32[3,4]
  %q: f32[3,4]
  %r: f32[2,3,4]
  %t: i32[5] = [1, 2, 3, 2, 2]
  %u: f32[1,2,3,2,2]
  %o: i32[5] = [0, 3, 1, 2, 4]
  %v: f32[1,2,2,3,2]
  %w: i32[2] = [4, 6]
  %y: f32[4,6]
  %p, %q = UNPACK(%x) {axis: 0, num: 2}
  %r = PACK(%q, %p) {axis: 0, values_count: 2}
  %u = RESHAPE(%r, %t)
  %v = TRANSPOSE(%u, %o)
  %y = RESHAPE(%v, %w)
""")
WORDS = text(f"""
  %x: i32[1,4]
  %s: i32[1] = [4]
  %f: i32[4]
  %t: f32[100,2] = {[i / 8 for i in range(200)]}
  %e: f32[4,2]
  %y: f32[4,2]
  %f = RESHAPE(%x, %s)
  %e = EMBEDDING_LOOKUP(%f, %t)
  %y = LOG_SOFTMAX(%e)
""")
SIXTEEN = text(
    "%x: i16[1,4] quant={scale: [0.001], zero_point: [0]}\n"
    "%y: i16[1,4] quant={scale: [0.0031], zero_point: [0]}\n"
    "%y = ADD(%x, %x) {pot_scale_int16: false}"
)
LARGEST = text("%x: f32[1,4]\n%a: i32[] = [1]\n%y: i32[1]\n%y = ARG_MAX(%x, %a)")
GPU = {
    "branches": BRANCHES,
    "shapes": SHAPES,
    "frames": FRAMES,
    "attention": ATTENTION,
    "words": WORDS,
    "sixteen bits": SIXTEEN,
}


@pytest.fixture(autouse=True)
def _alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """LiteRT is asked in one test only: it takes its time to start."""
    if "attention" not in request.node.name:
        monkeypatch.setattr(answers, "_has_peer", lambda: False)


def mended(model: Model, for_: str, **more: Any) -> Rewritten:
    """Rewrite, check that all is taken and legal, and compare the answers."""
    made = rewrite(model, for_, **more)
    assert made.before and not made.after, made.after
    assert made.is_whole and made.changes
    assert [p for graph in made.model.graphs for p in problems(graph)] == []
    for found in compare_answers(model, made, runs=3):
        assert not found.failed, found.failed
    return made


@pytest.mark.parametrize("name", GPU)
def test_models_become_acceptable_to_the_gpu(name: str) -> None:
    model = GPU[name]
    before = sanderling.to_text(model)
    made = mended(model, "gpu")
    assert made.is_exact == (name != "sixteen bits")
    assert sanderling.to_text(model) == before, "the given model is not touched"


def net() -> Model:
    """A small float network whose activations the Edge TPU does not have, with an open batch."""
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (1, 6), signature=(-1, 6))
    weights = graph.constant("w", RNG.standard_normal((8, 6)).astype(np.float32))
    bias = graph.constant("b", np.zeros(8, np.float32))
    a, b, c = (graph.tensor(n, DType.FLOAT32, (1, 8), signature=(-1, 8)) for n in "abc")
    graph.add("FULLY_CONNECTED", [x, weights, bias], [a])
    graph.add("LEAKY_RELU", [a], [b], alpha=0.1)
    graph.add("HARD_SWISH", [b], [c])
    graph.outputs = [c]
    return Model([graph])


def test_a_float_model_becomes_int8_for_the_edge_tpu() -> None:
    made = mended(net(), "edgetpu")
    assert not made.is_exact and any("noise" in note for note in made.notes)
    (inner,), (outer,) = made.model.main.inputs, made.model.main.outputs
    assert inner.dtype is outer.dtype is DType.INT8 and not inner.is_dynamic
    assert {name for change in made.changes for name in change.rewrites} >= {
        "HARD_SWISH as RELU6",
        "LEAKY_RELU as PRELU",
        "int8 model",
    }


def test_samples_make_the_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [{"x": RNG.uniform(-1, 1, (1, 6)).astype(np.float32)} for _ in range(12)]
    plain = whole_model.quantize

    def spied(model: Model, mode: str, data: Any, **more: Any) -> Any:
        assert data is samples and "corrections" not in more, "the techniques are searched for"
        return plain(model, "dynamic", minimum=1)

    monkeypatch.setattr(whole_model, "quantize", spied)
    _, said = whole_model.as_int8(net(), samples)
    assert said[0].startswith("open sizes are fixed") and "samples" in said[1]
    assert sample_arrays(samples, 5)["x"].shape == (5, 1, 6)


def test_codes_are_fed_where_floats_were() -> None:
    quant = Quant.of(0.1, 3)
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (1, 4))
    a, b = (graph.tensor(n, DType.INT8, (1, 4), quant=quant) for n in "ab")
    y = graph.tensor("y", DType.FLOAT32, (1, 4))
    graph.add("QUANTIZE", [x], [a])
    graph.add("ADD", [a, a], [b]).version = 2
    graph.add("DEQUANTIZE", [b], [y]).version = 2
    graph.outputs = [y]
    found = mended(Model([graph]), "edgetpu")
    made = found.model.main
    assert [op.name for op in made.ops] == ["ADD"]
    assert [t.name for t in (*made.inputs, *made.outputs)] == ["x", "y"]
    assert found.is_exact
    said = [f"'{name}' is i8[1,4] in place of f32[1,4]" for name in "xy"]
    assert [str(b) for b in found.border] == said


def test_a_model_that_only_makes_codes_keeps_its_op() -> None:
    codes = "%y: i8[1,4] quant={scale: [0.1], zero_point: [3]}"
    made = rewrite(text(f"%x: f32[1,4]\n{codes}\n%y = QUANTIZE(%x)"), "gpu")
    assert [op.name for op in made.model.main.ops] == ["QUANTIZE"] and not made.border


def product(types: str, shapes: tuple[tuple[int, ...], ...], zero: int = 0) -> Model:
    """FULLY_CONNECTED with constant weights; types of operand, weights and result."""
    graph = Graph()
    x, w, y = (
        Tensor(name, DType.parse(t), shape, quant=None if t == "f32" else Quant.of(0.1, at))
        for name, t, shape, at in zip("xwy", types.split(), shapes, (0, zero, 0), strict=True)
    )
    w.data = np.ones(w.shape, w.dtype.numpy)
    graph.inputs = [x]
    graph.add("FULLY_CONNECTED", [x, w], [y])
    graph.outputs = [y]
    return Model([graph])


@pytest.mark.parametrize("types, zero", [("f32 i8 f32", 0), ("i8 i8 i8", 5), ("u8 u8 i16", 0)])
def test_products_that_a_convolution_does_not_compute_stay(types: str, zero: int) -> None:
    """It quantises the whole picture in place of each row, has no zero point of its weights, and
    has its operand's type."""
    graph = product(types, ((3, 4), (2, 4), (3, 2)), zero).main
    row = next(row for row in REWRITES if row.name == "FULLY_CONNECTED as CONV_2D")
    assert row.apply(graph, graph.ops[0]) is None
    plain = product("i8 i8 i8", ((3, 4), (2, 4), (3, 2))).main
    assert row.apply(plain, plain.ops[0])


@pytest.mark.parametrize("x, s, y", [("[1,3]", "[0,1]", "[0,3]"), ("[1]", "[]", "[]")])
def test_empty_and_single_operands_are_not_repeated(x: str, s: str, y: str) -> None:
    body = f"%x: f32{x}\n%s: bool{s}\n%y: f32{y}\n%y = SELECT_V2(%s, %x, %x)"
    made = rewrite(text(body, "%x, %s"), "gpu")
    assert [p for graph in made.model.graphs for p in problems(graph)] == []


def test_a_batch_of_one() -> None:
    model = text(
        "%x: f32[3,4]\n%s: i32[3] = [3, 2, 2]\n%a: f32[3,2,2]\n%y: f32[3,2,2]\n"
        "%a = RESHAPE(%x, %s)\n%y = EXP(%a)"
    )
    assert one_batch(model) == "a run takes 1 sample in place of 3"
    assert [t.shape for t in (*model.main.inputs, *model.main.outputs)] == [(1, 4), (1, 2, 2)]
    assert one_batch(model) is None


def test_codes_as_floats_and_floats_as_codes() -> None:
    model = load(sanderling.dump(SIXTEEN))
    assert as_float(model) == "values are float32, and so are inputs and outputs"
    assert {t.dtype for t in model.main.tensors} == {DType.FLOAT32}
    assert as_float(model) is None
    seen = if_int8(net().main)
    assert {t.dtype for t in seen.tensors} == {DType.INT8, DType.INT32}


def test_what_cannot_be_mended_is_said() -> None:
    made = rewrite(LARGEST, "gpu")
    assert [refusal.op for refusal in made.after] == ["ARG_MAX 'y'"]
    assert made.after == made.before and not made.changes and made.after[0].source


def test_an_acceptable_model_stays_as_it_is() -> None:
    model = text("%x: f32[1,4]\n%y: f32[1,4]\n%y = EXP(%x)")
    made = rewrite(model, "gpu")
    assert made.is_whole and not made.changes and made.is_exact
    assert sanderling.to_text(made.model) == sanderling.to_text(model)


def test_bounds() -> None:
    made = rewrite(SIXTEEN, "gpu")
    (ours, *_) = compare_answers(SIXTEEN, made, runs=1, bound=Bound(is_exact=True, share=0.0))
    assert ours.failed and "of the largest value" in ours.failed[0]
    (ours, *_) = compare_answers(SIXTEEN, made, runs=1, bound=Bound(is_exact=False, snr=999))
    assert "999" in ours.failed[0]
    assert str(Bound(is_exact=True)).startswith("1e-05") and "dB" in str(Bound(is_exact=False))


# -- the command ----------------------------------------------------------------------------------


def call(*words: object, status: int = 0) -> Any:
    result = CliRunner().invoke(app, ["rewrite", *map(str, words)])
    assert result.exit_code == status, result.output + repr(result.exception)
    return result


def test_command(tmp_path: Path) -> None:
    given, out = tmp_path / "given.tflite", tmp_path / "out.tflite"
    save(ATTENTION, given)
    shown = call(given, "--for", "gpu", "-o", out).stdout
    assert "every op is taken" in shown and "fewer dimensions: TRANSPOSE" in shown
    assert rewrite(out, "gpu").before == []
    record = json.loads(call(given, "--for", "gpu", "--json", "-").stdout)
    assert record["schema"] == "sanderling.rewrite/1" and record["written"] is None
    assert record["refused_before"] and record["refused_after"] == []
    assert all(answers["ok"] for answers in record["answers"])


def test_inspect_names_rewrites(tmp_path: Path) -> None:
    save(WORDS, tmp_path / "m.tflite")
    words = ["inspect", str(tmp_path / "m.tflite"), "--delegate", "gpu:tflite"]
    shown = CliRunner().invoke(app, words).stdout
    assert "`sanderling rewrite MODEL --for gpu:tflite`" in shown and "LOG_SOFTMAX as sums" in shown
    assert rewrites_to_try(ATTENTION, "gpu")[0] == "fewer dimensions: TRANSPOSE"
    assert rewrites_to_try(load(F32), "hexagon") == ["int8 model"]
    assert rewrites_to_try(load(F32), "gpu") == []


def test_no_model_where_answers_differ(tmp_path: Path) -> None:
    given, out, data = (tmp_path / n for n in ("given.tflite", "out.tflite", "x.npy"))
    save(SIXTEEN, given)
    np.save(data, RNG.integers(-999, 999, (6, 4)).astype(np.int16))
    result = call(given, "--for", "gpu", "-o", out, "--data", data, "--min-snr", 999, status=1)
    assert "answers differ: (run by sanderling) output 0 'y': SNR is" in result.output
    assert not out.exists() and "no model is written" in result.output


def test_what_stays_as_it_was_is_said_and_the_source_is_kept(tmp_path: Path) -> None:
    given, out = tmp_path / "m.tflite", tmp_path / "out.tflite"
    save(LARGEST, given)
    assert "nothing had to be" in call(F32, "--for", "gpu", "-o", out).output
    shown = call(given, "--for", "gpu", "-o", out).output
    assert out.exists() and shown.count("nothing could be rewritten") == 1
    assert f"{out} holds the model as it was" in shown
    refused = call(given, "--for", "gpu", "-o", given, status=2).output
    assert "the output is the model itself" in refused


@pytest.mark.parametrize("words, said", [
    (["--for", "gpus"], "there are no rules of 'gpus'"),
    (["--for", "gpu", "-o", "a.txt"], "ends in .tflite"),
    (["--for", "gpu", "-o", "no/a.tflite"], "no folder"),
])  # fmt: skip
def test_command_errors(tmp_path: Path, words: list[str], said: str) -> None:
    save(SIXTEEN, tmp_path / "m.tflite")
    assert said in call(tmp_path / "m.tflite", *words, status=2).output

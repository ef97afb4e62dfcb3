"""The delegate `coreml`: what it takes, what it writes, and that this computes the right thing.

Core ML is on macOS only. Elsewhere the ML programs that coremltools makes are executed by an
interpreter of MIL in NumPy (support/mil_interpreter.py), before and after coremltools' passes and
from saved packages. `make test-coreml` installs coremltools and runs all; without it the tests of
what is decided before coremltools is asked still run.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import sanderling
from sanderling import (
    FallbackWarning,
    InputError,
    MissingExtraError,
    SanderlingError,
    UnsupportedError,
)
from sanderling.cli.app import app
from sanderling.delegates import extras
from sanderling.delegates.coreml import delegate as coreml
from sanderling.delegates.coreml import package
from sanderling.delegates.coreml.delegate import CoremlDelegate
from sanderling.delegates.coreml.operators import ROWS, refusal
from sanderling.delegates.coreml.program import ProgramOptions, as_program, converted
from sanderling.ir import Array, DType, Graph, Model, Op
from sanderling.runtime.specialise import specialise

from .conformance.cases import CASES
from .conformance.harness import Case, case, const, difference, f32, i8, run_reference, weights
from .support.mil_interpreter import execute
from .support.shared_models import NEEDS as NEEDS_SHARED
from .support.shared_models import model as shared_model

NEEDS = pytest.mark.skipif(
    find_spec("coremltools") is None, reason="coremltools is not installed: make test-coreml"
)
EVERYTHING = bool(os.environ.get("SANDERLING_TEST_ALL"))
DIGITS = Path(str(files("sanderling") / "data" / "digits_f32.tflite"))
PRECISIONS = {"float32": 1e-5, "float16": 2e-2}


# -- what is taken --------------------------------------------------------------------------------


def specialised(row: Case) -> Graph | None:
    """The case's graph with its shapes; None if it is no single op of the table, or illegal."""
    if row.build is not None or row.op not in ROWS or row.runs > 1:
        return None
    try:
        graph, _ = specialise(row.model().main, [t.shape for t in row.model().main.inputs])
    except SanderlingError:
        return None
    return graph


def is_plain(row: Case) -> bool:
    """It is taken, and fed with numbers: what Core ML makes of infinities is not documented."""
    graph = specialised(row)
    if graph is None or any(refusal(op) for op in graph.ops):
        return False
    fed = row.arrays(row.model(), np.random.default_rng(0))
    return all(np.isfinite(a).all() for a in fed if a.dtype.kind == "f")


def chosen() -> list[Case]:
    """The cases of each row: all of them, or its last (the first ones are the simplest)."""
    found: dict[str, list[Case]] = defaultdict(list)
    for row in reversed(CASES):
        if row.op in ROWS and (EVERYTHING or row.op not in found) and is_plain(row):
            found[row.op].append(row)
    assert set(found) == set(ROWS), f"rows without a case: {set(ROWS) - set(found)}"
    return [row for rows in found.values() for row in rows]


def single(row: Case) -> Op:
    graph = specialised(row)
    assert graph is not None
    return graph.ops[0]


REFUSED = {
    "ROLL is not in the table": None,
    "is i8; Core ML gets f32": case("RELU", i8(2, 3, scale=0.1), out=[i8(scale=0.1)]),
    "'in1' is i8; Core ML gets f32": case(
        "FULLY_CONNECTED", f32(2, 4), weights(3, 4, dtype="i8", scale=0.1), None
    ),
    "'in1' is not a constant": case(
        "CONV_2D", f32(1, 4, 4, 2), f32(3, 1, 1, 2), None,
        padding="VALID", stride_h=1, stride_w=1,
    ),
    "more than 5 dimensions": case("ABS", f32(1, 1, 1, 1, 2, 3)),
    "no dimensions, or no elements": case("ABS", f32()),
    "it computes a constant": case("ABS", const([1.0])),
    "a new size is 1": case("RESIZE_BILINEAR", f32(1, 4, 4, 1), const([1, 2], "i32")),
    "the fused activation TANH": case(
        "ADD", f32(2), f32(2), fused_activation_function="TANH"
    ),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_refused_has_a_reason(reason: str) -> None:
    row = REFUSED[reason]
    op = Op("ROLL", [], []) if row is None else single(row)
    assert reason in (refusal(op) or "it is taken")


def test_state_and_open_shapes_are_refused() -> None:
    op = single(case("ABS", f32(2, 3)))
    op.outputs[0].signature = (-1, 3)
    assert refusal(op) == "a shape is not known before the run"
    op.outputs[0].signature = None
    op.operand(0).is_variable = True
    assert refusal(op) == "it keeps state"


# -- where it does not run ------------------------------------------------------------------------


def test_without_coremltools_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    for run in (lambda m: m.compile(["coreml"]), lambda m: sanderling.export(m, "x.mlpackage")):
        with pytest.raises(MissingExtraError, match="needs the package 'coremltools'") as caught:
            run(sanderling.load(DIGITS))
        assert "pip install 'sanderling[coreml]'" in caught.value.fix


def test_elsewhere_than_on_macos_the_session_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coreml, "require_extra", lambda *names: None)
    monkeypatch.setattr(coreml, "can_execute", lambda: False)
    model = sanderling.load(DIGITS)
    with pytest.warns(FallbackWarning, match="Core ML executes on macOS"):
        session = model.compile(["coreml", "reference"])
    x = np.random.default_rng(0).random((1, 8, 8, 1), np.float32)
    np.testing.assert_array_equal(session(x), model.compile(["reference"])(x))
    assert "coreml refuses: it failed to compile them" in session.explain()


def test_options_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coreml, "require_extra", lambda *names: None)
    given = {"precision": "float16", "compute_units": "cpu_and_ne"}
    made = sanderling.load_delegate("coreml", given)
    assert isinstance(made, CoremlDelegate)
    assert made.program_options == ProgramOptions("float16", "cpu_and_ne")
    with pytest.raises(InputError, match="no option threads"):
        sanderling.load_delegate("coreml", {"threads": 2})
    with pytest.raises(InputError, match="`precision` is 'half'") as caught:
        CoremlDelegate("half")
    assert "float32, float16" in caught.value.fix


# -- every row, numerically -----------------------------------------------------------------------


def names(letter: str, count: int) -> list[str]:
    return [f"{letter}{place}" for place in range(count)]


def program_of(graph: Graph) -> Any:
    return as_program(graph, names("x", len(graph.inputs)), names("y", len(graph.outputs)))


def run(program: Any, arrays: Sequence[Array]) -> list[Array]:
    """Core ML takes truth values as integers."""
    fed = [a.astype(np.int32) if a.dtype == bool else a for a in arrays]
    with np.errstate(all="ignore"):
        return list(execute(program, dict(zip(names("x", len(fed)), fed, strict=True))).values())


def loose(row: Case) -> Case:
    """MIL does not say in which order sums are made."""
    return replace(row, tol=max(row.tol, 1e-5), ulps=max(row.ulps, 16))


@NEEDS
@pytest.mark.parametrize("row", chosen(), ids=lambda row: row.id)
def test_rows_mean_what_the_operator_means(row: Case) -> None:
    graph = specialised(row)
    assert graph is not None
    feeds = row.arrays(row.model(), np.random.default_rng(1))
    expected = run_reference(row.model(), [feeds])[0]
    for found, wanted in zip(run(program_of(graph), feeds), expected, strict=True):
        problem = difference(loose(row), found.astype(wanted.dtype), wanted)
        assert problem is None, problem


# -- whole models ---------------------------------------------------------------------------------


def small_net() -> Model:
    """Convolutions, a residual, pools, a resize, a concatenation and a classifier."""
    random = np.random.default_rng(5)
    graph = Graph()

    def values(*shape: int) -> Any:
        data = (random.standard_normal(shape) / 3).astype(np.float32)
        return graph.constant(f"c{len(graph.tensors)}", data)

    def add(name: str, inputs: Sequence[Any], *shape: int, **attrs: Any) -> Any:
        made = graph.tensor(f"{name.lower()}/{len(graph.ops)}", DType.FLOAT32, shape)
        graph.add(name, inputs, [made], **attrs)
        return made

    def integers(*data: int) -> Any:
        return graph.constant(f"n{len(graph.tensors)}", np.array(data, np.int32))

    same = {"padding": "SAME", "stride_h": 1, "stride_w": 1}
    x = graph.input("serving:image", DType.FLOAT32, (1, 8, 8, 3))
    a = add(
        "CONV_2D",
        [x, values(4, 3, 3, 3), values(4)],
        1,
        8,
        8,
        4,
        fused_activation_function="RELU6",
        **same,
    )
    b = add(
        "DEPTHWISE_CONV_2D",
        [a, values(1, 3, 3, 4), values(4)],
        1,
        8,
        8,
        4,
        depth_multiplier=1,
        **same,
    )
    c = add("ADD", [a, b], 1, 8, 8, 4, fused_activation_function="RELU")
    d = add(
        "MAX_POOL_2D",
        [c],
        1,
        4,
        4,
        4,
        padding="VALID",
        stride_h=2,
        stride_w=2,
        filter_height=2,
        filter_width=2,
    )
    e = add("RESIZE_BILINEAR", [d, integers(8, 8)], 1, 8, 8, 4, half_pixel_centers=True)
    f = add("CONCATENATION", [c, e], 1, 8, 8, 8, axis=3)
    g = add("MEAN", [f, integers(1, 2)], 1, 8)
    h = add("FULLY_CONNECTED", [g, values(5, 8), values(5)], 1, 5)
    graph.outputs = [add("SOFTMAX", [h], 1, 5, beta=1.0)]
    return Model([graph])


def reread(path: Path) -> tuple[Any, Any]:
    """A saved package's description, and its program in MIL with the weights from its files."""
    from coremltools.converters.mil.frontend.milproto.load import load
    from coremltools.models import MLModel

    model = MLModel(str(path), skip_model_load=True)
    spec = model.get_spec()
    return spec, load(spec, spec.specificationVersion, model.weights_dir)


def near(found: Array, wanted: Array, share: float) -> None:
    np.testing.assert_allclose(found, wanted, atol=share * float(np.abs(wanted).max()), rtol=0)


@NEEDS
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_saved_package_computes_the_model(precision: str, tmp_path: Path) -> None:
    model = small_net()
    made = sanderling.export(model, tmp_path / "net.mlpackage", precision=precision)
    spec, program = reread(made.path)
    (fed,), (result,) = spec.description.input, spec.description.output
    assert (fed.name, result.name) == ("serving_image", "softmax_8")
    assert made.inputs == {fed.name: "f32[1,8,8,3]"} and list(made.outputs) == [result.name]
    assert list(fed.type.multiArrayType.shape) == [1, 8, 8, 3]
    assert made.ops["transpose"] <= 3, "those that meet have gone"
    assert (made.ops.get("cast", 0) > 0) == (precision == "float16")
    x = np.random.default_rng(6).random((1, 8, 8, 3), np.float32)
    near(
        execute(program, {fed.name: x})[result.name],
        model.compile(["reference"])(x),
        PRECISIONS[precision],
    )


@NEEDS
def test_a_part_runs_as_it_would_on_macos(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but Core ML itself: the interpreter predicts in its place."""

    class Predictor:
        def __init__(self, program: Any, options: ProgramOptions) -> None:
            self.program, self.units = converted(program, options)._mil_program, options

        def predict(self, given: dict[str, Array]) -> dict[str, Array]:
            return execute(self.program, given)

    monkeypatch.setattr(coreml, "can_execute", lambda: True)
    monkeypatch.setattr(coreml, "converted", Predictor)
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (2, 3))
    y = graph.tensor("y", DType.FLOAT32, (2, 3))
    z = graph.tensor("z", DType.BOOL, (2, 3))
    graph.add("EXP", [x], [y])
    graph.add("GREATER", [y, graph.constant("one", np.float32([1]))], [z])
    graph.outputs = [y, z]
    session = Model([graph]).compile(["coreml", "reference"])
    assert session.explain() == "part 0: 2 ops on coreml"
    given = np.float32([[-1, 0, 1], [2, -2, 0.5]])
    for _ in range(3):
        exponent, larger = session(given)
        np.testing.assert_allclose(exponent, np.exp(given), rtol=1e-6)
        assert larger.dtype == bool and (larger == (given > 0)).all()


@NEEDS
def test_export_says_what_it_does_not_take(tmp_path: Path) -> None:
    int8 = sanderling.load(DIGITS.with_name("digits_int8.tflite"))
    with pytest.raises(UnsupportedError, match=r"does not get \d of its \d ops: .* is i8"):
        sanderling.export(int8, tmp_path / "x.mlpackage")
    float32 = sanderling.load(DIGITS)
    with pytest.raises(InputError, match=r"does not end in .mlpackage"):
        sanderling.export(float32, tmp_path / "x.onnx")
    with pytest.raises(InputError, match="there is no folder"):
        sanderling.export(float32, tmp_path / "nowhere" / "x.mlpackage")
    with pytest.raises(InputError, match="there is no input 'eyes'"):
        sanderling.export(float32, tmp_path / "x.mlpackage", shapes={"eyes": (1,)})
    assert not list(tmp_path.iterdir())
    kept = tmp_path / "x.mlpackage" / "mine"
    kept.parent.mkdir()
    kept.touch()
    with pytest.raises(InputError, match=r"it is no package of Core ML: it has no Manifest.json"):
        sanderling.export(float32, kept.parent)
    assert kept.exists()


@NEEDS
def test_export_takes_a_file_too(tmp_path: Path) -> None:
    made = sanderling.export(str(DIGITS), tmp_path / "digits.mlpackage")
    assert list(made.outputs) == ["probabilities"] and made.path.is_dir()
    with pytest.raises(InputError, match=r"absent\.tflite"):
        sanderling.export(tmp_path / "absent.tflite", tmp_path / "x.mlpackage")


@NEEDS
def test_the_command_saves_a_package(tmp_path: Path) -> None:
    words = ["export", str(DIGITS), "-o", str(tmp_path / "digits.mlpackage")]
    done = CliRunner().invoke(app, [*words, "--shape", "2,8,8,1", "--precision", "float16"])
    assert done.exit_code == 0 and "image: f32[2,8,8,1]" in done.stdout, done.output
    found = json.loads(CliRunner().invoke(app, [*words, "--json", "-"]).stdout)
    assert found["schema"] == "sanderling.export/1" and found["ops"]["conv"] >= 1
    spec, _ = reread(tmp_path / "digits.mlpackage")
    assert [o.name for o in spec.description.output] == ["probabilities"]


@NEEDS
@NEEDS_SHARED
@pytest.mark.skipif(not EVERYTHING, reason="whole networks take long: make test-coreml")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "name", ["mlperftiny_resnet8_cifar10_f32", "mlperftiny_ad01_f32", "openwakeword_embedding_f32"]
)
def test_real_models_are_saved_and_read_again(name: str, precision: str, tmp_path: Path) -> None:
    model = sanderling.load(shared_model(name))
    made = sanderling.export(model, tmp_path / "model.mlpackage", precision=precision)
    spec, program = reread(made.path)
    assert [i.name for i in spec.description.input] == list(made.inputs)
    assert [o.name for o in spec.description.output] == list(made.outputs)
    x = np.random.default_rng(7).random(model.main.inputs[0].shape, np.float32)
    (found,) = execute(program, dict.fromkeys(made.inputs, x)).values()
    near(found, model.compile(["reference"])(x), PRECISIONS[precision])


def test_a_full_disk_leaves_the_old_package(tmp_path: Path) -> None:
    class Full:
        def save(self, path: str) -> None:
            (Path(path) / "Data").mkdir(parents=True)
            raise shutil.Error([("a", "b", "No space left on device")])

    target = tmp_path / "x.mlpackage"
    target.mkdir()
    (target / "Manifest.json").write_text("{}", "utf-8")
    with pytest.raises(InputError, match="cannot write: not all of its files"):
        package._save(Full(), target)
    assert [p.name for p in tmp_path.iterdir()] == ["x.mlpackage"]
    assert (target / "Manifest.json").read_text("utf-8") == "{}"

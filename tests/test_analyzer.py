"""`analyze` prints what TensorFlow Lite's analyzer prints: texts of TensorFlow 2.21 and 2.15.1."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from sanderling import InputError, analyze, dump
from sanderling.errors import ArgumentError
from sanderling.ir import Model
from sanderling.ir.text import from_text
from sanderling.measure.analyzer import printable

# `python -m tests.test_analyzer FOLDER` writes the models; the texts are what the two releases'
# tf.lite.experimental.Analyzer.analyze(model_content=...) printed.
EXPECTED = Path(__file__).parent / "data"
DIGITS = Path(str(files("sanderling") / "data"))

BRANCHES = """
graph @main(%x, %c) -> (%y) {
  %x: f32[1,4]
  %c: bool[]
  %y: f32[1,4]
  %y = IF(%c, %x) {then_subgraph_index: @double, else_subgraph_index: @shift}
}
graph @double(%x) -> (%y) {
  %x: f32[1,4]
  %y: f32[1,4]
  %y = ADD(%x, %x)
}
graph @shift(%x) -> (%y) {
  %x: f32[1,4]
  %k: f32[4] = [0.0, 0.0, 0.0, 0.0]
  %y: f32[1,4]
  %y = MUL(%x, %k)
}
"""
REFUSED = """
graph @main(%x, %i) -> (%y, %n) {
  %x: f32[2,6] signature=[-1,6]
  %i: i32[2,2]
  %b: i32[2] = [0, 1]
  %e: i32[2] = [1, 3]
  %s: i32[2] = [1, 1]
  %p: i32[2,2] = [0, 0, 1, 1]
  %q: i8[6] quant={scale: [0.5], zero_point: [0]} = [1, 65, 66, -3, 10, 99]
  %a: f32[2]
  %z: i32[2]
  %d: f32[6]
  %v: f32[2,6] signature=[-1,6]
  %w: f32[2,8] signature=[-1,8]
  %g: f32[2,2,8]
  %h: i64[2,2,8]
  %n: i64[2,2]
  %m: f32[2,2,8]
  %y: f32[2,2,8]
  %a = STRIDED_SLICE(%x, %b, %e, %s) {shrink_axis_mask: 1}
  %z = SHAPE(%x)
  %d = DEQUANTIZE(%q)
  %v = ADD(%x, %d)
  %w = PAD(%v, %p)
  %g = GATHER(%w, %i) {axis: 0}
  %h = CAST(%g) {in_data_type: "FLOAT32", out_data_type: "INT64"}
  %n = ARG_MAX(%g, %b) {output_type: "INT64"}
  %m = SOFTMAX(%g) {beta: 0.5}
  %y = DIV(%m, %m)
}
"""


def made() -> dict[str, bytes]:
    """The models of the stored texts."""
    found = {
        f"digits_{kind}": (DIGITS / f"digits_{kind}.tflite").read_bytes()
        for kind in ("f32", "int8")
    }
    return found | {"branches": dump(from_text(BRANCHES)), "refused": dump(from_text(REFUSED))}


def analysis(content: bytes, capsys: pytest.CaptureFixture[str], gpu: bool = False) -> str:
    analyze(model_content=content, gpu_compatibility=gpu)
    return capsys.readouterr().out


@pytest.mark.parametrize("name", made())
def test_text_is_tensorflows(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = (EXPECTED / f"analyzer_{name}.txt").read_text("utf-8")
    assert analysis(made()[name], capsys) == expected


def warnings(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if line.startswith("GPU COMPATIBILITY")]
    return [re.sub(r" (with|on) TFLite runtime version .*", "", line) for line in lines]


@pytest.mark.parametrize("name", made())
def test_gpu_warnings_are_tensorflows(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = (EXPECTED / f"analyzer_{name}_gpu.txt").read_text("utf-8")
    text = analysis(made()[name], capsys, gpu=True)
    assert warnings(text) == warnings(expected)
    assert ("looks compatible with GPU delegate" in text) == (not warnings(expected))


def test_a_path_is_named_and_nothing_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(dump(Model()))
    analyze(path)
    assert capsys.readouterr().out.startswith(f"=== {path} ===\n\nYour TFLite model has '1'")
    with pytest.raises(ArgumentError, match="neither"):
        analyze()
    with pytest.raises(InputError, match="cannot be read"):
        analyze(tmp_path / "none.tflite")


def test_letters_that_are_not_ascii_are_dots() -> None:
    assert printable("a\x00b\nä€") == "a.b\n...."


if __name__ == "__main__":
    import sys

    for name, content in made().items():
        (Path(sys.argv[1]) / f"{name}.tflite").write_bytes(content)

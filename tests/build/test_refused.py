"""What cannot be built ahead of time is refused op by op; custom operators as C functions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import sanderling
from sanderling.ir import DType, Graph, Model, Op
from sanderling.ops import OPS
from tests.support.command_line import call

from ..support.c_programs import CC, F, built, compiled, custom, from_python, needs_cc, run

pytestmark = needs_cc


def strings() -> Model:
    graph = Graph()
    text = graph.input("text", DType.STRING, (2,))
    made = graph.tensor("y", DType.STRING, (1, 2))
    graph.insert(Op("RESHAPE", [text, graph.constant("s", np.array([1, 2], np.int32))], [made]))
    graph.outputs = [made]
    return Model([graph])


def where() -> Model:
    """How many results there are depends on the values."""
    graph = Graph()
    x = graph.input("x", DType.BOOL, (4,))
    y = graph.tensor("y", DType.INT64, (4, 1), signature=(-1, 1))
    graph.insert(Op("WHERE", [x], [y]))
    graph.outputs = [y]
    return Model([graph])


def loop() -> Model:
    """WHILE runs graph by graph, in Python."""
    condition, body, main = Graph("condition"), Graph("body"), Graph()
    c = condition.input("c", DType.INT32, ())
    less = condition.tensor("less", DType.BOOL, ())
    condition.insert(Op("LESS", [c, condition.constant("n", np.int32(5))], [less]))
    condition.outputs = [less]
    b = body.input("b", DType.INT32, ())
    more = body.tensor("more", DType.INT32, ())
    body.insert(Op("ADD", [b, body.constant("one", np.int32(1))], [more]))
    body.outputs = [more]
    x = main.input("x", DType.INT32, ())
    y = main.tensor("y", DType.INT32, ())
    graphs = {"cond_subgraph_index": condition, "body_subgraph_index": body}
    main.insert(Op("WHILE", [x], [y], graphs))
    main.outputs = [y]
    return Model([main, condition, body])


@pytest.mark.parametrize("model, op, reason, fix", [
    (strings, "RESHAPE 'y'", "strings", "give the model numbers"),
    (where, "WHERE 'y'", "a shape is not known before the run", "--shape"),
    (loop, "WHILE 'y'", "", "with Python"),
    (custom, "custom.Twice 'b'", "nobody has defined this operator", "--custom"),
])  # fmt: skip
def test_refused_with_reasons(
    model: object, op: str, reason: str, fix: str, tmp_path: Path
) -> None:
    with pytest.raises(sanderling.NotBuiltError) as caught:
        built(model(), tmp_path / "lib")  # type: ignore[operator]
    found = caught.value.refused[0]
    assert found.op == op and reason in found.reason and fix in found.fix
    assert fix in caught.value.fix and "cannot be built ahead of time" in caught.value.what
    assert not (tmp_path / "lib").exists()


def test_the_command_lists_them(tmp_path: Path) -> None:
    path = tmp_path / "w.tflite"
    sanderling.save(where(), path)
    said = call("build", path, "-o", tmp_path / "lib", status=2).stderr
    assert "1 of 1 ops cannot be built ahead of time: WHERE 'y'" in said and "--shape" in said


TWICE = """
#include "m.h"
int twice(const sanderling_operand *in, size_t n, const sanderling_operand *out, size_t m,
          const unsigned char *options, size_t bytes) {
  const float *x = in[0].data;
  float *y = out[0].data;
  if (n != 1 || m != 1 || bytes != 2 || options[0] != 5 || in[0].tensor->rank != 2) return 7;
  if (x[0] > 100) return 3;
  for (size_t i = 0; i < in[0].tensor->bytes / sizeof(float); i++) y[i] = -2 * x[i];
  return 0;
}
"""


def test_a_custom_operator_in_c(tmp_path: Path) -> None:
    """Code, the function, and code again; it fails with its own number."""
    built(custom(), tmp_path, custom={"Twice": "twice"}, cc="none")
    (tmp_path / "twice.c").write_text(TWICE)
    program = compiled(tmp_path, tmp_path / "m_example.c", "m", [tmp_path / "twice.c"])
    (tmp_path / "x").write_bytes(np.array([1, -2, 3, 4], F).tobytes())
    assert run(program, tmp_path / "x") == "y: 2 0 6 8\n"
    run(
        CC,
        "-shared",
        "-fPIC",
        f"-I{tmp_path}",
        tmp_path / "twice.c",
        "-Wl,--whole-archive",
        tmp_path / "libm.a",
        "-Wl,--no-whole-archive",
        "-o",
        tmp_path / "libm.so",
    )
    with from_python(tmp_path).Model() as model:
        assert model.run({"x": np.array([[1, -2, 3, 4]], F)})["y"].tolist() == [[2, 0, 6, 8]]
        with pytest.raises(RuntimeError, match=r"custom operator custom\.Twice returned 3"):
            model.run({"x": np.full((1, 4), 101, F)})


def test_a_program_needs_the_function(tmp_path: Path) -> None:
    with pytest.raises(sanderling.InputError, match="needs twice") as caught:
        built(custom(), tmp_path / "lib", custom={"Twice": "twice"}, bench=True)
    assert "--link" in caught.value.fix and not (tmp_path / "lib").exists()


def test_the_check_calls_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session has it in Python, the library in C: --plugin and --link."""
    sanderling.save(custom(), tmp_path / "m.tflite")
    (tmp_path / "plugin.py").write_text(
        "import sanderling\n"
        "sanderling.register_custom('Twice', evaluate=lambda op, a: -2 * a[0],\n"
        "    infer=lambda op, s: sanderling.Spec(s[0].dtype, s[0].shape))\n"
    )
    (tmp_path / "twice.c").write_text(TWICE.replace('#include "m.h"', '#include "lib/m.h"'))
    built(custom(), tmp_path / "lib", custom={"Twice": "twice"}, cc="none")
    words = ["build", tmp_path / "m.tflite", "-o", tmp_path / "lib", "--custom", "Twice=twice"]
    try:
        call(*words, "--link", tmp_path / "twice.c", "--plugin", tmp_path / "plugin.py", "--check")
    finally:
        OPS.pop("custom.Twice", None)

"""A model as a C library: its files, its programs, its answers."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sanderling
from sanderling.build import runtime_ir
from sanderling.build.c_sources import identifier
from sanderling.build.elf import defined
from sanderling.errors import InputError
from sanderling.ir import DType, Graph, Model
from sanderling.runtime.session import Session
from sanderling.units import byte_size
from tests.support.command_line import F32, INT8, call
from tests.support.cpu_conformance import cases_of
from tests.support.every_worker import share_everything

from ..support.c_programs import CC, F, built, compiled, from_python, needs_cc, relu, run

pytestmark = needs_cc


@pytest.fixture(autouse=True)
def every_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are small here; they get the workers that are asked for."""
    share_everything(monkeypatch)


@pytest.mark.parametrize("path", [F32, INT8], ids=["float", "int8"])
def test_the_library_gives_the_session_s_answers(path: str, tmp_path: Path) -> None:
    words = ["build", path, "-o", tmp_path / "lib", "--name", "digits", "--check", "--json", "-"]
    found = json.loads(call(*words).stdout)
    assert found["schema"] == "sanderling.build/1" and found["name"] == "digits"
    assert [(c["threads"], c["identical"], c["passed"]) for c in found["checks"]] == [
        (1, True, True),
        (2, True, True),
    ]
    names = {p.name for p in (tmp_path / "lib").iterdir()}
    assert (
        names
        == set(found["files"])
        == {
            "libdigits.a",
            "libdigits.so",
            "digits.h",
            "digits_example.c",
            "CMakeLists.txt",
            "digits.py",
        }
    )
    (sizes,) = found["sizes"]
    assert 0 < sizes["code"] < found["files"]["libdigits.a"] and sizes["weights"] > 0
    assert sizes["arena"] > 0 and "image" in found["inputs"]


def test_the_example_is_a_program(tmp_path: Path) -> None:
    built(INT8, tmp_path)
    image = np.random.default_rng(1).integers(-128, 128, (1, 8, 8, 1)).astype(np.int8)
    (tmp_path / "image").write_bytes(image.tobytes())
    program = compiled(tmp_path, tmp_path / "m_example.c", "m")
    wanted = sanderling.dequantize_array(
        Session(sanderling.load(INT8))(image), sanderling.load(INT8).main.outputs[0]
    )
    printed = run(program, tmp_path / "image").split()
    assert printed[0] == "probabilities:"
    np.testing.assert_allclose([float(w) for w in printed[1:9]], wanted[0, :8], rtol=1e-4)
    for file in (tmp_path / "m.h", tmp_path / "none"):
        assert "does not hold the 64 bytes of the input" in _fails(program, file)


def _fails(*words: object) -> str:
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    assert done.returncode == 1
    return done.stderr


def test_the_module_runs_as_a_session_does(tmp_path: Path) -> None:
    built(F32, tmp_path, threads=2)
    module = from_python(tmp_path)
    images = np.random.default_rng(2).random((2, 1, 8, 8, 1)).astype(F)
    session = Session(sanderling.load(F32))
    with module.Model(threads=2) as model, module.Model() as other:
        assert [t.name for t in model.inputs] == ["image"] and model.version == other.version
        for image in images:
            wanted = session.run({"image": image})
            for instance in (model, other):
                assert _same(instance.run({"image": image}), wanted)
        with pytest.raises(ValueError, match="has shape"):
            model.run({"image": images})
        with pytest.raises(ValueError, match="the inputs are"):
            model.run({"picture": images[0]})
    with pytest.raises(RuntimeError, match="cannot run none; the library has"):
        module.Model(version="none")


def _same(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    assert list(found) == list(wanted)
    return all(found[n].tobytes() == wanted[n].tobytes() for n in wanted)


STATEFUL = ("CALL_ONCE", "READ_VARIABLE", "ASSIGN_VARIABLE", "IF", "SVDF",
            "UNIDIRECTIONAL_SEQUENCE_LSTM", "STABLEHLO_CASE")  # fmt: skip


@pytest.mark.parametrize("name", STATEFUL)
def test_state_and_branches(name: str, tmp_path: Path) -> None:
    """Run after run, and again after a reset; what is refused says why."""
    done = 0
    for number, row in enumerate(cases_of(name)[:3]):
        model = row.model()
        feeds = [row.arrays(model, np.random.default_rng(run)) for run in range(3)]
        try:
            built(model, tmp_path, f"m{number}")
        except sanderling.NotBuiltError as error:
            assert error.refused and error.refused[0].reason and error.refused[0].fix
            continue
        session = Session(model)
        names = list(session.entry(None).inputs)
        with from_python(tmp_path, f"m{number}").Model(threads=2) as instance:
            first = []
            for arrays in feeds:
                given = dict(zip(names, arrays, strict=True))
                found = instance.run(given)
                first.append(found)
                assert _same(found, session.run(given))
            instance.reset()
            assert _same(instance.run(dict(zip(names, feeds[0], strict=True))), first[0])
        done += 1
    assert done


def test_an_output_that_nobody_computes(tmp_path: Path) -> None:
    """An input, a constant, and the same result twice."""
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (2,))
    y = graph.tensor("y", DType.FLOAT32, (2,))
    graph.add("ABS", [x], [y])
    graph.outputs = [x, y, y, graph.constant("c", np.array([5, 6], np.int32))]
    built(Model([graph]), tmp_path)
    with from_python(tmp_path).Model() as model:
        found = model.run({"x": np.array([-1, 2], F)})
    assert {n: a.tolist() for n, a in found.items()} == {
        "x": [-1, 2],
        "y": [1, 2],
        "y:1": [1, 2],
        "c": [5, 6],
    }


def test_two_models_in_one_program(tmp_path: Path) -> None:
    built(relu(size=2), tmp_path, "one")
    built(relu(size=3), tmp_path, "two")
    program = compiled(
        tmp_path,
        """
#include <stdio.h>
#include "one.h"
#include "two.h"
int main(void) {
  float x[3] = {-1, 2, -3}, y[3] = {9, 9, 9};
  sanderling_buffer in = {x, 0}, out = {y, 0};
  one_instance *a; two_instance *b, *c;
  if (one_create(NULL, &a) || two_create(NULL, &b) || two_create(NULL, &c)) return 1;
  in.bytes = out.bytes = ONE_INPUT_0_BYTES;
  if (one_run(a, &in, 1, &out, 1)) return 2;
  printf("%g %g %g\\n", y[0], y[1], y[2]);
  in.bytes = out.bytes = two_input(0)->bytes;
  if (two_run(b, &in, 1, &out, 1) || two_run(c, &in, 1, &out, 1)) return 3;
  printf("%g %g %g\\n", y[0], y[1], y[2]);
  one_destroy(a), two_destroy(b), two_destroy(c), two_destroy(NULL);
  return 0;
}
""",
        "one",
        [tmp_path / "libtwo.a"],
    )
    assert run(program) == "0 2 9\n0 2 0\n"


def test_an_archive_needs_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "")
        found = built(INT8, tmp_path, cc="none")
    assert "libm.a" in found.files and "libm.so" not in found.files
    assert "C compiler" in found.notes[0] and "--cc" in found.notes[0]
    assert "probabilities:" in run(compiled(tmp_path, tmp_path / "m_example.c", "m"))
    before = (tmp_path / "libm.a").read_bytes()
    built(INT8, tmp_path, cc="none")
    assert (tmp_path / "libm.a").read_bytes() == before  # the same model gives the same bytes


def test_versions_share_equal_weights(tmp_path: Path) -> None:
    """float32 is packed alike for all CPUs of AArch64; bytes for each of its instructions."""
    for path, shared in ((F32, True), (INT8, False)):
        found = built(path, tmp_path, target="aarch64", cc="none")
        each = [sizes["weights"] for sizes in found.sizes]
        assert len(each) == 3 and found.files["libm.a"] > found.weight_bytes
        assert found.weight_bytes == (each[0] if shared else sum(each))
    told = call("build", INT8, "-o", tmp_path, "--target", "aarch64", "--cc", "none", "-q").stdout
    assert f"weights {byte_size(found.weight_bytes)}, runtime" in told


def test_nothing_but_libc_is_needed(tmp_path: Path) -> None:
    built(INT8, tmp_path)
    missing = {
        line.split()[-1] for line in run("nm", tmp_path / "libm.a").splitlines() if " U " in line
    }
    own = {
        line.split()[-1]
        for line in run("nm", tmp_path / "libm.a").splitlines()
        if " T " in line or " R " in line or " D " in line
    }
    assert {n for n in missing - own if not n.startswith("m_")} <= {
        "free",
        "getauxval",
        "calloc",
        "memcpy",
        "memset",
        "pthread_create",
        "pthread_join",
        "pthread_sigmask",
        "sched_getaffinity",
        "sigfillset",
        "snprintf",
        "strcmp",
        "syscall",
    }
    shown = {
        line.split()[-1]
        for line in run("nm", "-D", "--defined-only", tmp_path / "libm.so").splitlines()
    }
    header = (tmp_path / "m.h").read_text()
    assert shown and all(f"{name}(" in header for name in shown)


def test_a_check_that_fails_is_status_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given inputs are fed in every run; the session is made to give other answers."""
    np.save(tmp_path / "x.npy", np.zeros((1, 8, 8, 1), np.int8))
    words = ["build", INT8, "-o", tmp_path / "lib", "--check", "-i", f"image={tmp_path / 'x.npy'}"]
    assert "yes" in call(*words).stdout
    fed: list[Any] = []
    real = Session.run

    def other(self: Session, feeds: Any, **more: Any) -> dict[str, Any]:
        fed.append(feeds["image"])
        return {name: array ^ 1 for name, array in real(self, feeds, **more).items()}

    monkeypatch.setattr(Session, "run", other)
    result = call(*words, status=1)
    assert "the check failed" in result.stderr and " no " in result.stdout
    assert len(fed) == 3 and not any(x.any() for x in fed)


def test_the_runtime_is_made_of_its_sources() -> None:
    assert runtime_ir.is_current(), "python -m sanderling.build.runtime_ir CLANG"


def test_cmake_and_cpp(tmp_path: Path) -> None:
    """The header is C++ too."""
    built(relu(), tmp_path)
    (tmp_path / "x.cc").write_text(
        '#include "m.h"\nint main() { return (int)m_input_count() - 1; }\n'
    )
    text = (tmp_path / "CMakeLists.txt").read_text()
    assert "libm.a" in text and "@" not in text
    compiler = subprocess.run(["g++", "--version"], capture_output=True)
    if compiler.returncode:
        pytest.skip("there is no C++ compiler")
    run(
        "g++",
        "-Wall",
        "-Werror",
        tmp_path / "x.cc",
        tmp_path / "libm.a",
        "-pthread",
        "-o",
        tmp_path / "x",
    )
    run(tmp_path / "x")


@pytest.mark.parametrize("text, name", [
    ("mobilenet_v1_0.25", "mobilenet_v1_0_25"), ("3d-Model", "model_3d_model"),
    ("int", "model_int"), ("모델", "model"), ("a" * 100, "a" * 64),
])  # fmt: skip
def test_names(text: str, name: str) -> None:
    assert identifier(text) == name


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a name in C"):
        built(relu(), tmp_path / "a", "a b")
    with pytest.raises(InputError, match="`threads` is 0"):
        built(relu(), tmp_path / "a", threads=0)
    with pytest.raises(InputError, match="no target 'z80'"):
        built(relu(), tmp_path / "a", target="z80")
    with pytest.raises(InputError, match="no command 'no-such-cc'"):
        built(relu(), tmp_path / "a", cc="no-such-cc")
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="it is a file"):
        built(relu(), tmp_path / "file")


def test_a_linker_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(sanderling.SanderlingError, match="ended with status"):
        built(relu(), tmp_path / "lib", cc=f"{CC} --no-such-option")
    assert list((tmp_path / "lib").iterdir()) == []


def test_defined_symbols() -> None:
    assert list(defined(b"\x7fELF".ljust(64, b"\0"))) == []

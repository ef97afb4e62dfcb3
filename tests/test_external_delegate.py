"""A delegate's library, in C: it takes CONV_2D and ADD through LiteRT, and really computes them."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import sanderling
from sanderling import DelegateError, FallbackWarning, InputError, Session
from sanderling.cli.app import app
from sanderling.delegates.engines import external
from sanderling.ir import DType, Graph, Model, Tensor
from sanderling.runtime.registry import find_delegate

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="pip install 'sanderling[peers]'")

SOURCE = Path(__file__).parent / "support" / "external_delegate.c"
X = np.random.default_rng(0).normal(size=(1, 7, 6, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler, and the library has to be compiled")
    made = tmp_path_factory.mktemp("library") / "libexample.so.1"
    flags = ("-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
    subprocess.run([compiler, *flags, "-o", made, SOURCE], check=True)
    return str(made)


def residual() -> Model:
    """Convolutions of several kinds with a sum among them, and ABS where the library takes none."""
    rng = np.random.default_rng(0)
    graph = Graph()

    def conv(name: str, x: Tensor, shape: Sequence[int], **more: Any) -> Tensor:
        weights = rng.normal(size=(shape[3], 3, 2, x.shape[3])).astype(np.float32) / 4
        w = graph.constant(f"{name}_w", weights)
        b = graph.constant(f"{name}_b", rng.normal(size=shape[3]).astype(np.float32))
        y = graph.tensor(name, DType.FLOAT32, shape)
        sizes = {"stride_w": 1, "stride_h": 1, "dilation_w_factor": 1, "dilation_h_factor": 1}
        graph.add("CONV_2D", [x, w, b], [y], **{"padding": "SAME", **sizes, **more})
        return y

    def plain(name: str, inputs: list[Tensor], output: str, **more: Any) -> Tensor:
        y = graph.tensor(output, DType.FLOAT32, inputs[0].shape)
        graph.add(name, inputs, [y], **more)
        return y

    x = graph.input("x", DType.FLOAT32, X.shape)
    first = conv("first", x, (1, 4, 6, 8), stride_h=2, fused_activation_function="RELU6")
    middle = plain("ABS", [first], "middle")
    second = conv("second", middle, (1, 4, 6, 8), dilation_w_factor=2)
    total = plain("ADD", [second, middle], "total", fused_activation_function="RELU_N1_TO_1")
    last = conv("last", total, (1, 2, 5, 5), padding="VALID", fused_activation_function="RELU")
    graph.outputs = [plain("ABS", [last], "y")]
    return Model([graph])


MODEL = residual()


def events(log: Path) -> Counter[str]:
    return Counter(log.read_text().split())


def on(delegate: Any, **more: Any) -> Session:
    return MODEL.compile(delegates=[delegate, "reference"], **more)


def check_answer(session: Session) -> None:
    wanted = MODEL.compile(delegates="reference")(X)
    np.testing.assert_allclose(session(X), wanted, atol=1e-5)


# -- what it takes and computes -------------------------------------------------------------------


def test_the_library_computes_its_parts_and_is_unloaded(library: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    session = on(sanderling.load_delegate(library, {"log": log}))
    assert session.explain().splitlines() == [
        "part 0: 1 op on libexample.so.1",
        "part 1: 1 op on reference",
        "part 2: 3 ops on libexample.so.1",
        "part 3: 1 op on reference",
        "ABS 'middle': libexample.so.1 refuses: the library does not take it",
        "ABS 'y': libexample.so.1 refuses: the library does not take it",
    ]
    for runs in (1, 2, 3):
        check_answer(session)
        assert (events(log)["CONV_2D"], events(log)["ADD"]) == (3 * runs, runs)
    made = events(log)
    assert made["create"] - made["destroy"] == 2  # a delegate for each of its parts
    del session
    assert events(log)["destroy"] == made["create"]


def test_options_reach_the_library(library: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    session = on(sanderling.load_delegate(library, {"ops": "ADD", "log": log}))
    check_answer(session)
    assert events(log)["ADD"] == 1 and not events(log)["CONV_2D"]
    assert "CONV_2D 'first': libexample.so.1 refuses" in session.explain()


def test_the_interpreter_answers_as_litert_does(library: str) -> None:
    answers = []
    for module in (sanderling, litert):
        delegates = [module.load_delegate(library, {"ops": "CONV_2D"})]
        if module is sanderling:
            delegates.append(sanderling.load_delegate("reference"))  # no code is compiled then
        made = module.Interpreter(
            model_content=sanderling.dump(MODEL), experimental_delegates=delegates
        )
        made.allocate_tensors()
        made.set_tensor(made.get_input_details()[0]["index"], X)
        made.invoke()
        answers.append(made.get_tensor(made.get_output_details()[0]["index"]))
    np.testing.assert_allclose(*answers, atol=1e-6)


def test_an_op_that_is_left_out_of_its_part_moves_on(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library may take fewer ops of a part than of the whole graph."""
    found = external.taken_nodes

    def one_less(rows: Sequence[Any]) -> set[int]:
        of_part = len([row for row in rows if row["op_name"] != "DELEGATE"]) == 3
        return set(found(rows)) - {2} if of_part else found(rows)

    monkeypatch.setattr(external, "taken_nodes", one_less)
    with pytest.warns(FallbackWarning, match="leaves out 1 op"):
        session = on(sanderling.load_delegate(library))
    check_answer(session)
    assert "CONV_2D 'last': libexample.so.1 refuses" in session.explain()


def test_nodes_of_a_delegate_are_found_by_their_tensors() -> None:
    def row(index: int, inputs: list[int], outputs: list[int], name: str = "ADD") -> dict[str, Any]:
        return {"index": index, "op_name": name, "inputs": inputs, "outputs": outputs}

    rows = [row(0, [0, 9], [1]), row(1, [1], [2]), row(2, [2, 1], [3]), row(3, [3], [4])]
    assert external.taken_nodes([*rows, row(4, [1], [3], "DELEGATE")]) == {1, 2}
    assert external.taken_nodes([*rows, row(4, [0, 9], [4], "DELEGATE")]) == {0, 1, 2, 3}
    two = row(4, [0], [1], "DELEGATE"), row(5, [3], [4], "DELEGATE")
    assert external.taken_nodes([*rows, *two]) == {0, 3} and not external.taken_nodes(rows)


# -- what goes wrong ------------------------------------------------------------------------------

# The library, its options, and the words that LiteRT's error and ours share.
UNLOADABLE: dict[str, tuple[str, dict[str, str], str]] = {
    "no file": ("libnone.so", {}, "libnone.so: cannot open shared object file: No such file"),
    "no symbols": ("libm.so.6", {}, "undefined symbol: tflite_plugin_create_delegate"),
    "no device": ("", {"fail": "create"}, "there is no device"),
    "unknown option": ("", {"speed": "high"}, "unknown option 'speed'"),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # LiteRT's __del__
@pytest.mark.parametrize("case", UNLOADABLE)
def test_what_cannot_be_loaded_is_said_in_litert_s_words(case: str, library: str) -> None:
    path, options, words = UNLOADABLE[case]
    with pytest.raises((OSError, ValueError, AttributeError), match=words):
        litert.load_delegate(path or library, options)
    for kind in (OSError, ValueError):
        for named, given in ((path or library, {}), ("external", {"path": path or library})):
            with pytest.raises(kind) as error:
                sanderling.load_delegate(named, {**given, **options})
            said = str(error.value)
            assert said.startswith(f"Failed to load delegate from {path or library}: ")
            assert words in said and said.count(path or library) == 1


@pytest.mark.parametrize(
    ("stage", "words"),
    [("prepare", "the firmware is too old"), ("init", "the device is out of memory. Node number")],
)
def test_one_that_cannot_be_applied_gets_no_op(stage: str, words: str, library: str) -> None:
    delegate = sanderling.load_delegate(library, {"fail": stage})
    with pytest.warns(
        FallbackWarning, match=f"'libexample.so.1' gets no op: .* applied: .*{words}"
    ):
        session = on(delegate)
    check_answer(session)
    assert words in session.explain()
    with (
        pytest.warns(FallbackWarning),
        pytest.raises(DelegateError, match=f"does not run the whole graph(.|\n)*{words}"),
    ):
        on(delegate, require_full_delegation=True)


def test_a_device_with_a_single_user(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library can be asked, and makes one delegate: the other part runs elsewhere."""
    delegate = sanderling.load_delegate(library)
    make, left = delegate._library, [True, True]  # type: ignore[attr-defined]

    def once() -> Any:
        return make() if left and left.pop() else external.ExternalDelegate(library, fail="create")

    monkeypatch.setattr(delegate, "_library", once)
    with pytest.warns(FallbackWarning, match="could not be applied: .*there is no device"):
        session = on(delegate)
    check_answer(session)
    assert "there is no device" in session.explain()


def test_an_error_in_a_run_names_the_library(library: str) -> None:
    session = on(sanderling.load_delegate(library, {"fail": "invoke"}))
    with pytest.raises(DelegateError, match=r"'libexample.so.1'.*the device does not answer"):
        session(X)


def test_a_crash_in_a_process_of_its_own(library: str, tmp_path: Path) -> None:
    options = {"crash": "invoke", "log": tmp_path / "log", "isolated": True}
    session = on(sanderling.load_delegate(library, options))
    name = "libexample.so.1:isolated"
    assert f"part 2: 3 ops on {name}" in session.explain()
    with pytest.warns(FallbackWarning, match=f"'{name}': in a run, its process .*SIGSEGV") as told:
        check_answer(session)
    assert len(told) == 1
    check_answer(session)
    assert f"3 ops on reference ({name} had it: in a run, its process" in session.explain()


def test_without_a_library_it_is_none() -> None:
    assert "external" not in sanderling.delegate_names()
    with pytest.raises(InputError, match="it has no library"):
        MODEL.compile(delegates=["external"])


# -- on the command line --------------------------------------------------------------------------


def test_the_tools_take_it(library: str, tmp_path: Path) -> None:
    file, log = tmp_path / "residual.tflite", tmp_path / "log"
    sanderling.save(MODEL, file)
    delegate = sanderling.load_delegate(library, {"ops": "ADD", "log": log})
    flags = f"--external_delegate_path={library}", f"--external_delegate_options=ops:ADD;log:{log}"
    calls: list[tuple[list[str], str]] = [
        (["inspect", str(file), "--delegate", delegate.spelling], "1 op on libexample.so.1"),
        (
            ["diff", str(file), "--runs=1", "--delegate-a=reference", *flags],
            "sanderling external:libexample.so.1+cpu (external:libexample.so.1 took 1, cpu took ",
        ),
        (
            ["benchmark_model", f"--graph={file}", "--num_runs=1", "--min_secs=0", *flags],
            "Explicitly applied EXTERNAL delegate, and the model graph will be partially executed "
            "by the delegate w/ 1 delegate kernels",
        ),
    ]
    for words, said in calls:
        ran = events(log)["ADD"]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0 and said in result.output, result.output
        assert words[0] == "inspect" or events(log)["ADD"] > ran


def test_another_process_finds_it_by_its_spelling(library: str) -> None:
    made = sanderling.load_delegate(library, {"ops": "ADD"})
    assert made.spelling == f"external:path={library};ops=ADD"
    assert "5 ops" not in on(find_delegate(made.spelling)).explain()

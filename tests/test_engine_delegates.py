"""Other engines as delegates: whole graphs and mixed ones, options, copies, errors."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.foreign_delegates import EverySecond
from sanderling import DType, Graph, InputError, Model, delegate_names, load_delegate
from sanderling.delegates.engines import compiled_model, litert_gpu, onnxruntime, packages, to_onnx
from sanderling.delegates.engines.base import BoundCall, EngineDelegate, PointingExecutable
from sanderling.errors import DelegateError, FallbackWarning, MissingExtraError
from sanderling.ir import Array
from sanderling.ops.execute import new_state
from sanderling.runtime.delegate import Executable, Options
from sanderling.runtime.registry import find_delegate
from sanderling.runtime.session import Session
from tests.support.conv_stacks import feed, stack

# What each engine's delegate needs; `make test` installs the first.
NEEDS = {"litert": "ai_edge_litert", "openvino": "openvino", "onnxruntime": "tf2onnx"}
ABSENT = [name for name, module in NEEDS.items() if find_spec(module) is None]
KINDS = ("litert", "litert-builtin", "litert-reference", "openvino", "onnxruntime")


def needs(name: str) -> Any:
    gone = name.split("-")[0] in ABSENT
    why = "pip install 'sanderling[peers,onnx]'"
    return pytest.param(name, marks=pytest.mark.skipif(gone, reason=why))


ENGINES = [needs(name) for name in KINDS]
POINTING = [needs(name) for name in ("openvino", "onnxruntime")]
LITERT = pytest.mark.skipif("litert" in ABSENT, reason="pip install 'sanderling[peers]'")


def near(ours: Array, theirs: Array) -> bool:
    """Floats to 1e-5 of the largest, codes to one unit."""
    limit = 1 if ours.dtype.kind in "iu" else 1e-5 * float(np.abs(ours).max())
    gap = np.abs(ours.astype(np.float64) - theirs.astype(np.float64)).max()
    return bool(gap <= limit)


def executables(session: Session, kind: str = "") -> list[Executable]:
    steps = session.plan().steps
    return [s.executable for s in steps if kind in s.part.delegate.name]


# -- answers and copies ---------------------------------------------------------------------------


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("name", ENGINES)
def test_a_whole_graph_and_every_second_op(name: str, quantised: bool) -> None:
    model = stack(quantised, size=6)
    x, wanted = feed(model), model.compile(["reference"])(feed(model))
    whole = model.compile(delegates=[name], require_full_delegation=True)
    mixed = model.compile(delegates=[EverySecond(name), "reference"])
    for session, parts in ((whole, 1), (mixed, 2)):
        bound = session.bind({"x": x})
        for _ in range(3):
            bound.run()
        assert near(wanted, bound.outputs["y3"])
        made = executables(session, name)
        assert len(made) == parts
        copied = 0 if name in ("openvino", "onnxruntime") else 6
        counts = [(e.copies.runs, e.copies.tensors) for e in made if e.copies]
        assert counts == [(3, copied)] * parts


@pytest.mark.parametrize("name", ENGINES)
def test_bound_runs_of_one_session_do_not_mix(name: str) -> None:
    model = stack(quantised=False, layers=2, size=4)
    session = model.compile(delegates=[name])
    fed = [feed(model, seed) for seed in (1, 2)]
    bound = [session.bind({"x": x}) for x in fed]
    for _ in range(3):
        for one in bound:
            one.run()
    free = session(fed[0])
    bound[1].run()
    alone = [model.compile(["reference"])(x) for x in fed]
    assert near(alone[0], free)
    for one, wanted in zip(bound, alone, strict=True):
        assert near(wanted, one.outputs["y1"])


@pytest.mark.parametrize("name", [needs("litert"), *POINTING])
def test_an_input_that_must_not_be_written_is_read(name: str) -> None:
    model = stack(quantised=False, layers=1, size=4)
    x = feed(model)
    locked = x.view()
    locked.flags.writeable = False
    session = model.compile(delegates=[name], require_full_delegation=True)
    bound = session.bind({"x": locked})
    for _ in range(2):
        bound.run()
        assert near(model.compile(["reference"])(x), bound.outputs["y0"])
        x *= 2  # its owner may write it
    copied = {"openvino": 2, "onnxruntime": 0}.get(name, 4)
    assert [e.copies.tensors for e in executables(session) if e.copies] == [copied]


@pytest.mark.parametrize("name", [needs("litert"), needs("litert-reference")])
def test_an_empty_result(name: str) -> None:
    graph = Graph("main")
    x, n = graph.input("x", DType.FLOAT32, ()), graph.tensor("n", DType.INT64, (0,))
    graph.add("SHAPE", [x], [n], out_type="INT64")
    graph.outputs = [n]
    session = Model([graph]).compile(delegates=[name], require_full_delegation=True)
    assert session(np.float32(1)).shape == (0,)


@pytest.mark.parametrize("name", ENGINES)
def test_a_new_shape_is_a_new_plan(name: str) -> None:
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (1, 4), signature=(-1, 4))
    weights = graph.constant("w", np.arange(12).reshape(3, 4), DType.FLOAT32)
    y = graph.tensor("y", DType.FLOAT32, (1, 3), signature=(-1, 3))
    graph.add("FULLY_CONNECTED", [x, weights, None], [y], fused_activation_function="NONE")
    graph.outputs = [y]
    session = Model([graph]).compile(delegates=[name])
    for rows in (1, 5, 2, 5):
        values = np.random.default_rng(rows).random((rows, 4), np.float32)
        assert np.allclose(session(values), values @ weights.data.T, atol=1e-5), rows


@pytest.mark.parametrize("name", ENGINES)
def test_sessions_run_at_once_and_in_a_forked_child(name: str) -> None:
    model = stack(quantised=False, layers=2, size=8)
    fed = [feed(model, seed) for seed in range(3)]
    wanted = [model.compile(["reference"])(x) for x in fed]
    sessions = [model.compile(delegates=[name], threads=2) for _ in fed]
    found: dict[int, Array] = {}

    def work(place: int) -> None:
        for _ in range(5):
            found[place] = sessions[place](fed[place])

    workers = [threading.Thread(target=work, args=(place,)) for place in range(len(fed))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(near(wanted[place], found[place]) for place in range(len(fed)))
    child = os.fork()
    if not child:
        os._exit(0 if near(wanted[0], sessions[0](fed[0])) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert near(wanted[1], sessions[1](fed[1]))


@LITERT
def test_refused_ops_run_elsewhere_with_a_reason() -> None:
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (4,))
    y, z = graph.tensor("y", DType.FLOAT32, (4,)), graph.tensor("z", DType.FLOAT32, (4,))
    graph.add("NEG", [x], [y])
    graph.add("WHERE", [x], [graph.tensor("w", DType.INT64, (0, 1), signature=(-1, 1))])
    graph.add("ABS", [y], [z])
    graph.outputs = [z, graph.ops[1].outputs[0]]
    session = Model([graph]).compile(delegates=["litert", "reference"])
    said = session.explain()
    assert "2 ops on litert" in said
    assert "WHERE 'w': litert refuses: a tensor has state, no fixed shape" in said
    four = graph.tensor("i4", DType.INT4, (4,))
    graph.add("CAST", [x], [four])
    assert find_delegate("litert").refuses(graph.ops[-1]) == "an element of i4 is less than a byte"


# -- failures -------------------------------------------------------------------------------------


class Failing(EngineDelegate):
    """Its engine complains of what it is told to."""

    name, engine, title = "failing", "litert", "The engine"

    def __init__(self, said: str, **options: Any) -> None:
        super().__init__(**options)
        self.complaint = said

    def load(self, part: Graph, options: Options) -> Executable:
        if any(op.name in ("ABS", "custom.Odd") for op in part.ops):
            raise RuntimeError(self.complaint)
        return find_delegate("litert").compile(part, options)  # type: ignore[return-value]


@LITERT
@pytest.mark.parametrize("said", ["no translator\nfor ABS node", "TFL_ABS is not an op"])
def test_an_engine_that_fails_names_its_ops(said: str) -> None:
    model = unary("NEG", "ABS", "NEG")
    with pytest.warns(FallbackWarning, match="could not compile 1 op, which runs elsewhere"):
        session = model.compile(delegates=[Failing(said), "reference"])
    counts = [(p.delegate.name, len(p.ops)) for p in session.plan().partition.parts]
    assert counts == [("failing", 1), ("reference", 1), ("failing", 1)]
    with pytest.warns(FallbackWarning, match="3 ops.*The engine cannot load them: out of luck"):
        model.compile(delegates=[Failing("out of luck"), "reference"])


def unary(*names: str) -> Model:
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (2, 8))
    for place, name in enumerate(names):
        y = graph.tensor(f"y{place}", DType.FLOAT32, (2, 8))
        graph.add(name, [x], [y])
        x = y
    graph.outputs = [x]
    return Model([graph])


@LITERT
def test_litert_names_nodes_by_number() -> None:
    delegate = find_delegate("litert")
    assert isinstance(delegate, EngineDelegate)
    part = unary("NEG", "ABS", "NEG").main
    assert delegate.blamed(part, "Node number 2 (NEG) failed to prepare.") == [2]
    assert delegate.blamed(part, "Node number 9 (X) failed") == []
    assert delegate.blamed(part, "NEG is unknown") == [0, 2]


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_of_other_types_is_refused(name: str) -> None:
    from sanderling.delegates.engines.base import check_type

    tensor = unary("NEG").main.inputs[0]
    check_type(name, tensor, "float32")
    with pytest.raises(DelegateError, match="makes float16 of 'x'"):
        check_type(name, tensor, "float16")


@pytest.mark.parametrize("name", KINDS)
def test_a_missing_package_is_a_sentence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "find_spec", lambda module: None)
    with pytest.raises(MissingExtraError, match=rf"delegate {name} needs .*(\n.*)pip install"):
        unary("NEG").compile(delegates=[name])
    assert name in delegate_names()


@pytest.mark.parametrize("name", [needs("onnxruntime")])
def test_the_exporter_is_asked_for_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "find_spec", lambda module: None)
    with pytest.raises(MissingExtraError, match="needs the package 'tf2onnx'"):
        find_delegate(name)


@pytest.mark.parametrize("name", [needs("onnxruntime")])
def test_an_exporter_that_dies_is_started_again(name: str, tmp_path: Path) -> None:
    exporter, content = to_onnx.Exporter(), b"no model"
    assert "ModelError" in exporter.export(content, tmp_path / "a.onnx")
    assert exporter._child is not None
    exporter._child.process.kill()
    exporter._child.process.wait()
    assert "ended (SIGKILL)" in exporter.export(content, tmp_path / "a.onnx")
    assert "ModelError" in exporter.export(content, tmp_path / "a.onnx")
    exporter.close()


# -- options --------------------------------------------------------------------------------------


@LITERT
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"speed": 9}, "it has no option 'speed'\n  its options: threads, precision"),
        ({"threads": "0"}, "its option 'threads' cannot be '0'\n  give a whole number, 1 or more"),
        ({"threads": True}, "'threads' cannot be True"),
        ({"precision": "f8"}, "'precision' cannot be 'f8'\n  give one of f32, f16"),
        ({"xnnpack_flags": "x"}, "give a whole number, 0 or more"),
        ({"weight_cache": ""}, "give a text"),
        ({"precision": "true"}, "'precision' needs a value (alone, it means 'true')\n  write prec"),
        ({"weight_cache": "true"}, "write weight_cache=VALUE, where VALUE is a text"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        load_delegate("litert", options)
    assert said in str(caught.value)


@LITERT
def test_flags_are_read_from_text() -> None:
    made = load_delegate("litert-gpu", {"benchmark_mode": "yes", "precision": "f16"})
    assert isinstance(made, EngineDelegate)
    assert made.chosen == {"benchmark_mode": True, "precision": "f16"}
    again = made.configure({"benchmark_mode": False})
    assert again.chosen == {"benchmark_mode": False, "precision": "f16"}
    with pytest.raises(InputError, match="true or false"):
        made.configure({"benchmark_mode": "maybe"})


@LITERT
def test_options_of_xnnpack(tmp_path: Path) -> None:
    model = stack(quantised=False, layers=2, size=4)
    x, wanted = feed(model), model.compile(["reference"])(feed(model))
    kept = model.compile(delegates=[f"litert:weight_cache={tmp_path}/kept;threads=2"])
    assert near(wanted, kept(x))
    assert len(list((tmp_path / "kept").iterdir())) == 1
    half = model.compile(delegates=[load_delegate("litert", {"precision": "f16"})])
    gap = np.abs(half(x) - wanted).max() / np.abs(wanted).max()
    assert 0 < gap < 1e-2
    exact = model.compile(delegates=[load_delegate("litert", {"xnnpack_flags": "0x200"})])
    assert near(wanted, exact(x))
    (made,) = executables(half)
    assert made.memory()["part_file"] > 0


@LITERT
def test_a_compiled_model_writes_where_it_is_told() -> None:
    """Outputs on a boundary of 64 bytes are not copied, others are; inputs are copied."""
    model = stack(quantised=False, layers=1, size=4)
    x, wanted = feed(model), model.compile(["reference"])(feed(model))
    part = load_delegate("litert", {"precision": "f32"}).compile(
        model.main, Options(1, new_state())
    )
    block = np.zeros(wanted.nbytes + 128, np.uint8)
    start = -block.ctypes.data % 64
    assert isinstance(part, Executable)
    for shift, copies in ((0, 1), (4, 2)):
        y = block[start + shift :][: wanted.nbytes].view(np.float32).reshape(wanted.shape)
        before = part.copies.tensors if part.copies else 0
        part.run([x], [y])
        assert near(wanted, y)
        assert part.copies and part.copies.tensors - before == copies
        y[...] = 0


@LITERT
def test_types_without_buffers() -> None:
    graph = Graph()
    x = graph.input("x", DType.INT64, (4,))
    y = graph.tensor("y", DType.INT64, (4,))
    graph.add("NEG", [x], [y])
    said = "LiteRT's CompiledModel has no buffers of i64"
    assert compiled_model.refuses_types(graph.ops[0]) == said
    assert find_delegate("litert-gpu").refuses(graph.ops[0]) == said
    assert load_delegate("litert", {"precision": "f16"}).refuses(graph.ops[0]) == said
    assert find_delegate("litert").refuses(graph.ops[0]) is None


@LITERT
def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(litert_gpu, "vulkan_problem", lambda: "Vulkan finds no device")
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.warns(FallbackWarning, match="no GPU that LiteRT can use: Vulkan finds no device"):
        session = unary("NEG").compile(delegates=["litert-gpu", "reference"])
    assert "it failed to compile them" in session.explain()


@LITERT
def test_on_a_gpu() -> None:
    problem = litert_gpu.vulkan_problem()
    if problem:
        pytest.skip(problem)
    model = stack(quantised=False, layers=2, size=4)
    try:
        session = model.compile(delegates=["litert-gpu"], require_full_delegation=True)
    except DelegateError as error:
        if "No adapters found" in error.what:  # Mesa 22's software device is none to it
            pytest.skip("LiteRT takes none of this machine's Vulkan devices")
        raise
    assert np.allclose(session(feed(model)), model.compile(["reference"])(feed(model)), atol=1e-3)


@pytest.mark.parametrize("name", [needs("openvino")])
def test_options_of_openvino(name: str) -> None:
    model = stack(quantised=False, layers=2, size=4)
    x, wanted = feed(model), model.compile(["reference"])(feed(model))
    session = model.compile(delegates=[f"{name}:precision=f32;performance=throughput;threads=1"])
    assert near(wanted, session(x))
    with pytest.warns(FallbackWarning, match=r"no device NPU.7 here\n  its devices: .*CPU"):
        model.compile(delegates=[load_delegate(name, {"device": "NPU.7"}), "reference"])


@pytest.mark.parametrize("name", [needs("openvino")])
def test_openvino_s_last_line_tells(name: str) -> None:
    delegate = find_delegate(name)
    assert isinstance(delegate, EngineDelegate)
    said = "Exception from a.cpp:84:\nCheck 'x' failed:\nNo translator found for ABS node.\n\n"
    assert delegate.said(RuntimeError(said)) == "No translator found for ABS node."
    assert delegate.said(RuntimeError("")) == "RuntimeError"


@pytest.mark.parametrize("name", [needs("onnxruntime")])
def test_options_of_onnxruntime(name: str) -> None:
    model = stack(quantised=False, layers=2, size=4)
    x, wanted = feed(model), model.compile(["reference"])(feed(model))
    for level in onnxruntime.LEVELS:
        assert near(wanted, model.compile(delegates=[f"{name}:optimization={level}"])(x))


@pytest.mark.parametrize("name", [needs("onnxruntime")])
def test_a_provider_may_be_absent_but_not_misspelt(name: str) -> None:
    import onnxruntime as ort

    model = stack(quantised=False, layers=2, size=4)
    absent = sorted({*ort.get_all_providers()} - {*ort.get_available_providers()})[0]
    with pytest.warns(FallbackWarning, match=f"no provider {absent}"):
        model.compile(delegates=[load_delegate(name, {"providers": absent}), "reference"])
    with pytest.raises(InputError, match=r"'CUDA'(.|\n)*providers: .*CUDAExecutionProvider"):
        model.compile(delegates=[f"{name}:providers=CPUExecutionProvider/CUDA"])


# -- arrays that engines are told of --------------------------------------------------------------


class Doubling(PointingExecutable):
    """Its engine is NumPy."""

    def __init__(self) -> None:
        super().__init__()
        self.told = 0
        self.arrays: list[Array] = []

    def point(self, inputs: Any, outputs: Any) -> list[Array]:
        return [inputs[0], outputs[0]]

    def attach(self, pointed: list[Array]) -> None:
        self.told, self.arrays = self.told + 1, pointed

    def detach(self) -> None:
        self.arrays = []

    def compute(self) -> object:
        return np.multiply(self.arrays[0], 2, out=self.arrays[1])


def test_addresses_are_handed_over_once() -> None:
    made = Doubling()
    fed: list[Array] = [np.ones(3), np.full(3, 5.0)]
    results: list[Array | None] = [np.empty(3), np.empty(3)]
    calls = [made.bind([x], [y]) for x, y in zip(fed, results, strict=True)]
    for _ in range(4):
        calls[0]()
    assert made.told == 1
    calls[1]()
    calls[0]()
    assert made.told == 3 and [float(y[0]) for y in results if y is not None] == [2, 10]
    made.run([fed[1]], [results[0]])
    assert made.arrays == [] and made.copies.runs == 7 and made.copies.tensors == 0
    calls[0]()
    assert results[0] is not None and results[0][0] == 2


def test_no_circle_keeps_an_engine() -> None:
    made = Doubling()
    call: BoundCall = made.bind([np.ones(2)], [np.empty(2)])
    call()
    gone = weakref.ref(made)
    gc.disable()
    try:
        del made, call
        assert gone() is None
    finally:
        gc.enable()

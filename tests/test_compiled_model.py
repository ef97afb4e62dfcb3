"""`sanderling.litert`: LiteRT 2.x's Python interface, the same tests on LiteRT itself and on ours;
and what ours has beyond it."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from importlib import import_module, util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sanderling
from sanderling import DType, Graph, Model, Signature
from sanderling.errors import (
    SanderlingError,
    TypeWarning,
    UnsupportedError,
)
from sanderling.litert.compiled_model import CompiledModel
from sanderling.litert.tensor_buffer import TensorBuffer

from .support.compiled_models import ONE, TEN, adder, ready, sets
from .support.compiled_models import gpu_of_fakes as gpu_of_fakes
from .support.litert_samples import ANSWERS, SAMPLES

OURS, THEIRS = "sanderling.litert", "ai_edge_litert"
HAS_LITERT = util.find_spec(THEIRS) is not None
BOTH = [OURS, pytest.param(THEIRS, marks=pytest.mark.skipif(not HAS_LITERT, reason="no LiteRT"))]
DIGITS = Path(sanderling.__file__).parent / "data" / "digits_f32.tflite"


def two_signatures() -> bytes:
    graph, other = Graph(), Graph()
    x, y = graph.input("tx", DType.FLOAT32, (4,)), graph.input("ty", DType.FLOAT32, (4,))
    d, s = graph.tensor("td", DType.FLOAT32, (4,)), graph.tensor("ts", DType.FLOAT32, (4,))
    graph.add("SUB", [x, y], [d])
    graph.add("ADD", [x, y], [s])
    graph.outputs = [d, s]
    a, b = other.input("ta", DType.INT64, (2,)), other.tensor("tb", DType.INT64, (2,))
    other.add("ADD", [a, a], [b])
    other.outputs = [b]
    # Names in another order than the graph's tensors, and than the alphabet's.
    both = Signature("both", graph, {"a": y, "b": x}, {"a": s, "z": d})
    twice = Signature("twice", other, {"i": a}, {"o": b})
    return sanderling.dump(Model([graph, other], [both, twice]))


@pytest.fixture(params=BOTH)
def package(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def compiled(package: str) -> Any:
    return import_module(f"{package}.compiled_model").CompiledModel


@pytest.fixture
def buffers(package: str) -> Any:
    return import_module(f"{package}.tensor_buffer").TensorBuffer


# -- the same on both -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_run_with_only_the_import_changed(package: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "adder.tflite"
    path.write_bytes(adder())
    found: dict[str, Any] = {"PATH": str(path)}
    exec(SAMPLES[name].replace("PACKAGE", package), found)
    assert found["answer"] == ANSWERS[name]


def test_a_model_without_signatures_has_a_placeholder(compiled: Any) -> None:
    model = compiled.from_buffer(adder())
    key = "<placeholder signature>"
    assert model.get_num_signatures() == 1
    assert model.get_signature_list() == {key: {"inputs": ["x", "y"], "outputs": ["z"]}}
    assert model.get_signature_by_index(0) == {"key": key, "inputs": ["x", "y"], "outputs": ["z"]}
    assert model.get_signature_index(key) == 0 and model.get_signature_index("none") == -1


def test_signatures_are_in_the_order_of_the_graph(compiled: Any) -> None:
    model = compiled.from_buffer(two_signatures())
    assert model.get_signature_list() == {
        "both": {"inputs": ["b", "a"], "outputs": ["z", "a"]},
        "twice": {"inputs": ["i"], "outputs": ["o"]},
    }
    assert model.get_input_tensor_details("both") == {
        "b": {"name": "tx", "index": 0, "dtype": "float32", "shape": [4]},
        "a": {"name": "ty", "index": 1, "dtype": "float32", "shape": [4]},
    }
    inputs, outputs = model.create_input_buffers(0), model.create_output_buffers(0)
    for buffer, value in zip(inputs, (ONE, TEN), strict=True):
        buffer.write(value)
    model.run_by_index(0, inputs, outputs)
    assert outputs[0].read(4, np.float32).tolist() == (ONE - TEN).tolist()
    assert outputs[1].read(4, np.float32).tolist() == (ONE + TEN).tolist()


@pytest.mark.filterwarnings("ignore::sanderling.errors.TypeWarning")
def test_a_second_signature_runs_and_bytes_pass_as_another_type(compiled: Any) -> None:
    model = compiled.from_buffer(two_signatures())
    i, o = model.create_input_buffers(1), model.create_output_buffers(1)
    assert i[0].get_tensor_details() == {"dtype": "int64", "shape": [2]}
    i[0].write(np.int64([1, -2]).view(np.int32))
    model.run_by_index(1, i, o)
    assert o[0].read(4, np.int32).view(np.int64).tolist() == [2, -4]


def test_requirements_of_buffers(compiled: Any) -> None:
    model = compiled.from_file(str(DIGITS))
    assert model.get_input_buffer_requirements(0) == {"buffer_size": 256, "supported_types": [1]}
    assert model.get_output_buffer_requirements(0)["buffer_size"] == 40


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "bool"])
def test_types_go_through_a_buffer(compiled: Any, dtype: str) -> None:
    model, (x, y), (z,) = ready(compiled, _like(dtype))
    given = np.array([0, 1, 1, 0]).astype(dtype)
    for buffer in (x, y):
        buffer.write(given)
    model.run_by_index(0, [x, y], [z])
    assert z.get_tensor_details() == {"dtype": dtype, "shape": [4]}
    found = z.read(4, np.dtype(dtype).type)
    assert found.dtype == dtype and (found == given).all()


def _like(dtype: str) -> bytes:
    """A model whose result is the larger of its inputs."""
    graph, kind = Graph(), DType.of(dtype)
    x, y = graph.input("x", kind, (4,)), graph.input("y", kind, (4,))
    z = graph.tensor("z", kind, (4,))
    graph.add("LOGICAL_OR" if dtype == "bool" else "MAXIMUM", [x, y], [z])
    graph.outputs = [z]
    return sanderling.dump(Model([graph]))


def test_a_buffer_takes_strided_and_shorter_arrays(compiled: Any) -> None:
    _, (x, _), _ = ready(compiled)
    x.write(np.float32([[1, 9], [2, 9], [3, 9], [4, 9]])[:, 0])
    x.write(np.float32([7]))
    assert x.read(4, np.float32).tolist() == [7, 2, 3, 4]
    assert x.read(2, "float32").shape == (2,) and x.read(0, np.float32).size == 0


@pytest.mark.parametrize(
    "use, kind, says",
    [
        (lambda b: b.write([1.0]), ValueError, "data_array must be a NumPy array"),
        (lambda b: b.write(np.zeros(4)), ValueError, "Unsupported dtype: float64"),
        (lambda b: b.write(np.zeros(5, np.float32)), RuntimeError, "source buffer is larger"),
        (lambda b: b.read(5, np.float32), RuntimeError, "destination buffer is larger"),
        (lambda b: b.read(4, np.float64), ValueError, "Unsupported dtype"),
        (lambda b: b.read(4, "no type"), ValueError, "Unsupported dtype: no type"),
        (lambda b: b.read(-1, np.float32), ValueError, "negative dimensions"),
    ],
)
def test_what_a_buffer_refuses(compiled: Any, use: Any, kind: Any, says: str) -> None:
    _, (x, _), _ = ready(compiled)
    with pytest.raises(kind, match=says):
        use(x)


@pytest.mark.parametrize(
    "given, says",
    [
        ([1.0], "must be a NumPy array"),
        (np.zeros((4, 2), np.float32)[:, 0], "must be C-contiguous for zero-copy"),
        (np.zeros(4), "Unsupported dtype: float64"),
    ],
)
def test_what_host_memory_must_be(buffers: Any, given: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        buffers.create_from_host_memory(given)


def test_a_destroyed_buffer(compiled: Any) -> None:
    model, (x, y), outputs = ready(compiled)
    x.destroy()
    x.destroy()
    with pytest.raises(ValueError, match="TensorBuffer has been destroyed"):
        model.run_by_index(0, [x, y], outputs)
    for use in (lambda: x.read(1, np.float32), lambda: x.write(ONE), x.get_tensor_details):
        with pytest.raises(RuntimeError, match="invalid capsule"):
            use()


@pytest.mark.parametrize(
    "use",
    [
        lambda m, i, o: m.run_by_index(0, [], o),
        lambda m, i, o: m.run_by_index(0, [*i, *i], o),
        lambda m, i, o: m.run_by_index(0, i, []),
        lambda m, i, o: m.run_by_index(9, i, o),
        lambda m, i, o: m.run_by_name("none", {}, {}),
        lambda m, i, o: m.run_by_name("<placeholder signature>", {"x": i[0], "y": i[1]}, {}),
        lambda m, i, o: m.create_input_buffers(9),
        lambda m, i, o: m.create_input_buffer_by_name("<placeholder signature>", "none"),
        lambda m, i, o: m.create_output_buffer_by_name("none", "z"),
        lambda m, i, o: m.get_input_tensor_details("none"),
        lambda m, i, o: m.get_input_buffer_requirements(9),
        lambda m, i, o: m.get_output_buffer_requirements(0, 9),
        lambda m, i, o: m.resize_input_tensor(9, [4]),
        lambda m, i, o: m.resize_input_tensor(0, [5]),
        lambda m, i, o: m.resize_input_tensor(0, [4, 1]),
        lambda m, i, o: m.resize_input_tensor(0, [-1], strict=False),
    ],
)
def test_wrong_uses_are_runtime_errors(compiled: Any, use: Any) -> None:
    model, inputs, outputs = ready(compiled)
    with pytest.raises(RuntimeError):
        use(model, inputs, outputs)
    for buffer in inputs:
        buffer.write(ONE)
    model.run_by_index(0, inputs, outputs)  # and it goes on as before
    assert outputs[0].read(4, np.float32).tolist() == [2, 4, 6, 8]


@pytest.mark.parametrize("key, name", [("none", "x"), ("<placeholder signature>", "none")])
def test_resizing_by_an_unknown_name(compiled: Any, key: str, name: str) -> None:
    with pytest.raises(ValueError, match=r"Unknown (signature|input)"):
        compiled.from_buffer(adder()).resize_input_tensor_by_name(key, name, [4])


def test_open_dimensions_are_resized(compiled: Any) -> None:
    model = compiled.from_buffer(adder(shape=(2, 3), open_rows=True))
    key = next(iter(model.get_signature_list()))
    for index in range(2):
        model.resize_input_tensor(index, [5, 3])
    assert model.get_input_tensor_details(key)["x"]["shape"] == [5, 3]
    assert model.get_output_tensor_details(key)["z"]["shape"] == [5, 3]
    inputs, outputs = model.create_input_buffers(0), model.create_output_buffers(0)
    for buffer in inputs:
        buffer.write(np.ones((5, 3), np.float32))
    model.run_by_index(0, inputs, outputs)
    assert outputs[0].read(15, np.float32).tolist() == [2] * 15
    with pytest.raises(RuntimeError):
        model.resize_input_tensor(0, [5, 4])


def test_closed_dimensions_are_resized_if_asked_to(compiled: Any) -> None:
    model = compiled.from_file(str(DIGITS))
    old = model.create_input_buffers(0), model.create_output_buffers(0)
    model.resize_input_tensor_by_name("serving_default", "image", [2, 8, 8, 1], strict=False)
    with pytest.raises(RuntimeError, match="Failed to invoke the compiled model"):
        model.run_by_index(0, *old)
    inputs, outputs = model.create_input_buffers(0), model.create_output_buffers(0)
    one = np.random.default_rng(0).random((1, 8, 8, 1), np.float32)
    inputs[0].write(np.concatenate([one, one]))
    model.run_by_index(0, inputs, outputs)
    first, second = outputs[0].read(20, np.float32).reshape(2, 10)
    assert np.allclose(first, second) and np.isclose(first.sum(), 1)


@pytest.mark.parametrize(
    "make, kind, says",
    [
        (lambda c: c.from_file("/none.tflite"), RuntimeError, "Failed to load model from file"),
        (lambda c: c.from_buffer(b"none"), RuntimeError, "Failed to load model from buffer"),
        (lambda c: c.from_buffer(adder(), hardware_accel=0), RuntimeError, "."),
        (lambda c: c.from_buffer(adder(), hardware_accel=4), RuntimeError, "."),
    ],
)
def test_what_cannot_be_made(compiled: Any, make: Any, kind: Any, says: str) -> None:
    with pytest.raises(kind, match=says):
        make(compiled)


def test_options_and_accelerator_are_not_both_given(package: str, compiled: Any) -> None:
    options = import_module(f"{package}.options").Options()
    with pytest.raises(ValueError, match="Pass either options or hardware_accel, not both"):
        compiled.from_buffer(adder(), hardware_accel=1, options=options)


def test_options_are_made_when_they_are_touched(package: str) -> None:
    module = import_module(f"{package}.options")
    options = module.Options.create()
    options.cpu_options.num_threads = 4
    assert options.cpu_options == module.CpuOptions(num_threads=4)
    assert options.gpu_options == module.GpuOptions() and options.hardware_accelerators == 1
    assert module.CpuKernelMode.XNNPACK is module.CpuKernelMode.DELEGATE
    assert options.qualcomm_options == module.QualcommOptions()
    assert options.intel_openvino_options == module.IntelOpenVinoOptions()


def test_every_name_of_the_options_is_there() -> None:
    if not HAS_LITERT:
        pytest.skip("LiteRT's names are read from LiteRT")
    for name in ("options", "hardware_accelerator", "tensor_buffer", "environment"):
        theirs, ours = import_module(f"{THEIRS}.{name}"), import_module(f"{OURS}.{name}")
        for word, kind in vars(theirs).items():
            if isinstance(kind, type) and kind.__module__.startswith(THEIRS):
                assert _members(kind) <= _members(getattr(ours, word)), word
    theirs = import_module(f"{THEIRS}.compiled_model").CompiledModel
    assert _members(theirs) <= _members(CompiledModel)


def _members(kind: type) -> set[str]:
    made = vars(kind()) if kind.__name__.endswith("Options") else {}
    return {n for n in {*vars(kind), *made} if not n.startswith("_")} - {"capsule"}


def test_environments_are_shared_and_closed(package: str, compiled: Any) -> None:
    environment = import_module(f"{package}.environment").Environment
    shared = environment.create()
    model = compiled.from_buffer(adder(), environment=shared)
    assert model.environment is shared and Path(shared.options.runtime_path).is_dir()
    shared.close()
    with pytest.raises(ValueError, match="Environment is no longer valid"):
        compiled.from_buffer(adder(), environment=shared)
    model.run_by_index(0, model.create_input_buffers(0), model.create_output_buffers(0))
    with pytest.raises(ValueError, match="runtime_path was provided twice"):
        environment.create(options="a", runtime_path="b")
    with pytest.raises(ValueError, match="Pass either options or environment path shortcuts"):
        environment.create(options=shared.options, runtime_path="b")


def test_buffers_outlive_their_model(compiled: Any) -> None:
    model, inputs, outputs = ready(compiled)
    for buffer in inputs:
        buffer.write(ONE)
    model.run_by_index(0, inputs, outputs)
    model.close()
    assert outputs[0].read(4, np.float32).tolist() == [2, 4, 6, 8]
    with pytest.raises((RuntimeError, AttributeError)):
        model.run_by_index(0, inputs, outputs)


def test_one_buffer_is_input_and_output(compiled: Any) -> None:
    """State that a model carries from run to run."""
    model, (x, y), _ = ready(compiled)
    x.write(ONE)
    y.write(ONE)
    for _ in range(3):
        model.run_by_index(0, [x, y], [x])
    assert x.read(4, np.float32).tolist() == [4, 8, 12, 16]


# -- ours: what is different ----------------------------------------------------------------------


def test_errors_are_of_the_house() -> None:
    model, inputs, outputs = ready(CompiledModel)
    with pytest.raises(SanderlingError, match="give y"):
        model.run_by_name("<placeholder signature>", {"x": inputs[0]}, {"z": outputs[0]})
    with pytest.raises(SanderlingError, match="there is no signature 9"):
        model.get_signature_by_index(9)  # LiteRT's process aborts
    model.close()
    with pytest.raises(SanderlingError, match="the compiled model is closed"):
        model.create_input_buffers(0)


def test_bytes_of_another_type_are_warned_of() -> None:
    _, (x, _), _ = ready(CompiledModel)
    with pytest.warns(TypeWarning, match="a buffer of float32 is written as int32"):
        x.write(np.zeros(4, np.int32))
    with pytest.warns(TypeWarning, match="is read as int8"):
        x.read(4, np.int8)


def test_host_memory_of_any_place_and_shape_is_used_in_place() -> None:
    model = CompiledModel.from_file(DIGITS)
    raw = np.zeros(2 * 64 * 4 + 4, np.uint8)
    start = 4 if raw.ctypes.data % 64 == 0 else 0  # not on a boundary
    image = raw[start : start + 256].view(np.float32).reshape(1, 8, 8, 1)
    result = np.zeros((1, 10), np.float32)
    io = [[TensorBuffer.create_from_host_memory(a)] for a in (image, result)]
    image[...] = np.random.default_rng(0).random(image.shape)
    model.run_by_index(0, *io)
    assert np.isclose(result.sum(), 1)
    image.flags.writeable = False
    with pytest.raises(RuntimeError, match="read-only"):
        TensorBuffer.create_from_host_memory(image).write(np.zeros(4, np.float32))


def test_a_result_of_unknown_shape_makes_its_own_memory() -> None:
    graph = Graph()
    x, y = graph.input("x", DType.BOOL, (4,)), graph.tensor("y", DType.INT64, (0, 1))
    graph.add("WHERE", [x], [y])
    graph.outputs = [y]
    model, inputs, outputs = ready(CompiledModel, sanderling.dump(Model([graph])))
    with pytest.raises(RuntimeError, match="no memory yet"):
        outputs[0].read(1, np.int64)
    for mask, places in (([1, 0, 1, 1], [0, 2, 3]), ([0, 1, 0, 0], [1])):
        inputs[0].write(np.array(mask, bool))
        model.run_by_index(0, inputs, outputs)
        shape = outputs[0].get_tensor_details()["shape"]
        assert shape == [len(places), 1]
        assert outputs[0].read(len(places), np.int64).tolist() == places


def test_an_output_that_is_an_input_has_its_value() -> None:
    graph = Graph()
    x, y = graph.input("x", DType.FLOAT32, (4,)), graph.tensor("y", DType.FLOAT32, (4,))
    graph.add("NEG", [x], [y])
    graph.outputs = [y, x]
    model, inputs, outputs = ready(CompiledModel, sanderling.dump(Model([graph])))
    inputs[0].write(ONE)
    model.run_by_index(0, inputs, outputs)
    assert outputs[1].read(4, np.float32).tolist() == ONE.tolist()


def test_strings_have_no_buffers() -> None:
    graph = Graph()
    x, y = graph.input("x", DType.STRING, (2,)), graph.tensor("y", DType.STRING, (2, 1))
    graph.add("RESHAPE", [x], [y], new_shape=[2, 1])
    graph.outputs = [y]
    with pytest.raises(UnsupportedError, match="cannot hold string"):
        CompiledModel.from_buffer(sanderling.dump(Model([graph]))).create_input_buffers(0)


# -- ours: what is held ---------------------------------------------------------------------------


def test_memory_goes_with_its_buffer() -> None:
    model, inputs, outputs = ready(CompiledModel)
    own = np.ones(4, np.float32)
    gone = weakref.ref(own)
    buffer = TensorBuffer.create_from_host_memory(own)
    model.run_by_index(0, [buffer, inputs[1]], outputs)
    del own
    buffer.destroy()
    gc.collect()
    assert gone() is None
    for _ in range(40):  # more sets than are kept
        model.run_by_index(0, model.create_input_buffers(0), outputs)
    assert not model._bindings


def test_threads_share_a_model() -> None:
    model = CompiledModel.from_buffer(adder())
    failed: list[BaseException] = []

    def work(value: float) -> None:
        try:
            inputs, outputs = sets(model, value)
            for _ in range(50):
                model.run_by_index(0, inputs, outputs)
                assert outputs[0].read(4, np.float32).tolist() == [2 * value] * 4
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_nothing_is_warned_of_in_plain_use() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, inputs, outputs = ready(CompiledModel)
        for buffer in inputs:
            buffer.write(ONE)
        model.run_by_index(0, inputs, outputs)
        outputs[0].read(4, np.float32)

"""LiteRT's usual snippets, each written once and run with both packages: the same results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sanderling
from sanderling import dump
from sanderling.ir import Array, DType, Graph, Model, Tensor

from .conformance.cases_control import accumulator, binary, choose, const, emit, graph
from .conformance.cases_sequence import _svdf
from .support.beside_litert import SMALL, F, both, classify, noise, same_error, signatures, stem
from .support.shared_models import NEEDS
from .support.shared_models import model as shared

# -- the snippets -------------------------------------------------------------------------------


def detect(m: Any, path: Path) -> Any:
    """The object detection example: boxes, classes, scores and their number."""
    interpreter = m.Interpreter(str(path), num_threads=2)
    interpreter.allocate_tensors()
    _, height, width, _ = interpreter.get_input_details()[0]["shape"]
    rng = np.random.default_rng(3)
    image = rng.integers(0, 255, (height, width, 3), np.uint8)
    interpreter.tensor(interpreter.get_input_details()[0]["index"])()[0][:, :] = image
    interpreter.invoke()
    details = interpreter.get_output_details()
    boxes, classes, scores, count = (
        np.squeeze(interpreter.get_tensor(d["index"])) for d in details
    )
    return boxes, classes, scores, count, details


def resize(m: Any, path: Path, strict: bool) -> Any:
    interpreter = m.Interpreter(model_path=path)
    place = interpreter.get_input_details()[0]["index"]
    shape = [3, *interpreter.get_input_details()[0]["shape"][1:]]
    interpreter.resize_tensor_input(place, shape, strict=strict)
    before = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.allocate_tensors()
    after = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.set_tensor(place, noise(after[0][0]))
    interpreter.invoke()
    return before, after, interpreter.get_tensor(after[1][0]["index"])


def views(m: Any, path: Path) -> Any:
    """Modify the input where it lies, then read the output where it lies."""
    interpreter = m.Interpreter(model_content=path.read_bytes())
    interpreter.allocate_tensors()
    source = interpreter.tensor(interpreter.get_input_details()[0]["index"])
    target = interpreter.tensor(interpreter.get_output_details()[0]["index"])
    found = []
    for value in (1, 3, 7):
        source().fill(value)
        interpreter.invoke()
        found.append(target().copy())
    source()[0, 0] += 1
    interpreter.invoke()
    return [*found, target().copy(), source().copy()]


def intermediates(m: Any, path: Path) -> Any:
    interpreter = m.Interpreter(
        model_path=str(path), experimental_preserve_all_tensors=True
    )  # LiteRT keeps them with its reference kernels
    interpreter.allocate_tensors()
    detail = interpreter.get_input_details()[0]
    interpreter.set_tensor(detail["index"], noise(detail))
    interpreter.invoke()
    return [
        interpreter.get_tensor(d["index"]) for d in interpreter.get_tensor_details() if d["name"]
    ]


PICTURES = [
    *SMALL,
    *(
        pytest.param(shared(n), marks=NEEDS)
        for n in (
            "coral_mobilenet_v1_0.25_128_quant",
            "mlperftiny_resnet8_cifar10_int8",
            "mlperftiny_resnet8_cifar10_f32",
        )
    ),
]


@pytest.mark.parametrize("path", PICTURES, ids=stem)
def test_image_classification(path: Path) -> None:
    both(lambda m: classify(m, path))


@NEEDS
def test_object_detection() -> None:
    both(lambda m: detect(m, shared("ssd_mobilenet_v1_coco_uint8")))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("path", SMALL, ids=stem)
def test_resize(path: Path, strict: bool) -> None:
    fixed = sanderling.load(path).main.inputs[0].signature is None
    if strict and fixed:
        same_error(lambda m: resize(m, path, strict), "dimension 0|only allows mutating unknown")
    else:
        both(lambda m: resize(m, path, strict))


@NEEDS
def test_resize_open_dimensions() -> None:
    both(lambda m: resize(m, shared("mlperftiny_resnet8_cifar10_int8"), True))


@pytest.mark.parametrize("path", SMALL, ids=stem)
def test_views(path: Path) -> None:
    both(lambda m: views(m, path))


@pytest.mark.parametrize("path", PICTURES, ids=stem)
def test_intermediate_tensors(path: Path) -> None:
    ours, _ = both(lambda m: intermediates(m, path))
    assert len(ours) > 10


# -- models built here --------------------------------------------------------------------------


def run_signatures(m: Any) -> Any:
    interpreter = m.Interpreter(model_content=signatures())
    found = [
        interpreter.get_signature_list(),
        interpreter._get_full_signature_list(),
        interpreter.num_subgraphs(),
    ]
    one, two = (np.arange(6, dtype=F).reshape(2, 3) + i for i in range(2))
    for key, names in (("serving", "za"), ("other", "xy")):
        runner = interpreter.get_signature_runner(key)
        found += [runner.get_input_details(), runner.get_output_details()]
        found.append(runner(**dict(zip(names, (one, two), strict=True))))
        wide = dict(zip(names, (np.ones((4, 3), F), np.ones((4, 3), F)), strict=True))
        found += [runner(**wide), runner.get_output_details()]
    return found


def test_signature_runner() -> None:
    both(run_signatures)


def single_signature() -> bytes:
    model = sanderling.load(signatures())
    del model.signatures[1:]
    return dump(model)


def test_the_only_signature_needs_no_key() -> None:
    def snippet(m: Any) -> Any:
        runner = m.Interpreter(model_content=single_signature()).get_signature_runner()
        return runner(z=np.ones((2, 3), F), a=np.ones((2, 3), F))

    both(snippet)


def test_variables_persist_and_reset() -> None:
    content = dump(_svdf("f32", 1, 4, 3, 1, 3).model())

    def snippet(m: Any) -> Any:
        interpreter = m.Interpreter(model_content=content)
        interpreter.allocate_tensors()
        place = interpreter.get_input_details()[0]["index"]
        out = interpreter.get_output_details()[0]["index"]

        def run(value: float) -> Array:
            interpreter.set_tensor(place, np.full((1, 4), value, F))
            interpreter.invoke()
            return interpreter.get_tensor(out)

        found = [run(1), run(2)]
        interpreter.allocate_tensors()  # nothing changed: state is kept
        found.append(run(3))
        interpreter.reset_all_variables()
        found += [run(1), interpreter.get_output_details()]
        return found

    ours, _ = both(snippet)
    np.testing.assert_array_equal(ours[0], ours[3])
    assert not np.allclose(ours[1], ours[2])


def test_variables_start_again_when_shapes_change() -> None:
    model = _svdf("f32", 1, 4, 3, 1, 3).model()
    g = model.main
    g.outputs.append(emit(g, "NEG", [g.input("free", DType.FLOAT32, (2,))], (2,)))
    content = dump(model)

    def snippet(m: Any) -> Any:
        interpreter = m.Interpreter(model_content=content)
        interpreter.allocate_tensors()
        place, free = (d["index"] for d in interpreter.get_input_details())
        found = []
        for size in (2, 2, 5, 2):
            interpreter.resize_tensor_input(free, [size])
            interpreter.allocate_tensors()
            interpreter.set_tensor(place, np.ones((1, 4), F))
            interpreter.set_tensor(free, np.ones(size, F))
            interpreter.invoke()
            found.append(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))
        return found

    both(snippet)


def variable_inputs() -> dict[str, bytes]:
    """Graph inputs that are marked as variables: one that nothing writes, and a state."""
    plain = graph("main", binary("SUB"), ("f32", (1, 3)), ("f32", (1, 3)))
    plain.inputs[1].is_variable = True
    state = _svdf("f32", 1, 4, 3, 1, 3).model()
    state.main.inputs += [t for t in state.main.tensors if t.is_variable]
    return {"read": dump(Model([plain])), "written": dump(state)}


@pytest.mark.parametrize("kind", ["read", "written"])
def test_an_input_that_is_a_variable_is_given_by_the_caller(kind: str) -> None:
    """It starts at zero, is what set_tensor says, and keeps what the model writes to it."""
    content = variable_inputs()[kind]

    def snippet(m: Any) -> Any:
        interpreter = m.Interpreter(model_content=content)
        interpreter.allocate_tensors()
        first, second = interpreter.get_input_details()
        found = []

        def run() -> None:
            interpreter.invoke()
            for detail in (*interpreter.get_output_details(), second):
                found.append(interpreter.get_tensor(detail["index"]))

        interpreter.set_tensor(first["index"], noise(first))
        run()
        run()
        interpreter.set_tensor(second["index"], noise(second))
        run()
        interpreter.reset_all_variables()
        run()
        return found

    both(snippet)


def test_resource_variables_persist() -> None:
    content = dump(Model(accumulator("f32", (3,))))

    def snippet(m: Any) -> Any:
        interpreter = m.Interpreter(model_content=content)
        interpreter.allocate_tensors()
        found = []
        for _ in range(3):
            interpreter.set_tensor(interpreter.get_input_details()[0]["index"], F([1, 2, 3]))
            interpreter.invoke()
            found.append(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))
        return found

    both(snippet)


def test_control_flow() -> None:
    content = dump(Model(choose(binary("ADD"), binary("MUL"))))

    def snippet(m: Any) -> Any:
        interpreter = m.Interpreter(model_content=content)
        interpreter.allocate_tensors()
        found = [interpreter.get_tensor_details(i) for i in range(interpreter.num_subgraphs())]
        flag, a, b = (d["index"] for d in interpreter.get_input_details())
        for value in (True, False):
            interpreter.set_tensor(flag, np.array(value))
            for place in (a, b):
                interpreter.set_tensor(place, np.full((2, 3), 3, F))
            interpreter.invoke()
            found.append(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))
        return found

    both(snippet)


def test_shapes_that_depend_on_data() -> None:
    """The details tell the true shape after the run."""

    def body(g: Graph, x: Tensor) -> list[Tensor]:
        flag = emit(g, "GREATER", [x, const(g, 0)], (4,), "bool")
        return [emit(g, "WHERE", [flag], (4, 1), "i64")]

    content = dump(Model([graph("main", body, ("f32", (4,)))]))

    def snippet(m: Any) -> Any:
        interpreter = m.Interpreter(model_content=content)
        interpreter.allocate_tensors()
        found = []
        for fed in ([1, -1, 2, 3], [-1, 5, -1, -1]):
            interpreter.set_tensor(interpreter.get_input_details()[0]["index"], F(fed))
            interpreter.invoke()
            detail = interpreter.get_output_details()[0]
            found += [detail["shape"], interpreter.get_tensor(detail["index"])]
        return found

    both(snippet)


def test_strings() -> None:
    """A string input is set from arrays of text or bytes and comes back as bytes."""

    def body(g: Graph, x: Tensor) -> list[Tensor]:
        return [emit(g, "RESHAPE", [x, const(g, [2, 1], "i32")], (2, 1), "str")]

    content = dump(Model([graph("main", body, ("str", (2,)))]))

    def snippet(m: Any) -> Any:
        interpreter = m.Interpreter(model_content=content)
        interpreter.allocate_tensors()
        detail = interpreter.get_input_details()[0]
        interpreter.set_tensor(detail["index"], np.array([b"one", b"three"]))
        interpreter.invoke()
        out = interpreter.get_output_details()[0]
        return detail, out, interpreter.get_tensor(out["index"]).tolist()

    both(snippet)


def test_outputs_that_no_op_computes() -> None:
    g = Graph()
    x = g.input("x", DType.FLOAT32, (2,))
    c = g.constant("c", F([4, 5]))
    y = g.tensor("y", DType.FLOAT32, (2,))
    g.add("ADD", [x, c], [y], fused_activation_function="NONE", pot_scale_int16=False)
    g.outputs = [x, c, y, y]
    content = dump(Model([g]))

    def snippet(m: Any) -> Any:
        interpreter = m.Interpreter(model_content=content)
        interpreter.allocate_tensors()
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], F([1, 2]))
        interpreter.invoke()
        return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]

    both(snippet)

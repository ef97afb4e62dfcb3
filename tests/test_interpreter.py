"""LiteRT's usual snippets, each written once and run with both packages: the same results, the same
dictionaries, the same errors. Only the module differs."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import sanderling
from sanderling import dump
from sanderling.ir import Array, DType, Graph, Model, Quant, Signature, Tensor

from .conformance.cases_control import accumulator, binary, choose, const, emit, graph
from .conformance.cases_sequence import _svdf
from .support.array_differences import unlike
from .support.format_models import everything, sparse_tensor
from .support.shared_models import MODELS, NEEDS
from .support.shared_models import model as shared

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="pip install 'sanderling[peers]'")

OWN = Path(str(files("sanderling") / "data"))
F = np.float32


def reference(module: Any, *source: Any, **more: Any) -> Any:
    """With reference kernels: LiteRT's integer answers are the definition then."""
    more.setdefault("experimental_op_resolver_type", module.OpResolverType.BUILTIN_REF)
    return module.Interpreter(*source, **more)


LITERT, OURS = (
    SimpleNamespace(
        Interpreter=partial(reference, module),
        OpResolverType=module.OpResolverType,
        load_delegate=module.load_delegate,
        SignatureRunner=module.SignatureRunner,
    )
    for module in (litert, sanderling)
)
Snippet = Callable[[Any], Any]


# Of an array's largest number: sums of another order differ by 1.4e-6 where they cancel.
SHARE = 1e-5


def both(snippet: Snippet) -> tuple[Any, Any]:
    ours, theirs = snippet(OURS), snippet(LITERT)
    problem = unlike(ours, theirs, SHARE)
    assert not problem, problem
    return ours, theirs


def noise(detail: dict[str, Any], seed: int = 0) -> Array:
    """Something to feed, by an input's dictionary alone."""
    rng, dtype = np.random.default_rng(seed), np.dtype(detail["dtype"])
    if dtype.kind in "iu":
        low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.itemsize == 1 else (0, 100)
        return rng.integers(low, high, detail["shape"]).astype(dtype)
    return rng.normal(size=detail["shape"]).astype(dtype)


# -- the snippets -------------------------------------------------------------------------------


def classify(m: Any, path: Path) -> Any:
    """TensorFlow Lite's image classification example."""
    interpreter = m.Interpreter(model_path=str(path))
    interpreter.allocate_tensors()
    input_details = interpreter.get_input_details()
    output_details = interpreter.get_output_details()
    interpreter.set_tensor(input_details[0]["index"], noise(input_details[0]))
    interpreter.invoke()
    output_data = interpreter.get_tensor(output_details[0]["index"])
    return input_details, output_details, output_data, np.squeeze(output_data).argsort()[-5:][::-1]


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


SMALL = [OWN / "digits_f32.tflite", OWN / "digits_int8.tflite"]
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


def stem(value: Any) -> str | None:
    return value.stem if isinstance(value, Path) else None


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


def signatures() -> bytes:
    """Two entry points; names are not in the order of the graph."""
    add, mul = (
        graph(n, binary(op), ("f32", (2, 3)), ("f32", (2, 3)))
        for n, op in (("add", "ADD"), ("mul", "MUL"))
    )
    return dump(
        Model(
            [add, mul],
            [
                Signature(
                    "serving",
                    add,
                    {"z": add.inputs[0], "a": add.inputs[1]},
                    {"out": add.outputs[0]},
                ),
                Signature(
                    "other",
                    mul,
                    {"x": mul.inputs[0], "y": mul.inputs[1]},
                    {"second": mul.outputs[0], "first": mul.outputs[0]},
                ),
            ],
        )
    )


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


# -- dictionaries -------------------------------------------------------------------------------


def describe(m: Any, allocate: bool, **source: Any) -> Any:
    interpreter = m.Interpreter(**source)
    if allocate:
        interpreter.allocate_tensors()
    details = {
        (i, d["index"]): d
        for i in range(interpreter.num_subgraphs())
        for d in interpreter.get_tensor_details(i)
    }
    others = [
        interpreter.get_input_details(),
        interpreter.get_output_details(),
        interpreter.get_signature_list(),
        interpreter._get_full_signature_list(),
        interpreter.num_subgraphs(),
        interpreter._get_ops_details(),
    ]
    return details, others


def known_difference(field: str, ours: Any, theirs: Any, allocated: bool) -> bool:
    """What LiteRT shows otherwise, and we do not copy: its kernels rename a tensor (DENSIFY), and
    it has no NumPy type for 8-bit floats."""
    renamed = field == "name" and theirs == "Densify_output" and allocated
    return renamed or (field == "dtype" and "float8" in ours.__name__ and theirs is np.int8)


def assert_same_details(allocate: bool, **source: Any) -> None:
    ours, our_others = describe(OURS, allocate, **source)
    theirs, their_others = describe(LITERT, allocate, **source)
    # Once allocated, LiteRT lists its kernels' temporary tensors behind the file's.
    first_temporary = {graph: index + 1 for graph, index in sorted(ours)}
    theirs = {k: d for k, d in theirs.items() if k[1] < first_temporary[k[0]]}
    assert ours.keys() == theirs.keys()
    for key, wanted in theirs.items():
        for field, value in wanted.items():
            same = not unlike(ours[key][field], value, SHARE)
            assert same or known_difference(field, ours[key][field], value, allocate), (
                f"{key} {field}: ours {ours[key][field]}, LiteRT's {value}"
            )
    assert not unlike(our_others, their_others, SHARE)


@pytest.mark.parametrize("allocate", [False, True], ids=["loaded", "allocated"])
@pytest.mark.parametrize("path", [*SMALL, *MODELS], ids=stem)
def test_details_of_every_tensor(path: Path, allocate: bool) -> None:
    assert_same_details(allocate, model_path=str(path))


def all_tensor_kinds() -> bytes:
    """Every element type, quantisation and layout of the schema, with no op to run."""
    model = everything()
    model.main.ops.clear()
    model.main.outputs = model.main.inputs[:1]
    for tensor in model.main.tensors:
        tensor.users, tensor.producer = [], None
    return dump(Model([model.main]))


def test_details_of_every_kind_of_tensor() -> None:
    assert_same_details(False, model_content=all_tensor_kinds())


def test_zero_points_are_compressed_on_request() -> None:
    g = Graph()
    x = g.input("x", DType.INT8, (1, 2), quant=Quant.of(0.5, 3))
    w = g.constant("w", np.ones((3, 2), np.int8), quant=Quant.of([0.1, 0.2, 0.3], 0))
    y = g.tensor("y", DType.INT8, (1, 3), quant=Quant.of(0.5, 3))
    g.add("FULLY_CONNECTED", [x, w, None], [y])
    g.outputs = [y]
    content = dump(Model([g]))

    def snippet(m: Any) -> Any:
        interpreter = m.Interpreter(
            model_content=content, experimental_compress_quantization_zero_points=True
        )
        return (
            interpreter.experimental_compress_quantization_zero_points,
            interpreter.get_tensor_details(),
        )

    both(snippet)


def test_sparse_details() -> None:
    tensor, _ = sparse_tensor()
    g = graph("main", lambda g, x: [x], ("f32", (2,)))
    g.tensors.append(tensor)
    both(lambda m: m.Interpreter(model_content=dump(Model([g]))).get_tensor_details())


def test_every_method_and_argument_is_there() -> None:
    for name in (
        "Interpreter",
        "SignatureRunner",
        "load_delegate",
        "OpResolverType",
        "InterpreterWithCustomOps",
        "Delegate",
    ):
        assert hasattr(sanderling, name)
    for ours, theirs in (
        (sanderling.Interpreter, litert.Interpreter),
        (sanderling.SignatureRunner, litert.SignatureRunner),
    ):
        public = {n for n in dir(theirs) if not n.startswith("_")} | {"__call__"} & set(dir(theirs))
        for name in public | {"__init__"}:
            found = getattr(ours, name)
            if callable(found):
                wanted = inspect.signature(getattr(theirs, name)).parameters
                got = inspect.signature(found).parameters
                if not any(p.kind is p.VAR_KEYWORD for p in wanted.values()):
                    assert list(wanted) == list(got), name
    assert [r.name for r in sanderling.OpResolverType] == [r.name for r in litert.OpResolverType]


ARGUMENTS: list[dict[str, Any]] = [
    {"num_threads": 2},
    {"experimental_delegates": []},
    {"experimental_delegates": None},
    *({"experimental_op_resolver_type": r} for r in (*sanderling.OpResolverType,
                                                     *litert.OpResolverType)),
    *({f"experimental_{n}": True} for n in (
        "preserve_all_tensors", "disable_delegate_clustering", "default_delegate_latest_features",
        "compress_quantization_zero_points", "disable_delegate_node_fusion",
        "force_delegate_node_profiling")),
    {"experimental_delegates": [sanderling.load_delegate("reference")]},
]  # fmt: skip


@pytest.mark.parametrize("more", ARGUMENTS, ids=lambda more: ",".join(more))
def test_every_argument_is_accepted(more: dict[str, Any]) -> None:
    path = SMALL[1]
    interpreter = sanderling.Interpreter(model_path=path, **more)
    interpreter.allocate_tensors()
    detail = interpreter.get_input_details()[0]
    interpreter.set_tensor(detail["index"], noise(detail))
    interpreter.invoke()
    answer = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    np.testing.assert_array_equal(answer, classify(LITERT, path)[2])


def test_custom_operators_are_registered() -> None:
    def infer(op: Any, specs: Any) -> Any:
        return sanderling.Spec(DType.FLOAT32, specs[0].shape)

    content = dump(
        Model([graph("main", lambda g, x: [emit(g, "custom.Triple", [x], (2,))], ("f32", (2,)))])
    )
    interpreter = sanderling.InterpreterWithCustomOps(
        custom_op_registerers=[("Triple", lambda op, inputs: 3 * inputs[0], infer)],
        model_content=content,
    )
    try:
        interpreter.allocate_tensors()
        interpreter.set_tensor(0, F([1, 2]))
        interpreter.invoke()
        assert interpreter.get_tensor(1).tolist() == [3, 6]
    finally:
        del sanderling.OPS["custom.Triple"]


# -- errors -------------------------------------------------------------------------------------


def same_error(snippet: Snippet, words: str) -> None:
    """LiteRT raises; ours is an instance of the same type and says at least these words."""
    with pytest.raises(Exception) as theirs:
        snippet(LITERT)
    with pytest.raises(theirs.type) as ours:
        snippet(sanderling)
    for word in words.split("|"):
        assert word in str(ours.value), str(ours.value)


def opened(m: Any, **more: Any) -> Any:
    return m.Interpreter(model_path=str(SMALL[1]), **more)


def ready(m: Any) -> Any:
    interpreter = opened(m)
    interpreter.allocate_tensors()
    return interpreter


def resized(m: Any, shape: list[int], **more: Any) -> Any:
    interpreter = ready(m)
    interpreter.resize_tensor_input(0, shape, **more)
    return interpreter


def weights(m: Any) -> int:
    return int(opened(m)._get_op_details(0)["inputs"][1])


def runner(m: Any) -> Any:
    return m.Interpreter(model_content=signatures()).get_signature_runner("serving")


IMAGE = np.zeros((1, 8, 8, 1), np.int8)
UNALLOCATED = "Tensor data is null. Run allocate_tensors() first"
ERRORS: dict[str, tuple[Snippet, str]] = {
    "invoke before allocating": (lambda m: opened(m).invoke(), "not ready|allocate_tensors"),
    "set before allocating": (lambda m: opened(m).set_tensor(0, IMAGE),
                              "Cannot set tensor: Tensor is unallocated.|allocate_tensors() first"),
    "get before allocating": (lambda m: opened(m).get_tensor(0), UNALLOCATED),
    "view before allocating": (lambda m: opened(m).tensor(0)(), UNALLOCATED),
    "set after resizing": (lambda m: resized(m, [2, 8, 8, 1]).set_tensor(0, IMAGE), "unallocated"),
    "invoke after resizing": (lambda m: resized(m, [2, 8, 8, 1]).invoke(), "not ready"),
    "type": (lambda m: ready(m).set_tensor(0, IMAGE.astype(F)),
             "Cannot set tensor: Got value of type FLOAT32 but expected type INT8 for input 0"),
    "type of a list": (lambda m: ready(m).set_tensor(0, IMAGE.tolist()), "INT64|INT8"),
    "rank": (lambda m: ready(m).set_tensor(0, IMAGE[0]),
             "Cannot set tensor: Dimension mismatch. Got 3 but expected 4 for input 0."),
    "size": (lambda m: ready(m).set_tensor(0, IMAGE[:, :7]),
             "Dimension mismatch. Got 7 but expected 8 for dimension 1 of input 0."),
    "index to set": (lambda m: ready(m).set_tensor(999, IMAGE), "Invalid tensor index 999"),
    "index to get": (lambda m: ready(m).get_tensor(-1), "Invalid tensor index -1"),
    "index to view": (lambda m: ready(m).tensor(999)(), "Invalid tensor index 999"),
    "index to describe": (lambda m: ready(m)._get_tensor_details(999, 0),
        "Invalid tensor index 999"),
    "index of an op": (lambda m: ready(m)._get_op_details(999), "Invalid node index"),
    "index to resize": (lambda m: ready(m).resize_tensor_input(999, [1]), "999|inputs are [0]"),
    "resize a constant": (lambda m: ready(m).resize_tensor_input(weights(m), [1]),
        "inputs are [0]"),
    "negative size": (lambda m: resized(m, [-1, 8, 8, 1]).allocate_tensors(), "negative"),
    "strict rank": (lambda m: resized(m, [8, 8], strict=True), "4|2"),
    "impossible shape": (lambda m: resized(m, [1, 8]).allocate_tensors(), "CONV_2D|(1, 8)"),
    "subgraph": (lambda m: ready(m).get_tensor_details(7), "subgraph_index is out of range: 7"),
    "subgraph to get": (lambda m: ready(m).get_tensor(0, 7), "7"),
    "no threads": (lambda m: opened(m, num_threads=0), "num_threads should >= 1"),
    "threads type": (lambda m: opened(m, num_threads="2"), "type of num_threads should be int"),
    "no model": (lambda m: m.Interpreter(), "`model_path` or `model_content` must be specified."),
    "two models": (lambda m: m.Interpreter(model_path="a", model_content=b"b"),
                   "Can't both provide `model_path` and `model_content`"),
    "bad path": (lambda m: m.Interpreter(model_path="/no/such.tflite"), "/no/such.tflite"),
    "directory": (lambda m: m.Interpreter(model_path=os.sep), "directory"),
    "no flatbuffer": (lambda m: m.Interpreter(model_content=b"not a model" * 9), "not a .tflite"),
    "truncated": (lambda m: m.Interpreter(model_content=SMALL[1].read_bytes()[:500]), "file"),
    "signature key": (lambda m: opened(m).get_signature_runner("nope"),
                      'Invalid signature_key provided: "nope".'),
    "which signature": (lambda m: m.Interpreter(model_content=signatures()).get_signature_runner(),
                        "signature_key is None and model has 2 Signatures"),
    "signature count": (lambda m: runner(m)(z=np.ones((2, 3), F)), "expected 2 vs provided 1"),
    "signature name": (lambda m: runner(m)(z=np.ones((2, 3), F), b=np.ones((2, 3), F)),
                       "Invalid Input name (b) for SignatureDef"),
    "signature type": (lambda m: runner(m)(z=np.ones((2, 3)), a=np.ones((2, 3), F)),
                       "type FLOAT64 but expected type FLOAT32"),
    "runner without interpreter": (lambda m: m.SignatureRunner(None, "x"), "None interpreter"),
    "runner without key": (lambda m: m.SignatureRunner(opened(m), None), "None signature_key"),
}  # fmt: skip


@pytest.mark.parametrize("what", ERRORS)
def test_errors(what: str) -> None:
    same_error(*ERRORS[what])


@pytest.mark.parametrize("kind", [ValueError, OSError, sanderling.InputError])
def test_unknown_delegate(kind: type[Exception]) -> None:
    """LiteRT documents ValueError and raises OSError: code that expects either works."""
    with pytest.raises(kind, match=r"Failed to load delegate from nope.so(.|\n)*reference"):
        sanderling.load_delegate("nope.so")


def test_delegate_options_that_nobody_takes() -> None:
    with pytest.raises(ValueError, match=r"takes no options(.|\n)*precision"):
        sanderling.load_delegate("reference", {"precision": "low"})


def test_resolver() -> None:
    with pytest.raises(ValueError, match="Unrecognized passed in op resolver type: 7"):
        opened(sanderling, experimental_op_resolver_type=7)


def test_a_tensor_inside_the_graph_is_not_kept() -> None:
    interpreter = ready(sanderling)
    inner = interpreter._get_op_details(0)["outputs"][0]
    with pytest.raises(ValueError, match="experimental_preserve_all_tensors"):
        interpreter.get_tensor(inner)


def test_errors_are_in_our_tree_too() -> None:
    for act in (
        lambda: sanderling.Interpreter(model_path="/no/such.tflite"),
        lambda: resized(sanderling, [1, 8]).allocate_tensors(),
    ):
        with pytest.raises(sanderling.SanderlingError):
            act()

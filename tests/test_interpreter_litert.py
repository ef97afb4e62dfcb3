"""What LiteRT's own interpreter tests ask for, on models made here, with both packages."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sanderling
from sanderling import dump
from sanderling.ir import Array, DType, Graph, Model, Quant, Signature, Tensor

from .conformance.cases_control import const, emit, graph
from .support.beside_litert import Snippet, both, litert, same_error, signatures
from .support.format_models import sparse_tensor

F = np.float32
MODULES = pytest.mark.parametrize("m", [sanderling, litert], ids=["ours", "litert"])


def permute(kind: DType = DType.FLOAT32, quant: Quant | None = None) -> bytes:
    """[1, 4] backwards: a product with the reversed identity."""
    g = Graph()
    x = g.input("input", kind, (1, 4), quant=quant)
    w = g.constant("w", np.eye(4, dtype=kind.numpy)[::-1].copy(), quant=quant)
    y = g.tensor("output", kind, (1, 4), quant=quant)
    g.add("FULLY_CONNECTED", [x, w, None], [y])
    g.outputs = [y]
    return dump(Model([g]))


PERMUTE = permute()
DATA = F([[-1, -2, -3, -4]])


def gather(shape: tuple[int, ...] = (10,)) -> bytes:
    def body(g: Graph, x: Tensor, i: Tensor) -> list[Tensor]:
        return [emit(g, "GATHER", [x, i], (3,), "str", axis=0)]

    return dump(Model([graph("main", body, ("str", shape), ("i64", (3,)))]))


def one_string() -> bytes:
    def body(g: Graph, x: Tensor) -> list[Tensor]:
        return [emit(g, "RESHAPE", [x, const(g, [1], "i32")], (1,), "str")]

    return dump(Model([graph("main", body, ("str", ()))]))


def ready(m: Any, content: Any = PERMUTE, **more: Any) -> Any:
    interpreter = m.Interpreter(model_content=content, **more)
    interpreter.allocate_tensors()
    return interpreter


def answer(interpreter: Any, *values: Array) -> Any:
    for detail, value in zip(interpreter.get_input_details(), values, strict=True):
        interpreter.set_tensor(detail["index"], value)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


# -- opening and running ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "resolver", ["BUILTIN", "BUILTIN_REF", "BUILTIN_WITHOUT_DEFAULT_DELEGATES"]
)
def test_permute(resolver: str, tmp_path: Path) -> None:
    path = tmp_path / "permute.tflite"
    path.write_bytes(PERMUTE)

    def snippet(m: Any) -> Any:
        kind = getattr(m.OpResolverType, resolver)
        interpreter = m.Interpreter(model_path=path, experimental_op_resolver_type=kind)
        interpreter.allocate_tensors()
        details = interpreter.get_input_details(), interpreter.get_output_details()
        return details, answer(interpreter, F([[1, 2, 3, 4]]))

    ours, _ = both(snippet)
    assert ours[1].tolist() == [[4, 3, 2, 1]]


def test_two_threads() -> None:
    both(lambda m: answer(ready(m, num_threads=2), DATA))


def test_uint8() -> None:
    content = permute(DType.UINT8, Quant.of(1.0, 0))

    def snippet(m: Any) -> Any:
        interpreter = ready(m, content)
        details = interpreter.get_input_details(), interpreter.get_output_details()
        interpreter.resize_tensor_input(0, (1, 4))
        interpreter.allocate_tensors()
        return details, answer(interpreter, np.uint8([[1, 2, 3, 4]]))

    both(snippet)


def test_strings() -> None:
    def snippet(m: Any) -> Any:
        interpreter = ready(m, gather())
        details = interpreter.get_input_details(), interpreter.get_output_details()
        found = answer(interpreter, np.array(list("abcdefghij")), np.array([1, 2, 3]))
        return details, found.tolist()

    both(snippet)


STRINGS = [b"abcd" + bytes(16), b"", b"\0", "text", "caf\u00e9"]


@pytest.mark.parametrize("text", STRINGS[:3], ids=repr)
def test_a_string_without_dimensions_keeps_its_nuls(text: bytes) -> None:
    def snippet(m: Any) -> Any:
        interpreter = ready(m, one_string())
        interpreter.set_tensor(0, np.array(text))
        found = interpreter.get_tensor(0)
        return type(found), found.dtype, found.shape, found.item(0)

    ours, _ = both(snippet)
    assert ours[-1] == text or (text == b"" and ours[-1] == b"\0")  # NumPy has no bytes of length 0


@pytest.mark.parametrize("text", STRINGS, ids=repr)
def test_objects_are_strings_as_they_are(text: str | bytes) -> None:
    def snippet(m: Any) -> Any:
        interpreter = ready(m, gather())
        interpreter.set_tensor(0, np.array([text] * 10, object))
        return interpreter.get_tensor(0).tolist()

    both(snippet)


def scalars(kind: str) -> bytes:
    op = "LOGICAL_AND" if kind == "bool" else "MAXIMUM"
    return dump(
        Model(
            [graph("main", lambda g, x, y: [emit(g, op, [x, y], (), kind)], (kind, ()), (kind, ()))]
        )
    )


SCALARS = [("f32", F(3)), ("i32", np.int32(3)), ("i64", np.array(3)), ("bool", np.array(True))]


@pytest.mark.parametrize(("kind", "given"), SCALARS)
def test_scalars_are_numpy_scalars(kind: str, given: Any) -> None:
    def snippet(m: Any) -> Any:
        interpreter = ready(m, scalars(kind))
        found = answer(interpreter, given, given)
        out = interpreter.get_output_details()[0]["index"]
        return found, type(found), type(interpreter.tensor(out)()), interpreter._safe_to_run()

    both(snippet)


def test_an_empty_input() -> None:
    g = graph(
        "main",
        lambda g, x: [emit(g, "SUM", [x, const(g, [0], "i32")], (), keep_dims=False)],
        ("f32", (1,)),
    )
    g.inputs[0].signature = (-1,)
    content = dump(Model([g], [Signature("sum", g, {"x": g.inputs[0]}, {"y": g.outputs[0]})]))

    def snippet(m: Any) -> Any:
        found = m.Interpreter(model_content=content).get_signature_runner()(x=np.zeros(0, F))
        return found, type(found["y"])

    both(snippet)


def test_quantisation_by_channel_and_sparsity() -> None:
    g = Graph()
    x = g.input("x", DType.INT8, (1, 4, 4, 2), quant=Quant.of(0.5, 3))
    w = g.constant("w", np.ones((8, 1, 1, 2), np.int8), quant=Quant.of(np.linspace(0.1, 0.8, 8), 0))
    y = g.tensor("y", DType.INT8, (1, 4, 4, 8), quant=Quant.of(0.5, 3))
    g.add(
        "CONV_2D",
        [x, w, None],
        [y],
        padding="SAME",
        stride_w=1,
        stride_h=1,
        fused_activation_function="NONE",
        dilation_w_factor=1,
        dilation_h_factor=1,
    )
    g.outputs = [y]
    content = dump(Model([g]))

    def snippet(m: Any) -> Any:
        detail = m.Interpreter(model_content=content).get_tensor_details()[1]
        return detail["quantization_parameters"], detail["sparsity_parameters"]

    ours, _ = both(snippet)
    assert len(ours[0]["scales"]) == 8 and ours[1] == {}


def test_a_sparse_tensor() -> None:
    """The parameters are LiteRT's; its values cannot be asked of LiteRT without a custom op."""
    tensor, dense = sparse_tensor()
    g = graph("main", lambda g, x: [x], ("f32", (2,)))
    g.tensors.append(tensor)
    content = dump(Model([g]))
    both(lambda m: m.Interpreter(model_content=content).get_tensor_details()[1])
    np.testing.assert_array_equal(ready(sanderling, content).get_tensor(1), dense)


def test_subgraphs() -> None:
    def snippet(m: Any) -> Any:
        interpreter = m.Interpreter(model_content=signatures())
        return interpreter.num_subgraphs(), [interpreter.get_tensor_details(i) for i in range(2)]

    both(snippet)
    assert sanderling.Interpreter(model_content=PERMUTE).num_subgraphs() == 1


def test_nodes() -> None:
    both(lambda m: ready(m)._get_ops_details())


# -- the tensors' memory --------------------------------------------------------------------------


def test_a_view_is_the_memory_and_a_value_is_a_copy() -> None:
    def snippet(m: Any) -> Any:
        interpreter = ready(m)
        view = interpreter.tensor(0)
        np.copyto(view(), DATA)
        copy = interpreter.get_tensor(0)
        interpreter.set_tensor(0, copy + 1)
        return view().copy(), copy, interpreter.get_tensor(0)

    ours, _ = both(snippet)
    assert ours[1].tolist() == DATA.tolist() and ours[2].tolist() == (DATA + 1).tolist()


def test_only_arrays_count_as_held() -> None:
    def snippet(m: Any) -> Any:
        interpreter = ready(m)
        function = interpreter.tensor(0)
        found = [interpreter._safe_to_run()]
        views = [function(), function()]
        part = views[0][0][1:]
        found.append(interpreter._safe_to_run())
        views.clear()
        found.append(interpreter._safe_to_run())  # a slice is left
        del part
        return [*found, interpreter._safe_to_run()]

    ours, _ = both(snippet)
    assert ours == [True, False, False, True]


UNSAFE: dict[str, Any] = {
    "invoke": lambda i: i.invoke(),
    "allocate_tensors": lambda i: i.allocate_tensors(),
    "resize_tensor_input": lambda i: i.resize_tensor_input(0, [2, 4]),
}


@pytest.mark.parametrize("place", [0, 1, 2], ids=["input", "constant", "output"])
@pytest.mark.parametrize("act", UNSAFE)
def test_a_held_view_blocks(act: str, place: int) -> None:
    def snippet(m: Any) -> None:
        interpreter = ready(m)
        view = interpreter.tensor(place)()
        UNSAFE[act](interpreter)
        del view

    same_error(snippet, "There is at least 1 reference to internal data|copy it")


@pytest.mark.parametrize("act", UNSAFE)
def test_a_view_that_is_gone_does_not_block(act: str) -> None:
    interpreter = ready(sanderling)
    interpreter.tensor(0)()[...] = DATA
    assert interpreter.tensor(0)().dtype == F
    UNSAFE[act](interpreter)


@pytest.mark.parametrize("act", UNSAFE)
def test_a_view_in_rubbish_does_not_block(act: str) -> None:
    """A circle that nobody reaches any more, such as a kept error and its frame."""
    interpreter = ready(sanderling)
    gc.disable()
    try:
        circle: list[Any] = [interpreter.tensor(0)()]
        circle.append(circle)
        del circle
        UNSAFE[act](interpreter)
    finally:
        gc.enable()


def test_a_view_does_not_block_its_tensor() -> None:
    def snippet(m: Any) -> Any:
        interpreter = ready(m)
        view = interpreter.tensor(0)()
        interpreter.set_tensor(0, DATA)
        return view.copy(), view.flags.writeable, interpreter.get_tensor(0)

    both(snippet)


def test_an_interpreter_with_a_view_is_freed() -> None:
    interpreter = ready(sanderling)
    view = interpreter.tensor(0)()
    del interpreter
    view[...] = 7
    assert view.sum() == 28


def test_what_views_are_made_of_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = ready(sanderling)
    view = interpreter.tensor(0)
    view()
    monkeypatch.setattr(sanderling.runtime.interpreter_memory, "Lender", None)
    for value in (3, 5):
        view()[...] = value
        interpreter.invoke()
        assert interpreter.get_tensor(0).tolist() == view().tolist() == [[value] * 4]
    assert interpreter._safe_to_run()


def test_views_of_what_moves_are_not_kept_but_counted() -> None:
    """A constant has no place of its own here: each view is made anew."""
    interpreter = ready(sanderling)
    held = [interpreter.tensor(1)() for _ in range(5)]
    assert len(interpreter._lent) == 5 and not interpreter._safe_to_run()
    held.clear()
    interpreter.tensor(1)()
    assert len(interpreter._lent) == 1 and interpreter._safe_to_run()


@pytest.mark.parametrize("index", [0.0, [0]], ids=["float", "list"])
def test_a_place_that_is_known_is_found_by_integers_alone(index: Any) -> None:
    interpreter = ready(sanderling)
    interpreter.tensor(0)()
    interpreter.set_tensor(0, DATA)
    acts = (
        interpreter.get_tensor,
        lambda i: interpreter.set_tensor(i, DATA),
        lambda i: interpreter.tensor(i)(),
    )
    for act in acts:
        with pytest.raises(TypeError, match="tensor index of type"):
            act(index)


# -- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, np.uint8, mmap.mmap])
def test_content_of_any_kind(kind: Any, tmp_path: Path) -> None:
    content: Any
    if kind is mmap.mmap:
        (tmp_path / "m.tflite").write_bytes(PERMUTE)
        with (tmp_path / "m.tflite").open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    else:
        content = np.frombuffer(PERMUTE, np.uint8) if kind is np.uint8 else kind(PERMUTE)
    assert answer(ready(sanderling, content), DATA).tolist() == DATA[:, ::-1].tolist()


def test_a_path_of_bytes(tmp_path: Path) -> None:
    (tmp_path / "m.tflite").write_bytes(PERMUTE)
    both(lambda m: m.Interpreter(bytes(tmp_path / "m.tflite")).get_input_details())


@MODULES
def test_custom_operators_are_not_needed(m: Any) -> None:
    assert m.InterpreterWithCustomOps(model_content=PERMUTE)._safe_to_run()


@MODULES
def test_a_registerer_that_nobody_knows(m: Any) -> None:
    with pytest.raises(ValueError, match="Looking up symbol 'Bogus' failed"):
        m.InterpreterWithCustomOps(["Bogus"], model_content=PERMUTE)


def test_a_registerer_without_arguments_is_called() -> None:
    called: list[int] = []
    sanderling.InterpreterWithCustomOps([lambda: called.append(1)], model_content=PERMUTE)
    assert called == [1]


def test_a_registerer_of_native_code_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cannot register an operator(.|\n)*name, evaluate"):
        sanderling.InterpreterWithCustomOps(
            [lambda resolver: None],  # type: ignore[list-item,misc]
            model_content=PERMUTE,
        )


# -- errors ---------------------------------------------------------------------------------------


ERRORS: dict[str, tuple[Snippet, str]] = {
    "negative threads": (lambda m: ready(m, num_threads=-1), "num_threads should >= 1"),
    "threads of reals": (lambda m: ready(m, num_threads=4.2), "type of num_threads should be int"),
    "resolver": (lambda m: m.Interpreter(model_content=PERMUTE,
                                         experimental_op_resolver_type="test"),
                 "Unrecognized passed in op resolver type: test"),
    "short": (lambda m: m.Interpreter(model_content=b"short"),
              "The model is not a valid Flatbuffer buffer|5 bytes"),
    "identifier": (lambda m: m.Interpreter(model_content=b"wrong_identifier"),
                   "The model is not a valid Flatbuffer buffer|TFL3"),
    "file": (lambda m: m.Interpreter(model_path="totally_invalid_file_name"),
             "Could not open 'totally_invalid_file_name'|No such file"),
    "content of text": (lambda m: m.Interpreter(model_content="text"), "str|the file's bytes"),
    "no content": (lambda m: m.Interpreter(model_content=b""), "must be specified."),
    "not ready": (lambda m: m.Interpreter(model_content=PERMUTE).invoke(),
                  "Invoke called on model that is not ready"),
    "neither": (lambda m: m.Interpreter(model_path=None, model_content=None),
                "`model_path` or `model_content` must be specified."),
    "tensor": (lambda m: ready(m)._get_tensor_details(99, 0),
               "Tensor with no shape found.|Invalid tensor index 99"),
    "index of a real": (lambda m: ready(m).get_tensor(0.0), "float"),
    "index of text": (lambda m: ready(m).set_tensor("0", DATA), "str"),
    "node": (lambda m: ready(m)._get_op_details(4), "Invalid node index|1 nodes"),
    "subgraph": (lambda m: m.Interpreter(model_content=PERMUTE).get_tensor_details(1),
                 "subgraph_index is out of range"),
    "negative subgraph": (lambda m: m.Interpreter(model_content=PERMUTE).get_tensor_details(-1),
                          "subgraph_index is out of range"),
    "numbers for strings": (lambda m: ready(m, gather()).set_tensor(0, np.arange(10)),
                            "Got value of type INT64 but expected type STRING|str or bytes"),
}  # fmt: skip


@pytest.mark.parametrize("what", ERRORS)
def test_errors(what: str) -> None:
    same_error(*ERRORS[what])


@pytest.mark.parametrize("what", ERRORS)
def test_errors_are_in_our_tree(what: str) -> None:
    with pytest.raises(sanderling.SanderlingError):
        ERRORS[what][0](sanderling)

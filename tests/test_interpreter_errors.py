"""The interpreter's errors, beside LiteRT's."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import sanderling

from .support.beside_litert import SMALL, F, Snippet, same_error, signatures

# -- errors -------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("abacus", {}, "abacus: there is no such delegate\n"),
        ("", {}, "'': there is no such delegate\n"),
        ("reference", {"speed": 9}, "reference: it takes no options\n"),
    ],
)
def test_the_error_begins_as_litert_s(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(OSError) as error:
        sanderling.load_delegate(name, options)
    assert str(error.value).startswith(f"Failed to load delegate from {said}")


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

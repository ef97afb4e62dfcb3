"""What the interpreter says of tensors and takes as arguments, beside LiteRT's."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sanderling
from sanderling import dump
from sanderling.ir import DType, Graph, Model, Quant

from .conformance.cases_control import emit, graph
from .support.array_differences import unlike
from .support.beside_litert import (
    LITERT,
    OURS,
    SHARE,
    SMALL,
    F,
    both,
    classify,
    litert,
    noise,
    stem,
)
from .support.format_models import everything, sparse_tensor
from .support.shared_models import MODELS

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

"""What the tests of quantisation share: quick calibration, LiteRT's two engines, float twins."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from sanderling import dump, load
from sanderling.ir import Array, DType, Graph, Model, Op, Tensor
from sanderling.ops.execute import evaluate, new_state
from sanderling.optimize.calibration.calibrate import (
    Calibration,
    Statistics,
    activations,
    sample_statistics,
)
from sanderling.optimize.calibration.canonical import canonical
from sanderling.optimize.modes.recipe import Choice
from sanderling.optimize.writing.apply import Quantised, Quantiser
from sanderling.optimize.writing.write import WeightOptions
from sanderling.runtime.inputs import dequantize_array, quantize_array
from sanderling.runtime.session import Session

ENGINES = ("BUILTIN_WITHOUT_DEFAULT_DELEGATES", "AUTO")  # LiteRT's own kernels, and XNNPACK


def quick_calibration(model: Model, samples: Sequence[Sequence[Array]]) -> Calibration:
    """Statistics of the main graph by the plain definitions of its ops: nothing is compiled."""
    copy = model.copy()
    graph = copy.main
    watched = activations(graph)
    computed = [t for t in watched if t not in graph.inputs]
    graph.outputs, copy.signatures = list(dict.fromkeys([*graph.outputs, *computed])), []
    session = Session(copy, ["reference"])
    found = {t.name: Statistics() for t in watched}
    for sample in samples:
        feeds = {t.name: a for t, a in zip(graph.inputs, sample, strict=True)}
        seen = dict(session.run(feeds)) | feeds
        for name, statistics in found.items():
            if (one := sample_statistics(seen[name], 0)) is not None:
                statistics.add(one)
    return Calibration(found, len(samples))


def quantised(
    model: Model, samples: Sequence[Sequence[Array]], *rules: str | dict[str, str], **more: Any
) -> Quantised:
    """The model by these rules, with plain ranges."""
    ready = canonical(model)
    choices = [Choice(r) if isinstance(r, str) else _choice(r) for r in rules]
    return Quantiser(ready, choices, quick_calibration(ready, samples), **more).run()


def nested(model: Model, samples: Sequence[Sequence[Array]], mode: str) -> Quantised:
    """As `quantised`, with the observer that sees inner graphs and states."""
    from sanderling.optimize.calibration.calibrate import calibrate
    from sanderling.optimize.calibration.nested import NestedObserver

    ready = canonical(model)
    seen = calibrate(NestedObserver(ready.copy(), 1), [list(s) for s in samples])
    return Quantiser(ready, [Choice(mode)], seen, weights=WeightOptions(minimum=0)).run()


def _choice(rule: dict[str, str]) -> Choice:
    from sanderling.optimize.modes.recipe import read_recipe

    return read_recipe([rule])[0]


@cache
def _litert() -> Any:
    import pytest

    return pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is absent")


def litert(model: Model | bytes, arrays: Sequence[Array], engine: str = ENGINES[0]) -> list[Array]:
    """LiteRT's outputs, in the order of the graph's."""
    m = _litert()
    content = model if isinstance(model, bytes) else bytes(dump(model))
    made = m.Interpreter(
        model_content=content, num_threads=1, experimental_op_resolver_type=m.OpResolverType[engine]
    )
    for detail, array in zip(made.get_input_details(), arrays, strict=True):
        if tuple(detail["shape"]) != array.shape:
            made.resize_tensor_input(detail["index"], array.shape)
    made.allocate_tensors()
    for detail, array in zip(made.get_input_details(), arrays, strict=True):
        made.set_tensor(detail["index"], array)
    made.invoke()
    return [made.get_tensor(d["index"]) for d in made.get_output_details()]


def delegated(content: bytes) -> list[tuple[str, bool]]:
    """Each op of the file, and whether XNNPACK runs it in the installed LiteRT."""
    m = _litert()
    made = m.Interpreter(model_content=content, num_threads=1)
    made.allocate_tensors()
    listed = made._get_ops_details()
    plain = [op for op in listed if op["op_name"] != "DELEGATE"]
    makers = {int(t): op["index"] for op in plain for t in op["outputs"]}
    reads = {op["index"]: op["inputs"] for op in plain}
    inside: set[int] = set()
    for piece in (op for op in listed if op["op_name"] == "DELEGATE"):
        edge, todo = {int(t) for t in piece["inputs"]}, [int(t) for t in piece["outputs"]]
        while todo:
            maker = makers.get(tensor := todo.pop())
            if tensor not in edge and maker is not None and maker not in inside:
                inside.add(maker)
                todo += [int(t) for t in reads[maker]]
    return [(op["op_name"], op["index"] in inside) for op in plain]


def ours(model: Model, arrays: Sequence[Array]) -> list[Array]:
    """Our outputs, by the plain definitions, in the order of the graph's."""
    session = Session(load(bytes(dump(model))), ["reference"])
    entry = session.entry(None)
    places = {t.name: n for n, t in entry.inputs.items()}
    feeds = {places[t.name]: a for t, a in zip(model.main.inputs, arrays, strict=True)}
    made = session.run(feeds)
    by_tensor = {t.name: np.array(made[n]) for n, t in entry.outputs.items()}
    return [by_tensor[t.name] for t in model.main.outputs]


def real(tensor: Tensor, given: Array | None = None) -> Array:
    """What a tensor's codes stand for; `given`: values that are first brought onto its codes."""
    codes = tensor.data if given is None else given
    assert codes is not None
    if given is not None and tensor.quant is not None and tensor.dtype.is_integer:
        codes = quantize_array(given, tensor)
    if tensor.quant is None or not tensor.quant.is_set:
        return np.asarray(codes)
    return np.asarray(dequantize_array(codes, tensor), np.float32)


def exact(op: Op, fed: dict[Tensor, Array]) -> list[Array]:
    """The integer op's results if it computed in reals: its operands' codes as they are."""
    inputs = [None if t is None else real(t, fed.get(t)) for t in op.inputs]
    graph = Graph("twin")
    tensors = [
        None if a is None else graph.tensor(f"in{i}", DType.of(a.dtype), a.shape)
        for i, a in enumerate(inputs)
    ]
    outputs = [graph.tensor(f"out{i}", _float(t.dtype), t.shape) for i, t in enumerate(op.outputs)]
    return evaluate(op.copy(tensors, outputs), inputs, new_state())


def _float(dtype: DType) -> DType:
    return DType.FLOAT32 if dtype in (DType.INT8, DType.INT16) else dtype

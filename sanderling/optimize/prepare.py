"""A float model made ready to be quantised: a copy of its own, plain constants, clamps fused."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ..errors import InputError
from ..ir import DType, Graph, Model
from ..ir.verify import verify
from ..measure.inspection import quantisation_kind
from ..ops.base import check_known
from ..passes import CLEAN, FOLD, FUSE, MERGE, run_passes
from .graphs import sink_constants

PASSES = (FOLD, FUSE, MERGE, CLEAN)
QUANTISED = ("full integer", "dynamic range", "int16x8")


def prepared(model: Model) -> Model:
    """The model as one graph of float ops; the given one is not touched."""
    kind = quantisation_kind(model)
    if any(word in kind for word in QUANTISED):
        raise InputError(f"the model is quantised already: {kind}", where=model.source,
                         fix="start from the float model it was made from")  # fmt: skip
    verify(model)
    copy = model.copy()
    for graph in copy.graphs:
        check_known(graph)
    for graph in copy.graphs:
        _plain_constants(graph)
    sink_constants(copy)
    for graph in copy.graphs:
        run_passes(graph, PASSES)
        _whole_sizes(graph)
    _unique_names(copy)
    return copy


def _plain_constants(graph: Graph) -> None:
    """float16 and sparse weights stand for float32 ones: what expands them is folded away."""
    for op in list(graph.ops):
        source = op.input(0)
        if op.name not in ("DEQUANTIZE", "DENSIFY") or source is None or source.data is None:
            continue
        if source.quant is not None and source.quant.is_set:
            continue
        out = op.outputs[0]
        plain = graph.constant(out.name, np.asarray(source.data, np.float32), DType.FLOAT32)
        graph.replace_uses(out, plain)
        graph.erase(op)


def _whole_sizes(graph: Graph) -> None:
    """A SLICE's size of -1 stands for the rest, which XNNPACK does not take."""
    for op in graph.ops:
        source, begin, sizes = (op.input(i) for i in range(3))
        if op.name != "SLICE" or source is None or source.is_dynamic:
            continue
        if begin is None or sizes is None or begin.data is None or sizes.data is None:
            continue
        if (sizes.data < 0).any():
            rest = np.array(source.shape, sizes.data.dtype) - begin.data
            whole = np.where(sizes.data < 0, rest, sizes.data)
            graph.set_input(op, 2, graph.constant(f"{sizes.name}/whole", whole, sizes.dtype))


def _unique_names(model: Model) -> None:
    """Statistics are kept by name, for all graphs together; the first of a name keeps it."""
    seen: Counter[str] = Counter()
    for tensor in (t for graph in model.graphs for t in graph.tensors):
        base = tensor.name or "unnamed"
        seen[base] += 1
        if seen[base] > 1:
            tensor.name = f"{base}#{seen[base]}"

"""Rewrites of a whole model: sizes, its border, and the type that its values have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import SanderlingError
from ..ir import DType, Graph, Model, Op, Quant, Tensor
from ..measure.inspection import quantisation_kind
from ..optimize.correcting.calibrated import Data
from ..optimize.modes.rules import RULES
from ..optimize.quantize import quantize
from ..passes import CLEAN, FOLD, run_passes
from ..runtime.inputs import dequantize_array
from ..runtime.specialise import specialise

PLAIN: dict[str, Any] = {"ranges": "minmax", "weights": "max", "corrections": "none"}
CODES = (DType.INT4, DType.INT8, DType.UINT8, DType.INT16, DType.INT32, DType.INT64)


@dataclass(frozen=True)
class WholeRewrite:
    """One row: as a Rewrite, of a model. `write` changes the model or declines with None; else it
    says what the user has to know."""

    name: str
    write: Callable[[Model], str | None]
    mends: str
    does: str
    exact: bool = True


def entries(model: Model) -> list[Graph]:
    """The graphs that a delegate is asked about first: what they call follows from them."""
    return list(dict.fromkeys([model.main, *(s.graph for s in model.signatures)]))


# -- sizes and constants ------------------------------------------------------------------------


def fix_sizes(model: Model) -> str | None:
    """State every size that follows from the inputs'. An open one is what stands in its place in
    the file, which is 1 as converters write it."""
    opened = [t for graph in entries(model) for t in graph.inputs if t.is_dynamic]
    changed = [_state_sizes(graph, [t.shape for t in graph.inputs]) for graph in entries(model)]
    if not any(changed):
        return None
    texts = ", ".join(f"'{t.name}' is {t.type_text}" for t in opened)
    return f"open sizes are fixed: input {texts}" if texts else "sizes are stated"


def _state_sizes(graph: Graph, shapes: list[tuple[int, ...]]) -> bool:
    """Say whether a tensor got another shape."""
    try:
        _, twins = specialise(graph, shapes)
    except SanderlingError:
        return False
    changed = False
    for tensor, twin in twins.items():
        if twin.is_dynamic or tensor.is_constant:
            continue
        changed |= tensor.shape != twin.shape or tensor.signature is not None
        tensor.shape, tensor.signature = twin.shape, None
    return changed


def fold(model: Model) -> str | None:
    """Compute now what depends on constants and known shapes alone."""
    said = fix_sizes(model)
    fired = sum(run_passes(graph, (FOLD, CLEAN)).fired.total() for graph in model.graphs)
    if not fired:
        return None
    return "; ".join(filter(None, [said, f"{fired} ops on constants are computed beforehand"]))


def one_batch(model: Model) -> str | None:
    """Take one sample in a run. RESHAPEs that state the batch are adapted."""
    graph = model.main
    batches = {t.shape[0] if t.shape else 0 for t in graph.inputs}
    if len(entries(model)) > 1 or len(batches) != 1 or not batches - {0, 1}:
        return None
    (batch,) = batches
    outputs = [t.shape for t in graph.outputs]
    for op in graph.ops:
        _reshape_to_one(graph, op, batch)
    if not _state_sizes(graph, [(1, *t.shape[1:]) for t in graph.inputs]):
        return None
    fits = all(t.shape == (1, *shape[1:]) for t, shape in zip(graph.outputs, outputs, strict=True))
    return f"a run takes 1 sample in place of {batch}" if fits else None


def _reshape_to_one(graph: Graph, op: Op, batch: int) -> None:
    target = op.input(1)
    if op.name != "RESHAPE" or target is None or target.data is None or not target.data.size:
        return
    sizes = target.data.reshape(-1).copy()
    if sizes[0] == batch:
        sizes[0] = 1
        graph.set_input(op, 1, graph.constant(f"{target.name}/one", sizes))
        op.attrs["new_shape"] = [int(n) for n in sizes]


# -- the border ---------------------------------------------------------------------------------


def plain_border(model: Model) -> str | None:
    """Feed codes and read codes: the ops that make them of floats, and floats of them, go. A model
    of nothing else stays as it is."""
    names = [name for graph in entries(model) for name in _bare(model, graph)]
    if not names or not all(graph.ops for graph in entries(model)):
        return None
    return f"codes are fed and read in place of floats: {', '.join(names)}"


def _bare(model: Model, graph: Graph) -> list[str]:
    new: dict[Tensor, Tensor] = {}
    for place, tensor in enumerate(graph.inputs):
        users = tensor.users
        lone = len(users) == 1 and users[0].name == "QUANTIZE" and tensor not in graph.outputs
        if lone and tensor.dtype is DType.FLOAT32:
            graph.inputs[place] = new[tensor] = _drop_first(graph, users[0])
    for place, tensor in enumerate(graph.outputs):
        op = tensor.producer
        if op is not None and op.name == "DEQUANTIZE" and not tensor.users:
            graph.outputs[place] = new[tensor] = op.operand(0)
            graph.erase(op)
    for signature in model.signatures:
        if signature.graph is graph:
            for ends in (signature.inputs, signature.outputs):
                ends.update({name: new.get(t, t) for name, t in ends.items()})
    for outer, inner in new.items():
        inner.name, outer.name = outer.name, inner.name
    return [t.name for t in new.values()]


def _drop_first(graph: Graph, op: Op) -> Tensor:
    """Take out an op whose result is fed from now on."""
    (fed,) = op.outputs
    fed.producer = None
    graph.erase(op)
    return fed


# -- floats of codes ----------------------------------------------------------------------------


def as_float(model: Model) -> str | None:
    """Compute with floats what was computed with codes."""
    coded = [t.quant for graph in model.graphs for t in graph.tensors if _holds_codes(t)]
    if not coded or any(quant is not None and quant.block is not None for quant in coded):
        return None
    if any(op.intermediates for graph in model.graphs for op in graph.ops):
        return None  # what recurrent ops hold between their steps has codes of its own
    for graph in model.graphs:
        _float_graph(graph)
    return "values are float32, and so are inputs and outputs"


def _holds_codes(tensor: Tensor) -> bool:
    return tensor.dtype in CODES and tensor.quant is not None and tensor.quant.is_set


def _float_graph(graph: Graph) -> None:
    for tensor in [t for t in graph.tensors if _holds_codes(t)]:
        reals = dequantize_array(tensor.values, tensor) if tensor.is_constant else None
        tensor.dtype, tensor.quant = DType.FLOAT32, None
        if reals is not None:
            tensor.data = reals
    for op in list(graph.ops):
        row = RULES.get(op.name)
        if row is not None and op.version in row.versions.values():
            op.version = 1
        if op.name in ("QUANTIZE", "DEQUANTIZE") and op.operand(0).dtype is DType.FLOAT32:
            _forward(graph, op)


def _forward(graph: Graph, op: Op) -> None:
    """Take out an op that is the identity now; at the border it stays as a view."""
    x, y = op.operand(0), op.outputs[0]
    if y not in graph.outputs:
        graph.replace_uses(y, x)
        graph.erase(op)
        return
    sizes = graph.constant(f"{y.name}/shape", np.array(y.shape, np.int32))
    view = Op("RESHAPE", [x, sizes], [y], {"new_shape": list(y.shape)})
    graph.insert(view, before=op)
    graph.erase(op)
    y.producer = view


# -- codes of floats ----------------------------------------------------------------------------


def as_int8(model: Model, data: Data | None) -> tuple[Model, list[str]]:
    """Quantise to int8, inputs and outputs too, with the user's samples or with noise."""
    source = model.copy()
    sizes = fix_sizes(source)
    if quantisation_kind(source) != "float32":
        as_float(source)
    # On noise there is nothing to choose techniques by.
    chosen: dict[str, Any] = {} if data is not None else PLAIN
    made, report = quantize(source, "int8", data, inputs="int8", outputs="int8", **chosen)
    made.source = model.source
    said = [sizes] if sizes else []
    if data is None:
        return made, [*said, "values are int8 with ranges from noise: give samples of real data"]
    return made, [*said, f"values are int8 with ranges from {report.samples} samples"]


def if_int8(graph: Graph) -> Graph:
    """The graph as it would be with codes in place of floats, to be judged and not to be run."""
    made = graph.copy()
    for tensor in made.tensors:
        if tensor.dtype is DType.FLOAT32 or _holds_codes(tensor):
            _seem_int8(tensor)
    for op in made.ops:
        row = RULES.get(op.name)
        if row is None:
            continue
        op.version = max(op.version, row.versions[8])
        for tensor in op.outputs if 8 in row.fixed else ():
            tensor.quant = Quant.of(*row.fixed[8])
        bias = None if row.bias is None else op.input(row.bias)
        if bias is not None and bias.is_constant:
            bias.dtype = DType.INT32
            bias.data = np.zeros(bias.shape, np.int32)
    return made


def _seem_int8(tensor: Tensor) -> None:
    constant = tensor.is_constant
    tensor.dtype, tensor.quant = DType.INT8, Quant.of(1 / 128)
    if constant:
        tensor.data = np.zeros(tensor.shape, np.int8)


SIZES = WholeRewrite(
    "fixed sizes",
    fix_sizes,
    "sizes are open, or follow from the inputs' at run time",
    "the sizes as constants; an open one is 1",
)
FOLDED = WholeRewrite(
    "constants folded",
    fold,
    "a parameter is computed",
    "the result of ops on constants and known shapes, as a constant",
)
BATCH = WholeRewrite(
    "batch of one",
    one_batch,
    "a batch of several samples is refused",
    "the model for one sample a run",
)
BORDER = WholeRewrite(
    "codes at the border",
    plain_border,
    "QUANTIZE from floats and DEQUANTIZE to floats are refused",
    "inputs and outputs that are codes",
)
FLOAT = WholeRewrite(
    "float model",
    as_float,
    "the quantisation is refused",
    "the same model in float32, with the weights' values",
    exact=False,
)
REWRITES = (SIZES, FOLDED, BATCH, BORDER, FLOAT)

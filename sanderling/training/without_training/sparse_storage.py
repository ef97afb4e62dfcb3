"""Zeros that take no room in the file: the schema's sparse tensors, each expanded by a DENSIFY op.

LiteRT expands them when it loads a model, so that they save storage, not memory. A weight is stored
sparse where that is smaller. XNNPACK runs a network with zeros faster only under conditions, which
`xnnpack_conditions` checks one by one (its README, "Sparse Inference").
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...ir import Array, Buffer, DType, Graph, Model, Op, SparseDim, Sparsity, Tensor
from ...ir.packing import encode
from ...ops.base import attr
from ..constraint import PRODUCTS
from .segments import home_of

LEAST_ZEROS = 2 / 3  # of the weights of all 1x1 convolutions, for XNNPACK


def stored_sparse(model: Model) -> tuple[Model, list[str]]:
    """A model whose weights are sparse tensors where those are smaller; the names of these."""
    made = model.copy()
    names = []
    for tensor in _candidates(made.main):
        packed = sparse_form(tensor.values)
        if packed is not None and _size(*packed) < len(tensor.buffer or b""):
            _store(made.main, tensor, *packed)
            names.append(tensor.name)
    return made, names


def _candidates(graph: Graph) -> list[Tensor]:
    found = dict.fromkeys(op.input(1) for op in graph.ops if op.name in PRODUCTS)
    homes = {t: home_of(t) for t in found if t is not None}
    floats = (DType.FLOAT32, DType.FLOAT16)
    return [t for t, home in homes.items() if home is t and t.dtype in floats]


def sparse_form(data: Array) -> tuple[Array, Sparsity] | None:
    """Values and where they are: the last axis compressed, as the converter stores them."""
    rows = data.reshape(-1, data.shape[-1])
    places = rows != 0
    segments = np.concatenate([[0], np.cumsum(places.sum(1))])
    indices = np.nonzero(places)[1]
    if not indices.size:  # readers take a tensor without a value for a damaged one
        return None
    kind = _narrow(data.shape[-1] - 1), _narrow(int(segments[-1]))
    dims = [SparseDim(size) for size in data.shape[:-1]]
    last = SparseDim(0, segments.astype(kind[1]), indices.astype(kind[0]))
    order = tuple(range(data.ndim))
    return rows[places], Sparsity(order, (), (*dims, last))


def _narrow(largest: int) -> type[np.generic]:
    return np.uint8 if largest < 2**8 else np.uint16 if largest < 2**16 else np.int32


def _size(values: Array, layout: Sparsity) -> int:
    lists = [a for d in layout.dims for a in (d.segments, d.indices) if a is not None]
    return values.nbytes + sum(a.nbytes for a in lists)


def _store(graph: Graph, tensor: Tensor, values: Array, layout: Sparsity) -> None:
    """The constant becomes sparse; its readers read the dense one that DENSIFY makes of it."""
    dense = graph.tensor(f"{tensor.name}/dense", tensor.dtype, tensor.shape)
    graph.replace_uses(tensor, dense)
    tensor.buffer = Buffer(encode(values, tensor.dtype))
    tensor.sparsity = layout
    graph.insert(Op("DENSIFY", [tensor], [dense]), before=graph.ops[0])


# -- XNNPACK --------------------------------------------------------------------------------------

_TAKEN = ("CONV_2D", "DEPTHWISE_CONV_2D", "ADD", "MUL", "MEAN", "RESIZE_BILINEAR", "PAD", "DENSIFY",
          "DEQUANTIZE", "DEPTH_TO_SPACE", "RELU", "RELU6", "RELU_N1_TO_1", "LEAKY_RELU", "ELU",
          "HARD_SWISH", "LOGISTIC", "ABS", "NEG", "SQUARE", "SQRT", "CEIL", "FLOOR", "ROUND",
          "AVERAGE_POOL_2D")  # fmt: skip
_ENDS = ("MEAN", "DEPTH_TO_SPACE")


def xnnpack_conditions(model: Model) -> list[str]:
    """What keeps XNNPACK from running the model's zeros faster, a sentence each; none if nothing
    does. The sparse part begins with the graph and ends with a mean over the picture, or with
    DEPTH_TO_SPACE; what comes behind it is not looked at."""
    ops = [op for op in model.main.ops if op.name not in ("DENSIFY", "DEQUANTIZE")]
    ends = [i for i, op in enumerate(ops) if op.name in _ENDS]
    part = ops[: ends[-1] + 1] if ends else ops
    found = [] if ends else ["it does not end with MEAN over the picture or DEPTH_TO_SPACE"]
    return [*found, *_first(ops), *_others(part), *_zeros(model, part)]


def _first(ops: list[Op]) -> Iterator[str]:
    convolutions = [op for op in ops[:2] if op.name == "CONV_2D"]
    if not convolutions:
        yield "it does not begin with a convolution"
        return
    op = convolutions[0]
    shape, strides = op.operand(1).shape, (attr(op, "stride_h"), attr(op, "stride_w"))
    if shape[1:] != (3, 3, 3) or strides != (2, 2):
        yield f"{op.where} is not 3x3 over 3 channels with a stride of 2"


def _others(ops: list[Op]) -> Iterator[str]:
    for op in ops:
        if op.name not in _TAKEN:
            yield f"{op.where} is no operator of sparse inference"
        elif op.name == "CONV_2D" and op is not ops[0] and op.operand(1).shape[1:3] != (1, 1):
            if op.operand(1).shape[3] != 3:
                yield f"{op.where} is no 1x1 convolution"
        elif op.name == "DEPTHWISE_CONV_2D" and op.operand(1).shape[1:3] not in ((3, 3), (5, 5)):
            yield f"{op.where} is neither 3x3 nor 5x5"


def _zeros(model: Model, ops: list[Op]) -> Iterator[str]:
    weights = [
        op.operand(1) for op in ops if op.name == "CONV_2D" and op.operand(1).shape[1:3] == (1, 1)
    ]
    homes = [home for t in weights if (home := home_of(t)) is not None]
    count = sum(int(np.prod(h.shape)) for h in homes)
    zeros = sum(int((h.values == 0).sum()) for h in homes)
    if not count:
        yield "it has no 1x1 convolution"
    elif zeros < LEAST_ZEROS * count:
        yield f"{zeros / count:.0%} of the weights of 1x1 convolutions are zero, not 67 %"
    if count and not any(op.name == "DENSIFY" for op in model.main.ops):
        yield "its weights are not stored sparse"

"""The graph and everything about it that does not depend on an operator's meaning."""

from .graph import (
    CUSTOM,
    Buffer,
    ExternalData,
    Graph,
    Model,
    Op,
    Signature,
    Tensor,
    link,
    reachable,
)
from .types import Array, Blockwise, DType, Quant, Shape, SparseDim, Sparsity

__all__ = [
    "CUSTOM", "Array", "Blockwise", "Buffer", "DType", "ExternalData", "Graph", "Model", "Op",
    "Quant", "Shape", "Signature", "SparseDim", "Sparsity", "Tensor", "link", "reachable",
]  # fmt: skip

"""A product's numbers as its tiles read them: weights packed for the core, and the epilogue's."""

from __future__ import annotations

import numpy as np

from .....ir import Array
from ...codegen.emit import Value
from ...codegen.program import StepEmitter
from ..epilogue.contract import column_words
from .chained import QUAD, ChainCore, pack_chains
from .cores import BlockCore, pack, pack_blocks
from .gemm import Arithmetic, Blocking, LeftoverLists, Product
from .sources import LineRows, RowSource


def weights_of(
    k: StepEmitter, kind: Arithmetic, size: Product, blocking: Blocking, rows: RowSource
) -> tuple[Value, LeftoverLists | None]:
    """The packed weights, and those that chains leave over."""
    if not isinstance(kind.core, ChainCore):
        return k.constant(packed(kind, size, blocking)), None
    found = pack_chains(kind.core, filled(kind, size), blocking.panels)
    line, within = np.divmod(found.quads * QUAD, size.k // size.lines)
    offsets = rows.offsets() if isinstance(rows, LineRows) else np.zeros(1, np.int64)
    lists = (found.more, offsets[line] + within, found.starts)
    return k.constant(found.weights), LeftoverLists(*map(k.constant, lists))


def packed(kind: Arithmetic, size: Product, blocking: Blocking) -> Array:
    """The weights of all groups, packed for the core."""
    if isinstance(kind.core, BlockCore) and kind.scales is not None:
        return pack_blocks(kind.core, kind.matrix, kind.scales, blocking.panels)
    return np.concatenate([pack(kind.core, g, blocking.panels) for g in filled(kind, size)])


def filled(kind: Arithmetic, size: Product) -> Array:
    """The weights of each group, [groups, n, k]; each line of taps filled up to its depth."""
    n = size.groups * size.n
    matrix = kind.matrix
    if size.lines > 1:
        full = np.zeros((n, size.lines, size.k // size.lines), matrix.dtype)
        full[:, :, : matrix.shape[1] // size.lines] = matrix.reshape(n, size.lines, -1)
        matrix = full.reshape(n, -1)
    return matrix.reshape(size.groups, size.n, -1)


def columns(kind: Arithmetic, size: Product, blocking: Blocking) -> Array:
    """The epilogue's numbers for each column, of all groups."""
    parts = [slice(g * size.n, (g + 1) * size.n) for g in range(size.groups)]
    return np.concatenate(
        [column_words(blocking.panels.spans(), *(c[part] for c in kind.columns)) for part in parts]
    )

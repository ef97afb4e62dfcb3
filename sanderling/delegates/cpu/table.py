"""The kernel table: which ops the compiler takes, and how each is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...errors import DelegateError
from ...ir import Op
from .codegen.program import refuses_tensors
from .dialect.fused import OWN
from .isa.targets import Target
from .kernels import control, decompositions
from .kernels.depthwise import depthwise, with_pointwise
from .kernels.elementwise import maps, operators, tables16
from .kernels.move import copies, gather, scatter, spread, views
from .kernels.products import conv, dynamic_range, matmul, transposed, volume
from .kernels.recurrent import lstm, svdf
from .kernels.reduce import (
    along_axis,
    l2norm8,
    layer_norm,
    local_response,
    pools,
    reductions,
    rowwise,
    softmax8,
    softmax16,
    topk,
)
from .kernels.row import UNKNOWN, Kernel
from .kernels.spectral import fourier, spectrogram
from .kernels.vision import detections, mediapipe, nms, resize

MODULES = (
    conv, dynamic_range, matmul, transposed, volume, depthwise, with_pointwise, maps, operators,
    tables16, copies, views, gather, scatter, spread, pools, reductions, rowwise, softmax8,
    softmax16, l2norm8, layer_norm, along_axis, topk, local_response, lstm, svdf, resize,
    detections, nms, mediapipe, fourier, spectrogram, control, decompositions,
)  # fmt: skip


def collected(modules: Iterable[Mapping[str, Kernel]]) -> dict[str, tuple[Kernel, ...]]:
    """The rows of each op, the one that is for all other types last."""
    found: dict[str, list[Kernel]] = {}
    for rows in modules:
        for name, row in rows.items():
            found.setdefault(name, []).append(row)
    for name, rows_of_name in found.items():
        general = [row for row in rows_of_name if row.handles is None]
        if len(general) != 1:
            raise DelegateError(
                f"{len(general)} rows of {name} are for every type",
                fix="give all but one of them a `handles`",
            )
    return {n: tuple(sorted(rows, key=lambda r: r.handles is None)) for n, rows in found.items()}


KERNELS = collected(module.KERNELS for module in MODULES)


def row_of(op: Op) -> Kernel:
    """The row for an op, by its name and types; UNKNOWN if there is none."""
    rows = KERNELS.get(op.name, ())
    return next((r for r in rows if r.handles is None or r.handles(op)), UNKNOWN)


def operators_fusing(what: str) -> frozenset[str]:
    """The operators that this can be fused into, as their rows say (Kernel.fuses)."""
    named = (name for name in KERNELS if not name.startswith(OWN))
    return frozenset(name for name in named if what in KERNELS[name][-1].fuses)


def refusal(op: Op, target: Target) -> str | None:
    """Why the compiler does not take an op of the user's graph; None if it does."""
    row = row_of(op)
    if row is UNKNOWN:
        return f"{op.name} has no kernel"
    said = refuses_tensors(op) or row.refuses(op, target)
    if said is None and row.inner is not None:
        said = row.inner(op, lambda other: refusal(other, target))
    if said is not None or row.becomes is None:
        return said
    others = row.becomes(op)
    if others is None:
        return f"{op.name} of these operands has no kernel"
    return next(filter(None, (refusal(other, target) for other in others)), None)

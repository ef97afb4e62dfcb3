"""Operators that others with kernels stand for: see passes/decompose.py.

STABLEHLO_ADD, ...      ADD, MUL; a comparison and SELECT_V2
custom.Mfcc             SLICE, SQRT, filters by FULLY_CONNECTED, LOG, cosines by FULLY_CONNECTED
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ....errors import SanderlingError
from ....ir import DType, Op, Tensor
from ....ops.custom import mel_weights, mfcc_options
from .row import Kernel, emit_never

# An op to the chain of ops that means the same; None if it has none.
Decomposition = Callable[[Op], "list[Op] | None"]


def _inner(like: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
    return Tensor(f"{like.name}/{name}", like.dtype, shape)


def _constant(name: str, value: Any, dtype: DType = DType.FLOAT32) -> Tensor:
    data = np.asarray(value, dtype.numpy)
    return Tensor(name, dtype, data.shape, data=data)


PLAIN = {"STABLEHLO_ADD": "ADD", "STABLEHLO_MULTIPLY": "MUL"}
CHOICES = {"STABLEHLO_MAXIMUM": "LESS", "STABLEHLO_MINIMUM": "GREATER"}  # when b takes a's place


def _elementwise(op: Op) -> list[Op] | None:
    a, b, y = op.inputs[0], op.inputs[1], op.outputs[0]
    if a is None or b is None or not a.shape == b.shape == y.shape:
        return None
    same = a.dtype is b.dtype is y.dtype
    if not same or a.dtype not in (DType.FLOAT32, DType.INT32, DType.INT64):
        return None
    if op.name in PLAIN:
        return [Op(PLAIN[op.name], [a, b], [y])]
    # MAXIMUM and MINIMUM treat what is no number in another way.
    other = Tensor(f"{y.name}/other", DType.BOOL, y.shape)
    return [Op(CHOICES[op.name], [a, b], [other]), Op("SELECT_V2", [other, b, a], [y])]


# A few numbers of the file stand for tables of any size.
MOST_WEIGHTS = 1 << 22


def _mfcc(op: Op) -> list[Op] | None:
    x, rate, y = op.inputs[0], op.inputs[1], op.outputs[0]
    if x is None or rate is None or rate.data is None or rate.data.size != 1 or 0 in x.shape:
        return None
    try:
        options = mfcc_options(op)
        channels, count = options["filterbank_channel_count"], options["dct_coefficient_count"]
        if channels * (x.shape[2] + count) > MOST_WEIGHTS:
            return None
        found = mel_weights(op, x.shape[2], float(rate.data.reshape(())))
    except SanderlingError:
        return None
    if found is None or not len(found[1]):
        return None
    first, filters = found
    angles = np.pi / channels * np.arange(count)[:, None] * (np.arange(channels) + 0.5)
    cosines = np.sqrt(2.0 / channels) * np.cos(angles)
    wide = (*x.shape[:2], channels)
    read = (*x.shape[:2], len(filters))
    part, roots = _inner(y, "part", read), _inner(y, "roots", read)
    energy, floor, logs = (_inner(y, name, wide) for name in ("energy", "floor", "logs"))
    attrs = {"keep_num_dims": True, "fused_activation_function": "NONE"}
    name = y.name
    begin, size = (
        _constant(f"{name}/{what}", value, DType.INT32)
        for what, value in (("begin", [0, 0, first]), ("size", read))
    )
    return [
        Op("SLICE", [x, begin, size], [part]),
        Op("SQRT", [part], [roots]),
        Op("FULLY_CONNECTED", [roots, _constant(f"{name}/filters", filters.T)], [energy], attrs),
        # In this order what is no number stays so.
        Op("MAXIMUM", [_constant(f"{name}/least", 1e-12), energy], [floor]),
        Op("LOG", [floor], [logs]),
        Op("FULLY_CONNECTED", [logs, _constant(f"{name}/cosines", cosines)], [y], attrs),
    ]


DECOMPOSITIONS: dict[str, Decomposition] = {
    **dict.fromkeys((*PLAIN, *CHOICES), _elementwise),
    "custom.Mfcc": _mfcc,
}


KERNELS = {name: Kernel(emit_never, becomes=found) for name, found in DECOMPOSITIONS.items()}

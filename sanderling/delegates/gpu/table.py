"""All rows of the kernel table, and why an op is not taken."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from math import prod

import numpy as np

from ...ir import DType, Op, Tensor
from ...passes.common import same_quant
from . import layout
from .expressions import ELEMENTWISE, expression
from .kernels.row import Row
from .passes.float_view import BIASED, MOVES
from .passes.stored import is_codes, real_values

MODULES = (
    "maps", "products", "convolution", "depthwise", "transposed", "matmul", "recurrent", "fourier",
    "moves", "pads", "blocks", "joins", "gathers", "pools", "reduce", "rows", "along",
    "resize", "resample",
)  # fmt: skip


def _rows() -> dict[str, Row]:
    found: dict[str, Row] = {}
    for name in MODULES:
        rows = import_module(f"{__package__}.kernels.{name}").KERNELS
        twice = sorted(set(found) & set(rows))
        assert not twice, f"two rows for {twice}"
        found |= rows
    return found


KERNELS: dict[str, Row] = _rows()
MOST_DIMENSIONS = 6
NO_CODES = (
    "8-bit ops are switched off (the option quantized=false, or --gpu_experimental_enable_quant="
    "false)"
)


def refusal(op: Op, quantized: bool = True) -> str | None:
    """Why the device does not take an op; None if it does."""
    row = KERNELS.get(op.name)
    if row is None:
        return "it has no kernel"
    for rule in (_refuses_tensors, _refuses_codes(quantized), _refuses_wrapping, row.refuses):
        reason = rule(op)
        if reason:
            return reason
    chain = row.becomes(_float_op(op))
    if chain is not None:
        return next((reason for made in chain if (reason := refusal(made))), None)
    return _refuses_expression(op) if op.name in ELEMENTWISE else None


def _tensors(op: Op) -> list[Tensor]:
    return [t for t in (*op.inputs, *op.outputs) if t is not None]


def _refuses_tensors(op: Op) -> str | None:
    if op.subgraphs or not op.outputs:
        return "it calls other graphs" if op.subgraphs else "it has no result"
    for tensor in _tensors(op):
        if tensor.is_dynamic:
            return f"the shape of '{tensor.name}' depends on data"
        if tensor.is_variable and not KERNELS[op.name].keeps_state:
            return f"'{tensor.name}' is kept from run to run"
        if tensor.is_constant:
            continue
        if not prod(tensor.shape):
            return f"'{tensor.name}' has no element"
        if len(tensor.shape) > MOST_DIMENSIONS:
            return f"'{tensor.name}' has {len(tensor.shape)} dimensions, {MOST_DIMENSIONS} at most"
        if not is_codes(tensor) and (reason := _refuses_type(op, tensor)):
            return reason
    return None


# Operators that take complex numbers, and those that take bytes which are no codes: both only move
# them, or turn them into floats.
COMPLEX = frozenset({"RESHAPE", "SQUEEZE", "EXPAND_DIMS", "RFFT2D", "COMPLEX_ABS", "REAL", "IMAG"})
PLAIN_BYTES = MOVES - {"MAX_POOL_2D"} | {"CAST"}


def _refuses_type(op: Op, tensor: Tensor) -> str | None:
    """Why an op on a tensor that holds no codes has no kernel for its type."""
    kind, is_result = tensor.dtype, tensor in op.outputs
    if kind is DType.INT32 and op.name in ("QUANTIZE", "DEQUANTIZE"):
        return "codes of 32 bits have no kernel"
    if kind in (*layout.FLOATS, DType.INT32) or (kind is DType.INT64 and is_result):
        return None
    if kind is DType.COMPLEX64 and op.name in COMPLEX:
        return None
    if kind in layout.CODES and op.name in PLAIN_BYTES and not (is_result and op.name == "CAST"):
        return None
    if kind is DType.INT16 and tensor.quant is not None and tensor.quant.is_set:
        return f"'{tensor.name}' has codes of 16 bits, and a float view is made of 8-bit codes only"
    return f"type {kind.short} has no kernel"


# They compare or choose codes, whatever those stand for.
CODES_ALONE = frozenset({"MAXIMUM", "MINIMUM", "SELECT", "SELECT_V2"})

# They compute with codes as if these were plain numbers.
NUMBERS_ALONE = frozenset({"BITWISE_XOR", "CAST", "FLOOR_DIV", "FLOOR_MOD", "NEG", "RIGHT_SHIFT"})

COMPARISONS = frozenset({"EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"})


def _compares_alike(op: Op) -> bool:
    """Whether codes are in the order of the reals that they stand for: the definition compares
    rounded multiples of 1/256, so that smaller or unequal steps make near ones equal."""
    a, b = op.operand(0), op.operand(1)
    return same_quant(a, b) and float(a.quantisation.scale[0]) >= 1 / 256


def _is_hybrid_tanh(op: Op) -> bool:
    """Only there is TANH computed; other products ignore it, as TensorFlow Lite's do."""
    activation = str(op.attrs.get("fused_activation_function", "NONE"))
    return activation == "TANH" and op.operand(0).dtype is DType.FLOAT32


def _refuses_codes(quantized: bool) -> Callable[[Op], str | None]:
    def refuses(op: Op) -> str | None:
        for tensor in _tensors(op):
            if not is_codes(tensor):
                continue
            if not quantized and not tensor.is_constant:
                return f"'{tensor.name}' is quantised, and {NO_CODES}"
            if not tensor.is_constant and tensor.quantisation.scale.size > 1:
                return f"'{tensor.name}' has a scale for each channel"
            if op.name == "FULLY_CONNECTED" and _is_hybrid_tanh(op):
                return "TANH behind floats times stored codes has no kernel"
            if op.name in NUMBERS_ALONE:
                return f"'{tensor.name}' is quantised, and it takes codes as plain numbers"
            if op.name in COMPARISONS and not _compares_alike(op):
                return "codes are compared in steps of 1/256, which floats are not"
            if op.name in CODES_ALONE and not same_quant(tensor, op.outputs[0]):
                return f"'{tensor.name}' and the result differ in scale, at which it does not look"
        return None

    return refuses


def _refuses_wrapping(op: Op) -> str | None:
    """Kernels of whole numbers do not look whether 32 bits hold their sums, which they shift to the
    left where the result's scale is small."""
    if op.name not in BIASED or not is_codes(op.outputs[0]):
        return None
    x, weights, bias = (op.input(place) for place in BIASED[op.name])
    if x is None or weights is None or not (is_codes(x) and is_codes(weights)):
        return None
    count = prod(weights.shape) // op.outputs[0].shape[-1]
    start = (
        0 if bias is None or bias.data is None else int(np.abs(bias.data.astype(np.int64)).max())
    )
    unit = float(x.quantisation.scale[0]) / float(op.outputs[0].quantisation.scale[0])
    left = 2.0 ** max(0, np.frexp(unit * float(weights.quantisation.scale.max()))[1])
    fits = (count * 255 * 255 + start) * (1 if op.name == "FULLY_CONNECTED" else left) < 2**31
    return None if fits else "its sums may leave 32 bits, and then they wrap around"


def _refuses_expression(op: Op) -> str | None:
    found = expression(_float_op(op))
    return found if isinstance(found, str) else None


def _float_op(op: Op) -> Op:
    """The op on floats in the place of codes, as the float view has it, and on what variables hold
    in the place of these."""
    if not any(is_codes(t) or t.is_variable for t in _tensors(op)):
        return op
    name = "gpu.COPY" if op.name in ("QUANTIZE", "DEQUANTIZE") else op.name

    def plain(tensor: Tensor | None) -> Tensor | None:
        if tensor is None or not (is_codes(tensor) or tensor.is_variable):
            return tensor
        data = real_values(tensor) if tensor.is_constant else None
        return Tensor(tensor.name, DType.FLOAT32, tensor.shape, data=data)

    inputs = [plain(t) for t in op.inputs]
    outputs = [t for t in map(plain, op.outputs) if t is not None]
    return Op(name, inputs, outputs, dict(op.attrs))

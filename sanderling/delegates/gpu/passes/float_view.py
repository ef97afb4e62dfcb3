"""The float view of a quantised graph: tensors of codes become floats, and between ops stand
simulators that round as codes would, so that the bounds which a model has learned still hold.

A float inside is a code without its zero point (a unit): a whole number that 16 bits keep exactly.
Products of units and of weights that are multiples of a power of two are exact in float, too, so
that a device's sums are the CPU's; they are scaled and rounded behind the sum, as kernels of whole
numbers do it. Operators that scale as their inputs do compute with units as they are; others get
real values.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from ....ir import Array, DType, Graph, Op, Tensor
from ....ops.fixed import fused_range, quantize_multiplier
from ....ops.lstm import ONE_CELL
from ....passes import Fired
from ....passes.common import same_quant
from .stored import along, bounds, complex_twin, is_codes, is_narrow, real_values, unit_values

# The rounding of codes, on floats; units as reals; sums of codes; an attribute of RESIZE_BILINEAR.
SIMULATE, SCALE, ADD_UNITS = "gpu.SIMULATE", "gpu.SCALE", "gpu.ADD_UNITS"
FIXED_POINT = "gpu_fixed_point"
# Their results are elements of their inputs.
MOVES = frozenset({
    "RESHAPE", "SQUEEZE", "EXPAND_DIMS", "TRANSPOSE", "SLICE", "STRIDED_SLICE", "SPLIT", "SPLIT_V",
    "PACK", "UNPACK", "CONCATENATION", "GATHER", "GATHER_ND", "TILE", "REVERSE_V2", "PAD", "PADV2",
    "MIRROR_PAD", "BROADCAST_TO", "DEPTH_TO_SPACE", "SPACE_TO_DEPTH", "BATCH_TO_SPACE_ND",
    "SPACE_TO_BATCH_ND", "MAX_POOL_2D", "RESIZE_NEAREST_NEIGHBOR", "EMBEDDING_LOOKUP",
})  # fmt: skip
# If their inputs are multiplied by a number, so are their results; or only the order counts.
LINEAR = MOVES | {"AVERAGE_POOL_2D", "MEAN", "SUM", "RESIZE_BILINEAR", "QUANTIZE"}
# They compute with codes, so that halves go away from the code zero.
ABOUT_CODES = frozenset({"AVERAGE_POOL_2D", "RESIZE_BILINEAR"})
RANKING = frozenset({"ARG_MAX", "ARG_MIN"})
# Where products have their input, weights and bias.
BIASED = {
    "CONV_2D": (0, 1, 2),
    "DEPTHWISE_CONV_2D": (0, 1, 2),
    "FULLY_CONNECTED": (0, 1, 2),
    "TRANSPOSE_CONV": (2, 1, 3),
}
# Cells that keep a state; the attribute with the codes between their products.
CELLS = frozenset({"LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM"})
CELL_CODES = "gpu_cell_codes"
# With floats as inputs they read the codes of bytes as signed, whatever the type is.
HYBRID = frozenset({*BIASED, "BATCH_MATMUL", "EMBEDDING_LOOKUP", *CELLS})
COPIES = {"QUANTIZE": "gpu.COPY", "DEQUANTIZE": "gpu.COPY"}


@dataclass(frozen=True)
class Border:
    """A tensor of the part's border: as the caller has it, and as the device does."""

    outside: Tensor
    inside: Tensor


@dataclass(frozen=True)
class Rounding:
    """From what an op computes to units: times factor, rounded, within bounds. finer: sums of whole
    numbers are rounded twice, first to so many parts of a unit; 1 is once. Both are one number, or
    one for each channel. exact: what is rounded are whole numbers, and the factor counts to its
    last bit. origin: what halves are rounded away from. again: the first of two roundings, which
    goes up at halves, is there even if it is to whole units, so that the second finds no halves."""

    factor: Array
    finer: Array
    low: int
    high: int
    exact: bool = False
    origin: int = 0
    again: bool = False

    @property
    def numbers(self) -> tuple[Array, Array, Array]:
        """The factor in two floats, and finer."""
        high = self.factor.astype(np.float32).astype(np.float64)
        return high, _alike(self.factor - high), self.finer


@dataclass(frozen=True)
class Sum:
    """A sum of codes: of each operand, its share of twice the larger scale, and to how many parts
    of a step it is rounded first; the factor from there to units of the result, and to how many
    parts of a unit that is rounded first."""

    shares: tuple[tuple[float, float], tuple[float, float]]
    sign: float
    factor: float
    finer: float
    low: int
    high: int


@dataclass
class Rewritten:
    """An op on floats: its inputs, how results become units (those not named are that), and its
    name if it is another."""

    inputs: list[Tensor | None]
    attrs: dict[str, object]
    rounding: dict[Tensor, Rounding] = field(default_factory=dict)
    name: str | None = None


def float_view(graph: Graph, twice: bool = True) -> tuple[Fired, list[Border], list[Border]]:
    """Change the graph; tell what the borders were and what they are. twice: round as kernels of
    whole numbers do, which takes more bits than a float of 16 has."""
    fired: Fired = Counter()
    inputs, outputs = list(graph.inputs), list(graph.outputs)
    twins = {t: _twin(t) for t in graph.tensors if _needs_twin(t)}
    for op in list(graph.ops):
        if any(t in twins for t in (*op.inputs, *op.outputs) if t is not None):
            _replace(graph, op, twins, _rewritten(graph, op, twins, twice), fired)
    graph.inputs[:] = [twins.get(t, t) for t in inputs]
    graph.outputs[:] = [twins.get(t, t) for t in outputs]
    graph.enlist(*graph.inputs)
    ins, outs = ([_border(a, twins) for a in side] for side in (inputs, outputs))
    return fired, ins, outs


def _border(tensor: Tensor, twins: dict[Tensor, Tensor]) -> Border:
    """Two tensors in any case: they have memory of their own."""
    outside = Tensor(
        tensor.name, tensor.dtype, tensor.shape, quant=tensor.quant, is_variable=tensor.is_variable
    )
    return Border(outside, twins.get(tensor, tensor))


def _needs_twin(tensor: Tensor) -> bool:
    return is_codes(tensor) or is_narrow(tensor) or tensor.dtype is DType.COMPLEX64


def _twin(tensor: Tensor) -> Tensor:
    """The tensor of units that stands for one of codes; constants are made of what their readers
    need, when it is known."""
    if tensor.dtype is DType.COMPLEX64:
        return complex_twin(tensor)
    return Tensor(tensor.name, DType.FLOAT32, tensor.shape)


# -- what an op computes with ---------------------------------------------------------------------


def _rewritten(graph: Graph, op: Op, twins: dict[Tensor, Tensor], twice: bool) -> Rewritten:
    if _is_product(op):
        return _product(graph, op, twins, twice)
    if twice and op.name in FIXED and all(map(is_codes, op.outputs)) and _all_codes(op):
        return _in_fixed_point(graph, op, twins)
    if twice and op.name in SIGNS and _is_sum_of_codes(op):
        return _sum(graph, op, twins)
    if op.name in CELLS and is_codes(op.outputs[0]):
        return _cell(graph, op, twins)
    if op.name in RANKING or _shares_scale(op):
        return _in_units(graph, op, twins)
    return _in_reals(graph, op, twins)


def _is_product(op: Op) -> bool:
    """Whether the op is a product of codes with constant codes."""
    if op.name not in BIASED:
        return False
    x, weights, bias = (op.input(place) for place in BIASED[op.name])
    stored = (
        weights is not None and weights.is_constant and (is_codes(weights) or is_narrow(weights))
    )
    known = bias is None or bias.is_constant
    return x is not None and is_codes(x) and stored and known and is_codes(op.outputs[0])


def _product(graph: Graph, op: Op, twins: dict[Tensor, Tensor], twice: bool) -> Rewritten:
    """Weights are whole numbers times the power of two that is next to the scale of the result."""
    place_x, place_w, place_b = BIASED[op.name]
    x, weights, bias = op.operand(place_x), op.operand(place_w), op.input(place_b)
    scales = weights.quantisation.scale.astype(np.float64)
    unit = float(x.quantisation.scale[0]) / float(op.outputs[0].quantisation.scale[0])
    m, shift = quantize_multiplier(scales * unit)
    power = 2.0 ** shift.astype(np.float64)
    inputs = [None if t is None else twins.get(t, t) for t in op.inputs]
    scaled = _weight_units(op, weights) * along(power, weights)
    inputs[place_w] = graph.constant(f"{weights.name}/units", scaled.astype(np.float32))
    if bias is not None:
        start = bias.values.reshape(-1) * power
        inputs[place_b] = graph.constant(f"{bias.name}/units", start.astype(np.float32))
    # Of FULLY_CONNECTED only the kernel for sparse weights, an old one, rounds twice.
    again = twice and (op.name != "FULLY_CONNECTED" or weights.sparsity is not None)
    finer = np.maximum(1.0, 1 / power) if again else np.ones(1)
    out = op.outputs[0]
    rounding = replace(_rounding(op, out, m / 2.0**31, finer, exact=twice), again=again)
    return Rewritten(inputs, _plain(op), {out: rounding})


def _all_codes(op: Op) -> bool:
    """Whether what it computes with are codes, each with one scale."""
    tensors = op.inputs if op.name == "MUL" else op.inputs[:1]
    return all(t is not None and is_codes(t) and t.quantisation.scale.size == 1 for t in tensors)


def _in_fixed_point(graph: Graph, op: Op, twins: dict[Tensor, Tensor]) -> Rewritten:
    """Products and sums of units are whole numbers, which the CPU scales as those of weights."""
    m, shift = FIXED[op.name](op)
    power = 2.0 ** float(shift)
    out, finer = op.outputs[0], np.array([max(1.0, 1 / power)])
    found = _rounding(op, out, np.array([m / 2.0**31 * power]), finer, exact=True)
    rounding, name = {out: replace(found, again=True)}, FIXED_NAMES.get(op.name)
    return Rewritten(_units_of(graph, op, twins), _plain(op), rounding, name)


def _mul_multiplier(op: Op) -> tuple[int, int]:
    a, b, out = (float(t.quantisation.scale[0]) for t in (*map(op.operand, (0, 1)), op.outputs[0]))
    m, shift = quantize_multiplier(a * b / out)
    return int(m), int(shift)


def _sum_multiplier(op: Op) -> tuple[int, int]:
    scales = (float(t.quantisation.scale[0]) for t in (op.operand(0), op.outputs[0]))
    m, shift = quantize_multiplier(next(scales) / next(scales))
    return int(m), int(shift)


def _mean_multiplier(op: Op) -> tuple[int, int]:
    """One over the number of elements goes into the multiplier, with as many bits as fit."""
    (m, shift), shape = _sum_multiplier(op), op.operand(0).shape
    axes = {int(a) % len(shape) for a in op.operand(1).values.reshape(-1)}
    count = prod(shape[a] for a in axes)
    extra = min(count.bit_length() - 1, 32, 31 + shift)
    return (m << extra) // count, shift - extra


# Operators that the CPU computes in fixed point: the multiplier of their products or sums, and
# those that become sums.
FIXED = {
    "MUL": _mul_multiplier,
    "SUM": _sum_multiplier,
    "MEAN": _mean_multiplier,
    "QUANTIZE": _sum_multiplier,
}
FIXED_NAMES = {"MEAN": "SUM"}


# Sums of codes, and the sign of their second operand.
SIGNS = {"ADD": 1.0, "SUB": -1.0}
# The limit of a unit of the operands in units of the result: beyond it nearly all results are at a
# bound.
MOST_SCALED = 16.0


def _is_sum_of_codes(op: Op) -> bool:
    tensors = [op.input(0), op.input(1), op.outputs[0]]
    if not all(t is not None and is_codes(t) and t.quantisation.scale.size == 1 for t in tensors):
        return False
    a, b, out = (float(t.quantisation.scale[0]) for t in tensors if t is not None)
    return 2 * max(a, b) / out < MOST_SCALED


def _sum(graph: Graph, op: Op, twins: dict[Tensor, Tensor]) -> Rewritten:
    """The definition shifts units by 20 bits, scales both operands to twice the larger scale, and
    rounds them there."""
    out = op.outputs[0]
    a, b, unit = (float(t.quantisation.scale[0]) for t in (op.operand(0), op.operand(1), out))
    twice = 2 * max(a, b)
    (m, shift), shares = quantize_multiplier(twice / (2.0**20 * unit)), [a / twice, b / twice]
    low, high = fused_range(op)
    zero = int(out.quantisation.zero_point[0])
    found = Sum(
        (_multiplied(shares[0]), _multiplied(shares[1])),
        SIGNS[op.name],
        float(m) * 2.0 ** (float(shift) - 11),
        2.0 ** -float(shift),
        low - zero,
        high - zero,
    )
    return Rewritten(_units_of(graph, op, twins), {"sum": found}, name=ADD_UNITS)


def _multiplied(share: float) -> tuple[float, float]:
    m, shift = quantize_multiplier(share)
    return float(m) * 2.0 ** (float(shift) - 31), 2.0 ** -float(shift)


def _weight_units(op: Op, weights: Tensor) -> Array:
    """Kernels do not look at the zero points of int8 weights, where the scale may be one for each
    channel; those of FULLY_CONNECTED do where it is not."""
    alone = op.name == "FULLY_CONNECTED" and weights.quantisation.scale.size == 1
    if weights.dtype is DType.UINT8 or alone:
        return unit_values(weights)
    found: Array = weights.values.astype(np.float32)
    return found


def _shares_scale(op: Op) -> bool:
    """A linear op whose inputs are all in the same units, and whose results are codes."""
    if op.name not in LINEAR or not all(is_codes(t) for t in op.outputs):
        return False
    codes = [t for t in op.inputs if t is not None and (is_codes(t) or is_narrow(t))]
    alike = all(same_quant(t, codes[0]) for t in codes)
    return bool(codes) and alike and codes[0].quantisation.scale.size == 1


def _units_of(graph: Graph, op: Op, twins: dict[Tensor, Tensor]) -> list[Tensor | None]:
    inputs: list[Tensor | None] = []
    for t in op.inputs:
        if t is not None and t in twins and t.is_constant:
            inputs.append(graph.constant(f"{t.name}/units", unit_values(t)))
        else:
            inputs.append(None if t is None else twins.get(t, t))
    return inputs


def _in_units(graph: Graph, op: Op, twins: dict[Tensor, Tensor]) -> Rewritten:
    inputs = _units_of(graph, op, twins)
    if op.name in RANKING:
        return Rewritten(inputs, dict(op.attrs))
    source = next(t for t in op.inputs if t is not None and (is_codes(t) or is_narrow(t)))
    unit, rounding = float(source.quantisation.scale[0]), {}
    for out in op.outputs:
        ratio = unit / float(out.quantisation.scale[0])
        if op.name not in MOVES or _is_activated(op) or ratio != 1.0:
            found = _rounding(op, out, np.array([ratio]), np.ones(1))
            zero = int(out.quantisation.zero_point[0]) if op.name in ABOUT_CODES else 0
            rounding[out] = replace(found, origin=-zero)
    attrs = _plain(op)
    if op.name == "RESIZE_BILINEAR" and source.dtype is DType.INT8:
        attrs[FIXED_POINT] = True
    return Rewritten(inputs, attrs, rounding)


def _is_activated(op: Op) -> bool:
    return str(op.attrs.get("fused_activation_function", "NONE")) != "NONE"


@dataclass(frozen=True)
class CellCodes:
    """What an 8-bit cell rounds to in each step, as scale and zero point: the hidden values, and
    the states, output and memory, that it keeps of them."""

    hidden: tuple[float, int]
    output: tuple[float, int]
    memory: tuple[float, int]


def _cell(graph: Graph, op: Op, twins: dict[Tensor, Tensor]) -> Rewritten:
    """A cell on reals, whose states are rounded in each step. Its biases are in units of the
    products that they are added to."""
    made, places = _in_reals(graph, op, twins), ONE_CELL
    hidden, output, memory = (
        (scale, zero)
        for scale, zero, *_ in map(
            bounds, (op.intermediates[4], *map(op.operand, (places.state, places.state + 1)))
        )
    )
    unit = float(op.operand(0).quantisation.scale[0])
    products = [(places.bias(gate), places.input(gate), unit) for gate in range(4)]
    for place, weights, factor in [
        *products,
        (places.projection + 1, places.projection, hidden[0]),
    ]:
        bias = op.input(place)
        if bias is not None:
            scale = float(op.operand(weights).quantisation.scale[0]) * factor
            values = (bias.values * scale).astype(np.float32)
            made.inputs[place] = graph.constant(f"{bias.name}/real", values)
    made.attrs[CELL_CODES] = CellCodes(hidden, output, memory)
    return made


def _in_reals(graph: Graph, op: Op, twins: dict[Tensor, Tensor]) -> Rewritten:
    inputs = [_real(graph, op, t, twins) for t in op.inputs]
    rounding = {}
    for out in filter(is_codes, op.outputs):
        scale, zero, low, high = bounds(out)
        factor = np.array([float(np.float32(1) / np.float32(scale))])
        rounding[out] = Rounding(factor, np.ones(1), low - zero, high - zero)
    return Rewritten(inputs, dict(op.attrs), rounding)


def _real(
    graph: Graph, op: Op, tensor: Tensor | None, twins: dict[Tensor, Tensor]
) -> Tensor | None:
    if tensor is None or tensor not in twins or tensor.dtype is DType.COMPLEX64:
        return None if tensor is None else twins.get(tensor, tensor)
    if tensor.is_constant:
        signed = tensor.dtype is DType.UINT8 and op.name in HYBRID and not is_codes(op.outputs[0])
        return graph.constant(f"{tensor.name}/real", real_values(tensor, signed))
    made = graph.tensor(f"{tensor.name}/real", DType.FLOAT32, tensor.shape)
    scale = bounds(tensor)[0]
    graph.insert(Op(SCALE, [twins[tensor]], [made], {"scale": scale}), before=op)
    return made


def _plain(op: Op) -> dict[str, object]:
    """Its attributes without the activation, which bounds take the place of."""
    return {k: v for k, v in op.attrs.items() if k != "fused_activation_function"}


def _rounding(op: Op, out: Tensor, factor: Array, finer: Array, exact: bool = False) -> Rounding:
    zero = int(out.quantisation.zero_point[0])
    low, high = fused_range(op) if _is_activated(op) else out.dtype.bounds
    return Rounding(_alike(factor), _alike(finer), low - zero, high - zero, exact)


def _alike(values: Array) -> Array:
    """One number where all are the same."""
    flat: Array = np.asarray(values, np.float64).reshape(-1)
    return flat[:1] if np.all(flat == flat[0]) else flat


# -- the graph ------------------------------------------------------------------------------------


def _replace(
    graph: Graph, op: Op, twins: dict[Tensor, Tensor], made: Rewritten, fired: Fired
) -> None:
    """A simulator stands behind every result that is to be rounded."""
    outs = {t: twins.get(t, t) for t in op.outputs}
    exact = {
        t: graph.tensor(f"{t.name}/exact", DType.FLOAT32, t.shape) if t in made.rounding else twin
        for t, twin in outs.items()
    }
    name = made.name or COPIES.get(op.name, op.name)
    inputs = made.inputs[:1] if name in COPIES.values() else made.inputs
    graph.insert(Op(name, inputs, list(exact.values()), made.attrs), before=op)
    for t, rounding in made.rounding.items():
        graph.insert(_simulator(graph, exact[t], outs[t], rounding), before=op)
        fired["simulator"] += 1
    drop(graph, op)


def _simulator(graph: Graph, before: Tensor, after: Tensor, rounding: Rounding) -> Op:
    """What differs from channel to channel is an input."""
    inputs = [before]
    for name, values in zip(("factor", "low", "finer"), rounding.numbers, strict=True):
        if values.size > 1:
            inputs.append(graph.constant(f"{after.name}/{name}", values.astype(np.float32)))
    return Op(SIMULATE, inputs, [after], {"rounding": rounding})


def drop(graph: Graph, op: Op) -> None:
    """Take out an op in whose place another one stands."""
    for place in range(len(op.inputs)):
        graph.set_input(op, place, None)
    graph.ops.remove(op)
    for tensor in op.outputs:
        if tensor.producer is op:
            tensor.producer = None

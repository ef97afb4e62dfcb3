"""RNN and SVDF, and what recurrent operators share: weights, quantising on the fly, time.

State tensors are variables: their arrays are changed in place and live on between invocations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..ir import Array, Op, Shape, Tensor
from .base import (
    Arrays,
    Spec,
    Specs,
    attr,
    define,
    elements,
    fitting,
    operand,
    out_spec,
    require,
    scale_zero,
    shapes_known,
    unknown_outputs,
)
from .fixed import fused_float, multiply, quantize_multiplier, to_codes, wrap32
from .gemm import quantize_rows, signed

# -- weights and activations --------------------------------------------------------------------


@dataclass(frozen=True)
class Matrix:
    """A weight operand, transposed for x @ values.

    Without scale: float32. With scale: 8-bit codes (in float64, whose products and sums are
    exact), and activations are quantised on the fly. A vector stands for a diagonal matrix.
    """

    values: Array
    scale: np.float32 | None = None

    @cached_property
    def sums(self) -> Array:
        total: Array = self.values.sum(axis=0)
        return total


def matrix_or_none(tensor: Tensor | None, array: Array | None) -> Matrix | None:
    """The operand at run time; None where the model leaves it out."""
    return None if tensor is None or array is None else matrix(tensor, array)


def matrix(tensor: Tensor, array: Array) -> Matrix:
    """The operand at run time."""
    if array.dtype.kind == "f":
        return Matrix(array.T)
    return Matrix(signed(array).T.astype(np.float64), np.float32(scale_zero(tensor)[0]))


class Activations:
    """Activations, one row a batch entry: as floats, and quantised row by row when asked for."""

    def __init__(self, real: Array, asymmetric: bool = False) -> None:
        self.real, self.asymmetric = real, asymmetric

    @cached_property
    def quantized(self) -> tuple[Array, Array, Array]:
        """Codes, scales and zero points (the latter two as columns)."""
        codes, scale, zero = quantize_rows(self.real, self.asymmetric)
        return codes.astype(np.float64), scale[:, None], zero[:, None]

    def __matmul__(self, weight: Matrix) -> Array:
        if weight.scale is None:
            diagonal = weight.values.ndim == 1
            return self.real * weight.values if diagonal else self.real @ weight.values
        codes, scale, zero = self.quantized
        total = codes @ weight.values - zero * weight.sums
        real: Array = total.astype(np.float32) * (scale * weight.scale)
        return real


# -- time ---------------------------------------------------------------------------------------


def swap_time(x: Array, time_major: bool) -> Array:
    """[batch, time, ...] to [time, batch, ...] or back, unless time stands first."""
    return x if time_major else np.ascontiguousarray(np.swapaxes(x, 0, 1))


def scan(
    step: Callable[[int], Array],
    time: int,
    shape: Shape,
    dtype: np.dtype[np.generic],
    reverse: bool = False,
) -> Array:
    """Outputs of step(t) stacked by t; with reverse, the last t comes first."""
    out = np.empty((time, *shape), dtype)
    for t in reversed(range(time)) if reverse else range(time):
        out[t] = step(t)
    return out


def state_view(op: Op, inputs: Arrays, index: int, shape: Shape) -> Array:
    """A variable's array in the shape the kernel works in, to be changed in place."""
    tensor, array = op.input(index), operand(op, inputs, index)
    require(
        tensor is not None and tensor.is_variable and array.flags.c_contiguous,
        op,
        f"input {index} is not a variable tensor",
        "the state of a recurrent operator must be a variable",
    )
    check_state(op, array.shape, shape)
    return array.reshape(shape)


def check_state(op: Op, found: Shape, shape: Shape) -> None:
    """A state has the elements of this shape, whatever its own."""
    require(elements(found) == elements(shape), op, f"state {found} should be {shape}")


def steps(op: Op, x: Shape) -> Shape:
    """The shape of an input as [time, batch, depth]."""
    if len(x) == 2:
        return (1, *x)
    return x if attr(op, "time_major") else (x[1], x[0], x[2])


def three_dimensions(op: Op, inputs: Arrays, index: int = 0) -> Array:
    x = operand(op, inputs, index)
    require(x.ndim == 3, op, f"input {index} should have three dimensions, not {x.shape}")
    return x


# -- RNN ----------------------------------------------------------------------------------------


def _run_rnn(
    op: Op,
    inputs: Arrays,
    base: int,
    x: Array,
    aux: Array | None = None,
    aux_index: int = 0,
    reverse: bool = False,
) -> Array:
    """One direction over x [time, batch, depth]; base is the index of its first weights."""
    _check_rnn(op, _shapes_of(inputs), base, x.shape, None if aux is None else aux.shape, aux_index)
    bias, batch = operand(op, inputs, base + 2), x.shape[1]
    units = len(bias)
    to_input, to_state = (_rnn_weights(op, inputs, base + k) for k in (0, 1))
    to_aux = None if aux is None else _rnn_weights(op, inputs, aux_index)
    state = state_view(op, inputs, base + 3, (batch, units))
    asymmetric = attr(op, "asymmetric_quantize_inputs")

    def step(t: int) -> Array:
        total = bias + (Activations(x[t], asymmetric) @ to_input)
        if aux is not None and to_aux is not None:
            total = total + (Activations(aux[t], asymmetric) @ to_aux)
        total = total + (Activations(state, asymmetric) @ to_state)
        state[...] = fused_float(op, total)
        return state

    return scan(step, x.shape[0], (batch, units), x.dtype, reverse)


def _rnn_weights(op: Op, inputs: Arrays, index: int) -> Matrix:
    return matrix(op.operand(index), operand(op, inputs, index))


def _rnn(op: Op, inputs: Arrays) -> Array:
    x = operand(op, inputs, 0)
    out: Array = _run_rnn(op, inputs, 1, x[None])[0]
    return out


def _sequence_rnn(op: Op, inputs: Arrays) -> Array:
    x, time_major = three_dimensions(op, inputs), attr(op, "time_major")
    return swap_time(_run_rnn(op, inputs, 1, swap_time(x, time_major)), time_major)


def _bidirectional_rnn(op: Op, inputs: Arrays) -> Array | list[Array]:
    # LiteRT runs the hybrid time-major case `time` times over (a loop too many), and in the
    # batch-major case feeds the backward cell from the first input even when it should read the
    # second. This is what both are meant to be.
    x, backward_x, aux = stacked_inputs(op, inputs, 9, op.input(10) is not None)
    forward = _run_rnn(op, inputs, 1, x, aux, 10)
    return merge(op, forward, _run_rnn(op, inputs, 5, backward_x, aux, 11, reverse=True))


def stacked_inputs(
    op: Op, inputs: Arrays, index: int, has_weights: bool
) -> tuple[Array, Array, Array | None]:
    """Forward input, backward input, auxiliary input, each [time, batch, depth].

    A second input (at index) with weights of its own is added in both directions; without, it is
    what the backward cell reads.
    """
    time_major = attr(op, "time_major")
    x = swap_time(three_dimensions(op, inputs), time_major)
    if op.input(index) is None:
        return x, x, None
    second = swap_time(three_dimensions(op, inputs, index), time_major)
    _check_beside(op, x.shape, second.shape)
    return (x, x, second) if has_weights else (x, second, None)


def _check_beside(op: Op, x: Shape, second: Shape) -> None:
    require(second[:2] == x[:2], op, f"inputs {x}, {second} do not fit")


def stacked_shapes(
    op: Op, specs: Specs, index: int, has_weights: bool
) -> tuple[Shape, Shape, Shape | None]:
    """As stacked_inputs, of shapes that are known."""
    x, other = operand(op, specs).known, specs[index] if index < len(specs) else None
    if other is None:
        return steps(op, x), steps(op, x), None
    second = other.known
    _check_beside(op, x, second)
    pair = steps(op, x), steps(op, second)
    return (pair[0], *pair) if has_weights else (*pair, None)


def merge(op: Op, forward: Array, backward: Array) -> Array | list[Array]:
    time_major = attr(op, "time_major")
    if attr(op, "merge_outputs"):
        return swap_time(np.concatenate([forward, backward], axis=2), time_major)
    return [swap_time(forward, time_major), swap_time(backward, time_major)]


Shapes = Sequence["Shape | None"]


def _shapes_of(operands: Specs | Arrays) -> Shapes:
    return [None if found is None else found.shape for found in operands]


def _check_rnn(
    op: Op, shapes: Shapes, base: int, x: Shape, aux: Shape | None = None, aux_index: int = 0
) -> None:
    """One direction's operands fit together; x and aux are [time, batch, depth]."""
    _, batch, depth = x
    units = operand(op, shapes, base + 2)[0]
    wanted = [(base, (units, depth)), (base + 1, (units, units))]
    if aux is not None:
        wanted.append((aux_index, (units, aux[2])))
    for index, shape in wanted:
        found = operand(op, shapes, index)
        require(found == shape, op, f"input {index}, weights {found}, should be {shape}")
    check_state(op, operand(op, shapes, base + 3), (batch, units))


def _infer_rnn(op: Op, specs: Specs) -> Spec:
    if not shapes_known(specs):
        return out_spec(op, None)
    shapes = _shapes_of(specs)
    x = operand(op, shapes)
    _check_rnn(op, shapes, 1, steps(op, x))
    return out_spec(op, (*x[:-1], operand(op, shapes, 1)[0]))


def _infer_bidirectional_rnn(op: Op, specs: Specs) -> list[Spec]:
    if shapes_known(specs):
        x, backward_x, aux = stacked_shapes(op, specs, 9, op.input(10) is not None)
        _check_rnn(op, _shapes_of(specs), 1, x, aux, 10)
        _check_rnn(op, _shapes_of(specs), 5, backward_x, aux, 11)
    return _both_outputs(op, specs)


def _both_outputs(op: Op, specs: Specs) -> list[Spec]:
    x = operand(op, specs).shape
    forward, backward = operand(op, specs, 1).shape, operand(op, specs, 5).shape
    units = None if forward is None or backward is None else (forward[0], backward[0])
    return two_outputs(op, x, units)


def two_outputs(op: Op, x: Shape | None, units: tuple[int, int] | None) -> list[Spec]:
    """Specs of a bidirectional operator's outputs."""
    merged = attr(op, "merge_outputs")
    require(
        len(op.outputs) == (1 if merged else 2),
        op,
        f"{len(op.outputs)} outputs",
        "merge_outputs makes one output, else there are two",
    )
    if x is None or units is None:
        return unknown_outputs(op)
    depths = (sum(units),) if merged else units
    return [out_spec(op, (*x[:2], depth), i) for i, depth in enumerate(depths)]


def weight_macs(op: Op) -> int:
    """Each weight matrix is used once for each row of the first input."""
    x = op.input(0)
    rows = 0 if x is None else elements(x.shape[:-1])
    matrices = (t for t in op.inputs[1:] if t is not None and not t.is_variable)
    return rows * sum(elements(t.shape) for t in matrices if len(t.shape) == 2)


_RNN = "w[2]: f32 i8q u8q, recurrent[2]: w, bias[1]: f32, state!: f32"
define(
    "RNN",
    infer=_infer_rnn,
    evaluate=_rnn,
    family="sequence",
    takes=f"x[2]: f32, {_RNN} -> f32",
    macs=weight_macs,
    notes="hybrid i8/u8 weights",
)
define(
    "UNIDIRECTIONAL_SEQUENCE_RNN",
    infer=_infer_rnn,
    evaluate=_sequence_rnn,
    family="sequence",
    takes=f"x[3]: f32, {_RNN} -> f32",
    macs=weight_macs,
    notes="hybrid i8/u8 weights",
)
define(
    "BIDIRECTIONAL_SEQUENCE_RNN",
    infer=_infer_bidirectional_rnn,
    evaluate=_bidirectional_rnn,
    family="sequence",
    macs=weight_macs,
    takes=f"x[3]: f32, {_RNN}, {_RNN}, aux?[3]: f32, 2 aux_weights?[2]: w -> f32, second?: f32",
    notes="hybrid i8/u8 weights",
)


# -- SVDF ---------------------------------------------------------------------------------------


def _svdf(op: Op, inputs: Arrays) -> Array:
    x, feature, time = (operand(op, inputs, k) for k in range(3))
    shapes = [None if a is None else a.shape for a in inputs]
    _check_svdf(op, x.shape, feature.shape, time.shape, shapes[3], operand(op, shapes, 4))
    bias, state = inputs[3], state_view(op, inputs, 4, (len(x), *time.shape))
    state[..., :-1] = state[..., 1:].copy()
    run = _svdf_float if x.dtype.kind == "f" else _svdf_integer
    return run(op, x, feature, time, bias, state)


def _svdf_float(
    op: Op, x: Array, feature: Array, time: Array, bias: Array | None, state: Array
) -> Array:
    weights = matrix(op.operand(1), feature)
    if time.dtype.kind != "f":
        time = signed(time) * np.float32(scale_zero(op.input(2))[0])
    state[..., -1] = Activations(x, attr(op, "asymmetric_quantize_inputs")) @ weights
    total = _sum_ranks(op, np.einsum("bfm,fm->bf", state, time))
    total = total if bias is None else total + bias
    return fused_float(op, total)


def _svdf_integer(
    op: Op, x: Array, feature: Array, time: Array, bias: Array | None, state: Array
) -> Array:
    (input_scale, input_zero), output_scale = scale_zero(op.inputs[0]), scale_zero(op.outputs[0])[0]
    feature_scale, time_scale, state_scale = (scale_zero(op.inputs[k])[0] for k in (1, 2, 4))
    centred = x.astype(np.float64) - input_zero
    dot = (centred @ signed(feature).T.astype(np.float64)).astype(np.int64)
    scaled = multiply(wrap32(dot), *quantize_multiplier(input_scale * feature_scale / state_scale))
    state[..., -1] = np.clip(scaled, -(2**15), 2**15 - 1)
    products = state.astype(np.int64) * time.astype(np.int64)
    total = _sum_ranks(op, products.sum(axis=2)) + (0 if bias is None else bias)
    real = state_scale * time_scale / output_scale
    return to_codes(op, multiply(wrap32(total), *quantize_multiplier(real)))


def _sum_ranks(op: Op, x: Array) -> Array:
    """[batch, units * rank] to [batch, units]."""
    rank = attr(op, "rank")
    total: Array = x.reshape(len(x), x.shape[1] // rank, rank).sum(axis=2)
    return total


def _check_svdf(
    op: Op, x: Shape, feature: Shape, time: Shape, bias: Shape | None, state: Shape
) -> None:
    filters, rank = feature[0], attr(op, "rank")
    require(rank > 0 and filters % rank == 0, op, f"{filters} filters are not a multiple of {rank}")
    fits = feature[1] == x[1] and time[0] == filters and time[1] > 0
    require(fits, op, f"weights {feature} and {time} do not fit input {x}")
    require(bias in (None, (filters // rank,)), op, f"the bias {bias} does not fit")
    check_state(op, state, (x[0], *time))
    # LiteRT insists on RELU and does not apply it: the output's range is left to do that.
    fits = op.outputs[0].dtype.is_float or attr(op, "fused_activation_function") == "RELU"
    require(fits, op, "the integer kernel takes only the activation RELU")


def _infer_svdf(op: Op, specs: Specs) -> Spec:
    x, feature = operand(op, specs).shape, operand(op, specs, 1).shape
    if x is None or feature is None:
        return out_spec(op, None)
    return out_spec(op, (x[0], feature[0] // attr(op, "rank")))


_SVDF = (
    "x[2]: f32, feature[2]: f32 i8q u8q, time[2]: feature, bias?[1]: f32, state!: f32 -> f32 | "
    "x[2]: i8q, feature[2]: i8q, time[2]: i16q, bias?[1]: i32, state!: i16q -> i8q"
)
define(
    "SVDF",
    infer=fitting(_check_svdf, range(5), _infer_svdf),
    evaluate=_svdf,
    family="sequence",
    takes=_SVDF,
    macs=weight_macs,
    notes="hybrid i8/u8 weights; i8 with i16 state",
)

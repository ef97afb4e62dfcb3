"""An interpreter of MIL programs in NumPy, written from coremltools' documentation of its ops.

It stands in for Core ML, which is on macOS only: what the delegate `coreml` writes is executed and
compared. Of an op only what its documentation says is here; an op or a setting that is not in the
table is an error. Values have the program's own types: a float16 program rounds after every op.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sanderling.ir import Array

TYPES = {"fp32": np.float32, "fp16": np.float16, "int32": np.int32, "bool": np.bool_}


def execute(program: Any, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The program's outputs by name."""
    block = program.functions["main"]
    values: dict[Any, Any] = {var: np.asarray(inputs[name]) for name, var in block.inputs.items()}

    def read(given: Any) -> Any:
        if isinstance(given, list | tuple):
            return [read(each) for each in given]
        return values[given] if given in values else given.val  # noqa: SIM401  val may raise

    for op in block.operations:
        if op.op_type == "const":
            continue
        made = TABLE[op.op_type](**{name: read(given) for name, given in op.inputs.items()})
        several = made if isinstance(made, list) else [made]
        for var, value in zip(op.outputs, several, strict=True):
            values[var] = _checked(op, var, np.asarray(value))
    return {var.name: values[var] for var in block.outputs}


def _checked(op: Any, var: Any, value: Array) -> Array:
    """The result in the type that coremltools has inferred, and of the shape."""
    typed = value.astype(TYPES[_type_name(var)])
    assert typed.shape == tuple(var.shape), f"{op.op_type}: {typed.shape}, inferred {var.shape}"
    return typed


def _type_name(var: Any) -> str:
    return {"int": "int32"}.get(var.dtype.__name__, str(var.dtype.__name__))


def wide(x: Array) -> Array:
    return np.asarray(x, np.float32)


def _erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


# -- element by element ---------------------------------------------------------------------------


def elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    """Computed in float32, whatever the type; the result is rounded to it."""

    def run(**given: Any) -> Any:
        return function(
            *(wide(v) if np.asarray(v).dtype == np.float16 else v for v in given.values())
        )

    return run


def gelu(x: Array, mode: str = "EXACT") -> Array:
    x = x.astype(np.float64)
    if mode == "EXACT":
        return 0.5 * x * (1 + _erf(x / math.sqrt(2)))
    assert mode == "TANH_APPROXIMATION"
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def softmax(x: Array, axis: int = -1) -> Array:
    raised = np.exp(wide(x) - wide(x).max(axis=axis, keepdims=True))
    return raised / raised.sum(axis=axis, keepdims=True)


def log_sum_exp(x: Array, axes: Any, keep_dims: bool = False) -> Array:
    most = wide(x).max(axis=tuple(axes), keepdims=True)
    total = np.log(np.exp(wide(x) - most).sum(axis=tuple(axes), keepdims=True)) + most
    return total if keep_dims else np.squeeze(total, tuple(axes))


# -- windows --------------------------------------------------------------------------------------


def _windows(
    x: Array, kernel: Sequence[int], strides: Any, dilations: Any, pad: Any, fill: float
) -> Array:
    """[n, C, out..., taps...]: floor[(in + pad - (K - 1) * dilation - 1) / stride] + 1 outputs."""
    edges = [(0, 0), (0, 0), *((pad[2 * i], pad[2 * i + 1]) for i in range(len(kernel)))]
    x = np.pad(wide(x), edges, constant_values=fill)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    view = np.lib.stride_tricks.sliding_window_view(x, reach, axis=tuple(range(2, x.ndim)))
    outs = tuple(slice(None, None, s) for s in strides)
    taps = tuple(slice(None, None, d) for d in dilations)
    return view[(slice(None), slice(None), *outs, *taps)]


def conv(
    x: Array,
    weight: Array,
    strides: Any,
    pad_type: str,
    pad: Any,
    dilations: Any,
    groups: int,
    bias: Any = None,
) -> Array:
    pad = [0] * 4 if pad_type == "valid" else pad
    assert pad_type in ("custom", "valid")
    view = _windows(x, weight.shape[2:], strides, dilations, pad, 0)
    size = weight.shape[1]
    each = weight.shape[0] // groups
    parts = [
        np.einsum(
            "nchwij,ocij->nohw",
            view[:, g * size : (g + 1) * size],
            wide(weight[g * each : (g + 1) * each]),
            optimize=True,
        )
        for g in range(groups)
    ]
    made = np.concatenate(parts, axis=1)
    return made if bias is None else made + wide(bias)[:, None, None]


def conv_transpose(
    x: Array,
    weight: Array,
    strides: Any,
    pad_type: str,
    pad: Any,
    dilations: Any,
    groups: int,
    bias: Any = None,
    output_shape: Any = None,
) -> Array:
    """Dout = (Din - 1) * stride + (K - 1) * dilation + 1 - pads; weight is [C_in, C_out, H, W]."""
    assert groups == 1 and list(dilations) == [1, 1] and pad_type == "custom"
    n, _, height, width = x.shape
    _, channels, taps_y, taps_x = weight.shape
    full = (height - 1) * strides[0] + taps_y, (width - 1) * strides[1] + taps_x
    made = np.zeros((n, channels, *full), np.float32)
    for i in range(height):
        for j in range(width):
            stamp = np.einsum("nc,cohw->nohw", wide(x[:, :, i, j]), wide(weight))
            y, z = i * strides[0], j * strides[1]
            made[:, :, y : y + taps_y, z : z + taps_x] += stamp
    made = made[:, :, pad[0] : full[0] - pad[1], pad[2] : full[1] - pad[3]]
    return made if bias is None else made + wide(bias)[:, None, None]


def max_pool(
    x: Array, kernel_sizes: Any, strides: Any, pad_type: str, pad: Any, ceil_mode: bool
) -> Array:
    assert pad_type in ("custom", "valid") and not ceil_mode
    return _windows(x, list(kernel_sizes), strides, [1, 1], pad, -np.inf).max(axis=(-1, -2))


def avg_pool(
    x: Array,
    kernel_sizes: Any,
    strides: Any,
    pad_type: str,
    pad: Any,
    ceil_mode: bool,
    exclude_padding_from_average: bool,
) -> Array:
    assert pad_type in ("custom", "valid") and not ceil_mode
    setting = (list(kernel_sizes), strides, [1, 1], pad, 0)
    total = _windows(x, *setting).sum(axis=(-1, -2))
    inside = np.ones_like(x) if exclude_padding_from_average else None
    count = (
        np.prod(kernel_sizes) if inside is None else _windows(inside, *setting).sum(axis=(-1, -2))
    )
    return total / count


def resize_bilinear(
    x: Array, target_size_height: int, target_size_width: int, sampling_mode: str
) -> Array:
    for axis, size in ((-2, int(target_size_height)), (-1, int(target_size_width))):
        x = _sampled(wide(x), axis, size, sampling_mode)
    return x


def _sampled(x: Array, axis: int, size: int, mode: str) -> Array:
    old, steps = x.shape[axis], np.arange(size)
    grid = {
        "STRICT_ALIGN_CORNERS": lambda: steps * ((old - 1) / max(size - 1, 1)),
        "DEFAULT": lambda: steps * ((old - old / size) / max(size - 1, 1)),
        "UNALIGN_CORNERS": lambda: steps * (old / size) + 0.5 * (old / size) - 0.5,
    }[mode]()
    grid = np.minimum(old - 1, np.maximum(0, grid))
    low = np.floor(grid).astype(int)
    high = np.minimum(low + 1, old - 1)
    part = np.float32(grid - low).reshape(-1, *(1,) * (-axis - 1))
    return x.take(low, axis) * (1 - part) + x.take(high, axis) * part


def upsample_nearest(x: Array, scale_factor_height: int, scale_factor_width: int) -> Array:
    return x.repeat(scale_factor_height, axis=-2).repeat(scale_factor_width, axis=-1)


def depth_to_space(x: Array, block_size: int) -> Array:
    """coremltools writes TensorFlow's DepthToSpace, where the block comes before the channel, with
    it and a transposition on both sides."""
    n, c, h, w = x.shape
    b = int(block_size)
    blocks = x.reshape(n, b, b, c // b**2, h, w).transpose(0, 3, 4, 1, 5, 2)
    return blocks.reshape(n, c // b**2, h * b, w * b)


def space_to_depth(x: Array, block_size: int) -> Array:
    n, c, h, w = x.shape
    b = int(block_size)
    blocks = x.reshape(n, c, h // b, b, w // b, b).transpose(0, 3, 5, 1, 2, 4)
    return blocks.reshape(n, c * b**2, h // b, w // b)


# -- shapes and places ----------------------------------------------------------------------------


def slice_by_index(
    x: Array,
    begin: Any,
    end: Any,
    stride: Any = None,
    begin_mask: Any = None,
    end_mask: Any = None,
    squeeze_mask: Any = None,
) -> Array:
    assert squeeze_mask is None or not np.any(squeeze_mask)
    steps = [1] * x.ndim if stride is None else list(stride)
    assert min(steps) > 0, "what a mask means with a negative stride is not documented"
    first = [
        None if begin_mask is not None and begin_mask[i] else int(begin[i]) for i in range(x.ndim)
    ]
    last = [None if end_mask is not None and end_mask[i] else int(end[i]) for i in range(x.ndim)]
    return x[tuple(map(slice, first, last, steps))]


def split(x: Array, axis: int, num_splits: Any = None, split_sizes: Any = None) -> list[Array]:
    if split_sizes is None:
        return np.split(x, int(num_splits), axis)
    return np.split(x, np.cumsum(split_sizes)[:-1], axis)


def pad(x: Array, pad: Any, mode: str = "constant", constant_val: Any = 0) -> Array:
    assert mode == "constant"
    pairs = np.reshape(pad, (-1, 2))
    edges = [(0, 0)] * (x.ndim - len(pairs)) + [tuple(p) for p in pairs]
    return np.pad(x, edges, constant_values=constant_val)


def gather(
    x: Array, indices: Array, axis: int = 0, batch_dims: int = 0, validate_indices: bool = False
) -> Array:
    if batch_dims == 0:
        return np.take(x, indices, axis=axis)
    return np.stack(
        [gather(a, i, axis - 1, batch_dims - 1) for a, i in zip(x, indices, strict=True)]
    )


def gather_nd(
    x: Array, indices: Array, batch_dims: int = 0, validate_indices: bool = False
) -> Array:
    assert batch_dims == 0
    return x[tuple(np.moveaxis(indices, -1, 0))]


def cumsum(x: Array, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> Array:
    x = np.flip(x, axis) if reverse else x
    total = np.cumsum(x, axis)
    total = total - x if exclusive else total
    return np.flip(total, axis) if reverse else total


def linear(x: Array, weight: Array, bias: Any = None) -> Array:
    return wide(x) @ wide(weight).T + (0 if bias is None else wide(bias))


def matmul(x: Array, y: Array, transpose_x: bool = False, transpose_y: bool = False) -> Array:
    x = np.swapaxes(x, -1, -2) if transpose_x else x
    return np.matmul(wide(x), wide(np.swapaxes(y, -1, -2) if transpose_y else y))


def layer_norm(
    x: Array, axes: Any, gamma: Any = None, beta: Any = None, epsilon: float = 1e-5
) -> Array:
    over = tuple(int(a) for a in axes)
    mean, spread = wide(x).mean(axis=over, keepdims=True), wide(x).var(axis=over, keepdims=True)
    made = (wide(x) - mean) / np.sqrt(spread + wide(epsilon))
    made = made if gamma is None else made * wide(gamma)
    return made if beta is None else made + wide(beta)


def reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Array, axes: Any = None, keep_dims: bool = False) -> Any:
        over = None if axes is None else tuple(int(a) for a in axes)
        return function(wide(x), axis=over, keepdims=bool(keep_dims))

    return run


TABLE: dict[str, Callable[..., Any]] = {
    **{
        name: elementwise(function)
        for name, function in {
            "add": np.add, "sub": np.subtract, "mul": np.multiply, "real_div": np.divide,
            "maximum": np.maximum, "minimum": np.minimum, "pow": np.power,
            "floor_div": np.floor_divide, "mod": np.mod, "equal": np.equal,
            "not_equal": np.not_equal, "less": np.less, "less_equal": np.less_equal,
            "greater": np.greater, "greater_equal": np.greater_equal,
            "logical_and": np.logical_and, "logical_or": np.logical_or,
            "logical_not": np.logical_not, "exp": np.exp, "sqrt": np.sqrt, "abs": np.abs,
            "square": np.square, "sin": np.sin, "cos": np.cos, "floor": np.floor,
            "ceil": np.ceil, "round": np.round, "sign": np.sign, "tanh": np.tanh,
            "sigmoid": lambda x: 1 / (1 + np.exp(-x.astype(np.float64))),
            "relu": lambda x: np.maximum(x, 0), "relu6": lambda x: np.clip(x, 0, 6),
            "silu": lambda x: x / (1 + np.exp(-x.astype(np.float64))), "identity": lambda x: x,
        }.items()
    },
    "log": lambda x, epsilon: np.log(wide(x) + wide(epsilon)),
    "rsqrt": lambda x, epsilon: 1 / np.sqrt(wide(x) + wide(epsilon)),
    "clip": lambda x, alpha, beta: np.clip(x, alpha, beta),
    "elu": lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(wide(x), 0))),
    "leaky_relu": lambda x, alpha: np.where(x >= 0, x, alpha * x),
    "gelu": gelu,
    "softmax": softmax,
    "reduce_log_sum_exp": log_sum_exp,
    "select": lambda cond, a, b: np.where(cond, a, b),
    "cast": lambda x, dtype: x.astype(TYPES[dtype]),
    "conv": conv,
    "conv_transpose": conv_transpose,
    "linear": linear,
    "matmul": matmul,
    "layer_norm": layer_norm,
    "max_pool": max_pool,
    "avg_pool": avg_pool,
    "resize_bilinear": resize_bilinear,
    "upsample_nearest_neighbor": upsample_nearest,
    "depth_to_space": depth_to_space,
    "space_to_depth": space_to_depth,
    "reshape": lambda x, shape: np.reshape(x, shape),
    "squeeze": lambda x, axes=None: np.squeeze(x, None if axes is None else tuple(axes)),
    "expand_dims": lambda x, axes: np.expand_dims(x, tuple(axes)),
    "transpose": lambda x, perm: np.transpose(x, perm),
    "concat": lambda values, axis, interleave=False: np.concatenate(values, axis),
    "stack": lambda values, axis: np.stack(values, axis),
    "split": split,
    "slice_by_index": slice_by_index,
    "pad": pad,
    "tile": lambda x, reps: np.tile(x, reps),
    "gather": gather,
    "gather_nd": gather_nd,
    "reverse": lambda x, axes: np.flip(x, tuple(axes)),
    "reduce_mean": reduction(np.mean),
    "reduce_sum": reduction(np.sum),
    "reduce_max": reduction(np.max),
    "reduce_min": reduction(np.min),
    "reduce_prod": reduction(np.prod),
    "cumsum": cumsum,
}  # fmt: skip

"""What another op can do along with its own work: clamps, scales, offsets, padding, dilation."""

from __future__ import annotations

import numpy as np

from ..ir import Array, DType, Graph, Op, Tensor
from ..ir.rewrite import CONST, Match, P, Rule, Var
from ..ops.base import attr, scale_zero
from ..ops.fixed import ACTIVATION_BOUNDS
from ..ops.geometry import padding_before
from .common import activation, constant, is_static, same_quant, twin, with_attrs

CONVOLUTIONS = ("CONV_2D", "DEPTHWISE_CONV_2D")
# Products with constant weights: the axis of the weights that is the output's channel, and the
# axis that is the input's.
WEIGHTED = {"CONV_2D": (0, 3), "DEPTHWISE_CONV_2D": (3, 3), "FULLY_CONNECTED": (0, 1)}

# -- clamps -------------------------------------------------------------------------------------

Bounds = tuple[float, float]
CLAMPS = {
    "RELU": (0.0, np.inf),
    "RELU6": (0.0, 6.0),
    "RELU_N1_TO_1": (-1.0, 1.0),
    "RELU_0_TO_1": (0.0, 1.0),
}
CLAMP_OPS = (*CLAMPS, "MAXIMUM", "MINIMUM")
_ACTIVATION = {bounds: name for name, bounds in ACTIVATION_BOUNDS.items()}
_CLAMP_OP = {bounds: name for name, bounds in CLAMPS.items()}
# These clamp their result as their attribute says.
ACTIVATED = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV", "ADD", "SUB",
             "MUL", "DIV", "AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D")  # fmt: skip


def clamp_of(op: Op) -> Bounds | None:
    """The bounds of an op that clamps one operand; a constant scalar beside it bounds floats."""
    if op.name in CLAMPS:
        return CLAMPS[op.name]
    limit = constant(op.input(1))
    limit = constant(op.input(0)) if limit is None else limit
    if limit is None or limit.size != 1 or op.outputs[0].dtype is not DType.FLOAT32:
        return None
    bound = float(limit.reshape(-1)[0])
    return (bound, np.inf) if op.name == "MAXIMUM" else (-np.inf, bound)


def _both(inner: Bounds, outer: Bounds) -> Bounds:
    """Combine two clamps that follow each other."""
    low, high = (min(max(bound, outer[0]), outer[1]) for bound in inner)
    return low, high


def _merge_clamps(graph: Graph, match: Match) -> Op | None:
    x, op = match["x"], match.root
    outer, inner = clamp_of(op), clamp_of(match.ops["inner"])
    if outer is None or inner is None or not _one_scale(x, match["y"], op.outputs[0]):
        return None
    name = _CLAMP_OP.get(_both(inner, outer))
    return None if name is None else Op(name, [x], op.outputs)


def _fuse_clamp(graph: Graph, match: Match) -> Op | None:
    """Let the producer clamp. A clamp that also rescales its codes stays: it rounds once more."""
    made, op = match.ops["made"], match.root
    bounds, own = clamp_of(op), ACTIVATION_BOUNDS.get(activation(made))
    if bounds is None or own is None or not _one_scale(match["y"], op.outputs[0]):
        return None
    name = _ACTIVATION.get(_both(own, bounds))
    if name is None:
        return None
    return with_attrs(made, made.inputs, op.outputs, fused_activation_function=name)


def _one_scale(*tensors: Tensor) -> bool:
    """Say whether the two are floats, or codes with the same meaning."""
    first = tensors[0]
    known = first.dtype is DType.FLOAT32 or first.quant is not None
    return (
        known
        and is_static(*tensors)
        and all(
            t.dtype is first.dtype and t.shape == first.shape and same_quant(t, first)
            for t in tensors
        )
    )


def _rounded_clamp(graph: Graph, match: Match) -> Op | None:
    """MAXIMUM(x, 0) is RELU, and so on: one name for one thing."""
    x, op = match["x"], match.root
    bounds = clamp_of(op)
    name = None if bounds is None else _CLAMP_OP.get(bounds)
    return Op(name, [x], op.outputs) if name and _one_scale(x, op.outputs[0]) else None


CLAMP_RULES = (
    Rule(
        "limit is a clamp",
        P(("MAXIMUM", "MINIMUM"), Var("x"), CONST, commutes=True),
        _rounded_clamp,
    ),
    Rule(
        "clamps merged", P(CLAMP_OPS, Var("y", P(CLAMP_OPS, Var("x"), bind="inner"))), _merge_clamps
    ),
    Rule(
        "clamp into producer",
        P(CLAMP_OPS, Var("y", P(ACTIVATED, once=True, bind="made"))),
        _fuse_clamp,
    ),
)

# -- scales and offsets into weights ------------------------------------------------------------


def _per_channel(c: Array, shape: tuple[int, ...]) -> Array | None:
    """A constant that varies along the last axis only, as one value a channel."""
    channels = shape[-1] if shape else 1
    if c.size not in (1, channels) or (c.ndim and c.size > 1 and c.shape[-1] != channels):
        return None
    return np.broadcast_to(c.reshape(-1), (channels,)).astype(np.float64)


def _is_float(made: Op) -> bool:
    operands = (made.input(0), made.input(1))
    weights = constant(operands[1])
    bias = made.input(2)
    return (
        weights is not None
        and all(t is not None and t.dtype is DType.FLOAT32 for t in operands)
        and (bias is None or bias.is_constant)
        and len(made.inputs) <= 3
        and is_static(made.input(0), made.outputs[0])
    )


def _scaled(graph: Graph, made: Op, scale: Array, axis: int) -> Tensor:
    """The weights with one factor for each index of the axis."""
    weights = made.operand(1)
    shape = [1] * len(weights.shape)
    shape[axis] = -1
    name = f"{weights.name}/scaled"
    return graph.constant(name, (weights.values * scale.reshape(shape)).astype(np.float32))


def _bias(made: Op) -> Array:
    channels = made.operand(1).values.shape[WEIGHTED[made.name][0]]
    bias = constant(made.input(2))
    return np.zeros(channels) if bias is None else bias.reshape(-1).astype(np.float64)


def _refitted(
    graph: Graph, made: Op, out: Tensor, act: str, scale: Array | None, offset: Array | None
) -> Op | None:
    """The product with scale and offset of its result taken into weights and bias."""
    bias = _bias(made) if scale is None else _bias(made) * scale
    bias = bias if offset is None else bias + offset
    weights = made.inputs[1]
    if scale is not None:
        weights = _scaled(graph, made, scale, WEIGHTED[made.name][0])
    if not np.all(np.isfinite(bias.astype(np.float32))):
        return None
    operand = graph.constant(f"{out.name}/bias", bias.astype(np.float32))
    return with_attrs(
        made, [made.inputs[0], weights, operand], [out], fused_activation_function=act
    )


def _fold_after(graph: Graph, match: Match) -> Op | None:
    """y * c, y + c, c - y, where y is a product with constant weights."""
    made, op, out = match.ops["made"], match.root, match.root.outputs[0]
    c = _per_channel(match["c"].values, out.shape)
    y = made.outputs[0]
    if c is None or y.shape != out.shape or activation(made) != "NONE" or not _is_float(made):
        return None
    scale, offset = {"MUL": (c, None), "ADD": (None, c), "SUB": (-np.ones_like(c), c)}[op.name]
    return _refitted(graph, made, out, activation(op), scale, offset)


def _fold_scale_before(graph: Graph, match: Match) -> Op | None:
    """A product of x * c: the weights take the factor of the channel that they meet. Padding is
    zero with and without it."""
    made, before, x = match.root, match.ops["before"], match["x"]
    c = _per_channel(match["c"].values, x.shape)
    if c is None or not _folds_before(made, before, x):
        return None
    channels = made.operand(1).values.shape[WEIGHTED[made.name][1]]
    repeated = _meets(made, c, channels)
    if repeated is None:
        return None
    weights = _scaled(graph, made, repeated, WEIGHTED[made.name][1])
    return with_attrs(made, [x, weights, *made.inputs[2:]], made.outputs)


def _fold_offset_before(graph: Graph, match: Match) -> Op | None:
    """A product of x + c: the bias takes what the constant contributes, if no padding is read."""
    made, before, x = match.root, match.ops["before"], match["x"]
    c = _per_channel(match["c"].values, x.shape)
    if c is None or not _folds_before(made, before, x) or not _reads_no_padding(made):
        return None
    weights = made.operand(1).values.astype(np.float64)
    repeated = _meets(made, c, weights.shape[WEIGHTED[made.name][1]])
    if repeated is None:
        return None
    out_axis = WEIGHTED[made.name][0]
    others = tuple(a for a in range(weights.ndim) if a != out_axis)
    total = (weights * repeated).sum(axis=others)
    refitted = _refitted(graph, made, made.outputs[0], activation(made), None, total)
    return (
        None if refitted is None else with_attrs(refitted, [x, *refitted.inputs[1:]], made.outputs)
    )


def _folds_before(made: Op, before: Op, x: Tensor) -> bool:
    return (
        activation(before) == "NONE"
        and x.shape == before.outputs[0].shape
        and is_static(x)
        and _is_float(made)
    )


def _meets(made: Op, c: Array, channels: int) -> Array | None:
    """The constant's value for each index of the weights' input axis: in a depthwise filter an
    input channel is met by several outputs, in a grouped one by every group."""
    if c.size == channels:
        return c
    uniform = bool(np.all(c == c[:1]))
    if made.name == "DEPTHWISE_CONV_2D" and channels % c.size == 0:
        return np.repeat(c, channels // c.size)
    return np.broadcast_to(c[:1], (channels,)) if uniform and c.size else None


def _reads_no_padding(op: Op) -> bool:
    if op.name == "FULLY_CONNECTED" or attr(op, "padding") == "VALID":
        return True
    return not any(_same_pads(op, op.operand(0).shape))


def _same_pads(op: Op, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Padding of SAME for an input of this shape and the op's output."""
    pads: list[int] = []
    weights, out = op.operand(1), op.outputs[0]
    for axis, letter in ((1, "h"), (2, "w")):
        taps, stride = weights.shape[axis], int(attr(op, f"stride_{letter}"))
        dilation = int(attr(op, f"dilation_{letter}_factor"))
        before = padding_before(shape[axis], taps, stride, dilation, out.shape[axis])
        reach = (out.shape[axis] - 1) * stride + (taps - 1) * dilation + 1
        pads += [before, max(0, reach - before - shape[axis])]
    return pads[0], pads[1], pads[2], pads[3]


def _after(name: str) -> P:
    made = P(tuple(WEIGHTED), once=True, bind="made")
    if name == "SUB":
        return P("SUB", Var("c", CONST), made)
    return P(name, made, Var("c", CONST), commutes=True)


def _before(name: str) -> P:
    operand = P(name, Var("x"), Var("c", CONST), commutes=True, once=True, bind="before")
    return P(tuple(WEIGHTED), operand)


WEIGHT_RULES = (
    Rule("factor into weights", _after("MUL"), _fold_after),
    Rule("offset into bias", _after("ADD"), _fold_after),
    Rule("difference into weights", _after("SUB"), _fold_after),
    Rule("factor into next weights", _before("MUL"), _fold_scale_before),
    Rule("offset into next bias", _before("ADD"), _fold_offset_before),
)

# -- padding and dilation -----------------------------------------------------------------------


def zero_padding(op: Op) -> tuple[int, int, int, int] | None:
    """(top, bottom, left, right) of a PAD that puts zeros around pictures, else None."""
    x, out, amounts = op.inputs[0], op.outputs[0], constant(op.input(1))
    if x is None or amounts is None or len(x.shape) != 4 or not same_quant(x, out):
        return None
    if not is_static(x, out) or np.any(amounts < 0) or np.any(amounts[[0, 3]]):
        return None
    if op.input(2) is not None and not _pads_zero(op, x):
        return None
    top, bottom, left, right = map(int, amounts[1:3].reshape(-1))
    return top, bottom, left, right


def _pads_zero(op: Op, x: Tensor) -> bool:
    value = constant(op.input(2))
    zero = scale_zero(x)[1] if x.quant is not None and x.quant.scale.size else 0
    return value is not None and bool(np.all(value == zero))


def _pad_to_same(graph: Graph, match: Match) -> Op | None:
    """Use the padding SAME where an explicit PAD does the same."""
    op, x, pads = match.root, match["x"], zero_padding(match.ops["pad"])
    if pads is None or not any(pads) or not is_static(*op.outputs) or not has_same_size(op, x):
        return None
    same = _same_pads(op, x.shape)
    if (pads[0], pads[2]) != (same[0], same[2]):  # what lies behind follows from the size
        return None
    return with_attrs(op, [x, *op.inputs[1:]], op.outputs, padding="SAME")


def has_same_size(op: Op, x: Tensor) -> bool:
    """Say whether the output is as large as SAME makes it."""
    out = op.outputs[0].shape
    return all(
        out[a] == -(-x.shape[a] // int(attr(op, f"stride_{c}"))) for a, c in ((1, "h"), (2, "w"))
    )


_STEPS = ("stride_h", "stride_w", "dilation_h_factor", "dilation_w_factor")


def _dilate(graph: Graph, match: Match) -> Op | None:
    """SPACE_TO_BATCH, convolution, BATCH_TO_SPACE: a convolution with holes.

    The pictures of a batch are the phases of the original; padding of them by one is padding of
    the original by a block.
    """
    op, conv, x = match.root, match.ops["conv"], match["x"]
    block, pads = constant(match.ops["split"].input(1)), constant(match.ops["split"].input(2))
    again, crops = constant(op.input(1)), constant(op.input(2))
    if block is None or pads is None or again is None or crops is None:
        return None
    steps = [int(attr(conv, name)) for name in _STEPS]
    y, inner = conv.outputs[0], conv.operand(0)
    if steps != [1, 1, 1, 1] or block.size != 2 or not np.array_equal(block, again):
        return None
    if not is_static(x, y, inner, *op.outputs) or not same_quant(y, op.outputs[0]):
        return None
    if not same_quant(x, inner) or len(x.shape) != 4:
        return None
    own = _same_pads(conv, inner.shape) if attr(conv, "padding") == "SAME" else (0, 0, 0, 0)
    total = pads - crops + np.reshape(own, (2, 2)) * block[:, None]
    if np.any(total < 0):
        return None
    return _dilated(graph, match, total, (int(block[0]), int(block[1])))


def _dilated(graph: Graph, match: Match, pads: Array, block: tuple[int, int]) -> Op:
    conv, x, out = match.ops["conv"], match["x"], match.root.outputs[0]
    padded = x
    if np.any(pads):
        amounts = np.zeros((4, 2), np.int32)
        amounts[1:3] = pads
        shape = [n + int(a.sum()) for n, a in zip(x.shape, amounts, strict=True)]
        padded = twin(graph, x, f"padded_for_{out.name}", shape)
        operand = graph.constant(f"{padded.name}/amounts", amounts)
        graph.insert(Op("PAD", [x, operand], [padded]), before=match.root)
    return with_attrs(
        conv,
        [padded, *conv.inputs[1:]],
        [out],
        padding="VALID",
        dilation_h_factor=block[0],
        dilation_w_factor=block[1],
    )


WINDOW_RULES = (
    Rule(
        "phases are dilation",
        P(
            "BATCH_TO_SPACE_ND",
            P(CONVOLUTIONS, P("SPACE_TO_BATCH_ND", Var("x"), bind="split"), once=True, bind="conv"),
        ),
        _dilate,
    ),
    Rule(
        "padding is SAME",
        P(CONVOLUTIONS, P(("PAD", "PADV2"), Var("x"), bind="pad"), attrs={"padding": "VALID"}),
        _pad_to_same,
    ),
)

RULES = (*CLAMP_RULES, *WEIGHT_RULES, *WINDOW_RULES)

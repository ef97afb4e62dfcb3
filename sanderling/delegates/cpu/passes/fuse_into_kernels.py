"""Work that a kernel does along with its own: padding around its input, an addition and a function
of its result.

What a kernel is told is dialect/fused.py's record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from ....ir import DType, Graph, Op, Tensor
from ....ir.expr import Const, Expr, Input, inputs_of, substitute
from ....ir.rewrite import Match, P, Rule, Var, rewrite
from ....ops.base import scale_zero
from ....passes.common import Fired, activation, has_effects, is_static, with_attrs
from ....passes.fuse import zero_padding
from ..dialect.fused import Fused, Inputs, either, fuse, operator
from ..dialect.verify import same_elements
from ..kernels.elementwise.planes import Side, clamped, plane
from ..kernels.window import window_of
from ..table import operators_fusing

BYTES = (DType.INT8, DType.UINT8)

# Which operators take what, as their rows say.
EPILOGUE_OPS: dict[str, frozenset[str]] = {
    what: operators_fusing(what) for what in ("pad", "residual", "map", "map of two")
}

Able = Mapping[str, frozenset[str]]

# -- padding ------------------------------------------------------------------------------------


def fold_padding(graph: Graph, able: Able = EPILOGUE_OPS) -> Fired:
    """A PAD with zeros becomes part of the windows that read it."""
    pad = P(("PAD", "PADV2"), Var("x"), bind="pad")
    rule = Rule("padding into windows", P(either(*able["pad"]), pad), _fold_pad)
    return rewrite(graph, [rule], has_side_effects=has_effects)


def _fold_pad(graph: Graph, match: Match) -> Op | None:
    op, x = match.root, match["x"]
    around = zero_padding(match.ops["pad"])
    if around is None or not is_static(x, *op.outputs):
        return None
    own = window_of(op).pads
    top, bottom, left, right = (a + b for a, b in zip(around, own, strict=True))
    made = with_attrs(op, [x, *op.inputs[1:]], op.outputs, padding="VALID")
    padding = (top, bottom, left, right)
    return fuse(made, padding=padding) if any(padding) else made


# -- residual -----------------------------------------------------------------------------------


def fold_residuals(graph: Graph, able: Able = EPILOGUE_OPS) -> Fired:
    """An ADD of a product and another tensor becomes part of the product."""
    product = Var("y", P(either(*able["residual"]), once=True, bind="made"))
    rule = Rule(
        "addition into product",
        P("ADD", product, Var("x"), commutes=True),
        lambda graph, match: _fold_add(graph, match, able["residual"]),
    )
    return rewrite(graph, [rule], has_side_effects=has_effects)


def _fold_add(graph: Graph, match: Match, able: frozenset[str]) -> Op | None:
    add, made, x, y = match.root, match.ops["made"], match["x"], match["y"]
    out = add.outputs[0]
    if not _takes_residual(made) or x.is_constant or not is_static(x, y, out):
        return None
    if not same_elements(x, out) or not same_elements(y, out) or not _types_match(x, y, out):
        return None
    if _is_earlier(graph, made, x.producer, able):
        return None  # the match with the operands exchanged takes the later one
    if out.dtype in BYTES and not plane(Side.of(y), Side.of(x), clamped(add)).exact:
        return None  # it has a kernel of its own, which is
    act = activation(add)
    new = with_attrs(made, _beside(made, x), [out], fused_activation_function=act)
    return fuse(new, residual=True, inner=scale_zero(y) if out.dtype in BYTES else None)


def _beside(made: Op, x: Tensor) -> list[Tensor | None]:
    """The operands, with x beside them."""
    return Inputs.of(made)._replace(residual=x).listed()


def _takes_residual(made: Op) -> bool:
    fused = Fused.of(made)
    free = not fused.residual and fused.map is None
    if operator(made) == "DEPTHWISE_CONV_2D" and made.outputs[0].dtype is not DType.FLOAT32:
        return False
    return free and activation(made) == "NONE" and len(made.outputs) == 1


def _types_match(x: Tensor, y: Tensor, out: Tensor) -> bool:
    if not x.dtype is y.dtype is out.dtype:
        return False
    if out.dtype is DType.FLOAT32:
        return True
    quants = [t.quant for t in (x, y, out)]
    return out.dtype in BYTES and not any(q is None or q.scale.size != 1 for q in quants)


def _is_earlier(graph: Graph, made: Op, other: Op | None, able: frozenset[str]) -> bool:
    """The other operand is a product that could take the sum as well, and is computed later: then
    neither has to wait for the other."""
    if other is None or operator(other) not in able or not _takes_residual(other):
        return False
    if len(other.outputs[0].users) != 1 or other.outputs[0] in graph.outputs:
        return False
    return graph.ops.index(made) < graph.ops.index(other)


# -- functions of the result --------------------------------------------------------------------


def fold_maps(graph: Graph, able: Able = EPILOGUE_OPS) -> Fired:
    """A cpu.MAP of a float product and constants (and one more tensor, where the kernel takes it)
    becomes part of the product."""
    fired: Fired = Counter()
    for op in list(graph.ops):
        found = _product_behind(graph, op, able) if op.name == "cpu.MAP" else None
        if found is None:
            continue
        made, other = found
        expr = _of_result(op, made.outputs[0], other)
        if expr is None:
            continue
        inputs = made.inputs if other is None else _beside(made, other)
        new = with_attrs(made, inputs, op.outputs)
        residual = Fused.of(made).residual or other is not None
        graph.insert(fuse(new, map=expr, residual=residual), before=op)
        graph.erase(op)
        graph.erase(made)
        fired[f"map into {operator(made)}"] += 1
    return fired


def _product_behind(graph: Graph, op: Op, able: Able) -> tuple[Op, Tensor | None] | None:
    """The product that the map can become part of, and the other tensor that the map reads."""
    read = [t for t in dict.fromkeys(op.inputs) if t is not None and not t.is_constant]
    out = op.outputs[0]
    if len(read) > 2 or "shapes" in op.attrs or not all(_fits_map(t, out) for t in (*read, out)):
        return None
    names = able["map"] if len(read) == 1 else able["map of two"]
    # The last to be computed: the other tensor must be there before it.
    for y in sorted(read, key=lambda t: _place(graph, t), reverse=True):
        made = y.producer
        if made is not None and operator(made) in names and _takes_map(graph, made, op, len(read)):
            return made, next((t for t in read if t is not y), None)
    return None


def _fits_map(tensor: Tensor, out: Tensor) -> bool:
    return tensor.dtype is DType.FLOAT32 and same_elements(tensor, out)


def _place(graph: Graph, tensor: Tensor) -> int:
    return -1 if tensor.producer is None else graph.ops.index(tensor.producer)


def _takes_map(graph: Graph, made: Op, op: Op, operands: int) -> bool:
    y, fused = made.outputs[0], Fused.of(made)
    free = fused.map is None and (operands == 1 or not fused.residual)
    alone = all(user is op for user in y.users) and y not in graph.outputs
    return free and alone and len(made.outputs) == 1


def _of_result(op: Op, y: Tensor, other: Tensor | None) -> Expr | None:
    """The map's expression with the product's result first; None if a constant varies."""
    expr: Expr = op.attrs["expr"]
    places: dict[int, Expr] = {}
    for index, dtype in inputs_of(expr).items():
        tensor = op.operand(index)
        if tensor is y or tensor is other:
            places[index] = Input(int(tensor is other), DType.FLOAT32)
        elif tensor.data is None or np.unique(tensor.data).size != 1:
            return None
        else:
            places[index] = Const(tensor.data.reshape(-1)[0].item(), dtype)
    return substitute(expr, places)

"""Less to compute for the same result: constants, identities, chains, duplicates, dead code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable

import numpy as np

from ..errors import SanderlingError
from ..ir import Array, DType, Graph, Op, Tensor
from ..ir.rewrite import CONST, Match, P, Rule, Var
from ..ops.base import OPS
from ..ops.execute import evaluate, new_state
from .common import (
    Fired,
    activation,
    constant,
    has_effects,
    is_static,
    reshape,
    same_quant,
    same_type,
    transpose,
    with_attrs,
)

VIEWS = ("RESHAPE", "SQUEEZE", "EXPAND_DIMS")

# -- constants ----------------------------------------------------------------------------------

# Weights in a form made for storage: expanded whatever their size.
UNPACKS = ("DEQUANTIZE", "DENSIFY")
# Other results are kept in place of their op up to this size, or where they are not larger than
# what they come from: a FILL or TILE is cheaper to run than to store.
FOLD_BYTES = 1 << 18


def fold_constants(graph: Graph) -> Fired:
    """Compute now what depends on constants alone, float16 and sparse weights among it."""
    return _folded(graph, lambda op: True)


def fold_but_weights(graph: Graph) -> Fired:
    """The same, but weights stay as they are stored: a file would grow with them."""
    return _folded(graph, lambda op: op.name not in UNPACKS)


def _folded(graph: Graph, is_wanted: Callable[[Op], bool]) -> Fired:
    fired: Fired = Counter()
    outputs = set(graph.outputs)
    state = new_state()
    for op in list(graph.ops):
        if not is_wanted(op) or not _is_known(op) or outputs.intersection(op.outputs):
            continue
        try:
            results = evaluate(op, [_given(op, t) for t in op.inputs], state)
        except SanderlingError:
            continue  # an error of the run, if it ever comes to that
        for tensor, result in zip(op.outputs, results, strict=True):
            tensor.data, tensor.signature = result, None
        graph.erase(op)
        fired[f"{op.name} of constants"] += 1
    return fired


def _is_known(op: Op) -> bool:
    if op.name not in OPS or op.is_custom or op.subgraphs or has_effects(op) or not op.inputs:
        return False
    if op.name in ("SHAPE", "RANK"):
        return is_static(op.inputs[0])
    if not all(t is None or (t.is_constant and not t.is_variable) for t in op.inputs):
        return False
    if op.name in UNPACKS:
        return True
    stored = sum(t.nbytes for t in op.inputs if t is not None)
    made = sum(t.dtype.nbytes(t.shape) for t in op.outputs)
    return all(t.dtype.is_fixed_size for t in op.outputs) and made <= max(stored, FOLD_BYTES)


def _given(op: Op, tensor: Tensor | None) -> Array | None:
    if tensor is None or tensor.is_constant:
        return constant(tensor)
    # SHAPE and RANK do not look at the values: no memory for them.
    return np.broadcast_to(np.zeros((), tensor.dtype.numpy), tensor.shape)


# -- identities ---------------------------------------------------------------------------------


def _always(op: Op) -> bool:
    return True


def _forwards(op: Op) -> bool:
    """Say whether a slice steps forward: only then one of the input's shape is the input."""
    strides = constant(op.input(3))
    return strides is not None and bool(np.all(strides > 0))


def _permutes_nothing(op: Op) -> bool:
    perm = permutation(op)
    return perm is not None and perm == tuple(range(len(perm)))


def _is_alone(op: Op) -> bool:
    return len(op.inputs) == 1 and activation(op) == "NONE"


# Ops that are their input if that has the output's shape, type and quantisation, by the condition
# that must hold besides.
IDENTITIES: dict[str, Callable[[Op], bool]] = {
    **dict.fromkeys(VIEWS, _always),
    **dict.fromkeys(("PAD", "PADV2", "MIRROR_PAD", "TILE", "BROADCAST_TO", "SLICE"), _always),
    **dict.fromkeys(("CAST", "QUANTIZE"), _always),
    **dict.fromkeys(("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"), _always),
    "STRIDED_SLICE": _forwards,
    "TRANSPOSE": _permutes_nothing,
    "CONCATENATION": _is_alone,
}


def permutation(op: Op) -> tuple[int, ...] | None:
    """The order of a TRANSPOSE if it is constant."""
    perm = constant(op.input(1))
    if perm is None:
        return None
    rank = perm.size
    return tuple(int(p) % rank for p in perm.reshape(-1)) if rank else ()


def _forward(graph: Graph, match: Match) -> Tensor | None:
    x, y = match["x"], match.root.outputs[0]
    return x if is_static(x, y) and same_type(x, y) else None


IDENTITY_RULES = tuple(
    Rule(f"identity {name}", P(name, Var("x"), where=condition), _forward)
    for name, condition in IDENTITIES.items()
)

# The constant that changes nothing; on the right side only where the order matters.
NEUTRAL = {"ADD": 0.0, "SUB": 0.0, "MUL": 1.0, "DIV": 1.0}
COMMUTES = ("ADD", "MUL")


def _forward_neutral(graph: Graph, match: Match) -> Tensor | None:
    op = match.root
    is_float = match["x"].dtype.is_float
    if not is_float or activation(op) != "NONE" or np.any(match["c"].values != NEUTRAL[op.name]):
        return None
    return _forward(graph, match)


def _constant_pattern(name: str, **more: object) -> P:
    return P(name, Var("x"), Var("c", CONST), commutes=name in COMMUTES, **more)  # type: ignore[arg-type]


NEUTRAL_RULES = tuple(
    Rule(f"{name} of {value:g}", _constant_pattern(name), _forward_neutral)
    for name, value in NEUTRAL.items()
)

# -- chains -------------------------------------------------------------------------------------


def _merge_views(graph: Graph, match: Match) -> Op | None:
    x, out = match["x"], match.root.outputs[0]
    return reshape(graph, x, out) if is_static(x, out) else None


def _merge_transposes(graph: Graph, match: Match) -> Op | None:
    x, out = match["x"], match.root.outputs[0]
    first, second = permutation(match.ops["first"]), permutation(match.root)
    if first is None or second is None or not is_static(x, out):
        return None
    return transpose(graph, x, [first[p] for p in second], out)


def moves_only_ones(shape: tuple[int, ...], perm: tuple[int, ...]) -> bool:
    """Say whether the transpose moves axes of one element only: then memory keeps its order."""
    wide = [p for p in perm if shape[p] != 1]
    return wide == sorted(wide)


def _view_transpose(graph: Graph, match: Match) -> Op | None:
    x, out = match["x"], match.root.outputs[0]
    perm = permutation(match.root)
    if perm is None or not is_static(x, out) or not moves_only_ones(x.shape, perm):
        return None
    return reshape(graph, x, out)


# Reductions that give a lone element back.
KEEP_ONE = ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD")
# Of some axes, these begin with the type's finite limit, which is all that is left of a lone NaN.
FROM_LIMIT = ("REDUCE_MAX", "REDUCE_MIN")


def _view_reduction(graph: Graph, match: Match) -> Op | None:
    """Replace a reduction over dimensions of one element by a view."""
    x, out = match["x"], match.root.outputs[0]
    kept = [n for n in x.shape if n != 1] == [n for n in out.shape if n != 1]
    axes = constant(match.root.input(1))
    if not kept or axes is None or not is_static(x, out) or x.dtype is not out.dtype:
        return None
    rank = len(x.shape)
    over = {int(a) % rank for a in axes.reshape(-1)} if rank else set()
    if not same_quant(x, out) or any(x.shape[a] != 1 for a in over):
        return None
    whole = len(over) == rank
    if match.root.name in FROM_LIMIT and x.dtype.is_float and not whole:
        return None
    return reshape(graph, x, out)


def _merge_constants(graph: Graph, match: Match) -> Op | None:
    """Join the constants of (x + a) + b and of (x * a) * b."""
    op, x, out = match.root, match["x"], match.root.outputs[0]
    if x.dtype is not DType.FLOAT32 or activation(match.ops["first"]) != "NONE":
        return None
    a, b = match["a"].values, match["b"].values
    merged = a + b if op.name == "ADD" else a * b
    if not is_static(x, out) or not np.all(np.isfinite(merged)) or merged.size > a.size + b.size:
        return None
    return with_attrs(op, [x, graph.constant(f"{match['b'].name}/merged", merged)], [out])


def _chain(name: str) -> P:
    first = P(name, Var("x"), Var("a", CONST), commutes=True, once=True, bind="first")
    return P(name, first, Var("b", CONST), commutes=True)


def _plain_operator(graph: Graph, match: Match) -> Op | None:
    """x - c as x + -c, x / c as x * (1 / c): one form for other rules, and a cheaper one."""
    op, c = match.root, match["c"].values
    if match["x"].dtype is not DType.FLOAT32:
        return None
    with np.errstate(all="ignore"):
        inverse = -c if op.name == "SUB" else np.reciprocal(c)
    if not np.all(np.isfinite(inverse)) or (op.name == "DIV" and np.any(inverse == 0)):
        return None
    operand = graph.constant(f"{match['c'].name}/inverse", inverse)
    return Op(
        "ADD" if op.name == "SUB" else "MUL",
        [match["x"], operand],
        op.outputs,
        {"fused_activation_function": activation(op)},
    )


def _forward_requantized(graph: Graph, match: Match) -> Tensor | None:
    """Forward codes that were made real and back into the same codes."""
    return _forward(graph, match)


CHAIN_RULES = (
    Rule("views merged", P(VIEWS, P(VIEWS, Var("x"))), _merge_views),
    Rule("transposes merged", P("TRANSPOSE", P("TRANSPOSE", Var("x"), bind="first")),
         _merge_transposes),
    Rule("transpose of ones is a view", P("TRANSPOSE", Var("x")), _view_transpose),
    Rule("reduction of ones is a view", P(KEEP_ONE, Var("x")), _view_reduction),
    Rule("quantize undoes dequantize", P("QUANTIZE", P("DEQUANTIZE", Var("x"))),
         _forward_requantized),
    Rule("constants added", _chain("ADD"), _merge_constants),
    Rule("constants multiplied", _chain("MUL"), _merge_constants),
    Rule("subtraction is addition", _constant_pattern("SUB"), _plain_operator),
    Rule("division is multiplication", _constant_pattern("DIV"), _plain_operator),
)  # fmt: skip

RULES = (*IDENTITY_RULES, *NEUTRAL_RULES, *CHAIN_RULES)

# -- duplicates and dead code -------------------------------------------------------------------

SMALL = 1024  # bytes of a constant that is compared by content


def merge_duplicates(graph: Graph) -> Fired:
    """Make ops of the same name, operands and attributes one."""
    fired: Fired = Counter()
    seen: dict[Hashable, Op] = {}
    outputs = set(graph.outputs)
    keys: dict[Tensor, Hashable] = {}
    for op in list(graph.ops):
        if has_effects(op) or op.subgraphs or outputs.intersection(op.outputs):
            continue
        key = _key(op, keys)
        first = seen.setdefault(key, op) if key is not None else op
        if first is op:
            continue
        for mine, other in zip(op.outputs, first.outputs, strict=True):
            graph.replace_uses(mine, other)
        graph.erase(op)
        fired[f"{op.name} computed before"] += 1
    return fired


def _key(op: Op, keys: dict[Tensor, Hashable]) -> Hashable | None:
    """Equal for ops that compute the same; None if that cannot be told."""
    attrs = tuple((name, _frozen(value)) for name, value in sorted(op.attrs.items()))
    types = tuple((t.dtype, t.shape, _quant_key(t)) for t in op.outputs)
    operands = tuple(None if t is None else _operand_key(t, keys) for t in op.inputs)
    key = (op.name, operands, attrs, types)
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _frozen(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.tobytes()
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _operand_key(tensor: Tensor, keys: dict[Tensor, Hashable]) -> Hashable:
    if tensor not in keys:
        keys[tensor] = _new_key(tensor)
    return keys[tensor]


def _new_key(tensor: Tensor) -> Hashable:
    if tensor.buffer is None or tensor.sparsity is not None or tensor.is_variable:
        return id(tensor)
    small = len(tensor.buffer) <= SMALL and tensor.buffer.external is None
    content = tensor.buffer.raw.tobytes() if small else id(tensor.buffer)
    return tensor.dtype, tensor.shape, content, _quant_key(tensor)


def _quant_key(tensor: Tensor) -> Hashable:
    quant = tensor.quant
    if quant is None or not tensor.dtype.is_integer:
        return None
    block = id(quant.block) if quant.block is not None else None
    return quant.scale.tobytes(), quant.zero_point.tobytes(), quant.axis, block


def remove_dead(graph: Graph) -> Fired:
    """Remove ops whose results nobody reads, and tensors that nothing refers to."""
    fired: Fired = Counter()
    outputs = set(graph.outputs)
    for op in reversed(list(graph.ops)):
        if not has_effects(op) and not any(t.users or t in outputs for t in op.outputs):
            graph.erase(op)
            fired[f"{op.name} is not read"] += 1
    graph.prune()
    return fired

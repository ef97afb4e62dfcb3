"""Which operators are which expressions: the passes that turn them into cpu.MAP and cpu.LUT, and
chains of them into one.

A function of one 8-bit operand is a table of 256 bytes, made by the definition itself.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .....errors import InputError, SanderlingError
from .....ir import Array, DType, Graph, Op, Quant, Shape, Tensor
from .....ir import expr as X
from .....ir.expr import Const, Expr, Input
from .....ops.base import OPS
from .....ops.execute import evaluate, new_state
from ...codegen.program import Kernel, StepEmitter
from ...isa.targets import Target
from .activations import (
    bounded,
    conversion,
    dequantize,
    elu,
    fake_quant,
    flip,
    gelu,
    hard_swish,
    leaky_relu,
    prelu,
    quantize,
    unary,
)
from .arithmetic import (
    add_n,
    atan2,
    bitwise_xor,
    choose,
    compare,
    div,
    extreme,
    floor_div,
    floor_mod,
    logical,
    mul,
    plus,
    power,
    right_shift,
    squared_difference,
)
from .lut import emit_lut, fast_lut
from .maps import emit_map, rebuild
from .operands import (
    BYTES,
    MOST_INPUTS,
    Lowered,
    Refused,
    larger,
    need,
    smaller,
    tensor_at,
)

# -- the table ----------------------------------------------------------------------------------

EXPRESSIONS: dict[str, Callable[[Op], Expr | Lowered]] = {
    "ADD": plus(+1),
    "SUB": plus(-1),
    "MUL": mul,
    "DIV": div,
    "SQUARED_DIFFERENCE": squared_difference,
    "MAXIMUM": extreme(larger),
    "MINIMUM": extreme(smaller),
    "FLOOR_DIV": floor_div,
    "FLOOR_MOD": floor_mod,
    "POW": power,
    "ATAN2": atan2,
    "ADD_N": add_n,
    "EQUAL": compare("equal", False),
    "NOT_EQUAL": compare("not_equal", False),
    "LESS": compare("less", True),
    "LESS_EQUAL": compare("less_equal", True),
    "GREATER": compare("greater", True),
    "GREATER_EQUAL": compare("greater_equal", True),
    "LOGICAL_AND": logical("and"),
    "LOGICAL_OR": logical("or"),
    "LOGICAL_NOT": logical("not"),
    "BITWISE_XOR": bitwise_xor,
    "RIGHT_SHIFT": right_shift,
    "SELECT": choose,
    "SELECT_V2": choose,
    "RELU": bounded(0, np.inf),
    "RELU6": bounded(0, 6),
    "RELU_N1_TO_1": bounded(-1, 1),
    "RELU_0_TO_1": bounded(0, 1),
    "LEAKY_RELU": leaky_relu,
    "PRELU": prelu,
    "ELU": unary(elu),
    "HARD_SWISH": unary(hard_swish),
    "GELU": gelu,
    "LOGISTIC": unary(X.logistic),
    "TANH": unary(X.tanh),
    "EXP": unary(X.exp),
    "LOG": unary(X.log),
    "SQRT": unary(X.sqrt),
    "RSQRT": unary(X.rsqrt),
    "SQUARE": unary(lambda x: x * x),
    "ABS": unary(abs),
    "NEG": unary(lambda x: -x),
    "SIN": unary(X.sin),
    "COS": unary(X.cos),
    "FLOOR": unary(X.floor),
    "CEIL": unary(X.ceil),
    "ROUND": unary(X.round_even),
    "SIGN": unary(X.sign),
    "FAKE_QUANT": fake_quant,
    "CAST": conversion,
    "QUANTIZE": quantize,
    "DEQUANTIZE": dequantize,
    "cpu.FLIP": flip,
}
# Functions of one 8-bit operand: a table each. The cheap ones have expressions, too, which are
# faster where looking up is not a matter of a few instructions.
TABLES = ("LOGISTIC", "TANH", "HARD_SWISH", "GELU", "EXP", "LOG", "SQRT", "RSQRT", "ABS", "NEG",
          "ELU")  # fmt: skip
CHEAP = ("LEAKY_RELU", "RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "QUANTIZE")


def is_byte_function(op: Op) -> bool:
    x = op.input(0)
    return (op.name in (*TABLES, *CHEAP) and x is not None and x.dtype in BYTES
            and op.outputs[0].dtype in BYTES)  # fmt: skip


def table(op: Op) -> Array:
    """The result for every byte, by the op's own definition."""
    x, out = (_signed_twin(op, t) for t in (op.inputs[0], op.outputs[0]))
    every: Array = np.arange(256, dtype=np.uint8)
    shift = np.uint8(0 if x.dtype is tensor_at(op, 0).dtype else 128)
    found = _defined(op.copy([x], [out]), (every ^ shift).view(x.dtype.numpy))
    back = np.uint8(0 if out.dtype is op.outputs[0].dtype else 128)
    made: Array = found.view(np.uint8) ^ back
    return made


def _defined(op: Op, codes: Array) -> Array:
    try:
        return evaluate(op, [codes], new_state())[0]
    except SanderlingError as error:
        raise Refused(f"it is not defined for every code: {error.what}") from error


def _signed_twin(op: Op, tensor: Tensor | None) -> Tensor:
    """The tensor as int8, where the definition takes that: unify_bytes may have moved it."""
    assert tensor is not None
    dtype, q = tensor.dtype, tensor.quant
    need(q is None or q.scale.size == 1, "a tensor is not quantised as a whole")
    if dtype is DType.UINT8 and q is not None and "i8" in OPS[op.name].types:
        dtype, q = DType.INT8, Quant(q.scale, q.zero_point - 128, q.axis)
    return Tensor(tensor.name, dtype, (256,), quant=q)


def lower(op: Op, target: Target) -> Op:
    """The op as cpu.MAP or cpu.LUT."""
    if is_byte_function(op):
        values = table(op)
        if op.name in TABLES or fast_lut(target) or not _is_right(op, values):
            return Op("cpu.LUT", op.inputs[:1], op.outputs, {"table": values})
    try:
        found = EXPRESSIONS[op.name](op)
    except InputError as error:
        raise Refused(f"its operands do not fit together: {error.what}") from error
    if isinstance(found, Expr):
        found = Lowered(list(op.inputs), found)
    return found.op(op.outputs)


def _is_right(op: Op, values: Array) -> bool:
    """Whether a cheap function's expression agrees with its definition for every byte."""
    found = EXPRESSIONS[op.name](op)
    every = np.arange(256, dtype=np.uint8).view(tensor_at(op, 0).dtype.numpy)
    return isinstance(found, Expr) and np.array_equal(
        X.evaluate(found, [every]).view(np.uint8), values)  # fmt: skip


def refuses(op: Op, target: Target) -> str | None:
    main = op.input(OPS[op.name].main) if op.name in OPS else None
    if main is not None and main.dtype.short not in OPS[op.name].types:
        return f"type {main.dtype.short} is not defined for it"
    try:
        lower(op, target)
    except Refused as reason:
        return str(reason)
    except SanderlingError as error:
        return f"it cannot be evaluated: {error.what}"
    return None


def emit_op(k: StepEmitter, op: Op) -> None:
    """An op that no pass has lowered."""
    lowered = lower(op, k.target)
    (emit_lut if lowered.name == "cpu.LUT" else emit_map)(k, lowered)


# -- passes -------------------------------------------------------------------------------------


def lower_elementwise(graph: Graph, target: Target) -> None:
    """Elementwise operators become maps and tables."""
    for op in list(graph.ops):
        if op.name in EXPRESSIONS:
            graph.insert(lower(op, target), before=op)
            graph.erase(op)


# A fused expression may have so many operators: beyond, registers spill.
MOST_NODES = 150


def fuse_chains(graph: Graph, target: Target) -> None:
    """A map whose result only one other map reads, element by element, becomes part of that; a flip
    at the border becomes part of a table."""
    for op in list(graph.ops):
        if op.name == "cpu.LUT":
            _fuse_flips(graph, op)
        if op.name != "cpu.MAP" or op not in graph.ops:
            continue
        while (producer := _fusable(graph, op)) is not None:
            op = _fuse(graph, producer, op)


def _fusable(graph: Graph, op: Op) -> Op | None:
    for tensor in op.inputs:
        producer = None if tensor is None else tensor.producer
        if producer is None or producer.name != "cpu.MAP" or tensor in graph.outputs:
            continue
        alone = tensor is not None and all(user is op for user in tensor.users)
        same = tensor is not None and _trimmed(tensor.shape) == _trimmed(op.outputs[0].shape)
        plain = "shapes" not in op.attrs and "shapes" not in producer.attrs
        inputs = len({*producer.inputs, *op.inputs}) - 1
        nodes = sum(1 for e in (producer, op) for _ in X.walk(e.attrs["expr"]))
        if alone and same and plain and inputs <= MOST_INPUTS and nodes <= MOST_NODES:
            return producer
    return None


def _fuse_flips(graph: Graph, op: Op) -> None:
    source, result = op.inputs[0], op.outputs[0]
    before = None if source is None else source.producer
    if before is not None and source is not None and _is_flip(before) and len(source.users) == 1:
        op.attrs["table"] = op.attrs["table"][np.arange(256) ^ 128]
        graph.set_input(op, 0, before.inputs[0])
        graph.erase(before)
    after = result.users[0] if len(result.users) == 1 and result not in graph.outputs else None
    if after is not None and _is_flip(after):
        flipped = op.attrs["table"] ^ np.uint8(128)
        new = Op("cpu.LUT", op.inputs, after.outputs, {"table": flipped})
        graph.insert(new, before=op)
        graph.erase(after)
        graph.erase(op)


def _is_flip(op: Op) -> bool:
    source = op.inputs[0]
    if op.name != "cpu.MAP" or len(op.inputs) != 1 or source is None or source.dtype not in BYTES:
        return False
    return op.attrs["expr"] is flip(op)


def _trimmed(shape: Shape) -> Shape:
    """Without leading ones, which broadcasting ignores."""
    first = next((i for i, n in enumerate(shape) if n != 1), len(shape))
    return shape[first:]


def _fuse(graph: Graph, producer: Op, op: Op) -> Op:
    tensor = producer.outputs[0]
    inputs = list(dict.fromkeys(t for t in (*producer.inputs, *op.inputs) if t is not tensor))
    place = {t: i for i, t in enumerate(inputs)}

    def numbered(source: Op) -> Callable[[Expr], Expr]:
        def leaf(node: Expr) -> Expr:
            if node.op != "input":
                return node
            read = source.inputs[node.value]
            return inner if read is tensor else Input(place[read], node.dtype)

        return leaf

    inner = Const(0, tensor.dtype)
    inner = _unclamped(rebuild(producer.attrs["expr"], numbered(producer)))
    expr = X.simplify(rebuild(op.attrs["expr"], numbered(op)))
    fused = Op("cpu.MAP", inputs, op.outputs, {"expr": expr})
    graph.insert(fused, before=op)
    graph.erase(op)
    graph.erase(producer)
    return fused


def _unclamped(expr: Expr) -> Expr:
    """Without the clamp to finite numbers, which in the middle of a chain costs more than it says:
    only sums that overflow would tell the difference."""
    most = float(np.finfo(np.float32).max)
    for name, end in (("minimum", most), ("maximum", -most)):
        if expr.op == name and expr.args[1].is_const and expr.args[1].value == end:
            expr = expr.args[0]
    return expr


KERNELS = {name: Kernel(emit_op, refuses) for name in EXPRESSIONS if not name.startswith("cpu.")}
KERNELS["cpu.LUT"] = Kernel(emit_lut, name=lambda op: "lut")

"""State and branches.

Variables (runtime/resources.py) are the caller's arrays: a read is a copy, or nothing where all who
look at it are done before the variable is assigned (placement.py); an assignment is a copy.

An IF of pure branches becomes their ops, each under a guard (dialect/guards.py): `run` passes over
the step unless all its conditions hold. The branches are prepared apart from what surrounds them,
so that no pass joins ops of different guards. A cpu.MERGE gives the result of the
branch that ran its name; both branches write it in place where that can be.

A composite is what its decomposition is, from the first pass on, and a STABLEHLO_CASE is nested
IFs: is the index 0, is it 1, ..., else the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ....errors import SanderlingError
from ....ir import DType, Graph, Op, Tensor, reachable
from ....ir.graph import copy_graph
from ....ops.base import attr
from ....passes.common import has_effects, same_quant
from ....passes.simplify import fold_constants
from ....runtime.specialise import specialise
from ..codegen.emit import I8, Int, Type, Value, vector
from ..codegen.program import StepEmitter
from ..isa.targets import Target
from .row import Ask, Kernel, Shared, emit_never

COMPOSITE, DECOMPOSITION = "STABLEHLO_COMPOSITE", "decomposition_subgraph_index"
CASE = "STABLEHLO_CASE"
# Each branch of a case is one more level of nested IFs, and all levels are looked at on each.
MOST_CASES = 16
# Code is written for each op of a graph at each place that calls it. Nested calls of the same
# graphs would be millions of ops: this many copies of each, and a few whatever the graphs are.
MOST_COPIES, ALWAYS_INLINED = 8, 128
# The branches of an IF by the condition under which they run.
BRANCHES = ((True, "then_subgraph_index"), (False, "else_subgraph_index"))


# -- copies -------------------------------------------------------------------------------------


def copy_bytes(k: StepEmitter, target: Value, source: Value, size: int, flip: bool) -> None:
    """This worker's share of a copy; flip: between int8 and uint8, which is the top bit. Nothing is
    touched past the end."""
    width = k.target.width
    whole = size // width
    if whole > 8:
        begin, end = k.share(whole)
        with k.loop(begin, end) as i:
            _copy_piece(k, target, source, k.mul(i, width), vector(I8, width), flip)
        done = whole * width
    else:
        done = 0
    first, last = k.share(1)
    with k.loop(first, last):
        for place, t in _pieces(done, size, width):
            _copy_piece(k, target, source, place, t, flip)


def _pieces(begin: int, end: int, width: int) -> Iterator[tuple[int, Type]]:
    """Vectors, ever shorter, that cover the bytes; the last may reach back over others."""
    at = begin
    while at < end:
        while width > end - at:
            if width > 16 and end - at > width // 2 and end - begin >= width:
                at = end - width
                break
            width //= 2
        yield at, vector(I8, width) if width > 1 else I8
        at += width


def _copy_piece(
    k: StepEmitter, target: Value, source: Value, place: Int, t: Type, flip: bool
) -> None:
    value = k.load(k.at(source, place, I8), t)
    if flip:
        value = k.b.xor(value, k.const(t, -128))
    k.store(value, k.at(target, place, I8))


def _emit_copy(k: StepEmitter, x: Tensor, y: Tensor) -> None:
    source, target = k.ptr(x), k.ptr(y)
    copy_bytes(k, target, source, y.nbytes, x.dtype is not y.dtype)


def emit_read(k: StepEmitter, op: Op) -> None:
    """Also cpu.COPY: of what two branches would else share."""
    _emit_copy(k, op.operand(0), op.outputs[0])


def emit_assign(k: StepEmitter, op: Op) -> None:
    _emit_copy(k, op.operand(1), op.operand(0))


def refuses_variable(op: Op, target: Target) -> str | None:
    variable = op.inputs[0]
    if variable is None or not variable.is_variable:
        return "the graph does not show which variable it is, or of which shape"
    return None


# -- branches -----------------------------------------------------------------------------------


def bound(branch: Graph, args: Sequence[Tensor | None]) -> tuple[Graph, list[Tensor]]:
    """The branch at these arguments' shapes, constants among them put in; and the arguments that
    its inputs are."""
    own, twins = copy_graph(branch, branch.ops, branch.inputs, branch.outputs)
    given: list[Tensor] = []
    inputs = []
    for tensor, arg in zip([twins[t] for t in branch.inputs], args, strict=True):
        assert arg is not None
        if arg.is_constant:
            tensor.shape, tensor.signature = arg.shape, None
            tensor.buffer, tensor.sparsity = arg.buffer, arg.sparsity
        else:
            inputs.append(tensor)
            given.append(arg)
    own.inputs = inputs
    made, _ = specialise(own, [t.shape for t in given])
    fold_constants(made)
    return made, given


def refuses_if(op: Op, target: Target) -> str | None:
    condition = op.inputs[0]
    if condition is None or condition.dtype is not DType.BOOL or math.prod(condition.shape) != 1:
        return "its condition is not one bool"
    return None


def refuses_branches(op: Op, ask: Ask) -> str | None:
    said = (_refuses_call(op, name, op.inputs[1:], ask) for _, name in BRANCHES)
    return next(filter(None, said), None)


def refuses_composite(op: Op, ask: Ask) -> str | None:
    return _refuses_call(op, DECOMPOSITION, op.inputs, ask)


def _refuses_call(op: Op, name: str, args: Sequence[Tensor | None], ask: Ask) -> str | None:
    size, own = inlined_size(op)
    if size > ALWAYS_INLINED + MOST_COPIES * own:
        return f"the {own} ops of the graphs that it calls would be {size} in its place"
    try:
        branch, given = bound(op.attrs[name], args)
    except (SanderlingError, AssertionError, ValueError, KeyError, AttributeError) as error:
        return f"a graph that it calls does not fit its arguments: {error}"
    if not all(same_quant(t, arg) for t, arg in zip(branch.inputs, given, strict=True) if t.users):
        return f"graph '{branch.name}' sees its arguments under other scales"
    said = _refuses_graph(branch, op, ask)
    return None if said is None else f"in graph '{branch.name}': {said}"


def inlined_size(op: Op) -> tuple[int, int]:
    """The ops that stand in the place of this one when all calls below it are put in place, and
    those of the graphs themselves."""
    size: dict[Graph, int] = {}

    def steps(op: Op) -> int:
        return sum((size.get(g, 0) for g in op.subgraphs), 1)

    for graph in reachable(op.subgraphs):
        size[graph] = sum(map(steps, graph.ops))
    return steps(op), sum(len(graph.ops) for graph in size)


def _refuses_graph(branch: Graph, op: Op, ask: Ask) -> str | None:
    for inner in branch.ops:
        state = has_effects(inner) and inner.name not in ("IF", COMPOSITE, CASE)
        said = "it has a state" if state else ask(inner)
        if said is not None:
            return f"{inner.where}: {said}"
    for mine, theirs in zip(branch.outputs, op.outputs, strict=True):
        if mine.dtype is not theirs.dtype or mine.shape != theirs.shape:
            return f"its result is {mine.type_text}, not {theirs.type_text}"
    return None


def as_branches(op: Op) -> list[Op] | None:
    """A STABLEHLO_CASE as an IF, and what makes its condition."""
    graphs: list[Graph] = attr(op, "branch_subgraph_indices")
    if not 0 < len(graphs) <= MOST_CASES:
        return None
    return _choice(graphs, 0, [op.operand(i) for i in range(len(op.inputs))], op.outputs)


def _choice(
    graphs: Sequence[Graph], number: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> list[Op]:
    """The first of the graphs if the index, inputs[0], is this number; else one of the others."""
    others = graphs[1:] or graphs
    name = f"{graphs[0].name}/{number}"
    wanted = Tensor(name, DType.INT32, (), data=np.array(number, np.int32))
    chosen = Tensor(f"{name}/chosen", DType.BOOL, inputs[0].shape)
    rest = _choice if len(others) > 1 else _call
    attrs = {
        "then_subgraph_index": _around(_call, graphs[:1], number, inputs, outputs),
        "else_subgraph_index": _around(rest, others, number + 1, inputs, outputs),
    }
    return [
        Op("EQUAL", [inputs[0], wanted], [chosen]),
        Op("IF", [chosen, *inputs], outputs, attrs),
    ]


def _call(
    graphs: Sequence[Graph], number: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> list[Op]:
    """The graph on all inputs but the index."""
    return [Op(COMPOSITE, inputs[1:], outputs, {DECOMPOSITION: graphs[0]})]


def _around(
    make: Callable[..., list[Op]],
    graphs: Sequence[Graph],
    number: int,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
) -> Graph:
    """A graph with such inputs and outputs, and the ops that are made between them."""
    found = Graph(f"{graphs[0].name}/{number}")
    own = [found.input(t.name, t.dtype, t.shape, quant=t.quant) for t in inputs]
    found.outputs = [found.tensor(t.name, t.dtype, t.shape, quant=t.quant) for t in outputs]
    for op in make(graphs, number, own, found.outputs):
        found.insert(op)
    return found


def lies_with_variable(op: Op) -> list[Shared]:
    return [Shared(op.operand(0))]


def lies_with_branches(op: Op) -> list[Shared]:
    """Both branches write the result itself."""
    condition = op.operand(0)
    return [Shared(op.operand(1), (condition, True)), Shared(op.operand(2), (condition, False))]


def emit_merge(k: StepEmitter, op: Op) -> None:
    """Copies what does not lie in place."""
    y = op.outputs[0]
    holds = k.b.icmp_signed("!=", k.load(k.ptr(op.operand(0)), I8), I8(0))
    for polarity, x in zip((True, False), op.inputs[1:], strict=True):
        if x is not None and k.program.places.get(x) != k.program.places[y]:
            source, target = k.ptr(x), k.ptr(y)
            with k.when(holds if polarity else k.b.not_(holds)):
                copy_bytes(k, target, source, y.nbytes, False)


KERNELS = {
    "READ_VARIABLE": Kernel(
        emit_read, refuses_variable, lies_with=lies_with_variable, copies_state=True
    ),
    "ASSIGN_VARIABLE": Kernel(emit_assign, refuses_variable, copies_state=True),
    "IF": Kernel(emit_never, refuses_if, inner=refuses_branches, plain_codes=True),
    COMPOSITE: Kernel(emit_never, inner=refuses_composite),
    CASE: Kernel(emit_never, becomes=as_branches),
    "cpu.COPY": Kernel(emit_read),
    "cpu.MERGE": Kernel(emit_merge, lies_with=lies_with_branches),
}

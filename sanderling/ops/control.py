"""Control flow and variables: operators that call graphs, and what outlives a run."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextvars import ContextVar

import numpy as np

from ..errors import ModelError, UnsupportedError
from ..ir import Array, DType, Graph, Op, Tensor, reachable
from .base import (
    ANYTHING,
    FOLD_ELEMENTS,
    OPS,
    Arrays,
    Spec,
    Specs,
    State,
    attr,
    cost,
    define,
    given,
    infer,
    on,
    operand,
    out_spec,
    require,
    scalar,
    unfit,
)
from .execute import execute

# -- shapes through a graph ---------------------------------------------------------------------


def _infer_graph(graph: Graph, inputs: Sequence[Spec]) -> list[Spec]:
    """What is known of a graph's outputs, given its inputs."""
    known: dict[Tensor, Spec] = dict(zip(graph.inputs, inputs, strict=True))

    def spec(tensor: Tensor) -> Spec:
        found = known.get(tensor)
        if found is None and tensor.is_constant:
            found = known[tensor] = Spec(tensor.dtype, tensor.shape, tensor.data)
        if found is None:  # a variable keeps its shape; nothing is known of anything else
            found = Spec(tensor.dtype, tensor.shape if tensor.is_variable else None)
        return found

    for op in graph.ops:
        try:
            specs = infer(op, [None if t is None else spec(t) for t in op.inputs])
        except UnsupportedError:  # inference need not know what evaluation will refuse
            specs = [Spec(t.dtype, None) for t in op.outputs]
        known.update(zip(op.outputs, specs, strict=True))
    return [spec(t) for t in graph.outputs]


class _Calls:
    """What one outermost call has inferred: a graph once for the same specs, however many calls
    lead to it, or the work would double with each level of nesting."""

    def __init__(self) -> None:
        self.known: dict[Hashable, tuple[Sequence[Spec], list[Spec]]] = {}
        self.ops = 0

    def infer(self, op: Op, graph: Graph, specs: Sequence[Spec]) -> list[Spec]:
        key = graph, tuple(map(_spec_key, specs))
        if key not in self.known:
            self.ops += len(graph.ops)
            if self.ops > MOST_INFERRED:
                raise ModelError(
                    f"the graphs that it calls come to more than {MOST_INFERRED} ops",
                    where=op.where,
                    fix="call them with the same shapes, or at fewer places",
                )
            # The specs are kept: a key may hold the identity of a value.
            self.known[key] = specs, _infer_graph(graph, specs)
        return self.known[key][1]


# Ops of called graphs that one call may lead to, each counted once for all specs it is seen with.
MOST_INFERRED = 1 << 16
_calls: ContextVar[_Calls | None] = ContextVar("calls", default=None)


def _spec_key(spec: Spec) -> Hashable:
    """Small values by what they are, for they are computed anew; large ones are the file's own."""
    value = spec.value
    if value is None or value.size > FOLD_ELEMENTS or value.dtype == object:
        return spec.dtype, spec.shape, id(value)
    return spec.dtype, spec.shape, value.tobytes()


def _infer_call(op: Op, graph: Graph, args: Specs) -> list[Spec]:
    """Inference of a call, with counts and types checked: the graph's own shapes do not count."""
    _check_count(op, graph, len(args))
    _check_outputs(op, graph)
    given = [operand(op, args, i) for i in range(len(args))]
    _check_types(op, f"an input of graph '{graph.name}'", graph.inputs, given)
    _check_types(op, f"an output of graph '{graph.name}'", graph.outputs, op.outputs)
    calls = _calls.get() or _Calls()
    token = _calls.set(calls)
    try:
        return calls.infer(op, graph, given)
    except RecursionError:
        raise _endless(op) from None
    finally:
        _calls.reset(token)


def _check_count(op: Op, graph: Graph, count: int) -> None:
    takes = len(graph.inputs)
    if count != takes:
        raise unfit(op, f"{count} values for graph '{graph.name}', which takes {takes}")


def _check_outputs(op: Op, graph: Graph) -> None:
    gives, wants = len(graph.outputs), len(op.outputs)
    if gives != wants:
        raise unfit(op, f"graph '{graph.name}' gives {gives} values for {wants} outputs")


def _check_types(
    op: Op, what: str, inside: Sequence[Tensor], outside: Sequence[Spec | Tensor]
) -> None:
    for tensor, other in zip(inside, outside, strict=True):
        require(
            tensor.dtype is other.dtype,
            op,
            f"'{tensor.name}', {what}, is {tensor.dtype.short}, outside it is {other.dtype.short}",
            "a graph takes and gives what the operator that calls it takes and gives",
        )


def _endless(op: Op) -> ModelError:
    return ModelError(
        "graphs call each other without end, or too deeply",
        where=op.where,
        fix="a graph must not call itself, directly or through others",
    )


def _graph(op: Op, name: str) -> Graph:
    found = attr(op, name)
    require(isinstance(found, Graph), op, f"attribute {name} names no graph")
    return found


def _call(op: Op, graph: Graph, args: Arrays, state: State) -> list[Array]:
    _check_count(op, graph, len(args))
    return _called(op, graph, given(op, args), state)


def _called(op: Op, graph: Graph, args: Sequence[Array], state: State) -> list[Array]:
    try:
        return state.call(graph, args)
    except RecursionError:
        raise _endless(op) from None


# -- branches -----------------------------------------------------------------------------------


def _branches(op: Op) -> list[Graph]:
    """The graphs an operator chooses from, in the order of the choice's value."""
    if op.name == "IF":
        return [_graph(op, "else_subgraph_index"), _graph(op, "then_subgraph_index")]
    graphs = attr(op, "branch_subgraph_indices") or []
    require(bool(graphs) and all(isinstance(g, Graph) for g in graphs), op, "it has no branches")
    return list(graphs)


def _infer_branches(op: Op, specs: Specs) -> list[Spec]:
    """A shape is known where all branches agree on it."""
    each = [_infer_call(op, graph, specs[1:]) for graph in _branches(op)]
    return [
        out_spec(op, _agreed(found), index) for index, found in enumerate(zip(*each, strict=True))
    ]


def _agreed(specs: Sequence[Spec]) -> tuple[int, ...] | None:
    shapes = {s.shape for s in specs}
    return shapes.pop() if len(shapes) == 1 else None


def _branch(op: Op, inputs: Arrays, state: State) -> list[Array]:
    return _chooser(op, inputs)(inputs, state)


def _chooser(op: Op, inputs: Arrays) -> Callable[[Arrays, State], list[Array]]:
    """prepare: the branches, all of which fit."""
    graphs = _branches(op)
    for graph in graphs:
        _check_outputs(op, graph)
        _check_count(op, graph, len(inputs) - 1)

    def run(inputs: Arrays, state: State) -> list[Array]:
        choice, *args = given(op, inputs)
        index = int(choice.item() if choice.size == 1 else scalar(op, choice, "the choice"))
        # STABLEHLO_CASE: an index outside means the last branch.
        graph = graphs[index] if 0 <= index < len(graphs) else graphs[-1]
        return _called(op, graph, args, state)

    return run


# -- loops --------------------------------------------------------------------------------------


def _infer_while(op: Op, specs: Specs) -> list[Spec]:
    """A shape is known if the body, given it, gives it back.

    Starts from the inputs' shapes and forgets each that the body changes, until nothing changes.
    """
    body = _graph(op, "body_subgraph_index")
    given = [operand(op, specs, i) for i in range(len(specs))]
    _check_condition(op, given)
    require(len(op.outputs) == len(given), op, f"{len(op.outputs)} outputs, {len(given)} inputs")
    shapes = [s.shape for s in given]
    while True:
        found = _infer_call(
            op, body, [Spec(g.dtype, s) for g, s in zip(given, shapes, strict=True)]
        )
        kept = [s if f.shape == s else None for s, f in zip(shapes, found, strict=True)]
        if kept == shapes:
            return [Spec(g.dtype, s) for g, s in zip(given, shapes, strict=True)]
        shapes = kept


def _check_condition(op: Op, given: Sequence[Spec]) -> None:
    condition = _graph(op, "cond_subgraph_index")
    _check_count(op, condition, len(given))
    _check_types(op, f"an input of graph '{condition.name}'", condition.inputs, given)
    gives = [t.dtype.short for t in condition.outputs]
    require(gives == ["bool"], op, f"the condition gives {', '.join(gives)}", "it gives one bool")


def _while(op: Op, inputs: Arrays, state: State) -> list[Array]:
    return _looper(op, inputs)(inputs, state)


def _looper(op: Op, inputs: Arrays) -> Callable[[Arrays, State], list[Array]]:
    """prepare: the condition and the body, which fit."""
    condition, body = _graph(op, "cond_subgraph_index"), _graph(op, "body_subgraph_index")
    _check_outputs(op, body)
    for graph in (condition, body):
        _check_count(op, graph, len(inputs))
    gives = len(condition.outputs)
    require(gives == 1, op, f"the condition gives {gives} values, not one")

    def run(inputs: Arrays, state: State) -> list[Array]:
        values = given(op, inputs)
        try:
            found = state.loop(condition, body, values)
        except RecursionError:
            raise _endless(op) from None
        if found is not None:
            return found
        while scalar(op, _called(op, condition, values, state)[0], "the condition"):
            values = _called(op, body, values, state)
        return values

    return run


# -- calls --------------------------------------------------------------------------------------


def _infer_composite(op: Op, specs: Specs) -> list[Spec]:
    found = _infer_call(op, _graph(op, "decomposition_subgraph_index"), specs)
    return [out_spec(op, s.shape, i, s.value) for i, s in enumerate(found)]


def _composite(op: Op, inputs: Arrays, state: State) -> list[Array]:
    graph = _graph(op, "decomposition_subgraph_index")
    _check_outputs(op, graph)
    return _call(op, graph, inputs, state)


def _infer_call_once(op: Op, specs: Specs) -> list[Spec]:
    _check_count(op, _graph(op, "init_subgraph_index"), 0)
    return []


def _call_once(op: Op, state: State) -> list[Array]:
    """It runs once, so it is not worth planning and compiling: the definitions do."""
    graph = _graph(op, "init_subgraph_index")
    if id(graph) not in state.called_once:
        _check_count(op, graph, 0)
        try:
            execute(graph, [], state)
        except RecursionError:
            raise _endless(op) from None
        state.called_once.add(id(graph))
    return []


def _macs(op: Op) -> int:
    """The costliest branch; a loop counts once, for nobody knows how often it runs."""
    found: dict[Graph, int] = {}
    for graph in reachable(op.subgraphs):
        found[graph] = sum(_inner_macs(inner, found) for inner in graph.ops)
    return max((found[graph] for graph in op.subgraphs), default=0)


def _inner_macs(op: Op, found: Mapping[Graph, int]) -> int:
    row = OPS.get(op.name)
    if row is not None and row.macs is _macs:
        return max((found.get(graph, 0) for graph in op.subgraphs), default=0)
    return cost(op).macs


# -- variables ----------------------------------------------------------------------------------


def handle(key: object, shape: tuple[int, ...] = ()) -> Array:
    """A RESOURCE tensor's value: an object array that holds the key."""
    box = np.empty(shape, np.object_)
    box.fill(key)
    return box


def resource_key(op: Op, handle: Array) -> object:
    """The key in a handle: a resource, or an int32 in models made before resources."""
    if handle.size != 1:
        scalar(op, handle, "the resource")  # says what is wrong
    key: object = handle.item()
    return key if handle.dtype == object else ("", key)


def variable_name(op: Op) -> tuple[str, str]:
    """The resource that a VAR_HANDLE names."""
    return attr(op, "container") or "", attr(op, "shared_name") or ""


def _var_handle(op: Op, state: State) -> Array:
    return handle(variable_name(op))


def _infer_read(op: Op, specs: Specs) -> Spec:
    if _is_tensor(op):
        variable = operand(op, specs)
        return Spec(variable.dtype, variable.shape)
    return out_spec(op, _stated(op))


def _stated(op: Op) -> tuple[int, ...] | None:
    """The graph states a variable's shape; no sizes mean a scalar only where it says so."""
    out = op.outputs[0]
    return out.shape if not out.is_dynamic and (out.shape or out.has_rank) else None


def _infer_assign(op: Op, specs: Specs) -> list[Spec]:
    variable, value = operand(op, specs), operand(op, specs, 1)
    if _is_tensor(op):
        fits = variable.shape == value.shape and variable.dtype is value.dtype
        require(
            fits,
            op,
            f"it assigns {value.dtype.short}{value.shape} to a variable of "
            f"{variable.dtype.short}{variable.shape}",
        )
    return []


def held(op: Op, key: object, state: State, shape: tuple[int, ...] | None = None) -> Array:
    """The array that a READ_VARIABLE reads, if it holds what the op says."""
    require(
        key in state.variables,
        op,
        f"variable {key} is read before it is assigned",
        "run the signature or graph that initialises it first",
    )
    found: Array = state.variables[key]
    require(
        found.dtype == op.outputs[0].dtype.numpy,
        op,
        f"variable {key} holds {DType.of(found.dtype).short}, the output is "
        f"{op.outputs[0].dtype.short}",
    )
    require(
        shape is None or found.shape == shape,
        op,
        f"variable {key} has shape {list(found.shape)}, the output {list(shape or ())}",
    )
    return found


def _is_tensor(op: Op) -> bool:
    """A plan has put a variable tensor in the place of the handle (runtime/resources.py)."""
    return op.inputs[0] is not None and op.inputs[0].is_variable


def _read(op: Op, variable: Array, state: State) -> Array:
    if _is_tensor(op):
        return variable.copy()
    return np.array(held(op, resource_key(op, variable), state, _stated(op)))


def _assign(op: Op, inputs: Arrays, state: State) -> list[Array]:
    variable, value = given(op, inputs)
    found = variable if _is_tensor(op) else state.variables.get(resource_key(op, variable))
    if found is not None and found.shape == value.shape and found.dtype == value.dtype:
        found[...] = value
    else:
        state.variables[resource_key(op, variable)] = value.copy()
        state.version += 1
    return []


# -- rows ---------------------------------------------------------------------------------------

define(
    "IF",
    infer=_infer_branches,
    evaluate=_branch,
    prepare=_chooser,
    family="control",
    takes="condition: bool, values*: any -> results*: any",
    macs=_macs,
    stateful=True,
)
define(
    "STABLEHLO_CASE",
    infer=_infer_branches,
    evaluate=_branch,
    prepare=_chooser,
    family="control",
    takes="index: i32, values*: any -> results*: any",
    macs=_macs,
    stateful=True,
    notes="an index outside the branches means the last",
)
define(
    "WHILE",
    infer=_infer_while,
    evaluate=_while,
    prepare=_looper,
    family="control",
    takes=ANYTHING,
    macs=_macs,
    stateful=True,
    notes="shapes may change between iterations",
)
define(
    "STABLEHLO_COMPOSITE",
    infer=_infer_composite,
    evaluate=_composite,
    family="control",
    takes=ANYTHING,
    macs=_macs,
    stateful=True,
    notes="runs the decomposition",
)
define(
    "CALL_ONCE",
    infer=_infer_call_once,
    evaluate=on(_call_once),
    family="control",
    takes="->",
    macs=_macs,
    stateful=True,
)
define(
    "VAR_HANDLE",
    infer=lambda op, specs: out_spec(op, ()),
    evaluate=on(_var_handle),
    family="control",
    takes="-> resource",
    stateful=True,
)
# In a plan the handle may be a variable tensor, of any type.
define(
    "READ_VARIABLE",
    infer=_infer_read,
    evaluate=on(_read),
    family="control",
    takes="handle: resource i32 -> any | x!: any -> x",
    stateful=True,
    notes="the handle is a resource or an i32",
)
define(
    "ASSIGN_VARIABLE",
    infer=_infer_assign,
    evaluate=_assign,
    family="control",
    takes="handle: resource i32, value: any -> | x!: any, value: x ->",
    stateful=True,
    notes="the handle is a resource or an i32",
)

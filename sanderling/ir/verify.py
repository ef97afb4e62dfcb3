"""Legality of a graph as a table of rules.

A pass that depends on something writes it here as a rule, not as folklore. Every rule looks at
one thing only, so that a broken graph is reported once, by the rule that names the cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..errors import ModelError
from .graph import Graph, Model, Op, Signature, Tensor, reachable, tensors_there
from .types import Quant


class Problem(NamedTuple):
    where: str
    what: str
    fix: str
    rule: str = ""


class Invariant(NamedTuple):
    """One of INVARIANTS is given a Graph, one of MODEL_INVARIANTS a Model."""

    name: str
    check: Callable[[Any], Iterator[Problem]]


def verify(model: Model | Graph) -> None:
    """Raise ModelError with the first problem, and the number of the others."""
    found = problems(model)
    if not found:
        return
    first, others = found[0], len(found) - 1
    more = f" (and {others} more: see sanderling.ir.verify.problems)" if others else ""
    raise ModelError(f"{first.what}{more}", where=first.where, fix=first.fix)


def problems(model: Model | Graph) -> list[Problem]:
    """Everything that is wrong, in the order of the rules; a graph alone is checked by itself."""
    if isinstance(model, Graph):
        return [p for rule in INVARIANTS for p in _run(rule, model)]
    graphs = model.graphs if isinstance(model.graphs, (list, tuple)) else ()
    found = [p for graph in graphs for rule in INVARIANTS for p in _run(rule, graph)]
    return found + [p for rule in MODEL_INVARIANTS for p in _run(rule, model)]


def _run(rule: Invariant, subject: Graph | Model) -> list[Problem]:
    """A rule that stumbles over the object has found a problem too: it is not what it claims."""
    try:
        return [problem._replace(rule=rule.name) for problem in rule.check(subject)]
    except Exception as error:
        where = f"graph '{subject.name}'" if isinstance(subject, Graph) else "model"
        what = f"the rule '{rule.name}' cannot read it: {type(error).__name__}: {error}"
        fix = "build graphs through Graph.tensor, Graph.add and Graph.insert"
        return [Problem(where, what, fix, rule.name)]


# -- what the rules share --------------------------------------------------------------------


def _tensor(tensor: Tensor) -> str:
    return f"tensor '{tensor.name}'"


def _read(graph: Graph) -> Iterator[tuple[str, Tensor]]:
    """Every reading of a tensor with the place it is read at, in order of execution."""
    for op in graph.ops:
        for tensor in tensors_there(op.inputs):
            yield op.where, tensor
    for tensor in graph.outputs:
        yield f"outputs of graph '{graph.name}'", tensor


def _referred(graph: Graph) -> Iterator[tuple[str, Tensor]]:
    """Every reference to a tensor with the place it is made at."""
    for tensor in graph.inputs:
        yield f"inputs of graph '{graph.name}'", tensor
    yield from _read(graph)
    for op in graph.ops:
        for tensor in (*op.outputs, *op.intermediates):
            yield op.where, tensor
    for tensor in graph.tensors:
        block = tensor.quant.block if tensor.quant is not None else None
        if block is not None:
            for part in tensors_there((block.scales, block.zero_points)):
                yield _tensor(tensor), part


def _producers(graph: Graph) -> dict[int, list[Op]]:
    """id of a tensor -> the ops that write it, once per writing."""
    found: dict[int, list[Op]] = {}
    for op in graph.ops:
        for tensor in op.outputs:
            found.setdefault(id(tensor), []).append(op)
    return found


def _quants(graph: Graph) -> Iterator[tuple[Tensor, Quant]]:
    """Tensors with scales of their own (those of blockwise quantisation are tensors)."""
    for tensor in graph.tensors:
        if tensor.quant is not None and tensor.quant.scale.size:
            yield tensor, tensor.quant


# -- rules over a graph ----------------------------------------------------------------------


def _listed(graph: Graph) -> Iterator[Problem]:
    listed = Counter(map(id, graph.tensors))
    reported = set()
    for where, tensor in _referred(graph):
        if id(tensor) not in listed and id(tensor) not in reported:
            reported.add(id(tensor))
            what = f"{_tensor(tensor)} is not among the graph's tensors"
            yield Problem(where, what, "insert ops with Graph.insert: it lists their tensors")
    for tensor in graph.tensors:
        if listed.pop(id(tensor), 0) > 1:
            yield Problem(
                _tensor(tensor),
                "it stands more than once in the graph's tensors",
                "list each tensor once",
            )


def _computed_before_read(graph: Graph) -> Iterator[Problem]:
    known = {id(t) for t in graph.inputs}
    producers = _producers(graph)
    outputs = Op("outputs", graph.outputs, ())
    for op in (*graph.ops, outputs):
        where = f"outputs of graph '{graph.name}'" if op is outputs else op.where
        for tensor in tensors_there(op.inputs):
            kept = tensor.is_variable and id(tensor) not in producers
            if not (id(tensor) in known or tensor.is_constant or kept):
                yield _unknown_value(where, tensor, producers)
                known.add(id(tensor))  # say it once
        known.update(map(id, op.outputs))


def _unknown_value(where: str, tensor: Tensor, producers: dict[int, list[Op]]) -> Problem:
    later = producers.get(id(tensor))
    if later:
        return Problem(
            where,
            f"{_tensor(tensor)} is read before {later[0].where} computes it",
            "put graph.ops into an order that can be executed",
        )
    what = f"{_tensor(tensor)} is read, but nothing computes it"
    fix = "make it a graph input or a constant, or add the op that computes it"
    return Problem(where, what, fix)


def _one_producer(graph: Graph) -> Iterator[Problem]:
    reported = set()
    for op in graph.ops:
        for tensor in op.outputs:
            if id(tensor) in reported:
                yield Problem(
                    op.where,
                    f"{_tensor(tensor)} is written more than once",
                    "give each op outputs of its own",
                )
            reported.add(id(tensor))


def _given_not_computed(graph: Graph) -> Iterator[Problem]:
    inputs = {id(t) for t in graph.inputs}
    for op in graph.ops:
        for tensor in op.outputs:
            kind = "a constant" if tensor.is_constant else "a graph input"
            if tensor.is_constant or id(tensor) in inputs:
                yield Problem(
                    op.where,
                    f"it writes {_tensor(tensor)}, which is {kind}",
                    "give the op an output of its own",
                )


def _variable_or_constant(graph: Graph) -> Iterator[Problem]:
    for tensor in graph.tensors:
        if tensor.is_variable and tensor.is_constant:
            what = "it is a variable, and has values of its own"
            yield Problem(_tensor(tensor), what, "make it the one or the other")


def _true_links(graph: Graph) -> Iterator[Problem]:
    fix = "change graphs through Graph.insert, erase, set_input and replace_uses"
    producers = _producers(graph)
    readers: dict[int, list[Op]] = {}
    for op in graph.ops:
        for tensor in tensors_there(op.inputs):
            readers.setdefault(id(tensor), []).append(op)
    # A tensor that is used but not listed is another rule's; its links are still checked.
    tensors = {id(t): t for t in (*graph.tensors, *(t for _, t in _referred(graph)))}
    for key, tensor in tensors.items():
        writers: list[Op | None] = [*producers.get(key, ())] or [None]
        # Two writers are another rule's: here the link must be to one of them.
        if not any(tensor.producer is op for op in writers):
            yield Problem(_tensor(tensor), "its producer is not the op that writes it", fix)
        if Counter(map(id, tensor.users)) != Counter(map(id, readers.get(key, []))):
            yield Problem(_tensor(tensor), "its users are not the ops that read it", fix)


def _constant_size(graph: Graph) -> Iterator[Problem]:
    for tensor in graph.tensors:
        buffer = tensor.buffer
        if buffer is None or buffer.external is not None or tensor.sparsity is not None:
            continue
        need = tensor.dtype.nbytes(tensor.shape)
        if tensor.dtype.is_fixed_size and len(buffer) != need:
            what = f"{tensor.type_text} takes {need} bytes, its buffer has {len(buffer)}"
            yield Problem(_tensor(tensor), what, "store the values again with tensor.data = ...")


def _legal_shape(graph: Graph) -> Iterator[Problem]:
    fix = "write sizes of 0 and more in shape, and -1 for an open dimension in signature only"
    for tensor in graph.tensors:
        shape, signature = tensor.shape, tensor.signature
        if any(d < 0 for d in shape):
            yield Problem(_tensor(tensor), f"its shape {shape} has a negative size", fix)
        if signature is not None and len(signature) != len(shape):
            what = f"its signature {signature} and shape {shape} differ in rank"
            yield Problem(_tensor(tensor), what, fix)
        if signature is not None and any(d < -1 for d in signature):
            what = f"its signature {signature} has a size below -1"
            yield Problem(_tensor(tensor), what, fix)


def _quant_sizes(graph: Graph) -> Iterator[Problem]:
    for tensor, quant in _quants(graph):
        if quant.scale.size != quant.zero_point.size:
            what = f"it has {quant.scale.size} scales and {quant.zero_point.size} zero points"
            yield Problem(_tensor(tensor), what, "make one zero point a scale: Quant.of does")


def _quant_axis(graph: Graph) -> Iterator[Problem]:
    for tensor, quant in _quants(graph):
        rank = len(tensor.shape)
        if quant.per_axis and not 0 <= quant.axis < rank:
            what = f"it is quantised along axis {quant.axis}, but has rank {rank}"
            yield Problem(_tensor(tensor), what, "name an axis of the tensor in Quant.axis")
        elif quant.per_axis and quant.scale.size != tensor.shape[quant.axis]:
            size = tensor.shape[quant.axis]
            what = f"it has {quant.scale.size} scales for the {size} indices of axis {quant.axis}"
            yield Problem(_tensor(tensor), what, "give one scale, or one an index of the axis")


def _quant_scales(graph: Graph) -> Iterator[Problem]:
    used = {id(t) for _, t in _referred(graph)}
    for tensor, quant in _quants(graph):
        bad = quant.scale[~(np.isfinite(quant.scale) & (quant.scale > 0))]
        if bad.size and id(tensor) in used and tensor.dtype.is_integer:
            what = f"it has a scale of {bad[0]}"
            yield Problem(_tensor(tensor), what, "calibrate again: scales are above zero")


def _quant_zero_points(graph: Graph) -> Iterator[Problem]:
    for tensor, quant in _quants(graph):
        if not tensor.dtype.is_integer:
            continue
        low, high = tensor.dtype.bounds
        # As Python integers: a comparison of int64 with a uint64's limit would round.
        bad = [z for z in quant.zero_point.tolist() if not low <= z <= high]
        if bad:
            what = f"its zero point {bad[0]} is not a {tensor.dtype.short} ({low} to {high})"
            yield Problem(_tensor(tensor), what, "choose a zero point that the type can store")


# -- rules over a model ----------------------------------------------------------------------


def _has_graphs(model: Model) -> Iterator[Problem]:
    if not model.graphs:
        yield Problem("model", "it has no graph", "a model has at least one, the first is main")
    for graph, count in Counter(map(id, model.graphs)).items():
        if count > 1:
            name = next(g.name for g in model.graphs if id(g) == graph)
            yield Problem(f"graph '{name}'", "the model lists it more than once", "list it once")


def _calls_own_graphs(model: Model) -> Iterator[Problem]:
    own = set(map(id, model.graphs))
    for op in (op for graph in model.graphs for op in graph.ops):
        for called in op.subgraphs:
            if id(called) not in own:
                yield Problem(
                    op.where,
                    f"it calls graph '{called.name}', which is not the model's",
                    "append the graph to model.graphs",
                )


def _no_recursion(model: Model) -> Iterator[Problem]:
    """Graphs are taken off while nothing left calls them; what stays is on, or below, a cycle."""
    calls = {id(g): [id(s) for op in g.ops for s in op.subgraphs] for g in model.graphs}
    callers = Counter(called for targets in calls.values() for called in targets)
    ready = [g for g in calls if not callers[g]]
    while ready:
        for called in calls.pop(ready.pop()):
            callers[called] -= 1
            if not callers[called] and called in calls:
                ready.append(called)
    if calls:
        names = ", ".join(f"'{g.name}'" for g in model.graphs if id(g) in calls)
        yield Problem(
            "model",
            f"graphs call each other in a circle, among {names}",
            "no graph may reach itself through IF, WHILE or CALL operators",
        )


# Those who look at a graph look at what it calls, one inside the other.
MOST_NESTED = 48


def _nesting(model: Model) -> Iterator[Problem]:
    depth: dict[Graph, int] = {}
    for graph in reachable(model.graphs):
        called = (g for op in graph.ops for g in op.subgraphs)
        depth[graph] = 1 + max((depth.get(g, 0) for g in called), default=0)
        if depth[graph] == MOST_NESTED + 2:  # who calls it is deeper still: said once
            what = f"graphs call each other more than {MOST_NESTED} deep"
            yield Problem(f"graph '{graph.name}'", what, "put the innermost graphs in place")


def _true_signatures(model: Model) -> Iterator[Problem]:
    own, keys = set(map(id, model.graphs)), Counter(s.key for s in model.signatures)
    for signature in model.signatures:
        where = f"signature '{signature.key}'"
        if keys.pop(signature.key, 0) > 1:
            yield Problem(where, "two signatures have this key", "rename one")
        if id(signature.graph) not in own:
            yield Problem(
                where,
                f"its graph '{signature.graph.name}' is not the model's",
                "append the graph to model.graphs",
            )
        yield from _signature_tensors(where, signature)


def _signature_tensors(where: str, signature: Signature) -> Iterator[Problem]:
    graph = signature.graph
    for side, named, tensors in (
        ("input", signature.inputs, graph.inputs),
        ("output", signature.outputs, graph.outputs),
    ):
        known = set(map(id, tensors))
        for name, tensor in named.items():
            if id(tensor) not in known:
                yield Problem(
                    where,
                    f"its {side} '{name}' is no {side} of graph '{graph.name}'",
                    f"point it at a tensor of graph.{side}s",
                )


INVARIANTS: tuple[Invariant, ...] = (
    Invariant("tensors are listed", _listed),
    Invariant("values are computed before they are read", _computed_before_read),
    Invariant("a tensor has one producer", _one_producer),
    Invariant("constants and inputs are not computed", _given_not_computed),
    Invariant("a variable is not a constant", _variable_or_constant),
    Invariant("producer and users are true", _true_links),
    Invariant("constants have the bytes their type takes", _constant_size),
    Invariant("shapes are legal", _legal_shape),
    Invariant("a zero point for each scale", _quant_sizes),
    Invariant("the quantised axis fits", _quant_axis),
    Invariant("scales are positive", _quant_scales),
    Invariant("zero points fit the type", _quant_zero_points),
)

MODEL_INVARIANTS: tuple[Invariant, ...] = (
    Invariant("a model has graphs", _has_graphs),
    Invariant("called graphs are the model's", _calls_own_graphs),
    Invariant("no recursion", _no_recursion),
    Invariant("graphs are not nested too deeply", _nesting),
    Invariant("signatures name inputs and outputs", _true_signatures),
)

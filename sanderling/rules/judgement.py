"""The engine: what becomes of a graph on a delegate of which only the rules are known.

Each op is asked by the table's rules. Then the graph is shared out as TensorFlow Lite's partitioner
does it, within the delegate's limits. What crosses the borders of the parts is counted.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import DelegateError, SanderlingError
from ..ir import Graph, Op, Tensor
from ..ops.execute import new_state
from ..runtime.delegate import Delegate, Options, PlainExecutable
from ..runtime.partition import Part, Partition, partition
from ..runtime.partitionable import Partitionable, partitionable
from ..runtime.specialise import specialise
from .rule import Rule, Table, stated


@dataclass(frozen=True)
class Verdict:
    """What becomes of an op. reason: why it stays on the CPU, None if it is taken; rule: what
    refused it."""

    op: Op
    reason: str | None = None
    rule: Rule | None = None

    @property
    def is_taken(self) -> bool:
        return self.reason is None

    @property
    def source(self) -> str:
        """The document or file that the rule comes from."""
        return self.rule.source if self.rule else ""


@dataclass(frozen=True)
class Crossing:
    """A tensor that is handed over at a border. is_inner: it is neither fed nor a result of the
    model, and would stay inside if all ops were taken. is_state: a variable tensor."""

    tensor: Tensor
    to_delegate: bool
    nbytes: int
    is_inner: bool
    is_state: bool = False


@dataclass(frozen=True)
class JudgedPart:
    """Ops that run together; `name`: the delegate's, or "cpu"."""

    name: str
    ops: list[Op]


@dataclass(frozen=True)
class Judgement:
    """A graph, judged: ops are those of the graph that was given, in its order. folded: places of
    those that our own sessions compute once, from constants; they are in no part."""

    table: Table
    graph: Graph
    verdicts: list[Verdict]
    parts: list[JudgedPart]
    crossing: list[Crossing]
    folded: list[int] = field(default_factory=list)

    @property
    def taken(self) -> int:
        run = {op for part in self.parts for op in part.ops}
        return sum(v.is_taken and v.op in run for v in self.verdicts)

    @property
    def is_whole(self) -> bool:
        """No op is refused."""
        return all(v.is_taken for v in self.verdicts)

    @property
    def crossing_bytes(self) -> int:
        return sum(c.nbytes for c in self.crossing)

    @property
    def cost_us(self) -> float:
        """The estimated time at the borders in one run (`Border` says how far to trust it)."""
        own = sum(part.name == self.table.name for part in self.parts)
        return self.table.border.cost_us(own, self.crossing_bytes)


def judge_by(table: Table, graph: Graph) -> Judgement:
    """What the delegate of this table would take of the graph, and why not the rest."""
    known = _known_shapes(graph, table)
    twins = _twins(graph, known.ops, known.graph)
    broken = _broken_rules(_folded(known.graph, table), table)
    return _shared_out(graph, known, twins, table, broken)


def _known_shapes(graph: Graph, table: Table) -> Partitionable:
    """A copy with inferred shapes, in which tensors that are still open depend on data. What we
    cannot infer is judged as the file states it. Delegates of ours see what a session shows them.
    """
    shapes = [t.shape for t in graph.inputs]
    try:
        if table.delegates:
            return partitionable(graph, shapes, table.delegates, new_state())
        made, twins = specialise(graph, shapes)
    except SanderlingError:
        made, twins = graph.copy(), {}
    return Partitionable(made, twins, list(made.ops))


def _twins(given: Graph, ops: Sequence[Op], copy: Graph) -> dict[Tensor, Tensor]:
    """The given graph's tensor for each of the copy, whose ops were these."""
    found = dict(zip(copy.inputs, given.inputs, strict=True))
    for ours, theirs in zip(ops, given.ops, strict=True):
        ends = zip((*ours.inputs, *ours.outputs), (*theirs.inputs, *theirs.outputs), strict=True)
        found.update((a, b) for a, b in ends if a is not None and b is not None)
    return found


def _folded(graph: Graph, table: Table) -> Graph:
    """Let readers of weights that a delegate expands itself read the constants."""
    for op in graph.ops if table.folds else ():
        if table.folds and table.folds(op):
            graph.replace_uses(op.outputs[0], op.operand(0))
    return graph


Broken = dict[Op, tuple[Rule, str]]  # ops that are refused: the rule and the reason


def _broken_rules(graph: Graph, table: Table) -> Broken:
    for rule in table.graph:
        if problem := rule.problem(graph):
            whole = stated("graph", rule.says, rule.source or table.source)
            return dict.fromkeys(graph.ops, (whole, f"only where {rule.says}: {problem}"))
    found = zip(graph.ops, _asked(graph.ops, table), strict=True)
    broken = {op: pair for op, pair in found if pair is not None}
    early = {op: pair for op, pair in broken.items() if not pair[0].fatal}
    early = _after_first(graph, table, _folds(graph, table, early))
    built = {op for part in _delegated(graph, table, early) for op in part.ops}
    cause = next((op for op in broken if op in built), None)
    return early if cause is None else _failed(graph, broken, cause)


def _asked(ops: Sequence[Op], table: Table) -> list[tuple[Rule, str] | None]:
    if not table.delegates:
        return [_broken(op, table) for op in ops]
    rule = stated("operator", "the delegate takes it", table.source)
    said = table.delegates[0].refuses_each(ops)
    return [None if reason is None else (rule, reason) for reason in said]


def _broken(op: Op, table: Table) -> tuple[Rule, str] | None:
    if table.folds and table.folds(op):
        return None
    rule = table.failing(op)
    return None if rule is None else (rule, rule.reason(op, table.level) or rule.says)


def _failed(graph: Graph, broken: Broken, cause: Op) -> Broken:
    """A rule that is found broken while a part is built takes all ops back to the CPU."""
    whole = stated("graph", "the delegate can build its part", broken[cause][0].source)
    reason = f"the delegate fails as a whole, because of {cause.where}"
    return {op: broken.get(op, (whole, reason)) for op in graph.ops}


def _after_first(graph: Graph, table: Table, broken: Broken) -> Broken:
    """One part, which ends at the first op that is refused."""
    ends = [op for op in broken if not (table.leads_in and table.leads_in(op))]
    first = ends[0] if ends else None
    if first is None or not table.is_first_part:
        return broken
    rule = stated("partition", "all ops before it are taken", table.source)
    reason = f"it stands after {first.where}, the first op that is refused"
    later = graph.ops[graph.ops.index(first) :]
    return broken | {op: broken.get(op, (rule, reason)) for op in later}


def _folds(graph: Graph, table: Table, broken: Broken) -> Broken:
    """Ops that expand constants go with their readers: to the CPU where one of these is there."""
    if table.folds is None or not broken:
        return broken
    rule = stated("partition", "all other ops are taken too", "tflite/delegates/utils.cc")
    reason = "the weights are read as they are stored, and the CPU expands them for its own ops"
    made = {op: (rule, reason) for op in graph.ops if table.folds(op)}
    return broken | made


def _partition(graph: Graph, table: Table, broken: Broken) -> Partition:
    reasons = {op: reason for op, (_, reason) in broken.items()}
    return partition(graph, [_Judged(table.name, reasons), _CPU], table.limits)


def _delegated(graph: Graph, table: Table, broken: Broken) -> list[Part]:
    found = _partition(graph, table, broken)
    return [part for part in found.parts if part.delegate is not _CPU]


def _shared_out(
    given: Graph,
    known: Partitionable,
    tensors: Mapping[Tensor, Tensor],
    table: Table,
    broken: Broken,
) -> Judgement:
    found = _partition(known.graph, table, broken)
    twins = dict(zip(known.ops, given.ops, strict=True))
    refused = {op: rs[0].reason for op, rs in found.refusals.items()}
    verdicts = [_verdict(op, twins[op], broken, refused, table) for op in known.ops]
    folded = [place for place, op in enumerate(known.ops) if op in known.folded]
    parts = [JudgedPart(p.delegate.name, [twins[op] for op in p.ops]) for p in found.parts]
    own = [p for p in found.parts if p.delegate is not _CPU]
    crossing = _crossing(known.graph, own, tensors)
    return Judgement(table, given, verdicts, parts, crossing, folded)


def _verdict(op: Op, twin: Op, broken: Broken, refused: Mapping[Op, str], table: Table) -> Verdict:
    if op in broken:
        rule, reason = broken[op]
        return Verdict(twin, reason, rule)
    if op in refused:
        return Verdict(twin, refused[op], _limit_rule(table))
    return Verdict(twin)


def _limit_rule(table: Table) -> Rule:
    most, least = table.limits.max_delegated_partitions, table.limits.min_nodes_per_partition
    says = [f"it is in one of the {most} largest parts"] if most else []
    says += [f"its part has {least} ops or more"] if least else []
    return stated("partition", " and ".join(says), table.limits_source or table.source)


def _crossing(
    graph: Graph, parts: Sequence[Part], twins: Mapping[Tensor, Tensor]
) -> list[Crossing]:
    """What the delegate's parts read and what they show. Tensors that two parts read are handed
    over twice."""
    ends = {*graph.inputs, *graph.outputs}
    ways = [(t, True) for part in parts for t in part.inputs]
    ways += [(t, False) for part in parts for t in part.outputs]
    # A resource that became a variable tensor has no twin.
    return [
        Crossing(twins.get(t, t), to, t.nbytes, is_inner(t, ends), t.is_variable) for t, to in ways
    ]


def is_inner(tensor: Tensor, ends: Container[Tensor]) -> bool:
    """Whether it crosses a border only because ops are refused: it is none of the model's ends and
    no state, which lives outside of all parts."""
    return tensor not in ends and not tensor.is_variable


class _Judged(Delegate):
    """Stands for the delegate in the partitioner."""

    def __init__(self, name: str, reasons: Mapping[Op, str]) -> None:
        self.name, self.reasons = name, reasons

    def refuses(self, op: Op) -> str | None:
        return self.reasons.get(op)

    def compile(self, part: Graph, options: Options) -> PlainExecutable:
        raise DelegateError(
            f"the rules of '{self.name}' are known here, and no engine",
            fix="name one of sanderling.delegate_names() to run the model",
        )


_CPU = _Judged("cpu", {})

"""How a graph is shared out between delegates.

Partitioning follows TFLite: delegates are asked in order of preference; the ops one takes are
clustered greedily in dependency order; `max_delegated_partitions` keeps the largest clusters and
`min_nodes_per_partition` drops small ones; a range of nodes (`first_delegate_node_index`,
`last_delegate_node_index`) is all that a delegate gets. Every refusal keeps its reason.
"""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..errors import DelegateError, FallbackWarning
from ..ir import Graph, Op, Tensor
from ..progress import plural
from .delegate import Delegate
from .registry import FALLBACK

Group = list[Op]  # ops that stay together: one op, or a part that a delegate has got


LAST_NODE = 2**31 - 1


@dataclass(frozen=True)
class Limits:
    """TFLite's partition limits; 0 is no limit. They do not bind the fallback: whoever stands last,
    and the cpu behind another delegate."""

    max_delegated_partitions: int = 0
    min_nodes_per_partition: int = 0
    clustering: bool = True  # False keeps the original order of ops
    single_ops: bool = False  # every op a part of its own, so that all tensors can be seen
    # Places in the file's graph; both are within.
    first_node: int = 0
    last_node: int = LAST_NODE

    def lifted(self) -> Limits:
        """Without those that bind a delegate."""
        return Limits(clustering=self.clustering, single_ops=self.single_ops)

    def of(self, delegate: Delegate) -> Limits:
        """With the delegate's own where these state none, and parts are no single ops."""
        if self.single_ops:
            return self
        return replace(
            self,
            max_delegated_partitions=self.max_delegated_partitions
            or delegate.max_delegated_partitions,
            min_nodes_per_partition=self.min_nodes_per_partition
            or delegate.min_nodes_per_partition,
        )

    def outside(self, node: int) -> str | None:
        """Why a delegate does not get this node, if it lies out of the range."""
        if (self.first_node, self.last_node) == (0, LAST_NODE):
            return None
        if self.first_node <= node <= self.last_node:
            return None
        last = "the last" if self.last_node == LAST_NODE else self.last_node
        return (
            f"node {node} is not one of {self.first_node} to {last} (first_delegate_node_index, "
            "last_delegate_node_index)"
        )


def is_fallback(delegate: Delegate, delegates: Sequence[Delegate]) -> bool:
    """Whether it is there to run what others leave: limits do not bind it."""
    behind = delegate.name in FALLBACK and delegate is not delegates[0]
    return behind or delegate is delegates[-1]


@dataclass(frozen=True)
class Refusal:
    """Why a delegate did not get an op."""

    delegate: str
    reason: str
    has_failed: bool = False  # it took the op, and could not compile it or run it


@dataclass(eq=False)
class Part:
    """Ops that run on one delegate, with the tensors that cross its border."""

    delegate: Delegate
    ops: list[Op]
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)  # the ops' places in the file's graph
    left: Refusal | None = None  # who had it first, and how that ended

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for parts that compile to the same thing."""
        return id(self.delegate), *self.ops, None, *self.inputs, None, *self.outputs

    @property
    def past(self) -> str:
        return f" ({self.left.delegate} had it: {self.left.reason})" if self.left else ""


@dataclass(eq=False)
class Partition:
    """The result: parts in execution order, and the reason for every op that moved on."""

    parts: list[Part]
    refusals: dict[Op, list[Refusal]]

    def table(self) -> str:
        """For people: what runs where, then why not elsewhere."""
        lines = [
            f"part {i}: {plural(len(p.ops), 'op')} on {p.delegate.name}{p.past}"
            for i, p in enumerate(self.parts)
        ]
        for op, refusals in self.refusals.items():
            lines += [f"{op.where}: {r.delegate} refuses: {r.reason}" for r in refusals]
        return "\n".join(lines)


def partition(
    graph: Graph,
    delegates: Sequence[Delegate],
    limits: Limits,
    failed: Mapping[Op, list[Refusal]] | None = None,
    numbers: Mapping[Op, int] | None = None,
) -> Partition:
    """Share the ops out. failed: refusals known beforehand, from parts that did not compile.
    numbers: the ops' places in the file's graph, where limits have a range of them.

    As in TFLite, each delegate in turn clusters what is left; what it gets stays together.
    """
    refusals: dict[Op, list[Refusal]] = {}
    owner: dict[Op, Delegate] = {}
    groups: list[Group] = [[op] for op in graph.ops]
    for delegate in delegates:
        open_ops = [op for op in graph.ops if op not in owner]
        own = limits.lifted() if is_fallback(delegate, delegates) else limits.of(delegate)
        far = {op: own.outside((numbers or {}).get(op, -1)) for op in open_ops}
        taken = set(_asked(delegate, far, failed or {}, refusals))
        if delegate is delegates[-1]:
            # What nobody can run goes to the last, which says why not when it is compiled.
            taken = set(open_ops)
        clusters = cluster(groups, taken, own)
        kept = _keep_within([c for c in clusters if c.mine], delegate, own, refusals)
        groups = [g for c in clusters for g in ([c.ops] if c in kept else c.groups)]
        owner.update((op, delegate) for c in kept for op in c.ops)
    parts = [Part(owner[ops[0]], ops) for ops in groups]
    _find_borders(graph, parts, everything=limits.single_ops)
    return Partition(parts, refusals)


def _asked(
    delegate: Delegate,
    ops: Mapping[Op, str | None],
    failed: Mapping[Op, list[Refusal]],
    refusals: dict[Op, list[Refusal]],
) -> Iterator[Op]:
    """The ops that the delegate takes; its reasons against the others are recorded. ops: with the
    reason why it does not get one whatever it says."""
    asked = list(ops)
    for op, said in zip(asked, _answers(delegate, asked), strict=True):
        failure = None if ops[op] else _known_failure(op, delegate, failed)
        reason = ops[op] or said
        refusal = failure or (None if reason is None else Refusal(delegate.name, reason))
        if refusal is None:
            yield op
        else:
            refusals.setdefault(op, []).append(refusal)


def _answers(delegate: Delegate, ops: Sequence[Op]) -> Sequence[str | None]:
    try:
        return delegate.refuses_each(ops)
    except DelegateError as error:
        text = f"delegate '{delegate.name}' gets no op: {error.what}\n  {error.fix}"
        warnings.warn(text, FallbackWarning, stacklevel=2)
        return [error.what] * len(ops)


def _known_failure(
    op: Op, delegate: Delegate, failed: Mapping[Op, list[Refusal]]
) -> Refusal | None:
    return next((r for r in failed.get(op, ()) if r.delegate == delegate.name), None)


def _keep_within(
    clusters: list[Cluster], delegate: Delegate, limits: Limits, refusals: dict[Op, list[Refusal]]
) -> list[Cluster]:
    """The clusters within the two limits, the largest first."""
    ranked = sorted(clusters, key=lambda c: len(c.ops), reverse=True)
    most = limits.max_delegated_partitions if limits.max_delegated_partitions > 0 else len(ranked)
    kept: list[Cluster] = []
    for rank, found in enumerate(ranked):
        if rank >= most:
            largest = "largest part is" if most == 1 else f"{most} largest parts are"
            reason = f"only the {largest} kept (max_delegated_partitions)"
        elif len(found.ops) < limits.min_nodes_per_partition:
            reason = (
                f"its part has {plural(len(found.ops), 'op')}, fewer than "
                f"{limits.min_nodes_per_partition} (min_nodes_per_partition)"
            )
        else:
            kept.append(found)
            continue
        for op in found.ops:
            refusals.setdefault(op, []).append(Refusal(delegate.name, reason))
    return kept


@dataclass(eq=False)
class Cluster:
    """Groups that run one after the other, all of them the delegate's or none."""

    mine: bool
    groups: list[Group]

    @property
    def ops(self) -> list[Op]:
        return [op for group in self.groups for op in group]


def cluster(groups: Sequence[Group], taken: Container[Op], limits: Limits) -> list[Cluster]:
    """Gather groups (in an order that can be executed) into clusters as large as dependencies
    allow, by turns of taken ops and others.

    One sweep in execution order fills a cluster: what becomes ready through one of its ops comes
    later in the order. Ops with side effects keep their order.
    """
    if limits.single_ops:
        return [Cluster(group[0] in taken, [group]) for group in groups]
    before = _side_effect_order([op for group in groups for op in group])
    clusters: list[Cluster] = []
    done: set[Op] = set()
    waiting = list(groups)
    while waiting:
        found = Cluster(waiting[0][0] in taken, [])
        skipped: list[Group] = []
        for place, group in enumerate(waiting):
            if (group[0] in taken) == found.mine and _ready(group, done, before):
                found.groups.append(group)
                done.update(group)
            elif limits.clustering:
                skipped.append(group)
            else:
                skipped = waiting[place:]
                break
        assert found.groups, "the graph's ops are not in execution order"
        clusters.append(found)
        waiting = skipped
    return clusters


def _side_effect_order(ops: Iterable[Op]) -> dict[Op, Op]:
    """Each op with side effects waits for the one before it."""
    effects = [op for op in ops if has_state(op)]
    return dict(zip(effects[1:], effects[:-1], strict=True))


def has_state(op: Op) -> bool:
    from ..ops import OPS

    row = OPS.get(op.name)
    return (row is not None and row.stateful) or any(t and t.is_variable for t in op.inputs)


def _ready(group: Group, done: set[Op], before: Mapping[Op, Op]) -> bool:
    needs = {t.producer for op in group for t in op.inputs if t is not None and t.producer}
    needs.update(before[op] for op in group if op in before)
    return needs.difference(group) <= done


def _find_borders(graph: Graph, parts: Sequence[Part], everything: bool) -> None:
    """A part reads what others made (or the user fed), and shows what others need, or all."""
    home = {t: part for part in parts for op in part.ops for t in op.outputs}
    shown = set(graph.outputs)
    for part in parts:
        read = dict.fromkeys(t for op in part.ops for t in op.inputs if t is not None)
        part.inputs = [t for t in read if not t.is_constant and home.get(t) is not part]
        shown.update(part.inputs)
    for part in parts:
        part.outputs = [t for op in part.ops for t in op.outputs if everything or t in shown]

"""The delegate contract, and how a graph is shared out between delegates.

Partitioning follows TFLite: delegates are asked in order of preference; the ops one takes are
clustered greedily in dependency order; `max_delegated_partitions` keeps the largest clusters and
`min_nodes_per_partition` drops small ones. Every refusal keeps its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from ..errors import InputError
from ..ir import Array, Graph, Op, Quant, Tensor
from ..ops import OPS, State


@dataclass(frozen=True)
class Options:
    """What a delegate is told when it compiles a part."""

    threads: int
    state: State
    extra: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Executable(Protocol):
    def run(self, inputs: Sequence[Array], outputs: list[Array | None]) -> None:
        """Compute the part. Arrays are the caller's: read and written in place, never kept.

        inputs and outputs are in the order of the part's. An output whose shape is not known
        before the run is None; the executable puts the array it made there. Variable tensors are
        inputs that the executable updates in place.
        """


@runtime_checkable
class Delegate(Protocol):
    name: str

    def refuses(self, op: Op) -> str | None:
        """None if it takes the op, otherwise the reason, for people. Shapes are concrete; a tensor
        whose shape depends on data has `is_dynamic`."""

    def compile(self, part: Graph, options: Options) -> Executable:
        """Make the part runnable; the graph is the delegate's own copy. Raises DelegateError."""


# Delegates that come with the package, found when they are named.
BUILTIN = {"reference": "sanderling.delegates.reference:ReferenceDelegate"}
_registered: dict[str, Callable[[], Delegate]] = {}
# Always stands last, so that every model runs.
FALLBACK = ("reference",)


def register_delegate(name: str, factory: Callable[[], Delegate]) -> None:
    """Make a delegate available by name."""
    _registered[name] = factory


def delegate_names() -> list[str]:
    return sorted({*BUILTIN, *_registered})


def find_delegate(wanted: str | Delegate) -> Delegate:
    """The delegate itself, or the one of this name; the error lists what there is."""
    if not isinstance(wanted, str):
        return wanted
    if wanted in _registered:
        return _registered[wanted]()
    if wanted not in BUILTIN:
        raise InputError(f"there is no delegate '{wanted}'",
                         fix=f"known delegates: {', '.join(delegate_names())}")  # fmt: skip
    module, _, name = BUILTIN[wanted].partition(":")
    made: Delegate = getattr(import_module(module), name)()
    return made


def resolve(wanted: Iterable[str | Delegate]) -> list[Delegate]:
    """Delegates in order of preference, the fallback last."""
    chosen = [find_delegate(w) for w in wanted]
    names = {d.name for d in chosen}
    return chosen + [find_delegate(n) for n in FALLBACK if n not in names]


@dataclass(frozen=True)
class Limits:
    """TFLite's partition limits; 0 is no limit. They do not bind the fallback."""

    max_delegated_partitions: int = 0
    min_nodes_per_partition: int = 0
    clustering: bool = True  # False keeps the original order of ops
    single_ops: bool = False  # every op a part of its own, so that all tensors can be seen


@dataclass(frozen=True)
class Refusal:
    """Why a delegate did not get an op."""

    delegate: str
    reason: str


@dataclass(eq=False)
class Part:
    """Ops that run on one delegate, with the tensors that cross its border."""

    delegate: Delegate
    ops: list[Op]
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)


@dataclass(eq=False)
class Partition:
    """The result: parts in execution order, and the reason for every op that moved on."""

    parts: list[Part]
    refusals: dict[Op, list[Refusal]]

    def table(self) -> str:
        """For people: what runs where, then why not elsewhere."""
        lines = [f"part {i}: {len(p.ops)} ops on {p.delegate.name}"
                 for i, p in enumerate(self.parts)]  # fmt: skip
        for op, refusals in self.refusals.items():
            lines += [f"{op.where}: {r.delegate} refuses: {r.reason}" for r in refusals]
        return "\n".join(lines)


def partition(graph: Graph, delegates: Sequence[Delegate], limits: Limits,
              failed: Mapping[Op, list[Refusal]] | None = None) -> Partition:  # fmt: skip
    """Share the ops out. failed: refusals known beforehand, from parts that did not compile."""
    choice: dict[Op, int] = {}
    refusals: dict[Op, list[Refusal]] = {}
    for level, delegate in enumerate(delegates):
        open_ops = [op for op in graph.ops if op not in choice]
        taken: list[Op] = []
        for op in open_ops:
            reason = _known_failure(op, delegate, failed or {}) or delegate.refuses(op)
            if reason is None:
                taken.append(op)
            else:
                refusals.setdefault(op, []).append(Refusal(delegate.name, reason))
        if level < len(delegates) - 1:
            taken = _keep_within(graph, taken, choice, level, delegate, limits, refusals)
        choice.update(dict.fromkeys(taken, level))
    left = [op for op in graph.ops if op not in choice]
    if left:
        # Nobody can run it: the last delegate does, and says why not when it is compiled.
        choice.update(dict.fromkeys(left, len(delegates) - 1))
    clusters = cluster(graph, choice, limits)
    parts = [Part(delegates[label], ops) for label, ops in clusters]
    _find_borders(graph, parts)
    return Partition(parts, refusals)


def _known_failure(op: Op, delegate: Delegate, failed: Mapping[Op, list[Refusal]]) -> str | None:
    return next((r.reason for r in failed.get(op, ()) if r.delegate == delegate.name), None)


def _keep_within(graph: Graph, taken: list[Op], choice: Mapping[Op, int], level: int,
                 delegate: Delegate, limits: Limits,
                 refusals: dict[Op, list[Refusal]]) -> list[Op]:  # fmt: skip
    """Apply the two limits to the clusters this delegate would get."""
    if limits.max_delegated_partitions <= 0 and limits.min_nodes_per_partition <= 0:
        return taken
    labels = dict.fromkeys(graph.ops, -1) | dict(choice) | dict.fromkeys(taken, level)
    mine = [ops for label, ops in cluster(graph, labels, limits) if label == level]
    mine.sort(key=len, reverse=True)
    most = limits.max_delegated_partitions if limits.max_delegated_partitions > 0 else len(mine)
    kept: list[Op] = []
    for rank, ops in enumerate(mine):
        if rank >= most:
            reason = f"only the {most} largest parts are kept (max_delegated_partitions)"
        elif len(ops) < limits.min_nodes_per_partition:
            reason = (f"its part has {len(ops)} ops, fewer than "
                      f"{limits.min_nodes_per_partition} (min_nodes_per_partition)")  # fmt: skip
        else:
            kept += ops
            continue
        for op in ops:
            refusals.setdefault(op, []).append(Refusal(delegate.name, reason))
    return kept


def cluster(graph: Graph, labels: Mapping[Op, int], limits: Limits) -> list[tuple[int, list[Op]]]:
    """Group ops of one label into parts, each part as large as dependencies allow.

    One sweep in execution order fills a part: what becomes ready through an op of the part comes
    later in the order. Ops with side effects keep their order.
    """
    parts: list[tuple[int, list[Op]]] = []
    before = _side_effect_order(graph)
    done: set[Op] = set()
    waiting = list(graph.ops)
    while waiting:
        label: int | None = None
        members: list[Op] = []
        skipped: list[Op] = []
        closed = False
        for op in waiting:
            fits = not closed and labels[op] == (labels[op] if label is None else label)
            if fits and _ready(op, done, before):
                label = labels[op]
                members.append(op)
                done.add(op)
                closed = limits.single_ops
            else:
                skipped.append(op)
                closed = closed or (bool(members) and not limits.clustering)
        assert members, "the graph's ops are not in execution order"
        parts.append((labels[members[0]], members))
        waiting = skipped
    return parts


def _side_effect_order(graph: Graph) -> dict[Op, Op]:
    """Each op with side effects waits for the one before it."""
    effects = [op for op in graph.ops if has_state(op)]
    return dict(zip(effects[1:], effects[:-1], strict=True))


def has_state(op: Op) -> bool:
    row = OPS.get(op.name)
    return (row is not None and row.stateful) or any(t and t.is_variable for t in op.inputs)


def _ready(op: Op, done: set[Op], before: Mapping[Op, Op]) -> bool:
    if op in before and before[op] not in done:
        return False
    return all(t is None or t.producer is None or t.producer in done for t in op.inputs)


def _find_borders(graph: Graph, parts: Sequence[Part]) -> None:
    """A part reads what others made (or the user fed), and shows what others need."""
    home = {t: part for part in parts for op in part.ops for t in op.outputs}
    shown = set(graph.outputs)
    for part in parts:
        read = dict.fromkeys(t for op in part.ops for t in op.inputs if t is not None)
        part.inputs = [t for t in read if not t.is_constant and home.get(t) is not part]
        shown.update(part.inputs)
    for part in parts:
        part.outputs = [t for op in part.ops for t in op.outputs if t in shown]


def copy_graph(graph: Graph, ops: Sequence[Op], inputs: Sequence[Tensor],
               outputs: Sequence[Tensor]) -> tuple[Graph, dict[Tensor, Tensor]]:  # fmt: skip
    """A graph of its own with these ops; constants share their buffers with the original."""
    twins: dict[Tensor, Tensor] = {}
    made = Graph(graph.name)

    def twin(tensor: Tensor) -> Tensor:
        if tensor not in twins:
            twins[tensor] = made_twin = tensor.copy()
            made.tensors.append(made_twin)
            made_twin.quant = _copy_block(tensor.quant, twin)
        return twins[tensor]

    made.inputs = [twin(t) for t in inputs]
    for op in ops:
        made.append(op.copy([t and twin(t) for t in op.inputs], [twin(t) for t in op.outputs],
                            [twin(t) for t in op.intermediates]))  # fmt: skip
    made.outputs = [twin(t) for t in outputs]
    return made, twins


def _copy_block(quant: Quant | None, twin: Callable[[Tensor], Tensor]) -> Quant | None:
    """Blockwise scales are tensors too: they move with the tensor they describe."""
    if quant is None or quant.block is None:
        return quant
    old = quant.block
    block = replace(
        old,
        scales=old.scales and twin(old.scales),
        zero_points=old.zero_points and twin(old.zero_points),
    )
    return replace(quant, block=block)

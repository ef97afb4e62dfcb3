"""The one rewrite engine: rules of (name, pattern, function), applied until none fires.

A rule, and the function that returns the new Op, a Tensor that is there already, or None:

    Rule("relu into add",
         P(("RELU", "RELU6"), P("ADD", attrs={"fused_activation_function": "NONE"}, once=True,
                                bind="add")),
         fuse)

    def fuse(graph, match): ...
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..errors import SanderlingError
from .graph import Graph, Op, Tensor

SIDE_EFFECTS = frozenset(
    {
        "ASSIGN_VARIABLE",
        "CALL_ONCE",
        "HASHTABLE_IMPORT",
        "IF",
        "STABLEHLO_CUSTOM_CALL",
        "VAR_HANDLE",
        "WHILE",
    }
)


# -- patterns --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Leaf:
    """An operand that is judged by itself; None stands for an absent one."""

    accepts: Callable[[Tensor | None], bool]


ANY = Leaf(lambda tensor: True)
PRESENT = Leaf(lambda tensor: tensor is not None)
CONST = Leaf(lambda tensor: tensor is not None and tensor.is_constant)


@dataclass(frozen=True)
class Var:
    """Captures the operand as match[name]; a name that comes twice must be the same tensor."""

    name: str
    of: Operand = PRESENT


class P:
    """An op: its name (or names, or None for any) and patterns for its leading operands.

    attrs:    values that attributes must have, or a predicate over all of them
    where:    a predicate over the op
    once:     the results have one user, the op above in the pattern, and no graph output
    commutes: the first two operands match in either order
    bind:     captures the op as match.ops[bind]
    """

    def __init__(
        self,
        name: str | Iterable[str] | None,
        *operands: Operand,
        attrs: Mapping[str, Any] | Callable[[Mapping[str, Any]], bool] | None = None,
        where: Callable[[Op], bool] | None = None,
        once: bool = False,
        commutes: bool = False,
        bind: str = "",
    ) -> None:
        if commutes and len(operands) < 2:
            raise ValueError("a pattern that commutes lists its two operands")
        self.names = frozenset([name] if isinstance(name, str) else name or ())
        self.operands = operands
        self.attrs = attrs
        self.where = where
        self.once = once
        self.commutes = commutes
        self.bind = bind

    @property
    def depth(self) -> int:
        """Ops on the longest way through the pattern."""
        return 1 + max(map(_depth, self.operands), default=0)


Operand = Leaf | Var | P


def _depth(operand: Operand) -> int:
    if isinstance(operand, Var):
        return _depth(operand.of)
    return operand.depth if isinstance(operand, P) else 0


@dataclass(frozen=True)
class Match:
    """What a pattern matched: the root op, captured tensors and captured ops."""

    root: Op
    tensors: Mapping[str, Tensor | None] = field(default_factory=dict)
    ops: Mapping[str, Op] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        tensor = self.tensors[name]
        if tensor is None:
            raise KeyError(f"operand '{name}' is absent in {self.root!r}")
        return tensor


class Rule(NamedTuple):
    """apply returns None to decline; else an op that is not in the graph yet, whose outputs
    take over for the root's, or a tensor that takes over for the root's only output."""

    name: str
    pattern: P
    apply: Callable[[Graph, Match], Op | Tensor | None]


def matches(graph: Graph, pattern: P, op: Op) -> Iterator[Match]:
    """Every way in which the pattern matches at this op."""
    for tensors, ops in _match_op(graph, pattern, op, {}, {}):
        yield Match(op, tensors, ops)


_Tensors = dict[str, Tensor | None]
_Found = Iterator[tuple[_Tensors, dict[str, Op]]]


def _match_op(graph: Graph, pattern: P, op: Op, tensors: _Tensors, ops: dict[str, Op]) -> _Found:
    if (pattern.names and op.name not in pattern.names) or not _attrs_match(pattern.attrs, op):
        return
    if pattern.where is not None and not pattern.where(op):
        return
    if pattern.bind:
        ops = {**ops, pattern.bind: op}
    for operands in _orders(pattern, op):
        yield from _match_operands(graph, pattern.operands, operands, tensors, ops)


def _orders(pattern: P, op: Op) -> Iterator[list[Tensor | None]]:
    operands = [op.input(i) for i in range(len(pattern.operands))]
    yield operands
    if pattern.commutes:
        yield [operands[1], operands[0], *operands[2:]]


def _match_operands(
    graph: Graph,
    patterns: Sequence[Operand],
    operands: Sequence[Tensor | None],
    tensors: _Tensors,
    ops: dict[str, Op],
) -> _Found:
    """All operands in turn; a later one that fails makes an earlier one try its next way."""
    if not patterns:
        yield tensors, ops
        return
    for more, bound in _match_operand(graph, patterns[0], operands[0], tensors, ops):
        yield from _match_operands(graph, patterns[1:], operands[1:], more, bound)


def _match_operand(
    graph: Graph, pattern: Operand, tensor: Tensor | None, tensors: _Tensors, ops: dict[str, Op]
) -> _Found:
    if isinstance(pattern, Leaf):
        if pattern.accepts(tensor):
            yield tensors, ops
    elif isinstance(pattern, Var):
        if pattern.name not in tensors or tensors[pattern.name] is tensor:
            bound = {**tensors, pattern.name: tensor}
            yield from _match_operand(graph, pattern.of, tensor, bound, ops)
    elif (
        tensor is not None
        and tensor.producer is not None
        and (not pattern.once or _used_once(graph, tensor.producer))
    ):
        yield from _match_op(graph, pattern, tensor.producer, tensors, ops)


def _attrs_match(expected: Any, op: Op) -> bool:
    if expected is None:
        return True
    if callable(expected):
        return bool(expected(op.attrs))
    return all(
        key in op.attrs and np.array_equal(op.attrs[key], value) for key, value in expected.items()
    )


def _used_once(graph: Graph, op: Op) -> bool:
    return sum(len(t.users) for t in op.outputs) == 1 and not _is_output(graph, op)


def _is_output(graph: Graph, op: Op) -> bool:
    return any(t is out for t in op.outputs for out in graph.outputs)


# -- the engine ------------------------------------------------------------------------------


def has_side_effects(op: Op) -> bool:
    """The op does more than compute its outputs."""
    writes_state = any(t is not None and t.is_variable for t in op.inputs)
    return writes_state or not op.outputs or op.name in SIDE_EFFECTS


def rewrite(
    graph: Graph,
    rules: Sequence[Rule],
    limit: int | None = None,
    has_side_effects: Callable[[Op], bool] = has_side_effects,
) -> Counter[str]:
    """Apply the rules until none fires, and count how often each did.

    At an op, the first rule of the sequence that applies wins. A graph output keeps its Tensor
    object, so its name and the signatures that refer to it stay true. Tensors that are no
    longer used stay listed: Graph.prune drops them.
    """
    if limit is None:
        limit = 100 + 20 * len(graph.ops)
    return _Engine(graph, rules, has_side_effects).run(limit)


class _Engine:
    def __init__(
        self, graph: Graph, rules: Sequence[Rule], side_effects: Callable[[Op], bool]
    ) -> None:
        self.graph = graph
        self.rules = rules
        self.side_effects = side_effects
        self.by_name: dict[str, list[Rule]] = {}
        self.reach = max((rule.pattern.depth for rule in rules), default=0)
        self.queue: deque[Op] = deque()
        self.queued: set[Op] = set()
        self.fired: Counter[str] = Counter()

    def run(self, limit: int) -> Counter[str]:
        before = -1
        # The queue follows changes along operands. A predicate may look further, so the whole
        # graph is swept again after a change, until a sweep finds nothing.
        while before != self.fired.total():
            before = self.fired.total()
            for op in self.graph.ops:
                self.enqueue(op)
            self.drain(limit)
        return self.fired

    def drain(self, limit: int) -> None:
        while self.queue:
            op = self.queue.popleft()
            self.queued.discard(op)
            if _is_live(op) and self.visit(op) and self.fired.total() > limit:
                raise _endless(self.graph, self.fired)

    def enqueue(self, op: Op) -> None:
        if op not in self.queued and self.rules_for(op.name):
            self.queued.add(op)
            self.queue.append(op)

    def rules_for(self, name: str) -> list[Rule]:
        if name not in self.by_name:
            self.by_name[name] = [
                r for r in self.rules if not r.pattern.names or name in r.pattern.names
            ]
        return self.by_name[name]

    def visit(self, op: Op) -> bool:
        """Fire the first rule that applies to this op."""
        for rule in self.rules_for(op.name):
            for match in matches(self.graph, rule.pattern, op):
                new = rule.apply(self.graph, match)
                if new is not None and self.replace(rule, op, new):
                    self.fired[rule.name] += 1
                    return True
        return False

    def replace(self, rule: Rule, root: Op, new: Op | Tensor) -> bool:
        _check(rule, root, new)
        readers = _readers(root)
        if isinstance(new, Op):
            self.insert(root, new)
        elif not self.forward(root.outputs[0], new):
            return False
        self.remove(root)
        for op in _ops_behind(new):
            self.enqueue(op)
        for op in readers:
            self.touch(op, self.reach - 1)
        return True

    def insert(self, root: Op, new: Op) -> None:
        """Put the new op in the root's place, and its results in the place of the root's."""
        for index, (old, result) in enumerate(zip(root.outputs, new.outputs, strict=True)):
            if any(old is out for out in self.graph.outputs):
                new.outputs[index] = old
            elif result is not old:
                self.graph.replace_uses(old, result)
        self.graph.insert(new, before=root)

    def forward(self, old: Tensor, new: Tensor) -> bool:
        """Readers of `old` read `new`. False: a graph output that cannot become the other."""
        if not any(old is out for out in self.graph.outputs):
            self.graph.enlist(new)
            self.graph.replace_uses(old, new)
            return True
        if any(new is t for t in (*self.graph.inputs, *self.graph.outputs)):
            return False  # one of the two names would be lost: the root stays as a copy
        if new.producer is not None:
            self._take_over(new.producer, new, old)
            return True
        if new.is_constant and not new.users:
            old.buffer, old.sparsity = new.buffer, new.sparsity
            return True
        return False

    def _take_over(self, producer: Op, inner: Tensor, output: Tensor) -> None:
        """Let the producer of `inner` write the graph output instead."""
        producer.outputs = [output if t is inner else t for t in producer.outputs]
        inner.producer, output.producer = None, producer
        self.graph.replace_uses(inner, output)

    def remove(self, root: Op) -> None:
        """Erase the op, then the ops whose results it alone has read."""
        doomed = [root]
        while doomed:
            op = doomed.pop()
            if not _is_live(op) and op is not root:
                continue
            self.graph.erase(op)
            for tensor in dict.fromkeys(op.inputs):
                producer = tensor.producer if tensor is not None else None
                if producer is not None and producer is not op:
                    self.after_erase(producer, doomed)

    def after_erase(self, producer: Op, doomed: list[Op]) -> None:
        if self.is_dead(producer):
            doomed.append(producer)
        elif _used_once(self.graph, producer):
            self.touch(producer, self.reach)  # a `once` may hold now

    def is_dead(self, op: Op) -> bool:
        unused = not any(t.users for t in op.outputs) and not _is_output(self.graph, op)
        return unused and not self.side_effects(op)

    def touch(self, op: Op, reach: int) -> None:
        """Look again at the op and at those whose pattern may reach up to it."""
        self.enqueue(op)
        if reach > 1:
            for reader in _readers(op):
                self.touch(reader, reach - 1)


def _readers(op: Op) -> list[Op]:
    return list(dict.fromkeys(user for t in op.outputs for user in t.users))


def _ops_behind(new: Op | Tensor) -> list[Op]:
    """The new op and, as `apply` may have put some there, those above it."""
    if isinstance(new, Tensor):
        return [new.producer] if new.producer is not None else []
    above = [t.producer for t in new.inputs if t is not None and t.producer is not None]
    return [*dict.fromkeys(above), new]


def _is_live(op: Op) -> bool:
    """In the graph, as its links tell (a search through graph.ops would be linear)."""
    if op.outputs:
        return op.outputs[0].producer is op
    return all(op in t.users for t in op.inputs if t is not None)


def _check(rule: Rule, root: Op, new: Op | Tensor) -> None:
    """A replacement that cannot be right is a mistake of the rule: say which."""
    wrong = ""
    if isinstance(new, Tensor):
        if len(root.outputs) != 1 or new is root.outputs[0]:
            wrong = "a tensor can only replace the one output of another op"
        results = [new]
    else:
        results = new.outputs
        if new is root or len(results) != len(root.outputs):
            wrong = "the new op is not a new one with as many outputs"
    pairs = zip(root.outputs, results, strict=False)
    if not wrong and any(old.dtype is not result.dtype for old, result in pairs):
        wrong = "the replacement has another element type"
    if wrong:
        raise SanderlingError(
            f"rule '{rule.name}' gave {new!r}: {wrong}",
            where=root.where,
            fix="correct the rule's apply function",
        )


def _endless(graph: Graph, fired: Counter[str]) -> SanderlingError:
    counts = ", ".join(f"'{name}' ({n} times)" for name, n in fired.most_common())
    return SanderlingError(
        f"rewriting does not come to an end; rules that fired: {counts}",
        where=f"graph '{graph.name}'",
        fix="make sure that no rule undoes another, or give rewrite a higher limit",
    )

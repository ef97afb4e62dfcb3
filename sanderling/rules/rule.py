"""What a table of rules is made of: a rule, and small functions that make rules.

A rule says in words what must hold of an op, and a function tells whether it does. All rules are
phrased alike ("its version is at most 2", "input 1 is constant"), so that the reason of a refusal
can be read off: "only where its version is at most 2; here it is 3".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..format.schema import OPTIONS, TABLES
from ..ir import DType, Graph, Op, Tensor
from ..runtime.delegate import Delegate
from ..runtime.partition import Limits

# What a rule is about. `partition` and `operator` are said by the engine itself.
KINDS = (
    "operator", "version", "level", "operands", "types", "rank", "shape", "constant", "attribute",
    "activation", "quantisation", "neighbours", "graph", "partition",
)  # fmt: skip
Holds = Callable[[Op], bool]
Found = Callable[[Op], object]


@dataclass(frozen=True)
class Rule:
    """A condition that an op must meet.

    holds: of an op, on a delegate of this level (an Android version, for example). found: what the
    op has instead, for the reason. source: the document or file that says so; "" is the table's.
    fatal: it is found out too late to leave the op to the CPU, so that the whole delegate fails.
    """

    kind: str
    says: str
    holds: Callable[[Op, int], bool]
    found: Found | None = None
    source: str = ""
    fatal: bool = False

    def reason(self, op: Op, level: int) -> str | None:
        """None if the op meets the rule, else a sentence."""
        if self.holds(op, level):
            return None
        if self.kind == "operator":
            return self.says
        here = "" if self.found is None else f"; here {self.found(op)}"
        return f"only where {self.says}{here}"


@dataclass(frozen=True)
class GraphRule:
    """A condition that a whole graph must meet; `problem` answers None or a sentence."""

    says: str
    problem: Callable[[Graph], str | None]
    source: str = ""


@dataclass(frozen=True)
class Border:
    """What it costs to hand tensors over: a call of a part, and bytes of its inputs and outputs.

    The figures are orders of magnitude for a device of the kind, to compare partitions with: only
    a measurement on the device says what it is.
    """

    call_us: float = 0.0
    bytes_per_us: float = 0.0

    def cost_us(self, parts: int, count: int) -> float:
        """The time that so many parts and bytes take."""
        return parts * self.call_us + (count / self.bytes_per_us if self.bytes_per_us else 0.0)


NO_LIMITS, NO_COST = Limits(), Border()


@dataclass(frozen=True)
class Table:
    """All that is known of what a delegate accepts.

    rows: what it asks of each operator that it knows. every: what it asks of all ops, after the
    row. graph: of the graph as a whole. limits: how many parts it takes, of which size
    (limits_source: who says so, where it is not the table's source).
    is_first_part: it takes one part, which ends at the first op that it refuses; leads_in: ops that
    the CPU runs before it. folds: ops that
    expand constants; whoever reads their results is asked as if it read the constant. delegates:
    of a session with a delegate of ours; the first one's answers stand in place of rows.
    """

    name: str
    title: str
    source: str
    rows: Mapping[str, tuple[Rule, ...]]
    every: tuple[Rule, ...] = ()
    graph: tuple[GraphRule, ...] = ()
    limits: Limits = NO_LIMITS
    limits_source: str = ""
    is_first_part: bool = False
    leads_in: Callable[[Op], bool] | None = None
    level: int = 0
    folds: Callable[[Op], bool] | None = None
    border: Border = NO_COST
    delegates: Sequence[Delegate] = ()

    def failing(self, op: Op) -> Rule | None:
        """The first rule that the op breaks."""
        if op.name not in self.rows:
            return self._unknown(op)
        asked = (*self.rows[op.name], *self.every)
        found = next((r for r in asked if not r.holds(op, self.level)), None)
        return found and self.sourced(found)

    def sourced(self, rule: Rule) -> Rule:
        """The rule with the table's source where it has none of its own."""
        return rule if rule.source else replace(rule, source=self.source)

    def _unknown(self, op: Op) -> Rule:
        says = f"there is no {op.name} among its {len(self.rows)} operators"
        return stated("operator", says, self.source)


def stated(kind: str, says: str, source: str) -> Rule:
    """A rule that an op is known to break."""
    return Rule(kind, says, lambda *_: False, source=source)


def sourced(source: str, *rules: Rule) -> tuple[Rule, ...]:
    """These rules, which a file of their own states."""
    return tuple(replace(r, source=source) for r in rules)


def fatal(*rules: Rule) -> tuple[Rule, ...]:
    """These rules, which are looked at only when a part is built."""
    return tuple(replace(r, fatal=True) for r in rules)


def rows(*given: tuple[str, Iterable[Rule]]) -> dict[str, tuple[Rule, ...]]:
    """Rows by operator, of (names with blanks between them, rules); what is given several times
    adds up."""
    found: dict[str, tuple[Rule, ...]] = {}
    for names, rules in given:
        for name in names.split():
            found[name] = found.get(name, ()) + tuple(rules)
    return found


# -- looks at an op ------------------------------------------------------------------------------


def attribute_of(op: Op, name: str) -> Any:
    """An attribute, or the schema's default."""
    if name in op.attrs:
        return op.attrs[name]
    fields = TABLES.get(op.options or OPTIONS.get(op.name, ""), ())
    return next((f.default for f in fields if f.name == name), None)


def activation_of(op: Op) -> str:
    return attribute_of(op, "fused_activation_function") or "NONE"


def operands(op: Op) -> list[Tensor]:
    """The inputs that are there."""
    return [t for t in op.inputs if t is not None]


def computed(op: Op) -> list[Tensor]:
    """The inputs that are no constants."""
    return [t for t in operands(op) if not t.is_constant]


def constants(op: Op) -> list[Tensor]:
    return [t for t in operands(op) if t.is_constant]


def is_constant(op: Op, place: int) -> bool:
    tensor = op.input(place)
    return tensor is not None and tensor.is_constant


def is_type(tensor: Tensor | None, names: str) -> bool:
    return tensor is not None and tensor.dtype.short in names.split()


def rank_of(op: Op, place: int) -> int:
    """The rank of an input; -1 where it is absent."""
    tensor = op.input(place)
    return -1 if tensor is None else len(tensor.shape)


def elements(tensor: Tensor) -> int:
    return math.prod(tensor.shape)


def values_of(op: Op, place: int) -> list[Any] | None:
    """The values of a constant input, flat; None where they are not known."""
    tensor = op.input(place)
    if tensor is None or tensor.data is None:
        return None
    return list(tensor.data.reshape(-1).tolist())


def per_axis(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.quant is not None and tensor.quant.per_axis


def scale_of(tensor: Tensor | None) -> float | None:
    """The only scale of a tensor; None where there is none or more than one."""
    if tensor is None or tensor.quant is None or tensor.quant.scale.size != 1:
        return None
    return float(tensor.quant.scale[0])


def is_quantised(op: Op) -> bool:
    """Its first result is 8-bit codes, or its first operand."""
    ends = [t for t in (*op.inputs[:1], *op.outputs[:1]) if t is not None]
    return any(t.dtype in (DType.INT8, DType.UINT8) for t in ends)


def is_hybrid(op: Op) -> bool:
    """Float values with weights as codes."""
    x, weights = op.input(0), op.input(1)
    both = x is not None and weights is not None
    return both and is_type(x, "f32") and is_type(weights, "i8 u8 i4")


def is_dilated(op: Op) -> bool:
    names = ("dilation_h_factor", "dilation_w_factor")
    return any((attribute_of(op, name) or 1) != 1 for name in names)


def _words(names: str) -> str:
    *most, last = names.split()
    return f"{', '.join(most)} or {last}" if most else last


# -- makers of rules -----------------------------------------------------------------------------


def where(kind: str, says: str, holds: Holds, found: Found | None = None) -> Rule:
    """A rule that looks at the op alone."""
    return Rule(kind, says, lambda op, _: holds(op), found)


def when(condition: str, applies: Holds, *rules: Rule) -> tuple[Rule, ...]:
    """These rules for ops of some kind alone; condition: the kind in words ("it is quantised")."""

    def narrowed(rule: Rule) -> Rule:
        def holds(op: Op, level: int) -> bool:
            return not applies(op) or rule.holds(op, level)

        return replace(rule, says=f"{rule.says} if {condition}", holds=holds)

    return tuple(map(narrowed, rules))


def below(limit: int, name: str, *rules: Rule) -> tuple[Rule, ...]:
    """These rules on delegates below a level alone; name: the level's."""

    def narrowed(rule: Rule) -> Rule:
        def holds(op: Op, level: int) -> bool:
            return level >= limit or rule.holds(op, level)

        return replace(rule, says=f"{rule.says} (below level {name})", holds=holds)

    return tuple(map(narrowed, rules))


def since(least: int, says: str) -> Rule:
    """On delegates of this level and above."""
    return Rule("level", says, lambda _, level: level >= least)


def version(most: int, least: int = 1) -> Rule:
    """The operator's version, as the file states it."""
    exactly = f"its version is {most}" if most == least else f"its version is at most {most}"
    return where(
        "version", exactly, lambda op: least <= op.version <= most, lambda op: f"it is {op.version}"
    )


def input_count(*counts: int) -> Rule:
    return _count("inputs", lambda op: len(op.inputs), counts)


def output_count(*counts: int) -> Rule:
    return _count("results", lambda op: len(op.outputs), counts)


def computed_count(*counts: int) -> Rule:
    return _count("computed inputs", lambda op: len(computed(op)), counts)


def constant_count(*counts: int) -> Rule:
    return _count("constant inputs", lambda op: len(constants(op)), counts)


def _count(what: str, count: Callable[[Op], int], allowed: tuple[int, ...]) -> Rule:
    says = f"the number of {what} is {_words(' '.join(map(str, allowed)))}"
    return where("operands", says, lambda op: count(op) in allowed, lambda op: f"it is {count(op)}")


def least_inputs(count: int) -> Rule:
    return where("operands", f"it has {count} inputs or more", lambda op: len(op.inputs) >= count)


def has_input(place: int, what: str) -> Rule:
    return where("operands", f"it has {what}", lambda op: op.input(place) is not None)


def constant(place: int, what: str) -> Rule:
    """An input that must be constant; one that is absent is no matter of this rule."""
    return where(
        "constant",
        f"{what} is constant",
        lambda op: op.input(place) is None or is_constant(op, place),
    )


def input_type(place: int, names: str, what: str = "") -> Rule:
    """The type of an input that is there."""
    said = what or f"input {place}"
    return where(
        "types",
        f"{said} is {_words(names)}",
        lambda op: op.input(place) is None or is_type(op.input(place), names),
        lambda op: f"it is {op.operand(place).dtype.short}",
    )


def output_type(place: int, names: str) -> Rule:
    return where(
        "types",
        f"result {place} is {_words(names)}",
        lambda op: len(op.outputs) <= place or is_type(op.outputs[place], names),
        lambda op: f"it is {op.outputs[place].dtype.short}",
    )


def input_rank(place: int, *ranks: int) -> Rule:
    said = _words(" ".join(map(str, ranks)))
    return where(
        "rank",
        f"input {place} has rank {said}",
        lambda op: rank_of(op, place) in (-1, *ranks),
        lambda op: f"it has {rank_of(op, place)}",
    )


def most_rank(most: int) -> Rule:
    """The rule that no input or result has a higher rank."""

    def highest(op: Op) -> int:
        return max((len(t.shape) for t in (*operands(op), *op.outputs)), default=0)

    return where(
        "rank",
        f"no tensor has a rank above {most}",
        lambda op: highest(op) <= most,
        lambda op: f"one has {highest(op)}",
    )


def attribute(name: str, *allowed: object) -> Rule:
    said = _words(" ".join(map(str, allowed)))
    return where(
        "attribute",
        f"{name} is {said}",
        lambda op: attribute_of(op, name) in allowed,
        lambda op: f"it is {attribute_of(op, name)}",
    )


def unset(name: str) -> Rule:
    """A flag or mask that must be zero."""
    return where(
        "attribute",
        f"{name} is not set",
        lambda op: not attribute_of(op, name),
        lambda op: f"it is {attribute_of(op, name)}",
    )


def at_most(names: str, most: int) -> Rule:
    def highest(op: Op) -> int:
        return max(attribute_of(op, name) or 0 for name in names.split())

    return where(
        "attribute",
        f"{' and '.join(names.split())} are at most {most}",
        lambda op: highest(op) <= most,
        lambda op: f"one is {highest(op)}",
    )


def positive(names: str) -> Rule:
    def lowest(op: Op) -> int:
        return min(attribute_of(op, name) or 0 for name in names.split())

    return where(
        "attribute",
        f"{', '.join(names.split())} are positive",
        lambda op: lowest(op) > 0,
        lambda op: f"one is {lowest(op)}",
    )


def activation(names: str) -> Rule:
    return where(
        "activation",
        f"the fused activation is {_words(names)}",
        lambda op: activation_of(op) in names.split(),
        lambda op: f"it is {activation_of(op)}",
    )


NO_ACTIVATION = where(
    "activation",
    "there is no fused activation",
    lambda op: activation_of(op) == "NONE",
    lambda op: f"it is {activation_of(op)}",
)
UNDILATED = where("attribute", "it is not dilated", lambda op: not is_dilated(op))
NEVER = stated("operator", "no op of this kind is taken", "")


# -- rules of graphs -----------------------------------------------------------------------------


def _dynamic(graph: Graph) -> str | None:
    open_ = next((t for op in graph.ops for t in op.outputs if t.is_dynamic), None)
    return None if open_ is None else f"the size of '{open_.name}' is known only in the run"


# ModifyGraphWithDelegate refuses a delegate that does not allow dynamic tensors as a whole.
STATIC_SIZES = GraphRule("every size is known before the run", _dynamic, "tflite/core/subgraph.cc")

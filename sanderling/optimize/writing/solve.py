"""Which values become codes, with which scale: solved over the whole graph.

A value lives in the domain (bits) of the op that makes it, 0 for float. Where an op of another
domain reads it, it is converted. Values that kernels want at one scale form a group; a group has
one range. Where an operand cannot join (its scale is fixed, or others would lose by it), that one
use is requantised.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ...errors import ModelError
from ...ir import DType, Graph, Op, Quant, Tensor
from ..modes import recurrent
from ..modes.rules import RULES, Fixed, OpRule
from ..modes.scheme import Grid, Mode, Range, RangeOf, mode_of

# An operand with other readers joins a group only if its own range is not less than this share of
# the group's: two bits are the most that the others lose.
LEAST_SHARE = 0.25
# Scores this far below the largest add nothing to a softmax, as its integer kernel counts too: a
# mask of -10000 needs no codes.
SOFTMAX_REACH = 32.0
FLOAT = 0


@dataclass(frozen=True)
class DomainValue:
    """A tensor in a domain; `use` marks one operand of one op that is requantised for it alone."""

    tensor: Tensor
    bits: int
    use: tuple[Op, int] | None = None


@dataclass
class ScaleGroup:
    """Values with one scale."""

    values: list[DomainValue] = field(default_factory=list)
    fixed: Fixed | None = None
    quant: Quant | None = None


@dataclass
class Solution:
    """modes: what each op became. reasons: why an op that should be integer is not."""

    modes: dict[Op, Mode]
    reasons: dict[Op, str]
    home: dict[Tensor, int] = field(default_factory=dict)
    groups: dict[DomainValue, ScaleGroup] = field(default_factory=dict)
    apart: set[tuple[Op, int]] = field(default_factory=set)  # operands requantised for one use

    def domain(self, op: Op) -> int:
        mode = self.modes[op]
        return mode.activations.bits if mode.activations else FLOAT

    def value(self, op: Op, place: int, tensor: Tensor) -> DomainValue:
        use = (op, place) if (op, place) in self.apart else None
        return DomainValue(tensor, self.domain(op), use)

    def quant(self, value: DomainValue) -> Quant:
        found = self.groups[value].quant
        if found is None:
            raise ModelError(
                "no scale has been found for it",
                where=f"tensor '{value.tensor.name}'",
                fix="solve the graph before it is written",
            )
        return found


def solve(
    graph: Graph,
    modes: Mapping[Op, Mode],
    ranges: RangeOf,
) -> Solution:
    """ranges(tensor, grid): the values to represent, or None where nothing is known."""
    solution = Solution(dict(modes), {})
    _refuse(graph, solution, ranges)
    solution.home = {t: solution.domain(op) for op in graph.ops if _carries(op) for t in op.outputs}
    grids = {m.activations.bits: m.activations for m in modes.values() if m.activations}
    bounds = _Bounds(ranges, grids, _into_softmax(graph))
    _unite(graph, solution, bounds)
    for group in {id(g): g for g in solution.groups.values()}.values():
        group.quant = _quant_of(group, bounds)
    return solution


def _carries(op: Op) -> bool:
    row = RULES.get(op.name)
    return row is None or row.real_out


# -- who can be integer ---------------------------------------------------------------------------


def _refuse(graph: Graph, solution: Solution, ranges: RangeOf) -> None:
    for op, mode in list(solution.modes.items()):
        if mode.activations is None:
            continue
        reason = "" if _has_reals(op) else "it has no real values"
        reason = (
            reason
            or refusal(op, mode.activations.bits)
            or _unknown_range(op, mode.activations, ranges)
        )
        if reason:
            # A table's rows are made float one by one: it is stored as codes all the same.
            table = op.name == "EMBEDDING_LOOKUP"
            solution.modes[op] = mode_of("dynamic") if table else FLOAT_MODE
            if _has_reals(op):
                solution.reasons[op] = reason


FLOAT_MODE = mode_of("float")


def _has_reals(op: Op) -> bool:
    return any(t is not None and t.dtype is DType.FLOAT32 for t in (*op.inputs, *op.outputs))


def refusal(op: Op, bits: int) -> str:
    """Say why no integer kernel of so many bits can run this op; "" if one can."""
    row = RULES.get(op.name)
    if op.subgraphs:
        return "it calls graphs, which take and give float values"
    if row is None:
        return f"{op.name} has no integer kernel"
    if bits not in row.bits:
        return f"{op.name} has no {bits}-bit kernel"
    if any(t.is_variable for t in row.flowing(op)):
        return "it reads a variable"
    if any(t.dtype is not DType.FLOAT32 for t in row.flowing(op)):
        return "its operands are not float32"
    if row.real_out and any(t.dtype is not DType.FLOAT32 for t in op.outputs):
        return "its outputs are not float32"
    return recurrent.refusal(op) if row.recurrent else _weights_refusal(op, row)


def _weights_refusal(op: Op, row: OpRule) -> str:
    places = [*row.weights, *([] if row.bias is None else [row.bias])]
    for place in places:
        tensor = op.input(place)
        if tensor is not None and tensor.data is None:
            return f"its operand '{tensor.name}' is computed, not constant"
        if tensor is not None and tensor.dtype is not DType.FLOAT32:
            return f"its operand '{tensor.name}' is {tensor.dtype.short}, not float32"
    return ""


def _unknown_range(op: Op, grid: Grid, ranges: RangeOf) -> str:
    row = RULES[op.name]
    outputs = op.outputs if row.real_out else []
    states = recurrent.hidden_states(op) if row.recurrent else []
    for tensor in (*row.flowing(op), *outputs, *states):
        if ranges(tensor, grid) is None:
            return f"the calibration data never reached '{tensor.name}'"
    return ""


def _into_softmax(graph: Graph) -> set[Tensor]:
    """Values that only a SOFTMAX reads, perhaps moved before."""
    found: set[Tensor] = set()
    for op in reversed(graph.ops):
        row = RULES.get(op.name)
        places = row.operands(op) if row is not None and (row.same or op.name == "SOFTMAX") else []
        source = op.inputs[places[0]] if len(places) == 1 else None
        if source is None or source in graph.outputs or any(u is not op for u in source.users):
            continue
        if op.name == "SOFTMAX" or all(t in found for t in op.outputs):
            found.add(source)
    return found


# -- groups ---------------------------------------------------------------------------------------


class _Bounds:
    """Ranges of values and groups."""

    def __init__(
        self, ranges: RangeOf, grids: Mapping[int, Grid], short: Collection[Tensor] = ()
    ) -> None:
        self.ranges, self.grids, self.short = ranges, grids, short

    def of(self, value: DomainValue) -> Range:
        low, high = self.ranges(value.tensor, self.grids[value.bits]) or (0.0, 0.0)
        return (max(low, high - SOFTMAX_REACH) if value.tensor in self.short else low), high

    def over(self, values: Iterable[DomainValue]) -> Range:
        lows, highs = zip(*map(self.of, values), strict=True)
        return min(0.0, *lows), max(0.0, *highs)

    def width(self, values: Iterable[DomainValue]) -> float:
        low, high = self.over(values)
        return high - low

    def fixed(self, bits: int, fixed: Fixed) -> Range:
        scale, zero = fixed
        low, high = self.grids[bits].bounds
        return (low - zero) * scale, (high - zero) * scale


def _unite(graph: Graph, solution: Solution, bounds: _Bounds) -> None:
    integer = [op for op in graph.ops if solution.domain(op)]
    for op in integer:
        _enter(op, solution)
    same = [op for op in integer if RULES[op.name].same]
    # One operand: the codes pass through unchanged, whatever they are.
    for op in sorted(same, key=lambda op: len(RULES[op.name].operands(op)) > 1):
        _tie(op, solution, bounds)


def _enter(op: Op, solution: Solution) -> None:
    """A group for each value that the op reads or makes."""
    row, bits = RULES[op.name], solution.domain(op)
    outputs = op.outputs if row.real_out else []
    for tensor in (*row.flowing(op), *outputs):
        value = DomainValue(tensor, bits)
        if value not in solution.groups:
            solution.groups[value] = ScaleGroup([value])
    if bits in row.fixed:
        for tensor in outputs:
            solution.groups[DomainValue(tensor, bits)].fixed = row.fixed[bits]


def _tie(op: Op, solution: Solution, bounds: _Bounds) -> None:
    row, bits = RULES[op.name], solution.domain(op)
    target = solution.groups[DomainValue(op.outputs[0], bits)]
    for output in op.outputs[1:]:
        target = _merge(solution, target, solution.groups[DomainValue(output, bits)])
    alone = len(row.operands(op)) == 1
    for place in row.operands(op):
        tensor = op.operand(place)
        group = solution.groups[DomainValue(tensor, bits)]
        if group is target:
            continue
        if _fits(op, group, target, alone, bounds):
            target = _merge(solution, target, group)
        else:
            solution.apart.add((op, place))
            use = DomainValue(tensor, bits, (op, place))
            target.values.append(use)
            solution.groups[use] = target


def _fits(op: Op, group: ScaleGroup, target: ScaleGroup, alone: bool, bounds: _Bounds) -> bool:
    """Whether an operand's group may take the scale of the op's result."""
    if group.fixed and target.fixed:
        return group.fixed == target.fixed
    if group.fixed or target.fixed:
        return alone or _inside(group, target, bounds)
    if alone or not _others_read(op, group):
        return True
    whole = bounds.width([*group.values, *target.values])
    return bounds.width(group.values) >= LEAST_SHARE * whole


def _inside(group: ScaleGroup, target: ScaleGroup, bounds: _Bounds) -> bool:
    """Say whether the scale of the fixed group suits the other: it holds the values, and not in a
    corner."""
    fixed, free = (group, target) if group.fixed else (target, group)
    if fixed.fixed is None:
        return True
    low, high = bounds.fixed(fixed.values[0].bits, fixed.fixed)
    least, most = bounds.over(free.values)
    room = high - low
    slack = room / 128
    return least >= low - slack and most <= high + slack and most - least >= LEAST_SHARE * room


def _others_read(op: Op, group: ScaleGroup) -> bool:
    return any(user is not op for v in group.values for user in v.tensor.users)


def _merge(solution: Solution, one: ScaleGroup, other: ScaleGroup) -> ScaleGroup:
    if one is other:
        return one
    one.values += other.values
    one.fixed = one.fixed or other.fixed
    for value in other.values:
        solution.groups[value] = one
    return one


def _quant_of(group: ScaleGroup, bounds: _Bounds) -> Quant:
    if group.fixed:
        scale, zero = group.fixed
        return Quant.of(np.float32(scale), zero)
    return bounds.grids[group.values[0].bits].quant(*bounds.over(group.values))

"""Which operands an operator takes and what it makes of them: the rules of the operator table.

A rule is a text in the operator's row, and whatever does not keep to it is refused while a graph
is planned, before a delegate sees it: compiled code relies on that.

    x: f32 f16, indices: i32 i64 -> x          operands and results by type, in the file's order
    x: f32, w: f32 i8Q, bias?: f32 -> x        `?`: it may be absent
    x: f32 i8q, y*: x -> x                     `*`: as many as there are, also none; `y` is like `x`
    x[4]: f32, 2 state[2-]: f32 -> x           ranks: just 4, at least 2; two operands of a kind
    x: f32, state!: x -> x                     `!`: a variable tensor
    x: i8q, y: x -> x | x: i16, y: x -> i8     forms to choose from
    q: any -> i32 i64                          any type at all

A name in place of types says: of the same type as that operand. Of an integer type, `q` wants one
scale, `Q` wants scales (one, or one a channel; inference knows how many there are to be).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

from ..errors import ModelError, SanderlingError, UnsupportedError
from ..ir import DType, Op, Shape, Tensor

MANY = 1 << 30  # a count without upper bound
ANY = tuple(DType)
COUNT = -1  # the place of a misfit that is no tensor, but how many there are
LATER = 1 << 16  # results come after all operands
_ITEM = re.compile(
    r"(?:(?P<count>\d+) )?(?P<name>\w+)(?P<mark>[?*!]?)"
    r"(?:\[(?P<low>\d+)(?P<dash>-?)(?P<high>\d*)\])?: ?(?P<types>.+)"
)


@dataclass(frozen=True)
class OperandRule:
    """What may stand at one place among the operands or results."""

    name: str
    types: tuple[DType, ...]
    like: int | None = None  # the operand whose type it has
    optional: bool = False
    repeats: bool = False
    variable: bool = False
    ranks: tuple[int, int] | None = None
    one_scale: tuple[DType, ...] = ()  # types that want exactly one scale
    scales: tuple[DType, ...] = ()  # types that want some

    def is_furnished(self, given: Tensor) -> bool:
        """Scales are there where they are wanted, and a variable is one."""
        if self.variable and not given.is_variable:
            return False
        if given.dtype in self.one_scale:
            return given.quant is not None and given.quant.scale.size == 1
        wanted = given.dtype in self.scales
        return not wanted or (given.quant is not None and given.quant.is_set)

    @property
    def texts(self) -> tuple[str, ...]:
        return ("any",) if self.types is ANY else tuple(t.short for t in self.types)

    def wants(self, given: Tensor, inputs: Sequence[Tensor | None]) -> tuple[str, tuple[str, ...]]:
        """What is wrong with a tensor that it does not take, and what it takes."""
        model = None if self.like is None else inputs[self.like]
        if model is not None and model.dtype is not given.dtype:
            return f"is {given.dtype.short}", (f"{model.dtype.short}, as '{model.name}' is",)
        if given.dtype not in self.types:
            return f"is {given.dtype.short}", self.texts
        if self.variable and not given.is_variable:
            return "is not a variable", ("a variable tensor",)
        found = 0 if given.quant is None else given.quant.scale.size
        scales = f"{found} scales" if found else "no quantisation parameters"
        wanted = "one scale" if given.dtype in self.one_scale else "scales"
        return f"is {given.dtype.short} with {scales}", (f"{given.dtype.short} with {wanted}",)


@dataclass(frozen=True)
class Fault:
    """Where an op leaves a form: the later, the nearer the form is to what was meant."""

    at: int
    what: str
    takes: tuple[str, ...]
    is_type: bool = False


@dataclass(frozen=True)
class OperandRules:
    """Operands or results, in order; the last may stand for many."""

    kind: str
    each: tuple[OperandRule, ...]

    @cached_property
    def counts(self) -> tuple[int, int]:
        """Fewest and most, the optional ones included."""
        needed = [i + 1 for i, p in enumerate(self.each) if not (p.optional or p.repeats)]
        many = bool(self.each) and self.each[-1].repeats
        return max(needed, default=0), MANY if many else len(self.each)

    def at(self, index: int) -> OperandRule:
        return self.each[index] if index < len(self.each) else self.each[-1]

    def who(self, index: int) -> str:
        return f"{self.kind} {index} ({self.at(index).name})"

    def misfit(self, given: Sequence[Tensor | None], inputs: Sequence[Tensor | None]) -> int | None:
        """The first that may not stand where it stands; COUNT where they are too many or few."""
        low, high = self.counts
        if not low <= len(given) <= high:
            return COUNT
        last = len(self.each) - 1
        # This is all that planning a right op costs: no calls where types alone decide.
        for index, tensor in enumerate(given):
            place, types, like, furnished = self._rows[index if index < last else last]
            if tensor is None:
                if not place.optional:
                    return index
                continue
            dtype = tensor.dtype
            if dtype not in types:
                return index
            model = None if like is None else inputs[like]
            if model is not None and model.dtype is not dtype:
                return index
            if furnished and not place.is_furnished(tensor):
                return index
        return None

    @cached_property
    def _rows(self) -> tuple[tuple[OperandRule, tuple[DType, ...], int | None, bool], ...]:
        return tuple(
            (p, p.types, p.like, bool(p.variable or p.one_scale or p.scales)) for p in self.each
        )

    def explain(
        self, index: int, given: Sequence[Tensor | None], inputs: Sequence[Tensor | None]
    ) -> Fault:
        """What is wrong with that misfit."""
        if index == COUNT:
            return Fault(index, f"{len(given)} {self.kind}s", (_span(*self.counts),))
        place, tensor = self.at(index), given[index]
        if tensor is None:
            return Fault(index, f"{self.who(index)} is absent", place.texts)
        found, takes = place.wants(tensor, inputs)
        what = f"{self.who(index)}, tensor '{tensor.name}', {found}"
        return Fault(index, what, takes, tensor.dtype not in place.types)


@dataclass(frozen=True)
class Form:
    """One way to use an operator."""

    operands: OperandRules
    results: OperandRules

    def takes(self, op: Op) -> bool:
        inputs = op.inputs
        fits = self.operands.misfit(inputs, inputs) is None
        return fits and self.results.misfit(op.outputs, inputs) is None

    def fault(self, op: Op) -> Fault:
        """Where an op that does not keep to this form leaves it."""
        inputs = op.inputs
        index = self.operands.misfit(inputs, inputs)
        if index is not None:
            return self.operands.explain(index, inputs, inputs)
        index = self.results.misfit(op.outputs, inputs)
        assert index is not None, "an op that keeps to the form has no fault"
        found = self.results.explain(index, op.outputs, inputs)
        return replace(found, at=found.at + LATER)


@dataclass(frozen=True)
class LegalForms:
    """All that is legal for an operator."""

    forms: tuple[Form, ...]
    main: int  # the operand that decides: the one named x, else the first
    is_ranked: bool

    @property
    def counts(self) -> tuple[int, int]:
        """Fewest and most operands of any form."""
        every = [form.operands.counts for form in self.forms]
        return min(low for low, _ in every), max(high for _, high in every)

    @property
    def types(self) -> tuple[str, ...]:
        """Types that the main operand may have; none where it may have any."""
        found = [form.operands.each[self.main].types for form in self.forms if form.operands.each]
        if ANY in found:
            return ()
        return tuple(dict.fromkeys(t.short for types in found for t in types))

    def allows(self, op: Op) -> bool:
        return any(form.takes(op) for form in self.forms)

    def check(self, op: Op) -> Form:
        """The form that the op keeps to; an error where there is none."""
        for form in self.forms:
            if form.takes(op):
                return form
        raise _error(op, [form.fault(op) for form in self.forms], self.main)

    def check_ranks(self, op: Op, form: Form, shapes: Sequence[Shape | None]) -> None:
        """Compare what is known of the operands' shapes with the form's ranks."""
        for index, shape in enumerate(shapes):
            ranks, tensor = form.operands.at(index).ranks, op.inputs[index]
            if ranks is None or shape is None or tensor is None:
                continue
            if not ranks[0] <= len(shape) <= ranks[1]:
                who = f"{form.operands.who(index)}, tensor '{tensor.name}',"
                raise ModelError(
                    f"{who} has shape {list(shape)}",
                    where=op.where,
                    fix=f"it takes rank {_span(*ranks)}",
                )


def _span(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low} or more" if high == MANY else f"{low} to {high}"


def _error(op: Op, faults: Sequence[Fault], main: int) -> SanderlingError:
    """What is said of the form that fits best; others that end at the same place add to it."""
    last = max(faults, key=lambda f: f.at)
    together = [f for f in faults if f.at == last.at]
    takes = ", ".join(dict.fromkeys(t for f in together for t in f.takes))
    if last.at >= LATER + COUNT:
        return ModelError(last.what, where=op.where, fix=f"it gives {takes}")
    unknown = last.at == main and all(f.is_type for f in together)
    kind = UnsupportedError if unknown else ModelError
    return kind(last.what, where=op.where, fix=f"it takes {takes}")


# -- from text ----------------------------------------------------------------------------------


@cache
def parse(text: str) -> LegalForms:
    """The rule that a row's text states; families share texts, and so rules."""
    forms = tuple(_form(part) for part in text.split("|"))
    names = [place.name for place in forms[0].operands.each]
    is_ranked = any(place.ranks for form in forms for place in form.operands.each)
    return LegalForms(forms, names.index("x") if "x" in names else 0, is_ranked)


def _form(text: str) -> Form:
    operands, results = (
        [part for part in side.split(",") if part.strip()] for side in text.split("->")
    )
    items = [item for part in operands for item in _items(part)]
    names = [item["name"] for item in items]
    made = tuple(_place(item, names) for item in items)
    ends = [part if ":" in part else f"result: {part}" for part in results]
    gives = tuple(_place(item, names) for part in ends for item in _items(part))
    return Form(
        OperandRules("input", _resolve(made, made)), OperandRules("output", _resolve(gives, made))
    )


def _items(text: str) -> list[re.Match[str]]:
    found = _ITEM.fullmatch(text.strip())
    assert found is not None, f"'{text}' is not a rule"
    return [found] * int(found["count"] or 1)


def _place(item: re.Match[str], names: list[str]) -> OperandRule:
    words = item["types"].split()
    like = names.index(words[0]) if len(words) == 1 and words[0] in names else None
    words = [] if like is not None else words
    types = ANY if words == ["any"] else tuple(DType.parse(w.rstrip("qQ")) for w in words)
    one = tuple(DType.parse(w[:-1]) for w in words if w.endswith("q"))
    some = tuple(DType.parse(w[:-1]) for w in words if w.endswith("Q"))
    mark = item["mark"]
    return OperandRule(
        item["name"], types, like, mark == "?", mark == "*", mark == "!", _ranks(item), one, some
    )


def _ranks(item: re.Match[str]) -> tuple[int, int] | None:
    if item["low"] is None:
        return None
    most = item["high"] or (MANY if item["dash"] else item["low"])
    return int(item["low"]), int(most)


def _resolve(
    places: tuple[OperandRule, ...], operands: tuple[OperandRule, ...]
) -> tuple[OperandRule, ...]:
    """Give those that name an operand its types and scales."""
    models = [None if p.like is None else operands[p.like] for p in places]
    assert all(m is None or m.like is None for m in models), "what it is like is like another"
    return tuple(
        p if m is None else replace(p, types=m.types, one_scale=m.one_scale, scales=m.scales)
        for p, m in zip(places, models, strict=True)
    )

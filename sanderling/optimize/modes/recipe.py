"""Recipes: which op gets which mode. A list of rules, read from top to bottom; later ones win.

- mode: int8
- {op: SOFTMAX, mode: float}
- {name: "*/head/*", mode: int16x8}
- {from: input, to: block_3/add, mode: float}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...files import read_data
from ...ir import Graph, Op, Tensor
from ...ir.graph import closest
from .scheme import Mode, mode_of


@dataclass(frozen=True)
class Choice:
    """One rule of a recipe.

    op: the operator, as a glob. name: the name of one of the op's outputs, as a glob, or as a
    regular expression between slashes. start, stop: ops on a way from one tensor to another (one of
    them may be left out). What is not given fits everything.
    """

    mode: str
    op: str = "*"
    name: str = "*"
    start: str = ""
    stop: str = ""


KEYS = {"from": "start", "to": "stop"} | {f.name: f.name for f in fields(Choice)}
FIX = "give a .yaml or .json file: a list of rules, each with a mode"
Recipe = Sequence[Choice | Mapping[str, Any]]


def read_recipe(given: str | Path | Recipe) -> list[Choice]:
    """From a file (.yaml, .yml, .json), or from rules in Python."""
    if isinstance(given, str | Path):
        return _choices(
            read_data(given, "the recipe", FIX, Path(given).suffix != ".json"), str(given)
        )
    return _choices(given, "recipe")


def _choices(rules: Any, where: str) -> list[Choice]:
    if not isinstance(rules, list | tuple):
        raise InputError(
            "it is not a list of rules", where=where, fix="write: - mode: int8 (one rule a line)"
        )
    return [_choice(rule, f"{where}, rule {i}") for i, rule in enumerate(rules, 1)]


def _choice(rule: Any, where: str) -> Choice:
    if isinstance(rule, Choice):
        mode_of(rule.mode)
        return rule
    if not isinstance(rule, Mapping) or "mode" not in rule:
        raise InputError(
            "it names no mode", where=where, fix="write for example {op: ADD, mode: int8}"
        )
    unknown = [k for k in rule if k not in KEYS]
    if unknown:
        raise InputError(
            f"'{unknown[0]}' is not a part of a rule",
            where=where,
            fix=f"its parts are {', '.join(KEYS)}",
        )
    made = Choice(**{KEYS[k]: str(v) for k, v in rule.items()})
    mode_of(made.mode)
    return made


def modes(graph: Graph, recipe: Iterable[Choice]) -> dict[Op, Mode]:
    return all_modes([graph], recipe)


def all_modes(graphs: Sequence[Graph], recipe: Iterable[Choice]) -> dict[Op, Mode]:
    """Each op's mode; ops that no rule fits stay float. A rule that fits no op is refused: it is a
    misspelt name. A region is one of the first graph."""
    ops = [op for graph in graphs for op in graph.ops]
    found = dict.fromkeys(ops, mode_of("float"))
    for choice in recipe:
        within = graphs[:1] if choice.start or choice.stop else graphs
        fitting = [op for graph in within for op in _fitting(graph, choice)]
        if not fitting and (choice.op, choice.name) != ("*", "*"):
            names = [t.name for op in ops for t in op.outputs]
            raise InputError(
                f"the rule {_text(choice)} fits no op",
                where="recipe",
                fix=closest(choice.name, names)
                if choice.name != "*"
                else closest(choice.op, sorted({op.name for op in ops})),
            )
        found |= dict.fromkeys(fitting, mode_of(choice.mode))
    return found


def _text(choice: Choice) -> str:
    parts = {"op": choice.op, "name": choice.name}
    return ", ".join(f"{k}: {v}" for k, v in parts.items() if v != "*")


def _fitting(graph: Graph, choice: Choice) -> list[Op]:
    region = _region(graph, choice)
    return [
        op
        for op in graph.ops
        if fnmatchcase(op.name, choice.op)
        and _named(op, choice.name)
        and (region is None or op in region)
    ]


def _named(op: Op, pattern: str) -> bool:
    if len(pattern) > 1 and pattern[0] == pattern[-1] == "/":
        return any(re.search(pattern[1:-1], t.name) for t in op.outputs)
    return pattern == "*" or any(fnmatchcase(t.name, pattern) for t in op.outputs)


def _region(graph: Graph, choice: Choice) -> set[Op] | None:
    """Ops after `start` and before `stop`, both ends included."""
    if not choice.start and not choice.stop:
        return None
    after = _reach(graph.find(choice.start), forward=True) if choice.start else set(graph.ops)
    before = _reach(graph.find(choice.stop), forward=False) if choice.stop else set(graph.ops)
    return after & before


def _reach(tensor: Tensor, forward: bool) -> set[Op]:
    first = list(tensor.users) if forward else []
    first += [tensor.producer] if tensor.producer else []
    found: set[Op] = set()
    while first:
        op = first.pop()
        if op in found:
            continue
        found.add(op)
        if forward:
            first += [user for t in op.outputs for user in t.users]
        else:
            first += [t.producer for t in op.inputs if t is not None and t.producer]
    return found

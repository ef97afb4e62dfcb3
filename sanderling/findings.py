"""What rules find: the sentence, why it is so, and what to do about it.

`trace` (its insights), `quantize --suggest` and `advise` look at different evidence, and their
rules are rows of one kind. `choose/advice_table.py` has all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

E_contra = TypeVar("E_contra", contravariant=True)
E = TypeVar("E")
F = TypeVar("F")
F_co = TypeVar("F_co", covariant=True)


@dataclass(frozen=True)
class Finding:
    """A finding. kind tells findings apart for programs; do: a sentence, or the command to run."""

    kind: str
    what: str
    why: str
    do: str

    def __str__(self) -> str:
        return f"{self.what}\n  why: {self.why}\n  do: {self.do}"


@dataclass(frozen=True)
class Rule(Generic[E_contra, F_co]):
    """A row. looks_at: the evidence that `find` takes, in a word; says: the rule in a sentence."""

    kind: str
    looks_at: str
    says: str
    find: Callable[[E_contra], Iterable[F_co]]


def findings(rules: Sequence[Rule[E, F]], evidence: E) -> Iterable[F]:
    """What the rules find in the evidence, in their order."""
    return (found for rule in rules for found in rule.find(evidence))

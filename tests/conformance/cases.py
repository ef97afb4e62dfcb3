"""The one table: every family's cases together."""

from __future__ import annotations

from importlib import import_module

from sanderling.ops import FAMILIES

from .harness import Case

CASES: list[Case] = [
    row for family in FAMILIES for row in import_module(f".cases_{family}", __package__).CASES
]

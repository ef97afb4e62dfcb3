"""Elementwise operators on every target, by the conformance table."""

from __future__ import annotations

import pytest

from sanderling.delegates.cpu.elementwise import EXPRESSIONS
from tests.conformance.harness import Case

from .harness import TARGET_NAMES, cases_of, check_cpu

ROWS = cases_of(*EXPRESSIONS)


@pytest.mark.parametrize("target", TARGET_NAMES)
@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.id)
def test_conformance(row: Case, target: str) -> None:
    check_cpu(row, target)

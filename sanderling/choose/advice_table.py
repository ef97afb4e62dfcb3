"""All rules that look at evidence: those of `advise`, of traces, and of `quantize --suggest`."""

from __future__ import annotations

from typing import Any

from ..findings import Rule
from ..measure.trace_insights import RULES as TRACE_RULES
from ..optimize.suggest import TREE
from .advice_rules import RULES as MODEL_RULES

# `advise` asks all of them; `trace` asks those about traces, `quantize --suggest` those about
# situations.
TABLE: tuple[Rule[Any, Any], ...] = (*MODEL_RULES, *TRACE_RULES, *TREE)

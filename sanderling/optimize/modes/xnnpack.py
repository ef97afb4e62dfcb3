"""Which ops of a quantised model XNNPACK, LiteRT's fast delegate, will leave to the slower built-in
kernels, and why: its rules are those of `rules/xnnpack.py`."""

from __future__ import annotations

from ...ir import Model, Op
from ...rules.xnnpack import TABLE


def refused(model: Model) -> list[tuple[Op, str]]:
    """The ops of all graphs that XNNPACK does not take, each with its reason."""
    found = ((op, reason(op)) for graph in model.graphs for op in graph.ops)
    return [(op, why) for op, why in found if why]


def reason(op: Op) -> str:
    """Why the op is refused; "" if, as far as is known, it is not."""
    rule = TABLE.failing(op)
    return "" if rule is None else rule.reason(op, TABLE.level) or ""

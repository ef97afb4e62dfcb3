"""The table of the compiler's own ops: what each is called, takes and means.

Passes write them; `table.KERNELS` has a row for each, and nobody outside the compiler sees them.
"""

from __future__ import annotations

from typing import NamedTuple

from ....ir import Array, Op
from ....ops.base import State
from . import definition
from .chains import BEFORE, BEHIND, BOTH, CHAIN
from .definition import Arrays, Define
from .fused import FUSED, OPERATORS


class OwnOp(NamedTuple):
    """operands and results by name, those in brackets may be absent; `x...` are any number."""

    operands: str
    results: str
    attrs: str
    meaning: str
    evaluate: Define

    @property
    def counts(self) -> tuple[int, int | None]:
        """Fewest and most operands; None if there is no limit."""
        names = self.operands.split()
        least = sum(not name.startswith("[") for name in names)
        return least, None if self.operands.endswith("...") else len(names)


PRODUCT = "data weights [bias] [residual] [table]"
TWO_STAGES = "data weights bias weights2 bias2"
# The operands of operators that are no products.
OTHERS = {"AVERAGE_POOL_2D": "data", "L2_NORMALIZATION": "data", "RESIZE_BILINEAR": "data size"}
OWN_OPS: dict[str, OwnOp] = {
    **{
        own: OwnOp(OTHERS.get(name, PRODUCT), "y", FUSED,
                   f"{name} with what its record says", definition.fused)
        for own, name in OPERATORS.items()
    },
    BEHIND: OwnOp(f"{TWO_STAGES} [residual]", "y", CHAIN,
                  "depthwise, then a 1x1 convolution", definition.chained),
    BEFORE: OwnOp(f"{TWO_STAGES} [residual]", "y", CHAIN,
                  "a 1x1 convolution, then depthwise", definition.chained),
    BOTH: OwnOp(f"{TWO_STAGES} weights3 bias3 [residual]", "y", CHAIN,
                "a 1x1 convolution, then depthwise, then a 1x1 convolution", definition.chained),
    "cpu.MAP": OwnOp("x...", "y", "expr [shapes]",
                     "an expression over broadcast tensors, element by element", definition.mapped),
    "cpu.LUT": OwnOp("x", "y", "table",
                     "a function of one byte, by a table of 256", definition.looked_up),
    "cpu.LUT16": OwnOp("x table", "y", "",
                       "a function of one int16, by a table of all", definition.looked_up16),
    "cpu.FLIP": OwnOp("x", "y", "",
                      "codes in the other 8-bit type: their top bit changes", definition.flipped),
    "cpu.RANGE": OwnOp("x", "ranges", "",
                       "the range of each chunk of each group, zero in it", definition.ranges),
    "cpu.ENCODE": OwnOp("x ranges", "codes table", "symmetric",
                        "8-bit codes of floats; zero point and step of each group",
                        definition.encoded),
    "cpu.LAYER_NORM": OwnOp("x [gamma] [beta]", "y", "epsilon",
                            "rows less their mean, over their deviation; times gamma, plus beta",
                            definition.normalised),
    "cpu.COPY": OwnOp("x", "y", "",
                      "the same bytes at a place of their own", definition.copied),
    "cpu.MERGE": OwnOp("condition yes no", "y", "",
                       "the result of the branch that was taken", definition.merged),
}  # fmt: skip


def evaluate(op: Op, arrays: Arrays, state: State) -> list[Array]:
    """The results of any op of a prepared graph."""
    row = OWN_OPS.get(op.name)
    return (definition.moved if row is None else row.evaluate)(op, arrays, state)

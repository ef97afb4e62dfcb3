"""LiteRT 2.x's GPU accelerator, ML Drift, which grew out of TensorFlow Lite's GPU delegate.

Its sources are closed. The rules are those of the offline check, which is its own, corrected by
what LiteRT answered when it was asked (`python -m benchmarks.gpu_rules`).
"""

from __future__ import annotations

from ..ir import Op
from ..runtime.partition import Limits
from .gpu import (
    BORDER,
    COMPARISONS,
    LIKE_NUMPY,
    NUMBERS,
    OFFLINE_SOURCE,
    ONE_IN_ONE_OUT,
    RANKS,
    REDUCTIONS,
    SLOPE,
    expands_half,
    offline,
)
from .rule import STATIC_SIZES, Rule, Table, computed, input_type, is_type, sourced, where

ASKED = "ai-edge-litert 2.3.0, asked"
# Operators that it takes of i32 too, and of bool.
WHOLE_NUMBERS = {
    *COMPARISONS.split(), *REDUCTIONS.split(), "ABS", "ADD", "ARG_MAX", "CAST", "CONCATENATION",
    "DIV", "FLOOR_DIV", "FLOOR_MOD", "GATHER", "MAXIMUM", "MINIMUM", "MUL", "NEG", "ONE_HOT",
    "PACK", "PAD", "RESHAPE", "REVERSE_V2", "SELECT", "SELECT_V2", "SIGN", "SLICE",
    "STRIDED_SLICE", "SUB", "TILE", "TOPK_V2", "TRANSPOSE",
}  # fmt: skip
TRUTHS = {
    *COMPARISONS.split(), "CAST", "LOGICAL_AND", "LOGICAL_NOT", "LOGICAL_OR", "REDUCE_ALL",
    "REDUCE_ANY", "RESHAPE", "SELECT", "SELECT_V2",
}  # fmt: skip
ANY_RANK = ("SLICE", "STRIDED_SLICE")  # the check wants three axes or four


def _odd_types(op: Op) -> list[str]:
    more = ["i32"] * (op.name in WHOLE_NUMBERS) + ["bool"] * (op.name in TRUTHS)
    known = f"{NUMBERS} {' '.join(more)}"
    return [t.dtype.short for t in (*computed(op), *op.outputs) if not is_type(t, known)]


def _is_of_dense(op: Op) -> bool:
    maker = op.operand(0).producer
    return maker is None or maker.name != "DENSIFY"


def _corrected() -> dict[str, tuple[Rule, ...]]:
    """The offline check's rows, and what was answered otherwise."""
    found = offline(LIKE_NUMPY)
    del found["DENSIFY"]
    for name in ANY_RANK:
        found[name] = tuple(r for r in found[name] if r.kind != "rank")
    not_sparse = where("neighbours", "its input is not sparse", _is_of_dense)
    found["DEQUANTIZE"] += sourced(ASKED, not_sparse)
    found["TOPK_V2"] += sourced(ASKED, input_type(0, NUMBERS))
    found["EMBEDDING_LOOKUP"] += sourced(ASKED, input_type(1, "i8 i4"))
    found["CAST"] = sourced(OFFLINE_SOURCE, *ONE_IN_ONE_OUT)
    return found | {"ARG_MAX": (), "UNPACK": (), "PRELU": sourced(ASKED, *SLOPE)}


TYPES = where(
    "types",
    "what is computed is f32, f16, i8 or u8 (i32 and bool of some ops)",
    lambda op: not _odd_types(op),
    lambda op: f"there is {', '.join(sorted(set(_odd_types(op))))}",
)
TABLES = (
    Table(
        "gpu:litert",
        "LiteRT's GPU accelerator, ML Drift",
        ASKED,
        _corrected(),
        (RANKS, TYPES),
        (STATIC_SIZES,),
        Limits(max_delegated_partitions=1),
        folds=expands_half,
        border=BORDER,
    ),
)

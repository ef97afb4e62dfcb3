"""The kernel table: one row for each op and type, and no row that another hides."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from sanderling.delegates.cpu.dialect import verify
from sanderling.delegates.cpu.dialect.fused import OPERATORS, OWN, either
from sanderling.delegates.cpu.kernels.products import dynamic_range, zeros
from sanderling.delegates.cpu.kernels.row import UNKNOWN, Kernel, emit_never
from sanderling.delegates.cpu.table import KERNELS, collected, operators_fusing, row_of
from sanderling.errors import DelegateError
from sanderling.ir import DType, Op
from tests.conformance.cases import CASES
from tests.conformance.harness import Case


def test_two_rows_for_everything_are_an_error() -> None:
    row = Kernel(emit_never)
    with pytest.raises(DelegateError, match="2 rows of ADD are for every type"):
        collected([{"ADD": row}, {"ADD": row}])


def test_a_row_for_some_types_alone_is_an_error() -> None:
    with pytest.raises(DelegateError, match="0 rows of ADD"):
        collected([{"ADD": Kernel(emit_never, handles=lambda op: True)}])


def test_rows_for_some_types_come_first() -> None:
    floats = Kernel(emit_never, handles=lambda op: False)
    rows = collected([{"ADD": Kernel(emit_never)}, {"ADD": floats}])["ADD"]
    assert rows[0] is floats


def test_an_op_without_a_row_is_unknown() -> None:
    assert row_of(Op("NO_SUCH_OP", [], [])) is UNKNOWN


SHARED = [name for name, rows in KERNELS.items() if len(rows) > 1]


@pytest.mark.parametrize("name", SHARED)
def test_rows_do_not_compete(name: str) -> None:
    """At most one row handles an op, and the same one once 8-bit types are unified."""
    cases = [case for case in CASES if case.op == name]
    assert cases
    for case in cases:
        _check_rows(case)


def _check_rows(case: Case) -> None:
    op = next(op for op in case.model().main.ops if op.name == case.op)
    chosen = [r for r in KERNELS[op.name] if r.handles is not None and r.handles(op)]
    assert len(chosen) <= 1
    swap = {DType.INT8: DType.UINT8, DType.UINT8: DType.INT8}
    for tensor in {t for t in (*op.inputs, *op.outputs) if t is not None}:
        tensor.dtype = swap.get(tensor.dtype, tensor.dtype)
    assert [r for r in KERNELS[op.name] if r.handles is not None and r.handles(op)] == chosen


def test_ops_that_remember_their_sign_have_a_record_for_it() -> None:
    """A pass fuses the sign into them: the dialect knows them, and they have a row."""
    marked = {n for n, rows in KERNELS.items() for row in rows if row.sign_matters}
    plain = {name for name in marked if name not in OPERATORS}
    assert plain and marked == set(either(*plain))
    assert plain == set(verify.SIGNED)


# What rows say can be fused in, and the lists of modules that the table stands above.
LISTS = [
    ("pad", verify.WINDOWS),
    ("residual", verify.WITH_RESIDUAL),
    ("map", verify.WITH_RESIDUAL),
    ("dynamic", verify.ENCODED),
    ("dynamic", {name.removeprefix(OWN) for name in dynamic_range.ON_THE_FLY}),
    ("bf16", verify.ROUNDED),
    ("zeros", verify.SPARSE),
    ("zeros", zeros.PRODUCTS),
]


@pytest.mark.parametrize(("what", "names"), LISTS)
def test_the_dialect_lists_what_the_rows_say(what: str, names: Collection[str]) -> None:
    assert operators_fusing(what) == set(names)


def test_nothing_else_can_be_fused() -> None:
    """A misspelt word in a row would be no more than a kernel that takes nothing."""
    known = {what for what, _ in LISTS} | {"map of two"}
    assert {what for rows in KERNELS.values() for row in rows for what in row.fuses} == known

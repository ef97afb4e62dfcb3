"""Every operator that has a kernel, on an OpenCL device, judged by the reference definitions."""

from __future__ import annotations

import pytest

from sanderling.delegates.gpu.table import KERNELS
from tests.conformance.harness import Case
from tests.support.gpu_conformance import cases_of, check_gpu

pytest.importorskip("pyopencl", reason="pyopencl is not installed")
# No case of the table: our own ops, which stand in no model file.
INTERNAL = {"gpu.ADD_UNITS", "gpu.COPY", "gpu.SCALE", "gpu.SIMULATE"}


@pytest.mark.parametrize("row", cases_of(), ids=lambda row: row.id)
def test_case(row: Case) -> None:
    check_gpu(row)


def test_every_row_of_the_kernel_table_has_a_case() -> None:
    without = set(KERNELS) - INTERNAL - {row.op for row in cases_of()}
    assert not without

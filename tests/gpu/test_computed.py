"""Convolutions whose weights a run computes."""

from __future__ import annotations

import pytest

from sanderling.delegates.gpu.table import refusal
from tests.support.gpu_computed import check_computed_weights
from tests.support.gpu_devices import needs_opencl, needs_webgpu
from tests.support.rule_cases import CONV, one_op

BACKENDS = [
    pytest.param("opencl", marks=needs_opencl),
    pytest.param("webgpu", marks=needs_webgpu),
]


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_may_be_computed(backend: str) -> None:
    check_computed_weights(backend=backend, cache=False)


def test_what_is_not_taken_of_them() -> None:
    groups = one_op("CONV_2D", "x[1,8,8,8] x[8,3,3,4] #x[8] -> x[1,6,6,8]", version=6, **CONV)
    assert refusal(groups) == "computed weights of several groups have no kernel"
    codes = one_op("CONV_2D", "x[1,8,8,4] x[8,3,3,4] #b[8] -> x[1,6,6,8]", "i8", **CONV)
    assert refusal(codes) == "computed weights of codes have no kernel"
    bias = one_op("CONV_2D", "x[1,8,8,4] x[8,3,3,4] x[8] -> x[1,6,6,8]", **CONV)
    assert refusal(bias) == "its operand 2 must be constant"

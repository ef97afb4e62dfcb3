"""Every row of the table of integer rules, as a one-op model.

LiteRT takes what we write, on its own kernels and on XNNPACK, agrees with us, and is as near to the
reals as a step of the codes allows.
"""

from __future__ import annotations

import numpy as np
import pytest

from sanderling.ir import Array, DType, Model, Op
from sanderling.optimize.modes.rules import RULES

from .conformance.harness import Case
from .support.quantize_cases import MODELS, PLAIN, feeds_of
from .support.quantize_engines import ENGINES, exact, litert, ours, quantised

# Steps of the output by which an integer kernel may be off the exact result: rounding alone is half
# a step. At 16 bits the functions are straight lines between 513 points, which bend where the
# function is steep; a product of many values is brought to the output's scale after each factor.
ROUNDING = 1.01
SLACK = {
    ("RSQRT", 16): 4000, ("EXP", 16): 650, ("LOG", 16): 2000, ("GELU", 16): 40,
    ("SOFTMAX", 16): 7, ("TANH", 16): 1.5, ("REDUCE_PROD", 8): 18, ("REDUCE_PROD", 16): 25,
    ("RESIZE_BILINEAR", 16): 60,
}  # fmt: skip
# Codes between us and LiteRT: the QUANTIZE before and the kernel may round a half differently, and
# a product of twenty factors magnifies that.
GAP = {"REDUCE_PROD": 4.01}
MODE_BITS = {"int8": 8, "int16x8": 16}


def test_every_row_has_a_model() -> None:
    assert {name for name, _ in MODELS} == set(PLAIN)


@pytest.mark.parametrize("mode", MODE_BITS)
@pytest.mark.parametrize("name, case", MODELS, ids=[f"{i}-{n}" for i, (n, _) in enumerate(MODELS)])
def test_row(name: str, case: Case, mode: str) -> None:
    row, bits = RULES[name], MODE_BITS[mode]
    source = case.model()
    feeds = feeds_of(case, source)
    made = quantised(source, [feeds], mode)
    if bits not in row.bits:
        assert "bit kernel" in next(iter(made.solution.reasons.values()))
        return
    assert not made.solution.reasons
    op = next(op for op in made.model.main.ops if op.name == name)
    assert op.version >= row.versions[bits]
    _check_types(op, bits)
    mine = ours(made.model, feeds)
    for engine in ENGINES:
        theirs = litert(made.model, feeds, engine)
        for out, a, b in zip(op.outputs, mine, theirs, strict=True):
            step = out.quant.scale[0] if out.quant else 0
            np.testing.assert_allclose(a, b, rtol=0, atol=GAP.get(name, 2.01) * step)
    _near(op, name, bits, made.model, feeds, mine)


def _check_types(op: Op, bits: int) -> None:
    row = RULES[op.name]
    wanted = DType.INT8 if bits == 8 else DType.INT16
    values = [*row.flowing(op), *(op.outputs if row.real_out else [])]
    assert {t.dtype for t in values} == {wanted}
    quants = [t.quant for t in values]
    if row.same:
        assert all(q is not None and q.same_as(quants[0]) for q in quants)
    if bits == 16:
        assert not any(q.zero_point.any() for q in quants if q)
    if bits in row.fixed:
        quant = op.outputs[0].quant
        assert quant is not None
        assert (quant.scale[0], quant.zero_point[0]) == (
            np.float32(row.fixed[bits][0]),
            row.fixed[bits][1],
        )


def _near(
    op: Op, name: str, bits: int, model: Model, feeds: list[Array], mine: list[Array]
) -> None:
    by_name = {t.name: a for t, a in zip(model.main.inputs, feeds, strict=True)}
    fed = {}
    for t in op.inputs:
        if t is not None and not t.is_constant:
            origin = t.producer.inputs[0] if t.producer else t
            assert origin is not None
            fed[t] = by_name[origin.name]
    for out, given, wanted in zip(op.outputs, mine, exact(op, fed), strict=True):
        if out.quant is None:
            assert np.mean(given != wanted) < 0.2  # near a tie, codes may fall on either side
            continue
        scale, zero = float(out.quant.scale[0]), int(out.quant.zero_point[0])
        low, high = ((code - zero) * scale for code in out.dtype.bounds)
        off = np.abs(np.clip(wanted, low, high) - given).max() / scale
        assert off <= SLACK.get((name, bits), ROUNDING), f"{off:.2f} steps"

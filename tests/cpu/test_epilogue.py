"""The contract of epilogues: a new one is one class, whoever makes the sums; and tiles are called
with named arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from sanderling.delegates.cpu.codegen.emit import I64, PTR, ArgumentList, Emitter, Value
from sanderling.delegates.cpu.kernels.depthwise import depthwise
from sanderling.delegates.cpu.kernels.epilogue.codes import CodeEpilogue, LongEpilogue
from sanderling.delegates.cpu.kernels.epilogue.contract import Epilogue, Sums, column_words, words
from sanderling.delegates.cpu.kernels.epilogue.floats import (
    BlockEpilogue,
    BoundValues,
    ConstantBounds,
    FloatEpilogue,
    HybridEpilogue,
)
from sanderling.delegates.cpu.kernels.epilogue.plain import PartEpilogue, WholeEpilogue
from sanderling.delegates.cpu.kernels.products import conv, gemm, winograd
from sanderling.delegates.cpu.kernels.products.cores import FloatCore
from sanderling.ir import Array, DType
from sanderling.ir.expr import Input, apply
from tests.conformance.harness import Case, case, check, const, f32, scales, weights
from tests.support.cpu_conformance import check_cpu, cpu_for, run

SAME: dict[str, Any] = {"padding": "SAME", "stride_h": 1, "stride_w": 1}
CONV = case("CONV_2D", f32(1, 9, 10, 19), weights(21, 3, 3, 19), weights(21), **SAME)
TAPS = weights(1, 3, 3, 21)
ONE_EACH = SAME | {"depth_multiplier": 1}
DEPTHWISE = case("DEPTHWISE_CONV_2D", f32(1, 6, 7, 21), TAPS, weights(21), **ONE_EACH)


@dataclass(frozen=True)
class Halved(FloatEpilogue):
    """A toy: half of the result."""

    @property
    def name(self) -> str:
        return "half" + super().name

    @property
    def stages(self) -> str:
        return super().stages + "_half"

    def finish(
        self, e: Emitter, value: Value, beside: Sequence[Value], limits: BoundValues
    ) -> Value:
        value = super().finish(e, value, beside, limits)
        return e.b.fmul(value, e.const(value.type, 0.5))


def _answer(row: Case) -> Array:
    model = row.model()
    arrays = row.arrays(model, np.random.default_rng(1))
    (found,) = run(model.compile([cpu_for(cache=False)]), arrays)
    return found


PATHS = [
    pytest.param(CONV, conv, None, id="product"),
    pytest.param(CONV, conv, 2, id="winograd"),
    pytest.param(DEPTHWISE, depthwise, None, id="depthwise"),
]


@pytest.mark.parametrize(("row", "module", "form"), PATHS)
def test_a_new_epilogue_is_one_class(
    row: Case, module: ModuleType, form: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(target: object, w: object, n: object, plain: object, kind: object) -> object:
        return form and winograd.blocking_for(target, w, n, winograd.form(form))[1]  # type: ignore[arg-type]

    monkeypatch.setattr(conv, "choose_blocking", plan)
    plain = _answer(row)
    monkeypatch.setattr(module, "FloatEpilogue", Halved)
    np.testing.assert_array_equal(_answer(row), plain * np.float32(0.5))


BIAS = const([np.inf, -np.inf, 1, 2], "f32")
CODES = {"dtype": "i8", "low": -127, "scale": scales(4)}
OVERFLOWS = [
    case("CONV_2D", f32(1, 4, 4, 3), weights(4, 3, 3, 3), BIAS, **SAME),
    case("CONV_2D", f32(1, 4, 4, 3), weights(4, 3, 3, 3, **CODES), BIAS, version=5, **SAME),
    case("DEPTHWISE_CONV_2D", f32(1, 6, 7, 4), weights(1, 3, 3, 4), BIAS, **ONE_EACH),
    case(
        "DEPTHWISE_CONV_2D",
        f32(1, 6, 7, 4),
        weights(1, 3, 3, 4, axis=3, **CODES),
        BIAS,
        version=6,
        **ONE_EACH,
    ),
    case("FULLY_CONNECTED", f32(3, 8), weights(4, 8), BIAS),
    case("FULLY_CONNECTED", f32(3, 8), weights(4, 8, **CODES), BIAS, version=9),
]


@pytest.mark.parametrize("activation", ["NONE", "RELU", "RELU6"])
@pytest.mark.parametrize("row", OVERFLOWS, ids=lambda row: row.id[:24])
def test_an_overflow_is_what_the_definition_says(row: Case, activation: str) -> None:
    """Kernels of LiteRT that clamp have the largest float in place of infinity; others do not."""
    attrs = {**row.attrs, "fused_activation_function": activation}
    activated = replace(row, attrs=attrs, tol=1e-5)
    check(activated)
    assert not check_cpu(activated)


EPILOGUES: tuple[Epilogue, ...] = (
    FloatEpilogue(),
    FloatEpilogue(residual=True),
    FloatEpilogue(map=apply("tanh", Input(0, DType.FLOAT32))),
    FloatEpilogue(out_bytes=2),
    FloatEpilogue(bounds=ConstantBounds(0.0, 6.0)),
    HybridEpilogue(),
    HybridEpilogue(residual=True),
    HybridEpilogue(scales_first=True),
    BlockEpilogue(),
    CodeEpilogue(),
    CodeEpilogue(signed=True),
    CodeEpilogue(residual=True),
    CodeEpilogue(row_words=1),
    CodeEpilogue(wild=True),
    CodeEpilogue(full=True),
    CodeEpilogue(out_bytes=2),
    LongEpilogue(CodeEpilogue(), 1),
    LongEpilogue(CodeEpilogue(), 2),
    PartEpilogue(),
    WholeEpilogue(),
)


def test_names_tell_epilogues_apart() -> None:
    assert len({epilogue.name for epilogue in EPILOGUES}) == len(EPILOGUES)


@pytest.mark.parametrize("epilogue", EPILOGUES, ids=lambda epilogue: epilogue.name)
def test_a_tile_is_told_what_its_epilogue_reads(epilogue: Epilogue) -> None:
    names = gemm.tile_arguments(FloatCore(), epilogue, lined=False, fetches=False).types
    assert ("residual" in names, "ldr" in names) == (epilogue.residual, epilogue.residual)
    assert ("rows" in names) == bool(epilogue.row_words)


def test_accumulators_have_columns() -> None:
    sums = Sums("abcdef", rows=2, vectors=3, lanes=4, columns=6)
    assert list(sums.firsts) == [0, 4, 8]
    stored = [("a", 0, 0, 6), ("b", 0, 4, 2), ("d", 1, 0, 6), ("e", 1, 4, 2)]
    assert list(sums.stored(sums.values)) == stored


def test_numbers_lie_block_by_block() -> None:
    first, second = np.arange(3, dtype=np.int32), np.float32([0.5, 1, 2])
    found = column_words([(0, 2), (2, 2)], first, second)
    assert found.tolist() == words(0, 1, 0.5, 1.0, 2, 0, 2.0, 0.0).tolist()


def test_arguments_are_given_by_name() -> None:
    arguments = ArgumentList({"a": PTR, "count": I64})
    assert arguments.ordered({"count": 1, "a": 0}) == [0, 1]
    for wrong in ({"a": 0}, {"a": 0, "count": 1, "residual": 2}, {"a": 0, "counts": 1}):
        with pytest.raises(TypeError, match=r"count|residual"):
            arguments.ordered(wrong)

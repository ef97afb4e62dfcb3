"""Conformance cases of the LSTM operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from sanderling.ir import DType, Model

from .harness import Case, T, case, const, f32, i8, i16, u8, weights

BATCH, TIME, DEPTH, CELLS, OUTPUTS = 2, 3, 5, 4, 3


def _codes(kind: str, *shape: int, seed: int, scale: float = 0.006) -> T:
    """8-bit weights, never -128: LiteRT's SSE product takes its negative for itself."""
    codes = np.random.default_rng(seed).integers(-127, 128, shape).astype(np.int8)
    return const(codes.view(np.int8 if kind == "i8" else np.uint8), kind, scale=scale)


def _weights(kind: str, *shape: int, seed: int) -> T:
    if kind == "f32":
        return weights(*shape, low=-0.7, high=0.7, seed=seed)
    return _codes(kind, *shape, seed=seed)


def _cell(kind: str, options: set[str], seed: int = 0, depth: int = DEPTH) -> list[T | None]:
    """The 17 operands of a float or hybrid cell. options: cifg peephole projection bias diagonal."""
    outputs = OUTPUTS if "projection" in options else CELLS
    gates = [None if "cifg" in options and gate == 0 else gate for gate in range(4)]

    def each(make: Any, skip: Sequence[int] = ()) -> list[T | None]:
        return [None if gate is None else make(gate) for gate in gates if gate not in skip]

    recurrent = (lambda g: weights(CELLS, seed=seed + 10 + g, low=-0.7, high=0.7)) if "diagonal" in options else (
        lambda g: _weights(kind, CELLS, outputs, seed=seed + 10 + g))  # fmt: skip
    peephole = each(lambda g: _weights(kind, CELLS, seed=seed + 20 + g), skip=(2,))
    return [
        *each(lambda g: _weights(kind, CELLS, depth, seed=seed + g)),
        *each(recurrent),
        *(peephole if "peephole" in options else [None] * 3),
        *each(lambda g: weights(CELLS, low=-0.5, high=0.5, seed=seed + 30 + g)),
        _weights(kind, OUTPUTS, CELLS, seed=seed + 40) if "projection" in options else None,
        weights(OUTPUTS, low=-0.3, high=0.3, seed=seed + 41) if "bias" in options else None,
    ]


def _states(options: set[str], batch: int = BATCH) -> list[T]:
    outputs = OUTPUTS if "projection" in options else CELLS
    return [T((batch, outputs), variable=True), T((batch, CELLS), variable=True)]


def _norms(options: set[str]) -> list[T | None]:
    if "norm" not in options:
        return [None] * 4
    return [None if "cifg" in options and gate == 0 else weights(CELLS, low=0.5, high=1.5, seed=50 + gate)
            for gate in range(4)]  # fmt: skip


def _shape(op: str, more: dict[str, Any]) -> tuple[int, ...]:
    if op == "LSTM":
        return BATCH, DEPTH
    return (TIME, BATCH, DEPTH) if more.get("time_major") else (BATCH, TIME, DEPTH)


def _lstm(op: str, kind: str, options: str = "", **more: Any) -> Case:
    chosen = set(options.split())
    more.setdefault("fused_activation_function", "TANH")
    # LiteRT runs diagonal recurrent weights, but not under version 4, which introduced them.
    version = 3 if "diagonal" in chosen or kind != "f32" else 1
    operands = [f32(*_shape(op, more)), *_cell(kind, chosen), *_states(chosen), *_norms(chosen)]
    if "twenty" in chosen:
        operands = operands[:20]
    return case(op, *operands, name=f"{kind} {options}", runs=3, tol=5e-6, version=version, **more)


def _bidirectional(
    kind: str, options: str = "", aux: int = 0, batch: int = BATCH, **more: Any
) -> Case:
    """aux: depth of the second input; the option crossed gives it weights of its own."""
    chosen = set(options.split())
    more.setdefault("fused_activation_function", "TANH")
    more.setdefault("time_major", True)
    shape = (TIME, batch) if more["time_major"] else (batch, TIME)
    crossed = [None if "cifg" in chosen and n % 4 == 0 else _weights(kind, CELLS, aux, seed=70 + n)
               for n in range(8)]  # fmt: skip
    return case("BIDIRECTIONAL_SEQUENCE_LSTM", f32(*shape, DEPTH), *_cell(kind, chosen),
                *_cell(kind, chosen, 100), *_states(chosen, batch), *_states(chosen, batch),
                f32(*shape, aux) if aux else None, *(crossed if "crossed" in chosen else [None] * 8),
                out=[f32()] * (1 if more.get("merge_outputs") else 2), runs=3, tol=5e-6,
                version=1 if kind == "f32" else 3, name=f"{kind} {options} aux{aux}", **more)  # fmt: skip


def _integer(op: str, options: str = "", zero: int = 3, cell_log2: int = -11, weight: float = 0.006,
             **more: Any) -> Case:  # fmt: skip
    """int8 with an int16 cell state."""
    chosen = set(options.split())
    cells = 6 if "six" in chosen else CELLS
    outputs = OUTPUTS if "projection" in chosen else cells
    gates = [None if "cifg" in chosen and gate == 0 else gate for gate in range(4)]
    shape = _shape(op, more)

    def each(make: Any, skip: Sequence[int] = ()) -> list[T | None]:
        return [None if gate is None else make(gate) for gate in gates if gate not in skip]

    peephole = each(lambda g: weights(cells, dtype="i16", scale=3e-5, seed=20 + g), skip=(2,))
    norm = each(
        lambda g: weights(cells, dtype="i16", scale=4e-5, low=10000, high=30000, seed=50 + g)
    )
    bias = 500000 if "norm" in chosen else 3000
    operands = [
        i8(*shape, scale=0.02, zp=zero),
        *each(lambda g: _codes("i8", cells, DEPTH, seed=g, scale=weight * (1 + g / 8))),
        *each(lambda g: _codes("i8", cells, outputs, seed=10 + g, scale=weight * (1 + g / 9))),
        *(peephole if "peephole" in chosen else [None] * 3),
        *each(lambda g: weights(cells, dtype="i32", scale=1e-4, low=-bias, high=bias, seed=30 + g)),
        _codes("i8", outputs, cells, seed=40, scale=0.005) if "projection" in chosen else None,
        weights(outputs, dtype="i32", scale=4e-5, low=-2000, high=2000, seed=41) if "bias" in chosen else None,
        i8(BATCH, outputs, scale=1 / 128, zp=-1 - zero, variable=True),
        i16(BATCH, cells, scale=2.0**cell_log2, variable=True),
        *(norm if "norm" in chosen else [None] * 4),
    ]  # fmt: skip
    row = case(op, *operands, out=[i8(scale=1 / 128, zp=-1 - zero)], name=f"i8 {options} {zero} {cell_log2} {weight}",
               runs=3, version=3 if op != "LSTM" else 4, fused_activation_function="TANH", **more)  # fmt: skip
    between = [T((), "i16", scale=0.0005 * (1 + gate)) for gate in range(4)]
    return _with_intermediates(row, [*between, T((), "i8", scale=1 / 120, zp=-1 - zero)])


def _integer8(zero: int = 3, batch: int = BATCH, cells: int = CELLS, **more: Any) -> Case:
    """The older integer cell: 12 intermediates, no input gate, layer norm and projection."""
    gates, outputs = range(1, 4), OUTPUTS
    operands = [
        i8(batch, DEPTH, scale=0.02, zp=zero),
        None, *(_codes("i8", cells, DEPTH, seed=g) for g in gates),
        None, *(_codes("i8", cells, outputs, seed=10 + g) for g in gates),
        None, None, None,
        None, *(weights(cells, dtype="i32", low=-500000, high=500000, seed=30 + g) for g in gates),
        _codes("i8", outputs, cells, seed=40, scale=0.005),
        weights(outputs, dtype="i32", low=-200000, high=200000, seed=41),
        i8(batch, outputs, scale=1 / 128, zp=-1 - zero, variable=True),
        i16(batch, cells, scale=2.0**-15, variable=True),
        None, *(weights(cells, dtype="i16", scale=4e-5, low=10000, high=30000, seed=50 + g) for g in gates),
    ]  # fmt: skip
    row = case("LSTM", *operands, out=[i8(scale=1 / 128, zp=-1 - zero)], runs=4, version=4,
               name=f"8x8_8 {zero} {batch} {cells}", fused_activation_function="TANH", **more)  # fmt: skip
    scales = [(0.0003, 0), (0.02 + zero / 1e4, zero), (0.01, -5)] * 4
    return _with_intermediates(row, [T((), "i8", scale=s, zp=zp) for s, zp in scales])


def _with_intermediates(row: Case, between: Sequence[T]) -> Case:
    def build() -> Model:
        model = row.model()
        for index, t in enumerate(between):
            tensor = model.main.tensor(
                f"between{index}", DType.parse(t.dtype), t.shape, quant=t.quant
            )
            model.main.ops[0].intermediates.append(tensor)
        return model

    return replace(row, build=build)


def _basic(batch: int, depth: int, units: int) -> Case:
    return case("LSTM", f32(batch, depth), T((batch, units), variable=True),
                weights(4 * units, depth + units, low=-1, high=1), weights(4 * units),
                T((batch, units), variable=True), out=[f32()] * 4, kernel_type="BASIC",
                fused_activation_function="TANH", version=2, runs=3, tol=5e-6, name="basic")  # fmt: skip


def _basic_integer(
    batch: int, depth: int, units: int, bias_scale: float = 3e-5, zero: int = 120
) -> Case:
    return case("LSTM", u8(batch, depth, scale=1 / 128, zp=128),
                u8(batch, units, scale=1 / 128, zp=128, variable=True),
                weights(4 * units, depth + units, dtype="u8", scale=bias_scale * 128, zp=zero, low=1),
                weights(4 * units, dtype="i32", scale=bias_scale, low=-30000, high=30000),
                i16(batch, units, scale=2.0**-11, variable=True),
                out=[u8(scale=1 / 128, zp=128), i16(scale=2.0**-11), u8(scale=1 / 128, zp=128),
                     i16(scale=2.0**-12)], kernel_type="BASIC", fused_activation_function="TANH",
                version=2, runs=4, name=f"basic {bias_scale} {zero}", off_by=1,
                why="the gates' product is ruy's, whose rounding depends on the machine")  # fmt: skip


def _subsets(*choices: str) -> list[str]:
    """Every combination of taking each choice or leaving it."""
    return [" ".join(filter(None, taken)) for taken in product(*((c, "") for c in choices))]


VARIANTS = _subsets("cifg", "peephole", "projection bias", "norm")
SEQUENCE = "UNIDIRECTIONAL_SEQUENCE_LSTM"
HYBRID = [(kind, asymmetric) for kind in ("i8", "u8") for asymmetric in (False, True)]

CASES: list[Case] = [
    *(_lstm("LSTM", "f32", options) for options in VARIANTS),
    *(_lstm("LSTM", "f32", "projection", cell_clip=0.3, proj_clip=clip) for clip in (0.0, 0.1)),
    *(_lstm("LSTM", "f32", fused_activation_function=name)
      for name in ("RELU", "RELU6", "RELU_N1_TO_1", "SIGN_BIT")),
    _lstm("LSTM", "f32", "twenty"),
    *(_lstm("LSTM", kind, options, asymmetric_quantize_inputs=asymmetric)
      for (kind, asymmetric), options in product(HYBRID, VARIANTS)),
    _lstm("LSTM", "i8", "projection", cell_clip=0.3, proj_clip=0.1),
    *(_lstm(SEQUENCE, "f32", options, time_major=major) for major in (False, True) for options in VARIANTS),
    _lstm(SEQUENCE, "f32", "twenty", cell_clip=0.2),
    *(_lstm(SEQUENCE, "f32", f"diagonal {options}", diagonal_recurrent_tensors=True, time_major=major)
      for major in (False, True) for options in ("", "cifg", "peephole norm")),
    *(_lstm(SEQUENCE, kind, options, asymmetric_quantize_inputs=asymmetric, time_major=major)
      for (kind, asymmetric), options, major in product(HYBRID, VARIANTS[::3], (False, True))),
    *(_lstm(SEQUENCE, "i8", f"diagonal {options}", diagonal_recurrent_tensors=True,
            asymmetric_quantize_inputs=asymmetric)
      for asymmetric in (False, True) for options in ("", "cifg")),
    *(_bidirectional("f32", options, merge_outputs=merged)
      for options in VARIANTS[1::2] for merged in (False, True)),
    *(_bidirectional("f32", options, time_major=False) for options in ("", "cifg projection")),
    # Batch-major with merged outputs, the kernel strides through the state by the outputs' width.
    _bidirectional("f32", time_major=False, merge_outputs=True, batch=1),
    *(_bidirectional("f32", options, DEPTH, time_major=major)
      for options in ("", "crossed", "crossed cifg") for major in (False, True)),
    _bidirectional("f32", "crossed", 7, merge_outputs=True, cell_clip=0.4),
    *(_bidirectional(kind, options, aux, asymmetric_quantize_inputs=asymmetric)
      for kind, asymmetric in HYBRID
      for options, aux in (("", 0), ("cifg peephole", 0), ("projection bias", 0), ("crossed", 7), ("", 5))),
    *(_integer(op, options) for op in ("LSTM", SEQUENCE) for options in VARIANTS),
    *(_integer(SEQUENCE, "projection bias norm", time_major=True, zero=zero) for zero in (-128, 0, 127)),
    *(_integer(SEQUENCE, "peephole", time_major=True, cell_log2=n) for n in range(-15, -8)),
    *(_integer(op, "projection", cell_clip=0.1, proj_clip=0.2) for op in ("LSTM", SEQUENCE)),
    *(_integer("LSTM", "six norm" + options) for options in ("", " cifg")),
    _integer(SEQUENCE, "norm", weight=0.2),
    _integer(SEQUENCE, "peephole", weight=0.3),
    _integer("LSTM", "norm", weight=1e-6),
    *(_integer8(zero, batch, cells) for zero, batch, cells in ((3, 2, 4), (0, 1, 7), (-100, 3, 16))),
    _integer8(cell_clip=0.4, proj_clip=0.3),
    _basic(2, 5, 4), _basic(1, 1, 1), _basic(3, 20, 16),
    _basic_integer(2, 5, 4), _basic_integer(1, 1, 1), _basic_integer(3, 20, 16, zero=0),
    _basic_integer(2, 5, 4, 1e-3), _basic_integer(2, 5, 4, 1e-6, zero=255),
]  # fmt: skip

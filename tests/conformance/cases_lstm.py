"""Conformance cases of the LSTM operators.

Variants are named by words: cifg peephole projection bias norm diagonal crossed twenty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from sanderling.ir import DType, Model

from .harness import Case, T, case, codes8, f32, i8, i16, u8, weights

BATCH, TIME, DEPTH, CELLS, OUTPUTS = 2, 3, 5, 4, 3
SEQUENCE = "UNIDIRECTIONAL_SEQUENCE_LSTM"
GATES = range(4)
CELL_GATE = 2  # it has no peephole


def _each(words: set[str], make: Callable[[int], T], but: int = -1) -> list[T | None]:
    """An operand for each gate; CIFG leaves the input gate's out."""
    return [None if "cifg" in words and gate == 0 else make(gate) for gate in GATES if gate != but]


def _outputs(words: set[str], cells: int = CELLS) -> int:
    return OUTPUTS if "projection" in words else cells


def _codes(kind: str, *shape: int, seed: int, scale: float = 0.006) -> T:
    return codes8(kind, *shape, seed=seed, scale=scale)


def _weights(kind: str, *shape: int, seed: int) -> T:
    if kind == "f32":
        return weights(*shape, low=-0.7, high=0.7, seed=seed)
    return _codes(kind, *shape, seed=seed)


# -- float and hybrid ---------------------------------------------------------------------------


def _cell(kind: str, words: set[str], seed: int = 0) -> list[T | None]:
    """The 17 operands of a cell."""

    def recurrent(gate: int) -> T:
        if "diagonal" in words:
            return weights(CELLS, low=-0.7, high=0.7, seed=seed + 10 + gate)
        return _weights(kind, CELLS, _outputs(words), seed=seed + 10 + gate)

    peephole = _each(words, lambda g: _weights(kind, CELLS, seed=seed + 20 + g), but=CELL_GATE)
    return [
        *_each(words, lambda g: _weights(kind, CELLS, DEPTH, seed=seed + g)),
        *_each(words, recurrent),
        *(peephole if "peephole" in words else [None] * 3),
        *_each(words, lambda g: weights(CELLS, low=-0.5, high=0.5, seed=seed + 30 + g)),
        _weights(kind, OUTPUTS, CELLS, seed=seed + 40) if "projection" in words else None,
        weights(OUTPUTS, low=-0.3, high=0.3, seed=seed + 41) if "bias" in words else None,
    ]


def _states(words: set[str], batch: int = BATCH) -> list[T]:
    return [T((batch, _outputs(words)), variable=True), T((batch, CELLS), variable=True)]


def _shape(op: str, more: dict[str, Any]) -> tuple[int, ...]:
    if op == "LSTM":
        return BATCH, DEPTH
    return (TIME, BATCH, DEPTH) if more.get("time_major") else (BATCH, TIME, DEPTH)


def _lstm(op: str, kind: str, variant: str = "", **more: Any) -> Case:
    words = set(variant.split())
    more.setdefault("fused_activation_function", "TANH")
    # LiteRT runs diagonal recurrent weights, but not under version 4, which introduced them.
    version = 3 if "diagonal" in words or kind != "f32" else 1
    norms = _each(words, lambda g: weights(CELLS, low=0.5, high=1.5, seed=50 + g))
    operands = [
        f32(*_shape(op, more)),
        *_cell(kind, words),
        *_states(words),
        *(norms if "norm" in words else [None] * 4),
    ]
    return case(
        op,
        *operands[: 20 if "twenty" in words else 24],
        name=f"{kind} {variant}",
        runs=3,
        tol=5e-6,
        version=version,
        **more,
    )


def _bidirectional(
    kind: str, variant: str = "", aux: int = 0, batch: int = BATCH, **more: Any
) -> Case:
    """aux: depth of the second input; crossed gives it weights of its own."""
    words = set(variant.split())
    more.setdefault("fused_activation_function", "TANH")
    more.setdefault("time_major", True)
    shape = (TIME, batch) if more["time_major"] else (batch, TIME)
    crossed = [
        w
        for seed in (70, 80)
        for w in _each(words, lambda g, s=seed: _weights(kind, CELLS, aux, seed=s + g))
    ]  # type: ignore[misc]
    return case(
        "BIDIRECTIONAL_SEQUENCE_LSTM",
        f32(*shape, DEPTH),
        *_cell(kind, words),
        *_cell(kind, words, 100),
        *_states(words, batch),
        *_states(words, batch),
        f32(*shape, aux) if aux else None,
        *(crossed if "crossed" in words else [None] * 8),
        out=[f32()] * (1 if more.get("merge_outputs") else 2),
        runs=3,
        tol=5e-6,
        version=1 if kind == "f32" else 3,
        name=f"{kind} {variant} aux{aux}",
        **more,
    )


# -- integer ------------------------------------------------------------------------------------


def _integer(
    op: str,
    variant: str = "",
    zero: int = 3,
    cell_log2: int = -11,
    weight: float = 0.006,
    cells: int = CELLS,
    **more: Any,
) -> Case:
    """int8 with an int16 cell state."""
    words = set(variant.split())
    outputs = _outputs(words, cells)
    bias = 500000 if "norm" in words else 3000

    def vector(dtype: str, scale: float, low: int, high: int, seed: int) -> list[T | None]:
        return _each(
            words,
            lambda g: weights(cells, dtype=dtype, scale=scale, low=low, high=high, seed=seed + g),
        )

    peephole = vector("i16", 3e-5, -32768, 32767, 20)
    del peephole[CELL_GATE]
    operands = [
        i8(*_shape(op, more), scale=0.02, zp=zero),
        *_each(words, lambda g: _codes("i8", cells, DEPTH, seed=g, scale=weight * (1 + g / 8))),
        *_each(words, lambda g: _codes("i8", cells, outputs, seed=9 + g, scale=weight + g / 1400)),
        *(peephole if "peephole" in words else [None] * 3),
        *vector("i32", 1e-4, -bias, bias, 30),
        _codes("i8", outputs, cells, seed=40, scale=0.005) if "projection" in words else None,
        weights(outputs, dtype="i32", low=-2000, high=2000, seed=41) if "bias" in words else None,
        i8(BATCH, outputs, scale=1 / 128, zp=-1 - zero, variable=True),
        i16(BATCH, cells, scale=2.0**cell_log2, variable=True),
        *(vector("i16", 4e-5, 10000, 30000, 50) if "norm" in words else [None] * 4),
    ]
    row = case(
        op,
        *operands,
        out=[i8(scale=1 / 128, zp=-1 - zero)],
        runs=3,
        name=f"i8 {variant} {zero} {cell_log2} {weight}",
        version=4 if op == "LSTM" else 3,
        fused_activation_function="TANH",
        **more,
    )
    between = [T((), "i16", scale=0.0005 * (1 + gate)) for gate in GATES]
    return _with_intermediates(row, [*between, T((), "i8", scale=1 / 120, zp=-1 - zero)])


def _integer8(zero: int = 3, batch: int = BATCH, cells: int = CELLS, **more: Any) -> Case:
    """The older integer cell: 12 intermediates, no input gate, layer norm and projection."""

    def vector(dtype: str, low: int, high: int, seed: int, **quant: float) -> list[T | None]:
        return _each(
            {"cifg"},
            lambda g: weights(cells, dtype=dtype, low=low, high=high, seed=seed + g, **quant),
        )

    operands = [
        i8(batch, DEPTH, scale=0.02, zp=zero),
        *_each({"cifg"}, lambda g: _codes("i8", cells, DEPTH, seed=g)),
        *_each({"cifg"}, lambda g: _codes("i8", cells, OUTPUTS, seed=10 + g)),
        *[None] * 3,
        *vector("i32", -500000, 500000, 30),
        _codes("i8", OUTPUTS, cells, seed=40, scale=0.005),
        weights(OUTPUTS, dtype="i32", low=-200000, high=200000, seed=41),
        i8(batch, OUTPUTS, scale=1 / 128, zp=-1 - zero, variable=True),
        i16(batch, cells, scale=2.0**-15, variable=True),
        *vector("i16", 10000, 30000, 50, scale=4e-5),
    ]
    row = case(
        "LSTM",
        *operands,
        out=[i8(scale=1 / 128, zp=-1 - zero)],
        runs=4,
        version=4,
        name=f"8x8_8 {zero} {batch} {cells}",
        fused_activation_function="TANH",
        **more,
    )
    scales = [(0.0003, 0), (0.02 + zero / 1e4, zero), (0.01, -5)] * 4
    return _with_intermediates(row, [T((), "i8", scale=s, zp=zp) for s, zp in scales])


def _with_intermediates(row: Case, between: Sequence[T]) -> Case:
    """Intermediate tensors carry scales and zero points, no values."""

    def build() -> Model:
        model = row.model()
        graph = model.main
        for index, t in enumerate(between):
            tensor = graph.tensor(f"between{index}", DType.parse(t.dtype), t.shape, quant=t.quant)
            graph.ops[0].intermediates.append(tensor)
        return model

    return replace(row, build=build)


def _basic(batch: int, depth: int, units: int, variable: bool = True) -> Case:
    """variable: the operator keeps its state; else the graph hands it in and out."""
    return case(
        "LSTM",
        f32(batch, depth),
        T((batch, units), variable=variable),
        weights(4 * units, depth + units, low=-1, high=1),
        weights(4 * units),
        T((batch, units), variable=variable),
        out=[f32()] * 4,
        kernel_type="BASIC",
        fused_activation_function="TANH",
        version=2,
        runs=3,
        tol=5e-6,
        name="basic" if variable else "basic handed on",
    )


def _basic_integer(
    batch: int, depth: int, units: int, scale: float = 3e-5, zero: int = 120
) -> Case:
    code = {"scale": 1 / 128, "zp": 128}
    return case(
        "LSTM",
        u8(batch, depth, **code),
        u8(batch, units, **code, variable=True),
        weights(4 * units, depth + units, dtype="u8", scale=scale * 128, zp=zero, low=1),
        weights(4 * units, dtype="i32", scale=scale, low=-30000, high=30000),
        i16(batch, units, scale=2.0**-11, variable=True),
        out=[u8(**code), i16(scale=2.0**-11), u8(**code), i16(scale=2.0**-12)],
        kernel_type="BASIC",
        fused_activation_function="TANH",
        version=2,
        runs=4,
        name=f"basic {scale} {zero}",
        off_by=1,
        why="the gates come from ruy, whose rounding depends on the machine",
    )


# -- the table ----------------------------------------------------------------------------------


def _subsets(*choices: str) -> list[str]:
    """Every combination of taking each choice or leaving it."""
    return [" ".join(filter(None, taken)) for taken in product(*((c, "") for c in choices))]


VARIANTS = _subsets("cifg", "peephole", "projection bias", "norm")
HYBRID = [(kind, asymmetric) for kind in ("i8", "u8") for asymmetric in (False, True)]
EITHER = (False, True)

CASES: list[Case] = [
    *(_lstm("LSTM", "f32", variant) for variant in VARIANTS),
    *(_lstm("LSTM", "f32", "projection", cell_clip=0.3, proj_clip=clip) for clip in (0.0, 0.1)),
    *(_lstm("LSTM", "f32", fused_activation_function=name)
      for name in ("RELU", "RELU6", "RELU_N1_TO_1", "SIGN_BIT")),
    _lstm("LSTM", "f32", "twenty"),
    *(_lstm("LSTM", kind, variant, asymmetric_quantize_inputs=asymmetric)
      for (kind, asymmetric), variant in product(HYBRID, VARIANTS)),
    _lstm("LSTM", "i8", "projection", cell_clip=0.3, proj_clip=0.1),
    *(_lstm(SEQUENCE, "f32", variant, time_major=major)
      for major, variant in product(EITHER, VARIANTS)),
    _lstm(SEQUENCE, "f32", "twenty", cell_clip=0.2),
    *(_lstm(SEQUENCE, "f32", f"diagonal {variant}", diagonal_recurrent_tensors=True,
            time_major=major)
      for major, variant in product(EITHER, ("", "cifg", "peephole norm"))),
    *(_lstm(SEQUENCE, kind, variant, asymmetric_quantize_inputs=asymmetric, time_major=major)
      for (kind, asymmetric), variant, major in product(HYBRID, VARIANTS[::3], EITHER)),
    *(_lstm(SEQUENCE, "i8", f"diagonal {variant}", diagonal_recurrent_tensors=True,
            asymmetric_quantize_inputs=asymmetric)
      for asymmetric, variant in product(EITHER, ("", "cifg"))),
    *(_bidirectional("f32", variant, merge_outputs=merged)
      for variant, merged in product(VARIANTS[1::2], EITHER)),
    *(_bidirectional("f32", variant, time_major=False) for variant in ("", "cifg projection")),
    # Batch-major with merged outputs, the kernel strides through the state by the outputs' width.
    _bidirectional("f32", time_major=False, merge_outputs=True, batch=1),
    *(_bidirectional("f32", variant, DEPTH, time_major=major)
      for variant, major in product(("", "crossed", "crossed cifg"), EITHER)),
    _bidirectional("f32", "crossed", 7, merge_outputs=True, cell_clip=0.4),
    *(_bidirectional(kind, variant, aux, asymmetric_quantize_inputs=asymmetric)
      for kind, asymmetric in HYBRID
      for variant, aux in (("", 0), ("cifg peephole", 0), ("projection bias", 0), ("crossed", 7),
                           ("", DEPTH))),
    *(_integer(op, variant) for op, variant in product(("LSTM", SEQUENCE), VARIANTS)),
    *(_integer(SEQUENCE, f"{variant} projection bias norm", time_major=True, zero=zero)
      for variant, zero in product(("", "peephole"), (-128, 0, 127))),
    *(_integer(SEQUENCE, "peephole", time_major=True, cell_log2=n) for n in range(-15, -8)),
    *(_integer(op, "projection", cell_clip=0.1, proj_clip=0.2) for op in ("LSTM", SEQUENCE)),
    *(_integer("LSTM", f"norm {variant}", cells=6) for variant in ("", "cifg")),
    _integer(SEQUENCE, "norm", weight=0.2),
    _integer(SEQUENCE, "peephole", weight=0.3),
    _integer("LSTM", "norm", weight=1e-6),
    *(_integer8(*sizes) for sizes in ((3, 2, 4), (0, 1, 7), (-100, 3, 16), (5, 2, 43))),
    _integer8(cell_clip=0.4, proj_clip=0.3),
    _basic(2, 5, 4), _basic(1, 1, 1), _basic(3, 20, 16),
    _basic(2, 5, 4, variable=False), _basic(3, 7, 6, variable=False),
    _basic_integer(2, 5, 4), _basic_integer(1, 1, 1), _basic_integer(3, 20, 16, zero=0),
    _basic_integer(2, 5, 4, 1e-3), _basic_integer(2, 5, 4, 1e-6, zero=255),
]  # fmt: skip

"""Conformance cases of RNN and SVDF."""

from __future__ import annotations

from typing import Any

from .harness import Case, T, case, codes8, f32, i8, i16, weights

ACTIVATIONS = ("NONE", "RELU", "RELU6", "RELU_N1_TO_1", "TANH", "SIGN_BIT")


def _weights(kind: str, *shape: int, seed: int) -> T:
    """A float matrix of modest values, or 8-bit codes of about the same."""
    if kind == "f32":
        return weights(*shape, low=-0.5, high=0.5, seed=seed)
    return codes8(kind, *shape, seed=seed, scale=0.004 + seed * 1e-4)


def _cell(kind: str, batch: int, depth: int, units: int, seed: int) -> tuple[T, ...]:
    return (
        _weights(kind, units, depth, seed=seed),
        _weights(kind, units, units, seed=seed + 1),
        weights(units, low=-0.5, high=0.5, seed=seed + 2),
        T((batch, units), variable=True),
    )


def _rnn(op: str, kind: str, shape: tuple[int, ...], units: int, **more: Any) -> Case:
    batch = shape[1] if more.get("time_major") else shape[0]
    more.setdefault("fused_activation_function", "TANH")
    return case(
        op,
        f32(*shape),
        *_cell(kind, batch, shape[-1], units, 3),
        runs=3,
        tol=2e-6,
        name=kind,
        version=_version(kind, more),
        **more,
    )


def _version(kind: str, more: dict[str, Any]) -> int:
    return 1 if kind == "f32" else 3 if more.get("asymmetric_quantize_inputs") else 2


def _bidirectional(
    kind: str,
    shape: tuple[int, int, int],
    units: tuple[int, int],
    aux: int = 0,
    crossed: bool = False,
    **more: Any,
) -> Case:
    """aux: depth of the second input; crossed: it has weights of its own."""
    batch = shape[1] if more.get("time_major") else shape[0]
    more.setdefault("fused_activation_function", "TANH")
    second = f32(*shape[:2], aux) if aux else None
    extra = [_weights(kind, n, aux, seed=40 + n) for n in units] if crossed else [None, None]
    outputs = [f32()] if more.get("merge_outputs") else [f32(), f32()]
    cells = [_cell(kind, batch, shape[2], n, seed) for n, seed in zip(units, (3, 20), strict=True)]
    return case(
        "BIDIRECTIONAL_SEQUENCE_RNN",
        f32(*shape),
        *cells[0],
        *cells[1],
        second,
        *extra,
        out=outputs,
        runs=3,
        tol=2e-6,
        version=_version(kind, more),
        name=f"{kind}-aux{aux}-{crossed}",
        **more,
    )


def _svdf(
    kind: str,
    batch: int,
    depth: int,
    units: int,
    rank: int,
    memory: int,
    bias: bool = True,
    **more: Any,
) -> Case:
    filters = units * rank
    return case(
        "SVDF",
        f32(batch, depth),
        _weights(kind, filters, depth, seed=3),
        _weights(kind, filters, memory, seed=4),
        weights(units, low=-0.5, high=0.5) if bias else None,
        T((batch, filters * memory), variable=True),
        rank=rank,
        runs=memory + 2,
        tol=2e-6,
        version=_version(kind, more),
        name=kind,
        **more,
    )


def _integer_svdf(
    batch: int,
    depth: int,
    units: int,
    rank: int,
    memory: int,
    zero: int = 3,
    state_scale: float = 0.002,
    bias: bool = True,
) -> Case:
    filters = units * rank
    out = i8(scale=0.05, zp=min(-zero, 127))
    return case(
        "SVDF",
        i8(batch, depth, scale=0.03, zp=zero),
        weights(filters, depth, dtype="i8", scale=0.007),
        weights(filters, memory, dtype="i16", scale=2e-5),
        weights(units, dtype="i32", low=-90000, high=90000, scale=4e-8) if bias else None,
        i16(batch, filters * memory, scale=state_scale, variable=True),
        out=[out],
        rank=rank,
        fused_activation_function="RELU",
        runs=memory + 2,
        version=3,
        name=f"i8-{zero}-{state_scale}",
    )


HYBRID = [(kind, asymmetric) for kind in ("i8", "u8") for asymmetric in (False, True)]

CASES: list[Case] = [
    *(_rnn("RNN", "f32", (2, 5), 4, fused_activation_function=name) for name in ACTIVATIONS),
    _rnn("RNN", "f32", (1, 1), 1),
    _rnn("RNN", "f32", (3, 33), 40),
    *(_rnn("RNN", kind, shape, units, asymmetric_quantize_inputs=asymmetric)
      for kind, asymmetric in HYBRID for shape, units in (((2, 5), 4), ((1, 33), 7))),
    *(_rnn("UNIDIRECTIONAL_SEQUENCE_RNN", "f32", (3, 2, 5), 4, time_major=major,
           fused_activation_function=name)
      for major in (False, True) for name in ("RELU", "TANH")),
    _rnn("UNIDIRECTIONAL_SEQUENCE_RNN", "f32", (1, 1, 8), 16),
    *(_rnn("UNIDIRECTIONAL_SEQUENCE_RNN", kind, (3, 2, 5), 4, time_major=major,
           asymmetric_quantize_inputs=asymmetric)
      for major in (False, True) for kind, asymmetric in HYBRID),
    *(_bidirectional("f32", (3, 2, 5), (4, 6), time_major=major, merge_outputs=merged)
      for major in (False, True) for merged in (False, True)),
    # The batch-major kernel ignores an auxiliary input without weights.
    _bidirectional("f32", (3, 2, 5), (4, 6), 5, time_major=True),
    *(_bidirectional("f32", (3, 2, 5), (4, 4), 5, True, time_major=major)
      for major in (False, True)),
    # The time-major kernel steps through the auxiliary input by the main input's depth.
    _bidirectional("f32", (3, 2, 5), (4, 6), 7, True, merge_outputs=True),
    # The time-major hybrid kernel goes `time` times over the sequence: only one step is right. With
    # merged outputs, symmetric quantisation and a batch it follows a null pointer.
    *(_bidirectional(kind, shape, (4, 6), 5, True, time_major=shape[0] == 1, merge_outputs=merged,
                     asymmetric_quantize_inputs=asymmetric)
      for kind, asymmetric in HYBRID for merged in (False, True)
      for shape in ((1, 1 if merged and not asymmetric else 2, 5), (3, 4, 5))),
    *(_svdf("f32", 2, 5, 4, 2, 6, fused_activation_function=name) for name in ACTIVATIONS),
    _svdf("f32", 1, 1, 1, 1, 1),
    _svdf("f32", 2, 5, 4, 1, 10, bias=False),
    *(_svdf(kind, 2, 5, 4, 2, 6, bias=asymmetric, asymmetric_quantize_inputs=asymmetric)
      for kind, asymmetric in HYBRID),
    *(_integer_svdf(2, 5, 4, rank, memory, zero, bias=rank < 3)
      for rank, memory, zero in ((1, 1, 0), (2, 6, 3), (3, 10, 127), (2, 3, -128))),
    _integer_svdf(2, 40, 8, 2, 6, state_scale=2e-5),
]  # fmt: skip

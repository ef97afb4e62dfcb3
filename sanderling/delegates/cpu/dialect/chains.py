"""Ops that are done in one step: a depthwise convolution and the 1x1 convolutions around it.

Operands of the one op: the data, weights and bias of each stage, and what is added in the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ....ir import DType, Op, Shape, Tensor
from .fused import FUSED, Fused, Inputs, operator

CHAIN = "chain"  # the attribute that holds the record
BEHIND, BEFORE, BOTH = "cpu.DW_PW", "cpu.PW_DW", "cpu.PW_DW_PW"
CHAINS = {
    BEHIND: ("DEPTHWISE_CONV_2D", "CONV_2D"),
    BEFORE: ("CONV_2D", "DEPTHWISE_CONV_2D"),
    BOTH: ("CONV_2D", "DEPTHWISE_CONV_2D", "CONV_2D"),
}
EACH = ("weights", "bias")  # operands that every stage has of its own


@dataclass(frozen=True)
class Stage:
    """One of the ops: its name and attributes, and the shape of its result."""

    name: str
    attrs: Mapping[str, Any]
    shape: Shape

    def __str__(self) -> str:
        fused = self.attrs.get(FUSED)
        return self.name if fused is None else f"{self.name} ({fused})"


@dataclass(frozen=True)
class Chain:
    """What one op does, stage by stage."""

    stages: tuple[Stage, ...]

    def __str__(self) -> str:
        return ", then ".join(map(str, self.stages))


def chained(*ops: Op) -> Op:
    """One op that does these, each of which reads what the one before it makes."""
    kinds = tuple(map(operator, ops))
    (name,) = (name for name, kind in CHAINS.items() if kind == kinds)
    inputs = [Inputs.of(ops[0]).data]
    for op in ops:
        inputs += [getattr(Inputs.of(op), each) for each in EACH]
    residual = Inputs.of(ops[-1]).residual
    inputs += [residual] if residual is not None else []
    stages = tuple(Stage(op.name, op.attrs, op.outputs[0].shape) for op in ops)
    return Op(name, inputs, ops[-1].outputs, {CHAIN: Chain(stages)})


def unchained(op: Op) -> list[Op]:
    """The ops that it does; the tensors between them are in no graph. Any other op is itself."""
    if op.name not in CHAINS:
        return [op]
    (data, *rest), chain = op.inputs, op.attrs[CHAIN]
    found: list[Op] = []
    for stage in chain.stages:
        last = stage is chain.stages[-1]
        own, rest = rest[: None if last else len(EACH)], rest[len(EACH) :]
        out = op.outputs[0] if last else Tensor("between", DType.FLOAT32, stage.shape)
        found.append(Op(stage.name, [data, *own], [out], stage.attrs))
        data = out
    return found


def parts(op: Op) -> tuple[Op | None, Op, Op | None]:
    """The product before the depthwise convolution, that itself, the product behind it."""
    ops = unchained(op)
    before = ops.pop(0) if op.name in (BEFORE, BOTH) else None
    return before, ops[0], ops[1] if len(ops) > 1 else None


def has_residual(op: Op) -> bool:
    """Whether the last of the ops adds something."""
    return Fused.of(unchained(op)[-1]).residual

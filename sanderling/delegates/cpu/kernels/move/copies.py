"""Kernels that are a loop over bytes or elements."""

from __future__ import annotations

from .....ir import Op
from ...codegen.emit import I8, vector
from ...codegen.program import StepEmitter
from ..row import Kernel


def emit_flip(k: StepEmitter, op: Op) -> None:
    """int8 <-> uint8: the top bit of every byte."""
    x = op.operand(0)
    size = x.nbytes
    source, target = k.ptr(x), k.ptr(op.outputs[0])
    t = vector(I8, k.target.width)
    whole = size // k.target.width
    begin, end = k.share(max(whole, 1)) if whole else (0, 0)
    with k.loop(begin, end) as i:
        place = k.mul(i, k.target.width)
        value = k.b.xor(k.load(k.at(source, place, I8), t), k.const(t, -128))
        k.store(value, k.at(target, place, I8))
    first, last = k.share(1)
    with k.loop(first, last), k.loop(whole * k.target.width, size) as i:
        value = k.b.xor(k.load(k.at(source, i, I8), I8), I8(-128))
        k.store(value, k.at(target, i, I8))


def emit_nothing(k: StepEmitter, op: Op) -> None:
    """A view: its output lies where its input lies, unless the caller wants it elsewhere."""
    x, y = op.operand(0), op.outputs[0]
    if k.program.places.get(x) != k.program.places.get(y):
        first, last = k.share(1)
        source, target = k.ptr(x), k.ptr(y)
        with k.loop(first, last):
            k.copy(target, source, x.nbytes)


VIEW = Kernel(emit_nothing, is_view=True)
FLIP = Kernel(emit_flip, overwrites=lambda op: [op.operand(0)])
KERNELS = {"RESHAPE": VIEW, "SQUEEZE": VIEW, "EXPAND_DIMS": VIEW, "cpu.FLIP": FLIP}

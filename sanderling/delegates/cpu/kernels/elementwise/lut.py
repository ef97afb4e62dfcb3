"""cpu.LUT: a function of one byte by a table of 256, as many bytes at once as the target can."""

from __future__ import annotations

from .....ir import Array, Op, Tensor
from ...codegen.emit import I8, I64, PTR, Emitter, vector
from ...codegen.program import StepEmitter
from ...codegen.vectors import WHOLE
from ...isa.base import isa_of
from ...isa.targets import Target

BLOCK = 1024  # bytes of a unit of work


def fast_lut(target: Target) -> bool:
    """Whether looking up costs no more than a few arithmetic operations."""
    return isa_of(target).quick_lookup


def emit_lut(k: StepEmitter, op: Op) -> None:
    x = op.operand(0)
    size = x.nbytes
    if not size:
        return
    isa = isa_of(k.target)
    lanes = isa.lookup_lanes
    whole = size >= lanes > 1
    values: Array = op.attrs["table"]
    source, target = k.ptr(x), k.ptr(op.outputs[0])
    table = k.constant(isa.lookup_table(values) if whole else values)
    begin, end = k.share(-(-size // BLOCK))
    first, last = k.mul(begin, BLOCK), k.min(k.mul(end, BLOCK), size)
    args = [k.at(source, first, I8), k.at(target, first, I8), table]
    with k.when(k.less(first, last)):
        name, build = (f"lut_{lanes}", _vectors) if whole else ("lut_1", _bytes)
        function = k.program.function(name, [PTR, PTR, PTR, I64], build)
        k.b.call(function, [*args, k.i64(k.sub(last, first))])


def overwritten(op: Op) -> list[Tensor]:
    """Where all vectors are whole: else the last one looks up bytes twice."""
    return [t for t in op.inputs if t is not None and t.nbytes % WHOLE == 0]


def _bytes(e: Emitter) -> None:
    source, target, table, size = e.args
    with e.loop(0, size) as i:
        index = e.b.zext(e.load(e.at(source, i, I8), I8), I64)
        e.store(e.load(e.at(table, index, I8), I8), e.at(target, i, I8))


def _vectors(e: Emitter) -> None:
    """The last vector reaches back over bytes that are looked up twice."""
    source, target, table, size = e.args
    t = vector(I8, e.target.width)
    look = isa_of(e.target).lookup(e, table)
    last = e.sub(size, e.target.width)
    with e.loop(0, size, e.target.width) as i:
        place = e.min(i, last)
        e.store(look(e.load(e.at(source, place, I8), t)), e.at(target, place, I8))

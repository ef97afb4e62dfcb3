"""The code of image_input.py: a pixel at a time, its colours in a vector."""

from __future__ import annotations

import llvmlite.ir as ir

from ...codegen.emit import F32, I8, I32, I64, PTR, VOID, Emitter, Value, plain, vector
from ...isa.targets import Target
from .image_input_kinds import ARGUMENTS, COLOURS, KINDS, LANES, Kind

_BYTES, _WORDS, _REALS = (vector(t, LANES) for t in (I8, I32, F32))


def written(target: Target) -> str:
    """The module, in LLVM's language."""
    module = ir.Module("pictures")
    module.triple = target.triple
    arguments = ir.FunctionType(VOID, [PTR if a == "p" else I64 for a in ARGUMENTS])
    for kind in KINDS:
        emitter = Emitter(module, plain(ir.Function(module, arguments, kind.name)), target)
        _write(emitter, kind)
        emitter.b.ret_void()
    return str(module)


def _write(e: Emitter, kind: Kind) -> None:
    to, source, pitch, step, rows, columns, height, width, values = e.args
    element = F32 if kind.is_float else I8
    mean, factor = (e.load(e.at(values, LANES * i, F32), _REALS) for i in (0, 1))
    with e.loop(0, height) as y:
        line = e.at(to, e.mul(e.mul(y, width), COLOURS), element)
        record = e.at(rows, e.mul(y, 16), I8)
        shares = _shares(e, record) if kind.resized else []
        places = _places(e, record) if kind.resized else [y]
        lines = [e.at(source, e.mul(p, pitch), I8) for p in places]
        with e.loop(0, width) as x:
            if kind.resized:
                value = _blend(e, lines, shares, step, e.at(columns, e.mul(x, 16), I8))
            else:
                value = _pixel(e, e.at(lines[0], e.mul(x, step), I8))
            if kind.flipped:
                value = e.shuffle(value, None, (2, 1, 0, 3))
            value = e.b.fmul(e.b.fsub(value, mean), factor)
            if not kind.is_float:
                value = e.b.trunc(e.b.fptosi(value, _WORDS), _BYTES)
            e.store_part(value, e.at(line, e.mul(x, COLOURS), element), COLOURS)


def _blend(e: Emitter, lines: list[Value], rows: list[Value], step: Value, record: Value) -> Value:
    """The four neighbours: products and sums in the definition's order, each rounded."""
    total = None
    for place, column in zip(_places(e, record), _shares(e, record), strict=True):
        at = e.mul(place, step)
        for line, row in zip(lines, rows, strict=True):
            term = e.b.fmul(e.b.fmul(_pixel(e, e.at(line, at, I8)), row), column)
            total = term if total is None else e.b.fadd(total, term)
    return total


def _pixel(e: Emitter, place: Value) -> Value:
    return e.b.sitofp(e.b.zext(e.load_part(place, _BYTES, COLOURS), _WORDS), _REALS)


def _places(e: Emitter, record: Value) -> list[Value]:
    return [e.b.sext(e.load(e.at(record, i, I32), I32), I64) for i in (0, 1)]


def _shares(e: Emitter, record: Value) -> list[Value]:
    return [e.splat(e.load(e.at(record, i, F32), F32), LANES) for i in (2, 3)]

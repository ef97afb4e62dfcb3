"""AVX512 and VNNI instructions written in plain LLVM IR.

A target whose instructions this machine lacks is emulated: kernels are written as for the target,
and each intrinsic that they call becomes a function of the module with the body given here. So the
code of every x86 target runs, slowly, on every x86 machine that has AVX2, and its answers can be
tested there. Lanes, tiles and rounding are the target's; only the instructions differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import llvmlite.ir as ir

from ..codegen.emit import F32, F64, I1, I8, I16, I32, I64, Emitter, Type, Value, suffix, vector
from .avx512 import DOWN
from .targets import Target

Body = Callable[..., Value]  # body(e, *arguments) -> the result
_DECLARATION = re.compile(r'^declare (.+?) @"(llvm\.x86\.[^"]+)"\((.*)\).*$', re.MULTILINE)
_TYPE = re.compile(r"<(\d+) x (\w+)>|(\w+)")
_ELEMENTS = {"i1": I1, "i8": I8, "i16": I16, "i32": I32, "i64": I64, "float": F32, "double": F64}


def emulate(text: str, target: Target) -> str:
    """The module with a body for each intrinsic of BODIES that it declares."""
    module = ir.Module()
    names = []
    for found in _DECLARATION.finditer(text):
        result, name, arguments = found.groups()
        body = _body(name)
        if body is not None:
            names.append(name)
            _define(module, _renamed(name), _type(result), _types(arguments), body, target)
            text = text.replace(found.group(), "")
    for name in names:
        text = text.replace(f'@"{name}"', f'@"{_renamed(name)}"')
    own = [f for f in module.functions if not (f.is_declaration and f'@"{f.name}"(' in text)]
    return "\n".join([text, *map(str, own)])


def _renamed(name: str) -> str:
    return name.replace("llvm.", "emulated.", 1)


def _body(name: str) -> Body | None:
    return next(
        (body for start, body in BODIES.items() if name.startswith(f"llvm.x86.{start}")), None
    )


def _type(text: str) -> Type:
    found = _TYPE.fullmatch(text.strip())
    assert found is not None, text
    lanes, element, alone = found.groups()
    return _ELEMENTS[alone] if alone else vector(_ELEMENTS[element], int(lanes))


def _types(arguments: str) -> list[Type]:
    """The types of a declaration's parameters, which have names."""
    return [_type(re.sub(r' %".*"$', "", part.strip())) for part in arguments.split(",")]


def _define(
    module: ir.Module,
    name: str,
    result: Type,
    arguments: Sequence[Type],
    body: Body,
    target: Target,
) -> None:
    function = ir.Function(module, ir.FunctionType(result, list(arguments)), name)
    function.linkage = "internal"
    e = Emitter(module, function, target)
    e.b.ret(body(e, *function.args))


# -- whole vectors of integers --------------------------------------------------------------------


def _halves(narrow: str) -> Body:
    """A 512-bit instruction that works on 16-byte pieces: the 256-bit one, twice."""

    def body(e: Emitter, *args: Value) -> Value:
        parts = []
        for high in (0, 1):
            cut = [
                e.shuffle(a, None, range(high * n, high * n + n))
                for a in args
                for n in (a.type.count // 2,)
            ]
            t = e.function.function_type.return_type
            parts.append(e.call(f"llvm.x86.{narrow}", vector(t.element, t.count // 2), *cut))
        return e.join(parts)

    return body


def _dot(group: int, first_signed: bool) -> Body:
    """acc + the sums of `group` products of neighbours; the second operand is signed."""

    def body(e: Emitter, acc: Value, a: Value, b: Value) -> Value:
        lanes = acc.type.count
        narrow, wide = vector(ir.IntType(32 // group), group * lanes), vector(I32, group * lanes)
        a, b = (e.b.bitcast(v, narrow) for v in (a, b))
        products = e.b.mul((e.b.sext if first_signed else e.b.zext)(a, wide), e.b.sext(b, wide))
        for place in range(group):
            acc = e.b.add(acc, e.shuffle(products, None, range(place, group * lanes, group)))
        return acc

    return body


def _lookup(e: Emitter, table: Value, index: Value) -> Value:
    """Lane by lane; of an index the low bits count."""
    found, last = e.undef(vector(table.type.element, index.type.count)), table.type.count - 1
    index = e.b.and_(index, e.const(index.type, last))
    for lane in range(index.type.count):
        at = e.b.zext(e.b.extract_element(index, I32(lane)), I64)
        found = e.b.insert_element(found, e.b.extract_element(table, at), I32(lane))
    return found


def _permute_two(e: Emitter, a: Value, index: Value, b: Value) -> Value:
    return _lookup(e, e.join([a, b]), index)


# -- floats -------------------------------------------------------------------------------------


def _absolute(e: Emitter, x: Value) -> Value:
    return e.call(f"llvm.fabs.{suffix(x.type)}", x.type, x)


def _doubles(e: Emitter, x: Value) -> Value:
    return e.b.fpext(x, vector(F64, x.type.count))


def _floor(e: Emitter, x: Value) -> Value:
    return e.call(f"llvm.floor.{suffix(x.type)}", x.type, x)


def _range(e: Emitter, x: Value, limit: Value, *_: Value) -> Value:
    """The smaller size with x's sign: what control 2 asks for."""
    least = e.fmin(_absolute(e, x), _absolute(e, limit))
    return e.call(f"llvm.copysign.{suffix(x.type)}", x.type, least, x)


def _power(e: Emitter, n: Value) -> Value:
    """2**n as a double, for whole numbers from -1000 to 1000."""
    t = vector(I64, n.type.count)
    bits = e.b.shl(e.b.add(e.b.fptosi(n, t), e.const(t, 1023)), e.const(t, 52))
    return e.b.bitcast(bits, n.type)


def _scalef(e: Emitter, x: Value, n: Value, *_: Value) -> Value:
    """x * 2**floor(n). A float times 2**1000 is out of a float's range already."""
    wide = _doubles(e, _floor(e, n))
    end = e.const(wide.type, 1000.0)
    bounded = e.fmin(end, e.fmax(e.b.fneg(end), wide))
    scaled = e.b.fptrunc(e.b.fmul(_doubles(e, x), _power(e, bounded)), x.type)
    return e.b.select(e.b.fcmp_unordered("uno", n, n), n, scaled)


def _exponent(e: Emitter, x: Value) -> tuple[Value, Value]:
    """floor(log2 |x|) of a number, as a float; and the number's bits as a double."""
    t = vector(I64, x.type.count)
    bits = e.b.bitcast(_doubles(e, x), t)
    field = e.b.and_(e.b.lshr(bits, e.const(t, 52)), e.const(t, 0x7FF))
    return e.b.sitofp(e.b.sub(field, e.const(t, 1023)), x.type), bits


def _getexp(e: Emitter, x: Value, *_: Value) -> Value:
    size, (found, _bits) = _absolute(e, x), _exponent(e, x)
    infinite = e.const(x.type, float("inf"))
    found = e.b.select(e.b.fcmp_ordered("==", size, e.const(x.type, 0)), e.b.fneg(infinite), found)
    return e.b.select(e.b.fcmp_unordered("uge", size, infinite), size, found)


def _getmant(e: Emitter, x: Value, *_: Value) -> Value:
    """In [3/4, 3/2); of 0 and infinity 1, of negative numbers NaN: what control 11 asks for."""
    t, one = x.type, e.const(x.type, 1.0)
    _found, bits = _exponent(e, x)
    whole = bits.type
    kept = e.b.and_(bits, e.const(whole, (1 << 52) - 1))
    unit = e.b.bitcast(e.b.or_(kept, e.const(whole, 1023 << 52)), vector(F64, t.count))
    mantissa = e.b.fptrunc(unit, t)
    high = e.b.fcmp_ordered(">=", mantissa, e.const(t, 1.5))
    mantissa = e.b.select(high, e.b.fmul(mantissa, e.const(t, 0.5)), mantissa)
    size = _absolute(e, x)
    edge = e.b.or_(
        e.b.fcmp_ordered("==", size, e.const(t, 0)),
        e.b.fcmp_ordered("==", size, e.const(t, float("inf"))),
    )
    bad = e.b.fcmp_unordered("ult", x, e.const(t, 0))
    return e.b.select(bad, e.const(t, float("nan")), e.b.select(edge, one, mantissa))


def _rsqrt(e: Emitter, x: Value, *_: Value) -> Value:
    """To all bits, where the instruction promises 14."""
    return e.b.fdiv(e.const(x.type, 1.0), e.call(f"llvm.sqrt.{suffix(x.type)}", x.type, x))


def _fpclass(e: Emitter, x: Value, *_: Value) -> Value:
    """Zeros and +infinity: what the mask 14 asks for."""
    return e.b.or_(
        e.b.fcmp_ordered("==", x, e.const(x.type, 0)),
        e.b.fcmp_ordered("==", x, e.const(x.type, float("inf"))),
    )


def _fma_down(e: Emitter, a: Value, b: Value, c: Value, _mode: Value) -> Value:
    """a * b + c rounded to -infinity. In doubles the product is exact, and what the sum's rounding
    leaves (by Knuth) tells on which side of it the true sum lies."""
    p, q = e.b.fmul(_doubles(e, a), _doubles(e, b)), _doubles(e, c)
    total = e.b.fadd(p, q)
    part = e.b.fsub(total, p)
    left = e.b.fadd(e.b.fsub(p, e.b.fsub(total, part)), e.b.fsub(q, part))
    near = e.b.fptrunc(total, a.type)
    back = _doubles(e, near)
    exact_but_less = e.b.and_(
        e.b.fcmp_ordered("==", back, total), e.b.fcmp_ordered("<", left, e.const(left.type, 0))
    )
    above = e.b.or_(e.b.fcmp_ordered(">", back, total), exact_but_less)
    return e.b.select(above, _below(e, near), near)


def _below(e: Emitter, x: Value) -> Value:
    """The next smaller float."""
    t = vector(I32, x.type.count)
    bits = e.b.bitcast(x, t)
    step = e.b.select(e.b.icmp_signed("<", bits, e.const(t, 0)), e.const(t, 1), e.const(t, -1))
    moved = e.b.bitcast(e.b.add(bits, step), x.type)
    zero = e.b.fcmp_ordered("==", x, e.const(x.type, 0))
    return e.b.select(zero, e.const(x.type, -(2.0**-126)), moved)


def _to_int(e: Emitter, x: Value, _rest: Value, _mask: Value, mode: Value) -> Value:
    """To whole numbers; what does not fit becomes the smallest."""
    down = e.b.icmp_signed("==", mode, I32(DOWN))
    whole = e.b.select(down, _floor(e, x), x)
    return _halves("avx.cvt.ps2dq.256")(e, whole)


# By the names' beginnings, behind "llvm.x86.".
BODIES: dict[str, Body] = {
    "avx512.vpdpbusd.": _dot(4, first_signed=False),
    "avx512.vpdpwssd.": _dot(2, first_signed=True),
    "avx512.pmaddw.d.512": _halves("avx2.pmadd.wd"),
    "avx512.pmaddubs.w.512": _halves("avx2.pmadd.ub.sw"),
    "avx512.packssdw.512": _halves("avx2.packssdw"),
    "avx512.packsswb.512": _halves("avx2.packsswb"),
    "avx512.packuswb.512": _halves("avx2.packuswb"),
    "avx512.pshuf.b.512": _halves("avx2.pshuf.b"),
    "avx512.pmul.hr.sw.512": _halves("avx2.pmul.hr.sw"),
    "avx512.vpermi2var.": _permute_two,
    "avx512.permvar.si.512": _lookup,
    "avx512.mask.range.ps.512": _range,
    "avx512.mask.scalef.ps.512": _scalef,
    "avx512.mask.getmant.ps.512": _getmant,
    "avx512.mask.getexp.ps.512": _getexp,
    "avx512.rsqrt14.ps.512": _rsqrt,
    "avx512.fpclass.ps.512": _fpclass,
    "avx512.vfmadd.ps.512": _fma_down,
    "avx512.mask.cvtps2dq.512": _to_int,
}  # fmt: skip

"""WGSL, the language of WebGPU.

Vectors have four lanes at most, and memory has words of 32 bits: elements of 8 and 16 bits are
parts of words. Where threads store neighbouring parts of one word, they do so by atomic operations.
Work-group sizes are constants that a pipeline sets, so that one program runs in any of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..language import BOOL, FLOAT, INT, REAL, Argument

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "quotient": "/", "remainder": "%",
    "fmod": "%", "floor_mod": "%", "less": "<", "less_equal": "<=", "greater": ">",
    "greater_equal": ">=", "equal": "==", "not_equal": "!=", "and": "&", "or": "|", "xor": "^",
}  # fmt: skip
_SHIFTS = {"shift_left": "<<", "shift_right": ">>"}
_FUNCTIONS = {
    "maximum": "max", "minimum": "min", "round_even": "round", "rsqrt": "inverseSqrt",
}  # fmt: skip
# Bits of elements that are parts of words.
_NARROW = {"u8": 8, "i8": 8, "bool": 8, "u16": 16, "i16": 16, "f16": 16}
_SIGNED = ("i8", "i16")

PREAMBLE = """\
override group_x: u32 = 1u;
override group_y: u32 = 1u;
override group_z: u32 = 1u;
override first_x: u32 = 0u;
override first_y: u32 = 0u;
override first_z: u32 = 0u;
fn special(bits: u32) -> f32 { return bitcast<f32>(bits); }
"""
# Two numbers as halves. What is beyond their range becomes infinite, which WGSL leaves open.
PAIR = """\
fn halves(x: vec2<f32>) -> u32 {
  let ends = vec2<u32>(0x7c00u) | ((bitcast<vec2<u32>>(x) >> vec2<u32>(16u)) & vec2<u32>(0x8000u));
  let inside = abs(x) < vec2<f32>(65520.0);
  let packed = pack2x16float(select(vec2<f32>(0.0), x, inside));
  let size = bitcast<vec2<u32>>(x) & vec2<u32>(0x7fffffffu);
  let other = select(ends, vec2<u32>(0x7e00u), size > vec2<u32>(0x7f800000u));
  let found = select(other, vec2<u32>(packed & 0xffffu, packed >> 16u), inside);
  return found.x | (found.y << 16u);
}
"""
_INFINITY, _NEGATIVE, _NAN = "0x7f800000u", "0xff800000u", "0x7fc00000u"


class Wgsl:
    """half: values of kind float have 16 bits (shader-f16)."""

    name = "webgpu"

    def __init__(self, half: bool = False) -> None:
        self.half = half

    # -- values -----------------------------------------------------------------------------------

    def type(self, kind: str, lanes: int) -> str:
        assert lanes in (1, 2, 3, 4), f"WGSL has no vectors of {lanes}"
        base = {FLOAT: "f16" if self.half else "f32", REAL: "f32", INT: "i32", BOOL: "bool"}[kind]
        return base if lanes == 1 else f"vec{lanes}<{base}>"

    def literal(self, value: Any, kind: str) -> str:
        if kind == BOOL:
            return "true" if value else "false"
        if kind == INT:
            return f"i32({int(value)})" if value < 0 else str(int(value))
        half = self.half and kind == FLOAT
        if not math.isfinite(value):
            return self._special(value, half)
        if half:
            return f"f16({max(-65504.0, min(65504.0, float(np.float32(value))))!r})"
        return f"f32({float(np.float32(value))!r})"

    def _special(self, value: float, half: bool) -> str:
        """A constant may not be infinite, nor NaN; what a function returns may."""
        bits = _NAN if math.isnan(value) else _INFINITY if value > 0 else _NEGATIVE
        return f"f16(special({bits}))" if half else f"special({bits})"

    def splat(self, text: str, kind: str, lanes: int) -> str:
        return f"{self.type(kind, lanes)}({text})"

    def join(self, texts: Sequence[str], kind: str) -> str:
        return f"{self.type(kind, len(texts))}({', '.join(texts)})"

    def lane(self, text: str, lane: int, lanes: int) -> str:
        return f"{text}.{'xyzw'[lane]}"

    def part(self, text: str, first: int, count: int, kind: str, lanes: int) -> str:
        return f"{text}.{'xyzw'[first : first + count]}"

    def cast(self, text: str, old: str, new: str, lanes: int) -> str:
        return f"{self.type(new, lanes)}({text})"

    def select(self, condition: str, yes: str, no: str, kind: str, lanes: int) -> str:
        return f"select({no}, {yes}, {condition})"

    def call(self, name: str, texts: Sequence[str], kind: str, lanes: int) -> str:
        if name == "neg":
            return f"(-{texts[0]})"
        if name == "not":
            return f"(!{texts[0]})" if kind == BOOL else f"(~{texts[0]})"
        if name in _INFIX:
            return self.binary(name, texts[0], texts[1], kind, lanes)
        if name == "fma" and kind == INT:
            return f"({texts[0]} * {texts[1]} + {texts[2]})"
        return f"{_FUNCTIONS.get(name, name)}({', '.join(texts)})"

    def binary(self, name: str, a: str, b: str, kind: str, lanes: int) -> str:
        if a == b and kind in (FLOAT, REAL) and name in ("equal", "not_equal"):
            return self._is_nan(a, name == "not_equal", lanes)
        if name == "not_equal" and kind in (FLOAT, REAL):
            return f"(!({a} == {b}))"  # != is false where a NaN is
        if name in _SHIFTS:
            unsigned = "u32" if lanes == 1 else f"vec{lanes}<u32>"
            return f"({a} {_SHIFTS[name]} {unsigned}({b}))"
        if name in _INFIX:
            return f"({a} {_INFIX[name]} {b})"
        return self.call(name, (a, b), kind, lanes)

    def _is_nan(self, text: str, wanted: bool, lanes: int) -> str:
        """A number that differs from itself. Compilers may assume that there is none, so that only
        the bits tell."""
        wide, bits = ("f32", "u32") if lanes == 1 else (f"vec{lanes}<f32>", f"vec{lanes}<u32>")
        size = f"(bitcast<{bits}>({wide}({text})) & {bits}(0x7fffffffu))"
        return f"({size} {'>' if wanted else '<='} {bits}({_INFINITY}))"

    # -- statements -------------------------------------------------------------------------------

    def let(self, name: str, type_: str, text: str) -> str:
        return f"let {name}: {type_} = {text};"

    def var(self, name: str, type_: str, text: str) -> str:
        return f"var {name}: {type_} = {text};"

    def loop(self, name: str, first: str, last: str, step: str) -> str:
        return f"for (var {name}: i32 = {first}; {name} < {last}; {name} += {step}) {{"

    def global_id(self, axis: int) -> str:
        letter = "xyz"[axis]
        return f"i32(id.{letter} + first_{letter})"

    def leave(self, condition: str) -> str:
        return f"if ({condition}) {{ return; }}"

    # -- memory -----------------------------------------------------------------------------------

    def load(self, argument: Argument, index: str, lanes: int) -> str:
        assert lanes == 4, "WGSL has vectors of four"
        storage, place = argument.storage, f"{argument.name}[{index}]"
        if storage.element != "f16" or self.half:
            return self._converted(place, storage.element, self.type(storage.kind, 4))
        return f"vec4<f32>(unpack2x16float({place}.x), unpack2x16float({place}.y))"

    def load_one(self, argument: Argument, index: str) -> str:
        element, name = argument.storage.element, argument.name
        if element == "i64":
            return f"{name}[2 * ({index})]"
        if element == "f16" and not self.half:
            pair = f"unpack2x16float({name}[({index}) / 4][(({index}) / 2) % 2])"
            return f"{pair}[({index}) % 2]"
        if element not in _NARROW or element == "f16":
            text = f"{name}[({index}) / 4][({index}) % 4]"
            return self._converted(text, element, self.type(argument.storage.kind, 1))
        word, shift, bits = self._part(element, index)
        kind = "i32" if element in _SIGNED else "u32"
        return f"i32(extractBits({kind}({name}[{word}]), {shift}, {bits}u))"

    def _converted(self, text: str, old: str, new: str) -> str:
        """A number, or a vector, in another type; as it is, if the type is its own."""
        return text if old in (new, new[5:-1]) else f"{new}({text})"

    def _part(self, element: str, index: str) -> tuple[str, str, int]:
        """Where a narrow element lies: its word, its first bit and its bits."""
        bits = _NARROW[element]
        each = 32 // bits
        return f"({index}) / {each}", f"u32((({index}) % {each}) * {bits})", bits

    def store(self, argument: Argument, index: str, text: str, lanes: int) -> str:
        assert lanes == 4, "WGSL has vectors of four"
        storage, place = argument.storage, f"{argument.name}[{index}]"
        if storage.element == "f16" and not self.half:
            pairs = ", ".join(f"halves(({text}).{part})" for part in ("xy", "zw"))
            return f"{place} = vec2<u32>({pairs});"
        own = self.type(storage.kind, 1)
        return f"{place} = {self._converted(text, own, f'vec4<{storage.element}>')};"

    def store_one(self, argument: Argument, index: str, text: str) -> str:
        element, name = argument.storage.element, argument.name
        if element == "i64":
            return f"{name}[2 * ({index})] = {text}; {name}[2 * ({index}) + 1] = ({text}) >> 31u;"
        if element not in _NARROW:
            own = self.type(argument.storage.kind, 1)
            return f"{name}[{index}] = {self._converted(text, own, element)};"
        word, shift, bits = self._part(element, index)
        number = (
            f"halves(vec2<f32>(f32({text}), 0.0))" if element == "f16" else f"bitcast<u32>({text})"
        )
        mask = f"{(1 << bits) - 1}u"
        return (
            f"atomicAnd(&{name}[{word}], ~({mask} << {shift})); "
            f"atomicOr(&{name}[{word}], (({number}) & {mask}) << {shift});"
        )

    def _array(self, argument: Argument) -> str:
        """The type of an argument's elements."""
        storage = argument.storage
        if storage.element in _NARROW and argument.single:
            return "atomic<u32>"
        if storage.element in _NARROW and storage.element != "f16":
            return "u32"
        if storage.element == "f16":
            return "vec4<f16>" if self.half else "vec2<u32>"
        if storage.element == "i64":
            return "i32"
        return storage.element if argument.single else f"vec4<{storage.element}>"

    # -- the whole --------------------------------------------------------------------------------

    def kernel(
        self, name: str, arguments: Sequence[Argument], lines: Sequence[str], group: Sequence[int]
    ) -> str:
        """Arguments are variables of the whole module: they have the kernel's name in theirs."""
        declared = "\n".join(
            f"@group(0) @binding({i}) var<storage, {'read_write' if a.written else 'read'}> "
            f"{a.name}_{name}: array<{self._array(a)}>;"
            for i, a in enumerate(arguments)
        )
        own = "|".join(a.name for a in arguments)
        body = re.sub(rf"\b({own})\b", rf"\1_{name}", "\n".join(lines))
        head = "@compute @workgroup_size(group_x, group_y, group_z)"
        point = "@builtin(global_invocation_id) id: vec3<u32>"
        return f"{declared}\n{head}\nfn {name}({point}) {{\n{body}\n}}\n"

    def preamble(self) -> str:
        return f"{'enable f16;' if self.half else ''}\n{PREAMBLE}{PAIR}"


def arguments_of(source: str, kernel: str) -> list[bool]:
    """Whether each argument of a kernel of this program is written."""
    found = re.findall(rf"var<storage, (\w+)> [a-z]+_\d+_{kernel}: ", source)
    return [access == "read_write" for access in found]

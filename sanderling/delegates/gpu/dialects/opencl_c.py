"""OpenCL C, version 1.2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..language import BOOL, FLOAT, INT, REAL, Argument, Storage

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "quotient": "/", "remainder": "%",
    "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=", "equal": "==",
    "not_equal": "!=", "and": "&", "or": "|", "xor": "^", "shift_left": "<<", "shift_right": ">>",
}  # fmt: skip
_FUNCTIONS = {
    "maximum": "fmax", "minimum": "fmin", "abs": "fabs", "round_even": "rint",
    "floor_mod": "fmod",
}  # fmt: skip
_WHOLE_FUNCTIONS = {"maximum": "max", "minimum": "min", "abs": "abs"}
_POINTERS = {
    "f32": "float", "f16": "half", "i32": "int", "u32": "uint", "i8": "char", "u8": "uchar",
    "i16": "short", "u16": "ushort", "bool": "uchar", "i64": "long",
}  # fmt: skip


def _wide(kind: str, lanes: int) -> str:
    return f"{'int' if kind == INT else 'float'}{lanes}"


def _narrow(text: str, half: bool) -> str:
    return f"(half)({text})" if half else text if text[0] != "-" else f"({text})"


class OpenClC:
    """half: values of kind float have 16 bits (cl_khr_fp16)."""

    name = "opencl"

    def __init__(self, half: bool = False) -> None:
        self.half = half

    # -- values -----------------------------------------------------------------------------------

    def type(self, kind: str, lanes: int) -> str:
        float_ = "half" if self.half else "float"
        base = {FLOAT: float_, REAL: "float", INT: "int", BOOL: "int"}[kind]
        return base if lanes == 1 else f"{base}{lanes}"

    def literal(self, value: Any, kind: str) -> str:
        if kind == BOOL:
            return "1" if value else "0"
        if kind == INT:
            return "INT_MIN" if value == -(2**31) else str(int(value))  # the literal is a long
        half = self.half and kind == FLOAT
        if math.isnan(value):
            return _narrow("NAN", half)
        if math.isinf(value):
            return _narrow("INFINITY" if value > 0 else "-INFINITY", half)
        if half:
            value = max(-65504.0, min(65504.0, value))
        return _narrow(f"{float(value).hex()}f", half)

    def splat(self, text: str, kind: str, lanes: int) -> str:
        if kind == BOOL:  # truth is -1 in a vector, 1 in a number
            return f"(int{lanes})(-({text}))"
        return f"({self.type(kind, lanes)})({text})"

    def join(self, texts: Sequence[str], kind: str) -> str:
        inner = ", ".join(f"-({t})" for t in texts) if kind == BOOL else ", ".join(texts)
        return f"({self.type(kind, len(texts))})({inner})"

    def lane(self, text: str, lane: int, lanes: int) -> str:
        return f"{text}.s{lane:x}"

    def part(self, text: str, first: int, count: int, kind: str, lanes: int) -> str:
        return f"{text}.s{''.join(f'{i:x}' for i in range(first, first + count))}"

    def cast(self, text: str, old: str, new: str, lanes: int) -> str:
        if new == BOOL:
            zero = self.splat(self.literal(0, old), old, lanes)
            return self.binary("not_equal", text, zero, old, lanes)
        if old == BOOL and lanes > 1:
            text = f"(-({text}))"
        return f"convert_{self.type(new, lanes)}({text})"

    def select(self, condition: str, yes: str, no: str, kind: str, lanes: int) -> str:
        if lanes > 1 and self.half and kind == FLOAT:
            return f"select({no}, {yes}, convert_short{lanes}({condition}))"
        return f"({condition} ? {yes} : {no})"

    def call(self, name: str, texts: Sequence[str], kind: str, lanes: int) -> str:
        if name == "neg":
            return f"(-{texts[0]})"
        if name == "not":
            return f"(!{texts[0]})" if kind == BOOL else f"(~{texts[0]})"
        if name == "fma" and kind in (FLOAT, REAL):
            half = self.half and kind == FLOAT
            return f"mad({', '.join(texts)})" if half else f"fma({', '.join(texts)})"
        table = _FUNCTIONS if kind in (FLOAT, REAL) else _WHOLE_FUNCTIONS
        text = f"{table.get(name, name)}({', '.join(texts)})"
        # abs() of an int is unsigned
        return f"convert_{self.type(INT, lanes)}({text})" if (name, kind) == ("abs", INT) else text

    def binary(self, name: str, a: str, b: str, kind: str, lanes: int) -> str:
        text = (
            f"({a} {_INFIX[name]} {b})" if name in _INFIX else self.call(name, (a, b), kind, lanes)
        )
        is_test = name in ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
        if is_test and self.half and kind == FLOAT and lanes > 1:
            return f"convert_int{lanes}{text}"  # comparing halves gives shorts
        return text

    # -- statements -------------------------------------------------------------------------------

    def let(self, name: str, type_: str, text: str) -> str:
        return f"const {type_} {name} = {text};"

    def var(self, name: str, type_: str, text: str) -> str:
        return f"{type_} {name} = {text};"

    def loop(self, name: str, first: str, last: str, step: str) -> str:
        return f"for (int {name} = {first}; {name} < {last}; {name} += {step}) {{"

    def global_id(self, axis: int) -> str:
        return f"(int)get_global_id({axis})"

    def leave(self, condition: str) -> str:
        return f"if ({condition}) return;"

    # -- memory -----------------------------------------------------------------------------------

    def load(self, argument: Argument, index: str, lanes: int) -> str:
        storage, name = argument.storage, argument.name
        if storage.form != "buffer":
            return self._pixels(storage, name, index, lanes)
        at = f"{index}, {name}" if lanes == 4 else f"0, {name} + 4 * ({index})"
        if storage.element == "f16" and not self.half:
            return f"vload_half{lanes}({at})"
        return self._from(storage, f"vload{lanes}({at})", lanes)

    def _pixels(self, storage: Storage, name: str, index: str, lanes: int) -> str:
        """Images of halves are read as floats, too: the driver converts them."""
        read = "read_imagei" if storage.kind == INT else "read_imagef"
        found = [f"{read}({name}, {self._place(storage, index, i)})" for i in range(lanes // 4)]
        whole = found[0] if lanes == 4 else f"({_wide(storage.kind, lanes)})({', '.join(found)})"
        return f"convert_half{lanes}({whole})" if self._narrows(storage) else whole

    def _narrows(self, storage: Storage) -> bool:
        """Whether pixels, which are floats, become halves."""
        return self.half and storage.kind == FLOAT

    def _place(self, storage: Storage, index: str, more: int = 0) -> str:
        at = index if not more else f"({index} + {more})"
        if storage.form == "image":
            return at
        return f"(int2)({at} % {storage.width}, {at} / {storage.width})"

    def load_one(self, argument: Argument, index: str) -> str:
        storage, name = argument.storage, argument.name
        if storage.form != "buffer":
            whole = self._pixels(storage, name, f"(({index}) >> 2)", 4)
            type_ = self.type(storage.kind, 1)
            return (
                f"(({type_}[4]){{{', '.join(f'{whole}.s{i}' for i in range(4))}}})[({index}) & 3]"
            )
        if storage.element == "f16" and not self.half:
            return f"vload_half({index}, {name})"
        return self._from(storage, f"{name}[{index}]", 1)

    def _from(self, storage: Storage, text: str, lanes: int) -> str:
        """In the type that values of this kind have."""
        own = {"f32": "float", "f16": "half", "i32": "int"}.get(storage.element)
        wanted = self.type(storage.kind, 1)
        return text if own == wanted else f"convert_{self.type(storage.kind, lanes)}({text})"

    def store(self, argument: Argument, index: str, text: str, lanes: int) -> str:
        storage, name = argument.storage, argument.name
        if storage.form != "buffer":
            return self._write(storage, name, index, text, lanes)
        at = f"{index}, {name}" if lanes == 4 else f"0, {name} + 4 * ({index})"
        if storage.element == "f16" and not self.half:
            return f"vstore_half{lanes}({text}, {at});"
        return f"vstore{lanes}({self._to(storage, text, lanes)}, {at});"

    def _write(self, storage: Storage, name: str, index: str, text: str, lanes: int) -> str:
        write = "write_imagei" if storage.kind == INT else "write_imagef"
        if self._narrows(storage):
            text = f"convert_float{lanes}({text})"
        parts = [
            text
            if lanes == 4
            else f"({text}).s{''.join(f'{j:x}' for j in range(i * 4, i * 4 + 4))}"
            for i in range(lanes // 4)
        ]
        return " ".join(
            f"{write}({name}, {self._place(storage, index, i)}, {part});"
            for i, part in enumerate(parts)
        )

    def store_one(self, argument: Argument, index: str, text: str) -> str:
        storage, name = argument.storage, argument.name
        if storage.element == "f16" and not self.half:
            return f"vstore_half({text}, {index}, {name});"
        return f"{name}[{index}] = {self._to(storage, text, 1)};"

    def _to(self, storage: Storage, text: str, lanes: int) -> str:
        pointed = _POINTERS[storage.element]
        if pointed == self.type(storage.kind, 1):
            return text
        wide = pointed if lanes == 1 else f"{pointed}{lanes}"
        return f"convert_{wide}({text})"

    # -- the whole --------------------------------------------------------------------------------

    def kernel(
        self, name: str, arguments: Sequence[Argument], lines: Sequence[str], group: Sequence[int]
    ) -> str:
        parameters = ", ".join(map(self._parameter, arguments))
        body = "\n".join(lines)
        return f"__kernel void {name}({parameters})\n{{\n{body}\n}}\n"

    def _parameter(self, argument: Argument) -> str:
        storage, name = argument.storage, argument.name
        if storage.form == "image":
            access = "__write_only" if argument.written else "__read_only"
            return f"{access} image1d_buffer_t {name}"
        if storage.form == "texture":
            access = "__write_only" if argument.written else "__read_only"
            return f"{access} image2d_t {name}"
        constness = "" if argument.written else "const "
        return f"__global {constness}{_POINTERS[storage.element]}* restrict {name}"

    def preamble(self) -> str:
        half = "#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n" if self.half else ""
        return f"{half}#pragma OPENCL FP_CONTRACT OFF\n"

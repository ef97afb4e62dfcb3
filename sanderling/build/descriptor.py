"""The tables that the runtime reads, as LLVM IR: tensors, parts, places, versions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..delegates.cpu.runtime.division import limits
from ..delegates.cpu.runtime.executable import Compiled
from ..delegates.cpu.runtime.faults import Site
from ..ir import Quant, Tensor
from .planned_parts import AheadPart, ArgumentPlace, Copy, Version
from .platforms import Platform, probes

# A value of the table with its type: "i64 5", "ptr @x".
Field = str
NULL: Field = "ptr null"
MOST_NAME = 120  # letters of a name that a message has room for


def word(value: int) -> Field:
    return f"i64 {value}"


def symbol(name: str) -> Field:
    return f"ptr @{name}"


def _type(fields: Sequence[Field]) -> str:
    """The type of a struct of these fields."""
    return "{ " + ", ".join(f.split(" ", 1)[0] if f[0] != "{" else _inner(f) for f in fields) + " }"


def _inner(field: Field) -> str:
    """A struct within a struct is written "{ types } { values }"."""
    return field[: field.index("}") + 1]


def struct(fields: Sequence[Field]) -> Field:
    return f"{_type(fields)} {{ {', '.join(fields)} }}"


class Tables:
    """Constants of a module. Texts that are the same are stored once."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.lines: list[str] = []
        self._known: dict[str, Field] = {}

    def _add(self, text: str) -> Field:
        if text not in self._known:
            name = f"{self.prefix}_t{len(self._known)}"
            self.lines.append(f"@{name} = internal constant {text}")
            self._known[text] = symbol(name)
        return self._known[text]

    def text(self, text: str) -> Field:
        return self._bytes(text.encode("utf-8", "replace") + b"\0")

    def data(self, data: bytes) -> Field:
        return self._bytes(data) if data else NULL

    def _bytes(self, data: bytes) -> Field:
        escaped = "".join(f"\\{b:02X}" for b in data)
        return self._add(f'[{len(data)} x i8] c"{escaped}", align 8')

    def rows(self, rows: Sequence[Sequence[Field]]) -> Field:
        """An array of structs."""
        if not rows:
            return NULL
        kind = _type(rows[0])
        return self._add(f"[{len(rows)} x {kind}] [{', '.join(struct(r) for r in rows)}], align 8")


@dataclass
class Descriptor:
    """Writes the module that describes a model. weights: the symbol of each blob."""

    name: str
    platform: Platform
    input_names: Sequence[str]
    output_names: Sequence[str]
    weights: dict[int, str]
    threads: int = 1
    with_steps: bool = False

    def module(self, versions: Sequence[Version]) -> str:
        tables = Tables(self.name)
        first = versions[0]
        rows = [self._version(tables, v) for v in versions]
        is_x86 = self.platform.machine == "x86_64"
        model = [
            tables.text(self.name),
            word(self.threads),
            word(len(first.inputs)),
            word(len(first.outputs)),
            tables.rows(
                [_tensor(tables, t, n) for t, n in zip(first.inputs, self.input_names, strict=True)]
            ),
            tables.rows(
                [
                    _tensor(tables, t, n)
                    for t, n in zip(first.outputs, self.output_names, strict=True)
                ]
            ),
            word(len(versions)),
            tables.rows(rows),
            symbol(f"{self.name}_cpuid") if is_x86 else NULL,
            symbol(f"{self.name}_xcr0") if is_x86 else NULL,
        ]
        lines = [f'target triple = "{self.platform.triple}"', *tables.lines]
        lines.append(f"@{self.name}_model = hidden constant {struct(model)}, align 8")
        lines += [f"@{name} = external hidden constant i8" for name in self._symbols(versions)]
        lines += [f"declare i32 @{name}(...)" for name in _functions(versions)]
        return "\n".join(lines) + "\n"

    def _symbols(self, versions: Sequence[Version]) -> list[str]:
        """The names that the other objects of the library define."""
        found = [f"{self.name}_cpuid", f"{self.name}_xcr0"]
        found = found if self.platform.machine == "x86_64" else []
        for version in versions:
            for index, part in enumerate(version.parts):
                if part.compiled is not None:
                    found += [entry_symbol(self.name, version, index, e) for e in ENTRIES]
        return [*found, *dict.fromkeys(self.weights.values())]

    def _version(self, tables: Tables, version: Version) -> list[Field]:
        parts = [self._part(tables, version, i, p) for i, p in enumerate(version.parts)]
        asked = [[word(n) for n in probe] for probe in probes(version.target)]
        return [
            tables.text(version.target.name),
            word(len(asked)),
            tables.rows(asked),
            word(version.memory),
            word(len(version.state)),
            tables.data(version.state if any(version.state) else b""),
            tables.data(version.constants),
            word(len(parts)),
            tables.rows(parts),
            word(len(version.before)),
            word(len(version.after)),
            tables.rows([_copy(c) for c in version.before]),
            tables.rows([_copy(c) for c in version.after]),
        ]

    def _part(self, tables: Tables, version: Version, index: int, part: AheadPart) -> list[Field]:
        places = tables.rows(
            [_place(tables, p, described=bool(part.function)) for p in part.places]
        )
        if part.compiled is None:
            return self._function(tables, part, places)
        made = part.compiled
        steps = _steps(tables, made) if self.with_steps and made.timed else []
        return [
            *(symbol(entry_symbol(self.name, version, index, e)) for e in ENTRIES),
            symbol(self.weights[id(made)]),
            *(word(n) for n in (made.arena, made.floor, made.scratch, part.most_workers)),
            word(len(part.places)),
            word(part.input_count),
            places,
            tables.rows([_site(tables, s) for s in made.sites]),
            word(len(steps)),
            tables.rows(steps),
            word(len(made.units)),
            tables.data(np.array(limits(made.units, made.works), np.int32).tobytes()),
            NULL,
            NULL,
            NULL,
            word(0),
        ]

    def _function(self, tables: Tables, part: AheadPart, places: Field) -> list[Field]:
        assert part.op is not None, "a part is compiled, or the call of an op's function"
        options = bytes(part.op.attrs.get("options") or b"")
        return [
            *[NULL] * 4,
            *[word(0)] * 3,
            word(1),
            word(len(part.places)),
            word(part.input_count),
            places,
            NULL,
            word(0),
            NULL,
            word(0),
            NULL,
            symbol(part.function),
            tables.text(part.op.name),
            tables.data(options),
            word(len(options)),
        ]


# What the runtime calls of an image, in the order of runtime.c.
ENTRIES = ("invoke", "serve", "stop")


def entry_symbol(name: str, version: Version, index: int, entry: str) -> str:
    return f"{name}_{version.target.name}_{index}_{entry}"


def _functions(versions: Iterable[Version]) -> list[str]:
    return list(dict.fromkeys(p.function for v in versions for p in v.parts if p.function))


def _place(tables: Tables, place: ArgumentPlace, described: bool) -> list[Field]:
    """described: a function is told of its tensors."""
    about = NULL
    if described and place.tensor is not None:
        about = tables.rows([_tensor(tables, place.tensor, place.tensor.name)])
    return [word(place.kind), word(place.at), about]


def _copy(copy: Copy) -> list[Field]:
    places = ([word(p.kind), word(p.at), NULL] for p in (copy.to, copy.source))
    return [*(struct(p) for p in places), word(copy.nbytes)]


def _tensor(tables: Tables, tensor: Tensor, name: str) -> list[Field]:
    scales, zeros, axis = _quant(tensor.quant)
    return [
        tables.text(name),
        f"i32 {tensor.dtype.value}",
        f"i32 {len(tensor.shape)}",
        tables.data(np.array(tensor.shape, "<i8").tobytes()),
        word(tensor.nbytes),
        word(max(tensor.dtype.bits // 8, 1)),
        word(scales.size),
        tables.data(scales.tobytes()),
        tables.data(zeros.tobytes()),
        word(axis),
    ]


def _quant(quant: Quant | None) -> tuple[np.ndarray, np.ndarray, int]:  # type: ignore[type-arg]
    none = np.zeros(0, "<f4"), np.zeros(0, "<i8"), 0
    if quant is None or not quant.scale.size:
        return none
    scales = np.ascontiguousarray(quant.scale.reshape(-1), "<f4")
    zeros = np.zeros(scales.size, "<i8")
    zeros[:] = quant.zero_point.reshape(-1) if quant.zero_point.size else 0
    return scales, zeros, int(quant.axis or 0)


def _site(tables: Tables, site: Site) -> list[Field]:
    return [tables.text(site[key][:MOST_NAME]) for key in ("what", "op")]


def _steps(tables: Tables, made: Compiled) -> list[list[Field]]:
    return [
        [tables.text(row["ops"].replace(",", "+") or row["kernel"]), tables.text(row["op"])]
        for row in made.report
    ]

"""The objects of a library, made from the versions of a model; and what takes its bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..delegates.cpu.codegen.jit import compile_object
from ..delegates.cpu.isa.targets import TARGETS, Target
from ..delegates.cpu.runtime.executable import Compiled
from .descriptor import ENTRIES, Descriptor, entry_symbol
from .elf import Section, archive, object_file
from .planned_parts import Version
from .platforms import CPUID, XCR0, Platform
from .runtime_ir import runtime_ir

CODE_ALIGN = {"x86_64": 64, "aarch64": 4096}  # AArch64 code finds its constants by pages
WEIGHTS_ALIGN = 64


@dataclass
class Sizes:
    """Bytes of a version; arena: what an instance of one thread takes beyond code and weights."""

    version: str
    code: int
    weights: int
    arena: int
    state: int
    steps: int


@dataclass
class Objects:
    """members: objects by name, as they go into the archive."""

    members: list[tuple[str, bytes]] = field(default_factory=list)
    sizes: list[Sizes] = field(default_factory=list)
    weights: int = 0  # bytes of the packed weights; versions that pack them alike share them
    runtime: int = 0  # bytes of the code around the model's
    tables: int = 0  # bytes of names, shapes, places

    def archive(self) -> bytes:
        return archive(self.members)


def make_objects(
    name: str,
    platform: Platform,
    versions: Sequence[Version],
    names: tuple[Sequence[str], Sequence[str]],
    threads: int = 1,
    with_steps: bool = False,
) -> Objects:
    """Everything that the archive holds. names: of inputs and outputs."""
    made = Objects()
    weights: dict[int, str] = {}
    known: dict[bytes, str] = {}
    for version in versions:
        for index, part in enumerate(version.parts):
            if part.compiled is not None:
                made.members.append(_code(name, platform, version, index, part.compiled))
                weights[id(part.compiled)] = _weights(name, platform, part.compiled, known, made)
        made.sizes.append(_sizes(version))
    if platform.machine == "x86_64":
        made.members.append(_asks(name, platform))
    plainest = _plainest(platform)
    text = Descriptor(name, platform, *names, weights, threads, with_steps).module(versions)
    tables = compile_object(text, plainest, quick=True)
    runtime = compile_object(runtime_ir(name, platform.triple), plainest)
    made.tables, made.runtime = len(tables), len(runtime)
    made.members = [(f"{name}_runtime.o", runtime), (f"{name}_model.o", tables), *made.members]
    return made


def _plainest(platform: Platform) -> Target:
    """The row that every CPU of the platform runs: the last of its kind."""
    return [t for t in TARGETS.values() if t.triple == platform.triple][-1]


def _code(
    name: str, platform: Platform, version: Version, index: int, made: Compiled
) -> tuple[str, bytes]:
    image = made.image
    symbols = {entry_symbol(name, version, index, e): image.entries[e] for e in ENTRIES}
    stem = f"{name}_{version.target.name}_{index}"
    section = Section(
        f".text.{stem}", bytes(image.code), CODE_ALIGN[platform.machine], symbols, is_code=True
    )
    return f"{stem}.o", object_file(platform.machine, [section])


def _weights(
    name: str, platform: Platform, packed: Compiled, known: dict[bytes, str], made: Objects
) -> str:
    """The symbol of a part's weights; versions that pack them alike share them."""
    data = packed.weights.tobytes()
    key = hashlib.sha256(data).digest()
    if key not in known:
        known[key] = f"{name}_weights_{len(known)}"
        section = Section(f".rodata.{known[key]}", data, WEIGHTS_ALIGN, {known[key]: 0})
        made.members.append((f"{known[key]}.o", object_file(platform.machine, [section])))
        made.weights += len(data)
    return known[key]


def _asks(name: str, platform: Platform) -> tuple[str, bytes]:
    """The functions that ask the CPU what it has."""
    symbols = {f"{name}_cpuid": 0, f"{name}_xcr0": len(CPUID)}
    section = Section(f".text.{name}_cpu", CPUID + XCR0, 16, symbols, is_code=True)
    return f"{name}_cpu.o", object_file(platform.machine, [section])


def _sizes(version: Version) -> Sizes:
    compiled = version.compiled
    return Sizes(
        version.target.name,
        code=sum(len(c.image.code) for c in compiled),
        weights=sum(c.weights.nbytes for c in compiled),
        arena=max((max(c.arena, c.floor + c.scratch) for c in compiled), default=0)
        + version.memory
        - len(version.state),
        state=len(version.state),
        steps=sum(len(c.steps) for c in compiled),
    )

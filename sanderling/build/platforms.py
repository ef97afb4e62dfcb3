"""What a library is built for: a platform, and the versions of the code that it holds.

Versions are rows of the compiler's one table of targets. A library asks the CPU which of them it
can run when an instance is made; what it asks for each feature is a row of PROBES.
"""

from __future__ import annotations

import platform as python_platform
from dataclasses import dataclass, replace

from ..delegates.cpu.isa.targets import TARGETS, Target, find, host_target, problem
from ..errors import InputError, UnsupportedError

NATIVE = "native"


@dataclass(frozen=True)
class Platform:
    """A row. versions: names of targets, the best first; zig: how ziglang names it."""

    name: str
    machine: str
    versions: tuple[Target, ...]
    zig: str = ""
    is_android: bool = False

    @property
    def triple(self) -> str:
        return self.versions[0].triple

    @property
    def is_native(self) -> bool:
        """Whether this machine runs its programs (if the CPU has what a version needs)."""
        here = python_platform.system() == "Linux" and python_platform.machine() == self.machine
        return here and not self.is_android


def _rows(*names: str) -> tuple[Target, ...]:
    return tuple(TARGETS[name] for name in names)


_X86 = _rows("avx512vnni", "avx2vnni", "avx2", "generic")
_ARM = _rows("i8mm", "neondot", "neon")
PLATFORMS = {
    p.name: p
    for p in (
        Platform("x86-64", "x86_64", _X86, "x86_64-linux-gnu.2.17"),
        Platform("aarch64", "aarch64", _ARM, "aarch64-linux-gnu.2.17"),
        Platform("android-arm64", "aarch64", _ARM, "aarch64-linux-musl", is_android=True),
        Platform("android-x86-64", "x86_64", _X86, "x86_64-linux-musl", is_android=True),
    )
}
# Android's names for what CPUs of a device run.
ABIS = {"arm64-v8a": "android-arm64", "x86_64": "android-x86-64"}


def names() -> list[str]:
    """Everything that a library can be built for."""
    return [NATIVE, *PLATFORMS, *TARGETS]


def platform_of(name: str) -> Platform:
    """A platform by its name. A target's name stands for a library with this version alone,
    PLATFORM:A,B for one with versions A and B."""
    name, _, chosen = name.partition(":")
    if name == NATIVE:
        found = _native()
    elif name in PLATFORMS:
        found = PLATFORMS[name]
    elif name in TARGETS:
        found = _around(TARGETS[name], name)
    else:
        raise InputError(f"there is no target '{name}'", fix=f"one of {', '.join(names())}")
    return _with_versions(found, [v for v in chosen.split(",") if v]) if chosen else found


def _with_versions(found: Platform, chosen: list[str]) -> Platform:
    rows = [find(name) for name in chosen]
    strange = [row.name for row in rows if row.triple != found.triple]
    if strange:
        raise InputError(
            f"'{strange[0]}' is no version for {found.name}",
            fix=f"one of {', '.join(t.name for t in TARGETS.values() if t.triple == found.triple)}",
        )
    order = list(TARGETS)
    rows.sort(key=lambda row: order.index(row.name))
    return replace(found, versions=tuple(rows))


def _around(row: Target, name: str) -> Platform:
    home = next(p for p in PLATFORMS.values() if p.triple == row.triple)
    return replace(home, name=name, versions=(row,))


def _native() -> Platform:
    why = problem()
    if why is not None:
        raise UnsupportedError(
            why, where="--target native", fix=f"name one of {', '.join(PLATFORMS)}"
        )
    return _around(host_target(), NATIVE)


# -- what the CPU is asked ------------------------------------------------------------------------

_YMM, _ZMM = 0x6, 0xE6  # what the system has to keep: bits of XCR0
_EAX, _EBX, _ECX = range(3)
_HWCAP, _HWCAP2 = 16, 26  # of the auxiliary vector
# x86-64: leaf and sub-leaf of CPUID, register, bit, XCR0. AArch64: entry, 0, 0, bit, 0.
Probe = tuple[int, int, int, int, int]
PROBES: dict[str, Probe] = {
    "fma": (1, 0, _ECX, 12, _YMM),
    "movbe": (1, 0, _ECX, 22, 0),
    "popcnt": (1, 0, _ECX, 23, 0),
    "f16c": (1, 0, _ECX, 29, _YMM),
    "bmi": (7, 0, _EBX, 3, 0),
    "avx2": (7, 0, _EBX, 5, _YMM),
    "bmi2": (7, 0, _EBX, 8, 0),
    "avx512f": (7, 0, _EBX, 16, _ZMM),
    "avx512dq": (7, 0, _EBX, 17, _ZMM),
    "avx512cd": (7, 0, _EBX, 28, _ZMM),
    "avx512bw": (7, 0, _EBX, 30, _ZMM),
    "avx512vl": (7, 0, _EBX, 31, _ZMM),
    "avx512vbmi": (7, 0, _ECX, 1, _ZMM),
    "avx512vnni": (7, 0, _ECX, 11, _ZMM),
    "avxvnni": (7, 1, _EAX, 4, _YMM),
    "avx512bf16": (7, 1, _EAX, 5, _ZMM),
    "lzcnt": (0x80000001, 0, _ECX, 5, 0),
    "neon": (_HWCAP, 0, 0, 1, 0),
    "dotprod": (_HWCAP, 0, 0, 20, 0),
    "i8mm": (_HWCAP2, 0, 0, 13, 0),
}
_EVERYWHERE = {"sse2"}  # part of x86-64


def probes(row: Target) -> list[Probe]:
    """What the code of this row needs, as questions to the CPU."""
    wanted = (f.removeprefix("+") for f in row.features if f.startswith("+"))
    return [PROBES[name] for name in wanted if name not in _EVERYWHERE]


# cpuid(leaf, sub, registers): push rbx; mov r8, rdx; mov eax, edi; mov ecx, esi; cpuid;
# mov [r8], eax; mov [r8+4], ebx; mov [r8+8], ecx; mov [r8+12], edx; pop rbx; ret
CPUID = bytes.fromhex("53 4989d0 89f8 89f1 0fa2 418900 41895804 41894808 4189500c 5b c3")
# xcr0(): xor ecx, ecx; xgetbv; ret. LLVM has no intrinsic for the first, and an assembler for other
# machines than its own is not in llvmlite, so both are written out.
XCR0 = bytes.fromhex("31c9 0f01d0 c3")

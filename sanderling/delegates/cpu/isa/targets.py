"""Targets: what a CPU offers, as rows of one table.

The host is detected; a target can be forced by name, so that AVX2 code is made and run on a machine
that has AVX512 as well. SANDERLING_HOST makes this machine report another's features, so that
everything runs as it would there; what it lacks is emulated (emulated.py).
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from ....config import HOST
from ....errors import InputError


@dataclass(frozen=True)
class Target:
    """A row. width: bytes of a vector; registers: vectors at hand; dot: there is an instruction
    that multiplies bytes and sums four products; matrix: one that multiplies two rows of eight
    bytes with two columns."""

    name: str
    triple: str
    isa: str  # the module of this folder that has its instructions
    cpu: str
    features: tuple[str, ...]  # what LLVM is told
    needs: frozenset[str]  # what the host must report
    width: int
    registers: int
    dot: bool = False
    matrix: bool = False
    activation: str = "u8"  # how 8-bit activations are kept: u8 suits u8 x s8 products
    bf16: bool = False
    precision: str = "f32"  # of float products: PRECISIONS
    sparse: bool = True  # weights of zero are left out of products where that is faster
    emulated: bool = False  # instructions that this machine lacks are written in others

    @property
    def lanes(self) -> int:
        """32-bit lanes of a vector."""
        return self.width // 4

    @property
    def fma(self) -> bool:
        """A fused multiply-add; likewise the instructions that round floats to whole numbers."""
        return "+fma" in self.features or self.triple == _ARM

    def masks(self, size: int) -> bool:
        """Whether part of a vector of elements of so many bytes is loaded or stored as quickly as
        the whole: AVX512 has masks for all, AVX2 for 32 bits."""
        return self.width == 64 or (self.width == 32 and size == 4)


_X86 = "x86_64-unknown-linux-gnu"
_ARM = "aarch64-unknown-linux-gnu"
_AVX2 = ("avx2", "fma", "f16c", "bmi", "bmi2", "popcnt", "lzcnt", "movbe")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd")

_VNNI = (*_AVX512, "avx512vnni")
_DOT = ("neon", "dotprod")


def _row(
    name: str,
    triple: str,
    isa: str,
    features: tuple[str, ...],
    width: int,
    registers: int,
    **more: object,
) -> Target:
    cpu = "x86-64" if triple == _X86 else "generic"
    flags = tuple(f"+{f}" for f in features)
    # Without this LLVM may split 512-bit vectors to keep older chips at their clock.
    extra = ("-prefer-256-bit",) if width == 64 else ()
    return Target(
        name,
        triple,
        isa,
        cpu,
        flags + extra,
        frozenset(features),
        width,
        registers,
        **more,  # type: ignore[arg-type]
    )


# Best first: the first row that the host can run is its target.
TARGETS: dict[str, Target] = {
    t.name: t
    for t in (
        _row("avx512bf16", _X86, "avx512", (*_VNNI, "avx512bf16"), 64, 32, dot=True, bf16=True),
        _row("avx512vnni", _X86, "avx512", _VNNI, 64, 32, dot=True),
        _row("avx512", _X86, "avx512", _AVX512, 64, 32),
        _row("avx2vnni", _X86, "x86", (*_AVX2, "avxvnni"), 32, 16, dot=True),
        _row("avx2", _X86, "x86", _AVX2, 32, 16),
        _row("generic", _X86, "x86", ("sse2",), 16, 16),
        _row("i8mm", _ARM, "arm", (*_DOT, "i8mm"), 16, 32, dot=True, matrix=True, activation="i8"),
        _row("neondot", _ARM, "arm", _DOT, 16, 32, dot=True, activation="i8"),
        _row("neon", _ARM, "arm", ("neon",), 16, 32, activation="i8"),
    )
}


# How float products may be computed; other float arithmetic is float32 always.
PRECISIONS = ("f32", "bf16")

# Features that some hosts of a row have beyond it; kernels ask for them one by one.
EXTRAS = ("avx512vbmi",)


def find(name: str) -> Target:
    if name not in TARGETS:
        raise InputError(f"there is no target '{name}'", fix=f"one of {', '.join(TARGETS)}")
    return TARGETS[name]


def _triple(machine: str) -> str:
    return _ARM if machine in ("aarch64", "arm64") else _X86


def host(features: frozenset[str], machine: str) -> Target:
    """The best row for a machine that reports these features."""
    triple = _triple(machine)
    row = next(t for t in TARGETS.values() if t.triple == triple and t.needs <= features)
    extras = [f"+{name}" for name in EXTRAS if name in features and row.width == 64]
    return replace(row, features=(*row.features, *extras))


# How the kernel's /proc/cpuinfo spells what LLVM calls otherwise.
_SPELLING = {"avx512_vnni": "avx512vnni", "avx512_bf16": "avx512bf16", "avx_vnni": "avxvnni",
             "bmi1": "bmi", "abm": "lzcnt", "asimd": "neon", "asimddp": "dotprod"}  # fmt: skip


# What every CPU of its architecture has, reported or not.
_EVERYWHERE = frozenset({"sse2", "neon"})


@cache
def cpu_features() -> frozenset[str]:
    """What this CPU offers, by LLVM's names; LLVM itself is asked where there is no /proc."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            # The first core's: the file is made while it is read, core by core.
            found = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        found = ""
    names = found.partition(":")[2].split()
    if not names:
        names = sorted(llvm_features())
    return frozenset(_SPELLING.get(n, n) for n in names) | _EVERYWHERE


def llvm_features() -> frozenset[str]:
    """The host's features as LLVM sees them; loads it."""
    from llvmlite.binding import get_host_cpu_features

    return frozenset(name for name, on in get_host_cpu_features().items() if on)


def host_features() -> frozenset[str]:
    """What the host reports: all that its CPU offers, or what SANDERLING_HOST has it report."""
    return _reported(HOST.text())[0]


def host_target() -> Target:
    return _reported(HOST.text())[1]


@cache
def _reported(name: str) -> tuple[frozenset[str], Target]:
    machine = platform.machine()
    if not name:
        return cpu_features(), host(cpu_features(), machine)
    row = find(name)
    own = row.needs <= cpu_features() and row.triple == _triple(machine)
    return row.needs | _EVERYWHERE, row if own else emulated(row)


def emulated(row: Target) -> Target:
    """The row in this machine's instructions."""
    own = host(cpu_features(), platform.machine())
    if not emulatable(row):
        raise InputError(
            f"this machine can neither run nor emulate the target '{row.name}'",
            fix="x86-64 targets are emulated on a CPU that has AVX2",
        )
    return replace(row, features=own.features, bf16=False, emulated=True)


def emulatable(row: Target) -> bool:
    own = host(cpu_features(), platform.machine())
    return row.triple == own.triple == _X86 and own.width >= 32


def problem(system: str = platform.system(), machine: str = platform.machine()) -> str | None:
    """Why this machine runs none of our code, or None. Calling conventions, threads and executable
    memory are Linux's; nobody has tried elsewhere."""
    if system != "Linux":
        return f"compiled code runs on Linux only, this is {system}"
    if machine not in ("x86_64", "aarch64"):
        return f"there is no compiler for {machine}, only for x86_64 and aarch64"
    return None


def runnable(target: Target) -> bool:
    """Whether this machine can execute the target's code."""
    if target.emulated:
        return True
    has = host_features() & cpu_features()  # a host may be told to report more than it has
    return target.triple == host_target().triple and target.needs <= has

"""Compilers and linkers of the user's: for shared libraries and programs. Archives need none."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError, UnsupportedError
from .platforms import Platform

_NATIVE = ("cc", "gcc", "clang")
_CROSS = {"x86_64": "x86_64-linux-gnu-gcc", "aarch64": "aarch64-linux-gnu-gcc"}
_QEMU = {"x86_64": "qemu-x86_64", "aarch64": "qemu-aarch64"}
TIMEOUT = 900.0  # ziglang compiles a libc when it is first used


@dataclass(frozen=True)
class Compiler:
    """A C compiler for a platform. makes_shared: its libraries are for this platform; a program
    that is linked statically runs on Android too, a shared library of glibc's does not."""

    words: tuple[str, ...]
    makes_shared: bool = True

    def run(self, *words: str | Path) -> None:
        line = [*self.words, *map(str, words)]
        try:
            done = subprocess.run(line, capture_output=True, text=True, timeout=TIMEOUT)
        except (OSError, subprocess.TimeoutExpired) as error:
            said = error.strerror if isinstance(error, OSError) else f"no answer in {TIMEOUT:g} s"
            raise InputError(
                f"the compiler cannot be run: {said}", where=self.words[0], fix="check --cc"
            ) from error
        if done.returncode:
            said = " ".join((done.stderr or done.stdout).split())[-600:] or "nothing"
            raise UnsupportedError(
                f"it ended with status {done.returncode} and said: {said}",
                where=shlex.join(self.words),
                fix="give a compiler for this target with --cc, or --cc none for the archive alone",
            )


def find_compiler(platform: Platform, command: str = "") -> Compiler | None:
    """The user's, or one that this machine has for the platform, or none. command: the words of a
    compiler, or 'none'."""
    if command == "none":
        return None
    if command:
        words = tuple(shlex.split(command))
        if not words or shutil.which(words[0]) is None:
            raise InputError(
                f"there is no command '{command}'", where="--cc", fix="name a C compiler"
            )
        return Compiler(words)
    for name in _candidates(platform):
        if shutil.which(name):
            return Compiler((name,), not platform.is_android)
    if importlib.util.find_spec("ziglang") is not None:
        zig = (sys.executable, "-m", "ziglang", "cc", "-target", platform.zig)
        return Compiler(zig, not platform.is_android)
    return None


def _candidates(platform: Platform) -> list[str]:
    own = [os.environ["CC"]] if platform.is_native and os.environ.get("CC") else []
    here = list(_NATIVE) if platform.is_native else []
    return [*own, *here, _CROSS[platform.machine]]


def no_compiler(platform: Platform, what: str) -> str:
    """Why something that is linked is not there, and what to do."""
    system = _NATIVE[1] if platform.is_native else _CROSS[platform.machine]
    one = (
        "the NDK's clang, named with --cc"
        if platform.is_android
        else f"{system}, or pip install ziglang, or your own with --cc"
    )
    return f"there is no {what}: it takes a C compiler for {platform.name}, such as {one}"


def shared_library(
    compiler: Compiler, name: str, folder: Path, linked: Sequence[Path] = ()
) -> None:
    """libNAME.so from libNAME.a. linked: files with functions that it calls."""
    compiler.run(
        "-shared",
        "-o",
        folder / f"lib{name}.so",
        f"-Wl,-soname,lib{name}.so",
        "-Wl,-z,noexecstack",
        "-Wl,--whole-archive",
        folder / f"lib{name}.a",
        "-Wl,--no-whole-archive",
        *linked,
        "-pthread",
    )


def program(
    compiler: Compiler,
    output: Path,
    sources: Sequence[Path],
    flags: Sequence[str] = (),
    static: bool = False,
) -> None:
    more = ["-static"] if static else []
    compiler.run("-O2", "-std=gnu11", *flags, "-o", output, *sources, *more, "-pthread", "-lm")


def runner(platform: Platform) -> list[str] | None:
    """What runs a program of this platform here: nothing more, qemu-user, or None."""
    if platform.is_native:
        return []
    found = shutil.which(_QEMU[platform.machine])
    return [found] if found else None

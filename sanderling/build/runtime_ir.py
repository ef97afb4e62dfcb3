"""The C runtime as LLVM IR, so that a library is made without a C compiler.

`runtime.ll` is made from `runtime.c` by clang 15 or later and is the same for every 64-bit target:

    python -m sanderling.build.runtime_ir [CLANG]
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "runtime"
SOURCES = ("types.h", "runtime.c")
_MARK = "; made by runtime_ir.py from "
# Oz: it runs a few dozen instructions a run. Names of libc's own (__sched_cpucount, __snprintf_chk)
# would tie it to one libc.
_FLAGS = ("--target=aarch64-linux-gnu", "-I/usr/aarch64-linux-gnu/include", "-std=c11", "-Oz",
          "-fPIC", "-fno-stack-protector", "-fno-strict-aliasing", "-fno-unwind-tables",
          "-fno-asynchronous-unwind-tables", "-U_FORTIFY_SOURCE", "-S", "-emit-llvm")  # fmt: skip
# Lines that say for which target it was made, and what only a linker of whole programs reads.
_LEFT_OUT = re.compile(
    r"^(?:target (?:datalayout|triple)|source_filename|; ModuleID|!|@sr_model = )"
)
# "target-cpu"="generic" and its like; links to the metadata that is left out.
_OF_TARGET = re.compile(r'"[\w.-]+"="[^"]*" ?|, ![a-z.]+ ![0-9]+')


def digest() -> str:
    """The digest of the sources."""
    content = b"".join((FOLDER / name).read_bytes() for name in SOURCES)
    return hashlib.sha256(content).hexdigest()


def runtime_ir(name: str, triple: str) -> str:
    """The runtime's module for a model of this name."""
    text = (FOLDER / "runtime.ll").read_text()
    own = text.replace("sr_", f"{name}_")
    return (
        f'target triple = "{triple}"\n@{name}_model = external hidden constant %struct.model\n{own}'
    )


def is_current() -> bool:
    """Whether runtime.ll was made from the sources as they are now."""
    return (FOLDER / "runtime.ll").read_text().startswith(f"{_MARK}{digest()}\n")


def make(clang: str) -> None:
    command = [clang, *_FLAGS, str(FOLDER / "runtime.c"), "-o", "-"]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = (line for line in made.splitlines() if not _LEFT_OUT.match(line))
    text = "\n".join(_OF_TARGET.sub("", line) if _is_code(line) else line for line in lines)
    (FOLDER / "runtime.ll").write_text(f"{_MARK}{digest()}\n{text}\n")


def _is_code(line: str) -> bool:
    """Not a text of the program's, in which quotes are its own."""
    return not line.startswith("@")


if __name__ == "__main__":
    make(sys.argv[1] if len(sys.argv) > 1 else "clang")

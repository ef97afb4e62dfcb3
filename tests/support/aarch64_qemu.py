"""AArch64 code run by qemu-user: a static program made of an image and its arrays, without a C
library. Its first instructions call `invoke`, write the outputs to stdout and leave."""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sanderling.delegates.cpu.runtime.abi import (
    ARENA,
    CHUNKS,
    FIRST_ARG,
    SCRATCH,
    SLACK,
    STRIDE,
    SYNC,
    TIMES,
    WEIGHTS,
    sync_words,
)
from sanderling.delegates.cpu.runtime.executable import Compiled
from sanderling.ir import Array

QEMU = shutil.which("qemu-aarch64")
BASE = 0x400000
PAGE = 4096
_WRITE, _EXIT = 64, 93


def run_aarch64(compiled: Compiled, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Run on one worker; outputs are filled."""
    program = _Program(compiled, inputs, outputs)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program"
        path.write_bytes(program.elf())
        path.chmod(0o700)
        with (Path(folder) / "out").open("w+b") as out:
            done = subprocess.run(
                [str(QEMU), str(path)], stdout=out, stderr=subprocess.PIPE, timeout=300
            )
            assert done.returncode == 0, f"status {done.returncode}: {done.stderr.decode()}"
            out.seek(0)
            for array in outputs:
                array.reshape(-1).view(np.uint8)[:] = np.frombuffer(
                    out.read(array.nbytes), np.uint8
                )
            assert not out.read()


class _Program:
    def __init__(
        self, compiled: Compiled, inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> None:
        self.memory = bytearray(PAGE)  # the first page is for the first instructions
        code = self._add(bytes(compiled.image.code))
        context = np.zeros(FIRST_ARG + len(inputs) + len(outputs), np.int64)
        context[WEIGHTS] = self._add(compiled.weights.tobytes())
        context[ARENA] = self._add(bytes(compiled.arena + SLACK))
        context[SCRATCH] = self._add(bytes(compiled.scratch + SLACK))
        context[STRIDE] = compiled.scratch
        context[SYNC] = self._add(bytes(4 * sync_words(1)))
        context[CHUNKS] = self._add(bytes(4 * (len(compiled.steps) + 1)))
        context[TIMES] = self._add(bytes(8 * max(len(compiled.steps), 1)))
        for slot, array in enumerate((*inputs, *outputs), FIRST_ARG):
            context[slot] = self._add(array.tobytes())
        made = [
            (int(context[FIRST_ARG + len(inputs) + i]), a.nbytes) for i, a in enumerate(outputs)
        ]
        where = self._add(context.tobytes())
        start = _start(code + compiled.image.entries["invoke"], where, made)
        self.memory[:PAGE] = start.ljust(PAGE, b"\0")

    def _add(self, raw: bytes) -> int:
        """On a page of its own, with an unused page behind."""
        self.memory += bytes(-len(self.memory) % PAGE)
        address = BASE + len(self.memory)
        self.memory += raw + bytes(PAGE)
        return address

    def elf(self) -> bytes:
        """ELF64, AArch64, one segment that may be read, written and run."""
        head = struct.pack(
            "<16sHHIQQQIHHHHHH",
            b"\x7fELF\x02\x01\x01",
            2,
            183,
            1,
            BASE,
            64,
            0,
            0,
            64,
            56,
            1,
            64,
            0,
            0,
        )
        size = len(self.memory)
        segment = struct.pack("<IIQQQQQQ", 1, 7, PAGE, BASE, BASE, size, size, PAGE)
        return (head + segment).ljust(PAGE, b"\0") + bytes(self.memory)


def _start(invoke: int, context: int, outputs: Sequence[tuple[int, int]]) -> bytes:
    words = [*_set(0, 1), *_set(1, context), *_set(16, invoke), 0xD63F0200]  # blr x16
    for address, size in outputs:
        words += [*_set(0, 1), *_set(1, address), *_set(2, size), *_set(8, _WRITE), 0xD4000001]
    words += [*_set(0, 0), *_set(8, _EXIT), 0xD4000001]  # svc #0
    return struct.pack(f"<{len(words)}I", *words)


def _set(register: int, value: int) -> list[int]:
    """movz, movk: a 48-bit value into a register."""
    parts = [value >> shift & 0xFFFF for shift in (0, 16, 32)]
    first = 0xD2800000 | parts[0] << 5 | register
    return [
        first,
        *(
            0xF2800000 | place << 21 | part << 5 | register
            for place, part in enumerate(parts[1:], 1)
        ),
    ]

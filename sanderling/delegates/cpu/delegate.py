"""The `cpu` delegate. It loads LLVM and the kernels when it has something to compile, not before:
what was compiled once comes from the cache."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...config import DUMP
from ...errors import InputError
from ...ir import Graph, Op
from ...runtime.delegate import Executable, Options
from .cache import Cache, fingerprint
from .dump import Dump, folder_for, table
from .executable import Compiled, CpuExecutable
from .targets import Target, find, host_target

# Multiply-adds that are worth a worker: 5 us in int8, 12 us in float32 on an AVX512 core. Waking a
# worker and four barriers took 12 to 18 us on a machine whose cores were busy, 800,000 int8
# multiply-adds on one worker 5.5 us; to be fitted again on a quiet machine.
WORK_OF_WORKER = 1_000_000
# A compilation that takes longer says so on a terminal.
PATIENCE = 0.5


class CpuDelegate:
    """Compiles parts to machine code.

    target: a row of targets.TARGETS, default this machine's. timed: count the ticks of every step.
    dump: a folder that every stage is written to. cache: False keeps nothing on disk.
    """

    name = "cpu"

    def __init__(self, target: str | None = None, timed: bool = False,
                 dump: str | Path | None = None, cache: bool = True) -> None:  # fmt: skip
        self.target: Target = host_target() if target is None else find(target)
        self.timed = timed
        self.dump = dump
        self.cache = Cache() if cache else Cache("off")

    def configure(self, options: Mapping[str, Any]) -> None:
        """Options by name, as load_delegate(name, options) passes them."""
        unknown = sorted(set(options) - {"target", "timed", "dump", "cache"})
        if unknown:
            raise InputError(f"the cpu delegate has no option '{unknown[0]}'",
                             fix="its options are target, timed, dump and cache")  # fmt: skip
        self.__init__(**options)  # type: ignore[misc]

    def refuses(self, op: Op) -> str | None:
        from .kernels import KERNELS

        kernel = KERNELS.get(op.name)
        if kernel is None:
            return f"{op.name} has no kernel"
        if any(t is not None and t.is_dynamic for t in (*op.inputs, *op.outputs)):
            return "a shape is not known before the run"
        return kernel.refuses(op, self.target)

    def refuses_each(self, ops: Sequence[Op]) -> list[str | None]:
        """The reasons against many ops at once; remembered, since asking needs the kernels."""
        key = self.cache.key("refusals", fingerprint(ops, (), (), whole=False), self.target)
        found = self.cache.load_reasons(key, len(ops))
        if found is None:
            found = [self.refuses(op) for op in ops]
            self.cache.store_reasons(key, found)
        return found

    def compile(self, part: Graph, options: Options) -> Executable:
        compiled = self.compiled(part)
        workers = max(1, min(options.threads, compiled.macs // WORK_OF_WORKER))
        return CpuExecutable(compiled, workers)

    def compiled(self, part: Graph) -> Compiled:
        """The part's code: from the cache, or made now (the part is changed then)."""
        key = self.cache.key("part", fingerprint(part.ops, part.inputs, part.outputs),
                             self.target, self.timed)  # fmt: skip
        root = self.dump or DUMP.text()
        if not root:
            found = self.cache.load(key)
            if found is not None:
                return found
        with _patience(f"compiling {len(part.ops)} ops for {self.target.name}"):
            from .lower import Settings, build

            folder = folder_for(str(root), part, key) if root else None
            made = build(part, Settings(self.target, self.timed), Dump(folder))
        return self.cache.store(key, made)

    def explain(self, part: Graph) -> str:
        """The steps that a part becomes: kernels, places, costs. The part is changed."""
        return table(self.compiled(part).report)


def build(delegate: CpuDelegate, part: Graph) -> Compiled:
    """The part's code, made now."""
    from .lower import Settings, build

    return build(part, Settings(delegate.target, delegate.timed), Dump(None))


def lower(part: Graph, delegate: CpuDelegate) -> tuple[Any, int]:
    """The part as a program with its module written, and the bytes of its arena."""
    from .lower import Settings, lower

    return lower(part, Settings(delegate.target, delegate.timed), Dump(None))


@contextmanager
def _patience(what: str) -> Iterator[None]:
    """A line on the terminal that shows, after a while, that something goes on."""
    if not sys.stderr.isatty():
        yield
        return
    begin, done = time.monotonic(), threading.Event()

    def show() -> None:
        while not done.wait(PATIENCE):
            print(f"\r{what} (once; the result is kept): {time.monotonic() - begin:.1f} s ",
                  end="", file=sys.stderr, flush=True)  # fmt: skip

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        if time.monotonic() - begin > PATIENCE:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

"""Running a compiled part: context, arena, worker threads. Needs no LLVM."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from time import monotonic, sleep
from typing import Any, NoReturn

import numpy as np

from ....errors import DelegateError
from ....ir import Array
from ....runtime.delegate import Executable, StepTimes
from ....spans import hold
from . import division
from .abi import (
    ALIGN,
    ALWAYS,
    ARENA,
    CHUNKS,
    FAULT,
    FIRST_ARG,
    LIMIT,
    MOST_SPINS,
    SCRATCH,
    SLACK,
    STRIDE,
    SYNC,
    SYSCALL,
    TIMES,
    VALUE,
    WEIGHTS,
    WORKERS,
    sync_words,
)
from .division import limits, table
from .faults import Site, error_of
from .image import Image, Loaded
from .pycall import Record, builtin, fits

_INVOKE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
_STOP = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
# Turns of the spin loop before a worker sleeps, at most; a turn is about 45 ns on Intel since
# Skylake, 120 ns on Zen 5, 10 ns on others. See waiting.py for how the limit adapts.
SPIN = 4000
# Multiplications, or bytes written, of a run that is over before the GIL would have been handed on:
# about two microseconds.
TINY = 10_000
# Seconds that the end of the program waits for runs of daemon threads, and between two looks.
PATIENCE, BETWEEN_LOOKS = 1.0, 0.0002


@dataclass(frozen=True)
class Compiled:
    """All that a part's execution needs: what the cache stores."""

    image: Image
    weights: Array
    arena: int
    scratch: int
    steps: tuple[str, ...]
    args: int
    macs: int = 0
    timed: bool = False
    report: tuple[dict[str, str], ...] = field(default=())
    # Where the workers' scratch begins in the arena: steps that use it have no tensor behind.
    floor: int = field(kw_only=True)
    traced: bool = field(default=False, kw_only=True)
    # Bytes of the inputs and outputs that the code was made for.
    sizes: tuple[int, ...] = field(default=(), kw_only=True)
    # What the code may complain of, by the number that it notes.
    sites: tuple[Site, ...] = field(default=(), kw_only=True)
    # By phase (codegen/program.py): units that its work can be cut into, and nanoseconds that it
    # may take.
    units: tuple[int, ...] = field(kw_only=True)
    works: tuple[int, ...] = field(kw_only=True)


def aligned(size: int) -> Array:
    block = np.zeros(size + ALIGN + SLACK, np.uint8)
    skip = -block.ctypes.data % ALIGN
    return block[skip : skip + size + SLACK]


def address(array: Array, byte: Any = ctypes.c_char, addressof: Any = ctypes.addressof) -> int:
    try:  # a third of the time that array.ctypes.data takes
        found: int = addressof(byte.from_buffer(array))
    except (TypeError, ValueError):  # read-only, empty, or of a type that has no buffer format
        found = array.ctypes.data
    return found


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.pthread_join.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    libc.pthread_tryjoin_np.argtypes = libc.pthread_join.argtypes
    return libc


@cache
def _syscall() -> int:
    """The address of libc's syscall(), or 0: workers then spin instead of sleeping."""
    if not hasattr(os, "sched_getaffinity"):  # not Linux
        return 0
    return ctypes.cast(_libc().syscall, ctypes.c_void_p).value or 0


class Crew:
    """Workers 1 to n-1 of one executable: threads that live in native code and know no Python."""

    def __init__(self, workers: int, stop: int, context: int) -> None:
        self.stop, self.context = _STOP(stop), context
        self.records = np.array([[w, workers, context] for w in range(1, workers)], np.int64)
        self.threads: list[ctypes.c_void_p] = []

    def start(self, serve: int) -> None:
        # Signals are for Python's threads.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            for record in self.records:
                self._start(serve, address(record))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _start(self, serve: int, record: int) -> None:
        thread = ctypes.c_void_p()
        self.threads.append(thread)  # before it lives: an interrupt may come right after
        error = _libc().pthread_create(
            ctypes.byref(thread), None, ctypes.c_void_p(serve), ctypes.c_void_p(record)
        )
        if error:
            self.threads.pop()
            raise DelegateError(
                f"a thread cannot be started: {os.strerror(error)}", fix="use fewer threads"
            )

    def leave(self, until: float) -> bool:
        """The program ends: send the workers home, unless a run goes on until that time. A daemon
        thread may be in one, or begin one at any moment."""
        threads, self.threads = [t for t in self.threads if t.value], []
        while threads:
            self.stop(self.context)
            threads = [t for t in threads if _libc().pthread_tryjoin_np(t, None)]
            if threads and monotonic() > until:
                return False
            sleep(BETWEEN_LOOKS)
        return True

    def dismiss(self) -> None:
        """Send the workers home, and wait until they have left the code. Between runs only."""
        threads, self.threads = [t for t in self.threads if t.value], []
        if threads:
            self.stop(self.context)
        for thread in threads:
            _libc().pthread_join(thread, None)


class CpuExecutable(Executable):
    """One native call per run. Workers start at the first run and are parked between runs."""

    traced: bool = False
    rate = None  # its times are ticks

    def __init__(self, compiled: Compiled, workers: int, key: str | None = None) -> None:
        """key: the name under which the compiled part is kept."""
        self.compiled, self.workers, self.key = compiled, workers, key
        self.sizes = compiled.sizes
        self._code = Loaded(compiled.image)
        self._arena = aligned(max(compiled.arena, compiled.floor + compiled.scratch * workers))
        hold(self, "arena (bytes)", self._arena.nbytes)
        scratch = self._arena[compiled.floor :]
        self._ticks = np.zeros(workers * len(compiled.steps) + 1, np.int64)
        self.times = self._ticks[:-1].reshape(workers, len(compiled.steps))
        self.inside = self._ticks[-1:]  # of the whole call
        self._table = address(self._ticks)
        self._sync = aligned(sync_words(workers) * 4).view(np.int32)
        self._chunks = table(limits(compiled.units, compiled.works), workers)
        self._context = np.zeros(FIRST_ARG + compiled.args, np.int64)
        for slot, memory in (
            (ARENA, self._arena),
            (WEIGHTS, compiled.weights),
            (SCRATCH, scratch),
            (SYNC, self._sync),
            (TIMES, self._ticks),
            (CHUNKS, self._chunks),
        ):
            self._context[slot] = address(memory)
        self._context[STRIDE] = compiled.scratch
        self._where = address(self._context)
        # The same memory again: ctypes takes a list in a third of the time.
        self._args: Any = (ctypes.c_int64 * compiled.args).from_buffer(
            self._context.data, FIRST_ARG * 8
        )
        self._invoke = _INVOKE(self._code.entry("invoke"))
        self._builtin: Callable[..., None] | None = None
        self._record: Record | None = None
        self._crew: Crew | None = None
        self._reset()
        if workers > 1:
            _living.add(self)

    def _reset(self) -> None:
        """Nobody waits and nobody works."""
        self._crew = None
        if self._record is not None:
            self._record.ready = self.workers == 1
        self._sync[:] = 0
        self._sync[WORKERS] = self.workers
        self._sync[MOST_SPINS] = SPIN
        # What is counted or logged is how several workers run it.
        told = self.compiled.timed or self.compiled.traced
        self._sync[ALWAYS] = division.ALWAYS_SHARED or told
        self._sync[SYSCALL : SYSCALL + 2].view(np.int64)[0] = _syscall()

    def run(self, inputs: Sequence[Array], outputs: list[Array | None]) -> None:
        (self._builtin or self._caller())(*inputs, *outputs)

    def bind(self, inputs: Sequence[Array], outputs: list[Array | None]) -> Callable[[], None]:
        """A run on these arrays: nothing is looked up again."""
        made = partial(self._caller(), *inputs, *outputs)
        made.executable = self  # type: ignore[attr-defined]  # held as long as somebody may call
        return made

    def _caller(self) -> Callable[..., None]:
        """A run on these inputs and outputs, in order: the code itself, if Python can call it."""
        if self._builtin is None and fits():
            self._builtin, self._record = builtin(
                self._code.entry("call"),
                _attendant(weakref.ref(self)),
                self.workers == 1 and self.compiled.macs <= TINY,
                self.workers,
                self._where,
                self.compiled.args,
            )
            self._record.ready = self.workers == 1 or self._crew is not None
        return self._builtin or self._attend

    def _attend(self, *arrays: Array) -> None:
        """What the code does not do by itself: call the workers, look into arrays of other kinds,
        complain."""
        if self._builtin is not None and self._context[FAULT]:  # the code has run and noted it
            self._complain()
        self._enter([address(a) for a in arrays])
        if self._invoke(self.workers, self._where):
            self._complain()

    def _complain(self) -> NoReturn:
        """Raise what the run has noted; the next one begins without it."""
        fault, value, limit = (int(self._context[slot]) for slot in (FAULT, VALUE, LIMIT))
        self._context[FAULT] = 0
        raise error_of(self.compiled.sites[fault - 1], value, limit)

    def _enter(self, addresses: list[int]) -> None:
        """Put the arrays' addresses into the context, and see that the workers are there."""
        self._args[:] = addresses
        if self._crew is None and self.workers > 1:
            self._call_workers()
        if self._record is not None:
            self._record.ready = 1

    def _call_workers(self) -> None:
        """All of them or, if a thread cannot be started or Ctrl-C comes meanwhile, none."""
        self._crew = Crew(self.workers, self._code.entry("stop"), self._where)
        try:
            self._crew.start(self._code.entry("serve"))
        except BaseException:
            self.close()
            raise

    @property
    def report(self) -> Sequence[Mapping[str, str]]:
        return self.compiled.report

    method = "ticks counted inside the native code"

    def step_times(self) -> StepTimes | None:
        return self if self.compiled.timed else None

    def records(self) -> list[dict[str, Any]]:
        """The steps with the ticks that each worker has spent in them; needs timed=True."""
        rows = self.compiled.report or [{"step": name} for name in self.compiled.steps]
        return [
            row | {"ticks": ticks} for row, ticks in zip(rows, self.times.T.tolist(), strict=True)
        ]

    def memory(self) -> dict[str, int]:
        """Bytes by what they hold. Code and weights from the cache are mapped and shared."""
        return {
            "packed_weights": self.compiled.weights.nbytes,
            "arena": self._arena.nbytes,
            "code": len(self.compiled.image.code),
        }

    def reset_times(self) -> None:
        self._ticks[:] = 0

    def count(self, on: bool) -> None:
        """Whether runs from now on are counted; needs timed=True."""
        self._context[TIMES] = self._table if on else 0

    def leave(self, until: float) -> None:
        """The program ends. Where a run goes on, nothing of it is taken away: what the workers use
        lives as long as they do."""
        if self._crew is not None and not self._crew.leave(until):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    def close(self) -> None:
        """Send the workers home; the next run calls new ones."""
        if self._crew is not None:
            self._crew.dismiss()
            self._reset()

    def __del__(self) -> None:
        if getattr(self, "_crew", None) is not None:
            self.close()


def _attendant(owner: weakref.ref[CpuExecutable]) -> Callable[..., None]:
    """Without a circle: the workers leave with the last user."""

    def attend(*arrays: Array) -> None:
        executable = owner()
        assert executable is not None, "whoever calls holds it"
        executable._attend(*arrays)

    return attend


# Executables with threads. At exit they are sent home before Python takes things apart; a forked
# child has none of them, and starts its own when it runs.
_living: weakref.WeakSet[CpuExecutable] = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    until = monotonic() + PATIENCE
    for executable in list(_living):
        executable.leave(until)


def _forget_all() -> None:
    for executable in list(_living):
        executable._reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)

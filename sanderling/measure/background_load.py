"""Background load: busy processes that can be switched on for a turn and off for the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import sleep
from types import TracebackType

SETTLE = 0.02  # seconds until the scheduler has spread what was woken
# It ends with its parent, also if that is killed. 1 is PR_SET_PDEATHSIG, 9 SIGKILL.
_SPIN = "import ctypes\nctypes.CDLL(None).prctl(1, 9)\nprint(flush=True)\nwhile True: pass"


class Busy:
    """So many processes that compute without end, asleep until they are let run."""

    def __init__(self, count: int, cpus: Sequence[int] = ()) -> None:
        command = [sys.executable, "-S", "-E", "-c", _SPIN]
        self.processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(count)]
        for process in self.processes:
            assert process.stdout is not None
            process.stdout.readline()
            if cpus:
                os.sched_setaffinity(process.pid, cpus)
            process.send_signal(signal.SIGSTOP)

    @contextmanager
    def on(self) -> Iterator[None]:
        self._signal(signal.SIGCONT)
        try:
            sleep(SETTLE)
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def cpu_seconds(self) -> float:
        return sum(_cpu_seconds(p.pid) for p in self.processes)

    def _signal(self, what: signal.Signals) -> None:
        for process in self.processes:
            process.send_signal(what)

    def __enter__(self) -> Busy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _cpu_seconds(pid: int) -> float:
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0

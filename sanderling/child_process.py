"""A fresh interpreter at the other end of a pipe.

multiprocessing's own way runs the user's main script again in every child; here a script needs no
`if __name__ == "__main__"`. A child has a session of its own, so that Ctrl-C is the parent's to
hear. It ends when its pipe does, so that no child outlives a parent that was killed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

PATIENCE = 5.0  # seconds for a child to end by itself
# This very package first, then the parent's whole path: what the parent sends may lie on it.
_CODE = (
    "import sys; sys.path[:0] = [{home!r}]; import sanderling; sys.path[:] = {path!r}; "
    "from {module} import {name}; "
    "from multiprocessing.connection import Connection; {name}(Connection(int(sys.argv[1])))"
)


class ChildProcess:
    """Runs main(pipe), a function of a module, in a process of its own.

    stdout: a file descriptor, default the parent's. environment: default the parent's.
    """

    def __init__(
        self,
        main: Callable[[Connection], None],
        stdout: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        code = _CODE.format(
            home=str(Path(__file__).parents[1]),
            path=[str(p) for p in sys.path],
            module=main.__module__,
            name=main.__qualname__,
        )
        self.pipe, theirs = Pipe()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                env=environment,
            )

    def how_it_ended(self) -> str:
        """`SIGKILL` or `status 3`; "" if it still runs."""
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            return ""
        return signal.Signals(-code).name if code < 0 else f"status {code}"

    def end(self, patience: float = PATIENCE) -> None:
        """Wait for its end, and kill it where that does not come."""
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

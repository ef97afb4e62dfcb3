"""What a device may still be using after a run that failed or was given up.

A run that nobody waits for any more goes on, in the driver's threads: its kernels read weights that
are mapped from a file, and arrays of the caller. That memory may go only when the device is known
to have finished. If it never is, nothing of it goes, not at the interpreter's end either, when
modules are taken apart while the driver's threads still run.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

IsOver = Callable[[], bool]  # whether the device has finished; it does not wait


class Abandoned:
    """What one device may still use. held: objects, and how to ask whether they are in use."""

    def __init__(self) -> None:
        self.held: list[tuple[list[object], IsOver]] = []
        self._lock = threading.Lock()

    def hold(self, things: list[object], is_over: IsOver) -> None:
        """A reference that nobody counts keeps them when this object itself is taken apart."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(things))
        with self._lock:
            self.held.append((things, is_over))

    def release(self) -> None:
        """Let go of what is not in use any more."""
        if not self.held:
            return
        with self._lock:
            asked = [(is_over(), things, is_over) for things, is_over in self.held]
            self.held = [(things, is_over) for done, things, is_over in asked if not done]
        for done, things, _ in asked:
            if done:
                ctypes.pythonapi.Py_DecRef(ctypes.py_object(things))

"""What libraries write to stderr by themselves, kept off the terminal."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_stderr = threading.Lock()


@contextmanager
def captured_stderr() -> Iterator[Callable[[], str]]:
    """What is written to stderr meanwhile, which does not reach the terminal: LiteRT says lines
    about every model, and some exceptions of it leave out what these say."""
    with _stderr, tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield lambda: _read(file)
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _read(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode("utf-8", "replace"))

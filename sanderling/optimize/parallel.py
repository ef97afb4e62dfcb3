"""Samples in parallel, each product on one thread.

A BLAS that shares every small product among all cores spends its time waiting where something else
runs too, and rounds as the number of its threads has it. Samples are better to share.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import numpy as np

from ..processors import usable_cpu_count

In = TypeVar("In")
Out = TypeVar("Out")
# OpenBLAS as numpy's wheels name its functions, and as systems do.
_NAMES = ("scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_",
          "openblas_{}_num_threads")  # fmt: skip


@cache
def _blas() -> tuple[Any, Any] | None:
    """(get, set) the number of threads of the library that numpy multiplies with, if it is one that
    can be asked."""
    try:
        library = ctypes.CDLL(np._core._multiarray_umath.__file__)  # type: ignore[attr-defined]
    except (AttributeError, OSError):
        return None
    for name in _NAMES:
        if hasattr(library, name.format("set")) and hasattr(library, name.format("get")):
            return getattr(library, name.format("get")), getattr(library, name.format("set"))
    return None


@contextmanager
def one_thread_each() -> Iterator[None]:
    found = _blas()
    if found is None:
        yield
        return
    get, put = found
    before = int(get())
    put(1)
    try:
        yield
    finally:
        put(before)


def in_parallel(function: Callable[[In], Out], items: Iterable[In]) -> list[Out]:
    """In the order of the items."""
    given = list(items)
    if len(given) < 2 or usable_cpu_count() < 2:
        return [function(item) for item in given]
    with ThreadPoolExecutor(usable_cpu_count()) as pool:
        return list(pool.map(function, given))

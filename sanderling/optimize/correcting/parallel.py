"""Samples in parallel, each product on one thread.

A BLAS that shares every small product among all cores spends its time waiting where something else
runs too, and rounds as the number of its threads has it. Samples are better to share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

from ...processors import usable_cpu_count

In = TypeVar("In")
Out = TypeVar("Out")


@cache
def _controller() -> Any:
    """The libraries that NumPy multiplies with; they are there since it was imported."""
    return ThreadpoolController()


def one_thread_each() -> AbstractContextManager[object]:
    """Products within take one thread each."""
    limit: AbstractContextManager[object] = _controller().limit(limits=1, user_api="blas")
    return limit


def in_parallel(function: Callable[[In], Out], items: Iterable[In]) -> list[Out]:
    """Apply the function to each item, on all cores; results are in the order of the items."""
    given = list(items)
    if len(given) < 2 or usable_cpu_count() < 2:
        return [function(item) for item in given]
    with ThreadPoolExecutor(usable_cpu_count()) as pool:
        return list(pool.map(function, given))

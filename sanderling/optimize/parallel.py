"""Samples in parallel, each product on one thread.

A BLAS that shares every small product among all cores spends its time waiting where something else
runs too, and rounds as the number of its threads has it. Samples are better to share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

from threadpoolctl import ThreadpoolController

from ..processors import usable_cpu_count

In = TypeVar("In")
Out = TypeVar("Out")


@cache
def _libraries() -> ThreadpoolController:
    """The libraries that numpy multiplies with; looking for them takes milliseconds."""
    return ThreadpoolController()


@contextmanager
def one_thread_each() -> Iterator[None]:
    with _libraries().limit(limits=1, user_api="blas"):
        yield


def in_parallel(function: Callable[[In], Out], items: Iterable[In]) -> list[Out]:
    """In the order of the items."""
    given = list(items)
    if len(given) < 2 or usable_cpu_count() < 2:
        return [function(item) for item in given]
    with ThreadPoolExecutor(usable_cpu_count()) as pool:
        return list(pool.map(function, given))

"""Runs that are waited for later: one after the other, in the order in which they were asked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

from ..forks import renews
from ..runtime.interpreter_checks import InvokeError


class PendingRun(Future[None]):
    """A run that was asked for. `result()` waits for its end and raises what it raised; `await`
    does so in a coroutine, and `asyncio.gather` takes several. What `add_done_callback` is given
    may run the model, wait for other runs and close the model."""

    def __init__(self, callbacks: Callbacks) -> None:
        super().__init__()
        self._callbacks = callbacks
        self.is_lost = False  # the thread that carries it out is in the process that forked this
        renews(self)

    def renew_lock(self) -> None:
        """In a forked child: what is not over never will be."""
        self._condition = threading.Condition()
        self.is_lost = not self.done()

    def settle(self) -> None:
        """Wait for its end, however it ends. Raises if that never comes."""
        self._check_lost()
        if not self.done():  # one that was cancelled is passed over by the queue, later
            wait([self])

    def _check_lost(self) -> None:
        if self.is_lost:
            raise InvokeError(
                "a run was not over when this process was forked, and never ends here",
                where="a run that was asked for in the parent process",
                fix="wait for it before the fork, or run here, with buffers that are created here",
            )

    def result(self, timeout: float | None = None) -> None:
        self._check_lost()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._check_lost()
        return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[None]], object]) -> None:
        # Of a run that is over, a Future calls it at once, and logs what it raises.
        call = partial(super().add_done_callback, fn)
        if self.done():
            call()
        else:
            super().add_done_callback(lambda _: self._callbacks.add(call))

    def __await__(self) -> Generator[Any, None, None]:
        return asyncio.wrap_future(self).__await__()


class Callbacks:
    """A thread for what is to be done after runs. It is not that of the runs: whoever waits for a
    run there would wait for himself. It is started with the first call."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._ending: ThreadPoolExecutor | None = None  # it takes nothing more
        self._own = threading.local()

    def add(self, call: Callable[[], None]) -> None:
        try:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "sanderling-callback", self._mark)
            self._thread.submit(call)
        except RuntimeError:  # Python ends, and no thread takes anything more
            call()

    def _mark(self) -> None:
        self._own.is_here = True

    def close(self) -> None:
        """Wait for all that were added; not so if one of them asks, and then whoever asks next."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._ending, self._thread = self._thread, None
        ending = self._ending
        if ending is not None and not hasattr(self._own, "is_here"):
            ending.shutdown()


class RunQueue:
    """A thread that carries runs out. It is started with the first one."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._callbacks = Callbacks()
        self._last: PendingRun | None = None

    @property
    def is_idle(self) -> bool:
        return self._last is None or self._last.done()

    def add(self, call: Callable[[], None]) -> PendingRun:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "sanderling-run")
        self._last = run = PendingRun(self._callbacks)
        self._thread.submit(_carry_out, run, call)
        return run

    def wait(self) -> None:
        """Until all runs that were asked for have ended."""
        if self._last is not None:
            wait([self._last])

    def close(self) -> None:
        """Wait for the runs that were asked for, and for what is to be done after them."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        self._callbacks.close()


def _carry_out(run: PendingRun, call: Callable[[], None]) -> None:
    if not run.set_running_or_notify_cancel():
        return
    try:
        call()
    except BaseException as error:
        run.set_exception(error)
    else:
        run.set_result(None)

"""Where the package says what it does, for whoever records it (runtime/recorder.py).

While nobody records, a span is one shared object that does nothing: saying so costs a look at
`tape`. Paths that count single microseconds look there themselves, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Args = dict[str, Any]
# times()[worker, step] is begin, end, and end of the wait behind it, in nanoseconds of the
# monotonic clock; 0 where there is none. It is asked for when the recording is over.
Times = Callable[[], "npt.NDArray[np.int64]"]


class Span(Protocol):
    """Something that takes time: it begins and ends with its `with` block."""

    def __enter__(self) -> Span: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
        /,
    ) -> None: ...
    def note(self, args: Args) -> None:
        """Facts that are known only now."""


class Recorder(Protocol):
    """Takes down what is said."""

    def span(self, name: str, kind: str, args: Args | None = None) -> Span: ...
    def instant(self, name: str, kind: str, args: Args | None = None) -> None: ...
    def counter(self, name: str, value: float) -> None: ...
    def hold(self, owner: object, name: str, size: int) -> None:
        """Count these bytes for as long as the owner lives."""

    def track(self, name: str) -> int:
        """The number of something that is no thread and has a line of its own, such as the queue
        of a device."""

    def native(self, rows: Sequence[Args], times: Times, threads: Sequence[int]) -> None:
        """One run of native code, a row for each step. Worker 0 is the calling thread; of the
        others, threads holds the numbers."""


class _Off:
    """A span that nobody records."""

    __slots__ = ()

    def __enter__(self) -> Span:
        return self

    def __exit__(self, kind: object, error: object, where: object, /) -> None:
        pass

    def note(self, args: Args) -> None:
        pass


class _Tape:
    """Where the recorder is, while there is one."""

    __slots__ = ("recorder",)

    def __init__(self) -> None:
        self.recorder: Recorder | None = None


OFF, tape = _Off(), _Tape()


# The recorder is looked up once: another thread may end the recording at any moment.


def span(name: str, kind: str, args: Args | None = None) -> Span:
    recorder = tape.recorder
    return OFF if recorder is None else recorder.span(name, kind, args)


def instant(name: str, kind: str, args: Args | None = None) -> None:
    recorder = tape.recorder
    if recorder is not None:
        recorder.instant(name, kind, args)


def counter(name: str, value: float) -> None:
    recorder = tape.recorder
    if recorder is not None:
        recorder.counter(name, value)


def hold(owner: object, name: str, size: int) -> None:
    recorder = tape.recorder
    if recorder is not None:
        recorder.hold(owner, name, size)


class Follower(Protocol):
    """Something that runs other code while its runs are recorded."""

    def follow(self) -> None:
        """Recording has begun, or ended."""


followers: WeakSet[Follower] = WeakSet()

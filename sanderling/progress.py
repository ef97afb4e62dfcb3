"""How far long work is, on stderr: a bar on a terminal, a line now and then anywhere else.

A program that uses the package hears nothing unless it sits at a terminal; the command line has
lines in files and pipes too (`lines_too`), and `--quiet` has neither.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .glyphs import clean

Show = Callable[[str, int, int], None]  # what, done, in all
PATIENCE = 0.5  # seconds of silence on a terminal
TELLING = 1.0  # seconds of work that tell how long the rest takes
WRONG = 1.5  # times that an estimate may be off before it is said anew
FIRST, OFTEN, LATER = 5.0, 10.0, 60.0  # seconds to the first line, between lines, after a minute
EVERY = 1.0  # seconds between lines where somebody watches


def lines_too(wanted: bool = True) -> None:
    """Files and pipes get lines as well: for a command, whose stderr is the user's."""
    _HOW.lines = wanted


def tell_often() -> None:
    """Lines every second: for a command whose progress somebody watches elsewhere."""
    _HOW.is_watched = True


def hush(quiet: bool) -> None:
    """From now on nothing is told, or all is."""
    _HOW.quiet = quiet


def announce(text: str) -> None:
    """A line beforehand, for who has to wait for the command."""
    if _HOW.lines and not _HOW.quiet:
        print(text, file=sys.stderr, flush=True)


class Estimate:
    """Says how long a piece of work takes, as soon as its first steps tell, and again where that
    turns out to be wrong by half; nothing about what is soon over."""

    def __init__(self, what: str, total: int) -> None:
        self.what, self.total = what, total
        self.begin: float | None = None
        self.told = 0.0  # seconds

    def step(self, done: int) -> None:
        """So many are done. The first one has the work of a beginning in it, and does not count."""
        now = time.monotonic()
        if self.begin is None:
            self.begin, self.first = now, done
            return
        spent = now - self.begin
        if not self.first < done < self.total or spent < TELLING:
            return
        whole = spent / (done - self.first) * (self.total - self.first)
        if whole > FIRST and not self.told / WRONG < whole < self.told * WRONG:
            instead = f", not {duration(self.told)}" if self.told else ""
            announce(f"{self.what} takes about {duration(whole)}{instead}")
            self.told = whole


def duration(seconds: float) -> str:
    """45 s, 12 min, 2.5 h: for people, who plan with it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def plural(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


@dataclass
class _LastReport:
    """What was said last. The clock runs from the beginning of all the work. What is left belongs
    to a piece of it: a new piece begins where the count falls, or where name and total change."""

    what: str = ""
    done: int = 0
    total: int = 0
    begin: float = field(default_factory=time.monotonic)
    since: float = field(default_factory=time.monotonic)  # of this piece
    done_then: int = 0
    left: float = 0.0  # seconds, as they were told
    told: float | None = None  # when that was
    aside: str = ""  # what it waits for

    def update(self, what: str, done: int, total: int) -> None:
        if done < self.done or (what != self.what and total != self.total):
            self.since, self.done_then, self.told = time.monotonic(), done, None
        self.what, self.done, self.total = what, done, total

    @property
    def is_open(self) -> bool:
        """Whether the share of what is done is known, and is not all of it: after the last item
        there may be work that nobody counts, such as compiling."""
        return self.done < self.total

    def line(self) -> str:
        return clean(f"{self.what or 'working'}: {self.figures()}")

    def figures(self) -> str:
        now = time.monotonic()
        parts = [self._share(), f"{duration(now - self.begin)} so far", self._left(now)]
        return ", ".join(filter(None, parts)) + (f"; {self.aside}" if self.aside else "")

    def _share(self) -> str:
        if self.is_open:  # rounded down: it never says 100 % before the end
            return f"{self.done} of {self.total} ({100 * self.done // self.total}%)"
        return f"all {self.done} done" if self.total > 0 else f"{self.done} done" * (self.done > 0)

    def _left(self, now: float) -> str:
        fresh = self.done - self.done_then
        if fresh <= 0 or not self.is_open:
            return ""
        left = (now - self.since) / fresh * (self.total - self.done)
        # It falls with the clock. It rises only where it was wrong by half.
        foreseen = left if self.told is None else self.left - (now - self.told)
        if foreseen < left < foreseen * WRONG:
            left = foreseen
        self.left, self.told = left, now
        return f"about {duration(left)} left"


@dataclass
class _How:
    lines: bool = False  # also where nobody may be looking
    quiet: bool = False
    state: _LastReport | None = None  # of who is telling: others tell him
    is_watched: bool = False  # by somebody who waits for the next line


_HOW = _How()


@contextmanager
def progress() -> Iterator[Show]:
    """show(what, done, total)."""
    if _HOW.quiet or not (_HOW.lines or _at_terminal()):
        yield lambda what, done, total: None
        return
    with _bar() if _at_terminal() else _lines() as show:
        yield show


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Work whose end cannot be foreseen."""
    if _HOW.state is not None:
        with _aside(_HOW.state, what):
            yield
        return
    if _HOW.quiet or not (_HOW.lines or _at_terminal()):
        yield
        return
    if not _at_terminal():
        with _lines() as show:
            show(what, 0, 0)
            yield
        return
    with _beside(lambda spent: _rewrite(f"{what}: {spent:.1f} s "), lambda spent: PATIENCE):
        yield


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """told(done, total): work that may stand inside of other work. Where somebody tells already, it
    is a part of what he says; as long as nothing was counted, it is waited for."""
    state = _HOW.state
    if state is None:
        with progress() as show:
            show(what, 0, 0)
            yield lambda done, total: show(what, done, total)
        return

    def tell(done: int, total: int) -> None:
        state.aside = f"{what}: {done} of {total}"

    with _aside(state, what):
        yield tell


@contextmanager
def _aside(state: _LastReport, what: str) -> Iterator[None]:
    state.aside = what
    try:
        yield
    finally:
        state.aside = ""


def _at_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _rewrite(text: str) -> None:
    print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


@contextmanager
def _lines() -> Iterator[Show]:
    state = _LastReport()

    def pause(spent: float) -> float:
        if _HOW.is_watched:
            return EVERY
        return FIRST if spent == 0 else OFTEN if spent < 60 else LATER

    def tell(_: float) -> None:
        print(state.line(), file=sys.stderr, flush=True)

    with _telling(state), _beside(tell, pause):
        yield state.update


@contextmanager
def _telling(state: _LastReport) -> Iterator[None]:
    before, _HOW.state = _HOW.state, state
    try:
        yield
    finally:
        _HOW.state = before


@contextmanager
def _beside(tell: Callable[[float], None], pause: Callable[[float], float]) -> Iterator[None]:
    """tell(seconds) again and again in a thread of its own: work that is stuck in one step says
    nothing itself."""
    begin, done, told = time.monotonic(), threading.Event(), False

    def loop() -> None:
        nonlocal told
        spent = 0.0
        while not done.wait(pause(spent)):
            spent, told = time.monotonic() - begin, True
            try:
                tell(spent)
            except (OSError, ValueError):  # nobody listens any more
                return

    thread = threading.Thread(target=loop, name="sanderling-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        if told and _at_terminal():
            _rewrite("")


@contextmanager
def _bar() -> Iterator[Show]:
    from rich import progress as rich
    from rich.console import Console
    from rich.table import Column
    from rich.text import Text

    state = _LastReport()

    class Figures(rich.ProgressColumn):
        def render(self, task: Any) -> Any:
            return Text(clean(state.figures()))

    # Each is one line, whatever it says: lines that come and go make a screen jump.
    name, figures = (Column(no_wrap=True, overflow="ellipsis") for _ in range(2))
    columns = (
        rich.TextColumn("{task.description}", markup=False, table_column=name),
        rich.BarColumn(bar_width=20),
        Figures(figures),
    )
    with (
        _telling(state),
        rich.Progress(*columns, console=Console(stderr=True), transient=True) as bar,
    ):
        bar.add_task("", total=None)
        task = bar.tasks[0]

        def show(what: str, done: int, total: int) -> None:
            state.update(what, done, total)
            # Without a total the bar moves to and fro: it is never full before the end.
            task.description, task.completed = clean(what), done
            task.total = total if state.is_open else None

        yield show

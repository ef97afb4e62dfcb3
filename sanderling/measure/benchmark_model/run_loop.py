"""The tool's loop: how often a model is run, and when."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """Time and sleep; tests have their own."""

    now: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class ToolPace:
    """Between runs: a delay, or a fixed rate (which wins). 0 or less is neither."""

    delay: float = -1.0
    frequency: float = -1.0


def repeat(
    run: Callable[[], None],
    samples: list[float],
    runs: int,
    min_secs: float,
    max_secs: float,
    pace: ToolPace,
    before: Callable[[], None] = lambda: None,
    after: Callable[[], None] = lambda: None,
    clock: Clock = Clock(),
) -> None:
    """Add the seconds of each run to the samples: while (done < runs or min_secs are not over) and
    max_secs are not. Only `run` is timed."""
    start = now = clock.now()
    gap = 1.0 / pace.frequency if pace.frequency > 0 else 0.0
    due = start + gap
    while (len(samples) < runs or now < start + min_secs) and now <= start + max_secs:
        before()
        begin = clock.now()
        run()
        samples.append(clock.now() - begin)
        after()
        # A rate that cannot be kept: the next run starts at once.
        rest = due - clock.now() if gap else pace.delay
        due += gap
        if rest > 0:
            clock.sleep(rest)
        now = clock.now()

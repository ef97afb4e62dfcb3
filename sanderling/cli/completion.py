"""What a shell offers behind an option when Tab is pressed. Files are the shell's own matter."""

from __future__ import annotations

from collections.abc import Callable, Iterable

Offer = Callable[[str], list[str]]


def one_of(names: Callable[[], Iterable[str]]) -> Offer:
    """One name. They are asked for when Tab is pressed, not when the verb is imported."""
    return lambda incomplete: [n for n in names() if n.startswith(incomplete)]


def list_of(names: Callable[[], Iterable[str]], mark: str = ",") -> Offer:
    """Names with commas between them: the last one is completed."""

    def offer(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(mark)
        taken = before.split(mark)
        return [f"{before}{comma}{n}" for n in names() if n.startswith(last) and n not in taken]

    return offer


def _delegates() -> Iterable[str]:
    from ..runtime.registry import delegate_names

    return delegate_names()


def _asked() -> Iterable[str]:
    from ..rules import names

    return sorted({*_delegates(), *names(), "all"})


def _engines() -> Iterable[str]:
    from ..measure.engines import TITLES

    return TITLES


def _presets() -> Iterable[str]:
    from ..evaluate.images.preprocess import PRESETS

    return PRESETS


def _tasks() -> Iterable[str]:
    from ..evaluate.task import task_names

    return task_names()


def _modes() -> Iterable[str]:
    from ..optimize.modes.scheme import MODES

    return MODES


DELEGATE, DELEGATES = one_of(_delegates), list_of(_delegates)
ASKED = one_of(_asked)
ENGINE, ENGINES = one_of(_engines), list_of(_engines)
PRECISION, PRECISIONS = one_of(lambda: ("f32", "bf16")), list_of(lambda: ("f32", "bf16"))
PRESET, TASK, MODE, MODE_LIST = one_of(_presets), one_of(_tasks), one_of(_modes), list_of(_modes)

"""Flags as TensorFlow Lite's tools write them: --a_b, --flag=true, those of every delegate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from typer.core import TyperCommand

from ..errors import InputError
from ..measure.benchmark_model.flags import ALIASES, DELEGATES, Values, parse
from ..measure.benchmark_model.providers import (
    PROVIDERS,
    absence,
    choose,
    fallback_detected,
    stand_in,
    unused,
)
from ..runtime.registry import delegate_names
from .common import warn

# The tools take flags for every delegate; --help is ours. Two more are about partitions.
REGISTRAR = {f.name for f in DELEGATES} - {"help"} | set(ALIASES)
FULL = "require_full_delegation"
REGISTRAR |= {FULL, "disable_delegate_clustering"}


class ToolCommand(TyperCommand):
    """Takes the flags of TensorFlow Lite's tools as they are written there. Those about delegates
    are in `ctx.meta["registrar"]`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = {name: p for p in self.params for name in (*p.opts, *p.secondary_opts)}
        ctx.meta["registrar"], rest = _registrar(args)
        return super().parse_args(ctx, [a for word in rest for a in _spelled(word, own)])


class DelegatesHere(NamedTuple):
    """The delegates that can be used, and a sentence for each that is not here: it is left out, as
    the tools do."""

    names: list[str]
    absent: list[str]


def with_full_delegation(flags: Values, is_required: bool) -> Values:
    """The flags, with that of TensorFlow Lite's tools where our option asks for the same."""
    return Values({**flags.given, FULL: True}) if is_required else flags


def chosen_delegates(names: Sequence[str], flags: Values) -> DelegatesHere:
    """The delegates of --delegate and of the tools' flags, in their order, as another process can
    name them."""
    found, absent = delegates_here(names)
    chosen = choose(flags, False)
    absent += chosen.absent
    for text in (*absent, *chosen.said, *unused(flags)):
        warn(text)
    if flags.on(FULL) and not found and not chosen.applied:
        raise fallback_detected("no delegate was applied")
    if chosen.applied or chosen.said:
        found += [d.spelling or d.name for d in chosen.delegates]
    return DelegatesHere(found, absent)


def delegates_here(names: Sequence[str]) -> DelegatesHere:
    """Ours by their names; TensorFlow Lite's by what stands for them here."""
    known = {p.flag.removeprefix("use_"): p for p in PROVIDERS}
    found, absent = [], []
    for name in names:
        theirs = known.get(name)
        if theirs is None or (name in delegate_names() and name not in theirs.delegates):
            found.append(name)
            continue
        delegate, problems = stand_in(theirs)
        if delegate is None:
            absent.append(absence(theirs, problems))
        else:
            found.append(delegate.name)
    return DelegatesHere(found, absent)


def _registrar(args: Sequence[str]) -> tuple[Values, list[str]]:
    """Delegate flags, and what is left."""
    theirs: list[str] = []
    ours: list[str] = []
    waiting = list(args)
    while waiting:
        word = waiting.pop(0)
        name = word.removeprefix("--").partition("=")[0]
        if not word.startswith("--") or name not in REGISTRAR:
            ours.append(word)
            continue
        theirs.append(word)
        if "=" not in word and waiting and not waiting[0].startswith("-"):
            theirs += [] if parse([word, waiting[0]])[1] else [waiting.pop(0)]
    return parse(theirs)[0], ours


def _spelled(word: str, own: dict[str, Any]) -> list[str]:
    """--a_b for --a-b, and --flag=true for --flag."""
    name, equals, value = word.partition("=")
    if not word.startswith("--"):
        return [word]
    name = name if name in own else name.replace("_", "-")
    option = own.get(name)
    if option is None or not equals or not getattr(option, "is_flag", False):
        return [f"{name}{equals}{value}" if option is not None else word]
    if value.lower() not in ("true", "false", "1", "0"):
        raise InputError(f"'{value}' is neither true nor false", where=name, fix=f"write {name}")
    is_on = value.lower() in ("true", "1")
    return [name] if is_on else list(option.secondary_opts[:1])

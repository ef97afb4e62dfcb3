"""Options of delegates: a table of names, each with a reader of values. A value may be text, as a
command line gives it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from ..errors import InputError

FLAGS = {"true": True, "1": True, "yes": True, "on": True,
         "false": False, "0": False, "no": False, "off": False}  # fmt: skip
ALONE = "true"  # what an option means that a command line names without a value


class NoSuchOption(InputError):
    """A name that a delegate does not have among its options."""


@dataclass(frozen=True)
class Option:
    """One option: what it is for, what it takes in words, and the reader of a value, which raises
    ValueError at one that does not fit."""

    about: str
    takes: str
    read: Callable[[Any], Any]


def whole_number(about: str, least: int = 1) -> Option:
    def read(value: Any) -> int:
        number = int(str(value), 0)
        if isinstance(value, bool) or number < least:
            raise ValueError
        return number

    return Option(about, f"a whole number, {least} or more", read)


def seconds(about: str) -> Option:
    def read(value: Any) -> float:
        number = float(str(value))
        if not 0 < number < inf:
            raise ValueError
        return number

    return Option(about, "a number of seconds, more than 0", read)


def share(about: str) -> Option:
    def read(value: Any) -> float:
        number = float(str(value))
        if not 0 < number < 1:
            raise ValueError
        return number

    return Option(about, "a number between 0 and 1", read)


def one_of(about: str, *words: str) -> Option:
    def read(value: Any) -> str:
        if str(value) not in words:
            raise ValueError
        return str(value)

    return Option(about, f"one of {', '.join(words)}", read)


def flag(about: str) -> Option:
    def read(value: Any) -> bool:
        found = FLAGS.get(str(value).lower())
        if found is None:
            raise ValueError
        return found

    return Option(about, "true or false", read)


def text(about: str) -> Option:
    def read(value: Any) -> str:
        if not isinstance(value, (str, os.PathLike)) or str(value) in ("", ALONE):
            raise ValueError
        return str(value)

    return Option(about, "a text", read)


def read_options(
    delegate: str, table: Mapping[str, Option], given: Mapping[str, Any]
) -> dict[str, Any]:
    """The values that were given, read; a name or a value that does not fit is refused."""
    where = f"delegate '{delegate}'"
    found = {}
    for name, value in given.items():
        if name not in table:
            has = ", ".join(table) or "none"
            raise NoSuchOption(f"it has no option '{name}'", where=where, fix=f"its options: {has}")
        try:
            found[name] = table[name].read(value)
        except ValueError:
            raise _misfit(name, table[name], value, where) from None
    return found


def check_names(delegate: str, given: Mapping[Any, Any]) -> None:
    """Names of options are text, whatever a caller has put into the dictionary."""
    for name in given:
        if not isinstance(name, str):
            raise NoSuchOption(
                f"{name!r} cannot be the name of an option",
                where=f"delegate '{delegate}'",
                fix="give a dictionary of names and values",
            )


def given_twice(delegate: str, name: str) -> InputError:
    return InputError(
        f"its option '{name}' is given twice",
        where=f"delegate '{delegate}'",
        fix="give it once",
    )


def _misfit(name: str, option: Option, value: Any, where: str) -> InputError:
    if value == ALONE:
        return InputError(
            f"its option '{name}' needs a value (alone, it means '{ALONE}')",
            where=where,
            fix=f"write {name}=VALUE, where VALUE is {option.takes}",
        )
    return InputError(
        f"its option '{name}' cannot be {value!r}", where=where, fix=f"give {option.takes}"
    )

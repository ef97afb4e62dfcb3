"""One exception tree. Every message says what is wrong, where, and what to do next."""

from __future__ import annotations

import re
from typing import Any


class SanderlingError(Exception):
    """The root: catch this to catch everything the package raises on purpose.

    what:  the fact, in one sentence
    where: the place (a path in the file, an operator, a tensor, an option)
    fix:   what the reader can do about it
    """

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what, self.where, self.fix = what, where, fix
        super().__init__(what, where, fix)

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}\n  {self.fix}" if self.fix else text

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (type(self), self.what, self.where, self.fix)  # keywords do not pickle


def _remade(kind: type[SanderlingError], what: str, where: str, fix: str) -> SanderlingError:
    error = kind.__new__(kind)
    SanderlingError.__init__(error, what, where=where, fix=fix)
    return error


def one_line(error: SanderlingError) -> str:
    """The whole message, for where there is room for one line."""
    return "; ".join(line.strip() for line in str(error).splitlines())


class ModelError(SanderlingError, ValueError):
    """The model file or graph is not legal."""


def out_of_range(what: str, value: int, limit: int, *, where: str) -> ModelError:
    """The one error for an index that only the run knows, whoever computes the operator."""
    return ModelError(
        f"{what} is out of range: {value} is not in 0 to {limit - 1}",
        where=where,
        fix="the indices do not fit the shape",
    )


class TextError(ModelError):
    """The text form of a graph could not be parsed."""


class InputError(SanderlingError, ValueError):
    """A value given by the user (array, option, path) does not fit."""


class ArgumentError(InputError):
    """An argument has a value that does not fit. The message has names of arguments in backticks:
    the command puts its options in their places (`max_drop`: --max-drop)."""

    def in_options(self) -> str:
        """The message for a reader who has written options, not arguments."""
        return re.sub("`([a-z_]+)`", lambda m: "--" + m[1].replace("_", "-"), str(self))


class MissingNameError(InputError, KeyError):
    """A look-up by name found nothing."""


class UnsupportedError(SanderlingError, RuntimeError):
    """The model is legal, but this operator, type or variant is not one we run."""


class DelegateError(SanderlingError, RuntimeError):
    """A delegate could not compile or run its part.

    ops: the places in the part of those that it could not compile; empty if it cannot tell.
    """

    ops: tuple[int, ...] = ()


class IsolatedError(DelegateError):
    """A delegate failed in a process of its own, and nothing has changed in this one."""


class BusyError(SanderlingError, RuntimeError):
    """The session is in use by another thread."""


def install_command(extra: str) -> str:
    """How the packages of an extra are installed."""
    return f"pip install 'sanderling[{extra}]' (in a clone: pip install -e '.[{extra}]')"


class MissingExtraError(SanderlingError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package '{package}', which is not installed",
            fix=install_command(extra),
        )


class FormatWarning(UserWarning):
    """The file holds something newer than the schema this version knows."""


class FallbackWarning(UserWarning):
    """A delegate failed and its part runs on the next one; or an option has no effect here."""


class CacheWarning(UserWarning):
    """The cache of compiled code cannot be used, or had to be repaired."""


class TypeWarning(UserWarning):
    """An array of another type is taken as bytes, as LiteRT takes it."""

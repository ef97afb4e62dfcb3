"""Files that people hand in: read whole, without waiting for ever, and parsed in one place."""

from __future__ import annotations

import json
import os
import select
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import InputError, MissingExtraError, SanderlingError

STDIN = "-"
NUMPY = (b"\x93NUMPY", b"PK\x03\x04", b"PK\x05\x06")  # .npy, .npz, .npz of no array
PATIENCE = 3.0  # seconds that a named pipe may be without a writer
CHUNK = 1 << 20
LIMIT = 1 << 31  # bytes through a pipe: a flatbuffer's offsets go no further, and texts are small


_GIVEN: dict[str, str] = {}  # by the file that a stream was kept in: what the user had written


def keep_stream(path: str | os.PathLike[str], kept: Path, what: str) -> None:
    """Read a stream to its end, into a file that can be read more than once."""
    kept.write_bytes(read_bytes(path, what))
    _GIVEN[os.fspath(kept)] = "stdin" if os.fspath(path) == STDIN else os.fspath(path)


def as_given(text: str) -> str:
    """A text for the user, who has not heard of the files that streams are kept in."""
    for kept, given in _GIVEN.items():
        text = text.replace(kept, given)
    return text


def check_ending(path: str | os.PathLike[str], endings: Sequence[str], what: str) -> str:
    """The ending of a file's name in small letters; one that is not of these is refused, before
    the work of making the file."""
    ending = Path(path).suffix.lower()
    if ending not in endings:
        raise InputError(
            f"'{ending}' is not a kind of {what}",
            where=os.fspath(path),
            fix=f"end the name with {' or '.join(endings)}",
        )
    return ending


def read_bytes(
    path: str | os.PathLike[str],
    what: str = "the file",
    fix: str = "check the path and its permissions",
) -> bytes:
    """The content of a file; of a pipe or device up to its end; of `-`, what stdin gives."""
    with _sentences(path, what, fix), _opened(path) as handle:
        return _drained(handle, path)


def read_text(path: str | os.PathLike[str], what: str, fix: str) -> str:
    """A text in UTF-8."""
    try:
        return read_bytes(path, what, fix).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{what} cannot be read: it is not a text in UTF-8 (byte {error.start})",
            where=os.fspath(path),
            fix=fix,
        ) from error


def read_data(path: str | os.PathLike[str], what: str, fix: str, is_yaml: bool = False) -> Any:
    """What a JSON or YAML file holds."""
    return parse_data(read_text(path, what, fix), path, what, fix, is_yaml)


def parse_data(
    text: str | bytes, path: str | os.PathLike[str], what: str, fix: str, is_yaml: bool = False
) -> Any:
    """The value of a text that came from this file."""
    try:
        return _yaml(text, what) if is_yaml else json.loads(text)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        kind = "YAML" if is_yaml else "JSON"
        raise InputError(
            f"{what} cannot be read: not well-formed {kind}: {why}", where=os.fspath(path), fix=fix
        ) from error


@contextmanager
def foreign_reader(path: str | os.PathLike[str], what: str, fix: str) -> Iterator[None]:
    """Around a reader that is not ours (NumPy, Pillow), of a file that anybody may have written:
    whatever it raises, of its zip, its header or its memory, is about that file."""
    try:
        yield
    except SanderlingError:
        raise
    except Exception as error:
        why = str(error) or type(error).__name__
        raise InputError(f"{what}: {why}", where=os.fspath(path), fix=fix) from error


@contextmanager
def numpy_reader(path: str | os.PathLike[str], what: str, fix: str) -> Iterator[None]:
    """Around np.load and what is taken out of its file. NumPy takes whatever it does not know for
    a pickle, and advises its callers to allow that: users are told what their file is not."""
    with foreign_reader(path, what, fix):
        why = _not_numpy(Path(path))
        if why:
            raise InputError(f"{what}: {why}", where=os.fspath(path), fix=fix)
        try:
            yield
        except ValueError as error:
            if "allow_pickle" not in str(error):
                raise
            raise ValueError("it holds Python objects, not numbers") from error


def _not_numpy(path: Path) -> str:
    """Why the file is none of np.save or np.savez; "" if it begins as one does."""
    if is_stream(path):  # which gives its beginning only once
        return "it is a pipe or device, not a file"
    with path.open("rb") as file:
        head = file.read(len(NUMPY[0]))
    if not head:
        return "it is empty"
    return "" if head.startswith(NUMPY) else "it is not a NumPy file"


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Whether it can be read only once, from its beginning to its end."""
    if os.fspath(path) == STDIN:
        return True
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):  # said when it is read
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _yaml(text: str | bytes, what: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise MissingExtraError("pyyaml", "quantize", f"reading {what} in YAML") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


@contextmanager
def _sentences(path: str | os.PathLike[str], what: str, fix: str) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        said = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(
            f"{what} cannot be read: {said}", where=os.fspath(path), fix=fix
        ) from error


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[int]:
    """A handle. To open a named pipe waits for its writer, unless asked not to."""
    if os.fspath(path) == STDIN:
        yield 0
        return
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        yield handle
    finally:
        os.close(handle)


def _drained(handle: int, path: str | os.PathLike[str]) -> bytes:
    status = os.fstat(handle)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(0, "it is a directory")
    if os.isatty(handle):
        raise InputError(
            "it is a terminal, nothing is piped in",
            where=os.fspath(path),
            fix="write: sanderling VERB - < FILE, or give a file",
        )
    made = bytearray(_first(handle) if stat.S_ISFIFO(status.st_mode) else b"")
    os.set_blocking(handle, True)
    limit = max(LIMIT, status.st_size)
    while piece := os.read(handle, CHUNK):
        made += piece
        if len(made) > limit:
            raise InputError(
                f"it gives more than {limit} bytes", where=os.fspath(path), fix="give a file"
            )
    if not made and not stat.S_ISREG(status.st_mode):
        raise InputError(
            "it gives nothing: it is empty, or nobody writes to it",
            where=os.fspath(path),
            fix="give a file, or check what writes to it",
        )
    return bytes(made)


def _first(handle: int) -> bytes:
    """What a pipe has at once. One that nobody has opened to write gives nothing, as one that is at
    its end: it is waited for, but not for ever."""
    os.set_blocking(handle, False)
    until = time.monotonic() + PATIENCE
    watch = select.poll()
    watch.register(handle, select.POLLIN)
    while True:
        try:
            found = os.read(handle, CHUNK)
        except BlockingIOError:  # somebody holds the other end: what he will write is waited for
            return b""
        hung_up = any(event & select.POLLHUP for _, event in watch.poll(50))
        if found or hung_up or time.monotonic() > until:
            return found

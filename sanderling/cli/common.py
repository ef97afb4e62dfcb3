"""What the verbs share: options, tables, JSON output, numbers for people."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar
from weakref import WeakSet, WeakValueDictionary

import typer

from ..errors import InputError
from ..evaluate.output_kinds import MEASURES
from ..files import STDIN, as_given, is_stream, keep_stream
from ..format import AtomicFile
from ..glyphs import clean as clean
from ..glyphs import clean_lines
from ..glyphs import shorten as shorten
from ..ir import Shape
from ..progress import hush
from ..progress import plural as plural
from ..progress import progress as progress
from ..runtime.plugins import load_plugins as load_plugins
from . import completion

if TYPE_CHECKING:
    from tempfile import TemporaryDirectory


def at_hand(given: Path | Sequence[Path] | None) -> Any:
    """Models as files that other processes can open too. What comes through a pipe, or through
    stdin (`-`), is read now and kept in a temporary file until the end."""
    if given is None or isinstance(given, Path):
        return _spooled(given) if given is not None and is_stream(given) else given
    return [at_hand(path) for path in given]


@cache
def _spooled(path: Path) -> Path:
    name = "stdin" if str(path) in (STDIN, "/dev/stdin") else path.stem
    kept = Path(_spool().name) / f"{name}.tflite"
    keep_stream(path, kept, "the model")
    return kept


@cache
def _spool() -> TemporaryDirectory[str]:
    from tempfile import TemporaryDirectory  # slow, and seldom needed

    return TemporaryDirectory(prefix="sanderling-")  # removed when the process ends


STDOUT = "-"
A_MODEL = "A .tflite file; - for stdin."
ModelPath = Annotated[
    Path, typer.Argument(metavar="MODEL", help=A_MODEL, callback=at_hand, show_default=False)
]
JsonPath = Annotated[
    str, typer.Option("--json", metavar="FILE", help="Write the result as JSON; - for stdout.")
]


def _hush(quiet: bool) -> bool:
    hush(quiet)  # for all that the verb does: it need not hand the option on
    return quiet


Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", callback=_hush, help="Do not tell how far long work is.")
]
DelegateNames = Annotated[
    list[str],
    typer.Option(
        "--delegate",
        metavar="NAME",
        autocompletion=completion.DELEGATE,
        help="A delegate to prefer; may be repeated, first is best.",
    ),
]
FullDelegation = Annotated[
    bool,
    typer.Option(
        "--require-full-delegation",
        help="Fail unless the first delegate that is named runs every op.",
    ),
]

Plugins = Annotated[
    list[Path],
    typer.Option(
        "--plugin",
        metavar="FILE.py",
        help="A Python file to run first: it registers custom operators or delegates.",
    ),
]

SettingsPath = Annotated[
    Path | None,
    typer.Option(
        "--settings",
        metavar="FILE",
        help="Delegates, threads and precision as `sanderling tune` found them; other options win.",
    ),
]

Shapes = Annotated[
    list[str],
    typer.Option(
        "--shape",
        metavar="[NAME=]1,2,3",
        help="The shape of an input, for open dimensions or to resize it; may be repeated.",
    ),
]

InputFiles = Annotated[
    list[str],
    typer.Option(
        "--input",
        "-i",
        metavar="NAME=FILE",
        help="A .npy, .npz or picture for an input. Default: random values.",
    ),
]
RandomShapes = Annotated[
    list[str],
    typer.Option(metavar="NAME=1,2,3", help="The shape of a random input, for open dimensions."),
]
EntryPoint = Annotated[
    str | None,
    typer.Option(metavar="KEY", help="The entry point to run, for a model with several."),
]
OutputKinds = Annotated[
    list[str],
    typer.Option(
        "--output-kind",
        metavar="[OUTPUT=]KIND",
        help=f"What an output is, where the model does not tell: {', '.join(MEASURES)}. "
        "It decides by which figure it is judged; may be repeated.",
    ),
]


def pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """NAME=VALUE options; without NAME= the key is empty (a model's only input or output)."""
    found: dict[str, str] = {}
    for text in texts:
        key, value = split_pair(text, option)
        if key in found:
            raise InputError(f"{option} {key or text} is given twice", fix="give it once")
        found[key] = value
    return found


def read_shapes(texts: Iterable[str]) -> dict[str, Shape]:
    """--shape options, by input name."""
    found: dict[str, Shape] = {}
    for name, text in pairs(texts, "--shape").items():
        if not all(n.strip().isdecimal() for n in text.split(",")):
            raise InputError(
                f"'{text}' is not a shape",
                where="--shape",
                fix="write sizes with commas: 1,224,224,3",
            )
        found[name] = tuple(int(n) for n in text.split(","))
    return found


def split_pair(text: str, option: str) -> tuple[str, str]:
    """NAME and VALUE of an option. The name itself may hold '=' but a file name rarely does: it is
    split at the last one."""
    name, equals, value = text.rpartition("=")
    key = name if equals else ""
    if not value:
        raise InputError(
            f"nothing stands after {key}=",
            where=option,
            fix="write NAME=VALUE, or VALUE for the only one",
        )
    return key, value


def open_target(path: str | Path, room: int = 0) -> AtomicFile:
    """A file to write later, opened before the work: what cannot be written is said at once. room:
    bytes that it may get, for which there has to be space."""
    path = Path(path)
    if str(path) == STDOUT:
        raise InputError("this is not written to stdout", where=STDOUT, fix="give a file's name")
    if path.is_dir() or not path.parent.is_dir():
        what = "it is a folder" if path.is_dir() else f"there is no folder '{path.parent}'"
        raise InputError(f"cannot write: {what}", where=str(path), fix="check the path")
    place = os.path.realpath(path)  # a circle of links is AtomicFile's to refuse
    known = _open.get(place)
    if known is not None and known.is_pending:
        raise _two_into(str(path))
    file = _open[place] = AtomicFile(path)
    try:
        return file.reserve(room) if room else file
    except InputError:
        file.discard()
        raise


# Files that are open to be written, as long as somebody is going to.
_open: WeakValueDictionary[str, AtomicFile] = WeakValueDictionary()


def _two_into(where: str) -> InputError:
    fix = "give each a name of its own"
    return InputError("two results would go into one file", where=where, fix=fix)


def size_of(path: Path) -> int:
    """In bytes; 0 of what is not there, which is said when it is read."""
    return path.stat().st_size if path.is_file() else 0


def check_another_file(model: Path, output: Path | None, why: str) -> None:
    """Refuse to write over the model that is read."""
    if output is not None and output.exists() and model.exists() and output.samefile(model):
        raise InputError(
            "the output is the model itself", where=str(output), fix=f"give another name: {why}"
        )


def check_targets(
    written: Mapping[str, str | Path | None], read: Mapping[str, str | Path | None]
) -> None:
    """Refuse two files to write that are one, and one to write that is also read."""
    seen = {name: Path(path) for name, path in read.items() if path}
    for name, given in written.items():
        if not given or str(given) == STDOUT:
            continue
        path = Path(given)
        for other, known in seen.items():
            if _are_one(path, known):
                raise InputError(
                    f"{other} and {name} are the same file",
                    where=str(path),
                    fix=f"give {name} another name",
                )
        seen[name] = path


def _are_one(one: Path, other: Path) -> bool:
    if one.exists() and other.exists():
        return one.samefile(other)
    return one.resolve() == other.resolve()


class TextTarget:
    """Where a text goes: nowhere, stdout, or a file that is opened now."""

    # Those that go to stdout, until they are left.
    printed: ClassVar[WeakSet[TextTarget]] = WeakSet()

    def __init__(self, target: str | Path | None) -> None:
        self.to_stdout = str(target) == STDOUT
        if self.to_stdout and self.printed:
            raise _two_into("stdout")
        self.file = open_target(target) if target and not self.to_stdout else None
        if self.to_stdout:
            self.printed.add(self)

    def __enter__(self) -> TextTarget:
        return self

    def __exit__(self, *_: object) -> None:
        self.printed.discard(self)
        if self.file is not None:
            self.file.discard()

    def put(self, text: str) -> bool:
        """True if the text was the output: nothing else may be printed."""
        if self.to_stdout:
            sys.stdout.write(text)
        elif self.file is not None:
            write_target(self.file, encoded(text))
        return self.to_stdout


class JsonTarget(TextTarget):
    """Where --json goes."""

    def __enter__(self) -> JsonTarget:
        return self

    def write(self, record: dict[str, Any]) -> bool:
        return self.put(json.dumps(_plain(record), indent=2, default=str) + "\n")


def write_target(file: AtomicFile, content: bytes) -> None:
    file.write(content)
    say(f"wrote {file.path}")


def encoded(text: str) -> bytes:
    """For a file. Names of files need not be legal text."""
    return text.encode("utf-8", "backslashreplace")


def say(text: str) -> None:
    """A word beside the result."""
    typer.echo(clean_lines(as_given(text)), err=True)


def warn(text: str) -> None:
    say(f"warning: {text}")


def warn_unused(options: Mapping[str, object], why: str) -> None:
    """Options that were given and change nothing."""
    given = [name for name, value in options.items() if value not in (None, False, "", [])]
    if given:
        warn(f"{', '.join(given)} {'has' if len(given) == 1 else 'have'} no effect: {why}")


def _plain(value: Any) -> Any:
    """What JSON can hold: it has no infinities and no NaN. Paths are the user's."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str):
        return as_given(value)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def summary(text: str | None, most: int = 110) -> str:
    """The first sentence of a help text, for a list; of a long one what comes before the colon."""
    sentence = " ".join((text or "").split("\n\n")[0].split()).partition(". ")[0].rstrip(".")
    return sentence if len(sentence) <= most else sentence.partition(": ")[0]

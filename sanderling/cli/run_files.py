"""Inputs of `sanderling run`: one file, several, or a folder of them; one run for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..errors import InputError
from ..runtime.inputs import ARRAYS, PICTURES
from ..runtime.sound import SOUNDS
from .common import plural, split_pair

KINDS = {*ARRAYS, *PICTURES, *SOUNDS}
Files = dict[str, str]


def several(texts: Iterable[str], option: str, names: Sequence[str]) -> dict[str, list[str]]:
    """NAME=FILE options, where a name may come several times and a file may be a folder. names: of
    the inputs; of an only one it may be left out."""
    found: dict[str, list[str]] = {}
    for text in texts:
        key, value = split_pair(text, option)
        key = names[0] if not key and len(names) == 1 else key
        found.setdefault(key, []).extend(_files(value))
    return found


def _files(place: str) -> list[str]:
    """The folder's files of a known type by name; anything else is a file."""
    folder = Path(place)
    if not folder.is_dir():
        return [place]
    found = sorted(str(p) for p in folder.iterdir() if p.suffix.lower() in KINDS and p.is_file())
    if not found:
        raise InputError(
            "the folder holds no file that an input can be made of",
            where=place,
            fix=f"known file types: {', '.join(sorted(KINDS))}",
        )
    return found


def batch(given: Mapping[str, Sequence[str]]) -> list[Files]:
    """The files of each run. An input with one file has it in every run; others go in step."""
    counts = {name: len(files) for name, files in given.items() if len(files) > 1}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} has {plural(n, 'file')}" for name, n in counts.items())
        raise InputError(
            f"inputs go in step, but {listed}",
            where="--input",
            fix="give each input the same number of files, or one",
        )
    runs = max(counts.values(), default=1)
    return [{name: files[i % len(files)] for name, files in given.items()} for i in range(runs)]


def titles(runs: Sequence[Files]) -> list[str]:
    """What tells the runs apart: the names of files that differ, with their folders where even
    these are alike."""
    varying = [n for n in runs[0] if len({r[n] for r in runs}) > 1] if runs else []
    short = [" ".join(Path(r[n]).name for n in varying) for r in runs]
    if len(set(short)) == len(runs):
        return short
    return [" ".join(r[n] for n in varying) for r in runs]

"""Letters: how wide they are on a terminal, how names are shortened, and in pictures a font that
has them, or another spelling where there is none. A box in place of a letter tells nobody anything.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

# Revised Romanisation, letter by letter: enough to tell names apart.
_FIRST = [
    "g",
    "kk",
    "n",
    "d",
    "tt",
    "r",
    "m",
    "b",
    "pp",
    "s",
    "ss",
    "",
    "j",
    "jj",
    "ch",
    "k",
    "t",
    "p",
    "h",
]
_VOWEL = [
    "a",
    "ae",
    "ya",
    "yae",
    "eo",
    "e",
    "yeo",
    "ye",
    "o",
    "wa",
    "wae",
    "oe",
    "yo",
    "u",
    "wo",
    "we",
    "wi",
    "yu",
    "eu",
    "ui",
    "i",
]
_LAST = [
    "",
    "k",
    "k",
    "ks",
    "n",
    "nj",
    "nh",
    "t",
    "l",
    "lk",
    "lm",
    "lb",
    "ls",
    "lt",
    "lp",
    "lh",
    "m",
    "p",
    "ps",
    "t",
    "t",
    "ng",
    "t",
    "t",
    "k",
    "t",
    "p",
    "h",
]
HANGUL = range(0xAC00, 0xD7A4)
# Families that are known to have many scripts are looked into first.
_LIKELY = ("noto sans cjk", "noto sans kr", "nanum", "malgun", "apple sd gothic", "undotum",
           "baekmuk", "noto", "droid", "unifont", "arial unicode")  # fmt: skip
BOXES = ("last resort", "lastresort")  # it has a box for every letter there is
DEFAULT = "DejaVu Sans"  # comes with matplotlib
LEAST = 8  # columns that a name needs to lose its middle
_NUMBER = re.compile(r"\]:\d+$")  # of a step, at the end of its name


# -- on a terminal --------------------------------------------------------------------------------


def clean(text: object) -> str:
    """Names come from files: what would steer a terminal is shown, not sent."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def clean_lines(text: str) -> str:
    """The same for more than one line."""
    return "\n".join(map(clean, text.split("\n")))


def cells(text: str) -> int:
    """Columns that a text takes: letters of East Asia and emoji take two, accents none."""
    return len(text) if text.isascii() else sum(map(_cells, text))


@cache
def _cells(letter: str) -> int:
    if unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def padded(text: str, width: int, right: bool = False) -> str:
    """Filled up to a width, on its left if it stands to the right."""
    room = " " * (width - cells(text))
    return room + text if right else text + room


def head(text: str, room: int) -> str:
    """As much of the beginning as fits."""
    if text.isascii():
        return text[: max(room, 0)]
    for count, letter in enumerate(text):
        room -= _cells(letter)
        if room < 0:
            return text[:count]
    return text


def _tail(text: str, room: int) -> str:
    return head(text[::-1], room)[::-1]


def shorten(text: str, room: int) -> str:
    """At most so wide: a name that was fused of several (a;b;c) loses all but the first, then the
    middle goes. The end of a name tells most; a step's number (]:12) stays."""
    if cells(text) <= room:
        return text
    number = _NUMBER.search(text)
    if number and room - len(number[0]) >= LEAST:
        return shorten(text[: number.start()], room - len(number[0])) + number[0]
    first = text.split(";")[0] + ";..."
    text = first if cells(first) < cells(text) else text
    if cells(text) <= room or room < LEAST:
        return head(text, max(room, 1))
    left = (room - 3) // 3
    return f"{head(text, left)}...{_tail(text, room - 3 - left)}"


def shorten_apart(texts: Iterable[str], room: int) -> dict[str, str]:
    """Shorten the names of one column. Those that would look alike keep the part from which on
    they differ, in place of their beginning and end."""
    made = {text: shorten(text, room) for text in texts}
    for alike in _alike(made):
        made |= _from_difference(alike, room)
    return made


def _from_difference(texts: Sequence[str], room: int) -> dict[str, str]:
    first, last = min(texts), max(texts)  # what these two share, all share
    pairs = enumerate(zip(first, last, strict=False))
    start = next((i for i, (a, b) in pairs if a != b), len(first))
    made = {text: _part(text, start, room) for text in texts}
    for alike in _alike(made):
        if len(alike) < len(texts):
            made |= _from_difference(alike, room)
    return made


def _alike(made: Mapping[str, str]) -> list[list[str]]:
    """Texts whose short forms are the same."""
    groups: dict[str, list[str]] = {}
    for text, short in made.items():
        groups.setdefault(short, []).append(text)
    return [texts for texts in groups.values() if len(texts) > 1]


def _part(text: str, start: int, room: int) -> str:
    """The text from a letter on, as far as there is room, or its end where that is longer."""
    if cells(text[start:]) <= room - 3:
        return f"...{_tail(text, room - 3)}"
    return head(f"...{head(text[start:], room - 6)}...", room)


def first_words(text: str, room: int) -> str:
    """As many whole words as fit, and dots in place of the others."""
    if cells(text) <= room:
        return text
    words = text.split()
    fits = (f"{' '.join(words[:n])} ..." for n in range(len(words) - 1, 0, -1))
    return next((short for short in fits if cells(short) <= room), shorten(text, room))


def wrapped(text: str, room: int) -> list[str]:
    """Lines of at most so many columns, broken between words, and within those that are longer."""
    lines = [""]
    for word in text.split():
        line = f"{lines[-1]} {word}" if lines[-1] else word
        if cells(line) <= room or not lines[-1]:
            lines[-1] = line
        else:
            lines.append(word)
        while cells(lines[-1]) > room:
            part = head(lines[-1], room) or lines[-1][0]
            lines[-1:] = [part, lines[-1][len(part) :]]
    return lines


# -- in pictures ----------------------------------------------------------------------------------


def spelled(text: str, has: Any) -> str:
    """The text in letters that there are: has(letter) says so. Hangul is romanised, a letter with
    an accent loses it, and what is left is written as its number."""
    return "".join(c if c == "\n" or has(c) else _other(c, has) for c in text)


def _other(letter: str, has: Any) -> str:
    number = ord(letter)
    if number in HANGUL:
        return romanised(number)
    plain = "".join(
        c for c in unicodedata.normalize("NFKD", letter) if not unicodedata.combining(c)
    )
    if plain and plain != letter and all(map(has, plain)):
        return plain
    return f"\\x{number & 0xFF:02x}" if 0xDC80 <= number <= 0xDCFF else f"\\u{number:04x}"


def romanised(number: int) -> str:
    first, rest = divmod(number - HANGUL.start, 21 * 28)
    vowel, last = divmod(rest, 28)
    return _FIRST[first] + _VOWEL[vowel] + _LAST[last]


# -- the fonts of this machine --------------------------------------------------------------------


@cache
def letters_of(path: str) -> frozenset[int]:
    """The letters that a font file has."""
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(FT2Font(path).get_charmap())
    except (OSError, RuntimeError):  # not every file that is listed can be opened
        return frozenset()


@cache
def _fonts() -> list[tuple[str, str]]:
    """(family, file) of the fonts that matplotlib finds, the likeliest first."""
    from matplotlib.font_manager import fontManager

    def place(font: Any) -> int:
        name = font.name.lower()
        return next((i for i, k in enumerate(_LIKELY) if name.startswith(k)), len(_LIKELY))

    upright = [
        f
        for f in fontManager.ttflist
        if f.style == "normal"
        and f.weight in (400, "normal")
        and not f.name.lower().startswith(BOXES)
    ]
    return [(f.name, f.fname) for f in sorted(upright, key=place)]


@cache
def _default() -> str:
    from matplotlib.font_manager import findfont

    return str(findfont(DEFAULT))


def fonts_for(texts: Iterable[str]) -> list[tuple[str, str]]:
    """(family, file) of fonts that together have the letters of these texts, as far as there are
    any; the usual one first."""
    wanted = {ord(c) for text in texts for c in text if c.isprintable()}
    chosen = [(DEFAULT, _default())]
    wanted -= letters_of(_default())
    for family, path in _fonts() if wanted else ():
        if wanted & letters_of(path):
            chosen.append((family, path))
            wanted -= letters_of(path)
        if not wanted:
            break
    return chosen

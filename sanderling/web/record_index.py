"""The index of a folder's records: what lists need, in SQLite, so that a thousand records are read
once and not for every page. It is kept in the cache; a file that changed is read again."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..store import Store
from ..version import __version__
from .record_file import Content, Found, files_of, read_record
from .view import Figure
from .views import Listed, listed

PAGE = 50  # records of a page of the list
FRESH = 1.0  # seconds for which the folder is not looked at again
UNREADABLE = "unreadable"  # the verb of what cannot be read
LARGEST_ID = 2**62
LAYOUT = 1  # of the tables below
TABLES = """
CREATE TABLE IF NOT EXISTS records (
  id INTEGER PRIMARY KEY, path TEXT UNIQUE, size INTEGER, changed INTEGER,
  schema TEXT, verb TEXT, headline TEXT, problem TEXT, words TEXT);
CREATE INDEX IF NOT EXISTS by_time ON records (changed DESC, path);
CREATE TABLE IF NOT EXISTS models (record INTEGER, name TEXT);
CREATE INDEX IF NOT EXISTS by_model ON models (name, record);
CREATE TABLE IF NOT EXISTS figures (
  record INTEGER, model TEXT, setting TEXT, median REAL, low REAL, high REAL, rounds TEXT);
CREATE INDEX IF NOT EXISTS by_figure ON figures (model, setting, record);
CREATE TABLE IF NOT EXISTS others (path TEXT PRIMARY KEY, size INTEGER, changed INTEGER);
"""
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Row:
    """A record as lists show it."""

    id: int
    path: str
    size: int
    changed: int
    schema: str
    verb: str
    headline: str
    problem: str


COLUMNS = "records.id, path, size, changed, schema, verb, headline, problem"


@dataclass(frozen=True)
class Wanted:
    """Which records: `text` is looked for in file names, models and headlines."""

    text: str = ""
    verb: str = ""
    model: str = ""

    def where(self) -> tuple[str, list[object]]:
        conditions = ["verb != ''"]
        values: list[object] = []
        for word in self.text.split()[:10]:
            conditions.append("instr(words, ?)")
            values.append(word.casefold())
        if self.verb:
            conditions.append("verb = ?")
            values.append(self.verb)
        if self.model:
            conditions.append("records.id IN (SELECT record FROM models WHERE name = ?)")
            values.append(self.model)
        return " AND ".join(conditions), values


class RecordIndex:
    """Safe between threads: one connection, one at a time."""

    def __init__(self, folder: Path, is_kept: bool = True) -> None:
        self.folder = folder
        self._lock = threading.RLock()
        self._looked = -FRESH
        self._file = _kept_at(folder) if is_kept else None
        self._base = self._open()

    def _open(self) -> sqlite3.Connection:
        """The kept index; a damaged one is made anew, and where nothing can be kept it is in
        memory."""
        for attempt in ("kept", "made anew"):
            if self._file is None:
                break
            try:
                return _opened(str(self._file))
            except (sqlite3.Error, OSError):
                with suppress(OSError):
                    self._file.unlink(missing_ok=True)
                if attempt == "made anew":
                    self._file = None
        return _opened(":memory:")

    def close(self) -> None:
        with self._lock:
            self._base.close()

    # -- keeping it true --------------------------------------------------------------------------

    def refresh(self, progress: Progress | None = None, at_once: bool = False) -> None:
        """Read what is new or has changed, forget what is gone. at_once: also right after the last
        look; somebody knows that there is something new."""
        with self._changing() as base:
            is_fresh = time.monotonic() - self._looked < FRESH
            if is_fresh and progress is None and not at_once:
                return
            seen = {f.path: f for f in files_of(self.folder, (".json",))}
            known = {
                path: (size, changed)
                for table in ("records", "others")
                for path, size, changed in base.execute(f"SELECT path, size, changed FROM {table}")
            }
            for path in known.keys() - seen.keys():
                self._forget(path)
            new = [f for f in seen.values() if known.get(f.path) != (f.size, f.changed)]
            for number, file in enumerate(new):
                self._take(file)
                if progress is not None:
                    progress("records", number + 1, len(new))
            self._looked = time.monotonic()

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """One transaction. An index that cannot be written any more goes on in memory."""
        with self._lock:
            try:
                with self._base:
                    yield self._base
            except sqlite3.Error:
                self._base = _opened(":memory:")
                self._looked = -FRESH

    def _forget(self, path: str) -> None:
        for (number,) in self._base.execute("SELECT id FROM records WHERE path = ?", [path]):
            for table in ("models", "figures"):
                self._base.execute(f"DELETE FROM {table} WHERE record = ?", [number])
        for table in ("records", "others"):
            self._base.execute(f"DELETE FROM {table} WHERE path = ?", [path])

    def _take(self, file: Found) -> None:
        self._forget(file.path)
        found = read_record(self.folder / file.path)
        if found.record is None and not found.problem:  # JSON of somebody else
            self._base.execute("INSERT INTO others VALUES (?, ?, ?)", _texts(file))
            return
        told = listed(found.record) if found.record is not None else Listed()
        self._add(file, found, told)

    def _add(self, file: Found, found: Content, told: Listed) -> None:
        schema = str(found.record["schema"]) if found.record is not None else ""
        verb = found.verb or UNREADABLE
        words = " ".join([file.path, verb, told.headline, *told.models]).casefold()
        shown = (schema[:200], verb[:60], told.headline[:500], found.problem[:500], words[:5000])
        number = self._base.execute(
            "INSERT INTO records (path, size, changed, schema, verb, headline, problem, words) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [*_texts(file), *map(_text, shown)],
        ).lastrowid
        self._base.executemany(
            "INSERT INTO models VALUES (?, ?)", [(number, _text(m)) for m in told.models]
        )
        self._base.executemany(
            "INSERT INTO figures VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    number,
                    _text(f.model),
                    _text(f.setting),
                    f.median,
                    f.low,
                    f.high,
                    json.dumps(f.rounds),
                )
                for f in told.figures
            ],
        )

    # -- asking -----------------------------------------------------------------------------------

    def _ask(self, question: str, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
        with self._lock:
            return self._base.execute(question, values).fetchall()

    def count(self, wanted: Wanted | None = None) -> int:
        where, values = (wanted or Wanted()).where()
        return int(str(self._ask(f"SELECT count(*) FROM records WHERE {where}", values)[0][0]))

    def rows(self, wanted: Wanted | None = None, page: int = 0, size: int = PAGE) -> list[Row]:
        """Newest first."""
        where, values = (wanted or Wanted()).where()
        question = (
            f"SELECT {COLUMNS} FROM records WHERE {where} "
            "ORDER BY changed DESC, path LIMIT ? OFFSET ?"
        )
        return [_row(r) for r in self._ask(question, [*values, size, page * size])]

    def row(self, number: int) -> Row | None:
        if number > LARGEST_ID:
            return None
        found = self._ask(f"SELECT {COLUMNS} FROM records WHERE id = ?", [number])
        return _row(found[0]) if found else None

    def by_path(self, path: str) -> Row | None:
        found = self._ask(f"SELECT {COLUMNS} FROM records WHERE path = ?", [path])
        return _row(found[0]) if found else None

    def has_record(self, path: str) -> bool:
        """Whether this file is what a verb wrote, and not another file of the same name."""
        return bool(self._ask("SELECT 1 FROM records WHERE path = ? AND verb != ''", [path]))

    def models_of(self, number: int) -> list[str]:
        found = self._ask("SELECT name FROM models WHERE record = ?", [number])
        return [str(name) for (name,) in found]

    def verbs(self) -> list[tuple[str, int]]:
        found = self._ask("SELECT verb, count(*) FROM records GROUP BY verb ORDER BY verb")
        return [(str(v), int(str(n))) for v, n in found]

    def models(self) -> list[tuple[str, int]]:
        found = self._ask("SELECT name, count(*) FROM models GROUP BY name ORDER BY name")
        return [(str(v), int(str(n))) for v, n in found]

    def newest(self, verb: str, model: str) -> list[Row]:
        """Records of a verb about a model, newest first."""
        return self.rows(Wanted(verb=verb, model=model))

    def series(self) -> list[tuple[str, str, int]]:
        """Models and settings with the number of their measurements."""
        question = (
            "SELECT model, setting, count(*) FROM figures GROUP BY model, setting "
            "ORDER BY count(*) DESC, model, setting"
        )
        return [(str(m), str(s), int(str(n))) for m, s, n in self._ask(question)]

    def history(self, model: str, setting: str, most: int) -> list[tuple[Row, Figure]]:
        """The latest measurements, oldest first."""
        question = (
            f"SELECT {COLUMNS}, median, low, high, rounds FROM figures JOIN records "
            "ON records.id = figures.record WHERE figures.model = ? AND figures.setting = ? "
            "ORDER BY changed DESC, path DESC LIMIT ?"
        )
        return [
            (_row(r[:8]), _figure(model, setting, r[8:]))
            for r in reversed(self._ask(question, [model, setting, most]))
        ]


def _opened(place: str) -> sqlite3.Connection:
    base = sqlite3.connect(place, check_same_thread=False, timeout=5)
    base.executescript(TABLES)
    base.execute("SELECT count(*) FROM records, models, figures, others")
    return base


def _kept_at(folder: Path) -> Path | None:
    """A file of the cache for this folder and this version of the package."""
    cache = Store().folder
    if cache is None:
        return None
    named = f"{LAYOUT} {__version__} {_sources()} {folder.resolve()}"
    name = hashlib.sha256(named.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    place = cache / "serve"
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return place / f"{name}.sqlite"


def _sources() -> list[int]:
    """When the code that reads records was changed: what it said before may be said otherwise."""
    return sorted(p.stat().st_mtime_ns for p in Path(__file__).parent.glob("*.py"))


def _text(value: str) -> str:
    """SQLite holds legal text alone; names of files need not be that."""
    return value.encode("utf-8", "backslashreplace").decode()


def _texts(file: Found) -> tuple[str, int, int]:
    return file.path, file.size, file.changed


def _row(found: Sequence[object]) -> Row:
    number, path, size, changed, *texts = found
    return Row(int(str(number)), str(path), int(str(size)), int(str(changed)), *map(str, texts))


def _figure(model: str, setting: str, found: Sequence[object]) -> Figure:
    middle, low, high = (None if v is None else float(str(v)) for v in found[:3])
    return Figure(model, setting, middle or 0.0, low, high, json.loads(str(found[3])))

"""A soak: thousands of inferences with resizes and new sessions; resident memory must stay flat.

    python -m benchmarks.soak [MODEL.tflite ...] [--count 10000] [--sessions 50] [--json FILE]
                              [--write]

Without paths: the two models that ship in the package. Each session runs its share of the
inferences with batches of changing size, then is dropped for a new one with another thread count.
Every answer is compared with the first for the same batch. After each session memory, threads and
open files are noted; the second half of the notes, when all is warm, must not grow. Exit status 1
if it does.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np

from benchmarks.common import fresh_cache, table, write_json, write_section
from sanderling import Model, Session, load
from sanderling.ir.types import Array
from sanderling.measure.inputs import feeds
from sanderling.measure.machine import machine_line

SCHEMA = "sanderling.soak/1"
BATCHES = (1, 3, 2, 5)
STAY = 7  # inferences before the batch changes
THREADS = (1, 2)
GROWTH_KB, GROWTH_SHARE = 1024, 0.01  # what is still flat: the larger of the two


@dataclass(frozen=True)
class Note:
    """The process after one session's life."""

    inferences: int
    resident_kb: int
    anonymous_kb: int
    threads: int
    files: int


@dataclass(frozen=True)
class Soaked:
    model: str
    seconds: float
    wrong: int
    notes: list[Note]

    @property
    def growth_kb(self) -> float:
        """Growth over the second half, by the line through its notes: one page more or less in
        the last note does not decide."""
        late = self.notes[len(self.notes) // 2 :]
        if len(late) < 2:
            return 0.0
        slope = np.polyfit(range(len(late)), [n.resident_kb for n in late], 1)[0]
        return float(slope) * (len(late) - 1)

    @property
    def limit_kb(self) -> float:
        return max(GROWTH_KB, GROWTH_SHARE * self.notes[-1].resident_kb)

    @property
    def verdict(self) -> str:
        middle, last = self.notes[len(self.notes) // 2], self.notes[-1]
        faults = []
        if self.growth_kb > self.limit_kb:
            faults.append(f"memory grows (limit {self.limit_kb:.0f} KiB)")
        if last.threads > middle.threads:
            faults.append(f"threads grow from {middle.threads} to {last.threads}")
        if last.files > middle.files:
            faults.append(f"open files grow from {middle.files} to {last.files}")
        if self.wrong:
            faults.append(f"{self.wrong} answers changed")
        return ", ".join(faults) or "flat"


def note(inferences: int) -> Note:
    gc.collect()
    memory, status = (
        Path(f"/proc/self/{name}").read_text("utf-8") for name in ("smaps_rollup", "status")
    )
    return Note(
        inferences,
        _field(memory, "Rss"),
        _field(memory, "Anonymous"),
        _field(status, "Threads"),
        len(list(Path("/proc/self/fd").iterdir())),
    )


def _field(text: str, name: str) -> int:
    found = re.search(rf"^{name}:\s*(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 0


class Soak:
    """One model's soak: first answers by batch, and how many later ones differ."""

    def __init__(self, path: Path, count: int, sessions: int) -> None:
        self.path, self.count, self.sessions = path, count, max(1, sessions)
        model = load(path)
        self.inputs = {batch: _batched(model, batch) for batch in BATCHES}
        self.first: dict[int, list[Array]] = {}
        self.wrong = 0

    def run(self) -> Soaked:
        begin = time.perf_counter()
        notes = []
        each = -(-self.count // self.sessions)
        for index in range(self.sessions):
            self._life(each, THREADS[index % len(THREADS)])
            notes.append(note((index + 1) * each))
        return Soaked(self.path.stem, time.perf_counter() - begin, self.wrong, notes)

    def _life(self, count: int, threads: int) -> None:
        """A session from load to its end, `count` inferences long."""
        session = load(self.path).compile("cpu", threads=threads)
        batches = itertools.cycle(b for b in BATCHES for _ in range(STAY))
        for batch in itertools.islice(batches, count):
            self._check(batch, _run(session, self.inputs[batch]))

    def _check(self, batch: int, answers: list[Array]) -> None:
        first = self.first.setdefault(batch, answers)
        self.wrong += not all(map(np.array_equal, first, answers))


def _run(session: Session, arrays: Sequence[Array]) -> list[Array]:
    places = {t: i for i, t in enumerate(session.model.main.inputs)}
    given = {n: arrays[places[t]] for n, t in session.entry(None).inputs.items()}
    return list(session.run(given).values())


def _batched(model: Model, batch: int) -> list[Array]:
    return [np.concatenate([a] * batch) if a.ndim else a for a in feeds(model)]


def report(found: Sequence[Soaked]) -> str:
    header = [
        "model",
        "inferences",
        "sessions",
        "seconds",
        "resident KiB after the first",
        "middle",
        "last",
        "growth of the second half KiB",
        "threads",
        "open files",
        "verdict",
    ]
    return table(header, map(_cells, found))


def _cells(one: Soaked) -> list[object]:
    first, middle, last = one.notes[0], one.notes[len(one.notes) // 2], one.notes[-1]
    return [
        one.model,
        last.inferences,
        len(one.notes),
        f"{one.seconds:.0f}",
        first.resident_kb,
        middle.resident_kb,
        last.resident_kb,
        f"{one.growth_kb:.0f}",
        last.threads,
        last.files,
        one.verdict,
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    own = sorted(Path(str(files("sanderling") / "data")).glob("*.tflite"))
    paths = [Path(p) for p in options.paths] or own
    with fresh_cache():
        found = [Soak(p, options.count, options.sessions).run() for p in paths]
    text = report(found)
    if options.json != "-":
        print(text)
    if options.json:
        write_json(options.json, SCHEMA, {"models": [asdict(s) for s in found]})
    if options.write:
        about = (
            f"Batches {', '.join(map(str, BATCHES))} in turn, changed every {STAY} "
            f"inferences; threads {' and '.join(map(str, THREADS))} in turn."
        )
        write_section("soak", f"## Soak\n\n{machine_line()}\n\n{about}\n\n{text}")
    return int(any(s.verdict != "flat" for s in found))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", metavar="MODEL", help="default: the package's own")
    parser.add_argument("--count", type=int, default=10_000, help="inferences, each model")
    parser.add_argument("--sessions", type=int, default=50)
    parser.add_argument("--json", metavar="FILE", help="all notes; '-' for stdout")
    parser.add_argument("--write", action="store_true", help="update benchmarks/RESULTS.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())

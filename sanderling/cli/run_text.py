"""What `sanderling run` prints: all outputs of one run, a line for each of several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import typer

from ..glyphs import shorten_apart
from ..tables import READABLE, facts, table, whole_in_files
from .common import clean
from .finished_run import FinishedRun

Row = dict[str, Any]
SHOWN = 4  # outputs, and kinds of things that were found, in the line of a file


def print_runs(runs: Sequence[FinishedRun], verbose: bool) -> None:
    pieces = _details(runs) if verbose or len(runs) == 1 else [_line_each(runs)]
    typer.echo("\n\n".join(filter(None, [*pieces, _took(runs)])))


def _took(runs: Sequence[FinishedRun]) -> str:
    first = f"{runs[0].seconds * 1e3:.1f} ms, first-run work included"
    compiling = sum(run.compile_seconds for run in runs)
    apart = f"; planning and compiling, apart from that, {compiling * 1e3:.1f} ms"
    if len(runs) == 1:
        return f"one run took {first}{apart}"
    later = median(run.seconds for run in runs[1:])
    return (
        f"the first of {len(runs)} runs took {first}; the median of the others "
        f"{later * 1e3:.1f} ms{apart}"
    )


# -- a line for each ------------------------------------------------------------------------------


def _line_each(runs: Sequence[FinishedRun]) -> str:
    made = next(found for tell in (_found, _best, _ranges) if (found := tell(runs)))
    columns, cells = made
    short = shorten_apart([run.title for run in runs], READABLE)
    rows = [[short[run.title], f"{run.seconds * 1e3:.1f}", *cells(run)] for run in runs]
    types = [
        (heading, f"{clean(name)} {_type(output)}")
        for heading, (name, output) in zip(
            _headings(runs), runs[0].to_json()["outputs"].items(), strict=True
        )
    ]
    more = ("details", "--verbose prints all outputs of each file, --json and --output write them")
    return f"{table(['input', '>ms', *columns], rows)}\n\n{facts([*types, more])}"


def _headings(runs: Sequence[FinishedRun]) -> list[str]:
    """Outputs by number: their names may be long."""
    count = len(runs[0].outputs)
    return [f"output {number}" for number in range(count)] if count > 1 else ["output"]


Told = tuple[list[str], Callable[["FinishedRun"], list[str]]] | None


def _found(runs: Sequence[FinishedRun]) -> Told:
    """What was seen in the picture."""
    if runs[0].found is None:
        return None
    tell = _SEEN[runs[0].found.kind]
    return [whole_in_files("found")], lambda run: [
        tell(run.found.rows) if run.found and run.found.rows else "nothing"
    ]


def _counted(rows: Sequence[Row]) -> str:
    """Boxes by what is in them, the surest first."""
    counts = Counter(row["label"] for row in rows)
    best: dict[str, float] = {}
    for row in rows:
        best[row["label"]] = max(best.get(row["label"], 0.0), row["score"])
    return _some(
        [
            f"{f'{counts[name]} x ' * (counts[name] > 1)}{name} {score:.2f}"
            for name, score in sorted(best.items(), key=lambda pair: -pair[1])
        ]
    )


_SEEN: dict[str, Callable[[Sequence[Row]], str]] = {
    "boxes": _counted,
    "keypoints": lambda rows: _some([f"person {r['person']} {r['score']:.2f}" for r in rows]),
    "mask": lambda rows: _some([f"{r['label']} {r['share']:.1%}" for r in rows]),
    "classes": lambda rows: f"{rows[0]['label']} {rows[0]['score']:.4g}",
}


def _some(texts: Sequence[str]) -> str:
    more = [f"{len(texts) - SHOWN} more"] if len(texts) > SHOWN else []
    return ", ".join([*texts[:SHOWN], *more])


def _best(runs: Sequence[FinishedRun]) -> Told:
    """The best class of each output with scores."""
    if not runs[0].top:
        return None
    names = list(runs[0].top)[:SHOWN]
    columns = [f"~best of {name}" if len(names) > 1 else "~best class" for name in names]

    def cells(run: FinishedRun) -> list[str]:
        tops = [(run.top or {}).get(name, []) for name in names]
        return [f"{t[0]['label']} {_number(t[0]['score'])}" if t else "-" for t in tops]

    return columns, cells


def _ranges(runs: Sequence[FinishedRun]) -> Told:
    """A column for each output: its mean between its extremes."""
    return _headings(runs)[:SHOWN], lambda run: [
        _range(output) for output in list(run.to_json()["outputs"].values())[:SHOWN]
    ]


def _range(output: Row) -> str:
    if output["mean"] is None:
        return " ".join(map(_number, output["first"][:2])) or "-"
    return f"{output['min']:.3g} to {output['max']:.3g}, mean {output['mean']:.3g}"


# -- everything -----------------------------------------------------------------------------------


def _details(runs: Sequence[FinishedRun]) -> list[str]:
    label = ["~input"] if len(runs) > 1 else []

    def of(run: FinishedRun, *cells: object) -> list[object]:
        return [*[run.title][: len(label)], *cells]

    rows = [
        of(
            run,
            name,
            _type(o),
            *(_number(o[k]) for k in ("min", "max", "mean")),
            " ".join(map(_number, o["first"])),
        )
        for run in runs
        for name, o in run.to_json()["outputs"].items()
    ]
    columns = ["~output", "type", ">min", ">max", ">mean", whole_in_files("first values", "%")]
    pieces = [table([*label, *columns], rows)]
    for name in runs[0].top or ():
        best = [
            of(run, b["class"], b["label"], _number(b["score"]))
            for run in runs
            for b in (run.top or {}).get(name, [])
        ]
        found = table([*label, ">class", "~label", ">score"], best)
        pieces.append(f"best classes of {clean(name)}\n{found}")
    if seen := [(run.title, run.found) for run in runs if run.found]:
        from .drawn_images import found_table

        pieces.append(found_table(seen))
    return pieces


def _type(output: Row) -> str:
    return f"{output['type']}{output['shape']}"


def _number(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return f"{value:.6g}" if isinstance(value, float) else "-" if value is None else str(value)

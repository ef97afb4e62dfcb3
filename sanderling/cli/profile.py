"""`sanderling profile`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any

import typer

from ..errors import InputError
from ..files import check_ending
from ..format import load
from ..ir import Array, Signature
from ..measure.noise import crowded
from ..measure.profile_export import (
    SHARES,
    facts_line,
    fused_names,
    node_data_json,
    plot,
    summed,
    to_csv,
    to_html,
)
from ..measure.profiling import profile as measure
from ..measure.profiling import share_text
from ..pages import PAGES
from ..plots import kind_of
from ..runtime.inputs import Picture
from ..runtime.session import Session
from ..tables import fitting, table, width
from ..units import si
from . import completion
from .common import (
    STDOUT,
    DelegateNames,
    EntryPoint,
    FullDelegation,
    InputFiles,
    JsonPath,
    JsonTarget,
    ModelPath,
    Plugins,
    Quiet,
    RandomShapes,
    TextTarget,
    load_plugins,
    open_target,
    pairs,
    progress,
    read_shapes,
    warn,
    write_target,
)
from .run import _feeds, _named

Record = dict[str, Any]


def profile(
    model: ModelPath,
    threads: Annotated[int, typer.Option(metavar="N", help="Threads to use.")] = 1,
    runs: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Runs to measure. Default: as many as fit into about 1.5 s."
        ),
    ] = None,
    delegate: DelegateNames = [],  # noqa: B006
    require_full_delegation: FullDelegation = False,
    engine: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            autocompletion=completion.ENGINE,
            help="Whose steps: sanderling, litert or openvino.",
        ),
    ] = "sanderling",
    precision: Annotated[
        str,
        typer.Option(
            metavar="TYPE",
            autocompletion=completion.PRECISION,
            help="Of float products: f32 or bf16.",
        ),
    ] = "f32",
    top: Annotated[
        int, typer.Option(metavar="N", min=0, help="How many of the slowest steps to list.")
    ] = 10,
    by_type: Annotated[
        bool, typer.Option("--by-type", help="Print the summary by type only.")
    ] = False,
    input: InputFiles = [],  # noqa: B006
    shape: RandomShapes = [],  # noqa: B006
    signature: EntryPoint = None,
    csv: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE", help="Write the steps as CSV; - for stdout."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help="Write a page with the roofline and the tables; - for stdout.",
        ),
    ] = None,
    plot_: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Write the roofline as .svg, .png or .html."),
    ] = None,
    node_data: Annotated[
        Path | None,
        typer.Option(
            "--node-data",
            metavar="FILE.json",
            help="Write milliseconds by node, for Model Explorer; - for stdout.",
        ),
    ] = None,
    roofline: Annotated[
        bool,
        typer.Option(
            "--roofline/--no-roofline",
            help="Compare with what this machine can do (measured once, in about a second).",
        ),
    ] = True,
    refresh_roofline: Annotated[
        bool, typer.Option("--refresh-roofline", help="Measure the machine again.")
    ] = False,
    plugin: Plugins = [],  # noqa: B006
    quiet: Quiet = False,
    json: JsonPath = "",
) -> None:
    """Show where a model's time goes: every step, its kernel, its distance from the machine's
    limits, and what to try."""
    load_plugins(plugin)
    if plot_ is not None:
        kind_of(plot_)
    if html is not None and str(html) != STDOUT:
        check_ending(html, PAGES, "page")
    if plot_ is not None and not roofline and kind_of(plot_) != ".html":
        raise InputError(
            "a roofline plot without a roofline", where="--plot", fix="leave out --no-roofline"
        )
    source = load(model)
    entry = Session(source, ("reference",)).entry(signature)
    feeds = _arrays(entry, input, shape)
    makers: list[tuple[Path | None, Callable[[Record], str]]] = [
        (csv, to_csv),
        (html, to_html),
        (node_data, node_data_json),
    ]
    with ExitStack() as opened:
        texts = [(opened.enter_context(TextTarget(path)), make) for path, make in makers if path]
        drawn = opened.enter_context(open_target(plot_)) if plot_ else None
        target = opened.enter_context(JsonTarget(json))
        with progress() as show:
            record = measure(
                source,
                threads=threads,
                runs=runs,
                delegates=delegate,
                require_full_delegation=require_full_delegation,
                engine=engine,
                precision=precision,
                inputs=feeds,
                signature=signature,
                with_roofline=roofline,
                refresh_roofline=refresh_roofline,
                progress=show,
            )
        if drawn is not None:
            write_target(drawn, plot(record, str(plot_)))
        printed = [into.put(make(record)) for into, make in texts] + [target.write(record)]
        if not any(printed):
            typer.echo(text(record, top, by_type))
        for disturbance in crowded(threads):
            warn(str(disturbance))


def _arrays(entry: Signature, files: list[str], shapes: list[str]) -> dict[str, Array]:
    """The inputs that are given, by file or by shape."""
    given = _named(entry.inputs, pairs(files, "--input"), "input")
    sizes = _named(entry.inputs, read_shapes(shapes), "input")
    asked = Signature(
        entry.key,
        entry.graph,
        {n: t for n, t in entry.inputs.items() if n in given or n in sizes},
        entry.outputs,
    )
    return _feeds(asked, given, Picture(), 0, sizes) if asked.inputs else {}


# -- for people ---------------------------------------------------------------------------------


def text(record: Record, top: int = 10, by_type: bool = False) -> str:
    """The tables in TensorFlow Lite's order, what is no step, and the advice."""
    steps = record["steps"]
    best = sorted(steps, key=lambda r: -r["median_ms"])[:top]
    shown = fitting(_COLUMNS, _lines(record, steps), _SPARE)
    types = ("Summary by node type", _types(record))
    blocks = (
        [types]
        if by_type
        else [
            ("Run Order", _steps(_lines(record, steps), shown)),
            ("Top by Computation Time", _steps(_lines(record, summed(best)), shown)),
            types,
        ]
    )
    rule = "=" * 30 if not width() else "=" * max(3, min(30, (width() - 25) // 2))
    lines = [f"{rule} {title} {rule}\n{body}" for title, body in blocks if body]
    lines += [] if by_type else _left_out(shown)
    lines += [
        _others(record),
        facts_line(record),
        SHARES,
        *(f"note: {n}" for n in record["notes"]),
        "\n".join(record["advice"]),
    ]
    return "\n\n".join(lines)


_COLUMNS = ("[node type]", ">[first]", ">[avg ms]", ">[median]", ">[min]", ">[%]", ">[cdf%]",
            ">[mem KB]", ">[times called]", ">[MACs]", ">[G/s]", ">[of roof]", "[bound]", ">[wait]",
            "~[kernel]", ">[node]", "~[Name]")  # fmt: skip


# Left out of a line that is too long, in this order.
_SPARE = (">[times called]", ">[first]", ">[cdf%]", ">[min]", ">[mem KB]", ">[wait]", ">[MACs]",
          "[bound]", ">[node]", ">[G/s]", "~[kernel]", ">[of roof]")  # fmt: skip


def _lines(record: Record, rows: list[Record]) -> list[tuple[object, ...]]:
    """Steps, with their fused ops below them."""
    lines: list[tuple[object, ...]] = []
    for row in rows:
        lines.append(_row(row))
        lines += [
            (*[""] * (len(_COLUMNS) - 2), name.rpartition(":")[2], name)
            for name in fused_names(record, row)
        ]
    return lines


def _steps(lines: list[tuple[object, ...]], shown: list[int]) -> str:
    return table([_COLUMNS[i] for i in shown], [[line[i] for i in shown] for line in lines])


def _left_out(shown: list[int]) -> list[str]:
    gone = [c.strip(">~[]") for i, c in enumerate(_COLUMNS) if i not in shown]
    return (
        [
            fill(
                f"left out of these lines, which are {width()} wide: {', '.join(gone)}; --csv and "
                f"--json have them",
                max(width(), 40),
            )
        ]
        if gone
        else []
    )


def _row(row: Record) -> tuple[object, ...]:
    bound = f"{row['bound']} {row['level']}" if row["bound"] == "memory" else row["bound"]
    return (
        row["type"],
        _ms(row["first_ms"]),
        _ms(row["ms"]),
        _ms(row["median_ms"]),
        _ms(row["min_ms"]),
        f"{row['percent']:.3f}%",
        f"{row['cdf']:.3f}%",
        f"{row['mem_kb']:.1f}" if row["bytes"] else "-",
        f"{row['times_called']:g}",
        si(row["macs"]) if row["macs"] else "-",
        f"{row['gops']:.1f}" if row["gops"] else "-",
        share_text(row["share"]),
        bound or "-",
        f"{row['imbalance']:.0%}",
        f"{row['delegate']}:{row['kernel']}",
        row["name"].rpartition(":")[2] if row["nodes"] else "-",
        row["name"],
    )


def _ms(value: float) -> str:
    return f"{value:.3f}" if value >= 0.1 else f"{value:.4f}"


def _types(record: Record) -> str:
    columns = (
        "[Node type]",
        ">[count]",
        ">[avg ms]",
        ">[avg %]",
        ">[cdf %]",
        ">[mem KB]",
        ">[times called]",
        ">[MACs]",
        ">[G/s]",
    )
    rows: list[tuple[object, ...]] = [
        (
            t["type"],
            t["count"],
            _ms(t["ms"]),
            f"{t['percent']:.3f}%",
            f"{t['cdf']:.3f}%",
            f"{t['mem_kb']:.1f}" if t["bytes"] else "-",
            f"{t['times_called']:g}",
            si(t["macs"]) if t["macs"] else "-",
            f"{t['gops']:.1f}" if t["gops"] else "-",
        )
        for t in record["by_type"]
    ]
    shown = fitting(
        columns, rows, (">[times called]", ">[mem KB]", ">[cdf %]", ">[MACs]", ">[G/s]", ">[count]")
    )
    return table([columns[i] for i in shown], [[row[i] for i in shown] for row in rows])


def _others(record: Record) -> str:
    rows = [
        (
            "all steps",
            _ms(record["steps_ms"]),
            f"{100 * record['steps_ms'] / record['whole']['mean']:.3f}%",
        )
    ]
    rows += [(o["name"], _ms(o["ms"]), f"{o['percent']:.3f}%") for o in record["others"]]
    return table(("[what]", ">[avg ms]", ">[%]"), rows)

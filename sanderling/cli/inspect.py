"""`sanderling inspect`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any

import typer

from ..errors import InputError
from ..format import load
from ..glyphs import wrapped
from ..ir import Model, Shape
from ..ir.text import to_text
from ..measure import inspect as describe
from ..measure.inspection import FOLDED, known_shapes
from ..runtime.arena import plan_graph
from ..tables import IN_FILES, facts, table, width
from ..units import byte_size, si
from . import completion
from .common import (
    JsonPath,
    JsonTarget,
    ModelPath,
    Plugins,
    Shapes,
    clean,
    load_plugins,
    plural,
    read_shapes,
    shorten,
    warn_unused,
)

Record = dict[str, Any]
RULES = {"gpu": "gpu:sanderling"}  # delegates of ours that models can be rewritten for
ALL = "all"  # the accelerators, with the model in each of its types
Asked = Annotated[
    list[str],
    typer.Option(
        "--delegate",
        metavar="NAME",
        autocompletion=completion.ASKED,
        help="A delegate, or an accelerator known by its rules (nnapi:29, gpu); `all`: a table.",
    ),
]


def inspect(
    model: ModelPath,
    ops: Annotated[bool, typer.Option("--ops", help="List every op.")] = False,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    text: Annotated[bool, typer.Option("--text", help="Print the graph's text form.")] = False,
    arena: Annotated[bool, typer.Option("--arena", help="Print where tensors lie.")] = False,
    all_: Annotated[
        bool, typer.Option("--all", help="Show also graphs that are the same but for names.")
    ] = False,
    shape: Shapes = [],  # noqa: B006
    delegate: Asked = [],  # noqa: B006  typer reads the default, nobody changes it
    plugin: Plugins = [],  # noqa: B006
    json: JsonPath = "",
) -> None:
    """Show what a model is made of: ops, parameters, MACs, quantisation, signatures.

    With --delegate, show also which ops it takes and why it refuses the others. It may be an
    accelerator of which only the rules are known here (nnapi:29, gpu, hexagon, coreml:3, edgetpu,
    xnnpack); `all` shows what becomes of the model in each of its types on each of them.
    """
    forms = [
        n for n, given in (("--text", text), ("--arena", arena), ("--json -", json == "-")) if given
    ]
    if len(forms) > 1:
        raise InputError(f"{' and '.join(forms)} both print the result", fix="choose one")
    if forms:
        # A record, on stdout or in a file, holds the delegation too.
        unread = {"--ops": ops, "--tensors": tensors, "--delegate": not json and delegate}
        warn_unused(unread, f"{forms[0]} prints a form of its own")
    load_plugins(plugin)
    source = load(model)
    with JsonTarget(json) as target:
        shapes = read_shapes(shape)
        record = describe(source, [d for d in delegate if d != ALL], shapes)
        if ALL in delegate:
            record["model_types"] = _model_types(source)
        _add_rewrites(record, source)
        if target.write(record):
            return
    if text:
        typer.echo(to_text(source), nl=False)
    elif arena:
        _arena(source, shapes)
    else:
        _print(record, ops, tensors, all_)
        _print_types(record.get("model_types"))


def _model_types(source: Model) -> Record:
    from ..optimize.model_types import model_types  # the quantiser, which other answers do not need

    return model_types(source)


def _add_rewrites(record: Record, source: Model) -> None:
    """Name what may stand in the place of ops that an accelerator's rules refuse."""
    answers = [a for of_graph in record.get("accelerators", ()) for a in of_graph]
    answers += [a for a in record.get("delegates", ()) if a["delegate"] in RULES]
    refusing = {_rules(a) for a in answers if _has_refused(a)}
    if not refusing:
        return
    from ..rewrites.driver import rewrites_to_try  # the quantiser, as above

    found = {name: rewrites_to_try(source, name) for name in refusing}
    for a in answers:
        a["rewrites"] = found[_rules(a)] if _has_refused(a) else []


def _has_refused(answer: Record) -> bool:
    return any(op["refusals"] for op in answer["ops"])


def _rules(answer: Record) -> str:
    """The name under which `rewrite` knows who answered."""
    name: str = answer["delegate"]
    return RULES.get(name, name)


def _arena(source: Model, shapes: Mapping[str, Shape]) -> None:
    for known in known_shapes(source, shapes):
        laid = (
            _unknown(known.problem, known.is_legal)
            if known.problem
            else plan_graph(known.graph).table()
        )
        typer.echo(f"graph {clean(known.given.name)}\n{laid}")


def _unknown(problem: str, is_legal: bool) -> str:
    """Other shapes are of no use to an op that does not take its types."""
    on, do = (" on these shapes", "; --shape NAME=1,2,3 gives others") if is_legal else ("", "")
    return f"it does not run{on}, so its MACs, bytes and arena are not known: {clean(problem)}{do}"


def _print(record: Record, ops: bool, tensors: bool, all_: bool) -> None:
    """Graphs that would look the same but for names are shown once: files may hold very many."""
    typer.echo(_summary(record))
    graphs = record["graphs"]
    given = [_answers(record, i) for i in range(len(graphs))]
    shown = [_block(g, d, ops, tensors) for g, d in zip(graphs, given, strict=True)]
    bare = [_block(*_unnamed(g, d), ops, tensors) for g, d in zip(graphs, given, strict=True)]
    firsts = [number if all_ else bare.index(text) for number, text in enumerate(bare)]
    for first, members in groupby(range(len(graphs)), firsts.__getitem__):
        numbers = list(members)
        if first == numbers[0]:
            number = f"{numbers.pop(0)} " * (len(graphs) > 1)
            typer.echo(f"\ngraph {number}{shown[first]}")
        if numbers:
            typer.echo(
                f"\n{_same(numbers, first)} ({plural(len(graphs[first]['ops']), 'op')} "
                "each); --all shows everything"
            )


def _answers(record: Record, number: int) -> list[Record]:
    """What delegates and accelerators said of one graph."""
    ours = [record["delegates"][number]] if "delegates" in record else []
    return [*ours, *(record["accelerators"][number] if "accelerators" in record else ())]


def _print_types(found: Record | None) -> None:
    """The guide's table of model types and accelerators, for this model."""
    if found is None:
        return
    columns = found["accelerators"]
    rows = [(r["type"], *(_mark(r["cells"][c]) for c in columns)) for r in found["rows"]]
    refused = [
        (r["type"], c, cell)
        for r in found["rows"]
        for c, cell in r["cells"].items()
        if cell["reason"]
    ]
    sources = _numbered(cell["source"] for *_, cell in refused)
    reasons = [(kind, c, _cited(cell, sources)) for kind, c, cell in refused]
    typer.echo(
        f"\nmodel types (this file: {found['own']}): whether most of the work is taken, and the "
        "share of ops\n"
    )
    typer.echo("\n\n".join(filter(None, [table(["model type", *columns], rows), _footnote(found)])))
    typer.echo("\n" + table(["model type", "on", "|most of what is refused"], reasons, 2))
    typer.echo("\n" + _bibliography(sources))
    if found["problem"]:
        typer.echo(f"\n{found['problem']}")


def _mark(cell: Record) -> str:
    star = "*" * (cell["taken"] != cell["by_rules"])
    return f"{'yes' if cell['taken'] else 'no'} {cell['ops']:.0%}{star}"


def _footnote(found: Record) -> str:
    """Where the guide and the rules differ."""
    cells = [(r["type"], c, cell) for r in found["rows"] for c, cell in r["cells"].items()]
    notes = [
        f"* {kind} on {c}: no, says the guide, which speaks of older releases; by the rules of "
        f"today's ({found['names'][c]}) this share of ops is taken"
        for kind, c, cell in cells
        if cell["taken"] != cell["by_rules"]
    ]
    return "\n".join(map(_fitted, notes))


def _same(numbers: Sequence[int], first: int) -> str:
    some = (
        f"graph {numbers[0]} is"
        if len(numbers) == 1
        else (f"graphs {numbers[0]} to {numbers[-1]} are")
    )
    return f"{some} the same as graph {first} but for names"


def _unnamed(graph: Record, answers: Sequence[Record]) -> tuple[Record, list[Record]]:
    """What tells one graph from another, whatever they and their tensors are called."""
    plain = graph | {"name": "", "tensors": [t | {"name": ""} for t in graph["tensors"]]}
    return plain, [a | {"ops": [op | {"output": ""} for op in a["ops"]]} for a in answers]


def _block(graph: Record, answers: Sequence[Record], ops: bool, tensors: bool) -> str:
    """All that is said about one graph."""
    pieces = [_graph(graph), _types(graph)]
    pieces += [_ops(graph)] if ops else []
    pieces += [_tensors(graph)] if tensors else []
    pieces += [piece for answer in answers for piece in _delegation(answer, ops)]
    return "\n\n".join(filter(None, pieces))


def _summary(record: Record) -> str:
    rows = [
        ("file", f"{record['source']} ({byte_size(record['file_bytes'])})"),
        ("description", record["description"] or "-"),
        ("quantisation", record["quantisation"]),
        ("parameters", f"{si(record['parameters'])} in {byte_size(record['weight_bytes'])}"),
        ("MACs", "not known" if record["macs"] is None else si(record["macs"])),
        ("graphs", len(record["graphs"])),
    ]
    for s in record["signatures"]:
        takes, gives = ", ".join(s["inputs"]), ", ".join(s["outputs"])
        rows.append(("signature", f"{s['key']}({takes}) -> {gives}"))
    rows += [
        ("metadata", f"{name} ({byte_size(count)})") for name, count in record["metadata"].items()
    ]
    rows += [("not understood", place) for place in record["unknown"]]
    return facts(rows)


def _graph(graph: Record) -> str:
    start = f"'{clean(graph['name'])}': {plural(len(graph['ops']), 'op')}"
    if graph["problem"]:
        lines = [f"{start}; {_unknown(graph['problem'], graph['legal'])}"]
    else:
        used, all_ = byte_size(graph["arena_bytes"]), byte_size(graph["arena_bytes_without_reuse"])
        lines = [
            f"{start}, {si(graph['macs'])} MACs, arena of a run op by op {used} ({all_} "
            "without re-use)"
        ]
        if graph["uncounted"]:
            lines.append(
                f"  not counted: {plural(graph['uncounted'], 'op')} whose shapes are "
                "known only in the run"
            )
        lines += [
            f"  sizes are open, figures are those of input {clean(text)}; --shape gives others"
            for text in graph["open"]
        ]
    for kind in ("inputs", "outputs"):
        lines += [_tensor_line(kind[:-1], graph["tensors"][index]) for index in graph[kind]]
    return "\n".join(lines)


def _tensor_line(kind: str, tensor: Record) -> str:
    start = f"  {kind:<7}#{tensor['index']} "
    end = f": {_type(tensor)} {_quant(tensor)}".rstrip()
    name = clean(tensor["name"])
    room = max(width() - len(start) - len(end), 12) if width() else IN_FILES
    return start + shorten(name, room) + end


def _types(graph: Record) -> str:
    def moved(count: int) -> str:
        return "-" if graph["problem"] else byte_size(count)

    rows = [
        (
            t["name"] + _unsupported(t),
            t["count"],
            _count(t["macs"]),
            _count(t["parameters"]),
            moved(t["bytes_read"]),
            moved(t["bytes_written"]),
        )
        for t in graph["types"]
    ]
    return table(["~op type", ">count", ">MACs", ">parameters", ">read", ">written"], rows)


def _ops(graph: Record) -> str:
    columns = [">#", "~op", "~type", ">MACs", ">params", ">bytes", "~output"]
    return table(columns, [_op_row(op, graph["tensors"]) for op in graph["ops"]])


def _op_row(op: Record, tensors: list[Record]) -> tuple[object, ...]:
    first = tensors[op["outputs"][0]]["name"] if op["outputs"] else ""
    return (
        op["index"],
        op["name"] + _unsupported(op),
        " ".join(op["output_types"]),
        _count(op["macs"]),
        _count(op["parameters"]),
        byte_size(op["bytes_read"] + op["bytes_written"]),
        first,
    )


def _unsupported(op: Record) -> str:
    if op["supported"]:
        return ""
    is_flex = op["name"].startswith("custom.Flex")
    return " (for the delegate flex)" if is_flex else " (not supported)"


def _count(number: int) -> str:
    return si(number) if number else "-"


def _tensors(graph: Record) -> str:
    columns = [">#", "type", "role", ">bytes", "~quantisation", "~tensor"]
    return table(columns, [_tensor_row(t) for t in graph["tensors"]])


def _tensor_row(tensor: Record) -> tuple[object, ...]:
    return (
        tensor["index"],
        _type(tensor),
        tensor["role"],
        byte_size(tensor["bytes"]),
        _short_quant(tensor),
        tensor["name"],
    )


def _type(tensor: Record) -> str:
    return tensor["type_text"] + (" sparse" if tensor["sparse"] else "")


def _quant(tensor: Record) -> str:
    q = tensor["quantisation"]
    if q is None:
        return ""
    if q["block_size"]:
        return f"blocks of {q['block_size']}"
    if q["axis"] is not None:
        low, high = min(q["scale"]), max(q["scale"])
        return f"per-axis {q['axis']}: {len(q['scale'])} scales, {low:.3g} to {high:.3g}"
    return f"scale {q['scale'][0]:.6g}, zero point {q['zero_point'][0]}"


def _short_quant(tensor: Record) -> str:
    q = tensor["quantisation"]
    if q is None or q["block_size"]:
        return _quant(tensor)
    if q["axis"] is not None:
        return f"{len(q['scale'])} on axis {q['axis']}"
    return f"{q['scale'][0]:.4g} zero {q['zero_point'][0]}"


def _delegation(record: Record, every: bool) -> list[str]:
    """Who runs what, and why not another: of delegates that are here, and of those that are known
    by their rules. every: ops that nobody refused, too."""
    sources = _numbered(r.get("source") for op in record["ops"] for r in op["refusals"])
    rows = [
        (op["index"], op["name"], r["delegate"], op["output"], _cited(r, sources))
        for op in record["ops"]
        for r in op["refusals"] or [{"delegate": "", "reason": _accepted(op)}] * every
    ]
    columns = ["op", "refused by", "~output", "|because"]
    refused = (
        table([">#", *columns], rows) if every else table(["%#", ">ops", *columns], _grouped(rows))
    )
    lines = [_parts(record), refused]
    lines += [_bibliography(sources)] if sources else []
    lines = list(filter(None, [*lines, _rewrites(record)]))
    lines += [_borders(record["crossing"])] if record["taken"] else []
    return [*lines, *_device(record)]


def _parts(record: Record) -> str:
    """Who runs how much; where somebody can run nothing here, what is so by the rules alone."""
    parts = ", ".join(f"{plural(p['ops'], 'op')} on {p['delegate']}" for p in record["parts"])
    said = [f"{plural(len(record['parts']), 'part')}: {parts}"] if parts else []
    if record["folded"]:
        are = "is" if record["folded"] == 1 else "are"
        said.append(f"{plural(record['folded'], 'op')} of constants {are} computed once")
    text = "; ".join(said) or "no ops"
    lacks = record.get("lacks")
    if not lacks:
        return _fitted(f"delegation: {text}")
    return "\n".join([_fitted(f"delegation: {lacks}"), _fitted(f"by its rules alone: {text}")])


def _accepted(op: Record) -> str:
    """What is said of an op that nobody refuses."""
    return "yes, computed once" if op["delegate"] == FOLDED else "yes"


MOST_HINTS = 6


def _device(record: Record) -> list[str]:
    """What the gpu delegate adds: an estimate, and channels that cost more than they are."""
    found = record.get("estimate")
    lines = [_fitted(found["text"])] if found else []
    lines += ["\n".join(map(_fitted, record["remarks"]))] if record.get("remarks") else []
    hints = record.get("hints", [])
    rows = [
        (", ".join(map(str, h["shape"])), byte_size(h["wasted"]), h["tensor"], h["text"])
        for h in hints[:MOST_HINTS]
    ]
    if rows:
        lines.append(table(["shape", ">wasted", "~tensor", "|channels in slices of four"], rows))
    if len(hints) > MOST_HINTS:
        lines.append(f"(and {plural(len(hints) - MOST_HINTS, 'more tensor')}: see --json)")
    return lines


def _grouped(rows: Iterable[Sequence[Any]]) -> list[tuple[object, ...]]:
    """Ops of one kind that are refused for one reason are one row, with the first one's output."""
    kinds: dict[tuple[object, ...], list[tuple[Any, str]]] = {}
    for place, name, by, output, because in rows:
        kinds.setdefault((name, by, because), []).append((place, output))
    return [
        (", ".join(str(place) for place, _ in at), len(at), name, by, at[0][1], because)
        for (name, by, because), at in kinds.items()
    ]


def _rewrites(record: Record) -> str:
    names = record.get("rewrites")
    if not names:
        return ""
    verb = f"`sanderling rewrite MODEL --for {_rules(record)}`"
    return _fitted(f"rewrites to try ({verb}): {', '.join(names)}")


def _fitted(text: str) -> str:
    """A sentence in the width of the terminal; what goes on is indented."""
    indent = "  "
    return f"\n{indent}".join(wrapped(text, width() - len(indent))) if width() else text


def _numbered(sources: Iterable[str | None]) -> dict[str, int]:
    """Who says so: each source once, with its number."""
    return {source: i for i, source in enumerate(dict.fromkeys(filter(None, sources)), 1)}


def _cited(said: Record, sources: Mapping[str, int]) -> str:
    number = sources.get(said.get("source", ""))
    return f"{said['reason']} [{number}]" if number else said["reason"]


def _bibliography(sources: Mapping[str, int]) -> str:
    return "\n".join(f"[{number}] {source}" for source, number in sources.items())


def _borders(crossing: Record) -> str:
    kinds = (("inner", "only because ops are refused"), ("state", "because they are states"))
    some = [
        f"{_tensors_of(crossing, f'{kind}_')} {why}"
        for kind, why in kinds
        if crossing[f"{kind}_tensors"]
    ]
    cost = crossing["estimated_us"]
    return _fitted(
        f"borders: {_tensors_of(crossing)} in a run"
        + (f", of which {' and '.join(some)}" if some else "")
        + ("" if cost is None else f"; estimated at {cost / 1e3:.2f} ms")
    )


def _tensors_of(crossing: Record, kind: str = "") -> str:
    """How many cross, and their bytes; kind: the beginning of the two names in the record."""
    count = plural(crossing[f"{kind}tensors"], "tensor")
    return f"{count} of {byte_size(crossing[f'{kind}bytes'])}"

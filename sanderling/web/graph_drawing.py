"""A model's graph as SVG: ops from top to bottom, coloured by latency, error or delegate.

Colours are classes (`heat-0` to `heat-9`, `kind-0` to `kind-7`): the style sheet has them, in a
light and a dark form, and every coloured op says its figure in words too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..glyphs import shorten
from .markup import Markup, tag, text
from .view import seconds

MOST = 1500  # ops that are drawn
WIDTH, HEIGHT, ACROSS, DOWN = 210, 46, 236, 70  # of an op, and from op to op
MARGIN = 12
HEATS, KINDS = 10, 8
TYPE, NAME = 28, 18  # letters of an op and of its result in a box


@dataclass
class Node:
    """An op: what it is, whose results it reads, and what is known of it."""

    index: int
    type: str
    name: str
    reads: list[int]
    latency: float | None = None  # seconds
    error: float | None = None  # against the size of its values
    delegate: str = ""


@dataclass
class Drawing:
    """Nodes with their places: `row` and `column` of each."""

    nodes: list[Node]
    places: dict[int, tuple[int, int]] = field(default_factory=dict)


def nodes_of(graph: Mapping[str, Any]) -> list[Node]:
    """The ops of a graph of an `inspect` record."""
    tensors = {t["index"]: str(t["name"]) for t in graph["tensors"]}
    makers = {t: op["index"] for op in graph["ops"] for t in op["outputs"]}
    return [
        Node(
            int(op["index"]),
            str(op["name"]),
            tensors.get(op["outputs"][0], "") if op["outputs"] else "",
            sorted({makers[t] for t in op["inputs"] if t in makers and makers[t] < op["index"]}),
        )
        for op in graph["ops"]
    ]


# -- figures of nodes -----------------------------------------------------------------------------


def add_profile(nodes: Sequence[Node], profile: Mapping[str, Any]) -> None:
    """A step's time belongs to its ops in equal shares; steps that help another belong to its."""
    known = {n.index: n for n in nodes}
    steps = profile["steps"]
    for step in steps:
        owner = steps[step["helps"]] if step["helps"] is not None else step
        own = [known[i] for i in owner["nodes"] if i in known]
        for node in own:
            node.latency = (node.latency or 0.0) + step["median_ms"] / 1e3 / len(own)
            node.delegate = str(step["delegate"])
    for index in profile["free"]:
        if index in known:
            known[index].latency = 0.0


def add_errors(nodes: Sequence[Node], layers: Sequence[Mapping[str, Any]]) -> None:
    """What each op adds to the error, as `diff --per-tensor` found it."""
    known = {n.index: n for n in nodes}
    for row in layers:
        node = known.get(row["index"])
        if node is not None:
            node.error = float(row["local"]["rmse"]) / max(float(row["local"]["largest"]), 1e-30)


# -- colours --------------------------------------------------------------------------------------


def heat(value: float | None, most: float) -> str:
    """The class of a figure: the square root spreads the small ones, which are many."""
    if value is None or not most > 0:
        return "heat-none"
    share = max(0.0, min(1.0, value / most)) ** 0.5
    return f"heat-{min(HEATS - 1, int(share * HEATS))}"


def colours(nodes: Sequence[Node], by: str) -> dict[int, str]:
    """The class of each node."""
    if by == "delegate":
        names = sorted({n.delegate for n in nodes if n.delegate})
        kinds = {name: f"kind-{i % KINDS}" for i, name in enumerate(names)}
        return {n.index: kinds.get(n.delegate, "heat-none") for n in nodes}
    values = {n.index: n.latency if by == "latency" else n.error for n in nodes}
    top = max((v for v in values.values() if v is not None), default=0.0)
    return {i: heat(v, top) for i, v in values.items()}


def figure_text(node: Node, by: str) -> str:
    """What a colour means, in words."""
    if by == "latency":
        return "" if node.latency is None else seconds(node.latency) if node.latency else "no time"
    if by == "error":
        return "" if node.error is None else f"error {node.error:.2g}"
    return node.delegate


# -- places ---------------------------------------------------------------------------------------


def placed(nodes: Sequence[Node]) -> Drawing:
    """Each op one row below the last that it reads; in the column of the first, if that is free."""
    drawing = Drawing(list(nodes))
    taken: dict[int, set[int]] = defaultdict(set)
    for node in nodes:
        above = [drawing.places[i] for i in node.reads if i in drawing.places]
        row = 1 + max((r for r, _ in above), default=-1)
        column = min((c for _, c in above), default=0)
        while column in taken[row]:
            column += 1
        taken[row].add(column)
        drawing.places[node.index] = row, column
    return drawing


def svg(nodes: Sequence[Node], by: str, title: str) -> Markup:
    """The whole graph."""
    drawing = placed(nodes[:MOST])
    classes = colours(nodes, by)
    rows = 1 + max((r for r, _ in drawing.places.values()), default=0)
    columns = 1 + max((c for _, c in drawing.places.values()), default=0)
    width, height = columns * ACROSS + 2 * MARGIN, rows * DOWN + 2 * MARGIN
    edges = [_edge(drawing, n, i) for n in drawing.nodes for i in n.reads if i in drawing.places]
    boxes = [_box(drawing, n, classes[n.index], by) for n in drawing.nodes]
    return tag(
        "svg",
        tag("title", title),
        tag("g", *edges, class_="edges"),
        *boxes,
        class_="graph",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        aria_label=title,
    )


def _corner(drawing: Drawing, index: int) -> tuple[int, int]:
    row, column = drawing.places[index]
    return MARGIN + column * ACROSS, MARGIN + row * DOWN


def _edge(drawing: Drawing, node: Node, maker: int) -> Markup:
    """Straight to the next row; a longer way bends to the right of what lies between."""
    (x0, y0), (x1, y1) = _corner(drawing, maker), _corner(drawing, node.index)
    start, end = (x0 + WIDTH // 2, y0 + HEIGHT), (x1 + WIDTH // 2, y1)
    if y1 - y0 <= DOWN:
        middle = (start[1] + end[1]) // 2
        path = f"M{start[0]} {start[1]}C{start[0]} {middle} {end[0]} {middle} {end[0]} {end[1]}"
    else:
        side = max(x0, x1) + WIDTH + (ACROSS - WIDTH) // 2
        path = (
            f"M{start[0]} {start[1]}C{side} {start[1] + 12} {side} {start[1]} {side} "
            f"{start[1] + DOWN // 2}V{end[1] - DOWN // 2}C{side} {end[1]} {side} {end[1] - 12} "
            f"{end[0]} {end[1]}"
        )
    return tag("path", d=path)


def _box(drawing: Drawing, node: Node, kind: str, by: str) -> Markup:
    x, y = _corner(drawing, node.index)
    said = " ".join(filter(None, (f"{node.index} {node.type}", figure_text(node, by))))
    return tag(
        "g",
        tag("title", f"{said} {node.name}"),
        tag("rect", width=WIDTH, height=HEIGHT, rx=5),
        tag("text", text(shorten(f"{node.index} {node.type}", TYPE)), x=8, y=19),
        tag("text", text(shorten(node.name, NAME)), x=8, y=37, class_="name"),
        tag("text", figure_text(node, by), x=WIDTH - 8, y=37, class_="figure"),
        class_=f"node {kind}",
        transform=f"translate({x} {y})",
    )

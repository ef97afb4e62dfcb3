"""`sanderling inspect`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from ..format import load
from ..ir.text import to_text
from ..measure import inspect as describe
from ..runtime.arena import plan_graph
from .common import DelegateNames, JsonPath, ModelPath, console, si, size, table, write_json

Record = dict[str, Any]


def inspect(
    model: ModelPath,
    json: JsonPath = "",
    text: Annotated[bool, typer.Option("--text", help="Print the graph's text form.")] = False,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    arena: Annotated[bool, typer.Option("--arena", help="Print where tensors lie.")] = False,
    delegate: DelegateNames = [],  # noqa: B006  typer reads the default, nobody changes it
) -> None:
    """Show what a model is made of: ops, tensors, parameters, MACs, quantisation, signatures.

    With --delegate, show also which ops it takes and why it refuses the others.
    """
    source = load(model)
    record = describe(source, delegate)
    if write_json(record, json):
        return
    if text:
        typer.echo(to_text(source))
        return
    if arena:
        for graph in source.graphs:
            typer.echo(f"graph {graph.name}\n{plan_graph(graph).table()}")
        return
    out = console()
    _summary(out, record)
    for index, graph in enumerate(record["graphs"]):
        _graph(out, graph, tensors)
        if delegate:
            _delegation(out, record["delegates"][index])


def _summary(out: Console, record: Record) -> None:
    rows = [
        ("file", f"{record['source']} ({size(record['file_bytes'])})"),
        ("description", record["description"] or "-"),
        ("quantisation", record["quantisation"]),
        ("parameters", f"{si(record['parameters'])} in {size(record['weight_bytes'])}"),
        ("MACs", si(record["macs"])),
        ("graphs", len(record["graphs"])),
    ]
    for s in record["signatures"]:
        takes, gives = ", ".join(s["inputs"]), ", ".join(s["outputs"])
        rows.append(("signature", f"{s['key']}({takes}) -> {gives}"))
    rows += [("metadata", f"{name} ({size(count)})") for name, count in record["metadata"].items()]
    rows += [("not understood", place) for place in record["unknown"]]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        out.print(f"{name:<{width}}  {value}")


def _graph(out: Console, graph: Record, with_tensors: bool) -> None:
    rows = graph["tensors"]
    out.print()
    out.print(f"graph '{graph['name']}': {len(graph['ops'])} ops, {si(graph['macs'])} MACs, arena "
              f"{size(graph['arena_bytes'])} ({size(graph['arena_bytes_without_reuse'])} without "
              "re-use)")  # fmt: skip
    for kind in ("inputs", "outputs"):
        for index in graph[kind]:
            out.print(f"  {kind[:-1]:<7}{_tensor_line(rows[index])}")
    out.print(table("", ["op type", ">count"], graph["ops_by_type"].items()))
    out.print(table("", [">#", "op", "output", "type", ">MACs", ">parameters", ">read", ">written"],
                    [_op_row(op, rows) for op in graph["ops"]]))  # fmt: skip
    if with_tensors:
        columns = [">#", "tensor", "type", "role", ">bytes", "quantisation", ">offset"]
        out.print(table("", columns, [_tensor_row(t) for t in rows]))


def _op_row(op: Record, tensors: list[Record]) -> tuple[object, ...]:
    first = tensors[op["outputs"][0]]["name"] if op["outputs"] else ""
    mark = "" if op["supported"] else " (not supported)"
    counts = (si(op[k]) if op[k] else "-" for k in ("macs", "parameters"))
    return (op["index"], op["name"] + mark, first, " ".join(op["output_types"]), *counts,
            size(op["bytes_read"]), size(op["bytes_written"]))  # fmt: skip


def _tensor_row(tensor: Record) -> tuple[object, ...]:
    place = "-" if tensor["arena_offset"] is None else tensor["arena_offset"]
    return (tensor["index"], tensor["name"], _type(tensor), tensor["role"], size(tensor["bytes"]),
            _quant(tensor), place)  # fmt: skip


def _tensor_line(tensor: Record) -> str:
    return f"#{tensor['index']} {tensor['name']}: {_type(tensor)} {_quant(tensor)}"


def _type(tensor: Record) -> str:
    sizes = ",".join(map(str, tensor["signature"] or tensor["shape"]))
    return f"{tensor['type']}[{sizes}]" + (" sparse" if tensor["sparse"] else "")


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


def _delegation(out: Console, record: Record) -> None:
    parts = ", ".join(f"{p['ops']} ops on {p['delegate']}" for p in record["parts"])
    out.print(f"delegation: {len(record['parts'])} parts: {parts}")
    rows = [(op["index"], op["name"], op["output"], r["delegate"], r["reason"])
            for op in record["ops"] for r in op["refusals"]]  # fmt: skip
    if rows:
        out.print(table("refused", [">#", "op", "output", "by", "because"], rows))

"""Looking inside: every stage of a part's compilation as a file of its own.

SANDERLING_DUMP=DIR, or CpuDelegate(dump=DIR), makes a folder per part:

    00_given.txt 01_fold_constants.txt ...   the graph before and after each pass
    steps.txt                                steps, kernels, places, costs
    module.ll module.opt.ll code.s           LLVM IR as emitted, after clean-up, and the assembly
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from ....ir import Graph, Op, Tensor
from ....ir.expr import Expr
from ....ir.graph import copy_graph
from ....tables import aligned
from ..dialect.chains import CHAIN, Chain
from ..dialect.fused import FUSED, Fused
from ..dialect.guards import GUARD
from ..isa.targets import Target
from ..runtime.abi import ARENA, FIRST_ARG

Row = Mapping[str, str]
COLUMNS = ("step", "op", "inputs", "outputs", "macs", "fused")
LONGEST = 80  # letters of what is fused in, in the table


class Dump:
    """Writes the stages of one part into a folder; without a folder it does nothing."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.stage = 0
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def text(self, name: str, make: Callable[[], str]) -> None:
        if self.folder is not None:
            (self.folder / name).write_text(make(), "utf-8")

    def graph(self, stage: str, graph: Graph) -> None:
        if self.folder is not None:
            self.text(f"{self.stage:02}_{stage}.txt", lambda: _graph_text(graph))
        self.stage += 1

    def steps(self, rows: Callable[[], Sequence[Row]], arena: int, scratch: int) -> None:
        self.text(
            "steps.txt",
            lambda: f"arena {arena} bytes, scratch {scratch} bytes a worker\n\n{table(rows())}\n",
        )

    def code(self, module: object, target: Target) -> None:
        """module: of llvmlite. Its functions are compiled in pieces; here they are in one."""
        if self.folder is not None:
            from ..codegen.jit import assembly, optimise

            text = str(module)
            self.text("module.ll", lambda: text)
            self.text("module.opt.ll", lambda: str(optimise(text, target)[0]))
            self.text("code.s", lambda: assembly(text, target))


def _graph_text(graph: Graph) -> str:
    """The text form; attributes that have none (expressions, records) as they print."""
    from ....ir.text import to_text

    shown, _ = copy_graph(graph, graph.ops, graph.inputs, graph.outputs)
    for op in shown.ops:
        op.attrs = {k: _attr_text(k, v) for k, v in op.attrs.items()}
    return to_text(shown)


def _attr_text(name: str, value: object) -> object:
    return str(value) if isinstance(value, Expr | Fused | Chain) or name == GUARD else value


def fused_text(op: Op) -> str:
    """What is fused into an op, for the table of steps."""
    return shorten(str(op.attrs.get(FUSED, op.attrs.get(CHAIN, ""))), LONGEST, placeholder=" ...")


def folder_for(root: str, part: Graph, key: str) -> Path:
    """A folder's name says which graph, how large, and which content."""
    name = "".join(c if c.isalnum() else "_" for c in part.name)[:40]
    return Path(root).expanduser() / f"{name}_{len(part.ops)}ops_{key[:12]}"


def table(rows: Sequence[Row], columns: Sequence[str] = COLUMNS) -> str:
    """Rows for people, columns aligned."""
    lines = [list(columns), *([row.get(c, "") for c in columns] for row in rows)]
    return aligned(lines, columns)


def types_text(tensors: Iterable[Tensor | None], places: Mapping[Tensor, Any]) -> str:
    """`u8[1,7,7,64]@arena+4096`: type, shape and place of each tensor."""
    return " ".join(f"{t.type_text}@{_place_text(places.get(t))}" for t in tensors if t is not None)


def _place_text(place: Any) -> str:
    if place is None:
        return "weights"
    if place.slot == ARENA:
        return f"arena+{place.offset}" + f"/{place.pitch}" * bool(place.pitch)
    return (
        f"array{place.slot - FIRST_ARG}+{place.offset}"
        if place.offset
        else f"array{place.slot - FIRST_ARG}"
    )

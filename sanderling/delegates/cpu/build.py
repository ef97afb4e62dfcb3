"""From a part of a graph to machine code: prepare, place, emit, compile, link."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ...errors import DelegateError
from ...ir import Graph, Op, Tensor
from ...ops import cost
from ...passes.common import Watch
from ...spans import span
from ..origins import Origins
from .codegen.compiling import Crew
from .codegen.pieces import Pieces
from .codegen.program import Program, StepError
from .dialect.chains import CHAIN
from .dialect.fused import unfused, where
from .isa.targets import Target
from .kernels.products.zeros import judge
from .kernels.row import UNKNOWN
from .passes.pipeline import prepare
from .runtime.cache import Cache
from .runtime.executable import Compiled, aligned
from .runtime.image import Image
from .steps.dump import Dump, fused_text, types_text
from .steps.phases import phases
from .steps.placement import free_from, is_free, place
from .steps.sync import emit_run
from .table import row_of

# What is called from outside.
ENTRIES = ("call", "invoke", "serve", "stop", "clock")  # clock: of traced code

# Multiply-adds of a step whose tiles are compiled apart: it takes microseconds, a call a few ns.
LARGE = 500_000


@dataclass(frozen=True)
class Settings:
    """What a part is compiled for, at which precision; part of the cache's key."""

    target: Target
    timed: bool = False
    traced: bool = False  # note when each step begins and ends on each worker
    checked: bool = False  # test every access to memory


def build(part: Graph, settings: Settings, dump: Dump, cache: Cache) -> Compiled:
    """From a part to machine code. The part is changed on the way. cache: of pieces."""
    work = sum(map(effort, part.ops))
    sizes = tuple(t.dtype.nbytes(t.shape) for t in (*part.inputs, *part.outputs))
    origins = Origins(part)
    try:
        program, arena = lower(part, settings, dump)
    except StepError as error:
        error.ops = origins.under(error.op)
        raise
    with Crew(settings.target, quick=settings.checked) as crew:
        large = {s.body for s in program.steps if is_large(s.op)}
        image = Pieces(program.module, settings.target, crew, cache, large).image()
    cache.store_pieces(crew.made)
    dump.code(program.module, settings.target)
    image = Image(image.code, {n: at for n, at in image.entries.items() if n in ENTRIES})
    weights = aligned(len(program.weights.blob))
    weights[: len(program.weights.blob)] = np.frombuffer(program.weights.blob, np.uint8)
    names = tuple(s.function for s in program.steps)
    floor = free_from(part, program.places, {s.op for s in program.steps if s.scratch})
    done = origins.of(step.op for step in program.steps)
    report = [row | about for row, about in zip(describe(program), done, strict=True)]
    return Compiled(
        image,
        weights,
        arena,
        program.scratch,
        names,
        len(sizes),
        work,
        settings.timed,
        tuple(report),
        floor=floor,
        traced=settings.traced,
        sizes=sizes,
        sites=tuple(program.sites),
        units=tuple(sum(p.pieces) for p in program.phases),
        works=tuple(p.nanoseconds for p in program.phases),
    )


def effort(op: Op) -> int:
    """Multiply-adds, or what moving the bytes takes instead of them."""
    found = cost(op)
    return max(found.macs, found.bytes_written)


def is_large(op: Op) -> bool:
    """Whether calls of its tiles do not count. Layers are chained where they are large."""
    return CHAIN in op.attrs or multiply_adds(op) >= LARGE


def multiply_adds(op: Op) -> int:
    """The multiply-adds of a step."""
    return cost(unfused(op), lowered=True).macs


def describe(program: Program) -> list[dict[str, str]]:
    """The steps for people: what they do, with which kernel, from where to where, and the bytes
    that they touch."""
    return [
        {
            "step": step.function,
            "kernel": step.kernel,
            "op": where(step.op),
            "inputs": types_text(step.op.inputs, program.places),
            "outputs": types_text(step.op.outputs, program.places),
            "macs": str(multiply_adds(step.op)),
            "weights": str(step.weights),
            "reads": str(_bytes(step.op.inputs)),
            "writes": str(_bytes(step.op.outputs)),
            "fused": fused_text(step.op),
            "zeros": zeros_text(step.op, program.target),
        }
        for step in program.steps
    ]


def zeros_text(op: Op, target: Target) -> str:
    """How many zeros a product has, and whether they are left out; empty where it has few."""
    return str(judge(op, target) or "")


def _bytes(tensors: Iterable[Tensor | None]) -> int:
    """The bytes of activations; constants are counted as they are packed."""
    return sum(t.nbytes for t in tensors if t is not None and not t.is_constant)


def watch_for(settings: Settings, dump: Dump) -> Watch:
    """Who looks on while passes run: the dump, and in a checked build the rules of the dialect."""
    if not settings.checked:
        return dump.graph
    from .dialect.verify import check

    def look(name: str, graph: Graph) -> None:
        dump.graph(name, graph)
        check(graph, name)

    return look


def lower(part: Graph, settings: Settings, dump: Dump) -> tuple[Program, int]:
    """The part as a program with its module written; and the bytes of its arena."""
    dump.graph("given", part)
    prepare(part, settings.target, watch_for(settings, dump))
    with span("place tensors", "compile"):
        places, arena = place(part)
    program = Program(
        part,
        settings.target,
        places,
        timed=settings.timed,
        traced=settings.traced,
        checked=settings.checked,
    )
    with span("emit kernels", "compile"):
        for op in part.ops:
            row = row_of(op)
            if row is UNKNOWN:
                raise DelegateError(f"{op.name} has no kernel", where=where(op))
            if not is_free(op, places):
                program.add_step(op, row.name(op), row.emit)
        program.phases = phases(program)
        emit_run(program)
    dump.steps(lambda: describe(program), arena, program.scratch)
    return program, arena

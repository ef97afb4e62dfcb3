"""From a part of a graph to machine code: prepare, place, emit, compile, link."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...errors import DelegateError
from ...ir import Graph, Op
from ...ops import cost
from .dump import Dump, types_text
from .executable import Compiled, aligned
from .image import Image, link
from .jit import compile_modules
from .kernels import KERNELS
from .placement import free_from, is_free, place
from .prepare import prepare
from .program import Program
from .sync import emit_run
from .targets import Target

# What is called from outside.
ENTRIES = ("invoke", "serve", "stop")


@dataclass(frozen=True)
class Settings:
    """What a part is compiled for, at which precision; part of the cache's key."""

    target: Target
    timed: bool = False


def build(part: Graph, settings: Settings, dump: Dump) -> Compiled:
    """From a part to machine code. The part is changed on the way."""
    work = sum(map(effort, part.ops))
    args = len(part.inputs) + len(part.outputs)
    program, arena = lower(part, settings, dump)
    text = str(program.module)
    dump.text("module.ll", lambda: text)
    dump.code(text, settings.target)
    image = link(compile_modules(text, settings.target))
    image = Image(image.code, {name: image.entries[name] for name in ENTRIES})
    weights = aligned(len(program.weights.blob))
    weights[: len(program.weights.blob)] = np.frombuffer(program.weights.blob, np.uint8)
    names = tuple(s.function for s in program.steps)
    floor = free_from(part, program.places, {s.op for s in program.steps if s.scratch})
    return Compiled(image, weights, arena, program.scratch, names, args, work, settings.timed,
                    tuple(describe(program)), floor=floor)  # fmt: skip


def effort(op: Op) -> int:
    """Multiply-adds, or what moving the bytes takes instead of them."""
    found = cost(op)
    return max(found.macs, found.bytes_written)


def describe(program: Program) -> list[dict[str, str]]:
    """The steps for people: what they do, with which kernel, from where to where."""
    return [
        {
            "step": step.function,
            "kernel": step.kernel,
            "op": step.op.where,
            "inputs": types_text(step.op.inputs, program.places),
            "outputs": types_text(step.op.outputs, program.places),
            "macs": str(cost(step.op).macs),
        }
        for step in program.steps
    ]


def lower(part: Graph, settings: Settings, dump: Dump) -> tuple[Program, int]:
    """The part as a program with its module written; and the bytes of its arena."""
    dump.graph("given", part)
    prepare(part, settings.target, dump.graph)
    places, arena = place(part)
    program = Program(part, settings.target, places, timed=settings.timed)
    for op in part.ops:
        kernel = KERNELS.get(op.name)
        if kernel is None:
            raise DelegateError(f"{op.name} has no kernel", where=op.where)
        if not is_free(op, places):
            program.add_step(op, kernel.name(op), kernel.emit)
    emit_run(program)
    dump.steps(lambda: describe(program), arena, program.scratch)
    return program, arena

"""The `cpu` delegate: refuse, prepare, place, emit, compile."""

from __future__ import annotations

import numpy as np

from ...errors import DelegateError
from ...ir import Graph, Op, Tensor
from ...ops import cost
from ...runtime.arena import Item, plan
from ...runtime.delegate import Executable, Options
from .executable import Compiled, CpuExecutable, aligned
from .image import link
from .jit import compile_object, host_target
from .kernels import KERNELS
from .prepare import VIEWS, prepare
from .program import ARENA, FIRST_ARG, Place, Program
from .sync import emit_run
from .targets import find

# Below this much work a barrier costs more than a second worker brings.
SMALL = 300_000


class CpuDelegate:
    name = "cpu"

    def __init__(self, target: str | None = None, timed: bool = False) -> None:
        self.target = host_target() if target is None else find(target)
        self.timed = timed

    def refuses(self, op: Op) -> str | None:
        kernel = KERNELS.get(op.name)
        if kernel is None:
            return f"{op.name} has no kernel"
        if any(t is not None and t.is_dynamic for t in (*op.inputs, *op.outputs)):
            return "a shape is not known before the run"
        return kernel.refuses(op, self.target)

    def compile(self, part: Graph, options: Options) -> Executable:
        compiled = build(self, part)
        workers = 1 if compiled.macs < SMALL else options.threads
        return CpuExecutable(compiled, workers)


def build(delegate: CpuDelegate, part: Graph) -> Compiled:
    """From a part to machine code."""
    macs = sum(cost(op).macs for op in part.ops)
    args = len(part.inputs) + len(part.outputs)
    program, arena = lower(part, delegate)
    image = link(compile_object(str(program.module), delegate.target))
    weights = aligned(len(program.weights.blob))
    weights[: len(program.weights.blob)] = np.frombuffer(bytes(program.weights.blob), np.uint8)
    names = tuple(s.function for s in program.steps)
    return Compiled(image, weights, arena, program.scratch, names, args, macs, delegate.timed)


def lower(part: Graph, delegate: CpuDelegate) -> tuple[Program, int]:
    """The part as a program with its module written; and the bytes of its arena."""
    prepare(part, delegate.target)
    places, arena = place(part)
    program = Program(part, delegate.target, places, timed=delegate.timed)
    for op in part.ops:
        kernel = KERNELS.get(op.name)
        if kernel is None:
            raise DelegateError(f"{op.name} has no kernel", where=op.where)
        if op.name not in VIEWS or places[op.outputs[0]] != places[_source(op)]:
            program.add_step(op, kernel.name(op), kernel.emit)
    emit_run(program)
    return program, arena


def _source(op: Op) -> Tensor:
    source = op.inputs[0]
    assert source is not None
    return source


def _root(tensor: Tensor, border: set[Tensor]) -> Tensor:
    """The tensor whose bytes a view shows; a tensor of the border stands for itself."""
    while tensor not in border and tensor.producer is not None and tensor.producer.name in VIEWS:
        tensor = _source(tensor.producer)
    return tensor


def place(part: Graph) -> tuple[dict[Tensor, Place], int]:
    """Caller's arrays for the border, arena for the rest; a view lies where its source lies."""
    places = {t: Place(FIRST_ARG + i) for i, t in enumerate((*part.inputs, *part.outputs))}
    border = set(places)
    first: dict[Tensor, int] = {}
    last: dict[Tensor, int] = {}
    for step, op in enumerate(part.ops):
        for tensor in op.outputs:
            first.setdefault(_root(tensor, border), step)
        for used in (*op.inputs, *op.outputs):
            if used is not None:
                last[_root(used, border)] = step
    inner = [t for t in first if t not in places]
    layout = plan([Item(t, t.nbytes + 64, first[t], last[t]) for t in inner])
    places |= {t: Place(ARENA, offset) for t, offset in layout.offsets.items()}
    for op in part.ops:
        for tensor in op.outputs:
            root = _root(tensor, border)
            if root is not tensor and tensor not in places and root in places:
                places[tensor] = places[root]
    return places, layout.size

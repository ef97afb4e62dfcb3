"""A part as a program: values with places, steps with kernels, one module.

    run(worker, workers, context)

calls the steps in order; a step splits its work statically between the workers, and a barrier
stands between steps. The context is a table of pointers: arena, weights, scratch, barrier, then the
caller's arrays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import llvmlite.ir as ir
import numpy as np

from ...ir import Array, Graph, Op, Tensor
from .abi import (  # kernels take them from here
    ALIGN,
    ARENA,  # noqa: F401
    FIRST_ARG,  # noqa: F401
    SCRATCH,
    SLACK,  # noqa: F401
    STRIDE,
    SYNC,  # noqa: F401
    TIMES,  # noqa: F401
    WEIGHTS,
)
from .emit import I8, I64, PTR, VOID, Emitter, Int, Type, Value
from .faults import Site
from .targets import Target


@dataclass(frozen=True)
class Place:
    """Where a value lies: slot of the context, and bytes from there.

    pitch: bytes from row to row (a row is the last axis) where rows lie apart; 0 if they do not.
    """

    slot: int
    offset: int = 0
    pitch: int = 0


def plain(function: ir.Function) -> ir.Function:
    """No exceptions, and no loop turned into a call of memset or memcpy: nobody defines them."""
    function.attributes.add("nounwind")
    set.add(function.attributes, '"no-builtins"')
    return function


@dataclass(frozen=True)
class Kernel:
    """A row of the kernel table.

    emit(k, op) writes the step. refuses(op, target) says why not, of an op as it stands in the
    user's graph (int8, before any pass); None if it is taken. name(op) is the kernel's name in
    profiles and dumps. reads(op): the inputs, and writes(op): whether all outputs may have rows
    that lie apart; the kernel asks k.pitch for them.
    """

    emit: Callable[[StepEmitter, Op], None]
    refuses: Callable[[Op, Target], str | None] = lambda op, target: None
    name: Callable[[Op], str] = lambda op: op.name.lower().replace(".", "_")
    reads: Callable[[Op], Collection[int]] = lambda op: ()
    writes: Callable[[Op], bool] = lambda op: False


@dataclass(eq=False)
class Step:
    """One op of the lowered graph with the name of its kernel."""

    op: Op
    kernel: str
    function: str
    scratch: int = 0  # bytes for each worker
    weights: int = 0  # bytes of constants that it reads


class Weights:
    """The packed constants of a program, each stored once."""

    def __init__(self) -> None:
        self.blob = bytearray()
        self._known: dict[bytes, int] = {}

    def add(self, array: Array) -> int:
        """The offset of these bytes in the blob."""
        raw = np.ascontiguousarray(array).tobytes()
        key = hashlib.blake2b(raw, digest_size=16).digest()
        if key not in self._known:
            self.blob += bytes(-len(self.blob) % ALIGN)
            self._known[key] = len(self.blob)
            self.blob += raw
        return self._known[key]


@dataclass(eq=False)
class Program:
    """Everything a part needs to be emitted, and what emission collects."""

    graph: Graph
    target: Target
    places: dict[Tensor, Place]
    weights: Weights = field(default_factory=Weights)
    scratch: int = 0  # bytes for each worker
    steps: list[Step] = field(default_factory=list)
    timed: bool = False
    traced: bool = False
    sites: list[Site] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.module = ir.Module("sanderling")
        self.module.triple = self.target.triple

    def function(
        self, name: str, args: Sequence[Type], build: Callable[[Emitter], None]
    ) -> ir.Function:
        """A function of the module, written when it is first asked for: kernels share tiles."""
        found = self.module.globals.get(name)
        if found is None:
            found = ir.Function(self.module, ir.FunctionType(VOID, list(args)), name)
            found.linkage = "internal"
            plain(found)
            emitter = Emitter(self.module, found, self.target)
            build(emitter)
            emitter.b.ret_void()
        return found

    def add_step(self, op: Op, kernel: str, emit: Callable[[StepEmitter, Op], None]) -> None:
        """Write the step's function: emit(k, op) fills it."""
        name = f"step{len(self.steps)}_{kernel}"
        function = ir.Function(self.module, ir.FunctionType(VOID, [I64, I64, PTR]), name)
        plain(function)
        function.attributes.add("noinline")
        k = StepEmitter(self, function, op)
        emit(k, op)
        k.b.ret_void()
        for tensor in (*op.inputs, *op.outputs):
            place = None if tensor is None else self.places.get(tensor)
            assert place is None or not place.pitch or tensor in k.asked, f"{kernel}: rows apart"
        self.steps.append(Step(op, kernel, name, k.most_scratch, sum(k.constants.values())))


class StepEmitter(Emitter):
    """An Emitter for a step: it knows where tensors lie and which share of the work is its own."""

    def __init__(self, program: Program, function: ir.Function, op: Op) -> None:
        super().__init__(program.module, function, program.target)
        self.program = program
        self.worker, self.workers, self.context = function.args
        self.asked: set[Tensor] = set()  # tensors whose pitch the kernel knows
        self.most_scratch = 0
        self.constants: dict[int, int] = {}  # bytes, by place among the weights
        self.op = op

    def site(self, kind: str, what: str) -> int:
        """The number under which this step notes what it must not accept: see faults.py."""
        self.program.sites.append({"kind": kind, "op": self.op.where, "what": what})
        return len(self.program.sites) - 1

    def slot(self, index: int) -> Value:
        """A pointer of the context. Ask before a loop, not in it: stores may hide its constancy."""
        return self.load(self.at(self.context, index, PTR), PTR, 8)

    def ptr(self, tensor: Tensor) -> Value:
        """The address of a tensor's first element."""
        if tensor.is_constant and tensor not in self.program.places:
            assert tensor.data is not None
            return self.constant(tensor.data)
        place = self.program.places[tensor]
        return self.at(self.slot(place.slot), place.offset, I8)

    def pitch(self, tensor: Tensor, dense: int) -> int:
        """Bytes from row to row; `dense` where they lie one after the other."""
        self.asked.add(tensor)
        place = self.program.places.get(tensor)
        return place.pitch if place is not None and place.pitch else dense

    def constant(self, array: Array) -> Value:
        """The address of a constant array, put among the weights."""
        offset = self.program.weights.add(array)
        self.constants[offset] = array.nbytes
        return self.at(self.slot(WEIGHTS), offset, I8)

    def scratch(self, size: int) -> Value:
        """This worker's own memory; its contents do not outlive the step."""
        size = -(-size // ALIGN) * ALIGN
        self.most_scratch = max(self.most_scratch, size)
        self.program.scratch = max(self.program.scratch, size)
        stride = self.load(self.at(self.context, STRIDE, I64), I64, 8)
        return self.at(self.slot(SCRATCH), self.mul(self.worker, stride), I8)

    def share(self, units: int) -> tuple[Int, Int]:
        """This worker's range of the units: contiguous, sizes differing by at most one."""
        if units == 1:
            mine = self.b.icmp_signed("==", self.worker, I64(0))
            return 0, self.b.zext(mine, I64)
        begin = self.b.udiv(self.b.mul(self.worker, I64(units)), self.workers)
        after = self.b.add(self.worker, I64(1))
        end = self.b.udiv(self.b.mul(after, I64(units)), self.workers)
        return begin, end

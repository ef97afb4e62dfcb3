"""A part as a program: values with places, steps with kernels, one module.

    step(first, behind, chunks, worker, context)

computes the chunks from `first` on, up to `behind`, of so many of a step; the number of the worker
only tells whose scratch it may use. sync.py hands the chunks out. The context is a table of
pointers: arena, weights, scratch, sync block, then the caller's arrays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import llvmlite.ir as ir
import numpy as np

from ....errors import DelegateError
from ....ir import Array, Graph, Op, Tensor
from ..dialect.fused import where
from ..isa.targets import Target
from ..runtime.abi import (  # kernels take them from here
    ALIGN,
    ARENA,
    FIRST_ARG,  # noqa: F401
    SCRATCH,
    SLACK,  # noqa: F401
    STRIDE,
    SYNC,  # noqa: F401
    TIMES,  # noqa: F401
    WEIGHTS,
)
from ..runtime.faults import Site
from .emit import (
    I8,
    I64,
    PTR,
    VOID,
    ArgumentList,
    Arguments,
    Budget,
    Builder,
    Callee,
    Emitter,
    Int,
    OverBudget,
    Type,
    Value,
    plain,
)
from .extents import CheckedBuilder, Extent

# How many instructions a file can make the compiler write. LLVM takes 3 s for a step of 16,000, and
# more than a minute for one of 60,000. Of the models that are tested with, the longest step has
# 3,000 and the longest part 25,000.
MOST_OF_STEP, MOST_OF_PART = 30_000, 1_000_000
MOST_SCRATCH = 1 << 30  # bytes for each worker
BODY = "body"  # what the functions of steps are called, with the step's number and kernel
CHECKS = 3  # more of them for each, in a checked build


@dataclass(frozen=True)
class Place:
    """Where a value lies: slot of the context, and bytes from there.

    pitch: bytes from row to row (a row is the last axis) where rows lie apart; 0 if they do not.
    """

    slot: int
    offset: int = 0
    pitch: int = 0


def row_bytes(tensor: Tensor) -> int:
    """Bytes of a row: of the last axis."""
    return (tensor.shape[-1] if tensor.shape else 1) * tensor.dtype.bits // 8


def extent_of(tensor: Tensor, pitch: int) -> int:
    """Bytes from a tensor's first to behind its last."""
    if not pitch or not tensor.nbytes:
        return tensor.nbytes
    row = row_bytes(tensor)
    return (tensor.nbytes // row - 1) * pitch + row


def refuses_tensors(op: Op) -> str | None:
    """Why compiled code cannot hold an op's tensors."""
    tensors = [t for t in (*op.inputs, *op.outputs) if t is not None]
    if not all(t.dtype.is_fixed_size for t in tensors):
        return "strings and handles are Python's"
    if any(t.is_dynamic for t in tensors):
        return "a shape is not known before the run"
    if any(t.dtype.is_packed and not t.is_constant for t in tensors):
        return "values of less than a byte are constants only"
    if op.inputs and all(t is None or t.is_constant for t in op.inputs):
        return "it is of constants alone, and computed once"
    return None


@dataclass(eq=False)
class Step:
    """One op of the lowered graph with the name of its kernel."""

    op: Op
    kernel: str
    function: str
    scratch: int = 0  # bytes for each worker
    weights: int = 0  # bytes of constants that it reads
    units: int = 1  # into which its work can be cut

    @property
    def body(self) -> str:
        """The function that does it: the step calls it with its places."""
        return _body(self.function)


def _body(function: str) -> str:
    return function.replace("step", BODY, 1)


@dataclass(frozen=True)
class Phase:
    """Steps that workers share as one unit of work (steps/phases.py): their numbers, into how many
    pieces each is cut, and the nanoseconds that all of them may take."""

    steps: tuple[int, ...]
    pieces: tuple[int, ...]
    nanoseconds: int


class StepError(DelegateError):
    """A step cannot be written. op: of the lowered graph."""

    op: Op | None = None


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
    phases: list[Phase] = field(default_factory=list)
    timed: bool = False
    traced: bool = False
    checked: bool = False
    sites: list[Site] = field(default_factory=list)
    # Functions that are told the extents of their pointers.
    told: set[str] = field(default_factory=set)
    budget: Budget = field(default_factory=Budget)
    # Instructions that the steps have still to share.
    left: int = MOST_OF_PART

    def __post_init__(self) -> None:
        self.module = ir.Module("sanderling")
        self.module.triple = self.target.triple

    def function(
        self,
        name: str,
        args: Sequence[Type],
        build: Callable[[Emitter], None],
        trusted: bool = False,
    ) -> ir.Function:
        """A function of the module, written when it is first asked for: kernels share tiles.
        trusted: it is the compiler's own, as is what it touches: not checked, and not counted."""
        found = self.module.globals.get(name)
        if found is None:
            pointers = [a for a in args if a == PTR] if self.checked and not trusted else []
            found = ir.Function(self.module, ir.FunctionType(VOID, [*args, *pointers]), name)
            # What is trusted is called from its own piece alone; pieces see the others.
            found.linkage = "internal" if trusted else "hidden"
            plain(found)
            if pointers:
                self.told.add(name)
            emitter = Emitter(self.module, found, self.target, self.builder(trusted))
            emitter.args, extents = found.args[: len(args)], found.args[len(args) :]
            if isinstance(emitter.b, CheckedBuilder):
                emitter.b.take([a for a in emitter.args if a.type == PTR], extents)
            build(emitter)
            emitter.b.ret_void()
        return found

    def declared(
        self, name: str, arguments: ArgumentList, build: Callable[[Emitter, Arguments], None]
    ) -> Callee:
        """A function whose arguments have names: build(emitter, arguments) writes it."""

        def read(e: Emitter) -> None:
            build(e, arguments.read(e))

        return Callee(self.function(name, list(arguments.types.values()), read), arguments)

    def builder(self, trusted: bool = False) -> Callable[[ir.Block], Builder]:
        """What kernels emit through."""
        if self.checked and not trusted:
            return partial(CheckedBuilder, self)
        return partial(Builder, budget=None if trusted else self.budget)

    def add_step(self, op: Op, kernel: str, emit: Callable[[StepEmitter, Op], None]) -> None:
        """Write the step's function: emit(k, op) fills it."""
        name = f"step{len(self.steps)}_{kernel}"
        kind = ir.FunctionType(VOID, [I64, I64, I64, I64, PTR, PTR])
        function = ir.Function(self.module, kind, _body(name))
        plain(function)
        function.attributes.add("noinline")
        self.budget.left = most = min(MOST_OF_STEP * (1 + CHECKS * self.checked), self.left)
        try:
            k = StepEmitter(self, function, op, name)
            emit(k, op)
            k.b.ret_void()
            self._write_step(name, function, k.offsets)
        except OverBudget:
            raise _too_large(op, f"{kernel} is more than {most} instructions") from None
        self.left -= most - self.budget.left
        for tensor in (*op.inputs, *op.outputs):
            place = None if tensor is None else self.places.get(tensor)
            assert place is None or not place.pitch or tensor in k.asked, f"{kernel}: rows apart"
        constants = sum(k.constants.values())
        self.steps.append(Step(op, kernel, name, k.most_scratch, constants, k.units))

    def _write_step(self, name: str, body: ir.Function, offsets: Sequence[int]) -> None:
        """The step calls its body with a table of where things lie: layers that differ in nothing
        else have equal bodies, which are compiled once. LLVM puts the call into the step's own."""
        numbers = ir.ArrayType(I64, len(offsets))
        table = ir.GlobalVariable(self.module, numbers, f"{name}_places")
        table.initializer, table.global_constant = ir.Constant(numbers, list(offsets)), True
        table.linkage = "internal"
        step = ir.Function(self.module, ir.FunctionType(VOID, body.function_type.args[:-1]), name)
        step.linkage = "internal"
        plain(step).attributes.add("alwaysinline")
        e = Emitter(self.module, step, self.target)
        e.b.call(body, [*step.args, table])
        e.b.ret_void()


def _too_large(op: Op, what: str) -> StepError:
    error = StepError(what, where=where(op), fix="it runs elsewhere")
    error.op = op
    return error


class StepEmitter(Emitter):
    """An Emitter for a step: it knows where tensors lie and which share of the work is its own."""

    def __init__(self, program: Program, function: ir.Function, op: Op, name: str) -> None:
        super().__init__(program.module, function, program.target, program.builder())
        self.program, self.op, self.name = program, op, name
        self.first, self.behind, self.chunks, *others = function.args
        self.worker, self.context, self.table = others
        self.offsets: list[int] = []  # what the table holds
        self.asked: set[Tensor] = set()  # tensors whose pitch the kernel knows
        self.most_scratch = 0
        self.units = 1
        self.constants: dict[int, int] = {}  # bytes, by place among the weights
        if isinstance(self.b, CheckedBuilder):
            self.b.trust(self.context, self.table, self._sites("the context", 0))

    def site(self, kind: str, what: str) -> int:
        """The number under which this step notes what it must not accept: see faults.py."""
        self.program.sites.append(
            {"kind": kind, "op": where(self.op), "what": what, "step": self.name}
        )
        return len(self.program.sites) - 1

    def _sites(self, what: str, size: int) -> int:
        """The number of the site of reads that leave these bytes; the next is that of writes."""
        text = f"{what} ({size} bytes)"
        return min(self.site(kind, text) for kind in ("read", "write"))

    def _own(self, pointer: Value, extent: Extent) -> Value:
        """The pointer, which may touch these bytes."""
        if not isinstance(self.b, CheckedBuilder):
            return pointer
        return self.b.own(pointer, extent, self._sites(extent.what, extent.size))

    def slot(self, index: int) -> Value:
        """A pointer of the context. Ask before a loop, not in it: stores may hide its constancy."""
        return self.load(self.at(self.context, index, PTR), PTR, 8)

    def _there(self, slot: int, offset: int) -> Value:
        """So many bytes behind a pointer of the context; the number is the table's."""
        self.offsets.append(offset)
        index = self.load(self.at(self.table, len(self.offsets) - 1, I64), I64, 8)
        return self.at(self.slot(slot), index, I8)

    def ptr(self, tensor: Tensor) -> Value:
        """The address of a tensor's first element."""
        if tensor.is_constant and tensor not in self.program.places:
            return self.constant(tensor.values)
        place = self.program.places[tensor]
        return self._own(self._there(place.slot, place.offset), self._extent(tensor))

    def _extent(self, tensor: Tensor) -> Extent:
        """A tensor's own bytes. Behind a caller's array there may be nothing to read."""
        place = self.program.places[tensor]
        size, row = extent_of(tensor, place.pitch), row_bytes(tensor) if place.pitch else 0
        writable = tensor in self.op.outputs or tensor.is_variable
        return Extent(
            f"tensor '{tensor.name}'", size, place.slot == ARENA, writable, place.pitch, row
        )

    def pitch(self, tensor: Tensor, dense: int) -> int:
        """Bytes from row to row; `dense` where they lie one after the other."""
        self.asked.add(tensor)
        place = self.program.places.get(tensor)
        return place.pitch if place is not None and place.pitch else dense

    def constant(self, array: Array) -> Value:
        """The address of a constant array, put among the weights."""
        offset = self.program.weights.add(array)
        self.constants[offset] = array.nbytes
        return self._own(
            self._there(WEIGHTS, offset), Extent("a constant", array.nbytes, slack=True)
        )

    def scratch(self, size: int) -> Value:
        """This worker's own memory; its contents do not outlive the step."""
        if size > MOST_SCRATCH:
            raise _too_large(self.op, f"it takes {size} bytes to work in")
        whole = -(-size // ALIGN) * ALIGN
        taken = whole * (1 + self.program.checked)  # the extents of the pointers in it lie behind
        self.most_scratch = max(self.most_scratch, taken)
        self.program.scratch = max(self.program.scratch, taken)
        stride = self.load(self.at(self.context, STRIDE, I64), I64, 8)
        return self._own(
            self.at(self.slot(SCRATCH), self.mul(self.worker, stride), I8),
            Extent("scratch", size, writable=True, shadow=whole),
        )

    def share(self, units: int, most: int | None = None) -> tuple[Int, Int]:
        """The units of these chunks: contiguous, sizes differing by at most one. most: chunks that
        are worthwhile, where each has something to prepare."""
        if units == 1:
            mine = self.b.icmp_signed("==", self.first, I64(0))
            return 0, self.b.zext(mine, I64)
        self.units = max(self.units, min(units, most or units))
        begin, end = (
            self.b.udiv(self.b.mul(chunk, I64(units)), self.chunks)
            for chunk in (self.first, self.behind)
        )
        return begin, end

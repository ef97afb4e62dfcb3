"""The entry `call` of an image: the code as a builtin function of Python. See pycall.py."""

from __future__ import annotations

import llvmlite.ir as ir

from ..codegen.emit import I64, PTR, VOID, Emitter, Type, Value, plain
from ..codegen.program import Program
from ..runtime.abi import FAULT, FIRST_ARG, OBJECT_DATA, OBJECT_TYPE, RECORD


class _Record:
    """The values that stand in a builtin's `self`."""

    def __init__(self, e: Emitter, itself: Value) -> None:
        self.e, self.base = e, e.load(e.at(itself, OBJECT_DATA, PTR), PTR, 8)

    def get(self, name: str, kind: Type = I64) -> Value:
        return self.e.load(self.e.at(self.base, RECORD.index(name), I64), kind, 8)

    def call(self, name: str, result: Type, *args: Value) -> Value:
        """Call the function whose address stands there."""
        kind = ir.FunctionType(result, [a.type for a in args])
        return self.e.b.call(self.get(name, kind.as_pointer()), args)


def emit_call(program: Program, invoke: ir.Function) -> None:
    """call(self, arrays, their number): what Python calls."""
    call = plain(ir.Function(program.module, ir.FunctionType(PTR, [PTR, PTR, I64]), "call"))
    e = Emitter(program.module, call, program.target)
    itself, arrays, count = call.args
    record = _Record(e, itself)
    names = ("enter", "head", "look", "next", "run", "done", "attend")
    enter, head, look, following, run, done, attend = map(call.append_basic_block, names)

    # A fault that nobody could report, for Ctrl-C came first, is not this run's.
    context = record.get("context", PTR)
    e.store(I64(0), e.at(context, FAULT, I64), 8)
    ready = e.b.icmp_unsigned("!=", record.get("ready"), I64(0))
    e.b.cbranch(ready, enter, attend)
    e.b.position_at_end(enter)
    wanted = record.get("array")
    e.b.cbranch(e.b.icmp_unsigned("==", count, record.get("args")), head, attend)

    e.b.position_at_end(head)
    place = e.b.phi(I64)
    place.add_incoming(I64(0), enter)
    e.b.cbranch(e.b.icmp_unsigned("<", place, count), look, run)
    e.b.position_at_end(look)
    array = e.load(e.at(arrays, place, PTR), PTR, 8)
    kind = e.load(e.at(array, OBJECT_TYPE, I64), I64, 8)
    e.b.cbranch(e.b.icmp_unsigned("==", kind, wanted), following, attend)
    e.b.position_at_end(following)
    data = e.load(e.at(array, OBJECT_DATA, I64), I64, 8)
    e.store(data, e.at(context, e.add(place, FIRST_ARG), I64), 8)
    place.add_incoming(e.b.add(place, I64(1)), following)
    e.b.branch(head)

    e.b.position_at_end(run)
    fault = _run(e, record, invoke, context)
    e.b.cbranch(e.b.icmp_unsigned("==", fault, I64(0)), done, attend)
    e.b.position_at_end(done)
    none = record.get("none", PTR)
    record.call("keep", VOID, none)
    e.b.ret(none)
    e.b.position_at_end(attend)
    nothing = ir.Constant(PTR, None)
    e.b.ret(record.call("ask", PTR, record.get("attend", PTR), arrays, count, nothing))


def _run(e: Emitter, record: _Record, invoke: ir.Function, context: Value) -> Value:
    """The run, without Python's lock if there is a function to hand it on."""
    shares = e.b.icmp_unsigned("!=", record.get("save"), I64(0))
    workers, thread = record.get("workers"), e.b.alloca(PTR)
    with e.when(shares):
        e.store(record.call("save", PTR), thread, 8)
    fault = e.b.call(invoke, [workers, context])
    with e.when(shares):
        record.call("restore", VOID, e.load(thread, PTR, 8))
    return fault

"""Indices that only the run knows.

One out of range, which the definitions refuse, is noted in the context and the element 0 taken in
its place: nothing outside of the tensor is touched, and the run raises when it is over (faults.py).
A branch that is never taken is all that an index in the range pays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....ir import DType, Tensor
from .emit import I64, PTR, Emitter, Int, Type, Value, llvm_type
from .fault_notes import note
from .program import Program, StepEmitter

TYPES = (DType.INT16, DType.INT32, DType.INT64)
# How a function that takes an Indices is told of it: context and number.
ARGS = (PTR, I64)


def index_type(tensor: Tensor) -> Type:
    return llvm_type(tensor.dtype.numpy)


def all_inside(tensor: Tensor, *sizes: int) -> bool:
    """Whether all indices of a constant are in the range; those of others are seen at run time."""
    data = tensor.data
    return data is None or bool(np.all((data >= 0) & (data < np.asarray(sizes))))


@dataclass(frozen=True)
class Indices:
    """The indices of a step, or in a function those of whoever calls it."""

    program: Program
    context: Value
    number: Value  # of the site

    @classmethod
    def of(cls, k: StepEmitter, what: str = "an index") -> Indices:
        return cls(k.program, k.context, I64(k.site("index", what)))

    @property
    def args(self) -> tuple[Value, Value]:
        return self.context, self.number

    def at(self, e: Emitter, base: Value, place: Int, kind: Type, size: Int) -> Value:
        """An index as i64, and 0 if it is not below the size."""
        value = e.load(e.at(base, place, kind), kind)
        wide = value if kind == I64 else e.b.sext(value, I64)
        inside = e.b.icmp_unsigned("<", wide, e.i64(size))
        with e.b.if_then(e.b.not_(inside), likely=False):
            e.b.call(note(self.program), [*self.args, wide, e.i64(size)])
        return e.b.select(inside, wide, I64(0))

"""The operator table: what each operator means, written once.

`OPS[name]` is an OpDef: shape and type inference, exact NumPy evaluation, cost. Tests, the support
matrix, the cost model, the verifier and the fallback all read it. Rows are made by the family
modules with `define`; users add their own with `register_custom`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..errors import InputError, ModelError, SanderlingError, UnsupportedError
from ..format.schema import default_options
from ..ir import CUSTOM, Array, DType, Graph, Op, Quant, Shape, Tensor


@dataclass(frozen=True, eq=False)
class Spec:
    """What is known of a value before a run.

    shape is None where it depends on data; value is there for constants (and what follows from
    them), so that a reshape to a constant shape can be inferred.
    """

    dtype: DType
    shape: Shape | None
    value: Array | None = None

    @property
    def known(self) -> Shape:
        """The shape, where the caller has made sure that it is known."""
        assert self.shape is not None
        return self.shape


@dataclass
class State:
    """What outlives one evaluation: variables, tables, generators; and how to call a graph.

    One State belongs to one session. `call` is set by whoever executes graphs.
    """

    call: Callable[[Graph, Sequence[Array]], list[Array]]
    variables: dict[Any, Array] = field(default_factory=dict)
    tables: dict[Any, Any] = field(default_factory=dict)
    called_once: set[int] = field(default_factory=set)
    generators: dict[int, Any] = field(default_factory=dict)


Specs = Sequence["Spec | None"]
Arrays = Sequence["Array | None"]
Infer = Callable[[Op, Specs], "Spec | Sequence[Spec]"]
# evaluate(op, inputs), or evaluate(op, inputs, state) for a stateful operator. It returns the
# output array, or one array for each output, of the outputs' NumPy types.
Evaluate = Callable[..., "Array | Sequence[Array]"]
Macs = Callable[[Op], int]


@dataclass(frozen=True)
class OpDef:
    """One row. types are the element types of operand `main` that evaluation accepts."""

    name: str
    infer: Infer
    evaluate: Evaluate
    family: str
    types: tuple[str, ...] = ()
    main: int = 0
    arity: tuple[int, int] = (1, 1)  # fewest and most inputs, the optional ones included
    macs: Macs = lambda op: 0
    stateful: bool = False
    notes: str = ""  # what is special, for the support matrix: "hybrid i8/i4 weights", ...


OPS: dict[str, OpDef] = {}
MANY = 1 << 30  # an arity without upper bound
# A larger result is refused: a few hostile bytes in a FILL or TILE must not exhaust the memory.
MAX_ELEMENTS = 1 << 31
FOLD_ELEMENTS = 1024  # values up to this size are computed during inference
# What Python and NumPy raise where an operator's inputs do not fit together.
DATA_ERRORS = (IndexError, ValueError, TypeError, KeyError, ZeroDivisionError, OverflowError,
               AssertionError, AttributeError)  # fmt: skip


def define(
    names: str,
    *,
    infer: Infer,
    evaluate: Evaluate,
    family: str,
    types: str = "",
    main: int = 0,
    arity: int | tuple[int, int] = 1,
    macs: Macs = lambda op: 0,
    stateful: bool = False,
    notes: str = "",
) -> None:
    """Enter one row for each of the names (separated by blanks)."""
    span = (arity, arity) if isinstance(arity, int) else arity
    for name in names.split():
        assert name not in OPS, f"{name} is defined twice"
        OPS[name] = OpDef(name, infer, evaluate, family, tuple(types.split()), main, span, macs,
                          stateful, notes)  # fmt: skip


def register_custom(name: str, *, evaluate: Evaluate, infer: Infer, macs: Macs = lambda op: 0,
                    stateful: bool = False) -> None:  # fmt: skip
    """Teach the runtime a custom operator.

    infer(op, specs) returns a Spec for each output; evaluate(op, arrays) returns the arrays.
    op.attrs["options"] holds the file's raw custom options. Registering a name again replaces it.
    """
    if not name:
        raise InputError("a custom operator needs a name", fix="register_custom('MyOp', ...)")
    OPS[CUSTOM + name] = OpDef(CUSTOM + name, infer, evaluate, "custom", arity=(0, MANY), macs=macs,
                               stateful=stateful)  # fmt: skip


def definition(op: Op) -> OpDef:
    """The row for this op, or an error that says what to do."""
    found = OPS.get(op.name)
    if found is not None:
        return found
    if op.is_custom:
        fix = f"register it: sanderling.register_custom('{op.name.removeprefix(CUSTOM)}', ...)"
    else:
        fix = "docs/operators.md lists what is supported; a newer Sanderling may have it"
    raise UnsupportedError(f"operator {op.name} is not supported", where=op.where, fix=fix)


def check(op: Op) -> OpDef:
    """Look the op up, and check its operand count and main type."""
    row = definition(op)
    low, high = row.arity
    if not low <= len(op.inputs) <= high:
        wants = f"{low}" if low == high else f"{low} or more" if high == MANY else f"{low} to {high}"
        raise ModelError(f"{len(op.inputs)} inputs, it takes {wants}", where=op.where,
                         fix="the model is damaged or was built wrongly")  # fmt: skip
    main = op.input(row.main)
    if row.types and main is not None and main.dtype.short not in row.types:
        raise UnsupportedError(
            f"type {main.dtype.short} is not supported",
            where=op.where,
            fix=f"it takes {', '.join(row.types)}",
        )
    return row


def infer(op: Op, specs: Specs) -> list[Spec]:
    """Shapes and types of the outputs, checked."""
    row = check(op)
    try:
        with np.errstate(all="ignore"):
            found = row.infer(op, specs)
    except DATA_ERRORS as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"shapes cannot be inferred: {error}", where=op.where,
                         fix="its inputs or attributes do not fit together") from error  # fmt: skip
    return fold(op, row, specs, [found] if isinstance(found, Spec) else list(found))


def fold(op: Op, row: OpDef, specs: Specs, found: list[Spec]) -> list[Spec]:
    """Values of the outputs where all inputs' are known and small: shape arithmetic folds away.

    An evaluation that fails leaves them unknown; the run will say why, if it comes to that.
    """
    given = [None if s is None else s.value for s in specs]
    absent = any(s is not None and s.value is None for s in specs)
    large = any(a is not None and a.size > FOLD_ELEMENTS for a in given) or any(
        s.shape is None or elements(s.shape) > FOLD_ELEMENTS or not s.dtype.is_fixed_size
        for s in found
    )
    known = all(s.value is not None for s in found)
    if absent or large or known or row.stateful or op.is_custom or not specs:
        return found
    try:
        with np.errstate(all="ignore"):
            results = row.evaluate(op, given)
    except (SanderlingError, *DATA_ERRORS):
        return found
    arrays = [results] if isinstance(results, np.ndarray | np.generic) else list(results)
    return [replace(s, value=np.asarray(a)) for s, a in zip(found, arrays, strict=True)]


@dataclass(frozen=True)
class Cost:
    """Work of one op: multiply-adds, and bytes that must at least be read and written."""

    macs: int
    bytes_read: int
    bytes_written: int


def cost(op: Op) -> Cost:
    """The cost at the shapes the graph states."""
    row = OPS.get(op.name)
    return Cost(
        macs=row.macs(op) if row else 0,
        bytes_read=sum(t.nbytes for t in op.inputs if t is not None),
        bytes_written=sum(t.nbytes for t in op.outputs),
    )


# -- small helpers shared by the families -------------------------------------------------------


def attr(op: Op, name: str) -> Any:
    """An attribute, or its schema default where the op was built without it."""
    if name in op.attrs:
        return op.attrs[name]
    return default_options(op.name)[name]


def quant(tensor: Tensor | None) -> Quant:
    """A tensor's quantisation, which the operator needs."""
    if tensor is None or tensor.quant is None or tensor.quant.scale.size == 0:
        name = "an absent tensor" if tensor is None else f"tensor '{tensor.name}'"
        raise ModelError("an integer operand has no quantisation parameters", where=name,
                         fix="the model is damaged or was quantised wrongly")  # fmt: skip
    return tensor.quant


def scale_zero(tensor: Tensor | None) -> tuple[float, int]:
    """Per-tensor scale (as the float32 the file holds) and zero point."""
    q = quant(tensor)
    return float(q.scale[0]), int(q.zero_point[0])


def require(condition: bool, op: Op, what: str, fix: str = "") -> None:
    """A legality check of inference or evaluation."""
    if not condition:
        raise ModelError(what, where=op.where, fix=fix or "its inputs or attributes do not fit")


def out_spec(op: Op, shape: Shape | None, index: int = 0, value: Array | None = None) -> Spec:
    """A spec with the type that the graph gives this output."""
    return Spec(op.outputs[index].dtype, shape, value)


def present(specs: Specs, op: Op, index: int = 0) -> Spec:
    """A required operand's spec."""
    found = specs[index] if index < len(specs) else None
    if found is None:
        raise ModelError(f"input {index} is absent", where=op.where,
                         fix="the operator requires it")  # fmt: skip
    return found


def given(op: Op, inputs: Arrays) -> list[Array]:
    """The operands of an evaluation that requires them all."""
    found = [x for x in inputs if x is not None]
    require(len(found) == len(inputs), op, "an input is absent", "the operator requires it")
    return found


def shapes_known(specs: Specs) -> bool:
    return all(s is None or s.shape is not None for s in specs)


def same_as_input(op: Op, specs: Specs) -> Spec:
    """infer: one output of the first input's shape."""
    return out_spec(op, present(specs, op).shape)


def broadcast_shapes(op: Op, *shapes: Shape) -> Shape:
    """NumPy's rule, as TFLite's; the error names both shapes."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    result = []
    for sizes in zip(*padded, strict=True):
        wide = {n for n in sizes if n != 1}
        require(len(wide) <= 1, op, f"shapes {' and '.join(map(str, shapes))} do not broadcast")
        result.append(wide.pop() if wide else 1)
    return tuple(result)


def broadcast_inputs(op: Op, specs: Specs) -> Spec:
    """infer: one output of the inputs' common shape."""
    if not shapes_known(specs):
        return out_spec(op, None)
    return out_spec(op, broadcast_shapes(op, *(s.known for s in specs if s is not None)))


def elements(shape: Sequence[int]) -> int:
    return math.prod(shape)


def sized(op: Op, dims: Iterable[Any]) -> Shape:
    """A shape that comes from data, checked: a hostile value allocates nothing."""
    shape = tuple(int(n) for n in dims)
    require(all(n >= 0 for n in shape), op, f"shape {shape} has a negative size")
    require(elements(shape) <= MAX_ELEMENTS, op, f"a result of shape {shape} is too large",
            f"the limit is {MAX_ELEMENTS} elements; the model or an input is damaged")  # fmt: skip
    return shape


def folded(op: Op, specs: Specs, evaluate: Evaluate, most: int = 1024) -> Array | None:
    """infer: the value that follows from small constant operands, else None."""
    if any(s is None or s.value is None or s.value.size > most for s in specs):
        return None
    with np.errstate(all="ignore"):
        result = evaluate(op, [s.value for s in specs if s is not None])
    return result if isinstance(result, np.ndarray) and result.size <= most else None


def support() -> Mapping[str, OpDef]:
    """The table, sorted by name."""
    return dict(sorted(OPS.items()))

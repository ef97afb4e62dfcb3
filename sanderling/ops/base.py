"""The operator table: what each operator means, written once.

`OPS[name]` is an OpDef: shape and type inference, exact NumPy evaluation, cost. Tests, the support
matrix, the cost model, the verifier and the fallback all read it. Rows are made by the family
modules with `define`; users add their own with `register_custom`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import (
    InputError,
    ModelError,
    SanderlingError,
    UnsupportedError,
    install_command,
)
from ..format.schema import ENUMS, check_attributes, default_options
from ..ir import CUSTOM, Array, DType, Graph, Op, Quant, Shape, Tensor
from ..ir.graph import closest
from .legal import MANY, LegalForms, parse


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
        assert self.shape is not None, "whoever asks has looked"
        return self.shape


@dataclass
class State:
    """What outlives one evaluation: variables, tables, generators; and how to call a graph.

    One State belongs to one session. `call` is set by whoever executes graphs.
    """

    call: Callable[[Graph, Sequence[Array]], list[Array]]
    # Runs (condition, body) on arrays as a loop; None where it cannot: call by call then.
    loop: Callable[[Graph, Graph, Sequence[Array]], list[Array] | None] = lambda *graphs: None
    # A resource's array: assigned in place while type and shape stay; version counts new arrays.
    variables: dict[Any, Array] = field(default_factory=dict)
    version: int = 0
    tables: dict[Any, Any] = field(default_factory=dict)
    called_once: set[int] = field(default_factory=set)
    constants: dict[Op, list[Array]] = field(default_factory=dict)  # results of constants alone
    generators: dict[int, Any] = field(default_factory=dict)


T = TypeVar("T")
Specs = Sequence["Spec | None"]
Arrays = Sequence["Array | None"]
Infer = Callable[[Op, Specs], "Spec | Sequence[Spec]"]
# evaluate(op, inputs), or evaluate(op, inputs, state) for a stateful operator. It returns the
# output array, or one array for each output, of the outputs' NumPy types.
Evaluate = Callable[..., "Array | Sequence[Array]"]
# run(inputs, state), an evaluation of one op of which the part is done that every run repeats.
Run = Callable[["Arrays", "State"], "Array | Sequence[Array]"]
# prepare(op, inputs) is given the arrays of the first run. None: there is nothing to prepare.
Prepare = Callable[[Op, "Arrays"], "Run | None"]
Macs = Callable[[Op], int]
# rule(op, shapes ..., integers of operands ...) -> output shape; see `shaped`.
ShapeRule = Callable[..., Sequence[int]]


@dataclass(frozen=True)
class OpDef:
    """One row. takes: which operands and results are legal, as legal.py has it.

    reads_values: False where the op looks at the shapes of its operands alone. picks: the place of
    the operand of which it reads no more elements than it writes.
    """

    name: str
    infer: Infer
    evaluate: Evaluate
    family: str
    takes: str
    macs: Macs = lambda op: 0
    stateful: bool = False
    notes: str = ""  # what is special, for the support matrix: "hybrid i8/i4 weights", ...
    registered: bool = False  # a user's own: its mistakes are reported as the user's
    prepare: Prepare | None = None
    reads_values: bool = True
    picks: int | None = None

    @property
    def rule(self) -> LegalForms:
        return parse(self.takes)

    @property
    def types(self) -> tuple[str, ...]:
        """Element types that the main operand may have; none where it may have any."""
        return self.rule.types

    @property
    def main(self) -> int:
        """The operand that decides about the others."""
        return self.rule.main

    @property
    def arity(self) -> tuple[int, int]:
        """Fewest and most inputs, the optional ones included."""
        return self.rule.counts


OPS: dict[str, OpDef] = {}
# Kernels that only move elements take any type of 8 to 64 bits.
INDEX = "i32 i64"
MOVABLE = "f32 f16 bf16 f64 i8 u8 i16 u16 i32 u32 i64 u64 bool c64"
ANYTHING = "x*: any -> y*: any"  # the rule of operators that nothing is known of
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
    takes: str,
    macs: Macs = lambda op: 0,
    stateful: bool = False,
    notes: str = "",
    prepare: Prepare | None = None,
    reads_values: bool = True,
    picks: int | None = None,
) -> None:
    """Enter one row for each of the names (separated by blanks)."""
    for name in names.split():
        assert name not in OPS, f"{name} is defined twice"
        if prepare is None and isinstance(evaluate, OnOperands):
            prepare = evaluate.prepare
        OPS[name] = OpDef(
            name,
            infer,
            evaluate,
            family,
            takes,
            macs,
            stateful,
            notes,
            prepare=prepare,
            reads_values=reads_values,
            picks=picks,
        )


def register_custom(
    name: str,
    *,
    evaluate: Evaluate,
    infer: Infer,
    macs: Macs = lambda op: 0,
    stateful: bool = False,
) -> None:
    """Teach the runtime a custom operator.

    infer(op, specs) returns a Spec for each output; evaluate(op, arrays) returns the arrays.
    op.attrs["options"] holds the file's raw custom options. Registering a name again replaces it.
    The name is the custom code in the file; graphs show it as 'custom.MyOp', which is taken too.
    """
    code = name.removeprefix(CUSTOM) if isinstance(name, str) else ""
    if not code:
        raise InputError("a custom operator needs a name", fix="register_custom('MyOp', ...)")
    for given, what in ((evaluate, "evaluate"), (infer, "infer")):
        if not callable(given):
            raise InputError(
                f"{what} is {given!r}, not a function",
                where=f"custom.{code}",
                fix=f"give {what}=a function of (op, inputs)",
            )
    row = OpDef(CUSTOM + code, infer, evaluate, "custom", ANYTHING, macs, stateful, registered=True)
    OPS[row.name] = row


def definition(op: Op) -> OpDef:
    """The row for this op, or an error that says what to do."""
    found = OPS.get(op.name)
    if found is not None:
        return found
    if op.is_custom:
        fix = _for_custom(op.name.removeprefix(CUSTOM))
    elif op.name in ENUMS["BuiltinOperator"]:
        fix = "docs/operators.md lists what is supported; a newer Sanderling may have it"
    else:
        fix = f"it is not a name of the schema; {closest(op.name, list(OPS), 5)}"
    raise UnsupportedError(f"operator {op.name} is not supported", where=op.where, fix=fix)


def _for_custom(code: str) -> str:
    if code.startswith("Flex"):  # as converters name an operator of TensorFlow's (select TF ops)
        return (
            "name the delegate 'flex', with which TensorFlow runs it (delegates=['flex'], "
            f"--delegate flex): {install_command('flex')}"
        )
    return (
        f"register it: sanderling.register_custom('{code}', evaluate=..., infer=...); for "
        "the command line, in a file that --plugin names"
    )


def check(op: Op) -> OpDef:
    """Look the op up, and check its attributes, and its operands and results by the row's rule."""
    row = definition(op)
    check_attributes(op)
    row.rule.check(op)
    return row


def check_known(graph: Graph) -> None:
    """Check the ops that have a row, for those who work on graphs that nobody has planned."""
    for op in graph.ops:
        if op.name in OPS:
            check(op)


def infer(op: Op, specs: Specs) -> list[Spec]:
    """Shapes and types of the outputs, checked."""
    row = definition(op)
    rule = row.rule
    check_attributes(op)
    form = rule.check(op)
    if rule.is_ranked:
        rule.check_ranks(op, form, [None if s is None else s.shape for s in specs])
    try:
        with np.errstate(all="ignore"):
            found = row.infer(op, specs)
    except Exception as error:
        if isinstance(error, SanderlingError | MemoryError):
            raise
        if row.registered:
            raise custom_mistake(op, f"infer raised {error_text(error)}") from error
        if not isinstance(error, DATA_ERRORS):
            raise
        raise ModelError(
            f"shapes cannot be inferred: {error}",
            where=op.where,
            fix="its inputs or attributes do not fit together",
        ) from error
    if row.registered:
        return _custom_specs(op, found)
    made = [found] if isinstance(found, Spec) else list(found)
    check_results(op, made)
    return fold(op, row, specs, made)


def check_results(op: Op, found: Sequence[Spec]) -> None:
    """What inference says of the results is what the graph states."""
    gives, states = len(found), len(op.outputs)
    require(gives == states, op, f"{states} outputs, it gives {gives}")
    for spec, tensor in zip(found, op.outputs, strict=True):
        if spec.dtype is not tensor.dtype:
            what = f"result '{tensor.name}' is {tensor.dtype.short}, it gives {spec.dtype.short}"
            raise ModelError(what, where=op.where, fix="the model is damaged or was built wrongly")
        negative = spec.shape is not None and min(spec.shape, default=0) < 0
        require(not negative, op, f"shape {spec.shape} has a negative size")


def custom_mistake(op: Op, what: str) -> ModelError:
    """What a user's own operator did wrong, said of that operator."""
    code = op.name.removeprefix(CUSTOM)
    return ModelError(
        f"custom operator {code}: {what}",
        where=op.where,
        fix=f"correct what register_custom('{code}', ...) was given",
    )


def error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _custom_specs(op: Op, found: object) -> list[Spec]:
    specs = [found] if isinstance(found, Spec) else found
    if not isinstance(specs, list | tuple) or not all(isinstance(s, Spec) for s in specs):
        raise custom_mistake(op, f"infer returned {found!r:.60}, not a Spec for each output")
    if len(specs) != len(op.outputs):
        raise custom_mistake(op, f"infer returned {len(specs)} specs for {len(op.outputs)} outputs")
    for spec, tensor in zip(specs, op.outputs, strict=True):
        if spec.dtype is not tensor.dtype:
            said = getattr(spec.dtype, "short", spec.dtype)
            stated = f"the model {tensor.dtype.short}"
            raise custom_mistake(op, f"infer says {said} for '{tensor.name}', {stated}")
    return [replace(s, shape=None if s.shape is None else tuple(s.shape)) for s in specs]


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
    return [replace(s, value=a) for s, a in zip(found, as_list(results), strict=True)]


def as_list(found: Array | Sequence[Array]) -> list[Array]:
    """What an evaluation returned, as one array for each output."""
    if type(found) is np.ndarray:
        return [found]
    arrays = [found] if isinstance(found, np.ndarray | np.generic) else found
    return [np.asarray(a) for a in arrays]


@dataclass(frozen=True)
class Cost:
    """Work of one op: multiply-adds, and bytes that must at least be read and written."""

    macs: int
    bytes_read: int
    bytes_written: int


def known_cost(op: Op) -> Cost:
    """The cost of an op, nothing where it is not known: its operands do not fit together, as a run
    will say, or shapes come with the data."""
    try:
        return cost(op)
    except (SanderlingError, *DATA_ERRORS):
        return Cost(0, 0, 0)


def cost(op: Op, lowered: bool = False) -> Cost:
    """The cost at the shapes the graph states; an op that is not legal computes nothing.

    lowered: a delegate's passes wrote it, perhaps with types that no file may have.
    """
    row = OPS.get(op.name)
    return Cost(
        macs=row.macs(op) if row is not None and (lowered or row.rule.allows(op)) else 0,
        bytes_read=sum(_read(op, row, place) for place in range(len(op.inputs))),
        bytes_written=sum(t.nbytes for t in op.outputs),
    )


def _read(op: Op, row: OpDef | None, place: int) -> int:
    tensor = op.inputs[place]
    if tensor is None or (row is not None and not row.reads_values):
        return 0
    if row is not None and row.picks == place and op.outputs:
        return min(tensor.nbytes, tensor.dtype.nbytes(op.outputs[0].shape))
    return tensor.nbytes


# -- small helpers shared by the families -------------------------------------------------------


def attr(op: Op, name: str) -> Any:
    """An attribute, or its schema default where the op was built without it."""
    if name in op.attrs:
        return op.attrs[name]
    return default_options(op.name)[name]


def quant(tensor: Tensor | None) -> Quant:
    """A tensor's quantisation, which the operator needs."""
    if tensor is None or tensor.quant is None or not has_scale(tensor):
        name = "an absent tensor" if tensor is None else f"tensor '{tensor.name}'"
        raise ModelError(
            "an integer operand has no quantisation parameters",
            where=name,
            fix="the model is damaged or was quantised wrongly",
        )
    return tensor.quant


def has_scale(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.quant is not None and tensor.quant.scale.size > 0


def scale_zero(tensor: Tensor | None) -> tuple[float, int]:
    """Per-tensor scale (as the float32 the file holds) and zero point."""
    q = quant(tensor)
    return float(q.scale[0]), int(q.zero_point[0])


def scale_zero_or_none(tensor: Tensor | None) -> tuple[float, int]:
    """As scale_zero; zeros where there are none, as in the kernels that do not insist."""
    return scale_zero(tensor) if has_scale(tensor) else (0.0, 0)


def require(condition: bool, op: Op, what: str, fix: str = "") -> None:
    """A legality check of inference or evaluation."""
    if not condition:
        raise unfit(op, what, fix)


def check_same_shape(op: Op, a: Shape, b: Shape) -> None:
    require(a == b, op, f"its inputs differ in shape: {a} and {b}")


def unfit(op: Op, what: str, fix: str = "") -> ModelError:
    """The error of a legality check: where every run checks, its text is made only on failure."""
    return ModelError(what, where=op.where, fix=fix or "its inputs or attributes do not fit")


def out_spec(op: Op, shape: Shape | None, index: int = 0, value: Array | None = None) -> Spec:
    """A spec with the type that the graph gives this output."""
    return Spec(op.outputs[index].dtype, shape, value)


def unknown_outputs(op: Op) -> list[Spec]:
    """Specs of outputs whose shapes depend on what is not known yet."""
    return [out_spec(op, None, index) for index in range(len(op.outputs))]


def operand(op: Op, found: Sequence[T | None], index: int = 0) -> T:
    """A required operand: its spec in an inference, its array in an evaluation."""
    value = found[index] if index < len(found) else None
    if value is None:
        what = f"input {index} is absent"
        raise ModelError(what, where=op.where, fix="the operator requires it")
    return value


def given(op: Op, inputs: Arrays) -> list[Array]:
    """The operands of an evaluation that requires them all."""
    found = [a for a in inputs if a is not None]
    if len(found) < len(inputs):
        return [operand(op, inputs, index) for index in range(len(inputs))]
    return found


class OnOperands:
    """See `on`."""

    def __init__(self, function: Callable[..., Array | Sequence[Array]], needs: int = MANY) -> None:
        self._function, self._needs = function, needs

    def __call__(self, op: Op, inputs: Arrays, *state: State) -> Array | Sequence[Array]:
        given(op, inputs[: self._needs])
        # Some functions return views of their operands; one of a variable would change with it.
        kept = [
            a.copy() if a is not None and t is not None and t.is_variable else a
            for a, t in zip(inputs, op.inputs, strict=True)
        ]
        return self._function(op, *kept, *state)

    def prepare(self, op: Op, inputs: Arrays) -> Run | None:
        """The function itself, where no operand has to be looked at."""
        absent = any(a is None for a in inputs[: self._needs])
        if absent or any(t is not None and t.is_variable for t in op.inputs):
            return None
        function = self._function
        if definition(op).stateful:
            return lambda inputs, state: function(op, *inputs, state)
        return lambda inputs, state: function(op, *inputs)


def on(function: Callable[..., Array | Sequence[Array]], needs: int = MANY) -> OnOperands:
    """evaluate: function(op, *operands), of which the first `needs` must be there.

    A stateful operator's function takes the state behind its operands.
    """
    return OnOperands(function, needs)


def shapes_known(specs: Specs) -> bool:
    return all(s is None or s.shape is not None for s in specs)


def shaped(rule: ShapeRule, data: Sequence[int] = (0,), by: Sequence[int] = ()) -> Infer:
    """infer: one output, of the shape that the rule makes of operands' shapes and integers.

    rule(op, shape of each operand in `data`, integers of each operand in `by`); evaluation calls
    the same rule, so that it checks the same things.
    """

    def infer(op: Op, specs: Specs) -> Spec:
        shapes = [operand(op, specs, index).shape for index in data]
        values = [operand(op, specs, index).value for index in by]
        if any(s is None for s in shapes) or any(v is None for v in values):
            return out_spec(op, None)
        return out_spec(op, sized(op, rule(op, *shapes, *map(ints, values))))

    return infer


def same_as_input(op: Op, specs: Specs) -> Spec:
    """infer: one output of the first input's shape."""
    return out_spec(op, operand(op, specs).shape)


def fitting(
    rule: Callable[..., object], data: Sequence[int], infer: Infer = same_as_input
) -> Infer:
    """infer, after rule(op, shape of each operand in `data`) has not objected.

    The shape of an absent operand is None. Evaluation calls the same rule: compiled code checks
    nothing, so what operands must have in common is to be known before it is written.
    """

    def check_and_infer(op: Op, specs: Specs) -> Spec | Sequence[Spec]:
        given = [specs[index] if index < len(specs) else None for index in data]
        if shapes_known(given):
            rule(op, *(None if s is None else s.shape for s in given))
        return infer(op, specs)

    return check_and_infer


def single(op: Op, shape: Shape, what: str) -> None:
    """A check of an operand that is one value."""
    require(elements(shape) == 1, op, f"{what} has shape {list(shape)}, one value is needed")


def ints(values: npt.ArrayLike | None) -> list[int]:
    """A shape-like operand or attribute as Python integers (which do not overflow)."""
    return [] if values is None else [int(v) for v in np.asarray(values).reshape(-1).tolist()]


def scalar(op: Op, value: npt.ArrayLike, what: str) -> Any:
    """The only element of an operand (a NumPy scalar), or of a list of integers."""
    array = np.asarray(value)
    if array.size != 1:
        raise unfit(op, f"{what} has {array.size} elements, one is needed")
    return array.reshape(-1)[0]


def axis_in(op: Op, axis: int, rank: int) -> int:
    """The axis, counted from the front."""
    if not -rank <= axis < rank:
        raise unfit(op, f"axis {axis} is outside a tensor of rank {rank}")
    return axis % rank


def one_axis(op: Op, axis: npt.ArrayLike, rank: int) -> int:
    """An operand that holds one axis, counted from the front."""
    return axis_in(op, int(scalar(op, axis, "the axis")), rank)


def broadcast_shapes(op: Op, *shapes: Shape) -> Shape:
    """NumPy's rule, as TFLite's; the error names both shapes."""
    if len(set(shapes)) == 1:
        return shapes[0]
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    result = []
    for sizes in zip(*padded, strict=True):
        wide = {n for n in sizes if n != 1}
        if len(wide) > 1:
            raise unfit(op, f"shapes {' and '.join(map(str, shapes))} do not broadcast")
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
    if shape and min(shape) < 0:
        raise unfit(op, f"shape {shape} has a negative size")
    if elements(shape) > MAX_ELEMENTS:
        fix = f"the limit is {MAX_ELEMENTS} elements; the model or an input is damaged"
        raise unfit(op, f"a result of shape {shape} is too large", fix)
    return shape


def support() -> Mapping[str, OpDef]:
    """The table, sorted by name."""
    return dict(sorted(OPS.items()))

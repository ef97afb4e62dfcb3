"""Run a graph op by op on the definitions: the meaning of a model, before any planning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import NoReturn

import numpy as np

from ..config import MAX_MEMORY
from ..errors import InputError, ModelError, SanderlingError
from ..ir import Array, DType, Graph, Op, Shape, Tensor
from .base import (
    DATA_ERRORS,
    Run,
    Spec,
    State,
    as_list,
    check,
    custom_mistake,
    definition,
    elements,
    error_text,
)

# Bytes for each element that an op reads or makes: definitions compute in doubles, with a few
# arrays at a time. The largest seen is 40, for MULTINOMIAL.
TEMPORARY = 32
# Types of which nothing is calculated.
_NO_NUMBERS = (DType.STRING, DType.RESOURCE)
_AS_IT_IS = nullcontext()


def new_state() -> State:
    """A state whose graph calls are executed here."""
    state = State(call=lambda graph, args: execute(graph, args, state))
    return state


def execute(graph: Graph, inputs: Sequence[Array], state: State) -> list[Array]:
    """Evaluate the graph on arrays in the order of its inputs, which stay as they are: one that the
    graph treats as a variable is written to."""
    own = [a.copy() if t.is_variable else a for t, a in zip(graph.inputs, inputs, strict=True)]
    return Routine(graph.ops, graph.inputs, graph.outputs).run(own, state)


Evaluate = Callable[[Op, Sequence[Array | None], State], list[Array]]


def run_ops(
    ops: Sequence[Op],
    values: Mapping[Tensor, Array],
    wanted: Iterable[Tensor],
    state: State,
    one: Evaluate | None = None,
) -> list[Array]:
    """Evaluate ops in order, once. values holds what is fed, variable tensors included; those are
    changed in place. one: evaluates an op, for those who look on."""
    return Routine(ops, list(values), wanted).run(list(values.values()), state, one)


class Routine:
    """Ops in order, with what is the same in every run worked out once: whether they are legal,
    where their operands lie in a list of values, and which of these nobody reads any more."""

    def __init__(
        self, ops: Sequence[Op], given: Sequence[Tensor], wanted: Iterable[Tensor]
    ) -> None:
        results = list(wanted)
        self._places: dict[Tensor, int] = {}
        self._given = [self._place(t) for t in given]
        made = set(given)
        self._unmade: list[Tensor] = []  # constants, variables that nobody gave, mistakes
        for op in ops:
            check(op)
            _claim(op, op.outputs)
            self._expect(made, op.inputs)
            made.update(op.outputs)
        self._expect(made, results)
        self._results = [self._place(t) for t in results]
        drops = self._drops(ops, results)
        # An op of whose constants one is given another value is not prepared with the file's.
        fed = {t for t in given if t.is_constant}
        self._steps = [
            (
                op,
                _Evaluation(op, fed.isdisjoint(op.inputs)),
                [self._place(t) for t in op.inputs],
                [self._place(t) for t in op.outputs],
                drops[i],
                _is_constant(op) and not set(given).intersection(op.inputs),
                _is_claimed_late(op),
            )
            for i, op in enumerate(ops)
        ]
        self._warns = not all(map(_is_silent, ops))
        self._start: list[Array | None] | None = None

    def _place(self, tensor: Tensor | None) -> int:
        """The last value stands for an operand that is absent."""
        return -1 if tensor is None else self._places.setdefault(tensor, len(self._places))

    def _expect(self, made: set[Tensor], tensors: Iterable[Tensor | None]) -> None:
        found = [t for t in tensors if t is not None and t not in made]
        self._unmade += found
        made.update(found)

    def _drops(self, ops: Sequence[Op], results: list[Tensor]) -> list[list[int]]:
        """For each op what it is the last to read."""
        found: list[list[int]] = []
        seen = {*results, *self._unmade}
        for op in reversed(ops):
            last = [t for t in dict.fromkeys(op.inputs) if t is not None and t not in seen]
            seen.update(last)
            found.append([self._place(t) for t in last])
        return found[::-1]

    def run(self, given: Sequence[Array], state: State, one: Evaluate | None = None) -> list[Array]:
        """The wanted values. one: evaluates an op, for those who look on."""
        values = self._values()
        for place, array in zip(self._given, given, strict=True):
            values[place] = array
        with np.errstate(all="ignore") if self._warns else _AS_IT_IS:
            for op, run, reads, writes, drops, constant, late in self._steps:
                outputs = state.constants.get(op) if constant else None
                if outputs is None:
                    inputs = [values[place] for place in reads]
                    if late:
                        _claim_late(op, inputs)
                    outputs = run(inputs, state) if one is None else one(op, inputs, state)
                    if constant:
                        _keep(op, outputs, state)
                for place, array in zip(writes, outputs, strict=True):
                    values[place] = array
                for place in drops:
                    values[place] = None
        return [values[place] for place in self._results]  # type: ignore[misc]

    def _values(self) -> list[Array | None]:
        """What there is before anything is given."""
        if self._start is None:
            self._start = [None] * (len(self._places) + 1)
            for tensor in self._unmade:
                self._start[self._places[tensor]] = tensor.data
            self._unmade = [t for t in self._unmade if t.data is None]
        values = self._start.copy()
        for tensor in self._unmade:
            values[self._places[tensor]] = _initial(tensor)
        return values


def _is_constant(op: Op) -> bool:
    from_constants = bool(op.inputs) and all(t is None or t.is_constant for t in op.inputs)
    return from_constants and not definition(op).stateful


def _keep(op: Op, outputs: list[Array], state: State) -> None:
    """Weights that are stored narrow or sparse are expanded once, not in every run."""
    for array in outputs:
        array.flags.writeable = False
    state.constants[op] = outputs


def _claim(op: Op, made: Iterable[Tensor | Spec]) -> None:
    """Refuse an op whose evaluation would take more memory than it may; made: its results. What it
    reads is there already; what it makes of constants is in proportion to the file."""
    read = [t.shape for t in op.inputs if t is not None and not t.is_constant]
    written = [r.shape for r in made if r.shape is not None]
    need, most = TEMPORARY * sum(map(elements, (*read, *written))), MAX_MEMORY.size()
    if need > most:
        raise InputError(
            f"to evaluate it may take {need} bytes, more than the limit of {most}",
            where=op.where,
            fix=f"use smaller input shapes, or set {MAX_MEMORY.name}",
        )


def _is_claimed_late(op: Op) -> bool:
    """Shapes of its results depend on values. Graphs that it calls are planned, or executed, by
    themselves."""
    late = any(t.is_dynamic for t in op.outputs)
    return late and not (definition(op).registered or op.subgraphs)


def _claim_late(op: Op, inputs: Sequence[Array | None]) -> None:
    """As _claim, where shapes depend on values: now these are there."""
    specs = [
        None if t is None or a is None else Spec(t.dtype, a.shape, a)
        for t, a in zip(op.inputs, inputs, strict=True)
    ]
    try:
        found = definition(op).infer(op, specs)
    except DATA_ERRORS:
        return  # the evaluation says what is wrong
    _claim(op, [found] if isinstance(found, Spec) else found)


def _is_silent(op: Op) -> bool:
    """NumPy has nothing to warn of: an op on strings or handles does not calculate, and the graphs
    that one calls see to themselves."""
    if definition(op).registered:
        return False
    types = {t.dtype for t in (*op.inputs, *op.outputs) if t is not None}
    moves = not types.isdisjoint(_NO_NUMBERS) and not any(t.is_float for t in types)
    return moves or bool(op.subgraphs)


def evaluate(op: Op, inputs: Sequence[Array | None], state: State) -> list[Array]:
    """One op on arrays; anything it cannot do is an error that names it."""
    check(op)
    _claim(op, op.outputs)
    with np.errstate(all="ignore"):
        return _Evaluation(op, prepares=False)(inputs, state)


class _Evaluation:
    """Evaluates one op, time and again. prepares: what is the same in every run is done in the
    first."""

    __slots__ = ("_op", "_prepares", "_run")

    def __init__(self, op: Op, prepares: bool) -> None:
        self._op, self._prepares = op, prepares
        self._run: Run | None = None

    def __call__(self, inputs: Sequence[Array | None], state: State) -> list[Array]:
        run = self._run
        try:
            if run is None:
                run = self._run = self._first(inputs)
            found = run(inputs, state)
        except Exception as error:
            _blame(self._op, error)
        return [found] if type(found) is np.ndarray else as_list(found)

    def _first(self, inputs: Sequence[Array | None]) -> Run:
        op, row = self._op, definition(self._op)
        if row.registered:
            return lambda inputs, state: _custom(op, inputs, state)
        run = row.prepare(op, inputs) if self._prepares and row.prepare is not None else None
        if run is not None:
            return run
        if row.stateful:
            return lambda inputs, state: row.evaluate(op, inputs, state)
        return lambda inputs, state: row.evaluate(op, inputs)


def _blame(op: Op, error: Exception) -> NoReturn:
    """Re-raise with the place, if it is of the model's making."""
    if isinstance(error, SanderlingError):
        if error.where:
            raise error
        raise type(error)(error.what, where=op.where, fix=error.fix) from error
    if isinstance(error, MemoryError):
        raise ModelError(
            "not enough memory for its result",
            where=op.where,
            fix="check the shapes; use a smaller input",
        ) from error
    if not isinstance(error, DATA_ERRORS):
        raise error
    raise ModelError(
        f"cannot be evaluated: {error}",
        where=op.where,
        fix="its inputs or attributes do not fit together",
    ) from error


def _custom(op: Op, inputs: Sequence[Array | None], state: State) -> list[Array]:
    """A user's operator, as it is registered now."""
    row = definition(op)
    try:
        found = row.evaluate(op, inputs, state) if row.stateful else row.evaluate(op, inputs)
    except (SanderlingError, MemoryError):
        raise
    except Exception as error:
        raise custom_mistake(op, f"evaluate raised {error_text(error)}") from error
    return _custom_results(op, inputs, found)


def _custom_results(op: Op, inputs: Sequence[Array | None], found: object) -> list[Array]:
    """What a user's function returned, checked before others read it."""
    as_stated = all(
        t is None or a is None or a.shape == t.shape for t, a in zip(op.inputs, inputs, strict=True)
    )
    arrays = found if isinstance(found, list | tuple) else [found]
    if len(arrays) != len(op.outputs):
        raise custom_mistake(
            op, f"evaluate returned {len(arrays)} arrays for {len(op.outputs)} outputs"
        )
    for array, tensor in zip(arrays, op.outputs, strict=True):
        if not isinstance(array, np.ndarray | np.generic):
            what = f"evaluate returned {'None' if array is None else type(array).__name__}"
            raise custom_mistake(op, f"{what}, not an array, for '{tensor.name}'")
        if array.dtype != tensor.dtype.numpy:
            stated = f"'{tensor.name}', which is {tensor.dtype.numpy}"
            raise custom_mistake(op, f"evaluate returned an array of {array.dtype} for {stated}")
        known = as_stated and not tensor.is_dynamic and bool(tensor.shape)
        if known and array.shape != tensor.shape:
            stated = f"'{tensor.name}', infer said {list(tensor.shape)}"
            raise custom_mistake(op, f"evaluate returned shape {list(array.shape)} for {stated}")
    return [np.asarray(a) for a in arrays]


def initial_value(tensor: Tensor, shape: Shape | None = None) -> Array:
    """A variable tensor before its first use: TFLite clears it to zero, or to the zero point of
    an int8 tensor."""
    value = np.zeros(tensor.shape if shape is None else shape, tensor.dtype.numpy)
    quant = tensor.quant
    if tensor.dtype is DType.INT8 and quant is not None and quant.zero_point.any():
        value.fill(quant.zero_point.astype(np.int8)[0])
    return value


def _initial(tensor: Tensor) -> Array:
    if not tensor.is_variable:
        raise ModelError(
            "nothing computes it",
            where=f"tensor '{tensor.name}'",
            fix="the graph's order is wrong, or an input was not given",
        )
    return initial_value(tensor)

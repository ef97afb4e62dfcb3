"""Run a graph op by op on the definitions: the meaning of a model, before any planning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ..errors import ModelError, SanderlingError
from ..ir import Array, DType, Graph, Op, Shape, Tensor
from .base import DATA_ERRORS, State, as_list, check, custom_mistake, definition, error_text


def new_state() -> State:
    """A state whose graph calls are executed here."""
    state = State(call=lambda graph, args: execute(graph, args, state))
    return state


def execute(graph: Graph, inputs: Sequence[Array], state: State) -> list[Array]:
    """Evaluate the graph on arrays in the order of its inputs, which stay as they are: one that the
    graph treats as a variable is written to."""
    values = {t: a.copy() if t.is_variable else a
              for t, a in zip(graph.inputs, inputs, strict=True)}  # fmt: skip
    return run_ops(graph.ops, values, graph.outputs, state)


Evaluate = Callable[[Op, Sequence[Array | None], State], list[Array]]


def run_ops(ops: Sequence[Op], values: dict[Tensor, Array], wanted: Iterable[Tensor], state: State,
            one: Evaluate | None = None) -> list[Array]:  # fmt: skip
    """Evaluate ops in order; a value is dropped after its last use.

    values holds what is fed, variable tensors included; those are changed in place. one: evaluates
    an op, for those who look on.
    """
    one = one or evaluate
    results = list(wanted)
    reads = Counter(t for op in ops for t in op.inputs if t is not None)
    reads.update(results)
    for op in ops:
        outputs = state.constants.get(op)
        if outputs is None:
            outputs = one(op, [_value(t, values) for t in op.inputs], state)
            _keep(op, outputs, state)
        values.update(zip(op.outputs, outputs, strict=True))
        for tensor in op.inputs:
            if tensor is not None:
                reads[tensor] -= 1
                if reads[tensor] == 0:
                    values.pop(tensor, None)
    return [_required(t, values) for t in results]


def _keep(op: Op, outputs: list[Array], state: State) -> None:
    """Weights that are stored narrow or sparse are expanded once, not in every run."""
    from_constants = bool(op.inputs) and all(t is None or t.is_constant for t in op.inputs)
    if from_constants and not definition(op).stateful:
        for array in outputs:
            array.flags.writeable = False
        state.constants[op] = outputs


def evaluate(op: Op, inputs: Sequence[Array | None], state: State) -> list[Array]:
    """One op on arrays; anything it cannot do is an error that names it."""
    row = check(op)
    try:
        with np.errstate(all="ignore"):
            found = row.evaluate(op, inputs, state) if row.stateful else row.evaluate(op, inputs)
    except SanderlingError as error:
        if error.where:
            raise
        raise type(error)(error.what, where=op.where, fix=error.fix) from error
    except MemoryError as error:
        raise ModelError(
            "not enough memory for its result",
            where=op.where,
            fix="check the shapes; use a smaller input",
        ) from error
    except Exception as error:
        if row.registered:
            raise custom_mistake(op, f"evaluate raised {error_text(error)}") from error
        if not isinstance(error, DATA_ERRORS):
            raise
        raise ModelError(
            f"cannot be evaluated: {error}",
            where=op.where,
            fix="its inputs or attributes do not fit together",
        ) from error
    return _custom_results(op, inputs, found) if row.registered else as_list(found)


def _custom_results(op: Op, inputs: Sequence[Array | None], found: object) -> list[Array]:
    """What a user's function returned, checked before others read it."""
    as_stated = all(t is None or a is None or a.shape == t.shape
                    for t, a in zip(op.inputs, inputs, strict=True))  # fmt: skip
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


def _value(tensor: Tensor | None, values: dict[Tensor, Array]) -> Array | None:
    return None if tensor is None else _required(tensor, values)


def _required(tensor: Tensor, values: dict[Tensor, Array]) -> Array:
    found = values.get(tensor)
    if found is None:
        found = tensor.data
    if found is None and tensor.is_variable:
        found = values[tensor] = initial_value(tensor)
    if found is None:
        raise ModelError(
            "nothing computes it",
            where=f"tensor '{tensor.name}'",
            fix="the graph's order is wrong, or an input was not given",
        )
    return found

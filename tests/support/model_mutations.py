"""Models that mean something else than their author meant: decoded models with one to three
injuries each. A mutant is legal in form (its links are true); what it says may be nonsense."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from sanderling.format.schema import ENUMS, OPTIONS, TABLES, Field, default_options
from sanderling.ir import Array, DType, Graph, Model, Op, Quant, Tensor, link
from sanderling.ops import OPS

from ..conformance.cases import CASES
from ..conformance.harness import Case

Rng = np.random.Generator
SIZES = (0, 1, 2, 3, 5, 8, 17, 64, 1 << 16, 1 << 31)
INTS = (-(2**31), -(2**31) + 1, -1000, -129, -5, -2, -1, 0, 1, 2, 3, 4, 7, 31, 32, 127, 128, 255,
        1000, 65536, 2**31 - 1)  # fmt: skip
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, -1e30, 1e30, float("inf"), float("-inf"), float("nan"))
SCALES = (1e-30, 1e-6, 0.003, 0.5, 1.0, 3.0, 1e10, 3e38)
TYPES = tuple(DType)
MOST_ELEMENTS = 1 << 16  # of a constant that is made anew


@cache
def by_operator() -> dict[str, list[Case]]:
    """The cases of each operator: every operator gets an equal share of mutants."""
    found: dict[str, list[Case]] = {}
    for row in CASES:
        found.setdefault(row.op, []).append(row)
    return dict(sorted(found.items()))


def pick(rng: Rng, things: Sequence[Any]) -> Any:
    return things[int(rng.integers(len(things)))]


def choose_case(rng: Rng) -> Case:
    table = by_operator()
    chosen: Case = pick(rng, table[pick(rng, list(table))])
    return chosen


def mutate(model: Model, rng: Rng) -> list[str]:
    """Injure the model in one to three places; the names of what was done."""
    done = []
    for _ in range(int(rng.integers(1, 4))):
        name = pick(rng, list(MUTATIONS))
        graph = model.main if rng.random() < 0.7 else pick(rng, model.graphs)
        if MUTATIONS[name](model, graph, rng):
            done.append(name)
    for graph in model.graphs:
        _relink(graph)
    return done


def _relink(graph: Graph) -> None:
    """Lists and links as the ops have them now."""
    used = [t for op in graph.ops for t in (*op.inputs, *op.outputs, *op.intermediates)]
    listed = dict.fromkeys(t for t in (*graph.tensors, *graph.inputs, *graph.outputs, *used) if t)
    graph.tensors = list(listed)
    for tensor in graph.tensors:
        tensor.users, tensor.producer = [], None
    for op in graph.ops:
        link(op)


# -- tensors ------------------------------------------------------------------------------------


def _set_values(tensor: Tensor, values: Array) -> None:
    """Make it a constant of these values, as far as its type can hold them."""
    if tensor.dtype in (DType.RESOURCE, DType.VARIANT) or values.size > MOST_ELEMENTS:
        return
    tensor.sparsity = None
    tensor.shape = values.shape
    with np.errstate(all="ignore"):
        tensor.data = _as_type(values, tensor.dtype)


def _as_type(values: Array, dtype: DType) -> Array:
    if dtype is DType.STRING:
        made = np.empty(values.shape, np.object_)
        made.reshape(-1)[:] = [str(v).encode() for v in values.reshape(-1)]
        return made
    if values.dtype == object:
        values = np.zeros(values.shape)
    if dtype.is_integer:
        low, high = dtype.bounds
        plain = np.nan_to_num(np.real(values).astype(np.float64))
        return np.clip(plain, low, min(high, 2**62)).astype(dtype.numpy)
    return np.asarray(values).astype(dtype.numpy)


def _values(tensor: Tensor) -> Array:
    try:
        found = tensor.data
    except Exception:  # a stored form that an injury has broken
        found = None
    return np.zeros(tensor.shape[:4] if _few(tensor.shape) else (1,)) if found is None else found


def _few(shape: Sequence[int]) -> bool:
    return all(n >= 0 for n in shape) and np.prod([float(n) for n in shape]) <= MOST_ELEMENTS


def change_type(model: Model, graph: Graph, rng: Rng) -> bool:
    tensor: Tensor = pick(rng, graph.tensors)
    values = _values(tensor) if tensor.is_constant else None
    tensor.dtype = pick(rng, TYPES)
    if values is not None:
        _set_values(tensor, values)
    return True


def change_shape(model: Model, graph: Graph, rng: Rng) -> bool:
    tensor: Tensor = pick(rng, graph.tensors)
    shape = _other_shape(list(tensor.shape), rng)
    if tensor.is_constant:
        if not _few(shape):
            return False
        values = _values(tensor)
        flat = values.reshape(-1) if values.size else np.zeros(1, values.dtype)
        _set_values(tensor, np.resize(flat, shape))
    else:
        tensor.shape, tensor.signature = tuple(shape), None
    return True


def _other_shape(shape: list[int], rng: Rng) -> list[int]:
    kind = pick(rng, ("size", "size", "nudge", "longer", "shorter", "flat", "turned", "deep"))
    at = int(rng.integers(len(shape))) if shape else 0
    if kind == "longer" or not shape:
        shape.insert(at, pick(rng, SIZES[:6]))
    elif kind == "size":
        shape[at] = pick(rng, SIZES)
    elif kind == "nudge":
        shape[at] = max(0, shape[at] + pick(rng, (-1, 1)))
    elif kind == "shorter":
        del shape[at]
    elif kind == "flat":
        shape = [int(np.prod(shape))]
    elif kind == "turned":
        shape = shape[::-1]
    else:
        shape = [1] * int(rng.integers(1, 6)) + shape
    return shape


def change_constant(model: Model, graph: Graph, rng: Rng) -> bool:
    """Elements become numbers that stand for something: axes, sizes, limits."""
    constants = [t for t in graph.tensors if t.is_constant]
    if not constants:
        return False
    tensor: Tensor = pick(rng, constants)
    values = np.array(_values(tensor))
    flat = values.reshape(-1)
    if flat.size == 0 or tensor.dtype in (DType.STRING, DType.RESOURCE, DType.VARIANT):
        return False
    wide = flat.astype(np.complex128 if flat.dtype.kind == "c" else np.float64)
    count = flat.size if rng.random() < 0.2 else 1
    for _ in range(min(count, 16)):
        numbers = FLOATS if not tensor.dtype.is_integer and rng.random() < 0.5 else INTS
        wide[int(rng.integers(flat.size))] = pick(rng, numbers)
    _set_values(tensor, wide.reshape(values.shape))
    return True


def change_quant(model: Model, graph: Graph, rng: Rng) -> bool:
    tensor: Tensor = pick(rng, graph.tensors)
    quant = tensor.quant
    kind = pick(rng, ("none", "set", "scale", "zero", "axis", "channels", "theirs"))
    low, high = tensor.dtype.bounds if tensor.dtype.is_integer else (-128, 127)
    zero = min(int(pick(rng, (0, low, high, 3))), 2**63 - 1)
    if kind == "none":
        tensor.quant = None
    elif kind == "theirs":
        tensor.quant = pick(rng, graph.tensors).quant
    elif quant is None or quant.scale.size == 0 or kind == "set":
        tensor.quant = Quant.of([pick(rng, SCALES)], [zero])
    elif kind == "scale":
        scale = quant.scale.copy()
        scale[int(rng.integers(scale.size))] = pick(rng, SCALES)
        tensor.quant = replace(quant, scale=scale)
    elif kind == "zero":
        tensor.quant = replace(quant, zero_point=np.full_like(quant.zero_point, zero))
    elif kind == "axis":
        tensor.quant = replace(quant, axis=int(rng.integers(0, 5)))
    else:
        axis = int(rng.integers(len(tensor.shape))) if tensor.shape else 0
        count = tensor.shape[axis] if tensor.shape and tensor.shape[axis] < 1000 else 2
        tensor.quant = Quant.of(np.full(count, 0.02), np.zeros(count, int), axis)
    return True


def constant_becomes_input(model: Model, graph: Graph, rng: Rng) -> bool:
    constants = [t for t in graph.tensors if t.is_constant]
    if not constants:
        return False
    tensor: Tensor = pick(rng, constants)
    tensor.buffer, tensor.sparsity = None, None
    graph.inputs.append(tensor)
    return True


def input_becomes_constant(model: Model, graph: Graph, rng: Rng) -> bool:
    if not graph.inputs:
        return False
    tensor: Tensor = pick(rng, graph.inputs)
    if rng.random() < 0.9:
        graph.inputs = [t for t in graph.inputs if t is not tensor]
    if _few(tensor.shape):
        _set_values(tensor, rng.integers(-3, 4, tensor.shape).astype(np.float64))
    return True


def change_flag(model: Model, graph: Graph, rng: Rng) -> bool:
    """A variable, or a shape that is open."""
    tensor: Tensor = pick(rng, graph.tensors)
    if rng.random() < 0.5:
        tensor.is_variable = not tensor.is_variable
    else:
        tensor.signature = tuple(-1 if rng.random() < 0.5 else n for n in tensor.shape) or None
    return True


# -- ops ----------------------------------------------------------------------------------------


def change_attribute(model: Model, graph: Graph, rng: Rng) -> bool:
    ops = [op for op in graph.ops if op.attrs or OPTIONS.get(op.name)]
    if not ops:
        return False
    op: Op = pick(rng, ops)
    fields = {f.name: f for f in TABLES.get(OPTIONS.get(op.name, ""), ())}
    names = sorted({*op.attrs, *fields})
    if not names:
        return False
    name = pick(rng, names)
    if rng.random() < 0.1:
        op.attrs.pop(name, None)
    elif name in fields:
        value = op.attrs.get(name, default_options(op.name)[name])
        op.attrs[name] = _other_value(fields[name], value, model, rng)
    elif isinstance(op.attrs[name], bytes):
        op.attrs[name] = _other_bytes(op.attrs[name], rng)
    return True


def _other_value(field: Field, value: Any, model: Model, rng: Rng) -> Any:
    if field.kind == "graph":
        return pick(rng, model.graphs)
    if field.element == "graph":
        return [pick(rng, model.graphs) for _ in range(int(rng.integers(0, 4)))]
    if field.kind == "enum":
        return pick(rng, ENUMS[field.type])
    if field.kind == "vector":
        return _other_list(value, field, rng)
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return float(pick(rng, FLOATS))
    return _fitting(field, pick(rng, INTS)) if isinstance(value, int) else value


def _fitting(field: Field, value: int) -> int:
    """As a file could hold it."""
    kind = np.dtype(field.type)
    limits = np.iinfo(kind) if kind.kind in "iu" else np.iinfo(np.int32)
    return max(int(limits.min), min(int(limits.max), value))


def _other_list(value: Any, field: Field, rng: Rng) -> Any:
    if field.element != "scalar":
        return value
    if field.type == "uint8":
        return _other_bytes(value or b"", rng)
    found = list(value or [])
    kind = rng.random()
    if kind < 0.15:
        return []
    if kind < 0.5 or not found:
        number = pick(rng, INTS)
        found.append(float(number) if field.type == "float32" else _fitting(field, number))
    elif kind < 0.65:
        found.pop()
    else:
        number = pick(rng, INTS)
        found[int(rng.integers(len(found)))] = (
            float(number) if field.type == "float32" else _fitting(field, number)
        )
    return found


def _other_bytes(value: bytes, rng: Rng) -> bytes:
    data = bytearray(value)
    if not data or rng.random() < 0.2:
        return bytes(data[: len(data) // 2])
    data[int(rng.integers(len(data)))] = int(rng.integers(256))
    return bytes(data)


def change_operand(model: Model, graph: Graph, rng: Rng) -> bool:
    """Dropped, absent, doubled, exchanged or redirected."""
    if not graph.ops:
        return False
    op: Op = pick(rng, graph.ops)
    kind = pick(rng, ("drop", "absent", "double", "swap", "redirect", "redirect"))
    at = int(rng.integers(len(op.inputs))) if op.inputs else 0
    if not op.inputs or kind == "double":
        op.inputs.insert(at, pick(rng, op.inputs or graph.tensors))
    elif kind == "drop":
        del op.inputs[at]
    elif kind == "absent":
        op.inputs[at] = None
    elif kind == "swap":
        other = int(rng.integers(len(op.inputs)))
        op.inputs[at], op.inputs[other] = op.inputs[other], op.inputs[at]
    else:
        known = [t for t in graph.tensors if t.is_constant or t in graph.inputs or t.producer]
        op.inputs[at] = pick(rng, known or graph.tensors)
    return True


def change_result(model: Model, graph: Graph, rng: Rng) -> bool:
    """Results dropped, doubled or exchanged."""
    if not graph.ops:
        return False
    op: Op = pick(rng, graph.ops)
    kind = pick(rng, ("drop", "more", "swap"))
    if kind == "drop" and op.outputs:
        gone = op.outputs.pop(int(rng.integers(len(op.outputs))))
        graph.outputs = [t for t in graph.outputs if t is not gone] or graph.outputs
    elif kind == "more":
        op.outputs.append(_new_tensor(graph, rng))
    elif len(op.outputs) > 1:
        op.outputs.reverse()
    return True


def _new_tensor(graph: Graph, rng: Rng) -> Tensor:
    like: Tensor = pick(rng, graph.tensors)
    made = Tensor(f"new{len(graph.tensors)}", like.dtype, like.shape, quant=like.quant)
    graph.tensors.append(made)
    return made


def change_operator(model: Model, graph: Graph, rng: Rng) -> bool:
    """Another operator in its place, with the attributes that it knows."""
    if not graph.ops:
        return False
    op: Op = pick(rng, graph.ops)
    op.name = pick(rng, list(OPS))
    defaults = default_options(op.name)
    op.attrs = {k: op.attrs.get(k, v) for k, v in defaults.items()} or dict(op.attrs)
    return True


def change_order(model: Model, graph: Graph, rng: Rng) -> bool:
    if len(graph.ops) < 2:
        return False
    at, other = (int(rng.integers(len(graph.ops))) for _ in range(2))
    graph.ops[at], graph.ops[other] = graph.ops[other], graph.ops[at]
    return True


def graft(model: Model, graph: Graph, rng: Rng) -> bool:
    """An op of another case behind the others, on what they compute where types agree."""
    other = choose_case(rng).model()
    if len(other.graphs) > 1 or not other.main.ops:
        return False
    graph.ops += other.main.ops
    graph.inputs += other.main.inputs
    for op in other.main.ops:
        for place, tensor in enumerate(op.inputs):
            fits = [
                t
                for t in graph.tensors
                if tensor is not None
                and t.dtype is tensor.dtype
                and not t.is_constant
                and (t.producer or t in graph.inputs)
            ]
            if fits and tensor is not None and tensor in other.main.inputs and rng.random() < 0.8:
                op.inputs[place] = pick(rng, fits)
                graph.inputs = [t for t in graph.inputs if t is not tensor]
    graph.tensors += other.main.tensors
    graph.outputs += other.main.outputs
    return True


def remove_op(model: Model, graph: Graph, rng: Rng) -> bool:
    if len(graph.ops) < 2:
        return False
    graph.ops.pop(int(rng.integers(len(graph.ops))))
    return True


def change_border(model: Model, graph: Graph, rng: Rng) -> bool:
    """Inputs and outputs of a graph: dropped, doubled, reversed, others."""
    side = graph.outputs if rng.random() < 0.6 else graph.inputs
    kind = pick(rng, ("drop", "double", "reverse", "other", "other"))
    if kind == "drop" and side:
        side.pop(int(rng.integers(len(side))))
    elif kind == "double" and side:
        side.append(pick(rng, side))
    elif kind == "reverse":
        side.reverse()
    else:
        side.append(pick(rng, graph.tensors))
    return True


Mutation = Callable[[Model, Graph, Rng], bool]
MUTATIONS: dict[str, Mutation] = {
    "type": change_type,
    "shape": change_shape,
    "constant": change_constant,
    "quantisation": change_quant,
    "constant becomes input": constant_becomes_input,
    "input becomes constant": input_becomes_constant,
    "flag": change_flag,
    "attribute": change_attribute,
    "attribute again": change_attribute,
    "operand": change_operand,
    "result": change_result,
    "operator": change_operator,
    "order": change_order,
    "graft": graft,
    "removal": remove_op,
    "border": change_border,
}


# -- what it is fed -----------------------------------------------------------------------------


def feeds(case: Case, model: Model, rng: Rng) -> list[Array] | None:
    """Arrays for the main graph's inputs; None where one cannot be made."""
    try:
        planned = case.arrays(model, rng)
    except Exception:
        planned = []
    found = []
    for index, tensor in enumerate(model.main.inputs):
        if not _few(tensor.shape) or tensor.dtype in (DType.RESOURCE, DType.VARIANT):
            return None
        given = planned[index] if index < len(planned) else None
        fits = given is not None and given.shape == tensor.shape
        if fits and given is not None and given.dtype == tensor.dtype.numpy and rng.random() < 0.7:
            found.append(given)
        else:
            found.append(_fed(tensor, rng))
    return found


def _fed(tensor: Tensor, rng: Rng) -> Array:
    """Small numbers, or, of integers, now and then the numbers that are next to a limit."""
    shape = tensor.shape
    if tensor.dtype.is_integer and rng.random() < 0.5:
        return _as_type(rng.choice(np.array(INTS, np.float64), shape), tensor.dtype)
    if tensor.dtype.is_integer or tensor.dtype in (DType.BOOL, DType.STRING):
        return _as_type(rng.integers(-2, 6, shape).astype(np.float64), tensor.dtype)
    return _as_type(rng.uniform(-3, 3, shape), tensor.dtype)

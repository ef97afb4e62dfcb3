"""What a part is tried on: the user's samples, or noise; both are inputs of the model, and go
through the ops that stand before the part."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import InputError
from ...files import numpy_reader
from ...ir import Array, DType, Graph, Tensor
from ...progress import plural
from ...runtime.delegate_options import Option

MOST_SAMPLES = 8
NOISE = 2  # samples of it
Sample = Mapping[str, Array]
_OPTION = "delegate 'gpu', option 'samples'"


def _given(value: Any) -> Any:
    if isinstance(value, str | os.PathLike):
        name = os.fspath(value)
        if not name.endswith(".npz"):
            raise ValueError
        return name
    if isinstance(value, Mapping):
        return [value]
    if isinstance(value, Sequence) and all(isinstance(each, Mapping) for each in value) and value:
        return list(value)
    raise ValueError


SAMPLES = Option(
    "auto: inputs of the model to try it on",
    "an .npz file with an array for each input, a sample after the other; in Python also a list "
    "of arrays by name",
    _given,
)


def samples_of(chosen: Mapping[str, Any], inputs: Sequence[Tensor]) -> list[Sample]:
    """Inputs of the model, by name: the samples that were given, all of them checked, or noise."""
    if "samples" not in chosen:
        rng = np.random.default_rng(0)
        return [{t.name: _noise(t, rng) for t in inputs} for _ in range(NOISE)]
    given = chosen["samples"]
    where = given if isinstance(given, str) else _OPTION
    rows = _rows(given, inputs) if isinstance(given, str) else _separate(given, inputs)
    return [
        {t.name: _fitted(row[t.name], t, f"{where}, sample {number}") for t in inputs}
        for number, row in enumerate(rows)
    ]


def trial_of(chosen: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells one trial from others: the samples' content and the bound."""
    digest, given = hashlib.sha256(), chosen.get("samples", [])
    for sample in [_read(given)] if isinstance(given, str) else _arrays(given):
        for name, array in sorted(sample.items()):
            found = np.ascontiguousarray(array)
            digest.update(f"{name} {found.dtype} {found.shape}".encode() + found.tobytes())
    return digest.hexdigest(), chosen.get("precision_bound")


# -- from files and arrays ------------------------------------------------------------------------


def _read(path: str) -> Sample:
    """The arrays of a file; of each, the samples that are tried."""
    with numpy_reader(path, "cannot read it", "give an .npz file of arrays by name: np.savez"):
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise ValueError("it holds one array without a name, as np.save writes it")
        with loaded as file:
            arrays = {name: file[name] for name in file.files}
    return {name: array[:MOST_SAMPLES] if array.ndim else array for name, array in arrays.items()}


def _rows(path: str, inputs: Sequence[Tensor]) -> list[Sample]:
    """A sample after the other, of a file's arrays."""
    found = _by_input(_read(path), inputs, path, 1)
    counts = {name: len(array) if array.ndim else 0 for name, array in found.items()}
    shapes = ", ".join(f"'{name}' {list(array.shape)}" for name, array in found.items())
    if len(set(counts.values())) > 1:
        raise InputError(
            f"unequal numbers of samples; the shapes are {shapes}",
            where=path,
            fix="give as many samples for each input",
        )
    count = min(counts.values(), default=1)
    if not count:
        raise InputError(
            f"there is not a single sample in it; the shapes are {shapes}",
            where=path,
            fix=f"give samples, one after the other, of {_listed(inputs)}",
        )
    return [{name: array[number] for name, array in found.items()} for number in range(count)]


def _separate(given: Sequence[Mapping[str, Any]], inputs: Sequence[Tensor]) -> list[Sample]:
    return [
        _by_input(sample, inputs, f"{_OPTION}, sample {number}", 0)
        for number, sample in enumerate(_arrays(given))
    ]


def _arrays(given: Sequence[Mapping[str, Any]]) -> list[Sample]:
    """The samples that are tried, of those that a caller wrote into a list."""
    try:
        return [
            {str(name): np.asarray(value) for name, value in sample.items()}
            for sample in given[:MOST_SAMPLES]
        ]
    except (ValueError, OverflowError) as error:  # lists of unequal length, too large a number
        raise InputError(
            f"a value is no array: {error}",
            where=_OPTION,
            fix="give arrays by name, or lists of equal length",
        ) from error


def _by_input(arrays: Sample, inputs: Sequence[Tensor], where: str, leading: int) -> Sample:
    """The array of each input: by name; for the only input also the only array, or the only one
    that fits. leading: dimensions in front of those of a sample."""
    found = {t.name: arrays[t.name] for t in inputs if t.name in arrays}
    if not found and len(inputs) == 1:
        fitting = [a for a in arrays.values() if _fits(a.shape[leading:], inputs[0])]
        choice = list(arrays.values()) if len(arrays) == 1 else fitting
        found = {inputs[0].name: choice[0]} if len(choice) == 1 else {}
    missing = [t.name for t in inputs if t.name not in found]
    if missing:
        held = ", ".join(f"'{name}' {list(array.shape)}" for name, array in arrays.items())
        raise InputError(
            f"no array for the input '{missing[0]}'; it holds {held or 'nothing'}",
            where=where,
            fix=f"name the arrays as the inputs: {_listed(inputs)}",
        )
    return found


def _listed(inputs: Sequence[Tensor]) -> str:
    return ", ".join(f"'{t.name}' {t.type_text}" for t in inputs)


def _fits(shape: Sequence[int], tensor: Tensor) -> bool:
    """A sample may lack the dimension of a batch of one."""
    wanted = tuple(tensor.shape)
    return tuple(shape) == wanted or (wanted[:1] == (1,) and tuple(shape) == wanted[1:])


def _fitted(array: Array, tensor: Tensor, where: str) -> Array:
    """A sample in the type and shape of the input."""
    from ...runtime.inputs import fit

    if not _fits(array.shape, tensor):
        raise InputError(
            f"a sample of '{tensor.name}' has the shape {list(array.shape)}, the input is "
            f"{tensor.type_text}",
            where=where,
            fix="give samples of the model's shape, one after the other",
        )
    _check_finite(array, tensor, where)
    with np.errstate(over="ignore"):  # what is too large for the type becomes infinite
        made = fit(array, tensor, f"{where}, input '{tensor.name}'")
    _check_finite(made, tensor, where)
    return np.ascontiguousarray(made)


def _check_finite(array: Array, tensor: Tensor, where: str) -> None:
    if array.dtype.kind not in "fc" or np.isfinite(array).all():
        return
    count = int((~np.isfinite(array)).sum())
    raise InputError(
        f"{count} of {plural(array.size, 'value')} of '{tensor.name}' are NaN or infinite in "
        f"{array.dtype}",
        where=where,
        fix="leave the sample out, or replace the values",
    )


def _noise(tensor: Tensor, rng: np.random.Generator) -> Array:
    """Numbers from -1 to 1, codes of all values, small integers."""
    if tensor.dtype.is_float:
        return rng.uniform(-1, 1, tensor.shape).astype(tensor.dtype.numpy)
    low, high = (0, 2) if tensor.dtype is DType.BOOL else (0, 100)
    if tensor.quant is not None and tensor.quant.is_set:
        low, high = tensor.dtype.bounds[0], tensor.dtype.bounds[1] + 1
    return rng.integers(low, high, tensor.shape).astype(tensor.dtype.numpy)


def at_border(before: Graph, samples: Sequence[Sample]) -> list[list[Array]]:
    """What a part is given for each sample. before: the ops that stand before it, as a graph.
    Variables are tried as they begin."""
    computed = [t for t in before.outputs if not t.is_variable]
    begin = {t: np.zeros(t.shape, t.dtype.numpy) for t in before.outputs if t.is_variable}
    found = []
    for known in _computed(before, computed, samples):
        values = begin | dict(zip(computed, known, strict=True))
        found.append([values[t] for t in before.outputs])
    return found


def _computed(
    before: Graph, wanted: Sequence[Tensor], samples: Sequence[Sample]
) -> list[list[Array]]:
    if not before.ops:
        return [[sample[t.name] for t in wanted] for sample in samples]
    from ...ir import Model
    from ...runtime.session import Session

    graph = before.copy()
    graph.outputs = [graph.find(t.name) for t in wanted]
    session = Session(Model([graph]), ["cpu"])
    names = list(session.entry(None).outputs)
    return [[np.array(session.run(dict(s))[n]) for n in names] for s in samples]

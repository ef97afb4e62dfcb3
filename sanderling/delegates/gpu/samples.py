"""What a part is tried on: the user's samples, or noise; both are inputs of the model, and go
through the ops that stand before the part."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ...ir import Array, DType, Graph, Tensor
from ...runtime.delegate_options import Option

MOST_SAMPLES = 8
NOISE = 2  # samples of it
Sample = Mapping[str, Array]


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
    """Inputs of the model, by name. Those that nobody gave are noise."""
    rng = np.random.default_rng(0)
    given = list(islice(_read(chosen.get("samples", [])), MOST_SAMPLES))
    return [
        {t.name: _fitted(sample[t.name], t) if t.name in sample else _noise(t, rng) for t in inputs}
        for sample in (given or [{}] * NOISE)
    ]


def trial_of(chosen: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells one trial from others: the samples' content and the bound."""
    digest = hashlib.sha256()
    for sample in islice(_read(chosen.get("samples", [])), MOST_SAMPLES):
        for name, array in sorted(sample.items()):
            found = np.ascontiguousarray(array)
            digest.update(f"{name} {found.dtype} {found.shape}".encode() + found.tobytes())
    return digest.hexdigest(), chosen.get("precision_bound")


def _read(given: Any) -> Iterator[Sample]:
    if not isinstance(given, str):
        yield from given
        return
    try:
        with np.load(Path(given), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot read it: {error}", where=given, fix="give an .npz file of arrays by name"
        ) from error
    count = min((len(array) for array in arrays.values() if array.ndim), default=0)
    for number in range(count):
        yield {name: array[number] for name, array in arrays.items()}


def _fitted(array: Any, tensor: Tensor) -> Array:
    """A sample may lack the dimension of a batch of one."""
    found = np.asarray(array, tensor.dtype.numpy)
    if found.size != int(np.prod(tensor.shape)):
        raise InputError(
            f"a sample of '{tensor.name}' has the shape {list(found.shape)}, the input "
            f"{list(tensor.shape)}",
            where="delegate 'gpu', option 'samples'",
            fix="give samples of the model's shape, one after the other",
        )
    return found.reshape(tensor.shape)


def _noise(tensor: Tensor, rng: np.random.Generator) -> Array:
    """Numbers from -1 to 1, codes of all values, small integers."""
    if tensor.dtype.is_float:
        return rng.uniform(-1, 1, tensor.shape).astype(tensor.dtype.numpy)
    low, high = (0, 2) if tensor.dtype is DType.BOOL else (0, 100)
    if tensor.quant is not None and tensor.quant.is_set:
        low, high = tensor.dtype.bounds[0], tensor.dtype.bounds[1] + 1
    return rng.integers(low, high, tensor.shape).astype(tensor.dtype.numpy)


def at_border(before: Graph, samples: Sequence[Sample]) -> list[list[Array]]:
    """What a part is given for each sample. before: the ops that stand before it, as a graph."""
    if not before.ops:
        return [[sample[t.name] for t in before.outputs] for sample in samples]
    from ...ir import Model
    from ...runtime.session import Session

    session = Session(Model([before]), ["cpu"])
    names = list(session.entry(None).outputs)
    return [[np.array(session.run(dict(s))[n]) for n in names] for s in samples]

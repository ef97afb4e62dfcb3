"""Predictions as columns of a .npz, and back: exact, without pickle, and easy to read with NumPy.

A column of numbers, or of arrays of one shape, is one array with a row for each sample; arrays of
different shapes lie one after another, their shapes in `NAME@shapes`; everything else is JSON text
(as bytes). `@kinds` says which is which.
"""

from __future__ import annotations

import base64
import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...files import NUMPY
from ...ir import Array

KINDS = "@kinds"
SHAPES = "@shapes"


def pack(columns: Mapping[str, Sequence[Any]]) -> bytes:
    """Columns to the bytes of a .npz."""
    arrays: dict[str, Array] = {}
    kinds: dict[str, str] = {}
    for name, values in columns.items():
        kinds[name] = kind = _kind(values)
        arrays |= _WRITE[kind](name, values)
    return npz({KINDS: _text(kinds)} | arrays)


def unpack(blob: bytes) -> dict[str, list[Any]]:
    """ValueError if it is not what `pack` wrote."""
    if not blob.startswith(NUMPY):
        raise ValueError("not a file of columns: it is not a NumPy file")
    try:
        with np.load(io.BytesIO(blob), allow_pickle=False) as arrays:
            kinds = json.loads(arrays[KINDS].tobytes())
            return {n: _READ[kind](n, arrays) for n, kind in kinds.items()}
    except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"not a file of columns: {error}") from error


def rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def transposed(predictions: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Rows to columns; a row without a name has None."""
    names = dict.fromkeys(n for p in predictions for n in p)
    return {n: [p.get(n) for p in predictions] for n in names}


def canonical(value: Any) -> Any:
    """A prediction as it will be read back, so that it is the same whether it was on disk or not:
    lists for tuples, Python's numbers for NumPy's, arrays that own their values."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return np.array(value, order="C")
    if isinstance(value, Mapping):
        return {str(k): canonical(v) for k, v in value.items()}
    return [canonical(v) for v in value] if isinstance(value, list | tuple) else value


def listed(value: Any) -> Any:
    """Replace arrays by lists, for JSON that other programs read."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {k: listed(v) for k, v in value.items()}
    return [listed(v) for v in value] if isinstance(value, list | tuple) else value


def npz(arrays: Mapping[str, Array]) -> bytes:
    """np.savez takes names as keywords, and so cannot store one called 'file'."""
    blob = io.BytesIO()
    with zipfile.ZipFile(blob, "w") as archive:
        for name, array in arrays.items():
            piece = io.BytesIO()
            np.save(piece, array, allow_pickle=False)
            archive.writestr(f"{name}.npy", piece.getvalue())
    return blob.getvalue()


def _kind(values: Sequence[Any]) -> str:
    kinds = {type(v) for v in values}
    if kinds == {int} and all(abs(v) < 1 << 63 for v in values):
        return "int"
    if kinds == {float}:
        return "float"
    if (
        kinds == {np.ndarray}
        and len({v.dtype for v in values}) == 1
        and values[0].dtype.kind in "fiub"
    ):
        if len({v.shape for v in values}) == 1:
            return "array"
        if len({v.ndim for v in values}) == 1:
            return "ragged"
    return "json"


def _write_ragged(name: str, values: Sequence[Any]) -> dict[str, Array]:
    flat = np.concatenate([v.reshape(-1) for v in values])
    return {name: flat, name + SHAPES: np.array([v.shape for v in values], np.int64)}


def _read_ragged(name: str, arrays: Any) -> list[Any]:
    flat, shapes = arrays[name], arrays[name + SHAPES]
    ends = np.cumsum(np.prod(shapes, axis=1))
    pieces = np.split(flat, ends[:-1])
    return [p.reshape(tuple(s)) for p, s in zip(pieces, shapes.tolist(), strict=True)]


_WRITE: dict[str, Callable[[str, Sequence[Any]], dict[str, Array]]] = {
    "int": lambda name, values: {name: np.array(values, np.int64)},
    "float": lambda name, values: {name: np.array(values, np.float64)},
    "array": lambda name, values: {name: np.stack(values)},
    "ragged": _write_ragged,
    "json": lambda name, values: {name: _text([_encoded(v) for v in values])},
}
_READ: dict[str, Callable[[str, Any], list[Any]]] = {
    "int": lambda name, arrays: arrays[name].tolist(),
    "float": lambda name, arrays: arrays[name].tolist(),
    "array": lambda name, arrays: list(arrays[name]),
    "ragged": _read_ragged,
    "json": lambda name, arrays: [_decoded(v) for v in json.loads(arrays[name].tobytes())],
}


def _text(content: Any) -> Array:
    return np.frombuffer(json.dumps(content).encode(), np.uint8)


def _encoded(value: Any) -> Any:
    """What JSON can hold; an array among other things goes in as its .npy."""
    if isinstance(value, np.ndarray):
        piece = io.BytesIO()
        np.save(piece, value, allow_pickle=False)
        return {"@array": base64.b64encode(piece.getvalue()).decode()}
    if isinstance(value, dict):
        return {k: _encoded(v) for k, v in value.items()}
    return [_encoded(v) for v in value] if isinstance(value, list) else value


def _decoded(value: Any) -> Any:
    if isinstance(value, dict) and "@array" in value:
        return np.load(io.BytesIO(base64.b64decode(value["@array"])), allow_pickle=False)
    if isinstance(value, dict):
        return {k: _decoded(v) for k, v in value.items()}
    return [_decoded(v) for v in value] if isinstance(value, list) else value

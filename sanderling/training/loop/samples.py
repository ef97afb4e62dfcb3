"""Samples to train on, with their labels, from arrays or from the user's files.

Labels may be an array; a .npy, or the array `labels` of a .npz; the name of an array beside the
samples in their own .npz; a .csv with the columns `file` and `label`; or the word `folders`, where
pictures lie in a folder for each class, in the order of the folders' names.

What fits into KEPT_BYTES is read at once. Of more, such as a folder of 100,000 pictures, a batch is
read when it is asked for, and as many samples as that are kept (`file_rows.py`).
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ...files import numpy_reader
from ...ir import Array, Model, Tensor
from ...optimize.calibration.samples import Samples, SignatureSamples, read_samples
from ..constraint import Rows
from .file_rows import FileRows, Reader

FOLDERS = "folders"
LABELS = "labels"  # the array of a .npz that is taken for them
KEPT_BYTES = 256 << 20  # of samples in memory
Given = str | os.PathLike[str] | Array | Sequence[Array] | Mapping[str, Array]


@dataclass
class TrainingData:
    """inputs: an array for each input of the model, samples along the first axis, or files that
    are read when they are looked at. labels: one for each sample, or None. text: what they are, for
    people."""

    inputs: list[Rows]
    labels: Array | None = None
    text: str = "arrays"
    warnings: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.inputs[0]) if self.inputs else 0

    def part(self, places: Array | slice) -> TrainingData:
        """Some of the samples, with their labels."""
        labels = None if self.labels is None else self.labels[places]
        chosen = (x.part(places) if isinstance(x, FileRows) else x[places] for x in self.inputs)
        return TrainingData(list[Rows](chosen), labels, self.text, self.warnings)

    def spread(self, most: int) -> list[Array]:
        """So many samples at most, evenly over all, in memory."""
        places = np.unique(np.linspace(0, max(0, len(self) - 1), most).astype(np.int64))
        return [np.asarray(x[places[: len(self)]]) for x in self.inputs]


def read_training_data(
    data: Given,
    model: Model,
    labels: str | os.PathLike[str] | Array | None = None,
    **how: Any,
) -> TrainingData:
    """Samples as the model takes them: in memory, or files where they would not fit.

    data: an array (several inputs: a list of them, or a dict by input name), or a file or folder;
    how: the options of `read_samples`, such as samples=200 or preset="efficientnet-lite".
    """
    plain = _plain(data, model)
    found = read_samples(plain, model, **how)
    if isinstance(found, SignatureSamples):
        raise InputError(
            "samples of several signatures, and one graph is trained",
            where="data",
            fix="give the samples of one signature",
        )
    inputs = _read(found, model.main.inputs)
    chosen = None if labels is None else _labels(labels, found, plain)
    return TrainingData(inputs, chosen, found.text, found.warnings)


def no_samples(model: Model, labels: object = None) -> TrainingData:
    """What stands for samples where there are none; they have no labels either."""
    if labels is not None:
        raise InputError(
            "labels need the samples that they belong to", where="labels", fix="give data too"
        )
    return TrainingData([np.zeros((0, *t.shape[1:]), t.dtype.numpy) for t in model.main.inputs])


def _read(samples: Samples, tensors: Sequence[Tensor]) -> list[Rows]:
    """The samples of each input, at once if they are not too large together."""
    reader = Reader(samples, KEPT_BYTES)
    lazy = [FileRows(reader, t.name, np.arange(len(samples))) for t in tensors]
    size = sum(values.nbytes for values in reader(0).values())
    if size * len(samples) > KEPT_BYTES:
        return list(lazy)
    return [rows[:] for rows in lazy]


def _plain(data: Given, model: Model) -> str | Array | Mapping[str, Array]:
    """A path as a text; several arrays by the names of the inputs."""
    if isinstance(data, str | os.PathLike):
        return os.fspath(data)
    if isinstance(data, np.ndarray | Mapping):
        return data
    names = [t.name for t in model.main.inputs]
    if len(data) != len(names):
        raise InputError(
            f"{len(data)} arrays of samples for {', '.join(map(repr, names))}",
            where="data",
            fix="give one for each input, samples along the first axis",
        )
    return {name: np.asarray(array) for name, array in zip(names, data, strict=True)}


def _labels(given: str | os.PathLike[str] | Array, samples: Samples, data: Any) -> Array:
    if isinstance(given, str | os.PathLike):
        return _named(os.fspath(given), samples, data)
    return _of_rows(np.asarray(given), samples, "labels")


def _named(text: str, samples: Samples, data: Any) -> Array:
    path = Path(text)
    if text == FOLDERS:
        return _by_folder(samples, Path(data) if isinstance(data, str) else Path())
    if path.suffix.lower() == ".csv":
        return _from_csv(path, samples)
    if path.suffix.lower() in (".npy", ".npz"):
        return _of_rows(_array(path, LABELS), samples, text)
    if isinstance(data, str) and Path(data).suffix.lower() == ".npz":
        return _of_rows(_array(Path(data), text), samples, f"{data}, array '{text}'")
    raise InputError(
        f"'{text}' tells no labels",
        where="labels",
        fix=f"give a .npy, .npz or .csv file, '{FOLDERS}', or the name of an array in the .npz",
    )


def _array(path: Path, name: str) -> Array:
    if not path.is_file():
        raise InputError("there is no such file", where=str(path), fix="check the path")
    with numpy_reader(
        path, "not a readable .npy or .npz file", "write it with np.save or np.savez"
    ):
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            names = list(loaded.files)
            name = names[0] if len(names) == 1 else name
            if name in names:
                return np.asarray(loaded[name])
    raise InputError(
        f"there is no array '{name}' in it",
        where=str(path),
        fix=f"it holds {', '.join(names) or 'nothing'}",
    )


def _of_rows(labels: Array, samples: Samples, where: str) -> Array:
    """The labels of the samples that were chosen out of all rows."""
    count = max(samples.chosen, default=-1) + 1
    if labels.ndim == 0 or len(labels) < count:
        have = len(labels) if labels.ndim else "no list of"
        raise InputError(
            f"{have} labels for {count} samples", where=where, fix="give one for each sample"
        )
    return labels[np.asarray(samples.chosen)]


def _files(samples: Samples, what: str) -> list[Path]:
    if not samples.paths:
        raise InputError(
            f"labels by {what} need a folder of files",
            where="labels",
            fix="for arrays give a .npy, or the name of an array in the .npz",
        )
    return [Path(samples.paths[i]) for i in samples.chosen]


def _by_folder(samples: Samples, root: Path) -> Array:
    files = _files(samples, "folders")
    of_all = sorted({Path(p).relative_to(root).parts[0] for p in samples.paths})
    classes = {name: number for number, name in enumerate(of_all)}
    return np.array([classes[p.relative_to(root).parts[0]] for p in files], np.int64)


def _from_csv(path: Path, samples: Samples) -> Array:
    files = _files(samples, "file names")
    known = _table(path)
    missing = [p for p in files if p.name not in known]
    if missing:
        raise InputError(
            f"no label for '{missing[0].name}' and {len(missing) - 1} other files",
            where=str(path),
            fix="give a row for each file, with the columns file and label",
        )
    return np.array([known[p.name] for p in files], np.int64)


def _table(path: Path) -> dict[str, int]:
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
        return {Path(row["file"]).name: int(row["label"]) for row in rows}
    except FileNotFoundError as error:
        raise InputError("there is no such file", where=str(path), fix="check the path") from error
    except (KeyError, ValueError, TypeError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"not a table of labels: {type(error).__name__} {error}",
            where=str(path),
            fix="give a header line `file,label`, and a whole number for each file",
        ) from error

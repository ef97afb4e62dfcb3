"""Classification of labelled arrays in a .npz: pictures, sound, token ids, features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ...errors import InputError
from ...files import numpy_reader
from ...ir import Array, Tensor
from ...runtime.feeds import converts
from ...runtime.inputs import fit
from ..images.preprocess import numbers
from ..task import Ports, Prepared, Sample, register_task, setting
from .classify import Classification

LABELS = ("y", "label", "labels", "target", "targets", "class", "classes")
FIRST = ("x", "data", "input", "inputs", "images", "features", "audio", "ids")


@register_task
@dataclass(kw_only=True)
class Arrays(Classification):
    """Top-1 to top-10 accuracy on labelled arrays of a .npz file.

    Rows of an array are samples. Reals are quantised for integer inputs; a sample that is longer
    than the model's input (sound) is cut into windows, whose scores are averaged.
    """

    name = "arrays"
    is_light = True
    data: Path = setting(
        metavar="FILE.npz", help="Arrays whose rows are samples, and their labels."
    )
    labels: str = setting(
        default="",
        metavar="ARRAY",
        help="The array of labels: numbers, or names that --model-output-labels has. Default: y, "
        "label, labels, target or class.",
    )
    input: list[str] = setting(
        default=[],
        metavar="NAME=ARRAY",
        help="Which array is which input of the model; may be repeated. Default: by name, or the "
        "only one that is left.",
    )
    mean: str = setting(default="", metavar="M[,M,M]", help="Inputs are (value - mean) / std.")
    std: str = setting(default="", metavar="S[,S,S]", help="See --mean.")
    hop: int = setting(
        default=0,
        metavar="N",
        help="From window to window of a longer sample. Default: the input's length.",
    )

    def open(self, ports: Ports) -> None:
        super().open(ports)
        given = (self.mean, "--mean"), (self.std, "--std")
        self._scale = [np.asarray(numbers(*g), np.float32) if g[0] else None for g in given]

    @cached_property
    def content(self) -> dict[str, Array]:
        """Return all arrays of the file. Each process reads the file once."""
        if not self.data.is_file():
            raise InputError("there is no such file", where=str(self.data), fix="check the path")
        what, fix = "not a readable .npz file", "save it with np.savez(file, x=..., y=...)"
        with numpy_reader(self.data, what, fix):
            loaded = np.load(self.data, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                raise InputError(f"{what}: it is a .npy", where=str(self.data), fix=fix)
            with loaded:
                return {n: loaded[n] for n in loaded.files}

    @cached_property
    def feeds(self) -> dict[str, Array]:
        """Return the array that feeds each input."""
        stated = dict(_pair(text, list(self.ports.inputs)) for text in self.input)
        left = {n: a for n, a in self.content.items() if n != self._label_name}
        found: dict[str, Array] = {}
        for name, tensor in self.ports.inputs.items():
            wanted = stated.get(name) or self._guess(name, tensor, left)
            if wanted not in left:
                raise InputError(
                    f"no array '{wanted}' for input '{name}' {tensor.type_text}"
                    if wanted
                    else f"which array is input '{name}' {tensor.type_text}?",
                    where=str(self.data),
                    fix=f"write --input {name}=ARRAY, of {', '.join(left) or 'none'}",
                )
            found[name] = left[wanted]
        return found

    def _guess(self, name: str, tensor: Tensor, left: Mapping[str, Array]) -> str:
        if name in left or tensor.name in left:
            return name if name in left else tensor.name
        if len(self.ports.inputs) == 1:
            usual = [n for n in FIRST if n in left]
            rows = [n for n, a in left.items() if a.ndim and len(a) == len(self.truth)]
            return (usual or (rows if len(rows) == 1 else []) or [""])[0]
        return ""

    @cached_property
    def _label_name(self) -> str:
        names = [self.labels] if self.labels else [n for n in LABELS if n in self.content]
        if not names or names[0] not in self.content:
            raise InputError(
                f"no array '{self.labels}'"
                if self.labels
                else f"no array is called {', '.join(LABELS)}",
                where=str(self.data),
                fix=f"choose the labels with --labels, of {', '.join(self.content)}",
            )
        return names[0]

    @cached_property
    def truth(self) -> list[int]:
        """Labels as numbers: whole ones, names of classes, or rows of one-hot."""
        values = self.content[self._label_name]
        where = f"{self.data}, array '{self._label_name}'"
        if values.dtype.kind in "US":
            places = {n.strip().lower(): i for i, n in enumerate(self.names)}
            texts = [str(v).strip().lower() for v in values.astype(str)]
            unknown = [t for t in texts if t not in places]
            if unknown:
                raise InputError(
                    f"'{unknown[0]}' is not a class name of the model",
                    where=where,
                    fix="give --model-output-labels, with a name for every class, or "
                    f"choose the labels with --labels, of {', '.join(self.content)}",
                )
            return [places[t] for t in texts]
        if values.ndim == 2 and values.shape[1] == self.classes:
            return [int(n) for n in values.argmax(axis=1)]
        if values.ndim != 1 or not np.array_equal(values, np.floor(values)):
            raise InputError(
                f"labels of {values.dtype}{list(values.shape)} are not classes",
                where=where,
                fix="give one whole number a sample",
            )
        return [int(n) for n in values]

    def samples(self) -> Sequence[Sample]:
        for name, array in self.feeds.items():
            if array.ndim == 0 or len(array) != len(self.truth):
                raise InputError(
                    f"{len(self.truth)} labels, and the array of input '{name}' is "
                    f"{array.dtype}{list(array.shape)}",
                    where=str(self.data),
                    fix="give one row a label",
                )
            self._check_type(name, array)
        self.labelled = f"{self.data}, array '{self._label_name}'"
        found = [Sample(str(i), self.data, n, i) for i, n in enumerate(self.truth)]
        return self.check_labels(found)

    def _check_type(self, name: str, array: Array) -> None:
        """Raise, before any inference, if the array's type does not fit the input."""
        tensor, row = self.ports.inputs[name], array[:1]
        scaled = any(number is not None for number in self._scale)
        if scaled or array.dtype.kind not in "iu" or array.dtype == tensor.dtype.numpy:
            return
        if not converts(row, tensor):
            raise InputError(
                f"the array of input '{name}' is {array.dtype}, the model takes {tensor.type_text}",
                where=str(self.data),
                fix="say how it becomes the reals that the model was trained on: (value - --mean) "
                f"/ --std, for pixels often --std 255; or store {tensor.dtype.numpy}",
            )

    def preprocess(self, sample: Sample) -> Prepared:
        pieces = {
            n: self._pieces(self.feeds[n][sample.data], t) for n, t in self.ports.inputs.items()
        }
        count = max(map(len, pieces.values()))
        feeds = [{n: p[i if len(p) > 1 else 0] for n, p in pieces.items()} for i in range(count)]
        return Prepared(feeds if count > 1 else feeds[0])

    def _pieces(self, values: Array, tensor: Tensor) -> list[Array]:
        mean, std = self._scale
        if mean is not None or std is not None:
            values = (values.astype(np.float32) - (0 if mean is None else mean)) / (
                1 if std is None else std
            )
        if values.dtype.kind == "f" and tensor.dtype.is_float:
            values = values.astype(tensor.dtype.numpy)
        return [fit(_shaped(v, tensor), tensor) for v in self._windows(values, tensor)]

    def _windows(self, values: Array, tensor: Tensor) -> list[Array]:
        """A longer line of values than a fixed input takes, in equal pieces; what is left is less
        than one."""
        length = int(np.prod(tensor.shape))
        if values.ndim != 1 or values.size <= length or tensor.is_dynamic:
            return [values]
        starts = range(0, values.size - length + 1, self.hop or length)
        return [values[s : s + length] for s in starts]


def _shaped(values: Array, tensor: Tensor) -> Array:
    """The row in the input's shape, where it only lacks dimensions of 1."""
    wanted = tensor.shape
    if tensor.is_dynamic and values.ndim + 1 == len(wanted):
        return values[None]
    if values.shape != wanted and values.size == int(np.prod(wanted)):
        return values.reshape(wanted)
    return values


def _pair(text: str, inputs: Sequence[str]) -> tuple[str, str]:
    name, equals, array = text.rpartition("=")
    name = name if equals else inputs[0]
    if name not in inputs:
        raise InputError(
            f"the model has no input '{name}'",
            where="--input",
            fix=f"its inputs are {', '.join(inputs)}",
        )
    return name, array

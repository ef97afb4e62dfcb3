"""Samples from the user's files: a folder of pictures or arrays, a .npz, a .npy.

Nothing is decoded before it is asked for: a folder may be larger than the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, overload

import numpy as np

from ...errors import ArgumentError, InputError
from ...evaluate.images.pixels import RAW
from ...evaluate.images.preprocess import Pipeline, adjusted, load_pipeline, numbers
from ...files import numpy_reader
from ...ir import Array, Model, Tensor
from ...runtime.inputs import ARRAYS, PICTURES, fit

Feeds = dict[str, Array]  # by the name of the input's tensor
Steps = tuple[Array | None, Array | None]  # mean and std of arrays


@dataclass
class Samples(Sequence[Feeds]):
    """Samples that are read when they are looked at."""

    read: Callable[[int], Feeds]
    chosen: Sequence[int]
    text: str  # what they are, for people
    warnings: list[str] = field(default_factory=list)
    paths: Sequence[Path] = ()  # of all that could be chosen, where each is a file

    def __len__(self) -> int:
        return len(self.chosen)

    @overload
    def __getitem__(self, index: int) -> Feeds: ...
    @overload
    def __getitem__(self, index: slice) -> Samples: ...
    def __getitem__(self, index: int | slice) -> Feeds | Samples:
        if isinstance(index, slice):
            return replace(self, chosen=self.chosen[index])
        return self.read(self.chosen[index])

    def __iter__(self) -> Iterator[Feeds]:
        return (self.read(i) for i in self.chosen)


@dataclass
class SignatureSamples(Mapping[str, Samples]):
    """Samples of signatures that run graphs of their own, by signature."""

    parts: dict[str, Samples]

    def __getitem__(self, key: str) -> Samples:
        return self.parts[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    @property
    def text(self) -> str:
        return "; ".join(f"{key}: {part.text}" for key, part in self.parts.items())

    @property
    def warnings(self) -> list[str]:
        return [text for part in self.parts.values() for text in part.warnings]


def read_samples(
    data: str | Path | Array | Mapping[str, Array] | Mapping[str, str | Path],
    model: Model,
    *,
    samples: int = 0,
    preset: str = "",
    mean: str = "",
    std: str = "",
    crop: str = "",
    resample: str = "",
    bgr: bool | None = None,
    signature: str = "",
) -> Samples | SignatureSamples:
    """Samples for `quantize`, in the types and shapes that the model takes.

    data: a folder of pictures (those in folders below it too) or of .npy and .npz files, one sample
    a file; or a .npz or .npy whose rows are samples. Arrays belong to inputs by the name of the
    input's tensor or by the signature's; where they are called SIGNATURE/INPUT, each signature has
    rows of its own, and so it has in {SIGNATURE: path}. Signatures that run graphs of their own
    stay apart in what is returned.
    samples: at most so many of each signature, spread evenly over all; 0: all.
    preset, mean, std, crop, resample, bgr: as in `sanderling eval imagenet`; mean and std hold for
    arrays too.
    """
    if samples < 0:
        raise ArgumentError(f"`samples` is {samples}", fix="give 1 or more, or 0 for all")
    steps = _steps(mean, std)

    def read(given: Any, key: str) -> dict[str, Samples]:
        if not isinstance(given, str | Path):
            return _from_any(given, model, key, samples, steps, "arrays")
        path = Path(given)
        if not path.exists():
            raise InputError(
                "there is no such file or folder", where=str(path), fix="check the path"
            )
        how = adjusted(
            load_pipeline(preset or "tflite"),
            crop=crop,
            mean=mean,
            std=std,
            resample=resample,
            bgr=bgr,
        )
        inputs = _Inputs.of(model, key)
        if path.is_dir():
            return {key: _from_folder(path, inputs, samples, how, steps)}
        if path.suffix.lower() in {*PICTURES, RAW}:
            return {key: _from_pictures([path], inputs, samples, how, str(path))}
        made = _from_any(_load(path), model, key, samples, steps, str(path))
        unread = {"preset": preset, "crop": crop, "resample": resample, "bgr": bgr}
        for part in made.values():
            part.warnings += [
                f"{n} has no effect: the data are arrays" for n, v in unread.items() if v
            ]
        return made

    if isinstance(data, Mapping) and any(isinstance(v, str | Path) for v in data.values()):
        parts = {k: part for key, path in data.items() for k, part in read(path, key).items()}
    else:
        parts = read(data, signature)
    return _joined(parts, model)


def _joined(parts: Mapping[str, Samples], model: Model) -> Samples | SignatureSamples:
    """One after the other what the main graph takes; by signature where other graphs are run."""
    own = [key for key in parts if not key or model.signature(key).graph is model.main]
    if len(own) == len(parts):
        return _chained(list(parts.values()))
    entries = [s.key for s in model.signatures if s.graph is model.main]
    if not own or not entries:
        raise InputError(
            "there are no samples for the model's main graph",
            where="data",
            fix=f"give some for {entries[0]!r} too"
            if entries
            else "the main graph has no signature: quantise its own file",
        )
    others = {key: part for key, part in parts.items() if key not in own}
    return SignatureSamples({own[0] or entries[0]: _chained([parts[k] for k in own]), **others})


def _chained(parts: Sequence[Samples]) -> Samples:
    if len(parts) == 1:
        return parts[0]
    places = [(part, i) for part in parts for i in range(len(part))]
    return Samples(
        lambda i: places[i][0][places[i][1]],
        range(len(places)),
        "; ".join(part.text for part in parts),
        [text for part in parts for text in part.warnings],
    )


# -- inputs -----------------------------------------------------------------------------------


@dataclass
class _Inputs:
    """A graph's inputs, and what each may be called."""

    tensors: list[Tensor]
    names: dict[str, str]  # by which an array may go -> the tensor's
    fed: dict[str, str]  # the tensor's -> the sample's

    @staticmethod
    def of(model: Model, signature: str) -> _Inputs:
        """The inputs of the main graph, or of the one that the signature runs."""
        graph = model.signature(signature).graph if signature else model.main
        tensors = list(graph.inputs)
        known = [s for s in model.signatures if s.graph is graph and signature in ("", s.key)]
        names = {n: t.name for s in known for n, t in s.inputs.items()}
        fed = {t.name: t.name for t in tensors}
        if graph is not model.main:  # whose tensors' names are unique in their graph alone
            fed |= {tensor: name for name, tensor in names.items()}
        return _Inputs(tensors, names | {t.name: t.name for t in tensors}, fed)

    @property
    def only(self) -> Tensor | None:
        return self.tensors[0] if len(self.tensors) == 1 else None

    def listed(self) -> str:
        shown = {tensor: name for name, tensor in reversed(self.names.items())}
        return ", ".join(f"'{shown[t.name]}' {t.type_text}" for t in self.tensors)


def _spread(count: int, most: int) -> list[int]:
    """Evenly over all of them: the first of a folder sorted by class would be of one class."""
    if not most or most >= count:
        return list(range(count))
    return [i * count // most for i in range(most)]


# -- pictures and folders ---------------------------------------------------------------------


def _from_folder(path: Path, inputs: _Inputs, most: int, how: Pipeline, steps: Steps) -> Samples:
    files = sorted(p for p in path.rglob("*") if p.is_file())
    pictures = [p for p in files if p.suffix.lower() in {*PICTURES, RAW}]
    arrays = [p for p in files if p.suffix.lower() in ARRAYS]
    if pictures:
        return _from_pictures(pictures, inputs, most, how, str(path))
    if not arrays:
        what = (
            f"no picture and no array among its {len(files)} files"
            if files
            else "the folder is empty"
        )
        raise InputError(
            what,
            where=str(path),
            fix=f"known file types: {', '.join(sorted([*PICTURES, *ARRAYS]))}",
        )
    chosen = _spread(len(arrays), most)
    return Samples(
        lambda i: _one_file(arrays[i], inputs, steps),
        chosen,
        f"{len(chosen)} of {len(arrays)} arrays of {path}",
        paths=arrays,
    )


def _from_pictures(
    paths: Sequence[Path], inputs: _Inputs, most: int, how: Pipeline, where: str
) -> Samples:
    tensor = inputs.only
    if tensor is None:
        raise InputError(
            f"a picture is one input, the model has {len(inputs.tensors)}: {inputs.listed()}",
            where=where,
            fix="give a .npz with an array for each input, by name",
        )
    how.check(tensor)
    chosen = _spread(len(paths), most)
    name = inputs.fed[tensor.name]
    return Samples(
        lambda i: {name: how(paths[i], tensor)[0]},
        chosen,
        f"{len(chosen)} of {len(paths)} pictures of {where}, prepared by "
        f"{how.name or 'steps of your own'}",
        paths=paths,
    )


def _one_file(path: Path, inputs: _Inputs, steps: Steps) -> Feeds:
    """A file that is one sample: not rows, the inputs themselves."""
    arrays = _by_input(_load(path), inputs, str(path))
    return {
        inputs.fed[t.name]: _fitted(_scaled(arrays[t.name], steps), t, str(path))
        for t in inputs.tensors
    }


# -- arrays -----------------------------------------------------------------------------------


def _load(path: Path) -> Any:
    with numpy_reader(
        path,
        "not a readable .npy or .npz file",
        "give a folder of pictures, or a file of np.save or np.savez",
    ):
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            return {n: loaded[n] for n in loaded.files}


def _from_any(
    data: Any, model: Model, signature: str, most: int, steps: Steps, where: str
) -> dict[str, Samples]:
    """Rows of the signature stated, or of each that names are prefixed with."""
    inputs = _Inputs.of(model, signature)
    known = [signature] if signature else [s.key for s in model.signatures]
    groups: dict[str, dict[str, Array]] = {}
    for name in data if isinstance(data, Mapping) else ():
        key = next((k for k in known if name.startswith(f"{k}/")), None)
        if key is not None and name not in inputs.names:
            groups.setdefault(key, {})[name[len(key) + 1 :]] = data[name]
    if not groups:
        return {signature: _from_arrays(data, inputs, most, steps, where)}
    return {
        key: _from_arrays(arrays, _Inputs.of(model, key), most, steps, f"{where}, {key}")
        for key, arrays in groups.items()
    }


def _from_arrays(data: Any, inputs: _Inputs, most: int, steps: Steps, where: str) -> Samples:
    found = _by_input(data, inputs, where)
    rows = {t: _rows(found[t.name], t, where) for t in inputs.tensors}
    counts = {t.name: len(r) for t, r in rows.items()}
    if len(set(counts.values())) > 1:
        sizes = ", ".join(f"'{n}' {c}" for n, c in counts.items())
        raise InputError(
            f"unequal numbers of samples: {sizes}",
            where=where,
            fix="give as many rows for each input",
        )
    count = min(counts.values(), default=0)
    if not count:
        raise InputError("there is not a single sample in it", where=where, fix="give some rows")
    chosen = _spread(count, most)

    def read(i: int) -> Feeds:
        return {
            inputs.fed[t.name]: _fitted(_scaled(r[i], steps), t, where) for t, r in rows.items()
        }

    return Samples(read, chosen, f"{len(chosen)} of {count} rows of {where}")


def _by_input(data: Any, inputs: _Inputs, where: str) -> dict[str, Array]:
    """The array of each input: by name; the only one, or the only one that fits, for the only
    input. Others (labels) may lie beside them."""
    if not isinstance(data, Mapping):
        data = {"": np.asarray(data)}
    found = {inputs.names[n]: np.asarray(a) for n, a in data.items() if n in inputs.names}
    only = inputs.only
    if only is not None and not found:
        fitting = [a for a in map(np.asarray, data.values()) if _fits(a, only)]
        choice = list(data.values()) if len(data) == 1 else fitting
        found = {only.name: np.asarray(choice[0])} if len(choice) == 1 else {}
    missing = [t.name for t in inputs.tensors if t.name not in found]
    if missing:
        raise InputError(
            f"no array for the input '{missing[0]}' of shape {_wanted(inputs, missing[0])}; "
            f"it holds {_held(data)}",
            where=where,
            fix=f"name arrays as the inputs: {inputs.listed()}",
        )
    return found


def _wanted(inputs: _Inputs, name: str) -> list[int]:
    return next(list(_shape(t)) for t in inputs.tensors if t.name == name)


def _held(arrays: Mapping[str, Any]) -> str:
    held = (f"{n!r} of shape {list(np.shape(a))}" for n, a in arrays.items())
    return ", ".join(held) or "nothing"


def _shape(tensor: Tensor) -> Sequence[int]:
    """-1 where any length goes."""
    return tensor.signature or tensor.shape


def _matches(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    return len(shape) == len(wanted) and all(
        w in (-1, n) for n, w in zip(shape, wanted, strict=True)
    )


def _fits(array: Array, tensor: Tensor) -> bool:
    """Rows of samples, with the batch dimension of 1 or without."""
    wanted = _shape(tensor)
    is_single = len(wanted) > 0 and wanted[0] in (1, -1)
    return _matches(array.shape[1:], wanted) or (
        is_single and _matches(array.shape[1:], wanted[1:])
    )


def _rows(array: Array, tensor: Tensor, where: str) -> Array:
    if not array.ndim or not _fits(array, tensor):
        raise InputError(
            f"an array of shape {list(array.shape)} for the input '{tensor.name}', "
            f"which is {tensor.type_text}",
            where=where,
            fix="give rows of that shape: " + str(["n", *_shape(tensor)[1:]]).replace("'", ""),
        )
    return array


def _fitted(array: Array, tensor: Tensor, where: str) -> Array:
    made = np.ascontiguousarray(fit(array, tensor, where))
    if not _matches(made.shape, _shape(tensor)):
        raise InputError(
            f"an array of shape {list(made.shape)} for the input '{tensor.name}', "
            f"which is {tensor.type_text}",
            where=where,
            fix="give arrays of that shape",
        )
    return made


def _steps(mean: str, std: str) -> Steps:
    made = [
        np.asarray(numbers(t, n), np.float32) if t else None
        for t, n in ((mean, "--mean"), (std, "--std"))
    ]
    return made[0], made[1]


def _scaled(array: Array, steps: Steps) -> Array:
    mean, std = steps
    if mean is not None:
        array = np.asarray(array, np.float32) - mean
    return array if std is None else np.asarray(array, np.float32) / std

"""What both sides of a diff are fed with: which inputs and outputs belong together, values made at
random as the guide's tool makes them, the user's files; and one value in the types of both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ArgumentError, InputError
from ...files import numpy_reader
from ...ir import Array, DType, Model, Shape, Tensor
from ...measure.inputs import by_input, checked_shape
from ...runtime.inputs import (
    ARRAYS,
    PICTURES,
    Picture,
    dequantize_array,
    fit,
    fits_shape,
    is_quantized,
    quantize_array,
    read_array,
)
from ..images.preprocess import Pipeline

MEAN, SPREAD = 0.5, 1 / 3  # of the guide's Gaussian, which is cut to [0, 1)
PLAIN_INTEGERS = (0, 99)  # wide integers without a scale: numbers of words, places, classes
Couples = list[tuple[Tensor, Tensor]]
Names = Mapping[Tensor, tuple[str, ...]]  # of the reference's inputs
Feeds = tuple[list[Array], list[Array]]  # for the reference, for the test


# -- which belong together ------------------------------------------------------------------------


def couple(a: Model, b: Model, what: str) -> Couples:
    """Inputs or outputs of the main graphs, in the order of a's: by signature name, by tensor name,
    by place, or by the only shape that fits."""
    ours, theirs = (list(getattr(m.main, what)) for m in (a, b))
    if len(ours) != len(theirs):
        raise InputError(
            f"the models have {len(ours)} and {len(theirs)} {what}: "
            f"{_listed(ours)} against {_listed(theirs)}",
            where=f"{what} of {_source(a)} and {_source(b)}",
            fix="compare two models of one network, with the same inputs and outputs",
        )
    couples = (
        _by_names(ours, theirs, _signature_names(a, what), _signature_names(b, what))
        or _by_names(ours, theirs, _tensor_names(ours), _tensor_names(theirs))
        or list(zip(ours, theirs, strict=True))
    )
    if not all(map(_fits, couples)):
        couples = _by_shape(ours, theirs) or couples
    for pair in couples:
        if not _fits(pair):
            raise InputError(
                f"{pair[0].type_text} '{pair[0].name}' against {pair[1].type_text} "
                f"'{pair[1].name}'",
                where=f"{what} of {_source(a)} and {_source(b)}",
                fix="the shapes must be equal: compare two models of one network",
            )
    return couples


def _source(model: Model) -> str:
    return Path(model.source).name if model.source else "the model"


def _listed(tensors: Sequence[Tensor]) -> str:
    return ", ".join(t.type_text for t in tensors) or "none"


def _signature_names(model: Model, what: str) -> dict[str, Tensor]:
    if len(model.signatures) != 1 or model.signatures[0].graph is not model.main:
        return {}
    return dict(getattr(model.signatures[0], what))


def input_names(model: Model) -> dict[Tensor, str]:
    """What the signature calls the inputs."""
    return {t: name for name, t in _signature_names(model, "inputs").items()}


def _tensor_names(tensors: Iterable[Tensor]) -> dict[str, Tensor]:
    return {t.name: t for t in tensors}


def _by_names(
    ours: list[Tensor],
    theirs: list[Tensor],
    named: Mapping[str, Tensor],
    other: Mapping[str, Tensor],
) -> Couples:
    """Nothing unless every one is named the same in both."""
    if set(named) != set(other) or set(named.values()) != set(ours):
        return []
    names = {t: n for n, t in named.items()}
    found = [(t, other[names[t]]) for t in ours]
    return found if len({b for _, b in found}) == len(theirs) else []


def _by_shape(ours: list[Tensor], theirs: list[Tensor]) -> Couples:
    """Pair inputs by shape, if each shape occurs once."""
    places = {t.shape: t for t in theirs}
    if len(places) != len(theirs) or {t.shape for t in ours} != set(places):
        return []
    return [(t, places[t.shape]) for t in ours]


def _fits(pair: tuple[Tensor, Tensor]) -> bool:
    """Dimensions that both files state must agree; open ones are compared in the run."""
    a, b = (t.signature or t.shape for t in pair)
    if -1 not in a and -1 not in b:
        return a == b
    return len(a) == len(b) and all(m == n or -1 in (m, n) for m, n in zip(a, b, strict=True))


def comparable(a: Tensor, b: Tensor) -> bool:
    """Equal integers mean equal reals: raw units can be compared."""
    if a.dtype is not b.dtype:
        return False
    if not (is_quantized(a) or is_quantized(b)):
        return True
    return a.quant is not None and a.quant.same_as(b.quant)


def as_real(array: Array, tensor: Tensor) -> Array:
    """Return the reals that the array stands for."""
    return dequantize_array(array, tensor)


def translated(array: Array, source: Tensor, target: Tensor) -> Array:
    """One tensor's value in another's type: the same real, as near as the target can hold it."""
    if comparable(source, target):
        return array
    reals = as_real(array, source)
    if is_quantized(target):
        return quantize_array(
            np.nan_to_num(reals.astype(np.float32), posinf=np.inf, neginf=-np.inf), target
        )
    if target.dtype.numpy.kind in "iu" and reals.dtype.kind == "f":
        reals = np.clip(np.rint(reals), *target.dtype.bounds)
    return reals.astype(target.dtype.numpy)


# -- where values come from -----------------------------------------------------------------------


@dataclass
class FeedSource:
    """Feeds for both sides, run by run, the same in every pass."""

    couples: Couples
    count: int
    text: str

    def feeds(self) -> Iterator[Feeds]:
        for index in range(self.count):
            yield self.at(index)

    def at(self, index: int) -> Feeds:
        both = [
            _both(self.value(index, lead), lead, a, b)
            for (a, b), lead in zip(self.couples, self.leads, strict=True)
        ]
        return [a for a, _ in both], [b for _, b in both]

    @property
    def leads(self) -> list[Tensor]:
        """The tensor that values are made for: the one of integers, whose range is known."""
        return [b if b.dtype.is_integer and a.dtype.is_float else a for a, b in self.couples]

    def value(self, index: int, lead: Tensor) -> Array:
        raise NotImplementedError


def _both(value: Array, lead: Tensor, a: Tensor, b: Tensor) -> tuple[Array, Array]:
    """Reals are put into the type of each, unrounded where it is of reals; integers are the lead's,
    and the other gets the reals that they stand for."""
    source = lead
    if value.dtype.kind == "f":
        source = next((t for t in (a, b) if t.dtype.is_float), lead)
    if value.dtype.kind == "f" and is_quantized(source):
        made = fit(value, a), fit(value, b)
    else:
        own = fit(value, source)
        made = translated(own, source, a), translated(own, source, b)
    return np.asarray(made[0], order="C"), np.asarray(made[1], order="C")  # keeps scalars


@dataclass
class GaussianFeeds(FeedSource):
    """The guide's: mean 0.5, deviation 1/3, drawn again outside of [0, 1), then stretched to
    [-1, 1) for floats and over the whole range of 8- and 16-bit integers."""

    seed: int = 0

    def value(self, index: int, lead: Tensor) -> Array:
        place = next(i for i, t in enumerate(self.leads) if t is lead)
        rng = np.random.default_rng([self.seed, index, place])
        return gaussian(lead, rng)


def gaussian(tensor: Tensor, rng: np.random.Generator) -> Array:
    """Random values for one input."""
    dtype, shape = tensor.dtype, tensor.shape
    if dtype is DType.STRING:
        return np.full(shape, b"sanderling", np.object_)
    if dtype is DType.BOOL:
        return _unit(rng, shape) >= MEAN
    if dtype.numpy.kind in "iu":
        full = dtype.bits <= 8 or is_quantized(tensor)
        low, high = dtype.bounds if full else PLAIN_INTEGERS
        return (low + np.floor(_unit(rng, shape) * (high - low + 1))).astype(dtype.numpy)
    return (2 * _unit(rng, shape) - 1).astype(dtype.numpy)


def _unit(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    drawn = rng.normal(MEAN, SPREAD, tuple(shape))
    while True:
        outside = (drawn < 0) | (drawn >= 1)
        if not outside.any():
            return drawn
        drawn[outside] = rng.normal(MEAN, SPREAD, int(outside.sum()))


@dataclass
class FileFeeds(FeedSource):
    """A folder of pictures or arrays, one file a run, for a model with one input."""

    paths: Sequence[Path] = ()
    picture: Picture | Pipeline | None = None

    def value(self, index: int, lead: Tensor) -> Array:
        path = self.paths[index]
        if path.suffix.lower() in ARRAYS:
            return _raw_array(path, lead)
        if isinstance(self.picture, Pipeline):
            # Reals where a side takes them: a preset's values depend on the input's type.
            pair = next(pair for pair in self.couples if lead in pair)
            made = self.picture(path, next((t for t in pair if t.dtype.is_float), lead))[0]
            return _checked(made, lead, str(path))
        return _checked(read_array(path, lead, self.picture), lead, str(path))


def _raw_array(path: Path, lead: Tensor) -> Array:
    """Read the array as it is stored: the float side gets reals that nobody has rounded."""
    stored = _load(path)
    array = stored if isinstance(stored, np.ndarray) else _only(stored, path)
    array = array[None] if array.ndim + 1 == len(lead.shape) else array
    return _checked(array, lead, str(path))


@dataclass
class ArrayFeeds(FeedSource):
    """Arrays by input, with samples along the first dimension."""

    arrays: Sequence[Array] = ()

    def value(self, index: int, lead: Tensor) -> Array:
        place = next(i for i, t in enumerate(self.leads) if t is lead)
        return self.arrays[place][index]


def source(
    couples: Couples,
    data: Any,
    runs: int | None,
    seed: int,
    picture: Picture | Pipeline | None = None,
    names: Mapping[Tensor, str] | None = None,
    shapes: Mapping[str, Shape] | None = None,
) -> FeedSource:
    """data: None for random values, a file, a folder, an array, or arrays by input name. names:
    what else the reference's inputs are called. shapes: of inputs, by name."""
    titles = [(names or {}).get(a, a.name) for a, _ in couples]
    couples = _at_shapes(couples, titles, shapes or {})
    known = {a: (a.name, title) for (a, _), title in zip(couples, titles, strict=True)}
    if runs is not None and runs < 1:
        raise ArgumentError(f"`runs` is {runs}", fix="give 1 or more")
    if data is None:
        count = 50 if runs is None else runs
        return GaussianFeeds(couples, count, f"random (Gaussian, seed {seed})", seed)
    if isinstance(data, str | Path):
        return _from_path(couples, Path(data), runs, picture, known)
    return _from_arrays(couples, data, runs, "arrays", known)


def _at_shapes(couples: Couples, titles: Sequence[str], shapes: Mapping[str, Shape]) -> Couples:
    """The inputs, or stand-ins for those that get another shape than the file's."""
    inputs = {title: a for title, (a, _) in zip(titles, couples, strict=True)}
    given = by_input(inputs, shapes)
    return [
        (a, b)
        if title not in given
        else (_sized(a, checked_shape(title, a, given[title])), _sized(b, given[title]))
        for title, (a, b) in zip(titles, couples, strict=True)
    ]


def _sized(tensor: Tensor, shape: Shape) -> Tensor:
    return Tensor(tensor.name, tensor.dtype, shape, quant=tensor.quant)


def _from_path(
    couples: Couples, path: Path, runs: int | None, picture: Picture | Pipeline | None, names: Names
) -> FeedSource:
    if not path.exists():
        raise InputError("there is no such file or folder", where=str(path), fix="check the path")
    if path.is_dir() or path.suffix.lower() in PICTURES:
        return _from_files(couples, path, runs, picture)
    stored = _load(path)
    if isinstance(stored, np.ndarray):
        return _from_arrays(couples, stored, runs, str(path), names)
    with stored:
        arrays = {n: _entry(stored, n, path) for n in stored.files}
    return _from_arrays(couples, arrays, runs, str(path), names)


def _from_files(
    couples: Couples, path: Path, runs: int | None, picture: Picture | Pipeline | None
) -> FeedSource:
    known = PICTURES | set(ARRAYS)
    paths = (
        [path]
        if path.is_file()
        else sorted(p for p in path.rglob("*") if p.suffix.lower() in known)
    )
    if not paths:
        raise InputError(
            "no picture and no .npy in this folder",
            where=str(path),
            fix=f"known kinds: {', '.join(sorted(known))}",
        )
    if len(couples) != 1:
        raise InputError(
            f"a file holds one input, the model has {len(couples)}",
            where=str(path),
            fix="give a .npz with an array for each input, by name",
        )
    paths = paths[:runs]
    return FileFeeds(couples, len(paths), f"{len(paths)} files of {path}", paths, picture)


def _from_arrays(
    couples: Couples, data: Any, runs: int | None, where: str, names: Names
) -> FeedSource:
    arrays = [_samples(_pick(data, names[a], len(couples), where), a, where) for a, _ in couples]
    counts = {len(a) for a in arrays}
    if len(counts) > 1:
        sizes = ", ".join(f"'{a.name}' {len(x)}" for (a, _), x in zip(couples, arrays, strict=True))
        raise InputError(
            f"unequal numbers of samples: {sizes}", where=where, fix="give as many for each input"
        )
    count = min(counts) if counts else 1
    count = count if runs is None else min(runs, count)
    if not count:
        raise InputError("there is no sample in it", where=where, fix="give one or more")
    return ArrayFeeds(couples, count, f"{count} samples of {where}", arrays)


def _pick(data: Any, names: tuple[str, ...], inputs: int, where: str) -> Array:
    if not isinstance(data, Mapping):
        if inputs != 1:
            raise InputError(
                f"one array for {inputs} inputs",
                where=where,
                fix="give a .npz with an array for each input, by name",
            )
        return np.asarray(data)
    found = next((n for n in names if n in data), None)
    if found is not None:
        return np.asarray(data[found])
    if inputs == 1 and len(data) == 1:
        return np.asarray(next(iter(data.values())))
    raise InputError(
        f"no array '{names[-1]}' in it", where=where, fix=f"it holds {', '.join(data) or 'nothing'}"
    )


def _samples(array: Array, tensor: Tensor, where: str) -> Array:
    """[samples, *shape of the input]: from such an array, from one sample, or from samples along
    a batch dimension of 1."""
    shape = tuple(tensor.shape)
    if array.shape == shape:
        array = array[None]
    elif shape and shape[0] == 1 and _matches(array.shape[1:], tensor, 1):
        array = array[:, None]
    elif _matches(array.shape, tensor):
        array = array[None]
    if not _matches(array.shape[1:], tensor):
        raise InputError(
            f"an array of shape {list(array.shape)}, the input is {tensor.type_text}",
            where=where,
            fix=f"give {['n', *shape]}".replace("'", "") + _other_shape(tensor),
        )
    return array


def _matches(shape: Sequence[int], tensor: Tensor, skip: int = 0) -> bool:
    """An array may have any size where the input's is open."""
    return fits_shape(shape, (tensor.signature or tensor.shape)[skip:])


def _other_shape(tensor: Tensor) -> str:
    return f", or another shape of the input with --shape {tensor.name}=..."


def _checked(array: Array, tensor: Tensor, where: str) -> Array:
    if not _matches(array.shape, tensor):
        raise InputError(
            f"an array of shape {list(array.shape)}, the input is {tensor.type_text}",
            where=where,
            fix=f"give arrays of the input's shape{_other_shape(tensor)}",
        )
    return array


def _load(path: Path) -> Any:
    with numpy_reader(
        path, "not a readable .npy or .npz file", "give .npy, .npz, a picture or a folder"
    ):
        return np.load(path, allow_pickle=False)


def _only(stored: Any, path: Path) -> Array:
    with stored:
        if len(stored.files) != 1:
            raise InputError(
                f"{len(stored.files)} arrays in one file of a folder",
                where=str(path),
                fix="give one array a file",
            )
        return _entry(stored, stored.files[0], path)


def _entry(stored: Any, name: str, path: Path) -> Array:
    with numpy_reader(path, f"its array '{name}' cannot be read", "save it again with np.savez"):
        return np.asarray(stored[name])

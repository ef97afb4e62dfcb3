"""Batches of samples: held out or trained on, in an order that the seed decides, and augmented.

Samples may be an array of any size, or files: what is not in a batch is not in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np

from ...errors import InputError
from ...ir import Array, Graph, Tensor
from ..constraint import Rows
from .file_rows import LARGEST, check_values

LEAST_SAMPLES = 8
MOST_HELD_OUT = 2048  # of more samples that are held out these judge


class Batches:
    """The samples of a run. mirror, crop: pictures are turned left to right by chance, and moved by
    at most so many pixels, with their edges repeated."""

    def __init__(
        self,
        rows: Sequence[Rows],
        batch: int,
        held_out: float,
        seed: int,
        mirror: bool = False,
        crop: int = 0,
    ) -> None:
        self.rows, self.batch, self.seed = rows, batch, seed
        self.mirror, self.crop = mirror, crop
        count = len(rows[0])
        order = np.random.default_rng(seed).permutation(count)
        held = min(max(1, int(count * held_out)), MOST_HELD_OUT)
        self.held, self.own = np.sort(order[:held]), order[held:]
        self.count = -(-len(self.own) // batch)  # of an epoch

    @property
    def is_augmented(self) -> bool:
        return self.mirror or self.crop > 0

    def take(self, places: Array) -> list[Array]:
        """The samples at these places, for each input."""
        found = [np.asarray(rows[places]) for rows in self.rows]
        for number, values in enumerate(found):
            _check_batch(values, places, f"{number + 1} of {len(found)}")
        return found

    def epoch(self, epoch: int, first: int = 0) -> Iterator[tuple[Array, list[Array]]]:
        """(places, samples for each input) of each batch from the `first` on. Every sample comes
        once."""
        order = np.random.default_rng((self.seed, epoch)).permutation(self.own)
        for number in range(first, self.count):
            places = order[number * self.batch : (number + 1) * self.batch]
            yield places, self._augmented(self.take(places), (self.seed, epoch, number))

    def parts(self, places: Array) -> Iterator[tuple[Array, list[Array]]]:
        """Some samples as they are, a batch at a time."""
        for first in range(0, len(places), self.batch):
            some = places[first : first + self.batch]
            yield some, self.take(some)

    def _augmented(self, inputs: list[Array], seed: tuple[int, ...]) -> list[Array]:
        if not self.is_augmented:
            return inputs
        rng = np.random.default_rng((*seed, 1))
        return [_varied(x, rng, self.mirror, self.crop) if x.ndim == 4 else x for x in inputs]


def _check_batch(values: Array, places: Array, name: str) -> None:
    """Refuse a batch with NaN or absurd values, by the first sample that has some."""
    if values.dtype.kind != "f" or not values.size or abs(values).max() <= LARGEST:
        return
    for place, sample in zip(places, values, strict=True):
        check_values(sample, f"sample {place}", name)


def _varied(pictures: Array, rng: np.random.Generator, mirror: bool, crop: int) -> Array:
    found = pictures.copy()
    if mirror:
        turned = rng.random(len(found)) < 0.5
        found[turned] = found[turned, :, ::-1]
    if crop:
        _, high, wide, _ = found.shape
        wider = np.pad(found, ((0, 0), (crop, crop), (crop, crop), (0, 0)), "edge")
        for i, (y, x) in enumerate(rng.integers(0, 2 * crop + 1, (len(found), 2))):
            found[i] = wider[i, y : y + high, x : x + wide]
    return found


# -- what is given --------------------------------------------------------------------------------


def checked_rows(graph: Graph, data: Rows | Sequence[Rows]) -> list[Rows]:
    """The samples of each input, or an error that says what does not fit."""
    given = cast("list[Rows]", list(data) if isinstance(data, list | tuple) else [data])
    inputs = graph.inputs
    if len(given) != len(inputs):
        names = ", ".join(f"'{t.name}'" for t in inputs)
        raise InputError(
            f"{len(given)} arrays of samples for {names}", where="data", fix="give one for each"
        )
    for rows, tensor in zip(given, inputs, strict=True):
        _check_shape(rows, tensor)
    if len({len(rows) for rows in given}) > 1 or len(given[0]) < LEAST_SAMPLES:
        counts = ", ".join(str(len(rows)) for rows in given)
        raise InputError(f"{counts} samples", where="data", fix=f"give {LEAST_SAMPLES} or more")
    return given


def _check_shape(rows: Rows, tensor: Tensor) -> None:
    shape = np.asarray(rows[:1]).shape[1:]
    wanted = tuple(tensor.signature or tensor.shape)[1:]
    fits = len(shape) == len(wanted) and all(
        w in (-1, n) for n, w in zip(shape, wanted, strict=True)
    )
    if not fits:
        raise InputError(
            f"samples of shape {shape}, not {wanted}",
            where=f"input '{tensor.name}'",
            fix="give samples along the first axis, as the model takes them",
        )


def checked_labels(labels: Array, count: int, classes: int | None, places: int | None = 1) -> Array:
    """Labels, one for each sample. classes: how many there are, where labels are class numbers.
    places: of a sample that have a class each, such as its pixels; None: as many as there are."""
    given = np.asarray(labels)
    if given.ndim == 0 or len(given) != count:
        have = len(given) if given.ndim else "no list of"
        raise InputError(
            f"{have} labels for {count} samples", where="labels", fix="give one for each sample"
        )
    if classes is None:
        return given
    if given.dtype.kind not in "iu":
        raise InputError(
            f"labels of the type {given.dtype}",
            where="labels",
            fix="give whole numbers of classes, or a loss of your own that takes these",
        )
    if places is not None and given.size != count * places:
        raise InputError(
            f"labels of shape {list(given.shape)}, and a sample has {places} classes",
            where="labels",
            fix="give numbers of classes (of one-hot rows: argmax(1))",
        )
    most = max(classes, 2)
    if given.size and not 0 <= given.min() <= given.max() < most:
        raise InputError(
            f"labels from {given.min()} to {given.max()} for {most} classes",
            where="labels",
            fix=f"give classes from 0 to {most - 1}",
        )
    return given.reshape(-1 if places == 1 else given.shape).astype(np.int64)

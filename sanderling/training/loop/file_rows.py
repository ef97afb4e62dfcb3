"""Samples that are read when a batch asks for them, and are kept as far as they fit.

A folder may have more pictures than the memory: a batch is decoded for its step, and those that
were looked at last stay, up to a number of bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ...errors import InputError
from ...ir import Array
from ...optimize.calibration.samples import Samples

# Float32 ends at 3e38: sums of squares of such values in statistics, and products of weights behind
# them, stay far from it. Pictures, sounds and counts of anything are smaller.
LARGEST = 1e9


class Reader:
    """Reads samples by number. limit: bytes of them that are kept, the last ones."""

    def __init__(self, samples: Samples, limit: int) -> None:
        self.samples, self.limit = samples, limit
        self._kept: OrderedDict[int, Mapping[str, Array]] = OrderedDict()
        self._bytes = 0

    def __call__(self, number: int) -> Mapping[str, Array]:
        found = self._kept.get(number)
        if found is not None:
            self._kept.move_to_end(number)
            return found
        found = self.samples[number]
        for name, values in found.items():
            check_values(values, self._text(number), name)
        self._keep(number, found)
        return found

    def _keep(self, number: int, feeds: Mapping[str, Array]) -> None:
        self._kept[number] = feeds
        self._bytes += _size(feeds)
        while self._bytes > self.limit:
            self._bytes -= _size(self._kept.popitem(last=False)[1])

    def _text(self, number: int) -> str:
        """What a sample is called in an error."""
        place = self.samples.chosen[number]
        paths = self.samples.paths
        return f"sample {place} ({Path(paths[place])})" if paths else f"sample {place}"


class FileRows:
    """One input of samples along the first axis, indexed like an array by slices and by arrays of
    places."""

    def __init__(self, reader: Reader, name: str, places: Array) -> None:
        self.reader, self.name, self.places = reader, name, places

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, places: Array | slice) -> Array:
        chosen = self.places[places]
        if not len(chosen):
            return np.asarray(self.reader(0)[self.name])[:0]
        first = self._one(chosen[0])
        found = np.empty((len(chosen), *first.shape), first.dtype)
        for row, number in enumerate(chosen):
            found[row] = self._one(number)
        return found

    def _one(self, number: int) -> Array:
        values: Array = self.reader(int(number))[self.name][0]
        return values

    def part(self, places: Array | slice) -> FileRows:
        """Some of them, as unread as before."""
        return FileRows(self.reader, self.name, self.places[places])


def check_values(values: Array, what: str, name: str) -> None:
    """Refuse NaN, infinities and values that no input has: each would be in the statistics and the
    loss of all. what: the sample; name: its input."""
    if values.dtype.kind != "f" or not values.size:
        return
    largest = float(np.abs(values).max())  # NaN, if there is any
    if largest <= LARGEST:
        return
    fault = "NaN" if np.isnan(largest) else "infinite" if np.isinf(largest) else "absurd"
    more = f": as large as {largest:.3g}" if fault == "absurd" else ""
    raise InputError(
        f"{what} has {fault} values{more}",
        where=f"input '{name}'",
        fix="leave it out, mend it, or scale the samples as the model takes them",
    )


def _size(feeds: Mapping[str, Array]) -> int:
    return sum(values.nbytes for values in feeds.values())

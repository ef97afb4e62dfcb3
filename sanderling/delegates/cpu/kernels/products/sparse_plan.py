"""Products whose weights are mostly zero: how one is cut, what it costs, how weights are packed.

Lanes are rows of A (pixels), so that any single weight can be left out: a tile of A is transposed
into scratch as [unit of the depth][pixel], and each output channel adds up the units that its
weights are not zero for. A unit is what a core multiplies at once: a float, two words, four bytes.

    list        the units of `together` channels that are not zero in all of them, with the weights
    bundle      lists that are summed side by side: where a list ends, the processor has guessed
                wrong, and so it ends for several at once
    chunk       units at a time, so that what the lists point to stays in the first cache
    span        channels whose sums are held until their last chunk is done
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from .....ir import Array
from ...isa.targets import Target
from .cores import Core, DotCore, FloatCore, padded_depth

# Places are counted in steps of so many bytes: then 16 bits are enough.
STEP = 8
# Words of a row of the table of bundles; channels behind those of a span.
TABLE_WORDS, SPARE = 8, 4
# Bytes of the transposed tile that stay in the first cache; and of the whole of it.
NEAR, WHOLE = 40 * 1024, 512 * 1024
# Output channels that share lists; vectors of pixels.
TOGETHER, BUNDLES, VECTORS = (1, 2, 4), (1, 2, 4), (2, 3, 4, 5, 6, 7, 8)
# Channels whose sums are held at a time, if not all.
SPAN = 64
# Spans of a product in chunks: its tile is read again from the second cache for each of them, but
# several workers can each have some. (With one alone, the layers of 7x7 pixels were one worker's.)
SPLITS = (1, 2, 4, 8)
# Units of work that a step is cut into, if it can be.
UNITS = 8
# Cycles on an AMD Zen 5 server core, set by hand after layers of EfficientNet-Lite0 and SqueezeNet
# with 50 to 90 % zeros: of an entry; what a bundle of entries shares; a load of pixels; the end of
# a bundle; a vector of sums; a square of lanes on its way in and out, by lane. A load takes longer
# than half a cycle, though two go together: nothing in the inner loop was found to change that.
# (One loop over all lists that stores in every round, instead of a branch at each list's end: 10 to
# 40 % slower.) `python -m benchmarks.sparse --fit` fits them to single layers (RESULTS.md): those
# come closer, 3 % off in the median instead of 9 %, but whole networks chose worse with them (2:4
# 1.10 instead of 1.16, blocks of int8 1.48 instead of 1.58), so that these stay.
COSTS = np.array([0.13, 0.8, 0.68, 10.0, 1.0, 4.0, 4.5])
# Cycles of a line of 64 bytes that comes from the second cache.
LINE = 1.5
# A further channel's weight, a multiply-add, and how long one takes.
WEIGHT, FMA, LATENCY = 0.25, 0.55, 4.0
# Vectors of 8 lanes take less, compared with dense products of as many lanes: ten layers with AVX2
# were 20 % faster than estimated with 80 % zeros, as fast with a third.
NARROW = {8: 0.9}


@dataclass(frozen=True)
class Cut:
    """How a product is cut. vectors: of pixels in a tile. chunk: in units. span: in channels."""

    m: int
    n: int
    units: int
    lanes: int
    together: int
    bundle: int
    vectors: int
    chunk: int
    span: int

    @property
    def pitch(self) -> int:
        """Bytes from unit to unit of the transposed tile, and from channel to channel of sums."""
        return 4 * self.lanes * self.vectors

    @property
    def place_bytes(self) -> int:
        """The bytes of the places of a round of the inner loop."""
        return -(-self.bundle * 2 // 4) * 4

    @property
    def round_bytes(self) -> int:
        return self.place_bytes + 4 * self.bundle * self.together

    @property
    def groups(self) -> int:
        """Vectors of pixels in all; the last begins earlier instead of being smaller."""
        return math.ceil(self.m / self.lanes)

    @property
    def tiles(self) -> int:
        return math.ceil(self.groups / self.vectors)

    @property
    def last(self) -> int:
        """Vectors of the last tile."""
        return self.groups - (self.tiles - 1) * self.vectors

    @property
    def chunks(self) -> int:
        return math.ceil(self.units / self.chunk)

    @property
    def spans(self) -> int:
        return math.ceil(self.n / self.span)

    @property
    def spans_of_part(self) -> int:
        """Spans of a unit of work, which is a tile of pixels x some spans."""
        return math.ceil(self.spans / min(self.spans, math.ceil(UNITS / self.tiles)))

    @property
    def parts(self) -> int:
        """How many units of work share the pixels of a tile."""
        return math.ceil(self.spans / self.spans_of_part)


def units_of(core: Core, matrix: Array) -> Array:
    """[n, k] -> [n, units] of uint32, the weights of a unit side by side."""
    n, k = matrix.shape
    full: Array = np.zeros((n, padded_depth(core, k)), core.b_type)
    full[:, :k] = np.where(matrix == 0, 0, matrix)  # a zero may have a sign
    size = core.depth * full.itemsize
    kind: type[np.generic] = np.uint32 if size == 4 else np.uint16
    return full.view(kind).astype(np.uint32)


def cuts(target: Target, m: int, n: int, units: int) -> Iterator[Cut]:
    lanes = target.lanes
    groups = math.ceil(m / lanes)
    for together, bundle, most in product(TOGETHER, BUNDLES, VECTORS):
        tiles = math.ceil(groups / most)
        vectors = math.ceil(groups / tiles)
        if bundle * together > n or together > SPARE:
            continue
        if vectors * together * bundle + together + 1 > target.registers:
            continue
        pitch = 4 * lanes * vectors
        if units * pitch > WHOLE:
            continue
        pieces = math.ceil(units * pitch / NEAR)
        chunk = math.ceil(units / pieces)
        whole = _rounded(n, lanes)
        for span in _spans(whole, lanes) if pieces > 1 else [min(whole, SPAN)]:
            yield Cut(m, n, units, lanes, together, bundle, vectors, chunk, span)


def _spans(whole: int, lanes: int) -> list[int]:
    """Channels whose sums are held together, of a product in chunks."""
    return list(dict.fromkeys(_rounded(math.ceil(whole / parts), lanes) for parts in SPLITS))


def _rounded(n: int, lanes: int) -> int:
    return math.ceil(n / lanes) * lanes


def used_units(core: Core, used: Array) -> Array:
    """[n, k], which weights are not zero -> [n, units], which units are not."""
    n, k = used.shape
    full = np.zeros((n, padded_depth(core, k)), bool)
    full[:, :k] = used
    found: Array = np.logical_or.reduce(full.reshape(n, -1, core.depth), axis=2)
    return found


def best_cut(target: Target, core: Core, used: Array, m: int) -> tuple[float, Cut] | None:
    """The cut with the least estimated cycles, and these; None where there are fewer rows than
    lanes. used: [n, units], those that are not zero."""
    if m < target.lanes:
        return None
    n, units = used.shape
    entries = {together: int(_joined(used, together).sum()) for together in TOGETHER}
    work = 1.0 if isinstance(core, FloatCore | DotCore) else 2.0
    found = [(cut, entries[cut.together]) for cut in cuts(target, m, n, units)]
    best = min(found, key=lambda pair: _by_one_and_two(pair[0], pair[1], work), default=None)
    return None if best is None else (cycles(best[0], best[1], work), best[0])


def _joined(used: Array, together: int) -> Array:
    """[channels / together, units]: whether any of the channels uses a unit."""
    n, units = used.shape
    full = np.zeros((math.ceil(n / together) * together, units), bool)
    full[:n] = used
    joined: Array = np.logical_or.reduce(full.reshape(-1, together, units), axis=1)
    return joined


def terms(cut: Cut, entries: int) -> Array:
    """How often each of COSTS is paid, but for FMA and WEIGHT."""
    lists = math.ceil(cut.n / cut.together) * cut.chunks
    steps, vectors = entries * cut.tiles, cut.groups
    squares = [math.ceil(size / cut.lanes) * cut.lanes * vectors for size in (cut.units, cut.n)]
    ends, sums = lists * cut.tiles / cut.bundle, lists * vectors * cut.together
    return np.array([steps, steps / cut.bundle, entries * vectors, ends, sums, *squares])


def cycles(cut: Cut, entries: int, work: float, workers: int = 1) -> float:
    """Estimated, of the worker that has most to do. work: instructions of a multiply-add."""
    found = terms(cut, entries)
    weights = WEIGHT * (cut.together - 1) * found[0]
    loads = float(found[:3] @ COSTS[:3]) + weights
    products = max(FMA * work * found[2] * cut.together, LATENCY * work * found[1])
    filled, rest = float(found[5] * COSTS[5]), float(found[[3, 4, 6]] @ COSTS[[3, 4, 6]])
    own = max(loads, products) + rest + _read_again(cut)
    whole = own * _share(cut.tiles * cut.parts, workers) + filled * _share(cut.tiles, workers)
    return whole * NARROW.get(cut.lanes, 1.0)


def _share(units: int, workers: int) -> float:
    """The share of the units that the worker with most of them has."""
    return math.ceil(units / workers) / units


def _read_again(cut: Cut) -> float:
    """Cycles in which a tile that is too large for the first cache is read by its spans."""
    if cut.chunks == 1:
        return 0.0
    return LINE * cut.tiles * (cut.spans - 1) * cut.units * cut.pitch / 64


def _by_one_and_two(cut: Cut, entries: int, work: float) -> float:
    """What a cut is chosen by: code is the same for any number of workers, and a step that is one
    worker's alone keeps the others waiting."""
    return cycles(cut, entries, work) + 2 * cycles(cut, entries, work, 2)


@dataclass(frozen=True)
class Lists:
    """The packed weights. stream: rounds of the inner loop, one after the other: the places of
    `bundle` entries in the transposed tile, then their weights. table: of each bundle its rounds,
    where its stream begins, and the places of its lists' sums. ranges: for each span and chunk,
    which bundles are theirs."""

    stream: Array
    table: Array
    ranges: Array


@dataclass(frozen=True)
class Packing:
    """Makes the lists of one product."""

    cut: Cut
    words: Array  # [n, units] of uint32

    @cached_property
    def padded(self) -> Array:
        """[lists of a chunk, together, units]."""
        cut = self.cut
        count = math.ceil(cut.n / cut.together)
        full: Array = np.zeros((count * cut.together, cut.units), np.uint32)
        full[: cut.n] = self.words
        return full.reshape(count, cut.together, cut.units)

    def lists(self) -> Lists:
        cut = self.cut
        per_span = cut.span // cut.together
        parts = [
            self._part(np.arange(first, min(first + per_span, len(self.padded))), chunk)
            for first in range(0, len(self.padded), per_span)
            for chunk in range(cut.chunks)
        ]
        streams, tables = zip(*parts, strict=True)
        sizes = np.cumsum([0, *(s.nbytes for s in streams)])
        ends = np.cumsum([0, *map(len, tables)])
        for table, size in zip(tables, sizes, strict=False):
            table[:, 1] += size
        return Lists(
            np.concatenate([s.reshape(-1) for s in streams]),
            np.concatenate(tables).astype(np.int32),
            np.stack([ends[:-1], ends[1:]], axis=1).astype(np.int32),
        )

    def _part(self, rows: Array, chunk: int) -> tuple[Array, Array]:
        """The stream and the table of these lists in one chunk. Lists of about the same length go
        into one bundle."""
        cut, bundle = self.cut, self.cut.bundle
        first = chunk * cut.chunk
        part = self.padded[rows, :, first : first + cut.chunk]
        used = (part != 0).any(axis=1)
        counts = used.sum(axis=1)
        order = np.argsort(counts, kind="stable")
        count = math.ceil(len(rows) / bundle)
        rank = np.empty(len(rows), np.int64)
        rank[order] = np.arange(len(rows))
        longest = np.zeros(count * bundle, np.int64)
        longest[rank] = counts
        rounds = longest.reshape(count, bundle).max(axis=1)
        starts = np.cumsum(rounds) - rounds
        places: Array = np.zeros((rounds.sum(), bundle), np.uint32)
        weights: Array = np.zeros((rounds.sum(), bundle, cut.together), np.uint32)
        # What fills a list up points to a unit of its own: another's may be no number.
        lasts = np.zeros(count * bundle, np.int64)
        lasts[rank] = used.shape[1] - 1 - np.argmax(used[:, ::-1], axis=1)
        places[:] = np.repeat((first + lasts.reshape(count, bundle)) * cut.pitch, rounds, axis=0)
        where, units = np.nonzero(used)
        step = np.arange(len(where)) - np.repeat(np.cumsum(counts) - counts, counts)
        at = starts[rank[where] // bundle] + step, rank[where] % bundle
        places[at] = (first + units) * cut.pitch
        weights[at] = part[where, :, units]
        stream: Array = np.zeros((len(places), cut.round_bytes), np.uint8)
        stream[:, : 2 * bundle] = (places // STEP).astype(np.uint16).view(np.uint8)
        stream[:, cut.place_bytes :] = weights.reshape(len(weights), bundle * cut.together).view(
            np.uint8
        )
        # A list that is none has its sums behind all others.
        sums = np.full(count * bundle, cut.span * cut.pitch, np.int64)
        sums[rank] = (rows - rows[0]) * cut.together * cut.pitch
        table: Array = np.zeros((count, TABLE_WORDS), np.int64)
        table[:, 0], table[:, 1] = rounds, starts * cut.round_bytes
        table[:, 2 : 2 + bundle] = sums.reshape(count, bundle)
        return stream, table

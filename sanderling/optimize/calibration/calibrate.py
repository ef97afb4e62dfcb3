"""Ranges of activations from data: statistics that any order of samples leaves the same.

A value's bucket is the upper half of its float32 bits: sign, exponent, seven bits of mantissa.
Counts of buckets add up exactly, so a histogram needs no range beforehand, does not depend on the
order of samples, and can be kept on disk and continued. Extremes are of every value; of a large
tensor the histogram counts a part, whose places depend on what the sample holds.
"""

from __future__ import annotations

import hashlib
import io
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from ...errors import InputError, ModelError, SanderlingError
from ...files import numpy_reader
from ...format import write_atomic
from ...ir import Array, DType, Graph, Model, Tensor
from ...progress import Estimate
from ...runtime.delegate import Delegate
from ...runtime.feeds import as_fed
from ...runtime.session import Session
from ..modes.scheme import Floats

BUCKETS = 1 << 16
Counts = npt.NDArray[np.int64]
Sample = Mapping[str, Array] | Sequence[Array] | Array
Progress = Callable[[str, int, int], None]
SAVE_EVERY = 20.0  # seconds
MOST_COUNTED = 1 << 14  # values of one tensor in one sample that the histogram counts
# A float32 is a whole number of these: sums of them are exact, whatever their order.
UNIT = 149  # 2**-149
# The value in the middle of each bucket.
MIDDLES = ((np.arange(BUCKETS, dtype=np.uint32) << 16) | 0x8000).view(np.float32)


class SampleStatistics(NamedTuple):
    """One sample's values of one tensor, on their way into its statistics."""

    counts: Counts
    low: float
    high: float
    lows: Array | None  # by channel
    highs: Array | None


def sample_statistics(
    values: Array, phase: int, by_channel: bool = False
) -> SampleStatistics | None:
    """Look at one sample's values; None if there are none. Extremes that are not finite are the
    caller's to refuse."""
    flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    if not flat.size:
        return None
    width = values.shape[-1] if values.ndim else 1
    lows = highs = None
    if by_channel:
        rows = flat.reshape(-1, width)
        lows, highs = rows.min(axis=0), rows.max(axis=0)
    low, high = (flat, flat) if lows is None or highs is None else (lows, highs)
    counted = np.ascontiguousarray(_part(flat, width, phase)).view(np.uint16)[1::2]
    counts = np.bincount(counted, minlength=BUCKETS)
    return SampleStatistics(counts, float(low.min()), float(high.max()), lows, highs)


def _part(flat: Array, width: int, phase: int) -> Array:
    """Take evenly spread values of all channels."""
    step = -(-flat.size // MOST_COUNTED)
    while math.gcd(step, width) > 1:
        step += 1
    return flat[phase % step :: step]


@dataclass
class Statistics:
    """What was seen of one tensor."""

    counts: Counts = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))
    low: float = math.inf
    high: float = -math.inf
    samples: int = 0
    low_sum: int = 0  # of the samples' extremes, in units of 2**-149
    high_sum: int = 0
    lows: Array | None = None  # by channel, where a correction asks for it
    highs: Array | None = None

    def add(self, seen: SampleStatistics) -> None:
        self.counts += seen.counts
        self.low, self.high = min(self.low, seen.low), max(self.high, seen.high)
        self.samples += 1
        self.low_sum += int(math.ldexp(seen.low, UNIT))
        self.high_sum += int(math.ldexp(seen.high, UNIT))
        if seen.lows is not None and seen.highs is not None:
            self.lows = seen.lows if self.lows is None else np.minimum(self.lows, seen.lows)
            self.highs = seen.highs if self.highs is None else np.maximum(self.highs, seen.highs)

    @property
    def seen(self) -> bool:
        return self.samples > 0

    @property
    def mean_extremes(self) -> tuple[float, float]:
        """The means over samples of each one's least and largest value."""
        whole = self.samples << UNIT
        return self.low_sum / whole, self.high_sum / whole

    def values(self) -> tuple[Floats, Counts]:
        """Buckets that hold something: their values in rising order, and how many are in each."""
        held = np.flatnonzero(self.counts)
        middles = np.clip(MIDDLES[held].astype(np.float64), self.low, self.high)
        middles[(held & 0x7FFF) == 0] = 0.0  # zero itself, and what rounds to it
        order = np.argsort(middles, kind="stable")
        return middles[order], self.counts[held][order]


@dataclass
class Calibration:
    """Statistics of a model's float activations, by tensor name."""

    tensors: dict[str, Statistics] = field(default_factory=dict)
    samples: int = 0


# -- samples --------------------------------------------------------------------------------------


def as_feeds(sample: Sample, names: Sequence[str]) -> dict[str, Array]:
    """A sample as arrays by input name: a mapping, a sequence in the order of inputs, or the only
    input's array."""
    if isinstance(sample, Mapping):
        return {str(k): np.asarray(v) for k, v in sample.items()}
    arrays = [sample] if isinstance(sample, np.ndarray) else list(sample)
    if len(arrays) != len(names):
        raise InputError(
            f"{len(arrays)} arrays, the model has {len(names)} inputs",
            fix=f"give one for each: {', '.join(names)}",
        )
    return {n: np.asarray(a) for n, a in zip(names, arrays, strict=True)}


def synthetic(model: Model, count: int = 8) -> Iterator[dict[str, Array]]:
    """Made-up samples, for a quick look: unit normal reals and small integers."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        yield {t.name: _noise(t, rng) for t in model.main.inputs}


def _noise(tensor: Tensor, rng: np.random.Generator) -> Array:
    if tensor.dtype.is_float:
        return rng.standard_normal(tensor.shape).astype(tensor.dtype.numpy)
    return rng.integers(0, 2, tensor.shape).astype(tensor.dtype.numpy)


def digest(feeds: Mapping[str, Array]) -> str:
    made = hashlib.sha256()
    for name in sorted(feeds):
        array = np.ascontiguousarray(feeds[name])
        made.update(f"{name} {array.dtype} {array.shape} ".encode())
        made.update(array.tobytes())
    return made.hexdigest()[:20]


# -- watching -------------------------------------------------------------------------------------


def activations(graph: Graph) -> list[Tensor]:
    """Float values that are fed or computed: those that need ranges."""
    made = (t for op in graph.ops for t in op.outputs)
    found = dict.fromkeys(t for t in (*graph.inputs, *made) if t.dtype is DType.FLOAT32)
    return [t for t in found if not t.is_constant and not t.is_variable]


class Observer:
    """Runs a model with all its activations in sight. The model becomes the observer's own.

    by_channel: names of tensors whose extremes are kept for each channel too.
    """

    delegates: ClassVar[Sequence[str | Delegate]] = ("cpu",)

    def __init__(
        self, model: Model, threads: int | None = None, by_channel: Collection[str] = ()
    ) -> None:
        self.graph, self.by_channel = model.main, frozenset(by_channel)
        self.inputs = list(self.graph.inputs)
        self.seen = activations(self.graph)
        fed = set(self.inputs)
        self.computed = [t for t in self.seen if t not in fed]
        self.aliases = {
            name: t.name for s in model.signatures for name, t in s.inputs.items() if t in fed
        }
        # The graph's outputs come first and stay; signatures would hide the rest.
        shown = dict.fromkeys([*self.graph.outputs, *self.computed])
        self.graph.outputs, model.signatures = list(shown), []
        self.session = Session(model, self.delegates, threads)
        self.names = [t.name for t in self.inputs]
        self.last: dict[str, Array] = {}  # all that the last run took and gave

    def feeds(self, sample: Sample, number: int) -> dict[str, Array]:
        """The sample's arrays by tensor name, of the types and shapes that the model takes."""
        try:
            given = as_feeds(sample, self.names)
            named = {n if n in self.names else self.aliases.get(n, n): a for n, a in given.items()}
            return self._checked(named)
        except SanderlingError as error:
            where = f"calibration data, sample {number}"
            raise InputError(
                error.what, where=f"{where}, {error.where}" if error.where else where, fix=error.fix
            ) from error

    def _checked(self, named: Mapping[str, Array]) -> dict[str, Array]:
        wrong = [n for n in named if n not in self.names] or [
            n for n in self.names if n not in named
        ]
        if wrong:
            what = "there is no input" if wrong[0] in named else "there is nothing for input"
            raise InputError(f"{what} '{wrong[0]}'", fix=f"the inputs: {', '.join(self.names)}")
        return {t.name: _fed(t, named[t.name]) for t in self.inputs}

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Every activation by name; the arrays are good until the next run."""
        values = self.run_all(feeds)
        found = {t.name: values[t.name] for t in self.computed}
        fed = {t.name: np.asarray(feeds[t.name]) for t in self.inputs if t.dtype is DType.FLOAT32}
        return fed | found

    def run_all(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Inputs, activations and outputs by name, also those that are no floats."""
        self.session.reset_variables()  # a sample does not depend on those before it
        self.last = {**feeds, **self.session.run(feeds)}
        return self.last

    def observe(
        self, feeds: Mapping[str, Array], phase: int, number: int, found: dict[str, Statistics]
    ) -> None:
        """Add a sample to the statistics: all of it, or if something is wrong nothing."""
        seen = {
            name: sample_statistics(values, phase, name in self.by_channel)
            for name, values in self.run(feeds).items()
        }
        for name, one in seen.items():
            if one is not None and not math.isfinite(one.high - one.low):
                raise _unreal(name, one, number)
        for name, one in seen.items():
            if one is not None:
                found.setdefault(name, Statistics()).add(one)


def _fed(tensor: Tensor, array: Array) -> Array:
    """The array as the model takes it: one picture may come without its batch of one. A shape that
    the model does not leave open is not changed for a sample."""
    if array.ndim + 1 == len(tensor.shape) and tensor.shape[0] == 1:
        array = array[None]
    made = as_fed(tensor, array, tensor.name)
    stated = tensor.signature or tensor.shape
    if any(n not in (-1, m) for n, m in zip(stated, made.shape, strict=True)):
        raise InputError(
            f"its shape is {list(made.shape)}",
            where=f"input '{tensor.name}'",
            fix=f"the model takes {list(stated)}",
        )
    return made


def _unreal(name: str, seen: SampleStatistics, number: int) -> ModelError:
    what = "NaN" if math.isnan(seen.high - seen.low) else "infinite"
    return ModelError(
        f"a value is {what}",
        where=f"calibration data, sample {number}: tensor '{name}'",
        fix="leave the sample out, or find the op that makes it: sanderling diff --per-tensor",
    )


# -- calibrating ----------------------------------------------------------------------------------


def calibrate(
    observer: Observer,
    data: Iterable[Sample],
    keep: str | Path | None = None,
    identity: str = "",
    progress: Progress | None = None,
    total: int = 0,
    take: Callable[[str, dict[str, Array]], bool] = lambda name, feeds: True,
) -> Calibration:
    """Statistics of all samples that `take` takes; it is asked with each one's digest.

    keep: a file that is continued, if it is of the same model. An interruption leaves in it what
    was seen so far; samples that it knows are not run again.
    """
    store = StatisticsFile(Path(keep), identity) if keep else None
    run = _BackgroundRun(observer, *(store.load() if store else ({}, Counter())))
    saved = time.monotonic()
    count, ahead = 0, Estimate(f"calibrating with {total} samples", total)
    try:
        for count, sample in enumerate(data, 1):
            feeds = observer.feeds(sample, count)
            name = digest(feeds)
            if take(name, feeds):
                run.submit(name, feeds, count, remember=store is not None)
            if run.settled:  # the first one's run has the compilation in it
                ahead.step(count)
            if progress:
                progress("calibrating", count - run.unsettled, total)
            if store and time.monotonic() - saved > SAVE_EVERY:
                run.settle()
                store.save(run.found, run.done)
                saved = time.monotonic()
        run.settle()
    finally:  # also after Ctrl-C: what was seen is not seen again
        run.close()
        if store and run.done:
            store.save(run.found, run.done)
    if not count:
        raise InputError(
            "there is not a single sample",
            where="calibration data",
            fix="give images or arrays like those the model will see",
        )
    return Calibration(run.found, run.taken)


class _BackgroundRun:
    """Runs samples in a thread of its own while the next one is read. Ctrl-C never comes between
    the parts of one sample: it reaches the main thread alone."""

    def __init__(
        self, observer: Observer, found: dict[str, Statistics], done: Counter[str]
    ) -> None:
        self.observer, self.found, self.done = observer, found, done
        self.seen: Counter[str] = Counter()
        self.taken = self.settled = 0  # samples; those whose run has ended
        self.pool = ThreadPoolExecutor(1)
        self.waiting: Future[None] | None = None

    @property
    def unsettled(self) -> int:
        """Samples whose run may not have ended yet."""
        return int(self.waiting is not None)

    def submit(self, name: str, feeds: dict[str, Array], number: int, remember: bool) -> None:
        self.settle()
        self.taken += 1
        if remember:
            self.seen[name] += 1
            if self.seen[name] <= self.done[name]:
                return
        self.waiting = self.pool.submit(self._observe, name, feeds, number, remember)

    def _observe(self, name: str, feeds: dict[str, Array], number: int, remember: bool) -> None:
        self.observer.observe(feeds, int(name, 16), number, self.found)
        if remember:
            self.done[name] += 1

    def settle(self) -> None:
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            waiting.result()
            self.settled += 1

    def close(self) -> None:
        self.pool.shutdown(wait=True)


class StatisticsFile:
    """Statistics on disk, as .npz: counts, extremes, and which samples they are of."""

    def __init__(self, path: Path, identity: str) -> None:
        self.path, self.identity = path, identity

    def load(self) -> tuple[dict[str, Statistics], Counter[str]]:
        if not self.path.is_file():
            return {}, Counter()
        with (
            numpy_reader(
                self.path, "the kept statistics cannot be read", "remove the file to calibrate anew"
            ),
            np.load(self.path, allow_pickle=False) as file,
        ):
            return self._read(file)

    def _read(self, file: Any) -> tuple[dict[str, Statistics], Counter[str]]:
        if str(file["identity"]) != self.identity:
            raise InputError(
                "the kept statistics are of another model",
                where=str(self.path),
                fix="give another file, or remove it",
            )
        found = {}
        for i, name in enumerate(file["names"]):
            samples, low_sum, high_sum = map(int, file[f"{i}/sums"].tolist())
            low, high = file[f"{i}/extremes"].tolist()
            lows, highs = file[f"{i}/lows"], file[f"{i}/highs"]
            found[str(name)] = kept = Statistics(
                low=low,
                high=high,
                samples=samples,
                low_sum=low_sum,
                high_sum=high_sum,
                lows=lows if lows.size else None,
                highs=highs if highs.size else None,
            )
            kept.counts[file[f"{i}/buckets"]] = file[f"{i}/counts"]
        done = Counter(dict(zip(file["digests"].tolist(), file["times"].tolist(), strict=True)))
        return found, done

    def save(self, found: Mapping[str, Statistics], done: Mapping[str, int]) -> None:
        digests = sorted(done)
        arrays: dict[str, Any] = {
            "identity": self.identity,
            "names": np.array(list(found), np.str_),
            "digests": np.array(digests, np.str_),
            "times": np.array([done[d] for d in digests]),
        }
        nothing = np.zeros(0, np.float32)
        for i, s in enumerate(found.values()):
            held = np.flatnonzero(s.counts)
            arrays |= {
                f"{i}/buckets": held,
                f"{i}/counts": s.counts[held],
                f"{i}/extremes": np.array([s.low, s.high]),
                f"{i}/sums": np.array([str(s.samples), str(s.low_sum), str(s.high_sum)]),
                f"{i}/lows": nothing if s.lows is None else s.lows,
                f"{i}/highs": nothing if s.highs is None else s.highs,
            }
        target = io.BytesIO()
        np.savez_compressed(target, **arrays)
        write_atomic(self.path, target.getvalue())

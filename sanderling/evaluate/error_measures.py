"""How far two arrays are apart: errors summed over runs, and limits that they are held to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields

import numpy as np

from ..errors import InputError
from ..ir.types import Array

MOST_CHANNELS = 8192  # errors by channel are kept up to this many
TOP = (1, 5)


@dataclass(frozen=True)
class Errors:
    """Differences test - reference. Elements that are not finite in both are left out of the sums
    and counted: `unlike` are those where the two do not agree (NaN against a number, infinities of
    other signs, another shape)."""

    runs: int
    elements: int  # of all runs together
    avg_error: float  # mean over runs of the mean |difference|, as the guide's tool has it
    std_dev: float  # of these means, over runs
    min_error: float  # the smallest of these means
    max_mean_error: float  # the largest of these means
    max_error: float  # of a single element
    largest: float  # |reference| of a single element
    rmse: float
    relative: float  # |difference| / |reference|, Euclidean norms
    cosine: float
    snr_db: float  # of the reference over the difference; infinite where they are equal
    equal: float  # share of elements that are the same
    nan_reference: int
    nan_test: int
    unlike: int

    def to_json(self) -> dict[str, float]:
        return asdict(self)


@dataclass
class Tally:
    """Errors as they come in, run by run."""

    means: list[float] = field(default_factory=list)
    elements: int = 0
    most: float = 0.0  # the largest |difference|, and the largest |reference|
    largest: float = 0.0
    squares: float = 0.0  # sums of squares of the difference, the reference, the test
    reference: float = 0.0
    test: float = 0.0
    products: float = 0.0
    equal: int = 0
    nan_reference: int = 0
    nan_test: int = 0
    unlike: int = 0
    by_channel: Array | None = None  # squared differences by the last dimension
    rows: int = 0  # elements of a channel

    def add(self, reference: Array, test: Array, channels: bool = False) -> None:
        """One run's arrays, as reals."""
        if reference.shape != test.shape:
            self._strange(reference, test)
            return
        if reference.dtype.kind in "OSU":  # strings: equal or not
            reference, test = np.zeros(reference.shape), np.asarray(reference != test)
        a, b = _floats(reference), _floats(test)
        self.nan_reference += int(np.isnan(a).sum())
        self.nan_test += int(np.isnan(b).sum())
        usual = np.isfinite(a) & np.isfinite(b)
        if not usual.all():
            alike = (a == b) | (np.isnan(a) & np.isnan(b))
            self.unlike += int((~usual & ~alike).sum())
            self.equal += int((~usual & alike).sum())
            a, b = np.where(usual, a, 0), np.where(usual, b, 0)
        difference = b - a
        self._sum(a, b, difference, int(usual.sum()))
        if channels and a.ndim > 1 and a.shape[-1] <= MOST_CHANNELS:
            self._sum_channels(difference)

    def _strange(self, reference: Array, test: Array) -> None:
        """Results of data-dependent shape may not even be comparable."""
        self.elements += reference.size
        self.unlike += max(reference.size, test.size, 1)
        self.means.append(float("nan"))

    def _sum(self, a: Array, b: Array, difference: Array, usual: int) -> None:
        away = np.abs(difference)
        self.elements += a.size
        self.means.append(float(away.sum() / usual) if usual else 0.0 if not a.size else np.nan)
        self.most = max(self.most, float(away.max(initial=0)))
        self.largest = max(self.largest, float(np.abs(a).max(initial=0)))
        self.squares += float(np.vdot(difference, difference))
        self.reference += float(np.vdot(a, a))
        self.test += float(np.vdot(b, b))
        self.products += float(np.vdot(a, b))
        self.equal += usual - int(np.count_nonzero(difference))

    def _sum_channels(self, difference: Array) -> None:
        flat = difference.reshape(-1, difference.shape[-1])
        summed = np.einsum("ij,ij->j", flat, flat)
        if self.by_channel is None:
            self.by_channel = summed
        elif self.by_channel.shape == summed.shape:
            self.by_channel = self.by_channel + summed
        self.rows += len(flat)

    def channel_rmse(self) -> Array | None:
        """Return the RMSE of each channel, or None for a tensor without channels."""
        return None if self.by_channel is None else np.sqrt(self.by_channel / max(self.rows, 1))

    def errors(self) -> Errors:
        means = np.asarray(self.means, np.float64)
        sound = means[np.isfinite(means)]
        return Errors(
            runs=len(means),
            elements=self.elements,
            avg_error=float(sound.mean()) if sound.size else float("nan"),
            std_dev=float(sound.std()) if sound.size else float("nan"),
            min_error=float(sound.min()) if sound.size else float("nan"),
            max_mean_error=float(sound.max()) if sound.size else float("nan"),
            max_error=self.most if sound.size else float("nan"),
            largest=self.largest,
            rmse=float(np.sqrt(self.squares / max(self.elements, 1))),
            relative=_ratio(np.sqrt(self.squares), np.sqrt(self.reference)),
            cosine=self._cosine(),
            snr_db=decibels(self.reference, self.squares),
            equal=self.equal / self.elements if self.elements else 1.0,
            nan_reference=self.nan_reference,
            nan_test=self.nan_test,
            unlike=self.unlike,
        )

    def _cosine(self) -> float:
        if self.squares == 0:
            return 1.0
        size = np.sqrt(self.reference) * np.sqrt(self.test)
        return float(min(1.0, self.products / size)) if size > 0 else 0.0


def _floats(array: Array) -> Array:
    """As float64, so that no sum overflows; complex numbers as pairs."""
    if array.dtype.kind == "c":
        return np.stack([array.real, array.imag], -1).astype(np.float64)
    return np.asarray(array, np.float64)


def _ratio(above: float, below: float) -> float:
    return float(above / below) if below > 0 else 0.0 if above == 0 else float("inf")


def decibels(signal: float, noise: float) -> float:
    """The signal-to-noise ratio in dB: infinite without noise, minus infinity without a signal."""
    if noise == 0:
        return math.inf
    ratio = signal / noise
    return -math.inf if ratio <= 0 else 10 * math.log10(ratio)


@dataclass
class TopTally:
    """How often two give the same best classes, along the last dimension. A tie counts as
    agreement: among equal scores (quantised ones often are) the order says nothing."""

    rows: int = 0
    hits: dict[int, float] = field(default_factory=dict)

    def add(self, reference: Array, test: Array) -> None:
        if reference.shape != test.shape or not reference.ndim or reference.shape[-1] < 2:
            return
        if reference.dtype.kind in "OSUc":
            return
        a, b = (_floats(x).reshape(-1, reference.shape[-1]) for x in (reference, test))
        self.rows += len(a)
        for k in TOP:
            if k < a.shape[1]:
                self.hits[k] = self.hits.get(k, 0.0) + float(_agreement(a, b, k).sum())

    def shares(self) -> dict[int, float]:
        return {k: hits / self.rows for k, hits in self.hits.items()}


def _agreement(a: Array, b: Array, k: int) -> Array:
    """For each row: which share of a's best k are among b's best k. NaN is never best."""
    a, b = (np.where(np.isnan(x), -np.inf, x) for x in (a, b))
    best = np.argsort(-a, axis=1, kind="stable")[:, :k]
    least = np.sort(b, axis=1)[:, -k][:, None]
    chosen = np.take_along_axis(b, best, 1)
    return ((chosen >= least) & (chosen > -np.inf)).mean(axis=1)


@dataclass(frozen=True)
class ErrorLimits:
    """What must hold of every output. None is not asked for."""

    max_error: float | None = None  # of a single element, in real units
    max_avg_error: float | None = None
    max_raw_error: float | None = None  # in units of the integers, where both have the same
    max_relative: float | None = None
    min_cosine: float | None = None
    min_snr: float | None = None
    min_top1: float | None = None
    min_top5: float | None = None

    def __post_init__(self) -> None:
        for name, value in self.given().items():
            if not isinstance(value, int | float) or np.isnan(value):
                raise InputError(f"{value!r} is not a number", where=name, fix="give a number")
            if name.startswith("max") and value < 0:
                raise InputError(
                    f"{value:g} is below 0, where no error lies", where=name, fix="give 0 or more"
                )
            if value > 1 and name in ("min_cosine", "min_top1", "min_top5"):
                raise InputError(
                    f"{value:g} is more than 1, the most there is",
                    where=name,
                    fix="give a share: 0 to 1",
                )

    def given(self) -> dict[str, float]:
        named = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in named.items() if value is not None}

    def __str__(self) -> str:
        return ", ".join(
            f"{_WORDS[n]} {'>=' if n.startswith('min') else '<='} {v:g}"
            for n, v in self.given().items()
        )

    def broken(
        self, name: str, real: Errors, raw: Errors | None, top: Mapping[int, float]
    ) -> Iterator[str]:
        """A sentence for each that does not hold of this output."""
        if self.given() and real.unlike:
            yield (
                f"{name}: {real.unlike} of {real.elements} values cannot be compared "
                f"(NaN: {real.nan_reference} in the reference, {real.nan_test} in the test)"
            )
        found = _judged(real, raw, top)
        for limit, bound in self.given().items():
            value = found[limit]
            if value is None:
                continue  # see `unjudged`
            holds = value >= bound if limit.startswith("min") else value <= bound
            if not holds:
                sign = "<" if limit.startswith("min") else ">"
                yield f"{name}: {_WORDS[limit]} {value:.6g} {sign} {bound:g}"

    def unjudged(self, real: Errors, raw: Errors | None, top: Mapping[int, float]) -> list[str]:
        """The limits that say nothing about this output: it has no such figure."""
        found = _judged(real, raw, top)
        return [_WORDS[limit] for limit in self.given() if found[limit] is None]


def _judged(real: Errors, raw: Errors | None, top: Mapping[int, float]) -> dict[str, float | None]:
    return {
        "max_error": real.max_error,
        "max_avg_error": real.avg_error,
        "max_raw_error": raw.max_error if raw else None,
        "max_relative": real.relative,
        "min_cosine": real.cosine,
        "min_snr": real.snr_db,
        "min_top1": top.get(1),
        "min_top5": top.get(5),
    }


_WORDS = {
    "max_error": "largest error", "max_avg_error": "average error",
    "max_raw_error": "largest error in raw units", "max_relative": "relative error",
    "min_cosine": "cosine", "min_snr": "SNR (dB)", "min_top1": "top-1 agreement",
    "min_top5": "top-5 agreement",
}  # fmt: skip

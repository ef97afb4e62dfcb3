"""Statistics of right and wrong: intervals of shares, and of two models on the same samples.

Two models that look at the same pictures err on mostly the same ones. What they both get right or
wrong says nothing of their difference: only the samples count on which one is right and the other
wrong, and that is why a paired test sees a drop that two intervals side by side cannot show.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir import Array
from .error_measures import decibels

Z = 1.959963984540054  # 95 %
POOLED = "all classes, those of which the test says 0 taken as one"
Bools = npt.NDArray[np.bool_]


def wilson(right: int, count: int, z: float = Z) -> tuple[float, float]:
    """The 95 % interval of a share. Wilson's score interval: true near 0 and 1, and for few."""
    if count == 0:
        return 0.0, 1.0
    share, weight = right / count, z * z / count
    middle = (share + weight / 2) / (1 + weight)
    half = z * math.sqrt(share * (1 - share) / count + weight / (4 * count)) / (1 + weight)
    return max(0.0, middle - half), min(1.0, middle + half)


def mcnemar(gained: int, lost: int) -> dict[str, float]:
    """McNemar's test that neither is better: the exact p-value, and the mid-p, which is less
    cautious and closer to the level it names."""
    count, least = gained + lost, min(gained, lost)
    if count == 0:
        return {"exact": 1.0, "mid": 1.0}
    terms = [_binomial(count, k) for k in range(least + 1)]
    tail = math.fsum(terms)
    exact = min(1.0, 2 * tail)
    mid = min(1.0, 2 * tail - terms[-1]) if gained != lost else 1.0 - terms[-1] / 2
    return {"exact": exact, "mid": mid}


def _binomial(count: int, k: int) -> float:
    """The probability of k heads, also where the number of ways has no float."""
    ways = math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
    return math.exp(ways - count * math.log(2))


def difference(gained: int, lost: int, count: int, z: float = Z) -> dict[str, float]:
    """The difference of two shares on the same samples, with its 95 % interval: Wald's, after
    adding one sample of each kind (Bonett and Price 2012), which holds its level for small counts
    too."""
    value = (gained - lost) / count
    more, less = (gained + 1) / (count + 2), (lost + 1) / (count + 2)
    half = z * math.sqrt((more + less - (more - less) ** 2) / (count + 2))
    return {
        "value": value,
        "low": max(-1.0, more - less - half),
        "high": min(1.0, more - less + half),
    }


def paired(ours: Sequence[bool] | Bools, theirs: Sequence[bool] | Bools) -> dict[str, Any]:
    """Right and wrong of two models on the same samples."""
    a, b = np.asarray(ours, bool), np.asarray(theirs, bool)
    gained, lost = int((a & ~b).sum()), int((~a & b).sum())
    return {
        "right": {
            "ours": int(a.sum()),
            "theirs": int(b.sum()),
            "both": int((a & b).sum()),
            "only_ours": gained,
            "only_theirs": lost,
            "neither": int((~a & ~b).sum()),
        },
        "difference": difference(gained, lost, a.size),
        "mcnemar": mcnemar(gained, lost),
    }


# -- scores -------------------------------------------------------------------------------------


def are_probabilities(scores: Array) -> bool:
    """Rows of shares of 1. Their sums are not exact: an 8-bit softmax of many classes rounds most
    of them to 0."""
    inside = bool((scores >= 0).all() and (scores <= 1.01).all())
    return inside and 0.7 <= float(np.median(scores.sum(axis=-1))) <= 1.3


def log_probabilities(scores: Array) -> Array:
    """Return logs of probabilities, given those or logits. A probability of 0 gives -infinity."""
    values = scores.astype(np.float64)
    if are_probabilities(scores):
        with np.errstate(divide="ignore"):
            values = np.log(np.maximum(values, 0.0))
    top = values.max(axis=-1, keepdims=True)
    return values - top - np.log(np.exp(values - top).sum(axis=-1, keepdims=True))


def divergence(reference: Array, test: Array) -> Array:
    """KL(reference || test) of each row, in nats.

    An 8-bit softmax says 0 of every class below half of its step, most of them. What their
    divergence is nobody can tell: whatever number stood for 0, it would be that number which is
    measured. So the classes of which the test says 0 are taken together, as one that has what the
    others leave, and half of the test's smallest step at least.
    """
    p, q = np.exp(log_probabilities(reference)), test.astype(np.float64)
    if not are_probabilities(test):
        q = np.exp(log_probabilities(test))
    said = q > 0
    step = float(q[said].min(initial=1.0))
    rest = np.where(said.all(axis=-1), 0.0, np.maximum(1 - q.sum(axis=-1), step / 2))
    p = np.concatenate([np.where(said, p, 0), np.where(said, 0, p).sum(axis=-1)[:, None]], axis=-1)
    q = np.concatenate([q, rest[:, None]], axis=-1)
    q = q / q.sum(axis=-1, keepdims=True)
    both = (p > 0) & (q > 0)
    terms = np.where(both, p * (np.log(np.where(both, p, 1)) - np.log(np.where(both, q, 1))), 0)
    return np.asarray(terms.sum(axis=-1))


def snr(reference: Array, test: Array) -> float:
    """Decibels of the reference over the difference, each row less its mean: logits that differ by
    a constant say the same. Infinite where they are equal."""
    a, b = (
        s.astype(np.float64) - s.mean(axis=-1, keepdims=True, dtype=np.float64)
        for s in (reference, test)
    )
    noise = float(((a - b) ** 2).sum())
    return decibels(max(float((a**2).sum()), 1e-300), noise)


def score_distance(reference: Array, test: Array) -> dict[str, Any]:
    """How far scores [samples, classes] are apart: SNR, and KL(reference || test) in nats."""
    apart = divergence(reference, test)
    same_kind = are_probabilities(reference) == are_probabilities(test)
    pair = (reference, test)
    if not same_kind:
        pair = np.exp(log_probabilities(reference)), np.exp(log_probabilities(test))
    logits = same_kind and not are_probabilities(reference)
    return {
        "snr_db": snr(*pair),
        "snr_of": "logits" if logits else "probabilities",
        "kl_of": POOLED if (test == 0).any() else "all classes",
        "kl_mean": float(apart.mean()),
        "kl_p95": float(np.percentile(apart, 95)),
        "kl_max": float(apart.max()),
    }

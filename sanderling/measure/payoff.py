"""Does a delegate pay? Each against the cpu alone, with the reason where it does not.

What is compared is the whole run, conversion at the borders included. Why it is slower is read from
what its parts take (part_times.py): where the lost time went, and what the parts look like.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..progress import plural
from ..units import byte_size
from .part_times import FOREIGN_OPS, PartTime
from .record import Result, Setting, is_default
from .sample_statistics import Ratio

# A share of the lost time that is worth naming.
WORTH_NAMING = 0.2
# A call of another engine takes some time whatever it computes: a part below this is mostly call.
SMALL_PART = 50e-6
NO_OP = "took no op"
IDLE = (NO_OP, "its run is the cpu's own")


@dataclass(frozen=True)
class Payoff:
    """A delegate's setting against the cpu alone at the same threads and precision."""

    model: str
    delegates: str  # their names
    setting: str
    against: str
    ratio: float
    low: float
    high: float
    parts: int
    ops: int
    all_ops: int
    tensors: int  # at the borders of its parts, in a run
    nbytes: int
    copying: float | None  # seconds of one copy of them
    reasons: dict[str, str] = field(default_factory=dict)  # in a word or two: in a sentence

    @property
    def is_slower(self) -> bool:
        return self.low > 1

    @property
    def pays(self) -> bool:
        return self.ops > 0 and self.high < 1

    @property
    def verdict(self) -> str:
        """As its row says it."""
        if self.is_slower:
            return f"slower than the cpu alone: {', '.join(self.reasons)}"
        if not self.ops:
            return NO_OP
        return "pays" if self.pays else "no gain that can be told"

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"pays": self.pays, "verdict": self.verdict}


def payoffs(
    results: Sequence[Result], compare: Callable[[Result, Result], Ratio]
) -> Iterator[Payoff]:
    """What each delegate of others gains over ours, among one model's results."""
    alone = {_key(r.setting): r for r in results if r.summary and is_default(r.setting)}
    for result in results:
        base = alone.get(_key(result.setting))
        foreign = result.setting.engine == "sanderling" and not is_default(result.setting)
        if base is not None and foreign and result.summary:
            yield _payoff(result, base, compare(result, base))


def _key(setting: Setting) -> Setting:
    return replace(setting.asked, delegates=())


def parts_of(result: Result) -> list[PartTime]:
    return [PartTime(**row) for row in result.facts.get("parts", ())]


@dataclass(frozen=True)
class Evidence:
    """own: the delegate's parts; others: the cpu's. seconds: of a run; alone: of the cpu's own."""

    own: Sequence[PartTime]
    others: Sequence[PartTime]
    seconds: float
    alone: float

    @property
    def lost(self) -> float:
        return max(self.seconds - self.alone, 0.0)

    @property
    def inside(self) -> float:
        return sum(p.seconds for p in self.own)

    @property
    def copying(self) -> float:
        return sum(p.copying for p in self.own)

    @property
    def tensors(self) -> int:
        return sum(p.tensors for p in self.own)

    @property
    def nbytes(self) -> int:
        return sum(p.nbytes for p in self.own)

    @property
    def ops(self) -> int:
        return sum(p.ops for p in self.own)


def _payoff(result: Result, base: Result, ratio: Ratio) -> Payoff:
    parts = parts_of(result)
    own = [p for p in parts if p.is_foreign]
    others = [p for p in parts if not p.is_foreign]
    found = Evidence(own, others, result.measured.median, base.measured.median)
    taken = found.ops or int(result.facts.get(FOREIGN_OPS, 0))
    return Payoff(
        result.model,
        "+".join(result.setting.delegates),
        result.setting.name,
        base.setting.name,
        ratio.value,
        ratio.low,
        ratio.high,
        len(own),
        taken,
        sum(p.ops for p in parts),
        found.tensors,
        found.nbytes,
        found.copying if own else None,
        {} if ratio.low <= 1 else reasons(found) if taken else dict([IDLE]),
    )


def reasons(found: Evidence) -> dict[str, str]:
    """Why a delegate is slower than the cpu alone, the most telling first."""
    if not found.own:
        return {"not timed": "shapes of its parts are known in the run only"}
    told = {word: text for word, reason in REASONS.items() if (text := reason(found))}
    return told or {
        "its kernels": f"they take {_time(found.inside)} for {plural(found.ops, 'op')} that the "
        "cpu runs faster, or fuses with their neighbours"
    }


def _crossing(found: Evidence) -> str:
    """Where a copy of the borders alone is a good share of what was lost, and of its time."""
    if found.copying <= WORTH_NAMING * max(found.lost, found.inside):
        return ""
    return (
        f"{plural(found.tensors, 'tensor')} of {byte_size(found.nbytes)} cross its borders in a "
        f"run, one copy of them takes {_time(found.copying)}"
    )


def _many(found: Evidence) -> str:
    if len(found.own) < 2:
        return ""
    return f"it runs {len(found.own)}, beside {len(found.others)} of the cpu"


def _small(found: Evidence) -> str:
    small = sorted(p.seconds for p in found.own if p.seconds < SMALL_PART)
    if 2 * len(small) <= len(found.own):
        return ""
    if len(found.own) == 1 and _slow(found):  # which has the figure
        return "its only part is little more than a call"
    return f"a part takes {_time(small[len(small) // 2])}, little more than its call"


def _slow(found: Evidence) -> str:
    if found.inside <= found.alone:
        return ""
    return (
        f"its parts take {_time(found.inside)}, the whole model takes {_time(found.alone)} on the "
        "cpu"
    )


# All that hold are said.
REASONS: dict[str, Callable[[Evidence], str]] = {
    "crossing cost": _crossing,
    "too many parts": _many,
    "too small": _small,
    "its kernels": _slow,
}


def _time(seconds: float) -> str:
    return f"{1e6 * seconds:.0f} us" if seconds < 1e-3 else f"{1e3 * seconds:.2f} ms"

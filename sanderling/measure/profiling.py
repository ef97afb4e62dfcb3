"""Where a model's time goes, step by step, and how far each step is from the machine's limits."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import accumulate
from typing import Any

import numpy as np

from ..delegates.cpu.isa.targets import problem
from ..errors import ArgumentError, DelegateError, InputError, SanderlingError, UnsupportedError
from ..format import load
from ..ir import Array, Graph, Model
from ..ops.base import known_cost
from ..progress import plural
from ..runtime.feeds import as_fed
from ..runtime.session import Session
from .engines import check_engines
from .inputs import plausible
from .machine import machine
from .profile_ours import (
    BARRIERS,
    CALL,
    LOST,
    QUEUE,
    ProfileRow,
    Taken,
    node_name,
    profile_ours,
)
from .record import Setting
from .roofline import Progress, Roofline, device_roofline, roofline
from .sample_statistics import Summary, summarised

SCHEMA = "sanderling.profile/1"
Record = dict[str, Any]
PROFILED = ("sanderling", "litert", "openvino")
# Where no number of runs is asked for: for about so many seconds, between these numbers of runs.
SECONDS, FEWEST, MOST = 1.5, 5, 2000
# A median run so many times longer than its steps' medians was disturbed.
NOISY = 1.25
LEAST_NAMED = 0.01  # shares below it would read 0 %
DISTURBED = 1.5  # a mean that is so many medians tells of other programs, not of the model


def profile(
    model: Model | str | os.PathLike[str],
    *,
    threads: int = 1,
    runs: int | None = None,
    delegates: Sequence[str] = (),
    require_full_delegation: bool = False,
    engine: str = "sanderling",
    precision: str = "f32",
    inputs: Mapping[str, Array] | None = None,
    signature: str | None = None,
    with_roofline: bool = True,
    refresh_roofline: bool = False,
    progress: Progress | None = None,
) -> Record:
    """Run a model and say what each of its steps took: the record that every export is made from.

    inputs: arrays by name; the others are random. runs: default as many as fit into about 1.5 s.
    """
    show = progress or (lambda what, done, total: None)
    _check(engine, threads, runs, delegates)
    source = model if isinstance(model, Model) else load(model)
    setting = Setting(engine, threads, tuple(delegates), precision)
    session = Session(source, ("reference",))  # names and types; it runs nothing
    entry = session.entry(signature)
    feeds = _feeds(entry.inputs, inputs or {})
    roof = _roof(threads, with_roofline, refresh_roofline, show)
    show("preparing runs", 0, 0)
    turns = _Turns(runs, show)
    if engine == "sanderling":
        ticks = roof.ticks if roof else roofline(1).ticks if problem() is None else 1.0
        taken = profile_ours(
            source, setting, feeds, signature, ticks, turns, require_full_delegation
        )
    else:
        taken = _peer(engine, source, setting, feeds, signature, turns)
    roofs = device_roofs(taken, refresh_roofline, show) if with_roofline else {}
    return _record(source, entry.graph, setting, taken, roof, roofs)


def _peer(engine: str, *args: Any) -> Taken:
    """Profile another engine; its failure becomes one sentence."""
    from .profile_peers import PEERS

    try:
        return PEERS[engine](*args)
    except (SanderlingError, KeyboardInterrupt):
        raise
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise UnsupportedError(
            f"it cannot run this model: {(lines or ['no reason given'])[-1]}",
            where=f"engine {engine}",
        ) from error


def _check(engine: str, threads: int, runs: int | None, delegates: Sequence[str]) -> None:
    check_engines([engine])
    if engine not in PROFILED:
        raise InputError(
            f"the engine {engine} tells no times of single ops",
            where="engine",
            fix=f"those that do are {', '.join(PROFILED)}",
        )
    if not isinstance(threads, int) or threads < 1:
        raise ArgumentError(f"`threads` is {threads}", fix="give 1 or more")
    if runs is not None and (not isinstance(runs, int) or runs < 1):
        raise ArgumentError(f"`runs` is {runs}", fix="give 1 or more")
    if delegates and engine != "sanderling":
        raise InputError(
            f"the engine {engine} takes no delegates of ours",
            where="delegates",
            fix="leave them out, or use the engine sanderling",
        )


def _feeds(wanted: Mapping[str, Any], given: Mapping[str, Array]) -> dict[str, Array]:
    unknown = [name for name in given if name not in wanted]
    if unknown:
        raise InputError(
            f"there is no input '{unknown[0]}'", fix=f"the inputs are {', '.join(wanted)}"
        )
    rng = np.random.default_rng(0)
    return {
        n: as_fed(t, given[n], n) if n in given else plausible(t, rng) for n, t in wanted.items()
    }


def _roof(threads: int, wanted: bool, refresh: bool, show: Progress) -> Roofline | None:
    return roofline(threads, show, refresh) if wanted and problem() is None else None


def device_roofs(taken: Taken, refresh: bool, show: Progress) -> dict[str, Roofline]:
    """The roofs of the devices that parts ran on, by delegate."""
    found = {}
    for name, device in taken.devices.items():
        show(f"peaks of {device.offers.name}", 0, 1)
        with suppress(DelegateError):  # one that does not take the kernels which measure it
            found[name] = device_roofline(device, refresh)
    return found


class _Turns:
    """How many runs are measured: so many, or as many as fit into a while."""

    def __init__(self, runs: int | None, show: Progress) -> None:
        self.runs, self.show = runs, show

    def __call__(self, sample: Callable[[], None]) -> None:
        begin, done, told = time.perf_counter(), 0, 0.0
        while not self._enough(done, time.perf_counter() - begin):
            sample()
            done += 1
            if time.perf_counter() - told > 0.2:
                told = time.perf_counter()
                self.show("runs", done, self.runs or _guess(done, told - begin))
        self.show("runs", done, done)

    def _enough(self, done: int, seconds: float) -> bool:
        if self.runs is not None:
            return done >= self.runs
        return done >= MOST or (done >= FEWEST and seconds > SECONDS)


def _guess(done: int, seconds: float) -> int:
    return min(MOST, max(FEWEST, done, round(done * SECONDS / max(seconds, 1e-9))))


# -- the record ---------------------------------------------------------------------------------


def _record(
    model: Model,
    graph: Graph,
    setting: Setting,
    taken: Taken,
    roof: Roofline | None,
    roofs: Mapping[str, Roofline],
) -> Record:
    total = float(np.mean(taken.whole))
    held = sum(r.weights for r in taken.rows)
    held += max((r.read + r.written for r in taken.rows), default=0)
    rows = [_step(i, r, roofs.get(r.delegate, roof), held) for i, r in enumerate(taken.rows)]
    others = [_other(name, times) for name, times in taken.others.items()]
    _shares([*rows, *others], total)
    sums = {name: sum(r["ms"] for r in of) for name, of in (("steps", rows), ("others", others))}
    whole = summarised([1e3 * t for t in taken.whole])
    record: Record = {
        "schema": SCHEMA,
        "model": model.source,
        "graph": graph.name,
        "setting": asdict(setting),
        "workers": taken.workers,
        "method": taken.method,
        "machine": machine(),
        "roofline": roof.to_json() if roof else None,
        "device_rooflines": {name: found.to_json() for name, found in roofs.items()},
        "runs": len(taken.whole),
        "first_ms": 1e3 * taken.first,
        "whole": whole.to_json(),
        "samples_ms": [1e3 * t for t in taken.whole],
        "counting": _counting(taken),
        "steps_ms": sums["steps"],
        "others_ms": sums["others"],
        "accounted": _accounted(taken),
        "macs": sum(r["macs"] for r in rows),
        "steps": rows,
        "others": others,
        "by_type": _by_type(rows),
        "nodes": [_node(i, op) for i, op in enumerate(graph.ops)],
        "free": _free(graph, taken.rows),
        "notes": [
            *taken.notes,
            *_told(_counting(taken)),
            *_noise(rows, others, whole.median),
            *_disturbed(whole),
            *_above(rows),
            *_sparse(rows),
        ],
    }
    record["advice"] = advice(record)
    return record


def _counting(taken: Taken) -> Record:
    """How runs were counted, and what that added to those that were; None: too little to ask."""
    how = taken.counting
    cost = float(np.median(np.divide(taken.whole, how.plain))) - 1 if how.plain else None
    plain = 1e3 * float(np.median(how.plain)) if how.plain else None
    return {"together": how.together, "every": how.every, "plain_ms": plain, "cost": cost}


def _told(counting: Record) -> list[str]:
    found = []
    if counting["together"] > 1:
        found.append(
            f"runs this short are timed together: a sample is the mean of {counting['together']}"
        )
    if counting["cost"] is not None:
        adds = f"adds {counting['cost']:+.1%} to a run"
        if counting["cost"] <= 0:
            adds = "adds less to a run than can be told from noise"
        found.append(
            f"counting {adds}; one of {counting['every']} is counted, the others took "
            f"{counting['plain_ms']:.4g} ms"
        )
    return found


def _noise(rows: Sequence[Record], others: Sequence[Record], median: float) -> list[str]:
    """A run that is interrupted once is as long as its steps' typical times and the interruption:
    steps' medians know nothing of it."""
    typical = sum(r["median_ms"] for r in (*rows, *others))
    if median < NOISY * typical:
        return []
    return [
        f"the median run took {median / typical:.1f} times as long as the medians of its steps "
        f"add up to, so runs were interrupted: stop other programs, or use fewer threads"
    ]


def _disturbed(whole: Summary) -> list[str]:
    if whole.mean < DISTURBED * whole.median:
        return []
    return [
        f"the mean run took {whole.mean / whole.median:.1f} times as long as the median one: "
        f"something else ran meanwhile, and averages and percentages hold it; trust the "
        f"medians, or stop other programs and measure again"
    ]


def _sparse(rows: Sequence[Record]) -> list[str]:
    """What was done with zeros among weights."""
    told = [row["zeros"] for row in rows if row["zeros"]]
    if not told:
        return []
    without = sum("sparse:" in text for text in told)
    return [
        f"{plural(len(told), 'product')} with many zeros among the weights: {without} computed "
        f"without them, {len(told) - without} with them, as was estimated to be faster (`zeros` of "
        f"--json and --csv; SANDERLING_SPARSE=0 for comparison)"
    ]


def _accounted(taken: Taken) -> float:
    """Steps, calls, barriers and gaps as a share of the clock around the run: the median over
    runs, or of the means where an engine tells no more."""
    whole = np.array(taken.whole)
    lost = np.array(taken.others.get(LOST, [0.0]))
    return 1.0 - float(np.median(lost / (whole if lost.size == whole.size else whole.mean())))


def _step(index: int, row: ProfileRow, roof: Roofline | None, held: int) -> Record:
    found = summarised([1e3 * t for t in row.times])
    bytes_ = row.weights + row.read + row.written
    seconds = found.median / 1e3  # a run that was interrupted says nothing about the kernel
    idle = float(np.mean(row.idle)) if row.idle else 0.0
    return {
        "index": index,
        "type": row.type,
        "name": row.name,
        "delegate": row.delegate,
        "kernel": row.kernel,
        "part": row.part,
        "nodes": row.nodes,
        "helps": row.helps,
        "opaque": row.is_opaque,
        "first_ms": 1e3 * row.first,
        "ms": found.mean,
        "min_ms": found.min,
        "max_ms": found.max,
        "median_ms": found.median,
        "std_ms": found.std,
        "mem_kb": bytes_ / 1024,
        "times_called": row.called,
        "imbalance": 1e3 * idle / found.mean if found.mean > 0 else 0.0,
        "macs": row.macs,
        "bytes": bytes_,
        "bytes_weights": row.weights,
        "bytes_read": row.read,
        "bytes_written": row.written,
        "kind": row.kind,
        "zeros": row.zeros,
        "gops": 2 * row.macs / seconds / 1e9 if seconds > 0 else 0.0,
        "unit": "GFLOP/s" if row.kind in ("f32", "bf16") else "GOP/s",
        "gb_s": bytes_ / seconds / 1e9 if seconds > 0 else 0.0,
        "intensity": 2 * row.macs / bytes_ if bytes_ else 0.0,
        **limit(row, roof, held, seconds),
    }


def limit(row: ProfileRow, roof: Roofline | None, held: int, seconds: float) -> Record:
    """The least time that the machine allows. Weights come from the level that holds all that the
    model touches between two uses of them, activations from the level that holds the step. Of an
    opaque part nothing is said: where it runs and what it keeps between its ops is not known."""
    if roof is None or row.is_opaque:
        return {"limit_ms": None, "share": None, "bound": "", "level": ""}
    peak = roof.peaks.get(row.kind) or roof.peaks["f32"]
    compute = row.macs / peak
    near, far = roof.level(row.weights + row.read + row.written), roof.level(held)
    memory = (row.read + row.written) / near.bandwidth + row.weights / far.bandwidth
    least = max(compute, memory)
    if not least:  # the work of a peer's step that no op of the file was found for
        return {"limit_ms": None, "share": None, "bound": "", "level": ""}
    names = [near.name] if row.read + row.written else []
    names += [far.name] if row.weights and far.name not in names else []
    return {
        "limit_ms": 1e3 * least,
        "share": least / seconds if seconds > 0 else None,  # below what a peer's clock can tell
        "bound": "compute" if compute >= memory else "memory",
        "level": "+".join(names),
    }


def share_text(share: float | None) -> str:
    """The share of the roof; more than all of it is marked, and `_above` says what it means."""
    return "-" if share is None else f"{share:.0%}{'*' * _is_above(share)}"


def _is_above(share: float | None) -> bool:
    return share is not None and round(share, 2) > 1


def _above(rows: Sequence[Record]) -> list[str]:
    """Return a sentence about steps that were faster than the roof."""
    count = sum(_is_above(row["share"]) for row in rows)
    if not count:
        return []
    return [
        f"* {count} step{'s are' if count > 1 else ' is'} above 100 % of the roof, which is no "
        "bound then: operands lay in a nearer cache than the level that is named, the kernel "
        "needs fewer multiplications than the operator's definition (Winograd's), or the roof "
        "was measured while the machine was busy (--refresh-roofline measures it again)."
    ]


def _other(name: str, times: Sequence[float]) -> Record:
    found = summarised([1e3 * t for t in times])
    return {
        "name": name,
        "ms": found.mean,
        "median_ms": found.median,
        "min_ms": found.min,
        "max_ms": found.max,
        "std_ms": found.std,
    }


def _shares(rows: Sequence[Record], total: float) -> None:
    """Percent of the whole, and its running sum in this order."""
    for row, sum_ in zip(rows, accumulate(r["ms"] for r in rows), strict=True):
        row["percent"], row["cdf"] = row["ms"] / (10 * total), sum_ / (10 * total)


def _by_type(rows: Iterable[Record]) -> list[Record]:
    """The steps by their type, most time first."""
    found: dict[str, Record] = {}
    figures = ("ms", "median_ms", "percent", "mem_kb", "times_called", "macs", "bytes")
    for row in rows:
        blank = {"type": row["type"], "count": 0} | dict.fromkeys(figures, 0)
        into = found.setdefault(row["type"], blank)
        into["count"] += 1
        for figure in figures:
            into[figure] += row[figure]
    made = sorted(found.values(), key=lambda r: -r["ms"])
    for into, cdf in zip(made, accumulate(r["percent"] for r in made), strict=True):
        into["cdf"] = cdf
        # At the medians, as a step's own: an interruption says nothing about kernels.
        typical = into["median_ms"]
        into["gops"] = 2 * into["macs"] / typical / 1e6 if typical > 0 else 0.0
    return made


def _node(index: int, op: Any) -> Record:
    return {
        "index": index,
        "type": op.name,
        "name": node_name(op, index),
        "outputs": [t.name for t in op.outputs],
        "macs": known_cost(op).macs,
    }


def _free(graph: Graph, rows: Iterable[ProfileRow]) -> list[int]:
    """Nodes that no step carries out: views, constants, joints that their makers write into."""
    run = {n for row in rows for n in row.nodes}
    return [i for i in range(len(graph.ops)) if i not in run]


# -- advice -------------------------------------------------------------------------------------


def advice(record: Record) -> list[str]:
    """Three sentences: where the time goes, what limits it, what to try."""
    return [_where(record), _limits(record), _try(record)]


def _where(record: Record) -> str:
    if not record["steps"]:
        return "No step was measured."
    whole = _typical(record)
    spent = {t["type"]: t["median_ms"] for t in record["by_type"]}
    spent |= {_WAITS[o["name"]]: o["median_ms"] for o in record["others"] if o["name"] in _WAITS}
    first, *more = sorted(spent, key=lambda name: -spent[name])[:2]
    named = [first, *(name for name in more if spent[name] >= LEAST_NAMED * whole)]
    kinds = " and ".join(f"{name} ({_percent(spent[name] / whole)})" for name in named)
    top = max(record["steps"], key=lambda r: r["median_ms"])
    return (
        f"Most of the time goes into {kinds}; the slowest step is {_called(top)} with "
        f"{top['median_ms']:.3g} ms, {_percent(top['median_ms'] / whole)} of the whole."
    )


# What is no step and takes time nevertheless, as a sentence names it.
_WAITS = {
    BARRIERS: "barriers where threads wait for each other",
    CALL: "calls into native code",
    QUEUE: QUEUE,
}


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= LEAST_NAMED else "less than 1 %"


def _typical(record: Record) -> float:
    """Milliseconds of a run of medians: one that was interrupted says nothing about the model."""
    return sum(r["median_ms"] for r in (*record["steps"], *record["others"])) or 1.0


def _called(row: Record) -> str:
    """Return a short name of a step, since names of tensors may fill a line."""
    node = row["name"].rpartition(":")[2]
    word = "nodes" if row["opaque"] else "node"
    place = f"{word} {node}" if row["nodes"] else f"step {row['index']}"
    return f"{row['type']} ({place})"


def _limits(record: Record) -> str:
    rows = [r for r in record["steps"] if r["share"] is not None]
    typical = sum(r["median_ms"] for r in rows)
    if not rows and record["roofline"] is not None:
        return "What limits it is not known: no step can be compared with the roofline."
    if not rows:
        return "What limits it is not known: there is no roofline."
    times = {
        b: 100 * sum(r["median_ms"] for r in rows if r["bound"] == b) / _typical(record)
        for b in ("compute", "memory")
    }
    bound = max(times, key=lambda b: times[b])
    least = sum(r["limit_ms"] for r in rows)
    what = "Arithmetic" if bound == "compute" else "Memory"
    return (
        f"{what} limits the steps with {times[bound]:.0f} % of the time; the "
        f"roofline would allow all of them {least:.3g} ms, their medians add up to "
        f"{typical:.3g} ms ({share_text(least / max(typical, 1e-12))} of the roofline)."
    )


def _try(record: Record) -> str:
    whole, steps = _typical(record), record["steps"]
    others = {o["name"]: o["median_ms"] / whole for o in record["others"]}
    slow = sum(r["median_ms"] for r in steps if r["delegate"] == "reference") / whole
    floats = sum(r["median_ms"] for r in steps if r["kind"] == "f32" and r["macs"]) / whole
    opaque = sum(r["median_ms"] for r in steps if r["opaque"]) / whole
    waits = others.get(BARRIERS, 0) + (sum(r["median_ms"] * r["imbalance"] for r in steps) / whole)
    threads, cpus = record["setting"]["threads"], record["machine"]["usable"]
    for holds, text in (
        (
            threads > cpus and waits > 0.2,
            f"Waiting for each other takes the threads {waits:.0%} of the time, and there are more "
            f"of them ({threads}) than CPUs ({cpus}): use --threads {cpus} or fewer.",
        ),
        (
            slow > 0.1,
            f"Ops that no compiled kernel takes cost {slow:.0%}: see why with `sanderling "
            f"inspect --delegate cpu`, and replace them in the model.",
        ),
        (
            others.get(CALL, 0) > 0.2,
            "Calls cost more than a fifth of the time: batch inputs, or bind arrays once.",
        ),
        (
            others.get(QUEUE, 0) > 0.3,
            f"Launches and waits for the device take {others.get(QUEUE, 0):.0%}: the model is small"
            " for it, and `sanderling bench --sweep` says whether the cpu alone is faster.",
        ),
        (
            waits > 0.2,
            f"Waiting for each other takes the threads {waits:.0%} of the time: try "
            f"fewer threads, or keep other work off these cores.",
        ),
        (
            opaque > 0.5,
            f"Parts of other engines take {opaque:.0%}, and their ops are not timed one by one: "
            "`sanderling bench --sweep` says whether these delegates pay.",
        ),
        (
            floats > 0.5 and record["setting"]["precision"] == "f32",
            "Most products are in float32: quantise the model to int8 (`sanderling quantize`).",
        ),
    ):
        if holds:
            return text
    return _slack(steps)


def _slack(steps: Sequence[Record]) -> str:
    """The step with most time above its limit."""
    rows = [r for r in steps if r["limit_ms"] is not None]
    if not rows:
        return "Compare the steps with a profile of another engine (--engine)."
    worst = max(rows, key=lambda r: r["median_ms"] - r["limit_ms"])
    gap = worst["median_ms"] - worst["limit_ms"]
    if gap <= 0:
        return "Every step is at its roof or above: fewer or smaller layers help, or more threads."
    share = gap / max(sum(r["median_ms"] for r in rows), 1e-12)
    return (
        f"Most is to be won in {_called(worst)}: {gap:.3g} ms "
        f"({share:.0%}) above its limit; a smaller or fused layer there helps most, or "
        f"more threads (--threads)."
    )

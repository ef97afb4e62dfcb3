"""A measurement as tables for people: the same rows for the terminal, Markdown and HTML.

A column that starts with > holds numbers; one that starts with ~ may be shortened.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..delegates.engines.packages import PACKAGES
from ..units import byte_size
from .baseline import Change
from .bench_results import Bench, ratio
from .payoff import Payoff
from .process_memory import PARTS, growth
from .record import Result
from .sample_statistics import median_interval

Table = tuple[Sequence[str], list[list[str]]]


def milliseconds(seconds: float | None) -> str:
    """Three digits that count."""
    if seconds is None:
        return "-"
    value = 1e3 * seconds
    digits = (
        5 if value < 0.01 else 4 if value < 0.1 else 3 if value < 1 else 2 if value < 100 else 1
    )
    return f"{value:.{digits}f}"


def several_models(bench: Bench) -> bool:
    return len(bench.models) > 1


def _labelled(bench: Bench, columns: Sequence[str]) -> list[str]:
    return ["~model", *columns] if several_models(bench) else list(columns)


def _label(bench: Bench, model: str, cells: Iterable[str]) -> list[str]:
    # Names that must be shortened are told apart by their ends.
    return [model.removesuffix(".tflite"), *cells] if several_models(bench) else list(cells)


def sorted_results(bench: Bench) -> list[Result]:
    """By model as given; within one the fastest first where settings were swept over."""
    order = {name: i for i, name in enumerate(bench.models)}
    return sorted(
        (r for r in bench.results if r.summary),
        key=lambda r: (order.get(r.model, 0), r.summary.median if r.summary else 0),
    )


def latency(bench: Bench, by_speed: bool = False) -> Table:
    columns = [
        "setting",
        ">median ms",
        ">repeats within",
        ">p5",
        ">p95",
        ">mean",
        ">std",
        ">min",
        ">max",
        ">runs/s",
        ">runs",
    ]
    results = sorted_results(bench) if by_speed else [r for r in bench.results if r.summary]
    return _labelled(bench, columns), [_label(bench, r.model, _latency(r)) for r in results]


def _latency(result: Result) -> list[str]:
    found = result.measured
    figures = (found.p5, found.p95, found.mean, found.std, found.min, found.max)
    rate = result.throughput or 0.0
    return [
        result.setting.name,
        milliseconds(found.median),
        _repeats(result),
        *map(milliseconds, figures),
        f"{rate:.1f}" if rate < 1000 else f"{rate:.0f}",
        str(found.count * result.block),
    ]


def _repeats(result: Result) -> str:
    """Where the median of a repetition lies."""
    if not result.rounds:
        return "-"
    found = median_interval(result.by_launch)
    return f"{milliseconds(found.low)} to {milliseconds(found.high)}"


def _alone(bench: Bench) -> list[Result]:
    return [r for r in bench.results if r.summary and not r.setting.contend]


def starting(bench: Bench) -> Table:
    columns = [
        "setting",
        ">import ms",
        ">init ms",
        ">first run ms",
        ">warm-up runs",
        "init was",
        "on",
    ]
    rows = []
    for r in _alone(bench):
        imports = r.imports if r.setting.engine in PACKAGES else None
        cells = [
            r.setting.name,
            milliseconds(imports),
            milliseconds(r.init),
            milliseconds(r.first),
            str(len(r.warmup)),
            _start_words(r),
            r.notes[0] if r.notes else "-",
        ]
        rows.append(_label(bench, r.model, cells))
    return _labelled(bench, columns), rows


def _start_words(result: Result) -> str:
    starts = result.facts.get("starts", [])
    if "from the cache" in starts and "compiled now" in starts:
        return f"from the cache; {milliseconds(max(result.inits))} when compiled"
    return str(starts[0]) if starts and starts[0] else "-"


def held(bench: Bench) -> Table:
    """What is known to be held, and by what. Packed weights and code from the cache are mapped:
    processes share them."""
    rows = [
        _label(bench, r.model, [r.setting.name, *(byte_size(r.memory.get(n)) for n in PARTS)])
        for r in _alone(bench)
        if r.memory
    ]
    return _labelled(bench, ["setting", *(f">{text}" for text in PARTS.values())]), rows


def resident(bench: Bench) -> Table:
    """What the kernel counts. Growth is from just before the load, so that Python is not in it."""
    columns = [
        "setting",
        ">before load",
        ">+load",
        ">+init",
        ">+first run",
        ">+peak of init",
        ">+peak of runs",
        ">+anonymous",
        ">+files",
        ">PSS at the end",
    ]
    rows = [_label(bench, r.model, _resident(r)) for r in _alone(bench) if "start.rss" in r.memory]
    return _labelled(bench, columns), rows


def _resident(result: Result) -> list[str]:
    found = result.memory
    grown = [growth(found, f"{stage}.rss") for stage in ("loaded", "ready", "first")]
    grown += [growth(found, key) for key in ("peak.init", "peak.runs")]
    grown += [
        growth(found, f"end.{kind}", f"start.{kind}") for kind in ("anonymous", "file_backed")
    ]
    return [
        result.setting.name,
        *map(byte_size, (found["start.rss"], *grown, found.get("end.pss"))),
    ]


def comparisons(bench: Bench) -> Table:
    gaps = {(g.model, g.setting): g for g in bench.answers}
    rows = []
    for c in bench.comparisons:
        gap = gaps.get((c.model, c.setting))
        words = "-" if gap is None else gap.gap if gap.fits else f"DIFFER: {gap.gap}"
        rows.append(
            _label(bench, c.model, [c.setting, str(c), c.against, _verdict(c.low, c.high), words])
        )
    return _labelled(bench, ["setting", ">times as long", "as", "so it is", "answers"]), rows


def delegates(bench: Bench) -> Table:
    """Each delegate against the cpu alone: whether it pays, and why not."""
    columns = ["setting", ">times the cpu alone", ">parts", ">ops", ">over borders", "verdict"]
    rows = [_label(bench, p.model, _payoff(p)) for p in bench.payoffs]
    return _labelled(bench, columns), rows


def _payoff(found: Payoff) -> list[str]:
    return [
        found.setting,
        f"{found.ratio:.2f} [{found.low:.2f}, {found.high:.2f}]",
        str(found.parts),
        f"{found.ops}/{found.all_ops}" if found.all_ops else "-",
        byte_size(found.nbytes) if found.parts else "-",
        found.verdict,
    ]


def lost_on_delegates(bench: Bench) -> list[str]:
    """Why delegates are slower than the cpu alone, a line for each setting."""
    return [
        f"{p.model}, {p.setting}: " + "; ".join(f"{word}: {text}" for word, text in why.items())
        for p in bench.payoffs
        if (why := p.reasons)
    ]


def fallbacks(bench: Bench) -> list[str]:
    """What ran elsewhere than was wanted, as sentences."""
    return [f"{r.model}, {r.setting.name}: {note}" for r in _alone(bench) for note in r.notes[1:]]


def _verdict(low: float, high: float) -> str:
    return "slower" if low > 1 else "faster" if high < 1 else "not told apart"


def failures(bench: Bench) -> Table:
    rows = [_label(bench, r.model, [r.setting.name, r.error]) for r in bench.results if r.error]
    return _labelled(bench, ["setting", "not measured, because"]), rows


def contention(bench: Bench) -> Table:
    """Latency by thread count, alone and beside busy processes."""
    columns = [
        "setting",
        ">alone: median ms",
        ">mean",
        ">p95",
        ">beside load: median ms",
        ">mean",
        ">p95",
        ">median is longer by",
    ]
    rows = []
    for alone, beside in contended(bench):
        one, two = alone.measured, beside.measured
        slowdown = ratio(beside, alone)
        figures = [f for s in (one, two) for f in (s.median, s.mean, s.p95)]
        cells = [alone.setting.name, *map(milliseconds, figures), str(slowdown)]
        rows.append(_label(bench, alone.model, cells))
    return _labelled(bench, columns), rows


def contended(bench: Bench) -> list[tuple[Result, Result]]:
    """Pairs of results: alone, and beside busy processes."""
    by_key = {(r.model, r.setting): r for r in bench.results if r.summary}
    pairs = []
    for (model, setting), beside in by_key.items():
        alone = by_key.get((model, replace(setting, contend=0)))
        if setting.contend and alone is not None:
            pairs.append((alone, beside))
    return pairs


def best_under_load(bench: Bench) -> list[str]:
    """Where load changes which setting is the best, as sentences."""
    return [
        text
        for model in bench.models
        if (text := _under_load([p for p in contended(bench) if p[0].model == model]))
    ]


def _under_load(pairs: Sequence[tuple[Result, Result]]) -> str:
    if len(pairs) < 2:
        return ""
    best, best_beside = (min(pairs, key=lambda p: _median(p[side])) for side in (0, 1))
    model, busy = best[0].model, best[1].setting.contend
    alone, beside = best[0].setting.name, best_beside[0].setting.name
    if best is best_beside:
        return f"{model}: {alone} is the fastest, alone and beside {busy} busy processes"
    gain = ratio(best[1], best_beside[1])
    if gain.low <= 1:
        return (
            f"{model}: beside {busy} busy processes {beside} and {alone} cannot be told apart "
            f"(ratio {gain})"
        )
    return (
        f"{model}: alone {alone} is the fastest, but beside {busy} busy processes {beside} is, "
        f"by {gain}: choose by what will run beside it"
    )


def _median(result: Result) -> float:
    return result.measured.median


def changes(found: Sequence[Change]) -> Table:
    rows = []
    for c in found:
        interval = "-" if c.ratio is None else f"{c.ratio:.3f} [{c.low:.3f}, {c.high:.3f}]"
        rows.append(
            [c.model, c.setting, milliseconds(c.before), milliseconds(c.after), interval, c.verdict]
        )
    return ["~model", "setting", ">before ms", ">now ms", ">now / before", "verdict"], rows


def blocks(bench: Bench) -> list[str]:
    """Where a sample is not one run: the tail of single runs is longer than that of their means."""
    found = [f"{r.block} runs of {r.model}, {r.setting.name}" for r in bench.results if r.block > 1]
    return (
        [f"runs below 20 us are timed together, a sample is the mean of {'; '.join(found)}"]
        if found
        else []
    )

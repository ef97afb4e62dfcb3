"""Every model on every engine: latency side by side, in one interleaved run.

    python -m benchmarks.engines [MODEL.tflite ...] [--models mobilenet,yolox] [--threads 1,2]
                                 [--seconds 10] [--engines sanderling,litert,openvino,onnxruntime]
                                 [--launches 5] [--minutes 15] [--target avx2] [--json FILE]
                                 [--write]

Without paths: all of ../shared/models. Only the invoke is timed, inputs already in place. Engines
take turns in random order, each in several fresh processes one after the other; figures are medians
over rounds, and the ratio is peer / sanderling (above 1: sanderling is faster) with the interval in
which 95 % of repetitions lie. This is `sanderling bench` over many models. Float models run at the
same precision everywhere where there is such; first answers are compared with each other.
`--minutes` shares out that time: what starting processes takes is learnt on the way, the rest goes
to the measurements, which get no longer than `--seconds` and no shorter than 1.5; launches stay, so
that intervals do. `--target` has Sanderling take this machine for a lesser one (SANDERLING_HOST)
and holds OpenVINO's kernels of oneDNN to the same instructions (ONEDNN_MAX_CPU_ISA); LiteRT, ONNX
Runtime and what OpenVINO gives to MLAS (fully connected float layers) cannot be held. `--write`
puts the tables into benchmarks/RESULTS.md, in a section of this type of machine and target.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path

import numpy as np

from benchmarks.common import (
    fresh_cache,
    machine_type,
    model_paths,
    table,
    write_json,
    write_machine_section,
)
from sanderling.config import HOST
from sanderling.delegates.cpu.isa.targets import host_target
from sanderling.measure.bench import bench
from sanderling.measure.bench_tables import milliseconds
from sanderling.measure.engine_agreement import group
from sanderling.measure.engines import ENGINES, TITLES
from sanderling.measure.interleaving import Samples, sentence
from sanderling.measure.machine import cpu_flags, machine_line
from sanderling.measure.sample_statistics import (
    Ratio,
    geometric_mean,
    median_of_rounds,
    ratio_of_launches,
)
from sanderling.measure.sweep import BF16

SCHEMA = "sanderling.engines/1"
OURS = "sanderling"
GROUPS = ("quantised", "float")


@dataclass
class Row:
    """One model at one thread count and precision."""

    model: str
    kind: str
    group: str
    threads: int
    precision: str = "f32"
    samples: dict[str, Samples] = field(default_factory=dict)
    launches: dict[str, list[int]] = field(default_factory=dict)  # rounds of each process
    notes: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    gaps: dict[str, str] = field(default_factory=dict)  # peer: how far its answers are from ours
    wrong: list[str] = field(default_factory=list)  # peers whose answers are too far

    def median(self, engine: str) -> float | None:
        rounds = self.samples.get(engine)
        return median_of_rounds(rounds) if rounds else None

    def against(self, peer: str) -> Ratio | None:
        if OURS not in self.samples or peer not in self.samples:
            return None
        return ratio_of_launches(self.by_launch(peer), self.by_launch(OURS))

    def by_launch(self, engine: str) -> list[Samples]:
        ends = list(accumulate(self.launches[engine]))
        return [
            self.samples[engine][end - n : end]
            for n, end in zip(self.launches[engine], ends, strict=True)
        ]

    def best(self) -> str | None:
        """The fastest peer."""
        peers = [e for e in self.samples if e != OURS]
        return min(peers, key=lambda e: self.median(e) or np.inf, default=None)


# oneDNN's names of instruction sets, by the target that has as much.
ONEDNN = {"generic": "SSE41", "avx2": "AVX2", "avx2vnni": "AVX2_VNNI", "avx512": "AVX512_CORE",
          "avx512vnni": "AVX512_CORE_VNNI", "avx512bf16": "AVX512_CORE_BF16"}  # fmt: skip


@contextmanager
def held(target: str) -> Iterator[None]:
    """Processes that are started meanwhile take this machine for one of the target."""
    wanted = {HOST.name: target, "ONEDNN_MAX_CPU_ISA": ONEDNN[target]} if target else {}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ |= wanted
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ |= {} if value is None else {name: value}


# -- measuring ----------------------------------------------------------------------------------


class Allowance:
    """Seconds for the next measurement: as many as asked for, or as what is left allows."""

    LEAST = 1.5
    START = 1.0  # of a process: import, load, first runs; until that is known

    def __init__(self, seconds: float, minutes: float, total: int, processes: int) -> None:
        self.most, self.left, self.extra = seconds, total, list[float]()
        self.start = self.START * processes
        self.end = time.monotonic() + 60 * minutes if minutes else None
        self.begun = self.given = 0.0

    def next(self) -> float:
        """Called once for each; what the last took beyond its seconds is what starting costs."""
        now = time.monotonic()
        if self.begun:
            self.extra.append(now - self.begun - self.given)
        self.begun, self.given = now, self.most
        if self.end is not None:
            start = sum(self.extra) / len(self.extra) if self.extra else self.start
            share = (self.end - now) / max(self.left, 1) - start
            self.given = min(self.most, max(self.LEAST, share))
        self.left -= 1
        return self.given


def run_model(
    path: Path, engines: Sequence[str], threads: int, precision: str, seconds: float, launches: int
) -> Row:
    share = seconds / len(engines)
    found = bench(
        path,
        engines=engines,
        threads=[threads],
        precision=[precision],
        runs=1,
        min_secs=share,
        max_secs=max(4 * share, 1),
        launches=launches,
        warmup_secs=0.2,
    )
    kind = str(found.models[path.name]["quantisation"])
    row = Row(path.stem, kind, group(kind), threads, precision)
    names = {r.setting.name: r.setting.engine for r in found.results}
    for result in found.results:
        engine = result.setting.engine
        if result.error:
            row.errors[engine] = result.error
        else:
            row.samples[engine], row.launches[engine] = result.rounds, result.launches
            row.notes[engine] = "; ".join(result.notes)
    for gap in found.answers:
        row.gaps[names[gap.setting]] = gap.gap
        row.wrong += [] if gap.fits else [names[gap.setting]]
    return row


# -- tables -------------------------------------------------------------------------------------


def report(rows: Sequence[Row], engines: Sequence[str]) -> str:
    """All tables: by precision and thread count, then means, then what could not be measured."""
    parts = []
    for precision, threads in dict.fromkeys((r.precision, r.threads) for r in rows):
        chosen = [r for r in rows if (r.precision, r.threads) == (precision, threads)]
        title = f"{threads} thread{'s' * (threads > 1)}" + f", {precision}" * (precision != "f32")
        parts += [f"### {title}", latency_table(chosen, engines), means_table(chosen, engines)]
    parts.append(_bf16_sentence(rows))
    parts.append(failures(rows))
    return "\n\n".join(p for p in parts if p)


LEGEND = (
    "Median milliseconds of one inference. In brackets behind a peer's figure: peer / sanderling "
    "with its 95 % interval, above 1 where sanderling is faster. *Answers*: how far a peer's are "
    "from sanderling's (units of the output's integer, or a share of its largest value; 'differ' "
    "counts classes); **bold** is more than rounding explains "
    "(such a peer still counts when the best is chosen). *Ops on cpu*: what the cpu delegate "
    "compiled, the rest ran on the reference. ONNX Runtime has no dynamic-range kernels for these "
    "files: their weights are float32 there."
)


HELD = (
    "Sanderling and OpenVINO's kernels of oneDNN are held to the target's instructions; LiteRT, "
    "ONNX Runtime and OpenVINO's fully connected float layers (MLAS) use all that this CPU has."
)


def latency_table(rows: Sequence[Row], engines: Sequence[str]) -> str:
    peers = [e for e in engines if e != OURS]
    header = [
        "model",
        "kind",
        "ops on cpu",
        TITLES[OURS],
        *(TITLES[p] for p in peers),
        "against the best",
        "answers",
    ]
    return table(header, [_cells(row, peers) for row in rows], left=2)


def _cells(row: Row, peers: Sequence[str]) -> list[str]:
    ours, best = row.median(OURS), row.best()
    against = row.against(best) if best else None
    gaps = [f"**{p} {g}**" if p in row.wrong else f"{p} {g}" for p, g in row.gaps.items()]
    return [
        row.model,
        row.kind,
        row.notes.get(OURS, "").partition(" ops")[0] or "-",
        "failed" if ours is None else milliseconds(ours),
        *(_peer_cell(row, p) for p in peers),
        str(against) if against else "-",
        ", ".join(gaps) or "-",
    ]


def _peer_cell(row: Row, peer: str) -> str:
    time, against = row.median(peer), row.against(peer)
    if time is None:
        return "-"
    return milliseconds(time) + (f" ({against})" if against else "")


def means_table(rows: Sequence[Row], engines: Sequence[str]) -> str:
    """Geometric means of the ratios by group, and on how many models we are the fastest."""
    peers = [e for e in engines if e != OURS]
    lines = []
    for name in GROUPS:
        chosen = [r for r in rows if r.group == name and OURS in r.samples]
        if chosen:
            lines.append(
                [
                    name,
                    str(len(chosen)),
                    *(_mean(chosen, r_against(p)) for p in peers),
                    _mean(chosen, _against_best),
                    _wins(chosen),
                ]
            )
    header = [
        "geometric mean of",
        "models",
        *(f"{TITLES[p]} / ours" for p in peers),
        "best peer / ours",
        "faster than the best",
    ]
    return table(header, lines)


def r_against(peer: str) -> Callable[[Row], Ratio | None]:
    return lambda row: row.against(peer)


def _against_best(row: Row) -> Ratio | None:
    best = row.best()
    return row.against(best) if best else None


def _mean(rows: Sequence[Row], get: Callable[[Row], Ratio | None]) -> str:
    found = [r for r in map(get, rows) if r is not None]
    if not found:
        return "-"
    count = f" over {len(found)}" if len(found) < len(rows) else ""
    return f"{geometric_mean(found)}{count}"


def _wins(rows: Sequence[Row]) -> str:
    """Sure wins: the whole interval lies above 1."""
    found = [r for r in map(_against_best, rows) if r is not None]
    wins, sure = (
        sum(v > 1 for v in values) for values in ([r.value for r in found], [r.low for r in found])
    )
    return f"{wins} of {len(found)} ({sure} surely)"


def failures(rows: Sequence[Row]) -> str:
    """One line for every engine and model that gave no figure, and for every fallback."""
    errors = [f"- {TITLES[e]}, {r.model}: {why}" for r in rows for e, why in r.errors.items()]
    fallen = [
        f"- {r.model}: {note}" for r in rows for note in r.notes.get(OURS, "").split("; ")[1:]
    ]
    texts = []
    for title, lines in (("Not measured, and why:", errors), ("Fell back:", fallen)):
        if lines:
            texts.append("\n".join([title, "", *dict.fromkeys(lines)]))
    return "\n\n".join(texts)


def _bf16_sentence(rows: Sequence[Row]) -> str:
    if any(r.precision == "bf16" for r in rows) or cpu_flags() & BF16:
        return ""
    return "No table at bf16: this CPU has no bf16 instructions."


# -- command line -------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    engines = options.engines.split(",")
    unknown = [e for e in engines if e not in ENGINES]
    if unknown:
        print(f"no engine '{unknown[0]}'; there are {', '.join(ENGINES)}", file=sys.stderr)
        return 2
    paths = model_paths(options.paths, options.models)
    if not paths:
        print("no model fits; give paths, or put them into ../shared/models", file=sys.stderr)
        return 2
    if options.target and options.target not in ONEDNN:
        print(f"no target '{options.target}'; there are {', '.join(ONEDNN)}", file=sys.stderr)
        return 2
    with fresh_cache(), held(options.target):
        rows = measure_all(paths, engines, options)
        target = host_target().name
    text = f"{report(rows, engines)}\n\n{LEGEND}" + f"\n\n{HELD}" * bool(options.target)
    if options.json != "-":
        print(text)
    if options.json:
        write_json(options.json, SCHEMA, {"rows": [asdict(r) for r in rows]})
    if options.write:
        title = f"## Engines: {machine_type(target)}"
        write_machine_section("engines", target, f"{title}\n\n{machine_line()}\n\n{text}")
    return 0


def measure_all(
    paths: Sequence[Path], engines: Sequence[str], options: argparse.Namespace
) -> list[Row]:
    """All models at f32; where the CPU has bf16, the float ones again at bf16."""
    rows: list[Row] = []
    counts = [int(n) for n in options.threads.split(",")]
    allowance = Allowance(
        options.seconds, options.minutes, len(paths) * len(counts), len(engines) * options.launches
    )
    has_bf16 = bool(cpu_flags() & BF16) and host_target().bf16
    for precision in ["f32", "bf16"] if has_bf16 and not options.f32_only else ["f32"]:
        floats = {r.model for r in rows if r.group == "float"}
        chosen = [p for p in paths if precision == "f32" or p.stem in floats]
        for threads in counts:
            for path in chosen:
                rows.append(
                    guarded(path, engines, threads, precision, allowance.next(), options.launches)
                )
                print(_progress(rows[-1]), file=sys.stderr, flush=True)
    return rows


def guarded(
    path: Path, engines: Sequence[str], threads: int, precision: str, seconds: float, launches: int
) -> Row:
    """A row, whatever happens: a model that cannot even be read does not stop the others."""
    try:
        return run_model(path, engines, threads, precision, seconds, launches)
    except Exception as error:
        why = dict.fromkeys(engines, sentence(error))
        return Row(path.stem, "unreadable", "float", threads, precision, errors=why)


def _progress(row: Row) -> str:
    times = [f"{e} {milliseconds(row.median(e) or 0)}" for e in ENGINES if e in row.samples]
    failed = [f"\n  {engine}: {why}" for engine, why in row.errors.items()]
    return f"{row.model}, threads {row.threads}, ms: {', '.join(times)}{''.join(failed)}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", metavar="MODEL", help="default: all shared models")
    parser.add_argument("--models", default="", help="only names with one of these words")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--seconds", type=float, default=10, help="a model and thread count")
    parser.add_argument("--minutes", type=float, default=0, help="for all of it, about")
    parser.add_argument("--launches", type=int, default=5, help="fresh processes of each engine")
    parser.add_argument("--target", default="", help="hold engines to it: " + ", ".join(ONEDNN))
    parser.add_argument("--f32-only", action="store_true", help="no second table at bf16")
    parser.add_argument("--json", metavar="FILE", help="all samples; '-' for stdout")
    parser.add_argument("--write", action="store_true", help="update benchmarks/RESULTS.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())

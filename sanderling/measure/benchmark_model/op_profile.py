"""Op profiling as the tool shows it: run order, top by time, by type; text, CSV, protobuf."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ...delegates.cpu.isa.targets import host_target, problem
from ...ir import Graph
from ...runtime.plan import Plan
from ..profile_ours import Part, RowWriter, watch
from .tool_statistics import Stat

TOP = 10  # rows of "Top by Computation Time"
INIT_TITLE = "Profiling Info for Benchmark Initialization:"
RUN_TITLE = "Operator-wise Profiling Info for Regular Benchmark Runs:"
RUN_ORDER, BY_TIME, BY_TYPE = "Run Order", "Top by Computation Time", "Summary by node type"
CSV_COLUMNS = ("node type", "first", "avg_ms", "%", "cdf%", "mem KB", "times called", "name",
               "count", "table", "stage")  # fmt: skip


@dataclass
class ProfiledNode:
    """One node of the profile: microseconds by run."""

    type: str
    name: str
    micros: list[float] = field(default_factory=list)
    mem_kb: float = 0.0
    delegate: str = ""

    @property
    def sum(self) -> float:
        return sum(self.micros)

    @property
    def avg_ms(self) -> float:
        return self.sum / len(self.micros) / 1e3 if self.micros else 0.0

    @property
    def first_ms(self) -> float:
        return self.micros[0] / 1e3 if self.micros else 0.0


@dataclass
class NodeProfile:
    """Nodes in the order in which they ran."""

    nodes: list[ProfiledNode] = field(default_factory=list)
    runs: int = 0

    @property
    def total(self) -> float:
        return sum(n.sum for n in self.nodes)

    @property
    def totals(self) -> Stat:
        """Microseconds of all nodes, by run."""
        return Stat([round(sum(run)) for run in zip(*(n.micros for n in self.nodes), strict=True)])

    def by_time(self) -> list[ProfiledNode]:
        return sorted(self.nodes, key=lambda n: -n.sum)

    def shares(self, nodes: Iterable[ProfiledNode]) -> Iterator[tuple[ProfiledNode, float, float]]:
        """Each with its share and the sum of shares so far, in per cent."""
        so_far = 0.0
        for node in nodes:
            share = 100 * node.sum / self.total if self.total else 0.0
            so_far += share
            yield node, share, so_far

    def times_called(self, node: ProfiledNode) -> int:
        return len(node.micros) // self.runs if self.runs else 0

    def by_type(self) -> list[tuple[str, list[ProfiledNode]]]:
        groups: dict[str, list[ProfiledNode]] = {}
        for node in self.nodes:
            groups.setdefault(node.type, []).append(node)
        return sorted(groups.items(), key=lambda g: -sum(n.sum for n in g[1]))

    def to_json(self) -> dict[str, Any]:
        return {
            "runs": self.runs,
            "nodes": [
                {
                    "type": n.type,
                    "name": n.name,
                    "delegate": n.delegate,
                    "first_ms": n.first_ms,
                    "avg_ms": n.avg_ms,
                    "share": share / 100,
                    "mem_kb": n.mem_kb,
                    "times_called": self.times_called(n),
                }
                for n, share, _ in self.shares(self.nodes)
            ],
        }


# -- taking it down ------------------------------------------------------------------------------


class NodeRecorder:
    """Watches the parts of a plan, as `sanderling profile` does. Made before the plan is bound: a
    part that does not time itself is wrapped."""

    def __init__(self, graph: Graph, plan: Plan, precision: str) -> None:
        writer = RowWriter(graph, plan, precision)
        self._parts: list[Part] = []
        for number, step in enumerate(plan.steps):
            counts = step.executable.step_times() is not None
            part = watch(step, tick_rate() if counts else 1.0)
            writer.part(number, step, part)
            self._parts.append(part)
        nodes = [ProfiledNode(row.type, row.name, delegate=row.delegate) for row in writer.rows]
        self.profile = NodeProfile(nodes)

    def take(self, keep: bool) -> None:
        """After a run: its times, which are forgotten where nobody keeps them (warm-up)."""
        # A step lasts as long as its slowest worker needs.
        found = [float(s) * 1e6 for part in self._parts for s in part.take()[0].max(axis=0)]
        if keep:
            self.profile.runs += 1
            for node, micros in zip(self.profile.nodes, found, strict=True):
                node.micros.append(micros)


@cache
def tick_rate() -> float:
    """A second in ticks of timed code; 1 where there is none. Needs LLVM: ask before memory is
    measured."""
    if problem() is not None:
        return 1.0
    from ...delegates.cpu.limit_loops import ticks

    return ticks(host_target())


# -- showing it ----------------------------------------------------------------------------------


def report(profile: NodeProfile) -> str:
    """The text of one stage."""
    summary = (
        f"Timings (microseconds): {profile.totals.short_line()}\n"
        f"Memory (bytes): {Stat().short_line()}\n"
        f"{len(profile.nodes)} nodes observed\n"
    )
    return "\n".join(
        [
            *_rows(profile, RUN_ORDER, profile.nodes),
            "",
            *_rows(profile, BY_TIME, profile.by_time()[:TOP]),
            "",
            f"Number of nodes executed: {len(profile.nodes)}",
            *_types(profile),
            "",
            summary,
        ]
    )


def _banner(title: str) -> str:
    return f"{'=' * 30} {title} {'=' * 30}"


def _rows(profile: NodeProfile, title: str, nodes: Iterable[ProfiledNode]) -> Iterator[str]:
    yield _banner(title)
    yield (
        _cells(
            (24, "[node type]"),
            (9, "[first]"),
            (9, "[avg ms]"),
            (8, "[%]"),
            (8, "[cdf%]"),
            (10, "[mem KB]"),
            (9, "[times called]"),
        )
        + "\t[Name]"
    )
    for node, share, so_far in profile.shares(nodes):
        yield (
            _cells(
                (24, node.type),
                (9, _ms(node.first_ms)),
                (9, _ms(node.avg_ms)),
                (8, f"{share:.3f}%"),
                (8, f"{so_far:.3f}%"),
                (10, _ms(node.mem_kb)),
                (9, profile.times_called(node)),
            )
            + f"\t{node.name}"
        )


def _types(profile: NodeProfile) -> Iterator[str]:
    yield _banner(BY_TYPE)
    yield _cells(
        (24, "[Node type]"),
        (9, "[count]"),
        (10, "[avg ms]"),
        (11, "[avg %]"),
        (11, "[cdf %]"),
        (10, "[mem KB]"),
        (10, "[times called]"),
    )
    for row in type_rows(profile):
        yield _cells(
            (24, row["node type"]),
            (9, row["count"]),
            (10, _ms(row["avg_ms"])),
            (11, f"{row['%']:.3f}%"),
            (11, f"{row['cdf%']:.3f}%"),
            (10, _ms(row["mem KB"])),
            (9, row["times called"]),
        )


def type_rows(profile: NodeProfile) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    so_far = 0.0
    for kind, nodes in profile.by_type():
        share = 100 * sum(n.sum for n in nodes) / profile.total if profile.total else 0.0
        so_far += share
        rows.append(
            {
                "node type": kind,
                "count": len(nodes),
                "%": share,
                "cdf%": so_far,
                "avg_ms": sum(n.avg_ms for n in nodes),
                "mem KB": sum(n.mem_kb for n in nodes),
                "times called": sum(map(profile.times_called, nodes)),
            }
        )
    return rows


def _cells(*cells: tuple[int, object]) -> str:
    return "".join(f"\t{text!s:>{width}}" for width, text in cells)


def _ms(value: float) -> str:
    return f"{value:.3f}"


def csv_table(stages: dict[str, NodeProfile]) -> str:
    """One CSV of all tables: the tool's columns first, then count, table and stage. Shares have no
    % sign; what holds a comma is quoted."""
    out = io.StringIO()
    writer = csv.DictWriter(out, CSV_COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for stage, profile in stages.items():
        for table, nodes in (("run order", profile.nodes), ("top", profile.by_time()[:TOP])):
            for node, share, so_far in profile.shares(nodes):
                writer.writerow(
                    _numbers(
                        {
                            "node type": node.type,
                            "first": node.first_ms,
                            "avg_ms": node.avg_ms,
                            "%": share,
                            "cdf%": so_far,
                            "mem KB": node.mem_kb,
                            "times called": profile.times_called(node),
                            "name": node.name,
                            "table": table,
                            "stage": stage,
                        }
                    )
                )
        for row in type_rows(profile):
            writer.writerow(_numbers(row | {"table": "by type", "stage": stage}))
    return out.getvalue()


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    return {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()}


def csv_tflite(profile: NodeProfile) -> str:
    """The tool's own layout of one stage, banners included."""
    lines: list[str] = []
    for title, nodes in ((RUN_ORDER, profile.nodes), (BY_TIME, profile.by_time()[:TOP])):
        lines += [_banner(title), "node type, first, avg_ms, %, cdf%, mem KB, times called, name"]
        lines += [
            f"{n.type}, {n.first_ms:g}, {n.avg_ms:g}, {share:g}%, {so_far:g}%, {n.mem_kb:g}, "
            f"{profile.times_called(n)}, {n.name.replace(',', chr(9))}"
            for n, share, so_far in profile.shares(nodes)
        ] + [""]
    lines += [
        f"Number of nodes executed: {len(profile.nodes)}",
        _banner(BY_TYPE),
        "node type, count, avg_ms, avg %, cdf %, mem KB, times called",
    ]
    lines += [
        f"{r['node type']}, {r['count']}, {r['avg_ms']:g}, {r['%']:g}%, {r['cdf%']:g}%, "
        f"{r['mem KB']:g}, {r['times called']}"
        for r in type_rows(profile)
    ]
    lines += [
        "",
        f"Timings (microseconds): {profile.totals.short_line()}",
        f"Memory (bytes): {Stat().short_line()}",
        f"{len(profile.nodes)} nodes observed",
        "",
    ]
    return "\n".join(lines)


def record(profile: NodeProfile, graph: str) -> dict[str, Any]:
    """As ModelProfilingData."""
    nodes = [
        {
            "node_type": n.type,
            "inference_microseconds": _stat_record(n.micros),
            "mem_kb": _stat_record([n.mem_kb] * bool(n.micros)),
            "times_called": profile.times_called(n),
            "name": n.name,
            "run_order": order,
        }
        for order, n in enumerate(profile.nodes)
    ]
    subgraph = {"subgraph_name": graph, "subgraph_index": 0, "per_op_profiles": nodes}
    return {"subgraph_profiles": [subgraph]}


def _stat_record(values: Sequence[float]) -> dict[str, float]:
    stat = Stat([round(v) for v in values])
    if not values:
        return {"count": 0}
    return {
        "first": stat.first,
        "last": stat.last,
        "avg": round(stat.avg),
        "stddev": stat.std,
        "variance": stat.variance,
        "min": stat.min,
        "max": stat.max,
        "sum": stat.sum,
        "count": stat.count,
    }

"""What accelerators accept, as data, and an engine that explains.

`judge(graph, "gpu")` says of each op whether the delegate takes it, or why not and which document
says so; how the graph falls into parts; and what crosses their borders. The tables are those of
delegates that need not be here: docs/accelerators.md says where their rules come from.
"""

from ..ir import Graph, Model
from .judgement import Crossing, JudgedPart, Judgement, Verdict, judge_by
from .rule import Border, GraphRule, Rule, Table
from .tables import find_table, names

__all__ = [
    "Border", "Crossing", "GraphRule", "JudgedPart", "Judgement", "Rule", "Table", "Verdict",
    "find_table", "judge", "names",
]  # fmt: skip


def judge(graph: Graph | Model, name: str) -> Judgement:
    """What a delegate would take of a graph (of a model: its main graph), and why not the rest;
    `names()` lists the delegates."""
    return judge_by(find_table(name), graph.main if isinstance(graph, Model) else graph)

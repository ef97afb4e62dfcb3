"""A trace of one model: load, plan, compile, and some runs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError
from ..format import load
from ..ir import Signature
from ..runtime.delegate import PlainDelegate
from ..runtime.recorder import record, section
from ..runtime.session import Session
from ..runtime.trace_data import Trace
from .inputs import plausible
from .trace_insights import Facts

Feeds = Mapping[str, npt.ArrayLike]


def trace_model(model: str | os.PathLike[str] | bytes, **options: Any) -> Trace:
    """Record a model from the reading of its file to the last run; options are run_model's."""
    with record() as trace:
        run_model(model, **options)
    return trace


def run_model(
    model: str | os.PathLike[str] | bytes,
    *,
    runs: int = 5,
    threads: int | None = None,
    delegates: str | PlainDelegate | Iterable[str | PlainDelegate] = (),
    feeds: Feeds | Callable[[Signature], Feeds] | None = None,
    signature: str | None = None,
    require_full_delegation: bool = False,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> None:
    """What is worth recording of a model: load it, plan and compile, run it some times.

    feeds: arrays by name, or what makes them once the inputs are known; default, random ones.
    """
    if runs < 1:
        raise ArgumentError(f"`runs` is {runs}", fix="give 1 or more")
    session = Session(
        load(model), delegates, threads, require_full_delegation=require_full_delegation
    )
    entry = session.entry(signature)
    with section("make inputs"):
        arrays = feeds(entry) if callable(feeds) else feeds or _random(entry)
    for done in range(runs):
        progress("runs", done, runs)
        session.run(arrays, signature=signature)
    progress("runs", runs, runs)


def _random(entry: Signature) -> Feeds:
    rng = np.random.default_rng(0)
    return {name: plausible(tensor, rng) for name, tensor in entry.inputs.items()}


def op_times(trace: Trace) -> list[dict[str, Any]]:
    """What the ops of the steady runs take, the slowest first; times in seconds of one run."""
    facts = Facts(trace)
    spent: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    about = {}
    for s in facts.ops:
        step = str(s.args["step"])
        spent[step] += s.end - s.begin
        calls[step] += 1
        about[step] = s.args
    return [
        {
            "op": about[step]["op"],
            "node": about[step]["node"],
            "delegate": about[step]["delegate"],
            "calls": calls[step] / facts.count,
            "seconds": time / facts.count / 1e9,
            "share": time / facts.total,
        }
        for step, time in spent.most_common()
    ]


def summary(trace: Trace) -> dict[str, Any]:
    """Figures about a trace; times in seconds."""
    facts = Facts(trace)

    def seconds(kind: str, name: str) -> float:
        return sum(s.end - s.begin for s in trace.of_kind(kind) if s.name == name) / 1e9

    runs = facts.all_runs
    return {
        "slices": len(trace.slices),
        "threads": list(trace.threads.values()),
        "runs": len(runs),
        "load_s": seconds("load", "load"),
        "plan_s": seconds("plan", "plan"),
        "first_run_s": (runs[0].end - runs[0].begin) / 1e9 if runs else None,
        "later_run_s": facts.total / facts.count / 1e9 if len(runs) > 1 else None,
        "sections_s": {s.name: seconds("section", s.name) for s in trace.of_kind("section")},
    }

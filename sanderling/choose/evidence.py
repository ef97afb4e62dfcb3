"""What the rules of `advise` look at: a model, and what is measured of it when a rule asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import SanderlingError
from ..ir import Array, Model, Tensor
from ..measure.engine_agreement import group
from ..measure.inspection import inspect
from ..measure.model_trace import trace_model
from ..measure.profiling import profile
from ..measure.record import Setting
from ..measure.trace_insights import Facts
from ..optimize.calibration.samples import Samples
from ..optimize.suggest import Option, Situation, situation_of
from ..processors import usable_cpu_count
from ..progress import plural
from ..rewrites.driver import Rewritten, rewrite
from ..rewrites.simplified import simplify
from ..units import byte_size, si
from .advice import Destination

Progress = Callable[[str, int, int], None]
TRACED_RUNS = 8
PRODUCTS = ("CONV_2D", "FULLY_CONNECTED")
# Goals of the decision tree of `quantize --suggest`.
TREE_GOALS = {"latency": "latency", "energy": "latency", "accuracy": "accuracy"}


@dataclass(eq=False)
class Evidence:
    """A model for a target and a goal. options: of --data, as commands repeat them. Everything that
    takes time is measured when it is first asked for."""

    path: Path
    model: Model
    target: Destination
    goal: str
    samples: Samples | None = None
    options: tuple[Option, ...] = ()
    progress: Progress = field(default=lambda what, done, total: None)

    def name(self, ending: str) -> str:
        """The name of a file that a command writes."""
        return f"{self.path.stem}{ending}"

    @property
    def base(self) -> Setting:
        """What everything is compared with."""
        return Setting(engine=self.target.engine or "sanderling")

    @cached_property
    def record(self) -> dict[str, Any]:
        return inspect(self.model)

    @property
    def kind(self) -> str:
        return str(self.record["quantisation"])

    @property
    def is_float(self) -> bool:
        return group(self.kind) == "float"

    @property
    def about(self) -> str:
        ops = sum(len(g.ops) for g in self.model.graphs)
        macs = "" if self.record["macs"] is None else f", {si(self.record['macs'])} MACs"
        size = byte_size(self.path.stat().st_size)
        return (
            f"{plural(ops, 'op')}, {si(self.record['parameters'])} parameters{macs}, {size}, "
            + ("without weights" if self.kind == "none" else self.kind)
        )

    # -- measured when asked ----------------------------------------------------------------

    @cached_property
    def profile(self) -> dict[str, Any] | None:
        """The profile by the target's engine; None where that tells nothing of single ops."""
        self.progress("profile", 0, 0)
        try:
            return profile(self.model, engine=self.base.engine, with_roofline=self.target.is_ours)
        except SanderlingError:
            return None

    def share_of(self, *types: str) -> float | None:
        """The share of a run's time that ops of these types take; None without a profile."""
        if self.profile is None:
            return None
        spent = {row["type"]: row["median_ms"] for row in self.profile["by_type"]}
        whole = sum(r["median_ms"] for r in (*self.profile["steps"], *self.profile["others"]))
        return sum(spent.get(t, 0.0) for t in types) / whole if whole else None

    @cached_property
    def facts(self) -> Facts | None:
        """A short trace with all CPUs."""
        if not self.target.is_ours:
            return None
        self.progress("trace", 0, 0)
        return Facts(trace_model(self.path, runs=TRACED_RUNS, threads=usable_cpu_count()))

    @cached_property
    def simplified(self) -> Rewritten:
        return simplify(self.model)

    @cached_property
    def rewritten(self) -> Rewritten | None:
        """For the target's accelerator."""
        if not self.target.rules:
            return None
        return rewrite(self.model, self.target.rules, self.samples, self.progress)

    @cached_property
    def situation(self) -> Situation:
        return situation_of(
            self.model,
            self.record,
            "none" if self.samples is None else "samples",
            self.target.accelerator,
            TREE_GOALS.get(self.goal, "size"),
        )

    @cached_property
    def weights(self) -> list[tuple[Tensor, Array]]:
        """The constant weights of products, each with its values."""
        found = dict.fromkeys(
            op.input(1) for graph in self.model.graphs for op in graph.ops if op.name in PRODUCTS
        )
        return [(t, t.values) for t in found if t is not None and t.is_constant]

    @cached_property
    def zeros(self) -> float:
        """Share of the weights of products."""
        count = sum(values.size for _, values in self.weights)
        return sum(int(np.sum(v == 0)) for _, v in self.weights) / count if count else 0.0

    @cached_property
    def answers(self) -> Sequence[Array]:
        """The first output for each sample; none without samples."""
        if self.samples is None:
            return []
        session = self.model.compile()
        entry = session.entry(None)
        first = next(iter(entry.outputs))
        made = []
        for number, sample in enumerate(self.samples):
            self.progress("samples", number, len(self.samples))
            feeds = {name: sample[tensor.name] for name, tensor in entry.inputs.items()}
            made.append(session.run(feeds)[first])
        return made

"""Post-training quantisation: a float model in, a smaller one and a report out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from ..errors import InputError, UnsupportedError
from ..evaluate.output_kinds import read_kinds
from ..format import load
from ..ir import DType, Model, Tensor
from ..ir.verify import verify
from .apply import rewrite, solve_model, together
from .calibrate import Calibration, Floats, Progress
from .data import read_samples
from .graphs import UNTAKEN, untaken
from .prepare import prepared
from .ranges import Range, method_of
from .recipe import Choice, Recipe, all_modes, read_recipe
from .report import Report, layer_rows
from .scheme import Grid, mode_of
from .solve import Solution
from .target import Target
from .work import Data, Wish, Work
from .write import WeightOptions, Written

INTERFACE = {"float32": DType.FLOAT32, "int8": DType.INT8, "uint8": DType.UINT8,
             "int16": DType.INT16}  # fmt: skip


@dataclass
class Quantised:
    """A model with codes, and how it came about."""

    model: Model
    solution: Solution
    written: Written
    float_model: Model  # with the same names and, where channels were equalised, the same sizes
    factors: dict[str, Floats] = field(default_factory=dict)  # what they were divided by


@dataclass
class Job:
    """One float model to be quantised, perhaps several times: ranges are found once."""

    float_model: Model
    recipe: list[Choice]
    calibration: Calibration | None = None
    ranges: str = "minmax"
    weights: WeightOptions = field(default_factory=WeightOptions)
    inputs: str = "float32"
    outputs: str = "float32"

    def __post_init__(self) -> None:
        for what in (self.inputs, self.outputs):
            if what not in INTERFACE:
                raise InputError(f"an input or output cannot be {what}",
                                 fix=f"one of {', '.join(INTERFACE)}")  # fmt: skip
        self._cache: dict[tuple[str, Grid], Range | None] = {}
        self._method = method_of(self.ranges)

    def range_of(self, tensor: Tensor, grid: Grid) -> Range | None:
        """What the tensor's codes must represent; a constant's own values."""
        if tensor.data is not None:
            return float(tensor.data.min(initial=0)), float(tensor.data.max(initial=0))
        key = tensor.name, grid
        if key not in self._cache:
            known = self.calibration.tensors if self.calibration else {}
            found = known.get(tensor.name) or known.get(tensor.name + UNTAKEN)
            self._cache[key] = self._method(found, grid) if found and found.seen else None
        return self._cache[key]

    def run(self) -> Quantised:
        """The model, written anew from the float one each time."""
        model = self.float_model.copy()
        solution, written = rewrite(model, self.recipe, self.range_of, self.weights,
                                    INTERFACE[self.inputs], INTERFACE[self.outputs])  # fmt: skip
        verify(model)
        return Quantised(model, solution, written, self.float_model)


def quantize(
    model: Model | str | os.PathLike[str],
    mode: str = "int8",
    data: Data | str | Path | Mapping[str, str | Path] | None = None,
    *,
    recipe: str | Path | Recipe | None = None,
    ranges: str = "auto",
    weights: str = "auto",
    corrections: str | Sequence[str] = "auto",
    inputs: str = "float32",
    outputs: str = "float32",
    minimum: int = 1024,
    strict: bool = False,
    target: Target | None = None,
    keep: str | Path | None = None,
    output_kind: str | Mapping[str, str] | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> tuple[Model, Report]:
    """Quantise a float model after its training.

    mode: see MODES; a recipe's rules come after it and win. data: samples like those the model will
    see (arrays by input name, a sequence in the order of the inputs, or the only input's array),
    samples by signature, {name: samples}, or folders or files of them (see read_samples).
    ranges, weights, corrections: "auto" tries what is worth trying and keeps what is best on a part
    of the data that calibrated nothing; or the name of a method. strict: no op may stay float.
    target: accuracy to hold; as few ops as needed get a finer mode, or TargetMissedError is raised.
    keep: a file for the statistics, so that an interrupted calibration goes on. output_kind:
    what outputs are (see evaluate.output_kinds), for all or by name, where the model does not tell.
    """
    source = model if isinstance(model, Model) else load(model)
    rules = [Choice(mode_of(mode).name), *(read_recipe(recipe) if recipe else [])]
    ready = prepared(source)
    stated = read_kinds(output_kind, [t.name for t in ready.main.outputs])
    wish = Wish.of(ranges, weights, corrections)
    base = Job(ready, rules, inputs=inputs, outputs=outputs,
               weights=WeightOptions(minimum=minimum))  # fmt: skip
    data = _samples(data, source)
    if target is None and not any(m.is_integer for m in all_modes(ready.graphs, rules).values()):
        made = base.run()
        report = Report.of(source, made, rules)
        report.notes += _effect(report, rules)
        return made.model, report
    if strict:
        _check_strict(base, lambda tensor, grid: (-1.0, 1.0))
    work = Work(base, data, keep, threads, progress, stated)
    if strict:
        _check_strict(work.job, work.job.range_of)
    best, candidates = work.choose(wish)
    if target is not None:
        reached = target.reach(work, best, work.plan)
        best, rules = reached.made, reached.rules
    report = Report.of(source, best, rules)
    report.notes += _effect(report, rules)
    report.candidates, report.samples, report.held_out = candidates, work.samples, work.away
    report.kinds = {name: {"kind": k.name, "why": k.why} for name, k in work.kinds.items()}
    report.notes += work.notes + _notes(best) + untaken(ready, work.job.calibration)
    report.layers = layer_rows(work, best)
    if target is not None:
        target.conclude(reached, report)
    return best.model, report


def _samples(data: Data | str | Path | Mapping[str, str | Path] | None,
             model: Model) -> Data | None:  # fmt: skip
    """What names files is read; samples are taken as they are."""
    paths = list(data.values()) if isinstance(data, Mapping) else [data]
    if paths and all(isinstance(path, str | Path) for path in paths):
        return read_samples(cast("Mapping[str, str | Path]", data), model)
    return cast("Data | None", data)


def _check_strict(job: Job, ranges: Callable[[Tensor, Grid], Range | None]) -> None:
    """Refuse before the work: which ops would stay float, and why."""
    found = together(solve_model(job.float_model, job.recipe, ranges))
    if not found.reasons:
        return
    lines = [f"{op.where}: {why}" for op, why in found.reasons.items()]
    more = f"\n  and {len(lines) - 10} more" if len(lines) > 10 else ""
    count = sum(len(graph.ops) for graph in job.float_model.graphs)
    raise UnsupportedError(
        f"{len(lines)} of {count} ops cannot be integer:\n  "
        + "\n  ".join(lines[:10]) + more,
        where="--strict", fix="leave them float (without --strict), or change the model",
    )  # fmt: skip


def _effect(report: Report, rules: Sequence[Choice]) -> list[str]:
    """A mode that did nothing is an error, one that no op could take is said."""
    asked = [name for name in dict.fromkeys(r.mode for r in rules) if name != "float"]
    got = {name for name in report.modes if name != "float"}
    if asked and not got:
        whys = Counter(row["reason"] for row in report.stayed_float).most_common(3)
        lines = [f"{count} op{'s' * (count > 1)}: {why}" for why, count in whys]
        raise UnsupportedError(
            f"{' and '.join(asked)} changes nothing in this model: "
            + ("; ".join(lines) or "no op has weights or values that it could store otherwise"),
            where=report.source, fix="choose another mode, or a lower minimum of weights "
            "(--minimum)")  # fmt: skip
    missing = [name for name in asked if name not in got]
    alone = len(asked) == len(got) == 1
    same = f", and the file is what --mode {next(iter(got))} writes" if alone else ""
    return [f"No op could take {name}: what it was asked of became {', '.join(sorted(got))}{same}. "
            "The list of ops that got another mode says why."
            for name in missing if report.fell_back]  # fmt: skip


def _notes(made: Quantised) -> list[str]:
    """Channels of nearly no weight have a bias that is large in their units."""
    found = made.written.repaired
    if not found:
        return []
    names = ", ".join(found[:3]) + (" ..." if len(found) > 3 else "")
    return [f"{len(found)} layers had a channel whose bias would have overflowed; its weights got "
            f"a larger scale: {names}"]  # fmt: skip

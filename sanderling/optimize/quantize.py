"""Post-training quantisation: a float model in, a smaller one and a report out.

The stages, each in modules that import only those before them:

    canonical -> calibrate (ranges) -> apply (solve, write) -> corrections -> judge, selection
    -> target, finer -> report, page
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from ..errors import UnsupportedError
from ..evaluate.output_kinds import read_kinds
from ..format import load
from ..ir import Model
from .calibration.calibrate import Progress
from .calibration.canonical import canonical
from .calibration.nested import untaken
from .calibration.samples import read_samples
from .correcting.calibrated import Calibrated, Data, calibrated
from .correcting.corrections import CorrectedQuantiser
from .correcting.techniques import SearchSpace
from .judging.finer_ops import Reached, reach
from .judging.judge import Judge
from .judging.layer_error import layer_rows
from .judging.report import Report
from .judging.selection import Selected, Selection
from .judging.target import Target
from .modes.recipe import Choice, Recipe, all_modes, read_recipe
from .modes.scheme import RangeOf, mode_of
from .writing.apply import Quantised, Quantiser, solve_model, together
from .writing.write import WeightOptions


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
    float_model = canonical(source)
    stated = read_kinds(output_kind, [t.name for t in float_model.main.outputs])
    space = SearchSpace.of(ranges, weights, corrections)
    quantiser = Quantiser(
        float_model,
        rules,
        inputs=inputs,
        outputs=outputs,
        weights=WeightOptions(minimum=minimum),
    )
    samples = _samples(data, source)
    if target is None and not _needs_ranges(quantiser):
        made = quantiser.run()
        return made.model, _report(source, made, rules)
    if strict:
        _check_strict(quantiser, lambda tensor, grid: (-1.0, 1.0))
    found = calibrated(quantiser, samples, keep, threads, progress)
    if strict:
        _check_strict(found.quantiser, found.quantiser.range_of)
    corrected, judge = CorrectedQuantiser(found), Judge(found, stated)
    selected = Selection(corrected, judge).choose(space)
    if target is None:
        report = _measured(source, found, judge, selected, Reached(selected.made, rules, []))
        return selected.made.model, report
    reached = reach(target, corrected, judge, selected)
    report = _measured(source, found, judge, selected, reached)
    target.conclude(reached.trials, reached.made.model, report)
    return reached.made.model, report


def _needs_ranges(quantiser: Quantiser) -> bool:
    modes = all_modes(quantiser.float_model.graphs, quantiser.recipe)
    return any(m.is_integer for m in modes.values())


def _samples(
    data: Data | str | Path | Mapping[str, str | Path] | None, model: Model
) -> Data | None:
    """Read the samples if files are named; else take them as they are."""
    paths = list(data.values()) if isinstance(data, Mapping) else [data]
    if paths and all(isinstance(path, str | Path) for path in paths):
        return read_samples(cast("Mapping[str, str | Path]", data), model)
    return cast("Data | None", data)


def _check_strict(quantiser: Quantiser, ranges: RangeOf) -> None:
    """Refuse before the work: say which ops would stay float, and why."""
    model = quantiser.float_model
    found = together(solve_model(model, quantiser.recipe, ranges))
    if not found.reasons:
        return
    lines = [f"{op.where}: {why}" for op, why in found.reasons.items()]
    more = f"\n  and {len(lines) - 10} more" if len(lines) > 10 else ""
    count = sum(len(graph.ops) for graph in model.graphs)
    raise UnsupportedError(
        f"{len(lines)} of {count} ops cannot be integer:\n  " + "\n  ".join(lines[:10]) + more,
        where="--strict",
        fix="leave them float (without --strict), or change the model",
    )


# -- the report -----------------------------------------------------------------------------------


def _report(source: Model, made: Quantised, rules: Sequence[Choice]) -> Report:
    report = Report.of(source, made, rules)
    report.notes += _effect(report, rules)
    return report


def _measured(
    source: Model, found: Calibrated, judge: Judge, selected: Selected, reached: Reached
) -> Report:
    """The report of a model with ranges: what was tried, and how far each layer is off."""
    made = reached.made
    report = _report(source, made, reached.rules)
    report.candidates = selected.candidates
    report.samples, report.held_out = found.samples, found.away
    report.kinds = {name: {"kind": k.name, "why": k.why} for name, k in judge.kinds.items()}
    report.notes += found.notes + selected.notes + _repairs(made)
    report.notes += untaken(found.float_model, found.quantiser.calibration)
    report.layers = layer_rows(found, made)
    return report


def _effect(report: Report, rules: Sequence[Choice]) -> list[str]:
    """Raise an error if the modes did nothing; note those that no op could take."""
    asked = [name for name in dict.fromkeys(r.mode for r in rules) if name != "float"]
    got = {name for name in report.modes if name != "float"}
    if asked and not got:
        whys = Counter(row["reason"] for row in report.stayed_float).most_common(3)
        lines = [f"{count} op{'s' * (count > 1)}: {why}" for why, count in whys]
        raise UnsupportedError(
            f"{' and '.join(asked)} changes nothing in this model: "
            + ("; ".join(lines) or "no op has weights or values that it could store otherwise"),
            where=report.source,
            fix="choose another mode, or a lower minimum of weights (--minimum)",
        )
    missing = [name for name in asked if name not in got]
    alone = len(asked) == len(got) == 1
    same = f", and the file is what --mode {next(iter(got))} writes" if alone else ""
    return [
        f"No op could take {name}: what it was asked of became {', '.join(sorted(got))}{same}. "
        "The list of ops that got another mode says why."
        for name in missing
        if report.fell_back
    ]


def _repairs(made: Quantised) -> list[str]:
    """Note channels of nearly no weight: their bias is large in their units."""
    found = made.written.repaired
    if not found:
        return []
    names = ", ".join(found[:3]) + (" ..." if len(found) > 3 else "")
    return [
        f"{len(found)} layers had a channel whose bias would have overflowed; its weights got "
        f"a larger scale: {names}"
    ]

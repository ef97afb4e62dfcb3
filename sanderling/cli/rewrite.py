"""`sanderling rewrite`."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError
from ..evaluate.differences.diff_export import number
from ..format import dump, load
from ..ir import Model
from ..optimize.calibration.samples import Samples, SignatureSamples, read_samples
from ..rewrites.answers import LEAST_SNR, RUNS, Answers, Bound, compare_answers, sample_arrays
from ..rewrites.driver import Rewritten
from ..rewrites.driver import rewrite as behind
from ..rewrites.simplified import ANYBODY
from ..rewrites.simplified import simplify as simplified
from ..rules.tables import find_table
from ..tables import facts, table
from . import completion
from .common import (
    JsonPath,
    JsonTarget,
    ModelPath,
    Plugins,
    Quiet,
    check_another_file,
    load_plugins,
    open_target,
    plural,
    progress,
    say,
    warn,
    warn_unused,
    write_target,
)

FAILED = 1
SHOWN = 12  # rows of a long list on the terminal; the record has all


def rewrite(
    model: ModelPath,
    for_: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="NAME",
            help="The accelerator: gpu, edgetpu, nnapi:29, hexagon, coreml:3, xnnpack.",
        ),
    ] = "",
    simplify: Annotated[
        bool,
        typer.Option(
            "--simplify",
            help="For no accelerator: take out transposes, copies and ops that change nothing.",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where the rewritten model goes; without it the result is shown alone.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Samples like those the model will see, for the comparison and for ranges of "
            "int8 values: a folder of pictures or arrays, a .npz, a .npy. Default: random values.",
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option(metavar="N", min=0, help="At most so many, spread evenly; 0: all.")
    ] = 200,
    preset: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            autocompletion=completion.PRESET,
            help="How pictures become inputs, as in `sanderling quantize`.",
        ),
    ] = "",
    runs: Annotated[
        int, typer.Option(metavar="N", min=1, help="Inputs that answers are compared on.")
    ] = RUNS,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the random inputs.")] = 0,
    min_snr: Annotated[
        float,
        typer.Option(
            metavar="DB", help="What answers must reach where values got another quantisation."
        ),
    ] = LEAST_SNR,
    plugin: Plugins = [],  # noqa: B006
    quiet: Quiet = False,
    json: JsonPath = "",
) -> None:
    """Make a model acceptable to an accelerator: ops that it refuses are rewritten in ops that it
    takes, and the answers are compared.

    Only what is refused is rewritten; --simplify leaves out what any runtime can do without. Exit
    status 1, and no model, if the answers differ by more than rounding (or, for a model that had to
    be quantised, by more than --min-snr allows).
    """
    load_plugins(plugin)
    _check_purpose(for_, simplify)
    if data is None:
        warn_unused({"--preset": preset}, "there is no --data")
    if output is not None and output.suffix != ".tflite":
        raise InputError("a model's name ends in .tflite", where=str(output), fix="rename it")
    check_another_file(model, output, "the model as it was is worth keeping")
    with ExitStack() as opened:
        target = opened.enter_context(JsonTarget(json))
        file = opened.enter_context(open_target(output)) if output else None
        source = load(model)
        found = _samples(data, source, samples=samples, preset=preset)
        with progress() as show:
            made = simplified(source) if simplify else behind(source, for_, found, show)
            answers = _answers(source, made, found, runs, seed, min_snr)
        failed = [f"(run by {one.engine}) {text}" for one in answers for text in one.failed]
        if file and not failed:
            write_target(file, dump(made.model))
            _say_unchanged(made, output)
        record = made.to_json() | {"answers": [one.to_json() for one in answers]}
        if not target.write(record | {"written": str(output) if file and not failed else None}):
            _print(made, answers)
    if failed:
        raise _failure(failed, bool(file), made.is_exact)


def _check_purpose(for_: str, simplify: bool) -> None:
    if bool(for_) == simplify:
        what = "--for and --simplify are both given" if for_ else "it is not said what for"
        raise InputError(what, where="--for", fix="give --for NAME, or --simplify")
    if for_:
        find_table(for_)


def _samples(data: Path | None, source: Model, **how: Any) -> Samples | None:
    if data is None:
        return None
    found = read_samples(data, source, **how)
    for text in found.warnings:
        warn(f"--{text}")
    if isinstance(found, SignatureSamples):
        raise InputError(
            "samples of several signatures, and one graph is rewritten",
            where="--data",
            fix="give the samples of one signature",
        )
    return found


def _answers(
    source: Model, made: Rewritten, found: Samples | None, runs: int, seed: int, snr: float
) -> list[Answers]:
    if not made.changes:
        return []
    arrays = None if found is None else sample_arrays(found, runs)
    return compare_answers(source, made, arrays, runs, seed, Bound(made.is_exact, snr=snr))


def _say_unchanged(made: Rewritten, output: Path | None) -> None:
    """The report says why; who asks for the record alone hears of it all the same."""
    if not made.changes:
        say(f"{output} holds the model as it was")


def _unchanged(made: Rewritten) -> str:
    return "nothing could be rewritten" if made.before else "nothing had to be rewritten"


def _failure(failed: list[str], held_back: bool, is_exact: bool) -> typer.Exit:
    for text in failed[:SHOWN]:
        say(f"answers differ: {text}")
    if held_back:
        say("no model is written")
    if not is_exact:
        say("--data gives ranges from real samples in place of noise; --min-snr asks for less")
    return typer.Exit(FAILED)


# -- printing -------------------------------------------------------------------------------------


def _print(made: Rewritten, answers: list[Answers]) -> None:
    pieces = [_summary(made), _changes(made), _left(made), _compared(answers)]
    typer.echo("\n\n".join(filter(None, pieces)))


def _summary(made: Rewritten) -> str:
    before, after = made.ops
    rows: list[tuple[str, object]] = [("model", made.model.source or "in memory")]
    if made.accelerator == ANYBODY:
        rows += [("for", ANYBODY), ("ops", f"{before} -> {after}")]
    else:
        refused = f"{len(made.before)} of {before} ops -> {len(made.after)} of {after}"
        rows += [("for", find_table(made.accelerator).title), ("refused", refused)]
    notes = made.notes if made.changes else [_unchanged(made), *made.notes]
    for label, texts in (("border", made.border), ("note", notes)):
        rows += [(label if not i else "", str(text)) for i, text in enumerate(texts)]
    return facts(rows)


def _changes(made: Rewritten) -> str:
    """Rewrites of the same kind for the same reason are one row."""
    if made.accelerator == ANYBODY:
        return table(["rule", "fired"], [(c.reason, c.op) for c in made.changes])
    kinds = Counter((" + ".join(c.rewrites), c.does, c.reason) for c in made.changes)
    rows = [(name, count, does, why) for (name, does, why), count in kinds.items()]
    return table(["rewrite", ">ops", "|what is written", "|because"], rows[:SHOWN], labels=2)


def _left(made: Rewritten) -> str:
    own = [r for r in made.after if r.is_own]
    if made.accelerator == ANYBODY:
        return ""
    if not made.after:
        return "every op is taken"
    kinds = dict[tuple[str, str], list[str]]()
    for r in own:
        kinds.setdefault((r.reason, r.source), []).append(r.op)
    rows = [(at[0], len(at), why, source) for (why, source), at in kinds.items()]
    more = f"\nand {len(rows) - SHOWN} reasons more" if len(rows) > SHOWN else ""
    follow = len(made.after) - len(own)
    said = f"\n{plural(follow, 'op')} more run on the CPU because of them" if follow else ""
    columns = ["~first op", ">ops", "|because", "~source"]
    return "still refused:\n" + table(columns, rows[:SHOWN]) + more + said


def _compared(answers: list[Answers]) -> str:
    rows = [
        (
            one.engine,
            o.name,
            o.test_type,
            number(o.real.max_error),
            "-" if o.raw is None else f"{o.raw.max_error:g}",
            number(o.real.snr_db),
            "yes" if not one.failed else "NO",
        )
        for one in answers
        for o in one.outputs
    ]
    if not rows:
        return ""
    columns = ["run by", "~output", "type", ">largest error", ">units", ">SNR dB", "within bounds"]
    runs = f"answers on {plural(answers[0].runs, 'input')}, {answers[0].inputs}:"
    return f"{runs}\n{table(columns, rows, labels=2)}"

"""`sanderling.advise`: what to do next with a model, each piece of advice tried out before."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..delegates.engines.packages import PACKAGES, is_installed
from ..errors import ArgumentError, InputError, MissingExtraError
from ..findings import Finding, findings
from ..format import load
from ..optimize.calibration.samples import SignatureSamples, read_samples
from ..optimize.suggest import Option
from ..progress import plural
from ..rewrites.answers import Bound, compare_answers, sample_arrays
from ..rewrites.driver import Rewritten
from .advice import (
    GOALS,
    REFUSED,
    Advice,
    Advised,
    Destination,
    Gain,
    LookedAt,
    Proposal,
    Tried,
    target_of,
)
from .advice_rules import A_FOLDER, RULES, command_line
from .evidence import Evidence, Progress
from .trials import Trials

SAMPLES = 100  # of --data, spread evenly
LACKING = "needs samples like those it will see"
RUNS = 5  # inputs that answers of a rewritten model are compared on


def advise(
    model: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | None = None,
    preset: str = "",
    samples: int = SAMPLES,
    target: str = "cpu",
    goal: str = "latency",
    seconds: float = 30.0,
    progress: Progress = lambda what, done, total: None,
) -> Advised:
    """Look at a model and say what to do next, the largest gain first.

    data: samples like those the model will see, as `read_samples` takes them; without them nothing
    is said of int8's accuracy. target: cpu (this machine), phone (LiteRT measured here), or an
    accelerator whose rules are known (sanderling.rules.names()). goal: latency, size, memory,
    energy or accuracy (as latency, with answers that hardly change). seconds: about how long trials
    are measured. What does not gain in its trial is not advised; it is in `looked_at`.
    """
    begun = time.monotonic()
    if goal not in GOALS:
        raise InputError(f"there is no goal '{goal}'", fix=f"one of {', '.join(GOALS)}")
    if not seconds > 0:
        raise ArgumentError(f"`seconds` is {seconds:g}", fix="give a larger number")
    evidence = _evidence(Path(model), data, preset, samples, target_of(target), goal, progress)
    found = Advised(str(model), evidence.target, goal, evidence.about)
    try:
        _look(evidence, found, seconds)
    except KeyboardInterrupt:  # what is known by then is worth telling
        found.interrupted = True
    found.seconds = time.monotonic() - begun
    return found


def _evidence(
    path: Path,
    data: str | os.PathLike[str] | None,
    preset: str,
    count: int,
    target: Destination,
    goal: str,
    progress: Progress,
) -> Evidence:
    if target.engine and not is_installed(target.engine):
        what = f"the target {target.name}, which LiteRT stands for"
        raise MissingExtraError(PACKAGES[target.engine][0], "peers", what)
    model = load(path)
    if data is None:
        return Evidence(path, model, target, goal, progress=progress)
    read = read_samples(Path(data), model, samples=count, preset=preset)
    if isinstance(read, SignatureSamples):
        raise InputError(
            "samples of several signatures", where="--data", fix="give those of one signature"
        )
    options: list[Option] = [("--data", os.fspath(data))]
    options += [("--preset", preset)] if preset else []
    options += [("--samples", str(count))] if count != SAMPLES else []
    return Evidence(path, model, target, goal, read, tuple(options), progress)


def _look(evidence: Evidence, found: Advised, seconds: float) -> None:
    """Ask all rules, try what they propose, and sort it."""
    proposals = []
    for one in _asked(evidence):
        if isinstance(one, Proposal):
            proposals.append(one)
        else:
            found.noted.append(one)
    if evidence.rewritten is not None:
        _judge_refusals(evidence, evidence.rewritten, found)
    if evidence.target.engine:
        with Trials(evidence, seconds) as trials:
            _try_out(trials, proposals, found)
    elif evidence.goal == "size":
        with Trials(evidence, seconds) as trials:
            _sort_out(trials, trials.prepared(p for p in proposals if p.trial.make), found)
    found.advice.sort(key=lambda advice: advice.gain.value)


def _asked(evidence: Evidence) -> Iterable[Finding]:
    if evidence.target.engine:
        return findings(RULES, evidence)
    timed = ("time", "trace", "float16", "prune")  # there is nothing to measure here
    return findings([r for r in RULES if r.kind not in timed], evidence)


def _try_out(trials: Trials, proposals: Sequence[Proposal], found: Advised) -> None:
    if trials.figure == "size":
        proposals = [p for p in proposals if p.trial.make]
    tried = trials.prepared(proposals)
    trials.measure(tried)
    found.warnings = trials.warnings
    _sort_out(trials, tried, found)


def _sort_out(trials: Trials, tried: Sequence[Tried], found: Advised) -> None:
    """Advice is what gains and keeps the answers; of one kind, the one that gains most."""
    figure = trials.figure
    gaining = [t for t in tried if not t.problem and _is_worth_it(t, figure)]
    gaining.sort(key=lambda t: t.gains[figure].value)
    for one in gaining:
        trial = one.proposal.trial
        if not trial.is_exact and not trial.needs:
            trials.compare_answers(one)
    advised: dict[str, Tried] = {}
    for one in [t for t in gaining if not t.problem]:
        trial = one.proposal.trial
        if trial.needs:
            found.wants.append(_wanted(one, figure))
        elif one.proposal.kind in advised:
            first = advised[one.proposal.kind].proposal.trial.name
            found.looked_at.append(_looked_at(one, figure, f"{first} gains more"))
        else:
            advised[one.proposal.kind] = one
            found.advice.append(_advice(one, figure))
    for one in tried:
        if one.problem:
            found.looked_at.append(_looked_at(one, figure, one.problem))
        elif one not in gaining:
            found.looked_at.append(_looked_at(one, figure, _why_not(one.gains.get(figure))))


def _why_not(gain: Gain | None) -> str:
    if gain is not None and gain.is_unsure:
        return "it may gain, but the interval holds 1: give --seconds, or a quieter machine"
    return "nothing to gain"


def _is_worth_it(one: Tried, figure: str) -> bool:
    return figure in one.gains and one.gains[figure].is_worth_it


def _advice(one: Tried, figure: str) -> Advice:
    p = one.proposal
    same = "answers differ by rounding at most"
    cost = str(one.cost) if one.cost is not None else same
    gain = one.gains[figure]
    return Advice(p.kind, p.trial.name, p.what, p.why, gain, figure, one.gains, cost, p.do)


def _wanted(one: Tried, figure: str) -> LookedAt:
    p = one.proposal
    return LookedAt(p.kind, p.trial.name, f"it needs {p.trial.needs}", one.gains[figure], p.do)


def _looked_at(one: Tried, figure: str, why: str) -> LookedAt:
    return LookedAt(one.proposal.kind, one.proposal.trial.name, why, one.gains.get(figure))


# -- accelerators ---------------------------------------------------------------------------------


def _judge_refusals(e: Evidence, made: Rewritten, found: Advised) -> None:
    """What the accelerator refuses, and what is left of it after a rewrite."""
    name = f"rewrite for {e.target.name}"
    if not made.before:
        found.looked_at.append(LookedAt(REFUSED, name, f"{e.target.name} takes every op"))
        return
    evidence = f"{e.target.name} refuses {len(made.before)} of {plural(made.ops[0], 'op')}"
    reasons = "; ".join(dict.fromkeys(r.reason for r in made.before if r.is_own))
    gain = Gain.exact(len(made.after), len(made.before))
    if not made.changes:
        why = f"{evidence}, and no rewrite helps: {reasons}"
        found.looked_at.append(LookedAt(REFUSED, name, why, gain))
        return
    failed, cost = _answers(e, made)
    if e.samples is None and (failed or not made.is_exact):  # ranges from noise are of no use
        again = command_line("advise", e.path, "--target", e.target.name, "--data", A_FOLDER)
        found.wants.append(LookedAt(REFUSED, name, f"{evidence}; it {LACKING}", gain, again))
    elif failed:
        found.looked_at.append(LookedAt(REFUSED, name, f"{evidence}; {failed}", gain))
    else:
        gains = {REFUSED: gain}
        done = _rewriting(e)
        found.advice.append(
            Advice(REFUSED, name, evidence, reasons, gain, REFUSED, gains, cost, done)
        )


def _rewriting(e: Evidence) -> str:
    words = [word for option in e.options for word in option]
    target = e.name(f"_{e.target.name.replace(':', '-')}.tflite")
    return command_line("rewrite", e.path, "--for", e.target.name, "-o", target, *words)


def _answers(e: Evidence, made: Rewritten) -> tuple[str, str]:
    """Why the rewritten model is not to be taken, if so; and how far its answers are off."""
    arrays = None if e.samples is None else sample_arrays(e.samples, RUNS)
    answers = compare_answers(e.model, made, arrays, RUNS, 0, Bound(made.is_exact))
    failed = [text for one in answers for text in one.failed]
    worst = min(o.real.snr_db for one in answers for o in one.outputs)
    on = answers[0].inputs
    return (failed[0] if failed else ""), f"answers at {worst:.1f} dB or better, on {on}"

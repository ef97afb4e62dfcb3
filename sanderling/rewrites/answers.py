"""Answers before and after a rewrite, by the figures of `diff`: executed here, and by LiteRT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ..errors import MissingExtraError, SanderlingError
from ..evaluate.differences.diff import OutputDiff, diff
from ..format import load, save
from ..ir import Array, Model
from ..measure.engines import import_engine
from ..measure.inspection import quantisation_kind
from .driver import Rewritten
from .whole_model import as_float, fix_sizes, one_batch

OURS, PEER = "sanderling", "litert"
RUNS = 5
EXACT = 1e-5  # of the largest value: floats that are summed in another order
UNITS = 3.0  # of a quantised output, where an exact rewrite rounds once more
LEAST_SNR = 10.0  # dB that another quantisation must reach
Given = Mapping[str, Array]


@dataclass(frozen=True)
class Bound:
    """How far answers may be off: exact ones by a share of the largest value or by units of the
    codes, others by their signal-to-noise ratio."""

    is_exact: bool
    share: float = EXACT
    units: float = UNITS
    snr: float = LEAST_SNR

    def problem(self, output: OutputDiff) -> str | None:
        real = output.real
        if real.unlike:
            return f"{real.unlike} of {real.elements} values cannot be compared"
        if not self.is_exact:
            fine = real.snr_db >= self.snr
            return None if fine else f"SNR is {real.snr_db:.1f} dB, {self.snr:g} are asked for"
        if real.max_error <= self.share * real.largest:
            return None
        if output.raw is not None and output.type[0] != "f":
            fine = output.raw.max_error <= self.units
            return None if fine else f"{output.raw.max_error:g} units off, {self.units:g} may be"
        share = real.max_error / real.largest if real.largest else float("inf")
        return f"off by {share:.2g} of the largest value, {self.share:g} may be"

    def __str__(self) -> str:
        if not self.is_exact:
            return f"SNR of {self.snr:g} dB or more"
        return f"{self.share:g} of the largest value, or {self.units:g} units of codes"


@dataclass(frozen=True)
class Answers:
    """Both models on the same inputs; engine: who executed the rewritten one."""

    engine: str
    inputs: str
    runs: int
    outputs: list[OutputDiff]
    failed: list[str]

    def to_json(self) -> dict[str, Any]:
        figures = [
            {
                "name": o.name,
                "type": o.test_type,
                "real": asdict(o.real),
                "raw": o.raw and asdict(o.raw),
            }
            for o in self.outputs
        ]
        kept = {"engine": self.engine, "inputs": self.inputs, "runs": self.runs}
        return {**kept, "outputs": figures, "ok": not self.failed, "failed": self.failed}


@dataclass(frozen=True)
class _Trial:
    """What both models are run on, and what must hold."""

    bound: Bound
    data: Given | None
    runs: int
    seed: int

    def run(self, before: Model, after: Model, engines: tuple[str, str]) -> Answers:
        count = min(self.runs, *map(len, self.data.values())) if self.data else self.runs
        result = diff(
            before,
            after,
            engine_a=engines[0],
            engine_b=engines[1],
            runs=count,
            seed=self.seed,
            data=self.data,
        )
        problems = [(o, self.bound.problem(o)) for o in result.outputs]
        failed = [f"output {o.index} '{o.name}': {why}" for o, why in problems if why]
        return Answers(engines[1], result.inputs, result.runs, result.outputs, failed)


def compare_answers(
    before: Model,
    made: Rewritten,
    data: Given | None = None,
    runs: int = RUNS,
    seed: int = 0,
    bound: Bound | None = None,
) -> list[Answers]:
    """Run both models on the same inputs: random ones, or arrays by input name. Where LiteRT is
    installed, it runs both too.

    A model that quantises activations while it runs is compared with its weights as floats, if
    the rewrite is exact: a difference in the last bit may move a code there, and all that follows.
    """
    trial = _Trial(bound or Bound(made.is_exact), data, runs, seed)
    reference, test = _same_sizes(before, made.model), made.model
    if made.is_exact and "dynamic range" in quantisation_kind(before):
        reference, test = _as_floats(reference), _as_floats(test)
    found = [trial.run(reference, test, (OURS, OURS))]
    return [*found, _by_peer(trial, reference, test)] if _has_peer() else found


def _same_sizes(before: Model, after: Model) -> Model:
    """The model as it was given, with the sizes that follow from its inputs', and one sample a run
    if the rewritten one takes one."""
    made = before.copy()
    fix_sizes(made)
    pairs = zip(made.main.inputs, after.main.inputs, strict=True)
    if any(a.shape != b.shape for a, b in pairs):
        one_batch(made)
    return made


def _as_floats(model: Model) -> Model:
    made = model.copy()
    as_float(made)
    return made


def _has_peer() -> bool:
    try:
        import_engine(PEER)
    except MissingExtraError:
        return False
    return True


def _by_peer(trial: _Trial, before: Model, after: Model) -> Answers:
    """Both by LiteRT, whose sums are in an order of their own. Where it does not run the model as
    it was, or values got another quantisation, against our own answer."""
    with TemporaryDirectory(prefix="sanderling-") as folder:
        given, made = (_stored(m, folder, n) for m, n in ((before, "before"), (after, "after")))
        try:
            if trial.bound.is_exact:
                return trial.run(given, made, (PEER, PEER))
        except SanderlingError:
            pass
        return trial.run(before, made, (OURS, PEER))


def _stored(model: Model, folder: str, name: str) -> Model:
    """The model as a file, which other engines read."""
    path = Path(folder) / f"{name}.tflite"
    save(model, path)
    return load(path)


def sample_arrays(samples: Sequence[Mapping[str, Array]], count: int) -> Given:
    """The first samples as arrays by input name, with samples along the first dimension."""
    taken = [samples[i] for i in range(min(count, len(samples)))]
    return {name: np.stack([sample[name] for sample in taken]) for name in taken[0]}

"""Pruning: a float model in, one with zeros, or with fewer channels, and a report out.

    made, report = prune(model, pictures, sparsity=0.8, structure="unstructured")

The quick way needs a few hundred samples and no training (`one_shot.py`); epochs of training after
it bring back what it lost. method="magnitude" is TFMOT's way: the smallest weights go, little by
little, while the model is trained.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..delegates.cpu.kernels.products.zeros import sparse_threshold
from ..errors import InputError
from ..evaluate.task import Task
from ..format import load
from ..ir import Array, Model, Op, Tensor
from ..ops import cost
from .constraint import PRODUCTS, weights_of
from .constraints.sparsity import CONSTANT, POLYNOMIAL, PRESENT, Sparsity
from .constraints.structure import UNSTRUCTURED, Structure
from .loop.judging import Sought
from .loop.samples import Given, TrainingData
from .loop.started_from import StartedFrom
from .loop.train import Schedule
from .report import TrainingReport
from .shrinking import Job, Levels, Made, Terms, carried_out
from .without_training.allocation import pruned_layers, shares_of_all
from .without_training.channels import prune_channels
from .without_training.one_shot import prune_at_once
from .without_training.sparse_storage import stored_sparse, xnnpack_conditions

CHANNELS = "channels"
METHODS = ("one-shot", "magnitude")
POLICIES = ("all", "pays")
STORAGE = ("dense", "sparse")
PAYS = 0.005  # of all multiplications: a layer with fewer is not worth its zeros
LEVELS = [round(0.05 * i, 2) for i in range(1, 20)]  # shares of zeros that a search tries
CHANNEL_LEVELS = [round(0.05 * i, 2) for i in range(1, 16)]


@dataclass(frozen=True)
class Pruning:
    """How to prune. sparsity: the share of zeros, or of channels. structure: "unstructured", "2:4",
    a block such as "1x4", or "channels". method: "one-shot", or "magnitude". growth: of zeros under
    magnitude with training, "polynomial" or "constant". whole_model: all weights together reach the
    sparsity, those of sensitive layers less. only, operators: names (or parts) of weights, and
    operators, that are pruned. policy: "pays" leaves layers out that so many zeros do not make
    faster in our runtime on this machine. storage:
    "sparse" writes the schema's sparse tensors, where that is smaller. multiple: of channels that
    stay."""

    sparsity: float = 0.5
    structure: str = UNSTRUCTURED
    method: str = "one-shot"
    growth: str = POLYNOMIAL
    whole_model: bool = False
    only: Sequence[str] = ()
    operators: Sequence[str] = ()
    policy: str = "all"
    storage: str = "dense"
    multiple: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.sparsity < 1:
            raise InputError(
                f"a sparsity of {self.sparsity}",
                where="sparsity",
                fix="give a share between 0 and 1",
            )
        tables = {
            "method": (self.method, METHODS),
            "growth": (self.growth, (POLYNOMIAL, CONSTANT)),
            "policy": (self.policy, POLICIES),
            "storage": (self.storage, STORAGE),
        }
        for name, (given, known) in tables.items():
            if given not in known:
                raise InputError(
                    f"no {name} '{given}'", where=name, fix=f"one of {', '.join(known)}"
                )
        for name in self.operators:
            if name not in PRODUCTS:
                fix = f"give some of {', '.join(PRODUCTS)}"
                raise InputError(f"no weights of {name} are pruned", where="operators", fix=fix)
        if not self.is_of_channels:
            Structure.of(self.structure, f", or {CHANNELS}")
        elif self.storage == "sparse":
            raise InputError(
                "channels that are taken out leave no zeros to store sparsely",
                where="storage",
                fix="leave it dense, or choose another structure",
            )

    @property
    def stated_share(self) -> float | None:
        """The share of zeros, where the structure itself states it: m:n."""
        return None if self.is_of_channels else Structure.of(self.structure).share

    @property
    def is_of_channels(self) -> bool:
        return self.structure == CHANNELS


def prune(
    model: Model | str | os.PathLike[str],
    data: Given | TrainingData | None = None,
    how: Pruning | None = None,
    *,
    labels: str | os.PathLike[str] | Array | None = None,
    schedule: Schedule | None = None,
    held_out: float = 0.2,
    max_drop: float | None = None,
    task: Task | None = None,
    task_limit: int = 0,
    checkpoint: str | Path | None = None,
    latency: bool = False,
    threads: int = 1,
    **settings: Any,
) -> tuple[Model, TrainingReport]:
    """Prune a float model.

    how, or settings by name: see Pruning. data: samples (see read_training_data); without any only
    method="magnitude" can prune, and nothing is judged. schedule: of the training afterwards; its
    epochs are 0 unless it is given. held_out: the share of the samples that judge and nothing else.
    max_drop: find the largest sparsity at which the figure (of the task; else the accuracy, with
    labels; else the agreement with float) falls by no more. latency: measure before and after.
    threads: to work and to measure with.
    """
    source = model if isinstance(model, Model) else load(model)
    terms = Terms(
        labels, schedule, held_out, max_drop, task, task_limit, checkpoint, latency, threads
    )
    asked = replace(how or Pruning(), **settings)
    needs = terms.needs
    if asked.method == "one-shot" or asked.is_of_channels:
        needs = ["one-shot pruning looks at what layers read", *needs]
    if max_drop is not None and asked.method == "one-shot":
        asked = replace(asked, whole_model=True)  # the search is over layers
    fix = "give some hundred, labels are not needed; or method='magnitude'"
    return carried_out(_Job, source, data, asked, terms, needs, fix)


def check_pruned(model: Model, how: Pruning) -> list[str]:
    """What a finished model breaks of the zeros that were asked, a sentence each."""
    if how.is_of_channels:
        raise InputError(
            "channels that are gone leave nothing to check",
            where="structure",
            fix="compare the shapes of both models with `sanderling inspect`",
        )
    names, _ = _weights(model, how)
    rule = Sparsity(how.sparsity, how.structure, whole_model=how.whole_model, names=names)
    return rule.problems(model)


# -- which weights --------------------------------------------------------------------------------


def _weights(model: Model, how: Pruning) -> tuple[list[str], dict[str, str]]:
    """Names of the weights that are pruned; those that are not, with the reasons."""
    tensors = {t.name: t for t in weights_of(model, how.only)}
    layers = {op.operand(1).name: op for op in pruned_layers(model, list(tensors))}
    total = sum(cost(op).macs for op in model.main.ops)
    reasons = {n: _left_alone(t, layers.get(n), how, total) for n, t in tensors.items()}
    skipped = {name: why for name, why in reasons.items() if why}
    names = [n for n in tensors if n not in skipped]
    if not names:
        raise InputError(
            f"no weight is left to prune: {next(iter(skipped.values()))}",
            where=model.source or f"graph '{model.main.name}'",
            fix="choose another structure, policy or operator",
        )
    return names, skipped


def _left_alone(tensor: Tensor, op: Op | None, how: Pruning, total: int) -> str | None:
    """Why a weight is not pruned; None if it is."""
    if op is None:
        return "it is no float constant of the file"
    if how.operators and op.name not in how.operators:
        return f"it is of {op.name}"
    why = None if how.is_of_channels else Structure.of(how.structure).refuses(tensor.shape)
    return why or (_does_not_pay(op, how, total) if how.policy == "pays" else None)


def _does_not_pay(op: Op, how: Pruning, total: int) -> str | None:
    """Why zeros in a layer save no time in our runtime on this machine; None if they do."""
    if cost(op).macs < PAYS * total:
        return f"less than {PAYS:.1%} of the multiplications"
    if how.is_of_channels or not op.operand(1).is_constant:
        return None
    pattern = Structure.of(how.structure)
    needed = sparse_threshold(op, structure=(pattern.high, pattern.wide))
    if needed is None:
        return "zeros do not make it faster here"
    if needed > (pattern.share or how.sparsity):
        return f"it is faster here from {needed:.0%} zeros on"
    return None


# -- the work -------------------------------------------------------------------------------------


class _Job(Job):
    """Prunes one model."""

    verb = "prune"

    def __init__(self, model: Model, data: TrainingData, how: Pruning, terms: Terms) -> None:
        super().__init__(model, data, how, terms)
        self.names, self.skipped = _weights(model, how)
        self._worth: Any = None

    def begun(self, level: float | None) -> Made:
        sparsity = self.how.sparsity if level is None else level
        if self.how.is_of_channels:
            return self._of_channels(sparsity)
        if self.how.method == "one-shot":
            return self._one_shot(sparsity)
        return self._by_magnitude(sparsity)

    def _shares(self, sparsity: float) -> dict[str, float]:
        """The share of zeros of each layer."""
        pattern = Structure.of(self.how.structure)
        if pattern.share is not None:
            return dict.fromkeys(self.names, pattern.share)
        if not self.how.whole_model or not len(self.data):
            return dict.fromkeys(self.names, sparsity)
        if self._worth is None:
            self._worth = shares_of_all(
                self.model, self.names, self.seen, pattern, seed=self.how.seed
            )
        found: dict[str, float] = self._worth(sparsity)
        return found

    def _one_shot(self, sparsity: float) -> Made:
        shares = self._shares(sparsity)
        found = prune_at_once(self.model, self.seen, shares, self.how.structure, self.how.seed)
        rule = Sparsity(structure=self.how.structure, growth=PRESENT, names=self.names)
        return Made(
            found.model,
            Sparsity(structure=self.how.structure, shares=shares, names=self.names),
            [StartedFrom(found.model), rule],
            {x.tensor: x.error for x in found.layers},
            {x.tensor: x.method for x in found.layers},
        )

    def _by_magnitude(self, sparsity: float) -> Made:
        whole = self.how.whole_model and Structure.of(self.how.structure).share is None
        rule = Sparsity(
            sparsity,
            self.how.structure,
            self.how.growth if self.terms.plan.epochs else CONSTANT,
            whole_model=whole,
            names=self.names,
        )
        # With epochs the training itself prunes, little by little.
        model = self.model if self.terms.plan.epochs else _at_once(self.model, rule)
        return Made(model, rule, [rule])

    def _of_channels(self, sparsity: float) -> Made:
        named = len(self.names) < len(weights_of(self.model))
        found = prune_channels(
            self.model,
            self.seen,
            sparsity,
            names=self.names if named else (),
            multiple=self.how.multiple,
            seed=self.how.seed,
        )
        return Made(found.model, trained_under=[StartedFrom(found.model)], notes=dict(found.pinned))

    def levels(self) -> Levels:
        if not self.how.is_of_channels and Structure.of(self.how.structure).share is not None:
            raise InputError(
                f"{self.how.structure} says how many zeros there are",
                where="max_drop",
                fix="search with unstructured zeros, blocks or channels",
            )
        return Levels(CHANNEL_LEVELS if self.how.is_of_channels else LEVELS, lambda s: f"{s:.0%}")

    def stored(self, made: Made) -> list[str]:
        if self.how.storage != "sparse":
            return []
        made.model, names = stored_sparse(made.model)
        return [f"{len(names)} weights are stored as sparse tensors."]

    def tell(self, report: TrainingReport, made: Made, sought: Sought | None) -> None:
        report.skipped = self.skipped
        if sought is not None:
            report.settings["sparsity"] = sought.level
        if not self.how.is_of_channels:
            report.xnnpack = xnnpack_conditions(made.model)


def _at_once(model: Model, rule: Sparsity) -> Model:
    """The smallest weights become zero; no others change."""
    from .without_training.segments import store, weight_values

    made = model.copy()
    weights = {t: weight_values(t) for t in weights_of(made) if t.name in rule.names}
    rule.begin(weights, 0)
    for tensor, values in weights.items():
        store(tensor, rule.applied(tensor, values))
    return made

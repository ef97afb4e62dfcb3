"""One engine for training under constraints.

    found = train(model, pictures, constraints=[Sparsity(0.8)])
    sanderling.save(found.model, "sparse.tflite")

Without labels the model learns to answer as it did before it was constrained: distillation from its
own float answers, the default, since pictures are at hand more often than labels.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...errors import InputError
from ...ir import Array, Model, Tensor
from ...progress import progress
from ..constraint import Constraint, Rows
from ..differentiable.twin import Twin
from . import checkpoint as checkpoints
from .batches import Batches, checked_labels, checked_rows
from .losses import Aim, Loss, agreement, aims_for, cross_entropy, distance, right_share

KEPT_BYTES = 256 << 20  # of the float model's answers; more are computed again for every batch
USUAL_SIZE = 0.1  # root mean square of weights that the rate is meant for
SAVED_EVERY = 60.0  # seconds between checkpoints within an epoch


@dataclass(frozen=True)
class Schedule:
    """How the loop runs.

    rate: of Adam, at its highest, for weights whose root mean square is 0.1; for others in
    proportion, since layers with folded normalisation may differ a thousandfold. It rises over
    `warm_up` of all steps and falls as a cosine to nothing. held_out: the share of samples that is
    not trained on. patience: epochs without a better result on them after which training ends; 0:
    never. clip: the largest norm of the weights' gradients. temperature: of the scores that are
    distilled. mix: the share of distillation where there are labels too. features: names of tensors
    within the graph that are to stay as the float model has them, with the weight
    `feature_weight`. mirror, crop: pictures are turned left to right by chance, and moved by at
    most so many pixels.
    """

    epochs: int = 4
    batch: int = 32
    rate: float = 1e-4
    warm_up: float = 0.05
    held_out: float = 0.1
    patience: int = 0
    clip: float = 1.0
    temperature: float = 2.0
    mix: float = 0.0
    features: tuple[str, ...] = ()
    feature_weight: float = 1.0
    mirror: bool = False
    crop: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("epochs", 0), ("batch", 1), ("rate", 0.0), ("patience", 0)):
            if not getattr(self, name) >= least:
                given = getattr(self, name)
                raise InputError(f"`{name}` is {given}", where="Schedule", fix=f"{least} or more")
        for name in ("held_out", "mix", "warm_up"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(
                    f"`{name}` is {getattr(self, name)}", where="Schedule", fix="from 0 to 1"
                )


@dataclass
class Epoch:
    """What an epoch came to: the mean loss of its batches, the loss on held-out samples, and the
    share of those on which the first class is the float model's (of values: one less their relative
    error). right: the share that the labels call right, where these are classes."""

    loss: float
    held_out: float
    agreement: float
    seconds: float
    right: float | None = None


@dataclass
class Trained:
    """The model with its new weights, and how it came about. kept: the epoch whose weights it
    has; 0: those that training started from, since no epoch was better. start: what these are worth
    on held-out samples; None if constraints do not hold from the start on. twin: the module that
    was trained, with its constraints."""

    model: Model
    twin: Twin
    start: Epoch | None = None
    epochs: list[Epoch] = field(default_factory=list)
    kept: int = 0
    frozen: dict[str, str] = field(default_factory=dict)


def train(
    model: Model,
    data: Rows | Sequence[Rows],
    constraints: Sequence[Constraint] = (),
    labels: Array | None = None,
    loss: Loss | None = None,
    schedule: Schedule | None = None,
    checkpoint: str | Path | None = None,
) -> Trained:
    """Train the weights of a float model under constraints.

    data: samples along the first axis, for each input if there are several; arrays, or what is
    indexed like them. labels: a class for each sample; None: distillation. loss: in place of cross
    entropy, a function of the outputs and the labels. checkpoint: a file that is written after
    every epoch and every minute; a run that finds it goes on from there, to the same result.
    """
    run = _Run(model, data, constraints, labels, loss, schedule or Schedule(), checkpoint)
    return run.finished()


class _Run:
    """A training run on its way."""

    def __init__(
        self,
        model: Model,
        data: Rows | Sequence[Rows],
        constraints: Sequence[Constraint],
        labels: Array | None,
        loss: Loss | None,
        schedule: Schedule,
        checkpoint: str | Path | None,
    ) -> None:
        self.schedule, self.constraints, self.loss = schedule, list(constraints), loss
        self.teacher = _Teacher(model, schedule)
        self.teacher.twin.check_trainable()
        rows = checked_rows(model.main, data)
        self.labels = self._checked_labels(labels, len(rows[0]))
        self.batches = Batches(
            rows, schedule.batch, schedule.held_out, schedule.seed, schedule.mirror, schedule.crop
        )
        self.steps = self.batches.count * schedule.epochs
        self.path = None if checkpoint is None else Path(checkpoint)
        self.name = checkpoints.identity(
            model, rows, labels, self.constraints, asdict(schedule) | {"loss": loss is not None}
        )
        torch.manual_seed(schedule.seed)
        self.twin = self._constrained_twin(model, rows)
        self.aims = self.teacher.aims_of(self.twin)
        self.optimiser = torch.optim.Adam(self._parameter_groups(), lr=schedule.rate)
        self.result = Trained(model, self.twin, frozen=dict(self.twin.frozen))
        self.best: tuple[float, dict[str, Any]] | None = None
        self.epoch = self.batch = 0  # those that are done
        self.total = 0.0  # of the losses of this epoch

    def _checked_labels(self, labels: Array | None, count: int) -> torch.Tensor | None:
        if labels is None:
            if self.loss is not None:
                raise InputError(
                    "a loss was given without labels",
                    where="loss",
                    fix="give labels, or leave it out",
                )
            return None
        aims = self.teacher.aims
        if self.loss is not None or not aims:
            return torch.from_numpy(checked_labels(labels, count, None))
        scores = aims[0].tensor
        is_open = -1 in (scores.signature or ())[1:]
        places = None if is_open else math.prod(scores.shape[1:-1])
        return torch.from_numpy(checked_labels(labels, count, scores.shape[-1], places))

    def _constrained_twin(self, model: Model, rows: Sequence[Rows]) -> Twin:
        for number, constraint in enumerate(self.constraints):
            model = constraint.prepared(model, rows, self.constraints[:number])
        twin = Twin(model)
        for constraint in self.constraints:
            constraint.watch(twin.model)
            constraint.begin(twin.parameters_of, self.steps)
        twin.constraints = self.constraints
        return twin

    def _parameter_groups(self) -> list[dict[str, Any]]:
        """Weights, each with its size; what constraints learn has the size of all else."""
        learnt = [p for c in self.constraints for p in c.parameters()]
        groups = [{"params": [p], "size": _size(p)} for p in self.twin.parameters()]
        return groups + ([{"params": learnt, "size": 1.0}] if learnt else [])

    @property
    def weights(self) -> dict[Tensor, torch.Tensor]:
        return self.twin.parameters_of

    # -- the loop ---------------------------------------------------------------------------------

    def finished(self) -> Trained:
        self._resume()
        if self.epoch < self.schedule.epochs:
            self.teacher.remember(self.batches)
            self._judge_start()
        with progress() as show:
            while self.epoch < self.schedule.epochs and not self._is_patient_no_more():
                self._one_epoch(show)
        if self.best is not None:
            self._load(self.best[1])
        self._settle()
        made = self.twin.written()
        for constraint in self.constraints:
            made = constraint.finished(made)
        self.result.model = made
        return self.result

    def _one_epoch(self, show: Callable[[str, int, int], None]) -> None:
        begin = saved = time.monotonic()
        for places, inputs in self.batches.epoch(self.epoch, self.batch):
            done = self.epoch * self.batches.count + self.batch
            self.total += self._step(places, inputs, done)
            self.batch += 1
            show(f"training ({self._figures()})", done + 1, self.steps)
            if time.monotonic() - saved > SAVED_EVERY:
                saved = time.monotonic()
                self._save()
        self._conclude(time.monotonic() - begin)
        self._save()

    def _figures(self) -> str:
        """The loss of this epoch so far, and the agreement after the last one."""
        text = f"loss {self.total / max(1, self.batch):.4f}"
        if not self.result.epochs:
            return text
        return f"{text}, agreement {self.result.epochs[-1].agreement:.1%}"

    def _judge_start(self) -> None:
        """The start is the first of those that may be kept: training can make a model worse."""
        if self.epoch or self.batch or not self._is_settled():
            return
        found = self._judged(0.0, 0.0)
        self.result.start, self.best = found, (found.held_out, self._state())

    def _conclude(self, seconds: float) -> None:
        found = self._judged(self.total / max(1, self.batches.count), seconds)
        self.result.epochs.append(found)
        self.epoch, self.batch, self.total = self.epoch + 1, 0, 0.0
        if self._is_settled() and self._is_better(found):
            self.best, self.result.kept = (found.held_out, self._state()), self.epoch

    def _is_better(self, found: Epoch) -> bool:
        """The loss decides, since it is less of a matter of chance than a count of samples; but
        what is kept has no fewer right answers, or answers like float's, than the start."""
        if self.best is not None and found.held_out >= self.best[0]:
            return False
        start = self.result.start
        if start is None or self.loss is not None:  # a loss of the user's own: it says all
            return True
        if found.right is not None and start.right is not None:
            return found.right >= start.right
        return found.agreement >= start.agreement

    def _is_settled(self) -> bool:
        """Weights of an epoch in which constraints were still growing are not kept."""
        ends = [c.complete_at for c in self.constraints]
        return self.epoch >= self.schedule.epochs * max([0.0, *ends])

    def _is_patient_no_more(self) -> bool:
        waited = self.epoch - self.result.kept
        is_asked = self.schedule.patience > 0 and self.best is not None
        return is_asked and waited >= self.schedule.patience

    def _step(self, places: Array, inputs: list[Array], step: int) -> float:
        for group in self.optimiser.param_groups:
            group["lr"] = self._rate(step) * group["size"]
        self.optimiser.zero_grad(set_to_none=True)
        found = self._forward(inputs)
        loss = self._loss(places, inputs, *found, fresh=self.batches.is_augmented)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise InputError(
                f"the loss is {value} at step {step + 1}",
                where="training",
                fix=f"take a smaller rate than {self.schedule.rate}, or look at the samples",
            )
        for constraint in self.constraints:
            extra = constraint.penalty()
            loss = loss if extra is None else loss + extra
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.twin.parameters(), self.schedule.clip)
        self.optimiser.step()
        for constraint in self.constraints:
            constraint.after_step(self.weights, step + 1)
        return value

    def _rate(self, step: int) -> float:
        warm = max(1, int(self.steps * self.schedule.warm_up))
        if step < warm:
            return self.schedule.rate * (step + 1) / warm
        part = (step - warm) / max(1, self.steps - warm)
        return self.schedule.rate * 0.5 * (1 + math.cos(math.pi * part))

    # -- losses -----------------------------------------------------------------------------------

    def _loss(
        self,
        places: Array,
        inputs: list[Array],
        outputs: list[torch.Tensor],
        inner: list[torch.Tensor],
        fresh: bool = False,
    ) -> torch.Tensor:
        """fresh: the samples are augmented, and what the float model said of them is not kept."""
        if self.labels is None:
            return self._distance(inner, places, inputs, fresh)
        given = self.labels[torch.from_numpy(np.ascontiguousarray(places))]
        own = cross_entropy(inner[0], given) if self.loss is None else self.loss(outputs, given)
        if not self.schedule.mix and not self.schedule.features:
            return own
        far = self._distance(inner, places, inputs, fresh)
        share = self.schedule.mix
        return (1 - share) * own + share * far if share else own + far

    def _forward(self, inputs: list[Array]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The outputs, and what is compared with the float model's."""
        return self.twin.outputs_and(inputs, [a.tensor for a in self.aims])

    def _distance(
        self, found: list[torch.Tensor], places: Array, inputs: list[Array], fresh: bool
    ) -> torch.Tensor:
        wanted = self.teacher.answers(places, inputs, fresh)
        heads = len(self.teacher.aims)
        total = torch.zeros(())
        if self.labels is None or self.schedule.mix:
            aims = self.aims[:heads]
            total = distance(aims, found[:heads], wanted[:heads], self.schedule.temperature)
        if self.schedule.features:
            inner = distance(self.aims[heads:], found[heads:], wanted[heads:], 1.0)
            total = total + self.schedule.feature_weight * inner
        return total

    def _judged(self, loss: float, seconds: float) -> Epoch:
        """Loss, agreement and right answers on the samples that are held out. loss, seconds: of the
        training before."""
        total, same, right, count = 0.0, 0.0, 0.0, 0
        with torch.no_grad():
            for places, inputs in self.batches.parts(self.batches.held):
                outputs, found = self._forward(inputs)
                total += float(self._loss(places, inputs, outputs, found)) * len(places)
                wanted = self.teacher.answers(places, inputs)
                if self.aims:
                    same += agreement(self.aims[0], found[0], wanted[0]) * len(places)
                right += self._right(found, places) * len(places)
                count += len(places)
                for constraint in self.constraints:
                    constraint.penalty()
        share = right / count if self._has_classes else None
        return Epoch(loss, total / count, same / count, seconds, share)

    @property
    def _has_classes(self) -> bool:
        return self.labels is not None and self.loss is None and bool(self.aims)

    def _right(self, found: list[torch.Tensor], places: Array) -> float:
        """The share of right answers, where labels are classes."""
        if self.labels is None or not self._has_classes:
            return 0.0
        return right_share(found[0], self.labels[torch.from_numpy(np.ascontiguousarray(places))])

    # -- ends and checkpoints ----------------------------------------------------------------------

    def _settle(self) -> None:
        """The weights become what the constraints made of them in the forward pass."""
        with torch.no_grad():
            for tensor, parameter in self.weights.items():
                parameter.copy_(self.twin.constrained(tensor, parameter))

    def _state(self) -> dict[str, Any]:
        """A copy of all that later steps depend on."""
        kept = {
            "twin": self.twin.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "constraints": [c.state() for c in self.constraints],
        }
        found: dict[str, Any] = checkpoints.copied(kept)
        return found

    def _load(self, state: dict[str, Any]) -> None:
        state = checkpoints.copied(state)
        self.twin.load_state_dict(state["twin"])
        self.optimiser.load_state_dict(state["optimiser"])
        for constraint, kept in zip(self.constraints, state["constraints"], strict=True):
            constraint.restore(kept)

    def _save(self) -> None:
        if self.path is None:
            return
        content = {
            "now": self._state(),
            "best": self.best,
            "done": [self.epoch, self.batch, self.result.kept],
            "total": self.total,
            "epochs": [asdict(e) for e in self.result.epochs],
            "start": None if self.result.start is None else asdict(self.result.start),
        }
        checkpoints.write(self.path, content, self.name)

    def _resume(self) -> None:
        found = None if self.path is None else checkpoints.read(self.path, self.name)
        if found is None:
            return
        self._load(found["now"])
        self.epoch, self.batch, self.result.kept = found["done"]
        self.best, self.total = found["best"], found["total"]
        self.result.epochs = [Epoch(**e) for e in found["epochs"]]
        self.result.start = None if found["start"] is None else Epoch(**found["start"])


def _size(parameter: torch.Tensor) -> float:
    """The size of a weight, in units of the size that the rate is meant for."""
    mean = float(parameter.detach().square().mean().sqrt()) if parameter.numel() else 0.0
    return mean / USUAL_SIZE if mean > 0 else 1.0


class _Teacher:
    """The float model as it is, whose answers are learnt where there are no labels."""

    def __init__(self, model: Model, schedule: Schedule) -> None:
        self.twin, self.schedule = Twin(model), schedule
        self.aims = aims_for(self.twin.graph)
        self.features = [self.twin.graph.find(name) for name in schedule.features]
        self.kept: list[torch.Tensor] | None = None

    @property
    def tensors(self) -> list[Tensor]:
        return [*(a.tensor for a in self.aims), *self.features]

    def aims_of(self, twin: Twin) -> list[Aim]:
        """The same in another twin: outputs by their places, features by their names."""
        own = aims_for(twin.graph)
        return own + [Aim(twin.graph.find(t.name), "values") for t in self.features]

    def remember(self, batches: Batches) -> None:
        """Keep the answers to all samples, where they are not too many."""
        count = len(batches.rows[0])
        size = sum(4 * count * math.prod(t.shape[1:]) for t in self.tensors)
        if size > KEPT_BYTES or batches.is_augmented:
            return
        found = [self._fresh(inputs) for _, inputs in batches.parts(np.arange(count))]
        self.kept = [torch.cat(parts) for parts in zip(*found, strict=True)]

    def answers(
        self, places: Array, inputs: list[Array], fresh: bool = False
    ) -> list[torch.Tensor]:
        if self.kept is None or fresh:
            return self._fresh(inputs)
        chosen = torch.from_numpy(np.ascontiguousarray(places))
        return [answers[chosen] for answers in self.kept]

    def _fresh(self, inputs: list[Array]) -> list[torch.Tensor]:
        with torch.no_grad():
            return self.twin.outputs_and(inputs, self.tensors)[1]

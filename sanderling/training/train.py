"""One engine for training under constraints.

    found = train(model, pictures, constraints=[Sparsity(0.8)], labels=None, epochs=4)
    sanderling.save(found.model, "sparse.tflite")

Without labels the model learns to answer as it did before it was constrained: distillation from its
own float answers, the default, since pictures are at hand more often than labels.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ..errors import InputError
from ..ir import Array, Model, Tensor
from ..progress import progress
from .constraint import Constraint
from .twin import Twin

Loss = Callable[[list[torch.Tensor], torch.Tensor], torch.Tensor]
LEAST_SAMPLES = 8


@dataclass(frozen=True)
class Schedule:
    """How the loop runs. rate: of Adam, at its highest; it rises over `warm_up` of all steps and
    falls as a cosine. held_out: the share of samples that is not trained on. patience: epochs
    without a better result on them after which training ends; 0: never. clip: of gradients.
    temperature: of the logits that are distilled. mix: the share of distillation where there are
    labels too."""

    epochs: int = 4
    batch: int = 32
    rate: float = 1e-4
    warm_up: float = 0.05
    held_out: float = 0.1
    patience: int = 0
    clip: float = 1.0
    temperature: float = 2.0
    mix: float = 0.0
    seed: int = 0


@dataclass
class Epoch:
    """What an epoch came to: the mean loss of its batches, the loss on held-out samples, and the
    share of those on which the first class is the float model's."""

    loss: float
    held_out: float
    agreement: float
    seconds: float


@dataclass
class Trained:
    """The model with its new weights, and how it came about. kept: the epoch whose weights it
    has."""

    model: Model
    epochs: list[Epoch] = field(default_factory=list)
    kept: int = 0
    frozen: dict[str, str] = field(default_factory=dict)


def train(
    model: Model,
    data: Array | Sequence[Array],
    constraints: Sequence[Constraint] = (),
    labels: Array | None = None,
    loss: Loss | None = None,
    schedule: Schedule | None = None,
    checkpoint: str | Path | None = None,
) -> Trained:
    """Train the weights of a float model under constraints.

    data: samples along the first axis, for each input if there are several. labels: a class for
    each sample; None: distillation. loss: in place of cross entropy, a function of the outputs and
    the labels. checkpoint: a file that is written after every epoch; a run that finds it goes on
    from there, to the same result.
    """
    run = _Run(model, data, constraints, labels, loss, schedule or Schedule(), checkpoint)
    return run.finished()


class _Run:
    """A training run on its way."""

    def __init__(
        self,
        model: Model,
        data: Array | Sequence[Array],
        constraints: Sequence[Constraint],
        labels: Array | None,
        loss: Loss | None,
        schedule: Schedule,
        checkpoint: str | Path | None,
    ) -> None:
        self.schedule, self.constraints, self.loss = schedule, list(constraints), loss
        self.twin = Twin(model)
        self.twin.check_trainable()
        self.inputs = _checked(self.twin, data)
        count = len(self.inputs[0])
        self.labels = None if labels is None else _checked_labels(labels, count, self.twin)
        if loss is not None and labels is None:
            raise InputError("a loss was given without labels", fix="give labels, or leave it out")
        torch.manual_seed(schedule.seed)
        order = np.random.default_rng(schedule.seed).permutation(count)
        held = max(1, int(count * schedule.held_out))
        self.kept_out, self.own = order[:held], order[held:]
        self.batches = -(-len(self.own) // schedule.batch)
        self.steps = self.batches * schedule.epochs
        self.teacher = self._answers()
        self.optimiser = torch.optim.Adam(self.twin.parameters(), lr=schedule.rate)
        for constraint in self.constraints:
            constraint.begin(self.weights, self.steps)
        self.twin.constraints = self.constraints
        self.path = None if checkpoint is None else Path(checkpoint)
        self.result = Trained(model, frozen=dict(self.twin.frozen))
        self.best: tuple[float, dict[str, Any]] | None = None
        self.epoch = 0

    @property
    def weights(self) -> dict[Tensor, torch.Tensor]:
        return self.twin.parameters_of

    def _answers(self) -> list[torch.Tensor]:
        """Of the model as it is, for all samples."""
        found = []
        with torch.no_grad():
            for first in range(0, len(self.inputs[0]), self.schedule.batch):
                found.append(
                    self.twin(*(x[first : first + self.schedule.batch] for x in self.inputs))
                )
        return [torch.cat(parts) for parts in zip(*found, strict=True)]

    # -- the loop ---------------------------------------------------------------------------------

    def finished(self) -> Trained:
        self._resume()
        with progress() as show:
            while self.epoch < self.schedule.epochs and not self._is_patient_no_more():
                self._one_epoch(show)
                self._save()
        if self.best is not None:
            self._load(self.best[1])
        self._settle()
        self.result.model = self.twin.written()
        return self.result

    def _one_epoch(self, show: Callable[[str, int, int], None]) -> None:
        begin, total = time.monotonic(), 0.0
        order = np.random.default_rng((self.schedule.seed, self.epoch)).permutation(self.own)
        for number in range(self.batches):
            places = order[number * self.schedule.batch : (number + 1) * self.schedule.batch]
            total += self._step(places, self.epoch * self.batches + number)
            show(f"training (loss {total / (number + 1):.4f})",
                 self.epoch * self.batches + number + 1, self.steps)  # fmt: skip
        held_out, agreement = self._judged()
        self.result.epochs.append(
            Epoch(total / self.batches, held_out, agreement, time.monotonic() - begin)
        )
        self.epoch += 1
        if self._is_settled() and (self.best is None or held_out < self.best[0]):
            self.best, self.result.kept = (held_out, self._state()), self.epoch

    def _is_settled(self) -> bool:
        """Weights of an epoch in which constraints were still growing are not kept."""
        ends = [c.complete_at for c in self.constraints]
        return self.epoch >= self.schedule.epochs * max([0.0, *ends])

    def _is_patient_no_more(self) -> bool:
        waited = self.epoch - self.result.kept
        return (
            bool(self.schedule.patience)
            and self.best is not None
            and waited >= self.schedule.patience
        )

    def _step(self, places: Array, step: int) -> float:
        for group in self.optimiser.param_groups:
            group["lr"] = self._rate(step)
        self.optimiser.zero_grad(set_to_none=True)
        loss = self._loss(places)
        if not torch.isfinite(loss):
            raise InputError(
                f"the loss is {loss.item()} at step {step + 1}",
                where="training",
                fix=f"take a smaller rate than {self.schedule.rate}, or look at the samples",
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.twin.parameters(), self.schedule.clip)
        self.optimiser.step()
        for constraint in self.constraints:
            constraint.after_step(self.weights, step + 1)
        return float(loss.detach())

    def _rate(self, step: int) -> float:
        warm = max(1, int(self.steps * self.schedule.warm_up))
        if step < warm:
            return self.schedule.rate * (step + 1) / warm
        part = (step - warm) / max(1, self.steps - warm)
        return self.schedule.rate * 0.5 * (1 + math.cos(math.pi * part))

    def _loss(self, places: Array) -> torch.Tensor:
        chosen = torch.from_numpy(np.ascontiguousarray(places))
        outputs = self.twin(*(x[places] for x in self.inputs))
        if self.labels is None:
            return self._distance(outputs, chosen)
        given = self.labels[chosen]
        own = (
            self.loss(outputs, given) if self.loss else F.cross_entropy(_logits(outputs[0]), given)
        )
        share = self.schedule.mix
        return own if not share else (1 - share) * own + share * self._distance(outputs, chosen)

    def _distance(self, outputs: list[torch.Tensor], places: torch.Tensor) -> torch.Tensor:
        """From the float model's answers: classes by KL, anything else by squares over the
        teacher's own spread."""
        total = torch.zeros(())
        for found, teacher in zip(outputs, self.teacher, strict=True):
            wanted = teacher[places]
            if not found.is_floating_point():
                continue
            if found.dim() == 2 and found.shape[1] > 1:
                total = total + _kl(found, wanted, self.schedule.temperature)
            else:
                spread = wanted.var().clamp(min=1e-12) if wanted.numel() > 1 else torch.ones(())
                total = total + F.mse_loss(found, wanted) / spread
        return total

    def _judged(self) -> tuple[float, float]:
        """Loss and agreement on the samples that are held out."""
        with torch.no_grad():
            loss = self._loss(self.kept_out)
            outputs = self.twin(*(x[self.kept_out] for x in self.inputs))
        teacher = self.teacher[0][torch.from_numpy(self.kept_out)]
        same = outputs[0].reshape(len(teacher), -1).argmax(1) == teacher.reshape(
            len(teacher), -1
        ).argmax(1)
        return float(loss), float(same.float().mean())

    # -- ends and checkpoints ----------------------------------------------------------------------

    def _settle(self) -> None:
        """The weights become what the constraints made of them in the forward pass."""
        with torch.no_grad():
            for tensor, parameter in self.weights.items():
                parameter.copy_(self.twin.constrained(tensor, parameter))
        self.twin.constraints = []

    def _state(self) -> dict[str, Any]:
        """A copy of all that later steps depend on."""
        kept = {
            "twin": self.twin.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "constraints": [c.state() for c in self.constraints],
        }
        return _copied(kept)

    def _load(self, state: dict[str, Any]) -> None:
        state = _copied(state)
        self.twin.load_state_dict(state["twin"])
        self.optimiser.load_state_dict(state["optimiser"])
        for constraint, kept in zip(self.constraints, state["constraints"], strict=True):
            constraint.restore(kept)

    def _save(self) -> None:
        if self.path is None:
            return
        content = {"now": self._state(), "best": self.best, "epoch": self.epoch,
                   "kept": self.result.kept, "epochs": [vars(e) for e in self.result.epochs],
                   "schedule": vars(self.schedule), "steps": self.steps}  # fmt: skip
        partial = self.path.with_name(f"{self.path.name}.part")
        try:
            torch.save(content, partial)
            partial.replace(self.path)  # whole, or as it was
        except (OSError, RuntimeError) as error:
            partial.unlink(missing_ok=True)
            raise InputError(
                f"the checkpoint cannot be written: {error}",
                where=str(self.path),
                fix="make room, name another file, or train without a checkpoint",
            ) from error

    def _resume(self) -> None:
        if self.path is None or not self.path.is_file():
            return
        try:
            found = torch.load(self.path, weights_only=True)
        except Exception as error:
            raise InputError(
                f"it is no checkpoint: {error}", where=str(self.path), fix="remove it to begin anew"
            ) from error
        if found["schedule"] != vars(self.schedule) or found["steps"] != self.steps:
            raise InputError(
                "the checkpoint is of a run with other settings or other data",
                where=str(self.path),
                fix="remove it, or give the settings that it was made with",
            )
        self._load(found["now"])
        self.epoch, self.best, self.result.kept = found["epoch"], found["best"], found["kept"]
        self.result.epochs = [Epoch(**e) for e in found["epochs"]]


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copied(v) for v in value)
    return value


def _logits(x: torch.Tensor) -> torch.Tensor:
    """Class scores; a model that ends with a softmax gives probabilities, whose logarithms are as
    good."""
    is_probable = bool(((x >= 0) & (x <= 1)).all()) and torch.allclose(
        x.sum(-1), torch.ones(()), atol=1e-3
    )
    return torch.log(x.clamp(min=1e-8)) if is_probable else x


def _cross_entropy(outputs: list[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(_logits(outputs[0]), labels)


def _kl(found: torch.Tensor, wanted: torch.Tensor, temperature: float) -> torch.Tensor:
    student = F.log_softmax(_logits(found) / temperature, 1)
    teacher = F.log_softmax(_logits(wanted) / temperature, 1)
    return F.kl_div(student, teacher, reduction="batchmean", log_target=True) * temperature**2


def _checked(twin: Twin, data: Array | Sequence[Array]) -> list[Array]:
    """The samples of each input."""
    inputs = twin.graph.inputs
    arrays = [np.asarray(a) for a in (data if isinstance(data, list | tuple) else [data])]
    if len(arrays) != len(inputs):
        names = ", ".join(f"'{t.name}'" for t in inputs)
        raise InputError(f"{len(arrays)} arrays of samples for {names}", fix="give one for each")
    for array, tensor in zip(arrays, inputs, strict=True):
        if array.shape[1:] != tuple(tensor.shape[1:]):
            raise InputError(
                f"samples of shape {array.shape[1:]}, not {tuple(tensor.shape[1:])}",
                where=f"input '{tensor.name}'",
                fix="give samples along the first axis, as the model takes them",
            )
    if len({len(a) for a in arrays}) > 1 or len(arrays[0]) < LEAST_SAMPLES:
        counts = ", ".join(str(len(a)) for a in arrays)
        raise InputError(f"{counts} samples", where="data", fix=f"give {LEAST_SAMPLES} or more")
    return arrays


def _checked_labels(labels: Array, count: int, twin: Twin) -> torch.Tensor:
    given = np.asarray(labels)
    if len(given) != count:
        raise InputError(f"{len(given)} labels for {count} samples", fix="give one for each sample")
    classes = twin.graph.outputs[0].shape[-1]
    if given.dtype.kind in "iu" and given.size and not 0 <= given.min() <= given.max() < classes:
        raise InputError(
            f"labels from {given.min()} to {given.max()} for {classes} classes",
            where="labels",
            fix=f"give classes from 0 to {classes - 1}",
        )
    return torch.from_numpy(given.astype(np.int64) if given.dtype.kind in "iu" else given)

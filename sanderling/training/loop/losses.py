"""What training makes small: cross entropy with labels, or the distance from the float model.

A model is judged by what its softmax reads, not by the probabilities behind it: in codes these are
multiples of 1/256, and most of them zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ...evaluate.output_kinds import MASKS, SCORES, output_kind
from ...ir import Graph, Tensor
from ...optimize.judging.judge import judged

# The user's own: of the outputs, as the file has them, and the labels.
Loss = Callable[[list[torch.Tensor], torch.Tensor], torch.Tensor]
Distance = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]


@dataclass(frozen=True)
class Aim:
    """A tensor that is compared with the float model's, and how."""

    tensor: Tensor
    kind: str  # of DISTANCES


def aims_for(graph: Graph, kinds: dict[str, str] | None = None) -> list[Aim]:
    """For each output that has a gradient: itself, or what its softmax reads."""
    found = [Aim(judged(t), _kind(t, kinds)) for t in graph.outputs]
    return [one for one in found if one.tensor.dtype.is_float]


def _kind(tensor: Tensor, kinds: dict[str, str] | None) -> str:
    made = tensor.producer
    if made is not None and made.name == "LOGISTIC":
        return "shares"
    if output_kind(tensor, kinds).name in (SCORES, MASKS):
        return "scores"
    # A row of numbers that a product makes may be scores or an embedding: squares suit both.
    is_row = made is not None and made.name == "FULLY_CONNECTED" and tensor.shape[-1] > 1
    return "row" if is_row else "values"


def cross_entropy(found: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The cross-entropy of scores with class numbers; of one score alone, with 0 or 1."""
    if found.shape[-1] == 1:
        flat = found.reshape(len(labels), -1).squeeze(-1)
        return F.binary_cross_entropy_with_logits(flat, labels.to(found.dtype))
    return F.cross_entropy(found.reshape(-1, found.shape[-1]), labels.reshape(-1))


def _kl(found: torch.Tensor, wanted: torch.Tensor, temperature: float) -> torch.Tensor:
    width = found.shape[-1]
    student = F.log_softmax(found.reshape(-1, width) / temperature, 1)
    teacher = F.log_softmax(wanted.reshape(-1, width) / temperature, 1)
    return F.kl_div(student, teacher, reduction="batchmean", log_target=True) * temperature**2


def _shares(found: torch.Tensor, wanted: torch.Tensor, temperature: float) -> torch.Tensor:
    """The distance of scores that are judged each by itself: KL of one chance each, less what
    cannot fall."""
    wish = torch.sigmoid(wanted)
    given = F.binary_cross_entropy_with_logits(found, wish)
    least = F.binary_cross_entropy_with_logits(wanted, wish)
    return given - least


def _squares(found: torch.Tensor, wanted: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """Mean square over the teacher's own spread: 1 is as bad as to answer the mean."""
    spread = wanted.var().clamp(min=1e-12) if wanted.numel() > 1 else torch.ones(())
    return F.mse_loss(found, wanted) / spread


DISTANCES: dict[str, Distance] = {
    "scores": _kl,
    "shares": _shares,
    "row": _squares,
    "values": _squares,
}


def distance(
    aims: Sequence[Aim],
    found: Sequence[torch.Tensor],
    wanted: Sequence[torch.Tensor],
    temperature: float,
) -> torch.Tensor:
    """From the float model's answers, summed over the aims."""
    parts = (
        DISTANCES[aim.kind](ours, theirs, temperature)
        for aim, ours, theirs in zip(aims, found, wanted, strict=True)
    )
    return torch.stack(list(parts)).sum()


def agreement(aim: Aim, found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The share of samples with the float model's first class; of values, one less the relative
    error."""
    if aim.kind == "values" or found.shape[-1] == 1:
        return 1.0 - float(_squares(found, wanted).sqrt().clamp(max=1.0))
    width = found.shape[-1]
    same = found.reshape(-1, width).argmax(1) == wanted.reshape(-1, width).argmax(1)
    return float(same.float().mean())


def right_share(found: torch.Tensor, labels: torch.Tensor) -> float:
    """The share of samples whose first class is the label. One score alone, which stands before its
    sigmoid, means class 1 above zero."""
    width = found.shape[-1]
    rows = found.reshape(-1, width)
    classes = (rows[:, 0] > 0).long() if width == 1 else rows.argmax(1)
    return float((classes == labels.reshape(-1)).float().mean())

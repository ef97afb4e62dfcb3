"""Pruning of whole channels: the graph becomes smaller, so that every runtime gains.

Channels that belong together (`channel_flow.py`) go together: through residuals, concatenations and
depthwise layers. What a channel is worth, the layers that read it say, by second-order statistics
of samples: how much of their sums is lost when it goes and the other channels make up for it as
well as they can. Channels go in a few rounds, and what is left is judged anew in each. Then the
weights of the readers are solved for (`one_shot.py`), and the channels, which nobody reads any
more, are cut out (`smaller.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from ...errors import InputError
from ...ir import Array, Model, Op
from ...ops import cost
from .channel_flow import ROWS, ChannelFlow
from .one_shot import Moments, check_samples, factored, layer_moments, no_statistics, prune_by
from .segments import weight_values
from .smaller import without_channels

ROUNDS = 4
DAMPING = 0.01  # of the mean of the moments' diagonal
MULTIPLE = 8  # channels that stay are a multiple of so many, where there are twice as many


@dataclass
class ChannelLayer:
    """A product: its output channels before and after, and its multiply-adds."""

    name: str
    op: str
    before: int
    after: int
    macs_before: int
    macs_after: int


@dataclass
class Smaller:
    """The smaller model; `masked` has zeros where channels went and gives the same answers."""

    model: Model
    masked: Model
    layers: list[ChannelLayer] = field(default_factory=list)
    pinned: dict[str, str] = field(default_factory=dict)  # layers that keep all, and why

    @property
    def macs(self) -> tuple[int, int]:
        return sum(x.macs_before for x in self.layers), sum(x.macs_after for x in self.layers)


def prune_channels(
    model: Model,
    data: Sequence[Array],
    share: float = 0.5,
    *,
    names: Sequence[str] = (),
    shares: Mapping[str, float] | None = None,
    multiple: int = MULTIPLE,
    seed: int = 0,
) -> Smaller:
    """Remove this share of the channels of each layer that can lose some.

    names: of the weights of layers that may lose some; none: all may. shares: of single layers, by
    the name of the weight, in place of `share`. multiple: channels that stay are a multiple of so
    many.
    """
    check_samples(data)
    flow = ChannelFlow(model.main)
    spaces = _spaces(flow, names)
    if not spaces:
        reasons = sorted(set(flow.pinned.values()))
        raise InputError(
            f"no layer can lose channels: {reasons[0] if reasons else 'there is no product'}",
            where=f"graph '{model.main.name}'",
            fix="prune elements instead: unstructured, 2:4 or blocks",
        )
    readers = [op for op in flow.products if no_statistics(op) is None]
    judge = _Judge(flow, layer_moments(model, readers, data, seed))
    wanted = [_count(s, _share(s, share, shares or {}), multiple) for s in spaces]
    removed = judge.choose(spaces, wanted)
    masked = _compensated(model, flow, data, removed, seed)
    made = without_channels(masked, removed)
    return Smaller(made, masked, _rows(model, made), _kept_whole(flow))


# -- which channels -------------------------------------------------------------------------------


@dataclass
class Space:
    """Channels that layers make together: a residual's sums, or one layer's results."""

    numbers: list[int]
    makers: list[Op]


def _spaces(flow: ChannelFlow, names: Sequence[str]) -> list[Space]:
    """Groups of layers whose free channels overlap."""
    found: list[Space] = []
    for op in flow.products:
        free = [n for n in dict.fromkeys(flow.of(op.outputs[0]).tolist()) if n not in flow.pinned]
        if not free:
            continue
        touched = [s for s in found if set(s.numbers) & set(free)]
        numbers = list(dict.fromkeys([*(n for s in touched for n in s.numbers), *free]))
        makers = [*(m for s in touched for m in s.makers), op]
        found = [s for s in found if s not in touched] + [Space(numbers, makers)]
    return [s for s in found if not names or all(m.operand(1).name in names for m in s.makers)]


def _share(space: Space, share: float, shares: Mapping[str, float]) -> float:
    """The least that a maker of the space was given."""
    return min(shares.get(m.operand(1).name, share) for m in space.makers)


def _count(space: Space, share: float, multiple: int) -> int:
    """How many channels go."""
    whole = len(space.numbers)
    if whole < 2 * multiple:
        return min(round(share * whole), whole - 1)
    left = -(-round((1 - share) * whole) // multiple) * multiple
    return max(0, whole - max(left, multiple))


class _Judge:
    """Says what channels are worth to the layers that read them."""

    def __init__(self, flow: ChannelFlow, moments: Mapping[Op, Moments]) -> None:
        self.flow = flow
        self.readers = {op: _Reader(flow, op, found) for op, found in moments.items()}

    def choose(self, spaces: Sequence[Space], counts: Sequence[int]) -> set[int]:
        removed: set[int] = set()
        for number in range(ROUNDS):
            worth = self._worth(removed)
            for space, count in zip(spaces, counts, strict=True):
                goal = round(count * (number + 1) / ROUNDS)
                removed |= self._least(space, worth, removed, goal, count / len(space.numbers))
        return removed

    def _worth(self, removed: set[int]) -> dict[int, float]:
        found: dict[int, float] = {}
        for reader in self.readers.values():
            for number, value in reader.worth(removed).items():
                found[number] = found.get(number, 0.0) + value
        return found

    def _least(
        self, space: Space, worth: Mapping[int, float], removed: set[int], goal: int, share: float
    ) -> set[int]:
        """Of the channels that are left those worth least; no maker loses more than its share."""
        gone = {n for n in space.numbers if n in removed}
        owners = {m: set(self.flow.of(m.outputs[0]).tolist()) for m in space.makers}
        for number in sorted(space.numbers, key=lambda n: (worth.get(n, 0.0), n)):
            if len(gone) >= goal:
                break
            full = any(
                number in own and len(own & gone) + 1 > share * len(own) + 1e-9
                for own in owners.values()
            )
            if number not in gone and not full:
                gone.add(number)
        return gone


class _Reader:
    """A layer that reads channels, with the moments of what it reads."""

    def __init__(self, flow: ChannelFlow, op: Op, moments: Moments) -> None:
        weights = weight_values(op.operand(1))
        self.weights = weights.reshape(len(weights), -1)
        size = len(moments.inner) - 1
        power = DAMPING * torch.diagonal(moments.inner)[:-1].mean().clamp(min=1e-12)
        # About the mean: what is constant, the bias makes up for.
        mean = moments.inner[-1, :-1] / moments.inner[-1, -1]
        centred = moments.inner[:-1, :-1] - torch.outer(mean, mean) * moments.inner[-1, -1]
        self.inner = centred + power * torch.eye(size)
        own = flow.of(op.operand(ROWS[op.name][0]))
        self.columns = np.tile(own, size // len(own))  # numbers, input channels last
        self.goal = self.weights @ self.inner
        self.power = float((self.goal * self.weights).sum().clamp(min=1e-30))

    def worth(self, removed: set[int]) -> dict[int, float]:
        """Of each channel that is left: the share of the sums' power that goes with it."""
        left = torch.from_numpy(np.flatnonzero([n not in removed for n in self.columns]))
        if not len(left):
            return {}
        inverse = torch.cholesky_inverse(factored(self.inner[left][:, left]))
        weights = self.goal[:, left] @ inverse
        names = self.columns[left.numpy()]
        found = {}
        for number in np.unique(names):
            places = torch.from_numpy(np.flatnonzero(names == number))
            block = inverse[places][:, places]
            own = weights[:, places]
            found[int(number)] = float((own @ torch.linalg.inv(block) * own).sum()) / self.power
        return found


# -- the smaller graph ----------------------------------------------------------------------------


def _compensated(
    model: Model, flow: ChannelFlow, data: Sequence[Array], removed: set[int], seed: int
) -> Model:
    """Zeros in the columns that read channels which go; the other columns make up for them."""
    readers = {
        op: np.array([n not in removed for n in flow.of(op.operand(ROWS[op.name][0]))])
        for op in flow.products
    }
    touched = {op: kept for op, kept in readers.items() if not kept.all()}

    def kept(op: Op, scores: torch.Tensor, part: float) -> torch.Tensor:
        columns = np.tile(touched[op], scores.shape[1] // len(touched[op]))
        return torch.from_numpy(columns).expand_as(scores)

    names = {op.operand(1).name for op in touched}
    if not names:
        return model
    return prune_by(model, data, names, kept, seed).model


def _rows(before: Model, after: Model) -> list[ChannelLayer]:
    pairs = zip(before.main.ops, after.main.ops, strict=True)
    return [
        ChannelLayer(
            op.operand(1).name,
            op.name,
            op.outputs[0].shape[-1],
            made.outputs[0].shape[-1],
            cost(op).macs,
            cost(made).macs,
        )
        for op, made in pairs
        if op.name in (*ROWS, "DEPTHWISE_CONV_2D")
    ]


def _kept_whole(flow: ChannelFlow) -> dict[str, str]:
    found = {}
    for op in flow.products:
        whys = [flow.pinned.get(n) for n in flow.of(op.outputs[0]).tolist()]
        if all(whys):
            found[op.operand(1).name] = str(whys[0])
    return found

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
        """One channel of a space after the other; the spaces are through together."""
        removed: set[int] = set()
        turns = max(counts, default=0)
        for turn in range(turns):
            worth = self._worth()
            gone = set(removed)
            for space, count in zip(spaces, counts, strict=True):
                goal = -(-count * (turn + 1) // turns)
                gone |= self._least(space, worth, gone, goal, count / len(space.numbers))
            for reader in self.readers.values():
                reader.remove(gone - removed)
            removed = gone
        return removed

    def _worth(self) -> dict[int, float]:
        found: dict[int, float] = {}
        for reader in self.readers.values():
            for number, value in reader.worth().items():
                found[number] = found.get(number, 0.0) + value
        return found

    def _least(
        self, space: Space, worth: Mapping[int, float], removed: set[int], goal: int, share: float
    ) -> set[int]:
        """The channels that are worth least among those that are left; no maker loses more than its
        share."""
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
    """A layer that reads channels: the moments of those that are left, inverted, and the weights
    that make up best for those that went."""

    def __init__(self, flow: ChannelFlow, op: Op, moments: Moments) -> None:
        weights = weight_values(op.operand(1))
        weights = weights.reshape(len(weights), -1)
        size = len(moments.inner) - 1
        power = DAMPING * torch.diagonal(moments.inner)[:-1].mean().clamp(min=1e-12)
        # About the mean: what is constant, the bias makes up for.
        mean = moments.inner[-1, :-1] / moments.inner[-1, -1]
        centred = moments.inner[:-1, :-1] - torch.outer(mean, mean) * moments.inner[-1, -1]
        inner = centred + power * torch.eye(size)
        own = flow.of(op.operand(ROWS[op.name][0]))
        self.columns = np.tile(own, size // len(own))  # numbers, input channels last
        self.left = np.ones(size, bool)
        self.power = float((weights @ inner * weights).sum().clamp(min=1e-30))
        self.weights = weights.clone()
        self.inverse = torch.cholesky_inverse(factored(inner))

    def worth(self) -> dict[int, float]:
        """The worth of each channel that is left: the share of the sums' power that it makes."""
        columns = np.flatnonzero(self.left)
        columns = columns[np.argsort(self.columns[columns], kind="stable")]
        numbers, counts = np.unique(self.columns[columns], return_counts=True)
        found: dict[int, float] = {}
        for count in np.unique(counts):  # as a rule all channels have as many columns
            alike = np.repeat(counts == count, counts)
            lost = self._lost(torch.from_numpy(columns[alike].reshape(-1, count))) / self.power
            found.update(zip(numbers[counts == count].tolist(), lost.tolist(), strict=True))
        return found

    def _lost(self, places: torch.Tensor) -> torch.Tensor:
        """What goes with the columns of each channel; a single one needs no system solved."""
        if places.shape[1] == 1:
            one = places[:, 0]
            return self.weights[:, one].square().sum(0) / self.inverse[one, one]
        blocks = self.inverse[places[:, :, None], places[:, None, :]]
        own = self.weights[:, places].transpose(0, 1)  # (channel, row, column)
        return (own @ torch.linalg.inv(blocks) * own).sum((1, 2))

    def remove(self, numbers: set[int]) -> None:
        """The others make up for these channels, whose rows and columns become zero."""
        gone = np.isin(self.columns, list(numbers)) & self.left
        if not gone.any():
            return
        away = torch.from_numpy(np.flatnonzero(gone))
        rows = self.inverse[away]
        gain = torch.linalg.solve(rows[:, away], rows)
        self.weights.addmm_(self.weights[:, away], gain, alpha=-1)
        self.inverse.addmm_(rows.mT, gain, alpha=-1)
        self.left &= ~gone


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

"""Pruning without training: zeros chosen, and the weights that stay moved, by second-order
statistics of a few hundred samples.

What a layer computes is W x. With H, the sum of x x^T over samples, the error of other weights V is
(V - W) H (V - W)^T: so H tells both which elements matter and how the others can make up for those
that go. Zeros are chosen while weights and mask are brought together step by step (ADMM, with the
share of zeros growing), then the elements that stay are solved for, by conjugate gradients.

Layers are done in order. x is what the pruned layers before give, and W x what the float model has
there, so that a layer also makes up for errors before it; the bias is one more element of the row
that always stays. A layer without such statistics (a transposed convolution, groups) loses its
smallest elements.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F

from ...errors import InputError
from ...ir import Array, Model, Op, Tensor
from ...ops.base import attr
from ...ops.geometry import axis
from ...progress import progress
from ..constraints.structure import Structure
from .segments import (
    BATCH,
    Runner,
    Segment,
    Values,
    constant_ops,
    home_of,
    joined,
    segments,
    store,
    weight_values,
)

PATCHES = 256  # positions of a sample that are looked at, at random
DAMPING = 0.01  # of the mean of H's diagonal: weights stay near those they were
GROWING, SETTLED = 15, 5  # steps in which the share of zeros grows, and in which the mask settles
PENALTY = 1.0  # of ADMM, in units of H's diagonal
SOLVING = 30  # steps of conjugate gradients at most
MORE_DAMPING = (0.0, 1e-6, 1e-4, 1e-2)  # of the mean of a diagonal, until it can be factored
LARGEST = 1e30  # of an element of H: what is computed with it stays within 32-bit floats
LEAST_SAMPLES = 8


@dataclass
class LayerResult:
    """error: of the layer's sums, relative to their own power; None where nothing is known."""

    tensor: str
    share: float
    error: float | None
    method: str


@dataclass
class OneShot:
    """The pruned model, and what became of its layers."""

    model: Model
    layers: list[LayerResult] = field(default_factory=list)


Kept = Callable[[Op, torch.Tensor, float], torch.Tensor]  # op, scores, part of the way: the mask
# op, weights with the bias as their last column, moments, whether there is a bias: new weights
Change = Callable[[Op, torch.Tensor, "Moments", bool], torch.Tensor]


def prune_at_once(
    model: Model,
    data: Sequence[Array],
    shares: Mapping[str, float],
    structure: str | Structure = "unstructured",
    seed: int = 0,
) -> OneShot:
    """Prune these weights, by the names of their tensors, to these shares of zeros.

    data: samples along the first axis, for each input.
    """
    pattern = Structure.of(structure)

    def kept(op: Op, scores: torch.Tensor, part: float) -> torch.Tensor:
        weight = op.operand(1)
        return pattern.kept(scores, part * shares[weight.name], weight.shape[-1])

    return prune_by(model, data, shares, kept, seed)


def prune_by(
    model: Model, data: Sequence[Array], names: Collection[str], kept: Kept, seed: int = 0
) -> OneShot:
    """Prune the weights of these names, each by the mask that `kept` makes of its scores."""

    def change(op: Op, weights: torch.Tensor, moments: Moments, has_bias: bool) -> torch.Tensor:
        return solved(weights, moments, lambda s, part: kept(op, s, part), has_bias)

    def by_size(op: Op, weights: torch.Tensor) -> torch.Tensor:
        return weights * kept(op, weights.abs(), 1.0)

    return change_by(model, data, names, change, seed, by_size)


def change_by(
    model: Model,
    data: Sequence[Array],
    names: Collection[str],
    change: Change,
    seed: int = 0,
    otherwise: Callable[[Op, torch.Tensor], torch.Tensor] | None = None,
) -> OneShot:
    """Change the weights of these names, layer by layer. otherwise: of a layer whose inputs are not
    looked at; it is left as it is if there is none."""
    check_samples(data)
    return _Walk(model, data, names, change, otherwise, seed).done()


def check_samples(data: Sequence[Array]) -> None:
    if len(data[0]) < LEAST_SAMPLES:
        raise InputError(
            f"{len(data[0])} samples are too few for statistics",
            where="data",
            fix=f"give {LEAST_SAMPLES} at least, better some hundred",
        )


# -- one layer ------------------------------------------------------------------------------------


@dataclass
class Moments:
    """Sums over samples: inner, of x x^T with x as the pruned model has it; cross, of x as float
    has it, times the same x. A last element of x is 1, for the bias."""

    inner: torch.Tensor
    cross: torch.Tensor

    @staticmethod
    def of(size: int) -> Moments:
        return Moments(torch.zeros(size + 1, size + 1), torch.zeros(size + 1, size + 1))

    def check(self, op: Op) -> None:
        """Refuse sums that are no numbers any more, or would be none once they are summed."""
        if not all(float(m.abs().max()) < LARGEST for m in (self.inner, self.cross)):
            raise _beyond_numbers(op.operand(1).name)

    def add(self, own: torch.Tensor, wanted: torch.Tensor) -> None:
        whole = F.pad(own, (0, 1), value=1.0)
        product = whole.T @ whole
        self.inner += product
        self.cross += product if wanted is own else F.pad(wanted, (0, 1), value=1.0).T @ whole


def solved(
    weights: torch.Tensor,
    moments: Moments,
    kept: Callable[[torch.Tensor, float], torch.Tensor],
    has_bias: bool = True,
) -> torch.Tensor:
    """The weights [rows, elements + 1], the bias last, with zeros where a mask wants them.

    kept(scores, part): the mask when this part of the way to the final share is gone.
    """
    inner, wanted = damped(weights, moments)
    # In units in which each x has a power of 1, sizes of elements tell what they are worth.
    size = torch.sqrt(torch.diagonal(inner))
    unit = inner / size / size[:, None]
    goal = wanted / size
    mask = _mask(weights * size, unit, goal, kept, has_bias)
    return _least_squares(unit, goal, mask, weights * size) / size


def damped(weights: torch.Tensor, moments: Moments) -> tuple[torch.Tensor, torch.Tensor]:
    """H with a little more on its diagonal, and what weights times H should come to."""
    power = DAMPING * torch.diagonal(moments.inner)[:-1].mean().clamp(min=1e-12)
    damping = torch.full((len(moments.inner),), float(power))
    damping[-1] = 1e-6 * float(moments.inner[-1, -1])
    return moments.inner + torch.diag(damping), weights @ moments.cross + weights * damping


def factored(matrix: torch.Tensor, upper: bool = False) -> torch.Tensor:
    """The Cholesky factor. What rounding has made indefinite (samples that are nearly alike) gets
    more on its diagonal."""
    mean = torch.diagonal(matrix).mean()
    for more in MORE_DAMPING:
        found, failed = torch.linalg.cholesky_ex(
            matrix + more * mean * torch.eye(len(matrix)), upper=upper
        )
        if not failed:
            return found
    raise _beyond_numbers()


def _beyond_numbers(layer: str = "") -> InputError:
    return InputError(
        "what the layer reads is too large, or too much alike, for statistics",
        where=f"weight '{layer}'" if layer else "data",
        fix="look at the samples: are they scaled as the model takes them (preset, mean, std)?",
    )


def _mask(
    weights: torch.Tensor,
    unit: torch.Tensor,
    goal: torch.Tensor,
    kept: Callable[[torch.Tensor, float], torch.Tensor],
    has_bias: bool,
) -> torch.Tensor:
    """ADMM: free weights are drawn to masked ones, whose share of zeros grows."""
    step = torch.cholesky_inverse(factored(unit + PENALTY * torch.eye(len(unit))))
    free, dual = weights, torch.zeros_like(weights)
    mask = torch.ones_like(weights, dtype=torch.bool)
    for number in range(GROWING + SETTLED):
        part = 1 - (1 - min(1.0, (number + 1) / GROWING)) ** 3
        mask[:, :-1] = kept((free + dual)[:, :-1].abs(), part)
        mask[:, -1] = has_bias
        masked = (free + dual) * mask
        dual = dual + free - masked
        free = (goal + PENALTY * (masked - dual)) @ step
    return mask


def _least_squares(
    unit: torch.Tensor, goal: torch.Tensor, mask: torch.Tensor, start: torch.Tensor
) -> torch.Tensor:
    """min of v H v^T / 2 - goal v^T over the elements of the mask, each row by itself."""
    found = start * mask
    rest = (goal - found @ unit) * mask
    way = rest
    power = (rest * rest).sum(1, keepdim=True)
    enough = 1e-10 * (goal * goal).sum(1, keepdim=True).clamp(min=1e-30)
    for _ in range(SOLVING):
        if bool((power <= enough).all()):
            break
        turned = way @ unit * mask
        far = power / (way * turned).sum(1, keepdim=True).clamp(min=1e-30)
        found, rest = found + far * way, rest - far * turned
        after = (rest * rest).sum(1, keepdim=True)
        way, power = rest + after / power.clamp(min=1e-30) * way, after
    return found


def relative_error(before: torch.Tensor, after: torch.Tensor, moments: Moments) -> float:
    """The error of the sums on samples as a share of the power of those of `before` on the float
    model's inputs: an upper bound where the inputs differ, since those are taken from the pruned
    model."""
    apart = after - before
    power = (before @ moments.inner * before).sum()
    return float((apart @ moments.inner * apart).sum() / power.clamp(min=1e-30))


# -- what a layer reads ---------------------------------------------------------------------------


def no_statistics(op: Op) -> str | None:
    """Why a layer's inputs are not looked at; None if they are."""
    if op.name not in ("CONV_2D", "FULLY_CONNECTED"):
        return f"{op.name} has no statistics here"
    if op.name == "CONV_2D" and op.operand(0).shape[3] != op.operand(1).shape[3]:
        return "it has groups"
    return None


def patches(op: Op, x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Rows of what the op multiplies with a row of its weights; of each sample some at random."""
    if op.name == "FULLY_CONNECTED":
        return _some(x.reshape(len(x), -1, op.operand(1).shape[1]), generator)
    taps = op.operand(1).shape[1:3]
    names = (("stride_h", "dilation_h_factor"), ("stride_w", "dilation_w_factor"))
    axes = [
        axis(
            op,
            str(attr(op, "padding")),
            x.shape[1 + i],
            taps[i],
            *(int(attr(op, n)) for n in names[i]),
        )
        for i in range(2)
    ]
    high, wide = axes
    padded = F.pad(x, (0, 0, wide.before, wide.after, high.before, high.after))
    if taps == (1, 1):
        rows = padded[:, :: high.stride, :: wide.stride][:, : high.out, : wide.out]
        return _some(rows.reshape(len(x), -1, x.shape[3]), generator)
    cut = F.unfold(
        padded.permute(0, 3, 1, 2),
        tuple(taps),
        dilation=tuple(a.dilation for a in axes),
        stride=tuple(a.stride for a in axes),
    )
    rows = cut.reshape(len(x), x.shape[3], taps[0] * taps[1], -1).permute(0, 3, 2, 1)
    return _some(rows.reshape(len(x), rows.shape[1], -1), generator)


def _some(rows: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """[samples, positions, elements] as a matrix, of each sample PATCHES positions at most."""
    if rows.shape[1] > PATCHES:
        chosen = torch.randperm(rows.shape[1], generator=generator)[:PATCHES]
        rows = rows[:, chosen]
    return rows.reshape(-1, rows.shape[2])


def layer_moments(
    model: Model, layers: Sequence[Op], data: Sequence[Array], seed: int = 0
) -> dict[Op, Moments]:
    """The moments of what these layers of the model read, in one run over all samples."""
    graph, generator = model.main, torch.Generator().manual_seed(seed)
    place = {t: i for i, t in enumerate(graph.tensors)}
    reads = {op: place[op.operand(0)] for op in layers}
    whole = Segment(
        [i for i, op in enumerate(graph.ops) if op not in constant_ops(graph)],
        [],
        [place[t] for t in graph.inputs],
        [],
        [],
    )
    values = {
        place[t]: torch.from_numpy(np.ascontiguousarray(x))
        for t, x in zip(graph.inputs, data, strict=True)
    }
    found = {op: Moments.of(_elements(op)) for op in layers}
    runner = Runner(graph, whole, list(dict.fromkeys(reads.values())))
    with progress() as show:
        for number, seen in enumerate(runner.batches(values, len(data[0]))):
            show("looking at samples", number * BATCH, len(data[0]))
            for op, moments in found.items():
                own = patches(op, seen[reads[op]], generator)
                moments.add(own, own)
    for op, moments in found.items():
        moments.check(op)
    return found


# -- all layers -----------------------------------------------------------------------------------


class _Walk:
    """Through the graph, layer by layer, with the float model beside the pruned one."""

    def __init__(
        self,
        model: Model,
        data: Sequence[Array],
        names: Collection[str],
        change: Change,
        otherwise: Callable[[Op, torch.Tensor], torch.Tensor] | None,
        seed: int,
    ) -> None:
        self.dense, self.pruned = model, model.copy()
        self.names, self.change, self.otherwise = names, change, otherwise
        self.generator = torch.Generator().manual_seed(seed)
        self.count = len(data[0])
        places = {t: i for i, t in enumerate(model.main.tensors)}
        given = {
            places[t]: torch.from_numpy(np.ascontiguousarray(x))
            for t, x in zip(model.main.inputs, data, strict=True)
        }
        self.float_values: Values = dict(given)
        self.values: Values = dict(given)
        self.results: list[LayerResult] = []
        self.done_with: set[Tensor] = set()

    def _layers(self) -> list[Op]:
        """The ops whose weights are to be pruned, those with statistics."""
        return [
            op
            for op in self.dense.main.ops
            if len(op.inputs) > 1
            and op.inputs[1] is not None
            and op.inputs[1].name in self.names
            and home_of(op.inputs[1]) is not None
        ]

    def done(self) -> OneShot:
        layers = self._layers()
        plain = [op for op in layers if no_statistics(op)]
        looked_at = [op for op in layers if op not in plain]
        for op in plain:
            self._by_size(op)
        if looked_at:
            found = segments(self.dense.main, looked_at, self.count)
            with progress() as show:
                for number, segment in enumerate(found):
                    show("layer by layer", number, len(found))
                    self._do(segment)
        return OneShot(self.pruned, self.results)

    def _by_size(self, op: Op) -> None:
        if self.otherwise is None:
            return
        weight = self._twin_of(op).operand(1)
        before = weight_values(weight)
        store(weight, self.otherwise(op, before.reshape(before.shape[0], -1)))
        self._tell(op, None, f"by size: {no_statistics(op)}")

    def _twin_of(self, op: Op) -> Op:
        return self.pruned.main.ops[self.dense.main.ops.index(op)]

    def _do(self, segment: Segment) -> None:
        own, wanted = self._statistics(segment)
        for place in segment.layers:
            self._prune(self.dense.main.ops[place], own[place])
        again = Runner(self.pruned.main, segment, segment.keeps)
        self.values |= joined(list(again.batches(self.values, self.count)), segment.keeps)
        self.float_values |= wanted
        kept = {*segment.keeps, *segment.passes}
        for values in (self.values, self.float_values):
            for place in [p for p in values if p not in kept]:
                del values[place]

    def _statistics(self, segment: Segment) -> tuple[dict[int, Moments], Values]:
        """The moments of what each layer of the segment reads; and what the float model has behind
        it."""
        graph = self.dense.main
        places = {t: i for i, t in enumerate(graph.tensors)}
        reads = {p: places[graph.ops[p].operand(0)] for p in segment.layers}
        runs = [
            Runner(m.main, segment, list(dict.fromkeys([*segment.keeps, *reads.values()])))
            for m in (self.pruned, self.dense)
        ]
        found = {p: Moments.of(_elements(graph.ops[p])) for p in segment.layers}
        behind: list[Values] = []
        pairs = zip(
            runs[0].batches(self.values, self.count),
            runs[1].batches(self.float_values, self.count),
            strict=True,
        )
        for own, wanted in pairs:
            for place, moments in found.items():
                op, state = graph.ops[place], self.generator.get_state()
                mine = patches(op, own[reads[place]], self.generator)
                self.generator.set_state(state)  # the same positions in both
                moments.add(mine, patches(op, wanted[reads[place]], self.generator))
            behind.append({p: wanted[p] for p in segment.keeps})
        return found, joined(behind, segment.keeps)

    def _prune(self, op: Op, moments: Moments) -> None:
        twin = self._twin_of(op)
        weight, bias = twin.operand(1), twin.input(2)
        if weight in self.done_with:  # shared by several layers: the first has decided
            return
        self.done_with.add(weight)
        before = weight_values(weight)
        matrix = before.reshape(before.shape[0], -1)
        has_bias = bias is not None and home_of(bias) is not None and len(bias.users) == 1
        last = weight_values(bias) if bias is not None and has_bias else torch.zeros(len(matrix))
        whole = torch.cat([matrix, last.reshape(-1, 1)], 1)
        moments.check(op)
        made = self.change(op, whole, moments, has_bias)
        if not bool(made.isfinite().all()):
            raise _beyond_numbers(op.operand(1).name)
        store(weight, made[:, :-1])
        if bias is not None and has_bias:
            store(bias, made[:, -1])
        self._tell(op, relative_error(whole, made, moments), "second order")

    def _tell(self, op: Op, error: float | None, method: str) -> None:
        values = weight_values(self._twin_of(op).operand(1))
        share = float((values == 0).double().mean())
        self.results.append(LayerResult(op.operand(1).name, share, error, method))


def _elements(op: Op) -> int:
    return int(np.prod(op.operand(1).shape[1:]))

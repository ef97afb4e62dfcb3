"""Quantisation as a constraint: the forward pass computes with the numbers that codes stand for.

Which values become codes, which share a scale, which scale is fixed, and what a bias is rounded to
is what the quantiser solved for this graph (optimize/writing/solve.py): the same rules, asked on
the twin's own graph. At the end the quantiser writes the file, with the scales that were learnt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from ...errors import InputError
from ...ir import Array, Model, Op, Quant, Tensor
from ...ops.fixed import multiply, multiply64, quantize_multiplier, round_away
from ...optimize.modes.integer_rules import broken
from ...optimize.modes.rules import RULES
from ...optimize.modes.scheme import Floats, Grid
from ...optimize.writing.apply import Quantised, Quantiser, solve_model, together
from ...optimize.writing.solve import DomainValue, ScaleGroup, Solution
from ..constraint import Constraint, Rows
from ..differentiable.functions import FUNCTIONS, PRODUCTS, activate
from .fake import Bounds, Scale, rounded
from .start import Settings, Start, choices, coded_places, pairs, post_training, stored

SCALES = ("learned", "moving", "frozen")
MOMENTUM = 0.01  # of a batch's extremes in a moving range
# Ops of one scale whose results are codes of their operands: rounding them again changes nothing.
ROUNDING = ("AVERAGE_POOL_2D", "RESIZE_BILINEAR")
Key = tuple[str, int, tuple[str, int] | None]


@dataclass
class Quantisation(Constraint):
    """Weights, activations and biases become codes, as `quantize` would write them.

    mode: a mode of `quantize`, or int8x4, int8x2, int16x4, weight-int2. scales: `learned` (with the
    weights, LSQ), `moving` (activations: a moving average of each batch's extremes) or `frozen` (as
    calibration found them). damping: pulls the weights of depthwise layers, which otherwise jump to
    and fro between two codes, to the codes' values, the more the nearer the end; 0: not at all.
    The others are options of `quantize`.
    """

    mode: str = "int8"
    scales: str = "learned"
    damping: float = 0.1
    recipe: Sequence[Any] = ()
    inputs: str = "float32"
    outputs: str = "float32"
    minimum: int = 1024
    ranges: str = "auto"
    corrections: str = "auto"
    start: Start | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.scales not in SCALES:
            raise InputError(f"scales cannot be '{self.scales}'", fix=f"one of {', '.join(SCALES)}")
        self.settings = Settings(
            self.mode,
            choices(self.recipe),
            self.inputs,
            self.outputs,
            self.minimum,
            self.ranges,
            self.corrections,
        )
        self._penalty: torch.Tensor | None = None
        self._part = 0.0
        self.made: Quantised | None = None

    # -- before training --------------------------------------------------------------------------

    def prepared(self, model: Model, data: Sequence[Rows], others: Sequence[Constraint]) -> Model:
        self.start = post_training(model, data, self.settings, keep_weights=bool(others))
        return self.start.model

    @property
    def started(self) -> Start:
        """What training started from."""
        if self.start is None:
            raise InputError(
                "quantisation has no ranges yet",
                where="Quantisation",
                fix="call `train`, or `prepared` with the model and samples",
            )
        return self.start

    def watch(self, model: Model) -> None:
        quantiser = self.started.quantiser
        solutions = solve_model(model, quantiser.recipe, quantiser.range_of)
        self.solution = together(solutions)
        self._groups = {id(g): g for g in self.solution.groups.values()}
        self.steps_of = {
            key: ActivationCodes(group, _grid(self.solution, group), self.scales)
            for key, group in self._groups.items()
        }
        self.weights_of = self._weight_codes(model)
        self.outputs_of = self._results(model)

    def _weight_codes(self, model: Model) -> dict[tuple[Op, int], WeightCodes]:
        """What each weight becomes, by op and operand. Ops that share a weight share its scales."""
        found: dict[tuple[Op, int], WeightCodes] = {}
        known: dict[tuple[Tensor, bytes], WeightCodes] = {}
        learns = self.scales == "learned"
        for op, coded in pairs(model, self.started.made):
            for place in coded_places(op):
                codes = stored(coded, place)
                if codes is None:
                    continue
                key = op.operand(place), codes.quantisation.scale.tobytes()
                known.setdefault(key, WeightCodes(codes, learns))
                found[op, place] = known[key]
        return found

    def _results(self, model: Model) -> dict[Tensor, ActivationCodes]:
        """Results that are rounded to codes where they are made."""
        found: dict[Tensor, ActivationCodes] = {}
        for op in (op for graph in model.graphs for op in graph.ops):
            bits, row = self.solution.domain(op), RULES.get(op.name)
            if not bits or row is None or not row.real_out:
                continue
            moves = row.same and op.name not in ROUNDING
            if not moves:
                found |= {t: self._codes(DomainValue(t, bits)) for t in op.outputs}
        return found

    def _codes(self, value: DomainValue) -> ActivationCodes:
        return self.steps_of[id(self.solution.groups[value])]

    # -- the forward pass -------------------------------------------------------------------------

    def applied(self, tensor: Tensor, weight: torch.Tensor) -> torch.Tensor:
        return weight  # what a weight becomes depends on the op that reads it: see `operand`

    def operand(self, op: Op, place: int, value: torch.Tensor) -> torch.Tensor:
        weights = self.weights_of.get((op, place))
        if weights is not None:
            return self._weight(op, weights, value)
        row, bits = RULES.get(op.name), self.solution.domain(op)
        if not bits or row is None:
            return value
        if place == row.bias:
            return self._bias(op, value)
        tensor = op.operand(place)
        if place not in row.operands(op) or not self._is_converted(op, place, tensor, bits):
            return value
        codes = self._codes(self.solution.value(op, place, tensor))
        # A constant that is no weight stays as it is: the range of its group depends on it.
        return codes(value.detach() if tensor.is_constant else value)

    def _is_converted(self, op: Op, place: int, tensor: Tensor, bits: int) -> bool:
        """Whether codes are made of it for this use: a constant, a float, or another scale."""
        return (
            tensor.is_constant
            or self.solution.home.get(tensor, 0) != bits
            or (op, place) in self.solution.apart
        )

    def _weight(self, op: Op, codes: WeightCodes, value: torch.Tensor) -> torch.Tensor:
        found = codes(value)
        if op.name == "DEPTHWISE_CONV_2D" and self.damping and value.requires_grad:
            unit = codes.scale.now
            far = ((codes.within(value) - found.detach()) / unit).square().mean()
            self._penalty = far if self._penalty is None else self._penalty + far
        return found

    def _bias(self, op: Op, value: torch.Tensor) -> torch.Tensor:
        """A multiple of what one unit of the products' sum stands for."""
        unit = self._unit(op).to(value.dtype)
        with torch.no_grad():
            found = torch.round(value.double() / unit.double()) * unit
        return value + (found.to(value.dtype) - value).detach()

    def _unit(self, op: Op) -> torch.Tensor:
        weights = self.weights_of[op, next(iter(RULES[op.name].weights))]
        return self._source(op).scale.now * weights.scale.now.reshape(-1)

    def _source(self, op: Op) -> ActivationCodes:
        """The codes of what the weights are multiplied with."""
        place = RULES[op.name].data[0]
        return self._codes(self.solution.value(op, place, op.operand(place)))

    def computed(self, op: Op, tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor] | None:
        """Where nothing is learnt from it, as integer kernels compute it: sums of products of codes
        are exact in float32 up to 2^24, sums of reals are not, and a last bit that differs may turn
        the rounding behind it."""
        if torch.is_grad_enabled() or not self.solution.domain(op):
            return None
        if op.name in PRODUCTS and RULES[op.name].weights:
            return self._product(op, tensors)
        return self._average(op, tensors) if op.name == "AVERAGE_POOL_2D" else None

    def _product(self, op: Op, tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor] | None:
        row, codes = RULES[op.name], list(tensors)
        source, place = row.data[0], next(iter(row.weights))
        x, weights, unit = codes[source], codes[place], self._unit(op)
        if x is None or weights is None or (op, place) not in self.weights_of:
            return None
        codes[source] = torch.round(x / self._source(op).scale.now)
        codes[place] = torch.round(weights / self.weights_of[op, place].scale.now)
        bias = codes[row.bias] if row.bias is not None and row.bias < len(codes) else None
        if bias is not None and row.bias is not None:
            codes[row.bias] = torch.round(bias / unit)
        (sums,) = PRODUCTS[op.name](op, codes)
        return [activate(op, self._rescaled(op, sums, unit))]

    def _rescaled(self, op: Op, sums: torch.Tensor, unit: torch.Tensor) -> torch.Tensor:
        """Sums in the scale of the result: a FULLY_CONNECTED rounds once, convolutions twice."""
        bits = self.solution.domain(op)
        scale = self._codes(DomainValue(op.outputs[0], bits)).scale.now
        factor, found = unit.double().numpy() / scale.double().numpy(), sums.numpy()
        if op.name == "FULLY_CONNECTED":
            whole = round_away(found.astype(np.float64) * factor)
        else:
            twice = multiply if bits == 8 else multiply64
            whole = twice(found.astype(np.int64), *quantize_multiplier(factor))
        return torch.from_numpy(whole.astype(np.float32)) * scale

    def _average(self, op: Op, tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        """The mean of the codes themselves, halves away from zero."""
        value = DomainValue(op.outputs[0], self.solution.domain(op))
        codes = self._codes(value)
        (found,) = FUNCTIONS[op.name](op, tensors)
        units = found / codes.scale.now + codes.zero
        # A quarter of the smallest step between means: float32 has made x.5 of what is not quite.
        whole = torch.sign(units) * torch.floor(units.abs() + 0.5 + 1e-4)
        return [(whole - codes.zero) * codes.scale.now]

    def activation(self, tensor: Tensor, value: torch.Tensor) -> torch.Tensor:
        codes = self.outputs_of.get(tensor)
        return value if codes is None else codes(value)

    def penalty(self) -> torch.Tensor | None:
        found, self._penalty = self._penalty, None
        share = 0.5 * (1 - math.cos(math.pi * self._part))  # from nothing to the whole
        return None if found is None else self.damping * share * found

    def after_step(self, weights: dict[Tensor, torch.Tensor], step: int) -> None:
        self._part = step / max(1, self.steps)

    def parameters(self) -> list[torch.nn.Parameter]:
        return [s.growth for s in self._scales() if s.growth.requires_grad]

    def _scales(self) -> list[Scale]:
        weights = {id(w): w for w in self.weights_of.values()}
        return [c.scale for c in self.steps_of.values()] + [c.scale for c in weights.values()]

    # -- checkpoints ------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        codes = list(self.steps_of.values())
        return {
            "growths": [s.growth.detach() for s in self._scales()],
            "firsts": [s.first for s in self._scales()],
            "zeros": [c.zero for c in codes],
            "extremes": [list(c.extremes) for c in codes],
            "part": self._part,
        }

    def restore(self, state: dict[str, Any]) -> None:
        for scale, growth, first in zip(
            self._scales(), state["growths"], state["firsts"], strict=True
        ):
            scale.first = first
            with torch.no_grad():
                scale.growth.copy_(growth)
        for codes, zero, extremes in zip(
            self.steps_of.values(), state["zeros"], state["extremes"], strict=True
        ):
            codes.zero, codes.extremes = zero, (extremes[0], extremes[1])
        self._part = state["part"]

    # -- the file ---------------------------------------------------------------------------------

    def finished(self, model: Model) -> Model:
        self.made = self.quantiser(model).run()
        self.made.factors = self.started.made.factors
        return self.made.model

    @property
    def written(self) -> Quantised:
        """What training ended with."""
        if self.made is None:
            raise InputError("nothing has been written yet", where="Quantisation", fix="train")
        return self.made

    def quantiser(self, model: Model) -> Quantiser:
        """Writes a model, whose weights are trained, with the scales that were learnt."""
        start = self.started.quantiser
        codes = {_name(op): weights for (op, _), weights in self.weights_of.items()}

        def scaled(op: Op) -> Floats | None:
            found = codes.get(_name(op))
            return None if found is None else found.scales

        def coded(op: Op, reals: Array, scales: Floats) -> Array | None:
            found = codes.get(_name(op))
            # A bias that would overflow has raised the scales: then the nearest codes are taken.
            is_other = found is None or not np.array_equal(found.scales, scales)
            return None if is_other or found is None else found.codes(reals)

        return replace(
            start,
            float_model=model,
            weights=replace(start.weights, scaled=scaled, rounded=coded),
            settle=self._settler(),
        )

    def _settler(self) -> Callable[[Sequence[Solution]], None]:
        learnt = {_key(group): self.steps_of[key].quant for key, group in self._groups.items()}

        def settle(solutions: Sequence[Solution]) -> None:
            for group in (g for s in solutions for g in s.groups.values()):
                group.quant = learnt[_key(group)]

        return settle

    def problems(self, model: Model) -> list[str]:
        """Rules of integer kernels that a finished model breaks."""
        return broken(model)


def _name(op: Op) -> str:
    return op.outputs[0].name


def _key(group: ScaleGroup) -> Key:
    """A group by its first value, under names that all copies of the model have."""
    value = group.values[0]
    use = None if value.use is None else (_name(value.use[0]), value.use[1])
    return value.tensor.name, value.bits, use


def _grid(solution: Solution, group: ScaleGroup) -> Grid:
    bits = group.values[0].bits
    grids = (m.activations for m in solution.modes.values())
    return next(g for g in grids if g is not None and g.bits == bits)


class ActivationCodes:
    """What the values of one group become."""

    def __init__(self, group: ScaleGroup, grid: Grid, how: str) -> None:
        quant = group.quant
        assert quant is not None, "the solver gave each group its codes"
        self.grid, self.zero = grid, int(quant.zero_point[0])
        self.moves = how == "moving" and group.fixed is None
        first = torch.tensor(float(quant.scale[0]))
        self.scale = Scale(first, how == "learned" and group.fixed is None)
        low, high = self.bounds
        self.extremes = low * float(first), high * float(first)

    @property
    def bounds(self) -> Bounds:
        """The bounds of the codes, less the zero point."""
        low, high = self.grid.bounds
        return float(low - self.zero), float(high - self.zero)

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        if self.moves and value.requires_grad:
            self._follow(value.detach())
        # LSQ's count is that of one sample: a step does not depend on the size of the batch.
        count = value.numel() // max(1, value.shape[0] if value.dim() else 1)
        return rounded(value, self.scale.value(count, self.grid.bounds[1]), self.bounds)

    def _follow(self, value: torch.Tensor) -> None:
        seen = float(value.min()), float(value.max())
        low, high = (a + MOMENTUM * (b - a) for a, b in zip(self.extremes, seen, strict=True))
        self.extremes = low, high
        scale, zero = self.grid.fit(low, high)
        self.scale.first, self.zero = torch.tensor(float(scale)), int(zero)

    @property
    def quant(self) -> Quant:
        return Quant.of(np.float32(self.scale.now.item()), self.zero)


class WeightCodes:
    """What one weight becomes."""

    def __init__(self, codes: Tensor, learns: bool) -> None:
        quant = codes.quantisation
        shape = [1] * len(codes.shape)
        if quant.scale.size > 1:
            shape[quant.axis] = -1
        scale: Array = quant.scale.astype(np.float32).reshape(shape)
        self.scale = Scale(torch.from_numpy(scale.copy()), learns)
        low, high = codes.dtype.bounds
        self.bounds: Bounds = (float(low + 1), float(high))  # narrow, as weights are

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        each = value.numel() // self.scale.first.numel()
        return rounded(value, self.scale.value(each, self.bounds[1]), self.bounds)

    @property
    def scales(self) -> Floats:
        return self.scale.now.reshape(-1).double().numpy()

    def codes(self, reals: Array) -> Array:
        """As the forward pass rounds them. Weights that went to and fro stand so near to the middle
        between two codes that a division in another precision finds the other one."""
        units = torch.from_numpy(np.asarray(reals, np.float32)) / self.scale.now
        found: Array = torch.clamp(units, *self.bounds).round().numpy().astype(np.int8)
        return found

    def within(self, value: torch.Tensor) -> torch.Tensor:
        unit = self.scale.now
        return torch.maximum(torch.minimum(value, self.bounds[1] * unit), self.bounds[0] * unit)

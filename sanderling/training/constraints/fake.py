"""Fake quantisation: floats that stand where codes will be, with gradients for values and scales.

The gradient of rounding is that of the identity, the gradient of a scale is that of learned step
sizes (LSQ). Written as one function with two saved tensors, it costs a tenth of PyTorch's own
learnable fake quantisation, whose kernel is not vectorised.
"""

from __future__ import annotations

import math
from typing import Any

import torch

Bounds = tuple[float, float]


class _Rounded(torch.autograd.Function):  # type: ignore[misc]  # PyTorch is an extra: unknown here
    """Values at the nearest multiple of the scale, within bounds of the multiple."""

    @staticmethod
    def forward(
        ctx: Any, values: torch.Tensor, scale: torch.Tensor, low: float, high: float
    ) -> torch.Tensor:
        units = values / scale
        codes = torch.clamp(units, low, high).round_()
        ctx.save_for_backward(units, codes, scale)
        ctx.bounds = low, high
        return codes * scale

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        units, codes, scale = ctx.saved_tensors
        (grad,) = grads
        low, high = ctx.bounds
        inner = torch.ops.aten.hardtanh_backward(grad, units, low, high)
        if not ctx.needs_input_grad[1]:
            return inner, None, None, None
        # d(code * scale) / d(scale) is code - value / scale within the bounds, else the bound.
        return inner, _slope(grad, codes, inner, units, scale), None, None


def _slope(
    grad: torch.Tensor,
    codes: torch.Tensor,
    inner: torch.Tensor,
    units: torch.Tensor,
    scale: torch.Tensor,
) -> torch.Tensor:
    if scale.numel() == 1:
        pairs = ((grad, codes), (inner, units))
        all_in, within = (torch.dot(a.reshape(-1), b.reshape(-1)) for a, b in pairs)
        return (all_in - within).reshape(scale.shape)
    each = grad * codes - inner * units
    over = [i for i, size in enumerate(scale.shape) if size == 1]
    return each.sum(over, keepdim=True)


def rounded(values: torch.Tensor, scale: torch.Tensor, bounds: Bounds) -> torch.Tensor:
    """Codes times scale; `bounds` are those of the codes less the zero point."""
    found: torch.Tensor = _Rounded.apply(values, scale, *bounds)
    return found


class _SlowGradient(torch.autograd.Function):  # type: ignore[misc]
    """The identity, with a smaller gradient."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0] * ctx.factor, None


class Scale:
    """A scale, or one for each channel, that training may change.

    What is learnt is the logarithm of how much larger it is than at first: steps are relative, and
    it stays positive.
    """

    def __init__(self, first: torch.Tensor, learns: bool) -> None:
        self.first = first
        self.growth = torch.nn.Parameter(torch.zeros_like(first), requires_grad=learns)

    def value(self, count: int, most: float) -> torch.Tensor:
        """count: of the values that it scales, most: the largest code; the gradient is divided by
        the root of their product, as LSQ has it, to be of the size of the others."""
        if not self.growth.requires_grad:
            return self.first
        factor = 1 / math.sqrt(max(1.0, count * most))
        slow: torch.Tensor = _SlowGradient.apply(self.growth, factor)
        return self.first * torch.exp(slow)

    @property
    def now(self) -> torch.Tensor:
        return (self.first * torch.exp(self.growth)).detach()

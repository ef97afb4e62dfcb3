"""The window of a convolution or pool: its size, steps, and what hangs over the input's edges."""

from __future__ import annotations

from dataclasses import dataclass

from ....ir import Op
from ....ops.base import attr
from ....ops.geometry import padding_before
from ..dialect.fused import Fused


@dataclass(frozen=True)
class Geometry:
    """Output (y, x) reads input (y * stride + tap * dilation - before), vertically, horizontally.

    pads are rows and columns beyond the input: (top, bottom, left, right). What the windows reach
    there counts as zero (the input's zero point) in a convolution, and not at all in a pool.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    pads: tuple[int, int, int, int]

    @property
    def before(self) -> tuple[int, int]:
        """Padding above and to the left."""
        return self.pads[0], self.pads[2]


def window_of(op: Op) -> Geometry:
    """The geometry of CONV_2D, DEPTHWISE_CONV_2D (filters [_, taps, taps, _]) and the pools."""
    x, out = op.operand(0), op.outputs[0]
    kernel, dilation = _taps(op)
    stride = (int(attr(op, "stride_h")), int(attr(op, "stride_w")))
    pads: list[int] = []
    for axis in (0, 1):
        size, count = x.shape[1 + axis], out.shape[1 + axis]
        reach = (count - 1) * stride[axis] + (kernel[axis] - 1) * dilation[axis] + 1
        before = _before(op, axis, size, count, kernel, stride, dilation)
        pads += [before, max(0, reach - before - size)]
    return Geometry(kernel, stride, dilation, (pads[0], pads[1], pads[2], pads[3]))


def _before(
    op: Op,
    axis: int,
    size: int,
    count: int,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
) -> int:
    padding = Fused.of(op).padding
    if padding is not None:
        return padding[2 * axis]
    if attr(op, "padding") == "VALID":
        return 0
    return padding_before(size, kernel[axis], stride[axis], dilation[axis], count)


def _taps(op: Op) -> tuple[tuple[int, int], tuple[int, int]]:
    """Kernel size and dilation: a filter's, or a pool's attributes."""
    if op.name.endswith("POOL_2D"):
        return (int(attr(op, "filter_height")), int(attr(op, "filter_width"))), (1, 1)
    w = op.operand(1)
    dilation = (int(attr(op, "dilation_h_factor")), int(attr(op, "dilation_w_factor")))
    return (w.shape[1], w.shape[2]), dilation

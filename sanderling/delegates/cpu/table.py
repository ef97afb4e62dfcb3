"""The kernel table: which ops the compiler takes, and how each is written."""

from __future__ import annotations

from .codegen.program import Kernel
from .kernels import control
from .kernels.depthwise import depthwise, with_pointwise
from .kernels.elementwise import maps, operators, tables16
from .kernels.move import copies, gather, scatter, spread, views
from .kernels.products import conv, dynamic_range, matmul, transposed, volume
from .kernels.recurrent import lstm, svdf
from .kernels.reduce import (
    along_axis,
    layer_norm,
    local_response,
    pools,
    reductions,
    rowwise,
    softmax,
    topk,
)
from .kernels.signal import fourier, spectrogram
from .kernels.vision import detections, mediapipe, nms, resize
from .passes import constant_weights, decompose

# A later module's row for an op stands in for an earlier one's: `softmax` and `tables16` ask those
# before them.
MODULES = (
    conv, dynamic_range, matmul, transposed, depthwise, with_pointwise, pools, reductions, rowwise,
    layer_norm, along_axis, maps, operators, copies, views, gather, topk, resize, control, lstm,
    svdf, fourier, detections, volume, constant_weights, spread, scatter, local_response, decompose,
    nms, spectrogram, softmax, tables16, mediapipe,
)  # fmt: skip
KERNELS: dict[str, Kernel] = {
    name: row for module in MODULES for name, row in module.KERNELS.items()
}

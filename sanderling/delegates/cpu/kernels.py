"""The kernel table: which ops the compiler takes, and how each is written."""

from __future__ import annotations

from . import (
    control,
    conv,
    depthwise,
    detect,
    elementwise,
    fourier,
    fuse_dwpw,
    gather,
    hybrid,
    l2norm,
    lstm,
    mapping,
    matmul,
    mediapipe,
    move,
    nms,
    norm,
    pool,
    products,
    reduce,
    resize,
    response,
    restate,
    rowwise,
    scatter,
    search,
    simple,
    softmax,
    spectrogram,
    spread,
    svdf,
    topk,
    transposed,
    volume,
    words,
)
from .program import Kernel

# A later module's row for an op stands in for an earlier one's: `softmax`, `l2norm` and `words`
# ask those before them.
MODULES = (
    conv, hybrid, matmul, transposed, depthwise, fuse_dwpw, pool, reduce, rowwise, norm,
    search, mapping, elementwise, simple, move, gather, topk, resize, control, lstm, svdf,
    fourier, detect, volume, products, spread, scatter, response, restate, nms, spectrogram,
    softmax, l2norm, words, mediapipe,
)  # fmt: skip
KERNELS: dict[str, Kernel] = {
    name: row for module in MODULES for name, row in module.KERNELS.items()
}

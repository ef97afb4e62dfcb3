"""The kernel table: which ops the compiler takes, and how each is written."""

from __future__ import annotations

from . import (
    conv,
    depthwise,
    elementwise,
    fuse_dwpw,
    gather,
    hybrid,
    mapping,
    matmul,
    move,
    pool,
    reduce,
    resize,
    simple,
    transposed,
)
from .program import Kernel

KERNELS: dict[str, Kernel] = {
    **conv.KERNELS,
    **hybrid.KERNELS,
    **matmul.KERNELS,
    **transposed.KERNELS,
    **depthwise.KERNELS,
    **fuse_dwpw.KERNELS,
    **pool.KERNELS,
    **reduce.KERNELS,
    **mapping.KERNELS,
    **elementwise.KERNELS,
    **simple.KERNELS,
    **move.KERNELS,
    **gather.KERNELS,
    **resize.KERNELS,
}

"""The kernel table: which ops the compiler takes, and how each is written."""

from __future__ import annotations

from . import conv, simple
from .program import Kernel

KERNELS: dict[str, Kernel] = {**conv.KERNELS, **simple.KERNELS}

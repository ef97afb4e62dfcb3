"""What a model may run on."""

from __future__ import annotations

from enum import IntFlag


class HardwareAccelerator(IntFlag):
    """Accelerators, to be combined with |. One that stands alone has to run the whole model; with
    CPU beside it the rest of the model, or all of it, runs there."""

    CPU = 1
    GPU = 2
    NPU = 4

"""What a delegation to a device is estimated to take, beside the cpu alone.

Both are taken at their roofs: an op takes the time of its multiply-adds or that of its bytes,
whichever is longer, at the rates that were measured on the device and on one core. What a device
adds is counted: its launches, and what crosses the borders of its parts. Kernels reach some share
of a roof, on either side, so that this compares two ways to run a model, and no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ..ir import Op
from ..ops.base import known_cost
from ..runtime.partition import Part
from .roofline import Roofline, device_roofline, roofline

if TYPE_CHECKING:
    from ..delegates.gpu.devices.device import Device
    from ..delegates.gpu.peaks import Peaks

# What becomes a part of another kernel, or of none.
_PART_OF_OTHERS = """
RESHAPE SQUEEZE EXPAND_DIMS ADD SUB MUL DIV RELU RELU6 RELU_N1_TO_1 LOGISTIC TANH HARD_SWISH ABS NEG
EXP SQRT RSQRT SQUARE PAD DEQUANTIZE QUANTIZE
"""
NO_LAUNCH = frozenset(_PART_OF_OTHERS.split())


@dataclass(frozen=True)
class Estimate:
    """Milliseconds of a run: in kernels, for launches and at borders of the device; of the ops that
    stay on the cpu; and of the whole model on the cpu alone."""

    device: str
    kernels: float
    launches: float
    borders: float
    rest: float
    cpu: float

    @property
    def whole(self) -> float:
        return self.kernels + self.launches + self.borders + self.rest

    @property
    def cpu_is_faster(self) -> bool:
        return self.cpu < self.whole

    @property
    def text(self) -> str:
        """For people."""
        what = (
            f"estimated by rooflines: {self.whole:.3g} ms on {self.device} (kernels "
            f"{self.kernels:.3g}, launches {self.launches:.3g}, borders {self.borders:.3g}, the "
            f"cpu's ops {self.rest:.3g}), {self.cpu:.3g} ms on the cpu alone"
        )
        if not self.cpu_is_faster:
            return what
        return f"{what}: the CPU alone would be faster; `sanderling bench --sweep` measures it"

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"whole": self.whole, "cpu_is_faster": self.cpu_is_faster}


def estimate(device: Device, parts: Sequence[Part], own: str) -> Estimate:
    """own: the name of the delegate whose parts run on the device."""
    from ..delegates.gpu.peaks import peaks_of

    theirs = [p for p in parts if p.delegate.name == own]
    others = [op for p in parts if p.delegate.name != own for op in p.ops]
    ops = [op for p in theirs for op in p.ops]
    roof, core, peaks = device_roofline(device), roofline(1), peaks_of(device)
    launches = sum(op.name not in NO_LAUNCH for op in ops)
    return Estimate(
        device.offers.name,
        1e3 * _seconds(ops, roof),
        1e3 * peaks.launch * launches,
        1e3 * sum(_border(p, peaks) for p in theirs),
        1e3 * _seconds(others, core),
        1e3 * _seconds([*ops, *others], core),
    )


def _seconds(ops: Iterable[Op], roof: Roofline) -> float:
    return sum(_least(op, roof) for op in ops)


def _least(op: Op, roof: Roofline) -> float:
    """Codes are floats to a device that has no other peak."""
    found = known_cost(op)
    first = op.input(0) if op.inputs else None
    kind = "i8" if first is not None and first.dtype.short in ("i8", "u8") else "f32"
    peak = roof.peaks.get(kind, roof.peaks["f32"])
    moved = found.bytes_read + found.bytes_written
    return max(found.macs / peak, moved / roof.level(moved).bandwidth)


def _border(part: Part, peaks: Peaks) -> float:
    nbytes = sum(t.nbytes for t in (*part.inputs, *part.outputs))
    return 2 * peaks.launch + nbytes / peaks.border

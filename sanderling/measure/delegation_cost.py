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
    from ..delegates.gpu.delegate import GpuDelegate
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


def estimate(parts: Sequence[Part], gpu: GpuDelegate) -> Estimate:
    """gpu: the delegate whose parts run on its device."""
    from ..delegates.gpu.peaks import peaks_of

    device = gpu.device()
    theirs = [p for p in parts if p.delegate.name == gpu.name]
    others = [op for p in parts if p.delegate.name != gpu.name for op in p.ops]
    ops = [op for p in theirs for op in p.ops]
    roof, core, peaks = device_roofline(device), roofline(1), peaks_of(device)
    launches = sum(op.name not in NO_LAUNCH for op in ops)
    return Estimate(
        device.offers.name,
        1e3 * sum(_least_there(op, roof, _precision(gpu, device)) for op in ops),
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
    peak = roof.peaks.get("i8" if _kind(op) in _CODES else "f32", roof.peaks["f32"])
    return _longer(found.macs / peak, found.bytes_read + found.bytes_written, roof)


def _longer(seconds: float, moved: float, roof: Roofline) -> float:
    return max(seconds, moved / roof.level(int(moved)).bandwidth)


def _kind(op: Op) -> str:
    """The type that it computes with."""
    first = op.input(0) if op.inputs else None
    return "" if first is None else first.dtype.short


_CODES = ("i8", "u8")
# Bytes of what ops compute with, where that becomes floats of the part's precision on a device.
_STORED = {"f32": 4, "f16": 2, **dict.fromkeys(_CODES, 1)}


def _least_there(op: Op, roof: Roofline, precision: str) -> float:
    """On the device: codes and floats are floats of 16 bits or of 32."""
    found, kept = known_cost(op), 4 if precision == "f32" else 2
    peak = roof.peaks["f16" if precision == "f16" else "f32"]
    moved = (found.bytes_read + found.bytes_written) * kept / _STORED.get(_kind(op), kept)
    return _longer(found.macs / peak, moved, roof)


def _precision(gpu: GpuDelegate, device: Device) -> str:
    """With `auto`, as if everything were halved."""
    from ..delegates.gpu.precision import AUTO, settled

    found = settled(gpu.chosen, device.offers)
    if found != AUTO:
        return found
    return "f16" if device.offers.half else "f32_f16"


def _border(part: Part, peaks: Peaks) -> float:
    nbytes = sum(t.nbytes for t in (*part.inputs, *part.outputs))
    return 2 * peaks.launch + nbytes / peaks.border

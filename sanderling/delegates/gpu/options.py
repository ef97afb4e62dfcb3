"""What is known of kinds of devices: a row each. Rows of real GPUs follow TensorFlow Lite's tables
(shared/reference/next.md says where they stand); that of software devices was measured."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class DeviceClass:
    """form: where tensors and weights are kept: buffer, image or texture. lanes: of the widest
    vector. rows: of points that a product's tile has at most. columns: vectors that it has at most.
    group: points of a work group. winograd: least slices of source and destination and tiles for
    Winograd's way, None: never. registers: that hold a tile's sums and weights. scalars: an element
    is repeated in a vector while it is loaded. operands: tensors that a kernel reads at most.
    """

    name: str
    form: str
    lanes: int
    rows: int
    columns: int
    group: tuple[int, int, int]
    winograd: tuple[int, int, int] | None
    registers: int = 32
    scalars: bool = False
    operands: int = 8


CPU = DeviceClass("cpu", "buffer", 16, 24, 7, (1, 1, 1), (16, 16, 32), scalars=True)
# A GPU's interface on a CPU: points of a group are lanes of its vectors.
SOFTWARE = DeviceClass("software", "buffer", 4, 4, 2, (8, 4, 1), (16, 16, 32))
ADRENO = DeviceClass("adreno", "texture", 4, 4, 1, (8, 4, 1), (32, 32, 64))
MALI = DeviceClass("mali", "texture", 4, 4, 1, (4, 4, 1), (16, 16, 32))
POWERVR = DeviceClass("powervr", "texture", 4, 4, 1, (4, 4, 1), (16, 16, 32))
NVIDIA = DeviceClass("nvidia", "image", 4, 4, 2, (8, 8, 1), (16, 16, 32))
AMD = DeviceClass("amd", "image", 4, 4, 2, (8, 8, 1), (16, 8, 32))
INTEL = DeviceClass("intel", "buffer", 4, 4, 2, (8, 4, 1), (16, 16, 32))
APPLE = DeviceClass("apple", "buffer", 4, 4, 2, (8, 4, 1), (16, 16, 32))
UNKNOWN = DeviceClass("unknown", "buffer", 4, 4, 1, (8, 4, 1), (16, 16, 32))
CLASSES = (CPU, SOFTWARE, ADRENO, MALI, POWERVR, NVIDIA, AMD, INTEL, APPLE, UNKNOWN)


def class_of(is_cpu: bool, vendor: str, name: str, lanes: int = 4) -> DeviceClass:
    """The row of a device, by what it says of itself. lanes: of its own vectors of floats."""
    if is_cpu:
        lanes = max(4, min(16, lanes))
        return replace(CPU, lanes=lanes, registers=32 if lanes == 16 else 16)
    said = f"{vendor} {name}".lower()
    words = {"qualcomm": ADRENO, "adreno": ADRENO, "mali": MALI, "powervr": POWERVR,
             "nvidia": NVIDIA, "advanced micro": AMD, "amd": AMD, "radeon": AMD,
             "intel": INTEL, "apple": APPLE}  # fmt: skip
    return next((row for word, row in words.items() if word in said), UNKNOWN)

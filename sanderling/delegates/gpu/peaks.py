"""What a device does at best, measured by kernels that do nothing else: multiply-adds a second,
bytes a second, and what a launch and a byte across the border take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...store import Store
from .devices.device import TIMEOUT, Device
from .language import KernelText, Storage
from .recipe import Call

CHAINS = 12  # of sums that do not wait for each other
TURNS = 2048  # of the loop over them
RUNS = 5  # of which the fastest counts
POINTS = 32  # for each unit of the device
LEAST_UNITS = 4  # where an interface does not tell
COPIED = 64  # vectors of four that a point copies
# Working sets: what a device's cache holds, and what only its memory does.
NEAR, FAR = 512 << 10, 64 << 20
BORDER = 4 << 20


@dataclass(frozen=True)
class Peaks:
    """peaks: multiply-adds a second, by type. near, far: bytes a second from a cache and from
    memory. launch: seconds of one launch that is waited for. border: bytes a second from the host
    and back."""

    peaks: dict[str, float]
    near: float
    far: float
    launch: float
    border: float


def peaks_of(device: Device, refresh: bool = False) -> Peaks:
    """Measured now (about a second), or known already."""
    store = Store()
    name = store.name("gpu peaks", device.offers, CHAINS, TURNS, NEAR, FAR)
    known = None if refresh else store.recall(name, lambda found: Peaks(**found))
    if known is not None:
        return known
    made = _measured(device)
    store.record(name, asdict(made))
    return made


def _measured(device: Device) -> Peaks:
    kinds = ["f32", "f16"] if device.offers.half else ["f32"]
    launch = _fastest(_launch(device, _empty(device), (16,), 1), device)
    near, far = (_copying(device, size, launch) for size in (NEAR, FAR))
    peaks = {kind: _multiplying(device, kind == "f16") for kind in kinds}
    return Peaks(peaks, max(near, far), far, launch, _crossing(device))


def _multiplying(device: Device, half: bool) -> float:
    lanes = min(device.offers.kind.lanes, 16)
    k = KernelText("peak", device.dialect(half))
    x, y = k.argument("x", Storage("f32")), k.argument("y", Storage("f32"), written=True)
    points = max(device.offers.units, LEAST_UNITS) * POINTS
    (i,) = k.grid(points)
    factor = k.let(k.load(x, i * (lanes // 4), lanes), "f")
    sums = [k.var(factor + float(n), "a") for n in range(CHAINS)]
    with k.loop(0, TURNS):
        for total in sums:
            k.assign(total, k.fma(total, factor, factor))
    total = sums[0]
    for other in sums[1:]:
        total = total + other
    k.store(y, i * (lanes // 4), total)
    seconds = _fastest(_launch(device, k, (points,), points * lanes, half), device)
    return points * TURNS * CHAINS * lanes / seconds


def _copying(device: Device, nbytes: int, launch: float) -> float:
    """A CPU reads what lies together; neighbouring points of a GPU read neighbours. launch: seconds
    that do not count."""
    k = KernelText("copy", device.dialect(False))
    x, y = k.argument("x", Storage("f32")), k.argument("y", Storage("f32"), written=True)
    points = max(1, nbytes // 2 // (16 * COPIED))
    (i,) = k.grid(points)
    with k.loop(0, COPIED, hint="j") as j:
        at = k.let(i * COPIED + j if device.offers.kind.scalars else j * points + i)
        k.store(y, at, k.load(x, at))
    seconds = _fastest(_launch(device, k, (points,), points * COPIED * 4), device)
    return 2 * points * COPIED * 16 / max(seconds - launch, seconds / 4)


def _empty(device: Device) -> KernelText:
    k = KernelText("empty", device.dialect(False))
    x, y = k.argument("x", Storage("f32")), k.argument("y", Storage("f32"), written=True)
    (i,) = k.grid(16)
    k.store_one(y, i, k.load_one(x, i))
    return k


def _launch(
    device: Device, k: KernelText, size: Sequence[int], count: int, half: bool = False
) -> Callable[[], Any]:
    """The kernel on memory of so many floats, or a few more."""
    group = device.offers.kind.group
    (program,) = device.build([device.dialect(half).preamble() + k.source(group)])
    data = np.zeros(max(count, 16), np.float32)
    memory = [device.upload(data), device.allocate(data.nbytes)]
    call = Call(k.name, (*size, *(1 for _ in range(3 - len(size)))), group, (0, 1), k.name, "", 0)
    return device.launcher(program, call, memory, group)


def _fastest(launch: Callable[[], Any], device: Device) -> float:
    """Waited for as a run is, so that a device that hangs is given up."""
    times = []
    with device.keeping(launch):
        for _ in range(RUNS + 1):  # some drivers compile at the first launch
            begin = time.perf_counter()
            launch()
            device.wait(TIMEOUT)
            times.append(time.perf_counter() - begin)
    return min(times[1:])


def _crossing(device: Device) -> float:
    data = np.zeros(BORDER, np.uint8)
    memory = device.allocate(data.nbytes)
    times = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        with device.keeping(memory, data) as kept:
            kept.append(device.write(memory, data))
            device.read([(memory, data)])
        times.append(time.perf_counter() - begin)
    return 2 * data.nbytes / min(times)

"""Programs built side by side, in processes of their own, for drivers that build one at a time.

PoCL's compiler works under one lock for all threads and contexts of a process. It compiles a kernel
at its first launch and once more, for groups of any size, when somebody asks for its binary: a
child builds its share, launches each kernel once on memory that is all zeros, and sends the binary.
The two take alike (12 s each of the 36 kernels of EfficientNet-Lite0, two children): both count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

import numpy as np

from ...child_process import ChildProcess
from ...errors import DelegateError
from ...processors import usable_cpu_count
from .devices.device import Device
from .devices.finding import devices
from .recipe import Call, MemoryObject, Recipe

# Platforms whose compilers keep others of the same process waiting.
SERIAL = ("PoCL",)
# Kernels that are worth a process, which takes half a second to begin.
WORTH = 6
PATIENCE = 300.0  # seconds without a word after which a child is given up
Told = Callable[[int, int], None]  # how many compilations are done, and of how many
TWICE = 2  # compilations of a kernel


@dataclass(frozen=True)
class Job:
    """A program and launches of all its kernels. number: of the device in its interface."""

    interface: str
    number: int
    source: str
    calls: list[Call]
    places: list[MemoryObject]


def processes_for(device: Device, kernels: int) -> int:
    """How many processes build so many kernels; 0: this one does."""
    if not any(name in device.offers.platform for name in SERIAL):
        return 0
    count = min(usable_cpu_count(), kernels // WORTH)
    return count if count > 1 else 0


def build_beside(
    device: Device, recipe: Recipe, sources: Sequence[str], told: Told
) -> list[bytes] | None:
    """The binaries of programs with these sources, or None if that fails here: who asks builds them
    himself, and gets to see why."""
    children: list[ChildProcess] = []
    try:
        number = devices(device.offers.interface).index(device)
        for source, names in zip(sources, recipe.programs, strict=True):
            calls = {call.kernel: call for call in recipe.calls if call.kernel in names}
            children.append(ChildProcess(serve))
            children[-1].pipe.send(
                Job(device.offers.interface, number, source, [*calls.values()], recipe.places)
            )
        sizes = {child.pipe: len(n) for child, n in zip(children, recipe.programs, strict=True)}
        return _collected(sizes, told)
    except (OSError, EOFError, ValueError):
        return None
    finally:
        for child in children:
            child.pipe.close()
            child.end(patience=0.0)


def _collected(sizes: Mapping[Connection, int], told: Told) -> list[bytes]:
    """What the children send: a number for each kernel, and then the binary. sizes: the kernels of
    each."""
    found: dict[Connection, bytes] = {}
    total = TWICE * sum(sizes.values())
    done, heard = 0, time.monotonic()
    while len(found) < len(sizes):
        speaking = wait([pipe for pipe in sizes if pipe not in found], timeout=1.0)
        if not speaking and time.monotonic() - heard > PATIENCE:
            raise EOFError("a child says nothing")
        for pipe in speaking:
            assert isinstance(pipe, Connection)
            said, heard = pipe.recv(), time.monotonic()
            if isinstance(said, bytes):
                found[pipe] = said
            done += sizes[pipe] if isinstance(said, bytes) else said
            told(done, total)
    return [found[pipe] for pipe in sizes]


def serve(pipe: Connection) -> None:
    """A child's work. Whatever fails, the parent finds out by the end of the pipe."""
    with suppress(DelegateError, OSError, EOFError):
        job: Job = pipe.recv()
        device = devices(job.interface)[job.number]
        (program,) = device.build([job.source])
        for call in job.calls:
            memory = [_zeros(device, job.places[i]) for i in call.arguments]
            device.launcher(program, call, memory, call.group)()
            device.finish()
            pipe.send(1)
        (binary,) = device.binaries([program])
        pipe.send(binary)


def _zeros(device: Device, place: MemoryObject) -> object:
    """Indices that a kernel finds there are inside of whatever they point to."""
    if place.form != "buffer":
        return device.upload(np.zeros(place.nbytes, np.uint8), place.storage)
    memory = device.allocate(place.nbytes, place.storage)
    device.write(memory, np.zeros(place.nbytes, np.uint8))
    device.finish()
    return memory

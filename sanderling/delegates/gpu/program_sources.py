"""The sources of programs, and who builds them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ...errors import DelegateError
from ...processors import usable_cpu_count
from .builders import Told, build_beside, processes_for
from .devices.device import Device
from .lower import Lowered
from .recipe import Recipe


def build_programs(device: Device, lowered: Lowered, recipe: Recipe) -> Sequence[Any]:
    """As many programs as there are processors to build them; the recipe is told who is where."""
    return device.build(sources_of(device, lowered, recipe, usable_cpu_count()))


def build_and_keep(
    device: Device, lowered: Lowered, recipe: Recipe, told: Told
) -> tuple[Sequence[Any], list[bytes] | None]:
    """Programs and their binaries, where processes of their own built them; None: the device is to
    be asked for them."""
    count = processes_for(device, len({call.kernel for call in recipe.calls}))
    if count:
        binaries = build_beside(device, recipe, sources_of(device, lowered, recipe, count), told)
        if binaries is not None:
            with suppress(DelegateError):
                return device.load(binaries), binaries
    return build_programs(device, lowered, recipe), None


def sources_of(device: Device, lowered: Lowered, recipe: Recipe, count: int) -> list[str]:
    """At most so many programs."""
    sources = {
        step.kernel.name: step.kernel.source(call.group)
        for step, call in zip(lowered.steps, recipe.calls, strict=True)
    }
    names = list(sources)
    count = max(1, min(count, len(names)))
    recipe.programs = [names[i::count] for i in range(count)]
    preamble = device.dialect(any(step.half for step in lowered.steps)).preamble()
    return [preamble + "\n".join(sources[n] for n in chunk) for chunk in recipe.programs]

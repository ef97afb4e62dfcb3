"""The sources of programs, and who builds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...processors import usable_cpu_count
from .devices.device import Device
from .lower import Lowered
from .recipe import Recipe


def build_programs(device: Device, lowered: Lowered, recipe: Recipe) -> Sequence[Any]:
    """As many programs as there are processors to build them; the recipe is told who is where."""
    sources = {
        step.kernel.name: step.kernel.source(call.group)
        for step, call in zip(lowered.steps, recipe.calls, strict=True)
    }
    names = list(sources)
    count = max(1, min(usable_cpu_count(), len(names)))
    recipe.programs = [names[i::count] for i in range(count)]
    preamble = device.dialect(any(step.half for step in lowered.steps)).preamble()
    return device.build(
        [preamble + "\n".join(sources[n] for n in chunk) for chunk in recipe.programs]
    )

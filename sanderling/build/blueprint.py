"""A model planned for a platform: what its objects, texts and programs are made of."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import ArgumentError
from ..format import load
from ..ir import Model, Shape, Signature
from ..measure.inputs import by_input, checked_shape
from ..progress import waiting
from ..runtime.plans import verify_model
from ..runtime.session import Session
from .c_sources import checked_name, identifier, texts
from .objects import Objects, make_objects
from .planned_parts import Version, plan_ahead
from .platforms import NATIVE, Platform, platform_of

MOST_THREADS = 1024  # as in runtime.c


@dataclass
class Blueprint:
    """A model planned for a platform: all that its objects and texts are made of."""

    name: str
    file: str
    model: Model
    entry: Signature
    platform: Platform
    versions: list[Version]
    threads: int

    @property
    def names(self) -> tuple[list[str], list[str]]:
        """The names of the inputs, in the graph's order, and of the outputs, in the signature's."""
        called = {tensor: name for name, tensor in self.entry.inputs.items()}
        return [called.get(t, t.name) for t in self.entry.graph.inputs], list(self.entry.outputs)

    def objects(self, with_steps: bool = False) -> Objects:
        return make_objects(
            self.name, self.platform, self.versions, self.names, self.threads, with_steps
        )

    def texts(self) -> dict[str, str]:
        return texts(self.name, self.file, self.versions, *self.names)


def plan_library(
    model: Model | str | os.PathLike[str],
    target: str = NATIVE,
    *,
    name: str = "",
    threads: int = 1,
    shapes: Mapping[str, Shape] | None = None,
    signature: str | None = None,
    custom: Mapping[str, str] | None = None,
    timed: bool = False,
) -> Blueprint:
    """Compile a model for every version of a target; nothing is written. timed: the code can count
    the ticks of its steps."""
    if not 1 <= threads <= MOST_THREADS:
        raise ArgumentError(f"`threads` is {threads}", fix=f"give 1 to {MOST_THREADS}")
    platform = platform_of(target)
    file = "" if isinstance(model, Model) else Path(os.fspath(model)).name
    source = model if isinstance(model, Model) else load(model)
    chosen = checked_name(name) if name else identifier(Path(file).stem or "model")
    for function in (custom or {}).values():
        checked_name(function, "--custom")
    verify_model(source)
    entry = Session(source, delegates="reference").entry(signature)
    given = by_input(entry.inputs, dict(shapes or {}))
    called = {t: n for n, t in entry.inputs.items()}
    sizes = [
        checked_shape(called.get(t, t.name), t, given.get(called.get(t, "")))
        for t in entry.graph.inputs
    ]
    versions = []
    for row in platform.versions:
        with waiting(f"building for {row.name}"):
            versions.append(plan_ahead(entry, sizes, row, custom or {}, timed))
    return Blueprint(chosen, file or chosen, source, entry, platform, versions, threads)

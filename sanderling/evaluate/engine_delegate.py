"""Another engine as a delegate: it is handed each part as a model of its own, so that its parts can
be looked at, fed and replaced op by op like those of any delegate."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..errors import DelegateError, MissingExtraError
from ..ir import Array, Graph, Op
from ..measure.benchmark_model.providers import flagged
from ..measure.engines import ENGINES, EngineJob, LoadedEngine
from ..measure.record import Setting
from ..runtime.delegate import Delegate, Executable, Options
from ..runtime.registry import find_delegate
from ..runtime.submodel import as_tflite, refuses_alone


class EngineDelegate(Delegate):
    """Takes what stands on its own: no control flow, no state, no strings."""

    def __init__(self, setting: Setting) -> None:
        self.name = setting.engine
        self.setting = setting
        self.folder = tempfile.TemporaryDirectory(prefix="sanderling-")

    def refuses(self, op: Op) -> str | None:
        return refuses_alone(op)

    def compile(self, part: Graph, options: Options) -> EngineExecutable:
        path = Path(self.folder.name) / f"{len(list(Path(self.folder.name).iterdir()))}.tflite"
        path.write_bytes(as_tflite(part))
        inputs = [np.zeros(t.shape, t.dtype.numpy) for t in part.inputs]
        job = EngineJob(
            str(path),
            self.setting,
            inputs,
            [t.name for t in part.inputs],
            [t.name for t in part.outputs],
        )
        try:
            return EngineExecutable(inputs, load_engine(job))
        except MissingExtraError:
            raise
        except Exception as error:
            raise DelegateError(
                f"it cannot load them: {error}", where=f"engine '{self.name}'"
            ) from error


def load_engine(job: EngineJob) -> LoadedEngine:
    return ENGINES[job.setting.engine](job, lambda stage: None)


class EngineExecutable(Executable):
    def __init__(self, inputs: list[Array], loaded: LoadedEngine) -> None:
        self.inputs, self.loaded = inputs, loaded

    def run(self, inputs: Sequence[Array], outputs: list[Array | None]) -> None:
        for own, given in zip(self.inputs, inputs, strict=True):
            np.copyto(own, given)
        self.loaded.refresh()
        self.loaded.run()
        for place, made in enumerate(self.loaded.answers()):
            target = outputs[place]
            if target is None:
                outputs[place] = np.array(made)
            else:
                np.copyto(target, made.reshape(target.shape))


def delegates_of(setting: Setting) -> list[Delegate]:
    """Who runs the ops of this setting, in order of preference. The precision is the delegate's
    own, so that two of one kind can stand in one session."""
    if setting.engine != "sanderling":
        return [EngineDelegate(setting)]
    found = [_at(name, setting.precision) for name in setting.delegates or ("cpu",)]
    return [flagged(delegate, setting.flags) for delegate in found]


def as_computed(setting: Setting) -> Setting:
    """The setting at the precision that its delegates compute in: one that has no instructions for
    what is asked warns of it, and takes f32."""
    if setting.engine != "sanderling":
        return setting
    from ..delegates.cpu.delegate import CpuDelegate

    found = [d.target.precision for d in delegates_of(setting) if isinstance(d, CpuDelegate)]
    return replace(setting, precision=found[0] if found else "f32")


def _at(name: str | Delegate, precision: str) -> Delegate:
    if name != "cpu" or precision == "f32":
        return find_delegate(name)
    from ..delegates.cpu.delegate import CpuDelegate

    return CpuDelegate(precision=precision)

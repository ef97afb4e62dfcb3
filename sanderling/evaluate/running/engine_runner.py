"""One engine with one model: arrays in by name, arrays out by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ...ir import Array, Graph, Model, Shape
from ...measure.benchmark_model.providers import flagged, session_arguments
from ...measure.engines import LoadedEngine, check_engines, job_for, load_engine
from ...measure.record import Setting
from ...runtime.coverage import idle_delegates, ops_by_delegate
from ...runtime.registry import find_delegate
from ...runtime.session import Session
from ..task import Ports


def make_runner(model: Model, setting: Setting) -> Runner | PeerRunner:
    check_engines([setting.engine])
    kind = Runner if setting.engine == "sanderling" else PeerRunner
    return kind(model, setting)


class Runner:
    """A session. Each sample finds the model as it was loaded: state does not pass from one to the
    next, or the figures would depend on who ran what."""

    def __init__(self, model: Model, setting: Setting) -> None:
        self.model, self.setting = model, setting
        self.session = self._session()
        self._clean = True
        self._shapes: dict[str, Shape] = {}  # of the inputs of the first run

    def _session(self) -> Session:
        setting = self.setting
        return Session(
            self.model,
            [flagged(find_delegate(name), setting.flags) for name in setting.delegates],
            setting.threads,
            options={"precision": setting.precision} if setting.precision != "f32" else {},
            **session_arguments(setting.flags),
        )

    def __call__(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        if not self._clean:
            self._reset()
        outputs = self.session.run(feeds)
        self._clean = False
        if not self._shapes:
            self._shapes = {name: np.shape(array) for name, array in feeds.items()}
        return outputs

    def ops_by_delegate(self) -> dict[str, int]:
        """Who runs how many ops, in the first run's shapes; nothing before that."""
        if not self._shapes:
            return {}
        plan = self.session.runnable_plan(*self._first())
        return ops_by_delegate(self.session, self.setting.delegates, plan)

    def idle_delegates(self) -> list[str]:
        """A sentence for each delegate that was asked for and ran nothing."""
        if not self._shapes:
            return []
        return idle_delegates(self.session, self.setting.delegates, *self._first())

    def _first(self) -> tuple[Graph, list[Shape]]:
        """What was run first: the graph, and the shapes of its inputs."""
        entry = self.session.entry(None)
        by_tensor = {t: self._shapes[name] for name, t in entry.inputs.items()}
        return entry.graph, [by_tensor[t] for t in entry.graph.inputs]

    def _reset(self) -> None:
        if self.session.has_kept:
            self.session = self._session()
        elif self.session.variables:
            self.session.reset_variables()


class PeerRunner:
    """Runs another engine, which is loaded again for shapes that it has not seen."""

    def __init__(self, model: Model, setting: Setting) -> None:
        self.model, self.setting = model, setting
        entry = model.compile().entry(None)
        by_tensor = {t: n for n, t in entry.inputs.items()}
        self.inputs = [by_tensor[t] for t in model.main.inputs]
        by_tensor = {t: n for n, t in entry.outputs.items()}
        self.outputs = [by_tensor.get(t, t.name) for t in model.main.outputs]
        self._loaded: dict[tuple[Any, ...], tuple[LoadedEngine, list[Array]]] = {}
        self._onnx = self._export() if setting.engine == "onnxruntime" else ""

    def _export(self) -> str:
        from ...delegates.engines.to_onnx import cached

        path, why = cached(Path(self.model.source))
        if not path:
            raise InputError(why, where=self.model.source, fix="choose another engine")
        return path

    def __call__(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        arrays = [np.asarray(feeds[n]) for n in self.inputs]
        loaded, buffers = self._ready(arrays)
        for buffer, array in zip(buffers, arrays, strict=True):
            buffer[...] = array
        loaded.refresh()
        loaded.reset()
        loaded.run()
        answers = [np.array(a) for a in loaded.answers()]
        return dict(zip(self.outputs, answers, strict=True))

    def ops_by_delegate(self) -> dict[str, int]:
        """Nothing: the engine is not ours, and has no delegate of ours."""
        return {}

    def idle_delegates(self) -> list[str]:
        return []

    def _ready(self, arrays: list[Array]) -> tuple[LoadedEngine, list[Array]]:
        key = tuple((a.shape, a.dtype.str) for a in arrays)
        if key not in self._loaded:
            buffers = [np.array(a) for a in arrays]
            job = replace(job_for(self.model, self.setting, buffers), onnx=self._onnx)
            self._loaded[key] = load_engine(job), buffers
        return self._loaded[key]


def warm_up(runner: Runner | PeerRunner, ports: Ports) -> None:
    """Compile, and run once on zeros: what the model cannot do shows before the first sample, and
    no sample's latency holds the compiler's."""
    if any(t.is_dynamic or not t.dtype.is_fixed_size for t in ports.inputs.values()):
        return
    runner({n: np.zeros(t.shape, t.dtype.numpy) for n, t in ports.inputs.items()})

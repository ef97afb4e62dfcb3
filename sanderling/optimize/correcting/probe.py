"""Reads the tensors within a quantised model as the numbers that they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from ...delegates.cpu.delegate import CpuDelegate
from ...ir import Array, Model, Tensor
from ...runtime.delegate import Delegate
from ...runtime.inputs import quantize_array
from ...runtime.session import Session
from .linear import own_name, reals


class Probe:
    """Runs a copy of a quantised model and reads these tensors, and its outputs, as reals under the
    names that they have in the float model. Without names it reads all tensors."""

    # Nothing of it comes again: the cache is for models that users run.
    delegates: ClassVar[Sequence[str | Delegate]] = (CpuDelegate(cache=False), "reference")

    def __init__(self, model: Model, names: Sequence[str] | None, threads: int) -> None:
        copy = model.copy()
        graph = copy.main
        # Weights that are expanded are folded into their readers, unless they are to be seen.
        made = dict.fromkeys(
            t
            for op in graph.ops
            for t in op.outputs
            if not all(i is None or i.is_constant for i in op.inputs)
        )
        # An output's own name is the outer world's; the codes behind it come first.
        inner = [t for t in made if names is None or own_name(t.name) in names]
        graph.outputs, copy.signatures = list(dict.fromkeys([*inner, *graph.outputs])), []
        self.tensors = {t.name: t for t in graph.outputs}
        self.inputs = {t.name: t for t in graph.inputs}
        self.session = Session(copy, self.delegates, threads)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        self.session.reset_variables()  # as in calibration: each sample by itself
        outputs = self.session.run(coded(self.inputs, feeds))
        found: dict[str, Array] = {}
        for name, tensor in self.tensors.items():
            if own_name(name) not in found or name == own_name(name):
                found[own_name(name)] = np.array(reals(outputs[name], tensor))
        return found


def coded(inputs: Mapping[str, Tensor], feeds: Mapping[str, Array]) -> dict[str, Array]:
    """A float model's sample in the types of a quantised model's inputs."""
    return {
        n: a if a.dtype == inputs[n].dtype.numpy else quantize_array(a, inputs[n])
        for n, a in feeds.items()
    }

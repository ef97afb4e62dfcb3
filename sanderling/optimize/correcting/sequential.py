"""Runs a quantised model op by op on real samples, so that a layer can be corrected before the next
one sees its result.

Nothing is compiled: a linear op is computed in float on the numbers that its codes stand for, and
its result is made codes again; every other op is evaluated by its definition. So changing a bias or
a rounding costs nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np

from ...ir import Array, Graph, Model, Op, Tensor
from ...ir.graph import copy_graph
from ...ops.execute import evaluate, initial_value, new_state
from ...runtime.session import Session
from ..calibration.calibrate import Observer, Progress
from .linear import CodedLinear, is_linear, reals
from .parallel import in_parallel, one_thread_each

Visit = Callable[[Op, "SequentialRun"], None]


class SequentialRun:
    """The values of some samples while the graph is run op by op."""

    def __init__(self, graph: Graph, feeds: Sequence[Mapping[str, Array]]) -> None:
        self.graph = graph
        self.values: dict[Tensor, list[Array]] = {
            t: [np.asarray(f[t.name]) for f in feeds] for t in graph.inputs
        }
        self.left = Counter(t for op in graph.ops for t in op.inputs if t is not None)
        self.samples = len(feeds)

    def run(self, visit: Visit, progress: Progress | None = None) -> None:
        """Call visit(op, run) before each linear op; it may change the op's constants. The run ends
        at the last one."""
        with one_thread_each():
            self._run(visit, progress)

    def _run(self, visit: Visit, progress: Progress | None) -> None:
        places = [i for i, op in enumerate(self.graph.ops) if is_linear(op)]
        for count in range(max(places, default=-1) + 1):
            op = self.graph.ops[count]
            if progress:
                progress("correcting", count, places[-1] + 1)
            if is_linear(op):
                visit(op, self)
            if count < places[-1]:
                self.step(op)

    def step(self, op: Op) -> None:
        """Run one op, and forget what nobody reads any more."""
        for tensor, arrays in zip(op.outputs, self.outputs(op), strict=True):
            self.values[tensor] = arrays
        for tensor in (t for t in op.inputs if t is not None):
            self.left[tensor] -= 1
            if not self.left[tensor]:
                self.values.pop(tensor, None)

    def outputs(self, op: Op) -> list[list[Array]]:
        """The op's results, by output, for each sample."""
        if is_linear(op) and not op.outputs[0].dtype.is_float:
            linear = CodedLinear(op)
            return [in_parallel(linear, self.values[linear.source])]
        if any(isinstance(a, Graph) for a in op.attrs.values()):
            return self._called(op)
        found = in_parallel(lambda i: self._evaluated(op, i), range(self.samples))
        return [list(arrays) for arrays in zip(*found, strict=True)]

    def _evaluated(self, op: Op, sample: int) -> list[Array]:
        return evaluate(op, [self._value(t, sample) for t in op.inputs], new_state())

    def _value(self, tensor: Tensor | None, sample: int) -> Array | None:
        if tensor is None or tensor.data is not None:
            return None if tensor is None else tensor.data
        return initial_value(tensor) if tensor.is_variable else self.values[tensor][sample]

    def _called(self, op: Op) -> list[list[Array]]:
        """Control flow needs its graphs, so a session runs it."""
        fed = [t for t in dict.fromkeys(op.inputs) if t is not None and not t.is_constant]
        piece, _ = copy_graph(self.graph, [op], fed, op.outputs)
        session = Session(Model([piece]), ["reference"])
        made = [session.run({t.name: self.values[t][i] for t in fed}) for i in range(self.samples)]
        return [[np.array(one[t.name]) for one in made] for t in op.outputs]

    def reals(self, tensor: Tensor) -> list[Array]:
        """A tensor's values as the numbers that they stand for."""
        return [reals(a, tensor) for a in self.values[tensor]]

    def mean(self, tensor: Tensor) -> Array:
        """The mean over samples of the numbers that a tensor's values stand for."""
        total = sum(a.astype(np.float64) for a in self.values[tensor])
        mean = np.asarray(total) / self.samples
        quant = tensor.quant
        if tensor.dtype.is_float or quant is None:
            return mean
        return np.asarray((mean - quant.zero_point) * quant.scale.astype(np.float64))


class FloatReference:
    """The float model, run in step with the quantised one."""

    def __init__(self, graph: Graph, feeds: Sequence[Mapping[str, Array]]) -> None:
        self.run, self.ops = SequentialRun(graph, feeds), iter(graph.ops)
        self.tensors = {t.name: t for t in graph.tensors}

    def reals(self, name: str) -> list[Array]:
        """The values of a tensor that is about to be read. Linear ops ask in the graph's order, so
        nothing is forgotten before."""
        tensor = self.tensors[name]
        while tensor not in self.run.values:
            self.run.step(next(self.ops))
        return self.run.values[tensor]


def mean_maps(
    observer: Observer, feeds: Iterable[Mapping[str, Array]], names: Collection[str]
) -> dict[str, Array]:
    """The mean over samples of activations, element by element."""
    sums: dict[str, Array] = {}
    count = 0
    for feed in feeds:
        count += 1
        for name, values in observer.run(feed).items():
            if name in names:
                known = sums.get(name)
                sums[name] = values.astype(np.float64) if known is None else known + values
    return {name: total / count for name, total in sums.items()}

"""Walks a quantised model op by op on real samples, so that a layer can be corrected before the
next one sees its result.

Nothing is compiled: a layer with weights is computed in float on the numbers that its codes stand
for, and its result is made codes again, which is at most one unit from what an integer kernel
gives; every other op is evaluated by its definition. Changing a bias or a rounding costs nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np

from ..ir import Array, DType, Graph, Model, Op, Tensor
from ..ir.graph import copy_graph
from ..ops.execute import evaluate, initial_value, new_state
from ..runtime.session import Session
from .calibrate import Progress, Watcher
from .rules import RULES
from .threads import in_parallel, one_thread_each

Visit = Callable[[Op, "Walk"], None]


def is_layer(op: Op) -> bool:
    """One product with constant weights, and a bias."""
    row = RULES.get(op.name)
    if row is None or len(row.weights) != 1 or row.bias is None:
        return False
    weights = op.input(next(iter(row.weights)))
    return weights is not None and weights.data is not None


class Product:
    """A layer in float. bare: its sums alone, without bias and activation."""

    def __init__(self, op: Op, bare: bool = False) -> None:
        self.row, self.bare = RULES[op.name], bare
        source = op.inputs[self.row.data[0]]
        assert source is not None
        piece, _ = copy_graph(Graph(), [op], [source], op.outputs)
        self.op = piece.ops[0]
        self.place = next(iter(self.row.weights))
        if bare:
            self.op.attrs["fused_activation_function"] = "NONE"
        self.rest = [None if t is None else t.data for t in self.op.inputs]
        for i in (*self.row.data, self.place, self.row.bias):
            tensor = None if i is None else self.op.input(i)
            if tensor is not None:
                tensor.dtype, tensor.quant = DType.FLOAT32, None
        self.op.outputs[0].dtype, self.op.outputs[0].quant = DType.FLOAT32, None

    def __call__(self, source: Array, weights: Array, bias: Array | None = None) -> Array:
        inputs = list(self.rest)
        inputs[self.row.data[0]] = source.astype(np.float32, copy=False)
        inputs[self.place] = weights.astype(np.float32, copy=False)
        assert self.row.bias is not None
        if len(inputs) > self.row.bias:
            inputs[self.row.bias] = None if bias is None else bias.astype(np.float32)
        return evaluate(self.op, inputs, new_state())[0]


def reals(codes: Array, tensor: Tensor) -> Array:
    """The numbers that a tensor's codes stand for."""
    quant = tensor.quant
    if codes.dtype.kind == "f" or quant is None or not quant.scale.size:
        return codes
    shape = [1] * codes.ndim
    if quant.scale.size > 1:
        shape[quant.axis] = -1
    zero = quant.zero_point.astype(np.float32).reshape(shape)
    return np.asarray((codes.astype(np.float32) - zero) * quant.scale.reshape(shape))


def codes(values: Array, tensor: Tensor) -> Array:
    """Numbers as a tensor's codes; one scale for all of it."""
    quant = tensor.quant
    if tensor.dtype.is_float or quant is None:
        return values
    made = np.rint(values * np.float32(1 / float(quant.scale[0])))
    made += int(quant.zero_point[0])
    return np.clip(made, *tensor.dtype.bounds, out=made).astype(tensor.dtype.numpy)


class Walk:
    """The values of some samples while the graph is run op by op."""

    def __init__(self, graph: Graph, feeds: Sequence[Mapping[str, Array]]) -> None:
        self.graph = graph
        self.values: dict[Tensor, list[Array]] = {
            t: [np.asarray(f[t.name]) for f in feeds] for t in graph.inputs
        }
        self.left = Counter(t for op in graph.ops for t in op.inputs if t is not None)
        self.samples = len(feeds)

    def run(self, visit: Visit, progress: Progress | None = None) -> None:
        """visit(op, walk) before each layer; it may change the op's constants. The walk ends at the
        last one."""
        with one_thread_each():
            self._run(visit, progress)

    def _run(self, visit: Visit, progress: Progress | None) -> None:
        places = [i for i, op in enumerate(self.graph.ops) if is_layer(op)]
        for count in range(max(places, default=-1) + 1):
            op = self.graph.ops[count]
            if progress:
                progress("correcting", count, places[-1] + 1)
            if is_layer(op):
                visit(op, self)
            if count < places[-1]:
                self.step(op)

    def step(self, op: Op) -> None:
        """Run one op; what nobody reads any more is forgotten."""
        for tensor, arrays in zip(op.outputs, self.outputs(op), strict=True):
            self.values[tensor] = arrays
        for tensor in (t for t in op.inputs if t is not None):
            self.left[tensor] -= 1
            if not self.left[tensor]:
                self.values.pop(tensor, None)

    def outputs(self, op: Op) -> list[list[Array]]:
        """The op's results, by output, for each sample."""
        if is_layer(op) and not op.outputs[0].dtype.is_float:
            return [self._layer(op)]
        if any(isinstance(a, Graph) for a in op.attrs.values()):
            return self._called(op)
        found = in_parallel(lambda i: self._evaluated(op, i), range(self.samples))
        return [list(arrays) for arrays in zip(*found, strict=True)]

    def _layer(self, op: Op) -> list[Array]:
        product, row, out = Product(op), RULES[op.name], op.outputs[0]
        source, weights = op.inputs[row.data[0]], op.inputs[product.place]
        bias = op.input(row.bias) if row.bias is not None else None
        assert source is not None and weights is not None and weights.data is not None
        real_weights = reals(weights.data, weights)
        real_bias = None if bias is None or bias.data is None else real_bias_of(bias)
        return in_parallel(
            lambda x: codes(product(reals(x, source), real_weights, real_bias), out),
            self.values[source],
        )

    def _evaluated(self, op: Op, sample: int) -> list[Array]:
        return evaluate(op, [self._value(t, sample) for t in op.inputs], new_state())

    def _value(self, tensor: Tensor | None, sample: int) -> Array | None:
        if tensor is None or tensor.data is not None:
            return None if tensor is None else tensor.data
        return initial_value(tensor) if tensor.is_variable else self.values[tensor][sample]

    def _called(self, op: Op) -> list[list[Array]]:
        """Control flow needs its graphs: a session runs it."""
        fed = [t for t in dict.fromkeys(op.inputs) if t is not None and not t.is_constant]
        piece, _ = copy_graph(self.graph, [op], fed, op.outputs)
        session = Session(Model([piece]), ["reference"])
        made = [session.run({t.name: self.values[t][i] for t in fed}) for i in range(self.samples)]
        return [[np.array(one[t.name]) for one in made] for t in op.outputs]

    def reals(self, tensor: Tensor) -> list[Array]:
        """A tensor's values as the numbers they stand for."""
        return [reals(a, tensor) for a in self.values[tensor]]

    def mean(self, tensor: Tensor) -> Array:
        """Over samples, of the numbers they stand for."""
        total = sum(a.astype(np.float64) for a in self.values[tensor])
        mean = np.asarray(total) / self.samples
        quant = tensor.quant
        if tensor.dtype.is_float or quant is None:
            return mean
        return np.asarray((mean - quant.zero_point) * quant.scale.astype(np.float64))


class Beside:
    """The float model, walked in step with the quantised one."""

    def __init__(self, graph: Graph, feeds: Sequence[Mapping[str, Array]]) -> None:
        self.walk, self.ops = Walk(graph, feeds), iter(graph.ops)
        self.tensors = {t.name: t for t in graph.tensors}

    def reals(self, name: str) -> list[Array]:
        """Of a tensor that is about to be read. Layers are asked for in the graph's order, so
        nothing is forgotten before."""
        tensor = self.tensors[name]
        while tensor not in self.walk.values:
            self.walk.step(next(self.ops))
        return self.walk.values[tensor]


def real_bias_of(bias: Tensor) -> Array:
    assert bias.data is not None and bias.quant is not None
    return np.asarray(bias.data.astype(np.float64) * bias.quant.scale.astype(np.float64))


def mean_maps(watcher: Watcher, feeds: Iterable[Mapping[str, Array]],
              names: Collection[str]) -> dict[str, Array]:  # fmt: skip
    """The mean over samples of activations, element by element."""
    sums: dict[str, Array] = {}
    count = 0
    for feed in feeds:
        count += 1
        for name, values in watcher.run(feed).items():
            if name in names:
                known = sums.get(name)
                sums[name] = values.astype(np.float64) if known is None else known + values
    return {name: total / count for name, total in sums.items()}

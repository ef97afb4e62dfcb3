"""A model that is run one op at a time, so that every tensor can be seen, and replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...ir import Array, Graph, Model, Op, Shape, Tensor
from ...measure.record import Setting
from ...passes.simplify import fold_constants
from ...runtime.delegate import Delegate
from ...runtime.partition import has_state
from ...runtime.plan import Step, has_storage
from ...runtime.session import Session
from ...runtime.specialise import specialise
from ..setting_delegates import delegates_of

Values = dict[Tensor, Array]
# What is to be used for a tensor instead of what was computed.
Force = Callable[[Tensor, Array], Array]


def own_graph(model: Model, shapes: Sequence[Shape] | None = None) -> Model:
    """A copy at these input shapes whose main graph has no op of constants alone (stored weights
    are expanded) and whose ops carry their place in the file as `debug_index`, which survives every
    further copy. The shapes that a file states of its inner tensors need not be true (a converter
    leaves them empty where they are computed in the run), so they are worked out first: a SHAPE
    would be folded to what the file says."""
    graph, _ = specialise(model.main, shapes or [t.shape for t in model.main.inputs])
    for place, op in enumerate(graph.ops):
        op.debug_index = place
    fold_constants(graph)
    return Model([graph, *model.graphs[1:]], source=model.source)


@dataclass(eq=False)
class RunnableOp:
    """One op as it is run: its step, and the graph's own tensors at its border."""

    op: Op
    step: Step
    inputs: list[Tensor]
    outputs: list[Tensor]

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        made: list[Array | None] = [
            np.empty(t.shape, t.dtype.numpy) if has_storage(t) else None for t in self.step.outputs
        ]
        self.step.executable.run(inputs, made)
        return [a for a in made if a is not None]


class OpByOpRunner:
    """Runs `graph`, whose tensors are the keys of everything here."""

    def __init__(
        self,
        model: Model,
        setting: Setting,
        delegates: Sequence[Delegate] | None = None,
        shapes: Sequence[Shape] | None = None,
    ) -> None:
        self.model = own_graph(model, shapes)
        self.graph: Graph = self.model.main
        self.folded = len(model.main.ops) - len(self.graph.ops)  # computed before the run
        self.setting = setting
        self.session = Session(
            self.model,
            delegates or delegates_of(setting),
            setting.threads,
            preserve_all_tensors=True,
        )
        self.nodes: list[RunnableOp] = []
        self.variables: Values = {}
        self.has_state = any(has_state(op) for op in self.graph.ops)

    def prepare(self, feeds: Sequence[Array]) -> None:
        """Compile for the shapes of these inputs."""
        plan = self.session.plan(self.graph, [a.shape for a in feeds])
        origin = {twin: tensor for tensor, twin in plan.twins.items()}
        ops = {op.debug_index: op for op in self.graph.ops}
        self.variables = {origin[t]: a for t, a in plan.variables.items()}
        self.nodes = [
            RunnableOp(
                ops[s.part.ops[0].debug_index],
                s,
                [origin[t] for t in s.inputs],
                [origin[t] for t in s.outputs],
            )
            for s in plan.steps
        ]

    def run(self, feeds: Sequence[Array], force: Force | None = None) -> Values:
        """Every tensor's value. force is asked after each op for what the next ones shall read."""
        if not self.nodes:
            self.prepare(feeds)
        values = self.start(feeds)
        for node in self.nodes:
            for tensor, array in zip(node.outputs, self.step(node, values), strict=True):
                values[tensor] = array if force is None else force(tensor, array)
        return values

    @staticmethod
    def value(tensor: Tensor, values: Mapping[Tensor, Array]) -> Array:
        """Return the value of a tensor, also of a constant, which no op computes."""
        found = values.get(tensor)
        return tensor.values if found is None else found

    def start(self, feeds: Sequence[Array]) -> Values:
        return dict(zip(self.graph.inputs, feeds, strict=True)) | self.variables

    def step(self, node: RunnableOp, values: Mapping[Tensor, Array]) -> list[Array]:
        with np.errstate(all="ignore"):
            return node.run([values[t] for t in node.inputs])

    def producers(self) -> Iterator[tuple[Tensor, RunnableOp]]:
        for node in self.nodes:
            for tensor in node.outputs:
                yield tensor, node

"""Plans on disk: what a file's graph became, at these shapes, on these delegates.

A record holds the tensors that cross a border and, for each step, the name under which its delegate
keeps what it compiled. A session that starts from it reads no op, verifies, infers and partitions
nothing. It stands for the content of a file: a model that was changed in memory has none.

A delegate takes part if it has an `identity`, and can `restore` an executable from the `key` that
the first one had.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..config import MAX_MEMORY
from ..format import known_models
from ..ir import DType, Graph, Model, Op, Shape, Tensor
from ..spans import tape
from ..store import Store
from .delegate import Executable, as_executable
from .partition import Part, Partition
from .plan import Plan, Step, has_storage, plan_borders
from .settings import Settings


class PlanStore:
    """The records of plans that one session's settings lead to."""

    def __init__(self, settings: Settings) -> None:
        self.delegates, self.threads = settings.delegates, settings.threads
        self.limits = limits = settings.limits
        self.store = Store()
        identities = [d.identity for d in self.delegates]
        hidden = limits.single_ops  # those who look at all tensors want whole plans
        self.is_on = self.store.folder is not None and None not in identities and not hidden
        self._about = identities, limits, (settings.require_full, sorted(settings.extra.items()))

    def _name(self, content: str, place: int, shapes: Sequence[Shape], traced: bool) -> str:
        """traced: it is a plan for runs that are recorded."""
        about = *self._about, MAX_MEMORY.size(), traced
        return self.store.name("plan", content, place, shapes, about) + ".plan"

    def recall(self, model: Model, graph: Graph, shapes: Sequence[Shape]) -> Plan | None:
        """The plan, if the model is as its file says and everything is still there."""
        content = known_models.content_of(model) if self.is_on else ""
        if not content or graph not in model.graphs:
            return None
        traced = tape.recorder is not None
        name = self._name(content, model.graphs.index(graph), shapes, traced)
        made = self.store.recall(name, lambda found: [self._restored(graph, shapes, found)])
        return None if made is None else made[0]

    def _restored(
        self, graph: Graph, shapes: Sequence[Shape], found: dict[str, Any]
    ) -> Plan | None:
        tensors = [Tensor(name, DType[dtype], shape) for name, dtype, shape in found["tensors"]]

        def pick(places: Sequence[int]) -> list[Tensor]:
            return [tensors[i] for i in places]

        # One op stands for each part: nobody asks it what it does.
        shell = Graph(graph.name, pick(found["inputs"]), pick(found["outputs"]), tensors=tensors)
        _check_border(graph, shapes, shell)
        steps = []
        for who, key, inputs, outputs, nodes in found["steps"]:
            restored = self.delegates[who].restore(key, self.threads)
            if restored is None:
                return None
            executable = as_executable(restored)
            executable.nodes = nodes
            op = Op("compiled", pick(inputs), pick(outputs))
            _check_sizes(executable, [*op.inputs, *op.outputs])
            shell.append(op)
            part = Part(self.delegates[who], [op], pick(inputs), pick(outputs), nodes)
            steps.append(Step(part, executable, part.inputs, part.outputs))
        arena = plan_borders(shell, steps, self.limits.single_ops)
        twins = dict(
            zip((*graph.inputs, *graph.outputs), (*shell.inputs, *shell.outputs), strict=True)
        )
        return Plan(
            shell, Partition([s.part for s in steps], {}), steps, arena, twins, is_whole=False
        )

    def keep(
        self, model: Model, content: str, graph: Graph, shapes: Sequence[Shape], made: Plan
    ) -> None:
        """Record a plan that was just made of this graph. content: the model's digest, or ""."""
        if not self.is_on or graph not in model.graphs or model.file is None:
            return
        row = self._row(made)
        content = content or (_content(model) if row else "")
        # A recording may have begun or ended while parts were compiled.
        told = {s.executable.traced for s in made.steps} - {None} or {made.is_traced}
        if row and content and len(told) == 1:
            name = self._name(content, model.graphs.index(graph), shapes, told == {True})
            self.store.record(name, row)

    def _row(self, made: Plan) -> dict[str, Any] | None:
        """A plan as a record; None where it holds what a record cannot say."""
        steps = made.steps
        keys = [s.executable.key for s in steps]
        border = dict.fromkeys((*made.graph.inputs, *made.graph.outputs))
        border |= dict.fromkeys(t for s in steps for t in (*s.inputs, *s.outputs))
        if not all(keys) or made.variables or made.resources or not all(map(has_storage, border)):
            return None
        place = {t: i for i, t in enumerate(border)}
        whose = [self.delegates.index(s.part.delegate) for s in steps]
        sides = [[[place[t] for t in side] for side in (s.inputs, s.outputs)] for s in steps]
        nodes = [s.part.nodes for s in steps]
        return {
            "tensors": [[t.name, t.dtype.name, t.shape] for t in border],
            "inputs": [place[t] for t in made.graph.inputs],
            "outputs": [place[t] for t in made.graph.outputs],
            "steps": [[w, k, *s, n] for w, k, s, n in zip(whose, keys, sides, nodes, strict=True)],
        }


def _check_border(graph: Graph, shapes: Sequence[Shape], shell: Graph) -> None:
    """A record's inputs and outputs are the graph's, of the shapes that are asked for."""
    sides = ((graph.inputs, shell.inputs), (graph.outputs, shell.outputs))
    same = all([t.dtype for t in a] == [t.dtype for t in b] for a, b in sides)
    if not same or [tuple(s) for s in shapes] != [t.shape for t in shell.inputs]:
        raise ValueError("it is not of this graph")


def _check_sizes(executable: Executable, border: Sequence[Tensor | None]) -> None:
    """Code reads and writes as many bytes as it was made for."""
    sizes = executable.sizes
    if sizes is not None and list(sizes) != [t.dtype.nbytes(t.shape) for t in border if t]:
        raise ValueError("its tensors are not those of its code")


def _content(model: Model) -> str:
    """The digest of the file that says just what this model does now, remembered from here on; ""
    if it was changed in memory."""
    from ..format.load import Loader
    from ..ir.compare import models_equal

    assert model.file is not None, "plans are kept of models from files"
    record = known_models.describe(model)
    if record is None or models_equal(model, Loader(model.file, model.source, {}).model()):
        return ""
    return known_models.keep(model.file, model.source, record)

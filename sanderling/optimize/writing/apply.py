"""A recipe applied to a model: each of its graphs is solved and rewritten."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...errors import InputError
from ...ir import Buffer, DType, Graph, Model, Tensor
from ...ir.verify import verify
from ..calibration.calibrate import Calibration
from ..calibration.nested import UNTAKEN
from ..calibration.ranges import method_of
from ..modes.recipe import Choice, all_modes
from ..modes.scheme import Floats, Grid, Range, RangeOf
from .interface import Interface, open_inputs
from .solve import Solution, solve
from .write import WeightOptions, Writer, Written

SHARED_BYTES = 256  # constants of fewer bytes are not worth a look
INTERFACE = {
    "float32": DType.FLOAT32,
    "int8": DType.INT8,
    "uint8": DType.UINT8,
    "int16": DType.INT16,
}


@dataclass
class Quantised:
    """A model with codes, and how it came about."""

    model: Model
    solution: Solution
    written: Written
    float_model: Model  # with the same names and, where channels were equalised, the same sizes
    calibration: Calibration  # of that float model
    factors: dict[str, Floats] = field(default_factory=dict)  # what divided its channels, by tensor


@dataclass
class Quantiser:
    """Quantises one float model, several times if asked: ranges are found once."""

    float_model: Model
    recipe: list[Choice]
    calibration: Calibration = field(default_factory=Calibration)
    ranges: str = "minmax"
    weights: WeightOptions = field(default_factory=WeightOptions)
    inputs: str = "float32"
    outputs: str = "float32"
    # Changes the scales that were found, before anything is written: training has learnt others.
    settle: Callable[[Sequence[Solution]], None] | None = None

    def __post_init__(self) -> None:
        for what in (self.inputs, self.outputs):
            if what not in INTERFACE:
                raise InputError(
                    f"an input or output cannot be {what}", fix=f"one of {', '.join(INTERFACE)}"
                )
        self._cache: dict[tuple[str, Grid], Range | None] = {}
        self._method = method_of(self.ranges)

    def range_of(self, tensor: Tensor, grid: Grid) -> Range | None:
        """What the tensor's codes must represent: a constant's own values, else what was seen."""
        if tensor.data is not None:
            return float(tensor.data.min(initial=0)), float(tensor.data.max(initial=0))
        key = tensor.name, grid
        if key not in self._cache:
            known = self.calibration.tensors
            found = known.get(tensor.name) or known.get(tensor.name + UNTAKEN)
            self._cache[key] = self._method(found, grid) if found and found.seen else None
        return self._cache[key]

    def run(self) -> Quantised:
        """Write the quantised model, anew from the float one each time."""
        model = self.float_model.copy()
        solution, written = rewrite(
            model,
            self.recipe,
            self.range_of,
            self.weights,
            INTERFACE[self.inputs],
            INTERFACE[self.outputs],
            self.settle,
        )
        verify(model)
        return Quantised(model, solution, written, self.float_model, self.calibration)


def solve_model(model: Model, recipe: Sequence[Choice], ranges: RangeOf) -> list[Solution]:
    """Solve each graph of the model."""
    chosen = all_modes(model.graphs, recipe)
    return [solve(g, {op: chosen[op] for op in g.ops}, ranges) for g in model.graphs]


def together(solutions: Sequence[Solution]) -> Solution:
    """Join the solutions of a model's graphs, for reports."""
    whole = Solution({}, {})
    for one in solutions:
        whole.modes |= one.modes
        whole.reasons |= one.reasons
        whole.home |= one.home
        whole.groups |= one.groups
        whole.apart |= one.apart
    return whole


def rewrite(
    model: Model,
    recipe: Sequence[Choice],
    ranges: RangeOf,
    weights: WeightOptions,
    inputs: DType = DType.FLOAT32,
    outputs: DType = DType.FLOAT32,
    settle: Callable[[Sequence[Solution]], None] | None = None,
) -> tuple[Solution, Written]:
    """Quantise the model in place. Graphs that others call keep a float interface."""
    solutions = solve_model(model, recipe, ranges)
    if settle is not None:
        settle(solutions)
    whole = Written()
    _check_interface(solutions, inputs, outputs)
    for graph, solution in zip(model.graphs, solutions, strict=True):
        ends = (inputs, outputs) if _is_entry(model, graph) else (DType.FLOAT32, DType.FLOAT32)
        if ends[0] is not DType.FLOAT32:
            open_inputs(graph, solution, inputs, ranges)
        writer = Writer(graph, solution, weights, ranges)
        written = writer.run()
        Interface(model, writer, ranges).finish(*ends)
        graph.prune()
        whole.weights |= written.weights
        whole.became |= written.became
        whole.reasons |= written.reasons
        whole.repaired += written.repaired
    _share(model)
    return together(solutions), whole


def _is_entry(model: Model, graph: Graph) -> bool:
    return graph is model.main or any(s.graph is graph for s in model.signatures)


def _check_interface(solutions: Sequence[Solution], inputs: DType, outputs: DType) -> None:
    asked = inputs is not DType.FLOAT32 or outputs is not DType.FLOAT32
    if asked and not any(m.is_integer for s in solutions for m in s.modes.values()):
        raise InputError(
            "integer inputs and outputs need an integer mode, and no op has one",
            where="--inputs, --outputs",
            fix="mode int8 or int16x8, or leave the interface float32",
        )


def _share(model: Model) -> None:
    """Store equal constants of several graphs once."""
    known: dict[bytes, Buffer] = {}
    for graph in model.graphs:
        for tensor in graph.constants:
            buffer = tensor.buffer
            if buffer is None or buffer.external is not None or len(buffer) < SHARED_BYTES:
                continue
            if len(model.graphs) > 1:
                tensor.buffer = known.setdefault(bytes(buffer.raw), buffer)

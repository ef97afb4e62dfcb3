"""A model's inputs and outputs as the types that the user asked for, under their own names."""

from __future__ import annotations

from ...ir import DType, Graph, Model, Op, Quant, Tensor
from ..modes.scheme import Grid, RangeOf
from .solve import FLOAT, DomainValue, ScaleGroup, Solution
from .write import Writer

GRIDS = {
    DType.INT8: Grid(8, symmetric=False),
    DType.UINT8: Grid(8, symmetric=False),
    DType.INT16: Grid(16, symmetric=True),
}


def open_inputs(graph: Graph, solution: Solution, dtype: DType, ranges: RangeOf) -> None:
    """Let inputs be fed as codes: they live in that domain, and readers of another convert."""
    grid = GRIDS[dtype]
    for tensor in graph.inputs:
        if tensor.dtype is not DType.FLOAT32:
            continue
        value = DomainValue(tensor, grid.bits)
        if value not in solution.groups:
            quant = grid.quant(*(ranges(tensor, grid) or (0.0, 0.0)))
            solution.groups[value] = ScaleGroup([value], quant=quant)
        solution.home[tensor] = grid.bits


class Interface:
    """The ends of one written graph."""

    def __init__(self, model: Model, writer: Writer, ranges: RangeOf) -> None:
        self.model, self.writer, self.ranges = model, writer, ranges
        self.graph, self.home = writer.graph, writer.solution.home

    def finish(self, inputs: DType, outputs: DType) -> None:
        fed = list(self.graph.inputs)
        names = {t: t.name for t in (*fed, *self.graph.outputs)}
        reals = {t for t in names if t.dtype is DType.FLOAT32 or self.home.get(t, FLOAT)}
        new_inputs = {t: self._input(t, inputs) for t in fed if t in reals}
        self.graph.inputs = [new_inputs.get(t, t) for t in fed]
        new_outputs = {
            t: self._output(t, outputs, names[t])
            for t in dict.fromkeys(self.graph.outputs)
            if t in reals
        }
        self.graph.outputs = [new_outputs.get(t, t) for t in self.graph.outputs]
        for signature in self.model.signatures:
            if signature.graph is self.graph:
                for ends, new in ((signature.inputs, new_inputs), (signature.outputs, new_outputs)):
                    ends.update({k: new.get(t, t) for k, t in ends.items()})

    def _input(self, tensor: Tensor, dtype: DType) -> Tensor:
        if dtype is not DType.UINT8 or not self.home.get(tensor, FLOAT):
            return tensor
        outer = self._tensor(tensor.name, tensor, DType.UINT8, unsigned(tensor.quantisation))
        tensor.name = f"{tensor.name}/i8"
        first = self.graph.ops[0] if self.graph.ops else None
        self.graph.insert(Op("QUANTIZE", [outer], [tensor]), before=first)
        return outer

    def _output(self, tensor: Tensor, dtype: DType, name: str) -> Tensor:
        """The value in the asked type: the tensor itself, or one made of it that takes its name."""
        made = self._codes(tensor, dtype) or self._float(tensor)
        return tensor if made is tensor else self._named(made, tensor, name)

    def _float(self, tensor: Tensor) -> Tensor:
        coded = self.home.get(tensor, FLOAT)
        return self.writer.as_float(tensor, None) if coded else tensor

    def _codes(self, tensor: Tensor, dtype: DType) -> Tensor | None:
        """The value as codes of this type; None where it is float, or nothing is known of it."""
        grid = GRIDS.get(dtype)
        if grid is None:
            return None
        made, known = tensor, self.ranges(tensor, grid)
        if self.home.get(tensor, FLOAT) != grid.bits:
            if known is None:
                return None
            made = self._quantize(tensor, grid.dtype, grid.quant(*known))
        if dtype is DType.UINT8:
            made = self._quantize(made, dtype, unsigned(made.quantisation))
        return made

    def _quantize(self, source: Tensor, dtype: DType, quant: Quant) -> Tensor:
        made = self._tensor(f"{source.name}/{dtype.short}", source, dtype, quant)
        version = 2 if DType.INT16 in (dtype, source.dtype) else 1
        self.graph.insert(Op("QUANTIZE", [source], [made], version=version))
        return made

    def _tensor(self, name: str, like: Tensor, dtype: DType, quant: Quant) -> Tensor:
        return self.graph.tensor(name, dtype, like.shape, signature=like.signature, quant=quant)

    def _named(self, made: Tensor, inner: Tensor, name: str) -> Tensor:
        """Give the name to the tensor that the user sees, and a longer one to the tensor within. An
        input keeps its own."""
        if any(inner is t or t.name == name for t in self.graph.inputs):
            made.name = f"{name}/out"
            return made
        inner.name, made.name = f"{name}/{inner.dtype.short}", name
        return made


def unsigned(quant: Quant) -> Quant:
    """The same values as uint8 codes."""
    return Quant.of(quant.scale, quant.zero_point + 128)

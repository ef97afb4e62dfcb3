"""The differentiable twin of a graph: a PyTorch module that computes what the file does.

    twin = Twin(model)
    logits, = twin(pictures)          # arrays in TFLite's layouts, batch first
    ...                               # any PyTorch optimiser on twin.parameters()
    trained = twin.written()          # the same file, other weights

Float constants are parameters under the names of their tensors. An op without a gradient is run by
its definition and passes none on: `twin.frozen` names such ops with the reasons.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...errors import InputError, SanderlingError
from ...ir import Array, DType, Graph, Model, Op, Tensor
from ...ir.expr import Expr, simplify
from ...ops.execute import evaluate as define
from ...ops.execute import new_state
from .elementwise import TYPES, evaluate
from .functions import FUNCTIONS, cannot
from .recurrent import RECURRENT

if TYPE_CHECKING:
    from ..constraint import Constraint


Values = dict[Tensor, torch.Tensor]
ALL_FUNCTIONS = FUNCTIONS | RECURRENT
CONTROL = ("IF", "STABLEHLO_CASE", "STABLEHLO_COMPOSITE", "WHILE")


class Twin(torch.nn.Module):  # type: ignore[misc]  # PyTorch is an extra: unknown here
    """The main graph of a model. The model itself is not changed."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model.copy()
        self.graph: Graph = self.model.main
        graphs = _called_graphs(self.graph)
        self._computed = {t: a for graph in graphs for t, a in _computed_constants(graph).items()}
        self.frozen: dict[str, str] = {}
        self.parameters_of: dict[Tensor, torch.nn.Parameter] = {}
        self._elementwise: dict[Op, Expr] = {}
        self.constraints: Sequence[Constraint] = ()
        for op in (op for graph in graphs for op in graph.ops):
            self._adopt(op)

    def check_trainable(self) -> None:
        """Raise InputError if there is nothing to train."""
        if not self.parameters_of:
            raise InputError(
                "nothing can be trained: no float constant is read by an op with a gradient",
                where=f"graph '{self.graph.name}'",
                fix="give a float model; a quantised one has to be trained before it is quantised",
            )

    def _adopt(self, op: Op) -> None:
        """Parameters for the op's weights, or the reason why it has none."""
        if all(t in self._computed for t in op.outputs):
            return
        is_known = op.name in CONTROL or op.name in ALL_FUNCTIONS
        reason = None if op.name in CONTROL else cannot(op, ALL_FUNCTIONS)
        if reason is None and not is_known:
            reason = self._lower(op)
        if reason is not None:
            self.frozen[op.where] = reason
            return
        for tensor in op.inputs:
            if tensor is not None and _is_weight(tensor, self._computed):
                self._parameter(tensor)

    def _lower(self, op: Op) -> str | None:
        from ...delegates.cpu.kernels.elementwise.operands import Lowered, Refused
        from ...delegates.cpu.kernels.elementwise.operators import EXPRESSIONS

        try:
            found = EXPRESSIONS[op.name](op)
        except Refused as refused:
            return str(refused)
        except SanderlingError as error:
            return error.what
        if isinstance(found, Lowered):
            return "its operands are arranged for the compiler"
        self._elementwise[op] = simplify(found)
        return None

    def _parameter(self, tensor: Tensor) -> None:
        if tensor in self.parameters_of:
            return
        parameter = torch.nn.Parameter(torch.from_numpy(np.array(self._data(tensor), np.float32)))
        self.parameters_of[tensor] = parameter
        self.register_parameter(self._legal(tensor.name), parameter)

    def _legal(self, name: str) -> str:
        """A name that PyTorch takes for a parameter: no other one's, and no method's."""
        plain = name.replace(".", "/") or "unnamed"
        while hasattr(self, plain):
            plain += "'"
        return plain

    @property
    def weights(self) -> dict[str, torch.nn.Parameter]:
        """Parameters by the names of their tensors."""
        return {tensor.name: value for tensor, value in self.parameters_of.items()}

    def constrained(self, tensor: Tensor, weight: torch.Tensor) -> torch.Tensor:
        """A weight as the forward pass sees it."""
        for constraint in self.constraints:
            weight = constraint.applied(tensor, weight)
        return weight

    # -- running ----------------------------------------------------------------------------------

    def forward(self, *inputs: Any) -> list[torch.Tensor]:
        """The graph's outputs, in order, for its inputs, in order: tensors or arrays."""
        return self.outputs_and(inputs, [])[0]

    def outputs_and(
        self, inputs: Sequence[Any], inner: Sequence[Tensor]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The outputs, and some tensors within the graph."""
        if len(inputs) != len(self.graph.inputs):
            names = ", ".join(f"'{t.name}'" for t in self.graph.inputs)
            raise InputError(
                f"{len(inputs)} inputs were given for {names}", fix="give one for each"
            )
        values = {t: self.constrained(t, weight) for t, weight in self.parameters_of.items()}
        for tensor, given in zip(self.graph.inputs, inputs, strict=True):
            values[tensor] = torch.as_tensor(given).to(TYPES[tensor.dtype])
        self._evaluate(self.graph, values)
        outputs = [self._value(t, values) for t in self.graph.outputs]
        return outputs, [self._value(t, values) for t in inner]

    def _evaluate(self, graph: Graph, values: Values) -> None:
        """Add the results of the graph's ops to the values of its inputs and weights."""
        for op in graph.ops:
            if op.outputs and all(t in self._computed for t in op.outputs):
                continue
            found = self._computed_by(op, self._operands(op, values), values)
            for tensor, value in zip(op.outputs, found, strict=True):
                for constraint in self.constraints:
                    value = constraint.activation(tensor, value)
                values[tensor] = value

    def _called(
        self, graph: Graph, arguments: Sequence[torch.Tensor | None], values: Values
    ) -> list[torch.Tensor]:
        """The outputs of a graph that an op calls. Weights are known to it, what the caller has
        computed is not."""
        own = {t: values[t] for t in self.parameters_of}
        own |= {t: a for t, a in zip(graph.inputs, arguments, strict=True) if a is not None}
        self._evaluate(graph, own)
        return [self._value(t, own) for t in graph.outputs]

    def _control(
        self, op: Op, tensors: list[torch.Tensor | None], values: Values
    ) -> list[torch.Tensor]:
        """A branch, a loop or a graph under a name: what is taken is decided by the values, and is
        learnt through."""
        if op.name == "STABLEHLO_COMPOSITE":
            return self._called(op.attrs["decomposition_subgraph_index"], tensors, values)
        if op.name != "WHILE":
            return self._called(_branch(op, _first(tensors[0])), tensors[1:], values)
        now = [t for t in tensors if t is not None]
        while bool(_first(self._called(op.attrs["cond_subgraph_index"], now, values)[0])):
            now = self._called(op.attrs["body_subgraph_index"], now, values)
        return now

    def _operands(self, op: Op, values: dict[Tensor, torch.Tensor]) -> list[torch.Tensor | None]:
        found: list[torch.Tensor | None] = []
        for place, tensor in enumerate(op.inputs):
            if tensor is None:
                found.append(None)
                continue
            value = self._value(tensor, values)
            for constraint in self.constraints:
                value = constraint.operand(op, place, value)
            found.append(value)
        return found

    def _computed_by(
        self, op: Op, tensors: list[torch.Tensor | None], values: Values
    ) -> list[torch.Tensor]:
        """The results, of a constraint that computes the op in its own way or of the op itself."""
        if op.name in CONTROL:
            return self._control(op, tensors, values)
        for constraint in self.constraints:
            found = constraint.computed(op, tensors)
            if found is not None:
                return found
        return self._run(op, tensors)

    def _value(self, tensor: Tensor, values: Values) -> torch.Tensor:
        if tensor.is_variable and tensor not in values:
            return torch.zeros(tuple(tensor.shape), dtype=TYPES[tensor.dtype])
        if tensor not in values:
            values[tensor] = torch.from_numpy(np.array(self._data(tensor)))
        return values[tensor]

    def _data(self, tensor: Tensor) -> Array:
        """The values of a constant, or of what is computed from constants alone."""
        found = self._computed.get(tensor)
        return tensor.values if found is None else found

    def _run(self, op: Op, tensors: list[torch.Tensor | None]) -> list[torch.Tensor]:
        if op in self._elementwise:
            return [evaluate(self._elementwise[op], tensors)]
        if op.where not in self.frozen:
            return ALL_FUNCTIONS[op.name](op, tensors)
        arrays = [None if t is None else t.detach().numpy() for t in tensors]
        return [torch.from_numpy(np.array(a)) for a in define(op, arrays, new_state())]

    # -- writing ----------------------------------------------------------------------------------

    def written(self) -> Model:
        """The model with the weights as they are now; nothing else is changed. A weight that the
        file keeps in 16 bits, or behind other constant ops, is rounded to what it keeps."""
        made = self.model.copy()
        pairs = zip(self.model.graphs, made.graphs, strict=True)
        twins = {t: u for a, b in pairs for t, u in zip(a.tensors, b.tensors, strict=True)}
        for tensor, value in self.parameters_of.items():
            home = _stored(twins[tensor])
            if home is None:
                raise InputError(
                    "the file computes this weight from others, and it cannot be written back",
                    where=f"tensor '{tensor.name}'",
                    fix="fold it first: sanderling.passes, pipeline 'constants'",
                )
            data = value.detach().numpy()
            home.data = data.reshape(home.shape).astype(home.dtype.numpy)
        return made


def _called_graphs(graph: Graph) -> list[Graph]:
    """The graph, and those that its branches and loops call."""
    found: dict[int, Graph] = {id(graph): graph}
    waiting = [graph]
    while waiting:
        for op in waiting.pop().ops:
            inner = [g for g in op.subgraphs if op.name in CONTROL and id(g) not in found]
            found |= {id(g): g for g in inner}
            waiting += inner
    return list(found.values())


def _branch(op: Op, value: Any) -> Graph:
    """The graph that is run for this value; of a number outside of the branches the last."""
    if op.name == "IF":
        branch: Graph = op.attrs["then_subgraph_index" if value else "else_subgraph_index"]
        return branch
    branches: Sequence[Graph] = op.attrs["branch_subgraph_indices"]
    return branches[value if 0 <= value < len(branches) else -1]


def _first(tensor: torch.Tensor | None) -> Any:
    assert tensor is not None, "a branch needs its condition"
    return tensor.reshape(-1)[0].item()


def _is_weight(tensor: Tensor, computed: dict[Tensor, Array]) -> bool:
    if tensor in computed:
        return computed[tensor].dtype == np.float32 and _stored(tensor) is not None
    return tensor.is_constant and tensor.dtype is DType.FLOAT32


def _stored(tensor: Tensor) -> Tensor | None:
    """The constant of the file that holds a weight: itself, or one of 16 bits behind it."""
    if tensor.is_constant:
        return tensor
    op = tensor.producer
    if op is None or op.name != "DEQUANTIZE":
        return None
    source = op.operand(0)
    return source if source.is_constant and source.dtype is DType.FLOAT16 else None


def _computed_constants(graph: Graph) -> dict[Tensor, Array]:
    """Results of ops that read constants alone, such as DEQUANTIZE of float16 weights."""
    found: dict[Tensor, Array] = {}
    for op in graph.ops:
        known = [t is None or t.is_constant or t in found for t in op.inputs]
        if not op.inputs or not all(known) or op.subgraphs:
            continue
        arrays = [None if t is None else found.get(t, t.data) for t in op.inputs]
        made = define(op, arrays, new_state())
        found.update(zip(op.outputs, made, strict=True))
    return found

"""What passes share: judging tensors, making small ops, and running a list of passes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..ir import Array, Graph, Op, Quant, Tensor
from ..ir.rewrite import Rule, has_side_effects, rewrite
from ..ops.base import OPS, attr
from ..spans import span

Fired = Counter[str]


class Pass(NamedTuple):
    """A named step; run(graph) leaves a valid graph and says what fired how often."""

    name: str
    run: Callable[[Graph], Fired]


@dataclass
class PassReport:
    """What a pipeline did: one row a pass."""

    rows: list[tuple[str, Fired, float]] = field(default_factory=list)

    @property
    def fired(self) -> Fired:
        return sum((fired for _, fired, _ in self.rows), Counter())

    @property
    def seconds(self) -> float:
        return sum(seconds for _, _, seconds in self.rows)

    def table(self) -> str:
        """For people and dumps: passes with their time, and below each the rules that fired."""
        lines = []
        for name, fired, seconds in self.rows:
            lines.append(f"{name}: {fired.total()} in {1e3 * seconds:.1f} ms")
            lines += [f"  {count:5} {rule}" for rule, count in fired.most_common() if count]
        return "\n".join(lines)


Watch = Callable[[str, Graph], object]


def unwatched(name: str, graph: Graph) -> None:
    """The default of run_passes: nobody looks on."""


def run_passes(graph: Graph, passes: Iterable[Pass], watch: Watch = unwatched) -> PassReport:
    """Run the passes in order; watch(name, graph) sees the graph after each."""
    report = PassReport()
    for name, run in passes:
        start = time.perf_counter()
        with span(name, "pass") as told:
            fired = run(graph)
            told.note({"fired": fired.total(), "ops": len(graph.ops)})
        report.rows.append((name, fired, time.perf_counter() - start))
        watch(name, graph)
    return report


def by_rules(name: str, rules: Sequence[Rule]) -> Pass:
    return Pass(name, lambda graph: rewrite(graph, rules, has_side_effects=has_effects))


def has_effects(op: Op) -> bool:
    """Say whether the op does more than compute its outputs, or gives another result next time."""
    row = OPS.get(op.name)
    return has_side_effects(op) or (row is not None and row.stateful)


# -- judging ------------------------------------------------------------------------------------


def is_static(*tensors: Tensor | None) -> bool:
    """Say whether shapes are known and values do not change behind the graph's back."""
    return all(t is None or not (t.is_dynamic or t.is_variable) for t in tensors)


def same_quant(a: Tensor, b: Tensor) -> bool:
    """Say whether equal codes of the two stand for equal values."""
    if not a.dtype.is_integer:
        return True
    p, q = _scales(a.quant), _scales(b.quant)
    return p is q if p is None or q is None else p.same_as(q)


def _scales(quant: Quant | None) -> Quant | None:
    return quant if quant is not None and quant.is_set else None


def same_type(a: Tensor, b: Tensor) -> bool:
    """Say whether one can stand for the other if the bytes are equal."""
    return a.dtype is b.dtype and a.shape == b.shape and same_quant(a, b)


def is_per_tensor(tensor: Tensor) -> bool:
    return tensor.quant is None or tensor.quant.scale.size <= 1


def activation(op: Op) -> str:
    return str(attr(op, "fused_activation_function"))


def constant(tensor: Tensor | None) -> Array | None:
    """The values, if it is a constant that is present."""
    return None if tensor is None else tensor.data


# -- making -------------------------------------------------------------------------------------


def twin(graph: Graph, tensor: Tensor, suffix: str, shape: Sequence[int] | None = None) -> Tensor:
    """A tensor for a value of the same type that a pass introduces."""
    shape = tensor.shape if shape is None else shape
    return graph.tensor(f"{tensor.name}/{suffix}", tensor.dtype, shape, quant=tensor.quant)


def reshape(graph: Graph, x: Tensor, out: Tensor) -> Op:
    shape = graph.constant(f"{out.name}/shape", np.array(out.shape, np.int32))
    return Op("RESHAPE", [x, shape], [out], {"new_shape": list(out.shape)})


def transpose(graph: Graph, x: Tensor, perm: Sequence[int], out: Tensor) -> Op:
    order = graph.constant(f"{out.name}/perm", np.array(perm, np.int32))
    return Op("TRANSPOSE", [x, order], [out])


def with_attrs(
    op: Op, inputs: Iterable[Tensor | None], outputs: Iterable[Tensor], **attrs: object
) -> Op:
    """The op on other tensors and with some attributes changed."""
    made = op.copy(inputs, outputs, op.intermediates)
    made.attrs.update(attrs)
    return made

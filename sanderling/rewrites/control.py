"""Called graphs put in the place of the call."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import Graph, Op, Tensor
from ..ir.rewrite import Match, P, Var
from ..passes.common import has_effects, same_quant
from .steps import Rewrite, Steps, is_fixed, need


def _inlined(
    make: Steps, called: Graph, operands: Sequence[Tensor | None], results: Sequence[Tensor] = ()
) -> list[Tensor]:
    """Append the ops of a called graph, on these operands; its outputs become `results`."""
    # A call counts as an effect too: what is nested deeply would grow beyond all bounds.
    need(not any(has_effects(op) for op in called.ops))
    need(all(t.quant is None or t.quant.block is None for t in called.tensors))
    twins: dict[Tensor, Tensor | None] = dict(zip(called.inputs, operands, strict=True))
    if results:
        need(all(t.producer is not None for t in called.outputs))
        need(len(set(called.outputs)) == len(called.outputs))
        twins |= zip(called.outputs, results, strict=True)
    place = len(make.ops)

    def twin(tensor: Tensor | None) -> Tensor | None:
        if tensor is not None and tensor not in twins:
            twins[tensor] = made = tensor.copy()
            made.name = f"{make.out.name}/{place}/{tensor.name}"
        return None if tensor is None else twins[tensor]

    make.ops += [_twin_op(op, twin) for op in called.ops]
    found = [twin(t) for t in called.outputs]
    need(all(t is not None for t in found))
    return [t for t in found if t is not None]


def _twin_op(op: Op, twin: object) -> Op:
    assert callable(twin)
    return op.copy(
        [twin(t) for t in op.inputs], [twin(t) for t in op.outputs], map(twin, op.intermediates)
    )


def _composite(make: Steps, match: Match) -> None:
    op = match.root
    called = op.attrs["decomposition_subgraph_index"]
    need(isinstance(called, Graph) and len(called.inputs) == len(op.inputs))
    _inlined(make, called, op.inputs, op.outputs)


def _both_branches(make: Steps, match: Match) -> None:
    """Compute both branches, and choose afterwards."""
    op = match.root
    need(is_fixed(op))
    branches = [op.attrs[f"{name}_subgraph_index"] for name in ("then", "else")]
    pairs = zip(*(_inlined(make, graph, op.inputs[1:]) for graph in branches), strict=True)
    for out, (yes, no) in zip(op.outputs, pairs, strict=True):
        need(yes.shape == no.shape == out.shape and same_quant(yes, out) and same_quant(no, out))
        make.op("SELECT_V2", [_whole(match["condition"]), yes, no], out)


def _whole(condition: Tensor) -> Tensor:
    """The condition before it was made a scalar: accelerators have none, and a lone element is
    broadcast just as well."""
    view = condition.producer
    is_view = view is not None and view.name in ("RESHAPE", "SQUEEZE")
    return view.operand(0) if view is not None and is_view else condition


REWRITES = (
    Rewrite(
        "composite inlined", P("STABLEHLO_COMPOSITE"), _composite,
        "STABLEHLO_COMPOSITE is not taken", "the ops of its decomposition",
    ),
    Rewrite(
        "IF as SELECT_V2", P("IF", Var("condition")), _both_branches,
        "IF is not taken", "the ops of both branches, and SELECT_V2 of their results",
    ),
)  # fmt: skip

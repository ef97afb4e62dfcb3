"""From a part to steps: passes, nodes, kernels."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256

from ...ir import Graph, Op, Tensor
from ...passes import PIPELINES, run_passes
from ..origins import Origins
from .border import emit_export, emit_import, is_raw
from .devices.device import Offers
from .nodes import Nodes, plan_nodes
from .passes.decompose import decompose
from .passes.float_view import Border, float_view
from .passes.states import expose_states
from .steps import Step, Writer
from .table import KERNELS

DIGITS = 24  # of a kernel's name


@dataclass
class Lowered:
    """Steps in order; aliases of tensors; the borders, and those whose bytes need no kernel.
    states: the inputs, by number, that are variables: what they hold then are the last outputs."""

    steps: list[Step]
    nodes: Nodes
    inputs: list[Border]
    outputs: list[Border]
    raw: set[Tensor]
    origins: list[tuple[int, ...]]  # of each step: the part's ops that it carries out
    states: list[int] = field(default_factory=list)

    @property
    def makers(self) -> list[list[Tensor]]:
        """What each input and, behind them, each node makes."""
        return makers(self.inputs, self.nodes)


def makers(inputs: list[Border], nodes: Nodes) -> list[list[Tensor]]:
    return [[b.inside] for b in inputs] + [node.outputs for node in nodes.nodes]


def lower(
    part: Graph,
    offers: Offers,
    dialect: type,
    precision: str,
    exact: frozenset[int] = frozenset(),
    twice: bool | None = None,
) -> Lowered:
    """precision: f32, or f32_f16 (floats are kept in 16 bits), or f16 (computed in them, too).

    exact: whose results stay in 32 bits nevertheless: places in Lowered.makers. twice: as
    float_view() has it, by default wherever the precision has the bits.
    """
    twice = precision != "f16" if twice is None else twice
    origins = Origins(part)
    run_passes(part, PIPELINES["default"])
    states = [part.inputs.index(variable) for variable in expose_states(part)]
    _, inputs, outputs = float_view(part, twice)
    decompose(part, KERNELS)
    nodes = plan_nodes(part, KERNELS, offers.kind.operands)
    element = "f32" if precision == "f32" else "f16"
    storage, most_vectors = offers.storage(element)
    made = makers(inputs, nodes)
    kept = frozenset(nodes.home(t) for place in exact for t in made[place])
    half = frozenset(n for n in nodes.nodes if not kept.intersection(map(nodes.home, n.outputs)))
    half = half if precision == "f16" else frozenset()
    w = Writer(offers.kind, dialect, storage, storage, half, kept, nodes.home, most_vectors)
    raw = _raw([*inputs, *outputs], w)
    for border in inputs:
        if border.outside not in raw:
            emit_import(w, border)
    for node in nodes.nodes:
        KERNELS[node.op.name].emit(w, node)
    for border in outputs:
        if border.outside not in raw:
            emit_export(w, border)
    _name(w.steps)
    found = _carried_out(w.steps, nodes, origins)
    return Lowered(w.steps, nodes, inputs, outputs, raw, found, states)


def _carried_out(steps: list[Step], nodes: Nodes, origins: Origins) -> list[tuple[int, ...]]:
    """A node's ops are those of the step that multiplies most, or of its last."""
    done: set[int] = set()
    found: list[tuple[int, ...]] = [()] * len(steps)
    for node in nodes.nodes:
        about = Op(node.op.name, list(node.reads()), list(node.outputs))
        own = [place for place in origins.under(about) if place not in done]
        done.update(own)
        numbers = [i for i, step in enumerate(steps) if step.node is node]
        if numbers:
            found[max(numbers, key=lambda i: (steps[i].macs, i))] = tuple(own)
    return found


def _raw(borders: list[Border], w: Writer) -> set[Tensor]:
    """The tensors of the border whose bytes are the device's already. One that is in two places of
    the border is copied to and from memory of its own."""
    places = Counter(b.inside for b in borders)
    return {
        b.outside for b in borders if places[b.inside] == 1 and is_raw(b, w.storage_of(b.inside))
    }


def _name(steps: list[Step]) -> None:
    """Kernels are named by what they compute, so that equal ones are one: by so many bits of it
    that two others never are."""
    for step in steps:
        step.kernel.name = "same"
        text = step.kernel.source()
        step.kernel.name = f"{step.name}_{sha256(text.encode()).hexdigest()[:DIGITS]}"
        step.source = step.kernel.source()

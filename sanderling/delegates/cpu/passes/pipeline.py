"""Passes on a part before it is lowered: the common ones, then those for these kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from ....ir import DType, Graph, Op
from ....ir.rewrite import rewrite
from ....passes import PIPELINES, Fired, Pass, PassReport, run_passes
from ....passes.common import Watch, has_effects, unwatched
from ....passes.simplify import IDENTITY_RULES, remove_dead
from ..isa.targets import Target
from ..kernels.depthwise.with_pointwise import fuse_pointwise
from ..table import row_of
from . import inline
from .constant_weights import use_constant_weights
from .decompose import decompose
from .dynamic_range import quantise_on_the_fly
from .elementwise import fuse_chains, lower_elementwise, tabulate
from .fuse_into_kernels import fold_maps, fold_padding, fold_residuals
from .inline import inline_composites
from .layer_norm import fuse_layer_norm
from .precision import round_products
from .space_to_depth import read_blocks_directly
from .unify_bytes import mark_signed, unify_bytes
from .zeros import leave_zeros_out

CpuPass = Callable[[Graph, Target], "Fired | None"]


def prepare(graph: Graph, target: Target, watch: Watch = unwatched) -> PassReport:
    """All passes in order; each leaves a valid graph. watch(name, graph) sees it after each."""
    fold, *common = PIPELINES["default"]
    early, late = ([_named(p, target) for p in passes] for passes in (EARLY, PASSES))
    return run_passes(graph, (fold, *early, *common, *late), watch)


def _named(run: CpuPass, target: Target) -> Pass:
    return Pass(run.__name__.replace("_", " "), lambda graph: run(graph, target) or Counter())


def read_variables(graph: Graph, target: Target) -> Fired:
    """Who reads a state and does not change it reads a copy from now on: other passes may move the
    reader behind the op that changes the state."""
    fired: Fired = Counter()
    for op in [op for op in graph.ops if not _keeps_state(op)]:
        for place, tensor in enumerate(op.inputs):
            if tensor is not None and tensor.is_variable:
                name = f"{tensor.name}/read{len(graph.tensors)}"
                copy = graph.tensor(name, tensor.dtype, tensor.shape, quant=tensor.quant)
                graph.insert(Op("READ_VARIABLE", [tensor], [copy]), before=op)
                graph.set_input(op, place, copy)
                fired["variable read"] += 1
    return fired


def _keeps_state(op: Op) -> bool:
    row = row_of(op)
    return row.changes_state or row.copies_state


def flush_weights(graph: Graph, target: Target) -> Fired:
    """Weights below 2**-126 become zero, as results do (sync.py): a product with one is slow."""
    fired: Fired = Counter()
    places = ((op, place) for op in graph.ops for place in row_of(op).weights)
    for op, place in places:
        weights = op.input(place)
        if weights is None or weights.data is None or weights.dtype is not DType.FLOAT32:
            continue
        tiny = (weights.data != 0) & (np.abs(weights.data) < np.finfo(np.float32).tiny)
        if tiny.any():
            weights.data = np.where(tiny, np.float32(0), weights.data)
            fired["tiny weights"] += 1
    return fired


def read_pictures(graph: Graph, target: Target) -> Fired:
    return read_blocks_directly(graph)


def pad_windows(graph: Graph, target: Target) -> Fired:
    return fold_padding(graph)


def add_residuals(graph: Graph, target: Target) -> Fired:
    return fold_residuals(graph)


def map_results(graph: Graph, target: Target) -> Fired:
    return fold_maps(graph)


def inline_branches(graph: Graph, target: Target) -> Fired:
    return inline.inline_branches(graph, target, prepare)


def drop_identities(graph: Graph, target: Target) -> Fired:
    """A QUANTIZE between the two 8-bit types does nothing once they are one."""
    return rewrite(graph, IDENTITY_RULES, has_side_effects=has_effects)


def clean(graph: Graph, target: Target) -> Fired:
    return remove_dead(graph)


# Once constants are folded: factors and offsets behind a norm must not go into products instead.
EARLY: tuple[CpuPass, ...] = (
    read_variables,
    inline_composites,
    decompose,
    fuse_layer_norm,
    use_constant_weights,
)
# In this order, after passes.PIPELINES["default"]. Residuals come before maps: a kernel adds, then
# maps. Elementwise ops are expressions from lower_elementwise on.
PASSES: tuple[CpuPass, ...] = (
    flush_weights,
    read_pictures,
    pad_windows,
    add_residuals,
    mark_signed,
    unify_bytes,
    drop_identities,
    tabulate,
    lower_elementwise,
    fuse_chains,
    map_results,
    quantise_on_the_fly,
    leave_zeros_out,
    fuse_pointwise,
    round_products,
    clean,
    inline_branches,
)

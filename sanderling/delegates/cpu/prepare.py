"""Passes on a part before it is lowered: the common ones, then those for these kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from ...ir import DType, Graph, Op, Quant, Tensor, link
from ...ir.rewrite import rewrite
from ...passes import PIPELINES, Fired, Pass, Report, run_passes
from ...passes.common import Watch, has_effects, unwatched
from ...passes.simplify import IDENTITY_RULES, remove_dead
from .control import inline_branches, inline_composites
from .elementwise import fuse_chains, lower_elementwise
from .epilogue import INNER_ATTR, fold_maps, fold_padding, fold_residuals
from .focus import read_blocks_directly
from .fuse_dwpw import fuse_pointwise
from .hybrid import quantise_on_the_fly
from .norm import fuse_layer_norm
from .precision import round_products
from .products import use_constant_weights
from .restate import restate
from .targets import Target
from .words import tabulate

VIEWS = ("RESHAPE", "SQUEEZE", "EXPAND_DIMS")

CpuPass = Callable[[Graph, Target], "Fired | None"]


def prepare(graph: Graph, target: Target, watch: Watch = unwatched) -> Report:
    """All passes in order; each leaves a valid graph. watch(name, graph) sees it after each."""
    fold, *common = PIPELINES["default"]
    early, late = ([_named(p, target) for p in passes] for passes in (EARLY, PASSES))
    return run_passes(graph, (fold, *early, *common, *late), watch)


def _named(run: CpuPass, target: Target) -> Pass:
    return Pass(run.__name__.replace("_", " "), lambda graph: run(graph, target) or Counter())


# -- 8-bit types --------------------------------------------------------------------------------

# How codes move to become the type that a target keeps activations in.
SHIFTS = {"u8": (DType.INT8, DType.UINT8, 128), "i8": (DType.UINT8, DType.INT8, -128)}
# Operands that keep their type: the other side of a dot product, and numbers that count elements.
WEIGHTS: dict[str, tuple[int, ...]] = {
    "CONV_2D": (1,),
    "DEPTHWISE_CONV_2D": (1,),
    "FULLY_CONNECTED": (1,),
    "TRANSPOSE_CONV": (1,),
    "cpu.TRANSPOSE_CONV": (1,),
    "CONV_3D": (1,),
    "EMBEDDING_LOOKUP": (1,),
    "PAD": (1,),
    "PADV2": (1,),
}
# Ops that change the variables they read.
RECURRENT = frozenset({
    "BIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_RNN", "LSTM", "RNN", "SVDF",
    "UNIDIRECTIONAL_SEQUENCE_LSTM", "UNIDIRECTIONAL_SEQUENCE_RNN",
})  # fmt: skip
# Ops that see codes as they are: as plain numbers, beside an implicit code 0, or with states and
# weights of one type.
AS_THEY_ARE = frozenset({
    "BITCAST", "BITWISE_XOR", "CAST", "DILATE", "FILL", "FLOOR_DIV", "FLOOR_MOD", "MATRIX_DIAG",
    "MATRIX_SET_DIAG", "ONE_HOT", "RIGHT_SHIFT",
    "SCATTER_ND", "SPARSE_TO_DENSE", "ZEROS_LIKE", "IF",
}) | RECURRENT  # fmt: skip
# Of these only the variable keeps its type: their copy moves the codes.
COPIES = ("READ_VARIABLE", "ASSIGN_VARIABLE")
# Operands whose codes mean what those of the first operand mean, though they may not say so.
VALUES = {"PAD": 2, "PADV2": 2}
# Ops that round int8 and uint8 in another way: attrs["was_signed"] says which it was.
SIGN_MATTERS = ("AVERAGE_POOL_2D", "L2_NORMALIZATION", "RESIZE_BILINEAR")


def mark_signed(graph: Graph, target: Target) -> None:
    """Operators that compute int8 and uint8 differently remember what they were."""
    for op in graph.ops:
        x = op.input(0)
        if op.name in SIGN_MATTERS and x is not None and x.dtype is DType.INT8:
            op.attrs["was_signed"] = True


def unify_bytes(graph: Graph, target: Target) -> Fired:
    """One type for 8-bit activations: codes and zero points of the other move by 128.

    The caller's arrays keep their type: cpu.FLIP stands at the border, and around ops that see
    codes as they are.
    """
    unifier = _Unifier(graph, *SHIFTS[target.activation])
    return unifier.run() if unifier.moves else Counter()


class _Unifier:
    """Writes the graph's ops anew, each with the version of its tensors that it wants."""

    def __init__(self, graph: Graph, old: DType, new: DType, by: int) -> None:
        self.graph = graph
        self.old, self.new, self.by = old, new, by
        self.moves = {t for t in graph.tensors if t.dtype is old and _has_one_scale(t)
                      and not t.is_variable}  # fmt: skip
        self.border = {*graph.inputs, *graph.outputs}
        self.ops: list[Op] = []
        self.moved: dict[Tensor, Tensor] = {}  # tensor -> its version in the new type
        self.kept: dict[Tensor, Tensor] = {}  # a tensor that was moved -> its old version
        self.fired: Fired = Counter()

    def run(self) -> Fired:
        for op in list(self.graph.ops):
            self.rewrite(op)
        for tensor in self.graph.tensors:
            tensor.users, tensor.producer = [], None
        self.graph.ops = self.ops
        for op in self.ops:
            self.graph.enlist(*(t for t in (*op.inputs, *op.outputs) if t is not None))
            link(op)
        return self.fired

    def rewrite(self, op: Op) -> None:
        state = any(t is not None and t.is_variable for t in op.inputs)
        as_is = op.name in AS_THEY_ARE or (state and op.name not in COPIES) or self.mixes(op)
        stay = WEIGHTS.get(op.name, ())
        for place, t in enumerate(op.inputs):  # in place: value_of looks at those before
            old = as_is or place in stay
            op.inputs[place] = self.old_of(t) if old else self.new_of(op, place, t)
        self.ops.append(op)
        for place, tensor in enumerate(op.outputs):
            if tensor in self.moves and not as_is:
                self.move_output(op, place, tensor)

    def mixes(self, op: Op) -> bool:
        """A view whose two sides would not move alike."""
        return op.name in VIEWS and (op.inputs[0] in self.moves) != (op.outputs[0] in self.moves)

    def move_output(self, op: Op, place: int, tensor: Tensor) -> None:
        self.fired["tensor moved"] += 1
        if INNER_ATTR in op.attrs:
            scale, zero = op.attrs[INNER_ATTR]
            op.attrs[INNER_ATTR] = (scale, zero + self.by)
        if tensor not in self.border:
            self.moved[tensor] = tensor
            self.shift(tensor)
            return
        op.outputs[place] = inner = self.moved[tensor] = self.version(tensor)
        self.flip(inner, tensor)

    def old_of(self, tensor: Tensor | None) -> Tensor | None:
        """The tensor in its first type."""
        if tensor is None or self.moved.get(tensor) is not tensor:
            return tensor
        if tensor not in self.kept:
            self.kept[tensor] = back = tensor.copy()
            back.name = f"{tensor.name}/{self.old.short}"
            assert back.quant is not None
            back.dtype, back.quant = self.old, _offset(back.quant, -self.by)
            self.flip(tensor, back)
        return self.kept[tensor]

    def new_of(self, op: Op, place: int, tensor: Tensor | None) -> Tensor | None:
        """The tensor in the type of activations."""
        if tensor is not None and VALUES.get(op.name) == place:
            return self.value_of(op, tensor)
        if tensor is None or tensor not in self.moves:
            return tensor
        if tensor not in self.moved:
            self.moved[tensor] = inner = self.version(tensor)
            if not tensor.is_constant:
                self.flip(tensor, inner)
        return self.moved[tensor]

    def value_of(self, op: Op, tensor: Tensor) -> Tensor:
        """A constant beside data that moves: with or without parameters of its own it moves too."""
        data = op.inputs[0]  # the operands before have been replaced already
        if tensor.dtype is not self.old or data is None or data.dtype is not self.new:
            return tensor
        made = tensor.copy()
        made.quant = made.quant or data.quant
        made.name = f"{tensor.name}/{self.new.short}"
        self.shift(made, quant=data.quant)
        return made

    def version(self, tensor: Tensor) -> Tensor:
        made = tensor.copy()
        made.name = f"{tensor.name}/{self.new.short}"
        self.shift(made)
        return made

    def shift(self, tensor: Tensor, quant: Quant | None = None) -> None:
        """Move the tensor itself: type, zero point and, of a constant, codes."""
        data = tensor.data
        assert tensor.quant is not None
        tensor.dtype = self.new
        tensor.quant = quant or _offset(tensor.quant, self.by)
        if data is not None:
            tensor.data = (data.astype(np.int16) + self.by).astype(self.new.numpy)

    def flip(self, source: Tensor, result: Tensor) -> None:
        self.ops.append(Op("cpu.FLIP", [source], [result]))
        self.fired["flip at a border"] += 1


def _offset(quant: Quant, by: int) -> Quant:
    return Quant(quant.scale, quant.zero_point + by, quant.axis)


def _has_one_scale(tensor: Tensor) -> bool:
    return tensor.quant is not None and tensor.quant.scale.size == 1


def _is_byte(tensor: Tensor) -> bool:
    """Codes that may be moved."""
    return tensor.dtype is DType.INT8 and _has_one_scale(tensor)


# -- the kernels' own passes --------------------------------------------------------------------


def read_variables(graph: Graph, target: Target) -> Fired:
    """Who reads a state and does not change it reads a copy from now on: other passes may move the
    reader behind the op that changes the state."""
    fired: Fired = Counter()
    for op in [op for op in graph.ops if op.name not in RECURRENT and op.name not in COPIES]:
        for place, tensor in enumerate(op.inputs):
            if tensor is not None and tensor.is_variable:
                name = f"{tensor.name}/read{len(graph.tensors)}"
                copy = graph.tensor(name, tensor.dtype, tensor.shape, quant=tensor.quant)
                graph.insert(Op("READ_VARIABLE", [tensor], [copy]), before=op)
                graph.set_input(op, place, copy)
                fired["variable read"] += 1
    return fired


def flush_weights(graph: Graph, target: Target) -> Fired:
    """Weights below 2**-126 become zero, as results do (sync.py): a product with one is slow."""
    fired: Fired = Counter()
    places = ((op, place) for op in graph.ops for place in WEIGHTS.get(op.name, ()))
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


def drop_identities(graph: Graph, target: Target) -> Fired:
    """A QUANTIZE between the two 8-bit types does nothing once they are one."""
    return rewrite(graph, IDENTITY_RULES, has_side_effects=has_effects)


def clean(graph: Graph, target: Target) -> Fired:
    return remove_dead(graph)


# Once constants are folded: factors and offsets behind a norm must not go into products instead.
EARLY: tuple[CpuPass, ...] = (read_variables, inline_composites, restate, fuse_layer_norm,
                              use_constant_weights)  # fmt: skip
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
    fuse_pointwise,
    round_products,
    clean,
    inline_branches,
)

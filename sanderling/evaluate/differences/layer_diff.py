"""Where an error enters and where it grows: two models compared tensor by tensor.

For each pair of tensors there are two errors. The accumulated one is between the two runs as they
are. The local one is of the test's op alone: it reads what the reference computed (in the test's
types, and the reference's op then reads those very numbers too), so that nothing of it comes from
earlier ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ...errors import InputError
from ...ir import Array, DType, Op, Tensor
from ...progress import plural
from ...runtime.inputs import dequantize_array, is_quantized
from ..error_measures import Errors, Tally
from .diff_inputs import Couples, FeedSource, as_real, comparable, translated
from .op_by_op import Force, OpByOpRunner, Values
from .tensor_matching import FORMS, Pair, match

Progress = Callable[[str, int, int], None]
IDEAL = 1 / np.sqrt(12)  # RMSE over scale of nothing but rounding
SUSPECT = 0.7  # the quantisation debugger's bound
TOLERANCE = {"f32": 1e-3, "bf16": 3e-2}  # relative, of one op of floats
HYBRID = 3e-2  # of one that quantises its floats on the fly, as each engine does in its own way
UNITS = 1.0  # compiled integer kernels may be one unit off
HANDLES = {DType.RESOURCE, DType.VARIANT}  # not values
CHANNELS = 5  # worst ones that are listed
WORST = 10


def first_name(name: str) -> str:
    """Return the first of the names that a fused name consists of."""
    first, more, _ = name.partition(";")
    return f"{first};..." if more else first


@dataclass
class LayerDiff:
    """One pair of tensors. Errors are in real units; `scale` is the test's, where it has one."""

    index: int  # of the op in the test's file
    op: str
    name: str
    reference_op: str
    reference_name: str
    type: str
    reference_type: str
    how: str
    local: Errors
    accumulated: Errors
    scale: float | None = None
    local_rmse_scale: float | None = None  # 0.289 is rounding alone
    rmse_scale: float | None = None
    local_units: float | None = None  # largest local error in units, where both have the same
    growth: float | None = None  # accumulated relative error over that of what the op reads
    weights_relative: float | None = None  # how far its constants are from the reference's
    channels: list[float] = field(default_factory=list)  # local RMSE (over scale), last dimension
    tolerance: float = TOLERANCE["f32"]  # of its local relative error, between floats
    bound: str = ""  # what its local error is held to, in words
    suspect: bool = False
    reasons: list[str] = field(default_factory=list)

    @property
    def worst_channels(self) -> list[tuple[int, float]]:
        order = np.argsort(-np.asarray(self.channels), kind="stable")[:CHANNELS]
        return [(int(c), self.channels[c]) for c in order if self.channels[c] > 0]

    @property
    def where(self) -> str:
        return f"{self.op} '{first_name(self.name)}' (op {self.index})"

    @property
    def severity(self) -> float:
        """Local error in terms of its bound: above 1 is suspect."""
        if self.local.unlike:
            return float("inf")
        if self.local_units is not None:
            return self.local_units / UNITS
        if self.local_rmse_scale is not None:
            return self.local_rmse_scale / SUSPECT
        return self.local.relative / self.tolerance

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"severity": self.severity, "worst_channels": self.worst_channels}


@dataclass
class LayerDiffs:
    """Rows in the test's run order, and what follows from them."""

    rows: list[LayerDiff]
    runs: int
    unmatched_reference: list[str]
    unmatched_test: list[str]
    notes: list[str] = field(default_factory=list)

    @property
    def first_difference(self) -> LayerDiff | None:
        """Return the first layer at which the two runs differ at all."""
        return next(
            (r for r in self.rows if r.accumulated.max_error > 0 or r.accumulated.unlike), None
        )

    @property
    def first_divergence(self) -> LayerDiff | None:
        """Return the first layer whose own error is more than its type explains."""
        return next((r for r in self.rows if r.suspect), None)

    @property
    def worst(self) -> list[LayerDiff]:
        """Return the layers by their own error, the largest first, without those that have none."""
        ranked = sorted(self.rows, key=lambda r: r.severity, reverse=True)
        return [r for r in ranked if r.severity > 0][:WORST]

    def to_json(self) -> dict[str, Any]:
        def name(row: LayerDiff | None) -> dict[str, Any] | None:
            if row is None:
                return None
            return {"index": row.index, "op": row.op, "name": row.name}

        return {
            "runs": self.runs,
            "matched": len(self.rows),
            "unmatched_reference": self.unmatched_reference,
            "unmatched_test": self.unmatched_test,
            "first_difference": name(self.first_difference),
            "first_divergence": name(self.first_divergence),
            "worst": [name(r) for r in self.worst],
            "layers": [r.to_json() for r in self.rows],
            "notes": self.notes,
        }


def own_couples(
    couples: Couples, a: OpByOpRunner, b: OpByOpRunner, models: tuple[Any, Any], what: str
) -> Couples:
    """The couples of two models as those of the runners' graphs."""
    ours, theirs = (getattr(m.main, what) for m in models)
    mine, yours = getattr(a.graph, what), getattr(b.graph, what)
    return [(mine[ours.index(x)], yours[theirs.index(y)]) for x, y in couples]


class LayerComparison:
    """Two runners and the pairs of their tensors."""

    def __init__(self, a: OpByOpRunner, b: OpByOpRunner, inputs: Couples, outputs: Couples) -> None:
        self.a, self.b = a, b
        self.inputs, self.outputs = inputs, outputs
        pairs = match(a.graph, b.graph, inputs, outputs)
        self.pairs: list[Pair] = [p for p in pairs if not {p.a.dtype, p.b.dtype} & HANDLES]
        if not self.pairs:
            raise InputError(
                "no tensor of one model was recognised in the other",
                where=f"{a.model.source} and {b.model.source}",
                fix="compare two models of one network; without --per-tensor and --bisect only "
                "the outputs are compared",
            )
        self.of_b = {p.b: p for p in self.pairs}
        self.same_types = all(comparable(p.a, p.b) for p in self.pairs)

    def representable(self, values: Values) -> Values:
        """The reference's values as the test can hold them, where that is not the same."""
        made: Values = {}
        for a, b, _ in [*self.pairs, *(Pair(x, y, "") for x, y in self.inputs)]:
            if a in values and is_quantized(b) and not comparable(a, b):
                made[a] = translated(translated(values[a], a, b), b, a)
        return made


def compare_layers(
    found: LayerComparison, source: FeedSource, whole: Sequence[Sequence[Array]], progress: Progress
) -> LayerDiffs:
    """whole: for each run, what the test answered when its ops were not run one by one."""
    a, b = found.a, found.b
    runs = len(whole)
    apart = [Tally() for _ in b.graph.outputs]
    # State moves on with every run: what is run twice a sample needs a second of its own.
    a_again = OpByOpRunner(a.model, a.setting) if a.has_state else a
    b_again = OpByOpRunner(b.model, b.setting) if b.has_state else b
    back_a, back_b = _back(a, a_again), _back(b, b_again)
    total = {p.b: Tally() for p in found.pairs}
    local = {p.b: Tally() for p in found.pairs}
    for index in range(runs):
        progress("comparing layers", index, runs)
        feeds_a, feeds_b = source.at(index)
        values_a, values_b = a.run(feeds_a), b.run(feeds_b)
        for pair in found.pairs:
            total[pair.b].add(as_real(values_a[pair.a], pair.a), as_real(values_b[pair.b], pair.b))
        for tally, tensor, array in zip(apart, b.graph.outputs, whole[index], strict=True):
            tally.add(as_real(array, tensor), as_real(b.value(tensor, values_b), tensor))
        # What the ops of both are fed with: the reference's values, as the test can hold them.
        fed = values_a | found.representable(values_a)
        made = values_a
        if not found.same_types:
            made = _remade(found, a_again, back_a, fed, feeds_a)
        b_again.run(feeds_b, _forced(found, back_b, fed, made, local))
    progress("comparing layers", runs, runs)
    places = {t: n.op for t, n in b.producers()}
    rows = [_layer(found, p, places[p.b], total[p.b], local[p.b]) for p in found.pairs]
    _grow(found, rows)
    return LayerDiffs(
        rows,
        runs,
        _unmatched(a, {p.a for p in found.pairs}),
        _unmatched(b, {p.b for p in found.pairs}),
        [*_folding_notes(b), *([] if b.has_state else _fusion_notes(apart, b))],
    )


def _folding_notes(b: OpByOpRunner) -> Iterator[str]:
    if b.folded:
        yield (
            f"{plural(b.folded, 'op')} of the test's file read constants alone: computed before "
            "the run, without a row here. Numbers are those of the file's ops"
        )


def _fusion_notes(apart: Sequence[Tally], b: OpByOpRunner) -> Iterator[str]:
    """Ops run one by one are not quite the ops run together: said where it shows."""
    for place, tally in enumerate(apart):
        errors = tally.errors()
        if errors.relative > TOLERANCE["f32"] or errors.unlike:
            yield (
                f"output {place}: run op by op, as here, the test's own answer changes by "
                f"{errors.relative:.2g} (relative): how ops are fused matters too"
            )


def _back(first: OpByOpRunner, second: OpByOpRunner) -> dict[Tensor, Tensor]:
    """Return the map from the second runner's tensors to the first's."""
    pairs = zip(second.graph.ops, first.graph.ops, strict=True)
    back = {x: y for s, f in pairs for x, y in zip(s.outputs, f.outputs, strict=True)}
    return back | dict(zip(second.graph.inputs, first.graph.inputs, strict=True))


def _remade(
    found: LayerComparison,
    runner: OpByOpRunner,
    back: dict[Tensor, Tensor],
    fed: Values,
    feeds: Sequence[Array],
) -> Values:
    """What each op of the reference makes of these values."""
    made: Values = dict(zip(found.a.graph.inputs, feeds, strict=True))
    matched = {p.a for p in found.pairs}

    def force(tensor: Tensor, value: Array) -> Array:
        own = back[tensor]
        made[own] = value
        return fed[own] if own in matched else value

    runner.run([fed[t] for t in found.a.graph.inputs], force)
    return made


def _forced(
    found: LayerComparison,
    back: dict[Tensor, Tensor],
    fed: Values,
    made: Values,
    local: dict[Tensor, Tally],
) -> Force:
    """Holds what each op of the test makes against what the reference's makes, and feeds the next
    ops with the reference's."""

    def force(tensor: Tensor, value: Array) -> Array:
        pair = found.of_b.get(back[tensor])
        if pair is None:
            return value
        op = pair.b.producer
        # A DEQUANTIZE was fed with a value that is rounded already: it shall not round again.
        wanted = fed if op is not None and op.name == "DEQUANTIZE" else made
        local[pair.b].add(as_real(wanted[pair.a], pair.a), as_real(value, pair.b), channels=True)
        return np.asarray(translated(fed[pair.a], pair.a, pair.b), order="C")

    return force


def _layer(found: LayerComparison, pair: Pair, op: Op, total: Tally, local: Tally) -> LayerDiff:
    made = pair.a.producer
    row = LayerDiff(
        op.debug_index,
        op.name,
        pair.b.name,
        made.name if made else "input",
        pair.a.name,
        pair.b.type_text,
        pair.a.type_text,
        pair.how,
        local.errors(),
        total.errors(),
        weights_relative=_weights(made, op),
    )
    row.tolerance = max(TOLERANCE.get(w.setting.precision, 1e-2) for w in (found.a, found.b))
    if _is_hybrid(op) or (made is not None and _is_hybrid(made)):
        row.tolerance = max(row.tolerance, HYBRID)
    quant = pair.b.quant
    if is_quantized(pair.b) and quant is not None:
        row.scale = float(quant.scale.mean())
        if comparable(pair.a, pair.b):
            row.local_units = row.local.max_error / row.scale
        row.local_rmse_scale = row.local.rmse / row.scale
        row.rmse_scale = row.accumulated.rmse / row.scale
    by_channel = local.channel_rmse()
    if by_channel is not None:
        row.channels = (by_channel / (row.scale or 1.0)).tolist()
    _judge(row)
    return row


def _is_hybrid(op: Op) -> bool:
    """Return whether an op has quantised weights, and floats as input and output."""
    weights = any(t is not None and t.is_constant and is_quantized(t) for t in op.inputs)
    return weights and op.name not in FORMS and op.outputs[0].dtype.is_float


def _judge(row: LayerDiff) -> None:
    """Return the reasons to suspect this layer, in words."""
    if row.local_units is not None:
        row.bound = f"local error <= {UNITS:g} unit"
        if row.local_units > UNITS + 1e-3:
            row.reasons.append(f"local error of {row.local_units:.3g} units")
    elif row.local_rmse_scale is not None:
        row.bound = f"local RMSE/scale <= {SUSPECT}"
        if row.local_rmse_scale > SUSPECT:
            row.reasons.append(f"local RMSE/scale {row.local_rmse_scale:.3g}")
    else:
        row.bound = f"local relative error <= {row.tolerance:g}"
        if row.local.relative > row.tolerance:
            row.reasons.append(f"local relative error {row.local.relative:.3g}")
    if row.local.unlike:
        row.reasons.append(
            f"{row.local.unlike} values cannot be compared "
            f"(NaN: {row.local.nan_reference} in the reference, "
            f"{row.local.nan_test} in the test)"
        )
    row.suspect = bool(row.reasons)


def _weights(ours: Op | None, theirs: Op) -> float | None:
    """The largest relative distance between constants of the two ops; None without any."""
    if ours is None or ours.name != theirs.name:
        return None
    found = [
        _distance(x, y)
        for x, y in zip(ours.inputs, theirs.inputs, strict=False)
        if x
        and y
        and x.is_constant
        and y.is_constant
        and x.shape == y.shape
        and x.dtype.is_fixed_size
        and y.dtype.is_fixed_size
    ]
    return max(found) if found else None


def _distance(x: Tensor, y: Tensor) -> float:
    if x.buffer is y.buffer:
        return 0.0
    tally = Tally()
    tally.add(np.asarray(dequantize_array(x.values, x)), np.asarray(dequantize_array(y.values, y)))
    return tally.errors().relative


def _grow(found: LayerComparison, rows: Sequence[LayerDiff]) -> None:
    errors = {p.b: r.accumulated.relative for p, r in zip(found.pairs, rows, strict=True)}
    for pair, row in zip(found.pairs, rows, strict=True):
        before = max((errors[t] for t in _nearest(pair.b, errors)), default=0.0)
        row.growth = row.accumulated.relative / before if before > 0 else None


def _nearest(tensor: Tensor, known: Iterable[Tensor]) -> list[Tensor]:
    """The matched tensors that this one is computed from, through those that are not."""
    found: list[Tensor] = []
    seen, waiting = {tensor}, [tensor]
    while waiting:
        producer = waiting.pop().producer
        for source in producer.inputs if producer else ():
            if source is None or source in seen:
                continue
            seen.add(source)
            (found if source in known else waiting).append(source)
    return found


def _unmatched(runner: OpByOpRunner, matched: set[Tensor]) -> list[str]:
    return [
        f"{n.op.name} '{t.name}'"
        for t, n in runner.producers()
        if t not in matched and n.op.name not in FORMS
    ]

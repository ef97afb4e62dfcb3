"""What a model is made of, as one record: the same content for people, JSON and reports."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DelegateError, InputError, SanderlingError, UnsupportedError
from ..format import load
from ..ir import Buffer, DType, Graph, Model, Op, Shape, Tensor
from ..ir.graph import copy_graph
from ..ops import OPS
from ..ops.base import Cost, check_known, known_cost
from ..ops.execute import new_state
from ..progress import waiting
from ..rules import Judgement, judge
from ..rules import names as rule_names
from ..rules.judgement import is_inner
from ..rules.rule import NO_COST
from ..rules.tables import suggestion
from ..runtime.arena import plan_graph
from ..runtime.delegate import Delegate, Options, PlainDelegate
from ..runtime.delegate_options import NoSuchOption
from ..runtime.partition import Limits, Part, partition
from ..runtime.partitionable import Partitionable, partitionable
from ..runtime.planner import ops_before
from ..runtime.registry import (
    FALLBACK,
    RULES_BEHIND_A_COLON,
    delegate_names,
    find_delegate,
    is_delegate_name,
    resolve,
)
from ..runtime.specialise import specialise
from .inputs import input_shapes

if TYPE_CHECKING:
    from ..delegates.gpu.delegate import GpuDelegate

SCHEMA = "sanderling.inspect/1"
Record = dict[str, Any]
# Who has the ops that no delegate is asked about: the plan has handles and first calls; what
# depends on constants alone is computed once.
PLAN, FOLDED = "plan", "constant"


def inspect(
    model: Model | str | os.PathLike[str],
    delegates: Sequence[str | PlainDelegate] = (),
    shapes: Mapping[str, Shape] | None = None,
) -> Record:
    """Everything about a model that can be known without running it.

    With delegates: also which ops each would take, and why it refuses the others. Those that can
    run here share the model out among them as in a session, which computes ops of constants once
    (`folded`); `lacks` says where one of them runs nothing. Accelerators of which only the rules
    are known (sanderling.rules.names()) are each asked by themselves. shapes: of the main graph's
    inputs, by name, for open dimensions. Figures that depend on shapes (macs, arena) are None where
    the model cannot run on them, and the graph's `problem` says why.
    """
    source = model if isinstance(model, Model) else load(model)
    at = known_shapes(source, shapes or {})
    counted: set[Buffer] = set()
    graphs = [_graph(known, counted) for known in at]
    weights = {t.buffer: t for t in _weights(source)}
    record: Record = {
        "schema": SCHEMA,
        "source": source.source,
        "file_bytes": _file_bytes(source.source),
        "description": source.description,
        "quantisation": quantisation_kind(source),
        "parameters": sum(map(_elements, weights.values())),
        "weight_bytes": sum(len(buffer) for buffer in weights if buffer is not None),
        "macs": _macs(source, graphs),
        "metadata": {k: len(v) for k, v in source.metadata.items()},
        "unknown": source.unknown,
        "signatures": [
            {
                "key": s.key,
                "graph": s.graph.name,
                "inputs": list(s.inputs),
                "outputs": list(s.outputs),
            }
            for s in source.signatures
        ],
        "graphs": graphs,
    }
    ours, judged = _split(delegates)
    if ours:
        record["delegates"] = [_delegation(known, ours) for known in at]
    if judged:
        record["accelerators"] = [[_judged(known, name) for name in judged] for known in at]
    return record


def _split(
    delegates: Sequence[str | PlainDelegate],
) -> tuple[list[str | PlainDelegate], list[str]]:
    """The delegates that can run here, and the names of accelerators of which only the rules are
    known."""
    judged = [
        d
        for d in delegates
        if isinstance(d, str) and d in rule_names() and d not in delegate_names()
    ]
    ours = [d for d in delegates if d not in judged]
    for name in ours:
        _check_known(name)
    return ours, judged


def _check_known(name: str | PlainDelegate) -> None:
    """The error names accelerators, too, which only this verb knows."""
    try:
        find_delegate(name)
    except InputError as error:
        if not isinstance(name, str) or _is_about_options(name, error):
            raise
        known = (
            error.fix if is_delegate_name(name) else f"delegates are: {', '.join(delegate_names())}"
        )
        what = error.what if is_delegate_name(name) else f"there is no delegate '{name}'"
        fix = f"{suggestion(name, delegate_names())}; {known}"
        raise InputError(what, where=error.where, fix=fix) from error


def _is_about_options(name: str, error: InputError) -> bool:
    """Whether a delegate was named with options, and not what may be meant as a table of rules: a
    word behind a colon that is no option, where such tables are."""
    has_tables = name.partition(":")[0] in RULES_BEHIND_A_COLON
    is_word = "=" not in name and isinstance(error.__cause__, NoSuchOption)
    return is_delegate_name(name) and not (has_tables and is_word)


def _macs(model: Model, graphs: Sequence[Record]) -> int | None:
    """The multiply-adds of all entry points. What a graph calls is in the figures of the op that
    calls it."""
    called = {g for graph in model.graphs for op in graph.ops for g in op.subgraphs}
    if graphs[0]["macs"] is None:
        return None
    return sum(
        found["macs"] or 0
        for graph, found in zip(model.graphs, graphs, strict=True)
        if graph not in called
    )


def _file_bytes(source: str) -> int | None:
    return Path(source).stat().st_size if source and Path(source).is_file() else None


def known_shapes(model: Model, shapes: Mapping[str, Shape]) -> list[Known]:
    """What is known of the shapes of each graph; `shapes`: of the main graph's inputs, by name."""
    given = input_shapes(model, shapes)
    entries = {model.main, *(s.graph for s in model.signatures)}
    return [Known(g, given if g is model.main else {}, g in entries) for g in model.graphs]


def _graph(known: Known, counted: set[Buffer]) -> Record:
    """counted: the weights that graphs and ops before have."""
    graph = known.given
    arena = None if known.problem else plan_graph(known.graph)
    offsets = {} if arena is None else arena.offsets
    places = {t: i for i, t in enumerate(graph.tensors)}
    ops = [_op(i, op, known, places, counted) for i, op in enumerate(graph.ops)]
    return {
        "name": graph.name,
        "inputs": [places[t] for t in graph.inputs],
        "outputs": [places[t] for t in graph.outputs],
        "problem": known.problem,
        "legal": known.is_legal,
        "open": known.left_open,
        "uncounted": known.uncounted,
        "ops_by_type": dict(Counter(op.name for op in graph.ops).most_common()),
        "types": _types(ops),
        "macs": None if known.problem else sum(op["macs"] for op in ops),
        "arena_bytes": arena and arena.size,
        "arena_bytes_without_reuse": arena and arena.total,
        "tensors": [
            _tensor(i, t, known, offsets.get(known.twin(t))) for i, t in enumerate(graph.tensors)
        ],
        "ops": ops,
    }


class Known:
    """Shapes of a graph: those of the user, the file's and, where it states none, those that can be
    inferred. `problem`: why the graph cannot run on them.

    Converters write an empty shape for "not known" as for a scalar: only inference can tell. What
    the file says of a graph that others call need not hold: who calls it decides.
    """

    def __init__(self, graph: Graph, shapes: Mapping[Tensor, Shape], is_entry: bool) -> None:
        self.given = self.graph = graph
        self.twins = dict[Tensor, Tensor]()
        self.problem = ""
        made = [t for op in graph.ops for t in op.outputs]
        self.open = {t for t in made if not t.shape}
        # Every computed shape follows from those of the inputs, where these are not the file's.
        self.stated, self.open = dict(shapes), self.open | {*made} if shapes else self.open
        self.left_open = [
            f"'{t.name}' {t.type_text} at {list(t.shape)}"
            for t in graph.inputs
            if t.is_dynamic and t not in shapes
        ]
        if not self.open and not is_entry:
            return
        try:
            self.graph, self.twins = specialise(
                graph, [shapes.get(t, t.shape) for t in graph.inputs]
            )
        except UnsupportedError:
            pass  # another matter: the list of ops says so
        except SanderlingError as error:
            self.problem = f"{error.where}: {error.what}: {error.fix}" if is_entry else ""

    @property
    def is_legal(self) -> bool:
        """Whether its ops take these types, whatever the shapes are: then others may run."""
        try:
            check_known(self.given)
        except SanderlingError:
            return False
        return True

    @property
    def uncounted(self) -> int:
        """Ops whose shapes are known only in the run: they have no figures."""
        return sum(any(t.is_dynamic for t in op.outputs) for op in self.graph.ops if self.twins)

    def twin(self, tensor: Tensor) -> Tensor:
        return self.twins.get(tensor, tensor)

    def shape(self, tensor: Tensor) -> Shape | None:
        """None where it depends on data."""
        if tensor not in self.open:
            return self.stated.get(tensor, tensor.shape)
        twin = self.twins.get(tensor)
        return None if twin is None or twin.is_dynamic else twin.shape

    def type_text(self, tensor: Tensor) -> str:
        if tensor not in self.open and tensor not in self.stated:
            return tensor.type_text
        shape = self.shape(tensor)
        sizes = "?" if shape is None else ",".join(map(str, shape))
        return f"{tensor.dtype.short}[{sizes}]"


def _types(ops: Iterable[Record]) -> list[Record]:
    """The ops summed by type: most work first, then most bytes."""
    sums: dict[str, Record] = {}
    figures = ("macs", "bytes_read", "bytes_written")
    for op in ops:
        blank = {"name": op["name"], "supported": op["supported"], "count": 0}
        row = sums.setdefault(op["name"], blank | dict.fromkeys((*figures, "parameters"), 0))
        row["count"] += 1
        row["parameters"] += op["parameters_first"]  # weights that ops share are counted once
        for figure in figures:
            row[figure] += op[figure]
    return sorted(sums.values(), key=lambda r: (-r["macs"], -r["bytes_read"], r["name"]))


def _tensor(index: int, tensor: Tensor, known: Known, offset: int | None) -> Record:
    shape = known.shape(tensor)
    return {
        "index": index,
        "name": tensor.name,
        "type": tensor.dtype.short,
        "shape": None if shape is None else list(shape),
        "signature": None if tensor.signature is None else list(tensor.signature),
        "type_text": known.type_text(tensor),
        "bytes": known.twin(tensor).nbytes,
        "role": role(tensor),
        "sparse": tensor.sparsity is not None,
        "arena_offset": offset,
        "quantisation": _quant(tensor),
    }


def role(tensor: Tensor) -> str:
    if tensor.is_constant:
        return "constant"
    if tensor.is_variable:
        return "variable"
    return "computed" if tensor.producer else "input" if tensor.users else "unused"


def _quant(tensor: Tensor) -> Record | None:
    quant = tensor.quant
    if quant is None or not quant.is_set:
        return None
    return {
        "scale": quant.scale.tolist(),
        "zero_point": quant.zero_point.tolist(),
        "axis": quant.axis if quant.per_axis else None,
        "block_size": quant.block.block_size if quant.block else None,
    }


def _op(
    index: int, op: Op, known: Known, places: dict[Tensor, int], counted: set[Buffer]
) -> Record:
    work = Cost(0, 0, 0) if known.problem else known_cost(known.graph.ops[index])
    learnt = [t for t in op.inputs if t is not None and _is_learnt(t)]
    new = {t.buffer: t for t in learnt if t.buffer is not None and t.buffer not in counted}
    counted.update(new)
    return {
        "index": index,
        "name": op.name,
        "version": op.version,
        "inputs": [None if t is None else places[t] for t in op.inputs],
        "outputs": [places[t] for t in op.outputs],
        "output_types": [known.type_text(t) for t in op.outputs],
        "attributes": {k: _plain(v) for k, v in op.attrs.items()},
        "macs": work.macs,
        "parameters": sum(map(_elements, learnt)),
        "parameters_first": sum(map(_elements, new.values())),  # that no op before has
        "bytes_read": work.bytes_read,
        "bytes_written": work.bytes_written,
        "supported": op.name in OPS,
    }


def _plain(value: Any) -> Any:
    """An attribute as JSON can hold it."""
    if isinstance(value, Graph):
        return f"@{value.name}"
    if isinstance(value, bytes):
        return value.hex()
    return [_plain(v) for v in value] if isinstance(value, list) else value


def _elements(tensor: Tensor) -> int:
    count = 1
    for size in tensor.shape:
        count *= size
    return count


def _weights(model: Model) -> Iterable[Tensor]:
    """Constants that are numbers the model learnt, not shapes and axes."""
    for graph in model.graphs:
        scales = {t for c in graph.constants for t in _block_parts(c)}
        yield from (t for t in graph.constants if _is_learnt(t) and t not in scales)


def _is_learnt(tensor: Tensor) -> bool:
    quantised = tensor.quant is not None and tensor.quant.is_set
    return tensor.is_constant and (tensor.dtype.is_float or quantised)


def _block_parts(tensor: Tensor) -> tuple[Tensor | None, ...]:
    block = tensor.quant.block if tensor.quant is not None else None
    return () if block is None else (block.scales, block.zero_points)


def quantisation_kind(model: Model) -> str:
    """The post-training mode a file looks like, in the words of the documentation."""
    kernels = [
        op for g in model.graphs for op in g.ops if op.name.removeprefix("custom.") in _WITH_WEIGHTS
    ]
    kinds = Counter(filter(None, map(_op_kind, kernels)))
    if not kinds:
        return "none"
    return " + ".join(kind for kind, _ in kinds.most_common())


_WITH_WEIGHTS = {
    "CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED", "CONV_3D", "LSTM",
    "UNIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_LSTM", "SVDF", "RNN",
    "UNIDIRECTIONAL_SEQUENCE_RNN", "BATCH_MATMUL", "Convolution2DTransposeBias",
}  # fmt: skip


def _op_kind(op: Op) -> str | None:
    """float32, float16 weights, dynamic range, int8, uint8, int16x8: of one op with weights."""
    data = op.input(2 if op.name == "TRANSPOSE_CONV" else 0)
    weight = op.input(1)
    if data is None or weight is None:
        return None
    weight = _through_expansion(weight)
    if data.dtype.is_float:
        if weight.dtype is DType.FLOAT32 or not weight.is_constant:
            return "float32"
        return "float16 weights" if weight.dtype.is_float else f"dynamic range {weight.dtype.short}"
    if data.dtype is DType.INT16:
        return "int16x8"
    granularity = "per-channel" if weight.quant and weight.quant.per_axis else "per-tensor"
    return f"full integer {data.dtype.short} {granularity}"


def _through_expansion(tensor: Tensor) -> Tensor:
    """What a weight is stored as, before DEQUANTIZE or DENSIFY expand it."""
    while tensor.producer is not None and tensor.producer.name in ("DEQUANTIZE", "DENSIFY"):
        source = tensor.producer.inputs[0]
        if source is None:
            break
        tensor = source
    return tensor


def _special(known: Known) -> Graph:
    """The graph at its shapes; as it stands if it cannot run: the delegates say why."""
    try:
        shapes = [known.shape(t) or t.shape for t in known.given.inputs]
        return specialise(known.given, shapes)[0]
    except SanderlingError:
        return known.given


def _ready(known: Known, delegates: Sequence[Delegate]) -> Partitionable:
    """What a session partitions; the graph as it stands where it cannot run."""
    shapes = [known.shape(t) or t.shape for t in known.given.inputs]
    try:
        return partitionable(known.given, shapes, delegates, new_state())
    except SanderlingError:
        return Partitionable(known.given, {}, list(known.given.ops))


def _delegation(known: Known, delegates: Sequence[str | PlainDelegate]) -> Record:
    chosen = resolve(delegates)
    ready = _ready(known, chosen)
    found = partition(ready.graph, chosen, Limits())
    # Handles and first calls are the plan's: no delegate runs them.
    names = dict.fromkeys(ready.ops, PLAN) | dict.fromkeys(ready.folded, FOLDED)
    names |= {op: p.delegate.name for p in found.parts for op in p.ops}
    refusals = {
        op: [{"delegate": r.delegate, "reason": r.reason} for r in rs]
        for op, rs in found.refusals.items()
    }
    record = {
        "graph": known.given.name,
        "parts": [{"delegate": p.delegate.name, "ops": len(p.ops)} for p in found.parts],
        "folded": len(ready.folded),
        "lacks": "; ".join(filter(None, map(_lack, chosen))),
        "ops": _asked_ops(ready.ops, names, refusals),
    }
    return record | _about_delegated(ready.graph, found.parts, chosen)


def _lack(delegate: Delegate) -> str:
    """What keeps it from running anything here: the machine, or an option of its own."""
    why = delegate.lacks()
    return f"'{delegate.name}' runs nothing here: {why}" if why else ""


def _about_delegated(graph: Graph, parts: Sequence[Part], delegates: Sequence[Delegate]) -> Record:
    """What crosses the borders of parts that are not the cpu's, and what a device has to say."""
    own = [p for p in parts if p.delegate.name not in FALLBACK]
    ends = {*graph.inputs, *graph.outputs}
    ways = [(p, t, True) for p in own for t in p.inputs]
    ways += [(p, t, False) for p in own for t in p.outputs]
    found: Record = {
        "delegate": delegates[0].name,
        "taken": sum(len(p.ops) for p in own),
        "crossing": _crossing_record(
            (t, p.delegate.name if to else "cpu", is_inner(t, ends), t.is_variable)
            for p, t, to in ways
        ),
    }
    from ..delegates.gpu.delegate import GpuDelegate

    gpu = next((d for d in delegates if isinstance(d, GpuDelegate)), None)
    return found if gpu is None else found | _about_device(graph, parts, gpu)


def _about_device(graph: Graph, parts: Sequence[Part], gpu: GpuDelegate) -> Record:
    from ..delegates.gpu.hints import channel_hints
    from .delegation_cost import estimate

    own = [op for p in parts if p.delegate is gpu for op in p.ops]
    hints = [hint.to_json() for hint in channel_hints(own, graph.inputs)]
    found: Record = {"hints": hints, "estimate": None, "remarks": []}
    if not own or gpu.lacks():
        return found
    try:
        found["remarks"] = _remarks(graph, parts, gpu)
        with waiting("measuring the device and one core (once; the result is kept)"):
            made = estimate(parts, gpu)
        return found | {"estimate": made.to_json() | {"text": made.text}}
    except (DelegateError, UnsupportedError) as error:  # a device that builds or runs nothing
        return found | {"remarks": [f"nothing can be measured: {error.what}"]}


def _remarks(graph: Graph, parts: Sequence[Part], gpu: GpuDelegate) -> list[str]:
    """What is found out only when a part is compiled, if somebody asks for it."""
    if gpu.chosen.get("precision") != "auto":
        return []
    found = []
    for part in parts:
        if part.delegate is gpu:
            own, _ = copy_graph(graph, part.ops, part.inputs, part.outputs)
            options = Options(1, new_state(), before=partial(ops_before, graph, part))
            found += gpu.compile(own, options).remarks
    return found


def _asked_ops(
    ops: Sequence[Op], names: Mapping[Op, str], refusals: Mapping[Op, list[Record]]
) -> list[Record]:
    """Who runs each op, and who refuses it."""
    return [
        {
            "index": i,
            "name": op.name,
            "output": op.outputs[0].name if op.outputs else "",
            "delegate": names[op],
            "refusals": refusals.get(op, []),
        }
        for i, op in enumerate(ops)
    ]


def _judged(known: Known, name: str) -> Record:
    """The same of an accelerator that is known by its rules, and what crosses its borders."""
    found = judge(_special(known), name)
    names = {v.op: PLAN for v in found.verdicts}
    names |= {found.verdicts[place].op: FOLDED for place in found.folded}
    names |= {op: part.name for part in found.parts for op in part.ops}
    refusals = {
        v.op: [
            {
                "delegate": name,
                "reason": v.reason,
                "kind": v.rule.kind if v.rule else "",
                "source": v.source,
            }
        ]
        for v in found.verdicts
        if v.reason
    }
    return {
        "graph": known.given.name,
        "delegate": name,
        "title": found.table.title,
        "taken": found.taken,
        "parts": [{"delegate": p.name, "ops": len(p.ops)} for p in found.parts],
        "folded": len(found.folded),
        "ops": _asked_ops([v.op for v in found.verdicts], names, refusals),
        "crossing": _crossing(found),
    }


def _crossing(found: Judgement) -> Record:
    name = found.table.name
    ways = (
        (c.tensor, name if c.to_delegate else "cpu", c.is_inner, c.is_state) for c in found.crossing
    )
    costs = found.table.border != NO_COST
    return _crossing_record(ways) | {"estimated_us": found.cost_us if costs else None}


def _crossing_record(ways: Iterable[tuple[Tensor, str, bool, bool]]) -> Record:
    """ways: tensors, who gets them, whether they cross only because ops are refused, and whether
    they are states."""
    each = [
        {"tensor": t.name, "bytes": t.nbytes, "to": to, "inner": inner, "state": state}
        for t, to, inner, state in ways
    ]
    inner, states = ([row["bytes"] for row in each if row[kind]] for kind in ("inner", "state"))
    return {
        "tensors": len(each),
        "bytes": sum(row["bytes"] for row in each),
        "inner_tensors": len(inner),
        "inner_bytes": sum(inner),
        "state_tensors": len(states),
        "state_bytes": sum(states),
        "estimated_us": None,
        "each": each,
    }

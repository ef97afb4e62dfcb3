"""Where other engines' time goes, as far as they tell."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from ..delegates.engines.messages import captured_stderr
from ..errors import InputError, UnsupportedError
from ..ir import Array, Graph, Model, Op
from ..ops.base import known_cost
from ..runtime.session import Session
from ..runtime.specialise import specialise
from .engines import import_engine, job_for
from .engines import openvino as start_openvino
from .profile_ours import LOST, WARM, ProfileRow, Taken, node_name
from .record import Setting

Turns = Callable[[Callable[[], None]], None]
PLAIN_RUNS, PLAIN_SECS = 50, 0.3  # to see what a profiler costs
COSTLY = 1.1  # times as long with it as without

# What engines call the ops that multiply, and the file's ops that may stand behind it (a 1x1
# convolution is a matrix product to them). The first word that a name holds decides.
PRODUCTS = {
    "dwconv": {"DEPTHWISE_CONV_2D"},
    "groupconvolution": {"DEPTHWISE_CONV_2D", "CONV_2D"},
    "deconvolution": {"TRANSPOSE_CONV"},
    "convolutionbackpropdata": {"TRANSPOSE_CONV"},
    "convolution": {"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"},
    "fully connected": {"FULLY_CONNECTED", "CONV_2D"},
    "fullyconnected": {"FULLY_CONNECTED", "BATCH_MATMUL", "CONV_2D"},
    "matmul": {"BATCH_MATMUL", "FULLY_CONNECTED", "CONV_2D"},
    "batch matrix multiply": {"BATCH_MATMUL", "FULLY_CONNECTED"},
}
MULTIPLYING = set().union(*PRODUCTS.values())


def litert(
    model: Model, setting: Setting, feeds: Mapping[str, Array], signature: str | None, turns: Turns
) -> Taken:
    """Ops as LiteRT's profiler notes them; what XNNPACK runs has XNNPACK's names."""
    from .litert_profiler import OP, Profiled

    subject = Profiled(_path(model), setting.threads, feeds, signature or "")
    nodes = _ops(model, feeds, signature)
    taken = Taken([], workers=setting.threads, method=("LiteRT's profiler, in whole microseconds"))
    begin = time.perf_counter()
    with captured_stderr():
        subject.run()
    taken.first = time.perf_counter() - begin

    def sample() -> None:
        subject.start()
        begin = time.perf_counter()
        subject.run()
        whole = time.perf_counter() - begin
        events = subject.stop()
        if not taken.rows:
            taken.rows = [
                ProfileRow(
                    e.tag,
                    f"[{e.tag}]:{i}",
                    "xnnpack" if e.kind != OP else "litert",
                    e.tag,
                    nodes=[e.node] if e.kind == OP else [],
                    first=e.seconds,
                )
                for i, e in enumerate(events)
            ]
        if len(events) != len(taken.rows):
            return  # a loop went another number of rounds: such a run has other rows
        for row, event in zip(taken.rows, events, strict=True):
            row.times.append(event.seconds)
        taken.whole.append(whole)

    with captured_stderr():
        for _ in range(WARM):
            sample()
    taken.whole.clear()
    for row in taken.rows:
        row.times.clear()
    turns(sample)
    with captured_stderr():
        plain = _timed(subject.run)
    taken.notes += _cost(taken.whole, plain)
    return _finished(taken, nodes)


def _timed(run: Callable[[], object]) -> list[float]:
    """Return the seconds of some runs without a profiler."""
    made: list[float] = []
    while not made or (len(made) < PLAIN_RUNS and sum(made) < PLAIN_SECS):
        begin = time.perf_counter()
        run()
        made.append(time.perf_counter() - begin)
    return made


def _cost(profiled: Sequence[float], plain: Sequence[float]) -> list[str]:
    """A peer's profiler may take longer than the model; that is no time of the model's."""
    if not profiled or median(profiled) < COSTLY * median(plain):
        return []
    return [
        f"without its profiler a run takes {1e3 * median(plain):.3g} ms, not "
        f"{1e3 * median(profiled):.3g} (medians): the difference is the profiler's, and stands "
        f"in '{LOST}'"
    ]


def openvino(
    model: Model, setting: Setting, feeds: Mapping[str, Array], signature: str | None, turns: Turns
) -> Taken:
    """OpenVINO's performance counters: means over all runs, in whole microseconds."""
    import_engine("openvino")
    nodes = _ops(model, feeds, signature)
    entry = _entry(model, signature)
    arrays = dict(zip(entry.inputs.values(), feeds.values(), strict=True))
    _path(model)
    job = job_for(model, setting, [arrays[t] for t in entry.graph.inputs], signature or "")
    loaded = start_openvino(job, PERF_COUNT=True)
    taken = Taken(
        [],
        workers=setting.threads,
        method=("OpenVINO's performance counters: means, in whole microseconds"),
    )
    begin = time.perf_counter()
    loaded.run()
    taken.first = time.perf_counter() - begin
    for _ in range(WARM - 1):
        loaded.run()
    before = _counters(loaded.request)

    def sample() -> None:
        begin = time.perf_counter()
        loaded.run()
        taken.whole.append(time.perf_counter() - begin)

    turns(sample)
    runs = len(taken.whole)
    for (i, name, kind, kernel, mean), (*_, was) in zip(
        _counters(loaded.request), before, strict=True
    ):
        # The counters are means since the start.
        seconds = max(0.0, (mean * (runs + WARM) - was * WARM) / runs)
        if seconds > 0 and kind not in ("Parameter", "Result", "Constant"):
            taken.rows.append(
                ProfileRow(kind, f"[{name}]:{i}", "openvino", kernel, first=was, times=[seconds])
            )
    return _finished(taken, nodes)


def _counters(request: Any) -> list[tuple[int, str, str, str, float]]:
    return [
        (i, p.node_name, p.node_type, p.exec_type, p.real_time.total_seconds())
        for i, p in enumerate(request.profiling_info)
    ]


PEERS: dict[str, Callable[[Model, Setting, Mapping[str, Array], str | None, Turns], Taken]] = {
    "litert": litert,
    "openvino": openvino,
}


def _path(model: Model) -> str:
    if not model.source:
        raise InputError(
            "the model is in no file",
            where="profile",
            fix="save it first: other engines read files",
        )
    return model.source


def _entry(model: Model, signature: str | None) -> Any:
    return Session(model, ("reference",)).entry(signature)


def _ops(model: Model, feeds: Mapping[str, Array], signature: str | None) -> list[Op]:
    """The graph's ops at the shapes that are fed."""
    entry = _entry(model, signature)
    arrays = dict(zip(entry.inputs.values(), feeds.values(), strict=True))
    graph: Graph = entry.graph
    made, _ = specialise(graph, [arrays[t].shape for t in graph.inputs])
    return list(made.ops)


def _finished(taken: Taken, nodes: Sequence[Op]) -> Taken:
    """Complete rows by the ops' work, and add the time that no row accounts for."""
    if not taken.whole:
        raise UnsupportedError(
            "its ops differ from run to run, so that there is no mean of them", where="profile"
        )
    note = _match(taken.rows, nodes)
    taken.notes += [note] if note else []
    for row in taken.rows:
        for place in row.nodes:
            _add_cost(row, nodes[place])
        if row.nodes:
            row.name = node_name(nodes[row.nodes[0]], row.nodes[0])
    taken.others = {LOST: _lost(taken)}
    return taken


def _lost(taken: Taken) -> list[float]:
    """Return the time that no row has, by run, or on average where the rows are means."""
    times = [r.times for r in taken.rows if r.times]
    if all(len(t) == len(taken.whole) for t in times):
        return [whole - sum(t[i] for t in times) for i, whole in enumerate(taken.whole)]
    return [sum(taken.whole) / len(taken.whole) - sum(sum(t) / len(t) for t in times)]


def _match(rows: Sequence[ProfileRow], nodes: Sequence[Op]) -> str:
    """Give rows that multiply the file's ops that multiply, in order, where the numbers agree."""
    known = {n for row in rows for n in row.nodes}
    products = [i for i, op in enumerate(nodes) if op.name in MULTIPLYING and i not in known]
    kinds = [(row, _product(row.type)) for row in rows if not row.nodes]
    multiplying = [row for row, kind in kinds if kind]
    fits = len(multiplying) == len(products) and all(
        nodes[i].name in _product(row.type) for i, row in zip(products, multiplying, strict=True)
    )
    if not fits:
        return (
            f"the engine ran {len(multiplying)} products where the file has {len(products)}: "
            f"its rows cannot be matched to the file's ops"
        )
    for place, row in zip(products, multiplying, strict=True):
        row.nodes = [place]
    return "products are matched to the file's ops by their order" if products else ""


def _product(kind: str) -> set[str]:
    """The ops that a name may stand for; none where it does not multiply."""
    text = kind.lower()
    return next((ops for word, ops in PRODUCTS.items() if word in text), set())


def _add_cost(row: ProfileRow, op: Op) -> None:
    row.macs += known_cost(op).macs
    row.weights += _bytes(t for t in op.inputs if t is not None and t.is_constant)
    row.read += _bytes(t for t in op.inputs if t is not None and not t.is_constant)
    row.written += _bytes(op.outputs)
    first = op.input(0)
    row.kind = {"u8": "i8"}.get(first.dtype.short, first.dtype.short) if first else ""


def _bytes(tensors: Iterable[Any]) -> int:
    return sum(t.nbytes for t in tensors)

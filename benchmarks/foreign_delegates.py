"""Other engines as delegates: are their answers right, is anything copied, and what does it cost?

    python -m benchmarks.foreign_delegates [MODEL...] [--engines litert,openvino,onnxruntime]
    python -m benchmarks.foreign_delegates --costs

Every model runs on every engine in three ways. Op by op: each op of the model is fed what the
definitions give, apart from its neighbours; integers may be one unit off, floats 1e-4 of the
output's range. Whole: the engine gets all that it takes. Mixed: it gets every second op, and `cpu`
the others, so that most tensors cross a border. The answers of these two are compared with those of
`cpu`: floats within 1e-3 of the largest answer, integers within 3 units (engine_agreement.py). A
quantised model rounds in every layer, each engine in its own manner, and networks such as ResNet-8
make much of one unit: what the answer of `cpu` moves by, when every second op's results move by a
unit here and there, is allowed twice.

Rows are kept in --rows FILE as they come, and those that are there are not made again. Each model
runs in a process of its own: an engine that crashes is a row. --costs measures, in turns: a call of
a session with one foreign part beside the same call without a session, and a border.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sanderling import DType, Graph, Model, load
from sanderling.errors import DelegateError, FallbackWarning
from sanderling.ir import Array, Op
from sanderling.ir.graph import copy_graph
from sanderling.measure.engine_agreement import compare, group, tolerance
from sanderling.measure.inputs import feeds
from sanderling.measure.inspection import quantisation_kind
from sanderling.measure.machine import machine_line
from sanderling.measure.sample_statistics import ratio
from sanderling.ops.execute import evaluate, initial_value, new_state
from sanderling.passes.simplify import fold_constants
from sanderling.runtime.delegate import (
    Delegate,
    Executable,
    Options,
    PlainExecutable,
    as_executable,
)
from sanderling.runtime.registry import find_delegate
from sanderling.runtime.session import Session
from sanderling.runtime.specialise import specialise

from .agreement import Found, _compare, apart
from .common import model_paths, table, write_section

ENGINES = ("litert", "openvino", "onnxruntime")
RUNS = 3  # the first goes the long way, the second binds, the third is like all others
Row = dict[str, Any]


class EverySecond(Delegate):
    """Takes every second op that another delegate would take, so that most borders are crossed."""

    def __init__(self, other: str | Delegate) -> None:
        self.other = find_delegate(other)
        self.name = f"every second op on {self.other.name}"

    def refuses(self, op: Op) -> str | None:
        return self.other.refuses(op)

    def refuses_each(self, ops: Sequence[Op]) -> list[str | None]:
        found = self.other.refuses_each(ops)
        return [said or ("another's turn" if n % 2 else None) for n, said in enumerate(found)]

    def compile(self, part: Graph, options: Options) -> PlainExecutable:
        return self.other.compile(part, options)


# -- are they right? ------------------------------------------------------------------------------


def op_by_op(graph: Graph, values: dict[Any, Array], delegate: Delegate) -> Row:
    """Every op that the delegate takes, on the values that the definitions give."""
    reasons = zip(graph.ops, delegate.refuses_each(graph.ops), strict=True)
    taken = [op for op, said in reasons if said is None]
    refused: dict[str, int] = {}
    while taken:
        part, given, made = apart(graph, taken)
        own, _ = copy_graph(part, part.ops, part.inputs, part.outputs)
        try:
            executable = delegate.compile(own, Options(1, new_state()))
            break
        except DelegateError as error:
            at_fault = error.ops or range(len(taken))
            refused[error.what] = refused.get(error.what, 0) + len(at_fault)
            taken = [op for place, op in enumerate(taken) if place not in at_fault]
    found = Found(delegate.name, len(taken), len(graph.ops) - len(taken))
    if taken:
        results: list[Array | None] = [np.empty(t.shape, t.dtype.numpy) for t in made]
        executable.run([np.ascontiguousarray(values[t]) for t in given], results)
        for tensor, result in zip(made, results, strict=True):
            assert result is not None and tensor.producer is not None
            _compare(found, tensor.producer, result, values[tensor])
    return {
        "ops": len(graph.ops),
        "taken": found.ops,
        "units": max(found.units, default=0),
        "share": found.share,
        "far": found.far,
        "refused": refused,
    }


def defined(model: Model) -> tuple[Graph, dict[Any, Array]]:
    """The graph at its shapes, and the values that the definitions give its tensors."""
    graph, _ = specialise(model.main, [t.shape for t in model.main.inputs])
    fold_constants(graph)
    values = dict(zip(graph.inputs, feeds(model), strict=True))
    values |= {t: initial_value(t) for t in graph.tensors if t.is_variable}
    state = new_state()
    for op in graph.ops:
        inputs = [None if t is None else values.get(t, t.data) for t in op.inputs]
        values.update(zip(op.outputs, evaluate(op, inputs, state), strict=True))
    return graph, values


class Judge:
    """The answers of `cpu`, and how far from them an answer may be."""

    def __init__(self, model: Model) -> None:
        self.model, self.arrays = model, feeds(model)
        self.kind = quantisation_kind(model)
        self.answers, _ = answers_of(model, ["cpu"], self.arrays)
        self.moved: list[Array] = []
        if group(self.kind) == "quantised":
            self.moved, _ = answers_of(model, [Unsteady("cpu")], self.arrays)

    def says(self, answers: list[Array]) -> tuple[str, bool]:
        words, is_near = compare(self.answers, answers, tolerance(self.kind, "f32"))
        if is_near or not self.moved:
            return words, is_near
        pairs = zip(self.answers, answers, self.moved, strict=True)
        near = all(_mean_gap(a, b) <= 2 * _mean_gap(a, c) for a, b, c in pairs)
        return f"{words}, {'within' if near else 'beyond'} what rounding does", near


class Unsteady(EverySecond):
    """Rounds unlike others: moves the results of every second op by a unit here and there."""

    def compile(self, part: Graph, options: Options) -> PlainExecutable:
        return UnsteadyExecutable(as_executable(self.other.compile(part, options)))


class UnsteadyExecutable(Executable):
    def __init__(self, inner: Executable) -> None:
        self.inner, self.rng = inner, np.random.default_rng(1)

    def run(self, inputs: Sequence[Array], outputs: list[Array | None]) -> None:
        self.inner.run(inputs, outputs)
        for array in outputs:
            if array is not None and array.size:
                _move(array, self.rng)


def _move(array: Array, rng: np.random.Generator) -> None:
    """Codes by one in one of 16 places; reals by up to a 512th of their range, which is half a unit
    of eight bits. Other integers stay."""
    if array.dtype.kind == "f":
        step = np.ptp(array) / 512
        array += rng.uniform(-step, step, array.shape).astype(array.dtype)
    elif array.dtype.kind in "iu" and array.dtype.itemsize < 4:
        limits = np.iinfo(array.dtype)
        step = rng.integers(-1, 2, array.shape) * (rng.random(array.shape) < 1 / 16)
        array[...] = np.clip(array.astype(np.int64) + step, limits.min, limits.max)


def _mean_gap(a: Array, b: Array) -> float:
    return float(np.mean(np.abs(a.astype(np.float64) - b.astype(np.float64)))) if a.size else 0.0


def answers_of(
    model: Model, delegates: Sequence[str | Delegate], arrays: Sequence[Array]
) -> tuple[list[Array], Session]:
    """The outputs of the first run, and the session after some more."""
    session = model.compile(delegates=delegates)
    entry = session.entry(None)
    places = dict(zip(model.main.inputs, arrays, strict=True))
    bound = session.bind({name: places[t] for name, t in entry.inputs.items()})
    bound.run()
    answers = [np.array(value) for value in bound.outputs.values()]
    for _ in range(RUNS - 1):
        bound.run()
    return answers, session


def way(model: Model, judge: Judge, delegate: str | Delegate) -> Row:
    """One of the two ways of all of the model."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FallbackWarning)
        answers, session = answers_of(model, [delegate], judge.arrays)
    steps = session.plan().steps
    mine = [s for s in steps if s.executable.copies is not None]
    copied = [s.executable.copies.tensors for s in mine if s.executable.copies is not None]
    words, is_near = judge.says(answers)
    return {
        "gap": words,
        "is_near": is_near,
        "parts": len(steps),
        "its_parts": len(mine),
        "its_ops": sum(len(s.part.ops) for s in mine),
        "copies": sum(copied) // RUNS,
        "warnings": [str(w.message) for w in caught if w.category is FallbackWarning],
    }


def rows_of(path: Path, engines: Sequence[str], op_by_op_too: bool) -> Iterator[Row]:
    """In the process of its own. op_by_op_too: it takes the definitions' time."""
    model = load(path)
    judge = Judge(model)
    has_control_flow = any(op.subgraphs for op in model.main.ops)
    values = defined(model) if op_by_op_too and not has_control_flow else None
    for engine in engines:
        begin = time.perf_counter()
        row: Row = {"model": path.stem, "engine": engine}
        try:
            row["apart"] = op_by_op(*values, find_delegate(engine)) if values else None
            row["whole"] = way(model, judge, engine)
            row["mixed"] = way(model, judge, EverySecond(engine))
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        yield row | {"seconds": round(time.perf_counter() - begin, 1)}


# -- rows that are kept ---------------------------------------------------------------------------


def made_rows(file: Path) -> list[Row]:
    lines = file.read_text("utf-8").splitlines() if file.is_file() else []
    return [json.loads(line) for line in lines]


def make_rows(
    paths: Sequence[Path], engines: Sequence[str], file: Path, flags: Sequence[str]
) -> list[Row]:
    """All rows; those that the file has not are made now."""
    for place, path in enumerate(paths):
        while left := [e for e in engines if (path.stem, e) not in _known(file)]:
            print(f"{place + 1}/{len(paths)} {path.stem}: {', '.join(left)}", file=sys.stderr)
            ended = _run(path, left, file, flags)
            stuck = [e for e in left if (path.stem, e) not in _known(file)]
            if stuck:
                _keep(file, {"model": path.stem, "engine": stuck[0], "error": ended})
    wanted = {(p.stem, e) for p in paths for e in engines}
    return [row for row in made_rows(file) if (row["model"], row["engine"]) in wanted]


def _known(file: Path) -> set[tuple[str, str]]:
    return {(row["model"], row["engine"]) for row in made_rows(file)}


def _keep(file: Path, row: Row) -> None:
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(row) + "\n")


def _run(path: Path, engines: Sequence[str], file: Path, flags: Sequence[str]) -> str:
    """How the process ended."""
    command = [sys.executable, "-m", __spec__.name, str(path), "--engines", ",".join(engines)]
    code = subprocess.run([*command, "--rows", str(file), "--here", *flags]).returncode
    how = signal.Signals(-code).name if code < 0 else f"status {code}"
    return f"the process ended with {how}"


# -- what does it cost? ---------------------------------------------------------------------------


def chain(size: int, length: int = 16) -> Model:
    """Ops that do next to nothing, one after the other."""
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (1, size))
    for place in range(length):
        y = graph.tensor(f"y{place}", DType.FLOAT32, (1, size))
        graph.add("ABS" if place % 2 else "NEG", [x], [y])
        x = y
    graph.outputs = [x]
    return Model([graph])


def in_turns(calls: Sequence[Callable[[], object]], rounds: int = 30, each: float = 0.02) -> Any:
    """Seconds of a call, by round, each measured for a while in every round."""
    counts = [max(1, int(each / _seconds(call, 3))) for call in calls]
    found: list[list[list[float]]] = [[] for _ in calls]
    for _ in range(rounds):
        for place, call in enumerate(calls):
            found[place].append([_seconds(call, counts[place])])
    return found


def _seconds(call: Callable[[], object], count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count


def costs(engines: Sequence[str]) -> str:
    calls = [_call(engine) for engine in engines]
    borders = [_border(engine, size) for engine in engines for size in (256, 65_536, 1_048_576)]
    header = ["engine", "without a session, us", "bound, us", "session.run, us", "bound on cpu, us",
              "bound / without"]  # fmt: skip
    second = ["engine", "floats", "all on cpu, us", "all on the engine, us", "by turns, us",
              "a border, us", "by turns / the slower alone"]  # fmt: skip
    return "\n\n".join([table(header, calls), table(second, borders)])


def _call(engine: str) -> list[object]:
    """A call of a session with one foreign part, in three ways, and of one on `cpu`."""
    x = np.ones((1, 64), np.float32)
    step = chain(64).compile(delegates=[engine]).plan().steps[0]
    alone = step.executable.bind([x], [np.empty_like(x)])
    fed = partial(chain(64).compile(delegates=[engine]).run, {"x": x})
    fed()
    found = in_turns([alone, _bound(64, engine), fed, _bound(64, "cpu")])
    times = [f"{float(np.median(rounds)) * 1e6:.1f}" for rounds in found]
    return [engine, *times, str(ratio(found[1], found[0]))]


def _bound(size: int, delegate: str | Delegate) -> Callable[[], object]:
    bound = chain(size).compile(delegates=[delegate]).bind({"x": np.ones((1, size), np.float32)})
    for _ in range(RUNS):
        bound.run()
    return bound.run


def _border(engine: str, size: int) -> list[object]:
    """16 ops, on one delegate or another, or by turns, which is 15 borders."""
    found = in_turns([_bound(size, d) for d in ("cpu", engine, EverySecond(engine))])
    cpu, whole, turns = (float(np.median(rounds)) for rounds in found)
    slower = found[0] if cpu > whole else found[1]
    border = (turns - (cpu + whole) / 2) / 15
    times = [f"{seconds * 1e6:.1f}" for seconds in (cpu, whole, turns, border)]
    return [engine, size, *times, str(ratio(found[2], slower))]


# -- report ---------------------------------------------------------------------------------------


def report(rows: Sequence[Row]) -> str:
    header = ["model", "engine", "op by op", "whole", "its ops", "copies", "mixed", "its parts",
              "copies", "remarks"]  # fmt: skip
    return table(header, [_cells(row) for row in rows], left=10)


def _cells(row: Row) -> list[object]:
    if "error" in row:
        return [row["model"], row["engine"], *[""] * 7, row["error"]]
    cells: list[object] = [row["model"], row["engine"], _apart_text(row["apart"])]
    for name in ("whole", "mixed"):
        found = row[name]
        mark = "" if found["is_near"] else "NOT NEAR: "
        size = found["its_ops"] if name == "whole" else found["its_parts"]
        cells += [mark + found["gap"], size, found["copies"]]
    return [*cells, _remarks(row)]


def _apart_text(found: Row | None) -> str:
    if found is None:
        return "-"
    far = f"; {len(found['far'])} far" if found["far"] else ""
    return f"{found['taken']}/{found['ops']}: {found['units']} units, {found['share']:.0e}{far}"


def _remarks(row: Row) -> str:
    said = [f"{n} refused: {why}" for why, n in ((row["apart"] or {}).get("refused") or {}).items()]
    return "; ".join([*said, *(f"far: {far}" for far in (row["apart"] or {}).get("far", [])[:3])])


def is_sound(row: Row) -> bool:
    """Answers are near, and an engine that takes pointers copies nothing."""
    if "error" in row:
        return False
    ways = row["whole"], row["mixed"]
    takes_pointers = row["engine"] in ("openvino", "onnxruntime")
    return all(w["is_near"] and not (takes_pointers and w["copies"]) for w in ways)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    engines = options.engines.split(",")
    if options.costs:
        text = costs(engines)
        print(text)
        if options.write:
            _write("What a foreign part costs", text)
        return 0
    paths = model_paths(options.paths, options.models)
    if options.here:
        for path in paths:
            for row in rows_of(path, engines, not options.no_op_by_op):
                _keep(options.rows, row)
        return 0
    flags = ["--no-op-by-op"] if options.no_op_by_op else []
    rows = make_rows(paths, engines, options.rows, flags)
    text = report(rows)
    print(text)
    sound = sum(map(is_sound, rows))
    print(f"\n{sound} of {len(rows)} rows are as they should be", file=sys.stderr)
    if options.write:
        _write("Other engines as delegates", text)
    return int(sound < len(rows))


def _write(title: str, text: str) -> None:
    write_section(title.lower(), f"## {title}\n\n{machine_line()}\n\n{text}")


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("paths", nargs="*", help="models, default all shared ones")
    made.add_argument("--models", default="", help="words that a name has to contain one of")
    made.add_argument("--engines", default=",".join(ENGINES))
    made.add_argument("--rows", type=Path, default=Path("foreign_delegates.jsonl"))
    made.add_argument("--no-op-by-op", action="store_true", help="whole and mixed only")
    made.add_argument("--costs", action="store_true", help="measure instead; on a quiet machine")
    made.add_argument("--write", action="store_true", help="into RESULTS.md")
    made.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    return made


if __name__ == "__main__":
    sys.exit(main())

"""Are compiled models right? Against the definitions op by op, and on real pictures.

    python -m benchmarks.agreement --write

Op by op: every op gets the values that the reference delegate computed for its inputs, and runs
compiled, apart from its neighbours (one part in which no op reads another's result). Integers may
be one unit off, floats 1e-4 of the output's range. Whole: the same input through all of the model,
fused as users run it. Pictures: the class that each ImageNet classifier names first, against
LiteRT on the same inputs.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sanderling import load
from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.ir import Array, Graph, Model, Op, Tensor
from sanderling.ir.graph import copy_graph
from sanderling.measure.inputs import feeds
from sanderling.measure.machine import machine_line
from sanderling.ops.execute import evaluate, initial_value, new_state
from sanderling.passes.simplify import fold_constants
from sanderling.runtime.binding import bind_outputs
from sanderling.runtime.delegate import Options
from sanderling.runtime.inputs import Picture, read_picture
from sanderling.runtime.specialise import specialise

from .common import SHARED, fresh_cache, model_paths, table, write_section

# How each classifier wants its pictures, and whether its classes begin with a background.
CLASSIFIERS: dict[str, tuple[Picture, int]] = {
    "efficientnet_lite0_224_f32": (Picture((127,), (128,)), 0),
    "squeezenet_v1.0_deepcompressed_f32": (Picture((104, 117, 123), (1,), bgr=True), 0),
    "darknet_tiny_imagenet_f32": (Picture((0,), (255,)), 0),
    "coral_mobilenet_v1_0.25_128_quant": (Picture(), 1),
    "coral_mobilenet_v2_1.0_224_quant": (Picture(), 1),
    "coral_tf2_mobilenet_v2_1.0_224_ptq": (Picture(), 1),
}
FLOAT_TOLERANCE = 1e-4


@dataclass
class Found:
    """What one model's ops gave."""

    model: str
    ops: int = 0  # compared
    elsewhere: int = 0  # not compiled
    units: dict[int, int] = field(default_factory=dict)  # largest gap of an op -> ops
    share: float = 0.0  # the largest gap of a float result, as a share of its range
    far: list[str] = field(default_factory=list)  # ops beyond what is allowed
    whole: str = ""


def apart(graph: Graph, ops: Sequence[Op]) -> tuple[Graph, list[Tensor], list[Tensor]]:
    """A graph of these ops in which none reads another's result; what it is fed and what it makes,
    as tensors of the first graph."""
    wanted = list(
        dict.fromkeys(t for op in ops for t in op.inputs if t is not None and not t.is_constant)
    )
    made, twins = copy_graph(graph, [], wanted, [])
    outputs: list[Tensor] = []
    for op in ops:
        results = [t.copy() for t in op.outputs]
        for result in results:
            result.name = f"{result.name}/computed"
        made.enlist(*results, *(t for t in op.inputs if t is not None and t.is_constant))
        made.append(op.copy([t and twins.get(t, t) for t in op.inputs], results, []))
        made.outputs += results
        outputs += op.outputs
    return made, wanted, outputs


def op_by_op(model: Model, name: str = "", seed: int = 0) -> Found:
    """Every op of the main graph on the values that the definitions give."""
    graph, _ = specialise(model.main, [t.shape for t in model.main.inputs])
    fold_constants(graph)
    values = dict(zip(graph.inputs, feeds(model, seed), strict=True))
    values |= {t: initial_value(t) for t in graph.tensors if t.is_variable}
    state, delegate = new_state(), CpuDelegate()
    taken: list[Op] = []
    for op, reason in zip(graph.ops, delegate.refuses_each(graph.ops), strict=True):
        inputs = [None if t is None else values.get(t, t.data) for t in op.inputs]
        values.update(zip(op.outputs, evaluate(op, inputs, state), strict=True))
        if reason is None and not any(t is not None and t.is_variable for t in op.inputs):
            taken.append(op)
    found = Found(name, len(taken), len(graph.ops) - len(taken))
    part, given, made = apart(graph, taken)
    results: list[Array | None] = [np.empty(t.shape, t.dtype.numpy) for t in made]
    arrays = [np.ascontiguousarray(values[t]) for t in given]
    delegate.compile(part, Options(1, state)).run(arrays, results)
    for tensor, result in zip(made, results, strict=True):
        assert result is not None and tensor.producer is not None
        _compare(found, tensor.producer, result, values[tensor])
    return found


def _compare(found: Found, op: Op, ours: Array, wanted: Array) -> None:
    if ours.dtype.kind in "iub":
        gap = int(np.abs(ours.astype(np.int64) - wanted.astype(np.int64)).max(initial=0))
        found.units[gap] = found.units.get(gap, 0) + 1
        too_far = gap > 1
    else:
        gap = _share(ours, wanted)
        found.share = max(found.share, gap)
        too_far = gap > FLOAT_TOLERANCE
    if too_far:
        found.far.append(f"{op.where}: {gap:.2g}")


def _share(ours: Array, wanted: Array) -> float:
    """The largest gap as a share of the largest value; what is not finite must be equal."""
    usual = np.isfinite(wanted)
    if not np.array_equal(ours[~usual], wanted[~usual], equal_nan=True):
        return np.inf
    span = float(np.abs(wanted[usual]).max(initial=0.0)) or 1.0
    return float(np.abs(ours[usual] - wanted[usual]).max(initial=0.0)) / span


def whole(model: Model, seed: int = 0) -> str:
    """All of the model, fused: the gap of its outputs, in words."""
    arrays = feeds(model, seed)
    ours, wanted = (_answers(model, name, arrays) for name in ("cpu", "reference"))
    gaps = []
    for a, b in zip(ours, wanted, strict=True):
        if a.dtype.kind in "iub":
            far = np.abs(a.astype(np.int64) - b.astype(np.int64))
            gaps.append(f"{far.max(initial=0)} units, {np.mean(far > 0):.2%} differ")
        else:
            gaps.append(f"{_share(a, b):.0e}")
    return "; ".join(gaps)


def _answers(model: Model, delegate: str, arrays: Sequence[Array]) -> list[Array]:
    session = model.compile([delegate])  # held: its plans call those of other graphs through it
    return bind_outputs(session.plan(), arrays).run()


# -- pictures -----------------------------------------------------------------------------------


@dataclass
class Top1:
    """Classes named first: how often ours is LiteRT's, and how often each is right."""

    model: str
    pictures: int
    same: int
    tied: int  # of those that are not the same: LiteRT's scores of the two classes are equal
    ours: int
    theirs: int


def pictures(limit: int) -> Iterator[tuple[Path, int]]:
    """Files and their classes (of 1000), spread evenly over the set."""
    folder = SHARED / "datasets" / "imagenet600"
    with (folder / "labels.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    for row in rows[:: max(1, len(rows) // limit)][:limit]:
        yield folder / "img" / row["file"], int(row["class1000"])


def top1(path: Path, limit: int) -> Top1:
    """The classifier on pictures, by the compiler and by LiteRT's reference kernels or, for float
    models, its default ones."""
    from ai_edge_litert import interpreter as litert

    how, background = CLASSIFIERS[path.stem]
    model = load(path)
    tensor = model.main.inputs[0]
    resolver = litert.OpResolverType
    kind = resolver.AUTO if tensor.dtype.is_float else resolver.BUILTIN_REF
    judge = litert.Interpreter(str(path), experimental_op_resolver_type=kind, num_threads=2)
    judge.allocate_tensors()
    place = judge.get_input_details()[0]["index"]
    out = judge.get_output_details()[0]["index"]
    session = model.compile(["cpu"])
    found = Top1(path.stem, 0, 0, 0, 0, 0)
    for file, label in pictures(limit):
        x = read_picture(file, tensor, how)
        judge.set_tensor(place, x)
        judge.invoke()
        scores = judge.get_tensor(out).reshape(-1)
        mine, theirs = int(np.argmax(session(x))), int(np.argmax(scores))
        found.pictures += 1
        found.same += mine == theirs
        found.tied += mine != theirs and scores[mine] == scores[theirs]
        found.ours += mine == label + background
        found.theirs += theirs == label + background
    return found


# -- report -------------------------------------------------------------------------------------


def report(ops: Sequence[Found], tops: Sequence[Top1]) -> str:
    header = [
        "model",
        "ops compared",
        "not compiled",
        "integer results identical",
        "one unit off",
        "more",
        "largest share of the range (float)",
        "the whole model",
    ]
    rows = [
        [
            f.model,
            f.ops,
            f.elsewhere,
            f.units.get(0, 0),
            f.units.get(1, 0),
            sum(n for gap, n in f.units.items() if gap > 1),
            f"{f.share:.0e}",
            f.whole,
        ]
        for f in ops
    ]
    parts = [table(header, rows)] if rows else []
    far = [f"- {f.model}: {text}" for f in ops for text in f.far]
    parts += ["Beyond what is allowed:\n\n" + "\n".join(far)] if far else []
    if tops:
        header = [
            "classifier",
            "pictures",
            "same first class as LiteRT",
            "ties among the others",
            "right",
            "LiteRT right",
        ]
        parts.append(
            table(header, [[t.model, t.pictures, t.same, t.tied, t.ours, t.theirs] for t in tops])
        )
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    ops, tops = [], []
    with fresh_cache():
        for path in model_paths(options.paths, options.models):
            print(path.stem, file=sys.stderr, flush=True)
            model = load(path)
            ops.append(op_by_op(model, path.stem))
            ops[-1].whole = whole(model)
            if path.stem in CLASSIFIERS and options.pictures:
                tops.append(top1(path, options.pictures))
    text = report(ops, tops)
    print(text)
    if options.write:
        write_section("agreement", f"## Agreement\n\n{machine_line()}\n\n{text}")
    return int(any(f.far for f in ops))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", metavar="MODEL", help="default: all shared ones")
    parser.add_argument("--models", default="", help="words, one of which a model's name has")
    parser.add_argument("--pictures", type=int, default=600, help="for each classifier; 0: none")
    parser.add_argument("--write", action="store_true", help="update benchmarks/RESULTS.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())

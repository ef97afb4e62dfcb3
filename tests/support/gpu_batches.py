"""Many conformance cases in one model: a driver's compiler begins once for all of them.

    said = complaints(rows, precision="f32")       # by the row's id; "" where nothing is wrong

PoCL takes 0.1 s to begin a program, more than for the kernels of a case. Cases that share no tensor
share no kernel's work either, so that what is right in a batch is right alone. A case that is not
right there, and all cases of a batch that does not run, run again alone.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from sanderling.ir import Array, Graph, Model
from sanderling.ir.graph import copy_graph
from tests.conformance.harness import Case

from .cpu_conformance import refused, run
from .gpu_conformance import Range, check_gpu, gpu, judge


def complaints(rows: Sequence[Case], **options: Any) -> dict[str, str]:
    """What is wrong with each case; "" if nothing is."""
    found = _in_a_batch(rows, options)
    return {row.id: said and _alone(row, options) for row, said in found.items()}


def ordinary_complaints(rows: Sequence[Case], within: Range, **options: Any) -> dict[str, str]:
    """What is wrong with each case, alone and on ordinary numbers."""
    return {row.id: _alone(row, {**options, "within": within}) for row in rows}


def stratified(rows: Sequence[Case], seed: int = 0) -> list[Case]:
    """In an order of which any beginning is spread over all: first a case of every operator, then a
    second of each, with other types where there are any, and so on."""
    ops: dict[str, dict[str, list[Case]]] = defaultdict(lambda: defaultdict(list))
    for row in random.Random(seed).sample(rows, len(rows)):
        kinds = "-".join("" if t is None else t.dtype for t in row.inputs)
        ops[row.op][kinds].append(row)
    turns = [_in_turn(list(kinds.values())) for kinds in ops.values()]
    return _in_turn(turns)


def _in_turn(lists: Sequence[Sequence[Case]]) -> list[Case]:
    """The first of each, then the second of each, and so on."""
    rounds = zip_longest(*lists)
    return [row for each in rounds for row in each if row is not None]


def is_joinable(row: Case) -> bool:
    """Whether a case has one run, and shapes that are known."""
    graph = row.model().main
    known = not any(t.is_dynamic or t.is_variable for t in graph.tensors)
    return row.runs == 1 and known and not any(op.subgraphs for op in graph.ops)


def joined(models: Sequence[Model]) -> Model:
    """A model that computes what all of them do, side by side."""
    whole = Graph("batch")
    for number, model in enumerate(models):
        main = model.main
        own, _ = copy_graph(main, main.ops, main.inputs, main.outputs)
        for tensor in own.tensors:
            tensor.name = f"{tensor.name}_{number}"
        whole.tensors += own.tensors
        whole.inputs += own.inputs
        whole.outputs += own.outputs
        whole.ops += own.ops  # their tensors know them already
    return Model([whole])


def _in_a_batch(rows: Sequence[Case], options: dict[str, Any]) -> dict[Case, str]:
    if len(rows) < 2 or not all(map(is_joinable, rows)):
        return dict.fromkeys(rows, "it does not run in a batch")
    models = [row.model() for row in rows]
    rngs = (np.random.default_rng(0) for _ in rows)
    feeds = [
        list(map(np.asarray, row.arrays(m, rng)))
        for row, m, rng in zip(rows, models, rngs, strict=True)
    ]
    try:
        results = _run(joined(models), [a for feed in feeds for a in feed], options)
    except Exception as error:  # whatever it is, each case is looked at alone
        return dict.fromkeys(rows, f"{type(error).__name__}: {error}")
    said = {}
    for row, model, feed in zip(rows, models, feeds, strict=True):
        ours, results = results[: len(model.main.outputs)], results[len(model.main.outputs) :]
        said[row] = _judged(row, model, ours, run(model.compile(["reference"]), feed))
    return said


def _run(model: Model, arrays: Sequence[Array], options: dict[str, Any]) -> list[Array]:
    delegate = gpu(**options)
    session = model.compile([delegate])
    reasons = refused(session, delegate, arrays)  # type: ignore[arg-type]
    assert not reasons, reasons
    return run(session, arrays)


def _judged(row: Case, model: Model, ours: Sequence[Array], theirs: Sequence[Array]) -> str:
    try:
        judge(row, 0, model, ours, theirs)
    except AssertionError as error:
        return str(error)
    return ""


def _alone(row: Case, options: dict[str, Any]) -> str:
    try:
        check_gpu(row, **options)
    except Exception as error:  # whatever it is, the case is not right
        return f"{type(error).__name__}: {error}"[:400]
    return ""

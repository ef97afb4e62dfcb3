"""The conformance table on the cpu delegate: every target this machine runs or emulates, judged by
the reference definitions; the others are compiled and linked.

    @pytest.mark.parametrize("target", TARGET_NAMES)
    @pytest.mark.parametrize("row", cases_of("CONV_2D", "DEPTHWISE_CONV_2D"), ids=lambda r: r.id)
    def test_conv(row, target):
        check_cpu(row, target)
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.isa.targets import TARGETS, emulatable, host_target, runnable
from sanderling.ir import Array, Model
from sanderling.ir.graph import copy_graph
from sanderling.runtime.delegate import Limits, partition
from sanderling.runtime.plan import specialise
from sanderling.runtime.session import Session
from tests.conformance.cases import CASES
from tests.conformance.harness import Case, difference

from .aarch64_qemu import run_aarch64

# A case costs a compilation. `make test` takes a few cases of each operator, spread over its list,
# on the host's target, and other machines' targets take turns; `make test-all` takes all cases on
# all targets.
EVERYTHING = bool(os.environ.get("SANDERLING_TEST_ALL"))
OTHERS = ("avx512vnni", "avx2", "generic", "neondot")
TARGET_NAMES = tuple(TARGETS) if EVERYTHING else (*dict.fromkeys((host_target().name, *OTHERS)),)
# The host's own first. Emulated code takes long to compile: `make test` runs it where targets take
# turns, `make test-all` everywhere.
RUNNABLE = sorted((n for n in TARGET_NAMES
                   if runnable(TARGETS[n]) or (EVERYTHING and emulatable(TARGETS[n]))),
                  key=lambda name: name != host_target().name)  # fmt: skip
# Floats: 1e-5 of the largest output, on top of what the case itself allows.
FLOAT_TOLERANCE = 1e-5


MOST_CASES = 1 << 30 if EVERYTHING else 5


def cpu_for(target: str | None = None, **options: Any) -> CpuDelegate:
    """The delegate for this target; instructions that the machine lacks are emulated."""
    return CpuDelegate(target, **{"cache": False, "emulate": True, **options})


RUNNABLE_ROWS = [cpu_for(name).target for name in RUNNABLE]


def cases_of(*ops: str) -> list[Case]:
    """The cases of these operators (all of them, if none is named), thinned out evenly."""
    found: dict[str, list[Case]] = defaultdict(list)
    for row in CASES:
        if not ops or row.op in ops:
            found[row.op].append(row)
    return [row for rows in found.values() for row in rows[:: -(-len(rows) // MOST_CASES)]]


def in_turns(cases: Sequence[Case]) -> list[Any]:
    """Every case on the host's target; of the other targets each takes its turn, or all."""
    others = [t for t in TARGET_NAMES if t != host_target().name]
    chosen = [(row, host_target().name) for row in cases]
    for index, target in enumerate(others):
        chosen += [(row, target) for row in (cases if EVERYTHING else cases[index :: len(others)])]
    return [pytest.param(row, target, id=f"{row.id}|{target}") for row, target in chosen]


def check_cpu(case: Case, target: str | None = None, threads: int = 1, seed: int = 0,
              emulate: bool = False) -> str:  # fmt: skip
    """Run the case on the cpu delegate and compare with the reference delegate.

    Returns "" if every op ran on the cpu, else the delegate's reasons against the others. A target
    of another architecture is compiled, not run; with `emulate`, AArch64 code runs in qemu.
    """
    delegate = cpu_for(target)
    model = case.model()
    rng = np.random.default_rng(seed)
    feeds = [[np.asarray(a) for a in case.arrays(model, rng)] for _ in range(case.runs)]
    loose = replace(case, tol=case.tol + FLOAT_TOLERANCE)
    reference = model.compile(["reference"])
    if not runnable(delegate.target):
        reasons = compile_only(model, delegate, feeds[0])
        if emulate and not reasons:
            ours = run_emulated(model, delegate, feeds[0])
            compare(loose, 0, ours, run(reference, feeds[0]))
        return reasons
    cpu = model.compile([delegate], threads=threads)
    for step, arrays in enumerate(feeds):
        compare(loose, step, run(cpu, arrays), run(reference, arrays))
    return refused(cpu, delegate, feeds[-1])


def compare(case: Case, step: int, ours: Sequence[Array], theirs: Sequence[Array]) -> None:
    for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        problem = difference(case, a, b)
        assert problem is None, f"{case.id}: run {step}, output {index}: {problem}"


def run_emulated(model: Model, delegate: CpuDelegate, arrays: Sequence[Array]) -> list[Array]:
    """The whole graph as one part, in qemu."""
    graph, _ = specialise(model.main, [a.shape for a in arrays])
    own, _ = copy_graph(graph, graph.ops, graph.inputs, graph.outputs)
    outputs = [np.zeros(t.shape, t.dtype.numpy) for t in graph.outputs]
    run_aarch64(delegate.compiled(own), arrays, outputs)
    return outputs


def run(session: Session, arrays: Sequence[Array]) -> list[Array]:
    """One run on arrays in the order of the main graph's inputs."""
    plan = session.plan(shapes=[a.shape for a in arrays])
    outputs = plan.bind(arrays, [None] * len(session.model.main.outputs)).run()
    return [a.copy() for a in outputs]


def refused(session: Session, delegate: CpuDelegate, arrays: Sequence[Array]) -> str:
    """Why ops did not run on the delegate; every op that runs elsewhere has a reason."""
    found = session.plan(shapes=[a.shape for a in arrays]).partition
    reasons = []
    for part in found.parts:
        for op in part.ops if part.delegate is not delegate else []:
            said = [r.reason for r in found.refusals.get(op, ()) if r.delegate == delegate.name]
            assert said, f"{op.where} runs on {part.delegate.name} and nobody says why"
            assert not said[0].startswith("it failed"), f"{op.where}: {said[0]}"
            reasons.append(f"{op.where}: {said[0]}")
    return "; ".join(reasons)


def compile_only(model: Model, delegate: CpuDelegate, arrays: Sequence[Array]) -> str:
    """Emit, compile and link what the delegate takes; the reasons against the rest."""
    graph, _ = specialise(model.main, [a.shape for a in arrays])
    found = partition(graph, [delegate], Limits())
    taken = [op for op in graph.ops if op not in found.refusals]
    for op in taken:
        inputs = dict.fromkeys(t for t in op.inputs if t is not None and not t.is_constant)
        own, _ = copy_graph(graph, [op], list(inputs), op.outputs)
        delegate.compiled(own)
    return "; ".join(f"{op.where}: {r[0].reason}" for op, r in found.refusals.items())

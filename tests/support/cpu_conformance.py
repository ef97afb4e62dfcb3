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
from itertools import cycle, product
from typing import Any, TypeVar
from zlib import crc32

import numpy as np
import pytest

from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.isa.targets import TARGETS, emulatable, host_target, runnable
from sanderling.ir import Array, Graph, Op
from sanderling.ir.graph import copy_graph
from sanderling.ops.execute import initial_value
from sanderling.runtime.binding import bind_outputs
from sanderling.runtime.partition import Limits, partition
from sanderling.runtime.session import Session
from sanderling.runtime.specialise import specialise
from tests.conformance.cases import CASES
from tests.conformance.harness import Case, difference

from .aarch64_qemu import run_aarch64

# A case costs a compilation. `make test` takes a few cases of each operator, spread over its list,
# on the host's target, and other machines' targets take turns; `make test-all` takes all cases on
# all targets.
EVERYTHING = bool(os.environ.get("SANDERLING_TEST_ALL"))
OTHERS = ("avx512vnni", "avx2", "generic", "i8mm")
TARGET_NAMES = tuple(TARGETS) if EVERYTHING else (*dict.fromkeys((host_target().name, *OTHERS)),)
# The host's own first. `make test` runs other targets where they take turns, and a share of all
# tests as an older machine; `make test-all` runs everything on all of them.
RUNNABLE = sorted(
    (n for n in TARGETS if runnable(TARGETS[n]) or emulatable(TARGETS[n])),
    key=lambda name: name != host_target().name,
)[: None if EVERYTHING else 1]
Thing = TypeVar("Thing")
# Floats: 1e-5 of the largest output, on top of what the case itself allows.
FLOAT_TOLERANCE = 1e-5
# The definition multiplies -inf by 0; the compiled code's logistic is never 0. See docs/runtime.
GELU_OF_INFINITY = "GELU|special|f32|14|approximate=True"


MOST_CASES = 1 << 30 if EVERYTHING else 4
# Emulated code takes ten times as long to compile: of the cases on such a target, one in so many is
# run, and the others are compiled for the target itself. `make test-hosts` runs all.
EMULATED_SHARE = 1 if EVERYTHING else 8


def cpu_for(target: str | None = None, **options: Any) -> CpuDelegate:
    """The delegate for this target; instructions that the machine lacks are emulated."""
    return CpuDelegate(target, **{"cache": False, "emulate": True, **options})


RUNNABLE_ROWS = [cpu_for(name).target for name in RUNNABLE]


def is_computed_once(case: Case) -> bool:
    """Its operands are constants, which no delegate is asked about."""
    stored = (t is None or (t.data is not None and not t.fed) for t in case.inputs)
    return bool(case.inputs) and all(stored)


def cases_of(*ops: str) -> list[Case]:
    """The cases of these operators (all of them, if none is named), thinned out evenly."""
    found: dict[str, list[Case]] = defaultdict(list)
    for row in CASES:
        if (not ops or row.op in ops) and not is_computed_once(row):
            found[row.op].append(row)
    return [row for rows in found.values() for row in rows[:: -(-len(rows) // MOST_CASES)]]


def in_turns(cases: Sequence[Case]) -> list[Any]:
    """Every case on one target: the host's has every second turn, the others share the rest. Or
    every case on every target."""
    others = [t for t in TARGET_NAMES if t != host_target().name]
    turns = cycle([name for other in others for name in (host_target().name, other)])
    pairs = product(cases, TARGET_NAMES) if EVERYTHING else zip(cases, turns, strict=False)
    return [pytest.param(row, target, id=f"{row.id}|{target}") for row, target in pairs]


def share_of(
    things: Sequence[Thing], target: str, place: int = 0, host: int = 1, others: int = 4
) -> Sequence[Thing]:
    """What is tried on a target: one in `host` on the host's, one in `others` on another, from a
    place of its own. In `make test-all` everything."""
    each = 1 if EVERYTHING else host if target == host_target().name else others
    return things[(TARGET_NAMES.index(target) + place) % each :: each]


def check_cpu(
    case: Case, target: str | None = None, threads: int = 1, seed: int = 0, emulate: bool = False
) -> str:
    """Run the case on the cpu delegate and compare with the reference delegate.

    Returns "" if every op ran on the cpu, else the delegate's reasons against the others. A target
    of another architecture is compiled, not run, and so are most cases on a target whose
    instructions this machine lacks; with `emulate`, AArch64 code runs in qemu.
    """
    delegate = cpu_for(target, emulate=crc32(case.id.encode()) % EMULATED_SHARE == 0)
    model = case.model()
    rng = np.random.default_rng(seed)
    feeds = [[np.asarray(a) for a in case.arrays(model, rng)] for _ in range(case.runs)]
    loose = replace(case, tol=case.tol + FLOAT_TOLERANCE)
    reference = model.compile(["reference"])
    if not runnable(delegate.target):
        graph, _ = specialise(model.main, [a.shape for a in feeds[0]])
        reasons = reasons_against(graph, delegate)
        if emulate and not reasons and delegate.target.triple.startswith("aarch64"):
            compare(loose, 0, run_emulated(graph, delegate, feeds[0]), run(reference, feeds[0]))
        else:
            compile_only(graph, delegate, [op for op in graph.ops if op.where not in reasons])
        return "; ".join(f"{where}: {reason}" for where, reason in reasons.items())
    cpu = model.compile([delegate], threads=threads)
    for step, arrays in enumerate(feeds):
        compare(loose, step, run(cpu, arrays), run(reference, arrays))
    return refused(cpu, delegate, feeds[-1])


def compare(case: Case, step: int, ours: Sequence[Array], theirs: Sequence[Array]) -> None:
    for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        problem = difference(case, a, b)
        assert problem is None, f"{case.id}: run {step}, output {index}: {problem}"


def run_emulated(graph: Graph, delegate: CpuDelegate, arrays: Sequence[Array]) -> list[Array]:
    """The whole graph, whose shapes are known, as one part in qemu; variables are inputs of it."""
    operands = [t for op in graph.ops for t in op.inputs if t is not None]
    states = list(dict.fromkeys(t for t in operands if t.is_variable))
    own, _ = copy_graph(graph, graph.ops, [*graph.inputs, *states], graph.outputs)
    outputs = [np.zeros(t.shape, t.dtype.numpy) for t in graph.outputs]
    run_aarch64(delegate.compiled(own), [*arrays, *map(initial_value, states)], outputs)
    return outputs


def run(session: Session, arrays: Sequence[Array]) -> list[Array]:
    """One run on arrays in the order of the main graph's inputs."""
    plan = session.plan(shapes=[a.shape for a in arrays])
    outputs = bind_outputs(plan, arrays).run()
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


def reasons_against(graph: Graph, delegate: CpuDelegate) -> dict[str, str]:
    """Of each op that the delegate does not take."""
    found = partition(graph, [delegate], Limits()).refusals
    return {op.where: refusals[0].reason for op, refusals in found.items()}


def compile_only(graph: Graph, delegate: CpuDelegate, ops: Sequence[Op]) -> None:
    """Emit, compile and link each of these ops."""
    for op in ops:
        inputs = dict.fromkeys(t for t in op.inputs if t is not None and not t.is_constant)
        own, _ = copy_graph(graph, [op], list(inputs), op.outputs)
        delegate.compiled(own)

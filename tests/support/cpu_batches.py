"""Every conformance case on every target of the CPU compiler, many of them in one model.

    python -m tests.support.cpu_batches [OPERATOR...] [--targets avx2,neon] [--workers 2]

A case alone costs a compilation; side by side, cases share what every compilation costs. Cases have
no tensor in common, so that what is right in a batch is right alone; and a case that is not right
there, or cannot stand in a batch, runs alone. Code for targets that this machine cannot run is
compiled and linked. Prints what is wrong; exit status 1 if anything is.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace

import numpy as np

from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.isa.targets import TARGETS, emulatable, runnable
from sanderling.ir import Graph, Op
from sanderling.ir.graph import copy_graph
from sanderling.runtime.specialise import specialise
from tests.conformance.cases import CASES
from tests.conformance.harness import Case, difference

from .cpu_conformance import (
    FLOAT_TOLERANCE,
    GELU_OF_INFINITY,
    check_cpu,
    cpu_for,
    is_computed_once,
    reasons_against,
    refused,
    run,
)
from .gpu_batches import is_joinable, joined

BATCH = 24
Numbers = tuple[int, ...]  # of cases, in CASES


def main() -> int:
    args = _arguments()
    targets = args.targets.split(",") if args.targets else list(TARGETS)
    chosen = [i for i, row in enumerate(CASES) if _is_meant(row, args.operators)]
    if not chosen or not set(targets) <= set(TARGETS):
        print(f"no such operator or target; targets are {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    tasks = [(target, batch) for target in targets for batch in _batches(chosen)]
    begin, wrong, done = time.monotonic(), 0, 0
    with ProcessPoolExecutor(args.workers) as pool:
        waiting = {pool.submit(complaints, *task): task for task in tasks}
        for number, future in enumerate(as_completed(waiting), 1):
            for said in future.result():
                print(said, flush=True)
                wrong += 1
            done += len(waiting[future][1])
            if number % 50 == 0:
                so_far = f"{done} of {len(chosen) * len(targets)}, {wrong} wrong"
                print(f"{time.monotonic() - begin:.0f} s: {so_far}", file=sys.stderr, flush=True)
    print(f"{done - wrong} passed, {wrong} failed")
    return bool(wrong)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operators", nargs="*", help="default: all")
    parser.add_argument("--targets", default="", help="default: all")
    parser.add_argument("--workers", type=int, default=2)
    return parser.parse_args()


def _is_meant(row: Case, operators: Sequence[str]) -> bool:
    if row.id == GELU_OF_INFINITY or is_computed_once(row):
        return False
    return not operators or row.op in operators


def _batches(chosen: Sequence[int]) -> Iterator[Numbers]:
    """Cases of a kind together; those that cannot be joined alone."""
    together = [i for i in chosen if is_joinable(CASES[i])]
    for first in range(0, len(together), BATCH):
        yield tuple(together[first : first + BATCH])
    for i in sorted(set(chosen) - set(together)):
        yield (i,)


def complaints(target: str, numbers: Numbers) -> list[str]:
    """What is wrong with these cases on the target."""
    warnings.simplefilter("ignore")
    rows = [CASES[i] for i in numbers]
    if len(rows) > 1 and not _wrong_together(target, rows):
        return []
    return [said for row in rows if (said := _wrong_alone(target, row))]


def _wrong_together(target: str, rows: Sequence[Case]) -> bool:
    try:
        _check_together(target, rows)
    except Exception:  # whatever it is, each case is looked at alone
        return True
    return False


def _check_together(target: str, rows: Sequence[Case]) -> None:
    models = [row.model() for row in rows]
    feeds = [
        list(map(np.asarray, row.arrays(model, np.random.default_rng(0))))
        for row, model in zip(rows, models, strict=True)
    ]
    whole, arrays = joined(models), [a for feed in feeds for a in feed]
    row_of_target = TARGETS[target]
    delegate = cpu_for(target, emulate=emulatable(row_of_target))
    if not runnable(delegate.target):
        graph, _ = specialise(whole.main, [a.shape for a in arrays])
        reasons = reasons_against(graph, delegate)
        _compile(graph, delegate, [op for op in graph.ops if op.where not in reasons])
        return
    session = whole.compile([delegate])
    results = run(session, arrays)
    refused(session, delegate, arrays)  # each with a reason
    for row, model, feed in zip(rows, models, feeds, strict=True):
        ours, results = results[: len(model.main.outputs)], results[len(model.main.outputs) :]
        loose = replace(row, tol=row.tol + FLOAT_TOLERANCE)
        theirs = run(model.compile(["reference"]), feed)
        for mine, its in zip(ours, theirs, strict=True):
            assert difference(loose, mine, its) is None


def _compile(graph: Graph, delegate: CpuDelegate, ops: Sequence[Op]) -> None:
    """Emit, compile and link these ops as one part."""
    made = dict.fromkeys(t for op in ops for t in op.outputs)
    read = dict.fromkeys(t for op in ops for t in op.inputs if t is not None and not t.is_constant)
    own, _ = copy_graph(graph, ops, [t for t in read if t not in made], made)
    delegate.compiled(own)


def _wrong_alone(target: str, row: Case) -> str:
    try:
        check_cpu(row, target)
    except Exception as error:  # whatever it is, the case is not right
        return f"{target}: {row.id}: {type(error).__name__}: {error}"[:400]
    return ""


if __name__ == "__main__":
    sys.exit(main())

"""Models of a few ops, ours beside LiteRT: there fixed costs and ops without a kernel show.

    python -m benchmarks.small [NAME...] [--rounds 100]

Rows: the files of shared/models/found, if they are there, and small models of control flow, state,
strings and cells from the conformance table. One thread, `Interpreter.invoke` of both in turns, the
best of all rounds in CPU time of the calling thread: on a shared machine believe ratios, not
figures. A row whose answers differ says so.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.common import SHARED, fresh_cache
from sanderling import Interpreter, dump
from tests.conformance.cases import CASES
from tests.conformance.harness import Case

# Operators whose cases are rows, and what a case's name has to contain.
KINDS = {
    "WHILE": "", "IF": "", "STABLEHLO_CASE": "", "STABLEHLO_COMPOSITE": "", "READ_VARIABLE": "",
    "ASSIGN_VARIABLE": "", "CALL_ONCE": "", "ATAN2": "f32", "GATHER": "str", "EQUAL": "str",
    "RESHAPE": "str", "HASHTABLE_FIND": "", "LSTM": "", "BATCH_MATMUL": "by_column",
}  # fmt: skip
MOST = 4  # rows of an operator
SAMPLE = 1e-3  # seconds of calls that one time is taken of


def rows() -> Iterator[tuple[str, bytes, list[Any] | None]]:
    """Name, file, and what to feed (None: random numbers)."""
    for path in sorted((SHARED / "models" / "found").glob("*.tflite")):
        if not path.stem.startswith("hostile"):
            yield path.stem, path.read_bytes(), None
    for op, part in KINDS.items():
        found = [c for c in CASES if c.op == op and part in c.id and c.litert]
        for case in found[:: -(-len(found) // MOST)] if found else ():
            yield case.id, *_case(case)


def _case(case: Case) -> tuple[bytes, list[Any]]:
    model = case.model()
    return dump(model), case.arrays(model, np.random.default_rng(0))


def fed(interpreter: Any, arrays: list[Any] | None) -> Callable[[], None]:
    """The call to time."""
    interpreter.allocate_tensors()
    rng = np.random.default_rng(0)
    for place, row in enumerate(interpreter.get_input_details()):
        value = _random(row, rng) if arrays is None else np.asarray(arrays[place])
        interpreter.set_tensor(row["index"], value)
    interpreter.invoke()
    made: Callable[[], None] = interpreter.invoke
    return made


def _random(row: dict[str, Any], rng: np.random.Generator) -> Any:
    if np.issubdtype(row["dtype"], np.floating):
        return rng.normal(size=row["shape"]).astype(row["dtype"])
    return rng.integers(0, 2, row["shape"]).astype(row["dtype"])


def differ(ours: Any, theirs: Any) -> bool:
    """Whether the answers are farther apart than a hundredth of the largest."""
    for a, b in zip(ours.get_output_details(), theirs.get_output_details(), strict=True):
        mine, other = (i.get_tensor(d["index"]) for i, d in ((ours, a), (theirs, b)))
        if np.asarray(mine).dtype.kind not in "fiu" or not np.size(mine):
            continue
        gap = np.abs(np.asarray(mine, np.float64) - np.asarray(other, np.float64))
        if np.nanmax(gap, initial=0) > 0.01 * np.nanmax(np.abs(other), initial=1e-3):
            return True
    return False


def seconds(call: Callable[[], None], count: int) -> float:
    begin = time.thread_time()
    for _ in range(count):
        call()
    return (time.thread_time() - begin) / count


def measure(data: bytes, arrays: list[Any] | None, rounds: int) -> tuple[float, float, str]:
    """Seconds of ours and of LiteRT's, and a remark."""
    from ai_edge_litert.interpreter import Interpreter as Litert

    ours, theirs = (
        Interpreter(model_content=data, num_threads=1),
        Litert(model_content=data, num_threads=1),
    )
    calls = [fed(i, arrays) for i in (ours, theirs)]
    remark = "answers differ" * differ(ours, theirs)
    count = max(1, int(SAMPLE / max(seconds(c, 3) for c in calls)))
    best = [float("inf")] * 2
    for _ in range(rounds):
        best = [min(b, seconds(c, count)) for b, c in zip(best, calls, strict=True)]
    return best[0], best[1], remark


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names of rows (default: all)")
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    print("| model | ours us | LiteRT us | ratio | |\n| --- | ---: | ---: | ---: | --- |")
    for name, data, arrays in rows():
        if options.names and not any(n in name for n in options.names):
            continue
        try:
            ours, theirs, remark = measure(data, arrays, options.rounds)
        except Exception as error:  # LiteRT does not run all of them; the others go on
            print(f"| {name} | | | | {str(error).splitlines()[0]:.60} |", flush=True)
            continue
        print(
            f"| {name.replace('|', ' ')} | {1e6 * ours:.2f} | {1e6 * theirs:.2f} "
            f"| {ours / theirs:.2f} | {remark} |",
            flush=True,
        )


if __name__ == "__main__":
    with fresh_cache():
        main()

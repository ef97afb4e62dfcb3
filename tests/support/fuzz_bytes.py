"""Mutate real models and see that nothing but our own errors comes out, in bounded time.

    python -m tests.support.fuzz_bytes --count 20000
    python -m tests.support.fuzz_bytes --count 1000 --delegate cpu

Each mutation is loaded, verified, planned, and run if it is small. A result other than success or
a SanderlingError, a run past the time limit, a part that its delegate took and could not compile,
or a dead worker is a finding; its seed repeats it.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import resource
import signal
import sys
import time
import warnings
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sanderling import FallbackWarning, ModelError, SanderlingError, Session, load, verify
from sanderling.ops import cost

from .shared_models import MODELS

TIME_LIMIT = {"reference": 2.0, "cpu": 30.0}  # a compilation takes its time
MEMORY_LIMIT = 8 << 30
RUN_LIMIT = 2_000_000  # multiply-adds and bytes of a model that is also run
LARGEST = 700_000  # file size of the models that are mutated
SLOW_OPS = {"WHILE", "STABLEHLO_WHILE"}  # a mutated loop may rightly run forever
EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 20)


class Outcome(NamedTuple):
    seed: int
    model: str
    kind: str  # ok, refused, or what went wrong
    seconds: float
    detail: str = ""


def corpus() -> list[Path]:
    """The shared models that are small enough, and always those of the package."""
    data = Path(str(files("sanderling") / "data"))
    small = [p for p in MODELS if p.stat().st_size <= LARGEST]
    return [*sorted(data.glob("*.tflite")), *small]


def structure(content: bytes) -> np.ndarray[Any, Any]:
    """Positions of the bytes that are not weights: where mutations matter most."""
    mask = np.ones(len(content), bool)
    base = np.frombuffer(content, np.uint8).ctypes.data
    for graph in load(content).graphs:
        for tensor in graph.constants:
            assert tensor.buffer is not None
            raw = np.frombuffer(tensor.buffer.raw, np.uint8)
            start = raw.ctypes.data - base
            mask[start : start + raw.size] = False
    return np.flatnonzero(mask)


def mutate(content: bytes, places: np.ndarray[Any, Any], rng: np.random.Generator) -> bytes:
    """One to four random injuries of random kinds."""
    data = bytearray(content)
    for _ in range(rng.integers(1, 5)):
        kind = rng.integers(0, 6)
        at = int(rng.choice(places)) if rng.random() < 0.9 else int(rng.integers(len(data)))
        at = min(at, len(data) - 1)
        if kind == 0:
            data[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            data[at] = int(rng.integers(256))
        elif kind == 2 and len(data) > 16:
            word = at & ~3
            data[word : word + 4] = int(rng.choice(EXTREMES)).to_bytes(4, "little")
        elif kind == 3 and rng.random() < 0.3:
            del data[at:]
        elif kind == 4:
            length = int(rng.integers(1, 64))
            source = int(rng.choice(places))
            data[at : at + length] = data[source : source + length]
        else:
            word, other = at & ~3, int(rng.choice(places)) & ~3
            data[word : word + 4], data[other : other + 4] = (
                data[other : other + 4],
                data[word : word + 4],
            )
        if not data:
            return b""
    return bytes(data)


def exercise(content: bytes, delegate: str) -> str:
    """Everything a user's program may do with a file it was sent."""
    model = load(content)
    verify(model)
    session = Session(model, delegate)
    plan = session.plan()
    if is_small(plan.graph.ops, plan.arena.size):
        feeds = {n: np.zeros(t.shape, t.dtype.numpy) for n, t in session.entry(None).inputs.items()}
        session.run(feeds)
        return "ran"
    return "planned"


def is_small(ops: Any, arena: int) -> bool:
    costs = [cost(op) for op in ops]
    total = sum(c.macs + c.bytes_read + c.bytes_written for c in costs)
    return total + arena < RUN_LIMIT and not any(op.name in SLOW_OPS for op in ops)


def attempt(
    seed: int, path: Path, content: bytes, places: np.ndarray[Any, Any], delegate: str
) -> Outcome:
    injured = mutate(content, places, np.random.default_rng(seed))
    begin = time.perf_counter()
    try:
        kind, detail = exercise(injured, delegate), ""
    except SanderlingError as error:
        kind, detail = "refused", "" if isinstance(error, ModelError) else type(error).__name__
    except FallbackWarning as warning:
        kind, detail = "refused" if "MemoryError" in str(warning) else "FELL BACK", str(warning)
    except TooSlowError:
        kind, detail = "HANG", ""
    except Exception as error:
        kind, detail = "ESCAPED", f"{type(error).__name__}: {error}"
    seconds = time.perf_counter() - begin
    kind = "HANG" if seconds > TIME_LIMIT[delegate] else kind
    return Outcome(seed, path.stem, kind, seconds, detail)


class TooSlowError(BaseException):
    """Raised by the alarm; not an Exception, so that no handler swallows it."""


def _alarm(*_: Any) -> None:
    raise TooSlowError


def work(job: tuple[Path, list[int], str]) -> list[Outcome]:
    """Many seeds on one model, in a process of its own limits."""
    path, seeds, delegate = job
    os.environ["SANDERLING_CACHE"] = "off"
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    warnings.simplefilter("ignore")
    warnings.simplefilter("error", FallbackWarning)
    signal.signal(signal.SIGALRM, _alarm)
    content = path.read_bytes()
    places = structure(content)
    found = []
    for seed in seeds:
        signal.setitimer(signal.ITIMER_REAL, 5 * TIME_LIMIT[delegate])
        found.append(attempt(seed, path, content, places, delegate))
        signal.setitimer(signal.ITIMER_REAL, 0)
    return found


def fuzz(
    count: int, first_seed: int = 0, workers: int = 2, chunk: int = 50, delegate: str = "reference"
) -> list[Outcome]:
    """Spread seeds over the corpus. A worker that dies raises BrokenProcessPool."""
    from concurrent.futures import ProcessPoolExecutor

    paths = corpus()
    jobs = [
        (paths[i % len(paths)], list(range(s, min(s + chunk, first_seed + count))), delegate)
        for i, s in enumerate(range(first_seed, first_seed + count, chunk))
    ]
    context = mp.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        found: list[Outcome] = []
        for outcomes in pool.map(work, jobs):
            found += outcomes
            if sys.stderr.isatty():
                print(f"\r{len(found)} of {count}", end="", file=sys.stderr)
    return found


def report(found: list[Outcome]) -> list[Outcome]:
    """Print the figures; return the findings."""
    kinds = Counter(o.kind for o in found)
    slowest = max(found, key=lambda o: o.seconds)
    print(
        f"{len(found)} mutations of {len({o.model for o in found})} models: "
        + ", ".join(f"{n} {k}" for k, n in kinds.most_common())
    )
    print(f"slowest {slowest.seconds:.2f} s ({slowest.model}, seed {slowest.seed})")
    bad = [o for o in found if o.kind in ("HANG", "ESCAPED", "FELL BACK")]
    for outcome in bad[:20]:
        print(f"FOUND {outcome}")
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--delegate", choices=list(TIME_LIMIT), default="reference")
    options = parser.parse_args()
    found = fuzz(options.count, options.seed, options.workers, delegate=options.delegate)
    return 1 if report(found) else 0


if __name__ == "__main__":
    sys.exit(main())

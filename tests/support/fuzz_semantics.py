"""Mutate what models say, not their bytes, and see that nothing but our own errors comes out.

    python -m tests.support.fuzz_semantics --count 100000
    python -m tests.support.fuzz_semantics --seed 4711 --count 1      repeats what a seed found

A mutant is a conformance case (every operator gets an equal share) with a few injuries
(model_mutations.py). It is planned and run on the reference and on the compiled code, which tests
every access to memory, in a child process with bounded memory. Findings: a child that died, a run
past the time limit, an exception that is not ours, a part that its delegate took and could not
compile or run, memory beyond the limit. Answers that differ between the delegates are counted
apart. The seed alone repeats a mutant.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from sanderling import DelegateError, FallbackWarning, SanderlingError, Session, dump, load
from sanderling.delegates.cpu.kernels.elementwise.operands import BYTES
from sanderling.delegates.cpu.table import row_of
from sanderling.evaluate.differences.op_by_op import OpByOpRunner
from sanderling.ir import Array, Graph, Model, Op
from sanderling.ir.graph import reachable
from sanderling.measure.record import Setting
from sanderling.ops.execute import evaluate, new_state

from ..conformance.harness import Case, difference
from .fuzz_bytes import TooSlowError, is_small
from .model_mutations import choose_case, feeds, mutate

TIME_LIMIT = 10.0  # of processor time: others may be at work on the machine
LIMIT = 128 << 20  # SANDERLING_MAX_MEMORY in a child
# LLVM, the code and Python's own objects take memory beside the tensors' and the temporaries'.
MOST_RESIDENT = 3 * LIMIT
ADDRESSES = 6 << 30
RECYCLED = 1 << 30  # a child of this size makes place for a new one
SILENCE = 300.0  # a child that says nothing for so long waits, or hangs outside of Python
DONE = 77  # a worker's exit status: there are no more seeds
LOOPS = {"WHILE", "STABLEHLO_WHILE"}  # a mutated loop may rightly run for ever
RANDOM = {"RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL", "MULTINOMIAL"}
FINDINGS = ("CRASH", "HANG", "ESCAPED", "FELL BACK", "FAILED", "MEMORY")
ENVIRONMENT = {
    "SANDERLING_CACHE": "off",
    "SANDERLING_MAX_MEMORY": str(LIMIT),
    "SANDERLING_CHECKED": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


class Outcome(NamedTuple):
    seed: int
    case: str
    kind: str  # ran, planned, refused; DIFFERS; or one of FINDINGS
    seconds: float
    detail: str = ""


# -- one mutant ---------------------------------------------------------------------------------


def mutant(seed: int) -> tuple[Case, Model, list[Array] | None, list[str]]:
    rng = np.random.default_rng([seed, 12])
    row = choose_case(rng)
    model = row.model()
    done = mutate(model, rng)
    if rng.random() < 0.5:
        with contextlib.suppress(SanderlingError):  # what cannot be written is taken as it is
            model = load(bytes(dump(model)))
    return row, model, feeds(row, model, rng), done


Answers = list[Array] | str  # or why there are none


def answers(model: Model, arrays: list[Array] | None, delegate: str) -> Answers:
    """The outputs, or the error of a run; an error before it is raised."""
    session = Session(model, delegate)
    plan = session.plan()
    if arrays is None or not is_small(
        [op for op in plan.graph.ops if op.name not in LOOPS], plan.arena.size
    ):
        return "planned"
    entry = session.entry(None)
    fed = dict(zip(model.main.inputs, arrays, strict=True))
    try:
        return list(session.run({n: fed[t] for n, t in entry.inputs.items()}).values())
    except DelegateError:
        raise
    except SanderlingError as error:
        return f"{type(error).__name__}: {error}"


def attempt(seed: int) -> Outcome:
    begin = time.perf_counter()
    name, done, loops = "", [""], False
    before = _resident()
    try:
        row, model, arrays, done = mutant(seed)
        name = row.id[:60]
        loops = any(op.name in LOOPS for g in model.graphs for op in g.ops)
        kind, detail = _compared(row, model, arrays)
    except SanderlingError as error:
        kind = "FAILED" if isinstance(error, DelegateError) else "refused"
        detail = f"{type(error).__name__}: {error}"
    except FallbackWarning as warning:
        kind, detail = "FELL BACK", str(warning)
    except TooSlowError:
        kind, detail = "planned" if loops else "HANG", ""
    except MemoryError as error:
        kind, detail = "MEMORY", str(error)
    except Exception as error:
        kind, detail = "ESCAPED", f"{type(error).__name__}: {error} {_place(error)}"
    grown = _peak() - before
    if grown > MOST_RESIDENT and kind not in FINDINGS:
        kind, detail = "MEMORY", f"{grown >> 20} MB; {kind} {detail}"
    return Outcome(seed, name, kind, time.perf_counter() - begin, f"{detail} {done}")


def _compared(row: Case, model: Model, arrays: list[Array] | None) -> tuple[str, str]:
    theirs, ours = (answers(model, arrays, d) for d in ("reference", "cpu"))
    if any(is_chance(op) for graph in model.graphs for op in graph.ops):
        return "ran", "two runs differ"
    if isinstance(theirs, str) and isinstance(ours, str):
        return ("planned" if theirs == "planned" else "refused"), theirs
    if isinstance(theirs, str) and any(op.where in theirs for op in unread(model.main)):
        return "ran", theirs
    if isinstance(theirs, str) or isinstance(ours, str):
        said, who = (theirs, "reference") if isinstance(theirs, str) else (ours, "cpu")
        return "DIFFERS", f"only {who} refuses: {said}"
    for place, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        problem = _gap(row, model, arrays, a, b)
        if problem:
            return "DIFFERS", f"output {place}: {problem}"
    return "ran", ""


def is_chance(op: Op) -> bool:
    """Random numbers from another seed in every session."""
    return op.name in RANDOM and not (op.attrs.get("seed") or op.attrs.get("seed2"))


def unread(graph: Graph) -> list[Op]:
    """Ops of which no output hangs: compiled code leaves them out, with what they would refuse."""
    wanted, found = set(graph.outputs), []
    for op in reversed(graph.ops):
        if wanted.isdisjoint(op.outputs):
            found.append(op)
        else:
            wanted.update(t for t in op.inputs if t is not None)
    return found


# -- answers that may differ --------------------------------------------------------------------


class Excuse(NamedTuple):
    """Ops whose compiled answers may differ from the definition's, and at which elements."""

    claims: Callable[[Op], bool]
    forgives: Callable[[Array, Array], Array]  # ours and the definition's


def is_share(op: Op) -> bool:
    """The definition multiplies -inf by 0; compiled logistic functions are never 0
    (docs/runtime.md). What they leave of 1 is rounded in its units."""
    return op.name in ("GELU", "LOGISTIC")


def is_hybrid(op: Op) -> bool:
    """A cell that quantises on the way: what NaN becomes is not defined, LiteRT has a number."""
    return row_of(op).changes_state and any(
        t is not None and t.dtype in BYTES and t.is_constant for t in op.inputs
    )


def _near_one(ours: Array, theirs: Array) -> Array:
    if ours.dtype != np.float32:
        return np.zeros(ours.shape, bool)
    close = np.isclose(ours, theirs, rtol=0, atol=1e-6)
    return close | (np.isneginf(ours) & np.isnan(theirs))


EXCUSES = (
    Excuse(is_share, _near_one),
    Excuse(is_hybrid, lambda ours, theirs: theirs != theirs),
)


def _gap(row: Case, model: Model, arrays: list[Array], ours: Array, theirs: Array) -> str | None:
    """As the case demands; a mutant's sums may be of other lengths, so that floats get more."""
    if ours.dtype.kind == "O":
        return None if ours.tolist() == theirs.tolist() else "strings differ"
    wide = replace(row, ulps=max(row.ulps, 64), tol=max(row.tol, 1e-4))
    found = difference(wide, ours, theirs)
    every = [op for graph in model.graphs for op in graph.ops]
    if found is None or unexcused(wide, every, ours, theirs):
        return found
    return parting(wide, model, arrays, found)


def unexcused(wide: Case, ops: Sequence[Op], ours: Array, theirs: Array) -> str | None:
    """The difference that no excuse of these ops forgives."""
    if ours.shape == theirs.shape and ours.dtype == theirs.dtype:
        for excuse in EXCUSES:
            if any(map(excuse.claims, ops)):
                theirs = np.where(excuse.forgives(ours, theirs), ours, theirs)
    return difference(wide, ours, theirs)


def within(op: Op) -> list[Op]:
    """The op itself, and those of the graphs that it calls."""
    return [op, *(inner for graph in reachable(op.subgraphs) for inner in graph.ops)]


def parting(wide: Case, model: Model, arrays: list[Array], found: str) -> str | None:
    """What is left of a difference that was found: every op that parts from its definition, on the
    definition's values, must be excused itself, and one op must part."""
    walker = OpByOpRunner(model, Setting(delegates=("cpu",)), shapes=[a.shape for a in arrays])
    walker.prepare(arrays)
    values, state = walker.start(arrays), new_state()
    values |= {t: a.copy() for t, a in walker.variables.items()}
    parted = False
    for node in walker.nodes:
        ours = dict(zip(node.outputs, walker.step(node, values | walker.variables), strict=True))
        given = [None if t is None else walker.value(t, values) for t in node.op.inputs]
        for tensor, theirs in zip(node.op.outputs, evaluate(node.op, given, state), strict=True):
            values[tensor] = theirs
            if difference(wide, ours[tensor], theirs) is not None:
                parted = True
                if unexcused(wide, within(node.op), ours[tensor], theirs):
                    return f"{found}, and {node.op.where} parts"
    return None if parted else found


def _place(error: BaseException) -> str:
    """The innermost line of ours."""
    at = error.__traceback__
    found = ""
    while at is not None:
        name = at.tb_frame.f_code.co_filename
        if "sanderling" in name:
            found = f"({Path(name).name}:{at.tb_lineno})"
        at = at.tb_next
    return found


def _status(field: str) -> int:
    with contextlib.suppress(OSError), Path("/proc/self/status").open() as file:
        for line in file:
            if line.startswith(field):
                return int(line.split()[1]) << 10
    return 0


def _resident() -> int:
    """Bytes in memory; the peak starts again from here."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS:")


def _peak() -> int:
    return _status("VmHWM:")


# -- the child ----------------------------------------------------------------------------------


def _alarm(*_: Any) -> None:
    raise TooSlowError


def serve() -> None:
    """Seeds come in, news goes out, a line of JSON each. The case table is made once; workers are
    forked from here, one after the other has died."""
    news = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nobody else writes between the lines
    while True:
        pid = os.fork()
        if pid == 0:
            _work(news)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == DONE:
            return
        if code != 0:  # else it has made place for another
            _say(news, died=code)


def _say(news: IO[str], **what: Any) -> None:
    print(json.dumps(what), file=news, flush=True)


def _work(news: IO[str]) -> None:
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    warnings.simplefilter("error", FallbackWarning)
    signal.signal(signal.SIGPROF, _alarm)
    _say(news, worker=os.getpid())
    while _status("VmRSS:") < RECYCLED:
        line = os.read(0, 80)  # one seed is under way at a time
        if not line:
            os._exit(DONE)
        _say(news, seed=int(line))
        signal.setitimer(signal.ITIMER_PROF, TIME_LIMIT)
        try:
            found = attempt(int(line))
        except TooSlowError:  # while the outcome was put together
            found = Outcome(int(line), "", "HANG", TIME_LIMIT)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _say(news, found=found)


class Child:
    """A process that serves, and its worker of now."""

    def __init__(self) -> None:
        self.errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.worker, self.rest = 0, b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fuzz_semantics", "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            cwd=Path(__file__).parents[2],
            env=os.environ | ENVIRONMENT,
        )

    def ask(self, seed: int) -> Outcome:
        assert self.process.stdin is not None
        begin = time.perf_counter()
        self.process.stdin.write(b"%d\n" % seed)
        self.process.stdin.flush()
        kind, wait = "CRASH", 300.0  # the first of all imports
        while True:
            news = self._line(wait)
            self.worker = news.get("worker", self.worker)
            wait = SILENCE
            if not news:
                kind = "HANG"  # in code that no signal interrupts
                os.kill(self.worker or self.process.pid, signal.SIGKILL)
            elif "found" in news:
                return Outcome(*news["found"])
            elif "died" in news:
                said = f"{news['died']} {self._last_words()}"
                return Outcome(seed, "", kind, time.perf_counter() - begin, said)

    def _line(self, seconds: float) -> dict[str, Any]:
        """The next news; {} if none comes in time."""
        assert self.process.stdout is not None
        handle = self.process.stdout.fileno()
        while b"\n" not in self.rest and select.select([handle], [], [], seconds)[0]:
            piece = os.read(handle, 1 << 16)
            if not piece:
                raise RuntimeError(f"the child has gone: {self._last_words()}")
            self.rest += piece
        line, _, self.rest = self.rest.partition(b"\n")
        return dict(json.loads(line)) if line else {}

    def _last_words(self) -> str:
        """What the worker said of its end."""
        self.errors.seek(0)
        lines = [s.strip() for s in self.errors.read().splitlines()]
        self.errors.seek(0)
        self.errors.truncate()
        places = [
            re.sub(r'File ".*/(\w+\.py)", line (\d+) in (\w+)', r"\1:\2 \3", s)
            for s in lines
            if s.startswith("File")
        ]
        fatal = [s for s in lines if "Fatal" in s or "ERROR" in s]
        return f"{' '.join(fatal[-1:])} {' < '.join(places[:6])}"

    def stop(self) -> None:
        for pid in filter(None, (self.worker, self.process.pid)):  # 0 would be the whole group
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


# -- the whole ----------------------------------------------------------------------------------


class Run:
    """Seeds shared out among children; outcomes, with a line now and then."""

    def __init__(self, seeds: Sequence[int], workers: int, log: str = "") -> None:
        self.seeds, self.total = iter(seeds), len(seeds)
        self.lock = threading.Lock()
        self.found: list[Outcome] = []
        self.begin = self.told = time.monotonic()
        self.log = log
        threads = [threading.Thread(target=self._work) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self) -> None:
        child = Child()
        try:
            for seed in iter(self._next, None):
                self._note(child.ask(seed))
        finally:
            child.stop()

    def _next(self) -> int | None:
        with self.lock:
            return next(self.seeds, None)

    def _note(self, outcome: Outcome) -> None:
        with self.lock:
            self.found.append(outcome)
            if self.log and (outcome.kind in FINDINGS or outcome.kind == "DIFFERS"):
                with Path(self.log).open("a") as file:
                    print(json.dumps(outcome), file=file)
            now = time.monotonic()
            if now - self.told > 10:
                self.told = now
                self._tell(now - self.begin)

    def _tell(self, seconds: float) -> None:
        done = len(self.found)
        left = (self.total - done) * seconds / done
        bad = sum(o.kind in FINDINGS for o in self.found)
        print(
            f"{done} of {self.total}, {bad} findings, {done / seconds:.0f} a second, "
            f"{left / 60:.0f} min left",
            file=sys.stderr,
            flush=True,
        )


def fuzz(count: int, first: int = 0, workers: int = 2, log: str = "") -> list[Outcome]:
    return Run(range(first, first + count), workers, log).found


def kinds_of(found: Sequence[Outcome]) -> Iterator[tuple[int, Outcome]]:
    """Outcomes that look alike, as the first of them and their number."""
    counts: Counter[tuple[str, ...]] = Counter()
    first: dict[tuple[str, ...], Outcome] = {}
    for outcome in sorted(found):
        text = re.sub(r"'[^']*'|[\d.e+-]+", "", outcome.detail.split(" [")[0])[:80]
        key = outcome.kind, outcome.case.split("|")[0], text
        counts[key] += 1
        first.setdefault(key, outcome)
    for key, number in counts.most_common():
        yield number, first[key]


def report(found: Sequence[Outcome]) -> list[Outcome]:
    """Print the figures; return the findings."""
    kinds = Counter(o.kind for o in found)
    print(f"{len(found)} mutants: " + ", ".join(f"{n} {k}" for k, n in kinds.most_common()))
    slowest = max(found, key=lambda o: o.seconds)
    print(f"slowest {slowest.seconds:.1f} s (seed {slowest.seed}, {slowest.case})")
    bad = [o for o in found if o.kind in FINDINGS]
    for title, some in (("FOUND", bad), ("DIFFERS", [o for o in found if o.kind == "DIFFERS"])):
        for number, outcome in list(kinds_of(some))[:60]:
            print(
                f"{title} {number}x seed {outcome.seed} {outcome.kind} {outcome.case}: "
                f"{outcome.detail[:400]}"
            )
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--log", default="", help="file that findings are appended to")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return 0
    return 1 if report(fuzz(options.count, options.seed, options.workers, options.log)) else 0


if __name__ == "__main__":
    sys.exit(main())

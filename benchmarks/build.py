"""Models as C libraries: what can be built, whether answers are identical, sizes, start, latency.

    python -m benchmarks.build [MODEL...] [--stage answers,aarch64,latency,threads]
        [--write] [--rows FILE]
        [--arm-python "qemu-aarch64 -L ROOT -E PYTHONPATH=SITE ROOT/usr/bin/python3"]

answers: every model for x86-64, linked into a C program with this machine's compiler, at 1 and 2
threads against the session. aarch64: the same under qemu-user, and five models against LiteRT's
reference kernels; with an AArch64 Python (Debian's packages for arm64, unpacked, and PyPI's wheels)
also against a session that runs there, on the same target. latency: from C against `session.run`
and LiteRT in turns, on one thread; and the start of an instance, and resident memory, in fresh
processes. threads: two instances in eight threads under ThreadSanitizer. --write puts the tables of
a stage into RESULTS.md; --rows keeps what was measured, so that an interrupted run goes on. On a
shared machine believe ratios, not figures.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common import ROOT, SHARED, model_paths, table, write_section
from sanderling import NotBuiltError, SanderlingError, load
from sanderling.build.blueprint import Blueprint, plan_library
from sanderling.build.checking import Check, check_library, made_feeds, write_program
from sanderling.build.library import Library, write_library
from sanderling.build.platforms import platform_of
from sanderling.build.toolchain import Compiler, find_compiler, program, runner
from sanderling.delegates.cpu.isa.targets import runnable
from sanderling.ir import Array
from sanderling.measure.inputs import Feeding
from sanderling.measure.inspection import inspect
from sanderling.measure.machine import machine
from sanderling.runtime.session import Session
from sanderling.units import byte_size

HEAVY = 100_000_000  # multiply-adds from which qemu runs the best version alone
REFERENCE = ("mlperftiny_resnet8_cifar10_int8", "mlperftiny_resnet8_cifar10_f32",
             "mlperftiny_ad01_int8", "coral_mobilenet_v1_0.25_128_quant",
             "mlperftiny_str_ww_int8")  # fmt: skip
# Inputs that random values do not fit: indices of a scatter.
FEEDINGS = {"litert_simple_scatter_nd": Feeding(ranges={"arg0": (0, 0)})}
ROUNDS, SECONDS = 11, 0.03
MINUTE = 60.0

PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include "@NAME@.h"
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static long resident(void) {
  long all = 0, pages = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (!file || fscanf(file, "%ld %ld", &all, &pages) != 2) return 0;
  fclose(file);
  return pages * sysconf(_SC_PAGESIZE);
}
int main(int argc, char **argv) {
  sanderling_buffer in[@UPPER@_INPUTS + 1], out[@UPPER@_OUTPUTS + 1];
  @NAME@_instance *instance;
  int runs;
  for (size_t i = 0; i < @UPPER@_INPUTS; i++) {
    in[i].bytes = @NAME@_input(i)->bytes;
    in[i].data = aligned_alloc(64, (in[i].bytes / 64 + 1) * 64);
    FILE *file = (int)i + 1 < argc ? fopen(argv[i + 1], "rb") : NULL;
    if (!file || fread(in[i].data, 1, in[i].bytes, file) != in[i].bytes) return 3;
    fclose(file);
  }
  for (size_t i = 0; i < @UPPER@_OUTPUTS; i++)
    out[i].bytes = @NAME@_output(i)->bytes, out[i].data = calloc(1, out[i].bytes + 64);
  long before = resident();
  double begin = now();
  if (@NAME@_create(NULL, &instance)) return 4;
  double made = now();
  long after = resident();
  if (@NAME@_run(instance, in, @UPPER@_INPUTS, out, @UPPER@_OUTPUTS)) return 5;
  printf("%.9f %ld %ld\n", made - begin, after - before, resident() - before);
  fflush(stdout);
  while (scanf("%d", &runs) == 1) {
    begin = now();
    for (int i = 0; i < runs; i++) @NAME@_run(instance, in, @UPPER@_INPUTS, out, @UPPER@_OUTPUTS);
    printf("%.12f\n", (now() - begin) / runs);
    fflush(stdout);
  }
  @NAME@_destroy(instance);
  return 0;
}
"""


def stamp() -> str:
    found = machine()
    return f"{found.get('cpu', 'unknown CPU')}, {date.today().isoformat()}"


@contextmanager
def built(path: Path, target: str) -> Iterator[tuple[Blueprint, Library, Path, Compiler]]:
    made = plan_library(path, target, name="model")
    compiler = find_compiler(made.platform)
    assert compiler is not None, "install a C compiler"
    with tempfile.TemporaryDirectory() as folder:
        found = write_library(made, Path(folder), compiler)
        yield made, found, Path(folder), compiler


# -- answers --------------------------------------------------------------------------------------


def feeding(path: Path) -> Feeding:
    return FEEDINGS.get(path.stem, Feeding())


def refusal(error: SanderlingError) -> str:
    if isinstance(error, NotBuiltError):
        first = error.refused[0]
        return f"refused: {first.op}: {first.reason} ({len(error.refused)} ops)"
    return f"refused: {error.what}"


def verdict(checks: Sequence[Check]) -> str:
    same = sum(c.identical for c in checks)
    worst = max((c.worst for c in checks), default=0.0)
    return f"{same} of {len(checks)}" + (f", worst {worst:.1e}" if same < len(checks) else "")


@dataclass
class Rows:
    """Rows of a table by model; those of a file that an earlier run has left are not made again."""

    stage: str
    file: Path | None
    known: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.file is not None and self.file.is_file():
            for line in self.file.read_text().splitlines():
                stage, model, row = json.loads(line)
                self.known |= {model: row} if stage == self.stage else {}

    def make(self, paths: Sequence[Path], row: Callable[[Path], Sequence[str]]) -> None:
        """A row of one cell is a reason why there is no other."""
        for path in paths:
            if path.stem in self.known:
                continue
            try:
                found = list(row(path))
            except SanderlingError as error:
                found = [refusal(error)]
            self.known[path.stem] = found
            print(path.stem, *found, flush=True)
            if self.file is not None:
                with self.file.open("a") as opened:
                    opened.write(json.dumps([self.stage, path.stem, found]) + "\n")

    def text(self, header: Sequence[str]) -> str:
        whole = [(name, *row) for name, row in sorted(self.known.items()) if len(row) > 1]
        refused = [(name, *row) for name, row in sorted(self.known.items()) if len(row) == 1]
        found = table(["model", *header], whole)
        return found + ("\n\n" + table(["model", "reason"], refused, left=2) if refused else "")


def answers(paths: Sequence[Path], rows: Rows) -> str:
    rows.make(paths, _answer)
    header = ["file", "code", "weights", "arena", "code / weights", "archive of 4 versions",
              "identical at 1 and 2 threads"]  # fmt: skip
    ran = ", ".join(t.name for t in platform_of("x86-64").versions if runnable(t))
    return f"""## C libraries: sizes and answers

`python -m benchmarks.build --stage answers`, {stamp()}. Built for x86-64 with the versions
avx512vnni, avx2vnni, avx2 and generic, linked with gcc, three runs of random inputs at 1 and at 2
threads against the session of the same version, byte for byte: {ran},
which this CPU runs. Code, weights and arena are of the first version; versions that pack their
weights alike share them.

{rows.text(header)}"""


def _answer(path: Path) -> list[str]:
    with built(path, "x86-64") as (made, found, folder, compiler):
        checks = check_library(made, folder, compiler, feeding(path))
    best = found.sizes[0]
    return [
        byte_size(path.stat().st_size),
        *(byte_size(best[k]) for k in ("code", "weights", "arena")),
        f"{best['code'] / best['weights']:.3f}",
        byte_size(found.files["libmodel.a"]),
        verdict(checks),
    ]


# -- AArch64 --------------------------------------------------------------------------------------


def aarch64(paths: Sequence[Path], rows: Rows) -> str:
    rows.make(paths, _aarch64)
    header = ["code", "weights", "arena", "versions", "identical to this machine's session",
              "passed", "identical to the session there"]  # fmt: skip
    five = Rows("reference", rows.file)
    five.make([p for p in paths if p.stem in REFERENCE], _against_reference)
    return f"""## C libraries on AArch64, under qemu-user

`python -m benchmarks.build --stage aarch64`, {stamp()}. Cross-linked statically by
aarch64-linux-gnu-gcc, run by qemu-aarch64 at 1 and 2 threads, against the session of this x86-64
machine: integers must be identical, floats differ by the order of sums (worst difference as a part
of the largest value of an output). Models of more than {HEAVY // 10**6} million multiply-adds: the
two best versions alone. The last column: against a session in an AArch64 Python under the same
qemu, byte for byte, for each version. Models without a row were not run; rows without
i8mm are older than that version.

{rows.text(header)}

Five models against LiteRT's reference kernels, which ran on this machine:

{five.text(["output", "largest difference", "equal elements"])}"""


def _aarch64(path: Path) -> list[str]:
    heavy = (inspect(load(path))["macs"] or 0) > HEAVY
    target = "aarch64:i8mm,neondot" if heavy else "aarch64"
    with built(path, target) as (made, found, folder, compiler):
        checks = check_library(made, folder, compiler, feeding(path), runs=1 if heavy else 3)
        there = _sessions_there(path, made, folder, compiler)
    best = found.sizes[0]
    return [
        *(byte_size(best[k]) for k in ("code", "weights", "arena")),
        ", ".join(found.versions),
        verdict(checks),
        f"{sum(c.passed for c in checks)} of {len(checks)}",
        there,
    ]


# A session in a Python of another CPU. /proc/cpuinfo under qemu-user is the host's: what the CPU
# has is said here.
_SESSION_THERE = """
import sys
import numpy as np
from sanderling.delegates.cpu.isa import targets
target, folder = targets.find(sys.argv[2]), sys.argv[3]
targets.cpu_features = lambda: target.needs | {"neon"}
from sanderling import load
from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.runtime.session import Session
model = load(sys.argv[1])
session = Session(model, delegates=[CpuDelegate(target=sys.argv[2]), "reference"])
entry = session.entry(None)
names = {t: n for n, t in entry.inputs.items()}
feeds = {
    names[t]: np.fromfile(f"{folder}/input_{i}", t.dtype.numpy).reshape(t.shape)
    for i, t in enumerate(entry.graph.inputs)
}
for i, array in enumerate(session.run(feeds).values()):
    array.tofile(f"{folder}/session_{i}")
"""
ARM_PYTHON: list[str] = []


def _sessions_there(path: Path, made: Blueprint, folder: Path, compiler: Compiler) -> str:
    """The library beside a session on AArch64, both under qemu."""
    if not ARM_PYTHON:
        return "not run"
    feeds = made_feeds(made, feeding(path), 0)
    same = 0
    for version in made.versions:
        name = version.target.name
        got = _aarch64_outputs(made, folder, compiler, feeds, name)
        words = [*ARM_PYTHON, "-c", _SESSION_THERE, str(path.resolve()), name, str(folder)]
        subprocess.run(words, check=True, cwd=ROOT)
        same += all(
            (folder / f"session_{i}").read_bytes() == array.tobytes() for i, array in enumerate(got)
        )
    return f"{same} of {len(made.versions)}"


def _against_reference(path: Path) -> list[str]:
    """AArch64 code against LiteRT's reference kernels."""
    with built(path, "i8mm") as (made, _, folder, compiler):
        feeds = made_feeds(made, feeding(path), 0)
        got = _aarch64_outputs(made, folder, compiler, feeds)
    pairs = list(zip(got, _reference_kernels(path, feeds), strict=True))
    gaps = [np.abs(a.astype(np.float64) - b.astype(np.float64)).max() for a, b in pairs]
    equal = [float(np.mean(a == b)) for a, b in pairs]
    return [str(got[0].dtype), f"{max(gaps):.3g}", f"{100 * min(equal):.1f}%"]


def _aarch64_outputs(
    made: Blueprint,
    folder: Path,
    compiler: Compiler,
    feeds: Sequence[Array],
    version: str = "i8mm",
) -> list[Array]:
    source = write_program(made, "check.c.in", folder)
    tool = folder / "tool"
    program(compiler, tool, [source, folder / "libmodel.a"], [f"-I{folder}"], static=True)
    for index, array in enumerate(feeds):
        (folder / f"input_{index}").write_bytes(array.tobytes())
    prefix = runner(made.platform)
    assert prefix is not None, "install qemu-user"
    subprocess.run([*prefix, str(tool), "1", version, "1", str(folder)], check=True)
    return [
        np.fromfile(folder / f"output_{i}", t.dtype.numpy).reshape(t.shape)
        for i, t in enumerate(made.versions[0].outputs)
    ]


def _interpreter(path: Path, reference: bool = False) -> Any:
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    kind = OpResolverType.BUILTIN_REF if reference else OpResolverType.AUTO
    return Interpreter(str(path), num_threads=1, experimental_op_resolver_type=kind)


def _reference_kernels(path: Path, feeds: Sequence[Array]) -> list[Array]:
    made = _interpreter(path, reference=True)
    made.allocate_tensors()
    for row, array in zip(made.get_input_details(), feeds, strict=True):
        made.set_tensor(row["index"], array)
    made.invoke()
    return [made.get_tensor(row["index"]) for row in made.get_output_details()]


# -- latency and start ----------------------------------------------------------------------------


def latency(paths: Sequence[Path], rows: Rows) -> str:
    rows.make(paths, _latency)
    header = ["C", "session.run / C", "LiteRT / C", "create", "LiteRT creates",
              "resident after a run", "LiteRT's"]  # fmt: skip
    return f"""## C libraries: latency, start and memory

`python -m benchmarks.build --stage latency`, {stamp()}. One thread; a C program of the library,
`session.run` and LiteRT's `invoke` in turns, medians of {ROUNDS} rounds; ratios above 1 say that C
is quicker. All times are CPU time, since the machine was shared. create: an instance, in a fresh
process; LiteRT's: `Interpreter` and `allocate_tensors`. Resident memory grows from before that to
after the first run; touched pages of code and weights are counted, and shared between processes.
Believe ratios, not figures. Models without a row were not run.

{rows.text(header)}"""


def _latency(path: Path) -> list[str]:
    with built(path, "native") as (made, _, folder, compiler):
        feeds = made_feeds(made, feeding(path), 0)
        values = {"@NAME@": made.name, "@UPPER@": made.name.upper()}
        text = PROGRAM
        for key, value in values.items():
            text = text.replace(key, value)
        (folder / "serve.c").write_text(text)
        tool = folder / "serve"
        program(compiler, tool, [folder / "serve.c", folder / "libmodel.a"], [f"-I{folder}"])
        files = []
        for index, array in enumerate(feeds):
            files.append(folder / f"in{index}")
            files[-1].write_bytes(array.tobytes())
        words = [str(tool), *map(str, files)]
        starts = [_start_of_c(words) for _ in range(3)]
        theirs = [_start_of_litert(path) for _ in range(3)]
        times = _in_turns(words, made, path, feeds)
    c = median(times["C"])
    ratios = {
        n: median(t / own for t, own in zip(times[n], times["C"], strict=True)) for n in times
    }
    return [
        f"{c * 1e6:.1f} us",
        f"{ratios['session']:.2f}",
        f"{ratios['litert']:.2f}",
        f"{median(s[0] for s in starts) * 1e6:.0f} us",
        f"{median(s[0] for s in theirs) * 1e6:.0f} us",
        byte_size(median(s[2] for s in starts)),
        byte_size(median(s[2] for s in theirs)),
    ]


def _start_of_c(words: Sequence[str]) -> tuple[float, float, float]:
    done = subprocess.run(words, input="", capture_output=True, text=True, check=True)
    made, ready, after = done.stdout.split()
    return float(made), float(ready), float(after)


_LITERT = """
import json, resource, sys, time
import numpy as np
from ai_edge_litert.interpreter import Interpreter
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
before, begin = resident(), time.process_time()
made = Interpreter(sys.argv[1], num_threads=1)
made.allocate_tensors()
took, ready = time.process_time() - begin, resident()
for row in made.get_input_details():
    made.set_tensor(row["index"], np.zeros(row["shape"], row["dtype"]))
made.invoke()
print(json.dumps([took, ready - before, resident() - before]))
"""


def _start_of_litert(path: Path) -> tuple[float, float, float]:
    words = [sys.executable, "-c", _LITERT, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    took, ready, after = json.loads(done.stdout.splitlines()[-1])
    return took, ready, after


def _in_turns(
    words: Sequence[str], made: Blueprint, path: Path, feeds: Sequence[Array]
) -> dict[str, list[float]]:
    """Seconds of an inference, round by round."""
    session = Session(made.model)
    given = dict(zip(made.names[0], feeds, strict=True))
    other = _interpreter(path)
    other.allocate_tensors()
    for row, array in zip(other.get_input_details(), feeds, strict=True):
        other.set_tensor(row["index"], array)
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        stdin, stdout = process.stdin, process.stdout
        stdout.readline()

        def in_c(runs: int) -> float:
            stdin.write(f"{runs}\n")
            stdin.flush()
            return float(stdout.readline())

        ways: dict[str, Callable[[int], float]] = {
            "C": in_c,
            "session": lambda runs: _timed(lambda: session.run(given), runs),
            "litert": lambda runs: _timed(other.invoke, runs),
        }
        counts = {name: _count(way) for name, way in ways.items()}
        found: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, way in ways.items():
                found[name].append(way(counts[name]))
        stdin.close()
    return found


def _timed(call: Callable[[], object], runs: int) -> float:
    """In CPU time: who runs last in a round on a busy machine waits longest for a CPU."""
    begin = time.process_time()
    for _ in range(runs):
        call()
    return (time.process_time() - begin) / runs


def _count(way: Callable[[int], float]) -> int:
    """Runs that take about SECONDS."""
    way(2)
    return max(1, min(20_000, int(SECONDS / max(way(3), 1e-7))))


# -- threads --------------------------------------------------------------------------------------


def threads(paths: Sequence[Path], rows: Rows) -> str:
    """Two instances in eight threads under ThreadSanitizer; the model is the tests' own."""
    from tests.build.programs import compiled

    from sanderling.build import ahead
    from sanderling.build.runtime_ir import FOLDER
    from tests.build.test_interface import THREADS, digits

    ahead.WORK_OF_WORKER = 1  # a small model gets the workers that are asked for, too
    sanitised = ["-fsanitize=thread", "-std=gnu11", "-DSR(name)=m_##name", FOLDER / "runtime.c"]
    count, begin = 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        digits(Path(folder))
        tool = compiled(Path(folder), THREADS, "m", sanitised)
        while time.monotonic() < begin + MINUTE:
            for workers in (1, 2):
                subprocess.run([tool, "3000", str(workers)], check=True)  # a report is a status
                count += 8 * 3000
    return f"""## C libraries: threads

`python -m benchmarks.build --stage threads`, {stamp()}. Two instances, of one worker and of two, in
eight threads, some of which do not wait for their turn and get SANDERLING_BUSY, under
ThreadSanitizer with the runtime compiled from its C source: {count} runs in
{time.monotonic() - begin:.0f} s, no report, all answers the same. The generated code is not
instrumented. helgrind does not know the atomic exchange that guards an instance and reports every
run: it says nothing here."""


STAGES = {"answers": answers, "aarch64": aarch64, "latency": latency, "threads": threads}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--stage", default=",".join(STAGES), help="stages, with commas")
    parser.add_argument("--only", default="", help="words, one of which a model's name has")
    parser.add_argument("--write", action="store_true", help="put the tables into RESULTS.md")
    parser.add_argument("--rows", type=Path, help="a file that keeps rows, for a run that goes on")
    parser.add_argument("--arm-python", default="", help="the command of a Python on AArch64")
    given = parser.parse_args()
    ARM_PYTHON[:] = shlex.split(given.arm_python)
    found = sorted((SHARED / "models").rglob("*.tflite"))
    paths = model_paths(given.models or [str(p) for p in found], given.only)
    if not paths:
        raise SystemExit(f"there are no models in {SHARED / 'models'}: name some")
    for stage in given.stage.split(","):
        text = STAGES[stage](paths, Rows(stage, given.rows))
        print(f"\n{text}\n", flush=True)
        if given.write:
            write_section(f"build {stage}", text)


if __name__ == "__main__":
    main()

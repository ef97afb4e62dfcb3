"""Start-up: load, compile and first inference in fresh processes, against LiteRT.

    python -m benchmarks.startup [MODEL.tflite ...] [--models mobilenet] [--rounds 9] [--threads 1]
                                 [--json FILE] [--write]

Subjects, in random order in every round: sanderling with an empty code cache (cold) and with a
filled one (warm), and LiteRT with XNNPACK. Imports are timed apart from the rest. Memory is what
the process gained after its imports, from /proc/self/smaps_rollup: anonymous pages are its own,
file-backed ones (weights, caches, libraries) can be shared with other processes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import (
    ROOT,
    cache_knob,
    machine_type,
    model_paths,
    table,
    write_json,
    write_machine_section,
)
from sanderling.delegates.cpu.isa.targets import host_target
from sanderling.measure.interleaving import sentence
from sanderling.measure.machine import machine_line
from sanderling.measure.sample_statistics import Ratio, ratio

SCHEMA = "sanderling.startup/1"
SUBJECTS = ("sanderling cold", "sanderling warm", "litert")
Sample = dict[str, float]
# Rounds that a cold start takes part in: it takes seconds.
MOST_COLD = 3

# Runs in the fresh process: prints one line of JSON. Inputs are zeros, made from what the engine
# itself says, so that LiteRT's process never sees sanderling.
PROBE = """
import json, sys, time
import numpy as np
engine, path, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])

def memory():
    rows = [l.split() for l in open('/proc/self/smaps_rollup') if ' kB' in l]
    kb = {r[0].rstrip(':'): int(r[1]) for r in rows}
    return {'rss_kb': kb['Rss'], 'anonymous_kb': kb['Anonymous'],
            'file_kb': kb['Rss'] - kb['Anonymous'], 'pss_kb': kb['Pss'],
            'dirty_kb': kb['Private_Dirty']}

begin = time.perf_counter()
if engine == 'litert':
    from ai_edge_litert.interpreter import Interpreter
else:
    import sanderling
    sanderling.load, sanderling.Session  # parts are imported when they are first named
    import sanderling.delegates.cpu.delegate, sanderling.delegates.reference
imported = time.perf_counter() - begin
before = memory()
begin = time.perf_counter()
if engine == 'litert':
    kept = Interpreter(path, num_threads=threads)
    kept.allocate_tensors()
    for d in kept.get_input_details():
        kept.set_tensor(d['index'], np.zeros(d['shape'], d['dtype']))
    ready = time.perf_counter() - begin
    kept.invoke()
else:
    model = sanderling.load(path)
    session = model.compile(['cpu'], threads=threads)
    inputs = session.entry(None).inputs
    kept = session.bind({n: np.zeros(t.shape, t.dtype.numpy) for n, t in inputs.items()})
    ready = time.perf_counter() - begin
    kept.run()
total = time.perf_counter() - begin
after = memory()
print(json.dumps({'import_s': imported, 'ready_s': ready, 'total_s': total}
                 | {k: after[k] - before[k] for k in after}))
"""


def probe(subject: str, path: Path, threads: int, warm: str) -> Sample:
    """One fresh process. Cold: a cache folder of its own; warm: the folder that is kept."""
    knob = cache_knob()
    with tempfile.TemporaryDirectory() as cold:
        folder = f"{warm}/code" if subject.endswith("warm") else cold
        places = os.pathsep.join(filter(None, [f"{warm}/site", os.environ.get("PYTHONPATH")]))
        env = os.environ | {"PYTHONPATH": places} | ({knob: folder} if knob else {})
        # Installed packages come with their bytecode.
        env |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": f"{warm}/bytecode"}
        command = [sys.executable, "-c", PROBE, subject.split()[0], str(path), str(threads)]
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise RuntimeError(last)
    found: Sample = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(path: Path, rounds: int, threads: int) -> dict[str, list[Sample]]:
    rng = random.Random(0)
    subjects = SUBJECTS if cache_knob() else tuple(s for s in SUBJECTS if s != "sanderling warm")
    samples: dict[str, list[Sample]] = {s: [] for s in subjects}
    with tempfile.TemporaryDirectory() as warm:
        # As it is installed: a checkout looks at each of its files, which may be edited.
        shutil.copytree(
            ROOT / "sanderling",
            f"{warm}/site/sanderling",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        if cache_knob():
            probe("sanderling warm", path, threads, warm)  # fills the cache
            probe("sanderling warm", path, threads, warm)  # recognises the file from now on
        probe("litert", path, threads, warm)  # everybody has bytecode
        for round in range(rounds):
            for subject in rng.sample(subjects, len(subjects)):
                if round < MOST_COLD or not subject.endswith("cold"):
                    samples[subject].append(probe(subject, path, threads, warm))
    return samples


def against(samples: dict[str, list[Sample]], subject: str) -> Ratio | None:
    """LiteRT / subject in total time; each process is a round of its own."""
    if subject == "litert" or subject not in samples:
        return None
    rounds = len(samples[subject])
    theirs, ours = (
        [[s["total_s"]] for s in samples[name][:rounds]] for name in ("litert", subject)
    )
    return ratio(theirs, ours)


def rows(model: str, samples: dict[str, list[Sample]]) -> list[list[str]]:
    made = []
    for subject, found in samples.items():
        middle = {k: statistics.median(s[k] for s in found) for k in found[0]}
        times = [f"{1e3 * middle[k]:.1f}" for k in ("import_s", "ready_s", "total_s")]
        sizes = [f"{middle[k]:.0f}" for k in ("rss_kb", "anonymous_kb", "file_kb", "pss_kb")]
        made.append([model, subject, *times, str(against(samples, subject) or "-"), *sizes])
    return made


HEADER = ["model", "engine", "import ms", "load + compile ms", "with first inference ms",
          "LiteRT / ours", "resident KiB", "anonymous KiB", "file-backed KiB",
          "proportional KiB"]  # fmt: skip


def report(found: dict[str, dict[str, list[Sample]]], errors: dict[str, str]) -> str:
    lines = [row for model, samples in found.items() for row in rows(model, samples)]
    parts = [table(HEADER, lines, left=2)]
    if cache_knob() is None:
        parts.append("No warm start: this version has no code cache.")
    parts += [f"- {model}: {why}" for model, why in errors.items()]
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    found: dict[str, dict[str, list[Sample]]] = {}
    errors: dict[str, str] = {}
    for path in model_paths(options.paths, options.models):
        try:
            found[path.stem] = measure(path, options.rounds, options.threads)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            errors[path.stem] = sentence(error)
    text = report(found, errors)
    if options.json != "-":
        print(text)
    if options.json:
        write_json(options.json, SCHEMA, {"models": found, "errors": errors})
    if options.write:
        about = (
            "Fresh processes, interleaved, medians; memory is the growth after the imports. "
            "Above 1 in the ratio: sanderling starts faster."
        )
        target = host_target().name
        title = f"## Start-up: {machine_type(target)}"
        write_machine_section(
            "startup", target, f"{title}\n\n{machine_line()}\n\n{about}\n\n{text}"
        )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", metavar="MODEL", help="default: the shared MobileNets")
    parser.add_argument("--models", default="mobilenet", help="only names with one of these words")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", metavar="FILE", help="all samples; '-' for stdout")
    parser.add_argument("--write", action="store_true", help="update benchmarks/RESULTS.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""What a change cost or gained: two revisions of this repository, in turns, in fresh processes.

    python -m benchmarks.revisions OLD [--new REVISION] [--models WORDS] [--rounds 7] [--write NAME]

OLD and NEW are anything `git archive` takes; without --new the working tree is measured. Each
process loads one revision's package and takes, of one model: planning (inference and checks of
every op, on the reference, nothing remembered), a warm start (load, compile from a filled cache,
first inference), steady runs of a bound session, and the interpreter's invoke. A further process
takes a cold start, the same with an empty cache: most of it is compilation. A figure is the ratio
new / old with its 95 % interval: above 1, the new revision takes longer.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import ROOT, model_paths, table, write_section
from sanderling.measure.machine import machine_line
from sanderling.measure.sample_statistics import Ratio, ratio

FIGURES = ("plan", "cold", "warm", "run", "invoke")
Samples = dict[str, list[float]]

# Runs in the fresh process: prints one line of JSON. The first process of a revision fills its
# cache.
PROBE = """
import json, sys, time
import numpy as np
import sanderling
sanderling.load, sanderling.Session, sanderling.Interpreter
import sanderling.delegates.cpu.delegate, sanderling.delegates.reference
path, seconds, now = sys.argv[1], float(sys.argv[2]), time.perf_counter

def steady(run):
    run()
    begin = now(); run(); block = max(1, int(0.005 / max(now() - begin, 1e-7)))
    found, end = [], now() + seconds
    while now() < end or len(found) < 3:
        begin = now()
        for _ in range(block):
            run()
        found.append((now() - begin) / block)
    return float(np.median(found))

begin = now()
session = sanderling.load(path).compile(['cpu'])
zeros = {n: np.zeros(t.shape, t.dtype.numpy) for n, t in session.entry(None).inputs.items()}
bound = session.bind(zeros)
bound.run()
found = {'warm': now() - begin, 'run': steady(bound.run)}
begin = now()
sanderling.Session(sanderling.load(path), ['reference']).plan()
found['plan'] = now() - begin
interpreter = sanderling.Interpreter(model_path=path)
interpreter.allocate_tensors()
found['invoke'] = steady(interpreter.invoke)
print(json.dumps(found))
"""


def check_out(revision: str | None, folder: Path) -> Path:
    """The revision's package in a folder of its own; None: the working tree's."""
    folder.mkdir(parents=True)
    if revision is None:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "sanderling", folder / "sanderling", ignore=ignored)
        return folder
    archive = ["git", "-C", str(ROOT), "archive", revision, "sanderling"]
    packed = subprocess.run(archive, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed, check=True)
    return folder


def probe(place: Path, model: Path, seconds: float, cache: str = "") -> dict[str, float]:
    """One process of the revision that lies in this folder. cache: another folder than its own."""
    env = os.environ | {
        "PYTHONPATH": str(place),
        "SANDERLING_CACHE": cache or str(place / "cache"),
    }
    command = [sys.executable, "-c", PROBE, str(model), str(seconds)]
    done = subprocess.run(command, env=env, cwd=place, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["it died"])[-1])
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def start_cold(place: Path, model: Path) -> float:
    """Seconds of a start with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        return probe(place, model, 0, cache)["warm"]


def compare(places: Sequence[Path], model: Path, rounds: int, seconds: float) -> list[Ratio]:
    """new / old of every figure; the two take their turns in random order."""
    samples: list[Samples] = [{name: [] for name in FIGURES} for _ in places]
    for place in places:
        probe(place, model, 0)
        probe(place, model, 0)  # the file is recognised from now on
    for number in range(rounds):
        for index in random.Random(number).sample((0, 1), 2):
            found = probe(places[index], model, seconds)
            found["cold"] = start_cold(places[index], model)
            for name, value in found.items():
                samples[index][name].append(value)
    old, new = samples
    return [ratio([[v] for v in new[name]], [[v] for v in old[name]]) for name in FIGURES]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        places = [check_out(options.old, Path(folder, "old"))]
        places.append(check_out(options.new, Path(folder, "new")))
        for model in model_paths(options.paths, options.models):
            found = compare(places, model, options.rounds, options.seconds)
            rows.append([model.stem, *map(str, found)])
            print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    text = table(["model", *FIGURES], rows)
    print(text)
    if options.write:
        about = f"New / old ({options.old}), fresh processes in turns; above 1: it takes longer."
        title = options.write[0].upper() + options.write[1:]
        write_section(options.write, f"## {title}\n\n{machine_line()}\n\n{about}\n\n{text}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", help="the revision to compare with")
    parser.add_argument("paths", nargs="*", metavar="MODEL", help="default: the shared models")
    parser.add_argument("--new", help="another revision; default: the working tree")
    parser.add_argument("--models", default="", help="only names with one of these words")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of steady runs, each process")
    parser.add_argument("--write", metavar="SECTION", help="a section of benchmarks/RESULTS.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())

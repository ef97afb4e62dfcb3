"""Load time and memory, side by side with LiteRT, each measurement in a fresh process.

    python -m benchmarks.load MODEL.tflite [--rounds 15] [--write]

What is timed: sanderling.load (and Interpreter + allocate_tensors), and LiteRT's Interpreter (and
allocate_tensors). Rounds are interleaved; medians are printed. Memory is the growth of anonymous
and of file-backed resident pages: a mapped weight file costs the latter only when touched.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.common import table, write_section
from sanderling.measure.machine import machine_line

ALLOCATE = "\ndef go():\n    i = e.Interpreter(path)\n    i.allocate_tensors()\n    return i"
# The package imports its parts when they are first named: that belongs to the import.
OURS = "import sanderling as e\ne.load, e.Interpreter"
THEIRS = "import ai_edge_litert.interpreter as e"
SUBJECTS = {
    "sanderling.load": OURS + "\ndef go(): return e.load(path)",
    "sanderling allocate": OURS + ALLOCATE,
    "litert Interpreter": THEIRS + "\ndef go(): return e.Interpreter(path)",
    "litert allocate": THEIRS + ALLOCATE,
}

PROBE = """
import json, sys, time
path = sys.argv[1]
def resident():
    rows = dict(line.split(':') for line in open('/proc/self/status') if line.startswith('Rss'))
    return {k: int(v.split()[0]) for k, v in rows.items()}
%s
before = resident(); begin = time.perf_counter()
kept = go()
seconds = time.perf_counter() - begin; after = resident()
print(json.dumps({'ms': 1e3 * seconds, 'anon_kb': after['RssAnon'] - before['RssAnon'],
                  'file_kb': after['RssFile'] - before['RssFile']}))
"""


def measure(subject: str, path: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE % SUBJECTS[subject], path],
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def report(samples: dict[str, list[dict[str, float]]]) -> str:
    rows = []
    for name, found in samples.items():
        middle = {k: statistics.median(s[k] for s in found) for k in found[0]}
        rows.append(
            [name, f"{middle['ms']:.1f}", f"{middle['anon_kb']:.0f}", f"{middle['file_kb']:.0f}"]
        )
    return table(["what", "median ms", "anonymous KiB", "file-backed KiB"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--write", action="store_true", help="update benchmarks/RESULTS.md")
    options = parser.parse_args()
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in SUBJECTS}
    for _ in range(options.rounds):
        for name in SUBJECTS:
            samples[name].append(measure(name, options.model))
    text = report(samples)
    print(text)
    if options.write:
        about = (
            f"`{Path(options.model).name}`, {options.rounds} interleaved rounds, each measurement "
            "in a fresh process; memory is the growth of resident pages."
        )
        write_section("load", f"## Load time and memory\n\n{machine_line()}\n\n{about}\n\n{text}")


if __name__ == "__main__":
    main()

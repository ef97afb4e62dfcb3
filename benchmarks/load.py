"""Load time and memory, side by side with LiteRT, each measurement in a fresh process.

    python benchmarks/load.py MODEL.tflite [--rounds 15]

What is timed: sanderling.load (and Interpreter + allocate_tensors), and LiteRT's Interpreter (and
allocate_tensors). Rounds are interleaved; medians and the ratio are printed. Memory is the growth of
anonymous and of file-backed resident pages: a mapped weight file costs the latter only when touched.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

SUBJECTS = {
    "sanderling.load": "import sanderling as e\ndef go(): return e.load(path)",
    "sanderling allocate": "import sanderling as e\ndef go():\n    i = e.Interpreter(path)\n    i.allocate_tensors()\n    return i",
    "litert Interpreter": "import ai_edge_litert.interpreter as e\ndef go(): return e.Interpreter(path)",
    "litert allocate": "import ai_edge_litert.interpreter as e\ndef go():\n    i = e.Interpreter(path)\n    i.allocate_tensors()\n    return i",
}  # fmt: skip

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
    done = subprocess.run([sys.executable, "-c", PROBE % SUBJECTS[subject], path], check=True,
                          capture_output=True, text=True)  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in SUBJECTS}
    for _ in range(options.rounds):
        for name in SUBJECTS:
            samples[name].append(measure(name, options.model))
    print("| what | median ms | anonymous KiB | file-backed KiB |\n| --- | ---: | ---: | ---: |")
    for name, found in samples.items():
        middle = {k: statistics.median(s[k] for s in found) for k in found[0]}
        print(f"| {name} | {middle['ms']:.1f} | {middle['anon_kb']:.0f} | {middle['file_kb']:.0f} |")


if __name__ == "__main__":
    main()

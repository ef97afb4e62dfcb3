"""Whether a change of the compiler changes what it makes: two revisions' images, byte for byte.

    python -m benchmarks.images OLD [--new REVISION] [--targets NAMES] [--models WORDS] [--ir]

OLD and NEW are anything `git archive` takes; without --new the working tree is looked at. Of every
part of every model and for every target it compares machine code with its entries, packed weights,
and the plan of the arena. --ir compares the module that is given to LLVM instead of what LLVM makes
of it: quick, and equal modules give equal code; names of functions count there. What a revision
made is kept in --keep FOLDER, so that a second comparison with it is cheap.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import ROOT, model_paths
from benchmarks.revisions import check_out

TARGETS = "avx2,avx512vnni,neondot"

# Runs in a fresh process on one revision's package: prints one line of JSON, a part a row.
PROBE = """
import hashlib, json, sys
import sanderling
from sanderling.delegates.cpu import delegate as cpu
path, target, ir = sys.argv[1], sys.argv[2], sys.argv[3] == "ir"

def digest(*parts):
    found = hashlib.sha256()
    for part in parts:
        found.update(bytes(part) if not isinstance(part, str) else part.encode())
    return found.hexdigest()[:16]

class Kept:
    def run(self, inputs, outputs):
        raise RuntimeError("it is not to be run")

class Looking(cpu.CpuDelegate):
    identity = None

    def compile(self, part, options):
        if ir:
            program, arena = cpu.lower(part, self)
            rows.append({"code": digest(str(program.module)), "arena": [arena, program.scratch],
                         "weights": digest(program.weights.blob)})
            return Kept()
        made = cpu.build(self, part)
        plan = [made.arena, made.scratch, made.floor, made.args, list(made.sizes)]
        entries = json.dumps(sorted(made.image.entries.items()))
        rows.append({"code": digest(made.image.code, entries), "arena": plan,
                     "weights": digest(made.weights)})
        return Kept()

rows = []
session = sanderling.Session(sanderling.load(path), [Looking(target, cache=False), "reference"])
if not rows:
    session.plan()
print(json.dumps(rows))
"""


def images(place: Path, model: Path, target: str, ir: bool) -> list[dict[str, object]]:
    """What the package in this folder makes of a model: a row for each part."""
    env = os.environ | {"PYTHONPATH": str(place), "SANDERLING_CACHE": "off"}
    command = [sys.executable, "-c", PROBE, str(model), target, "ir" if ir else "code"]
    done = subprocess.run(command, env=env, cwd=place, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it died"])[-1]
        raise RuntimeError(f"{model.stem} for {target}: {last}")
    found: list[dict[str, object]] = json.loads(done.stdout.splitlines()[-1])
    return found


def kept(folder: str | None, revision: str) -> Path | None:
    """Where to keep what a revision made, by its full name; a working tree is not kept."""
    if folder is None:
        return None
    command = ["git", "-C", str(ROOT), "rev-parse", revision]
    name = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder, f"{name}.json")


def differences(old: Sequence[dict[str, object]], new: Sequence[dict[str, object]]) -> list[str]:
    if len(old) != len(new):
        return [f"{len(old)} parts became {len(new)}"]
    return [
        f"part {number}: {name}"
        for number, (a, b) in enumerate(zip(old, new, strict=True))
        for name in a
        if a[name] != b[name]
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    store = kept(options.keep, options.old)
    known = json.loads(store.read_text("utf-8")) if store and store.is_file() else {}
    changed = 0
    with tempfile.TemporaryDirectory() as folder:
        old = check_out(options.old, Path(folder, "old"))
        new = check_out(options.new, Path(folder, "new"))
        for model in model_paths(options.paths, options.models):
            for target in options.targets.split(","):
                key = f"{model.stem} {target} {'ir' if options.ir else 'code'}"
                if key not in known:
                    known[key] = images(old, model, target, options.ir)
                    if store:
                        store.write_text(json.dumps(known), "utf-8")
                if options.only_old:
                    continue
                found = differences(known[key], images(new, model, target, options.ir))
                changed += bool(found)
                print(f"{key}: {'; '.join(found) or 'the same'}", flush=True)
    print(f"{changed} of the images differ")
    return 1 if changed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", help="the revision to compare with")
    parser.add_argument("paths", nargs="*", metavar="MODEL", help="default: the shared models")
    parser.add_argument("--new", help="another revision; default: the working tree")
    parser.add_argument("--models", default="", help="only names with one of these words")
    parser.add_argument("--targets", default=TARGETS)
    parser.add_argument("--ir", action="store_true", help="compare what is given to LLVM")
    parser.add_argument("--keep", metavar="FOLDER", help="keep what OLD made here")
    parser.add_argument("--only-old", action="store_true", help="only fill the folder of --keep")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())

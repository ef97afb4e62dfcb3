"""Do our rules of the GPU delegate agree with LiteRT's own? One op under one condition at a time.

    python -m benchmarks.gpu_rules [--write]

Each op is a model of its own. LiteRT compiles it for its GPU accelerator with the CPU as a
fallback; what it leaves to the CPU it names on stderr. Its accelerator here is ML Drift over
WebGPU, which grew out of TensorFlow Lite's GPU delegate: where the two differ, the table says so.
A software device will do: `--vulkan DIR` is the folder of Chromium's SwiftShader. `--models` also
asks how many ops of each shared model it takes.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sanderling import dump, load
from sanderling.ir import Model
from sanderling.rules import Judgement, judge
from tests.support.gpu_cases import CASES, GpuCase

from .common import CHROMIUM, model_paths, swiftshader, table, write_section

START = "Following operations are not supported by GPU delegate:"
TABLES = ("gpu", "gpu:litert")
TITLE = (
    "## GPU rules, ours and LiteRT's\n\n"
    "`python -m benchmarks.gpu_rules --models --write`: one op under one condition at a time; rows "
    "on which both tables and LiteRT agree are left out."
)  # Compiles the models that are named and tells of each in a line; stderr is a file between them.
CHILD = """
import json, os, sys, tempfile
from ai_edge_litert.compiled_model import CompiledModel
from ai_edge_litert.hardware_accelerator import HardwareAccelerator as H
from ai_edge_litert.options import GpuOptions, Options
for path in sys.argv[1:]:
    log = tempfile.TemporaryFile("w+")
    os.dup2(log.fileno(), 2)
    print(json.dumps({"path": path}), flush=True)
    try:
        options = Options(hardware_accelerators=H.GPU | H.CPU, gpu_options=GpuOptions(enforce_f32=True))
        answer = {"whole": CompiledModel.from_file(path, options=options).is_fully_accelerated()}
    except Exception as error:
        answer = {"error": str(error)}
    log.seek(0)
    print(json.dumps(answer | {"log": log.read()}), flush=True)
"""  # noqa: E501


def main() -> int:
    args = _arguments()
    whole = model_paths([]) if args.models else []
    with tempfile.TemporaryDirectory() as folder:
        paths = [_stored(case, Path(folder) / f"{i}.tflite") for i, case in enumerate(CASES)]
        answers = _asked([*paths, *whole], swiftshader(args.vulkan, Path(folder)))
    counted = _models(whole, answers)
    rows = [_row(case, answers.get(str(path), {})) for case, path in zip(CASES, paths, strict=True)]
    old, new = (sum(row[i] == row[4] for row in rows) for i in (2, 3))
    agreed = (
        f"{new} of {len(rows)} answers are those of `gpu:litert`; {old} are those of `gpu`, the "
        "delegate that LiteRT's grew out of."
    )
    columns = ["op", "condition", *TABLES, "LiteRT", "agree", "because"]
    print(f"{table(columns, rows, len(columns))}\n\n{agreed}\n\n{counted}")
    if args.write:
        differing = table(columns, [r for r in rows if r[5] != "both"], len(columns))
        write_section("gpu_rules", f"{TITLE}\n\n{agreed}\n\n{differing}\n\n{counted}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vulkan", type=Path, default=CHROMIUM, help="a folder with SwiftShader")
    parser.add_argument("--models", action="store_true", help="whole models, too")
    parser.add_argument("--write", action="store_true", help="put the table into RESULTS.md")
    return parser.parse_args()


def _stored(case: GpuCase, path: Path) -> Path:
    path.write_bytes(dump(Model([case.graph()])))
    return path


def _asked(paths: Sequence[Path], environment: dict[str, str]) -> dict[str, dict[str, Any]]:
    """LiteRT's answers by file. A model that ends the process is its own answer."""
    answers: dict[str, dict[str, Any]] = {}
    left = [str(path) for path in paths]
    while left:
        found = dict(_run(left, environment))
        answers |= found
        left = left[len(found) :] if found else []
    return answers


def _run(paths: Sequence[str], environment: dict[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *paths],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    # LiteRT writes to stdout, too.
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for asked, answer in zip(lines[::2], [*lines[1::2], {"crash": done.returncode}], strict=False):
        yield asked["path"], answer


def _row(case: GpuCase, answer: dict[str, Any]) -> tuple[str, ...]:
    found = [judge(case.graph(), name).verdicts[0] for name in TABLES]
    old, new = ("yes" if v.is_taken else "no" for v in found)
    theirs = _theirs(answer)
    agree = "both" if old == new == theirs else "yes" if new == theirs else "no"
    reasons = dict.fromkeys([*(v.reason or "" for v in found), _log_reason(answer)])
    return case.op, case.condition, old, new, theirs, agree, " / ".join(filter(None, reasons))


def _models(paths: Sequence[Path], answers: Mapping[str, dict[str, Any]]) -> str:
    """Ops that are taken of each model: by our rules, and by LiteRT."""
    rows = []
    for path in paths:
        found = judge(load(path).main, TABLES[1])
        rows.append(
            (path.stem, len(found.verdicts), found.taken, _count(answers[str(path)], found))
        )
    return table(["model", "ops", TABLES[1], "LiteRT"], rows) if rows else ""


def _count(answer: dict[str, Any], found: Judgement) -> str:
    said = re.search(r"(No|\d+) operations will run on the GPU", str(answer.get("log", "")))
    if "whole" not in answer:
        return "fails"
    return said[1].replace("No", "0") if said else str(len(found.verdicts))


def _theirs(answer: dict[str, Any]) -> str:
    if "whole" not in answer:
        return "fails" if answer else "-"
    # A model whose rest XNNPACK takes counts as fully accelerated: the log is the better witness.
    return "no" if START in answer["log"] or not answer["whole"] else "yes"


def _log_reason(answer: dict[str, Any]) -> str:
    """What LiteRT says of the op that it leaves to the CPU."""
    lines = str(answer.get("log", "")).splitlines()
    starts = [i for i, line in enumerate(lines) if START in line]
    return lines[starts[0] + 1] if starts else str(answer.get("error", ""))[:80]


if __name__ == "__main__":
    sys.exit(main())

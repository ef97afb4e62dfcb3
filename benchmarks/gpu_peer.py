"""Our GPU delegate beside LiteRT's GPU accelerator, on software devices and in f32.

    python -m benchmarks.gpu_peer [--write]

LiteRT's runs on Chromium's SwiftShader (on Linux it has WebGPU alone), ours on the same through
WebGPU, and on the first OpenCL device. On SwiftShader kernels can be compared; OpenCL's column says
how long a person waits here. Each engine has a process of its own for each start, in turns: a cold
one, then warm ones, which find what the first has kept. Answers are compared with our CPU's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from sanderling.delegates.gpu.delegate import GpuDelegate
from sanderling.measure.machine import machine_line

from .common import CHROMIUM, cache_knob, model_paths, swiftshader, table, write_section

MODELS = "resnet8_cifar10_f32,efficientnet_lite0,deeplabv3_257,tf2_mobilenet_v2,squeezenet"
TITLE = (
    "## GPU: ours and LiteRT's\n\n"
    "`python -m benchmarks.gpu_peer --write`: LiteRT's accelerator and ours (WebGPU) on "
    "SwiftShader, and ours on OpenCL, all in f32. init is from the file to the end of the first "
    "run, in seconds; run the median of one inference in milliseconds; difference the largest from "
    "our CPU's answer, over its range. "
)
ENGINES = {
    "LiteRT, SwiftShader": "litert-gpu",
    "ours, SwiftShader": "gpu:backend=webgpu",
    "ours, OpenCL": "gpu:backend=opencl",
}
WARM_STARTS = 1
# Loads the delegate, runs, and tells in a line.
CHILD = """
import json, sys, time
import numpy as np
name, path, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
import sanderling
model = sanderling.load(path)
rng = np.random.default_rng(0)
feeds = {}
for t in model.main.inputs:
    noise = rng.standard_normal(t.shape) if t.dtype.is_float else rng.integers(0, 200, t.shape)
    feeds[t.name] = noise.astype(t.dtype.numpy)
begin = time.perf_counter()
session = sanderling.load(path).compile([name])
found = session.run(feeds)
init = time.perf_counter() - begin
times = []
while sum(times) < seconds:
    begin = time.perf_counter()
    session.run(feeds)
    times.append(time.perf_counter() - begin)
answers = [np.asarray(a, np.float64) for a in found.values()]
expected = [np.asarray(a, np.float64) for a in model.compile(["cpu"]).run(feeds).values()]
worst = max(np.abs(a - b).max() / max(np.ptp(b), 1e-30) for a, b in zip(answers, expected))
parts = session.plan().partition.parts
taken = sum(len(part.ops) for part in parts if part.delegate.name == name.partition(":")[0])
print(json.dumps({"init": init, "run": sorted(times)[len(times) // 2], "difference": float(worst),
                  "taken": taken, "ops": sum(len(part.ops) for part in parts)}))
"""


def main() -> int:
    args = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        vulkan = swiftshader(args.vulkan, Path(folder))
        rows = [_row(path, vulkan, folder) for path in model_paths(args.models, MODELS)]
    columns = ["model", "engine", "ops", "difference", "init", "warm init", "run"]
    found = table(columns, [line for row in rows for line in row], 2)
    print(found)
    if args.write:
        device = GpuDelegate(backend="opencl").device().offers
        text = f"{TITLE}OpenCL: {device.name}, {device.platform}; {machine_line()}"
        write_section("gpu_peer", f"{text}\n\n{found}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help="files; default: five shared models")
    parser.add_argument("--vulkan", type=Path, default=CHROMIUM, help="a folder with SwiftShader")
    parser.add_argument("--write", action="store_true", help="put the table into RESULTS.md")
    return parser.parse_args()


def _row(path: Path, vulkan: Mapping[str, str], folder: str) -> list[Sequence[object]]:
    """A line for each engine."""
    knob = cache_knob()
    own = {knob: str(Path(folder) / path.stem)} if knob else {}
    kernels = {"POCL_CACHE_DIR": str(Path(folder) / f"pocl_{path.stem}")}
    for name in (*own.values(), *kernels.values()):
        Path(name).mkdir(mode=0o700, exist_ok=True)
    both = os.environ | own | kernels | dict(vulkan)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ENGINES}
    for _ in range(1 + WARM_STARTS):
        for name in ENGINES:
            found[name].append(_start(ENGINES[name], path, both))
    return [_line(path, name, found[name]) for name in ENGINES]


def _start(name: str, path: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD, name, str(path), "1"],
        env=environment,
        capture_output=True,
        text=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {"error": done.stderr.strip()[-200:]}


def _line(path: Path, name: str, starts: Sequence[dict[str, Any]]) -> Sequence[object]:
    good = [start for start in starts if "error" not in start]
    if len(good) < len(starts):
        failed = next(start["error"] for start in starts if "error" in start)
        return (path.stem, name, f"failed: {' '.join(failed.split())}", "", "", "", "")
    cold, *warm = good
    return (
        path.stem,
        name,
        f"{cold['taken']} of {cold['ops']}",
        f"{cold['difference']:.1e}",
        f"{cold['init']:.2f}",
        f"{median(start['init'] for start in warm):.2f}",
        f"{1e3 * median(start['run'] for start in good):.2f}",
    )


if __name__ == "__main__":
    sys.exit(main())

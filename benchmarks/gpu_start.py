"""The first start of a model on the GPU delegate, and the next one, from what the first has kept.

    python -m benchmarks.gpu_start [MODEL...] [--only WORDS] [--device N] [--write]

Every start is a process of its own; PoCL's own cache is empty in each, so that nothing but ours
helps. Its time begins when the packages and the driver are loaded and ends with the first answer.
The CPU's seconds are given beside it: on a machine that others use, they are what can be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from sanderling.measure.machine import machine_line

from .common import model_paths, table, write_section

COLUMNS = ["model", "kernels", "kept, MB", "first start, s", "next, s", "share",
           "first, CPU s", "next, CPU s", "share of CPU s"]  # fmt: skip
# Python's own compiled modules are there, as after an installation.
MODULES = (
    "from sanderling.delegates.gpu import compilation, half_check, lower, program_sources, table"
)
REPEATS = 3  # of the next start, of which the fastest counts


def main() -> int:
    args = _arguments()
    if args.child:
        print(json.dumps(start(Path(args.models[0]), args.device)))
        return 0
    rows, about = [], ""
    with tempfile.TemporaryDirectory() as compiled:
        os.environ |= {"PYTHONPYCACHEPREFIX": compiled}
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        subprocess.run([sys.executable, "-c", MODULES], check=True)
        paths = sorted(model_paths(args.models, args.only), key=lambda path: path.stat().st_size)
        with suppress(KeyboardInterrupt):  # what was measured counts
            for path in paths:
                row, about = measured(path, args.device)
                rows.append(row)
                print(*row, file=sys.stderr, flush=True)
    rows.append(_middle(rows))
    named = f" --device {args.device} --name {args.name}" * bool(args.name)
    text = (
        "## Starts on the GPU delegate\n\n"
        f"`python -m benchmarks.gpu_start{named} --write`: {about}; {machine_line()}\n\n"
        + table(COLUMNS, rows)
    )
    print(text)
    if args.write:
        write_section(f"gpu_start_{args.name}" if args.name else "gpu_start", text)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("models", nargs="*")
    parser.add_argument("--only", default="", help="words, one of which a model's name has")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--name", default="", help="of the driver, for a section of its own")
    parser.add_argument("--write", action="store_true", help="into RESULTS.md")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def start(path: Path, device: int) -> dict[str, object]:
    """One start in this process."""
    from sanderling import load
    from sanderling.delegates.gpu.delegate import GpuDelegate
    from sanderling.measure.inputs import feeds

    delegate = GpuDelegate(device=device)
    offers = delegate.device().offers  # loads the driver
    model = load(path)
    given = feeds(model)
    begin, before = time.perf_counter(), _cpu()
    session = model.compile([delegate, "cpu"])
    session(*given)
    taken, spent = time.perf_counter() - begin, _cpu() - before
    own = [s.executable for s in session.plans_made()[0].steps]
    kernels = sum(len(getattr(e, "launches", ())) for e in own)
    about = f"{offers.name}, {offers.platform}"
    return {"seconds": taken, "cpu": spent, "kernels": kernels, "about": about}


def _cpu() -> float:
    """Seconds of this process and of those it started."""
    times = os.times()
    return sum(times[:4])


def measured(path: Path, device: int) -> tuple[list[object], str]:
    with tempfile.TemporaryDirectory() as folder:
        first = _in_process(path, device, folder)
        kept = sum(f.stat().st_size for f in Path(folder).rglob("*") if f.is_file()) / 1e6
        again = [_in_process(path, device, folder) for _ in range(REPEATS)]
    after = {key: min(found[key] for found in again) for key in ("seconds", "cpu")}
    row = [path.stem, first["kernels"], f"{kept:.1f}"]
    for key in ("seconds", "cpu"):
        row += [f"{first[key]:.2f}", f"{after[key]:.3f}", f"{after[key] / first[key]:.1%}"]
    return row, str(first["about"])


def _in_process(path: Path, device: int, kept: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"SANDERLING_CACHE": kept, "POCL_CACHE_DIR": folder}
        command = [sys.executable, "-m", "benchmarks.gpu_start", str(path), "--child"]
        command += ["--device", str(device)]
        found = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    answer: dict[str, object] = json.loads(found.stdout.splitlines()[-1])
    return answer


def _middle(rows: list[list[object]]) -> list[object]:
    """The middle of the shares."""
    shares = [
        f"{statistics.median(float(str(row[i]).rstrip('%')) for row in rows):.1f}%" for i in (5, 8)
    ]
    return ["the middle", "", "", "", "", shares[0], "", "", shares[1]]


if __name__ == "__main__":
    sys.exit(main())

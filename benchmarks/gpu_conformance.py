"""The conformance table, runtime by runtime: how many cases a device takes and gets right.

    python -m benchmarks.gpu_conformance "PoCL 3.1" FILE.json [--device N | --backend webgpu]
    python -m benchmarks.gpu_conformance --write FILE.json...

The first form runs the cases that the delegate takes, in a fixed random order, until --seconds are
over, and writes what came of them; a driver is chosen by its environment (OCL_ICD_VENDORS,
VK_DRIVER_FILES). The second puts a table of all runtimes into RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from sanderling.measure.machine import machine_line

from .common import table, write_section

COLUMNS = ["runtime", "driver", "precision", "run", "right", "wrong", "ops that are wrong"]
TITLE = (
    "## GPU: conformance by runtime\n\n"
    "`python -m benchmarks.gpu_conformance`: cases of the conformance table that the delegate "
    "takes, in a fixed random order, as many as the time allowed, judged by the reference "
    "definitions.\n\n"
)
HALF = 1e-2  # of the range of the results


def main() -> int:
    args = _arguments()
    if args.write:
        return _write([json.loads(Path(name).read_text()) for name in args.names], args.remark)
    title, path = args.names
    record = {"runtime": title, "machine": machine_line(), **_measured(args)}
    Path(path).write_text(json.dumps(record, indent=1))
    print(f"{title}: {record['right']} of {record['run']} right; {record['wrong']}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--remark", default="", help="with --write: said below the table")
    parser.add_argument("--device", default="0")
    parser.add_argument("--backend", default="opencl")
    parser.add_argument("--precision", default="f32")
    parser.add_argument("--seconds", type=float, default=300.0)
    return parser.parse_args()


def _measured(args: argparse.Namespace) -> dict[str, Any]:
    os.environ["SANDERLING_TEST_ALL"] = "1"
    os.environ["SANDERLING_TEST_GPU"] = args.device
    from tests.support.gpu_conformance import cases_of, gpu, is_taken

    warnings.simplefilter("error")  # a case that runs elsewhere is not right
    options = {"backend": args.backend, "precision": args.precision}
    rows = [row for row in cases_of() if is_taken(row)]
    random.Random(0).shuffle(rows)
    end, wrong, run = time.monotonic() + args.seconds, {}, 0
    while run < len(rows) and time.monotonic() < end:
        said = _complaint(rows[run], options)
        wrong |= {rows[run].id: said} if said else {}
        run += 1
    driver = gpu(**options).device().offers
    return {
        "driver": f"{driver.name}, {driver.driver}",
        "precision": args.precision,
        "run": run,
        "all": len(rows),
        "right": run - len(wrong),
        "wrong": wrong,
    }


def _complaint(row: Any, options: dict[str, str]) -> str:
    """What is wrong with a case; "" if nothing is."""
    from dataclasses import replace

    from tests.support.gpu_conformance import check_gpu

    if options["precision"] != "f32":
        row = replace(row, tol=row.tol + HALF, off_by=max(2, row.off_by))
    try:
        check_gpu(row, cache=False, **options)
    except Exception as error:  # whatever it is, the case is not right
        return f"{type(error).__name__}: {error}"[:400]
    return ""


def _write(records: list[dict[str, Any]], remark: str) -> int:
    rows = [
        [r["runtime"], r["driver"], r["precision"], f"{r['run']} of {r['all']}", r["right"],
         len(r["wrong"]), ", ".join(sorted({name.split("|")[0] for name in r["wrong"]})) or "-"]
        for r in records
    ]  # fmt: skip
    text = TITLE + table(COLUMNS, rows, left=3)
    text += f"\n\n{remark}\n\n{records[0]['machine']}\n"
    print(text)
    write_section("gpu_conformance", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The conformance table, runtime by runtime: how many cases a device takes and gets right.

    python -m benchmarks.gpu_conformance "PoCL 3.1" FILE.json [--device N | --backend webgpu]
    python -m benchmarks.gpu_conformance --write FILE.json...

The first form runs the cases that the delegate takes until --seconds are over, and writes what came
of them: first one of every operator, then a second of each, and so on, many of them in one program.
A driver is chosen by its environment (OCL_ICD_VENDORS, VK_DRIVER_FILES). Ctrl-C ends it early. The
second form puts a table of all runtimes into RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from sanderling.measure.machine import machine_line

from .common import table, write_section

COLUMNS = [
    "runtime", "driver", "precision", "run", "operators", "right", "right on ordinary numbers",
    "wrong", "ops that are wrong",
]  # fmt: skip
TITLE = (
    "## GPU: conformance by runtime\n\n"
    "`python -m benchmarks.gpu_conformance`: cases of the conformance table that the delegate "
    "takes, one of every operator before the second of any, as many as the time allowed, judged by "
    "the reference definitions. On ordinary numbers: wrong, but right where the inputs are numbers "
    "that WGSL promises something of (no NaN, infinity, denormal or huge number), or, with a "
    "precision of 16 bits, numbers that have room there; results that leave the type are not "
    "compared.\n\n"
)
HALF = 1e-2  # of the range of the results
BATCH = 24  # cases in one program


def main() -> int:
    args = _arguments()
    if args.write:
        return _write([json.loads(Path(name).read_text()) for name in args.names], args.remark)
    title, path = args.names
    record = {"runtime": title, "machine": machine_line(), **_measured(args)}
    Path(path).write_text(json.dumps(record, indent=1))
    print(
        f"{title}: {record['right']} of {record['run']} right, {len(record['ordinary'])} on "
        f"ordinary numbers; {record['wrong']}"
    )
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
    from tests.support.gpu_batches import complaints, ordinary_complaints, stratified
    from tests.support.gpu_conformance import HALF, WGSL, cases_of, gpu, is_taken

    warnings.simplefilter("error")  # a case that runs elsewhere is not right
    chosen = {"device": args.device} if args.backend == "opencl" else {"backend": args.backend}
    options = {**chosen, "precision": args.precision, "cache": False}
    rows = [_judged_as(row, args.precision) for row in stratified([*filter(is_taken, cases_of())])]
    end, said, run = time.monotonic() + args.seconds, dict[str, str](), 0
    with suppress(KeyboardInterrupt):
        while run < len(rows) and time.monotonic() < end:
            said |= complaints(rows[run : run + BATCH], **options)
            run = min(run + BATCH, len(rows))
            print(f"{run} of {len(rows)}, wrong: {sum(map(bool, said.values()))}", file=sys.stderr)
    driver = gpu(**options).device().offers
    special = {name: text for name, text in said.items() if text}
    within = HALF if args.precision != "f32" else WGSL if driver.interface == "webgpu" else None
    wrong = dict(special)
    if within is not None:
        again = [row for row in rows if row.id in special]
        wrong = {k: v for k, v in ordinary_complaints(again, within, **options).items() if v}
    return {
        "driver": f"{driver.name}, {driver.driver}",
        "precision": args.precision,
        "run": run,
        "all": len(rows),
        "operators": len({row.op for row in rows[:run]}),
        "all_operators": len({row.op for row in rows}),
        "right": run - len(special),
        "ordinary": {name: special[name] for name in special if name not in wrong},
        "wrong": wrong,
    }


def _judged_as(row: Any, precision: str) -> Any:
    """The case, with what 16 bits may differ by."""
    if precision == "f32":
        return row
    return replace(row, tol=row.tol + HALF, off_by=max(2, row.off_by))


def _row(record: dict[str, Any]) -> list[Any]:
    wrong = sorted({name.split("|")[0] for name in record["wrong"]})
    return [
        record["runtime"], record["driver"], record["precision"],
        f"{record['run']} of {record['all']}",
        f"{record['operators']} of {record['all_operators']}", record["right"],
        len(record["ordinary"]), len(record["wrong"]), ", ".join(wrong) or "-",
    ]  # fmt: skip


def _write(records: list[dict[str, Any]], remark: str) -> int:
    rows = list(map(_row, records))
    text = TITLE + table(COLUMNS, rows, left=3)
    text += f"\n\n{remark}\n\n{records[0]['machine']}\n"
    print(text)
    write_section("gpu_conformance", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

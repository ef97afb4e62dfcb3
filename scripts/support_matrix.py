"""Write the operator tables of the documentation from the operator table itself.

    python scripts/support_matrix.py [--check]

docs/operators.md is written whole; in README.md the part between the markers is replaced. With
--check nothing is written, and the exit status is 1 if a file is out of date.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from sanderling.delegates.gpu.table import KERNELS
from sanderling.format.schema import ENUMS
from sanderling.ops import FAMILIES, OPS
from sanderling.ops.base import OpDef

ROOT = Path(__file__).parent.parent
LITERT = json.loads((ROOT / "docs" / "litert_ops.json").read_text())
BEGIN, END = "<!-- operators: begin -->", "<!-- operators: end -->"


def rows() -> list[OpDef]:
    """By family, then by name."""
    order = {family: i for i, family in enumerate(FAMILIES)}
    return sorted(OPS.values(), key=lambda r: (order.get(r.family, len(order)), r.name))


def summary() -> str:
    """The README's part: counts, what is missing, the names by family."""
    builtin = set(ENUMS["BuiltinOperator"])
    ours = builtin & set(OPS)
    runs = set(LITERT["runs"])
    missing = sorted(runs - ours)
    lines = [
        f"Sanderling runs **{len(ours & runs)} of the {len(runs)}** builtin operators that LiteRT "
        f"{LITERT['litert']} has kernels for (the schema names {len(builtin)}; "
        "`scripts/litert_ops.py` asks the installed LiteRT). "
        + (f"Missing: {', '.join(missing)}. " if missing else "None is missing. ")
        + f"It also runs {len(OPS) - len(ours)} custom operators. Types and notes: "
        "[docs/operators.md](docs/operators.md).",
        "",
        "| family | operators |",
        "| --- | --- |",
    ]
    for family, group in groupby(rows(), key=lambda r: r.family):
        lines.append(f"| {family} | {' '.join(f'`{r.name}`' for r in group)} |")
    return "\n".join(lines)


def table(found: Iterable[OpDef]) -> list[str]:
    return [
        "| operator | types | inputs | gpu | notes |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| `{r.name}` | {' '.join(r.types) or 'any'} | {_inputs(r)} | "
            f"{'yes' if r.name in KERNELS else ''} | {_notes(r)} |"
            for r in found
        ),
    ]


def _inputs(row: OpDef) -> str:
    low, high = row.arity
    return f"{low}" if low == high else f"{low} or more" if high > 100 else f"{low} to {high}"


def _notes(row: OpDef) -> str:
    return "; ".join(filter(None, (row.notes, "keeps state" if row.stateful else "")))


def document() -> str:
    """docs/operators.md."""
    without = sorted(LITERT["none"])
    lines = [
        "# Operators",
        "",
        "Made by `scripts/support_matrix.py` from the operator table: do not edit. Types are those "
        "of the main operand; short names as in the text form (`f32`, `i8`, `bool`, ...). `gpu`: "
        "the [GPU delegate](gpu.md) has a kernel, for floats, whole numbers of 32 bits, truth and "
        "8-bit codes where the operator has them.",
    ]
    for family, group in groupby(rows(), key=lambda r: r.family):
        lines += ["", f"## {family}", "", *table(group)]
    lines += [
        "",
        "## In the schema, but without a kernel in LiteRT",
        "",
        f"LiteRT {LITERT['litert']} resolves none of these {len(without)}; a model that has them "
        "loads, can be inspected and saved, and is refused by name when it is run:",
        "",
        " ".join(f"`{name}`" for name in without if name not in OPS) + ".",
    ]
    return "\n".join(lines) + "\n"


def readme() -> str:
    """The README with its generated part renewed."""
    text = (ROOT / "README.md").read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{summary()}\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = []
    for path, text in (
        (ROOT / "docs" / "operators.md", document()),
        (ROOT / "README.md", readme()),
    ):
        if path.exists() and path.read_text() == text:
            continue
        stale.append(path.name)
        if not check:
            path.write_text(text)
    if stale:
        print(("out of date, run make docs: " if check else "written: ") + ", ".join(stale))
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())

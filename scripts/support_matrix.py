"""Write the operator tables of the documentation from the operator table itself.

    python scripts/support_matrix.py [--check]

docs/operators.md is written whole; in the READMEs the part between the markers is replaced. With
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
from sanderling.tables import markdown

ROOT = Path(__file__).parent.parent
LITERT = json.loads((ROOT / "docs" / "litert_ops.json").read_text())
BEGIN, END = "<!-- operators: begin -->", "<!-- operators: end -->"
READMES = {
    "README.md": {
        "counts": "Sanderling runs **{ours} of the {runs}** builtin operators that LiteRT {litert} "
        "has kernels for (the schema names {builtin}; `scripts/litert_ops.py` asks the installed "
        "LiteRT). {missing} It also runs {custom} custom operators. Names, types and notes: "
        "[docs/operators.md](docs/operators.md).",
        "missing": "Missing: {}.",
        "none": "None is missing.",
    },
    "README.ko.md": {
        "counts": "Sanderling은 LiteRT {litert}에 커널이 있는 내장 연산자 {runs}개 중 "
        "**{ours}개**를 실행합니다(스키마에는 {builtin}개가 있으며, 설치된 LiteRT에는 "
        "`scripts/litert_ops.py`로 묻습니다). {missing} 사용자 정의 연산자 {custom}개도 "
        "실행합니다. 이름과 타입, 참고 사항: "
        "[docs/operators.md](docs/operators.md).",
        "missing": "빠진 것: {}.",
        "none": "빠진 것은 없습니다.",
    },
}


def rows() -> list[OpDef]:
    """By family, then by name."""
    order = {family: i for i, family in enumerate(FAMILIES)}
    return sorted(OPS.values(), key=lambda r: (order.get(r.family, len(order)), r.name))


def summary(words: dict[str, str]) -> str:
    """A README's part: counts, and what is missing."""
    builtin = set(ENUMS["BuiltinOperator"])
    ours, runs = builtin & set(OPS), set(LITERT["runs"])
    missing = ", ".join(sorted(runs - ours))
    return words["counts"].format(
        ours=len(ours & runs),
        runs=len(runs),
        litert=LITERT["litert"],
        builtin=len(builtin),
        missing=words["missing"].format(missing) if missing else words["none"],
        custom=len(OPS) - len(ours),
    )


def table(found: Iterable[OpDef]) -> str:
    return markdown(
        ["operator", "types", "inputs", "gpu", "notes"],
        [
            [
                f"`{r.name}`",
                " ".join(r.types) or "any",
                _inputs(r),
                "yes" if r.name in KERNELS else "",
                _notes(r),
            ]
            for r in found
        ],
    )


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
        lines += ["", f"## {family}", "", table(group)]
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


def readme(name: str) -> str:
    """A README with its generated part renewed."""
    text = (ROOT / name).read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{summary(READMES[name])}\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = []
    for path, text in (
        (ROOT / "docs" / "operators.md", document()),
        *((ROOT / name, readme(name)) for name in READMES),
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

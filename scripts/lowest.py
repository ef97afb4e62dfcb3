"""Print the lowest versions that pyproject.toml admits, as constraints for pip.

    python scripts/lowest.py > lowest.txt
    pip install --constraint lowest.txt --editable '.[dev]'

`make test-lowest` runs the suite with them, so that a lower bound is a version that was tried.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

try:
    import tomllib
except ImportError:  # Python 3.10: pip carries a copy
    from pip._vendor import tomli as tomllib  # type: ignore[import-not-found, no-redef]

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
_BOUND = re.compile(r"([\w.-]+)>=([\w.]+)$")
# The peers that answers are compared with are judges: the suite states what their kernels answer,
# so it wants the ones it was written against. They are no part of an ordinary install.
JUDGES = {"ai-edge-litert"}


def lowest(project: dict[str, object]) -> list[str]:
    """name==version of every requirement with a lower bound; of several bounds the highest."""
    wanted = [*project["dependencies"]]  # type: ignore[misc]
    for extra in project["optional-dependencies"].values():  # type: ignore[attr-defined]
        wanted += extra
    found = dict(match.groups() for match in map(_BOUND.match, wanted) if match)
    return [f"{name}=={version}" for name, version in sorted(found.items()) if name not in JUDGES]


def main() -> None:
    with PROJECT.open("rb") as file:
        sys.stdout.write("\n".join(lowest(tomllib.load(file)["project"])) + "\n")


if __name__ == "__main__":
    main()

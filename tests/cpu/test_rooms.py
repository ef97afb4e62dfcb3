"""The rooms of the compiler: imports point down the list, and no room is a closet of everything."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import sanderling.delegates.cpu as compiler

ROOT = Path(compiler.__file__).parent
# A module imports from its own room and those before it. A name of a module stands for itself: the
# rows of targets are below all, and instructions are written with the emitter.
ROOMS = (
    "isa.targets",
    "runtime",
    "dialect",
    "codegen.emit",
    "isa",
    "codegen",
    "kernels",
    "kernels.elementwise",
    "kernels.epilogue",
    "kernels.products",
    "kernels.depthwise",
    "kernels.move",
    "kernels.reduce",
    "kernels.recurrent",
    "kernels.vision",
    "kernels.spectral",
    "table",
    "passes",
    "steps",
    "build",
    "delegate",
    "limit_loops",
)
MOST_FILES = 16  # in one room
MOST_LEVELS = 16  # of imports
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for path in sorted(ROOT.rglob("*.py"))
    if path.name != "__init__.py"
}


def room_of(module: str) -> str:
    return module if module in ROOMS else module.rpartition(".")[0]


@cache
def imported(module: str, lazily: bool = True) -> frozenset[str]:
    """The compiler's own modules that a module imports: at once, and when a function is called."""
    tree = ast.parse(MODULES[module].read_text("utf-8"))
    own = module.split(".")
    return frozenset(found for node in nodes(tree, lazily) for found in named(node, own))


def nodes(tree: ast.AST, lazily: bool) -> Iterator[ast.ImportFrom]:
    """What the type checker alone imports does not count."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.ImportFrom):
            yield child
        if lazily or not isinstance(child, ast.FunctionDef):
            yield from nodes(child, lazily)


def named(node: ast.ImportFrom, own: list[str]) -> Iterator[str]:
    if not 0 < node.level <= len(own):
        return
    base = [*own[: len(own) - node.level], *(node.module or "").split(".")]
    whole = ".".join(part for part in base if part)
    for alias in node.names:
        for name in (f"{whole}.{alias.name}".lstrip("."), whole):
            if name in MODULES:
                yield name
                break


@cache
def level(module: str) -> int:
    return 1 + max(map(level, imported(module, lazily=False)), default=0)


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module: str) -> None:
    own = room_of(module)
    assert own in ROOMS, f"{module}: a new room needs its place in ROOMS"
    for found in sorted(imported(module)):
        below = ROOMS.index(room_of(found)) <= ROOMS.index(own)
        assert below, f"{module} imports {found}, which stands above it"


def test_rooms_are_small_and_imports_shallow() -> None:
    rooms = [room_of(module) for module in MODULES]
    assert max(map(rooms.count, rooms)) <= MOST_FILES
    assert max(map(level, MODULES)) <= MOST_LEVELS


def test_the_reader_of_imports_sees_them() -> None:
    assert {"isa.targets", "codegen.emit"} <= imported("kernels.products.gemm")
    assert "table" in imported("delegate"), "one that is made in a function"

"""The house: imports point down the list of layers, and what is public exists and is documented."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import sanderling

ROOT = Path(sanderling.__file__).parent
# A module imports from its own layer and those before it.
LAYERS = ("errors", "config", "version", "files", "glyphs", "progress", "spans", "forks",
          "child_process", "processors", "units", "tables", "protobuf", "store", "pages", "plots",
          "findings",
          "ir", "format", "ops", "passes", "runtime", "delegates", "rules", "measure", "build",
          "litert", "evaluate", "optimize", "training", "rewrites", "choose", "web",
          "cli")  # fmt: skip
TOP = ("__init__", "__main__")  # the package's face sees everything
# Looks upwards, made when they are called: Model.compile gives a Session, a model is pickled by its
# bytes.
ALLOWED = {("ir/graph.py", "runtime"), ("ir/graph.py", "format")}
# A package may state the order of its own modules: each imports only those before it. Here imports
# for the type checker count too: a cycle that hides there is a cycle.
INNER = {
    "build": (
        "platforms",
        "elf",
        "runtime_ir",
        "planned_parts",
        "descriptor",
        "objects",
        "c_sources",
        "toolchain",
        "blueprint",
        "checking",
        "benchmark",
        "library",
        "on_device",
    ),
    "rewrites": (
        "steps",
        "views",
        "ranks",
        "pieces",
        "arithmetic",
        "products",
        "control",
        "table",
        "whole_model",
        "driver",
        "simplified",
        "answers",
    ),
    "training": (
        "constraint",
        "differentiable",
        "constraints",
        "loop",
        "without_training",
        "report",
        "shrinking",
        "bits",
        "prune",
        "cluster",
        "qat",
    ),
    # what numbers become; the float model and its samples; codes in the graph; samples that
    # correct, and corrections; what it costs, and the choice by it
    "optimize": (
        "modes",
        "calibration",
        "suggest",
        "writing",
        "correcting",
        "judging",
        "quantize",
        "model_types",
    ),
    "optimize/modes": (
        "scheme",
        "rules",
        "integer_rules",
        "recipe",
        "weights",
        "recurrent",
        "xnnpack",
    ),
    "optimize/calibration": ("canonical", "samples", "calibrate", "nested", "ranges"),
    "optimize/writing": ("solve", "write", "interface", "apply"),
    "optimize/correcting": (
        "held_out",
        "parallel",
        "linear",
        "equalise",
        "calibrated",
        "sequential",
        "adaround",
        "bias_correction",
        "scale_correction",
        "probe",
        "techniques",
        "corrections",
    ),
    "optimize/judging": (
        "judge",
        "selection",
        "local_error",
        "layer_error",
        "report",
        "accuracy",
        "latency",
        "target",
        "finer_ops",
        "page",
    ),
    "evaluate": (
        "task",
        "setting_delegates",
        "error_measures",
        "output_kinds",
        "paired_statistics",
        "bootstrap",
        "images",
        "running",
        "tasks",
        "differences",
        "on_device",
    ),
}
MODULES = sorted(ROOT.rglob("*.py"))


class Import(NamedTuple):
    layer: str
    line: int
    lazy: bool


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[Import]:
    """Imports of this package's layers; those for the type checker alone do not count."""
    tree = ast.parse(path.read_text("utf-8"))
    package = ("sanderling", *path.relative_to(ROOT).parts[:-1])
    stack: list[tuple[ast.AST, bool]] = [(tree, False)]
    while stack:
        node, lazy = stack.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (Import(n[1], node.lineno, lazy) for n in names(node, package))
        inner = lazy or isinstance(node, ast.FunctionDef)
        stack.extend((child, inner) for child in ast.iter_child_nodes(node))


def names(node: ast.Import | ast.ImportFrom, package: tuple[str, ...]) -> Iterator[list[str]]:
    """The parts of each name of this package that the statement imports."""
    for alias in node.names:
        if isinstance(node, ast.Import):
            full = alias.name.split(".")
        else:
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            full = [*base, *(node.module or "").split("."), alias.name]
            full = [part for part in full if part]
        if full[0] == "sanderling" and len(full) > 1:
            yield full


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    own = layer_of(path)
    if own in TOP:
        return
    assert own in LAYERS, f"{path}: a new layer needs its place in LAYERS"
    for found in imports(path):
        where = (str(path.relative_to(ROOT)), found.layer)
        allowed = where in ALLOWED and found.lazy
        below = found.layer in LAYERS and LAYERS.index(found.layer) <= LAYERS.index(own)
        assert below or allowed, f"{path}:{found.line} imports {found.layer}, which stands above"


def inner_imports(path: Path, package: str) -> Iterator[tuple[str, int]]:
    """The modules and rooms of a package that a module in it imports, and where."""
    own = ("sanderling", *path.relative_to(ROOT).parts[:-1])
    above = ["sanderling", *package.split("/")]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for full in names(node, own):
                if full[: len(above)] == above and len(full) > len(above):
                    yield full[len(above)], node.lineno


def inside(package: str) -> Iterator[tuple[str, Path]]:
    """The files of a package, each with its module's name or that of the room it lies in."""
    for path in (ROOT / package).rglob("*.py"):
        if (name := path.relative_to(ROOT / package).parts[0].removesuffix(".py")) not in TOP:
            yield name, path


@pytest.mark.parametrize("package", INNER)
def test_inner_imports_point_back(package: str) -> None:
    order = INNER[package]
    names = {name for name, _ in inside(package)}
    assert sorted(names) == sorted(order), "a new module needs its place in the order"
    for name, path in inside(package):
        before = order[: order.index(name) + ((ROOT / package / name).is_dir())]
        for other, line in inner_imports(path, package):
            assert other in before, f"{path}:{line} imports {other}"


def test_the_reader_of_imports_sees_them() -> None:
    report = ROOT / "optimize/judging/report.py"
    assert {"modes", "writing", "judging"} <= {n for n, _ in inner_imports(report, "optimize")}
    assert "judge" in {name for name, _ in inner_imports(report, "optimize/judging")}
    seen = {i.layer for i in imports(ROOT / "runtime" / "session.py")}
    assert {"errors", "config", "ir", "ops", "runtime"} <= seen
    lazy = [i for i in imports(ROOT / "ir" / "graph.py") if i.lazy]
    assert {i.layer for i in lazy} == {"runtime", "format"}


@pytest.mark.parametrize("name", sanderling.__all__)
def test_public_names_exist_and_are_documented(name: str) -> None:
    try:
        found = getattr(sanderling, name)
    except sanderling.MissingExtraError as error:  # which has to help
        assert "pip install 'sanderling[train]'" in str(error)
        pytest.skip("its extra is not installed")
    if inspect.isclass(found) or inspect.isfunction(found):
        assert inspect.getdoc(found), f"sanderling.{name} has no docstring"
        own = vars(found).get("__doc__") if inspect.isclass(found) else found.__doc__
        assert own, f"sanderling.{name} inherits its docstring"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_modules_say_what_they_are(path: Path) -> None:
    text = path.read_text("utf-8")
    assert not text.strip() or ast.get_docstring(ast.parse(text)), f"{path} has no docstring"


def test_importing_is_light() -> None:
    """No optional package and no command line comes with `import sanderling`."""
    code = "import sys, sanderling; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"PIL", "ai_edge_litert", "tensorflow", "typer", "rich", "hypothesis", "pytest"}
    assert not heavy & {name.split(".")[0] for name in done.stdout.split()}

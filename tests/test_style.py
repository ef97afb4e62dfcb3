"""How the code is written, where a machine can tell: docstrings that stand on their own, the
formatter's own wrapping of all that is no table, modules with names of their own,
and a glossary that can be read."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import sanderling

HOUSE = Path(sanderling.__file__).parent.parent
FOLDERS = ("sanderling", "tests", "benchmarks", "scripts", "examples")
FILES = sorted(path for name in FOLDERS for path in (HOUSE / name).rglob("*.py"))
# Begins no sentence and no name of a thing: a reader would have to look for what it belongs to.
FRAGMENT = re.compile(r"(Of|That of|Those|and|Whose)\b")
# Modules that are called as one of the standard library, which is not what readers then look for.
NAMESAKES = {
    "sanderling/cli/inspect.py": "the module of a verb has the verb's name",
    "sanderling/cli/profile.py": "the module of a verb has the verb's name",
    "sanderling/cli/trace.py": "the module of a verb has the verb's name",
    "sanderling/ir/types.py": "DType and its neighbours: 20 modules import them by this name",
}
LITERALS = (ast.List, ast.Tuple, ast.Dict, ast.Set)
# Calls whose arguments are a table: the cases of a test, the rows of an accelerator's rules.
TABLES = ("parametrize", "rows", "frozenset")


def place(path: Path) -> str:
    return path.relative_to(HOUSE).as_posix()


def fragments(text: str) -> list[str]:
    """The names of what has a docstring that is a fragment."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, kinds)]
    said = [(getattr(n, "name", "the module"), ast.get_docstring(n) or "") for n in nodes]
    return [name for name, docstring in said if FRAGMENT.match(docstring)]


def skips(text: str) -> list[int]:
    """The lines where the formatter is told to skip something that is no table."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = [t.start[0] for t in tokens if t.type == tokenize.COMMENT and "fmt: skip" in t.string]
    tables = {node.end_lineno for node in skippable(ast.parse(text)) if is_table(node)}
    return [line for line in lines if line not in tables]


def skippable(tree: ast.AST) -> Iterator[ast.expr]:
    """What a comment behind it would exempt: a decorator, or the value of a statement."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from node.decorator_list
        is_of_value = isinstance(
            node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return | ast.Expr
        )
        if is_of_value and node.value is not None:
            yield node.value


def is_table(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).rpartition(".")[2] in TABLES
    return isinstance(node, LITERALS)


@pytest.mark.parametrize("path", FILES, ids=place)
def test_docstrings_stand_on_their_own(path: Path) -> None:
    if place(path).startswith("sanderling/"):
        found = fragments(path.read_text("utf-8"))
        assert not found, f"begin with a noun: the docstrings of {', '.join(found)} in {path}"


@pytest.mark.parametrize("path", FILES, ids=place)
def test_the_formatter_skips_tables_only(path: Path) -> None:
    found = skips(path.read_text("utf-8"))
    assert not found, f"take `# fmt: skip` away and format: lines {found} of {path}"


def test_no_module_is_called_as_one_of_the_standard_library() -> None:
    found = {
        place(path)
        for path in (HOUSE / "sanderling").rglob("*.py")
        for name in [path.parent.name if path.name == "__init__.py" else path.stem]
        if name in sys.stdlib_module_names
    }
    assert found == set(NAMESAKES), "find another name, or say here why it has this one"


def test_the_glossary_is_short() -> None:
    page = (HOUSE / "docs" / "architecture.md").read_text("utf-8")
    rows = re.findall(r"^\| (.+?) \|", page.partition("## Glossary")[2], re.M)
    words = [row for row in rows if row != "---"][1:]
    assert 15 < len(words) <= 25 and len(set(words)) == len(words)
    assert not [word for word in words if "," in word], "a row has one word"


def test_the_judges_see_what_is_wrong() -> None:
    wrong = (
        'def f(a,\n      b):  # fmt: skip\n    """Of both."""\n'
        "    return a(b,\n             1)  # fmt: skip\n"
    )
    assert fragments(wrong) == ["f"] and skips(wrong) == [2, 5]
    right = "A = [1,\n     2]  # fmt: skip\n@pytest.mark.parametrize('x', [1,\n  2])  # fmt: skip\n"
    assert not skips(right + "def g(): ...\n")

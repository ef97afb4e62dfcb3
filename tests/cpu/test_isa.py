"""Instructions stand in the files of isa/ alone, and kernels do without any that a target lacks."""

from __future__ import annotations

import ast
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

import sanderling.delegates.cpu as compiler
from sanderling.delegates.cpu.codegen.emit import I64, Emitter, Value
from sanderling.delegates.cpu.isa import base
from sanderling.delegates.cpu.isa.base import Isa, isa_of
from sanderling.delegates.cpu.isa.targets import TARGETS, host_target
from tests.support.cpu_conformance import cases_of, check_cpu

ROOT = Path(compiler.__file__).parent
ISA_FILES = ROOT / "isa"
ARCHITECTURES = ("llvm.x86.", "llvm.aarch64.")
# What a row tells LLVM; a kernel that looks into it decides what an architecture's file should.
FOR_LLVM = {"triple", "features", "cpu", "needs", "isa", "dot", "matrix"}
# Their kernels have operations of all kinds.
OPS = (
    "CONV_2D",
    "DEPTHWISE_CONV_2D",
    "FULLY_CONNECTED",
    "SOFTMAX",
    "LOGISTIC",
    "TANH",
    "ADD",
    "UNIDIRECTIONAL_SEQUENCE_LSTM",
)
# Operations that a class must have where it says so.
PROMISED = {
    "has_dot": ("dot_bytes",),
    "has_dot_words": ("dot_words",),
    "has_byte_matrix": ("multiply_byte_matrix",),
    "has_pairs": ("multiply_pairs",),
    "has_packs": ("pack_words", "pack_bytes"),
    "has_high_mul": ("high_mul", "rounding_shift"),
    "has_permutes": ("permute", "permute_two", "shuffle_bytes"),
    "rounds_down": ("fma_down", "convert_down"),
    "packs_floats": ("convert_nearest",),
    "quick_lookup": ("lookup",),
}


def test_no_other_file_knows_an_architecture() -> None:
    outside = [path for path in ROOT.rglob("*.py") if ISA_FILES not in path.parents]
    assert not [f"{path.name}: {said}" for path in outside for said in known_of(path.read_text())]


def test_the_reader_sees_what_a_file_knows() -> None:
    assert known_of('e.call(f"llvm.x86.sse2.{name}", t)')
    assert known_of('if e.target.triple.startswith("x86"): pass')
    assert known_of('wide = 1 if "+avx2" in target.features else 2')
    assert not known_of("module.triple = target.triple")


def known_of(text: str) -> list[str]:
    """Names of instructions, and tests of what a row tells LLVM."""
    nodes = list(ast.walk(ast.parse(text)))
    names = [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    tests = [n.test for n in nodes if isinstance(n, ast.If | ast.IfExp)]
    tests += [n for n in nodes if isinstance(n, ast.Compare)]
    asked = [ast.unparse(found) for test in tests for found in ast.walk(test) if is_row(found)]
    return [*(name for name in names if name.startswith(ARCHITECTURES)), *asked]


def is_row(node: ast.AST) -> bool:
    """A field of a target that is LLVM's."""
    if not isinstance(node, ast.Attribute) or node.attr not in FOR_LLVM:
        return False
    return ast.unparse(node.value).endswith(("target", "row"))


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_has_what_it_says(name: str) -> None:
    isa = isa_of(TARGETS[name])
    wanted = [op for fact, ops in PROMISED.items() if getattr(isa, fact) for op in ops]
    wanted += ["dot_bf16"] if TARGETS[name].bf16 else []
    wanted += ["lookup"] if isa.lookup_lanes > 1 else []
    for operation in ("pause", "clock", *wanted):
        assert getattr(type(isa), operation) is not getattr(Isa, operation), operation
    numbers = isa.gettid, isa.futex, isa.getcpu, isa.sched_setaffinity, isa.sched_getaffinity
    assert len(set(numbers)) == len(numbers)


class Plain(Isa):
    """An architecture without a single instruction of its own."""

    gettid, futex = 186, 202
    getcpu, sched_setaffinity, sched_getaffinity = 309, 203, 204

    def pause(self, e: Emitter) -> None:
        """Nothing: spinning is all there is."""

    def clock(self, e: Emitter) -> Value:
        return I64(0)


@pytest.mark.parametrize("activation", ["u8", "i8"])
@pytest.mark.parametrize("op", OPS)
def test_a_new_architecture_runs_without_instructions(
    op: str, activation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row and a file: what they do not have, LLVM's own operations do."""
    module = ModuleType("plain")
    module.ISA = Plain  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, f"{base.__package__}.plain", module)
    triple = host_target().triple
    least = [row for row in TARGETS.values() if row.triple == triple][-1]
    row = replace(least, name="plain", isa="plain", activation=activation)
    monkeypatch.setitem(TARGETS, row.name, row)
    for case in cases_of(op):
        # Cases without bytes are the same for both types of activations.
        if activation == "u8" or any(t and t.dtype in ("i8", "u8") for t in case.inputs):
            check_cpu(case, row.name)

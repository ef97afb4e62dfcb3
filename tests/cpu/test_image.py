"""From object code to an image: relocations, calls to the outside, AArch64 code under qemu."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import llvmlite.ir as ir
import numpy as np
import pytest

from sanderling.delegates.cpu.codegen.jit import compile_object
from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.isa.targets import TARGETS, Target
from sanderling.delegates.cpu.runtime.image import Image, Loaded, link
from sanderling.errors import DelegateError
from sanderling.ir.graph import copy_graph
from tests.conformance.harness import Case
from tests.support.aarch64_qemu import QEMU, run_aarch64
from tests.support.conv_stacks import feed, stack
from tests.support.cpu_conformance import (
    EVERYTHING,
    RUNNABLE_ROWS,
    cases_of,
    check_cpu,
    cpu_for,
    run,
)

ARM = ("neon", "neondot", "i8mm") if EVERYTHING else ("i8mm",)
MOST_EMULATED = 1
I64, F32 = ir.IntType(64), ir.FloatType()


def image_of(target: Target, build: Callable[[ir.Module], None]) -> Image:
    module = ir.Module("test")
    module.triple = target.triple
    build(module)
    return link(compile_object(str(module), target))


def function(module: ir.Module, name: str, result: ir.Type, *args: ir.Type) -> ir.IRBuilder:
    made = ir.Function(module, ir.FunctionType(result, args), name)
    made.attributes.add("noinline")
    return ir.IRBuilder(made.append_basic_block())


def calls_and_tables(module: ir.Module) -> None:
    """A call between functions, a table of constants, and constants of a size that is loaded."""
    table = ir.GlobalVariable(module, ir.ArrayType(I64, 100), "table")
    table.initializer = ir.Constant(table.value_type, [i * i + 2**40 for i in range(100)])
    table.global_constant, table.linkage = True, "internal"
    b = function(module, "look_up", I64, I64)
    place = b.gep(table, [I64(0), b.function.args[0]], source_etype=table.value_type)
    b.ret(b.load(place, typ=I64))
    inner = b.function
    b = function(module, "entry", I64, I64, ir.FloatType())
    scaled = b.fmul(b.function.args[1], ir.Constant(F32, 1.2345678))
    b.ret(b.add(b.call(inner, [b.function.args[0]]), b.fptosi(scaled, I64)))


@pytest.mark.parametrize("target", RUNNABLE_ROWS, ids=lambda t: t.name)
def test_calls_and_constants(target: Target) -> None:
    loaded = Loaded(image_of(target, calls_and_tables))
    entry = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_float)(loaded.entry("entry"))
    assert [entry(i, 1000) for i in (0, 7, 99)] == [i * i + 2**40 + 1234 for i in (0, 7, 99)]


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda t: t.name)
def test_every_target_links(target: Target) -> None:
    assert "entry" in image_of(target, calls_and_tables).entries


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda t: t.name)
def test_a_call_to_the_outside_is_an_error(target: Target) -> None:
    def build(module: ir.Module) -> None:
        outside = ir.Function(module, ir.FunctionType(I64, []), "somewhere_else")
        b = function(module, "entry", I64)
        b.ret(b.call(outside, []))

    with pytest.raises(DelegateError, match="somewhere_else"):
        image_of(target, build)


@pytest.mark.skipif(QEMU is None, reason="apt-get install qemu-user")
@pytest.mark.parametrize("quantised", [True, False])
@pytest.mark.parametrize("target", ARM)
def test_aarch64_code_runs(target: str, quantised: bool) -> None:
    model = stack(quantised, layers=2, size=7, channels=24)
    graph = model.main
    delegate = cpu_for(target, timed=True)
    assert not any(delegate.refuses(op) for op in graph.ops)
    own, _ = copy_graph(graph, graph.ops, graph.inputs, graph.outputs)
    x = feed(model)
    y = np.zeros_like(x)
    run_aarch64(delegate.compiled(own), [x], [y])
    (expected,) = run(model.compile(["reference"]), [x])
    limit = 1 if quantised else 1e-5 * np.abs(expected).max()
    assert np.abs(y.astype(np.float64) - expected).max() <= limit


def emulated_cases() -> list[Case]:
    """The first cases of each operator that the delegate takes on ARM: qemu is slow to start."""
    made = []
    delegate = CpuDelegate("neon", cache=False)
    for name in sorted({row.op for row in cases_of()}):
        taken = [r for r in cases_of(name) if r.build is None and _is_taken(delegate, r)]
        made += taken[:MOST_EMULATED]
    return made


def _is_taken(delegate: CpuDelegate, row: Case) -> bool:
    graph = row.model().main
    fed = len(graph.inputs) == len(row.arrays(row.model(), np.random.default_rng(0)))
    variables = any(t.is_variable for t in graph.tensors)
    return fed and not variables and not any(delegate.refuses_each(graph.ops))


@pytest.mark.skipif(QEMU is None, reason="apt-get install qemu-user")
@pytest.mark.parametrize("target", ARM)
def test_operators_on_aarch64(target: str) -> None:
    wrong = []
    for row in emulated_cases():
        try:
            check_cpu(row, target, emulate=True)
        except Exception as error:
            wrong.append(f"{row.id}: {type(error).__name__}: {str(error)[:300]}")
    assert not wrong, "\n".join(wrong)

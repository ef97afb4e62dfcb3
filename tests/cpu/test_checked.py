"""The checked build: code whose every access is tested. Kernels that are wrong on purpose are
found, the kernels that there are keep to their tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sanderling.delegates.cpu.codegen.emit import F32, I8, I64, PTR, Emitter, vector
from sanderling.delegates.cpu.codegen.program import StepEmitter
from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.isa.targets import TARGETS, runnable
from sanderling.delegates.cpu.kernels.row import Kernel
from sanderling.delegates.cpu.runtime.abi import SLACK
from sanderling.delegates.cpu.table import KERNELS
from sanderling.errors import DelegateError
from sanderling.ir import Graph, Model, Op, Tensor
from sanderling.ir.types import DType
from tests.conformance.cases import CASES
from tests.conformance.harness import Case
from tests.support.cpu_conformance import EVERYTHING, GELU_OF_INFINITY, RUNNABLE, check_cpu, cpu_for

BYTES = 4 * 24  # of each tensor
Wrong = Callable[[StepEmitter, Tensor, Tensor], None]


def chain() -> Model:
    """Three ops of one kind: the middle one reads and writes the arena."""
    g = Graph("main")
    tensors = [g.input("x", DType.FLOAT32, (4, 6))]
    for name in ("first", "second", "y"):
        tensors.append(g.tensor(name, DType.FLOAT32, (4, 6)))
        g.add(
            "CUMSUM",
            [tensors[-2], g.constant(f"axis {name}", np.int32([0]))],
            tensors[-1:],
            exclusive=False,
            reverse=False,
        )
    g.outputs = tensors[-1:]
    return Model([g])


def copied(k: StepEmitter, op: Op) -> None:
    assert op.inputs[0] is not None
    k.copy(k.ptr(op.outputs[0]), k.ptr(op.inputs[0]), BYTES)


def reads(at: int, t: object = I8) -> Wrong:
    return lambda k, x, y: k.store(k.load(k.at(k.ptr(x), at, I8), t), k.ptr(y))


def writes(at: int) -> Wrong:
    return lambda k, x, y: k.store(I8(7), k.at(k.ptr(y), at, I8))


def writes_input(k: StepEmitter, x: Tensor, y: Tensor) -> None:
    k.store(I8(7), k.ptr(x))


def reads_constant(at: int) -> Wrong:
    values = np.zeros(100, np.int8)
    return lambda k, x, y: k.store(k.load(k.at(k.constant(values), at, I8), I8), k.ptr(y))


def writes_constant(k: StepEmitter, x: Tensor, y: Tensor) -> None:
    k.store(I8(1), k.constant(np.zeros(100, np.int8)))


def scratch(at: int) -> Wrong:
    return lambda k, x, y: k.store(I8(1), k.at(k.scratch(100), at, I8))


def in_a_function(k: StepEmitter, x: Tensor, y: Tensor) -> None:
    def build(e: Emitter) -> None:
        to, by, count = e.args
        with e.loop(0, count, carry=[to, by]) as (_, (t, s)):
            e.store(e.load(s, F32), t)
            e.carry([e.at(t, 1, F32), e.at(s, 1, F32)])

    function = k.program.function("too_far", [PTR, PTR, I64], build)
    k.b.call(function, [k.ptr(y), k.ptr(x), I64(BYTES // 4 + 1)])


def part_of_a_vector(k: StepEmitter, x: Tensor, y: Tensor) -> None:
    t = vector(F32, 8)
    k.load_part(k.at(k.ptr(x), BYTES - 8, I8), t, 2)  # is good
    k.store_part(k.const(t, 0), k.at(k.ptr(y), BYTES - 8, I8), 3)


def either(k: StepEmitter, x: Tensor, y: Tensor) -> None:
    """The extent is that of the pointer which is chosen."""
    one = k.b.icmp_signed("==", k.chunks, I64(1))
    chosen = k.b.select(one, k.scratch(8), k.ptr(y))
    k.store(I8(1), k.at(chosen, 8, I8))


def through_memory(k: StepEmitter, x: Tensor, y: Tensor) -> None:
    """Pointers that are stored keep their extent."""
    table = k.scratch(64)
    k.store(k.ptr(y), k.at(table, 3, PTR), 8)
    k.store(I8(1), k.at(k.load(k.at(table, 3, PTR), PTR, 8), BYTES, I8))


# How it is wrong; the step that is, the first, second or last; what is said.
ROWS: dict[str, tuple[Wrong, int, str]] = {
    "a caller's array has no slack": (reads(BYTES), 0, f"reads 1 bytes at {BYTES} of tensor 'x'"),
    "half inside": (reads(BYTES - 4, I64), 0, f"reads 8 bytes at {BYTES - 4} of tensor 'x'"),
    "in front": (reads(-1), 0, "reads 1 bytes at -1 of tensor 'x'"),
    "far behind in the arena": (reads(BYTES + SLACK), 1, "of tensor 'first'"),
    "a write has no slack": (writes(BYTES), 1, f"writes 1 bytes at {BYTES} of tensor 'second'"),
    "in front in the arena": (writes(-1), 1, "writes 1 bytes at -1 of tensor 'second'"),
    "a caller's result": (writes(BYTES), 2, f"writes 1 bytes at {BYTES} of tensor 'y'"),
    "an input is written": (writes_input, 0, "writes 1 bytes at 0 of tensor 'x'"),
    "behind a constant": (reads_constant(100 + SLACK), 1, "of a constant (100 bytes)"),
    "a constant is written": (writes_constant, 1, "writes 1 bytes at 0 of a constant"),
    "behind the scratch": (scratch(100), 1, "writes 1 bytes at 100 of scratch (100 bytes)"),
    "in a function": (in_a_function, 0, f"reads 4 bytes at {BYTES} of tensor 'x'"),
    "a part of a vector": (part_of_a_vector, 1, f"of tensor 'second' ({BYTES} bytes)"),
    "one of two": (either, 1, "writes 1 bytes at 8 of scratch"),
    "a pointer in memory": (through_memory, 1, f"writes 1 bytes at {BYTES} of tensor 'second'"),
}


# What is emulated moves other bytes at once: the texts are those of the machine's own code.
@pytest.mark.parametrize("target", [name for name in RUNNABLE if runnable(TARGETS[name])])
@pytest.mark.parametrize("row", ROWS)
def test_wrong_kernels_are_found(row: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, place, text = ROWS[row]
    faulty = True

    def emit(k: StepEmitter, op: Op) -> None:
        copied(k, op)
        if faulty and k.name == f"step{place}_cumsum":
            assert op.inputs[0] is not None
            wrong(k, op.inputs[0], op.outputs[0])

    monkeypatch.setitem(KERNELS, "CUMSUM", (Kernel(emit),))
    model, x = chain(), np.arange(24, dtype=np.float32).reshape(4, 6)
    session = model.compile([cpu_for(target, checked=True)])
    for _ in range(2):  # nothing of the first is left
        with pytest.raises(DelegateError) as caught:
            session(x)
        assert text in str(caught.value)
        assert f"step{place}_cumsum" in str(caught.value) and "CUMSUM" in str(caught.value)
    faulty = False
    assert np.array_equal(model.compile([cpu_for(target, checked=True)])(x), x)


def test_what_is_allowed_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads of the slack, behind what lies in the arena and among the weights."""

    def emit(k: StepEmitter, op: Op) -> None:
        copied(k, op)
        assert op.inputs[0] is not None
        if op.inputs[0].name != "x":
            k.load(k.at(k.ptr(op.inputs[0]), BYTES + SLACK - 1, I8), I8)
        k.load(k.at(k.constant(np.zeros(100, np.int8)), 100 + SLACK - 8, I8), I64)

    monkeypatch.setitem(KERNELS, "CUMSUM", (Kernel(emit),))
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    assert np.array_equal(chain().compile([CpuDelegate(cache=False, checked=True)])(x), x)


def test_rows_that_lie_apart_have_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two results lie in the rows of their concatenation: one must not write the other's."""

    def emit(k: StepEmitter, op: Op) -> None:
        y = op.outputs[0]
        with k.loop(0, 4) as i:
            row = k.at(k.ptr(y), k.mul(i, k.pitch(y, 24)), I8)
            k.store(k.const(vector(F32, 8), 1), row)

    monkeypatch.setitem(KERNELS, "CUMSUM", (Kernel(emit, writes=lambda op: True),))
    g = Graph("main")
    x, axis = g.input("x", DType.FLOAT32, (4, 6)), g.constant("axis", np.int32([0]))
    halves = [g.tensor(n, DType.FLOAT32, (4, 6)) for n in ("left", "right")]
    for half, reverse in zip(halves, (False, True), strict=True):
        g.add("CUMSUM", [x, axis], [half], exclusive=False, reverse=reverse)
    y = g.tensor("y", DType.FLOAT32, (4, 12))
    g.add("CONCATENATION", halves, [y], axis=1, fused_activation_function="NONE")
    g.outputs = [y]
    session = Model([g]).compile([CpuDelegate(cache=False, checked=True)])
    with pytest.raises(DelegateError, match="writes 32 bytes at 0 of tensor 'left'"):
        session(np.zeros((4, 6), np.float32))


def test_checked_code_is_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDERLING_CACHE", str(tmp_path))
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    plain, checked = CpuDelegate(), CpuDelegate(checked=True)
    assert plain.identity != checked.identity
    found = [chain().compile([d])(x) for d in (plain, checked)]
    assert np.array_equal(*found)
    assert len(list(tmp_path.rglob("*.part"))) == 2
    monkeypatch.setenv("SANDERLING_CHECKED", "1")
    assert CpuDelegate().identity == checked.identity
    assert CpuDelegate(checked=False).identity == plain.identity


# Every operator's cases, some of them; `make test-all` takes all.
TABLE = [row for row in CASES if row.id != GELU_OF_INFINITY]  # which is another number here
SHARE = TABLE if EVERYTHING else TABLE[:: len(TABLE) // 60]


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("row", SHARE, ids=lambda r: r.id)
def test_the_table_keeps_to_its_tensors(
    row: Case, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDERLING_CHECKED", "1")
    check_cpu(row, target)

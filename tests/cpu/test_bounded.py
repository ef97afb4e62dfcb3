"""What a few bytes of a file can ask for: code, tables and scratch stay small whatever attributes
say, in numbers of instructions and bytes, not in seconds."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sanderling import Session, load
from sanderling.delegates.cpu.codegen import program as limits
from sanderling.delegates.cpu.codegen.program import Program, StepEmitter
from sanderling.delegates.cpu.delegate import CpuDelegate, lower
from sanderling.delegates.cpu.kernels.row import Kernel
from sanderling.delegates.cpu.runtime.cache import fingerprint
from sanderling.delegates.cpu.table import KERNELS
from sanderling.errors import FallbackWarning
from sanderling.ir import DType, Graph, Model, Op
from sanderling.ir.graph import copy_graph
from sanderling.runtime.specialise import specialise
from tests.conformance.cases_custom import options
from tests.conformance.harness import Case, biases, case, const, f32, i8, weights
from tests.support import shared_models
from tests.support.cpu_conformance import RUNNABLE, check_cpu

PLAIN = {"fused_activation_function": "NONE"}
ONCE = {"stride_h": 1, "stride_w": 1}
NEAR = {"dilation_h_factor": 1, "dilation_w_factor": 1}


def transposed(kernel: int, stride: int) -> Case:
    size = stride + kernel
    return case(
        "TRANSPOSE_CONV",
        const([1, size, size, 3], "i32"),
        weights(3, kernel, kernel, 2),
        f32(1, 2, 2, 2),
        out=[f32()],
        padding="VALID",
        stride_h=stride,
        stride_w=stride,
        tol=1e-6,
        **PLAIN,
    )


def conv(name: str, kernel: tuple[int, int], codes: bool = False, **more: int) -> Case:
    first, units = (3, 3) if name == "CONV_2D" else (1, 2)
    x, w, b, y = f32(1, 9, 9, 2), weights(first, *kernel, 2), biases(units), f32()
    if codes:
        x, y = i8(1, 9, 9, 2, scale=0.1), i8(scale=0.3)
        w = weights(first, *kernel, 2, dtype="i8", scale=0.1)
        b = biases(units, "i32", scale=0.01)
    attrs: dict[str, Any] = ONCE | NEAR | PLAIN | more
    if name != "CONV_2D":
        attrs["depth_multiplier"] = 1
    return case(name, x, w, b, out=[y], padding="SAME", tol=1e-5, **attrs)


def pool(name: str, size: int) -> Case:
    return case(
        name,
        f32(1, 9, 9, 2),
        padding="SAME",
        filter_height=size,
        filter_width=size,
        **ONCE,
        **PLAIN,
    )


def spread(size: int, *margins: int) -> Case:
    return case(
        "SPACE_TO_BATCH_ND",
        f32(1, size - sum(margins), 4, 2),
        const([size, 2], "i32"),
        const([[*(margins or (0, 0))], [0, 0]], "i32"),
    )


def joined(size: int, *margins: int) -> Case:
    return case(
        "BATCH_TO_SPACE_ND",
        f32(2 * size, 2, 3, 2),
        const([size, 2], "i32"),
        const([[*(margins or (0, 0))], [0, 0]], "i32"),
    )


def mirrored(rank: int) -> Case:
    return case("MIRROR_PAD", f32(*[2] * rank), const([[1, 1]] * rank, "i32"), mode="REFLECT")


def sounds(channels: int) -> Case:
    bank = {"filterbank_channel_count": channels, "dct_coefficient_count": channels // 2}
    made = options(upper_frequency_limit=4000.0, lower_frequency_limit=20.0, **bank)
    return case("custom.Mfcc", f32(1, 3, 65, low=0, high=50), const([16000], "i32"), options=made)


# A number of the file, from small to large. Large weights are the file's own size.
LARGE = (2, 16, 200, 3000, 2**20)
SWEEPS: dict[str, tuple[Callable[[int], Case], tuple[int, ...]]] = {
    "dilate": (lambda n: case("DILATE", f32(1, 3), const([n, 2], "i32"), const(0.0)), LARGE),
    "transposed": (lambda n: transposed(3, n), (1, 2, 7, 16, 40, 1000)),
    "transposed by its kernel": (lambda n: transposed(n, n), (2, 16, 40)),
    "block to batch": (spread, (2, 8, 64, 1000)),
    "block to batch, padded": (lambda n: spread(n, 1, 0), (2, 8, 64, 1000)),
    "batch to block": (joined, (2, 8, 64, 1000)),
    "batch to block, cropped": (lambda n: joined(n, 1, 0), (2, 8, 64, 1000)),
    "mirror": (mirrored, (1, 3, 5, 8)),
    "split": (lambda n: case("SPLIT", const(1, "i32"), f32(3, n), num_splits=n, out=[f32()] * n),
              (2, 50, 1000)),
    "pieces": (lambda n: case("CONCATENATION", *[f32(3, 2)] * n, axis=1, **PLAIN), (2, 50, 1000)),
    "mfcc": (sounds, (10, 100, 5000)),
    **{f"{op} {name}": (lambda n, op=op, name=name: conv(op, (3, 3), **{name: n}), LARGE)
       for op in ("CONV_2D", "DEPTHWISE_CONV_2D")
       for name in ("stride_h", "dilation_h_factor", "dilation_w_factor")},
    **{f"{op} of a kernel, {'codes' if codes else 'floats'}":
       (lambda n, op=op, codes=codes: conv(op, (n, n), codes), (1, 9, 32, 90))
       for op in ("CONV_2D", "DEPTHWISE_CONV_2D") for codes in (False, True)},
    **{op: (lambda n, op=op: pool(op, n), LARGE)
       for op in ("MAX_POOL_2D", "AVERAGE_POOL_2D", "L2_POOL_2D")},
}  # fmt: skip


def lowered(made: Case) -> Program | None:
    """The program of a case; None if an op is refused."""
    graph, _ = specialise(made.model().main, [t.shape for t in made.model().main.inputs])
    delegate = CpuDelegate(RUNNABLE[0], cache=False)
    if any(map(delegate.refuses, graph.ops)):
        return None
    own, _ = copy_graph(graph, graph.ops, graph.inputs, graph.outputs)
    return lower(own, delegate)[0]


def instructions(program: Program) -> int:
    return sum(len(b.instructions) for f in program.module.functions for b in f.blocks)


@pytest.mark.parametrize("name", SWEEPS)
def test_code_does_not_grow_with_numbers(name: str) -> None:
    make, sizes = SWEEPS[name]
    programs = [lowered(make(size)) for size in sizes]
    assert programs[0] is not None
    for program in filter(None, programs):
        assert instructions(program) <= limits.MOST_OF_STEP, name
        assert program.scratch <= 1 << 25 and len(program.weights.blob) <= 1 << 25


# These compiled for ever, or took any amount of memory.
HOSTILE = {
    "dilate": case("DILATE", f32(3, 5), const([1000, 3], "i32"), f32(low=1, high=1)),
    "transposed": transposed(3, 300),
    "far taps": conv("CONV_2D", (3, 3), dilation_h_factor=2**20, dilation_w_factor=2**20),
    "far taps of codes": conv("CONV_2D", (3, 3), True, dilation_w_factor=2**30),
    "blocks": spread(500),
    "blocks, padded": spread(500, 1, 2),
    "batches": joined(500),
    "batches, cropped": joined(500, 1, 2),
    "mirror": mirrored(7),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_answer_is_right(name: str) -> None:
    check_cpu(HOSTILE[name])


@shared_models.NEEDS
def test_the_public_file() -> None:
    model = load(shared_models.model("found/hostile_dilate"))
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    ours, theirs = (model.compile([d])(x, np.float32(7)) for d in ("cpu", "reference"))
    assert np.array_equal(ours, theirs)


def test_a_kernel_that_never_ends_runs_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def emit(k: StepEmitter, op: Op) -> None:
        while True:
            k.ptr(op.outputs[0])

    monkeypatch.setitem(KERNELS, "CUMSUM", (Kernel(emit),))
    made = case("CUMSUM", f32(4, 6), const([0], "i32"), exclusive=False, reverse=False)
    model, x = made.model(), np.ones((4, 6), np.float32)
    with pytest.warns(FallbackWarning, match=f"more than {limits.MOST_OF_STEP} instructions"):
        found = model.compile([CpuDelegate(cache=False)])(x)
    assert np.array_equal(found, np.cumsum(x, axis=0))


def test_one_step_too_long_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the op that is at fault runs elsewhere."""
    monkeypatch.setitem(KERNELS, "CUMSUM", (Kernel(lambda k, op: k.scratch(1 << 40)),))
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (4, 6))
    axis = graph.constant("axis", np.int32(0))
    for place, name in enumerate(("SQRT", "CUMSUM", "EXP", "CUMSUM", "NEG")):
        y = graph.tensor(f"y{place}", DType.FLOAT32, (4, 6))
        more = {"exclusive": False, "reverse": False} if name == "CUMSUM" else {}
        graph.add(name, [x, axis] if more else [x], [y], **more)
        x = y
    graph.outputs = [x]
    with pytest.warns(FallbackWarning, match="2 ops"):
        plan = Session(Model([graph]), CpuDelegate(cache=False)).plan()
    names = [p.delegate.name for p in plan.partition.parts]
    assert names == ["cpu", "reference", "cpu", "reference", "cpu"]


@pytest.mark.parametrize("checked", [False, True])
def test_a_part_without_steps_compiles(checked: bool) -> None:
    """Its frame is the compiler's own, and not of any step's instructions."""
    model = case("ABS", f32(4)).model()
    model.main.outputs = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        plan = Session(model, CpuDelegate(cache=False, checked=checked)).plan()
    assert [p.delegate.name for p in plan.partition.parts] == ["cpu"]


def nested(depth: int) -> Model:
    """IFs whose branches are one graph, which is such an IF: 2**depth ops in a few bytes."""
    graphs: list[Graph] = []
    for level in range(depth + 1):
        g = Graph(f"level{level}")
        flag, x = g.input("flag", DType.BOOL, ()), g.input("x", DType.FLOAT32, (2,))
        y = g.tensor("y", DType.FLOAT32, (2,))
        inner = graphs[-1] if graphs else None
        calls = {"then_subgraph_index": inner, "else_subgraph_index": inner}
        g.insert(Op("IF", [flag, flag, x], [y], calls) if inner else Op("ABS", [x], [y]))
        g.outputs = [y]
        graphs.append(g)
    return Model(graphs[::-1])


def test_graphs_that_call_each_other_are_not_put_in_place() -> None:
    delegate = CpuDelegate(cache=False)
    assert delegate.refuses(nested(3).main.ops[0]) is None
    main = nested(30).main
    assert "would be 2147483647 in its place" in str(delegate.refuses(main.ops[0]))
    assert fingerprint(main.ops, main.inputs, main.outputs)
    assert "in its place" in str(delegate.refuses(nested(300).main.ops[0]))

"""Variables and branches in native code: reads, assignments, IF under guards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from sanderling.delegates.cpu.delegate import CpuDelegate, lower
from sanderling.delegates.cpu.isa.targets import TARGETS
from sanderling.delegates.cpu.kernels.control import MOST_CASES
from sanderling.delegates.cpu.runtime.cache import fingerprint
from sanderling.delegates.cpu.table import refusal
from sanderling.ir import Array, DType, Graph, Model, Op, Quant, Tensor
from sanderling.ir.graph import copy_graph
from sanderling.ops.execute import new_state
from sanderling.runtime.resources import lift
from sanderling.runtime.session import Session
from sanderling.runtime.specialise import specialise
from tests.conformance import cases_control
from tests.conformance.cases_control import (
    Body,
    assign,
    binary,
    choose,
    const,
    emit,
    graph,
    read,
    variable,
)
from tests.support.aarch64_qemu import QEMU, run_aarch64
from tests.support.cpu_conformance import (
    EVERYTHING,
    RUNNABLE,
    TARGET_NAMES,
    cases_of,
    check_cpu,
    cpu_for,
)
from tests.support.every_worker import share_everything

OPS = ("CALL_ONCE", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "IF", "STABLEHLO_COMPOSITE")


@pytest.fixture(autouse=True)
def every_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are small here; they get the workers that are asked for."""
    share_everything(monkeypatch)


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("row", cases_of(*OPS), ids=lambda r: r.id)
def test_conformance(row, target: str) -> None:  # type: ignore[no-untyped-def]
    check_cpu(row, target, threads=2)


def test_a_case_becomes_branches() -> None:
    """Whatever its index is; and only if the branches are few."""
    for row in cases_of("STABLEHLO_CASE"):
        assert check_cpu(row, threads=2) == ""
    main, *_ = cases_control.cases_of(*[binary("ADD")] * (MOST_CASES + 1))
    assert "has no kernel" in (refusal(main.ops[0], TARGETS[RUNNABLE[0]]) or "")


def part_of(main: Graph) -> Graph:
    """The whole graph as the part that a plan would make of it."""
    own, _ = specialise(main, [t.shape for t in main.inputs])
    shared = lift(own, new_state())
    held = list(shared.names) if shared is not None else []
    return copy_graph(own, own.ops, [*own.inputs, *held], own.outputs)[0]


def steps_of(main: Graph, target: str = RUNNABLE[0]) -> list[str]:
    program, _ = lower(part_of(main), cpu_for(target))
    return [s.kernel for s in program.steps]


def whole(session: Session) -> bool:
    return [p.delegate.name for p in session.plan().partition.parts] == ["cpu"]


# -- variables ------------------------------------------------------------------------------------


def stream(dtype: DType, rows: int, new: int, channels: int) -> Model:
    """A window over the last rows: what came before is kept in a variable."""
    quant = Quant.of(0.05, 7) if dtype is DType.INT8 else None
    rng = np.random.default_rng(rows)

    def tensor(g: Graph, name: str, n: int) -> Tensor:
        return g.tensor(name, dtype, (1, n, 1, channels), quant=quant)

    init = Graph("init")
    start = rng.integers(-9, 9, (1, rows, 1, channels)).astype(dtype.numpy)
    assign(init, "v", init.constant("start", start, dtype, quant=quant))
    g = Graph("main")
    x = g.input("x", dtype, (1, new, 1, channels), quant=quant)
    g.insert(Op("CALL_ONCE", [], [], {"init_subgraph_index": init}))
    old, both, kept = (
        tensor(g, n, c) for n, c in (("old", rows), ("both", rows + new), ("kept", rows))
    )
    g.insert(Op("READ_VARIABLE", [variable(g)], [old]))
    g.add("CONCATENATION", [old, x], [both], axis=1)
    begin, size = const(g, [0, new, 0, 0], "i32"), const(g, [1, rows, 1, channels], "i32")
    g.add("SLICE", [both, begin, size], [kept])
    assign(g, "v", kept)
    y = tensor(g, "y", 1)
    g.add(
        "MAX_POOL_2D",
        [both],
        [y],
        padding="VALID",
        stride_w=1,
        stride_h=1,
        filter_width=1,
        filter_height=rows + new,
        fused_activation_function="NONE",
    )
    g.outputs = [y]
    return Model([g, init])


SIZES = [(1, 1, 1), (2, 3, 40), (3, 1, 17), (16, 1, 64), (31, 2, 33), (5, 1, 23)]


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("dtype", [DType.INT8, DType.FLOAT32], ids=lambda d: d.short)
def test_windows_of_any_size(dtype: DType, target: str) -> None:
    for rows, new, channels in SIZES if EVERYTHING else SIZES[2::2]:
        model = stream(dtype, rows, new, channels)
        ours = model.compile([cpu_for(target)], threads=1 + rows % 3)
        theirs = model.compile(["reference"])
        assert whole(ours)
        rng = np.random.default_rng(0)
        for _ in range(4):
            x = rng.integers(-100, 100, (1, new, 1, channels)).astype(dtype.numpy)
            assert np.array_equal(ours(x), theirs(x)), (rows, new, channels)


def test_a_window_costs_two_copies() -> None:
    """The state is copied to where the concatenation is, and back; types change on the way."""
    found = steps_of(stream(DType.INT8, 16, 1, 64).main)
    assert found.count("read_variable") == found.count("assign_variable") == 1
    assert found == ["read_variable", "map", "assign_variable", "max_pool_2d", "map"]


def looked_at(late: bool) -> Graph:
    def body(g: Graph, x: Tensor) -> list[Tensor]:
        old = read(g, "v", (2, 3))
        y = emit(g, "SOFTMAX", [old], (2, 3), beta=1.0)
        assign(g, "v", x)
        return [emit(g, "SOFTMAX", [old], (2, 3), beta=2.0) if late else y]

    return graph("main", body, ("f32", (2, 3)))


def test_a_read_is_free_unless_the_assignment_comes_first() -> None:
    assert "read_variable" not in steps_of(looked_at(late=False))
    assert "read_variable" in steps_of(looked_at(late=True))


def test_other_targets_compile_it() -> None:
    for target in TARGET_NAMES:
        for dtype in (DType.INT8, DType.FLOAT32):
            cpu_for(target).compiled(part_of(stream(dtype, 3, 1, 17).main))
        made = cpu_for(target).compiled(part_of(choose(*BRANCHES)[0]))
        assert made.steps


@pytest.mark.skipif(QEMU is None, reason="qemu-aarch64 is not installed")
def test_state_and_branches_on_aarch64() -> None:
    delegate = CpuDelegate("neondot", cache=False)
    model = stream(DType.INT8, 3, 1, 17)
    x = np.arange(17, dtype=np.int8).reshape(1, 1, 1, 17)
    assigned = model.graphs[1].ops[1].inputs[1]
    assert assigned is not None and assigned.data is not None
    y = np.zeros((1, 1, 1, 17), np.int8)
    run_aarch64(delegate.compiled(part_of(model.main)), [x, assigned.data], [y])
    assert np.array_equal(y, model.compile(["reference"])(x))
    for row in cases_of("IF"):
        check_cpu(row, "neondot", emulate=True)


def test_workers_agree_on_the_branch() -> None:
    """Many runs in a row: nobody goes on while another has yet to look at the condition."""
    model = with_if(unary("EXP"), unary("NEG"), uses_all)
    a = b = np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 64)
    flag = np.array(True)
    names = [t.name for t in model.main.inputs]
    run = model.compile([CpuDelegate()], threads=3).bind(
        dict(zip(names, (flag, a, b), strict=True))
    )
    wanted = {f: np.exp(np.abs(a)) if f else -np.abs(a) for f in (True, False)}
    for turn in range(3000):
        flag[...] = turn % 3 == 0
        run.run()
        np.testing.assert_allclose(list(run.outputs.values())[2], wanted[bool(flag)], rtol=1e-5)


# -- branches -------------------------------------------------------------------------------------

BRANCHES = (binary("ADD"), binary("MUL"))
ROW = ("f32", (1, 64))


def check_both(model: Model, threads: int = 1, target: str | None = None) -> None:
    """Every combination of the flags, on fresh and on used memory."""
    ours = model.compile([cpu_for(target)], threads=threads)
    theirs = model.compile(["reference"])
    assert whole(ours), ours.explain()
    rng = np.random.default_rng(1)
    flags = [t for t in model.main.inputs if t.dtype is DType.BOOL]
    for code in [*range(2 ** len(flags))] * 2:
        feeds = []
        for tensor in model.main.inputs:
            if tensor in flags:
                feeds.append(np.array(bool(code >> flags.index(tensor) & 1)))
            else:
                values = rng.integers(-90, 90, tensor.shape) / (8 if tensor.dtype.is_float else 1)
                feeds.append(values.astype(tensor.dtype.numpy))
        for mine, other in zip(_tuple(ours(*feeds)), _tuple(theirs(*feeds)), strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5, err_msg=f"flags {code}")


def _tuple(found: Any) -> tuple[Array, ...]:
    return found if isinstance(found, tuple) else (found,)


def branch(
    g: Graph, flag: Tensor, args: Sequence[Tensor], bodies: Sequence[Body], subgraphs: list[Graph]
) -> list[Tensor]:
    types = [(t.dtype.short, t.shape) for t in args]
    names = "then", "else"
    made = [graph(f"{n}{len(subgraphs)}", b, *types) for n, b in zip(names, bodies, strict=True)]
    subgraphs += made
    outs = [
        g.tensor(f"{g.name}_if{len(g.tensors)}", t.dtype, t.shape, quant=t.quant)
        for t in made[0].outputs
    ]
    g.insert(
        Op(
            "IF",
            [flag, *args],
            outs,
            {"then_subgraph_index": made[0], "else_subgraph_index": made[1]},
        )
    )
    return outs


def with_if(then: Body, other: Body, around: Callable[..., list[Tensor]] | None = None) -> Model:
    """flag, a, b -> IF, then whatever `around` makes of a, b and the results."""
    inner: list[Graph] = []

    def main(g: Graph, flag: Tensor, a: Tensor, b: Tensor) -> list[Tensor]:
        a = emit(g, "ABS", [a], (1, 64))
        outs = branch(g, flag, [a, b], (then, other), inner)
        return around(g, a, b, outs) if around else outs

    made = graph("main", main, ("bool", ()), ROW, ROW)
    return Model([made, *inner])


def unary(op: str) -> Body:
    return lambda g, a, b: [emit(g, op, [a], (1, 64))]


def view(g: Graph, a: Tensor, b: Tensor) -> list[Tensor]:
    wide = emit(g, "RESHAPE", [a, const(g, [8, 8], "i32")], (8, 8), new_shape=[8, 8])
    return [emit(g, "RESHAPE", [wide, const(g, [1, 64], "i32")], (1, 64), new_shape=[1, 64])]


def joined(g: Graph, a: Tensor, b: Tensor) -> list[Tensor]:
    both = emit(g, "CONCATENATION", [a, emit(g, "EXP", [b], (1, 64))], (2, 64), axis=0)
    return [emit(g, "SLICE", [both, const(g, [0, 0], "i32"), const(g, [1, 64], "i32")], (1, 64))]


def late_reader(g: Graph, a: Tensor, b: Tensor) -> list[Tensor]:
    """The first result is there before the second reads what the other branch may overwrite."""
    first = emit(g, "EXP", [b], (1, 64))
    return [first, emit(g, "SOFTMAX", [a], (1, 64), beta=1.0)]


def swapped(g: Graph, a: Tensor, b: Tensor) -> list[Tensor]:
    return [emit(g, "NEG", [a], (1, 64)), b]


def uses_all(g: Graph, a: Tensor, b: Tensor, outs: list[Tensor]) -> list[Tensor]:
    """Everything that went in is still what it was."""
    return [emit(g, "SOFTMAX", [a], (1, 64), beta=1.0), emit(g, "NEG", [outs[0]], (1, 64)), *outs]


PAIRS: dict[str, tuple[Body, Body]] = {
    "results": (unary("NEG"), unary("EXP")),
    "passed through": (lambda g, a, b: [a], unary("NEG")),
    "both passed through": (lambda g, a, b: [a], lambda g, a, b: [b]),
    "views": (view, unary("NEG")),
    "joined": (joined, unary("NEG")),
    "constant": (lambda g, a, b: [const(g, np.ones((1, 64)))], unary("NEG")),
    "twice the same": (lambda g, a, b: [*(y := unary("NEG")(g, a, b)), *y], swapped),
    "late reader": (late_reader, swapped),
}


@pytest.mark.parametrize("name", PAIRS)
def test_branches(name: str) -> None:
    then, other = PAIRS[name]
    for threads, main in ((1, ()), (3, (uses_all,))):
        check_both(with_if(then, other, *main), threads)
        check_both(with_if(other, then, *main), 4 - threads)


@pytest.mark.parametrize("target", RUNNABLE)
def test_branches_in_branches(target: str) -> None:
    inner: list[Graph] = []

    def second(g: Graph, flag: Tensor, a: Tensor, b: Tensor) -> list[Tensor]:
        c = emit(g, "ADD", [a, b], (1, 64))
        (d,) = branch(g, flag, [c, b], (unary("NEG"), binary("MUL", (1, 64))), inner)
        return [emit(g, "SUB", [c, d], (1, 64))]

    def third(g: Graph, flag: Tensor, a: Tensor, b: Tensor) -> list[Tensor]:
        return [emit(g, "EXP", [a], (1, 64))]

    def main(g: Graph, one: Tensor, two: Tensor, a: Tensor, b: Tensor) -> list[Tensor]:
        a = emit(g, "SOFTMAX", [a], (1, 64), beta=1.0)
        (y,) = branch(g, one, [two, a, b], (second, third), inner)
        return [emit(g, "ADD", [y, a], (1, 64))]

    made = graph("main", main, ("bool", ()), ("bool", ()), ROW, ROW)
    check_both(Model([made, *inner]), threads=2, target=target)


def test_8_bit_branches() -> None:
    quant = Quant.of(0.1, 3)
    inner: list[Graph] = []

    def relu(g: Graph, x: Tensor) -> list[Tensor]:
        x.quant = quant
        y = g.tensor(f"{g.name}_y", DType.INT8, (1, 64), quant=quant)
        g.add("RELU6", [x], [y])
        return [y]

    def main(g: Graph, flag: Tensor, x: Tensor) -> list[Tensor]:
        x.quant = quant
        (y,) = relu(g, x)
        (z,) = branch(g, flag, [y], (relu, lambda h, a: [a]), inner)
        z.quant = quant
        return [z]

    made = graph("main", main, ("bool", ()), ("i8", (1, 64)))
    check_both(Model([made, *inner]), threads=2)


def test_composites_are_what_they_stand_for() -> None:
    """One in another, one that gives its argument back, and a branch around them."""

    def call(g: Graph, body: Body, *args: Tensor) -> Tensor:
        inner = graph(f"c{len(g.tensors)}", body, *((t.dtype.short, t.shape) for t in args))
        return emit(
            g, "STABLEHLO_COMPOSITE", args, (1, 64), name="c", decomposition_subgraph_index=inner
        )

    def twice(g: Graph, a: Tensor) -> list[Tensor]:
        return [call(g, lambda h, x: [emit(h, "TANH", [x], (1, 64))], call(g, same, a))]

    def same(g: Graph, a: Tensor) -> list[Tensor]:
        return [a]

    def then(g: Graph, a: Tensor, b: Tensor) -> list[Tensor]:
        return [call(g, twice, b)]

    model = with_if(then, unary("NEG"), lambda g, a, b, outs: [call(g, same, a), *outs])
    for g in model.graphs:  # grows on the way
        model.graphs += [c for op in g.ops for c in op.subgraphs if c not in model.graphs]
    assert len(model.graphs) == 7
    check_both(model)
    assert steps_of(Model([graph("main", twice, ROW)]).main) == ["map"]


def test_constants_that_are_passed_become_weights() -> None:
    inner: list[Graph] = []

    def dense(g: Graph, x: Tensor, w: Tensor) -> list[Tensor]:
        return [emit(g, "FULLY_CONNECTED", [x, w, None], (1, 64))]

    def main(g: Graph, flag: Tensor, x: Tensor) -> list[Tensor]:
        weights = const(g, np.random.default_rng(0).normal(size=(64, 64)))
        return branch(g, flag, [x, weights], (dense, lambda h, a, w: [a]), inner)

    model = Model([graph("main", main, ("bool", ()), ROW), *inner])
    check_both(model)
    part = part_of(model.main)
    assert len(part.inputs) == 2


def refused(model: Model) -> str:
    session = model.compile([CpuDelegate()])
    (reason,) = (
        r[0].reason for op, r in session.plan().partition.refusals.items() if op.name == "IF"
    )
    return reason


def test_refusals_name_the_branch() -> None:
    def drawn(g: Graph, a: Tensor, b: Tensor) -> list[Tensor]:
        return [emit(g, "RANDOM_UNIFORM", [const(g, [1, 64], "i32")], (1, 64), seed=3, seed2=4)]

    assert "then0" in refused(with_if(drawn, unary("NEG")))
    said = refused(choose_of_other_shape())
    assert "not known" in said or "shape" in said


def choose_of_other_shape() -> Model:
    def padded(g: Graph, a: Tensor, b: Tensor) -> list[Tensor]:
        return [emit(g, "PAD", [a, const(g, [[1, 0], [0, 2]], "i32")], (3, 5))]

    return Model(choose(padded, binary("MUL")))


def test_the_key_knows_the_branches() -> None:
    mains = [choose(binary("ADD"), binary(other))[0] for other in ("MUL", "SUB", "MUL")]
    keys = [fingerprint(m.ops, m.inputs, m.outputs) for m in mains]
    assert keys[0] != keys[1] and keys[0] == keys[2]


# -- branches at random ---------------------------------------------------------------------------


class Random:
    """Graphs of a few ops on rows of 64 floats, with branches in them."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.inner: list[Graph] = []

    def ops(self, g: Graph, flags: Sequence[Tensor], values: list[Tensor], depth: int) -> None:
        for _ in range(self.rng.integers(1, 6)):
            a, b = (values[int(i)] for i in self.rng.integers(0, len(values), 2))
            kind = self.rng.integers(0, 8)
            if kind == 0 and depth < 2:
                values += self.choice(g, flags, values, depth)
            elif kind <= 2:
                values.append(
                    emit(g, str(self.rng.choice(["ADD", "SUB", "MAXIMUM"])), [a, b], (1, 64))
                )
            elif kind == 3:
                values += view(g, a, b)
            elif kind == 4:
                values += joined(g, a, emit(g, "TANH", [b], (1, 64)))
            else:
                values.append(emit(g, str(self.rng.choice(["NEG", "TANH", "ABS"])), [a], (1, 64)))

    def body(self, count: int, flags: int, depth: int) -> Body:
        def build(g: Graph, *args: Tensor) -> list[Tensor]:
            values = list(args[flags:])
            if self.rng.integers(0, 4):
                self.ops(g, args[:flags], values, depth)
            return [values[int(i)] for i in self.rng.integers(0, len(values), count)]

        return build

    def choice(
        self, g: Graph, flags: Sequence[Tensor], values: Sequence[Tensor], depth: int
    ) -> list[Tensor]:
        count = int(self.rng.integers(1, 4))
        args = [values[int(i)] for i in self.rng.integers(0, len(values), 3)]
        bodies = [self.body(count, len(flags), depth + 1) for _ in range(2)]
        flag = flags[int(self.rng.integers(0, len(flags)))]
        return branch(g, flag, [*flags, *args], bodies, self.inner)

    def model(self) -> Model:
        def main(g: Graph, one: Tensor, two: Tensor, a: Tensor, b: Tensor) -> list[Tensor]:
            values = [a, b]
            self.ops(g, [one, two], values, 0)
            values += self.choice(g, [one, two], values, 0)
            self.ops(g, [one, two], values, 0)
            return [values[int(i)] for i in self.rng.integers(0, len(values), 2)] + values[-2:]

        made = graph("main", main, ("bool", ()), ("bool", ()), ROW, ROW)
        return Model([made, *self.inner])


@pytest.mark.parametrize("seed", range(60 if EVERYTHING else 6))
def test_branches_at_random(seed: int) -> None:
    check_both(Random(seed).model(), threads=1 + seed % 2)

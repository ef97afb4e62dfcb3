"""Conformance cases of control flow and variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flatbuffers import flexbuffers

from sanderling.ir import Array, DType, Graph, Model, Op, Tensor

from .harness import Case

Body = Callable[..., Sequence[Tensor]]


def emit(
    g: Graph,
    op: str,
    inputs: Sequence[Tensor | None],
    shape: Sequence[int] = (),
    dtype: str = "f32",
    version: int = 1,
    **attrs: Any,
) -> Tensor:
    """Append an op with one new output."""
    out = g.tensor(f"{g.name}_{len(g.tensors)}", DType.parse(dtype), shape)
    g.insert(Op(op, inputs, [out], attrs, version=version))
    return out


def graph(name: str, body: Body, *inputs: tuple[str, tuple[int, ...]]) -> Graph:
    """A graph whose outputs are what `body` makes of its inputs."""
    g = Graph(name)
    given = [g.input(f"{name}_in{i}", DType.parse(d), s) for i, (d, s) in enumerate(inputs)]
    g.outputs = list(body(g, *given))
    return g


def const(g: Graph, value: Any, dtype: str = "f32") -> Tensor:
    data = np.asarray(value, DType.parse(dtype).numpy)
    return g.constant(f"{g.name}_c{len(g.tensors)}", data, DType.parse(dtype))


def control(
    op: str,
    name: str,
    build: Callable[[], list[Graph]],
    *feeds: Callable[[np.random.Generator], Any],
    runs: int = 1,
) -> Case:
    def arrays(rng: np.random.Generator) -> list[Array]:
        return [np.asarray(f(rng)) for f in feeds]

    return Case(op, name=name, build=lambda: Model(build()), feeds=arrays, runs=runs)


def flip(rng: np.random.Generator) -> Array:
    return np.array(rng.integers(0, 2)).astype(bool)


def floats(*shape: int) -> Callable[[np.random.Generator], Array]:
    return lambda rng: rng.uniform(-3, 3, shape).astype(np.float32)


def number(low: int, high: int) -> Callable[[np.random.Generator], Array]:
    return lambda rng: np.array(rng.integers(low, high), np.int32)


X = ("f32", (2, 3))
SCALAR = ("i32", ())


def binary(op: str, shape: tuple[int, ...] = (2, 3), dtype: str = "f32") -> Body:
    return lambda g, a, b: [emit(g, op, [a, b], shape, dtype)]


# -- IF and STABLEHLO_CASE ----------------------------------------------------------------------


def choose(then: Body, other: Body, out_shape: tuple[int, ...] = (2, 3)) -> list[Graph]:
    branches = [graph("then", then, X, X), graph("else", other, X, X)]

    def main(g: Graph, flag: Tensor, a: Tensor, b: Tensor) -> list[Tensor]:
        outs = [
            g.tensor(f"y{i}", DType.FLOAT32, out_shape) for i in range(len(branches[0].outputs))
        ]
        g.insert(
            Op(
                "IF",
                [flag, a, b],
                outs,
                {"then_subgraph_index": branches[0], "else_subgraph_index": branches[1]},
            )
        )
        return outs

    return [graph("main", main, ("bool", ()), X, X), *branches]


def padded(g: Graph, a: Tensor, b: Tensor) -> list[Tensor]:
    return [emit(g, "PAD", [a, const(g, [[1, 0], [0, 2]], "i32")], (3, 5))]


def two(first: str, second: str) -> Body:
    return lambda g, a, b: [*binary(first)(g, a, b), *binary(second)(g, b, a)]


def nested(g: Graph, a: Tensor, b: Tensor) -> list[Tensor]:
    return [emit(g, "ADD", [emit(g, "MUL", [a, b], (2, 3)), const(g, 2.5)], (2, 3))]


IF = [
    control(
        "IF", name, lambda a=a, b=b, s=s: choose(a, b, s), flip, floats(2, 3), floats(2, 3), runs=3
    )
    for name, a, b, s in [
        ("same shapes", binary("ADD"), binary("MUL"), (2, 3)),
        ("two outputs", two("ADD", "SUB"), two("MUL", "MAXIMUM"), (2, 3)),
        ("shape depends on branch", padded, binary("MUL"), (2, 3)),
        ("passes an input through", lambda g, a, b: [b], nested, (2, 3)),
    ]
]


def cases_of(*bodies: Body) -> list[Graph]:
    branches = [graph(f"branch{i}", body, X, X) for i, body in enumerate(bodies)]

    def main(g: Graph, index: Tensor, a: Tensor, b: Tensor) -> list[Tensor]:
        return [emit(g, "STABLEHLO_CASE", [index, a, b], (2, 3), branch_subgraph_indices=branches)]

    return [graph("main", main, SCALAR, X, X), *branches]


CASE = [
    control(
        "STABLEHLO_CASE",
        f"{len(ops)} branches",
        lambda ops=ops: cases_of(*map(binary, ops)),
        number(-2, len(ops) + 2),
        floats(2, 3),
        floats(2, 3),
        runs=4,
    )
    for ops in [("ADD", "MUL"), ("ADD", "MUL", "SUB"), ("SUB",)]
]


# -- WHILE --------------------------------------------------------------------------------------


def loop(
    limit: int,
    body: Body,
    *state: tuple[str, tuple[int, ...]],
    out_shapes: Sequence[tuple[int, ...]] = (),
) -> list[Graph]:
    """while i < limit: state = body(i, state), with i counting up."""
    inputs = (SCALAR, *state)

    def counted(g: Graph, i: Tensor, *rest: Tensor) -> list[Tensor]:
        return [emit(g, "ADD", [i, const(g, 1, "i32")], (), "i32"), *body(g, i, *rest)]

    condition = graph(
        "cond",
        lambda g, i, *rest: [emit(g, "LESS", [i, const(g, limit, "i32")], (), "bool")],
        *inputs,
    )
    step = graph("body", counted, *inputs)

    def main(g: Graph, *given: Tensor) -> list[Tensor]:
        shapes = [(), *(out_shapes or [s for _, s in state])]
        outs = [
            g.tensor(f"y{k}", t.dtype, s)
            for k, (t, s) in enumerate(zip(given, shapes, strict=True))
        ]
        g.insert(
            Op(
                "WHILE",
                given,
                outs,
                {"cond_subgraph_index": condition, "body_subgraph_index": step},
            )
        )
        return outs

    return [graph("main", main, *inputs), condition, step]


def fibonacci(g: Graph, i: Tensor, a: Tensor, b: Tensor) -> list[Tensor]:
    return [b, emit(g, "ADD", [a, b], (2, 3))]


def growing(g: Graph, i: Tensor, a: Tensor) -> list[Tensor]:
    return [emit(g, "PAD", [a, const(g, [[1, 0], [0, 1]], "i32")], (3, 4))]


def halving(g: Graph, i: Tensor, a: Tensor) -> list[Tensor]:
    return [emit(g, "MUL", [a, const(g, 0.5)], (2, 3))]


def loop_with_branches() -> list[Graph]:
    """The body halves or doubles, as a flag in the state says."""
    branches = [
        graph(name, lambda g, a, k=k: [emit(g, "MUL", [a, const(g, k)], (2, 3))], X)
        for name, k in (("half", 0.5), ("double", 2.0))
    ]

    def step(g: Graph, i: Tensor, flag: Tensor, a: Tensor) -> list[Tensor]:
        return [
            flag,
            emit(
                g,
                "IF",
                [flag, a],
                (2, 3),
                then_subgraph_index=branches[0],
                else_subgraph_index=branches[1],
            ),
        ]

    return [*loop(3, step, ("bool", (1,)), X), *branches]


WHILE = [
    control(
        "WHILE",
        "IF in the body",
        loop_with_branches,
        number(0, 3),
        lambda rng: flip(rng).reshape(1),
        floats(2, 3),
        runs=3,
    ),
    control(
        "WHILE",
        "swaps its state",
        lambda: loop(5, fibonacci, X, X),
        number(0, 8),
        floats(2, 3),
        floats(2, 3),
        runs=3,
    ),
    control("WHILE", "never runs", lambda: loop(-5, halving, X), number(0, 8), floats(2, 3)),
    control("WHILE", "reads a constant", lambda: loop(4, halving, X), number(0, 4), floats(2, 3)),
    control("WHILE", "shape grows", lambda: loop(4, growing, X), number(0, 4), floats(2, 3)),
]


# -- variables ----------------------------------------------------------------------------------


def variable(g: Graph, name: str = "v", container: str = "") -> Tensor:
    return emit(g, "VAR_HANDLE", [], (), "resource", container=container, shared_name=name)


def assign(g: Graph, name: str, value: Tensor, container: str = "") -> None:
    g.insert(Op("ASSIGN_VARIABLE", [variable(g, name, container), value], []))


def read(
    g: Graph, name: str, shape: tuple[int, ...], dtype: str = "f32", container: str = ""
) -> Tensor:
    return emit(g, "READ_VARIABLE", [variable(g, name, container)], shape, dtype)


def accumulator(dtype: str, shape: tuple[int, ...], names: Sequence[str] = ("v",)) -> list[Graph]:
    """Each variable starts at its number, and every run adds the input to all."""

    def start(g: Graph) -> list[Tensor]:
        for k, name in enumerate(names):
            assign(g, name, const(g, np.full(shape, k), dtype))
        return []

    init = graph("init", start)

    def main(g: Graph, x: Tensor) -> list[Tensor]:
        g.insert(Op("CALL_ONCE", [], [], {"init_subgraph_index": init}))
        sums = [emit(g, "ADD", [read(g, name, shape, dtype), x], shape, dtype) for name in names]
        for name, total in zip(names, sums, strict=True):
            assign(g, name, total)
        return sums

    return [graph("main", main, (dtype, shape)), init]


def containers() -> list[Graph]:
    """The same name in two containers is two variables."""

    def main(g: Graph, a: Tensor, b: Tensor) -> list[Tensor]:
        assign(g, "v", a, "left")
        assign(g, "v", b, "right")
        return [read(g, "v", (2, 3), container="left"), read(g, "v", (2, 3), container="right")]

    return [graph("main", main, X, X)]


def numbered() -> list[Graph]:
    """Models made before resources name a variable by an int32."""

    def main(g: Graph, x: Tensor) -> list[Tensor]:
        key = const(g, 3, "i32")
        g.insert(Op("ASSIGN_VARIABLE", [key, x], []))
        return [emit(g, "READ_VARIABLE", [key], (2, 3))]

    return [graph("main", main, X)]


VARIABLES = [
    control("CALL_ONCE", "accumulates", lambda: accumulator("f32", (2, 3)), floats(2, 3), runs=4),
    control("VAR_HANDLE", "two variables", lambda: accumulator("f32", (4,), ("a", "b")), floats(4),
            runs=3),
    control("READ_VARIABLE", "i32", lambda: accumulator("i32", (3,)),
            lambda rng: rng.integers(-9, 9, 3).astype(np.int32), runs=3),
    control("READ_VARIABLE", "scalar", lambda: accumulator("f32", ()), floats(), runs=3),
    control("ASSIGN_VARIABLE", "numbered", numbered, floats(2, 3), runs=2),
    control("ASSIGN_VARIABLE", "containers", containers, floats(2, 3), floats(2, 3), runs=2),
]  # fmt: skip


# -- STABLEHLO_COMPOSITE ------------------------------------------------------------------------


def composite(body: Body, out_shape: tuple[int, ...] = (2, 3)) -> list[Graph]:
    inner = graph("decomposition", body, X, X)

    def main(g: Graph, a: Tensor, b: Tensor) -> list[Tensor]:
        outs = [g.tensor(f"y{i}", DType.FLOAT32, out_shape) for i in range(len(inner.outputs))]
        g.insert(
            Op(
                "STABLEHLO_COMPOSITE",
                [a, b],
                outs,
                {
                    "name": "test.composite",
                    "decomposition_subgraph_index": inner,
                    "version": 1,
                    "composite_attributes": flexbuffers.Dumps({}),
                },
            )
        )
        return outs

    return [graph("main", main, X, X), inner]


COMPOSITE = [
    control(
        "STABLEHLO_COMPOSITE",
        name,
        lambda b=b, s=s: composite(b, s),
        floats(2, 3),
        floats(2, 3),
        runs=2,
    )
    for name, b, s in [
        ("one op", binary("ADD"), (2, 3)),
        ("chain", nested, (2, 3)),
        ("two outputs", two("SUB", "MUL"), (2, 3)),
        ("changes the shape", padded, (3, 5)),
    ]
]

CASES: list[Case] = [*IF, *CASE, *WHILE, *VARIABLES, *COMPOSITE]

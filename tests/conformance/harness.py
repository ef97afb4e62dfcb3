"""One case table, many uses: a Case builds a small model; LiteRT and every delegate run it.

case("ADD", f32(1, 4, 4, 3), f32(3))                              outputs are inferred
case("ADD", i8(2, 3, scale=.1), i8(2, 3, scale=.2, zp=5), out=[i8(scale=.3, zp=-7)])
case("PAD", f32(2, 3), const([[0, 1], [2, 0]], "i32"))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sanderling.format import dump
from sanderling.ir import Array, DType, Graph, Model, Op, Quant, Tensor
from sanderling.ops import OPS, Spec, infer


@dataclass(frozen=True, eq=False)
class T:
    """An operand: fed with random values unless it has data (then it is a constant).

    low/high bound the random values, in reals for floats, in codes for integers (default: the
    whole range of 8-bit types, +-1000 otherwise). data: the constant. fed: data is fed as an
    input instead of stored as a constant.
    """

    shape: tuple[int, ...] = ()
    dtype: str = "f32"
    scale: Any = None
    zp: Any = 0
    axis: int = 0
    data: Any = None
    fed: bool = False
    low: float | None = None
    high: float | None = None
    variable: bool = False
    make: Callable[[np.random.Generator], Array] | None = None

    @property
    def quant(self) -> Quant | None:
        return None if self.scale is None else Quant.of(self.scale, self.zp, self.axis)

    @property
    def is_constant(self) -> bool:
        return self.data is not None and not self.fed

    def random(self, rng: np.random.Generator) -> Array:
        dtype = DType.parse(self.dtype)
        if self.make is not None:
            return np.asarray(self.make(rng), dtype.numpy)
        if self.data is not None:
            return np.asarray(self.data, dtype.numpy)
        if dtype is DType.BOOL:
            return rng.integers(0, 2, self.shape).astype(bool)
        if dtype.is_integer:
            low, high = self._codes(dtype)
            return rng.integers(low, high + 1, self.shape).astype(dtype.numpy)
        low, high = -3.0 if self.low is None else self.low, 3.0 if self.high is None else self.high
        values = rng.uniform(low, high, self.shape)
        if dtype.numpy.kind == "c":
            return (values + 1j * rng.uniform(low, high, self.shape)).astype(dtype.numpy)
        return values.astype(dtype.numpy)

    def _codes(self, dtype: DType) -> tuple[int, int]:
        smallest, largest = dtype.bounds
        wide = dtype.bits > 8 and self.scale is None
        low = -1000 if wide and smallest < 0 else smallest
        high = 1000 if wide else largest
        return (
            low if self.low is None else int(self.low),
            high if self.high is None else int(self.high),
        )


def _maker(dtype: str) -> Callable[..., T]:
    return lambda *shape, **more: T(tuple(shape), dtype, **more)


f32, f16, bf16, f64 = _maker("f32"), _maker("f16"), _maker("bf16"), _maker("f64")
i8, u8, i16, u16, i4 = _maker("i8"), _maker("u8"), _maker("i16"), _maker("u16"), _maker("i4")
i32, i64, u32, u64 = _maker("i32"), _maker("i64"), _maker("u32"), _maker("u64")
boolean, c64, string = _maker("bool"), _maker("c64"), _maker("str")


def const(data: Any, dtype: str = "f32", **more: Any) -> T:
    array = np.asarray(data, DType.parse(dtype).numpy)
    return T(array.shape, dtype, data=array, **more)


def weights(*shape: int, dtype: str = "f32", seed: int = 7, **more: Any) -> T:
    """A constant with random values."""
    spec = T(tuple(shape), dtype, **more)
    return T(tuple(shape), dtype, data=spec.random(np.random.default_rng(seed)), **more)


def biases(units: int, dtype: str = "f32", scale: Any = None, spread: int = 2000) -> T:
    if dtype == "f32":
        return weights(units, low=-1, high=1)
    return weights(units, dtype=dtype, low=-spread, high=spread, scale=scale)


def scales(count: int, low: float = 0.002, high: float = 0.02) -> Array:
    return np.random.default_rng(count).uniform(low, high, count).astype(np.float32)


def codes8(dtype: str, *shape: int, seed: int, scale: float) -> T:
    """Weights of a hybrid kernel, i8 or u8.

    Never -128: LiteRT's SSE product takes its negative for itself. uint8 is read as int8.
    """
    codes = np.random.default_rng(seed).integers(-127, 128, shape).astype(np.int8)
    return const(codes.view(DType.parse(dtype).numpy), dtype, scale=scale)


# LiteRT's reference resolver does not register these (docs/litert_ops.json).
NOT_IN_REFERENCE = {
    "CEIL", "ELU", "ROUND", "SEGMENT_SUM", "HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT",
    "HASHTABLE_SIZE", "STABLEHLO_AND", "STABLEHLO_SHIFT_LEFT", "STABLEHLO_CASE",
    "custom.aeq.hadamard_rotation",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Case:
    """One model with one op (or built by `build`), and how closely answers must agree.

    ulps: units in the last place, element by element; tol: relative to the largest output, for
    results of long sums. Integer and bool outputs must be identical (off_by: allowed difference,
    with the reason in `why`). runs: invocations in a row, for operators with state.
    """

    op: str
    inputs: tuple[T | None, ...] = ()
    out: tuple[T, ...] | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    version: int = 1
    ulps: int = 4
    tol: float = 0.0
    off_by: int = 0
    runs: int = 1
    build: Callable[[], Model] | None = None
    feeds: Callable[[np.random.Generator], list[Array]] | None = None
    litert: bool = True  # False: LiteRT cannot serve as the judge; `expect` does
    expect: Callable[..., list[Array]] | None = None
    why: str = ""
    resolver: str = ""  # which of LiteRT's kernels judge, where not the reference kernels

    @property
    def judge(self) -> str:
        if self.op in NOT_IN_REFERENCE:
            return self.resolver or "BUILTIN_WITHOUT_DEFAULT_DELEGATES"
        return self.resolver or "BUILTIN_REF"

    @property
    def id(self) -> str:
        kinds = "-".join("none" if t is None else t.dtype for t in self.inputs[:3])
        shapes = "_".join("" if t is None else "x".join(map(str, t.shape)) for t in self.inputs[:2])
        plain = {k: v for k, v in self.attrs.items() if not isinstance(v, (Graph, bytes))}
        values = ",".join(f"{k}={v}" for k, v in plain.items())
        return "|".join(filter(None, (self.op, self.name, kinds, shapes, values)))

    def model(self) -> Model:
        return self.build() if self.build is not None else self._single()

    def _single(self) -> Model:
        graph = Graph("main")
        tensors: list[Tensor | None] = []
        for index, t in enumerate(self.inputs):
            tensors.append(None if t is None else _operand(graph, f"in{index}", t))
        outputs = self._outputs(graph, tensors)
        op = Op(self.op, tensors, outputs, self.attrs, version=self.version)
        graph.insert(op)
        graph.outputs = list(outputs)
        return Model([graph, *op.subgraphs])

    def _outputs(self, graph: Graph, tensors: list[Tensor | None]) -> list[Tensor]:
        """The stated outputs with shapes inferred; unstated, one of the only type it can have, or
        of that of the first input."""
        first = next(t for t in tensors if t is not None)
        only = {t for form in OPS[self.op].rule.forms for t in form.results.each[0].types}
        kind = only.pop() if len(only) == 1 else first.dtype
        stated = self.out or (T((), kind.short),)
        made = [
            Tensor(f"out{i}", DType.parse(t.dtype), t.shape, quant=t.quant)
            for i, t in enumerate(stated)
        ]
        probe = Op(self.op, tensors, made, self.attrs, version=self.version)
        specs = [None if t is None else Spec(t.dtype, t.shape, t.data) for t in tensors]
        for tensor, spec in zip(made, infer(probe, specs), strict=True):
            tensor.shape = spec.shape or ()
            graph.tensors.append(tensor)
        return made

    def arrays(self, model: Model, rng: np.random.Generator) -> list[Array]:
        """Values for the graph's inputs, in order."""
        if self.feeds is not None:
            return self.feeds(rng)
        fed = [t for t in self.inputs if t is not None and not t.is_constant and not t.variable]
        return [t.random(rng) for t in fed]


def _operand(graph: Graph, name: str, t: T) -> Tensor:
    dtype = DType.parse(t.dtype)
    if t.is_constant:
        return graph.constant(name, np.asarray(t.data, dtype.numpy), dtype, quant=t.quant)
    if t.variable:
        return graph.tensor(name, dtype, t.shape, quant=t.quant, is_variable=True)
    return graph.input(name, dtype, t.shape, quant=t.quant)


def case(
    op: str,
    *inputs: T | None,
    out: Sequence[T] | None = None,
    name: str = "",
    version: int = 1,
    **more: Any,
) -> Case:
    """A Case; keywords that are not Case's own are the op's attributes."""
    own = {
        k: more.pop(k)
        for k in list(more)
        if k
        in (
            "ulps",
            "tol",
            "off_by",
            "runs",
            "build",
            "feeds",
            "litert",
            "expect",
            "why",
            "resolver",
        )
    }
    return Case(op, inputs, None if out is None else tuple(out), more, name, version, **own)


# -- running ------------------------------------------------------------------------------------

# Runs a model on the arrays of each invocation; the outputs of each.
Run = Callable[[Model, Sequence[Sequence[Array]]], list[list[Array]]]


def run_litert(
    content: bytes, feeds: Sequence[Sequence[Array]], resolver: str = "BUILTIN_REF"
) -> list[list[Array]]:
    """Outputs of each invocation by LiteRT; inputs are resized to what is fed."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter = Interpreter(
        model_content=content, experimental_op_resolver_type=OpResolverType[resolver]
    )
    details = interpreter.get_input_details()
    for detail, array in zip(details, feeds[0], strict=True):
        if tuple(detail["shape"]) != array.shape:
            interpreter.resize_tensor_input(detail["index"], array.shape)
    interpreter.allocate_tensors()
    results = []
    for arrays in feeds:
        for detail, array in zip(details, arrays, strict=True):
            interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
        results.append([_read(interpreter, d) for d in interpreter.get_output_details()])
    return results


def _read(interpreter: Any, detail: Mapping[str, Any]) -> Array:
    """An output; LiteRT's binding cannot read one without elements."""
    if 0 in detail["shape"]:
        return np.empty(detail["shape"], detail["dtype"])
    return np.asarray(interpreter.get_tensor(detail["index"]))


def run_reference(model: Model, feeds: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """Outputs of each invocation by the operator definitions (variables persist)."""
    from sanderling.ops.execute import initial_value, new_state, run_ops

    state, graph, results = new_state(), model.main, []
    variables = {t: initial_value(t) for t in graph.tensors if t.is_variable}
    for arrays in feeds:
        values = dict(zip(graph.inputs, arrays, strict=True)) | variables
        results.append(run_ops(graph.ops, values, graph.outputs, state))
    return results


def difference(case: Case, ours: Array, theirs: Array) -> str | None:
    """None if the two agree as the case demands, else a sentence."""
    if ours.shape != theirs.shape:
        return f"shape {ours.shape}, expected {theirs.shape}"
    if ours.dtype != theirs.dtype and not (ours.dtype.kind in "OS" and theirs.dtype.kind in "OS"):
        return f"type {ours.dtype}, expected {theirs.dtype}"
    if ours.dtype.kind in "iu":
        gap = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
        bad = gap > case.off_by
    elif ours.dtype.kind in "bOSV" and ours.dtype.kind != "V":
        gap = bad = ours != theirs
    else:
        gap, bad = _float_gap(case, ours, theirs)
    if not np.any(bad):
        return None
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    return (
        f"{int(np.sum(bad))} of {ours.size} differ, first at {at}: {ours[at]!r}, "
        f"expected {theirs[at]!r}; largest gap {np.max(gap)}"
    )


def _float_gap(case: Case, ours: Array, theirs: Array) -> tuple[Array, Array]:
    wide = np.complex128 if ours.dtype.kind == "c" else np.float64
    a, b = ours.astype(wide), theirs.astype(wide)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):  # inf - inf
        gap = np.where(same, 0, np.abs(a - b))
    real = np.zeros((), ours.dtype).real.dtype if ours.dtype.kind == "c" else ours.dtype
    eps = float(_eps(real))
    finite = np.abs(b[np.isfinite(b)])
    top = float(finite.max()) if finite.size else 0.0
    with np.errstate(invalid="ignore"):  # 0 ulps of inf
        allowed = case.ulps * eps * np.abs(b) + case.tol * top + np.finfo(np.float32).tiny
    return gap, ~same & ~(gap <= allowed)


def _eps(dtype: Any) -> float:
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).eps)


def check(case: Case, *ways: Run) -> None:
    """Build the case, let LiteRT and each of the ways run it, on other values each time, and
    compare; AssertionError with the details. Without ways, the definitions are compared."""
    model = case.model()
    content = dump(model) if case.litert else b""
    for seed, run in enumerate(ways or (run_reference,)):
        rng = np.random.default_rng(seed)
        feeds = [case.arrays(model, rng) for _ in range(case.runs)]
        theirs = run_litert(content, feeds, case.judge) if case.litert else _expected(case, feeds)
        for step, (answers, expected) in enumerate(zip(run(model, feeds), theirs, strict=True)):
            for index, (a, b) in enumerate(zip(answers, expected, strict=True)):
                problem = difference(case, a, b)
                assert problem is None, f"{case.id}: run {step}, output {index}: {problem}"


def _expected(case: Case, feeds: Sequence[Sequence[Array]]) -> list[list[Array]]:
    assert case.expect is not None, f"{case.id}: nobody judges"
    return [case.expect(*arrays) for arrays in feeds]

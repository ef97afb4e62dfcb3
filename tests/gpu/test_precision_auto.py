"""Half precision that is checked: what stays in 32 bits, and why; storage and answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sanderling import InputError
from sanderling.delegates.gpu.delegate import GpuDelegate
from sanderling.delegates.gpu.executable import GpuExecutable
from sanderling.delegates.gpu.half_check import error_of
from sanderling.ir import Array, DType, Graph, Model, Tensor
from sanderling.runtime.session import Session

pytest.importorskip("pyopencl", reason="pyopencl is not installed")
pytestmark = pytest.mark.skipif(bool(GpuDelegate().lacks()), reason="there is no OpenCL device")
SHAPE = (1, 4, 4, 8)


def _pool(graph: Graph, x: Tensor, name: str) -> Tensor:
    """A node of its own: no elementwise op goes into another through it."""
    y = graph.tensor(name, DType.FLOAT32, x.shape)
    graph.add("MAX_POOL_2D", [x], [y], padding="SAME", stride_h=1, stride_w=1, filter_height=3,
              filter_width=3)  # fmt: skip
    return y


def _map(graph: Graph, name: str, op: str, *inputs: Tensor) -> Tensor:
    y = graph.tensor(name, DType.FLOAT32, inputs[0].shape)
    graph.add(op, list(inputs), [y])
    return y


def squares(factor: float = 1000.0) -> Model:
    """sqrt(pool(pool(x * factor) ** 2)): what is squared does not fit into 16 bits."""
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, SHAPE)
    wide = _map(graph, "wide", "MUL", x, graph.constant("factor", np.float32([factor] * 8)))
    pooled = _pool(graph, wide, "pooled")
    squared = _map(graph, "squared", "MUL", pooled, pooled)
    graph.outputs = [_map(graph, "root", "SQRT", _pool(graph, squared, "again"))]
    return Model([graph])


def vanishing() -> Model:
    """pool((x + 100) - 100): in 16 bits little is left of x."""
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, SHAPE)
    far = graph.constant("far", np.float32([100.0] * 8))
    high = _pool(graph, _map(graph, "high", "ADD", x, far), "pooled")
    graph.outputs = [_pool(graph, _map(graph, "low", "SUB", high, far), "out")]
    return Model([graph])


def feeds(seed: int = 1) -> dict[str, Array]:
    return {"x": np.random.default_rng(seed).uniform(-1, 1, SHAPE).astype(np.float32)}


def executable(session: Session) -> GpuExecutable:
    (step,) = session.plan().steps
    assert isinstance(step.executable, GpuExecutable)
    return step.executable


def auto(model: Model, **options: object) -> Session:
    return model.compile([GpuDelegate(precision="auto", cache=False, **options)])


def error(model: Model, session: Session) -> float:
    found, expected = session.run(feeds()), model.compile(["reference"]).run(feeds())
    return max(error_of(found[name], expected[name]) for name in expected)


def test_what_overflows_stays_in_float() -> None:
    model = squares()
    assert error(model, model.compile([GpuDelegate(precision="f32_f16", cache=False)])) == np.inf
    session = auto(model)
    assert error(model, session) < 0.01
    said = session.explain()
    assert "3 of 4 results in 16 bits" in said and "tried on noise (2)" in said
    assert "MUL 'squared' stays in f32: values reach" in said and "16 bits end at 65504" in said


def test_what_fits_is_halved() -> None:
    session, whole = auto(squares(2.0)), squares(2.0).compile([GpuDelegate(cache=False)])
    assert "4 of 4 results in 16 bits" in session.explain()
    # The borders stay as the caller has them.
    assert executable(session).memory()["arena"] <= executable(whole).memory()["arena"]


def test_an_error_that_only_outputs_show() -> None:
    """Each op errs by less than the bound of its own range; the difference of two does not."""
    model = vanishing()
    assert error(model, model.compile([GpuDelegate(precision="f32_f16", cache=False)])) > 0.02
    session = auto(model)
    assert error(model, session) < 0.01
    assert "adds to one of the outputs that leaves the bound" in session.explain()


def test_every_result_of_an_op_counts() -> None:
    """Of two halves, the second overflows."""
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, SHAPE)
    far = graph.constant("far", np.float32([1] * 4 + [1e6] * 4))
    wide = _map(graph, "wide", "MUL", x, far)
    axis = graph.constant("axis", np.array(3, np.int32), DType.INT32)
    halves = [graph.tensor(n, DType.FLOAT32, (1, 4, 4, 4)) for n in ("low", "high")]
    graph.add("SPLIT", [axis, wide], halves, num_splits=2)
    graph.outputs = [_pool(graph, half, f"pooled{i}") for i, half in enumerate(halves)]
    said = auto(Model([graph])).explain()
    assert "SPLIT 'low' stays in f32: values reach" in said
    assert "'pooled0' stays" not in said and "MAX_POOL_2D 'pooled1' stays in f32" in said


def test_the_bound_is_the_users() -> None:
    assert "stays in f32" not in auto(vanishing(), precision_bound=0.9).explain()


def test_the_users_samples_decide(tmp_path: Path) -> None:
    """Noise fits, samples do not: given as arrays, and as a file."""
    model, large = squares(10.0), feeds()["x"] * 100
    assert "stays" not in auto(model).explain()
    for samples in ([{"x": large}], {"x": large}):
        said = auto(model, samples=samples).explain()
        assert "tried on the samples (1)" in said and "'squared' stays in f32" in said
    file = tmp_path / "samples.npz"
    np.savez(file, x=np.concatenate([large, large, large]))
    said = auto(model, samples=str(file)).explain()
    assert "tried on the samples (3)" in said and "'squared' stays in f32" in said


def test_a_part_in_the_middle_is_tried_on_what_reaches_it() -> None:
    """The ops before it, on other delegates, make its inputs of the noise."""
    session = Session(squares(), [GpuDelegate(precision="auto", cache=False)],
                      first_delegate_node_index=2)  # fmt: skip
    said = session.explain()
    assert "part 1: 3 ops on gpu" in said and "MUL 'squared' stays in f32: values reach" in said


def test_the_decision_is_kept(tmp_path: Path) -> None:
    delegate = GpuDelegate(precision="auto", serialization_dir=str(tmp_path))
    first, second = (squares().compile([delegate]) for _ in range(2))
    assert executable(second).key and first.explain() == second.explain()
    assert "'squared' stays in f32" in second.explain()
    np.testing.assert_array_equal(*(s.run(feeds())["root"] for s in (first, second)))


@pytest.mark.parametrize(
    "samples, what",
    [
        ([{"x": np.zeros((1, 4, 4, 7))}], "a sample of 'x' has the shape [1, 4, 4, 7]"),
        ("none.npz", "cannot read it"),
    ],
)
def test_samples_that_do_not_fit(samples: object, what: str) -> None:
    with pytest.raises(InputError) as caught:
        auto(squares(), samples=samples).run(feeds())
    assert what in caught.value.what and caught.value.fix


def test_errors_of_values_that_are_not_finite() -> None:
    ones = np.float32([1, np.inf, -2])
    assert error_of(ones, ones) == 0
    assert error_of(np.float32([1, 5, -2]), ones) == np.inf
    assert error_of(np.float32([1.5, np.inf, -2]), ones) == pytest.approx(0.25)
    assert error_of(np.float32([np.nan]), np.float32([np.nan])) == 0

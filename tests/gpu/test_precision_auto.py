"""Half precision that is checked: what stays in 32 bits, and why; storage and answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sanderling import InputError
from sanderling.delegates.gpu.delegate import GpuDelegate
from sanderling.delegates.gpu.executable import GpuExecutable
from sanderling.delegates.gpu.half_check import Trial, error_of
from sanderling.ir import Array, DType, Graph, Model, Quant, Tensor
from sanderling.runtime.session import Session
from tests.support.gpu_devices import twin

pytest.importorskip("pyopencl", reason="pyopencl is not installed")
pytestmark = pytest.mark.skipif(bool(GpuDelegate().lacks()), reason="there is no OpenCL device")
SHAPE = (1, 4, 4, 8)


def _pool(graph: Graph, x: Tensor, name: str) -> Tensor:
    """A node of its own: no elementwise op goes into another through it."""
    y = graph.tensor(name, x.dtype, x.shape, quant=x.quant)
    graph.add(
        "MAX_POOL_2D",
        [x],
        [y],
        padding="SAME",
        stride_h=1,
        stride_w=1,
        filter_height=3,
        filter_width=3,
    )
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


def codes() -> Graph:
    """int8: a mean, and the product with it, which is repeated: 16 bits take a node more for it."""
    graph, quant = Graph(), Quant.of([0.02], [3])
    x = graph.input("x", DType.INT8, SHAPE, quant=quant)
    axes = graph.constant("axes", [1, 2], DType.INT32)
    mean = graph.tensor("mean", DType.INT8, (1, 1, 1, 8), quant=quant)
    graph.add("MEAN", [x, axes], [mean], keep_dims=True)
    scaled = graph.tensor("scaled", DType.INT8, SHAPE, quant=Quant.of([0.05], [-4]))
    graph.add("MUL", [x, mean], [scaled])
    graph.outputs = [_pool(graph, scaled, "out")]
    return graph


def test_results_of_8_bit_models_are_the_same_ones_in_both_precisions() -> None:
    """Errors are told by the places of results."""
    device = twin(GpuDelegate().device())
    device.offers = replace(device.offers, half=True)
    trial = Trial(device, codes(), {}, [])
    assert trial.half == "f16"
    names = [
        [[t.name for t in made] for made in trial.lowered(precision).makers]
        for precision in ("f32", trial.half)
    ]
    assert names[0] == names[1]


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
    """The second of two halves overflows."""
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
    session = Session(
        squares(), [GpuDelegate(precision="auto", cache=False)], first_delegate_node_index=2
    )
    said = session.explain()
    assert "part 1: 3 ops on gpu" in said and "MUL 'squared' stays in f32: values reach" in said


def test_the_decision_is_kept(tmp_path: Path) -> None:
    delegate = GpuDelegate(precision="auto", serialization_dir=str(tmp_path))
    first, second = (squares().compile([delegate]) for _ in range(2))
    assert executable(second).key and first.explain() == second.explain()
    assert "'squared' stays in f32" in second.explain()
    np.testing.assert_array_equal(*(s.run(feeds())["root"] for s in (first, second)))


def test_what_was_decided_behind_other_ops_is_not_taken(tmp_path: Path) -> None:
    """Parts that are alike are tried on what the ops before them make of the samples."""
    delegate = GpuDelegate(precision="auto", serialization_dir=str(tmp_path))
    said = [
        Session(squares(factor), [delegate], first_delegate_node_index=2).explain()
        for factor in (2.0, 1000.0)
    ]
    assert ["'squared' stays in f32" in each for each in said] == [False, True]


@pytest.mark.parametrize(
    "samples, what",
    [
        ([{"x": np.zeros((1, 4, 4, 7))}], "a sample of 'x' has the shape [1, 4, 4, 7]"),
        ([{"x": np.zeros((1, 4, 8, 4))}], "[1, 4, 8, 4], the input is f32[1,4,4,8]"),
        ([{"x": np.zeros(SHAPE, np.uint8)}], "an array of uint8 does not fit f32[1,4,4,8]"),
        ([{"x": np.full(SHAPE, "a")}], "an array of <U1 does not fit f32[1,4,4,8]"),
        ([{"x": [[1.0], [1.0, 2.0]]}], "a value is no array"),
        ([{"x": np.full(SHAPE, 1e300)}], "128 of 128 values of 'x' are NaN or infinite in float32"),
        ([{"y": np.zeros(3), "z": np.zeros(4)}], "input 'x'; it holds 'y' [3], 'z' [4]"),
        ([{}], "no array for the input 'x'; it holds nothing"),
        ("none.npz", "cannot read it"),
    ],
)
def test_samples_that_do_not_fit(samples: object, what: str) -> None:
    with pytest.raises(InputError) as caught:
        auto(squares(), samples=samples).run(feeds())
    assert what in caught.value.what and caught.value.fix


ROWS = np.zeros((3, *SHAPE[1:]), np.float32)


@pytest.mark.parametrize(
    "arrays, what",
    [
        ({"y": ROWS, "z": ROWS}, "no array for the input 'x'; it holds 'y' [3, 4, 4, 8], 'z'"),
        ({"x": ROWS[:0]}, "not a single sample in it; the shapes are 'x' [0, 4, 4, 8]"),
        ({"x": np.float32(1)}, "not a single sample in it; the shapes are 'x' []"),
        ({"x": ROWS[..., :7]}, "a sample of 'x' has the shape [4, 4, 7]"),
        ({"x": ROWS.reshape(3, 128)}, "a sample of 'x' has the shape [128]"),
        ({"x": ROWS.astype(np.uint8)}, "an array of uint8 does not fit f32"),
        ({"x": ROWS.astype(str)}, "does not fit f32"),
        ({"x": ROWS.astype(object)}, "it holds Python objects, not numbers"),
        ({}, "no array for the input 'x'; it holds nothing"),
    ],
)
def test_files_that_do_not_fit(arrays: dict[str, Array], what: str, tmp_path: Path) -> None:
    file = tmp_path / "samples.npz"
    np.savez(file, **arrays)
    with pytest.raises(InputError) as caught:
        auto(squares(), samples=str(file)).run(feeds())
    assert what in caught.value.what and caught.value.fix
    assert caught.value.where.startswith(str(file))


@pytest.mark.parametrize("content", [b"", b"no arrays", b"PK\x03\x04 cut off"])
def test_files_that_cannot_be_read(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "samples.npz"
    file.write_bytes(content)
    with pytest.raises(InputError, match="cannot read it: "):
        auto(squares(), samples=str(file)).run(feeds())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_sample_that_is_not_finite_is_named(value: float, tmp_path: Path) -> None:
    rows, file = ROWS.copy(), tmp_path / "samples.npz"
    rows[2, 0, 0, 0] = value
    np.savez(file, x=rows)
    for samples in (str(file), [{"x": row} for row in rows]):
        with pytest.raises(InputError, match="1 of 128 values of 'x' are NaN or inf") as caught:
            auto(squares(), samples=samples).run(feeds())
        assert caught.value.where.endswith(", sample 2")


def test_inputs_that_have_no_array_are_named(tmp_path: Path) -> None:
    """With several inputs, names decide, and every input has as many samples."""
    graph = Graph()
    inputs = [graph.input(name, DType.FLOAT32, SHAPE) for name in "ab"]
    graph.outputs = [_map(graph, "sum", "ADD", *inputs)]
    file = tmp_path / "samples.npz"
    for arrays, what in (
        ({"a": ROWS}, "no array for the input 'b'; it holds 'a'"),
        ({"a": ROWS, "c": ROWS}, "no array for the input 'b'"),
        ({"a": ROWS, "b": ROWS[:2]}, "unequal numbers of samples"),
    ):
        np.savez(file, **arrays)
        with pytest.raises(InputError, match=what):
            auto(Model([graph]), samples=str(file)).plan()


def test_a_model_with_one_input_takes_the_array_that_fits(tmp_path: Path) -> None:
    """Whatever its name is: alone, or beside labels."""
    file, large = tmp_path / "samples.npz", np.float32(1000) + ROWS
    for arrays in ({"images": large}, {"labels": np.zeros(3), "images": large}):
        np.savez(file, **arrays)
        said = auto(squares(10.0), samples=str(file)).explain()
        assert "tried on the samples (3)" in said and "'squared' stays in f32" in said


def test_what_is_not_a_number_stays_in_float() -> None:
    """SQRT of numbers below zero, in 32 bits too: nothing can be compared, so nothing is halved."""
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, SHAPE)
    graph.outputs = [_map(graph, "root", "SQRT", _pool(graph, x, "first"))]
    samples = [{"x": np.full(SHAPE, -1, np.float32)}]
    said = auto(Model([graph]), samples=samples).explain()
    assert "SQRT 'root' stays in f32: a value of it is NaN" in said
    assert "0 of 2 results in 16 bits" in said and "the outputs hold NaN in 32 bits too" in said


def test_errors_of_values_that_are_not_finite() -> None:
    ones = np.float32([1, np.inf, -2])
    assert error_of(ones, ones) == 0
    assert error_of(np.float32([1, 5, -2]), ones) == np.inf
    assert error_of(np.float32([1.5, np.inf, -2]), ones) == pytest.approx(0.25)
    for found, expected in ((np.nan, np.nan), (np.nan, 1), (np.inf, np.nan), (-np.inf, np.inf)):
        assert error_of(np.float32([1, found]), np.float32([1, expected])) == np.inf

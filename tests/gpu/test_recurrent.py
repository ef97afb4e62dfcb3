"""Operators that keep a state: on the device they are given it, and give it back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sanderling.delegates.gpu.delegate import GpuDelegate
from sanderling.delegates.gpu.executable import GpuExecutable
from sanderling.errors import DelegateError, FallbackWarning
from sanderling.ir import Array, DType, Graph, Model, Tensor
from sanderling.runtime.session import Session
from tests.support.gpu_devices import Pinned, devices_of, needs_opencl, needs_webgpu, twin

TIME, DEPTH, CELLS = 3, 3, 4


def sequence(units: int = 5) -> Model:
    """A sequence LSTM and a product of what it says: its state lives on between runs."""
    graph, rng = Graph(), np.random.default_rng(1)

    def weights(*shape: int) -> Tensor:
        name = f"w{len(graph.tensors)}"
        return graph.constant(name, rng.uniform(-0.7, 0.7, shape), DType.FLOAT32)

    x = graph.input("x", DType.FLOAT32, (1, TIME, DEPTH))
    states = [
        graph.tensor(name, DType.FLOAT32, (1, CELLS), is_variable=True) for name in ("h", "c")
    ]
    gates = [
        *(weights(CELLS, DEPTH) for _ in range(4)),
        *(weights(CELLS, CELLS) for _ in range(4)),
        *[None] * 3,
        *(weights(CELLS) for _ in range(4)),
    ]
    said = graph.tensor("said", DType.FLOAT32, (1, TIME, CELLS))
    graph.add(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        [x, *gates, None, None, *states, *[None] * 4],
        [said],
        fused_activation_function="TANH",
    )
    graph.outputs = [graph.tensor("y", DType.FLOAT32, (1, TIME, units))]
    graph.add("FULLY_CONNECTED", [said, weights(units, CELLS)], graph.outputs, keep_num_dims=True)
    return Model([graph])


def inputs(count: int = 4) -> list[Array]:
    rng = np.random.default_rng(2)
    return [rng.normal(size=(1, TIME, DEPTH)).astype(np.float32) for _ in range(count)]


def states_of(session: Session) -> dict[str, Array]:
    return {t.name: array.copy() for t, array in session.variables.items()}


def check_runs(session: Session, reference: Session) -> None:
    """The same answers, and the same states behind each of them."""
    for x in inputs():
        np.testing.assert_allclose(session(x), reference(x), rtol=1e-4, atol=1e-5)
        ours, theirs = states_of(session), states_of(reference)
        for name, array in theirs.items():
            assert np.any(array), "a state that stays zero shows nothing"
            np.testing.assert_allclose(ours[name], array, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "backend", [pytest.param("opencl", marks=needs_opencl),
                pytest.param("webgpu", marks=needs_webgpu)],
)  # fmt: skip
def test_states_live_on_between_runs(backend: str) -> None:
    model = sequence()
    session = model.compile(
        [GpuDelegate(backend=backend, cache=False)], require_full_delegation=True
    )
    reference = model.compile(["reference"])
    check_runs(session, reference)
    session.reset_variables()
    reference.reset_variables()
    check_runs(session, reference)


@needs_opencl
def test_steps_of_time_share_their_kernels() -> None:
    session = sequence().compile([GpuDelegate(backend="opencl", cache=False)])
    (step,) = session.plan().steps
    assert isinstance(step.executable, GpuExecutable)
    calls = step.executable.recipe.calls
    assert sum(call.name.startswith("lstm") for call in calls) == 3 * TIME
    assert len({call.kernel for call in calls if call.name.startswith("lstm")}) == 3


@needs_opencl
def test_states_come_out_of_the_cache(tmp_path: Path) -> None:
    options = {"backend": "opencl", "serialization_dir": str(tmp_path)}
    sequence().compile([GpuDelegate(**options)]).plan()
    session = sequence().compile([GpuDelegate(**options)])
    (step,) = session.plan().steps
    assert step.executable.restored
    check_runs(session, sequence().compile(["reference"]))


@needs_opencl
def test_a_state_is_kept_when_a_run_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The part goes on elsewhere with the state that it had."""
    device = twin(devices_of("opencl")[0])
    session, reference = sequence().compile([Pinned(device)]), sequence().compile(["reference"])
    xs = inputs(5)
    for x in xs[:3]:
        np.testing.assert_allclose(session(x), reference(x), rtol=1e-4, atol=1e-5)

    def fails(*args: Any) -> None:
        raise DelegateError("the device is on fire")

    monkeypatch.setattr(device, "wait", fails)
    with pytest.warns(FallbackWarning, match="on fire"):
        found = session(xs[3])
    np.testing.assert_allclose(found, reference(xs[3]), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(session(xs[4]), reference(xs[4]), rtol=1e-4, atol=1e-5)
    for name, array in states_of(reference).items():
        np.testing.assert_allclose(states_of(session)[name], array, rtol=1e-4, atol=1e-5)


@needs_opencl
def test_half_precision_is_tried_from_the_states_that_stand() -> None:
    """Trials leave no trace in what is kept."""
    model = sequence()
    session = model.compile([GpuDelegate(backend="opencl", cache=False, precision="auto")])
    reference = model.compile(["reference"])
    for x in inputs():
        np.testing.assert_allclose(session(x), reference(x), atol=2e-2)

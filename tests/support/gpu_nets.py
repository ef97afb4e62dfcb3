"""Small networks for the gpu delegate's tests."""

from __future__ import annotations

import numpy as np

from sanderling.delegates.gpu.delegate import GpuDelegate
from sanderling.delegates.gpu.executable import GpuExecutable
from sanderling.ir import Array, DType, Graph, Model
from sanderling.runtime.session import Session


def dense(depth: int = 8, units: int = 8, layers: int = 1) -> Model:
    """Fully connected layers; a multiple of four: its borders need no kernels of their own."""
    graph, rng = Graph(), np.random.default_rng(2)
    x = graph.input("x", DType.FLOAT32, (2, depth))
    for n in range(layers):
        size = (units, x.shape[-1])
        w = graph.constant(f"w{n}", rng.normal(0, size[1] ** -0.5, size).astype(np.float32))
        y = graph.tensor(f"y{n}", DType.FLOAT32, (2, units))
        graph.add("FULLY_CONNECTED", [x, w], [y])
        x = y
    graph.outputs = [x]
    return Model([graph])


def feed(model: Model) -> dict[str, Array]:
    rng = np.random.default_rng(5)
    return {t.name: rng.normal(size=t.shape).astype(np.float32) for t in model.main.inputs}


def compiled(model: Model, **options: object) -> tuple[Session, GpuExecutable]:
    """A session after its first run, which is right, and the only part of it."""
    session = model.compile([GpuDelegate(**options)])
    found, expected = session.run(feed(model)), model.compile(["reference"]).run(feed(model))
    for name, answer in expected.items():
        np.testing.assert_allclose(found[name], answer, rtol=1e-4, atol=1e-4)
    (step,) = session.plan().steps
    assert isinstance(step.executable, GpuExecutable)
    return session, step.executable

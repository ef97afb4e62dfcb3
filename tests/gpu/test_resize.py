"""Resizing of images whose values are not finite: weights of nothing do not make them NaN."""

from __future__ import annotations

import numpy as np
import pytest

from sanderling.delegates.gpu.delegate import GpuDelegate
from sanderling.ir import DType, Graph, Model
from tests.support.gpu_devices import devices_of

pytest.importorskip("pyopencl", reason="pyopencl is not installed")
WAYS = {"corners": (True, False), "half": (False, True), "plain": (False, False)}


def resized(height: int, width: int, way: str) -> Model:
    graph = Graph()
    corners, half = WAYS[way]
    x = graph.input("x", DType.FLOAT32, (1, 4, 5, 3))
    y = graph.tensor("y", DType.FLOAT32, (1, height, width, 3))
    size = graph.constant("size", np.int32([height, width]))
    graph.add("RESIZE_BILINEAR", [x, size], [y], align_corners=corners, half_pixel_centers=half)
    graph.outputs = [y]
    return Model([graph])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [(4, 5), (8, 10), (7, 9)], ids=str)
@pytest.mark.parametrize("backend", ["opencl", "webgpu"])
def test_infinities(backend: str, size: tuple[int, int], way: str) -> None:
    if not devices_of(backend):
        pytest.skip(f"there is no device of {backend}")
    x = np.random.default_rng(0).normal(size=(1, 4, 5, 3)).astype(np.float32)
    x[0, 1, 2, 0], x[0, 3, 4, 2], x[0, 0, 0, 1] = np.inf, -np.inf, np.inf
    model = resized(*size, way)
    found, wanted = (
        model.compile([d])(x) for d in (GpuDelegate(backend=backend, cache=False), "reference")
    )
    np.testing.assert_allclose(found, wanted, atol=1e-5)

"""What a part holds on the device, by what it is for, and that the host has its weights once."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from sanderling.delegates.gpu.delegate import GpuDelegate
from sanderling.delegates.gpu.recipe import ARENA, BORDER, WEIGHTS
from tests.support.gpu_nets import compiled, dense

pytest.importorskip("pyopencl", reason="pyopencl is not installed")
pytestmark = pytest.mark.skipif(
    bool(GpuDelegate().lacks()), reason="there is no OpenCL device on this machine"
)
SIDE, LAYERS = 512, 3
BYTES = SIDE * SIDE * 4 * LAYERS


def test_memory_by_what_holds_it() -> None:
    session, made = compiled(dense(SIDE, SIDE, LAYERS), cache=False)
    vector = 2 * SIDE * 4
    # Two of the three results lie between kernels, and one of them after the other is gone.
    expected = {WEIGHTS: BYTES, BORDER: 2 * vector, ARENA: 2 * vector}
    assert made.memory() == expected
    for kind, size in expected.items():
        assert session.memory()[kind] >= size
    held = sum(memory.size for memory in made.places)
    assert held == sum(expected.values())


def _growth(model: Any, **options: object) -> tuple[int, Any]:
    """Bytes that a session adds to what Python and NumPy have allocated."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    kept = compiled(model, **options)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return grown, kept


@pytest.fixture
def model() -> Any:
    """Its plans, kernels and the delegates' modules have been made before."""
    compiled(dense(), cache=False)
    return dense(SIDE, SIDE, LAYERS)


def test_weights_are_mapped_from_the_cache(tmp_path: Path, model: Any) -> None:
    """Both times: what was just written is read back, and takes the place of what was packed."""
    if not GpuDelegate().device().offers.shares_memory:
        pytest.skip("the device has memory of its own")
    for _ in range(2):
        grown, _ = _growth(model, serialization_dir=str(tmp_path))
        assert grown < BYTES / 2


def test_without_a_cache_weights_are_packed_once(model: Any) -> None:
    if not GpuDelegate().device().offers.shares_memory:
        pytest.skip("the device has memory of its own")
    grown, _ = _growth(model, cache=False)
    assert BYTES * 0.9 < grown < 1.5 * BYTES


def test_a_device_with_memory_of_its_own_leaves_the_host_none(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's copy is not NumPy's."""
    device = GpuDelegate().device()
    monkeypatch.setattr(type(device), "share", lambda self, data: None)
    grown, (_, made) = _growth(model, cache=False)
    assert grown < BYTES / 2
    assert made.recipe.weights.nbytes == 0
    assert made.memory()[WEIGHTS] == BYTES


def test_arenas_of_tensors_that_are_apart_in_time_are_shared() -> None:
    _, made = compiled(dense(64, 64, 6), cache=False)
    assert made.memory()[ARENA] == 2 * (2 * 64 * 4)

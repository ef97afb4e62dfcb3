"""Work-group sizes: the table's, those that tuning finds, and what the user's words mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sanderling.delegates.gpu import tuning
from sanderling.delegates.gpu.compilation import _lowered, decisive
from sanderling.delegates.gpu.delegate import GpuDelegate
from sanderling.delegates.gpu.executable import GpuExecutable
from sanderling.delegates.gpu.options import ADRENO, CPU
from sanderling.delegates.gpu.recipe import Call, group_of
from sanderling.delegates.gpu.tuning import (
    CANDIDATES,
    EFFORTS,
    Effort,
    costliest,
    effort_of,
    search,
)
from sanderling.ir import DType, Graph
from sanderling.ops.execute import new_state
from sanderling.runtime.delegate import Options
from tests.support.gpu_nets import compiled, dense

pytest.importorskip("pyopencl", reason="pyopencl is not installed")
needs_device = pytest.mark.skipif(
    bool(GpuDelegate().lacks()), reason="there is no OpenCL device on this machine"
)


@pytest.mark.parametrize(
    ("chosen", "effort"),
    [
        ({}, "off"),
        ({"inference_preference": "fast_single_answer"}, "off"),
        ({"inference_preference": "balanced"}, "fast"),
        ({"inference_preference": "sustained_speed"}, "full"),
        ({"tuning": "fast"}, "fast"),
        ({"tuning": "off", "inference_preference": "sustained_speed"}, "off"),
    ],
)
def test_what_words_mean(chosen: dict[str, str], effort: str) -> None:
    assert effort_of(chosen) == EFFORTS[effort]


def test_fast_takes_a_second_and_full_tries_every_kernel() -> None:
    assert EFFORTS["fast"].seconds == 1.0
    assert EFFORTS["full"].groups >= len(CANDIDATES)
    assert EFFORTS["off"].kernels == 0


@needs_device
def test_a_default_that_is_stated_changes_nothing() -> None:
    """`benchmark_model --gpu_inference_for_sustained_speed=false` is its own default."""
    offers, stated = GpuDelegate().device().offers, GpuDelegate()
    stated.take_flags({"gpu_inference_for_sustained_speed": False})
    assert stated.chosen["inference_preference"] == "fast_single_answer"
    assert decisive(stated.chosen, offers) == decisive({}, offers)
    calls = [
        _lowered(GpuDelegate().device(), _window(), Options(1, new_state()), chosen)[1].calls
        for chosen in ({}, stated.chosen)
    ]
    assert calls[0] == calls[1] and "winograd_product" in [call.name for call in calls[0]]


def _window() -> Graph:
    """Large enough for the kernels that are made for large ones."""
    graph, shape = Graph(), (1, 24, 24, 64)
    x = graph.input("x", DType.FLOAT32, shape)
    weights = graph.constant("w", np.ones((64, 3, 3, 64)), DType.FLOAT32)
    graph.outputs = [graph.tensor("y", DType.FLOAT32, shape)]
    graph.add("CONV_2D", [x, weights], graph.outputs, padding="SAME", stride_h=1, stride_w=1)
    return graph


@pytest.mark.parametrize(
    ("size", "macs", "group"),
    [
        ((3, 112, 1), 100, (1, 1, 1)),  # a tile is worth a call
        ((1, 224, 224), 0, (1, 16, 1)),
        ((6, 257, 9), 0, (6, 2, 1)),
        ((22, 13, 13), 0, (11, 1, 1)),
        ((64, 3, 3), 0, (16, 1, 1)),
        ((1, 1, 5), 0, (1, 1, 5)),
        ((1, 1, 1), 0, (1, 1, 1)),
    ],
)
def test_groups_of_a_cpu(size: tuple[int, ...], macs: int, group: tuple[int, ...]) -> None:
    assert group_of(CPU.group, size, macs) == group


def test_groups_of_a_gpu_are_those_of_its_class() -> None:
    assert group_of(ADRENO.group, (1, 224, 224), 0) == ADRENO.group


def _call(kernel: str, macs: int, points: int = 1) -> Call:
    return Call(kernel, (points, 1, 1), (1, 1, 1), (), "x", "X", macs)


def test_the_costliest_kernels_come_first_and_once() -> None:
    calls = [_call("a", 5), _call("b", 9), _call("a", 5), _call("c", 0, 7), _call("d", 0, 8)]
    assert [c.kernel for c in costliest(calls)] == ["b", "a", "d", "c"]


@needs_device
def test_the_fastest_group_is_kept_and_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, ...]] = []

    def timed(made: object, call: Call, group: tuple[int, ...]) -> float:
        """The second one that is tried takes half of the time."""
        asked.append(group)
        return 0.5 if len(asked) == 2 else 1.0

    monkeypatch.setattr(tuning, "timed", timed)
    options = {"serialization_dir": str(tmp_path), "tuning": "full"}
    _, made = compiled(dense(64, 256), **options)
    best = asked[1]
    assert [call.group for call in made.recipe.calls] == [best]
    asked.clear()
    _, again = compiled(dense(64, 256), **options)
    assert [call.group for call in again.recipe.calls] == [best]
    assert asked == []  # it was read, not tuned


@needs_device
def test_time_is_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    _, made = compiled(dense(64, 256), cache=False)
    clock = iter(range(100))
    monkeypatch.setattr(tuning.time, "perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(tuning, "timed", lambda made, call, group: 1.0)
    assert search(made, Effort(10, 24, 3.0)) == {}
    assert next(clock) < 10


@needs_device
def test_real_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found is the fastest of the groups that ran, but for the gain that a later one must
    have; and its answers are right, which compiled() looks at."""
    times: dict[tuple[int, ...], float] = {}
    measured = tuning.timed

    def timed(made: GpuExecutable, call: Call, group: tuple[int, ...]) -> float:
        """The table's group, which is the first, is slow."""
        times[group] = measured(made, call, group) if times else 1000.0
        return times[group]

    monkeypatch.setattr(tuning, "timed", timed)
    monkeypatch.setitem(tuning.EFFORTS, "fast", Effort(1, 3, 60.0))
    _, made = compiled(dense(64, 256), cache=False, tuning="fast")
    (call,), (own, *others) = made.recipe.calls, times
    assert call.group in others and call.group != own
    assert times[call.group] <= min(times.values()) / tuning.GAIN


@needs_device
def test_groups_that_the_device_does_not_have_are_left_out() -> None:
    _, made = compiled(dense(64, 256), cache=False)
    huge = (1 << 14, 1 << 14, 1)
    assert tuning.timed(made, made.recipe.calls[0], huge) == float("inf")

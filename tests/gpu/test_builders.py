"""Programs that processes of their own build, and what happens when these fail."""

from __future__ import annotations

from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from sanderling.delegates.gpu import builders
from sanderling.delegates.gpu.builders import processes_for
from sanderling.delegates.gpu.cache import GpuCache
from sanderling.delegates.gpu.delegate import GpuDelegate
from tests.support.gpu_nets import compiled, dense

pytest.importorskip("pyopencl", reason="pyopencl is not installed")
pytestmark = pytest.mark.skipif(
    bool(GpuDelegate().lacks()), reason="there is no OpenCL device on this machine"
)


def silent(pipe: Connection) -> None:
    """A child that ends without a word."""


def rude(pipe: Connection) -> None:
    pipe.send(b"not a program")


class Fake:
    def __init__(self, platform: str) -> None:
        self.offers = replace(GpuDelegate().device().offers, platform=platform)


def test_who_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builders, "usable_cpu_count", lambda: 4)
    pocl: Any = Fake("OpenCL 3.0 PoCL 3.1")
    other: Any = Fake("OpenCL 3.0 of somebody whose compiler runs in threads")
    assert [processes_for(pocl, n) for n in (1, 11, 12, 23, 24, 500)] == [0, 0, 2, 3, 4, 4]
    assert processes_for(other, 500) == 0


def test_the_binary_counts_as_well() -> None:
    """A driver compiles every kernel again for it: nothing is all done before."""
    told: list[tuple[int, int]] = []
    ends = [Pipe() for _ in range(2)]
    for (_, child), kernels in zip(ends, (2, 1), strict=True):
        for said in (*[1] * kernels, b"binary"):
            child.send(said)
    sizes = {ours: kernels for (ours, _), kernels in zip(ends, (2, 1), strict=True)}
    assert builders._collected(sizes, lambda *now: told.append(now)) == [b"binary"] * 2
    assert told[-1] == (6, 6) and all(done < total for done, total in told[:-1])
    assert {total for _, total in told} == {6} and len(told) == 5


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two processes for two kernels, and whether this one built something itself."""
    device = GpuDelegate().device()
    built: list[object] = []
    real = type(device).build

    def build(self: Any, sources: Any) -> Any:
        built.append(sources)
        return real(self, sources)

    monkeypatch.setattr(type(device), "build", build)
    monkeypatch.setattr(builders, "SERIAL", ("",))
    monkeypatch.setattr(builders, "WORTH", 1)
    monkeypatch.setattr(builders, "usable_cpu_count", lambda: 2)
    return built


def test_two_processes(tmp_path: Path, two: list[object]) -> None:
    _, made = compiled(dense(8, 12, layers=2), serialization_dir=str(tmp_path))
    assert len(made.recipe.programs) == 2
    assert two == []
    (path,) = (tmp_path / "sanderling-gpu").glob("*.gpu")
    found = GpuCache(str(tmp_path)).load(path.stem)
    assert found is not None
    assert all(found.binaries)


@pytest.mark.parametrize("child", [silent, rude], ids=lambda child: child.__name__)
def test_children_that_fail(
    child: Any, tmp_path: Path, two: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process then does their work."""
    monkeypatch.setattr(builders, "serve", child)
    compiled(dense(8, 12, layers=2), serialization_dir=str(tmp_path))
    assert len(two) == 1

"""In these tests every pass of every compilation leaves a graph that keeps the dialect's rules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sanderling.delegates.cpu import build
from sanderling.delegates.cpu.dialect.verify import check
from sanderling.delegates.cpu.isa.targets import Target
from sanderling.delegates.cpu.passes import pipeline
from sanderling.ir import Graph
from sanderling.passes import PassReport
from sanderling.passes.common import Watch, unwatched


@pytest.fixture(autouse=True, scope="session")
def every_pass_is_verified() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "prepare", verified)
        yield


def verified(graph: Graph, target: Target, watch: Watch = unwatched) -> PassReport:
    def look(name: str, graph: Graph) -> None:
        watch(name, graph)
        check(graph, name)

    return pipeline.prepare(graph, target, look)

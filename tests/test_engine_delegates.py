"""Other engines as delegates: whole graphs and mixed ones, options, copies, errors."""

from __future__ import annotations

import numpy as np
import pytest

from sanderling.runtime.delegate import BorderCopies
from tests.support.conv_stacks import feed, stack

pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
LITERT = ("litert", "litert-builtin", "litert-reference")


@pytest.mark.parametrize("name", LITERT)
def test_a_whole_graph(name: str) -> None:
    model = stack(quantised=False)
    x = feed(model)
    session = model.compile(delegates=[name], require_full_delegation=True)
    assert np.allclose(session(x), model.compile()(x), atol=1e-5)
    session(x)
    (step,) = session.plan().steps
    assert step.executable.copies == BorderCopies(2, 4, 4 * x.nbytes)

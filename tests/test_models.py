"""Real models: same answers as LiteRT, before and after a save.

Integer outputs are identical to LiteRT's reference kernels; floats lie within 1e-4 of the output's
range, or within what LiteRT's own kernels differ by among themselves (dynamic-range models round
activations at run time, so a last bit can become a whole step: YAMNet on noise differs by several
per cent between LiteRT's reference and optimised kernels). The package's own models prove it where
the shared ones are absent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from sanderling import dump, load
from sanderling.ir import Array
from sanderling.measure.inputs import feeds
from sanderling.runtime.binding import bind_outputs
from sanderling.runtime.partition import has_state

from .conformance.harness import run_litert
from .support.cpu_conformance import EVERYTHING
from .support.shared_models import MODELS

OWN = sorted(Path(str(files("sanderling") / "data")).glob("*.tflite"))
# The definitions take long over a picture of 513x513; DeepLab at 257x257 has the same operators.
LARGE = ("coral_deeplabv3_mnv2_pascal_quant",)
SHARED = [p for p in MODELS if EVERYTHING or p.stem not in LARGE]
FLOAT_TOLERANCE = 1e-4
LITERT = pytest.importorskip("ai_edge_litert", reason="pip install 'sanderling[peers]'")


def assert_agree(ours: Array, theirs: Array, spread: Callable[[], float], what: str) -> None:
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype, what
    if ours.dtype.kind in "iub":
        np.testing.assert_array_equal(ours, theirs, what)
        return
    gap = float(np.abs(ours - theirs).max(initial=0.0))
    span = float(np.abs(theirs).max(initial=0.0))
    assert gap <= FLOAT_TOLERANCE * span or gap <= 1.01 * spread(), f"{what}: {gap} of {span}"


def litert_spread(content: bytes, runs: list[list[Array]], step: int, index: int) -> float:
    """How far apart LiteRT's reference and optimised kernels are on this output."""
    kernels = ("BUILTIN_REF", "BUILTIN_WITHOUT_DEFAULT_DELEGATES")
    a, b = (run_litert(content, runs, resolver)[step][index] for resolver in kernels)
    return float(np.abs(a - b).max(initial=0.0))


@pytest.mark.parametrize("path", [*OWN, *SHARED], ids=lambda p: p.stem)
def test_agrees_with_litert(path: Path) -> None:
    """Two runs in a row where state counts; then the saved copy, by LiteRT."""
    model = load(path)
    session = model.compile(["reference"])
    twice = EVERYTHING or any(has_state(op) for graph in model.graphs for op in graph.ops)
    inputs = [feeds(model, seed) for seed in range(1 + twice)]
    expected = run_litert(path.read_bytes(), inputs)
    content = path.read_bytes()
    for step, (arrays, answers) in enumerate(zip(inputs, expected, strict=True)):
        binding = bind_outputs(session.plan(), arrays)
        for index, (ours, theirs) in enumerate(zip(binding.run(), answers, strict=True)):
            spread = partial(litert_spread, content, inputs, step, index)
            assert_agree(ours, theirs, spread, f"{path.stem}, output {index}")
    saved = run_litert(dump(model), inputs[:1])
    for theirs, again in zip(expected[0], saved[0], strict=True):
        np.testing.assert_array_equal(theirs, again)

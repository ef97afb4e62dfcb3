"""`sanderling diff --bisect`: the ops to blame, and no others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import sanderling
from sanderling import diff
from sanderling.evaluate.differences.bisection import minimal
from sanderling.ir import Graph

from .conformance.cases import CASES
from .conformance.harness import Case
from .support import shared_models
from .support.conv_stacks import stack
from .support.diff_command import BY_DEFINITION, EXACT, F32, INT8, F, call, damaged, restless
from .support.twin_models import Twin, Wrong, calibrated

RNG = np.random.default_rng(8)
CONTROL = [c for c in CASES if c.op in ("IF", "WHILE", "CALL_ONCE", "READ_VARIABLE")]


# -- bisecting ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "count,culprits",
    [
        (1, {0}),
        (40, {17}),
        (40, {0, 39}),
        (37, {3, 4, 30}),
        (5, {0, 1, 2, 3, 4}),
    ],
)
def test_the_search_finds_the_smallest_set(count: int, culprits: set[int]) -> None:
    asked: list[frozenset[int]] = []

    def right(chosen: frozenset[int]) -> bool:
        asked.append(chosen)
        return culprits <= chosen

    assert set(minimal(range(count), right)) == culprits
    assert len(asked) <= (len(culprits) + 1) * (np.ceil(np.log2(count + 1)) + 2)


def test_the_search_leaves_nothing_out_where_ops_depend_on_each_other() -> None:
    """Two faults that cancel out, or one of two is enough: still no op of the set can go."""

    def right(chosen: frozenset[int]) -> bool:
        return (3 in chosen or 9 in chosen) and (1 in chosen) == (6 in chosen)

    found = frozenset(minimal(range(12), right))
    assert right(found) and not any(right(found - {i}) for i in found)


@pytest.mark.parametrize("names", [["hidden2"], ["hidden1", "logits"], ["probabilities"]])
def test_bisect_finds_the_ops_of_a_wrong_delegate(names: list[str], wrong: Any) -> None:
    wrong(*names)
    found = diff(
        F32, delegate_a=["reference"], delegate_b=["wrong"], runs=3, bisect=True, max_relative=1e-3
    )
    assert not found.ok and found.bisection is not None
    assert [o["name"] for o in found.bisection.ops] == names
    assert found.bisection.kind == "delegate" and found.bisection.candidates == 5
    assert 0 < found.bisection.tests <= 12


def test_bisect_in_a_long_chain_of_a_delegate(wrong: Any) -> None:
    wrong("y3", "y9")
    model = stack(quantised=False, layers=12, size=4, channels=8)
    sides: Any = {"delegate_a": ["reference"], "delegate_b": ["wrong"]}
    found = diff(model, **sides, runs=2, bisect=True, max_relative=1e-4)
    assert found.bisection is not None
    assert [o["index"] for o in found.bisection.ops] == [3, 9]
    # With the layers compared first, the search starts from the suspects.
    quick = diff(model, **sides, runs=2, bisect=True, per_tensor=True, max_relative=1e-4).bisection
    assert quick is not None and [o["index"] for o in quick.ops] == [3, 9]
    assert quick.tests < found.bisection.tests


@pytest.mark.parametrize("name", ["scaled", "resized"])
def test_shapes_that_are_computed_in_the_run(name: str, wrong: Any) -> None:
    """The file states none of them: they are worked out before anything is folded."""
    wrong(name)
    found = diff(
        restless(),
        delegate_a=["reference"],
        delegate_b=["wrong"],
        runs=2,
        bisect=True,
        per_tensor=True,
        max_relative=1e-4,
        shapes={"x": (1, 3, 4, 2)},
    )
    assert found.layers is not None and found.bisection is not None
    assert [r.name for r in found.layers.rows if r.suspect] == [name]
    assert [o["name"] for o in found.bisection.ops] == [name]


@pytest.mark.parametrize("case", [c for c in CONTROL if c.build][::6], ids=lambda c: c.id[:40])
def test_control_flow_is_compared_and_bisected(case: Case) -> None:
    model = case.model()
    arrays = case.arrays(model, np.random.default_rng(0))
    data = {t.name: np.asarray(a)[None] for t, a in zip(model.main.inputs, arrays, strict=True)}
    found = diff(model, **EXACT, data=data, per_tensor=True, bisect=True)
    assert found.layers is not None and found.layers.first_difference is None
    assert found.bisection is not None and found.bisection.verdict == "right already"


@shared_models.NEEDS
def test_a_network_with_shapes_of_the_run() -> None:
    model = shared_models.model("found/style_transfer_quantized_dynamic")
    small = {"content_image": (1, 16, 16, 3)}
    found = diff(model, **EXACT, shapes=small, runs=1, per_tensor=True, bisect=True)
    assert found.layers is not None and len(found.layers.rows) > 150
    assert found.bisection is not None and found.bisection.verdict == "right already"


@dataclass(eq=False)
class Sometimes(Wrong):
    """Wrong where its inputs are large."""

    def compile(self, part: Graph, options: Any) -> Any:
        good, bad = (Wrong(names).compile(part, options) for names in ((), self.names))
        return SimpleNamespace(
            run=lambda inputs, outputs: (bad if max(a.max() for a in inputs) > 0.5 else good).run(
                inputs, outputs
            )
        )


def test_bisect_looks_at_the_worst_samples() -> None:
    samples = RNG.random((9, 8, 8, 1)).astype(F) / 3
    samples[6] *= 3
    found = diff(
        F32,
        delegate_a="reference",
        delegate_b=Sometimes(["hidden1"]),
        data=samples,
        bisect=True,
        bisect_runs=1,
        max_relative=1e-3,
    ).bisection
    assert found is not None and [o["name"] for o in found.ops] == ["hidden1"]


PLUGIN = """
import numpy as np
import sanderling
from sanderling.delegates.reference import ReferenceExecutable


class Twisted:
    '''Computes FULLY_CONNECTED upside down.'''

    name = "twisted"

    def refuses(self, op):
        return None if op.name in ("CONV_2D", "FULLY_CONNECTED") else "not a product"

    def compile(self, part, options):
        return Run(part, ReferenceExecutable(part, options.state))


class Run:
    def __init__(self, part, right):
        self.part, self.right = part, right

    def run(self, inputs, outputs):
        self.right.run(inputs, outputs)
        if any(op.name == "FULLY_CONNECTED" for op in self.part.ops):
            outputs[-1][...] = -outputs[-1]


sanderling.register_delegate("twisted", Twisted)
"""


def test_bisect_with_a_plugin(tmp_path: Path) -> None:
    (tmp_path / "twisted.py").write_text(PLUGIN)
    words = (
        F32,
        "--plugin",
        tmp_path / "twisted.py",
        "--delegate-b",
        "twisted",
        "--bisect",
        "--runs",
        2,
        "--min-cosine",
        0.999,
    )
    result = call(*words, status=1)
    assert "bisect: 1 of 3 ops must leave the delegate" in result.stdout
    assert "FULLY_CONNECTED 'logits' (op 3)" in result.stdout
    assert "does not hold: output 0 'probabilities': cosine" in result.stderr
    sanderling.runtime.registry._registered.pop("twisted")


def test_bisect_says_when_there_is_nothing_to_find(wrong: Any) -> None:
    wrong()
    found = diff(F32, delegate_b=["wrong"], runs=2, bisect=True).bisection
    assert found is not None and found.verdict == "right already"
    assert "nothing to bisect" in str(found)


@pytest.mark.parametrize("layers", [[1], [0, 3]])
def test_bisect_names_the_layers_to_take_from_the_reference(layers: list[int]) -> None:
    bad = damaged(F32, layers[0], noise=0.3)
    for layer in layers[1:]:
        mine, other = (
            bad.main.ops[layer].inputs[1],
            damaged(F32, layer, 0.3).main.ops[layer].inputs[1],
        )
        assert mine is not None and other is not None
        mine.data = other.data  # type: ignore[assignment]
    found = diff(F32, bad, runs=3, bisect=True, max_relative=1e-3, **EXACT).bisection
    assert found is not None and found.kind == "layers"
    assert [o["index"] for o in found.ops] == layers


def test_bisect_of_float_against_int8() -> None:
    """The layer whose range was cut must stay float; that alone makes the answer right."""
    ranges = calibrated()
    cut = ranges | {"down": (0.0, ranges["down"][1] / 10)}
    bad = Twin(ranges=cut, prefix="z")
    found = diff(Twin(fused=False).model, bad.model, runs=2, bisect=True, max_relative=0.1, **EXACT)
    assert not found.ok and found.bisection is not None
    names = {t.name: holds for t, holds in bad.holds.items()}
    # The mean reads it: it has to be float too, or the cut is only made later.
    assert {names[o["name"]] for o in found.bisection.ops} <= {"down", "mean"}
    assert "down" in {names[o["name"]] for o in found.bisection.ops}


def test_an_interrupted_search_keeps_what_was_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sanderling.evaluate.differences.diff.bisect_layers", stop)
    result = call(F32, INT8, *BY_DEFINITION, "--runs", 2, "--bisect", status=130)
    assert "Num evaluation runs: 2\n" in result.stdout and "interrupted" in result.stderr

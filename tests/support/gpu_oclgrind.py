"""Conformance cases on Oclgrind's simulated device, which watches every access to memory.

    oclgrind --data-races --log FILE python -m tests.support.gpu_oclgrind [--spoil]

A case of every operator that has a kernel runs (with SANDERLING_TEST_ALL all small ones), and is
compared with the reference; so do more kinds of LSTM cells, convolutions whose weights are
computed, and a small network by Winograd's way, in images, in textures and in halves. `--spoil`
makes the kernels of one case wrong on purpose, in two ways, so that the log must tell of both. The
last line of stdout is a report in JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from sanderling.delegates.gpu.executable import GpuExecutable
from sanderling.delegates.gpu.language import Index, Value
from sanderling.delegates.gpu.steps import View
from sanderling.delegates.gpu.table import KERNELS
from tests.conformance.cases import CASES
from tests.conformance.harness import Case

from .cpu_conformance import is_computed_once
from .gpu_computed import check_computed_weights
from .gpu_conformance import EVERYTHING, check_gpu, gpu, is_taken
from .gpu_devices import Pinned, check_answers, twin

DEVICE = "Oclgrind"
# The simulator computes about a million products a second.
MOST_ELEMENTS = 2000
OPTIONS = {"cache": False, "tuning": "off", "device": 0}
# Oclgrind 21.10 takes a vector of truths, which are -1 each, for 255 where it is negated, and some
# products of whole numbers wrongly: what these answer is not judged, only what they read and write.
UNJUDGED = ("CAST", "EQUAL", "NOT_EQUAL", "SIGN", "REDUCE_PROD")
# Cells whose kernels the one case of their operator has not.
ALSO = (
    "LSTM|f32 peephole projection bias norm|f32-f32-f32|2x5_4x5|fused_activation_function=TANH",
    "LSTM|f32 cifg|f32-none-f32|2x5_|fused_activation_function=TANH",
    "LSTM|i8 projection bias 3 -11 0.006|i8-i8-i8|2x5_4x5|fused_activation_function=TANH",
)
# Of a network: the form, the delegate's options, and the answers' tolerance.
FORMS: tuple[tuple[str, dict[str, Any], float], ...] = (
    ("winograd", {}, 1e-4),
    ("image", {"storage": "image"}, 1e-4),
    ("texture", {"storage": "texture"}, 1e-4),
    ("half", {"precision": "f32_f16"}, 2e-2),
    ("half image", {"precision": "f32_f16", "storage": "image"}, 2e-2),
)
SPOILED = "ADD|f32-f32|2x3_2x3"
Spoil = Callable[[Value], Value]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--spoil", action="store_true")
    spoil = parser.parse_args().spoil
    # Oclgrind crashes at times where two programs are built at once: one processor, one program.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    (device,) = gpu(**OPTIONS).devices()
    if DEVICE not in device.offers.platform:
        print(f"the device is not Oclgrind's: {device.offers.platform}", file=sys.stderr)
        return 2
    report = _spoiled() if spoil else _run(small_cases())
    print(json.dumps(report))
    return 0


def small_cases() -> list[Case]:
    found: dict[str, list[Case]] = defaultdict(list)
    for row in CASES:
        if row.op in KERNELS and not is_computed_once(row) and _size(row) <= MOST_ELEMENTS:
            found[row.op].append(row)
    chosen = [row for rows in found.values() for row in _chosen(rows)]
    return chosen + [row for row in CASES if row.id in ALSO and row not in chosen]


def _size(row: Case) -> int:
    return sum(prod(t.shape) for t in row.inputs if t is not None)


def _chosen(rows: Sequence[Case]) -> Sequence[Case]:
    """All that are taken; or one that is not the smallest, so that something lies at an edge."""
    taken = [row for row in rows if is_taken(row)]
    return taken if EVERYTHING else sorted(taken, key=_size)[len(taken) * 2 // 3 :][:1]


def _run(rows: Sequence[Case]) -> dict[str, object]:
    wrong = []
    for row in rows:
        try:
            check_gpu(row, **OPTIONS)
        except AssertionError as error:
            wrong += [] if row.op in UNJUDGED else [str(error)]
    try:
        check_computed_weights(**OPTIONS)
    except AssertionError as error:
        wrong.append(f"computed weights: {error}")
    for name, options, tolerance in FORMS:
        try:
            _check_form(name, options, tolerance)
        except AssertionError as error:
            wrong.append(f"{name}: {error}")
    return {"operators": sorted({row.op for row in rows}), "cases": [row.id for row in rows],
            "wrong": wrong}  # fmt: skip


def _check_form(name: str, options: dict[str, Any], tolerance: float) -> None:
    (first,) = gpu(**OPTIONS).devices()
    device = twin(first)
    if name == "winograd":
        kind = replace(device.offers.kind, winograd=(1, 1, 1))
        device.offers = replace(device.offers, kind=kind)
    recipe = check_answers(Pinned(device, tuning="off", **options), tolerance).executable.recipe
    forms = {place.form for place in recipe.places}
    kernels = {call.name for call in recipe.calls}
    assert options.get("storage", "buffer") in forms, forms
    assert ("winograd_product" in kernels) == (name == "winograd"), kernels
    assert ("f16" in {p.element for p in recipe.places}) == ("precision" in options), name


def _spoiled() -> dict[str, object]:
    """One case, with stores that go a vector too far, and then all to the same one."""
    (row,) = (row for row in CASES if row.id == SPOILED)
    good, found = View.index, []
    for wrong in (lambda place: place + 1, lambda place: place * 0):

        def index(self: View, place: Sequence[Index], slice_: Index, wrong: Spoil = wrong) -> Value:
            right = good(self, place, slice_)
            return wrong(right) if self.argument.written else right

        View.index = index  # type: ignore[method-assign]
        (step,) = row.model().compile([gpu(**OPTIONS)]).plan().steps
        found.append(isinstance(step.executable, GpuExecutable))
    return {"on the device": found}


if __name__ == "__main__":
    sys.exit(main())

"""TensorFlow Lite's flags about delegates, the same in `benchmark_model`, `eval` and `diff`: who is
applied, in which order, and that partitions and options reach every session."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sanderling
from sanderling.errors import DelegateError, InputError
from sanderling.ir import Graph, Op
from sanderling.measure.benchmark_model.flags import Values
from sanderling.measure.benchmark_model.providers import (
    carried,
    choose,
    flagged,
    session_arguments,
)
from sanderling.measure.record import Result, Setting
from sanderling.runtime.delegate import Delegate, Options
from sanderling.runtime.registry import find_delegate

from .support import diff_command, eval_command
from .support.benchmark_model_command import Picky
from .support.benchmark_model_command import named_delegates as named_delegates
from .support.eval_command import digits as digits
from .support.eval_command import no_shared_cache as no_shared_cache

# Registers a delegate that writes down what it was given, in each process.
PLUGIN = """
import os
import sanderling
from sanderling.runtime.registry import find_delegate


class Noted(sanderling.Delegate):
    name = "gpu"
    seen = {}

    def take_flags(self, flags):
        self.seen = dict(flags)

    def refuses(self, op):
        return None

    def compile(self, part, options):
        with open(NOTES, "a") as file:
            print(os.getpid(), len(part.ops), self.seen, file=file)
        return find_delegate("reference").compile(part, options)


sanderling.register_delegate("gpu", Noted)
"""


def test_delegates_stand_in_the_order_of_their_flags(named: dict[str, Any]) -> None:
    for name in ("gpu", "litert", "mine"):
        named[name] = lambda name=name: Picky(name, set())
    flags = {"use_xnnpack": True, "external_delegate_path": "mine", "use_gpu": True}
    found = choose(Values(flags), profiled=False)
    assert [a.title for a in found.applied] == ["XNNPACK", "EXTERNAL", "GPU"]
    assert [d.name for d in found.delegates] == ["litert", "mine", "gpu", "cpu"]
    backwards = choose(Values(dict(reversed(flags.items()))), profiled=False)
    assert [d.name for d in backwards.delegates] == ["gpu", "mine", "litert", "cpu"]


def test_a_setting_carries_what_sessions_keep() -> None:
    flags = {"use_gpu": True, "gpu_backend": "cl", "max_delegated_partitions": 2, "num_threads": 4}
    kept = carried(Values(flags | {"last_delegate_node_index": 7, "require_full_delegation": True}))
    assert dict(kept) == {
        "gpu_backend": "cl",
        "gpu_precision_loss_allowed": True,  # the tool's default
        "max_delegated_partitions": 2,
        "last_delegate_node_index": 7,
        "require_full_delegation": True,
    }
    assert session_arguments(kept) == {
        "max_delegated_partitions": 2,
        "last_delegate_node_index": 7,
        "require_full_delegation": True,
    }
    setting = Setting(delegates=("gpu",), flags=kept)
    assert pickle.loads(pickle.dumps(setting)) == setting
    record = json.loads(json.dumps(Result("m", setting).to_json()))
    assert Result.from_json(record).setting == setting
    assert setting.name != Setting(delegates=("gpu",)).name


def test_flags_reach_every_worker_of_an_evaluation(digits: Path, tmp_path: Path) -> None:
    notes, plugin = tmp_path / "notes.txt", tmp_path / "plugin.py"
    plugin.write_text(f"NOTES = {str(notes)!r}\n{PLUGIN}")
    given = ("--use_gpu=true", "--gpu_backend=cl", "--last_delegate_node_index=1", "--limit=4")
    # On the reference behind it: nothing is compiled.
    words = ("--plugin", plugin, *given, "--use_xnnpack=false", "--workers", 2)
    try:
        eval_command.call(*eval_command.arguments(digits, *words))
    finally:
        sanderling.runtime.registry._registered.pop("gpu", None)
    lines = [line.split(maxsplit=2) for line in notes.read_text().splitlines()]
    assert {int(pid) for pid, _, _ in lines} - {os.getpid()}
    flags = {"gpu_backend": "cl", "gpu_precision_loss_allowed": True}
    assert {(count, seen) for _, count, seen in lines} == {("2", str(flags))}


def test_options_of_a_delegate_reach_an_evaluation(digits: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    given = ("--external_delegate_path=litert", "--external_delegate_options=threads:2")
    words = eval_command.arguments(digits, *given, "--json", "-", "--limit", 4)
    record = json.loads(eval_command.call(*words).stdout)
    assert record["setting"]["delegates"] == ["litert:threads=2", "cpu"]


def test_flags_of_xnnpack_are_options_of_the_engine() -> None:
    pytest.importorskip("ai_edge_litert")
    flags = {"use_xnnpack": True, "xnnpack_force_fp16": True, "xnnpack_runtime_flags": 4}
    first = choose(Values(flags), profiled=False).delegates[0]
    assert first.spelling == "litert:precision=f16;xnnpack_flags=4"
    plain = choose(Values({"use_xnnpack": True, "xnnpack_force_fp16": False}), profiled=False)
    assert not plain.delegates[0].spelling
    kept = carried(Values(flags))
    again = flagged(find_delegate("litert"), kept)  # as a worker makes it
    assert again.spelling == first.spelling


@pytest.mark.parametrize("verb", ["eval", "diff"])
def test_full_delegation_is_demanded(verb: str, digits: Path, named: dict[str, Any]) -> None:
    named["gpu"] = lambda: Picky("gpu", {"CONV_2D"})

    def said(*words: str) -> str:
        if verb == "diff":
            return diff_command.call(diff_command.F32, *words, status=2).stderr
        return eval_command.said(*eval_command.arguments(digits, *words))

    demand = "--require_full_delegation=true"
    assert "Disallowed CPU fallback detected: no delegate was applied" in said(demand)
    assert "'gpu' does not run the whole graph" in said(demand, "--use_gpu=true")


class Careless(Delegate):
    """Wrong in one kind of op."""

    name = "careless"

    def refuses(self, op: Op) -> str | None:
        return None

    def compile(self, part: Graph, options: Options) -> Any:
        right = find_delegate("reference").compile(part, options)
        return _Wrong(part, right)


class _Wrong:
    def __init__(self, part: Graph, right: Any) -> None:
        self.part, self.right = part, right

    def run(self, inputs: Any, outputs: Any) -> None:
        self.right.run(inputs, outputs)
        if any(op.name == "FULLY_CONNECTED" for op in self.part.ops):
            outputs[-1][...] = np.roll(outputs[-1], 1)


@pytest.mark.parametrize("first, last, is_right", [(0, 2, True), (4, 9, True), (3, 3, False)])
def test_a_range_of_nodes_finds_the_wrong_one(first: int, last: int, is_right: bool) -> None:
    flags = {"first_delegate_node_index": first, "last_delegate_node_index": last}
    model = diff_command.F32
    found = sanderling.diff(model, delegate_b=[Careless()], flags_b=flags, runs=2, max_error=1e-4)
    assert found.ok == is_right


def test_diff_applies_delegates_beside_xnnpack(named: dict[str, Any]) -> None:
    """Alone XNNPACK is the engine LiteRT, beside others the delegate of this name."""
    named["gpu"] = lambda: Picky("gpu", {"CONV_2D"})
    named["litert"] = lambda: Picky("litert", {"SOFTMAX"})
    words = (
        diff_command.F32,
        "--num_runs=1",
        "--json",
        "-",
        "--use_gpu=true",
        "--use_xnnpack=true",
    )
    record = json.loads(diff_command.call(*words).stdout)
    assert record["test"]["delegates"] == ["gpu", "litert", "cpu"]


def test_flags_that_are_none_are_refused() -> None:
    with pytest.raises(InputError, match="has no flag 'max_parts'"):
        sanderling.diff(diff_command.F32, flags_b={"max_parts": 1}, runs=1)
    with pytest.raises(DelegateError, match="'cpu' does not run the whole graph"):
        flags = {"require_full_delegation": True, "last_delegate_node_index": 1}
        sanderling.diff(diff_command.F32, delegate_b=["cpu"], flags_b=flags, runs=1)

"""Does a delegate pay? The verdict, its reasons, and what the recommendation counts: on made-up
records, and in one small sweep."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sanderling.measure import bench_tables, sweep
from sanderling.measure.bench_results import Bench, ratio
from sanderling.measure.part_times import PartTime, part_times
from sanderling.measure.payoff import Evidence, Payoff, payoffs, reasons
from sanderling.measure.record import Result, Setting
from sanderling.measure.sample_statistics import Ratio
from sanderling.runtime import registry

from .support.bench_command import F32, QUICK, call, measured
from .support.fake_delegates import Some

KB = 1 << 10


def part(delegate: str = "npu", ops: int = 9, ms: float = 1.0, copy: float = 0.0) -> PartTime:
    """A part that takes so many milliseconds, of them so many for a copy of its border."""
    return PartTime(delegate, ops, 2, 64 * KB, ms / 1e3, copy / 1e3)


def found(ms: float, *parts: PartTime, delegates: tuple[str, ...] = ("npu",)) -> Result:
    facts = {"parts": [asdict(p) for p in parts]}
    return measured(ms=ms, setting=Setting(delegates=delegates), facts=facts)


def judged(ms: float, *parts: PartTime) -> Payoff:
    """A delegate's run against a cpu that takes 1 ms."""
    (one,) = payoffs([measured(ms=1.0), found(ms, *parts)], ratio)
    return one


@pytest.mark.parametrize(
    "ms, parts, words",
    [
        (2.0, [part(ms=1.9, copy=0.8)], ["crossing cost", "its kernels"]),
        (1.5, [part(ms=0.3)] * 3 + [part("cpu", ms=0.2)] * 4, ["too many parts"]),
        (1.3, [part(ms=0.01, ops=1), part("cpu", ms=1.2)], ["too small"]),
        (3.0, [part(ms=2.9)], ["its kernels"]),
        (1.2, [part(ms=0.4), part("cpu", ms=0.7)], ["its kernels"]),
        (1.2, [part("cpu", ms=1.1)], ["took no op"]),
        (1.2, [], ["took no op"]),
        (
            4.0,
            [part(ms=0.04, ops=1, copy=0.03)] * 40,
            ["crossing cost", "too many parts", "too small", "its kernels"],
        ),
    ],
)
def test_why_it_is_slower(ms: float, parts: list[PartTime], words: list[str]) -> None:
    one = judged(ms, *parts)
    assert one.is_slower and not one.pays and list(one.reasons) == words
    assert one.verdict == f"slower than the cpu alone: {', '.join(words)}"


def test_the_sentences_have_the_figures() -> None:
    one = judged(4.0, *[part(ms=0.04, ops=1, copy=0.03)] * 40, part("cpu"))
    assert one.reasons == {
        "crossing cost": "80 tensors of 2.5 MiB cross its borders in a run, one copy of them takes "
        "1.20 ms",
        "too many parts": "it runs 40, beside 1 of the cpu",
        "too small": "a part takes 40 us, little more than its call",
        "its kernels": f"its parts take 1.60 ms, the whole model takes {_cpu(one)} on the cpu",
    }
    assert (one.parts, one.ops, one.all_ops, one.tensors) == (40, 40, 49, 80)


def _cpu(one: Payoff) -> str:
    return one.reasons["its kernels"].split(" takes ")[1].split(" on ")[0]


def test_one_that_pays_has_no_reasons() -> None:
    one = judged(0.5, part(ms=0.4))
    assert one.pays and one.verdict == "pays" and not one.reasons


def test_no_gain_is_no_loss() -> None:
    cpu = measured(ms=1.0, noise=0.3)
    (one,) = payoffs(
        [cpu, found(1.0, part(ms=0.9))], lambda a, b: Ratio(1.0, 0.8, 1.2, np.zeros(1))
    )
    assert not one.pays and not one.is_slower
    assert one.verdict == "no gain that can be told" and not one.reasons


@pytest.mark.parametrize("high", [0.9, 1.2])
def test_without_an_op_nothing_is_won(high: float) -> None:
    (one,) = payoffs(
        [measured(ms=1.0), found(1.0)], lambda a, b: Ratio(0.85, 0.8, high, np.zeros(1))
    )
    assert one.verdict == "took no op" and not one.pays and not one.reasons


def test_parts_that_cannot_be_timed_took_ops() -> None:
    untimed = measured(ms=3.0, setting=Setting(delegates=("npu",)), facts={"foreign ops": 4})
    (one,) = payoffs([measured(ms=1.0), untimed], ratio)
    assert one.ops == 4 and one.verdict == "slower than the cpu alone: not timed"


def test_one_small_part_has_its_figure_once() -> None:
    told = reasons(Evidence([part(ms=0.04)], [], 5e-5, 2e-5))
    assert told == {
        "too small": "its only part is little more than a call",
        "its kernels": "its parts take 40 us, the whole model takes 20 us on the cpu",
    }


def test_a_delegate_is_compared_with_the_cpu_at_the_same_threads() -> None:
    results = [
        measured(ms=1.0),
        measured(ms=0.5, setting=Setting(threads=2)),
        measured(ms=0.7, setting=Setting(delegates=("npu",), threads=2)),
        measured(ms=0.7, setting=Setting(delegates=("npu",), threads=4)),  # no cpu beside it
        measured(ms=9.0, setting=Setting("litert")),  # another engine is no delegate
        Result("m.tflite", Setting(delegates=("broken",)), error="it crashed"),
    ]
    (one,) = payoffs(results, ratio)
    assert one.against == "sanderling, 2 threads" and one.is_slower and one.delegates == "npu"


def test_evidence_without_loss_blames_no_border() -> None:
    told = reasons(Evidence([part(ms=1.0, copy=0.1)], [], 1.05e-3, 1.0e-3))
    assert "crossing cost" not in told


def test_the_recommendation_counts_borders() -> None:
    results = [measured(ms=1.0), found(0.5, part(ms=0.4))]
    chosen = sweep.recommend(results, ratio, (), list(payoffs(results, ratio)))
    assert chosen is not None and chosen.setting == "sanderling, npu, 1 thread"
    assert chosen.why.endswith(
        "; what crosses its borders in a run, 2 tensors of 64 KiB, is counted"
    )


def test_the_recommendation_names_who_is_slower() -> None:
    results = [measured(ms=1.0), found(3.0, part(ms=2.9)), found(9.0, delegates=("tpu",))]
    chosen = sweep.recommend(results, ratio, (), list(payoffs(results, ratio)))
    assert chosen is not None and chosen.setting == "sanderling, 1 thread"
    assert chosen.why.endswith("; slower than the cpu alone: npu, tpu")


def test_of_equals_the_cpu_alone_is_taken() -> None:
    results = [found(0.99, part(ms=0.9)), measured(ms=1.0)]
    chosen = sweep.recommend(results, ratio)
    assert chosen is not None and chosen.setting == "sanderling, 1 thread"
    assert "no engine of others" in chosen.why


def test_a_row_says_it() -> None:
    results = [measured(ms=1.0), found(2.0, *[part(ms=0.6)] * 2)]
    bench = Bench(results, payoffs=list(payoffs(results, ratio)), models={"m.tflite": {}})
    columns, ((name, _, parts, ops, crossing, verdict),) = bench_tables.delegates(bench)
    assert columns[0] == "setting" and name == "sanderling, npu, 1 thread"
    assert (parts, ops, crossing) == ("2", "18/18", "128 KiB")
    assert verdict == "slower than the cpu alone: too many parts, its kernels"
    (line,) = bench_tables.lost_on_delegates(bench)
    assert line.startswith(
        "m.tflite, sanderling, npu, 1 thread: too many parts: it runs 2, beside 0 of the cpu; "
        "its kernels: its parts take "
    )
    assert json.loads(json.dumps(bench.to_json()))["payoffs"][0]["verdict"] == verdict


def test_parts_are_timed() -> None:
    """Of a session in which another delegate takes part, and only there."""
    from sanderling import load

    model, x = load(F32), np.zeros((1, 8, 8, 1), np.float32)
    bound = model.compile([Some(["CONV_2D"]), "reference"]).bind({"image": x})
    bound.run()
    first, second = part_times(bound.binding)
    assert (first.delegate, first.ops, second.delegate, second.ops) == ("some", 2, "reference", 3)
    assert first.is_foreign and not second.is_foreign
    assert first.tensors == 2 and first.nbytes > x.nbytes
    assert min(first.seconds, first.copying, second.seconds) > 0
    plain = model.compile(["reference"]).bind({"image": x})
    plain.run()
    assert part_times(plain.binding) == []


PLUGIN = """
import sanderling
from sanderling.runtime.registry import find_delegate


class Detour(sanderling.Delegate):
    name = "detour"

    def refuses(self, op):
        return "not mine" if op.name == "RESHAPE" else None

    def compile(self, part, options):
        return find_delegate("reference").compile(part, options)


sanderling.register_delegate("detour", Detour)
"""


def test_a_small_sweep_says_what_does_not_pay(tmp_path: Path) -> None:
    """NumPy in two parts around one of compiled code."""
    plugin = tmp_path / "plugin.py"
    plugin.write_text(PLUGIN)
    words: tuple[Any, ...] = (F32, *QUICK, "--launches", 1, "--plugin", plugin)
    try:
        ran = call(*words, "--delegates", "cpu,detour", "--json", tmp_path / "a.json")
    finally:
        registry._registered.pop("detour", None)
    record = json.loads((tmp_path / "a.json").read_text())
    (one,) = record["payoffs"]
    assert one["parts"] == 2 and one["ops"] == 4 and one["all_ops"] == 5
    assert "too many parts" in one["reasons"] and one["verdict"] in ran.stdout
    assert "does a delegate pay?" in ran.stdout
    (chosen,) = record["recommendations"]
    assert chosen["setting"] == "sanderling, 1 thread"

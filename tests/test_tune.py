"""`sanderling tune`: the halving, what it chooses, and the file of settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sanderling
import sanderling.choose.tune as home
from sanderling.choose.tune import tune
from sanderling.errors import InputError
from sanderling.ir import DType, Graph, Model
from sanderling.measure.bench import BenchedModel, Procedure
from sanderling.measure.bench_results import Bench, Gap
from sanderling.measure.record import Result, Setting
from sanderling.runtime.settings_file import KeptSettings, read_settings

from .support.bench_command import measured
from .support.command_line import DATA, call

MODEL, FLOAT = DATA / "digits_int8.tflite", DATA / "digits_f32.tflite"
# Delegates that this test's measurements know: so many milliseconds on one thread.
TIMES = {(): 1.0, ("cpu",): 1.0, ("litert",): 0.5, ("openvino",): 2.0}


class Ruler:
    """Stands in for the clock: a setting's time is known, and what was measured is kept."""

    def __init__(
        self, times: dict[tuple[str, ...], float] = TIMES, off: Sequence[str] = ()
    ) -> None:
        self.times, self.off = times, off
        self.stages: list[list[str]] = []
        self.seconds: list[float] = []

    def milliseconds(self, setting: Setting) -> float:
        batch = setting.batch * (0.8 if setting.batch > 1 else 1)
        return self.times[setting.delegates] * batch / (1 + 0.5 * (setting.threads > 1))

    def __call__(self, subjects: Sequence[BenchedModel], how: Procedure, progress: object) -> Bench:
        (subject,) = subjects
        self.stages.append([s.name for s in subject.settings])
        self.seconds.append(how.min_secs)
        made = Bench()
        for setting in subject.settings:
            made.results.append(measured(ms=self.milliseconds(setting), setting=setting))
            if any(d in self.off for d in setting.delegates):
                made.answers.append(Gap(subject.name, setting.name, "0.3 off", fits=False))
        return made


@pytest.fixture
def ruler(monkeypatch: pytest.MonkeyPatch) -> Ruler:
    found = Ruler()
    monkeypatch.setattr(home, "measure_models", found)
    return found


WHOLE = {"threads": [1, 2], "delegates": [("cpu",), ("litert",), ("openvino",)]}


def test_the_best_quarter_goes_on_and_the_best_is_taken(ruler: Ruler) -> None:
    found = tune(MODEL, precision=["f32"], **WHOLE)
    assert found.chosen.setting == Setting(threads=2, delegates=("litert",))
    assert found.gain is not None and found.gain.high < 0.4
    assert found.verdict.startswith("take sanderling, litert, 2 threads: 0.33")
    sizes = [len(stage) for stage in ruler.stages]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] == 6 and sizes[-1] == 3
    default = Setting().name
    assert all(default in stage for stage in ruler.stages)  # what gains are judged by
    assert found.stages[0].kept == ruler.stages[1]
    assert found.settings.delegates == ("litert",) and found.settings.threads == 2


def test_each_stage_has_as_many_seconds(ruler: Ruler) -> None:
    tune(MODEL, precision=["f32"], batches=range(1, 5), seconds=12, **WHOLE)
    spent = [len(stage) * share for stage, share in zip(ruler.stages, ruler.seconds, strict=True)]
    assert [len(stage) for stage in ruler.stages] == [24, 7, 3]
    assert spent == pytest.approx([4, 4, 4])


def test_a_delegate_that_takes_nothing_is_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its settings are the default's under another name."""

    class Idle(Ruler):
        def __call__(self, *given: Any) -> Bench:
            made = super().__call__(*given)
            for result in made.results:
                result.facts["foreign ops"] = 0
                result.notes = ["0/9 ops on litert", "it could not load"]
            return made

    monkeypatch.setattr(home, "measure_models", Idle())
    found = tune(MODEL, threads=[1], delegates=[("cpu",), ("litert",)], precision=["f32"])
    why = {"sanderling, litert, 1 thread": "its delegate takes no op; it could not load"}
    assert found.chosen.setting == Setting() and found.refused == why


def test_what_cannot_be_told_from_the_best_is_taken_if_it_costs_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Near(Ruler):
        """bf16 is faster by 5 %, as far as launches that differ by more can tell."""

        def __call__(self, *given: Any) -> Bench:
            made = super().__call__(*given)
            for result in made.results:
                share = 0.95 if result.setting.precision == "bf16" else 1.0
                result.rounds = [[3e-4 * share * k] for k in (0.8, 1.0, 1.2)]
                result.rounds = result.rounds if share == 1 else result.rounds[::-1]
                result.launches = [1, 1, 1]
                if result.setting == Setting():
                    result.rounds = [[1e-3]] * 3
            return made

    monkeypatch.setattr(home, "measure_models", Near())
    found = tune(FLOAT, threads=[2], delegates=[("cpu",)], precision=["f32", "bf16"])
    assert found.chosen.setting == Setting(threads=2, delegates=("cpu",))


def test_no_difference_is_said_and_the_default_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    same = {("cpu",): 1.0, (): 1.0, ("litert",): 0.99}
    monkeypatch.setattr(home, "measure_models", Ruler(same))
    found = tune(MODEL, threads=[1], delegates=[("cpu",), ("litert",)], precision=["f32"])
    assert found.chosen.setting == Setting() and found.gain is None


def test_wrong_answers_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "measure_models", Ruler(off=["litert"]))
    found = tune(MODEL, precision=["f32"], **WHOLE)
    assert found.chosen.setting.threads == 2 and found.chosen.setting.delegates != ("litert",)
    assert "its answers are off: 0.3 off" in found.refused["sanderling, litert, 1 thread"]


def test_a_batch_is_judged_by_the_time_of_a_sample(ruler: Ruler) -> None:
    one = {"threads": [1], "delegates": [("cpu",)], "precision": ["f32"]}
    found = tune(MODEL, batches=[1, 4], **one)
    assert found.chosen.setting.batch == 4
    assert found.gain is not None and found.gain.value == pytest.approx(0.8, rel=0.02)


def test_goals(ruler: Ruler) -> None:
    found = tune(MODEL, precision=["f32"], goal="memory", **WHOLE)
    assert found.chosen.setting.threads == 1  # all take as much: the fewest threads do
    with pytest.raises(InputError, match="no goal 'speed'"):
        tune(MODEL, goal="speed")


@pytest.mark.parametrize(
    ("share", "verdict"),
    [(0.5, "take sanderling, 2 threads: 0.50 [0."), (1.0, "no difference you could measure")],
)
def test_energy_has_its_own_ratio(
    share: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads are three times as fast, and need `share` of the CPU time."""

    class Meter(Ruler):
        def __call__(self, *given: Any) -> Bench:
            made = super().__call__(*given)
            rng = np.random.default_rng(2)
            for result in made.results:
                used = 1e-3 * (share if result.setting.threads > 1 else 1.0)
                noise = rng.normal(0, 0.02, len(result.rounds))
                # A little less, so that it is tried, and not measurably so.
                used *= 0.97 if share == 1 and result.setting.threads > 1 else 1
                result.cpu_times = list(used * np.exp(noise * (1 if share < 1 else 3)))
            return made

    monkeypatch.setattr(home, "measure_models", Meter())
    found = tune(MODEL, threads=[1, 2], delegates=[()], precision=["f32"], goal="energy")
    if share < 1:
        assert found.gain is not None and found.gain.low < share < found.gain.high < 0.6
        assert found.verdict.startswith(verdict) and "CPU time for a sample" in found.verdict
        assert "0.50 [" in home.summary_rows(found)[1][-1]
    else:
        assert found.gain is None and found.chosen.setting == Setting()


def test_what_no_interval_tells_apart_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other setting is faster by an eighth, and its processes differ by more than that."""

    class Unsure(Ruler):
        def __call__(self, *given: Any) -> Bench:
            made = super().__call__(*given)
            for result in made.results:
                result.launches = [1] * 5
                spread = (0.5, 0.875, 0.9, 1.3, 1.6) if result.setting.threads > 1 else (1.0,) * 5
                result.rounds = [[1e-3 * k] for k in spread]
            return made

    monkeypatch.setattr(home, "measure_models", Unsure())
    found = tune(MODEL, threads=[1, 2], delegates=[()], precision=["f32"])
    assert found.gain is None and found.chosen.setting == Setting()
    assert found.verdict.startswith("no difference you could measure: sanderling, 2 threads takes")
    assert found.verdict.endswith("keep the default (sanderling, 1 thread)")


def test_memory_that_is_not_known_is_not_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    class Blind(Ruler):
        def __call__(self, *given: Any) -> Bench:
            made = super().__call__(*given)
            for result in made.results:
                if result.setting.threads > 1:
                    result.memory = {}
            return made

    monkeypatch.setattr(home, "measure_models", Blind())
    found = tune(MODEL, threads=[1, 2], delegates=[()], precision=["f32"], goal="memory")
    assert found.chosen.setting == Setting()


def test_a_real_search_and_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "LAUNCHES", 1)  # a process takes a second to start
    target = tmp_path / "settings.json"
    words = ["tune", MODEL, "--delegates", "cpu", "--threads", "1", "--precision", "f32"]
    done = call(*words, "--batch", "1,2", "--seconds", "1", "-o", target, "--json", "-")
    record = json.loads(done.stdout)
    assert record["schema"] == "sanderling.tune/1" and record["results"]
    assert all(r["cpu_times"] for r in record["results"])
    kept = read_settings(target)
    assert record["settings"] == json.loads(target.read_text())
    session = sanderling.load(MODEL).compile(settings=target)
    assert session.threads == kept.threads
    call("run", MODEL, "--random", "0", "--settings", target)
    call(
        "bench",
        MODEL,
        "--settings",
        target,
        "--launches",
        "1",
        "--min-secs",
        "0.01",
        "--warmup-secs",
        "0",
    )


def test_what_is_given_wins_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps(KeptSettings(("reference",), 2).to_json()))
    model = sanderling.load(MODEL)
    session = model.compile(settings=path)
    assert session.threads == 2 and session.delegates[0].name == "reference"
    session = model.compile(["cpu"], 1, settings=path)
    assert session.threads == 1 and session.delegates[0].name == "cpu"


def test_settings_of_another_model_are_told(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps(KeptSettings(found={"model": "other.tflite"}).to_json()))
    with pytest.warns(UserWarning, match="found for 'other.tflite', not for 'digits_int8.tflite'"):
        sanderling.load(MODEL).compile(settings=path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{}", "'schema' is missing"),
        ('{"schema": "other/1"}', "its schema is 'other/1'"),
        ("[1]", "it is a list, not an object"),
        (json.dumps(KeptSettings(threads=10**9).to_json()), "'threads' is 1000000000"),
        (json.dumps(KeptSettings(threads=0).to_json()), "'threads' is 0"),
        (json.dumps(KeptSettings().to_json() | {"delegates": "cpu"}), "not a list of names"),
        ("no json", "settings"),
    ],
)
def test_a_file_that_holds_no_settings(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(text)
    done = call("run", MODEL, "--random", "0", "--settings", path, status=2)
    assert why in done.stderr and "Traceback" not in done.stderr
    assert "sanderling tune MODEL -o FILE" in done.stderr


def test_a_model_that_takes_no_batch_says_so(ruler: Ruler, tmp_path: Path) -> None:
    graph = Graph("main")
    x = graph.input("x", DType.FLOAT32, (2, 3))
    y = graph.tensor("y", DType.FLOAT32, (6,))
    graph.add("RESHAPE", [x, graph.constant("size", np.array([6], np.int32))], [y])
    graph.outputs = [y]
    path = tmp_path / "fixed.tflite"
    sanderling.save(Model([graph]), path)
    one = {"threads": [1], "delegates": [("cpu",)], "precision": ["f32"]}
    found = tune(path, batches=[1, 4], **one)
    assert "does not take a batch of 4" in found.refused["sanderling, 1 thread, batch 4"]


def test_every_result_knows_its_cpu_time() -> None:
    assert measured().cpu_time is None
    made: Result = measured()
    made.cpu_times = [1.0, 3.0, 2.0]
    assert made.cpu_time == 2.0

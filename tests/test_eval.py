"""Evaluations: the same figures however the work is spread, and a sentence for every bad input."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sanderling
from sanderling import evaluate_task, make_task
from sanderling.cli import eval as verb
from sanderling.errors import InputError
from sanderling.evaluate.images.preprocess import Normalise, Resize, load_pipeline
from sanderling.evaluate.running.engine_runner import Runner
from sanderling.evaluate.running.evaluation import Evaluation
from sanderling.evaluate.running.shards import MOST_IN_A_SHARD, cut
from sanderling.evaluate.task import PortableTask, Prepared, Sample
from sanderling.evaluate.tasks import segmentation
from sanderling.evaluate.tasks.imagenet import ImageNet
from sanderling.ir import DType, Model, Op, Tensor
from sanderling.measure.record import Setting

from .conformance.cases_control import accumulator
from .support.eval_command import (
    COUNT,
    DATA,
    DEADLY,
    F32,
    INT8,
    LIKE_DIGITS,
    OPTIONS,
    arguments,
    call,
    digit_task,
    one_graph,
    right_by_hand,
    said,
    same,
)
from .support.eval_command import alone as alone
from .support.eval_command import digits as digits
from .support.eval_command import no_shared_cache as no_shared_cache
from .support.fake_delegates import Some

# -- the engine ---------------------------------------------------------------------------------


def test_one_process_is_right(alone: Evaluation) -> None:
    assert alone.metrics["right"][0] == right_by_hand()
    assert alone.metrics["topk"][-1] == 1.0  # all ten classes are among the first ten
    assert not alone.failures
    stages = alone.latency()
    assert list(stages)[-3:] == ["preprocess", "inference", "postprocess"]
    assert {"decode", "resize", "normalise"} <= set(stages)
    assert all(s["count"] == COUNT for s in stages.values())


def test_who_ran_is_told(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sanderling.runtime.registry._registered, "none", lambda: Some((), "none"))
    found = evaluate_task(INT8, digit_task(digits), delegates=["none"], limit=1)
    counts = {"none": 0, "cpu": len(sanderling.load(INT8).main.ops)}
    assert found.ops_by_delegate == found.to_json()["ops_by_delegate"] == counts


def test_decoding_elsewhere_changes_nothing(digits: Path, alone: Evaluation) -> None:
    assert same(alone, evaluate_task(INT8, digit_task(digits, detail=True), decoders=2))


def test_workers_change_nothing(digits: Path, alone: Evaluation) -> None:
    assert same(alone, evaluate_task(INT8, digit_task(digits, detail=True), workers=2))


@pytest.fixture
def deadly(digits: Path, tmp_path: Path) -> Callable[..., ImageNet]:
    (tmp_path / "deadly.py").write_text(DEADLY)

    def make(times: int) -> Any:
        return make_task(
            f"{tmp_path / 'deadly.py'}:deadly",
            images=digits / "img",
            labels=digits / "labels.txt",
            mark=tmp_path / "mark",
            times=times,
            detail=True,
            **LIKE_DIGITS,
        )

    return make


@pytest.mark.parametrize("means", [{"workers": 2}, {"decoders": 2}], ids=["workers", "decoders"])
def test_a_killed_process_changes_nothing(
    deadly: Callable[..., ImageNet], alone: Evaluation, means: dict[str, int]
) -> None:
    found = evaluate_task(INT8, deadly(1), **means)
    assert same(alone, found)
    assert "died 1 times" in found.notes[0]


def test_a_sample_that_kills_is_a_failure(deadly: Callable[..., ImageNet]) -> None:
    found = evaluate_task(INT8, deadly(99), decoders=1)
    assert [f.id for f in found.failures] == ["017.png"]
    assert "SIGKILL" in found.failures[0].why
    assert found.metrics["right"][-1] == COUNT - 1


def test_a_shard_that_kills_every_worker_is_said(deadly: Callable[..., ImageNet]) -> None:
    with pytest.raises(InputError, match=r"shard 5, samples '015.png' to '017.png'.*SIGKILL"):
        evaluate_task(INT8, deadly(99), workers=1 + 1)


def interrupt(after: int) -> Callable[[str, int, int], None]:
    def tell(what: str, done: int, total: int) -> None:
        if done >= after:
            raise KeyboardInterrupt

    return tell


class Counting(ImageNet):
    """Counts what it prepares."""

    prepared = 0

    def preprocess(self, sample: Sample) -> Prepared:
        type(self).prepared += 1
        return super().preprocess(sample)


def counting(folder: Path) -> Counting:
    Counting.prepared = 0
    return Counting(images=folder / "img", labels=folder / "labels.txt", detail=True, **LIKE_DIGITS)


def test_an_interrupted_run_goes_on(digits: Path, alone: Evaluation) -> None:
    with pytest.raises(KeyboardInterrupt):
        evaluate_task(INT8, counting(digits), decoders=0, progress=interrupt(20))
    found = evaluate_task(INT8, counting(digits), decoders=0)
    assert found.resumed == 18  # six shards of three
    assert Counting.prepared == COUNT - 18
    assert same(alone, found)
    again = evaluate_task(INT8, counting(digits), decoders=0)
    assert again.resumed == 0  # what was finished is not kept


def test_what_changed_is_not_resumed(digits: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    with pytest.raises(KeyboardInterrupt):
        evaluate_task(INT8, counting(digits), decoders=0, shards=folder, progress=interrupt(20))
    kept = {"decoders": 0, "shards": folder}
    assert evaluate_task(F32, counting(digits), **kept).resumed == 0  # type: ignore[arg-type]
    task = counting(digits)
    task.std = "230"
    assert evaluate_task(INT8, task, **kept).resumed == 0  # type: ignore[arg-type]
    assert evaluate_task(INT8, counting(digits), **kept, resume=False).resumed == 0  # type: ignore[arg-type]


def test_a_damaged_shard_is_done_again(digits: Path, alone: Evaluation, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        evaluate_task(INT8, counting(digits), decoders=0, shards=tmp_path, progress=interrupt(20))
    first = min(tmp_path.rglob("shard_*.npz"))
    first.write_bytes(first.read_bytes()[:-50])
    found = evaluate_task(INT8, counting(digits), decoders=0, shards=tmp_path)
    assert found.resumed == 15
    assert same(alone, found)


@pytest.mark.parametrize("count", [1, 15, 16, 17, 1000, 50000])
def test_shards_cover_every_sample_once(count: int) -> None:
    samples = [Sample(str(i)) for i in range(count)]
    shards = cut(samples)
    assert [s for shard in shards for s in shard.samples] == samples
    assert [s.start for s in shards] == [
        shards[0].start + i * len(shards[0].samples) for i in range(len(shards))
    ]
    assert all(0 < len(s.samples) <= MOST_IN_A_SHARD for s in shards)


def test_progress_is_told(digits: Path) -> None:
    told: list[tuple[int, int]] = []
    evaluate_task(
        INT8,
        digit_task(digits),
        limit=7,
        decoders=0,
        progress=lambda what, done, total: told.append((done, total)),
    )
    assert told == [(i, 7) for i in range(8)]


@pytest.mark.parametrize("delegate", ["cpu", "reference"])
def test_state_does_not_pass_from_sample_to_sample(delegate: str) -> None:
    """A model that adds what it is given to what it was given before."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    runner = Runner(Model(accumulator("f32", (2, 3))), Setting(delegates=(delegate,)))
    for _ in range(3):
        (result,) = runner({"main_in0": x}).values()
        assert np.array_equal(result, x)


PLUGIN = """
from sanderling import register_delegate
from sanderling.delegates.cpu.delegate import CpuDelegate

class Mine(CpuDelegate):
    name = "mine"

register_delegate("mine", Mine)
"""


def test_plugins_are_run_in_every_process(digits: Path, alone: Evaluation, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN)
    found = evaluate_task(
        INT8,
        digit_task(digits, detail=True),
        delegates=["mine"],
        workers=2,
        plugins=[tmp_path / "mine.py"],
    )
    assert same(alone, found)


def test_what_workers_warn_of_is_said_once(digits: Path) -> None:
    """A cache that cannot be written to: the command and both its workers find it."""
    words = [sys.executable, "-m", "sanderling", "eval", *arguments(digits, "--workers", 2)]
    ran = subprocess.run(
        [str(w) for w in words],
        env=os.environ | {"SANDERLING_CACHE": str(INT8 / "cache")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stderr.count("compiled code cannot be kept") == 1
    assert "warning: compiled code cannot be kept" in ran.stderr and ".py:" not in ran.stderr


def test_tasks_travel_as_their_own_class(digits: Path) -> None:
    recipe = pickle.loads(pickle.dumps(PortableTask.of(counting(digits))))
    assert type(recipe.make()) is Counting
    assert recipe.make().settings() == counting(digits).settings()

    class Local(ImageNet):
        pass

    local = Local(images=digits / "img")
    with pytest.raises(InputError, match="is defined inside a function"):
        PortableTask.of(local).make()


def test_other_engines_are_fed_the_same(digits: Path, alone: Evaluation) -> None:
    pytest.importorskip("ai_edge_litert")
    found = evaluate_task(INT8, digit_task(digits, detail=True), decoders=0, engine="litert")
    assert found.metrics["right"] == alone.metrics["right"]
    # One unit of a logit is several of a probability.
    gap = np.abs(np.stack(found.table()["scores"]) - np.stack(alone.table()["scores"]))
    assert gap.max() < 0.05


# -- tasks of users -----------------------------------------------------------------------------

PARITY = """
from dataclasses import dataclass
from pathlib import Path
import numpy as np
from sanderling import Sample, Task, register_task, setting

@register_task
@dataclass(kw_only=True)
class Parity(Task):
    '''Odd or even?'''

    name = "parity"
    data: Path = setting("--from", help="A .npz.")
    invert: bool = setting(default=False, help="The other way round.")
    fault: str = setting(default="", help="What goes wrong.")

    def samples(self):
        labels = np.load(self.data)["labels"][:20]
        return [Sample(str(i), truth=int(n), data=i) for i, n in enumerate(labels)]

    def preprocess(self, sample):
        if self.fault == "sample" and sample.data == 3:
            raise ValueError("torn")
        if self.fault == "task":
            sample.nothing
        image = np.load(self.data)["images"][sample.data]
        return image.reshape(1, 8, 8, 1).astype(np.float32) / 16

    def postprocess(self, sample, outputs, context):
        return {"odd": int(outputs[0].argmax()) % 2 == 1}

    def metric(self, samples, predictions):
        right = [p["odd"] == (s.truth % 2 == 1) for s, p in zip(samples, predictions)]
        share = float(np.mean(right))
        return {"accuracy": 1 - share if self.invert else share}
"""


@pytest.fixture
def parity(tmp_path: Path) -> list[object]:
    (tmp_path / "parity.py").write_text(PARITY)
    return [tmp_path / "parity.py", F32, "--from", DATA / "digits_test.npz"]


def test_a_users_task_and_its_options(parity: list[object]) -> None:
    found = json.loads(call(*parity, "--json", "-").stdout)
    assert found["metrics"]["accuracy"] > 0.9
    assert found["settings"]["invert"] is False
    inverted = json.loads(call(*parity, "--invert=true", "--json", "-", "--workers", 2).stdout)
    assert inverted["metrics"]["accuracy"] == 1 - found["metrics"]["accuracy"]
    assert "Odd or even?" in call(parity[0], "--help").stdout
    assert "--from" in call(f"{parity[0]}:parity", "--help").stdout
    assert "accuracy: " in call(*parity).stdout


def test_a_users_mistakes_are_explained(parity: list[object], tmp_path: Path) -> None:
    torn = call(*parity, "--fault", "sample")
    assert "1 of 20 samples could not be read" in torn.stderr and "3: torn" in torn.stderr
    assert "Num evaluation runs: 19" in torn.stdout
    assert "AttributeError" in said(*parity, "--fault", "task")
    assert "preprocess of task 'parity' failed on sample" in said(
        *parity, "--fault", "task", "--decoders", 1
    )
    absent = said(*parity[:2], "--from", tmp_path / "absent.npz")
    assert "absent.npz" in absent and "(parity.py, line" in absent and "settings" in absent
    assert "registers no task 'other'" in said(f"{parity[0]}:other", F32)
    (tmp_path / "none.py").write_text("x = 1")
    assert "it registers no task" in said(tmp_path / "none.py", F32)
    (tmp_path / "bad.py").write_text("x = ")
    assert "SyntaxError" in said(tmp_path / "bad.py", F32)
    assert "cannot be read" in said(tmp_path / "absent.py", F32)
    assert "did you mean imagenet?" in said("imagnet", F32)
    assert "has no paired comparison" in said(*parity, "--against", INT8)


# -- the command --------------------------------------------------------------------------------


def test_the_guides_flags_and_lines(digits: Path, alone: Evaluation, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("\n".join(f"n{i}" for i in range(10)))
    result = call(
        "imagenet",
        f"--model_file={INT8}",
        f"--ground_truth_images_path={digits / 'img'}",
        f"--ground_truth_labels={digits / 'labels.txt'}",
        f"--model_output_labels={names}",
        f"--output_file_path={tmp_path / 'out.pb'}",
        "--num_images=0",
        "--num_interpreter_threads=1",
        "--delegate=xnnpack",
        "--use_nnapi=true",
        "--nnapi_accelerator_name=google-edgetpu",
        *OPTIONS,
        "--decoders",
        0,
    )
    lines = result.stdout.splitlines()
    assert lines[0] == f"Num evaluation runs: {COUNT}"
    assert lines[1].startswith("Preprocessing latency: avg=") and lines[1].endswith("(us)")
    assert lines[2].startswith("Inference latency: avg=")
    topk = alone.metrics["topk"]
    assert lines[3:13] == [f"Top-{k} Accuracy: {v:g}" for k, v in enumerate(topk, 1)]
    assert "NNAPI acceleration is unsupported" in result.stderr
    raw = (tmp_path / "out.pb").read_bytes()
    assert raw[:2] == bytes([8, COUNT])  # num_runs
    assert np.float32(topk[0]).tobytes() in raw


def test_the_record_and_the_predictions(digits: Path, alone: Evaluation, tmp_path: Path) -> None:
    record = json.loads(call(*arguments(digits, "--json", "-", "--decoders", 0)).stdout)
    assert record["schema"] == "sanderling.eval/1" and record["metrics"]["top1"] > 0.9
    assert record["evaluated"] == COUNT and record["failed"] == 0
    call(
        *arguments(
            digits,
            "--predictions",
            tmp_path / "p.npz",
            "--decoders",
            0,
            "--save-preset",
            tmp_path / "preset.json",
        )
    )
    with np.load(tmp_path / "p.npz") as kept:
        assert kept["scores"].shape == (COUNT, 10) and kept["truth"].shape == (COUNT,)
        assert np.array_equal(kept["top"][:, 0], kept["scores"].argmax(axis=1))
    later = call(*arguments(digits, "--against", tmp_path / "p.npz", "--decoders", 0))
    assert "+0.00 points" in later.stdout and "SNR inf dB" in later.stdout
    (tmp_path / "no.npz").write_bytes(b"?")
    assert "not predictions" in said(*arguments(digits, "--against", tmp_path / "no.npz"))
    preset = load_pipeline(str(tmp_path / "preset.json"))
    assert preset.steps == (Resize(how="nearest"), Normalise((0.0,), (240.0,)))
    call(
        "imagenet",
        INT8,
        "--images",
        digits / "img",
        "--labels",
        digits / "labels.txt",
        "--preset",
        tmp_path / "preset.json",
        "--predictions",
        tmp_path / "p.json",
        "--decoders",
        0,
        "--require",
        f"top1={alone.metrics['top1']}",
    )
    rows = json.loads((tmp_path / "p.json").read_text())
    assert len(rows) == COUNT and rows[0]["id"] == "000.png" and len(rows[0]["scores"]) == 10


def test_checks_have_a_status(digits: Path) -> None:
    base = arguments(digits, "--decoders", 0, "--limit", 20)
    assert "top1 is" in call(*base, "--require", "top1=1.01", status=1).stderr
    compared = call(*base, "--against", F32, "--require", "compared.top1.difference.low=-0.2")
    assert "top1 difference: " in compared.stdout and "McNemar's p" in compared.stdout
    assert "SNR" in compared.stdout
    changed = call(
        *base,
        "--against",
        F32,
        "--against-set",
        "mean=240",
        "--require",
        "compared.agreement.value=0.9",
        status=1,
    )
    assert "compared.agreement.value is" in changed.stderr


REQUIRED = [
    ("best=1", "there is no figure 'best'|there are top1, top5, classes"),
    ("intervals=1", "there is no figure 'intervals'"),
    ("top1=high", "not a number|'high'"),
    ("compared.top1.difference.low=0", "it is of two models: add --against"),
]


@pytest.mark.parametrize("require, message", REQUIRED)
def test_a_figure_that_is_not_known_is_refused_before_the_run(
    require: str, message: str, digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "_evaluate", lambda *_: pytest.fail("it was evaluated"))
    text = said(*arguments(digits, "--require", require))
    assert all(word in text for word in message.split("|")), text


def test_figures_are_the_numbers_that_a_task_gives(alone: Evaluation, parity: list[object]) -> None:
    assert {n for n, _ in verb._numbers(alone.metrics)} >= set(ImageNet.known_figures())
    seen = segmentation.figures(np.ones((2, 2), np.int64), ("NAME", "other"))
    known = set(segmentation.Segmentation.known_figures())
    assert {n for n, _ in verb._numbers(seen) if "other" not in n} | {"pictures"} == known
    # A task of a user's tells its figures after the run.
    assert "there are accuracy" in call(*parity, "--require", "best=1", status=2).stderr


def test_corrupt_pictures_are_counted_and_named(digits: Path, tmp_path: Path) -> None:
    for p in (digits / "img").iterdir():
        (tmp_path / p.name).write_bytes(p.read_bytes())
    (tmp_path / "003.png").write_bytes((tmp_path / "003.png").read_bytes()[:60])
    (tmp_path / "007.png").write_bytes(b"no picture at all")
    (tmp_path / "009.png").write_bytes(b"")
    words = ["imagenet", INT8, "--images", tmp_path, "--labels", digits / "labels.txt", *OPTIONS]
    for means in (["--decoders", 0], ["--workers", 2]):
        result = call(*words, *means, "--max-failures", 3)
        assert f"3 of {COUNT} samples could not be read" in result.stderr
        for name in ("003.png", "007.png", "009.png"):
            assert f"{name}: not a readable picture" in result.stderr
        assert f"Num evaluation runs: {COUNT - 3}" in result.stdout
    record = json.loads(
        call(*words, "--decoders", 0, "--json", "-", "--max-failures", 2, status=1).stdout
    )
    assert record["failed"] == 3 and record["failures"][0]["id"] == "003.png"


def test_bad_input_is_explained(digits: Path, tmp_path: Path) -> None:
    images, labels = digits / "img", digits / "labels.txt"
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "readme.md").write_text("")
    (tmp_path / "few.txt").write_text("1\n2\n")
    (tmp_path / "large.txt").write_text("\n".join(["12"] * COUNT))
    (tmp_path / "words.txt").write_text("\n".join(["zebra"] * COUNT))
    (tmp_path / "plain.csv").write_text("a,b\n1,2\n")
    (tmp_path / "gone.csv").write_text("file,label\nnone.png,1\n")

    def words(images: Path = images, labels: Path | None = labels, *more: object) -> list[object]:
        known = ["--labels", labels] if labels else []
        return ["imagenet", INT8, "--images", images, *known, "--decoders", 0, *more]

    for given, message in (
        (words(tmp_path / "empty"), "the folder is empty"),
        (words(tmp_path / "other"), "no picture among its 1 entries"),
        (words(tmp_path / "absent"), "there is no such folder"),
        (words(images, None), "nothing says their classes"),
        (words(images, tmp_path / "absent.txt"), "absent.txt: the labels cannot be read"),
        (words(images, tmp_path / "few.txt"), f"2 labels for {COUNT} pictures"),
        (words(images, tmp_path / "large.txt"), "go from 12 to 12, the model has 10"),
        (words(images, tmp_path / "words.txt"), "'zebra' is neither a number nor a class name"),
        (words(images, tmp_path / "plain.csv"), "the columns are a, b"),
        (words(images, tmp_path / "gone.csv"), "the first is 'none.png'"),
        (words(images, digits / "labels.csv", "--label-column", "x"), "no column 'x'"),
        (
            words(images, labels, "--model-output-labels", tmp_path / "few.txt"),
            "2 names, the model has 10 classes",
        ),
        (words(images, labels, "--label-offset", "many"), "'many' is not a number"),
        (words(images, labels, "--preset", "nice"), "there is no preset 'nice'"),
        (words(images, labels, "--crop", "4x4", "--resample", "magic"), "no interpolation 'magic'"),
        (words(images, labels, "--mean", "1,2,3"), "3 numbers for mean"),
        (words(images, labels, "--delegate", "abacus"), "abacus"),
        (words(images, labels, "--engine", "abacus"), "there is no engine 'abacus'"),
        (words(images, labels, "--predictions", tmp_path / "p.txt"), "'.txt' is not a kind"),
        (words(images, labels, "--save-preset", tmp_path / "no" / "p.json"), "there is no folder"),
        (["imagenet", "--images", images, "--labels", labels], "no model is given"),
        (
            ["imagenet", tmp_path / "absent.tflite", "--images", images, "--labels", labels],
            "absent.tflite",
        ),
    ):
        assert message in said(*given), message


def test_wrong_outputs_are_explained(digits: Path, tmp_path: Path) -> None:
    x = Tensor("x", DType.FLOAT32, (1, 8, 8, 1))
    y, z = (Tensor(n, DType.FLOAT32, (1, 8, 8, 1)) for n in "yz")
    model = one_graph([x], [y, z], Op("ABS", [x], [y], {}), Op("NEG", [x], [z], {}))
    sanderling.save(model, tmp_path / "two.tflite")
    text = said(
        "imagenet",
        tmp_path / "two.tflite",
        "--images",
        digits / "img",
        "--labels",
        digits / "labels.txt",
    )
    assert "models of one output, this one has 2: 'y' f32[1,8,8,1], 'z' f32[1,8,8,1]" in text


def test_no_sample_at_all_is_an_error(digits: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"?")
    (tmp_path / "labels.txt").write_text("1\n")
    text = said("imagenet", INT8, "--images", tmp_path, "--labels", tmp_path / "labels.txt")
    assert "none of 1 samples came through" in text


def test_an_interrupted_command_says_what_is_kept(
    digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def impatient() -> Iterator[Callable[[str, int, int], None]]:
        yield interrupt(20)

    monkeypatch.setattr(verb, "progress", impatient)
    result = call(*arguments(digits, "--decoders", 0), status=130)
    assert f"20 of {COUNT} samples are done" in result.stderr
    monkeypatch.undo()


def test_a_script_needs_no_guard(digits: Path, tmp_path: Path) -> None:
    """Processes do not run the main script again; a task that was typed in is told so."""
    script = tmp_path / "script.py"
    script.write_text(
        "from sanderling import evaluate_task, make_task\n"
        f"task = make_task('imagenet', images={str(digits / 'img')!r}, "
        f"labels={str(digits / 'labels.txt')!r}, crop='none', std='240')\n"
        f"print(evaluate_task({str(INT8)!r}, task, decoders=1).metrics['top1'] > 0.5)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment
    )
    assert done.stdout == "True\n", done.stderr

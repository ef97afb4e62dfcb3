"""Folders of records for the tests of `sanderling serve`: those of every verb, a thousand, hostile
ones. Quick verbs write theirs; of slow ones the records are made by the classes that write them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from sanderling.choose.advice import Advice, Advised, Gain, LookedAt, target_of
from sanderling.choose.candidates import Candidate, mark_front
from sanderling.choose.compare import Compared
from sanderling.choose.retrain import SCHEMA as RETRAIN
from sanderling.choose.tune import Stage, Tuning
from sanderling.findings import Finding
from sanderling.measure.bench_results import Bench, Comparison
from sanderling.measure.record import Result, Setting
from sanderling.measure.sample_statistics import Ratio

from .command_line import DATA, F32, INT8, call

Record = dict[str, Any]
KOREAN = "모델-성능-기록"
SCRIPT = "<script>alert(1)</script>"
HOSTILE = f"{SCRIPT}\"'><img src=x onerror=alert(2)>&{KOREAN}\u202e" + "long" * 300
EVALUATED = ("--data", DATA / "digits_test.npz", "--std", 1, "--mean", 0, "--limit", 60,
             "--delegate", "reference")  # fmt: skip
# file -> the words of a verb that writes it, in a folder with a.tflite (float) and b.tflite (int8)
VERBS: dict[str, tuple[object, ...]] = {
    "inspect": ("inspect", "b.tflite"),
    "profile": ("profile", "b.tflite", "--delegate", "reference", "--runs", 2, "--no-roofline"),
    "diff": ("diff", "a.tflite", "b.tflite", "--delegate-a", "reference", "--delegate-b",
             "reference", "--per-tensor", "--runs", 2),
    "eval": ("eval", "arrays", "a.tflite", "--against", "b.tflite", *EVALUATED),
    "quantize": ("quantize", "a.tflite", "--mode", "dynamic"),
    "suggest": ("quantize", "a.tflite", "--suggest"),
    "run": ("run", "a.tflite", "--random", 1, "--delegate", "reference"),
    "trace": ("trace", "a.tflite", "-o", "a-trace.json", "--runs", 2, "--delegate", "reference"),
    "rewrite": ("rewrite", "b.tflite", "--for", "gpu"),
}  # fmt: skip


def result(model: str = "a.tflite", median: float = 1e-3, threads: int = 1) -> Result:
    """Five processes of five rounds around a median."""
    rng = np.random.default_rng(int(median * 1e9) + threads)
    rounds = (median * (1 + 0.01 * rng.standard_normal((25, 4)))).tolist()
    return Result(
        model,
        Setting(threads=threads),
        init=0.01,
        first=2 * median,
        rounds=rounds,
        launches=[5] * 5,
        memory={"start.rss": 1 << 25, "peak.runs": 1 << 26},
        cpu_times=[median] * 25,
    )


def bench(model: str = "a.tflite", median: float = 1e-3) -> Record:
    results = [result(model, median), result(model, 0.6 * median, 2)]
    compared = Comparison(model, results[1].setting.name, results[0].setting.name, 0.6, 0.58, 0.63)
    return Bench(results, [compared], models={model: {"path": model}}).to_json()


def tune() -> Record:
    default, chosen = result(), result(median=8e-4, threads=2)
    names = [r.setting.name for r in (default, chosen)]
    gain = Ratio(0.8, 0.75, 0.85, np.zeros(1))
    found = Tuning(
        "a.tflite",
        "latency",
        default,
        chosen,
        gain,
        "take 2 threads",
        [Stage(0.1, names, names[1:])],
        {"gpu": "no device"},
        [default, chosen],
    )
    return found.to_json()


def compare() -> Record:
    found = [
        Candidate(
            name,
            f"{name}.tflite",
            "sanderling, 1 thread",
            accuracy,
            (0.7, 0.95),
            None,
            latency,
            (0.9 * latency, 1.1 * latency),
            size,
        )
        for name, accuracy, latency, size in (
            ("a", 0.92, 1e-3, 40_000),
            ("b", 0.9, 5e-4, 13_000),
            ("c", 0.8, 2e-3, 50_000),
        )
    ]
    mark_front(found)
    return Compared("arrays", "top1", 360, found, None, {"d": "it could not be read"}).to_json()


def advise() -> Record:
    gain = Gain(0.5, 0.45, 0.55)
    one = Advice(
        "quantise",
        "int8",
        "float32",
        "smaller",
        gain,
        "latency",
        {"latency": gain},
        "99 % agree",
        "sanderling quantize a.tflite",
    )
    other = LookedAt("threads", "2 threads", "no gain", gain)
    noted = [Finding("x", "it is slow", "measured", "look")]
    found = Advised(
        "a.tflite", target_of("cpu"), "latency", "5 ops", [one], [other], noted, [other]
    )
    return found.to_json()


def retrain() -> Record:
    return {
        "schema": RETRAIN, "classes": ["cat", KOREAN], "trained_on": 80, "held_out": 20,
        "right": 18, "accuracy": 0.9, "interval": [0.7, 0.97], "features": 1280, "blocks": 0,
        "confusion": [[9, 1], [1, 9]], "machine": {},
    }  # fmt: skip


def prune() -> Record:
    """As `training.report.TrainingReport` writes it, which needs PyTorch to be imported."""
    layer = {
        "name": "w0", "op": "CONV_2D", "shape": [16, 3, 3, 1], "macs": 9216, "macs_after": 4608,
        "zeros_before": 0.0, "zeros": 0.5, "values_before": 144, "values": 73, "error": 0.03,
        "note": "",
    }  # fmt: skip
    epochs = [
        {"loss": 1 / n, "held_out": 1.1 / n, "agreement": 1 - 0.1 / n, "seconds": 1.0}
        for n in range(1, 6)
    ]
    trial = {"name": "half", "score": 0.9, "size": 20_000, "latency": 1e-3, "choice": None,
             "kept": [], "meets": True, "pareto": True, "chosen": True}  # fmt: skip
    return {
        "schema": "sanderling.prune/1", "verb": "prune", "source": "a.tflite",
        "settings": {"sparsity": 0.5}, "size_before": 41312, "size_after": 41312,
        "zipped_before": 37811, "zipped_after": 22859, "layers": [layer], "samples": 80,
        "compared": {"samples": 20, "snr_db": 30.0,
                     "agreement": {"value": 1.0, "low": 0.84, "high": 1.0}},
        "epochs": epochs, "problems": [], "xnnpack": [], "skipped": {}, "notes": ["a note"],
        "accuracy": {}, "latency": [], "target": {}, "trials": [trial, trial | {"pareto": False}],
        "expected_speedup": 2.0, "zeros": 0.5,
    }  # fmt: skip


MADE = {"bench": bench, "tune": tune, "compare": compare, "retrain": retrain, "prune": prune}


def put(folder: Path, name: str, record: Any) -> None:
    (folder / name).write_text(json.dumps(record), "utf-8")


def models(folder: Path) -> None:
    shutil.copy(F32, folder / "a.tflite")
    shutil.copy(INT8, folder / "b.tflite")


def of_all_verbs(folder: Path) -> None:
    """A record of each kind, two of `bench`, and the models that they are about."""
    models(folder)
    for name, words in VERBS.items():
        call(*(_placed(folder, w) for w in words), "--json", folder / f"{name}.json")
    for name, make in MADE.items():
        put(folder, f"{name}.json", make())
    put(folder, "bench-later.json", bench(median=2e-3))
    put(folder, "unknown.json", {"schema": "sanderling.later/9", "model": "a.tflite", "new": [1]})


def _placed(folder: Path, word: object) -> object:
    is_file = isinstance(word, str) and word.endswith((".tflite", ".json"))
    return folder / str(word) if is_file else word


def hostile(folder: Path) -> None:
    """Names that are markup, records that are not what they say, files that are no records."""
    named = bench(HOSTILE)
    put(folder, f"{KOREAN}.json", named | {"warnings": [HOSTILE]})
    put(folder, "<b>bold.json", {"schema": f"sanderling.{SCRIPT}/1", HOSTILE: HOSTILE})
    put(folder, "wrong.json", {"schema": "sanderling.bench/1", "results": {"a": [None]}})
    evaluation = {
        "schema": "sanderling.eval/1", "task": SCRIPT, "headline": "top1", "model": HOSTILE,
        "metrics": {"top1": 0.5},
        "compared": {"disagreements": [
            {"id": SCRIPT, "file": "/etc/passwd", "truth": 1, "ours": 1, "theirs": 2},
            {"id": "2", "file": "../../etc/passwd", "truth": 1, "ours": 1, "theirs": 2}]},
    }  # fmt: skip
    put(folder, "eval.json", evaluation)
    put(folder, "somebody-else.json", {"name": "not a record"})
    (folder / "corrupt.json").write_text('{"schema": "sanderling.bench/1", ')
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "binary.json").write_bytes(bytes(range(256)))
    (folder / "lone.json").write_text('{"schema": "sanderling.run/1", "model": "\\ud800"}')
    (folder / "link.json").symlink_to("/etc/passwd")


def many(folder: Path, count: int) -> None:
    """Small records of benchmarks, as of a nightly job."""
    record = bench("model.tflite")
    record["results"] = [record["results"][0] | {"rounds": [[1e-3, 1e-3]], "launches": [1]}]
    words = json.dumps(record)
    for number in range(count):
        content = words.replace("model.tflite", f"model{number % 10}.tflite")
        (folder / f"night{number:04}.json").write_text(content)

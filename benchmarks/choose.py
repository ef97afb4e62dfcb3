"""Do `compare`, `tune` and `retrain` choose well?

    python -m benchmarks.choose [--stage compare,tune,retrain] [--models WORDS] [--rows FILE]
        [--png FILE] [--write]

compare: the ImageNet classifiers on 600 pictures at one and two threads, three budgets answered,
and beside them the figures of `eval` and `bench` run alone. tune: against an exhaustive sweep that
can judge it, `bench --sweep --min-secs 4 --warmup-secs 0.3`; how long each takes when the code of
all settings was compiled before. --models and --rows measure one model at a time, minutes each:
rows are kept in the file, and the table has all of them. retrain: EfficientNet-Lite0 for CIFAR-10's
classes from a thousand pictures, judged also by LiteRT on pictures of the test set, and YAMNet for
ESC-10.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import wave
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

import sanderling
from sanderling.choose import compare_report
from sanderling.choose.candidates import Budgets, Candidate, answer
from sanderling.choose.compare import Compared
from sanderling.choose.retrain import Retrained
from sanderling.evaluate.paired_statistics import wilson
from sanderling.evaluate.running.evaluation import evaluate_task
from sanderling.ir import Array
from sanderling.measure.bench import bench
from sanderling.measure.bench_results import Bench, ratio
from sanderling.measure.machine import machine_line
from sanderling.measure.record import Result
from sanderling.progress import Show, progress

from .common import SHARED, model_paths, table, write_section
from .evaluate import CLASSIFIERS, FOLDER, interpreter, task_for

TUNED = (
    "coral_mobilenet_v1_0.25_128_quant,coral_tf2_mobilenet_v2,mlperftiny_resnet8_cifar10_f32,"
    "openwakeword_embedding,efficientnet_lite0,squeezenet,resnet20_cifar10_f32"
)
BUDGETS = {
    "--max-latency 1ms": Budgets(max_latency=1e-3),
    "--max-size 5MB --min-accuracy 80%": Budgets(max_size=5_000_000, min_accuracy=0.8),
    "--max-size 1MB --min-accuracy 80%": Budgets(max_size=1_000_000, min_accuracy=0.8),
}
CIFAR = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
DRAWS = 4  # of the clips that are held out
PICTURES, JUDGED = 1000, 1000  # that retraining sees, and that LiteRT judges it by


# -- compare --------------------------------------------------------------------------------------


def compare(png: str = "") -> str:
    paths = model_paths([], ",".join(CLASSIFIERS))
    with progress() as show:
        found = _compared(paths, show)
    if png:
        Path(png).write_bytes(compare_report.plot(found, png))
    answers = [(asked, *told(found, budgets)) for asked, budgets in BUDGETS.items()]
    header = ["model", "top 1 here", "eval", "bench / compare, 1 thread", "2 threads"]
    return f"""{compare_report.as_markdown(found)}
{table(["budgets", "take", "why, or what to do next"], answers, left=3)}

The same figures alone: top 1 of `sanderling eval`, and the median of `sanderling bench` of one
model at a time over that of `compare`.

{table(header, alone(found, paths))}"""


def _compared(paths: Sequence[Path], show: Show) -> Compared:
    return sanderling.compare(
        paths,
        "imagenet",
        task_settings={"images": FOLDER / "img", "labels": FOLDER / "labels.csv"},
        model_settings=CLASSIFIERS,
        threads=(1, 2),
        launches=5,
        min_secs=0.4,
        warmup_secs=0.2,
        progress=show,
    )


def told(found: Compared, budgets: Budgets) -> tuple[str, str]:
    given = answer(found.candidates, budgets)
    commands = [step.replace(str(SHARED), "../shared") for step in given.next_steps]
    steps = "; next: ".join(["", *(f"`{command}`" for command in commands)])
    return given.chosen or "none", given.why + steps


def alone(found: Compared, paths: Sequence[Path]) -> Iterator[tuple[str, ...]]:
    for path in paths:
        top = evaluate_task(path, task_for(path)).metrics[found.headline]
        single = bench(path, threads=(1, 2), launches=5, min_secs=0.4, warmup_secs=0.2)
        own = [c for c in found.candidates if c.path == str(path)]
        yield (
            path.stem,
            f"{own[0].accuracy:.4f}",
            f"{top:.4f}",
            *(f"{_again(c, single):.2f}" for c in own),
        )


def _again(candidate: Candidate, single: Bench) -> float:
    """The time alone over the time among others."""
    result = next(r for r in single.results if r.setting.name == candidate.setting)
    return result.measured.median / candidate.latency


# -- tune -----------------------------------------------------------------------------------------


def tuned(words: str, kept: Path | None) -> str:
    rows: dict[str, list[str]] = json.loads(kept.read_text()) if kept and kept.exists() else {}
    for path in model_paths([], words or TUNED):
        rows[path.stem] = _tuned(path)
        if kept:
            kept.write_text(json.dumps(rows, indent=1))
    header = ["model", "settings", "tune chose", "best of the sweep", "chosen / best",
              "tune, s", "sweep, s", "share"]  # fmt: skip
    return table(header, [rows[name] for name in sorted(rows)])


def _tuned(path: Path) -> list[str]:
    with progress() as show:
        # Neither pays for compiling: who comes first would pay for both.
        bench(path, sweep=True, launches=1, runs=1, min_secs=0, warmup_secs=0, progress=show)
        begin = time.perf_counter()
        found = sanderling.tune(path, progress=show)
        middle = time.perf_counter()
        swept = bench(path, sweep=True, min_secs=4, warmup_secs=0.3, progress=show)
    took = middle - begin, time.perf_counter() - middle
    sound = [r for r in swept.results if r.rounds and r.setting.name not in found.refused]
    best = min(sound, key=lambda r: r.measured.median)
    chosen = next(r for r in sound if r.setting.name == found.chosen.setting.name)
    return [
        path.stem,
        str(len(swept.results)),
        chosen.setting.name,
        best.setting.name,
        "the same" if chosen is best else str(_over(chosen, best)),
        f"{took[0]:.0f}",
        f"{took[1]:.0f}",
        f"{took[0] / took[1]:.2f}",
    ]


def _over(chosen: Result, best: Result) -> str:
    found = ratio(chosen, best)
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"


# -- retrain --------------------------------------------------------------------------------------


def retrained() -> str:
    header = ["model", "classes", "trained on", "seconds", "held out: right", "95 %", "LiteRT"]
    return table(header, [_pictures(), _sounds()])


@contextmanager
def timed() -> Iterator[Callable[[], float]]:
    begin = time.perf_counter()
    end: list[float] = []
    yield lambda: (end[0] if end else time.perf_counter()) - begin
    end.append(time.perf_counter())


def cifar(split: str, count: int) -> tuple[Array, Array]:
    """Pictures of CIFAR-10, as many of each class."""
    sys.path.insert(0, str(SHARED / "datasets"))
    from load_cifar10 import load  # type: ignore[import-not-found]

    images, labels = load(SHARED / "datasets" / "cifar10_lossless.npz", split)
    chosen = np.concatenate([np.flatnonzero(labels == n)[: count // 10] for n in range(10)])
    return images[chosen], labels[chosen]


def _pictures() -> tuple[str, ...]:
    path = model_paths([], "efficientnet_lite0")[0]
    with TemporaryDirectory() as folder:
        place = Path(folder)
        for number, (image, label) in enumerate(zip(*cifar("train", PICTURES), strict=True)):
            (place / "data" / CIFAR[label]).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(place / "data" / CIFAR[label] / f"{number:04}.png")
        with timed() as seconds:
            found = sanderling.retrain(
                path, place / "data", preset="efficientnet-lite", crop="none"
            )
        sanderling.save(found.model, place / "made.tflite")
        scores = _litert(place / "made.tflite")
        images, labels = cifar("test", JUDGED)
        right = sum(
            found.names[int(scores(_prepared(image)).argmax())] == CIFAR[label]
            for image, label in zip(images, labels, strict=True)
        )
    judged = f"{right} of {len(labels)} right ({_percent(wilson(right, len(labels)))})"
    return _row(path, found, seconds(), judged)


def _prepared(image: Array) -> Array:
    large = Image.fromarray(image).resize((224, 224), Image.Resampling.BILINEAR)
    return (np.asarray(large, np.float32)[None] - 127) / 128


def _litert(path: Path) -> Callable[[Array], Array]:
    engine = interpreter(path, reference=False)
    (given,), (made,) = engine.get_input_details(), engine.get_output_details()

    def scores(array: Array) -> Array:
        engine.set_tensor(given["index"], array.reshape(given["shape"]))
        engine.invoke()
        return np.array(engine.get_tensor(made["index"])).reshape(-1)

    return scores


def _sounds() -> tuple[str, ...]:
    """Of four clips of each class one is held out, in four draws; a draw's model is run by LiteRT
    and by us on every window."""
    path = model_paths([], "yamnet")[0]
    with np.load(SHARED / "datasets" / "esc10" / "esc10_16k.npz") as held:
        audio, labels, rate = held["audio"], held["label"], int(held["rate"])
    with TemporaryDirectory() as folder:
        place = Path(folder)
        for number, (clip, label) in enumerate(zip(audio, labels, strict=True)):
            (place / "data" / label).mkdir(parents=True, exist_ok=True)
            _write_wave(place / "data" / label / f"{number:02}.wav", clip, rate)
        with timed() as seconds:
            draws = [
                sanderling.retrain(path, place / "data", rate=rate, held_out=0.25, seed=seed)
                for seed in range(DRAWS)
            ]
        sanderling.save(draws[0].model, place / "made.tflite")
        same, windows = _same_classes(place / "made.tflite", audio)
    found = draws[0]
    found.right = sum(draw.right for draw in draws)
    found.held_out = sum(draw.held_out for draw in draws)
    return _row(path, found, seconds() / DRAWS, f"{same} of {windows} windows as we")


def _same_classes(path: Path, audio: Array) -> tuple[int, int]:
    """On how many windows LiteRT names our first class, and of how many."""
    session = sanderling.load(path).compile()
    theirs, (tensor,) = _litert(path), session.model.main.inputs
    size = int(np.prod(tensor.shape))
    waves = audio.astype(np.float32) / 32768
    windows = waves[:, : waves.shape[1] // size * size].reshape(-1, *tensor.shape)
    ours = [next(iter(session.run({tensor.name: w}).values())).argmax() for w in windows]
    same = sum(theirs(w).argmax() == one for w, one in zip(windows, ours, strict=True))
    return int(same), len(windows)


def _write_wave(path: Path, clip: Array, rate: int) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(clip.tobytes())


def _row(path: Path, found: Retrained, seconds: float, litert: str) -> tuple[str, ...]:
    return (
        path.stem,
        str(len(found.names)),
        str(found.trained_on),
        f"{seconds:.0f}",
        f"{found.right} of {found.held_out}",
        _percent(found.interval),
        litert,
    )


def _percent(interval: tuple[float, float]) -> str:
    low, high = interval
    return f"{100 * low:.1f} to {100 * high:.1f} %"


# -- the program ----------------------------------------------------------------------------------

HEADINGS = {
    "compare": "Choosing: the ImageNet classifiers compared, 600 pictures",
    "tune": "Choosing: tune against an exhaustive sweep",
    "retrain": "Choosing: models retrained for other classes",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--stage", default=",".join(HEADINGS))
    parser.add_argument("--models", default="", help="words of the models that are tuned")
    parser.add_argument("--rows", type=Path, help="a file that keeps the rows of tune")
    parser.add_argument("--png", default="", help="the file for the graphs of compare")
    parser.add_argument("--write", action="store_true", help="put the tables into RESULTS.md")
    args = parser.parse_args()
    stages = {"compare": lambda: compare(args.png), "tune": lambda: tuned(args.models, args.rows),
              "retrain": retrained}  # fmt: skip
    for name in args.stage.split(","):
        text = stages[name]()
        print(text, flush=True)
        if args.write:
            about = f"`python -m benchmarks.choose --stage {name}`; {machine_line()}."
            write_section(f"choose {name}", f"## {HEADINGS[name]}\n\n{about}\n\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

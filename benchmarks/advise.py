"""Does advice gain when it is followed? Each command of `advise` is run as it is printed.

    python -m benchmarks.advise --write
    python -m benchmarks.advise yolox ssd --seconds 5

For each of ten models: what `advise` says, then every command literally in a temporary folder, and
the gain of its result over the model as it was, measured anew in turns (or counted by the rules of
an accelerator, or in bytes). "nothing to gain" is an answer, too.
"""

from __future__ import annotations

import argparse
import io
import shlex
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from sanderling import SanderlingError, load
from sanderling.choose.advice import REFUSED, Advice, Gain, target_of
from sanderling.choose.advise import advise
from sanderling.choose.trials import gains
from sanderling.measure.bench import Axes, BenchedModel, Procedure, measure_models
from sanderling.measure.inputs import Feeding
from sanderling.measure.machine import machine_line
from sanderling.measure.record import Setting
from sanderling.rules import judge
from sanderling.runtime.settings_file import read_settings

from .common import SHARED, table, write_section

COLUMNS = ["model", "target, goal", "advice", "gain in its trial", "gain when followed", "holds",
           "answers", "s"]  # fmt: skip
LAUNCHES = 5
SAMPLES = 24  # a quick trial; quantize's own default takes minutes on the larger models
IMAGENET, CIFAR = "imagenet600", "cifar10_lossless.npz"


@dataclass(frozen=True)
class Case:
    """A model for a target and a goal."""

    name: str
    target: str = "cpu"
    goal: str = "latency"
    data: str = ""  # of the shared data sets; none: no samples are given
    preset: str = ""

    @property
    def path(self) -> Path:
        return SHARED / "models" / f"{self.name}.tflite"


CASES = (
    Case("yolox_nano_mask3_nchw_f16", "phone"),
    Case("mediapipe_face_detection_full_range_f16"),
    Case("mediapipe_pose_detection_f16sparse", "phone"),
    Case("ssd_mobilenet_v1_coco_uint8"),
    Case("efficientnet_lite0_224_f32", data=IMAGENET, preset="efficientnet-lite"),
    Case("coral_tf2_mobilenet_v2_1.0_224_ptq"),
    Case("mlperftiny_ad01_int8"),
    Case("squeezenet_v1.0_deepcompressed_f32", goal="size"),
    Case("mlperftiny_resnet8_cifar10_f32", "edgetpu", data=CIFAR),
    Case("openwakeword_embedding_f32", "gpu"),
)


def rows(case: Case, seconds: float) -> list[list[str]]:
    """A row for each piece of advice, or one that says that there is none."""
    data = samples(case)
    found = advise(
        case.path,
        data=data,
        preset=case.preset,
        samples=SAMPLES,
        target=case.target,
        goal=case.goal,
        seconds=seconds,
    )
    about = f"{case.target}, {case.goal}"
    took = f"{found.seconds:.0f}"
    if not found.advice:
        best = [o for o in found.looked_at if o.gain is not None]
        near = min(best, key=lambda o: o.gain.value, default=None) if best else None  # type: ignore[union-attr]
        least = f"{near.name} {near.gain}" if near else "-"
        return [[case.name, about, found.verdict.partition(":")[0], least, "-", "-", "-", took]]
    made = []
    for advice in found.advice:
        gain, problem = followed(case, advice)
        told = str(gain) if gain else problem
        row = [case.name, about, advice.name, str(advice.gain), told, verdict(gain), advice.cost]
        made.append([*row, took])
        print(" | ".join(made[-1]), f"\n    $ {advice.command}", flush=True)
    return made


def samples(case: Case) -> Path | None:
    """A folder of pictures as it is; of CIFAR-10 a file with the first pictures."""
    if not case.data:
        return None
    path = SHARED / "datasets" / case.data
    if case.data != CIFAR:
        return path
    with np.load(path) as stored:
        sprite = Image.open(io.BytesIO(stored["test_webp0"].tobytes())).convert("RGB")
    rows = np.asarray(sprite)[:32].reshape(32, 100, 32, 3).transpose(1, 0, 2, 3)
    kept = Path(tempfile.gettempdir()) / "sanderling-advise-cifar.npy"
    np.save(kept, rows.astype(np.float32))
    return kept


def verdict(gain: Gain | None) -> str:
    if gain is None or gain.value >= 1:
        return "NO"
    return "yes" if gain.high < 1 else "unsure"


def followed(case: Case, advice: Advice) -> tuple[Gain | None, str]:
    """Run the command as it is, and measure what it left."""
    verb, *words = shlex.split(advice.command)
    assert verb == "sanderling"
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "sanderling", *words],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            return None, f"exit status {done.returncode}: {done.stderr.strip()[-80:]}"
        (left,) = Path(folder).iterdir()
        if advice.figure == "size":
            return Gain.exact(left.stat().st_size, case.path.stat().st_size), ""
        if advice.figure == REFUSED:
            return Gain.exact(_refused(left, case.target), _refused(case.path, case.target)), ""
        return _measured(case, left, advice.figure), ""


def _refused(path: Path, target: str) -> int:
    model = load(path)
    return sum(not v.is_taken for v in judge(model.main, target).verdicts)


def _measured(case: Case, left: Path, figure: str) -> Gain:
    base = Setting(engine=target_of(case.target).engine)
    if left.suffix == ".json":
        kept = read_settings(left)
        other = replace(
            base,
            threads=kept.threads,
            delegates=kept.delegates,
            precision=kept.precision,
            batch=kept.batch,
        )
        if other == base:  # tune found no difference
            return Gain(1.0, 1.0, 1.0)
        subjects = [_subject(case.path, "given", base, other)]
    else:
        subjects = [_subject(case.path, "given", base), _subject(left, "made", base)]
    how = Procedure(runs=25, min_secs=2.0, max_secs=8.0, warmup_secs=0.3, launches=LAUNCHES, seed=7)
    before, after = measure_models(subjects, how, together=True).results
    return gains(after, before)[figure]


def _subject(path: Path, name: str, *settings: Setting) -> BenchedModel:
    axes = Axes((settings[0].engine,), (1,), ((),), ("f32",), 0, swept=False)
    made = BenchedModel.of(path, name, Feeding(), "", (), axes)
    return replace(made, settings=list(settings))


def report(found: Sequence[Sequence[str]], seconds: float) -> str:
    followed_ = [row for row in found if row[5] != "-"]
    held = sum(row[5] == "yes" for row in followed_)
    wrong = sum(row[5] == "NO" for row in followed_)
    line = (
        f"{held} of {len(followed_)} pieces of advice gained when followed, {wrong} did not, the "
        f"others cannot be told. Gains are the figure after over the figure before, with the 95 % "
        f"interval: time (cpu: our runtime, phone: LiteRT), bytes, or ops that an accelerator "
        f"refuses. `s`: what `advise` took. All of it took {seconds:.0f} s."
    )
    return f"{table(COLUMNS, found, left=len(COLUMNS) - 1)}\n\n{line}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("models", nargs="*", help="parts of names; default: all")
    parser.add_argument("--seconds", type=float, default=8.0, help="of trials, for each model")
    parser.add_argument("--write", action="store_true", help="put the table into RESULTS.md")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    begun = time.monotonic()
    found: list[list[str]] = []
    for case in CASES:
        if args.models and not any(part in case.name for part in args.models):
            continue
        try:
            found += rows(case, args.seconds)
        except SanderlingError as error:
            found.append([case.name, case.target, str(error)[:80], *["-"] * 5])
        print(f"# {case.name}: {time.monotonic() - begun:.0f} s so far", flush=True)
    text = report(found, time.monotonic() - begun)
    print(text)
    if args.write:
        about = f"## Advice followed\n\n`python -m benchmarks.advise`; {machine_line()}"
        write_section("Advice followed", f"{about}\n\n{text}\n")


if __name__ == "__main__":
    main()

"""Cold starts of every model, before and after a change: with nothing kept, and beside relatives.

    python -m benchmarks.cold_start OLD [MODEL.tflite ...] [--models WORDS] [--rounds 3] [--write]

OLD is anything `git archive` takes; the new revision is the working tree. Each figure is of a fresh
process whose bytecode is there, as an installed package's is: milliseconds of load, compilation and
first inference on one thread, imports of `numpy` and `sanderling` apart, median of the rounds.

old, new: with an empty cache; off: new without a cache; batch: new, after the same model with a
batch of two; relative: new, after another model of its family; warm: new, compiled before.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.common import machine_type, model_paths, table, write_json, write_machine_section
from benchmarks.revisions import check_out
from sanderling.delegates.cpu.isa.targets import host_target
from sanderling.measure.machine import machine_line

SCHEMA = "sanderling.cold_start/1"
COLUMNS = ("old", "new", "off", "batch", "relative", "warm")
# Models that differ in sizes or training, each with one of its family.
RELATIVES = {
    "coral_tf2_mobilenet_v2_1.0_224_ptq": "coral_mobilenet_v2_1.0_224_quant",
    "coral_mobilenet_v2_1.0_224_quant": "coral_deeplabv3_mnv2_pascal_quant",
    "coral_mobilenet_v1_0.25_128_quant": "ssd_mobilenet_v1_coco_uint8",
    "ssd_mobilenet_v1_coco_uint8": "coral_mobilenet_v1_0.25_128_quant",
    "mediapipe_face_detection_full_range_f16": "mediapipe_pose_detection_f16sparse",
    "mlperftiny_resnet8_cifar10_f32": "resnet20_cifar10_f32",
    "resnet20_cifar10_f32": "mlperftiny_resnet8_cifar10_f32",
    "yolox_nano_416_coco_f32": "yolox_nano_mask3_nchw_f16",
}

# Runs in the fresh process: prints seconds. batch: 0 for the shapes of the file.
PROBE = """
import sys, time
import numpy as np
import sanderling
sanderling.load, sanderling.Session
import sanderling.delegates.cpu.delegate, sanderling.delegates.reference
path, batch = sys.argv[1], int(sys.argv[2])
begin = time.perf_counter()
session = sanderling.load(path).compile(['cpu'], threads=1)
inputs = session.entry(None).inputs
shapes = {n: (batch, *t.shape[1:]) if batch else t.shape for n, t in inputs.items()}
session.bind({n: np.zeros(shapes[n], t.dtype.numpy) for n, t in inputs.items()}).run()
print(time.perf_counter() - begin)
"""


def start(place: Path, model: Path, cache: str, batch: int = 0) -> float:
    """Milliseconds of a start in a fresh process, with this cache."""
    env = os.environ | {"PYTHONPATH": str(place), "SANDERLING_CACHE": cache}
    env |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(place / "bytecode")}
    command = [sys.executable, "-c", PROBE, str(model), str(batch)]
    done = subprocess.run(command, env=env, cwd=place, capture_output=True, text=True, timeout=600)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise RuntimeError(last)
    return 1e3 * float(done.stdout)


def samples(old: Path, new: Path, model: Path) -> dict[str, float | None]:
    """One round: a figure of each column, None where there is nothing to measure."""
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, float | None] = {
            "old": start(old, model, f"{folder}/old"),
            "new": start(new, model, f"{folder}/new"),
            "warm": start(new, model, f"{folder}/new"),
            "off": start(new, model, "off"),
        }
        found["batch"] = after(new, model, model, f"{folder}/batch", 2)
        other = model.with_stem(RELATIVES.get(model.stem, ""))
        known = model.stem in RELATIVES and other.is_file()
        found["relative"] = after(new, model, other, f"{folder}/relative") if known else None
    return found


def after(place: Path, model: Path, other: Path, cache: str, batch: int = 0) -> float | None:
    """A start behind another one; None if that one is refused, as a batch of two may be."""
    try:
        start(place, other, cache, batch)
    except RuntimeError:
        return None
    return start(place, model, cache)


def rows(old: Path, new: Path, models: Sequence[Path], rounds: int) -> Iterator[list[str]]:
    """A row for each model: medians, and the quotient of the first two."""
    for model in models:
        start(old, model, "off")  # both have bytecode
        start(new, model, "off")
        taken = [samples(old, new, model) for _ in range(rounds)]
        middle = {name: _median([t[name] for t in taken]) for name in COLUMNS}
        cells = ["-" if middle[n] is None else f"{middle[n]:.0f}" for n in COLUMNS]
        before, now = middle["old"], middle["new"]
        assert before is not None and now is not None
        yield [model.stem, *cells, f"{before / now:.2f}"]


def _median(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    found = json.loads(Path(options.keep).read_text("utf-8")) if _is_kept(options.keep) else {}
    models = [m for m in model_paths(options.paths, options.models) if m.stem not in found]
    with tempfile.TemporaryDirectory() as folder:
        old, new = (check_out(r, Path(folder, n)) for r, n in ((options.old, "old"), (None, "new")))
        for row in rows(old, new, models, options.rounds):
            print(" | ".join(row), file=sys.stderr, flush=True)
            found[row[0]] = row
            if options.keep:
                Path(options.keep).write_text(json.dumps(found), "utf-8")
    text = table(["model", *COLUMNS, "old / new"], [found[name] for name in sorted(found)])
    print(text)
    if options.json:
        write_json(options.json, SCHEMA, {"models": found, "old": options.old})
    if options.write:
        _write(text, options)
    return 0


def _is_kept(place: str | None) -> bool:
    return place is not None and Path(place).is_file()


def _write(text: str, options: argparse.Namespace) -> None:
    target = host_target().name
    about = (
        "Milliseconds of load, compilation and first inference in a fresh process, one thread of "
        f"inference; old: {options.old}. Empty cache, cache off, after a batch of two, after a "
        "model of the family, and compiled before."
    )
    title = f"## Cold start: {machine_type(target)}"
    write_machine_section("cold start", target, f"{title}\n\n{machine_line()}\n\n{about}\n\n{text}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", help="the revision to compare with")
    parser.add_argument("paths", nargs="*", metavar="MODEL", help="default: the shared models")
    parser.add_argument("--models", default="", help="only names with one of these words")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", metavar="FILE", help="rows of earlier runs, to go on from")
    parser.add_argument("--json", metavar="FILE", help="all rows; '-' for stdout")
    parser.add_argument("--write", action="store_true", help="update benchmarks/RESULTS.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())

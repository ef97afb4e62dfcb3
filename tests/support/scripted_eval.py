"""TensorFlow Lite's evaluation tools for the scripted phone: the flags that they check, the lines
that they print and the files that they write, in the three forms of their history.

They run no model. What it would answer is in answers.json, by the digest of a picture's bytes:
classes from the best on, or detections; accuracies are counted as the tools count them.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Flags = dict[str, str]
Answers = dict[str, Any]
Figures = tuple[int, int, str, list[float]]

OWN = {
    "imagenet_image_classification": "model_file model_output_labels ground_truth_images_path "
    "ground_truth_labels denylist_file_path output_file_path num_images num_interpreter_threads "
    "delegate",
    "coco_object_detection": "model_file model_output_labels ground_truth_images_path "
    "ground_truth_proto output_file_path debug_mode num_interpreter_threads delegate",
    "inference_diff": "model_file output_file_path num_runs num_interpreter_threads delegate",
}
REGISTRAR = ("use_", "nnapi_", "gpu_", "xnnpack_", "hexagon_", "external_delegate_", "num_threads")
STAGE = {"max_us": 90, "min_us": 10, "sum_us": 1000, "avg_us": 50.5, "std_deviation_us": 7}
HOME = Path(__file__).parent


def install(folder: Path, task: str, answers: Answers, form: str = "binary") -> str:
    """The tool as a file for --device-binary. form: what it writes to its output file, `binary`,
    `text` as before 2020, or `none`."""
    record = answers | {"task": task, "form": form}
    (folder / "answers.json").write_text(json.dumps(record))
    path = folder / "run_eval"
    text = Path(__file__).read_text().replace("Path(__file__).parent", f"Path({str(folder)!r})")
    path.write_text(f"#!{sys.executable} -SE\n{text}")
    path.chmod(0o755)
    return str(path)


class Failed(Exception):
    pass


def main(words: list[str]) -> int:
    answers = json.loads((HOME / "answers.json").read_text())
    (HOME / "eval_words").write_text("\n".join(words))
    flags = read_flags(words, OWN[answers["task"]].split())
    try:
        figures = TASKS[answers["task"]](flags, answers)
    except Failed as error:
        print(f"ERROR: {error}")
        print("ERROR: Could not run the task evaluation!")
        return 1
    write(flags.get("output_file_path", ""), figures, answers["form"])
    return 0


def read_flags(words: Sequence[str], own: Sequence[str]) -> Flags:
    found, unknown = {}, []
    for word in words:
        name, _, value = word.removeprefix("--").partition("=")
        if name in own or name.startswith(REGISTRAR):
            found[name] = value
        else:
            unknown.append(word)
    if unknown:
        print(f"WARN: Unconsumed cmdline flags: {' '.join(unknown)}")
    if found.get("use_gpu") == "true":
        print(
            "INFO: Explicitly applied GPU delegate, and the model graph will be completely "
            "executed by the delegate."
        )
    return found


def lines_of(path: str, what: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        raise Failed(f"Could not read {what} file") from None


def pictures(flags: Flags) -> list[Path]:
    if not Path(flags["model_file"]).is_file():
        raise Failed(f"Failed to load model {flags['model_file']}")
    return sorted(Path(flags["ground_truth_images_path"]).iterdir())


def answer_of(path: Path, answers: Answers) -> Any:
    content = path.read_bytes()
    if not content.startswith(b"\xff\xd8"):
        raise Failed("Failed to read jpeg image")
    return answers["by_picture"].get(hashlib.md5(content).hexdigest(), answers.get("usual"))


def told(runs: int, titles: Sequence[str] = ("Preprocessing", "Inference")) -> None:
    print(f"INFO: Num evaluation runs: {runs}")
    for title in titles:
        print(f"INFO: {title} latency: avg={STAGE['avg_us']:g}(us), std_dev=7(us)")


def imagenet(flags: Flags, answers: Answers) -> Figures:
    found = pictures(flags)
    truth = lines_of(flags["ground_truth_labels"], "ground truth labels")
    if len(found) != len(truth):
        raise Failed("Number of images and ground truth labels is not same")
    names = lines_of(flags["model_output_labels"], "model output labels")
    if len(names) != answers["classes"]:
        raise Failed("Invalid model_output_shape_")
    counts = [0] * 10
    for path, label in zip(found, truth, strict=True):
        best = [names[c] for c in answer_of(path, answers)[:10]]
        if label in best:
            for k in range(best.index(label), 10):
                counts[k] += 1
    told(len(found))
    shares = [n / len(found) for n in counts]
    for k, share in enumerate(shares, 1):
        print(f"INFO: Top-{k} Accuracy: {share:g}")
    return len(found), 4, "image_classification_metrics", shares


def coco(flags: Flags, answers: Answers) -> Figures:
    found = pictures(flags)
    lines_of(flags["model_output_labels"], "model output labels")
    if flags.get("ground_truth_proto"):
        truth = Path(flags["ground_truth_proto"]).read_bytes()
        if any(path.name.encode() not in truth for path in found):
            raise Failed("a picture has no ground truth")
    for path in found:
        if flags.get("debug_mode") == "true":
            describe(path.name, answer_of(path, answers))
    told(len(found))
    each = [0.5 - 0.05 * i for i in range(10)]
    for i, value in enumerate(each):
        print(f"INFO: Average Precision [IOU Threshold={0.5 + 0.05 * i:g}]: {value:g}")
    print("INFO: Overall mAP: 0.275")
    return len(found), 7, "object_detection_metrics", each


def describe(name: str, objects: Sequence[Any]) -> None:
    print(f"INFO: Image: {name}\n")
    for i, (box, number, score) in enumerate(objects):
        print(f"INFO: Object [{i}]")
        print(f"INFO:   Score: {score:g}")
        print(f"INFO:   Class-ID: {number + 1}")
        print("INFO:   Bounding Box:")
        for side, value in zip(("Top", "Left", "Bottom", "Right"), box, strict=True):
            print(f"INFO:     Normalized {side}: {value:g}")
    print("INFO: ======================================================\n")


def inference_diff(flags: Flags, answers: Answers) -> Figures:
    runs = int(flags.get("num_runs", 50))
    told(runs, ("Reference run", "Test run"))
    for i, error in enumerate(answers["errors"]):
        print(f"INFO: OutputDiff[{i}]: avg_error={error:g}, std_dev={error / 2:g}")
    return runs, 5, "inference_profiler_metrics", answers["errors"]


TASKS: dict[str, Callable[[Flags, Answers], Figures]] = {
    "imagenet_image_classification": imagenet,
    "coco_object_detection": coco,
    "inference_diff": inference_diff,
}


# -- the output file ------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    made = b""
    while value > 0x7F:
        made += bytes([value & 0x7F | 0x80])
        value >>= 7
    return made + bytes([value])


def block(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def real(number: int, value: float) -> bytes:
    return varint(number << 3 | 5) + struct.pack("<f", value)


def long_real(number: int, value: float) -> bytes:
    return varint(number << 3 | 1) + struct.pack("<d", value)


def whole(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def write(path: str, figures: Figures, form: str) -> None:
    if path and form == "binary":
        Path(path).write_bytes(binary(*figures))
    elif path and form == "text":
        Path(path).write_text(text(*figures))


def binary(runs: int, number: int, _: str, values: Sequence[float]) -> bytes:
    stage = whole(2, 90) + whole(3, 10) + whole(4, 1000) + long_real(5, 50.5) + whole(6, 7)
    own = block(1, stage) + block(2, stage)
    if number == 4:
        own += block(4, b"".join(real(1, v) for v in values))
    elif number == 7:
        rows = [real(1, 0.5 + 0.05 * i) + real(2, v) for i, v in enumerate(values)]
        own += block(4, b"".join(block(1, row) for row in rows) + real(2, 0.275))
    else:
        rows = [real(1, 2 * v) + real(2, 0) + long_real(3, v) + real(4, v / 2) for v in values]
        own += b"".join(block(3, row) for row in rows)
    return whole(1, runs) + block(2, block(number, own))


def text(runs: int, _: int, name: str, values: Sequence[float]) -> str:
    stage = "".join(f"      {field}: {value}\n" for field, value in STAGE.items())
    rows = "".join(f"      topk_accuracies: {value} # of the pictures\n" for value in values)
    return (
        f"num_runs: {runs} # Total images evaluated\nprocess_metrics {{\n  {name} {{\n"
        f"    pre_processing_latency {{\n{stage}    }}\n    inference_latency {{\n{stage}    }}\n"
        "    inference_metrics {\n      num_inferences: 1\n    }\n"
        f"    topk_accuracy_metrics {{\n{rows}    }}\n  }}\n}}\n"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What the tests of evaluations share: pictures of digits with labels, and the verb called here."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

import sanderling
from sanderling import evaluate_task, load
from sanderling.cli.app import app
from sanderling.evaluate.running import shards
from sanderling.evaluate.running.evaluation import Evaluation
from sanderling.evaluate.tasks.imagenet import ImageNet
from sanderling.ir import Graph, Model, Op, Tensor

DATA = Path(str(files("sanderling") / "data"))
F32, INT8 = DATA / "digits_f32.tflite", DATA / "digits_int8.tflite"
COUNT = 40
LIKE_DIGITS = {"crop": "none", "mean": "0", "std": "240", "resample": "nearest"}
OPTIONS = ["--crop", "none", "--mean", "0", "--std", "240", "--resample", "nearest"]


def call(*words: object, status: int = 0) -> Result:
    result = CliRunner().invoke(app, ["eval", *(str(w) for w in words)])
    assert result.exit_code == status, result.output + repr(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def said(*words: object) -> str:
    """What is printed about input that cannot be used."""
    result = call(*words, status=2)
    assert result.stdout == "" and "Traceback" not in result.stderr
    return result.stderr


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of digits, their classes in a list and in a table."""
    folder = tmp_path_factory.mktemp("digits")
    (folder / "img").mkdir()
    held = np.load(DATA / "digits_test.npz")
    labels = [int(n) for n in held["labels"][:COUNT]]
    for i, image in enumerate(held["images"][:COUNT]):
        Image.fromarray(image * np.uint8(15)).save(folder / "img" / f"{i:03}.png")
    (folder / "labels.txt").write_text("\n".join(map(str, labels)))
    rows = [f"{i:03}.png,{n}" for i, n in reversed(list(enumerate(labels)))]
    (folder / "labels.csv").write_text("\n".join(["file,label", *rows]))
    return folder


@pytest.fixture(autouse=True)
def no_shared_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Shards of one test are not another's; compiled code may be."""
    monkeypatch.setattr(shards.Shelf, "usual", lambda name: shards.Shelf(tmp_path / "kept" / name))
    yield


def digit_task(folder: Path, **more: Any) -> ImageNet:
    settings = {"images": folder / "img", "labels": folder / "labels.txt", **LIKE_DIGITS, **more}
    return ImageNet(**settings)


def arguments(folder: Path, *more: object) -> list[object]:
    return [
        "imagenet",
        INT8,
        "--images",
        folder / "img",
        "--labels",
        folder / "labels.txt",
        *OPTIONS,
        *more,
    ]


def one_graph(inputs: list[Tensor], outputs: list[Tensor], *ops: Op) -> Model:
    graph = Graph("main", inputs=inputs, outputs=outputs)
    graph.enlist(*dict.fromkeys(t for op in ops for t in (*op.inputs, *op.outputs) if t))
    for op in ops:
        graph.append(op)
    return Model([graph])


def right_by_hand() -> int:
    """Of the first pictures, by a loop that uses none of this."""
    held = np.load(DATA / "digits_test.npz")
    session = load(INT8).compile()
    x = held["images"][:COUNT, ..., None].astype(np.float32) / 16
    codes = sanderling.quantize_array(x, session.model.main.inputs[0])
    found = [int(session(c[None]).argmax()) for c in codes]
    return int((np.array(found) == held["labels"][:COUNT]).sum())


@pytest.fixture(scope="session")
def alone(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    return evaluate_task(
        INT8, digit_task(digits, detail=True), decoders=0, shards=tmp_path_factory.mktemp("alone")
    )


def same(a: Evaluation, b: Evaluation) -> bool:
    """Figures and predictions, to the last bit."""
    return a.metrics == b.metrics and a.predictions_npz() == b.predictions_npz()


DEADLY = """
import os, signal
from dataclasses import dataclass
from pathlib import Path
from sanderling import register_task, setting
from sanderling.evaluate.tasks.imagenet import ImageNet

@register_task
@dataclass(kw_only=True)
class Deadly(ImageNet):
    '''Kills the process that prepares one of its pictures.'''

    name = "deadly"
    mark: Path = setting(help="Where it is remembered.")
    times: int = setting(default=1, help="How often.")

    def preprocess(self, sample):
        if sample.id == "017.png":
            for i in range(self.times):
                try:
                    os.close(os.open(f"{self.mark}{i}", os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                os.kill(os.getpid(), signal.SIGKILL)
        return super().preprocess(sample)
"""

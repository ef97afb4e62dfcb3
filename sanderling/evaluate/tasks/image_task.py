"""What tasks on pictures share: how a picture becomes an input, and what is kept of the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ...ir import Array
from ..images.pixels import find_images
from ..images.preprocess import Frame, Pipeline, Transform, adjusted, load_pipeline
from ..task import Ports, Sample, Task, setting

_NO_PIXELS = np.empty((0, 0, 0), np.uint8)


@dataclass(kw_only=True)
class ImageTask(Task):
    """A task whose samples are pictures, preprocessed by a pipeline that options change."""

    preset: str = setting(
        default="",
        metavar="NAME|FILE",
        help="How pictures become inputs: a "
        "preset, or a file that --save-preset wrote. Default: what suits the "
        "model.",
    )
    resample: str = setting(
        default="",
        metavar="HOW",
        help="tflite, or Pillow's nearest, bilinear, bicubic, lanczos, box, hamming.",
    )
    mean: str = setting(default="", metavar="M[,M,M]", help="Inputs are (pixel - mean) / std.")
    std: str = setting(default="", metavar="S[,S,S]", help="See --mean.")
    bgr: bool | None = setting(default=None, help="Blue first.")

    def open(self, ports: Ports) -> None:
        super().open(ports)
        base = load_pipeline(self.preset) if self.preset else self.usual()
        self.pipeline = adjusted(
            base, resample=self.resample, mean=self.mean, std=self.std, bgr=self.bgr
        )
        self.pipeline.check(ports.input)

    def preprocessing(self) -> dict[str, Any] | None:
        return self.pipeline.to_json() if self.is_open else None

    def usual(self) -> Pipeline:
        """The preprocessing where none is stated."""
        raise NotImplementedError

    def prepare(
        self, sample: Sample, *first: Transform
    ) -> tuple[dict[str, Array], Frame, dict[str, float]]:
        """The inputs; where they come from, without the pixels, for it travels; the seconds."""
        if not sample.file.is_file():
            raise InputError(
                "the picture is not there",
                where=str(sample.file),
                fix="put it into the folder, or take it out of the annotations",
            )
        pipeline = replace(self.pipeline, steps=(*first, *self.pipeline.steps))
        array, frame, seconds = pipeline(sample.file, self.ports.input)
        name = next(iter(self.ports.inputs))
        return {name: array}, replace(frame, pixels=_NO_PIXELS), seconds


def check_folder(folder: Path, named: Mapping[int, str], annotations: Path | None) -> None:
    """Some of the annotated pictures are there, or the folder is another one's."""
    there = {p.name for p in find_images(folder)}
    if not there & {Path(n).name for n in named.values()}:
        raise InputError(
            f"none of the {len(named)} annotated pictures is in it, such as "
            f"{next(iter(named.values()))}",
            where=str(folder),
            fix=f"give the folder that {annotations} describes",
        )

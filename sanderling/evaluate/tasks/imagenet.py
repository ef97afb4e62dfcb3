"""ImageNet classification, as TensorFlow Lite's tool does it by default."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...files import read_text
from ...runtime.inputs import PICTURES
from ..images.pixels import find_images
from ..images.preprocess import Pipeline, adjusted, load_pipeline
from ..task import Metrics, Ports, Prepared, Sample, register_task, setting, stage_metrics
from .classify import Classification

FILES = ("file", "filename", "file_name", "image", "path", "name", "id")
LABELS = ("label", "class", "class_id", "target", "class1000", "wnid", "category")


@register_task
@dataclass(kw_only=True)
class ImageNet(Classification):
    """Top-1 to top-10 accuracy of an image classifier."""

    name = "imagenet"
    in_threads = True
    images: Path = setting(
        "--ground_truth_images_path",
        metavar="DIR",
        help="The folder of pictures; or of folders of classes, called by number or name, or one "
        "for each class of the model in the order of their names.",
    )
    labels: Path | None = setting(
        "--ground_truth_labels",
        default=None,
        metavar="FILE",
        help="The pictures' classes: a text file with one number or name a line, in the order of "
        "the file names, or with 'FILE CLASS' lines; or a .csv with a header.",
    )
    label_column: str = setting(
        default="",
        metavar="NAME",
        help="The column of the .csv that holds the classes. Default: the first of "
        f"{', '.join(LABELS)}.",
    )
    denylist: Path | None = setting(
        "--denylist_file_path",
        "--blacklist_file_path",
        default=None,
        metavar="FILE",
        help="Pictures to leave out: their numbers, from 1, one a line.",
    )
    preset: str = setting(
        default="tflite",
        metavar="NAME|FILE",
        help="How pictures become inputs: tflite (central square of 0.875, bilinear, values by the "
        "input's type), efficientnet-lite, unit, pixels, torchvision, caffe, or a file that "
        "--save-preset wrote.",
    )
    crop: str = setting(
        default="",
        metavar="F|HxW|none",
        help="Crop the middle: a share of the shorter side, or a size.",
    )
    short_side: int = setting(default=0, metavar="N", help="First resize the shorter side to N.")
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
        self.pipeline: Pipeline = adjusted(
            load_pipeline(self.preset),
            crop=self.crop,
            short_side=self.short_side,
            resample=self.resample,
            mean=self.mean,
            std=self.std,
            bgr=self.bgr,
        )
        self.pipeline.check(ports.input)

    def preprocessing(self) -> dict[str, Any] | None:
        return self.pipeline.to_json() if self.is_open else None

    def samples(self) -> Sequence[Sample]:
        self.labelled = str(self.labels or f"the folders of {self.images}")
        labels = self.labels if self._is_flat() else None
        found = self._folders() if labels is None else self._labelled(labels)
        return self.check_labels(self._allowed(found))

    def preprocess(self, sample: Sample) -> Prepared:
        array, _, seconds = self.pipeline(sample.file, self.ports.input)
        return Prepared({next(iter(self.ports.inputs)): array}, seconds=seconds)

    def tool_file(self, metrics: Metrics, latency: Mapping[str, Mapping[str, float]]) -> bytes:
        return stage_metrics(
            latency,
            "image_classification_metrics",
            {"topk_accuracy_metrics": {"topk_accuracies": metrics["topk"]}},
        )

    # -- what there is --------------------------------------------------------------------------

    def _is_flat(self) -> bool:
        if self.labels is not None:
            return True
        folders = self.images.is_dir() and any(p.is_dir() for p in self.images.iterdir())
        if not folders:
            find_images(self.images)  # says what is wrong with the folder itself
            raise InputError(
                "there are pictures, and nothing says their classes",
                where=str(self.images),
                fix="give --labels FILE, or a folder for each class",
            )
        return False

    def _folders(self) -> list[Sample]:
        """Folders are named by class, number or name; or are all classes, in their names' order."""
        folders = sorted(p for p in self.images.iterdir() if p.is_dir())
        numbers = self._numbers([f.name for f in folders])
        found = [
            Sample(f"{folder.name}/{p.name}", p, number)
            for folder, number in zip(folders, numbers, strict=True)
            for p in sorted(folder.iterdir())
            if p.suffix.lower() in PICTURES
        ]
        if not found:
            raise InputError(
                f"no picture in its {len(folders)} folders",
                where=str(self.images),
                fix="put each class's pictures into a folder of its own",
            )
        return found

    def _numbers(self, folders: list[str]) -> Sequence[int]:
        by_name = {n.strip().lower(): i for i, n in enumerate(self.names)}
        known = [by_name.get(f.strip().lower()) for f in folders]
        if all(f.isdecimal() for f in folders):
            return [int(f) for f in folders]
        if any(n is not None for n in known):
            strange = [f for f, n in zip(folders, known, strict=True) if n is None]
            if strange:
                raise InputError(
                    f"the folder '{strange[0]}' has no class name of the model",
                    where=str(self.images),
                    fix=f"call it as {self.model_output_labels} does",
                )
            return [n for n in known if n is not None]
        if len(folders) not in (self.classes, self.classes - 1):  # one may be the background
            raise InputError(
                f"{len(folders)} folders, the model has {self.classes} classes: which is which?",
                where=str(self.images),
                fix="call the folders by the numbers of their classes, or give "
                "--model-output-labels with their names",
            )
        return range(len(folders))

    def _labelled(self, labels: Path) -> list[Sample]:
        text = read_text(labels, "the labels", "give one class a line, or a .csv")
        if labels.suffix.lower() == ".csv":
            return self._from_csv(labels, text)
        return self._from_text(text.rstrip().splitlines())

    def _from_text(self, lines: list[str]) -> list[Sample]:
        pictures = find_images(self.images)
        by_name = {p.name: p for p in pictures}
        pairs = [line.rsplit(maxsplit=1) for line in lines]
        if pairs and all(len(p) == 2 and p[0] in by_name for p in pairs):
            return [
                self._sample(by_name[name], label, i) for i, (name, label) in enumerate(pairs, 1)
            ]
        if len(lines) != len(pictures):
            raise InputError(
                f"{len(lines)} labels for {len(pictures)} pictures in {self.images}",
                where=str(self.labels),
                fix="give one label a picture, in the order of the file names",
            )
        return [
            self._sample(p, line.strip(), i)
            for i, (p, line) in enumerate(zip(pictures, lines, strict=True), 1)
        ]

    def _from_csv(self, path: Path, text: str) -> list[Sample]:
        reader = csv.DictReader(io.StringIO(text, newline=""))
        header = list(reader.fieldnames or [])
        file = self._column(header, "the pictures' names", FILES, "")
        label = self._column(header, "the classes", LABELS, self.label_column)
        self.labelled = f"{path}, column '{label}'"
        try:
            rows = [(r[file] or "", r[label] or "") for r in reader]
        except csv.Error as error:
            raise InputError(
                f"not a .csv: {error}",
                where=f"{path}, line {reader.line_num + 1}",
                fix="check that the file is complete",
            ) from error
        by_name = {p.name: p for p in find_images(self.images)}
        missing = [name for name, _ in rows if Path(name).name not in by_name]
        if missing:
            raise InputError(
                f"{len(missing)} of {len(rows)} pictures are not in {self.images}, "
                f"the first is '{missing[0]}'",
                where=str(path),
                fix="give the folder that holds them",
            )
        return [
            self._sample(by_name[Path(name).name], text, i)
            for i, (name, text) in enumerate(rows, 2)
        ]

    def _column(self, header: list[str], what: str, usual: Sequence[str], wanted: str) -> str:
        names = {h.strip().lower(): h for h in header}
        if wanted and wanted.lower() not in names:
            raise InputError(
                f"no column '{wanted}'",
                where=str(self.labels),
                fix=f"the columns are {', '.join(header)}",
            )
        found = [names[n] for n in ([wanted.lower()] if wanted else usual) if n in names]
        if not found:
            raise InputError(
                f"the column of {what} is missing: its first line names the columns, "
                f"and none is called {' or '.join(usual)}",
                where=str(self.labels),
                fix=self._first_line(header, usual),
            )
        return found[0]

    def _first_line(self, header: list[str], usual: Sequence[str]) -> str:
        """What to do about a column that is missing: most often there is no line of names."""
        if any(Path(name).suffix.lower() in PICTURES for name in header):
            return (
                f"the first line, {','.join(header)}, is a picture: put a line before it such "
                f"as {FILES[0]},{LABELS[0]}"
            )
        other = "; choose with --label-column" if usual is LABELS else ""
        return f"the columns are {', '.join(header) or 'none'}: call one {usual[0]}{other}"

    def _sample(self, path: Path, label: str, line: int) -> Sample:
        return Sample(path.name, path, self._class(label.strip(), line))

    def _class(self, label: str, line: int) -> int:
        """A number, or the place of a name among the model's."""
        if label.lstrip("-").isdecimal():
            return int(label)
        places = self.__dict__.setdefault(
            "_places", {n.strip().lower(): i for i, n in enumerate(self.names)}
        )
        if label.lower() not in places:
            raise InputError(
                f"'{label}' is neither a number nor a class name of the model",
                where=f"{self.labels}, line {line}",
                fix="give --model-output-labels with all names of the model's classes"
                if not self.names
                else f"{self.model_output_labels} does not have it",
            )
        return int(places[label.lower()])

    def _allowed(self, samples: list[Sample]) -> list[Sample]:
        if self.denylist is None:
            return samples
        fix = "give the numbers of pictures, from 1, one a line"
        text = read_text(self.denylist, "the denylist", fix)
        try:
            numbers = {int(n) for n in text.split()}
        except ValueError as error:
            raise InputError(
                f"not a list of numbers: {error}", where=str(self.denylist), fix=fix
            ) from error
        strange = [n for n in numbers if not 1 <= n <= len(samples)]
        if strange:
            raise InputError(
                f"there is no picture {strange[0]}, there are {len(samples)}",
                where=str(self.denylist),
                fix="numbers count from 1",
            )
        return [s for i, s in enumerate(samples, 1) if i not in numbers]

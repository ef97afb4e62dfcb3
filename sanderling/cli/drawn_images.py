"""`sanderling run --picture`: what the model found, drawn onto what it looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..evaluate.images.preprocess import Frame, Pipeline, adjusted, load_pipeline
from ..evaluate.task import Ports
from ..evaluate.tasks.image_drawing import DRAWN, drawn
from ..evaluate.tasks.output_readers import ClassNaming, Findings, OutputReader, understand
from ..format import write_atomic
from ..ir import Array, Signature
from ..runtime.inputs import PICTURES
from ..tables import table
from .common import open_target, plural, say
from .run_files import Files


class ImageDrawer:
    """Prepares pictures as this kind of model wants them, and reads and draws what it gives."""

    def __init__(
        self,
        entry: Signature,
        model: Path,
        names: ClassNaming,
        preset: str,
        changes: Mapping[str, Any],
    ) -> None:
        self.ports = Ports(dict(entry.inputs), dict(entry.outputs), model.name)
        self.input = self.ports.input
        self.reader: OutputReader = understand(self.ports, names)
        base = load_pipeline(preset) if preset else self.reader.pipeline
        self.pipeline: Pipeline = adjusted(base, **changes)
        self.pipeline.check(self.input)
        say(
            f"drawn as {self.reader.how}; pictures are prepared as for it"
            + (f" ({self.pipeline.name})" if self.pipeline.name else "")
        )

    def look(self, files: Files) -> tuple[dict[str, Array], Frame]:
        (name, path), *_ = files.items()
        array, frame, _ = self.pipeline(Path(path), self.input)
        return {name: array}, replace(frame, pixels=frame.pixels[:0])

    def read(self, outputs: Mapping[str, Array], frame: Frame) -> Findings:
        return self.reader.read(self.ports.reals(outputs), frame)


def check_images(jobs: Sequence[Files]) -> None:
    """They are what is drawn on."""
    for files in jobs:
        for path in files.values():
            if Path(path).suffix.lower() not in PICTURES:
                raise InputError(
                    "there is nothing to draw on: it is not a picture",
                    where=path,
                    fix=f"--picture is for {', '.join(sorted(PICTURES))}",
                )
    if not all(jobs):
        raise InputError(
            "there is nothing to draw on", where="--picture", fix="give a picture with --input"
        )


class Gallery:
    """Where drawn pictures go: one file, or a folder for several."""

    def __init__(self, place: Path, titles: Sequence[str]) -> None:
        self.paths = [place]
        if len(titles) > 1 or place.is_dir():
            self._make_folder(place)
            names = [f"{t.replace('/', '_').rpartition('.')[0]}.png" for t in titles]
            self.paths = [place / name for name in names]
        elif place.suffix.lower() not in DRAWN:
            raise InputError(
                f"'{place.suffix}' is not a kind of picture to draw",
                where=str(place),
                fix=f"end the name with {', '.join(DRAWN)}",
            )
        else:
            open_target(place).discard()  # what cannot be written is said before the work

    @staticmethod
    def _make_folder(place: Path) -> None:
        try:
            place.mkdir(exist_ok=True)
        except OSError as error:
            raise InputError(
                f"several pictures go into a folder, which cannot be made: {error.strerror}",
                where=str(place),
                fix="give another name",
            ) from error

    def add(self, number: int, source: str, found: Findings) -> None:
        path = self.paths[number]
        write_atomic(path, drawn(Path(source), found, path))

    def tell(self) -> None:
        """All are written."""
        several = f"{plural(len(self.paths), 'picture')} into {self.paths[0].parent}"
        say(f"wrote {self.paths[0] if len(self.paths) == 1 else several}")


# -- for people -----------------------------------------------------------------------------------

_COLUMNS: dict[str, tuple[list[str], Callable[[dict[str, Any]], tuple[object, ...]]]] = {
    "boxes": (
        ["~found", ">score", ">left", ">top", ">right", ">bottom"],
        lambda r: (r["label"], f"{r['score']:.2f}", *(f"{n:.0f}" for n in r["box"])),
    ),
    "keypoints": (
        ["found", ">score", ">keypoints"],
        lambda r: (f"person {r['person']}", f"{r['score']:.2f}", len(r["keypoints"])),
    ),
    "mask": (["~found", ">share of the picture"], lambda r: (r["label"], f"{r['share']:.1%}")),
    "classes": (
        ["~found", ">class", ">score"],
        lambda r: (r["label"], r["class"], f"{r['score']:.4g}"),
    ),
}


def found_table(found: Sequence[tuple[str, Findings]]) -> str:
    """All runs in one table; which run it is, where there are several."""
    columns, row = _COLUMNS[found[0][1].kind]
    first = ["~input"] if len(found) > 1 else []
    rows = [[*[title][: len(first)], *row(r)] for title, f in found for r in f.rows]
    hidden = sum(f.hidden for _, f in found)
    verb = "is" if hidden == 1 else "are"
    more = f"{hidden} more with too small a score or share {verb} not shown" if hidden else ""
    nothing = "" if rows else "nothing was found"
    return "\n".join(filter(None, (table([*first, *columns], rows), nothing, more)))

"""The jobs that a page can start: for each verb its fields, and the command that these become.

A field has the values that may be chosen, or the numbers that may be given; whatever else comes is
refused. Commands are lists of words, never a line for a shell, and files are absolute paths inside
of the folder that is served, so that no value can be taken for an option.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from .record_file import files_of, inside

MODEL, DATA, LABELS = (".tflite",), (".npz", ".npy"), (".txt", ".csv")
PICTURES = (".jpg", ".jpeg", ".png")
MODES = ("int8", "dynamic", "float16", "int16x8", "weight-int8", "weight-int4", "dynamic-int4")
MOST_FOLDERS = 200
Values = Mapping[str, str]


@dataclass(frozen=True)
class Field:
    """One field of a form. One of: choices, endings of files to choose from, or a range."""

    name: str
    label: str
    choices: tuple[str, ...] = ()
    endings: tuple[str, ...] = ()
    folders: bool = False  # folders of pictures may be chosen too
    least: float | None = None
    most: float | None = None
    default: str = ""
    is_needed: bool = False
    help: str = ""

    def options(self, folder: Path) -> list[str]:
        """What may be chosen; empty for a number."""
        if self.choices:
            return list(self.choices)
        found = [f.path for f in files_of(folder, self.endings)] if self.endings else []
        return found + (picture_folders(folder) if self.folders else [])

    def checked(self, values: Values, folder: Path) -> str:
        """The value, if it is one of those that may be given."""
        value = values.get(self.name, "").strip()
        if not value:
            if self.is_needed:
                raise InputError("nothing is chosen", where=self.label, fix="choose one")
            return ""
        if self.least is not None:
            return self._number(value)
        if value not in self.options(folder):
            raise InputError(
                "this cannot be chosen", where=f"{self.label}: {value[:100]}", fix="take one listed"
            )
        return value if self.choices else str(inside(folder, value))

    def _number(self, value: str) -> str:
        try:
            found = float(value)
        except ValueError:
            found = math.nan
        if not (self.least or 0.0) <= found <= (self.most or math.inf) or not math.isfinite(found):
            raise InputError(
                f"'{value[:40]}' is not a number from {self.least:g} to {self.most:g}",
                where=self.label,
                fix="give another",
            )
        return f"{found:.10g}"


def picture_folders(folder: Path) -> list[str]:
    """Folders that hold pictures, from the folder that is served on."""
    names = {Path(f.path).parent.as_posix() for f in files_of(folder, PICTURES)}
    tops = {Path(n).parent.as_posix() for n in names}  # folders of classes
    return sorted(n for n in names | tops if n != ".")[:MOST_FOLDERS]


@dataclass(frozen=True)
class Form:
    """A verb that can be started. words: its own words of the command, from checked values;
    made: the ending of the file that it writes besides its record, if any."""

    title: str
    fields: tuple[Field, ...]
    words: Callable[[Values], Sequence[str]]
    made: str = ""

    def checked(self, values: Values, folder: Path) -> dict[str, str]:
        return {f.name: f.checked(values, folder) for f in self.fields}


def _given(values: Values, **options: str) -> list[str]:
    """Options whose fields have a value."""
    return [w for name, option in options.items() if values[name] for w in (option, values[name])]


def _bench(values: Values) -> list[str]:
    models = [values[n] for n in ("model", "other") if values[n]]
    return [*models, *_given(values, engines="--engines", threads="--threads", secs="--min-secs")]


def _diff(values: Values) -> list[str]:
    models = [values[n] for n in ("model", "other") if values[n]]
    layers = ["--per-tensor"] if values["layers"] == "yes" else []
    return [*models, *_given(values, runs="--runs", data="--data"), *layers]


def _quantize(values: Values) -> list[str]:
    return [values["model"], *_given(values, mode="--mode", data="--data", samples="--samples")]


def _eval(values: Values) -> list[str]:
    source = {"arrays": "--data", "imagenet": "--images"}[values["task"]]
    own = _given(values, std="--std") + (["--mean", "0"] if values["std"] else [])
    return [
        values["task"],
        values["model"],
        source,
        values["data"],
        *(_given(values, labels="--labels") if values["task"] == "imagenet" else []),
        *own,
        *_given(values, other="--against", limit="--limit"),
    ]


_MODEL = Field("model", "Model", endings=MODEL, is_needed=True)
_OTHER = Field("other", "Second model", endings=MODEL)
FORMS = {
    "bench": Form(
        "Benchmark",
        (
            _MODEL,
            _OTHER,
            Field("engines", "Engines", choices=("sanderling", "sanderling,litert",
                  "sanderling,openvino"), default="sanderling"),
            Field("threads", "Threads", choices=("1", "2", "4", "1,2", "1,2,4"), default="1"),
            Field("secs", "Seconds for each setting", least=0.05, most=60, default="1"),
        ),
        _bench,
    ),
    "diff": Form(
        "Difference",
        (
            Field("model", "Reference", endings=MODEL, is_needed=True),
            Field("other", "Test", endings=MODEL,
                  help="Without one: the reference model, compiled, against the definitions."),
            Field("data", "Inputs", endings=DATA, folders=True, help="Default: random values."),
            Field("runs", "Runs", least=1, most=10_000, default="50"),
            Field("layers", "Layer by layer", choices=("no", "yes"), default="yes"),
        ),
        _diff,
    ),
    "quantize": Form(
        "Quantisation",
        (
            _MODEL,
            Field("mode", "Mode", choices=MODES, default="int8", is_needed=True),
            Field("data", "Samples", endings=DATA, folders=True,
                  help="Arrays by the names of the inputs. Without them ranges are made up."),
            Field("samples", "At most so many", least=1, most=100_000, default="200"),
        ),
        _quantize,
        made=".tflite",
    ),
    "eval": Form(
        "Evaluation",
        (
            Field("task", "Task", choices=("arrays", "imagenet"), default="arrays",
                  is_needed=True),
            _MODEL,
            Field("other", "Against", endings=MODEL),
            Field("data", "Arrays or pictures", endings=(".npz",), folders=True, is_needed=True),
            Field("labels", "Labels of pictures", endings=LABELS),
            Field("std", "Inputs are divided by", least=1e-6, most=1e6,
                  help="For arrays of pixels, such as 255; default: taken as they are."),
            Field("limit", "At most so many samples", least=1, most=10_000_000),
        ),
        _eval,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Command:
    """What is run, and what it writes."""

    verb: str
    words: list[str]
    record: Path

    def shown(self, folder: Path) -> str:
        """For people, who would write it in the folder."""
        root = f"{folder.resolve()}/"
        return " ".join(["sanderling", *(w.removeprefix(root) for w in self.words)])


def command(verb: str, values: Values, folder: Path, stamp: str) -> Command:
    """The command of a filled-in form; it never writes over a file."""
    if verb not in FORMS:
        raise InputError("there is no such job", where=verb[:40], fix=f"{', '.join(FORMS)}")
    form = FORMS[verb]
    words = [verb, *form.words(form.checked(values, folder))]
    stem = f"{verb}-{Path(values['model']).stem[:60]}-{stamp}"
    if form.made:
        words += ["-o", str(_free(folder, stem, form.made))]
    record = _free(folder, stem, ".json")
    return Command(verb, [*words, "--json", str(record)], record)


def _free(folder: Path, stem: str, ending: str) -> Path:
    names = (f"{stem}{f'-{n}' if n else ''}{ending}" for n in range(1000))
    return next(p for n in names if not (p := folder.resolve() / n).exists())

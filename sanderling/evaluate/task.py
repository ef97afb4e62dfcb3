"""The contract of an evaluation task, and where tasks are found.

A task is a small class: `samples` names what there is to look at, `preprocess` makes a model's
inputs of one sample, `postprocess` keeps of the outputs what counts, `metric` makes figures of all.
Its fields are its settings, and its options on the command line (`sanderling eval NAME`):

    @register_task
    @dataclass(kw_only=True)
    class Parity(Task):
        '''Odd or even? Pictures of digits, their class in the file name: 7_0012.png.'''

        name = "parity"
        images: Path = setting(help="The folder of pictures.")
        invert: bool = setting(default=False, help="The pictures are black on white.")

        def samples(self) -> list[Sample]:
            found = find_images(self.images)
            return [Sample(p.name, path=p, truth=int(p.name[0])) for p in found]

        def preprocess(self, sample: Sample) -> Array:
            pixels = read_pixels(sample.path)                       # uint8 [height, width, 3]
            return fit((255 - pixels if self.invert else pixels)[..., :1] / 255, self.ports.input)

        def postprocess(self, sample, outputs, context):
            return {"digit": int(np.argmax(outputs[0]))}            # outputs: as reals, in order

        def metric(self, samples, predictions):
            right = [p["digit"] % 2 == s.truth % 2 for s, p in zip(samples, predictions)]
            return {"accuracy": float(np.mean(right))}

What the engine promises: `preprocess` runs in any process, in any order, at most a few times a
sample; `postprocess` runs in the process of the session; `metric` runs once, in the first process,
on the samples that came through, in the order of `samples()`. So the figures are the same however
the work was spread. A sample whose preprocess raises InputError, OSError or ValueError (a file that
cannot be read) is a failure: named, counted, left out of `metric`. Any other exception is a defect
of the task and ends the run.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, TypeVar, get_args, get_type_hints

from ..errors import InputError, MissingNameError, SanderlingError
from ..files import read_text
from ..ir import Array, Model, Tensor
from ..protobuf import encode

# What is kept of a sample's outputs: arrays (of any length from sample to sample), numbers,
# strings, and lists and dicts of these; the same names for every sample, none beginning with '@'.
Prediction = Mapping[str, Any]
Metrics = dict[str, Any]


class Sample(NamedTuple):
    """One thing to look at. Small: samples travel between processes, pictures do not."""

    id: str  # for people, and unique in its set
    path: Path | None = None  # its file, where it has one: a change of it is noticed on resume
    truth: Any = None
    data: Any = None  # whatever else the task needs

    @property
    def file(self) -> Path:
        """The path of a sample that has one."""
        if self.path is None:
            raise InputError("the sample has no file", where=self.id, fix="give it a path")
        return self.path


@dataclass
class Prepared:
    """What preprocess returns where arrays alone do not say enough."""

    # Arrays by input; or several such, run one after the other: outputs are then stacked along
    # their first dimension.
    feeds: Mapping[str, Array] | Sequence[Mapping[str, Array]]
    context: Any = None  # goes to postprocess: the size of the picture, the scale of a letterbox
    # Of its steps, for the table of latencies.
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Ports:
    """What a model takes and gives: tensors apart from their graph, in the file's order."""

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    model: str = ""  # its file's name, for messages

    @staticmethod
    def of(model: Model) -> Ports:
        entry = model.compile().entry(None)
        inputs, outputs = (
            {n: t.copy() for n, t in side.items()} for side in (entry.inputs, entry.outputs)
        )
        return Ports(inputs, outputs, Path(model.source).name)

    @property
    def input(self) -> Tensor:
        """The only input."""
        return self._only("input", self.inputs)

    @property
    def output(self) -> Tensor:
        """The only output."""
        return self._only("output", self.outputs)

    def _only(self, what: str, tensors: Mapping[str, Tensor]) -> Tensor:
        if len(tensors) != 1:
            listed = ", ".join(f"'{n}' {t.type_text}" for n, t in tensors.items())
            raise InputError(
                f"the task is for models of one {what}, this one has {len(tensors)}: {listed}",
                where=self.model,
                fix="choose the task that fits the model",
            )
        return next(iter(tensors.values()))

    def reals(self, outputs: Mapping[str, Array]) -> list[Array]:
        """Outputs in the file's order, integers that stand for reals as these."""
        from ..runtime.inputs import dequantize_array

        return [dequantize_array(outputs[n], t) for n, t in self.outputs.items()]


def setting(*names: str, default: Any = MISSING, help: str = "", metavar: str = "") -> Any:
    """A field that is an option. names: other spellings ("--ground_truth_labels"); its own is the
    field's name with dashes. Types: str, int, float, bool, Path, list[str], and each `| None`.
    A bool is a flag, or takes =true and =false."""
    extra = {"names": names, "help": help, "metavar": metavar}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata=extra)
    return field(default=default, metadata=extra)


@dataclass(kw_only=True)
class Task:
    """Derive from this, decorate with `@dataclass(kw_only=True)`, and register."""

    name: ClassVar[str] = ""
    # The figure of `metric` that stands for the whole, for those who read many records.
    headline: ClassVar[str] = ""
    # The numbers that `metric` gives, where they are known before a run; a part that the data names
    # is in capitals: by_class.NAME.IoU. Said by the class that defines metric.
    figures: ClassVar[tuple[str, ...]] = ()
    # preprocess costs so little that no other process is worth its start.
    is_light: ClassVar[bool] = False
    # preprocess may run in several threads at once; said by the class that defines it.
    in_threads: ClassVar[bool] = False
    # Whether it is bound to a model, so that its ports are known.
    is_open = False
    # Keep in predictions all that `compare` needs: set for --against and --predictions.
    detail: bool = field(default=False, metadata={"hidden": True})

    @classmethod
    def runs_in_threads(cls) -> bool:
        """A class that defines another preprocess does not inherit the promise."""
        return bool(cls._said_beside("preprocess", "in_threads"))

    @classmethod
    def known_figures(cls) -> tuple[str, ...]:
        """A class that defines another metric does not inherit them; () if they are not known."""
        return cls._said_beside("metric", "figures") or ()

    @classmethod
    def _said_beside(cls, method: str, name: str) -> Any:
        """What the class that defines the method says of it; None if it says nothing."""
        home = next(kind for kind in cls.__mro__ if method in vars(kind))
        return vars(home).get(name)

    def open(self, ports: Ports) -> None:
        """Bind to a model; checks that it fits belong here. Called once wherever the task works."""
        self.ports, self.is_open = ports, True

    def preprocessing(self) -> dict[str, Any] | None:
        """What --save-preset writes: how pictures become inputs. None: nothing to be saved."""
        return None

    def samples(self) -> Sequence[Sample]:
        """Everything there is, in an order that does not change. No file is decoded here."""
        raise NotImplementedError

    def preprocess(self, sample: Sample) -> Prepared | Mapping[str, Array] | Array:
        """The model's inputs: an array for the only one, or arrays by name."""
        raise NotImplementedError

    def postprocess(self, sample: Sample, outputs: list[Array], context: Any) -> Prediction:
        """What counts. outputs: in the file's order, dequantised; they are the caller's to keep."""
        raise NotImplementedError

    def metric(self, samples: Sequence[Sample], predictions: Sequence[Prediction]) -> Metrics:
        """Figures of all samples that came through: plain numbers, strings, lists, dicts."""
        raise NotImplementedError

    def lines(self, metrics: Metrics) -> list[str]:
        """Return the figures as lines for people."""
        return [
            f"{k}: {v:.6g}" if isinstance(v, float) else f"{k}: {v}"
            for k, v in metrics.items()
            if isinstance(v, int | float | str)
        ]

    def compare(
        self, samples: Sequence[Sample], ours: Sequence[Prediction], theirs: Sequence[Prediction]
    ) -> Metrics:
        """Two models on the same samples (`--against`), pair by pair."""
        raise InputError(
            f"the task '{self.name}' has no paired comparison",
            fix="leave --against out, and compare the two results",
        )

    def compared_lines(self, compared: Metrics) -> list[str]:
        """Return the comparison as lines for people."""
        return Task.lines(self, compared)

    def recorded(self) -> Metrics | None:
        """Figures of results that lie in a file, where a task can judge these without a model."""
        return None

    def tool_file(self, metrics: Metrics, latency: Mapping[str, Mapping[str, float]]) -> bytes:
        """What --output_file_path gets; TensorFlow Lite's tools write a protocol buffer."""
        return ("\n".join(self.lines(metrics)) + "\n").encode()

    def settings(self) -> dict[str, Any]:
        """What the task was made with; paths as text."""
        return {f.name: _plain(getattr(self, f.name)) for f in settings_of(type(self))}


def stage_metrics(
    latency: Mapping[str, Mapping[str, float]], kind: str, content: Mapping[str, Any]
) -> bytes:
    """The file of TensorFlow Lite's tools, a serialised tflite.evaluation.EvaluationStageMetrics:
    both latencies, and what a kind of evaluation has besides."""
    runs = int(latency["inference"]["count"])
    own = {
        "pre_processing_latency": _stage(latency["preprocess"]),
        "inference_latency": _stage(latency["inference"]),
        "inference_metrics": {"num_inferences": runs},
        **content,
    }
    return encode("EvaluationStageMetrics", {"num_runs": runs, "process_metrics": {kind: own}})


def _stage(seconds: Mapping[str, float]) -> dict[str, float]:
    return {
        "max_us": seconds["max"] * 1e6,
        "min_us": seconds["min"] * 1e6,
        "sum_us": seconds["mean"] * seconds["count"] * 1e6,
        "avg_us": seconds["mean"] * 1e6,
        "std_deviation_us": seconds["std"] * 1e6,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def settings_of(kind: type[Task]) -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(kind) if f.init]


# -- where tasks are found ----------------------------------------------------------------------

# Tasks of the package: imported when they are asked for.
HOMES = {
    "imagenet": "tasks.imagenet",
    "coco": "tasks.coco",
    "segmentation": "tasks.segmentation",
    "keypoints": "tasks.keypoints",
    "arrays": "tasks.arrays",
}
_REGISTERED: dict[str, type[Task]] = {}
Kind = TypeVar("Kind", bound=type[Task])


def register_task(kind: Kind) -> Kind:
    """A class decorator: the task can be asked for by its name."""
    if not kind.name:
        raise InputError(f"the task {kind.__name__} has no name", fix='write name = "..." in it')
    _REGISTERED[kind.name] = kind
    return kind


def task_names() -> list[str]:
    there = [n for n, home in HOMES.items() if find_spec(f"{__package__}.{home}") is not None]
    return [*there, *(n for n in _REGISTERED if n not in HOMES)]


def find_task(name: str) -> type[Task]:
    """The task of this name, or the one that a user's file holds: FILE.py or FILE.py:NAME."""
    path, colon, inside = name.rpartition(":")
    path, inside = (path, inside) if colon and path.endswith(".py") else (name, "")
    if path.endswith(".py"):
        return load_task(Path(path), inside)
    if name in HOMES and name not in _REGISTERED and name in task_names():
        import_module(f".{HOMES[name]}", __package__)
    if name not in _REGISTERED:
        near = get_close_matches(name, task_names(), 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise MissingNameError(
            f"there is no task '{name}'",
            fix=f"{hint}The tasks are {', '.join(task_names())}; one of your "
            "own is FILE.py, or FILE.py:NAME",
        )
    return _REGISTERED[name]


def make_task(name: str, **settings: Any) -> Task:
    """The task of this name (or FILE.py:NAME) with these settings; paths may be text."""
    kind = find_task(name)
    known = {f.name: f for f in settings_of(kind)}
    for key in settings:
        if key not in known:
            raise MissingNameError(
                f"the task '{kind.name}' has no setting '{key}'", fix=f"it has {', '.join(known)}"
            )
    hints = get_type_hints(kind)
    made: dict[str, Any] = {
        k: Path(v) if isinstance(v, str) and _takes_path(hints[k]) else v
        for k, v in settings.items()
    }
    missing = [
        n
        for n, f in known.items()
        if n not in made and f.default is MISSING and f.default_factory is MISSING
    ]
    if missing:
        raise InputError(
            f"the task '{kind.name}' needs '{missing[0]}'",
            fix=known[missing[0]].metadata.get("help", ""),
        )
    return kind(**made)


def _takes_path(hint: Any) -> bool:
    return hint is Path or Path in get_args(hint)


def load_task(path: Path, name: str = "") -> type[Task]:
    """The task that a file registers; name: which, where it registers several."""
    text = read_text(path, "the task's file", "give a Python file that registers a task")
    return TaskFile(str(path), text).task(name)


class TaskFile(NamedTuple):
    """A user's file. Its text travels, so that other machines need not have it."""

    path: str
    text: str

    def task(self, name: str = "") -> type[Task]:
        kinds = {k.name: k for k in self._kinds()}
        if (name and name not in kinds) or not kinds:
            raise InputError(
                f"it registers no task {repr(name) if name else ''}".rstrip(),
                where=self.path,
                fix=f"it registers {', '.join(kinds)}"
                if kinds
                else "decorate a class that derives from sanderling.Task with "
                "@sanderling.register_task",
            )
        if not name and len(kinds) > 1:
            raise InputError(
                f"it registers {len(kinds)} tasks",
                where=self.path,
                fix=f"say which: {self.path}:NAME, of {', '.join(kinds)}",
            )
        return kinds[name] if name else next(iter(kinds.values()))

    def _kinds(self) -> list[type[Task]]:
        """Tasks that the file itself defines, not those that it imports or derives from."""
        module = self.run()
        return [
            k
            for k in vars(module).values()
            if isinstance(k, type)
            and issubclass(k, Task)
            and k.__module__ == module.__name__
            and vars(k).get("name")
        ]

    def run(self) -> ModuleType:
        """The file, run once in this process."""
        name = f"sanderling_task_{Path(self.path).stem}_{abs(hash(self)):x}"
        if name in sys.modules:
            return sys.modules[name]
        module = sys.modules[name] = ModuleType(name)
        module.__file__ = self.path
        vars(module)["sanderling_source"] = self
        try:
            exec(compile(self.text, self.path, "exec"), vars(module))
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            said = error.what if isinstance(error, SanderlingError) else error
            raise InputError(
                f"it cannot be run: {type(error).__name__}: {said}",
                where=self.path,
                fix=f"correct it; to see more, run: python {self.path}",
            ) from error
        return module


def plugin_files(paths: Iterable[str | os.PathLike[str]]) -> tuple[TaskFile, ...]:
    return tuple(TaskFile(os.fspath(p), Path(p).read_text("utf-8")) for p in paths)


def run_each(plugins: Iterable[TaskFile]) -> None:
    for source in plugins:
        source.run()


@dataclass(frozen=True)
class PortableTask:
    """A task as it travels to other processes and machines: where its class is, and its settings.

    source: the user's file, where the class cannot be imported by its module's name.
    """

    name: str
    settings: dict[str, Any]
    home: str
    place: str  # of the class in its module
    source: TaskFile | None = None

    @staticmethod
    def of(task: Task) -> PortableTask:
        kind = type(task)
        module = sys.modules[kind.__module__]
        source: TaskFile | None = getattr(module, "sanderling_source", None)
        path = getattr(module, "__file__", None)
        if source is None and kind.__module__ == "__main__" and path:
            source = TaskFile(path, Path(path).read_text("utf-8"))
        values = {f.name: getattr(task, f.name) for f in settings_of(kind)}
        return PortableTask(kind.name, values, kind.__module__, kind.__qualname__, source)

    def make(self) -> Task:
        if self.source is None and self.home == "__main__":
            raise self._unknown("was typed in")
        if "<locals>" in self.place:
            raise self._unknown("is defined inside a function")
        found: Any = import_module(self.home) if self.source is None else self.source.run()
        for part in self.place.split("."):
            found = getattr(found, part)
        return found(**self.settings)

    def _unknown(self, why: str) -> InputError:
        return InputError(
            f"the task '{self.name}' {why}: other processes cannot know it",
            fix="put its class into a file and import it, or use workers=1 and decoders=0",
        )

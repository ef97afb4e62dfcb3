"""`sanderling eval TASK`: one command for each task, its options are the task's settings."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import MISSING, Field, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from ..errors import InputError
from ..evaluate.on_device.device_evaluation import device_evaluator
from ..evaluate.running.evaluation import (
    SCHEMA,
    Evaluation,
    KeptPredictions,
    Progress,
    compare_evaluations,
    evaluate_task,
)
from ..evaluate.task import Task, find_task, plugin_files, run_each, settings_of, task_names
from ..files import check_ending
from ..format import AtomicFile
from ..measure.benchmark_model.flags import Values
from ..measure.benchmark_model.providers import carried
from ..measure.devices import DeviceOptions
from ..measure.record import Setting
from ..runtime.coverage import runs_on
from ..runtime.settings_file import read_settings
from ..tables import table
from . import completion
from .common import (
    A_MODEL,
    FullDelegation,
    JsonTarget,
    Plugins,
    Quiet,
    SettingsPath,
    Shapes,
    at_hand,
    open_target,
    pairs,
    plural,
    progress,
    read_shapes,
    say,
    summary,
    warn,
    write_target,
)
from .device import (
    AdbPath,
    DeviceBinary,
    DeviceFlags,
    DeviceName,
    DeviceTimeout,
    device_delegates,
)
from .tool_flags import ToolCommand, chosen_delegates, with_full_delegation

FAILED = 1
SHOWN = 10  # failures that are named on the terminal; the record has all
LISTED = 20  # figures that a message lists
TYPES = (str, int, float, bool, Path)


# -- the options of every task ------------------------------------------------------------------

Common = dict[str, Any]
COMMON: Common = {
    "model": (Annotated[Path | None, typer.Argument(metavar="MODEL", help=A_MODEL,
        callback=at_hand)], None),
    "model_file": (Annotated[Path | None, typer.Option("--model_file", hidden=True,
        callback=at_hand)], None),
    "against": (Annotated[Path | None, typer.Option(metavar="MODEL|FILE.npz", callback=at_hand,
        help="Evaluate this one on the same samples, and compare pair by pair; or compare with the "
             "--predictions of an earlier run.")], None),
    "against_set": (Annotated[list[str], typer.Option(metavar="NAME=VALUE",
        help="A setting of the task that is different for --against; may be repeated.")], []),
    "against_engine": (Annotated[str, typer.Option(metavar="NAME",
        help="The engine of --against. Default: the same.")], ""),
    "engine": (Annotated[str, typer.Option(metavar="NAME", autocompletion=completion.ENGINE,
        help="sanderling, litert, openvino or onnxruntime.")], "sanderling"),
    "delegate": (Annotated[list[str], typer.Option(metavar="NAME",
        autocompletion=completion.DELEGATE,
        help="A delegate to prefer; may be repeated, first is best. TensorFlow Lite's names are "
             "known too.")], []),
    "require_full_delegation": (FullDelegation, False),
    "threads": (Annotated[int, typer.Option("--threads", "--num_interpreter_threads", metavar="N",
        min=1, help="Threads of each session.")], 1),
    "precision": (Annotated[str, typer.Option(metavar="P", autocompletion=completion.PRECISION,
        help="Of float products on the CPU: f32 or bf16.")], "f32"),
    "settings": (SettingsPath, None),
    "limit": (Annotated[int, typer.Option("--limit", "--num_images", metavar="N", min=0,
        help="Evaluate the first N samples; 0: all.")], 0),
    "workers": (Annotated[int, typer.Option(metavar="N", min=1,
        help="Processes with a session each, which share the samples.")], 1),
    "decoders": (Annotated[int | None, typer.Option(metavar="N", min=0,
        help="Processes that prepare samples for the only session; 0: none. Default: threads of "
             "its own process, for a task of yours one process a processor.")], None),
    "ray": (Annotated[str, typer.Option(metavar="ADDRESS",
        help="Share the samples on a Ray cluster: HOST:PORT, auto, or local to start one here."
        )], ""),
    "shards": (Annotated[Path | None, typer.Option(metavar="DIR",
        help="Where to keep what is done, so that an interrupted run goes on. Default: in the "
             "cache.")], None),
    "fresh": (Annotated[bool, typer.Option("--fresh",
        help="Do not go on from an interrupted run.")], False),
    "predictions": (Annotated[Path | None, typer.Option(metavar="FILE",
        help="Write each sample's prediction: .npz or .json.")], None),
    "save_preset": (Annotated[Path | None, typer.Option(metavar="FILE",
        help="Write the preprocessing as a preset for --preset.")], None),
    "output_file": (Annotated[Path | None, typer.Option("--output_file_path", metavar="FILE",
        help="Write the metrics file of TensorFlow Lite's tool.")], None),
    "device": (DeviceName, ""),
    "device_binary": (DeviceBinary, ""),
    "device_flag": (DeviceFlags, []),
    "device_timeout": (DeviceTimeout, 6 * 3600.0),
    "adb": (AdbPath, "adb"),
    "require": (Annotated[list[str], typer.Option(metavar="NAME=VALUE",
        help="Exit with 1 if a figure is less, such as top1=0.85; may be repeated. Of --against: "
             "compared.top1.difference.low=-0.01.")], []),
    "max_failures": (Annotated[int | None, typer.Option(metavar="N", min=0,
        help="Exit with 1 if more samples cannot be read.")], None),
    "shape": (Shapes, []),
    "plugin": (Plugins, []),
    "quiet": (Quiet, False),
    "json": (Annotated[str, typer.Option("--json", metavar="FILE",
        help="Write the result as JSON; - for stdout.")], ""),
}  # fmt: skip
FILES = ("predictions", "save_preset", "output_file")
USED_WITHOUT_MODEL = ("require", "plugin", "quiet", "json")
NO_EFFECT = {"ray": "workers decoders", "workers": "decoders"}


class Tasks(TyperGroup):
    """Finds a task by its name, or in a user's file."""

    def list_commands(self, ctx: Any) -> list[str]:
        return task_names()

    def get_command(self, ctx: Any, name: str) -> Any:
        return task_command(find_task(name))


def command() -> Any:
    """The group, for the command line's table of verbs."""
    made = typer.Typer(
        cls=Tasks,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )

    @made.callback()
    def eval() -> None:
        """Evaluate a model on a task: accuracy, failures, latency.

        TASK is a name below, or FILE.py (or FILE.py:NAME) with a task of your own.
        `sanderling eval TASK --help` lists a task's options.
        """

    return get_command(made)


def task_command(kind: type[Task]) -> Any:
    """The command of one task: its settings and the common options."""
    fields = [f for f in settings_of(kind) if not f.metadata.get("hidden") and _type(kind, f)]
    known = {f.name for f in fields}
    clash = known & set(COMMON)
    if clash:
        raise InputError(
            f"its setting '{min(clash)}' has the name of an option of every task",
            where=f"task '{kind.name}'",
            fix="call it something else",
        )
    options = {"model": COMMON["model"], **{f.name: _option(kind, f) for f in fields}}
    options |= COMMON
    hints = {n: hint for n, (hint, _) in options.items()}

    def run(ctx: typer.Context, **values: Any) -> None:
        settings = {f.name: values.pop(f.name) for f in fields}
        _run(kind, settings, values, ctx.meta["registrar"])

    keyword = inspect.Parameter.KEYWORD_ONLY
    first = inspect.Parameter(
        "ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
    )
    rest = [
        inspect.Parameter(n, keyword, default=default, annotation=hint)
        for n, (hint, default) in options.items()
    ]
    run.__signature__ = inspect.Signature([first, *rest])  # type: ignore[attr-defined]
    run.__annotations__ = {"ctx": typer.Context, **hints}
    run.__doc__ = inspect.cleandoc(kind.__doc__ or "")
    made = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    made.command(kind.name, cls=ToolCommand, short_help=summary(run.__doc__))(run)
    return get_command(made)


def _type(kind: type[Task], field: Field[Any]) -> Any:
    """The field's type, if the command line can read it; else None."""
    found = typing.get_type_hints(kind)[field.name]
    inner = [a for a in typing.get_args(found) if a is not types.NoneType]
    is_optional = isinstance(found, types.UnionType) or typing.get_origin(found) is typing.Union
    plain = inner[0] if is_optional and len(inner) == 1 else found
    return found if plain in TYPES or plain == list[str] else None


def _option(kind: type[Task], field: Field[Any]) -> tuple[Any, Any]:
    meta, hint = field.metadata, _type(kind, field)
    own = f"--{field.name.replace('_', '-')}"
    names = list(dict.fromkeys([own, *meta.get("names", ())]))
    default = field.default
    if default is MISSING:
        default = ... if field.default_factory is MISSING else field.default_factory()
    if hint in (bool, bool | None):
        names = [f"{own}/--no-{own[2:]}", *names[1:]] if default is not False else names
    info = typer.Option(
        *names,
        help=meta.get("help", ""),
        metavar=meta.get("metavar") or None,
        show_default=default not in (..., None, "", [], False),
    )
    return Annotated[hint, info], default


# -- doing it -----------------------------------------------------------------------------------


def _run(kind: type[Task], settings: dict[str, Any], values: Common, flags: Values) -> None:
    for name, others in NO_EFFECT.items():
        if values[name] not in ("", 1):
            _warn_unused(values, others.split(), f"--{name}")
    flags = with_full_delegation(flags, values["require_full_delegation"])
    task = kind(**settings)
    recorded = task.recorded()
    with ExitStack() as opened:
        target = opened.enter_context(JsonTarget(values["json"]))
        if recorded is not None:
            _warn_no_model(values)
            return _judge(task, recorded, target, values["require"])
        files = {n: opened.enter_context(open_target(values[n])) for n in FILES if values[n]}
        _check_early(task, values)
        if values["device"]:
            return _run_on_device(task, values, flags, files, target)
        run_each(plugin_files(values["plugin"]))  # they may bring delegates
        _take_settings(values)
        delegates = chosen_delegates(values["delegate"], flags)
        task.detail = bool(values["against"] or values["predictions"])
        model = _model(values)
        found = _evaluate(model, task, values, delegates.names, flags, model.name)
        found.idle_delegates += delegates.absent
        record = found.to_json()
        if values["against"]:
            other = _other(kind, settings, values, delegates.names, flags)
            compared = compare_evaluations(found, other)
            record |= {"against": other.to_json(), "compared": compared}
        if not target.write(record):
            _print(found, record.get("compared"), values["against"])
        _finish(found, record, values, files)


def _finish(
    found: Evaluation, record: dict[str, Any], values: Common, files: Mapping[str, AtomicFile]
) -> None:
    """What follows the printing: failures, files, checks."""
    _tell_failures(found)
    for name, file in files.items():
        write_target(file, _content(name, found, values[name]))
    _check(record, values["require"])
    _check_idle(record, values["require"])
    _check_failures(found, values["max_failures"])


def _run_on_device(
    task: Task, values: Common, flags: Values, files: Mapping[str, AtomicFile], target: JsonTarget
) -> None:
    """TensorFlow Lite's tool on the device, and the same pictures here beside it."""
    if values["against"]:
        raise InputError(
            "the device is compared with the run here", where="--against", fix="leave it out"
        )
    if values["predictions"] and task.name == "imagenet":
        raise InputError(
            "the device's tool tells accuracies and no predictions",
            where="--predictions",
            fix="leave it out",
        )
    task.detail = True
    model = _model(values)
    delegates, more = device_delegates(values["delegate"], flags)
    told: list[Progress] = []
    options = DeviceOptions(
        binary=values["device_binary"],
        flags=more | pairs(values["device_flag"], "--device-flag"),
        timeout=values["device_timeout"],
        adb=values["adb"],
        progress=lambda what, done, total: told[-1](f"{values['device']}: {what}", done, total),
    )
    setting = Setting(threads=values["threads"], delegates=delegates)
    with device_evaluator(values["device"], model, task, setting, options) as there:
        here = _evaluate(model, task, values, [], Values(), f"{model.name} here")
        with progress() as show:
            told.append(show)
            found = there.evaluate(here)
        compared = there.compare(found, here)
    record = found.to_json() | {"here": here.to_json(), "compared": compared}
    if not target.write(record):
        _print(found, None, None)
        typer.echo("\n".join(["", "against the run here:", *there.own.lines(compared)]))
    _finish(found, record, values, files)


def _judge(task: Task, recorded: dict[str, Any], target: JsonTarget, require: list[str]) -> None:
    """Results of a file, without a model."""
    record = {"schema": SCHEMA, "task": task.name, "settings": task.settings(), "metrics": recorded}
    if not target.write(record):
        typer.echo("\n".join(task.lines(recorded)))
    _check(record, require)


def _warn_no_model(values: Common) -> None:
    for name, (_, default) in COMMON.items():
        if name not in USED_WITHOUT_MODEL and values[name] != default:
            option = "the model" if name == "model" else f"--{name.replace('_', '-')}"
            warn(f"{option} has no effect: results are judged as they are given")


def _check_early(task: Task, values: Common) -> None:
    """What would be a pity to find out after an hour."""
    path = values["predictions"]
    if path:
        check_ending(path, (".npz", ".json"), "predictions")
    if values["against"] and type(task).compare is Task.compare:
        task.compare([], [], [])  # says that there is none
    for name in _required(values["require"]):
        _check_known(task, name, bool(values["against"] or values["device"]))
    pairs(values["against_set"], "--against-set")


def _model(values: Common) -> Path:
    given = values["model"] or values["model_file"]
    if given is None:
        raise InputError("no model is given", fix="write its file behind the task, or --model_file")
    return Path(given)


def _warn_unused(values: Common, names: Sequence[str], because: str) -> None:
    given = [n for n in names if values[n] not in (None, 1)]
    if given:
        warn(f"--{given[0]} has no effect with {because}")


def task_settings(kind: type[Task], texts: Sequence[str], option: str) -> dict[str, Any]:
    """Settings of a task that were given as NAME=VALUE, each of its own type."""
    changed = {n.replace("-", "_"): v for n, v in pairs(texts, option).items()}
    types_of = {f.name: _type(kind, f) for f in settings_of(kind)}
    for name in changed:
        if types_of.get(name) is None:
            raise InputError(
                f"the task '{kind.name}' has no setting '{name}'",
                where=option,
                fix=f"it has {', '.join(types_of)}",
            )
    return {n: _read(types_of[n], v) for n, v in changed.items()}


def _take_settings(values: Common) -> None:
    """What the file of --settings says, where no option says otherwise."""
    if values["settings"] is None:
        return
    kept = read_settings(values["settings"])
    values["delegate"] = values["delegate"] or list(kept.delegates)
    for name, usual in (("threads", 1), ("precision", "f32")):
        values[name] = vars(kept)[name] if values[name] == usual else values[name]


def _evaluate(
    model: Path,
    task: Task,
    values: Common,
    delegates: Sequence[str],
    flags: Values,
    what: str,
    engine: str = "",
) -> Evaluation:
    with progress() as show, _kept(lambda: told):
        told: list[int] = [0, 0]

        def tell(_: str, done: int, total: int) -> None:
            told[:] = done, total
            show(what, done, total)

        return evaluate_task(
            model,
            task,
            engine=engine or values["engine"],
            delegates=delegates,
            threads=values["threads"],
            precision=values["precision"],
            flags=dict(carried(flags)),
            workers=values["workers"],
            decoders=values["decoders"],
            ray=values["ray"],
            limit=values["limit"],
            shards=values["shards"],
            resume=not values["fresh"],
            plugins=values["plugin"],
            shapes=read_shapes(values["shape"]),
            progress=tell,
        )


@contextmanager
def _kept(told: Any) -> Iterator[None]:
    """Ctrl-C loses nothing that was done: say so."""
    try:
        yield
    except KeyboardInterrupt:
        done, total = told()
        say(
            f"{done} of {total} samples are done; whole shards of them are kept, and the same "
            "command goes on from there"
        )
        raise


def _other(
    kind: type[Task],
    settings: dict[str, Any],
    values: Common,
    delegates: Sequence[str],
    flags: Values,
) -> Evaluation | KeptPredictions:
    """The evaluation of --against."""
    path = Path(values["against"])
    if path.suffix.lower() == ".npz":
        return KeptPredictions.read(path)
    read = task_settings(kind, values["against_set"], "--against-set")
    own = {"save_results": None} if "save_results" in settings else {}  # the file is the other's
    task = replace(kind(**settings | own | read), detail=True)
    return _evaluate(path, task, values, delegates, flags, path.name, values["against_engine"])


def _read(hint: Any, text: str) -> Any:
    plain = next((a for a in (*typing.get_args(hint), hint) if a in TYPES), str)
    if plain is bool:
        return text.lower() in ("true", "1")
    try:
        return plain(text)
    except ValueError:
        raise InputError(
            f"'{text}' is not of type {plain.__name__}",
            where="--against-set",
            fix="check the value",
        ) from None


def _content(name: str, found: Evaluation, path: Path) -> bytes:
    import json

    if name == "save_preset":
        preset = found.task.preprocessing()
        if preset is None:
            raise InputError(
                f"the task '{found.task.name}' has no preprocessing to save",
                where="--save-preset",
                fix="leave it out",
            )
        return (json.dumps(preset, indent=2) + "\n").encode()
    if name == "output_file":
        return found.task.tool_file(found.metrics, found.latency())
    if path.suffix.lower() == ".npz":
        return found.predictions_npz()
    return (json.dumps(found.rows_json(), indent=1) + "\n").encode()


# -- saying it ----------------------------------------------------------------------------------


def _print(found: Evaluation, compared: dict[str, Any] | None, against: Path | None) -> None:
    latency = found.latency()
    lines = [f"Num evaluation runs: {len(found.samples) - len(found.failures)}"]
    for title, stage in (("Preprocessing", "preprocess"), ("Inference", "inference")):
        if stage in latency:
            micro = {k: latency[stage][k] * 1e6 for k in ("mean", "std")}
            lines.append(
                f"{title} latency: avg={micro['mean']:g}(us), std_dev={micro['std']:.0f}(us)"
            )
    lines += found.task.lines(found.metrics)
    if compared is not None and against is not None:
        lines += ["", f"against {against.name}:", *found.task.compared_lines(compared)]
    typer.echo("\n".join(lines))
    rows = [
        (n, *(f"{s[k] * 1e3:.3f}" for k in ("mean", "median", "p95"))) for n, s in latency.items()
    ]
    typer.echo("\n" + table(["stage", ">mean ms", ">median", ">p95"], rows))
    typer.echo(f"\n{_speed(found)}")
    if found.setting.delegates and found.ops_by_delegate:
        typer.echo(f"runs on: {runs_on(found.setting.delegates, found.ops_by_delegate)}")
    for sentence in found.idle_delegates:
        typer.echo(f"{sentence}; no figure is of it")


def _speed(found: Evaluation) -> str:
    done = len(found.samples) - found.resumed
    earlier = f", {found.resumed} were done before" if found.resumed else ""
    earlier += f", the first after {found.start:.1f} s" if found.start else ""
    how = ", ".join(f"{k} {v}" for k, v in found.spread.items())
    how += f"; inferring {found.busy:.0%} of the time" if found.busy is not None else ""
    return (
        f"{plural(done, 'sample')} in {found.seconds:.1f} s{earlier}: {found.rate:.1f} a "
        f"second ({how})"
    )


def _tell_failures(found: Evaluation) -> None:
    for note in found.notes:
        warn(note)
    if found.failures:
        warn(
            f"{len(found.failures)} of {plural(len(found.samples), 'sample')} could not be read "
            "and are in no figure:"
        )
        for failure in found.failures[:SHOWN]:
            say(f"  {failure.id}: {failure.why}")
        if len(found.failures) > SHOWN:
            say(f"  and {len(found.failures) - SHOWN} more, see --json")


def _check_idle(record: Mapping[str, Any], wanted: Sequence[str]) -> None:
    """Figures of another delegate than was asked for prove nothing of the one that was."""
    idle = [*record["idle_delegates"], *record.get("against", {}).get("idle_delegates", ())]
    if not wanted or not idle:
        return
    for sentence in dict.fromkeys(idle):
        say(f"sanderling: --require does not hold: {sentence}")
    raise typer.Exit(FAILED)


def _check_failures(found: Evaluation, most: int | None) -> None:
    if most is not None and len(found.failures) > most:
        say(f"sanderling: {len(found.failures)} failures, --max-failures is {most}")
        raise typer.Exit(FAILED)


def _required(texts: Sequence[str]) -> dict[str, float]:
    """Figures that must be reached, by name."""
    try:
        return {name: float(text) for name, text in pairs(texts, "--require").items()}
    except ValueError as error:
        raise InputError(
            f"not a number: {error}", where="--require", fix="write NAME=VALUE, such as top1=0.85"
        ) from None


def _check_known(task: Task, name: str, has_other: bool) -> None:
    """Before the run, as far as the task tells what figures it has."""
    first, dot, _ = name.partition(".")
    if first == "compared":
        if not has_other:
            raise _no_figure(name, "it is of two models: add --against MODEL")
        return
    known = task.known_figures()
    alike = [f for f in known if f.partition(".")[:2] == (first, dot)]
    if known and not alike:
        raise _no_figure(name, f"there are {', '.join(known)}")


def _no_figure(name: str, fix: str) -> InputError:
    return InputError(f"there is no figure '{name}'", where="--require", fix=fix)


def _check(record: dict[str, Any], wanted: Sequence[str]) -> None:
    missed = []
    for name, least in _required(wanted).items():
        value = _figure(record, name)
        if not value >= least:
            missed.append(f"{name} is {value:.6g}, less than {least:g}")
    for text in missed:
        say(f"sanderling: {text}")
    if missed:
        raise typer.Exit(FAILED)


def _figure(record: dict[str, Any], name: str) -> float:
    there = dict(_numbers(record["metrics"]))
    there |= {f"compared.{n}": v for n, v in _numbers(record.get("compared", {}))}
    if name not in there:
        some = list(there)[:LISTED]
        more = f" and {len(there) - LISTED} more" if len(there) > LISTED else ""
        raise _no_figure(name, f"there are {', '.join(some)}{more}")
    return there[name]


def _numbers(metrics: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, float]]:
    """All of them by name, the parts of a name with dots between them."""
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{before}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{before}{name}", float(value)

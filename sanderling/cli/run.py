"""`sanderling run`."""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import numpy as np
import typer

from ..config import MAX_MEMORY
from ..errors import InputError, ModelError
from ..format import load
from ..format.class_labels import labels_of
from ..ir import Array, DType, Model, Shape, Signature, Tensor
from ..runtime.coverage import idle_delegates
from ..runtime.inputs import (
    PICTURES,
    Picture,
    dequantize_array,
    fits_shape,
    is_quantized,
    read_array,
    wrong_shape,
)
from ..runtime.sound import SOUNDS
from . import completion
from .class_names import ClassNames
from .common import (
    DelegateNames,
    FullDelegation,
    JsonPath,
    JsonTarget,
    ModelPath,
    Plugins,
    Quiet,
    SettingsPath,
    load_plugins,
    open_target,
    pairs,
    plural,
    progress,
    read_shapes,
    warn,
    warn_unused,
    write_target,
)
from .finished_run import FinishedRun
from .run_files import Files, batch, several, titles
from .run_text import print_runs

if TYPE_CHECKING:  # a run without pictures does not wait for what reads them
    from ..evaluate.images.preprocess import Pipeline
    from ..runtime.session import Session

SCHEMA = "sanderling.run/1"
Value = TypeVar("Value", str, list[str], Shape)
Item = TypeVar("Item")
EVERYTHING = "*"  # the target that takes all outputs


def run(
    model: ModelPath,
    input: Annotated[
        list[str],
        typer.Option(
            "--input",
            "-i",
            metavar="NAME=FILE",
            help="A .npy, .npz, picture or .wav for an input; NAME= may be left out for the "
            "only one. "
            "Given several times, or a folder, it is one run for each file. Reals are quantised "
            "by the tensor's parameters.",
        ),
    ] = [],  # noqa: B006
    output: Annotated[
        list[str],
        typer.Option(
            "--output",
            "-o",
            metavar="NAME=FILE",
            help="Write an output: .npy, or .npz for all of them. Of several runs it is "
            "stacked along a first dimension.",
        ),
    ] = [],  # noqa: B006
    picture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw what was found onto the picture: boxes, masks, keypoints or the best "
            "classes, "
            "for models whose outputs are understood. A folder, for several pictures. The picture "
            "is then prepared as such models want it.",
        ),
    ] = None,
    random: Annotated[
        int | None,
        typer.Option(
            metavar="SEED", min=0, help="Feed inputs that are not given with random values."
        ),
    ] = None,
    shape: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=1,2,3", help="The shape of a random input, for open dimensions."
        ),
    ] = [],  # noqa: B006
    signature: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="The entry point to run, for a model with several."),
    ] = None,
    delegate: DelegateNames = [],  # noqa: B006
    require_full_delegation: FullDelegation = False,
    threads: Annotated[int | None, typer.Option(metavar="N", help="Threads to use.")] = None,
    settings: SettingsPath = None,
    mean: Annotated[
        str | None,
        typer.Option(
            metavar="M[,M,M]",
            help="For pictures: (pixel - mean) / std. Default: 0..1 for float inputs, the pixels "
            "themselves for integer inputs.",
        ),
    ] = None,
    std: Annotated[str | None, typer.Option(metavar="S[,S,S]", help="See --mean.")] = None,
    preset: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            autocompletion=completion.PRESET,
            help="How pictures become inputs, as in `sanderling eval`. Default: see --mean; with "
            "--picture, what suits the model.",
        ),
    ] = "",
    rate: Annotated[
        int | None,
        typer.Option(
            metavar="HZ",
            min=1,
            help="For sounds: samples a second that the model takes; others are resampled.",
        ),
    ] = None,
    resample: Annotated[
        str | None,
        typer.Option(
            metavar="HOW", help="For pictures: nearest, bilinear (default), bicubic or box."
        ),
    ] = None,
    bgr: Annotated[bool, typer.Option("--bgr", help="For pictures: blue first.")] = False,
    dequantize: Annotated[
        bool, typer.Option("--dequantize", help="Write and print integer outputs as reals.")
    ] = False,
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Class names, one a line: print the best classes of outputs with as many scores.",
        ),
    ] = None,
    label_offset: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="The first name belongs to class N: 1 where the file lacks the model's background "
            "class, -1 where it has one that the model lacks.",
        ),
    ] = None,
    top: Annotated[
        int | None, typer.Option(metavar="K", min=1, help="How many classes. Default: 5.")
    ] = None,
    plugin: Plugins = [],  # noqa: B006
    verbose: Annotated[
        bool,
        typer.Option("--verbose", help="For several files: print all outputs of each, not a line."),
    ] = False,
    quiet: Quiet = False,
    json: JsonPath = "",
) -> None:
    """Run a model on files, once for each, and print, write or draw its outputs."""
    load_plugins(plugin)
    source = load(model)
    session = source.compile(
        delegate, threads, settings=settings, require_full_delegation=require_full_delegation
    )
    entry = session.entry(signature)
    how = Picture(numbers(mean, "--mean"), numbers(std, "--std"), resample or "bilinear", bgr)
    names = _class_names(source, labels, label_offset or 0)
    jobs = batch(_named(entry.inputs, several(input, "--input", list(entry.inputs)), "input"))
    shapes = read_shapes(shape)
    _warn_unused(
        entry,
        jobs,
        {
            "--mean": mean,
            "--std": std,
            "--resample": resample,
            "--bgr": bgr,
            "--top": top,
            "--label-offset": label_offset,
            "--labels": names,
            "--dequantize": dequantize,
            "--random": random is not None,
            "--preset": preset,
            "--picture": picture,
            "--rate": rate,
            "--verbose": verbose,
        },
    )
    changes = {
        "mean": mean or "",
        "std": std or "",
        "resample": resample or "",
        "bgr": bgr or None,
    }
    prepare = _pipeline(preset, changes) if preset and picture is None else None
    eye = gallery = None
    if picture is not None:
        from ..evaluate.tasks.output_readers import ClassNaming
        from .drawn_images import Gallery, ImageDrawer, check_images

        check_images(jobs)
        eye = ImageDrawer(
            entry,
            model,
            ClassNaming(labels, label_offset),
            preset,
            changes,
        )
        gallery = Gallery(picture, titles(jobs))
    targets = _targets(entry, pairs(output, "--output"))
    runs: list[FinishedRun] = []
    with ExitStack() as opened:
        files = {n: opened.enter_context(open_target(path)) for n, path in targets.items()}
        target = opened.enter_context(JsonTarget(json))
        for number, (title, job) in enumerate(
            _told(zip(titles(jobs), jobs, strict=True), len(jobs))
        ):
            feeds, frame = (
                eye.look(job)
                if eye
                else (_feeds(entry, job, how, random, shapes, rate, prepare), None)
            )
            begin, planned = time.perf_counter(), session.compile_seconds
            with _naming_files(entry, job, feeds):
                codes = session.run(feeds, signature=signature)
            seconds, now = time.perf_counter() - begin, session.compile_seconds
            earlier = sum(run.compile_seconds for run in runs)
            made = FinishedRun(title, job, seconds - (now - planned), now - earlier)
            reals = {n: _portable(dequantize_array(a, entry.outputs[n])) for n, a in codes.items()}
            made.outputs = reals if dequantize else {n: _portable(a) for n, a in codes.items()}
            made.top = names.best(reals, top or 5) if names is not None and eye is None else None
            if eye and gallery and frame:
                made.found = eye.read(codes, frame)
                gallery.add(number, next(iter(job.values())), made.found)
            runs.append(made)
            _check_alike(runs, files)
        if gallery:
            gallery.tell()
        idle = _idle(session, delegate, settings, entry, feeds)
        for name, file in files.items():
            write_target(
                file, _npz(_stacked(runs)) if name == EVERYTHING else _npy(_stacked(runs)[name])
            )
        if not target.write(_record(str(model), runs) | {"idle_delegates": idle}):
            print_runs(runs, verbose)
    for sentence in idle:
        warn(f"{sentence}; `sanderling inspect {model} --delegate NAME` says more")


def _idle(
    session: Session,
    delegates: list[str],
    settings: Path | None,
    entry: Signature,
    feeds: Mapping[str, Array],
) -> list[str]:
    """A sentence for each delegate that somebody asked for and that ran nothing of the last run."""
    wanted = delegates or (session.delegates if settings else [])
    if not wanted:
        return []
    by_tensor = {t: feeds[n].shape for n, t in entry.inputs.items()}
    return idle_delegates(session, wanted, entry.graph, [by_tensor[t] for t in entry.graph.inputs])


def _told(items: Iterable[Item], total: int) -> Iterator[Item]:
    """One after the other, and how far it is; one alone is not told about."""
    if total == 1:
        yield from items
        return
    with progress() as show:
        for number, item in enumerate(items):
            show("files", number, total)
            yield item


def _check_alike(runs: Sequence[FinishedRun], files: Mapping[str, object]) -> None:
    """Before more work: what is stacked has one shape."""
    for name, array in runs[-1].outputs.items():
        first = runs[0].outputs[name]
        if array.shape != first.shape and (name in files or EVERYTHING in files):
            raise InputError(
                f"output '{name}' is {list(array.shape)} for {runs[-1].title}, but "
                f"{list(first.shape)} for {runs[0].title}: they cannot be stacked",
                where="--output",
                fix="run these files one by one",
            )


def _stacked(runs: Sequence[FinishedRun]) -> dict[str, Array]:
    """The outputs; of several runs with a dimension more."""
    if len(runs) == 1:
        return runs[0].outputs
    return {name: np.stack([r.outputs[name] for r in runs]) for name in runs[0].outputs}


def _class_names(model: Model, path: Path | None, offset: int) -> ClassNames | None:
    """The names of --labels, or those that the model carries."""
    if path is not None:
        return ClassNames.read(path, offset)
    carried = next(iter(labels_of(model).values()), None)
    return None if carried is None else ClassNames(Path(model.source), carried, offset)


def _warn_unused(entry: Signature, jobs: Sequence[Files], options: dict[str, Any]) -> None:
    files = jobs[0]
    pictures = any(Path(f).suffix.lower() in PICTURES for f in files.values())
    for names, needed, why in (
        ("--preset --mean --std --resample --bgr", pictures, "no input is a picture"),
        ("--verbose", len(jobs) > 1, "one run prints all outputs"),
        (
            "--rate",
            any(Path(f).suffix.lower() in SOUNDS for f in files.values()),
            "no input is a sound",
        ),
        ("--random", len(files) < len(entry.inputs), "every input is given"),
        ("--top --label-offset", options["--labels"], "there are no class names: give --labels"),
        ("--dequantize", any(map(is_quantized, entry.outputs.values())), "no output is quantised"),
    ):
        if not needed:
            warn_unused({name: options[name] for name in names.split()}, why)


def _pipeline(preset: str, changes: Mapping[str, Any]) -> Pipeline:
    """How pictures become inputs by a preset, as in `sanderling eval`."""
    from ..evaluate.images.preprocess import adjusted, load_pipeline

    return adjusted(load_pipeline(preset), **changes)


def _feeds(
    entry: Signature,
    files: dict[str, str],
    picture: Picture,
    seed: int | None,
    shapes: dict[str, Shape],
    rate: int | None = None,
    prepare: Pipeline | None = None,
) -> dict[str, Array]:
    shapes = _named(entry.inputs, shapes, "input")
    unused = [name for name in shapes if name in files or seed is None]
    if unused:
        raise InputError(
            f"--shape is for random inputs, '{unused[0]}' is not one",
            fix="add --random 0, or give a file of that shape",
        )
    feeds: dict[str, Array] = {}
    rng = np.random.default_rng(seed)
    for name, tensor in entry.inputs.items():
        if name in files:
            if prepare and Path(files[name]).suffix.lower() in PICTURES:
                prepare.check(tensor)
                feeds[name] = prepare(Path(files[name]), tensor)[0]
                continue
            feeds[name] = _checked(read_array(files[name], tensor, picture, name, rate), name)
        elif seed is not None:
            feeds[name] = _random(tensor, _shape(shapes.get(name), tensor), rng)
        else:
            raise InputError(
                f"input '{name}' {tensor.type_text} is not given",
                fix=f"add --input {name}=FILE, or --random 0",
            )
    return feeds


@contextmanager
def _naming_files(entry: Signature, files: Files, feeds: Mapping[str, Array]) -> Iterator[None]:
    """Around a run: where the model does not take the shape of a file's array, that file is named.
    Before the run nobody knows: most models take larger batches, some take larger pictures."""
    try:
        yield
    except (InputError, ModelError) as error:
        for name, tensor in entry.inputs.items():
            shape, wanted = feeds[name].shape, tensor.signature or tensor.shape
            if name in files and wanted and not fits_shape(shape, wanted):
                fix = f"give a file that fits {tensor.type_text}; with this one, {error.what}"
                raise wrong_shape(name, files[name], shape, wanted, fix) from error
        raise


def _checked(array: Array, name: str) -> Array:
    if array.dtype.kind == "f" and np.isnan(array).any():
        warn(f"input '{name}' holds {int(np.isnan(array).sum())} NaN of {array.size} values")
    return array


def _named(tensors: dict[str, Tensor], given: dict[str, Value], what: str) -> dict[str, Value]:
    """Options by name: an unnamed one belongs to the only tensor."""
    if "" in given and len(tensors) > 1:
        raise InputError(
            f"the model has {len(tensors)} {what}s, say which one is meant",
            fix=f"write NAME=..., with a name of {', '.join(tensors)}",
        )
    only = next(iter(tensors), "")
    if "" in given and only in given:
        raise InputError(f"{what} '{only}' is given twice", fix="give it once")
    named = {name or only: value for name, value in given.items()}
    for name in named:
        if name not in tensors:
            raise InputError(
                f"there is no {what} '{name}'", fix=f"the {what}s are {', '.join(tensors)}"
            )
    return named


def _random(tensor: Tensor, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    dtype = tensor.dtype
    if dtype is DType.STRING:
        return np.full(shape, b"sanderling", np.object_)
    if dtype.numpy.kind in "iu":
        low, high = (0, 100) if dtype.bits > 8 else dtype.bounds
        return rng.integers(low, high + 1, shape).astype(dtype.numpy)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    return rng.uniform(-1, 1, shape).astype(dtype.numpy)


def _shape(stated: Shape | None, tensor: Tensor) -> Shape:
    if stated is None:
        return tensor.shape
    text = ",".join(map(str, stated))
    if tensor.shape and len(stated) != len(tensor.shape):
        raise InputError(
            f"{text} has {plural(len(stated), 'size')}",
            where="--shape",
            fix=f"the input is {tensor.type_text}: write {len(tensor.shape)} sizes",
        )
    if tensor.dtype.nbytes(stated) > MAX_MEMORY.size():
        raise InputError(
            f"{text} would take {tensor.dtype.nbytes(stated)} bytes",
            where="--shape",
            fix=f"use a smaller shape, or set {MAX_MEMORY.name}",
        )
    return stated


def numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        values = tuple(float(n) for n in text.split(","))
    except ValueError:
        values = ()
    if len(values) not in (1, 3) or (option == "--std" and min(values) <= 0):
        raise InputError(
            f"'{text}' is not one number or three" + (" above 0" if option == "--std" else ""),
            where=option,
            fix=f"for example {option} 127.5 or {option} 123.7,116.3,103.5",
        )
    return values


def _targets(entry: Signature, given: dict[str, str]) -> dict[str, Path]:
    """Where each output goes; a .npz takes them all."""
    given = dict(given)
    targets: dict[str, Path] = {}
    if Path(given.get("", "")).suffix == ".npz":
        targets[EVERYTHING] = Path(given.pop(""))
    named = _named(entry.outputs, given, "output")
    for name, path in named.items():
        if Path(path).suffix != ".npy":
            kind = f"as '{Path(path).suffix}'" if Path(path).suffix else "without a file type"
            raise InputError(
                f"cannot write output '{name}' {kind}",
                where=path,
                fix="end the name in .npy (or .npz for all outputs)",
            )
        targets[name] = Path(path)
    return targets


def _portable(array: Array) -> Array:
    """As other programs can read it: strings as fixed-width bytes, bfloat16 and the like as
    float32."""
    if array.dtype.kind == "O":
        return array.astype(np.bytes_)
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def _npy(array: Array) -> bytes:
    blob = io.BytesIO()
    np.save(blob, array, allow_pickle=False)
    return blob.getvalue()


def _npz(arrays: dict[str, Array]) -> bytes:
    """np.savez takes names as keywords, and so cannot store an output called 'file'."""
    blob = io.BytesIO()
    with zipfile.ZipFile(blob, "w") as archive:
        for name, array in arrays.items():
            archive.writestr(f"{name}.npy", _npy(array))
    return blob.getvalue()


def _record(model: str, runs: Sequence[FinishedRun]) -> dict[str, Any]:
    """One run as it is; several as a list, each with its files."""
    made: dict[str, Any] = {"schema": SCHEMA, "model": model}
    if len(runs) == 1:
        return made | runs[0].to_json()
    return made | {"runs": [{"inputs": r.files} | r.to_json() for r in runs]}

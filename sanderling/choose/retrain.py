"""`sanderling.retrain`: transfer learning on the .tflite itself.

The classifier head is replaced by one for the user's classes. Features of all samples are computed
once, by the compiled model, and kept; the head trains on them in seconds. The last blocks can be
trained as well. What comes out is a .tflite with the class names in it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, SanderlingError
from ..evaluate.paired_statistics import wilson
from ..format import load
from ..ir import Array, DType, Graph, Model, Tensor
from ..ir.graph import copy_graph
from ..measure.machine import machine
from ..optimize.calibration.samples import Samples, read_samples
from ..passes.simplify import remove_dead
from ..runtime.sound import SOUNDS, read_wave, resampled
from .head import Cut, boundaries, feature_model, find_cut, with_head

SCHEMA = "sanderling.retrain/1"
Progress = Callable[[str, int, int], None]
FEWEST = 2  # samples of a class
HELD_OUT = 0.2
KEPT_BYTES = 2 << 30  # of the values that the last blocks are trained on
EPOCHS, RATE = 60, 0.02  # of the head, on features of unit size
BLOCK_EPOCHS, BLOCK_RATE, BLOCK_BATCH = 4, 1e-4, 32
KEPT_START = (
    "training the last blocks made nothing better on samples that were put aside: they are as they "
    "were, and the classifier alone is new"
)
QUIET = 0.1  # of the loudest window of a sound: a window below it is silence, not its class


@dataclass
class Labelled:
    """Samples with their classes. groups: samples of one group (windows of one sound) are on the
    same side when some are held out."""

    samples: Sequence[Mapping[str, Array]]
    labels: Array
    names: list[str]
    groups: Array
    text: str = ""


@dataclass
class Retrained:
    """The new model, and how good it is on samples that it was not trained on."""

    model: Model
    names: list[str]
    trained_on: int
    held_out: int
    right: int
    features: int
    blocks: int
    confusion: list[list[int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def accuracy(self) -> float:
        return self.right / max(self.held_out, 1)

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.right, self.held_out)

    def to_json(self) -> dict[str, Any]:
        low, high = self.interval
        return {
            "schema": SCHEMA,
            "source": self.model.source,
            "classes": self.names,
            "trained_on": self.trained_on,
            "held_out": self.held_out,
            "right": self.right,
            "accuracy": self.accuracy,
            "interval": [low, high],
            "features": self.features,
            "blocks": self.blocks,
            "confusion": self.confusion,
            "notes": self.notes,
            "machine": machine(),
        }


def retrain(
    model: Model | str | os.PathLike[str],
    data: str | os.PathLike[str] | Array | Mapping[str, Array],
    labels: Sequence[Any] | Array | None = None,
    *,
    blocks: int = 0,
    held_out: float = HELD_OUT,
    seed: int = 0,
    rate: int | None = None,
    progress: Progress = lambda what, done, total: None,
    **how: Any,
) -> Retrained:
    """Train a new classifier on a model for the user's classes.

    data: a folder with a folder for each class, of pictures, .wav sounds, or .npy and .npz files
    (a sample a file: an array for each input); or arrays, and then labels: a class for each sample.
    Texts are arrays of token ids. blocks: how many of the last blocks are trained too, with the
    head; 0: the head alone. held_out: the share of samples that judge the result. rate: for sounds,
    samples a second that the model takes. how: the options of `read_samples`, such as
    preset="efficientnet-lite".
    """
    if not 0 < held_out < 1:
        raise InputError(
            f"`held_out` is {held_out}", fix="give a share between 0 and 1, such as 0.2"
        )
    if blocks < 0:
        raise InputError(f"`blocks` is {blocks}", fix="give 0 or more")
    source = model if isinstance(model, Model) else load(model)
    cut = find_cut(source.main)
    given = read_labelled(source, data, labels, rate, how)
    judged = _held_out(given, held_out, seed)
    everything = np.arange(len(given.labels))
    (features,) = _computed(feature_model(source, cut), given, everything, progress, "features")
    rows = features.reshape(len(features), -1)
    weights, bias = _trained_head(rows[~judged], given.labels[~judged], len(given.names), seed)
    about = f"retrained for {len(given.names)} classes"
    made = with_head(source, cut, weights, bias, given.names, about)
    notes = []
    if blocks:
        trained = _with_blocks(made, source, cut, given, judged, blocks, seed, progress)
        notes = [] if trained else [KEPT_START]
        made = trained or made
    return replace(_judged(made, given, judged, cut, blocks, progress), notes=notes)


# -- samples --------------------------------------------------------------------------------------


def read_labelled(
    model: Model, data: Any, labels: Any, rate: int | None, how: Mapping[str, Any]
) -> Labelled:
    """Samples and their classes, from folders or arrays."""
    if isinstance(data, str | os.PathLike) and Path(data).is_dir() and labels is None:
        found = _from_folder(model, Path(data), rate, how)
    else:
        found = _from_arrays(model, data, labels, how)
    counts = np.bincount(found.labels, minlength=len(found.names))
    few = [name for name, n in zip(found.names, counts, strict=True) if n < FEWEST]
    if len(found.names) < 2 or few:
        what = "there is only one class" if not few else f"class '{few[0]}' has fewer than {FEWEST}"
        raise InputError(
            f"{what} samples" if few else what,
            where=found.text,
            fix="give a folder with a folder of samples for each class",
        )
    return found


def _from_folder(model: Model, root: Path, rate: int | None, how: Mapping[str, Any]) -> Labelled:
    names = sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    sounds = sorted(p for p in root.glob("*/*") if p.suffix.lower() in SOUNDS)
    if sounds:
        return _sounds(model, sounds, names, rate, root)
    samples = read_samples(str(root), model, **how)
    if not isinstance(samples, Samples):
        raise InputError("the model has several signatures", fix="give a model with one")
    classes = [Path(samples.paths[i]).relative_to(root).parts[0] for i in samples.chosen]
    stray = next((c for c in classes if c not in names), None)
    if stray is not None:
        raise InputError(
            f"'{stray}' lies beside the folders of classes",
            where=str(root),
            fix="move every sample into the folder of its class",
        )
    used = sorted(set(classes))
    labels = np.array([used.index(c) for c in classes], np.int64)
    return Labelled(samples, labels, used, np.arange(len(labels)), samples.text)


def _sounds(
    model: Model, paths: Sequence[Path], names: list[str], rate: int | None, root: Path
) -> Labelled:
    """Sounds cut into windows of the length that the model takes."""
    tensor = model.main.inputs[0]
    size = int(np.prod(tensor.shape))
    windows: list[Mapping[str, Array]] = []
    labels, groups = [], []
    for number, path in enumerate(paths):
        for window in _windows(path, size, rate):
            windows.append({tensor.name: _as_sound(window, tensor)})
            labels.append(names.index(path.relative_to(root).parts[0]))
            groups.append(number)
    text = f"{len(paths)} sounds in {root}, {len(windows)} windows"
    return Labelled(windows, np.array(labels), names, np.array(groups), text)


def _windows(path: Path, size: int, rate: int | None) -> list[Array]:
    wave = read_wave(path)
    mono = wave.samples.mean(axis=1)
    if rate is not None and rate != wave.rate:
        mono = resampled(mono, wave.rate, rate, str(path))
    if len(mono) < size:
        mono = np.pad(mono, (0, size - len(mono)))
    found = [mono[i : i + size] for i in range(0, len(mono) - size + 1, size)]
    loud = [float(np.sqrt(np.mean(window**2))) for window in found]
    return [w for w, level in zip(found, loud, strict=True) if level >= QUIET * max(loud)]


def _as_sound(window: Array, tensor: Tensor) -> Array:
    if tensor.dtype is DType.INT16:
        window = np.clip(np.rint(window * 32768), -32768, 32767)
    return window.reshape(tensor.shape).astype(tensor.dtype.numpy)


def _from_arrays(model: Model, data: Any, labels: Any, how: Mapping[str, Any]) -> Labelled:
    if labels is None:
        raise InputError(
            "no labels are given",
            fix="give labels, or a folder with a folder of samples for each class",
        )
    plain = os.fspath(data) if isinstance(data, os.PathLike) else data
    samples = read_samples(plain, model, **how)
    if not isinstance(samples, Samples):
        raise InputError("the model has several signatures", fix="give a model with one")
    every = [str(label) for label in labels]
    if len(every) < max(samples.chosen, default=-1) + 1:
        raise InputError(
            f"{len(every)} labels for {len(samples)} samples", fix="give one for each sample"
        )
    names = sorted(set(every), key=lambda n: (not n.isdecimal(), int(n) if n.isdecimal() else 0, n))
    chosen = np.array([names.index(every[i]) for i in samples.chosen], np.int64)
    return Labelled(samples, chosen, names, np.arange(len(chosen)), samples.text)


def _held_out(given: Labelled, share: float, seed: int) -> Array:
    """Which samples judge: of every class the same share, whole groups."""
    rng = np.random.default_rng(seed)
    found = np.zeros(len(given.labels), bool)
    for label in range(len(given.names)):
        groups = rng.permutation(np.unique(given.groups[given.labels == label]))
        count = min(max(1, round(share * len(groups))), len(groups) - 1)
        found |= np.isin(given.groups, groups[:count]) & (given.labels == label)
    if found.all() or not found.any():
        raise InputError(
            "too few samples to hold some out", where=given.text, fix="give more of each class"
        )
    return found


def _computed(
    model: Model, given: Labelled, places: Array, progress: Progress, what: str
) -> list[Array]:
    """The model's outputs for the samples at these places, which are read one by one."""
    session = model.compile()
    names = {t.name: n for n, t in session.entry(None).inputs.items()}
    rows: list[Array] = []
    for number, place in enumerate(places):
        progress(what, number, len(places))
        answers = session.run({names[n]: a for n, a in given.samples[int(place)].items()})
        found = [np.asarray(answer) for answer in answers.values()]
        rows = rows or _room(found, len(places))
        for row, answer in zip(rows, found, strict=True):
            row[number] = answer[0]
    return rows


def _room(answers: Sequence[Array], count: int) -> list[Array]:
    """For so many answers of each kind."""
    size = sum(answer.nbytes for answer in answers)
    if size * count > KEPT_BYTES:
        raise InputError(
            f"{count} samples of {size} bytes are too many to keep",
            fix="train fewer blocks, or give fewer samples",
        )
    return [np.empty((count, *answer.shape[1:]), answer.dtype) for answer in answers]


# -- the head -------------------------------------------------------------------------------------


def _trained_head(rows: Array, labels: Array, classes: int, seed: int) -> tuple[Array, Array]:
    """Weights and bias of a fully connected layer. It is trained on features of unit size, and the
    sizes are put into its weights."""
    from ..training.loop.train import Schedule, train  # PyTorch

    mean, size = rows.mean(axis=0), rows.std(axis=0) + 1e-6 * (1 + np.abs(rows).max())
    head = _head_model(rows.shape[1], classes)
    schedule = Schedule(epochs=EPOCHS, rate=RATE, batch=64, patience=10, seed=seed)
    scaled = ((rows - mean) / size).astype(np.float32)
    with _one_thread():
        found = train(head, scaled, labels=labels, schedule=schedule)
    weights, bias = (found.model.main.ops[0].operand(i).values for i in (1, 2))
    folded = weights / size
    return folded, bias - folded @ mean


@contextmanager
def _one_thread() -> Iterator[None]:
    """A layer is too small for several threads of PyTorch: they would wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _head_model(features: int, classes: int) -> Model:
    graph = Graph("head")
    x = graph.input("features", DType.FLOAT32, (1, features))
    spread = np.random.default_rng(0).normal(0, 0.01, (classes, features)).astype(np.float32)
    weights = graph.constant("weights", spread)
    bias = graph.constant("bias", np.zeros(classes, np.float32))
    logits = graph.tensor("logits", DType.FLOAT32, (1, classes))
    graph.add("FULLY_CONNECTED", [x, weights, bias], [logits])
    scores = graph.tensor("scores", DType.FLOAT32, (1, classes))
    graph.add("SOFTMAX", [logits], [scores], beta=1.0)
    graph.outputs = [scores]
    return Model([graph])


# -- the last blocks ------------------------------------------------------------------------------


def _with_blocks(
    made: Model,
    source: Model,
    cut: Cut,
    given: Labelled,
    judged: Array,
    blocks: int,
    seed: int,
    progress: Progress,
) -> Model | None:
    """The model with its last blocks trained together with the head; None if that made nothing
    better."""
    from ..training.loop.train import Schedule, train  # PyTorch

    found = boundaries(source.main, cut.tensor)
    if len(found) < blocks:
        raise InputError(
            f"{blocks} blocks were asked for, and {len(found)} can be told apart",
            where=source.source,
            fix=f"give {len(found)} or fewer"
            if found
            else "train the head alone (0 blocks): blocks are the float layers between which one "
            "tensor passes, and a quantised model has none",
        )
    front, tail = _split(made, [t.name for t in found[-blocks].tensors])
    what = "values before the last blocks"
    values = _computed(front, given, np.flatnonzero(~judged), progress, what)
    batch = BLOCK_BATCH if _takes_batches(tail, values) else 1
    schedule = Schedule(epochs=BLOCK_EPOCHS, rate=BLOCK_RATE, batch=batch, seed=seed)
    trained = train(tail, values, labels=given.labels[~judged], schedule=schedule)
    if not trained.kept:
        return None
    learnt = {t.name: t.values for t in trained.model.main.constants if t.dtype.is_float}
    result = made.copy()
    for tensor in result.main.constants:
        if tensor.name in learnt and tensor.dtype.is_float:
            tensor.data = learnt[tensor.name].astype(tensor.dtype.numpy)
    return result


def _takes_batches(tail: Model, values: Sequence[Array]) -> bool:
    """Whether two samples together give what they give alone. A graph whose shapes are written for
    one sample, as those of texts often are, is trained sample by sample."""
    import torch

    from ..training.differentiable.twin import Twin

    twin = Twin(tail)
    with torch.no_grad():
        (alone,) = twin(*(rows[1:2] for rows in values))
        try:
            (together,) = twin(*(rows[:2] for rows in values))
        except (RuntimeError, SanderlingError):
            return False
    return len(together) == 2 and torch.allclose(together[1], alone[0], rtol=1e-3, atol=1e-4)


def _split(model: Model, names: Sequence[str]) -> tuple[Model, Model]:
    """What leads to the tensors of these names, and what follows them."""
    graph = model.main
    by_name = {t.name: t for t in graph.tensors}
    tensors = [by_name[name] for name in names]
    front, _ = copy_graph(graph, graph.ops, graph.inputs, tensors)
    remove_dead(front)
    last = max(i for i, op in enumerate(graph.ops) if set(op.outputs) & set(tensors))
    kept = [
        op
        for i, op in enumerate(graph.ops)
        if i > last or all(t is None or t.is_constant for t in op.inputs)
    ]
    tail, _ = copy_graph(graph, kept, tensors, graph.outputs)
    remove_dead(tail)
    return Model([front]), Model([tail])


# -- judging --------------------------------------------------------------------------------------


def _judged(
    made: Model, given: Labelled, judged: Array, cut: Cut, blocks: int, progress: Progress
) -> Retrained:
    """Run the new model, as it will be written, on what was held out."""
    places = np.flatnonzero(judged)
    (answers,) = _computed(made, given, places, progress, "judging")
    scores = answers.reshape(len(places), -1)
    if not np.isfinite(scores).all():
        raise SanderlingError("the new model gives no numbers", fix="look at the samples")
    # Windows of one sound vote together.
    groups, first, of = np.unique(given.groups[places], return_index=True, return_inverse=True)
    sums = np.zeros((len(groups), scores.shape[1]))
    np.add.at(sums, of, scores)
    best, truth = sums.argmax(axis=1), given.labels[places][first]
    confusion = np.zeros((len(given.names),) * 2, int)
    np.add.at(confusion, (truth, best), 1)
    return Retrained(
        made,
        given.names,
        len(np.unique(given.groups[~judged])),
        len(groups),
        int((best == truth).sum()),
        cut.features,
        blocks,
        confusion.tolist(),
    )

"""From a sample to inputs, here or in a process that does nothing else.

Such a process starts quickly, because this module imports little: neither operators nor engines.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb
from typing import Any

import numpy as np

from ...errors import InputError, SanderlingError
from ...ir import Array
from ..task import PortableTask, Ports, Prepared, Sample, Task, TaskFile, run_each

Feeds = Mapping[str, Array] | Sequence[Mapping[str, Array]]


def prepare(task: Task, sample: Sample) -> Prepared | str:
    """The sample's inputs, or why it has none."""
    begin = time.perf_counter()
    try:
        with blame(task, "preprocess", sample):
            made = task.preprocess(sample)
    except TaskError:
        raise
    except (InputError, OSError, ValueError) as error:
        said = error.what if isinstance(error, SanderlingError) else str(error)
        return said or type(error).__name__
    if not isinstance(made, Prepared):
        made = Prepared(made if isinstance(made, Mapping) else {_only(task): made})
    made.seconds = dict(made.seconds) | {"preprocess": time.perf_counter() - begin}
    return made


def _only(task: Task) -> str:
    names = list(task.ports.inputs)
    if len(names) != 1:
        raise TaskError(
            f"task '{task.name}': preprocess gave one array, the model has {len(names)} inputs",
            fix="return arrays by name",
        )
    return names[0]


class TaskError(InputError):
    """The task itself is wrong: no sample is to blame."""


class blame:
    """Unexpected exceptions become a sentence that names method, sample and line."""

    def __init__(self, task: Task, method: str, sample: Sample | None = None) -> None:
        self.task, self.method, self.sample = task, method, sample

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: Any) -> None:
        expected: tuple[type[Exception], ...] = (SanderlingError,)
        if self.method == "preprocess":
            expected += (OSError, ValueError)
        if error is None or isinstance(error, expected) or not isinstance(error, Exception):
            return
        raise TaskError(
            f"{self.method} of task '{self.task.name}' failed"
            + (f" on sample '{self.sample.id}'" if self.sample else "")
            + f": {type(error).__name__}: {error} ({self._place(trace)})",
            fix="check the task's settings, or correct the task"
            if isinstance(error, OSError)
            else "correct the task",
        ) from error

    def _place(self, trace: Any) -> str:
        """The last line in the task's own file; what it called is rarely to blame."""
        frames = extract_tb(trace)
        code = getattr(getattr(type(self.task), self.method), "__code__", None)
        own = [f for f in frames if code is not None and f.filename == code.co_filename]
        last = (own or frames)[-1]
        return f"{Path(last.filename).name}, line {last.lineno}"


# -- preparing in other processes ---------------------------------------------------------------


@dataclass(frozen=True)
class Decoding:
    """All that a process needs to know that prepares samples: not the model, what it takes."""

    recipe: PortableTask
    ports: Ports
    plugins: tuple[TaskFile, ...] = ()

    def __call__(self) -> Preparer:
        return Preparer(self)


class Preparer:
    """Decodes into slots of a file that the parent maps too: pictures are not sent, only said."""

    def __init__(self, work: Decoding) -> None:
        run_each(work.plugins)
        self.task = work.recipe.make()
        self.task.open(work.ports)
        self.slots: Slots | None = None

    def __call__(self, job: tuple[Sample, str, int, int]) -> Prepared | str:
        sample, path, size, slot = job
        made = prepare(self.task, sample)
        if isinstance(made, Prepared) and path:
            self.slots = self.slots or Slots(Path(path), size)
            made.feeds = self.slots.put(slot, made.feeds)
        return made


class Slots:
    """A file of equal slots. An array that was put is (offset, shape, type); one that does not fit
    goes as it is."""

    def __init__(self, path: Path, size: int, count: int = 0) -> None:
        self.path, self.size = path, size
        if count:
            path.write_bytes(b"")
        with path.open("r+b") as file:
            if count:
                file.truncate(max(size * count, 1))
            self.memory = mmap.mmap(file.fileno(), 0)

    def put(self, slot: int, feeds: Feeds) -> Any:
        if not isinstance(feeds, Mapping):
            return [self.put(slot, feeds[0]), *feeds[1:]]
        placed: dict[str, Any] = {}
        at, end = slot * self.size, (slot + 1) * self.size
        for name, value in feeds.items():
            array = np.asarray(value)
            if at + array.nbytes > end or array.dtype.hasobject:
                placed[name] = array
                continue
            place = np.frombuffer(self.memory, array.dtype, array.size, at).reshape(array.shape)
            place[...] = array
            placed[name] = (at, array.shape, array.dtype)
            at += _aligned(array.nbytes)
        return placed

    def take(self, placed: Any) -> Feeds:
        """The arrays, in place: valid until the slot is used again."""
        if isinstance(placed, list):
            return [self._taken(p) for p in placed]
        return self._taken(placed)

    def _taken(self, placed: Mapping[str, Any]) -> dict[str, Array]:
        return {n: self._view(*v) if isinstance(v, tuple) else v for n, v in placed.items()}

    def _view(self, at: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(self.memory, dtype, count, at).reshape(shape)


def _aligned(count: int) -> int:
    return -(-count // 64) * 64


def slot_size(ports: Ports) -> int:
    """Bytes for the inputs as the file has them, each at a 64-byte boundary; 0: use no slots."""
    tensors = ports.inputs.values()
    if not all(t.dtype.is_fixed_size for t in tensors):
        return 0
    return sum(_aligned(t.dtype.nbytes(t.shape)) for t in tensors)

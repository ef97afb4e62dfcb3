"""Checkpoints: the state of a run in a file, written whole or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...errors import InputError
from ...format import dump, write_atomic
from ...ir import Array, Model
from ...optimize.judging.report import Trial
from ..constraint import Constraint, Rows

VERSION = 2
SEEN = 4  # samples that tell one set of data from another


def identity(
    model: Model,
    rows: Sequence[Rows],
    labels: Array | None,
    constraints: Sequence[Constraint],
    settings: dict[str, Any],
) -> str:
    """What a run is known by: another model, data, constraints or settings make another run."""
    parts = hashlib.sha256(bytes(dump(model)))
    for given in rows:
        count = len(given)
        some = np.unique(np.linspace(0, count - 1, SEEN).astype(np.int64))
        parts.update(f"{count}".encode() + np.ascontiguousarray(given[some]).tobytes())
    if labels is not None:
        parts.update(np.ascontiguousarray(labels).tobytes())
    parts.update("".join(repr(c) for c in constraints).encode())
    parts.update(json.dumps(settings, sort_keys=True, default=str).encode())
    return parts.hexdigest()


def write(path: Path, content: dict[str, Any], run: str) -> None:
    """Replace the checkpoint."""
    stream = io.BytesIO()
    torch.save({"version": VERSION, "run": run, **content}, stream)
    write_atomic(path, stream.getbuffer())


def read(path: Path, run: str) -> dict[str, Any] | None:
    """The content of this run's checkpoint; None if there is no file."""
    if not path.exists():
        return None
    try:
        found = torch.load(path, weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise _refused("it is no checkpoint, or a broken one", path) from error
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise _refused("it is no checkpoint of this version", path)
    if found["run"] != run:
        raise InputError(
            "the checkpoint is of a run with other settings, another model or other data",
            where=str(path),
            fix="remove it, or give what it was made with",
        )
    return found


def _refused(what: str, path: Path) -> InputError:
    return InputError(what, where=str(path), fix="remove it to begin anew, or name another file")


def of_trial(path: str | Path | None, name: str) -> Path | None:
    """The checkpoint of one of several runs: a file beside the one that was named."""
    if path is None:
        return None
    home = Path(path)
    return home.with_name(f"{home.stem}-{name}{home.suffix}")


@dataclass
class Journal:
    """The trials of a search, so that one that was interrupted goes on behind those it has done."""

    path: Path | None = None
    run: str = ""
    trials: dict[str, Trial] = field(default_factory=dict)

    @staticmethod
    def of(path: str | Path | None, run: str) -> Journal:
        """What the file has of this search; run: what the search is known by."""
        if path is None:
            return Journal()
        content = read(Path(path), run)
        kept = {} if content is None else {t["name"]: Trial(**t) for t in content["trials"]}
        return Journal(Path(path), run, kept)

    def trial(self, name: str, judged: Callable[[], Trial]) -> Trial:
        """The trial of this name: as it was, or judged now and kept."""
        if name not in self.trials:
            self.trials[name] = judged()
            if self.path is not None:
                write(self.path, {"trials": [asdict(t) for t in self.trials.values()]}, self.run)
        return replace(self.trials[name])


def copied(value: Any) -> Any:
    """A copy with tensors of its own."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: copied(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(copied(v) for v in value)
    return value

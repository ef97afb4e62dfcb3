"""A file of settings: what `sanderling tune` found out, for whoever runs the model."""

from __future__ import annotations

import os
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import read_data

SCHEMA = "sanderling.settings/1"
MOST_THREADS, MOST_BATCH = 1024, 1 << 16


@dataclass(frozen=True)
class KeptSettings:
    """How a model is to be run. batch: samples in an inference, for whoever feeds it. found: which
    model, on which machine and by which figures, for people."""

    delegates: tuple[str, ...] = ()
    threads: int = 1
    precision: str = "f32"
    batch: int = 1
    found: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA} | asdict(self)

    def warn_of_another(self, model: str) -> None:
        """Tell if the settings were found for another model: its answers were not compared."""
        tuned = self.found.get("model")
        if isinstance(tuned, str) and tuned and model and tuned != Path(model).name:
            warnings.warn(
                f"the settings were found for '{tuned}', not for '{Path(model).name}': tune again",
                stacklevel=3,
            )

    @property
    def options(self) -> dict[str, Any]:
        """The options of a session, beside its delegates and threads."""
        return {} if self.precision == "f32" else {"precision": self.precision}


def read_settings(path: str | os.PathLike[str]) -> KeptSettings:
    """The settings in a file; InputError if it holds none."""
    fix = "write them with: sanderling tune MODEL -o FILE"
    record = read_data(path, "the settings", fix)
    try:
        if not isinstance(record, dict):
            raise ValueError(f"it is a {type(record).__name__}, not an object")
        if record["schema"] != SCHEMA:
            raise ValueError(f"its schema is {record['schema']!r}, not {SCHEMA!r}")
        return _checked(record)
    except (ValueError, KeyError, TypeError) as error:
        what = f"it does not hold settings: {_why(error)}"
        raise InputError(what, where=os.fspath(path), fix=fix) from error


def _why(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def _checked(record: dict[str, Any]) -> KeptSettings:
    delegates = record["delegates"]
    if not isinstance(delegates, list) or not all(isinstance(d, str) for d in delegates):
        raise ValueError("'delegates' is not a list of names")
    for name, most in (("threads", MOST_THREADS), ("batch", MOST_BATCH)):
        if type(record[name]) is not int or not 1 <= record[name] <= most:
            raise ValueError(f"'{name}' is {record[name]!r}, not a whole number from 1 to {most}")
    if not isinstance(record["precision"], str):
        raise ValueError("'precision' is not a name")
    found = record.get("found")
    return KeptSettings(
        tuple(delegates),
        record["threads"],
        record["precision"],
        record["batch"],
        found if isinstance(found, dict) else {},
    )

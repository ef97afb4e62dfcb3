"""What a session was made with: all that its plans depend on, the model apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .delegate import Delegate
from .partition import Limits


@dataclass(frozen=True)
class Settings:
    """delegates in order of preference; require_full: the first has to take every op; extra: the
    session's options by name, which delegates understand."""

    delegates: Sequence[Delegate]
    limits: Limits = field(default_factory=Limits)
    threads: int = 1
    require_full: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

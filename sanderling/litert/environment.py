"""What several compiled models share. In LiteRT it holds libraries of accelerators; here delegates
are found by name, and an environment is only a value that code may make, share and close."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import InputError

PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True)
class EnvironmentOptions:
    """Folders of LiteRT's libraries. They have no effect here."""

    runtime_path: str | None = None
    compiler_plugin_path: str = ""
    dispatch_library_path: str = ""


class Environment:
    """Made by Environment.create(); models that use it keep it."""

    def __init__(self, options: EnvironmentOptions) -> None:
        self._options, self._is_open = options, True

    def __enter__(self) -> Environment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """No more models can be made with it. Those that were made go on."""
        self._is_open = False

    @classmethod
    def create(
        cls,
        *,
        options: EnvironmentOptions | str | None = None,
        runtime_path: str | None = None,
        compiler_plugin_path: str = "",
        dispatch_library_path: str = "",
    ) -> Environment:
        """An environment, from options or from folders. A text as `options` is the runtime's."""
        if isinstance(options, str):
            if runtime_path is not None:
                raise InputError("runtime_path was provided twice.", fix="give it once")
            runtime_path, options = options, None
        folders = EnvironmentOptions(runtime_path, compiler_plugin_path, dispatch_library_path)
        if options is not None and folders != EnvironmentOptions():
            raise InputError("Pass either options or environment path shortcuts.", fix="give one")
        chosen = options or folders
        return cls(replace(chosen, runtime_path=chosen.runtime_path or os.fspath(PACKAGE)))

    @property
    def options(self) -> EnvironmentOptions:
        """The options that it was made with."""
        return self._options

    @property
    def capsule(self) -> Any:
        """In LiteRT a pointer; here the environment itself, if it is open."""
        if not self._is_open:
            raise InputError("Environment is no longer valid", fix="make another one")
        return self

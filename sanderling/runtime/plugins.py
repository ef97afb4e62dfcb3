"""The user's own files, run first: they register custom operators and delegates."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from traceback import extract_tb
from types import ModuleType

from ..errors import InputError, SanderlingError

_NAME = "sanderling_plugin_"  # of the modules that they become, with a number


def load_plugins(paths: Iterable[str | Path]) -> None:
    """Run the user's files, which register custom operators and delegates."""
    for number, path in enumerate(map(Path, paths)):
        if not path.is_file():
            raise InputError(
                "it is a folder or a pipe, not a file"
                if path.exists()
                else "there is no such file",
                where=f"--plugin {path}",
                fix="give a Python file that calls sanderling.register_custom",
            )
        loader = SourceFileLoader(f"{_NAME}{number}", str(path))
        module = ModuleType(loader.name)
        module.__file__ = str(path)
        sys.modules[loader.name] = module
        try:
            loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[loader.name]
            said = error.what if isinstance(error, SanderlingError) else error
            raise InputError(
                f"it cannot be run: {type(error).__name__}: {said}{_line_of(error, path)}",
                where=f"--plugin {path}",
                fix=f"correct it; to see more, run: python {path}",
            ) from error


def loaded_plugins() -> list[str]:
    """The files that were run in this process, for another one to run them too."""
    found = [module for name, module in sys.modules.items() if name.startswith(_NAME)]
    return [str(module.__file__) for module in found]


def _line_of(error: BaseException, path: Path) -> str:
    """The last line of the file that the error went through."""
    places = [f.lineno for f in extract_tb(error.__traceback__) if f.filename == str(path)]
    return f" (line {places[-1]})" if places else ""

"""Models saved for Core ML: `.mlpackage`, on any system."""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import InputError, UnsupportedError
from ...format import load
from ...ir import Graph, Model, Shape, Tensor
from ...passes.simplify import fold_constants
from ...runtime.specialise import specialise
from ..extras import require_extra
from .operators import refusal
from .program import ProgramOptions, as_program, converted

SUFFIX = ".mlpackage"
MANIFEST = "Manifest.json"  # every package has it
MOST_REASONS = 5


@dataclass(frozen=True)
class Package:
    """What was saved: inputs and outputs with their types, by Core ML's names for them; ops of the
    ML program with their numbers."""

    path: Path
    precision: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    ops: dict[str, int]


def export(
    model: Model | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    precision: str = "float32",
    shapes: Mapping[str, Shape] | None = None,
) -> Package:
    """Save a model's main graph as an ML program for Core ML: a `.mlpackage`.

    model: one that is loaded, or its file. precision: float32 or float16. shapes: of inputs, by
    their tensors' names, where they are not the file's. Which units compute is said where the
    package is loaded. Raises UnsupportedError that names the ops that Core ML does not get.
    """
    require_extra("coremltools", "coreml", "coreml")
    target, options = _checked(Path(path)), ProgramOptions(precision)
    source = model if isinstance(model, Model) else load(model)
    graph = _known_graph(source, shapes or {})
    inputs, outputs = (_identifiers(names) for names in _names(source))
    outputs = [f"{name}_result" if name in inputs else name for name in outputs]
    made = converted(as_program(graph, inputs, outputs), options)
    _save(made, target)
    return Package(
        target, precision, _types(inputs, graph.inputs), _types(outputs, graph.outputs), _ops(made)
    )


def _save(made: Any, target: Path) -> None:
    """The whole package or nothing: it is written beside its place, and then put there."""
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".sanderling-") as folder:
            whole, old = Path(folder) / target.name, Path(folder) / "old"
            made.save(str(whole))
            if target.exists():
                target.rename(old)
            whole.rename(target)
    except OSError as error:  # shutil.Error is one: its text is a list of every file
        raise InputError(
            f"cannot write: {error.strerror or 'not all of its files could be copied'}",
            where=os.fspath(target),
            fix="check the folder, its permissions and the free space",
        ) from error


def _checked(target: Path) -> Path:
    if target.suffix != SUFFIX:
        raise InputError(
            f"'{target}' does not end in {SUFFIX}", fix=f"name it {target.stem}{SUFFIX}"
        )
    if not target.absolute().parent.is_dir() or target.is_file():
        what = "it is a file" if target.is_file() else f"there is no folder '{target.parent}'"
        raise InputError(f"cannot write: {what}", where=str(target), fix="check the path")
    if target.is_dir() and any(target.iterdir()) and not (target / MANIFEST).is_file():
        raise InputError(
            f"the folder has files, but it is no package of Core ML: it has no {MANIFEST}",
            where=str(target),
            fix="move it away, or name another package: what is there would be deleted",
        )
    return target


def _types(names: Iterable[str], tensors: Iterable[Tensor]) -> dict[str, str]:
    return {name: t.type_text for name, t in zip(names, tensors, strict=True)}


def _ops(made: Any) -> dict[str, int]:
    """How often the ML program has each of MIL's ops, constants apart."""
    (block,) = made.get_spec().mlProgram.functions["main"].block_specializations.values()
    return dict(Counter(op.type for op in block.operations if op.type != "const"))


def _known_graph(model: Model, shapes: Mapping[str, Shape]) -> Graph:
    """The main graph at these shapes, weights that are stored narrow or sparse as plain ones; all
    of it ops that Core ML gets."""
    main = model.main
    strange = sorted(set(shapes) - {t.name for t in main.inputs})
    if strange:
        known = ", ".join(t.name for t in main.inputs)
        raise InputError(f"there is no input '{strange[0]}'", fix=f"the inputs are {known}")
    graph, _ = specialise(main, [tuple(shapes.get(t.name, t.shape)) for t in main.inputs])
    fold_constants(graph)
    reasons = {op: reason for op in graph.ops if (reason := refusal(op)) is not None}
    if reasons:
        told = [f"{op.where}: {reason}" for op, reason in list(reasons.items())[:MOST_REASONS]]
        raise UnsupportedError(
            f"Core ML does not get {len(reasons)} of its {len(graph.ops)} ops: {'; '.join(told)}",
            where=f"graph '{graph.name}'",
            fix="sanderling inspect MODEL --delegate coreml lists all reasons",
        )
    return graph


def _names(model: Model) -> tuple[list[str], list[str]]:
    """The names of inputs and outputs: the signature's, where the main graph has one, else the
    tensors'."""
    graph = model.main
    signature = next((s for s in model.signatures if s.graph is graph), None)
    if signature is None:
        return [t.name for t in graph.inputs], [t.name for t in graph.outputs]
    return _called(graph.inputs, signature.inputs), _called(graph.outputs, signature.outputs)


def _called(tensors: Iterable[Tensor], names: Mapping[str, Tensor]) -> list[str]:
    known = {tensor: name for name, tensor in names.items()}
    return [known.get(t, t.name) for t in tensors]


def _identifiers(names: Iterable[str]) -> list[str]:
    """Core ML's names are letters, digits and underscores, and differ."""
    found: list[str] = []
    for name in names:
        plain = re.sub(r"\W", "_", name, flags=re.ASCII)
        plain = plain if re.match("[A-Za-z_]", plain) else f"_{plain}"
        count = sum(other == plain or other.startswith(f"{plain}_again") for other in found)
        found.append(f"{plain}_again{count}" if count else plain)
    return found

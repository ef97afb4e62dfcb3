"""The text files of a library: header, example, CMake, Python module."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ..errors import InputError
from ..ir import Tensor
from ..version import __version__
from .planned_parts import Version
from .runtime_ir import FOLDER

# File by file: the template, and what the result is called.
TEMPLATES = {
    "model.h.in": "{}.h",
    "example.c.in": "{}_example.c",
    "CMakeLists.txt.in": "CMakeLists.txt",
    "module.py.in": "{}.py",
}
# What C has taken already, and the prefixes of the runtime.
_TAKEN = re.compile(
    "auto|break|case|char|const|continue|default|do|double|else|enum|extern|float|for|goto|if|"
    "inline|int|long|register|restrict|return|short|signed|sizeof|static|struct|switch|typedef|"
    "union|unsigned|void|volatile|while|sanderling|sr"
)
MOST_NAME = 64


def identifier(text: str) -> str:
    """A name for C made of a file's."""
    found = re.sub(r"[^0-9a-zA-Z]+", "_", text).strip("_").lower() or "model"
    found = f"model_{found}" if found[0].isdigit() or _TAKEN.fullmatch(found) else found
    return found[:MOST_NAME].rstrip("_")


def checked_name(name: str, where: str = "--name") -> str:
    """The user's own name, if C takes it. where: the option that has it."""
    if (
        not re.fullmatch(r"[A-Za-z][0-9A-Za-z_]*", name)
        or _TAKEN.fullmatch(name)
        or len(name) > MOST_NAME
    ):
        raise InputError(
            f"'{name}' is not a name in C",
            where=where,
            fix=f"letters, digits and _, a letter first, {MOST_NAME} at most",
        )
    return name


def texts(
    name: str,
    file: str,
    versions: Sequence[Version],
    input_names: Sequence[str],
    output_names: Sequence[str],
) -> dict[str, str]:
    """Contents by file name."""
    first = versions[0]
    upper = name.upper()
    borders = (("input", input_names, first.inputs), ("output", output_names, first.outputs))
    values = {
        "NAME": name,
        "UPPER": upper,
        "GUARD": f"{upper}_H",
        "VERSION": __version__,
        "FILE": _text(file),
        "ABOUT": "\n".join(line for border in borders for line in _about(*border)),
        "TYPES": (FOLDER / "types.h").read_text(),
        "INPUTS": str(len(first.inputs)),
        "OUTPUTS": str(len(first.outputs)),
        "SIZES": "\n".join(
            f"#define {upper}_{kind.upper()}_{i}_BYTES {t.nbytes}"
            for kind, _, tensors in borders
            for i, t in enumerate(tensors)
        ),
        "VERSIONS": ", ".join(v.target.name for v in versions),
    }
    return {
        target.format(name): filled((FOLDER / source).read_text(), values)
        for source, target in TEMPLATES.items()
    }


def _about(kind: str, names: Sequence[str], tensors: Sequence[Tensor]) -> Iterator[str]:
    for index, (name, tensor) in enumerate(zip(names, tensors, strict=True)):
        yield f"   {kind} {index} {_text(name)}: {_kind(tensor)}"


def filled(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"@([A-Z]+)@", lambda found: values[found[1]], text)


def _text(text: str) -> str:
    """Within a comment of C, on one line."""
    shown = "".join(c if c.isprintable() and c != "\\" else "?" for c in text)
    return shown.replace("*/", "*_/").replace("/*", "/_*").replace("@", "(at)")


def _kind(tensor: Tensor) -> str:
    quant = tensor.quant
    if quant is None or quant.scale.size != 1:
        return tensor.type_text
    zero = int(quant.zero_point.reshape(-1)[0]) if quant.zero_point.size else 0
    return f"{tensor.type_text}, {quant.scale.item():.6g} * (code - {zero})"

"""Pictures to inputs in one pass: TensorFlow Lite's bilinear, colours' order, normalisation, type.

The same numbers bit for bit as the definition in NumPy (evaluate/images/pixels.py): products and
sums are rounded one by one, in its order, and nothing is fused. No graph is compiled: sizes are
arguments, so that one small piece of code serves pictures of all sizes. A model's RESIZE_BILINEAR
knows its sizes and may fuse, see resize.py.
"""

from __future__ import annotations

import base64
import ctypes
import os
from collections.abc import Callable
from functools import cache
from threading import Lock
from typing import Any

from .....errors import DelegateError
from .....store import Store
from ...isa.targets import Target, host_target, problem
from ...runtime.image import Image, Loaded, link
from .image_input_kinds import ARGUMENTS, KINDS, Kind

_CALL = ctypes.CFUNCTYPE(
    None, *(ctypes.c_void_p if a == "p" else ctypes.c_int64 for a in ARGUMENTS)
)
Function = Callable[..., None]


def function(kind: Kind) -> Function | None:
    """None where this machine runs none of our code."""
    with _ONE:  # compiles, the others wait
        return _code().get(kind.name)


_ONE = Lock()


def _renew_lock() -> None:
    """A thread that held it may not be there in a forked child."""
    global _ONE
    _ONE = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


@cache
def _code() -> dict[str, Function]:
    if problem() is not None:
        return {}
    try:
        loaded = Loaded(_image(host_target()))
    except (DelegateError, ImportError):  # the system forbids generated code; there is no LLVM
        return {}
    _LIVING.append(loaded)
    return {name: _CALL(loaded.entry(name)) for name in loaded.image.entries}


_LIVING: list[Loaded] = []  # code is not taken away from those who have its address


def _kept(row: dict[str, Any]) -> Image:
    code, entries = base64.b64decode(row["code"]), dict(row["entries"])
    if not all(isinstance(at, int) and 0 <= at < len(code) for at in entries.values()):
        raise ValueError("its functions lie outside of its code")
    return Image(code, entries)


def _image(target: Target) -> Image:
    """From the store, or made and kept there."""
    store = Store()
    name = f"{store.name('pictures', target.name, target.features)}.pictures"
    kept = store.recall(name, _kept)
    if kept is not None:
        return kept
    made = compiled(target)
    store.record(name, {"code": base64.b64encode(made.code).decode(), "entries": made.entries})
    return made


def compiled(target: Target) -> Image:
    from ...codegen.jit import compile_object
    from .image_input_code import written

    image = link(compile_object(written(target), target))
    names = [kind.name for kind in KINDS]
    return Image(image.code, {n: at for n, at in image.entries.items() if n in names})

"""Compiled code as a builtin function of Python: no ctypes between a caller and the code.

A call through ctypes takes as long as a small model. Each image therefore has an entry `call` of
the form that CPython gives to its own builtins (METH_FASTCALL); pycall_code.py writes it. All that
it has to know of this process stands in a Record, which is the builtin's `self`, so that the code
itself knows no address and no version of Python.

It reads three things where they lie in memory: a ctypes structure's pointer to its data, an
object's type, and a NumPy array's pointer to its elements. `fits` looks whether they lie there; if
not (a Python without a GIL, another Python), runs go through ctypes.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from .abi import OBJECT_DATA, OBJECT_TYPE, RECORD

_FASTCALL = 0x80  # METH_FASTCALL: function(self, arguments, their number)


class Record(ctypes.Structure):
    """What the entry `call` works with: see RECORD in abi.py."""

    _fields_ = [(name, ctypes.c_int64) for name in RECORD]


class _Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


@cache
def fits() -> bool:
    """Whether objects lie in memory as the code expects."""
    if sys.implementation.name != "cpython" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    record, array = Record(), np.zeros(1)
    return (
        _word(record, OBJECT_DATA) == ctypes.addressof(record)
        and _word(array, OBJECT_DATA) == array.ctypes.data
        and _word(array, OBJECT_TYPE) == id(np.ndarray)
    )


def _word(thing: object, slot: int) -> int | None:
    return ctypes.c_void_p.from_address(id(thing) + 8 * slot).value


@cache
def _python() -> dict[str, int]:
    """Addresses of what the code calls and returns."""
    api = ctypes.pythonapi
    functions = {
        "save": api.PyEval_SaveThread,
        "restore": api.PyEval_RestoreThread,
        "keep": api.Py_IncRef,
        "ask": api.PyObject_VectorcallDict,
    }
    found = {name: ctypes.cast(f, ctypes.c_void_p).value or 0 for name, f in functions.items()}
    return found | {"none": id(None), "array": id(np.ndarray)}


@cache
def _maker() -> Callable[[Any, Record, None], Callable[..., None]]:
    kind = ctypes.PYFUNCTYPE(
        ctypes.py_object, ctypes.POINTER(_Method), ctypes.py_object, ctypes.c_void_p
    )
    return kind(("PyCFunction_NewEx", ctypes.pythonapi))


def builtin(
    entry: int, attend: Callable[..., None], keeps_gil: bool, workers: int, context: int, args: int
) -> tuple[Callable[..., None], Record]:
    """A function of the arrays, and its record.

    attend(*arrays) is called instead where the code cannot go on by itself: the record is not
    `ready`, an argument is no plain array, or the run has noted a fault. What it raises is raised.
    keeps_gil: for a run that takes no longer than handing the GIL on would.
    """
    record = Record(workers=workers, context=context, args=args, attend=id(attend), **_python())
    if keeps_gil:
        record.save = 0
    method = _Method(b"run", entry, _FASTCALL, None)
    # CPython keeps a builtin's `self`, and that keeps the rest.
    record.kept = method, attend
    return _maker()(ctypes.byref(method), record, None), record

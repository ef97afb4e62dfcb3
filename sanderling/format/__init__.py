"""Bytes <-> Model."""

from .load import load
from .save import AtomicFile, dump, save, write_atomic

__all__ = ["AtomicFile", "dump", "load", "save", "write_atomic"]

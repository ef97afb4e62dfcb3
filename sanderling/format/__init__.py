"""Bytes <-> Model."""

from .load import load
from .save import dump, save, write_atomic

__all__ = ["dump", "load", "save", "write_atomic"]

"""Bytes <-> Model."""

from .tflite import dump, load, save, write_atomic

__all__ = ["dump", "load", "save", "write_atomic"]

"""Figures about a model and its runs."""

from .inspection import inspect

__all__ = ["inspect"]

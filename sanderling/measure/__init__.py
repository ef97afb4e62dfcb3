"""Figures about a model and its runs."""

from .inspect import inspect

__all__ = ["inspect"]

"""Moved to runtime/inputs.py."""

from ..runtime.inputs import *  # noqa: F403

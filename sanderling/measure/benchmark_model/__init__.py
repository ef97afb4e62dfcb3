"""TensorFlow Lite's `benchmark_model` on our runtime: its flags, its loop, its lines, its files."""

from .tool import benchmark_model

__all__ = ["benchmark_model"]

"""Constraints that weights are trained under: zeros, few values, codes."""

"""Operators of this family."""

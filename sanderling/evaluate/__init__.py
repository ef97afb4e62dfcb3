"""Feeding models with real data."""

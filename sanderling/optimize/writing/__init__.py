"""Codes in the graph: solved, written, and given the interface that was asked for."""

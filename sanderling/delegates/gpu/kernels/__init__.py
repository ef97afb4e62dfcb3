"""Kernel families: each module has a table KERNELS of rows (row.py)."""

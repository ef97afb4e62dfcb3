"""Interfaces to devices: memory, programs, launches, times."""

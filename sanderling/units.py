"""Numbers with their units, for people."""

from __future__ import annotations

MIB = 1 << 20  # bytes


def byte_size(count: float | None) -> str:
    """1234567 bytes are 1.177 MiB."""
    if count is None:
        return "-"
    amount = float(count)
    for name in ("B", "KiB", "MiB"):
        if abs(amount) < 1024:
            return f"{amount:.4g} {name}"
        amount /= 1024
    return f"{amount:.4g} GiB"


def si(number: float) -> str:
    """1234567 is 1.23 M."""
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number:g}"

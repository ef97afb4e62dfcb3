"""All rewrites of single ops, in the order in which they are tried."""

from __future__ import annotations

from . import arithmetic, control, pieces, products, ranks, views

REWRITES = (
    *views.REWRITES,
    *pieces.REWRITES,
    *products.REWRITES,
    *arithmetic.REWRITES,
    *ranks.REWRITES,
    *control.REWRITES,
)

"""Forked children. Only the thread that forked goes on there, so a lock that another one holds is
never released. Whoever has a lock names itself here, and gives itself a new one in the child.

The lock is replaced and not opened: the thread that forked may hold it itself, and releases the old
one when it leaves.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Owner(Protocol):
    """Something with a lock."""

    def renew_lock(self) -> None:
        """This is a forked child: take a new lock."""


_owners: WeakSet[Owner] = WeakSet()
renews = _owners.add


def _renew() -> None:
    for owner in list(_owners):
        owner.renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)

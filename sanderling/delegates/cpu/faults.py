"""What compiled code notes instead of doing it, as an error. Needs no LLVM.

A step that meets such a thing writes the number of a site into the context (abi.py), does something
harmless and goes on; the caller raises once the run is over.
"""

from __future__ import annotations

from collections.abc import Callable

from ...errors import SanderlingError, out_of_range

# kind: a row of ERRORS; op: where it is in the graph; what: what kind of index it is.
Site = dict[str, str]


def _index(site: Site, value: int, limit: int) -> SanderlingError:
    return out_of_range(site["what"], value, limit, where=site["op"])


ERRORS: dict[str, Callable[[Site, int, int], SanderlingError]] = {"index": _index}


def error_of(site: Site, value: int, limit: int) -> SanderlingError:
    return ERRORS[site["kind"]](site, value, limit)

"""What compiled code notes instead of doing it, as an error. Needs no LLVM.

A step that meets such a thing writes the number of a site into the context (abi.py), does something
harmless and goes on; the caller raises once the run is over.
"""

from __future__ import annotations

from collections.abc import Callable

from ....errors import DelegateError, SanderlingError, out_of_range
from .image import REPORT

# kind: a row of ERRORS; step: its name; op: where it is in the graph; what: what kind of index it
# is, or the memory that an access has left.
Site = dict[str, str]


def _index(site: Site, value: int, limit: int) -> SanderlingError:
    return out_of_range(site["what"], value, limit, where=site["op"])


def _access(site: Site, offset: int, size: int) -> SanderlingError:
    """The error of an access that the checked build stopped (codegen/extents.py)."""
    said = f"{site['step']} {site['kind']}s {size} bytes at {offset} of {site['what']}"
    return DelegateError(said, where=site["op"], fix=REPORT)


ERRORS: dict[str, Callable[[Site, int, int], SanderlingError]] = {
    "index": _index,
    "read": _access,
    "write": _access,
}


def error_of(site: Site, value: int, limit: int) -> SanderlingError:
    return ERRORS[site["kind"]](site, value, limit)

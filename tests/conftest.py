"""What every test may rely on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

# pytest-xdist tells its workers how wide the terminal is; tables are to be whole unless a test says
# otherwise.
os.environ.pop("COLUMNS", None)


@pytest.fixture
def wrong() -> Iterator[Callable[..., None]]:
    """Register a delegate that computes the ops with these outputs wrongly."""
    import sanderling

    from .twins import Wrong

    yield lambda *names: sanderling.register_delegate("wrong", lambda: Wrong(names))
    sanderling.runtime.delegate._registered.pop("wrong", None)


@pytest.fixture(scope="module")
def uncompiled() -> Iterator[None]:
    """Quantisation by the definitions: the tests' small models would be compiled longer than they
    run."""
    from sanderling.optimize.calibrate import Observer
    from sanderling.optimize.probe import Probe

    with pytest.MonkeyPatch.context() as patch:
        for kind in (Observer, Probe):
            patch.setattr(kind, "delegates", ["reference"])
        yield

"""What every test may rely on."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest

# pytest-xdist tells its workers how wide the terminal is; tables are to be whole unless a test says
# otherwise.
os.environ.pop("COLUMNS", None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sample",
        type=int,
        default=0,
        metavar="N",
        help="at most N tests of a file, or one in a hundred",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A sample is spread over each file, and takes no test that is marked as slow."""
    most = config.getoption("sample")
    if not most:
        return
    files: dict[object, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow") is None:
            files[item.path].append(item)
    chosen = {item for own in files.values() for item in own[:: min(100, -(-len(own) // most))]}
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


@pytest.fixture
def wrong() -> Iterator[Callable[..., None]]:
    """Register a delegate that computes the ops with these outputs wrongly."""
    import sanderling

    from .support.twin_models import Wrong

    yield lambda *names: sanderling.register_delegate("wrong", lambda: Wrong(names))
    sanderling.runtime.registry._registered.pop("wrong", None)


@pytest.fixture(scope="module")
def uncompiled() -> Iterator[None]:
    """Quantisation by the definitions: the tests' small models would be compiled longer than they
    run."""
    from sanderling.optimize.calibration.calibrate import Observer
    from sanderling.optimize.correcting.probe import Probe

    with pytest.MonkeyPatch.context() as patch:
        for kind in (Observer, Probe):
            patch.setattr(kind, "delegates", ["reference"])
        yield

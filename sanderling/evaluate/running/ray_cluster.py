"""Shards as tasks of a Ray cluster.

The model's bytes and the settings are put into the object store once: each node fetches them once,
each worker process builds its session once. A worker that dies loses its shard to another; what was
lost on its way is computed again. The data lies where the samples' paths say, on every node: a
shared file system, or a copy.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import platform
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import InputError, MissingExtraError, SanderlingError, UnsupportedError
from ...version import __version__
from .process_pool import MOST_TRIES
from .shards import EvaluationWork, Evaluator, SampleOutcome, Shard

AHEAD = 4  # shards that are submitted for each processor of the cluster


def run_on_ray(
    address: str, work: EvaluationWork, digest: str, shards: Sequence[Shard]
) -> Iterator[tuple[int, list[SampleOutcome]]]:
    """(number, outcomes) as shards are done. An address of "local" starts a cluster here."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "ray", "--ray") from error
    started = _connect(ray, address)
    try:
        yield from _run(ray, work, digest, shards)
    finally:
        if started:
            ray.shutdown()


def _connect(ray: Any, address: str) -> bool:
    """Connect, and return whether this call made the connection and has to close it."""
    if ray.is_initialized():
        return False
    try:
        ray.init(
            address=None if address == "local" else address,
            log_to_driver=False,
            logging_level="ERROR",
            configure_logging=False,
        )
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"no Ray cluster answers: {said}",
            where=f"--ray {address}",
            fix="start one with `ray start --head`, and give its address, or 'auto' "
            "on one of its machines, or 'local' for one on this machine",
        ) from error
    return True


def _run(
    ray: Any, work: EvaluationWork, digest: str, shards: Sequence[Shard]
) -> Iterator[tuple[int, list[SampleOutcome]]]:
    content, settings = ray.put(Path(work.model).read_bytes()), ray.put(work)
    remote = ray.remote(num_cpus=work.setting.threads, max_retries=MOST_TRIES)(_shard)
    most = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
    waiting = iter(shards)
    pending: dict[Any, Shard] = {}
    while True:
        while len(pending) < most and (shard := next(waiting, None)) is not None:
            pending[remote.remote(content, settings, digest, __version__, shard)] = shard
        if not pending:
            return
        done, _ = ray.wait(list(pending), num_returns=1)
        for reference in done:
            shard = pending.pop(reference)
            yield shard.number, _fetch(ray, reference, shard)


def _fetch(ray: Any, reference: Any, shard: Shard) -> list[SampleOutcome]:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, SanderlingError):
            raise cause from None
        raise UnsupportedError(
            f"a task of the cluster failed: {type(cause).__name__}: {cause}",
            fix="is sanderling installed on every node?",
        ) from error
    except ray.exceptions.RayError as error:
        raise UnsupportedError(
            f"shard {shard.number} (from sample '{shard.samples[0].id}') was lost again and again: "
            f"{str(error).splitlines()[0]}",
            fix="look at the cluster's logs; what was done is kept, run it again",
        ) from error


# -- on the cluster -----------------------------------------------------------------------------


def _shard(
    content: bytes, work: EvaluationWork, digest: str, version: str, shard: Shard
) -> list[SampleOutcome]:
    if version != __version__:
        raise InputError(
            f"this node has sanderling {__version__}, the driver {version}",
            where=platform.node(),
            fix="install the same version",
        )
    return _evaluator(content, work, digest).shard(shard)


class _KeptEvaluator:
    """The evaluator of the work that this process did last."""

    key = ""
    made: Evaluator | None = None


def _evaluator(content: bytes, work: EvaluationWork, digest: str) -> Evaluator:
    key = f"{digest} {work}"
    if _KeptEvaluator.key != key or _KeptEvaluator.made is None:
        path = _stored(content, digest)
        _KeptEvaluator.made, _KeptEvaluator.key = Evaluator(replace(work, model=path)), key
    return _KeptEvaluator.made


def _stored(content: bytes, digest: str) -> str:
    """The model as a file of this node: it is mapped, and shared by the node's processes."""
    folder = Path(tempfile.gettempdir(), f"sanderling-{getpass.getuser()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{digest}.tflite"
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(content)
        partial.replace(path)
    return str(path)

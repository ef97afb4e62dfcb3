"""The same evaluation on a Ray cluster of two nodes, also with a worker that is killed on its way.

A cluster takes seconds to start, and Ray is large: `make test-ray` runs this, other runs skip it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sanderling import SanderlingError, evaluate_task, make_task

from .support.eval_command import DEADLY, INT8, LIKE_DIGITS, digit_task, same
from .support.eval_command import digits as digits

if not os.environ.get("SANDERLING_TEST_RAY"):
    pytest.skip("a Ray cluster is only started by `make test-ray`", allow_module_level=True)
ray: Any = pytest.importorskip("ray", reason="the package ray is not installed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    yield made.address
    ray.shutdown()
    made.shutdown()


def test_a_cluster_changes_nothing(digits: Path, cluster: str, tmp_path: Path) -> None:
    alone = evaluate_task(INT8, digit_task(digits, detail=True), decoders=0, shards=tmp_path)
    found = evaluate_task(INT8, digit_task(digits, detail=True), ray=cluster, shards=tmp_path)
    assert same(alone, found)
    assert found.spread == {"ray": cluster}


def test_a_killed_worker_changes_nothing(digits: Path, cluster: str, tmp_path: Path) -> None:
    alone = evaluate_task(INT8, digit_task(digits, detail=True), decoders=0, shards=tmp_path)
    (tmp_path / "deadly.py").write_text(DEADLY)
    task = make_task(
        f"{tmp_path / 'deadly.py'}:deadly",
        images=digits / "img",
        labels=digits / "labels.txt",
        mark=tmp_path / "mark",
        detail=True,
        **LIKE_DIGITS,
    )
    (tmp_path / "deadly.py").unlink()  # the file's text travels
    found = evaluate_task(INT8, task, ray=cluster, shards=tmp_path)
    assert (tmp_path / "mark0").exists()
    assert same(alone, found)


def test_corrupt_pictures_are_counted_there_too(digits: Path, cluster: str, tmp_path: Path) -> None:
    for p in (digits / "img").iterdir():
        (tmp_path / p.name).write_bytes(p.read_bytes())
    (tmp_path / "003.png").write_bytes(b"torn")
    task = digit_task(digits, images=tmp_path)
    found = evaluate_task(INT8, task, ray=cluster, shards=tmp_path / "shards")
    assert [f.id for f in found.failures] == ["003.png"]


def test_a_mistake_of_the_task_is_a_sentence(digits: Path, cluster: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(
        DEADLY.replace('"deadly"', '"wrong"').replace('sample.id == "017.png"', "sample.nothing")
    )
    task = make_task(
        str(tmp_path / "wrong.py"),
        images=digits / "img",
        mark=tmp_path / "mark",
        labels=digits / "labels.txt",
        **LIKE_DIGITS,
    )
    with pytest.raises(SanderlingError, match="preprocess of task 'wrong' failed on sample"):
        evaluate_task(INT8, task, ray=cluster, shards=tmp_path / "shards")

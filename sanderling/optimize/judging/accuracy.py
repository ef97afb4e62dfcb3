"""A task's figures before and after, sample by sample."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...evaluate.running.evaluation import Evaluation, compare_evaluations, evaluate_task
from ...evaluate.task import Task
from ...format import save
from ...ir import Model

Progress = Callable[[str, int, int], None]


def evaluated(
    model: Model, task: Task, limit: int = 0, progress: Progress | None = None
) -> Evaluation:
    """Evaluate a model in memory on a copy of the task: the given one is not bound to the model."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.tflite"
        save(model, path)
        return evaluate_task(
            path,
            _twin(task),
            limit=limit,
            shards=Path(folder) / "shards",
            resume=False,
            progress=progress,
        )


def _twin(task: Task) -> Task:
    """Copy the task so that it keeps what a paired comparison needs, where it has one."""
    return replace(task, detail=type(task).compare is not Task.compare)


def compare_accuracy(
    before: Model, after: Model, task: Task, limit: int = 0, progress: Progress | None = None
) -> dict[str, Any]:
    """Measure both models on the same samples, with the task's paired statistics."""
    old, new = (evaluated(m, task, limit, progress) for m in (before, after))
    found: dict[str, Any] = {
        "task": task.name,
        "settings": task.settings(),
        "headline": task.headline,
        "samples": len(old.samples),
        "failed": len(old.failures),
        "before": old.metrics,
        "after": new.metrics,
        "compared": None,
        "lines": [],
    }
    if type(task).compare is not Task.compare:
        found["compared"] = compare_evaluations(new, old)
        found["lines"] = new.task.compared_lines(found["compared"])
    return found

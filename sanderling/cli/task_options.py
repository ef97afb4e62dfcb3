"""A task and its settings as NAME=VALUE, for the verbs that judge a model by one."""

from __future__ import annotations

import types
import typing
from typing import Annotated, Any

import typer

from ..errors import InputError
from ..evaluate.task import Task, find_task, make_task, settings_of
from . import completion
from .common import warn_unused

TaskName = Annotated[
    str,
    typer.Option(
        "--task",
        metavar="TASK",
        autocompletion=completion.TASK,
        help="A task of `sanderling eval`, or FILE.py:NAME: its figures before and after are in "
        "the report.",
    ),
]
TaskOptions = Annotated[
    list[str],
    typer.Option(
        "--task-option",
        metavar="NAME=VALUE",
        help="A setting of the task, as its option without dashes; may be repeated.",
    ),
]
TaskLimit = Annotated[
    int,
    typer.Option(
        "--task-limit", metavar="N", min=0, help="At most so many of the task's samples; 0: all."
    ),
]


def judge_of(task: str, texts: list[str], limit: int) -> Task | None:
    """The task with its settings; None if there is none, with a warning of what is not read."""
    if task:
        return make_task(task, **task_settings(task, texts))
    warn_unused({"--task-option": texts, "--task-limit": limit}, "there is no --task")
    return None


def task_settings(task: str, texts: list[str]) -> dict[str, Any]:
    """The task's settings in their types; a list is one that is given several times."""
    kind = find_task(task)
    known = {f.name for f in settings_of(kind)}
    made: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        if not equals or name not in known:
            fix = f"write NAME=VALUE, with a name of {', '.join(sorted(known))}"
            raise InputError(
                f"'{text}' is no setting of the task '{kind.name}'", where="--task-option", fix=fix
            )
        made |= {name: _typed(kind, name, value, made.get(name))}
    return made


def _typed(kind: type[Task], name: str, text: str, before: Any) -> Any:
    hint = typing.get_type_hints(kind)[name]
    inner = [a for a in typing.get_args(hint) if a is not types.NoneType]
    if hint == list[str]:
        return [*(before or []), text]
    plain = inner[0] if inner else hint
    if plain is bool:
        if text.lower() not in ("true", "false"):
            raise InputError(
                f"'{text}' is neither true nor false",
                where=f"--task-option {name}",
                fix=f"write {name}=true",
            )
        return text.lower() == "true"
    try:
        return plain(text)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"'{text}' is no {plain.__name__}",
            where=f"--task-option {name}",
            fix="see `sanderling eval TASK --help`",
        ) from error

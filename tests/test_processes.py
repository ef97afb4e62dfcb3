"""Models and sessions beyond their process: pickled, copied, forked."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sanderling
from sanderling import OPS, InputError, dump, register_custom
from sanderling.ir import Model

from .conformance.cases_control import binary, emit, graph

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def total() -> Model:
    return Model([graph("main", binary("ADD"), ("f32", (2, 3)), ("f32", (2, 3)))])


def custom(name: str) -> Model:
    return Model(
        [graph("main", lambda g, x: [emit(g, f"custom.{name}", [x], (2, 3))], ("f32", (2, 3)))]
    )


def _same(op: Any, specs: Any) -> Any:
    return specs[0]


@pytest.mark.parametrize(
    "copied",
    [lambda x: pickle.loads(pickle.dumps(x)), copy.copy, copy.deepcopy],
    ids=["pickle", "copy", "deepcopy"],
)
def test_a_model_is_copied_by_its_bytes(copied: Callable[[Model], Model], tmp_path: Path) -> None:
    made = total()
    sanderling.save(made, tmp_path / "m.tflite")
    for one in (made, sanderling.load(tmp_path / "m.tflite")):
        twin = copied(one)
        assert dump(twin) == dump(one) and twin.source == one.source
        assert twin.main is not one.main
        np.testing.assert_array_equal(twin.compile()(X, X), 2 * X)


def test_what_belongs_to_the_process_is_not_copied() -> None:
    session = total().compile()
    bound = session.bind({"main_in0": X, "main_in1": X})
    for one in (session, bound, sanderling.Interpreter(model_content=dump(total()))):
        for act in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(InputError, match=r"cannot be pickled or copied(.|\n)*by its bytes"):
                act(one)


NO_FORK = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")


def in_child(check: Callable[[], bool]) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's, of threads and fork
        child = os.fork()
    if child == 0:
        signal.alarm(30)
        done = False
        try:
            done = check()
        finally:
            os._exit(0 if done else 1)
    return os.waitpid(child, 0)[1] == 0


@NO_FORK
def test_a_child_is_free_of_the_runs_of_its_parent() -> None:
    """Forked while another thread was inside: that thread is not there to leave."""
    inside, leave = threading.Event(), threading.Event()

    def wait(op: Any, arrays: Any) -> Any:
        inside.set()
        leave.wait(30)
        return arrays[0]

    register_custom("Wait", evaluate=wait, infer=_same)
    try:
        session = custom("Wait").compile()
        thread = threading.Thread(target=session, args=(X,))
        thread.start()
        assert inside.wait(30)

        def check() -> bool:
            leave.set()
            return np.array_equal(session(X), X)

        done = in_child(check)
        leave.set()
        thread.join(30)
        assert done and np.array_equal(session(X), X)
    finally:
        del OPS["custom.Wait"]


@NO_FORK
def test_who_forks_inside_a_run_leaves_it_in_both_processes() -> None:
    children: list[bool] = []

    def fork(op: Any, arrays: Any) -> Any:
        children.append(in_child(lambda: True))
        return arrays[0]

    register_custom("Fork", evaluate=fork, infer=_same)
    try:
        session = custom("Fork").compile()
        np.testing.assert_array_equal(session(X), X)
        np.testing.assert_array_equal(session(X), X)
        assert children == [True, True]
    finally:
        del OPS["custom.Fork"]

"""A delegate in a process of its own: what goes wrong there is said here, and answers are right."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from importlib.resources import files
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sanderling
from sanderling import FallbackWarning, InputError, Isolated, Session
from sanderling.errors import DelegateError, IsolatedError
from sanderling.runtime import registry
from sanderling.runtime.isolated import _answer
from sanderling.runtime.plugins import load_plugins, loaded_plugins

from .support.diff_command import small
from .support.fake_delegates import Some
from .support.faulty_delegate import Faulty, Replacing, crashing

DIGITS = sanderling.load(files("sanderling") / "data" / "digits_f32.tflite")
X = np.random.default_rng(0).random((1, 8, 8, 1), np.float32)
ABS = small()
Y = np.array([[1, -2, 3, -4]], np.float32)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    names: dict[str, Any] = {}
    monkeypatch.setattr(registry, "_registered", names)
    return names


def is_there(pid: int) -> bool:
    """A process that has ended counts as gone, also before somebody asks how."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # it has just gone, or this system has no such files
        return not Path("/proc").is_dir()
    return state != "Z"


# -- what it does ---------------------------------------------------------------------------------


def test_another_process_computes_the_part(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = DIGITS.compile(delegates="reference")(X)
    delegate = Isolated(Faulty("CONV_2D"))
    session = DIGITS.compile(delegates=[delegate, "reference"])
    assert "part 0: 2 ops on faulty:isolated" in session.explain()
    assert "RESHAPE 'flat': faulty:isolated refuses: it takes something else" in session.explain()
    for x in (X, X * 0, X):  # the first run, and further ones
        expected = DIGITS.compile(delegates="reference")(x)
        np.testing.assert_array_equal(session(x), expected)
    bound = session.bind({"image": X})
    for _ in range(3):
        bound.run()
        np.testing.assert_array_equal(*bound.outputs.values(), wanted)
    copies = session.plan().steps[0].executable.copies
    assert copies is not None and (copies.runs, copies.tensors) == (6, 12)  # once each way
    pid = session.memory()["process"]
    assert pid != os.getpid() and is_there(pid)
    _runs_in_a_fork(session, wanted)
    np.testing.assert_array_equal(session(X), wanted)
    _interrupt(session, monkeypatch)
    with pytest.warns(FallbackWarning, match="in a run, it was interrupted"):
        np.testing.assert_array_equal(session(X), wanted)
    del session, bound, delegate
    assert not is_there(pid)


def _runs_in_a_fork(session: Session, wanted: Any) -> None:
    """The forked child has a process of its own, and leaves its parent's alone."""
    forked = os.fork()
    if not forked:
        status = 1
        try:
            status = int(not np.array_equal(session(X), wanted))
        finally:
            os._exit(status)
    assert os.waitpid(forked, 0)[1] == 0


def _interrupt(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C: the answer, which comes later, is nobody's."""

    def poll(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Connection, "poll", poll)
        with pytest.raises(KeyboardInterrupt):
            session(X)


# -- what goes wrong ------------------------------------------------------------------------------


def test_a_run_that_fails_is_done_elsewhere() -> None:
    delegate = Isolated(Faulty("ABS", ["run memory", "run raise", "run abort"]))
    for what in ("it ran out of memory", "it failed with ValueError: out of luck"):
        session = ABS.compile(delegates=[delegate, "reference"])
        with pytest.warns(FallbackWarning, match=f"'faulty:isolated'.* in a run, {what}") as told:
            np.testing.assert_array_equal(session(Y), np.abs(Y))
        np.testing.assert_array_equal(session(-Y), np.abs(Y))
        assert len(told) == 1
        assert f"on reference (faulty:isolated had it: in a run, {what})" in session.explain()
    insists = ABS.compile(delegates=[delegate], require_full_delegation=True)
    with pytest.raises(IsolatedError, match=r"'faulty:isolated': in a run, .*ended by SIGABRT"):
        insists(Y)
    # A process that was lost is not started again.
    session = ABS.compile(delegates=[delegate, "reference"])
    assert (
        "faulty:isolated refuses: in a run, its process was ended by SIGABRT" in session.explain()
    )
    np.testing.assert_array_equal(session(Y), np.abs(Y))


def test_what_was_done_before_a_hang_is_done_once() -> None:
    ran: list[object] = []
    first = Some({"CONV_2D"}, watch=lambda *_: ran.append(None))
    hangs = Isolated(Faulty("FULLY_CONNECTED", ["run hang"]), timeout=0.2)
    session = DIGITS.compile(delegates=[first, hangs, "reference"])
    with pytest.warns(FallbackWarning, match=r"in a run, it gave no answer within 0.2 s"):
        found = session(X)
    np.testing.assert_array_equal(found, DIGITS.compile(delegates="reference")(X))
    assert len(ran) == 1


def test_ops_that_it_cannot_take_or_compile_run_elsewhere() -> None:
    delegate = Isolated(Faulty("ABS", ["refuses raise", "compile memory", "compile exit"]))
    for what in (
        "when it was asked which ops it takes, it failed with ValueError",
        "when it was to compile a part, it ran out of memory",
        "when it was to compile a part, its process ended with status 3",
    ):
        with pytest.warns(FallbackWarning, match=f"'faulty:isolated'.*: {what}"):
            session = ABS.compile(delegates=[delegate, "reference"])
        assert what in session.explain()
        np.testing.assert_array_equal(session(Y), np.abs(Y))


def test_an_output_that_is_replaced_is_an_error_here_and_there(
    capfd: pytest.CaptureFixture[str],
) -> None:
    session = ABS.compile(delegates=[Replacing("ABS"), "reference"])
    for _ in range(2):
        with pytest.raises(DelegateError, match=r"on 'faulty': run\(\) put another array"):
            session(Y)
    # In a process of its own, after a signal that this delegate raises itself.
    isolated = Isolated(Replacing("ABS", ["compile interrupt"]))
    for what in ("it failed with KeyboardInterrupt", r"in a run, run\(\) put another array"):
        with pytest.warns(FallbackWarning, match=f"'faulty:isolated'.*{what}"):
            session = ABS.compile(delegates=[isolated, "reference"])
            np.testing.assert_array_equal(session(Y), np.abs(Y))
    assert not isolated.process.ended
    assert "Traceback" not in capfd.readouterr().err


def test_an_answer_that_cannot_be_sent_is_an_error() -> None:
    error, ops = pickle.loads(_answer(threading.Lock, ()))
    assert isinstance(error, DelegateError) and ops == ()
    assert "it gave an answer that cannot be pickled: TypeError" in error.what


def test_a_crash_while_it_is_loaded_is_an_error(registered: dict[str, Any]) -> None:
    registered["crashing"] = crashing
    with pytest.raises(OSError, match=r"Failed to load delegate from crashing: .*SIGABRT"):
        sanderling.load_delegate("crashing", {"isolated": True})


def test_what_cannot_be_handed_over_is_refused(registered: dict[str, Any]) -> None:
    registered["local"] = lambda: Faulty("ABS")
    for make in (
        lambda: Isolated("local"),
        lambda: sanderling.load_delegate("local", {"isolated": "true"}),
        lambda: Isolated(Some(set(), watch=lambda *_: None)),
    ):
        with pytest.raises(InputError, match=r"another process(.|\n)*--plugin"):
            make()


@pytest.mark.parametrize(
    "spelling",
    ["isolated=maybe", "isolated=", "isolated;isolated_timeout=soon", "isolated_timeout=inf"],
)
def test_a_value_that_does_not_fit_does_not_drop_the_protection(spelling: str) -> None:
    option, _, value = spelling.rpartition(";")[2].partition("=")
    with pytest.raises(InputError, match=f"'{option}' cannot be '{value}'\n  give "):
        DIGITS.compile(delegates=[f"reference:{spelling}"])


def test_flags_of_isolation_are_read_as_all_flags_are() -> None:
    assert isinstance(sanderling.load_delegate("reference", {"isolated": "yes"}), Isolated)
    assert not isinstance(sanderling.load_delegate("reference", {"isolated": "off"}), Isolated)


# -- how it ends ----------------------------------------------------------------------------------

HANGS = """
import numpy as np, sanderling
from tests.support.diff_command import small
from tests.support.faulty_delegate import Faulty

session = small().compile(delegates=[sanderling.Isolated(Faulty("ABS", ["run hang"]), timeout=1)])
print(session.memory()["process"], flush=True)
session(np.ones((1, 4), np.float32))
"""


def test_it_does_not_outlive_a_parent_that_was_killed() -> None:
    root = Path(__file__).parents[1]
    parent = subprocess.Popen([sys.executable, "-c", HANGS], stdout=subprocess.PIPE, cwd=root)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    time.sleep(0.2)  # the run has begun, most likely; without it the pipe's end is what it hears
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 60
    while is_there(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_there(pid)


def test_a_plugin_that_failed_is_not_handed_on(tmp_path: Path) -> None:
    plugin = tmp_path / "broken.py"
    plugin.write_text("raise ValueError('no')", "utf-8")
    with pytest.raises(InputError, match="it cannot be run"):
        load_plugins([plugin])
    assert str(plugin) not in loaded_plugins()

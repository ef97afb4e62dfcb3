"""A delegate in a process of its own: what it breaks there leaves this one whole.

`Isolated` stands for the delegate here. What it is asked goes through a pipe, a part as the bytes
of a .tflite file; the tensors of a part lie in memory that both processes see, so that a run copies
its inputs once and its outputs once. Where the delegate crashes, hangs, runs out of memory or
raises, an IsolatedError says so, and the part runs on the delegates behind it (Options.elsewhere).

A process that was lost is not started again: from then on the delegate refuses every op. It ends
with its last user here, with this process, and at the time limit when that process is killed during
a run. A forked child starts one for itself.
"""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import IO, Any

import numpy as np

from ..child_process import ChildProcess
from ..config import TRACE
from ..errors import DelegateError, InputError, IsolatedError, SanderlingError
from ..forks import renews
from ..format import load
from ..ir import Array, Graph, Op
from ..ir.graph import copy_graph
from ..ops.execute import new_state
from .arena import ALIGNMENT
from .delegate import (
    BorderCopies,
    Delegate,
    Executable,
    Options,
    PlainDelegate,
    as_delegate,
    as_executable,
    check_kept,
)
from .plan import unpacked_bytes
from .plugins import load_plugins, loaded_plugins
from .registry import factory_of
from .submodel import as_tflite, graph_of, refuses_alone

TIMEOUT = 60.0  # seconds for a run
PREPARING = 600.0  # for all else: a process starts, an engine is loaded, a part is compiled
# What the delegate was about to do, in sentences about how that ended.
STAGES = {
    "load": "when it was loaded",
    "check": "when it was given options",
    "refuses": "when it was asked which ops it takes",
    "compile": "when it was to compile a part",
    "run": "in a run",
}


class Isolated(Delegate):
    """Any delegate, in a process of its own.

    delegate: a name, which is looked up there, or the delegate itself, which is pickled. options:
    its own, as in load_delegate. timeout: seconds that a run may take.
    """

    def __init__(
        self,
        delegate: str | PlainDelegate,
        options: Mapping[str, Any] | None = None,
        *,
        timeout: float = TIMEOUT,
    ) -> None:
        self._delegate, self._options, self.timeout = delegate, dict(options or {}), timeout
        self._recipe = _recipe(delegate, self._options)
        self.name = delegate if isinstance(delegate, str) else delegate.name
        self._process = self._start()

    def _start(self) -> DelegateProcess:
        made = DelegateProcess(self.name, self.timeout)
        # Not the name of the delegate alone: that one may stand behind this one, as `cpu` does.
        self.name = made.name = f"{made.ask('load', loaded_plugins(), self._recipe)}:isolated"
        return made

    @property
    def process(self) -> DelegateProcess:
        """The other process: this one's own, also where this one was forked from another."""
        if self._process.is_of_parent:
            self._process = self._start()
        return self._process

    def configure(self, options: Mapping[str, Any]) -> Isolated:
        if not options:
            return self
        return Isolated(self._delegate, {**self._options, **options}, timeout=self.timeout)

    def check_options(self, options: Mapping[str, Any]) -> None:
        if options:
            self.process.ask("check", dict(options))

    def refuses(self, op: Op) -> str | None:
        return self.refuses_each([op])[0]

    def refuses_each(self, ops: Sequence[Op]) -> Sequence[str | None]:
        """What has state, no fixed shape or an unknown meaning stays here; the delegate is asked
        about all others at once."""
        found = {op: refuses_alone(op) for op in ops}
        asked = [op for op in ops if found[op] is None]
        found.update(zip(asked, self._asked(asked), strict=True))
        return [found[op] for op in ops]

    def _asked(self, ops: Sequence[Op]) -> Sequence[str | None]:
        process = self.process
        if process.ended or not ops:
            return [process.ended] * len(ops)
        answers: list[str | None] = process.ask("refuses", as_tflite(graph_of(ops)))
        return answers

    def compile(self, part: Graph, options: Options) -> IsolatedPart:
        return IsolatedPart(self, part, options)


def _recipe(delegate: str | PlainDelegate, options: Mapping[str, Any]) -> bytes:
    """How the other process makes the delegate: it, or what makes it, and its options."""
    is_name = isinstance(delegate, str)
    made = factory_of(delegate) if isinstance(delegate, str) else delegate
    try:
        if getattr(made, "__module__", "") == "__main__":
            raise TypeError("it is defined in the script that is run")
        return pickle.dumps((made, is_name, dict(options)), 5)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"it cannot be handed to another process: {error}",
            where=f"delegate '{delegate if isinstance(delegate, str) else delegate.name}'",
            fix="define it in a module that can be imported, or in a file for --plugin",
        ) from error


class IsolatedPart(Executable):
    """A part in the other process, and memory that both see; where it fails, the part elsewhere."""

    copies: BorderCopies

    def __init__(self, owner: Isolated, part: Graph, options: Options) -> None:
        self._owner, self._part, self._options = owner, part, options
        own, _ = copy_graph(part, part.ops, part.inputs, part.outputs)
        self._file = as_tflite(own)
        self._instead: Executable | None = None
        self.copies = BorderCopies()
        self._settle(owner.process)

    def _settle(self, process: DelegateProcess) -> None:
        """Compile the part there."""
        self._process, self._number = process, next(process.numbers)
        about = self._number, self._file, self._options.threads, dict(self._options.extra)
        with memory_file(self._part) as handle:
            self._inputs, self._outputs = shared_arrays(self._part, handle)
            self.workers, self._memory = process.ask("compile", *about, handle=handle)
        weakref.finalize(self, process.gone.append, self._number)

    def run(self, inputs: Sequence[Array], outputs: list[Array | None]) -> None:
        if self._instead is None:
            try:
                self._run(inputs, outputs)
                return
            except IsolatedError as error:
                if self._options.elsewhere is None:
                    raise
                self._instead = self._options.elsewhere(self._part, error)
        self._instead.run(inputs, outputs)

    def _run(self, inputs: Sequence[Array], outputs: list[Array | None]) -> None:
        process = self._owner.process
        if process is not self._process:  # this process was forked since
            self._settle(process)
        for shared, given in zip(self._inputs, inputs, strict=True):
            np.copyto(shared, given)
        process.ask("run", self._number)
        for given_out, shared in zip(outputs, self._outputs, strict=True):
            assert given_out is not None, "every shape is known: refuses_alone"
            np.copyto(given_out, shared)
        self.copies.count(inputs, outputs)

    def memory(self) -> dict[str, int]:
        return self._memory if self._instead is None else self._instead.memory()


# -- the other process, seen from here ------------------------------------------------------------


class DelegateProcess:
    """The process with the delegate, from its start to its end. One is asked at a time."""

    def __init__(self, name: str, timeout: float) -> None:
        self.name, self._timeout = name, timeout
        self.ended = ""  # how, once it has
        self.is_of_parent = False  # this process was forked: it belongs to the other one
        self.numbers = count()  # of parts
        self.gone: list[int] = []  # parts that nobody holds any more
        self._lock = threading.Lock()
        # A trace is this process's: the other one would write over its file.
        known = {name: value for name, value in os.environ.items() if name != TRACE.name}
        self._child = ChildProcess(serve, stdout=2, environment=known)
        self._end = weakref.finalize(self, _end, self._child)
        renews(self)

    def renew_lock(self) -> None:
        """In a forked child: the pipe is the parent's."""
        self._lock, self.is_of_parent = threading.Lock(), not self.ended
        self._end.detach()
        self._child.pipe.close()

    def ask(self, what: str, *about: Any, handle: int | None = None) -> Any:
        """Have it done there. handle: a file that the other process gets, too."""
        stage = STAGES[what]
        limit = self._timeout if what == "run" else max(PREPARING, self._timeout)
        with self._lock:
            if self.ended:
                raise self._error(self.ended)
            try:
                error, answer = self._exchange(what, limit, about, handle)
            except TimeoutError:
                raise self._lost(f"{stage}, it gave no answer within {limit:g} s") from None
            except (EOFError, OSError):
                raise self._lost(f"{stage}, {_fate(self._child)}") from None
            except BaseException:  # Ctrl-C: its answer would be taken for the next one's
                self._lost(f"{stage}, it was interrupted")
                raise
        if isinstance(error, DelegateError):
            raise self._error(f"{stage}, {error.what}", error.fix, answer)
        if error is not None:
            raise error
        return answer

    def _exchange(
        self, what: str, limit: float, about: Sequence[Any], handle: int | None
    ) -> tuple[SanderlingError | None, Any]:
        gone, self.gone[:] = self.gone.copy(), []
        pipe = self._child.pipe
        pipe.send((what, limit, gone, about))
        if handle is not None:
            send_handle(pipe, handle, self._child.process.pid)
        if not pipe.poll(limit):
            raise TimeoutError
        found: tuple[SanderlingError | None, Any] = pipe.recv()
        return found

    def _lost(self, how: str) -> IsolatedError:
        """The process is of no use any more."""
        self.ended = how
        self._child.process.kill()
        self._end()
        return self._error(how)

    def _error(self, what: str, fix: str = "", ops: Sequence[int] | None = None) -> IsolatedError:
        error = IsolatedError(
            what,
            where=f"delegate '{self.name}'",
            fix=fix or "leave this delegate out, and report the failure to its author",
        )
        error.ops = tuple(ops or ())
        return error


def _fate(child: ChildProcess) -> str:
    how = child.how_it_ended()
    if how == "SIGKILL":
        return "its process was ended by SIGKILL, as happens when the system's memory runs out,"
    if how.startswith("SIG"):
        return f"its process was ended by {how}"
    return f"its process ended with {how}" if how else "its process closed the connection"


def _end(child: ChildProcess) -> None:
    child.pipe.close()
    child.end()


# -- memory that both see -------------------------------------------------------------------------


def _places(part: Graph) -> tuple[list[int], int]:
    """Where the part's inputs and outputs begin, and how much they take together."""
    places, size = [], 0
    for tensor in (*part.inputs, *part.outputs):
        places.append(size)
        size += -(-unpacked_bytes(tensor) // ALIGNMENT) * ALIGNMENT
    return places, max(size, 1)


@contextmanager
def memory_file(part: Graph) -> Iterator[int]:
    """A file in memory that is as large as the part's inputs and outputs. It has no name: when
    both processes have gone, whatever ended them, so has the memory."""
    with tempfile.TemporaryFile() if sys.platform != "linux" else _memfd() as file:
        file.truncate(_places(part)[1])
        yield file.fileno()


def _memfd() -> IO[bytes]:
    return os.fdopen(os.memfd_create("sanderling tensors"), "wb")


def shared_arrays(part: Graph, handle: int) -> tuple[list[Array], list[Array]]:
    """The part's inputs and outputs as arrays in such a file."""
    places, size = _places(part)
    memory = mmap.mmap(handle, size)
    tensors = zip((*part.inputs, *part.outputs), places, strict=True)
    arrays: list[Array] = [
        np.ndarray(t.shape, t.dtype.numpy, memory, place) for t, place in tensors
    ]
    return arrays[: len(part.inputs)], arrays[len(part.inputs) :]


# -- in the other process -------------------------------------------------------------------------


def serve(pipe: Connection) -> None:
    """Answer until the parent goes away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to hear
    host = Host(pipe)
    with suppress(EOFError, OSError):
        while True:
            what, limit, gone, about = pipe.recv()
            # Who hangs does not see that the parent has gone; the alarm ends it all the same.
            signal.setitimer(signal.ITIMER_REAL, limit + 1)
            host.forget(gone)
            answer = _answer(getattr(host, what), about)
            signal.setitimer(signal.ITIMER_REAL, 0)
            pipe.send_bytes(answer)


def _answer(act: Callable[..., Any], about: Sequence[Any]) -> bytes:
    """What went wrong, and the answer, pickled: that may go wrong, too."""
    try:
        return pickle.dumps(_outcome(act, about), 5)
    except Exception as error:
        said = f"it gave an answer that cannot be pickled: {type(error).__name__}: {error}"
        return pickle.dumps((DelegateError(said), ()), 5)


def _outcome(act: Callable[..., Any], about: Sequence[Any]) -> tuple[SanderlingError | None, Any]:
    """What went wrong, and the answer; of a DelegateError its ops."""
    try:
        return None, act(*about)
    except MemoryError:
        return DelegateError("it ran out of memory"), ()
    except SanderlingError as error:
        return error, error.ops if isinstance(error, DelegateError) else None
    except (Exception, KeyboardInterrupt) as error:
        return DelegateError(f"it failed with {type(error).__name__}: {error}"), ()


class Host:
    """The delegate and its parts, in the process that was made for them."""

    delegate: Delegate

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.parts: dict[int, Callable[[], object]] = {}

    def load(self, plugins: Iterable[str], recipe: bytes) -> str:
        load_plugins(plugins)  # what comes out of the recipe may be defined there
        made, is_factory, options = pickle.loads(recipe)
        found = as_delegate(made() if is_factory else made)
        self.delegate = as_delegate(found.configure(options)) if options else found
        return self.delegate.name

    def check(self, options: Mapping[str, Any]) -> None:
        self.delegate.check_options(options)

    def refuses(self, file: bytes) -> list[str | None]:
        return list(self.delegate.refuses_each(load(file).main.ops))

    def compile(
        self, number: int, file: bytes, threads: int, extra: Mapping[str, Any]
    ) -> tuple[int, dict[str, int]]:
        handle = recv_handle(self.pipe)
        part = load(file).main
        inputs, outputs = shared_arrays(part, handle)
        os.close(handle)
        made = as_executable(self.delegate.compile(part, Options(threads, new_state(), extra)))
        self.parts[number] = partial(self._run_first, number, made, inputs, outputs)
        return made.workers, made.memory()

    def _run_first(
        self, number: int, made: Executable, inputs: list[Array], outputs: list[Array]
    ) -> None:
        given: list[Array | None] = [*outputs]
        made.run(inputs, given)
        check_kept(outputs, given)
        self.parts[number] = made.bind(inputs, given)

    def run(self, number: int) -> None:
        self.parts[number]()

    def forget(self, gone: Iterable[int]) -> None:
        for number in gone:
            self.parts.pop(number, None)

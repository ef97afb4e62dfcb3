"""A delegate that somebody ships as a library (`libedgetpu.so.1`), through LiteRT, which it was
made for.

The library says which ops it takes by taking them: LiteRT's interpreter is given the ops that are
left as a graph, and the nodes which the library has put into that graph are looked at. A part is
an interpreter of its own, whose ops the library has to take all.
"""

from __future__ import annotations

import ctypes
import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import DelegateError, InputError
from ...ir import Graph, Op
from ...progress import plural
from ...runtime.delegate import Executable, Options
from ...runtime.registry import delegate_names
from ...runtime.submodel import as_tflite, graph_of
from .base import sentence
from .litert import InterpreterDelegate, InterpreterExecutable, named_nodes
from .packages import import_package

# Nobody but the library runs a node: what it leaves is for our delegates.
RESOLVER = "BUILTIN_WITHOUT_DEFAULT_DELEGATES"
SYMBOLS = ("tflite_plugin_create_delegate", "tflite_plugin_destroy_delegate")
Row = Mapping[str, Any]  # a node, as LiteRT's interpreter describes it


class ExternalDelegate(InterpreterDelegate):
    """path: the library's. All other options are its own, handed to it as text."""

    name = "external"
    identity = None  # the file may be another one tomorrow

    def __init__(self, path: str = "", **options: Any) -> None:
        super().__init__()
        self.path, self.own = path, options
        if path:
            self.name = Path(path).name
            self._library()  # what is wrong with it is said when it is loaded

    def configure(self, options: Mapping[str, Any]) -> ExternalDelegate:
        return ExternalDelegate(**{"path": self.path, **self.own, **options})

    def check_options(self, options: Mapping[str, Any]) -> None:
        if not self.path:
            raise InputError(
                "it has no library",
                where=f"delegate '{self.name}'",
                fix="name one: load_delegate('libedgetpu.so.1', {...})",
            )

    def _library(self) -> Any:
        """A delegate of the library's own, for one interpreter; it is destroyed with the last
        reference to it."""
        import_package("litert", f"the delegate {self.name}")
        from ai_edge_litert.interpreter import load_delegate

        _check_library(self.path)
        try:
            return load_delegate(self.path, self.own)
        except ValueError as error:  # two lines: which library, and what it reported
            said = str(error).partition("\n")[2] or "it made no delegate, and gave no reason"
            raise InputError(
                said, where=f"delegate '{self.name}'", fix="look its options up with its maker"
            ) from error

    # -- which ops it takes -----------------------------------------------------------------------

    def refuses(self, op: Op) -> str | None:
        return self.refuses_each([op])[0]

    def refuses_each(self, ops: Sequence[Op]) -> Sequence[str | None]:
        found = {op: self._unasked(op) for op in ops}
        while asked := [op for op in ops if found[op] is None]:
            try:
                taken = self._taken(asked)
            except Exception as error:
                # A node of LiteRT's own failed, without which the library can be asked again.
                blamed = named_nodes(str(error), len(asked))
                if not blamed:
                    raise self._not_applied(error) from error
                found |= {
                    asked[n]: f"LiteRT fails at it: {sentence(_apart(error))}" for n in blamed
                }
                continue
            left = [op for place, op in enumerate(asked) if place not in taken]
            found |= dict.fromkeys(left, "the library does not take it")
            break
        return [found[op] for op in ops]

    def _unasked(self, op: Op) -> str | None:
        return super().refuses(op) if self.path else "it has no library"

    def _taken(self, ops: Sequence[Op]) -> set[int]:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        made = Interpreter(
            model_content=as_tflite(graph_of(ops)),
            experimental_op_resolver_type=OpResolverType[RESOLVER],
            experimental_delegates=[self._library()],
        )
        return taken_nodes(made._get_ops_details())

    def _not_applied(self, error: Exception) -> DelegateError:
        return DelegateError(
            f"the library could not be applied: {sentence(_apart(error))}",
            where=f"delegate '{self.name}'",
            fix="leave it out, or look its message up with its maker",
        )

    # -- running a part ---------------------------------------------------------------------------

    def load(self, part: Graph, options: Options) -> Executable:
        try:
            library = self._library()
        except InputError as error:  # there was one before: a device may have a single user
            raise self._not_applied(error) from error
        made = InterpreterExecutable(as_tflite(part), options.threads, RESOLVER, [library])
        # The interpreter goes before the library's delegate, also where the garbage collector finds
        # both at once and would end them in any order.
        weakref.finalize(made, made.interpreter.__del__)
        left = set(range(len(part.ops))) - taken_nodes(made.interpreter._get_ops_details())
        if left:
            failure = self._not_applied(
                RuntimeError(f"it leaves out {plural(len(left), 'op')} that it took before")
            )
            failure.ops = tuple(sorted(left))
            raise failure
        return made


def _apart(error: Exception) -> str:
    """LiteRT's messages, which it writes one behind the other without a space."""
    return re.sub(r"\.?(Node number \d|Restored original)", r". \1", str(error))


def _check_library(path: str) -> None:
    """Say what is wrong with the file, before LiteRT loads it and leaves half an object behind."""
    try:
        library = ctypes.PyDLL(path)
    except OSError as error:
        raise InputError(
            str(error),
            where=f"library {path}",
            fix=f"give the path of a delegate's library, or one of {', '.join(delegate_names())}",
        ) from error
    absent = [symbol for symbol in SYMBOLS if not hasattr(library, symbol)]
    if absent:
        raise InputError(
            f"{path}: undefined symbol: {absent[0]}",
            where=f"library {path}",
            fix=f"it is no delegate's library: those have {' and '.join(SYMBOLS)}",
        )


def taken_nodes(rows: Sequence[Row]) -> set[int]:
    """The nodes of the file that a delegate's node stands for: what its outputs are computed from,
    up to its inputs."""
    mine = [row for row in rows if row["op_name"] == "DELEGATE"]
    file = [row for row in rows if row["op_name"] != "DELEGATE"]
    makers = {tensor: row for row in file for tensor in row["outputs"]}
    return {int(node) for row in mine for node in _behind(row, makers)}


def _behind(delegate: Row, makers: Mapping[int, Row]) -> Iterator[int]:
    border, waiting, seen = set(delegate["inputs"]), list(delegate["outputs"]), set()
    while waiting:
        tensor = waiting.pop()
        if tensor in seen or tensor in border or tensor not in makers:
            continue
        seen.add(tensor)
        yield makers[tensor]["index"]
        waiting += list(makers[tensor]["inputs"])

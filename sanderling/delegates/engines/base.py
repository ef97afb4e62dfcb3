"""What delegates of other engines share: options, refusals, how a failure names its ops, and the
count of what is copied at the borders of a part."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ...errors import DelegateError, SanderlingError
from ...ir import Array, Graph, Op, Tensor
from ...runtime.delegate import BorderCopies, Delegate, Executable, Options
from ...runtime.delegate_options import Option, read_options, whole_number
from ...runtime.submodel import refuses_alone
from .packages import import_package, require_package

THREADS = whole_number("threads, in place of the session's")


class EngineDelegate(Delegate):
    """Hands each part to an engine of others.

    A subclass has a `name`, its engine's key in packages.PACKAGES, a table of options, and `load`.
    """

    engine: ClassVar[str]
    options: ClassVar[Mapping[str, Option]] = {"threads": THREADS}

    def __init__(self, **options: Any) -> None:
        require_package(self.engine, f"the delegate {self.name}")
        self.chosen = read_options(self.name, self.options, options)

    def configure(self, options: Mapping[str, Any]) -> EngineDelegate:
        return type(self)(**{**self.chosen, **options})

    # No identity: whether an engine takes a part depends on its version, its drivers and its
    # devices, and a plan without it must not be remembered for the day when it does.

    def refuses(self, op: Op) -> str | None:
        """What cannot be in a file of its own, and what the engine's arrays cannot hold. What else
        the engine does not take, it says when it loads the file."""
        alone = refuses_alone(op)
        if alone:
            return alone
        border = [t for t in (*op.inputs, *op.outputs) if t is not None and not t.is_constant]
        packed = [t.dtype.short for t in border if t.dtype.bits < 8]
        return f"an element of {packed[0]} is less than a byte" if packed else None

    def compile(self, part: Graph, options: Options) -> Executable:
        import_package(self.engine, f"the delegate {self.name}")
        threads = self.chosen.get("threads", options.threads)
        try:
            return self.load(part, replace(options, threads=threads))
        except SanderlingError:
            raise
        except Exception as error:
            raise self._failed(part, error) from error

    @abstractmethod
    def load(self, part: Graph, options: Options) -> Executable:
        """The engine's own object of a part, with as many threads as the options say. Whatever it
        raises means that the engine does not take the part."""

    def blamed(self, part: Graph, said: str) -> Sequence[int]:
        """The places of the ops that the engine complains of: here all ops whose name is said."""
        words = {word.removeprefix("TFL_") for word in re.findall(r"\w+", said)}
        return [i for i, op in enumerate(part.ops) if op.name.removeprefix("custom.") in words]

    def said(self, error: Exception) -> str:
        """The engine's complaint, without what only its developers read."""
        return str(error)

    def _failed(self, part: Graph, error: Exception) -> DelegateError:
        said = self.said(error)
        failure = DelegateError(
            f"{type(self).title} cannot load them: {sentence(said)}",
            where=f"delegate '{self.name}'",
            fix="nothing has to be done: other delegates run them",
        )
        failure.ops = tuple(self.blamed(part, said))
        return failure

    title: ClassVar[str]
    """The engine's name for people."""


def check_type(delegate: str, tensor: Tensor, found: str) -> None:
    """The engine must have the part's types at its border: arrays are handed on as they are."""
    if found != tensor.dtype.numpy.name:
        raise DelegateError(
            f"the engine makes {found} of '{tensor.name}' {tensor.type_text}",
            where=f"delegate '{delegate}'",
        )


def sentence(said: str, most: int = 240) -> str:
    """What an engine said, on one line."""
    line = " ".join(said.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


class CopyingExecutable(Executable):
    """An executable whose engine has memory of its own: what crosses a border is copied, and
    counted. A subclass has `feed`, `compute` and `made`."""

    copies: BorderCopies

    def __init__(self) -> None:
        self.copies = BorderCopies()

    @abstractmethod
    def feed(self, place: int, array: Array) -> None:
        """Copy an input to where the engine reads it."""

    @abstractmethod
    def compute(self) -> None:
        """Run the engine."""

    @abstractmethod
    def made(self, place: int) -> Array:
        """An output where the engine has it, to be copied at once."""

    def run(self, inputs: Sequence[Array], outputs: list[Array | None]) -> None:
        for place, array in enumerate(inputs):
            self.feed(place, array)
        self.compute()
        for place, target in enumerate(outputs):
            assert target is not None, "ops whose shapes depend on data are refused"
            np.copyto(target, self.made(place).reshape(target.shape))
        self.copies.count(inputs, outputs)


class PointingExecutable(Executable):
    """An executable whose engine is told where the caller's arrays are: it copies nothing.

    A subclass has `point`, `attach`, `detach` and `compute`. The engine knows one set of arrays at
    a time: a bound call tells it again if another one ran meanwhile.
    """

    copies: BorderCopies

    def __init__(self) -> None:
        self.copies = BorderCopies()
        self.attached: object = None  # the mark of the call whose arrays the engine knows

    @abstractmethod
    def point(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Any:
        """These arrays as the engine wants to be told of them."""

    @abstractmethod
    def attach(self, pointed: Any) -> None:
        """Tell the engine, before a run."""

    @abstractmethod
    def detach(self) -> None:
        """The arrays may go: have the engine forget them."""

    @abstractmethod
    def compute(self) -> object:
        """Run the engine on the arrays that it was told of."""

    def run(self, inputs: Sequence[Array], outputs: list[Array | None]) -> None:
        try:
            BoundCall(self, inputs, outputs)()
        finally:
            self.attached = None
            self.detach()

    def bind(self, inputs: Sequence[Array], outputs: list[Array | None]) -> BoundCall:
        return BoundCall(self, inputs, outputs)


class BoundCall:
    """A run on arrays of which the engine is told once."""

    def __init__(
        self,
        executable: PointingExecutable,
        inputs: Sequence[Array],
        outputs: Sequence[Array | None],
    ) -> None:
        known = [array for array in outputs if array is not None]
        assert len(known) == len(outputs), "ops whose shapes depend on data are refused"
        self.executable = executable
        self.pointed = executable.point(inputs, known)
        self.mark = object()  # stands for this call: a circle would keep the engine's memory

    def __call__(self) -> None:
        executable = self.executable
        if executable.attached is not self.mark:
            executable.attach(self.pointed)
            executable.attached = self.mark
        executable.compute()
        executable.copies.runs += 1

"""A delegate that fails as an engine of somebody else's may, in a process of its own or not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sanderling.delegates.reference import ReferenceExecutable
from sanderling.ir import Array, Graph, Op
from sanderling.runtime.delegate import Delegate, Executable, Options


def _raise(error: BaseException) -> None:
    raise error


FAULTS: dict[str, Callable[[], object]] = {
    "abort": os.abort,
    "exit": lambda: os._exit(3),
    "hang": lambda: time.sleep(600),
    "memory": lambda: _raise(MemoryError()),
    "interrupt": lambda: _raise(KeyboardInterrupt()),
    "raise": lambda: _raise(ValueError("out of luck")),
}


@dataclass(eq=False)
class Faulty(Delegate):
    """Takes one kind of op, and evaluates it by its definition.

    faults: what happens, in this order: `run abort` when a part is run next. Stages are refuses,
    compile and run.
    """

    takes: str
    faults: list[str] = field(default_factory=list)
    name: str = "faulty"

    def reach(self, stage: str) -> None:
        if self.faults and self.faults[0].startswith(stage):
            FAULTS[self.faults.pop(0).removeprefix(stage).strip()]()

    def refuses(self, op: Op) -> str | None:
        return None if op.name == self.takes else "it takes something else"

    def refuses_each(self, ops: Sequence[Op]) -> Sequence[str | None]:
        self.reach("refuses")
        return super().refuses_each(ops)

    def compile(self, part: Graph, options: Options) -> Executable:
        self.reach("compile")
        return FaultyExecutable(self, ReferenceExecutable(part, options.state))


@dataclass(eq=False)
class FaultyExecutable(Executable):
    owner: Faulty
    inner: ReferenceExecutable

    def run(self, inputs: Sequence[Array], outputs: list[Array | None]) -> None:
        self.owner.reach("run")
        self.inner.run(inputs, outputs)

    def memory(self) -> dict[str, int]:
        return {"process": os.getpid()}


class Replacing(Faulty):
    """Its results are in arrays of its own, which it puts where the caller's are."""

    def compile(self, part: Graph, options: Options) -> Executable:
        self.reach("compile")
        return ReplacingExecutable(self, ReferenceExecutable(part, options.state))


class ReplacingExecutable(FaultyExecutable):
    def run(self, inputs: Sequence[Array], outputs: list[Array | None]) -> None:
        super().run(inputs, outputs)
        outputs[:] = [None if array is None else array.copy() for array in outputs]


def crashing() -> Faulty:
    """What makes a delegate may crash, too."""
    os.abort()

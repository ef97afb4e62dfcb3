"""Delegates for tests: one that takes only some ops, and ones that fail or look on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from sanderling.delegates.reference import ReferenceExecutable
from sanderling.errors import DelegateError
from sanderling.ir import Array, Graph, Op
from sanderling.runtime.delegate import Delegate, Executable, Options

Watch = Callable[[Graph, Sequence[Array], Sequence["Array | None"]], object]


@dataclass(eq=False)
class Some(Delegate):
    """Takes the ops whose name (or output's name) is in `takes`, and runs them on the definitions.

    watch sees each part with its arrays after a run. fails: "compile" or "run", with `error`.
    """

    takes: Collection[str]
    name: str = "some"
    watch: Watch = lambda part, inputs, outputs: None
    fails: str = ""
    error: Exception = field(default_factory=lambda: DelegateError("out of luck", fix="try again"))
    compiled: list[Graph] = field(default_factory=list)

    def refuses(self, op: Op) -> str | None:
        known = {op.name, *(t.name for t in op.outputs)}
        return None if known.intersection(self.takes) else f"{op.name} is not on its list"

    def compile(self, part: Graph, options: Options) -> SomeExecutable:
        if self.fails == "compile":
            raise self.error
        self.compiled.append(part)
        return SomeExecutable(self, part, ReferenceExecutable(part, options.state))


@dataclass(eq=False)
class SomeExecutable(Executable):
    owner: Some
    part: Graph
    inner: ReferenceExecutable

    def run(self, inputs: Sequence[Array], outputs: list[Array | None]) -> None:
        if self.owner.fails == "run":
            raise self.owner.error
        self.inner.run(inputs, outputs)
        self.owner.watch(self.part, inputs, outputs)

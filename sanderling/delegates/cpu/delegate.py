"""The `cpu` delegate. It loads LLVM and the kernels when it has something to compile, not before:
what was compiled once comes from the cache."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from ...config import CHECKED, DUMP, SPARSE
from ...errors import DelegateError, FallbackWarning, InputError
from ...ir import Graph, Op
from ...progress import plural, waiting
from ...runtime.delegate import Delegate, Options
from ...spans import span, tape
from .isa.targets import (
    PRECISIONS,
    Target,
    emulatable,
    emulated,
    find,
    host_target,
    problem,
    runnable,
)
from .runtime.cache import Cache, fingerprint
from .runtime.division import workers_of
from .runtime.executable import Compiled, CpuExecutable

# What load_delegate("cpu", options) takes: the constructor's parameters.
OPTIONS = frozenset(
    {"target", "timed", "dump", "cache", "precision", "emulate", "checked", "sparse"}
)
# A compilation that takes longer says so on a terminal.


class CpuDelegate(Delegate):
    """Compiles parts to machine code.

    target: a row of targets.TARGETS, default this machine's. timed: count the ticks of every step.
    dump: a folder that every stage is written to. cache: False keeps nothing on disk. precision: of
    float products, f32 or bf16. emulate: a target or bf16 also without instructions for it, slowly.
    checked: test every access to memory, and raise where one leaves its tensor; slow, to find
    defects with. sparse: leave weights of zero out of products where that is faster (default: as
    SANDERLING_SPARSE says).
    """

    name = "cpu"

    def __init__(
        self,
        target: str | None = None,
        timed: bool = False,
        dump: str | Path | None = None,
        cache: bool = True,
        precision: str = "f32",
        emulate: bool = False,
        checked: bool | None = None,
        sparse: bool | None = None,
    ) -> None:
        self.emulate = emulate
        self.checked = CHECKED.is_on() if checked is None else checked
        row = host_target() if target is None else find(target)
        row = emulated(row) if emulate and not runnable(row) and emulatable(row) else row
        row = replace(row, sparse=SPARSE.is_on() if sparse is None else sparse)
        self.target: Target = self._at(row, precision)
        self.problem = problem()
        self.timed = timed
        self.dump = dump
        self.cache = Cache() if cache else Cache("off")

    def configure(self, options: Mapping[str, Any]) -> CpuDelegate:
        """The constructor's parameters, by name."""
        unknown = sorted(set(options) - OPTIONS)
        if unknown:
            raise InputError(
                f"the cpu delegate has no option '{unknown[0]}'",
                fix=f"it has {', '.join(sorted(OPTIONS))}",
            )
        return type(self)(**options)

    def refuses(self, op: Op) -> str | None:
        from .table import refusal

        return self.problem or refusal(op, self.target)

    def refuses_each(self, ops: Sequence[Op]) -> list[str | None]:
        """The reasons against many ops at once; remembered, since asking needs the kernels."""
        key = self.cache.key("refusals", fingerprint(ops, (), (), whole=False), self.target)
        found = self.cache.load_reasons(key, len(ops))
        if found is None:
            found = [self.refuses(op) for op in ops]
            self.cache.store_reasons(key, found)
        return found

    @property
    def identity(self) -> str | None:
        """Tells plans for different settings apart; None if they are not to be remembered."""
        if self.cache.folder is None or self.dump or DUMP.text():
            return None
        row = self.target
        kind = f"{row.name} {row.features} {row.precision} {row.sparse}"
        return f"cpu {kind} {self.timed} {self.checked}"

    def check_options(self, options: Mapping[str, Any]) -> None:
        """A session's options: raises or warns when it is made, not when it first runs."""
        self._for(options)

    def _for(self, options: Mapping[str, Any]) -> Target:
        return self._at(self.target, options.get("precision", self.target.precision))

    def _at(self, row: Target, precision: object) -> Target:
        """The row at this precision, if there are instructions for it."""
        if precision not in PRECISIONS:
            raise InputError(
                f"the cpu delegate has no precision {precision!r}",
                fix=f"one of {', '.join(PRECISIONS)}",
            )
        if precision == "bf16" and not (row.bf16 or self.emulate):
            _warn_of_precision(row.name)
            precision = "f32"
        return replace(row, precision=str(precision))

    def compile(self, part: Graph, options: Options) -> CpuExecutable:
        if not runnable(self.target):
            raise DelegateError(
                f"this machine cannot run code for {self.target.name}",
                where="delegate 'cpu'",
                fix="leave the target out, or give emulate=True",
            )
        compiled, key = self._compiled(part, self._for(options.extra))
        return self._executable(compiled, key, options.threads)

    def restore(self, key: str, threads: int) -> CpuExecutable | None:
        """What was compiled before under this key, if it is still there."""
        found = self.cache.load(key)
        return None if found is None else self._executable(found, key, threads)

    def _executable(self, compiled: Compiled, key: str, threads: int) -> CpuExecutable:
        workers = workers_of(compiled.works, threads)
        if not compiled.traced:
            return CpuExecutable(compiled, workers, key)
        from .runtime.traced import TracedExecutable

        return TracedExecutable(compiled, workers, key)

    def _key(self, part: Graph, row: Target, traced: bool) -> str:
        content = fingerprint(part.ops, part.inputs, part.outputs)
        # Code that tells of its steps has names of its own, as has code that checks.
        more = [name for name, on in (("traced", traced), ("checked", self.checked)) if on]
        return self.cache.key("part", content, row, self.timed, *more)

    def compiled(self, part: Graph) -> Compiled:
        """The part's code: from the cache, or made now (the part is changed then)."""
        return self._compiled(part, self.target)[0]

    def _compiled(self, part: Graph, row: Target) -> tuple[Compiled, str]:
        """With the key under which it is kept."""
        traced = tape.recorder is not None  # asked once: others may begin or end a recording
        key = self._key(part, row, traced)
        root = self.dump or DUMP.text()
        if not root:
            with span("look into the cache", "compile"):
                found = self.cache.load(key)
            if found is not None:
                return found, key
        what = f"compiling {plural(len(part.ops), 'op')} for {row.name}"
        with waiting(f"{what} (once; the result is kept)"), span(what, "compile"):
            from .build import Settings, build
            from .steps.dump import Dump, folder_for

            folder = folder_for(str(root), part, key) if root else None
            settings = Settings(row, self.timed, traced, self.checked)
            made = build(part, settings, Dump(folder), self.cache)
        with span("keep the code", "compile", {"bytes": len(made.image.code)}):
            return self.cache.store(key, made), key

    def explain(self, part: Graph) -> str:
        """The steps that a part becomes: kernels, places, costs. The part is changed."""
        from .steps.dump import table

        return table(self.compiled(part).report)


def build(delegate: CpuDelegate, part: Graph) -> Compiled:
    """The part's code, made now."""
    from .build import build
    from .steps.dump import Dump

    return build(part, _settings(delegate), Dump(None), Cache("off"))


def lower(part: Graph, delegate: CpuDelegate) -> tuple[Any, int]:
    """The part as a program with its module written, and the bytes of its arena."""
    from .build import lower
    from .steps.dump import Dump

    return lower(part, _settings(delegate), Dump(None))


def _settings(delegate: CpuDelegate) -> Any:
    from .build import Settings

    return Settings(delegate.target, delegate.timed, checked=delegate.checked)


@cache
def _warn_of_precision(name: str) -> None:
    """Once."""
    warnings.warn(
        f"{name} has no bf16 instructions: float products are computed in f32",
        FallbackWarning,
        stacklevel=5,
    )

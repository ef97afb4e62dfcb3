"""A program in pieces that are compiled apart: in threads, and each distinct one once.

A tile that several functions call is a piece, for the arguments that all of them give alike. So is
one of a large step: its text tells nothing of the step's size, so that layers of other sizes, other
batches and other models have it too. A small step has its tiles with it: apart, small models took
up to 1.03 times as long. Other steps share pieces. The last piece is what calls the steps. What a
piece becomes depends on its text alone, so the image is the same whatever was kept from before and
however many threads took part.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import llvmlite.ir as ir

from ....spans import span
from ..isa.targets import Target
from ..runtime.image import Image, link
from .compiling import Crew
from .program import BODY

_NAME = re.compile(r'@"([^"]+)"')
_BODY = re.compile(r"body\d+_")  # as program.py calls them
_CALL = ir.instructions.CallInstr
_METADATA = re.compile(r"!prof (!\d+)")
_DEFINE = re.compile("define (hidden )?")
# Steps without tiles of their own in a piece: each takes LLVM 1.4 ms beside what is in it.
BUNDLE = 8
# The arguments of a call: text of a constant, None of what is known only at run time.
Given = list[str | None]


class Kept(Protocol):
    """Object code from before, by the digest of what it is compiled from."""

    def load_piece(self, key: bytes) -> bytes | None: ...


@dataclass(eq=False)
class _Function:
    """A function of the program, and how it is called."""

    value: ir.Function
    callers: set[str] = field(default_factory=set)
    sites: int = 0  # where it is called
    of_large: bool = False  # a large step calls it
    always: Given = field(default_factory=list)  # what all calls give alike
    calls: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.value.name)

    @property
    def is_step(self) -> bool:
        return _BODY.match(self.name) is not None

    @property
    def is_tile(self) -> bool:
        return self.value.linkage == "hidden"

    @property
    def is_apart(self) -> bool:
        """Whether it is a piece of its own."""
        return self.is_tile and (len(self.callers) > 1 or self.of_large)

    def called(self, caller: str, given: Given) -> None:
        both = zip(self.always, given, strict=True) if self.callers else ((g, g) for g in given)
        self.always = [a if a == b else None for a, b in both]
        self.callers.add(caller)
        self.sites += 1

    @property
    def text(self) -> str:
        return str(self.value)


class Pieces:
    """The functions of a program on their way to an image. large: steps that take long enough for
    calls of their tiles not to count."""

    def __init__(
        self,
        module: ir.Module,
        target: Target,
        crew: Crew,
        kept: Kept,
        large: Collection[str] = (),
    ) -> None:
        self.module, self.target, self.crew, self.kept = module, target, crew, kept
        self._known: dict[bytes, bytes] = {}  # what was kept
        self._keys: list[bytes] = []  # of the pieces, in order
        self._names: dict[int, dict[str, list[str]]] = {}  # what a piece's functions are called
        self._functions = {f.name: _Function(f) for f in module.functions if f.blocks}
        for row in self._functions.values():
            self._note_calls(row, row.name in large)

    def _note_calls(self, row: _Function, is_large: bool) -> None:
        for block in row.value.blocks:
            for call in block.instructions:
                if isinstance(call, _CALL) and call.callee.name in self._functions:
                    row.calls.append(call.callee.name)
                    callee = self._functions[call.callee.name]
                    callee.called(row.name, list(map(_known, call.args)))
                    callee.of_large |= is_large

    def image(self) -> Image:
        """All pieces as one image."""
        with span("cut into pieces", "compile"):
            self._submit_tiles()
            self._submit_steps()
            self._submit_rest()
        with span("LLVM", "compile"):
            self.crew.finish()
        with span("link", "compile"):
            made = self._known | self.crew.made
            return link(*(made[key] for key in self._keys), names=self._names)

    # -- the pieces -------------------------------------------------------------------------------

    def _submit_tiles(self) -> None:
        for row in self._functions.values():
            if row.is_apart:
                self._submit(row)

    def _submit(self, root: _Function) -> None:
        """A piece of a tile and those that it alone calls."""
        others = self._own_of(root)
        texts = [_internal(r) for r in others]
        own = {r.name for r in (root, *others)}
        if any(root.always):
            own.add(_general(root))
            texts += _specialised(root)
        else:
            texts.append(root.text)
        self._submit_text(texts, own)

    def _own_of(self, root: _Function) -> list[_Function]:
        """The tiles that only this function calls, or only those that it calls."""
        found = [root]
        for row in found:
            called = [self._functions[n] for n in dict.fromkeys(row.calls)]
            found += [r for r in called if r.is_tile and not r.is_apart]
        return found[1:]

    def _submit_steps(self) -> None:
        """Equal steps are compiled once."""
        short: dict[str, list[str]] = {}
        for row in self._functions.values():
            if row.is_step and (others := self._own_of(row)):
                names = {r.name for r in others}
                self._submit_bundle({_nameless(row): [row.name]}, [*map(_internal, others)], names)
            elif row.is_step:
                short.setdefault(_nameless(row), []).append(row.name)
        texts = list(short)
        for at in range(0, len(texts), BUNDLE):
            self._submit_bundle({t: short[t] for t in texts[at : at + BUNDLE]})

    def _submit_bundle(
        self,
        steps: Mapping[str, list[str]],
        more: Sequence[str] = (),
        theirs: Collection[str] = (),
    ) -> None:
        """Steps are called by their places here: their numbers in the program do not count. more:
        texts of tiles that go with them, and their names."""
        own = {f"{BODY}{i}": text for i, text in enumerate(steps)}
        texts = [text.replace('@"{}"', f'@"{name}"', 1) for name, text in own.items()]
        self._names[len(self._keys)] = dict(zip(own, steps.values(), strict=True))
        self._submit_text([*more, *texts], {*own, *theirs})

    def _submit_rest(self) -> None:
        """What calls the steps; and what pieces call that is no tile, which they have to see."""
        rest = {r.name: r for r in self._functions.values() if not r.is_step and not r.is_tile}
        texts = [
            r.text
            if r.callers <= rest.keys()
            else r.text.replace("define internal", "define hidden", 1)
            for r in rest.values()
        ]
        self._submit_text(texts, set(rest), brief=False)

    def _submit_text(self, texts: Sequence[str], own: set[str], brief: bool = True) -> None:
        """A module of these functions, with declarations of what they call."""
        named = dict.fromkeys(name for text in texts for name in _NAME.findall(text))
        declared = [_declaration(self.module.globals[n]) for n in named if n not in own]
        used = {name for text in texts for name in _METADATA.findall(text)}
        metadata = [str(m) for m in self.module.metadata if m.get_reference() in used]
        head = f'target triple = "{self.module.triple}"'
        whole = "\n".join([head, *declared, *texts, *metadata])
        self._keys.append(key := self._key(whole, brief))
        code = self.kept.load_piece(key)
        if code is None:
            self.crew.compile(key, whole, brief)
        else:
            self._known[key] = code

    def _key(self, text: str, brief: bool) -> bytes:
        row = self.target
        about = repr((row.triple, row.cpu, row.features, row.emulated, self.crew.quick, brief))
        return hashlib.blake2b(f"{about}\n{text}".encode(), digest_size=16).digest()


def _known(argument: object) -> str | None:
    if isinstance(argument, ir.GlobalVariable):  # a table of constants
        return f"{argument.type} {argument.get_reference()}"
    return str(argument) if isinstance(argument, ir.Constant) else None


def _nameless(row: _Function) -> str:
    return row.text.replace(f'@"{row.name}"', '@"{}"', 1)


def _internal(row: _Function) -> str:
    """The text of a function that its piece alone calls; it is inlined where one place does."""
    text = _DEFINE.sub("define internal ", row.text, count=1)
    return _inlined(text) if row.sites == 1 and "noinline" not in _head(text) else text


def _head(text: str) -> str:
    return text[: text.index("\n")]


def _inlined(text: str) -> str:
    return text.replace("\n", " alwaysinline\n", 1)


def _general(row: _Function) -> str:
    return f"{row.name}.general"


def _specialised(row: _Function) -> list[str]:
    """The tile for the arguments that all its callers give: in one module LLVM would find them."""
    kinds = [str(a.type) for a in row.value.args]
    taken = [f"{kind} %{i}" for i, kind in enumerate(kinds)]
    given = [constant or one for constant, one in zip(row.always, taken, strict=True)]
    text = _DEFINE.sub("define internal ", row.text, count=1)
    text = text.replace(f'@"{row.name}"(', f'@"{_general(row)}"(', 1).replace(" noinline", "", 1)
    return [
        _inlined(text),
        f'define hidden void @"{row.name}"({", ".join(taken)}) nounwind "no-builtins" {{\n'
        f'  call void @"{_general(row)}"({", ".join(given)})\n  ret void\n}}',
    ]


def _declaration(found: ir.Function | ir.GlobalVariable) -> str:
    """What a module has to say of something that it uses; tables of constants it has itself."""
    if not isinstance(found, ir.Function) or found.is_declaration:
        return str(found)
    kind = found.function_type
    arguments = ", ".join(map(str, kind.args))
    return f'declare hidden {kind.return_type} @"{found.name}"({arguments})'

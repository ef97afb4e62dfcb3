"""A program in pieces that are compiled apart: in threads, and each distinct one once.

A tile that several functions call is a piece, for the arguments that all of them give alike. A tile
that one function alone calls goes with it: apart, small models took up to 1.2 times as long. Steps
that call only shared tiles are short and share pieces. The last piece is what calls the steps. What
a piece becomes depends on its text alone, so the image is the same whatever was known before and
however many threads took part.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import llvmlite.ir as ir

from ....spans import span
from ..isa.targets import Target
from ..runtime.image import Image, link
from .compiling import Crew

_NAME = re.compile(r'@"([^"]+)"')
_BODY = re.compile(r"body\d+_")  # as program.py calls them
_CALL = ir.instructions.CallInstr
_METADATA = re.compile(r"!prof (!\d+)")
_DEFINE = re.compile("define (hidden )?")
# Short steps in a piece: each piece takes LLVM 1.4 ms beside what is in it.
BUNDLE = 8
Known = Mapping[bytes, bytes]  # object code by the key of its text
# The arguments of a call: text of a constant, None of what is known only at run time.
Given = list[str | None]


@dataclass(eq=False)
class _Function:
    """A function of the program, and how it is called."""

    value: ir.Function
    callers: set[str] = field(default_factory=set)
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
    def is_shared(self) -> bool:
        return len(self.callers) > 1

    def called(self, caller: str, given: Given) -> None:
        both = zip(self.always, given, strict=True) if self.callers else ((g, g) for g in given)
        self.always = [a if a == b else None for a, b in both]
        self.callers.add(caller)

    @property
    def text(self) -> str:
        return str(self.value)


class Pieces:
    """The functions of a program on their way to an image."""

    def __init__(
        self, module: ir.Module, target: Target, crew: Crew, known: Known | None = None
    ) -> None:
        self.module, self.target, self.crew = module, target, crew
        self.known: Known = {} if known is None else known
        self._keys: list[bytes] = []  # of the pieces, in order
        self._names: dict[int, dict[str, list[str]]] = {}  # what a piece's functions are called
        self._functions = {f.name: _Function(f) for f in module.functions if f.blocks}
        for row in self._functions.values():
            self._note_calls(row)

    def _note_calls(self, row: _Function) -> None:
        for block in row.value.blocks:
            for call in block.instructions:
                if isinstance(call, _CALL) and call.callee.name in self._functions:
                    row.calls.append(call.callee.name)
                    self._functions[call.callee.name].called(row.name, list(map(_known, call.args)))

    def image(self) -> Image:
        """All pieces as one image."""
        with span("cut into pieces", "compile"):
            self._submit_tiles()
            self._submit_steps()
            self._submit_rest()
        with span("LLVM", "compile"):
            self.crew.finish()
        with span("link", "compile"):
            return link(*(code for _, code in self.compiled()), names=self._names)

    def compiled(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys and object code of the pieces."""
        for key in self._keys:
            yield key, self.crew.made[key] if key in self.crew.made else self.known[key]

    # -- the pieces -------------------------------------------------------------------------------

    def _submit_tiles(self) -> None:
        for row in self._functions.values():
            if row.is_tile and row.is_shared:
                self._submit(row)

    def _submit(self, root: _Function) -> None:
        """A piece of a function and those that it alone calls."""
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
            found += [r for r in called if r.is_tile and not r.is_shared]
        return found[1:]

    def _submit_steps(self) -> None:
        """Equal steps are compiled once."""
        short: dict[str, list[str]] = {}
        for row in self._functions.values():
            if row.is_step and self._own_of(row):
                self._submit(row)
            elif row.is_step:
                text = row.text.replace(f'@"{row.name}"', '@"{}"', 1)
                short.setdefault(text, []).append(row.name)
        texts = list(short)
        for at in range(0, len(texts), BUNDLE):
            self._submit_bundle({t: short[t] for t in texts[at : at + BUNDLE]})

    def _submit_bundle(self, steps: Mapping[str, list[str]]) -> None:
        """Steps are called by their places here: their numbers in the program do not count."""
        own = {f"body{i}": text for i, text in enumerate(steps)}
        texts = [text.replace('@"{}"', f'@"{name}"', 1) for name, text in own.items()]
        self._names[len(self._keys)] = dict(zip(own, steps.values(), strict=True))
        self._submit_text(texts, set(own), light=True)

    def _submit_rest(self) -> None:
        """What calls the steps; and what pieces call that is no tile, which they have to see."""
        rest = {r.name: r for r in self._functions.values() if not r.is_step and not r.is_tile}
        texts = [
            r.text
            if r.callers <= rest.keys()
            else r.text.replace("define internal", "define hidden", 1)
            for r in rest.values()
        ]
        self._submit_text(texts, set(rest))

    def _submit_text(self, texts: Sequence[str], own: set[str], light: bool = False) -> None:
        """A module of these functions, with declarations of what they call."""
        named = dict.fromkeys(name for text in texts for name in _NAME.findall(text))
        declared = [_declaration(self.module.globals[n]) for n in named if n not in own]
        used = {name for text in texts for name in _METADATA.findall(text)}
        metadata = [str(m) for m in self.module.metadata if m.get_reference() in used]
        head = f'target triple = "{self.module.triple}"'
        whole = "\n".join([head, *declared, *texts, *metadata])
        self._keys.append(key := self._key(whole, light))
        if key not in self.known:
            self.crew.compile(key, whole, light)

    def _key(self, text: str, light: bool) -> bytes:
        row = self.target
        about = repr((row.triple, row.cpu, row.features, row.emulated, self.crew.quick, light))
        return hashlib.blake2b(f"{about}\n{text}".encode(), digest_size=16).digest()


def _known(argument: object) -> str | None:
    if isinstance(argument, ir.GlobalVariable):  # a table of constants
        return f"{argument.type} {argument.get_reference()}"
    return str(argument) if isinstance(argument, ir.Constant) else None


def _internal(row: _Function) -> str:
    return _DEFINE.sub("define internal ", row.text, count=1)


def _general(row: _Function) -> str:
    return f"{row.name}.general"


def _specialised(row: _Function) -> list[str]:
    """The tile for the arguments that all its callers give: in one module LLVM would find them."""
    kinds = [str(a.type) for a in row.value.args]
    taken = [f"{kind} %{i}" for i, kind in enumerate(kinds)]
    given = [constant or one for constant, one in zip(row.always, taken, strict=True)]
    return [
        _internal(row)
        .replace(f'@"{row.name}"(', f'@"{_general(row)}"(', 1)
        .replace(" noinline", "", 1),
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

"""`precision=auto`: which results stay in 32 bits, decided by what 16 bits do to samples.

The part runs twice on each sample, node by node: in 32 bits, and in 16 with each node given what
the first run found, so that each shows the error of its own. Whatever leaves the bound stays in 32
bits; then the whole part runs freely, and as long as its outputs leave the bound, more of the
nodes that err most stay too. Errors are shares of the largest magnitude of a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...ir import Array, Graph, Tensor
from ...ir.graph import copy_graph
from ...progress import plural
from ...runtime.delegate import Options
from ...spans import span
from . import layout
from .devices.device import Device
from .executable import GpuExecutable
from .lower import Lowered, lower
from .precision import AUTO, settled
from .program_sources import build_programs
from .recipe import ELEMENTS, recipe_of
from .samples import at_border, samples_of

BOUND = 0.01
ROUNDS = 4  # of a free run, and more that stays in 32 bits
MOST_HALF = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class Kept:
    """A result that stays in 32 bits. error: that it has in 16, infinite where values overflow or
    are NaN.
    largest: magnitude of its values."""

    op: str
    tensor: str
    error: float
    largest: float
    bound: float

    @property
    def reason(self) -> str:
        if self.largest > MOST_HALF:
            return f"values reach {self.largest:.3g}, 16 bits end at {MOST_HALF:.0f}"
        if not np.isfinite(self.error):
            return "a value of it is NaN, or one on the way to it overflows 16 bits"
        if self.error > self.bound:
            return f"its error is {self.error:.2%} of its range, the bound {self.bound:.2%}"
        return f"its error of {self.error:.2%} adds to one of the outputs that leaves the bound"

    def to_json(self) -> dict[str, Any]:
        error = self.error if np.isfinite(self.error) else None
        return {
            "op": self.op,
            "tensor": self.tensor,
            "error": error,
            "largest": self.largest,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Decision:
    """What a part is lowered with, and why. error: of the outputs, None if nothing was tried."""

    precision: str
    exact: frozenset[int] = frozenset()
    kept: Sequence[Kept] = ()
    all: int = 0
    error: float | None = None
    bound: float = BOUND
    tried_on: str = ""

    @property
    def _outputs(self) -> str:
        if self.error is None or not np.isfinite(self.error):
            return "the outputs hold NaN in 32 bits too, and cannot be compared"
        return f"the outputs' error is {self.error:.2g} of their range, the bound {self.bound:g}"

    @property
    def remarks(self) -> list[str]:
        """For people."""
        if self.error is None:
            return []
        half = self.all - len(self.exact)
        first = (
            f"precision auto: {half} of {plural(self.all, 'result')} in 16 bits ({self.precision}),"
            f" tried on {self.tried_on}; {self._outputs}"
        )
        return [first, *(f"{k.op} '{k.tensor}' stays in f32: {k.reason}" for k in self.kept)]


def decide(device: Device, part: Graph, options: Options, chosen: Mapping[str, Any]) -> Decision:
    """The precision of a part; with `auto`, what comes out of a trial."""
    precision = settled(chosen, device.offers)
    if precision != AUTO:
        return Decision(precision)
    with span("try half precision", "compile"):
        return Trial(device, part, chosen, _inputs(part, options, chosen)).decision()


def _inputs(part: Graph, options: Options, chosen: Mapping[str, Any]) -> list[list[Array]]:
    assert options.before is not None, "who plans a part says what stands before it"
    before = options.before()
    return at_border(before, samples_of(chosen, before.inputs))


@dataclass
class Made:
    """A value in the memory of a device, as a maker's last step leaves it."""

    step: int
    place: int
    element: str
    tensor: Tensor

    def read(self, made: GpuExecutable) -> Array:
        shape = layout.dims(self.tensor.shape)
        packed = np.empty((*shape[:-1], layout.slices(shape) * 4), ELEMENTS[self.element])
        made.device.read([(made.places[self.place], packed)], made.timeout)
        return packed[..., : shape[-1]].reshape(self.tensor.shape)

    def write(self, made: GpuExecutable, value: Array) -> None:
        """As near as its type comes to it."""
        if self.element == "f16":
            value = np.clip(value, -MOST_HALF, MOST_HALF)
        packed = layout.pack(value.astype(ELEMENTS[self.element]))
        with made.device.keeping() as kept:
            kept.append(made.device.write(made.places[self.place], packed))
            made.device.wait(made.timeout)  # the array is read until then


@dataclass
class Build:
    """The part, lowered and built in a precision."""

    lowered: Lowered
    made: GpuExecutable
    values: dict[int, list[Made]] = field(default_factory=dict)  # by maker; raw inputs are none


class Trial:
    def __init__(
        self, device: Device, part: Graph, chosen: Mapping[str, Any], inputs: list[list[Array]]
    ) -> None:
        self.device, self.part, self.inputs = device, part, inputs
        self.bound = float(chosen.get("precision_bound", BOUND))
        self.timeout = chosen.get("timeout")
        self.tried_on = "the samples" if "samples" in chosen else "noise"
        self.half = "f16" if device.offers.half else "f32_f16"
        self._builds: dict[tuple[str, frozenset[int]], Build] = {}

    def decision(self) -> Decision:
        exact = self.build("f32")
        outputs = [self.free(exact, each) for each in self.inputs]
        largest = self.largest(exact)
        # What overflows is out of the question, and would hide what comes behind it.
        kept = {place for place, value in largest.items() if value > MOST_HALF}
        half = self.build(self.half, frozenset(kept))
        errors = self.errors(exact, half) | dict.fromkeys(kept, float("inf"))
        kept |= {place for place, error in errors.items() if error > self.bound}
        kept, error = self.within_bound(kept, errors, outputs)
        rows = [
            Kept(*self._name(exact, place), errors[place], largest[place], self.bound)
            for place in sorted(kept)
        ]
        return Decision(
            self.half,
            frozenset(kept),
            rows,
            len(errors),
            error,
            self.bound,
            f"{self.tried_on} ({len(self.inputs)})",
        )

    def within_bound(
        self, kept: set[int], errors: Mapping[int, float], outputs: Sequence[list[Array]]
    ) -> tuple[set[int], float]:
        """More of those that err most, until the outputs are within the bound; and their error."""
        for _ in range(ROUNDS):
            error = self.output_error(frozenset(kept), outputs)
            rest = sorted(set(errors) - kept, key=errors.__getitem__)
            if error <= self.bound or not rest:
                return kept, error
            kept = kept | set(rest[-max(1, len(rest) // ROUNDS) :])
        return set(errors), self.output_error(frozenset(errors), outputs)

    def _name(self, build: Build, place: int) -> tuple[str, str]:
        """The op that makes the result of a maker, and the tensor."""
        first = len(build.lowered.inputs)
        if place < first:
            return "input", build.lowered.inputs[place].outside.name
        node = build.lowered.nodes.nodes[place - first]
        return node.ops[-1].name, node.output.name

    def build(self, precision: str, exact: frozenset[int] = frozenset()) -> Build:
        """Made once; what is tried later most often equals it."""
        if (precision, exact) not in self._builds:
            self._builds[precision, exact] = self._build(precision, exact)
        return self._builds[precision, exact]

    def _build(self, precision: str, exact: frozenset[int]) -> Build:
        device, lowered = self.device, self.lowered(precision, exact)
        recipe = recipe_of(lowered, device.offers.kind.group)
        made = GpuExecutable(device, recipe, build_programs(device, lowered, recipe))
        made.timeout = self.timeout or made.timeout
        found = Build(lowered, made)
        for place, tensors in enumerate(lowered.makers):
            values = [value for t in tensors if (value := _made(found, t)) is not None]
            if values:
                found.values[place] = values
        return found

    def lowered(self, precision: str, exact: frozenset[int] = frozenset()) -> Lowered:
        """In 32 bits codes are rounded as in 16, since otherwise other ops stand for them: places
        in Lowered.makers mean the same in both."""
        part, device = self.part, self.device
        own, _ = copy_graph(part, part.ops, part.inputs, part.outputs)
        # Buffers can be read and written by steps; the form of memory changes no number.
        offers, twice = device.offers.in_form("buffer"), self.half != "f16"
        return lower(own, offers, device.dialect, precision, exact, twice)

    # -- runs -------------------------------------------------------------------------------------

    def walk(
        self,
        build: Build,
        inputs: Sequence[Array],
        after: Callable[[int, Sequence[Made]], None] = lambda place, values: None,
    ) -> dict[int, list[Array]]:
        """A run, step by step: what each maker made. after: is told when it has been read."""
        made = build.made
        with made.device.keeping(made.places, made.launches) as kept:
            for number, array in zip(made.recipe.inputs, inputs, strict=True):
                kept.append(made.device.write(made.places[number], array))
            found = dict(self._made_by_steps(build, after))
            made.device.wait(made.timeout)
        return found

    def _made_by_steps(
        self, build: Build, after: Callable[[int, Sequence[Made]], None]
    ) -> Iterator[tuple[int, list[Array]]]:
        last = {max(v.step for v in values): place for place, values in build.values.items()}
        for step, launch in enumerate(build.made.launches):
            launch()
            if step in last:
                place = last[step]
                yield place, [value.read(build.made) for value in build.values[place]]
                after(place, build.values[place])

    def free(self, build: Build, inputs: Sequence[Array]) -> list[Array]:
        outputs: list[Array] = [np.empty(t.shape, t.dtype.numpy) for t in self.part.outputs]
        # A run updates variables in place, and samples are tried more than once.
        build.made.run([array.copy() for array in inputs], list(outputs))
        return outputs

    def values(self, exact: Build, inputs: Sequence[Array]) -> dict[int, list[Array]]:
        """What each maker makes in 32 bits. Inputs that are read where they are have no step."""
        raw = enumerate(exact.lowered.inputs)
        read = {p: inputs[p] for p, b in raw if b.outside in exact.lowered.raw}
        floats = {place: [value] for place, value in read.items() if value.dtype.kind == "f"}
        return floats | self.walk(exact, inputs)

    # One sample after the other: what all nodes make of many may be more than the host holds.

    def largest(self, exact: Build) -> dict[int, float]:
        """The largest magnitude that each maker makes."""
        most: dict[int, float] = {}
        for inputs in self.inputs:
            for place, values in self.values(exact, inputs).items():
                most[place] = max(most.get(place, 0.0), *map(_largest, values))
        return most

    def errors(self, exact: Build, half: Build) -> dict[int, float]:
        """The error that each maker has by itself: the largest over the samples."""
        worst = dict.fromkeys(half.values, 0.0)
        for inputs in self.inputs:
            expected = self.values(exact, inputs)

            def correct(
                place: int,
                values: Sequence[Made],
                expected: Mapping[int, list[Array]] = expected,
            ) -> None:
                for value, right in zip(values, expected[place], strict=True):
                    value.write(half.made, right)

            for place, found in self.walk(half, inputs, correct).items():
                pairs = zip(found, expected[place], strict=True)
                worst[place] = max(worst[place], *(error_of(a, b) for a, b in pairs))
        return worst

    def output_error(self, exact: frozenset[int], outputs: Sequence[list[Array]]) -> float:
        build = self.build(self.half, exact)
        pairs = [
            (got, expected)
            for inputs, answers in zip(self.inputs, outputs, strict=True)
            for got, expected in zip(self.free(build, inputs), answers, strict=True)
        ]
        return max((error_of(a, b) for a, b in pairs if b.dtype.kind == "f"), default=0.0)


def _made(build: Build, tensor: Tensor) -> Made | None:
    """Where a maker's result is; None where it has no step, or is none of floats."""
    steps, calls, found = build.lowered.steps, build.made.recipe.calls, None
    for number, step in enumerate(steps):
        if tensor not in step.node.outputs or step.name == "export":
            continue
        for memory, at in zip(step.arguments, calls[number].arguments, strict=True):
            if memory.tensor is tensor and memory.storage.element in ("f32", "f16"):
                found = Made(number, at, memory.storage.element, tensor)
    return found


def error_of(found: Array, expected: Array) -> float:
    """The largest difference, as a share of the largest magnitude. It is infinite where one is
    finite and the other is not, where infinities differ, and where a value is NaN: that one cannot
    be compared."""
    a, b = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(np.isfinite(a), finite) or not np.array_equal(a[~finite], b[~finite]):
        return float("inf")
    if not finite.any():
        return 0.0
    a, b = a[finite], b[finite]
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30))


def _largest(value: Array) -> float:
    finite = np.abs(value[np.isfinite(value)])
    return float(finite.max()) if finite.size else 0.0

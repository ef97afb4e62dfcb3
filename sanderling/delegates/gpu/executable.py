"""A compiled part: programs, memory, and the launches of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ...errors import DelegateError
from ...ir import Array
from ...runtime.delegate import BorderCopies, Executable, StepTimes
from ...runtime.delegate import Call as Run
from ...spans import tape
from .cache import Entry
from .devices.device import TIMEOUT, Device
from .recipe import WEIGHTS, Call, Recipe

if TYPE_CHECKING:
    from .timing import Watch

Rescue = Callable[[DelegateError], Executable]
Launcher = Callable[[], Any]


class GpuExecutable(Executable):
    """Runs steps on a device. One thread runs it at a time.

    rescue: gives the part on other delegates, for when a run fails; None: the error is raised.
    """

    copies: BorderCopies
    device: Device
    timeout = TIMEOUT

    def __init__(
        self,
        device: Device,
        recipe: Recipe,
        programs: Sequence[Any],
        rescue: Rescue | None = None,
        key: str | None = None,
    ) -> None:
        self.device, self.recipe, self.programs = device, recipe, programs
        self.key, self.sizes, self.rescue = key, recipe.sizes, rescue
        self.remarks = recipe.remarks
        self.copies = BorderCopies()
        self._instead: Executable | None = None
        self._watch: Watch | None = None
        self._program = {
            name: program
            for program, names in zip(programs, recipe.programs, strict=True)
            for name in names
        }
        self.places = [self._allocate(number) for number in range(len(recipe.places))]
        self.launches = self.launchers(self.places)

    def _allocate(self, number: int) -> Any:
        place = self.recipe.places[number]
        if place.kind != WEIGHTS:
            return self.device.allocate(place.nbytes, place.storage)
        data = self.recipe.weight(place)
        shared = self.device.share(data) if place.form == "buffer" else None
        return self.device.upload(data, place.storage) if shared is None else shared

    def let_go(self) -> GpuExecutable:
        """The host forgets weights that the device has copies of; what they share stays. Asked when
        nothing is to be kept on disk any more."""
        self.recipe = replace(self.recipe, weights=self.recipe.weights[:0].copy())
        return self

    def launcher(self, call: Call, places: Sequence[Any], group: Sequence[int]) -> Launcher:
        memory = [places[i] for i in call.arguments]
        return self.device.launcher(self._program[call.kernel], call, memory, group)

    def launchers(self, places: Sequence[Any]) -> list[Launcher]:
        return [self.launcher(call, places, call.group) for call in self.recipe.calls]

    def memory(self) -> dict[str, int]:
        return self.recipe.memory() if self._instead is None else self._instead.memory()

    # -- runs -------------------------------------------------------------------------------------

    def run(self, inputs: Sequence[Array], outputs: list[Array | None]) -> None:
        self._guarded(lambda: Bound(self, inputs, outputs)(), inputs, outputs)

    def _guarded(
        self, run: Callable[[], None], inputs: Sequence[Array], outputs: list[Array | None]
    ) -> None:
        """A run on the device; after the first that failed, on other delegates."""
        if self._instead is None:
            try:
                run()
                return
            except DelegateError as error:
                if self.rescue is None:
                    raise
                self._instead = self.rescue(error)
                self.places, self.launches = [], []  # the device holds them as long as it must
        self.device.release()
        self._instead.run(inputs, outputs)

    def enqueue(self, launches: Sequence[Launcher]) -> None:
        """All launches of a run; while somebody asks when they are on the device, until they are
        over."""
        if self._is_watched:
            self._watched().run(launches)
            return
        for launch in launches:
            launch()

    @property
    def _is_watched(self) -> bool:
        return tape.recorder is not None or (self._watch is not None and self._watch.counts)

    def _watched(self) -> Watch:
        if self._watch is None:
            from .timing import Watch

            self._watch = Watch(self)
        return self._watch

    def step_times(self) -> StepTimes:
        watch = self._watched()
        watch.count(True)
        return watch

    def warm_up(self) -> None:
        """A run on whatever memory holds: some drivers compile at the first launch."""
        with self.device.keeping(self.places, self.launches):
            for launch in self.launches:
                launch()
            self.device.wait(self.timeout)

    def bind(self, inputs: Sequence[Array], outputs: list[Array | None]) -> Run:
        if self._instead is not None:
            return self._instead.bind(inputs, outputs)
        bound = Bound(self, inputs, outputs, self._shared(inputs))
        return lambda: self._guarded(bound, inputs, outputs)

    def _shared(self, inputs: Sequence[Array]) -> dict[int, Any]:
        """Memory that is an input's own, by the input's number. Not of variables: a run that fails
        leaves them as they were."""
        updated = {number for number, _ in self.recipe.states}
        found = {
            number: self.device.share(array.reshape(-1), rewritten=True)
            for number, array in enumerate(inputs)
            if number not in updated
        }
        return {number: memory for number, memory in found.items() if memory is not None}


class Bound:
    """A run on arrays that stay where they are.

    shared: memory that is an input's own, by the input's number, where the device reads it; other
    inputs are copied. Outputs always are, by the host, once the run is over: a device cannot be
    stopped, and what it still does after it was given up must not reach an array which by then
    holds another answer.
    """

    def __init__(
        self,
        made: GpuExecutable,
        inputs: Sequence[Array],
        outputs: Sequence[Array | None],
        shared: Mapping[int, Any] = MappingProxyType({}),
    ) -> None:
        recipe, places = made.recipe, made.places[:]
        for number, memory in shared.items():
            places[recipe.inputs[number]] = memory
        self._made, self._places, self._shared = made, places, [*shared.values()]
        self._launches = made.launchers(places) if shared else made.launches
        numbered = enumerate(zip(recipe.inputs, inputs, strict=True))
        self._written = [(places[n], array) for i, (n, array) in numbered if i not in shared]
        results = [array for array in outputs if array is not None]
        assert len(results) == len(outputs), "ops whose shapes depend on data are refused"
        updated = [(places[n], inputs[i]) for i, n in recipe.states]
        self._read = [(places[n], a) for n, a in zip(recipe.outputs, results, strict=True)]
        self._read += updated
        self._copied = [array for _, array in (*self._written, *self._read)]

    def __call__(self) -> None:
        device = self._made.device
        with device.keeping(self._places, self._launches) as kept:
            for memory in self._shared:
                device.give(memory)
            for memory, array in self._written:
                kept.append(device.write(memory, array))
            self._made.enqueue(self._launches)
            device.read(self._read, self._made.timeout)
        self._made.copies.count(self._copied)


# -- making one -----------------------------------------------------------------------------------


def restored(
    device: Device, entry: Entry, key: str, rescue: Rescue | None = None
) -> GpuExecutable | None:
    """What was kept, made ready; None if the driver does not take its programs back."""
    try:
        programs = device.load(entry.binaries)
    except DelegateError:
        return None
    made = GpuExecutable(device, entry.recipe, programs, rescue, key)
    made.restored = True
    return made

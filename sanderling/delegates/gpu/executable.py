"""A compiled part: programs, memory, and the launches of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...errors import DelegateError
from ...ir import Array
from ...runtime.delegate import BorderCopies, Executable, StepTimes
from ...runtime.delegate import Call as Run
from ...spans import tape
from .cache import Entry
from .devices.device import Device
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
    timeout = 600.0  # seconds that a run may take: a device that hangs must not hang its user

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
        self._guarded(lambda: self._run(inputs, outputs), inputs, outputs)

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
                self.places, self.launches = [], []  # they hold memory of a device that is lost
        self._instead.run(inputs, outputs)

    def _run(self, inputs: Sequence[Array], outputs: list[Array | None]) -> None:
        for number, array in zip(self.recipe.inputs, inputs, strict=True):
            self.device.write(self.places[number], array)
        self.enqueue(self.launches)
        self.device.wait(self.timeout)
        for number, result in zip(self.recipe.outputs, outputs, strict=True):
            assert result is not None, "ops whose shapes depend on data are refused"
            self.device.read(self.places[number], result)
        updated = self.update(inputs)
        self.copies.count(inputs, outputs, updated)

    def update(self, inputs: Sequence[Array]) -> list[Array]:
        """What the run left of variables goes into the caller's arrays, which are returned."""
        found = [(inputs[number], place) for number, place in self.recipe.states]
        for array, place in found:
            self.device.read(self.places[place], array)
        return [array for array, _ in found]

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
        for launch in self.launches:
            launch()
        self.device.wait(self.timeout)

    def bind(self, inputs: Sequence[Array], outputs: list[Array | None]) -> Run:
        if self._instead is not None:
            return self._instead.bind(inputs, outputs)
        bound = Bound(self, inputs, [array for array in outputs if array is not None])
        return lambda: self._guarded(bound, inputs, outputs)


class Bound:
    """A run on arrays that stay where they are. Those that the device can share are not copied."""

    def __init__(self, made: GpuExecutable, inputs: Sequence[Array], outputs: list[Array]) -> None:
        self._device, self._copies, self._made = made.device, made.copies, made
        places, self._inputs = made.places[:], inputs
        sides = (made.recipe.inputs, inputs), (made.recipe.outputs, outputs)
        updated = {made.recipe.inputs[number] for number, _ in made.recipe.states}
        for numbers, arrays in sides:
            for number, array in zip(numbers, arrays, strict=True):
                shared = None if number in updated else made.device.share(array.reshape(-1))
                places[number] = places[number] if shared is None else shared
        own = made.places
        (self._given, self._written), (self._taken, self._read) = (
            _parted(numbers, arrays, places, own) for numbers, arrays in sides
        )
        self._launches = made.launchers(places) if self._given or self._taken else made.launches
        self._copied = [array for _, array in (*self._written, *self._read)]

    def __call__(self) -> None:
        device = self._device
        for memory in self._given:
            device.give(memory)
        for memory, array in self._written:
            device.write(memory, array)
        self._made.enqueue(self._launches)
        device.wait(self._made.timeout)
        for memory in self._taken:
            device.take(memory)
        for memory, array in self._read:
            device.read(memory, array)
        self._copies.count(self._copied, self._made.update(self._inputs))


def _parted(
    numbers: Iterable[int], arrays: Iterable[Array], places: Sequence[Any], own: Sequence[Any]
) -> tuple[list[Any], list[tuple[Any, Array]]]:
    """Memory that is the caller's own, and memory that arrays are copied to or from."""
    pairs = list(zip(numbers, arrays, strict=True))
    shared = [places[n] for n, _ in pairs if places[n] is not own[n]]
    return shared, [(own[n], array) for n, array in pairs if places[n] is own[n]]


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

"""What the delegate asks of an interface to devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ....errors import DelegateError
from ....ir import Array
from ..language import Storage
from ..options import DeviceClass
from .failures import WHERE, lost, timed_out, within

if TYPE_CHECKING:
    from ..recipe import Call

BUFFER = Storage("f32")
TIMEOUT = 600.0  # seconds that a run may take: a device that hangs must not hang its user
# Vectors in a row of a texture: one width for all, so that tensors of any shape share their memory.
TEXTURE_WIDTH = 1024


@dataclass(frozen=True)
class Offers:
    """What a device says of itself. half: arithmetic in 16 bits. group: points of a work group at
    most. operands: memory objects of a kernel at most. subgroups: their sizes, least and greatest.
    image_vectors: of an image of one dimension at most. texture: width and height at most.
    """

    name: str
    interface: str
    platform: str
    driver: str
    kind: DeviceClass
    units: int
    memory: int = field(repr=False, compare=False)  # some drivers tell what is free just now
    half: bool
    images: bool
    shares_memory: bool
    group: int = 256
    operands: int = 64
    subgroups: tuple[int, int] | None = None
    image_vectors: int = 0
    texture: tuple[int, int] = (0, 0)

    def in_form(self, form: str | None) -> Offers:
        """The same device with its tensors in this form; None: in that of its class."""
        if form not in (None, "buffer") and not self.images:
            raise DelegateError(
                f"{self.name} has no images, which storage={form} needs",
                where=WHERE,
                fix="use storage=buffer",
            )
        return self if form is None else replace(self, kind=replace(self.kind, form=form))

    def storage(self, element: str) -> tuple[Storage, int]:
        """How floats of this type are kept in the form of the device's class, and the vectors of
        such a memory object at most."""
        form = self.kind.form if self.images else "buffer"
        if form == "image":
            return Storage(element, form), self.image_vectors
        if form == "texture":
            width = min(TEXTURE_WIDTH, self.texture[0])
            return Storage(element, form, width), width * self.texture[1]
        return Storage(element), self.memory


class Device(ABC):
    """A device that programs run on, for all sessions and threads of a process. Memory objects are
    its own; others hand them back to it. Whatever fails raises DelegateError."""

    offers: Offers
    dialect: type
    # A run did not end, or took others' work with it: whatever is asked from then on fails at once.
    is_lost: bool = False

    @abstractmethod
    def allocate(self, nbytes: int, storage: Storage = BUFFER) -> Any:
        """Memory for tensors, of the form that the storage has."""

    @abstractmethod
    def upload(self, data: Array, storage: Storage = BUFFER) -> Any:
        """Memory with these bytes, only to be read by programs."""

    @abstractmethod
    def build(self, sources: Sequence[str]) -> Sequence[Any]:
        """Programs, one for each source, built side by side."""

    @abstractmethod
    def launcher(
        self, program: Any, call: Call, memory: Sequence[Any], group: Sequence[int]
    ) -> Callable[[], Any]:
        """A launch of the kernel call.kernel over call.size on this memory, which it keeps."""

    @abstractmethod
    def write(self, memory: Any, data: Array) -> object:
        """From the host; in the order of launches. Waits for nothing: the array is read until the
        next read() or wait(), and what is returned is to be kept as long."""

    @abstractmethod
    def read(self, pairs: Sequence[tuple[Any, Array]], seconds: float = TIMEOUT) -> None:
        """Memory into arrays of the host, once all that was enqueued is over; waits as wait() does.
        The host itself fills the arrays when all has arrived: what is given up changes none."""

    @abstractmethod
    def finish(self) -> None:
        """Wait for all that was enqueued."""

    # What a device may offer beyond that.

    def wait(self, seconds: float) -> None:
        """Wait for all that was enqueued, but not longer: a device that hangs is given up."""
        within(seconds, self.finish, lambda: self.give_up(seconds))

    def give_up(self, seconds: float) -> Exception:
        self.is_lost = True
        return timed_out(self.offers.name, seconds)

    @contextmanager
    def keeping(self, *things: object) -> Iterator[list[object]]:
        """Around work for the device: these things, and what is added to the list, are kept after
        an exception until the device does not use them any more."""
        self.release()
        if self.is_lost:
            raise lost(self.offers.name)
        kept = [*things]
        try:
            yield kept
        except BaseException:
            self.hold(kept)
            raise

    def hold(self, things: list[object]) -> None:  # noqa: B027
        """Keep them until all that was enqueued by now is over, without waiting for that. Default:
        they may go, since the driver itself keeps what it uses."""

    def release(self) -> None:  # noqa: B027
        """Let go of what was held and is not in use any more."""

    def binaries(self, programs: Sequence[Any]) -> list[bytes]:
        """Programs as they can be kept. Asked after a run: some drivers compile at launch.
        Default []: they cannot be kept."""
        return []

    def load(self, binaries: Sequence[bytes]) -> Sequence[Any]:
        """Programs from what binaries() gave."""
        raise NotImplementedError

    def share(self, data: Array, rewritten: bool = False) -> Any | None:
        """Memory that is this array's own, for programs to read. rewritten: by the host, between
        runs. Default None: the device has no part in the host's."""
        return None

    def give(self, memory: Any) -> None:  # noqa: B027
        """Shared memory: what the host wrote becomes the device's, in the order of launches."""

    @contextmanager
    def timed(self, seconds: float = TIMEOUT) -> Iterator[bool]:
        """Whether this thread's launches within it tell when they ran, to span(); they are waited
        for within it. seconds: to wait for what was enqueued before. Default False: the device has
        no timers."""
        yield False

    def span(self, launched: Any) -> tuple[int, int]:
        """When a launch began and ended, in nanoseconds of the device's clock. launched: what the
        launcher returned; it is over."""
        raise NotImplementedError

"""What the delegate asks of an interface to devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ....ir import Array
from ..options import DeviceClass

if TYPE_CHECKING:
    from ..recipe import Call


@dataclass(frozen=True)
class Offers:
    """What a device says of itself."""

    name: str
    interface: str
    platform: str
    driver: str
    kind: DeviceClass
    units: int
    memory: int
    half: bool
    images: bool
    shares_memory: bool


class Device(ABC):
    """A device that programs run on. Memory objects are its own; others hand them back to it.
    Whatever fails raises DelegateError."""

    offers: Offers
    dialect: type

    @abstractmethod
    def allocate(self, nbytes: int) -> Any:
        """Memory for tensors."""

    @abstractmethod
    def upload(self, data: Array) -> Any:
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
    def write(self, memory: Any, data: Array) -> None:
        """From the host; in the order of launches. The array is read until the next read()."""

    @abstractmethod
    def read(self, memory: Any, data: Array) -> None:
        """To the host; waits for all that was enqueued."""

    @abstractmethod
    def finish(self) -> None:
        """Wait for all that was enqueued."""

    # What a device may offer beyond that.

    def binaries(self, programs: Sequence[Any]) -> list[bytes]:
        """Programs as they can be kept. Asked after a run: some drivers compile at launch.
        Default []: they cannot be kept."""
        return []

    def load(self, binaries: Sequence[bytes]) -> Sequence[Any]:
        """Programs from what binaries() gave."""
        raise NotImplementedError

    def share(self, data: Array) -> Any | None:
        """Memory that is this array's own. Default None: the device has no part in the host's."""
        return None

    def give(self, memory: Any) -> None:  # noqa: B027
        """Shared memory: what the host wrote becomes the device's."""

    def take(self, memory: Any) -> None:  # noqa: B027
        """Shared memory: what the device wrote becomes the host's, once all is computed."""

    def profile(self, on: bool) -> bool:
        """Whether launches from now on tell when they ran, to span(). Nothing must be under way.
        Default False: the device has no timers."""
        return False

    def span(self, launched: Any) -> tuple[int, int]:
        """When a launch began and ended, in nanoseconds of the device's clock. launched: what the
        launcher returned; it is over."""
        raise NotImplementedError

"""OpenCL, through pyopencl."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any

import numpy as np

from ....errors import FallbackWarning
from ....forks import renews
from ....ir import Array
from ....processors import usable_cpu_count
from ...extras import require_extra
from ..dialects.opencl_c import OpenClC
from ..language import Storage
from ..options import class_of
from ..recipe import Call
from .abandoned import Abandoned, IsOver
from .device import BUFFER, TIMEOUT, Device, Offers
from .failures import build_failure, failure, forked, lost
from .pocl import check_room, name_the_processor

# Bytes that an array must begin on to be shared: kernels read vectors element by element.
SHARED_ALIGNMENT = 16
# Where else drivers use the host's memory itself: from the start of a page on, whole cache lines.
PAGE, LINE = 4096, 64
# Between two looks at a queue that somebody waits for: nothing at first, for a sleep is no shorter
# than a small model; then a share of what has passed, and at most.
AWAKE, LOOK_SHARE, LOOK_SECONDS = 0.0005, 0.02, 0.005


def opencl() -> Any:
    """The package; the error has the pip command."""
    require_extra("pyopencl", "gpu", "gpu")
    import pyopencl

    _silence(pyopencl.CompilerWarning)
    return pyopencl


@cache
def _silence(remarks: type[Warning]) -> None:
    """Compilers remark on every kernel. Once for all: programs are built by several threads, among
    whom warnings.catch_warnings may leave all warnings off for good."""
    warnings.filterwarnings("ignore", category=remarks)


@cache
def devices() -> tuple[OpenClDevice, ...]:
    """The OpenCL devices of this machine, GPUs before others."""
    cl, found = opencl(), list[OpenClDevice]()
    try:
        platforms = cl.get_platforms()
    except cl.Error:
        return ()
    for platform in platforms:
        with _leaving_out(cl, platform):
            for device in platform.get_devices():
                name_the_processor(device)
                found.append(OpenClDevice(cl, device))
    found.sort(key=lambda d: bool(d.device.type & cl.device_type.CPU))
    return tuple(found)


@contextmanager
def _leaving_out(cl: Any, platform: Any) -> Iterator[None]:
    """A driver that fails where it is only asked costs no devices of others."""
    try:
        yield
    except cl.Error as error:
        name = ""
        with suppress(cl.Error):
            name = f" '{platform.name.strip()}'"
        said = f"an OpenCL driver{name} is left out, since it fails: {error}"
        warnings.warn(said, FallbackWarning, stacklevel=4)


def _subgroups(device: Any) -> tuple[int, int] | None:
    """Their sizes, where the driver says so."""
    if not any("subgroup" in name for name in device.extensions.split()):
        return None
    try:
        sizes = list(device.sub_group_sizes_intel)
    except Exception:  # asking is an error where the extension is not there
        return None
    return (min(sizes), max(sizes)) if sizes else None


def _texture(device: Any) -> tuple[int, int]:
    if not device.image_support:
        return 0, 0
    return device.image2d_max_width, device.image2d_max_height


class _OfThread(threading.local):
    """The queue that a thread launches into, where it is not the one of all."""

    queue: Any = None


class OpenClDevice(Device):
    dialect = OpenClC

    def __init__(self, cl: Any, device: Any) -> None:
        self.cl, self.device = cl, device
        is_cpu = bool(device.type & cl.device_type.CPU)
        self.offers = Offers(
            device.name.strip(),
            "opencl",
            device.platform.version.strip(),
            device.driver_version,
            class_of(is_cpu, device.vendor, device.name, device.native_vector_width_float),
            device.max_compute_units,
            device.global_mem_size,
            "cl_khr_fp16" in device.extensions,
            bool(device.image_support),
            bool(device.host_unified_memory),
            group=device.max_work_group_size,
            operands=device.max_parameter_size // 8,
            subgroups=_subgroups(device),
            image_vectors=device.image_max_buffer_size if device.image_support else 0,
            texture=_texture(device),
        )
        self._lock = threading.Lock()
        self._context: Any = None
        self._queue: Any = None
        self._timed_queue: Any = None
        self._of_thread = _OfThread()
        self._is_foreign = False  # opened before this process was forked
        self.abandoned = Abandoned()
        renews(self)

    def renew_lock(self) -> None:
        self._lock = threading.Lock()
        self.abandoned = Abandoned()  # what was in use stays: a child cannot ask the driver
        self._is_foreign = self._context is not None

    @property
    def context(self) -> Any:
        """Sessions and threads share one; the first to ask makes it."""
        if self._is_foreign:
            raise forked(self.offers.name)
        if self.is_lost:
            raise lost(self.offers.name)
        with self._lock:
            if self._context is None:
                with self._failing("gives no context"):
                    context = self.cl.Context([self.device])
                    self._queue = self.cl.CommandQueue(context, self.device)
                    self._context = context
            return self._context

    @property
    def queue(self) -> Any:
        return self.context and (self._of_thread.queue or self._queue)

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """The driver's errors as ours. what: that the device does not do."""
        try:
            yield
        except self.cl.Error as error:
            raise failure(self.offers.name, what, error) from error

    # -- memory -----------------------------------------------------------------------------------

    def allocate(self, nbytes: int, storage: Storage = BUFFER) -> Any:
        flags = self.cl.mem_flags.READ_WRITE
        with self._failing(f"has no {nbytes} bytes left"):
            if storage.form == "texture":
                return self._texture(flags, nbytes, storage)
            buffer = self.cl.Buffer(self.context, flags, max(16, nbytes))
            return self._seen(buffer, flags, storage)

    def upload(self, data: Array, storage: Storage = BUFFER) -> Any:
        flags = self.cl.mem_flags.READ_ONLY
        with self._failing(f"has no {data.nbytes} bytes left"):
            if storage.form == "texture":
                return self._texture(flags, data.nbytes, storage, data)
            copied = flags | self.cl.mem_flags.COPY_HOST_PTR
            return self._seen(self.cl.Buffer(self.context, copied, hostbuf=data), flags, storage)

    def _seen(self, buffer: Any, flags: int, storage: Storage) -> Any:
        """A buffer, or an image whose pixels are its vectors."""
        if storage.form == "buffer":
            return buffer
        pixels = buffer.size // (4 * storage.nbytes)
        return self.cl.create_image(
            self.context, flags, self._format(storage), shape=(pixels,), buffer=buffer
        )

    def _texture(self, flags: int, nbytes: int, storage: Storage, data: Array | None = None) -> Any:
        """Rows of vectors, the last one filled up."""
        row = 4 * storage.nbytes * storage.width
        shape = storage.width, max(1, -(-nbytes // row))
        if data is None:
            return self.cl.create_image(self.context, flags, self._format(storage), shape=shape)
        padded = np.zeros(shape[1] * row, np.uint8)
        padded[:nbytes] = data.reshape(-1).view(np.uint8)
        flags |= self.cl.mem_flags.COPY_HOST_PTR
        return self.cl.create_image(
            self.context, flags, self._format(storage), shape=shape, hostbuf=padded
        )

    def _format(self, storage: Storage) -> Any:
        kinds = self.cl.channel_type
        wide = {"f32": kinds.FLOAT, "f16": kinds.HALF_FLOAT, "i32": kinds.SIGNED_INT32}
        return self.cl.ImageFormat(self.cl.channel_order.RGBA, wide[storage.element])

    def share(self, data: Array, rewritten: bool = False) -> Any | None:
        """The buffer keeps the array. None where the driver would copy it, or cannot have it."""
        usable = data.nbytes and data.flags.writeable and data.ctypes.data % SHARED_ALIGNMENT == 0
        if not (self.offers.shares_memory and usable):
            return None
        if rewritten and not self._uses_itself(data):
            return None
        flags = self.cl.mem_flags.READ_WRITE | self.cl.mem_flags.USE_HOST_PTR
        try:
            return self.cl.Buffer(self.context, flags, hostbuf=data)
        except self.cl.Error:
            return None

    def _uses_itself(self, data: Array) -> bool:
        """Whether kernels read the array where it is. A driver that keeps a copy may put that back
        over what the host wrote since."""
        whole = data.ctypes.data % PAGE == 0 and data.nbytes % LINE == 0
        return whole or "PoCL" in self.offers.platform

    def give(self, memory: Any) -> None:
        """Shared memory is the host's between a map and its end, which is when caches are seen
        to; where they are one, this is two calls. What the device has of it is worth nothing."""
        with self._failing("does not hand over its memory"):
            queue, flags = self.queue, self.cl.map_flags.WRITE_INVALIDATE_REGION
            mapped, _ = self._mapped(queue, memory, flags, memory.size)
            mapped.base.release(queue)

    def _mapped(self, queue: Any, memory: Any, flags: int, nbytes: int) -> tuple[Any, Any]:
        """Bytes of the memory as an array of the host, once the event is over. Others may keep the
        queue busy for as long as they like, so that it is not waited for here."""
        return self.cl.enqueue_map_buffer(
            queue, memory, flags, 0, (nbytes,), np.uint8, is_blocking=False
        )

    def write(self, memory: Any, data: Array) -> object:
        """What is returned keeps the array, and waits for the copy when it goes."""
        with self._failing("takes no input"):
            return self.cl.enqueue_copy(self.queue, memory, data, is_blocking=False)

    def read(self, pairs: Sequence[tuple[Any, Array]], seconds: float = TIMEOUT) -> None:
        flags = self.cl.map_flags.READ
        with self._failing("did not finish a run"):
            queue = self.queue
            found = [
                (data, *self._mapped(queue, memory, flags, data.nbytes))
                for memory, data in pairs
                if data.nbytes
            ]
            self.wait(seconds)
            for _, _, event in found:
                event.wait()  # it is over: says what failed, if anything did
            for data, mapped, _ in found:
                np.copyto(data.reshape(-1).view(np.uint8), mapped)
                mapped.base.release(queue)

    def finish(self) -> None:
        with self._failing("did not finish a run"):
            self.queue.finish()

    def wait(self, seconds: float) -> None:
        """Looks at the queue again and again: a call that waits cannot be called off."""
        with self._failing("did not finish a run"):
            event = self.cl.enqueue_marker(self.queue)
            self.queue.flush()
            begin = time.monotonic()
            while event.command_execution_status > self.cl.command_execution_status.COMPLETE:
                passed = time.monotonic() - begin
                if passed > seconds:
                    raise self.give_up(seconds)
                time.sleep(0 if passed < AWAKE else min(LOOK_SECONDS, LOOK_SHARE * passed))
            event.wait()  # says what failed, if anything did

    def hold(self, things: list[object]) -> None:
        self.abandoned.hold(things, self._end_of_now())

    def release(self) -> None:
        self.abandoned.release()

    def _end_of_now(self) -> IsOver:
        """How to ask whether all that was enqueued by now is done. A driver that cannot be asked is
        taken for one that never is."""
        if self._is_foreign:
            return lambda: False
        cl, queues = self.cl, [queue for queue in (self._queue, self._timed_queue) if queue]
        try:
            ends = [cl.enqueue_marker(queue) for queue in queues]
            for queue in queues:
                queue.flush()
        except cl.Error:
            return lambda: False
        complete = cl.command_execution_status.COMPLETE
        return lambda: all(end.command_execution_status <= complete for end in ends)

    # -- programs ---------------------------------------------------------------------------------

    def build(self, sources: Sequence[str]) -> Sequence[Any]:
        context = self.context
        check_room(self.offers.platform, self.offers.name)
        with ThreadPoolExecutor(usable_cpu_count()) as pool:
            return list(pool.map(partial(self._build, context), sources))

    def _build(self, context: Any, source: str) -> Any:
        """Without the folder of pyopencl's own, which it keeps for some drivers: what is to be kept
        is in ours, and a process that was ended in there makes all others wait for its lock."""
        program = self.cl.Program(context, source)
        try:
            return program.build(options=["-cl-std=CL1.2"], cache_dir=False)
        except self.cl.Error as error:
            raise build_failure(self.offers.name, source, error) from error

    def binaries(self, programs: Sequence[Any]) -> list[bytes]:
        with self._failing("does not give its programs away"):
            return [bytes(program.binaries[0]) for program in programs]

    def load(self, binaries: Sequence[bytes]) -> Sequence[Any]:
        context = self.context
        check_room(self.offers.platform, self.offers.name)
        with self._failing("does not take its own programs back"):
            return [
                self.cl.Program(context, [self.device], [binary]).build() for binary in binaries
            ]

    def launcher(
        self, program: Any, call: Call, memory: Sequence[Any], group: Sequence[int]
    ) -> Callable[[], Any]:
        with self._failing(f"has no kernel {call.kernel}"):
            kernel = self.cl.Kernel(program, call.kernel)
            kernel.set_args(*memory)
        size = tuple(-(-n // g) * g for n, g in zip(call.size, group, strict=True))
        return Launch(self, kernel, size, tuple(group), tuple(memory))

    # -- times ------------------------------------------------------------------------------------

    @contextmanager
    def timed(self, seconds: float = TIMEOUT) -> Iterator[bool]:
        """In a second queue, which keeps times; other threads stay in the first. Inputs were
        written in the first, so that it is waited for."""
        self.wait(seconds)
        self._of_thread.queue = self._queue_with_times()
        try:
            yield True
        finally:
            self._of_thread.queue = None

    def _queue_with_times(self) -> Any:
        context = self.context
        with self._lock, self._failing("keeps no times"):
            if self._timed_queue is None:
                properties = self.cl.command_queue_properties.PROFILING_ENABLE
                self._timed_queue = self.cl.CommandQueue(context, self.device, properties)
            return self._timed_queue

    def span(self, launched: Any) -> tuple[int, int]:
        with self._failing("keeps no times"):
            return launched.profile.start, launched.profile.end


class Launch:
    """A kernel with its arguments, which it does not keep itself."""

    __slots__ = ("_about", "_device", "_enqueue", "kernel", "memory")

    def __init__(
        self, device: OpenClDevice, kernel: Any, size: Any, group: Any, memory: tuple[Any, ...]
    ) -> None:
        self._enqueue, self._about = device.cl.enqueue_nd_range_kernel, (kernel, size, group)
        self._device, self.kernel, self.memory = device, kernel, memory

    def __call__(self) -> Any:
        try:
            return self._enqueue(self._device.queue, *self._about)
        except self._device.cl.Error as error:
            name = self._device.offers.name
            raise failure(name, "does not run a kernel", error) from error

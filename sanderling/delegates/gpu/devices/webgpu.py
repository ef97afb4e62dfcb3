"""WebGPU, through wgpu."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import groupby, product
from typing import Any

import numpy as np

from ....errors import DelegateError
from ....forks import renews
from ....ir import Array
from ...extras import require_extra
from ..dialects.wgsl import Wgsl, arguments_of
from ..language import Storage
from ..options import SOFTWARE, DeviceClass, class_of
from ..recipe import Call
from .device import BUFFER, TIMEOUT, Device, Offers
from .failures import WHERE, build_failure, failure, forked, lost, within

# Sizes of memory are multiples of a vector of four: a shorter last one could not be read.
VECTOR = 16
# What a device is asked for, as much as the adapter has; the defaults are low.
LIMITS = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-size-x",
    "max-compute-workgroup-size-y",
    "max-compute-workgroup-size-z",
)
GROUPS = "max-compute-workgroups-per-dimension"
# Between two looks whether the device that others wait for was given up.
TURN_SECONDS = 0.05


def webgpu() -> Any:
    """The package; the error has the pip command."""
    require_extra("wgpu", "webgpu", "gpu")
    import wgpu

    return wgpu


@cache
def devices() -> tuple[WebGpuDevice, ...]:
    """The WebGPU devices of this machine, GPUs before others. Interfaces that only imitate
    WebGPU's own, such as OpenGL, are left out."""
    wgpu = webgpu()
    with suppress(Exception):  # somebody else uses the package in this process already
        from wgpu.backends.wgpu_native.extras import set_instance_extras

        set_instance_extras(backends=["Primary"])
    try:
        with _no_desktop():
            adapters = wgpu.gpu.enumerate_adapters_sync()
    except (RuntimeError, OSError):
        return ()
    found = [a for a in adapters if a.info["backend_type"] != "OpenGL"]
    found.sort(key=lambda a: a.info["adapter_type"] == "CPU")
    return tuple(WebGpuDevice(wgpu, a) for a in found)


@contextmanager
def _no_desktop() -> Iterator[None]:
    """Drivers look for a desktop to draw on, and some complain on stderr where its variable is not
    set; a folder without a desktop leaves them silent."""
    name = "XDG_RUNTIME_DIR"
    if name in os.environ:
        yield
        return
    os.environ[name] = tempfile.gettempdir()
    try:
        yield
    finally:
        del os.environ[name]


def _class_of(info: Any) -> DeviceClass:
    """WebGPU's memory is buffers, whatever else the device likes; its vectors have four lanes."""
    if info["adapter_type"] == "CPU":
        return SOFTWARE
    return replace(class_of(False, info["vendor"], info["device"]), form="buffer", scalars=False)


def _offers(adapter: Any) -> Offers:
    info, limits = adapter.info, adapter.limits
    operands = int(limits["max-storage-buffers-per-shader-stage"])
    return Offers(
        name=info["device"].strip() or info["description"].strip(),
        interface="webgpu",
        platform=info["backend_type"],
        driver=info["description"].strip(),
        kind=replace(_class_of(info), operands=min(SOFTWARE.operands, operands - 1)),
        units=0,
        memory=int(limits["max-buffer-size"]),
        half="shader-f16" in adapter.features,
        images=False,
        shares_memory=False,
        group=int(limits["max-compute-invocations-per-workgroup"]),
        operands=operands,
        subgroups=_subgroups(adapter),
    )


def _subgroups(adapter: Any) -> tuple[int, int] | None:
    if "subgroup" not in adapter.features and "subgroups" not in adapter.features:
        return None
    info = adapter.info
    names = (
        ("subgroup_min_size", "subgroup_max_size"),
        ("stackgroup_min_size", "stackgroup_max_size"),
    )
    return next(((int(info[a]), int(info[b])) for a, b in names if a in info), None)


@dataclass
class Module:
    """A program: its source, what the device made of it, and the pipelines that were made of that.
    Launches of one kernel in groups of one size share a pipeline: the driver compiles each anew."""

    source: str
    made: Any
    pipelines: dict[tuple[Any, ...], Any] = field(default_factory=dict)


class WebGpuDevice(Device):
    """Writes and launches are collected, and submitted together when somebody waits for them: only
    then is the device asked, by a thread that may be left behind."""

    dialect = Wgsl

    def __init__(self, wgpu: Any, adapter: Any) -> None:
        self.wgpu, self.adapter = wgpu, adapter
        self.offers = _offers(adapter)
        self._lock = threading.RLock()
        self._opened: Any = None
        self._is_foreign = False  # opened before this process was forked
        self._work: list[Launch | Write] = []
        self._adding = threading.Lock()  # to the work, while the other lock may be held for long
        renews(self)

    def renew_lock(self) -> None:
        self._lock, self._adding = threading.RLock(), threading.Lock()
        self._is_foreign = self._opened is not None

    @property
    def device(self) -> Any:
        """Sessions and threads share one; the first to ask opens it."""
        self._check_usable()
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def _check_usable(self) -> None:
        if self._is_foreign:
            raise forked(self.offers.name)
        if self.is_lost:
            raise lost(self.offers.name)

    def _open(self) -> Any:
        features = ["shader-f16"] if self.offers.half else []
        limits = {name: self.adapter.limits[name] for name in LIMITS}
        return self.adapter.request_device_sync(required_features=features, required_limits=limits)

    @contextmanager
    def _using(self, what: str) -> Iterator[Any]:
        """The opened device, for one thread at a time; its errors as ours. what: that it does not
        do."""
        with self._turn():
            try:
                yield self.device
            except (self.wgpu.GPUError, RuntimeError, ValueError, OSError) as error:
                if isinstance(error, DelegateError):
                    raise
                raise failure(self.offers.name, what, error) from error

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """The lock. Whoever holds it while the device hangs never gives it back."""
        while not self._lock.acquire(timeout=TURN_SECONDS):
            self._check_usable()
        try:
            yield
        finally:
            self._lock.release()

    # -- memory -----------------------------------------------------------------------------------

    def allocate(self, nbytes: int, storage: Storage = BUFFER) -> Any:
        usage = self.wgpu.BufferUsage
        with self._using(f"has no {nbytes} bytes left") as device:
            return device.create_buffer(
                size=max(VECTOR, -(-nbytes // VECTOR) * VECTOR),
                usage=usage.STORAGE | usage.COPY_SRC | usage.COPY_DST,
            )

    def upload(self, data: Array, storage: Storage = BUFFER) -> Any:
        memory = self.allocate(data.nbytes)
        with self._using("takes no weights") as device:
            device.queue.write_buffer(memory, 0, _words(data))
        return memory

    def write(self, memory: Any, data: Array) -> None:
        self.enqueue(Write(memory, data))

    def read(self, pairs: Sequence[tuple[Any, Array]], seconds: float = TIMEOUT) -> None:
        found: list[Array] = []
        sizes = [(memory, max(4, -(-data.nbytes // 4) * 4)) for memory, data in pairs]
        within(seconds, lambda: found.extend(self._arrived(sizes)), lambda: self.give_up(seconds))
        for (_, data), arrived in zip(pairs, found, strict=True):
            data.reshape(-1).view(np.uint8)[:] = arrived[: data.nbytes]

    def _arrived(self, sizes: Sequence[tuple[Any, int]]) -> list[Array]:
        """Copies of so many bytes of memory, after all that was enqueued."""
        with self._using("did not finish a run") as device:
            self._submit(device)
            return [
                np.frombuffer(device.queue.read_buffer(memory, 0, size), np.uint8)
                for memory, size in sizes
            ]

    def finish(self) -> None:
        """The queue's own way to wait is broken in wgpu 0.32: a read waits for all before it."""
        with self._using("did not finish a run") as device:
            self._submit(device)
            device.queue.read_buffer(self._small(device), 0, 4)

    def _small(self, device: Any) -> Any:
        return device.create_buffer(size=VECTOR, usage=self.wgpu.BufferUsage.COPY_SRC)

    # -- programs ---------------------------------------------------------------------------------

    def build(self, sources: Sequence[str]) -> Sequence[Any]:
        return [self._build(source) for source in sources]

    def _build(self, source: str) -> Module:
        with self._using("does not build a kernel") as device:
            try:
                return Module(source, device.create_shader_module(code=source))
            except self.wgpu.GPUError as error:
                raise build_failure(self.offers.name, source, error) from error

    def binaries(self, programs: Sequence[Any]) -> list[bytes]:
        """The sources: a later start has no kernels to write."""
        return [program.source.encode() for program in programs]

    def load(self, binaries: Sequence[bytes]) -> Sequence[Any]:
        return self.build([binary.decode() for binary in binaries])

    def launcher(
        self, program: Any, call: Call, memory: Sequence[Any], group: Sequence[int]
    ) -> Callable[[], Any]:
        written = arguments_of(program.source, call.kernel)
        self._check(call, written, group)
        with self._using(f"has no kernel {call.kernel}") as device:
            entries = [
                {
                    "binding": i,
                    "visibility": self.wgpu.ShaderStage.COMPUTE,
                    "buffer": {"type": "storage" if is_written else "read-only-storage"},
                }
                for i, is_written in enumerate(written)
            ]
            layout = device.create_bind_group_layout(entries=entries)
            bound = [
                {"binding": i, "resource": {"buffer": m, "offset": 0, "size": m.size}}
                for i, m in enumerate(memory)
            ]
            bindings = device.create_bind_group(layout=layout, entries=bound)
            pipe = partial(self._pipeline, device, program, call.kernel, layout, tuple(group))
            most = int(self.adapter.limits[GROUPS])
            dispatches = [
                (pipe(first), bindings, counts) for first, counts in chunks(call.size, group, most)
            ]
        return Launch(self, dispatches)

    def _check(self, call: Call, written: Sequence[bool], group: Sequence[int]) -> None:
        most, points = self.offers.operands, int(np.prod(group))
        if len(written) > most:
            raise DelegateError(
                f"the kernel {call.kernel} has {len(written)} memory objects, and "
                f"{self.offers.name} takes {most} at most",
                where=WHERE,
                fix="choose another device, or backend=opencl",
            )
        if points > self.offers.group:
            raise DelegateError(
                f"{self.offers.name} has no work groups of {points} points", where=WHERE
            )

    def _pipeline(
        self,
        device: Any,
        program: Module,
        kernel: str,
        layout: Any,
        group: Sequence[int],
        first: Sequence[int],
    ) -> Any:
        key = (kernel, *group, *first)
        if key not in program.pipelines:
            program.pipelines[key] = self._compiled(device, program, kernel, layout, group, first)
        return program.pipelines[key]

    def _compiled(
        self,
        device: Any,
        program: Module,
        kernel: str,
        layout: Any,
        group: Sequence[int],
        first: Sequence[int],
    ) -> Any:
        constants = {f"group_{a}": n for a, n in zip("xyz", group, strict=True)}
        constants |= {f"first_{a}": n for a, n in zip("xyz", first, strict=True)}
        try:
            return device.create_compute_pipeline(
                layout=device.create_pipeline_layout(bind_group_layouts=[layout]),
                compute={"module": program.made, "entry_point": kernel, "constants": constants},
            )
        except self.wgpu.GPUError as error:
            raise build_failure(self.offers.name, program.source, error) from error

    # -- launches ---------------------------------------------------------------------------------

    def enqueue(self, work: Launch | Write) -> None:
        self._check_usable()
        with self._adding:
            self._work.append(work)

    def _submit(self, device: Any) -> None:
        """All that was collected since the last time, of all threads. What fails takes the rest
        with it, and their memory would still answer them with what an earlier run left there."""
        with self._adding:
            work, self._work = self._work, []
        try:
            for kind, pieces in groupby(work, type):
                submit = self._submit_launches if kind is Launch else self._submit_writes
                submit(device, pieces)
        except BaseException:
            self.is_lost = True
            raise

    def _submit_writes(self, device: Any, writes: Iterable[Any]) -> None:
        for each in writes:
            device.queue.write_buffer(each.memory, 0, _words(each.data))

    def _submit_launches(self, device: Any, launches: Iterable[Any]) -> None:
        """In one piece."""
        encoder = device.create_command_encoder()
        steps = encoder.begin_compute_pass()
        for launch in launches:
            for pipeline, bindings, counts in launch.dispatches:
                steps.set_pipeline(pipeline)
                steps.set_bind_group(0, bindings)
                steps.dispatch_workgroups(*counts)
        steps.end()
        device.queue.submit([encoder.finish()])


@dataclass(frozen=True)
class Write:
    """An array on its way to the device's memory."""

    memory: Any
    data: Array


class Launch:
    """A kernel with its arguments: a dispatch, or several where the space is too large for one."""

    __slots__ = ("_device", "dispatches")

    def __init__(self, device: WebGpuDevice, dispatches: list[tuple[Any, Any, Any]]) -> None:
        self._device, self.dispatches = device, dispatches

    def __call__(self) -> None:
        self._device.enqueue(self)


Triple = tuple[int, ...]


def chunks(size: Sequence[int], group: Sequence[int], most: int) -> list[tuple[Triple, Triple]]:
    """Pieces of a space that have so many groups at most in each dimension: the first point of
    each, and its groups."""
    axes = []
    for extent, points in zip(size, group, strict=True):
        groups = -(-extent // points)
        axes.append([(g * points, min(most, groups - g)) for g in range(0, groups, most)])
    return [
        (tuple(first for first, _ in piece), tuple(count for _, count in piece))
        for piece in product(*axes)
    ]


def _words(data: Array) -> Array:
    """The bytes, as many as a whole number of words has."""
    flat: Array = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    rest = -flat.size % 4
    return np.concatenate([flat, np.zeros(rest, np.uint8)]) if rest else flat

"""From LiteRT's options to our delegates."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass

from ..errors import FallbackWarning, SanderlingError, UnsupportedError
from ..runtime.delegate import Delegate, as_delegate
from ..runtime.interpreter_checks import InvokeError
from ..runtime.registry import find_delegate, usable_delegate
from .cpu_kernel_mode import CpuKernelMode
from .gpu_options import GpuOptions
from .hardware_accelerator import HardwareAccelerator
from .options import Options

# Who is the GPU here: the first that there is.
GPUS = ("gpu", "litert-gpu")


@dataclass(frozen=True)
class Accelerators:
    """delegates in order of preference. accelerated: their names, of those that count as the
    accelerator that was asked for. alone: it has to run the whole model."""

    delegates: list[Delegate]
    accelerated: frozenset[str]
    alone: bool


def accelerators(options: Options) -> Accelerators:
    """The strongest that was asked for first, and the CPU behind it if it may help out."""
    asked = HardwareAccelerator(options.hardware_accelerators)
    if not any(flag in asked for flag in _FINDERS):
        raise InvokeError(
            f"no hardware accelerator is chosen by {int(asked)}",
            fix="HardwareAccelerator.CPU is always there",
        )
    has_cpu = HardwareAccelerator.CPU in asked
    made = {f: _found(find, options, has_cpu) for f, find in _FINDERS.items() if f in asked}
    # The strongest that was asked for is what counts, whether it is here or not.
    counted = frozenset(d.name for d in made[max(made)] if d.name != "reference")
    found = [delegate for several in made.values() for delegate in several]
    return Accelerators(found, counted, not has_cpu)


def _found(find: Callable[[Options], Delegate], options: Options, has_cpu: bool) -> list[Delegate]:
    try:
        return [find(options)]
    except SanderlingError as error:
        if not has_cpu:
            raise
        warnings.warn(f"{error.what}; the CPU runs the model", FallbackWarning, stacklevel=5)
        return []


def _npu(options: Options) -> Delegate:
    raise UnsupportedError(
        "there is no NPU here: LiteRT reaches one through a vendor's library",
        where="HardwareAccelerator.NPU",
        fix="NPU | CPU lets the CPU run the model",
    )


def _gpu(options: Options) -> Delegate:
    """The first that is here, with LiteRT's options as its own."""
    problems = []
    for name in GPUS:
        found, problem = usable_delegate(name)
        if found is None:
            problems.append(problem)
            continue
        if lacking := _lacking(found, options.gpu_options):
            problems.append(lacking)
            continue
        if software := _software(found, options):
            problems.append(software)
            break
        return _configured(found, options.gpu_options)
    raise UnsupportedError(
        f"there is no GPU here: {'; '.join(problems)}",
        where="HardwareAccelerator.GPU",
        fix="GPU | CPU lets the CPU run the model",
    )


def _lacking(found: Delegate, options: GpuOptions) -> str:
    """The only option that changes answers and that a delegate may not have; others are hints of
    how LiteRT's accelerator is to run (docs/compiled-model.md)."""
    if not options.infinite_float_capping or "infinite_float_capping" in found.options:
        return ""
    return f"the delegate '{found.name}' does not cap infinite floats (infinite_float_capping)"


def _software(found: Delegate, options: Options) -> str:
    """A device that is the processor itself is no GPU to whom the CPU is as welcome."""
    has_cpu = HardwareAccelerator.CPU in HardwareAccelerator(options.hardware_accelerators)
    if not has_cpu or not found.is_software:
        return ""
    name = found.device_name()
    return f"the only device is the processor itself ({name}), which our CPU compiler uses better"


def _configured(delegate: Delegate, options: GpuOptions) -> Delegate:
    """As an engine's options, or as flags of a delegate of its own."""
    if not delegate.options:
        delegate.take_flags({"gpu_precision_loss_allowed": not options.enforce_f32})
        return delegate
    given = {"precision": "f32" if options.enforce_f32 else "f16", **asdict(options)}
    own = {n: v for n, v in given.items() if n in delegate.options and v}
    return as_delegate(delegate.configure(own))


def _cpu(options: Options) -> Delegate:
    is_reference = options.cpu_options.kernel_mode == CpuKernelMode.REFERENCE
    return find_delegate("reference" if is_reference else "cpu")


_FINDERS: dict[HardwareAccelerator, Callable[[Options], Delegate]] = {
    HardwareAccelerator.NPU: _npu,
    HardwareAccelerator.GPU: _gpu,
    HardwareAccelerator.CPU: _cpu,
}

"""OpenVINO as a delegate. It reads .tflite files, and computes on the caller's arrays."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ...errors import DelegateError
from ...ir import Array, Graph, Shape
from ...runtime.delegate import Executable, Options
from ...runtime.delegate_options import Option, one_of, text
from ...runtime.submodel import as_tflite
from .base import THREADS, EngineDelegate, PointingExecutable, check_type

_process = 0  # which has compiled with OpenVINO


class OpenVinoDelegate(EngineDelegate):
    """OpenVINO, on its CPU device if no other is asked for."""

    name, engine, title = "openvino", "openvino", "OpenVINO"
    options: ClassVar[Mapping[str, Option]] = {
        "threads": THREADS,
        "device": text("its device, such as CPU or GPU.0"),
        "precision": one_of("that it may compute in", "f32", "f16", "bf16"),
        "performance": one_of("what it is tuned for", "latency", "throughput"),
    }

    def load(self, part: Graph, options: Options) -> Executable:
        self._check_process()
        properties = {
            "PERFORMANCE_HINT": self.chosen.get("performance", "latency").upper(),
            "INFERENCE_PRECISION_HINT": self._precision(options),
        }
        with tempfile.TemporaryDirectory(prefix="sanderling-") as folder:
            path = Path(folder, "part.tflite")
            path.write_bytes(as_tflite(part))
            shapes = [(t.name, t.shape) for t in part.inputs]
            device = self.chosen.get("device", "CPU")
            compiled = compile_file(path, shapes, options.threads, properties, device)
        return OpenVinoExecutable(part, compiled, options.threads)

    def said(self, error: Exception) -> str:
        """The last line: those before it are places in its source."""
        lines = [line for line in str(error).splitlines() if line.strip()]
        return lines[-1] if lines else type(error).__name__

    def _precision(self, options: Options) -> str:
        """Its own option, or the session's."""
        asked: str = self.chosen.get("precision") or options.extra.get("precision", "f32")
        return asked

    def _check_process(self) -> None:
        """A child that was forked has none of its parent's threads, and OpenVINO may wait for them
        for ever when it compiles. What the parent compiled runs there."""
        global _process
        if _process not in (0, os.getpid()):
            raise DelegateError(
                "this process was forked from one in which OpenVINO was at work, and it may hang",
                where=f"delegate '{self.name}'",
                fix="make the session before the fork, or start the process by 'spawn'",
            )
        _process = os.getpid()


def compile_file(
    path: str | Path,
    inputs: Sequence[tuple[str, Shape]],
    threads: int,
    properties: Mapping[str, Any],
    device: str = "CPU",
    when_read: Callable[[], None] = lambda: None,
) -> Any:
    """A .tflite file as OpenVINO's compiled model, for inputs of these names and shapes.
    when_read: called between reading and compiling."""
    import openvino as ov

    core = ov.Core()
    if device.split(":")[0].split(".")[0] not in (*core.available_devices, "AUTO", "HETERO"):
        raise DelegateError(
            f"OpenVINO has no device {device} here",
            where="delegate 'openvino'",
            fix=f"its devices: {', '.join(core.available_devices)}",
        )
    model = core.read_model(path)
    when_read()
    # An open dimension stands for 0 .. n: without this the engine would compute on nothing.
    if any(port.partial_shape.is_dynamic for port in model.inputs):
        order = ports(model.inputs, [name for name, _ in inputs])
        model.reshape({p: list(shape) for p, (_, shape) in zip(order, inputs, strict=True)})
    own = {"NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": threads} if device == "CPU" else {}
    return core.compile_model(model, device, {**own, **properties})


def ports(found: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """The ports in the order of these names; in their own order where the names are not theirs."""
    named = {name: port for port in found for name in port.get_names()}
    if all(name in named for name in names) and len(found) == len(names):
        return [named[name] for name in names]
    return list(found)


class OpenVinoExecutable(PointingExecutable):
    def __init__(self, part: Graph, compiled: Any, threads: int) -> None:
        super().__init__()
        sides = (compiled.inputs, part.inputs), (compiled.outputs, part.outputs)
        self.compiled, self.workers = compiled, threads
        self.ports = [port for found, own in sides for port in ports(found, [t.name for t in own])]
        for port, tensor in zip(self.ports, (*part.inputs, *part.outputs), strict=True):
            check_type("openvino", tensor, np.dtype(port.element_type.to_dtype()).name)
        self._shapes = [tuple(port.shape) for port in self.ports]  # asking a port is slow
        self.request = compiled.create_infer_request()
        self._own = [self.request.get_tensor(port) for port in self.ports]

    def point(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Any]:
        from openvino import Tensor

        arrays = zip(self._shapes, (*inputs, *outputs), strict=True)
        return [Tensor(array.reshape(shape), shared_memory=True) for shape, array in arrays]

    def attach(self, pointed: Any) -> None:
        for port, tensor in zip(self.ports, pointed, strict=True):
            self.request.set_tensor(port, tensor)

    def detach(self) -> None:
        self.attach(self._own)

    def compute(self) -> object:
        return self.request.infer(share_outputs=True)

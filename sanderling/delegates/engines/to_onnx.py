"""A .tflite model as ONNX, through tf2onnx, without TensorFlow.

    python -m sanderling.delegates.engines.to_onnx MODEL.tflite OUT.onnx

tf2onnx needs little of TensorFlow to convert a .tflite file: a decoder of constants and an
interpreter that knows shapes. `stand_in` provides these. The model is saved anew first, since
tf2onnx stumbles over open shapes, weights that are sparse or lie behind the flatbuffer, and options
that were left out, and drops the bias of a fully connected op that has to flatten its input.
Quantised models come out with QuantizeLinear/DequantizeLinear pairs, which ONNX Runtime fuses into
its integer kernels; dynamic-range weights become float32.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import math
import os
import sys
import tempfile
import threading
import traceback
import types
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from ...child_process import ChildProcess
from ...forks import renews
from ...format import load, save
from ...ir import Graph, Model, Op
from ...store import Store

OPSET = 18
PATIENCE = 300  # seconds for an export
# TensorFlow's numbers of types, by their NumPy names.
TYPES = {1: "f4", 2: "f8", 3: "i4", 4: "u1", 5: "i2", 6: "i1", 8: "c8", 9: "i8", 10: "?",
         17: "u2", 19: "f2", 22: "u4", 23: "u8"}  # fmt: skip


def cached(path: Path) -> tuple[str, str]:
    """As exported, of a file."""
    return exported(path.read_bytes(), path.stem)


def exported(content: bytes, stem: str) -> tuple[str, str]:
    """(export, "") of a .tflite file's content, from the cache or made now in a process of its own,
    or ("", why there is none). stem: what the export's name begins with."""
    folder = (Store().folder or Path(tempfile.gettempdir(), f"sanderling-{os.getuid()}")) / "onnx"
    digest = hashlib.sha256(content + Path(__file__).read_bytes()).hexdigest()[:16]
    target = folder / f"{stem}-{digest}.onnx"
    if target.is_file():
        return str(target), ""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    why = _exporter.export(content, target)
    return ("", f"no ONNX export: {why[:160].replace('|', '/')}") if why else (str(target), "")


class Exporter:
    """The process that exports: it is started once, since to import tf2onnx takes seconds, and
    serves one thread at a time. It ends with this process."""

    def __init__(self) -> None:
        self.renew_lock()
        renews(self)

    def renew_lock(self) -> None:
        """Also in a forked child, which leaves its parent's process alone."""
        self._lock = threading.Lock()
        self._child: ChildProcess | None = None

    def export(self, content: bytes, target: Path) -> str:
        """Make the export; "" or why that failed."""
        with self._lock:
            self._child = self._child or ChildProcess(serve)
            try:
                self._child.pipe.send((content, str(target)))
                if self._child.pipe.poll(PATIENCE):
                    return str(self._child.pipe.recv())
                why = f"it takes longer than {PATIENCE} s"
            except (EOFError, OSError):
                why = f"the process that exports ended ({self._child.how_it_ended()})"
            self._child.end(patience=0)
            self._child = None
            return why

    def close(self) -> None:
        """Let the process end."""
        child, self._child = self._child, None
        if child is not None:
            child.pipe.close()
            child.end()


def serve(pipe: Connection) -> None:
    """In the process of its own: export what comes, and say how it went."""
    while True:
        try:
            content, target = pipe.recv()
        except EOFError:
            return
        try:
            export(content, Path(target))
            pipe.send("")
        except Exception as error:
            pipe.send(_one_line(error))


def _one_line(error: Exception) -> str:
    """As a traceback says it, without what follows."""
    return traceback.format_exception_only(error)[-1].strip().splitlines()[0]


def export(content: bytes, target: Path) -> None:
    """Convert; the target appears only when it is whole."""
    stand_in()
    logging.disable(logging.WARNING)
    from tf2onnx import convert, tfonnx

    # It stumbles over products of three dimensions; ONNX Runtime fuses MatMul and Add itself.
    tfonnx.rewrite_gemm = lambda graph, nodes: nodes
    with tempfile.TemporaryDirectory() as folder:
        plain, made = Path(folder, "plain.tflite"), Path(folder, "made.onnx")
        save(simplified(load(content)), plain)
        convert._convert_common(
            None,
            name=target.stem,
            tflite_path=str(plain),
            opset=OPSET,
            custom_op_handlers={"TFL_GELU": (_gelu, [])},
            output_path=str(made),
        )
        partial = target.with_suffix(f".{os.getpid()}")
        partial.write_bytes(made.read_bytes())
        partial.replace(target)


def _gelu(graph: Any, node: Any, name: str, _: object) -> None:
    """x / 2 * (1 + erf(x / sqrt(2))), which ONNX Runtime knows as Gelu; tf2onnx has no rule."""
    (x,), outputs = node.input, list(node.output)
    shape, dtype = graph.get_shape(outputs[0]), graph.get_dtype(outputs[0])

    def scalar(value: float) -> str:
        return str(graph.make_const(f"{name}/{value:.3f}", np.float32(value)).output[0])

    def binary(kind: str, left: str, right: str, **more: Any) -> str:
        return str(graph.make_node(kind, [left, right], **more).output[0])

    graph.remove_node(node.name)
    erf = graph.make_node("Erf", [binary("Div", x, scalar(2**0.5))]).output[0]
    whole = binary("Mul", x, binary("Add", erf, scalar(1.0)))
    binary("Mul", whole, scalar(0.5), outputs=outputs, name=name, shapes=[shape], dtypes=[dtype])


# -- the model as tf2onnx likes it --------------------------------------------------------------


def simplified(model: Model) -> Model:
    model.weights_outside = False
    for graph in model.graphs:
        for tensor in graph.tensors:
            tensor.signature = None
            if tensor.is_constant and tensor.sparsity is not None:
                tensor.data = np.asarray(tensor.data)
        for op in list(graph.ops):
            _write_options(op)
            _flatten(graph, op)
            _drop_densify(graph, op)
    return model


def _write_options(op: Op) -> None:
    if op.name in ("ADD", "SUB", "MUL", "DIV", "FULLY_CONNECTED"):
        op.attrs.setdefault("fused_activation_function", "NONE")
    if op.name == "RESHAPE":
        op.attrs["new_shape"] = list(op.outputs[0].shape)
    if op.name == "EMBEDDING_LOOKUP":
        op.name, op.options, op.attrs = "GATHER", "", {"axis": 0, "batch_dims": 0}
        op.inputs.reverse()


def _flatten(graph: Graph, op: Op) -> None:
    """A fully connected op gets two dimensions: tf2onnx drops its bias when it has to do this."""
    data = op.inputs[0] if op.name == "FULLY_CONNECTED" else None
    weights = op.input(1)
    if data is None or weights is None or len(data.shape) == 2 or op.attrs.get("keep_num_dims"):
        return
    shape = [math.prod(data.shape) // weights.shape[1], weights.shape[1]]
    flat = graph.tensor(f"{op.outputs[0].name}/flat", data.dtype, shape, quant=data.quant)
    wanted = graph.constant(f"{flat.name}/shape", np.array(shape, np.int32))
    graph.insert(Op("RESHAPE", [data, wanted], [flat], {"new_shape": shape}), before=op)
    graph.set_input(op, 0, flat)


def _drop_densify(graph: Graph, op: Op) -> None:
    if op.name == "DENSIFY" and op.inputs[0] is not None:
        graph.replace_uses(op.outputs[0], op.inputs[0])
        graph.erase(op)


# -- what tf2onnx wants of TensorFlow -----------------------------------------------------------


class _Dims(list[Any]):
    def add(self) -> Any:
        self.append(types.SimpleNamespace(size=0))
        return self[-1]


class _TensorProto:
    def __init__(self) -> None:
        self.tensor_content, self.dtype = b"", 0
        self.tensor_shape = types.SimpleNamespace(dim=_Dims())


def _make_ndarray(tensor: _TensorProto) -> np.ndarray[Any, Any]:
    shape = [d.size for d in tensor.tensor_shape.dim]
    return np.frombuffer(tensor.tensor_content, TYPES[tensor.dtype]).reshape(shape)


class _Nothing:
    """Stands for graphs, devices and loggers that a .tflite conversion enters and leaves."""

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **named: self


def stand_in() -> None:
    """Put small stand-ins where tf2onnx imports TensorFlow from."""
    from ai_edge_litert.interpreter import Interpreter

    _module(
        "tensorflow",
        __version__="2.21.0",
        __path__=[],
        string=7,
        DType=_Nothing,
        make_ndarray=_make_ndarray,
        get_logger=_Nothing,
        Graph=_Nothing,
        device=lambda name: _Nothing(),
        lite=types.SimpleNamespace(Interpreter=Interpreter),
        compat=types.SimpleNamespace(v1=_Nothing()),
    )
    _module("tensorflow.core", __path__=[])
    _module("tensorflow.core.framework", __path__=[])
    _module("tensorflow.core.framework.tensor_pb2", TensorProto=_TensorProto)
    _module("tf2onnx.tfjs_utils", graphs_from_tfjs=None)  # its imports need all of TensorFlow


def _module(name: str, **content: Any) -> None:
    module = types.ModuleType(name)
    module.__dict__.update(content)
    sys.modules[name] = module


_exporter = Exporter()
atexit.register(_exporter.close)

if __name__ == "__main__":
    export(Path(sys.argv[1]).read_bytes(), Path(sys.argv[2]))

"""`analyze`: what TensorFlow Lite's analyzer prints, letter by letter.

The text follows tf.lite.experimental.Analyzer of TensorFlow 2.21. That release says of every model
that it looks compatible with the GPU delegate; here its offline rules are really looked at, and the
warnings are those of the releases that did the same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ArgumentError
from ..files import read_bytes
from ..format import load
from ..format.flatbuf import Reader, Table
from ..format.schema import ENUMS
from ..ir import CUSTOM, Op
from ..rules import find_table
from ..rules.rule import computed, constants

RUNTIME = "2.21.0"  # the release whose words these are
SPLITTER = "-" * 63
SHOWN = 5  # elements of a constant
MANY_ZEROS = 10.0  # percent of the file
OFFLINE = "gpu:offline"
# Elements of these types are shown as numbers, or as letters that their codes stand for.
NUMBERS = {"INT32": "<i4", "UINT32": "<u4", "FLOAT32": "<f4"}
LETTERS = ("INT8", "UINT8", "STRING")
# Attributes that name a graph, by operator: what stands before it.
CALLED = {
    "CALL_ONCE": (("", "init_subgraph_index"),),
    "IF": ((", Then: ", "then_subgraph_index"), (", Else: ", "else_subgraph_index")),
    "WHILE": ((", Cond: ", "cond_subgraph_index"), (", Body: ", "body_subgraph_index")),
}
EXPLANATION = """\

* Buffers of TFLite model are mostly used for constant tensors.
  And zero value buffers are buffers filled with zeros.
{splat}  Non-data buffers area are used to store operators, subgraphs and etc.
  You can find more details from https://github.com/tensorflow/tensorflow/blob/master/tensorflow/\
lite/schema/schema.fbs
"""
SPLAT = """\
  (Consider use `converter._experimental_unfold_large_splat_constant` to save the model size.)
"""
COMPATIBLE = f"""\

Your model looks compatible with GPU delegate on TFLite runtime version {RUNTIME}.
This does not guarantee that your model will work well with GPU delegate because there could still \
be runtime incompatibililties.
"""


def analyze(
    model_path: str | os.PathLike[str] | None = None,
    model_content: bytes | None = None,
    gpu_compatibility: bool = False,
) -> None:
    """Print a model's graphs, tensors, signatures and sizes as tf.lite.experimental.Analyzer does.

    With gpu_compatibility, ops that TensorFlow Lite's offline rules for the GPU refuse are named;
    `sanderling inspect MODEL --delegate gpu:tflite` says more.
    """
    if model_path is None and model_content is None:
        raise ArgumentError(
            "neither `model_path` nor `model_content` is given", fix="give one of them"
        )
    if model_path is not None:
        content = read_bytes(Path(model_path), "the model")
        print(f"=== {os.fspath(model_path)} ===\n")
    else:
        print("=== TFLite ModelAnalyzer ===\n")
        content = bytes(model_content or b"")
    print(Analysis(content, gpu_compatibility).text())


class Analysis:
    """The text about one file."""

    def __init__(self, content: bytes, gpu: bool = False) -> None:
        self.content = content
        self.root = Reader(memoryview(content)).root("Model")
        self.buffers: list[Table] = self.root["buffers"] or []
        self.graphs: list[Table] = self.root["subgraphs"] or []
        self.ops = [graph.ops for graph in load(content).graphs] if gpu else None

    def text(self) -> str:
        pieces = [self._summary(), *map(self._graph, range(len(self.graphs)))]
        if self.ops is not None and not any("GPU COMPATIBILITY" in text for text in pieces):
            pieces.append(COMPATIBLE)
        return printable("".join([*pieces, self._signatures(), self._sizes()]))

    # -- graphs -----------------------------------------------------------------------------

    def _summary(self) -> str:
        count = len(self.graphs)
        text = (
            f"Your TFLite model has '{count}' subgraph(s). In the subgraph description below,\n"
            "T# represents the Tensor numbers. "
        )
        ops = self.graphs[0]["operators"] or [] if self.graphs else []
        if not len(ops):
            return text
        inputs, outputs = (_tensor_words(ops[0][end]) for end in ("inputs", "outputs"))
        return (
            f"{text}For example, in Subgraph#0, the {self._name(ops[0])} op takes\n"
            f"{inputs} as input and produces {outputs} as output.\n\n"
        )

    def _name(self, op: Table) -> str:
        row = self.root["operator_codes"][op["opcode_index"]]
        name = _operator(row)
        return str(row["custom_code"]) if name == "CUSTOM" else name

    def _graph(self, index: int) -> str:
        graph = self.graphs[index]
        name = "" if graph["name"] is None else f" {graph['name']}"
        ends = [self._places(index, graph[end]) for end in ("inputs", "outputs")]
        lines = [f"Subgraph#{index}{name}({ends[0]}) -> [{ends[1]}]"]
        wrong: list[int] = []
        for place, op in enumerate(graph["operators"] or []):
            lines.append(self._op(index, place, op))
            if self.ops is not None and (why := warning(self.ops[index][place])):
                wrong.append(place)
                lines.append(f"GPU COMPATIBILITY WARNING: {why}")
        if wrong:
            nodes = ", ".join(map(str, wrong))
            lines.append(
                f"\nGPU COMPATIBILITY WARNING: Subgraph#{index} has GPU delegate compatibility "
                f"issues at nodes {nodes} on TFLite runtime version {RUNTIME}"
            )
        lines.append(f"\nTensors of Subgraph#{index}")
        tensors = enumerate(graph["tensors"] or [])
        lines += [f"  {_place(index, i)}{self._tensor(tensor)}" for i, tensor in tensors]
        return "\n".join(lines) + "\n\n"

    def _op(self, graph: int, place: int, op: Table) -> str:
        name = self._name(op)
        inputs = self._places(graph, op["inputs"], shows_values=True)
        options = op["builtin_options"] or {}
        called = "".join(
            f"{before}Subgraph#{options[field]}" for before, field in CALLED.get(name, ())
        )
        outputs = self._places(graph, op["outputs"])
        return f"  Op#{place} {name}({inputs}{called}) -> [{outputs}]"

    def _places(self, graph: int, indices: Any, shows_values: bool = False) -> str:
        tensors = self.graphs[graph]["tensors"] or []
        found = []
        for index in _integers(indices):
            tensor = tensors[index] if index != -1 else None
            is_number = tensor is not None and tensor["type"] == "INT32"
            values = self._values(tensor) if tensor and shows_values and is_number else ""
            found.append(_place(graph, index) + values)
        return ", ".join(found)

    # -- tensors ----------------------------------------------------------------------------

    def _tensor(self, tensor: Table) -> str:
        name = "" if tensor["name"] is None else f"({tensor['name']}) "
        field = "shape" if tensor["shape_signature"] is None else "shape_signature"
        sizes = tensor[field]
        shape = "n/a" if sizes is None else f"[{', '.join(map(str, _integers(sizes)))}]"
        return f"{name}{field}:{shape}, type:{tensor['type']}{self._stored(tensor)}"

    def _stored(self, tensor: Table) -> str:
        data = self._data(tensor)
        if data is None or not len(data):
            return ""
        where = f"buffer: {tensor['buffer']}"
        return f" RO {len(data)} bytes, {where}, data:{self._values(tensor)}"

    def _data(self, tensor: Table) -> Any:
        index = tensor["buffer"]
        return self.buffers[index]["data"] if 0 < index < len(self.buffers) else None

    def _values(self, tensor: Table) -> str:
        data = self._data(tensor)
        if data is None:
            return ""
        found = _elements(bytes(data[: SHOWN * 4]), len(data), tensor["type"])
        return f"[{found}]"

    # -- the end ----------------------------------------------------------------------------

    def _signatures(self) -> str:
        rows = self.root["signature_defs"] or []
        if not rows:
            return ""
        head = f"{SPLITTER}\nYour TFLite model has '{len(rows)}' signature_def(s).\n\n"
        return head + "".join(_signature(i, row) for i, row in enumerate(rows))

    def _sizes(self) -> str:
        data = [b["data"] for b in self.buffers if b["data"] is not None]
        total, whole = sum(map(len, data)), len(self.content)
        zeros = sum(len(d) for d in data if not np.any(d))
        lines = [SPLITTER, f"{'Model size':>24}: {whole:10} bytes"]
        lines.append(_size("Non-data buffer size", whole - total, whole))
        lines.append(_size("Total data buffer size", total, whole))
        if len(self.graphs) > 1:
            for index, graph in enumerate(self.graphs):
                held = [self._data(tensor) for tensor in graph["tensors"] or []]
                used = sum(len(d) for d in held if d is not None)
                lines.append(_size(f"- {f'Subgraph#{index}':<12}", used, whole))
        lines.append(_size("(Zero value buffers)", zeros, whole))
        splat = SPLAT if _percent(zeros, whole) > MANY_ZEROS else ""
        return "\n".join(lines) + "\n" + EXPLANATION.format(splat=splat)


def _operator(row: Table) -> str:
    """Old files have the one-byte field alone."""
    code = max(row["builtin_code"], row["deprecated_builtin_code"])
    names = ENUMS["BuiltinOperator"]
    return names[code] if code < len(names) else ""


def _integers(values: Any) -> list[int]:
    return [] if values is None else [int(n) for n in values]


def _tensor_words(indices: Any) -> str:
    return " and ".join(f"tensor #{i}" for i in _integers(indices))


def _place(graph: int, index: int) -> str:
    return f"T#{graph}_{index}" if graph and index != -1 else f"T#{index}"


def _elements(data: bytes, size: int, kind: str) -> str:
    """The first elements. C++ shows bytes as letters, and the types that it does not know so."""
    if kind in NUMBERS:
        whole = len(data) // 4 * 4
        form = "g" if kind == "FLOAT32" else "d"
        found = [format(value, form) for value in np.frombuffer(data[:whole], NUMBERS[kind])]
        count = size // 4
    else:
        found = list(data.decode("latin-1")) if kind in LETTERS else ["??"] * len(data)
        count = size
    shown = found[: min(SHOWN, count)]
    text = ", ".join(shown)
    return text + (", ..." if count > SHOWN else "")


def _signature(index: int, row: Table) -> str:
    graph = row["subgraph_index"]
    lines = [f"Signature#{index} key: '{row['signature_key']}'", f"- Subgraph: Subgraph#{graph}"]
    for title, end in (("Inputs", "inputs"), ("Outputs", "outputs")):
        lines.append(f"- {title}: ")
        lines += [
            f"    '{one['name']}' : {_place(graph, one['tensor_index'])}" for one in row[end] or []
        ]
    return "\n".join(lines) + "\n\n"


def _percent(part: int, whole: int) -> float:
    return float(np.float32(part) / np.float32(whole) * np.float32(100))


def _size(title: str, part: int, whole: int) -> str:
    return f"{title:>24}: {part:10} bytes ({_percent(part, whole):05.2f} %)"


def printable(text: str) -> str:
    """Every byte that is no letter of ASCII becomes a dot, but for the ends of lines."""
    raw = "".join(c if ord(c) < 256 else "..." for c in text)
    return re.sub(r"[^\n -~]", ".", raw)


# -- the GPU's offline rules ----------------------------------------------------------------------

Say = Callable[[Op, Mapping[str, str]], str]


def _shape(op: Op, place: int) -> str:
    return ",".join(map(str, op.operand(place).shape))


def _type(op: Op) -> tuple[str, str]:
    return op.operand(0).dtype.name, op.outputs[0].dtype.name


# What the check says, by the operators and by what our rule says; the first that fits.
WARNINGS: Sequence[tuple[str, str, Say]] = (
    ("", r"the number of computed inputs is (?P<n>\d+)", lambda op, m:
        f"Expected {m['n']} runtime input tensor(s), but node has {len(computed(op))} runtime "
        "input(s)."),
    ("", r"the number of constant inputs is (?P<n>\d+)", lambda op, m:
        f"Expected {m['n']} const input tensor(s), but node has {len(constants(op))} const "
        "input(s)."),
    ("", r"the number of results is (?P<n>\d+)", lambda op, m:
        f"Expected {m['n']} output tensor(s), but node has {len(op.outputs)} output(s)."),
    ("", "it has two computed inputs", lambda op, m: "Op can only handle 1 or 2 operand(s)."),
    ("", "the tensor of axes is constant", lambda op, m:
        f"{op.name} is only supported with constant axes."),
    ("", "one or two inputs are computed", lambda op, m:
        f"Expected 1 or 2 input tensor(s), but node has {len(computed(op))} runtime inputs."),
    ("FULLY_CONNECTED", "at most two inputs are computed", lambda op, m:
        "FullyConnected doesn't support more than 2 runtime inputs."),
    ("ADD MUL", "the number of inputs", lambda op, m: f"{op.name} requires two input tensors."),
    ("ADD_N", "the number of inputs", lambda op, m: "ADD_N only supports 2 inputs."),
    ("ADD MUL", "", lambda op, m:
        f"Doesn't support broadcasting - input0: [{_shape(op, 0)}], input1: [{_shape(op, 1)}]"),
    ("CAST", "it casts", lambda op, m:
        "Not supported Cast case. Input type: {} and output type: {}".format(*_type(op))),
    ("GATHER", "input 1 has rank", lambda op, m: "Only support 1D indices\n"),
    ("GATHER", "the tensor of indices", lambda op, m: "Only accept INT32 indices\n"),
    ("SOFTMAX", "beta", lambda op, m: "Softmax.beta != 1 is not supported."),
    ("STRIDED_SLICE", "(?P<n>ellipsis_mask|new_axis_mask) is not set", lambda op, m:
        f"Slice does not support {m['n']}."),
    ("STRIDED_SLICE", "shrink_axis_mask", lambda op, m:
        "Slice does not support shrink_axis_mask parameter. "),
    ("STRIDED_SLICE", "rank", lambda op, m:
        "STRIDED_SLICE supports for 3 or 4 dimensional tensors only."),
    ("SLICE", "rank", lambda op, m:
        "SLICE supports for 3 or 4 dimensional tensors only, but node has "
        f"{len(op.operand(0).shape)} dimensional tensors."),
    ("PAD PADV2 MIRROR_PAD", "the paddings are", lambda op, m:
        "Invalid paddings tensor shape: expected 4x2 or 3x2, got "
        + _shape(op, 1).replace(",", "x")),
    ("FULLY_CONNECTED", "keep_num_dims", lambda op, m:
        "Input and output dimensions different and FullyConnected doesn't support keep_num_dims."),
)  # fmt: skip


def warning(op: Op) -> str | None:
    """What the offline check says against this op; None if nothing."""
    rule = find_table(OFFLINE).failing(op)
    if rule is None:
        return None
    if rule.kind == "operator":
        custom = op.name.startswith(CUSTOM)
        return f"Not supported {'custom op' if custom else 'op'} {op.name.removeprefix(CUSTOM)}"
    return next(_said(op, rule.says), None) or f"{op.name}: {rule.reason(op, 0) or rule.says}"


def _said(op: Op, says: str) -> Iterator[str]:
    for names, pattern, say in WARNINGS:
        found = re.search(pattern, says)
        if found and (not names or op.name in names.split()):
            yield say(op, found.groupdict())

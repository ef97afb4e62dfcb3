"""Class names that a model carries: TensorFlow Lite's metadata, and the file that it names."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InputError, ModelError
from ..ir import Model
from .flatbuf import Reader, Table, Writer
from .packed_files import has_packed
from .schema import METADATA_IDENTIFIER

METADATA = "TFLITE_METADATA"
LABELS = "labels.txt"
AXIS_LABELS = "TENSOR_AXIS_LABELS"


def labels_of(model: Model) -> dict[str, list[str]]:
    """The class names of each output of the main graph that has some, by the tensor's name."""
    if model.file is not None and not has_packed(model.file):
        return {}  # nothing else of the file need be read
    found = {}
    for tensor, row in zip(
        model.main.outputs, _rows(model, "output_tensor_metadata"), strict=False
    ):
        files = [f for f in row["associated_files"] or [] if f["type"] == AXIS_LABELS]
        text = next((model.files[f["name"]] for f in files if f["name"] in model.files), None)
        if text is not None:
            found[tensor.name] = text.decode("utf-8", "replace").rstrip("\n").split("\n")
    return found


def _rows(model: Model, side: str) -> list[Table]:
    """The metadata of the main graph's tensors; none if it cannot be read."""
    data = model.metadata.get(METADATA)
    if not data:
        return []
    try:
        root = Reader(memoryview(data)).root("ModelMetadata", METADATA_IDENTIFIER)
    except ModelError:
        return []
    graphs = root["subgraph_metadata"] or []
    return graphs[0][side] or [] if graphs else []


def with_labels(model: Model, output: str, labels: Sequence[str], description: str = "") -> Model:
    """A copy of the model whose output of this name has these class names."""
    for label in labels:
        if "\n" in label or "\r" in label:
            raise InputError(f"the class name {label!r} has several lines", fix="name it in one")
    made = model.copy()
    made.files = made.files | {LABELS: "\n".join(labels).encode()}
    made.metadata = made.metadata | {METADATA: _metadata(made, output, description)}
    return made


def _metadata(model: Model, output: str, description: str) -> bytes:
    named = {"name": LABELS, "description": "Names of the classes.", "type": AXIS_LABELS}
    inputs = [{"name": t.name} for t in model.main.inputs]
    outputs = [
        {"name": t.name} | ({"associated_files": [named]} if t.name == output else {})
        for t in model.main.outputs
    ]
    graph = {"input_tensor_metadata": inputs, "output_tensor_metadata": outputs}
    root = {
        "name": model.main.name,
        "description": description,
        "subgraph_metadata": [graph],
        "min_parser_version": "1.0.0",
    }
    return bytes(Writer(1 << 12).finish("ModelMetadata", root, METADATA_IDENTIFIER))

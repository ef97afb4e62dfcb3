"""Protobuf files of TensorFlow Lite's tools, read and written without the protobuf package.

MESSAGES has the fields of TensorFlow Lite's benchmark_result.proto, profiling_info.proto,
model_runtime_info.proto and evaluation_stages.proto, and of TensorFlow's example.proto and
node_def.proto: number, name, type. A record is a dict; fields that are absent or None are not
written. A type may be another message; a trailing * repeats (numbers are packed).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple


class Field(NamedTuple):
    number: int
    name: str
    type: str

    @property
    def repeats(self) -> bool:
        return self.type.endswith("*")

    @property
    def base(self) -> str:
        return self.type.removesuffix("*")


def _fields(text: str) -> tuple[Field, ...]:
    """`1 name type, 2 name type, ...`"""
    rows = (row.split() for row in text.replace("\n", " ").split(",") if row.strip())
    return tuple(Field(int(number), name, kind) for number, name, kind in rows)


MESSAGES = {
    "LatencyMetrics": _fields(
        "1 avg_ms float, 2 min_ms float, 3 max_ms float, 4 stddev_ms float, 5 median_ms float, "
        "6 p5_ms float, 7 p95_ms float, 8 init_ms float, 9 first_inference_ms float, "
        "10 average_warm_up_ms float"),
    "MemoryMetrics": _fields(
        "1 init_footprint_kb int, 2 overall_footprint_kb int, 3 peak_mem_mb float"),
    "MiscMetrics": _fields(
        "1 model_size_mb float, 2 num_runs int, 3 num_warmup_runs int, "
        "4 model_throughput_in_mb_per_sec float"),
    "BenchmarkResult": _fields(
        "1 name string, 2 latency_metrics LatencyMetrics, 3 memory_metrics MemoryMetrics, "
        "4 misc_metrics MiscMetrics"),
    "BenchmarkProfilingData": _fields(
        "1 model_name string, 2 init_profile ModelProfilingData, "
        "3 runtime_profile ModelProfilingData"),
    "ModelProfilingData": _fields(
        "1 subgraph_profiles SubGraphProfilingData*, 2 delegate_profiles DelegateProfilingData*"),
    "SubGraphProfilingData": _fields(
        "1 subgraph_name string, 2 subgraph_index int, 3 per_op_profiles OpProfileData*"),
    "DelegateProfilingData": _fields(
        "1 delegate_name string, 2 per_op_profiles OpProfileData*"),
    "OpProfilingStat": _fields(
        "1 first int, 2 last int, 3 avg int, 4 stddev float, 5 variance float, 6 min int, "
        "7 max int, 8 sum int, 9 count int"),
    "OpProfileData": _fields(
        "1 node_type string, 2 inference_microseconds OpProfilingStat, 3 mem_kb OpProfilingStat, "
        "4 times_called int, 5 name string, 6 run_order int"),
    "ModelRuntimeDetails": _fields("1 model_name string, 2 subgraphs RuntimeSubgraph*"),
    "RuntimeSubgraph": _fields(
        "1 subgraph_id int, 2 edges Edge*, 3 nodes Node*, 4 execution_plan int*, "
        "5 subgraph_type int"),
    "Node": _fields(
        "1 id int, 2 name string, 3 type string, 4 inputs int*, 5 outputs int*, "
        "6 intermediates int*, 7 temporaries int*, 8 delegate_node_details DelegateNodeDetails, "
        "9 delegated_to_node_id int, 10 op_profile_data OpProfileData"),
    "DelegateNodeDetails": _fields("1 delegate_name string, 2 tflite_node_ids_replaced int*"),
    "Edge": _fields(
        "1 id int, 2 name string, 3 data_type int, 4 shape int*, 5 allocation_type string, "
        "6 layout_type int, 7 size int"),
    "Example": _fields("1 features Features"),
    "Features": _fields("1 feature FeatureEntry*"),
    "FeatureEntry": _fields("1 key string, 2 value Feature"),  # a map is a list of pairs
    "Feature": _fields("1 bytes_list BytesList, 2 float_list FloatList, 3 int64_list Int64List"),
    "BytesList": _fields("1 value bytes*"),
    "FloatList": _fields("1 value float*"),
    "Int64List": _fields("1 value int*"),
    "NodeDef": _fields("1 name string, 2 op string"),  # attributes are TensorFlow's to read
    # Of the evaluation tools: evaluation_config.proto and evaluation_stages.proto.
    "EvaluationStageMetrics": _fields("1 num_runs int, 2 process_metrics ProcessMetrics"),
    "ProcessMetrics": _fields(
        "4 image_classification_metrics ImageClassificationMetrics, "
        "5 inference_profiler_metrics InferenceProfilerMetrics, "
        "7 object_detection_metrics ObjectDetectionMetrics"),
    "ImageClassificationMetrics": _fields(
        "1 pre_processing_latency StageLatency, 2 inference_latency StageLatency, "
        "3 inference_metrics InferenceCount, 4 topk_accuracy_metrics TopkAccuracies"),
    "InferenceCount": _fields("1 num_inferences int"),
    "TopkAccuracies": _fields("1 topk_accuracies float*"),
    "ObjectDetectionMetrics": _fields(
        "1 pre_processing_latency StageLatency, 2 inference_latency StageLatency, "
        "3 inference_metrics InferenceCount, 4 average_precision_metrics AveragePrecisions"),
    "AveragePrecisions": _fields(
        "1 individual_average_precisions AveragePrecision*, "
        "2 overall_mean_average_precision float"),
    "AveragePrecision": _fields("1 iou_threshold float, 2 average_precision float"),
    "InferenceProfilerMetrics": _fields(
        "1 reference_latency StageLatency, 2 test_latency StageLatency, "
        "3 output_errors AccuracyMetrics*"),
    "StageLatency": _fields(
        "1 last_us int, 2 max_us int, 3 min_us int, 4 sum_us int, 5 avg_us double, "
        "6 std_deviation_us int"),
    "AccuracyMetrics": _fields(
        "1 max_value float, 2 min_value float, 3 avg_value double, 4 std_deviation float"),
    "ObjectDetectionGroundTruth": _fields("1 detection_results ObjectDetectionResult*"),
    "ObjectDetectionResult": _fields(
        "1 objects ObjectInstance*, 2 image_name string, 3 image_id int"),
    "ObjectInstance": _fields(
        "1 class_id int, 2 bounding_box NormalizedBoundingBox, 3 score float"),
    "NormalizedBoundingBox": _fields("1 top float, 2 bottom float, 3 left float, 4 right float"),
}  # fmt: skip
_VARINT, _FIXED64, _BLOCK, _FIXED32 = 0, 1, 2, 5
_WIRE = {"int": _VARINT, "float": _FIXED32, "double": _FIXED64}
_FIXED = {_FIXED32: "<f", _FIXED64: "<d"}


# -- writing --------------------------------------------------------------------------------------


def encode(message: str, record: Mapping[str, Any]) -> bytes:
    fields = {f.name: f for f in MESSAGES[message]}
    return b"".join(_field(f, record[n]) for n, f in fields.items() if record.get(n) is not None)


def _field(field: Field, value: Any) -> bytes:
    if not field.repeats:
        return _one(field, value)
    if field.base in _WIRE:
        packed = b"".join(_scalar(field.base, v) for v in value)
        return _key(field, _BLOCK) + _varint(len(packed)) + packed if packed else b""
    return b"".join(_one(field, v) for v in value)


def _one(field: Field, value: Any) -> bytes:
    if field.base in _WIRE:
        return _key(field, _WIRE[field.base]) + _scalar(field.base, value)
    block = _block(field.base, value)
    return _key(field, _BLOCK) + _varint(len(block)) + block


def _block(kind: str, value: Any) -> bytes:
    if kind == "bytes":
        return bytes(value)
    return str(value).encode() if kind == "string" else encode(kind, value)


def _key(field: Field, wire: int) -> bytes:
    return _varint(field.number << 3 | wire)


def _scalar(kind: str, value: Any) -> bytes:
    if kind == "int":
        return _varint(int(value))
    return struct.pack(_FIXED[_WIRE[kind]], value)


def _varint(value: int) -> bytes:
    value &= 2**64 - 1  # a negative number is its 64-bit pattern
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


# -- reading --------------------------------------------------------------------------------------


def decode(message: str, content: bytes) -> dict[str, Any]:
    """The record of a message; fields that repeat are lists, and those of no name are passed over.
    ValueError if the bytes are not such a message."""
    fields = {f.number: f for f in MESSAGES[message]}
    record: dict[str, Any] = {}
    for number, wire, value in _parts(content):
        field = fields.get(number)
        if field is None:
            continue
        found = _read(field, wire, value)
        if field.repeats:
            record.setdefault(field.name, []).extend(found)
        else:
            record[field.name] = found[-1]
    return record


def _read(field: Field, wire: int, value: Any) -> list[Any]:
    """The values that one part of a message gives to a field: several where they are packed."""
    own = _WIRE.get(field.base, _BLOCK)
    if own != wire and not (field.repeats and wire == _BLOCK):
        raise ValueError(f"'{field.name}' is not written as {field.base}")
    if own != _BLOCK:
        return [value] if own == wire else list(_packed(own, value))
    if field.base == "string":
        return [value.decode()]
    return [value if field.base == "bytes" else decode(field.base, value)]


def _packed(wire: int, block: bytes) -> Iterator[Any]:
    at = 0
    while at < len(block):
        value, at = _value(block, at, wire)
        yield value


def _parts(content: bytes) -> Iterator[tuple[int, int, Any]]:
    """(field number, wire type, value) one after the other."""
    at = 0
    while at < len(content):
        key, at = _read_varint(content, at)
        if not 1 << 3 <= key < 1 << 32:  # a reader that cuts it off would find another field
            raise ValueError(f"{key >> 3} is not the number of a field")
        value, at = _value(content, at, key & 7)
        yield key >> 3, key & 7, value


def _value(content: bytes, at: int, wire: int) -> tuple[Any, int]:
    if wire == _VARINT:
        value, at = _read_varint(content, at)
        return (value - 2**64 if value >> 63 else value), at  # as `_varint` writes it
    if wire in _FIXED:
        size = struct.calcsize(_FIXED[wire])
    elif wire == _BLOCK:
        size, at = _read_varint(content, at)
    else:
        raise ValueError(f"{wire} is not a wire type")
    end = at + size
    if end > len(content):
        raise ValueError("the message ends within a field")
    block = content[at:end]
    return (struct.unpack(_FIXED[wire], block)[0] if wire in _FIXED else block), end


def _read_varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(content):
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if value >> 64 or shift > 70:
            raise ValueError("a number has more than 64 bits")
        if byte < 0x80:
            return value, at
    raise ValueError("the message ends within a number")


# -- as text --------------------------------------------------------------------------------------


def text(message: str, record: Mapping[str, Any]) -> str:
    """The text form, as the tool logs a profile that goes to no file."""
    return "\n".join(_text_lines(message, record, ""))


def _text_lines(message: str, record: Mapping[str, Any], indent: str) -> Iterator[str]:
    for field in MESSAGES[message]:
        value = record.get(field.name)
        for item in value if field.repeats and value else [] if value is None else [value]:
            if field.base in MESSAGES:
                yield f"{indent}{field.name} {{"
                yield from _text_lines(field.base, item, indent + "  ")
                yield f"{indent}}}"
            else:
                yield f"{indent}{field.name}: {_literal(field.base, item)}"


def _literal(kind: str, value: Any) -> str:
    if kind in ("float", "double"):
        return f"{value:g}"
    if kind == "int":
        return str(int(value))
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def parse_text(message: str, content: str) -> dict[str, Any]:
    """The record of a message in text form, one field a line; fields of no name are passed over.
    ValueError if it is none."""
    bare = (line.partition("#")[0].strip() for line in content.splitlines())
    return _text_record(message, filter(None, bare), "")


def _text_record(message: str, lines: Iterator[str], end: str) -> dict[str, Any]:
    fields = {f.name: f for f in MESSAGES.get(message, ())}
    record: dict[str, Any] = {}
    for line in lines:
        if line == end:
            return record
        found = _TEXT_LINE.fullmatch(line)
        if found is None:
            raise ValueError(f"'{line}' is no field of a message")
        field = fields.get(found["name"])
        value: Any = found["value"]
        if value is None:
            value = _text_record(field.base if field else "", lines, "}")
        if field is None:
            continue
        if field.base in _TEXT_VALUES:
            value = _TEXT_VALUES[field.base](value)
        if field.repeats:
            record.setdefault(field.name, []).append(value)
        else:
            record[field.name] = value
    if end:
        raise ValueError("the message ends within a field")
    return record


_TEXT_LINE = re.compile(r"(?P<name>\w+)\s*(?:\{|:\s*(?P<value>[^\s{].*))")
_TEXT_VALUES: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "double": float,
    "string": lambda given: given.strip('"'),
}

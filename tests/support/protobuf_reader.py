"""A reader of protobuf's wire format, for what benchmark_model writes."""

from __future__ import annotations

import struct
from typing import Any

# An independent reading of the .proto files: package, message, and fields by number.
SCHEMAS = {
    "BenchmarkResult": {1: "s name", 2: "LatencyMetrics latency_metrics",
                        3: "MemoryMetrics memory_metrics", 4: "MiscMetrics misc_metrics"},
    "LatencyMetrics": dict(enumerate(("f avg_ms", "f min_ms", "f max_ms", "f stddev_ms",
                                      "f median_ms", "f p5_ms", "f p95_ms", "f init_ms",
                                      "f first_inference_ms", "f average_warm_up_ms"), 1)),
    "MemoryMetrics": {1: "i init_footprint_kb", 2: "i overall_footprint_kb", 3: "f peak_mem_mb"},
    "MiscMetrics": {1: "f model_size_mb", 2: "i num_runs", 3: "i num_warmup_runs",
                    4: "f model_throughput_in_mb_per_sec"},
    "BenchmarkProfilingData": {1: "s model_name", 2: "ModelProfilingData init_profile",
                               3: "ModelProfilingData runtime_profile"},
    "ModelProfilingData": {1: "*SubGraphProfilingData subgraph_profiles"},
    "SubGraphProfilingData": {1: "s subgraph_name", 2: "i subgraph_index",
                              3: "*OpProfileData per_op_profiles"},
    "OpProfileData": {1: "s node_type", 2: "OpProfilingStat inference_microseconds",
                      3: "OpProfilingStat mem_kb", 4: "i times_called", 5: "s name",
                      6: "i run_order"},
    "OpProfilingStat": dict(enumerate(("i first", "i last", "i avg", "f stddev", "f variance",
                                       "i min", "i max", "i sum", "i count"), 1)),
    "ModelRuntimeDetails": {1: "s model_name", 2: "*RuntimeSubgraph subgraphs"},
    "RuntimeSubgraph": {1: "i subgraph_id", 2: "*Edge edges", 3: "*Node nodes",
                        4: "*i execution_plan", 5: "i subgraph_type"},
    "Edge": {1: "i id", 2: "s name", 3: "i data_type", 4: "*i shape", 5: "s allocation_type",
             7: "i size"},
    "Node": {1: "i id", 2: "s name", 3: "s type", 4: "*i inputs", 5: "*i outputs",
             8: "DelegateNodeDetails delegate_node_details", 9: "i delegated_to_node_id"},
    "DelegateNodeDetails": {1: "s delegate_name", 2: "*i tflite_node_ids_replaced"},
    "Example": {1: "Features features"}, "Features": {1: "*Entry feature"},
    "Entry": {1: "s key", 2: "Feature value"},
    "Feature": {1: "List bytes_list", 2: "FloatList float_list", 3: "IntList int64_list"},
    "FloatList": {1: "*f value"}, "IntList": {1: "*i value"}, "List": {1: "*s value"},
}  # fmt: skip


def decode(message: str, blob: bytes) -> dict[str, Any]:
    """Wire format to a dict, by the schemas above."""
    found: dict[str, Any] = {}
    at = 0
    while at < len(blob):
        key, at = varint(blob, at)
        kind, name = SCHEMAS[message][key >> 3].split()
        if key & 7 == 0:
            value, at = varint(blob, at)
        elif key & 7 == 5:
            (value,), at = struct.unpack_from("<f", blob, at), at + 4
        else:
            size, at = varint(blob, at)
            block, at = blob[at : at + size], at + size
            value = unpack(kind.lstrip("*"), block, packed=kind.startswith("*"))
        if kind.startswith("*"):
            found.setdefault(name, []).extend(value if isinstance(value, list) else [value])
        else:
            found[name] = value
    return found


def unpack(kind: str, block: bytes, packed: bool) -> Any:
    if kind == "s":
        return block.decode()
    if kind == "f" and packed:
        return list(struct.unpack(f"<{len(block) // 4}f", block))
    if kind == "i" and packed:
        values, at = [], 0
        while at < len(block):
            value, at = varint(block, at)
            values.append(value - 2**64 if value >= 2**63 else value)
        return values
    return decode(kind, block)


def varint(blob: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = blob[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at

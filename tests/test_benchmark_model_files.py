"""`benchmark_model`: the files that it writes, and what is wrong."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sanderling import protobuf
from sanderling.measure.benchmark_model import op_profile
from sanderling.measure.devices import tool_log

from .support.benchmark_model_command import F32, INT8, SHORT, call
from .support.protobuf_reader import SCHEMAS, decode


def profiled(*words: str) -> tuple[str, tool_log.Log]:
    text = call(f"--graph={INT8}", *SHORT, "--enable_op_profiling=true", *words).stdout
    return text, tool_log.parse(text)


def test_op_profiling_prints_the_tools_tables() -> None:
    text, found = profiled()
    assert text.count("============================== Run Order =====") == 2
    assert "Profiling Info for Benchmark Initialization:" in text and "AllocateTensors/0" in text
    assert [o.type for o in found.ops if o.type.isupper()] == [
        "CONV_2D",
        "CONV_2D",
        "FULLY_CONNECTED",
        "SOFTMAX",
    ]
    assert sum(o.share for o in found.ops) == pytest.approx(100, abs=0.1)
    assert sum(o.share for o in found.types) == pytest.approx(100, abs=0.1)
    assert next(o.name for o in found.ops if o.type == "SOFTMAX") == "[probabilities]:4"


def test_plain_kernels_are_profiled_op_by_op() -> None:
    _, found = profiled("--use_xnnpack=false")
    assert [o.type for o in found.ops] == [
        "CONV_2D",
        "CONV_2D",
        "RESHAPE",
        "FULLY_CONNECTED",
        "SOFTMAX",
    ]


def test_the_csv_is_one_table(tmp_path: Path) -> None:
    path = tmp_path / "ops.csv"
    profiled("--op_profiling_output_mode=csv", f"--op_profiling_output_file={path}")
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    assert set(rows[0]) == set(op_profile.CSV_COLUMNS)
    order = [r for r in rows if r["table"] == "run order" and r["stage"] == "run"]
    assert sum(float(r["%"]) for r in order) == pytest.approx(100, abs=0.01)
    kinds = [r for r in rows if r["table"] == "by type" and r["stage"] == "run"]
    assert {r["node type"]: int(r["count"]) for r in kinds}["CONV_2D"] == 2
    assert float(order[-1]["cdf%"]) == pytest.approx(100, abs=0.01)
    profiled(f"--profiling_output_csv_file={path}", "--op_profiling_csv_layout=tflite")
    text = path.read_text()
    assert "node type, first, avg_ms, %, cdf%, mem KB, times called, name" in text
    assert "============================== Run Order ==" in text and "%, " in text


def test_a_name_with_a_comma_is_quoted_or_loses_it() -> None:
    profile = op_profile.NodeProfile([op_profile.ProfiledNode("SPLIT", "[a, b]:0", [2.0])], runs=1)
    (row, *_) = csv.DictReader(io.StringIO(op_profile.csv_table({"run": profile})))
    assert row["name"] == "[a, b]:0"
    assert "[a\t b]:0" in op_profile.csv_tflite(profile)


def test_profile_as_json(tmp_path: Path) -> None:
    path = tmp_path / "ops.json"
    profiled("--op_profiling_output_mode=json", f"--op_profiling_output_file={path}")
    nodes = json.loads(path.read_text())["run"]["nodes"]
    assert sum(n["share"] for n in nodes) == pytest.approx(1) and nodes[0]["times_called"] == 1


def test_the_result_file(tmp_path: Path) -> None:
    path = tmp_path / "result.pb"
    text = call(
        f"--graph={INT8}",
        *SHORT,
        f"--result_file_path={path}",
        "--benchmark_name=x",
        "--report_peak_memory_footprint=1",
    ).stdout
    found, printed = decode("BenchmarkResult", path.read_bytes()), tool_log.parse(text)
    assert found["name"] == "x" and found["misc_metrics"]["num_runs"] == 3
    assert found["latency_metrics"]["avg_ms"] == pytest.approx(
        printed.inference["avg"] / 1e3,
        rel=1e-4,  # the line has six digits
    )
    assert found["latency_metrics"]["init_ms"] == pytest.approx((printed.init or 0) / 1e3, rel=1e-3)
    assert found["memory_metrics"]["peak_mem_mb"] == pytest.approx(printed.memory["peak"], rel=1e-4)
    assert f"INFO: Saved benchmark result to: {path}" in text


def test_the_profile_file(tmp_path: Path) -> None:
    path = tmp_path / "profile.pb"
    profiled("--op_profiling_output_mode=proto", f"--op_profiling_output_file={path}")
    found = decode("BenchmarkProfilingData", path.read_bytes())
    (subgraph,) = found["runtime_profile"]["subgraph_profiles"]
    softmax = next(o for o in subgraph["per_op_profiles"] if o["node_type"] == "SOFTMAX")
    assert softmax["inference_microseconds"]["count"] == 3 and softmax["name"].endswith(":4")
    text, _ = profiled("--op_profiling_output_mode=proto")
    assert 'node_type: "SOFTMAX"' in text


def test_runtime_details_say_who_runs_what(tmp_path: Path) -> None:
    path = tmp_path / "details.pb"
    call(
        f"--graph={INT8}",
        *SHORT,
        "--export_model_runtime_info=true",
        f"--model_runtime_info_output_file={path}",
    )
    (subgraph,) = decode("ModelRuntimeDetails", path.read_bytes())["subgraphs"]
    part = subgraph["nodes"][-1]
    replaced = [0, 1, 2, 3, 4]
    details = {"delegate_name": "cpu", "tflite_node_ids_replaced": replaced}
    assert part["delegate_node_details"] == details
    assert [n["delegated_to_node_id"] for n in subgraph["nodes"][:-1]] == [5] * 5
    assert subgraph["execution_plan"] == [5] and len(subgraph["edges"]) == 13


def test_outputs_as_example(tmp_path: Path) -> None:
    path, raw = tmp_path / "example.pb", tmp_path / "raw"
    call(f"--graph={F32}", *SHORT, f"--output_proto_filepath={path}", f"--output_filepath={raw}")
    (entry,) = decode("Example", path.read_bytes())["features"]["feature"]
    assert entry["key"] == "probabilities"
    np.testing.assert_array_equal(entry["value"]["float_list"]["value"], np.fromfile(raw, "f4"))
    assert sum(entry["value"]["float_list"]["value"]) == pytest.approx(1, abs=1e-5)


def test_protobuf_reads_what_we_write() -> None:
    """Google's own reader, where it is installed."""
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    from google.protobuf import descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto2")
    for message in ("BenchmarkResult", "LatencyMetrics", "MemoryMetrics", "MiscMetrics"):
        made = file.message_type.add(name=message)
        for number, text in SCHEMAS[message].items():
            kind, name = text.split()
            code = {"f": 2, "i": 3, "s": 9}.get(kind, 11)
            more = {"type_name": f".t.{kind}"} if code == 11 else {}
            made.field.add(name=name, number=number, label=1, type=code, **more)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("t.BenchmarkResult"))
    found = kind.FromString(
        protobuf.encode(
            "BenchmarkResult",
            {
                "name": "ü",
                "latency_metrics": {"avg_ms": 1.5},
                "misc_metrics": {"num_runs": 300},
                "memory_metrics": {"init_footprint_kb": -7},
            },
        )
    )
    assert (
        found.name,
        found.latency_metrics.avg_ms,
        found.misc_metrics.num_runs,
        found.memory_metrics.init_footprint_kb,
    ) == ("ü", 1.5, 300, -7)


def test_protobuf_is_read_as_it_was_written() -> None:
    records: list[tuple[str, dict[str, Any]]] = [
        (
            "BenchmarkResult",
            {
                "name": "ü",
                "latency_metrics": {"avg_ms": 1.5},
                "memory_metrics": {"init_footprint_kb": -7},
            },
        ),
        (
            "RuntimeSubgraph",
            {"edges": [{"id": 0, "shape": [1, 300]}, {"id": 2}], "execution_plan": [1, 0]},
        ),
        ("StageLatency", {"avg_us": 0.1}),
        ("BytesList", {"value": [b"\0", b"two"]}),
    ]
    for message, record in records:
        assert protobuf.decode(message, protobuf.encode(message, record)) == record
    with pytest.raises(ValueError, match="ends within"):
        protobuf.decode("BytesList", protobuf.encode("BytesList", {"value": [b"two"]})[:-1])
    with pytest.raises(ValueError, match="not written as string"):
        protobuf.decode("BenchmarkResult", protobuf.encode("InferenceCount", {"num_inferences": 1}))


# -- what is wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize("words, says", [
    (["--num_runs=3"], "Please specify the name of your TF Lite input file with --graph"),
    (["--graph=/nowhere.tflite"], "/nowhere.tflite"),
    ([f"--graph={INT8}", "--num_threads=0"], "num_threads is 0"),
    ([f"--graph={INT8}", "--num_threads=-2"], "num_threads is -2"),
    ([f"--graph={INT8}", "--num_runs=many"], "Failed to parse flag 'num_runs'"),
    (["--graph=fd:9"], "Failed to parse model file size"),
    (["--graph=fd:99:0:9"], "the descriptor cannot be read"),
    ([f"--graph={INT8}", "--input_layer=a"], "The number of items in --input_layer_shape"),
    ([f"--graph={INT8}", "--input_layer=image", "--input_layer_shape=1,-1,8,1"],
     "Any unknown sizes in the shapes"),
    ([f"--graph={INT8}", "--input_layer=image", "--input_layer_shape=1,8,8"],
     "Input tensor #0 should have 4 dimensions!"),
    ([f"--graph={INT8}", "--input_layer=image", "--input_layer_shape=1,8,9,1"],
     "the model does not run on this shape"),
    ([f"--graph={INT8}", "--input_layer=a,b", "--input_layer_shape=1:1"], "Inputs mismatch"),
    ([f"--graph={INT8}", "--input_layer=image", "--input_layer_shape=1,x"], "Incorrect size"),
    ([f"--graph={INT8}", "--input_layer=image", "--input_layer_shape=1,8,8,1",
      "--input_layer_value_range=image,5,2"], "Wrong low and high value"),
    ([f"--graph={INT8}", "--input_layer=image", "--input_layer_shape=1,8,8,1",
      "--input_layer_value_range=image,0,300"], "0 to 300 is not a range of i8"),
    ([f"--graph={INT8}", "--input_layer_value_range=image,0"], "Wrong input value range item"),
    ([f"--graph={INT8}", "--input_layer_value_range=image,0,1"], "Cannot find the corresponding"),
    ([f"--graph={INT8}", "--input_layer=image", "--input_layer_shape=1,8,8,1",
      f"--input_layer_value_files=image:{INT8}"], "It should be 64 bytes"),
    ([f"--graph={INT8}", "--input_layer=image", "--input_layer_shape=1,8,8,1",
      "--input_layer_value_files=image:/nowhere"], "Failed to read the input_layer_value_file"),
    ([f"--graph={INT8}", "--signature_to_run_for=x"], "Signature not specified or incorrect"),
    ([f"--graph={INT8}", "--enable_op_profiling=1", "--op_profiling_output_mode=xml"],
     "Output mode xml is not supported"),
    ([f"--graph={INT8}", "--result_file_path=/nowhere/r.pb"], "cannot write"),
    ([f"--graph={INT8}", "--output_filepath=/"], "it is a folder"),
    ([f"--graph={INT8}", "--output_filepath=same", "--result_file_path=same"],
     "two results would go into this file"),
    ([f"--graph={INT8}", "--json=/nowhere/r.json"], "cannot write"),
    ([f"--graph={INT8}", "--perf_options_list=cpu,tpu"], "There are invalid perf options"),
    ([f"--graph={INT8}", "--perf_options_list=none,cpu"], "The 'none' option can not be used"),
    (["--graph=/nowhere.tflite", "--perf_options_list=cpu"], "/nowhere.tflite"),
    ([f"--graph={INT8}", "--perf_options_list=dsp"], "no setting could be measured"),
    ([f"--graph={INT8}", "--precision=f8"], "no precision 'f8'"),
    ([f"--graph={INT8}", "--plugin=/nowhere.py"], "there is no such file"),
    ([f"--graph={INT8}", "--device=fridge"], "there is no device 'fridge'"),
    ([f"--graph={INT8}", "--device=android", "--adb=no_such_adb"],
     "the command 'no_such_adb' is not there"),
    ([f"--graph={INT8}", "--device=ios"], "needs its parameters, or its log"),
])  # fmt: skip
def test_bad_input_is_a_sentence_and_status_2(words: list[str], says: str) -> None:
    found = call(*words, status=2)
    assert says in found.stderr and "Traceback" not in found.stderr
    assert found.stderr.count("sanderling: ") == 1


def test_an_unwritable_file_is_said_before_the_run(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    if os.access(tmp_path, os.W_OK):
        pytest.skip("this user may write everywhere")
    found = call(f"--graph={INT8}", f"--output_filepath={tmp_path / 'x'}", status=2)
    assert "cannot write" in found.stderr and "Running benchmark" not in found.stdout


def test_a_file_without_its_switch_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "ops.csv"
    text = call(f"--graph={INT8}", *SHORT, f"--op_profiling_output_file={path}").stdout
    assert "has no effect without --enable_op_profiling=true" in text and not path.exists()


def test_a_failed_run_leaves_no_file(tmp_path: Path) -> None:
    out = tmp_path / "out"
    call(f"--graph={INT8}", f"--output_filepath={out}", "--signature_to_run_for=no", status=2)
    assert list(tmp_path.iterdir()) == []


def test_a_bad_interval_is_warned_of() -> None:
    text = call(f"--graph={INT8}", *SHORT, "--memory_footprint_check_interval_ms=0").stdout
    assert "This value is invalid, and it will be set to the default value 50 (ms)." in text

"""`benchmark_model`: delegates, several settings, devices, a real model."""

from __future__ import annotations

import json
from typing import Any

import pytest

import sanderling
from sanderling.errors import DelegateError, MissingExtraError
from sanderling.measure.benchmark_model import flags, providers, tool_run
from sanderling.measure.devices import tool_log
from sanderling.measure.sweep import delegate_choices

from .support.benchmark_model_command import (
    F32,
    INT8,
    SHORT,
    Picky,
    call,
    named_delegates,  # noqa: F401
)
from .support.phones import NEW, Phone, scripted_phone  # noqa: F401
from .support.shared_models import NEEDS
from .support.shared_models import model as shared_model

# -- delegates ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flag, says",
    [
        ("use_gpu", "GPU acceleration is unsupported on this platform. There is no delegate 'gpu'"),
        ("use_nnapi", "NNAPI acceleration is unsupported on this platform."),
        ("use_hexagon", "Could not create Hexagon delegate"),
        ("use_coreml", "CoreML acceleration is unsupported on this platform."),
    ],
)
def test_delegates_that_are_not_there(flag: str, says: str) -> None:
    row = next(p for p in providers.PROVIDERS if p.flag == flag)
    if providers.stand_in(row)[0] is not None:
        pytest.skip("this delegate exists")
    text = call(f"--graph={INT8}", *SHORT, f"--{flag}=true").stdout
    assert f"WARN: {says}" in text and tool_log.parse(text).is_complete


def test_a_registered_delegate_takes_effect(named: dict[str, Any]) -> None:
    gpu = Picky("gpu", {"CONV_2D", "RESHAPE", "FULLY_CONNECTED", "SOFTMAX"})
    named["gpu"] = lambda: gpu
    text = call(f"--graph={F32}", *SHORT, "--use_gpu=true", "--gpu_backend=cl").stdout
    assert (
        "Explicitly applied GPU delegate, and the model graph will be completely executed by "
        "the delegate."
    ) in text
    assert gpu.flags == {"gpu_backend": "cl", "gpu_precision_loss_allowed": True}
    assert "has no effect" not in text


def test_several_delegates_in_the_order_of_their_flags(named: dict[str, Any]) -> None:
    named["gpu"] = lambda: Picky("gpu", {"CONV_2D"})
    text = call(f"--graph={F32}", *SHORT, "--use_gpu=true", "--use_xnnpack=true").stdout
    assert "Going to apply 2 delegates one after another." in text
    assert (
        "GPU delegate, and the model graph will be partially executed by the delegate w/ 1" in text
    )
    text = call(f"--graph={F32}", *SHORT, "--use_xnnpack=true", "--use_gpu=true").stdout
    assert "Though GPU delegate is explicitly applied, the model graph will not be executed" in text


def parts(*words: str) -> list[Any]:
    found = json.loads(call(f"--graph={F32}", *SHORT, "--json=-", *words).stdout)
    shared: list[Any] = found["runs"][0]["delegates"]
    return shared


def test_use_xnnpack_is_xnnpack_itself(named: dict[str, Any]) -> None:
    """By LiteRT, beside our cpu, which runs the model if nothing is said."""
    named["litert"] = lambda: Picky("litert", {"CONV_2D", "MAX_POOL_2D"})
    assert parts() == [{"name": "cpu", "parts": 1}]
    assert parts("--use_xnnpack=true") == [
        {"name": "litert", "parts": 1},
        {"name": "cpu", "parts": 1},
    ]
    assert parts("--use_xnnpack=false") == [{"name": "reference", "parts": 1}]
    text = call(f"--graph={F32}", *SHORT, "--use_xnnpack", "--xnnpack_runtime_flags=3").stdout
    assert "INFO: The litert delegate takes the part of XNNPACK" in text
    assert (
        "Explicitly applied XNNPACK delegate, and the model graph will be partially executed by "
        "the delegate w/ 1 delegate kernels."
    ) in text


def test_the_cpu_takes_the_part_of_xnnpack_without_litert(named: dict[str, Any]) -> None:
    def missing() -> Any:
        raise MissingExtraError("ai-edge-litert", "peers", "the delegate litert")

    named["litert"] = missing
    assert parts("--use_xnnpack=true") == [{"name": "cpu", "parts": 1}]
    text = call(f"--graph={F32}", *SHORT, "--use_xnnpack").stdout
    assert (
        "The cpu delegate takes the part of XNNPACK (the delegate litert needs the package" in text
    )
    assert "Explicitly applied XNNPACK delegate, and the model graph will be completely" in text


def test_litert_runs_xnnpack() -> None:
    pytest.importorskip("ai_edge_litert")
    text = call(f"--graph={F32}", *SHORT, "--use_xnnpack=true", "--require_full_delegation").stdout
    assert "Explicitly applied XNNPACK delegate, and the model graph will be completely" in text


def test_the_gpu_is_whoever_is_here(named: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    named["litert-gpu"] = lambda: Picky("litert-gpu", {"CONV_2D"})
    if "gpu" in sanderling.delegate_names():
        pytest.skip("this delegate exists, and comes first")
    assert parts("--use_gpu=true")[0] == {"name": "litert-gpu", "parts": 1}
    text = call(f"--graph={F32}", *SHORT, "--use_gpu=true").stdout
    assert "The litert-gpu delegate takes the part of GPU (there is no delegate 'gpu')" in text


def test_a_delegate_that_lacks_its_device_is_not_here(named: dict[str, Any]) -> None:
    """As Core ML does, which executes on macOS only."""
    mine = Picky("coreml", {"CONV_2D"})
    named["coreml"] = lambda: mine
    assert parts("--use_coreml=true")[0] == {"name": "coreml", "parts": 1}
    mine.lacks = lambda: "no neural engine"  # type: ignore[method-assign]
    text = call(f"--graph={F32}", *SHORT, "--use_coreml=true").stdout
    assert "CoreML acceleration is unsupported on this platform. No neural engine (there" in text
    assert ("coreml",) not in delegate_choices()


def test_a_range_of_nodes_is_delegated(named: dict[str, Any]) -> None:
    named["gpu"] = lambda: Picky("gpu", {"CONV_2D", "RESHAPE", "FULLY_CONNECTED", "SOFTMAX"})
    for first, last, counts in ((0, 4, [1, 0]), (1, 2, [1, 2]), (3, 99, [1, 1]), (9, 99, [0, 1])):
        text = f"--first_delegate_node_index={first}", f"--last_delegate_node_index={last}"
        assert [row["parts"] for row in parts("--use_gpu=true", *text)] == counts


def test_limits_of_partitions_bind_the_delegate_alone(named: dict[str, Any]) -> None:
    named["gpu"] = lambda: Picky("gpu", {"CONV_2D", "FULLY_CONNECTED"})
    one = parts("--use_gpu=true", "--max_delegated_partitions=1")
    assert [(row["name"], row["parts"]) for row in one] == [("gpu", 1), ("cpu", 1)]
    none = parts("--use_gpu=true", "--min_nodes_per_partition=9")
    assert [(row["name"], row["parts"]) for row in none] == [("gpu", 0), ("cpu", 1)]


def test_full_delegation_is_a_check(named: dict[str, Any]) -> None:
    named["gpu"] = lambda: Picky("gpu", {"CONV_2D"})
    must = f"--graph={F32}", *SHORT, "--require_full_delegation=true"
    assert "completely" in call(*must, "--use_xnnpack=true").stdout
    for words in ([], ["--use_gpu=true"]):
        assert "Disallowed CPU fallback detected" in call(*must, *words, status=1).stderr


def test_flags_without_effect_are_answered() -> None:
    text = call(
        f"--graph={INT8}",
        *SHORT,
        "--use_caching=true",
        "--nnapi_allow_fp16=1",
        "--xnnpack_weight_cache_file_path=w",
        "--allow_fp16=false",
        "--use_gpu=true",
        "--gpu_wait_type=active",
        "--gpu_invoke_loop_times=2",
    ).stdout
    assert "WARN: --gpu_wait_type has no effect: of Metal's delegate on iOS only" in text
    assert "WARN: --gpu_invoke_loop_times has no effect: a run is one call" in text
    assert "WARN: --use_caching has no effect: weights are always packed once" in text
    assert "WARN: --nnapi_allow_fp16 has no effect without --use_nnapi=true" in text
    assert "--xnnpack_weight_cache_file_path has no effect" in text and "--allow_fp16" not in text


def test_external_delegates_are_registered_names(named: dict[str, Any]) -> None:
    named["mine"] = lambda: Picky("mine", {"SOFTMAX"})
    text = call(f"--graph={F32}", *SHORT, "--external_delegate_path=mine").stdout
    assert "Explicitly applied EXTERNAL delegate" in text
    said = call(f"--graph={F32}", *SHORT, "--external_delegate_path=libx.so", status=2).stderr
    assert "Failed to load delegate from libx.so" in said


# -- several settings -----------------------------------------------------------------------------


def test_all_options_are_measured_and_failures_survive() -> None:
    text = call(f"--graph={INT8}", *SHORT, "--perf_options_list=all").stdout
    found = tool_log.parse(text)
    cpu = {f"cpu w/ {n} threads{x}" for n in (1, 2, 4) for x in ("", " (xnnpack)")}
    assert cpu <= found.options.keys() and all(found.options[name] for name in cpu)
    if providers.stand_in(providers.PROVIDERS[0])[0] is None:
        assert found.options["gpu-default"] is None and "there is no delegate 'gpu'" in text
        assert list(found.options)[-1] == "gpu-default"
    means = [s["avg"] for s in found.options.values() if s]
    assert means == sorted(means)
    assert "              gpu-default: " in text or "gpu-default" not in text  # 26 wide


def test_one_failing_option_does_not_end_the_others(named: dict[str, Any]) -> None:
    named["gpu"] = lambda: Picky("gpu", {"SOFTMAX"})
    named["hexagon"] = lambda: Picky("hexagon", set())
    named["nnapi"] = lambda: (_ for _ in ()).throw(DelegateError("driver crashed"))
    text = call(
        f"--graph={INT8}",
        *SHORT,
        "--perf_options_list=gpu,nnapi,dsp",
        "--random_shuffle_benchmark_runs=false",
    ).stdout
    found = tool_log.parse(text).options
    assert found["gpu-default"] and found["nnapi(w/o accel name)"] is None
    assert "failed: driver crashed" in text
    assert found["dsp w/ hexagon"] is None and "the delegate 'hexagon' runs no op" in text


def test_none_is_the_given_flags_once() -> None:
    text = call(f"--graph={INT8}", *SHORT, "--perf_options_list=none", "--num_threads=2").stdout
    assert list(tool_log.parse(text).options) == ["cpu w/ 2 threads"]


def test_settings_are_shuffled_unless_told_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    from sanderling.measure.benchmark_model import performance_options

    seen: list[list[Any]] = []
    monkeypatch.setattr(performance_options.random, "shuffle", lambda x: seen.append(list(x)))
    call(f"--graph={INT8}", *SHORT, "--perf_options_list=cpu")
    call(f"--graph={INT8}", *SHORT, "--perf_options_list=cpu", "--random_shuffle_benchmark_runs=0")
    assert len(seen) == 1 and len(seen[0]) == 6


# -- devices --------------------------------------------------------------------------------------


def test_the_flags_go_to_the_tool_on_a_device(phone: Any) -> None:
    device: Phone = phone()
    found = call(
        f"--graph={INT8}",
        "--num_threads=4",
        "--use_gpu=true",
        "--max_secs=20",
        "--device=android",
        f"--device_binary={device.tool(NEW)}",
        "--json=-",
    )
    (run,) = json.loads(found.stdout)["runs"]
    assert run["setting"]["device"] == "android:PHONE1" and run["summary"]["count"] == 82
    line = next(c[-1] for c in device.calls if "--graph" in c[-1])
    assert "--num_threads=4 --use_gpu=true --max_secs=20" in line
    assert "Inference (avg): 12200.2" in found.stderr
    assert "Average inference timings in us: Warmup: 12350.5, Init: 12345" in found.stderr
    assert "Memory footprint delta from the start of the tool (MB): init=2.5 overall=7.25" in (
        found.stderr
    )


def test_a_device_that_fails_is_status_2(phone: Any) -> None:
    device: Phone = phone(room=0)
    found = call(
        f"--graph={INT8}", "--device=android", f"--device_binary={device.tool()}", status=2
    )
    assert "the device's disk is full" in found.stderr


# -- a real model ---------------------------------------------------------------------------------


@NEEDS
def test_a_shared_model() -> None:
    path = shared_model("coral_mobilenet_v1_0.25_128_quant")
    text = call(f"--graph={path}", *SHORT, "--num_threads=2", "--enable_op_profiling=true").stdout
    found = tool_log.parse(text)
    assert found.is_complete and "DEPTHWISE_CONV_2D" in {o.type for o in found.types}


def test_threads_are_used() -> None:
    """The session gets the number that was asked for."""
    run = tool_run.run_once(
        flags.Values(
            {
                "graph": INT8,
                "num_threads": 2,
                "num_runs": 1,
                "min_secs": 0.0,
                "warmup_min_secs": 0.0,
            }
        ),
        lambda *_: None,
    )
    assert run.result.setting.threads == 2

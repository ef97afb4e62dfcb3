"""The flags of `benchmark_model` and `benchmark_model_performance_options`: one table.

A flag has its type, its default, what it means, the label under which the tool logs it, and what is
different here. Parsing, help, the log of parameters and the documentation read the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from ... import tables
from ...errors import InputError

Value = int | float | bool | str


@dataclass(frozen=True)
class Flag:
    name: str
    default: Value
    meaning: str
    label: str = ""  # in the log; a flag without one is not logged
    here: str = ""  # what is different in this runtime
    inert: bool = False  # accepted, and answered with `here`

    @property
    def kind(self) -> str:
        """As the tool calls it."""
        return {bool: "bool", int: "int32", float: "float"}.get(type(self.default), "string")

    def read(self, text: str) -> Value | None:
        """None if the text is not of this flag's type."""
        try:
            if isinstance(self.default, bool):
                return _BOOLS[text]
            return type(self.default)(text)
        except (KeyError, ValueError):
            return None


_BOOLS = {"true": True, "1": True, "false": False, "0": False}
_XNNPACK = "by the litert delegate; our cpu has no such option"
_NO_GPU = "needs the delegate gpu or litert-gpu"
_NO_NNAPI = "needs a delegate named 'nnapi', which only Android could have"

HELP = (Flag("help", False, "print the flags and stop", here="status 0; the tool's is an error"),)
CORE = (
    Flag("num_runs", 50, "expected runs: a minimum, see min_secs and max_secs", "Min num runs"),
    Flag("min_secs", 1.0, "seconds to run for at least; may raise the number of runs",
         "Min runs duration (seconds)"),
    Flag("max_secs", 150.0, "no run starts after so many seconds; may lower the number of runs. "
         "Holds for the warm-up and for the runs, each on its own", "Max runs duration (seconds)"),
    Flag("run_delay", -1.0, "seconds between runs; 0 or less: none", "Inter-run delay (seconds)"),
    Flag("run_frequency", -1.0, "runs a second at a fixed rate, instead of a fixed delay; a run "
         "that is late starts at once", "Number of prorated runs per second"),
    Flag("num_threads", -1, "threads; -1: the default", "Num threads",
         here="the default is 1; 0 is refused"),
    Flag("use_caching", False, "keep packed weights of matrix products", "Use caching",
         here="weights are always packed once, when the model is compiled", inert=True),
    Flag("benchmark_name", "", "a label", "Benchmark name"),
    Flag("output_prefix", "", "a label", "Output prefix"),
    Flag("warmup_runs", 1, "warm-up runs at least", "Min warmup runs"),
    Flag("warmup_min_secs", 0.5, "seconds of warm-up at least",
         "Min warmup runs duration (seconds)"),
    Flag("verbose", False, "also log parameters that were not set"),
    Flag("dry_run", False, "load and allocate, run nothing", "Run w/o invoking kernels"),
    Flag("report_peak_memory_footprint", False, "watch the memory from a thread of its own",
         "Report the peak memory footprint",
         here="samples the resident set; the tool samples a high-water mark, which cannot fall"),
    Flag("memory_footprint_check_interval_ms", 50, "milliseconds between two looks",
         "Memory footprint check interval (ms)"),
    Flag("gpu_invoke_loop_times", 1, "runs in one call of the GPU",
         here="a run is one call, as in the tool unless it is built for invoke loops", inert=True),
)  # fmt: skip
MODEL = (
    Flag("graph", "", "the model: a path, or fd:DESCRIPTOR:OFFSET:SIZE", "Graph"),
    Flag("signature_to_run_for", "", "the signature to run; required where there are several",
         "Signature to run"),
    Flag("list_signatures", False, "print the signatures' keys and stop",
         "List signatures from the provided model", here="status 0; the tool's is an error"),
    Flag("input_layer", "", "names of all inputs, with commas, in the model's order",
         "Input layers"),
    Flag("input_layer_shape", "", "shapes of all inputs: 1,30:1,10", "Input shapes"),
    Flag("input_layer_value_range", "", "name,low,high:name,low,high, both inclusive",
         "Input value ranges", here="takes reals too"),
    Flag("input_layer_value_files", "", "name:path,name:path; raw bytes of the tensor, or strings "
         "with NUL between; :: stands for a colon", "Input value files", here="takes .npy too"),
    Flag("allow_fp16", False, "let delegates compute float32 in float16", "Allow fp16",
         here="the CPU computes in float32; see precision", inert=True),
    Flag("require_full_delegation", False, "fail unless one delegate runs the whole graph",
         "Require full delegation", here="status 1"),
    Flag("enable_op_profiling", False, "time every operator", "Enable op profiling"),
    Flag("op_profiling_output_mode", "stdout", "stdout, csv or proto",
         "Op profiling output mode.", here="csv can be parsed, see op_profiling_csv_layout; "
         "also json"),
    Flag("op_profiling_output_file", "", "where the profile goes; empty: the log",
         "Op profiling output file."),
    Flag("max_profiling_buffer_entries", 1024, "places for profiling events of a run",
         "Max initial profiling buffer entries", here="there is room for every step", inert=True),
    Flag("allow_dynamic_profiling_buffer_increase", False, "let that buffer grow",
         "Allow dynamic increase on profiling buffer entries",
         here="there is room for every step", inert=True),
    Flag("profiling_output_csv_file", "", "the old name for mode csv and its file",
         "CSV File to export profiling data to"),
    Flag("export_model_runtime_info", False, "write which delegate runs which node",
         "Enable Model Runtime Info Export"),
    Flag("model_runtime_info_output_file", "", "where to (ModelRuntimeDetails)",
         "Proto File to export model runtime info to"),
    Flag("print_preinvoke_state", False, "print tensors and memory before the runs",
         "Print pre-invoke interpreter state"),
    Flag("print_postinvoke_state", False, "print tensors and memory after the runs",
         "Print post-invoke interpreter state"),
    Flag("release_dynamic_tensors", False, "free tensors of unknown size after use",
         "Release dynamic tensor memory", here="they are always freed after use", inert=True),
    Flag("optimize_memory_for_large_tensors", 0, "tensors of so many bytes are made when needed",
         "Optimize memory usage for large tensors",
         here="all tensors share one planned arena", inert=True),
    Flag("disable_delegate_clustering", False, "keep the order of the ops when they are shared out",
         "Disable delegate clustering"),
    Flag("enable_builtin_cast_constant_cache", False, "keep casts of constants",
         "Constant CAST output cache", here="constants are always computed once", inert=True),
    Flag("output_filepath", "", "write the outputs' bytes, one after the other",
         "File path to export outputs layer to"),
    Flag("output_proto_filepath", "", "write the outputs as a tf.Example",
         "File path to export outputs layer as tf example to"),
    Flag("result_file_path", "", "write the result (BenchmarkResult)",
         "File path to save the benchmark result in binary proto format"),
    Flag("tensor_name_display_length", 25, "width of names in the state",
         "Tensor name display length"),
    Flag("tensor_type_display_length", 15, "width of types in the state",
         "Tensor type display length"),
    Flag("alloc_type_display_length", 18, "width of the kinds of memory in the state",
         "Tensor allocation type display length"),
)  # fmt: skip
DELEGATES = (
    Flag("max_delegated_partitions", 0, "parts that a delegate gets at most; 0: all",
         "Max number of delegated partitions"),
    Flag("min_nodes_per_partition", 0, "ops that a delegate's part has at least",
         "Min nodes per partition"),
    Flag("first_delegate_node_index", 0, "the first node that may be delegated",
         "Index of the first node that could be delegated",
         here="always there; only debug builds of the tool have it"),
    Flag("last_delegate_node_index", 2147483647, "the last node that may be delegated",
         "Index of the last node that could be delegated",
         here="always there; only debug builds of the tool have it"),
    Flag("delegate_serialize_dir", "", "a folder for compiled models",
         "Directory for delegate serialization",
         here="the gpu delegate's; what others compile is kept anyway: see SANDERLING_CACHE"),
    Flag("delegate_serialize_token", "", "a name for the model in that folder",
         "Model-specific token/key for delegate serialization.",
         here="the gpu delegate's; models are told apart by content, too"),
    Flag("use_gpu", False, "apply the GPU delegate", "Use gpu", here=_NO_GPU),
    Flag("gpu_precision_loss_allowed", True, "the GPU may compute in float16",
         "Allow lower precision in gpu", here=_NO_GPU),
    Flag("gpu_experimental_enable_quant", True, "the GPU may run quantised models",
         "Enable running quant models in gpu", here=_NO_GPU),
    Flag("gpu_inference_for_sustained_speed", False, "prefer long runs to one answer",
         "Prefer maximizing the throughput in gpu", here=_NO_GPU),
    Flag("gpu_backend", "", "cl or gl", "GPU backend",
         here=f"{_NO_GPU}; cl or webgpu, there is no gl"),
    Flag("gpu_wait_type", "", "passive, active, do_not_wait or aggressive (iOS)",
         "GPU delegate wait type", here="of Metal's delegate on iOS only", inert=True),
    Flag("use_xnnpack", False, "apply XNNPACK; false: plain kernels", "Use xnnpack",
         here="true: XNNPACK itself, by the litert delegate, or the cpu delegate where LiteRT is "
         "not installed; unset: the cpu delegate; false: the NumPy reference kernels"),
    Flag("xnnpack_force_fp16", False, "compute in float16", "xnnpack_force_fp16",
         here=_XNNPACK),
    Flag("xnnpack_weight_cache_file_path", "", "a file for packed weights",
         "XNNPACK weight cache file path", here=f"{_XNNPACK}; a folder, with a file for each part"),
    Flag("xnnpack_runtime_flags", 0, "XNNPACK's own", "Extra flags for XNNPACK runtime",
         here=_XNNPACK),
    Flag("use_ynnpack", False, "apply YNNPACK", "Use ynnpack",
         here="needs a delegate named 'ynnpack'"),
    *(Flag(f"ynnpack_{name}", False, "YNNPACK's own", f"ynnpack_{name}",
           here="YNNPACK's own", inert=True)
      for name in ("static_shape", "fast_math", "consistent_arithmetic", "no_excess_precision")),
    Flag("use_nnapi", False, "apply the NNAPI delegate", "Use NNAPI", here=_NO_NNAPI),
    Flag("nnapi_execution_preference", "",
         "fast_single_answer, sustained_speed, low_power or undefined",
         "NNAPI execution preference", here=_NO_NNAPI),
    Flag("nnapi_execution_priority", "", "default, low, medium or high",
         "Model execution priority in nnapi", here=_NO_NNAPI),
    Flag("nnapi_accelerator_name", "", "the accelerator to use", "NNAPI accelerator name",
         here=_NO_NNAPI),
    Flag("disable_nnapi_cpu", True, "keep NNAPI off the CPU", "Disable NNAPI cpu",
         here=_NO_NNAPI),
    Flag("nnapi_allow_fp16", False, "NNAPI may compute in float16", "Allow fp16 in NNAPI",
         here=_NO_NNAPI),
    Flag("nnapi_allow_dynamic_dimensions", False, "NNAPI may take open shapes",
         "Allow dynamic dimensions in NNAPI", here=_NO_NNAPI),
    Flag("nnapi_use_burst_mode", False, "NNAPI runs in bursts", "Use burst mode in NNAPI",
         here=_NO_NNAPI),
    Flag("nnapi_support_library_path", "", "NNAPI's support library",
         "NNAPI SL path", here=_NO_NNAPI),
    Flag("use_hexagon", False, "apply the Hexagon delegate", "Use Hexagon",
         here="needs a delegate named 'hexagon', which only Android could have"),
    Flag("hexagon_lib_path", "/data/local/tmp", "Hexagon's libraries", "Hexagon lib path",
         here="for use_hexagon"),
    Flag("hexagon_profiling", False, "profile Hexagon", "Hexagon profiling",
         here="for use_hexagon"),
    Flag("use_coreml", False, "apply the Core ML delegate", "Use CoreML",
         here="needs a delegate named 'coreml', which only Apple's systems could have"),
    Flag("coreml_version", 0, "the version of Core ML; 0: the newest", "CoreML version",
         here="for use_coreml"),
    Flag("external_delegate_path", "", "a delegate's library", "External delegate path",
         here="loaded by LiteRT; or the name of a registered delegate"),
    Flag("external_delegate_options", "", "key:value;key:value", "External delegate options"),
    Flag("stable_delegate_settings_file", "", "settings of a stable delegate",
         "Delegate settings file path",
         here="its libraries link against TensorFlow Lite's runtime", inert=True),
)  # fmt: skip
OPTIONS = (
    Flag(
        "perf_options_list",
        "all",
        "measure several settings: all, cpu, gpu, nnapi, coreml, dsp (with commas), or none",
    ),
    Flag("option_benchmark_run_delay", -1.0, "seconds between two settings"),
    Flag("random_shuffle_benchmark_runs", True, "measure the settings in random order"),
)
OWN = (
    Flag("json", "", "write the result as JSON; - for stdout"),
    Flag("precision", "f32", "of float products on the CPU: f32 or bf16"),
    Flag("op_profiling_csv_layout", "table", "table: one CSV; tflite: the tool's own layout, with "
         "its banners between three tables"),
    Flag("plugin", "", "Python files to run first, with commas: they register delegates and "
         "operators"),
    Flag("device", "", "run the tool itself on a device: android, android:SERIAL or ios"),
    Flag("device_binary", "", "the tool for the device: benchmark_model as built for it"),
    Flag("device_app", "", "the benchmark app: an .apk, or 'installed'"),
    Flag("device_cpu_mask", "", "hexadecimal mask of the device's cores, such as f0"),
    Flag("device_folder", "", "for ios: the app's benchmark_data folder, which is filled"),
    Flag("device_log", "", "for ios: the log of the app, to be read"),
    Flag("device_timeout", 900.0, "seconds that a device's benchmark may take"),
    Flag("adb", "adb", "the adb command"),
)  # fmt: skip
GROUPS: dict[str, tuple[Flag, ...]] = {
    "Help": HELP, "Runs": CORE, "The model and its output": MODEL, "Delegates": DELEGATES,
    "Several settings in one run": OPTIONS, "Not the tool's": OWN,
}  # fmt: skip
FLAGS = {flag.name: flag for group in GROUPS.values() for flag in group}
# Names that the tool's own documents use for the same flag.
ALIASES = {
    "stable_abi_delegate_settings_file": "stable_delegate_settings_file",
    "stable_delegate_loader_settings": "stable_delegate_settings_file",
}


class Values(Mapping[str, Value]):
    """The value of every flag; `given` are those that were set, in their order."""

    def __init__(self, given: Mapping[str, Value] | None = None) -> None:
        self.given: dict[str, Value] = {}
        for name, value in (given or {}).items():
            self.given[name] = _typed(name, value)

    def __getitem__(self, name: str) -> Value:
        return self.given[name] if name in self.given else FLAGS[name].default

    def __iter__(self) -> Iterator[str]:
        return iter(FLAGS)

    def __len__(self) -> int:
        return len(FLAGS)

    def text(self, name: str) -> str:
        return str(self[name])

    def number(self, name: str) -> int:
        return int(self[name])

    def seconds(self, name: str) -> float:
        return float(self[name])

    def on(self, name: str) -> bool:
        return bool(self[name])

    def but(self, **changed: Value | None) -> Values:
        """With some flags changed; None: not set."""
        given = {**self.given, **changed}
        return Values({name: value for name, value in given.items() if value is not None})


def _typed(name: str, value: object) -> Value:
    """A value given in Python: of the flag's type, or its text."""
    flag = FLAGS.get(name)
    if flag is None:
        raise InputError(
            f"benchmark_model has no flag '{name}'{_near(name)}",
            fix="sanderling benchmark_model --help lists the flags",
        )
    text = str(value).lower() if isinstance(value, bool) else str(value)
    found = flag.read(text)
    if found is None:
        raise _unreadable(flag, f"--{name}={text}")
    return found


def parse(words: Sequence[str]) -> tuple[Values, list[str]]:
    """--flag=value, --flag value, and --flag alone for true. As in the tool the first of a flag
    counts; what is not a flag, or comes again, is returned."""
    given: dict[str, Value] = {}
    rest: list[str] = []
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        name, equals, text = word.removeprefix("--").partition("=")
        name = ALIASES.get(name, name)
        flag = FLAGS.get(name) if word.startswith("--") else None
        if flag is None or name in given:
            rest.append(word)
            continue
        given[name] = _value(flag, word, text) if equals else _next_value(flag, word, waiting)
    return Values(given), rest


def _value(flag: Flag, word: str, text: str) -> Value:
    found = flag.read(text)
    if found is None:
        raise _unreadable(flag, word)
    return found


def _next_value(flag: Flag, word: str, waiting: list[str]) -> Value:
    if flag.kind == "bool":
        return _BOOLS[waiting.pop(0)] if waiting and waiting[0] in _BOOLS else True
    if not waiting or waiting[0].startswith("--"):
        raise _unreadable(flag, word)
    text = waiting.pop(0)
    return _value(flag, f"{word} {text}", text)


def _unreadable(flag: Flag, word: str) -> InputError:
    takes = {"bool": "true, false, 1 or 0", "int32": "a whole number", "float": "a number"}
    return InputError(
        f"Failed to parse flag '{flag.name}' against argv '{word}'",
        fix=f"it takes {takes.get(flag.kind, 'a text')}",
    )


def unconsumed(words: Iterable[str]) -> list[str]:
    """The tool's warning about words that it does not know, with what may have been meant."""
    words = list(words)
    if not words:
        return []
    hints = [f"{word}{_near(word.removeprefix('--').partition('=')[0])}" for word in words]
    hints = [hint for hint, word in zip(hints, words, strict=True) if hint != word]
    return [f"Unconsumed cmdline flags: {' '.join(words)}", *hints]


def _near(name: str) -> str:
    if name in FLAGS:
        return ": only the first one counts"
    near = get_close_matches(name.replace("-", "_"), FLAGS, 1)
    return f": did you mean --{near[0]}?" if near else ""


def shown(value: Value) -> str:
    """As the tool's stream prints it."""
    return (
        str(int(value))
        if isinstance(value, bool)
        else (f"{value:g}" if isinstance(value, float) else str(value))
    )


def parameter_lines(values: Values) -> list[str]:
    """What the tool logs first: the parameters that were set, or all of them."""
    verbose = values.on("verbose")
    always = {"graph", "signature_to_run_for"}
    lines = [f"Log parameter values verbosely: [{shown(verbose)}]"]
    for flag in (*CORE, *MODEL, *DELEGATES):
        if flag is DELEGATES[0] and (verbose or "num_threads" in values.given):
            lines.append(f"#threads used for CPU inference: [{values['num_threads']}]")
        if flag.label and (verbose or flag.name in values.given or flag.name in always):
            lines.append(f"{flag.label}: [{shown(values[flag.name])}]")
    return lines


def usage() -> str:
    """As the tool prints it: --name=default, type, meaning."""
    widest = max(len(f"--{f.name}={_shown_default(f)}") for f in FLAGS.values())
    lines: list[str] = []
    for title, flags in GROUPS.items():
        lines += ["", f"{title}:"]
        for flag in flags:
            here = f" [{flag.here}]" if flag.here else ""
            name = f"--{flag.name}={_shown_default(flag)}"
            lines.append(f"\t{name:<{widest}}\t{flag.kind:<6}\t{flag.meaning}{here}")
    return "\n".join(lines)


def _shown_default(flag: Flag) -> str:
    return str(flag.default).lower() if isinstance(flag.default, bool) else shown(flag.default)


def markdown() -> str:
    """The tables for the documentation, group by group."""
    columns = ("flag", "type", "default", "meaning", "here")
    parts = [
        f"### {title}\n\n{tables.markdown(columns, map(_cells, flags))}"
        for title, flags in GROUPS.items()
    ]
    return "\n\n".join(parts)


def _cells(flag: Flag) -> tuple[str, ...]:
    default = f"`{_shown_default(flag)}`" if flag.default != "" else ""
    return f"`{flag.name}`", flag.kind, default, flag.meaning, flag.here

"""Which mode for which situation: the guide's decision tree as a table, read from top to bottom."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..findings import Finding, Rule, findings
from ..format import dump, load
from ..ir import DType, Model
from ..measure.inspection import inspect
from .calibration.canonical import QUANTISED
from .modes.rules import RULES
from .modes.scheme import MODES

Option = tuple[str, ...]  # as on the command line: its name, and its value if it takes one
SCHEMA = "sanderling.suggest/1"
DATA = ("none", "samples", "labelled")
GOALS = ("size", "latency", "accuracy")
# Accelerator -> what it can run, in words.
ACCELERATORS = {
    "none": "the CPU",
    "gpu": "a GPU, which computes in float16 or float32",
    "edgetpu": "an Edge TPU, which runs int8 alone: what stays float goes back to the CPU",
    "dsp": "a DSP (Hexagon and its kin), which runs int8",
    "npu16": "an NPU with int16 activations",
    "micro": "a microcontroller, where float is slow and memory is short",
}
INTEGER_ONLY = ("edgetpu", "dsp", "micro")
# Bytes of a float32 weight that each mode leaves, as a share; small constants stay as they are.
SHARES = {"float16": 0.5, "dynamic": 0.25, "int8": 0.25, "int16x8": 0.25, "weight-int8": 0.25,
          "weight-int4": 0.125, "dynamic-int4": 0.125, "block-int4": 0.14}  # fmt: skip
SMALL = 1024  # elements of a constant that the modes leave alone
# The guide: activations of these are sensitive; DeepSpeech and MobileBert need 16 bits for them.
SENSITIVE = ("LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_LSTM", "RNN",
             "UNIDIRECTIONAL_SEQUENCE_RNN", "BATCH_MATMUL", "GELU", "LAYER_NORM")  # fmt: skip
TARGETS = ("--min-agreement", "--min-snr", "--max-drop")
# Options that only matter where samples are looked at.
SAMPLE_OPTIONS = ("--data", "--samples", "--preset", "--mean", "--std", "--crop", "--resample",
                  "--bgr", "--signature", "--ranges", "--corrections", "--keep")  # fmt: skip
FEW_MACS = 4  # a weight that is used less often is waited for, not computed with


@dataclass
class Situation:
    """What the user has and wants, and what the model is."""

    data: str = "none"
    accelerator: str = "none"
    goal: str = "size"
    macs_per_parameter: float = 0.0
    sensitive: list[str] = field(default_factory=list)
    no_integer: dict[str, int] = field(default_factory=dict)  # operators without integer kernels
    is_half: bool = False  # weights are stored as float16 already

    @property
    def has_data(self) -> bool:
        return self.data != "none"


@dataclass
class Suggestion:
    """A mode, why, what it will weigh, and the command that does it."""

    mode: str
    reasons: list[str]
    command: str
    size: int
    expected_size: int
    situation: Situation
    model: dict[str, Any]
    otherwise: list[dict[str, Any]] = field(default_factory=list)
    cautions: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA} | asdict(self)


@dataclass(frozen=True)
class Branch(Finding):
    """A mode that fits the situation, with options of `quantize` that go with it."""

    mode: str = ""
    options: tuple[Option, ...] = ()


def _when(
    holds: Callable[[Situation], object], mode: str, why: str, options: tuple[Option, ...] = ()
) -> Rule[Situation, Branch]:
    """The row of the tree that gives this mode if `holds` does."""
    found = Branch("mode", f"take the mode {mode}", why, f"--mode {mode}", mode, options)
    return Rule("mode", "a situation", f"{mode}: {why}", lambda s: [found] if holds(s) else [])


# The first that holds is the suggestion.
TREE: tuple[Rule[Situation, Branch], ...] = (
    _when(lambda s: s.accelerator in INTEGER_ONLY, "int8",
          "the accelerator runs integers alone, and int8 for inputs and outputs spares the "
          "conversions", (("--strict",), ("--inputs", "int8"), ("--outputs", "int8"))),
    _when(lambda s: s.accelerator == "npu16", "int16x8",
          "the accelerator has int16 activations: almost float's accuracy at int8's size"),
    _when(lambda s: s.accelerator == "gpu", "float16",
          "a GPU computes in float16 anyway: half the size for a trivial loss of accuracy"),
    _when(lambda s: s.goal == "accuracy" and not s.has_data, "float16",
          "without data nothing keeps accuracy better: half the size, a trivial loss"),
    _when(lambda s: s.goal == "accuracy" and s.sensitive, "int16x8",
          "its activations are sensitive: with 16 bits for them the accuracy is almost float's"),
    _when(lambda s: s.goal == "accuracy", "int8",
          "integer arithmetic with a small loss, and --min-agreement gives back 16 bits to the "
          "layers that need them", (("--min-agreement", "0.99"),)),
    _when(lambda s: not s.has_data, "dynamic",
          "no data is needed: a quarter of the size, a minimal loss, and products with weights in "
          "integers"),
    _when(lambda s: s.goal == "latency" and s.macs_per_parameter < FEW_MACS, "dynamic",
          "each weight is used so rarely that reading it is what takes the time: a quarter of the "
          "bytes is the gain, and activations may stay float"),
    _when(lambda s: s.sensitive and s.goal != "latency", "int8",
          "a quarter of the size; its activations are sensitive, so hold it to a target",
          (("--min-agreement", "0.98"),)),
    _when(lambda s: True, "int8",
          "with samples for calibration all of it becomes integers: a quarter of the size, the "
          "fastest on CPUs, and what DSPs and Edge TPUs take"),
)  # fmt: skip


def suggest(
    model: Model | str | os.PathLike[str],
    *,
    data: bool | str = False,
    accelerator: str = "none",
    goal: str = "size",
    options: Sequence[Option] = (),
) -> Suggestion:
    """The mode for a situation, by the guide's decision tree and by what the model is made of.

    data: False or "none", True or "samples" (unlabelled ones are enough), "labelled" (training is
    possible). accelerator: none, gpu, edgetpu, dsp, npu16, micro. goal: size, latency, accuracy.
    options: of `sanderling quantize`, which the suggested command keeps, each as
    ("--preset", "unit") or ("--bgr",).
    """
    have = ("samples" if data else "none") if isinstance(data, bool) else data
    for what, value, known in (
        ("data", have, DATA),
        ("accelerator", accelerator, ACCELERATORS),
        ("goal", goal, GOALS),
    ):
        if value not in known:
            raise InputError(f"there is no {what} '{value}'", fix=f"one of {', '.join(known)}")
    source = model if isinstance(model, Model) else load(model)
    record = inspect(source)
    if any(word in record["quantisation"] for word in QUANTISED):
        raise InputError(
            f"the model is quantised already: {record['quantisation']}",
            where=source.source,
            fix="start from the float model it was made from",
        )
    situation = situation_of(source, record, have, accelerator, goal)
    branch = next(iter(findings(TREE, situation)))
    size = len(dump(source))
    return Suggestion(
        branch.mode,
        _reasons(branch, situation),
        _command(source, branch, situation, options),
        size,
        expected_size(source, branch.mode),
        situation,
        {
            "source": source.source,
            "quantisation": record["quantisation"],
            "parameters": record["parameters"],
            "macs": record["macs"],
        },
        [
            {"mode": m, "expected_size": expected_size(source, m), "when": when}
            for m, when in _otherwise(branch.mode, situation)
        ],
        _cautions(branch, situation),
    )


def expected_size(model: Model, mode: str) -> int:
    """Bytes of the file that a mode will write, from the constants alone."""
    seen = {}
    for graph in model.graphs:
        for tensor in graph.constants:
            if tensor.dtype in (DType.FLOAT32, DType.FLOAT16) and tensor.is_constant:
                seen[tensor.buffer] = tensor
    saved = 0.0
    for tensor in seen.values():
        count = tensor.values.size
        if mode == "float16" or count >= SMALL:
            saved += len(tensor.buffer or b"") - 4 * count * SHARES[mode]
    return int(len(dump(model)) - saved)


def situation_of(
    model: Model, record: dict[str, Any], data: str, accelerator: str, goal: str
) -> Situation:
    """What the tree looks at; record: what `inspect` says of the model."""
    names = Counter(op.name for g in model.graphs for op in g.ops)
    float_ops = Counter(
        op.name for g in model.graphs for op in g.ops if any(t.dtype.is_float for t in op.outputs)
    )
    missing = {n: c for n, c in float_ops.items() if n not in RULES and n != "DEQUANTIZE"}
    ratio = (record["macs"] or 0) / record["parameters"] if record["parameters"] else 0.0
    return Situation(
        data,
        accelerator,
        goal,
        ratio,
        [n for n in SENSITIVE if n in names],
        missing,
        record["quantisation"] == "float16 weights",
    )


def _reasons(branch: Branch, s: Situation) -> list[str]:
    have = {"none": "no data", "samples": "samples without labels", "labelled": "labelled data"}[
        s.data
    ]
    first = f"you have {have}, the model runs on {ACCELERATORS[s.accelerator]}, {s.goal} counts"
    made = [first, branch.why]
    if s.macs_per_parameter:
        made.append(
            f"{s.macs_per_parameter:.1f} multiplications a weight: "
            + ("bound by memory" if s.macs_per_parameter < FEW_MACS else "bound by arithmetic")
        )
    return made


def _cautions(branch: Branch, s: Situation) -> list[str]:
    made = []
    integer = branch.mode in ("int8", "int16x8")
    if integer and not s.has_data:
        made.append(
            "integers need ranges, and ranges need samples: collect about a hundred inputs "
            "like those the model will see (made-up data is good for a look alone)"
        )
    if integer and s.no_integer:
        listed = ", ".join(f"{n} ({c})" for n, c in s.no_integer.items())
        made.append(f"these operators have no integer form and stay float: {listed}")
    if integer and s.sensitive:
        made.append(
            f"it has {', '.join(s.sensitive)}, whose activations are often sensitive: "
            "compare the agreement in the report"
        )
    if branch.mode == "float16" and s.is_half:
        made.append("its weights are float16 already: there is nothing to gain but by a mode below")
    if branch.mode == "int16x8":
        made.append(
            "TensorFlow Lite has plain reference kernels for int16 activations: slower "
            "than int8 on its CPU, unless an accelerator runs it"
        )
    return made


def _otherwise(mode: str, s: Situation) -> list[tuple[str, str]]:
    """The neighbouring leaves of the tree."""
    rows = [
        ("float16", "half the size is enough, or the accuracy must not move"),
        ("dynamic", "there is no data for calibration"),
        ("int8", "there are samples, and speed or an accelerator counts"),
        ("int16x8", "int8 loses too much: activations of 16 bits, the same size"),
        ("weight-int4", "the download must be smaller still, and speed does not count"),
    ]
    if s.data == "labelled":
        rows.append(
            (
                "int8",
                "after quantisation-aware training, if no post-training mode keeps the accuracy",
            )
        )
    return [(m, when) for m, when in rows if m != mode or "training" in when]


def _command(model: Model, branch: Branch, s: Situation, given: Sequence[Option]) -> str:
    """The command that quantises so. What the user gave is kept where it has an effect, and wins
    over what the branch would add."""
    names = {option[0] for option in given}
    target = bool(names.intersection(TARGETS))
    has_data = MODES[branch.mode].is_integer or target
    kept = [option for option in given if has_data or option[0] not in SAMPLE_OPTIONS]
    if has_data and "--data" not in names:
        kept.insert(0, ("--data", "FOLDER_OR_NPZ"))
    replaced = names.union(TARGETS if target else (), ["--strict"] if s.no_integer else ())
    added = [option for option in branch.options if option[0] not in replaced]
    source = Path(model.source or "MODEL.tflite")
    target_name = source.with_name(f"{source.stem}_{branch.mode}.tflite").name
    output = [] if "--output" in names else [("-o", target_name)]
    options = [*output, ("--mode", branch.mode), *kept, *added]
    words = [str(source), *(word for option in options for word in option)]
    return f"sanderling quantize {shlex.join(words)}"

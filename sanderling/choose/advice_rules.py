"""The rules of `advise` about a model: each looks at measured evidence, and notes or proposes.

A proposal has a trial, and only what gains in it is advised (`trials.py`, `advise.py`).
"""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from ..errors import SanderlingError
from ..evaluate.output_kinds import SCORES, output_kind
from ..findings import Finding, Rule, findings
from ..ir import DType, Graph, Model
from ..measure.record import Setting
from ..measure.sweep import delegate_choices, thread_counts, why_not
from ..measure.trace_insights import RULES as TRACE_RULES
from ..optimize.quantize import quantize
from ..optimize.suggest import INTEGER_ONLY, TREE
from ..progress import plural
from ..runtime.specialise import specialise
from .advice import Proposal, Trial
from .evidence import PRODUCTS, Evidence

MODEL = "a model"
A_FOLDER = "FOLDER_OR_NPZ"  # in a command that the user has to complete
PLAIN: dict[str, Any] = {"ranges": "minmax", "weights": "max", "corrections": "none"}
WITH_DATA = ("int8", "int16x8")  # modes that need ranges
CALIBRATION = 16  # samples that a quick trial calibrates with
BATCH = 8
MANY_ZEROS = 0.3
HARDLY_ANY = 0.001  # of the weights of each layer become zero where there are fewer zeros yet
PRUNED = 0.75  # of the weights, in the trial that asks what zeros would bring
FEW_CLASSES = 0.2  # of the model's, that the answers to samples ever name
ENOUGH_SAMPLES = 50
ALWAYS = ("cpu", "reference")  # delegates that every session has
ABOUT_THE_TRACE = ("compiling", "dropped")
TUNING = "20"  # seconds of the command that follows a setting up


def command_line(*words: object) -> str:
    """Words as a command that a shell takes."""
    return f"sanderling {shlex.join(map(str, words))}"


# -- what is noted --------------------------------------------------------------------------------


def where_time_goes(e: Evidence) -> Iterator[Finding]:
    if e.profile is None:
        return
    where, limits, _ = e.profile["advice"]
    engine = [] if e.target.is_ours else ["--engine", e.base.engine]
    yield Finding("time", where, limits, command_line("profile", e.path, *engine))


def stands_out(e: Evidence) -> Iterator[Finding]:
    """The rules of `trace`, on a short trace with all CPUs."""
    if e.facts is None:
        return
    rules = [r for r in TRACE_RULES if r.kind not in ABOUT_THE_TRACE]
    yield from findings(rules, e.facts)


def open_sizes(e: Evidence) -> Iterator[Finding]:
    for graph in e.record["graphs"][:1]:
        if graph["open"]:
            yield Finding(
                "open sizes",
                f"sizes of inputs are open: {', '.join(graph['open'])}",
                "each new size makes a new plan, and accelerators refuse open sizes",
                command_line("rewrite", e.path, "--for", "gpu", "-o", e.name("_fixed.tflite")),
            )


def unused(e: Evidence) -> Iterator[Finding]:
    main = e.model.main
    idle = [t.name for t in main.inputs if not t.users and t not in main.outputs]
    fixed = [t.name for t in main.outputs if t.is_constant]
    for what, names in (("no op reads the input", idle), ("a constant is the output", fixed)):
        if names:
            text = f"{what} {', '.join(repr(n) for n in names)}"
            yield Finding("unused", text, "it costs memory, and does nothing", "change the model")


def half_weights(e: Evidence) -> Iterator[Finding]:
    count = sum(
        op.name == "DEQUANTIZE" and op.operand(0).dtype is DType.FLOAT16
        for graph in e.model.graphs
        for op in graph.ops
    )
    share = e.share_of("DEQUANTIZE") if count else None
    if count:
        spent = "" if share is None else f"; they take {share:.1%} of a run"
        yield Finding(
            "float16",
            f"{plural(count, 'DEQUANTIZE op')} expand float16 weights{spent}",
            "the weights are expanded once, at the start, and computed with as float32"
            if (share or 0) < 0.01
            else "the engine expands weights in every run",
            "keep them for the half size, or see the advice about quantisation",
        )


def classes_in_use(e: Evidence) -> Iterator[Finding]:
    """Whether the model is larger than its task, as far as samples show it."""
    output = e.model.main.outputs[0]
    classes = output.shape[-1] if output.shape else 0
    if len(e.answers) < ENOUGH_SAMPLES or output_kind(output).name != SCORES:
        return
    named = {int(np.argmax(a)) for a in e.answers}
    if classes and len(named) < FEW_CLASSES * min(classes, len(e.answers)):
        yield Finding(
            "too large",
            f"the answers to {len(e.answers)} samples name {len(named)} of {classes} classes",
            "a model that knows fewer classes can be smaller",
            command_line("retrain", e.path, "--data", "FOLDER", "-o", e.name("_own.tflite")),
        )


# -- what can be tried: models ------------------------------------------------------------------


def copies(e: Evidence) -> Iterator[Finding]:
    made = e.simplified
    if not made.changes:
        return
    before, after = made.ops
    share = e.share_of("TRANSPOSE", "PAD", "RESHAPE")
    spent = "" if share is None else f"; TRANSPOSE, PAD and RESHAPE take {share:.1%} of a run"
    yield Proposal(
        "copies",
        f"{before - after} of {before} ops can go: {made.notes[0].partition(': ')[2]}{spent}",
        "transposes that cancel, padding that a convolution can do, ops that change nothing",
        command_line("rewrite", e.path, "--simplify", "-o", e.name("_simple.tflite")),
        Trial("fewer ops", lambda: made.model),
    )


def modes(e: Evidence) -> Iterator[Finding]:
    """Quantisation: what the decision tree of `quantize --suggest` says, and its neighbours."""
    if not e.is_float or e.kind == "none" or _is_rewritten(e):
        return
    branch = next(iter(findings(TREE, e.situation)))
    more = [] if e.target.rules else ["dynamic", "int8", *_small(e)]
    names = dict.fromkeys([branch.mode, *more])
    per_weight = f"{e.situation.macs_per_parameter:.1f} multiplications a weight"
    for mode in names:
        has_data = mode in WITH_DATA
        data = e.options if has_data else ()
        words = [word for option in data for word in option]
        needs = "samples like those it will see" if has_data and e.samples is None else ""
        command = command_line(
            "quantize", e.path, "-o", e.name(f"_{mode}.tflite"), "--mode", mode, *words
        )
        again = command_line("advise", e.path, "--data", A_FOLDER)
        yield Proposal(
            "quantise",
            f"it is {e.kind}, {per_weight}",
            branch.why if mode == branch.mode else _WHY_MODE.get(mode, "another mode"),
            again if needs else command,
            Trial(mode, partial(_quantised, e, mode), is_exact=False, needs=needs),
        )


_WHY_MODE = {
    "dynamic": "products with weights in integers, without data",
    "int8": "all arithmetic in integers, with ranges from samples",
    "float16": "half the size, and answers that hardly change",
}


def _is_rewritten(e: Evidence) -> bool:
    """`rewrite` makes a model int8 for an accelerator that takes nothing else; of others only the
    size can be told here."""
    if not e.target.rules:
        return False
    return e.target.accelerator in INTEGER_ONLY or e.goal != "size"


def _small(e: Evidence) -> list[str]:
    wanted = e.goal in ("size", "accuracy") and e.kind == "float32"
    return ["float16"] if wanted else []


def _quantised(e: Evidence, mode: str) -> Model:
    """A quick trial: few samples, and no corrections, which change answers and not times."""
    e.progress(f"quantising: {mode}", 0, 0)
    if mode not in WITH_DATA:
        return quantize(e.model, mode)[0]
    few = None if e.samples is None else e.samples[:: max(1, len(e.samples) // CALIBRATION)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of ranges from noise: the advice says what it needs
        return quantize(e.model, mode, few, **PLAIN)[0]


def zeros(e: Evidence) -> Iterator[Finding]:
    """Zeros that are there: what they bring, and what they could save in the file."""
    if e.zeros < MANY_ZEROS or not e.is_float:
        return
    told = [n for n in (e.profile or {}).get("notes", ()) if "zeros" in n]
    what = f"{e.zeros:.0%} of the weights of products are zero"
    if e.target.is_ours:
        why = "; ".join(told) or "no product of this model is faster without them"
        yield Finding("zeros", what, why, command_line("profile", e.path))
    if find_spec("torch") is None:
        return
    zeroed = ["--method", "magnitude", "--sparsity", HARDLY_ANY, "--storage", "sparse"]
    yield Proposal(
        "zeros",
        what,
        "sparse tensors store no zeros; they are expanded when the model is loaded",
        command_line("prune", e.path, "-o", e.name("_sparse.tflite"), *zeroed),
        Trial("sparse storage", partial(_sparse, e), is_exact=False),
    )


def _sparse(e: Evidence) -> Model:
    from ..training.prune import prune  # PyTorch

    return prune(e.model, method="magnitude", sparsity=HARDLY_ANY, storage="sparse")[0]


def pruning(e: Evidence) -> Iterator[Finding]:
    """What three quarters of zeros would bring here: training has to keep the answers."""
    if not e.target.is_ours or not e.is_float or e.zeros >= MANY_ZEROS or not e.weights:
        return
    words = ["--sparsity", str(PRUNED), "--policy", "pays", "--data", "FOLDER", "--epochs", "3"]
    yield Proposal(
        "prune",
        f"{e.zeros:.0%} of the weights of products are zero",
        f"our kernels leave zeros out where that is faster; tried with {PRUNED:.0%} zeros",
        command_line("prune", e.path, "-o", e.name("_pruned.tflite"), *words),
        Trial("pruning", partial(_pruned, e), is_exact=False, needs="samples, and training"),
    )


def _pruned(e: Evidence) -> Model:
    made = e.model.copy()
    for graph in made.graphs:
        for op in graph.ops:
            weight = op.input(1) if op.name in PRODUCTS else None
            if weight is not None and weight.is_constant and weight.dtype.is_float:
                values = weight.values.copy()
                values[np.abs(values) < np.quantile(np.abs(values), PRUNED)] = 0
                weight.data = values
    return made


# -- what can be tried: settings ----------------------------------------------------------------


def threads(e: Evidence) -> Iterator[Finding]:
    if not e.target.is_ours:
        return
    for count in thread_counts()[1:]:
        setting = replace(e.base, threads=count)
        told = _tuning(e, setting)
        what = f"it is run by 1 thread of {thread_counts()[-1]} CPUs"
        why = "the work of a step is shared out among threads"
        yield Proposal("threads", what, why, told, Trial(f"{count} threads", setting=setting))


def precision(e: Evidence) -> Iterator[Finding]:
    setting = replace(e.base, precision="bf16")
    if not e.target.is_ours or not e.is_float or why_not(setting, e.kind):
        return
    yield Proposal(
        "precision",
        "products are computed in float32, and this CPU multiplies bfloat16",
        "a bfloat16 number has half the bits, and products of them twice the rate",
        _tuning(e, setting),
        Trial("bf16", setting=setting, is_exact=False),
    )


def other_delegates(e: Evidence) -> Iterator[Finding]:
    if not e.target.is_ours:
        return
    for chosen in delegate_choices():
        if chosen[0] in ALWAYS:
            continue
        setting = replace(e.base, delegates=chosen)
        yield Proposal(
            "delegate",
            f"the delegate '{chosen[0]}' can be used here",
            "another engine may run the whole model or parts of it faster",
            _tuning(e, setting),
            Trial(f"delegate {chosen[0]}", setting=setting),
        )


def batches(e: Evidence) -> Iterator[Finding]:
    """Several samples in a run, where the model takes them."""
    inputs = e.model.main.inputs
    if not e.target.is_ours or not _takes_a_batch(e.model.main):
        return
    setting = replace(e.base, batch=BATCH)
    yield Proposal(
        "batch",
        f"a run takes {plural(inputs[0].shape[0], 'sample')}",
        "if several samples are there at once, they can share a run (time is for a sample)",
        _tuning(e, setting),
        Trial(f"batch of {BATCH}", setting=setting),
    )


def _takes_a_batch(graph: Graph) -> bool:
    """Whether all results have so many times the rows, where all inputs have."""
    if not graph.inputs or any(len(t.shape) < 2 for t in graph.inputs):
        return False
    try:
        made, _ = specialise(graph, [(BATCH * t.shape[0], *t.shape[1:]) for t in graph.inputs])
    except SanderlingError:
        return False
    pairs = zip(graph.outputs, made.outputs, strict=True)
    return all(b.shape == (BATCH * a.shape[0], *a.shape[1:]) for a, b in pairs if a.shape)


def _tuning(e: Evidence, setting: Setting) -> str:
    """The command that measures this setting against the default, and keeps it in a file."""
    words = ["tune", e.path, "-o", e.name(f"_{_short(setting)}.settings.json")]
    words += ["--threads", setting.threads, "--precision", setting.precision]
    words += ["--delegates", "+".join(setting.delegates) or "cpu", "--batch", setting.batch]
    return command_line(*words, "--seconds", TUNING)


def _short(setting: Setting) -> str:
    parts = [f"{setting.threads}threads"] if setting.threads > 1 else []
    parts += [setting.precision] if setting.precision != "f32" else []
    parts += [f"batch{setting.batch}"] if setting.batch > 1 else []
    return "_".join([*parts, *setting.delegates]).replace(":", "-") or "default"


RULES: tuple[Rule[Evidence, Finding], ...] = (
    Rule("time", MODEL, "ops that take most of the time", where_time_goes),
    Rule("trace", MODEL, "what the rules of traces find in a short one", stands_out),
    Rule("open sizes", MODEL, "sizes of inputs that are open", open_sizes),
    Rule("unused", MODEL, "inputs that nobody reads, outputs that are constants", unused),
    Rule("float16", MODEL, "float16 weights that are expanded", half_weights),
    Rule("too large", MODEL, "classes that no sample is answered with", classes_in_use),
    Rule("copies", MODEL, "transposes, copies and ops that any runtime can do without", copies),
    Rule("quantise", MODEL, "the mode of the decision tree, and its neighbours", modes),
    Rule("zeros", MODEL, "zeros among the weights that the file need not store", zeros),
    Rule("prune", MODEL, "what zeros would bring", pruning),
    Rule("threads", MODEL, "more threads", threads),
    Rule("precision", MODEL, "bfloat16 products", precision),
    Rule("delegate", MODEL, "delegates that can be used here", other_delegates),
    Rule("batch", MODEL, "several samples in a run", batches),
)

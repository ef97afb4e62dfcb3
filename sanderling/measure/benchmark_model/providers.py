"""Which delegates the flags ask for, and what is said about each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import DelegateError, InputError
from ...format.schema import ENUMS
from ...ir import Op
from ...runtime.delegate import Delegate
from ...runtime.plan import Plan
from ...runtime.registry import (
    delegate_names,
    find_delegate,
    load_delegate,
    usable_delegate,
)
from .flags import CORE, FLAGS, Value, Values

# Flags that are numbers among the arguments of a session.
LIMITS = ("max_delegated_partitions", "min_nodes_per_partition", "first_delegate_node_index",
          "last_delegate_node_index")  # fmt: skip


@dataclass(frozen=True)
class Provider:
    """A delegate of the tool's: the flag that applies it, and the delegates that stand for it, of
    which the first that is here is taken."""

    title: str
    flag: str
    delegates: tuple[str, ...]
    absent: str  # what the tool says where it cannot be made
    family: str = ""  # how its other flags begin


PROVIDERS = (
    Provider("GPU", "use_gpu", ("gpu", "litert-gpu"), "GPU acceleration is unsupported on this "
             "platform.", "gpu_"),
    Provider("NNAPI", "use_nnapi", ("nnapi",), "NNAPI acceleration is unsupported on this "
             "platform.", "nnapi_"),
    Provider("Hexagon", "use_hexagon", ("hexagon",), "Could not create Hexagon delegate: platform "
             "may not support delegate or required libraries are missing", "hexagon_"),
    Provider("COREML", "use_coreml", ("coreml",), "CoreML acceleration is unsupported on this "
             "platform.", "coreml_"),
    Provider("YNNPACK", "use_ynnpack", ("ynnpack",), "YNNPACK is unsupported on this platform."),
    Provider("XNNPACK", "use_xnnpack", ("litert", "cpu"), "XNNPACK is unsupported on this "
             "platform.", "xnnpack_"),
)  # fmt: skip
EXTERNAL = "external_delegate_path"
# By the flag that applies a delegate: one whose default in the tool is not the delegate's own.
TOOLS_OWN = {"use_gpu": "gpu_precision_loss_allowed"}
SERIALIZE = ("delegate_serialize_dir", "delegate_serialize_token")
# Flags that are options of the engines which stand for a delegate: the option, and its value, None
# where the engine's own holds.
OPTIONS: dict[str, tuple[str, Callable[[Value], Value | None]]] = {
    "xnnpack_force_fp16": ("precision", lambda on: "f16" if on else None),
    "xnnpack_runtime_flags": ("xnnpack_flags", lambda flags: flags or None),
    "xnnpack_weight_cache_file_path": ("weight_cache", lambda path: path or None),
    "gpu_precision_loss_allowed": ("precision", lambda allowed: "f16" if allowed else "f32"),
}


@dataclass
class Applied:
    """A delegate that the flags named, by the tool's name for it."""

    title: str
    delegate: Delegate


@dataclass
class Chosen:
    """What a session gets: delegates in order of preference; and what the user is told."""

    applied: list[Applied]
    delegates: list[Delegate]
    absent: list[str]
    said: list[str]


def choose(values: Values, profiled: bool) -> Chosen:
    """Delegates in the order in which their flags stand, and behind them the cpu delegate; with
    --use_xnnpack=false the plain kernels."""
    found = Chosen([], [], [], [])
    rows = {p.flag: p for p in PROVIDERS}
    for name, value in values.given.items():
        if name == EXTERNAL and value:
            found.applied.append(Applied("EXTERNAL", external(values)))
        elif name in rows and value:
            _apply(rows[name], values, found)
    fallback = "cpu"
    if "use_xnnpack" in values.given and not values.on("use_xnnpack"):
        fallback = "reference"
        found.said.append(
            "--use_xnnpack=false runs the plain kernels, here the NumPy reference: "
            "they define the answers and are not made for speed"
        )
    found.delegates = [a.delegate for a in found.applied]
    if fallback not in {d.name for d in found.delegates}:
        found.delegates.append(find_delegate(fallback))
    found.delegates = [_timed(d) if profiled else d for d in found.delegates]
    return found


def _apply(provider: Provider, values: Values, found: Chosen) -> None:
    delegate, problems = stand_in(provider)
    if delegate is None:
        found.absent.append(absence(provider, problems))
        return
    if delegate.name != provider.flag.removeprefix("use_"):
        why = "".join(f" ({problem})" for problem in problems)
        found.said.append(f"The {delegate.name} delegate takes the part of {provider.title}{why}")
    found.applied.append(Applied(provider.title, with_flags(delegate, _completed(values))))


def _completed(values: Values) -> Values:
    """The flags with those that mean something to a delegate though they were not set."""
    more = {name: values[name] for flag, name in TOOLS_OWN.items() if values.on(flag)}
    return Values({**values.given, **more})


def stand_in(provider: Provider) -> tuple[Delegate | None, list[str]]:
    """The first of its delegates that is here, and why those before it are not."""
    problems: list[str] = []
    for name in provider.delegates:
        delegate, problem = usable_delegate(name)
        if delegate is not None:
            return delegate, problems
        problems.append(problem)
    return None, problems


def absence(provider: Provider, problems: Sequence[str]) -> str:
    """What is said of a delegate that is not here: the tool's sentence, and what happens now."""
    why = "; ".join(problems)
    return (
        f"{provider.absent.rstrip('.')}. {why[:1].upper()}{why[1:]} (there are "
        f"{', '.join(delegate_names())}); its ops run on the CPU"
    )


def with_flags(delegate: Delegate, values: Values) -> Delegate:
    """The delegate with those of the flags that were set and belong to it: as options where it
    takes them as such, else by take_flags."""
    families = [p.family for p in PROVIDERS if delegate.name in p.delegates and p.family]
    own = {n: values[n] for n in values.given if any(f in n for f in families) or n in SERIALIZE}
    if delegate.options:
        options = _options(delegate, own)
        return load_delegate(delegate.name, {**delegate.chosen, **options}) if options else delegate
    if own:
        delegate.take_flags(own)
    return delegate


def _options(delegate: Delegate, flags: Mapping[str, Value]) -> dict[str, Value]:
    """A delegate's options for flags."""
    rows = [(*OPTIONS[name], value) for name, value in flags.items() if name in OPTIONS]
    found = {option: read(value) for option, read, value in rows if option in delegate.options}
    return {option: value for option, value in found.items() if value is not None}


def carried(values: Values) -> tuple[tuple[str, Value], ...]:
    """The flags that a session or its delegates keep: what a setting has."""
    families = [p.family for p in PROVIDERS if p.family]
    kept = {*LIMITS, "disable_delegate_clustering", "require_full_delegation"}
    return tuple(
        (name, value)
        for name, value in _completed(values).given.items()
        if name in kept or name in SERIALIZE or any(family in name for family in families)
    )


def session_limits(values: Values) -> dict[str, Any]:
    """What the flags say of partitions, as arguments of a session."""
    found: dict[str, Any] = {n: max(0, values.number(n)) for n in LIMITS if n in values.given}
    if values.on("disable_delegate_clustering"):
        found["delegate_clustering"] = False
    return found


def session_arguments(flags: Iterable[tuple[str, Value]]) -> dict[str, Any]:
    """The same of a setting's flags, with --require_full_delegation, which the session checks."""
    values = Values(dict(flags))
    return session_limits(values) | {
        "require_full_delegation": values.on("require_full_delegation")
    }


def flagged(delegate: Delegate, flags: Iterable[tuple[str, Value]]) -> Delegate:
    """The delegate with those of a setting's flags that belong to it."""
    return with_flags(delegate, Values(dict(flags)))


def external(values: Values) -> Delegate:
    options: dict[str, Any] = {}
    for item in filter(None, values.text("external_delegate_options").split(";")):
        key, colon, value = item.partition(":")
        if not colon:
            raise InputError(
                f"'{item}' is not key:value",
                where="--external_delegate_options",
                fix="write key:value;key:value",
            )
        options[key] = value
    return load_delegate(values.text(EXTERNAL), options)


def _timed(delegate: Delegate) -> Delegate:
    """The cpu delegate whose code counts the ticks of every step."""
    from ...delegates.cpu.delegate import CpuDelegate

    return CpuDelegate(timed=True) if type(delegate) is CpuDelegate else delegate


def unused(values: Values) -> list[str]:
    """Flags that were set and change nothing."""
    lines = [
        f"--{name} has no effect: {FLAGS[name].here}"
        for name, value in values.given.items()
        if FLAGS[name].inert and value != FLAGS[name].default
    ]
    core = {flag.name for flag in CORE}
    for provider in PROVIDERS:
        if provider.family and not values.on(provider.flag):
            lines += [
                f"--{name} has no effect without --{provider.flag}=true"
                for name in values.given
                if name != provider.flag and provider.family in name and name not in core
            ]
    if not values.on("use_gpu"):
        lines += [
            f"--{name} has no effect without --use_gpu=true: {FLAGS[name].here}"
            for name in SERIALIZE
            if name in values.given
        ]
    return lines


def application(chosen: Chosen, plan: Plan, require_full: bool) -> list[str]:
    """The tool's sentence about each delegate that was applied."""
    if len(chosen.applied) >= 2:
        first = [f"Going to apply {len(chosen.applied)} delegates one after another."]
    else:
        first = []
    if require_full and not chosen.applied:
        raise fallback_detected("no delegate was applied")
    parts = [step.part.delegate.name for step in plan.steps]
    lines = []
    for applied in chosen.applied:
        own = parts.count(applied.delegate.name)
        fully = own == 1 and len(parts) == 1
        if require_full and not fully:
            raise fallback_detected(f"{own} of {len(parts)} parts run on {applied.title}")
        lines.append(_sentence(applied.title, own, fully))
    return first + lines


def gpu_lines(chosen: Chosen, plan: Plan) -> Iterator[tuple[str, str]]:
    """What TensorFlow Lite's GPU delegate says of ops that it leaves to others, each line with its
    severity; the warnings are those of its guide."""
    own = next((a.delegate.name for a in chosen.applied if a.title == "GPU"), None)
    refused = {
        op: r.reason for op, rs in plan.partition.refusals.items() for r in rs if r.delegate == own
    }
    if own is None or not refused:
        return
    codes = ENUMS["BuiltinOperator"]
    names = [op.name if op.name in codes else "CUSTOM" for op in refused]
    for code in map(codes.index, dict.fromkeys(names)):
        yield "WARNING", f"op code #{code} cannot be handled by this delegate."
    yield "ERROR", "Following operations are not supported by GPU delegate:"
    for line in sorted({f"{_op_name(op)}: {reason}" for op, reason in refused.items()}):
        yield "ERROR", " ".join(line.split())  # compilers speak in several lines
    count = len(plan.graph.ops)
    taken = sum(len(p.ops) for p in plan.partition.parts if p.delegate.name == own)
    yield "ERROR", _shares(taken, count - taken)
    if taken:
        yield (
            "INFO",
            f"Replacing {taken} out of {count} node(s) with delegate ({own}) node, yielding "
            f"{len(plan.steps)} partitions for subgraph 0.",
        )


def _op_name(op: Op) -> str:
    """As TensorFlow Lite names custom operators."""
    return f"CUSTOM {op.name.removeprefix('custom.')}" if op.name.startswith("custom.") else op.name


def _shares(taken: int, left: int) -> str:
    if not taken:
        return f"No operations will run on the GPU, and all {left} operations will run on the CPU."
    return (
        f"{taken} operations will run on the GPU, and the remaining {left} operations will run on "
        "the CPU."
    )


def _sentence(title: str, own: int, fully: bool) -> str:
    if fully:
        return (
            f"Explicitly applied {title} delegate, and the model graph will be completely "
            "executed by the delegate."
        )
    if own:
        return (
            f"Explicitly applied {title} delegate, and the model graph will be partially "
            f"executed by the delegate w/ {own} delegate kernels."
        )
    return (
        f"Though {title} delegate is explicitly applied, the model graph will not be executed "
        "by the delegate."
    )


class DelegationError(DelegateError):
    """--require_full_delegation does not hold."""


def fallback_detected(why: str) -> DelegationError:
    return DelegationError(
        f"Disallowed CPU fallback detected: {why}",
        where="--require_full_delegation",
        fix="sanderling inspect MODEL --delegate NAME says why ops are refused",
    )


def described(chosen: Chosen, plan: Plan) -> list[Mapping[str, Any]]:
    parts = [step.part for step in plan.steps]
    return [
        {"name": d.name, "parts": sum(p.delegate.name == d.name for p in parts)}
        for d in chosen.delegates
    ]

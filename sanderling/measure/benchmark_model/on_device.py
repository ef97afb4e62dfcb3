"""--device: the same flags, given to TensorFlow Lite's own tool on a device."""

from __future__ import annotations

from ..devices import DeviceOptions, run
from ..devices.device_options import DELEGATE_FLAGS
from ..record import Setting
from .flags import OWN, Values, shown
from .ready_model import Say
from .tool_run import ToolRun
from .tool_statistics import Stat

_LOCAL = {flag.name for flag in OWN} | {"graph", "num_threads", "enable_op_profiling", "help"}


def setting(values: Values) -> Setting:
    applied = {flag: name for name, flag in reversed(DELEGATE_FLAGS.items())}
    names = tuple(applied[n] for n in values.given if n in applied and values.on(n))
    return Setting(threads=max(1, values.number("num_threads")), delegates=names)


def options(values: Values, say: Say) -> DeviceOptions:
    words = {n: flag_word(v) for n, v in values.given.items() if n not in _LOCAL}
    return DeviceOptions(
        binary=values.text("device_binary"),
        app=values.text("device_app"),
        cpu_mask=values.text("device_cpu_mask"),
        op_profiling=values.on("enable_op_profiling"),
        flags=words,
        timeout=values.seconds("device_timeout"),
        adb=values.text("adb"),
        folder=values.text("device_folder"),
        log=values.text("device_log"),
        progress=lambda what, done, total: say("INFO", f"{values['device']}: {what}"),
    )


def flag_word(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return shown(value) if isinstance(value, float) else str(value)


def run_on_device(values: Values, say: Say) -> ToolRun:
    """The record of a device's run, and the lines that end the tool's log."""
    found = run(values.text("device"), values.text("graph"), setting(values), options(values, say))
    run_record = ToolRun(values.text("benchmark_name") or found.setting.name, found, Stat(), Stat())
    for note in found.notes:
        say("INFO", note)
    if found.error:
        say("INFO" if "prepared" in found.facts else "WARN", found.error)
        return run_record
    stated, init = found.stated, round((found.init or 0) * 1e6)
    if stated is not None:
        say(
            "INFO",
            f"{found.setting.name}: count={stated.count} min={stated.min * 1e6:g} "
            f"max={stated.max * 1e6:g} avg={stated.mean * 1e6:g} std={stated.std * 1e6:g} "
            f"median={stated.median * 1e6:g}",
        )
        first = round((found.first or 0) * 1e6)
        warmup = found.facts.get("warmup_us", {}).get("avg", first)
        say(
            "INFO",
            f"Inference timings in us: Init: {init}, First inference: {first}, "
            f"Warmup (avg): {warmup:g}, Inference (avg): {stated.mean * 1e6:g}",
        )
        # The older line, which the guide searches the log for.
        say(
            "INFO",
            f"Average inference timings in us: Warmup: {warmup:g}, Init: {init}, "
            f"Inference: {stated.mean * 1e6:g}",
        )
    held = [found.memory.get(f"device.{what}") for what in ("init", "overall")]
    if None not in held:
        grown, overall = (n / 2**20 for n in held if n is not None)
        say(
            "INFO",
            f"Memory footprint delta from the start of the tool (MB): init={grown:g} "
            f"overall={overall:g}",
        )
    for row in found.facts.get("ops", []):
        say(
            "INFO",
            f"{row['type']:>24} {row['avg_ms']:9.3f} ms {100 * row['share']:7.3f}% {row['name']}",
        )
    return run_record

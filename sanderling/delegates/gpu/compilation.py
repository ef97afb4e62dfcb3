"""From a part to an executable: out of the cache, or through all stages and into it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ...errors import DelegateError
from ...ir import Graph
from ...ir.graph import copy_graph
from ...progress import counting, plural
from ...runtime.delegate import Options
from ...spans import span
from ..cpu.runtime.cache import fingerprint
from .cache import Entry, GpuCache
from .devices.device import Device, Offers
from .executable import GpuExecutable, Rescue, restored
from .precision import AUTO, settled
from .samples import trial_of
from .tuning import effort_of, tune

if TYPE_CHECKING:
    from .builders import Told
    from .lower import Lowered
    from .recipe import Recipe

GPU = {"delegate": "gpu"}  # for traces
# Settings that lead to another executable, beside the precision.
DECISIVE = ("backend", "quantized", "model_token", "storage")


def cache_of(chosen: Mapping[str, Any]) -> GpuCache:
    """The folder that the delegate's options ask for."""
    return GpuCache(chosen.get("serialization_dir", "") if chosen.get("cache", True) else None)


def decisive(chosen: Mapping[str, Any], offers: Offers) -> list[tuple[str, Any]]:
    found = [(name, chosen[name]) for name in DECISIVE if name in chosen]
    meant = ("effort", effort_of(chosen)), ("precision", settled(chosen, offers))
    return [*found, *meant, ("trial", trial_of(chosen))]


def compile_part(
    device: Device, part: Graph, options: Options, chosen: Mapping[str, Any]
) -> GpuExecutable:
    """chosen: the delegate's options."""
    cache = cache_of(chosen)
    rescue = _rescue(part, options)
    content = fingerprint(part.ops, part.inputs, part.outputs)
    about = decisive(chosen, device.offers), _tried_behind(options, chosen, device.offers)
    key = cache.key(content, device.offers, *about)
    with span("look into the cache", "compile"):
        entry = cache.load(key)
        found = None if entry is None else restored(device, entry, key, rescue)
    if found is not None:
        return found.let_go()
    what = f"compiling {plural(len(part.ops), 'op')} for {device.offers.name}"
    with counting(f"{what} (once; the result is kept)") as told, span(what, "compile", GPU):
        lowered = _lowered(device, part, options, chosen)
        made, binaries = _made(device, *lowered, told if cache.folder else None, rescue, chosen)
        tuned = _tuned(made, chosen)
        with span("keep the programs", "compile"):
            return _kept(tuned, cache, key, binaries if tuned is made else None).let_go()


def _tried_behind(options: Options, chosen: Mapping[str, Any], offers: Offers) -> object:
    """With `auto`, what the trial depends on beside the part: the ops before it, through which the
    samples go, and the inputs that samples are given for by name."""
    if settled(chosen, offers) != AUTO or options.before is None:
        return None
    before = options.before()
    names = [t.name for t in before.inputs]
    return fingerprint(before.ops, before.inputs, before.outputs), names


def _rescue(part: Graph, options: Options) -> Rescue | None:
    """The part as it came, on other delegates: lowering changes the graph."""
    if options.elsewhere is None:
        return None
    own, _ = copy_graph(part, part.ops, part.inputs, part.outputs)
    return partial(options.elsewhere, own)


def _lowered(
    device: Device, part: Graph, options: Options, chosen: Mapping[str, Any]
) -> tuple[Lowered, Recipe]:
    from .half_check import decide
    from .lower import lower
    from .recipe import recipe_of

    found = decide(device, part, options, chosen)
    with span("write kernels", "compile"):
        offers = device.offers.in_form(chosen.get("storage"))
        lowered = lower(part, offers, device.dialect, found.precision, found.exact)
        recipe = recipe_of(lowered, device.offers.kind.group)
        recipe.remarks = found.remarks
    return lowered, recipe


def _made(
    device: Device,
    lowered: Lowered,
    recipe: Recipe,
    told: Told | None,
    rescue: Rescue | None,
    chosen: Mapping[str, Any],
) -> tuple[GpuExecutable, list[bytes] | None]:
    """told: who is told of kernels that are ready; None: binaries are not wanted. Returns them, if
    they were made on the way."""
    from .program_sources import build_and_keep, build_programs

    binaries: list[bytes] | None = None
    with span("build programs", "compile", {"kernels": len(recipe.calls)}):
        if told is None:
            programs = build_programs(device, lowered, recipe)
        else:
            programs, binaries = build_and_keep(device, lowered, recipe, told)
    made = GpuExecutable(device, recipe, programs, rescue)
    made.timeout = chosen.get("timeout", made.timeout)  # the first run may be the one that hangs
    with span("first run", "compile"):
        made.warm_up()
    return made, binaries


def _tuned(made: GpuExecutable, chosen: Mapping[str, Any]) -> GpuExecutable:
    with span("tune", "compile"):
        return tune(made, chosen)


def _kept(
    made: GpuExecutable, cache: GpuCache, key: str, binaries: list[bytes] | None
) -> GpuExecutable:
    """The same, on weights that are mapped from the file, where it could be written. binaries: of
    its programs, if they are known."""
    if cache.folder is None:
        return made
    try:
        binaries = binaries or made.device.binaries(made.programs)
    except DelegateError:  # the part runs; only a later start gains nothing
        return made
    if len(binaries) != len(made.programs):
        return made
    kept = cache.keep(key, Entry(made.recipe, binaries))
    if kept.recipe is made.recipe:
        return made
    return GpuExecutable(made.device, kept.recipe, made.programs, made.rescue, key)

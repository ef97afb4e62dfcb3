"""LLVM: from IR text to object code. The only module that loads the LLVM library."""

from __future__ import annotations

from functools import cache
from typing import Any

import llvmlite.binding as llvm

from ....spans import span
from ..isa.emulated import emulate
from ..isa.targets import Target

# The passes beyond code generation: kernels are written the way they should run, so that only
# clean-up is left to do; loop vectorisers and unrollers would cost more time than they save.
# Half of the time goes to InstCombine. Tried in place of level 1, on a busy machine (sum of the
# best times of steps): ipsccp + new_gvn + instcombine + simplifycfg takes a fifth of the time, the
# code 0.97 to 1.05, some float depthwise steps 1.2; ipsccp + the function pipeline takes half,
# the code 0.99 (MobileNetV2), 1.01 (EfficientNet-Lite0) and 1.03 (ResNet-8).
# Modules cannot be compiled at once in threads: llvmlite holds a lock around every call.
SPEED_LEVEL = 1


@cache
def _initialised() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()


def machine(target: Target, quick: bool = False) -> Any:
    _initialised()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu,
        features=",".join(target.features),
        opt=0 if quick else 2,
        reloc="pic",
        codemodel="small",
    )


def optimise(text: str, target: Target, quick: bool = False) -> tuple[Any, Any]:
    """Parse, verify and clean up a module; returns it with the machine that made it. quick: leave
    it as it is, for code that runs a few times."""
    tm = machine(target, quick)
    module = llvm.parse_assembly(emulate(text, target) if target.emulated else text)
    module.verify()
    if quick:
        return module, tm
    options = llvm.create_pipeline_tuning_options(speed_level=SPEED_LEVEL)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    builder = llvm.create_pass_builder(tm, options)
    builder.getModulePassManager().run(module, builder)
    return module, tm


def compile_object(text: str, target: Target, quick: bool = False) -> bytes:
    with span("LLVM: parse and clean up", "compile"):
        module, tm = optimise(text, target, quick)
    with span("LLVM: object code", "compile"):
        return bytes(tm.emit_object(module))


def assembly(text: str, target: Target) -> str:
    module, tm = optimise(text, target)
    return str(tm.emit_assembly(module))

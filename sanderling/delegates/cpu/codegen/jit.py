"""LLVM: from IR text to object code. The only module that loads the LLVM library."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding import ffi

from ....spans import span
from ..isa.emulated import emulate
from ..isa.targets import Target

# The passes beyond code generation: kernels are written the way they should run, so that only
# clean-up is left to do; loop vectorisers and unrollers would cost more time than they save.
# Pieces of tiles and steps take the part of level 1 that looks at one function: half of the time,
# most of which InstCombine took. Tried for them in its place: ipsccp, NewGVN, InstCombine once and
# loop rotation take a quarter of it, and code around calls is 1.01 to 1.03 times as slow, since
# nothing moves out of loops.
SPEED_LEVEL = 1


@cache
def _initialised() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()


@cache
def _unlocked(name: str) -> Callable[..., Any]:
    """A function of LLVM's library that can run in several threads at once. llvmlite holds one lock
    around every call; LLVM itself needs none while each thread has a context of its own. Where
    llvmlite no longer shows its library, its own function is used, and threads take turns."""
    locked = getattr(ffi.lib, name)
    try:
        found = getattr(ctypes.CDLL(ffi.lib._name), name)
        found.argtypes, found.restype = locked.argtypes, locked.restype
    except (AttributeError, OSError):
        return locked
    return found


def machine(target: Target, quick: bool = False) -> Any:
    _initialised()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu,
        features=",".join(target.features),
        opt=0 if quick else 2,
        reloc="pic",
        codemodel="small",
    )


def optimise(
    text: str, target: Target, quick: bool = False, brief: bool = False
) -> tuple[Any, Any]:
    """Parse, verify and clean up a module; returns it with the machine that made it. quick: leave
    it as it is, for code that runs a few times. brief: function by function; what is to be part of
    its caller says so."""
    tm = machine(target, quick)
    module = _parsed(emulate(text, target) if target.emulated else text)
    module.verify()
    if quick:
        return module, tm
    options = llvm.create_pipeline_tuning_options(speed_level=SPEED_LEVEL)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    builder = llvm.create_pass_builder(tm, options)
    passes = _between_functions() if brief else builder.getModulePassManager()
    _unlocked("LLVMPY_RunNewModulePassManager")(passes, module, builder)
    if brief:
        each = builder.getFunctionPassManager()
        for function in module.functions:
            if not function.is_declaration:
                _unlocked("LLVMPY_RunNewFunctionPassManager")(each, function, builder)
    return module, tm


def _between_functions() -> Any:
    """Calls that are to vanish do, and arguments that are always the same become constants."""
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_ipsccp_pass()
    passes.add_global_dead_code_eliminate_pass()
    return passes


def _parsed(text: str) -> Any:
    """The module, in a context that no other thread uses."""
    context = llvm.context.create_context()
    with ffi.OutputString() as problem:
        found = _unlocked("LLVMPY_ParseAssembly")(context, text.encode(), problem)
        module = llvm.ModuleRef(found, context)
        if problem:
            raise RuntimeError(f"LLVM cannot read generated code: {problem}")
    return module


def compile_object(text: str, target: Target, quick: bool = False, brief: bool = False) -> bytes:
    with span("LLVM: parse and clean up", "compile"):
        module, tm = optimise(text, target, quick, brief)
    with span("LLVM: object code", "compile"), ffi.OutputString() as problem:
        memory = _unlocked("LLVMPY_TargetMachineEmitToMemory")(tm, module, 1, problem)
        if not memory:
            raise RuntimeError(f"LLVM cannot write object code: {problem}")
        try:
            size = ffi.lib.LLVMPY_GetBufferSize(memory)
            return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(memory), size)
        finally:
            ffi.lib.LLVMPY_DisposeMemoryBuffer(memory)


def assembly(text: str, target: Target) -> str:
    module, tm = optimise(text, target)
    return str(tm.emit_assembly(module))

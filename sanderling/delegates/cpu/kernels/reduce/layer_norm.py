"""Layer normalisation: passes/layer_norm.py finds it in a graph."""

from __future__ import annotations

from .....ir import Op
from ...codegen import vector_math as vmath
from ...codegen.emit import F32, Emitter, Int, Value, vector
from ...codegen.program import StepEmitter
from ...codegen.vectors import first_lanes
from ..elementwise.operands import tensor_at
from ..row import Kernel
from .rowwise import RowFunction, emit_rows, row_pointers


def _build_layer_norm(form: RowFunction, e: Emitter) -> None:
    """params: 1 / length, epsilon; perhaps two more pointers: gamma, beta."""
    params, rows, whole = e.args[2], e.args[3], e.args[4]
    affine = e.args[6:]
    part, epsilon = e.load(params, F32), e.load(e.at(params, 1, F32), F32)
    t = vector(F32, form.lanes)
    with e.loop(0, rows) as row:
        source, target = row_pointers(e, row)

        def add(i: Int, count: int, held: list[Value], source: Value = source) -> list[Value]:
            return [e.b.fadd(held[0], form.real(e, source, i, count))]

        total = form.sum(e, whole, add)
        mean = form.splat(e, e.b.fmul(total, part))

        def square(
            i: Int, count: int, held: list[Value], source: Value = source, mean: Value = mean
        ) -> list[Value]:
            x = e.b.fsub(form.real(e, source, i, count), mean)
            x = first_lanes(e, x, count, form.zero(e))
            return [e.fma(x, x, held[0])]

        squares = form.sum(e, whole, square)
        variance = e.b.fadd(e.b.fmul(squares, part), epsilon)
        inverse = form.splat(e, vmath.rsqrt(e, variance))

        def finish(
            i: Int,
            count: int,
            held: list[Value],
            source: Value = source,
            mean: Value = mean,
            inverse: Value = inverse,
            target: Value = target,
        ) -> list[Value]:
            x = e.b.fmul(e.b.fsub(form.real(e, source, i, count), mean), inverse)
            if affine:
                slope, offset = (e.load_part(e.at(p, i, F32), t, count) for p in affine)
                x = e.fma(x, slope, offset)
            e.store_part(x, e.at(target, i, F32), count)
            return held

        form.sweep(e, whole, [], finish)


def emit_layer_norm(k: StepEmitter, op: Op) -> None:
    affine = [k.ptr(t) for t in op.inputs[1:] if t is not None]
    params = (1 / tensor_at(op, 0).shape[-1], op.attrs["epsilon"])
    emit_rows(k, op, _build_layer_norm, params, affine)


KERNELS = {"cpu.LAYER_NORM": Kernel(emit_layer_norm)}

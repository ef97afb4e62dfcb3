"""The graph with codes in it: operands converted, weights encoded, the interface chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from ...ir import Array, Blockwise, DType, Graph, Op, Quant, Tensor
from ...ops.fixed import round_away
from ..modes import recurrent
from ..modes.rules import ASYMMETRIC, RULES, STORED
from ..modes.scheme import Floats, Grid, Mode, RangeOf
from ..modes.weights import (
    Coded,
    channel_scales,
    encode,
    encode_bias,
    encode_blocks,
    enough_for_bias,
)
from .solve import FLOAT, DomainValue, Solution

_DEQUANTIZE_VERSION = {
    DType.INT8: 2,
    DType.INT16: 3,
    DType.FLOAT16: 3,
    DType.INT4: 6,
    DType.INT2: 6,
}
PER_CHANNEL_DEQUANTIZE = 5
NEEDS_BIAS = ("CONV_2D", "DEPTHWISE_CONV_2D")
HALF_MAX = 65504.0
# Fused activations that are operators too.
UNFUSED = ("RELU", "RELU6", "RELU_N1_TO_1")


@dataclass
class WeightOptions:
    """How weights become codes. `rounded` replaces a weight's codes with better ones (AdaRound):
    (op, reals, scales) -> codes, or None to round to nearest. `scaled` replaces its scales with
    others (those that training has found): op -> scales, or None to find them by the method."""

    method: str = "max"
    minimum: int = 1024  # elements of a weight that dynamic and weight-only modes store as codes
    rounded: Callable[[Op, Array, Floats], Array | None] = lambda op, reals, scales: None
    scaled: Callable[[Op], Floats | None] = lambda op: None


@dataclass
class Written:
    """What became of the weights, for the report and the corrections."""

    weights: dict[Op, Coded] = field(default_factory=dict)
    became: dict[Op, str] = field(default_factory=dict)  # the mode that each op really got
    reasons: dict[Op, str] = field(default_factory=dict)  # why it is not the one asked for
    repaired: list[str] = field(default_factory=list)  # ops whose bias would have overflowed


# What weights of so many bits are called, by whether they are made float before use.
STORED_MODE = {
    (8, False): "dynamic",
    (4, False): "dynamic-int4",
    (8, True): "weight-int8",
    (4, True): "weight-int4",
    (2, True): "weight-int2",
}
# What an integer op is called, by bits of its activations and its weights.
INTEGER_MODE = {(8, 8): "int8", (8, 4): "int8x4", (16, 8): "int16x8", (16, 4): "int16x4"}


class Writer:
    """Rewrites one graph in place."""

    def __init__(
        self,
        graph: Graph,
        solution: Solution,
        options: WeightOptions,
        ranges: RangeOf = lambda tensor, grid: None,
    ) -> None:
        self.graph, self.solution, self.options, self.ranges = graph, solution, options, ranges
        self.made: dict[object, Tensor] = {}
        self.stored: dict[Tensor, Tensor] = {}  # float weights, and their codes
        self.written = Written()

    def run(self) -> Written:
        for tensor in self.graph.inputs:
            if bits := self.solution.home.get(tensor, FLOAT):  # it is fed as codes
                self._settle(tensor, bits)
        for op in list(self.graph.ops):
            if self.solution.domain(op):
                self._integer(op)
            else:
                self._float(op)
        self._share_stored()
        return self.written

    # -- ops ----------------------------------------------------------------------------------

    def _integer(self, op: Op) -> None:
        row, bits = RULES[op.name], self.solution.domain(op)
        mode = self.solution.modes[op]
        self.written.became[op] = mode.name
        for place in row.operands(op):
            self._set(op, place, self._operand(op, place))
        if row.weights:
            self._weights(op, mode)
        for tensor in op.outputs if row.real_out else []:
            self._settle(tensor, bits)
        if row.recurrent:
            recurrent.IntegerRecurrent(self.graph, op, self.ranges).write()
        if bits == 16 and op.name in ("ADD", "SUB"):
            op.attrs["pot_scale_int16"] = False
        op.version = max(op.version, row.versions[bits])

    def _float(self, op: Op) -> None:
        mode = self.solution.modes[op]
        for place, tensor in enumerate(op.inputs):
            if tensor is None:
                continue
            if self.solution.home.get(tensor, FLOAT):
                self._set(op, place, self.as_float(tensor, op))
            elif tensor.is_constant and mode.half and tensor.dtype is DType.FLOAT32:
                self._set(op, place, self._half(tensor, op))
                self.written.became[op] = mode.name
        if mode.weights is None or mode.is_integer:
            return
        if op.name in STORED:
            self._stored(op, mode)
        elif op.name in recurrent.WEIGHTS:
            self._recurrent(op, mode)

    def _set(self, op: Op, place: int, tensor: Tensor) -> None:
        if op.inputs[place] is not tensor:
            self.graph.set_input(op, place, tensor)

    # -- values -------------------------------------------------------------------------------

    def _settle(self, tensor: Tensor, bits: int) -> None:
        """The tensor holds codes from now on."""
        quant = self.solution.quant(DomainValue(tensor, bits))
        tensor.dtype, tensor.quant = _dtype(bits), quant

    def _operand(self, op: Op, place: int) -> Tensor:
        tensor = op.operand(place)
        value = self.solution.value(op, place, tensor)
        if tensor.is_constant:
            return self._once(value, lambda: self._constant(tensor, value))
        if self.solution.home.get(tensor, FLOAT) == value.bits and value.use is None:
            return tensor
        return self._once(value, lambda: self._convert(tensor, value, op))

    def _once(self, key: object, make: Callable[[], Tensor]) -> Tensor:
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    def _constant(self, tensor: Tensor, value: DomainValue) -> Tensor:
        quant, dtype = self.solution.quant(value), _dtype(value.bits)
        low, high = dtype.bounds
        codes = round_away(tensor.values.astype(np.float64) / quant.scale[0]) + quant.zero_point[0]
        kept = np.clip(codes, low, high).astype(dtype.numpy)
        return self.graph.constant(f"{tensor.name}/{dtype.short}", kept, dtype, quant=quant)

    def _convert(self, tensor: Tensor, value: DomainValue, reader: Op) -> Tensor:
        dtype = _dtype(value.bits)
        made = self.graph.tensor(
            f"{tensor.name}/{dtype.short}",
            dtype,
            tensor.shape,
            signature=tensor.signature,
            quant=self.solution.quant(value),
        )
        version = 2 if DType.INT16 in (dtype, tensor.dtype) else 1
        self.graph.insert(Op("QUANTIZE", [tensor], [made], version=version), before=reader)
        return made

    def as_float(self, tensor: Tensor, reader: Op | None) -> Tensor:
        return self._once(("float", tensor), lambda: self._dequantize(tensor, reader, "f32"))

    def _dequantize(self, tensor: Tensor, reader: Op | None, suffix: str) -> Tensor:
        made = self.graph.tensor(
            f"{tensor.name}/{suffix}", DType.FLOAT32, tensor.shape, signature=tensor.signature
        )
        version = _DEQUANTIZE_VERSION[tensor.dtype]
        if tensor.quant is not None and tensor.quant.per_axis:
            version = max(version, PER_CHANNEL_DEQUANTIZE)
        self.graph.insert(Op("DEQUANTIZE", [tensor], [made], version=version), before=reader)
        return made

    # -- weights ------------------------------------------------------------------------------

    def _weights(self, op: Op, mode: Mode) -> None:
        row, grid = RULES[op.name], self._taken_grid(op, mode)
        scale = float(op.operand(row.data[0]).quantisation.scale[0])
        bias_tensor = None if row.bias is None else op.input(row.bias)
        bias = None if bias_tensor is None else bias_tensor.data
        for place, axis in row.weights.items():
            weight = op.operand(place)
            scales = self._scales(op, weight.values, grid, axis)
            enough = enough_for_bias(scales, bias, scale, mode.bias_bits)
            if (enough > scales).any():
                self.written.repaired.append(op.where)
            coded = self._coded(op, weight.values, enough, grid, axis)
            self.graph.set_input(op, place, self._store(weight, coded, grid))
            if row.bias is not None:
                self._bias(op, row.bias, bias_tensor, coded, scale, mode.bias_bits)

    def _taken_grid(self, op: Op, mode: Mode) -> Grid:
        """The grid of an integer op's weights: of more bits than asked for where no kernel takes
        so few."""
        grid, row, bits = mode.weight_grid, RULES[op.name], self.solution.domain(op)
        taken = row.weight_bits(bits, grid.bits)
        if taken > grid.bits:
            self.written.reasons[op] = f"no kernel takes weights of {grid.bits} bits"
            self.written.became[op] = INTEGER_MODE[bits, taken]
        if taken < 8:
            op.version = max(op.version, row.fewer[bits, taken])
        return replace(grid, bits=taken)

    def _scales(self, op: Op, reals: Array, grid: Grid, axis: int) -> Floats:
        given = self.options.scaled(op)
        return channel_scales(reals, grid, axis, self.options.method) if given is None else given

    def _coded(self, op: Op, reals: Array, scales: Floats, grid: Grid, axis: int) -> Coded:
        coded = encode(reals, scales, grid, axis)
        better = self.options.rounded(op, reals, scales)
        coded = coded if better is None else replace(coded, codes=better)
        self.written.weights[op] = coded
        return coded

    def _store(self, weight: Tensor, coded: Coded, grid: Grid) -> Tensor:
        key = "weight", weight, coded.codes.tobytes(), coded.quant.scale.tobytes()
        return self._once(
            key,
            lambda: self.graph.constant(weight.name, coded.codes, grid.dtype, quant=coded.quant),
        )

    def _bias(
        self, op: Op, place: int, tensor: Tensor | None, coded: Coded, source: float, bits: int
    ) -> None:
        axis = coded.quant.axis
        if tensor is None and op.name not in NEEDS_BIAS:
            return
        reals = np.zeros(coded.codes.shape[axis], np.float32) if tensor is None else tensor.values
        made = encode_bias(reals, source, coded.quant.scale.astype(np.float64), bits)
        name = f"{op.outputs[0].name}/bias" if tensor is None else tensor.name
        stored = self.graph.constant(name, made.codes, quant=made.quant)
        while len(op.inputs) <= place:
            op.inputs.append(None)
        self.graph.set_input(op, place, stored)

    def _stored(self, op: Op, mode: Mode) -> None:
        """Store weights as codes while the op computes in float."""
        row, grid = STORED[op.name], mode.weight_grid
        for place, axis in row.operands.items():
            weight = op.input(place)
            reason = self._unstorable(weight)
            if weight is None or reason:
                self.written.reasons[op] = reason
                continue
            if mode.expanded or row.version is None or grid.bits not in row.bits:
                made = self._stored_weight(op, weight, grid, axis)
                self._expand(op, place, made)
                self._note(op, mode, made, expanded=True)
                continue
            held = replace(grid, per_channel=False, block=0) if row.whole else grid
            made = self._stored_weight(op, weight, held, axis)
            self._set(op, place, made)
            self._note(op, mode, made)
            op.version = max(op.version, row.version)
            if op.name in ASYMMETRIC:
                op.attrs["asymmetric_quantize_inputs"] = True
            if row.through:
                self._expand_result(op)

    def _unstorable(self, weight: Tensor | None) -> str:
        if weight is None or weight.data is None:
            return "its weights are computed, not constant"
        if weight.dtype is not DType.FLOAT32:
            return f"its weights are {weight.dtype.short}, not float32"
        if weight.data.size < self.options.minimum:
            return (
                f"its weights are {weight.data.size} numbers, fewer than the minimum of "
                f"{self.options.minimum}"
            )
        return ""

    def _note(self, op: Op, mode: Mode, made: Tensor, expanded: bool = False) -> None:
        """Note what the op became, and why where it is not what was asked for."""
        in_blocks = made.quant is not None and made.quant.block is not None
        became = mode.name if in_blocks else STORED_MODE[made.dtype.bits, expanded]
        self.written.became[op] = became
        if became != mode.name:
            why = f"{op.name} has no kernel for weights of {mode.weight_grid.bits} bits"
            self.written.reasons.setdefault(op, why)

    def _recurrent(self, op: Op, mode: Mode) -> None:
        """Store all of a recurrent op's weights, or none."""
        version = recurrent.HYBRID_VERSION.get(op.name)
        places = recurrent.stored_places(op, self.options.minimum)
        if not places:
            self.written.reasons[op] = (
                f"not all of its weights are constants of {self.options.minimum} numbers or more"
            )
        for place in places:
            weight = op.operand(place)
            if mode.expanded or version is None:
                made = self._stored_weight(op, weight, mode.weight_grid, 0)
                self._expand(op, place, made)
                self._note(op, mode, made, expanded=True)
                continue
            made = self._stored_weight(op, weight, recurrent.hybrid_grid(mode.weight_grid), 0)
            self._set(op, place, made)
            self._note(op, mode, made)
            op.version = max(op.version, version)
            op.attrs["asymmetric_quantize_inputs"] = True

    def _expand(self, op: Op, place: int, made: Tensor) -> None:
        self._set(
            op, place, self._once(("expanded", made), lambda: self._dequantize(made, op, "f32"))
        )

    def _expand_result(self, op: Op) -> None:
        """What the op moved was codes: they become the float result behind it."""
        source = op.operand(0)
        name = f"{op.outputs[0].name}/{source.dtype.short}"
        expand = Op("DEQUANTIZE", [], [], version=_DEQUANTIZE_VERSION[source.dtype])
        self._behind(op, expand, name, source.dtype, source.quant)

    def _stored_weight(self, op: Op, weight: Tensor, grid: Grid, axis: int) -> Tensor:
        refused = _refuses_blocks(op, weight, grid.block) if grid.block else ""
        if refused:
            self.written.reasons[op] = refused
            grid = replace(grid, block=0, per_channel=True)
        if grid.block:
            self._unfuse(op)
            made = self._once(("blocks", weight, grid), lambda: self._blocks(weight, grid))
        else:
            scales = self._scales(op, weight.values, grid, axis)
            made = self._store(weight, self._coded(op, weight.values, scales, grid, axis), grid)
        self.stored.setdefault(weight, made)
        return made

    def _unfuse(self, op: Op) -> None:
        """LiteRT's kernel for blocks forgets the fused activation: it becomes an op of its own."""
        clamp = op.attrs.get("fused_activation_function", "NONE")
        if clamp == "NONE":
            return
        op.attrs["fused_activation_function"] = "NONE"
        self._behind(op, Op(clamp, [], []), f"{op.outputs[0].name}/sum", DType.FLOAT32, None)

    def _behind(self, op: Op, last: Op, name: str, dtype: DType, quant: Quant | None) -> None:
        """`last` makes the op's result from what the op makes now."""
        out = op.outputs[0]
        between = self.graph.tensor(name, dtype, out.shape, signature=out.signature, quant=quant)
        op.outputs[0], between.producer, out.producer = between, op, None
        last.inputs, last.outputs = [between], [out]
        after = self.graph.ops.index(op) + 1
        self.graph.insert(last, self.graph.ops[after] if after < len(self.graph.ops) else None)

    def _share_stored(self) -> None:
        """A weight that is stored as codes is not stored as float beside them for an op of the same
        kind of mode that cannot take codes: it reads the codes, made float."""
        for weight, made in self.stored.items():
            for op in list(dict.fromkeys(weight.users)):
                mode = self.solution.modes.get(op)
                if mode is None or mode.weights is None or mode.is_integer:
                    continue
                for place, tensor in enumerate(op.inputs):
                    if tensor is weight:
                        self._set(op, place, self._dequantize(made, op, "f32"))
                        self.written.became.setdefault(op, STORED_MODE[made.dtype.bits, True])

    def _blocks(self, weight: Tensor, grid: Grid) -> Tensor:
        codes, scales = encode_blocks(weight.values, grid)
        held = self.graph.constant(f"{weight.name}/scales", scales)
        quant = Quant(
            np.zeros(0, np.float32),
            np.zeros(0, np.int64),
            0,
            block=Blockwise(held, None, grid.block),
        )
        return self.graph.constant(weight.name, codes, grid.dtype, quant=quant)

    def _half(self, tensor: Tensor, reader: Op) -> Tensor:
        def make() -> Tensor:
            kept = np.clip(tensor.values, -HALF_MAX, HALF_MAX).astype(np.float16)
            stored = self.graph.constant(f"{tensor.name}/f16", kept)
            return self._dequantize(stored, reader, "f32")

        return self._once(("half", tensor), make)


def _refuses_blocks(op: Op, weight: Tensor, block: int) -> str:
    """Why an op's weights cannot have a scale for each block; "" if they can."""
    clamp = op.attrs.get("fused_activation_function", "NONE")
    if op.name != "FULLY_CONNECTED":
        return f"blocks are for FULLY_CONNECTED alone, {op.name} has no kernel for them"
    if weight.shape[1] % block:
        return f"its rows of {weight.shape[1]} weights are no multiple of {block}"
    if clamp not in ("NONE", *UNFUSED):
        return f"its fused {clamp} cannot become an op of its own, as blocks need it"
    return ""


def _dtype(bits: int) -> DType:
    return {8: DType.INT8, 16: DType.INT16}[bits]

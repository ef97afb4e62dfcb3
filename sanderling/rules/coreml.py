"""TensorFlow Lite's Core ML delegate, for Apple's devices: float ops, with Core ML 2 or 3."""

from __future__ import annotations

from ..ir import Op, Tensor
from ..runtime.partition import Limits
from .gpu import expands_half
from .rule import (
    NO_ACTIVATION,
    STATIC_SIZES,
    Border,
    Rule,
    Table,
    activation,
    attribute,
    attribute_of,
    constant,
    elements,
    input_rank,
    input_type,
    is_type,
    least_inputs,
    operands,
    rows,
    sourced,
    values_of,
    version,
    where,
)

SOURCE = "tflite/delegates/coreml/coreml_delegate.mm"
BUILDERS = "tflite/delegates/coreml/builders"
VERSIONS = {"2": 2, "3": 3}
LONGEST_KERNEL = 16384
# Operators of version 1; the two others may have later ones.
PLAIN = (
    "ADD MUL AVERAGE_POOL_2D MAX_POOL_2D CONCATENATION CONV_2D TRANSPOSE_CONV HARD_SWISH LOGISTIC "
    "MEAN MIRROR_PAD PAD PADV2 RELU RELU6 RELU_N1_TO_1 RESHAPE RESIZE_BILINEAR SOFTMAX TANH"
)


def built(name: str, *rules: Rule) -> tuple[Rule, ...]:
    """Rules of one of the delegate's builders."""
    return sourced(f"{BUILDERS}/{name}.cc", *rules)


# -- looks at an op ------------------------------------------------------------------------------


def _whole(tensor: Tensor) -> tuple[int, ...]:
    """The shape with four axes."""
    return (*[1] * (4 - len(tensor.shape)), *tensor.shape)


def _broadcasts(op: Op) -> bool:
    """Height and width are equal or 1x1, channels are equal or 1, batches are equal, unless one of
    the two is a constant of one element."""
    if max(len(t.shape) for t in operands(op)) > 4:
        return False
    (b, *hw, c), (b2, *hw2, c2) = (_whole(t) for t in operands(op)[:2])
    scalar = any(t.is_constant and elements(t) == 1 for t in operands(op))
    spatial = hw == hw2 or [1, 1] in (hw, hw2)
    return (b == b2 or scalar) and spatial and (c == c2 or 1 in (c, c2))


def _is_float(tensor: Tensor) -> bool:
    return is_type(tensor, "f32") or (is_type(tensor, "f16") and tensor.is_constant)


def _shapes(op: Op) -> str:
    return f"they are {' and '.join(str(list(t.shape)) for t in operands(op)[:2])}"


def _is_channel_axis(op: Op) -> bool:
    rank = len(op.operand(0).shape)
    return rank in (3, 4) and attribute_of(op, "axis") in (-1, rank - 1)


def _kernel(op: Op) -> int:
    return max(op.operand(1).shape[1:3])


def _is_one_row(op: Op) -> bool:
    x = op.operand(0)
    return x.shape[-1:] == (elements(x),)


def _over_height_and_width(op: Op) -> bool:
    return all((axis + 4) % 4 in (1, 2) for axis in values_of(op, 1) or (0,))


def _pads_height_and_width(op: Op) -> bool:
    found = values_of(op, 1)
    return found is not None and len(found) == 8 and not any((*found[:2], *found[6:]))


def _new_rank(op: Op) -> int:
    given = op.input(1)
    return len(attribute_of(op, "new_shape") or ()) if given is None else elements(given)


# -- rows ----------------------------------------------------------------------------------------

FLOAT = where(
    "types",
    "its first value is f32",
    lambda op: is_type(op.input(2 if op.name == "TRANSPOSE_CONV" else 0), "f32"),
    lambda op: f"it is {op.operand(2 if op.name == 'TRANSPOSE_CONV' else 0).dtype.short}",
)
NO_SIGN_BIT = activation("NONE RELU RELU_N1_TO_1 RELU6 TANH")
KERNEL = where(
    "shape",
    f"the kernel is at most {LONGEST_KERNEL} long",
    lambda op: _kernel(op) <= LONGEST_KERNEL,
    lambda op: f"it is {_kernel(op)}",
)
CONVOLUTION = (NO_SIGN_BIT, constant(1, "the tensor of weights"), KERNEL)
CONVOLUTIONS = "convolution_op_builder"
PADS = built(
    "pad_op_builder",
    constant(1, "the tensor of paddings"),
    where(
        "shape", "height and width of a 4-D tensor are padded, nothing else", _pads_height_and_width
    ),
)
PAIR = built(
    "util",
    where(
        "types", "its inputs are f32, or constant f16", lambda op: all(map(_is_float, operands(op)))
    ),
    where(
        "shape",
        "shapes broadcast as [1,1] or [1] channels to height, width and channels",
        _broadcasts,
        _shapes,
    ),
)

ROWS = rows(
    (PLAIN, (version(1),)),
    ("DEPTHWISE_CONV_2D", (version(2),)),
    ("FULLY_CONNECTED", (version(6),)),
    (f"{PLAIN} DEPTHWISE_CONV_2D FULLY_CONNECTED", (FLOAT,)),
    ("ADD MUL", PAIR),
    ("AVERAGE_POOL_2D MAX_POOL_2D", (NO_ACTIVATION,)),
    ("CONCATENATION", built("concatenation_op_builder", NO_ACTIVATION, least_inputs(2),
        where("attribute", "channels of rank 3 or 4 are joined", _is_channel_axis))),
    ("CONV_2D DEPTHWISE_CONV_2D", built(CONVOLUTIONS, *CONVOLUTION, constant(2, "the bias"))),
    ("TRANSPOSE_CONV", built(CONVOLUTIONS, *CONVOLUTION, constant(0, "the result's shape"))),
    ("FULLY_CONNECTED", built("fully_connected_op_builder", attribute("weights_format", "DEFAULT"),
        input_type(1, "f32 f16", "the tensor of weights"), constant(1, "the tensor of weights"),
        where("shape", "the input is one row", _is_one_row),
        input_type(2, "f32 f16", "the bias"), constant(2, "the bias"), NO_SIGN_BIT)),
    ("MEAN", built("pooling_layer_builder", attribute("keep_dims", True), input_rank(0, 4),
        where("shape", "it is over height and width", _over_height_and_width))),
    ("PAD PADV2 MIRROR_PAD", PADS),
    ("MIRROR_PAD", built("pad_op_builder", attribute("mode", "REFLECT"))),
    ("RESHAPE", built("reshape_op_builder",
        Rule("level", "Core ML 2 is used", lambda _, level: level < 3),
        constant(1, "the shape"),
        where("rank", "it is to 3 or 4 dimensions", lambda op: _new_rank(op) in (3, 4)))),
    ("RESIZE_BILINEAR", built("resize_bilinear_op_builder", constant(1, "the size"))),
    ("SOFTMAX", (attribute("beta", 1.0),)),
)  # fmt: skip

# A prediction of a Core ML model, with arrays copied into its layout and back.
BORDER = Border(call_us=300.0, bytes_per_us=4000.0)
TABLES = tuple(
    Table(
        f"coreml:{name}",
        f"TensorFlow Lite's Core ML delegate, with Core ML {name}",
        SOURCE,
        ROWS,
        graph=(STATIC_SIZES,),
        limits=Limits(min_nodes_per_partition=2),
        level=level,
        folds=expands_half,
        border=BORDER,
    )
    for name, level in VERSIONS.items()
)
